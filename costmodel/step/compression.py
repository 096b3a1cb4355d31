"""Compressed gradients: what data parallelism sends instead, and what that costs in kernels and memory.

Sends: see `physics.gradient_compression`. Hides: the messages as uncompressed ones; the kernels
run on the GPU that computes, so nothing. Stores: the residual of error feedback.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from costmodel.bill.lines import (
    Array,
    MemoryLine,
    TimeLine,
    any_nonzero,
    broadcast_sum,
    highest_on_stages,
    memory_line,
    time_line,
)
from costmodel.describe.switch_table import DTYPE_BYTES
from costmodel.physics.network.gradient_compression import (
    compression,
    compression_traffic,
)
from costmodel.physics.network.mesh import Group, split_group
from costmodel.step.anatomy.operator_parts import ParamBlock
from costmodel.step.critical_stage import Step
from costmodel.step.placed_job import DataPart, PlacedJob


class Message(NamedTuple):
    """One collective of a gradient reduction."""

    label: str
    primitive: str
    group: Group
    size_bytes: Array


def gradient_bytes(placed: PlacedJob) -> float:
    """Bytes of a gradient on the wire of a reduction. [B]."""
    method = compression(placed.policy.gradient_compression)
    return method.sent_bytes(DTYPE_BYTES[placed.recipe.dtypes.grad_reduce_dtype])


def outer_bytes(placed: PlacedJob) -> float:
    """Bytes an element of what rarely averaged replicas send round a ring, and sum in fp32. [B]."""
    if placed.policy.outer_compression == "none":
        return gradient_bytes(placed)
    method = compression(placed.policy.outer_compression)
    return method.sent_bytes(DTYPE_BYTES[placed.recipe.dtypes.grad_reduce_dtype])


def scatter_messages(
    placed: PlacedJob, group: Group, size_bytes: Array, usual: str = "reduce_scatter"
) -> list[Message]:
    """Return what leaves every rank with its part of the sum.

    Quantised pieces cannot be added on their way round a ring. They go to their owner, inside the
    node first, where they are summed, so that a g-th of them crosses the network (ZeRO++).
    """
    if compression(placed.policy.gradient_compression).exchange != "pieces":
        return [Message(f"grad_{usual}", usual, group, size_bytes)]
    inside, across = split_group(group, group.members[0])
    across = across._replace(dim=group.dim)
    return [
        Message("grad_all_to_all.inside", "all_to_all", inside, size_bytes),
        Message("grad_all_to_all.across", "all_to_all", across, np.asarray(size_bytes / inside.ranks)),
    ]


def all_reduce_messages(step: Step, params: Array, group: Group, part: DataPart) -> list[Message]:
    """Return what an all-reduce of the gradients that a rank holds becomes."""
    placed = step.placed
    size = np.asarray(params * gradient_bytes(placed))
    exchange = compression(placed.policy.gradient_compression).exchange
    if exchange == "pieces":
        return [*scatter_messages(placed, group, size), Message("grad_all_gather", "all_gather", group, size)]
    if exchange == "gather":
        # Everybody's largest elements, positions and values: from about 1/density ranks on more than an all-reduce.
        gathered = np.asarray(8.0 * placed.policy.compression_density * params * group.ranks)
        sent = Message("grad_all_gather", "all_gather", group, gathered)
        if not compression(placed.policy.gradient_compression).counts:
            return [sent]
        return [Message("grad_counts_all_gather", "all_gather", group, np.asarray(8.0 * group.ranks)), sent]
    if exchange == "kept":
        size = np.asarray(size * placed.policy.compression_density)
    if exchange == "factors":
        # Vectors are left as they are; the factors take the place of matrices.
        size = np.asarray(4.0 * _low_rank(step, part)[0])
    return [Message("grad_all_reduce", "all_reduce", group, size)]


def _low_rank(step: Step, part: DataPart) -> tuple[Array, Array]:
    """Elements that PowerSGD sends of a stage's dense or expert parameters, and matrices it factors; worst stage. [-]."""
    factored = [(_factors(block.parts, step.placed, part), block.num_on_stage) for block in step.blocks]
    elements, matrices = (
        highest_on_stages(broadcast_sum([each[which][..., None] * count for each, count in factored]))
        for which in (0, 1)
    )
    return elements, matrices


def _factors(blocks: tuple[ParamBlock, ...], placed: PlacedJob, part: DataPart) -> tuple[Array, Array]:
    """Elements sent for one layer, and its matrices; one side of each matrix is the hidden size."""
    layout, hidden, experts = placed.layout, placed.hidden, placed.model.num_experts
    elements: Array = np.zeros_like(layout.tp * layout.ep)
    matrices: Array = np.zeros_like(layout.tp * layout.ep)
    for block in blocks:
        if (block.sharding == "expert") != (part == "expert"):
            continue
        number: Array = np.ones_like(layout.tp)
        count = np.asarray(block.count / (layout.tp if block.sharding == "tp" else number))
        if part == "expert":
            number, count = experts / layout.ep, block.count / experts / layout.etp
        is_matrix = 1.0 * (count > 64.0 * hidden)
        # Two factors r (m + n), never more than the matrix (PowerSGD, arXiv:1905.13727, algorithm 1).
        low = np.minimum(placed.policy.compression_rank * (hidden + count / hidden), count)
        elements = elements + number * np.where(is_matrix > 0, low, count)
        matrices = matrices + number * is_matrix
    return np.asarray(elements), np.asarray(matrices)


def kernel_lines(
    step: Step,
    name: str,
    params: Array,
    ranks: Array,
    part: DataPart,
    *,
    share: Array,
    count: Array,
    called: str = "",
) -> list[TimeLine]:
    """Return the kernels that compress and restore the gradients that a rank holds, by their memory traffic."""
    placed = step.placed
    method = compression(called or placed.policy.gradient_compression)
    share = np.asarray(share * (ranks > 1))
    traffic = compression_traffic(
        method.name,
        params,
        element_bytes=DTYPE_BYTES[placed.recipe.dtypes.grad_reduce_dtype],
        density=placed.policy.compression_density,
        num_ranks=ranks,
    )
    moved = traffic.then("traffic_bytes", "share * traffic_bytes", share=share)
    if not any_nonzero(moved.value):
        return []
    kernels = share
    if method.kernels_per_matrix:
        kernels = share * _low_rank(step, part)[1] * method.kernels_per_matrix
    return [
        time_line(
            f"{name}.compress",
            axis="dp",
            category="hbm",
            phase="grad_sync",
            count=count,
            made=placed.memory_bound(moved, kernels),
            bytes_each=moved.value,
            source=method.source,
        )
    ]


def memory_lines(step: Step) -> list[MemoryLine]:
    """Return the residual that error feedback adds to the next gradient."""
    placed = step.placed
    method = compression(placed.policy.gradient_compression)
    if not method.residual:
        return []
    return [
        memory_line(
            "state.gradients.residual",
            part="gradients",
            axis="dp",
            formula="bytes_per_param * params",
            terms={
                "bytes_per_param": DTYPE_BYTES[placed.recipe.dtypes.grad_reduce_dtype],
                "params": step.trained.dense + step.trained.expert,
            },
            source=method.source,
        )
    ]
