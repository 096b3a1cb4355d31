r"""Answers that are solved by one of k samples, and what one costs.

A problem that one sample solves with probability p is solved by one of k with :math:`1 - (1-p)^k`; over problems of
different difficulty that is averaged. No difficulty is assumed here: a rate, two measured points or a Beta distribution
are given.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.errors import CostModelError
from costmodel.physics.run.distributions import log_gamma

Array = NDArray[np.float64]


def pass_at_k(k: ArrayLike, rate: ArrayLike) -> Array:
    r"""Return the share of problems solved by one of k samples, all problems being as hard: :math:`1 - (1-p)^k`.

    Examples
    --------
    >>> float(pass_at_k(2, 0.5))
    0.75
    """
    return np.asarray(1.0 - (1.0 - np.asarray(rate, dtype=np.float64)) ** np.asarray(k, dtype=np.float64))


def pass_at_k_beta(k: ArrayLike, a: ArrayLike, b: ArrayLike) -> Array:
    r"""Return the same over problems whose rates follow Beta(a, b): :math:`1 - B(a, b + k) / B(a, b)`.

    Parameters
    ----------
    k : array_like
        Samples of a problem. [-]
    a, b : array_like
        Of the distribution; unsolved problems fall as :math:`k^{-a}`. [-]

    Examples
    --------
    >>> round(float(pass_at_k_beta(1, 1.0, 1.0)), 6), round(float(pass_at_k_beta(9, 1.0, 1.0)), 6)
    (0.5, 0.9)
    """
    drawn, one, other = (np.asarray(given, dtype=np.float64) for given in (k, a, b))
    if not (np.all(one > 0.0) and np.all(other > 0.0)):
        raise CostModelError(f"pass@k: a and b of Beta(a, b) must be positive, got {one} and {other}")
    whole = one + other
    return np.asarray(
        -np.expm1(log_gamma(other + drawn) - log_gamma(whole + drawn) + log_gamma(whole) - log_gamma(other))
    )


def beta_of_points(k_first: float, first: float, k_second: float, second: float) -> tuple[float, float]:
    """Return a and b of the Beta distribution through two measured points of pass@k.

    Examples
    --------
    >>> a, b = beta_of_points(1, 0.5, 9, 0.9)
    >>> round(a, 3), round(b, 3)
    (1.0, 1.0)
    """
    wrong = CostModelError(
        f"pass@k: no Beta distribution has {first:g} at {k_first:g} and {second:g} at {k_second:g} samples"
    )
    if not (0.0 < first < second < 1.0 and 0.0 < k_first < k_second):
        raise wrong

    def b_of(a: float) -> float:
        """Return the b with which the first point is met; pass@k falls as b grows."""
        low, high = 1e-9, 1e9
        for _ in range(200):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if float(pass_at_k_beta(k_first, a, middle)) > first else (low, middle)
        return math.sqrt(low * high)

    low, high = 1e-4, 1e4
    for _ in range(100):
        middle = math.sqrt(low * high)
        # The wider the difficulties spread (small a), the less more samples help.
        low, high = (
            (low, middle)
            if float(pass_at_k_beta(k_second, middle, b_of(middle))) > second
            else (middle, high)
        )
    a = math.sqrt(low * high)
    b = b_of(a)
    if abs(float(pass_at_k_beta(k_second, a, b)) - second) > 1e-3:
        raise wrong
    return a, b


def usd_per_solved(usd_per_answer: ArrayLike, k: ArrayLike, solved: ArrayLike) -> Array:
    """Return dollars for a problem that is solved: those of k answers over the share of problems that they solve. [USD]

    Examples
    --------
    >>> float(usd_per_solved(0.01, 4, 0.5))
    0.08
    """
    return np.asarray(np.asarray(usd_per_answer) * np.asarray(k) / np.asarray(solved, dtype=np.float64))
