"""Mixers with a state in place of keys: linear attention, state spaces, a short convolution between two gates."""

from __future__ import annotations

import numpy as np

from costmodel.describe.models.mixers import (
    GatedDelta,
    KimiDelta,
    Lightning,
    Mamba,
    Mamba2,
    ShortConvolution,
)
from costmodel.describe.models.model import Model
from costmodel.step.anatomy.mixers.family import (
    GATE,
    Mixer,
    around,
    convolution,
    gate,
    gated_norm,
    heads_for_sequence,
    low_rank,
    scan,
    states_of_ranks,
    vector,
    weight,
)
from costmodel.step.anatomy.operator_parts import (
    BF16,
    Given,
    Operator,
    ParamBlock,
    Scan,
    Traffic,
    elementwise,
    linear,
)

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
        columns,
        value,
        [
            convolution(given, mixed),
            # Sigmoid and softplus of decay and strength in fp32.
            elementwise("mixer", "gates", t * 2.0 * heads, Traffic(12, 16)),
            scan(work, kept, heads_for_sequence(given, mixed + value + 2.0 * heads, value)),
            gated_norm(given, value),
        ],
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
        columns,
        wide,
        [
            *low_rank(given, "decay", dim, wide),
            *low_rank(given, "output_gate", dim, wide),
            convolution(given, 3.0 * wide),
            elementwise("mixer", "gates", t * wide, Traffic(6, 10)),
            scan(work, kept, heads_for_sequence(given, 5.0 * wide + heads, wide)),
            gated_norm(given, wide),
        ],
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
        4.0 * wide,
        wide,
        [
            # SiLU of queries, keys and values.
            elementwise("mixer", "activation", t * 3.0 * wide, Traffic(4, 6), BF16 * t * 3.0 * wide),
            scan(work, np.asarray(BF16 * t * wide), states_of_ranks(given, heads * dim * dim)),
            gated_norm(given, wide),
        ],
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

# Bytes of a token and head, kernel by kernel; a group's B and C serve its heads. States of chunks in fp32: written,
# carried from chunk to chunk, read. Forward: states, their passing, C times B in the chunk, the output.
_SSD = Scan(
    forward_bytes="tokens * heads * (6 * head_dim + 8 * (state + chunk) / heads_of_group"
    " + 16 * head_dim * state / chunk)",
    forward_flops="2 * tokens * heads * (chunk * state / heads_of_group + 0.5 * chunk * head_dim"
    " + 2 * head_dim * state)",
    # States again, their gradients and their way back, gradients of x, B, C and time steps.
    backward_bytes="tokens * heads * (20 * head_dim + (28 * state + 16 * chunk) / heads_of_group"
    " + 36 * head_dim * state / chunk)",
    backward_flops="2 * tokens * heads * (3 * chunk * state / heads_of_group + 2.5 * chunk * head_dim"
    " + 5 * head_dim * state)",
    kernels_forward=5.0,
    kernels_backward=10.0,
)
# One kernel a way that keeps the state in registers: x, time step and gate in, twice out; all arithmetic on vector
# units, where a state's step takes nine operations forward (A. Gu and T. Dao, arXiv:2312.00752, appendix D).
_SELECTIVE = Scan(
    forward_bytes="tokens * (10 * channels + 4 * state)",
    forward_flops="9 * tokens * channels * state",
    backward_bytes="tokens * (20 * channels + 16 * state)",
    backward_flops="25 * tokens * channels * state",
    kernels_forward=1.0,
    kernels_backward=1.0,
    units="fp32",
)


def _mamba2_params(model: Model, sizes: Mamba2) -> list[ParamBlock]:
    """Return gate, x, B, C and time steps; the convolution of x, B, C; decay, skip, step bias; norm; way out."""
    h, inner = float(model.hidden_size), float(sizes.heads * sizes.head_dim)
    mixed = inner + 2.0 * sizes.groups * sizes.state
    return [
        weight("in", h * (inner + mixed + sizes.heads)),
        vector("in.bias", (inner + mixed + sizes.heads) * sizes.bias),
        vector("conv", mixed * (sizes.conv_kernel + sizes.conv_bias)),
        vector("decay", 3.0 * sizes.heads),
        vector("norm", inner * sizes.norm),
        weight("out", inner * h),
        vector("out.bias", h * sizes.bias, "replicated"),
    ]


def _mamba2_operators(given: Given, sizes: Mamba2) -> list[Operator]:
    shard, t = given.shard, given.tokens
    heads = sizes.heads / shard.tp
    # Ranks beyond the groups have copies of them.
    groups = np.maximum(sizes.groups / shard.tp, 1.0)
    inner = heads * float(sizes.head_dim)
    mixed = inner + 2.0 * groups * sizes.state
    columns = inner + mixed + heads
    work = _SSD.of(
        tokens=t,
        heads=heads,
        head_dim=float(sizes.head_dim),
        state=float(sizes.state),
        heads_of_group=heads / groups,
        chunk=float(sizes.chunk),
    )
    # Output, and the steps with their running sum in fp32; states are computed again.
    kept = t * (BF16 * inner + 8.0 * heads)
    after = gated_norm(given, inner) if sizes.norm else gate(given, inner)
    return around(
        given,
        columns,
        inner,
        [
            convolution(given, mixed),
            scan(work, kept, heads_for_sequence(given, columns, inner)),
            after,
        ],
    )


