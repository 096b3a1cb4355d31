"""Jobs side by side as bars: where the step of each goes, and what the worst stage of each holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.base.units import format_bytes, format_seconds
from costmodel.reporting.figures import empty_figure, fill
from costmodel.reporting.series import MEMORY_PARTS, STEP_PARTS, job_title, memory_stacks, time_parts

if TYPE_CHECKING:
    from costmodel.what_if.compare import Comparison

_MOST_HEIGHT = 60.0
"""Of a figure; more jobs than that has room for get thinner bars. [inch]"""


def draw_comparison(comparison: Comparison) -> Any:
    """Draw a bar a job: exposed time by part on the left, memory of the worst stage on the right."""
    ests, rows = comparison.estimates, range(len(comparison.estimates))
    title = job_title(ests[0])
    if any(job_title(est) != title for est in ests):
        title = "jobs side by side"
    height = min(0.5 * len(ests) + 2.6, _MOST_HEIGHT)
    figure = empty_figure(f"{title}: the step and its memory", size=(11.0, height))
    left, right = figure.subplots(1, 2, sharey=True)
    steps = [{part.fill: part.exposed_s for part in time_parts(est)} for est in ests]
    _stack(left, STEP_PARTS, steps)
    held = [_worst_stage(est) for est in ests]
    _stack(right, MEMORY_PARTS, held)
    for row, est in zip(rows, ests, strict=True):
        offered = est.memory_capacity_bytes / 2**30
        name = "what a device offers" if row == 0 else None
        right.plot([offered] * 2, [row - 0.46, row + 0.46], color="black", lw=2.0, ls="--", label=name)
        word = "" if est.fits_gpu else ", does not fit"
        _beside(left, row, float(est.step_time_s), format_seconds(float(est.step_time_s), 4))
        memory = float(est.memory_bytes_per_gpu)
        _beside(right, row, memory / 2**30, format_bytes(memory) + word)
    left.set_yticks(rows, [label if len(label) <= 40 else label[:39] + "…" for label in comparison.labels])
    left.set(xlabel="time that the step waits for [s]", ylim=(len(ests) - 0.5, -0.5))
    right.set(xlabel="memory of a GPU, worst stage [GiB]")
    for axes in (left, right):
        axes.grid(visible=False, axis="y")
        axes.grid(alpha=0.3, axis="x")
        axes.set_axisbelow(True)
        # Room for the number at the end of the longest bar.
        axes.set_xlim(0.0, 1.3 * axes.get_xlim()[1])
    handles = [axes.get_legend_handles_labels() for axes in (left, right)]
    figure.legend(*handles[0], loc="outside lower left", ncols=2, fontsize="small")
    figure.legend(*handles[1], loc="outside lower right", ncols=2, fontsize="small")
    return figure


def _worst_stage(est: Any) -> dict[str, float]:
    """Return the parts of memory on the stage that holds most. [GiB]"""
    _, parts = memory_stacks(est)
    worst = int(np.argmax(sum(parts.values())))
    return {name: float(part[worst]) / 2**30 for name, part in parts.items()}


def _stack(axes: Any, parts: tuple[tuple[str, str], ...], bars: list[dict[str, float]]) -> None:
    """Draw bars that lie on their side, part after part; a part that no bar has is left out."""
    ends = np.zeros(len(bars))
    for label, name in parts:
        values = np.asarray([bar.get(name, 0.0) for bar in bars])
        if values.any():
            axes.barh(np.arange(len(bars)), values, left=ends, height=0.7, label=label, **fill(name))
            ends = ends + values


def _beside(axes: Any, row: int, end: float, text: str) -> None:
    """Write a number behind the end of a bar."""
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}  # over the line of the device
    axes.annotate(
        text, (end, row), xytext=(5, 0), textcoords="offset points", va="center", fontsize="small", bbox=box
    )
