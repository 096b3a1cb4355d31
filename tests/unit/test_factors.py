"""Uncertain factors: where each multiplies, that 1 changes nothing, and how samples are drawn."""

from dataclasses import replace

import numpy as np
import pytest

import costmodel as cm
from costmodel.base.errors import CostModelError
from costmodel.describe.factors import (
    OTHER,
    PRIOR,
    ROLES,
    Belief,
    Factors,
    draw,
    factor_keys,
    factor_name,
    factors,
    factors_of,
    inherited_factors,
    job_class,
    quantile,
)
from costmodel.describe.hardware.hardware import load_cluster
from costmodel.estimates.estimate import Estimate, estimate_job

JOBS = {
    "dense": {
        "model": "llama3-70b",
        "cluster": "h100-ndr",
        "gpus": 256,
        "layout": "tp8 pp4 vp2",
        "global_batch": 256,
        "seq_len": 8192,
    },
    "experts": {
        "model": "mixtral-8x7b",
        "cluster": "h100-ndr",
        "gpus": 64,
        "layout": "tp2 pp2 ep8",
        "global_batch": 256,
        "seq_len": 4096,
        "precision": "fp8",
        "recipe": "megatron-core",
        "switches": {"ep_overlap": True},
    },
    "sharded": {
        "model": "llama3-8b",
        "cluster": "h100-ndr",
        "gpus": 64,
        "layout": "dp64",
        "zero_stage": 3,
        "global_batch": 64,
        "seq_len": 8192,
        "recipe": "torchtitan",
    },
}


def with_factors(est: Estimate, values: dict[str, object]) -> Estimate:
    return estimate_job(replace(est.job, factors=Factors(values)))


def priced(kind: str) -> Estimate:
    job = {key: value for key, value in JOBS[kind].items() if value != "dp64"}
    return cm.estimate(**job)


def line_s(est: Estimate, name: str) -> float:
    return sum(float(line.each_s) for line in est.bill.time_lines if line.name == name)


def test_every_factor_at_one_gives_the_calibrated_price():
    for kind in JOBS:
        est = priced(kind)
        same = with_factors(est, dict.fromkeys(factors_of(est.job), 1.0))
        assert float(same.step_time_s) == pytest.approx(float(est.step_time_s), rel=1e-12)
        assert float(same.memory_bytes_per_gpu) == pytest.approx(float(est.memory_bytes_per_gpu), rel=1e-12)
        assert bool(same.fits) == bool(est.fits)


def test_samples_are_priced_as_each_alone():
    for kind in JOBS:
        est = priced(kind)
        drawn = draw(factors_of(est.job), 12, seed=3)
        together = with_factors(est, dict(drawn))
        for index in (0, 5, 11):
            alone = with_factors(est, {name: values[index] for name, values in drawn.items()})
            assert float(alone.step_time_s) == pytest.approx(together.step_time_s[index], rel=1e-12)
            assert float(alone.memory_bytes_per_gpu) == pytest.approx(
                together.memory_bytes_per_gpu[index], rel=1e-12
            )


def test_each_factor_stretches_its_own_line_and_not_the_others():
    for name, line in [
        ("matmul.hopper.16-bit", "compute.head.logits.forward"),
        ("matmul.hopper.8-bit", "compute.attention.qkv.forward"),
        ("attention.hopper", "compute.attention.core.forward"),
        ("grouped_matmul.hopper.8-bit", "compute.moe.experts.fc1.forward"),
        (factor_name("memory_kernels", "hopper"), "compute.mlp.norm.forward"),
        ("collective.nvlink.transfer", "ep.moe.dispatch.forward"),
    ]:
        est = priced("experts")
        slower = with_factors(est, {name: 1.5})
        before, after = line_s(est, line), line_s(slower, line)
        grown = 0.5 * before if "collective" not in name else 0.5 * before * 0.9
        assert after - before == pytest.approx(grown, rel=0.12 if "collective" in name else 1e-9)
        others = {
            "compute.head.logits.forward",
            "compute.attention.qkv.forward",
            "compute.attention.core.forward",
        }
        for other in others - {line}:
            assert line_s(slower, other) == line_s(est, other)


