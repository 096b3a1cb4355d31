"""State space: Mamba of the first and of the second kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from costmodel.step.anatomy.mixers.family import (
    MODULES,
    Given,
    Mixer,
    around,
    convolution,
    gate,
    gated_norm,
    heads_for_sequence,
    scan,
    vector,
    way_in,
    way_out,
    weight,
)
from costmodel.step.anatomy.operator_parts import BF16, Operator, Scan, linear, memory_bound

if TYPE_CHECKING:
    from costmodel.describe.models.mixers import Mamba, Mamba2
    from costmodel.describe.models.model import Model
    from costmodel.step.anatomy.operator_parts import ParamBlock

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
        [
            way_in(given, columns),
            convolution(given, mixed),
            scan(work, kept, heads_for_sequence(given, columns, inner)),
            after,
            way_out(given, inner),
        ],
        column_width=columns,
        row_width=inner,
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
    norms = memory_bound("mixer", "inner_norms", MODULES, t * small, 4.0, 12.0, kernels_forward=3.0)
    return around(
        given,
        [
            way_in(given, 2.0 * inner),
            convolution(given, inner),
            # What each tensor rank makes of its channels is a sum over all of them.
            linear(
                "mixer",
                "x_down",
                "summed",
                MODULES,
                t,
                np.asarray(small),
                inner,
                saved_bytes=BF16 * t * small,
            ),
            *([norms] if sizes.inner_norms else []),
            linear(
                "mixer",
                "step_up",
                "column",
                MODULES,
                t,
                inner,
                np.asarray(rank),
                saved_bytes=BF16 * t * inner,
            ),
            scan(work, np.asarray(BF16 * t * inner), heads_for_sequence(given, 2.0 * inner, inner)),
            way_out(given, inner),
        ],
        column_width=2.0 * inner,
        row_width=inner,
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
