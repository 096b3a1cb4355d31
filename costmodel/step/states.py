"""What data parallelism stores: parameters, gradients and optimizer states, each at its dtype and sharding.

The other half of the axis (`step.data` is what it sends): which rank holds which parameters, what
of them is sharded over how many ranks, and the buffers that gathers, reductions and the optimizer
step need for a moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.bill.lines import (
    Array,
    Bill,
    HostLine,
    MemoryLine,
    MemoryPart,
    any_nonzero,
    broadcast_sum,
    memory_line,
    without_constant_axes,
)
from costmodel.describe.precision import quantised_weight_bytes
from costmodel.describe.switch_table import DTYPE_BYTES
from costmodel.physics.pipeline import schedules
from costmodel.step.anatomy.params import Params, layer_param_blocks
from costmodel.step.critical_stage import Step
from costmodel.step.optimizer import update_groups
from costmodel.step.placed_job import DATA_PARTS, Block, DataPart, PlacedJob

_OFFLOADED = (
    "ZeRO-Offload, arXiv:2101.06840, section 4.1; deepspeed/runtime/zero/stage_1_and_2.py "
    "estimate_zero2_model_states_mem_needs: 16 bytes a parameter, gradients in fp32 among them"
)
FROZEN_BYTES = 2.0
"""Bytes of a frozen parameter that is not quantised, and of a quantised one as it is multiplied."""


def whole_gradients(placed: PlacedJob) -> Array:
    """Share of a rank's gradients that is whole at its peak, the rest being sharded. [-]

    None from ZeRO-3 on, nor under ZeRO-2 with one micro-batch or where each of several is reduced by itself, which
    costs a reduction each: one for all of them needs whole gradients until then. Those of one chunk where an
    interleaved pipeline runs no more micro-batches than it has stages, one after the other, and the chunk is done.

    References
    ----------
    .. [1] S. Rajbhandari et al., "ZeRO," arXiv:1910.02054, section 5.2: gradients are reduced as they
       become available in the backward pass, and only the owner keeps them.
    """
    layout, overlap = placed.layout, placed.recipe.overlap
    nothing_to_add = (placed.micro_batches <= 1) | overlap.reduce_each_micro_batch
    sharded = (layout.zero_stage >= 3) | ((layout.zero_stage == 2) & nothing_to_add)
    interleaved = without_constant_axes(layout.schedule == float(schedules.schedule_code("interleaved"))) > 0
    few = (layout.zero_stage == 2) & interleaved & (placed.micro_batches <= layout.pp)
    return np.where(sharded, 0.0, np.where(overlap.reduce_each_chunk & few, 1.0 / layout.vp, 1.0))


def stays_gathered(placed: PlacedJob) -> NDArray[np.bool_]:
    """Whether ZeRO-3 gathers parameters once a step and keeps them for all micro-batches."""
    return np.asarray(placed.recipe.overlap.fsdp_pp_keeps_gathered & (placed.layout.pp > 1))


def param_bytes(placed: PlacedJob) -> float:
    """Bytes a parameter of the resident weights: quantised where they are primary."""
    dtypes = placed.recipe.dtypes
    primary = quantised_weight_bytes(placed.precision) if dtypes.quantised_weights == "primary" else 0.0
    return primary or dtypes.param_bytes()


def gathered_bytes(placed: PlacedJob) -> float:
    """Bytes a parameter as it is gathered over data parallelism: quantised, in one orientation, where primary."""
    dtypes, precision = placed.recipe.dtypes, placed.precision
    if dtypes.quantised_weights == "primary" and precision.cast_bytes and precision.input_bytes:
        return precision.input_bytes
    return DTYPE_BYTES[dtypes.gather_dtype]


_line = partial(memory_line, axis="dp", category="state")


def _pieces(sharded: ArrayLike, ranks: Array) -> Array:
    """Ranks that would hold as much each as one does of which a share is sharded and the rest is whole. [-]"""
    share = np.asarray(sharded, dtype=np.float64)
    return np.asarray(1.0 / (share / ranks + 1.0 - share)) if any_nonzero(share) else np.asarray(1.0)


def memory_lines(step: Step) -> list[MemoryLine]:
    """Return parameters, gradients, optimizer states and gathered layers per stage (last dimension).

    References
    ----------
    .. [1] S. Rajbhandari et al., "ZeRO," arXiv:1910.02054, section 3.1 and figure 1.
    """
    placed, dtypes, host = step.placed, step.placed.recipe.dtypes, step.placed.recipe.host
    shards, split = placed.shards_parameters[..., None], placed.shards_optimizer[..., None]
    copies, one = placed.weight_copies[..., None], np.asarray(1.0)
    cached = quantised_weight_bytes(placed.precision) if dtypes.quantised_weights == "cached" else 0.0
    # What the GPU holds itself, and not the host.
    weights = np.asarray(1.0 - shards) if host.offload_parameters else one
    masters = np.asarray(0.0 if host.offload_optimizer else 1.0)
    # The weights are sharded from ZeRO-3 on, gradients as soon as no rank adds up whole ones.
    states: tuple[tuple[MemoryPart, str, float, ArrayLike, Array, Array], ...] = (
        ("parameters", "", param_bytes(placed), shards, copies, weights),
        ("parameters", ".quantised", cached, shards, copies, weights),
        ("gradients", "", dtypes.grad_bytes(), 1.0 - whole_gradients(placed)[..., None], copies, one),
        ("gradients", ".autograd", dtypes.autograd_grad_bytes, 0.0, copies, one),
        ("optimizer", ".main_weights", dtypes.master_weights_bytes, split, one, masters),
    )
    lines = _frozen_lines(step, shards, copies)
    for part in DATA_PARTS:
        params, ranks = step.trained.of(part), placed.shard_ranks.of(part)[..., None]
        if not any_nonzero(params):
            continue
        lines += [
            _line(
                f"state.{part}.{state_part}{name}",
                part=state_part,
                formula="on_gpu * copies * bytes_per_param * params / shards",
                terms={
                    "on_gpu": on_gpu,
                    "copies": factor,
                    "bytes_per_param": width,
                    "params": params,
                    "shards": _pieces(is_sharded, ranks),
                },
                source="ZeRO, arXiv:1910.02054, section 3.1, at the recipe's dtypes",
            )
            for state_part, name, width, is_sharded, factor, on_gpu in states
            if width
        ]
        lines += _optimizer_lines(step, part, np.where(split, ranks, 1.0))
    if host.offload_optimizer or placed.optimizer.paged:
        lines += _host_lines(step)
    if host.offload_parameters and any_nonzero(shards):
        lines.append(
            _host_line(
                placed,
                "parameters",
                "gpus_per_host * size_bytes",
                {"size_bytes": fetched_bytes(step)},
                "ZeRO-Infinity, arXiv:2104.07857, section 5.1",
            )
        )
    if placed.policy.sync_every > 1:
        # Parameters of the last average and outer momentum, in fp32 and sharded as the optimizer.
        lines.append(
            _line(
                "state.optimizer.outer",
                part="optimizer",
                formula="bytes_per_param * params",
                terms={
                    "bytes_per_param": 8.0 if placed.policy.outer_momentum else 4.0,
                    "params": placed.optimizer_params(step.trained),
                },
                source="DiLoCo, arXiv:2311.08105, algorithm 1",
            )
        )
        if placed.policy.sync_overlap_steps:
            lines.append(_in_flight_line(step))
    if any_nonzero(shards):
        lines.append(_gathered_line(step, np.asarray(1.0 * shards)))
        lines += _secondary_lines(step)
    return lines


def _in_flight_line(step: Step) -> MemoryLine:
    """Return the parts whose average is on its way while the steps beside it write new gradients."""
    placed, policy = step.placed, step.placed.policy
    return _line(
        "state.optimizer.outer_in_flight",
        part="optimizer",
        formula="ceil(overlap_steps * fragments / sync_every) * params / fragments * bytes_per_param",
        terms={
            "overlap_steps": policy.sync_overlap_steps,
            "fragments": policy.sync_fragments,
            "sync_every": policy.sync_every,
            "params": placed.optimizer_params(step.trained),
            "bytes_per_param": DTYPE_BYTES[placed.recipe.dtypes.grad_reduce_dtype],
        },
        source="streaming DiLoCo, arXiv:2501.18512, section 2: a part is merged after the steps that hide it",
    )


def _secondary_lines(step: Step) -> list[MemoryLine]:
    """Return the copy of the parameters that neighbours share, for the gathers of the backward pass."""
    placed, overlap = step.placed, step.placed.recipe.overlap
    if not overlap.hpz_ranks or not overlap.fsdp_reshard_after_forward:
        return []
    gathers_again = placed.shards_parameters & ~stays_gathered(placed)
    return [
        _line(
            f"state.{part}.parameters.secondary",
            part="parameters",
            formula="on * 2 * params / min(hpz_ranks, shards)",
            terms={
                "on": 1.0 * gathers_again[..., None],
                "params": step.params.of(part),
                "hpz_ranks": float(overlap.hpz_ranks),
                "shards": placed.shard_ranks.of(part)[..., None],
            },
            source="ZeRO++ hpZ, arXiv:2306.10209, section 3.2: a secondary partition in 16 bits inside a node",
        )
        for part in DATA_PARTS
        if any_nonzero(step.params.of(part))
    ]


def _optimizer_lines(step: Step, part: DataPart, shards: Array) -> list[MemoryLine]:
    """Return what the job's optimizer keeps of the dense or the expert parameters, besides main weights."""
    placed = step.placed
    away = placed.optimizer.paged or placed.recipe.host.offload_optimizer
    lines = []
    for group in update_groups(step):
        params, width = group.params.of(part), group.state_bytes(placed, part)
        if not any_nonzero(params) or not any_nonzero(width.value):
            continue
        made = width.then(
            "bytes_per_param",
            "on_gpu * bytes_per_param * params / shards",
            on_gpu=0.0 if away else 1.0,
            params=params,
            shards=shards,
        )
        source = f"{placed.optimizer.source}; sharded as in ZeRO, arXiv:1910.02054, section 3.1"
        name = f"state.{part}.optimizer.{group.update.holds}"
        lines.append(_line(name, part="optimizer", made=made, source=source))
    return lines


