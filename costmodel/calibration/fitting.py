"""Small robust least squares for calibration: bounded parameters, NumPy only, few dozen rows.

A model has named parameters between bounds. The fit moves an unbounded image of each (logarithmic
where the bounds span decades) by Levenberg-Marquardt on the logarithm of predicted over measured,
with weights that keep outliers from ruling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Parameters = dict[str, float]


class Bound(NamedTuple):
    """Range of one parameter and where its fit starts; `log` moves it by factors."""

    low: float
    high: float
    start: float
    log: bool = False


def _to_unbounded(value: float, bound: Bound) -> float:
    """Map a value inside its bounds to the real line."""
    low, high, x = bound.low, bound.high, value
    if bound.log:
        low, high, x = np.log(low), np.log(high), np.log(max(value, bound.low))
    share = np.clip((x - low) / (high - low), 1e-4, 1 - 1e-4)
    return float(np.log(share / (1 - share)))


def _to_bounded(z: float, bound: Bound) -> float:
    """Map a real number back inside the bounds."""
    share = 1.0 / (1.0 + np.exp(-np.clip(z, -30, 30)))
    if bound.log:
        return float(np.exp(np.log(bound.low) + share * (np.log(bound.high) - np.log(bound.low))))
    return float(bound.low + share * (bound.high - bound.low))


def fit(
    predict: Callable[[Parameters], Array],
    measured: Array,
    bounds: Mapping[str, Bound],
    *,
    outlier_scale: float = 0.06,
    iterations: int = 80,
) -> tuple[Parameters, float]:
    """Fit the parameters in `bounds` so that `predict` gives `measured`; return them and the cost.

    The cost is the mean of the soft-L1 loss of the logarithmic error, in units of
    `outlier_scale` squared.
    """
    names = list(bounds)
    z = np.array([_to_unbounded(bounds[name].start, bounds[name]) for name in names])

    def residual(z: Array) -> Array:
        parameters = {name: _to_bounded(x, bounds[name]) for name, x in zip(names, z, strict=True)}
        return np.asarray(np.log(predict(parameters) / measured) / outlier_scale)

    def cost(r: Array) -> float:
        return float(np.mean(2.0 * (np.sqrt(1.0 + r * r) - 1.0)))

    r, damping = residual(z), 1e-2
    best = cost(r)
    for _ in range(iterations):
        step = 1e-4
        jacobian = np.stack([(residual(z + step * e) - r) / step for e in np.eye(len(z))], axis=1)
        weight = 1.0 / np.sqrt(1.0 + r * r)
        normal = jacobian.T @ (weight[:, None] * jacobian)
        gradient = jacobian.T @ (weight * r)
        for _ in range(8):
            scale = np.diag(np.diag(normal) * damping + 1e-9)
            move = np.clip(np.linalg.solve(normal + scale, -gradient), -2.0, 2.0)
            trial = residual(z + move)
            if cost(trial) < best:
                break
            damping *= 4.0
        else:
            break
        improvement = best - cost(trial)
        z, r, best = z + move, trial, cost(trial)
        damping = max(damping / 6.0, 1e-9)
        if improvement < 1e-7 * max(best, 1e-9):
            break
    return {name: _to_bounded(x, bounds[name]) for name, x in zip(names, z, strict=True)}, best


def thirds(rows: int, seed: int) -> NDArray[np.int64]:
    """Deal `rows` into three parts at random, the same way every time."""
    return np.asarray(np.random.default_rng(seed).permutation(rows) % 3)
