"""Robust least squares for calibration: on the logarithm of predicted over measured.

The loss keeps outliers from ruling; constants stay where they were unless the rows say otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.errors import CostModelError
from costmodel.base.version import install_command

Array = NDArray[np.float64]


def minimise(residual: Callable[[Array], Array], start: Array, low: ArrayLike, high: ArrayLike) -> Any:
    """Minimise the soft-L1 loss 2(sqrt(1 + r^2) - 1) of the residuals between bounds."""
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise CostModelError(f"fitting constants needs SciPy: {install_command('fit')}") from None
    return least_squares(residual, start, bounds=(low, high), loss="soft_l1", x_scale="jac", ftol=1e-7)


class PulledFit(NamedTuple):
    """Positive constants fitted with a pull towards where they started."""

    values: Array  # The constants
    spread: Array  # Standard error of each, relative; that of the pull where no row tells the constant
    variance_explained: Array  # Share of what is known of each constant that comes from the rows, 0 to 1
    cost: float  # What was minimised: fits of the same rows and pulls compare by it


def fit_pulled(
    predict: Callable[[Array], Array],
    start: Array,
    measured: Array,
    *,
    pull: ArrayLike = 0.3,
    weight: ArrayLike = 1.0,
    outlier_scale: float = 0.1,
    begin: Array | None = None,
) -> PulledFit:
    """Fit positive constants to positive measurements on logarithms, pulled towards `start`, from there or from `begin`.

    A constant off by a factor e costs as much as one row of weight 1 that is off by a factor ``exp(pull)``.
    """
    x0 = np.log(start)
    pulls = np.broadcast_to(np.asarray(pull, dtype=np.float64), x0.shape)
    weights = np.broadcast_to(np.asarray(weight, dtype=np.float64), measured.shape)

    def residual(x: Array) -> Array:
        rows = weights * np.log(predict(np.exp(x)) / measured)
        return np.asarray(np.concatenate([rows, pulls * (x - x0)]) / outlier_scale)

    found = minimise(residual, x0 if begin is None else np.log(begin), -np.inf, np.inf)
    # The curvature of the loss, to which the rows and the pull both contribute.
    prior = np.diag((pulls / outlier_scale) ** 2 + 1e-12)
    covariance = np.linalg.inv(found.jac[: len(measured)].T @ found.jac[: len(measured)] + prior)
    r = found.fun[: len(measured)]
    variance = float(np.sum(r * r / np.sqrt(1.0 + r * r))) / max(len(measured) - len(x0), 1)
    explained = 1.0 - np.clip(np.diag(covariance) * np.diag(prior), 0.0, 1.0)
    return PulledFit(np.exp(found.x), np.sqrt(np.diag(covariance) * variance), explained, float(found.cost))
