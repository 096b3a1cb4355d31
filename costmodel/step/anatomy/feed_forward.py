"""The operators of an MLP and of a mixture of experts: what each computes, moves and keeps for the backward pass.

Sizes are of one micro-batch on one rank, already divided by the parallel degrees that split the operator.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from costmodel.physics.network.expert_dispatch import DISPATCHERS
from costmodel.step.anatomy.operator_parts import (
    BF16,
    CLAMP,
    GELU_CHAIN,
    GELU_FUSED,
    GROUPED_EPILOGUE,
    ONE,
    SWIGLU_CHAIN,
    SWIGLU_FUSED,
    Array,
    Cast,
    Given,
    Number,
    Operator,
    Part,
    Role,
    ScalarWork,
    Traffic,
    bias_gradients,
    elementwise,
    exchanged_bytes,
    first_norm,
    input_operators,
    kept_inputs,
    linear,
    quantise,
    residual,
)

# Sums of a layer's branches: autograd adds the gradients that router, experts and shared expert have of one input, a
# kernel a sum; forward the shared expert's output is added to theirs (NVIDIA/Megatron-LM megatron/core/transformer/moe/
# moe_layer.py; pytorch/pytorch torch/csrc/autograd/input_buffer.cpp).
_ROUTED = Traffic(0, 6, 0, 1)
_ROUTED_AND_SHARED = Traffic(6, 12, 1, 2)
# Bias of the experts' second layer, times the router's fp32 probability: product (4 B) and sum (2 and 4 in, 4 out) of two
# dtypes, concatenation (8) and cast (6). Backward the cast to fp32 (6) and back (6), two products with broadcast factors
# (8 each), their sums (4 each) and a concatenation (4). NVIDIA/Megatron-LM megatron/core/transformer/moe/experts.py,
# TEGroupedMLP._apply_bias.
_EXPERT_BIAS = Traffic(28, 40, 5, 8, scalar_forward=(2, 14), scalar_backward=(3, 22))
# Kernels of router and preprocessing, forward, as PyTorch operators and fused, where the dispatcher brings none
# (NVIDIA/Megatron-LM docs/discussions/deepseek-v3-gb200-optimization, 2.1.4 and 2.2.1).
_ROUTER_KERNELS = {False: 72.0, True: 31.0}


def mlp_operators(given: Given) -> list[Operator]:
    """Return the operators of a dense MLP block, norm and residual included."""
    t, width = given.tokens, float(given.model.ffn_size) / given.shard.tp
    ops = [first_norm(given, "mlp", kept_inputs(given, "mlp")), *_two_layers(given, "mlp", width)]
    ops += input_operators(given, "mlp")
    if given.model.linear_bias:
        ops.append(bias_gradients("mlp", t * width + given.shard.tokens_sp * given.hidden))
    return [*ops, residual(given, "mlp")]


_EXPERTS_BESIDE = 10.0
"""Experts that a grouped product in 8 or 4 bits costs the host beside those it has: a layer of Qwen3-30B takes 9.4 ms on H100
with 16 local experts and 9.6 with 8, with the exchange overlapped 16.7 with 16 and 13.5 (Qwen3-235B) with 4. [-]"""


def _two_layers(given: Given, part: Part, width: Number) -> list[Operator]:
    """Return fc1, activation, fc2 on all tokens of a rank, or on those of each of its experts."""
    model, recipe, precision, h = given.model, given.recipe, given.precision, given.hidden
    experts = part == "experts"
    groups = given.shard.local_experts if experts else ONE
    tokens = given.shard.expert_tokens / groups if experts else given.tokens
    gated = model.gated_mlp
    up = 2.0 * width if gated else width
    rows = tokens * groups
    # Experts get their tokens by exchange, not by gathering a sequence shard.
    sharded = (rows if experts else given.shard.tokens_sp) * h
    fused = recipe.kernels.fused_activation or recipe.kernels.compiled
    gelu, swiglu = (GELU_FUSED, SWIGLU_FUSED) if fused else (GELU_CHAIN, SWIGLU_CHAIN)
    # What the host issues for all experts: one kernel, or one each from a loop in C++ or in Python.
    share = recipe.moe.grouped_launch_share if recipe.moe.grouped_gemm else 1.0
    quantised = (
        recipe.moe.grouped_launch_share_quantised if precision.cast_bytes and recipe.moe.grouped_gemm else 0.0
    )
    by_host = np.maximum(share * groups, quantised * (groups + _EXPERTS_BESIDE))
    loop = np.maximum(1.0, by_host) if experts else ONE
    # The block scales of all experts are rearranged in one kernel an operand.
    launches = np.asarray(loop + precision.scale_kernels)
    # Unfused SwiGLU keeps the activated gate besides; GELU is one kernel, which needs its input only.
    extra = BF16 if gated and not fused else 0.0
    traffic = swiglu if gated else gelu
    clamped = model.activation_clamp and not recipe.kernels.compiled
    cast = Cast(sharded, rows * up, rows * h, rows * width, sharded)
    if recipe.moe.fused_grouped_mlp and experts and precision.scale_kernels > 0.0:
        # fc1 and the input gradient of fc2 write what they computed activated and quantised: no kernel reads it back.
        written = 1.0 - BF16 / precision.cast_bytes
        cast = cast._replace(row_input=rows * width * written, column_grad=cast.column_grad * written)
        traffic, clamped = GROUPED_EPILOGUE, False
    product: dict[str, Any] = {
        "kind": "grouped_matmul" if experts else "matmul",
        "groups": groups,
        "kernels_forward": launches,
        "kernels_backward": 2.0 * launches,
    }
    roles: tuple[Role, Role] = ("expert", "expert") if experts else ("column", "row")
    activation = ("moe_act" if experts else "mlp_act",)
    kept = rows * width * (given.input_bytes + extra)
    clamp = elementwise(part, "clamp", rows * up, CLAMP, BF16 * rows * up, also=activation)
    return [
        *quantise(given, part, cast, after_norm=not experts, tensors=loop),
        linear(part, "fc1", roles[0], tokens, up, h, kept=recipe.dtypes.activation_input_bytes, **product),
        *([clamp] if clamped else []),
        elementwise(part, "activation", rows * width, traffic, kept, also=activation),
        linear(part, "fc2", roles[1], tokens, h, width, **product),
    ]


def moe_operators(given: Given) -> list[Operator]:
    """Return the operators of an MoE block: norm, router, permutation, experts, shared expert."""
    model, shard, recipe = given.model, given.shard, given.recipe
    h, t_sp, experts = given.hidden, shard.tokens_sp, float(model.num_experts)
    ops = [
        first_norm(given, "mlp", t_sp),
        linear("router", "router", "replicated", t_sp, experts, h, kept=4.0, low_precision=False),
        _routing(given),
        _into_slots(given),
    ]
    width = np.asarray(model.expert_ffn_size / shard.etp)
    ops += _two_layers(given, "experts", width)
    if model.linear_bias and recipe.moe.expert_bias_chain:
        ops.append(elementwise("experts", "bias", shard.expert_tokens * h, _EXPERT_BIAS))
    if model.linear_bias and not given.precision.cast_bytes:
        # Casts sum the gradients that they quantise (Transformer Engine, bgrad_quantize).
        sides = 2.0 if model.gated_mlp else 1.0
        ops.append(bias_gradients("experts", shard.expert_tokens * width * sides))
    ops.append(_out_of_slots(given))
    if model.shared_expert_ffn_size:
        ops += _two_layers(given, "shared", np.asarray(model.shared_expert_ffn_size / shard.tp))
    if not recipe.kernels.compiled:
        branches = _ROUTED_AND_SHARED if model.shared_expert_ffn_size else _ROUTED
        ops.append(elementwise("router", "branches", t_sp * h, branches, modules=()))
    return [*ops, residual(given, "mlp")]


def _routing(given: Given) -> Operator:
    """Return scores in fp32: sigmoid or softmax, top-k, normalisation, auxiliary loss, routing maps.

    The backward pass is taken to launch half as many kernels. `torch.topk` goes over a row of the experts, and of each
    group's before them, once for every 2 bits of fp32, and twice more to write what it found
    (aten/src/ATen/native/cuda/SortingRadixSelect.cuh, RADIX_BITS; TensorTopK.cu, sbtopk::gatherTopK).
    """
    model, moe = given.model, given.recipe.moe
    kernels, own = _ROUTER_KERNELS[moe.router_fusion], DISPATCHERS[moe.moe_dispatcher].router_kernels
    if own is not None:
        kernels = own + (0.0 if moe.router_fusion else _ROUTER_KERNELS[False] - _ROUTER_KERNELS[True])
    scores = given.shard.tokens_sp * float(model.num_experts)
    chosen = scores * (2.0 if model.expert_groups else 1.0)
    made = elementwise("router", "routing", scores, Traffic(24, 24, kernels, 0.5 * kernels))
    return made._replace(
        scalar_forward=None if moe.router_fusion else ScalarWork(18.0 * chosen, 4.0 * chosen)
    )


def _into_slots(given: Given) -> Operator:
    """Put tokens into the order of their experts, or into their slots by a product."""
    if given.recipe.moe.dispatch_by_products:
        return _slot_product(given, "permute", combines=False)
    orders, dispatched, _ = _orders(given)
    elements = given.shard.expert_tokens * given.hidden
    traffic = Traffic(orders * 2.0 * dispatched, orders * 2.0 * BF16, orders, orders)
    return elementwise(
        "router", "permute", elements, traffic, given.input_bytes * elements, role="permutation"
    )


def _out_of_slots(given: Given) -> Operator:
    """Bring results back to their tokens and sum them, or do both by a product with the router's weights."""
    if given.recipe.moe.dispatch_by_products:
        return _slot_product(given, "unpermute", combines=True)
    orders, _, gradients = _orders(given)
    traffic = Traffic(orders * 2.0 * BF16, orders * 2.0 * gradients, orders, orders)
    elements = given.shard.expert_tokens * given.hidden
    return elementwise("router", "unpermute", elements, traffic, role="permutation")


