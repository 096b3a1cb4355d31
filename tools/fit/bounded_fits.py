"""Kernel constants from nothing but rows: every constant between bounds, every tile tried.

What `costmodel.trust.calibration.kernel_fits` moves for one user's accelerator starts from what this found for the
shipped ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.describe.hardware.cluster import Accelerator
from costmodel.physics.kernels.roofline import AttentionConstants, AttentionPassConstants, MatmulConstants
from costmodel.trust.calibration import kernel_fits
from costmodel.trust.calibration.fitting import minimise
from costmodel.trust.calibration.kernel_csv import Rows
from costmodel.trust.calibration.kernel_fits import (
    PASSES,
    KernelFit,
    fit_held_out,
    predict_attention,
    predict_matmul,
)

Array = NDArray[np.float64]
Parameters = dict[str, float]

BACKWARD_RATIO = 0.875
"""Backward over forward share of the peak where only both together were timed (FlashAttention-2, H100)."""
TILES = ((128.0, 128.0), (128.0, 256.0), (256.0, 128.0), (128.0, 192.0))
"""Output tiles tried for each accelerator and dtype."""
ATTENTION_TILES = (64.0, 128.0, 256.0)
"""Rows of a tile tried for each attention kernel."""


class Bound(NamedTuple):
    """Range of one parameter and where its fit starts; `log` moves it by factors."""

    low: float
    high: float
    start: float
    log: bool = False


def fit(
    predict: Callable[[Parameters], Array],
    measured: Array,
    bounds: Mapping[str, Bound],
    *,
    outlier_scale: float = 0.06,
) -> tuple[Parameters, float]:
    """Fit the parameters in `bounds` so that `predict` gives `measured`; return them and the cost."""
    names, ranges = list(bounds), list(bounds.values())
    by_factors = np.asarray([bound.log for bound in ranges])

    def moved(values: Sequence[float]) -> Array:
        x = np.asarray(values, dtype=np.float64)
        return np.log(x, out=x.copy(), where=by_factors)

    def parameters(x: Array) -> Parameters:
        values = np.exp(x, out=x.copy(), where=by_factors)
        return {name: float(value) for name, value in zip(names, values, strict=True)}

    def residual(x: Array) -> Array:
        return np.asarray(np.log(predict(parameters(x)) / measured) / outlier_scale)

    low, high = moved([bound.low for bound in ranges]), moved([bound.high for bound in ranges])
    found = minimise(residual, moved([bound.start for bound in ranges]), low, high)
    return parameters(found.x), 2.0 * float(found.cost) / len(measured)


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
        rows, find, lambda part, found: predict_matmul(part, accelerator, dtype, found), kernel_fits.SEEDS
    )


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
        forward, backward = found.host_s
        host_s = np.where(part.passes != 1.0, forward, 0.0) + np.where(part.passes != 0.0, backward, 0.0)
        return predict_attention(part, accelerator, found.constants, kernel) + part.host_timed * host_s

    def find(part: Rows) -> _Attention:
        best: tuple[float, _Attention] | None = None
        for tile_rows in ATTENTION_TILES:
            made = partial(build, tile_rows=tile_rows)
            parameters, cost = fit(lambda p, made=made: price(part, made(p)), part.time_s, bounds)  # type: ignore[misc]
            if best is None or cost < best[0]:
                best = (cost, made(parameters))
        assert best is not None
        return best[1]

    found = fit_held_out(rows, find, price, kernel_fits.SEEDS)
    return KernelFit(found.constants.constants, found.points, found.held_out_error)
