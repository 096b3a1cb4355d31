"""Compute: what the GPU itself spends on layers, embedding, head and optimizer step.

`operator_times` prices every operator of every layer kind once; the other axes read their
overlap windows from it. Time lines: one an operator and pass. Memory lines: the activations that
the operators save, by block, for as many micro-batches as the pipeline keeps in flight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from costmodel.base.errors import RecipeError
from costmodel.bill.formula import where
from costmodel.bill.lines import (
    Array,
    Category,
    MemoryLine,
    Phase,
    TimeLine,
    any_nonzero,
    broadcast_sum,
    memory_line,
    time_line,
)
from costmodel.bill.quantity import Quantity, quantity
from costmodel.describe.factors import bits_of
from costmodel.describe.hardware.kernels import FP8_ATTENTION, PEAK_KEY
from costmodel.describe.models.model import LayerKind
from costmodel.describe.precision import Precision, without_weight_gradients
from costmodel.physics.kernels.roofline import attention_time, matmul_time
from costmodel.physics.network.expert_dispatch import DISPATCHERS
from costmodel.step.anatomy.adapters import adapter_params, is_frozen, is_quantised, tuned
from costmodel.step.anatomy.operator_parts import PATHS, Operator, OperatorKind, ParamBlock, Part
from costmodel.step.anatomy.operators import (
    embedding_operators,
    head_operators,
    layer_operators,
    prediction_operators,
    tower_ends,
)
from costmodel.step.anatomy.params import (
    Params,
    held_params,
    layer_param_blocks,
    param_blocks,
)
from costmodel.step.communication import exposed_sum
from costmodel.step.critical_stage import Step
from costmodel.step.placed_job import Block, OperatorTime, PlacedJob, scaled

ACTIVATION_SOURCE = (
    "Korthikanti et al., arXiv:2205.05198, sec. 4, operator by operator: costmodel/step/anatomy/operators.py"
)


def _memory_kernels(operator: Operator, placed: PlacedJob) -> tuple[Quantity, ...]:
    """Price element-wise kernels by the bytes that they move.

    Norms launch as many thread blocks as the whole device runs at once (Transformer Engine and flash-attention,
    ln_api.cpp). With some SMs reserved the blocks that do not fit run in another full wave.
    """
    cast_slowdown, waves, sm_share = 1.0, 1.0, _unreserved_share(placed)
    if operator.casts:
        cast_slowdown = _cast_slowdown(placed) * placed.recipe.kernels.cast_slowdown
    if operator.role == "norm" and sm_share < 1.0:
        waves = math.ceil(1.0 / sm_share) * sm_share
    passes = (
        (operator.forward_bytes, operator.kernels_forward, operator.scalar_forward),
        (operator.backward_bytes, operator.kernels_backward, operator.scalar_backward),
    )
    return tuple(
        placed.memory_bound(size, kernels, cast_slowdown, scalar, waves) for size, kernels, scalar in passes
    )


def _cast_slowdown(placed: PlacedJob) -> float:
    """Measured time to quantise an element over the time to read and write it, at least 1. [-]"""
    precision, kernels = placed.precision, placed.kernels
    if not precision.cast_as_measured:
        return 1.0
    constants = kernels.matmul[precision.matmul_dtype]
    measured_bytes = (
        constants.cast_bytes_per_element * kernels.memory.bandwidth_fraction / constants.memory_fraction
    )
    return max(measured_bytes / (2.0 + precision.input_bytes), 1.0)


def _unreserved_share(placed: PlacedJob) -> float:
    """Share of the SMs that are not reserved for communication kernels. [-]"""
    return 1.0 - float(placed.recipe.overlap.reserved_sm_share)


def _unquantised_dtype(precision: Precision) -> str:
    """Return the dtype of products that are not quantised: the job's fp16 or fp32, else bf16."""
    return precision.matmul_dtype if precision.name in ("fp16", "fp32") else "bf16"


