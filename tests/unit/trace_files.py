"""Traces that tests write themselves, in the forms of the PyTorch profiler and of Nsight Systems."""

import gzip
import json
import sqlite3


def kernel(name, start, length, stream=7, call=None, device=0, work="kernel"):
    """Return one activity of the GPU as Kineto writes it. [us]"""
    about = {"device": device, "stream": stream} | ({"correlation": call} if call is not None else {})
    return {
        "ph": "X",
        "cat": work,
        "name": name,
        "ts": start,
        "dur": length,
        "pid": device,
        "tid": stream,
        "args": about,
    }


def launch(call, time, thread=1):
    """Return the call that issued a kernel. [us]"""
    about = {"correlation": call}
    return {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "ts": time,
        "dur": 1,
        "pid": 9,
        "tid": thread,
        "args": about,
    }


def annotation(name, start, length, category="user_annotation", thread=1):
    """Return a range of the host. [us]"""
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": length, "pid": 9, "tid": thread}


def write_trace(path, events, *, zipped=False, **header):
    """Write a trace as Kineto does."""
    device = {"id": 0, "name": "NVIDIA H100", "numSms": 132}
    text = json.dumps(
        {
            "schemaVersion": 1,
            "deviceProperties": [device],
            **header,
            "traceEvents": events,
            "traceName": "x.json",
        }
    )
    path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    return path


GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_{}_n_tilesize128x128x64_warpgroupsize1x1x1_cublas"
ATTENTION = "void cutlass::device_kernel<flash::FlashAttnFwdSm90<float>>(flash::Params)"
ATTENTION_BACK = "void cutlass::device_kernel<flash::FlashAttnBwdSm90<float>>(flash::Params)"
NORM = "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<float>(Params)"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>(int)"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ADAM = "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>(long)"


def step_events(start, first_call, layers=2):
    """Return the work of one small step of 1,000 us, and the calls that issue it 100 us before. [us]"""
    rows, at = [], start
    for _ in range(layers):
        rows += [(NORM, at, 10, 7), (GEMM.format("tn"), at + 10, 50, 7), (ATTENTION, at + 60, 40, 7)]
        at += 100
    for _ in range(layers):
        rows += [
            (ATTENTION_BACK, at, 80, 7),
            (GEMM.format("nn"), at + 80, 50, 7),
            (GEMM.format("nt"), at + 130, 50, 7),
        ]
        at += 200
    rows += [(GATHER, start + 20, 60, 21), (SCATTER, at - 50, 100, 21), (ADAM, start + 940, 60, 7)]
    forward = annotation("forward_step", start - 100, 100 * layers)
    backward = annotation("backward_step", start - 100 + 100 * layers, 200 * layers)
    kernels = [
        kernel(name, begin, length, stream, first_call + row)
        for row, (name, begin, length, stream) in enumerate(rows)
    ]
    calls = [launch(first_call + row, begin - 100) for row, (_, begin, _, _) in enumerate(rows)]
    return [*kernels, *calls, forward, backward]


def nsight(path, kernels, *, calls=(), ranges=(), copies=(), graphs=()):
    """Write a database with the tables and columns of an export of Nsight Systems, times in ns.

    Parameters
    ----------
    kernels : iterable of (name, start, end, stream, call)
    calls : iterable of (start, call)
    ranges : iterable of (name, start, end)
    copies : iterable of (start, end, stream, kind)
    graphs : iterable of (number, start, end, stream)
    """
    process = 0x1000000 * 77
    base = sqlite3.connect(path)
    base.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
    base.execute("CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT)")
    base.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H100 80GB HBM3')")
    numbers = {}

    def number(text):
        if text not in numbers:
            numbers[text] = len(numbers) + 1
            base.execute("INSERT INTO StringIds VALUES (?, ?)", (numbers[text], text))
        return numbers[text]

    names = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
    common = ", ".join(f"{name} INTEGER" for name in names)
    base.execute(
        f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({common}, demangledName INTEGER, shortName INTEGER)"
    )
    for name, start, end, stream, call in kernels:
        row = (start, end, 0, 1, stream, call, process, number(name), number(name[:10]))
        base.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({','.join('?' * 9)})", row)
    if calls:
        base.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME "
            "(start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER, correlationId INTEGER, "
            "nameId INTEGER, returnValue INTEGER)"
        )
        for start, call in calls:
            row = (start, start + 1000, 0, process + 0x54321, call, number("cudaLaunchKernel"), 0)
            base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,?,?,?,?,?)", row)
    if ranges:
        base.execute(
            "CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER, rangeId INTEGER, "
            "category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, "
            "domainId INTEGER)"
        )
        for index, (name, start, end) in enumerate(ranges):
            # Text in the row or in StringIds: both occur.
            text, given = (name, None) if index % 2 else (None, number(name))
            row = (
                start,
                end,
                59 if end is not None else 34,
                None,
                None,
                None,
                text,
                process + 0x54321,
                None,
                given,
                0,
            )
            base.execute(f"INSERT INTO NVTX_EVENTS VALUES ({','.join('?' * 11)})", row)
    if copies:
        base.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY ({common}, bytes INTEGER, copyKind INTEGER)")
        for start, end, stream, kind in copies:
            row = (start, end, 0, 1, stream, 0, process, 1024, kind)
            base.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES ({','.join('?' * 9)})", row)
    if graphs:
        base.execute(
            f"CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE ({common}, graphId INTEGER, graphExecId INTEGER)"
        )
        for graph, start, end, stream in graphs:
            row = (start, end, 0, 1, stream, 0, process, graph, graph)
            base.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES ({','.join('?' * 9)})", row)
    base.commit()
    base.close()
    return path
