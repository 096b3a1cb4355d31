"""What own runs say of the factors, for people."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_bytes, format_seconds
from costmodel.describe.factors import ROLES
from costmodel.reporting.step_times import log_remarks
from costmodel.reporting.steps import far_off_remark
from costmodel.trust.site_fit import FactorMove, RunFit, RunsCalibration

LEAST_ASKED = 0.005
"""What is left of what the runs ask for, from which the page says why. [-]"""
_DOUBTED = 0.08
"""Median error of own memories from which the page asks how they were measured. [-]"""
_WITHIN = 1.2816
"""Standard deviations of a normal distribution to its p90."""


def runs_grids(found: RunsCalibration) -> list[Grid]:
    """Return the factors before and after, and every measurement."""
    factors = [
        [move.name, _range(move, prior=True), _range(move), f"{move.told:.0%}"] for move in found.moves
    ]
    rows = [
        [
            fit.run,
            "time" if fit.what == "time" else "memory",
            _figure(fit, fit.measured),
            f"{fit.before / fit.measured - 1.0:+.1%}",
            f"{fit.left_out / fit.measured - 1.0:+.1%}",
            f"{fit.after / fit.measured - 1.0:+.1%}",
            "yes" if fit.fits else "no",
        ]
        for fit in found.fits
    ]
    note = "p10 to p90 of what a constant is multiplied by, middle in brackets. Told: share of the variance that is gone."
    rest = "Predicted over measured: as shipped, from all other rows, from all rows."
    return [
        Grid("Factors", columns("Factor", "As shipped >", "With your runs >", "Told >"), factors, note=note),
        Grid(
            "Runs",
            columns("Run", "", "Measured >", "Shipped >", "Left out >", "With all >", "Fits"),
            rows,
            note=rest,
        ),
    ]


def _range(move: FactorMove, *, prior: bool = False) -> str:
    center, spread = (move.prior_center, move.prior_spread) if prior else (move.center, move.spread)
    low, middle, high = np.exp([center - _WITHIN * spread, center, center + _WITHIN * spread])
    if ROLES[move.name.partition(".")[0]].each_layout:
        return f"±{_WITHIN * spread:.1%}"
    return f"{low:.3f} to {high:.3f} ({middle:.3f})"


def _figure(fit: RunFit, value: float) -> str:
    return format_seconds(value, 4) if fit.what == "time" else format_bytes(value)


def runs_remarks(found: RunsCalibration) -> list[str]:
    """Say what was read of logs, which rows do not fit and why, and how errors fall."""
    logs = [line for run in found.runs if run.times is not None for line in log_remarks(run.name, run.times)]
    odd = [f"{fit.run} does not fit ({fit.what}): {fit.why}." for fit in found.fits if not fit.fits]
    if not found.moves:
        return [*logs, *odd, "The runs say nothing of any factor."]
    errors = found.errors
    odd += _memory_text(found.fits)
    if not any(fit.what == "time" for fit in found.fits):
        return [*logs, *odd]
    said = (
        f"Median error of step times: {errors['before']:.1%} as shipped, {errors['left_out']:.1%} of each from all others, "
        f"{errors['after']:.1%} with all."
    )
    off = far_off_remark([fit.measured / fit.before for fit in found.fits if fit.what == "time"])
    return [*logs, *odd, said, *off, *moved_text(found)]


def _memory_text(fits: Sequence[RunFit]) -> list[str]:
    """Say how far predictions of the memory move towards what was measured; nothing where no memory was."""
    ratios = np.array(
        [
            [value / fit.measured - 1.0 for value in (fit.before, fit.left_out, fit.after)]
            for fit in fits
            if fit.what != "time"
        ]
    )
    if not len(ratios):
        return []
    shipped, left_out, with_all = np.median(ratios, axis=0)
    said = (
        f"Memory predicted over measured: {shipped:+.1%} as shipped, {left_out:+.1%} of each from all others, "
        f"{with_all:+.1%} with all (medians)."
    )
    if abs(shipped) > _DOUBTED:
        said += (
            " That far off, look at memory_kind first: max_allocated leaves out the allocator's slack, and "
            "max_reserved what the device keeps for itself; a factor that moves by more than its range hides that."
        )
    return [said]


def moved_text(found: RunsCalibration) -> list[str]:
    """Say how far estimates move, of what the runs ask for, and what holds them back."""
    moved = found.moved
    if moved is None:
        return []
    if max(abs(moved.asked), abs(moved.taken)) < 0.1 * LEAST_ASKED:
        return ["Your step times are as predicted (medians): estimates stay where they are."]
    said = f"Step times move by {moved.taken:+.1%} of the {moved.asked:+.1%} that your runs ask for (medians)"
    if abs(moved.asked - moved.taken) < LEAST_ASKED:
        return [f"{said}."]
    return [
        f"{said}: in published sources all runs share ±{moved.site:.0%} and each differs by ±{moved.row:.0%} of its own "
        "(80 % of them), so a few are believed in part; more runs that agree move it further."
    ]
