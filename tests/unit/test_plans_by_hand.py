"""Rows and sentences of plans on made-up estimates of round numbers: machines, choices, what is beside, trees."""

from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest

from costmodel.base.errors import CostModelError, NoLayoutError
from costmodel.planning import beside as beside_module
from costmodel.planning import machines, no_layout, scaling
from costmodel.planning.beside import Beside, beside
from costmodel.planning.choices import Choice
from costmodel.planning.machines import Machine, machine_columns
from costmodel.planning.no_layout import dividing_batch, dividing_gpus, lacking_factor
from costmodel.reporting import plans
from costmodel.reporting.tree import tree_grid

plan_module = import_module("costmodel.planning.plan")


class Of(SimpleNamespace):
    """A record of made-up values."""


def cluster(name="c", **changes):
    said = {
        "name": name,
        "accelerator": Of(name="h100", called="GPU"),
        "price_usd_per_gpu_hour": 2.0,
        "price_date": "2026-01",
        "price_range_usd_per_gpu_hour": (1.5, 3.25),
    }
    return Of(**{**said, **changes})


def job(where, gpus=8, tokens=None, name="bf16"):
    return Of(
        cluster=where,
        layout=Of(gpus=gpus),
        recipe=Of(name="nemo"),
        precision=Of(name=name),
        tokens=tokens,
        slice="2x2",
    )


class Drawn:
    """Samples of a step: p10, p50 and p90 of 0.9, 1.1 and 1.3 s."""

    def interval(self):
        return Of(low=0.9, high=1.3)

    def quantile(self, share):
        return {0.1: 0.9, 0.5: 1.1, 0.9: 1.3}[share]


def estimate(of, **changes):
    said = {
        "job": of,
        "step_time_s": np.asarray(1.0),
        "mfu": np.asarray(0.4),
        "memory_bytes_per_gpu": np.asarray(2.0**35),
        "memory_capacity_bytes": 2.0**36,
        "fits_probability": np.asarray(0.75),
        "peak_flops_per_s": 1e15,
        "sample": Drawn,
        "gpu_hours": lambda tokens: np.asarray(tokens / 1e9),
        "fits": True,
    }
    return Of(**{**said, **changes})


RUN = Of(
    days=12.25,
    gpu_hours=2352.0,
    paid_gpu_hours=2500.0,
    energy_kwh=4400.0,
    dollars=5000.0,
    spread=lambda: {"days": (11.0, 12.0, 14.0), "dollars": (4500.0, 4900.0, 5700.0)},
    finishing_dates=lambda start: {"p10": f"{start}+11", "p50": f"{start}+12", "p90": f"{start}+14"},
)


@pytest.fixture
def three(monkeypatch):
    """Return a machine with a whole run, one without, and one on which nothing fits."""
    monkeypatch.setattr(machines, "layout_text", lambda layout: f"on {layout.gpus}")
    monkeypatch.setattr(plans, "layout_text", lambda layout: f"on {layout.gpus}")
    monkeypatch.setattr(plans, "off_middle", lambda drawn: "!")
    monkeypatch.setattr(machines, "price_note", lambda cluster: f"note {cluster.name}")
    first, second = job(cluster()), job(cluster("d", price_date="", price_range_usd_per_gpu_hour=None), 1)
    third = job(cluster("e", price_usd_per_gpu_hour=None), 16)
    return (
        Machine(first, estimate(first), RUN),
        Machine(second, estimate(second), problem="no tokens"),
        Machine(third, problem="no layout"),
    )


