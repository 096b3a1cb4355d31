"""Write docs/published-layouts.md: where the search puts layouts that somebody ran and published.

    python tools/pages/published_layouts.py RUNS.csv

Of each model on each accelerator the run with the most tokens per second and GPU counts. Its machine, batch, precision, recipe
and switches are held, layouts are searched.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pages import DOCS, settle

from costmodel.base.errors import CostModelError, NoLayoutError
from costmodel.describe.jobs.fields import KNOBS
from costmodel.describe.jobs.job import Job
from costmodel.describe.jobs.layout_text import difference_text, layout_text, plain_value
from costmodel.estimates.estimate import estimate_job
from costmodel.planning.plan import Plan
from costmodel.planning.request import Request, make_question
from costmodel.trust.published_runs import Row, job_of_row, read_rows

LEAST_GPUS = 64
NEAR = 0.05
"""Layouts this close to the best are as good as it, for all that published runs tell. [-]"""


class Published(NamedTuple):
    """A published layout, and what the search says of it."""

    row: Row
    job: Job
    verdict: str
    """near, behind, memory, rule, or no layout."""
    says: str

    def text(self) -> str:
        """Return it as a row of the page."""
        step_s, took_s = float(estimate_job(self.job).step_time_s), float(self.row["step_time_s"])
        return (
            f"| {self.row['model']}, {self.row['gpus']} {self.row['accelerator']}, batch {self.row['gbs']} x "
            f"{self.row['seq_len']}, {self.row['precision']} ({self.row['source']}) | {took_s:.2f} s, predicted "
            f"{step_s:.2f}: {layout_text(self.job.layout)} | {self.says} |"
        )


def fastest_runs(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return of each model and accelerator the run with the most tokens per second and GPU, in order of names."""
    found: dict[tuple[str, str], tuple[float, dict[str, str]]] = {}
    for row in rows:
        if "time" not in row["use"] or row["quality"] == "C" or int(row["gpus"]) < LEAST_GPUS:
            continue
        tokens = int(row["gbs"]) * int(row["seq_len"])
        pace = tokens / float(row["step_time_s"]) / int(row["gpus"])
        key = row["model"], row["accelerator"]
        if key not in found or pace > found[key][0]:
            found[key] = pace, row
    return [found[key][1] for key in sorted(found)]


def searched(row: Row) -> Published:
    """Search the job of a run with its own switches, and find its layout in what was searched."""
    job = job_of_row(row)
    question = make_question(
        model=job.model,
        cluster=job.cluster,
        gpus=float(job.layout.gpus),
        global_batch=float(job.global_batch),
        seq_len=float(job.seq_len),
        precision=row["precision"],
        recipe=row["recipe"],
        switches=dict(job.switches),
        choose=False,
        **({"slice": job.slice} if job.slice else {}),
    )
    try:
        plan = Plan.search(Request(question, job, "", ""))
    except NoLayoutError as error:
        return Published(row, job, "no layout", str(error))
    knobs: dict[str, Any] = {knob: plain_value(knob, getattr(job.layout, knob)) for knob in KNOBS}
    says = plan.why_not(knobs)
    if says.startswith("impossible"):
        return Published(row, job, "rule", says)
    yours = plan.yours
    assert yours is not None
    best = plan.best.job
    # What makes no difference is none.
    idle = {} if job.model.num_experts else {"etp": best.layout.etp}
    if job.layout.tp == best.layout.tp == 1:
        idle["sequence_parallel"] = best.layout.sequence_parallel
    alike = replace(job, layout=replace(job.layout, **idle))
    otherwise = f"the best, {float(plan.best.step_time_s):.2f} s: {difference_text(best, alike)}"
    if yours.rank is None:
        return Published(row, job, "memory", f"{says}; {otherwise}")
    verdict = "near" if yours.slower <= NEAR else "behind"
    return Published(
        row, job, verdict, f"{yours.slower:+.1%}, rank {yours.rank:,} of {yours.num_fit:,}; {otherwise}"
    )


TITLES = {
    "behind": f"More than {NEAR:.0%} behind the best",
    "memory": "Left out for its memory",
    "rule": "Left out by a rule of its framework",
    "no layout": "Where no layout is left",
}


def page(runs: list[Published]) -> str:
    """Return docs/published-layouts.md."""
    counts = Counter(run.verdict for run in runs)
    parts = [
        "# Published layouts in the search",
        "",
        f"Of every model on every accelerator that somebody ran on {LEAST_GPUS} devices and more, the fastest run. The "
        "search has its machine, batch, precision, recipe and switches, and keeps as much memory free as a plan does. Written by "
        "`python tools/pages/published_layouts.py RUNS.csv`; `make approve` does it where `RUNS` names the table.",
        "",
        f"{len(runs)} runs: the published layout is within {NEAR:.0%} of the best for {counts['near']}; "
        + "; ".join(f"{title[0].lower()}{title[1:]}: {counts[name]}" for name, title in TITLES.items())
        + ".",
    ]
    for name, title in TITLES.items():
        of_one = [run.text() for run in runs if run.verdict == name]
        if of_one:
            head = ["| run | published layout | what the search says |", "|---|---|---|"]
            parts += ["", f"## {title}", "", *head, *of_one]
    return "\n".join([*parts, ""])


def main() -> int:
    """Rewrite or check the page."""
    found = []
    for row in fastest_runs(read_rows(Path(sys.argv[1]))):
        try:
            found.append(searched(row))
        except CostModelError as error:
            print(f"{row['id']}: {error}", file=sys.stderr)
    return settle({DOCS / "published-layouts.md": page(found)})


if __name__ == "__main__":
    sys.exit(main())
