"""Every flag and key of another program that we list is one that the program has: looked up in copies of it.

`tools/check/known_names.py` writes the table; a name that is listed here and stands nowhere there fails.
"""

import csv
from collections import Counter
from pathlib import Path

import pytest
from listed_names import LISTED

TABLE = Path(__file__).parent / "known_names.csv"
ROWS = list(csv.DictReader(TABLE.open(newline="", encoding="utf-8")))

# Flags of Megatron's forks and of its first years that no copy here holds: read where a script has them, never written.
OF_FORKS = frozenset(
    """add-dense-bias ampipe-degree curriculum-learning deepspeed-config expert-interval fp8-hybrid geglu glu-activation
    lora-target-modules loss-chunk-size model parallel-attn post-norm qlora swap-attention train-type rollout-batch-size
    use-dynamic-batch-size use-rms-norm world-size""".split()  # noqa: SIM905
)


@pytest.mark.parametrize("framework", LISTED)
def test_names_that_we_list_are_the_frameworks(framework):
    known = {row["name"] for row in ROWS if row["framework"] == framework}
    listed = LISTED[framework]()
    assert len(listed) > 10
    assert listed - known - (OF_FORKS if framework == "megatron" else set()) == set()
    # What was found leaves the list of what was not.
    assert known & OF_FORKS == set()


def test_every_row_says_where():
    assert all(row["source"] and row["place"] for row in ROWS)
    assert max(Counter((row["framework"], row["name"]) for row in ROWS).values()) == 1
