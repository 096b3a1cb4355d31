"""Bands, spreads, widenings and errors of tables on numbers small enough to count."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.special import ndtri

from costmodel.base.errors import DataError, ProfileError
from costmodel.physics.kernels.roofline import MatmulConstants
from costmodel.trust import bands, site_fit
from costmodel.trust import posterior as posterior_module
from costmodel.trust.calibration import (
    cluster_profile,
    factor_residuals,
    factor_runs,
    kernel_blocks,
    kernel_fits,
    kernel_profile,
    library_fp4,
    ship_factors,
)
from costmodel.trust.calibration.kernel_measurements import AttentionRows, MatmulRows
from costmodel.trust.posterior import (
    WIDENING_ROWS,
    Priors,
    _alone,
    _information,
    _log_density,
    _most_probable,
    _starts,
    _widening,
    posterior,
)
from costmodel.trust.published_runs import REQUIRED_COLUMNS, read_rows
from costmodel.trust.site_fit import RunFit, RunsCalibration

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


def test_headroom_is_what_four_in_five_need():
    """Eleven ratios 1.0, ... 2.0: p80 is 1.8, so 1 - 1/1.8 stays free; where all is less than said, nothing."""
    ratio = np.linspace(1.0, 2.0, 11)
    table = runs(*((H100, 0, "A", 1.0 / r - 1.0) for r in ratio), (A100, 8, "B", 1.0), (A100, 8, "C", -0.9))
    found = bands.headroom(table)
    assert found == {"hopper-dense": 0.444, "any": 0.438}  # with one of 0.5: p80 is 1.78
    # Eight runs are a class and seven are none.
    few = runs(*[(H100, 0, "A", 1.0)] * 8, *[(A100, 0, "A", 1.0)] * 7)
    assert bands.headroom(few) == {"hopper-dense": 0.0, "any": 0.0}


def test_how_many_lie_in_their_band():
    table = runs((H100, 0, "A", 0.0), (H100, 0, "A", 0.0), (H100, 0, "A", 0.0), (A100, 0, "A", 0.0))
    errors = pd.Series([0.0, 1.0, -0.5, 0.0])
    found = bands.coverage(table, errors, {"hopper-dense": {"low": 0.5, "high": 1.0}})
    assert found.to_dict("records") == [{"class": "hopper-dense", "runs": 3, "inside": pytest.approx(2 / 3)}]


def test_bands_as_a_file():
    one = {"low": 0.9, "high": 1.1, "runs": 8.0}
    text = bands.bands_text({"time": {"b": one, "a": one}}, {"any": 0.1}, ["x", "y"], ["z"], [H100])
    assert text.removeprefix(bands.HEAD).splitlines() == [
        "time:",
        "  a: {low: 0.9, high: 1.1, runs: 8}",
        "  b: {low: 0.9, high: 1.1, runs: 8}",
        "headroom: {any: 0.1}  # share of memory to leave free so that 80 % of such runs fit",
        "fitted_recipes: [x, y]",
        "fitted_recipes_xla: [z]",
        f"accelerators: [{H100}]",
    ]


def test_residuals_of_kernels(monkeypatch):
    """Priced at 100 us: 110 us and 90 us count, of attention those not timed from the host, 40 us are too short."""
    kernels = SimpleNamespace(matmul={"bf16": "m"}, grouped_matmul={"fp8": "g"}, attention={"flash": "a"})
    device = SimpleNamespace(name=H100, generation="hopper", kernels=kernels)
    monkeypatch.setattr(factor_residuals, "load_accelerator", lambda name: device)
    monkeypatch.setattr(factor_residuals, "_device", lambda name: device)
    took = SimpleNamespace(time_s=np.array([110e-6, 90e-6, 40e-6]), sources=["s", "t", "u"])
    asked = {
        (H100, "matmul", "bf16"): took,
        (H100, "matmul", "fp8"): took,
        (H100, "batched_matmul", "bf16"): took,
        (H100, "grouped_matmul", "fp8"): took,
        (H100, "grouped_matmul", "bf16"): took,
        ("nobody's", "matmul", "bf16"): took,
    }
    timed = SimpleNamespace(**vars(took), host_timed=np.array([0, 1, 0]))
    attention = {(H100, "flash"): timed, (H100, "cudnn"): timed, ("nobody's", "flash"): timed}
    monkeypatch.setattr(factor_residuals, "read_matmul", lambda path: asked)
    monkeypatch.setattr(factor_residuals, "read_attention", lambda paths: attention)
    monkeypatch.setattr(factor_residuals, "predict_matmul", lambda rows, *_: np.full(3, 100e-6))
    monkeypatch.setattr(factor_residuals, "predict_attention", lambda rows, *_, kernel: np.full(3, 100e-6))
    found = factor_residuals.kernel_residuals("matmul.csv", ["attention.csv"])
    up, down = np.log(1.1), np.log(0.9)
    said = [
        (one.factor, one.device, one.source, pytest.approx(one.residual))
        for one in found.itertuples(index=False)
    ]
    assert said == [
        ("matmul.hopper.16-bit", H100, "s", up),
        ("matmul.hopper.16-bit", H100, "t", down),
        ("grouped_matmul.hopper.8-bit", H100, "s", up),
        ("grouped_matmul.hopper.8-bit", H100, "t", down),
        ("attention.hopper", f"{H100} flash", "s", up),
    ]


def test_residuals_of_messages(monkeypatch):
    """Up to 64 KiB a message is latency, from 64 MiB on transfer, and between them neither."""
    size = np.array([2.0**16, 2.0**20, 2.0**26])
    inside = SimpleNamespace(name="a", inner="nvlink", network=None, size_bytes=size, time_s=np.full(3, 2.0))
    across = SimpleNamespace(name="b", inner="nvlink", network="ib", size_bytes=size, time_s=np.full(3, 8.0))
    monkeypatch.setattr(factor_residuals, "read_runs", lambda table: [inside, across])
    monkeypatch.setattr(
        factor_residuals, "load_link", lambda name, size: SimpleNamespace(kind=f"kind-{name}")
    )
    monkeypatch.setattr(factor_residuals, "predict_inner", lambda run, inner: np.ones(3))
    monkeypatch.setattr(factor_residuals, "predict", lambda run, inner, link: np.full(3, 2.0))
    found = factor_residuals.collective_residuals("sweeps.csv")
    assert found.values.tolist() == [
        ["collective.kind-nvlink.latency", "a", "nvlink", pytest.approx(np.log(2.0))],
        ["collective.kind-nvlink.transfer", "a", "nvlink", pytest.approx(np.log(2.0))],
        ["collective.kind-ib.latency", "b", "ib", pytest.approx(np.log(4.0))],
        ["collective.kind-ib.transfer", "b", "ib", pytest.approx(np.log(4.0))],
    ]


def test_fences_and_pooled_tables():
    """Around a middle of 0 with deviations of 1: three robust deviations are 4.45."""
    values = np.array([-1.0, 1.0, 0.0, -1.0, 1.0, 100.0])
    middle = 0.5
    reach = 3 * 1.4826 * 1.0  # deviations 1.5, .5, .5, 1.5, .5, 99.5: their median is 1
    assert factor_residuals._fences(values) == pytest.approx((middle - reach, middle + reach))
    cut = np.minimum(values, middle + reach)
    assert factor_residuals._root_mean_square(values) == pytest.approx(np.sqrt(np.mean(cut**2)))
    few, enough = np.array([0.3, -0.3]), np.array([0.3, -0.3, 0.3])
    assert factor_residuals._own_or_pooled(few, 0.1) == (0.1, " (of all, as these are few)")
    assert factor_residuals._own_or_pooled(enough, 0.1) == (pytest.approx(0.3, abs=1e-5), "")


def test_slopes_of_a_figure():
    """What grows with the first factor squared, and shrinks with the second."""
    at = np.exp([factor_runs.STEP, -factor_runs.STEP])
    figure = np.concatenate([at**2, 1.0 / at])
    assert factor_runs._slopes(figure, 2).tolist() == pytest.approx([2.0, -1.0])
    assert factor_runs._slopes(np.asarray(3.0), 2).tolist() == [0.0, 0.0]


def normal(*scales):
    return Priors(np.zeros(len(scales)), np.array(scales), np.full(len(scales), np.inf))


def test_the_widening_of_rows_that_lie_apart():
    """Two rows off by 1 and -1 and one by 9, which does not fit; the factor explains a part of one row's worth."""
    residual, tail = np.array([1.0, -1.0, 9.0]), 3.0
    slopes, scale = np.array([[1.0], [2.0], [5.0]]), np.array([1.0, 2.0, 1.0])
    # Two slopes over scales of 1: 2 of information, halved by the tail; the prior's of scale 0.5 is 4.
    told = 2.0 * 3.0 / 6.0
    used = told / (told + 4.0)
    squares = 2.0 * (4.0 / (3.0 + 1.0)) * 1.0
    expected = np.sqrt((WIDENING_ROWS + squares) / (WIDENING_ROWS + 2.0 - used))
    assert _widening(slopes, residual, normal(0.5), scale, tail, 1.0) == pytest.approx(expected, rel=1e-12)
    # Twice as wide they count less, and the third is off by 4.5 still.
    squares = 2.0 * (4.0 / (3.0 + 0.25))
    expected = np.sqrt((WIDENING_ROWS + squares) / (WIDENING_ROWS + 2.0 - used))
    assert _widening(slopes, residual, normal(0.5), scale, tail, 2.0) == pytest.approx(expected, rel=1e-12)
    assert _widening(slopes, residual * 100, normal(0.5), scale, tail, 1.0) == 1.0


