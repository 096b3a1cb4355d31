r"""What a long run loses to failures (checkpoints, work done again, waiting for machines), and the power that it draws.

Failures are a Poisson process of rate :math:`\lambda` over the whole job. Work proceeds in
intervals of :math:`\tau` seconds, each followed by a pause of :math:`C` seconds for the snapshot,
which is safe :math:`L` seconds later (0 if the pause lasts until it is). A failure throws the job
back to the last safe snapshot and stops it for :math:`R` seconds, in which it may fail again.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.bill.quantity import Quantity, quantity
from costmodel.physics.run.distributions import poisson_upper_tail

Array = NDArray[np.float64]

_NEWTON_STEPS = 24  # far from the answer each halves the distance; the last four double the digits

# Seconds until a second of work is safe, restarts left out. A job that never fails pays its pauses only.
_UP = (
    "segment_s = interval_s + pause_s; hazard = failures_per_s * segment_s; "
    "growth = where(hazard > 0, expm1(hazard) / max(hazard, 1e-300), 1); "
    "exp(failures_per_s * persist_s) * growth * segment_s / interval_s"
)


class Losses(NamedTuple):
    """Seconds of wall-clock time for each second of work that counts. [-]"""

    pause: Quantity  # Training stands still while a snapshot is taken
    rework: Quantity  # Work that a failure threw away
    downtime: Quantity  # From a failure until training goes on, failed restarts included
    total: Quantity  # 1 + the above: calendar time over useful time


def young_interval_s(pause_s: ArrayLike, mean_time_between_failures_s: ArrayLike) -> Array:
    r"""First-order best interval, :math:`\sqrt{2 C M}` (Young, CACM 17(9), 1974) [s].

    >>> float(young_interval_s(50.0, 10_000.0))
    1000.0
    """
    pause, mean = (np.asarray(value, dtype=np.float64) for value in (pause_s, mean_time_between_failures_s))
    return np.asarray(np.sqrt(2.0 * pause * mean))


def daly_interval_s(pause_s: ArrayLike, mean_time_between_failures_s: ArrayLike) -> Array:
    r"""Higher-order estimate of the best interval.

    .. math:: \tau = \sqrt{2 C M} \left(1 + \tfrac13 \sqrt{\tfrac{C}{2M}}
                     + \tfrac19 \tfrac{C}{2M}\right) - C \quad (C < 2M), \text{ else } M

    Parameters
    ----------
    pause_s, mean_time_between_failures_s : array_like
        C and M. [s]

    Returns
    -------
    interval_s : ndarray
        Work between two snapshots. [s]

    References
    ----------
    .. [1] J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart
       dumps," Future Gener. Comput. Syst. 22, 2006, equation 37.
    """
    pause = np.asarray(pause_s, dtype=np.float64)
    mean = np.asarray(mean_time_between_failures_s, dtype=np.float64)
    ratio = pause / (2.0 * mean)
    series = young_interval_s(pause, mean) * (1.0 + np.sqrt(ratio) / 3.0 + ratio / 9.0) - pause
    return np.asarray(np.where(ratio < 1.0, series, mean))


def best_interval_s(
    pause_s: ArrayLike, mean_time_between_failures_s: ArrayLike, *, persist_s: ArrayLike = 0.0
) -> Array:
    r"""Interval that minimises the calendar time exactly.

    .. math:: \tau = \left(1 + W_0\!\left(-e^{-1 - C/M}\right)\right) M

    Parameters
    ----------
    pause_s, mean_time_between_failures_s : array_like
        C and M. [s]
    persist_s : array_like
        L: a snapshot must be safe before the next is taken, so :math:`\tau + C \ge L`. [s]

    Returns
    -------
    interval_s : ndarray
        Work between two snapshots. [s]

    Notes
    -----
    Zero of the derivative of `losses` by :math:`\tau`; neither R nor L moves it. With
    :math:`v = \ln(1 - \tau/M)` it is where :math:`v - e^v + 1 + C/M = 0`, which Newton's method finds from
    :math:`v = -1 - C/M` up, as that is concave. Where C is below 1e-7 of M, Daly's series is exact to ten digits.

    Examples
    --------
    >>> round(float(best_interval_s(60.0, 3 * 3600.0)))
    1099
    """
    pause, mean = (np.asarray(value, dtype=np.float64) for value in (pause_s, mean_time_between_failures_s))
    ratio = pause / mean
    safe = np.maximum(ratio, 1e-7)
    v = -1.0 - safe
    for _ in range(_NEWTON_STEPS):
        v = v + (v - np.expm1(v) + safe) / np.expm1(v)
    exact = -np.expm1(v) * mean
    free = np.where(ratio < 1e-7, daly_interval_s(pause, mean), exact)
    return np.asarray(np.maximum(free, np.asarray(persist_s, dtype=np.float64) - pause))


def losses(
    failures_per_s: ArrayLike,
    *,
    interval_s: ArrayLike,
    pause_s: ArrayLike,
    downtime_s: ArrayLike,
    persist_s: ArrayLike = 0.0,
) -> Losses:
    r"""Return the expected calendar time for a second of work, and where the rest of it goes.

    .. math:: \frac{\text{calendar}}{\text{useful}} =
              \frac{e^{\lambda (L + R)} \left(e^{\lambda (\tau + C)} - 1\right)}{\lambda \tau}

    of :math:`\lambda` failures of the whole job a second, `interval_s` :math:`\tau` of work between two snapshots, `pause_s` C,
    `downtime_s` R and `persist_s` L. [1/s, s]
    """
    given = {"failures_per_s": failures_per_s, "interval_s": interval_s, "pause_s": pause_s}
    up = quantity(_UP, **given, persist_s=persist_s)
    return Losses(
        pause=quantity("pause_s / interval_s", pause_s=pause_s, interval_s=interval_s),
        rework=up.then("up", "up - 1 - pause_s / interval_s"),
        downtime=up.then("up", "up * expm1(failures_per_s * downtime_s)", downtime_s=downtime_s),
        total=up.then("up", "up * exp(failures_per_s * downtime_s)", downtime_s=downtime_s),
    )


def shortage_fraction(broken_nodes: ArrayLike, spare_nodes: ArrayLike) -> Array:
    """Return the share of time in which more nodes are in repair, Poisson distributed (M/G/infinity), than spares [-]."""
    return poisson_upper_tail(spare_nodes, broken_nodes)


def spares_needed(broken_nodes: float) -> int:
    """Return the fewest spare nodes with which a job waits for repairs at most a hundredth of the time."""
    spares = np.arange(broken_nodes + 10.0 * math.sqrt(broken_nodes) + 40.0)
    return int(np.argmax(poisson_upper_tail(spares, broken_nodes) <= 0.01))


# GPUs draw their limit in the passes and about half of it while they synchronise (Patel et al., "POLCA,"
# arXiv:2308.12908, section 4: troughs of training at 20-75 % of the peak, by model).
WAITING_FRACTION = 0.5
IDLE_FRACTION = 0.15
# An H100 node that trains draws 76 % of its 10.2 kW (Newkirk et al., arXiv:2506.14551), of which eight
# GPUs take 5.6 kW: 0.38 W of host, network cards and fans for each watt of GPU.
HOST_FRACTION = 0.76 * 10.2 / 5.6 - 1.0


def mean_power_w(tdp_w: ArrayLike, *, busy_fraction: ArrayLike, running_fraction: ArrayLike) -> Array:
    r"""Mean power of a GPU and its share of the host over a run, without the building (PUE). [W]

    .. math:: P = \text{TDP} \left(r (b + 0.5 (1 - b)) + 0.15 (1 - r) + 0.38\right)

    with b the share of the step in which kernels compute or stream memory, and r that of the calendar time in which the job
    runs. [-]
    """
    busy, running = (np.asarray(share, dtype=np.float64) for share in (busy_fraction, running_fraction))
    gpu = running * (busy + WAITING_FRACTION * (1.0 - busy)) + IDLE_FRACTION * (1.0 - running)
    return np.asarray(np.asarray(tdp_w, dtype=np.float64) * (gpu + HOST_FRACTION))
