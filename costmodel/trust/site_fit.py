"""Measured runs to a site: the posterior of the factors that they speak of, errors left out, rows that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.base.answer import Answer
from costmodel.base.errors import DataError
from costmodel.describe.factors import (
    ROLES,
    Factors,
    Scaled,
    factor_name,
    factors,
    factors_of,
    job_class,
    with_tail,
)
from costmodel.describe.site import Site, make_belief, site_text
from costmodel.estimates.estimate import Estimate
from costmodel.estimates.priced_job import PricedJob
from costmodel.step.price import price
from costmodel.trust.own_runs import OwnRun
from costmodel.trust.posterior import MISFIT, Posterior, Priors, left_out_errors, line_at, posterior
from costmodel.trust.published_runs import seen_by_kind

Array = NDArray[np.float64]

SITE_SHARE: Mapping[Scaled, float] = {"time": 0.37, "memory": 0.63}
"""Of the variance that no kernel and no message explains, what all runs of a site have in common: the intraclass
correlation of published residuals by source, family left out, clipped at their p95 (tools/pages/own_runs.py)."""

WIDER = {
    role: 2.0 for role in ("matmul", "grouped_matmul", "attention", "memory_kernels", "launch", "collective")
}
"""Times its shipped spread that a constant of a benchmark may be off at a site: benchmarks tell of other machines, drivers and
releases. The published runs of all sources are likeliest with 2 (marginal likelihood of their residuals, sources
alike; 1.5 and 3 come close). Nothing is believed less than it was shipped: what runs leave is cut to that."""

LEAST_CHANGE = 0.01
"""A factor whose spread the runs narrow by less, and whose center they move by less than so many prior spreads, is left
as it is shipped: nothing was said of it. [-]"""

ROW_TAIL = 3.0  # Degrees of freedom of what single rows are off by, as the shipped factor `layout` has. [-]

FAR = ("collective",)
"""Roles whose shipped spreads are of fabrics that work as they should; that of a site may be far off."""

FAR_TAIL = 1.0
"""Degrees of freedom of their priors at a site: with twice a spread of 3 %, one in twenty-five is off by a factor of three."""

_FAR_TIMES = (1.5, 2.5, 4.0, 7.0)
"""Of its profile's time, that a fabric is tried at: messages that hide at the profile's speed do not tell it."""
_WITHIN = float(with_tail(np.asarray(1.2816), ROW_TAIL))
"""Scales of Student's t of `ROW_TAIL` to its p90. [-]"""
_LEAST_SCALE = 1e-3
_NOISE = 0.02
"""Least scale of one step time: published repeats of a layout differ by as much between releases. [-]"""


_UNITS = {"ms for s": 1000.0, "minutes for s": 60.0, "GB for B": 1e9, "GiB for B": 2.0**30}
"""Mistakes of units, and what they multiply by."""


class FactorMove(NamedTuple):
    """A factor before and after the runs: center and spread of its natural logarithm."""

    name: str
    scales: str
    prior_center: float
    prior_spread: float
    center: float
    spread: float

    @property
    def variance_explained(self) -> float:
        """Share of the prior variance that the runs took away. [-]"""
        return max(1.0 - (self.spread / self.prior_spread) ** 2, 0.0)

    @property
    def moved(self) -> float:
        """How far the center moved, in prior spreads. [-]"""
        return (self.center - self.prior_center) / self.prior_spread


class RunFit(NamedTuple):
    """One measurement of a run: predicted before, by all other rows, and by all; and why it does not fit, "" where it does."""

    run: str
    what: Scaled
    measured: float
    before: float
    left_out: float
    after: float
    scaled: float
    why: str

    @property
    def fits(self) -> bool:
        """Whether the factors explain it."""
        return not self.why


class Moved(NamedTuple):
    """How far the runs move step times, and what holds that back."""

    # Measured, and predicted with all runs, over what is shipped, less 1: medians of the rows that fit. [-]
    measured: float
    predicted: float
    # What is taken to be common to all runs of a site, and of each run alone: p90 of it, less 1. [-]
    site: float
    row: float