def test_where_a_search_of_the_most_probable_begins():
    """The prior; the way to the median row along the mean slope by variances; least squares."""
    slopes, target = np.array([[1.0, 0.0], [1.0, 2.0]]), np.array([3.0, 5.0])
    priors, scale = normal(1.0, 2.0), np.array([1.0, 0.5])
    none, median, squares = _starts(slopes, target, priors, scale)
    assert none.tolist() == [0.0, 0.0]
    # Means 1 and 1 with variances 1 and 4: a reach of 5, so 4 is met by 0.8 and 3.2.
    assert median.tolist() == pytest.approx([0.8, 3.2])
    weights = np.diag([1.0, 4.0])
    held = np.diag([1.0, 0.25])
    assert squares.tolist() == pytest.approx(
        (np.linalg.inv(slopes.T @ weights @ slopes + held) @ slopes.T @ weights @ target).tolist()
    )
    assert len(_starts(slopes[:0], target[:0], priors, scale[:0])) == 1


def test_where_each_factor_alone_meets_most_rows():
    """Rows ask 1, 2 and 6 of the first by weights 1, 1 and 3; one row of the second says nothing."""
    slopes = np.array([[1.0, 0.0], [1.0, 0.0], [-3.0, 1.0], [0.0, 0.0]])
    target = np.array([1.0, 2.0, -18.0, 50.0])
    (found,) = _alone(slopes, target)
    assert found.tolist() == [6.0, 0.0]
    (even,) = _alone(slopes * [[1.0], [1.0], [1 / 3], [1.0]], target / [1, 1, 3, 1])
    assert even.tolist() == [2.0, 0.0]


@pytest.mark.parametrize("prior_tail", [np.inf, 1.0])
def test_densities_and_information(prior_tail):
    """Student's t of rows and prior written out; information is the curvature of the density where rows fit."""
    slopes, target, scale, tail = np.array([[1.0], [0.5]]), np.array([0.2, 0.1]), np.array([0.1, 0.2]), 3.0
    priors = Priors(np.zeros(1), np.array([0.5]), np.array([prior_tail]))
    x, widening = np.array([0.3]), 1.3

    def student(scaled, of):
        return -0.5 * scaled**2 if np.isinf(of) else -0.5 * (of + 1.0) * np.log1p(scaled**2 / of)

    rows = student((target - slopes[:, 0] * 0.3) / (1.3 * scale), tail).sum() - 2 * np.log(1.3)
    width = -WIDENING_ROWS * (np.log(1.3) + 0.5 / 1.3**2)
    expected = rows + width + student(0.3 / 0.5, prior_tail)
    assert _log_density(slopes, target, priors, scale, tail, x, widening) == pytest.approx(
        expected, rel=1e-12
    )
    none = np.zeros(1)
    told = _information(slopes, np.zeros(2), scale, tail, none, priors)
    # Fisher's of a t of 3: 4 / 6 of a normal's; 1 / 0.1^2 + 0.25 / 0.2^2 = 106.25; the prior's 4, which is that at its center.
    assert told.tolist() == [[pytest.approx(106.25 * 4.0 / 6.0 + 4.0)]]


def test_the_likeliest_of_several_ends():
    """Five rows at 1 and two at 0 that all are sure of it: the five are right, wherever the search begins."""
    slopes, target = np.ones((7, 1)), np.array([1.0] * 5 + [0.0] * 2)
    args = slopes, target, normal(10.0), np.full(7, 0.01), 3.0
    for starts in ([np.zeros(1), np.ones(1)], [np.ones(1), np.zeros(1)]):
        x, _ = _most_probable(*args, starts)
        assert x[0] == pytest.approx(1.0, abs=0.02)
    found = posterior(lambda points: points @ np.ones((1, 7)), target, *args[2:])
    assert found.center[0] == pytest.approx(1.0, abs=0.02)
    assert found.residual.tolist() == pytest.approx((target - found.center[0]).tolist(), abs=1e-9)
    assert found.scaled.tolist() == pytest.approx((found.residual / (found.widening * 0.01)).tolist())


def fit(what, measured, before, left_out, after, why=""):
    return RunFit("r", what, measured, before, left_out, after, 0.0, why)


