"""A user's own kernel timings in CSV: matrix products, fused attention, memory-bound kernels.

The kind is told by the columns. A product has ``m, n, k, dtype``, an attention ``batch, seq_len,
heads, head_dim, op`` (attention_fwd, attention_bwd or attention_fwd_bwd), a memory-bound kernel
``bytes``; each has one of ``time_us``, ``time_ms``, ``time_s`` or ``tflops``. What is wrong is told
by file and line.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.base.errors import CostModelError
from costmodel.base.files import refuse_endless
from costmodel.describe.hardware.kernels import PEAK_KEY
from costmodel.interop.nccl_tests import LogProblem

Array = NDArray[np.float64]

PASSES = {"attention_fwd": 0.0, "attention_bwd": 1.0, "attention_fwd_bwd": 2.0}
PASS_FLOPS = (1.0, 2.5, 3.5)
"""FLOPs of a pass over those of the forward one: two products forward, five backward."""
TIMES = {"time_us": 1e-6, "time_ms": 1e-3, "time_s": 1.0}
_YES, _NO = ("true", "1", "yes"), ("false", "0", "no", "")


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


class MatmulRows(NamedTuple):
    """Measured products of one accelerator, operator and dtype; one entry a row."""

    m: Array
    n: Array
    k: Array
    groups: Array
    output_bytes: Array
    accumulate: Array
    sustained: Array
    cast: Array
    time_s: Array
    sources: NDArray[np.str_]

    def take(self, rows: NDArray[np.bool_]) -> MatmulRows:
        """Return the selected rows."""
        return MatmulRows(**{name: column[rows] for name, column in self._asdict().items()})


class AttentionRows(NamedTuple):
    """Measured attention kernels of one accelerator and kernel name; one entry a row."""

    batch: Array
    seq_len: Array
    heads: Array
    kv_heads: Array
    qk_head_dim: Array
    v_head_dim: Array
    causal: Array
    passes: Array
    """0 forward, 1 backward, 2 both."""
    host_timed: Array
    window: Array
    """Keys that a query sees at most; 0 for all."""
    time_s: Array
    sources: NDArray[np.str_]

    def take(self, rows: NDArray[np.bool_]) -> AttentionRows:
        """Return the selected rows."""
        return AttentionRows(**{name: column[rows] for name, column in self._asdict().items()})


class MemoryRows(NamedTuple):
    """Timed memory-bound kernels: bytes read plus written, and seconds."""

    size_bytes: Array
    time_s: Array


class Timings(NamedTuple):
    """What CSV files hold, and what is wrong with them."""

    matmul: Mapping[tuple[str, str], MatmulRows]
    """By operator (matmul, grouped_matmul) and dtype."""
    attention: Mapping[str, AttentionRows]
    """By kernel."""
    memory: MemoryRows | None
    problems: tuple[LogProblem, ...]


class _Wrong(ValueError):
    """A cell that cannot be read."""


def read_timings(paths: list[Path], peak_flops_per_s: Mapping[str, float]) -> Timings:
    """Read CSV files of timings on one accelerator; faster than its peaks is a problem, too."""
    matmul: dict[tuple[str, str], list[list[float]]] = {}
    attention: dict[str, list[list[float]]] = {}
    memory: list[list[float]] = []
    problems: list[LogProblem] = []
    for path in paths:
        for number, row in _rows(path, problems):
            try:
                if "m" in row:
                    key, values = _matmul(row, peak_flops_per_s)
                    matmul.setdefault(key, []).append(values)
                elif "seq_len" in row:
                    kernel, values = _attention(row, peak_flops_per_s)
                    attention.setdefault(kernel, []).append(values)
                else:
                    memory.append([_positive(row, "bytes"), _time(row, None)])
            except _Wrong as error:
                problems.append(LogProblem(path.name, number, str(error)))
    if not (matmul or attention or memory or problems):
        problems.append(LogProblem(", ".join(path.name for path in paths), 0, "no rows"))
    return Timings(
        {key: MatmulRows(**_named(MatmulRows, rows)) for key, rows in matmul.items()},
        {key: AttentionRows(**_named(AttentionRows, rows)) for key, rows in attention.items()},
        MemoryRows(*_columns(memory)) if memory else None,
        tuple(problems),
    )


def _columns(rows: list[list[float]]) -> Array:
    """Turn rows into columns."""
    return np.array(rows, dtype=np.float64).T


def _named(kind: type[MatmulRows] | type[AttentionRows], rows: list[list[float]]) -> dict[str, Any]:
    """Return the columns of rows of the user's own by name."""
    numbers = zip(kind._fields[:-1], _columns(rows), strict=True)
    return {**dict(numbers), "sources": np.full(len(rows), "own")}


