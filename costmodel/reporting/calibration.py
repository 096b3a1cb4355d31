"""A fitted fabric for people and programs: constants with their confidence, errors, lines, a figure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_seconds, format_si
from costmodel.describe.hardware.cluster import Cluster
from costmodel.estimates.collective import bus_bytes
from costmodel.physics.network.fabric import constants_of
from costmodel.reporting.figures import new_figure
from costmodel.trust.calibrate import FabricCalibration
from costmodel.trust.calibration.cluster_fit import ClusterFit, price_run
from costmodel.trust.calibration.fabric_fit import BASE_FIELDS, quantity_text


def fit_grids(found: FabricCalibration) -> list[Grid]:
    """Return the tables of a fit: constants, errors by sweep and by size, straight lines."""
    fit, cluster = found.fit, found.cluster
    return [*constant_grids(fit, cluster), run_grid(fit), decade_grid(fit), line_grid(fit)]


def constant_grids(fit: ClusterFit, cluster: Cluster) -> list[Grid]:
    """Return a table a tier: each constant before and after, and how well it is known."""
    grids = []
    for index, fitted in fit.tiers.items():
        base = cluster.tiers[index]
        before = constants_of(base)._asdict() | {key: getattr(base, key) for key in BASE_FIELDS}
        after = fitted.fabric._asdict() | {key: getattr(fitted.tier, key) for key in BASE_FIELDS}
        rows = [
            [
                name,
                quantity_text(name, before[name]),
                quantity_text(name, after[name]),
                f"±{one.spread:.0%}",
                f"{one.told:.0%}",
            ]
            for name, one in fitted.confidence.items()
        ]
        rate = base.achieved_bandwidth_bytes_per_s * fitted.fabric.rate_factor
        note = (
            f"{fitted.points} points, {fitted.residual:.1%} off on average. Ring rate per GPU: "
            f"{format_si(rate, 'B/s')}. Told: what the sweeps say of it, 0 % is the profile's word."
        )
        titles = columns("Constant", f"{base.link} >", "Fitted >", "Error >", "Told >")
        grids.append(Grid(f"Tier {base.name}", titles, rows, note=note))
    return grids


def _errors(points: pd.DataFrame, keys: pd.Series) -> pd.DataFrame:
    """Return mean errors in percent by `keys`."""
    return points.groupby(keys, sort=True)[["error", "signed", "plain"]].mean() * 100.0


def _percent(value: float) -> str:
    """Write an error in percent, a dash where there is none."""
    return f"{value:.1f} %" if np.isfinite(value) else "–"


def run_grid(fit: ClusterFit) -> Grid:
    """Return the errors by sweep."""
    errors = _errors(fit.points, fit.points["run"])
    held = _errors(fit.held_out, fit.held_out["run"]) if len(fit.held_out) else errors * np.nan
    rows = []
    for run in fit.runs:
        error, signed, plain = (float(value) for value in errors.loc[run.name].to_numpy())
        out = float(held["error"].get(run.name, np.nan))
        rows.append(
            [
                run.name,
                f"{len(run.size_bytes)}",
                _percent(error),
                f"{signed:+.1f} %",
                _percent(out),
                _percent(plain),
            ]
        )
    titles = columns("Sweep", "Points >", "Error >", "Signed >", "Held out >", "Plain ring >")
    note = (
        "Mean relative error of the time. Held out: fitted to every other size, scored on those between. "
        "Plain ring: alpha-beta fitted to that sweep alone."
    )
    return Grid("Errors by sweep", titles, rows, note=note)


def decade_of(points: pd.DataFrame) -> pd.Series:
    """Return the decade that each size lies in."""
    return pd.Series(10.0 ** np.floor(np.log10(points["size"].to_numpy())), index=points.index)


def decade_grid(fit: ClusterFit) -> Grid:
    """Return the errors by decade of the size."""
    errors = _errors(fit.points, decade_of(fit.points))
    count = fit.points.groupby(decade_of(fit.points)).size()
    held = _errors(fit.held_out, decade_of(fit.held_out)) if len(fit.held_out) else errors * np.nan
    rows = []
    for decade, (error, signed, plain) in zip(errors.index, errors.to_numpy(), strict=True):
        span = f"{format_si(decade, 'B', 1)} – {format_si(10 * decade, 'B', 2)}"
        out = float(held["error"].get(decade, np.nan))
        rows.append(
            [span, f"{count[decade]}", _percent(error), f"{signed:+.1f} %", _percent(out), _percent(plain)]
        )
    titles = columns("Size", "Points >", "Error >", "Signed >", "Held out >", "Plain ring >")
    return Grid("Errors by size", titles, rows)


def line_grid(fit: ClusterFit) -> Grid:
    """Return the straight line through each sweep."""
    rows = [
        [
            line.run,
            format_seconds(line.alpha_s),
            f"{1e12 / line.bandwidth_bytes_per_s:.4g} ps/B",
            format_si(line.bandwidth_bytes_per_s, "B/s"),
            format_si(line.crossover_bytes, "B"),
            f"{100 * line.relative_error:.0f} %",
        ]
        for line in fit.lines
    ]
    titles = columns("Sweep", "alpha >", "beta >", "1/beta >", "n* >", "Error >")
    note = "T = alpha + S beta by least squares on the times: what a guide measures. Large sizes rule it."
    return Grid("Straight lines", titles, rows, note=note)


def draw_fit(found: FabricCalibration) -> Any:
    """Draw measured bus bandwidths as dots and the fit as lines, over size."""
    fit, cluster = found.fit, found.cluster
    figure, axes = new_figure(f"Measured (dots) and fitted (lines), from {cluster.name}")
    for run in fit.runs:
        bus = bus_bytes(run.primitive, run.size_bytes, float(run.group.ranks)) / 1e9
        ours = price_run(run, cluster.tiers, fit.tiers)
        (dots,) = axes.plot(run.size_bytes, bus / run.time_s, ".", markersize=5)
        axes.plot(run.size_bytes, bus / ours, color=dots.get_color(), linewidth=1, label=run.name)
    axes.set(xscale="log", yscale="log", xlabel="size [B]", ylabel="bus bandwidth [GB/s]")
    axes.legend(fontsize="small")
    return figure
