"""Data parallelism: every replica computes its share of the batch; gradients are summed.

Sends: an all-reduce of gradients (DDP), or reduce-scatter and all-gather (ZeRO-1/2), once a step;
or, with parameters sharded too (ZeRO-3, FSDP), a gather of every layer in each pass of each
micro-batch and a reduce-scatter of its gradient. Dense parameters reduce over dp x cp, experts
over their own group. Hides: behind the last micro-batch (Megatron) or behind every layer (FSDP).
Stores: parameters, gradients and optimizer states, in `axes.states`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from costmodel.bill.lines import TimeLine, time_line
from costmodel.bill.quantity import Quantity, quantity
from costmodel.describe.recipe import DTYPE_BYTES
from costmodel.physics.network.mesh import Group, split_group
from costmodel.step import compression
from costmodel.step.anatomy.params import layer_param_blocks
from costmodel.step.pipeline import StageTimes
from costmodel.step.placed_job import Block, PlacedJob, communication_line, exposed_sum
from costmodel.step.states import (
    Params,
    block_params,
    gathered_bytes,
    local_params,
    shard_ranks,
    stage_params,
    stays_gathered,
)

Array = NDArray[np.float64]

# Megatron-Core's default bucket: max(40 million, 1 million x dp) gradients; the last one is exposed.
_BUCKET_ELEMENTS = 40e6
# Parameters that the vectorised Adam of a two-socket host steps: 10 billion in 2.57 s
# (Ren et al., "ZeRO-Offload," arXiv:2101.06840, table 4). The GPUs of the host share it.
_HOST_ADAM_PARAMS_PER_S = 10e9 / 2.57


def time_lines(
    placed: PlacedJob,
    blocks: list[Block],
    block_counts: list[Array],
    block_lines: list[list[TimeLine]],
    stage: StageTimes,
) -> list[TimeLine]:
    """Return gradient reduction, parameter gathers and the optimizer step.

    `block_counts` are the blocks that the critical stage runs in a step, `block_lines` the lines
    of the other axes for one block: their exposed time is the window that FSDP hides in.

    References
    ----------
    .. [1] S. Rajbhandari et al., "ZeRO," arXiv:1910.02054, sections 5 and 7.
    .. [2] Y. Zhao et al., "PyTorch FSDP," arXiv:2304.11277, section 3.3 (prefetch, resharding).
    """
    lines: list[TimeLine] = []
    params = stage_params(placed, blocks)
    zero = placed.layout.zero_stage
    groups = {expert: _groups(placed, expert) for expert in (False, placed.model.num_experts > 0)}
    if np.any(zero < 3):
        lines += _replicated_lines(placed, params, stage, groups)
    if np.any(zero == 3):
        for block, count, others in zip(blocks, block_counts, block_lines, strict=True):
            lines += _sharded_lines(placed, block, count, others, groups)
    lines += _optimizer_lines(placed, params)
    lines += _outer_lines(placed, params)
    return lines


def _groups(placed: PlacedJob, expert: bool) -> tuple[Group, Group]:
    """Shard group and replica group of dense or expert parameters."""
    whole = placed.mesh.edp if expert else placed.mesh.grad
    ranks = shard_ranks(placed)[1 if expert else 0]
    return split_group(whole, ranks)


def _replicated_lines(
    placed: PlacedJob, params: Params, stage: StageTimes, groups: Mapping[bool, tuple[Group, Group]]
) -> list[TimeLine]:
    """DDP and ZeRO-1/2: one reduction and, where the optimizer is sharded, one gather a step.

    Under ZeRO-2 a framework that keeps no full gradient at all reduces after every micro-batch.
    """
    recipe, layout = placed.recipe, placed.layout
    sharded = np.asarray((layout.zero_stage >= 1) & (layout.zero_stage < 3), dtype=np.float64)
    plain = np.asarray(layout.zero_stage == 0, dtype=np.float64)
    every = (layout.zero_stage == 2) & recipe.reduce_each_micro_batch
    repeats = np.where(every, placed.micro_batches, 1.0)
    whole_sum = plain + sharded * recipe.zero_all_reduce
    scattered = sharded * (not recipe.zero_all_reduce)
    overlaps = recipe.dp_overlap != "none"
    grad_window = stage.backward_s if overlaps else np.asarray(0.0)
    param_window = stage.forward_s if overlaps else np.asarray(0.0)
    lines = []
    for part, expert in (("dense", False), ("expert", True)):
        held = (params.expert if expert else params.dense).max(axis=-1)
        if not np.any(held):
            continue
        shard, replica = groups[expert]
        whole = placed.mesh.edp if expert else placed.mesh.grad
        grad = held * compression.gradient_bytes(recipe)
        bucket_elements = recipe.bucket_elements or _BUCKET_ELEMENTS
        bucket = bucket_elements / np.maximum(held, bucket_elements)
        least = np.asarray(bucket if overlaps else 0.0)
        several = np.asarray(replica.ranks > 1, dtype=np.float64)
        one = np.asarray(1.0)
        buckets = 1.0 / bucket if recipe.bucket_elements else one
        owners, reduce, gather = buckets, "reduce_scatter", "all_gather"
        if recipe.zero_by_tensor:
            # Owners hand out their parameters after the step, not behind the next forward pass.
            param_window = np.asarray(0.0)
            owners, reduce, gather = np.minimum(shard.ranks, _tensors(placed)), "reduce", "broadcast"
        made: list[TimeLine] = []

        def add(
            label: str,
            phase: str,
            primitive: str,
            group: Group,
            size: Array,
            window: Array,
            share: Array,
            count: Array,
            part: str = part,
            least: Array = least,
            made: list[TimeLine] = made,
        ) -> Array:
            if not np.any(share):
                return np.asarray(0.0)
            made.append(
                communication_line(
                    placed,
                    f"dp.{part}.{label}",
                    axis="dp",
                    phase=phase,
                    primitive=primitive,
                    size_bytes=size / count,
                    group=group,
                    window_s=window / count,
                    least_share=least,
                    share=share,
                    count=count,
                )
            )
            return made[-1].seconds

        often = np.asarray(1.0 / recipe.sync_every)
        rare_window = grad_window if recipe.sync_every == 1 else np.asarray(0.0)
        # All messages use the same links behind the same pass: each has what is left of it.
        for message in compression.all_reduce_messages(placed, held, whole, expert):
            busy = add(
                message.label,
                "grad_sync",
                message.primitive,
                message.group,
                message.size_bytes,
                rare_window,
                whole_sum,
                buckets,
            )
            rare_window, grad_window = (
                np.maximum(rare_window - busy, 0.0),
                np.maximum(grad_window - busy, 0.0),
            )
        made[:] = [replace(line, count=line.count * often) for line in made]
        for message in compression.scatter_messages(recipe, shard, grad, reduce):
            busy = add(
                message.label,
                "grad_sync",
                message.primitive,
                message.group,
                message.size_bytes * repeats,
                grad_window * repeats,
                scattered,
                repeats * owners,
            )
            grad_window = np.maximum(grad_window - busy / repeats, 0.0)
        add(
            "grad_replica_all_reduce",
            "grad_sync",
            "all_reduce",
            replica,
            grad / shard.ranks,
            grad_window if recipe.sync_every == 1 else np.asarray(0.0),
            scattered * several,
            one,
        )
        made[:] = [replace(line, count=line.count * often) if _over_replicas(line) else line for line in made]
        replicas = [line for line in made if _over_replicas(line)]
        grad_window = np.maximum(grad_window - _busy(replicas, "grad_sync"), 0.0)
        add(
            f"param_{gather}",
            "param_sync",
            gather,
            shard,
            held * gathered_bytes(placed),
            param_window,
            sharded,
            owners,
        )
        param_window = np.maximum(param_window - _busy(made, "param_sync"), 0.0)
        lines += made
        among, times = whole.ranks, np.asarray(often * whole_sum + repeats * scattered)
        lines += compression.kernel_lines(
            placed, f"dp.{part}", held, among, expert, share=plain + sharded, count=times
        )
    return lines


def _over_replicas(line: TimeLine) -> bool:
    """Say whether a line is the sum over replicas of a shard group."""
    return line.name.endswith("grad_replica_all_reduce")


def _busy(lines: list[TimeLine], phase: str) -> Array:
    """Add up the time that the lines of a phase keep the links busy. [s]"""
    return np.asarray(sum((line.seconds for line in lines if line.phase == phase), start=np.asarray(0.0)))


def _tensors(placed: PlacedJob) -> Array:
    """Weights of the layers that a stage holds, counted as tensors. [-]"""
    model = placed.model
    kinds = placed.kinds
    held = [len(layer_param_blocks(model, kinds[kind])) for kind in model.kind_of_layer]
    return np.asarray(float(sum(held)) / placed.layout.pp)


def _sharded_lines(
    placed: PlacedJob,
    block: Block,
    count: Array,
    others: list[TimeLine],
    groups: Mapping[bool, tuple[Group, Group]],
) -> list[TimeLine]:
    """ZeRO-3 / FSDP: gather the block before each pass, reduce-scatter its gradient after the last."""
    recipe, layout = placed.recipe, placed.layout
    on = np.asarray(layout.zero_stage == 3, dtype=np.float64)
    overlaps = recipe.dp_overlap == "every-layer"
    zero = np.asarray(0.0)
    forward_s = exposed_sum(line for line in others if line.phase == "forward") if overlaps else zero
    backward_s = exposed_sum(line for line in others if line.phase != "forward") if overlaps else zero
    held = block_params(placed, block)
    stays = stays_gathered(placed)
    steps = np.where(stays, 1.0, np.maximum(placed.micro_batches, 1.0))
    count = np.asarray(count * steps / np.maximum(placed.micro_batches, 1.0))
    regather = np.where(stays, 0.0, on) if recipe.fsdp_reshard_after_forward else zero
    lines: list[TimeLine] = []
    for part, expert in (("dense", False), ("expert", True)):
        size = held.expert if expert else held.dense
        if not np.any(size):
            continue
        shard, replica = groups[expert]
        gathered, reduced = size * gathered_bytes(placed), size * compression.gradient_bytes(recipe)
        name = f"dp.{block.label}{block.role}.{part}"

        def line(
            label: str,
            phase: str,
            primitive: str,
            group: Group,
            size: Array,
            window: Array,
            share: Array,
            times: Array,
            name: str = name,
        ) -> TimeLine:
            return communication_line(
                placed,
                f"{name}.{label}",
                axis="dp",
                phase=phase,
                primitive=primitive,
                size_bytes=size,
                group=group,
                window_s=window,
                share=share,
                count=times,
            )

        # All collectives of a pass share the links, so each hides in what those before it leave.
        ahead = line(
            "param_all_gather.forward", "param_sync", "all_gather", shard, gathered, forward_s, on, count
        )
        behind = backward_s if recipe.fsdp_backward_prefetch else zero
        again = line(
            "param_all_gather.backward", "param_sync", "all_gather", shard, gathered, behind, regather, count
        )
        if recipe.fsdp_backward_prefetch:
            backward_s = np.maximum(backward_s - again.each_s, 0.0)
        forward_s = np.maximum(forward_s - ahead.each_s, 0.0)
        lines += [ahead, again]
        back_s = back_exposed_s = zero
        for sent in compression.scatter_messages(recipe, shard, np.asarray(reduced)):
            back = line(
                sent.label, "grad_sync", sent.primitive, sent.group, sent.size_bytes, backward_s, on, count
            )
            backward_s = np.maximum(backward_s - back.each_s, 0.0)
            back_s, back_exposed_s = back_s + back.each_s, back_exposed_s + back.exposed_each_s
            lines.append(back)
        lines += compression.kernel_lines(placed, name, size, shard.ranks, expert, share=on, count=count)
        several = shard.ranks > 1
        lines += _buffer_lines(placed, name, size, on * several, regather * several, count)
        if np.any(replica.ranks > 1):
            once = np.asarray(count / steps / recipe.sync_every)
            lines.append(
                line(
                    "grad_replica_all_reduce",
                    "grad_sync",
                    "all_reduce",
                    replica,
                    np.asarray(reduced / shard.ranks),
                    zero,
                    on * (replica.ranks > 1),
                    once,
                )
            )
        if overlaps and block.role == "layer":
            # Nothing runs yet before the first gather, and nothing is left after the last reduction.
            present = np.asarray(np.minimum(count, steps))
            lines.append(
                time_line(
                    f"{name}.first_and_last",
                    axis="dp",
                    toll="communication",
                    phase="param_sync",
                    count=present,
                    formula="gather_s - gather_exposed_s + reduce_s - reduce_exposed_s",
                    terms={
                        "gather_s": ahead.each_s,
                        "gather_exposed_s": ahead.exposed_each_s,
                        "reduce_s": back_s,
                        "reduce_exposed_s": back_exposed_s,
                    },
                    source="FSDP has no compute to hide the first gather and the last reduction behind",
                )
            )
    return lines


def _buffer_lines(
    placed: PlacedJob, name: str, params: Array, on: Array, regather: Array, count: Array
) -> list[TimeLine]:
    """Return the copies that a framework makes around the collectives of sharded parameters.

    Both run on the stream of the layers. FSDP2 copies the gathered buffer into every parameter,
    and every gradient into the buffer to be reduced. FSDP1 gathers into one flat parameter, but
    concatenates the gradients of its pieces, casts them and scales them before the reduction.

    References
    ----------
    .. [1] pytorch/pytorch, torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py
       (foreach_all_gather_copy_out, foreach_reduce).
    .. [2] pytorch/pytorch, torch/distributed/fsdp/_runtime_utils.py (_post_backward_hook).
    """
    recipe = placed.recipe
    kind = recipe.fsdp_buffers
    if kind == "none":
        return []
    gathered, reduced = gathered_bytes(placed), DTYPE_BYTES[recipe.grad_reduce_dtype]
    cast = 0.0 if reduced == gathered else gathered + reduced
    copied = {
        "flat": (0.0, 2.0 * gathered + cast + 2.0 * reduced),
        "per-parameter": (2.0 * gathered, gathered + reduced),
    }
    after_gather, before_reduce = copied[kind]
    lines = []
    for label, phase, width, times in (
        ("gather_copy", "param_sync", after_gather, on + regather),
        ("reduce_copy", "grad_sync", before_reduce, on),
    ):
        if not width:
            continue
        moved = quantity(
            "kernels * bytes_per_param * params", kernels=times, bytes_per_param=width, params=params
        )
        lines.append(
            time_line(
                f"{name}.{label}",
                axis="dp",
                toll="hbm",
                phase=phase,
                count=count,
                made=placed.memory_bound(moved, kernels=times),
                bytes_each=moved.value,
                source="PyTorch FSDP: copies between parameters and communication buffers",
            )
        )
    return lines


def _outer_lines(placed: PlacedJob, params: Params) -> list[TimeLine]:
    """Return the outer optimizer of rarely averaged replicas: three copies of the parameters read, two written."""
    recipe = placed.recipe
    if recipe.sync_every == 1:
        return []
    copies = 5.0 if recipe.outer_momentum else 3.0
    moved = quantity("4 * copies * params", copies=copies, params=local_params(placed, params))
    return [
        time_line(
            "optimizer.outer",
            axis="optimizer",
            toll="state",
            phase="optimizer",
            count=1.0 / recipe.sync_every,
            made=placed.memory_bound(moved),
            bytes_each=moved.value,
            source="DiLoCo, arXiv:2311.08105, algorithm 1: Nesterov momentum on the mean change of parameters",
        )
    ]


def _optimizer_lines(placed: PlacedJob, params: Params) -> list[TimeLine]:
    """Return Adam, priced by the bytes it reads and writes, and the gradient norm before it."""
    recipe = placed.recipe
    local = local_params(placed, params)
    states = recipe.master_weights_bytes + recipe.moments_bytes
    # Read gradient and states, write states and the parameter.
    moved = quantity(
        "(grad_bytes + 2 * state_bytes + weight_bytes) * params",
        grad_bytes=recipe.grad_bytes(),
        state_bytes=states,
        weight_bytes=recipe.param_bytes(),
        params=local,
    )
    # The norm reads every gradient once; clipping and zeroing write it.
    full = np.where(placed.layout.zero_stage >= 1, local, (params.dense + params.expert).max(axis=-1))
    norm = quantity("3 * grad_bytes * params", grad_bytes=recipe.grad_bytes(), params=full)
    return [
        time_line(
            "optimizer.adam",
            axis="optimizer",
            toll="state",
            phase="optimizer",
            count=1.0,
            made=_host_adam(placed, local) if recipe.offload_optimizer else placed.memory_bound(moved),
            bytes_each=moved.value,
            source="Adam: reads gradient, main weight and two moments, writes the latter three and the weight",
        ),
        time_line(
            "optimizer.grad_norm",
            axis="optimizer",
            toll="state",
            phase="optimizer",
            count=1.0,
            made=placed.memory_bound(norm),
            bytes_each=norm.value,
            source="gradient norm, clipping and zeroing",
        ),
    ]


def _host_adam(placed: PlacedJob, params: Array) -> Quantity:
    """Time of Adam on the host, whose processors and NVMe the GPUs of a node share. [s]

    Gradients travel behind the backward pass; the new parameters come back after the step. From
    NVMe, states are read and written beside the steps of the host: the slower of both counts.
    """
    recipe = placed.recipe
    nvme = recipe.nvme_bytes_per_s
    stream = "2 * state_bytes / nvme_bytes_per_s" if nvme else "0"
    return quantity(
        f"each_s = max(1 / host_params_per_s, {stream}); "
        "params * (gpus_per_host * each_s + weight_bytes / link_bytes_per_s)",
        params=params,
        gpus_per_host=np.minimum(placed.layout.gpus, float(placed.cluster.gpus_per_node)),
        host_params_per_s=_HOST_ADAM_PARAMS_PER_S,
        link_bytes_per_s=placed.accelerator.host_link_bytes_per_s,
        weight_bytes=recipe.param_bytes(),
        **(
            {"state_bytes": recipe.master_weights_bytes + recipe.moments_bytes, "nvme_bytes_per_s": nvme}
            if nvme
            else {}
        ),
    )
