"""The result of a search: every layout that divides was priced; the best and the Pareto front are kept and ranked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from costmodel.base.errors import LayoutError, NoLayoutError, NothingFitsError
from costmodel.base.words import common_device, errors_with_device_name
from costmodel.describe.jobs.fields import KNOBS, QUANTILES
from costmodel.describe.jobs.job import Job
from costmodel.estimates.estimate import Estimate, estimate_job
from costmodel.physics.pipeline.schedules import valid
from costmodel.planning.best import BestLayouts, Columns, best_rows, joined, taken, with_firsts
from costmodel.planning.choices import Choice
from costmodel.planning.columns import plan_columns
from costmodel.planning.no_layout import nothing_divides, nothing_fits
from costmodel.planning.preference import (
    LONGER,
    TIE_SHARE,
    Indices,
    best_by_value,
    listed,
    ranked,
    unsimulated,
    with_simulation,
)
from costmodel.planning.request import Request, framework_values
from costmodel.planning.search import JobVariant, Question, layout_of
from costmodel.planning.tuning import Progress, SwitchSearch
from costmodel.planning.uncertain import Odds, Trial, compare

Array = NDArray[np.float64]

MAX_KEPT = 1000
"""Layouts that a search keeps by default."""
_MAX_SIMULATED_ROWS = 64
"""Rows of a table up to which each is estimated with its simulated pipeline; longer tables show the search's prices."""
CURRENT = -1
"""`job` of the row of the current layout, whose variant is the last one."""


class ComparedLayout(NamedTuple):
    """The layout that the user's job has, compared with the pick."""

    est: Estimate
    rank: int | None
    """Rank among all layouts that fit; None where it does not."""
    num_fit: int
    slower: float
    """Its score over that of the pick, minus one. [-]"""
    unrequested: tuple[str, ...]
    """Knobs whose value is not among the requested ones."""


class CurrentLayout(NamedTuple):
    """The layout that the user's job has, as a row of the search and a variant of one layout."""

    row: Columns
    priced: JobVariant
    runs: bool
    """Whether it fits under the plan's limits and has the requested values."""
    unrequested: tuple[str, ...]

    @property
    def score(self) -> float:
        """Score by its bill; less is better."""
        return float(self.row["score"][0])

    def among(self, candidates: BestLayouts, estimate_of: Callable[[Columns, int], Estimate]) -> BestLayouts:
        """Return the kept layouts with its simulated row: ranked where it runs, else last."""
        row = with_simulation(self.row, [0], estimate_of)
        if not self.runs:
            return candidates._replace(top=joined([candidates.top, row]))
        same = np.all([candidates.top[name] == row[name] for name in ("gpus", *KNOBS)], axis=0)
        for name in ("step_time_s", "memory_bytes"):
            same &= np.isclose(candidates.top[name], row[name], rtol=1e-9)
        top = taken(candidates.top, np.flatnonzero(~same))
        return BestLayouts(top, candidates.front).merged(BestLayouts(row, row), top["score"].size + 1)


def _price_current(job: Job, request: Request) -> CurrentLayout:
    """Price the layout of the user's job, as a variant of the question's job that differs least from it."""
    question, est = request.question, estimate_job(job)
    memory, step_s = float(est.memory_bytes_per_gpu), float(est.step_time_s)
    numbers = {
        "score": step_s * question.weight(job),
        "memory_bytes": memory,
        "host_share": np.divide(est.host_memory_bytes, est.host_memory_capacity_bytes),
        "step_time_s": step_s,
        "job": CURRENT,
        "gpus": job.layout.gpus,
        **{knob: getattr(job.layout, knob) for knob in KNOBS},
    }
    row = unsimulated({name: np.asarray([float(number)]) for name, number in numbers.items()})
    # The framework's default values do not restrict a layout that somebody already runs; the user's values do.
    allowed = framework_values(request.framework) | {
        knob: question.knob_values[knob] for knob in question.user_knobs
    }
    unrequested = [knob for knob, values in allowed.items() if float(row[knob][0]) not in values]
    if "axis_order" in question.user_switches and job.axis_order not in {
        one.axis_order for one in question.jobs
    }:
        unrequested.append("axis_order")
    layout, file = job.layout, question.file
    for batch in file.batches if file is not None else ():
        micro_batches = batch / float(layout.dp * layout.micro_batch)
        runs = valid(layout.schedule, layout.pp, micro_batches, layout.vp)
        if micro_batches % 1.0 or not np.all(runs):
            unrequested.append(f"the schedule's batch {batch}")
            break
    fits = bool(est.fits) and memory <= question.limit_bytes(job)
    if question.headroom is None:
        fits = fits and float(est.fits_probability) >= 1.0 - question.accepted_risk

    def differences(other: Job) -> int:
        facts = [
            (one.cluster.name, float(one.layout.gpus), one.precision, float(one.global_batch))
            for one in (job, other)
        ]
        return sum(ours != theirs for ours, theirs in zip(*facts, strict=True))

    origin = min(range(len(question.jobs)), key=lambda index: differences(question.jobs[index]))
    before = question.jobs[origin]
    choices = [
        Choice({name: value})
        for name, value in job.switches.items()
        if name in before.switches and before.switches[name] != value
    ]
    if job.axis_order != before.axis_order:
        choices.append(Choice(axis_order=job.axis_order))
    return CurrentLayout(
        row,
        JobVariant(CURRENT, job, (), origin, tuple(choices)),
        fits and not unrequested,
        tuple(unrequested),
    )


