"""What the page shows, on tables and answers made up of few round texts; and the guard at its bounds."""

import asyncio
import re
import threading
from concurrent.futures import Future
from types import SimpleNamespace
from urllib.parse import parse_qsl

import pytest

import costmodel as cm
from costmodel.app import answers, assistants, guard, link, serve, tools
from costmodel.app.asked import (
    Texts,
    command,
    job_keywords,
    known_fields,
    laid_over,
    plan_keywords,
    run_keywords,
    texts_of,
)
from costmodel.app.limits import LIMITS, LimitError
from costmodel.app.link import FIGURES, State, query_of, state_of
from costmodel.base.errors import LayoutError
from costmodel.base.grid import Grid, columns
from costmodel.describe.jobs.fields import JOB_FIELDS

WORDS = "a text of twenty-five ch."
assert len(WORDS) == 25


def lines(html):
    """Return HTML with each tag that opens a part on a line of its own."""
    return re.sub(r"(?<=>)(?=<(?:table|caption|thead|tbody|th|tr|td|p|/?ol|li|div))", "\n", html).splitlines()


def test_a_bill_is_a_table_whose_lines_open():
    """Two lines have a key and one of them is open; the sum has none. 24 characters are short and 25 are long."""
    grid = Grid(
        "A <bill>",
        columns("Line", "Time >", "Tier", "Said"),
        [("  tp.all_gather", "1 ms", "nvlink", WORDS), ("dp", "2 ms", "ib", "b"), ("step", "3 & 4", "", "")],
        frozenset([2]),
        "a > b",
        ("tp.all_gather", "d&p", ""),
    )
    assert lines(answers.bill_table(grid, {"tp.all_gather": "<p>opened</p>"})) == [
        '<div class="wide " tabindex="0" role="region" aria-label="A &lt;bill&gt;">',
        '<table class="bill">',
        "<caption>A &lt;bill&gt;</caption>",
        "<thead>",
        "<tr>",
        '<th scope="col" class="text">Line</th>',
        '<th scope="col" class="number">Time</th>',
        '<th scope="col" class="text minor">Tier</th>',
        '<th scope="col" class="text long">Said</th></tr></thead>',
        "<tbody>",
        '<tr class="part">',
        '<th scope="row" class="text"><button type="button" data-line="tp.all_gather" aria-expanded="true">'
        "tp.<wbr>all_<wbr>gather</button></th>",
        '<td class="number">1 ms</td>',
        '<td class="text minor">nvlink</td>',
        f'<td class="text long">{WORDS}</td></tr>',
        '<tr class="opened">',
        '<td colspan="4">',
        "<p>opened</p></td></tr>",
        '<tr class="part">',
        '<th scope="row" class="text"><button type="button" data-line="d&amp;p" aria-expanded="false">dp</button></th>',
        '<td class="number">2 ms</td>',
        '<td class="text minor">ib</td>',
        '<td class="text long">b</td></tr>',
        '<tr class="sum">',
        '<th scope="row" class="text">step</th>',
        '<td class="number">3 &amp; 4</td>',
        '<td class="text minor"></td>',
        '<td class="text long"></td></tr></tbody></table></div>',
        '<p class="note">a &gt; b</p>',
    ]
    plain = answers.bill_table(Grid("t", columns("Line", "Said"), [("dp", WORDS[1:])]))
    assert plain.endswith(
        '<tr class="part"><th scope="row" class="text">dp</th><td class="text">'
        + WORDS[1:]
        + "</td></tr></tbody></table></div>"
    )


def test_layouts_are_buttons_with_their_commands(monkeypatch):
    monkeypatch.setattr(answers, "command_text", lambda job, files: f"{job} & {files['f']}")
    ests = [SimpleNamespace(job="x"), SimpleNamespace(job="y")]
    assert answers._uses("trial", ests, 3, {"f": "g"}) == (
        '<ol class="layouts"><li><button type="button" data-use="3">Use trial 1</button> <code>x &amp; g</code></li>'
        '<li><button type="button" data-use="4">Use trial 2</button> <code>y &amp; g</code></li></ol>'
    )


def test_what_is_sampled_is_told_in_its_units():
    figures = {
        "step_time_s": 2.0,
        "mfu": 0.5,
        "memory_bytes_per_gpu": 2**30,
        "days": 1234.56,
        "gpu_hours": 98765.4,
    }
    samples = SimpleNamespace(figures=figures, quantile=lambda share, name: figures[name] * (0.5 + share))
    grid = answers._spread(samples)
    assert (grid.title, [column.title for column in grid.columns]) == (
        "Where it lies",
        ["Figure", "p10", "p50", "p90"],
    )
    assert [column.number for column in grid.columns] == [False, True, True, True]
    assert [list(row) for row in grid.rows] == [
        ["step time", "1.20 s", "2.00 s", "2.80 s"],
        ["MFU", "30.0%", "50.0%", "70.0%"],
        ["memory of a GPU", "614 MiB", "1.00 GiB", "1.40 GiB"],
        ["days", "740.7", "1,234.6", "1,728.4"],
        ["GPU-hours", "59,259", "98,765", "138,272"],
    ]
    days = SimpleNamespace(figures={"days": 1.0}, quantile=samples.quantile)
    assert [row[0] for row in answers._spread(days).rows] == ["days"]


