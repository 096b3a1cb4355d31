"""What one change of layout or recipe would do to the memory of a job, or to its step, really priced.

Changes of the layout alone are priced together as one array of layouts, others one by one. Changes that the model, the
batch, the schedule or the framework of the recipe forbid are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.base.errors import CostModelError
from costmodel.base.numbers import divisors
from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.describe.hardware.attention_kernels import ATTENTION_KERNELS
from costmodel.describe.jobs.changes import Change, with_layout, with_switch
from costmodel.describe.jobs.fields import RECOMPUTE_POLICIES
from costmodel.describe.jobs.job import BALANCED, Job, check_job
from costmodel.describe.jobs.layout import Layout, layout_problems
from costmodel.estimates.priced_job import PricedJob
from costmodel.physics.pipeline.chunks import chunks_text
from costmodel.physics.pipeline.schedules import schedule_at, schedule_code, valid
from costmodel.step.placed_job import chunks_of
from costmodel.step.price import price

Array = NDArray[np.float64]

_DOUBLED = ("tp", "pp", "cp", "ep")
# A switch of the recipe, its values that hold more than need be, and the one that holds less.
_SWITCHES: tuple[tuple[str, tuple[object, ...], object], ...] = (
    (
        "attention_kernel",
        tuple(name for name, one in ATTENTION_KERNELS.items() if one.writes_scores),
        "flash2",
    ),
    ("grad_accum_dtype", ("fp32",), "bf16"),
    ("cross_entropy", ("unfused",), "fused"),
    ("offload_optimizer", (False,), True),
)


class Saving(NamedTuple):
    """A change that frees memory, and what it does to the job."""

    change: Change
    memory_bytes: float
    """Memory of the worst stage after the change. [B]"""
    freed_bytes: float
    step_time_s: float
    slowdown: float
    """Step time after the change over the one before, less 1. [-]"""


def memory_savings(job: Job) -> list[Saving]:
    """Price every single change of a job of one layout, and return those that can run and free memory, largest first."""
    changes = list(_layout_changes(job))
    each = [job.layout, *(change.job.layout for change in changes)]
    layouts = Layout(
        **{f.name: np.asarray([float(getattr(layout, f.name)) for layout in each]) for f in fields(Layout)}
    )
    memory, seconds, has_room = _price(replace(job, layout=layouts))
    before, before_s = float(memory[0]), float(seconds[0])
    can_run = _can_run(job, layouts) & has_room
    found = [
        (change, float(memory[at]), float(seconds[at]))
        for at, change in enumerate(changes, start=1)
        if can_run[at]
    ]
    for change in _switch_changes(job):
        try:
            after, time_s, has_room = _price(change.job)
        except CostModelError:
            continue
        if has_room:
            found.append((change, float(after), float(time_s)))
    savings = [
        Saving(change, after, before - after, time_s, time_s / before_s - 1.0)
        for change, after, time_s in found
        if after < before
    ]
    return sorted(savings, key=lambda saving: -saving.freed_bytes)


def _layout_changes(job: Job) -> Iterator[Change]:
    """Yield each change of the layout that may free memory."""
    layout = job.layout
    now = RECOMPUTE_POLICIES[int(layout.recompute)]
    for code in range(int(layout.recompute) + 1, len(RECOMPUTE_POLICIES)):
        yield with_layout(job, "recompute", now, RECOMPUTE_POLICIES[code], recompute=code)
    for stage in range(int(layout.zero_stage) + 1, 4):
        yield with_layout(job, "zero", f"{int(layout.zero_stage)}", f"{stage}", zero_stage=stage)
    for axis in _DOUBLED:
        degree = float(getattr(layout, axis))
        degrees = {axis: 2.0 * degree}
        if axis == "tp":
            degrees["sequence_parallel"] = 1.0
        if axis == "pp" and degree == 1:
            degrees["schedule"] = schedule_code("1f1b")
        yield with_layout(job, axis, f"{degree:.0f}", f"{2.0 * degree:.0f}", **degrees)
    size = float(layout.micro_batch)
    if size > 1:
        half = float(np.ceil(size / 2.0))
        yield with_layout(job, "micro-batch", f"{size:.0f}", f"{half:.0f}", micro_batch=half)
    if layout.tp > 1 and layout.sequence_parallel == 0:
        yield with_layout(job, "sequence parallelism", "", "", sequence_parallel=1.0)
    if layout.vp > 1:
        plain = {"vp": 1.0, "schedule": float(schedule_code("1f1b"))}
        yield with_layout(job, "vp", f"{float(layout.vp):.0f}", "1 (schedule 1f1b)", **plain)
    if layout.shard_group > 0 and layout.zero_stage > 0:
        group = f"{float(layout.shard_group):.0f}"
        yield with_layout(job, "shard group", group, "over all of dp·cp", shard_group=0.0)


def _switch_changes(job: Job) -> Iterator[Change]:
    """Yield each switch that may free memory."""
    held = job.switches
    for switch, wasteful, value in _SWITCHES:
        nothing = (
            job.recipe.dtypes.param_dtype == "fp32"
            if switch == "grad_accum_dtype"
            else switch == "offload_optimizer" and not job.optimizer.on_host
        )
        if held[switch] in wasteful and not nothing:
            yield with_switch(job, switch, value)


def _price(job: Job) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Return memory and step time of the job, or of several layouts, and whether their hosts have room."""
    bill, shape = price(job).bill, job.layout.shape
    return (
        np.broadcast_to(bill.memory_bytes(), shape),
        np.broadcast_to(bill.step_time_s(), shape),
        np.broadcast_to(bill.host_memory_bytes() <= job.cluster.host.memory_bytes, shape),
    )


