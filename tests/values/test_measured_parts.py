"""What measurements are read by: CSV of kernels, spans and steps of traces, fits of constants. All numbers by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from bounded_fits import Bound, fit

from costmodel.base.errors import CostModelError, DataError
from costmodel.describe.hardware.hardware import load_link
from costmodel.describe.hardware.kernels import FP8_ATTENTION
from costmodel.describe.jobs.merge import MEMORY_KINDS
from costmodel.physics.network.fabric import Fabric
from costmodel.physics.network.mesh import Group
from costmodel.trust.calibration import fabric_fit
from costmodel.trust.calibration.fitting import fit_pulled
from costmodel.trust.calibration.kernel_csv import read_timings
from costmodel.trust.published_runs import seen_by_kind
from costmodel.trust.shares import source_family

PEAKS = {"fp16": 1e15, "bf16": 1e15, "fp8": 2e15}


# --- timings of kernels in CSV -------------------------------------------------------------------


def timings(tmp_path, text):
    file = tmp_path / "own.csv"
    file.write_text(text)
    return read_timings([file], PEAKS)


def test_products_of_a_csv(tmp_path):
    """Any one of three units or a rate; fp16 counts as bf16; several of them are one grouped product."""
    text = """\
# a comment, and an empty line

m,n,k,dtype,groups,batch,time_us,time_ms,time_s,tflops,out_dtype,accumulate,sustained
1024,2048,4096,bf16,,,100,,,,,,
1024,2048,4096,fp16,1,1,,0.2,,,fp32,yes,TRUE
1024,2048,4096,bf16,,,,,0.3,,,no,false
1000,1000,1000,bf16,,,,,,200,,1,0
16,32,64,bf16,4,2,1,,,,,,
1024,2048,4096,fp8,,,50,,,,,,
"""
    found = timings(tmp_path, text)
    assert sorted(found.matmul) == [("grouped_matmul", "bf16"), ("matmul", "bf16"), ("matmul", "fp8")]
    rows = found.matmul["matmul", "bf16"]
    assert rows.m.tolist() == [1024, 1024, 1024, 1000]
    assert rows.n.tolist() == [2048, 2048, 2048, 1000]
    assert rows.k.tolist() == [4096, 4096, 4096, 1000]
    # 2e9 FLOP at 200 TFLOP/s take 10 us.
    assert rows.time_s.tolist() == pytest.approx([100e-6, 200e-6, 0.3, 10e-6])
    assert rows.output_bytes.tolist() == [2, 4, 2, 2]
    assert rows.accumulate.tolist() == [0, 1, 0, 1]
    assert rows.sustained.tolist() == [0, 1, 0, 0]
    assert rows.source.tolist() == ["own"] * 4
    grouped = found.matmul["grouped_matmul", "bf16"]
    assert (grouped.groups.tolist(), grouped.time_s.tolist()) == ([8], [1e-6])
    assert found.matmul["matmul", "fp8"].output_bytes.tolist() == [2]


def test_attention_of_a_csv(tmp_path):
    """FLOPs: 2 · batch · heads · s² · (qk + v), half of it causal; backward 2.5 times, both 3.5 times."""
    text = """\
