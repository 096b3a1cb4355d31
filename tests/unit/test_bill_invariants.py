"""What must be true of every bill, whatever the model, the machine, the recipe and the layout."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_jobs import DENSE, GPUS, MOE, is_possible, job_of, jobs, layouts, price_of, questions, with_fabric

from costmodel.bill.formula import evaluate
from costmodel.bill.lines import AXES, CATEGORIES, PHASES
from costmodel.describe.hardware.hardware import load_cluster
from costmodel.describe.recipe import list_recipes
from costmodel.estimates.estimate import estimate

EXACT = 1e-12
FEW = settings(max_examples=24, deadline=None)
FIGURES = ("step_time_s", "memory_bytes_per_gpu", "mfu", "mfu_causal", "hfu", "tokens_per_s_per_gpu")


def assert_lines_are_sound(est):
    """Sums, names, ranges, and the formula of every line."""
    bill = est.bill
    names = [line.name for line in (*bill.time_lines, *bill.memory_lines)]
    assert len(names) == len(set(names))
    total = sum(float(line.count) * float(line.exposed_each_s) for line in bill.time_lines)
    assert float(est.step_time_s) == pytest.approx(total, rel=EXACT)
    stages = bill.memory_per_stage_bytes()
    by_stage = sum(np.broadcast_to(line.bytes, stages.shape) for line in bill.memory_lines)
    np.testing.assert_allclose(stages, by_stage, rtol=EXACT)
    assert float(est.memory_bytes_per_gpu) == pytest.approx(by_stage.max(), rel=EXACT)
    for line in bill.time_lines:
        assert line.axis in AXES
        assert line.category in CATEGORIES
        assert line.phase in PHASES
        for value in (line.count, line.exposed_each_s, line.bytes_each):
            assert np.isfinite(value)
            assert value >= 0, line.name
        assert line.exposed_each_s <= line.each_s * (1 + EXACT), line.name
        got = evaluate(line.formula, line.terms)
        np.testing.assert_allclose(got, line.exposed_each_s, rtol=EXACT, err_msg=line.name)
    for line in bill.memory_lines:
        assert line.axis in AXES
        assert line.category in CATEGORIES
        assert np.all(np.isfinite(line.bytes) & (line.bytes >= 0)), line.name
        got = np.broadcast_to(evaluate(line.formula, line.terms), np.shape(line.bytes))
        np.testing.assert_allclose(got, line.bytes, rtol=EXACT, err_msg=line.name)


@FEW
@given(jobs())
def test_a_bill_is_the_sum_of_lines_that_follow_from_their_formulas(drawn):
    assert_lines_are_sound(price_of(*drawn))


@pytest.mark.parametrize("recipe", list_recipes())
@pytest.mark.parametrize("model", [DENSE[0], MOE[0]])
def test_every_recipe_makes_such_bills(model, recipe):
    for zero_stage in (1, 3):
        est = estimate(
            model=model,
            cluster="dgx-a100-hdr",
            gpus=32,
            layout="tp2 pp2",
            ep=1 if model in DENSE else 4,
            global_batch=64,
            seq_len=2048,
            recipe=recipe,
            zero_stage=zero_stage,
            recompute="selective",
        )
        assert_lines_are_sound(est)


@FEW
@given(st.data())
def test_arrays_equal_scalars(data):
    question = data.draw(questions())
    points = data.draw(st.lists(layouts(question["model"] in MOE), min_size=3, max_size=3))
    together = price_of(question, {key: np.asarray([point[key] for point in points]) for key in points[0]})
    for index, point in enumerate(points):
        alone = price_of(question, point)
        for figure in FIGURES:
            got = np.broadcast_to(getattr(together, figure), (3,))[index]
            np.testing.assert_allclose(got, getattr(alone, figure), rtol=EXACT, err_msg=figure)


@FEW
@given(jobs())
def test_an_open_mesh_equals_scalars(drawn):
    question, layout = drawn
    tp, zero, micro = np.asarray([1, 4]), np.asarray([0, 1, 3]), np.asarray([1, 2])
    mesh = {"tp": tp[:, None, None], "zero_stage": zero[None, :, None], "micro_batch": micro[None, None, :]}
    together = price_of(question, layout, **mesh)
    for i, j, k in ((0, 0, 0), (1, 2, 1), (0, 2, 0)):
        alone = price_of(question, layout, tp=tp[i], zero_stage=zero[j], micro_batch=micro[k])
        for figure in FIGURES:
            got = np.broadcast_to(getattr(together, figure), (2, 3, 2))[i, j, k]
            np.testing.assert_allclose(got, getattr(alone, figure), rtol=EXACT, err_msg=figure)


@FEW
@given(jobs(), st.sampled_from([None, 0, 1]), st.floats(1.0, 16.0), st.floats(0.0, 1.0))
def test_more_bandwidth_or_less_latency_is_never_slower(drawn, only, bandwidth, latency):
    question, layout = drawn
    cluster = load_cluster(question["cluster"])
    before = float(price_of(question, layout).step_time_s)
    for change in ({"bandwidth": bandwidth}, {"latency": latency}):
        better = with_fabric(cluster, only=only, **change)
        assert float(price_of(question, layout, cluster=better).step_time_s) <= before * (1 + EXACT)


def test_a_faster_fabric_does_make_a_step_faster():
    question = {"model": "llama3-8b", "recipe": "megatron-core"}
    layout = {"tp": 8, "global_batch": 512, "seq_len": 4096}
    cluster = load_cluster("dgx-h100-ndr")
    times = [
        float(price_of(question, layout, cluster=with_fabric(cluster, bandwidth=scale)).step_time_s)
        for scale in (0.5, 1.0, 2.0)
    ]
    assert times[0] > 1.02 * times[1] > 1.02 * times[2]


def state_bytes(est):
    """Parameters, gradients and optimizer states of the worst stage.

    What an optimizer step makes for a moment counts only as far as it exceeds the activations, which
    are gone by then: that rest may grow with the number of ranks.
    """
    states = [
        line.bytes
        for line in est.bill.memory_lines
        if line.name.startswith("state.") and not line.name.endswith(".temporaries")
    ]
    return float(sum(np.atleast_1d(held) for held in states).max())


@FEW
@given(jobs())
def test_more_memory_shards_never_hold_more_state(drawn):
    question, layout = drawn
    by_stage = [state_bytes(price_of(question, layout, zero_stage=zero)) for zero in range(4)]
    by_group = [state_bytes(price_of(question, layout, shard_group=group)) for group in (1, 2, 4, 16, 64, 0)]
    by_gpus = [state_bytes(price_of(question, layout, gpus=gpus)) for gpus in (256, 512, 1024)]
    for held in (by_stage, by_group, by_gpus):
        assert all(more >= less for more, less in pairwise(held))
    if not question["switches"].get("offload_optimizer"):
        assert by_stage[3] < by_stage[0]


ONE_STAGE = {"pp": 1, "vp": 1, "schedule": 0}
ONE_EXPERT_RANK = {"ep": 1, "etp": 1}
ALONE = {
    "tp": {"tp": 1},
    "cp": {"cp": 1},
    "pp": ONE_STAGE,
    "ep": ONE_EXPERT_RANK,
    "dp": {"gpus": 1, "tp": 1, "cp": 1, "global_batch": 8, **ONE_STAGE, **ONE_EXPERT_RANK},
}


@FEW
@given(jobs(), st.sampled_from(sorted(ALONE)))
def test_a_group_of_one_costs_nothing(drawn, axis):
    question, layout = drawn
    assert_costs_nothing(price_of(question, layout, **ALONE[axis]), axis, 0)
    beside = {key: np.asarray([one, layout.get(key, GPUS)]) for key, one in ALONE[axis].items()}
    assert_costs_nothing(price_of(question, layout, **beside), axis, 0)


def assert_costs_nothing(est, axis, index):
    """No time, no bytes on the wire and no buffers for one of the priced layouts."""
    shape = est.shape
    stages = est.bill.memory_per_stage_bytes().shape[-1:]
    place = (index,) * len(shape)
    for line in est.bill.time_lines:
        if line.axis == axis:
            for value in (line.seconds, line.exposed_seconds, line.bytes):
                assert np.broadcast_to(value, shape)[place] == 0, line.name
    for line in est.bill.memory_lines:
        if line.axis == axis and line.name.startswith(("buffer.", "reserve.")):
            assert np.all(np.broadcast_to(line.bytes, shape + stages)[place] == 0), line.name


@FEW
@given(jobs())
def test_whoever_sends_alone_sends_nothing(drawn):
    """The same by line: experts' data-parallel groups and HSDP's replicas can be of one, too."""
    for line in price_of(*drawn).bill.time_lines:
        if "ranks" in line.terms and line.terms["ranks"] == 1:
            assert line.each_s == line.exposed_each_s == line.bytes_each == 0, line.name


@FEW
@given(jobs())
def test_the_layouts_drawn_here_are_possible(drawn):
    assert is_possible(job_of(*drawn))


@FEW
@given(jobs())
def test_no_port_is_busy_for_longer_than_the_step(drawn):
    """What is called hidden hides beside something: no tier carries more than the step lasts."""
    est = price_of(*drawn)
    sent = [line for line in est.bill.time_lines if line.category == "communication"]
    for tier in range(len(est.bill.tier_names)):
        busy = sum(float(line.seconds) for line in sent if float(line.tier) == tier)
        assert busy <= float(est.step_time_s) * (1 + 1e-9)
