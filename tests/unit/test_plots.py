"""Figures show the bill: their parts add up, their files are pictures, and what is missing is said."""

import re

import numpy as np
import pytest
from famous_jobs import DEEPSEEK_V3

import costmodel as cm
from costmodel.base.answer import Views
from costmodel.cli import main
from costmodel.cli.streams import _SPELT
from costmodel.estimates import collective as prices
from costmodel.estimates.pipeline_run import durations, run_pipeline
from costmodel.physics.pipeline.schedule_table import SCHEDULES
from costmodel.reporting.charts import Bars, Chart, Curve, Dots, Panel, rows_of, save
from costmodel.reporting.series import memory_stacks
from costmodel.reporting.terminal import terminal_text

matplotlib = pytest.importorskip("matplotlib")

SMALL = {
    "model": "llama3-8b",
    "cluster": "dgx-h100-ndr",
    "gpus": 16,
    "layout": "tp2 pp4",
    "global_batch": 32,
    "seq_len": 4096,
}


@pytest.fixture(scope="module", params=[DEEPSEEK_V3, SMALL], ids=["deepseek", "small"])
def est(request):
    return cm.estimate(**request.param)


def test_the_stacks_reach_the_memory_of_every_stage(est):
    _, parts = memory_stacks(est)

    np.testing.assert_allclose(sum(parts.values()), est.bill.memory_per_stage_bytes(), rtol=1e-12)


def test_bars_of_the_waterfall_follow_one_another(est):
    axes = est.plot.time().axes[0]
    assert est.plot().get_suptitle() == axes.figure.get_suptitle()
    bars = [bar for bar in axes.patches if bar.get_height() == pytest.approx(0.7)]
    ends = [bar.get_x() + bar.get_width() for bar in bars]

    assert bars[0].get_x() == 0
    for bar, end in zip(bars[1:-1], ends, strict=False):
        assert bar.get_x() == pytest.approx(end)
    assert ends[-1] == pytest.approx(ends[-2]) == pytest.approx(float(est.step_time_s))


def test_every_figure_names_the_job_and_its_units(tmp_path):
    est = cm.estimate(**SMALL)
    for name in Views("Estimate").names():
        figure = est.plot.named(name)
        title = figure.get_suptitle()
        assert est.job.model.name in title
        assert f"{int(est.job.layout.gpus):,}" in title
        labels = [text for axes in figure.axes for text in (axes.get_xlabel(), axes.get_ylabel())]
        assert any(re.search(r"\[.+\]", label) for label in labels), labels
        save(figure, tmp_path / "figure.png")
        assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_the_pipeline_lasts_as_long_as_the_bill_says(est):
    run = run_pipeline(est)

    assert run.is_whole
    assert run.timeline.makespan_s() + run.after_s == pytest.approx(float(est.step_time_s), rel=0.03)


@pytest.mark.parametrize("schedule", [name for name in SCHEDULES if name not in ("none", "naive")])
def test_every_schedule_has_a_gantt_chart(schedule):
    vp = {"interleaved": 2, "zb-v": 2, "dualpipe-v": 2, "v-half": 2, "v-min": 2}.get(schedule, 1)
    est = cm.estimate(**{**SMALL, "layout": f"tp1 pp4 vp{vp}", "schedule": schedule, "global_batch": 64})
    run = run_pipeline(est)

    made = durations(est.priced)
    spent = [float(np.sum(each)) for each in made]
    twice = 2.0 if schedule == "dualpipe" else 1.0  # half of the micro-batches go each way
    total = sum(task.end_s - task.start_s for task in run.timeline.tasks)
    assert total == pytest.approx(run.micro_batches * sum(spent), rel=1e-9), twice
    assert run.timeline.makespan_s() + run.after_s == pytest.approx(float(est.step_time_s), rel=0.1)
    assert est.plot.pipeline().axes


def test_the_figure_of_a_plan_has_its_front():
    plan = cm.plan(model="llama3-8b", gpus=8, global_batch=32, seq_len=4096, fix={"pp": 1, "micro_batch": 1})
    figure = plan.plot.pareto()
    front = next(line for line in figure.axes[0].get_lines() if "front" in line.get_label())
    assert list(front.get_ydata()) == sorted(plan.pareto_columns()["step_time_s"], reverse=True)
    assert "fit" in figure.get_suptitle()


def test_bars_of_a_comparison_are_the_bills():
    jobs = cm.vary(["zero=0,1,3"], model="llama3-8b", gpus=64, global_batch=64, seq_len=4096)
    found = cm.compare(*jobs.values(), labels=list(jobs))
    left, right = found.plot.bars().axes

    def ends(axes):
        """Return where the last bar of each row ends; each begins where the one before it ended."""
        reached = [0.0] * len(jobs)
        for bars in axes.containers:
            for row, bar in enumerate(bars):
                assert bar.get_x() == pytest.approx(reached[row])
                reached[row] += bar.get_width()
        return reached

    assert ends(left) == pytest.approx([float(est.step_time_s) for est in jobs.values()])
    assert ends(right) == pytest.approx([float(est.memory_bytes_per_gpu) / 2**30 for est in jobs.values()])
    assert [label.get_text() for label in left.get_yticklabels()] == list(jobs)
    assert ["fit" in text.get_text() for text in right.texts] == [not est.fits for est in jobs.values()]


