"""The parts that the operators of mixers are made of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from costmodel.base.csv_text import read_rows
from costmodel.step.anatomy.operator_parts import (
    BF16,
    Cast,
    ContextExchange,
    Given,
    Number,
    Operator,
    Scan,
    Traffic,
    elementwise,
    first_norm,
    linear,
    quantise,
    residual,
)


def _scan(row: Mapping[str, str]) -> Scan:
    kernels = {name: float(row[name]) for name in ("kernels_forward", "kernels_backward")}
    texts = {name: row[name] for name in Scan._fields if name in row and name not in kernels}
    return Scan(**texts, **kernels)  # type: ignore[arg-type]


SCANS: Mapping[str, Scan] = {
    row["name"]: _scan(row) for row in read_rows(Path(__file__).with_name("scans.csv"))
}
"""Every recurrence in chunks, by name; ``scans.csv`` notes what its kernels move."""
CHUNK = 64.0
"""Tokens that the kernels take at a time (fla-org/flash-linear-attention, ``chunk_size`` of fla/ops)."""


def low_rank(given: Given, leaf: str, rank: float, width: Number) -> list[Operator]:
    """Return two products through a small rank: the first whole on every tensor rank, the second split."""
    t = given.tokens
    return [
        linear("mixer", f"{leaf}_down", "replicated", t, rank, given.hidden, kept=BF16),
        linear("mixer", f"{leaf}_up", "column", t, width, rank, kept=BF16),
    ]


def convolution(given: Given, channels: Number) -> Operator:
    """Return the short causal convolution, its bias and its SiLU in one kernel (Dao-AILab/causal-conv1d).

    Reads and writes an element a channel; backward reads input and gradient and writes a gradient.
    """
    elements = given.tokens * channels
    return elementwise("mixer", "conv", elements, Traffic(4, 6), BF16 * elements)


GATE = Traffic(6, 10, 1, 1)


def gate(given: Given, width: Number) -> Operator:
    """Return a gate without a norm."""
    elements = given.tokens * width
    return elementwise("mixer", "gate", elements, GATE, given.input_bytes * elements)


def gated_norm(given: Given, width: Number) -> Operator:
    """Return the norm of each head times a gate: reads both and writes one; keeps its output."""
    elements = given.tokens * width
    return elementwise("mixer", "gated_norm", elements, Traffic(6, 12, 1, 2), given.input_bytes * elements)


def scan(
    work: Scan, saved_bytes: Number, exchanges: tuple[ContextExchange, ...] = (), leaf: str = "scan"
) -> Operator:
    """Return the recurrence as its chunked kernels."""
    kernels = Traffic(0, 0, work.kernels_forward, work.kernels_backward)
    made = elementwise("mixer", leaf, 0.0, kernels, saved_bytes, role="scan", scan=work, exchanges=exchanges)
    return made._replace(kind="scan")


def heads_for_sequence(given: Given, into: Number, out: Number) -> tuple[ContextExchange, ...]:
    """Return what context parallelism sends where each rank takes some heads of the whole sequence.

    All channels of the convolution are swapped for the sequence before it, the result back after the
    recurrence (NVIDIA/Megatron-LM megatron/core/ssm/mamba_context_parallel.py; gated_delta_net.py alike).
    `into` and `out` are channels of a tensor rank. [-]
    """
    return tuple(
        ContextExchange(label, "all_to_all", np.asarray(BF16 * given.tokens * width))
        for label, width in (("heads", into), ("sequence", out))
    )


def states_of_ranks(given: Given, elements: Number) -> tuple[ContextExchange, ...]:
    """Return what context parallelism sends where every rank gets the states of all: their fp32 sums over a slice.

    W. Sun et al., "LASP-2," arXiv:2502.07563, algorithm 1. `elements` are those of a sequence's state on a
    tensor rank. [-]
    """
    size = np.asarray(4.0 * given.shard.micro_batch * elements * given.shard.cp)
    return (ContextExchange("states", "all_gather", size),)


def around(given: Given, columns: Number, rows: Number, inner: list[Operator]) -> list[Operator]:
    """Put norm, projections in and out, casts and the residual addition around the operators of a mixer.

    TP splits the `columns` of the projection in, and the `rows` of that out; both are a rank's. [-]
    """
    t, into = given.tokens, given.shard.tokens_sp * given.hidden
    cast = Cast(into, t * columns, t * given.hidden, t * rows, into)
    return [
        first_norm(given, "mixer", given.input_tokens),
        linear("mixer", "in", "column", t, columns, given.hidden, kept=BF16),
        *inner,
        linear("mixer", "out", "row", t, given.hidden, rows),
        *quantise(given, "mixer", cast),
        residual(given, "mixer"),
    ]
