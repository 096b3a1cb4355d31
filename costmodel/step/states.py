"""What data parallelism stores: parameters, gradients and optimizer states, each at its dtype and sharding.

The other half of the axis (`axes.data` is what it sends): which rank holds which parameters, what
of them is sharded over how many ranks, and the buffers that gathers, reductions and the optimizer
step need for a moment.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.bill.lines import (
    Bill,
    MemoryLine,
    MemoryPart,
    anywhere,
    broadcast_sum,
    host_line,
    memory_line,
    settled,
)
from costmodel.describe.precision import quantised_weight_bytes
from costmodel.describe.switch_table import DTYPE_BYTES
from costmodel.physics.pipeline import schedules
from costmodel.step.anatomy.params import (
    Params,
    layer_param_blocks,
)
from costmodel.step.critical_stage import Step
from costmodel.step.optimizer import stepped_alike
from costmodel.step.placed_job import DataPart, PlacedJob

Array = NDArray[np.float64]


_OFFLOADED = (
    "ZeRO-Offload, arXiv:2101.06840, section 4.1; deepspeed/runtime/zero/stage_1_and_2.py "
    "estimate_zero2_model_states_mem_needs: 16 bytes a parameter, gradients in fp32 among them"
)
FROZEN_BYTES = 2.0
"""Bytes of a frozen parameter that is not quantised, and of a quantised one as it is multiplied."""


def shards_gradients(placed: PlacedJob) -> NDArray[np.bool_]:
    """Whether a rank keeps its share of the gradients alone: nothing whole is added up over micro-batches.

    ZeRO-2 saves this memory with one micro-batch, or where each of several is reduced by itself, which
    costs a reduction each; one reduction for all of them needs whole gradients until then.

    References
    ----------
    .. [1] S. Rajbhandari et al., "ZeRO," arXiv:1910.02054, section 5.2: gradients are reduced as they
       become available in the backward pass, and only the owner keeps them.
    """
    zero = placed.layout.zero_stage
    nothing_to_add = (placed.micro_batches <= 1) | placed.recipe.overlap.reduce_each_micro_batch
    return np.asarray((zero >= 3) | ((zero == 2) & nothing_to_add))


def whole_gradients(placed: PlacedJob) -> Array:
    """Share of a rank's gradients that is whole at its peak, the rest being sharded. [-]

    All of them, none, or those of one chunk: an interleaved pipeline runs as many micro-batches as it has
    stages through a chunk, one after the other, and where there are no more the chunk is done with.
    """
    layout = placed.layout
    interleaved = settled(layout.schedule == float(schedules.schedule_code("interleaved"))) > 0
    by_chunk = (
        placed.recipe.overlap.reduce_each_chunk
        & (layout.zero_stage == 2)
        & interleaved
        & (placed.micro_batches <= layout.pp)
    )
    return np.where(shards_gradients(placed), 0.0, np.where(by_chunk, 1.0 / layout.vp, 1.0))


def stays_gathered(placed: PlacedJob) -> NDArray[np.bool_]:
    """Whether ZeRO-3 gathers parameters once a step and keeps them for all micro-batches."""
    return np.asarray(placed.recipe.overlap.fsdp_pp_keeps_gathered & (placed.layout.pp > 1))


def param_bytes(placed: PlacedJob) -> float:
    """Bytes a parameter of the resident weights: quantised where they are primary."""
    recipe = placed.recipe
    primary = (
        quantised_weight_bytes(placed.precision) if recipe.dtypes.quantised_weights == "primary" else 0.0
    )
    return primary or recipe.dtypes.param_bytes()


def gathered_bytes(placed: PlacedJob) -> float:
    """Bytes a parameter as it is gathered over data parallelism: quantised, in one orientation, where primary."""
    precision, recipe = placed.precision, placed.recipe
    primary = (
        precision.input_bytes
        if recipe.dtypes.quantised_weights == "primary" and precision.cast_bytes
        else 0.0
    )
    return primary or DTYPE_BYTES[recipe.dtypes.gather_dtype]


def _cached_bytes(placed: PlacedJob) -> float:
    """Bytes a parameter of quantised copies beside it."""
    cached = placed.recipe.dtypes.quantised_weights == "cached"
    return quantised_weight_bytes(placed.precision) if cached else 0.0


def memory_lines(step: Step) -> list[MemoryLine]:
    """Return parameters, gradients, optimizer states and gathered layers per stage (last dimension).

    References
    ----------
    .. [1] S. Rajbhandari et al., "ZeRO," arXiv:1910.02054, section 3.1 and figure 1.
    """
    placed, recipe = step.placed, step.placed.recipe
    params = step.trained
    shards, split = placed.shards_parameters[..., None], placed.shards_optimizer[..., None]
    copies = settled(schedules.fact("weight_copies", placed.layout.schedule))[..., None]
    dense_ranks, expert_ranks = (ranks[..., None] for ranks in placed.shard_ranks)
    lines = _frozen_lines(step, shards, copies)
    # The weights are sharded from ZeRO-3 on, gradients as soon as no rank adds up whole ones.
    states: tuple[tuple[MemoryPart, str, float, NDArray[Any], Array], ...] = (
        ("parameters", "", param_bytes(placed), shards, copies),
        ("parameters", ".quantised", _cached_bytes(placed), shards, copies),
        ("gradients", "", recipe.dtypes.grad_bytes(), 1.0 - whole_gradients(placed)[..., None], copies),
        ("gradients", ".autograd", recipe.dtypes.autograd_grad_bytes, np.asarray(False), copies),
        ("optimizer", ".main_weights", recipe.dtypes.master_weights_bytes, split, np.asarray(1.0)),
    )
    parts: tuple[tuple[DataPart, Array, Array], ...] = (
        ("dense", params.dense, dense_ranks),
        ("expert", params.expert, expert_ranks),
    )
    for part, held, ranks in parts:
        if not anywhere(held):
            continue
        for state_part, name, width, is_sharded, factor in states:
            if not width:
                continue
            on_gpu = _on_gpu(placed, state_part)
            # Shares that are sharded and whole, as one number of ranks that would hold as much each.
            share = np.asarray(is_sharded, dtype=np.float64)
            pieces = 1.0 / (share / ranks + 1.0 - share) if anywhere(share) else np.asarray(1.0)
            lines.append(
                memory_line(
                    f"state.{part}.{state_part}{name}",
                    part=state_part,
                    axis="dp",
                    category="state",
                    formula="on_gpu * copies * bytes_per_param * params / shards",
                    terms={
                        "on_gpu": np.asarray(on_gpu),
                        "copies": factor,
                        "bytes_per_param": np.asarray(width),
                        "params": held,
                        "shards": pieces,
                    },
                    source="ZeRO, arXiv:1910.02054, section 3.1, at the recipe's dtypes",
                )
            )
        lines += _optimizer_lines(step, part, ranks)
    if recipe.host.offload_optimizer or placed.optimizer.paged:
        lines += _host_lines(step)
    if recipe.host.offload_parameters and anywhere(shards):
        lines.append(_host_parameters(step))
    if placed.policy.sync_every > 1:
        lines.append(_outer_line(placed, params))
    if anywhere(shards):
        lines.append(_gathered_line(step, np.asarray(shards, dtype=np.float64)))
    return lines


def _optimizer_lines(step: Step, part: DataPart, ranks: Array) -> list[MemoryLine]:
    """Return what the job's optimizer keeps of the dense or the expert parameters, besides main weights."""
    placed, chosen = step.placed, step.placed.optimizer
    shards = np.where(placed.shards_optimizer[..., None], ranks, 1.0)
    away = chosen.paged or placed.recipe.host.offload_optimizer
    lines = []
    for stepped in stepped_alike(step):
        held = stepped.params.dense if part == "dense" else stepped.params.expert
        width = stepped.state_bytes(placed, part)
        if not anywhere(held) or not anywhere(width.value):
            continue
        lines.append(
            memory_line(
                f"state.{part}.optimizer.{stepped.update.holds}",
                part="optimizer",
                axis="dp",
                category="state",
                made=width.then(
                    "bytes_per_param",
                    "on_gpu * bytes_per_param * params / shards",
                    on_gpu=0.0 if away else 1.0,
                    params=held,
                    shards=shards,
                ),
                source=f"{placed.optimizer.source}; sharded as in ZeRO, arXiv:1910.02054, section 3.1",
            )
        )
    return lines


