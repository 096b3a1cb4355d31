"""Sensitivity: elasticities obey Euler's theorem, and every effect is a difference of two estimates."""

import math
from dataclasses import replace

import numpy as np
import pytest
from famous_jobs import DEEPSEEK_V3, FSDP_8B, LLAMA3_405B

import costmodel as cm
from costmodel.base.errors import CostModelError
from costmodel.describe.jobs.job import make_job
from costmodel.describe.recipe import NUMERIC
from costmodel.estimates.estimate import estimate_job
from costmodel.reporting.sensitivity import sensitivity_remarks
from costmodel.what_if.changes import choice_changes, hardware_changes, number_changes
from costmodel.what_if.compare import compare

PLAIN = {"model": "llama3-8b", "cluster": "dgx-h100-ndr", "gpus": 64, "global_batch": 256, "seq_len": 8192}
SMALL = {
    **PLAIN,
    "model": "llama3-8b",
    "gpus": 16,
    "tp": 8,
    "micro_batch": 1,
    "global_batch": 2,
    "seq_len": 128,
    "switches": {"cuda_graphs": True},
}
JOBS = {
    "405b": LLAMA3_405B,
    "deepseek": DEEPSEEK_V3,
    "fsdp": FSDP_8B,
    "tensor and pipeline": {**PLAIN, "tp": 4, "pp": 4, "recompute": "full"},
    "latencies": SMALL,
    "host-bound": {**SMALL, "switches": {}},
    "context": {**PLAIN, "tp": 2, "cp": 4, "global_batch": 32, "switches": {"cp_method": "all-gather"}},
}


def scaled(job, kind, factor):
    """Scale every number of a kind, one on top of the other."""
    for index, change in enumerate(hardware_changes(job, factor)):
        if change.kind == kind:
            job = hardware_changes(job, factor)[index].job
    return job


def numbers_only(job, change=0.01):
    """Return the sums of elasticities by kind, of a small change that crosses no switch of algorithm."""
    span = math.log((1 + change) / (1 - change))
    sums = {"rate": 0.0, "latency": 0.0}
    for pair in zip(hardware_changes(job, 1 - change), hardware_changes(job, 1 + change), strict=True):
        less, more = (float(estimate_job(one.job).step_time_s) for one in pair)
        sums[pair[0].kind] += math.log(more / less) / span
    return sums


@pytest.mark.parametrize("name", JOBS)
def test_twice_the_rates_and_half_the_latencies_take_half_the_time(name):
    """All knobs together are complete but for two unprofiled constants."""
    job = make_job(**JOBS[name])
    before = float(estimate_job(job).step_time_s)
    after = float(estimate_job(scaled(scaled(job, "rate", 2.0), "latency", 0.5)).step_time_s)
    assert after == pytest.approx(before / 2, rel=1e-3)
    sums = numbers_only(job)
    assert sums["rate"] - sums["latency"] == pytest.approx(-1.0, abs=0.02)
    assert sums["rate"] <= 1e-9
    assert sums["latency"] >= -1e-9


def test_what_is_slow_is_what_matters():
    """A job on slow Ethernet waits for it; the same on one node does not."""
    slow = {
        **PLAIN,
        "cluster": "cloud-h100-100gbe",
        "gpus": 128,
        "global_batch": 128,
        "zero_stage": 3,
        "recipe": "torchtitan",
    }
    rates = [effect for effect in cm.sensitivity(cm.estimate(**slow)).effects if effect.kind == "rate"]
    network = rates[0]
    assert network.elasticity < -0.5
    assert network.name.endswith("bandwidth")
    inside = {
        effect.name: effect for effect in cm.sensitivity(cm.estimate(**{**PLAIN, "gpus": 8, "tp": 2})).effects
    }
    assert inside["bf16 peak"].elasticity < -0.6
    assert inside["fp8 peak"].elasticity == 0.0


def test_a_change_changes_its_own_number_and_no_other():
    job = make_job(**PLAIN)
    before = {other.name: other.before for other in hardware_changes(job, 3.0)}
    for change in hardware_changes(job, 3.0):
        values = {other.name: other.before for other in hardware_changes(change.job, 3.0)}
        moved = {name for name in before if not np.isclose(values[name], before[name], rtol=1e-12)}
        assert moved == {change.name}
        assert values[change.name] == pytest.approx(change.after) == pytest.approx(3.0 * change.before)


