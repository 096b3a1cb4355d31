"""Monte Carlo of a long run: the failures of `goodput` drawn instead of averaged.

All samples are drawn at once: for every sample the number of failures (binomial and negative
binomial, given the number of intervals), then the work that each threw away.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

# Beyond so many single draws a sum is drawn whole, from the normal distribution it has by then.
_MOST_DRAWS = 8_000_000


class SampledRuns(NamedTuple):
    """One value a sample."""

    calendar_s: Array  # From start to the last step. [s]
    interruptions: Array  # Failures, those during a restart too. [-]


def sample_runs(
    generator: np.random.Generator,
    *,
    work_s: Array,
    failures_per_s: Array,
    interval_s: Array,
    pause_s: Array,
    persist_s: Array,
    downtime_s: Array,
) -> SampledRuns:
    """Draw the calendar time of runs, each with its own useful time, failure rate of the whole job, and times as in `losses`.

    The mean is the closed form of `losses`. The work is cut into a whole number of equal intervals, the nearest to what is
    asked for. [s, 1/s]
    """
    work, rate, tau, pause, persist, down = np.broadcast_arrays(
        work_s, failures_per_s, interval_s, pause_s, persist_s, downtime_s
    )
    intervals = np.maximum(np.rint(work / tau), 1.0).astype(np.int64)
    segment = work / intervals + pause
    first = generator.binomial(intervals, -np.expm1(-rate * segment))
    again = _failures_before(generator, first, np.exp(-rate * (segment + persist)))
    failures = first + again
    in_restart = _failures_before(generator, failures, np.exp(-rate * down))
    lost = (
        _sum_of_waits(generator, first, rate, segment)
        + _sum_of_waits(generator, again, rate, segment + persist)
        + first * persist
    )
    stopped = failures * down + _sum_of_waits(generator, in_restart, rate, down)
    return SampledRuns(
        calendar_s=np.asarray(intervals * segment + lost + stopped),
        interruptions=np.asarray(failures + in_restart, dtype=np.float64),
    )


def _failures_before(generator: np.random.Generator, successes: Counts, probability: Array) -> Counts:
    """Draw how many tries fail before so many have succeeded."""
    drawn = generator.negative_binomial(np.maximum(successes, 1), np.clip(probability, 1e-12, 1.0))
    return np.where(successes > 0, drawn, 0)


def _sum_of_waits(generator: np.random.Generator, counts: Counts, rate: Array, width: Array) -> Array:
    """Draw the sum of `counts` exponential times that are known to lie below `width` [s]."""
    # As floats: counts of a job that hardly ever runs add up beyond 64 bits.
    if not counts.any():
        return np.zeros(counts.shape)
    below = -np.expm1(-rate * width)
    if counts.sum(dtype=np.float64) > _MOST_DRAWS:
        return _large_sum(generator, counts, rate, width, below)
    total = int(counts.sum())
    sample = np.repeat(np.arange(counts.size), counts.ravel())
    drawn = -np.log1p(-generator.random(total) * below.ravel()[sample]) / rate.ravel()[sample]
    return np.asarray(
        np.bincount(sample, weights=drawn, minlength=counts.size).reshape(counts.shape), dtype=np.float64
    )


def _large_sum(
    generator: np.random.Generator, counts: Counts, rate: Array, width: Array, below: Array
) -> Array:
    """Draw such a sum from the normal distribution of the same mean and variance."""
    hazard = rate * width
    left = np.exp(-hazard) / below
    mean = 1.0 / rate - width * left
    variance = np.maximum(1.0 / rate**2 - width**2 * left * (1.0 + left), 0.0)
    noise = generator.standard_normal(counts.shape) * np.sqrt(counts * variance)
    return np.asarray(np.maximum(counts * mean + noise, 0.0))
