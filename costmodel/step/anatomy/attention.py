"""The operators of an attention block: projections, core, what each computes, moves and keeps for the backward pass.

Sizes are of one micro-batch on one rank, already divided by the parallel degrees that split the operator.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from costmodel.describe.hardware.cluster import ATTENTION_KERNELS
from costmodel.describe.models.model import LayerKind
from costmodel.describe.recipe import Recipe
from costmodel.step.anatomy.operator_parts import (
    BF16,
    RANDOM_NUMBERS,
    ROPE_BY_ELEMENT,
    ROPE_CHAIN,
    ROPE_FUSED,
    SWIGLU_FUSED,
    Array,
    AttentionShape,
    Cast,
    Given,
    Operator,
    Shard,
    Traffic,
    bias_gradients,
    core_widths,
    elementwise,
    first_norm,
    fused_attention,
    input_operators,
    kept_inputs,
    linear,
    norm,
    quantise,
    residual,
)

_SOFTMAX_FUSED = Traffic(4, 6, 1, 1)
# Under a causal mask Megatron's kernel loads a row up to its diagonal only, and writes all of it (NVIDIA/Megatron-LM
# megatron/fused_kernels/scaled_upper_triang_masked_softmax.h); rows of so many batches and heads share a block, and
# others are left to PyTorch (megatron/model/fused_softmax.py, is_kernel_available).
_SOFTMAX_CAUSAL = Traffic(3, 4, 1, 1)
_SOFTMAX_BLOCK = 4.0
_SOFTMAX_CHAIN = Traffic(29, 33, 5, 5)
SOFTMAX_DROPOUT = Traffic(5, 5, 1, 1, scalar_forward=(RANDOM_NUMBERS, 5))


def attention_operators(given: Given, kind: LayerKind) -> list[Operator]:
    """Return the operators of the attention block: norm, projections, rotary, core, residual."""
    model, shard, kernels = given.model, given.shard, given.recipe.kernels
    h, t, heads = given.hidden, given.tokens, given.heads
    d_qk, d_v = float(model.head_dim), float(model.v_head_dim)
    latent = model.attention == "mla"
    kv_heads = heads if latent else given.kv_heads
    q_width, k_width, v_width = heads * d_qk, kv_heads * d_qk, kv_heads * d_v
    into = shard.tokens_sp * h
    ops = [first_norm(given, "attention", kept_inputs(given, "attention"))]
    if latent:
        ops += _latent_projections(given, kind)
    else:
        k_width, v_width = k_width * (model.kv_projections > 0), v_width * (model.kv_projections == 2)
        gate = heads * d_v if model.attention_gate else 0.0
        width = q_width + k_width + v_width + gate
        ops.append(linear("attention", "qkv", "column", t, width, h, kept=BF16, also=("qkv",)))
    if model.qk_norm:
        normed = t * (q_width + k_width)
        ops.append(norm(given, "attention", "qk_norm", normed, BF16 * normed))
    if model.position == "rope":
        rotated = t * model.qk_rope_head_dim * (heads + 1.0) if latent else t * (q_width + k_width)
        # Megatron-Core models/common/embeddings/rope_utils.py: no fused kernel where the magnitude is scaled.
        one_kernel = kernels.fused_rope and not model.rope_concentration
        traffic = ROPE_FUSED if one_kernel or kernels.compiled else ROPE_CHAIN
        narrow = latent and model.qk_rope_head_dim <= 64
        if traffic is ROPE_FUSED and kernels.rope_by_element and narrow:
            traffic = ROPE_BY_ELEMENT
        # What Megatron-Core calls mla_up_proj ends with the rotation (multi_latent_attention.py, qkv_up_proj_and_rope_apply).
        again = ("mla_up_proj",) if latent else ()
        ops.append(elementwise("attention", "rope", rotated, traffic, also=again))
    width = t * (q_width + k_width + v_width)
    ops += quantise(given, "attention", Cast(into, width, t * h, t * heads * d_v, into))
    ops += _core(given, kind, kv_heads)
    if model.attention_gate:
        gated = t * heads * d_v
        ops.append(elementwise("attention", "gate", gated, SWIGLU_FUSED, given.input_bytes * gated))
    ops.append(linear("attention", "out", "row", t, h, heads * d_v))
    ops += input_operators(given, "attention")
    if model.linear_bias:
        ops.append(bias_gradients("attention", width + into))
    ops.append(residual(given, "attention"))
    return ops


def _latent_projections(given: Given, kind: LayerKind) -> list[Operator]:
    """MLA: down-projections (replicated over TP, on sharded tokens) and up-projections per head.

    DeepSeek-V2, arXiv:2405.04434, equations 9-19.
    """
    model, h, t, t_sp, heads = given.model, given.hidden, given.tokens, given.shard.tokens_sp, given.heads
    q_rank, kv_rank = float(model.q_lora_rank), float(model.kv_lora_rank)
    kv_down = kv_rank + model.qk_rope_head_dim
    kv_up = heads * float(model.qk_nope_head_dim + model.v_head_dim)
    # Where keys are chosen one by one, queries are brought into their latents instead.
    kept = heads * (core_widths(model)[0] if kind.selects else float(model.head_dim + model.v_head_dim))
    up = ("mla_up_proj",)
    query = [
        linear("attention", "q_down", "replicated", t_sp, q_rank, h, kept=BF16),
        norm(given, "attention", "q_norm", t * q_rank, BF16 * t * q_rank, always_rms=True),
    ]
    return [
        *(query if q_rank else []),
        linear("attention", "kv_down", "replicated", t_sp, kv_down, h, kept=BF16),
        norm(given, "attention", "kv_norm", t * kv_rank, BF16 * t * kv_rank, always_rms=True),
        linear("attention", "q_up", "column", t, heads * model.head_dim, q_rank or h, kept=BF16, also=up),
        linear("attention", "kv_up", "column", t, kv_up, kv_rank, also=up)._replace(
            saved_bytes=np.asarray(BF16 * t * kept)
        ),
        # K is written once more with the shared rotary part copied to every head.
        elementwise("attention", "kv_concat", t * kept, Traffic(4, 4, 2, 2), also=up),
    ]


def _keys_share(shard: Shard, recipe: Recipe, *, causal: bool) -> Array:
    """Share of all keys that a query of the slowest context rank meets, all of a document's without a causal mask. [-]

    Half of them where slices are assigned so that ranks have the same work; the last of n contiguous slices meets
    the n - 1 before it and half of its own, of a packed document as far as that reaches. Ranks that swap heads hold
    all of what they swapped.
    """
    method, contiguous = recipe.overlap.cp_method, recipe.overlap.cp_slices == "contiguous"
    met = shard.span / shard.seq_len
    if not causal:
        return np.asarray(met)
    if not contiguous or method == "ulysses":
        return np.asarray(0.5 * met)
    slices = 0.5 * (shard.swaps if method == "a2a+p2p" else 1.0) / shard.cp
    return np.asarray(np.maximum(0.5 * met, met - slices))


def _core(given: Given, kind: LayerKind, kv_heads: Array) -> list[Operator]:
    """Return attention itself: one fused kernel, or two batched GEMMs around a softmax through HBM."""
    model, shard, recipe = given.model, given.shard, given.recipe
    if not kind.selects and ATTENTION_KERNELS[recipe.kernels.attention_kernel].writes_scores:
        return _unfused_core(given, kind)
    d_qk, d_v = core_widths(model) if kind.selects else (float(model.head_dim), float(model.v_head_dim))
    batch_heads = shard.micro_batch * given.heads
    seq_k, span = shard.seq_len, shard.span
    window = float(kind.reach) if kind.reach else np.inf
    # Packed documents do not look at each other.
    reach = np.minimum(span, window)
    windowed = window < span
    # A causal row sees half the keys on average; under a window nearly all of it.
    masked = 0.5 * model.causal
    share = np.where(
        windowed,
        reach / seq_k * (1.0 - masked * reach / span),
        _keys_share(shard, recipe, causal=model.causal),
    )
    shape = AttentionShape(
        batch_heads,
        seq_k / shard.cp,
        seq_k,
        share,
        d_qk,
        d_v,
        shard.micro_batch * kv_heads,
        # Chosen tokens are no run of tiles, in which windows are whole.
        windowed=np.asarray(windowed & (kind.selects == 0)),
        causal=model.causal,
    )
    if kind.selects:
        # Any key may be chosen: all are there before attention starts.
        if model.attention == "mla":
            shape = shape._replace(kv_heads=shard.micro_batch)
    elif recipe.overlap.cp_method == "ring" or recipe.overlap.torch_slices:
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
    # The output, and the logarithm of each row's sum in fp32.
    kept = given.tokens * given.heads * (BF16 * d_v + 4.0)
    return [fused_attention("attention", "core", shape, kept)]


def _unfused_core(given: Given, kind: LayerKind) -> list[Operator]:
    """Return products of queries with keys and of scores with values, and what is done to scores between them."""
    shard, recipe, core = given.shard, given.recipe, ("core_attn",)
    batch_heads = shard.micro_batch * given.heads
    seq_q, seq_k = shard.seq_len / shard.cp, shard.seq_len
    d_qk, d_v = float(given.model.head_dim), float(given.model.v_head_dim)
    scores = batch_heads * seq_q * seq_k
    by_heads: dict[str, Any] = {
        "groups": batch_heads,
        "low_precision": False,
        "has_parameters": False,
        "also": core,
    }
    # The mask leaves a row up to its diagonal, and nothing else.
    triangular = (shard.cp == 1.0) & (kind.reach == 0) & given.model.causal
    softmax = _softmax(batch_heads, triangular, recipe)
    ops = [
        linear("attention", "scores", "core", seq_q, seq_k, d_qk, **by_heads),
        elementwise("attention", "softmax", scores, softmax, BF16 * scores, role="core", also=core),
    ]
    if recipe.kernels.dropout:
        ops.append(
            elementwise("attention", "dropout", scores, SOFTMAX_DROPOUT, 3.0 * scores, role="core", also=core)
        )
    return [*ops, linear("attention", "context", "core", seq_q, d_v, seq_k, kept=BF16, **by_heads)]


def _softmax(batch_heads: Array, triangular: Array, recipe: Recipe) -> Traffic:
    """Return the softmax between two products: what a compiler makes, a chain of kernels, or one where it can be."""
    if recipe.kernels.compiled or not ATTENTION_KERNELS[recipe.kernels.attention_kernel].fused_softmax:
        return _SOFTMAX_FUSED if recipe.kernels.compiled else _SOFTMAX_CHAIN
    in_blocks = np.mod(batch_heads, _SOFTMAX_BLOCK) == 0.0
    chosen = [
        np.where(in_blocks, np.where(triangular, causal, fused), chain)
        for causal, fused, chain in zip(
            _SOFTMAX_CAUSAL[:4], _SOFTMAX_FUSED[:4], _SOFTMAX_CHAIN[:4], strict=True
        )
    ]
    return Traffic(chosen[0], chosen[1], chosen[2], chosen[3])