def test_errors_and_moves_of_runs(monkeypatch):
    """Medians of three step times; memory counts in neither, and what does not fit not in how far they moved."""
    fits = (
        fit("time", 1.0, 0.5, 0.8, 0.9),
        fit("time", 1.0, 2.0, 1.1, 1.05),
        fit("time", 1.0, 4.0, 1.3, 1.2, "odd"),
        fit("memory", 1.0, 9.0, 9.0, 9.0),
    )
    monkeypatch.setattr(site_fit, "site_scale", lambda est: 0.1)
    monkeypatch.setattr(site_fit, "row_scale", lambda est: 0.2)
    timed = SimpleNamespace(est=None, time_s=1.0)
    found = RunsCalibration((timed, SimpleNamespace(est=None, time_s=np.nan)), None, (), fits)
    assert found.errors == pytest.approx({"before": 1.0, "left_out": 0.2, "after": 0.1})
    moved = found.moved
    assert moved.asked == pytest.approx((1.0 + -0.5) / 2)
    assert moved.taken == pytest.approx((0.8 - 0.475) / 2)
    within = site_fit._WITHIN
    assert (moved.site, moved.row) == pytest.approx((np.expm1(0.1 * within), np.expm1(0.2 * within)))
    assert found.columns()["left_out"] == [0.8, 1.1, 1.3, 9.0]
    assert found.columns()["fits"] == [True, True, False, True]
    assert found.to_dict()["rows"][2]["fits"] is False
    with pytest.raises(DataError, match="nothing to write"):
        found.files("site.yaml")
    none = RunsCalibration((timed,), None, (), fits[2:])
    assert none.moved is None
    assert RunsCalibration((timed,), None, (), fits[3:]).errors == dict.fromkeys(found.errors, 0.0)


def test_a_move_and_what_was_told_of_it():
    move = site_fit.FactorMove("m", "time", 0.1, 0.2, 0.4, 0.1)
    assert move.told == pytest.approx(0.75)
    assert move.moved == pytest.approx(1.5)
    assert site_fit.FactorMove("m", "time", 0.1, 0.2, 0.4, 0.3).told == 0.0


def test_blocks_on_a_diagonal():
    found = site_fit._diagonal([np.array([[1.0, 2.0], [2.0, 3.0]]), np.array([[4.0]])])
    assert found.tolist() == [[1.0, 2.0, 0.0], [2.0, 3.0, 0.0], [0.0, 0.0, 4.0]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot read the table"),
        (b"\xff\xfe", "not a UTF-8 CSV file"),
        (",".join(REQUIRED_COLUMNS).encode(), "no rows below the header"),
        (",".join(REQUIRED_COLUMNS[1:]).encode(), f"lacks the column '{REQUIRED_COLUMNS[0]}'"),
        ((",".join(REQUIRED_COLUMNS) + "\n1,2").encode(), "line 2: has more or fewer cells than the header"),
        (
            (",".join(REQUIRED_COLUMNS) + "\n" + "1," * len(REQUIRED_COLUMNS) + "1").encode(),
            "line 2: has more or fewer cells",
        ),
    ],
)
def test_a_table_that_is_none_is_one_line(tmp_path, text, said):
    file = tmp_path / "runs.csv"
    if text is not None:
        file.write_bytes(text)
    with pytest.raises(DataError) as error:
        read_rows(file)
    assert said in str(error.value)
    assert str(error.value).startswith(str(file))


def test_bands_that_no_run_has_have_their_columns():
    none = bands.coverage(runs((H100, 0, "A", 0.0)), pd.Series([0.0]), {})
    assert list(none.columns) == ["class", "runs", "inside"]
    assert len(none) == 0


def test_probes_are_ranked_by_their_density(monkeypatch):
    """Of four probes the best three begin a search too, best last, after the prior; rows are not widened for that."""
    began, densities = [], []
    monkeypatch.setattr(posterior_module, "_BEST_PROBES", 3)
    climbed = posterior_module._climbed
    density = posterior_module._log_density
    monkeypatch.setattr(
        posterior_module, "_climbed", lambda *given: began.append(given[-1].tolist()) or climbed(*given)
    )

    def noted(slopes, *given):
        if slopes.shape[1] == 0:
            densities.append(given)
        return density(slopes, *given)

    monkeypatch.setattr(posterior_module, "_log_density", noted)
    priors = normal(1.0)._replace(center=np.array([0.5]))
    probes = [np.array([one]) for one in (3.0, 1.1, -2.0, 0.8)]
    posterior(lambda points: points @ np.ones((1, 5)), np.full(5, 1.0), priors, np.full(5, 0.1), 3.0, probes)
    assert began == [[0.5], [3.0], [0.8], [1.1]]
    del densities[4:]  # a search asks for the density of where it is
    assert [one[-1] for one in densities] == [1.0] * 4
    assert [one[-2][0] for one in densities] == pytest.approx([2.5, 0.6, -2.5, 0.3])
    assert [one[0][0] for one in densities] == pytest.approx([-2.0, -0.1, 3.0, 0.2])


# --- fits of kernels -----------------------------------------------------------------------------


def products(rows=9, **columns):
    plain = {"m": 1024.0, "n": 1024.0, "k": 1024.0, "groups": 1.0, "output_bytes": 2.0}
    plain |= {"accumulate": 0.0, "sustained": 0.0, "cast": 0.0, "time_s": 1e-4}
    made = {
        name: np.broadcast_to(np.asarray(columns.get(name, value)), rows).astype(float)
        for name, value in plain.items()
    }
    return MatmulRows(
        **{**made, "sustained": made["sustained"] > 0, "cast": made["cast"] > 0}, sources=("s",) * rows
    )


def test_which_constants_products_can_tell():
    always = ["fixed_s", "peak_fraction", "memory_fraction", "wave_fraction", "epilogue_fraction", "ramp_k"]
    assert list(kernel_fits.matmul_bounds(products(), "hopper")) == always
    old = kernel_fits.matmul_bounds(products(), "ampere")
    assert list(old) == [*always, "split_k", "small_tile_fraction"]
    for rows, more in (
        (products(29, sustained=1.0), ["sustained_loss"]),
        (products(30, sustained=1.0), ["sustained_loss", "sustained_flops"]),
        (products(40, sustained=[1.0] + 39 * [0.0]), ["sustained_loss"]),
        (products(groups=[1.0] * 8 + [8.0]), ["fixed_per_group_s"]),
        (products(cast=[0.0] * 8 + [1.0]), ["cast_bytes_per_element", "cast_fixed_s"]),
    ):
        assert list(kernel_fits.matmul_bounds(rows, "hopper")) == [*always, *more]


