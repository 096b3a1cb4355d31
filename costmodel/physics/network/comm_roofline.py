r"""The communication roofline: what part of a GPU's peak a step can reach on a link.

As bytes from memory bound a kernel, bytes on a link bound a step that hides all of its communication
behind its computation. With I the FLOPs of one GPU per byte that it sends, and I* the ridge point,

.. math:: I = \frac{F}{n_{wire}}, \qquad I^* = \frac{\pi}{B}, \qquad e = \min\!\left(1, \frac{I}{I^*}\right)

both per GPU and direction, on dense peaks. It is a bound, to see at a glance which link a layout can
live on; what a step really pays is on its bill.

References
----------
.. [1] S. Williams, A. Waterman and D. Patterson, "Roofline: an insightful visual performance model for
   multicore architectures," Commun. ACM, vol. 52, no. 4, pp. 65-76, 2009, doi:10.1145/1498765.1498785.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.physics.network.fabric import Tier

Array = NDArray[np.float64]

REGIMES = ("severely communication-bound", "communication-bound", "near the ridge", "compute-bound")
"""What `regime` codes mean."""
_BORDERS = (0.2, 0.8, 1.2)  # shares of the ridge point between the regimes


def ridge_point(peak_flops_per_s: ArrayLike, bandwidth_bytes_per_s: ArrayLike) -> Array:
    r"""FLOPs per byte sent from which on a step can be compute-bound: :math:`I^* = \pi / B`.

    Parameters
    ----------
    peak_flops_per_s : array_like
        Dense peak of one GPU. [FLOP/s]
    bandwidth_bytes_per_s : array_like
        Of one GPU and direction. [B/s]

    Returns
    -------
    ridge : ndarray
        [FLOP/B]

    Examples
    --------
    An H100 on NVLink 4:

    >>> round(float(ridge_point(989.4e12, 450e9)))
    2199
    """
    return np.asarray(
        np.asarray(peak_flops_per_s, dtype=np.float64) / np.asarray(bandwidth_bytes_per_s, dtype=np.float64)
    )


def ridge_points(peak_flops_per_s: float, tiers: Sequence[Tier]) -> list[float]:
    """Return the ridge point of every tier of a fabric at what its large messages achieve, innermost first. [FLOP/B]"""
    return [peak_flops_per_s / tier.achieved_bandwidth_bytes_per_s for tier in tiers]


def data_parallel_intensity(
    flops_per_token: ArrayLike,
    tokens_per_gpu: ArrayLike,
    num_params: ArrayLike,
    *,
    num_ranks: ArrayLike = np.inf,
    gradient_bytes: ArrayLike = 2.0,
    passes: ArrayLike = 2.0,
) -> Array:
    r"""FLOPs per byte sent of data-parallel training.

    .. math:: I = \frac{f\,t}{k\,\frac{P - 1}{P}\, N\, b}

    Parameters
    ----------
    flops_per_token : array_like
        Forward and backward, f; about 6 N. [FLOP]
    tokens_per_gpu : array_like
        Tokens of one GPU between two reductions, t. [-]
    num_params : array_like
        Parameters whose gradients are reduced, N. [-]
    num_ranks : array_like
        Data-parallel ranks, P; by default many. [-]
    gradient_bytes : array_like
        Bytes of one gradient (and gathered parameter) on the wire, b. [B]
    passes : array_like
        Times that the tensor goes round, k: 2 for an all-reduce (reduce-scatter and all-gather),
        3 with parameters sharded too and one micro-batch. [-]

    Returns
    -------
    intensity : ndarray
        Infinite with one rank. [FLOP/B]

    Notes
    -----
    With f = 6 N the size of the model cancels: I is 1.5 t for bf16 gradients, 3,072 FLOP/B for a
    sequence of 2,048 tokens, whatever the model.
    """
    ranks = np.asarray(num_ranks, dtype=np.float64)
    share = 1.0 - 1.0 / ranks
    sent = np.asarray(passes) * share * np.asarray(num_params, dtype=np.float64) * np.asarray(gradient_bytes)
    done = np.asarray(flops_per_token, dtype=np.float64) * np.asarray(tokens_per_gpu, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return np.asarray(done / sent)


def regime(intensity: ArrayLike, ridge: ArrayLike) -> NDArray[np.int64]:
    """Return where a step lies on the roofline, as an index into `REGIMES`.

    >>> REGIMES[int(regime(2100.0, 2000.0))]
    'near the ridge'
    """
    share = np.asarray(intensity, dtype=np.float64) / np.asarray(ridge, dtype=np.float64)
    return np.asarray(np.searchsorted(_BORDERS, share, side="right"), dtype=np.int64)