def test_regions_of_a_collective_are_its_choices():
    for size in ("1 GB", [1e6, 1e9], prices.SEARCHED_SIZES[24::8]):
        found = cm.collective("all-reduce", size, ranks=64, cluster="dgx-h100-ndr")
        axes = found.plot.time().axes[0]
        drawn = [text.get_text() for text in axes.texts]
        assert drawn == [one.algorithm for one in found.choices][-len(drawn) :]
        assert len(drawn) == len(found.choices) or np.ndim(size) == 1


def job_flags(job):
    names = {"layout": "--layout", "global_batch": "--global-batch", "seq_len": "--seq-len"}
    return [part for key, value in job.items() for part in (names.get(key, f"--{key}"), str(value))]


def test_plan_validate_and_collective_draw(tmp_path):
    flags = ["-m", "llama3-8b", "-n", "8", "--global-batch", "32", "--seq-len", "4096", "--fix", "pp=1"]
    runs = "tests/published/runs.csv"
    few = tmp_path / "few.csv"
    with open(runs, encoding="utf-8") as file:
        few.write_text("".join(file.readlines()[:12]), encoding="utf-8")

    assert main(["plan", *flags, "--plot", str(tmp_path / "plan.svg"), "-q"]) == 0
    assert main(["validate", str(few), "--plot", str(tmp_path / "runs.svg"), "-q"]) == 0
    shown = ["collective", "all-reduce", "--size", "1GB", "-n", "16", "-q"]
    assert main([*shown, "--plot", str(tmp_path / "c.svg")]) == 0
    assert all(
        (tmp_path / name).read_text().rstrip().endswith("</svg>")
        for name in ("plan.svg", "runs.svg", "c.svg")
    )


def cells(chart, width=80):
    return terminal_text(chart, width).plain.split("\n")


def test_bars_in_a_terminal_are_as_long_as_their_numbers():
    """Over 100 columns of 0 to 99: 30 of one fill, 20 of the next, then the text that fits, less its brackets if not."""
    bars = [
        Bars(label="a a", fill="math", at=[0, 1], lengths=[30, 0], texts=["", "none"]),
        Bars(fill="bubble", at=[0], starts=[30], lengths=[20], texts=["50 s (" + "x" * 60 + ")"]),
        Curve(label="limit", x=[90, 90], y=[-0.5, 1.5]),
    ]
    panel = Panel(marks=bars, x="time [s]", x_range=(0.0, 99.0), **rows_of(["one", "two"]))
    title, key, first, second, ticks, below, _ = cells(Chart(title="T", panels=[panel]), 104)
    assert title == "T"
    assert key.split("  ") == ["█ a a", "┃ limit", ""]
    assert first == "one " + "█" * 30 + "╱" * 20 + " 50 s" + " " * 35 + "┃"
    assert second == "two " + "  none" + " " * 84 + "┃"
    assert ticks.split() == ["0", "19.8", "39.6", "59.4", "79.2", "99"]
    assert ticks.index("39.6") == 4 + 40
    assert below == "    time [s]"


def test_curves_and_dots_in_a_terminal_stand_where_they_are():
    """A decade of y over 18 rows, x linear: steps keep the height of the point before them, names stand above dots."""
    marks = [
        Curve(x=[0.0, 50.0, 100.0], y=[10.0, 1.0, 1.0], steps=True),
        Dots(x=[0.0], y=[1.0], texts=["lean"], marker="*"),
        Dots(x=[100.0], y=[1.0], texts=["2"], texts_inside=True, size=19),
        Dots(x=[49.5], y=[10.0 ** (8 / 17)], size=4),
    ]
    panel = Panel(marks=marks, log="y", x_range=(0.0, 99.0), y_range=(1.0, 10.0), y="s [s]")
    _, title, *rows, _, _, _ = cells(Chart(title="T", panels=[panel]), 103)
    assert title == "s [s]"
    assert [row[:3] for row in rows if row[:3].strip()] == ["10 ", " 5", " 2", " 1 "]
    assert rows[0] == "10 " + "─" * 50
    assert rows[9] == " " * 53 + "·"
    assert rows[16] == " " * 5 + "lean"
    assert rows[17] == " 1 ★" + " " * 49 + "─" * 49 + "2"


def test_every_figure_is_drawn_in_a_terminal_and_by_its_own_flag(capsys):
    est = cm.estimate(**SMALL)
    drawn = {name: cells(est.plot.chart(name), 100) for name in Views("Estimate").names()}
    assert [name for name, lines in drawn.items() if len(lines) <= 5] == []
    assert main(["estimate", *job_flags(SMALL), "--plot", "-", "--figure", "memory"]) == 0
    assert "┃" in capsys.readouterr().out
    # A terminal that has none of these characters shows others, each its own.
    made = {char for lines in drawn.values() for line in lines for char in line}
    spelt = [_SPELT.get(char, char) for char in made if ord(char) > 127 and char not in "─–−"]
    assert all(text.isascii() for text in spelt)
    assert main(["estimate", *job_flags(SMALL), "--plot", "-", "--format", "json"]) == 2
    assert "--plot -: draws below a table, not below json" in capsys.readouterr().err