def test_a_change_of_a_choice_is_the_job_that_says_so():
    job = make_job(**PLAIN, tp=2)
    for change in choice_changes(job):
        assert change.before != change.after
        if change.kind == "switch":
            again = make_job(**PLAIN, tp=2, switches=[str(change)], check=False)
            assert again.switches == change.job.switches, change.name
    assert {str(change) for change in choice_changes(job)} >= {"recompute full", "zero 3", "fused_norm=false"}


def test_a_choice_that_the_job_rules_out_is_refused():
    refused = dict(cm.sensitivity(cm.estimate(**PLAIN, tp=2, zero_stage=1)).refused)
    assert "zero_stage 0" in refused["gradient_compression=top-k"]
    assert "replicas" in refused["sync_every=2"]


def test_numbers_of_the_switches_are_scaled_beyond_what_may_be_set():
    job = make_job(**PLAIN)
    (change,) = [one for one in number_changes(job, 40.0) if one.name == "allocator_slack"]
    assert not {one.name for one in number_changes(job, 2.0)} & {
        "launch_s",
        "step_overhead_s",
        "degraded_gpu",
    }
    assert (change.before, change.after, change.unit) == (0.04, pytest.approx(1.6), "")
    assert change.job.recipe.memory.allocator_slack == pytest.approx(1.6)


def test_every_switch_and_number_of_the_recipe_is_tried():
    est = cm.estimate(**PLAIN, tp=2)
    found = cm.sensitivity(est)
    tried = {effect.name for effect in found.effects} | {name.partition("=")[0] for name, _ in found.refused}
    latencies = {"launch_s", "kernel_gap_s", "step_overhead_s"}
    # A GPU is not faster than the others that it is compared with.
    untouched = est.job.switches.keys() - tried - latencies - {"degraded_gpu"}
    assert not any(est.job.switches[name] for name in untouched), untouched
    assert {"recompute", "zero", "kernel launch", "gap between kernels"} <= tried


def test_effects_are_differences_of_estimates():
    est = cm.estimate(**PLAIN, tp=2)
    found = cm.sensitivity(est)
    unfused = next(e for e in found.effects if (e.name, e.after) == ("fused_norm", "false"))
    other = cm.estimate(**PLAIN, tp=2, switches={"fused_norm": False})
    assert unfused.more == pytest.approx(float(other.step_time_s / est.step_time_s) - 1, rel=1e-9)
    largest = compare(est, other).largest("time", 1)[0]
    assert unfused.created == largest.name
    attention = {e.after: (e.removed, e.created) for e in found.effects if e.name == "attention_kernel"}
    assert attention["unfused"] == ("compute.attention.core.backward", "compute.attention.softmax.backward")
    # The gap of a pass stretches its kernels alike: those of weights get less of it.
    assert attention["flash1"][1] == "compute.attention.core.backward"
    assert not any("unexplained" in e.removed + e.created for e in found.effects)
    full = next(e for e in found.effects if (e.name, e.after) == ("recompute", "full"))
    assert full.memory_more < -0.01
    peak = next(e for e in found.effects if e.name == "bf16 peak")
    cluster = est.job.cluster
    faster = replace(
        cluster.accelerator,
        peak_flops_per_s={k: 1.1 * v for k, v in cluster.accelerator.peak_flops_per_s.items()},
    )
    again = cm.estimate(**{**PLAIN, "cluster": replace(cluster, accelerator=faster)}, tp=2)
    assert peak.more == pytest.approx(float(again.step_time_s / est.step_time_s) - 1, rel=1e-9)


def test_tables_and_records():
    found = cm.sensitivity(cm.estimate(**JOBS["tensor and pipeline"]))
    numbers, turned = found.grids()
    assert "rates less latencies -1.0" in numbers.note
    changes = [float(row[3].rstrip("%")) for row in turned.rows]
    assert changes == sorted(changes)
    record = found.to_dict()
    assert record["sum_of_rates"] == pytest.approx(found.total("rate"))
    assert all(effect["elasticity"] is None for effect in record["effects"] if effect["kind"] == "switch")
    waits, saves = sensitivity_remarks(found)[:2]
    peak = next(effect for effect in found.effects if effect.name == "bf16 peak")
    assert f"bf16 peak {-peak.elasticity:.0%}" in waits
    assert peak.elasticity < 0
    best = found.best_switch
    assert f"{best.name}={best.after} would save {-best.more:.1%} of the step: " in saves
    assert best.more < 0
    reach = [effect.reach for effect in found.effects]
    assert reach == sorted(reach, reverse=True)


