"""Checkpoints and failures: the exact interval, the renewal formula, and a simulation second by second."""

import numpy as np
import pytest

from costmodel.physics.run.goodput import best_interval_s, losses, shortage_fraction, spares_needed
from costmodel.physics.run.sampling import _sum_of_waits, sample_runs

CASES = [
    (1e-4, 600.0, 20.0, 0.0, 300.0),
    (1e-4, 600.0, 20.0, 200.0, 300.0),
    (5e-4, 400.0, 60.0, 100.0, 900.0),
    (1e-5, 3600.0, 5.0, 60.0, 600.0),
]


@pytest.mark.parametrize("ratio", [1e-6, 1e-3, 0.05, 0.5, 2.0, 5.0])
def test_best_interval_is_where_losses_are_least(ratio):
    mean, pause = 10_000.0, 10_000.0 * ratio
    best = float(best_interval_s(pause, mean))
    assert 0 < best < mean
    u = best / mean
    assert np.log1p(-u) + u == pytest.approx(-ratio, rel=1e-9)
    near = losses(1 / mean, interval_s=best * np.asarray([0.99, 1.0, 1.01]), pause_s=pause, downtime_s=100.0)
    shorter, exact, longer = near.total.value
    assert exact < min(shorter, longer)


def test_best_interval_where_failures_are_as_frequent_as_pauses_are_long():
    # W(-exp(-2)) = -0.158594339563 (DLMF 4.13: the root of w exp(w) = -exp(-2) above -1)
    assert float(best_interval_s(100.0, 100.0)) == pytest.approx(84.1405660437, rel=1e-10)
    assert float(best_interval_s(1e9, 1.0)) == 1.0


@pytest.mark.parametrize("pause", [0.0, 1e-12, 1e-9, 0.99e-7, 1.01e-7, 1e-6])
def test_best_interval_of_almost_free_snapshots(pause):
    second_order = np.sqrt(2 * pause) - 2 * pause / 3
    assert float(best_interval_s(pause, 1.0)) == pytest.approx(second_order, rel=1e-6, abs=1e-15)


def simulate(rate, tau, pause, persist, down, work, generator):
    """Follow one run from event to event: independent of the formulas and of the sampler."""
    now = done = 0.0
    safe = 0.0
    pending = []  # (time at which it is safe, work it holds)
    next_failure = generator.exponential(1 / rate)
    phase_end, phase = tau, "work"
    while True:
        event = min(next_failure, phase_end, pending[0][0] if pending else np.inf)
        now = event
        if pending and event == pending[0][0]:
            safe = pending.pop(0)[1]
            if safe >= work - 1e-6:
                return now - persist
        elif event == next_failure:
            pending.clear()
            done = safe
            while True:  # a restart that fails starts again
                next_failure = now + generator.exponential(1 / rate)
                if next_failure >= now + down:
                    now += down
                    break
                now = next_failure
            phase, phase_end = "work", now + tau
        elif phase == "work":
            done += tau
            phase, phase_end = "pause", now + pause
        else:
            pending.append((now + persist, done))
            phase, phase_end = "work", now + tau


@pytest.mark.parametrize("case", CASES)
def test_formula_and_samples_against_a_simulation(case):
    rate, tau, pause, persist, down = case
    generator = np.random.default_rng(5)
    work = 60 * tau
    followed = np.asarray([simulate(*case, work, generator) for _ in range(400)])
    exact = (
        float(losses(rate, interval_s=tau, pause_s=pause, downtime_s=down, persist_s=persist).total.value)
        * work
    )
    error = followed.std() / np.sqrt(followed.size)
    # The end of a run differs from its middle by at most the last snapshot.
    assert exact == pytest.approx(followed.mean(), abs=4 * error + persist)
    names = ("failures_per_s", "interval_s", "pause_s", "persist_s", "downtime_s")
    drawn = sample_runs(
        np.random.default_rng(6),
        work_s=np.full(20_000, work),
        **dict(zip(names, (np.asarray(v) for v in case), strict=True)),
    ).calendar_s
    assert drawn.mean() == pytest.approx(exact, abs=4 * drawn.std() / np.sqrt(drawn.size))
    assert drawn.std() == pytest.approx(followed.std(), rel=0.15)


def test_a_large_sum_of_waits_has_the_moments_of_waits_that_end():
    """3,000 waits with a mean of 1,000 s that all end within 2,000 s, by integration."""
    x = np.linspace(0.0, 2000.0, 200_001)
    density = np.exp(-x / 1000.0) / np.exp(-x / 1000.0).sum()
    mean = float((density * x).sum())
    deviation = float(np.sqrt((density * (x - mean) ** 2).sum()))
    rate, width = np.asarray(1e-3), np.full(4000, 2000.0)
    sums = _sum_of_waits(np.random.default_rng(0), np.full(4000, 3000), np.broadcast_to(rate, 4000), width)
    assert sums.mean() == pytest.approx(3000 * mean, rel=1e-3)
    assert sums.std() == pytest.approx(np.sqrt(3000) * deviation, rel=0.05)


def test_spares():
    drawn = np.random.default_rng(0).poisson(5.0, 100_000)
    assert float(shortage_fraction(5.0, 7)) == pytest.approx(np.mean(drawn > 7), abs=0.005)
    assert shortage_fraction(np.asarray([0.0, 5.0]), np.asarray([0, 100])) == pytest.approx(
        [0.0, 0.0], abs=1e-12
    )
    for mean in (0.3, 5.0, 80.0):
        spares = spares_needed(mean)
        assert float(shortage_fraction(mean, spares)) <= 0.01
        assert spares == 0 or float(shortage_fraction(mean, spares - 1)) > 0.01
    assert spares_needed(0.0) == 0
    # Poisson of mean 10,000 is normal of deviation 100: 2.326 deviations leave 1 %.
    assert spares_needed(10_000.0) == pytest.approx(10_233, abs=2)