def _attention_kernels(operator: Operator, placed: PlacedJob) -> tuple[Quantity, ...]:
    """Price fused attention, forward and backward."""
    accelerator, shape, recipe = placed.accelerator, operator.attention, placed.recipe
    assert shape is not None
    is_fp8 = recipe.kernels.fp8_attention and placed.precision.cast_bytes > 0
    dtype = "fp8" if is_fp8 else PEAK_KEY[_unquantised_dtype(placed.precision)]
    kernel = FP8_ATTENTION if is_fp8 else recipe.kernels.attention_kernel
    if kernel not in placed.kernels.attention:
        raise RecipeError(f"fp8_attention: no kernel of 8-bit attention is known on {accelerator.name}")
    windowed = shape.windowed if np.any(shape.windowed) else np.asarray(False)
    factor = placed.factors.of("attention", accelerator.generation)

    def one_pass(backward: bool) -> Quantity:
        # cuDNN's 8-bit backward kernel ignores the sliding window and computes the whole causal mask: its time grows
        # with the square of the sequence (NVIDIA/cudnn-frontend, results of gpt_oss).
        ignores_window = is_fp8 and backward
        share = np.where(windowed, 0.5, shape.keys_share) if ignores_window else shape.keys_share
        call = attention_time(
            1.0,
            shape.seq_q,
            shape.seq_k,
            shape.heads,
            kv_heads=shape.kv_heads,
            qk_head_dim=shape.qk_head_dim,
            v_head_dim=shape.v_head_dim,
            causal=shape.causal,
            backward=backward,
            constants=placed.kernels.attention[kernel],
            peak_flops_per_s=accelerator.peak_flops_per_s[dtype] * _unreserved_share(placed),
            memory_bandwidth_bytes_per_s=accelerator.memory_bandwidth_bytes_per_s,
            keys_per_query=shape.seq_k * share,
            windowed=windowed if np.any(windowed) and not ignores_window else False,
        )
        return scaled(call.then("kernel_s", "calls * kernel_s", calls=shape.calls), factor)

    return one_pass(backward=False), one_pass(backward=True)


# Shares of the data sheet's bandwidth and matrix peak that chunked kernels reach together, forward and backward. Set by
# timings of fla-org/flash-linear-attention's Triton kernels at heads of 128 or 256: its README's on H100 (retention),
# pytorch/helion #2966 on B200, MoonshotAI/FlashKDA's on H20 and flagos-ai/FlagGems-vllm #21 (delta rules): seven forward
# within 25 %, four backward within 45 %.
_SCAN_SHARES = (0.7, 0.36)
_VECTOR_SHARE = 1.0 / 16.0
"""Vector over matrix peak where the data sheet has no fp32 peak: H100's 67 of 989 TFLOP/s."""


def _scan_kernels(operator: Operator, placed: PlacedJob) -> tuple[Quantity, ...]:
    """Price the chunked scan of a recurrent mixer: memory traffic and computation of its kernels, not overlapped."""
    work, accelerator = operator.scan, placed.accelerator
    assert work is not None
    peaks = accelerator.peak_flops_per_s
    peak = peaks[PEAK_KEY[_unquantised_dtype(placed.precision)]]
    if work.units:
        peak = peaks.get(work.units, peak if work.units == "fp8" else _VECTOR_SHARE * peak)

    def one_pass(moved: str, flops: str, kernels: float, share: float) -> Quantity:
        return quantity(
            f"moved_bytes = {moved}; flops = {flops}; "
            "kernels * fixed_s + (moved_bytes / hbm_bytes_per_s + flops / peak_flops_per_s) / share",
            kernels=kernels,
            fixed_s=placed.kernels.memory.fixed_s,
            hbm_bytes_per_s=accelerator.memory_bandwidth_bytes_per_s,
            peak_flops_per_s=peak * _unreserved_share(placed),
            share=share,
            **work.terms,
        )

    return (
        one_pass(work.forward_bytes, work.forward_flops, work.kernels_forward, _SCAN_SHARES[0]),
        one_pass(work.backward_bytes, work.backward_flops, work.kernels_backward, _SCAN_SHARES[1]),
    )