def _frozen_lines(step: Step, is_sharded: ArrayLike, copies: Array) -> list[MemoryLine]:
    """Return what is held without gradients: layers in the dtype of the base, all else in 16 bits.

    And the largest weight in 16 bits, made for one product at a time from a quantised base.
    """
    placed = step.placed
    if placed.tuning.whole:
        return []
    low, lines = step.quantised, []
    for part in DATA_PARTS:
        rest = np.asarray(step.params.of(part) - step.trained.of(part) - low.of(part))
        shards = _pieces(is_sharded, placed.shard_ranks.of(part)[..., None])
        for name, params, width in (
            ("base", low.of(part), placed.tuning.base_bytes),
            ("frozen", rest, FROZEN_BYTES),
        ):
            if not any_nonzero(params):
                continue
            lines.append(
                _line(
                    f"state.{part}.parameters.{name}",
                    part="parameters",
                    formula="copies * bytes_per_param * params / shards",
                    terms={"copies": copies, "bytes_per_param": width, "params": params, "shards": shards},
                    source="no gradients and no optimizer states: LoRA, arXiv:2106.09685, section 4.2; QLoRA, "
                    "arXiv:2305.14314, section 3",
                )
            )
    if not placed.tuning.computes_in:
        return lines
    largest: Array = np.asarray(0.0)
    for block in step.blocks:
        for item in block.by_operator.values():
            op = item.operator
            if op.adapter is not None and op.adapter.does == "dequantise":
                largest = np.maximum(largest, op.forward_bytes / (FROZEN_BYTES + placed.tuning.base_bytes))
    copy = memory_line(
        "buffer.dequantised_weight",
        part="buffer",
        axis="compute",
        category="state",
        formula="bytes_per_param * params",
        terms={"bytes_per_param": FROZEN_BYTES, "params": np.asarray(largest)[..., None]},
        source="bitsandbytes functional.py, dequantize_4bit: a tensor of the whole weight for each product",
    )
    return [*lines, copy]


