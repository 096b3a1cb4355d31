"""Attention that chooses its keys: what chooses, and the branches beside it."""

from __future__ import annotations

import numpy as np

from costmodel.describe.models.mixers import BlockSparse, Indexed, NativeSparse
from costmodel.describe.models.model import Model
from costmodel.step.anatomy.mixers.family import SCANS, scan
from costmodel.step.anatomy.operator_parts import (
    BF16,
    Array,
    AttentionShape,
    ContextExchange,
    Given,
    Operator,
    Traffic,
    elementwise,
    fused_attention,
    linear,
)


def core_widths(model: Model) -> tuple[float, float]:
    """Widths of a query and of a value where keys are chosen one by one: latent attention stays in its latents. [-]

    DeepSeek-V3.2 computes it as attention with one key for all heads (arXiv:2512.02556, section 2.1 and appendix A).
    """
    if model.attention == "mla":
        return float(model.kv_lora_rank + model.qk_rope_head_dim), float(model.kv_lora_rank)
    return float(model.head_dim), float(model.v_head_dim)


def met(given: Given, most: float) -> Array:
    """Mean keys that a query meets where at most so many of those before it are left. [-]"""
    seq = given.shard.span
    reach = np.minimum(seq, most)
    return np.asarray(reach * (1.0 - 0.5 * reach / seq))


def indexed_operators(given: Given, sizes: Indexed) -> list[Operator]:
    """Return those of an indexer: products, scores of all keys, the choice, and what it learns from."""
    if sizes.shared:
        return []
    shard, model, t, h = given.shard, given.model, given.tokens, given.hidden
    heads, dim = float(sizes.heads), float(sizes.head_dim)
    latent = float(model.q_lora_rank or model.hidden_size)
    chosen, width = met(given, float(sizes.top_k)), core_widths(model)[0]
    rotated = t * (heads + 1.0) * dim
    scores = SCANS["index-scores"].of(
        tokens=t, keys=0.5 * shard.span, heads=heads, head_dim=dim, chosen=chosen
    )
    kept = 4.0 * t * np.minimum(sizes.top_k, shard.span)
    target = SCANS["index-target"].of(tokens=t, chosen=chosen, heads=given.heads, qk_dim=width)
    keys = (ContextExchange("keys", "all_gather", t * dim * shard.cp),)
    return [
        linear("mixer", "index_q", "replicated", t, heads * dim, latent, kept=BF16),
        linear("mixer", "index_k", "replicated", t, dim, h, kept=BF16),
        linear("mixer", "index_weights", "replicated", t, heads, h, kept=BF16, low_precision=False),
        # Norm, rotation, Hadamard transform and cast to fp8.
        elementwise("mixer", "index_rotate", rotated, Traffic(11, 12, 4, 4), rotated),
        scan(scores, kept, keys, leaf="index_scores"),
        # The top-k reads every score twice and writes indices (NVIDIA/Megatron-LM
        # megatron/core/transformer/experimental_attention_variant/dsa.py sorts them whole).
        elementwise("mixer", "index_choice", t * 0.5 * shard.span, Traffic(8, 0, 1, 0)),
        # Tensor ranks add up the probabilities of their heads.
        scan(target, 4.0 * t * chosen, leaf="index_target")._replace(
            role="summed", m=np.asarray(t), n=np.asarray(2.0 * chosen)
        ),
    ]


def block_operators(given: Given, sizes: BlockSparse) -> list[Operator]:
    """Return how blocks are chosen by the means of their keys: no parameters."""
    t, heads, dim = given.tokens, given.heads, float(given.model.head_dim)
    work = SCANS["block-scores"].of(
        tokens=t, heads=heads, head_dim=dim, blocks=0.5 * given.shard.span / float(sizes.block)
    )
    return [
        elementwise("mixer", "block_means", t * given.kv_heads * dim, Traffic(2, 0, 1, 0)),
        scan(work, 4.0 * t * heads * float(sizes.top_k), leaf="block_scores"),
    ]


def _branch(given: Given, leaf: str, keys: Array, most: Array) -> Operator:
    """Return a branch of attention whose queries meet so many of `most` keys on average."""
    shard, model = given.shard, given.model
    shape = AttentionShape(
        shard.micro_batch * given.heads,
        shard.seq_len / shard.cp,
        most,
        np.asarray(keys / most),
        float(model.head_dim),
        float(model.v_head_dim),
        shard.micro_batch * given.kv_heads,
    )
    kept = given.tokens * given.heads * (BF16 * float(model.v_head_dim) + 4.0)
    return fused_attention("mixer", leaf, shape, kept)


def native_operators(given: Given, sizes: NativeSparse) -> list[Operator]:
    """Return those of the compressed and the sliding branch, and of the choice of blocks."""
    shard, model, t, h = given.shard, given.model, given.tokens, given.hidden
    heads, kv_heads = given.heads, given.kv_heads
    d_qk, d_v = float(model.head_dim), float(model.v_head_dim)
    branches = 2.0 * kv_heads * (d_qk + d_v)
    block, stride = float(sizes.compress_block), float(sizes.compress_stride)
    many = np.maximum(shard.span / stride, 1.0)
    squeezed = t / stride * kv_heads
    gates = t * 3.0 * heads * d_v
    return [
        linear("mixer", "branches", "column", t, branches, h, kept=BF16),
        linear("mixer", "gates", "column", t, 3.0 * heads, h, kept=BF16),
        linear("mixer", "compress_k", "replicated", squeezed, d_qk, block * d_qk, kept=BF16),
        linear("mixer", "compress_v", "replicated", squeezed, d_v, block * d_v, kept=BF16),
        _branch(given, "compressed", 0.5 * many, many),
        # Compressed scores are added up to those of selected blocks, and the best are taken.
        elementwise("mixer", "select", t * kv_heads * 0.5 * many, Traffic(8, 0, 1, 0)),
        _branch(given, "sliding", met(given, float(sizes.window)), shard.seq_len),
        # Three outputs times their gates, added.
        elementwise("mixer", "gated_sum", gates, Traffic(3, 5, 1, 1), BF16 * gates),
    ]
