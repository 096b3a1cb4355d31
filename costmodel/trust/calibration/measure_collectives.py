"""Sweeps of collectives through torch.distributed, printed as nccl-tests prints them.

Each rank, started by torchrun, times its own calls, a barrier before each; the slowest rank counts.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from costmodel.base.errors import CostModelError
from costmodel.interop.nccl_tests import PROGRAMS, bus_factor
from costmodel.trust.calibration.measure_kernels import import_torch, wait

COLUMNS = """\
#
#                                                              out-of-place
#       size         count      type   redop    root     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)"""
_PROGRAM_OF = {primitive: program for program, primitive in PROGRAMS.items()}


def under_torchrun() -> bool:
    """Say whether a launcher has started several ranks of this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def sizes_of(low: float, high: float, ranks: int) -> list[int]:
    """Return sizes by factors of two, each a whole number of floats on every rank."""
    unit = 4 * ranks
    sizes: list[int] = []
    size = max(low, float(unit))
    while size <= high:
        whole = int(size) // unit * unit
        if not sizes or whole > sizes[-1]:
            sizes.append(whole)
        size *= 2
    return sizes


def measure_collectives(
    primitives: Sequence[str],
    low: float,
    high: float,
    device: str,
    progress: Callable[[int, int], None] | None = None,
) -> str:
    """Measure collectives of all ranks of the process group; the log is rank 0's, empty elsewhere."""
    torch = import_torch()
    dist = torch.distributed
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        ranks = dist.get_world_size()
        if ranks < 2:
            raise CostModelError("collectives: expected two ranks or more; start with torchrun")
        hosts: list[Any] = [None] * ranks
        name = str(torch.cuda.get_device_name()) if device == "cuda" else "CPU (gloo)"
        dist.all_gather_object(hosts, (os.getpid(), socket.gethostname(), name))
        lines: list[str] = []
        sizes, done = sizes_of(low, high, ranks), 0
        for primitive in primitives:
            lines += _head(torch, primitive, hosts, low, high)
            for size in sizes:
                time_us = _time_s(torch, dist, primitive, size, device) * 1e6
                lines.append(_line(primitive, size, time_us, ranks))
                done += 1
                if progress is not None:
                    progress(done, len(primitives) * len(sizes))
            lines += ["# Out of bounds values : 0 OK", "#"]
        return "\n".join(lines) + "\n" if dist.get_rank() == 0 else ""
    finally:
        dist.destroy_process_group()


def _head(
    torch: Any, primitive: str, hosts: Sequence[tuple[int, str, str]], low: float, high: float
) -> list[str]:
    """Return the lines above a table."""
    lines = [
        f"# Collective test starting: {_PROGRAM_OF[primitive]}_perf",
        f"# nThread 1 nGpus 1 minBytes {low:.0f} maxBytes {high:.0f} step: 2(factor); "
        f"torch {torch.__version__} by costmodel measure",
        "#",
        "# Using devices",
    ]
    seen: dict[str, int] = {}
    for rank, (pid, host, name) in enumerate(hosts):
        index = seen[host] = seen.get(host, -1) + 1
        lines.append(f"#  Rank {rank:2} Group  0 Pid {pid:6} on {host:>10} device {index:2} [0x00] {name}")
    return [*lines, COLUMNS]


def _line(primitive: str, size: int, time_us: float, ranks: int) -> str:
    """Return one line of a table; four decimals, so that fast ones keep their digits."""
    text = f"{time_us:.4f}"
    algbw = size / float(text) / 1e3
    redop = "sum" if "reduce" in primitive else "none"
    root = "0" if primitive in ("broadcast", "reduce") else "-1"
    busbw = algbw * bus_factor(primitive, ranks)
    return (
        f"{size:12} {size // 4:13}     float {redop:>7} {root:>7} {text:>12} {algbw:9.4f} {busbw:9.4f}    N/A"
    )


def _time_s(torch: Any, dist: Any, primitive: str, size: int, device: str) -> float:
    """Time one size: of a few batches of calls the median mean, on the slowest rank."""
    call = _call(torch, dist, primitive, size, device)
    for _ in range(3):
        call()
    batches, count = 5, 10 if size <= 2**20 else 2
    means = []
    for _ in range(batches):
        wait(torch, device)
        dist.barrier()
        start = time.perf_counter()
        for _ in range(count):
            call()
        wait(torch, device)
        means.append((time.perf_counter() - start) / count)
    spent = torch.tensor([median(means)], dtype=torch.float64, device=device)
    dist.all_reduce(spent, op=dist.ReduceOp.MAX)
    return float(spent.item())


def _call(torch: Any, dist: Any, primitive: str, size: int, device: str) -> Callable[[], Any]:
    """Return a call of one collective whose full tensor has `size` bytes."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    full = torch.zeros(size // 4, device=device)
    part = torch.zeros(size // 4 // ranks, device=device)
    match primitive:
        case "all_reduce":
            return lambda: dist.all_reduce(full)
        case "all_gather":
            gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
            return lambda: gather(full, part)
        case "reduce_scatter":
            scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
            return lambda: scatter(part, full)
        case "all_to_all":
            other = torch.zeros_like(full)
            return lambda: dist.all_to_all_single(other, full)
        case "broadcast":
            return lambda: dist.broadcast(full, 0)
        case "reduce":
            return lambda: dist.reduce(full, 0)
        case _:
            received = torch.zeros_like(full)

            def ring() -> None:
                sends = [
                    dist.P2POp(dist.isend, full, (rank + 1) % ranks),
                    dist.P2POp(dist.irecv, received, (rank - 1) % ranks),
                ]
                for work in dist.batch_isend_irecv(sends):
                    work.wait()

            return ring
