"""Error bands on numbers small enough to count."""

import bands
import numpy as np
import pandas as pd
import pytest

H100, A100 = "h100-sxm-80gb", "a100-sxm-80gb"


def runs(*rows):
    """Validated runs: accelerator, experts, quality, memory error."""
    return pd.DataFrame(rows, columns=["accelerator", "num_experts", "quality", "memory_error"])


def test_a_band_is_the_middle_of_measured_over_predicted():
    """Eleven ratios 1.0, 1.1, ... 2.0: p10 and p90 are the second and the second last."""
    ratio = np.linspace(1.0, 2.0, 11)
    assert bands.band(pd.Series(1.0 / ratio - 1.0)) == {"low": 1.1, "high": 1.9, "runs": 11}


def test_classes_of_runs():
    found = bands.classes(runs((H100, 8, "A", 0.0), (H100, 0, "A", 0.0), (A100, 0, "A", 0.0)))
    assert found.tolist() == ["hopper-moe", "hopper-dense", "ampere-dense"]


def test_bands_of_classes_with_eight_runs():
    """Eight dense runs on Hopper and seven on Ampere: unfitted they make one more class together."""
    table = runs(*[(H100, 0, "A", 0.25)] * 8, *[(A100, 0, "C", 1.0)] * 7, *[(A100, 0, "B", -0.5)] * 1)
    time = pd.Series(1.0, index=table.index[:15])
    other = pd.Series(-0.5, index=table.index[:15])
    found = bands.error_bands(table, time, other)
    half, twice = ({"low": x, "high": x} for x in (0.5, 2.0))
    assert found["time"] == {
        "hopper-dense": {**half, "runs": 8},
        "hopper-dense-unfitted": {**twice, "runs": 8},
        "any-dense-unfitted": {**twice, "runs": 15},
    }
    # Of memory those of quality A and B: eight of 0.8 and one of 2.
    assert found["memory"]["hopper-dense"] == {"low": 0.8, "high": 0.8, "runs": 8}
    assert found["memory"]["any"]["runs"] == 9
    assert set(found["memory"]) == {"hopper-dense", "any"}


def test_machines_whose_kernels_nobody_timed_have_a_band():
    table = runs(*[("mi355x", 0, "A", 0.0)] * 8, *[(H100, 0, "A", 0.0)] * 8)
    assert bands.unmeasured(table.accelerator).tolist() == [True] * 8 + [False] * 8
    guessed = bands.error_bands(table, pd.Series(dtype=float), pd.Series([1.0] * 8 + [0.0] * 8))["time"]
    assert guessed["any-dense-estimated"] == {"low": 0.5, "high": 0.5, "runs": 8}


def test_how_many_lie_in_their_band():
    table = runs((H100, 0, "A", 0.0), (H100, 0, "A", 0.0), (H100, 0, "A", 0.0), (A100, 0, "A", 0.0))
    errors = pd.Series([0.0, 1.0, -0.5, 0.0])
    found = bands.coverage(table, errors, {"hopper-dense": {"low": 0.5, "high": 1.0}})
    assert found.to_dict("records") == [{"class": "hopper-dense", "runs": 3, "inside": pytest.approx(2 / 3)}]


def test_bands_as_a_file():
    one = {"low": 0.9, "high": 1.1, "runs": 8.0}
    text = bands.bands_text({"time": {"b": one, "a": one}}, ["x", "y"], ["z"], [H100])
    assert text.removeprefix(bands.HEAD).splitlines() == [
        "time:",
        "  a: {low: 0.9, high: 1.1, runs: 8}",
        "  b: {low: 0.9, high: 1.1, runs: 8}",
        "fitted_recipes: [x, y]",
        "fitted_recipes_xla: [z]",
        f"accelerators: [{H100}]",
    ]


def test_bands_that_no_run_has_have_their_columns():
    none = bands.coverage(runs((H100, 0, "A", 0.0)), pd.Series([0.0]), {})
    assert list(none.columns) == ["class", "runs", "inside"]
    assert len(none) == 0
