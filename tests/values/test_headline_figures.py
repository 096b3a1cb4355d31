"""Figures people ask for first, by hand where a second axis is at work: context ranks, several calls, a host that is full."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import costmodel as cm

JOB = {"model": "llama3-8b", "gpus": 16, "global_batch": 32, "seq_len": 4096}


def test_attention_that_runs_again_counts_in_hfu_whatever_splits_it():
    """Selective recomputation runs scores and their products again: 2 · 2 · heads · s² · d a layer and sequence.

    32 layers, 32 heads of 128, 4,096 tokens, the full matrix; context ranks, tensor ranks, stages and micro-batches
    share that work and add none.
    """
    again = 2 * 2 * 32 * 4096**2 * 128 * 32 * 32
    cp, tp, pp, size = np.array(list(product((1, 2, 4), (1, 2), (1, 2), (1, 2)))).T
    layouts = {"cp": cp, "tp": tp, "pp": pp, "micro_batch": size}
    for method in ("ring", "all-gather"):
        switches = {"cp_method": method}
        est = cm.estimate(**JOB, **layouts, recompute="selective", switches=switches)
        assert est.shape == (24,)
        np.testing.assert_allclose((est.hfu / est.mfu - 1) * est.model_flops(), again, rtol=1e-9)
        plain = cm.estimate(**JOB, **layouts, switches=switches)
        np.testing.assert_allclose(plain.hfu, plain.mfu, rtol=1e-12)


def test_throughput_is_tokens_over_seconds_and_gpus():
    est = cm.estimate(**JOB, cp=2, tp=2)
    assert float(est.tokens_per_s_per_gpu) == pytest.approx(
        32 * 4096 / float(est.step_time_s) / 16, rel=1e-12
    )


def test_a_job_that_overflows_its_host_surely_does_not_fit():
    """It fits the GPUs, whose odds alone would say so; the host, which holds the optimizer, has a gigabyte."""
    job = {**JOB, "gpus": 8, "tp": 2, "recompute": "full", "switches": {"offload_optimizer": True}}
    cluster = cm.load_cluster("dgx-h100-ndr")
    roomy = cm.estimate(**job, cluster=cluster)
    full = cm.estimate(**job, cluster=replace(cluster, host=cluster.host._replace(memory_bytes=1e9)))
    assert (bool(roomy.fits), bool(full.fits_gpu), bool(full.fits_host), bool(full.fits)) == (
        True,
        True,
        False,
        False,
    )
    assert float(roomy.fits_probability) > 0.9
    assert float(full.fits_probability) == 0.0
    both = cm.estimate(
        **{**job, "gpus": [8, 16]}, cluster=replace(cluster, host=cluster.host._replace(memory_bytes=1e9))
    )
    assert both.fits_probability.tolist() == [0.0, 0.0]


def test_gradients_that_learn_less_a_step_take_as_many_more_gpu_hours():
    """A job of top-k takes 1.075 times the steps to the same loss: hours of a thousand steps and 75 more."""
    est = cm.estimate(**JOB, zero_stage=0, switches={"gradient_compression": "top-k"})
    tokens = 1000 * 32 * 4096.0
    hours = 1075 * float(est.step_time_s) * 16 / 3600
    assert float(est.gpu_hours(tokens)) == pytest.approx(hours, rel=1e-9)
    assert float(est.days(tokens)) == pytest.approx(hours / 16 / 24, rel=1e-9)
    for method, given, steps in (("powersgd", 0, 1.0), ("top-k", 1, 1.0), ("powersgd", 1.2, 1.2)):
        switches = {"gradient_compression": method, "compression_steps": given}
        assert cm.estimate(**JOB, zero_stage=0, switches=switches).job.steps_factor == steps
