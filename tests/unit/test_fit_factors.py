"""Spreads of factors from residuals: each estimator gives back what made-up residuals were made with."""

import numpy as np
import pandas as pd
import pytest
from factor_residuals import (
    SHAPES_OF_A_STEP,
    kernel_spreads,
)
from factor_runs import (
    layout_parts,
    variance_parts,
)
from fit_factors import (
    Runs,
    fit_odds,
    odds_text,
    told_apart,
)

from costmodel.base.yaml_files import parse_mapping
from costmodel.describe.hardware.hardware import load_accelerator

RNG = np.random.default_rng(1)


def test_kernels_spread_between_tables_and_by_shapes():
    tables = {"a": 0.03, "b": -0.03, "c": 0.03, "d": -0.03}
    rows = pd.DataFrame(
        [
            {"factor": "matmul.x.16-bit", "device": name, "source": "s", "residual": middle + side}
            for name, middle in tables.items()
            for side in (-0.04, -0.04, 0.0, 0.04, 0.04)
        ]
    )
    (found,) = kernel_spreads(rows).values()
    inside = 1.4826 * 0.04
    assert found.scale == pytest.approx(np.hypot(0.03, inside / np.sqrt(SHAPES_OF_A_STEP)), rel=1e-6)
    assert found.points == 20


def test_runs_tell_the_spreads_of_what_they_depend_on():
    count = 20_000
    slopes = {
        "launch": pd.Series(RNG.uniform(0.0, 1.0, count)),
        "overlap": pd.Series(RNG.uniform(0.0, 0.5, count)),
    }
    residual = pd.Series(
        0.1 * slopes["launch"] * RNG.standard_normal(count)
        + 0.3 * slopes["overlap"] * RNG.standard_normal(count)
        + 0.05 * RNG.standard_normal(count)
    )
    found = variance_parts(residual, 0.0 * residual, slopes, np.ones(count))
    # Squares beyond their p95 count as it, which makes all of them smaller alike.
    assert found["launch"] == pytest.approx(0.09, abs=0.02)
    assert found["overlap"] == pytest.approx(0.27, abs=0.06)
    assert found[""] == pytest.approx(0.055, abs=0.015)


def layouts(of_tp: float, of_pp: float, noise: float, sweeps: int) -> pd.DataFrame:
    """Return sweeps of runs whose errors are an effect of tp, one of pp, and the noise of a run."""
    rows, rest = [], "switches{}"
    for sweep in range(sweeps):
        tp_errors, pp_errors = (effect * RNG.standard_normal(3) for effect in (of_tp, of_pp))
        rows += [
            {
                "source": "s",
                "model": f"m{sweep}",
                "gpus": 8,
                "global_batch": 8,
                "precision": "bf16",
                "layout": f"tp{tp} pp{pp} vp1 cp1 ep1 mbs{mbs} gbs8 seq_len9 zero_stage1 recomputenone {rest}",
                "residual": tp_errors[tp] + pp_errors[pp] + noise * RNG.standard_normal(),
            }
            for tp, pp, mbs in ((0, 0, 1), (0, 0, 2), (1, 0, 1), (2, 1, 1), (2, 2, 4))
        ]
    return pd.DataFrame(rows)


def test_layouts_differ_by_their_knobs_and_by_runs():
    found = layout_parts(layouts(0.06, 0.06, 0.02, sweeps=200))
    assert found["tp"] == pytest.approx(0.06, rel=0.25)
    assert found["pp"] == pytest.approx(0.06, rel=0.25)
    assert found["run"] == pytest.approx(0.02, rel=0.3)
    # No pair differs in these: the mean of those that some do. Of the ten pairs of a sweep 8 differ in tp, 7 in pp.
    mean = np.sqrt((8 * found["tp"] ** 2 + 7 * found["pp"] ** 2) / 15)
    assert found["ep"] == found["cp"] == pytest.approx(mean, rel=0.01)


