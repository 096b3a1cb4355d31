"""Which layout is the best, how surely, and which few are worth a trial: kept layouts priced on common samples.

All candidates see the same values of the factors that they share (one machine, one framework), so that what moves all
alike decides nothing between them. What a layout has of its own is drawn for each; layouts that have a knob in common
share that knob's part of it (`odds`), as layouts of published sweeps do. The best is the one that trials would find:
they see what any two layouts of a sweep differ by besides, which nothing predicts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, exp, sqrt
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from costmodel.base.numbers import distinct, quantiles
from costmodel.describe.factors import Factors, draw, factor_name, factors_of, inherited_factors, job_class
from costmodel.describe.jobs.job import Job
from costmodel.describe.odds import odds
from costmodel.planning.best import Columns, taken
from costmodel.planning.preference import LONGER, Indices
from costmodel.planning.search import JobVariant, layout_of
from costmodel.step.price import price

Array = NDArray[np.float64]

SCREENED = 32
"""Samples that candidates are thinned by. [-]"""
SAMPLES = 256
"""Samples that those left are compared on. [-]"""
FINALISTS = 48
"""Candidates that are left, where there were a quarter more: thinning a few costs more than it saves. [-]"""
MOST_TRIALS = 3
"""Layouts to try at most: more than an evening's are no advice."""
NOISE = 0.02
"""Step times this close are the same to any trial: the median between two releases of one framework. [-]"""


SWEEPS_APART = 0.9
"""Standard deviation of the logarithm of how far layouts of one job err apart. [-]

In 54 published sweeps of four runs and more that differ in the layout alone, errors differ from each other by 3.1 % in
the middle sweep, with logarithms 1.0 apart, of which a few runs a sweep make 0.4.
"""
OF_LAYOUTS = 0.6
"""Share of what two trials differ by (squared) that the same layout would show again. [-]

Such a pair differs by 2.5 % a run in the middle sweep, where one layout that is run again differs by 1.6 %.
"""
REACH = 1.0
"""Octaves of a degree after which errors have a correlation of 1/e. [-]"""
_DEGREES = ("tp", "pp", "cp", "ep")

LAYOUT_KNOBS = ("tp", "pp", "cp", "ep", "zero_stage", "recompute")
"""Knobs that the own error of a layout goes with: those of `costmodel.describe.odds.KnownOdds.layouts`."""


class Trial(NamedTuple):
    """One layout worth trying."""

    row: int
    """Of the kept layouts."""
    best_probability: float
    """That it is the best, or within the noise of it. [-]"""
    regret: float
    """Expected share of step time above the best. [-]"""
    fits_share: float
    """Share of the samples in which it fits. [-]"""
    low_s: float
    """p10, p50 and p90 of its step time. [s]"""
    middle_s: float
    high_s: float
    settles: str
    """The factor that decides most between it and the first; empty for the first, or where only their parallel layouts differ."""


class Shared(NamedTuple):
    """A switch that the search has tuned for every layout to try, and the best candidate without it."""

    switch: str
    column: int
    slower: float
    """By how much the median step of that candidate is longer than that of the first. [-]"""
    in_band: bool
    """Whether that median lies within p90 of the first."""


