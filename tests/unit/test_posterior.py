"""The posterior of factors: closed forms where errors are normal, and what single rows cannot do where they are not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.trust.posterior import (
    MISFIT,
    WIDENING_ROWS,
    Priors,
    _alone,
    _information,
    _log_density,
    _most_probable,
    _starts,
    _widening,
    left_out_errors,
    posterior,
    weight,
)

NORMAL = 1e6
"""Degrees of freedom at which Student's t is normal."""


def linear(slopes):
    return lambda points: points @ slopes.T


def priors(*scales, center=0.0, tail=np.inf):
    return Priors(
        np.full(len(scales), center), np.array(scales, dtype=float), np.full(len(scales), float(tail))
    )


def solved(slopes, measured, given, scale, tail=NORMAL):
    slopes = np.array(slopes, dtype=float)
    scale = np.broadcast_to(np.asarray(scale, dtype=float), (len(slopes),)).copy()
    return posterior(linear(slopes), np.array(measured, dtype=float), given, scale, tail)


def test_one_row_and_one_factor_by_hand():
    # Prior 0 ± 0.3, one row 0.5 ± 0.4: 0.5 · 0.09 / (0.09 + 0.16) = 0.18, variance 0.09 · 0.16 / 0.25 = 0.24².
    found = solved([[1.0]], [0.5], priors(0.3), 0.4)

    np.testing.assert_allclose(found.center, [0.18], rtol=1e-5)
    np.testing.assert_allclose(
        np.sqrt(found.covariance), [[0.24]], rtol=2e-2
    )  # the scale is learned a little


def test_two_factors_that_one_row_cannot_tell_apart_share_by_their_variances():
    # Spreads 0.2 and 0.1 on one row: four fifths go to the first, and they are correlated against each other.
    found = solved([[1.0, 1.0]], [0.4], priors(0.2, 0.1), 1e-4)

    np.testing.assert_allclose(found.center, [0.32, 0.08], rtol=1e-3)
    correlation = found.covariance[0, 1] / np.sqrt(found.covariance[0, 0] * found.covariance[1, 1])
    np.testing.assert_allclose(correlation, -1.0, atol=1e-3)


@pytest.mark.parametrize("tail", [np.inf, 3.0])
def test_what_no_row_depends_on_keeps_its_prior(tail):
    found = solved(
        [[1.0, 0.0]], [0.1], Priors(np.array([0.0, 0.07]), np.array([0.1, 0.3]), np.full(2, tail)), 0.05, 3.0
    )

    np.testing.assert_allclose(found.center[1], 0.07, rtol=1e-12)
    np.testing.assert_allclose(found.covariance[1], [0.0, 0.09], rtol=1e-9, atol=1e-15)
    assert found.covariance[0, 0] < 0.01


@given(
    rows=st.lists(st.tuples(st.floats(0.1, 1.0), st.floats(-0.1, 0.1)), min_size=4, max_size=4),
    wrong=st.sampled_from([-7.0, -2.3, 2.3, 6.9]),
    at=st.integers(0, 4),
)
def test_one_absurd_row_among_five_changes_nothing_by_more_than_two_per_cent(rows, wrong, at):
    slopes = np.array([[1.0, part] for part, _ in rows])
    measured = np.array([0.05 + noise for _, noise in rows])
    given = priors(0.05, 0.1, tail=3.0)
    clean = solved(slopes, measured, given, 0.05, 3.0)
    bad = solved(np.insert(slopes, at, [1.0, 0.5], axis=0), np.insert(measured, at, wrong), given, 0.05, 3.0)

    np.testing.assert_allclose(slopes @ bad.center, slopes @ clean.center, atol=0.02)
    spread = [
        1.2816 * np.sqrt(np.einsum("ij,jk,ik->i", slopes, one.covariance, slopes)) for one in (clean, bad)
    ]
    np.testing.assert_allclose(spread[1], spread[0], atol=0.02)
    assert abs(bad.scaled[at]) > MISFIT
    np.testing.assert_allclose(bad.widening, clean.widening, rtol=0.2)


