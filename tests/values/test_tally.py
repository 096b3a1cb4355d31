"""What a search counts and keeps, against plain loops over all that it priced."""

import functools

import numpy as np
import pytest
from round_jobs import CLUSTER, QUIET, SMALL, model_file, near

import costmodel as cm
from costmodel.describe.jobs.fields import KNOBS
from costmodel.planning import search
from costmodel.planning.found import CURRENT
from costmodel.planning.request import make_question
from costmodel.planning.search import Tally, priced_parts, rows_of

LIMIT = 2.2e9
COUNT = 5
FIXED = {"cp": 1, "ep": 1, "etp": 1, "vp": 1, "shard_group": 0, "sequence_parallel": 0}


# Two numbers of GPUs, each one job; about half of what divides fits.
ASKED = {
    "model": model_file(SMALL),
    "cluster": str(CLUSTER),
    "gpus": [4, 2],
    "global_batch": 16,
    "seq_len": 1024,
    "framework": "any",
    "pipeline_layout": "even",
    "objective": "gpu-hours",
    "headroom": 0.0,
    "max_memory_bytes": LIMIT,
    "switches": QUIET,
    "fix": FIXED,
}


@functools.cache
def counted(chunk, limit=LIMIT):
    """Return a tally, and all layouts as rows of plain numbers: job, score, memory, knobs."""
    question = make_question(**{**ASKED, "max_memory_bytes": limit})
    tally, rows = Tally(), []
    for part in priced_parts(question, chunk=chunk):
        tally.add(question, part, COUNT)
        possible = np.flatnonzero(part.slab.possible)
        weight = question.weight(question.jobs[part.job])
        score = part.step_time_s.reshape(-1)[possible] * weight
        columns = rows_of(part, possible, score)
        rows += [
            {name: float(values[row]) for name, values in columns.items()} for row in range(possible.size)
        ]
    return tally, rows


CHUNKS = pytest.mark.parametrize("chunk", [40, 100_000])


@CHUNKS
def test_counts_and_the_best(chunk):
    tally, rows = counted(chunk)
    fit = [row for row in rows if row["memory_bytes"] <= LIMIT]
    assert 20 < len(fit) < len(rows) - 20
    assert (tally.num_priced, tally.num_fit) == (len(rows), len(fit))
    for job in (0, 1):
        assert tally.fastest_s[job] == near(min(row["step_time_s"] for row in rows if row["job"] == job))
        least = min((row for row in fit if row["job"] == job), key=lambda row: row["score"])
        assert tally.best_score[job] == near(least["score"])
        # What the whole device would take is beyond the limit that was given.
        assert tally.best_in_device[job] == near(least["score"])
        assert tally.first[job]["score"].tolist() == near([least["score"]])
        assert tally.first[job]["step_time_s"].tolist() == near([least["step_time_s"]])
        assert tally.first[job]["gpus"].tolist() == [4.0 if job == 0 else 2.0]
    # The objective counts GPUs: four of them are not twice as good as two.
    costs = [row["score"] / row["step_time_s"] for row in rows]
    assert costs == near([row["gpus"] / (16 * 1024) / 3600 for row in rows])


@CHUNKS
def test_the_best_rows_are_those_of_a_sort(chunk):
    tally, rows = counted(chunk)
    scores = sorted(row["score"] for row in rows if row["memory_bytes"] <= LIMIT)
    assert np.sort(tally.candidates.top["score"]).tolist() == near(scores[:COUNT])
    names = ("score", "memory_bytes", "step_time_s", "gpus", *KNOBS)
    priced = {tuple(row[name] for name in names) for row in rows}
    kept = zip(*(tally.candidates.top[name].tolist() for name in names), strict=True)
    assert set(kept) <= priced


