"""Steps of a training log for people: the measurement, and what was left out of it."""

from __future__ import annotations

from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_bytes, format_seconds
from costmodel.trust.step_times import StepTimes


def step_time_grids(times: StepTimes) -> list[Grid]:
    """Return the measurement as one table, and the lines that were left out as another."""
    log = times.log
    rows = [
        ["Step time", f"{format_seconds(times.step_time_s, 4)} ± {times.error:.2%}"],
        ["Spread of lines", f"{times.spread:.2%}"],
        ["Steady lines", f"{int(times.steady.sum()):,} of {log.steps:,}"],
        ["Lines of other ranks", f"{log.repeated:,}"],
        *(
            [kind.replace("_", " ").capitalize(), format_bytes(size)]
            for kind, size in times.memory_bytes.items()
        ),
    ]
    left = [[one.reason, f"{one.lines:,}", one.detail] for one in times.left_out]
    found = [Grid(f"{log.name}: {log.format.title}", columns("", "Measured >"), rows)]
    return [*found, Grid("Left out", columns("Reason", "Lines >", "Which"), left)] if left else found


def log_remarks(name: str, times: StepTimes) -> list[str]:
    """Say in one sentence what was read of a log, and in others what to know of it."""
    log = times.log
    left = "; ".join(f"{one.lines} {one.reason} ({one.detail})" for one in times.left_out)
    said = (
        f"{log.name}: {log.format.title}, {format_seconds(times.step_time_s, 4)} ± {times.error:.2%} a step from "
        f"{int(times.steady.sum()):,} of {log.steps:,} lines"
    )
    return [
        f"{name}: {said}; left out: {left}." if left else f"{name}: {said}.",
        *(f"{name}: {n}." for n in times.notes),
    ]