@dataclass(frozen=True)
class Odds:
    """Candidates of a plan on common samples: arrays are by sample and candidate."""

    rows: Indices
    """Rows of the kept layouts, one a candidate."""
    cost: Array
    """Time in the objective's currency; infinite where it does not fit."""
    step_time_s: Array
    """The same as seconds, whether it fits or not."""
    fits: NDArray[np.bool_]
    shared: Mapping[str, Array]
    """The factors that candidates share."""
    parallel: tuple[Hashable, ...]
    """What makes the parallel layout of each candidate."""
    tuned_switches: tuple[frozenset[str], ...] = ()
    """What the search has tuned for each candidate otherwise than its recipe has it."""

    @property
    def least(self) -> Array:
        """Cost of the best candidate of each sample."""
        return np.asarray(self.cost.min(axis=1))

    @property
    def best(self) -> NDArray[np.bool_]:
        """Whether each candidate is the best of a sample, or within the noise of it; none where nothing fits."""
        return np.asarray(np.isfinite(self.cost) & (self.cost <= (1.0 + NOISE) * self.least[:, None]))

    def regret(self, columns: Sequence[int]) -> float:
        """Return the expected loss of taking the best of some candidates, over the best of all. [-]

        In the samples where one of them fits.
        """
        taken = self.cost[:, list(columns)].min(axis=1)
        known = np.isfinite(taken)
        return float((taken[known] / self.least[known]).mean() - 1.0) if known.any() else float("inf")

    def chosen(self, count: int = MOST_TRIALS) -> list[int]:
        """Return the columns of a few candidates to try, of different parallel layouts.

        The plan's pick, and one after the other that which lowers the expected loss most, none that rather does not fit;
        they are in the order of their ranks.
        """
        found = [0]
        while len(found) < count:
            seen = {self.parallel[column] for column in found}
            others = [
                at
                for at, layout in enumerate(self.parallel)
                if layout not in seen and self.fits[:, at].mean() >= 0.5
            ]
            if not others:
                break
            found.append(min(others, key=lambda at: self.regret_after([*found, at])))
        return [0, *sorted(found[1:], key=lambda at: self.rows[at])]

    def tuned(self, columns: Sequence[int]) -> list[int]:
        """Return the columns of all candidates with the parallel layouts of some: a trial tunes the rest."""
        layouts = {self.parallel[column] for column in columns}
        return [at for at, layout in enumerate(self.parallel) if layout in layouts]

    def regret_after(self, columns: Sequence[int]) -> float:
        """Return the expected loss after trials of the parallel layouts of some candidates, each tuned. [-]"""
        return self.regret(self.tuned(columns))

    def rests_on(self) -> Shared | None:
        """Return the switch that all of the layouts to try share and that saves most; None where there is none.

        What a switch gains is a statement of the model about software, which samples do not doubt. Of several, one
        without which the best candidate is still within the band comes first.
        """
        found = self.chosen()
        if not self.tuned_switches:
            return None
        middle_s, high_s = quantiles(self.step_time_s, 0.5, 0.9)
        runs = self.fits.mean(axis=0) >= 0.5
        every = []
        for switch in sorted(frozenset.intersection(*(self.tuned_switches[column] for column in found))):
            others = [at for at, tuned in enumerate(self.tuned_switches) if switch not in tuned and runs[at]]
            if others:
                best = min(others, key=lambda at: float(middle_s[at]))
                slower = float(middle_s[best] / middle_s[found[0]]) - 1.0
                every.append(Shared(switch, best, slower, bool(middle_s[best] <= high_s[found[0]])))
        every = [one for one in every if one.slower > NOISE]
        return max(every, key=lambda one: (one.in_band, one.slower), default=None)

    def holds(self, columns: Sequence[int]) -> float:
        """Return the probability that the best has the parallel layout of one of some, where any fits at all. [-]"""
        some = np.isfinite(self.least)
        columns_with_layouts = self.tuned(columns)
        return (
            float(self.best[some][:, columns_with_layouts].any(axis=1).mean())
            if columns_with_layouts and some.any()
            else 0.0
        )

    def trials(self) -> list[Trial]:
        """Return the layouts worth trying, the pick first."""
        columns = self.chosen()
        return [self.trial(column, columns[0]) for column in columns]

    def trial(self, column: int, first: int) -> Trial:
        """Return what is known of one candidate."""
        low, middle, high = quantiles(self.step_time_s[:, column], 0.1, 0.5, 0.9)
        return Trial(
            int(self.rows[column]),
            float(self.best[:, column].mean()),
            self.regret([column]),
            float(self.fits[:, column].mean()),
            float(low),
            float(middle),
            float(high),
            "" if column == first else self._decides(column, first),
        )

    def _decides(self, one: int, other: int) -> str:
        """Return the shared factor that explains most of the ratio of two candidates; empty where none explains a tenth."""
        ratio = np.log(self.step_time_s[:, one] / self.step_time_s[:, other])
        if not ratio.std() > 0.0:
            return ""
        explained = {
            name: float(np.corrcoef(np.log(values[:, 0]), ratio)[0, 1]) ** 2
            for name, values in self.shared.items()
            if values.std() > 0.0
        }
        most = max(explained, key=lambda name: explained[name], default="")
        return most if most and explained[most] > 0.1 else ""

    def quantile(self, share: float) -> Array:
        """Return the cost that each candidate does not exceed with a probability of `share`."""
        return np.asarray(np.sort(self.cost, axis=0)[ceil(share * (len(self.cost) - 1))])


