"""What figures draw, as it was last accepted: titles, words, bars and lines of each, on the jobs of recorded pages.

`recorded_figures.jsonl` holds a line a part of a figure; a change that is meant is recorded by
``python tests/unit/test_recorded_figures.py``. Sizes of letters are not looked at.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from test_recorded_pages import CLUSTER, JOBS, clean, free

import costmodel as cm
from costmodel.reporting import calibration
from costmodel.reporting.html import charts
from costmodel.reporting.plots.profiles import draw_beside, draw_classes
from costmodel.reporting.plots.validation import draw_predicted

RECORDED = Path(__file__).with_name("recorded_figures.jsonl")
DIGITS = 4
SHOWN = {
    "estimate": ("time", "memory", "pipeline", "compute_roofline", "communication_roofline", "mesh"),
    "comparison": ("bars",),
    "sensitivity": ("tornado",),
    "plan": ("pareto",),
    "scaling": ("scaling",),
    "collective": ("time",),
    "made up": ("classes", "beside", "predicted", "fit"),
}


def short(value):
    """Return numbers to four digits, in lists too, and texts."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {
            key: short(held)
            for key, held in value.items()
            if key not in ("marker", "line", "font", "textfont")
        }
    if np.ndim(value):
        return [short(one) for one in value]
    if isinstance(value, (bool, np.bool_, type(None))):
        return None if value is None else bool(value)
    return float(f"{float(value):.{DIGITS}g}")


def look(one):
    """Return how a line or a bar is drawn: marks, dashes, hatches and colours."""
    if hasattr(one, "get_marker"):
        colours = one.get_color(), one.get_markeredgecolor(), one.get_markerfacecolor()
        return f"{one.get_linestyle()} {one.get_marker()} {' '.join(map(named, colours))}"
    if hasattr(one, "get_hatch") and hasattr(one, "get_bbox"):
        return f"{one.get_hatch()} {named(one.get_facecolor())} {named(one.get_edgecolor())}"
    return type(one).__name__


def some(points):
    """Return twenty of many points, the first and the last among them."""
    if len(points) <= 40:
        return points
    return points[np.linspace(0, len(points) - 1, 20).round().astype(int)]


def named(colour):
    """Return a colour as hexadecimal digits, also none at all."""
    from matplotlib.colors import to_hex

    return colour if isinstance(colour, str) and colour == "none" else to_hex(colour, keep_alpha=True)


def drawn(figure):
    """Yield the size, and the words, bars and lines of each panel."""
    yield {
        "size": short(figure.get_size_inches()),
        "title": clean(figure.get_suptitle()),
        "legends": [clean(one.get_text()) for legend in figure.legends for one in legend.get_texts()],
        "handles": [look(one) for legend in figure.legends for one in legend.legend_handles],
    }
    for axes in figure.axes:
        legend = axes.get_legend()
        yield {
            "title": clean(axes.get_title()),
            "axes": [
                clean(axes.get_xlabel()),
                axes.get_xscale(),
                clean(axes.get_ylabel()),
                axes.get_yscale(),
            ],
            "texts": [clean(one.get_text()) for one in axes.texts if one.get_text()],
            "legend": [clean(one.get_text()) for one in legend.get_texts()] if legend else [],
            "bars": [short(one.get_bbox().bounds) for one in axes.patches if hasattr(one, "get_bbox")][:60],
            "lines": [short(some(one.get_xydata())) for one in axes.lines],
            "looks": [look(one) for one in (*axes.lines, *axes.patches)][:60],
            "ends": [short(axes.get_xlim()), short(axes.get_ylim())],
            "ticks": [
                clean(one.get_text())
                for axis in (axes.xaxis, axes.yaxis)
                if type(axis.get_major_formatter()).__name__ in ("FixedFormatter", "FuncFormatter")
                for one in axis.get_ticklabels()
            ],
            "points": [short(some(one.get_offsets())) for one in axes.collections],
        }


def charted(est):
    """Return the charts of a report's page."""
    made = {
        "time": charts.time_chart(est),
        "memory": charts.memory_chart(est),
        "pipeline": charts.pipeline_chart(est)[0],
        "compute": charts.compute_chart(est),
        "communication": charts.communication_chart(est),
        "tornado": charts.tornado_chart(cm.sensitivity(est)),
    }
    if (mesh := charts.mesh_chart(est)) is not None:
        made["mesh"] = mesh[0]
    return {
        name: [short(one) for one in figure["data"]] + [short(figure["layout"].get("xaxis", {}))]
        for name, figure in made.items()
    }


