"""Sums of a bill on small grids first are the plain sums."""

import numpy as np
import pytest

import costmodel as cm
from costmodel.bill.lines import (
    Bill,
    TimeLine,
    any_nonzero,
    broadcast_sum,
    repeated,
    sum_exposed,
    time_line,
    without_constant_axes,
)


def test_broadcast_sum_is_the_sum():
    rng = np.random.default_rng(0)
    shapes = [(), (7,), (3, 1, 7), (4, 1, 1, 7), (3, 5, 7), (5, 1), (4, 1, 5, 7), (7,), (3, 1, 7), (7,)]
    parts = [rng.random(shape) for shape in shapes]
    before = [part.copy() for part in np.atleast_1d(*parts)]
    total = broadcast_sum(parts)
    for part, held in zip(np.atleast_1d(*parts), before, strict=True):
        np.testing.assert_array_equal(part, held, err_msg="a sum changed what it adds up")
    np.testing.assert_allclose(total, sum(parts[1:], start=parts[0]), rtol=1e-14)
    assert total.shape == (4, 3, 5, 7)
    assert broadcast_sum([]) == 0.0


@pytest.mark.parametrize("pp", [1, 4, [1, 2, 4, 8]])
def test_memory_is_that_of_the_worst_stage(pp):
    est = cm.estimate(model="llama3-8b", gpus=32, tp=2, pp=pp, global_batch=64, seq_len=8192)
    per_stage = est.bill.memory_per_stage_bytes()
    np.testing.assert_allclose(est.memory_bytes_per_gpu, per_stage.max(axis=-1), rtol=1e-14)


def test_settled():
    assert without_constant_axes([[2.0], [2.0]]).shape == ()
    assert without_constant_axes([2.0, 3.0]).shape == (2,)
    assert without_constant_axes(5).shape == ()
    assert without_constant_axes(np.zeros(0)).shape == (0,)
    np.testing.assert_array_equal(without_constant_axes([[2.0, 3.0], [2.0, 3.0]]), [[2.0, 3.0]])
    np.testing.assert_array_equal(without_constant_axes([[2.0, 2.0], [3.0, 3.0]]), [[2.0], [3.0]])


def _line(seconds, count=1.0) -> TimeLine:
    return time_line(
        "a",
        axis="dp",
        category="math",
        phase="step",
        count=count,
        formula="s",
        terms={"s": seconds},
        source="-",
    )


def test_a_sum_goes_on_from_the_lines_before():
    small, large = np.array([1.0, 2.0]), np.arange(6.0).reshape(3, 2)
    bill = Bill((), ()).plus([_line(small, 2.0), _line(large)])
    first = bill.step_time_s()
    more = bill.plus([_line(small), _line(large, small)])
    np.testing.assert_allclose(more.step_time_s(), 3 * small + large + small * large)
    np.testing.assert_allclose(bill.plus([_line(large)]).step_time_s(), 2 * small + 2 * large)
    np.testing.assert_allclose(first, 2 * small + large)
    np.testing.assert_allclose(bill.plus([]).step_time_s(), first)
    np.testing.assert_allclose(sum_exposed(more.time_lines[2:]), small + small * large)


def test_repeated_lines_share_their_count():
    shared, factor = np.array([3.0, 4.0]), np.array([[2.0], [5.0]])
    lines = repeated([_line(1.0, shared), _line(2.0, shared), _line(3.0, 7.0)], factor)
    assert lines[0].count is lines[1].count
    np.testing.assert_array_equal(lines[0].count, [[6.0, 8.0], [15.0, 20.0]])
    np.testing.assert_array_equal(lines[2].count, [[14.0], [35.0]])


@pytest.mark.parametrize(
    ("mask", "holds"),
    [(True, True), (0.0, False), (2.0, True), (np.array([False, True]), True), (np.zeros((2, 3)), False)],
)
def test_anywhere(mask, holds):
    assert any_nonzero(mask) is holds