def test_between_which_bounds_constants_are_fitted():
    """Least, most, start; on a logarithm where they span decades."""
    rows = products(30, sustained=1.0, groups=2.0, cast=1.0)
    said = {
        name: (*bound[:3], bound.log) for name, bound in kernel_fits.matmul_bounds(rows, "ampere").items()
    }
    assert said == {
        "fixed_s": (1e-7, 3e-5, 2.5e-6, True),
        "peak_fraction": (0.1, 1.0, 0.75, False),
        "memory_fraction": (0.2, 0.95, 0.8, False),
        "wave_fraction": (0.0, 1.0, 0.3, False),
        "epilogue_fraction": (0.0, 1.5, 0.1, False),
        "ramp_k": (1.0, 4000.0, 60.0, True),
        "split_k": (200.0, 2e4, 3000.0, True),
        "small_tile_fraction": (0.3, 1.0, 0.7, False),
        "sustained_loss": (0.0, 0.5, 0.15, False),
        "sustained_flops": (1e10, 5e12, 3e11, True),
        "fixed_per_group_s": (1e-8, 2e-5, 1e-6, True),
        "cast_bytes_per_element": (0.1, 30.0, 5.0, True),
        "cast_fixed_s": (1e-7, 3e-5, 5e-6, True),
    }
    both = attentions(causal=[0, 1, 1, 1], host_timed=1.0)
    said = {name: (*bound[:3], bound.log) for name, bound in kernel_fits.attention_bounds(both, 1).items()}
    assert said == {
        "backward.ramp_seq": (1.0, 600.0, 60.0, True),
        "backward.wave_fraction": (0.0, 1.0, 0.5, False),
        "backward.causal_fraction": (0.6, 1.05, 0.92, False),
        "backward.side_bytes_per_element": (0.1, 40.0, 10.0, True),
        "backward.peak_128": (0.05, 1.0, 0.5, False),
        "backward.host_s": (1e-6, 2e-4, 5e-5, True),
    }


def test_what_is_known_is_not_fitted_and_the_cheapest_tile_is_kept(monkeypatch):
    """Costs fall to the second tile and rise again; where the tile is known it is the only one."""
    asked = []
    costs = iter([3.0, 1.0, *[2.0] * 20])

    def fit(predictor, time_s, bounds):
        asked.append(sorted(bounds))
        return {name: bound.start for name, bound in bounds.items()}, next(costs)

    monkeypatch.setattr(kernel_fits, "fit", fit)
    device = kernel_fits.Device("x", "hopper", 132, {"bf16": 1e15}, 3e12)
    found = kernel_fits._fit_over_tiles(products(), device, "bf16", {"peak_fraction": 0.5})
    assert (found.tile_m, found.tile_n) == kernel_fits.TILES[1]
    assert (found.peak_fraction, found.num_sms, found.sustained_flops) == (0.5, 132, 1e11)
    assert found.memory_fraction == 0.8
    assert len(asked) == len(kernel_fits.TILES)
    assert "peak_fraction" not in asked[0]
    assert "memory_fraction" in asked[0]
    asked.clear()
    known = {"tile_m": 64.0, "tile_n": 96.0, "sustained_flops": 2e11}
    found = kernel_fits._fit_over_tiles(products(), device, "bf16", known)
    assert (found.tile_m, found.tile_n, found.sustained_flops, len(asked)) == (64.0, 96.0, 2e11, 1)
    asked.clear()
    old = kernel_fits.Device("x", "ampere", 108, {"bf16": 3e14}, 2e12)
    found = kernel_fits._fit_over_tiles(products(), old, "bf16", {})
    assert (found.tile_m, found.tile_n, len(asked)) == (256.0, 128.0, 1)


def test_constants_of_one_pass_of_attention():
    """Peaks go by the dimension of the head, times a ratio and at most 1; what was not told is nothing."""
    parameters = {
        "forward.peak_128": 0.8,
        "forward.peak_64": 0.6,
        "forward.ramp_seq": 50.0,
        "forward.wave_fraction": 0.4,
        "backward.peak_64": 0.3,
        "backward.ramp_seq": 70.0,
        "backward.wave_fraction": 0.2,
        "backward.causal_fraction": 0.9,
        "backward.side_bytes_per_element": 12.0,
    }
    forward = kernel_fits.pass_constants(parameters, "forward", 132, 128.0)
    assert (forward.head_dims, forward.peak_fractions) == ((64.0, 128.0), (0.6, 0.8))
    assert (forward.ramp_seq, forward.wave_fraction, forward.causal_fraction) == (50.0, 0.4, 1.0)
    assert (forward.num_sms, forward.tile_rows, forward.side_bytes_per_element) == (132, 128.0, 0.0)
    assert (forward.fixed_s, forward.memory_fraction) == (5e-6, 0.8)
    backward = kernel_fits.pass_constants(parameters, "backward", 132, 64.0, 0.5)
    assert (backward.head_dims, backward.peak_fractions, backward.tile_rows) == ((64.0,), (0.15,), 64.0)
    assert (backward.causal_fraction, backward.side_bytes_per_element) == (0.9, 12.0)
    assert kernel_fits.pass_constants(parameters, "forward", 132, 128.0, 1.5).peak_fractions == (
        pytest.approx(0.9),
        1.0,
    )


def attentions(rows=4, **columns):
    plain = dict.fromkeys(("batch", "seq_len", "heads", "kv_heads"), 8.0)
    plain |= {"qk_head_dim": 128.0, "v_head_dim": 128.0, "causal": 1.0, "passes": 2.0, "host_timed": 0.0}
    plain |= {"window": 0.0, "time_s": 1e-3}
    made = {
        name: np.broadcast_to(np.asarray(columns.get(name, value)), rows).astype(float)
        for name, value in plain.items()
    }
    return AttentionRows(**made, sources=("s",) * rows)


def test_which_constants_attention_can_tell():
    """Rows of a pass are its own and those of both; a share of causal ones is told by rows with and without."""
    both = attentions()
    assert list(kernel_fits.attention_bounds(both, 0)) == [
        "forward.ramp_seq",
        "forward.wave_fraction",
        "forward.peak_128",
    ]
    backward = ["ramp_seq", "wave_fraction", "side_bytes_per_element", "peak_128"]
    assert list(kernel_fits.attention_bounds(both, 1)) == [f"backward.{name}" for name in backward]
    mixed = attentions(
        causal=[0, 1, 1, 1],
        passes=[0, 0, 1, 1],
        host_timed=[0, 0, 1, 0],
        qk_head_dim=[192, 128, 64, 64],
        v_head_dim=[128, 128, 64, 64],
    )
    forward = ["ramp_seq", "wave_fraction", "causal_fraction", "peak_128", "peak_160"]
    assert list(kernel_fits.attention_bounds(mixed, 0)) == [f"forward.{name}" for name in forward]
    backward = ["ramp_seq", "wave_fraction", "side_bytes_per_element", "peak_64", "host_s"]
    assert list(kernel_fits.attention_bounds(mixed, 1)) == [f"backward.{name}" for name in backward]


# --- profiles of a fitted cluster ----------------------------------------------------------------


@pytest.fixture
def fitted(monkeypatch):
    """Return a function that writes the profile of a cluster of two tiers, of which some were fitted."""
    entries = [
        {"link": "nvlink4", "size": 8, "efficiency": 0.9},
        {"link": "ndr", "added_latency": "1 us", "efficiency": 0.8},
        {"link": "ndr", "oversubscription": 2},
    ]
    tiers = [
        SimpleNamespace(name=name, link=link)
        for name, link in (("node", "nvlink4"), ("rack", "ndr"), ("hall", "ndr"))
    ]
    monkeypatch.setattr(cluster_profile, "_tier_entries", lambda base, path: [dict(one) for one in entries])
    monkeypatch.setattr(
        cluster_profile, "_link_text", lambda name, one, measured: f"link {name} of {measured}"
    )
    monkeypatch.setattr(cluster_profile, "document_text", lambda content, notes: content)

    def write(path, base, which):
        cluster = SimpleNamespace(title="A cluster", tiers=tiers)
        sources = {index: [f"sweep {index}", "both"] for index in which}
        return cluster_profile.profile_texts(path, base, cluster, dict.fromkeys(which, "fit"), sources)

    return write


