"""torch and a device to measure on, or one line about what is missing; and the clock."""

from __future__ import annotations

import datetime
import platform
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from costmodel.base.errors import CostModelError
from costmodel.base.version import install_command


def import_torch() -> Any:
    """Return torch.

    Raises
    ------
    CostModelError
        If it is not installed.
    """
    try:
        import torch
    except ImportError:
        raise CostModelError(f"measuring needs torch: {install_command('measure')}") from None
    return torch


def choose_device(torch: Any, wanted: str) -> str:
    """Return ``cuda`` where there is a GPU, or what was asked for.

    Raises
    ------
    CostModelError
        If no GPU can be seen and the processor was not asked for.
    """
    if wanted == "cpu":
        return "cpu"
    if not torch.cuda.is_available():
        raise CostModelError(
            "this machine has no GPU that torch can see; --device cpu tries the path on the processor"
        )
    return "cuda"


def headline(torch: Any, device: str) -> str:
    """Return what was measured with what, for the head of a file."""
    if device == "cuda":
        name = torch.cuda.get_device_name()
        library = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"HIP {torch.version.hip}"
    else:
        name, library = platform.machine() or "cpu", "cpu"
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    return f"# {name}; torch {torch.__version__}, {library}; {today}; measured by costmodel measure"


def seconds_of(torch: Any, device: str, run: Callable[[], Any], *, budget_s: float = 0.2) -> float:
    """Return the median time of `run` on its own: warmed up, then a few dozen calls.

    On a GPU calls are timed between events, so that the host's launch cost is hidden where calls
    queue up; caches are not flushed.
    """
    run()
    run()
    _wait(torch, device)
    start = time.perf_counter()
    run()
    _wait(torch, device)
    once = max(time.perf_counter() - start, 1e-6)
    count = int(min(max(budget_s / once, 5), 100))
    if device == "cpu":
        times = []
        for _ in range(count):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        return median(times)
    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)
    ]
    for before, after in events:
        before.record()
        run()
        after.record()
    _wait(torch, device)
    return float(median(before.elapsed_time(after) * 1e-3 for before, after in events))


def _wait(torch: Any, device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()