def _host_lines(step: Step) -> list[MemoryLine]:
    """Return what the optimizer of all GPUs of a host keeps in its memory, unless its states lie on NVMe.

    One that steps there keeps main weights and gradients too, one that is paged its own states alone.
    """
    placed = step.placed
    host, offloaded = placed.recipe.host, placed.recipe.host.offload_optimizer
    on_nvme = offloaded and host.nvme_bytes_per_s
    kept: dict[str, ArrayLike] = {}
    if offloaded and not on_nvme:
        kept["main_weights"] = placed.recipe.dtypes.master_weights_bytes
    if not on_nvme:
        kept |= {one.update.holds: one.state_bytes(placed, "dense").value for one in update_groups(step)}
    if offloaded:
        kept["gradients"] = DTYPE_BYTES["fp32"]
    return [
        _host_line(
            placed,
            f"optimizer.{name}",
            "gpus_per_host * bytes_per_param * params",
            {"bytes_per_param": width, "params": placed.optimizer_params(step.trained)},
            _OFFLOADED if offloaded else placed.optimizer.source,
        )
        for name, width in kept.items()
        if any_nonzero(width)
    ]


def _host_line(
    placed: PlacedJob, name: str, formula: str, terms: Mapping[str, ArrayLike], source: str
) -> HostLine:
    """Build the line of what the GPUs of a host keep in its memory."""
    part: MemoryPart = "parameters" if name == "parameters" else "optimizer"
    part = "gradients" if name == "optimizer.gradients" else part
    terms = {"gpus_per_host": placed.gpus_per_host[..., None], **terms}
    return HostLine(
        *memory_line(f"host.{name}", part=part, axis="dp", formula=formula, terms=terms, source=source)
    )


