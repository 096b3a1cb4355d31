r"""What compressed gradients send, and what compressing them reads and writes: a record a method.

Bytes on the wire are those of an element before it is summed; what a method's pieces can be summed with
decides the collective: fp16 and PowerSGD's factors add up (all-reduce), quantised blocks do not (an
all-to-all of pieces, then an all-gather of the sums), nor do different largest elements (an all-gather
of everybody's); elements that all ranks choose alike do.

Formulas are over ``elements`` of the gradient that a rank holds, ``element_bytes`` before compression,
``sent_bytes`` of an element on the wire, ``density``, the share that is kept, and ``ranks`` that send
to one another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.errors import CostModelError, choices_hint
from costmodel.bill.formula import evaluate
from costmodel.bill.quantity import Quantity, quantity

Array = NDArray[np.float64]

Exchange = Literal["sum", "pieces", "gather", "factors", "kept"]
"""How ranks come to the sum: all-reduce; pieces to their owners and back; everybody's to everybody; all-reduce
of two factors; all-reduce of the elements at the same positions of every rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """One way of sending less of a gradient.

    Attributes
    ----------
    name : str
        Value of the recipe's `gradient_compression`.
    exchange : str
        One of `Exchange`.
    sent : str
        Bytes of a dense element on the wire.
    traffic : str
        Bytes that compressing and restoring a gradient read and write, once.
    kernels_per_matrix : float
        Kernels where the method works matrix by matrix; 0 where it works on flat buckets.
    residual : bool
        Whether what was not sent is kept for the next step.
    counts : bool
        Whether ranks keep different numbers of elements, which they tell each other first.
    steps : float
        Steps to the same loss over those without compression, as far as that is known. [-]
    source : str
        Paper or code.
    """

    name: str
    exchange: Exchange
    sent: str
    traffic: str
    kernels_per_matrix: float
    residual: bool
    counts: bool
    steps: float
    source: str

    @property
    def shards(self) -> bool:
        """Whether it works where no replica holds whole gradients."""
        return self.exchange in ("sum", "pieces")


# A scale in fp32 for each block of 256 elements.
_SCALE_BYTES = "4 / 256"
# A position and a value for each element that is kept.
_KEPT_BYTES = "8"
# "5 to 10 % more iterations" for the largest 1 % of the gradient, which other choices have no source for: the project's
# guide, section 7.5; deep gradient compression (arXiv:1712.01887) reports none with warm-up and momentum correction.
_SPARSE_STEPS = 1.075
# Quantise all; read the pieces of all ranks, sum, quantise the sum; restore all.
_QUANTISED = (
    "elements * (element_bytes + sent_bytes + sent_bytes + (element_bytes + sent_bytes) / ranks "
    "+ sent_bytes + element_bytes)"
)
_ZERO_PP = "ZeRO++, arXiv:2306.10209, section 3.3: quantised all-to-all reduce-scatter"

