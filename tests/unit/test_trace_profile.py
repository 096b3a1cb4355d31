"""Profilers' traces: read as they are, classed by name, measured exactly, laid beside the bill."""

import gzip
import json
import re
import sqlite3
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from famous_jobs import JOBS
from hypothesis import given
from hypothesis import strategies as st
from many_jobs import batches
from trace_files import (
    ADD,
    ATTENTION,
    ATTENTION_BACK,
    GATHER,
    GEMM,
    annotation,
    kernel,
    launch,
    nsight,
    step_events,
    write_trace,
)

import costmodel as cm
from costmodel.cli import main
from costmodel.describe.jobs.fields import FIELD
from costmodel.describe.site import load_site
from costmodel.describe.switch_table import SWITCHES
from costmodel.trust.profiles import chrome_trace
from costmodel.trust.profiles.activities import alone_ns, union
from costmodel.trust.profiles.against_bill import GROUPS, find_window, group_of_line, merged
from costmodel.trust.profiles.chrome_trace import nanoseconds
from costmodel.trust.profiles.classes import FAMILIES, family_of, layout_of, pass_of_range
from costmodel.trust.profiles.profile import profile, read_recording

US = 1e-6
SMALL = {
    "model": "llama3-8b",
    "cluster": "dgx-h100-ndr",
    "gpus": 8,
    "layout": "tp1 pp1",
    "zero_stage": 3,
    "global_batch": 8,
    "seq_len": 8192,
    "recipe": "torchtitan",
}

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=12)


def covered(rows):
    return {tick for start, length in rows for tick in range(start, start + length)}


def made(rows):
    array = np.array(rows, dtype=np.int64).reshape(-1, 2)
    return union(array[:, 0], array[:, 0] + array[:, 1])


@given(spans, spans, st.integers(-3, 80))
def test_unions_are_those_of_every_tick(one, other, time):
    first, second = made(one), made(other)
    assert first.length() == len(covered(one))
    assert alone_ns(first, second) == len(covered(one) - covered(other))
    assert (
        first.gaps().sum()
        == (max(covered(one)) + 1 - min(covered(one)) if covered(one) else 0) - first.length()
    )
    assert (first.start[1:] > first.end[:-1]).all()
    assert first.until(np.array([time]))[0] == len([tick for tick in covered(one) if tick < time])


@given(st.integers(-(10**15), 2 * 10**15), st.integers(0, 999))
def test_times_are_whole_nanoseconds(micro, nano):
    sign = -1 if micro < 0 else 1
    assert nanoseconds(f"{micro}.{nano:03}") == micro * 1000 + sign * nano
    assert nanoseconds(micro) == micro * 1000
    assert nanoseconds("1.5e3") == 1_500_000


@pytest.fixture
def overlapped(tmp_path):
    """Compute 0-50 and 80-100, another kernel beside it 40-60, a gather 30-90, a copy 95-110 and a memset in it. [us]"""
    events = [
        kernel(GEMM.format("tn"), 1000, 50),
        kernel(ADD, 1040, 20, stream=13),
        kernel(GATHER, 1030, 60, stream=21),
        kernel(GEMM.format("tn"), 1080, 20),
        kernel("Memcpy DtoD", 1095, 15, work="gpu_memcpy"),
        kernel("Memset (Device)", 1105, 3, work="gpu_memset"),
        kernel("my_own_kernel", 1120, 5),
    ]
    return write_trace(tmp_path / "trace.json", events)


