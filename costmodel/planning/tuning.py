"""The search over switches that a framework leaves to its users, for the best placements of the search over layouts.

Kernels differ by switches, so each switch makes a variant of the job to price. It is priced only for the best
placements so far, with all recomputation, schedule and sharding policies. What each switch saves of the best layout of
each placement says which combinations promise most; these are priced, then what is like the best of them.

What a framework can recompute of a layer is a ladder: modules in the order of what a byte that they free costs, between
nothing and a third of the step (Korthikanti et al., arXiv:2205.05198, section 5).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import accumulate, product
from math import prod
from operator import add, itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.describe.frameworks import FRAMEWORKS, framework_of
from costmodel.describe.jobs.fields import RECOMPUTE_POLICIES
from costmodel.describe.jobs.job import Job
from costmodel.describe.jobs.layout_text import value_text
from costmodel.describe.recipe import switch_text
from costmodel.physics.pipeline.schedules import schedule_code
from costmodel.planning.best import Columns, taken
from costmodel.planning.choices import Choice, choices_of, starts
from costmodel.planning.search import JobVariant, Question, Tally, best_placements, layout_of, space_of
from costmodel.planning.space import PLACEMENT_KNOBS
from costmodel.step.price import price

Array = NDArray[np.float64]
Progress = Callable[[int, int], None]

LEAST_GAIN = 0.0005
"""Shares of a score that a choice has to save to be built upon. [-]"""
MOST_COMBINATIONS = 6
"""Combinations of choices that are priced, the most promising first."""
CLOSE = 0.01
"""Share of its time by which a choice may slow a layout and still be tried with others. [-]"""
NEAR = 0.1
"""How much slower than the best a placement may be for more combinations to be tried on it. [-]"""
RUNG = "selective_modules"
"""The switch that a rung of the ladder turns."""
SELECTIVE = float(RECOMPUTE_POLICIES.index("selective"))

_OWN_SPACE = "moe_dispatcher"
"""Another dispatcher is priced over a space of its own, because it lets experts spread further."""


def ladder_of(question: Question, job: Job) -> tuple[Choice, ...]:
    """Return the lists of modules to try beside the job's own, shortest first.

    Each module is priced alone, with whole layers on a GPU: those that free memory stand in the order of seconds a byte.
    None where the framework takes none, or where the user named modules or another policy.
    """
    framework = framework_of(job.recipe.launches)
    if (
        framework is None
        or RUNG in question.user_switches
        or SELECTIVE not in question.values(job)["recompute"]
    ):
        return ()
    plain_s, plain = _priced(job, ())
    found = []
    for module in framework.recompute_modules:
        seconds, memory = _priced(job, (module,))
        if memory < plain:
            found.append(((seconds - plain_s) / (plain - memory), module))
    lists = accumulate(((module,) for _, module in sorted(found)), add)
    own = frozenset(job.recipe.memory.selective_modules)
    return tuple(Choice({RUNG: modules}) for modules in lists if frozenset(modules) != own)


def _priced(job: Job, modules: tuple[str, ...]) -> tuple[float, float]:
    """Return step time and memory of one layout that recomputes some modules. [s, B]"""
    one = np.asarray(1.0)
    layout = replace(
        job.layout,
        **dict.fromkeys(("tp", "cp", "pp", "vp", "ep", "etp", "micro_batch"), one),
        **{"recompute": one * SELECTIVE, "schedule": one * schedule_code("none"), "zero_stage": one},
    )
    bill = price(replace(job.switched({RUNG: modules}), layout=layout)).bill
    return float(bill.step_time_s()), float(bill.memory_bytes())


def neighbours(ladder: tuple[Choice, ...], chosen: tuple[Choice, ...]) -> tuple[Choice, ...]:
    """Return the rungs beside the one chosen: what else was chosen may take memory, or give some back."""
    at = next((place for place, rung in enumerate(ladder) if rung in chosen), None)
    return () if at is None else (*ladder[max(at - 1, 0) : at], *ladder[at + 1 : at + 2])


def placements_of(rows: Columns) -> list[tuple[float, ...]]:
    """Return what tells the placements of rows apart."""
    return list(zip(*(rows[knob].tolist() for knob in PLACEMENT_KNOBS), strict=True))


class Combination(NamedTuple):
    """Choices that go together, and the share of its time that each placement is expected to take with them."""

    choices: tuple[Choice, ...]
    share: Array


def combinations(choices: Sequence[Choice], shares: Sequence[Array]) -> list[Combination]:
    """Return every combination of choices of different things, fewest first; together they take the product of their shares.

    What a choice saves depends on the others by a few per cent of it, which pricing a combination shows.
    """
    groups: dict[str, list[tuple[Choice, Array]]] = {}
    for choice, share in zip(choices, shares, strict=True):
        groups.setdefault(choice.tuned, []).append((choice, share))
    found = []
    for options in product(*([None, *group] for group in groups.values())):
        some = [option for option in options if option is not None]
        tuned = Counter(name for choice, _ in some for name in choice.switches)
        if all(count == 1 for count in tuned.values()):
            found.append(
                Combination(tuple(choice for choice, _ in some), np.asarray(prod(share for _, share in some)))
            )
    return sorted(found, key=lambda one: len(one.choices))


def _with(choices: tuple[Choice, ...], more: Choice) -> tuple[Choice, ...]:
    """Return choices with one more, in place of that of the same thing."""
    return (*(one for one in choices if one.tuned != more.tuned), more)


class Tuned:
    """The search: every layout of each job, then combinations of switches for the best placements."""

    def __init__(
        self, question: Question, keep: int, progress: Progress | None = None, reference_score: float = np.inf
    ) -> None:
        self.request, self.question = question, replace(question, jobs=())
        self.variants: list[JobVariant] = []
        self.rejected = Counter[str]()
        self.tally = Tally(reference_score=reference_score)
        self.ladders: list[tuple[Choice, ...]] = []
        self._keep, self._progress = keep, progress
        spaces: list[tuple[int, Job, tuple[Choice, ...]]] = [
            (index, job, ()) for index, job in enumerate(question.jobs)
        ]
        if question.search_switches:
            spaces += [
                (index, choice.applied(job), (choice,))
                for index, job in enumerate(question.jobs)
                for choice in choices_of(job, question.user_switches)
                if choice.tuned == _OWN_SPACE
            ]
        for origin, job, choices in spaces:
            space = space_of(question, job)
            self.rejected.update(space.rejected)
            self._add(JobVariant(len(self.variants), job, space.slabs, origin, choices))
        self._total = sum(slab.num_possible for one in self.variants for slab in one.slabs)

    def _add(self, one: JobVariant) -> None:
        self.variants.append(one)
        self.question = replace(self.question, jobs=(*self.question.jobs, one.job))

    def price_spaces(self) -> None:
        """Price every layout that divides."""
        for one in self.variants:
            self._price(one)

    def tune(self) -> None:
        """Choose for every job, best first; count what could not start with the other dispatcher."""
        self.rejected["choice_not_started"] = self._total - self.tally.num_priced
        if self.request.search_switches:
            for index in range(len(self.request.jobs)):
                self._tune([one for one in self.variants if one.origin == index])

    def _price(self, one: JobVariant) -> None:
        for part in one.parts():
            self.tally.add(self.question, part, self._keep)
            if self._progress is not None:
                self._progress(self.tally.num_priced, max(self._total, self.tally.num_priced))

    def _score(self, one: JobVariant) -> float:
        return self.tally.best_score.get(one.number, np.inf)

    def _tune(self, bases: Sequence[JobVariant]) -> None:
        """Tune one job: rungs that save memory where that limits, then the combinations that promise most, priced in turn."""
        found = [one for base in bases for one in self._climbed(base)]
        if not found:
            return
        rows = best_placements([self.tally.placements[one.number] for one in found])
        best = min(found, key=self._score)
        choices = choices_of(best.job, self.request.user_switches | {_OWN_SPACE})
        shares = self._shares(best, choices, rows)
        together = combinations(choices, shares)
        least = reduce(np.minimum, (one.share for one in together))
        promised = []
        for before in found:
            scores = self._scores_at(before, rows)
            for one in together[1:]:
                # A choice more has to be worth it.
                expected = float(np.min(scores * one.share)) / (1.0 - LEAST_GAIN) ** len(one.choices)
                promised.append((expected, before, one.choices))
        near = np.arange(rows["score"].size)
        for expected, before, some in sorted(promised, key=itemgetter(0))[:MOST_COMBINATIONS]:
            if expected > self._score(best):
                break
            best = min(best, self._chosen(before, some, taken(rows, near)), key=self._score)
            near = np.flatnonzero(rows["score"] * least <= self._score(best) * (1.0 + NEAR))
        close = [
            choice for choice, share in zip(choices, shares, strict=True) if (share[near] < 1.0 + CLOSE).any()
        ]
        self._look_around(best, close, taken(rows, near))

    def _look_around(self, best: JobVariant, choices: Sequence[Choice], placements: Columns) -> None:
        """Price the best with one choice less, more or otherwise and with the rungs beside its own, while one is better."""
        priced = {frozenset(map(str, one.choices)) for one in self.variants if one.origin == best.origin}
        before = None
        while best is not before:
            before = best
            others = [tuple(one for one in best.choices if one is not left) for left in best.choices]
            more = [*neighbours(self.ladders[-1], best.choices), *choices]
            others += [_with(best.choices, choice) for choice in more if not choice.holds(best.job)]
            for some in others:
                key = frozenset(map(str, some))
                if key not in priced:
                    priced.add(key)
                    one = self._chosen(self.variants[best.origin], some, placements)
                    best = one if self._score(one) < self._score(best) * (1.0 - LEAST_GAIN) else best

    def _climbed(self, base: JobVariant) -> list[JobVariant]:
        """Return a variant, and with each rung of its ladder where memory limits, of those that have layouts that fit."""
        found, ladder = [base], ladder_of(self.request, base.job)
        self.ladders.append(ladder)
        for rung in ladder:
            memory_limited = self.tally.near_best_with_more_memory(base.number, min(map(self._score, found)))
            if memory_limited is not None:
                found.append(self._chosen(base, (rung,), memory_limited))
        return [one for one in found if one.number in self.tally.placements]

    def _shares(self, one: JobVariant, choices: Sequence[Choice], rows: Columns) -> list[Array]:
        """Return what share of its time the best layout of each placement takes with a choice; infinite where it cannot start."""
        layout = layout_of(rows)
        plain_s = price(replace(one.job, layout=layout)).bill.step_time_s()
        shares = []
        for choice in choices:
            job = replace(choice.applied(one.job), layout=layout)
            shares.append(
                np.where(starts(job, (choice,), layout), price(job).bill.step_time_s() / plain_s, np.inf)
            )
        return shares

    def _scores_at(self, one: JobVariant, rows: Columns) -> Array:
        """Return the scores of a variant at the placements of rows; infinite where nothing fits."""
        found = self.tally.placements[one.number]
        scores = dict(zip(placements_of(found), found["score"].tolist(), strict=True))
        return np.asarray([scores.get(at, np.inf) for at in placements_of(rows)])

    def _chosen(self, before: JobVariant, more: Sequence[Choice], placements: Columns) -> JobVariant:
        """Price a variant with more choices over some placements; of one thing the last choice counts."""
        choices = reduce(_with, more, before.choices)
        job, question = self.request.jobs[before.origin], self.request
        for choice in choices:
            job = choice.applied(job)
        if any(one.tuned == RUNG for one in choices):
            question = replace(question, knob_values={**question.knob_values, "recompute": (SELECTIVE,)})
        slabs = space_of(question, job, placements).slabs
        self._add(JobVariant(len(self.variants), job, slabs, before.origin, choices))
        self._price(self.variants[-1])
        return self.variants[-1]


def searched(question: Question, ladder: tuple[Choice, ...]) -> dict[str, str]:
    """Return the values that a search tries, by knob, switch or axis order, as texts."""
    first = question.jobs[0]
    found = {
        knob: ", ".join(value_text(knob, value) for value in values)
        for knob, values in question.values(first).items()
    }
    for choice in (*choices_of(first, question.user_switches), *ladder) if question.search_switches else ():
        for name in choice.switches or ("axis_order",):
            own = " ".join(first.axis_order) if name == "axis_order" else first.switches[name]
            value = " ".join(choice.axis_order) or switch_text(choice.switches[name])
            between = " | " if name == RUNG else ", "
            values = found.get(name, switch_text(own)).split(between)
            found[name] = between.join(dict.fromkeys((*values, value)))
    return found


def fixed(question: Question) -> str:
    """Say what a search keeps fixed."""
    first = question.jobs[0]
    launches = first.recipe.launches
    why = (
        "framework any: layouts alone are searched; a plan for one framework turns these too, and can find a faster one"
        if not question.launchable_only
        else "choose is off"
        if not question.search_switches
        else ""
        if launches and launches.framework in FRAMEWORKS
        else "it is what somebody ran"
    )
    sentence = f"All other settings: defaults of {first.recipe.name}"
    if why:
        sentence += f", overlaps, dispatcher, graphs and the order of the axes with them ({why})"
    if question.user_switches:
        sentence += f"; as given: {', '.join(sorted(question.user_switches))}"
    chunks = "balanced to offset the LM head" if first.balanced_stages else "as the recipe splits them"
    return f"{sentence}; layers over stages: {chunks}"
