"""What figures draw, as it was last accepted: titles, words, bars and lines of each, on the jobs of recorded pages.

`recorded_figures.jsonl` holds a line a part of a figure; a change that is meant is recorded by
``python tests/unit/test_recorded_figures.py``. Sizes of letters and colours are not looked at.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from test_recorded_pages import JOBS, clean, free

import costmodel as cm
from costmodel.reporting.html import charts

RECORDED = Path(__file__).with_name("recorded_figures.jsonl")
DIGITS = 4
SHOWN = {
    "estimate": ("time", "memory", "pipeline", "compute_roofline", "communication_roofline", "mesh"),
    "comparison": ("bars",),
    "sensitivity": ("tornado",),
    "plan": ("pareto",),
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


def drawn(figure):
    """Yield the size, and the words, bars and lines of each panel."""
    yield {"size": short(figure.get_size_inches()), "title": clean(figure.get_suptitle())}
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
            "lines": [short(one.get_xydata())[:40] for one in axes.lines],
            "points": [short(one.get_offsets())[:40] for one in axes.collections],
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
