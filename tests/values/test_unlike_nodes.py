"""Nodes of two kinds in one job, worked out from jobs on each kind alone."""

from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np
import pytest

import costmodel as cm
from costmodel.base.errors import CostModelError
from costmodel.describe.hardware.hardware import load_accelerator, load_cluster
from costmodel.describe.hardware.prices import price_note
from costmodel.describe.models.model_files import load_model
from costmodel.estimates.pipeline_run import billed_pipeline_s, durations, simulated_pipeline_s
from costmodel.estimates.record import source_record
from costmodel.interop.emit import emit
from costmodel.physics.pipeline.chunks import Chunk, chunks_text
from costmodel.reporting.summaries import machine_text
from costmodel.step.placed_job import head_in_layers
from costmodel.step.price import chunks_of, price
from costmodel.whole_run.run import run_of, step_power_w

JOB = {"model": "llama3-8b", "cluster": "h100", "gpus": 64, "tp": 8, "global_batch": 128, "seq_len": 8192}
FACTORS = {"recipe": "megatron-core", "switches": {"overhead_fraction": 0.0, "step_overhead_s": 0.0}}


def step(**more):
    """A step of the job. [s]"""
    return cm.estimate(**{**JOB, **FACTORS, **more})


def passes(est):
    """What a stage works on its micro-batches, and each stage's share of them, slowest to fastest."""
    blocks = zip(est.priced.step.blocks, est.priced.step.block_lines, strict=True)
    return sum(
        block.runs_on_stage * sum(float(line.exposed_each_s) for line in lines) for block, lines in blocks
    ).tolist()


def test_faster_replicas_wait_for_the_others_and_slower_ones_keep_them_waiting():
    alone, faster, slower = step(), step(hw={"mixed": "2:h200"}), step(hw={"mixed": "2:a100"})
    assert float(faster.step_time_s) == pytest.approx(float(alone.step_time_s), rel=1e-12)
    assert passes(slower)[0] > 1.5 * passes(alone)[0]
    # One A100 is as bad as all but one.
    assert float(slower.step_time_s) == pytest.approx(
        float(step(hw={"mixed": "7:a100"}).step_time_s), rel=1e-12
    )


def test_a_batch_by_speed_by_hand():
    """Eight replicas of a node, 16 micro-batches each; two of A100 take `share` of the time of the others."""
    even, alone = step(hw={"mixed": "2:a100"}), step()
    share = passes(even)[0] / passes(alone)[0]
    divided = step(hw={"mixed": "2:a100:batch"})
    # The least whole number of the slow ones with which six fast ones do the rest of 128.
    slow = next(m for m in range(1, 17) if 2 * m + 6 * int(m * share) >= 128)
    assert float(divided.priced.placed.micro_batches) == slow < 16
    for nodes, batch in ((1, 128), (3, 136), (5, 80), (7, 184)):
        some = step(hw={"mixed": f"{nodes}:a100:batch"}, **{"global_batch": batch})
        found = (m for m in range(1, batch) if nodes * m + (8 - nodes) * int(m * share) >= batch)
        assert float(some.priced.placed.micro_batches) == next(found)
    line = "compute.mlp.fc1.forward"
    counts = [next(one for one in est.bill.time_lines if one.name == line) for est in (even, divided)]
    assert float(counts[1].seconds) == pytest.approx(float(counts[0].seconds) * slow / 16, rel=1e-9)
    assert float(alone.step_time_s) < float(divided.step_time_s) < float(even.step_time_s)
    assert divided.tokens_per_step == even.tokens_per_step
    # Replicas on nodes of both kinds have equal parts, and it is said.
    equal = step(pp=2, hw={"mixed": "2:a100:batch"})
    assert float(equal.priced.placed.micro_batches) == 32
    assert "the batch is in equal parts" in equal.warnings[0]
    # Interleaved stages run as many micro-batches at a time as there are ranks.
    chunks = {"pp": 2, "vp": 2, "schedule": "interleaved", "axis_order": "tp cp pp dp"}
    for batch in (96, 104, 112, 120):
        some = step(**chunks, global_batch=batch, hw={"mixed": "2:a100:batch"})
        assert float(some.priced.placed.micro_batches) % 2 == 0
    with pytest.raises(CostModelError, match="equal parts of the batch; leave :batch out of hw mixed"):
        emit(divided, "megatron")
    # A replica of two nodes that has one of each is no faster than its slower one.
    pairs = {"pp": 2, "axis_order": "tp cp pp dp"}
    counts = [
        float(step(**pairs, hw={"mixed": f"{nodes}:b200:batch"}).priced.placed.micro_batches)
        for nodes in (2, 3, 4)
    ]
    assert counts[0] == counts[1] > counts[2]


