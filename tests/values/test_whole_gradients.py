"""ZeRO-2 shards gradients or reduces once for several micro-batches, never both."""

import numpy as np
import pytest

import costmodel as cm

JOB = {"model": "llama3-8b", "cluster": "dgx-h100-ndr", "gpus": 8, "seq_len": 8192, "zero_stage": 2}


def _gradients(est):
    [line] = [line for line in est.bill.memory_lines if line.name == "state.dense.gradients"]
    return float(np.max(line.bytes))


def _reductions(est):
    return sum(
        float(line.count)
        for line in est.bill.time_lines
        if line.name.startswith("dp.dense.grad_reduce_scatter")
    )


def test_memory_or_messages():
    """8,030,261,248 parameters at 4 B of fp32 gradients on 8 data-parallel ranks, 1 or 8 micro-batches."""
    for zero, batch, each, shards, reductions in [
        (1, 64, False, 1, 1),
        (2, 64, False, 1, 1),
        (2, 64, True, 8, 8),
        (2, 8, False, 8, 1),
        (2, 8, True, 8, 1),
    ]:
        job = {
            **JOB,
            "tp": 1,
            "zero_stage": zero,
            "global_batch": batch,
            "switches": {"reduce_each_micro_batch": each},
        }
        est = cm.estimate(**job)
        assert _gradients(est) == pytest.approx(4 * 8_030_261_248 / shards)
        assert _reductions(est) == reductions


def test_zero_2_with_several_micro_batches_holds_what_zero_1_holds():
    two, one = (cm.estimate(**{**JOB, "tp": 1, "zero_stage": zero, "global_batch": 64}) for zero in (2, 1))
    assert float(two.memory_bytes_per_gpu) == float(one.memory_bytes_per_gpu)
    assert "zero 2 holds whole gradients here" in " ".join(two.warnings)


@pytest.mark.parametrize(("layout", "told"), [("cp8", True), ("tp8", False), ("cp2 tp4", True)])
def test_zero_2_is_told_where_context_ranks_share_gradients_and_not_where_none_do(layout, told):
    est = cm.estimate(**JOB, layout=layout, global_batch=8)
    assert ("zero 2 holds whole gradients here" in " ".join(est.warnings)) == told


def test_an_fsdp_recipe_reduces_each_micro_batch():
    est = cm.estimate(**JOB, tp=1, global_batch=64, recipe="torchtitan")
    assert _gradients(est) == pytest.approx(4 * 8_030_261_248 / 8)
    assert _reductions(est) == 8
