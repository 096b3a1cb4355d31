"""Peak memory as people measure it: which lines of the bill each way of measuring sees."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodel.base.errors import CostModelError, choices_hint
from costmodel.bill.lines import Bill, Seen, broadcast_sum

# Lines that a way of measuring memory sees.
SEEN: dict[str, tuple[Seen, ...]] = {
    "max_allocated": ("allocated",),
    "max_reserved": ("allocated", "reserved"),
    "nvidia-smi": ("allocated", "reserved", "device"),
    "stated": ("allocated", "reserved"),
    "": ("allocated", "reserved"),
}


MEMORY_KINDS = tuple(SEEN)
"""Ways of measuring; the empty one is what people state without saying how."""


def seen_memory_bytes(bill: Bill, memory_kind: str) -> float:
    """Return the peak memory that `memory_kind` would show for a bill of one layout, worst stage. [B]"""
    return float(seen_by_kind(bill, memory_kind))


def seen_by_kind(bill: Bill, memory_kind: str) -> NDArray[np.float64]:
    """Return the peak memory that `memory_kind` would show for a bill, or each of an array, worst stage. [B]

    Raises
    ------
    CostModelError
        If memory is not measured so.
    """
    if memory_kind not in SEEN:
        raise CostModelError(f"memory_kind: {memory_kind!r} is unknown; {choices_hint(memory_kind, SEEN)}")
    lines = [line.bytes for line in bill.memory_lines if line.seen in SEEN[memory_kind]]
    return np.asarray(broadcast_sum(lines).max(axis=-1))
