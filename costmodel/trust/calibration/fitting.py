"""Small robust least squares for calibration: bounded parameters, NumPy only, few dozen rows.

Every fit is on the logarithm of predicted over measured, with weights that keep outliers from
ruling. `fit` has named parameters between bounds and moves an unbounded image of each (logarithmic
where the bounds span decades); `fit_pulled` has positive constants that stay where they were unless
the rows say otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

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


class Minimum(NamedTuple):
    """Where `minimise` ended: position, residuals, their derivatives there, and the mean loss."""

    x: Array
    residuals: Array
    jacobian: Array
    loss: float


def minimise(residual: Callable[[Array], Array], start: Array, *, iterations: int = 80) -> Minimum:
    """Minimise the mean soft-L1 loss 2(sqrt(1 + r^2) - 1) of residuals by Levenberg-Marquardt."""

    def cost(r: Array) -> float:
        return float(np.mean(2.0 * (np.sqrt(1.0 + r * r) - 1.0)))

    def derivatives(x: Array, r: Array) -> Array:
        return np.stack([(residual(x + 1e-4 * e) - r) / 1e-4 for e in np.eye(len(x))], axis=1)

    x, r, damping = start.copy(), residual(start), 1e-2
    best, jacobian = cost(r), derivatives(start, r)
    for _ in range(iterations):
        weight = 1.0 / np.sqrt(1.0 + r * r)
        normal = jacobian.T @ (weight[:, None] * jacobian)
        gradient = jacobian.T @ (weight * r)
        for _ in range(8):
            scale = np.diag(np.diag(normal) * damping + 1e-9)
            move = np.clip(np.linalg.solve(normal + scale, -gradient), -2.0, 2.0)
            trial = residual(x + move)
            if cost(trial) < best:
                break
            damping *= 4.0
        else:
            break
        improvement = best - cost(trial)
        x, r, best = x + move, trial, cost(trial)
        jacobian = derivatives(x, r)
        damping = max(damping / 6.0, 1e-9)
        if improvement < 1e-7 * max(best, 1e-9):
            break
    return Minimum(x, r, jacobian, best)


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
    start = np.array([_to_unbounded(bounds[name].start, bounds[name]) for name in names])

    def parameters(z: Array) -> Parameters:
        return {name: _to_bounded(x, bounds[name]) for name, x in zip(names, z, strict=True)}

    def residual(z: Array) -> Array:
        return np.asarray(np.log(predict(parameters(z)) / measured) / outlier_scale)

    found = minimise(residual, start, iterations=iterations)
    return parameters(found.x), found.loss


class PulledFit(NamedTuple):
    """Positive constants fitted with a pull towards where they started.

    Attributes
    ----------
    values : Array
        The constants.
    spread : Array
        Standard error of each, relative; that of the pull where no row tells the constant.
    told : Array
        Share of what is known of each constant that comes from the rows, 0 to 1.
    """

    values: Array
    spread: Array
    told: Array


def fit_pulled(
    predict: Callable[[Array], Array],
    start: Array,
    measured: Array,
    *,
    pull: ArrayLike = 0.3,
    weight: ArrayLike = 1.0,
    outlier_scale: float = 0.1,
) -> PulledFit:
    """Fit positive constants to positive measurements on logarithms, pulled towards `start`.

    A constant off by a factor e costs as much as one row of weight 1 that is off by a factor
    ``exp(pull)``, so that what no row tells stays where it was.
    """
    x0 = np.log(start)
    pulls = np.broadcast_to(np.asarray(pull, dtype=np.float64), x0.shape)
    weights = np.broadcast_to(np.asarray(weight, dtype=np.float64), measured.shape)

    def residual(x: Array) -> Array:
        rows = weights * np.log(predict(np.exp(x)) / measured)
        return np.asarray(np.concatenate([rows, pulls * (x - x0)]) / outlier_scale)

    found = minimise(residual, x0, iterations=200)
    jacobian, r = found.jacobian[: len(measured)], found.residuals[: len(measured)]
    softened = (1.0 / np.sqrt(1.0 + r * r))[:, None]
    prior = np.diag((pulls / outlier_scale) ** 2 + 1e-12)
    covariance = np.linalg.inv(jacobian.T @ (softened * jacobian) + prior)
    freedom = max(len(measured) - len(x0), 1)
    variance = float(np.sum(softened[:, 0] * r * r)) / freedom
    told = 1.0 - np.clip(np.diag(covariance) * np.diag(prior), 0.0, 1.0)
    return PulledFit(np.exp(found.x), np.sqrt(np.diag(covariance) * variance), told)


def thirds(rows: int, seed: int) -> NDArray[np.int64]:
    """Deal `rows` into three parts at random, the same way every time."""
    return np.asarray(np.random.default_rng(seed).permutation(rows) % 3)