def _frozen_lines(step: Step, is_sharded: NDArray[Any], copies: Array) -> list[MemoryLine]:
    """Return what is held without gradients: layers in the dtype of the base, all else in 16 bits."""
    placed = step.placed
    if placed.tuning.whole:
        return []
    low = step.quantised
    rest = Params(
        np.asarray(step.params.dense - step.trained.dense - low.dense),
        np.asarray(step.params.expert - step.trained.expert - low.expert),
    )
    lines = []
    for part, ranks in zip(("dense", "expert"), placed.shard_ranks, strict=True):
        share = np.asarray(is_sharded, dtype=np.float64)
        shards = 1.0 / (share / ranks[..., None] + 1.0 - share)
        for name, held, width in (("base", low, placed.tuning.base_bytes), ("frozen", rest, FROZEN_BYTES)):
            params = held.expert if part == "expert" else held.dense
            if anywhere(params):
                lines.append(
                    memory_line(
                        f"state.{part}.parameters.{name}",
                        part="parameters",
                        axis="dp",
                        category="state",
                        formula="copies * bytes_per_param * params / shards",
                        terms={
                            "copies": copies,
                            "bytes_per_param": np.asarray(width),
                            "params": params,
                            "shards": shards,
                        },
                        source="no gradients and no optimizer states: LoRA, arXiv:2106.09685, section 4.2; QLoRA, "
                        "arXiv:2305.14314, section 3",
                    )
                )
    return [*lines, *_product_copy_lines(step)]


