"""Properties of random jobs: `JOBS=20000 pytest tests/unit/test_many_jobs.py -k simulated` tries more of one."""

import os

import pytest
from many_jobs import PROPERTIES, batches, failures

COUNT, SEED = int(os.environ.get("JOBS", "200")), 2026


@pytest.fixture(scope="module")
def drawn():
    return list(batches(COUNT, SEED))


@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda holds: holds.__name__)
def test_property_holds(drawn, holds):
    asked, found = 0, []
    for batch in drawn:
        count, failed = failures(batch, holds)
        asked += count
        found += failed

    assert asked >= 10
    assert found == []
