"""The pipeline of one estimate, task by task: the schedule's order with this job's durations.

The bill knows the busiest stage and a closed form of the bubble; here every stage has its own time, and the simulation
of `physics.pipeline.engine` says who waits for whom. What the bill adds outside the pipeline (gradients, optimizer,
overhead) follows the last task.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.base.errors import LayoutError
from costmodel.bill.lines import COMMUNICATING, Bill, TimeLine
from costmodel.describe.jobs.job import Job
from costmodel.physics.pipeline import schedules
from costmodel.physics.pipeline.engine import Timeline, simulate
from costmodel.physics.pipeline.orders import Orders
from costmodel.physics.pipeline.stages import (
    Fold,
    Split,
    StagePlan,
    chunks_on_ranks,
    plan_stages,
    v_chunks_by_speed,
)
from costmodel.step.price import Priced, price
from costmodel.step.unlike_nodes import pace_of_ranks

if TYPE_CHECKING:
    from costmodel.estimates.priced_job import PricedJob

Array = NDArray[np.float64]

STREAMS = ("compute", *COMMUNICATING)  # Streams of a stage, which run concurrently
MAX_TASKS = 40_000
"""Upper limit of simulated tasks, over all ranks; longer steps are simulated with fewer micro-batches."""

PIPELINE_TOLERANCE = 0.005
"""Relative deviation of a priced pipeline from its simulation that is accepted, as between equal layouts of a plan. [-]"""
_MIN_SIMULATED = 32
"""Least number of micro-batches simulated of a long step: of nearly equal stages the slowest limits only later ones. [-]"""
_MAX_FILLED_MICRO_BATCHES = 1024
"""Micro-batches times ranks up to which schedules that fill gaps are simulated, in a tenth of a second. [-]"""


class Durations(NamedTuple):
    """Seconds of one micro-batch by pass: one a rank, or (ranks, chunks)."""

    forward_s: Array
    backward_input_s: Array
    backward_weight_s: Array


@dataclass(frozen=True)
class PipelineRun:
    """A simulated pipeline, and what of the step comes after it."""

    timeline: Timeline
    orders: Orders
    micro_batches: int
    simulated: int  # Number of micro-batches in the timeline
    message_s: float  # One message between ranks. [s]
    after_s: float  # Time of the step outside the pipeline: gradients, parameters, optimizer, overhead. [s]

    @property
    def is_whole(self) -> bool:
        """Whether every micro-batch was simulated."""
        return self.simulated == self.micro_batches


def run_pipeline(est: PricedJob, *, most_tasks: int = MAX_TASKS) -> PipelineRun:
    """Simulate the pipeline of an estimate of one layout."""
    if est.job.layout.shape or est.shape:
        raise LayoutError("pipeline: this estimate holds several layouts; estimate one of them")
    placed, layout = est.priced.placed, est.job.layout
    p, m = int(layout.pp), int(placed.micro_batches)
    chunks = int(layout.vp)
    simulated = min(m, max(4 * p, most_tasks // (3 * p * chunks)))
    # Bidirectional schedules need an even number, interleaved ones a multiple of the stages.
    return _simulated(est.priced, m if simulated >= m else max(p * 2, simulated // (2 * p) * 2 * p))


def _simulated(priced: Priced, micro_batches: int) -> PipelineRun:
    """Simulate some micro-batches of the pipeline of one layout."""
    placed, layout = priced.placed, priced.placed.layout
    name = schedules.schedule_at(layout.schedule).name if layout.pp > 1 else "1f1b"
    sends = [line for line in priced.bill.time_lines if line.group == "pp" and line.phase == "step"]
    message_s = float(sends[0].each_s) if sends else 0.0
    orders = schedules.task_orders(name, int(layout.pp), micro_batches, int(layout.vp))
    timeline = simulate(
        orders,
        **durations(priced)._asdict(),
        message_s=message_s,
        blocking=bool(sends) and not placed.recipe.overlap.pp_overlap,
        pending_weight_fraction=float(placed.pending_weight_fraction),
        synchronized=placed.synchronized,
    )
    after_s = _exposed_s(lines_after_pipeline(priced.bill))
    return PipelineRun(timeline, orders, int(placed.micro_batches), micro_batches, message_s, after_s)


def price_with_task_order(job: Job, *, every_stage: bool) -> Priced:
    """Price a job; that of a single layout with all stages is corrected by the simulation of its pipeline."""
    priced = price(job, every_stage=every_stage)
    if not every_stage or job.layout.shape or priced.bill.step_time_s().ndim:
        return priced
    factor = order_factor(priced)
    return priced if factor == 1.0 else price(job, every_stage=every_stage, order_factor=factor)


def order_factor(priced: Priced) -> float:
    """Return the factor that brings the closed form of a pipeline within `PIPELINE_TOLERANCE` of its simulation. [-]

    1 without a pipeline and where the simulation is too slow or not available: many micro-batches whose weight gradients
    fill gaps, and bidirectional schedules on two kinds of nodes.
    """
    placed = priced.placed
    mixed_ways = placed.cluster.mixed is not None and fold_of(priced) == Fold.BIDIRECTIONAL
    if placed.layout.pp == 1 or mixed_ways:
        return 1.0
    simulated_s = simulated_pipeline_s(priced)
    if simulated_s is None:
        return 1.0
    billed_s = billed_pipeline_s(priced.bill)
    tolerance_s = PIPELINE_TOLERANCE * simulated_s
    target_s = min(max(billed_s, simulated_s - tolerance_s), simulated_s + tolerance_s)
    if target_s == billed_s:
        return 1.0
    (bubble,) = (line for line in priced.bill.time_lines if line.name == "pp.bubble")
    passes = priced.step.stage.passes
    stage_s = float(placed.micro_batches) * sum(float(passes[name]) for name in Durations._fields)
    return 1.0 + (target_s - billed_s) / (stage_s + float(bubble.exposed_seconds))


def simulated_pipeline_s(priced: Priced) -> float | None:
    """Return the simulated time of one layout's pipeline; None where the simulation would be slow. [s]

    Of a long step five micro-batches a stage, at least `_MIN_SIMULATED`, are simulated if the order of tasks is fixed, and
    `_MAX_FILLED_MICRO_BATCHES` of all stages if it is that of unit times; the rest is extrapolated from the last `2 p`, as
    groups of an interleaved schedule may alternate.
    """
    layout, waits = priced.placed.layout, not priced.placed.synchronized
    p, m = int(layout.pp), int(priced.placed.micro_batches)
    name = schedules.schedule_at(layout.schedule).name
    enough = p * max(5, ceil(_MIN_SIMULATED / p))
    orders = schedules.task_orders(name, p, min(m, enough), int(layout.vp))
    if orders.fill_limit or orders.in_unit_time:
        enough = _MAX_FILLED_MICRO_BATCHES // p
        if m > enough and not (orders.in_unit_time and enough >= 4 * p):
            return None

    def simulated_s(micro_batches: int) -> float:
        timeline = _simulated(priced, micro_batches).timeline
        return timeline.step_s() if waits else timeline.makespan_s()

    if m <= enough:
        return simulated_s(m)
    run_s = simulated_s(enough)
    return run_s + (m - enough) / (2 * p) * (run_s - simulated_s(enough - 2 * p))


def _exposed_s(lines: Iterable[TimeLine]) -> float:
    return sum(float(line.exposed_seconds) for line in lines)


def billed_pipeline_s(bill: Bill) -> float:
    """Return a bill's time of passes, bubble and messages. [s]"""
    after = {line.name for line in lines_after_pipeline(bill)}
    return _exposed_s(
        line
        for line in bill.time_lines
        if line.name not in after and (line.axis != "pp" or line.phase == "step")
    )