def compare(
    variants: Sequence[JobVariant],
    candidates: Columns,
    rows: Indices,
    weight: Callable[[Job], float],
    *,
    seed: int = 0,
    max_memory_bytes: float = np.inf,
) -> Odds:
    """Price kept rows, the plan's pick first, on common samples: few for all, then more for those that may be the best.

    `weight` says what a second of a job costs in the objective's currency.
    """
    price_at = partial(
        _priced, variants, candidates, weight=weight, seed=seed, max_memory_bytes=max_memory_bytes
    )
    without = rows[_without(variants, taken(candidates, rows))]
    rows = rows[_one_a_trial(variants, taken(candidates, rows))]
    if len(rows) > 1.25 * FINALISTS:
        # What only trials see would thin them by luck.
        first = price_at(rows, SCREENED, trials=False)
        # The likeliest, and those of least expected cost: with few samples either alone forgets some.
        finite = np.where(np.isfinite(first.cost), first.cost, 10.0 * first.least[:, None])
        order = np.lexsort((finite.mean(axis=0), -first.best.mean(axis=0)))
        rows = rows[[0, *[index for index in order if index][: FINALISTS - 1]]]
    rows = np.asarray([*rows, *(row for row in without if row not in rows)])
    return price_at(rows, SAMPLES)


def _tuned(variants: Sequence[JobVariant], rows: Columns) -> list[frozenset[str]]:
    """Return what the search has tuned for each row, as texts."""
    return [frozenset(str(choice) for choice in variants[int(job)].choices) for job in rows["job"]]


def _without(variants: Sequence[JobVariant], rows: Columns) -> list[int]:
    """Return, for each thing that the search has tuned for the first row, the best row without it."""
    tuned = _tuned(variants, rows)
    found = []
    for switch in sorted(tuned[0]):
        others = [index for index, of_row in enumerate(tuned) if switch not in of_row]
        if others:
            found.append(min(others, key=lambda index: float(rows["score"][index])))
    return list(dict.fromkeys(found))


_PARALLEL = ("gpus", "tp", "cp", "ep", "etp", "pp")
_TRIAL = (*_PARALLEL, "sequence_parallel", "recompute", "zero_stage")


def _one_a_trial(variants: Sequence[JobVariant], rows: Columns) -> Indices:
    """Return the first row of each trial: micro-batch, virtual stages, shard groups and switches are tuned within one.

    In published sweeps layouts that differ in these alone differ no more than two runs of one layout. What a job has
    today is a trial of its own.
    """
    jobs = [variants[int(job)] for job in rows["job"]]
    origin = np.asarray([float(one.origin if one.slabs else -1) for one in jobs])
    keys = np.stack([origin, *(rows[name] for name in _TRIAL)], axis=1)
    return np.asarray(np.sort(np.unique(keys, axis=0, return_index=True)[1]))


def _priced(
    variants: Sequence[JobVariant],
    candidates: Columns,
    rows: Indices,
    count: int,
    *,
    weight: Callable[[Job], float],
    seed: int,
    max_memory_bytes: float,
    trials: bool = True,
) -> Odds:
    """Price rows at samples, the rows of each job at once."""
    few = taken(candidates, rows)
    cost, step_s = (np.empty((count, len(rows))) for _ in range(2))
    fits = np.empty((count, len(rows)), dtype=bool)
    shared: dict[str, Array] = {}
    for number in map(int, distinct(few["job"])):
        at = np.flatnonzero(few["job"] == number)
        job = variants[number].job
        drawn = sampled(job, taken(few, at), count, seed, trials=trials)
        of_layout = factor_name("layout", job_class(job))
        shared |= {name: values for name, values in drawn.items() if name != of_layout}
        bill = price(replace(job, layout=layout_of(taken(few, at)), factors=drawn)).bill
        room, cluster = drawn[factor_name("room", job.recipe.name)], job.cluster
        offered = np.minimum(room * cluster.accelerator.memory_bytes, max_memory_bytes)
        step_s[:, at] = few[LONGER][at] * bill.step_time_s()
        fits[:, at] = bill.memory_bytes() <= offered
        fits[:, at] &= bill.host_memory_bytes() <= room * cluster.host.memory_bytes
        cost[:, at] = np.where(fits[:, at], weight(job) * step_s[:, at], np.inf)
    origins = [variants[int(number)].origin for number in few["job"]]
    parallel = tuple(zip(origins, *(few[name].tolist() for name in _PARALLEL), strict=True))
    return Odds(rows, cost, step_s, fits, shared, parallel, tuple(_tuned(variants, few)))