def _orders(given: Given) -> tuple[float, float, float]:
    """Return how often copies are put into order each way, and bytes an element of them and of their gradients.

    Each permutation reads and writes: into expert order before sending and again after receiving, in 16 bits; or only
    after receiving, as it travelled. The way back likewise.
    """
    if given.recipe.moe.permutes_once:
        return (1.0, *exchanged_bytes(given.recipe, given.precision))
    return (2.0, BF16, BF16)


def _slot_product(given: Given, leaf: str, *, combines: bool) -> Operator:
    """Make the product of each sequence's hidden states with its matrix of tokens by the slots of all experts.

    The one-hot matrix that dispatches has no gradient; that which combines holds the router's weights, and has one.
    """
    shard = given.shard
    sequences = shard.tokens_sp / shard.seq_len
    slots, tokens = shard.expert_tokens / sequences, shard.seq_len + 0.0 * sequences
    kept: Array = shard.tokens_sp if combines else np.asarray(given.hidden * sequences)
    return linear(
        "router",
        leaf,
        "permutation",
        given.hidden + 0.0 * sequences,
        tokens if combines else slots,
        slots if combines else tokens,
        groups=sequences,
        low_precision=False,
        has_weight=combines,
        has_parameters=False,
        kernels_backward=2.0 if combines else 1.0,
        saved_bytes=np.asarray(BF16 * slots * kept),
    )
