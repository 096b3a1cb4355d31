"""Kernels of attention: what a recipe may choose, and what each choice does to the bill."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from costmodel.base.csv_text import read_records


@dataclass(frozen=True, kw_only=True)
class AttentionKind:
    """A way to compute attention: a row of ``describe/data/attention_kernels.csv``."""

    name: str
    is_open: bool  # Whether it means what the software of the device takes, and is never run by this name
    writes_scores: bool
    """Whether the matrix of scores goes through HBM between two batched products; otherwise one fused kernel keeps
    nothing quadratic, at the constants that an accelerator's ``kernels`` block has under its name."""
    fused_softmax: bool
    """Whether the softmax between the products is one kernel, not a chain of element-wise ones."""
    source: str


ATTENTION_KERNELS: dict[str, AttentionKind] = read_records(
    Path(__file__).parents[1] / "data" / "attention_kernels.csv", AttentionKind
)
"""Every choice by name."""

OPEN_KERNELS = tuple(name for name, one in ATTENTION_KERNELS.items() if one.is_open)
"""Choices that the software of a device decides."""
