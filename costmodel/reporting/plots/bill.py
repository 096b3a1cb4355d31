"""The bill as figures: the step as a waterfall, the memory of every stage against the capacity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.base.units import format_bytes, format_seconds
from costmodel.reporting.figures import fill, new_figure
from costmodel.reporting.series import MEMORY_PARTS, job_title, memory_stacks, time_parts
from costmodel.reporting.tables import job_text

if TYPE_CHECKING:
    from costmodel.estimates.estimate import Estimate


def draw_time(est: Estimate) -> Any:
    """Draw the step as a waterfall: each part begins where the one before it ends."""
    parts, step = time_parts(est), float(est.step_time_s)
    title = f"{job_title(est)}: {format_seconds(step, 4)} a step\n{job_text(est)}"
    figure, axes = new_figure(title, size=(9.0, 0.42 * (len(parts) + 1) + 1.6))
    start = 0.0
    for row, part in enumerate(parts):
        hidden = max(part.busy_s - part.exposed_s, 0.0)
        axes.barh(row, part.exposed_s, left=start, height=0.7, **fill(part.fill))
        text = f"{format_seconds(part.exposed_s)} · {part.exposed_s / step:.1%}"
        if hidden > 0.005 * step:
            text += f" (+ {format_seconds(hidden)} hidden)"
        _label(axes, row, start, start + part.exposed_s, text, step)
        start += part.exposed_s
        if row + 1 < len(parts):
            axes.plot([start, start], [row + 0.35, row + 0.65], color="black", linewidth=0.8)
    axes.barh(len(parts), step, height=0.7, facecolor="#333333")
    axes.text(step / 2, len(parts), format_seconds(step, 4), ha="center", va="center", color="white")
    axes.set_yticks(range(len(parts) + 1), [*(part.label for part in parts), "step time"])
    axes.set(
        xlim=(0.0, step * 1.02), ylim=(len(parts) + 0.6, -0.6), xlabel="time that the step waits for [s]"
    )
    axes.grid(visible=False, axis="y")
    return figure


def _label(axes: Any, row: int, start: float, end: float, text: str, step: float) -> None:
    """Write a bar's numbers beside it where there is room, else into it."""
    gap = 0.008 * step
    if end < 0.62 * step:
        axes.text(end + gap, row, text, va="center", ha="left", fontsize="small")
    elif start > 0.38 * step:
        axes.text(start - gap, row, text, va="center", ha="right", fontsize="small")
    else:
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
        axes.text(end - gap, row, text, va="center", ha="right", fontsize="small", bbox=box)


def draw_memory(est: Estimate) -> Any:
    """Draw the memory of a GPU on every pipeline stage, with the line of what the device offers."""
    stages, parts = memory_stacks(est)
    capacity, worst = est.memory_capacity_bytes, float(est.memory_bytes_per_gpu)
    fits = "fits" if est.fits_gpu else "does not fit"
    title = f"{job_title(est)}: {format_bytes(worst)} of {format_bytes(capacity)}, {fits}\n{job_text(est)}"
    figure, axes = new_figure(title, size=(9.0, 5.0))
    bottom = np.zeros(len(stages))
    for label, name in MEMORY_PARTS:
        if parts[name].max() > 0:
            axes.bar(stages, parts[name] / 2**30, bottom=bottom, width=0.8, label=label, **fill(name))
            bottom = bottom + parts[name] / 2**30
    offered = f"{est.job.cluster.accelerator.name} offers {format_bytes(capacity)}"
    axes.axhline(capacity / 2**30, color="black", linestyle="--", linewidth=2.0, label=offered)
    axes.set(xlabel="pipeline stage [-]", ylabel="memory of a GPU [GiB]")
    axes.set_xticks(stages if len(stages) <= 32 else stages[:: len(stages) // 16])
    axes.set_ylim(0.0, 1.12 * max(worst, capacity) / 2**30)
    if len(stages) == 1:
        axes.set_xlim(-1.5, 1.5)
    axes.grid(visible=False, axis="x")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize="small")
    return figure
