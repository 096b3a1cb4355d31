"""One step as a whole: the slowest stage, what recipes add on top, reserves, stragglers, and the figures of it."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from round_jobs import (
    LAYER_PARAMS,
    MIB,
    MOE,
    SMALL,
    TABLE_PARAMS,
    counts,
    each_us,
    line,
    memory,
    near,
    price,
    step_us,
)

import costmodel as cm
from costmodel.base.errors import RecipeError
from costmodel.describe.factors import Factors
from costmodel.estimates.estimate import estimate_job
from costmodel.step.critical_stage import Step, _at_largest
from costmodel.step.placed_job import measured_load

pytestmark = pytest.mark.usefixtures("memory_alone_limits_norms")

N = 4 * LAYER_PARAMS + 2 * TABLE_PARAMS + 1024
ON_TOP = ("overhead.", "resilience.")


def known_us(est, *, without=(), only=()):
    """Exposed microseconds of the step before anything is put on top of it."""
    return sum(
        1e6 * float(one.exposed_seconds)
        for one in est.bill.time_lines
        if not one.name.startswith(ON_TOP) and one.axis not in without and (not only or one.axis in only)
    )


def test_the_slowest_stage_is_billed():
    for vocab, layers, embedding, head in [
        (32000, 2, 0, 8),
        (64, 3, 8, 0),
    ]:
        est = price({**SMALL, "num_layers": 5, "vocab_size": vocab}, gpus=2, layout="pp2", global_batch=8)
        counted = {name: count for name, count in counts(est).items() if name.startswith("compute.")}
        assert counted["compute.mlp.fc1.forward"] == 8 * layers
        assert counted.get("compute.embedding.lookup.forward", 0) == embedding
        assert counted.get("compute.head.logits.forward", 0) == head


def test_others_are_layers_embedding_and_head():
    """The bubble of two stages is the other one: with three layers the second waits for two and the embedding."""
    est = price({**SMALL, "num_layers": 3}, gpus=2, layout="pp2", global_batch=8)
    layer = ("compute.attention.", "compute.mlp.")
    own = sum(each_us(est, *layer).values())
    # The lines of the embedding are not on the critical stage, and 11.2 and 7.2 us long.
    assert each_us(est, "pp.bubble") == near({"pp.bubble": 2 * own + 3 + 4 * MIB / 1e6 + 3 + 8 * MIB / 1e6})


def test_overhead_of_a_recipe():
    """A hundredth of the passes, attention kernels and what a step does once apart, and 5 ms a step."""
    plain = price(gpus=2, global_batch=4)
    est = price(gpus=2, global_batch=4, switches={"overhead_fraction": 0.01, "step_overhead_s": 0.005})
    core = sum(
        1e6 * float(one.exposed_seconds)
        for one in plain.bill.time_lines
        if one.name.startswith("compute.attention.core.")
    )
    passes = known_us(plain, without=("dp", "optimizer")) - core
    assert each_us(est, "overhead.") == near(
        {
            "overhead.step": 5000.0,
            "overhead.unexplained": 0.01 * passes,
        }
    )
    assert known_us(plain) > passes + core > passes > 0


def test_waiting_for_data():
    """A host delivers 100,000 tokens a second; the step's own time is hidden in it."""
    for gpus, layout, batch, tokens in [
        (2, "tp1", 4, 4 * 1024),  # both replicas on one host
        (4, "tp2", 4, 4 * 1024),
        (8, "tp1", 8, 4 * 1024),  # four of eight
        (8, "tp4", 4, 2 * 1024),  # one of two
        (8, "tp8", 4, 4 * 1024),  # one, over two hosts
    ]:
        job = {"gpus": gpus, "layout": layout, "global_batch": batch}
        known = known_us(price(**job))
        est = price(switches={"input_tokens_per_s": 1e5}, **job)
        assert each_us(est, "overhead.input") == near({"overhead.input": tokens * 10 - known})
        assert each_us(price(switches={"input_tokens_per_s": 1e9}, **job), "overhead.input") == {}


def test_reserves():
    est = price(
        gpus=2,
        global_batch=2,
        switches={"allocator_slack": 0.1, "context_bytes": 1e9, "communicator_bytes": 5e8},
    )
    states = (2 + 4) * N + 12 * N / 2
    activations = 4 * (10 * MIB + 32768) + 4 * 28 * MIB + 2 * MIB + 10 * 32_768_000
    assert memory(est, "reserve.") == near(
        {
            "reserve.allocator_slack.state": states / 10,
            "reserve.allocator_slack.activation": activations / 10,
            "reserve.cuda_context": 1e9,
            "reserve.communicators": 5e8,
        }
    )


