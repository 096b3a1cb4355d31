"""Spreads of factors from residuals: each estimator gives back what made-up residuals were made with."""

import numpy as np
import pandas as pd
import pytest
from factor_residuals import (
    SHAPES_OF_A_STEP,
    collective_spreads,
    kernel_spreads,
)
from factor_runs import (
    known_variance,
    layout_parts,
    left_over,
    of_role,
    variance_parts,
)
from fit_factors import (
    Runs,
    Said,
    fit_odds,
    odds_text,
    told_apart,
    unexplained,
    without_constant_axes,
)

from costmodel.base.yaml_files import parse_mapping
from costmodel.describe.factors import nearest
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


def test_few_tables_take_what_all_say():
    rows = pd.DataFrame(
        [
            {"factor": factor, "device": f"{factor}{sweep}", "source": "s", "residual": middle}
            for factor, middles in (
                ("collective.a.transfer", (0.1, -0.1, 0.1)),
                ("collective.b.transfer", (0.0,)),
            )
            for sweep, middle in enumerate(middles)
        ]
    )
    found = collective_spreads(rows)
    assert found["collective.a.transfer"].scale == pytest.approx(0.1, rel=1e-4)
    # Root of the mean square of all four: one sweep alone agrees with constants fitted to it.
    assert found["collective.b.transfer"].scale == pytest.approx(np.sqrt(0.03 / 4), rel=0.3)
    assert "few" in found["collective.b.transfer"].source


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


def test_known_variance_is_of_the_nearest_factor():
    frame = pd.DataFrame({"time:matmul.mars.16-bit": [0.5], "time:launch": [0.2], "memory:states": [0.9]})
    spreads = {"matmul.other.16-bit": 0.1, "states": 7.0}
    assert known_variance(frame, spreads).tolist() == pytest.approx([0.05**2])
    assert known_variance(frame, spreads, prefix="memory:").tolist() == pytest.approx([(0.9 * 7.0) ** 2])
    assert of_role(frame, "launch").tolist() == [0.2]
    assert nearest("matmul", ["mars", "16-bit"], spreads) == "matmul.other.16-bit"


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


def test_what_few_pairs_say_of_a_knob_is_shrunk_to_the_mean_of_all():
    """Of pp, which has no effect, 7 pairs a sweep: against 50 of the mean 21 say less of it than 1,400 do."""
    for sweeps, shares in ((3, (0.6, 0.85)), (200, (0.0, 0.3))):
        found = layout_parts(layouts(0.06, 0.0, 0.001, sweeps))
        assert shares[0] <= found["pp"] ** 2 / found["cp"] ** 2 <= shares[1]


def test_what_is_left_holds_as_many_runs_as_it_should():
    residual = 0.08 * RNG.standard_normal(4000)
    known = np.full(4000, 0.05**2)
    left = left_over(residual, known, 0.5, float("inf"))
    assert left.scale == pytest.approx(np.sqrt(0.08**2 - 0.05**2), rel=0.06)
    assert left_over(residual, np.full(4000, 0.2**2), 0.5, 3.0).scale < 1e-3


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


def test_a_class_is_centered_on_the_bill_and_few_families_have_a_part_of_its_scale():
    """Two families of Ampere lie 0.03 about what bills say, many of Hopper 0.12."""
    kinds = [("a100-sxm-80gb", "ampere", 2, 0.03), ("h100-sxm-80gb", "hopper", 8, 0.12)]
    rows = [
        {
            "accelerator": accelerator,
            "num_experts": 0,
            "is_gpu": True,
            "class": f"{generation}-dense",
            "source": f"{generation}{family}",
            "source_family": f"{generation}{family}",
            "model": "m",
            "gpus": 8,
            "global_batch": run,
            "residual": spread * RNG.standard_normal(),
        }
        for accelerator, generation, families, spread in kinds
        for family in range(families)
        for run in range(400)
    ]
    time = pd.DataFrame(rows).assign(**{"time:unexplained": 1.0})
    runs = Runs(time, time.residual, pd.DataFrame(), pd.DataFrame())
    said = unexplained(runs, {"matmul.ampere.16-bit": 0.0, "matmul.hopper.16-bit": 0.0}, float("inf"))
    assert {one.center for one in said.values()} == {0.0}

    def scale(name):
        return said[f"unexplained.{name}"].spread * np.hypot(1.0, said["layout"].spread)

    of_all = scale("other")
    left_out = {"other": "recipes", "unfitted-dense": "recipes", "hopper-dense": "families"}
    for name, what in left_out.items():
        families = 8 if name == "hopper-dense" else 10
        count = f"{400 * families} runs of {families} families of sources"
        assert said[f"unexplained.{name}"].source == f"{count}, {what} left out of the constants"
        assert said[f"unexplained.{name}"].tail == float("inf")
    assert scale("ampere-dense") ** 2 == pytest.approx((2 * 0.03**2 + 3 * of_all**2) / 5, rel=0.1)
    assert scale("hopper-dense") ** 2 == pytest.approx((8 * 0.12**2 + 3 * of_all**2) / 11, rel=0.1)


def test_kernels_that_nobody_timed_settle_with_the_runs_that_depend_on_them():
    lent = {
        f"{role}.other.{bits}": Said(0.0, 0.2, float("inf"), 0, "apart")
        for role in ("matmul", "grouped_matmul")
        for bits in ("16-bit", "8-bit")
    }
    time = pd.DataFrame({"accelerator": ["tpu-v5p"] * 16 + ["h100-sxm-80gb"] * 9})
    time["time:matmul.tpu-v5.16-bit"] = [0.5] * 16 + [0.0] * 9
    time["time:matmul.tpu-v5.8-bit"] = [0.5] * 7 + [0.0] * 18
    time["time:matmul.hopper.16-bit"] = [0.0] * 16 + [0.5] * 9
    measured = {"matmul.hopper.16-bit": Said(0.0, 0.01, float("inf"), 50, "timed")}
    found = without_constant_axes(
        Runs(time, pd.Series(dtype=float), pd.DataFrame(), pd.DataFrame()), {**lent, **measured}
    )

    # Seven runs in 8 bits are too few, none has grouped products, and what is timed stays.
    assert set(found) == {"matmul.tpu-v5.16-bit"}
    assert found["matmul.tpu-v5.16-bit"].spread == pytest.approx(0.2 / 4)


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