def _matmul_kernels(operator: Operator, placed: PlacedJob) -> tuple[Quantity, ...]:
    """Price a matrix product and the two of its backward pass."""
    accelerator, precision, recipe = placed.accelerator, placed.precision, placed.recipe
    kernels = placed.kernels
    is_low_precision = operator.low_precision
    dtype = precision.matmul_dtype if is_low_precision else _unquantised_dtype(precision)
    table = kernels.grouped_matmul if operator.kind == "grouped_matmul" else kernels.matmul
    m, n, k, groups = operator.m, operator.n, operator.k, operator.groups
    aligned: Array = np.asarray(True)
    peak: float | Array = accelerator.peak_flops_per_s[PEAK_KEY[dtype]] * _unreserved_share(placed)
    # Batched products over heads whose rows are no multiple of 16 bytes run without tensor cores: inferred from
    # BLOOM's runs with head dimensions of 108 and 150, no kernel was measured.
    if not operator.has_parameters:
        aligned = (n % 8 == 0) & (k % 8 == 0)
        peak = np.where(aligned, peak, min(peak, accelerator.peak_flops_per_s.get("fp32", np.inf)))
    common: dict[str, Any] = {
        # Only tensor cores draw enough power to lower the sustained clock.
        "sustained": True if operator.has_parameters else aligned,
        "groups": groups,
        "constants": table[dtype],
        "peak_flops_per_s": peak,
        "memory_bandwidth_bytes_per_s": accelerator.memory_bandwidth_bytes_per_s,
        "input_bytes": precision.input_bytes if is_low_precision or precision.name == "fp32" else 2.0,
    }

    factor = placed.factors.of(operator.kind, accelerator.generation, bits_of(dtype))

    def product(rows: Array, columns: Array, depth: Array, **more: Any) -> Quantity:
        made = scaled(matmul_time(rows, columns, depth, **{**common, **more}), factor)
        if not is_low_precision or precision.product_slowdown == 1.0:
            return made
        return made.then(
            "scaled_s", "product_slowdown * scaled_s", product_slowdown=precision.product_slowdown
        )

    forward, backward = product(m, n, k), product(m, k, n)
    if not operator.has_weight:
        return forward, backward
    if not operator.has_parameters:
        return forward, backward, product(k, n, m)
    wgrad_table = kernels.matmul if is_low_precision and precision.expert_weight_gradients_apart else table
    fused = recipe.kernels.fused_grad_accumulation
    accumulation = {"output_bytes": recipe.dtypes.grad_bytes(), "accumulate": True} if fused else {}
    weight = product(k, n, m, constants=wgrad_table[dtype], **accumulation)
    slowdown = recipe.kernels.weight_gradient_slowdown
    if is_low_precision and precision.cast_bytes and slowdown != 1.0:
        # The framework's own kernels in place of the library's.
        weight = weight.then("library_s", "slowdown * library_s", slowdown=slowdown)
    if not fused:
        # The gradient is written in 16 bits, then a separate kernel adds it to the accumulated gradient.
        weight = weight.then(
            "product_s",
            "product_s + add_fixed_s + add_bytes * m * n * groups / (add_memory_fraction * hbm_bytes_per_s)",
            add_fixed_s=kernels.memory.fixed_s,
            add_bytes=2.0 + 2.0 * recipe.dtypes.grad_bytes(),
            add_memory_fraction=kernels.memory.bandwidth_fraction,
        )
    return forward, backward, weight


_KERNELS: dict[OperatorKind, Callable[[Operator, PlacedJob], tuple[Quantity, ...]]] = {
    "memory": _memory_kernels,
    "attention": _attention_kernels,
    "scan": _scan_kernels,
    "matmul": _matmul_kernels,
    "grouped_matmul": _matmul_kernels,
}
"""The function that prices each kind of operator: forward, input-gradient and, with weights, weight-gradient pass."""


def build_blocks(placed: PlacedJob) -> list[Block]:
    """Price the operators of every layer kind, embedding, head and MTP projection, in the order of `StagePlan.blocks`."""
    model, given, stages, has_kinds = placed.model, placed.given, placed.stages, len(placed.kinds) > 1
    if placed.tuning.lora_rank:
        given = given._replace(precision=without_weight_gradients(placed.precision))
    blocks = []
    for number, kind in enumerate(placed.kinds):
        num_layers = model.kind_of_layer.count(number) + model.mtp_layers * (
            number == model.kind_of_layer[-1]
        )
        blocks.append(
            _block(
                placed,
                layer_operators(given, kind),
                layer_param_blocks(model, kind),
                stages.layers[number],
                float(num_layers),
                label=f"{kind.name}." if has_kinds else "",
                kind=kind,
            )
        )
    embedding, head = param_blocks("embedding", model), param_blocks("head", model)
    heads = 1.0 + model.mtp_layers
    blocks += [
        _block(placed, embedding_operators(given), embedding, stages.has_embedding, 1.0, role="embedding"),
        _block(placed, head_operators(given), head, stages.has_head, heads, role="head"),
    ]
    if model.mtp_layers:
        projection, mtp_layers = prediction_operators(given), float(model.mtp_layers)
        params = [replace(one, count=one.count / model.mtp_layers) for one in param_blocks("mtp", model)]
        blocks.append(_block(placed, projection, params, stages.mtp, mtp_layers, role="mtp"))
    return blocks + _tower_blocks(placed)


