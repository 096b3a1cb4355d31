r"""The posterior of a few dozen factors under their priors, from measurements that may be wrong.

Measured logarithms are :math:`y_i = g_i(x) + e_i` with Student's t errors: a row that nothing explains is let go of
instead of bending everything. Priors are independent, normal or Student's t. Iteratively reweighted Gauss-Newton: the
model is made linear where the iteration stands, t distributions are normal ones with the weight
:math:`w = (\nu + 1) / (\nu + z^2)` of their last residual [1]_. As that can end in several places, it is started at the
prior, at the least-squares solution, where the median row is met, and where each factor alone meets most rows; the
most probable end is taken.

References
----------
.. [1] K. Lange, R. Little and J. Taylor, "Robust statistical modeling using the t distribution," J. Am. Stat. Assoc.,
   vol. 84, no. 408, pp. 881-896, 1989.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Model = Callable[[Array], Array]
"""From points of logarithms of the factors, (p, k), to the logarithms of what is measured at each, (p, n)."""

STEP = 0.05  # Of a factor's logarithm, to each side, over which its slope is taken

WIDENING_ROWS = 4.0
"""Rows that the shipped scale of single layouts counts as: scales inside published sources of 20 runs and more differ by a
factor of exp(0.41), which that of three rows does, and fewer let rows that agree far off pass for rows that lie far apart.
Of 2, 4, 8 and 16 the intervals of the other runs of a source score best with 4, whichever source is left out but one
(tools/pages/own_runs.py). [-]"""

MISFIT = 4.0  # Scaled residual of a row that does not fit, nor says how far rows lie apart. [-]

_NORMAL_TAIL = 1e9  # Degrees of freedom from which Student's t is a normal distribution to nine digits. [-]

_MOST_ROUNDS, _MOST_STEPS = 6, 100
_TOLERANCE = 1e-4


class Priors(NamedTuple):
    """Independent priors of the factors' logarithms: center, scale and degrees of freedom (infinite: normal)."""

    center: Array
    scale: Array
    tail: Array


class Posterior(NamedTuple):
    """What is known after the measurements."""

    # Of the factors' logarithms: (k,), (k, k). [-]
    center: Array
    covariance: Array
    slopes: Array  # Of the measured logarithms at the center: (n, k). [-]
    residual: Array  # Measured over predicted there, logarithms: (n,). [-]
    scaled: Array  # The same over the scale of what single rows differ by. [-]
    widening: float  # That scale over the prior one. [-]


def posterior(
    model: Model, measured: Array, priors: Priors, scale: Array, tail: float, probes: Sequence[Array] = ()
) -> Posterior:
    """Update priors by measurements."""
    begin = [priors.center]
    if len(probes):
        points = np.stack(probes)
        odds = [
            _log_density(measured - logs, priors, scale, tail, point - priors.center, 1.0)
            for point, logs in zip(points, model(points), strict=True)
        ]
        begin.append(points[int(np.argmax(odds))])
    ends = [_climbed(model, measured, priors, scale, tail, start) for start in begin]
    _, at, widening = max(ends, key=lambda end: end[0])
    predicted, slopes = line_at(model, at)
    residual = measured - predicted
    scaled = residual / (widening * scale)
    information = _information(slopes, scaled, widening * scale, tail, at - priors.center, priors)
    return Posterior(at, np.asarray(np.linalg.inv(information)), slopes, residual, scaled, widening)


def line_at(model: Model, at: Array) -> tuple[Array, Array]:
    """Return the logarithms of what is measured at a point, and their slopes: (n,), (n, k)."""
    apart = STEP * np.eye(len(at))
    logs = model(np.concatenate([at[None], at + apart, at - apart]))
    return logs[0], np.asarray((logs[1 : 1 + len(at)] - logs[1 + len(at) :]).T / (2.0 * STEP))


def _climbed(
    model: Model, measured: Array, priors: Priors, scale: Array, tail: float, at: Array
) -> tuple[float, Array, float]:
    """Return where Gauss-Newton ends from a point, with its log density, and the widening there."""
    for _ in range(_MOST_ROUNDS):
        predicted, slopes = line_at(model, at)
        # Of x less the center of the prior.
        target = measured - predicted + slopes @ (at - priors.center)
        starts = [*_starts(slopes, target, priors, scale), *_alone(slopes, target), at - priors.center]
        found, widening = _most_probable(slopes, target, priors, scale, tail, starts)
        step = found + priors.center - at
        at = found + priors.center
        if np.max(np.abs(step), initial=0.0) < _TOLERANCE:
            break
    x, residual = at - priors.center, measured - model(at[None])[0]
    return _log_density(residual, priors, scale, tail, x, widening), at, widening


def left_out_errors(found: Posterior, measured: Array, priors: Priors, scale: Array, tail: float) -> Array:
    """Return measured over predicted of each row by all others, logarithms, the model linear around the posterior."""
    target = found.residual + found.slopes @ (found.center - priors.center)
    errors = np.empty(len(measured))
    for row in range(len(measured)):
        rest = np.arange(len(measured)) != row
        part = found.slopes[rest], target[rest], priors, scale[rest]
        starts = [*_starts(*part), found.center - priors.center]
        x, _ = _most_probable(*part, tail, starts)
        errors[row] = target[row] - found.slopes[row] @ x
    return errors


