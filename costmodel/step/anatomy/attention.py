"""The operators of an attention block: projections, core, what each computes, moves and keeps for the backward pass.

Sizes are of one micro-batch on one rank, already divided by the parallel degrees that split the operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from costmodel.describe.hardware.attention_kernels import ATTENTION_KERNELS
from costmodel.step.anatomy.mixers.sparse import core_widths
from costmodel.step.anatomy.operator_parts import (
    BF16,
    ROPE_BY_ELEMENT,
    ROPE_CHAIN,
    ROPE_FUSED,
    SOFTMAX_BLOCK,
    SOFTMAX_CAUSAL,
    SOFTMAX_CHAIN,
    SOFTMAX_DROPOUT,
    SOFTMAX_FUSED,
    SWIGLU_FUSED,
    Array,
    AttentionShape,
    Cast,
    Operator,
    Shard,
    bias_gradients,
    elementwise,
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
        ops.append(bias_gradients("attention", whole, t * (q_width + k_width + v_width) + t_sp * h))
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
        _softmax(np.asarray(scores), batch_heads, (shard.cp == 1.0) & (kind.reach == 0), modules, recipe),
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


def _softmax(
    scores: Array, batch_heads: Array, triangular: Array, modules: tuple[str, ...], recipe: Recipe
) -> Operator:
    """Return the softmax between two products: what a compiler makes, a chain of kernels, or one where it can be.

    `triangular` tells where the mask leaves a row up to its diagonal, and nothing else.
    """
    if recipe.kernels.compiled or not ATTENTION_KERNELS[recipe.kernels.attention_kernel].fused_softmax:
        traffic = SOFTMAX_FUSED if recipe.kernels.compiled else SOFTMAX_CHAIN
        return elementwise("attention", "softmax", modules, scores, traffic, BF16 * scores, role="core")
    in_blocks = np.mod(batch_heads, SOFTMAX_BLOCK) == 0.0
    here = [np.where(in_blocks, np.where(triangular, *one[:2]), one[2]) for one in _SOFTMAXES]
    forward, backward, kernels_forward, kernels_backward = here
    return memory_bound(
        "attention",
        "softmax",
        modules,
        scores,
        forward,
        backward,
        role="core",
        kernels_forward=kernels_forward,
        kernels_backward=kernels_backward,
        saved_bytes=BF16 * scores,
    )


_SOFTMAXES = tuple(zip(SOFTMAX_CAUSAL[:4], SOFTMAX_FUSED[:4], SOFTMAX_CHAIN[:4], strict=True))
