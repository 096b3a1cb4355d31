"""Documents of several lengths packed into sequences of one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.base.errors import CostModelError
from costmodel.bill.quantity import quantity

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Packing:
    """How long the documents of a sequence are; attention stays inside each."""

    mean: float = 0.0
    """Tokens of a document, 0 for one a sequence. [-]"""
    spread: float = 0.0
    """Standard deviation of its length over the mean; lengths are taken to be lognormal. [-]"""

    def span(self, seq_len: Array) -> Array:
        """Return the length of the sequence without documents whose attention costs as much a token. [-]

        Scores are a sum of squares: of documents of length l, E[l^2] / E[l] = mean (1 + spread^2) a token (M. Krell et
        al., arXiv:2107.02027, section 3.2), and never more than the sequence itself.
        """
        if not self.mean:
            return seq_len
        return quantity(
            "min(seq_len, mean * (1 + spread ** 2))", seq_len=seq_len, mean=self.mean, spread=self.spread
        ).value


def make_packing(mean: float, spread: float, seq_len: Array) -> Packing:
    """Refuse documents that are longer than their sequence, or a spread without their length."""
    if spread and not mean:
        raise CostModelError("packed_spread: needs packed_len, the mean tokens of a document")
    if np.any(mean > seq_len):
        raise CostModelError(
            f"packed_len: {mean:,.0f} tokens of a document are more than seq_len {float(np.min(seq_len)):,.0f}"
        )
    return Packing(mean, spread)