def _tower_blocks(placed: PlacedJob) -> list[Block]:
    """Price the layers of a tower by kind, and what stands before and behind them, on the stage with the embedding."""
    own, tower = placed.model.tower, placed.tower
    if own is None or tower is None:
        return []
    blocks = []
    for number, kind in enumerate(tower.kinds):
        count = float(tower.model.kind_of_layer.count(number))
        blocks.append(
            _block(
                tower,
                layer_operators(tower.given, kind),
                layer_param_blocks(tower.model, kind),
                np.asarray(placed.stages.has_embedding * count),
                count,
                label=f"{own.name}." if len(tower.kinds) == 1 else f"{own.name}.{kind.name}.",
                role="tower",
                kind=kind,
            )
        )
    ends = tower_ends(tower.given, own, placed.hidden)
    counts = {"patches": own.patch_params, "projector": own.projector_params, "rest": own.other_params}
    params = [
        ParamBlock("embedding", leaf, float(count), "replicated", is_matrix=leaf != "rest")
        for leaf, count in counts.items()
    ]
    label = f"{own.name}.ends."
    return [*blocks, _block(tower, ends, params, placed.stages.has_embedding, 1.0, label=label, role="tower")]


def _block(
    placed: PlacedJob,
    operators: list[Operator],
    blocks: Sequence[ParamBlock],
    num_on_stage: Array,
    runs_in_model: float,
    *,
    label: str = "",
    role: Literal["layer", "embedding", "head", "mtp", "tower"] = "layer",
    kind: LayerKind | None = None,
) -> Block:
    """Price the operators of a block as the job trains them, and count its parameters on a rank."""
    tuning, layout = placed.tuning, placed.layout
    params, none = held_params(blocks, layout), Params(np.asarray(0.0), np.asarray(0.0))
    frozen = role == "tower" and "tower" in tuning.frozen
    trained, quantised = none if frozen else params, none
    if not (tuning.whole or role == "tower"):
        operators = tuned(operators, placed.given if kind is None else placed.given.seen_by(kind), tuning)
        adapters = Params(*adapter_params(operators))
        params = params + adapters
        trained = held_params([one for one in blocks if not is_frozen(tuning, one)], layout) + adapters
        quantised = held_params([one for one in blocks if is_quantised(tuning, one)], layout)
    times = {
        one.name: OperatorTime(one, _KERNELS[one.kind](one, placed), *placed.recomputation.of_operator(one))
        for one in operators
    }
    # Each layer of multi-token prediction runs the head once more.
    runs_on_stage = np.asarray(num_on_stage * runs_in_model) if role == "head" else num_on_stage
    return Block(
        label=label,
        role=role,
        by_operator=times,
        parts=tuple(blocks),
        params=params,
        trained=trained,
        quantised=quantised,
        num_on_stage=num_on_stage,
        runs_on_stage=runs_on_stage,
        runs_in_model=runs_in_model,
        kind=kind,
        frozen=frozen,
    )


_SOURCES: dict[str, str] = {
    "matmul": "roofline with tiles and waves, fitted to published matmuls: costmodel/physics/kernels/roofline.py, "
    "the accelerator's kernels block",
    "attention": "FLOP counts of FlashAttention-2, arXiv:2307.08691 sec. 4.1; kernels block of the accelerator",
    "memory": "bytes read and written over achieved HBM bandwidth; costmodel/step/anatomy/operators.py",
    "scan": "bytes and FLOPs of the chunked kernels, at the shares of peak that published timings of such kernels reach",
}


