"""The search over switches that a framework leaves to its users, for the best placements of the search over layouts.

Kernels differ by switches, so each switch makes a variant of the job to price. It is priced only for the best
placements so far, with all recomputation, schedule and sharding policies. What each switch saves of the best layout of
each placement says which combinations promise most; these are priced, then what is like the best of them.

Selective recomputation is a ladder: modules in the order of seconds per byte freed, which range from nothing to a third
of the step (Korthikanti et al., arXiv:2205.05198, section 5).
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
from costmodel.planning.search import (
    MAX_PLACEMENTS,
    JobVariant,
    Question,
    Tally,
    best_placements,
    layout_of,
    space_of,
)
from costmodel.planning.space import PLACEMENT_KNOBS
from costmodel.step.price import price

Array = NDArray[np.float64]
Progress = Callable[[int, int], None]

MIN_GAIN = 0.0005
"""Share of the score that one more choice has to save. [-]"""
MAX_COMBINATIONS = 6
"""Combinations of choices that are priced, in the order of expected score."""
MAX_SLOWDOWN = 0.01
"""Relative slowdown by a choice up to which it is still tried with other choices. [-]"""
MAX_PLACEMENT_SLOWDOWN = 0.1
"""Relative slowdown from the best up to which a placement is priced with further combinations. [-]"""
LADDER_SWITCH = "selective_modules"
"""The switch that the rungs of the recomputation ladder set."""
SELECTIVE = float(RECOMPUTE_POLICIES.index("selective"))

_DISPATCHER = "moe_dispatcher"
"""The switch that is searched before all others, since other dispatchers allow larger expert-parallel groups."""


def recompute_ladder(question: Question, job: Job) -> tuple[Choice, ...]:
    """Return the lists of modules to recompute that are tried besides the job's own, shortest first.

    Each module is priced alone, with whole layers on a GPU; those that free memory are sorted by seconds per byte. Empty
    where the framework has no such setting, or the user named modules or another policy.
    """
    framework = framework_of(job.recipe.launches)
    if (
        framework is None
        or LADDER_SWITCH in question.user_switches
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
    return tuple(Choice({LADDER_SWITCH: modules}) for modules in lists if frozenset(modules) != own)


def _priced(job: Job, modules: tuple[str, ...]) -> tuple[float, float]:
    """Return step time and memory of one layout that recomputes some modules. [s, B]"""
    one = np.asarray(1.0)
    layout = replace(
        job.layout,
        **dict.fromkeys(("tp", "cp", "pp", "vp", "ep", "etp", "micro_batch"), one),
        **{"recompute": one * SELECTIVE, "schedule": one * schedule_code("none"), "zero_stage": one},
    )
    bill = price(replace(job.switched({LADDER_SWITCH: modules}), layout=layout)).bill
    return float(bill.step_time_s()), float(bill.memory_bytes())


def adjacent_rungs(ladder: tuple[Choice, ...], chosen: tuple[Choice, ...]) -> tuple[Choice, ...]:
    """Return the rungs next to the chosen one, the first where none is: other choices change the memory that is left."""
    at = next((place for place, rung in enumerate(ladder) if rung in chosen), None)
    return ladder[:1] if at is None else (*ladder[max(at - 1, 0) : at], *ladder[at + 1 : at + 2])


def placement_keys(rows: Columns) -> list[tuple[float, ...]]:
    """Return the placement of each row as a hashable key."""
    return list(zip(*(rows[knob].tolist() for knob in PLACEMENT_KNOBS), strict=True))


class Combination(NamedTuple):
    """Compatible choices, and the expected time of each placement with them over that without. [-]"""

    choices: tuple[Choice, ...]
    share: Array


def combinations(choices: Sequence[Choice], shares: Sequence[Array]) -> list[Combination]:
    """Return every combination of choices of different switches, smallest first, with the product of their shares.

    The product ignores interactions, a few per cent of a saving; pricing the combination then has them.
    """
    groups: dict[str, list[tuple[Choice, Array]]] = {}
    for choice, share in zip(choices, shares, strict=True):
        groups.setdefault(choice.tuned, []).append((choice, share))
    found = []
    for options in product(*([None, *group] for group in groups.values())):
        chosen = [option for option in options if option is not None]
        tuned = Counter(name for choice, _ in chosen for name in choice.switches)
        if all(count == 1 for count in tuned.values()):
            found.append(
                Combination(
                    tuple(choice for choice, _ in chosen), np.asarray(prod(share for _, share in chosen))
                )
            )
    return sorted(found, key=lambda one: len(one.choices))


def _with_choice(choices: tuple[Choice, ...], more: Choice) -> tuple[Choice, ...]:
    """Return choices with one added, which replaces one of the same switch."""
    return (*(one for one in choices if one.tuned != more.tuned), more)


class SwitchSearch:
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
        for index, job in enumerate(question.jobs):
            space = space_of(question, job)
            self.rejected.update(space.rejected)
            self._add(JobVariant(index, job, space.slabs, index))
        self._total = sum(slab.num_possible for one in self.variants for slab in one.slabs)

    def _add(self, one: JobVariant) -> None:
        self.variants.append(one)
        self.question = replace(self.question, jobs=(*self.question.jobs, one.job))

    def price_spaces(self) -> None:
        """Price every layout that divides, then with other dispatchers the best placements, or all where none fits."""
        for one in tuple(self.variants):
            self._price(one)
            others = choices_of(one.job, self.request.fixed_switches) if self.request.search_switches else ()
            dispatchers = [choice for choice in others if choice.tuned == _DISPATCHER]
            placements = self._best_with_and_without_memory(one) if dispatchers else None
            for choice in dispatchers:
                self._priced_with(one, (choice,), placements)

    def _best_with_and_without_memory(self, one: JobVariant) -> Columns | None:
        """Return the best placements of a variant, and the best of those that memory limits; None where none fits."""
        if one.number not in self.tally.placements:
            return None
        found = [self.tally.placements[one.number], self.tally.memory_limited[one.number]]
        return best_placements(found, 2 * MAX_PLACEMENTS)

    def tune(self) -> None:
        """Search the switches of every job."""
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
        """Search one job: rungs of the ladder where memory limits, then combinations in the order of expected score."""
        with_layouts = [one for base in bases for one in self._with_ladder(base)]
        if not with_layouts:
            return
        rows = best_placements([self.tally.placements[one.number] for one in with_layouts])
        best = min(with_layouts, key=self._score)
        choices = choices_of(best.job, self.request.fixed_switches | {_DISPATCHER})
        shares = self._shares(best, choices, rows)
        combos = combinations(choices, shares)
        min_shares = reduce(np.minimum, (one.share for one in combos))
        candidates = []
        for before in with_layouts:
            scores = self._scores_at(before, rows)
            for one in combos[1:]:
                # Each further choice has to gain `MIN_GAIN`.
                expected_score = float(np.min(scores * one.share)) / (1.0 - MIN_GAIN) ** len(one.choices)
                candidates.append((expected_score, before, one.choices))
        near_rows, tried = np.arange(rows["score"].size), [best]
        for expected_score, before, some in sorted(candidates, key=itemgetter(0))[:MAX_COMBINATIONS]:
            if expected_score > self._score(best):
                break
            tried.append(self._priced_with(before, some, taken(rows, near_rows)))
            best = min(best, tried[-1], key=self._score)
            near_rows = np.flatnonzero(
                rows["score"] * min_shares <= self._score(best) * (1.0 + MAX_PLACEMENT_SLOWDOWN)
            )
        close = [
            choice
            for choice, share in zip(choices, shares, strict=True)
            if (share[near_rows] < 1.0 + MAX_SLOWDOWN).any()
        ]
        best = min([self._with_adjacent_rungs(one, self._score(best)) for one in tried], key=self._score)
        self._local_search(best, close, taken(rows, near_rows))

    def _with_adjacent_rungs(self, one: JobVariant, best: float) -> JobVariant:
        """Return the best of a variant and that with adjacent rungs, where with more memory it would beat the best score."""
        memory_limited = self.tally.near_best_with_more_memory(one.number, best, margin=-MIN_GAIN)
        if memory_limited is None:
            return one
        priced = self._priced_choices(one.origin)
        rungs = [
            rung
            for rung in adjacent_rungs(self.ladders[-1], one.choices)
            if frozenset(map(str, _with_choice(one.choices, rung))) not in priced
        ]
        return min(
            [one, *(self._priced_with(one, (rung,), memory_limited) for rung in rungs)], key=self._score
        )

    def _local_search(self, best: JobVariant, choices: Sequence[Choice], placements: Columns) -> None:
        """Hill climbing: price the best with one choice removed, added or changed, or an adjacent rung, until none is better."""
        priced = self._priced_choices(best.origin)
        previous = None
        while best is not previous:
            previous = best
            neighbours = [tuple(one for one in best.choices if one is not left) for left in best.choices]
            more = [*adjacent_rungs(self.ladders[-1], best.choices), *choices]
            neighbours += [
                _with_choice(best.choices, choice) for choice in more if not choice.holds(best.job)
            ]
            for neighbour in neighbours:
                key = frozenset(map(str, neighbour))
                if key not in priced:
                    priced.add(key)
                    one = self._priced_with(self.variants[best.origin], neighbour, placements)
                    best = one if self._score(one) < self._score(best) * (1.0 - MIN_GAIN) else best

    def _priced_choices(self, origin: int) -> set[frozenset[str]]:
        """Return the combinations of choices that one job was priced with."""
        return {frozenset(map(str, one.choices)) for one in self.variants if one.origin == origin}

    def _with_ladder(self, base: JobVariant) -> list[JobVariant]:
        """Return a variant, and that with each rung where memory limits; only those with layouts that fit."""
        found, ladder = [base], recompute_ladder(self.request, base.job)
        self.ladders.append(ladder)
        for rung in ladder:
            memory_limited = self.tally.near_best_with_more_memory(base.number, min(map(self._score, found)))
            if memory_limited is not None:
                found.append(self._priced_with(base, (rung,), memory_limited))
        return [one for one in found if one.number in self.tally.placements]

    def _shares(self, one: JobVariant, choices: Sequence[Choice], rows: Columns) -> list[Array]:
        """Return the best time of each placement with each choice over that without; infinite where it cannot start."""
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
        """Return the scores of a variant for the placements of rows; infinite where no layout fits."""
        found = self.tally.placements[one.number]
        scores = dict(zip(placement_keys(found), found["score"].tolist(), strict=True))
        return np.asarray([scores.get(at, np.inf) for at in placement_keys(rows)])

    def _priced_with(
        self, before: JobVariant, more: Sequence[Choice], placements: Columns | None
    ) -> JobVariant:
        """Price a variant with more choices over some placements, or all; the last choice of a switch counts."""
        choices = reduce(_with_choice, more, before.choices)
        job, question = self.request.jobs[before.origin], self.request
        for choice in choices:
            job = choice.applied(job)
        if any(one.tuned == LADDER_SWITCH for one in choices):
            question = replace(question, knob_values={**question.knob_values, "recompute": (SELECTIVE,)})
        slabs = space_of(question, job, placements).slabs
        self._add(JobVariant(len(self.variants), job, slabs, before.origin, choices))
        self._price(self.variants[-1])
        return self.variants[-1]


def searched_values(question: Question, ladder: tuple[Choice, ...]) -> dict[str, str]:
    """Return the values that a search tries, by knob, switch or axis order, as texts."""
    first = question.jobs[0]
    found = {
        knob: ", ".join(value_text(knob, value) for value in values)
        for knob, values in question.values(first).items()
    }
    for choice in (*choices_of(first, question.fixed_switches), *ladder) if question.search_switches else ():
        for name in choice.switches or ("axis_order",):
            own = " ".join(first.axis_order) if name == "axis_order" else first.switches[name]
            value = " ".join(choice.axis_order) or switch_text(choice.switches[name])
            between = " | " if name == LADDER_SWITCH else ", "
            values = found.get(name, switch_text(own)).split(between)
            found[name] = between.join(dict.fromkeys((*values, value)))
    return found


def fixed_text(question: Question) -> str:
    """Return the sentence about what a search keeps fixed."""
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
