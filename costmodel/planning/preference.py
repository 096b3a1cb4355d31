"""Of layouts that a search cannot tell apart, the one to try first, and which of them to list.

Figures of two layouts that differ by less than `TIE_SHARE` are no reason to run the more complicated one: the
same layout in two releases of a framework differs by 2 % (median).

The bill has a closed form of the time that stages wait for each other, so that it can price a million layouts; which of
a few is faster is decided by running the pipeline of each task by task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from costmodel.describe.jobs.fields import FIELD, KNOBS
from costmodel.describe.jobs.job import Job
from costmodel.describe.jobs.short_form import changed_switches
from costmodel.estimates.estimate import Estimate
from costmodel.physics.pipeline.schedules import schedule_code
from costmodel.planning.best import BestLayouts, Columns, best_rows, joined, pareto_indices, taken

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

TIE_SHARE = 0.005
"""Scores this close count as equal. [-]"""

_SAME = 1e-9
_AXES = ("tp", "cp", "pp", "vp", "ep", "etp")
_PLAIN_SCHEDULES = ("none", "1f1b", "interleaved")
_FAMILY = (
    "tp",
    "sequence_parallel",
    "cp",
    "ep",
    "etp",
    "micro_batch",
    "pp",
    "schedule",
    "recompute",
    "zero_stage",
)
"""What layouts of one family share besides their job: all but virtual stages, the group that shards, and switches."""


def num_things(rows: Columns, jobs: Sequence[Job]) -> Array:
    """Count what a layout turns on: axes, groups, recomputation, offloading, other switches than the recipe's. [-]"""
    plain = [float(schedule_code(name)) for name in _PLAIN_SCHEDULES]
    counted = [rows[axis] > 1 for axis in _AXES]
    counted += [rows["shard_group"] > 0, rows["recompute"] > 0, rows["zero_stage"] > 1]
    counted.append(~np.isin(rows["schedule"], plain))
    # Few of many jobs are asked for at a time, and comparing switches is slow.
    named, where = np.unique(rows["job"].astype(np.int64), return_inverse=True)
    of_job = np.asarray([_things_of_job(jobs[index]) for index in named.tolist()])
    return np.asarray(np.sum(counted, axis=0) + of_job[where])


def _things_of_job(job: Job) -> float:
    """Count what a job itself changes: switches, the order of its axes, a precision below 16 bits. [-]"""
    order = " ".join(job.axis_order) != FIELD["axis_order"].default
    return float(len(changed_switches(job)) + order + (job.precision.name != FIELD["precision"].default))


def by_simplicity(rows: Columns, jobs: Sequence[Job]) -> Indices:
    """Return the rows in order of how simple they are to run: GPUs, things turned on, ranks a replica, chunks, memory."""
    replica = rows["tp"] * rows["cp"] * rows["pp"]
    keys = (
        rows["gpus"],
        num_things(rows, jobs),
        replica,
        rows["ep"] * rows["etp"],
        rows["vp"],
        rows["shard_group"],
        rows["memory_bytes"],
        rows["zero_stage"],
        rows["score"],
    )
    return np.lexsort(keys[::-1])


def unlike(rows: Columns, order: Indices) -> Indices:
    """Return rows without those that equal a simpler one in score and memory, in order of score.

    `order` has all rows, the simplest first.
    """
    # Rounded in steps of a relative 1e-9, so that sums in another order are still equal.
    score, memory = (np.rint(np.log(rows[name][order]) / _SAME) for name in ("score", "memory_bytes"))
    _, first = np.unique(np.stack([score, memory, rows["job"][order]]), axis=1, return_index=True)
    distinct = order[np.sort(first)]
    return np.asarray(distinct[np.lexsort((rows["memory_bytes"][distinct], rows["score"][distinct]))])


def simplest_tie(score: Array, order: Indices, among: Indices) -> int:
    """Return the simplest row whose score is within a tie of the best one's; `order` has all rows, the simplest first."""
    near = among[score[among] <= (1.0 + TIE_SHARE) * score[among].min()]
    return int(order[np.isin(order, near)][0])


def unbeaten(rows: Columns, among: Indices) -> Indices:
    """Return the rows that none before them needs less memory than; `among` are in order of score, then memory."""
    memory = rows["memory_bytes"][among]
    least = np.concatenate([[np.inf], np.minimum.accumulate(memory)[:-1]])
    return np.asarray(among[memory <= (1.0 + _SAME) * least])


