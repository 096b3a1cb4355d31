"""What one change of layout or recipe would do to the memory of a job, or to its step, really priced.

Changes that the model, the batch, the schedule, the framework of the recipe or the host's memory forbid are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np

from costmodel.base.errors import CostModelError
from costmodel.base.numbers import divisors
from costmodel.describe.frameworks import framework_of
from costmodel.describe.hardware.cluster import ATTENTION_KERNELS
from costmodel.describe.jobs.fields import RECOMPUTE_POLICIES
from costmodel.describe.jobs.job import BALANCED, Change, Job, check_job, layout_change, switch_change
from costmodel.describe.jobs.layout import Layout
from costmodel.describe.odds import RISK, odds
from costmodel.estimates.pipeline_run import price_with_task_order
from costmodel.physics.pipeline.chunks import chunks_text
from costmodel.physics.pipeline.schedules import schedule_at, schedule_code
from costmodel.step.price import chunks_of

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


_MORE = 1e-6
"""Share of a step by which changes together have to save more than one of them: less is a sum in another order. [-]"""
_MOST_CHUNKS = 16


class Saving(NamedTuple):
    """A change that frees memory or shortens the step, and what it does to the job."""

    change: Change
    memory_bytes: float  # Memory of the worst stage after the change. [B]
    freed_bytes: float
    step_time_s: float
    slowdown: float  # Step time after the change over the one before, less 1. [-]
    fits_probability: float  # That GPU and host have room after it, by the odds that a plan asks. [-]

    @property
    def fits(self) -> bool:
        """Whether it fits as surely as a plan asks for by default."""
        return self.fits_probability >= 1.0 - RISK

    @property
    def chunks(self) -> str:
        """The layers of every chunk after the change, as Megatron-LM writes them; empty where they are even."""
        return chunks_text(chunks_of(self.change.job))


def memory_savings(job: Job) -> list[Saving]:
    """Price every single change of a job of one layout, and return those that can run and free memory, largest first."""
    priced = _priced(job, [*_layout_changes(job), *_switch_changes(job)])
    freeing = [saving for saving in priced if saving.freed_bytes > 0]
    return sorted(freeing, key=lambda saving: -saving.freed_bytes)


def time_savings(job: Job) -> list[Saving]:
    """Price the changes of a pipeline that might shorten the step: virtual stages, the split, the order of axes."""
    if float(job.layout.pp) == 1:
        return []
    priced = _priced(job, [*_more_chunks(job), *_balanced(job), *_other_orders(job)], every_stage=True)
    best: dict[str, Saving] = {}
    for saving in priced:
        fastest = best.setdefault(saving.change.name, saving)
        best[saving.change.name] = min(fastest, saving, key=lambda one: one.step_time_s)
    found = [saving for saving in best.values() if saving.slowdown < 0]
    if len(found) < 2:
        return found
    most = min(saving.slowdown for saving in found)
    together = _priced(job, [_together(job, [saving.change for saving in found])], every_stage=True)
    return [*found, *(saving for saving in together if saving.slowdown < most - _MORE)]


def _priced(job: Job, changes: Iterable[Change], *, every_stage: bool = False) -> list[Saving]:
    """Price the changes that can run: of single stages those of the layout alone as one array of layouts, others one by one."""
    possible = [change for change in changes if _is_possible(change.job)]
    of_layout = [change for change in possible if change.kind == "layout" and not every_stage]
    others = [change for change in possible if change.kind != "layout" or every_stage]
    layouts = [job.layout, *(change.job.layout for change in of_layout)]
    stacked = Layout(
        **{f.name: np.asarray([float(getattr(layout, f.name)) for layout in layouts]) for f in fields(Layout)}
    )
    figures = _figures(job if every_stage else replace(job, layout=stacked), every_stage)
    for change in tuple(others):
        try:
            figures += _figures(change.job, every_stage)
        except CostModelError:  # such as 8-bit attention where no fused kernel of it is known
            others.remove(change)
    (before, before_s, _, _), *after = figures
    return [
        Saving(change, memory, before - memory, step_s, step_s / before_s - 1.0, chance)
        for change, (memory, step_s, has_room, chance) in zip([*of_layout, *others], after, strict=True)
        if has_room
    ]


def _figures(job: Job, every_stage: bool) -> list[tuple[float, float, bool, float]]:
    """Return by layout memory and step time of a job, whether its hosts have room, and how surely it fits."""
    bill = price_with_task_order(job, every_stage=every_stage).bill
    memory, on_host = bill.memory_bytes(), bill.host_memory_bytes()
    device, host = job.cluster.accelerator.memory_bytes, job.cluster.host.memory_bytes
    chances = odds().fits_with(job.recipe.name)
    chance = chances.probability(memory, device) * chances.probability(on_host, host)
    by_layout = np.broadcast_arrays(
        memory,
        bill.step_time_s(),
        on_host <= host,
        np.where(memory <= device, chance, 0.0),
        np.atleast_1d(job.layout.gpus),
    )
    return list(zip(*(each.tolist() for each in by_layout[:4]), strict=True))


def _is_possible(job: Job) -> bool:
    try:
        check_job(job)
    except CostModelError:
        return False
    return True


def _layout_changes(job: Job) -> Iterator[Change]:
    """Yield each change of the layout that may free memory."""
    layout = job.layout
    now = RECOMPUTE_POLICIES[int(layout.recompute)]
    for code in range(int(layout.recompute) + 1, len(RECOMPUTE_POLICIES)):
        yield layout_change(job, "recompute", now, RECOMPUTE_POLICIES[code], recompute=code)
    for stage in range(int(layout.zero_stage) + 1, 4):
        yield layout_change(job, "zero", f"{int(layout.zero_stage)}", f"{stage}", zero_stage=stage)
    for axis in _DOUBLED:
        degree = float(getattr(layout, axis))
        degrees, after = {axis: 2.0 * degree}, f"{2.0 * degree:.0f}"
        if axis == "tp" and degree == 1:
            # Whether the job asks for it nobody knows without tensor parallelism, so that the change says it.
            keeps = job.recipe.launches.keeps if job.recipe.launches else {}
            is_on = keeps.get("sequence_parallel", "true") == "true"
            degrees["sequence_parallel"] = float(is_on)
            after += f" ({'with' if is_on else 'without'} sequence parallelism)"
        if axis == "pp" and int(layout.schedule) == schedule_code("none"):
            degrees["schedule"] = schedule_code("1f1b")
        yield layout_change(job, axis, f"{degree:.0f}", after, **degrees)
    size = float(layout.micro_batch)
    if size > 1:
        half = float(np.ceil(size / 2.0))
        yield layout_change(job, "micro-batch", f"{size:.0f}", f"{half:.0f}", micro_batch=half)
    if layout.tp > 1 and layout.sequence_parallel == 0:
        yield layout_change(job, "sequence parallelism", "", "", sequence_parallel=1.0)
    if layout.vp > 1:
        plain = {"vp": 1.0, "schedule": float(schedule_code("1f1b"))}
        yield layout_change(job, "vp", f"{float(layout.vp):.0f}", "1 (schedule 1f1b)", **plain)
    if layout.shard_group > 0 and layout.zero_stage > 0:
        group = f"{float(layout.shard_group):.0f}"
        yield layout_change(job, "shard group", group, "over all of dp·cp", shard_group=0.0)


def _switch_changes(job: Job) -> Iterator[Change]:
    """Yield each switch that may free memory."""
    switches = job.switches
    for switch, wasteful, value in _SWITCHES:
        nothing = (
            job.recipe.dtypes.param_dtype == "fp32"
            if switch == "grad_accum_dtype"
            else switch == "offload_optimizer" and not job.optimizer.on_host
        )
        if switches[switch] in wasteful and not nothing:
            yield switch_change(job, switch, value)


def _more_chunks(job: Job) -> Iterator[Change]:
    """Yield other numbers of virtual stages that deal the same layers to every chunk."""
    launches, layout, memory = job.recipe.launches, job.layout, job.recipe.memory
    plain = schedule_at(layout.schedule).name in ("1f1b", "interleaved")
    if job.pipeline_layout or not plain or (launches and "interleaved" not in launches.schedule):
        return
    places = job.model.num_layers + int(memory.embedding_as_layer) + int(memory.head_as_layer)
    on_a_stage = np.ceil(places / float(layout.pp))
    now, code = float(layout.vp), schedule_code("interleaved")
    # Beside a job's own 1f1b more virtual stages alone are refused.
    also = "" if int(layout.schedule) == code else " --schedule interleaved"
    for vp in divisors(on_a_stage, _MOST_CHUNKS):
        if vp not in (1.0, now):
            yield layout_change(job, "--vp", f"{now:.0f}", f"{vp:.0f}{also}", vp=vp, schedule=code)


def _balanced(job: Job) -> Iterator[Change]:
    """Yield the split that gives the stage with the head no more than the others."""
    launches = job.recipe.launches
    is_free = launches is None or launches.pipeline_layouts
    if is_free and not (job.pipeline_layout or job.balanced_stages):
        yield Change("--pipeline-layout", "", BALANCED, replace(job, balanced_stages=True), "number")


def _other_orders(job: Job) -> Iterator[Change]:
    """Yield the other orders of the axes that the framework starts."""
    framework = framework_of(job.recipe.launches)
    alike = not job.model.num_experts or job.layout.expert_dp == job.layout.dp
    now = " ".join(job.axis_order)
    for order in framework.axis_orders if framework and alike else ():
        if order != now:
            changed = replace(job, axis_order=tuple(order.split()))
            yield Change("--axis-order", f'"{now}"', f'"{order}"', changed, "number")


def _together(job: Job, changes: list[Change]) -> Change:
    jobs = [change.job for change in changes]
    layout = next((one.layout for one in jobs if one.layout is not job.layout), job.layout)
    order = next((one.axis_order for one in jobs if one.axis_order != job.axis_order), job.axis_order)
    balanced = any(one.balanced_stages for one in jobs)
    changed = replace(job, layout=layout, axis_order=order, balanced_stages=balanced)
    return Change(" ".join(map(str, changes)), "", "", changed, "number")
