"""Rows of a sweep by hand: what a point costs, what its status is, which links are scaled; and a plan's sentences."""

from types import SimpleNamespace

import pytest
from round_jobs import QUIET, SMALL, cluster_file, model_file

import costmodel as cm
from costmodel.planning.advice import why_not
from costmodel.planning.machines import Machine
from costmodel.planning.sweep import scaled_cluster
from costmodel.whole_run.run import step_power_w

POINT = {
    "model": model_file(SMALL),
    "cluster": cluster_file(cluster={"pue": 1.25}),
    "gpus": 8,
    "layout": "tp2",
    "global_batch": 8,
    "seq_len": 1024,
    "recipe": "megatron-core",
    "switches": QUIET,
}


def test_time_energy_and_money_of_a_point():
    """8 GPUs at $2: hours are step time times tokens over the batch; the building takes a quarter more."""
    (row,) = cm.sweep([{**POINT, "tokens": 1e9}]).rows
    est = cm.estimate(**POINT)
    steps = 1e9 / (8 * 1024)
    hours = 8 * steps * float(est.step_time_s) / 3600
    assert row["status"] == "ok"
    assert (row["days"], row["gpu_hours"], row["dollars"]) == pytest.approx(
        (hours / 8 / 24, hours, 2 * hours)
    )
    assert row["energy_kwh"] == pytest.approx(hours * step_power_w(est) * 1.25 / 1e3)
    (alone,) = cm.sweep([POINT]).rows
    assert (alone["days"], alone["dollars"], alone["price_usd_per_gpu_hour"]) == (None, None, 2.0)


def test_what_does_not_fit_says_so():
    wide = {**SMALL, "num_layers": 1600, "vocab_size": 64}
    (row,) = cm.sweep([{**POINT, "model": model_file(wide), "layout": "tp1"}]).rows
    assert row["status"] == "does not fit"
    assert row["num_layouts_priced"] == 1
    (row,) = cm.sweep([{**POINT, "layout": "tp3"}]).rows
    assert row["status"] == "wrong input"


def test_links_outside_the_innermost_are_scaled():
    whole = scaled_cluster(POINT["cluster"], 1.0)
    faster = scaled_cluster(POINT["cluster"], 3.0)
    assert [tier.name for tier in faster.tiers] == ["inner", "outer"]
    rates = [
        tier.bandwidth_bytes_per_s / old.bandwidth_bytes_per_s
        for tier, old in zip(faster.tiers, whole.tiers, strict=True)
    ]
    assert rates == [1.0, 3.0]


def test_a_layout_that_is_not_of_as_many_gpus():
    """tp 2, cp 2, pp 1 and dp 4 are 16 GPUs, not 8."""
    job = cm.estimate(**POINT).job
    plan = SimpleNamespace(question=SimpleNamespace(jobs=(job,), knob_values={}))
    said = why_not(plan, "tp2 cp2 pp1 dp4")
    assert said == "impossible: tp·cp·pp·dp = 16, but there are 8 GPUs"


def test_machines_that_run_nothing_come_last():
    est = cm.estimate(**POINT)
    assert Machine(est.job).score == float("inf")
    hours = 1e12 / 8 / 1024 * float(est.step_time_s) / 3600 * 8
    assert Machine(est.job, est).usd_per_trillion_tokens == pytest.approx(2.0 * hours)
    assert Machine(est.job).usd_per_trillion_tokens is None


def test_a_point_with_a_layout_is_one_layout():
    """Knobs of a layout are no axes of a grid: several values are refused in one line, not half priced."""
    rows = cm.sweep(**{**POINT, "global_batch": [8, 16], "recompute": ["none", "full"]}).rows
    assert [row["status"] for row in rows] == ["wrong input"] * 2
    assert (
        rows[0]["problem"] == "recompute: a point that says its layout takes one value, got ['none', 'full']"
    )
