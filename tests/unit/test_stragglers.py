"""The expected maximum of normals against tables and a simulation, and the seeds' 22 %."""

import numpy as np
import pytest

from costmodel.physics.stragglers import expected_maximum_normal, slowest_rank_excess

# Closed forms for 2 and 3; order-statistics tables (Harter 1961) beyond.
KNOWN = [(1, 0.0), (2, np.pi**-0.5), (3, 1.5 * np.pi**-0.5), (10, 1.53875), (100, 2.50759), (1000, 3.24144)]


@pytest.mark.parametrize(("ranks", "expected"), KNOWN)
def test_known_values(ranks, expected):
    assert float(expected_maximum_normal(ranks)) == pytest.approx(expected, abs=6e-6)


def test_against_a_simulation():
    drawn = np.random.default_rng(1).standard_normal((4000, 256)).max(axis=1)
    error = drawn.std() / np.sqrt(len(drawn))
    assert float(expected_maximum_normal(256)) == pytest.approx(drawn.mean(), abs=4 * error)


def test_sixteen_thousand_ranks():
    """First post of 000: "something like 22 %", which is sqrt(2 ln N); the exact value is 19.8 %."""
    assert 0.05 * np.sqrt(2 * np.log(16_000)) == pytest.approx(0.22, abs=0.001)
    assert float(slowest_rank_excess(16_000, 0.05)) == pytest.approx(0.198, abs=0.0005)


def test_it_grows_with_ranks_and_spread_and_broadcasts():
    late = slowest_rank_excess(np.asarray([[1.0], [8.0], [1e6], [1e12]]), np.asarray([0.01, 0.05]))
    assert late.shape == (4, 2)
    assert np.all(np.diff(late, axis=0) > 0)
    assert late[0, 0] == pytest.approx(0.0, abs=1e-12)
