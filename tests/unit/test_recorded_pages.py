"""Every table and column of every answer, as it was last accepted: a net under `test_reports.py` and `tests/values`.

The jobs run on the round machine of `tests/values`, without what is fitted to published runs, so that refitting
changes nothing here; rows and columns of what is fitted (bands, odds, percentiles) are left out. `recorded_pages.jsonl`
holds a line a table; a change that is meant is recorded by ``python tests/unit/test_recorded_pages.py``.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "values"))

from round_jobs import CLUSTER, MOE, QUIET, SMALL, cluster_file, model_file

import costmodel as cm

RECORDED = Path(__file__).with_name("recorded_pages.jsonl")
FITTED = re.compile(
    r"band|likel|\bp\d\d\b|_p\d\d|certain|odds|spread|beside the median|version|probabilit|sure|date|headline_place"
)
GIVEN = {"cluster": str(CLUSTER), "recipe": "megatron-core", "seq_len": 1024, "switches": QUIET}
DENSE = {**GIVEN, "model": model_file(SMALL), "gpus": 8, "global_batch": 16, "layout": "tp2 pp2"}
EXPERTS = {
    **{**GIVEN, "model": model_file(MOE), "gpus": 16, "global_batch": 32, "layout": "pp2 ep4"},
    "micro_batch": 2,
}
CONTEXT = {
    **{**GIVEN, "model": model_file(SMALL), "gpus": 8, "global_batch": 4, "layout": "cp4"},
    "zero_stage": 1,
}
HOST = {
    **{**GIVEN, "switches": {**QUIET, "offload_optimizer": True, "offload_activations": 0.5}},
    **{"model": model_file(SMALL), "gpus": 4, "global_batch": 8, "layout": "tp1", "recompute": "full"},
}
JOBS = {"dense": DENSE, "experts": EXPERTS, "context": CONTEXT, "host": HOST}
RUN = {"tokens": 1e9, "price": 2.0, "storage_bandwidth": "10GB/s"}
TIGHT = {"cluster": cluster_file(gpu={"memory": "600 MiB", "memory_vendor": "600 MiB"})}
DIGITS = 6
MOST = 40


def free(job, *names):
    """Return a job without its layout."""
    return {key: value for key, value in job.items() if key not in ("layout", *names)}


def answers():
    """Yield a name and a function that gives an answer."""
    for name, job in JOBS.items():
        yield f"estimate {name}", lambda j=job: cm.estimate(**j)
        yield f"tree {name}", lambda j=job: cm.estimate(**j).tree()
        yield f"roofline {name}", lambda j=job: cm.roofline(cm.estimate(**j))
        yield f"trace {name}", lambda j=job: cm.trace(cm.estimate(**j))
        yield f"mesh {name}", lambda j=job: cm.mesh(**{k: j[k] for k in ("cluster", "gpus", "layout")})
        opened = {"dense": "tp.", "experts": "ep.", "context": "cp.", "host": "optimizer"}[name]
        yield f"explain {name}", lambda j=job, o=opened: cm.estimate(**j).explain(o)
        yield f"run {name}", lambda j=job: cm.run(**j, **RUN)
        yield f"model {name}", lambda j=job: cm.model_facts(j["model"], seq_len=2048)
        yield f"sensitivity {name}", lambda j=job: cm.sensitivity(cm.estimate(**j))
    many = free(DENSE)
    yield "estimates", lambda: cm.estimate(**many, tp=np.array([1, 2, 4])[:, None], pp=np.array([1, 2]))
    for name, other in {"tp": {"layout": "tp4"}, "cluster": TIGHT, "switch": {"recompute": "full"}}.items():
        yield (
            f"compare {name}",
            lambda o=other: cm.compare(cm.estimate(**DENSE), cm.estimate(**{**DENSE, **o})),
        )
    yield "runs", lambda: cm.runs(*(cm.run(**{**DENSE, "layout": x}, **RUN) for x in ("tp2", "tp4 pp2")))
    yield "plan", lambda: cm.plan(**many, choose=False)
    yield "plan experts", lambda: cm.plan(**free(EXPERTS), choose=False)
    yield "plan memory", lambda: cm.plan(**{**many, **TIGHT}, choose=False, headroom=0.05)
    yield "plan fixed", lambda: cm.plan(**many, choose=False, tp=2, fix={"pp": [1, 2]}, max_memory="700 MiB")
    for name, given in {
        "memory": {**many, "max_memory": "100 MiB"},
        "headroom": {**many, **TIGHT, "headroom": 0.5},
        "divides": {**many, "gpus": 7, "global_batch": 13, "tp": 2},
        "device": {**many, "cluster": cluster_file(gpu={"memory": "64 MiB", "memory_vendor": "64 MiB"})},
        "batch": {**many, "global_batch": 3, "micro_batch": 2},
    }.items():
        yield f"no plan {name}", lambda g=given: cm.plan(**g, choose=False)
    swept = {"global_batch": [16, 32, 7], "precision": ["bf16", "fp8-block"]}
    yield "sweep", lambda: cm.sweep(**{**DENSE, **swept})
    for name in ("all-reduce", "all-gather", "all-to-all"):
        yield (
            f"collective {name}",
            lambda n=name: cm.collective(n, ["1 KB", "1 MB"], cluster=str(CLUSTER), ranks=8),
        )


def keys(record, path=""):
    """Yield the keys of a record by their places; lines of a list are alike, and names of lines are no keys."""
    if isinstance(record, dict):
        for key, held in record.items():
            if re.fullmatch(r"[a-z][a-z0-9_]*", str(key)):
                yield f"{path}{key}"
                yield from keys(held, f"{path}{key}.")
    elif isinstance(record, (list, tuple)):
        for held in record[:3]:
            yield from keys(held, path)


def plain(value):
    """Return a value of a column to six digits; the names of model files are ours."""
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.{DIGITS}g}") if np.isfinite(value) else str(value)
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    return value if value is None else clean(str(value))


def clean(text):
    """Return a text without what differs from one machine to the next."""
    text = text.replace(str(CLUSTER), "ours")
    return re.sub(r"(?:\S*/)?(?:model|machine)-[0-9a-f]{12}(?:\.yaml|/round-cluster\.yaml)?", "ours", text)


def told(answer):
    """Yield an answer's tables and its columns, without what is fitted."""
    for grid in answer.grids():
        titles = [column.title + (" >" if column.number else "") for column in grid.columns]
        if FITTED.search(" ".join(titles)):
            continue
        rows = [[clean(str(cell)) for cell in row] for row in grid.rows]
        kept = [" | ".join(row) for row in rows if not any(FITTED.search(cell) for cell in row)]
        strong = [rows[index][0] for index in sorted(grid.strong)]
        note = "" if FITTED.search(grid.note) else clean(grid.note)
        yield {
            "table": clean(grid.title),
            "columns": " | ".join(titles),
            "rows": kept,
            "strong": strong,
            "note": note,
        }
    yield {"remarks": [clean(one) for one in answer.remarks() if not FITTED.search(one)]}
    yield {"keys of the record": " ".join(sorted(set(keys(answer.to_dict()))))}
    if not hasattr(answer, "columns") or getattr(answer, "shape", ()):
        return  # of many layouts each line would be a row a layout
    columns = {name: [plain(value) for value in values] for name, values in answer.columns().items()}
    rows = list(zip(*columns.values(), strict=True))
    kept = [
        at for at, row in enumerate(rows) if not any(isinstance(x, str) and FITTED.search(x) for x in row)
    ]
    for name, values in columns.items():
        if not FITTED.search(name):
            yield {"column": name, "values": compact([values[at] for at in kept[:MOST]])}