class SearchResult:
    """The best layouts of a search, the Pareto front, and the number of layouts rejected for each reason."""

    def __init__(self, request: Request, tuned: SwitchSearch, own: CurrentLayout | None) -> None:
        self.question, self.current_problem, self.assumed = request.question, request.problem, request.assumed
        self.variants, self.tally, self.rejected = tuned.variants, tuned.tally, +tuned.rejected
        self._ladders, self._current = tuned.ladders, own
        self._estimates: dict[tuple[float, ...], Estimate] = {}
        objective = self.question.objective
        share = int(objective[1:]) / 100.0 if objective in QUANTILES else None
        assert self.tally.candidates is not None
        candidates = self.tally.candidates
        if share is None and self.question.search_switches:
            # Keep the best layout without each switch, so that its gain can be shown.
            candidates = candidates._replace(top=with_firsts(candidates.top, list(self.tally.first.values())))
        by_value = {knob: dict(values) for knob, values in self.tally.by_value.items()}
        if own is not None:
            self.variants.append(own.priced)
            for knob, values in by_value.items() if own.runs else ():
                value = float(own.row[knob][0])
                values[value] = min(values.get(value, np.inf), own.score)
        self.candidates = ranked(candidates, self.jobs, self._origins, self.estimate_of)
        if own is not None:
            self.candidates = own.among(self.candidates, self.estimate_of)
        self.by_value = best_by_value(self.candidates.top, by_value)
        if share is not None:
            self._rank_by_quantile(share)

    @classmethod
    def search(
        cls, problem: Question | Request, *, num_candidates: int = MAX_KEPT, progress: Progress | None = None
    ) -> Self:
        """Price every layout that divides, and keep the `num_candidates` best."""
        request = problem if isinstance(problem, Request) else Request(problem)
        question = request.question
        if not question.jobs:
            raise LayoutError("plan: no job to plan")
        with errors_with_device_name(common_device(job.cluster.accelerator.called for job in question.jobs)):
            own = None if request.own is None else _price_current(request.own, request)
            tuned = SwitchSearch(
                question, num_candidates, progress, own.score if own is not None and own.runs else np.inf
            )
            tuned.price_spaces()
            tuned.tune()
            if tuned.tally.candidates is None:
                raise cls._no_layout_error(request, tuned)
            tuned.rejected["does_not_fit"] = tuned.tally.num_priced - tuned.tally.num_fit
            return cls(request, tuned, own)

    @classmethod
    def _no_layout_error(cls, request: Request, tuned: SwitchSearch) -> NoLayoutError:
        """Return the error that says why no layout is left, and what would do."""
        question = request.question
        if tuned.tally.leanest is None:
            return NoLayoutError(nothing_divides(question, tuned.rejected))
        one, layout = tuned.variants[int(tuned.tally.leanest["job"][0])], layout_of(tuned.tally.leanest, 0)
        leanest = estimate_job(replace(one.job, layout=layout))
        # The inner search needs its pick only.
        error = NothingFitsError(
            nothing_fits(question, one, leanest, lambda other: cls.search(other).best, request.assumed)
        )
        error.leanest = leanest
        return error

    def _rank_by_quantile(self, share: float) -> None:
        """Order kept layouts by the step time that each does not exceed with a probability of `share`.

        Scores stay comparable with `by_value`, in seconds of the nominal step: each is the best score times the ratio of
        the quantiles. Layouts that were not sampled are dropped.
        """
        rows = self.listed
        if self.current_row is not None and self.current_row not in rows:
            rows = np.asarray([*rows, self.current_row])
        found = self._compared(np.sort(rows), lambda job: 1.0)
        quantile = found.quantile(share)
        if np.isfinite(quantile).any():
            top = taken(self.candidates.top, found.rows)
            top["score"] = top["score"].min() * quantile / quantile.min()
            self.candidates = BestLayouts(best_rows(top, top["score"].size), self.candidates.front)
        # Cached row indices refer to the old order.
        for name in ("current_row", "_listed"):
            self.__dict__.pop(name, None)

    @cached_property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs that `job` of a row indexes: those of the question, then those with other choices."""
        return tuple(one.job for one in self.variants)

    @property
    def _origins(self) -> list[int]:
        return [one.origin for one in self.variants]

    @property
    def num_priced(self) -> int:
        """Layouts that were priced."""
        return self.tally.num_priced

    @property
    def num_fit(self) -> int:
        """Layouts that fit."""
        return self.tally.num_fit

    @property
    def num_considered(self) -> int:
        """Layouts that were priced or rejected."""
        out = sum(count for reason, count in self.rejected.items() if reason != "does_not_fit")
        return self.num_priced + out

    def estimate_of(self, columns: Columns, row: int) -> Estimate:
        """Return the estimate of one row, cached by layout."""
        key = tuple(float(columns[name][row]) for name in ("job", "gpus", *KNOBS))
        if key not in self._estimates:
            job = self.variants[int(key[0])].job
            self._estimates[key] = estimate_job(replace(job, layout=layout_of(columns, row)))
        return self._estimates[key]

    def job_of_row(self, row: int) -> int:
        """Return which of the question's jobs a row belongs to."""
        return self.variants[int(self.candidates.top["job"][row])].origin

    def __len__(self) -> int:
        return int(self.candidates.top["score"].size)

    @cached_property
    def _listed(self) -> tuple[Indices, Indices]:
        """Kept rows to list, the pick first, and the number of similar rows that each represents."""
        runs = self._current is not None and self._current.runs
        return listed(self.candidates.top, self.jobs, self._origins, own=self.current_row, runs=runs)

    @property
    def listed(self) -> Indices:
        """Kept rows worth listing: the pick, then by score; see `costmodel.planning.preference.listed`."""
        return self._listed[0]

    @property
    def pick(self) -> int:
        """The row of the pick: the simplest of those within `TIE_SHARE` of the fastest."""
        return int(self.listed[0])

    @property
    def pick_score(self) -> float:
        """Score of the pick; less is better."""
        return float(self.candidates.top["score"][self.pick])

    @cached_property
    def odds(self) -> Odds:
        """The layouts worth listing, priced on common samples of everything that is uncertain."""
        return self._compared(self.listed, self.question.weight)

    def _compared(self, rows: Indices, weight: Callable[[Job], float]) -> Odds:
        limit = self.question.max_memory_bytes
        return compare(self.variants, self.candidates.top, rows, weight, max_memory_bytes=limit)

    def trials(self) -> list[tuple[Estimate, Trial]]:
        """Return the few parallel layouts worth a trial, the pick first, with what is known of each."""
        return [(self.estimate_of(self.candidates.top, trial.row), trial) for trial in self.odds.trials()]

    @cached_property
    def best(self) -> Estimate:
        """The estimate of the pick: the simplest layout within `TIE_SHARE` of the fastest."""
        return self.estimate_of(self.candidates.top, self.pick)

    @cached_property
    def fastest(self) -> Estimate:
        """The estimate of the layout with the least score, by the simulation of its pipeline."""
        return self.estimate_of(self.candidates.top, 0)

    def top(self, count: int = 10) -> list[Estimate]:
        """Return the estimates of the layouts worth trying: the pick, then by score; the job's own is among them."""
        return [self.estimate_of(self.candidates.top, row) for row in self.shown(count)]

    def shown(self, count: int) -> Indices:
        """Return the kept rows to show: as many as requested, and the job's own layout wherever it stands."""
        rows = self.listed[:count]
        if self.current_row is None or self.current_row in rows:
            return rows
        return np.asarray([*rows, self.current_row])

    @cached_property
    def current_row(self) -> int | None:
        """The kept row of the current layout; None where the job has none."""
        return (
            None if self._current is None else int(np.flatnonzero(self.candidates.top["job"] == CURRENT)[0])
        )

    @property
    def yours(self) -> ComparedLayout | None:
        """The current layout compared with the pick; None where the job has none."""
        row = self.current_row
        if row is None or self._current is None:
            return None
        slower = float(self.candidates.top["score"][row]) / self.pick_score - 1.0
        est, rank = self.estimate_of(self.candidates.top, row), self.ranks[row]
        # A layout outside the search is not counted in `num_fit`.
        return ComparedLayout(est, rank, max(self.num_fit, rank or 0), slower, self._current.unrequested)

    @cached_property
    def ranks(self) -> list[int | None]:
        """The rank of each kept row, the same in every table: the pick is 1, then by score; none of what cannot run."""
        count, own = len(self), self.current_row
        ranks: list[int | None] = [row + 1 + (row < self.pick) for row in range(count)]
        ranks[self.pick] = 1
        if own is not None and own != self.pick:
            if self.tally.num_better >= count - 1:
                # Better layouts exist that were not kept.
                ranks[own] = self.tally.num_better + 1
            if self._current is not None and not self._current.runs:
                ranks[own] = None
        return ranks

    def row_of(self, rank: int) -> int:
        """Return the kept row of a rank."""
        if rank not in self.ranks:
            known = max(number for number in self.ranks if number is not None and number <= len(self))
            raise LayoutError(
                f"why-not: no row has number {rank}; the layouts that were kept have 1 to {known}"
            )
        return self.ranks.index(rank)

    def marks(self, row: int) -> str:
        """Return the labels of a kept row: yours, the fastest, the simplest of the fastest."""
        marks = ["yours"] if row == self.current_row else []
        if row == self.current_row and self._current is not None and not self._current.runs:
            fits = bool(self.estimate_of(self.candidates.top, row).fits)
            marks.append(
                "not as asked" if self._current.unrequested else "too full" if fits else "does not fit"
            )
        elif row == 0:
            marks.append("fastest")
        elif row == self.pick:
            marks.append(f"simplest within {TIE_SHARE:.1%}")
        return ", ".join(marks)

    def pareto(self) -> list[Estimate]:
        """Return the layouts that no other beats in objective and memory both, best objective first."""
        return [
            self.estimate_of(self.candidates.front, row) for row in range(self.candidates.front["score"].size)
        ]

    @property
    def memory_gain(self) -> float:
        """Share of the step that memory enough for any layout would save, with the recipe's own switches. [-]."""
        # The pick's job with its recipe's own switches if that was searched, else with the pick's switches.
        job = self.job_of_row(self.pick)
        job = job if job in self.tally.fastest_s else int(self.candidates.top["job"][self.pick])
        fitting_s = self.tally.best_score.get(job, self.pick_score) / self.question.weight(self.jobs[job])
        return 1.0 - min(float(self.tally.fastest_s[job]) / fitting_s, 1.0)

    def rank_of(self, score: float) -> int:
        """Return the rank of a layout of this score: that of its kept row, else one more than the better ones."""
        rows = np.flatnonzero(np.isclose(self.candidates.top["score"], score, rtol=1e-12, atol=0.0))
        kept = self.ranks[int(rows[0])] if rows.size else None
        return kept or self.num_better_than(score) + 1

    def num_better_than(self, score: float) -> int:
        """Count the layouts that fit and score better (the rank of one is one more).

        Kept layouts count by their simulated score, others by their bills.
        """
        top, least = self.candidates.top, score * (1.0 - 1e-12)
        found = top["job"] != CURRENT
        billed = top["score"] / top[LONGER]
        count = int(np.sum(found & (top["score"] < least)) - np.sum(found & (billed < least)))
        for one in self.variants:
            for part in one.parts():
                better = part.step_time_s * self.question.weight(one.job) < least
                count += int(np.sum(better & self.question.fits(part, one.job)))
        return count

    def columns(self, count: int | None = None) -> dict[str, list[Any]]:
        """Return layouts as columns: rank, figures, knobs by name, and whether on the Pareto front.

        With `count`, those of `top` and the number of similar rows of each; without, all kept rows.
        """
        if count is None:
            rows = sorted(range(len(self)), key=lambda row: (self.ranks[row] is None, self.ranks[row]))
            return self.columns_of(rows)
        shown = self.shown(count)
        alike = dict(zip(*(part.tolist() for part in self._listed), strict=True))
        return {**self.columns_of(shown), "num_alike": [alike.get(int(row), 1) - 1 for row in shown]}

    def columns_of(self, rows: Sequence[int] | Indices) -> dict[str, list[Any]]:
        """Return kept rows as columns, with the figures of the search."""
        at = np.asarray(rows, dtype=np.int64)
        return {
            "rank": [self.ranks[row] for row in at],
            "mark": [self.marks(int(row)) for row in at],
            **plan_columns(self.variants, self.candidates, self._one_by_one(taken(self.candidates.top, at))),
        }

    def pareto_columns(self) -> dict[str, list[Any]]:
        """Return the front as columns; ranks are known of what is among the kept layouts."""
        top, front = (
            list(zip(*(part[name].tolist() for name in ("job", *KNOBS)), strict=True))
            for part in self.candidates
        )
        place = {key: row for row, key in enumerate(top)}
        rows = [place.get(key) for key in front]
        return {
            "rank": [None if row is None else self.ranks[row] for row in rows],
            "mark": ["" if row is None else self.marks(row) for row in rows],
            **plan_columns(self.variants, self.candidates, self._one_by_one(self.candidates.front)),
        }

    def _one_by_one(self, rows: Columns) -> Columns:
        """Return rows with the figures of their estimates, up to `_MAX_SIMULATED_ROWS` rows."""
        count = rows["score"].size
        return with_simulation(rows, range(count), self.estimate_of) if count <= _MAX_SIMULATED_ROWS else rows
