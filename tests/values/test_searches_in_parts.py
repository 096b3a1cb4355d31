"""A search does not hang on how its space is cut."""

from dataclasses import replace

import numpy as np
import pytest
from round_jobs import CLUSTER, QUIET, SMALL, model_file

import costmodel as cm
from costmodel.planning.search import Tally, priced_parts

DENSE = {
    "model": model_file(SMALL),
    "cluster": str(CLUSTER),
    "gpus": 8,
    "global_batch": 16,
    "seq_len": 1024,
    "switches": QUIET,
    "headroom": 0.0,
    "choose": False,
}


@pytest.mark.parametrize("objective", ["step-time", "gpu-hours", "mfu"])
@pytest.mark.parametrize(("chunk", "count"), [(30, 3), (60, 20)])
def test_a_search_in_parts_keeps_what_it_keeps_at_once(objective, chunk, count):
    """The best, the front, the best of every value and of every placement do not hang on how a space is cut."""
    asked = {
        **DENSE,
        "gpus": [4, 8],
        "objective": objective,
        "max_memory": "800 MiB",
        "fix": {"recompute": "none"},
    }
    question = cm.plan(**asked).question
    whole, parts = Tally(), Tally()
    for tally, most in ((whole, 2**19), (parts, chunk)):
        # The best come last: what was kept of the parts before has to give way.
        priced = list(priced_parts(question, chunk=most))
        for part in sorted(priced, key=lambda one: -float(one.step_time_s.min())):
            tally.add(question, part, count)
    assert len(priced) > 3
    assert parts.num_fit == whole.num_fit < whole.num_priced == parts.num_priced
    assert parts.kept.top["score"].tolist() == pytest.approx(whole.kept.top["score"].tolist(), rel=1e-12)
    # Of layouts that tie with the last, either may be the one that is kept.
    sure = whole.kept.top["score"] < whole.kept.top["score"].max() * (1.0 - 1e-12)
    for name, column in whole.kept.top.items():
        assert parts.kept.top[name][sure].tolist() == pytest.approx(column[sure].tolist(), rel=1e-12)
    assert len(whole.kept.top["score"]) == count
    for name in ("score", "memory_bytes"):
        assert parts.kept.front[name].tolist() == pytest.approx(whole.kept.front[name].tolist(), rel=1e-12)
    for knob, table in whole.by_value.items():
        # A value of which nothing fits is noted or not.
        cut, at_once = (
            {value: cost for value, cost in one.items() if np.isfinite(cost)}
            for one in (parts.by_value[knob], table)
        )
        assert cut == pytest.approx(at_once, rel=1e-12)
    assert parts.fastest_s == pytest.approx(whole.fastest_s, rel=1e-12)
    assert parts.best_score == pytest.approx(whole.best_score, rel=1e-12)
    for job, held in whole.placements.items():
        cut, at_once = (
            sorted(one["score"][np.isfinite(one["score"])]) for one in (parts.placements[job], held)
        )
        assert cut == pytest.approx(at_once, rel=1e-12)


def test_of_what_does_not_fit_the_leanest_is_known():
    question = cm.plan(**{**DENSE, "fix": {"recompute": "none", "vp": 1}}).question
    parts = list(priced_parts(question, chunk=9))
    assert len(parts) > 3
    least = min(float(np.where(part.slab.possible, part.memory_bytes, np.inf).min()) for part in parts)
    tally = Tally()
    for part in parts:
        tally.add(replace(question, max_memory_bytes=1.0), part, 1)
    assert tally.kept is None
    assert tally.leanest[0] == tally.leanest[1]["memory_bytes"][0] == least