def fetched_bytes(step: Step) -> Array:
    """Bytes of its share of the parameters that a rank keeps on the host, on each stage (last dimension). [B]"""
    placed, on = step.placed, 1.0 * step.placed.shards_parameters[..., None]
    return np.asarray(on * param_bytes(placed) * placed.optimizer_params(step.trained))


def _largest_tensor(placed: PlacedJob) -> Array:
    """Elements of the largest parameter on each stage: a matrix of a layer, or the token table. [-]"""
    model, experts = placed.model, max(placed.model.num_experts, 1)
    layer = max(
        block.count / (experts if block.sharding == "expert" else 1.0)
        for kind in placed.kinds
        for block in layer_param_blocks(model, kind)
    )
    return np.asarray(np.maximum(_table(placed), layer / placed.layout.tp[..., None]))


def _table(placed: PlacedJob) -> Array:
    """Elements of the token table on each stage that has one, as looked up or for the logits. [-]"""
    stages, rows = placed.stages, placed.model.vocab_size / placed.layout.tp[..., None]
    return np.asarray(rows * placed.hidden * np.maximum(stages.has_embedding, stages.has_head))


def end_of_step_lines(step: Step, bill: Bill) -> list[MemoryLine]:
    """Return what the end of a step needs: bucket and norm of gradients, and temporaries of Adam.

    Activations are gone by then, so Adam's temporaries only count for what they exceed them by.
    Bucket and norm each take one large block, for which the caching allocator has no free one: they
    add to what is reserved, not to the peak of what is allocated.
    """
    placed, recipe, memory = step.placed, step.placed.recipe, step.placed.recipe.memory
    local, dtypes = placed.optimizer_params(step.trained), recipe.dtypes
    lines = []
    if memory.reduce_bucket_elements:
        # The flat copy that gradients are reduced in, and its conversion where the reduction has another dtype.
        casts = dtypes.grad_reduce_dtype != dtypes.grad_accum_dtype
        lines.append(
            _line(
                "reserve.reduce_bucket",
                part="reserve",
                seen="reserved",
                formula="several * min(params, bucket_elements) * bytes_per_element",
                terms={
                    "several": 1.0 * (placed.mesh.grad.ranks > 1)[..., None],
                    "params": step.trained.dense + step.trained.expert,
                    "bucket_elements": memory.reduce_bucket_elements,
                    "bytes_per_element": dtypes.grad_bytes()
                    + (DTYPE_BYTES[dtypes.grad_reduce_dtype] if casts else 0.0),
                },
                source=f"recipe {recipe.name}: reduce_bucket_elements",
            )
        )
    if memory.norm_copy_bytes:
        # The copy of the largest gradient that its norm is taken of.
        lines.append(
            memory_line(
                "reserve.gradient_norm",
                part="reserve",
                seen="reserved",
                axis="optimizer",
                formula="bytes_per_element * min(largest, params)",
                terms={
                    "bytes_per_element": memory.norm_copy_bytes,
                    "largest": _largest_tensor(placed),
                    "params": local,
                },
                source=f"recipe {recipe.name}: norm_copy_bytes",
            )
        )
    # Of gradients kept in fp16 the step makes an fp32 copy (Megatron-Core docs, dist_optimizer: 20 bytes, or 4 + 16/d).
    copied = 4.0 if dtypes.fp16_gradients and placed.precision.name == "fp16" else 0.0
    if memory.adam_temporary_bytes + copied and placed.optimizer.keeps_moments:
        activations = [line.bytes for line in bill.memory_lines if line.category == "activation"]
        lines.append(
            memory_line(
                "state.optimizer.temporaries",
                part="optimizer",
                axis="optimizer",
                formula="max((bytes_per_param + gradient_copy) * params - activation_bytes, 0)",
                terms={
                    "bytes_per_param": memory.adam_temporary_bytes,
                    "gradient_copy": copied,
                    "params": local,
                    "activation_bytes": broadcast_sum(activations),
                },
                source=f"recipe {recipe.name}: adam_temporary_bytes; activations are gone in the step",
            )
        )
    return lines