def answers():
    """Yield the kind of answer, the job and the answer."""
    for name, job in JOBS.items():
        yield "estimate", name, lambda j=job: cm.estimate(**j)
    dense = JOBS["dense"]
    yield "sensitivity", "dense", lambda: cm.sensitivity(cm.estimate(**dense))
    both = {"layout": "tp4"}
    yield "comparison", "dense", lambda: cm.compare(cm.estimate(**dense), cm.estimate(**{**dense, **both}))
    yield "plan", "dense", lambda: cm.plan(**free(dense), choose=False)
    several = {**free(dense), "gpus": [4, 8, 16]}
    yield "scaling", "dense", lambda: cm.plan(**several, choose=False, tp=2, fix={"pp": [1, 2]})
    sizes = [2.0**power for power in range(10, 28, 4)]
    for ranks in (4, 8):
        yield (
            "collective",
            f"{ranks} ranks",
            lambda n=ranks: cm.collective("all-reduce", sizes, cluster=str(CLUSTER), ranks=n),
        )
    yield "made up", "answers", lambda: SimpleNamespace(plot=MadeUp())


class MadeUp:
    """Figures of answers that are made up, so that nothing fitted is in them."""

    def named(self, name):
        """Draw one."""
        return getattr(self, name)()

    def classes(self):
        """Two classes and copies, one of them nothing exposed."""
        rows = [
            SimpleNamespace(name=name, busy_s=busy, exposed_s=exposed, count=count)
            for name, busy, exposed, count in (
                ("matmul", 0.5, 0.4, 1200),
                ("nccl", 0.3, 0.1, 40),
                ("copies", 0.05, 0, 7),
            )
        ]
        trace = SimpleNamespace(
            classes=rows[:2], copies=rows[2:], kind="trace", gpu="gpu 0", count=1247, window_s=1.0, idle_s=0.2
        )
        return draw_classes(trace)

    def beside(self):
        """A group that took longer than its bill, one that was faster, one all hidden."""
        rows = [
            SimpleNamespace(
                group=name,
                bill_s=bill,
                bill_exposed_s=bill_exposed,
                trace_s=trace,
                trace_exposed_s=exposed,
                difference_s=trace - bill,
            )
            for name, bill, bill_exposed, trace, exposed in (
                ("attention", 0.2, 0.2, 0.3, 0.25),
                ("gradients", 0.4, 0.1, 0.35, 0.0),
                ("odd", 0.1, 0.15, 0.1, 0.1),
            )
        ]
        beside = SimpleNamespace(groups=rows, job="a job", bill_step_s=1.0, trace_step_s=1.25)
        return draw_beside(SimpleNamespace(beside=beside))

    def predicted(self):
        """Four runs of two accelerators, one of which was not priced."""
        runs = pd.DataFrame(
            {
                "accelerator": ["h100", "a100", "h100", "h100"],
                "measured_step_time_s": [1.0, 2.0, 4.0, 8.0],
                "predicted_step_time_s": [1.1, 1.5, 4.0, np.nan],
                "time_error": [0.1, -0.25, 0.0, np.nan],
            }
        )
        return draw_predicted(SimpleNamespace(judged=runs))

    def fit(self):
        """An all-reduce of eight ranks, measured at twice what is fitted."""
        size = np.array([1e6, 1e7])
        run = SimpleNamespace(
            primitive="all_reduce",
            size_bytes=size,
            group=SimpleNamespace(ranks=8),
            time_s=2 * size / 1e9,
            name="eight",
        )
        cluster = SimpleNamespace(name="ours", tiers=("as it is",))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(calibration, "price_run", lambda run, tiers, fitted: run.time_s / 2)
            return calibration.draw_fit(SimpleNamespace(runs=[run], tiers=("fitted",)), cluster)


def figures(kind, make):
    """Return the parts of each figure of an answer by name."""
    import matplotlib.pyplot as plt

    answer, found = make(), {}
    for name in SHOWN[kind]:
        found[name] = list(drawn(answer.plot.named(name)))
        plt.close("all")
    if kind == "estimate":
        found |= {f"chart {name}": parts for name, parts in charted(answer).items()}
    return found


MADE = {(kind, name): make for kind, name, make in answers()}
KNOWN: dict = {}
if __name__ != "__main__":
    pytest.importorskip("matplotlib")
    for one in RECORDED.read_text().splitlines():
        kind, job, figure, part = json.loads(one)
        KNOWN.setdefault((kind, job), {}).setdefault(figure, []).append(part)


@pytest.mark.parametrize(("kind", "job"), KNOWN)
def test_figures_show_what_they_showed(kind, job):
    found = json.loads(json.dumps(figures(kind, MADE[kind, job])))
    assert set(found) == set(KNOWN[kind, job])
    for name, parts in KNOWN[kind, job].items():
        assert found[name] == parts, name


if __name__ == "__main__":
    lines = [
        json.dumps([*key, name, part], ensure_ascii=False)
        for key, make in MADE.items()
        for name, parts in figures(key[0], make).items()
        for part in parts
    ]
    RECORDED.write_text("\n".join(lines) + "\n")
