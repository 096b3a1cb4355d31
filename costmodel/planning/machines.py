"""The best layout of every machine of a question, and what the whole run takes there in time and money."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from costmodel.base.errors import CostModelError, NoLayoutError
from costmodel.describe.hardware.prices import price_note
from costmodel.describe.jobs.job import Job
from costmodel.describe.jobs.layout_text import layout_text
from costmodel.estimates.estimate import Estimate
from costmodel.planning.found import SearchResult
from costmodel.planning.search import Question
from costmodel.whole_run.run import PERCENTILES, TrainingRun, run_of

_RUNS = 1000
"""Runs to draw for p10 and p90: as many as the steps that are priced again for them."""
_SPREAD = ("days", "dollars")
TRILLION = 1e12


class Machine(NamedTuple):
    """One cluster with a number of GPUs and a precision, and the best layout on it."""

    job: Job
    """A job on it, of any layout."""
    est: Estimate | None = None
    """Of the best layout; none where no layout fits."""
    run: TrainingRun | None = None
    """The whole run of it; none without tokens, or where it cannot be priced."""
    problem: str = ""
    """Why there is none, in one line."""
    score: float = float("inf")
    """Of the best layout, its pipeline simulated; less is better."""

    @property
    def usd_per_trillion_tokens(self) -> float | None:
        """Rent for a trillion tokens while nothing fails; none without a price. [USD]."""
        price = self.job.cluster.price_usd_per_gpu_hour
        if self.est is None or price is None:
            return None
        return price * float(self.est.gpu_hours(TRILLION))


def machines(plan: SearchResult) -> tuple[Machine, ...]:
    """Return the best of every cluster, number of GPUs and precision of a question, cheapest or fastest as asked first.

    A search over several keeps the best of all of them together, which are often of one; the others are searched
    again on their own.
    """
    groups: dict[tuple[object, ...], list[Job]] = {}
    for job in plan.question.jobs:
        groups.setdefault(_machine_of(job), []).append(job)
    own = _machine_of(plan.best.job)
    found = [_priced(jobs[0], plan) if key == own else _searched(plan, jobs) for key, jobs in groups.items()]
    return tuple(sorted(found, key=lambda one: one.score))


def several_machines(question: Question) -> bool:
    """Say whether a question asks for more than one machine."""
    return len({_machine_of(job) for job in question.jobs}) > 1


def _machine_of(job: Job) -> tuple[object, ...]:
    """Return what tells machines apart."""
    return (job.cluster.name, float(job.layout.gpus), job.precision.name)


def _searched(plan: SearchResult, jobs: Sequence[Job]) -> Machine:
    try:
        return _priced(jobs[0], plan.search(replace(plan.question, jobs=tuple(jobs))))
    except NoLayoutError as error:
        return Machine(jobs[0], problem=str(error))


def _priced(job: Job, found: SearchResult) -> Machine:
    """Return a machine with the best layout found and its whole run, where the tokens are known."""
    est, score = found.best, found.pick_score
    if est.job.tokens is None:
        return Machine(job, est, score=score)
    try:
        return Machine(job, est, run_of(est, est.job.tokens, samples=_RUNS), score=score)
    except CostModelError as error:
        return Machine(job, est, problem=str(error), score=score)


def machine_columns(found: Sequence[Machine]) -> dict[str, list[Any]]:
    """Return a row a machine: its best layout, and the whole run there, with failures, and p10 to p90."""
    rows = [_row(one) for one in found]
    return {name: [row[name] for row in rows] for name in rows[0]}


def _row(one: Machine) -> dict[str, Any]:
    """Return what is known of a machine: every row has every key, the others are none."""
    cluster, est, run = one.job.cluster, one.est, one.run
    drawn = None if est is None else est.sample()
    spread = {} if run is None else run.spread()
    figures = ("step_time_s", "mfu", "memory_bytes_per_gpu", "memory_capacity_bytes", "fits_probability")
    known = {name: None if est is None else float(getattr(est, name)) for name in figures}
    row: dict[str, Any] = {
        "cluster": cluster.name,
        "accelerator": cluster.accelerator.name,
        "gpus": round(float(one.job.layout.gpus)),
        "recipe": one.job.recipe.name,
        "precision": one.job.precision.name,
        "layout": None if est is None else layout_text(est.job.layout),
        "slice": None if est is None else est.job.slice,
        "step_time_s": known.pop("step_time_s"),
        **{
            f"step_time_s_p{percent}": None if drawn is None else drawn.quantile(percent / 100)
            for percent in PERCENTILES
        },
        **known,
        "price_usd_per_gpu_hour": cluster.price_usd_per_gpu_hour,
        "price_note": price_note(cluster),
        "usd_per_trillion_tokens": one.usd_per_trillion_tokens,
    }
    for name in ("days", "gpu_hours", "energy_kwh", "dollars"):
        row[name] = None if run is None else getattr(run, name)
        if name in _SPREAD:
            ends = spread.get(name, (None, None, None))
            row |= {
                f"{name}_p{percent}": None if end is None else float(end)
                for percent, end in zip(PERCENTILES, ends, strict=True)
            }
    return {**row, "problem": one.problem}
