"""The search prices what `estimate` prices, misses nothing, and says why the rest is out."""

import itertools

import numpy as np
import pytest

import costmodel as cm
from costmodel.base.errors import CostModelError, NoLayoutError
from costmodel.describe.jobs.fields import KNOBS
from costmodel.describe.jobs.job import make_job
from costmodel.describe.jobs.layout import layout_problems, make_layout
from costmodel.physics.pipeline.schedule_table import SCHEDULES
from costmodel.physics.pipeline.schedules import schedule_at, valid
from costmodel.physics.pipeline.stages import plan_stages
from costmodel.planning.best import pareto_indices
from costmodel.planning.request import make_question
from costmodel.planning.search import priced_parts, rows_of, space_of
from costmodel.planning.space import build_space
from costmodel.step.price import price, price_unsharded

GPT3 = {"model": "gpt3-175b", "cluster": "dgx-a100-hdr", "gpus": 512, "global_batch": 768, "seq_len": 2048}
SMALL = {"model": "llama3-8b", "cluster": "dgx-h100-ndr", "gpus": 16, "global_batch": 64, "seq_len": 8192}


def scalar(job, row):
    """Price one row by the public call."""
    return cm.estimate(
        model=job.model,
        cluster=job.cluster,
        gpus=row["gpus"],
        global_batch=job.global_batch,
        seq_len=job.seq_len,
        precision=job.precision.name,
        recipe=job.recipe,
        axis_order=job.axis_order,
        **({"pipeline_layout": "balanced"} if job.balanced_stages else {}),
        **{knob: row[knob] for knob in KNOBS},
    )


def test_search_equals_the_scalar_estimate():
    for asked in [
        GPT3,
        {
            "model": "deepseek-v3-671b",
            "cluster": "h800-cx7",
            "gpus": 256,
            "global_batch": 1024,
            "seq_len": 4096,
            "recipe": "hai-llm",
            "precision": "fp8-block",
            "cp": "1,2",
            "micro_batch": "1,2",
            "etp": "1,2",
        },
        {
            "model": "gpt-oss-120b",
            "cluster": "gb200-nvl72-ndr",
            "gpus": 72,
            "global_batch": 144,
            "seq_len": 8192,
        },
        {
            "model": "llama3-70b",
            "cluster": "dgx-h100-ndr",
            "gpus": 64,
            "global_batch": 128,
            "seq_len": 8192,
            "recipe": "torchtitan",
            "axis_order": "tp cp pp dp",
        },
        {
            "model": "llama3-70b",
            "cluster": "tpu-v5p",
            "gpus": 256,
            "global_batch": 512,
            "seq_len": 8192,
        },
    ]:
        question = make_question(**asked)
        rng = np.random.default_rng(1)
        parts = list(itertools.islice(priced_parts(question, chunk=2**14), 20))
        for index in rng.choice(len(parts), 10):
            part = parts[index]
            flat = np.flatnonzero(part.slab.possible)
            chosen = rng.choice(flat, 3)
            rows = rows_of(part, chosen, np.zeros(3))
            for at in range(3):
                est = scalar(question.jobs[0], {name: values[at] for name, values in rows.items()})
                step_s = float(price(est.job, every_stage=True).bill.step_time_s())
                assert step_s == pytest.approx(rows["step_time_s"][at], rel=1e-9)
                assert float(est.memory_bytes_per_gpu) == pytest.approx(rows["memory_bytes"][at], rel=1e-9)