def test_a_fitted_cluster_inherits_and_its_outer_tiers_take_the_fitted_link(fitted, tmp_path):
    path = tmp_path / "mine.yaml"
    texts = fitted(path, "dgx", [1])
    assert list(texts) == [tmp_path / "mine-rack.yaml", path]
    assert texts[tmp_path / "mine-rack.yaml"] == "link mine-rack of sweep 1, both"
    written = texts[path]
    assert written["tiers"] == [
        {"link": "nvlink4", "size": 8, "efficiency": 0.9},
        {"link": "mine-rack"},
        {"link": "mine-rack", "oversubscription": 2},
    ]
    assert (written["name"], written["inherit"], written["title"]) == ("mine", "dgx", "A cluster, calibrated")
    assert (written["profile"], written["schema_version"]) == ("cluster", 1)
    assert written["sources"]["calibration"]["title"] == "nccl-tests: sweep 1, both"
    both = fitted(tmp_path / "mine.yml", "dgx", [0, 1])[tmp_path / "mine.yml"]
    assert [one["link"] for one in both["tiers"]] == ["mine-node", "mine-rack", "mine-rack"]
    assert both["tiers"][0] == {"link": "mine-node", "size": 8}
    assert both["sources"]["calibration"]["title"] == "nccl-tests: sweep 0, both, sweep 1"


def test_a_fitted_cluster_lies_beside_its_base_under_another_name(fitted, tmp_path):
    beside = str(tmp_path / "base.yaml")
    assert fitted(tmp_path / "mine.yaml", beside, [1])[tmp_path / "mine.yaml"]["inherit"] == "base"
    for path, base, said in (
        (tmp_path / "mine.txt", "dgx", "expected a file that ends in .yaml"),
        (tmp_path / "dgx.yaml", "dgx", "expected another name than the cluster's it inherits from"),
        (tmp_path / "base.yaml", beside, "expected another name"),
        (tmp_path / "mine.yaml", str(tmp_path / "other" / "base.yml"), "whose links it needs"),
    ):
        with pytest.raises(ProfileError, match=said):
            fitted(path, base, [1])


def test_a_fitted_link_says_what_told_it(monkeypatch):
    """Half told is told; no constant is told at 49 %."""
    monkeypatch.setattr(cluster_profile, "document_text", lambda content, notes: content)
    monkeypatch.setattr(cluster_profile, "fabric_block", lambda fabric, **more: (fabric, more))
    told = {"a": (0.05, 0.5), "b": (0.1, 0.49), "c": (0.2, 1.0)}
    confidence = {name: SimpleNamespace(spread=spread, told=share) for name, (spread, share) in told.items()}
    one = SimpleNamespace(
        tier=SimpleNamespace(link="ndr", latency_s=2e-6, base_latency_s=5e-6),
        confidence=confidence,
        fabric="constants",
        points=12,
        residual=0.03,
    )
    written = cluster_profile._link_text("mine", one, "sweeps")
    assert written["notes"] == "Told by the sweeps: a ±5%, c ±20%. Mostly as in ndr: b."
    assert written["latency"] == {"value": "2 us", "source": "calibration"}
    assert written["base_latency"] == {"value": "5 us", "source": "calibration"}
    measured = {"basis": "measured", "source": "sweeps", "points": 12, "residual": 0.03}
    assert written["fabric"] == ("constants", measured)
    assert (written["profile"], written["name"], written["inherit"], written["title"]) == (
        "link",
        "mine",
        "ndr",
        "ndr, calibrated",
    )
    bare = cluster_profile._link_text("mine", SimpleNamespace(**{**vars(one), "confidence": {}}), "sweeps")
    assert bare["notes"] == "Told by the sweeps: nothing. Mostly as in ndr: nothing."


# --- spreads of factors --------------------------------------------------------------------------


def apart(*values):
    """Standard deviation of logarithms."""
    logs = np.log(values)
    return float(np.sqrt(np.mean((logs - logs.mean()) ** 2)))


def test_what_is_lent_to_devices_and_links_that_nobody_measured(monkeypatch):
    """Shares of the peak after throttling, the best heads of forward passes, latencies and rates: measured ones only."""

    def product(share, loss, basis="measured"):
        return SimpleNamespace(peak_fraction=share, sustained_loss=loss, basis=basis)

    def kernel(*peaks, basis="measured"):
        return SimpleNamespace(forward=SimpleNamespace(peak_fractions=dict(enumerate(peaks)), basis=basis))

    def blocks(matmul, attention):
        made = SimpleNamespace(matmul=dict(enumerate(matmul)), attention=dict(enumerate(attention)))
        return SimpleNamespace(kernels=SimpleNamespace(blocks=made))

    def link(latency, base, efficiency, rate, basis="measured"):
        fabric = SimpleNamespace(basis=basis, constants=SimpleNamespace(rate_factor=rate))
        return SimpleNamespace(latency_s=latency, base_latency_s=base, efficiency=efficiency, fabric=fabric)

    devices = {
        "a": blocks(
            [product(0.8, 0.25), product(0.7, 0.0), product(0.1, 0.0, "estimated")], [kernel(0.5, 0.6)]
        ),
        "b": blocks([product(0.9, 0.0)], [kernel(0.8, 0.3), kernel(0.9, basis="estimated")]),
        "c": SimpleNamespace(kernels=None),
    }
    links = {
        "x": link(1e-6, 4e-6, 0.8, 1.0),
        "y": link(2e-6, 8e-6, 0.9, 0.5),
        "z": link(9e-6, 9e-6, 0.1, 0.1, "estimated"),
        "w": SimpleNamespace(fabric=None),
    }
    profiles = {"accelerator": devices, "link": links}
    monkeypatch.setattr(ship_factors, "list_profiles", lambda kind: list(profiles[kind]))
    monkeypatch.setattr(ship_factors, "load_accelerator", devices.get)
    monkeypatch.setattr(ship_factors, "load_link", lambda name, size: links[name])
    said = ship_factors._lent()
    products = apart(0.6, 0.7, 0.9)
    assert {name: one.spread for name, one in said.items()} == pytest.approx(
        {
            **{
                f"{role}.other.{bits}-bit": products
                for bits in (32, 16, 8, 4)
                for role in ("matmul", "grouped_matmul")
            },
            "attention.other": apart(0.6, 0.8),
            "collective.other.latency": apart(5e-6, 10e-6),
            "collective.other.transfer": apart(0.8, 0.45),
        }
    )
    assert {(one.center, one.tail, one.points) for one in said.values()} == {(0.0, np.inf, 0)}
    assert said["matmul.other.8-bit"].source.endswith("the peak of 3 measured ones lie apart")
    assert said["attention.other"].source.endswith("the peak of 2 measured ones lie apart")
    assert said["collective.other.latency"].source.endswith("how far 2 measured fabrics lie apart")