class Est:
    """An estimate that says what it is asked for."""

    def __init__(self, host=(), samples=None):
        self.bill = SimpleNamespace(
            host_lines=host,
            time_lines=[SimpleNamespace(name="pp")],
            memory_lines=[SimpleNamespace(name="states")],
        )
        self.samples = samples

    def with_samples(self, count):
        return Est(samples=count)

    def explain(self, line):
        return SimpleNamespace(grids=lambda: [f"how {line}", f"why {line}"])


@pytest.fixture
def shown(monkeypatch):
    """Return a function that shows a view of a made-up estimate."""
    asked = []

    def show(est=None, job=None, **state):
        given = est or Est()
        monkeypatch.setattr(cm, "estimate", lambda **keywords: asked.append(keywords) or given)
        asked.clear()
        return answers.view(State(jobs=(job or Texts({"gpus": "8"}), Texts({"gpus": "4"})), **state))

    monkeypatch.setattr(answers, "job_keywords", lambda job: job.said())
    monkeypatch.setattr(answers, "headline", lambda est: "HEAD ")
    monkeypatch.setattr(answers, "_assumed", lambda est, asked: [f"assumed {asked['gpus']}."])
    monkeypatch.setattr(answers, "assumed_recipe", lambda asked, named_by: [f"recipe by {named_by}."])
    monkeypatch.setattr(answers, "bill_table", lambda grid, opened=None: f"[{grid}|{opened}]")
    monkeypatch.setattr(answers, "html_table", lambda grid: f"<{grid}>")
    monkeypatch.setattr(answers, "_wrapped", lambda grid: f"{{{grid}}}")
    monkeypatch.setattr(answers, "_spread", lambda samples: f"spread {samples}")
    monkeypatch.setattr(answers.tables, "time_grid", lambda est, every_line: f"time {every_line}")
    monkeypatch.setattr(answers.tables, "memory_grid", lambda est, every_line: f"memory {every_line}")
    monkeypatch.setattr(answers.tables, "host_grid", lambda est: "host")
    monkeypatch.setattr(answers.tables, "causes_grid", lambda samples: f"causes {samples}")
    monkeypatch.setattr(answers.tables, "sampled_text", lambda samples: f"sampled {samples}")
    show.asked = asked
    return show


HEAD = 'HEAD <p class="said">assumed 8.</p><p class="said">recipe by the field recipe.</p>'


def test_a_view_shows_its_own_tables(shown):
    Shown = answers.Shown
    assert shown(view="bill") == Shown(HEAD, "[time True|{}]")
    assert shown.asked == [{"gpus": "8"}]
    assert shown(view="bill", line="pp") == Shown(HEAD, "[time True|{'pp': '<how pp><why pp>'}]")
    assert shown(view="bill", line="states").body == "[time True|{'states': '<how states><why states>'}]"
    assert shown(view="bill", line="dp") == Shown(HEAD, "[time True|{}]")
    assert shown(view="memory") == Shown(HEAD, "[memory True|{}]")
    assert shown(Est(host=("x",)), view="memory", line="pp").body == (
        "[memory True|{'pp': '<how pp><why pp>'}]{host}"
    )
    assert shown(view="export") == Shown(HEAD)
    assert shown(view="sure") == Shown(HEAD, '<p class="note">sampled 200.</p>{spread 200}{causes 200}')
    second = shown(view="bill", second=True)
    assert second.head == HEAD.replace("8", "4")
    assert shown.asked == [{"gpus": "4"}]


def test_what_cannot_be_sampled_shows_its_head_alone(shown, monkeypatch):
    monkeypatch.setattr(Est, "with_samples", lambda self, count: Est())
    assert shown(view="sure") == answers.Shown(HEAD)


def test_a_figure_has_a_label_and_perhaps_a_sentence(shown, monkeypatch):
    drawn = {
        "mesh": ("Mesh", lambda est: ({"data": 1}, "so & so")),
        "time": ("Time", lambda est: ({"data": 2}, "")),
    }
    monkeypatch.setattr(answers, "FIGURES", {**drawn, "pipeline": ("Tasks", lambda est: None)})
    Shown = answers.Shown
    assert shown(view="figures", figure="mesh") == Shown(
        HEAD, '<p class="note">so &amp; so</p>', {"data": 1}, "Mesh"
    )
    assert shown(view="figures", figure="time") == Shown(HEAD, "", {"data": 2}, "Time")
    assert shown(view="figures", figure="pipeline") == Shown(
        HEAD, '<p class="note">Tasks: this job has none.</p>', None, ""
    )