def sampled(job: Job, rows: Columns, count: int, seed: int, *, trials: bool = True) -> Factors:
    """Draw the factors of layouts of one job: shared ones, and what layouts err by themselves.

    That is a sum of parts by knob, the same for layouts with the same value and alike for degrees nearby, and with
    `trials` what two parallel layouts differ by besides. Some sweeps scatter more than others: in each sample all of
    it has one scale. What a run differs by from the next of the same layout is no part of it.
    """
    of_layout = factor_name("layout", job_class(job))
    names = [name for name in factors_of(job) if name != of_layout]
    inherited = inherited_factors(job.cluster.accelerator, names)
    shared = draw(names, count, seed=seed, belief=job.belief, inherited=inherited)
    logarithm: Array = np.zeros((count, 1))
    spreads = odds().layouts
    for knob in LAYOUT_KNOBS:
        drawn = _of_degrees if knob in _DEGREES else _of_values
        logarithm = logarithm + spreads[knob] * drawn(knob, rows[knob], count, seed)
    if trials:
        own = sqrt(OF_LAYOUTS) * spreads["run"]
        logarithm = logarithm + own * _of_values("layout", _layout_codes(rows), count, seed)
    return Factors({**shared.over(1), of_layout: np.exp(sweep_scales(count, seed) * logarithm)})


def sweep_scales(count: int, seed: int) -> Array:
    """Return by how much more than usual layouts of a job err apart, a row a sample, 1 in the mean of squares. [-]"""
    z = _of_values("sweep", np.zeros(1), count, seed)
    return np.asarray(np.exp(SWEEPS_APART * z - SWEEPS_APART**2))


def _layout_codes(rows: Columns) -> Array:
    """Return a number for each row that follows from its parallel layout alone: 32 bits of its degrees."""
    table = np.stack([np.asarray(rows[name], dtype=np.float64) for name in _PARALLEL if name in rows], axis=1)
    return np.asarray([crc32(row.tobytes()) for row in table], dtype=np.float64)


def _of_values(knob: str, values: Array, count: int, seed: int) -> Array:
    """Return standard normal samples for each value of a knob, by row: the same wherever the value is."""
    different, where = np.unique(values, return_inverse=True)
    drawn = [
        np.random.default_rng([seed, crc32(f"{knob} {value:.10g}".encode())]).standard_normal(count)
        for value in different
    ]
    return np.stack(drawn, axis=1)[:, where]


def _of_degrees(knob: str, values: Array, count: int, seed: int) -> Array:
    """Return standard normal samples for each value of a degree, by row: the closer two are in octaves, the more alike.

    Of half octaves from 1 on each follows from the one before it, so that a value has the same samples wherever it is.
    """
    places = np.rint(2.0 * np.log2(np.asarray(values, dtype=np.float64)))
    fresh = _of_values(knob, np.arange(places.max() + 1.0), count, seed)
    correlation = exp(-0.5 / REACH)
    drawn = fresh.copy()
    for place in range(1, fresh.shape[1]):
        drawn[:, place] = correlation * drawn[:, place - 1] + sqrt(1.0 - correlation**2) * fresh[:, place]
    return np.asarray(drawn[:, places.astype(np.int64)])


def odds_record(found: Odds, layouts: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the layouts to try as plain data; `layouts` says what a kept row is."""
    columns, shared = found.chosen(), found.rests_on()
    rests_on = shared and {
        "switch": shared.switch,
        "slower_without": shared.slower,
        "step_time_s_without": float(quantiles(found.step_time_s[:, shared.column], 0.5)[0]),
    }
    trials = [trial._asdict() for trial in found.trials()]
    return {
        "samples": len(found.cost),
        "candidates": len(found.rows),
        "holds_best_probability": found.holds(columns),
        "regret_of_plan": found.regret([0]),
        "regret_after_trials": found.regret_after(columns),
        "rests_on": rests_on,
        "layouts": [{**layouts[trial.pop("row")], **trial} for trial in trials],
    }
