"""The first rows of a plan, ranked by the simulation of their pipelines.

The bill has a closed form of the time that stages wait for each other, so that it can price a million layouts; which of
a few is faster is decided by running the pipeline of each task by task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from costmodel.describe.jobs.fields import KNOBS
from costmodel.describe.jobs.job import Job
from costmodel.estimates.estimate import Estimate
from costmodel.estimates.pipeline_run import is_soon_simulated, simulated_step_s
from costmodel.planning.best import Columns, Kept, best_rows, joined, pareto_indices, taken
from costmodel.planning.preference import listed

FINALISTS = 8
"""Listed rows that are simulated; a search that keeps fewer is ranked by its bills."""
_MOST_SIMULATED = 16
SIMULATED = "simulated_step_time_s"
"""Column of the step with its pipeline run task by task; nan of rows that were not simulated. [s]"""
LONGER = "longer"
"""Column of the simulated over the billed step, of what was not simulated that of layouts with the same pipeline. [-]"""

_PIPELINE = ("tp", "sequence_parallel", "cp", "ep", "etp", "pp", "vp", "schedule", "micro_batch")
"""Knobs by which stages wait for each other much alike, whatever is sharded, recomputed or switched on."""


def step_with_simulation_s(est: Estimate) -> float:
    """Return the step of one layout with its pipeline simulated; nan where that takes more than milliseconds. [s]"""
    if est.job.layout.pp == 1:
        return float(est.step_time_s)
    return simulated_step_s(est) if is_soon_simulated(est) else float("nan")


def with_simulation(rows: Columns, at: Sequence[int], estimates: Sequence[Estimate]) -> Columns:
    """Return rows with those at `at` simulated, and the scores of all as much longer as is known."""
    took_s, longer = rows[SIMULATED].copy(), rows[LONGER].copy()
    for row, est in zip(at, estimates, strict=True):
        took_s[row] = step_with_simulation_s(est)
        if np.isfinite(took_s[row]):
            alike = np.isnan(took_s) & np.all([rows[knob] == rows[knob][row] for knob in _PIPELINE], axis=0)
            longer[row] = took_s[row] / rows["step_time_s"][row]
            longer[alike] = longer[row]
    score = rows["score"] * longer / rows[LONGER]
    return {**rows, "score": score, SIMULATED: took_s, LONGER: longer}


def unsimulated(rows: Columns) -> Columns:
    """Return rows with the columns of simulated steps, none of them known."""
    count = rows["score"].size
    return {**rows, SIMULATED: np.full(count, np.nan), LONGER: np.ones(count)}


def ranked(
    kept: Kept, jobs: Sequence[Job], asked: Sequence[int], estimate_of: Callable[[Columns, int], Estimate]
) -> Kept:
    """Return what was kept in the order of simulated steps, as many simulated as it takes for the first `FINALISTS`."""
    top, tried = unsimulated(kept.top), set[tuple[float, ...]]()
    if top["score"].size < FINALISTS:
        return Kept(top, unsimulated(kept.front))
    while len(tried) < _MOST_SIMULATED:
        first = listed(top, jobs, asked)[0][:FINALISTS].tolist()
        fresh = [row for row in first if _key(top, row) not in tried]
        if not fresh:
            break
        tried |= {_key(top, row) for row in fresh}
        top = with_simulation(top, fresh, [estimate_of(top, row) for row in fresh])
        top = best_rows(top, top["score"].size)
    held = {_key(top, row) for row in range(top["score"].size)}
    beyond = [row for row in range(kept.front["score"].size) if _key(kept.front, row) not in held]
    front = joined([top, unsimulated(taken(kept.front, np.asarray(beyond, dtype=np.int64)))])
    return Kept(top, taken(front, pareto_indices(front["score"], front["memory_bytes"])))


def _key(rows: Columns, row: int) -> tuple[float, ...]:
    """Return what tells a row from all others."""
    return tuple(float(rows[name][row]) for name in ("job", "gpus", *KNOBS))


def best_by_value(rows: Columns, by_value: dict[str, dict[float, float]]) -> dict[str, dict[float, float]]:
    """Return the best score of every value of every knob, by the simulation where layouts that have it were kept."""
    found = {}
    for knob, values in by_value.items():
        at = rows["gpus" if knob == "gpus" else knob]
        found[knob] = {
            value: float(rows["score"][at == value].min()) if (at == value).any() else score
            for value, score in values.items()
        }
    return found
