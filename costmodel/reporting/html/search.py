"""Other layouts of a job, for the page: a search that takes seconds."""

from __future__ import annotations

import numpy as np

from costmodel.base.errors import CostModelError
from costmodel.estimates.estimate import Estimate
from costmodel.physics.pipeline.schedules import schedule_code
from costmodel.planning.plan import Plan
from costmodel.planning.search import Question

_KEPT = 300


def other_layouts(est: Estimate) -> Plan | None:
    """Search the layouts of a job that differ in the knobs that matter most; none if none fits.

    Degrees, micro-batch, recomputation and ZeRO stage are free; schedules are the job's and the two
    of 1F1B, virtual stages 1, 2, 4 and the job's, everything else is the job's.
    """
    job, own = est.job, est.job.layout
    names = ("none", "1f1b", "interleaved")
    schedules = {float(own.schedule), *(float(schedule_code(name)) for name in names)}
    given = {
        "schedule": tuple(sorted(schedules)),
        "vp": tuple(sorted({1.0, 2.0, 4.0, float(own.vp)})),
        "etp": (float(own.etp),),
        "shard_group": (0.0,),
        "sequence_parallel": (0.0, 1.0) if own.sequence_parallel or own.tp == 1 else (0.0,),
        "micro_batch": tuple(float(size) for size in (1, 2, 4, 8) if np.all(job.global_batch % size == 0)),
    }
    # With the memory to spare that `plan` leaves; to the brim only where nothing else fits.
    for headroom in (None, 0.0):
        try:
            return Plan.search(Question(jobs=(job,), given=given, headroom=headroom), kept=_KEPT)
        except CostModelError:
            continue
    return None
