"""Searches small enough to count by hand: what is tried, what is out, who wins by which objective, and what is said."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from round_jobs import CLUSTER, MOE, QUIET, SMALL, TABLE_PARAMS, cluster_file, model_file, near
from test_host_memory import host

import costmodel as cm
from costmodel.base.errors import NoLayoutError
from costmodel.base.units import format_seconds
from costmodel.describe.odds import odds
from costmodel.planning.search import PricedSlab, space_of

pytestmark = pytest.mark.usefixtures("memory_alone_limits_norms")

N = 4 * (15 * 2**20 + 2 * 1024) + 2 * TABLE_PARAMS + 1024
ONE = {
    "tp": 1,
    "sequence_parallel": 0,
    "cp": 1,
    "ep": 1,
    "etp": 1,
    "micro_batch": 1,
    "pp": 1,
    "vp": 1,
    "schedule": "none",
    "recompute": "none",
    "zero_stage": 1,
    "shard_group": 0,
}


def plan(model=None, *, free=(), fixed=None, switches=None, **asked):
    """Search the small model over the knobs of `free`; every other one is 1, or what `fixed` says."""
    fix = {**{knob: value for knob, value in ONE.items() if knob not in free}, **(fixed or {})}
    job = {"cluster": str(CLUSTER), "gpus": 8, "global_batch": 64, "seq_len": 1024}
    # All that divides, whatever launches it, and all of the memory.
    job |= {"framework": "any", "pipeline_layout": "even", "headroom": 0.0, **asked}
    job = {name: value for name, value in job.items() if value is not None}
    return cm.plan(model=model_file(model or SMALL), switches={**QUIET, **(switches or {})}, fix=fix, **job)


def tried(found, knob):
    """Values of a knob among all layouts that fit."""
    return sorted(set(found.to_frame()[knob].tolist()))


def test_values_tried_unasked():
    for knob, model, asked, values in [
        ("micro_batch", SMALL, {"gpus": 1, "global_batch": 128}, [1, 2, 4, 8, 16, 32, 64]),
        ("tp", SMALL, {"gpus": 16}, [1, 2, 4]),  # up to the node, where nobody asks for more
        ("cp", SMALL, {"gpus": 8, "global_batch": 8, "seq_len": 8192}, [1, 2, 4, 8]),
        (
            "cp",
            SMALL,
            {"gpus": 16, "global_batch": 16, "seq_len": 8192},
            [1, 2, 4, 8],
        ),  # down to 1,024 tokens
        ("ep", {**MOE, "num_experts": 16}, {"gpus": 16}, [1, 2, 4, 8, 16]),
        ("etp", MOE, {"gpus": 16}, [1, 2, 4]),
        ("pp", SMALL, {"gpus": 16}, [1]),  # without a schedule
        ("zero_stage", SMALL, {}, [0, 1, 2, 3]),
        ("shard_group", SMALL, {}, [0, 2, 4]),  # a node's divisors, and doublings of it below eight GPUs
        ("shard_group", SMALL, {"gpus": 32}, [0, 2, 4, 8, 16]),
        ("shard_group", MOE, {"gpus": 32}, [0, 4]),  # experts have a group of their own
        ("recompute", SMALL, {}, ["full", "none", "selective"]),
    ]:
        assert tried(plan(model, free=(knob,), **asked), knob) == values


def test_virtual_stages_tried_unasked():
    found = plan(
        {**SMALL, "num_layers": 64},
        free=("vp",),
        fixed={"pp": 2, "schedule": "interleaved"},
        gpus=2,
        global_batch=2,
    )
    assert tried(found, "vp") == [2, 4, 8, 16]
    far = plan(free=("tp",), gpus=16, tp_in_domain=False)
    assert tried(far, "tp") == [1, 2, 4, 8]  # 16 does not divide the heads


def test_shardings_are_counted():
    """Twelve replicas: whole, or in groups of 2 and 4 but not 8; unsharded there are no groups."""
    found = plan(free=("zero_stage", "shard_group"), gpus=12, global_batch=12)
    assert found.num_priced == found.num_fit == 1 + 3 * 3
    assert found.num_considered == 16
    assert found.rejected["sharding_not_divisible"] == 6


def test_schedules_are_counted():
    for layers, fixed, asked, count in [
        # Eight micro-batches on two stages: five schedules of one chunk, DualPipe, interleaved and two in a V.
        (4, {"pp": 2}, {"gpus": 4, "global_batch": 16}, 5 + 1 + 1 + 2),
        # Three layers a stage are one chunk or three.
        (6, {"pp": 2}, {"gpus": 4, "global_batch": 16}, 5 + 1 + 1),
        # Two micro-batches: neither DualPipe.
        (4, {"pp": 2}, {"gpus": 4, "global_batch": 4}, 5 + 1 + 1),
        # Four of them over two context ranks, of which no batch is made.
        (4, {"pp": 2, "cp": 2}, {"gpus": 4, "global_batch": 4}, 5 + 1 + 1 + 2),
        # Three micro-batches are no multiple of two stages.
        (4, {"pp": 2}, {"gpus": 2, "global_batch": 3}, 5 + 0 + 1),
        # One stage runs none.
        (4, {"pp": 1}, {"gpus": 4, "global_batch": 16}, 1),
    ]:
        found = plan({**SMALL, "num_layers": layers}, free=("vp", "schedule"), fixed=fixed, **asked)
        assert found.num_priced == count


def test_what_is_out_and_what_does_not_fit():
    """Beside 0.49 GB of activations ZeRO-0 to 2 hold 18, 12 and 10 bytes a parameter, 3 holds 9 and 0.59 GB more."""
    found = plan(free=("zero_stage",), gpus=2, global_batch=2, max_memory_bytes=2.1e9)
    assert (found.num_priced, found.num_fit, found.rejected["does_not_fit"]) == (4, 2, 2)
    least = plan(free=("zero_stage",), gpus=2, global_batch=2, max_memory_bytes=1.9e9)
    assert (least.num_priced, least.num_fit, least.rejected["does_not_fit"]) == (4, 1, 3)
    assert tried(found, "zero_stage") == [1, 2]
    assert max(float(est.memory_bytes_per_gpu) for est in found.top(4)) == near(12 * N + 489_291_776)
    roomy = plan(free=("zero_stage",), gpus=2, global_batch=2)
    assert roomy.num_fit == 4
    assert found.memory_gain == near(1.0 - roomy.best.step_time_s / found.best.step_time_s)


def test_headroom():
    """64 GiB less 96 %: 2.75 GB, which only recomputed layers fit into."""
    limit = 64 * 2**30 * 0.04
    plain, tight = (
        plan(free=("recompute",), gpus=1, global_batch=1, headroom=share) for share in (0.0, 0.96)
    )
    assert tried(plain, "recompute") == ["full", "none", "selective"]
    assert tried(tight, "recompute") == ["full"]
    assert float(tight.best.memory_bytes_per_gpu) <= limit < float(plain.best.memory_bytes_per_gpu)
    # Of two limits the smaller one holds.
    assert tried(plan(free=("recompute",), gpus=1, global_batch=1, max_memory_bytes=limit), "recompute") == [
        "full"
    ]


def test_objectives():
    """Eight bits are faster, but not twice as fast; more GPUs are faster, but not as many times."""
    job = {"gpus": 1, "global_batch": 4, "precision": ["bf16", "fp8-delayed"]}
    assert plan(**job).best.job.precision.name == "fp8-delayed"
    assert plan(objective="mfu", **job).best.job.precision.name == "bf16"
    sizes = {"gpus": [1, 4], "global_batch": 4}
    assert float(plan(**sizes).best.job.layout.gpus) == 4
    assert float(plan(objective="gpu-hours", **sizes).best.job.layout.gpus) == 1
    assert float(plan(objective="tokens-per-dollar", **sizes).best.job.layout.gpus) == 1
    fast = cluster_file(
        gpu={"memory_bandwidth": "4 TB/s"},
        cluster={"price_usd_per_gpu_hour": 20},
    )
    both = {"gpus": 1, "global_batch": 4, "cluster": [str(CLUSTER), fast]}
    assert plan(objective="gpu-hours", **both).best.job.cluster.price_usd_per_gpu_hour == 20
    assert plan(objective="tokens-per-dollar", **both).best.job.cluster.price_usd_per_gpu_hour == 2


def test_scores_are_what_the_objective_says():
    found = plan(objective="gpu-hours", gpus=2, global_batch=4)
    step = float(found.best.step_time_s)
    assert found.candidates.top["score"][0] == near(step * 2 / (4 * 1024) / 3600)
    dollars = plan(objective="tokens-per-dollar", gpus=2, global_batch=4)
    assert dollars.candidates.top["score"][0] == near(step * 2 / (4 * 1024) / 3600 * 2)
    share = plan(objective="mfu", gpus=2, global_batch=4)
    flops = float(share.best.model_flops())
    assert share.candidates.top["score"][0] == near(flops / (4 * 1024) / float(share.best.mfu))


def test_columns_are_the_estimates():
    found = plan(free=("cp", "micro_batch", "shard_group", "zero_stage"), global_batch=16, num_candidates=500)
    frame = found.to_frame()
    assert frame["rank"].tolist() == list(range(1, len(frame) + 1))
    assert frame.step_time_s.is_monotonic_increasing
    for row in (0, len(frame) // 2, len(frame) - 1):
        est, listed = found.estimate_of(found.candidates.top, row), frame.iloc[row]
        assert listed.step_time_s == near(float(est.step_time_s))
        assert listed.mfu == near(float(est.mfu))
        assert listed.tokens_per_s_per_gpu == near(float(est.tokens_per_s_per_gpu))
        assert listed.memory_bytes_per_gpu == near(float(est.memory_bytes_per_gpu))
        assert listed.dp == float(est.job.layout.dp) == 8 / listed.cp
        assert listed.shard_group == float(est.job.layout.shard_group)


def test_the_best_of_each_value():
    found = plan(free=("zero_stage", "micro_batch"), gpus=[8, 4, 2], global_batch=16, num_candidates=500)
    frame = found.to_frame()
    for knob in ("zero_stage", "micro_batch"):
        best = frame.groupby(knob).step_time_s.min()
        assert found.by_value[knob] == near({float(value): time for value, time in best.items()})
    assert found.num_fit == len(frame)


def test_frameworks_launch_what_they_can():
    for framework, stages in [("megatron", [0, 1]), ("torchtitan", [3]), ("deepspeed", [0, 1, 2, 3])]:
        fix = {
            knob: value
            for knob, value in ONE.items()
            if knob not in ("zero_stage", "sequence_parallel", "schedule")
        }
        found = cm.plan(
            model=model_file(SMALL),
            cluster=str(CLUSTER),
            gpus=4,
            global_batch=4,
            seq_len=1024,
            switches=QUIET,
            fix=fix,
            framework=framework,
        )
        assert tried(found, "zero_stage") == stages


def test_unasked_a_plan_keeps_to_what_the_recipe_launches():
    """Megatron-Core: ZeRO-0 and 1, three schedules; what Hopper runs needed stays free."""
    found = plan(
        free=("zero_stage", "schedule", "vp"),
        fixed={"pp": 2},
        gpus=4,
        global_batch=16,
        framework=None,
    )
    assert tried(found, "zero_stage") == [0, 1]
    assert tried(found, "schedule") == ["1f1b", "interleaved"]
    headroom_share = plan(gpus=1, global_batch=1, headroom=None).question
    chances = odds().fits_with(headroom_share.jobs[0].recipe.name)
    assert chances.probability(headroom_share.limit_bytes(headroom_share.jobs[0]), 64 * 2**30) == near(0.9)


def test_gpu_and_host_fit_together_at_the_accepted_risk():
    """Each with 95 % is 90.25 %; the host with 94 % is 89.3 %, too little, and where it is empty only the GPU counts."""
    question = plan(gpus=1, global_batch=1, headroom=None).question
    chances = odds().fits_with(question.jobs[0].recipe.name)
    device = question.jobs[0].cluster.accelerator.memory_bytes
    memory = device * np.array([[chances.share(0.05)], [chances.share(0.0999)], [chances.share(0.11)]])
    host = np.array([0.0, chances.share(0.05), chances.share(0.06)])
    part = PricedSlab(0, SimpleNamespace(possible=np.ones((3, 3), dtype=bool)), np.ones((3, 1)), memory, host)
    assert question.fits(part, question.jobs[0]).tolist() == [
        [True, True, False],
        [True, False, False],
        [False] * 3,
    ]
    named = plan(gpus=1, global_batch=1, headroom=0.0).question
    assert named.fits(part, named.jobs[0]).all()


def test_a_host_too_full_is_named_with_its_memory():
    """What takes twice the host, and all but 2 % of it: a probit of (log 1.02 - 0.0351) / 0.0741 is 42 %."""
    asked = {"gpus": 1, "global_batch": 1, "headroom": None, "offload_optimizer": True}
    held_bytes = float(plan(**asked).best.host_memory_bytes)
    for share, said in (
        (0.5, "what goes to the host never fits"),
        (1.02, r", its host .*, which risk allows, and fits with 43%; risk = 57% would do"),
    ):
        with pytest.raises(NoLayoutError, match=said):
            plan(**asked, cluster=host(f"{held_bytes * share} B"))
    # The front, whose figures are those of the search, has the odds of the host as well.
    found = plan(**asked, cluster=host(f"{held_bytes * 1.02} B"), risk=0.6)
    assert max(found.pareto_columns()["fits_probability"]) == near(float(found.best.fits_probability))
    assert float(found.best.fits_probability) < 0.5


def test_offloading_is_one_more_choice():
    found = plan(gpus=2, global_batch=2, offload_optimizer=[False, True])
    assert sorted(found.to_frame().offload_optimizer.tolist()) == [False, True]
    kept = plan(gpus=2, global_batch=2, offload_optimizer=False)
    assert kept.to_frame().offload_optimizer.tolist() == [False]


def test_what_more_memory_would_buy():
    roomy = plan(free=("recompute",), gpus=1, global_batch=1)
    tight = plan(free=("recompute",), gpus=1, global_batch=1, headroom=0.96)
    gain = 1 - float(roomy.best.step_time_s) / float(tight.best.step_time_s)
    assert gain > 0.05
    said = next(text for text in tight.advice() if "memory enough" in text)
    assert float(re.search(r"([\d.]+)% shorter", said)[1]) == pytest.approx(100 * gain, abs=0.051)
    assert any("Memory does not limit it" in text for text in roomy.advice())


def test_what_tensor_parallelism_over_several_nodes_would_save():
    """Two sequences on eight GPUs in nodes of four: with tp 4 picked, tp 8 is priced; with tp 1 nobody misses it."""
    asked = {"free": ("tp",), "gpus": 8, "global_batch": 2}
    inside, beyond = plan(**asked), plan(**asked, tp_in_domain=False)
    assert (tried(inside, "tp"), tried(beyond, "tp")) == ([4], [4, 8])
    gain = 1 - float(beyond.best.step_time_s) / float(inside.best.step_time_s)
    assert gain > 0.1
    assert dict(inside.gains())["tp inside the domain"] == pytest.approx(gain, rel=1e-6)
    for found in (beyond, plan(free=("tp",), gpus=8, global_batch=8)):
        assert "tp inside the domain" not in dict(found.gains())


def test_why_not_by_the_number_of_a_row():
    """Its number, its step and its settings are those of the table, also where a row differs from the plan by a switch."""
    found = cm.plan(model="llama3-8b", gpus=64, global_batch=512, seq_len=8192)
    frame = found.to_frame().set_index("rank")
    assert found.why_not("1").startswith("it is the plan")
    assert "faster, rank 2 of" in found.why_not("2")  # the plan is the simplest of the fastest
    for rank in (2, 3, 4, 7, 20):
        answer, row = found.why_not(str(rank)), frame.loc[rank]
        assert f"rank {rank} of" in answer, answer
        assert f"{row.choices} takes {format_seconds(float(row.step_time_s))} a step" in answer, answer
        score = float(found.candidates.top["score"][found.row_of(rank)])
        assert found.rank_of(score) == rank
    with pytest.raises(cm.CostModelError, match="no row has number 123456"):
        found.why_not("123456")


def test_why_not():
    found = plan(free=("recompute",), gpus=1, global_batch=1)
    second = found.top(3)
    slower = 100 * (float(second[1].step_time_s) / float(second[0].step_time_s) - 1)
    name = found.to_frame().recompute[1]
    said = found.why_not({"recompute": name})
    assert float(re.match(r"([\d.]+)% slower", said)[1]) == pytest.approx(slower, abs=0.051)
    assert "rank 2 of 3" in said
    assert found.why_not({"recompute": found.to_frame().recompute[0]}).startswith("it is the plan")


def test_nothing_fits():
    """What would do: the share of 64 GiB that the leanest layout leaves, or twice the GPUs."""
    with pytest.raises(NoLayoutError) as error:
        plan(gpus=1, global_batch=1, headroom=0.98)
    est = plan(gpus=1, global_batch=1).best
    free = 100 * (1 - float(est.memory_bytes_per_gpu) / (64 * 2**30))
    assert f"headroom = {free:.1f}% would do" in str(error.value)
    large = {**SMALL, "num_layers": 260, "vocab_size": 1024}
    with pytest.raises(NoLayoutError) as error:
        plan(large, gpus=1, global_batch=16, fixed={"zero_stage": 3, "recompute": "full"})
    assert re.search(r"would do: .*\b2 GPUs \([\d.]+ m?s a step\)", str(error.value))


def test_a_sweep_scales_the_network_only():
    """Tensor ranks of a node do not notice; replicas of two nodes do."""
    asked = {"model": model_file(SMALL), "cluster": str(CLUSTER), "seq_len": 1024, "switches": QUIET}
    points = [
        {**asked, "gpus": gpus, "layout": f"tp{tp}", "global_batch": 8, "bandwidth_scale": scale}
        for gpus, tp in ((4, 4), (8, 1))
        for scale in (1.0, 2.0)
    ]
    rows = cm.sweep(points).rows
    assert [row["status"] for row in rows] == ["ok"] * 4
    inside, across = (
        (rows[0]["step_time_s"], rows[1]["step_time_s"]),
        (rows[2]["step_time_s"], rows[3]["step_time_s"]),
    )
    assert inside[0] == inside[1]
    assert across[1] < across[0]
    full = cm.sweep([{**points[0], "model": model_file({**SMALL, "num_layers": 4000})}]).rows
    assert full[0]["status"] == "does not fit"


def test_no_part_of_a_search_is_larger_than_asked():
    question = plan(free=("tp", "pp", "micro_batch", "schedule", "recompute"), gpus=64).question
    slabs = space_of(question, question.jobs[0]).slabs
    assert sum(slab.num_possible for slab in slabs) > 100
    for slab in slabs:
        sharding, recompute, schedules, placements = slab.shape
        policies = sharding * recompute * schedules
        for most in (policies, 3 * policies, 7 * policies):
            parts = [part.shape[3] for part in slab.parts(most)]
            assert max(parts) <= most // policies
            assert sum(parts) <= placements


def test_degrees_that_a_layout_leaves_out_are_one_whatever_the_question_tries():
    """The question searches tp 1 and 2 at pp 1 only; asked for pp 2 alone, it is tp 1 that is priced."""
    found = plan(free=("tp", "pp", "schedule", "vp"), gpus=4, fixed={"tp": [1, 2], "pp": [1, 2]})
    frame = found.to_frame()
    took = frame.step_time_s
    slower = 100 * (took[(frame.pp == 2) & (frame.tp == 1)].min() / took.min() - 1)
    said = found.why_not("pp2")
    told = re.match(r"as fast|([\d.]+)% slower", said)
    assert float(told[1] or 0.0) == pytest.approx(slower, abs=0.051)
    assert "tp1 pp2 dp2" in said


@pytest.mark.parametrize(("gain", "said"), [(0.0049, "Memory does not limit it"), (0.0051, "0.5% shorter")])
def test_memory_limits_a_plan_from_half_a_per_cent_on(gain, said, monkeypatch):
    found = plan(gpus=4)
    monkeypatch.setattr(type(found), "memory_gain", gain)
    assert any(said in text for text in found.advice())