class _Part(NamedTuple):
    """What was learned from one kind of figure; `own` is the variance that each job has of its own, `before` a spread."""

    names: tuple[str, ...]
    priors: Priors
    own: Array
    found: Posterior
    fits: tuple[RunFit, ...]

    def moves(self) -> Iterator[tuple[int, FactorMove]]:
        """Yield the factors that the runs say something of, with their index."""
        spreads = np.sqrt(np.diag(self.covariance()))
        for index, name in enumerate(self.names):
            factor, center = factors()[name], float(self.found.center[index])
            before = float(np.hypot(self.priors.scale[index], np.sqrt(self.own[index])))
            if factor.role.name in WIDER:
                before = max(factor.spread, _LEAST_SCALE)
            prior, spread = float(self.priors.center[index]), float(spreads[index])
            moved = abs(center - prior) / self.priors.scale[index]
            if 1.0 - spread / before > LEAST_CHANGE or moved > LEAST_CHANGE:
                yield index, FactorMove(name, factor.scales, prior, before, center, spread)

    def covariance(self) -> Array:
        """Return the posterior's, with no constant of kernels less sure than it is shipped."""
        known = [factors()[name] for name in self.names]
        held = self.found.covariance + np.diag(self.own)
        most = np.array(
            [max(one.spread, _LEAST_SCALE) if one.role.name in WIDER else np.inf for one in known]
        )
        cut = np.minimum(most / np.sqrt(np.diag(held)), 1.0)
        return np.asarray(held * np.outer(cut, cut))


@dataclass(frozen=True, repr=False)
class RunsCalibration(Answer):
    """What measured runs say of the factors."""

    runs: tuple[OwnRun, ...]  # Jobs with what was measured
    site: Site  # Posterior of the factors that they speak of
    moves: tuple[FactorMove, ...]  # These factors, those of which most was told first
    fits: tuple[RunFit, ...]  # A row a measurement

    @cached_property
    def errors(self) -> dict[str, float]:
        """Median size of the relative error of step times: before, left out, after. [-]"""
        of_time = [fit for fit in self.fits if fit.what == "time"]
        return {
            key: float(np.median([abs(getattr(fit, key) / fit.measured - 1.0) for fit in of_time]))
            if of_time
            else 0.0
            for key in ("before", "left_out", "after")
        }

    @cached_property
    def moved(self) -> Moved | None:
        """How far step times were off and how far they were moved; None where no row that fits has one."""
        of_time = [fit for fit in self.fits if fit.what == "time" and fit.fits]
        if not of_time:
            return None
        measured, predicted = (
            float(np.median([getattr(fit, key) / fit.before - 1.0 for fit in of_time]))
            for key in ("measured", "after")
        )
        timed = [run.est for run in self.runs if np.isfinite(run.time_s)]
        shared, row = (
            float(np.median([np.expm1(_WITHIN * one) for one in scales]))
            for scales in zip(*((site_scale(est), row_scale(est)) for est in timed), strict=True)
        )
        return Moved(measured, predicted, shared, row)

    def to_dict(self) -> dict[str, Any]:
        """Return factors and rows."""
        return {
            "schema_version": 1,
            "factors": [
                {**move._asdict(), "variance_explained": move.variance_explained} for move in self.moves
            ],
            "rows": [{**fit._asdict(), "fits": fit.fits} for fit in self.fits],
            "median_error": self.errors,
            "moved": None if self.moved is None else self.moved._asdict(),
        }

    def columns(self) -> dict[str, list[Any]]:
        """Return a row a measurement."""
        keys = ("run", "what", "measured", "before", "left_out", "after", "fits", "why")
        return {key: [getattr(fit, key) for fit in self.fits] for key in keys}

    def files(self, path: str | Path) -> dict[Path, str]:
        """Return the site file with its text."""
        if not self.moves:
            raise DataError("calibrate: nothing to write: the runs say nothing of any factor")
        return {Path(path): site_text(self.site)}