def test_the_space_is_the_brute_force_one():
    job = make_job(**SMALL, check=False)
    placements = {"tp": (1, 2, 3, 4), "sequence_parallel": (0, 1), "cp": (1, 2), "ep": (1,), "etp": (1,)}
    placements |= {"micro_batch": (1, 2, 5), "pp": (1, 2, 4)}
    runs = {"vp": (1, 2, 3), "schedule": tuple(range(len(SCHEDULES)))}
    policies = {"recompute": (0, 2), "zero_stage": (0, 3), "shard_group": (0, 2)}

    def points(values):
        return [dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())]

    count = 0
    for where in points(placements):
        layout = make_layout(gpus=16, **where)
        impossible = any(problem.bad.any() for problem in layout_problems(layout, job.model, 64, 8192))
        if impossible or (where["tp"] == 1 and where["sequence_parallel"]):
            continue
        micro_batches, ranks = 64 / (layout.dp * where["micro_batch"]), float(layout.dp * layout.cp)
        can_run = [
            run
            for run in points(runs)
            if (schedule_at(run["schedule"]).name == "none") == (where["pp"] == 1)
            and (32 / where["pp"]) % run["vp"] == 0
            and valid(run["schedule"], where["pp"], micro_batches, run["vp"])
        ]
        can_shard = [
            policy
            for policy in points(policies)
            if not policy["shard_group"] or (policy["zero_stage"] and ranks % 2 == 0 and ranks > 2)
        ]
        count += len(can_run) * len(can_shard)
    values = {knob: tuple(map(float, v)) for knob, v in {**placements, **runs, **policies}.items()}
    space = build_space(job, 16.0, values)
    assert sum(slab.num_possible for slab in space.slabs) == count > 0


def test_many_placements_of_as_many_stages_are_a_dense_slab(monkeypatch):
    """By stages or side by side, the same layouts have the same prices."""
    asked = {"model": "llama3-405b", "cluster": "llama3-roce", "recipe": "llama3", "gpus": 4096}
    question = make_question(**asked, global_batch=512, seq_len=8192)

    def prices():
        found = {}
        for part in priced_parts(question, chunk=2**14):
            flat = np.flatnonzero(part.slab.possible)
            rows = rows_of(part, flat, np.zeros(flat.size))
            keys = np.stack([rows[knob] for knob in KNOBS], axis=1)
            found |= {tuple(key): at for key, at in zip(keys, rows["step_time_s"], strict=True)}
        return space_of(question, question.jobs[0]).slabs, found

    (side_by_side,), together = prices()
    assert side_by_side.shape[2] == 1
    monkeypatch.setattr("costmodel.planning.space._MORE_RUNS_WORTH_A_SLAB", 0)
    slabs, apart = prices()
    by_stages = [slab for slab in slabs if slab.shape[2] > 1]
    assert len(by_stages) > 1
    for slab in by_stages:
        assert len(set(slab.placements["pp"])) == 1
        rows = np.stack([*slab.placements.values()])
        assert len(np.unique(rows, axis=1).T) == slab.shape[3]
    assert together.keys() == apart.keys()
    for key, step_s in together.items():
        assert apart[key] == pytest.approx(step_s, rel=1e-12)


@pytest.mark.parametrize("recipe", ["megatron-core", "deepspeed", "torchtitan"])
def test_only_lines_of_data_parallelism_are_told_how_it_shards(recipe):
    """What is priced once for all shardings is what a job of each sharding has."""
    asked = {**SMALL, "recipe": recipe, "layout": "tp2 pp2", "micro_batch": 2, "check": False}
    once = price_unsharded(make_job(**asked, zero_stage=0))
    for zero_stage, shard_group in ((1, 0), (2, 2), (3, 0), (3, 2)):
        job = make_job(**asked, zero_stage=zero_stage, shard_group=shard_group)
        ours = once.sharded(job.layout.zero_stage, job.layout.shard_group).bill
        bill = price(job).bill
        assert [(line.name, float(line.exposed_seconds)) for line in ours.time_lines] == [
            (line.name, float(line.exposed_seconds)) for line in bill.time_lines
        ]
        assert [(line.name, float(line.bytes.max())) for line in ours.memory_lines] == [
            (line.name, float(line.bytes.max())) for line in bill.memory_lines
        ]


