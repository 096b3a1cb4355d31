"""Distribution functions and quantiles in NumPy: SciPy's import costs more than most estimates."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

_erfc = np.vectorize(math.erfc, otypes=[np.float64])
log_gamma = np.vectorize(math.lgamma, otypes=[np.float64])
_normal_quantile = np.vectorize(NormalDist().inv_cdf, otypes=[np.float64])

_MOST_TERMS = 1000  # of a continued fraction or of Newton's method; ten to a hundred are usual


def normal_cdf(z: ArrayLike) -> Array:
    """Probability that a standard normal number is below each of `z`. [-]"""
    return np.asarray(0.5 * _erfc(-np.asarray(z, dtype=np.float64) / math.sqrt(2.0)))


def log_normal_cdf(z: ArrayLike) -> Array:
    """Logarithm of `normal_cdf`, exact also where that is next to 1; down to -38 standard deviations. [-]"""
    above = 0.5 * _erfc(np.abs(np.asarray(z, dtype=np.float64)) / math.sqrt(2.0))
    return np.asarray(np.where(np.asarray(z) > 0.0, np.log1p(-above), np.log(above)))


def normal_quantile(probability: ArrayLike) -> Array:
    """Value that a standard normal number stays below with each `probability`, between 0 and 1. [-]"""
    return np.asarray(_normal_quantile(probability))


def student_quantile(freedom: float, z: ArrayLike) -> Array:
    """Quantiles of Student's t at the probabilities that a standard normal number stays below each of `z`.

    Newton's method on the upper tail, which is convex, from the normal quantile, which is below.
    """
    different, place = np.unique(np.abs(np.asarray(z, dtype=np.float64)), return_inverse=True)
    tail = normal_cdf(-different)
    t = different.copy()
    scale = math.exp(math.lgamma(freedom / 2 + 0.5) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    for _ in range(_MOST_TERMS):
        density = scale * (1.0 + t**2 / freedom) ** (-(freedom + 1.0) / 2.0)
        step = (_student_upper_tail(freedom, t) - tail) / density
        t = np.maximum(t + step, 0.0)
        if np.all(np.abs(step) <= 1e-12 * (1.0 + t)):
            break
    return np.asarray(np.copysign(t[place].reshape(np.shape(z)), z))


def _student_upper_tail(freedom: float, t: Array) -> Array:
    """Return the probability that Student's t is above each of `t`, which is 0 or more."""
    return np.asarray(
        0.5 * _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t**2), t**2 / (freedom + t**2))
    )


def _incomplete_beta(a: float, b: float, x: Array, rest: Array) -> Array:
    r"""Return the regularised incomplete beta function :math:`I_x(a, b)`; `rest` is 1 - x.

    By its continued fraction (Lentz), or that of :math:`1 - I_{1-x}(b, a)` where it converges faster:
    M. Abramowitz and I. A. Stegun, "Handbook of Mathematical Functions," 26.5.8.
    """
    swapped = x > (a + 1.0) / (a + b + 2.0)
    first, second = np.where(swapped, b, a), np.where(swapped, a, b)
    at = np.where(swapped, rest, x)
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    with np.errstate(divide="ignore"):
        front = np.exp(first * np.log(at) + second * np.log(np.where(swapped, x, rest)) - log_beta) / first
    total = below = 1.0 / (1.0 - (first + second) * at / (first + 1.0))
    above = np.ones_like(at)
    for m in range(1, _MOST_TERMS):
        even = m * (second - m) * at / ((first + 2 * m - 1.0) * (first + 2 * m))
        odd = -(first + m) * (first + second + m) * at / ((first + 2 * m) * (first + 2 * m + 1.0))
        before = total
        for coefficient in (even, odd):
            below = 1.0 / (1.0 + coefficient * below)
            above = 1.0 + coefficient / above
            total = total * above * below
        if np.all(np.abs(total - before) <= 1e-15 * np.abs(total)):
            break
    return np.asarray(np.where(swapped, 1.0 - front * total, front * total))


def poisson_upper_tail(count: ArrayLike, mean: ArrayLike) -> Array:
    """Probability that a Poisson number of that mean is above `count`, a whole number. [-]"""
    above, mean = (np.asarray(value, dtype=np.float64)[..., None] for value in (count, mean))
    # Ten deviations beyond the mean and beyond the count less than 1e-20 is left.
    highest = max(float(above.max()), float(mean.max()))
    numbers = np.arange(1.0, math.floor(highest + 10.0 * math.sqrt(highest) + 60.0))
    with np.errstate(divide="ignore"):
        terms = np.exp(numbers * np.log(mean) - mean - log_gamma(numbers + 1.0))
    return np.asarray(np.where(numbers > np.floor(above), terms, 0.0).sum(axis=-1))
