"""A user's own kernel timings in CSV: matrix products, fused attention, memory-bound kernels.

The kind is told by the columns. A product has ``m, n, k, dtype``, an attention ``batch, seq_len,
heads, head_dim, op`` (attention_fwd, attention_bwd or attention_fwd_bwd), a memory-bound kernel
``bytes``; each has one of ``time_us``, ``time_ms``, ``time_s`` or ``tflops``. What is wrong is told
by file and line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from costmodel.base.errors import DataError
from costmodel.describe.hardware.kernels import FP8_ATTENTION, PEAK_KEY
from costmodel.trust.published_runs import read_table

Rows = np.recarray[Any, Any]
"""Timings of one kernel, in columns: those of `MATMUL`, `ATTENTION` or `MEMORY`, and ``source``."""

MATMUL = ("m", "n", "k", "groups", "output_bytes", "accumulate", "sustained", "cast", "time_s")
ATTENTION = (
    *("batch", "seq_len", "heads", "kv_heads", "qk_head_dim", "v_head_dim", "causal"),
    # 0 forward, 1 backward, 2 both; whether the host was timed too; keys that a query sees at most, 0 for all.
    *("passes", "host_timed", "window", "time_s"),
)
MEMORY = ("size_bytes", "time_s")

PASSES = {"attention_fwd": 0.0, "attention_bwd": 1.0, "attention_fwd_bwd": 2.0}
PASS_FLOPS = (1.0, 2.5, 3.5)
"""FLOPs of a pass over those of the forward one: two products forward, five backward."""
TIMES = {"time_us": 1e-6, "time_ms": 1e-3, "time_s": 1.0}
_YES, _NO = ("true", "1", "yes"), ("false", "0", "no", "")
_KINDS = ("m, n, k, dtype", "batch, seq_len, heads, head_dim, op", "bytes")
"""Columns that each kind of table needs."""

INPUT_BYTES = {
    "fp32": 4.0,
    "tf32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "fp8-block": 1.0,
    "mxfp8": 1.03,
    "nvfp4": 0.5625,
}
"""Bytes an element of an operand, block scales included."""


def table_of(columns: Sequence[str], rows: Sequence[Sequence[float]], sources: Sequence[str] = ()) -> Rows:
    """Return timings as columns of numbers, with where each is from: the user's own by default."""
    numbers = np.array(rows, dtype=np.float64).reshape(len(rows), len(columns)).T
    named = np.array(sources or ["own"] * len(rows))
    kinds = [*((name, np.float64) for name in columns), ("source", named.dtype)]
    return np.rec.fromarrays([*numbers, named], dtype=kinds)


class Timings(NamedTuple):
    """What CSV files hold."""

    matmul: Mapping[tuple[str, str], Rows]  # By operator (matmul, grouped_matmul) and dtype
    attention: Mapping[str, Rows]  # By kernel
    memory: Rows | None


def read_timings(paths: Sequence[Path], peak_flops_per_s: Mapping[str, float]) -> Timings:
    """Read CSV files of timings on one accelerator; faster than its peaks is an error, too."""
    matmul: dict[tuple[str, str], list[list[float]]] = {}
    attention: dict[str, list[list[float]]] = {}
    memory: list[list[float]] = []
    for path in paths:
        columns, rows = read_table(path)
        if not any({*kind.split(", ")} <= {*columns} for kind in _KINDS):
            raise DataError(f"{path}: expected the columns {' or '.join(_KINDS)}")
        if not {*TIMES, "tflops"} & {*columns}:
            raise DataError(f"{path}: expected a column time_us, time_ms, time_s or tflops")
        for line, row in rows:
            try:
                if "m" in row:
                    key, values = _matmul(row, peak_flops_per_s)
                    matmul.setdefault(key, []).append(values)
                elif "seq_len" in row:
                    kernel, values = _attention(row, peak_flops_per_s)
                    attention.setdefault(kernel, []).append(values)
                else:
                    memory.append([_positive(row, "bytes"), _time(row, None)])
            except DataError as error:
                raise DataError(f"{path}: line {line}: {error}") from None
    return Timings(
        {key: table_of(MATMUL, rows) for key, rows in matmul.items()},
        {key: table_of(ATTENTION, rows) for key, rows in attention.items()},
        table_of(MEMORY, memory) if memory else None,
    )