def fit_site(runs: Sequence[OwnRun], progress: Callable[[int, int], None] | None = None) -> RunsCalibration:
    """Update the factors by measured runs."""
    if not runs:
        raise DataError("runs: expected at least one measured run")
    for run in runs:
        run.est.require_single(run.name)
    parts = {what: part for what in ("time", "memory") if (part := _part(runs, what, progress)) is not None}
    moves: list[FactorMove] = []
    tails: list[float] = []
    blocks: list[Array] = []
    for what, part in parts.items():
        moved_factors = list(part.moves())
        kept = [index for index, _ in moved_factors]
        moves += [move for _, move in moved_factors]
        tails += [float("inf")] * len(moved_factors)
        blocks.append(part.covariance()[np.ix_(kept, kept)])
        for move in _of_layouts(runs, part) if what == "time" else ():
            moves.append(move)
            tails.append(ROW_TAIL)
            blocks.append(np.array([[move.spread**2]]))
    fits = tuple(fit for part in parts.values() for fit in part.fits)
    names, centers = [move.name for move in moves], [move.center for move in moves]
    belief = make_belief(names, centers, _diagonal(blocks), tails, "own runs")
    prior = {move.name: (move.prior_center, move.prior_spread) for move in moves}
    site = Site(belief, "", prior, tuple(_run_record(run, fits) for run in runs))
    moves.sort(key=lambda move: -max(move.variance_explained, abs(move.moved)))
    return RunsCalibration(tuple(runs), site, tuple(moves), fits)


def _run_record(run: OwnRun, fits: Sequence[RunFit]) -> dict[str, Any]:
    """Return a run as the site file keeps it."""
    job = run.est.job
    stated: dict[str, Any] = {
        "name": run.name,
        "model": job.model.name,
        "cluster": job.cluster.name,
        "gpus": round(float(job.layout.gpus)),
    }
    for name, value in (("step_time_s", run.time_s), ("memory_bytes", run.memory_bytes)):
        if np.isfinite(value):
            stated[name] = float(f"{value:.5g}")
    return {**stated, "fits": all(fit.fits for fit in fits if fit.run == run.name)}


def _diagonal(blocks: Sequence[Array]) -> Array:
    """Return a matrix with blocks on its diagonal."""
    size = sum(len(block) for block in blocks)
    found, at = np.zeros((size, size)), 0
    for block in blocks:
        found[at : at + len(block), at : at + len(block)] = block
        at += len(block)
    return found


def _of_layouts(runs: Sequence[OwnRun], part: _Part) -> list[FactorMove]:
    """Return the spread of single layouts before and after, of the classes whose steps were measured."""
    found = {}
    for run in runs:
        if np.isfinite(run.time_s):
            factor = factors()[factor_name("layout", job_class(run.est.job))]
            after = row_scale(run.est) * part.found.widening
            found[factor.name] = FactorMove(factor.name, factor.scales, 0.0, factor.spread, 0.0, after)
    return list(found.values())


def row_scale(est: Estimate) -> float:
    """Return the scale of what a single step time is off by: the shipped one less what all runs of a site share. [-]"""
    of_site, of_row = _shared(est)
    return float(np.sqrt(max(of_site**2 + of_row**2 - _site_variance(of_site, of_row), _NOISE**2)))


def site_scale(est: Estimate) -> float:
    """Return the scale of what all runs of a site share beyond kernels and messages. [-]"""
    return float(np.sqrt(_site_variance(*_shared(est))))


def _shared(est: Estimate) -> tuple[float, float]:
    """Return the shipped spreads of what nothing explains, of a class and of a layout."""
    kind = job_class(est.job)
    return factors()[factor_name("unexplained", kind)].spread, factors()[factor_name("layout", kind)].spread


def _site_variance(of_class: float, of_layout: float) -> float:
    """Return the variance of what all runs of a site share."""
    return max(of_class**2, SITE_SHARE["time"] * (of_class**2 + of_layout**2))


def _part(runs: Sequence[OwnRun], what: Scaled, progress: Callable[[int, int], None] | None) -> _Part | None:
    """Learn from one kind of figure; none where nobody measured it."""
    measured = np.array([run.time_s if what == "time" else run.memory_bytes for run in runs])
    taken = [run for run, value in zip(runs, measured, strict=True) if np.isfinite(value)]
    if not taken:
        return None
    names = _names(taken, what)
    priors, own = _priors(names, taken, what)
    logs = np.log(measured[np.isfinite(measured)])

    def model(points: Array) -> Array:
        rows = []
        for done, run in enumerate(taken, start=1):
            rows.append(_priced(run, names, points, what))
            if progress is not None:
                progress(done, len(taken))
        return np.stack(rows, axis=1)

    if what == "time":
        scale = np.array([np.hypot(row_scale(run.est), run.error) for run in taken])
        before = np.array([float(run.est.step_time_s) for run in taken])
    else:
        _, slopes = line_at(model, priors.center)
        scale = np.maximum(np.sqrt(slopes**2 @ own), _LEAST_SCALE)
        own = np.where((slopes != 0).any(axis=0), own, 0.0)
        before = np.array([run.model_memory_bytes for run in taken])
    found = posterior(model, logs, priors, scale, ROW_TAIL, _probes(names, priors))
    held_out = left_out_errors(found, logs, priors, scale, ROW_TAIL)
    fits = tuple(
        RunFit(
            run.name,
            what,
            float(np.exp(logs[row])),
            float(before[row]),
            float(np.exp(logs[row] - held_out[row])),
            float(np.exp(logs[row] - found.residual[row])),
            float(found.scaled[row]),
            _why(found, row, names, priors),
        )
        for row, run in enumerate(taken)
    )
    return _Part(names, priors, own, found, fits)


