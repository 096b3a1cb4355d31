"""What one change of the pipeline would do to the step of a job, really priced.

Changes that the framework of the recipe does not start are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from costmodel.base.divisors import divisors
from costmodel.base.errors import CostModelError
from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.describe.jobs.job import BALANCED, Job, check_job
from costmodel.physics.pipeline.chunks import chunks_text
from costmodel.physics.pipeline.schedules import schedule_at, schedule_code
from costmodel.step.price import chunks_of, price

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


def time_savings(job: Job) -> list[TimeSaving]:
    """Price the changes of a pipeline that might shorten the step: virtual stages, the split, the order of axes.

    Parameters
    ----------
    job : Job
        Of one layout.

    Returns
    -------
    savings : list of TimeSaving
        Of each kind the best change, and last all of them together; only what saves time.
    """
    if float(job.layout.pp) == 1:
        return []
    before_s = _priced(job)[0]
    kinds = (
        _of_chunks(list(_more_chunks(job)), before_s),
        [_saving(flags, changed, before_s) for flags, changed in _balanced(job)],
        [_saving(flags, changed, before_s) for flags, changed in _other_orders(job)],
    )
    best = [min(kind, key=lambda one: one.step_time_s) for kind in kinds if kind]
    found = [one for one in best if one.saved > 0]
    return [*found, *_together(job, found, before_s)]


def _priced(job: Job) -> tuple[float, float]:
    """Return step time and memory of a job. [s], [B]."""
    bill = price(job, every_stage=True).bill
    return float(bill.step_time_s()), float(bill.memory_bytes())


def _saving(flags: str, job: Job, before_s: float) -> TimeSaving:
    after_s, memory = _priced(job)
    return TimeSaving(flags, job, after_s, 1.0 - after_s / before_s, memory)


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
    layout = next((one.job.layout for one in found if one.job.layout is not job.layout), job.layout)
    order = next(
        (one.job.axis_order for one in found if one.job.axis_order != job.axis_order), job.axis_order
    )
    balanced = any(one.job.balanced_stages for one in found)
    changed = replace(job, layout=layout, axis_order=order, balanced_stages=balanced)
    if _runs(changed):
        both = _saving(" ".join(one.flags for one in found), changed, before_s)
        if both.saved > max(one.saved for one in found) + _MORE:
            yield both
