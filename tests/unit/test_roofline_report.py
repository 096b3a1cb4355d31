"""Rooflines as tables: operators and axes lie where sums of their own put them."""

import pytest
from famous_jobs import JOBS, famous

import costmodel as cm
from costmodel.estimates.roofline import axis_rows, operator_rows
from costmodel.physics.network.comm_roofline import data_parallel_intensity


@pytest.mark.parametrize("name", list(JOBS))
def test_no_operator_is_above_its_roof_and_all_of_them_are_there(name):
    est = famous(name)
    rows = operator_rows(est)
    for row in rows:
        if row.flops:
            assert row.achieved_flops_per_s <= row.roof_flops_per_s * (1 + 1e-9), row.name
            assert row.roof_flops_per_s <= row.peak_flops_per_s
        bandwidth = est.job.cluster.accelerator.memory_bandwidth_bytes_per_s
        assert row.moved_bytes / row.seconds <= bandwidth * (1 + 1e-9), row.name
    lines = [
        line for line in est.bill.time_lines if line.axis == "compute" and line.category in ("math", "hbm")
    ]
    total = sum(float(line.exposed_seconds) for line in lines) / float(est.step_time_s)
    assert sum(row.share for row in rows) == pytest.approx(total, rel=1e-9)


def test_llama3_products_by_hand():
    """8,192 tokens, hidden 16,384, MLP of 53,248 over 8 ranks: FLOPs, bytes and where they lie."""
    rows = {row.name: row for row in operator_rows(famous("llama3-405b"))}
    fc1 = rows["mlp.fc1.forward"]
    flops, moved = 2 * 8192 * 16384 * 13312, 2 * (8192 * 16384 + 16384 * 13312 + 8192 * 13312)
    assert (fc1.flops, fc1.moved_bytes) == (flops, moved)
    assert fc1.intensity == pytest.approx(flops / moved)
    assert fc1.roof_flops_per_s == pytest.approx(989.4e12)
    assert (fc1.bound, rows["mlp.norm.forward"].bound) == ("compute", "memory")
    attention = rows["attention.core.forward"]
    assert attention.flops == 2 * 2 * 16 * 8192 * 8192 / 2 * 128


def test_small_kernels_are_bound_by_their_start():
    est = cm.estimate(model="llama3-8b", gpus=8, tp=8, global_batch=8, seq_len=128)
    assert {row.bound for row in operator_rows(est)} >= {"launch", "memory"}


def test_axes_by_hand():
    est = famous("llama3-405b")
    rows = {row.axis: row for row in axis_rows(est)}
    assert rows.keys() == {"tp", "pp", "dp"}
    tiers = {tier.name: tier for tier in est.job.cluster.tiers}
    flops = float(est.model_flops(causal=True)) / 16384
    for row in rows.values():
        sent = sum(
            float(line.bytes)
            for line in est.bill.time_lines
            if line.axis == row.axis and line.category == "communication"
        )
        assert row.sent_bytes == pytest.approx(sent)
        assert row.intensity == pytest.approx(flops / sent)
        # One GPU a node leaves each pod, whose sixteen share what the aggregation lets through: no less than their NICs.
        assert row.ridge == pytest.approx(989.4e12 / tiers[row.tier].achieved_bandwidth_bytes_per_s)
        assert row.allowed == pytest.approx(min(1, row.intensity / row.ridge))
    assert (rows["tp"].tier, rows["dp"].tier) == ("nvlink", "pod")
    assert rows["tp"].ridge < rows["pp"].ridge == pytest.approx(rows["dp"].ridge)


def test_a_group_that_spans_nodes_sends_over_all_of_its_nics():
    """A ring of 16 over two nodes leaves each over eight NICs of 48.5 GB/s; one GPU a node over one."""
    est = cm.estimate(model="llama3-70b", cluster="dgx-h100-ndr", gpus=64, tp=16, recompute="full")
    rows = {row.axis: row for row in axis_rows(est)}
    assert {row.tier for row in rows.values()} == {"leaf"}
    assert rows["tp"].ridge == pytest.approx(989.4e12 / (8 * 48.5e9), rel=1e-6)
    assert rows["dp"].ridge == pytest.approx(989.4e12 / 48.5e9, rel=1e-6)
    assert rows["tp"].allowed > float(est.mfu)


def test_intensity_of_data_parallelism_by_hand():
    """Of 8 ranks each sends seven eighths of 1,000 gradients of 2 bytes, twice; of one nothing."""
    job = (6000.0, 100.0, 1000.0)
    assert float(data_parallel_intensity(*job, num_ranks=8)) == pytest.approx(600_000 / 3500)
    assert float(data_parallel_intensity(*job)) == pytest.approx(600_000 / 4000)
    assert float(data_parallel_intensity(*job, gradient_bytes=4, passes=3)) == pytest.approx(600_000 / 12_000)
    assert float(data_parallel_intensity(*job, num_ranks=1)) == float("inf")


def test_the_critical_batch_is_where_the_link_allows_the_peak():
    job = {"model": "llama3-8b", "cluster": "dgx-h100-ndr", "gpus": 64, "seq_len": 2048}
    batch = cm.roofline(cm.estimate(**job, global_batch=256)).critical_batch
    assert batch == pytest.approx(cm.roofline(cm.estimate(**job, global_batch=512)).critical_batch, rel=1e-9)
    near = 64 * round(batch / 64)
    (dp,) = [row for row in axis_rows(cm.estimate(**job, global_batch=near)) if row.axis == "dp"]
    assert dp.intensity * batch / near == pytest.approx(dp.ridge, rel=1e-6)
    assert (
        cm.roofline(cm.estimate(**job, global_batch=256, zero_stage=3, recipe="torchtitan")).critical_batch
        is None
    )
    assert (
        cm.roofline(cm.estimate(model="llama3-8b", gpus=8, tp=8, global_batch=8, seq_len=2048)).critical_batch
        is None
    )


def test_advice_follows_the_regime():
    slow = cm.estimate(
        model="llama3-70b", cluster="cloud-h100-100gbe", gpus=32, tp=16, pp=2, global_batch=32, seq_len=4096
    )
    rows = {row.axis: row for row in axis_rows(slow)}
    assert "bound" in rows["tp"].regime
    assert rows["tp"].allowed < 0.3
    assert rows["tp"].advice == "keep tp inside nvlink"
    inside = {row.axis: row for row in axis_rows(famous("llama3-405b"))}
    assert inside["tp"].advice == "hide more of it: tp_overlap"
    assert inside["pp"].advice == "leave it"
