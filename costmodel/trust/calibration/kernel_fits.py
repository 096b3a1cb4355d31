"""Kernel constants of a profile moved towards measured rows, their error on rows left out, and the blocks that hold them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodel.describe.hardware.cluster import Accelerator
from costmodel.describe.hardware.kernels import FP8_ATTENTION, PEAK_KEY, KernelConstants
from costmodel.physics.kernels.roofline import (
    AttentionConstants,
    AttentionPassConstants,
    MatmulConstants,
    MemoryConstants,
    attention_time,
    matmul_time,
)
from costmodel.trust.calibration.fitting import fit_pulled
from costmodel.trust.calibration.kernel_csv import INPUT_BYTES, Rows, Timings

Array = NDArray[np.float64]
Block = dict[str, Any]
C = TypeVar("C")

MIN_POINTS = 9
MAX_ERROR = 0.15
SEEDS = (0, 1)  # Random deals into thirds that the held-out error is averaged over
PULL = 0.05  # A constant a factor e off the profile's counts as one row that is 5 % off. [-]
OUTLIER_SCALE = 0.06  # Error of a row from which it counts less than its square. [-]
MOST = {
    "peak_fraction": 1.0,
    "memory_fraction": 0.95,
    "wave_fraction": 1.0,
    "sustained_loss": 0.5,
    "bandwidth_fraction": 1.0,
    "causal_fraction": 1.05,
}
"""Largest values of constants that are shares. [-]"""
FITTED = (
    *("fixed_s", "peak_fraction", "memory_fraction", "wave_fraction", "epilogue_fraction", "ramp_k"),
    *("split_k", "small_tile_fraction", "fixed_per_group_s", "sustained_loss", "sustained_flops"),
)
"""Constants of a product that rows may move."""
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
        part = np.random.default_rng(seed).permutation(len(rows)) % 3
        for left_out in range(3):
            test = rows[part == left_out]
            found = find(rows[part != left_out])
            errors.append(np.abs(price(test, found) / test.time_s - 1.0))
    return KernelFit(find(rows), len(rows), float(np.concatenate(errors).mean()))


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


def predict_attention(
    rows: Rows, accelerator: Accelerator, constants: AttentionConstants, kernel: str = "cudnn"
) -> Array:
    """Price measured attention kernels."""
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
            attention_time(
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


def predict_memory(rows: Rows, accelerator: Accelerator, constants: MemoryConstants) -> Array:
    """Price copies and the like: a start, and bytes at a share of the bandwidth."""
    rate = constants.bandwidth_fraction * accelerator.memory_bandwidth_bytes_per_s
    return np.asarray(constants.fixed_s + rows.size_bytes / rate)


def _moved(
    rows: Rows,
    start: Mapping[str, float],
    build: Callable[[Mapping[str, float]], C],
    price: Callable[[Rows, C], Array],
) -> C:
    """Return the constants that `build` makes of named numbers, fitted to rows from where the profile has them."""
    most = np.array([MOST.get(name.rpartition(".")[2], np.inf) for name in start])

    def made(values: Array) -> C:
        return build(dict(zip(start, np.minimum(values, most).tolist(), strict=True)))

    begin = np.array([*start.values()])
    pulled = partial(fit_pulled, pull=PULL, outlier_scale=OUTLIER_SCALE)
    return made(pulled(lambda values: price(rows, made(values)), begin, rows.time_s).values)


def fit_matmul(
    rows: Rows, start: MatmulConstants, price: Callable[[Rows, MatmulConstants], Array]
) -> MatmulConstants:
    """Fit products; what no row shows, such as a power limit in bursts, and what the profile lacks stay as they are."""
    free = {name: float(getattr(start, name)) for name in FITTED if getattr(start, name) > 0}
    return _moved(rows, free, lambda values: start._replace(**values), price)


def fit_attention(
    rows: Rows, start: AttentionConstants, price: Callable[[Rows, AttentionConstants], Array]
) -> AttentionConstants:
    """Fit both passes of an attention kernel, with a share of the peak for each head dimension that was measured."""
    dims = np.unique(0.5 * (rows.qk_head_dim + rows.v_head_dim))
    names = ["ramp_seq", "wave_fraction", "side_bytes_per_element"]
    if 0.0 < rows.causal.mean() < 1.0:
        names.append("causal_fraction")
    free: dict[str, float] = {}
    for name in PASSES:
        known: AttentionPassConstants = getattr(start, name)
        free |= {f"{name}.{each}": getattr(known, each) for each in names if getattr(known, each) > 0}
        peaks = np.interp(np.log(dims), np.log(known.head_dims), known.peak_fractions)
        free |= {f"{name}.{dim:g}.peak_fraction": float(peak) for dim, peak in zip(dims, peaks, strict=True)}

    def build(values: Mapping[str, float]) -> AttentionConstants:
        made = []
        for name in PASSES:
            peaks = tuple(values[f"{name}.{dim:g}.peak_fraction"] for dim in dims)
            own = {each: values[f"{name}.{each}"] for each in names if f"{name}.{each}" in values}
            known = getattr(start, name)._replace(head_dims=tuple(dims.tolist()), peak_fractions=peaks, **own)
            made.append(known)
        return AttentionConstants(*made)

    return _moved(rows, free, build, price)


def fit_memory(
    rows: Rows, start: MemoryConstants, price: Callable[[Rows, MemoryConstants], Array]
) -> MemoryConstants:
    """Fit start and share of the bandwidth of memory-bound kernels."""
    return _moved(rows, start._asdict(), lambda values: MemoryConstants(**values), price)


class KernelResult(NamedTuple):
    """One fitted kernel: what it is, its error before and after, and its block of the profile."""

    section: str
    name: str
    points: int
    error_before: float
    held_out_error: float
    block: Mapping[str, Any]


class _Case(NamedTuple):
    """Rows of one kernel, the constants that a profile has for it, and what prices and fits them."""

    section: str
    name: str
    rows: Rows
    start: Any
    price: Callable[[Rows, Any], Array]
    fit: Callable[[Rows, Any, Callable[[Rows, Any], Array]], Any]


def _cases(timings: Timings, accelerator: Accelerator, kernels: KernelConstants) -> Iterator[_Case]:
    """Yield what was timed; a dtype or kernel that the profile lacks starts from the first that it has."""
    for (op, dtype), rows in sorted(timings.matmul.items()):
        known = getattr(kernels, op)

        def product(part: Rows, found: MatmulConstants, dtype: str = dtype) -> Array:
            return predict_matmul(part, accelerator, dtype, found)

        yield _Case(op, dtype, rows, known.get(dtype) or next(iter(known.values())), product, fit_matmul)

    for kernel, rows in sorted(timings.attention.items()):

        def attention(part: Rows, found: AttentionConstants, kernel: str = kernel) -> Array:
            return predict_attention(part, accelerator, found, kernel)

        start = kernels.attention.get(kernel) or next(iter(kernels.attention.values()))
        yield _Case("attention", kernel, rows, start, attention, fit_attention)
    if timings.memory is not None:

        def copy(part: Rows, found: MemoryConstants) -> Array:
            return predict_memory(part, accelerator, found)

        yield _Case("memory", "", timings.memory, kernels.memory, copy, fit_memory)


def fit_kernels(
    timings: Timings, accelerator: Accelerator, source: str, *, max_error: float = MAX_ERROR
) -> tuple[list[KernelResult], list[str]]:
    """Fit every dtype and kernel that has rows; return the fits and why some should not be used."""
    if accelerator.kernels is None:
        return [], [f"{accelerator.name}: kernels: expected constants that a fit starts from; none there"]
    cases = list(_cases(timings, accelerator, accelerator.kernels))
    problems = [
        f"{case.section} {case.name}".strip() + f": {len(case.rows)} rows; expected at least {MIN_POINTS}"
        for case in cases
        if len(case.rows) < MIN_POINTS
    ]
    if problems:
        return [], problems
    found: list[KernelResult] = []
    for section, name, rows, start, price, fit in cases:
        timed = set(rows.passes.tolist()) if section == "attention" else {2.0}
        if 2.0 not in timed and len(timed) < 2:
            expected = "expected attention_fwd and attention_bwd, or attention_fwd_bwd"
            problems.append(f"attention {name}: {expected}")
            continue
        before = float(np.mean(np.abs(price(rows, start) / rows.time_s - 1.0)))
        fitted = fit_held_out(rows, lambda part: fit(part, start, price), price, SEEDS)  # noqa: B023 - called here
        error = fitted.held_out_error
        found.append(KernelResult(section, name, fitted.points, before, error, kernel_block(fitted, source)))
        if error > max_error:
            problems.append(
                f"{section} {name}: rows left out are missed by {error:.0%} on average, "
                f"more than {max_error:.0%} (--max-error)"
            )
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