def port_floor_lines(bill: Bill) -> list[TimeLine]:
    """Return the time lines of ports that are busy for longer than the rest of the step."""
    return [line for line in bill.time_lines if line.name.startswith("overhead.port.")]


def lines_after_pipeline(bill: Bill) -> list[TimeLine]:
    """Return the time lines that come after the last task of the pipeline."""
    return [
        line
        for line in bill.time_lines
        if line.axis in ("dp", "optimizer") or line.phase == "step"
        if line.axis != "pp"
    ]


def durations(priced: Priced) -> Durations:
    """Return how long one micro-batch takes on every pipeline rank of a single layout, by pass."""
    parts = part_times(priced)
    by_stage = Durations(*(parts[part].exposed_s.sum(axis=0) for part in ("F", "I", "W")))
    ranks = int(priced.placed.layout.pp)
    if fold_of(priced) == Fold.V_SHAPED:
        return Durations(*(np.stack([each[:ranks], each[::-1][:ranks]], axis=-1) for each in by_stage))
    if interleaves(priced):
        return Durations(*(each.reshape(-1, ranks).T for each in by_stage))
    return by_stage


def interleaves(priced: Priced) -> bool:
    """Tell whether ranks of a single layout hold several chunks that go round them."""
    layout = priced.placed.layout
    return fold_of(priced) == Fold.LINEAR and bool(layout.pp > 1) and bool(layout.vp > 1)


