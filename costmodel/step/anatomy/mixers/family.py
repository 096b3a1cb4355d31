"""The parts that the operators of mixers are made of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from costmodel.base.csv_text import read_records
from costmodel.step.anatomy.operator_parts import (
    ContextExchange,
    Number,
    Operator,
    Scan,
    Traffic,
    elementwise,
)

SCANS: Mapping[str, Scan] = read_records(Path(__file__).with_name("scans.csv"), Scan)
"""Every recurrence in chunks, by name; ``scans.csv`` notes what its kernels move."""


def scan(
    work: Scan, saved_bytes: Number, exchanges: tuple[ContextExchange, ...] = (), leaf: str = "scan"
) -> Operator:
    """Return the recurrence as its chunked kernels."""
    kernels = Traffic(0, 0, work.kernels_forward, work.kernels_backward)
    made = elementwise("mixer", leaf, 0.0, kernels, saved_bytes, role="scan", scan=work, exchanges=exchanges)
    return made._replace(kind="scan")
