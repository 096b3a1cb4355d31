"""What searches of small jobs find, keep, count and say, as it was last accepted; refitting changes nothing here.

`recorded_searches.jsonl` holds a search a line. A change that is meant is recorded by
``python tests/values/test_recorded_searches.py``.
"""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from round_jobs import CLUSTER, MOE, QUIET, SMALL, cluster_file, model_file

import costmodel as cm
from costmodel.planning.search import Tally, build_spaces, priced_parts

RECORDED = Path(__file__).with_name("recorded_searches.jsonl")
FITTED = re.compile(r"likel|p\d\d|certain|odds|probab|fits_with|sure|date|chance")
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
EXPERTS = {**DENSE, "model": model_file(MOE), "gpus": 16, "global_batch": 32}
TIGHT = cluster_file(
    gpu={"memory": "600 MiB", "memory_vendor": "600 MiB"}, cluster={"price_usd_per_gpu_hour": 3}
)
FAST = cluster_file(gpu={"memory_bandwidth": "4 TB/s"}, cluster={"price_usd_per_gpu_hour": 5})
FEW = {"fix": {"sequence_parallel": 0, "vp": 1, "recompute": "none"}}
SEARCHES = {
    "dense": (
        DENSE,
        (
            "tp2",
            "tp3",
            "pp2 vp2",
            "tp2 dp4",
            "dp4",
            "cp2",
            "cp16",
            "ep2",
            {"tp": 4, "zero_stage": 3},
            {"dp": 3},
        ),
    ),
    "any framework": ({**DENSE, "framework": "any", "pipeline_layout": "even", **FEW}, ("pp4", "tp8", "pp8")),
    "tight": (
        {**DENSE, "cluster": TIGHT, "headroom": 0.05, "objective": "gpu-hours"},
        ("tp1", "tp2", "tp4", {"tp": 2, "pp": 4, "recompute": "full"}),
    ),
    "limited": (
        {**DENSE, "max_memory": "700 MiB", "headroom": 0.1, "fix": {"pp": [1, 2]}},
        ("tp1", "tp4 pp4"),
    ),
    "utilization": ({**EXPERTS, "objective": "mfu"}, ("ep8", "ep4 pp2", "tp2 etp2", "ep3")),
    "dollars": (
        {**EXPERTS, "cluster": [str(CLUSTER), FAST], "gpus": [4, 8], "objective": "tokens-per-dollar"}
        | {"tokens": 1e9, **FEW},
        ("ep4",),
    ),
    "precisions": ({**DENSE, "precision": ["bf16", "fp8-delayed"], "gpus": [4, 8], **FEW}, ("tp2",)),
    "batch": ({**DENSE, "gpus": 16, "global_batch": 24, **FEW}, ("tp2",)),
    "few tokens": (
        {**DENSE, "gpus": 8, "global_batch": 7, "cp": [1, 2, 4, 8], "seq_len": 8192, **FEW},
        ("cp8",),
    ),
    "wide": (
        {**DENSE, "gpus": 16, "tp_in_domain": False, "fix": {"tp": 8, "recompute": "none"}},
        ("tp4", "tp8 pp2", "tp16"),
    ),
    "titan": ({**DENSE, "framework": "torchtitan"}, ("tp2", "pp2")),
    "deepspeed": ({**DENSE, "framework": "deepspeed", **FEW}, ({"tp": 2, "zero_stage": 2},)),
    "megatron": ({**DENSE, "framework": "megatron", "choose": True, "tp": [1, 2], **FEW}, ("tp2",)),
    "experts chosen": ({**EXPERTS, "framework": "megatron", "choose": True, "ep": [4, 8], **FEW}, ("ep4",)),
    "host": ({**DENSE, "offload_optimizer": [False, True], "cluster": TIGHT, **FEW}, ("tp4 pp2",)),
    "risk": ({**{k: v for k, v in DENSE.items() if k != "headroom"}, "headroom": 0.999}, ()),
    "few replicas": ({**DENSE, "gpus": 7, "global_batch": 13, "tp": 7}, ()),
    "held": ({**DENSE, "gpus": 6, "global_batch": 16, "tp": 4, "pp": 4}, ()),
    "small machine": ({**DENSE, "gpus": 4, "max_memory": "150 MiB", "zero_stage": 1}, ()),
    "one stage": ({**DENSE, "gpus": 2, "global_batch": 2, "micro_batch": 4, "max_memory": "1 GiB"}, ()),
    "more experts": ({**EXPERTS, "max_memory": "100 MiB", "ep": 8}, ()),
    "orders": ({**DENSE, "axis_order": ["tp-cp-dp-pp", "tp-cp-pp-dp"], "pp": [1, 2], **FEW}, ("pp2",)),
}