def test_figures_of_one_stage_and_one_gpu_are_none(monkeypatch):
    for name in ("time", "memory", "compute", "communication"):
        monkeypatch.setattr(answers.charts, f"{name}_chart", lambda est, n=name: n)
    monkeypatch.setattr(answers.charts, "pipeline_chart", lambda est: ("pipeline", "said"))
    monkeypatch.setattr(answers.charts, "tornado_chart", lambda found: f"tornado {found}")
    monkeypatch.setattr(cm, "sensitivity", lambda est: "effects")

    def drawn(pp, gpus):
        est = SimpleNamespace(job=SimpleNamespace(layout=SimpleNamespace(pp=pp, gpus=gpus)))
        return {name: draw(est) for name, (_, draw) in answers.FIGURES.items() if name != "mesh"}

    assert answers.FIGURES["mesh"][1] is answers.charts.mesh_chart
    assert drawn(2, 2) == {
        "time": ("time", ""),
        "memory": ("memory", ""),
        "pipeline": ("pipeline", "said"),
        "compute-roofline": ("compute", ""),
        "communication-roofline": ("communication", ""),
        "tornado": ("tornado effects", ""),
    }
    alone = drawn(1, 1)
    assert {name for name, made in alone.items() if made is None} == {"pipeline", "communication-roofline"}
    assert drawn(1, 2)["communication-roofline"] == ("communication", "")
    assert set(answers.FIGURES) == set(FIGURES)


def test_two_jobs_are_compared_and_an_error_says_of_which(monkeypatch):
    def estimate(**keywords):
        if keywords["gpus"] == "0":
            raise LayoutError("layout: none")
        return keywords["gpus"]

    found = SimpleNamespace(remarks=lambda: ["b > a"], grids=lambda: ["one", "two"])
    seen = []
    monkeypatch.setattr(answers, "job_keywords", lambda job: job.said())
    monkeypatch.setattr(answers, "_wrapped", lambda grid: f"{{{grid}}}")
    monkeypatch.setattr(cm, "estimate", estimate)
    monkeypatch.setattr(cm, "compare", lambda *ests, labels: seen.append((ests, labels)) or found)

    def compared(first, second, model=""):
        return answers.view(State(jobs=(Texts(first), Texts(second, model)), view="compare"))

    assert compared({"gpus": "8"}, {"gpus": "4"}) == answers.Shown(
        body='<p class="note">b &gt; a</p>{one}{two}'
    )
    assert seen == [(("8", "4"), ("A", "B"))]
    for wrong, name in ((({"gpus": "0"}, {"gpus": "4"}), "A"), (({"gpus": "8"}, {"gpus": "0"}), "B")):
        with pytest.raises(LayoutError, match=rf"^job {name}: layout: none$"):
            compared(*wrong)
    none = compared({"gpus": "8"}, {})
    assert "There is no second job yet" in none.body
    with pytest.raises(KeyError):  # a model alone is a second job
        compared({"gpus": "8"}, {}, "num_layers: 2")


@pytest.mark.parametrize("planned", [False, True])
def test_a_whole_run_shows_its_tables_with_the_hours_last(monkeypatch, planned):
    run = SimpleNamespace(is_planned=planned, est="E")
    monkeypatch.setattr(cm, "run", lambda **keywords: run)
    monkeypatch.setattr(answers, "run_keywords", lambda job, asked: {"asked": asked})
    monkeypatch.setattr(answers, "run_grids", lambda run: ("whole", "hours", "spread"))
    monkeypatch.setattr(answers, "run_remarks", lambda run: ["a remark"])
    monkeypatch.setattr(answers, "headline", lambda est: f"HEAD {est}")
    monkeypatch.setattr(answers, "_wrapped", lambda grid: f"{{{grid}}}")
    shown = answers.view(State(view="run"))
    assert shown.head == "HEAD E"
    assert shown.body.endswith('<p class="note">a remark</p>{whole}{spread}{hours}')
    assert shown.body.count("<p ") == 1 + planned
    assert ("this is the planner&#x27;s" in shown.body) is planned


def test_a_plan_lists_layouts_and_trials_with_buttons_in_one_count(monkeypatch):
    def est(name):
        return SimpleNamespace(job=name)

    found = SimpleNamespace(
        top=lambda count: [est(f"top{i}") for i in range(2)],
        trials=lambda: [(est("trial0"), "why")],
        advice=lambda: ["take <it>"],
        question=SimpleNamespace(files={}),
        best="best",
    )
    asked = []
    monkeypatch.setattr(cm, "plan", lambda **keywords: asked.append(keywords) or found)
    monkeypatch.setattr(answers, "plan_keywords", lambda job, search: {"search": search})
    monkeypatch.setattr(answers, "command", lambda name, job, search: f"costmodel {name} & {search['tp']}")
    monkeypatch.setattr(
        answers, "plan_grids", lambda found, count: ("best", "front", f"c{count}", "d", "tried")
    )
    monkeypatch.setattr(answers, "bill_table", lambda grid: f"[{grid}]")
    monkeypatch.setattr(answers, "_wrapped", lambda grid: f"{{{grid}}}")
    monkeypatch.setattr(
        answers, "_uses", lambda what, ests, before, files: f"({what} {[e.job for e in ests]} {before})"
    )
    monkeypatch.setattr(answers, "short_form", lambda job: {"model": "m", "tp": 2, "of": job})
    monkeypatch.setattr(answers, "spelled_out", dict)
    monkeypatch.setattr(
        answers, "texts_of", lambda values: {name: str(value) for name, value in values.items()}
    )
    monkeypatch.setattr(answers.charts, "pareto_chart", lambda found, best: {"data": best})
    shown = answers.plan(Texts(), {"tp": "2"}, progress=print)
    assert asked == [{"search": {"tp": "2"}, "progress": print}]
    assert shown.body == (
        '<p class="said">costmodel plan &amp; 2</p><p class="note">take &lt;it&gt;</p>'
        "[tried](trial ['trial0'] 2)[best](layout ['top0', 'top1'] 0)[front]{c10}{d}"
    )
    assert shown.layouts == tuple({"tp": "2", "of": name} for name in ("top0", "top1", "trial0"))
    assert (shown.head, shown.figure, shown.label) == (
        "",
        {"data": "best"},
        "Step time against memory of the best layouts",
    )