def _positive(row: Mapping[str, str], key: str, default: float | None = None) -> float:
    """Return a number above zero."""
    text = row.get(key, "")
    if text == "" and default is not None:
        return default
    try:
        value = float(text)
    except ValueError:
        raise DataError(f"{key}: expected a number; got {text!r}") from None
    if not (math.isfinite(value) and value > 0):
        raise DataError(f"{key}: expected a number above 0; got {text}")
    return value


def _flag(row: Mapping[str, str], key: str) -> bool:
    """Return a yes or no, no where it is empty."""
    text = row.get(key, "").lower()
    if text not in (*_YES, *_NO):
        raise DataError(f"{key}: expected true or false; got {row[key]!r}")
    return text in _YES


def _time(row: Mapping[str, str], flops: float | None, peak: float = math.inf) -> float:
    """Return seconds, from a time or a rate; at most the peak."""
    for key, scale in TIMES.items():
        if row.get(key, "") != "":
            time_s = _positive(row, key) * scale
            break
    else:
        if flops is None or not row.get("tflops", ""):
            raise DataError("expected a time" if flops is None else "expected a time or tflops")
        time_s = flops / (_positive(row, "tflops") * 1e12)
    if flops is not None and flops / time_s > 1.02 * peak:
        raise DataError(
            f"{flops / time_s / 1e12:.4g} TFLOP/s, above the peak of {peak / 1e12:.4g}: mixed units?"
        )
    return time_s


def _peak(peaks: Mapping[str, float], dtype: str) -> float:
    """Return the dense peak of a dtype."""
    if dtype not in PEAK_KEY:
        raise DataError(f"dtype: expected one of {', '.join(PEAK_KEY)}; got {dtype!r}")
    if PEAK_KEY[dtype] not in peaks:
        raise DataError(f"dtype: this accelerator has no {PEAK_KEY[dtype]} peak")
    return peaks[PEAK_KEY[dtype]]


def _matmul(row: Mapping[str, str], peaks: Mapping[str, float]) -> tuple[tuple[str, str], list[float]]:
    """Return operator, dtype and the numbers of one product."""
    peak = _peak(peaks, row["dtype"])
    dtype = "bf16" if row["dtype"] == "fp16" else row["dtype"]  # the same units at the same rate
    m, n, k = (_positive(row, key) for key in "mnk")
    groups = _positive(row, "groups", 1.0) * _positive(row, "batch", 1.0)
    time_s = _time(row, 2.0 * m * n * k * groups, peak)
    op = row.get("op") or ("grouped_matmul" if groups > 1 else "matmul")
    if op not in ("matmul", "grouped_matmul"):
        raise DataError(f"op: expected matmul or grouped_matmul; got {op!r}")
    accumulate = _flag(row, "accumulate")
    out = 4.0 if row.get("out_dtype", "") == "fp32" else max(2.0, min(INPUT_BYTES[dtype], 4.0))
    return (op, dtype), [m, n, k, groups, out, accumulate, _flag(row, "sustained"), 0.0, time_s]


def _attention(row: Mapping[str, str], peaks: Mapping[str, float]) -> tuple[str, list[float]]:
    """Return kernel and numbers of one attention."""
    if row["op"] not in PASSES:
        raise DataError(f"op: expected one of {', '.join(PASSES)}; got {row['op']!r}")
    which = PASSES[row["op"]]
    batch, seq, heads = (_positive(row, key) for key in ("batch", "seq_len", "heads"))
    qk = _positive(row, "qk_head_dim", _positive(row, "head_dim"))
    v = _positive(row, "v_head_dim", _positive(row, "head_dim"))
    causal = _flag(row, "causal")
    flops = 2.0 * batch * heads * seq * seq * (0.5 if causal else 1.0) * (qk + v) * PASS_FLOPS[int(which)]
    kernel = row.get("kernel") or "flash2"
    time_s = _time(row, flops, _peak(peaks, "fp8" if kernel == FP8_ATTENTION else "bf16"))
    kv_heads = _positive(row, "kv_heads", heads)
    window = _positive(row, "window") if row.get("window") else 0.0
    numbers = [batch, seq, heads, kv_heads, qk, v, causal, which, 0.0, window, time_s]
    return kernel, numbers
