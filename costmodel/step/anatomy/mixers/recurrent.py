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
from costmodel.step.anatomy.mixers.family import (
    CHUNK,
    GATE,
    SCANS,
    around,
    convolution,
    gate,
    gated_norm,
    heads_for_sequence,
    low_rank,
    scan,
    states_of_ranks,
)
from costmodel.step.anatomy.operator_parts import (
    BF16,
    Given,
    Operator,
    Traffic,
    elementwise,
    linear,
)


def gated_delta_operators(given: Given, sizes: GatedDelta) -> list[Operator]:
    """Return those of a gated delta rule, its convolution and its gates."""
    shard, t = given.shard, given.tokens
    key = sizes.key_heads * sizes.key_head_dim / shard.tp
    value = sizes.value_heads * sizes.value_head_dim / shard.tp
    heads = sizes.value_heads / shard.tp
    columns = 2.0 * key + 2.0 * value + 2.0 * heads
    mixed = 2.0 * key + value
    work = SCANS["gated-delta"].of(
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


def kimi_operators(given: Given, sizes: KimiDelta) -> list[Operator]:
    """Return those of Kimi delta attention, whose gates go through low ranks."""
    shard, t = given.shard, given.tokens
    heads, dim = sizes.heads / shard.tp, float(sizes.head_dim)
    wide = heads * dim
    columns = 3.0 * wide + heads
    work = SCANS["kimi-delta"].of(tokens=t, heads=heads, key_dim=dim, value_dim=dim, chunk=CHUNK)
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


def lightning_operators(given: Given, sizes: Lightning) -> list[Operator]:
    """Return those of lightning attention."""
    shard, t = given.shard, given.tokens
    heads, dim = sizes.heads / shard.tp, float(sizes.head_dim)
    wide = heads * dim
    work = SCANS["lightning"].of(tokens=t, heads=heads, key_dim=dim, value_dim=dim, chunk=CHUNK)
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


def mamba2_operators(given: Given, sizes: Mamba2) -> list[Operator]:
    """Return those of a state space with a scalar decay a head."""
    shard, t = given.shard, given.tokens
    heads = sizes.heads / shard.tp
    # Ranks beyond the groups have copies of them.
    groups = np.maximum(sizes.groups / shard.tp, 1.0)
    inner = heads * float(sizes.head_dim)
    mixed = inner + 2.0 * groups * sizes.state
    columns = inner + mixed + heads
    work = SCANS["mamba-2"].of(
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


def mamba_operators(given: Given, sizes: Mamba) -> list[Operator]:
    """Return those of a selective state space."""
    shard, t = given.shard, given.tokens
    inner, rank, state = sizes.inner / shard.tp, float(sizes.dt_rank), float(sizes.state)
    small = rank + 2.0 * state
    work = SCANS["mamba"].of(tokens=t, channels=inner, state=state)
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


def convolution_operators(given: Given, sizes: ShortConvolution) -> list[Operator]:
    """Return those of a short convolution between two gates."""
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
