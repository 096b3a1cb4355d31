"""Error bands on numbers small enough to count."""

import bands
import numpy as np
import pandas as pd
import pytest

H100, A100 = "h100-sxm-80gb", "a100-sxm-80gb"


def runs(*rows):
    """Validated runs of one source: accelerator, experts, quality, memory error."""
    table = pd.DataFrame(rows, columns=["accelerator", "num_experts", "quality", "memory_error"])
    return table.assign(source="one", gpus=8)


def errors_of(*ratios):
    """Errors at ratios of measured over predicted."""
    return pd.Series([1.0 / ratio - 1.0 for ratio in ratios])


def test_a_band_is_the_middle_of_measured_over_predicted():
    """Nine ratios from 1.1 to 1.9: half of the first tenth and the last lie outside, p10 and p90 between two runs."""
    ratio = np.exp(np.linspace(0.0, 0.8, 9))
    found = bands.band(errors_of(*ratio), pd.Series(["a"] * 9))
    # The middle of the first run is at 1/18 and of the second at 3/18: a tenth is 0.4 of the way.
    assert found == {"low": round(np.exp(0.04), 3), "high": round(np.exp(0.76), 3), "runs": 9, "sources": 1}


def test_few_sources_widen_a_band_and_a_large_one_counts_as_the_three_quarter_power_of_its_runs():
    """Two families: Student's t with one degree of freedom, 3.078 in place of 1.2816."""
    same = bands.band(errors_of(*[0.9] * 10, *[1.1] * 10), pd.Series(["a", "b"] * 10))
    middle, half = np.log(0.9 * 1.1) / 2, np.log(1.1 / 0.9) / 2 * 3.078 / 1.2816
    assert (same["low"], same["high"]) == pytest.approx(
        (np.exp(middle - half), np.exp(middle + half)), abs=2e-3
    )
    assert same["sources"] == 2
    # 16 runs at 1 weigh 8, and four single ones at 2 one each: 8 of 12, so that the upper tenth lies at 2.
    many = bands.band(errors_of(*[1.0] * 16, *[2.0] * 4), pd.Series(["a"] * 16 + list("bcde")))
    assert many["high"] > 2.0
    assert bands.at_least(same, {"low": 0.5, "high": 1.01}) == {**same, "low": 0.5}


def test_a_band_is_as_wide_as_families_needed_while_they_were_left_out():
    """Five families at -0.2 to 0.2: the outer two are 0.1 outside of the others' band, the next 0.1 inside, the middle 0.2.

    The upper fifth of that is 0.1, which is added to 0.2 on both sides.
    """
    at = np.repeat([-0.2, -0.1, 0.0, 0.1, 0.2], 10)
    found = bands.band(errors_of(*np.exp(at)), pd.Series(list("abcde")).repeat(10).reset_index(drop=True))
    assert (found["low"], found["high"]) == pytest.approx((np.exp(-0.3), np.exp(0.3)), abs=1e-3)
    # Families alike in all runs: what is added is negative, so that nothing is wider than needed.
    spread = np.exp(np.linspace(-0.4, 0.4, 9))
    alike = bands.band(errors_of(*[*spread] * 4), pd.Series([*"a" * 9, *"b" * 9, *"c" * 9, *"d" * 9]))
    assert 0.9 * np.exp(-0.36) < alike["low"] < alike["high"] < 1.1 * np.exp(0.36)


def test_classes_of_runs():
    found = bands.classes(runs((H100, 8, "A", 0.0), (H100, 0, "A", 0.0), (A100, 0, "A", 0.0)))
    assert found.tolist() == ["hopper-moe", "hopper-dense", "ampere-dense"]


def test_bands_of_classes_with_eight_runs():
    """Eight dense runs on Hopper and seven on Ampere: unfitted they make one more class together."""
    table = runs(*[(H100, 0, "A", 0.25)] * 8, *[(A100, 0, "C", 1.0)] * 7, *[(A100, 0, "B", -0.5)] * 1)
    time = pd.Series(1.0, index=table.index[:15])
    other = pd.Series(-0.5, index=table.index[:15])
    found = bands.error_bands(table, time, other)
    one = {"sources": 1}
    assert found["time"] == {
        "hopper-dense": {"low": 0.5, "high": 0.5, "runs": 8, **one},
        # No narrower than where the recipe has runs of its own.
        "hopper-dense-unfitted": {"low": 0.5, "high": 2.0, "runs": 8, **one},
        "any-dense-unfitted": {"low": 2.0, "high": 2.0, "runs": 15, **one},
    }
    # Of memory those of quality A and B, eight of 0.8 and one of 2: too few for a class of their own.
    assert found["memory"].keys() == {"any"}
    assert found["memory"]["any"]["runs"] == 9


def test_fifty_memory_peaks_make_a_band_of_a_class():
    for count, keys in ((49, {"any"}), (50, {"hopper-dense", "any"})):
        table = runs(*[(H100, 0, "A", 0.25)] * count)
        found = bands.error_bands(table, pd.Series(0.0, index=table.index), pd.Series(0.0, index=table.index))
        assert found["memory"].keys() == keys
        assert all(band["low"] == band["high"] == 0.8 for band in found["memory"].values())


def test_machines_whose_kernels_nobody_timed_have_a_band():
    table = runs(*[("mi355x", 0, "A", 0.0)] * 8, *[(H100, 0, "A", 0.0)] * 8)
    assert bands.unmeasured(table.accelerator).tolist() == [True] * 8 + [False] * 8
    own = pd.Series([0.0] * 16)
    guessed = bands.error_bands(table, own, pd.Series([1.0] * 8 + [0.0] * 8))["time"]
    assert guessed["any-dense-estimated"] == {"low": 0.5, "high": 0.5, "runs": 8, "sources": 1}
    # One source is no surer than that, whatever its runs say.
    assert (guessed["hopper-dense"]["low"], guessed["hopper-dense"]["high"]) == (0.5, 1.0)


def test_large_machines_have_a_band_of_their_own_runs():
    table = runs(*[(H100, 0, "A", 0.0)] * 16).assign(gpus=[2001] * 8 + [2000] * 8)
    own = pd.Series([0.25] * 8 + [0.0] * 8)
    found = bands.error_bands(table, own, own)["time"]["any-large"]
    assert (found["low"], found["high"], found["runs"]) == (0.8, 0.8, 8)
