"""The posterior of factors: closed forms where errors are normal, and what single rows cannot do where they are not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.trust.posterior import (
    MISFIT,
    WIDENING_ROWS,
    Priors,
    left_out_errors,
    line_at,
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


@pytest.mark.parametrize("prior_tail", [np.inf, 3.0])
def test_the_end_is_the_most_probable_of_all_points(prior_tail):
    """The density written out, on a grid over the factor and the widening: no point of it is more probable."""
    measured, scale, tail = np.array([0.2, 0.28, -0.05]), np.array([0.1, 0.05, 0.2]), 3.0
    given = priors(0.15, tail=prior_tail)
    found = solved(np.ones((3, 1)), measured, given, scale, tail)

    def student(scaled, of):
        return -0.5 * scaled**2 if np.isinf(of) else -0.5 * (of + 1.0) * np.log1p(scaled**2 / of)

    x = np.linspace(-0.2, 0.5, 1401)[:, None]
    rows = student((measured - x) / (found.widening * scale), tail).sum(axis=1)
    best = x[int(np.argmax(rows + student(x[:, 0] / 0.15, prior_tail)))]
    np.testing.assert_allclose(found.center, best, atol=1e-3)
    # Where it ends the scale of rows balances: each counts by its weight, four more by 1.
    squares = (weight(found.scaled, tail) * (measured - found.center) ** 2 / scale**2).sum()
    information = (1.0 / scale**2).sum() * tail / (tail + 3.0)
    used = information / (information + 0.15**-2)
    width = np.sqrt((WIDENING_ROWS + squares) / (WIDENING_ROWS + 3.0 - used))
    assert found.widening == pytest.approx(width, rel=1e-3)
    # Fisher's information of a t of 3 is half of a normal's at a residual of none, less further out.
    at_prior = 1.0 if np.isinf(prior_tail) else 0.75 * weight(found.center / 0.15, prior_tail)[0]
    told = (weight(found.scaled, tail) * 0.5 / (found.widening * scale) ** 2).sum() + at_prior / 0.15**2
    np.testing.assert_allclose(found.covariance, [[1.0 / told]], rtol=1e-6)


def test_slopes_are_taken_to_both_sides():
    def model(points):
        return np.stack([points[:, 0] ** 2, points[:, 1]], axis=1)

    np.testing.assert_allclose(line_at(model, np.array([3.0, 1.0]))[1], [[6.0, 0.0], [0.0, 1.0]], atol=1e-9)


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
    found = posterior(model, rows, given, scale, 3.0, probes=[np.array([1.45]), np.array([0.5])])

    assert blind.center[0] < 0.1
    np.testing.assert_allclose(found.center, [1.5], atol=0.02)


def test_the_likeliest_of_several_ends():
    """Five rows at 1 and two at 0 that all are sure of it: the five are right."""
    target = np.array([1.0] * 5 + [0.0] * 2)
    found = solved(np.ones((7, 1)), target, priors(10.0), 0.01, 3.0)
    assert found.center[0] == pytest.approx(1.0, abs=0.02)
    assert found.residual.tolist() == pytest.approx((target - found.center[0]).tolist(), abs=1e-9)
    assert found.scaled.tolist() == pytest.approx((found.residual / (found.widening * 0.01)).tolist())