def time_lines(placed: PlacedJob, block: Block, _: Sequence[TimeLine] = ()) -> list[TimeLine]:
    """Return one time line for each operator of a block and each of its passes."""
    lines = []
    for name, item in block.by_operator.items():
        operator, kind = item.operator, item.operator.kind
        category: Category = "hbm" if kind == "memory" else "math"
        labels = ("backward_input", "backward_weight") if operator.has_weight else ("backward",)
        passes: list[tuple[str, Quantity, Array]] = [
            ("forward", item.passes[0], operator.forward_bytes),
            *(
                (label, made, operator.backward_bytes)
                for label, made in zip(labels, item.passes[1:], strict=True)
            ),
        ]
        if any_nonzero(item.recompute_share > 0):
            share = item.recompute_share
            again = item.passes[0].then("pass_s", "recompute_share * pass_s", recompute_share=share)
            passes.append(("recompute", again, share * operator.forward_bytes))
        for label, made, size in passes:
            lines.append(
                time_line(
                    f"compute.{block.label}{name}.{label}",
                    axis="compute",
                    category=category,
                    phase=_PHASES[label],
                    cause="attention" if kind == "attention" else "work",
                    made=made,
                    bytes_each=size,
                    source=_SOURCES.get(kind, _SOURCES["matmul"]),
                )
            )
    return lines


_PHASES: dict[str, Phase] = {
    "forward": "forward",
    "recompute": "recompute",
    "backward": "backward",
    "backward_input": "backward",
    "backward_weight": "backward_weight",
}

# Host work besides kernels, counted in kernel launches: a collective (read off launch-bound single-node runs, vTrain,
# where TP of 2 adds less than a launch for each of six), and saving and restoring the random state around a recomputed layer.
_LAUNCHES_PER_COLLECTIVE = 1.0
_LAUNCHES_PER_CHECKPOINT = 20.0

_EP_OVERLAP_LAUNCHES = 1.6
"""Launches with `overlap_moe_expert_parallel_comm` over those without, outside full CUDA graphs: layers are split into
schedule nodes, and weight gradients are launched apart (Megatron-Core models/common/model_chunk_schedule_plan.py);
Qwen3-30B on H100 takes 16.7 ms a layer with it and 9.4 without. [-]"""


class _GraphScope(NamedTuple):
    """What CUDA graphs capture, so that the host does not launch it."""

    parts: tuple[Part, ...]
    """Parts of a layer."""
    static: bool
    """Everything whose shapes do not depend on the routing: all but experts, token permutation and their all-to-all."""
    experts: bool
    """Experts, token permutation and their all-to-all too."""

    def captures(self, operator: Operator) -> bool:
        """Tell whether an operator is replayed from a graph."""
        if operator.part == "experts" or operator.role == "permutation":
            return self.experts
        return self.static or operator.part in self.parts


_NO_GRAPH = _GraphScope((), static=False, experts=False)
_GRAPH_SCOPES: dict[str, _GraphScope] = {
    "all": _GraphScope((), static=True, experts=True),
    "static": _GraphScope((), static=True, experts=False),
    "attention": _GraphScope(("attention", "router"), static=False, experts=False),
    "router": _GraphScope(("router",), static=False, experts=False),
}


class _HostWork(NamedTuple):
    """Host work in one pass of a block, counted in kernel launches. [-]"""

    launches: Array
    """Kernels, collectives, and the host-only work around recomputed layers."""
    kernels: Array
    """Kernels and collectives alone."""


