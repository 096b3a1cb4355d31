"""Kernel constants fitted to measured rows: their error on rows left out, and the blocks of a profile that hold them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodel.describe.hardware.cluster import Accelerator
from costmodel.describe.hardware.kernels import FP8_ATTENTION, PEAK_KEY
from costmodel.physics.kernels.roofline import (
    AttentionConstants,
    AttentionPassConstants,
    MatmulConstants,
    MemoryConstants,
    attention_time,
    matmul_time,
)
from costmodel.trust.calibration.fitting import Bound, Parameters, fit, thirds
from costmodel.trust.calibration.kernel_csv import INPUT_BYTES, Rows, Timings

Array = NDArray[np.float64]
Block = dict[str, Any]
C = TypeVar("C")

MIN_POINTS = 9
MAX_ERROR = 0.15
SEEDS = (0, 1)
"""Random deals into thirds that the held-out error is averaged over."""
BACKWARD_RATIO = 0.875
"""Backward over forward share of the peak where only both together were timed (FlashAttention-2, H100)."""
TILES = ((128.0, 128.0), (128.0, 256.0), (256.0, 128.0), (128.0, 192.0))
"""Output tiles tried for each accelerator and dtype."""
ATTENTION_TILES = (64.0, 128.0, 256.0)
"""Rows of a tile tried for each attention kernel."""
PASSES = ("forward", "backward")


class KernelFit(NamedTuple, Generic[C]):
    """Constants fitted to rows of one accelerator and kernel, and their mean error on rows that the fit did not see."""

    constants: C
    points: int
    held_out_error: float


def fit_held_out(
    rows: Rows, find: Callable[[Rows], C], price: Callable[[Rows, C], Array], seeds: tuple[int, ...]
) -> KernelFit[C]:
    """Fit all rows, and score the fit of each two thirds of them on the third."""
    errors = []
    for seed in seeds:
        part = thirds(len(rows), seed)
        for left_out in range(3):
            test = rows[part == left_out]
            found = find(rows[part != left_out])
            errors.append(np.abs(price(test, found) / test.time_s - 1.0))
    return KernelFit(find(rows), len(rows), float(np.concatenate(errors).mean()))


# --- matrix products ---


def matmul_bounds(rows: Rows, generation: str) -> dict[str, Bound]:
    """Return which constants the rows can tell, and between which bounds."""
    bounds = {
        "fixed_s": Bound(1e-7, 3e-5, 2.5e-6, log=True),
        "peak_fraction": Bound(0.1, 1.0, 0.75),
        "memory_fraction": Bound(0.2, 0.95, 0.8),
        "wave_fraction": Bound(0.0, 1.0, 0.3),
        "epilogue_fraction": Bound(0.0, 1.5, 0.1),
        "ramp_k": Bound(1.0, 4000.0, 60.0, log=True),
    }
    if generation == "ampere":
        # cuBLAS of that time picks between few tiles and splits only deep products; later libraries
        # hide the choice: there the two extra constants do not lower the held-out error.
        bounds["split_k"] = Bound(200.0, 2e4, 3000.0, log=True)
        bounds["small_tile_fraction"] = Bound(0.3, 1.0, 0.7)
    if rows.sustained.any():
        bounds["sustained_loss"] = Bound(0.0, 0.5, 0.15)
        if rows.sustained.sum() >= 30:
            bounds["sustained_flops"] = Bound(1e10, 5e12, 3e11, log=True)
    if (rows.groups > 1.0).any():
        bounds["fixed_per_group_s"] = Bound(1e-8, 2e-5, 1e-6, log=True)
    if rows.cast.any():
        bounds["cast_bytes_per_element"] = Bound(0.1, 30.0, 5.0, log=True)
        bounds["cast_fixed_s"] = Bound(1e-7, 3e-5, 5e-6, log=True)
    return bounds


def predict_matmul(rows: Rows, accelerator: Accelerator, dtype: str, constants: MatmulConstants) -> Array:
    """Price measured products with `constants`."""
    return matmul_time(
        rows.m,
        rows.n,
        rows.k,
        groups=rows.groups,
        constants=constants,
        peak_flops_per_s=accelerator.peak_flops_per_s[PEAK_KEY[dtype]],
        memory_bandwidth_bytes_per_s=accelerator.memory_bandwidth_bytes_per_s,
        input_bytes=INPUT_BYTES[dtype],
        output_bytes=rows.output_bytes,
        accumulate=rows.accumulate,
        sustained=rows.sustained,
        alone=True,
        cast=rows.cast,
    ).value


def fit_matmul(
    rows: Rows, accelerator: Accelerator, dtype: str, known: Parameters | None = None
) -> KernelFit[MatmulConstants]:
    """Fit one accelerator and dtype, with every tile; constants that are `known` stay."""
    given = known or {}
    tiles = ((256.0, 128.0),) if accelerator.generation == "ampere" else TILES
    if "tile_m" in given:
        tiles = ((given["tile_m"], given["tile_n"]),)

    def find(part: Rows) -> MatmulConstants:
        bounds = {k: b for k, b in matmul_bounds(part, accelerator.generation).items() if k not in given}
        best: tuple[float, MatmulConstants] | None = None
        for tile_m, tile_n in tiles:
            # Where a power limit has been seen with few rows, the size at which it bites is not told.
            fixed = {"sustained_flops": 1e11, **given, "num_sms": accelerator.num_sms}
            fixed |= {"tile_m": tile_m, "tile_n": tile_n}

            def price(parameters: Parameters, fixed: Parameters = fixed) -> Array:
                return predict_matmul(part, accelerator, dtype, MatmulConstants(**{**fixed, **parameters}))

            parameters, cost = fit(price, part.time_s, bounds)
            if best is None or cost < best[0]:
                best = (cost, MatmulConstants(**{**fixed, **parameters}))
        assert best is not None
        return best[1]

    return fit_held_out(
        rows, find, lambda part, found: predict_matmul(part, accelerator, dtype, found), SEEDS
    )


# --- attention ---


def attention_bounds(rows: Rows, pass_index: int) -> dict[str, Bound]:
    """Return the free constants of one pass, prefixed with its name."""
    here = rows[rows.passes != 1 - pass_index]
    bounds = {
        "ramp_seq": Bound(1.0, 600.0, 60.0, log=True),
        "wave_fraction": Bound(0.0, 1.0, 0.5),
    }
    if 0.0 < here.causal.mean() < 1.0:
        bounds["causal_fraction"] = Bound(0.6, 1.05, 0.92)
    if pass_index == 1:
        bounds["side_bytes_per_element"] = Bound(0.1, 40.0, 10.0, log=True)
    # By head dimension, the mean of key and value.
    dims = np.unique(0.5 * (here.qk_head_dim + here.v_head_dim))
    bounds |= {f"peak_{dim:g}": Bound(0.05, 1.0, 0.5) for dim in dims.tolist()}
    if here.host_timed.any():
        bounds["host_s"] = Bound(1e-6, 2e-4, 5e-5, log=True)
    return {f"{PASSES[pass_index]}.{name}": bound for name, bound in bounds.items()}


def _pass_constants(
    parameters: Parameters, name: str, num_sms: float, tile_rows: float, ratio: float = 1.0
) -> AttentionPassConstants:
    """Build the constants of one pass from the fit's parameters, its peaks times `ratio`."""
    p = {key.split(".")[1]: value for key, value in parameters.items() if key.startswith(f"{name}.")}
    dims = sorted(float(key.removeprefix("peak_")) for key in p if key.startswith("peak_"))
    return AttentionPassConstants(
        num_sms=num_sms,
        fixed_s=5e-6,
        memory_fraction=0.8,
        head_dims=tuple(dims),
        peak_fractions=tuple(min(1.0, p[f"peak_{dim:g}"] * ratio) for dim in dims),
        causal_fraction=p.get("causal_fraction", 1.0),
        ramp_seq=p["ramp_seq"],
        tile_rows=tile_rows,
        wave_fraction=p["wave_fraction"],
        side_bytes_per_element=p.get("side_bytes_per_element", 0.0),
    )