def test_a_layout_nobody_named_is_said(monkeypatch):
    monkeypatch.setattr(
        answers, "Beside", lambda est: SimpleNamespace(sentences=[f"{est} was taken.", "more"])
    )
    monkeypatch.setattr(answers, "names_no_degree", lambda asked: "tp" not in asked)
    assert answers._assumed("X", {}) == ["X was taken. The plan view looks for a better one."]
    assert answers._assumed("X", {"tp": 2}) == []


def test_a_job_file_names_the_model_that_lies_beside_it(monkeypatch):
    made = SimpleNamespace(job=SimpleNamespace(model=SimpleNamespace(name="mine")))
    monkeypatch.setattr(answers, "job_keywords", lambda job: {})
    monkeypatch.setattr(cm, "estimate", lambda **_: made)
    monkeypatch.setattr(answers, "job_file_text", lambda job, files: files)
    assert answers.job_yaml(Texts({}, "num_layers: 2")) == {"mine": "model.yaml"}
    assert answers.job_yaml(Texts()) is None


def test_a_report_says_whether_its_layout_was_planned(monkeypatch):
    monkeypatch.setattr(answers, "job_keywords", lambda job: {})
    monkeypatch.setattr(answers, "named_or_planned", lambda asked: ("E", True))
    monkeypatch.setattr(cm, "report", lambda est, is_planned, progress: (est, is_planned, progress))
    assert answers.report(Texts(), progress=print) == ("E", True, print)


# --- texts ---------------------------------------------------------------------------------------

MODEL = "num_layers: 2\nhidden_size: 64\nnum_heads: 2\nffn_size: 128\ngated_mlp: true\nvocab_size: 100\n"


def test_a_plan_is_asked_what_is_trained_and_not_the_layout_that_is_looked_at():
    job = {"model": "llama3-8b", "gpus": "8", "tp": "4", "pp": "2", "global_batch": "64", "seq_len": "8k"}
    job = Texts({**job, "switches": "dp_overlap=none"})
    asked = plan_keywords(job, {"tp": " 1,2 ", "pp": " ", "choose": "false", "fix": "pp=1 recompute=none"})
    assert asked == {
        "model": "llama3-8b",
        "gpus": "8",
        "global_batch": "64",
        "seq_len": 8192,
        "switches": {"dp_overlap": "none"},
        "tp": "1,2",
        "choose": False,
        "fix": {"pp": "1", "recompute": "none"},
    }
    with pytest.raises(cm.CostModelError, match="global_batch"):
        plan_keywords(Texts({"model": "llama3-8b", "gpus": "8", "seq_len": "8k"}), {"tp": "2"})
    own = plan_keywords(Texts({**job.fields, "model": ""}, MODEL), {})
    assert own["model"].num_layers == 2


def test_a_run_is_asked_the_job_and_what_is_said_beside_it():
    job = Texts({"model": "llama3-8b", "gpus": "8", "tp": "4"})
    asked = run_keywords(job, {"spare_nodes": "2", "repair_s": " ", "days": "9"})
    assert asked == {"model": "llama3-8b", "gpus": 8, "tp": 4, "spare_nodes": 2, "days": 9.0}


def test_one_job_lies_over_another_and_a_model_over_a_file():
    below = Texts({"model": "llama3-8b", "gpus": "8", "tp": "4"})
    assert laid_over(below, Texts({"gpus": "16"})) == Texts({"model": "llama3-8b", "gpus": "16", "tp": "4"})
    assert laid_over(below, Texts({"gpus": "16"}, MODEL)) == Texts({"gpus": "16", "tp": "4"}, MODEL)
    own = Texts({"gpus": "8"}, MODEL)
    assert laid_over(own, Texts({"tp": "2"})) == Texts({"gpus": "8", "tp": "2"}, MODEL)
    assert laid_over(own, Texts({"model": "llama3-8b"})) == Texts({"model": "llama3-8b", "gpus": "8"})


