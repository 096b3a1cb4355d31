"""A question searched: every layout that divides is priced, the best and the front are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from costmodel.base.errors import LayoutError, NoLayoutError
from costmodel.base.words import called, common_device
from costmodel.describe.jobs.fields import KNOBS
from costmodel.describe.jobs.job import Job
from costmodel.estimates.estimate import Estimate, estimate_job
from costmodel.planning.best import Columns, Kept, best_rows, joined, taken, with_firsts
from costmodel.planning.choices import Choice
from costmodel.planning.columns import figures, plan_columns
from costmodel.planning.finalists import LONGER, best_by_value, ranked, unsimulated, with_simulation
from costmodel.planning.no_layout import explain_empty
from costmodel.planning.preference import TIE_SHARE, Indices, listed
from costmodel.planning.request import Request
from costmodel.planning.search import Pass, Question, layout_of
from costmodel.planning.tuning import Tuned, asked_passes
from costmodel.planning.uncertain import Odds, Trial, compare, quantile_of

Array = NDArray[np.float64]
Progress = Callable[[int, int], None]

KEPT = 1000
"""Layouts that a search keeps unless told otherwise."""


def _of_question(asked: Sequence[Pass], rows: Columns) -> Columns:
    """Return rows whose jobs are counted as the question has them."""
    return {**rows, "job": np.asarray([float(asked[int(index)].origin) for index in rows["job"]])}


def by_quantile(
    kept: Kept, passes: Sequence[Pass], share: float, question: Question, own: Own | None = None
) -> Kept:
    """Return kept layouts in the order of the step time that each does not exceed with a probability of `share`.

    Scores stay in seconds of the nominal step, so that they compare with what the search noted of every knob's values:
    each is that of the best times the ratio of the quantiles. Layouts that are no candidates are left out.
    """
    at = None if own is None else int(np.flatnonzero(kept.top["job"] == own.number)[0])
    origins = [one.origin for one in passes]
    rows = listed(kept.top, [one.job for one in passes], origins, own=at, runs=own is not None and own.runs)[
        0
    ]
    rows = np.sort(rows if at is None or at in rows else [*rows, at])
    found = compare(
        passes,
        kept.top,
        rows,
        dict.fromkeys(range(len(passes)), 1.0),
        max_memory_bytes=question.max_memory_bytes,
    )
    quantile = found.quantile(share)
    if not np.isfinite(quantile).any():
        return kept
    top = taken(kept.top, found.rows)
    top["score"] = top["score"].min() * quantile / quantile.min()
    few = top["score"].size
    return Kept(best_rows(top, few), kept.front)


class Yours(NamedTuple):
    """The layout that a job has today, beside the pick.

    Attributes
    ----------
    est : Estimate
        Of it.
    rank : int, optional
        Among all layouts that fit; none where it is not among them.
    num_fit : int
        Layouts that fit. [-]
    slower : float
        Its score over that of the pick, less one. [-]
    unasked : tuple of str
        Knobs of which it has another value than those that were asked for.
    """

    est: Estimate
    rank: int | None
    num_fit: int
    slower: float
    unasked: tuple[str, ...]


class Own(NamedTuple):
    """The layout that a planned job has today, as a row of the search.

    Attributes
    ----------
    row : mapping of str to Array
        Its columns.
    job : Job
        With it.
    runs : bool
        Whether it fits as a plan's layouts have to, and is within what was asked.
    unasked : tuple of str
        Knobs of which it has another value than those that were asked for.
    number : int
        Of its pass.
    """

    row: Columns
    job: Job
    runs: bool
    unasked: tuple[str, ...] = ()
    number: int = -1

    @classmethod
    def of(cls, job: Job, request: Request) -> Own:
        """Price it."""
        question = request.question
        est = estimate_job(job)
        memory, step_s = float(est.memory_bytes_per_gpu), float(est.step_time_s)
        figures = {
            "score": step_s * question.weight(job),
            "memory_bytes": memory,
            "step_time_s": step_s,
            "job": -1.0,
            "gpus": job.layout.gpus,
        }
        numbers = {**figures, **{knob: getattr(job.layout, knob) for knob in KNOBS}}
        row = unsimulated({name: np.asarray([float(number)]) for name, number in numbers.items()})
        # What a recipe's framework usually starts binds no layout that somebody starts; what is asked for does.
        asked = question.given if request.framework else question.named
        unasked = [knob for knob in asked if float(row[knob][0]) not in question.given[knob]]
        if "axis_order" in question.held and job.axis_order not in {one.axis_order for one in question.jobs}:
            unasked.append("axis_order")
        fits = bool(est.fits) and memory <= question.limit_bytes(job)
        if question.headroom is None:
            fits = fits and float(est.fits_probability) >= 1.0 - question.accepted_risk
        return cls(row, job, fits and not unasked, tuple(unasked))

    @property
    def score(self) -> float:
        """By its bill; less is better."""
        return float(self.row["score"][0])

    def as_pass(self, question: Question) -> Pass:
        """Return it as a pass without a space, beside the job of the question that is most like it."""

        def unlike(index: int) -> int:
            other = question.jobs[index]
            return sum(
                (
                    other.cluster.name != self.job.cluster.name,
                    float(other.layout.gpus) != float(self.job.layout.gpus),
                    other.precision != self.job.precision,
                    float(other.global_batch) != float(self.job.global_batch),
                )
            )

        origin = min(range(len(question.jobs)), key=unlike)
        before = question.jobs[origin]
        choices = [
            Choice({name: value})
            for name, value in self.job.switches.items()
            if name in before.switches and before.switches[name] != value
        ]
        if self.job.axis_order != before.axis_order:
            choices.append(Choice(axis_order=self.job.axis_order))
        return Pass(self.number, self.job, (), origin, tuple(choices))

    def among(self, kept: Kept, estimate_of: Callable[[Columns, int], Estimate]) -> Kept:
        """Return what was kept with its row, simulated, in its place where it runs, and otherwise as the last one."""
        row = {**self.row, "job": np.asarray([float(self.number)])}
        row = with_simulation(row, [0], [estimate_of(row, 0)])
        if not self.runs:
            return kept._replace(top=joined([kept.top, row]))
        same = np.ones(kept.top["score"].size, dtype=bool)
        for name in ("step_time_s", "memory_bytes"):
            same &= np.isclose(kept.top[name], row[name], rtol=1e-9)
        for name in ("gpus", *KNOBS):
            same &= kept.top[name] == row[name]
        top = taken(kept.top, np.flatnonzero(~same))
        few = top["score"].size + 1
        return Kept(top, kept.front).merged(Kept(row, row), few)


class Estimates:
    """The estimates of rows of a search; of one layout there is one."""

    def __init__(self, passes: Sequence[Pass]) -> None:
        self._passes = passes
        self._known: dict[tuple[float, ...], Estimate] = {}

    def of(self, columns: Mapping[str, Array], row: int) -> Estimate:
        """Return the estimate of one row."""
        key = tuple(float(columns[name][row]) for name in ("job", "gpus", *KNOBS))
        if key not in self._known:
            job = self._passes[int(key[0])].job
            self._known[key] = estimate_job(replace(job, layout=layout_of(columns, row)))
        return self._known[key]


class Found:
    """What a search found: the best layouts, the front, and how many are out for which reason."""

    def __init__(
        self,
        question: Question,
        kept: Kept,
        passes: Sequence[Pass],
        *,
        num_considered: int,
        num_priced: int,
        num_fit: int,
        rejected: Counter[str],
        fastest_s: Mapping[int, float],
        best_score: Mapping[int, float],
        best_in_device: Mapping[int, float],
        by_value: Mapping[str, Mapping[float, float]],
        estimates: Estimates,
        own: Own | None = None,
        own_problem: str = "",
        num_better_than_own: int = 0,
    ) -> None:
        self.question = question
        self.kept = kept
        self.passes = passes
        self.num_considered = num_considered
        self.num_priced = num_priced
        self.num_fit = num_fit
        self.rejected = rejected
        self.by_value = by_value
        self._fastest_s = fastest_s
        self._best_score = best_score
        self._best_in_device = best_in_device
        self._own = own
        self.own_problem = own_problem
        self._num_better_than_own = num_better_than_own
        self.estimate_of = estimates.of

    @classmethod
    def search(cls, asked: Question | Request, *, kept: int = KEPT, progress: Progress | None = None) -> Self:
        """Answer a question: price every layout that divides.

        Parameters
        ----------
        asked : Question or Request
            Jobs and constraints, and the layout that the planned job has today.
        kept : int
            Layouts to keep. [-]
        progress : callable, optional
            Called with layouts priced and layouts to price.

        Raises
        ------
        NoLayoutError
            If none is left; the message names the constraint that bites first and what would do.
        """
        request = asked if isinstance(asked, Request) else Request(asked)
        question = request.question
        if not question.jobs:
            raise LayoutError("plan: no job to plan")
        passes, rejected = asked_passes(question)
        total = sum(slab.num_possible for one in passes for slab in one.slabs)
        tuned = Tuned(question, list(passes), kept)
        tally = tuned.tally
        own = None if request.own is None else Own.of(request.own, request)
        if own is not None and own.runs:
            tally.watched = own.score
        for priced in (priced for one in passes for priced in tuned.price(one)):
            if progress is not None:
                progress(priced, total)
        if tally.kept is None:
            least = tally.leanest and (tally.leanest[0], _of_question(passes, tally.leanest[1]))
            word = common_device(job.cluster.accelerator.called for job in question.jobs)
            raise NoLayoutError(called(explain_empty(question, rejected, least), word))
        rejected["choice_not_started"] = total - tally.num_priced
        for priced in (priced for one in passes if question.chooses for priced in tuned.tune(one)):
            if progress is not None:
                progress(priced, priced)
        rejected["does_not_fit"] = tally.num_priced - tally.num_fit
        share = quantile_of(question.objective)
        if share is None and question.chooses:
            # What the search asserts of a switch is seen beside the best without it.
            tally.kept = tally.kept._replace(top=with_firsts(tally.kept.top, list(tally.first.values())))
        if own is not None:
            own = own._replace(number=len(tuned.passes))
            tuned.passes.append(own.as_pass(question))
            if own.runs:
                for knob, values in tally.by_value.items():
                    value = float(own.row[knob][0])
                    values[value] = min(values.get(value, np.inf), own.score)
        estimates = Estimates(tuned.passes)
        jobs, origins = [one.job for one in tuned.passes], [one.origin for one in tuned.passes]
        tally.kept = ranked(tally.kept, jobs, origins, estimates.of)
        if own is not None:
            tally.kept = own.among(tally.kept, estimates.of)
        by_value = best_by_value(tally.kept.top, tally.by_value)
        if share is not None:
            tally.kept = by_quantile(tally.kept, tuned.passes, share, question, own)
        out = sum(count for reason, count in rejected.items() if reason != "does_not_fit")
        return cls(
            question,
            tally.kept,
            tuned.passes,
            num_considered=tally.num_priced + out,
            num_priced=tally.num_priced,
            num_fit=tally.num_fit,
            rejected=+rejected,
            fastest_s=tally.fastest_s,
            best_score=tally.best_score,
            best_in_device=tally.best_in_device,
            by_value=by_value,
            estimates=estimates,
            own=own,
            own_problem=request.problem,
            num_better_than_own=tally.num_better,
        )

    @cached_property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs that `job` of a row counts: those of the question, then those with other choices."""
        return tuple(one.job for one in self.passes)

    def asked_job(self, row: int) -> int:
        """Return which of the question's jobs a kept row belongs to."""
        return self.passes[int(self.kept.top["job"][row])].origin

    def __len__(self) -> int:
        return int(self.kept.top["score"].size)

    @cached_property
    def _listed(self) -> tuple[Indices, Indices]:
        """Kept rows worth listing, the pick first, and how many rows each stands for."""
        origins = [one.origin for one in self.passes]
        return listed(self.kept.top, self.jobs, origins, own=self.own_row, runs=self._own_runs)

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
        return float(self.kept.top["score"][self.pick])

    @cached_property
    def odds(self) -> Odds:
        """The layouts worth listing, priced on common samples of everything that is uncertain."""
        weights = {index: self.question.weight(job) for index, job in enumerate(self.jobs)}
        return compare(
            self.passes, self.kept.top, self.listed, weights, max_memory_bytes=self.question.max_memory_bytes
        )

    def trials(self) -> list[tuple[Estimate, Trial]]:
        """Return the few parallel layouts worth a trial, the pick first, with what is known of each."""
        return [(self.estimate_of(self.kept.top, trial.row), trial) for trial in self.odds.trials()]

    @cached_property
    def best(self) -> Estimate:
        """The estimate of the pick: the simplest layout within `TIE_SHARE` of the fastest."""
        return self.estimate_of(self.kept.top, self.pick)

    @cached_property
    def fastest(self) -> Estimate:
        """The estimate of the layout with the least score, by the simulation of its pipeline."""
        return self.estimate_of(self.kept.top, 0)

    def top(self, count: int = 10) -> list[Estimate]:
        """Return the estimates of the layouts worth trying: the pick, then by score; the job's own is among them."""
        return [self.estimate_of(self.kept.top, row) for row in self.shown(count)]

    def shown(self, count: int) -> Indices:
        """Return the kept rows to show: as many as asked for, and the job's own layout wherever it stands."""
        rows = self.listed[:count]
        if self.own_row is None or self.own_row in rows:
            return rows
        return np.asarray([*rows, self.own_row])

    @cached_property
    def own_row(self) -> int | None:
        """The kept row of the layout that the job has today; none where it has none."""
        if self._own is None:
            return None
        return int(np.flatnonzero(self.kept.top["job"] == self._own.number)[0])

    @property
    def _own_runs(self) -> bool:
        return self._own is not None and self._own.runs

    @property
    def yours(self) -> Yours | None:
        """How the layout that the job has today compares with the pick; none where it has none."""
        if self.own_row is None:
            return None
        est = self.estimate_of(self.kept.top, self.own_row)
        score = float(self.kept.top["score"][self.own_row])
        unasked = () if self._own is None else self._own.unasked
        return Yours(est, self.ranks[self.own_row], self.num_fit, score / self.pick_score - 1.0, unasked)

    @cached_property
    def ranks(self) -> list[int | None]:
        """The rank of each kept row, the same in every table: the pick is 1, then by score; none of what cannot run."""
        count = len(self)
        ranks: list[int | None] = [row + 1 + (row < self.pick) for row in range(count)]
        ranks[self.pick] = 1
        if self.own_row is not None and self.own_row != self.pick:
            if self.own_row == count - 1:
                # It may stand behind what is not kept.
                ranks[self.own_row] = max(count, self._num_better_than_own + 1)
            if not self._own_runs:
                ranks[self.own_row] = None
        return ranks

    def marks(self, row: int) -> str:
        """Say what is to be known of a kept row before its figures: yours, the fastest, the simplest of the fastest."""
        said = ["yours"] if row == self.own_row else []
        if row == self.own_row and self._own is not None and not self._own.runs:
            fits = bool(self.estimate_of(self.kept.top, row).fits)
            said.append("not as asked" if self._own.unasked else "too full" if fits else "does not fit")
        elif row == 0:
            said.append("fastest")
        elif row == self.pick:
            said.append(f"simplest within {TIE_SHARE:.1%}")
        return ", ".join(said)

    def pareto(self) -> list[Estimate]:
        """Return the layouts that no other beats in objective and memory both, best objective first."""
        return [self.estimate_of(self.kept.front, row) for row in range(self.kept.front["score"].size)]

    @property
    def fastest_without_memory_limit_s(self) -> float:
        """Step time of the fastest layout whether it fits or not, for the pick's job as its recipe has it. [s]."""
        return float(self._fastest_s[self._plain_job])

    @property
    def memory_gain(self) -> float:
        """Share of the step that memory enough for any layout would save, with the recipe's own switches. [-]."""
        job = self._plain_job
        fitting_s = self._best_score.get(job, np.inf) / self.question.weight(self.jobs[job])
        return 1.0 - min(self.fastest_without_memory_limit_s / fitting_s, 1.0)

    @property
    def _plain_job(self) -> int:
        """The pick's job as its recipe has it; where nothing asked for starts with those switches, with the pick's."""
        plain = self.asked_job(self.pick)
        return plain if plain in self._fastest_s else int(self.kept.top["job"][self.pick])

    def billed_score(self, jobs: Sequence[int]) -> float:
        """Best score of some jobs by their bills; less is better."""
        return min(self._best_score.get(index, np.inf) for index in jobs)

    def score_in_device(self, jobs: Sequence[int]) -> float:
        """Best score of some jobs were none of the device's memory kept free; less is better."""
        return min(self._best_in_device.get(index, np.inf) for index in jobs)

    def better_than(self, score: float) -> int:
        """Count the layouts that fit and score better (the rank of one is one more).

        Those that were kept by their simulation, the others by their bills.
        """
        kept, least = self.kept.top, score * (1.0 - 1e-12)
        found = kept["job"] != (np.inf if self._own is None else self._own.number)
        billed = kept["score"] / kept[LONGER]
        count = int(np.sum(found & (kept["score"] < least)) - np.sum(found & (billed < least)))
        for part in (part for one in self.passes for part in one.parts()):
            job = self.jobs[part.job]
            better = part.step_time_s * self.question.weight(job) < least
            count += int(np.sum(better & self.question.fits(part, job)))
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
        return {**self.shown_columns(shown), "num_alike": [alike.get(int(row), 1) - 1 for row in shown]}

    def shown_columns(self, rows: Sequence[int] | Indices) -> dict[str, list[Any]]:
        """Return a few kept rows as columns, with the figures of their estimates."""
        ests = [self.estimate_of(self.kept.top, int(row)) for row in rows]
        return {**self.columns_of(rows), **figures(ests)}

    def columns_of(self, rows: Sequence[int] | Indices) -> dict[str, list[Any]]:
        """Return kept rows as columns."""
        at = np.asarray(rows, dtype=np.int64)
        return {
            "rank": [self.ranks[row] for row in at],
            "mark": [self.marks(int(row)) for row in at],
            **plan_columns(self.passes, self.kept, taken(self.kept.top, at)),
        }

    def pareto_columns(self) -> dict[str, list[Any]]:
        """Return the front as columns; ranks are known of what is among the kept layouts."""
        names = ("job", *KNOBS)
        row_of = {
            key: row
            for row, key in enumerate(zip(*(self.kept.top[name].tolist() for name in names), strict=True))
        }
        rows = [
            row_of.get(key) for key in zip(*(self.kept.front[name].tolist() for name in names), strict=True)
        ]
        return {
            "rank": [None if row is None else self.ranks[row] for row in rows],
            "mark": ["" if row is None else self.marks(row) for row in rows],
            **plan_columns(self.passes, self.kept, self.kept.front),
        }
