r"""What compressed gradients send, and what compressing them reads and writes: a row of ``compression.csv`` a method.

Bytes on the wire are those of an element before it is summed; what a method's pieces can be summed with
decides the collective: fp16 and PowerSGD's factors add up (all-reduce), quantised blocks do not (an
all-to-all of pieces, then an all-gather of the sums), nor do different largest elements (an all-gather
of everybody's); elements that all ranks choose alike do.

Formulas are over ``elements`` of the gradient that a rank holds, ``element_bytes`` before compression,
``sent_bytes`` of an element on the wire, ``density``, the share that is kept, and ``ranks`` that send
to one another. A position and a value of an element that is kept take 8 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.csv_text import read_records
from costmodel.base.errors import CostModelError, choices_hint
from costmodel.bill.formula import evaluate
from costmodel.bill.quantity import Quantity, quantity

Array = NDArray[np.float64]

Exchange = Literal["sum", "pieces", "gather", "factors", "kept"]
"""How ranks come to the sum: all-reduce; pieces to their owners and back; everybody's to everybody; all-reduce
of two factors; all-reduce of the elements at the same positions of every rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """One way of sending less of a gradient."""

    name: str  # Value of the recipe's `gradient_compression`
    exchange: Exchange
    sent: str  # Bytes of a dense element on the wire
    traffic: str  # Bytes that compressing and restoring a gradient read and write, once
    kernels_per_matrix: float  # 0 where the method works on flat buckets
    residual: bool  # Whether what was not sent is kept for the next step
    counts: bool  # Whether ranks keep different numbers of elements, which they tell each other first
    steps: float  # Steps to the same loss over those without compression, as far as that is known. [-]
    source: str

    def sent_bytes(self, element_bytes: float) -> float:
        """Bytes of a dense element on the wire: quantised with its share of the scale. [B]"""
        return float(evaluate(self.sent, {"element_bytes": element_bytes}))

    @property
    def shards(self) -> bool:
        """Whether it works where no replica holds whole gradients."""
        return self.exchange in ("sum", "pieces")


METHODS: Mapping[str, Compression] = read_records(Path(__file__).with_name("compression.csv"), Compression)
"""Every method, by name."""


def compression(method: str) -> Compression:
    """Return the record of a method; a `CostModelError` if there is none."""
    if method not in METHODS:
        raise CostModelError(f"gradient_compression: unknown {method!r}; {choices_hint(method, METHODS)}")
    return METHODS[method]


def compression_traffic(
    method: str,
    elements: ArrayLike,
    *,
    element_bytes: float,
    density: float = 0.01,
    num_ranks: ArrayLike = 1.0,
) -> Quantity:
    """Memory traffic of compressing and restoring a gradient of so many elements by fused kernels, whole step [B]."""
    record = compression(method)
    return quantity(
        f"sent_bytes = {record.sent}; {record.traffic}",
        elements=np.asarray(elements, dtype=np.float64),
        element_bytes=element_bytes,
        density=density,
        ranks=num_ranks,
    )
