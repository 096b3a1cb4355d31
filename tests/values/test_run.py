"""A long run in round numbers: checkpoints, failures, spares and power."""

import math

import numpy as np
import pytest

from costmodel.physics.run import goodput
from costmodel.physics.run.goodput import mean_power_w
from costmodel.physics.run.stragglers import RankTimes, jitter_excess, lasting_excess


def value(of):
    """Return a number, or the number of a quantity."""
    return float(getattr(of, "value", of))


def test_intervals_between_checkpoints():
    """A pause of 50 s and a failure every 10,000 s: the square root of a million; Daly adds terms of C / 2M."""
    assert value(goodput.young_interval_s(50.0, 10_000.0)) == pytest.approx(1000.0)
    ratio = 50 / 20_000
    daly = 1000 * (1 + math.sqrt(ratio) / 3 + ratio / 9) - 50
    assert value(goodput.daly_interval_s(50.0, 10_000.0)) == pytest.approx(daly)
    assert value(goodput.daly_interval_s(30_000.0, 10_000.0)) == 10_000.0
    best = value(goodput.best_interval_s(50.0, 10_000.0))
    # (1 - u) e^u = e^(-C/M)
    assert (1 - best / 1e4) * math.exp(best / 1e4) == pytest.approx(math.exp(-0.005))
    assert value(goodput.best_interval_s(1.0, 1e4, persist_s=5000.0)) == pytest.approx(4999.0)


def test_losses():
    """A failure every 10,000 s, 900 s of work, 100 s of pause, safe 200 s later, 300 s to come back."""
    found = goodput.losses(1e-4, interval_s=900.0, pause_s=100.0, persist_s=200.0, downtime_s=300.0)
    up = math.exp(0.02) * math.expm1(0.1) / (1e-4 * 900)
    assert value(found.pause) == pytest.approx(1 / 9)
    assert value(found.rework) == pytest.approx(up - 1 - 1 / 9)
    assert value(found.downtime) == pytest.approx(up * math.expm1(0.03))
    assert value(found.total) == pytest.approx(up * math.exp(0.03))
    calm = goodput.losses(0.0, interval_s=900.0, pause_s=100.0, downtime_s=300.0)
    assert value(calm.total) == pytest.approx(1 + 1 / 9)


def test_spare_nodes():
    """Two nodes in repair on average: Poisson; four spares are too few 5.3 % of the time, six 0.5 %."""
    tail = 1 - sum(math.exp(-2) * 2**k / math.factorial(k) for k in range(5))
    assert value(goodput.shortage_fraction(2.0, 4)) == pytest.approx(tail)
    assert goodput.spares_needed(2.0) == 6


def test_power():
    """Its limit in kernels, half of it waiting, 15 % where the job stands still, and 0.384 for the host."""
    host = 0.76 * 10.2 / 5.6 - 1

    def power(busy, running):
        return value(mean_power_w(1000.0, busy_fraction=busy, running_fraction=running))

    assert power(1.0, 1.0) == pytest.approx(1000 * (1 + host))
    assert power(0.0, 1.0) == pytest.approx(1000 * (0.5 + host))
    assert power(1.0, 0.0) == pytest.approx(1000 * (0.15 + host))
    assert power(0.6, 0.9) == pytest.approx(1000 * (0.9 * (0.6 + 0.2) + 0.015 + host))


def test_slowest_ranks():
    """Of two normal ranks the slower is late by 1 / sqrt(pi) deviations; jitter pays that at each of 25 meetings."""
    two, four = np.asarray(2.0), np.asarray(4.0)
    first, second = lasting_excess([two, four], RankTimes(0.1))
    assert value(first) == pytest.approx(0.1 / math.sqrt(math.pi), rel=1e-4)
    assert value(first) + value(second) == pytest.approx(0.1 * 1.0293754, rel=1e-4)
    jitter = jitter_excess([two], [np.asarray(25.0)], 0.05)[0]
    assert value(jitter) == pytest.approx(0.05 * 5 / math.sqrt(math.pi), rel=1e-4)
    # A piece deviates by no more than 30 %: beyond, a normal piece may take less than no time.
    jitter = jitter_excess([two], [np.asarray(25.0)], 0.1)[0]
    assert value(jitter) == pytest.approx(0.3 / math.sqrt(math.pi), rel=1e-4)
