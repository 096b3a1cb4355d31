"""Sensitivity as tables and plain data."""

from __future__ import annotations

from costmodel.base.answer import Summary
from costmodel.base.grid import Grid
from costmodel.base.units import format_seconds, format_si
from costmodel.describe.recipe import NUMERIC
from costmodel.reporting.cells import grid_of
from costmodel.reporting.summaries import LINES
from costmodel.what_if.sensitivity import Effect, Sensitivity

_SMALL = 5e-5
TOP = 15
"""Rows of each table, unless more are asked for."""
MARK = " *"


def sensitivity_grids(found: Sensitivity, *, every_one: bool = False, top: int = TOP) -> list[Grid]:
    """Return numbers by elasticity, then switches by what turning them does.

    Of each as many as `top` says, unless every one is asked for: numbers that move most, and switches
    that save most of time or memory.
    """
    grids = []
    for switches, drawn, worth in ((False, _numbers_grid, _reach), (True, _switches_grid, _saves)):
        kind = [effect for effect in found.effects if (effect.kind == "switch") == switches]
        first = sorted(kind, key=worth, reverse=True)
        shown = first if every_one else [effect for effect in first if _reach(effect) > _SMALL][:top]
        kept = {id(effect) for effect in shown}
        grid = drawn(found, [effect for effect in kind if id(effect) in kept])
        left = len(kind) - len(shown)
        verb = "save" if switches else "move"
        said = f" Left out: {left} that {verb}{'s' * (left == 1)} less (--all)." if left else ""
        grids.append(grid._replace(note=grid.note + said))
    return grids


def _reach(effect: Effect) -> float:
    return max(effect.reach, abs(effect.memory_more))


def _saves(effect: Effect) -> float:
    """Return the larger of what the other value of a switch takes off time and memory. [-]"""
    return -min(effect.more, effect.memory_more)


def _numbers_grid(found: Sensitivity, effects: list[Effect]) -> Grid:
    """Return what a percent of each number is worth."""
    rates, latencies = found.total("rate"), found.total("latency")
    note = (
        f"Elasticity: percent of step time per percent of the number. "
        f"Rates {rates:+.3f}, latencies {latencies:+.3f}; rates less latencies {rates - latencies:+.3f} "
        "(-1 where no algorithm switches)."
    )
    by = f"{found.change:.0%}"
    cells = {
        "Number": "name",
        "Kind": "kind",
        "Now >": _value,
        "Elasticity >": "elasticity:+.3f",
        "Of memory >": "memory_elasticity:+.3f",
        f"-{by} >": "less:+.2%",
        f"+{by} >": "more:+.2%",
        "Shrinks most when faster": "removed",
        "Grows most then": "created",
    }
    return grid_of("What each number is worth", effects, cells, note=note)


def _value(effect: Effect) -> str:
    if effect.unit == "s":
        return format_seconds(effect.value)
    if effect.value >= 1000:
        return format_si(effect.value, effect.unit)
    return f"{effect.value:.4g} {effect.unit}".rstrip()


def _switches_grid(_: Sensitivity, effects: list[Effect]) -> Grid:
    """Return what the other values of the switches do."""
    marked = any(effect.name in NUMERIC for effect in effects)
    note = "Fastest first." + (f"{MARK} changes numerics: another model comes out." if marked else "")
    cells = {
        "Switch": lambda effect: effect.name + (MARK if effect.name in NUMERIC else ""),
        "Now": "before",
        "Then": "after",
        "Step time >": "more:+.2%",
        "Memory >": "memory_more:+.2%",
        "Shrinks most": "removed",
        "Grows most": "created",
    }
    fastest_first = sorted(effects, key=lambda effect: effect.more)
    return grid_of("What the other value of each switch does", fastest_first, cells, note=note)


def sensitivity_remarks(found: Sensitivity) -> list[str]:
    """Say what is in the way, and which single switch would help most."""
    remarks = []
    rates = [effect for effect in found.effects if effect.kind == "rate"]
    worth = sorted(rates, key=lambda effect: effect.elasticity)[:3]
    parts = ", ".join(
        f"{effect.name} {-effect.elasticity:.0%}" for effect in worth if effect.elasticity < -0.005
    )
    if parts:
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
    numbers = sorted((one for one in found.effects if one.kind != "switch"), key=lambda one: -one.reach)[
        :LINES
    ]
    switches = [one for one in found.effects if one.kind == "switch" and one.name not in NUMERIC]
    worth = sorted((one for one in switches if one.more < 0 or one.memory_more < 0), key=_saved)[:LINES]
    said = sensitivity_remarks(found)
    by = f"+{found.change:.0%}"
    of_number = {
        "Number": "name",
        "Now >": _value,
        "Step time per 1% >": lambda one: f"{one.elasticity:+.2f}%",
        f"Step time at {by} >": "more:+.1%",
        f"Memory at {by} >": "memory_more:+.1%",
    }
    of_switch = {
        "Switch": "name",
        "Now": "before",
        "Then": "after",
        "Step time >": "more:+.1%",
        "Memory >": "memory_more:+.1%",
    }
    return Summary(
        [grid_of(said[0] if said else "", numbers, of_number), grid_of("", worth, of_switch)], said[1:2]
    )


def _saved(effect: Effect) -> float:
    """Return the change of step time, that of memory where the step stays as it is."""
    return effect.more if effect.more < -0.0005 else 1.0 + effect.memory_more