def test_a_row_of_a_machine_has_every_figure_under_its_name(three):
    """A trillion tokens take 1,000 GPU-hours at 2 dollars; what is not known is none."""
    with_run, without, none = ({k: v[i] for k, v in machine_columns(three).items()} for i in range(3))
    priced = {
        "cluster": "c",
        "accelerator": "h100",
        "gpus": 8,
        "recipe": "nemo",
        "precision": "bf16",
        "layout": "on 8",
        "slice": "2x2",
        "step_time_s": 1.0,
        "step_time_s_p10": 0.9,
        "step_time_s_p50": 1.1,
        "step_time_s_p90": 1.3,
        "mfu": 0.4,
        "memory_bytes_per_gpu": 2.0**35,
        "memory_capacity_bytes": 2.0**36,
        "fits_probability": 0.75,
        "price_usd_per_gpu_hour": 2.0,
        "price_note": "note c",
        "usd_per_trillion_tokens": 2000.0,
    }
    assert with_run == {
        **priced,
        "days": 12.25,
        "days_p10": 11.0,
        "days_p50": 12.0,
        "days_p90": 14.0,
        "gpu_hours": 2352.0,
        "energy_kwh": 4400.0,
        "dollars": 5000.0,
        "dollars_p10": 4500.0,
        "dollars_p50": 4900.0,
        "dollars_p90": 5700.0,
        "problem": "",
    }
    of_run = dict.fromkeys(set(with_run) - set(priced) - {"problem"})
    second = {"cluster": "d", "gpus": 1, "layout": "on 1", "price_note": "note d"}
    assert without == {**priced, **second, **of_run, "problem": "no tokens"}
    nothing = {
        name: value if name in ("accelerator", "recipe", "precision") else None
        for name, value in priced.items()
    }
    third = {"cluster": "e", "gpus": 16, "price_note": "note e"}
    assert none == {**nothing, **third, **of_run, "problem": "no layout"}
    # Without a price there is no rent for tokens, though there is a layout.
    free = job(cluster(price_usd_per_gpu_hour=None))
    assert Machine(free, estimate(free)).usd_per_trillion_tokens is None


def test_machines_side_by_side(three):
    grid = plans.machines_grid(Of(machines=three), "2026-12-01")
    assert [column.title for column in grid.columns] == ["", "8 GPUs of c", "1 GPU of d", "16 GPUs of e"]
    assert [list(row) for row in grid.rows] == [
        ["recipe", "nemo, bf16", "nemo, bf16", "nemo, bf16"],
        ["layout", "on 8", "on 1", "no layout fits"],
        ["step time", "1.000 s", "1.000 s", ""],
        ["  p10 / p50 / p90", *["900 ms / 1.10 s / 1.30 s!"] * 2, ""],
        ["MFU", *["40.0% of 1.000 PFLOP/s"] * 2, ""],
        ["memory", *["32.0 GiB of 64.0 GiB"] * 2, ""],
        ["price of an hour", "$2.00 (2026-01)", "$2.00 (given)", "no price"],
        ["  lists", "$1.50 to $3.25", "", "$1.50 to $3.25"],
        ["a trillion tokens", "$2,000", "$2,000", ""],
        ["days", "12.2", "", ""],
        ["  p10 / p50 / p90", "11.0 / 12.0 / 14.0", "", ""],
        ["done by, p10 p50 p90", "2026-12-01+11, 2026-12-01+12, 2026-12-01+14", "", ""],
        ["GPU-hours", "2,500", "", ""],
        ["energy, MWh", "4", "", ""],
        ["dollars", "$5,000", "", ""],
        ["  p10 / p50 / p90", "4,500 / 4,900 / 5,700", "", ""],
    ]
    assert grid.strong == {8, 9, 14}
    assert grid.note == (
        "best first; a trillion tokens: nothing lost to failures; days and dollars: with failures; "
        "1 GPU of d: no tokens; 16 GPUs of e: no layout"
    )
    plain = plans.machines_grid(Of(machines=three[1:]))
    assert [row[0] for row in plain.rows][-3:] == ["price of an hour", "  lists", "a trillion tokens"]
    assert "with failures" not in plain.note
    unpriced = Machine(three[0].job, three[0].est, Of(**{**vars(RUN), "dollars": None, "spread": dict}))
    rows = [list(row) for row in plans.machines_grid(Of(machines=[unpriced])).rows]
    assert ["dollars", "no price"] in rows
    assert sum(row[0] == "  p10 / p50 / p90" for row in rows) == 1  # of the step alone