def predict_attention(
    rows: Rows,
    accelerator: Accelerator,
    constants: AttentionConstants,
    host_s: tuple[float, float] = (0.0, 0.0),
    kernel: str = "cudnn",
) -> Array:
    """Price measured attention kernels, with a host cost a pass where the host was timed too."""
    low = kernel == FP8_ATTENTION
    time_s = np.zeros(len(rows))
    for d_qk, d_v in sorted(set(zip(rows.qk_head_dim, rows.v_head_dim, strict=True))):
        here = (rows.qk_head_dim == d_qk) & (rows.v_head_dim == d_v)
        part = rows[here]
        windowed = part.window > 0.0
        reach = np.where(windowed, np.minimum(part.window, part.seq_len), part.seq_len)
        keys = reach * (1.0 - np.where(part.causal > 0.0, 0.5 * reach / part.seq_len, 0.0))
        # The 8-bit backward pass takes no window, as `step.compute` prices it.
        unwindowed = part.seq_len * (1.0 - 0.5 * part.causal)
        both = [
            part.host_timed * host_s[backward]
            + attention_time(
                part.batch,
                part.seq_len,
                part.seq_len,
                part.heads,
                kv_heads=part.kv_heads,
                qk_head_dim=d_qk,
                v_head_dim=d_v,
                causal=part.causal,
                backward=bool(backward),
                constants=constants,
                peak_flops_per_s=accelerator.peak_flops_per_s["fp8" if low else "bf16"],
                memory_bandwidth_bytes_per_s=accelerator.memory_bandwidth_bytes_per_s,
                keys_per_query=unwindowed if low and backward else keys,
                windowed=np.where(low and backward, False, windowed),
            ).value
            for backward in (0, 1)
        ]
        time_s[here] = np.where(part.passes != 1.0, both[0], 0.0) + np.where(part.passes != 0.0, both[1], 0.0)
    return time_s