def host_lines(placed: PlacedJob, block: Block, others: Sequence[TimeLine]) -> list[TimeLine]:
    """Return the time the GPU waits where the host cannot launch kernels as fast as the GPU runs them.

    Each pass over a block takes the longer of GPU time, with a gap before every kernel, and launches x launch
    time; the excess is a line of its own. CUDA graphs take the host out of the way; with blocking launches host
    and GPU take turns. `others` are all other lines of the block.
    """
    host = placed.recipe.host
    collectives = [line for line in others if line.axis != "compute"]
    forward_collectives = [line for line in collectives if line.phase == "forward"]
    backward_collectives = [line for line in collectives if line.phase != "forward"]
    forward = _host_work(placed, block, forward=True, collectives=forward_collectives)
    backward = _host_work(placed, block, forward=False, collectives=backward_collectives)
    backward_s = block.backward_s + block.recompute_s + exposed_sum(backward_collectives)
    weights_s = broadcast_sum(
        [
            *(item.backward_weight_s for item in block.by_operator.values()),
            exposed_sum(line for line in collectives if line.phase == "backward_weight"),
        ]
    )
    # Of a product's two kernels in the backward pass one is the weight gradient's.
    graph = _graph_scope(placed)
    weight_kernels = broadcast_sum(
        [
            np.asarray(0.5 * item.operator.kernels_backward)
            for item in block.by_operator.values()
            if len(item.passes) > 2 and not graph.captures(item.operator)
        ]
    )
    # Where the schedule splits the backward pass, input and weight gradients each wait for their own launches;
    # else the host's delay stretches all kernels of the backward pass alike.
    splits = placed.splits_backward
    weight_share = np.asarray(weights_s / np.maximum(backward_s, np.finfo(float).tiny))
    split_off = where(splits, weight_kernels, 0.0)
    inputs = _HostWork(
        np.maximum(backward.launches - split_off, 0.0), np.maximum(backward.kernels - split_off, 0.0)
    )
    inputs_s = where(splits, backward_s - weights_s, backward_s)
    core = block.of_role("core")
    lost_s = _lost_to_counts_s(placed, block, forward_collectives)
    passes: list[tuple[Phase, _HostWork, ArrayLike, ArrayLike, ArrayLike]] = [
        (
            "forward",
            forward,
            block.forward_s + exposed_sum(forward_collectives),
            broadcast_sum([item.forward_s for item in core]),
            1.0,
        ),
        (
            "backward",
            inputs,
            inputs_s,
            broadcast_sum([item.backward_s + item.recompute_s for item in core]),
            where(splits, 1.0, 1.0 - weight_share),
        ),
    ]
    if any_nonzero(weight_share):
        weights = _HostWork(
            where(splits, weight_kernels, backward.launches), where(splits, weight_kernels, backward.kernels)
        )
        share = where(splits, 1.0, weight_share)
        attention_s = where(splits, 0.0, passes[1][3])
        passes.append(("backward_weight", weights, where(splits, weights_s, backward_s), attention_s, share))
    return [
        time_line(
            f"compute.{block.label}{block.role}.host.{phase}",
            axis="compute",
            category="overhead",
            phase=phase,
            cause="host",
            formula="share * max(launches * launch_s - hidden * (gpu_s - attention_s * fraction / (1 + fraction)) + lost_s, "
            "kernels * gap_s)",
            terms={
                "launches": of_pass.launches,
                "kernels": of_pass.kernels,
                "gap_s": host.kernel_gap_s * placed.accelerator.is_gpu,
                "launch_s": placed.launch_s * placed.host_slowdown,
                "gpu_s": gpu_s,
                "attention_s": attention_s,
                "fraction": host.overhead_fraction,
                "hidden": 0.0 if host.launch_blocking else 1.0,
                "lost_s": lost_s if phase == "forward" else 0.0,
                "share": share,
            },
            source="host-bound blocks: the GPU waits for the kernels that the framework issues",
        )
        for phase, of_pass, gpu_s, attention_s, share in passes
    ]


def _lost_to_counts_s(placed: PlacedJob, block: Block, collectives: Sequence[TimeLine]) -> Array:
    """Return by how much the host could run ahead in a layer before its experts, which it loses where it waits for counts. [s]

    A dropless dispatcher copies to the host how many tokens came, in each layer: then nothing is queued on the GPU, and
    what is launched behind is no longer hidden by what ran before. With another micro-batch's compute beside it, or in a
    graph, nothing waits; backward passes know the counts.
    """
    host, moe = placed.recipe.host, placed.recipe.moe
    waits = DISPATCHERS[moe.moe_dispatcher].waits_for_counts and not moe.moe_capacity_factor
    is_routed = block.kind is not None and block.kind.is_moe
    if not (waits and is_routed) or host.launch_blocking or _graph_scope(placed).experts:
        return np.asarray(0.0)
    # Operators come in the order in which they run.
    before = dict(takewhile(lambda pair: pair[1].operator.role != "permutation", block.by_operator.items()))
    sent = [line for line in collectives if ".attention." in line.name]
    work = _host_work(placed, replace(block, by_operator=before), forward=True, collectives=sent)
    seconds = broadcast_sum([item.forward_s for item in before.values()]) + exposed_sum(sent)
    ahead_s = seconds - work.launches * placed.launch_s * placed.host_slowdown
    return np.asarray(np.maximum(ahead_s, 0.0) * (1.0 - placed.overlaps_expert_exchange))


