r"""What compressed gradients send, and what compressing them reads and writes.

Bytes on the wire are those of an element before it is summed; what each method can be summed with
decides the collective: fp16 and PowerSGD's factors add up (all-reduce), quantised blocks do not
(an all-to-all of pieces, then an all-gather of the sums), nor do different largest elements
(an all-gather of everybody's).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

METHODS = ("none", "fp16", "int8", "int4", "top-k", "powersgd")
# A scale in fp32 for each block of 256 (ZeRO++, arXiv:2306.10209, section 3.1: block-based quantisation).
BLOCK_ELEMENTS = 256.0
_SCALE_BYTES = 4.0 / BLOCK_ELEMENTS
# A position and a value for each element that is kept.
TOP_K_BYTES = 8.0


def wire_bytes_per_element(method: str, full_bytes: float) -> float:
    """Return bytes of a dense element on the wire: quantised with its share of the scale [B].

    >>> wire_bytes_per_element("int8", 4.0)
    1.015625
    """
    return {"fp16": min(2.0, full_bytes), "int8": 1.0 + _SCALE_BYTES, "int4": 0.5 + _SCALE_BYTES}.get(
        method, full_bytes
    )


def top_k_gathered_bytes(elements: ArrayLike, num_ranks: ArrayLike, density: float) -> Array:
    """Return the gathered buffer of every rank's largest elements [B].

    It grows with the ranks, so that top-k loses to a dense all-reduce from about 1/density ranks on.

    References
    ----------
    .. [1] Y. Lin et al., "Deep gradient compression," arXiv:1712.01887 (error feedback, 0.1 %).
    """
    kept = density * np.asarray(elements, dtype=np.float64)
    return np.asarray(TOP_K_BYTES * kept * np.asarray(num_ranks, dtype=np.float64))


def low_rank_elements(rows: ArrayLike, columns: ArrayLike, rank: float) -> Array:
    r"""Return elements of PowerSGD's two factors of a matrix, never more than the matrix [-].

    .. math:: r (m + n)

    References
    ----------
    .. [1] T. Vogels et al., "PowerSGD," arXiv:1905.13727, algorithm 1.
    """
    m, n = np.asarray(rows, dtype=np.float64), np.asarray(columns, dtype=np.float64)
    return np.asarray(np.minimum(rank * (m + n), m * n))


def compression_traffic_bytes(
    method: str, elements: ArrayLike, *, full_bytes: float, density: float = 0.01, num_ranks: ArrayLike = 1.0
) -> Array:
    """Return memory traffic of compressing and restoring a gradient of so many elements, whole step [B].

    Parameters
    ----------
    method : str
        One of `METHODS`.
    elements : array_like
        Of the gradient that a rank holds. [-]
    full_bytes : float
        Of an element before compression. [B]
    density : float
        Share that top-k keeps. [-]
    num_ranks : array_like
        That send to one another. [-]

    Returns
    -------
    traffic_bytes : ndarray
        [B]

    Notes
    -----
    A bound of fused kernels. PyTorch's top-k of 2021 was far slower: 240 ms for ResNet-50's 25.6
    million gradients on a V100 (Agarwal et al., arXiv:2103.00543, table 2), where this gives about 1 ms.
    """
    n, g = np.asarray(elements, dtype=np.float64), full_bytes
    w = wire_bytes_per_element(method, full_bytes)
    if method == "fp16" and w < g:
        # Cast before, cast back after.
        return np.asarray(2.0 * (g + w) * n)
    if method in ("int8", "int4"):
        # Quantise all; read the pieces of all ranks, sum, quantise the sum; restore all.
        ranks = np.asarray(num_ranks, dtype=np.float64)
        return np.asarray(n * ((g + w) + (w + (g + w) / ranks) + (w + g)))
    if method == "top-k":
        # Add the residual (read 2, write 1), four rounds of radix select, take out (read, write), add what came.
        kept = density * n * np.asarray(num_ranks, dtype=np.float64)
        return np.asarray(9.0 * g * n + (TOP_K_BYTES + 2.0 * g) * kept)
    if method == "powersgd":
        # Thin products of a few FLOP a byte: memory sets their time.
        # Residual (read 2, write 1), two products that read, one that writes, the new residual (read, write).
        return np.asarray(8.0 * g * n)
    return np.zeros_like(n)