def test_reserves_of_a_sample():
    """States a tenth and activations a fifth more than the bill says; the allocator takes its tenth of both, and 5 %."""
    est = price(gpus=2, global_batch=2, switches={"allocator_slack": 0.1})
    factors = Factors({"states": 1.1, "activations": 1.2, "slack": 1.05})
    off = estimate_job(replace(est.job, factors=factors))
    states = (2 + 4) * N + 12 * N / 2
    activations = 4 * (10 * MIB + 32768) + 4 * 28 * MIB + 2 * MIB + 10 * 32_768_000
    assert memory(off, "reserve.") == near(
        {
            "reserve.misjudged.state": 0.1 * states,
            "reserve.allocator_slack.state": (1.05 * 1.1 - 1) * 1.1 * states,
            "reserve.misjudged.activation": 0.2 * activations,
            "reserve.allocator_slack.activation": (1.05 * 1.1 - 1) * 1.2 * activations,
        }
    )
    labels = {
        one.name: (one.part, one.axis, one.category)
        for one in off.bill.memory_lines
        if "misjudged" in one.name
    }
    assert labels == {
        "reserve.misjudged.state": ("parameters", "compute", "state"),
        "reserve.misjudged.activation": ("activation", "compute", "activation"),
    }


@pytest.mark.parametrize(
    ("gpus", "layout", "model", "groups"),
    [
        (1, "tp1", SMALL, 0),
        (2, "tp2", SMALL, 1),
        (2, "pp2", SMALL, 1),
        (4, "tp2 pp2", SMALL, 3),  # and one over both, for the norm
        (8, "tp2 pp2", SMALL, 4),
        (2, "cp2", SMALL, 2),  # gradients are summed over cp too
        (4, "ep4", MOE, 2),
    ],
)
def test_communicators(gpus, layout, model, groups):
    est = price(
        model, gpus=gpus, layout=layout, global_batch=4, seq_len=2048, switches={"communicator_bytes": 1e6}
    )
    assert memory(est, "reserve.communicators") == ({"reserve.communicators": groups * 1e6} if groups else {})


def expected_maximum(ranks, steps=200_000, reach=9.0):
    """Mean of the largest of N standard normal numbers, by the integral of 1 - F^N."""
    x = np.linspace(-reach, reach, steps + 1)
    below = np.asarray([0.5 * (1 + math.erf(value / math.sqrt(2))) for value in x]) ** ranks
    height = np.where(x > 0, 1 - below, -below)
    return float(np.sum((height[1:] + height[:-1]) / 2 * np.diff(x)))


def test_waiting_for_the_slowest_rank():
    """Ranks vary by 2 %: two tensor ranks meet first, four with context, eight with stages, sixteen in all."""
    job = {"gpus": 16, "layout": "tp2 cp2 pp2", "global_batch": 8, "seq_len": 2048}
    plain = price(**job)
    est = price(switches={"stragglers": "normal", "straggler_variation": 0.02}, **job)
    work = sum(
        1e6 * float(one.exposed_seconds) for one in plain.bill.time_lines if one.category != "communication"
    )
    late = {ranks: 0.02 * expected_maximum(ranks) for ranks in (2, 4, 8, 16)}
    assert each_us(est, "resilience.stragglers.") == pytest.approx(
        {
            "resilience.stragglers.tensor": late[2] * work,
            "resilience.stragglers.context": (late[4] - late[2]) * work,
            "resilience.stragglers.pipeline": (late[8] - late[4]) * work,
            "resilience.stragglers.job": (late[16] - late[8]) * work,
        },
        rel=1e-4,
    )
    assert late[2] == pytest.approx(0.02 / math.sqrt(math.pi), rel=1e-4)
    # Two ranks of experts that two tensor ranks share are four that meet, before any pipeline.
    shared = price(
        MOE,
        gpus=4,
        layout="ep2 etp2",
        global_batch=4,
        switches={"stragglers": "normal", "straggler_variation": 0.02},
    )
    (name,) = each_us(shared, "resilience.stragglers.")
    assert name == "resilience.stragglers.expert"
    assert float(line(shared, name).terms["ranks"]) == 4


def test_jitter_is_paid_at_every_synchronisation():
    """Four a layer and micro-batch: 8 of two layers and four micro-batches are 32 meetings of two ranks."""
    job = {"gpus": 2, "layout": "tp2", "global_batch": 4}
    plain = price({**SMALL, "num_layers": 2}, **job)
    est = price(
        {**SMALL, "num_layers": 2},
        switches={"stragglers": "normal", "straggler_variation": 0, "straggler_jitter": 0.01},
        **job,
    )
    work = sum(
        1e6 * float(one.exposed_seconds) for one in plain.bill.time_lines if one.category != "communication"
    )
    assert each_us(est, "resilience.jitter.tensor") == pytest.approx(
        {"resilience.jitter.tensor": work * 0.01 * math.sqrt(32) / math.sqrt(math.pi)}, rel=1e-4
    )