def test_what_is_exposed_idle_and_beside(overlapped):
    found = profile(overlapped)
    assert (found.count, found.busy_s) == (5, pytest.approx(155 * US, abs=1e-12))
    assert found.gpu == "NVIDIA H100"
    assert found.window_s == pytest.approx(125 * US, abs=1e-12)
    assert found.idle_s == pytest.approx(10 * US, abs=1e-12)
    assert found.gaps_s == pytest.approx([10 * US], abs=1e-12)
    assert found.communication_s == pytest.approx(60 * US, abs=1e-12)
    # 60-80: the gather alone.
    assert found.exposed_communication_s == pytest.approx(20 * US, abs=1e-12)
    assert found.steps[0].exposed_communication_s == pytest.approx(20 * US, abs=1e-12)
    classes = {
        one.name: (one.count, round(one.busy_s / US, 6), round(one.exposed_s / US, 6))
        for one in found.classes
    }
    assert classes == {
        "all_gather": (1, 60.0, 20.0),
        "matmul": (2, 70.0, 60.0),
        "elementwise": (1, 20.0, 10.0),
        "unknown": (1, 5.0, 5.0),
    }
    assert [(one.name, one.count) for one in found.copies] == [("memcpy", 1), ("memset", 1)]
    # 95-100 a product computes; the rest of the copy is bare.
    assert found.copies[0].exposed_s == pytest.approx(10 * US, abs=1e-12)
    streams = {one.stream: one for one in found.streams}
    assert streams[7].busy_s == pytest.approx((50 + 30 + 5) * US, abs=1e-12)
    assert streams[21].overlap_s == pytest.approx({7: 30 * US, 13: 20 * US}, abs=1e-12)
    assert [(one.family, one.does) for one in found.families if one.does == "unknown"] == [
        ("my_own_kernel", "unknown")
    ]


def test_a_trace_is_the_same_in_every_form_and_piece(tmp_path, monkeypatch):
    events = [*step_events(200, 1), annotation("µ – ranges", 0, 5)]
    nested = {"a": [1, {"b": "}]"}]}
    whole = profile(write_trace(tmp_path / "whole.json", events, zipped=True, nested=nested)).to_dict()
    array = json.dumps(events, indent=1, ensure_ascii=False)
    forms = (
        json.dumps({"traceEvents": events, "distributedInfo": {"rank": 0}}, ensure_ascii=False),
        array,
        array.rstrip("]\n") + ",\n",
    )
    path = tmp_path / "pieces.json"
    for text, chunk in product(forms, (1, 7, 64, 4096)):
        monkeypatch.setattr(chrome_trace, "_CHUNK", chunk)
        path.write_text(text, encoding="utf-8")
        assert {**profile(path).to_dict(), "file": "", "gpu": ""} == {**whole, "file": "", "gpu": ""}, chunk


def test_decimals_of_long_times_are_kept(tmp_path):
    """A float of 1740461679479712.1 us is a quarter of a microsecond off: three kernels that touch would overlap."""
    start = 1740461679479712
    text = ",".join(
        json.dumps(kernel(ADD, "TS", "DUR")).replace('"TS"', f"{start}.{at:03}").replace('"DUR"', "0.111")
        for at in (0, 111, 222)
    )
    (tmp_path / "t.json").write_text(f'{{"traceEvents": [{text}]}}')
    found = profile(tmp_path / "t.json")
    assert (found.idle_s, found.window_s, found.busy_s) == (0.0, pytest.approx(333e-9), pytest.approx(333e-9))
    # A trace that is one step begins with its first kernel, not in 1970.
    (step,) = found.steps
    assert (step.start_s, step.time_s, step.idle_s) == (0.0, pytest.approx(333e-9), 0.0)


def test_steps_by_ranges_hold_what_was_issued_in_them(tmp_path):
    """A kernel that runs late belongs to the step that issued it."""
    events = [
        annotation("ProfilerStep#3", 0, 100),
        annotation("ProfilerStep#4", 100, 100),
        annotation("inner step", 40, 20),
        launch(1, 50),
        launch(2, 99),
        launch(3, 120),
        kernel(ADD, 60, 20, call=1),
        kernel(ADD, 110, 30, call=2),
        kernel(ADD, 150, 40, call=3),
        kernel(ADD, 300, 10, call=99),
    ]
    found = profile(write_trace(tmp_path / "t.json", events))
    assert found.steps_from == "ranges"
    rows = [
        (one.name, one.count, round(one.start_s / US), round(one.time_s / US), round(one.idle_s / US))
        for one in found.steps
    ]
    assert rows == [("ProfilerStep#3", 2, 0, 90, 40), ("ProfilerStep#4", 1, 90, 40, 0)]
    assert [one.name for one in profile(tmp_path / "t.json", step_range="inner").steps] == ["inner step"]
    empty = write_trace(tmp_path / "e.json", [annotation("inner", 500, 9), kernel(ADD, 0, 1)])
    with pytest.raises(cm.CostModelError, match="nothing was issued in the ranges"):
        profile(empty, step_range="inner")
    with pytest.raises(cm.CostModelError, match="begins with 'outer'"):
        profile(tmp_path / "t.json", step_range="outer")


