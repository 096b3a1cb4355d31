"""Nodes of two kinds in one job: its last nodes have another accelerator than the cluster's.

A stage that lies on those nodes alone runs its blocks in a share of the cluster's time; one that has nodes of both kinds
waits for the slower. Where whole replicas lie on the faster nodes, they wait too, unless the batch is divided by speed.
Balanced stages have layers by speed, so that none waits long; all have the memory of their own nodes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.base.errors import CostModelError
from costmodel.bill.lines import (
    Array,
    Bill,
    MemoryLine,
    TimeLine,
    broadcast_sum,
    highest_on_stages,
    memory_line,
)
from costmodel.describe.hardware.kernels import PEAK_KEY
from costmodel.describe.jobs.job import Job
from costmodel.describe.recipe import resolved_for
from costmodel.physics.pipeline import schedules
from costmodel.physics.pipeline.stages import Fold, OtherNodeRanks
from costmodel.step.communication import exposed_sum
from costmodel.step.critical_stage import Step
from costmodel.step.placed_job import Block, PlacedJob, stages_of


class PricedBlocks(NamedTuple):
    """Blocks of a job and their lines for one micro-batch."""

    blocks: list[Block]
    lines: list[list[TimeLine]]

    def seconds(self, *roles: str) -> Array:
        """Exposed time of all of them, or of those of some roles. [s]"""
        each = zip(self.blocks, self.lines, strict=True)
        return broadcast_sum(
            [
                np.asarray(block.runs_in_model * exposed_sum(lines))
                for block, lines in each
                if block.role in roles or not roles
            ]
        )


def on_other_nodes(placed: PlacedJob) -> PlacedJob:
    """Return the job as it would run on the other nodes alone."""
    mixed = placed.cluster.mixed
    assert mixed is not None
    other, recipe = mixed.accelerator, placed.recipe
    if PEAK_KEY[placed.precision.matmul_dtype] not in other.peak_flops_per_s or other.kernels is None:
        raise CostModelError(
            f"hw: mixed: {other.name} has no {placed.precision.matmul_dtype} products with a price"
        )
    if recipe.kernels.attention_kernel not in other.kernels.attention:
        recipe = resolved_for(recipe.switched({"attention_kernel": "auto"}), other, placed.precision.name)
    return replace(placed, recipe=recipe, cluster=replace(placed.cluster, accelerator=other, mixed=None))


def with_other_nodes(
    placed: PlacedJob,
    own: PricedBlocks,
    others: PricedBlocks,
    expected: tuple[PricedBlocks, PricedBlocks],
    *,
    every_stage: bool,
) -> tuple[PlacedJob, PricedBlocks]:
    """Return the job and its blocks, run as often as their stages take in times of the cluster's own accelerator.

    Layers and batch are divided by what blocks are `expected` to take on both.
    """
    placed = _with_layers_by_speed(placed, *expected, every_stage=every_stage)
    placed = _with_batch_by_speed(placed, np.asarray(expected[1].seconds() / expected[0].seconds()))
    own = PricedBlocks(_on_stages(own.blocks, placed), own.lines)
    stages = _stages(placed)
    made = []
    for block, lines, other in zip(own.blocks, own.lines, others.lines, strict=True):
        share = np.asarray(exposed_sum(other) / np.maximum(exposed_sum(lines), 1e-30))
        runs = np.asarray(block.runs_on_stage * stages.pace(share[..., None]))
        in_own, in_all = (np.sum(each * placed.stages.alike, axis=-1) for each in (block.runs_on_stage, runs))
        more = in_all / np.maximum(in_own, 1e-30)
        made.append(
            replace(block, runs_on_stage=runs, runs_in_model=block.runs_in_model * more, other_share=share)
        )
    share = np.asarray(others.seconds() / own.seconds())
    return replace(placed, other_share=share), PricedBlocks(made, own.lines)


def _with_layers_by_speed(
    placed: PlacedJob, own: PricedBlocks, others: PricedBlocks, *, every_stage: bool
) -> PlacedJob:
    """Return the job with the pace of its stages, and layers by it where nobody lists them and the rule balances stages."""
    model, mixed, schedule = placed.model, placed.cluster.mixed, placed.layout.schedule
    apart = _apart(placed) & (placed.layout.pp > 1)
    layers = model.num_layers + model.mtp_layers
    own_s, other_s = (each.seconds("layer") / layers for each in (own, others))
    # A hundredth of a layer moves none, and a search has few paces.
    pace, first, last = (
        np.round(each, 2)
        for each in (
            other_s / own_s,
            own.seconds("embedding", "tower") / own_s,
            others.seconds("head", "mtp") / other_s + model.mtp_layers,
        )
    )
    split = replace(
        placed.split,
        others=np.where(apart, placed.layout.pp - _own_ranks(placed), 0.0),
        pace=np.where(apart, pace, 1.0),
    )
    assert mixed is not None
    if placed.balanced_stages and mixed.layers_by_speed:
        unlike = (np.asarray(split.others) > 0) & (schedules.fact("fold", schedule) != Fold.BIDIRECTIONAL)
        split = replace(
            split,
            embedding=np.where(unlike, first, split.embedding),
            head=np.where(unlike, last, split.head),
            by_speed=bool(unlike.any()),
        )
    return replace(placed, split=split, stages=stages_of(placed, split, every_stage=every_stage))


def _on_stages(blocks: list[Block], placed: PlacedJob) -> list[Block]:
    """Return blocks as often as the stages of a job hold them."""
    made, stages, mtp_layers = [], placed.stages, placed.model.mtp_layers
    layers = iter((*stages.layers, stages.has_embedding, stages.has_head, stages.mtp))
    for block in blocks:
        towers = block.role == "tower"
        count = stages.has_embedding * block.runs_in_model if towers else next(layers)
        runs = count * (1.0 + mtp_layers) if block.role == "head" else count
        made.append(replace(block, num_on_stage=np.asarray(count), runs_on_stage=np.asarray(runs)))
    return made


def _apart(placed: PlacedJob) -> NDArray[np.bool_]:
    """Where stages are outermost, so that each lies on nodes of its own."""
    behind = placed.axis_order[placed.axis_order.index("pp") + 1 :]
    return np.asarray(np.prod([np.asarray(getattr(placed.layout, axis)) for axis in behind], axis=0) == 1.0)


def _own_ranks(placed: PlacedJob) -> Array:
    """Return the pipeline ranks on the cluster's own nodes, where stages are outermost. [-]"""
    return np.asarray(_own_gpus(placed) * placed.layout.pp / placed.layout.gpus)