def _can_run(job: Job, layout: Layout) -> NDArray[np.bool_]:
    """Return which layouts break no rule of model, batch or schedule."""
    bad = np.zeros(layout.shape, dtype=bool)
    for problem in layout_problems(layout, job.model, job.global_batch, job.seq_len):
        bad |= problem.bad
    micro_batches = layout.micro_batches(job.global_batch)
    return np.asarray(~bad & valid(layout.schedule, layout.pp, micro_batches, layout.vp))


_MORE = 1e-6
"""Share of a step by which changes together have to save more than one of them: less is a sum in another order. [-]"""
_MOST_CHUNKS = 16


class TimeSaving(NamedTuple):
    """A change that shortens the step."""

    flags: str
    """As the command line takes it."""
    job: Job
    step_time_s: float
    """Step time after the change. [s]"""
    saved: float
    """Share of the step that it saves. [-]"""
    memory_bytes: float
    """Memory of the worst stage after the change. [B]"""

    @property
    def chunks(self) -> str:
        """The layers of every chunk after the change, as Megatron-LM writes them; empty where they are even."""
        return chunks_text(chunks_of(self.job))


def time_savings(est: PricedJob) -> list[TimeSaving]:
    """Price the changes of a pipeline that might shorten the step: virtual stages, the split, the order of axes."""
    job = est.job
    if float(job.layout.pp) == 1:
        return []
    before_s = float(est.step_time_s)
    kinds = (
        _of_chunks(list(_more_chunks(job)), before_s),
        [_saving(flags, changed, before_s) for flags, changed in _balanced(job)],
        [_saving(flags, changed, before_s) for flags, changed in _other_orders(job)],
    )
    best = [min(kind, key=lambda saving: saving.step_time_s) for kind in kinds if kind]
    found = [saving for saving in best if saving.saved > 0]
    return [*found, *_together(job, found, before_s)]


def _saving(flags: str, job: Job, before_s: float) -> TimeSaving:
    bill = price(job, every_stage=True).bill
    after_s = float(bill.step_time_s())
    return TimeSaving(flags, job, after_s, 1.0 - after_s / before_s, float(bill.memory_bytes()))


def _of_chunks(changes: list[tuple[str, Job]], before_s: float) -> list[TimeSaving]:
    """Price jobs that differ in nothing but their virtual stages, all at once."""
    if not changes:
        return []
    flags, jobs = zip(*changes, strict=True)
    vp = np.asarray([float(job.layout.vp) for job in jobs])
    bill = price(replace(jobs[0], layout=replace(jobs[0].layout, vp=vp)), every_stage=True).bill
    steps_s, memory = (
        np.broadcast_to(each, vp.shape).tolist() for each in (bill.step_time_s(), bill.memory_bytes())
    )
    return [
        TimeSaving(flag, job, step_s, 1.0 - step_s / before_s, held)
        for flag, job, step_s, held in zip(flags, jobs, steps_s, memory, strict=True)
    ]


def _runs(job: Job) -> bool:
    try:
        check_job(job)
    except CostModelError:
        return False
    return True


def _more_chunks(job: Job) -> Iterator[tuple[str, Job]]:
    """Yield other numbers of virtual stages that deal the same layers to every chunk."""
    launches, layout, memory = job.recipe.launches, job.layout, job.recipe.memory
    plain = schedule_at(layout.schedule).name in ("1f1b", "interleaved")
    if job.pipeline_layout or not plain or (launches and "interleaved" not in launches.schedule):
        return
    places = job.model.num_layers + int(memory.embedding_as_layer) + int(memory.head_as_layer)
    on_a_stage = np.ceil(places / float(layout.pp))
    for vp in divisors(on_a_stage, _MOST_CHUNKS):
        if vp in (1.0, float(layout.vp)):
            continue
        code = np.asarray(float(schedule_code("interleaved")))
        changed = replace(job, layout=replace(layout, vp=np.asarray(vp), schedule=code))
        if _runs(changed):
            yield f"--vp {vp:.0f}", changed


def _balanced(job: Job) -> Iterator[tuple[str, Job]]:
    """Yield the split that gives the stage with the head no more than the others."""
    launches = job.recipe.launches
    free = launches is None or launches.pipeline_layouts
    if free and not (job.pipeline_layout or job.balanced_stages):
        yield f"--pipeline-layout {BALANCED}", replace(job, balanced_stages=True)


def _other_orders(job: Job) -> Iterator[tuple[str, Job]]:
    """Yield the other orders of the axes that the framework starts."""
    launches = job.recipe.launches
    framework = FRAMEWORKS.get(launches.framework) if launches else None
    alike = not job.model.num_experts or job.layout.expert_dp == job.layout.dp
    for order in framework.axis_orders if framework and alike else ():
        changed = replace(job, axis_order=tuple(order.split()))
        if changed.axis_order != job.axis_order and _runs(changed):
            yield f'--axis-order "{order}"', changed


def _together(job: Job, found: list[TimeSaving], before_s: float) -> Iterator[TimeSaving]:
    """Yield all changes at once, where that is more than the best of them alone."""
    if len(found) < 2:
        return
    jobs = [saving.job for saving in found]
    layout = next((one.layout for one in jobs if one.layout is not job.layout), job.layout)
    order = next((one.axis_order for one in jobs if one.axis_order != job.axis_order), job.axis_order)
    balanced = any(one.balanced_stages for one in jobs)
    changed = replace(job, layout=layout, axis_order=order, balanced_stages=balanced)
    if _runs(changed):
        both = _saving(" ".join(one.flags for one in found), changed, before_s)
        if both.saved > max(one.saved for one in found) + _MORE:
            yield both
