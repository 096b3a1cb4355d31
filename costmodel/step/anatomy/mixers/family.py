"""The parts that the operators of mixers are made of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from costmodel.base.csv_text import read_rows
from costmodel.step.anatomy.operator_parts import (
    ContextExchange,
    Number,
    Operator,
    Scan,
    Traffic,
    elementwise,
)


def _scan(row: Mapping[str, str]) -> Scan:
    kernels = {name: float(row[name]) for name in ("kernels_forward", "kernels_backward")}
    texts = {name: row[name] for name in Scan._fields if name in row and name not in kernels}
    return Scan(**texts, **kernels)  # type: ignore[arg-type]


SCANS: Mapping[str, Scan] = {
    row["name"]: _scan(row) for row in read_rows(Path(__file__).with_name("scans.csv"))
}
"""Every recurrence in chunks, by name; ``scans.csv`` notes what its kernels move."""


def scan(
    work: Scan, saved_bytes: Number, exchanges: tuple[ContextExchange, ...] = (), leaf: str = "scan"
) -> Operator:
    """Return the recurrence as its chunked kernels."""
    kernels = Traffic(0, 0, work.kernels_forward, work.kernels_backward)
    made = elementwise("mixer", leaf, 0.0, kernels, saved_bytes, role="scan", scan=work, exchanges=exchanges)
    return made._replace(kind="scan")