@CHUNKS
def test_the_front_is_what_nothing_beats_in_both(chunk):
    tally, rows = counted(chunk)
    fit = [(row["score"], row["memory_bytes"]) for row in rows if row["memory_bytes"] <= LIMIT]
    front = {
        (score, size)
        for score, size in fit
        if not any(s <= score and m <= size and (s, m) != (score, size) for s, m in fit)
    }
    kept = set(
        zip(
            tally.candidates.front["score"].tolist(),
            tally.candidates.front["memory_bytes"].tolist(),
            strict=True,
        )
    )
    assert len(front) > 3
    assert kept == front


@CHUNKS
def test_the_best_of_every_value_of_every_knob(chunk):
    tally, rows = counted(chunk)
    fit = [row for row in rows if row["memory_bytes"] <= LIMIT]
    for knob in (*KNOBS, "gpus"):
        values = {row[knob] for row in fit}
        best = {value: min(row["score"] for row in fit if row[knob] == value) for value in values}
        found = {value: score for value, score in tally.by_value[knob].items() if np.isfinite(score)}
        assert found == near(best), knob


@pytest.mark.parametrize("chunk", [40, 100_000])
def test_the_best_placements_of_each_job(chunk, monkeypatch):
    monkeypatch.setattr(search, "MAX_PLACEMENTS", 3)
    counted.cache_clear()
    tally, rows = counted(chunk)
    counted.cache_clear()
    for job in (0, 1):
        best = {}
        for row in rows:
            if row["job"] == job and row["memory_bytes"] <= LIMIT:
                where = tuple(row[knob] for knob in search.PLACEMENT_KNOBS)
                best[where] = min(best.get(where, np.inf), row["score"])
        kept = tally.placements[job]
        assert np.sort(kept["score"]).tolist() == near(sorted(best.values())[:3])
        for index, score in enumerate(kept["score"]):
            assert best[tuple(float(kept[knob][index]) for knob in search.PLACEMENT_KNOBS)] == near(
                float(score)
            )


@CHUNKS
def test_where_nothing_fits_the_leanest_is_noted(chunk):
    tally, rows = counted(chunk, 1e8)
    least = min(rows, key=lambda row: row["memory_bytes"])
    assert (tally.num_priced, tally.num_fit, tally.candidates) == (len(rows), 0, None)
    assert tally.leanest["memory_bytes"].tolist() == near([least["memory_bytes"]])


def test_the_rank_of_a_score_counts_what_is_better_by_the_objective():
    found = cm.plan(**ASKED, num_candidates=5000)
    scores = np.sort(found.candidates.top["score"])
    assert len(scores) == found.num_fit
    assert [found.num_better_than(float(scores[rank])) for rank in (0, 7)] == [
        0,
        int(np.sum(scores < scores[7] * (1 - 1e-12))),
    ]
    # Of equal scores none is better, however they round.
    assert found.num_better_than(float(scores[0]) * (1 + 1e-13)) == 0
    assert found.num_better_than(np.inf) == found.num_fit


def test_the_rank_of_ones_own_layout_hangs_neither_on_what_is_kept_nor_on_what_is_searched():
    """Of the few that are kept it would be the last; where nothing else is searched it is the first of one, or of two."""
    job = {
        "model": "llama3-8b",
        "gpus": 16,
        "tp": 8,
        "recompute": "full",
        "global_batch": 64,
        "seq_len": 4096,
    }
    every, few = (cm.plan(job=job, choose=False, cp=1, num_candidates=kept) for kept in (5000, 20))
    better = every.num_better_than(float(every.candidates.top["score"][every.current_row]))
    assert few.yours.rank == every.yours.rank == better + 1
    assert better > 21
    only = {"tp": 8, "pp": 1, "cp": 1, "vp": 1, "micro_batch": 1, "recompute": "full"}
    alone = cm.plan(job={**job, "zero_stage": 3}, choose=False, headroom=0.0, **only)
    assert (alone.yours.rank, alone.num_fit, alone.yours.num_fit) == (3, 2, 3)
    # By a quantile the kept rows change their order: it is the one row of a job that was not searched.
    likely = cm.plan(job=job, choose=False, cp=1, num_candidates=50, objective="p90")
    assert likely.candidates.top["job"][likely.current_row] == CURRENT