def test_values_become_texts_that_read_as_them():
    values = {
        "gpus": 64,
        "tokens": 1.5e13,
        "epochs": 0.1 + 0.2,
        "axis_order": ["tp", "dp", "pp", "cp"],
        "frozen": ("embedding", "head"),
        "switches": {"dp_overlap": "none", "cuda_graphs": False},
        "sequence_parallel": True,
        "cluster": None,
    }
    assert texts_of(values) == {
        "gpus": "64",
        "tokens": "1.5e+13",
        "epochs": "0.30000000000000004",
        "axis_order": "tp dp pp cp",
        "frozen": "embedding,head",
        "switches": "dp_overlap=none cuda_graphs=false",
        "sequence_parallel": "true",
    }


def test_known_fields_go_by_their_aliases():
    assert known_fields({"set": "a=1", "zero": 2, "price": 1.5}, JOB_FIELDS, "x") == {
        "switches": "a=1",
        "zero_stage": "2",
        "price_usd_per_gpu_hour": "1.5",
    }
    with pytest.raises(cm.CostModelError, match=r"^x: 'gpu' is not a field"):
        known_fields({"gpu": 1}, JOB_FIELDS, "x")


def test_commands_have_a_flag_for_every_text():
    job = Texts(
        {"model": "llama3-8b", "gpus": "8", "tp": "4", "switches": "a=1 b=2", "sequence_parallel": "no"}
    )
    whole = "-m llama3-8b -n 8 --tp 4 --no-sequence-parallel -s a=1 -s b=2"
    said = command("estimate", job, ("--format", "json"))
    assert sorted(said.split()) == sorted(f"costmodel estimate {whole} --format json".split())
    assert command("estimate", Texts(job.fields, MODEL)).startswith("costmodel estimate -m model.yaml -n 8")
    planned = command("plan", job, search={"tp": "1,2", "sequence_parallel": "true", "choose": "off"})
    assert sorted(planned.split()) == sorted(
        f"costmodel plan {'-m llama3-8b -n 8 -s a=1 -s b=2'} --tp 1,2 --sequence-parallel true --no-choose".split()
    )
    for text, flag in (("True", ""), ("ON", ""), ("yes", ""), ("no", "no-"), ("off", "no-"), ("", "")):
        said = command("estimate", Texts({"gpus": "8", "sequence_parallel": text}))
        assert said == f"costmodel estimate -n 8{f' --{flag}sequence-parallel' if text else ''}"
    run = command("run", Texts({"gpus": "8"}), run={"spare_nodes": "2", "repair_s": " "})
    assert run == "costmodel run -n 8 --spare-nodes 2"


@pytest.mark.parametrize(("text", "fine"), [("x" * 2000, True), ("x" * 2001, False)])
def test_a_text_of_the_longest_size_is_read(text, fine):
    if fine:
        assert (
            job_keywords(Texts({"model": text, "gpus": "1", "global_batch": "1", "seq_len": "1"}))["model"]
            == text
        )
    else:
        with pytest.raises(LimitError, match=r"model: expected at most 2,000 characters, got 2,001"):
            job_keywords(Texts({"model": text}))


def test_a_model_of_the_longest_size_is_unpacked_and_one_character_more_is_not():
    for size, fine in ((100_000, True), (100_001, False)):
        packed = link._packed("x" * size)
        if fine:
            assert link._unpacked(packed) == "x" * size
        else:
            with pytest.raises(LimitError):
                link._unpacked(packed)
    assert "model_file" in dict(parse_qsl(query_of(State(jobs=(Texts({}, MODEL), Texts())))))
    parts = "&".join(f"a{i}=1" for i in range(401))
    with pytest.raises(LimitError, match="expected at most 400 parts"):
        state_of(parts)
    longest = "model=" + "x" * (LIMITS.link_characters - 6)
    assert state_of(longest).job.said()["model"] == longest[6:]
    with pytest.raises(LimitError, match="expected at most 16,000 characters, got 16,001"):
        state_of(longest + "x")


# --- assistants ----------------------------------------------------------------------------------


@pytest.fixture
def tooled(monkeypatch):
    """Return what the functions behind the tools are asked; tables are told by their names."""
    asked = []
    record = {
        "lines": [
            {
                "name": f"l{i}",
                "axis": "tp",
                "toll": "t",
                "exposed_seconds": i % 30,
                "differences": [0, (-1) ** i * i],
                "bill": bill,
            }
            for i, bill in enumerate(["time"] * 30 + ["memory"] * 30)
        ],
        "jobs": ["a", "b"],
        "mfu": 0.4,
        **dict.fromkeys(("objective", "held", "top", "advice"), "x"),
        **dict.fromkeys(("num_layouts_considered", "num_layouts_priced", "num_layouts_fit", "more"), 7),
    }

    class Answer(SimpleNamespace):
        def grids(self, **options):
            asked.append(("grids", options))
            return ["a table"]

        def to_dict(self, **options):
            asked.append(("record", options))
            return dict(record)

        def remarks(self):
            return ["a remark"]

        def explain(self, line):
            return Lines([SimpleNamespace(name=f"{line}{i}") for i in range(26 if line == "many" else 25)])

    class Lines(list):
        grids, to_dict, remarks = Answer.grids, Answer.to_dict, Answer.remarks

    def answers_as(name):
        def ask(*given, **more):
            asked.append((name, given, more))
            return Answer(warnings=("w",), given=more)

        return ask

    for name in ("estimate", "plan", "compare"):
        monkeypatch.setattr(cm, name, answers_as(name))
    monkeypatch.setattr(tools, "drawn", lambda grids, remarks: " ".join(grids))
    monkeypatch.setattr(tools, "Beside", lambda est: SimpleNamespace(sentences=["It was assumed.", "x"]))
    monkeypatch.setattr(tools, "assumed_recipe", lambda asked, named_by: [f"recipe by {named_by}"])
    return asked