def a_runs_table(**columns):
    return pd.DataFrame(columns)


def test_families_count_by_the_root_of_their_runs():
    table = a_runs_table(source_family=["a", "a", "a", "a", "b"], residual=[0.1] * 5)
    assert ship_factors.family_weights(table).tolist() == [0.5] * 4 + [1.0]
    power = ship_factors.FAMILY_POWER
    assert ship_factors._family_counts(table).tolist() == pytest.approx([4 ** (power - 1.0)] * 4 + [1.0])


def test_classes_are_of_a_generation_and_a_kind():
    table = a_runs_table(accelerator=[H100, A100, H100], num_experts=[0, 8, 8])
    found = ship_factors._classes(table)
    assert {name: group.index.tolist() for name, group in found.items()} == {
        "hopper-dense": [0],
        "ampere-moe": [1],
        "hopper-moe": [2],
    }


def test_runs_beside_their_slopes(monkeypatch):
    """On GPUs the errors without the own source count, elsewhere those of the fit: 1.25 times as long, less 20 %."""
    scored = pd.DataFrame(
        {
            "id": ["a", "b", "c"],
            "family": ["f", "f", "g"],
            "is_gpu": [True, False, True],
            "log_ratio": np.log([9.0, 1.25, 9.0]),
        },
        index=[4, 5, 6],
    )
    found = pd.DataFrame({"time:launch": [0.1, 0.2, 0.3]}, index=pd.Index(["a", "b", "d"], name="id"))
    errors = {"source_family": [0.25, 0.0, 1.0], "family": [0.5, 1.0, -0.5]}
    runs_of = pd.DataFrame(
        {"id": ["a", "b", "d"], "skipped_reason": ["", "odd", ""], "memory_error": [0.6, np.nan, np.nan]}
    )
    monkeypatch.setattr(ship_factors, "scored_runs", lambda checked: scored)
    monkeypatch.setattr(ship_factors, "fit_constants", lambda runs: "constants")
    monkeypatch.setattr(ship_factors, "share_of", lambda constants, family, gpu: 0.0 if gpu else -0.2)
    monkeypatch.setattr(ship_factors, "held_out_errors", lambda runs, by: by)
    monkeypatch.setattr(ship_factors, "joined_errors", lambda by: pd.Series(errors[by], index=[4, 5, 6]))
    checked = SimpleNamespace(judged=runs_of, runs=runs_of)
    made = ship_factors.residual_runs(checked, found)
    assert made.time.residual.to_dict() == pytest.approx({"a": -np.log(1.25), "b": -np.log(1.0)}, abs=1e-12)
    assert made.other.to_dict() == pytest.approx({"a": -np.log(1.5), "b": -np.log(2.0), "c": np.log(2.0)})
    assert made.memory.residual.to_dict() == pytest.approx({"a": -np.log(1.6)})
    assert list(made.priced.index) == ["a", "d"]
    assert made.priced["time:launch"].tolist() == [0.1, 0.3]


def test_runs_of_gpus_whose_kernels_were_timed(monkeypatch):
    def device(*bases):
        matmul = {str(i): SimpleNamespace(basis=basis) for i, basis in enumerate(bases)}
        return SimpleNamespace(kernels=SimpleNamespace(blocks=SimpleNamespace(matmul=matmul, attention={})))

    known = {
        "some": device("estimated", "measured"),
        "none": device("estimated"),
        "bare": SimpleNamespace(kernels=None),
    }
    monkeypatch.setattr(ship_factors, "load_accelerator", known.get)
    table = a_runs_table(accelerator=["some", "none", "bare", "some"], is_gpu=[True, True, True, False])
    assert ship_factors._timed(table).index.tolist() == [0]


def test_room_is_what_odds_leave_beyond_the_other_factors(monkeypatch):
    """A spread of 0.1 of which 0.06 are explained: 0.08; where more is explained than there is, nothing."""
    both = a_runs_table(recipe=["x", "x", "y"])
    monkeypatch.setattr(ship_factors, "_both", lambda runs: both)
    monkeypatch.setattr(ship_factors, "_ran", lambda runs: both.iloc[:1])
    known = {"spreads": [0.0036], "asked": []}

    def variance(rows, spreads, prefix):
        known["asked"].append((rows.index.tolist(), prefix))
        return pd.Series(known["spreads"] * len(rows))

    monkeypatch.setattr(ship_factors, "known_variance", variance)
    fits = ship_factors.FitOdds(-0.05, 0.1, 12, "source")
    found = ship_factors.room(None, "x", fits, {})
    assert found == ship_factors.Said(-0.05, pytest.approx(0.08), np.inf, 12, "source")
    known["spreads"] = [0.02]
    assert ship_factors.room(None, "other", fits, {}).spread == 0.0
    assert known["asked"] == [([0, 1], "memory:"), ([0], "memory:")]


def test_sources_that_tell_what_failed_and_what_did_not():
    table = a_runs_table(source=["a", "a", "b", "b", "c"], oom=[True, False, True, True, False])
    found = ship_factors._both(SimpleNamespace(priced=table))
    assert found.index.tolist() == [0, 1]


def test_spreads_of_memory(monkeypatch):
    """Peaks off by 0, 1, ... 4 % of states whose slope is 1: the reach of SHARE of them settles the size."""
    residual = np.linspace(0.0, 0.04, 5)
    memory = pd.DataFrame(
        {"residual": residual, "memory:activations": 0.0, "memory:states": 1.0, "memory:slack": 0.0}
    )
    told = {"activations": 0.03, "states": 0.02, "": 0.05}
    monkeypatch.setattr(
        ship_factors,
        "told_apart",
        lambda residual, on: dict(told) if set(on) == {"activations", "states"} else None,
    )
    reaches = []
    monkeypatch.setattr(ship_factors, "tail_of", lambda reach: reaches.append(reach) or 6.0)
    monkeypatch.setattr(ship_factors, "with_tail", lambda normal, tail: normal * 2.0)
    monkeypatch.setattr(ship_factors, "fit_odds", lambda runs: {"x": "odds"})
    monkeypatch.setattr(ship_factors, "room", lambda runs, name, one, spreads: (name, one, spreads))
    found = ship_factors.memory_spreads(SimpleNamespace(memory=memory))
    assert reaches[0].tolist() == pytest.approx((residual / 0.02).tolist())
    share = ship_factors.SHARE
    wider = np.quantile(residual / 0.02, share) / (2.0 * ndtri(0.5 + 0.5 * share))
    spreads = {"activations": wider * 0.03, "states": wider * 0.02, "slack": wider * 0.05}
    assert found.pop("room.x") == ("x", "odds", pytest.approx(spreads))
    assert {name: one.spread for name, one in found.items()} == pytest.approx(spreads)
    assert {(one.center, one.tail, one.points) for one in found.values()} == {(0.0, 6.0, 5)}
    assert found["slack"].source.startswith("squared residuals of 5 measured peaks")