def test_steps_by_repetition_are_no_layers(tmp_path):
    """Four steps of five layers each, without any range: the optimizer recurs four times."""
    events = [
        row
        for step in range(4)
        for row in step_events(5000 + 3000 * step, 100 * step, layers=5)
        if row["cat"] == "kernel"
    ]
    found = profile(write_trace(tmp_path / "four.json", events))
    assert found.steps_from == "repetition"
    assert [round(one.start_s / US) for one in found.steps] == [0, 3000, 6000, 9000]
    assert {one.count for one in found.steps} == {33}
    one = profile(
        write_trace(
            tmp_path / "one.json", [row for row in step_events(5000, 1, layers=40) if row["cat"] == "kernel"]
        )
    )
    assert one.steps_from == ""
    assert [step.name for step in one.steps] == ["whole trace"]
    # Eight kernels that recur are a step, seven a loop.
    for size, steps_from in ((8, "repetition"), (7, "")):
        rows = [kernel(f"k{at % size}", 10 * at, 5) for at in range(3 * size)]
        found = profile(write_trace(tmp_path / "loop.json", rows))
        assert (found.steps_from, len(found.steps)) == (steps_from, 3 if steps_from else 1)


def test_passes_of_ranges_and_of_the_engine_of_gradients(tmp_path):
    found = profile(write_trace(tmp_path / "t.json", step_events(200, 1)))
    counts = {one.name: one.count for one in found.classes}
    assert counts["matmul.forward"] == counts["matmul.backward"] == counts["matmul.backward_weight"] == 2
    engine = annotation("autograd::engine::evaluate_function: MmBackward0", 100, 100, "cpu_op", thread=2)
    events = [
        engine,
        launch(1, 50, thread=1),
        launch(2, 150, thread=2),
        launch(3, 160, thread=2),
        launch(4, 150, thread=1),
        *(
            kernel(GEMM.format(layout), 300 + 10 * call, 10, call=call)
            for call, layout in enumerate(("tn", "nn", "nt", "nt"), start=1)
        ),
    ]
    found = profile(write_trace(tmp_path / "engine.json", events))
    counts = {one.name: one.count for one in found.classes}
    # What another thread issues meanwhile is no gradient.
    assert counts == {"matmul.forward": 2, "matmul.backward": 1, "matmul.backward_weight": 1}


def test_gpus_of_one_trace_are_apart(tmp_path):
    events = [kernel(ADD, 0, 10, device=0), kernel(ADD, 5, 10, device=1), kernel(ADD, 20, 10, device=1)]
    path = write_trace(tmp_path / "t.json", events)
    found = profile(path)
    assert (found.device, found.devices, found.count) == (1, (0, 1), 2)
    assert profile(path, device=0).count == 1
    with pytest.raises(cm.CostModelError, match="--device: 7 is not in the trace; it has 0, 1"):
        profile(path, device=7)


