"""One step in time as a table: how long each stage works and stands idle."""

from __future__ import annotations

from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_bytes, format_seconds
from costmodel.estimates.trace import Trace
from costmodel.reporting.series import bubble_text


def trace_grids(trace: Trace) -> list[Grid]:
    """Return a row a stage: time in tasks, idle time and most memory."""
    timeline = trace.timeline
    rows = [
        [
            f"{stage}",
            format_seconds(busy, 4),
            format_seconds(float(idle), 4),
            f"{float(idle) / timeline.step_time_s:.1%}",
            format_bytes(float(held)),
        ]
        for stage, (busy, idle, held) in enumerate(
            zip(timeline.task_s, timeline.idle_s(), timeline.peak_bytes(), strict=True)
        )
    ]
    note = (
        f"Schedule {timeline.schedule}, simulated: {format_seconds(timeline.simulated_s, 4)} for all micro-batches, "
        f"{format_seconds(timeline.pipeline_s, 4)} on the bill; step {format_seconds(timeline.step_time_s, 4)}. "
        + (
            bubble_text(timeline.bubble_s, timeline.idle_s(), timeline.step_time_s)
            if timeline.stages > 1
            else ""
        )
    ).rstrip()
    titles = columns("Stage >", "In tasks >", "Idle >", "Of the step >", "Most memory >")
    return [Grid("Stages of a step", titles, rows, note=note)]
