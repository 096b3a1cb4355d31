"""Measured steps and fitted kernels for people and programs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_bytes, format_seconds
from costmodel.reporting.step_times import log_remarks
from costmodel.trust.calibrate import KernelCalibration, StepCalibration
from costmodel.trust.step_residuals import PartFactor


def step_grids(found: StepCalibration) -> list[Grid]:
    """Return the residual of each step, and what each part alone could explain."""
    steps, parts, rows = found.steps, found.parts, []
    for step in steps:
        model, memory = float(step.est.step_time_s), step.model_memory_bytes
        row = [
            step.name,
            format_seconds(step.time_s, 4),
            format_seconds(model, 4),
            f"{model / step.time_s - 1:+.1%}",
        ]
        if np.isfinite(step.memory_bytes):
            row += [
                format_bytes(step.memory_bytes),
                format_bytes(memory),
                f"{memory / step.memory_bytes - 1:+.1%}",
            ]
        rows.append(row + [""] * (7 - len(row)))
    titles = columns("Job", "Measured >", "Model >", "Off >", "Memory >", "Model >", "Off >")
    rest = []
    for one in parts:
        share = f"{one.share:.1%}" if np.isfinite(one.share) else ""
        rest.append(
            [one.part, share, _change(one), f"{one.error_left:.1%}", "yes" if one.plausible else "no"]
        )
    one_only = "One step: every part can explain it; measure another layout to tell them apart."
    if not any(one.plausible for one in parts):
        one_only = (
            f"One step, and no part explains it alone without changing by half or double: {INPUTS_FIRST}."
        )
    note = (
        one_only if len(steps) == 1 else "Error left with that part alone changed; the lowest explains most."
    )
    return [
        Grid("Measured steps", titles, rows),
        Grid(
            "What could explain it",
            columns("Part", "Share >", "Would be >", "Error left >", "Plausible"),
            rest,
            note=note,
        ),
    ]


def _change(one: PartFactor) -> str:
    """Write a factor, or the seconds of a constant."""
    return format_seconds(one.factor) if one.part == "constant" else f"x {one.factor:.3f}"


def kernel_grids(found: KernelCalibration) -> list[Grid]:
    """Return the fitted kernels: error of the profile as it was, and of the fit on rows left out."""
    rows = [
        [
            one.section,
            one.name,
            f"{one.points}",
            f"{one.before:.1%}" if np.isfinite(one.before) else "–",
            f"{one.held_out_error:.1%}",
        ]
        for one in found.results
    ]
    off = f"{found.accelerator.name} was off >"
    titles = columns("Kernel", "Kind", "Rows >", off, "Fit, held out >")
    return [Grid("Fitted kernels", titles, rows, note="Mean relative error of the time.")]


FAR_OFF = 1.3
"""Measured over predicted, or the inverse, from which the job itself is to be looked at first. [-]"""
INPUTS_FIRST = "check the job first (global batch, sequence length, GPUs, layout, recompute)"


def far_off_remark(measured_over_model: Sequence[float]) -> list[str]:
    """Say that measured steps are so far off their predictions that the jobs may be other ones.

    >>> far_off_remark([1.6, 1.5, 1.7])[0][:49]
    'Your runs take 1.60 times as long as predicted (m'
    >>> far_off_remark([1.1, 0.9])
    []
    """
    if not len(measured_over_model):
        return []
    middle = float(np.median(np.asarray(measured_over_model)))
    if 1.0 / FAR_OFF < middle < FAR_OFF:
        return []
    few = "Your run takes" if len(measured_over_model) == 1 else "Your runs take"
    rest = "" if len(measured_over_model) == 1 else " (median)"
    return [
        f"{few} {middle:.2f} times as long as predicted{rest}, further than all but a few published runs: "
        f"{INPUTS_FIRST}."
    ]


def step_remarks(found: StepCalibration) -> list[str]:
    """Say what was read of logs, and which constant fits best, where one was tried."""
    logs = [log_remarks(step.name, step.times) for step in found.steps if step.times is not None]
    off = far_off_remark([step.time_s / float(step.est.step_time_s) for step in found.steps])
    return [*(line for said in logs for line in said), *off, *_overhead_remark(found)]


def _overhead_remark(found: StepCalibration) -> list[str]:
    if not any(one.part == "constant" for one in found.parts):
        return []
    sign = "add" if found.overhead_s >= 0 else "take off"
    seconds = format_seconds(abs(found.overhead_s))
    return [f"Overhead: {sign} {seconds} a step; no profile or recipe is changed."]
