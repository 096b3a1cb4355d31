"""Score steps of reinforcement learning against published ones: whole steps, shares of generation, sync against async.

    python tools/fit/score_rl.py [--fit | --splits] [ROWS.csv]

Each row of the table holds keywords of `costmodel.estimate_rl` beside what was measured. The share that a framework takes
beside the phases is the one constant fitted to whole steps: the median of what is left, by framework, shrunk by the
number of models that it was measured with (one halves it on a log scale, three leave three quarters). With ``--fit`` it is
fitted anew and printed, with the errors where a model is left out of its framework's share; its factors are those of
``rl_errors.csv``. The engine of a row is the vLLM that its framework's release pins: ``vllm-sync`` before 0.14.
``--splits`` plans the split of every published job whose halves stand apart, its layout, lag and engine held.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import costmodel as cm

ROWS = Path(__file__).parents[2] / "tests" / "measured" / "rl_steps.csv"
MEASURED = ("step_time_s", "gen_s", "logprob_s", "train_s", "refit_s")
BESIDE = ("id", "framework", "quality", "url", "inferred", *MEASURED)


class Scored(NamedTuple):
    """A published step beside its price."""

    row: dict[str, str]
    found: cm.RLEstimate

    def measured(self, name: str) -> float | None:
        """Return what was published, none where it was not."""
        return float(self.row[name]) if self.row[name] else None

    @property
    def ratio(self) -> float:
        """Predicted over measured step. [-]"""
        return self.found.step_time_s / float(self.row["step_time_s"])

    @property
    def source(self) -> str:
        """Publication that the row is from."""
        return self.row["id"].rsplit("-", 1)[0]

    @property
    def group(self) -> str:
        """Source and model."""
        return f"{self.source} {self.row['model']} {'together' if self.row['generation_gpus'] == '0' else 'apart'}"


def job_of(row: dict[str, str], **changed: Any) -> dict[str, Any]:
    """Return the keywords of a row."""
    return {key: value for key, value in row.items() if key not in BESIDE and value != ""} | changed


def scored(path: Path = ROWS, **changed: Any) -> Iterator[Scored]:
    """Price every row."""
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            yield Scored(row, cm.estimate_rl(**job_of(row, **changed)))


def summary(ratios: Iterable[float]) -> str:
    """Return median and p90 of the error, and the median ratio."""
    found = np.array(list(ratios))
    errors = np.abs(found - 1.0)
    return f"{np.median(errors):6.1%} {np.quantile(errors, 0.9):6.1%} {np.median(found):7.2f} {len(found):4d}"


def phases_of(one: Scored) -> dict[str, float]:
    """Return predicted seconds under the names of the measured ones."""
    seconds: dict[str, float] = {}
    for phase in one.found.phases:
        name = {"generate": "gen_s", "train": "train_s", "refit": "refit_s"}.get(phase.name)
        name = "logprob_s" if "log-probs" in phase.name else name
        if name:
            seconds[name] = seconds.get(name, 0.0) + phase.seconds
    return seconds


def splits(path: Path = ROWS) -> None:
    """Print the generating share of the GPUs that was used and that is planned, and what the planned one would save."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if int(row["generation_gpus"] or 0)]
    off, saved = [], []
    for row in rows:
        used = cm.estimate_rl(**job_of(row))
        best = cm.plan_rl(**{k: v for k, v in job_of(row).items() if k != "generation_gpus"}).found
        apart = [one for one in best if one.job.generation_gpus]
        best = apart[0]
        share, theirs = (one.job.generation_gpus / one.job.gpus for one in (best, used))
        less = 1.0 - best.step_time_s / used.step_time_s
        if len(apart) > 1:  # a layout that divides the GPUs in one way leaves no choice
            off.append(share - theirs)
            saved.append(less)
        gpus = f"{used.job.gpus:4d} GPUs, lag {used.job.lag:g}: generating {theirs:.0%} used, {share:.0%} planned"
        print(
            f"{row['id'][-24:]:24s} {row['model'][:14]:14s} {gpus}, {less:6.1%} less a step, {len(apart)} to choose from"
        )
    print(
        f"{len(off)} with a choice: {np.median(np.abs(off)):.1%} of the GPUs apart (median), "
        f"{np.median(saved):.1%} of the step saved"
    )