def test_nsight_database(tmp_path):
    us = 1000
    kernels = [
        (GEMM.format("tn"), 100 * us, 150 * us, 7, 1),
        (GATHER, 130 * us, 190 * us, 21, 2),
        (GEMM.format("nt"), 180 * us, 200 * us, 7, 3),
    ]
    calls = [(10 * us, 1), (11 * us, 2), (60 * us, 3)]
    ranges = [
        ("iteration 7", 0, 50 * us),
        ("iteration 8", 50 * us, 90 * us),
        ("backward_step", 55 * us, 80 * us),
        ("mark", 1, None),
    ]
    found = profile(
        nsight(
            tmp_path / "r.sqlite", kernels, calls=calls, ranges=ranges, copies=[(195 * us, 210 * us, 7, 1)]
        )
    )
    assert (found.kind, found.gpu, found.count) == ("Nsight Systems", "NVIDIA H100 80GB HBM3", 3)
    assert found.exposed_communication_s == pytest.approx(30 * US, abs=1e-12)
    assert {one.name: one.count for one in found.classes} == {
        "all_gather": 1,
        "matmul": 1,
        "matmul.backward_weight": 1,
    }
    assert {one.name: one.count for one in found.copies} == {"memcpy": 1}
    assert [(one.name, one.count) for one in found.steps] == [("iteration 7", 2), ("iteration 8", 1)]
    assert list(tmp_path.iterdir()) == [tmp_path / "r.sqlite"]


NAMES = {
    "nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NTN": "matmul",
    "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn": "matmul",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_32x3_nn_align8>(Params)": "matmul",
    "void gemmSN_NN_kernel<float, 128, 2>(cublasGemmSmallNParams)": "matmul",
    "void deep_gemm::sm90_fp8_gemm_1d2d_impl<4096u, (deep_gemm::GemmType)1>(int*)": "experts",
    "void deep_gemm::sm90_fp8_gemm_1d2d_impl<4096u, (deep_gemm::GemmType)0>(int*)": "matmul",
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<int>>>()": "experts",
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128>>(Flash_fwd_params)": "attention",
    "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128>>()": "attention",
    "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_7_64x128x128_4x1x1": "attention",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all_reduce",
    "ncclKernel_ReduceScatter_RING_LL_Sum_bfloat(ncclWorkElem)": "reduce_scatter",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)": "send_recv",
    "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "broadcast",
    "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)": "other_collective",
    "void deep_ep::internode::dispatch<false, 8, false>(int4*)": "dispatch",
    "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(int4*)": "combine",
    "void deep_ep::internode::notify_dispatch<false, 8>(int const*)": "exchange_wait",
    "void deep_ep::intranode::cached_notify_combine<8>(void**)": "exchange_wait",
    "void transformer_engine::normalization::rmsnorm_bwd_finalize_general_kernel<float>()": "norm",
    "void transformer_engine::cast_transpose_fused_kernel<false>(float*)": "cast",
    "void at::native::unrolled_elementwise_kernel<CUDAFunctor_add<float>, memory::LoadWithCast<2>>()": "elementwise",
    "triton_poi_fused_add_mul_silu_5": "elementwise",
    "triton_red_fused__to_copy_mean_rsqrt_3": "elementwise",
    "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctorMaster<float>>(long)": "optimizer",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<3>>()": "optimizer",
    "_permute_kernel": "permute",
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<unsigned int, 2, 64, 64>()": "copy",
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float>()": "softmax_and_loss",
    "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>()": "routing",
    "void at::native::(anonymous namespace)::embedding_backward_feature_kernel<float>()": "embedding",
    "_chunk_scan_fwd_kernel": "mixer",
    "something_else": "unknown",
}


def test_kernels_by_name():
    assert {name: family_of(name).does for name in NAMES} == NAMES
    assert all(family.source and family.pattern for family in FAMILIES)
    assert len({(family.name, family.runs_in) for family in FAMILIES}) == len(FAMILIES)


def test_names_tell_layout_and_pass():
    assert [layout_of(GEMM.format(each)) for each in ("tn", "nn", "nt")] == ["tn", "nn", "nt"]
    assert layout_of(ADD) == ""
    assert family_of(ATTENTION).runs_in == "forward"
    assert family_of(ATTENTION_BACK).runs_in == "backward"
    names = ("mlp(W)", "forward_step", "FusedBackward", "fwd_bwd step", "ProfilerStep#2")
    assert [pass_of_range(name) for name in names] == ["backward_weight", "forward", "", "", ""]


