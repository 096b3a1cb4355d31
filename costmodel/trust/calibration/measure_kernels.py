"""torch and a device to measure on, the clock, and sweeps of products, fused attention and copies, a row a kernel."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import platform
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from costmodel.base.errors import CostModelError
from costmodel.base.version import install_command

Row = dict[str, Any]

# (n, k) of the products of a layer, from 1,024 to 16,384 wide, full and split over tensor-parallel ranks.
WEIGHTS = (
    (1024, 4096),
    (4096, 1024),
    (4096, 4096),
    (6144, 4096),
    (4096, 14336),
    (14336, 4096),
    (2048, 8192),
    (8192, 8192),
    (8192, 3584),
    (28672, 8192),
    (16384, 2048),
    (16384, 16384),
)
TOKENS = (256, 1024, 2048, 4096, 8192, 16384)
SMALL_WEIGHTS = ((256, 256), (512, 256), (256, 1024), (512, 512))
SMALL_TOKENS = (64, 128, 256, 512)
ATTENTION = tuple(
    (16384 // seq, seq, heads, dim)
    for seq, (heads, dim) in itertools.product((512, 1024, 2048, 4096, 8192, 16384), ((32, 64), (16, 128)))
)
SMALL_ATTENTION = tuple((2, seq, 2, dim) for seq, dim in itertools.product((64, 128, 256), (32, 64)))
COPY_BYTES = tuple(2.0**power for power in range(14, 32))


def import_torch() -> Any:
    """Return torch."""
    try:
        import torch
    except ImportError:
        raise CostModelError(f"measuring needs torch: {install_command('measure')}") from None
    return torch


def choose_device(torch: Any, wanted: str) -> str:
    """Return ``cuda`` where there is a GPU, or what was asked for."""
    if wanted == "cpu":
        return "cpu"
    if not torch.cuda.is_available():
        raise CostModelError(
            "this machine has no GPU that torch can see; --device cpu tries the path on the processor"
        )
    return "cuda"


def headline(torch: Any, device: str) -> str:
    """Return what was measured with what, for the head of a file."""
    name, library = platform.machine() or "cpu", "cpu"
    if device == "cuda":
        name = torch.cuda.get_device_name()
        library = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"HIP {torch.version.hip}"
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    return f"# {name}; torch {torch.__version__}, {library}; {today}; measured by costmodel measure"


def wait(torch: Any, device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def seconds_of(torch: Any, run: Callable[[], Any], *, budget_s: float = 0.2) -> float:
    """Return the median time of `run` among others like it, whose launches the host hides; caches are not flushed."""
    from torch.utils.benchmark import Timer

    timer = Timer("run()", globals={"run": run}, num_threads=torch.get_num_threads())
    return float(timer.blocked_autorange(min_run_time=budget_s).median)


def sweep(
    torch: Any, what: str, device: str, dtypes: Sequence[str], *, small: bool
) -> tuple[int, Iterator[Row]]:
    """Return how many rows a sweep of ``matmul``, ``attention`` or ``memory`` has at most, and the rows as they are timed."""
    timed = partial(seconds_of, torch, budget_s=0.02 if small else 0.2)
    if what == "matmul":
        tokens, weights = (SMALL_TOKENS, SMALL_WEIGHTS) if small else (TOKENS, WEIGHTS)
        products = [(dtype, m, n, k) for dtype, (n, k), m in itertools.product(dtypes, weights, tokens)]
        return len(products), (_matmul(torch, device, timed, *product) for product in products)
    if what == "attention":
        kernels = ("flash2", "cudnn") if device == "cuda" else ("flash2",)
        shapes = itertools.product(kernels, SMALL_ATTENTION if small else ATTENTION, (False, True))
        calls = list(shapes)
        rows = (_attention(torch, device, timed, *call) for call in calls)
        return 2 * len(calls), itertools.chain.from_iterable(rows)
    sizes = COPY_BYTES[:10] if small else COPY_BYTES
    return len(sizes), (_copy(torch, device, timed, size) for size in sizes)


def _matmul(
    torch: Any, device: str, timed: Callable[[Callable[[], Any]], float], dtype: str, m: int, n: int, k: int
) -> Row:
    """Time one product; fp8 is the scaled product with one scale a tensor."""
    types = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32, "fp32": torch.float32}
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    if dtype == "fp8":
        left = torch.randn(m, k, device=device).to(torch.float8_e4m3fn)
        right = torch.randn(n, k, device=device).to(torch.float8_e4m3fn).t()
        one = torch.ones((), device=device)
        run = partial(torch._scaled_mm, left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    else:
        left = torch.randn(m, k, device=device, dtype=types[dtype])
        right = torch.randn(n, k, device=device, dtype=types[dtype]).t()
        run = partial(torch.matmul, left, right)
    time_s = timed(run)
    shape = {"op": "matmul", "dtype": dtype, "m": m, "n": n, "k": k}
    return {**shape, "time_us": time_s * 1e6, "tflops": 2.0 * m * n * k / time_s / 1e12}


_BACKENDS = {"flash2": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}


def _attention(
    torch: Any,
    device: str,
    timed: Callable[[Callable[[], Any]], float],
    kernel: str,
    sizes: tuple[int, int, int, int],
    causal: bool,
) -> list[Row]:
    """Time forward and backward of the fused attention that torch offers; none where this GPU or build has no such kernel."""
    batch, seq, heads, dim = sizes
    scope: Any = contextlib.nullcontext()
    if device == "cuda":
        scope = torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, _BACKENDS[kernel]))
    inputs = [
        torch.randn(batch, heads, seq, dim, device=device, dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    ]
    attend = partial(torch.nn.functional.scaled_dot_product_attention, *inputs, is_causal=causal)
    try:
        with scope:
            out = attend()
            grad = torch.randn_like(out)
            with torch.no_grad():
                forward = timed(attend)
            backward = timed(partial(torch.autograd.grad, out, inputs, grad, retain_graph=True))
    except RuntimeError:
        return []
    shape = {"batch": batch, "seq_len": seq, "heads": heads, "kv_heads": heads, "head_dim": dim}
    return [
        {"op": op, "kernel": kernel, **shape, "causal": causal, "time_us": time_s * 1e6}
        for op, time_s in (("attention_fwd", forward), ("attention_bwd", backward))
    ]


def _copy(torch: Any, device: str, timed: Callable[[Callable[[], Any]], float], size: float) -> Row:
    """Time a copy on the device: each byte is read once and written once."""
    source = torch.empty(int(size) // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return {"op": "copy", "bytes": size, "time_us": timed(partial(target.copy_, source)) * 1e6}