def test_machines_are_searched_one_by_one_and_sorted(monkeypatch):
    """Of three machines the second is the plan's own and is not searched again; what does not fit comes last."""
    jobs = [job(cluster(name)) for name in ("a", "b", "b", "none")]
    ests = {"a": estimate(jobs[0], step_time_s=2.0), "b": estimate(jobs[1], step_time_s=1.5)}
    searched = []

    def search(question):
        name = question.jobs[0].cluster.name
        searched.append((name, len(question.jobs)))
        if name == "none":
            raise NoLayoutError("none fits")
        return Of(best=ests[name])

    weights = {"a": 1.0, "b": 1.0}
    question = Of(jobs=tuple(jobs), weight=lambda of: weights[of.cluster.name])
    monkeypatch.setattr(machines, "Found", Of(search=search))
    monkeypatch.setattr(machines, "replace", lambda question, jobs: Of(jobs=jobs))
    plan = Of(question=question, best=ests["b"])
    found = machines.machines(plan)
    assert [(one.job.cluster.name, one.est is None, one.problem) for one in found] == [
        ("b", False, ""),
        ("a", False, ""),
        ("none", True, "none fits"),
    ]
    assert searched == [("a", 1), ("none", 1)]
    weights["b"] = 2.0
    assert [one.job.cluster.name for one in machines.machines(plan)] == ["a", "b", "none"]
    assert machines.several_machines(question)
    assert not machines.several_machines(Of(jobs=jobs[1:3]))
    for other in (job(cluster("b"), 16), job(cluster("b"), name="fp8")):
        assert machines.several_machines(Of(jobs=(jobs[1], other)))


def test_a_whole_run_is_priced_where_tokens_are_known(monkeypatch):
    where = cluster()
    asked = []
    monkeypatch.setattr(machines, "run_of", lambda *given, **more: asked.append((given, more)) or "run")
    without, with_tokens = estimate(job(where)), estimate(job(where, tokens=1e9))
    assert machines._priced("j", without) == ("j", without, None, "")
    assert machines._priced("j", with_tokens) == ("j", with_tokens, "run", "")
    assert asked == [((with_tokens, 1e9), {"samples": machines._RUNS})]

    def refused(*_, **__):
        raise CostModelError("no storage")

    monkeypatch.setattr(machines, "run_of", refused)
    assert machines._priced("j", with_tokens) == ("j", with_tokens, None, "no storage")


def test_the_best_of_every_number_of_gpus(monkeypatch):
    jobs = [job(cluster(), gpus) for gpus in (64, 8, 16)]
    found = {id(one): estimate(one) for one in jobs}

    def search(question):
        (one,) = question.jobs
        if one.layout.gpus == 8:
            raise NoLayoutError("none")
        return Of(best=found[id(one)])

    monkeypatch.setattr(scaling, "search", search)
    monkeypatch.setattr(scaling, "replace", lambda question, jobs: Of(jobs=jobs))
    plan = Of(question=Of(jobs=jobs), asked_job=lambda pick: {5: 0}[pick], pick=5, best="own")
    plan.best = estimate(jobs[0], step_time_s=9.0)
    assert [(est.job.layout.gpus, float(est.step_time_s)) for est in scaling.best_of_each_job(plan)] == [
        (16, 1.0),
        (64, 9.0),
    ]
    with pytest.raises(CostModelError, match="scaling: one job was planned"):
        scaling.best_of_each_job(Of(question=Of(jobs=jobs[:1])))


def test_a_choice_is_held_where_all_of_it_is():
    two = Choice({"a": 1, "b": True})

    def of(**switches):
        return Of(switches=switches, axis_order=("tp", "dp"))

    assert two.holds(of(a=1, b=True))
    assert not two.holds(of(a=1, b=False))
    assert not two.holds(of(a=2, b=True))
    order = Choice({"a": 1}, ("tp", "dp"))
    assert order.holds(of(a=2))
    assert not Choice({}, ("dp", "tp")).holds(of(a=1))
    assert (str(order), order.turned) == ("axis order tp dp", "axis_order")
    assert (str(two), two.turned) == ("a=1, b=true", "a")