def test_stages_on_other_nodes_take_their_share_and_layers_can_be_divided_by_speed():
    """Four stages of two nodes: the last on A100s, alone, then with a neighbour that has one of them, then with fewer layers."""
    alone, last, both = (
        step(pp=4, **more) for more in ({}, {"hw": {"mixed": "2:a100"}}, {"hw": {"mixed": "3:a100"}})
    )
    share = passes(last)[3] / passes(alone)[3]
    assert share > 1.5
    assert passes(last)[:3] == pytest.approx(passes(alone)[:3])
    assert passes(both)[2] / passes(alone)[2] == pytest.approx(
        passes(both)[1] / passes(alone)[1] * share, rel=0.1
    )
    # A stage on faster nodes alone is faster, one that shares them waits for the others.
    for nodes, faster in ((1, False), (2, True)):
        est = step(pp=4, hw={"mixed": f"{nodes}:h200"})
        assert passes(est)[:3] == pytest.approx(passes(alone)[:3], rel=1e-12)
        assert (passes(est)[3] < (1 - 1e-6) * passes(alone)[3]) == faster
    divided = step(pp=4, hw={"mixed": "2:a100"}, pipeline_layout="Et*9|t*9|t*9|t*5L")
    assert float(divided.step_time_s) < float(last.step_time_s)
    assert max(passes(divided)) < passes(last)[3]
    by_speed = step(pp=4, hw={"mixed": "2:a100"}, pipeline_layout="balanced")
    assert chunks_text(chunks_of(by_speed.job)) == "Et*10|(t*10|)*2t*2L"
    # With stages innermost every stage has nodes of both kinds.
    spread = step(pp=4, axis_order="tp cp pp dp", hw={"mixed": "2:a100"})
    assert passes(spread)[1] > 1.5 * passes(alone)[1]


def shallow(layers, **more):
    """The job with so many layers, a node a stage or two."""
    model = load_model("llama3-8b").model_copy(update={"num_layers": layers})
    return {"model": model, "global_batch": 64, **more}


def test_two_stages_by_hand():
    """A stage on each kind of node: of all divisions the one whose slower stage is fastest, one layer at a time."""
    job = shallow(8, gpus=16, pp=2, hw={"mixed": "1:a100"})
    even, found = step(**job), step(**job, pipeline_layout="balanced")
    pace, head = float(even.priced.placed.other_share), head_in_layers(even.job)
    slowest = {n: max(8 - n, pace * (n + head)) for n in range(9)}
    chosen = min(slowest, key=slowest.get)
    assert found.priced.placed.stages.layers[0].tolist() == [8 - chosen, chosen]
    assert chosen < 4
    # 1F1B: the first stage, here the slower, runs a forward pass while the other has its first micro-batch, and a
    # backward pass while that has its last one: it waits for the rest of both.
    busy, m = passes(found), float(found.priced.placed.micro_batches)
    lines = [
        line for line in found.bill.time_lines if line.phase in ("forward", "backward", "backward_weight")
    ]
    works_s = sum(float(line.exposed_seconds) for line in lines if line.axis in ("compute", "tp"))
    bubble_s = sum(float(line.exposed_seconds) for line in found.bill.time_lines if line.category == "bubble")
    assert works_s == pytest.approx(m * max(busy), rel=1e-9)
    assert bubble_s == pytest.approx(2 * busy[1] - busy[0], rel=1e-9)


def divisions(layers, stages):
    """Every way to divide layers over stages in order, as pipeline layouts."""
    for cuts in combinations_with_replacement(range(layers + 1), stages - 1):
        counts = np.diff([0, *cuts, layers]).tolist()
        yield tuple(Chunk(int(at == 0), n, 0, int(at == stages - 1)) for at, n in enumerate(counts))


@pytest.mark.parametrize(("pp", "hw"), [(2, "1:a100"), (4, "1:a100"), (4, "2:a100"), (4, "3:b200")])
def test_no_other_division_of_layers_is_much_faster(pp, hw):
    """All divisions of ten layers by brute force: the one by speed takes at most 1 % longer than the best of them."""
    first = step(**shallow(10, gpus=32, pp=pp, hw={"mixed": hw}))
    found = price(replace(first.job, balanced_stages=True)).bill.step_time_s()
    each = [
        price(replace(first.job, pipeline_layout=chunks)).bill.step_time_s() for chunks in divisions(10, pp)
    ]
    assert float(found) <= 1.01 * float(min(each))
    assert float(found) < 0.9 * float(first.step_time_s)


