"""Attention that chooses its keys: what chooses, and the branches beside it."""

from __future__ import annotations

import numpy as np

from costmodel.describe.models.mixers import BlockSparse, Indexed, NativeSparse
from costmodel.describe.models.model import Model
from costmodel.step.anatomy.mixers.family import Mixer, scan, vector, weight
from costmodel.step.anatomy.operator_parts import (
    BF16,
    Array,
    AttentionShape,
    ContextExchange,
    Given,
    Operator,
    ParamBlock,
    Scan,
    Traffic,
    elementwise,
    fused_attention,
    linear,
)

# Scores of all keys before a query, in fp8 and added up over heads, written in fp32. Backward only those that were
# chosen have a gradient: that of queries and of keys.
_SCORES = Scan(
    forward_bytes="tokens * (4 * keys + heads * head_dim) + keys * 2 * head_dim",
    forward_flops="2 * tokens * keys * heads * head_dim",
    backward_bytes="tokens * chosen * (4 + 2 * head_dim)",
    backward_flops="4 * tokens * chosen * heads * head_dim",
    kernels_forward=1.0,
    kernels_backward=2.0,
    units="fp8",
)
# What the indexer learns from: attention's own probabilities of the chosen keys, once more, summed over heads.
_TARGET = Scan(
    forward_bytes="tokens * (2 * heads * qk_dim + 2 * chosen * qk_dim + 4 * chosen)",
    forward_flops="2 * tokens * chosen * heads * qk_dim",
    backward_bytes="tokens * 8 * chosen",
    backward_flops="0 * tokens",
    kernels_forward=2.0,
    kernels_backward=1.0,
)
# Scores of the means of all blocks before a query, and the choice among them.
_BLOCKS = Scan(
    forward_bytes="tokens * (2 * heads * head_dim + 8 * heads * blocks)",
    forward_flops="2 * tokens * heads * head_dim * blocks",
    backward_bytes="0 * tokens",
    backward_flops="0 * tokens",
    kernels_forward=4.0,
    kernels_backward=0.0,
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


def _indexed_params(model: Model, sizes: Indexed) -> list[ParamBlock]:
    """Return queries from the query's latent, one key with a norm, a weight a head; all whole on tensor ranks."""
    if sizes.shared:
        return []
    h, wide = float(model.hidden_size), float(sizes.heads * sizes.head_dim)
    return [
        weight("index_q", (model.q_lora_rank or h) * wide, "replicated"),
        weight("index_k", h * sizes.head_dim, "replicated"),
        weight("index_weights", h * sizes.heads, "replicated"),
        vector("index_norm", 2.0 * sizes.head_dim, "replicated"),
    ]


def _indexed_operators(given: Given, sizes: Indexed) -> list[Operator]:
    if sizes.shared:
        return []
    shard, model, t, h = given.shard, given.model, given.tokens, given.hidden
    heads, dim = float(sizes.heads), float(sizes.head_dim)
    latent = float(model.q_lora_rank or model.hidden_size)
    chosen, width = met(given, float(sizes.top_k)), core_widths(model)[0]
    rotated = t * (heads + 1.0) * dim
    scores = _SCORES.of(tokens=t, keys=0.5 * shard.span, heads=heads, head_dim=dim, chosen=chosen)
    kept = 4.0 * t * np.minimum(sizes.top_k, shard.span)
    target = _TARGET.of(tokens=t, chosen=chosen, heads=given.heads, qk_dim=width)
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


def _block_operators(given: Given, sizes: BlockSparse) -> list[Operator]:
    """Return how blocks are chosen by the means of their keys: no parameters."""
    t, heads, dim = given.tokens, given.heads, float(given.model.head_dim)
    work = _BLOCKS.of(tokens=t, heads=heads, head_dim=dim, blocks=0.5 * given.shard.span / float(sizes.block))
    return [
        elementwise("mixer", "block_means", t * given.kv_heads * dim, Traffic(2, 0, 1, 0)),
        scan(work, 4.0 * t * heads * float(sizes.top_k), leaf="block_scores"),
    ]


def _native_params(model: Model, sizes: NativeSparse) -> list[ParamBlock]:
    """Return keys and values of two more branches, what compresses a block of each, and three gates a head."""
    h = float(model.hidden_size)
    kv = float(model.num_kv_heads * (model.head_dim + model.v_head_dim))
    block = float(sizes.compress_block)
    squeezed = block * (float(model.head_dim) ** 2 + float(model.v_head_dim) ** 2)
    return [
        weight("branches", 2.0 * kv * h),
        weight("compress", squeezed, "replicated"),
        vector("compress.position", block * (model.head_dim + model.v_head_dim), "replicated"),
        weight("gates", 3.0 * model.num_heads * h),
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


def _native_operators(given: Given, sizes: NativeSparse) -> list[Operator]:
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


INDEXED = Mixer(
    name="indexed",
    params=_indexed_params,
    operators=_indexed_operators,
    flops="(1 - shared) * 2 * heads * head_dim * keys",
    state="(1 - shared) * head_dim * tokens",
    source="DeepSeek-V3.2, arXiv:2512.02556, section 2.1, equations 1 to 4; deepseek-ai/DeepGEMM fp8_mqa_logits; "
    "deepseek-ai/FlashMLA sparse prefill",
)
BLOCK_SPARSE = Mixer(
    name="block-sparse",
    params=lambda model, sizes: [],
    operators=_block_operators,
    flops="0 * keys",
    state="0",
    source="E. Lu et al., MoBA, arXiv:2502.13189, equations 2 to 7 and algorithm 1; MoonshotAI/MoBA moba_efficient.py",
)
NATIVE_SPARSE = Mixer(
    name="native-sparse",
    params=_native_params,
    operators=_native_operators,
    flops="0 * keys",
    state="0",
    source="J. Yuan et al., arXiv:2502.11089, sections 3.2 and 3.3; fla-org/native-sparse-attention",
)