def as_gathered(placed: PlacedJob, owner: Block | Step) -> Params:
    """Return as many parameters of the width that is gathered as have the bytes of a block's or a rank's. [-]

    A frozen base is gathered as it lies, in its own dtype.
    """
    if placed.tuning.whole:
        return owner.params
    gather = gathered_bytes(placed)
    frozen, low = FROZEN_BYTES / gather, placed.tuning.base_bytes / gather
    return Params(
        *(
            np.asarray(own + frozen * (params - own - base) + low * base)
            for params, own, base in zip(owner.params, owner.trained, owner.quantised, strict=True)
        )
    )


def _sharded_sizes(step: Step, stage: Params, each: Sequence[Params]) -> tuple[Array, Array, Array]:
    """Parameters that ranks share: of the largest layer, of what is gathered with the root, and of a stage. [-]

    `stage` are those of a stage, `each` those of one of each block.
    """
    dense, expert = (ranks > 1 for ranks in step.placed.shard_ranks)
    layers, root = [], np.asarray(0.0)
    for block, params in zip(step.blocks, each, strict=True):
        if block.role in ("layer", "tower"):
            layers.append(np.asarray(params.dense * dense + params.expert * expert))
        else:
            root = root + (params.dense * dense)[..., None] * block.num_on_stage
    largest = np.maximum.reduce(np.broadcast_arrays(*layers))[..., None]
    everything = stage.dense * dense[..., None] + stage.expert * expert[..., None]
    return largest, np.asarray(root), np.asarray(everything)


def _by_tensor_line(step: Step, on: Array) -> MemoryLine:
    """ZeRO-3 where a compiler shards tensor by tensor: one weight and the next, whole, and one gradient.

    Each weight is gathered before its product and each gradient scattered after the one that made it, in the dtype in
    which both are multiplied. Gate and up projection are two weights, all experts of a rank one.
    """
    placed, layout = step.placed, step.placed.layout
    dense, expert = (ranks > 1 for ranks in placed.shard_ranks)
    pieces = {
        "expert": expert / (layout.ep * layout.etp),
        "tp": dense / layout.tp,
        "replicated": 1.0 * dense,
    }
    sizes = [
        one.count / one.tensors * pieces[one.sharding]
        for kind in placed.kinds
        for one in layer_param_blocks(placed.model, kind)
    ]
    return _line(
        "buffer.dp.gathered_tensors",
        part="buffer",
        formula="on * gather_bytes * max(3 * matrix_params, 2 * table_params)",
        terms={
            "on": on,
            "gather_bytes": gathered_bytes(placed),
            "matrix_params": np.maximum.reduce(np.broadcast_arrays(*sizes))[..., None],
            "table_params": _table(placed) * dense[..., None],
        },
        source="GSPMD, arXiv:2105.04663, section 3.2; Xu et al., arXiv:2004.13336: a tensor is gathered where it is used",
    )


def _gathered_line(step: Step, on: Array) -> MemoryLine:
    """ZeRO-3: full parameters of the layers being computed and prefetched, and one layer's gradient.

    A group of one has nothing to gather.
    """
    placed, overlap = step.placed, step.placed.recipe.overlap
    drops = overlap.fsdp_reshard_after_forward and not overlap.fsdp_pp_keeps_gathered
    if overlap.fsdp_by_tensor and drops:
        return _by_tensor_line(step, on)
    gathered = [as_gathered(placed, one) for one in step.blocks]
    largest, root, everything = _sharded_sizes(step, as_gathered(placed, step), gathered)
    own_largest, own_root, own = largest, root, everything
    if not placed.tuning.whole:
        own_largest, own_root, own = _sharded_sizes(
            step, step.trained, [block.trained for block in step.blocks]
        )
    stays = stays_gathered(placed)[..., None]
    whole = stays | (not overlap.fsdp_reshard_after_forward)
    layers = np.where(whole, 1.0, 2.0)  # one layer, and the next that is gathered ahead
    # The gradient of one unit is whole twice: as autograd made it, and in the reduction's dtype. Over
    # several micro-batches of a pipeline, all of them add up in the latter.
    grads = np.where(whole, own_largest, np.maximum(own_largest, own_root))
    summed = np.where(stays, own, grads)
    return _line(
        "buffer.dp.gathered_layers",
        part="buffer",
        formula="on * (gather_bytes * (layers * params + root_params + grad_params)"
        " + grad_bytes * summed_params)",
        terms={
            "on": on,
            "params": np.where(whole, everything, largest),
            "layers": layers,
            "gather_bytes": gathered_bytes(placed),
            "grad_bytes": DTYPE_BYTES[placed.recipe.dtypes.grad_reduce_dtype],
            "root_params": np.where(whole, 0.0, root),
            "grad_params": grads,
            "summed_params": summed,
        },
        source="PyTorch FSDP, arXiv:2304.11277, section 3.3",
    )