def test_products_share_the_factor_of_their_width_alone():
    est = priced("dense")
    slower = with_factors(est, {"matmul.hopper.16-bit": 1.25, "matmul.hopper.8-bit": 9.0})
    for before, after in zip(est.bill.time_lines, slower.bill.time_lines, strict=True):
        if before.name in {
            f"compute.{part}.forward" for part in ("attention.qkv", "mlp.down", "head.logits")
        }:
            assert float(after.each_s) == pytest.approx(1.25 * float(before.each_s))
        if before.axis == "tp":
            assert float(after.each_s) == float(before.each_s)


def test_a_class_is_known_where_its_recipe_has_a_constant_on_that_kind_of_accelerator():
    for recipe, cluster, found in [
        ("maxtext-tpu", "tpu-v5p", "tpu-v5-dense"),
        ("torchtitan", "tpu-v5p", "unfitted-dense"),
        ("maxtext-tpu", "dgx-h100-ndr", "unfitted-dense"),
        ("torchtitan", "dgx-h100-ndr", "hopper-dense"),
    ]:
        est = cm.estimate(
            model="llama3-8b", cluster=cluster, gpus=64, recipe=recipe, global_batch=64, seq_len=4096
        )
        assert job_class(est.job) == found


def test_latency_and_transfer_of_a_fabric_are_told_apart():
    est = priced("dense")
    (line,) = [one for one in est.bill.time_lines if one.name == "tp.attention.all_gather.forward"]
    both = with_factors(est, {"collective.nvlink.latency": 2.0, "collective.nvlink.transfer": 2.0})
    assert line_s(both, line.name) == pytest.approx(2.0 * float(line.each_s))
    latency = with_factors(est, {"collective.nvlink.latency": 2.0})
    transfer = with_factors(est, {"collective.nvlink.transfer": 2.0})
    of_latency, of_transfer = (line_s(one, line.name) - float(line.each_s) for one in (latency, transfer))
    assert of_latency > 0.0
    assert of_transfer > of_latency
    assert of_latency + of_transfer == pytest.approx(float(line.each_s))
    network = with_factors(est, {"collective.ib.transfer": 2.0})
    assert line_s(network, line.name) == float(line.each_s)
    assert float(network.exposed_by("axis")["pp"]) > float(est.exposed_by("axis")["pp"])


def test_half_a_window_hides_half_of_what_filled_it():
    est = priced("dense")
    (line,) = [one for one in est.bill.time_lines if one.name == "tp.attention.reduce_scatter.backward"]
    busy, window = float(line.each_s), float(np.asarray(line.terms["window_s"]))
    contention = est.job.recipe.overlap.overlap_contention
    less = with_factors(est, {factor_name("overlap", "tp"): 0.25 * busy / window})
    (after,) = [one for one in less.bill.time_lines if one.name == line.name]
    assert float(after.each_s) == busy
    assert float(after.exposed_each_s) == pytest.approx(0.75 * busy + contention * 0.25 * busy)


def test_host_and_routing_and_what_nothing_explains():
    est = priced("experts")
    slow_host = with_factors(est, {"launch": 3.0})
    terms = {one.name: one.terms for one in est.bill.time_lines}
    after = {one.name: one.terms for one in slow_host.bill.time_lines}
    name = next(one for one in terms if one.endswith("layer.host.forward"))
    assert after[name]["launch_s"] == pytest.approx(3.0 * np.asarray(terms[name]["launch_s"]))
    load = float(est.priced.placed.imbalance)
    uneven = with_factors(est, {"routing": 2.0})
    assert float(uneven.priced.placed.imbalance) - 1.0 == pytest.approx(2.0 * (load - 1.0))
    of_class = job_class(est.job)
    both = with_factors(
        est, {factor_name("unexplained", of_class): 1.1, factor_name("layout", of_class): 1.2}
    )
    assert both.step_time_s == pytest.approx(est.step_time_s * 1.1 * 1.2, rel=1e-6)
    assert float(with_factors(est, {"unexplained.ampere-dense": 2.0}).step_time_s) == float(est.step_time_s)


