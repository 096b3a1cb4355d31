"""Nodes of two kinds in one job: its last nodes have another accelerator than the cluster's.

A stage that lies on those nodes alone runs its blocks in a share of the cluster's time; one that has nodes of both kinds
waits for the slower. Where whole replicas lie on the faster nodes, they wait too, unless the batch is divided by speed.
Stages get layers by speed where a pipeline layout says so, and have the memory of their own nodes.
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
from costmodel.describe.recipe import resolved_for
from costmodel.step.communication import exposed_sum
from costmodel.step.critical_stage import Step
from costmodel.step.placed_job import Block, PlacedJob


class PricedBlocks(NamedTuple):
    """Blocks of a job and their lines for one micro-batch."""

    blocks: list[Block]
    lines: list[list[TimeLine]]

    @property
    def seconds(self) -> Array:
        """Exposed time of all of them. [s]"""
        each = zip(self.blocks, self.lines, strict=True)
        return broadcast_sum([np.asarray(block.runs_in_model * exposed_sum(lines)) for block, lines in each])


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
    placed: PlacedJob, own: PricedBlocks, others: PricedBlocks
) -> tuple[PlacedJob, PricedBlocks]:
    """Return the job and its blocks, run as often as their stages take in times of the cluster's own accelerator."""
    stages = _stages(placed)
    made = []
    for block, lines, other in zip(own.blocks, own.lines, others.lines, strict=True):
        share = np.asarray(exposed_sum(other) / np.maximum(exposed_sum(lines), 1e-30))
        runs = np.asarray(block.runs_on_stage * stages.pace(share))
        more = runs.sum(axis=-1) / np.maximum(block.runs_on_stage.sum(axis=-1), 1e-30)
        made.append(
            replace(block, runs_on_stage=runs, runs_in_model=block.runs_in_model * more, other_share=share)
        )
    placed = replace(placed, other_share=np.asarray(others.seconds / own.seconds))
    return _with_batch_by_speed(placed), PricedBlocks(made, own.lines)


class _Stages(NamedTuple):
    """Which stages (last dimension) lie on the other nodes alone, and which have nodes of both kinds."""

    whole: NDArray[np.bool_]
    part: NDArray[np.bool_]

    def pace(self, share: Array) -> Array:
        """Return the time of stages over that on the cluster's own nodes, where the others' is `share` of it. [-]"""
        others = share[..., None]
        return np.where(self.whole, others, np.where(self.part, np.maximum(others, 1.0), 1.0))


def _stages(placed: PlacedJob, ranks: Array | None = None) -> _Stages:
    """Return the kinds of the priced stages, or of these pipeline ranks."""
    layout, own = placed.layout, _own_gpus(placed)[..., None]
    behind = placed.axis_order[placed.axis_order.index("pp") + 1 :]
    outermost = np.prod([np.asarray(getattr(layout, axis)) for axis in behind], axis=0) == 1.0
    gpus = (layout.gpus / layout.pp)[..., None]
    first = last = ranks
    if first is None or last is None:
        first = placed.stages.index
        # Of stages alike, of which one is priced, the last one may be on the other nodes.
        last = np.maximum(first, layout.pp[..., None] - 1.0 - placed.stages.behind)
    apart = np.asarray(outermost)[..., None]
    whole = apart & (first * gpus >= own)
    return _Stages(whole, ~whole & (~apart | ((last + 1.0) * gpus > own)))


def pace_of_ranks(placed: PlacedJob, block: Block, ranks: Array) -> Array:
    """Return the time of a block on pipeline ranks over that on the cluster's own nodes. [-]"""
    return np.asarray(1.0) if block.other_share is None else _stages(placed, ranks).pace(block.other_share)


def memory_lines(step: Step, bill: Bill) -> list[MemoryLine]:
    """Return by how much less full GPUs of the larger memory are: all stages are measured against the smaller."""
    placed = step.placed
    mixed, smaller = placed.cluster.mixed, placed.accelerator.memory_bytes
    if mixed is None or not mixed.more_memory_bytes:
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


def _with_batch_by_speed(placed: PlacedJob) -> PlacedJob:
    """Return the job with the batch of the slower replicas where it is divided by speed, in whole micro-batches."""
    mixed, layout, share = placed.cluster.mixed, placed.layout, placed.other_share
    assert mixed is not None
    assert share is not None
    if not mixed.batch_by_speed:
        return placed
    if placed.axis_order[-1] != "dp" and np.any(layout.pp > 1):
        raise CostModelError(
            "hw: mixed: a batch divided by speed needs replicas on nodes of one kind: pp 1, or axis_order 'tp cp pp dp'"
        )
    own, replica = _own_gpus(placed), layout.gpus / layout.dp
    fast = np.floor(np.where(share < 1.0, layout.gpus - own, own) / replica)
    gain, count = np.maximum(share, 1.0 / share), np.asarray(layout.dp * placed.micro_batches)
    slow = np.ceil(count / (layout.dp - fast + fast * gain))
    slow = slow + ((layout.dp - fast) * slow + fast * np.floor(slow * gain) < count)
    return replace(placed, global_batch=np.asarray(slow * layout.dp * layout.micro_batch))
