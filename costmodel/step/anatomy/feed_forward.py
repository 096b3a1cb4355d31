"""The operators of an MLP and of a mixture of experts: what each computes, moves and keeps for the backward pass.

Sizes are of one micro-batch on one rank, already divided by the parallel degrees that split the operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from costmodel.physics.network.expert_dispatch import DISPATCHERS
from costmodel.step.anatomy.operator_parts import (
    BF16,
    CLAMP,
    GELU_CHAIN,
    GELU_FUSED,
    GROUPED_EPILOGUE,
    ONE,
    ROUTED,
    ROUTED_AND_SHARED,
    SWIGLU_CHAIN,
    SWIGLU_FUSED,
    ZERO,
    Array,
    Cast,
    Operator,
    OperatorKind,
    Part,
    ScalarWork,
    Shard,
    Traffic,
    bias_gradients,
    elementwise,
    exchanged_bytes,
    input_operators,
    kept_inputs,
    linear,
    memory_bound,
    norm_operator,
    quantise,
    residual_operator,
    saved_input_bytes,
)

if TYPE_CHECKING:
    from costmodel.describe.models.model import Model
    from costmodel.describe.precision import Precision
    from costmodel.describe.recipe import Recipe


def mlp_operators(model: Model, shard: Shard, recipe: Recipe, precision: Precision) -> list[Operator]:
    """Return the operators of a dense MLP block, norm and residual included."""
    h, t, t_sp = float(model.hidden_size), shard.tokens, shard.tokens_sp
    width = float(model.ffn_size) / shard.tp
    rms = model.norm == "rmsnorm"
    kept = kept_inputs("mlp", model, shard, recipe)
    ops = [norm_operator("mlp", "norm", t_sp * h, recipe, rms, saved_input_bytes(precision) * kept * h)]
    ops += _two_layers("mlp", ("mlp",), t, h, width, ONE, model, recipe, precision, "matmul", t_sp)
    ops += input_operators("mlp", ("mlp",), model, shard, recipe)
    if model.linear_bias:
        ops.append(bias_gradients("mlp", ("mlp",), t * width + t_sp * h))
    ops.append(residual_operator("mlp", t_sp * h, recipe))
    return ops


def _two_layers(
    part: Part,
    modules: tuple[str, ...],
    tokens: Array,
    h: float,
    width: Array,
    groups: Array,
    model: Model,
    recipe: Recipe,
    precision: Precision,
    kind: OperatorKind,
    tokens_sp: Array | None = None,
) -> list[Operator]:
    """Return fc1, activation, fc2 on `tokens` rows in each of `groups` experts."""
    gated = model.gated_mlp
    up = 2.0 * width if gated else width
    rows = tokens * groups
    # Experts get their tokens by exchange, not by gathering a sequence shard.
    sharded = (tokens if tokens_sp is None else tokens_sp) * groups * h
    fused = recipe.kernels.fused_activation or recipe.kernels.compiled
    gelu, swiglu = (GELU_FUSED, SWIGLU_FUSED) if fused else (GELU_CHAIN, SWIGLU_CHAIN)
    # What the host issues for all experts: one kernel, or one each from a loop in C++ or in Python.
    quantised = recipe.moe.grouped_launch_share_quantised if precision.cast_bytes else 0.0
    share = max(recipe.moe.grouped_launch_share, quantised) if recipe.moe.grouped_gemm else 1.0
    loop = np.maximum(1.0, share * groups) if kind == "grouped_matmul" else ONE
    # The block scales of all experts are rearranged in one kernel an operand.
    launches = np.asarray(loop + precision.scale_kernels)
    act_module = "moe_act" if kind == "grouped_matmul" else "mlp_act"
    h_array = np.asarray(h)
    # Unfused SwiGLU keeps the activated gate besides; GELU is one kernel, which needs its input only.
    extra = BF16 if gated and not fused else 0.0
    traffic = swiglu if gated else gelu
    clamped = model.activation_clamp and not recipe.kernels.compiled
    in_epilogue = recipe.moe.fused_grouped_mlp and kind == "grouped_matmul" and precision.scale_kernels > 0.0
    cast = Cast(sharded, rows * width, rows * up, sharded, rows * h)
    if in_epilogue:
        # fc1 and the input gradient of fc2 write what they computed activated and quantised: no kernel reads it back.
        written = 1.0 - BF16 / precision.cast_bytes
        cast = cast._replace(row_input=cast.row_input * written, column_grad=cast.column_grad * written)
        traffic, clamped = GROUPED_EPILOGUE, False
    return [
        *quantise(
            part,
            modules,
            cast,
            precision,
            after_norm=kind == "matmul",
            tensors=loop,
        ),
        Operator(
            part,
            "fc1",
            "expert" if kind == "grouped_matmul" else "column",
            kind,
            frozenset(modules),
            m=tokens,
            n=np.asarray(up),
            k=h_array,
            groups=groups,
            kernels_forward=launches,
            kernels_backward=2.0 * launches,
            saved_bytes=recipe.dtypes.activation_input_bytes * rows * up,
        ),
        *(
            [
                elementwise(
                    part, "clamp", (*modules, act_module), np.asarray(rows * up), CLAMP, BF16 * rows * up
                )
            ]
            if clamped
            else []
        ),
        elementwise(
            part,
            "activation",
            (*modules, act_module),
            np.asarray(rows * width),
            traffic,
            rows * width * (saved_input_bytes(precision) + extra),
        ),
        Operator(
            part,
            "fc2",
            "expert" if kind == "grouped_matmul" else "row",
            kind,
            frozenset(modules),
            m=tokens,
            n=h_array,
            k=np.asarray(width),
            groups=groups,
            kernels_forward=launches,
            kernels_backward=2.0 * launches,
        ),
    ]


# Kernels of router and preprocessing, forward, as PyTorch operators and fused, where the dispatcher brings none
# (NVIDIA/Megatron-LM docs/discussions/deepseek-v3-gb200-optimization, 2.1.4 and 2.2.1).
_ROUTER_KERNELS = {False: 72.0, True: 31.0}


# Bias of the experts' second layer, times the router's fp32 probability: product (4 B) and sum (2 and 4 in, 4 out) of two
# dtypes, concatenation (8) and cast (6). Backward the cast to fp32 (6) and back (6), two products with broadcast factors
# (8 each), their sums (4 each) and a concatenation (4). NVIDIA/Megatron-LM megatron/core/transformer/moe/experts.py,
# TEGroupedMLP._apply_bias.
_EXPERT_BIAS = Traffic(28, 40, 5, 8, scalar_forward=(2, 14), scalar_backward=(3, 22))


def moe_operators(model: Model, shard: Shard, recipe: Recipe, precision: Precision) -> list[Operator]:
    """Return the operators of an MoE block: norm, router, permutation, experts, shared expert."""
    h, t_sp = float(model.hidden_size), shard.tokens_sp
    rms = model.norm == "rmsnorm"
    modules = ("moe",)
    copies = shard.expert_tokens
    ops = [norm_operator("mlp", "norm", t_sp * h, recipe, rms, saved_input_bytes(precision) * t_sp * h)]
    ops.append(
        linear(
            "router",
            "router",
            "replicated",
            modules,
            t_sp,
            np.asarray(float(model.num_experts)),
            np.asarray(h),
            low_precision=False,
            saved_bytes=4.0 * t_sp * model.num_experts,
        )
    )
    # Scores in fp32: sigmoid or softmax, top-k, normalisation, auxiliary loss, routing maps. Their
    # backward pass is taken to launch half as many kernels.
    by = DISPATCHERS[recipe.moe.moe_dispatcher]
    fused = recipe.moe.router_fusion
    kernels = _ROUTER_KERNELS[fused]
    if by.router_kernels is not None:
        kernels = by.router_kernels + (0.0 if fused else _ROUTER_KERNELS[False] - _ROUTER_KERNELS[True])
    ops.append(
        memory_bound(
            "router",
            "routing",
            modules,
            np.asarray(t_sp * model.num_experts),
            24.0,
            24.0,
            kernels_forward=kernels,
            kernels_backward=0.5 * kernels,
            scalar_forward=None if fused else _chosen_by_pytorch(model, t_sp),
        )
    )
    ops.append(_into_slots(model, shard, recipe, precision))
    per_expert = copies / shard.local_experts
    width = np.asarray(model.expert_ffn_size / shard.etp)
    ops += _two_layers(
        "experts",
        modules,
        per_expert,
        h,
        width,
        shard.local_experts,
        model,
        recipe,
        precision,
        "grouped_matmul",
    )
    if model.linear_bias and recipe.moe.expert_bias_chain:
        ops.append(elementwise("experts", "bias", modules, copies * h, _EXPERT_BIAS))
    if model.linear_bias and not precision.cast_bytes:
        # Casts sum the gradients that they quantise (Transformer Engine, bgrad_quantize).
        ops.append(bias_gradients("experts", modules, copies * width * (2.0 if model.gated_mlp else 1.0)))
    ops.append(_out_of_slots(model, shard, recipe, precision))
    if model.shared_expert_ffn_size:
        shared = np.asarray(model.shared_expert_ffn_size / shard.tp)
        ops += _two_layers(
            "shared",
            modules,
            shard.tokens,
            h,
            shared,
            ONE,
            model,
            recipe,
            precision,
            "matmul",
            t_sp,
        )
    if not recipe.kernels.compiled:
        branches = ROUTED_AND_SHARED if model.shared_expert_ffn_size else ROUTED
        ops.append(elementwise("router", "branches", (), t_sp * h, branches))
    ops.append(residual_operator("mlp", t_sp * h, recipe))
    return ops


def _chosen_by_pytorch(model: Model, tokens: Array) -> ScalarWork:
    """Return what `torch.topk` does of the scores: of the experts, and of each group's before them.

    Its radix select goes over a row once for every 2 bits of fp32, and twice more to write what it found
    (aten/src/ATen/native/cuda/SortingRadixSelect.cuh, RADIX_BITS; TensorTopK.cu, sbtopk::gatherTopK).
    """
    scores = tokens * float(model.num_experts) * (2.0 if model.expert_groups else 1.0)
    return ScalarWork(18.0 * scores, 4.0 * scores)


def _into_slots(model: Model, shard: Shard, recipe: Recipe, precision: Precision) -> Operator:
    """Put tokens into the order of their experts, or into their slots by a product."""
    if recipe.moe.dispatch_by_products:
        return _slot_product(model, shard, "permute", combines=False)
    orders, dispatched, _ = _orders(recipe, precision)
    copies, h = shard.expert_tokens, float(model.hidden_size)
    return memory_bound(
        "router",
        "permute",
        ("moe",),
        copies * h,
        orders * 2.0 * dispatched,
        orders * 2.0 * BF16,
        role="permutation",
        kernels_forward=orders,
        kernels_backward=orders,
        saved_bytes=saved_input_bytes(precision) * copies * h,
    )


def _out_of_slots(model: Model, shard: Shard, recipe: Recipe, precision: Precision) -> Operator:
    """Bring results back to their tokens and sum them, or do both by a product with the router's weights."""
    if recipe.moe.dispatch_by_products:
        return _slot_product(model, shard, "unpermute", combines=True)
    orders, _, gradients = _orders(recipe, precision)
    return memory_bound(
        "router",
        "unpermute",
        ("moe",),
        shard.expert_tokens * float(model.hidden_size),
        orders * 2.0 * BF16,
        orders * 2.0 * gradients,
        role="permutation",
        kernels_forward=orders,
        kernels_backward=orders,
        saved_bytes=np.asarray(ZERO),
    )


