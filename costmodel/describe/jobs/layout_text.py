"""Layouts and values in the words that a plan is written in."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.describe.jobs.fields import DEGREES, FIELD, FIELDS, LAYOUT_FIELDS, NUMBER_FIELDS, names
from costmodel.describe.jobs.layout import Layout
from costmodel.describe.recipe import switch_text

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job

Array = NDArray[np.float64]


def value_text(knob: str, value: float) -> str:
    """Return a value of a knob, by name where it has one.

    >>> value_text("schedule", 3.0), value_text("tp", 8.0)
    ('1f1b', '8')
    """
    words = FIELD[knob].words
    return words[int(value)] if words else f"{value:g}"


def plain_value(name: str, number: ArrayLike) -> Any:
    """Return what a number stands for in a field of a layout: a word, a truth value or a whole number.

    >>> plain_value("schedule", 3.0), plain_value("tp", 8.0), plain_value("sequence_parallel", 1.0)
    ('1f1b', 8, True)
    """
    return plain_values(name, number)[0]


def plain_values(name: str, numbers: ArrayLike) -> list[Any]:
    """Return what the numbers of an array stand for in a field of a layout, flat.

    >>> plain_values("recompute", [[0.0], [2.0]])
    ['none', 'full']
    """
    field, flat = FIELD[name], np.ravel(numbers)
    if field.kind == "word":
        return [field.words[code] for code in flat.astype(np.int64)]
    return list((flat > 0 if field.kind == "truth" else np.rint(flat).astype(np.int64)).tolist())


def degrees_text(degrees: Mapping[str, Any], always: Collection[str] = ("tp", "dp")) -> str:
    """Return the degrees of one layout in one text, those above 1 and those named; dp, which follows, last.

    >>> degrees_text({"tp": 8, "cp": 1, "pp": 4, "dp": 2, "vp": 1, "ep": 1, "etp": 1})
    'tp8 pp4 dp2'
    """
    order = (axis for axis in (*(axis for axis in DEGREES if axis != "dp"), "dp") if axis in degrees)
    return " ".join(
        f"{axis}{float(degrees[axis]):.0f}" for axis in order if axis in always or float(degrees[axis]) > 1
    )


def degrees_of(layout: Layout) -> dict[str, Any]:
    """Return the degrees of a layout by name."""
    return {axis: getattr(layout, axis) for axis in DEGREES}


def layout_text(layout: Layout) -> str:
    """Return a layout in one line, leaving out what is 1 or off."""
    zero = f"ZeRO-{float(layout.zero_stage):.0f}"
    if layout.shard_group > 0:
        zero += f" in groups of {float(layout.shard_group):.0f}"
    parts = [degrees_text(degrees_of(layout)), f"micro-batch {float(layout.micro_batch):.0f}", zero]
    if layout.pp > 1:
        parts.append(value_text("schedule", float(layout.schedule)))
    if layout.tp > 1 and not layout.sequence_parallel:
        parts.append("no sequence parallelism")
    recompute = value_text("recompute", float(layout.recompute))
    return ", ".join([*parts, f"{recompute} recompute" if recompute != "none" else "no recompute"])


def difference_text(job: Job, other: Job) -> str:
    """Return what a job of one layout has otherwise than another, in one line; both of the same model and batch."""
    parts = []
    for name in names(LAYOUT_FIELDS):
        ours, theirs = getattr(job.layout, name), getattr(other.layout, name)
        if float(ours) != float(theirs):
            parts.append(f"{name} {plain_value(name, ours)} (here {plain_value(name, theirs)})")
    for what, mine, yours in (
        ("gpus", f"{float(job.layout.gpus):.0f}", f"{float(other.layout.gpus):.0f}"),
        ("cluster", job.cluster.name, other.cluster.name),
        ("precision", job.precision.name, other.precision.name),
        ("axis order", " ".join(job.axis_order), " ".join(other.axis_order)),
    ):
        if mine != yours:
            parts.append(f"{what} {mine} (here {yours})")
    others = other.switches
    parts += [
        f"{name}={switch_text(value)} (here {switch_text(others[name])})"
        for name, value in job.switches.items()
        if others[name] != value
    ]
    return ", ".join(parts) or "the same"


def job_numbers(job: Job) -> dict[str, Array]:
    """Return the numbers of a job by field, in the order of the table, words as codes."""
    batch = {"global_batch": job.global_batch, "seq_len": job.seq_len}
    return {
        name: batch[name] if name in batch else getattr(job.layout, name) for name in names(NUMBER_FIELDS)
    }


def job_names(job: Job) -> dict[str, str]:
    """Return the names of what a job is made of, by field, in the order of the table."""
    made_of = (field.name for field in FIELDS if field.column and field not in NUMBER_FIELDS)
    return {name: str(getattr(job, name).name) for name in made_of}
