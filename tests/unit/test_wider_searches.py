"""A larger space is never slower, over a few random jobs: `wider_searches.py` runs as many as asked."""

from wider_searches import TOO_LITTLE, faster_when_named


def test_naming_a_searched_value_never_finds_a_faster_plan():
    found = list(faster_when_named(3, seed=3))
    assert len(found) >= 2
    assert [one for one in found if one[1] > TOO_LITTLE] == []