def _stages(placed: PlacedJob, ranks: Array | None = None) -> OtherNodeRanks:
    """Return on which nodes the priced stages are, or these pipeline ranks."""
    first = last = ranks
    if first is None or last is None:
        first = placed.stages.index
        # Of stages alike, of which one is priced, the last one may be on the other nodes.
        last = np.maximum(first, placed.layout.pp[..., None] - 1.0 - placed.stages.behind)
    found, apart = OtherNodeRanks.ranks(first, last, _own_ranks(placed)[..., None]), _apart(placed)[..., None]
    return OtherNodeRanks(apart & found.whole, ~apart | found.part)


def pace_of_ranks(placed: PlacedJob, block: Block, ranks: Array) -> Array:
    """Return the time of a block on pipeline ranks over that on the cluster's own nodes. [-]"""
    share = block.other_share
    return np.asarray(1.0) if share is None else _stages(placed, ranks).pace(share[..., None])


def memory_lines(step: Step, bill: Bill) -> list[MemoryLine]:
    """Return by how much less full GPUs of the larger memory are: all stages are measured against the smaller."""
    placed = step.placed
    mixed, smaller = placed.cluster.mixed, placed.accelerator.memory_bytes
    # A search asks what is possible were memory without end, and then neither is larger.
    if mixed is None or not mixed.more_memory_bytes or np.isinf(smaller):
        return []
    stages = _stages(placed)
    on_larger = stages.whole if mixed.more_memory_bytes > 0 else ~(stages.whole | stages.part)
    return [
        memory_line(
            "reserve.larger_memory",
            part="reserve",
            seen="device",
            axis="pp",
            formula="-on_larger * (1 - smaller_bytes / larger_bytes) * held_bytes",
            terms={
                "on_larger": np.asarray(1.0 * on_larger),
                "smaller_bytes": smaller,
                "larger_bytes": smaller + abs(mixed.more_memory_bytes),
                "held_bytes": bill.memory_per_stage_bytes(),
            },
            source=f"hw: mixed: stages on nodes of {mixed.accelerator.name} alone, or on none of them",
        )
    ]


