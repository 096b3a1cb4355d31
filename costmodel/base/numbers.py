"""Numbers: distinct values, divisors, and the percentile of a figure among samples."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def distinct(values: ArrayLike) -> list[float]:
    """Return the distinct numbers of an array, sorted; unlike `np.unique` it imports no masked arrays."""
    return sorted(set(np.asarray(values, dtype=np.float64).ravel().tolist()))


def quantiles(values: ArrayLike, *shares: float) -> list[Array]:
    """Return what so large shares of the values (first dimension) do not exceed; see `distinct` for `np.quantile`.

    >>> [float(one) for one in quantiles([3.0, 1.0, 2.0], 0.0, 0.25, 0.5, 1.0)]
    [1.0, 1.5, 2.0, 3.0]
    """
    if not all(0.0 <= share <= 1.0 for share in shares):
        raise ValueError(f"quantiles: expected shares between 0 and 1, got {shares}")
    ordered = np.sort(np.asarray(values, dtype=np.float64), axis=0)
    found = []
    for place in (share * (len(ordered) - 1) for share in shares):
        below = ordered[int(place)]
        beyond = ordered[min(int(place) + 1, len(ordered) - 1)]
        found.append(np.asarray(below + (place - int(place)) * (beyond - below)))
    return found


def divisors(number: float, most: float = float("inf")) -> tuple[float, ...]:
    """Return the divisors of a whole number, up to `most`."""
    whole = int(number)
    small = [d for d in range(1, int(whole**0.5) + 1) if whole % d == 0]
    return tuple(float(d) for d in sorted({*small, *(whole // d for d in small)}) if d <= most)


TO_P90 = 1.2816  # Standard deviations of a normal distribution to its p90
MIDDLE = (0.3, 0.7)
"""Percentiles between which a headline is close enough to the median to need no remark. [-]"""


def place_of(value: float, samples: Array) -> float:
    """Return the share of samples below a value; equal ones count half. [-]

    >>> place_of(2.0, np.array([1.0, 2.0, 3.0, 4.0]))
    0.375
    """
    return float(np.mean(samples < value) + 0.5 * np.mean(samples == value))


def off_middle_text(place: float, median: str) -> str:
    """Return a remark that a headline, at percentile `place`, is far from the `median` (a text); empty where it is near.

    >>> off_middle_text(0.17, "34.5 days")
    'the headline is near p17 of them, half lie above 34.5 days'
    >>> off_middle_text(0.95, "34.5 days"), off_middle_text(0.5, "34.5 days")
    ('the headline is near p95 of them, half lie below 34.5 days', '')
    """
    low, high = MIDDLE
    if low <= place <= high:
        return ""
    side = "above" if place < low else "below"
    # No percentile is p0 or p100 of finitely many samples.
    at = min(max(round(100.0 * place), 1), 99)
    return f"the headline is near p{at} of them, half lie {side} {median}"
