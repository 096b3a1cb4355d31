"""Linear attention: the delta rule with its gates, and a plain decay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from costmodel.step.anatomy.mixers.family import (
    MODULES,
    Given,
    Mixer,
    around,
    convolution,
    gated_norm,
    heads_for_sequence,
    low_rank,
    scan,
    states_of_ranks,
    vector,
    way_in,
    way_out,
    weight,
)
from costmodel.step.anatomy.operator_parts import BF16, Operator, Scan, memory_bound

if TYPE_CHECKING:
    from costmodel.describe.models.mixers import GatedDelta, KimiDelta, Lightning
    from costmodel.describe.models.model import Model
    from costmodel.step.anatomy.operator_parts import ParamBlock

CHUNK = 64.0
"""Tokens that the kernels take at a time (fla-org/flash-linear-attention, ``chunk_size`` of fla/ops)."""

# Bytes of a token and head, kernel by kernel: K a key's width, V a value's, C the chunk. bf16 but for the chunk's
# matrix of keys against keys (fp32, and bf16 once inverted); the state of every chunk is written and read once.
# Forward: keys by keys, their inverse, the WY representation, the states, the output.
_GATED_DELTA = Scan(
    forward_bytes="tokens * heads * (14 * key_dim + 12 * value_dim + 12 * chunk + 4 * key_dim * value_dim / chunk)",
    forward_flops="2 * tokens * heads * (3 * chunk * key_dim + 2 * chunk * value_dim + 3 * key_dim * value_dim)",
    # The WY representation and the states again, gradients of values, states, queries and keys, and of WY.
    backward_bytes="tokens * heads * (40 * key_dim + 30 * value_dim + 8 * chunk + 8 * key_dim * value_dim / chunk)",
    backward_flops="2 * tokens * heads * (7 * chunk * key_dim + 5 * chunk * value_dim + 8 * key_dim * value_dim)",
    kernels_forward=6.0,
    kernels_backward=10.0,
)
# A gate a channel in fp32 beside every read of keys, its running sum, and keys that carry it.
_KIMI_DELTA = _GATED_DELTA._replace(
    forward_bytes="tokens * heads * (42 * key_dim + 12 * value_dim + 12 * chunk + 4 * key_dim * value_dim / chunk)",
    forward_flops="2 * tokens * heads * (4 * chunk * key_dim + 2 * chunk * value_dim + 3 * key_dim * value_dim)",
    backward_bytes="tokens * heads * (76 * key_dim + 30 * value_dim + 8 * chunk + 8 * key_dim * value_dim / chunk)",
    kernels_forward=7.0,
    kernels_backward=12.0,
)
# States of every chunk, and the output; backward the gradients of states, values, queries and keys.
_LIGHTNING = Scan(
    forward_bytes="tokens * heads * (6 * key_dim + 6 * value_dim + 4 * key_dim * value_dim / chunk)",
    forward_flops="2 * tokens * heads * (chunk * key_dim + chunk * value_dim + 2 * key_dim * value_dim)",
    backward_bytes="tokens * heads * (16 * key_dim + 12 * value_dim + 10 * key_dim * value_dim / chunk)",
    backward_flops="2 * tokens * heads * (3 * chunk * key_dim + 2 * chunk * value_dim + 5 * key_dim * value_dim)",
    kernels_forward=2.0,
    kernels_backward=4.0,
)


def _gated_delta_params(model: Model, sizes: GatedDelta) -> list[ParamBlock]:
    """Return queries, keys, values, output gate, decay and strength; convolution; a norm a head; the way out."""
    h = float(model.hidden_size)
    key, value = _widths(sizes)
    return [
        weight("in", h * (2.0 * key + 2.0 * value + 2.0 * sizes.value_heads)),
        vector("conv", (2.0 * key + value) * sizes.conv_kernel),
        vector("decay", 2.0 * sizes.value_heads),
        vector("norm", sizes.value_head_dim, "replicated"),
        weight("out", value * h),
    ]


def _widths(sizes: GatedDelta) -> tuple[float, float]:
    """All keys and all values of a token. [-]"""
    return float(sizes.key_heads * sizes.key_head_dim), float(sizes.value_heads * sizes.value_head_dim)


def _gated_delta_operators(given: Given, sizes: GatedDelta) -> list[Operator]:
    shard, t = given.shard, given.tokens
    key, value = (width / shard.tp for width in _widths(sizes))
    heads = sizes.value_heads / shard.tp
    columns = 2.0 * key + 2.0 * value + 2.0 * heads
    mixed = 2.0 * key + value
    work = _GATED_DELTA.of(
        tokens=t,
        heads=heads,
        key_dim=float(sizes.key_head_dim),
        value_dim=float(sizes.value_head_dim),
        chunk=CHUNK,
    )
    # Output, and in every chunk the inverse; decay and strength in fp32.
    kept = t * heads * (BF16 * sizes.value_head_dim + BF16 * CHUNK + 8.0)
    return around(
        given,
        [
            way_in(given, columns),
            convolution(given, mixed),
            # Sigmoid and softplus of decay and strength in fp32.
            memory_bound("mixer", "gates", MODULES, t * 2.0 * heads, 12.0, 16.0),
            scan(work, kept, heads_for_sequence(given, mixed + value + 2.0 * heads, value)),
            gated_norm(given, value),
            way_out(given, value),
        ],
        column_width=columns,
        row_width=value,
    )


def _kimi_params(model: Model, sizes: KimiDelta) -> list[ParamBlock]:
    """Return queries, keys, values and their convolutions; low-rank gates of decay and output; strength; way out."""
    h, wide = float(model.hidden_size), float(sizes.heads * sizes.head_dim)
    return [
        weight("in", h * (3.0 * wide + sizes.heads)),
        vector("conv", 3.0 * wide * sizes.conv_kernel),
        weight("gates_down", 2.0 * sizes.head_dim * h, "replicated"),
        weight("gates_up", 2.0 * sizes.head_dim * wide),
        vector("decay", wide + sizes.heads),
        vector("norm", sizes.head_dim, "replicated"),
        weight("out", wide * h),
    ]


def _kimi_operators(given: Given, sizes: KimiDelta) -> list[Operator]:
    shard, t = given.shard, given.tokens
    heads, dim = sizes.heads / shard.tp, float(sizes.head_dim)
    wide = heads * dim
    columns = 3.0 * wide + heads
    work = _KIMI_DELTA.of(tokens=t, heads=heads, key_dim=dim, value_dim=dim, chunk=CHUNK)
    # Output, two matrices a chunk, and the gates' running sum in fp32.
    kept = t * heads * (BF16 * dim + 2.0 * BF16 * CHUNK + 4.0 * dim + 4.0)
    return around(
        given,
        [
            way_in(given, columns),
            *low_rank(given, "decay", dim, wide),
            *low_rank(given, "output_gate", dim, wide),
            convolution(given, 3.0 * wide),
            memory_bound("mixer", "gates", MODULES, t * wide, 6.0, 10.0),
            scan(work, kept, heads_for_sequence(given, 5.0 * wide + heads, wide)),
            gated_norm(given, wide),
            way_out(given, wide),
        ],
        column_width=columns,
        row_width=wide,
    )


def _lightning_params(model: Model, sizes: Lightning) -> list[ParamBlock]:
    """Return queries, keys, values and the output gate; a norm over all heads; the way out."""
    h, wide = float(model.hidden_size), float(sizes.heads * sizes.head_dim)
    return [weight("in", 4.0 * wide * h), vector("norm", wide), weight("out", wide * h)]


def _lightning_operators(given: Given, sizes: Lightning) -> list[Operator]:
    shard, t = given.shard, given.tokens
    heads, dim = sizes.heads / shard.tp, float(sizes.head_dim)
    wide = heads * dim
    work = _LIGHTNING.of(tokens=t, heads=heads, key_dim=dim, value_dim=dim, chunk=CHUNK)
    return around(
        given,
        [
            way_in(given, 4.0 * wide),
            # SiLU of queries, keys and values.
            memory_bound("mixer", "activation", MODULES, t * 3.0 * wide, 4.0, 6.0)._replace(
                saved_bytes=np.asarray(BF16 * t * 3.0 * wide)
            ),
            scan(work, np.asarray(BF16 * t * wide), states_of_ranks(given, heads * dim * dim)),
            gated_norm(given, wide),
            way_out(given, wide),
        ],
        column_width=4.0 * wide,
        row_width=wide,
    )


GATED_DELTA = Mixer(
    name="gated-delta",
    params=_gated_delta_params,
    operators=_gated_delta_operators,
    flops="2 * (conv_kernel * (2 * key_heads * key_head_dim + value_heads * value_head_dim)"
    " + 4 * value_heads * key_head_dim * value_head_dim)",
    state="value_heads * key_head_dim * value_head_dim"
    " + (conv_kernel - 1) * (2 * key_heads * key_head_dim + value_heads * value_head_dim)",
    source="S. Yang et al., arXiv:2412.06464, section 3; transformers modeling_qwen3_next.py; kernels of "
    "fla-org/flash-linear-attention fla/ops/gated_delta_rule/chunk.py; model FLOPs as NVIDIA/Megatron-LM counts "
    "them (gdn_layer_flops)",
)
KIMI_DELTA = Mixer(
    name="kimi-delta",
    params=_kimi_params,
    operators=_kimi_operators,
    flops="2 * (3 * conv_kernel * heads * head_dim + 4 * heads * head_dim ** 2)",
    state="heads * head_dim ** 2 + 3 * (conv_kernel - 1) * heads * head_dim",
    source="Kimi Team, arXiv:2510.26692, sections 3 and 4; moonshotai/Kimi-Linear modeling_kimi.py; kernels of "
    "fla-org/flash-linear-attention fla/ops/kda/chunk.py",
)
LIGHTNING = Mixer(
    name="lightning",
    params=_lightning_params,
    operators=_lightning_operators,
    flops="4 * heads * head_dim ** 2",
    state="heads * head_dim ** 2",
    source="Z. Qin et al., arXiv:2401.04658, algorithms 1 and 2; MiniMax-01, arXiv:2501.08313, section 2.2; "
    "transformers modeling_minimax.py",
)