def test_memory_is_states_activations_and_what_the_allocator_takes_of_both():
    est = priced("dense")
    slack = est.job.recipe.memory.allocator_slack
    tensors = {
        category: sum(
            np.asarray(line.bytes)
            for line in est.bill.memory_lines
            if line.category == category and line.part != "reserve"
        )
        for category in ("state", "activation")
    }
    rest = est.bill.memory_per_stage_bytes() - (1.0 + slack) * (tensors["state"] + tensors["activation"])
    off = with_factors(est, {"states": 1.1, "activations": 0.8, "slack": 1.05})
    by_hand = 1.05 * (1.0 + slack) * (1.1 * tensors["state"] + 0.8 * tensors["activation"]) + rest
    assert off.bill.memory_per_stage_bytes() == pytest.approx(by_hand)


def test_what_a_gpu_gives_is_a_factor_of_what_fits_and_not_of_memory():
    est = priced("dense")
    need = float(est.memory_bytes_per_gpu) / est.memory_capacity_bytes
    tight = with_factors(est, {"room.other": np.array([0.999 * need, 1.001 * need])})
    assert tight.fits.tolist() == [False, True]
    assert float(tight.memory_bytes_per_gpu) == float(est.memory_bytes_per_gpu)


def test_every_role_has_factors_and_every_job_finds_all_of_its_own():
    roles = {one.role.name for one in factors().values()}
    assert roles == set(ROLES)
    for one in factors().values():
        assert one.spread >= 0.0
        assert one.tail >= 3.0
        assert one.source
        keys = one.name.split(".")[1:]
        assert len(keys) in (len(one.role.keys), min(1, len(one.role.keys)))
    for cluster in ("tpu-v5p", "a100-hdr"):
        if cluster in cm.list_profiles("cluster"):
            job = cm.estimate(model="llama2-7b", cluster=cluster, gpus=64, global_batch=64, seq_len=4096).job
            assert set(factors_of(job)) <= set(factors())
            assert len(factor_keys(job)) >= 14


def test_what_nobody_measured_is_lent_the_spread_between_what_is():
    assert factor_name("matmul", "mars", "16-bit") == f"matmul.{OTHER}.16-bit"
    assert factors()[factor_name("matmul", "mars", "8-bit")].spread > factors()["matmul.hopper.8-bit"].spread
    assert factors()[factor_name("collective", "pigeon", "latency")].points == 0


def test_draws_are_common_stratified_and_repeatable():
    first = draw(["launch", "routing"], 100, seed=1)
    alone = draw(["routing"], 100, seed=1)
    assert alone["routing"].tolist() == first["routing"].tolist()
    assert draw(["routing"], 100, seed=2)["routing"].tolist() != alone["routing"].tolist()
    one = factors()["routing"]
    z = (np.log(alone["routing"]) - one.center) / one.spread
    from scipy.special import ndtr

    assert sorted((ndtr(z) * 100).astype(int).tolist()) == list(range(100))
    assert abs(np.corrcoef(np.log(first["launch"]), z)[0, 1]) < 0.3


def test_a_belief_replaces_what_it_names_and_keeps_correlations():
    belief = Belief(
        names=("launch", "matmul.hopper.16-bit"),
        center=(0.5, -0.1),
        spread=(0.2, 0.1),
        correlation=((1.0, -0.9), (-0.9, 1.0)),
        tail=(np.inf, np.inf),
    )
    drawn = draw(["launch", "matmul.hopper.16-bit", "routing"], 4000, seed=5, belief=belief)
    launch, product = np.log(drawn["launch"]), np.log(drawn["matmul.hopper.16-bit"])
    assert launch.mean() == pytest.approx(0.5, abs=0.01)
    assert product.std() == pytest.approx(0.1, rel=0.03)
    assert np.corrcoef(launch, product)[0, 1] == pytest.approx(-0.9, abs=0.02)
    assert drawn["routing"].tolist() == draw(["routing"], 4000, seed=5)["routing"].tolist()
    assert quantile("launch", 0.5, belief) == pytest.approx(np.exp(0.5))
    assert quantile("launch", 0.5, PRIOR) == pytest.approx(1.0)


def test_factors_that_cannot_be_are_refused():
    for values, said in [
        ({"lunch": 1.0}, "factor: 'lunch' is unknown"),
        ({"launch": 0.0}, "factor launch: expected values above 0, got 0"),
        ({"launch": [1.0, -2.0]}, "got -2"),
        ({"launch": float("nan")}, "above 0, got nan"),
    ]:
        with pytest.raises(CostModelError, match=said):
            Factors(values)