class _Attention(NamedTuple):
    """Constants of a kernel, and the seconds of the host in each pass that were timed with it."""

    constants: AttentionConstants
    host_s: tuple[float, float]


def fit_attention(
    rows: Rows, accelerator: Accelerator, kernel: str = "cudnn"
) -> KernelFit[AttentionConstants]:
    """Fit one accelerator and kernel, with every tile."""
    bounds, only_both = attention_bounds(rows, 0), bool((rows.passes == 2.0).all())
    if not only_both:
        bounds |= attention_bounds(rows, 1)

    def build(parameters: Parameters, tile_rows: float) -> _Attention:
        forward = _pass_constants(parameters, "forward", accelerator.num_sms, tile_rows)
        name, ratio = ("forward", BACKWARD_RATIO) if only_both else ("backward", 1.0)
        backward = _pass_constants(parameters, name, accelerator.num_sms, 128.0, ratio)
        host_s = (parameters.get("forward.host_s", 0.0), parameters.get("backward.host_s", 0.0))
        return _Attention(AttentionConstants(forward, backward), host_s)

    def price(part: Rows, found: _Attention) -> Array:
        return predict_attention(part, accelerator, found.constants, found.host_s, kernel)

    def find(part: Rows) -> _Attention:
        best: tuple[float, _Attention] | None = None
        for tile_rows in ATTENTION_TILES:
            made = partial(build, tile_rows=tile_rows)
            parameters, cost = fit(lambda p, made=made: price(part, made(p)), part.time_s, bounds)  # type: ignore[misc]
            if best is None or cost < best[0]:
                best = (cost, made(parameters))
        assert best is not None
        return best[1]

    found = fit_held_out(rows, find, price, SEEDS)
    return KernelFit(found.constants.constants, found.points, found.held_out_error)


# --- memory-bound kernels ---


def predict_memory(rows: Rows, accelerator: Accelerator, constants: MemoryConstants) -> Array:
    """Price copies and the like: a start, and bytes at a share of the bandwidth."""
    rate = constants.bandwidth_fraction * accelerator.memory_bandwidth_bytes_per_s
    return np.asarray(constants.fixed_s + rows.size_bytes / rate)


def fit_memory(rows: Rows, accelerator: Accelerator) -> KernelFit[MemoryConstants]:
    """Fit start and share of the bandwidth of memory-bound kernels."""
    bounds = {"fixed_s": Bound(1e-7, 1e-4, 2e-6, log=True), "bandwidth_fraction": Bound(0.05, 1.0, 0.85)}

    def find(part: Rows) -> MemoryConstants:
        def price(parameters: Parameters) -> Array:
            return predict_memory(part, accelerator, MemoryConstants(**parameters))

        return MemoryConstants(**fit(price, part.time_s, bounds)[0])

    return fit_held_out(rows, find, lambda part, found: predict_memory(part, accelerator, found), SEEDS)


# --- a user's own accelerator ---


class KernelResult(NamedTuple):
    """One fitted kernel: what it is, its error before and after, and its block of the profile."""

    section: str
    name: str
    points: int
    error_before: float
    held_out_error: float
    block: Mapping[str, Any]