def _graph_scope(placed: PlacedJob) -> _GraphScope:
    """Return what the recipe's CUDA graphs capture."""
    host = placed.recipe.host
    return _GRAPH_SCOPES[host.cuda_graph_scope] if host.cuda_graphs else _NO_GRAPH


def _host_work(
    placed: PlacedJob, block: Block, *, forward: bool, collectives: Iterable[TimeLine]
) -> _HostWork:
    """Count what the host launches in the forward pass of a block, or in recomputation and backward pass."""
    graph = _graph_scope(placed)
    kernels, checkpoints = np.asarray(0.0), np.asarray(0.0)
    for item in block.by_operator.values():
        operator = item.operator
        if graph.captures(operator):
            continue
        recomputed = operator.kernels_forward * item.recompute_share
        kernels = kernels + (operator.kernels_forward if forward else operator.kernels_backward + recomputed)
        checkpoints = np.maximum(checkpoints, 1.0 * (item.recompute_share > 0))
    for line in collectives:
        by_host = not (graph.experts if line.axis == "ep" else graph.static)
        kernels = kernels + _LAUNCHES_PER_COLLECTIVE * by_host * (line.each_s > 0)
    launches = np.asarray(kernels)
    if block.role == "layer" and not forward:
        # Inside a graph, saving and restoring the random state is part of the graph.
        launches = launches + _LAUNCHES_PER_CHECKPOINT * checkpoints
    if block.kind is not None and block.kind.is_moe and not graph.experts:
        launches = launches * (1.0 + (_EP_OVERLAP_LAUNCHES - 1.0) * placed.overlaps_expert_exchange)
    return _HostWork(np.asarray(launches), np.asarray(kernels))


def memory_lines(step: Step) -> list[MemoryLine]:
    """Return the activation lines, per pipeline stage (last dimension).

    Where layers are recomputed, whole or by operator, each keeps its input, and one layer at a time has all its
    activations. The backward pass of one layer, or of the head, adds its gradients; the larger of the two counts.
    """
    layer_stubs, head_stub = _weight_stubs(step)
    stubs = [
        memory_line(
            f"buffer.weight_gradient_stub.{name}",
            part="buffer",
            axis="compute",
            formula="stub_bytes",
            terms={"stub_bytes": stub},
            source="Transformer Engine get_dummy_wgrad; Megatron-Core tensor_parallel/layers.py",
        )
        for name, stub in (("layers", layer_stubs), ("head", head_stub))
        if any_nonzero(stub)
    ]
    recomputed, gradients, head = _backward_sizes(step, head_stub)
    transient = memory_line(
        "activation.backward_pass",
        part="activation",
        lasts="pass",
        axis="compute",
        formula="max(recomputed_bytes + gradient_bytes - head_bytes, 0)",
        terms={"recomputed_bytes": recomputed, "gradient_bytes": gradients, "head_bytes": head},
        source="one layer's recomputed activations and gradients are alive at a time, after the head's",
    )
    saved = [line for block in step.blocks for line in _saved_lines(step.placed.of(block), block)]
    return [*saved, *_graph_lines(step), *stubs, transient]


def _saved_lines(placed: PlacedJob, block: Block) -> list[MemoryLine]:
    """Return what the operators of a block save for the backward pass of all micro-batches in flight."""
    if block.frozen:
        return []
    head, count, in_flight = block.role == "head", block.num_on_stage, placed.in_flight
    parts: dict[str, dict[str, Array]] = {}
    if head:
        # A rank with the head works on the logits of one micro-batch at a time.
        count, in_flight = np.ceil(block.num_on_stage), np.asarray(1.0)
    for item in block.by_operator.values():
        whole = block.role in ("head", "embedding")
        name = block.role if whole else block.label + PATHS[item.operator.part].split(".", 1)[0]
        kept = item.operator.saved_bytes if whole else item.kept_bytes
        of_part = parts.setdefault(name, {})
        if any_nonzero(kept):
            term = f"{item.operator.leaf.replace('.', '_')}_bytes"
            of_part[term] = np.asarray(of_part.get(term, 0.0) + kept)
    of_loss: dict[str, Array] = {}
    if head and "loss_bytes" in parts["head"]:
        model, divided = placed.model, placed.recipe.kernels.vocab_parallel_loss
        logits = np.asarray(model.vocab_size / (placed.shard.tp if divided else 1.0))
        tokens = placed.shard.tokens
        each = parts["head"].pop("loss_bytes") / (tokens * logits)
        of_loss = {"tokens": tokens, "logits_per_token": logits, "loss_bytes_per_logit": each}
    if block.role in ("layer", "tower"):
        inputs = 2.0 * placed.shard.tokens_sp * placed.hidden
        parts[f"{block.label}checkpoint"] = {"input_bytes": placed.recomputation.holds_inputs * inputs}
    return [
        memory_line(
            f"activation.{name}",
            part="activation",
            lasts="micro_batch" if head else "in_flight",
            axis="compute",
            formula=f"blocks * ({' + '.join([*saved, *filter(None, [' * '.join(of_loss)])]) or '0'}) * in_flight",
            terms={
                "blocks": count,
                **{term: each[..., None] for term, each in (saved | of_loss).items()},
                "in_flight": in_flight,
            },
            source=ACTIVATION_SOURCE,
        )
        for name, saved in parts.items()
    ]