def _names(runs: Sequence[OwnRun], what: Scaled) -> tuple[str, ...]:
    """Return the factors of a kind of figure that the jobs share."""
    every = (name for run in runs for name in factors_of(run.est.job))
    roles = {
        role.name
        for role in ROLES.values()
        if role.of == what and not role.each_layout and role.name != "room"
    }
    return tuple(dict.fromkeys(name for name in every if name.partition(".")[0] in roles))


def _priors(names: Sequence[str], runs: Sequence[OwnRun], what: Scaled) -> tuple[Priors, Array]:
    """Return the priors of what a site shares, and the variance that each job has of its own."""
    shipped = [factors()[name] for name in names]
    scale = np.array([one.spread for one in shipped])
    own = np.zeros(len(names))
    if what == "memory":
        own = (1.0 - SITE_SHARE["memory"]) * scale**2
        scale = np.sqrt(SITE_SHARE["memory"]) * scale
    for run in runs if what == "time" else ():
        name = factor_name("unexplained", job_class(run.est.job))
        scale[list(names).index(name)] = np.sqrt(_site_variance(*_shared(run.est)))
    center, wider, tail = np.array([prior_at_site(name) for name in names]).T
    return Priors(center, np.maximum(wider * scale, _LEAST_SCALE), tail), own


def prior_at_site(name: str) -> tuple[float, float, float]:
    """Return center, times its shipped spread, and degrees of freedom of a factor's prior at a site."""
    shipped = factors()[name]
    role = shipped.role.name
    return shipped.center, WIDER.get(role, 1.0), FAR_TAIL if role in FAR else shipped.tail


def _probes(names: Sequence[str], priors: Priors) -> list[Array]:
    """Return points at which a fabric alone is far from its profile."""
    far = [index for index, name in enumerate(names) if factors()[name].role.name in FAR]
    step = np.eye(len(names))
    return [priors.center + np.log(times) * step[index] for index in far for times in _FAR_TIMES]


def _priced(run: OwnRun, names: Sequence[str], points: Array, what: Scaled) -> Array:
    """Return the logarithm of a run's figure at points of the factors: one pricing of all of them."""
    used = {*factors_of(run.est.job)}
    values = {name: np.exp(points[:, index]) for index, name in enumerate(names) if name in used}
    job = replace(run.est.job, factors=Factors(values))
    factor = run.est.priced.step.order_factor
    priced = PricedJob(job, price(job, every_stage=what == "memory", order_factor=factor))
    figure = priced.step_time_s if what == "time" else seen_by_kind(priced.bill, run.memory_kind)
    return np.asarray(np.log(np.broadcast_to(figure, (len(points),))))


def _why(found: Posterior, row: int, names: Sequence[str], priors: Priors) -> str:
    """Say why a row does not fit, nothing where it does."""
    if abs(found.scaled[row]) < MISFIT:
        return ""
    ratio = float(np.exp(found.residual[row]))
    stated = f"measured is {ratio:.3g} times what all factors together allow for"
    for unit, factor in _UNITS.items():
        if abs(abs(np.log(ratio)) - np.log(factor)) < 0.4:
            return f"{stated}: a unit ({unit})?"
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = found.residual[row] / found.slopes[row]
    spreads = np.where(found.slopes[row] != 0, np.abs(needed) / priors.scale, np.inf)
    nearest = int(np.argmin(spreads))
    if not np.isfinite(spreads[nearest]) or spreads[nearest] > 30:
        return f"{stated}: another job, batch or number of GPUs?"
    return f"{stated}; {names[nearest]} alone would have to be {spreads[nearest]:.0f} spreads off"
