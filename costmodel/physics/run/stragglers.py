"""What synchronous steps pay for the slowest rank: the expected maximum of many step times.

Ranks differ for good (silicon, cooling, a sick host) or from moment to moment (jitter). What
differs for good is paid once, at the widest synchronisation; jitter is paid again at every one.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.numbers import distinct
from costmodel.physics.run.distributions import log_normal_cdf, normal_cdf

Array = NDArray[np.float64]

_STEPS, _STEP = 600, 0.02  # each way from zero, in standard deviations


@cache
def _grid() -> tuple[Array, Array]:
    """Return standard deviations and the logarithm of the normal distribution function there."""
    x = _STEP * np.arange(-_STEPS, _STEPS + 1)
    return np.asarray(x), log_normal_cdf(x)


def expected_maximum_normal(num_ranks: ArrayLike) -> Array:
    r"""Mean of the largest of `num_ranks` independent standard normal numbers.

    .. math:: m_N = \int_0^\infty 1 - \Phi(x)^N \, dx - \int_{-\infty}^0 \Phi(x)^N \, dx

    Parameters
    ----------
    num_ranks : array_like
        N, from 1 up. [-]

    Returns
    -------
    deviations : ndarray
        In standard deviations. [-]

    Notes
    -----
    Integrated numerically to 1e-9, up to N of 1e18. The often quoted :math:`\sqrt{2 \ln N}` is its
    limit and 11 % too large at 16,000.

    References
    ----------
    .. [1] H. A. David and H. N. Nagaraja, "Order Statistics," 3rd ed., Wiley, 2003, section 3.1.

    Examples
    --------
    >>> round(float(expected_maximum_normal(16000)), 3)
    3.966
    """
    x, log_cdf = _grid()
    # A hundred thousand splits have a handful of different sizes.
    ranks = np.asarray(num_ranks, dtype=np.float64)
    sizes = np.asarray(distinct(ranks))
    below = np.exp(sizes[:, None] * log_cdf)
    # The step at zero falls on a grid point, which belongs to both integrals by half.
    weight = np.where(x > 0, 1.0 - below, np.where(x < 0, -below, 0.5 - below))
    return np.asarray((weight.sum(axis=-1) * _STEP)[np.searchsorted(sizes, ranks)])


class RankTimes(NamedTuple):
    """How step times of ranks are distributed around a mean of 1.

    `variation` is their coefficient of variation; `heavy_tail` makes them lognormal; of every
    rank, `slow_fraction` is the probability that it takes `slowdown` longer.
    """

    variation: float
    heavy_tail: bool = False
    slow_fraction: float = 0.0
    slowdown: float = 0.0


_FINE_STEP, _REACH = 0.005, 12.0


@lru_cache(maxsize=64)
def _one_rank(times: RankTimes) -> tuple[Array, Array]:
    """Return relative step times, and the logarithm of the probability that a rank stays below each."""
    z = np.arange(-_REACH, _REACH + _FINE_STEP / 2, _FINE_STEP)
    spread = math.sqrt(math.log1p(times.variation**2)) if times.heavy_tail else times.variation
    if times.variation == 0.0:
        # Ranks that are all alike, but for the slow ones.
        x, later = np.asarray([1.0, 1.0 + times.slowdown]), np.asarray([times.slow_fraction, 0.0])
    else:
        healthy = np.exp(spread * z - spread**2 / 2.0) if times.heavy_tail else 1.0 + spread * z
        x = np.asarray(distinct(np.concatenate([healthy, healthy * (1.0 + times.slowdown)])))
        own, slow = (_later_than(x / by, spread, times.heavy_tail) for by in (1.0, 1.0 + times.slowdown))
        later = (1.0 - times.slow_fraction) * own + times.slow_fraction * slow
    with np.errstate(divide="ignore"):
        return x, np.log1p(-np.minimum(later, 1.0))


def _later_than(x: Array, spread: float, heavy_tail: bool) -> Array:
    """Return the probability that a healthy rank takes longer than each of `x`."""
    z = (np.log(x) + spread**2 / 2.0) / spread if heavy_tail else (x - 1.0) / spread
    return normal_cdf(-z)


def maximum_moments(num_ranks: ArrayLike, times: RankTimes) -> tuple[Array, Array]:
    r"""Mean and standard deviation of the step time of the slowest of independent ranks.

    .. math:: E[M_N] = x_0 + \int_{x_0}^\infty 1 - F(x)^N \, dx, \qquad
              E[M_N^2] = x_0^2 + \int_{x_0}^\infty 2 x \, (1 - F(x)^N) \, dx

    Parameters
    ----------
    num_ranks : array_like
        N, from 1 up. [-]
    times : RankTimes
        F: normal or lognormal, with or without a share of slow ranks.

    Returns
    -------
    mean, deviation : ndarray
        Relative to the mean of a healthy rank. [-]

    Notes
    -----
    Trapezoids of 1/200 standard deviation; exact to about 1e-5 deviations. Each different N is
    integrated once, so a search over many layouts costs a few integrals.

    References
    ----------
    .. [1] H. A. David and H. N. Nagaraja, "Order Statistics," 3rd ed., Wiley, 2003, section 3.1.

    Examples
    --------
    >>> mean, deviation = maximum_moments(16000, RankTimes(0.05))
    >>> round(float(mean), 3)
    1.198
    """
    ranks = np.asarray(num_ranks, dtype=np.float64)
    x, log_below = _one_rank(times)
    different, place = np.unique(ranks, return_inverse=True)
    moments = np.empty((2, different.size))
    for index, count in enumerate(different):
        later = -np.expm1(count * log_below)
        if times.variation == 0.0:
            # Two values: the slow one with the probability that any rank is slow.
            mean = 1.0 + times.slowdown * later[0]
            square = 1.0 + ((1.0 + times.slowdown) ** 2 - 1.0) * later[0]
        else:
            mean = x[0] + _integral(later, x)
            square = x[0] ** 2 + _integral(2.0 * x * later, x)
        moments[:, index] = mean, math.sqrt(max(square - mean**2, 0.0))
    mean_s, deviation_s = moments[:, place.reshape(ranks.shape)]
    return np.asarray(mean_s), np.asarray(deviation_s)


def _integral(y: Array, x: Array) -> float:
    """Integrate by trapezoids."""
    return float(np.sum((y[1:] + y[:-1]) * np.diff(x)) / 2.0)


def lasting_excess(level_ranks: list[Array], times: RankTimes) -> list[Array]:
    """Share of the step that each wider synchronisation adds where ranks differ for good [-].

    `level_ranks` are all ranks that wait for one another at each level, narrowest first. The sum
    is the excess of the slowest of all ranks over the mean rank.
    """
    alone = maximum_moments(1.0, times)[0]
    late = [maximum_moments(ranks, times)[0] - alone for ranks in level_ranks]
    return [np.asarray(late[0]), *(np.asarray(b - a) for a, b in pairwise(late))]


MOST_PIECE_VARIATION = 0.3
"""Deviation of a piece of a step over its mean up to which it is like a normal number: below 0 in 4 of 10,000. [-]"""


def jitter_excess(level_ranks: list[Array], syncs: list[Array], variation: float) -> list[Array]:
    r"""Share of the step that each synchronisation adds where ranks jitter from moment to moment [-].

    A rank's step varies by `variation`, c; it is the sum of independent pieces, so a piece between two of k
    synchronisations varies by :math:`c / \sqrt k` of the step; k maxima of n of them add :math:`m_n c \sqrt k`. What a level
    sends on varies by the deviation of the maximum. `level_ranks` are all ranks below each level, narrowest first, and
    `syncs` its synchronisations in a step.

    A piece varies by :math:`c \sqrt k` of itself. Normal pieces that vary by more than `MOST_PIECE_VARIATION` would
    often take less than no time: from there on pieces are taken to vary by that much, however many there are, and a step
    by what such pieces sum up to. A step of 405B on 16,384 GPUs so gets at most 43 % longer, between what the worst tenth
    and the worst hundredth of 3,079 jobs lost to stragglers of any cause, 27 and 82 % (arXiv:2505.05713, section 4.1).
    """
    unit = RankTimes(1.0)
    spread: Array = np.asarray(variation)
    below: Array = np.asarray(1.0)
    added = []
    for ranks, count in zip(level_ranks, syncs, strict=True):
        mean, deviation = maximum_moments(ranks / below, unit)
        piece = np.minimum(spread * np.sqrt(count), MOST_PIECE_VARIATION)
        added.append(np.asarray((mean - 1.0) * piece))
        spread = np.where(ranks > below, piece / np.sqrt(count) * deviation, spread)
        below = ranks
    return added
