"""Levers: what one change of layout or recipe would do to the memory of a job, really priced.

All changes of the layout are priced together as one array of layouts, changes of the recipe one
by one. Changes that the model, the batch or the schedule forbid are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.base.errors import CostModelError
from costmodel.describe.jobs.fields import RECOMPUTE_POLICIES
from costmodel.describe.jobs.job import Job
from costmodel.describe.jobs.layout import Layout, layout_problems
from costmodel.physics.pipeline.schedules import schedule_code, valid
from costmodel.step.price import price

Array = NDArray[np.float64]

_DOUBLED = ("tp", "pp", "cp", "ep")
# A switch of the recipe, its values that hold more than need be, and the one that holds less.
_SWITCHES: tuple[tuple[str, tuple[object, ...], object], ...] = (
    ("attention_kernel", ("unfused", "fused-softmax"), "flash2"),
    ("grad_accum_dtype", ("fp32",), "bf16"),
    ("cross_entropy", ("unfused",), "fused"),
    ("offload_optimizer", (False,), True),
)


class Lever(NamedTuple):
    """One change and what it does to the job."""

    change: str
    """What to set, such as ``recompute full`` or ``tp 16``."""
    memory_bytes: float
    """Memory of the worst stage after the change. [B]"""
    freed_bytes: float
    """Memory of the worst stage that the change frees. [B]"""
    step_time_s: float
    """Step time after the change. [s]"""
    slowdown: float
    """Step time after the change over the one before, less 1. [-]"""


def memory_levers(job: Job) -> list[Lever]:
    """Price every single change that might free memory, and return those that do, largest first.

    Parameters
    ----------
    job : Job
        A job of one layout.

    Returns
    -------
    levers : list of Lever
        Only changes that can run and that free memory.
    """
    changes = list(_layout_changes(job))
    layouts = _stack([job.layout, *(layout for _, layout in changes)])
    memory, seconds = _price(job, layouts)
    can_run = _can_run(job, layouts)
    found = [
        (name, float(memory[i]), float(seconds[i]))
        for i, (name, _) in enumerate(changes, start=1)
        if can_run[i]
    ]
    for name, switches in _recipe_changes(job):
        changed = job.switched(switches)
        try:
            after, time_s = _price(changed, job.layout)
        except (CostModelError, KeyError):
            continue  # a kernel that this accelerator does not have
        found.append((name, float(after), float(time_s)))
    before, before_s = float(memory[0]), float(seconds[0])
    levers = [
        Lever(name, after, before - after, time_s, time_s / before_s - 1.0) for name, after, time_s in found
    ]
    return sorted((lever for lever in levers if lever.freed_bytes > 0), key=lambda lever: -lever.freed_bytes)


def _layout_changes(job: Job) -> Iterator[tuple[str, Layout]]:
    """Yield each change of the layout that may free memory: its words and the layout after it."""
    layout = job.layout
    for code in range(int(layout.recompute) + 1, len(RECOMPUTE_POLICIES)):
        yield f"recompute {RECOMPUTE_POLICIES[code]}", replace(layout, recompute=np.asarray(float(code)))
    for stage in range(int(layout.zero_stage) + 1, 4):
        yield f"zero {stage}", replace(layout, zero_stage=np.asarray(float(stage)))
    for axis in _DOUBLED:
        degree = np.asarray(2.0 * getattr(layout, axis))
        changed = replace(layout, **{axis: degree})
        if axis == "tp":
            changed = replace(changed, sequence_parallel=np.asarray(1.0))
        if axis == "pp" and layout.pp == 1:
            changed = replace(changed, schedule=np.asarray(float(schedule_code("1f1b"))))
        yield f"{axis} {float(degree):.0f}", changed
    if layout.micro_batch > 1:
        half = np.asarray(np.ceil(layout.micro_batch / 2.0))
        yield f"micro-batch {float(half):.0f}", replace(layout, micro_batch=half)
    if layout.tp > 1 and layout.sequence_parallel == 0:
        yield "sequence parallelism", replace(layout, sequence_parallel=np.asarray(1.0))
    if layout.vp > 1:
        one_f_one_b = np.asarray(float(schedule_code("1f1b")))
        yield "vp 1 (schedule 1f1b)", replace(layout, vp=np.asarray(1.0), schedule=one_f_one_b)
    if layout.shard_group > 0 and layout.zero_stage > 0:
        yield "shard group over all of dp·cp", replace(layout, shard_group=np.asarray(0.0))


def _recipe_changes(job: Job) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield each switch of the recipe that may free memory."""
    held = job.switches
    for switch, wasteful, value in _SWITCHES:
        if held[switch] in wasteful and not (
            switch == "grad_accum_dtype" and job.recipe.dtypes.param_dtype == "fp32"
        ):
            yield f"{switch}={str(value).lower()}", {switch: value}


def _stack(layouts: list[Layout]) -> Layout:
    """Join layouts of one value each into one layout of arrays."""
    return Layout(
        **{f.name: np.asarray([float(getattr(lay, f.name)) for lay in layouts]) for f in fields(Layout)}
    )


def _price(job: Job, layout: Layout) -> tuple[Array, Array]:
    """Return memory and step time of the job in another layout, or in several."""
    bill = price(replace(job, layout=layout)).bill
    return np.broadcast_to(bill.memory_bytes(), layout.shape), np.broadcast_to(
        bill.step_time_s(), layout.shape
    )


def _can_run(job: Job, layout: Layout) -> NDArray[np.bool_]:
    """Return which layouts break no rule of model, batch or schedule."""
    bad = np.zeros(layout.shape, dtype=bool)
    for problem in layout_problems(layout, job.model, job.global_batch, job.seq_len):
        bad |= problem.bad
    micro_batches = layout.micro_batches(job.global_batch)
    return np.asarray(~bad & valid(layout.schedule, layout.pp, micro_batches, layout.vp))
