"""A few hundred of the random jobs of `many_jobs`; its script runs as many as asked."""

import pytest
from many_jobs import PROPERTIES, batches, failures

COUNT, SEED = 200, 2026


@pytest.fixture(scope="module")
def drawn():
    return list(batches(COUNT, SEED))


@pytest.mark.parametrize("name", [name for name in PROPERTIES if name != "simulated"])
def test_property_holds(drawn, name):
    asked, found = 0, []
    for batch in drawn:
        count, failed = failures(batch, name)
        asked += count
        found += failed

    assert asked >= 10
    assert found == []