SAID = {"model": "llama3-8b", "gpus": 8, "global_batch": 64, "seq_len": "8k"}
SHORT = "-m llama3-8b -n 8 --global-batch 64 --seq-len 8k"
READ = {**SAID, "seq_len": 8192}


def test_a_tool_for_an_estimate_tells_the_largest_lines(tooled):
    said = tools.estimate({**SAID, "tp": None})
    assert tooled[0] == ("estimate", (), READ)
    assert said.text == (
        "a table\nIt was assumed.\nThe tool plan finds the best layout.\nrecipe by the field recipe\na remark\n\n"
        f"The same: costmodel estimate {SHORT}"
    )
    lines = said.record.pop("lines")
    twice = [seconds for seconds in range(29, 16, -1) for _ in range(2)]
    assert [line["exposed_seconds"] for line in lines] == twice[:25]
    assert set(lines[0]) == {"name", "axis", "toll", "exposed_seconds"}
    assert said.record == {
        "mfu": 0.4,
        **dict.fromkeys(("objective", "held", "top", "advice"), "x"),
        **dict.fromkeys(("num_layouts_considered", "num_layouts_priced", "num_layouts_fit", "more"), 7),
        "warnings": ["w"],
        "command": f"costmodel estimate {SHORT}",
    }
    assert "assumed." not in tools.estimate({**SAID, "tp": 2}).text


def test_a_tool_for_a_plan_hands_on_what_is_said(tooled):
    given = {**SAID, "tp": [1, 2], "pp": None, "fix": {"recompute": "none"}, "recipe": None}
    said = tools.plan(given, progress=print)
    assert tooled[0] == (
        "plan",
        (),
        {
            **READ,
            "gpus": "8",
            "global_batch": "64",
            "tp": "1,2",
            "fix": {"recompute": "none"},
            "progress": print,
        },
    )
    assert tooled[1:] == [("record", {"count": 5}), ("grids", {"count": 5, "commands": True})]
    assert set(said.record) == {
        *(
            "objective",
            "held",
            "num_layouts_considered",
            "num_layouts_priced",
            "num_layouts_fit",
            "top",
            "advice",
        ),
        "command",
    }
    assert said.record["command"] == f"costmodel plan {SHORT} --tp 1,2 --fix recompute=none"


def test_a_tool_opens_at_most_twenty_five_lines(tooled):
    said = tools.explain({**SAID, "line": "tp."})
    assert said.text == f"a table\na remark\n\nThe same: costmodel explain {SHORT} --line tp."
    with pytest.raises(
        cm.CostModelError, match=r"^line: 26 lines begin with 'many', at most 25 are shown: many0, "
    ):
        tools.explain({**SAID, "line": "many"})
    for given in (SAID, {**SAID, "line": None}):
        with pytest.raises(cm.CostModelError, match=r"^line: missing"):
            tools.explain(given)


def test_a_tool_compares_a_job_with_what_is_otherwise(tooled):
    said = tools.compare({"first": SAID, "second": {"tp": 2}})
    (first, second, compared, *_) = tooled
    assert (first, second) == (("estimate", (), READ), ("estimate", (), {**READ, "tp": 2}))
    assert (compared[0], compared[2]) == ("compare", {"labels": ("first", "second")})
    assert [one.given.get("tp") for one in compared[1]] == [None, 2]
    # The largest differences of each bill, whichever way they go.
    names = [line["name"] for line in said.record["lines"]]
    assert names == [f"l{i}" for i in (*range(29, 4, -1), *range(59, 34, -1))]
    assert said.record["jobs"] == ["a", "b"]
    assert said.record["command"].splitlines() == [
        f"costmodel estimate {SHORT}",
        "costmodel estimate -m llama3-8b -n 8 --tp 2 --global-batch 64 --seq-len 8192",
    ]
    for wrong in (
        {"first": SAID},
        {"first": SAID, "second": {}, "third": {}},
        {"first": SAID, "second": "tp2"},
    ):
        with pytest.raises(cm.CostModelError, match=r"^compare: expected first and second"):
            tools.compare(wrong)


def test_a_file_is_read_as_it_is_called_or_as_it_begins(monkeypatch):
    named = []

    def read_upload(name, content):
        named.append((name, content))
        return SimpleNamespace(job=Texts({"gpus": "8", "model": "m"}))

    monkeypatch.setattr(tools, "read_upload", read_upload)
    assert tools._job_of({"file": " {}", "gpus": 16}) == Texts({"gpus": "16", "model": "m"})
    assert tools._job_of({"file": "x: 1", "model": None}) == Texts({"gpus": "8", "model": "m"})
    assert tools._job_of({"file": "{}", "file_name": "train.sh"}).said()["gpus"] == "8"
    assert named == [("config.json", b" {}"), ("file", b"x: 1"), ("train.sh", b"{}")]
    assert tools._job_of({"gpus": 4, "file": None, "file_name": "a"}) == Texts({"gpus": "4"})
    with pytest.raises(cm.CostModelError, match=r"^job: 'gpu' is not a field"):
        tools._job_of({"gpu": 4})