def compact(values):
    """Return values as runs of the same, in words of a JSON line."""
    found = []
    for value in values:
        if found and found[-1][0] == value and type(found[-1][0]) is type(value):
            found[-1][1] += 1
        else:
            found.append([value, 1])
    return [value if times == 1 else f"{value} x{times}" for value, times in found]


def said(make):
    """Return what an answer tells, or the one line that says why there is none."""
    try:
        return list(told(make()))
    except cm.CostModelError as error:
        return [{"error": clean(str(error))}]


def recorded():
    """Return the accepted lines by answer."""
    found = {}
    for line in RECORDED.read_text().splitlines():
        name, *rest = json.loads(line)
        found.setdefault(name, []).append(rest[0])
    return found


MADE = dict(answers())
KNOWN = {} if __name__ == "__main__" else recorded()


@pytest.mark.parametrize("name", KNOWN)
def test_an_answer_is_told_as_it_was(name):
    assert json.loads(json.dumps(said(MADE[name]))) == KNOWN[name]


def test_every_answer_is_recorded():
    assert set(KNOWN) == set(MADE)


if __name__ == "__main__":
    lines = [json.dumps([name, one], ensure_ascii=False) for name, make in MADE.items() for one in said(make)]
    RECORDED.write_text("\n".join(lines) + "\n")