def test_every_line_of_every_bill_has_a_group():
    bills = [cm.estimate(**job).bill for job in JOBS.values()] + [batch.est.bill for batch in batches(300, 5)]
    job = {"cluster": "dgx-h100-ndr", "gpus": 64, "layout": "tp2", "global_batch": 64, "seq_len": 4096}
    others = (
        {"model": "qwen3-next-80b-a3b"},
        {"model": "kimi-linear-48b-a3b"},
        {"model": "deepseek-v3.2", "gpus": 512, "layout": "pp8 ep64", "global_batch": 512},
        {"model": "llama3-8b", "switches": {"offload_optimizer": True, "offload_activations": 0.5}},
        {"model": "llama3-8b", "optimizer": "muon"},
        {
            "model": "llama3-8b",
            "switches": {"stragglers": "normal", "gradient_compression": "powersgd"},
            "zero_stage": 0,
        },
    )
    bills += [cm.estimate(**{**job, **more}).bill for more in others]
    assert all(group_of_line(line) in GROUPS for bill in bills for line in bill.time_lines)


def test_every_class_has_a_group_and_switches_exist():
    classes = {family.does for family in FAMILIES} | {"unknown", "memcpy", "memset"}
    assert classes == {name for group in GROUPS for name in group.classes}
    switches = {*SWITCHES, *FIELD}
    flags = {flag for field in FIELD.values() for flag in field.flags} | {
        "--stragglers",
        "--set",
        "--cuda-graph-trace",
    }
    for group in GROUPS:
        for text in (group.bill_longer, group.trace_longer):
            assert set(re.findall(r"--set (\w+)=", text)) <= switches
            assert set(re.findall(r"--[a-z][\w-]*", text)) <= flags


def test_what_a_trace_cannot_tell_apart_is_laid_together():
    told = ("forward", "backward", "backward_weight")
    apart = merged(
        {(kind, each): 1.0 for kind in ("matmul", "experts", "attention") for each in told}
        | {("dispatch", ""): 1.0}
    )
    assert apart["experts", "backward_weight"] == "experts.backward_weight"
    assert apart["dispatch", ""] == "dispatch"
    # Weight gradients of experts one by one; experts one by one; no passes.
    assert (
        merged({("experts", "forward"): 1.0, ("matmul", "backward_weight"): 1.0})[
            "experts", "backward_weight"
        ]
        == "matmul.backward_weight"
    )
    dense = merged({("matmul", each): 1.0 for each in told})
    assert {dense["experts", each] for each in told} == {f"matmul.{each}" for each in told}
    assert dense["dispatch", ""] == dense["combine", ""] == "point_to_point"
    assert merged({("matmul", ""): 1.0})["matmul", "backward"] == "matmul"
    assert (
        merged({("matmul", "forward"): 1.0, ("matmul", "backward"): 1.0})["matmul", "backward_weight"]
        == "matmul.backward"
    )


def test_beside_a_bill_nothing_is_lost(tmp_path):
    est = cm.estimate(**SMALL)
    # Two steps of all 32 layers.
    events = []
    for step in range(2):
        start = 1000 + 20000 * step
        events += [
            annotation(f"ProfilerStep#{step}", start - 100, 20000),
            *step_events(start, 1000 * step, layers=32),
        ]
    found = profile(write_trace(tmp_path / "t.json", events), est)
    against = found.against_bill
    assert not against.window.scales
    assert sum(one.bill_s for one in against.groups) == pytest.approx(
        sum(float(line.seconds) for line in est.bill.time_lines)
    )
    assert against.bill_step_s == pytest.approx(float(est.step_time_s))
    idle = sum(one.idle_s for one in found.steps)
    assert 2 * sum(one.trace_s for one in against.groups) == pytest.approx(found.busy_s + idle)
    assert 2 * sum(one.trace_count for one in against.groups) == found.count
    assert against.trace_step_s == pytest.approx(found.window_s / 2)
    sizes = [abs(one.difference_s) for one in against.groups]
    assert sizes == sorted(sizes, reverse=True)
    attention = next(one for one in against.groups if one.group == "attention.forward")
    assert attention.trace_s == pytest.approx(32 * 40 * US)
    assert attention.trace_count == attention.bill_count == 32
    assert attention.why == "the trace runs flash3, the bill prices flash2: --set attention_kernel=flash3"
    record = json.loads(json.dumps(found.to_dict()))["against_bill"]
    assert {"line_group", "bill_s", "trace_s", "difference_s", "why"} <= set(record[0])