def busy_shares(step: Step) -> tuple[float, float]:
    """Return how busy GPUs of the cluster's own kind are, and the others, over those of the critical stage. [-]

    A replica or stage that is done sooner waits; all of a kind are taken to be as busy as its busiest stage.
    """
    placed = step.placed
    mixed, share, stages = placed.cluster.mixed, placed.other_share, _stages(placed)
    assert mixed is not None
    assert share is not None
    if mixed.batch_by_speed:
        return 1.0, 1.0
    each = zip(step.blocks, step.block_lines, strict=True)
    works_s = broadcast_sum([block.runs_on_stage * exposed_sum(lines)[..., None] for block, lines in each])
    own = np.where(stages.whole, 0.0, works_s / np.where(stages.part, np.maximum(share, 1.0), 1.0))
    other = np.where(stages.whole, works_s, np.where(stages.part, works_s * np.minimum(share, 1.0), 0.0))
    most_s = float(highest_on_stages(works_s))
    return float(highest_on_stages(own)) / most_s, float(highest_on_stages(other)) / most_s


def _own_gpus(placed: PlacedJob) -> Array:
    """Return the GPUs of the cluster's own kind; refuse more others than the job has. [-]"""
    cluster = placed.cluster
    assert cluster.mixed is not None
    own = placed.layout.gpus - float(cluster.mixed.nodes * cluster.gpus_per_node)
    if np.any(own <= 0):
        raise CostModelError(
            f"hw: mixed: {cluster.mixed.nodes} nodes of {cluster.gpus_per_node} GPUs are all of the job's "
            f"{float(np.min(placed.layout.gpus)):.0f}; name their cluster instead"
        )
    return np.asarray(own)


def _with_batch_by_speed(placed: PlacedJob, share: Array) -> PlacedJob:
    """Return the job with the batch of the slower replicas where it is divided by speed, in whole micro-batches."""
    mixed, layout = placed.cluster.mixed, placed.layout
    assert mixed is not None
    if not mixed.batch_by_speed:
        return placed
    own, replica = _own_gpus(placed), layout.gpus / layout.dp
    fast = np.floor(np.where(share < 1.0, layout.gpus - own, own) / replica)
    # An interleaved schedule runs as many micro-batches at once as it has stages.
    group = np.where(layout.vp > 1, layout.pp, 1.0)
    gain, count = np.maximum(share, 1.0 / share), np.asarray(layout.dp * placed.micro_batches / group)
    slow = np.ceil(count / (layout.dp - fast + fast * gain))
    slow = slow + ((layout.dp - fast) * slow + fast * np.floor(slow * gain) < count)
    slow = np.minimum(np.where(has_whole_replicas(placed), slow * group, np.inf), placed.micro_batches)
    return replace(placed, global_batch=np.asarray(slow * layout.dp * layout.micro_batch))


def has_whole_replicas(job: Job) -> NDArray[np.bool_]:
    """Where replicas lie on nodes of their own, so that some can be on nodes of one kind."""
    return np.asarray((job.axis_order[-1] == "dp") | (job.layout.pp == 1))
