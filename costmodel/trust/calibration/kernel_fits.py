"""Fits of the kernel constants to measured rows, and their error on rows left out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.describe.hardware.kernels import FP8_ATTENTION, PEAK_KEY
from costmodel.physics.kernels.roofline import (
    AttentionConstants,
    AttentionPassConstants,
    MatmulConstants,
    attention_time,
    matmul_time,
)
from costmodel.trust.calibration.fitting import Bound, Parameters, fit, thirds
from costmodel.trust.calibration.kernel_csv import INPUT_BYTES, AttentionRows, MatmulRows

Array = NDArray[np.float64]

SEEDS = (0, 1)
"""Random deals into thirds that the held-out error is averaged over."""

TILES = ((128.0, 128.0), (128.0, 256.0), (256.0, 128.0), (128.0, 192.0))
"""Output tiles tried for each accelerator and dtype."""


class Device(NamedTuple):
    """What the fits need of an accelerator's data sheet."""

    name: str
    generation: str
    num_sms: float
    peak_flops_per_s: dict[str, float]
    memory_bandwidth_bytes_per_s: float
    tdp_w: float = 0.0


class MatmulFit(NamedTuple):
    """Fitted constants of one accelerator and dtype."""

    constants: MatmulConstants
    points: int
    held_out_error: float
    sources: NDArray[np.str_]
    power_limit: str = ""
    """Where `sustained_loss` comes from, if not from these rows."""


class AttentionFit(NamedTuple):
    """Fitted constants of one accelerator and attention kernel."""

    constants: AttentionConstants
    points: int
    held_out_error: float
    sources: NDArray[np.str_]


def matmul_bounds(rows: MatmulRows, generation: str) -> dict[str, Bound]:
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


def matmul_predictor(
    rows: MatmulRows, device: Device, dtype: str, known: Parameters
) -> Callable[[Parameters], Array]:
    """Return the function of the free constants that prices `rows`; the rest are `known`."""

    def predict(parameters: Parameters) -> Array:
        return predict_matmul(rows, device, dtype, MatmulConstants(**{**known, **parameters}))

    return predict


def predict_matmul(rows: MatmulRows, device: Device, dtype: str, constants: MatmulConstants) -> Array:
    """Price measured products with `constants`."""
    return matmul_time(
        rows.m,
        rows.n,
        rows.k,
        groups=rows.groups,
        constants=constants,
        peak_flops_per_s=device.peak_flops_per_s[PEAK_KEY[dtype]],
        memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s,
        input_bytes=INPUT_BYTES[dtype],
        output_bytes=rows.output_bytes,
        accumulate=rows.accumulate,
        sustained=rows.sustained,
        alone=True,
        cast=rows.cast,
    ).value


def _fit_over_tiles(rows: MatmulRows, device: Device, dtype: str, known: Parameters) -> MatmulConstants:
    """Fit with every tile and keep the best."""
    best: tuple[float, MatmulConstants] | None = None
    bounds = {k: b for k, b in matmul_bounds(rows, device.generation).items() if k not in known}
    tiles = ((256.0, 128.0),) if device.generation == "ampere" else TILES
    if "tile_m" in known:
        tiles = ((known["tile_m"], known["tile_n"]),)
    # Where a power limit has been seen with few rows, the size at which it bites is not told.
    given = {"sustained_flops": 1e11, **known}
    for tile_m, tile_n in tiles:
        fixed = {**given, "num_sms": device.num_sms, "tile_m": tile_m, "tile_n": tile_n}
        parameters, cost = fit(matmul_predictor(rows, device, dtype, fixed), rows.time_s, bounds)
        if best is None or cost < best[0]:
            best = (cost, MatmulConstants(**{**fixed, **parameters}))
    assert best is not None
    return best[1]


def fit_matmul(rows: MatmulRows, device: Device, dtype: str, known: Parameters | None = None) -> MatmulFit:
    """Fit one accelerator and dtype; the error is the mean over rows that the fit did not see."""
    given = known or {}
    errors = []
    for seed in SEEDS:
        part = thirds(len(rows.m), seed)
        for left_out in range(3):
            train, test = rows.take(part != left_out), rows.take(part == left_out)
            constants = _fit_over_tiles(train, device, dtype, given)
            errors.append(np.abs(predict_matmul(test, device, dtype, constants) / test.time_s - 1.0))
    constants = _fit_over_tiles(rows, device, dtype, given)
    return MatmulFit(constants, len(rows.m), float(np.concatenate(errors).mean()), rows.sources)


ATTENTION_TILES = (64.0, 128.0, 256.0)
"""Rows of a tile tried for each attention kernel."""

PASSES = ("forward", "backward")


