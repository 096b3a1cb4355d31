"""The operators of a transformer layer: what each computes, moves and keeps for the backward pass.

One table per layer kind serves both bills: `axes.compute` turns it into seconds, and the memory
lines add up what it saves. Sizes are of one micro-batch on one rank, already divided by the
parallel degrees that split the operator.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from costmodel.describe.hardware.attention_kernels import ATTENTION_KERNELS
from costmodel.physics.network.expert_dispatch import DISPATCHERS
from costmodel.step.anatomy.mixers import mixer_operators
from costmodel.step.anatomy.mixers.family import Given
from costmodel.step.anatomy.mixers.sparse import core_widths
from costmodel.step.anatomy.operator_parts import (
    ADD_FUSED,
    BF16,
    CLAMP,
    GELU_CHAIN,
    GELU_FUSED,
    GROUPED_EPILOGUE,
    ONE,
    ROPE_BY_ELEMENT,
    ROPE_CHAIN,
    ROPE_FUSED,
    ROUTED,
    ROUTED_AND_SHARED,
    SOFTMAX_CHAIN,
    SOFTMAX_DROPOUT,
    SOFTMAX_FUSED,
    SWIGLU_CHAIN,
    SWIGLU_FUSED,
    ZERO,
    Array,
    AttentionShape,
    Cast,
    Operator,
    OperatorKind,
    Part,
    ScalarWork,
    Shard,
    Traffic,
    elementwise,
    exchanged_bytes,
    input_operators,
    input_tokens,
    kept_inputs,
    linear,
    memory_bound,
    norm_operator,
    quantise,
    residual_operator,
    saved_input_bytes,
)

if TYPE_CHECKING:
    from costmodel.describe.models.model import LayerKind, Model
    from costmodel.describe.precision import Precision
    from costmodel.describe.recipe import Recipe


def attention_operators(
    model: Model, kind: LayerKind, shard: Shard, recipe: Recipe, precision: Precision
) -> list[Operator]:
    """Return the operators of the attention block: norm, projections, rotary, core, residual."""
    h, t, t_sp, tp = float(model.hidden_size), shard.tokens, shard.tokens_sp, shard.tp
    heads = model.num_heads / tp
    kv_heads = np.maximum(model.num_kv_heads / tp, 1.0)
    d_qk, d_v = float(model.head_dim), float(model.v_head_dim)
    saved_in = saved_input_bytes(precision)
    q_width, k_width, v_width = heads * d_qk, kv_heads * d_qk, kv_heads * d_v
    if model.attention != "mla":
        k_width, v_width = k_width * (model.kv_projections > 0), v_width * (model.kv_projections == 2)
    rms = model.norm == "rmsnorm"
    whole = ("attention",)
    kept = kept_inputs("attention", model, shard, recipe)
    ops = [norm_operator("attention", "norm", t_sp * h, recipe, rms, saved_in * kept * h)]
    if model.attention == "mla":
        ops += _latent_projections(model, kind, shard, recipe, precision)
        k_width, v_width = heads * d_qk, heads * d_v
        kv_heads = heads
    else:
        gate = heads * d_v if model.attention_gate else 0.0
        saved = BF16 * t * (q_width + k_width + v_width + gate)
        ops.append(
            linear(
                "attention",
                "qkv",
                "column",
                (*whole, "qkv"),
                t,
                q_width + k_width + v_width + gate,
                np.asarray(h),
                saved_bytes=saved,
            )
        )
    if model.qk_norm:
        ops.append(
            norm_operator(
                "attention", "qk_norm", t * (q_width + k_width), recipe, rms, BF16 * t * (q_width + k_width)
            )
        )
    if model.position == "rope":
        rotated = t * (q_width + k_width)
        if model.attention == "mla":
            rotated = t * model.qk_rope_head_dim * (heads + 1.0)
        # Megatron-Core models/common/embeddings/rope_utils.py: no fused kernel where the magnitude is scaled.
        one_kernel = recipe.kernels.fused_rope and not model.rope_concentration
        traffic = ROPE_FUSED if one_kernel or recipe.kernels.compiled else ROPE_CHAIN
        narrow = model.attention == "mla" and model.qk_rope_head_dim <= 64
        if traffic is ROPE_FUSED and recipe.kernels.rope_by_element and narrow:
            traffic = ROPE_BY_ELEMENT
        # What Megatron-Core calls mla_up_proj ends with the rotation (multi_latent_attention.py, qkv_up_proj_and_rope_apply).
        again = (*whole, "mla_up_proj") if model.attention == "mla" else whole
        ops.append(elementwise("attention", "rope", again, np.asarray(rotated), traffic))
    width = t * (q_width + k_width + v_width)
    ops += quantise("attention", whole, Cast(t_sp * h, t * heads * d_v, width, t_sp * h, t * h), precision)
    ops += _core(model, kind, shard, recipe, heads, kv_heads)
    if model.attention_gate:
        gated = np.asarray(t * heads * d_v)
        ops.append(elementwise("attention", "gate", whole, gated, SWIGLU_FUSED, saved_in * gated))
    ops.append(linear("attention", "out", "row", whole, t, np.asarray(h), heads * d_v))
    ops += input_operators("attention", whole, model, shard, recipe)
    if model.linear_bias:
        ops += _bias_gradients("attention", whole, t * (q_width + k_width + v_width) + t_sp * h)
    ops.append(residual_operator("attention", t_sp * h, recipe))
    return ops


def _latent_projections(
    model: Model, kind: LayerKind, shard: Shard, recipe: Recipe, precision: Precision
) -> list[Operator]:
    """MLA: down-projections (replicated over TP, on sharded tokens) and up-projections per head.

    DeepSeek-V2, arXiv:2405.04434, equations 9-19.
    """
    h, t, t_sp = float(model.hidden_size), shard.tokens, shard.tokens_sp
    heads = model.num_heads / shard.tp
    kv_down = float(model.kv_lora_rank + model.qk_rope_head_dim)
    q_rank = float(model.q_lora_rank)
    ops: list[Operator] = []
    q_input = h
    if q_rank:
        ops.append(
            linear(
                "attention",
                "q_down",
                "replicated",
                ("attention",),
                t_sp,
                np.asarray(q_rank),
                np.asarray(h),
                saved_bytes=BF16 * t_sp * q_rank,
            )
        )
        ops.append(norm_operator("attention", "q_norm", t * q_rank, recipe, True, BF16 * t * q_rank))
        q_input = q_rank
    ops.append(
        linear(
            "attention",
            "kv_down",
            "replicated",
            ("attention",),
            t_sp,
            np.asarray(kv_down),
            np.asarray(h),
            saved_bytes=BF16 * t_sp * kv_down,
        )
    )
    ops.append(
        norm_operator(
            "attention",
            "kv_norm",
            t * float(model.kv_lora_rank),
            recipe,
            True,
            BF16 * t * float(model.kv_lora_rank),
        )
    )
    q_width = heads * float(model.head_dim)
    up = ("attention", "mla_up_proj")
    ops.append(
        linear(
            "attention", "q_up", "column", up, t, q_width, np.asarray(q_input), saved_bytes=BF16 * t * q_width
        )
    )
    kv_up = heads * float(model.qk_nope_head_dim + model.v_head_dim)
    # Where keys are chosen one by one, queries are brought into their latents instead.
    kept = heads * (core_widths(model)[0] if kind.selects else float(model.head_dim + model.v_head_dim))
    ops.append(
        linear(
            "attention",
            "kv_up",
            "column",
            up,
            t,
            kv_up,
            np.asarray(float(model.kv_lora_rank)),
            saved_bytes=BF16 * t * kept,
        )
    )
    # K is written once more with the shared rotary part copied to every head.
    ops.append(
        memory_bound(
            "attention",
            "kv_concat",
            up,
            np.asarray(t * kept),
            4.0,
            4.0,
            kernels_forward=2.0,
            kernels_backward=2.0,
        )
    )
    return ops


def _fused(shape: AttentionShape, saved: Array, modules: tuple[str, ...]) -> Operator:
    """Return attention as one fused kernel."""
    return Operator(
        "attention",
        "core",
        "core",
        "attention",
        frozenset(modules),
        saved_bytes=saved,
        kernels_backward=2.0,
        has_weight=False,
        attention=shape,
    )


def _causal_share(shard: Shard, recipe: Recipe) -> Array:
    """Share of all keys that a query of the slowest context rank meets under a causal mask. [-]

    Half of them where slices are dealt so that ranks have the same work; the last of n contiguous slices meets
    the n - 1 before it and half of its own, of a packed document as far as that reaches. Ranks that swap heads hold
    all of what they swapped.
    """
    method, contiguous = recipe.overlap.cp_method, recipe.overlap.cp_slices == "contiguous"
    met = shard.span / shard.seq_len
    if not contiguous or method == "ulysses":
        return np.asarray(0.5 * met)
    slices = 0.5 * (shard.swaps if method == "a2a+p2p" else 1.0) / shard.cp
    return np.asarray(np.maximum(0.5 * met, met - slices))


def _core(
    model: Model, kind: LayerKind, shard: Shard, recipe: Recipe, heads: Array, kv_heads: Array
) -> list[Operator]:
    """Return attention itself: one fused kernel, or two batched GEMMs around a softmax through HBM."""
    modules = ("attention", "core_attn")
    d_qk, d_v = core_widths(model) if kind.selects else (float(model.head_dim), float(model.v_head_dim))
    batch_heads = shard.micro_batch * heads
    seq_q, seq_k = shard.seq_len / shard.cp, shard.seq_len
    window = float(kind.reach) if kind.reach else np.inf
    # Packed documents do not look at each other.
    span = shard.span
    reach = np.minimum(span, window)
    out_saved = BF16 * shard.tokens * heads * d_v
    by = ATTENTION_KERNELS[recipe.kernels.attention_kernel]
    if kind.selects or not by.writes_scores:
        # A causal row sees half the keys on average; under a window nearly all of it.
        share = np.where(
            window < span, reach / seq_k * (1.0 - 0.5 * reach / span), _causal_share(shard, recipe)
        )
        lse = 4.0 * shard.tokens * heads
        shape = AttentionShape(
            batch_heads,
            seq_q,
            seq_k,
            share,
            d_qk,
            d_v,
            shard.micro_batch * kv_heads,
            np.asarray(1.0),
            # Chosen tokens are no run of tiles, in which windows are whole.
            np.asarray((window < span) & (kind.selects == 0)),
        )
        if kind.selects:
            # Any key may be chosen: all are there before attention starts.
            kv = np.asarray(1.0) if model.attention == "mla" else kv_heads
            shape = shape._replace(kv_heads=shard.micro_batch * kv)
            return [_fused(shape, np.asarray(out_saved + lse), modules)]
        if recipe.overlap.cp_method == "ring" or recipe.overlap.torch_slices:
            # One kernel a step of the ring, each over one slice of queries and one of keys.
            shape = shape._replace(seq_k=seq_k / shard.cp, calls=shard.cp)
            if recipe.overlap.torch_slices:
                shape = shape._replace(kv_heads=np.where(shard.cp > 1, batch_heads, shape.kv_heads))
        elif recipe.overlap.cp_method == "a2a+p2p":
            # After the swap: fewer heads of a longer slice, and a kernel for each slice of keys.
            steps = shard.cp / shard.swaps
            shape = shape._replace(
                heads=shape.heads / shard.swaps,
                kv_heads=shape.kv_heads / shard.swaps,
                seq_q=seq_k / steps,
                seq_k=seq_k / steps,
                calls=steps,
            )
        return [_fused(shape, np.asarray(out_saved + lse), modules)]
    scores = batch_heads * seq_q * seq_k
    fused = by.fused_softmax or recipe.kernels.compiled
    softmax = SOFTMAX_FUSED if fused else SOFTMAX_CHAIN
    ops = [
        linear(
            "attention",
            "scores",
            "core",
            modules,
            seq_q,
            seq_k,
            np.asarray(d_qk),
            groups=batch_heads,
            low_precision=False,
            has_parameters=False,
        ),
        elementwise("attention", "softmax", modules, np.asarray(scores), softmax, BF16 * scores, role="core"),
    ]
    if recipe.kernels.dropout:
        ops.append(
            elementwise(
                "attention",
                "dropout",
                modules,
                np.asarray(scores),
                SOFTMAX_DROPOUT,
                3.0 * scores,
                role="core",
            )
        )
    ops.append(
        linear(
            "attention",
            "context",
            "core",
            modules,
            seq_q,
            np.asarray(d_v),
            seq_k,
            groups=batch_heads,
            low_precision=False,
            has_parameters=False,
            saved_bytes=out_saved,
        )
    )
    return ops


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
        ops += _bias_gradients("mlp", ("mlp",), t * width + t_sp * h)
    ops.append(residual_operator("mlp", t_sp * h, recipe))
    return ops


def _bias_gradients(part: Part, modules: Iterable[str], elements: Array) -> list[Operator]:
    """Sum the output gradients over tokens: one more read of each in the backward pass."""
    return [
        memory_bound(
            part,
            "bias_gradient",
            modules,
            np.asarray(elements),
            0.0,
            BF16,
            kernels_forward=0.0,
            kernels_backward=2.0,
        )
    ]


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
        ops += _bias_gradients("experts", modules, copies * width * (2.0 if model.gated_mlp else 1.0))
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


def layer_operators(
    model: Model, kind: LayerKind, shard: Shard, recipe: Recipe, precision: Precision
) -> list[Operator]:
    """Return all operators of a layer of `kind`, in order.

    References
    ----------
    .. [1] V. Korthikanti et al., "Reducing activation recomputation in large transformer models,"
       MLSys 2023, arXiv:2205.05198, section 4 and equations 1-4 (what each operator saves).
    .. [2] T. Dao et al., "FlashAttention," NeurIPS 2022, arXiv:2205.14135 (nothing quadratic is kept).
    """
    made: list[Operator] = []
    model = model.seen_by(kind)
    if kind.attends:
        made += attention_operators(model, kind, shard, recipe, precision)
    if kind.mixer is not None:
        made += mixer_operators(Given(model, shard, recipe, precision), kind.mixer)
    if kind.has_mlp:
        block = moe_operators if kind.is_moe else mlp_operators
        made += block(model, shard, recipe, precision)
    return [*made, *_layer_embedding(model, shard, recipe)]


def _layer_embedding(model: Model, shard: Shard, recipe: Recipe) -> list[Operator]:
    """Return how a layer adds its own embedding: a gate of the hidden state, their product, back to the width, a norm.

    transformers modeling_gemma4.py, ``per_layer_input_gate`` to ``post_per_layer_input_norm``.
    """
    if not (own := float(model.layer_embedding_size)):
        return []
    t, h, modules = shard.tokens_sp, float(model.hidden_size), ("mlp",)
    gate = np.asarray(BF16 * t * own)
    return [
        linear(
            "mlp", "layer_gate", "replicated", modules, t, np.asarray(own), np.asarray(h), saved_bytes=gate
        ),
        elementwise("mlp", "layer_product", modules, np.asarray(t * own), SWIGLU_FUSED, gate),
        linear(
            "mlp",
            "layer_projection",
            "replicated",
            modules,
            t,
            np.asarray(h),
            np.asarray(own),
            saved_bytes=np.asarray(BF16 * t * h),
        ),
        norm_operator("mlp", "layer_norm", t * h, recipe, model.norm == "rmsnorm", ZERO),
        residual_operator("mlp", t * h, recipe),
    ]


def embedding_operators(model: Model, shard: Shard, recipe: Recipe) -> list[Operator]:
    """Return the token (and position) look-up; its backward scatters into fp32 rows."""
    elements = shard.tokens * float(model.hidden_size)
    mask = 1.0 if recipe.kernels.dropout else 0.0
    saved = shard.tokens_sp * float(model.hidden_size) * mask
    return [
        *_embedding_of_layers(model, shard, recipe),
        memory_bound(
            "embedding",
            "lookup",
            (),
            np.asarray(elements),
            4.0,
            8.0,
            kernels_forward=3.0,
            kernels_backward=3.0,
            saved_bytes=saved,
        ),
    ]


def _embedding_of_layers(model: Model, shard: Shard, recipe: Recipe) -> list[Operator]:
    """Return the look-up of all layers' own embeddings, and the projection of the first that is added to them.

    transformers modeling_gemma4.py, ``get_per_layer_inputs`` and ``project_per_layer_inputs``.
    """
    if not model.layer_embedding_size:
        return []
    t, h = shard.tokens, np.asarray(float(model.hidden_size))
    width = np.asarray(float(model.num_layers * model.layer_embedding_size))
    kept = np.asarray(BF16 * t * width)
    return [
        memory_bound(
            "embedding",
            "of_layers",
            (),
            np.asarray(t * width),
            4.0,
            8.0,
            kernels_forward=2.0,
            kernels_backward=2.0,
        ),
        linear("embedding", "of_layers_projection", "replicated", (), t, width, h, saved_bytes=kept),
        norm_operator("embedding", "of_layers_norm", t * width, recipe, model.norm == "rmsnorm", kept),
        # The sum of both, halved in variance.
        elementwise("embedding", "of_layers_sum", (), np.asarray(t * width), ADD_FUSED),
    ]


# HBM traffic of the loss per logit, and the bytes per logit that are alive at its peak: those of the
# recipe; logits and gradient in half precision; a chunk of 1,024 tokens.
_LOSS = {
    "unfused": (Traffic(34, 10, 10, 4), None),
    "fused": (Traffic(6, 4, 3, 1), 4.0),
    "chunked": (Traffic(6, 4, 16, 0), 8.0),
}
_CHUNK_TOKENS = 1024.0


def head_operators(model: Model, shard: Shard, recipe: Recipe) -> list[Operator]:
    """Return the final norm, the logits GEMM and the cross-entropy over vocabulary shards.

    Unfused cross-entropy goes through an fp32 copy of the logits in several passes (maximum,
    subtract, exponentiate, sum, gradient); fused reads and writes them once each way; chunked
    does so a thousand tokens at a time and computes the gradient in the forward pass.
    """
    h, t = float(model.hidden_size), shard.tokens
    vocab = model.vocab_size / shard.tp
    # Without a parallel loss the logits are gathered and copied into one tensor, and cut up on the way back.
    seen = vocab if recipe.kernels.vocab_parallel_loss else np.asarray(float(model.vocab_size))
    gathered = t * (seen - vocab)
    norm = norm_operator(
        "head",
        "norm",
        shard.tokens_sp * h,
        recipe,
        model.norm == "rmsnorm",
        BF16 * input_tokens(shard, recipe) * h,
    )
    loss, alive = _LOSS[recipe.kernels.cross_entropy]
    if alive is None:
        held = recipe.kernels.loss_bytes_per_logit + recipe.kernels.split_loss_bytes_per_logit * (
            shard.tp > 1
        )
    else:
        held = np.asarray(alive)
    chunk = np.minimum(t, _CHUNK_TOKENS) if recipe.kernels.cross_entropy == "chunked" else t
    return [
        norm,
        linear("head", "logits", "column", (), t, vocab, np.asarray(h), low_precision=False),
        elementwise("head", "loss", (), np.asarray(t * seen), loss, held * chunk * seen),
        memory_bound("head", "gathered_logits", (), np.asarray(gathered), 4.0, 0.0, kernels_backward=0.0),
    ]
