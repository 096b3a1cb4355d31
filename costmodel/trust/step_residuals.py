"""Measured training steps against the model: the residual, and what could explain it.

A step's time is split by where it is paid (math, memory traffic, communication, bubble, overhead).
For each part alone, the factor on it that would bring the model closest to all measured steps is
found, with the error that would be left: a part that explains one step may be refuted by the next.
Nothing is changed in the model; a constant is fitted only on request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.trust.own_runs import OwnRun

Array = NDArray[np.float64]


class PartFactor(NamedTuple):
    """One part of the step, and the factor on it alone that brings the model closest.

    Attributes
    ----------
    part : str
        Where time is paid, or ``constant`` for a time added to every step.
    share : float
        Of the model's step times. [-]
    factor : float
        On the part; seconds for ``constant``.
    error_left : float
        Mean relative error of all steps with it. [-]
    plausible : bool
        Whether the part would change by less than half or double, a constant be a fifth of a step.
    """

    part: str
    share: float
    factor: float
    error_left: float
    plausible: bool


def part_factors(steps: Sequence[OwnRun]) -> list[PartFactor]:
    """Return what each part alone could explain, the best plausible one first."""
    model = np.array([float(step.est.step_time_s) for step in steps])
    measured = np.array([step.time_s for step in steps])
    parts: dict[str, Array] = {}
    for index, step in enumerate(steps):
        for category, seconds in step.est.exposed_by("category").items():
            parts.setdefault(category, np.zeros(len(steps)))[index] = float(seconds)
    found = []
    for part, seconds in parts.items():
        if seconds.sum() < 1e-3 * model.sum():
            continue
        weight = seconds / measured
        extra = float(np.sum(weight * (measured - model) / measured) / np.sum(weight * weight))
        factor = max(1.0 + extra, 0.0)
        error = np.abs((model + (factor - 1.0) * seconds) / measured - 1.0)
        found.append(
            PartFactor(
                part, float(seconds.sum() / model.sum()), factor, float(error.mean()), 0.5 <= factor <= 2.0
            )
        )
    constant = constant_s(steps)
    error = np.abs((model + constant) / measured - 1.0)
    fits = bool(abs(constant) <= 0.2 * measured.min())
    found.append(PartFactor("constant", float("nan"), constant, float(error.mean()), fits))
    return sorted(found, key=lambda one: (not one.plausible, one.error_left))


def constant_s(steps: Sequence[OwnRun]) -> float:
    """Return the seconds that, added to every step, fit best; least squares on relative error."""
    model = np.array([float(step.est.step_time_s) for step in steps])
    measured = np.array([step.time_s for step in steps])
    weight = 1.0 / measured
    return float(np.sum(weight * (measured - model) / measured) / np.sum(weight * weight))
