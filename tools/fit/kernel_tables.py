"""Published kernel timings, read from CSV into arrays that the physics can price.

What each source measured differs, and is settled here once: what was run back to back at full
power and what in a short burst, which timings include quantising kernels, which rows measure the
host instead of the GPU.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from costmodel.base.errors import DataError
from costmodel.trust.calibration.kernel_csv import ATTENTION, MATMUL, PASS_FLOPS, PASSES, Rows, table_of

# SimuMax loops each kernel; Azure warms up with 10,000 random-data products. The others time bursts.
SUSTAINED_SOURCES = ("SimuMax", "Azure/")
# TensorRT-LLM times its low-precision linear operator: cast kernels and product together.
CAST_SOURCES = ("aiconfigurator",)
# Without CUDA graphs: below this the row is the host's launch path, not the kernel.
HOST_BOUND_S = {"LLMCompass": 40e-6, "Azure/": 12e-6}
# Another operator in the same table: the whole of an attention without fusion.
NOT_A_PRODUCT = ("Dao-AILab/",)
# Tables of attention that are one source each.
UNNAMED_ATTENTION = {
    "attention_h100_flash3_paper": "FlashAttention-3 paper, figures 5-6",
    "attention_cudnn_2026": "NVIDIA/cudnn-frontend results of cuDNN 9.19 and 9.23",
}
# Times whole framework operators, one by one: a host cost is fitted beside the kernel and dropped.
HOST_TIMED_SOURCES = ("MooreThreads/SimuMax",)


class ShippedFit(NamedTuple):
    """Fitted constants of one accelerator and kernel, and the sources of the rows."""

    constants: Any
    points: int
    held_out_error: float
    sources: Sequence[str]
    power_limit: str = ""
    """Where `sustained_loss` comes from, if not from these rows."""


def _records(path: Path, needed: Iterable[str]) -> list[dict[str, str]]:
    """Read a CSV with a header, skipping comment lines."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    rows = list(csv.DictReader(lines))
    missing = set(needed) - set(rows[0] if rows else ())
    if missing:
        raise DataError(f"{path}: expected the columns {', '.join(sorted(missing))}")
    return rows


def _matmul_record(row: dict[str, str]) -> list[float] | None:
    """Return the numeric fields of one product, or None where the row measures something else."""
    source, notes = row["source"], row["notes"]
    time_s = float(row["time_us"]) * 1e-6
    floor = next((floor for name, floor in HOST_BOUND_S.items() if name in source), 0.0)
    if source.startswith(NOT_A_PRODUCT) or time_s < floor:
        return None
    m, n, k = float(row["m"]), float(row["n"]), float(row["k"])
    groups = float(row["groups"] or 1.0) * float(row["batch"] or 1.0)
    accumulate = row["accumulate"].strip().lower() == "true"
    output_bytes = 4.0 if row["out_dtype"] == "fp32" else 2.0
    if row["op"] == "grouped_matmul":
        # The table keeps the forward shape: m tokens, n out, k in.
        if "wgrad" in notes:
            m, n, k = n, k, m
            output_bytes = 4.0 if "fp32" in notes else 2.0
        elif "dgrad" in notes:
            n, k = k, n
    elif "GEMM: " in notes:  # DeepGEMM prints "4 groups", and times one of them
        groups = float(notes.split("GEMM: ")[1].split()[0])
        time_s *= groups
    sustained = source.startswith(SUSTAINED_SOURCES) or "SimuMax" in source
    cast = any(name in source for name in CAST_SOURCES) and row["dtype"] not in ("bf16", "fp16")
    return [m, n, k, groups, output_bytes, accumulate, sustained, cast, time_s]


def read_matmul(path: Path) -> dict[tuple[str, str, str], Rows]:
    """Return the rows of a table of matrix products by (accelerator, operator, dtype)."""
    needed = ("source", "gpu", "op", "dtype", "m", "n", "k", "time_us", "notes")
    grouped: dict[tuple[str, str, str], tuple[list[list[float]], list[str]]] = {}
    for row in _records(path, needed):
        record = _matmul_record(row)
        if record is None:
            continue
        # fp16 and bf16 run on the same units at the same rate; one fit serves both.
        dtype = "bf16" if row["dtype"] == "fp16" else row["dtype"]
        op = "grouped_matmul" if "GEMM: " in row["notes"] else row["op"]
        values, sources = grouped.setdefault((row["gpu"], op, dtype), ([], []))
        values.append(record)
        sources.append(short_source(row["source"]))
    return {key: table_of(MATMUL, values, sources) for key, (values, sources) in grouped.items()}


def _kernel_name(row: dict[str, str]) -> str:
    """Return which attention kernel a row timed."""
    if row.get("kernel"):
        return row["kernel"]
    if "FA3" in row["notes"]:
        return "flash3"
    # SimuMax runs Transformer Engine, which takes cuDNN on Blackwell and FlashAttention-2 on Ampere.
    return "cudnn" if row["gpu"].startswith("b200") else "flash2"


def read_attention(paths: Sequence[Path]) -> dict[tuple[str, str], Rows]:
    """Return the rows of tables of attention kernels by (accelerator, kernel name)."""
    grouped: dict[tuple[str, str], tuple[list[list[float]], list[str]]] = {}
    for path in paths:
        for row in _records(path, ("gpu", "op", "batch", "seq_len", "heads", "causal")):
            if not row["heads"]:
                continue
            d_qk = float(row.get("qk_head_dim") or row["head_dim"])
            d_v = float(row.get("v_head_dim") or row["head_dim"])
            batch, seq, heads = float(row["batch"]), float(row["seq_len"]), float(row["heads"])
            causal = row["causal"].strip().lower() == "true"
            forward_flops = 2.0 * batch * heads * seq * seq * (0.5 if causal else 1.0) * (d_qk + d_v)
            which = PASSES[row["op"]]
            window = float(row.get("window") or 0.0)
            if row.get("time_ms"):
                time_s = float(row["time_ms"]) * 1e-3
            else:
                time_s = forward_flops * PASS_FLOPS[int(which)] / (float(row["tflops"]) * 1e12)
            kv_heads = float(row.get("kv_heads") or heads)
            values, sources = grouped.setdefault((row["gpu"], _kernel_name(row)), ([], []))
            host = (row.get("source") or "").startswith(HOST_TIMED_SOURCES)
            values.append([batch, seq, heads, kv_heads, d_qk, d_v, causal, which, host, window, time_s])
            sources.append(short_source(row.get("source") or UNNAMED_ATTENTION.get(path.stem, path.stem)))
    return {key: table_of(ATTENTION, values, sources) for key, (values, sources) in grouped.items()}


def short_source(source: str) -> str:
    """Return the repository or title of a source without the path inside it."""
    if source.startswith("ai-dynamo/"):
        return "aiconfigurator " + source.split("systems/data/")[1].split("/")[0]
    if source.startswith("deepseek"):
        return "DeepGEMM README"
    for mark in ("#", " (", " assets", " Azure_Results", " ND_", " configs", " compute", " ae/", " README"):
        source = source.split(mark)[0]
    return source


def count_sources(sources: Iterable[str]) -> str:
    """Return ``name (rows), …``, the largest first."""
    listed = list(sources)
    names = sorted(set(listed), key=lambda name: (-listed.count(name), name))
    return ", ".join(f"{name} ({listed.count(name)})" for name in names)
