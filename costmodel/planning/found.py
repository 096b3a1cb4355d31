"""A question searched: every layout that divides is priced, the best and the front are kept, and have one rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from costmodel.base.errors import LayoutError, NoLayoutError, NothingFitsError
from costmodel.base.words import common_device, errors_called
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
from costmodel.planning.tuning import Progress, Tuned
from costmodel.planning.uncertain import Odds, Trial, compare

Array = NDArray[np.float64]

KEPT = 1000
"""Layouts that a search keeps by default."""
_FEW = 64
"""Rows of a table whose figures are those of their estimates; of more they are as the search priced them."""
OWN = -1
"""`job` of the row of the user's own layout, whose variant is the last one."""


class Yours(NamedTuple):
    """The layout that a job has today, compared with the pick."""

    est: Estimate
    rank: int | None
    """Among all layouts that fit; none where it is not among them."""
    num_fit: int
    slower: float
    """Its score over that of the pick, less one. [-]"""
    unasked: tuple[str, ...]
    """Knobs of which it has another value than those requested."""


class Own(NamedTuple):
    """The user's own layout, as a row of the search and a variant without other layouts."""

    row: Columns
    priced: JobVariant
    runs: bool
    """Whether it fits as a plan's layouts have to, and has the requested values."""
    unasked: tuple[str, ...]

    @property
    def score(self) -> float:
        """By its bill; less is better."""
        return float(self.row["score"][0])

    def among(self, candidates: BestLayouts, estimate_of: Callable[[Columns, int], Estimate]) -> BestLayouts:
        """Return what was kept with its row, simulated: in its place where it runs, else as the last one."""
        row = with_simulation(self.row, [0], estimate_of)
        if not self.runs:
            return candidates._replace(top=joined([candidates.top, row]))
        same = np.all([candidates.top[name] == row[name] for name in ("gpus", *KNOBS)], axis=0)
        for name in ("step_time_s", "memory_bytes"):
            same &= np.isclose(candidates.top[name], row[name], rtol=1e-9)
        top = taken(candidates.top, np.flatnonzero(~same))
        return BestLayouts(top, candidates.front).merged(BestLayouts(row, row), top["score"].size + 1)


def _own(job: Job, request: Request) -> Own:
    """Price the layout that a job has today, as an answer to the job of the question that is most like it."""
    question, est = request.question, estimate_job(job)
    memory, step_s = float(est.memory_bytes_per_gpu), float(est.step_time_s)
    numbers = {
        "score": step_s * question.weight(job),
        "memory_bytes": memory,
        "host_share": np.divide(est.host_memory_bytes, est.host_memory_capacity_bytes),
        "step_time_s": step_s,
        "job": OWN,
        "gpus": job.layout.gpus,
        **{knob: getattr(job.layout, knob) for knob in KNOBS},
    }
    row = unsimulated({name: np.asarray([float(number)]) for name, number in numbers.items()})
    # What a recipe's framework usually starts binds no layout that somebody starts; what the user names does.
    allowed = framework_values(request.framework) | {
        knob: question.knob_values[knob] for knob in question.user_knobs
    }
    unasked = [knob for knob, values in allowed.items() if float(row[knob][0]) not in values]
    if "axis_order" in question.user_switches and job.axis_order not in {
        one.axis_order for one in question.jobs
    }:
        unasked.append("axis_order")
    layout, file = job.layout, question.file
    for batch in file.batches if file is not None else ():
        micro_batches = batch / float(layout.dp * layout.micro_batch)
        runs = valid(layout.schedule, layout.pp, micro_batches, layout.vp)
        if micro_batches % 1.0 or not np.all(runs):
            unasked.append(f"the schedule's batch {batch}")
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
    return Own(row, JobVariant(OWN, job, (), origin, tuple(choices)), fits and not unasked, tuple(unasked))


