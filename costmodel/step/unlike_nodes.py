"""Nodes of two kinds in one job: its last nodes have another accelerator than the cluster's.

A stage that lies on those nodes alone runs its blocks in a share of the cluster's time; one that has nodes of both kinds
waits for the slower. Where whole replicas lie on the faster nodes, they wait too, unless the batch is dealt by speed.
Stages get layers by speed where a pipeline layout says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.base.errors import CostModelError
from costmodel.bill.lines import Array, TimeLine, broadcast_sum
from costmodel.describe.hardware.kernels import PEAK_KEY
from costmodel.describe.recipe import resolved_for
from costmodel.step.communication import exposed_sum
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
    whole, part = _stages(placed)
    made = []
    for block, lines, other in zip(own.blocks, own.lines, others.lines, strict=True):
        share = np.asarray(exposed_sum(other) / np.maximum(exposed_sum(lines), 1e-30))[..., None]
        factor = np.where(whole, share, np.where(part, np.maximum(share, 1.0), 1.0))
        runs = np.asarray(block.runs_on_stage * factor)
        more = runs.sum(axis=-1) / np.maximum(block.runs_on_stage.sum(axis=-1), 1e-30)
        made.append(replace(block, runs_on_stage=runs, runs_in_model=block.runs_in_model * more))
    return _with_batch_by_speed(placed, np.asarray(others.seconds / own.seconds)), PricedBlocks(
        made, own.lines
    )


def _stages(placed: PlacedJob) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which stages (last dimension) lie on the other nodes alone, and which have nodes of both kinds."""
    layout, first = placed.layout, _own_gpus(placed)[..., None]
    behind = placed.axis_order[placed.axis_order.index("pp") + 1 :]
    outermost = np.prod([np.asarray(getattr(layout, axis)) for axis in behind], axis=0) == 1.0
    gpus = (layout.gpus / layout.pp)[..., None]
    # Of stages alike, of which one is priced, the last one may be on the other nodes.
    last = np.maximum(placed.stages.index, layout.pp[..., None] - 1.0 - placed.stages.behind)
    apart = np.asarray(outermost)[..., None]
    whole = apart & (placed.stages.index * gpus >= first)
    return whole, ~whole & (~apart | ((last + 1.0) * gpus > first))


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
    """Return the job with the batch of the slower replicas where it is dealt by speed, in whole micro-batches.

    `share` is the time on the other nodes over that on the cluster's own.
    """
    mixed, layout = placed.cluster.mixed, placed.layout
    assert mixed is not None
    if not mixed.batch_by_speed:
        return placed
    if placed.axis_order[-1] != "dp" and np.any(layout.pp > 1):
        raise CostModelError(
            "hw: mixed: a batch dealt by speed needs replicas on nodes of one kind: pp 1, or axis_order 'tp cp pp dp'"
        )
    own, replica = _own_gpus(placed), layout.gpus / layout.dp
    fast = np.floor(np.where(share < 1.0, layout.gpus - own, own) / replica)
    gain, count = np.maximum(share, 1.0 / share), np.asarray(layout.dp * placed.micro_batches)
    slow = np.ceil(count / (layout.dp - fast + fast * gain))
    slow = slow + ((layout.dp - fast) * slow + fast * np.floor(slow * gain) < count)
    return replace(placed, global_batch=np.asarray(slow * layout.dp * layout.micro_batch))