METHODS: Mapping[str, Compression] = {
    one.name: one
    for one in (
        Compression(
            name="none",
            exchange="sum",
            sent="element_bytes",
            traffic="0 * elements",
            kernels_per_matrix=0.0,
            residual=False,
            counts=False,
            steps=1.0,
            source="nothing is compressed",
        ),
        Compression(
            name="fp16",
            exchange="sum",
            sent="min(2, element_bytes)",
            # Cast before, cast back after.
            traffic="where(sent_bytes < element_bytes, 2 * (element_bytes + sent_bytes) * elements, 0)",
            kernels_per_matrix=0.0,
            residual=False,
            counts=False,
            steps=1.0,
            source="PyTorch DDP communication hooks: fp16_compress_hook",
        ),
        Compression(
            name="int8",
            exchange="pieces",
            sent=f"1 + {_SCALE_BYTES}",
            traffic=_QUANTISED,
            kernels_per_matrix=0.0,
            residual=False,
            counts=False,
            steps=1.0,
            source=_ZERO_PP,
        ),
        Compression(
            name="int4",
            exchange="pieces",
            sent=f"0.5 + {_SCALE_BYTES}",
            traffic=_QUANTISED,
            kernels_per_matrix=0.0,
            residual=False,
            counts=False,
            steps=1.0,
            source=_ZERO_PP,
        ),
        Compression(
            name="top-k",
            exchange="gather",
            sent="element_bytes",
            # Add the residual (read 2, write 1), four rounds of radix select, take out (read, write); add what came.
            traffic="9 * element_bytes * elements "
            f"+ ({_KEPT_BYTES} + 2 * element_bytes) * (density * elements * ranks)",
            kernels_per_matrix=0.0,
            residual=True,
            counts=False,
            steps=_SPARSE_STEPS,
            source="Deep gradient compression, arXiv:1712.01887, with error feedback",
        ),
        Compression(
            name="random-k",
            exchange="kept",
            sent="element_bytes",
            # Add the residual (read 2, write 1), take out and put back (2 each, and what stays of the residual),
            # clear the rest.
            traffic="4 * element_bytes * elements + 5 * element_bytes * (density * elements)",
            kernels_per_matrix=0.0,
            residual=True,
            counts=False,
            steps=1.0,
            source="Stich et al., sparsified SGD with memory, arXiv:1809.07599; positions from one seed on all ranks",
        ),
        Compression(
            name="threshold",
            exchange="gather",
            sent="element_bytes",
            # Add the residual (read 2, write 1), count, take out; add what came.
            traffic="5 * element_bytes * elements "
            f"+ ({_KEPT_BYTES} + 2 * element_bytes) * (density * elements * ranks)",
            kernels_per_matrix=0.0,
            residual=True,
            counts=True,
            steps=1.0,
            source="Strom, Interspeech 2015: elements above a threshold; the share of them is compression_density",
        ),
        Compression(
            name="powersgd",
            exchange="factors",
            sent="element_bytes",
            # Thin products of a few FLOP a byte: memory sets their time. Residual (read 2, write 1), two
            # products that read, one that writes, the new residual (read, write).
            traffic="8 * element_bytes * elements",
            # Products and orthogonalisation.
            kernels_per_matrix=10.0,
            residual=True,
            counts=False,
            steps=1.0,
            source="PowerSGD, arXiv:1905.13727, algorithms 1 and 2",
        ),
    )
}
"""Every method, by name."""


def compression(method: str) -> Compression:
    """Return the record of a method.

    Raises
    ------
    CostModelError
        If there is no such method.
    """
    if method not in METHODS:
        raise CostModelError(f"gradient_compression: unknown {method!r}; {choices_hint(method, METHODS)}")
    return METHODS[method]


def wire_bytes_per_element(method: str, element_bytes: float) -> float:
    """Return bytes of a dense element on the wire: quantised with its share of the scale [B].

    >>> wire_bytes_per_element("int8", 4.0)
    1.015625
    """
    return float(evaluate(compression(method).sent, {"element_bytes": element_bytes}))


def top_k_gathered_bytes(elements: ArrayLike, num_ranks: ArrayLike, density: float) -> Array:
    """Return the gathered buffer of every rank's largest elements [B].

    It grows with the ranks, so that top-k loses to a dense all-reduce from about 1/density ranks on.

    References
    ----------
    .. [1] Y. Lin et al., "Deep gradient compression," arXiv:1712.01887 (error feedback, 0.1 %).
    """
    terms = {"elements": elements, "ranks": num_ranks, "density": density}
    return evaluate(f"{_KEPT_BYTES} * density * elements * ranks", terms)


def low_rank_elements(rows: ArrayLike, columns: ArrayLike, rank: float) -> Array:
    r"""Return elements of PowerSGD's two factors of a matrix, never more than the matrix [-].

    .. math:: r (m + n)

    References
    ----------
    .. [1] T. Vogels et al., "PowerSGD," arXiv:1905.13727, algorithm 1.
    """
    return evaluate(
        "min(rank * (rows + columns), rows * columns)", {"rows": rows, "columns": columns, "rank": rank}
    )


def compression_traffic(
    method: str,
    elements: ArrayLike,
    *,
    element_bytes: float,
    density: float = 0.01,
    num_ranks: ArrayLike = 1.0,
) -> Quantity:
    """Memory traffic of compressing and restoring a gradient of so many elements, whole step [B].

    Parameters
    ----------
    method : str
        One of `METHODS`.
    elements : array_like
        Of the gradient that a rank holds. [-]
    element_bytes : float
        Of an element before compression. [B]
    density : float
        Share of the elements that is kept. [-]
    num_ranks : array_like
        That send to one another. [-]

    Notes
    -----
    A bound of fused kernels. PyTorch's top-k of 2021 was far slower: 240 ms for ResNet-50's 25.6
    million gradients on a V100 (Agarwal et al., arXiv:2103.00543, table 2), where this gives about 1 ms.
    """
    record = compression(method)
    return quantity(
        f"sent_bytes = {record.sent}; {record.traffic}",
        elements=np.asarray(elements, dtype=np.float64),
        element_bytes=element_bytes,
        density=density,
        ranks=num_ranks,
    )