def listed(
    rows: Columns, jobs: Sequence[Job], origins: Sequence[int], *, own: int | None = None, runs: bool = True
) -> tuple[Indices, Indices]:
    """Return the rows worth listing, best first, and how many rows each stands for.

    First the simplest of the fastest that no other beats in both score and memory, then the others by score. Of a
    family that differs in virtual stages, shard groups and switches by less than a tie, the simplest stands for all.
    The fastest of all is a row of its own, as is the layout that the job has today.
    """
    order = by_simplicity(rows, jobs)
    different = unlike(rows, order)
    if own is not None and not runs:
        different = different[different != own]
    pick, fastest = simplest_tie(rows["score"], order, unbeaten(rows, different)), int(different[0])

    def family(row: int) -> tuple[float, ...]:
        return (origins[int(rows["job"][row])], *(float(rows[name][row]) for name in _FAMILY))

    families: dict[tuple[float, ...], list[int]] = {}
    for row in different.tolist():
        if row != own:
            families.setdefault(family(row), []).append(row)
    shown: dict[int, int] = {}
    for rows_of_one in families.values():
        remaining = np.asarray(rows_of_one)
        while remaining.size:
            near = rows["score"][remaining] <= (1.0 + TIE_SHARE) * rows["score"][remaining[0]]
            best = pick if pick in remaining[near] else simplest_tie(rows["score"], order, remaining)
            shown[best] = int(near.sum()) - (fastest != best and fastest in remaining[near])
            remaining = remaining[~near]
    for row in (pick, fastest, *(() if own is None or not runs else (own,))):
        shown.setdefault(row, 1)
    best_first = sorted(shown, key=lambda row: (row != pick, row != fastest, rows["score"][row], row))
    return np.asarray(best_first), np.asarray([shown[row] for row in best_first])


FINALISTS = 12
"""Listed rows that are priced one by one, with their pipelines simulated."""
_MOST_SIMULATED = 20
LONGER = "longer"
"""Column of the step with its pipeline simulated over that of the closed form, of what was not simulated that of layouts
with the same pipeline. [-]"""

_PIPELINE = ("tp", "sequence_parallel", "cp", "ep", "etp", "pp", "vp", "schedule", "micro_batch")
"""Knobs by which stages wait for each other much alike, whatever is sharded, recomputed or switched on."""


def with_simulation(
    rows: Columns, at: Sequence[int], estimate_of: Callable[[Columns, int], Estimate]
) -> Columns:
    """Return rows with those at `at` priced one by one, and the steps of all with the same pipeline as much longer."""
    longer = rows[LONGER].copy()
    billed_s = rows["step_time_s"] / longer
    for row in at:
        if rows["pp"][row] > 1:
            alike = np.all([rows[knob] == rows[knob][row] for knob in _PIPELINE], axis=0)
            ratio = float(estimate_of(rows, row).step_time_s) / billed_s[row]
            longer[alike & (longer == 1.0)] = ratio
            longer[row] = ratio
    scale = longer / rows[LONGER]
    return {**rows, "score": rows["score"] * scale, "step_time_s": billed_s * longer, LONGER: longer}


def unsimulated(rows: Columns) -> Columns:
    """Return rows as a search priced them, by closed forms."""
    return {**rows, LONGER: np.ones(rows["score"].size)}


def ranked(
    candidates: BestLayouts,
    jobs: Sequence[Job],
    origins: Sequence[int],
    estimate_of: Callable[[Columns, int], Estimate],
) -> BestLayouts:
    """Return what was kept in the order of simulated steps, as many simulated as it takes for the first `FINALISTS`."""
    top, tried = unsimulated(candidates.top), set[tuple[float, ...]]()
    while len(tried) < _MOST_SIMULATED:
        first = listed(top, jobs, origins)[0][:FINALISTS].tolist()
        fresh = [row for row in first if _key(top, row) not in tried]
        if not fresh:
            break
        tried |= {_key(top, row) for row in fresh}
        top = with_simulation(top, fresh, estimate_of)
        top = best_rows(top, top["score"].size)
    simulated = {_key(top, row) for row in range(top["score"].size)}
    beyond = [
        row for row in range(candidates.front["score"].size) if _key(candidates.front, row) not in simulated
    ]
    front = joined([top, unsimulated(taken(candidates.front, np.asarray(beyond, dtype=np.int64)))])
    return BestLayouts(top, taken(front, pareto_indices(front["score"], front["memory_bytes"])))


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
