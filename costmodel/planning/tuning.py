"""After the layouts, the switches: the best placements priced again with what their framework leaves to its users.

Kernels differ by switches, so that a switch is a pass of its own; it runs over the best placements of the pass
before, with all of their policies, instead of over the whole space. Choices are made one after another, the best
first, until none is left that helps: not every combination is priced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.describe.jobs.job import Job
from costmodel.describe.jobs.layout_text import value_text
from costmodel.describe.recipe import switch_text
from costmodel.planning.best import Columns
from costmodel.planning.choices import Choice, choices_of
from costmodel.planning.ladder import RUNG, ladder_of, neighbours, selective
from costmodel.planning.search import Pass, Question, Tally, best_placements, space_of
from costmodel.planning.space import PLACEMENT_KNOBS

LEAST_GAIN = 0.0005
"""Shares of a score that a choice has to save to be built upon. [-]"""

_OWN_SPACE = "moe_dispatcher"


def asked_passes(question: Question) -> tuple[list[Pass], Counter[str]]:
    """Return a pass a job over all of its space, and what is out of the spaces by reason.

    Another dispatcher is a pass over a space of its own, because it lets experts spread further.
    """
    asked: list[tuple[int, Job, tuple[Choice, ...]]] = [
        (index, job, ()) for index, job in enumerate(question.jobs)
    ]
    if question.chooses:
        asked += [
            (index, choice.applied(job), (choice,))
            for index, job in enumerate(question.jobs)
            for choice in choices_of(job, question.held)
            if choice.turned == _OWN_SPACE
        ]
    passes, rejected = [], Counter[str]()
    for place, (origin, job, choices) in enumerate(asked):
        space = space_of(question, job)
        rejected.update(space.rejected)
        passes.append(Pass(place, job, space.slabs, origin, choices))
    return passes, rejected


def _is_rung(choices: tuple[Choice, ...]) -> bool:
    """Return whether recomputed modules are among some choices."""
    return any(choice.turned == RUNG for choice in choices)


class Tuned:
    """The passes of choices beside the layout, priced into a tally.

    Attributes
    ----------
    question : Question
        With the jobs of all passes.
    passes : list of Pass
        Those of the spaces, then those of choices.
    tally : Tally
        What it has kept and counted.
    """

    def __init__(self, question: Question, passes: list[Pass], keep: int) -> None:
        self.question = replace(question, jobs=tuple(one.job for one in passes))
        self.passes = passes
        self.tally = Tally()
        self._keep = keep

    def price(self, one: Pass) -> Iterator[int]:
        """Price a pass; yields layouts priced so far."""
        for part in one.parts():
            self.tally.add(self.question, part, self._keep)
            yield self.tally.num_priced

    def tune(self, base: Pass) -> Iterator[int]:
        """Choose for one job, best first; yields layouts priced so far."""
        climbed, ladder = [base], ladder_of(self.question, base.job)
        for rung in ladder:
            best = min(self.tally.best_score.get(one.number, float("inf")) for one in climbed)
            cramped = self.tally.worth_memory(base.number, best)
            if cramped is not None:
                climbed.append(self._chosen(base, rung, cramped))
                yield from self.price(climbed[-1])
        found = [one for one in climbed if one.number in self.tally.placements]
        if not found:
            return
        placements = best_placements([self.tally.placements[one.number] for one in found])
        current = min(found, key=lambda one: self.tally.best_score[one.number])
        score = self.tally.best_score[current.number]
        candidates = choices_of(base.job, self.question.held | {_OWN_SPACE})
        while candidates:
            tried = []
            for choice in (*candidates, *neighbours(ladder, current.choices)):
                after = self._chosen(current, choice, placements)
                for _ in self.price(after):
                    pass
                tried.append((self.tally.best_score.get(after.number, float("inf")), choice, after))
                yield self.tally.num_priced
            best, taken, after = min(tried, key=lambda one: one[0])
            if best > score * (1.0 - LEAST_GAIN):
                return
            helping = {str(choice) for _, choice, with_it in tried if self._helps(with_it, current)}
            current, score = after, best
            candidates = tuple(
                one for one in candidates if str(one) in helping and one.turned != taken.turned
            )

    def _helps(self, after: Pass, before: Pass) -> bool:
        """Say whether a pass makes any placement faster: the best one with a choice may need another choice first."""
        now, then = (_by_placement(self.tally.placements.get(one.number)) for one in (after, before))
        return any(score < then.get(at, 0.0) * (1.0 - LEAST_GAIN) for at, score in now.items())

    def _chosen(self, before: Pass, choice: Choice, placements: Columns) -> Pass:
        """Return the pass of one choice more over some placements, as the last one."""
        job = choice.applied(before.job)
        choices = (*(one for one in before.choices if one.turned != RUNG or choice.turned != RUNG), choice)
        question = selective(self.question) if _is_rung(choices) else self.question
        one = Pass(len(self.passes), job, space_of(question, job, placements).slabs, before.origin, choices)
        self.question = replace(self.question, jobs=(*self.question.jobs, job))
        self.passes.append(one)
        return one


def _by_placement(found: Columns | None) -> dict[tuple[float, ...], float]:
    """Return the best score of each placement that was kept."""
    if found is None:
        return {}
    keys = zip(*(found[knob].tolist() for knob in PLACEMENT_KNOBS), strict=True)
    return dict(zip(keys, found["score"].tolist(), strict=True))


def searched(question: Question) -> dict[str, str]:
    """Return what a search looks at, by knob, switch or order, as texts."""
    first = question.jobs[0]
    found = {
        knob: ", ".join(value_text(knob, value) for value in values)
        for knob, values in question.values(first).items()
    }
    if question.chooses:
        for choice in (*choices_of(first, question.held), *ladder_of(question, first)):
            for name in choice.switches or ("axis_order",):
                own = " ".join(first.axis_order) if name == "axis_order" else first.switches[name]
                said = " ".join(choice.axis_order) or switch_text(choice.switches[name])
                values = found.get(name, switch_text(own)).split(" | " if name == RUNG else ", ")
                found[name] = (" | " if name == RUNG else ", ").join(dict.fromkeys((*values, said)))
    return found


def held(question: Question) -> str:
    """Say what a search does not look at."""
    first = question.jobs[0]
    launches = first.recipe.launches
    framework = launches.framework if launches else "none"
    said = f"All other settings: defaults of {first.recipe.name}"
    if not question.launchable:
        said += (
            ", overlaps, dispatcher, graphs and the order of the axes with them (framework any: layouts alone are "
            "searched; a plan for one framework turns these too, and can find a faster one)"
        )
    elif not question.chooses:
        said += ", overlaps, dispatcher, graphs and the order of the axes with them (choose is off)"
    elif framework not in FRAMEWORKS:
        said += ", overlaps, dispatcher, graphs and the order of the axes with them (it is what somebody ran)"
    if question.held:
        said += f"; as given: {', '.join(sorted(question.held))}"
    chunks = "balanced to offset the LM head"
    return f"{said}; layers over stages: {chunks if first.balanced_stages else 'as the recipe splits them'}"