def _product_copy_lines(step: Step) -> list[MemoryLine]:
    """Return the largest weight in 16 bits, made for one product at a time from a quantised base."""
    placed = step.placed
    if not placed.tuning.computes_in:
        return []
    largest: Array = np.asarray(0.0)
    for block in step.blocks:
        for item in block.by_operator.values():
            op = item.operator
            if op.adapter is not None and op.adapter.does == "dequantise":
                largest = np.maximum(largest, op.forward_bytes / (FROZEN_BYTES + placed.tuning.base_bytes))
    return [
        memory_line(
            "buffer.dequantised_weight",
            part="buffer",
            axis="compute",
            category="state",
            formula="bytes_per_param * params",
            terms={"bytes_per_param": np.asarray(FROZEN_BYTES), "params": np.asarray(largest)[..., None]},
            source="bitsandbytes functional.py, dequantize_4bit: a tensor of the whole weight for each product",
        )
    ]


def _stepped(placed: PlacedJob, params: Params) -> Array:
    """Parameters that a rank's optimizer steps, on each stage (last dimension). [-]"""
    dense_ranks, expert_ranks = (ranks[..., None] for ranks in placed.shard_ranks)
    sharded = placed.shards_optimizer[..., None]
    dense = params.dense / np.where(sharded, dense_ranks, 1.0)
    return np.asarray(dense + params.expert / np.where(sharded, expert_ranks, 1.0))


def _host_lines(step: Step) -> list[MemoryLine]:
    """Return what the optimizer of all GPUs of a host keeps in its memory, unless its states lie on NVMe.

    One that steps there keeps main weights and gradients too, one that is paged its own states alone.
    """
    placed, params = step.placed, step.trained
    host, offloaded = placed.recipe.host, placed.recipe.host.offload_optimizer
    kept: dict[str, ArrayLike] = {}
    if offloaded and not host.nvme_bytes_per_s:
        kept["main_weights"] = placed.recipe.dtypes.master_weights_bytes
    if not (offloaded and host.nvme_bytes_per_s):
        kept |= {one.update.holds: one.state_bytes(placed, "dense").value for one in stepped_alike(step)}
    if offloaded:
        kept["gradients"] = DTYPE_BYTES["fp32"]
    return [
        host_line(
            f"host.optimizer.{name}",
            part="gradients" if name == "gradients" else "optimizer",
            axis="dp",
            category="state",
            formula="gpus_per_host * bytes_per_param * params",
            terms={
                "gpus_per_host": placed.gpus_per_host[..., None],
                "bytes_per_param": width,
                "params": _stepped(placed, params),
            },
            source=_OFFLOADED if offloaded else placed.optimizer.source,
        )
        for name, width in kept.items()
        if anywhere(width)
    ]