def _graph_lines(step: Step) -> list[MemoryLine]:
    """Return the static input and gradient buffers of per-layer CUDA graphs.

    Addresses inside a graph are fixed, so each layer and micro-batch in flight has its own buffers. A full-iteration
    graph has none of them.
    """
    placed = step.placed
    graph = _graph_scope(placed)
    if graph is _NO_GRAPH or graph.experts or not placed.recipe.memory.cuda_graph_pools:
        return []
    hidden = 2.0 * placed.shard.tokens_sp * placed.hidden
    return [
        memory_line(
            f"buffer.cuda_graphs.{block.label}static",
            part="buffer",
            lasts="in_flight",
            axis="compute",
            formula="2 * blocks * hidden_bytes * in_flight",
            terms={
                "blocks": block.num_on_stage,
                "hidden_bytes": hidden[..., None],
                "in_flight": placed.in_flight,
            },
            source="NVIDIA/Megatron-LM megatron/core/transformer/cuda_graphs.py: static input of the forward graph, "
            "static gradient of the backward graph, of every layer and micro-batch",
        )
        for block in step.blocks
        if block.role == "layer"
    ]


def _weight_stubs(step: Step) -> tuple[Array, Array]:
    """Bytes of the dummy weight gradients autograd gets with fused gradient accumulation: of layers, of the head. [B]

    The head's is allocated while the logits are alive. The layers' are cached by shape (Transformer Engine,
    module/base.py, get_dummy_wgrad), so one layer's stay allocated and experts share theirs.
    """
    shapes: dict[str, Array] = {}
    head: Array = np.asarray(0.0)
    for block in step.blocks:
        for name, item in block.by_operator.items():
            op = item.operator
            if not (op.is_product and op.has_weight):
                continue
            size = (block.num_on_stage > 0) * 2.0 * np.asarray(op.n * op.k)[..., None]
            if block.role == "head":
                head = head + size
            elif op.low_precision:
                shapes[name] = np.maximum(shapes.get(name, np.asarray(0.0)), size)
    on = float(step.placed.recipe.kernels.fused_wgrad)
    return np.asarray(on * sum(shapes.values(), np.asarray(0.0))), np.asarray(on * head)


def _backward_sizes(step: Step, head_stub: Array) -> tuple[Array, Array, Array]:
    """Return the largest recomputed activations and gradients of a layer, and what the head has alive, by stage. [B]"""
    recomputed: Array = np.asarray(0.0)
    gradients: Array = np.asarray(0.0)
    head: Array = head_stub
    for block in step.blocks:
        saved = block.saved_bytes
        if block.role == "head":
            head = head + np.ceil(block.num_on_stage) * saved[..., None]
        elif block.role in ("layer", "tower"):
            on_stage = block.num_on_stage > 0
            recomputed = np.maximum(
                recomputed, np.maximum(saved - block.kept_bytes, 0.0)[..., None] * on_stage
            )
            gradients = np.maximum(gradients, block.peak_gradient_bytes[..., None] * on_stage)
    return recomputed, gradients, head


def head_bytes_beyond_layers(step: Step) -> Array:
    """Bytes by which the head's backward pass exceeds a layer's, on each stage (last dimension). [B]

    Other transient buffers of layers raise the peak only beyond this: the logits are freed by then.
    """
    recomputed, gradients, head = _backward_sizes(step, _weight_stubs(step)[1])
    return np.asarray(np.maximum(head - recomputed - gradients, 0.0))
