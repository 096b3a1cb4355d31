"""One estimate: collect the lines of every axis, and hand back the bill.

`price` is the only place where a job becomes a bill; a search calls it with arrays of layouts,
`costmodel.estimate` with scalars. Three passes make the lines: `BLOCK` those of one block (a layer
of some kind, the embedding, the head) and one micro-batch, of which the slowest pipeline stage says
how many the critical path runs; `STEP` those of a whole step; `CLOSING` those that follow from the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from costmodel.bill.lines import Array, Bill, Line, TimeLine, any_nonzero
from costmodel.describe.factors import Factors
from costmodel.describe.jobs.job import Job
from costmodel.physics.pipeline import schedules
from costmodel.physics.pipeline.chunks import Chunk
from costmodel.physics.pipeline.stages import chunks_on_ranks
from costmodel.step import (
    communication,
    compression,
    compute,
    context,
    data,
    expert,
    offload,
    optimizer,
    overhead,
    pipeline,
    reserve,
    states,
    tensor,
    unlike_nodes,
)
from costmodel.step.critical_stage import Step, critical_step
from costmodel.step.placed_job import Block, PlacedJob, place_job
from costmodel.step.unlike_nodes import PricedBlocks, on_other_nodes, with_other_nodes

BLOCK: tuple[Callable[[PlacedJob, Block, Sequence[TimeLine]], list[TimeLine]], ...] = (
    compute.time_lines,
    tensor.time_lines,
    context.time_lines,
    expert.time_lines,
    compute.host_lines,
)
"""Lines of one block for one micro-batch, in this order: each sees the lines of those before it, whose ports
it shares; what the host cannot issue in time follows from all of them."""

_OfStep = Callable[[Step], Sequence[Line]]

STEP: tuple[_OfStep, ...] = (
    pipeline.time_lines,
    data.time_lines,
    optimizer.time_lines,
    overhead.packing_lines,
    overhead.image_lines,
    states.memory_lines,
    compression.memory_lines,
    compute.memory_lines,
    tensor.memory_lines,
    context.memory_lines,
    expert.memory_lines,
    pipeline.memory_lines,
)
"""Lines of a whole step, from the stage that sets its pace; none needs another's."""

SHARDED: tuple[_OfStep, ...] = (data.time_lines, optimizer.time_lines, states.memory_lines)
"""Those of them that depend on how data parallelism shards, which no line of a block does."""

CLOSING: tuple[Callable[[Step, Bill], Sequence[Line]], ...] = (
    offload.lines,
    communication.port_lines,
    offload.port_lines,
    overhead.time_lines,
    overhead.straggler_lines,
    states.end_of_step_lines,
    optimizer.end_of_step_lines,
    reserve.memory_lines,
    unlike_nodes.memory_lines,
)
"""Lines that follow from the bill so far, in this order: each counts all lines of those before it."""


@dataclass(frozen=True)
class Priced:
    """A bill and what it was made from."""

    bill: Bill
    placed: PlacedJob
    step: Step


@dataclass(frozen=True)
class Unsharded:
    """What of a bill is the same however data parallelism shards."""

    step: Step
    """What the critical path runs, with the lines of its blocks."""
    lines: Mapping[_OfStep, Sequence[Line]]
    """What those of `STEP` give that do not depend on the sharding."""

    def sharded(self, zero_stage: Array, shard_group: Array) -> Priced:
        """Return the bill under a sharding, or an array of them, which may have dimensions of its own in front."""
        step, layout = self.step, self.step.placed.layout
        if zero_stage is not layout.zero_stage or shard_group is not layout.shard_group:
            layout = replace(layout, zero_stage=zero_stage, shard_group=shard_group)
            step = replace(step, placed=replace(step.placed, layout=layout))
        placed = step.placed
        lines: list[Line] = []
        for of_block, count in zip(step.block_lines, step.counts, strict=True):
            lines += [line._replace(count=count) for line in of_block]
        for of_step in STEP:
            lines += of_step(step) if of_step in SHARDED else self.lines[of_step]
        bill = Bill((), (), tuple(tier.name for tier in placed.cluster.tiers)).plus(lines)
        for of_bill in CLOSING:
            bill = bill.plus(of_bill(step, bill))
        return Priced(bill, placed, step)


def price(job: Job, *, every_stage: bool = False, order_factor: float = 1.0) -> Priced:
    """Price a job, or an array of jobs that differ in layout, batch or sequence length.

    `every_stage` looks at every pipeline stage of a single layout instead of one of each composition; by `order_factor` its
    pipeline takes longer than its closed form, as its simulation has it. Layouts that cannot exist are priced all the
    same; `costmodel.describe.jobs.layout.layout_problems` masks them.
    """
    layout = job.layout
    unsharded = price_unsharded(job, every_stage=every_stage, order_factor=order_factor)
    return unsharded.sharded(layout.zero_stage, layout.shard_group)


def chunks_of(job: Job) -> tuple[Chunk, ...]:
    """Return the layers of each pipeline chunk where the job sets or balances them, else nothing.

    Nor of V-shaped and bidirectional schedules, whose chunks lie on other ranks than `pipeline_layout` can say.
    """
    if job.pipeline_layout or not job.balanced_stages or any_nonzero(job.layout.pp < 2):
        return job.pipeline_layout
    if schedules.fact("fold", job.layout.schedule).any():
        return ()
    is_mixed = job.cluster.mixed is not None
    placed = (
        price_unsharded(job, every_stage=True).step.placed if is_mixed else place_job(job, every_stage=True)
    )
    return chunks_on_ranks(placed.stages, int(job.layout.vp), job.model.mtp_layers, placed.split)


def price_blocks(placed: PlacedJob) -> PricedBlocks:
    """Price the blocks of a placed job, each with its lines for one micro-batch."""
    blocks = compute.build_blocks(placed)
    lines: list[list[TimeLine]] = [[] for _ in blocks]
    for block, made in zip(blocks, lines, strict=True):
        for of_block in BLOCK:
            more = of_block(placed.of(block), block, made)
            made += [line for line in more if line.phase == "forward" or not block.frozen]
    return PricedBlocks(blocks, lines)


def price_unsharded(job: Job, *, every_stage: bool = False, order_factor: float = 1.0) -> Unsharded:
    """Price what does not depend on how data parallelism shards: `zero_stage` and `shard_group` are not read.

    A search does so once for all shardings of the same placements and schedules; see `price`.
    """
    placed = place_job(job, every_stage=every_stage)
    priced = price_blocks(placed)
    if placed.cluster.mixed is not None:
        others = price_blocks(on_other_nodes(placed))
        expected = priced, others
        if placed.factors:
            # What is uncertain moves no layer: they are divided before anybody knows.
            plain = replace(placed, factors=Factors())
            expected = price_blocks(plain), price_blocks(on_other_nodes(plain))
        placed, priced = with_other_nodes(placed, priced, others, expected, every_stage=every_stage)
    step = replace(critical_step(placed, *priced), order_factor=order_factor)
    return Unsharded(step, {of_step: of_step(step) for of_step in STEP if of_step not in SHARDED})