def together_against_apart(rows: list[Scored]) -> None:
    """Print GPU-seconds a step with all GPUs in turn over those with halves apart: pairs of one page, model and batch."""
    same = ("url", "framework", "model", "cluster", "prompts", "samples_per_prompt", "precision")
    off = []
    for one in rows:
        for other in rows:
            pages = [{**each.row, "url": each.row["url"].split("#")[0]} for each in (one, other)]
            if one.row["generation_gpus"] != "0" or float(other.row["lag"] or 0) != 1.0:
                continue
            longest = [float(page["max_response_len"]) for page in pages]
            if any(pages[0][name] != pages[1][name] for name in same) or max(longest) > 1.2 * min(longest):
                continue
            ratio = one.ratio / other.ratio
            off.append(abs(ratio - 1.0))
            name = f"{one.row['id'][-20:-17]}{one.row['id'][-3:]} : {other.row['id'][-3:]}"
            print(f"together : apart {one.row['model']:18s} {one.row['cluster']:18s} {name:12s} {ratio:5.2f}")
    print(
        f"{len(off)} pairs: off by {np.median(off):.1%} (median), {np.sum(np.array(off) < 0.15)} within 15 %"
    )


def share_of(rows: list[Scored]) -> float:
    """Return the share beside the phases that rows priced without one leave, shrunk. [-]"""
    models = len({one.row["model"] for one in rows})
    middle = float(np.median([-np.log(one.ratio) for one in rows])) if rows else 0.0
    return float(max(np.expm1(middle * models / (models + 1.0)), 0.0))


def fit(rows: list[Scored]) -> None:
    """Print the share of each framework, and the errors of every model with its own rows left out of it."""
    left_out: dict[str, list[float]] = {"dense": [], "experts": []}
    for framework in dict.fromkeys(one.row["framework"] for one in rows):
        own = [one for one in rows if one.row["framework"] == framework]
        print(f"{framework:12s} share {share_of(own):.3f}")
        for model in dict.fromkeys(one.row["model"] for one in own):
            share = share_of([one for one in own if one.row["model"] != model])
            ratios = [(1.0 + share) * one.ratio for one in own if one.row["model"] == model]
            left_out["experts" if cm.load_model(model).num_experts else "dense"] += ratios
            print(f"{framework:12s} without {model:20s} share {share:.3f} {summary(ratios)}")
    for kind, ratios in left_out.items():
        print(f"{kind},{np.exp(np.quantile(np.abs(np.log(ratios)), 0.8)):.2f},{len(ratios)} steps")
    print(f"left out: {summary([ratio for ratios in left_out.values() for ratio in ratios])}")


def main(arguments: list[str]) -> None:
    """Print the tables."""
    paths = [Path(text) for text in arguments if not text.startswith("-")]
    if "--splits" in arguments:
        return splits(*paths)
    rows = list(scored(*paths, **({"rl_framework": "any"} if "--fit" in arguments else {})))
    print(f"{'':55s} median    p90   ratio rows")
    for name, keep in (
        ("all", rows),
        *(
            (f, [o for o in rows if o.row["framework"] == f])
            for f in dict.fromkeys(o.row["framework"] for o in rows)
        ),
        *((g, [o for o in rows if o.group == g]) for g in dict.fromkeys(o.group for o in rows)),
    ):
        print(f"{name:55s} {summary(one.ratio for one in keep)}")
    for name in MEASURED[1:]:
        known = [
            phases_of(one)[name] / value
            for one in rows
            if (value := one.measured(name)) and name in phases_of(one)
        ]
        if known:
            print(f"{name:55s} {summary(known)}")
    shares = [
        phases_of(one)["gen_s"] / one.found.step_time_s - value / float(one.row["step_time_s"])
        for one in rows
        if (value := one.measured("gen_s"))
    ]
    print(
        f"share of generation: off by {np.median(np.abs(shares)):.1%} (median), p90 {np.quantile(np.abs(shares), 0.9):.1%}"
    )
    together_against_apart(rows)
    if "--fit" in arguments:
        fit(rows)
    if "--rows" in arguments:
        for one in rows:
            row, parts = (
                one.row,
                {name: (round(value), one.row[name]) for name, value in phases_of(one).items()},
            )
            step = f"{one.ratio:5.2f} {one.found.step_time_s:7.1f} {row['step_time_s']:>7s}"
            print(f"{row['id'][-24:]:24s} {row['model'][:12]:12s} {step} {parts}")


if __name__ == "__main__":
    main(sys.argv[1:])