@pytest.mark.parametrize("is_long", [True, False])
def test_an_assistant_is_told_how_far_a_search_is_while_it_goes_on(is_long):
    future, asked, told = Future(), [], []

    class Session:
        async def report_progress(self, done, total, what):
            told.append((done, total, what))
            assert not future.done()
            future.set_result("said")

    class Crowd:
        def submit(self, ask, given, **how):
            asked.append((ask, given, how))
            if is_long:
                how["progress"](3, 10)
            else:
                threading.Timer(0.1, future.set_result, ["said"]).start()
            return future

    tool = tools.Tool("t", "", {}, print, is_long)
    # A search that goes on for ever would end the test after a while.
    threading.Timer(5.0, lambda: future.done() or future.set_result("late")).start()
    context = SimpleNamespace(session=Session())
    assert asyncio.run(assistants._asked(tool, {"gpus": 8}, Crowd(), context)) == "said"
    ((ask, given, how),) = asked
    assert (ask, given, how["most_s"]) == (print, {"gpus": 8}, LIMITS.plan_s if is_long else LIMITS.answer_s)
    assert told == ([(3, 10, "layouts priced")] if is_long else [])
    assert (how["progress"] is not None) is is_long
    assert how["stop"].is_set()


# --- starting ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "token", "said"),
    [
        ("127.0.0.1", "", "http://127.0.0.1:80/"),
        ("::1", "", "http://[::1]:80/"),
        ("0.0.0.0", "a&b", "http://here:80/?token=a%26b"),
        ("::", "t", "http://here:80/?token=t"),
        ("", "t", "http://here:80/?token=t"),
        ("node17", "t", "http://node17:80/?token=t"),
    ],
)
def test_the_address_is_told_first_and_what_a_token_does(monkeypatch, host, token, said):
    monkeypatch.setattr(serve.socket, "gethostname", lambda: "here")
    lines = []
    serve._announce(host, SimpleNamespace(getsockname=lambda: ("x", 80)), token, lines.append)
    assert lines[0] == said
    assert lines[-1] == "Ctrl-C ends it."
    assert len(lines) == 2 + bool(token)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_page_is_served_and_all_is_closed(monkeypatch, host):
    """Workers that wait for their turn answer, searches do not wait; a token only where others get here."""
    pytest.importorskip("nicegui", reason="nicegui is not installed (extra app)")
    pytest.importorskip("plotly", reason="plotly is not installed")
    made, closed, ran = [], [], []

    class Crowd:
        def __init__(self, count, queue, busy):
            made.append((count, queue, busy.partition(";")[0]))
            self.name = len(made)

        def warm(self):
            made.append(f"warm {self.name}")

        def close(self):
            closed.append(self.name)

    monkeypatch.setattr(serve, "Workers", Crowd)
    monkeypatch.setattr(serve, "_token", lambda: "secret")
    listening = SimpleNamespace(close=lambda: closed.append("socket"))
    monkeypatch.setattr(serve, "_listening", lambda host, port: (listening, ran.append((host, port)))[0])
    monkeypatch.setattr(serve, "_announce", lambda *given: ran.append(given))

    def run(listens, token, workers, plans, announce):
        ran.append((listens, token, workers.name, plans.name))
        announce()
        raise KeyboardInterrupt

    monkeypatch.setattr(serve, "_run", run)
    with pytest.raises(KeyboardInterrupt):
        serve.serve(host, 8080, print)
    token = "" if host == "127.0.0.1" else "secret"
    # The second is made after the first; what is warmed is the first.
    assert made == [
        (LIMITS.answers_at_once, serve._WAITING, "too many wait for an answer"),
        (LIMITS.plans_at_once, 0, f"{LIMITS.plans_at_once} searches are running, which is the limit here"),
        "warm 1",
    ]
    assert ran == [(host, 8080), (listening, token, 1, 2), (host, listening, token, print)]
    assert closed == ["socket", 1, 2]


# --- the guard at its bounds ---------------------------------------------------------------------

HERE = "127.0.0.1:8080"