def weight(scaled: Array, tail: float | Array) -> Array:
    """Return what a scaled residual weighs under Student's t; 1 under a normal distribution."""
    tail = np.minimum(tail, _NORMAL_TAIL)
    return np.asarray((tail + 1.0) / (tail + scaled**2))


def _most_probable(
    slopes: Array, target: Array, priors: Priors, scale: Array, tail: float, starts: Sequence[Array]
) -> tuple[Array, float]:
    """Return the most probable x and the widening of a linear model."""
    ends = [_reweighted(slopes, target, priors, scale, tail, start) for start in starts]
    return max(ends, key=lambda end: _log_density(target - slopes @ end[0], priors, scale, tail, *end))


def _starts(slopes: Array, target: Array, priors: Priors, scale: Array) -> list[Array]:
    """Return the prior's center, the least-squares solution, and the likeliest way to meet the median row."""
    found = [np.zeros(slopes.shape[1])]
    if not len(target):
        return found
    mean = slopes.mean(axis=0)
    reach = float(mean**2 @ priors.scale**2)
    if reach > 0:
        found.append(np.asarray(priors.scale**2 * mean * float(np.median(target)) / reach))
    weighted = slopes / scale[:, None] ** 2
    found.append(
        np.asarray(np.linalg.solve(slopes.T @ weighted + np.diag(priors.scale**-2), weighted.T @ target))
    )
    return found


def _alone(slopes: Array, target: Array) -> list[Array]:
    """Return where each factor alone meets most rows: the median of what they ask of it, by how they depend on it."""
    found = []
    for index, slope in enumerate(slopes.T):
        size = np.abs(slope)
        if np.count_nonzero(size > _TOLERANCE) > 1:
            rows = size > _TOLERANCE
            wanted = target[rows] / slope[rows]
            order = np.argsort(wanted)
            middle = np.searchsorted(np.cumsum(size[rows][order]), 0.5 * size[rows].sum())
            found.append(np.where(np.arange(len(slopes.T)) == index, wanted[order][middle], 0.0))
    return found


def _reweighted(
    slopes: Array, target: Array, priors: Priors, scale: Array, tail: float, start: Array
) -> tuple[Array, float]:
    """Reweight until nothing moves."""
    x, widening = start, 1.0
    for _ in range(_MOST_STEPS):
        scaled = (target - slopes @ x) / (widening * scale)
        rows = weight(scaled, tail) / (widening * scale) ** 2
        held = weight(x / priors.scale, priors.tail) / priors.scale**2
        weighted = slopes * rows[:, None]
        new = np.asarray(np.linalg.solve(slopes.T @ weighted + np.diag(held), weighted.T @ target))
        widening = _widening(slopes, (target - slopes @ new) / scale, priors, scale, tail, widening)
        if np.max(np.abs(new - x), initial=0.0) < 0.01 * _TOLERANCE:
            return new, widening
        x = new
    return x, widening


def _widening(
    slopes: Array, residual: Array, priors: Priors, scale: Array, tail: float, widening: float
) -> float:
    """Return the scale of rows that fit over the prior one, which counts as `WIDENING_ROWS` of them."""
    fits = np.abs(residual / widening) < MISFIT
    if not fits.any():
        return 1.0
    taken = slopes[fits] / scale[fits][:, None]
    information = taken.T @ taken * tail / (tail + 3.0)
    used = np.trace(np.linalg.solve(information + np.diag(priors.scale**-2), information))
    squares = float(np.sum(weight(residual[fits] / widening, tail) * residual[fits] ** 2))
    return float(np.sqrt((WIDENING_ROWS + squares) / (WIDENING_ROWS + max(fits.sum() - used, 0.0))))


def _log_density(
    residual: Array, priors: Priors, scale: Array, tail: float, x: Array, widening: float
) -> float:
    """Return the logarithm of the posterior's density at x with these residuals, but for a constant."""
    scaled = residual / (widening * scale)
    of_rows = -0.5 * (tail + 1.0) * np.log1p(scaled**2 / tail).sum() - len(residual) * np.log(widening)
    apart = (x / priors.scale) ** 2
    held = np.minimum(priors.tail, _NORMAL_TAIL)
    of_rows -= WIDENING_ROWS * (np.log(widening) + 0.5 / widening**2)
    return float(of_rows - (0.5 * (held + 1.0) * np.log1p(apart / held)).sum())


def _information(slopes: Array, scaled: Array, scale: Array, tail: float, x: Array, priors: Priors) -> Array:
    """Return the information about x: Fisher's of Student's t at a residual of none, less further out."""
    rows = weight(scaled, tail) * tail / (tail + 3.0) / scale**2
    tails = np.minimum(priors.tail, _NORMAL_TAIL)
    at_center = tails / (tails + 1.0)
    held = weight(x / priors.scale, priors.tail) * at_center / priors.scale**2
    return np.asarray(slopes.T @ (slopes * rows[:, None]) + np.diag(held))