@pytest.mark.parametrize("write", [False, True])
def test_factors_and_odds_are_printed_and_written_where_asked(monkeypatch, tmp_path, capsys, write):
    asked = []

    def noted(name, made):
        monkeypatch.setattr(ship_factors, name, lambda *given: asked.append((name, given)) or made)

    gpus = pd.DataFrame({"is_gpu": [True, False, True]})
    noted("measured_spreads", {"m": 1})
    noted("read_runs", SimpleNamespace(time=gpus))
    noted("time_spreads", {"t": 2})
    noted("memory_spreads", {"s": 3})
    noted("fit_odds", "odds")
    monkeypatch.setattr(ship_factors, "layout_parts", lambda runs: runs.index.tolist())
    monkeypatch.setattr(ship_factors, "text", lambda said: f"factors {said}\n")
    monkeypatch.setattr(ship_factors, "odds_text", lambda fits, alike: f"{fits} {alike}\n")
    data = tmp_path / "describe" / "data"
    data.mkdir(parents=True)
    monkeypatch.setattr(ship_factors, "__file__", str(tmp_path / "trust" / "calibration" / "x.py"))
    assert ship_factors.main(["runs", "matmul", "sweeps", "a1", "a2", *(["--write"] if write else [])]) == 0
    factors, odds = "factors {'t': 2, 's': 3}\n", "odds [0, 2]\n"
    assert capsys.readouterr().out == factors + odds
    written = {path.name: path.read_text() for path in data.iterdir()}
    assert written == ({"factors.yaml": factors, "odds.yaml": odds} if write else {})
    paths = Path("matmul"), [Path("a1"), Path("a2")], Path("sweeps")
    assert asked[:2] == [("measured_spreads", paths), ("read_runs", (Path("runs"),))]


# --- 4-bit products of the library ---------------------------------------------------------------


def test_a_chip_takes_the_shared_fit_with_casts_of_its_own():
    """A share of 0.7; a chip whose kernels gain 1.2 on its measured sibling 0.84, one that gains 2 no more than 0.98."""

    def fit_of(share, cast=1.0, fixed=1e-6):
        constants = MatmulConstants(
            **library_fp4.FIXED,
            fixed_s=2e-6,
            peak_fraction=share,
            cast_bytes_per_element=cast,
            cast_fixed_s=fixed,
        )
        return kernel_fits.MatmulFit(constants, 9, 0.05, ("s",))

    shared = fit_of(0.7)
    others = {
        "b200-sxm-180gb": fit_of(0.5, 4.0, 3e-6),
        "b300": fit_of(0.6, 5.0, 4e-6),
        "gb200": fit_of(0.4),
        "gb300": fit_of(0.8),
    }
    found = {name: library_fp4.of_chip(name, shared, others) for name in others}
    assert {name: one.constants.peak_fraction for name, one in found.items()} == pytest.approx(
        {"b200-sxm-180gb": 0.7, "b300": 0.84, "gb200": 0.7, "gb300": 0.98}
    )
    one = found["b300"].constants
    assert (one.cast_bytes_per_element, one.cast_fixed_s, one.fixed_s) == (5.0, 4e-6, 2e-6)
    assert found["b300"][1:] == (9, 0.05, ("s",), "in the sustained rows")


def test_the_shared_fit_leaves_each_row_out_once(monkeypatch, tmp_path):
    """Four products of 2 TFLOP on a peak of 10 PFLOP/s: each is predicted from the other three, then all from all."""
    table = tmp_path / "fp4.csv"
    rows = "\n".join(f"chip,1e4,1e4,1e4,{rate},s{rate}" for rate in (1000, 2000, 4000, 5000))
    table.write_text(f"# a note\ngpu,m,n,k,tflops,source\n{rows}\n")
    asked = []

    def fit(predictor, time_s, bounds):
        asked.append(
            (time_s.tolist(), predictor({"fixed_s": 2e-6, "peak_fraction": 0.7}).tolist(), sorted(bounds))
        )
        return {"fixed_s": float(len(time_s)), "peak_fraction": 0.7}, 0.0

    def matmul_time(m, n, k, constants, peak_flops_per_s, memory_bandwidth_bytes_per_s, input_bytes):
        assert (constants.tile_m, memory_bandwidth_bytes_per_s, input_bytes) == (
            128.0,
            5e12,
            library_fp4.INPUT_BYTES["nvfp4"],
        )
        return SimpleNamespace(value=2.0 * m * n * k / peak_flops_per_s + constants.fixed_s * 1e-3)

    monkeypatch.setattr(library_fp4, "fit", fit)
    monkeypatch.setattr(library_fp4, "matmul_time", matmul_time)
    device = SimpleNamespace(peak_flops_per_s={"fp4": 1e16}, memory_bandwidth_bytes_per_s=5e12)
    found = library_fp4.fit_library(table, lambda name: device)
    times = [2e-3, 1e-3, 5e-4, 4e-4]
    assert [one[0] for one in asked] == [
        pytest.approx([time for index, time in enumerate(times) if index != left]) for left in range(4)
    ] + [pytest.approx(times)]
    assert asked[0][1] == pytest.approx([2e-4 + 2e-9] * 3)
    assert asked[-1][2] == sorted(library_fp4.BOUNDS)
    # Three rows make a fixed time of 3 ms.
    errors = [abs(3.2e-3 / time - 1.0) for time in times]
    assert found.held_out_error == pytest.approx(np.mean(errors))
    assert (found.points, found.constants.fixed_s) == (4, 4.0)
    assert found.sources == ("s1000", "s2000", "s4000", "s5000")


# --- kernels of a user's own timings, and their blocks -------------------------------------------


def a_device(**changes):
    said = {
        "name": "x",
        "generation": "hopper",
        "num_sms": 132,
        "peak_flops_per_s": {"bf16": 1e15},
        "memory_bandwidth_bytes_per_s": 2e12,
        "kernels": None,
    }
    return SimpleNamespace(**{**said, **changes})


def test_copies_tell_their_fixed_time_and_share_of_the_bandwidth():
    """2 us and 0.8 of 2 TB/s; the profile's 0.4 are off by how much longer they would take."""
    size = np.geomspace(1e5, 1e9, 12)
    rows = SimpleNamespace(size_bytes=size, time_s=2e-6 + size / 1.6e12)
    old = SimpleNamespace(memory=SimpleNamespace(fixed_s=2e-6, bandwidth_fraction=0.4))
    accelerator = a_device(kernels=old)
    found = kernel_profile._memory(rows, accelerator, accelerator, "mine")
    assert (found.section, found.name, found.points) == ("memory", "", 12)
    assert found.block["bandwidth_fraction"] == 0.8
    assert found.block["fixed"] == "2 us"
    assert {key: found.block[key] for key in ("basis", "source", "points", "held_out_error")} == {
        "basis": "measured",
        "source": "mine",
        "points": 12,
        "held_out_error": 0.0,
    }
    assert found.held_out_error < 1e-3
    assert found.before == pytest.approx(np.mean((2e-6 + size / 0.8e12) / rows.time_s - 1.0))
    assert np.isnan(kernel_profile._memory(rows, accelerator, a_device(), "mine").before)