def test_a_part_of_a_step_meets_as_many_layers(tmp_path):
    est = cm.estimate(**SMALL)
    found = profile(write_trace(tmp_path / "t.json", step_events(1000, 1, layers=4)), est)
    against = found.against_bill
    assert (against.window.layers, against.window.of_layers) == (4, 32)
    layers = [
        line for line in est.bill.time_lines if line.name.split(".")[1] in ("attention", "mlp", "layer")
    ]
    assert against.bill_step_s == pytest.approx(sum(float(line.exposed_seconds) for line in layers) / 8)
    groups = {one.group: one for one in against.groups}
    assert groups["attention.forward"].bill_count == 4
    assert "loss" not in groups
    # The optimizer ran, and the part of the bill has none.
    assert groups["optimizer"].bill_s == 0.0


def test_nine_tenths_of_the_layers_are_a_whole_step():
    """Of 40 layers 35 are a part and 36 all; so is whatever attention cut along the sequence shows."""
    names = ("compute.attention.core.forward", "compute.head.forward", "tp.mlp.forward")
    lines = [SimpleNamespace(name=name, count=40.0) for name in names]
    for seen, sliced, shares in (
        (10.0, False, [0.25, 0.0, 0.25]),
        (35.0, False, [0.875, 0.0, 0.875]),
        (36.0, False, [1.0, 1.0, 1.0]),
        (10.0, True, [1.0, 1.0, 1.0]),
    ):
        window = find_window(lines, {"attention.forward": seen}, sliced=sliced)
        assert [window.share(line) for line in lines] == shares


def test_products_on_two_streams_are_said_to_slow_each_other(tmp_path):
    """Half of the products run beside an addition: their 60 us are 30 us in which nothing else computes."""
    events = [kernel(ATTENTION, 0, 10), kernel(GEMM.format("tn"), 10, 60), kernel(ADD, 20, 30, stream=9)]
    groups = profile(write_trace(tmp_path / "t.json", events), cm.estimate(**SMALL)).against_bill.groups
    why = {one.group: one.why for one in groups}
    assert why["matmul"].endswith("; 50% of it ran beside other kernels that compute, which slows both")
    assert "ran beside" not in why["attention.forward"]


