"""Sweeps of matrix products, fused attention and memory-bound copies, a row a kernel."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from costmodel.trust.calibration.measure_device import seconds_of

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


def matmul_shapes(*, small: bool) -> list[tuple[int, int, int]]:
    """Return (m, n, k) of the sweep."""
    tokens, weights = (SMALL_TOKENS, SMALL_WEIGHTS) if small else (TOKENS, WEIGHTS)
    return [(m, n, k) for n, k in weights for m in tokens]


def measure_matmul(torch: Any, device: str, dtypes: Sequence[str], *, small: bool) -> Iterator[Row]:
    """Time the products of a sweep at each dtype; fp8 is the scaled product with one scale a tensor."""
    types = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32, "fp32": torch.float32}
    for dtype, (m, n, k) in itertools.product(dtypes, matmul_shapes(small=small)):
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        if dtype == "fp8":
            left = torch.randn(m, k, device=device).to(torch.float8_e4m3fn)
            right = torch.randn(n, k, device=device).to(torch.float8_e4m3fn).t()
            one = torch.ones((), device=device)

            def run(left: Any = left, right: Any = right, one: Any = one) -> Any:
                return torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
        else:
            left = torch.randn(m, k, device=device, dtype=types[dtype])
            right = torch.randn(n, k, device=device, dtype=types[dtype]).t()

            def run(left: Any = left, right: Any = right, one: Any = None) -> Any:
                return torch.matmul(left, right)

        time_s = seconds_of(torch, device, run, budget_s=0.02 if small else 0.2)
        tflops = 2.0 * m * n * k / time_s / 1e12
        yield {
            "op": "matmul",
            "dtype": dtype,
            "m": m,
            "n": n,
            "k": k,
            "time_us": time_s * 1e6,
            "tflops": tflops,
        }


def measure_attention(torch: Any, device: str, *, small: bool) -> Iterator[Row]:
    """Time forward and backward of the fused attention that torch offers, with and without a mask."""
    shapes = SMALL_ATTENTION if small else ATTENTION
    kernels = (
        {"flash2": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"} if device == "cuda" else {"flash2": ""}
    )
    for (kernel, backend), (batch, seq, heads, dim), causal in itertools.product(
        kernels.items(), shapes, (False, True)
    ):
        scope = contextlib.nullcontext()
        if backend:
            scope = torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend))
        try:
            with scope:
                forward, backward = _attention_s(
                    torch, device, (batch, heads, seq, dim), causal, 0.02 if small else 0.2
                )
        except RuntimeError:  # a kernel that this GPU or build does not have
            continue
        shape = {"batch": batch, "seq_len": seq, "heads": heads, "kv_heads": heads, "head_dim": dim}
        for op, time_s in (("attention_fwd", forward), ("attention_bwd", backward)):
            yield {"op": op, "kernel": kernel, **shape, "causal": causal, "time_us": time_s * 1e6}


def _attention_s(
    torch: Any, device: str, shape: tuple[int, ...], causal: bool, budget_s: float
) -> tuple[float, float]:
    """Return seconds of the forward and of the backward pass of one attention."""
    inputs = [torch.randn(*shape, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]

    def attend() -> Any:
        return torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=causal)

    out = attend()
    grad = torch.randn_like(out)
    with torch.no_grad():
        forward = seconds_of(torch, device, attend, budget_s=budget_s)

    def backward() -> Any:
        return torch.autograd.grad(out, inputs, grad, retain_graph=True)

    return forward, seconds_of(torch, device, backward, budget_s=budget_s)


def measure_memory(torch: Any, device: str, *, small: bool) -> Iterator[Row]:
    """Time copies on the device: each byte is read once and written once."""
    for size in COPY_BYTES[:10] if small else COPY_BYTES:
        source = torch.empty(int(size) // 2, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        time_s = seconds_of(torch, device, partial(target.copy_, source), budget_s=0.02 if small else 0.1)
        yield {"op": "copy", "bytes": size, "time_us": time_s * 1e6}


def count_rows(what: str, dtypes: int, device: str, *, small: bool) -> int:
    """Return how many rows a sweep has, for a progress bar."""
    if what == "matmul":
        return dtypes * len(matmul_shapes(small=small))
    if what == "attention":
        return len(SMALL_ATTENTION if small else ATTENTION) * 4 * (2 if device == "cuda" else 1)
    return 10 if small else len(COPY_BYTES)