@pytest.fixture
def aside(monkeypatch):
    monkeypatch.setattr(beside_module, "layout_text", lambda layout: f"on {layout.gpus}")
    monkeypatch.setattr(beside_module, "short_form", lambda of: {"gpus": of.layout.gpus})
    return lambda **changes: estimate(job(cluster()), **changes)


def test_what_is_said_beside_an_assumed_layout(aside):
    """0.7 s for 1 s is 30 % less; as fast within a tie is nothing; where it does not fit the planner's does."""
    assumed = "No layout is named; assumed: on 8, which fits."
    pick = aside(step_time_s=0.7)
    best = "The planner's best takes 700.0 ms a step and 32.0 GiB"
    assert Beside(aside(), pick, "costmodel x").sentences == [assumed, f"{best}, 30.0% less: costmodel x"]
    tied = aside(step_time_s=1.0 - 0.5 * beside_module.TIE_SHARE)
    share = f"{beside_module.TIE_SHARE:.1%}"
    assert Beside(aside(), tied, "c").sentences == [
        assumed,
        f"The planner finds nothing that is {share} faster.",
    ]
    edge = aside(step_time_s=1.0 - beside_module.TIE_SHARE)
    assert "finds nothing" in Beside(aside(), edge, "c").sentences[1]
    small = "No layout is named; assumed: on 8, which does not fit."
    assert Beside(aside(fits=False), pick, "c").sentences == [small, f"{best}, and fits: c"]
    assert Beside(aside(fits=False), tied, "c").sentences[1].endswith(", and fits: c")
    assert Beside(aside(), refusal="none divides").sentences == [assumed, "Nor does another: none divides."]
    assert Beside(aside()).sentences == [assumed, "No plan was made."]
    assert Beside(aside()).record() is None
    assert Beside(aside(), pick, "c").record() == {
        "job": {"gpus": 8},
        "step_time_s": 0.7,
        "memory_bytes_per_gpu": 2.0**35,
        "command": "c",
    }


def test_who_names_no_degree_gets_a_plan_beside(aside, monkeypatch):
    est, asked = aside(), []

    def planned(given):
        asked.append(given)
        if given.get("gpus") == 7:
            raise NoLayoutError("plan: none divides")
        return Of(best="best", commands=lambda count: [f"command {count}", "other"])

    monkeypatch.setattr(beside_module, "planned", planned)
    monkeypatch.setattr(beside_module, "names_no_degree", lambda given: "tp" not in given)
    assert beside(est, {"tp": 2}) is None
    assert asked == []
    assert beside(est, {"gpus": 8}) == Beside(est, "best", "command 1")
    assert beside(est, {"gpus": 7}) == Beside(est, refusal="none divides")


def test_a_plan_takes_what_is_named_of_what_a_plan_knows(monkeypatch):
    asked = []
    monkeypatch.setattr(beside_module, "plan", lambda **given: asked.append(given) or Of(best=Of(job="j")))
    monkeypatch.setattr(
        beside_module,
        "short_form",
        lambda of: {"tp": 2, "switches": {}, "model": "m", "axis_order": "x", "gpus": 8},
    )
    given = {"model": "m", "gpus": 8, "tokens": None, "samples": 9, "objective": "step-time"}
    beside_module.planned(given)
    assert asked.pop() == {"model": "m", "gpus": 8, "objective": "step-time"}
    assert beside_module.decided(given) == {"tp": 2, "switches": {}, "axis_order": "x"}
    assert asked.pop() == {"model": "m", "gpus": 8}
    monkeypatch.setattr(beside_module, "estimate", lambda **given: given)
    monkeypatch.setattr(beside_module, "names_no_degree", lambda given: given["gpus"] == 8)
    assert beside_module.named_or_planned({"model": "m", "gpus": 8}) == (
        {"model": "m", "gpus": 8, "tp": 2, "switches": {}, "axis_order": "x"},
        True,
    )
    assert beside_module.named_or_planned({"model": "m", "gpus": 4}) == ({"model": "m", "gpus": 4}, False)