def _on_gpu(placed: PlacedJob, part: MemoryPart) -> Array:
    """Return 1 where the GPU holds a part of the states itself, 0 where the host does. [-]"""
    host = placed.recipe.host
    away = np.asarray(host.offload_optimizer and part == "optimizer", dtype=np.float64)
    if host.offload_parameters and part == "parameters":
        away = np.asarray(placed.shards_parameters, dtype=np.float64)[..., None]
    return np.asarray(1.0 - away)


def fetched_bytes(step: Step) -> Array:
    """Bytes of its share of the parameters that a rank keeps on the host, on each stage (last dimension). [B]"""
    placed, params = step.placed, step.trained
    on = np.asarray(placed.shards_parameters, dtype=np.float64)[..., None]
    return np.asarray(on * param_bytes(placed) * _stepped(placed, params))


def _host_parameters(step: Step) -> MemoryLine:
    """Return the shares of the parameters that all GPUs of a host keep in its memory."""
    return host_line(
        "host.parameters",
        part="parameters",
        axis="dp",
        category="state",
        formula="gpus_per_host * size_bytes",
        terms={"gpus_per_host": step.placed.gpus_per_host[..., None], "size_bytes": fetched_bytes(step)},
        source="ZeRO-Infinity, arXiv:2104.07857, section 5.1",
    )


def _outer_line(placed: PlacedJob, params: Params) -> MemoryLine:
    """Return the parameters of the last average, and the outer momentum, in fp32 and sharded as the optimizer."""
    width = np.asarray(8.0 if placed.policy.outer_momentum else 4.0)
    return memory_line(
        "state.optimizer.outer",
        part="optimizer",
        axis="dp",
        category="state",
        formula="bytes_per_param * params",
        terms={"bytes_per_param": width, "params": _stepped(placed, params)},
        source="DiLoCo, arXiv:2311.08105, algorithm 1",
    )


def _largest_tensor(placed: PlacedJob) -> Array:
    """Elements of the largest parameter on each stage: a matrix of a layer, or the token table. [-]"""
    model, stages, tp = placed.model, placed.stages, placed.layout.tp[..., None]
    table = (
        float(model.vocab_size * model.hidden_size) / tp * np.maximum(stages.has_embedding, stages.has_head)
    )
    layer = max(
        block.count / (max(model.num_experts, 1) if block.sharding == "expert" else 1.0)
        for kind in placed.kinds
        for block in layer_param_blocks(model, kind)
    )
    return np.asarray(np.maximum(table, layer / tp))


def end_of_step_lines(step: Step, bill: Bill) -> list[MemoryLine]:
    """Return what the end of a step needs: bucket and norm of gradients, and temporaries of Adam.

    Activations are gone by then, so Adam's temporaries only count for what they exceed them by.
    Bucket and norm each take one large block, for which the caching allocator has no free one: they
    add to what is reserved, not to the peak of what is allocated.
    """
    local = _stepped(step.placed, step.trained)
    return [*_bucket_lines(step), *_norm_lines(step, local), *_adam_lines(step, bill, local)]