def test_beliefs_that_cannot_be_are_refused():
    with pytest.raises(CostModelError, match="belief: factor 'lunch' is unknown"):
        Belief(names=("lunch",), center=(0.0,), spread=(1.0,), correlation=((1.0,),), tail=(3.0,))
    with pytest.raises(CostModelError, match="of 1 factors"):
        Belief(names=("launch",), center=(0.0, 1.0), spread=(1.0,), correlation=((1.0,),), tail=(3.0,))
    with pytest.raises(CostModelError, match="unknown role"):
        factor_name("lunch")


def test_factors_over_layouts_have_dimensions_of_one_behind_them():
    held = Factors({"launch": np.array([1.0, 2.0, 3.0]), "routing": 2.0})
    found = held.over(2)
    assert {name: value.shape for name, value in found.items()} == {"launch": (3, 1, 1), "routing": (1, 1)}
    assert found["launch"].ravel().tolist() == [1.0, 2.0, 3.0]
    assert held.over(0)["launch"].shape == (3,)
    assert len(held) == 2
    assert Factors().of("launch") is None


CHIP = """schema_version: 1
profile: accelerator
name: next-chip
title: A chip that nobody measured
inherit: {parent}
tdp: {{value: 800 W, source: assumed}}
"""
NODES = """schema_version: 1
profile: cluster
name: next-nodes
title: Nodes of it
inherit: dgx-h100-ndr
accelerator: {chip}
"""
OWN, PARENT = "matmul.other.16-bit", "matmul.hopper.16-bit"


def chip(folder, name, parent, more=""):
    text = CHIP.format(parent=parent).replace("next-chip", name) + more
    (folder / "accelerators").mkdir(exist_ok=True)
    (folder / "clusters").mkdir(exist_ok=True)
    (folder / "accelerators" / f"{name}.yaml").write_text(text, encoding="utf-8")
    nodes = NODES.format(chip=name).replace("next-nodes", f"{name}-nodes")
    (folder / "clusters" / f"{name}-nodes.yaml").write_text(nodes, encoding="utf-8")
    return load_cluster(f"{name}-nodes", profile_path=folder).accelerator


def test_the_generation_that_was_measured_is_found_through_the_chain(tmp_path):
    assert load_cluster("dgx-h100-ndr").accelerator.kernels_of == ""
    child = chip(tmp_path, "first", "h100-sxm-80gb", "generation: hopper-next\n")
    grandchild = chip(tmp_path, "second", "first", "generation: hopper-after-next\n")
    assert (child.generation, child.kernels_of) == ("hopper-next", "hopper")
    assert (grandchild.generation, grandchild.kernels_of) == ("hopper-after-next", "hopper")
    names = [OWN, "attention.other", "launch"]
    assert inherited_factors(grandchild, names) == {OWN: PARENT, "attention.other": "attention.hopper"}
    # One of the parent's generation has the parent's factors anyway.
    assert inherited_factors(chip(tmp_path, "third", "h100-sxm-80gb"), [PARENT]) == {}


def test_the_child_shares_the_parents_values_and_is_less_sure():
    drawn = draw([OWN, PARENT], 4000, seed=5, inherited={OWN: PARENT})
    child, parent = np.log(drawn[OWN]), np.log(drawn[PARENT])
    assert np.std(child) == pytest.approx(factors()[OWN].spread, rel=0.03)
    # What is left without the parent's part has nothing to do with it.
    assert np.corrcoef(child - parent, parent)[0, 1] == pytest.approx(0.0, abs=0.05)
    assert np.std(child - parent) == pytest.approx(
        np.sqrt(factors()[OWN].spread ** 2 - factors()[PARENT].spread ** 2), rel=0.03
    )
    # A job of the child alone draws the same values as one beside its parent.
    assert np.array_equal(draw([OWN], 4000, seed=5, inherited={OWN: PARENT})[OWN], drawn[OWN])
    apart = np.log(draw([OWN], 4000, seed=5)[OWN])
    assert abs(np.corrcoef(apart, parent)[0, 1]) < 0.05 < np.corrcoef(child, parent)[0, 1]