def test_a_tree_leaves_out_what_is_small_where_it_is_asked_to():
    """A step of 10 s: a part of 9.5 s, and one of 0.5 s twice a quarter."""

    def part(name, each_s, times=1.0, parts=()):
        return Of(name=name, each_s=each_s, seconds=each_s * times, times=times, children=parts)

    root = part("step", 10.0, parts=(part("layers", 9.5), part("head", 0.25, 2.0)))
    whole = tree_grid(Of(root=root))
    assert [list(row) for row in whole.rows] == [
        ["step", "1", "10.00 s", "10.00 s", "100.0%"],
        ["  layers", "1", "9.500 s", "9.500 s", "95.0%"],
        ["  head", "2", "250.0 ms", "500.0 ms", "5.0%"],
    ]
    assert "left out" not in whole.note
    few = tree_grid(Of(root=root), least_share=0.1)
    assert [row[0] for row in few.rows] == ["step", "  layers"]
    assert few.note.endswith(" Parts below 10.0% are left out; --all-lines shows them.")
    assert (whole.title, whole.strong) == ("The step", {0})
    assert [column.number for column in whole.columns] == [False, True, True, True, True]


def test_layouts_to_try_are_told_with_their_rank_and_command(monkeypatch):
    """The rows kept second and first: ranks count from one."""
    monkeypatch.setattr(plan_module, "taken", lambda top, rows: (top, rows.tolist()))
    monkeypatch.setattr(
        plan_module, "plan_columns", lambda passes, kept, some: {"tp": [10 * row for row in some[1]]}
    )
    monkeypatch.setattr(plan_module, "command_text", lambda of, files: f"{of} {files}")
    made = Of(
        odds=Of(trials=lambda: [Of(row=1), Of(row=0)]),
        passes=None,
        kept=Of(top="top"),
        estimate_of=lambda top, row: Of(job=f"{top} {row}"),
        question=Of(files="f"),
    )
    assert plan_module.Plan._by_row(made) == {
        1: {"tp": 10, "rank": 2, "command": "top 1 f"},
        0: {"tp": 0, "rank": 1, "command": "top 0 f"},
    }


@pytest.mark.parametrize("several", [False, True])
def test_runs_that_are_done_in_time(monkeypatch, several):
    """Of 30 days one run takes 20 and another 30, with none to spare; one takes 31."""

    class Run(Of):
        def within(self):
            return {"days": Of(margin=self.limit_days - self.days, expected=self.days, probability=0.875)}

    def a_run(name, days):
        where = cluster(name)
        return Run(est=Of(job=job(where, 1024)), days=days)

    monkeypatch.setattr(
        plan_module, "replace", lambda run, limit_days: Run(**vars(run), limit_days=limit_days)
    )
    monkeypatch.setattr(plan_module, "run_of", lambda est, tokens: a_run("alone", tokens))
    machines_of = [Of(run=a_run("a", 20.0)), Of(run=None), Of(run=a_run("b", 30.0)), Of(run=a_run("c", 31.0))]
    best = Of(job=job(cluster(), tokens=30.5))
    made = Of(best=best, has_machines=several, machines=machines_of)
    said = plan_module.Plan.in_time(made, 30.0)
    sure = "done in time with 88%."
    if several:
        assert said == [
            f"In 30 days on 1,024 of a: yes, 20.0 expected, {sure}",
            f"In 30 days on 1,024 of b: yes, 30.0 expected, {sure}",
            f"In 30 days on 1,024 of c: no, 31.0 expected, {sure}",
        ]
    else:
        assert said == [f"In 30 days on 1,024 of alone: no, 30.5 expected, {sure}"]
    with pytest.raises(CostModelError, match="days: needs tokens"):
        plan_module.Plan.in_time(Of(best=Of(job=job(cluster()))), 30.0)
    with pytest.raises(CostModelError, match="start: needs tokens"):
        plan_module.Plan.finished(Of(best=Of(job=job(cluster()))), "2026-12-01")


# --- where nothing fits --------------------------------------------------------------------------