def plain(value):
    """Return a value to six digits; the names of files are ours."""
    if isinstance(value, dict):
        return {plain(str(key)): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(one) for one in value]
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.6g}") if np.isfinite(value) else str(value)
    text = str(value).replace(str(CLUSTER), "ours")
    return re.sub(r"(?:\S*/)?(?:model|machine)-[0-9a-f]{12}(?:\.yaml|/round-cluster\.yaml)?", "ours", text)


def rows(table, count):
    """Return the first rows of columns that are not fitted, equal columns once."""
    return {key: plain(list(held)[:count]) for key, held in table.items() if not FITTED.search(key)}


def told(name):
    """Return what one search finds and says; the one line that says why there is nothing."""
    asked, why = SEARCHES[name]
    try:
        found = cm.plan(**asked)
    except cm.CostModelError as error:
        return {"error": plain(error)}
    scores = found.kept.top["score"]
    return {
        "counts": [found.num_considered, found.num_priced, found.num_fit, len(found)],
        "rejected": plain(dict(found.rejected)),
        "by_value": plain(
            {knob: dict(sorted(best.items())) for knob, best in sorted(found.by_value.items())}
        ),
        "top": rows(found.columns(6), 6),
        "kept": rows(found.columns(), 3),
        "scores": plain(
            [scores[0], scores[len(scores) // 2], scores[-1], found.asked_score, found.pick_score]
        ),
        "front": rows(found.pareto_columns(), 6),
        "memory": plain([found.fastest_without_memory_limit_s, found.memory_gain]),
        "ranks": [found.better_than(float(scores[row])) for row in (0, len(scores) // 2, -1)],
        "searched": plain(found.searched),
        "held": plain(found.held),
        "advice": plain(found.advice()),
        "gains": plain([list(gain) for gain in found.gains()]),
        "why not": {str(layout): plain(found.why_not(layout)) for layout in why},
        "commands": plain(found.commands(2)),
        "machines": [
            [
                one.job.cluster.name,
                one.job.precision.name,
                plain(one.est and float(one.est.step_time_s)),
                one.problem,
            ]
            for one in (found.machines if found.has_machines else ())
        ],
    }


def recorded():
    """Return the lines of the file by their searches."""
    lines = RECORDED.read_text().splitlines() if RECORDED.exists() else []
    return {one["search"]: one["told"] for one in map(json.loads, lines)}


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_finds_what_it_found(name):
    now, before = json.loads(json.dumps(told(name))), recorded()[name]
    assert now.keys() == before.keys()
    for key, value in before.items():
        assert now[key] == value, key


@pytest.mark.parametrize("objective", ["step-time", "gpu-hours", "mfu"])
@pytest.mark.parametrize(("chunk", "count"), [(30, 3), (200, 20)])
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
        priced = list(priced_parts(question, build_spaces(question), chunk=most))
        for part in sorted(priced, key=lambda one: -float(one.step_time_s.min())):
            tally.add(question, part, count)
    assert len(priced) > 3
    assert parts.num_fit == whole.num_fit < whole.num_priced == parts.num_priced
    for name, column in whole.kept.top.items():
        assert parts.kept.top[name].tolist() == pytest.approx(column.tolist(), rel=1e-12)
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
    parts = list(priced_parts(question, build_spaces(question), chunk=100))
    assert len(parts) > 3
    least = min(float(np.where(part.possible, part.memory_bytes, np.inf).min()) for part in parts)
    tally = Tally()
    for part in parts:
        tally.add(replace(question, max_memory_bytes=1.0), part, 1)
    assert tally.kept is None
    assert tally.leanest[0] == tally.leanest[1]["memory_bytes"][0] == least


if __name__ == "__main__":
    lines = [json.dumps({"search": name, "told": told(name)}, ensure_ascii=False) for name in SEARCHES]
    RECORDED.write_text("\n".join(lines) + "\n")
