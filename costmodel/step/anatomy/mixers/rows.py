"""The operators of a mixer from its rows of ``operators.csv``, in the order in which they run.

A row without a role gives a name to what later rows use. Sizes are those on a rank, formulas over the sizes of the mixer
and `_sizes_of_rank`. A product has `width` columns and `inputs`, and `rows` where it does not multiply every token; in
16 bits, whatever the job's precision, where its `traffic` is bf16. ``pointwise`` touches `width` elements a token, with
`traffic` as `Traffic` takes it. A ``scan`` is a row of ``scans.csv``, of the mixer's name or its own; TP sums a result of
`width` elements a token. ``core`` is attention whose queries meet `width` keys on average, of `inputs`. `kept` are bytes
an element of a product's or a pointwise result, and bytes a token of a scan or of attention.

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

from costmodel.base.csv_text import read_records, read_rows
from costmodel.bill.formula import evaluate, inputs_of
from costmodel.step.anatomy.operator_parts import (
    Array,
    AttentionShape,
    Cast,
    ContextExchange,
    Given,
    Number,
    Operator,
    Scan,
    Traffic,
    core_widths,
    elementwise,
    first_norm,
    fused_attention,
    linear,
    quantise,
    residual,
)

SCANS: Mapping[str, Scan] = read_records(Path(__file__).with_name("scans.csv"), Scan)
"""Every recurrence in chunks, by name; ``scans.csv`` notes what its kernels move."""
_ROWS: Mapping[str, list[dict[str, Any]]] = {
    kind: list(rows)
    for kind, rows in groupby(read_rows(Path(__file__).with_name("operators.csv")), itemgetter("of"))
}
CHUNK = 64.0
"""Tokens that the kernels take at a time (fla-org/flash-linear-attention, ``chunk_size`` of fla/ops), unless a model says."""


def operators_of(kind: str, given: Given, sizes: Mapping[str, float]) -> list[Operator]:
    """Return the operators of a kind of mixer; norm, casts and residual addition around one with a way in and out."""
    numbers: dict[str, Number] = {"chunk": CHUNK, **_sizes_of_rank(given), **sizes}

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
            exchanges = [one.split(maxsplit=2) for one in row["exchanges"].split(" | ") if one]
            sent = tuple(ContextExchange(name, way, number(size)) for name, way, size in exchanges)
            work = SCANS[kind if leaf == "scan" else leaf.replace("_", "-")].of(**numbers)
            made[leaf] = _scan(leaf, work, t * kept, sent)
            if row["width"]:
                made[leaf] = made[leaf]._replace(role="summed", m=np.asarray(t), n=width)
        elif role == "core":
            made[leaf] = fused_attention(
                "mixer", leaf, _branch(given, width, number(row["inputs"])), t * kept
            )
        elif role == "pointwise":
            traffic = Traffic(*map(float, row["traffic"].split()))  # type: ignore[arg-type]
            made[leaf] = elementwise("mixer", leaf, t * width, traffic, t * width * kept)
            made[leaf] = made[leaf]._replace(neighbour_bytes=number(row["neighbour"]))
        else:
            size = (number(row["rows"] or "tokens"), width, number(row["inputs"]))
            low = row["traffic"] != "bf16"
            made[leaf] = linear("mixer", leaf, role, *size, kept=float(kept), low_precision=low)
    if "in" not in made:
        return [*made.values()]
    cast = Cast(into, t * made["in"].n, t * given.hidden, t * made["out"].k, into)
    return [
        first_norm(given, "mixer", given.input_tokens),
        *made.values(),
        *quantise(given, "mixer", cast),
        residual(given, "mixer"),
    ]


def _sizes_of_rank(given: Given) -> dict[str, Number]:
    """Return what formulas may use besides a mixer's sizes."""
    model, shard = given.model, given.shard
    tokens = {"tokens": given.tokens, "span": shard.span, "seq_len": shard.seq_len}
    ranks = {"tp": shard.tp, "cp": shard.cp, "micro_batch": shard.micro_batch}
    heads = {"model_heads": given.heads, "kv_heads": given.kv_heads}
    widths = {"hidden": given.hidden, "latent": float(model.q_lora_rank or model.hidden_size)}
    widths |= {
        "qk_dim": float(model.head_dim),
        "v_dim": float(model.v_head_dim),
        "core_dim": core_widths(model)[0],
    }
    return {**tokens, **ranks, **heads, **widths, "input_bytes": given.input_bytes}


def _scan(leaf: str, work: Scan, saved_bytes: Number, exchanges: tuple[ContextExchange, ...]) -> Operator:
    """Return a recurrence as its chunked kernels."""
    kernels = Traffic(0, 0, work.kernels_forward, work.kernels_backward)
    made = elementwise("mixer", leaf, 0.0, kernels, saved_bytes, role="scan", scan=work, exchanges=exchanges)
    return made._replace(kind="scan")


def _branch(given: Given, keys: Array, most: Array) -> AttentionShape:
    """Return a branch of attention whose queries meet so many of `most` keys on average."""
    shard, model = given.shard, given.model
    return AttentionShape(
        shard.micro_batch * given.heads,
        shard.seq_len / shard.cp,
        most,
        np.asarray(keys / most),
        float(model.head_dim),
        float(model.v_head_dim),
        shard.micro_batch * given.kv_heads,
    )