def _orders(recipe: Recipe, precision: Precision) -> tuple[float, float, float]:
    """Return how often copies are put into order each way, and bytes an element of them and of their gradients.

    Each permutation reads and writes: into expert order before sending and again after receiving, in 16 bits; or only
    after receiving, as it travelled. The way back likewise.
    """
    return (1.0, *exchanged_bytes(recipe, precision)) if recipe.moe.permutes_once else (2.0, BF16, BF16)


def _slot_product(model: Model, shard: Shard, leaf: str, *, combines: bool) -> Operator:
    """Make the product of each sequence's hidden states with its matrix of tokens by the slots of all experts.

    The one-hot matrix that dispatches has no gradient; that which combines holds the router's weights, and has one.
    """
    sequences = shard.tokens_sp / shard.seq_len
    slots, tokens = shard.expert_tokens / sequences, shard.seq_len + 0.0 * sequences
    kept = shard.tokens_sp if combines else np.asarray(float(model.hidden_size) * sequences)
    return Operator(
        "router",
        leaf,
        "permutation",
        "matmul",
        frozenset(("moe",)),
        m=np.asarray(model.hidden_size + 0.0 * sequences),
        n=np.asarray(tokens if combines else slots),
        k=np.asarray(slots if combines else tokens),
        groups=np.asarray(sequences),
        low_precision=False,
        has_weight=combines,
        has_parameters=False,
        kernels_backward=2.0 if combines else 1.0,
        saved_bytes=np.asarray(BF16 * slots * kept),
    )