def test_a_power_limit_that_rows_do_not_show_stays(monkeypatch):
    asked = []
    old = SimpleNamespace(sustained_loss=0.2, sustained_flops=3e11)
    accelerator = a_device(kernels=SimpleNamespace(matmul={"bf16": old}, grouped_matmul={}))
    fitted = SimpleNamespace(points=9, held_out_error=0.04)
    monkeypatch.setattr(kernel_profile, "fit_matmul", lambda *given: asked.append(given[2:]) or fitted)
    monkeypatch.setattr(
        kernel_profile, "predict_matmul", lambda rows, *_: rows.time_s * np.array([1.5] + 8 * [0.75])
    )
    monkeypatch.setattr(kernel_profile, "matmul_block", lambda found: {"of": found.points, "source": "x"})

    def fit_of(op="matmul", rows=None):
        return kernel_profile._matmul(op, "bf16", rows or products(), accelerator, accelerator, "mine")

    found = fit_of()
    assert found == (
        "matmul",
        "bf16",
        9,
        pytest.approx((0.5 + 8 * 0.25) / 9),
        0.04,
        {"of": 9, "source": "mine"},
    )
    assert asked.pop() == ("bf16", {"sustained_loss": 0.2, "sustained_flops": 3e11})
    fit_of(rows=products(sustained=[1.0] + 8 * [0.0]))
    assert asked.pop() == ("bf16", {})
    assert np.isnan(fit_of("grouped_matmul").before)
    assert asked.pop() == ("bf16", {})


@pytest.mark.parametrize(
    ("passes", "ratio"),
    [([0, 1, 0, 1], None), ([2, 2, 2, 2], kernel_profile.BACKWARD_RATIO), ([0, 2, 2, 2], None)],
)
def test_passes_that_were_timed_together_share_their_constants(monkeypatch, passes, ratio):
    asked = []
    fitted = SimpleNamespace(points=4, held_out_error=0.04)
    monkeypatch.setattr(kernel_profile, "fit_attention", lambda *given: asked.append(given[2]) or fitted)
    monkeypatch.setattr(kernel_profile, "predict_attention", lambda rows, *_: rows.time_s * 1.25)
    monkeypatch.setattr(
        kernel_profile,
        "attention_block",
        lambda *given: {"forward": {"a": 1, "source": "x"}, "backward": {"b": 2}},
    )
    accelerator = a_device(kernels=SimpleNamespace(attention={"flash": "old"}))
    rows = attentions(passes=passes)
    found = kernel_profile._attention("flash", rows, accelerator, accelerator, "mine")
    block = {"forward": {"a": 1, "source": "mine"}, "backward": {"b": 2, "source": "mine"}}
    assert found == ("attention", "flash", 4, pytest.approx(0.25), 0.04, block)
    assert asked == [ratio]
    assert np.isnan(kernel_profile._attention("cudnn", rows, accelerator, accelerator, "mine").before)
    for alone in (0.0, 1.0):
        said = kernel_profile._attention("x", attentions(passes=alone), accelerator, accelerator, "mine")
        assert said == "attention x: expected attention_fwd and attention_bwd, or attention_fwd_bwd"


def test_kernels_of_too_few_rows_or_too_large_errors_are_problems(monkeypatch):
    """Nine rows are enough and eight not; an error of 15 % is taken and one of 16 % said."""
    errors = iter([0.15, 0.16, 0.0])

    def result(section):
        def made(name, *given):
            return kernel_profile.KernelResult(section, name, 9, 0.1, next(errors), {})

        return made

    for name, section in (("_matmul", "matmul"), ("_attention", "attention")):
        monkeypatch.setattr(kernel_profile, name, result(section))
    monkeypatch.setattr(
        kernel_profile, "_memory", lambda *_: kernel_profile.KernelResult("memory", "", 9, 0.1, 0.0, {})
    )

    def timings(rows):
        memory = SimpleNamespace(time_s=[1] * rows)
        return SimpleNamespace(
            matmul={("matmul", "fp8"): products(rows), ("matmul", "bf16"): products(9)},
            attention={},
            memory=memory,
        )

    few, problems = kernel_profile.fit_kernels(timings(8), a_device(), "mine")
    assert few == []
    assert problems == ["matmul fp8: 8 rows; expected at least 9", "memory: 8 rows; expected at least 9"]
    found, problems = kernel_profile.fit_kernels(timings(9), a_device(), "mine")
    assert [one.section for one in found] == ["matmul", "matmul", "memory"]
    assert problems == [
        "matmul matmul: rows left out are missed by 16% on average, more than 15% (--max-error)"
    ]


def test_constants_of_products_as_profiles_write_them():
    """What is zero is left out; a share of the peak is at most 0.98, and a loss is none below 0."""
    plain = MatmulConstants(
        fixed_s=2.5e-6,
        peak_fraction=0.7654,
        memory_fraction=0.8,
        num_sms=132,
        tile_m=128,
        tile_n=256,
        wave_fraction=0.3456,
        ramp_k=61.23,
    )
    assert kernel_blocks._constants(plain) == {
        "fixed": "2.5 us",
        "peak_fraction": 0.765,
        "memory_fraction": 0.8,
        "tile": [128, 256],
        "wave_fraction": 0.346,
        "ramp_k": 61.2,
    }
    full = plain._replace(
        split_k=3000.0,
        small_tile_fraction=0.7,
        epilogue_fraction=0.1234,
        sustained_loss=0.2,
        sustained_flops=3.5e11,
        cast_bytes_per_element=5.0,
        cast_fixed_s=4e-6,
        fixed_per_group_s=2e-7,
    )
    block = kernel_blocks._constants(full, scale=2.0, sustained=0.5)
    assert block["peak_fraction"] == 0.98
    assert block["sustained_loss"] == 0.6
    assert kernel_blocks._constants(full, sustained=1.25).get("sustained_loss") is None
    assert {key: block[key] for key in ("split_k", "small_tile_fraction", "epilogue_fraction")} == {
        "split_k": 3000.0,
        "small_tile_fraction": 0.7,
        "epilogue_fraction": 0.123,
    }
    assert (block["sustained_flops"], block["cast_bytes_per_element"], block["cast_fixed"]) == (
        "350 GFLOP",
        5.0,
        "4 us",
    )
    assert block["fixed_per_group"] == "0.2 us"
    assert "fixed_per_group" not in kernel_blocks._constants(full._replace(fixed_per_group_s=1e-7))
    fit = kernel_fits.MatmulFit(full._replace(fixed_s=9e-6), 12, 0.04567, ("a", "b", "a"), "seen")
    assert kernel_blocks.without_host(fit).constants.fixed_s == kernel_blocks.KERNEL_FLOOR_S
    assert kernel_blocks.without_host(fit._replace(constants=plain)).constants.fixed_s == 2.5e-6
    written = kernel_blocks.matmul_block(fit)
    assert (written["basis"], written["points"], written["held_out_error"]) == ("measured", 12, 0.046)
    assert written["source"].endswith("; power limit: seen")
    assert "power limit" not in kernel_blocks.matmul_block(fit._replace(power_limit=""))["source"]