batch,seq_len,heads,head_dim,op,causal,kv_heads,qk_head_dim,v_head_dim,window,kernel,tflops
2,1000,8,128,attention_fwd,false,,,,,,100
2,1000,8,128,attention_bwd,true,2,,,,,100
2,1000,8,128,attention_fwd_bwd,true,,192,,512,flash3,100
"""
    found = timings(tmp_path, text)
    assert sorted(found.attention) == ["flash2", "flash3"]
    rows, other = found.attention["flash2"], found.attention["flash3"]
    flops = 2 * 2 * 8 * 1000**2 * 256
    assert rows.time_s.tolist() == pytest.approx([flops / 1e14, 2.5 * flops / 2 / 1e14])
    assert (rows.passes.tolist(), rows.causal.tolist()) == ([0, 1], [0, 1])
    assert (rows.heads.tolist(), rows.kv_heads.tolist()) == ([8, 8], [8, 2])
    assert (rows.qk_head_dim.tolist(), rows.v_head_dim.tolist(), rows.window.tolist()) == (
        [128] * 2,
        [128] * 2,
        [0] * 2,
    )
    assert other.time_s.tolist() == pytest.approx([3.5 * flops / 2 * 320 / 256 / 1e14])
    assert (other.qk_head_dim.tolist(), other.v_head_dim.tolist()) == ([192], [128])
    assert (other.passes.tolist(), other.window.tolist(), other.seq_len.tolist()) == ([2], [512], [1000])


def test_memory_bound_kernels_of_a_csv(tmp_path):
    found = timings(tmp_path, "bytes, time_us\n1e6, 5\n2e6, 7\n")
    assert found.memory.size_bytes.tolist() == [1e6, 2e6]
    assert found.memory.time_s.tolist() == pytest.approx([5e-6, 7e-6])
    assert (found.matmul, found.attention) == ({}, {})


NO_HEADER = "expected the columns m, n, k, dtype or batch, seq_len, heads, head_dim, op or bytes"
WRONG = (
    ("", "is empty"),
    ("bytes,time_us\n", "no rows below the header"),
    ("m,n,k,time_us\n1,1,1,1\n", NO_HEADER),
    ("#\nbytes\n1\n", "expected a column time_us, time_ms, time_s or tflops"),
    ("bytes,time_us\n1,2,3\n", "line 2: has 3 cells, expected 2"),
    ("# H100\n\nbytes,time_us\n1,2\n0,2\n", "line 5: bytes: expected a number above 0; got 0"),
    ("bytes,time_us\n1,inf\n", "line 2: time_us: expected a number above 0; got inf"),
    ("bytes,time_us\nmany,2\n", "line 2: bytes: expected a number; got 'many'"),
    ("bytes,tflops\n1,2\n", "line 2: expected a time"),
    ("m,n,k,dtype,tflops\n1,1,1,bf16,\n", "line 2: expected a time or tflops"),
    ("m,n,k,dtype,time_us\n1,1,1,int3,1\n", "line 2: dtype: expected one of "),
    ("m,n,k,dtype,time_us\n1,1,1,nvfp4,1\n", "line 2: dtype: this accelerator has no fp4 peak"),
    (
        "m,n,k,dtype,op,time_us\n1,1,1,bf16,conv,1\n",
        "line 2: op: expected matmul or grouped_matmul; got 'conv'",
    ),
    (
        "m,n,k,dtype,accumulate,time_us\n1,1,1,bf16,maybe,1\n",
        "line 2: accumulate: expected true or false; got 'maybe'",
    ),
    (
        "batch,seq_len,heads,head_dim,op,time_us\n1,1,1,1,fwd,1\n",
        "line 2: op: expected one of attention_fwd, ",
    ),
    (
        "m,n,k,dtype,tflops\n1000,1000,1000,bf16,1021\n",
        "line 2: 1021 TFLOP/s, above the peak of 1000: mixed units?",
    ),
)


def test_what_is_wrong_with_a_csv(tmp_path):
    """A 50th over the peak is clocks; more is another unit."""
    for text, sentence in WRONG:
        with pytest.raises(DataError) as refused:
            timings(tmp_path, text)
        assert str(refused.value).startswith(f"{tmp_path / 'own.csv'}: {sentence}"), text
    assert len(timings(tmp_path, "m,n,k,dtype,tflops\n1000,1000,1000,bf16,1019\n").matmul) == 1
    # Attention in 8 bits may be faster than the 16-bit peak.
    head = "batch,seq_len,heads,head_dim,op,kernel,tflops\n"
    fast = timings(tmp_path, f"{head}1,1024,8,128,attention_fwd,{FP8_ATTENTION},1500\n")
    assert [*fast.attention] == [FP8_ATTENTION]
    with pytest.raises(DataError, match="1500 TFLOP/s, above the peak of 1000"):
        timings(tmp_path, f"{head}1,1024,8,128,attention_fwd,flash3,1500\n")


# --- memory, sources -------------------------------------------------------------------------------


def test_memory_that_each_way_of_measuring_sees():
    held = {"allocated": [10.0, 1.0], "reserved": [2.0, 1.0], "device": [4.0, 40.0]}
    bill = SimpleNamespace(
        memory_lines=[SimpleNamespace(seen=seen, bytes=np.array(held[seen])) for seen in held]
    )
    seen = {kind: float(seen_by_kind(bill, kind)) for kind in MEMORY_KINDS}
    assert seen == {"max_allocated": 10, "max_reserved": 12, "nvidia-smi": 42, "stated": 12, "": 12}
    with pytest.raises(CostModelError, match="memory_kind: 'peak' is unknown"):
        seen_by_kind(bill, "peak")


def test_families_of_sources():
    for sources, family in (
        ("megatron-bridge-26.04 mbridge-old", "megatron-bridge"),
        ("dgxc-25 nemo-25", "nemo"),
        ("nemo-automodel-1", "nemo-automodel"),
        ("dgxc-maxtext dgxc-pax tpu-recipes-v5p maxtext-1", "maxtext"),
        ("torchtitan-1 torchao-1", "torchtitan"),
        ("mlperf-5", "mlperf"),
        ("vtrain-1", "vtrain"),
        ("bloom", "bloom"),
    ):
        assert {source_family(source) for source in sources.split()} == {family}


# --- fits ------------------------------------------------------------------------------------------


def test_parameters_by_factors_and_by_differences():
    x = np.array([1.0, 2.0, 4.0, 8.0])
    measured = 5e-6 + x / 40.0
    bounds = {"start_s": Bound(1e-9, 1e-3, 1e-5, log=True), "rate": Bound(1.0, 100.0, 10.0)}
    found, cost = fit(lambda p: p["start_s"] + x / p["rate"], measured, bounds)
    assert found["rate"] == pytest.approx(40.0, rel=1e-3)
    assert 1e-9 <= found["start_s"] <= 1e-3
    assert cost == pytest.approx(0.0, abs=1e-6)
    held, _ = fit(lambda p: p["rate"] * x, 200.0 * x, {"rate": Bound(1.0, 100.0, 10.0)})
    assert held["rate"] == pytest.approx(100.0, rel=1e-3)
    # Every row off by a factor e: 2(sqrt(1 + (1/0.5)²) - 1) each.
    _, cost = fit(lambda p: math.e * x + 0.0 * p["a"], x, {"a": Bound(0.0, 2.0, 1.0)}, outlier_scale=0.5)
    assert cost == pytest.approx(2 * (math.sqrt(5) - 1))


def test_a_fit_shrugs_off_an_outlier():
    x = np.linspace(1.0, 50.0, 40)
    measured = np.where(np.arange(40) == 7, 6.0, 2.0) * x
    found, _ = fit(lambda p: p["slope"] * x, measured, {"slope": Bound(0.1, 10.0, 1.0)})
    assert found["slope"] == pytest.approx(2.0, rel=0.02)


def test_a_pull_weighs_like_rows():
    """Four rows a thousandth off: variance of a mean, less of it where the start pulls, in units of a tenth."""
    rows = np.array([1.001, 0.999, 1.001, 0.999]) * 2.0
    for pull, weight in ((1e-4, 1.0), (0.3, 1.0), (0.3, 3.0), (2.0, 1.0)):
        found = fit_pulled(lambda x: np.full(4, x[0]), np.array([2.0]), rows, pull=pull, weight=weight)
        assert found.values == pytest.approx([2.0], rel=1e-6)
        known, prior = 4 * (10 * weight) ** 2, (10 * pull) ** 2
        off = 4 * (10 * weight * 1e-3) ** 2 / 3
        assert found.spread == pytest.approx([math.sqrt(off / (known + prior))], rel=2e-3)
        assert found.variance_explained == pytest.approx([known / (known + prior)], rel=1e-4)
    # What pulls is the distance to the start in e-folds; what no row tells stays where it was.
    off = fit_pulled(lambda x: np.full(5, x[0]), np.array([3.0, 7.0]), np.full(5, 3.03), pull=0.5)
    assert math.log(off.values[0] / 3.0) == pytest.approx(math.log(1.01) * 5 / 5.25, rel=1e-2)
    assert off.values[1] == pytest.approx(7.0)
    assert off.variance_explained == pytest.approx([500 / 525, 0.0], abs=1e-3)
    begun = fit_pulled(lambda x: x, np.array([1.0]), np.array([2.0]), pull=0.0, begin=np.array([1.9]))
    assert begun.values == pytest.approx([2.0], rel=1e-3)


def run(primitive, ranks=16.0, members=8.0, sizes=(1e6, 1e9), times=(1e-3, 2e-3)):
    group = Group(np.asarray(ranks), (np.asarray(members), np.asarray(ranks)))
    return fabric_fit.FabricRun(
        "x", primitive, group, "nvlink4", None, "auto", np.array(sizes), np.array(times)
    )


def test_constants_that_runs_can_tell():
    ring = {"base_latency_s", "latency_s", "rate_factor", "pipeline_s"}
    tree = {"tree_step_s", "tree_pipeline_s", "tree_rate_factor", "nvls_tree_pipeline_s"}
    inside, outside = ring | {"pipeline_step_s"}, ring | {"simple_step_s", "ll_bandwidth_bytes_per_s"}
    for primitive, network, names in (
        ("all_reduce", False, inside),
        ("all_reduce", True, outside | tree),
        ("reduce_scatter", False, inside | {"copy_bandwidth_bytes_per_s"}),
        ("all_gather", True, outside),
        ("all_to_all", True, outside | {"all_to_all_latency_s", "all_to_all_pipeline_s"}),
        ("send_recv", False, inside | {"send_latency_s", "send_pipeline_s", "send_rate_factor"}),
    ):
        assert {*fabric_fit.free_names([run(primitive)], network=network)} == names, primitive
    assert run("all_reduce").nodes == 2


def test_the_yardstick_of_a_sweep():
    """10 us and 100 GB/s on the wire: found again, whatever share of the bytes crosses it."""
    sizes = np.array([1e3, 1e6, 1e8, 1e9])
    for primitive, passes in (
        ("all_reduce", 15 / 8),
        ("all_gather", 15 / 16),
        ("send_recv", 1.0),
        ("reduce", 1.0),
    ):
        swept = run(primitive, sizes=sizes, times=10e-6 + passes * sizes / 100e9)
        assert fabric_fit.plain_ring(swept) == pytest.approx(swept.time_s, rel=1e-3)
        table = fabric_fit.score([swept, run(primitive)], lambda one: 0.8 * one.time_s)
        assert table["signed"].tolist() == pytest.approx([-0.2] * 6)
        assert table["error"].tolist() == pytest.approx([0.2] * 6)
        # Two points are too few for a yardstick.
        assert table["plain"][:4].max() < 1e-3
        assert table["plain"][4:].isna().all()
        assert (set(table["nodes"]), set(table["network"])) == ({2}, {"nvlink4"})


def test_constants_as_profiles_write_them():
    assert fabric_fit.quantity_text("ll_bandwidth_bytes_per_s", 25.5e9) == "25.5 GB/s"
    assert fabric_fit.quantity_text("latency_s", 1.5e-6) == "1.5 us"
    assert fabric_fit.quantity_text("rate_factor", 0.97) == "0.97"
    fabric = Fabric(rate_factor=0.9, pipeline_s=2e-6, copy_bandwidth_bytes_per_s=900e9)
    block = fabric_fit.fabric_block(fabric, basis="measured", source="x", points=12, residual=0.01234)
    assert block == {
        "basis": "measured",
        "source": "x",
        "points": 12,
        "residual": 0.012,
        "rate_factor": 0.9,
        "copy_bandwidth": "900 GB/s",
        "pipeline": "2 us",
    }
    assert list(fabric_fit.fabric_block(Fabric(), basis="estimated", source="y")) == ["basis", "source"]


def test_base_latencies_stand_on_the_tier_and_the_rest_in_its_constants():
    tier = load_link("nvlink4", size=8)
    put = fabric_fit.with_constants(
        tier, {"latency_s": 3e-6, "base_latency_s": 7e-6, "pipeline_s": 1e-6}, Fabric()
    )
    assert (put.latency_s, put.base_latency_s) == (3e-6, 7e-6)
    assert put.fabric == Fabric(pipeline_s=1e-6)