def _rows(path: Path, problems: list[LogProblem]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line number and cells of a CSV whose columns are known."""
    try:
        refuse_endless(path)
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except CostModelError as error:
        problems.append(LogProblem(str(path), 0, str(error).removeprefix(f"{path}: ")))
        return
    except (OSError, UnicodeDecodeError) as error:
        problems.append(
            LogProblem(str(path), 0, f"cannot be read ({getattr(error, 'strerror', 'not text')})")
        )
        return
    numbered = [(i, line) for i, line in enumerate(lines, start=1) if line.strip() and line[0] != "#"]
    if not numbered:
        problems.append(LogProblem(path.name, 0, "is empty; expected a header and rows"))
        return
    header = _cells(numbered[0][1])
    kinds = ({"m", "n", "k", "dtype"}, {"batch", "seq_len", "heads", "head_dim", "op"}, {"bytes"})
    if not any(kind <= set(header) for kind in kinds):
        wanted = "m, n, k, dtype or batch, seq_len, heads, head_dim, op or bytes"
        problems.append(LogProblem(path.name, numbered[0][0], f"expected the columns {wanted}"))
        return
    if not {*TIMES, "tflops"} & set(header):
        problems.append(
            LogProblem(path.name, numbered[0][0], "expected a column time_us, time_ms, time_s or tflops")
        )
        return
    for number, line in numbered[1:]:
        cells = _cells(line)
        if len(cells) != len(header):
            problems.append(LogProblem(path.name, number, f"has {len(cells)} cells; expected {len(header)}"))
            continue
        yield number, dict(zip(header, cells, strict=True))


def _cells(line: str) -> list[str]:
    """Return the cells of a line; none of one that a reader of CSV gives up on."""
    try:
        return [cell.strip() for cell in next(csv.reader([line]), [])]
    except csv.Error:
        return []


def _positive(row: Mapping[str, str], key: str, default: float | None = None) -> float:
    """Return a number above zero."""
    text = row.get(key, "")
    if text == "" and default is not None:
        return default
    try:
        value = float(text)
    except ValueError:
        raise _Wrong(f"{key}: expected a number; got {text!r}") from None
    if not (math.isfinite(value) and value > 0):
        raise _Wrong(f"{key}: expected a number above 0; got {text}")
    return value


def _flag(row: Mapping[str, str], key: str) -> bool:
    """Return a yes or no, no where it is empty."""
    text = row.get(key, "").lower()
    if text not in (*_YES, *_NO):
        raise _Wrong(f"{key}: expected true or false; got {row[key]!r}")
    return text in _YES


def _time(row: Mapping[str, str], flops: float | None, peak: float = math.inf) -> float:
    """Return seconds, from a time or a rate; at most the peak."""
    for key, scale in TIMES.items():
        if row.get(key, "") != "":
            time_s = _positive(row, key) * scale
            break
    else:
        if flops is None or not row.get("tflops", ""):
            raise _Wrong("expected a time" if flops is None else "expected a time or tflops")
        time_s = flops / (_positive(row, "tflops") * 1e12)
    if flops is not None and flops / time_s > 1.02 * peak:
        raise _Wrong(
            f"{flops / time_s / 1e12:.4g} TFLOP/s, above the peak of {peak / 1e12:.4g}: mixed units?"
        )
    return time_s


def _peak(peaks: Mapping[str, float], dtype: str) -> float:
    """Return the dense peak of a dtype."""
    if dtype not in PEAK_KEY:
        raise _Wrong(f"dtype: expected one of {', '.join(PEAK_KEY)}; got {dtype!r}")
    if PEAK_KEY[dtype] not in peaks:
        raise _Wrong(f"dtype: this accelerator has no {PEAK_KEY[dtype]} peak")
    return peaks[PEAK_KEY[dtype]]


def _matmul(row: Mapping[str, str], peaks: Mapping[str, float]) -> tuple[tuple[str, str], list[float]]:
    """Return operator, dtype and numbers of one product."""
    peak = _peak(peaks, row["dtype"])
    dtype = "bf16" if row["dtype"] == "fp16" else row["dtype"]  # the same units at the same rate
    m, n, k = (_positive(row, key) for key in "mnk")
    groups = _positive(row, "groups", 1.0) * _positive(row, "batch", 1.0)
    time_s = _time(row, 2.0 * m * n * k * groups, peak)
    op = row.get("op") or ("grouped_matmul" if groups > 1 else "matmul")
    if op not in ("matmul", "grouped_matmul"):
        raise _Wrong(f"op: expected matmul or grouped_matmul; got {op!r}")
    accumulate = _flag(row, "accumulate")
    out = 4.0 if row.get("out_dtype", "") == "fp32" else max(2.0, min(INPUT_BYTES[dtype], 4.0))
    return (op, dtype), [m, n, k, groups, out, accumulate, _flag(row, "sustained"), 0.0, time_s]


def _attention(row: Mapping[str, str], peaks: Mapping[str, float]) -> tuple[str, list[float]]:
    """Return kernel and numbers of one attention."""
    if row["op"] not in PASSES:
        raise _Wrong(f"op: expected one of {', '.join(PASSES)}; got {row['op']!r}")
    which = PASSES[row["op"]]
    batch, seq, heads = (_positive(row, key) for key in ("batch", "seq_len", "heads"))
    qk = _positive(row, "qk_head_dim", _positive(row, "head_dim"))
    v = _positive(row, "v_head_dim", _positive(row, "head_dim"))
    causal = _flag(row, "causal")
    flops = 2.0 * batch * heads * seq * seq * (0.5 if causal else 1.0) * (qk + v) * PASS_FLOPS[int(which)]
    time_s = _time(row, flops, _peak(peaks, "bf16"))
    kv_heads = _positive(row, "kv_heads", heads)
    window = _positive(row, "window") if row.get("window") else 0.0
    numbers = [batch, seq, heads, kv_heads, qk, v, causal, which, 0.0, window, time_s]
    return row.get("kernel") or "flash2", numbers