@pytest.mark.parametrize("size", [0, 1, 50, 5000, 20000])
def test_front_against_brute_force(size):
    rng = np.random.default_rng(size)
    score, memory = rng.integers(1, 200, size).astype(float), rng.integers(1, 200, size).astype(float)
    found = pareto_indices(score, memory)
    points = set(zip(score.tolist(), memory.tolist(), strict=True))
    front = {p for p in points if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points)}
    assert len(found) == len(front)
    assert set(zip(score[found].tolist(), memory[found].tolist(), strict=True)) == front
    assert np.all(np.diff(score[found]) > 0)


def test_constraints_hold():
    found = cm.plan(**SMALL, fix={"pp": 2, "schedule": "1f1b"}, tp=[2, 4], max_memory_bytes=60e9)
    frame = found.to_frame()
    assert set(frame.pp) == {2}
    assert set(frame.schedule) == {"1f1b"}
    assert set(frame.tp) <= {2, 4}
    assert frame.memory_bytes_per_gpu.max() <= 60e9
    assert frame.step_time_s.is_monotonic_increasing
    assert found.fastest.step_time_s == pytest.approx(frame.step_time_s[0], rel=1e-9)
    assert len(found.top(3)) == 3
    with pytest.raises(NoLayoutError):
        cm.plan(**SMALL, fix={"pp": 2}, headroom=0.999)


def test_wrong_input_says_what_would_do():
    for changed, words in [
        ({"objective": "speed"}, "objective: 'speed' is unknown"),
        ({"tpp": 2}, "did you mean"),
        ({"tp": "1,2", "fix": {"tp": 8}}, "tp: fixed to 8, but only 1, 2"),
        ({"fix": {"tp": 3}}, "with the other constraints 1, 2, 4, 8 would do"),
        ({"max_memory_bytes": 3e9}, "which max_memory allows; max_memory ="),
        ({"schedule": "zbh1"}, "did you mean 'zb-h1'"),
        ({"zero_stage": 4}, "from 0 to 3"),
        ({"headroom": 1.5}, "headroom: expected a share"),
        ({"gpus": 10**7}, "more than cluster"),
        ({"model": "megatron-1t", "gpus": 8, "seq_len": 2048}, " GPUs ("),
        ({"model": "megatron-1t", "gpus": 512}, "max_positions is less than seq_len"),
        ({"global_batch": 7, "gpus": 12, "pp": 1, "cp": 1, "tp": 2}, "would do"),
        ({"cluster": "p4d-efa", "gpus": 36, "pp": 1, "cp": 1, "tp": 8}, "gpus = 32 instead of 36 would do"),
    ]:
        with pytest.raises(CostModelError) as caught:
            cm.plan(**{**SMALL, **changed})
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


def test_why_not_of_what_cannot_run_and_advice():
    found = cm.plan(**SMALL)
    assert "does not divide" in found.why_not("tp3")
    assert "does not fit" in found.why_not(
        {"tp": 1, "pp": 1, "zero_stage": 0, "micro_batch": 4, "recompute": "none"}
    )
    said = found.advice()
    assert 3 <= len(said) <= 8
    assert all(sentence.endswith(".") for sentence in said)


def test_stage_make_ups_cover_every_stage():
    kinds = [0] * 3 + [1] * 58
    for pp in (1, 2, 16, 30, 61):
        every = plan_stages(kinds, 2, pp, every_stage=True)
        few = plan_stages(kinds, 2, pp)

        def rows(plan):
            return {
                tuple(r)
                for r in np.stack([*plan.layers, plan.has_embedding, plan.has_head], axis=-1).tolist()
            }

        assert rows(every) == rows(few)
        assert few.index[0] == 0
        assert few.index[-1] == pp - 1


def test_every_rule_of_layouts_has_its_words_in_a_plan():
    """Three divides 24 GPUs and no width of Mixtral's experts: a plan tells what it left out, and why."""
    found = cm.plan(model="mixtral-8x7b", gpus=24, global_batch=96, seq_len=4096, recipe="nemo")
    assert found.rejected["expert_ffn_not_divisible"] > 0
    told = [row[0] for grid in found.grids() for row in grid.rows]
    assert any("etp does not divide the width of the experts" in str(cell) for cell in told)
