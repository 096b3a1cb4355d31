"""A running training held against its estimate, in words."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np

from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_seconds
from costmodel.base.words import plural
from costmodel.whole_run.watch import Watch

_STATES = {
    "inside": "inside the band",
    "slower": "slower than the band",
    "faster": "faster than the band",
    "unknown": "too few steps to tell",
}


def watch_grids(seen: Watch) -> list[Grid]:
    """Return one look as a table."""
    band = seen.band
    rows = [
        ["State", _STATES[seen.state]],
        ["Step now", f"{format_seconds(seen.step_time_s, 4)} ({seen.off:+.1%})"],
        ["Expected", format_seconds(band.middle_s, 4)],
        ["Band", f"{format_seconds(band.low_s, 4)} to {format_seconds(band.high_s, 4)}"],
        [
            "Last step",
            f"{seen.last_step:,}" + ("" if seen.steps_left is None else f", {seen.steps_left:,.0f} left"),
        ],
    ]
    return [Grid(f"Watch {seen.times.log.name}", columns("", "Now"), rows)]


def watch_remarks(seen: Watch) -> list[str]:
    """Say in one line where steps lie, since when, and what that costs."""
    return [watch_line(seen)]


def watch_line(seen: Watch) -> str:
    """Say in one line where steps lie, since when, and what that costs."""
    band, low = seen.band, seen.state == "faster"
    if seen.state in ("inside", "unknown"):
        return (
            f"step {seen.last_step:,}: {_STATES[seen.state]}, {format_seconds(seen.step_time_s, 4)} a step "
            f"({seen.off:+.1%} of what is expected)"
        )
    end = band.low_s if low else band.high_s
    beyond = abs(seen.step_time_s / end - 1.0)
    return (
        f"step {seen.last_step:,}: {format_seconds(seen.step_time_s, 4)} a step since step {seen.since_step:,}{_clock(seen)}, "
        f"{beyond:.1%} {'below' if low else 'above'} the band ({format_seconds(band.low_s, 4)} to "
        f"{format_seconds(band.high_s, 4)}) and {seen.off:+.1%} off the {format_seconds(band.middle_s, 4)} expected; "
        f"{_cost(seen)}"
    )


def _clock(seen: Watch) -> str:
    if not np.isfinite(seen.since_s):
        return ""
    return f" ({datetime.fromtimestamp(seen.since_s, UTC):%Y-%m-%d %H:%M:%S})"


def _cost(seen: Watch) -> str:
    """Say what the rest of the run costs more, or saves."""
    if seen.extra_days is None or seen.steps_left is None:
        return f"{1.0 / (1.0 + seen.off) - 1.0:+.1%} steps a day (--tokens says how many are left)"
    verb = "costs" if seen.extra_days > 0 else "saves"
    spares = f" ({plural(seen.paid_spare_nodes, 'spare node')} paid too)" if seen.paid_spare_nodes else ""
    money = (
        f" and ${abs(seen.extra_dollars):,.0f}{spares}"
        if seen.extra_dollars is not None
        else " (no price: --price USD)"
    )
    return f"over the {seen.steps_left:,.0f} steps that are left this {verb} {abs(seen.extra_days):,.3g} days{money}"