@pytest.fixture
def cured(monkeypatch):
    """Return a function that asks for cures of a job, and which jobs were searched for them; some find nothing."""
    searched = []

    def ask(make, of, fits=lambda change: True):
        searched.clear()

        def feasible(question):
            change = question.jobs[0].change
            searched.append(change)
            return {"step_time_s": np.array([1.5])} if fits(change) else None

        monkeypatch.setattr(no_layout, "feasible", feasible)
        monkeypatch.setattr(
            no_layout, "job_with", lambda job, **change: Of(**{**vars(job), "change": change})
        )
        monkeypatch.setattr(no_layout, "replace", lambda question, jobs: Of(jobs=jobs))
        return [(one.change, one.step_time_s) for one in make(Of(), of)], list(searched)

    return ask


def a_job(gpus, batch, most=1024, topology="tree"):
    tiers = [Of(size=8, topology="tree"), Of(size=most, topology=topology)]
    return Of(layout=Of(gpus=gpus), global_batch=batch, cluster=Of(tiers=tiers, gpus_per_node=8))


def test_another_batch_is_tried_where_it_shares_few_factors_with_the_gpus(cured):
    """72 GPUs have 9 that 1,024 has not: 1,008 is searched; of 1,008 nothing is."""
    said = [("global_batch = 1008 instead of 1024", 1.5)]
    assert cured(no_layout._other_batch, a_job(72, 1024)) == (said, [{"global_batch": 1008.0}])
    assert cured(no_layout._other_batch, a_job(72, 1024), lambda _: False) == ([], [{"global_batch": 1008.0}])
    assert cured(no_layout._other_batch, a_job(72, 1008)) == ([], [])


def test_more_gpus_are_tried_until_some_do_and_then_fewer(cured):
    """Twice, then four times: 256 do. Halves between 128 and them: 192 do and 160 not."""
    said, searched = cured(no_layout._more_gpus, a_job(64, 1024), lambda change: change["gpus"] >= 192)
    assert said == [("192 GPUs", 1.5)]
    assert [change["gpus"] for change in searched] == [128, 256, 192, 160]
    # The fewest that are looked at are three quarters and five eighths of those.
    said, searched = cured(no_layout._more_gpus, a_job(64, 1024), lambda change: change["gpus"] > 128)
    assert [change["gpus"] for change in searched] == [128, 256, 192, 160]
    assert said == [("160 GPUs", 1.5)]
    # Whole nodes only: between 8 and 16 there are none.
    said, searched = cured(no_layout._more_gpus, a_job(8, 1024))
    assert (said, [change["gpus"] for change in searched]) == ([("16 GPUs", 1.5)], [16])
    # Slices come in some sizes; a machine has an end.
    said, searched = cured(no_layout._more_gpus, a_job(64, 1024, topology="torus"))
    assert (said, [change["gpus"] for change in searched]) == ([("128 GPUs", 1.5)], [128])
    said, searched = cured(no_layout._more_gpus, a_job(64, 1024, most=255), lambda _: False)
    assert (said, [change["gpus"] for change in searched]) == ([], [128])
    said, searched = cured(no_layout._more_gpus, a_job(64, 1024, most=10**9), lambda _: False)
    assert len(searched) == no_layout._MOST_GPU_DOUBLINGS


def test_numbers_of_gpus_that_a_batch_divides():
    """64 lies a node off 72, and 80 too: the lower first; beyond a quarter nothing is offered."""
    assert dividing_gpus(72, 1024, 8) == 64
    assert dividing_gpus(72, 5 * 1024, 8) == 64
    assert dividing_gpus(56, 1024, 8) == 64
    assert dividing_gpus(40, 1024, 8) == 32
    assert dividing_gpus(24, 1024, 8) is None
    assert dividing_gpus(7, 1024, 8) == 8
    assert dividing_gpus(5, 1024, 8) == 4
    assert dividing_gpus(3, 1024, 1) is None
    assert (dividing_batch(24, 2050), dividing_batch(24, 2053), dividing_batch(72, 16)) == (2040, 2064, 72)
    assert [lacking_factor(*one) for one in ((72, 1024), (72, 1008), (72, 3), (64, 7), (45, 9))] == [
        9,
        1,
        3,
        1,
        5,
    ]
