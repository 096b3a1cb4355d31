"""Resilience: what a step loses because not all ranks are equally fast.

Sends and stores nothing. Pays: at every synchronisation the group waits for its slowest member.
Ranks that differ for good cost the expected maximum over all of them, told by the level that
meets them (tensor group, expert group, pipeline, whole job); jitter costs at each level again.
Off unless the job's `stragglers` or `degraded_gpu` says otherwise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodel.bill.lines import Bill, TimeLine, anywhere, sum_exposed, time_line
from costmodel.physics.run.stragglers import RankTimes, jitter_excess, lasting_excess
from costmodel.step.critical_stage import Step
from costmodel.step.placed_job import PlacedJob

Array = NDArray[np.float64]

_LEVELS = ("tensor", "context", "expert", "pipeline", "job")
_SOURCE = "expected maximum of independent ranks: David and Nagaraja, Order Statistics, section 3.1"


def time_lines(step: Step, bill: Bill) -> list[TimeLine]:
    """Return what each level of synchronisation waits for its slowest rank.

    A slow rank is slow at its own work: communication of the critical path does not grow.
    """
    health = step.placed.health
    degraded = _degraded_lines(bill, health.degraded_gpu) if health.degraded_gpu < 1.0 else []
    if health.stragglers == "none":
        return degraded
    placed = step.placed
    work_s = sum_exposed([line for line in bill.time_lines if line.category != "communication"])
    ranks = _ranks_below(placed)
    times = RankTimes(
        health.straggler_variation,
        health.stragglers == "lognormal",
        health.straggler_slow_fraction,
        health.straggler_slowdown,
    )
    made = degraded + [
        _line(f"resilience.stragglers.{level}", excess, work_s, count)
        for level, excess, count in zip(_LEVELS, lasting_excess(ranks, times), ranks, strict=True)
    ]
    if health.straggler_jitter:
        excesses = jitter_excess(ranks, synchronisations(placed), health.straggler_jitter)
        made += [
            _line(f"resilience.jitter.{level}", excess, work_s, count)
            for level, excess, count in zip(_LEVELS, excesses, ranks, strict=True)
        ]
    return [line for line in made if anywhere(line.each_s)]


def _degraded_lines(bill: Bill, speed: float) -> list[TimeLine]:
    """Return what a step waits for one GPU that is slower than the others for good.

    Its stage sets the pace of all micro-batches, and its work is the critical stage's; what communicates and what idles
    is not slower.
    """
    work_s = sum_exposed(
        [line for line in bill.time_lines if line.category not in ("communication", "bubble")]
    )
    return [
        time_line(
            "resilience.degraded_gpu",
            axis="resilience",
            category="overhead",
            phase="step",
            count=1.0,
            formula="(1 / speed - 1) * work_s",
            terms={"speed": speed, "work_s": work_s},
            source="every synchronisation waits for the slowest rank: step/resilience.py",
        )
    ]


def _line(name: str, excess: Array, work_s: Array, ranks: Array) -> TimeLine:
    """Make the line of one level."""
    return time_line(
        name,
        axis="resilience",
        category="overhead",
        phase="step",
        count=1.0,
        formula="excess * work_s",
        terms={"excess": excess, "work_s": work_s, "ranks": ranks},
        source=_SOURCE,
    )


def _ranks_below(placed: PlacedJob) -> list[Array]:
    """Return how many ranks have waited for one another once each level has met."""
    layout = placed.layout
    context = layout.tp * layout.cp
    expert = np.maximum(context, layout.ep * layout.etp)
    pipeline = np.minimum(expert * layout.pp, layout.gpus)
    return [np.asarray(n) for n in (layout.tp, context, expert, pipeline, layout.gpus)]


def synchronisations(placed: PlacedJob) -> list[Array]:
    """Return how often each level synchronises a rank in a step."""
    layout, model = placed.layout, placed.model
    m = placed.micro_batches
    # Attention and MLP meet once each way, as do dispatch and combine.
    layers = 4.0 * m * model.num_layers / layout.pp
    stages = 2.0 * m * layout.vp
    return [
        np.maximum(layers, 1.0),
        np.maximum(layers, 1.0),
        np.maximum(layers, 1.0),
        np.maximum(stages, 1.0),
        np.ones_like(m),
    ]