def attention_bounds(rows: AttentionRows, pass_index: int) -> dict[str, Bound]:
    """Return the free constants of one pass, prefixed with its name."""
    here = rows.take(rows.passes != 1 - pass_index)
    bounds = {
        "ramp_seq": Bound(1.0, 600.0, 60.0, log=True),
        "wave_fraction": Bound(0.0, 1.0, 0.5),
    }
    if 0.0 < here.causal.mean() < 1.0:
        bounds["causal_fraction"] = Bound(0.6, 1.05, 0.92)
    if pass_index == 1:
        bounds["side_bytes_per_element"] = Bound(0.1, 40.0, 10.0, log=True)
    bounds |= {f"peak_{dim:g}": Bound(0.05, 1.0, 0.5) for dim in attention_dims(here)}
    if here.host_timed.any():
        bounds["host_s"] = Bound(1e-6, 2e-4, 5e-5, log=True)
    return {f"{PASSES[pass_index]}.{name}": bound for name, bound in bounds.items()}


def attention_dims(rows: AttentionRows) -> tuple[float, ...]:
    """Return the measured head dimensions (mean of key and value)."""
    return tuple(float(d) for d in np.unique(0.5 * (rows.qk_head_dim + rows.v_head_dim)))


def pass_constants(
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
    rows: AttentionRows,
    device: Device,
    constants: AttentionConstants,
    host_s: tuple[float, float] = (0.0, 0.0),
    kernel: str = "cudnn",
) -> Array:
    """Price measured attention kernels, with a host cost a pass where the host was timed too."""
    low = kernel == FP8_ATTENTION
    time_s = np.zeros(len(rows.batch))
    for d_qk, d_v in sorted(set(zip(rows.qk_head_dim, rows.v_head_dim, strict=True))):
        here = (rows.qk_head_dim == d_qk) & (rows.v_head_dim == d_v)
        part = rows.take(here)
        reach = np.where(part.window > 0.0, np.minimum(part.window, part.seq_len), part.seq_len)
        half = np.where(part.causal > 0.0, 0.5 * reach / part.seq_len, 0.0)
        windowed = part.window > 0.0
        keys = reach * (1.0 - half)
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
                peak_flops_per_s=device.peak_flops_per_s["fp8" if low else "bf16"],
                memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s,
                keys_per_query=unwindowed if low and backward else keys,
                windowed=np.where(low and backward, False, windowed),
            ).value
            for backward in (0, 1)
        ]
        time_s[here] = np.where(part.passes != 1.0, both[0], 0.0) + np.where(part.passes != 0.0, both[1], 0.0)
    return time_s


def fit_attention(
    rows: AttentionRows, device: Device, backward_ratio: float | None = None, kernel: str = "cudnn"
) -> AttentionFit:
    """Fit one accelerator and kernel; the error is the mean over rows that the fit did not see.

    With a `backward_ratio` (backward over forward share of the peak) both passes share their
    constants: needed where only their sum was timed.
    """
    bounds = attention_bounds(rows, 0)
    if backward_ratio is None:
        bounds |= attention_bounds(rows, 1)

    def build(parameters: Parameters, tile_rows: float) -> AttentionConstants:
        forward = pass_constants(parameters, "forward", device.num_sms, tile_rows)
        if backward_ratio is None:
            return AttentionConstants(forward, pass_constants(parameters, "backward", device.num_sms, 128.0))
        ratio = backward_ratio
        return AttentionConstants(
            forward, pass_constants(parameters, "forward", device.num_sms, 128.0, ratio)
        )

    def price(part: AttentionRows, parameters: Parameters, tile_rows: float) -> Array:
        host_s = (parameters.get("forward.host_s", 0.0), parameters.get("backward.host_s", 0.0))
        return predict_attention(part, device, build(parameters, tile_rows), host_s, kernel)

    def one_fit(part: AttentionRows) -> tuple[Parameters, float]:
        best: tuple[float, Parameters, float] | None = None
        for tile_rows in ATTENTION_TILES:
            predictor = partial(price, part, tile_rows=tile_rows)
            parameters, cost = fit(predictor, part.time_s, bounds)
            if best is None or cost < best[0]:
                best = (cost, parameters, tile_rows)
        assert best is not None
        return best[1:]

    errors = []
    for seed in SEEDS:
        deal = thirds(len(rows.batch), seed)
        for left_out in range(3):
            test = rows.take(deal == left_out)
            predicted = price(test, *one_fit(rows.take(deal != left_out)))
            errors.append(np.abs(predicted / test.time_s - 1.0))
    error = float(np.concatenate(errors).mean())
    return AttentionFit(build(*one_fit(rows)), len(rows.batch), error, rows.sources)
