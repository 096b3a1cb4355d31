"""One estimate: collect the lines of every axis, and hand back the bill.

`price` is the only place where a job becomes a bill; a search calls it with arrays of layouts,
`costmodel.estimate` with scalars. Three passes make the lines: `BLOCK` those of one block (a layer
of some kind, the embedding, the head) and one micro-batch, of which the slowest pipeline stage says
how many the critical path runs; `STEP` those of a whole step; `CLOSING` those that follow from the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.base.errors import RecipeError
from costmodel.bill.lines import Bill, Line, TimeLine, anywhere, settled
from costmodel.bill.quantity import quantity
from costmodel.describe.jobs.job import Job
from costmodel.describe.recipe import require_cores
from costmodel.physics.network.mesh import build_mesh
from costmodel.physics.pipeline import schedules
from costmodel.physics.pipeline.chunks import Chunk
from costmodel.physics.pipeline.stages import Split, balanced_split, chunks_on_ranks, plan_stages
from costmodel.physics.run.stragglers import expected_maximum_normal
from costmodel.step import (
    compression,
    compute,
    context,
    data,
    expert,
    offload,
    optimizer,
    overhead,
    packing,
    pipeline,
    ports,
    reserve,
    resilience,
    states,
    tensor,
)
from costmodel.step.anatomy.operator_parts import Shard
from costmodel.step.anatomy.params import layer_param_blocks
from costmodel.step.critical_stage import Step, critical_step
from costmodel.step.placed_job import Block, PlacedJob

Array = NDArray[np.float64]

BLOCK: tuple[Callable[[PlacedJob, Block, Sequence[TimeLine]], list[TimeLine]], ...] = (
    compute.time_lines,
    tensor.time_lines,
    context.time_lines,
    expert.time_lines,
    compute.host_lines,
)
"""Lines of one block for one micro-batch, in this order: each is told the lines of those before it, whose ports
it shares; what the host cannot issue in time follows from all of them."""

_OfStep = Callable[[Step], Sequence[Line]]

STEP: tuple[_OfStep, ...] = (
    pipeline.time_lines,
    data.time_lines,
    optimizer.time_lines,
    packing.time_lines,
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
"""Those of them that are told how data parallelism shards, which no line of a block is."""

CLOSING: tuple[Callable[[Step, Bill], Sequence[Line]], ...] = (
    offload.lines,
    ports.time_lines,
    offload.port_lines,
    overhead.time_lines,
    resilience.time_lines,
    states.end_of_step_lines,
    optimizer.end_of_step_lines,
    reserve.memory_lines,
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
    """What of a bill is the same however data parallelism shards.

    Attributes
    ----------
    step : Step
        What the critical path runs, with the lines of its blocks.
    lines : mapping
        What those of `STEP` give that are not told of the sharding.
    """

    step: Step
    lines: Mapping[_OfStep, Sequence[Line]]

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


def price(job: Job, *, every_stage: bool = False) -> Priced:
    """Price a job, or an array of jobs that differ in layout, batch or sequence length.

    Parameters
    ----------
    job : Job
        Its layout, batch and sequence length may be arrays that broadcast together.
    every_stage : bool
        Look at every pipeline stage of a single layout instead of first, middle and last.

    Returns
    -------
    Priced
        The bill and what it was made from. Layouts that cannot exist are priced all the same;
        `costmodel.describe.jobs.layout.layout_problems` masks them.
    """
    layout = job.layout
    return price_unsharded(job, every_stage=every_stage).sharded(layout.zero_stage, layout.shard_group)


def price_unsharded(job: Job, *, every_stage: bool = False) -> Unsharded:
    """Price what does not depend on how data parallelism shards: `zero_stage` and `shard_group` are not read.

    A search does so once for all shardings of the same placements and schedules; see `price`.
    """
    placed = place_job(job, every_stage=every_stage)
    blocks = compute.build_blocks(placed)
    step = critical_step(placed, blocks, [_block_lines(placed, block) for block in blocks])
    return Unsharded(step, {of_step: of_step(step) for of_step in STEP if of_step not in SHARDED})


def _block_lines(placed: PlacedJob, block: Block) -> list[TimeLine]:
    """Return all lines of one block for one micro-batch."""
    made: list[TimeLine] = []
    for of_block in BLOCK:
        made += of_block(placed, block, made)
    return made


def place_job(job: Job, *, every_stage: bool = False) -> PlacedJob:
    """Place the ranks and work out what one micro-batch looks like on one of them."""
    model, recipe, layout, seq = job.model, job.recipe, job.layout, job.seq_len
    kinds = tuple(model.layer_kinds())
    split = stage_split(job)
    stages = plan_stages(
        model.kind_of_layer,
        len(kinds),
        layout.pp,
        split,
        fold=settled(schedules.fact("fold", layout.schedule)),
        every_stage=every_stage,
    )
    tokens = layout.micro_batch * seq / layout.cp
    tokens_sp = np.where(layout.sequence_parallel > 0, tokens / layout.tp, tokens)
    load = _load(job, np.asarray(tokens_sp))
    mesh = build_mesh(
        tp=layout.tp,
        cp=layout.cp,
        pp=layout.pp,
        dp=layout.dp,
        ep=layout.ep,
        etp=layout.etp,
        tier_sizes=[float(tier.size) for tier in job.cluster.tiers],
        order=job.axis_order,
        shape=job.cluster.tiers[0].shape,
    )
    shard = Shard(
        micro_batch=layout.micro_batch,
        seq_len=seq,
        span=job.span,
        tokens=np.asarray(tokens),
        tokens_sp=np.asarray(tokens_sp),
        tp=layout.tp,
        cp=layout.cp,
        etp=layout.etp,
        expert_tokens=np.asarray(tokens_sp * max(model.top_k, 1) * layout.etp * load),
        local_experts=np.asarray(max(model.num_experts, 1) / layout.ep),
        swaps=context.swap_ranks(job, mesh.cp),
    )
    require_cores(job.recipe, job.cluster.accelerator)
    return PlacedJob(
        model=model,
        cluster=job.cluster,
        recipe=recipe,
        policy=job.policy,
        health=job.health,
        tuning=job.tuning,
        packing=job.packing,
        precision=job.precision,
        optimizer=job.optimizer,
        layout=layout,
        mesh=mesh,
        split=split,
        stages=stages,
        shard=shard,
        kinds=kinds,
        global_batch=job.global_batch,
        seq_len=seq,
        micro_batches=job.micro_batches,
        imbalance=load,
        factors=job.factors,
    )


def _load(job: Job, tokens: Array) -> Array:
    r"""Tokens of the busiest expert rank over the mean. [-]

    Where each of T tokens a rank picks k of E experts by itself, a rank of n gets
    :math:`1 + m_n \sqrt{(E - k) / ((E - 1) T k)}` times the mean on the busiest, with :math:`m_n` the
    expected maximum of n normals: picks without replacement have the variance of a hypergeometric count,
    their sum over tokens is nearly normal, and what one rank gets another lacks.
    """
    moe, model, ranks = job.recipe.moe, job.model, job.layout.ep
    uneven = job.factors.of("routing")
    if moe.moe_capacity_factor > 0:
        return np.asarray(moe.moe_capacity_factor)
    if moe.moe_balance == "balanced" or model.num_experts < 2 or not anywhere(ranks > 1):
        return np.asarray(moe.moe_imbalance)
    if moe.moe_loads:
        return np.asarray(moe.moe_imbalance * _measured_load(job))
    deviations = expected_maximum_normal(ranks)
    spread = quantity(
        "sqrt((experts - top_k) / ((experts - 1) * tokens * top_k))",
        experts=float(model.num_experts),
        top_k=float(model.top_k),
        tokens=tokens,
    )
    beyond = deviations * spread.value
    return np.asarray(moe.moe_imbalance * (1.0 + (beyond if uneven is None else uneven * beyond)))


def _measured_load(job: Job) -> Array:
    """Tokens of the busiest expert rank over the mean, of measured tokens of every expert. [-]

    Raises
    ------
    RecipeError
        If there are not as many loads as experts.
    """
    loads, experts = np.asarray(job.recipe.moe.moe_loads), job.model.num_experts
    if len(loads) != experts:
        raise RecipeError(f"moe_loads: expected a load for each of {experts} experts, got {len(loads)}")
    degrees, where = np.unique(job.layout.ep, return_inverse=True)
    # A degree that does not divide the experts is no layout; its price does not matter.
    busiest = [
        float(loads.reshape(int(degree), -1).sum(axis=1).max() * degree / loads.sum())
        if experts % int(degree) == 0
        else 1.0
        for degree in degrees
    ]
    return np.asarray(np.asarray(busiest)[where].reshape(np.shape(job.layout.ep)))


def stage_split(job: Job) -> Split:
    """Return how the layers of a model are dealt to pipeline stages: as written out, or as the recipe does."""
    model, memory = job.model, job.recipe.memory
    if job.balanced_stages:
        ways = settled(schedules.fact("fold", job.layout.schedule))
        return balanced_split(
            model.kind_of_layer,
            job.layout.pp,
            head_in_layers(job),
            model.mtp_layers,
            fold=ways,
            vp=settled(job.layout.vp),
        )
    # Heads x head size x hidden size four times, whatever the key-value heads, and the MLP.
    layer = 4 * model.num_heads * model.head_dim + (3 if model.gated_mlp else 2) * model.ffn_size
    head = model.vocab_size / layer if memory.head_by_work else memory.head_as_layer
    return Split(float(memory.embedding_as_layer), float(head), model.mtp_layers, job.pipeline_layout)


def chunks_of(job: Job) -> tuple[Chunk, ...]:
    """Return which layers run in which chunk of one layout where the job says so, else nothing.

    Schedules that fold the pipeline hold other chunks on a rank than the plain ones that can be written out.
    """
    if job.pipeline_layout or not job.balanced_stages or anywhere(job.layout.pp < 2):
        return job.pipeline_layout
    if schedules.fact("fold", job.layout.schedule).any():
        return ()
    placed = place_job(job, every_stage=True)
    return chunks_on_ranks(placed.stages, int(job.layout.vp), job.model.mtp_layers, placed.split)


def head_in_layers(job: Job) -> float:
    """Return how many layers do as many multiply-adds a token as head and loss, each MTP layer's again. [-]"""
    kind = job.model.layer_kinds()[-1]
    model = job.model.seen_by(kind)
    share = model.top_k / max(model.num_experts, 1)
    active = sum(
        b.count * (share if b.sharding == "expert" else 1.0) for b in layer_param_blocks(model, kind)
    )
    # Scores and their product with the values, half of them behind the mask.
    attends = float(kind.attends)
    scores = attends * 0.5 * float(np.max(job.span)) * model.num_heads * (model.head_dim + model.v_head_dim)
    return float(model.vocab_size * model.hidden_size * (1 + model.mtp_layers) / (active + scores))
