"""Mixers with a state in place of keys: linear attention, state spaces, a short convolution between two gates.

Their operators are rows of ``operators.csv``, in the order in which they run. A row without a role gives a name to what
later rows use. `width` (and the `inputs` of a product) are sizes on a rank, formulas over the sizes of the mixer and
`_shard`; `kept` are bytes an element of the result, of a scan bytes a token; `traffic` as `Traffic` takes it.

A convolution is one kernel with its bias and SiLU (Dao-AILab/causal-conv1d): it reads and writes an element a channel;
backward it reads input and gradient and writes a gradient. A gated norm reads both and writes one. Context ranks swap all
channels of the convolution for the sequence before it, and the result back after the recurrence
(NVIDIA/Megatron-LM megatron/core/ssm/mamba_context_parallel.py; gated_delta_net.py alike).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.base.csv_text import read_rows
from costmodel.bill.formula import evaluate, inputs_of
from costmodel.step.anatomy.mixers.family import SCANS, scan
from costmodel.step.anatomy.operator_parts import (
    Array,
    Cast,
    ContextExchange,
    Given,
    Number,
    Operator,
    Traffic,
    elementwise,
    first_norm,
    linear,
    quantise,
    residual,
)

_ROWS: Mapping[str, list[dict[str, Any]]] = {
    kind: list(rows)
    for kind, rows in groupby(read_rows(Path(__file__).with_name("operators.csv")), itemgetter("of"))
}
CHUNK = 64.0
"""Tokens that the kernels take at a time (fla-org/flash-linear-attention, ``chunk_size`` of fla/ops), unless a model says."""


def recurrent_operators(given: Given, kind: str, sizes: Mapping[str, float]) -> list[Operator]:
    """Return the operators of one layer's mixer, between the norm and the residual addition."""
    numbers: dict[str, Number] = {"chunk": CHUNK, **_shard(given), **sizes}

    def number(text: str) -> Array:
        return evaluate(text, {name: numbers[name] for name in inputs_of(text)}) if text else np.asarray(0.0)

    t, into = given.tokens, given.shard.tokens_sp * given.hidden
    made: dict[str, Operator] = {}
    for row in _ROWS[kind]:
        leaf, role, width, kept = row["leaf"], row["role"], number(row["width"]), number(row["kept"])
        if row["only_if"] and not number(row["only_if"]):
            continue
        if not role:
            numbers[leaf] = width
        elif role == "scan":
            exchanges = (one.split(maxsplit=2) for one in row["exchanges"].split(" | "))
            sent = tuple(ContextExchange(name, way, number(size)) for name, way, size in exchanges)
            made[leaf] = scan(SCANS[kind].of(**numbers), t * kept, sent)
        elif role == "pointwise":
            traffic = Traffic(*map(float, row["traffic"].split()))  # type: ignore[arg-type]
            made[leaf] = elementwise("mixer", leaf, t * width, traffic, t * width * kept)
            made[leaf] = made[leaf]._replace(neighbour_bytes=number(row["neighbour"]))
        else:
            made[leaf] = linear("mixer", leaf, role, t, width, number(row["inputs"]), kept=float(kept))
    cast = Cast(into, t * made["in"].n, t * given.hidden, t * made["out"].k, into)
    return [
        first_norm(given, "mixer", given.input_tokens),
        *made.values(),
        *quantise(given, "mixer", cast),
        residual(given, "mixer"),
    ]


def _shard(given: Given) -> dict[str, Number]:
    """Return what formulas may use besides a mixer's sizes."""
    shard = given.shard
    sizes = {"tokens": given.tokens, "tp": shard.tp, "cp": shard.cp, "micro_batch": shard.micro_batch}
    return {**sizes, "hidden": given.hidden, "input_bytes": given.input_bytes}