def _bucket_lines(step: Step) -> list[MemoryLine]:
    """Return the flat copy that gradients are reduced in, and its conversion where the reduction has another dtype."""
    placed, recipe = step.placed, step.placed.recipe
    if not recipe.memory.reduce_bucket_elements:
        return []
    dtypes = recipe.dtypes
    cast = (
        0.0 if dtypes.grad_reduce_dtype == dtypes.grad_accum_dtype else DTYPE_BYTES[dtypes.grad_reduce_dtype]
    )
    return [
        memory_line(
            "reserve.reduce_bucket",
            part="reserve",
            seen="reserved",
            axis="dp",
            category="state",
            formula="several * min(params, bucket_elements) * bytes_per_element",
            terms={
                "several": (placed.mesh.grad.ranks > 1)[..., None] * 1.0,
                "params": step.trained.dense + step.trained.expert,
                "bucket_elements": recipe.memory.reduce_bucket_elements,
                "bytes_per_element": dtypes.grad_bytes() + cast,
            },
            source=f"recipe {recipe.name}: reduce_bucket_elements",
        )
    ]


def _norm_lines(step: Step, local: Array) -> list[MemoryLine]:
    """Return the copy of the largest gradient that its norm is taken of."""
    recipe = step.placed.recipe
    if not recipe.memory.norm_copy_bytes:
        return []
    return [
        memory_line(
            "reserve.gradient_norm",
            part="reserve",
            seen="reserved",
            axis="optimizer",
            category="state",
            formula="bytes_per_element * min(largest, params)",
            terms={
                "bytes_per_element": recipe.memory.norm_copy_bytes,
                "largest": _largest_tensor(step.placed),
                "params": local,
            },
            source=f"recipe {recipe.name}: norm_copy_bytes",
        )
    ]


def _adam_lines(step: Step, bill: Bill, local: Array) -> list[MemoryLine]:
    """Return Adam's temporaries, where they take more than the activations that are gone by then."""
    recipe = step.placed.recipe
    if not recipe.memory.adam_temporary_bytes or not step.placed.optimizer.keeps_moments:
        return []
    activations = broadcast_sum([line.bytes for line in bill.memory_lines if line.category == "activation"])
    return [
        memory_line(
            "state.optimizer.temporaries",
            part="optimizer",
            axis="optimizer",
            category="state",
            formula="max(bytes_per_param * params - activation_bytes, 0)",
            terms={
                "bytes_per_param": recipe.memory.adam_temporary_bytes,
                "params": local,
                "activation_bytes": activations,
            },
            source=f"recipe {recipe.name}: adam_temporary_bytes; activations are gone in the step",
        )
    ]


def as_gathered(placed: PlacedJob, params: Params, trained: Params, quantised: Params) -> Params:
    """Return as many parameters of the width that is gathered as have the bytes of what there is. [-]

    A frozen base is gathered as it lies, in its own dtype.
    """
    if placed.tuning.whole:
        return params
    gather = gathered_bytes(placed)
    frozen, low = FROZEN_BYTES / gather, placed.tuning.base_bytes / gather
    return Params(
        *(
            np.asarray(own + frozen * (held - own - base) + low * base)
            for held, own, base in zip(params, trained, quantised, strict=True)
        )
    )


def _sharded_sizes(step: Step, held: Params, *, trained: bool = False) -> tuple[Array, Array, Array]:
    """Parameters that ranks share: of the largest layer, of what is gathered with the root, and of a stage. [-]"""
    placed, stages = step.placed, step.placed.stages
    dense, expert = (ranks > 1 for ranks in placed.shard_ranks)
    each = {
        id(block): block.trained
        if trained
        else as_gathered(placed, block.params, block.trained, block.quantised)
        for block in step.blocks
    }
    outer = {b.role: (each[id(b)].dense * dense)[..., None] for b in step.blocks if b.role != "layer"}
    root = outer["embedding"] * stages.has_embedding + outer["head"] * stages.has_head
    if "mtp" in outer:
        root = root + outer["mtp"] * stages.mtp
    layers = [each[id(block)] for block in step.blocks if block.role == "layer"]
    sizes = [np.asarray(p.dense * dense + p.expert * expert) for p in layers]
    largest = np.maximum.reduce(np.broadcast_arrays(*sizes))[..., None]
    return (
        largest,
        np.asarray(root),
        np.asarray(held.dense * dense[..., None] + held.expert * expert[..., None]),
    )