def test_the_best_switch_saves_a_thousandth_or_more():
    found = cm.sensitivity(cm.estimate(**PLAIN, tp=2))
    switch = next(one for one in found.effects if one.name == "fused_norm")
    for more, is_named in ((-0.002, True), (-0.0005, False), (0.1, False)):
        best = replace(found, effects=(switch._replace(more=more),)).best_switch
        assert (best is not None) == is_named
    # Numbers are no switches, and what changes the numerics is not named.
    others = [one for one in found.effects if one.kind != "switch" or one.name in NUMERIC]
    assert {one.kind for one in others} == {"rate", "latency", "number", "switch"}
    assert replace(found, effects=tuple(one._replace(more=-0.1) for one in others)).best_switch is None
    assert replace(found, effects=()).best_switch is None


def test_wrong_input_is_refused():
    with pytest.raises(CostModelError, match="layouts"):
        cm.sensitivity(cm.estimate(**PLAIN, tp=[1, 2]))
    with pytest.raises(CostModelError, match="change"):
        cm.sensitivity(cm.estimate(**PLAIN, tp=2), change=1.0)


def test_a_table_lists_what_moves_or_saves_most_and_says_how_many_it_leaves_out():
    found = cm.sensitivity(
        cm.estimate(model="llama3-8b", gpus=8, layout="tp2", global_batch=16, seq_len=2048)
    )
    numbers, turned = found.grids(top=4)
    everything = found.grids(every_one=True)

    assert [len(grid.rows) for grid in (numbers, turned)] == [4, 4]
    for grid, whole in zip((numbers, turned), everything, strict=True):
        assert f"Left out: {len(whole.rows) - 4} that" in grid.note
        assert "Left out" not in whole.note
    switches = [effect for effect in found.effects if effect.kind == "switch"]
    saved = sorted(min(effect.more, effect.memory_more) for effect in switches)[:4]
    shown = [min(float(row[3].strip("%")), float(row[4].strip("%"))) / 100 for row in turned.rows]
    assert sorted(shown) == pytest.approx(saved, abs=6e-5)
    reach = sorted(max(one.reach, abs(one.memory_more)) for one in found.effects if one.kind != "switch")
    names = {one.name for one in found.effects if max(one.reach, abs(one.memory_more)) >= reach[-4]}
    assert {row[0] for row in numbers.rows} <= names


def test_what_the_framework_refuses_is_no_advice():
    """Dropless experts wait for the host, which a graph of the whole iteration cannot hold; of a dense model it can."""
    job = {
        "cluster": "dgx-h100-ndr",
        "gpus": 64,
        "seq_len": 4096,
        "global_batch": 64,
        "recipe": "megatron-core",
    }
    experts = cm.sensitivity(cm.estimate(model="mixtral-8x7b", layout="tp2 ep8", **job))
    (why,) = (why for switch, why in experts.refused if switch == "cuda_graphs=true")
    assert "wait for the host" in why
    assert "cuda_graphs" not in {one.name for one in experts.effects}
    dense = cm.sensitivity(cm.estimate(model="llama3-8b", layout="tp2", **job))
    assert "cuda_graphs" in {one.name for one in dense.effects}


def test_what_does_not_fit_is_no_advice():
    """Without gathering again a job that fits takes half as much again of the memory, and saves time."""
    job = {**PLAIN, "model": "llama3-70b", "gpus": 256, "tp": 4, "pp": 4, "global_batch": 512}
    found = cm.sensitivity(cm.estimate(**job))
    assert found.estimate.fits
    (kept,) = (one for one in found.effects if (one.name, one.after) == ("sp_regathers", "false"))
    assert (kept.fits, kept.more < 0, kept in found.switches) == (False, True, False)
    assert not cm.estimate(**job, switches={"sp_regathers": False}).fits
    turned = found.grids(every_one=True)[1]
    assert "sp_regathers (does not fit)" in [row[0] for row in turned.rows]
    assert "sp_regathers" not in [row[0] for row in found.brief().grids[1].rows]
