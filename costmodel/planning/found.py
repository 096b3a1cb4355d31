"""A question searched: every layout that divides is priced, the best and the front are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from costmodel.base.errors import LayoutError, NoLayoutError
from costmodel.estimates.estimate import Estimate, estimate_job
from costmodel.planning.best import Kept, taken
from costmodel.planning.columns import plan_columns
from costmodel.planning.no_layout import explain_empty
from costmodel.planning.preference import Indices, listed
from costmodel.planning.search import Question, Tally, build_spaces, layout_of, priced_parts

Array = NDArray[np.float64]
Progress = Callable[[int, int], None]

KEPT = 1000
"""Layouts that a search keeps unless told otherwise."""


class Found:
    """What a search found: the best layouts, the front, and how many are out for which reason."""

    def __init__(
        self,
        question: Question,
        kept: Kept,
        *,
        num_considered: int,
        num_priced: int,
        num_fit: int,
        rejected: Counter[str],
        fastest_s: Mapping[int, float],
        by_value: Mapping[str, Mapping[float, float]],
    ) -> None:
        self.question = question
        self.kept = kept
        self.num_considered = num_considered
        self.num_priced = num_priced
        self.num_fit = num_fit
        self.rejected = rejected
        self.by_value = by_value
        self._fastest_s = fastest_s

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
        spaces = build_spaces(question)
        rejected: Counter[str] = Counter()
        for space in spaces:
            rejected.update(space.rejected)
        considered = sum(space.considered for space in spaces)
        total = sum(slab.num_possible for space in spaces for slab in space.slabs)
        tally = Tally()
        for part in priced_parts(question, spaces):
            tally.add(question, part, keep)
            if progress is not None:
                progress(tally.num_priced, total)
        if tally.kept is None:
            raise NoLayoutError(explain_empty(question, rejected, tally.leanest))
        rejected["does_not_fit"] = tally.num_priced - tally.num_fit
        return cls(
            question,
            tally.kept,
            num_considered=considered,
            num_priced=tally.num_priced,
            num_fit=tally.num_fit,
            rejected=+rejected,
            fastest_s=tally.fastest_s,
            by_value=tally.by_value,
        )

    def __len__(self) -> int:
        return int(self.kept.top["score"].size)

    def estimate_of(self, columns: Mapping[str, Array], row: int) -> Estimate:
        """Return the estimate of one kept row."""
        job = self.question.jobs[int(columns["job"][row])]
        return estimate_job(replace(job, layout=layout_of(columns, row)))

    @cached_property
    def _listed(self) -> tuple[Indices, Indices]:
        """Kept rows worth listing, the pick first, and how many rows each stands for."""
        return listed(self.kept.top, self.question.jobs)

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
        """Step time of the fastest layout whether it fits or not, for the best one's job. [s]."""
        return float(self._fastest_s[int(self.kept.top["job"][self.pick])])

    def better_than(self, score: float) -> int:
        """Count the layouts that fit and score better (the rank of one is one more)."""
        count = 0
        for part in priced_parts(self.question, build_spaces(self.question)):
            job = self.question.jobs[part.job]
            better = part.step_time_s * self.question.weight(job) < score * (1.0 - 1e-12)
            count += int(
                np.sum(part.possible & better & (part.memory_bytes <= self.question.limit_bytes(job)))
            )
        return count

    def columns(self, count: int | None = None) -> dict[str, list[Any]]:
        """Return layouts as columns: rank, figures, knobs by name, and whether on the front.

        With `count`, those of `top`, and how many more rows each stands for; without, all that were kept.
        """
        if count is None:
            return plan_columns(self.question, self.kept, self.kept.top)
        table = plan_columns(self.question, self.kept, taken(self.kept.top, self.listed[:count]))
        table["num_alike"] = [int(alike) - 1 for alike in self._listed[1][:count]]
        return table

    def pareto_columns(self) -> dict[str, list[Any]]:
        """Return the front as columns."""
        return plan_columns(self.question, self.kept, self.kept.front)