class Found:
    """What a search found: the best layouts, the front, and how many are out for which reason."""

    def __init__(self, request: Request, tuned: Tuned, own: Own | None) -> None:
        self.question, self.own_problem, self.assumed = request.question, request.problem, request.assumed
        self.variants, self.tally, self.rejected = tuned.variants, tuned.tally, +tuned.rejected
        self._ladders, self._own = tuned.ladders, own
        self._estimates: dict[tuple[float, ...], Estimate] = {}
        objective = self.question.objective
        share = int(objective[1:]) / 100.0 if objective in QUANTILES else None
        assert self.tally.candidates is not None
        candidates = self.tally.candidates
        if share is None and self.question.search_switches:
            # What the search asserts of a switch is seen next to the best without it.
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
        cls, problem: Question | Request, *, num_candidates: int = KEPT, progress: Progress | None = None
    ) -> Self:
        """Answer a question: price every layout that divides, and keep so many."""
        request = problem if isinstance(problem, Request) else Request(problem)
        question = request.question
        if not question.jobs:
            raise LayoutError("plan: no job to plan")
        with errors_called(common_device(job.cluster.accelerator.called for job in question.jobs)):
            own = None if request.own is None else _own(request.own, request)
            tuned = Tuned(
                question, num_candidates, progress, own.score if own is not None and own.runs else np.inf
            )
            tuned.price_spaces()
            if tuned.tally.candidates is None:
                raise cls._nothing_left(request, tuned)
            tuned.tune()
            tuned.rejected["does_not_fit"] = tuned.tally.num_priced - tuned.tally.num_fit
            return cls(request, tuned, own)

    @classmethod
    def _nothing_left(cls, request: Request, tuned: Tuned) -> NoLayoutError:
        """Return the error that says why no layout is left, and what would do."""
        question = request.question
        if tuned.tally.leanest is None:
            return NoLayoutError(nothing_divides(question, tuned.rejected))
        least, row = tuned.tally.leanest
        row = {**row, "job": np.asarray([float(tuned.variants[int(row["job"][0])].origin)])}
        # Few rows are enough to know the pick.
        return NothingFitsError(
            nothing_fits(question, least, row, lambda other: cls.search(other).best, request.assumed)
        )

    def _rank_by_quantile(self, share: float) -> None:
        """Order kept layouts by the step time that each does not exceed with a probability of `share`.

        Scores stay in seconds of the nominal step, so that they compare with what the search noted of every knob's values:
        each is that of the best times the ratio of the quantiles. Layouts that are no candidates are left out.
        """
        rows = self.listed
        if self.own_row is not None and self.own_row not in rows:
            rows = np.asarray([*rows, self.own_row])
        found = self._compared(np.sort(rows), lambda job: 1.0)
        quantile = found.quantile(share)
        if np.isfinite(quantile).any():
            top = taken(self.candidates.top, found.rows)
            top["score"] = top["score"].min() * quantile / quantile.min()
            self.candidates = BestLayouts(best_rows(top, top["score"].size), self.candidates.front)
        # The rows stand elsewhere now.
        for name in ("own_row", "_listed"):
            self.__dict__.pop(name, None)

    @cached_property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs that `job` of a row counts: those of the question, then those with other choices."""
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
        """Layouts that were priced or are out for a reason."""
        out = sum(count for reason, count in self.rejected.items() if reason != "does_not_fit")
        return self.num_priced + out

    def estimate_of(self, columns: Columns, row: int) -> Estimate:
        """Return the estimate of one row; of one layout there is one."""
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
        """Kept rows worth listing, the pick first, and how many rows each stands for."""
        runs = self._own is not None and self._own.runs
        return listed(self.candidates.top, self.jobs, self._origins, own=self.own_row, runs=runs)

    @property
    def listed(self) -> Indices:
        """Kept rows worth listing: the pick, then by score; see `costmodel.planning.preference.listed`."""
        return self._listed[0]

    @property
    def pick(self) -> int:
        """The row of the pick: of those within a tie of the fastest, the simplest."""
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
        if self.own_row is None or self.own_row in rows:
            return rows
        return np.asarray([*rows, self.own_row])

    @cached_property
    def own_row(self) -> int | None:
        """The kept row of the layout that the job has today; none where it has none."""
        return None if self._own is None else int(np.flatnonzero(self.candidates.top["job"] == OWN)[0])

    @property
    def yours(self) -> Yours | None:
        """How the layout that the job has today compares with the pick; none where it has none."""
        row = self.own_row
        if row is None or self._own is None:
            return None
        slower = float(self.candidates.top["score"][row]) / self.pick_score - 1.0
        est, rank = self.estimate_of(self.candidates.top, row), self.ranks[row]
        # What nobody would search is one more.
        return Yours(est, rank, max(self.num_fit, rank or 0), slower, self._own.unasked)

    @cached_property
    def ranks(self) -> list[int | None]:
        """The rank of each kept row, the same in every table: the pick is 1, then by score; none of what cannot run."""
        count, own = len(self), self.own_row
        ranks: list[int | None] = [row + 1 + (row < self.pick) for row in range(count)]
        ranks[self.pick] = 1
        if own is not None and own != self.pick:
            if self.tally.num_better >= count - 1:
                # It stands behind what is not kept.
                ranks[own] = self.tally.num_better + 1
            if self._own is not None and not self._own.runs:
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
        """Say what is to be known of a kept row before its figures: yours, the fastest, the simplest of the fastest."""
        marks = ["yours"] if row == self.own_row else []
        if row == self.own_row and self._own is not None and not self._own.runs:
            fits = bool(self.estimate_of(self.candidates.top, row).fits)
            marks.append("not as asked" if self._own.unasked else "too full" if fits else "does not fit")
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
        # The pick's job as its recipe has it; where no request starts with those switches, with the pick's.
        job = self.job_of_row(self.pick)
        job = job if job in self.tally.fastest_s else int(self.candidates.top["job"][self.pick])
        fitting_s = self.tally.best_score.get(job, np.inf) / self.question.weight(self.jobs[job])
        return 1.0 - min(float(self.tally.fastest_s[job]) / fitting_s, 1.0)

    def rank_of(self, score: float) -> int:
        """Return the rank of a layout of this score: that of the kept row which has it, else one more than are better."""
        rows = np.flatnonzero(np.isclose(self.candidates.top["score"], score, rtol=1e-12, atol=0.0))
        kept = self.ranks[int(rows[0])] if rows.size else None
        return kept or self.better_than(score) + 1

    def better_than(self, score: float) -> int:
        """Count the layouts that fit and score better (the rank of one is one more).

        Those that were kept by their simulation, the others by their bills.
        """
        top, least = self.candidates.top, score * (1.0 - 1e-12)
        found = top["job"] != OWN
        billed = top["score"] / top[LONGER]
        count = int(np.sum(found & (top["score"] < least)) - np.sum(found & (billed < least)))
        for one in self.variants:
            for part in one.parts():
                better = part.step_time_s * self.question.weight(one.job) < least
                count += int(np.sum(better & self.question.fits(part, one.job)))
        return count

    def columns(self, count: int | None = None) -> dict[str, list[Any]]:
        """Return layouts as columns: rank, figures, knobs by name, and whether on the front.

        With `count`, those of `top`, and how many more rows each stands for; without, all that were kept.
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
        """Return rows with the figures of their estimates, where they are few."""
        count = rows["score"].size
        return with_simulation(rows, range(count), self.estimate_of) if count <= _FEW else rows