def test_a_profile_teaches_the_factors_of_its_kernels(tmp_path):
    """Each class is one measurement: less of its prior is left the tighter it is seen, nothing else is said."""
    est = cm.estimate(**SMALL)
    bill = {one.group: one.bill_s for one in profile(whole_step(tmp_path, 1.0), est).against_bill.groups}
    scale = 1.1 * bill["attention.forward"] / (32 * 40e-6)
    found = profile(whole_step(tmp_path, scale), est)
    moves = {one.move.name: one for one in found.learnt.measured}
    assert set(moves) == {"attention.hopper", "matmul.hopper.16-bit", "memory_kernels.other"}
    of = {one.group: one for one in found.against_bill.groups}
    for name, kind in (("attention.hopper", "attention"), ("matmul.hopper.16-bit", "matmul")):
        groups = [one for group, one in of.items() if group.startswith(kind)]
        ratio = sum(one.trace_s for one in groups) / sum(one.bill_s for one in groups)
        one = moves[name]
        assert one.seen == pytest.approx(np.log(ratio))
        # By which two releases of a framework differ, and by what the groups differ, each as its seconds.
        share = np.array([group.bill_s for group in groups]) / sum(group.bill_s for group in groups)
        off = np.log([group.trace_s / group.bill_s for group in groups]) - np.log(ratio)
        assert one.scale == pytest.approx(np.sqrt(0.021**2 + (share * off**2).sum() * (share**2).sum()))
        # Between what was known and what was seen, and surer than before.
        low, high = sorted((one.move.prior_center, one.seen))
        assert low < one.move.center < high
        assert 0 < one.move.spread < one.move.prior_spread
    text = next(iter(found.files(tmp_path / "site.yaml").values()))
    (tmp_path / "site.yaml").write_text(text)
    site = load_site(tmp_path / "site.yaml")
    assert float(site.factors["attention.hopper"]) == pytest.approx(
        np.exp(moves["attention.hopper"].move.center), abs=2e-5
    )
    again = profile(whole_step(tmp_path, scale), cm.estimate(**SMALL, site=tmp_path / "site.yaml"))
    # A bill that is multiplied already shows the same.
    seen = {one.move.name: one.seen for one in again.learnt.measured}
    assert seen == pytest.approx({name: one.seen for name, one in moves.items()}, abs=1e-4)
    with pytest.raises(cm.CostModelError, match="nothing to write"):
        profile(whole_step(tmp_path, 1.0)).files("x.yaml")


def whole_step(tmp_path, scale):
    """Write a trace of one step of all 32 layers, times scaled."""
    events = step_events(1000, 1, layers=32)
    for one in events:
        one["ts"], one["dur"] = round(scale * one["ts"], 3), round(scale * one["dur"], 3)
    return write_trace(tmp_path / "step.json", events)


BROKEN = {
    "empty.json": (b"", "is empty"),
    "blank.json": (b" \n ", "is empty"),
    "nothing.json": (b'{"traceEvents": []}', "holds no events"),
    "host.json": (
        json.dumps({"traceEvents": [launch(1, 5)]}).encode(),
        "holds nothing that ran on a GPU (1 events of the host)",
    ),
    "cut.json": (b'{"traceEvents": [{"ph": "X", "cat": "ker', "cut off, or not JSON"),
    "cut.json.gz": (
        gzip.compress(json.dumps({"traceEvents": [kernel(ADD, 0, 1)] * 999}).encode(), mtime=0)[:-20],
        "gzip stream has no end",
    ),
    "bad.json.gz": (b"\x1f\x8b" + b"garbage" * 9, "gzip stream is damaged"),
    "text.json": (b"hello", "is not a trace: expected JSON"),
    "list.json": (b"[1, 2]", "event 1 is not one of a trace"),
    "wrong.json": (
        b'{"traceEvents": [{"ph":"X","cat":"kernel","name":"k","ts":"soon","dur":1,"args":{}}]}',
        "event 1 is not",
    ),
    "unnamed.json": (json.dumps({"traceEvents": [kernel(7, 5, 1)]}).encode(), "its name is 7"),
    "negative.json": (json.dumps({"traceEvents": [kernel(ADD, 5, -1)]}).encode(), "lasts -1 us"),
    "deep.json": (b'{"a": ' + b"[" * 100_000, "cut off, or not JSON"),
    "half.sqlite": (b"SQLite format 3\x00" + b"x" * 500, "cannot be read as an export of Nsight Systems"),
}


def command(*words):
    return main(["observed", "profile", *map(str, words)])


def test_what_is_no_trace_is_one_line(tmp_path, capsys):
    for name, (content, _) in BROKEN.items():
        (tmp_path / name).write_bytes(content)
    sqlite3.connect(tmp_path / "other.sqlite").execute("CREATE TABLE a (b)").connection.close()
    nsight(tmp_path / "none.sqlite", [])
    base = sqlite3.connect(nsight(tmp_path / "old.sqlite", [(ADD, 0, 1, 7, 1)]))
    base.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN streamId TO stream")
    base.close()
    said = {name: message for name, (_, message) in BROKEN.items()}
    said |= {"other.sqlite": "no table StringIds", "old.sqlite": "has no column streamId"}
    said["none.sqlite"] = "holds nothing that ran on a GPU"
    for name, message in said.items():
        assert command(tmp_path / name) == 2
        out, error = capsys.readouterr()
        assert (out, error.count("\n")) == ("", 1), name
        assert message in error