def _by_tensor_line(step: Step, on: Array) -> MemoryLine:
    """ZeRO-3 where a compiler shards tensor by tensor: one weight and the next, whole, and one gradient.

    Each weight is gathered before its product and each gradient scattered after the one that made it, in the dtype in
    which both are multiplied. Gate and up projection are two weights, all experts of a rank one.
    """
    placed, stages = step.placed, step.placed.stages
    dense_ranks, expert_ranks = placed.shard_ranks
    dense, expert = dense_ranks > 1, expert_ranks > 1
    layout, gather = placed.layout, gathered_bytes(placed)
    sizes = [
        one.count
        / one.tensors
        / (
            layout.ep * layout.etp
            if one.sharding == "expert"
            else np.where(one.sharding == "tp", layout.tp, 1.0)
        )
        * (expert if one.sharding == "expert" else dense)
        for kind in placed.kinds
        for one in layer_param_blocks(placed.model, kind)
    ]
    largest = np.asarray(np.maximum.reduce(np.broadcast_arrays(*sizes)))[..., None]
    table = float(placed.model.vocab_size * placed.model.hidden_size) / layout.tp * dense
    table = table[..., None] * np.maximum(stages.has_embedding, stages.has_head)
    return memory_line(
        "buffer.dp.gathered_tensors",
        part="buffer",
        axis="dp",
        category="state",
        formula="on * gather_bytes * max((1 + ahead) * matrix_params + matrix_params, 2 * table_params)",
        terms={
            "on": on,
            "gather_bytes": np.asarray(gather),
            "ahead": float(placed.recipe.overlap.fsdp_prefetch),
            "matrix_params": largest,
            "table_params": table,
        },
        source="GSPMD, arXiv:2105.04663, section 3.2; Xu et al., arXiv:2004.13336: a tensor is gathered where it is used",
    )


def _gathered_line(step: Step, on: Array) -> MemoryLine:
    """ZeRO-3: full parameters of the layers being computed and prefetched, and one layer's gradient.

    A group of one has nothing to gather.
    """
    placed, recipe = step.placed, step.placed.recipe
    drops = recipe.overlap.fsdp_reshard_after_forward and not recipe.overlap.fsdp_pp_keeps_gathered
    if recipe.overlap.fsdp_by_tensor and drops:
        return _by_tensor_line(step, on)
    largest, root, everything = _sharded_sizes(
        step, as_gathered(placed, step.params, step.trained, step.quantised)
    )
    own_largest, own_root, own = (
        (largest, root, everything)
        if placed.tuning.whole
        else _sharded_sizes(step, step.trained, trained=True)
    )
    gather, grad = gathered_bytes(placed), DTYPE_BYTES[recipe.dtypes.grad_reduce_dtype]
    stays = stays_gathered(placed)[..., None]
    whole = stays | (not recipe.overlap.fsdp_reshard_after_forward)
    layers = np.where(whole, 1.0, 1.0 + recipe.overlap.fsdp_prefetch)
    # The gradient of one unit is whole twice: as autograd made it, and in the reduction's dtype. Over
    # several micro-batches of a pipeline, all of them add up in the latter.
    grads = np.where(whole, own_largest, np.maximum(own_largest, own_root))
    summed = np.where(stays, own, grads)
    largest = np.where(whole, everything, largest)
    root = np.where(whole, 0.0, root)
    return memory_line(
        "buffer.dp.gathered_layers",
        part="buffer",
        axis="dp",
        category="state",
        formula="on * (gather_bytes * (layers * params + root_params + grad_params)"
        " + grad_bytes * summed_params)",
        terms={
            "on": on,
            "params": largest,
            "layers": np.asarray(layers),
            "gather_bytes": np.asarray(gather),
            "grad_bytes": np.asarray(grad),
            "root_params": root,
            "grad_params": grads,
            "summed_params": summed,
        },
        source="PyTorch FSDP, arXiv:2304.11277, section 3.3",
    )