def _mamba_params(model: Model, sizes: Mamba) -> list[ParamBlock]:
    """Return x and gate; the convolution; time step, B and C of x; decay and skip a channel; the way out."""
    h, inner, state, rank = float(model.hidden_size), float(sizes.inner), float(sizes.state), sizes.dt_rank
    small = rank + 2.0 * state
    return [
        weight("in", 2.0 * inner * h),
        vector("in.bias", 2.0 * inner * sizes.bias),
        vector("conv", inner * (sizes.conv_kernel + sizes.conv_bias)),
        weight("x_down", inner * small),
        weight("step_up", rank * inner),
        vector("step_up.bias", inner),
        vector("decay", inner * (state + 1.0)),
        vector("inner_norms", small * sizes.inner_norms, "replicated"),
        weight("out", inner * h),
        vector("out.bias", h * sizes.bias, "replicated"),
    ]


def _mamba_operators(given: Given, sizes: Mamba) -> list[Operator]:
    shard, t = given.shard, given.tokens
    inner, rank, state = sizes.inner / shard.tp, float(sizes.dt_rank), float(sizes.state)
    small = rank + 2.0 * state
    work = _SELECTIVE.of(tokens=t, channels=inner, state=state)
    norms = elementwise("mixer", "inner_norms", t * small, Traffic(4, 12, 3))
    return around(
        given,
        2.0 * inner,
        inner,
        [
            convolution(given, inner),
            # What each tensor rank makes of its channels is a sum over all of them.
            linear("mixer", "x_down", "summed", t, small, inner, kept=BF16),
            *([norms] if sizes.inner_norms else []),
            linear("mixer", "step_up", "column", t, inner, rank, kept=BF16),
            scan(work, np.asarray(BF16 * t * inner), heads_for_sequence(given, 2.0 * inner, inner)),
        ],
    )


MAMBA = Mixer(
    name="mamba",
    params=_mamba_params,
    operators=_mamba_operators,
    flops="9 * inner * state",
    state="inner * state + (conv_kernel - 1) * inner",
    source="A. Gu and T. Dao, arXiv:2312.00752, section 3 and appendix D; state-spaces/mamba mamba_simple.py",
)
MAMBA_2 = Mixer(
    name="mamba-2",
    params=_mamba2_params,
    operators=_mamba2_operators,
    flops="7 * heads * head_dim * state",
    state="heads * head_dim * state + (conv_kernel - 1) * (heads * head_dim + 2 * groups * state)",
    source="T. Dao and A. Gu, arXiv:2405.21060, sections 6 and 7; state-spaces/mamba ops/triton/ssd_combined.py; model "
    "FLOPs as NVIDIA/Megatron-LM counts them (mamba_layer_flops)",
)


def _convolution_params(model: Model, sizes: ShortConvolution) -> list[ParamBlock]:
    """Return both gates and what they gate in one matrix; the convolution; the way out."""
    h, wide = float(model.hidden_size), float(sizes.channels)
    return [
        weight("in", 3.0 * wide * h),
        vector("in.bias", 3.0 * wide * sizes.bias),
        vector("conv", wide * (sizes.conv_kernel + sizes.bias)),
        weight("out", wide * h),
        vector("out.bias", h * sizes.bias, "replicated"),
    ]


def _convolution_operators(given: Given, sizes: ShortConvolution) -> list[Operator]:
    wide = np.asarray(sizes.channels / given.shard.tp)
    elements = np.asarray(given.tokens * wide)
    # A rank's first tokens need the last ones of the rank before it.
    before = np.asarray(BF16 * given.shard.micro_batch * (sizes.conv_kernel - 1.0) * wide)
    return around(
        given,
        3.0 * wide,
        wide,
        [
            elementwise("mixer", "gate_in", elements, GATE, BF16 * elements),
            convolution(given, wide)._replace(neighbour_bytes=before),
            elementwise("mixer", "gate_out", elements, GATE, BF16 * elements),
        ],
    )


SHORT_CONVOLUTION = Mixer(
    name="short-convolution",
    params=_convolution_params,
    operators=_convolution_operators,
    flops="2 * channels * conv_kernel",
    state="channels * (conv_kernel - 1)",
    source="LFM2, arXiv:2511.23404, section 2; transformers modeling_lfm2.py, Lfm2ShortConv (`slow_forward`: two gates "
    "as kernels of their own around causal-conv1d)",
)