def test_a_site_that_is_far_off_is_believed_when_its_rows_agree():
    # All rows are ten of their scales away from the prior: not outliers, but another site.
    found = solved(np.ones((4, 1)), [0.5, 0.51, 0.49, 0.5], priors(0.05, tail=3.0), 0.05, 3.0)

    assert found.center[0] > 0.45
    assert np.all(np.abs(found.scaled) < MISFIT)


def test_rows_that_lie_apart_widen_what_single_rows_are_off_by():
    apart = np.array([-0.2, 0.2, -0.15, 0.15, 0.1, -0.1])
    wide = solved(np.ones((6, 1)), apart, priors(0.05), 0.05, 3.0)
    close = solved(np.ones((6, 1)), 0.02 * apart, priors(0.05), 0.05, 3.0)

    assert wide.widening > 1.3
    assert close.widening < 0.8
    # Rows of no spread at all: four that count against six more.
    np.testing.assert_allclose(
        solved(np.ones((6, 1)), np.zeros(6), priors(1e-9), 0.05, 3.0).widening, np.sqrt(4 / 10), rtol=1e-3
    )


def test_the_scale_of_rows_counts_what_the_factors_took_by_hand():
    """Two rows of one factor, 3 degrees of freedom: they tell 2 · 3/6 = 1 of it, half of which is the prior's."""
    one = np.ones((2, 1))
    found = _widening(one, np.array([1.0, -1.0]), priors(1.0), np.ones(2), 3.0, 1.0)
    assert found == pytest.approx(np.sqrt((4 + 2) / (4 + 2 - 0.5)))  # each weighs 4 / (3 + 1)
    # A row beyond four of its scales is no row of this kind.
    assert _widening(np.ones((3, 1)), np.array([1.0, -1.0, 5.0]), priors(1.0), np.ones(3), 3.0, 1.0) == found
    assert _widening(one, np.array([5.0, -5.0]), priors(1.0), np.ones(2), 3.0, 1.0) == 1.0


def test_a_curved_model_is_met_where_it_is():
    # Measured 3 = exp(x) exactly, with a prior that hardly says anything.
    found = posterior(np.exp, np.array([3.0]), priors(10.0), np.array([1e-4]), NORMAL)

    np.testing.assert_allclose(found.center, np.log(3.0), rtol=1e-3)
    np.testing.assert_allclose(found.slopes, [[3.0]], rtol=1e-2)


def test_errors_left_out_are_those_of_the_other_rows():
    slopes, measured = np.ones((3, 1)), np.array([0.0, 0.0, 0.3])
    found = solved(slopes, measured, priors(100.0), 0.1)
    errors = left_out_errors(found, measured, priors(100.0), np.full(3, 0.1), NORMAL)

    # Without a row the factor is the mean of the other two.
    np.testing.assert_allclose(errors, [-0.15, -0.15, 0.3], atol=1e-3)


def test_weights_of_students_t():
    np.testing.assert_allclose(weight(np.array([0.0, 3.0]), 3.0), [4 / 3, 1 / 3])
    np.testing.assert_allclose(weight(np.array([0.0, 9.0]), np.inf), [1.0, 1.0])


def test_what_hides_at_the_prior_is_found_from_a_probe():
    # Nothing shows until the factor is beyond 1: both rows lie 0.5 above.
    def model(points):
        return np.maximum(points - 1.0, 0.0) @ np.ones((1, 2))

    rows, given = np.array([0.5, 0.5]), priors(0.05, tail=3.0)
    scale = np.full(2, 0.05)
    blind = posterior(model, rows, given, scale, 3.0)
    found = posterior(model, rows, given, scale, 3.0, probes=[np.array([1.2]), np.array([3.0])])

    assert blind.center[0] < 0.1
    np.testing.assert_allclose(found.center, [1.5], atol=0.02)


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
