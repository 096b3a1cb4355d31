"""Measurements as tables: fitted fabrics and kernels, own runs, training logs, published runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from costmodel.base.grid import Grid, columns
from costmodel.base.numbers import TO_P90
from costmodel.base.units import format_bytes, format_si
from costmodel.describe.factors import ROLES
from costmodel.reporting.cells import cell, facts_of, say, table_of
from costmodel.trust.calibrate import FabricCalibration, KernelCalibration
from costmodel.trust.calibration.cluster_fit import ClusterFit
from costmodel.trust.calibration.fabric_fit import BASE_FIELDS, quantity_text
from costmodel.trust.site_fit import FactorMove, RunFit, RunsCalibration
from costmodel.trust.step_times import StepTimes
from costmodel.trust.validation import GROUPINGS, Validation

LEAST_REQUESTED = 0.005
"""What is left of what the runs ask for, from which the page says why. [-]"""
FAR_OFF = 1.3
"""Measured over predicted, or the inverse, from which the job itself is to be looked at first. [-]"""
INPUTS_FIRST = "check the job first (global batch, sequence length, GPUs, layout, recompute)"
_DOUBTED = 0.08
"""Median error of own memories from which the page asks how they were measured. [-]"""


# --- a fabric ---


def fit_grids(found: FabricCalibration) -> list[Grid]:
    """Return the tables of a fit: constants by tier, errors by sweep and by size."""
    fit = found.fit
    by_sweep = [(run.name, run.name) for run in fit.runs]
    decades = sorted(set(decade_of(fit.points)))
    by_size = [(at, f"{format_si(at, 'B', 1)} – {format_si(10 * at, 'B', 2)}") for at in decades]
    return [
        *_constant_grids(found),
        _error_grid(fit, "sweep errors", by_sweep, lambda points: points["run"]),
        _error_grid(fit, "size errors", by_size, decade_of),
    ]


def _constant_grids(found: FabricCalibration) -> list[Grid]:
    """Return a table a tier: each constant before and after, and how well it is known."""
    grids = []
    for index, fitted in found.fit.tiers.items():
        base = found.cluster.tiers[index]
        before = base.fabric._asdict() | {key: getattr(base, key) for key in BASE_FIELDS}
        after = fitted.fabric._asdict() | {key: getattr(fitted.tier, key) for key in BASE_FIELDS}
        rows = [
            [
                name,
                quantity_text(name, before[name]),
                quantity_text(name, after[name]),
                f"±{known.spread:.0%}",
                f"{known.variance_explained:.0%}",
            ]
            for name, known in fitted.confidence.items()
        ]
        rate = base.achieved_bandwidth_bytes_per_s * fitted.fabric.rate_factor
        note = (
            f"{fitted.points} points, {fitted.residual:.1%} off on average. Ring rate per GPU: "
            f"{format_si(rate, 'B/s')}. Variance explained: the share that the sweeps decide; 0 % keeps the profile's value."
        )
        titles = columns("Constant", f"{base.link} >", "Fitted >", "Error >", "Variance explained >")
        grids.append(Grid(f"Tier {base.name}", titles, rows, note=note))
    return grids


def _error_grid(fit: ClusterFit, name: str, groups: Sequence[tuple[Any, str]], keys: Any) -> Grid:
    """Return mean errors by a key of the points; those held out were fitted without them."""
    by_key = fit.points.groupby(keys(fit.points))
    mean = by_key[["error", "signed", "plain"]].mean() * 100.0
    held_out: Any = (
        fit.held_out.groupby(keys(fit.held_out))["error"].mean() * 100.0 if len(fit.held_out) else {}
    )
    rows = [
        {"group": text, "count": by_key.size()[key], "held": held_out.get(key, np.nan), **mean.loc[key]}
        for key, text in groups
    ]
    percents = {
        title: lambda row, of=of: f"{row[of]:.1f} %" if np.isfinite(row[of]) else "–"
        for title, of in (("Error >", "error"), ("Held out >", "held"), ("Plain ring >", "plain"))
    }
    return table_of(name, rows, percents)


def decade_of(points: pd.DataFrame) -> pd.Series:
    """Return the decade that each size lies in."""
    return pd.Series(10.0 ** np.floor(np.log10(points["size"].to_numpy())), index=points.index)


# --- kernels ---


def kernel_grids(found: KernelCalibration) -> list[Grid]:
    """Return the fitted kernels: error of the profile as it was, and of the fit on rows left out."""
    before = {"Before >": lambda one: f"{one.error_before:.1%}"}
    grid = table_of("kernels", found.results, before)
    named = [
        column._replace(title=f"{found.accelerator.name} was off") if column.title == "Before" else column
        for column in grid.columns
    ]
    return [grid._replace(columns=named)]


def far_off_remark(measured_over_model: Sequence[float]) -> list[str]:
    """Say that measured steps are so far off their predictions that the jobs may be other ones.

    >>> far_off_remark([1.6, 1.5, 1.7])[0][:49]
    'Your runs take 1.60 times as long as predicted (m'
    >>> far_off_remark([1.1, 0.9])
    []
    """
    middle = float(np.median(np.asarray(measured_over_model))) if len(measured_over_model) else 1.0
    if 1.0 / FAR_OFF < middle < FAR_OFF:
        return []
    few = f"Your run takes {middle:.2f} times as long as predicted"
    if len(measured_over_model) > 1:
        few = f"Your runs take {middle:.2f} times as long as predicted (median)"
    return [f"{few}, further than all but a few published runs: {INPUTS_FIRST}."]


# --- own runs ---


def runs_grids(found: RunsCalibration) -> list[Grid]:
    """Return the factors before and after, and every measurement."""

    def over(name: str) -> Any:
        return lambda fit: f"{getattr(fit, name) / fit.measured - 1.0:+.1%}"

    factors = {
        "As shipped >": lambda move: _range(move, move.prior_center, move.prior_spread),
        "With your runs >": lambda move: _range(move, move.center, move.spread),
    }
    rows = {
        "": lambda fit: "time" if fit.what == "time" else "memory",
        "Measured >": lambda fit: cell(fit, "measured:s4" if fit.what == "time" else "measured:B"),
        "Shipped >": over("before"),
        "Left out >": over("left_out"),
        "With all >": over("after"),
    }
    return [table_of("factors", found.moves, factors), table_of("own runs", found.fits, rows)]


def _range(move: FactorMove, center: float, spread: float) -> str:
    low, middle, high = np.exp([center - TO_P90 * spread, center, center + TO_P90 * spread])
    if ROLES[move.name.partition(".")[0]].each_layout:
        return f"±{TO_P90 * spread:.1%}"
    return f"{low:.3f} to {high:.3f} ({middle:.3f})"


def runs_remarks(found: RunsCalibration) -> list[str]:
    """Say what was read of logs, which rows do not fit and why, and how errors fall."""
    remarks = [
        text for run in found.runs if run.times is not None for text in log_remarks(run.name, run.times)
    ]
    remarks += [f"{fit.run} does not fit ({fit.what}): {fit.why}." for fit in found.fits if not fit.fits]
    if not found.moves:
        return [*remarks, "The runs say nothing of any factor."]
    remarks += _memory_text(found.fits)
    times = [fit for fit in found.fits if fit.what == "time"]
    if not times:
        return remarks
    errors = "Median error of step times: {before:.1%} as shipped, {left_out:.1%} of each from all others, {after:.1%} with all."
    remarks.append(say(errors, found.errors))
    remarks += far_off_remark([fit.measured / fit.before for fit in times])
    return [*remarks, *moved_text(found)]


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
    text = (
        f"Memory predicted over measured: {shipped:+.1%} as shipped, {left_out:+.1%} of each from all others, "
        f"{with_all:+.1%} with all (medians)."
    )
    if abs(shipped) > _DOUBTED:
        text += (
            " That far off, look at memory_kind first: max_allocated leaves out the allocator's slack, and "
            "max_reserved what the device keeps for itself; a factor that moves by more than its range hides that."
        )
    return [text]


def moved_text(found: RunsCalibration) -> list[str]:
    """Say how far estimates move, of what the runs ask for, and what holds them back."""
    moved = found.moved
    if moved is None:
        return []
    if max(abs(moved.measured), abs(moved.predicted)) < 0.1 * LEAST_REQUESTED:
        return ["Your step times are as predicted (medians): estimates stay where they are."]
    text = f"Step times move by {moved.predicted:+.1%} of the {moved.measured:+.1%} that your runs ask for (medians)"
    if abs(moved.measured - moved.predicted) < LEAST_REQUESTED:
        return [f"{text}."]
    return [
        f"{text}: in published sources all runs share ±{moved.site:.0%} and each differs by ±{moved.row:.0%} of its own "
        "(80 % of them), so a few are believed in part; more runs that agree move it further."
    ]


# --- training logs ---


def step_time_grids(times: StepTimes) -> list[Grid]:
    """Return the measurement as one table, and the lines that were left out as another."""
    rows = facts_of("step times", times, steady_lines=int(times.steady.sum()))
    memory = [(k.replace("_", " ").capitalize(), format_bytes(v)) for k, v in times.memory_bytes.items()]
    title = f"{times.log.name}: {times.log.format.title}"
    grid = Grid(title, columns("", "Measured >"), [*rows, *memory])
    return [grid, *([table_of("left out", times.left_out)] if times.left_out else [])]


def log_remarks(name: str, times: StepTimes) -> list[str]:
    """Say in one sentence what was read of a log, and in others what to know of it."""
    left = "; ".join(f"{rows.lines} {rows.reason} ({rows.detail})" for rows in times.left_out)
    text = (
        "{name}: {log.name}: {log.format.title}, {step_time_s:s4} ± {error:.2%} a step from {steady_lines:,} of "
        "{log.steps:,} lines{left}."
    )
    left = f"; left out: {left}" if left else ""
    first = say(text, times, name=name, steady_lines=int(times.steady.sum()), left=left)
    return [first, *(f"{name}: {note}." for note in times.notes)]


# --- predicted beside measured ---


def validation_grids(checked: Validation, *, worst: int = 0) -> list[Grid]:
    """Return the summary tables: by class, all rows, by the other groupings; memory; sweeps."""
    first, *others = GROUPINGS
    left_out = "as shipped and with the run's family of sources left out of the fit"
    grids = [
        _summary_grid(f"Step time by quality, {left_out}", checked.cells()),
        _summary_grid(f"Step time by {first}", checked.summary(first)),
        _summary_grid("Step time, all rows of quality A and B", checked.summary()),
    ]
    grids += [_summary_grid(f"Step time by {by}", checked.summary(by)) for by in others]
    memory = checked.summary(of="memory")
    if memory["runs"].sum():
        grids.append(_summary_grid("Peak memory, all rows of quality A and B", memory))
        grids.append(_summary_grid("Peak memory by source", checked.summary("source", of="memory")))
    known = checked.out_of_memory()
    if known["oom_rows"]:
        grids.append(table_of("out of memory", [known]))
    sweeps = checked.sweeps()
    if len(sweeps):
        note = (
            f"Median Spearman {sweeps.spearman.median():.2f}; median regret {sweeps.regret.median():.1%}, "
            f"p90 {sweeps.regret.quantile(0.9):.1%}."
        )
        grids.append(table_of("sweeps", sweeps.to_dict("records"), note=note))
    if worst:
        runs = checked.judged.dropna(subset=["time_error"])
        runs = runs.loc[runs.time_error.abs().sort_values(ascending=False).index].head(worst)
        grids.append(table_of("worst", runs.to_dict("records"), title=f"The {worst} runs furthest off"))
    return grids


def validation_remarks(checked: Validation) -> list[str]:
    """Say why rows were left out."""
    return list(checked.skipped)


def _summary_grid(title: str, frame: pd.DataFrame) -> Grid:
    """Return one summary as a table; the first column names the group."""
    group = str(frame.columns[0])
    rows = [{"group": row[group], **row} for row in frame.to_dict("records")]
    grid = table_of("summary", rows, title=title)
    return grid._replace(columns=[grid.columns[0]._replace(title=group.capitalize()), *grid.columns[1:]])
