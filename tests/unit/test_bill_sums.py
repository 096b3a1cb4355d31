"""Sums of a bill on small grids first are the plain sums."""

import numpy as np
import pytest

import costmodel as cm
from costmodel.bill.lines import broadcast_sum, settled


def test_broadcast_sum_is_the_sum():
    rng = np.random.default_rng(0)
    shapes = [(), (7,), (3, 1, 7), (4, 1, 1, 7), (3, 5, 7), (5, 1), (4, 1, 5, 7), (7,), (3, 1, 7)]
    parts = [rng.random(shape) for shape in shapes]
    total = broadcast_sum(parts)
    np.testing.assert_allclose(total, sum(parts[1:], start=parts[0]), rtol=1e-14)
    assert total.shape == (4, 3, 5, 7)
    assert broadcast_sum([]) == 0.0


@pytest.mark.parametrize("pp", [1, 4, [1, 2, 4, 8]])
def test_memory_is_that_of_the_worst_stage(pp):
    est = cm.estimate(model="llama3-8b", gpus=32, tp=2, pp=pp, global_batch=64, seq_len=8192)
    per_stage = est.bill.memory_per_stage_bytes()
    np.testing.assert_allclose(est.memory_bytes_per_gpu, per_stage.max(axis=-1), rtol=1e-14)


def test_settled():
    assert settled([[2.0], [2.0]]).shape == ()
    assert settled([2.0, 3.0]).shape == (2,)
    assert settled(5).shape == ()
    assert settled(np.zeros(0)).shape == (0,)
