"""The search over switches that a framework leaves to its users, for the best placements of the search over layouts.

Kernels differ by switches, so each switch makes a variant of the job to price. It is priced only for the best
placements so far, with all recomputation, schedule and sharding policies. The search is greedy: the switch that helps
most is taken, until none helps; not every combination is priced.

What a framework can recompute of a layer is a ladder: modules in the order of what a byte that they free costs, between
nothing and a third of the step (Korthikanti et al., arXiv:2205.05198, section 5).
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from costmodel.describe.frameworks import FRAMEWORKS, framework_of
from costmodel.describe.jobs.fields import RECOMPUTE_POLICIES
from costmodel.describe.jobs.job import Job
from costmodel.describe.jobs.layout_text import value_text
from costmodel.describe.recipe import switch_text
from costmodel.physics.pipeline.schedules import schedule_code
from costmodel.planning.best import Columns, taken
from costmodel.planning.choices import Choice, choices_of
from costmodel.planning.search import JobVariant, Question, Tally, best_placements, space_of
from costmodel.planning.space import PLACEMENT_KNOBS
from costmodel.step.price import price

Progress = Callable[[int, int], None]

LEAST_GAIN = 0.0005
"""Shares of a score that a choice has to save to be built upon. [-]"""
MORE_TOGETHER = 0.2
"""Share of a score that several choices may save beyond what each of them saves alone. [-]"""
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
        seconds, held = _priced(job, (module,))
        if held < plain:
            found.append(((seconds - plain_s) / (plain - held), module))
    lists = accumulate(((module,) for _, module in sorted(found)), operator.add)
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


Scores = Mapping[tuple[float, ...], float]
"""Of placements; less is better."""


def placements_of(rows: Columns) -> list[tuple[float, ...]]:
    """Return what tells the placements of rows apart."""
    return list(zip(*(rows[knob].tolist() for knob in PLACEMENT_KNOBS), strict=True))


def hopeful(placements: Columns, before: Scores, tried: Sequence[Scores], best: float) -> Columns:
    """Return the placements that may yet beat the `best` score.

    All choices together are taken to save what each that was `tried` saves alone, and `MORE_TOGETHER` besides.
    """
    table = np.asarray(
        [[one.get(at, np.inf) for at in placements_of(placements)] for one in (before, *tried)]
    )
    # What does not fit without a choice fits with one, or with none of them.
    own = np.where(np.isfinite(table[0]), table[0], table.min(axis=0))
    able = np.flatnonzero(np.isfinite(own))
    together = own[able] * np.prod(np.minimum(table[1:, able] / own[able], 1.0), axis=0)
    return taken(placements, able[together * (1.0 - MORE_TOGETHER) <= best])


class Tuned:
    """The search: every layout of each job, then a greedy search over switches for the best placements."""

    def __init__(
        self, question: Question, keep: int, progress: Progress | None = None, reference_score: float = np.inf
    ) -> None:
        self.asked, self.question = question, replace(question, jobs=())
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
                if choice.turned == _OWN_SPACE
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
        for base in list(self.variants) if self.asked.search_switches else ():
            self._tune(base)

    def _price(self, one: JobVariant) -> None:
        for part in one.parts():
            self.tally.add(self.question, part, self._keep)
            if self._progress is not None:
                self._progress(self.tally.num_priced, max(self._total, self.tally.num_priced))

    def _score(self, one: JobVariant) -> float:
        return self.tally.best_score.get(one.number, np.inf)

    def _tune(self, base: JobVariant) -> None:
        """Tune one job: memory-saving rungs where memory limits, then the switch that helps most, until none does."""
        climbed, ladder = [base], ladder_of(self.asked, base.job)
        self.ladders.append(ladder)
        for rung in ladder:
            memory_limited = self.tally.near_best_with_more_memory(
                base.number, min(map(self._score, climbed))
            )
            if memory_limited is not None:
                climbed.append(self._chosen(base, rung, memory_limited))
        found = [one for one in climbed if one.number in self.tally.placements]
        if not found:
            return
        placements = best_placements([self.tally.placements[one.number] for one in found])
        current = min(found, key=self._score)
        candidates = choices_of(base.job, self.asked.user_switches | {_OWN_SPACE})
        while candidates:
            tried = [
                (choice, self._chosen(current, choice, placements))
                for choice in (*candidates, *neighbours(ladder, current.choices))
            ]
            taken, after = min(tried, key=lambda each: self._score(each[1]))
            if self._score(after) > self._score(current) * (1.0 - LEAST_GAIN):
                return
            before = self._by_placement(current)
            with_it = {str(choice): self._by_placement(one) for choice, one in tried}
            # The best placement with a choice may need another choice first.
            helping = {
                name
                for name, scores in with_it.items()
                if any(score < before.get(at, 0.0) * (1.0 - LEAST_GAIN) for at, score in scores.items())
            }
            placements = hopeful(placements, before, [*with_it.values()], self._score(after))
            current = after
            candidates = tuple(
                choice for choice in candidates if str(choice) in helping and choice.turned != taken.turned
            )

    def _by_placement(self, one: JobVariant) -> Scores:
        """Return the best score of each placement that was kept of a variant."""
        found = self.tally.placements.get(one.number)
        return {} if found is None else dict(zip(placements_of(found), found["score"].tolist(), strict=True))

    def _chosen(self, before: JobVariant, choice: Choice, placements: Columns) -> JobVariant:
        """Price a variant with one more choice over some placements."""
        job = choice.applied(before.job)
        choices = (*(one for one in before.choices if one.turned != RUNG or choice.turned != RUNG), choice)
        question = self.asked
        if any(one.turned == RUNG for one in choices):
            question = replace(question, given={**question.given, "recompute": (SELECTIVE,)})
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
            said = " ".join(choice.axis_order) or switch_text(choice.switches[name])
            between = " | " if name == RUNG else ", "
            values = found.get(name, switch_text(own)).split(between)
            found[name] = between.join(dict.fromkeys((*values, said)))
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
    said = f"All other settings: defaults of {first.recipe.name}"
    if why:
        said += f", overlaps, dispatcher, graphs and the order of the axes with them ({why})"
    if question.user_switches:
        said += f"; as given: {', '.join(sorted(question.user_switches))}"
    chunks = "balanced to offset the LM head" if first.balanced_stages else "as the recipe splits them"
    return f"{said}; layers over stages: {chunks}"
