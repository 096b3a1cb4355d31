"""Layouts and values in the words that a plan is written in."""

from __future__ import annotations

from costmodel.describe.jobs.fields import FIELD
from costmodel.describe.jobs.layout import Layout


def value_text(knob: str, value: float) -> str:
    """Return a value of a knob, by name where it has one.

    >>> value_text("schedule", 3.0), value_text("tp", 8.0)
    ('1f1b', '8')
    """
    names = FIELD[knob].words if knob in FIELD else ()
    return names[int(value)] if names else f"{value:g}"


def plain_value(name: str, number: float) -> int | bool | str:
    """Return what a number stands for in a field of a layout: a word, a truth value or a whole number.

    >>> plain_value("schedule", 3.0), plain_value("tp", 8.0), plain_value("sequence_parallel", 1.0)
    ('1f1b', 8, True)
    """
    field = FIELD[name]
    if field.kind == "word":
        return field.words[int(number)]
    return bool(number) if field.kind == "truth" else round(float(number))


def layout_text(layout: Layout) -> str:
    """Return a layout in one line, leaving out what is 1 or off."""
    degrees = [f"tp{float(layout.tp):.0f}"]
    for axis in ("cp", "pp", "vp", "ep", "etp"):
        degree = float(getattr(layout, axis))
        if degree > 1:
            degrees.append(f"{axis}{degree:.0f}")
    degrees.append(f"dp{float(layout.dp):.0f}")
    zero = f"ZeRO-{float(layout.zero_stage):.0f}"
    if layout.shard_group > 0:
        zero += f" in groups of {float(layout.shard_group):.0f}"
    parts = [" ".join(degrees), f"micro-batch {float(layout.micro_batch):.0f}", zero]
    if layout.pp > 1:
        parts.append(value_text("schedule", float(layout.schedule)))
    if layout.tp > 1 and not layout.sequence_parallel:
        parts.append("no sequence parallelism")
    recompute = value_text("recompute", float(layout.recompute))
    return ", ".join([*parts, f"{recompute} recompute" if recompute != "none" else "no recompute"])