def test_many_layouts_at_once_are_priced_as_each_alone():
    job = step(pp=4, hw={"mixed": "3:a100"}, pipeline_layout="balanced").job
    numbers = {"pp": [4.0, 8.0, 2.0, 1.0], "vp": [2.0, 1.0, 1.0, 1.0], "schedule": [4.0, 1.0, 1.0, 0.0]}
    many = replace(job.layout, **{name: np.array(each) for name, each in numbers.items()})
    steps = price(replace(job, layout=many)).bill.step_time_s()
    for at, together in enumerate(steps):
        layout = replace(many, **{name: np.asarray(each[at]) for name, each in numbers.items()})
        assert price(replace(job, layout=layout)).bill.step_time_s() == pytest.approx(together, rel=1e-12)


def test_a_plan_divides_layers_by_speed_and_says_what_that_saves():
    found = cm.plan(
        **{**JOB, "global_batch": 64},
        cp=1,
        micro_batch=1,
        recipe="megatron-core",
        hw={"mixed": "2:a100"},
        choose=False,
    )
    (said,) = (one for one in found.advice() if "layers by speed" in one)
    assert "the best that is found without takes" in said
    equal = cm.plan(
        **{**JOB, "global_batch": 64},
        cp=1,
        micro_batch=1,
        recipe="megatron-core",
        hw={"mixed": "2:a100"},
        choose=False,
        pipeline_layout="even",
    )
    assert float(found.best.step_time_s) < 0.9 * float(equal.best.step_time_s)
    # The file that launches it lists the layers, and leaves the order of the nodes to the person.
    text = emit(found.best, "megatron")
    assert chunks_text(chunks_of(found.best.job)) in text
    assert "2 nodes of a100-sxm-80gb last" in text
    # Chunks as fast as each other need not have as many layers, which ranks that are alike would wait for.
    uneven = {
        **JOB,
        "global_batch": 64,
        "pp": 4,
        "vp": 7,
        "cp": 1,
        "recipe": "megatron-core",
        "choose": False,
    }
    assert cm.plan(**uneven, hw={"mixed": "2:a100"}).num_fit
    with pytest.raises(CostModelError, match="layers not divisible"):
        cm.plan(**uneven)
    # Nodes of a larger memory too are asked what were possible with memory without end.
    larger = cm.plan(
        **{**JOB, "global_batch": 64}, recipe="megatron-core", hw={"mixed": "2:h200"}, choose=False
    )
    assert "rank 1 of" in larger.why_not("tp2 pp2 cp1")
    # What is uncertain moves no layer.
    assert found.best.sample(16).step_time_s.shape == (16,)


def test_all_have_the_memory_of_the_smaller_and_what_cannot_be_is_one_line():
    assert step(hw={"mixed": "2:h200"}).memory_capacity_bytes == step().memory_capacity_bytes
    assert (
        cm.estimate(**{**JOB, "cluster": "h200"}, hw={"mixed": "2:h100"}).memory_capacity_bytes
        == step().memory_capacity_bytes
    )
    for text, said in (
        ("8:h200", "8 nodes of 8 GPUs are all of the job's 64"),
        ("2", "hw: mixed: expected nodes and their accelerator such as 8:h200"),
        ("0:h200", "hw: mixed: expected nodes"),
        ("2:h200:layers", "hw: mixed: expected nodes"),
        ("2:h900", "h900"),
    ):
        with pytest.raises(CostModelError, match=said):
            step(hw={"mixed": text})
    with pytest.raises(CostModelError, match="has no fp8 products with a price"):
        step(precision="fp8", hw={"mixed": "2:a100"})
    est = step(hw={"mixed": "2:h200"})
    assert est.to_dict()["inputs"]["hw"] == {"mixed": "2:h200"}
    assert any("2 nodes of h200-sxm-141gb" in said for said in est.warnings)


def test_nodes_of_two_kinds_cost_the_mean_of_their_prices():
    job = {"model": "llama3-8b", "gpus": 64, "global_batch": 64, "seq_len": 4096, "tp": 2}
    own, other = (load_cluster(name).price_usd_per_gpu_hour for name in ("h100", "h200"))
    est = cm.estimate(**job, cluster="h100", hw={"mixed": "2:h200"})
    assert est.job.cluster.price_usd_per_gpu_hour == pytest.approx((6 * own + 2 * other) / 8)
    ranges = [load_cluster(name).price_range_usd_per_gpu_hour for name in ("h100", "h200")]
    assert est.job.cluster.price_range_usd_per_gpu_hour == pytest.approx(
        [(6 * a + 2 * b) / 8 for a, b in zip(*ranges, strict=True)]
    )
    note = f"2 nodes of h200-sxm-141gb at ${other:.2f} add ${(other - own) / 4:.2f}; lists from $"
    assert note in price_note(est.job.cluster)
    assert machine_text(est) == "llama3-8b on 48 H100 and 16 H200"
    assert "take" in est.warnings[0]
    given = cm.estimate(**job, cluster="h100", hw={"mixed": "2:h200"}, price_usd_per_gpu_hour=1.0)
    assert given.job.cluster.price_usd_per_gpu_hour == 1.0
    # The cluster of a job is still that of its profile, which its sources are from.
    for one in (est, given):
        assert "cluster dgx-h100-ndr" in source_record(one.job)