def test_figures_of_a_step():
    """6 FLOP a weight and token, 12 a key, head and its width: 4 layers of 15 Mi, and a table."""
    est = price(gpus=4, layout="tp2", global_batch=4, recompute="full", tokens=1e9)
    tokens = 4 * 1024
    flops = tokens * (6 * (4 * 15 * 2**20 + TABLE_PARAMS) + 12 * 4 * 1024 * 1024)
    assert float(est.model_flops()) == near(flops)
    causal = flops - tokens * 6 * 4 * 1024 * 1024
    assert float(est.model_flops(causal=True)) == near(causal)
    step = float(est.step_time_s)
    assert float(est.mfu) == near(flops / step / 4 / 1e14)
    assert float(est.mfu_causal) == near(causal / step / 4 / 1e14)
    assert float(est.tokens_per_s_per_gpu) == near(tokens / step / 4)
    # Every layer's forward pass runs again: 2 FLOP a weight, 4 a key and head width.
    again = tokens * (2 * 4 * 15 * 2**20 + 4 * 4 * 1024 * 1024)
    assert float(est.hfu) == near((flops + again) / step / 4 / 1e14)
    assert float(est.gpu_hours(1e9)) == near(1e9 / tokens * step * 4 / 3600)
    assert float(est.days(1e9)) == near(1e9 / tokens * step / 86400)
    assert float(price().hfu) == near(float(price().mfu))


def test_what_fits():
    est = price()
    assert est.memory_capacity_bytes == 64 * 2**30
    assert bool(est.fits)
    assert not bool(price({**SMALL, "num_layers": 400}).fits)


def test_sums_by_axis_and_phase():
    est = price(gpus=2, layout="tp2")
    axes = {axis: 1e6 * float(seconds) for axis, seconds in est.exposed_by("axis").items()}
    assert sum(axes.values()) == near(1e6 * float(est.step_time_s))
    phases = {phase: 1e6 * float(seconds) for phase, seconds in est.exposed_by("phase").items()}
    assert phases["forward"] == near(step_us(est, "forward"))
    # Both ranks hold the norms whole, and half of everything else.
    held = 4 * (15 * 2**19 + 2048) + TABLE_PARAMS + 1024
    assert phases["optimizer"] == near(1 + 30 * held / 1e6 + 1 + 12 * held / 1e6)


def test_a_stage_that_waits_pays_for_that_much_less():
    """Two blocks at a second each and half of one once, less three seconds of waiting; one block without."""
    blocks = [SimpleNamespace(runs_on_stage=np.asarray([2.0, 1.0]))]
    each, once = [np.asarray(1.0)], [np.asarray(0.5)]

    def most(waits):
        step = SimpleNamespace(placed=None, blocks=blocks, stage=SimpleNamespace(waits_s=np.asarray(waits)))
        return float(Step.max_beyond_waits_s(step, each, once))

    assert most([0.0, 0.0]) == 2.5
    assert most([3.0, 0.0]) == 1.5


def test_measured_loads_of_ranks():
    """Tokens of eight experts 1 to 8: of pairs the last has 15 of 36, four times as many as a quarter is 60 / 36."""

    def busiest(degrees, loads=(1, 2, 3, 4, 5, 6, 7, 8)):
        return measured_load(loads, 8, np.asarray(degrees, dtype=float))

    assert float(busiest(4)) == near(60 / 36)
    assert busiest([1, 2, 4, 8]).tolist() == near([1, 52 / 36, 60 / 36, 64 / 36])
    assert busiest([[8], [3]]).tolist() == [near([64 / 36]), [1]]
    assert float(busiest(8, (1,) * 8)) == 1
    with pytest.raises(RecipeError, match=r"^moe_loads: expected a load for each of 8 experts, got 7$"):
        busiest(4, (1,) * 7)


def test_the_bill_is_that_of_the_stage_that_sets_the_pace():
    """Scores of three stages by layout; of equal ones the first counts, in arrays of layouts as in one."""
    scores = np.asarray([[1.0, 3.0, 2.0], [5.0, 5.0, 0.0], [0.0, 1.0, 4.0]])
    stages = np.asarray([10.0, 20.0, 30.0])
    assert _at_largest(scores)(np.broadcast_to(stages, (3, 3))).tolist() == [20.0, 10.0, 30.0]
    assert [float(_at_largest(one)(stages)) for one in scores] == [20.0, 10.0, 30.0]
    # The head of 128k tokens makes the last stage the slowest.
    job = {"model": "llama3-8b", "gpus": 64, "global_batch": 256, "seq_len": 4096, "schedule": "1f1b"}
    together = cm.estimate(**job, pp=np.asarray([2, 4, 8])).step_time_s
    for at, stages_of in enumerate((2, 4, 8)):
        assert float(together[at]) == pytest.approx(float(cm.estimate(**job, pp=stages_of).step_time_s))
        lines = cm.estimate(**job, pp=stages_of).bill.time_lines
        heads = {float(line.count) for line in lines if line.name.startswith("compute.head.logits")}
        assert heads == {256 / (64 / stages_of)}


def test_sums_of_lines_are_numbers_that_json_takes():
    est = cm.estimate("llama3-8b", "8xH100", tp=2, global_batch=8, seq_len=4096)
    by_axis = json.loads(json.dumps(est.exposed_by("axis")))
    assert sum(by_axis.values()) == pytest.approx(est.step_time_s)
    assert 0 < json.loads(json.dumps(est.hidden_by_axis()))["dp"] < 1
    several = cm.estimate("llama3-8b", "8xH100", tp=[2, 4], global_batch=8, seq_len=4096)
    assert sum(several.exposed_by("axis").values()) == pytest.approx(several.step_time_s)
