"""Nodes of two kinds in one job, worked out from jobs on each kind alone."""

import pytest

import costmodel as cm
from costmodel.base.errors import CostModelError
from costmodel.describe.hardware.hardware import load_accelerator, load_cluster
from costmodel.describe.hardware.prices import price_note
from costmodel.estimates.pipeline_run import billed_pipeline_s, durations, simulated_pipeline_s
from costmodel.estimates.record import source_record
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


def test_a_batch_dealt_by_speed_by_hand():
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
    with pytest.raises(CostModelError, match="a batch divided by speed needs replicas on nodes of one kind"):
        step(pp=2, hw={"mixed": "2:a100:batch"})
    # A replica of two nodes that has one of each is no faster than its slower one.
    pairs = {"pp": 2, "axis_order": "tp cp pp dp"}
    counts = [
        float(step(**pairs, hw={"mixed": f"{nodes}:b200:batch"}).priced.placed.micro_batches)
        for nodes in (2, 3, 4)
    ]
    assert counts[0] == counts[1] > counts[2]


def test_stages_on_other_nodes_take_their_share_and_layers_can_be_dealt_by_speed():
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
    # With stages innermost every stage has nodes of both kinds.
    spread = step(pp=4, axis_order="tp cp pp dp", hw={"mixed": "2:a100"})
    assert passes(spread)[1] > 1.5 * passes(alone)[1]


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
    assert "2 nodes of h200" in price_note(est.job.cluster)
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
