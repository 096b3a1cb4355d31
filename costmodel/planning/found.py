"""A question searched: every layout that divides is priced, the best and the front are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from costmodel.base.errors import LayoutError, NoLayoutError
from costmodel.base.words import called, common_device
from costmodel.describe.jobs.fields import KNOBS
from costmodel.describe.jobs.job import Job
from costmodel.estimates.estimate import Estimate, estimate_job
from costmodel.planning.best import Columns, Kept, best_rows, taken, with_firsts
from costmodel.planning.columns import plan_columns
from costmodel.planning.no_layout import explain_empty
from costmodel.planning.preference import Indices, listed
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


def by_quantile(kept: Kept, passes: Sequence[Pass], share: float, question: Question) -> Kept:
    """Return kept layouts in the order of the step time that each does not exceed with a probability of `share`.

    Scores stay in seconds of the nominal step, so that they compare with what the search noted of every knob's values:
    each is that of the best times the ratio of the quantiles. Layouts that are no candidates are left out.
    """
    rows = np.sort(listed(kept.top, [one.job for one in passes], [one.origin for one in passes])[0])
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
        self._estimates: dict[tuple[float, ...], Estimate] = {}

    @classmethod
    def search(cls, question: Question, *, keep: int = KEPT, progress: Progress | None = None) -> Self:
        """Answer a question: price every layout that divides.

        Parameters
        ----------
        question : Question
            Jobs and constraints.
        keep : int
            Layouts to keep. [-]
        progress : callable, optional
            Called with layouts priced and layouts to price.

        Raises
        ------
        NoLayoutError
            If none is left; the message names the constraint that bites first and what would do.
        """
        if not question.jobs:
            raise LayoutError("plan: no job to plan")
        asked, rejected = asked_passes(question)
        total = sum(slab.num_possible for one in asked for slab in one.slabs)
        tuned = Tuned(question, list(asked), keep)
        tally = tuned.tally
        for priced in (priced for one in asked for priced in tuned.price(one)):
            if progress is not None:
                progress(priced, total)
        if tally.kept is None:
            least = tally.leanest and (tally.leanest[0], _of_question(asked, tally.leanest[1]))
            word = common_device(job.cluster.accelerator.called for job in question.jobs)
            raise NoLayoutError(called(explain_empty(question, rejected, least), word))
        rejected["choice_not_started"] = total - tally.num_priced
        for priced in (priced for one in asked if question.chooses for priced in tuned.tune(one)):
            if progress is not None:
                progress(priced, priced)
        rejected["does_not_fit"] = tally.num_priced - tally.num_fit
        share = quantile_of(question.objective)
        if share is not None:
            tally.kept = by_quantile(tally.kept, tuned.passes, share, question)
        elif question.chooses:
            # What the search asserts of a switch is seen beside the best without it.
            tally.kept = tally.kept._replace(top=with_firsts(tally.kept.top, list(tally.first.values())))
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
            by_value=tally.by_value,
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

    def estimate_of(self, columns: Mapping[str, Array], row: int) -> Estimate:
        """Return the estimate of one kept row; of one layout there is one estimate."""
        key = tuple(float(columns[name][row]) for name in ("job", "gpus", *KNOBS))
        if key not in self._estimates:
            job = self.jobs[int(key[0])]
            self._estimates[key] = estimate_job(replace(job, layout=layout_of(columns, row)))
        return self._estimates[key]

    @cached_property
    def _listed(self) -> tuple[Indices, Indices]:
        """Kept rows worth listing, the pick first, and how many rows each stands for."""
        return listed(self.kept.top, self.jobs, [one.origin for one in self.passes])

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
        """Return the few layouts worth a trial, the likeliest first, with what is known of each.

        The smallest set, of at most `MOST_TRIALS`, that holds the best layout with `SURE`: or as surely as so many can.
        """
        return [(self.estimate_of(self.kept.top, trial.row), trial) for trial in self.odds.trials()]

    @cached_property
    def best(self) -> Estimate:
        """The estimate of the pick: the simplest layout within `TIE_SHARE` of the fastest."""
        return self.estimate_of(self.kept.top, self.pick)

    @cached_property
    def fastest(self) -> Estimate:
        """The estimate of the layout with the least score."""
        return self.estimate_of(self.kept.top, 0)

    def top(self, count: int = 10) -> list[Estimate]:
        """Return the estimates of the layouts worth trying: the pick, then by score."""
        return [self.estimate_of(self.kept.top, row) for row in self.listed[:count]]

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

    @property
    def asked_score(self) -> float:
        """Best score of the jobs as they were asked, before other choices; less is better."""
        return min(self._best_score.get(index, np.inf) for index in range(len(self.question.jobs)))

    def score_in_device(self, jobs: Sequence[int]) -> float:
        """Best score of some jobs were none of the device's memory kept free; less is better."""
        return min(self._best_in_device.get(index, np.inf) for index in jobs)

    def better_than(self, score: float) -> int:
        """Count the layouts that fit and score better (the rank of one is one more)."""
        count = 0
        for part in (part for one in self.passes for part in one.parts()):
            job = self.jobs[part.job]
            better = part.step_time_s * self.question.weight(job) < score * (1.0 - 1e-12)
            count += int(
                np.sum(np.broadcast_to(better & part.fits(self.question.limit_bytes(job)), part.slab.shape))
            )
        return count

    def columns(self, count: int | None = None) -> dict[str, list[Any]]:
        """Return layouts as columns: rank, figures, knobs by name, and whether on the front.

        With `count`, those of `top`, and how many more rows each stands for; without, all that were kept.
        """
        if count is None:
            return plan_columns(self.passes, self.kept, self.kept.top)
        table = plan_columns(self.passes, self.kept, taken(self.kept.top, self.listed[:count]))
        table["num_alike"] = [int(alike) - 1 for alike in self._listed[1][:count]]
        return table

    def pareto_columns(self) -> dict[str, list[Any]]:
        """Return the front as columns."""
        return plan_columns(self.passes, self.kept, self.kept.front)