async def read_all(scope, receive, send):
    """Answer with the number of bytes that came."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"x-own", b"kept"), (b"X-Frame-Options", b"no")],
        }
    )
    await send({"type": "http.response.body", "body": str(size).encode()})


def sent(app=read_all, token="", kind="http", method="GET", query=b"", body=(b"",), headers=()):
    """Return the messages that a request gets."""
    pieces, told = list(body), []

    async def receive():
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(message):
        told.append(message)

    scope = {"type": kind, "query_string": query}
    if kind != "lifespan":
        given = {"host": HERE, **dict(headers)}
        scope["headers"] = [(key.encode("latin-1"), value.encode("latin-1")) for key, value in given.items()]
    if kind == "http":
        scope["method"] = method
    asyncio.run(guard.Guard(app, token)(scope, receive, send))
    return told


def status(**request):
    return sent(**request)[0]["status"]


def test_a_body_of_the_largest_size_and_its_envelope_gets_in_and_one_byte_more_does_not():
    own, most = {"method": "POST", "headers": {"origin": f"http://{HERE}"}}, LIMITS.upload_bytes + 20_000
    assert sent(**own, body=(b"x" * 20_000, b"x" * (most - 20_000)))[1]["body"] == str(most).encode()
    start, body = sent(**own, body=(b"x" * 20_001, b"x" * (most - 20_000)))
    assert start["status"] == 413
    assert body == {
        "type": "http.response.body",
        "body": b"expected a file of at most 1,000,000 bytes\n",
    }
    for length, answer in ((most, 200), (most + 1, 413), ("1e3", 413), ("0", 200)):
        headers = {"origin": f"http://{HERE}", "Content-Length": str(length)}
        assert status(method="POST", headers=headers) == answer


def test_an_answer_that_has_begun_is_not_begun_again():
    async def eager(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await receive()

    own = {"method": "POST", "headers": {"origin": f"http://{HERE}"}}
    told = sent(eager, **own, body=(b"x" * (LIMITS.upload_bytes + 20_001),))
    assert [message["type"] for message in told] == ["http.response.start"]


def test_an_address_of_the_longest_size_gets_in_and_one_character_more_does_not():
    most = 2 * LIMITS.link_characters
    assert status(query=b"x" * most) == 200
    start, body = sent(query=b"x" * (most + 1))
    assert start["status"] == 414
    assert body["body"] == b"expected an address of at most 16,000 characters\n"


def test_headers_of_the_page_stay_but_for_those_of_the_guard():
    start = sent()[0]
    assert start["headers"] == [(b"x-own", b"kept"), *guard._HEADERS]
    refused = sent(headers={"host": "evil.example" + "x" * 100})[0]
    assert refused["status"] == 400
    assert refused["headers"] == [(b"content-type", b"text/plain; charset=utf-8"), *guard._HEADERS]
    assert (
        sent(headers={"host": "e" * 100})[1]["body"]
        == f"this page is at 127.0.0.1, not at '{'e' * 80}'\n".encode()
    )


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        ({"method": "HEAD"}, 200),
        ({"method": "POST"}, 403),
        ({"method": "POST", "headers": {"origin": f"http://{HERE}"}}, 200),
        ({"headers": {"origin": f"http://{HERE}"}}, 200),
        ({"headers": {"origin": "http://evil.example"}}, 403),
        ({"headers": {"host": "[::1]:1", "origin": "http://[::1]:1"}}, 200),
    ],
)
def test_who_may_ask(request_, answer):
    assert status(**request_) == answer


def test_this_machine_has_names_in_any_case():
    for name in ("localhost", "LocalHost", "127.0.0.1", "127.1.2.3", "::1", "[::1]"):
        assert guard.is_loopback(name), name
    for name in ("localhost.evil.example", "0.0.0.0", "192.168.0.1", "", "local host"):
        assert not guard.is_loopback(name), name
    assert status(headers={"host": "LOCALHOST:8080"}) == 200


def test_sockets_and_the_start_of_the_page_pass():
    seen = []

    async def app(scope, receive, send):
        seen.append((scope["type"], receive.__qualname__))

    sent(app, kind="lifespan")
    sent(app, kind="lifespan", token="t")
    sent(app, kind="websocket", headers={"origin": f"http://{HERE}"})
    assert [kind for kind, _ in seen] == ["lifespan", "lifespan", "websocket"]
    # What a socket receives is not a file and is not counted.
    assert all("_counted" not in name for _, name in seen)
    assert sent(app, kind="websocket") == [{"type": "websocket.close", "code": 1008}]


def test_a_token_becomes_a_cookie_and_the_rest_of_the_address_stays():
    (start, body) = sent(token="t0ken", query=b"gpus=8&tp=&token=t0ken&model=a%20b")
    assert start["status"] == 303
    assert start["headers"] == [
        (b"location", b"/?gpus=8&tp=&model=a+b"),
        (b"set-cookie", b"costmodel_token=t0ken; HttpOnly; SameSite=Strict; Path=/"),
        *guard._HEADERS,
    ]
    assert body == {"type": "http.response.body", "body": b""}
    for query, method in ((b"token=t0ken", "HEAD"), (b"token=t0keN", "GET"), (b"gpus=8", "GET")):
        start, body = sent(token="t0ken", query=query, method=method)
        assert start["status"] == 403
        assert body["body"] == b"open the address that the program printed; it has a token\n"
    other = {"host": "node17:80"}
    for cookie, answer in (
        ("costmodel_token=t0ken", 200),
        ("a=1; costmodel_token=t0ken", 200),
        ("a=t0ken", 403),
    ):
        assert status(token="t0ken", headers={**other, "cookie": cookie}) == answer
