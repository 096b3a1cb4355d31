"""What measurements say of constants, as tables: fitted fabrics and kernels, measured steps, own runs, training logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_bytes, format_seconds, format_si
from costmodel.describe.factors import ROLES
from costmodel.physics.network.fabric import constants_of
from costmodel.reporting.cells import cell, grid_of
from costmodel.trust.calibrate import FabricCalibration, KernelCalibration, StepCalibration
from costmodel.trust.calibration.cluster_fit import ClusterFit
from costmodel.trust.calibration.fabric_fit import BASE_FIELDS, quantity_text
from costmodel.trust.site_fit import FactorMove, RunFit, RunsCalibration
from costmodel.trust.step_residuals import PartFactor
from costmodel.trust.step_times import StepTimes

LEAST_ASKED = 0.005
"""What is left of what the runs ask for, from which the page says why. [-]"""
FAR_OFF = 1.3
"""Measured over predicted, or the inverse, from which the job itself is to be looked at first. [-]"""
INPUTS_FIRST = "check the job first (global batch, sequence length, GPUs, layout, recompute)"
_DOUBTED = 0.08
"""Median error of own memories from which the page asks how they were measured. [-]"""
_WITHIN = 1.2816
"""Standard deviations of a normal distribution to its p90."""


# --- a fabric ---


def fit_grids(found: FabricCalibration) -> list[Grid]:
    """Return the tables of a fit: constants by tier, errors by sweep and by size, straight lines."""
    fit = found.fit
    note = (
        "Mean relative error of the time. Held out: fitted to every other size, scored on those between. "
        "Plain ring: alpha-beta fitted to that sweep alone."
    )
    return [
        *_constant_grids(found),
        _error_grid(fit, "Sweep", "Errors by sweep", lambda points: points["run"], str, note),
        _error_grid(fit, "Size", "Errors by size", decade_of, _span, ""),
        grid_of(
            "Straight lines",
            fit.lines,
            {
                "Sweep": "run",
                "alpha >": "alpha_s:s",
                "beta >": lambda line: f"{1e12 / line.bandwidth_bytes_per_s:.4g} ps/B",
                "1/beta >": "bandwidth_bytes_per_s:B/s",
                "n* >": lambda line: format_si(line.crossover_bytes, "B"),
                "Error >": lambda line: f"{100 * line.relative_error:.0f} %",
            },
            note="T = alpha + S beta by least squares on the times: what a guide measures. Large sizes rule it.",
        ),
    ]


def _constant_grids(found: FabricCalibration) -> list[Grid]:
    """Return a table a tier: each constant before and after, and how well it is known."""
    grids = []
    for index, fitted in found.fit.tiers.items():
        base = found.cluster.tiers[index]
        before = constants_of(base)._asdict() | {key: getattr(base, key) for key in BASE_FIELDS}
        after = fitted.fabric._asdict() | {key: getattr(fitted.tier, key) for key in BASE_FIELDS}
        rows = [
            [
                name,
                quantity_text(name, before[name]),
                quantity_text(name, after[name]),
                f"±{known.spread:.0%}",
                f"{known.told:.0%}",
            ]
            for name, known in fitted.confidence.items()
        ]
        rate = base.achieved_bandwidth_bytes_per_s * fitted.fabric.rate_factor
        note = (
            f"{fitted.points} points, {fitted.residual:.1%} off on average. Ring rate per GPU: "
            f"{format_si(rate, 'B/s')}. Told: what the sweeps say of it, 0 % is the profile's word."
        )
        titles = columns("Constant", f"{base.link} >", "Fitted >", "Error >", "Told >")
        grids.append(Grid(f"Tier {base.name}", titles, rows, note=note))
    return grids


def _error_grid(fit: ClusterFit, what: str, title: str, keys: Any, named: Any, note: str) -> Grid:
    """Return mean errors by a key of the points, in the order in which keys first come."""
    groups = keys(fit.points)
    mean = fit.points.groupby(groups)[["error", "signed", "plain"]].mean() * 100.0
    count = fit.points.groupby(groups).size()
    held: Any = fit.held_out.groupby(keys(fit.held_out))["error"].mean() * 100.0 if len(fit.held_out) else {}
    order = sorted(mean.index) if what == "Size" else [run.name for run in fit.runs]

    def percent(value: float) -> str:
        return f"{value:.1f} %" if np.isfinite(value) else "–"

    rows = []
    for key in order:
        error, signed, plain = (float(value) for value in mean.loc[key].to_numpy())
        out = float(held.get(key, np.nan))
        rows.append(
            [named(key), f"{count[key]}", percent(error), f"{signed:+.1f} %", percent(out), percent(plain)]
        )
    titles = columns(what, "Points >", "Error >", "Signed >", "Held out >", "Plain ring >")
    return Grid(title, titles, rows, note=note)


def decade_of(points: pd.DataFrame) -> pd.Series:
    """Return the decade that each size lies in."""
    return pd.Series(10.0 ** np.floor(np.log10(points["size"].to_numpy())), index=points.index)


def _span(decade: float) -> str:
    return f"{format_si(decade, 'B', 1)} – {format_si(10 * decade, 'B', 2)}"


# --- kernels and measured steps ---


def kernel_grids(found: KernelCalibration) -> list[Grid]:
    """Return the fitted kernels: error of the profile as it was, and of the fit on rows left out."""
    cells = {
        "Kernel": "section",
        "Kind": "name",
        "Rows >": "points",
        f"{found.accelerator.name} was off >": lambda one: (
            f"{one.before:.1%}" if np.isfinite(one.before) else "–"
        ),
        "Fit, held out >": "held_out_error:.1%",
    }
    return [grid_of("Fitted kernels", found.results, cells, note="Mean relative error of the time.")]


def step_grids(found: StepCalibration) -> list[Grid]:
    """Return the residual of each step, and what each part alone could explain."""

    def of_memory(form: str) -> Any:
        return lambda step: cell(step, form) if np.isfinite(step.memory_bytes) else ""

    def memory_off(step: Any) -> str:
        off = step.model_memory_bytes / step.memory_bytes - 1
        return f"{off:+.1%}" if np.isfinite(step.memory_bytes) else ""

    rows = grid_of(
        "Measured steps",
        found.steps,
        {
            "Job": "name",
            "Measured >": "time_s:s4",
            "Model >": "est.step_time_s:s4",
            "Off >": lambda step: f"{float(step.est.step_time_s) / step.time_s - 1:+.1%}",
            "Memory >": of_memory("memory_bytes:B"),
            "Model of it >": of_memory("model_memory_bytes:B"),
            "Off by >": memory_off,
        },
    )
    titles = columns("Job", "Measured >", "Model >", "Off >", "Memory >", "Model >", "Off >")
    note = "Error left with that part alone changed; the lowest explains most."
    if len(found.steps) == 1:
        note = "One step: every part can explain it; measure another layout to tell them apart."
        if not any(part.plausible for part in found.parts):
            note = (
                f"One step, and no part explains it alone without changing by half or double: {INPUTS_FIRST}."
            )
    cells = {
        "Part": "part",
        "Share >": lambda part: f"{part.share:.1%}" if np.isfinite(part.share) else "",
        "Would be >": _change,
        "Error left >": "error_left:.1%",
        "Plausible": lambda part: "yes" if part.plausible else "no",
    }
    return [rows._replace(columns=titles), grid_of("What could explain it", found.parts, cells, note=note)]


def _change(part: PartFactor) -> str:
    """Write a factor, or the seconds of a constant."""
    return format_seconds(part.factor) if part.part == "constant" else f"x {part.factor:.3f}"


def step_remarks(found: StepCalibration) -> list[str]:
    """Say what was read of logs, and which constant fits best, where one was tried."""
    logs = [log_remarks(step.name, step.times) for step in found.steps if step.times is not None]
    off = far_off_remark([step.time_s / float(step.est.step_time_s) for step in found.steps])
    added = []
    if any(part.part == "constant" for part in found.parts):
        sign = "add" if found.overhead_s >= 0 else "take off"
        added = [
            f"Overhead: {sign} {format_seconds(abs(found.overhead_s))} a step; no profile or recipe is changed."
        ]
    return [*(line for said in logs for line in said), *off, *added]


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


# --- own runs ---


def runs_grids(found: RunsCalibration) -> list[Grid]:
    """Return the factors before and after, and every measurement."""

    def over(name: str) -> Any:
        return lambda fit: f"{getattr(fit, name) / fit.measured - 1.0:+.1%}"

    note = "p10 to p90 of what a constant is multiplied by, middle in brackets. Told: share of the variance that is gone."
    factors = {
        "Factor": "name",
        "As shipped >": lambda move: _range(move, move.prior_center, move.prior_spread),
        "With your runs >": lambda move: _range(move, move.center, move.spread),
        "Told >": "told:.0%",
    }
    rows = {
        "Run": "run",
        "": lambda fit: "time" if fit.what == "time" else "memory",
        "Measured >": lambda fit: cell(fit, "measured:s4" if fit.what == "time" else "measured:B"),
        "Shipped >": over("before"),
        "Left out >": over("left_out"),
        "With all >": over("after"),
        "Fits": lambda fit: "yes" if fit.fits else "no",
    }
    rest = "Predicted over measured: as shipped, from all other rows, from all rows."
    return [grid_of("Factors", found.moves, factors, note=note), grid_of("Runs", found.fits, rows, note=rest)]


def _range(move: FactorMove, center: float, spread: float) -> str:
    low, middle, high = np.exp([center - _WITHIN * spread, center, center + _WITHIN * spread])
    if ROLES[move.name.partition(".")[0]].each_layout:
        return f"±{_WITHIN * spread:.1%}"
    return f"{low:.3f} to {high:.3f} ({middle:.3f})"


def runs_remarks(found: RunsCalibration) -> list[str]:
    """Say what was read of logs, which rows do not fit and why, and how errors fall."""
    logs = [line for run in found.runs if run.times is not None for line in log_remarks(run.name, run.times)]
    odd = [f"{fit.run} does not fit ({fit.what}): {fit.why}." for fit in found.fits if not fit.fits]
    if not found.moves:
        return [*logs, *odd, "The runs say nothing of any factor."]
    odd += _memory_text(found.fits)
    times = [fit for fit in found.fits if fit.what == "time"]
    if not times:
        return [*logs, *odd]
    errors = found.errors
    said = (
        f"Median error of step times: {errors['before']:.1%} as shipped, {errors['left_out']:.1%} of each from all others, "
        f"{errors['after']:.1%} with all."
    )
    off = far_off_remark([fit.measured / fit.before for fit in times])
    return [*logs, *odd, said, *off, *moved_text(found)]


def _memory_text(fits: Sequence[RunFit]) -> list[str]:
    """Say how far predictions of the memory move towards what was measured; nothing where no memory was."""
    ratios = [
        [value / fit.measured - 1.0 for value in (fit.before, fit.left_out, fit.after)]
        for fit in fits
        if fit.what != "time"
    ]
    if not ratios:
        return []
    shipped, left_out, with_all = np.median(np.array(ratios), axis=0)
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


# --- training logs ---


def step_time_grids(times: StepTimes) -> list[Grid]:
    """Return the measurement as one table, and the lines that were left out as another."""
    log = times.log
    rows = [
        ["Step time", f"{format_seconds(times.step_time_s, 4)} ± {times.error:.2%}"],
        ["Spread of lines", f"{times.spread:.2%}"],
        ["Steady lines", f"{int(times.steady.sum()):,} of {log.steps:,}"],
        ["Lines of other ranks", f"{log.repeated:,}"],
        *(
            [kind.replace("_", " ").capitalize(), format_bytes(size)]
            for kind, size in times.memory_bytes.items()
        ),
    ]
    found = [Grid(f"{log.name}: {log.format.title}", columns("", "Measured >"), rows)]
    left = {"Reason": "reason", "Lines >": "lines:,", "Which": "detail"}
    return [*found, *([grid_of("Left out", times.left_out, left)] if times.left_out else [])]


def log_remarks(name: str, times: StepTimes) -> list[str]:
    """Say in one sentence what was read of a log, and in others what to know of it."""
    log = times.log
    left = "; ".join(f"{one.lines} {one.reason} ({one.detail})" for one in times.left_out)
    said = (
        f"{log.name}: {log.format.title}, {format_seconds(times.step_time_s, 4)} ± {times.error:.2%} a step from "
        f"{int(times.steady.sum()):,} of {log.steps:,} lines"
    )
    return [
        f"{name}: {said}{f'; left out: {left}' if left else ''}.",
        *(f"{name}: {note}." for note in times.notes),
    ]