def test_a_stage_has_the_memory_of_its_own_nodes():
    """Four stages of two nodes: those of H200 alone are less full by what an H100 has of the memory of an H200."""
    smaller, larger = (load_accelerator(name).memory_bytes for name in ("h100", "h200"))
    # Of three other nodes the last stage has two, and the third stage one beside one of the cluster's.
    for cluster, other, less in (
        ("h100", "h200", [1, 1, 1, smaller / larger]),
        ("h200", "h100", [smaller / larger, smaller / larger, 1, 1]),
    ):
        alone = step(pp=4, cluster=cluster).bill.memory_per_stage_bytes()
        both = step(pp=4, cluster=cluster, hw={"mixed": f"3:{other}"})
        assert both.bill.memory_per_stage_bytes() / alone == pytest.approx(less, rel=1e-9)
        assert both.memory_capacity_bytes == smaller
    # The first stage holds most in flight: more than an H100 has, less than an H200.
    big = {"pp": 4, "global_batch": 256, "micro_batch": 16}
    assert not step(**big).fits
    assert step(**big, cluster="h200", hw={"mixed": "2:h100"}).fits


def test_power_is_that_of_each_kind_by_how_busy_it_is():
    """A quarter of the GPUs are A100 of 400 W beside 700 W: replicas on H100 wait for them; a divided batch keeps both busy."""
    own, other = load_accelerator("h100").tdp_w, load_accelerator("a100").tdp_w
    assert (own, other) == (700.0, 400.0)
    for hw, busy_own in (("2:a100", None), ("2:a100:batch", 1.0)):
        est = step(hw={"mixed": hw})
        share = float(est.priced.placed.other_share)
        assert share > 1.5
        by_category = est.exposed_by("category")
        working = sum(float(by_category.get(name, 0.0)) for name in ("math", "hbm", "state", "activation"))
        busy = working / float(est.step_time_s)
        own_busy = busy * (1.0 / share if busy_own is None else busy_own)
        # TDP times b + (1 - b) / 2, and the host, which draws 0.38 of the TDP.
        base = 0.5 + 0.76 * 10.2 / 5.6 - 1.0
        by_hand = 0.75 * own * (base + own_busy / 2) + 0.25 * other * (base + busy / 2)
        assert step_power_w(est) == pytest.approx(by_hand, rel=1e-9)
        run = run_of(est, 1e9, reliability="none", pue=1.0)
        assert run.energy_at_tdp_kwh == pytest.approx(run.gpu_hours * 0.625, rel=1e-12)
    # Faster ones wait: 8 H200 of 64 at as many watts.
    est = step(hw={"mixed": "1:h200"})
    assert step_power_w(est) < step_power_w(step())


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb-v"])
def test_the_simulated_pipeline_has_stages_of_two_paces(schedule):
    """Each pass of the last of four ranks takes the share that A100 take of it; the step is about what the bill says."""
    job = {"pp": 4, "schedule": schedule, **({} if schedule == "1f1b" else {"vp": 2})}
    alone, last = step(**job), step(**job, hw={"mixed": "2:a100"})
    for own, mixed in zip(durations(alone.priced), durations(last.priced), strict=True):
        if own.any():
            assert mixed[:3] == pytest.approx(own[:3], rel=1e-12)
            assert (mixed[3] > 1.4 * own[3]).all()
    both = sum(mixed[3].sum() for mixed in durations(last.priced)) / sum(
        own[3].sum() for own in durations(alone.priced)
    )
    assert both == pytest.approx(passes(last)[3] / passes(alone)[3], rel=0.02)
    assert simulated_pipeline_s(last.priced) == pytest.approx(billed_pipeline_s(last.bill), rel=0.05)
    assert simulated_pipeline_s(last.priced) > 1.3 * simulated_pipeline_s(alone.priced)
    by_speed = step(**job, hw={"mixed": "2:a100"}, pipeline_layout="balanced")
    assert simulated_pipeline_s(by_speed.priced) == pytest.approx(billed_pipeline_s(by_speed.bill), rel=0.01)
    assert simulated_pipeline_s(by_speed.priced) < 0.7 * simulated_pipeline_s(last.priced)
