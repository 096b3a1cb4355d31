"""DualPipe sums both of its copies; zero-bubble schedules wait at the optimizer unless it is validated afterwards."""

import pytest

import costmodel as cm

JOB = {"model": "llama2-7b", "cluster": "dgx-a100-hdr", "gpus": 64, "global_batch": 512, "seq_len": 2048}


def lines(**more):
    return {line.name: line for line in cm.estimate(**JOB, **more).bill.time_lines}


def test_both_copies_are_reduced():
    # 32 ranks hold each of both stages of a rank: 64 in all, as without a pipeline, and all parameters on each.
    both = lines(pp=2, schedule="dualpipe", zero_stage=1)["dp.dense.grad_reduce_scatter"]
    flat = lines(zero_stage=1)["dp.dense.grad_reduce_scatter"]

    # The mean of both stages is half of the model.
    assert float(both.bytes) == pytest.approx(float(flat.bytes), rel=1e-9)


def test_two_ranks_with_both_stages_reduce_between_them():
    # tp 8, pp 8: one replica, and yet each stage is held twice.
    alone = lines(tp=8, pp=8, schedule="1f1b", zero_stage=1)
    both = lines(tp=8, pp=8, schedule="dualpipe", zero_stage=1)

    assert float(alone["dp.dense.grad_reduce_scatter"].bytes) == 0
    assert float(both["dp.dense.grad_reduce_scatter"].bytes) > 0


def test_zero_bubble_needs_an_optimizer_that_does_not_wait():
    kind = {"tp": 2, "pp": 4, "schedule": "zb-2p"}
    waits = lines(**kind)["pp.bubble"]
    free = lines(**kind, switches={"post_validation": True})["pp.bubble"]
    forward = float(waits.terms["sum_forward_s"] - waits.terms["forward_s"])

    assert float(free.exposed_seconds) < 0.6 * float(waits.exposed_seconds)
    # The forward passes of the other stages fill the pipeline anew in each step.
    assert float(waits.exposed_seconds) == pytest.approx(forward, rel=1e-9)


def test_the_rank_with_both_ends_of_a_v_waits_for_nobody():
    """It starts first and has the head's work, so that it is the one that the others wait for."""
    kind = {"tp": 2, "pp": 4, "vp": 2, "schedule": "zb-v"}
    for on in (False, True):
        assert float(lines(**kind, switches={"post_validation": on})["pp.bubble"].exposed_seconds) == 0


def test_one_f_one_b_waits_for_nothing_more():
    kind = {"tp": 2, "pp": 4}
    before, after = (lines(**kind, switches={"post_validation": on})["pp.bubble"] for on in (False, True))

    assert float(before.exposed_seconds) == float(after.exposed_seconds)
