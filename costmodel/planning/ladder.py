"""What a framework can recompute of a layer, as a ladder: modules in the order of what a byte that they free costs.

A search prices the rungs beside the recipe's own list of modules: what is kept of a layer and what is run again decides
whether a layout fits, and costs between nothing and a third of the step (Korthikanti et al., arXiv:2205.05198, section 5).
"""

from __future__ import annotations

import operator
from dataclasses import replace
from itertools import accumulate

import numpy as np

from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.describe.jobs.fields import RECOMPUTE_POLICIES
from costmodel.describe.jobs.job import Job
from costmodel.physics.pipeline.schedules import schedule_code
from costmodel.planning.choices import Choice
from costmodel.planning.search import Question
from costmodel.step.price import price

RUNG = "selective_modules"
"""The switch that a rung turns."""
SELECTIVE = float(RECOMPUTE_POLICIES.index("selective"))


def rungs(job: Job) -> tuple[Choice, ...]:
    """Return the lists of modules to try beside the job's own, shortest first; none where its framework takes none.

    Each module is priced alone, with whole layers on a GPU: those that free memory stand in the order of seconds a byte.
    A list that the recipe has already is no rung.
    """
    launches = job.recipe.launches
    framework = FRAMEWORKS.get(launches.framework) if launches else None
    if framework is None:
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


def ladder_of(question: Question, job: Job) -> tuple[Choice, ...]:
    """Return the rungs that a question leaves to the search: its user named neither modules nor another policy."""
    free = RUNG not in question.held and SELECTIVE in question.values(job)["recompute"]
    return rungs(job) if free else ()


def selective(question: Question) -> Question:
    """Return the question of layouts that recompute modules: all others have no rung."""
    return replace(question, given={**question.given, "recompute": (SELECTIVE,)})


def neighbours(ladder: tuple[Choice, ...], chosen: tuple[Choice, ...]) -> tuple[Choice, ...]:
    """Return the rungs beside the one chosen: what else was chosen may take memory, or give some back."""
    at = next((place for place, rung in enumerate(ladder) if rung in chosen), None)
    return () if at is None else (*ladder[max(at - 1, 0) : at], *ladder[at + 1 : at + 2])