def fit_kernels(
    timings: Timings, accelerator: Accelerator, source: str, *, max_error: float = MAX_ERROR
) -> tuple[list[KernelResult], list[str]]:
    """Fit every dtype and kernel that has rows; return the fits and why some should not be used."""
    kernels = accelerator.kernels
    found: list[KernelResult] = []
    named = {f"{op} {dtype}": rows for (op, dtype), rows in timings.matmul.items()}
    named |= {f"attention {name}": rows for name, rows in timings.attention.items()}
    if timings.memory is not None:
        named["memory"] = timings.memory
    problems = [
        f"{name}: {len(rows)} rows; expected at least {MIN_POINTS}"
        for name, rows in named.items()
        if len(rows) < MIN_POINTS
    ]
    if problems:
        return found, problems

    def add(
        section: str, name: str, rows: Rows, old: C | None, price: Callable[[C], Array], fitted: KernelFit[C]
    ) -> None:
        before = np.nan if old is None else float(np.mean(np.abs(price(old) / rows.time_s - 1.0)))
        error = fitted.held_out_error
        found.append(KernelResult(section, name, fitted.points, before, error, kernel_block(fitted, source)))
        if error > max_error:
            problems.append(
                f"{section} {name}: rows left out are missed by {error:.0%} on average, "
                f"more than {max_error:.0%} (--max-error)"
            )

    for (op, dtype), rows in sorted(timings.matmul.items()):
        old = None if kernels is None else getattr(kernels, op).get(dtype)
        known: dict[str, float] = {}
        if old is not None and not rows.sustained.any():
            # A power limit that the rows do not show stays as it was.
            known = {"sustained_loss": old.sustained_loss, "sustained_flops": old.sustained_flops}
        price = partial(predict_matmul, rows, accelerator, dtype)
        add(op, dtype, rows, old, price, fit_matmul(rows, accelerator, dtype, known))
    for kernel, rows in sorted(timings.attention.items()):
        timed = set(rows.passes.tolist())
        if 2.0 not in timed and len(timed) < 2:
            problems.append(
                f"attention {kernel}: expected attention_fwd and attention_bwd, or attention_fwd_bwd"
            )
            continue
        shipped = None if kernels is None else kernels.attention.get(kernel)
        attend = partial(predict_attention, rows, accelerator)
        add("attention", kernel, rows, shipped, attend, fit_attention(rows, accelerator))
    if timings.memory is not None:
        copy = partial(predict_memory, timings.memory, accelerator)
        was = None if kernels is None else kernels.memory
        add("memory", "", timings.memory, was, copy, fit_memory(timings.memory, accelerator))
    return found, problems


# --- blocks of a profile ---


def kernel_block(found: KernelFit[Any], source: str) -> Block:
    """Return a fit as the ``kernels:`` block of a profile has it."""
    head: Block = {
        "basis": "measured",
        "source": source,
        "points": found.points,
        "held_out_error": round(found.held_out_error, 3),
    }
    constants = found.constants
    if isinstance(constants, AttentionConstants):
        return {name: head | constants_block(getattr(constants, name)) for name in PASSES}
    return head | constants_block(constants)


def constants_block(c: MatmulConstants | AttentionPassConstants | MemoryConstants) -> Block:
    """Write constants under their keys in a profile, in as many digits as the fit supports; what is zero is left out."""
    values: dict[str, Any] = c._asdict()
    if isinstance(c, MatmulConstants):
        values |= {"tile": [c.tile_m, c.tile_n], "peak_fraction": min(0.98, c.peak_fraction)}
        values["sustained_flops"] = f"{c.sustained_flops / 1e9:.4g} GFLOP" if c.sustained_loss else ""
        values["fixed_per_group_s"] *= c.fixed_per_group_s > 1e-7
    if isinstance(c, AttentionPassConstants):
        peaks = sorted(zip(c.head_dims, c.peak_fractions, strict=True))
        values["peak_fractions"] = {round(dim): _rounded(min(0.95, value)) for dim, value in peaks}
        values["side_bytes_per_element"] *= c.side_bytes_per_element > 0.2
    block: Block = {}
    for name, value in values.items():
        if name.endswith("_s"):
            value = f"{value * 1e6:.4g} us" if value else ""
        elif isinstance(value, float):
            value = _rounded(value)
        if value and name not in ("num_sms", "tile_m", "tile_n", "head_dims"):
            block[name.removesuffix("_s")] = value
    return block


def _rounded(value: float) -> float:
    return float(f"{round(value, 4):.3g}")
