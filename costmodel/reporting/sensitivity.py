"""Sensitivity as tables and plain data."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from costmodel.base.answer import Summary
from costmodel.base.grid import Grid
from costmodel.base.units import format_seconds, format_si
from costmodel.describe.recipe import NUMERIC
from costmodel.reporting.cells import table_of
from costmodel.reporting.summaries import LINES
from costmodel.what_if.sensitivity import Effect, Sensitivity

_SMALL = 5e-5
TOP = 15
"""Rows of each table, unless more are asked for."""
MARK = " *"


def sensitivity_grids(found: Sensitivity, *, every_one: bool = False, top: int = TOP) -> list[Grid]:
    """Return numbers by elasticity, then switches by what turning them does."""
    rates, latencies = found.total("rate"), found.total("latency")
    by = f"{found.change:.0%}"
    numbers, left = _chosen(
        [effect for effect in found.effects if effect.kind != "switch"], _reach, every_one, top
    )
    note = (
        f"Elasticity: percent of step time per percent of the number. "
        f"Rates {rates:+.3f}, latencies {latencies:+.3f}; rates less latencies {rates - latencies:+.3f} "
        f"(-1 where no algorithm switches).{_left_out(left, 'move')}"
    )
    grid = _by(table_of("numbers", numbers, {"Now >": _value}, note=note), by)
    switches, left = _chosen(
        [effect for effect in found.effects if effect.kind == "switch"],
        lambda effect: -min(effect.more, effect.memory_more),
        every_one,
        top,
    )
    marked = f"{MARK} changes numerics: another model comes out."
    note = "Fastest first." + (marked if any(effect.name in NUMERIC for effect in switches) else "")

    def name(effect: Effect) -> str:
        unfit = "" if effect.fits or not found.estimate.fits else " (does not fit)"
        return f"{effect.name}{unfit}{MARK if effect.name in NUMERIC else ''}"

    fastest_first = sorted(switches, key=lambda effect: effect.more)
    return [grid, table_of("switches", fastest_first, {"Switch": name}, note=note + _left_out(left, "save"))]


def _by(grid: Grid, by: str) -> Grid:
    """Put the change into the titles of columns."""
    titles = [column._replace(title=column.title.replace("10%", by)) for column in grid.columns]
    return grid._replace(columns=titles)


def _chosen(
    effects: Sequence[Effect], worth: Callable[[Effect], float], every_one: bool, top: int
) -> tuple[list[Effect], int]:
    """Return the effects that are shown, in their own order, and how many are left out."""
    first = sorted(effects, key=worth, reverse=True)
    shown = first if every_one else [effect for effect in first if _reach(effect) > _SMALL][:top]
    shown_ids = {id(effect) for effect in shown}
    return [effect for effect in effects if id(effect) in shown_ids], len(effects) - len(shown)


def _left_out(left: int, verb: str) -> str:
    return f" Left out: {left} that {verb}{'s' * (left == 1)} less (--all)." if left else ""


def _reach(effect: Effect) -> float:
    return max(effect.reach, abs(effect.memory_more))


def _value(effect: Effect) -> str:
    if effect.unit == "s":
        return format_seconds(effect.value)
    if effect.value >= 1000:
        return format_si(effect.value, effect.unit)
    return f"{effect.value:.4g} {effect.unit}".rstrip()


def sensitivity_remarks(found: Sensitivity) -> list[str]:
    """Say what is in the way, and which single switch would help most."""
    remarks = []
    rates = [effect for effect in found.effects if effect.kind == "rate"]
    worth = [f for f in sorted(rates, key=lambda effect: effect.elasticity)[:3] if f.elasticity < -0.005]
    if worth:
        parts = ", ".join(f"{effect.name} {-effect.elasticity:.0%}" for effect in worth)
        remarks.append(f"The step waits for {parts}.")
    best = found.best_switch
    if best is not None:
        grown = f", and {best.created} grows" if best.created else ""
        saved = f"{best.name}={best.after} would save {-best.more:.1%} of the step"
        remarks.append(f"{saved}: {best.removed} shrinks{grown}.")
    if found.refused:
        remarks.append("Not possible here: " + ", ".join(name for name, _ in found.refused) + ".")
    return remarks


def sensitivity_summary(found: Sensitivity) -> Summary:
    """Return the numbers that move the step most, and the switches that save most and train the same model."""
    numbers = [effect for effect in found.effects if effect.kind != "switch"]
    numbers = sorted(numbers, key=lambda effect: -effect.reach)[:LINES]
    worth = [effect for effect in found.switches if effect.more < 0 or effect.memory_more < 0]
    # By what they save of the step, and those that leave it as it is by what they save of the memory.
    worth.sort(key=lambda effect: effect.more if effect.more < -0.0005 else 1.0 + effect.memory_more)
    remarks = sensitivity_remarks(found)
    title = remarks[0] if remarks else ""
    shown = _by(table_of("numbers in short", numbers, {"Now >": _value}, title=title), f"{found.change:.0%}")
    return Summary([shown, table_of("switches in short", worth[:LINES])], remarks[1:2])