OFFERED = load_accelerator("h100-sxm-80gb").memory_bytes / 2**30


def tried(source, recipe, count, center, scale):
    """Layouts tried at every predicted memory around what is offered."""
    over = RNG.uniform(-0.5, 0.5, count)
    return pd.DataFrame(
        {
            "source": source,
            "recipe": recipe,
            "accelerator": "h100-sxm-80gb",
            "predicted_need_gib": OFFERED * np.exp(over),
            "oom": over > center + scale * RNG.standard_normal(count),
        }
    )


def test_odds_of_fitting_are_those_of_recipes_that_tell_what_failed_and_where_others_cease():
    both, others = tried("both", "telling", 6000, -0.1, 0.08), tried("ran", "silent", 9000, -0.05, 0.06)
    # Peaks about their predictions as the edge of what ran about the largest of them.
    peaks = pd.DataFrame(
        {
            "source": "ran",
            "accelerator": "h100-sxm-80gb",
            "measured_peak_memory_gib": np.linspace(0.5, 0.96, 2000) * OFFERED,
            "residual": np.log(0.96) + 0.05 - 0.06 * RNG.standard_normal(2000),
        }
    )
    # One failure among its twelve runs settles nothing.
    few = tried("few", "hardly", 12, 0.0, 0.01).assign(oom=[True] + 11 * [False], predicted_need_gib=1.0)
    priced = pd.concat([both, few, others[~others.oom]], ignore_index=True)
    found = fit_odds(Runs(pd.DataFrame(), pd.Series(dtype=float), peaks, priced))
    assert set(found) == {"telling", "other"}
    assert found["telling"][:3] == pytest.approx((-0.1, 0.08, 6000), rel=0.1)
    assert found["other"][:2] == pytest.approx((-0.05, 0.06), abs=0.01)
    said = parse_mapping(odds_text(found, {"tp": 0.03, "run": 0.06}), "odds.yaml", example="fits: {}")
    assert said["layouts"] == {"tp": 0.03, "run": 0.06}
    assert said["fits"]["telling"]["center"] == pytest.approx(found["telling"].center, abs=1e-4)


def test_factors_that_runs_cannot_tell_apart_have_one_spread():
    """Runs are 0.02 off where they depend on the first, 0.04 where on the second, and right where on neither."""
    residual = pd.Series([0.02, -0.02, 0.04, -0.04, 0.0, 0.0] * 50)
    first = pd.Series([1.0, 1.0, 0.0, 0.0, 0.0, 0.0] * 50)
    second = pd.Series([0.0, 0.0, 1.0, 1.0, 0.0, 0.0] * 50)
    apart = told_apart(residual, {"a": first, "b": second})
    assert apart == pytest.approx({"a": 0.02, "b": 0.04, "": 0.0}, abs=1e-9)
    # All of it goes with the first, and nothing with the second: 0.0016 = 2 s^2 where both are, 0 where none is.
    both = pd.Series([0.0, 0.0, 1.0, 1.0] * 50)
    still = pd.Series([0.0, 0.0, 0.04, -0.04] * 50)
    assert told_apart(still, {"a": both, "b": both}) == pytest.approx(
        {"a": 0.0008**0.5, "b": 0.0008**0.5, "": 0.0}, abs=1e-9
    )
    # Most where both are least: s^2 (1 + 2 a^2) of 0.0004 at a = 1 and of 0.0016 at a = 1/2, by least squares.
    less = pd.Series([1.0, 1.0, 0.5, 0.5] * 50)
    falling = pd.Series([0.02, -0.02, 0.04, -0.04] * 50)
    alike = ((3.0 * 0.0004 + 1.5 * 0.0016) / (3.0**2 + 1.5**2)) ** 0.5
    assert told_apart(falling, {"a": less, "b": less}) == pytest.approx(
        {"a": alike, "b": alike, "": alike}, abs=1e-9
    )