def fold_of(priced: Priced) -> int:
    """Return the `Fold` of a single layout; linear with one stage."""
    layout = priced.placed.layout
    return int(schedules.fact("fold", layout.schedule)) if layout.pp > 1 else 0


def stages_in_order(priced: Priced) -> StagePlan:
    """Return what each stage of a single layout holds, in the order of the model."""
    placed, fold, p = priced.placed, fold_of(priced), float(priced.placed.layout.pp)
    if fold:
        split = placed.split
        if split.by_speed:
            chunks_in_vee = v_chunks_by_speed(placed.model.num_layers, int(p), split)
            split = Split(mtp_layers=split.mtp_layers, chunks=chunks_in_vee)
        return _cut(priced, p * fold, split)
    if not interleaves(priced):
        return placed.stages
    chunks, mtp = int(placed.layout.vp), placed.model.mtp_layers
    chunks_by_rank = placed.split.chunks or chunks_on_ranks(placed.stages, chunks, mtp, placed.split)
    return _cut(priced, p * chunks, Split(mtp_layers=mtp, chunks=chunks_by_rank))


def _ranks_of(priced: Priced, stages: Array) -> Array:
    """Return the pipeline rank that each stage, in the order of the model, is on."""
    ranks = float(priced.placed.layout.pp)
    if fold_of(priced) == Fold.V_SHAPED:
        return np.minimum(stages, 2.0 * ranks - 1.0 - stages)
    return np.asarray(stages % ranks)


def _cut(priced: Priced, count: float, split: Split) -> StagePlan:
    """Split the layers over so many stages, in order."""
    placed = priced.placed
    return plan_stages(placed.model.kind_of_layer, len(placed.kinds), count, split, every_stage=True)


class PartTimes(NamedTuple):
    """Seconds of one micro-batch in one pass, by stream and stage: exposed and busy."""

    exposed_s: Array
    busy_s: Array


def part_times(priced: Priced) -> dict[str, PartTimes]:
    """Add up the lines of the blocks that each stage holds: forward (F), gradients of inputs (I), of weights (W)."""
    plan = stages_in_order(priced)
    times = {part: PartTimes(*np.zeros((2, len(STREAMS), plan.index.size))) for part in ("F", "I", "W")}
    towers = (block.runs_in_model for block in priced.step.blocks if block.role == "tower")
    blocks = [
        *plan.blocks(priced.placed.model.mtp_layers),
        *(np.asarray(plan.has_embedding * runs) for runs in towers),
    ]
    ranks = _ranks_of(priced, plan.index)
    for block, count, lines in zip(priced.step.blocks, blocks, priced.step.block_lines, strict=True):
        # A tower's time already accounts for the nodes that it runs on.
        pace = np.asarray(1.0) if block.role == "tower" else pace_of_ranks(priced.placed, block, ranks)
        for line in lines:
            part = times[{"forward": "F", "backward_weight": "W"}.get(line.phase, "I")]
            stream = STREAMS.index(line.axis)
            part.exposed_s[stream] += pace * np.asarray(count) * float(line.exposed_each_s)
            part.busy_s[stream] += pace * np.asarray(count) * float(line.each_s)
    return times