def test_the_command_prints_tables_and_draws(tmp_path, capsys):
    trace = write_trace(tmp_path / "t.json.gz", step_events(1000, 1, layers=4), zipped=True)
    job, site = tmp_path / "job.yaml", tmp_path / "site.yaml"
    job.write_text("\n".join(f"{name}: {value}" for name, value in SMALL.items()))

    def printed(code, *words):
        assert command(trace, *words) == code
        return "".join(capsys.readouterr())

    plain = printed(0, "--job", job)
    assert "4 of 32 passes through a layer against the bill of llama3-8b" in plain
    assert "--set attention_kernel=flash3" in plain
    table = printed(0, "--job", job, "--set", "attention_kernel=flash3", "--format", "csv")
    assert table.startswith("line_group,bill_s,trace_s,difference_s")
    assert "prices" not in table
    assert "give --job JOB.yaml" in printed(2, "--plot", tmp_path / "x.png")
    written = printed(0, "--job", job, "--write", site)
    assert "What the profile says of the model's factors" in written
    assert f"wrote {site}" in written
    assert main(["estimate", str(job), "--site", str(site), "--quiet"]) == 0
    assert "a site file needs a job" in printed(2, "--write", tmp_path / "other.yaml")
    pytest.importorskip("matplotlib")
    picture = tmp_path / "p.png"
    printed(0, "--job", job, "--plot", picture, "--quiet")
    assert picture.read_bytes().startswith(b"\x89PNG")


def device_of(path):
    return {number: found.size for number, found in read_recording(path).devices.items()}


def test_a_kernel_without_a_length_is_refused_and_texts_are_numbers(tmp_path):
    event = kernel(ADD, 10, 30)
    del event["dur"]
    with pytest.raises(cm.CostModelError, match=r"event 1 is not one of a trace .*has no dur"):
        read_recording(write_trace(tmp_path / "t.json", [event]))
    texts = {**event, "ts": "1740461679479712", "dur": "1.5", "tid": "stream 7", "args": {"device": 0}}
    found = read_recording(write_trace(tmp_path / "t.json", [texts])).devices[0]
    assert (found.start_ns[0], found.end_ns[0]) == (1740461679479712000, 1740461679479713500)
    assert found.stream[0] == 7


def test_processes_that_call_their_devices_alike_have_devices_of_their_own(tmp_path):
    events = [{**kernel(ADD, at, 5), "pid": process} for at, process in ((0, 0), (2, 4), (10, 4))]
    assert device_of(write_trace(tmp_path / "t.json", events)) == {0: 1, 1: 2}
    path = nsight(tmp_path / "t.sqlite", [("a", 0, 10, 7, 1), ("b", 5, 15, 7, 2), ("c", 20, 30, 7, 3)])
    base = sqlite3.connect(path)
    base.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = 0x1000000 * 78 WHERE start = 5")
    base.commit()
    base.close()
    assert device_of(path) == {0: 2, 1: 1}


def test_rows_of_nsight_that_have_no_end_are_left_out_and_others_refused(tmp_path):
    for at, (column, value, left) in enumerate(
        (("end", None, 1), ("deviceId", "zero", 0), ("end", -5, 0), ("globalPid", "x", 0))
    ):
        path = nsight(tmp_path / f"{at}.sqlite", [("a", 0, 10, 7, 1), ("b", 15, 25, 7, 2)])
        base = sqlite3.connect(path)
        base.execute(f'UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET "{column}" = ? WHERE start = 15', (value,))
        base.commit()
        base.close()
        if left:
            assert device_of(path) == {0: left}
        else:
            with pytest.raises(cm.CostModelError, match="cannot be read as an export of Nsight Systems"):
                read_recording(path)
