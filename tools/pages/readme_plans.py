"""Write the tables of plans: the best layouts of known jobs beside the ones really used.

    python tools/pages/readme_plans.py            # rewrite README.md and docs/plans.md
    python tools/pages/readme_plans.py --check    # exit 1 if one is out of date

The jobs stand in `planned_jobs.yaml`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pages import DOCS, fill, read_pages, settle
from ruamel.yaml import YAML

from costmodel import plan
from costmodel.describe.jobs.job import make_job
from costmodel.describe.jobs.layout_text import layout_text
from costmodel.describe.recipe import load_recipe
from costmodel.estimates.estimate import Estimate, estimate_job
from costmodel.estimates.frame import line_records
from costmodel.physics.pipeline.schedules import schedule_at
from costmodel.planning.plan import Plan
from costmodel.planning.preference import TIE_SHARE

HERE = Path(__file__).parent
IN_README = 3
"""Jobs, of the first, that stand in the README too."""


def _cell(est: Estimate) -> str:
    return f"{float(est.step_time_s):.2f} s, {est.memory_bytes_per_gpu / 2**30:.0f} GiB: {layout_text(est.job.layout)}"


def launched_by(est: Estimate) -> str:
    """Name frameworks that start with the schedule and the sharding of a layout."""
    schedule, zero = schedule_at(est.job.layout.schedule).name, int(est.job.layout.zero_stage)
    names = []
    for name in ("megatron-core", "torchtitan", "deepspeed", "hai-llm", "zero-bubble"):
        launches = load_recipe(name).launches
        stages = set(launches.zero_stage)
        if schedule in launches.schedule and zero in stages:
            names.append(name)
    return ", ".join(names) or "nobody"


class Planned(NamedTuple):
    """A known job, its plan, and the layout really used."""

    known: dict[str, Any]
    found: Plan
    used: Estimate | None

    @property
    def slower(self) -> float:
        """By how much the layout really used is slower than the pick. [-]"""
        assert self.used is not None
        return float(self.used.step_time_s / self.found.best.step_time_s) - 1.0

    def alike(self) -> str:
        """Say what the layout really used takes with the switches of the pick, where these are others."""
        assert self.used is not None
        best = self.found.best
        if self.used.job.recipe == best.job.recipe:
            return "The switches are the same."
        est = estimate_job(replace(self.used.job, recipe=best.job.recipe))
        behind = float(est.step_time_s / best.step_time_s) - 1.0
        return (
            f"With the switches of the best it takes {float(est.step_time_s):.2f} s, {behind:.1%} more than it: the "
            "rest is the layout."
        )

    def row(self) -> str:
        """Return the job as a row of the table."""
        found = self.found
        anything = plan(**self.known["job"], framework="any").best
        used, rank = "none published", "-"
        if self.used is not None:
            before = found.num_better_than(
                float(self.used.step_time_s) * found.question.weight(self.used.job)
            )
            used = f"{_cell(self.used)} ({self.known['reference']})"
            pace = "slower" if self.slower >= 0.0 else "faster"
            tied = (
                f" (within {TIE_SHARE:.1%} the simplest is best)" if -TIE_SHARE <= self.slower < 0.0 else ""
            )
            rank = f"{before + 1:,} of {found.num_fit:,}, {abs(self.slower):.1%} {pace}{tied}"
        return (
            f"| {self.known['name']} | {found.num_priced:,} | {_cell(found.best)} | {_cell(anything)} "
            f"({launched_by(anything)}) | {used} | {rank} |"
        )

    def differences(self) -> list[str]:
        """Return by what the layout really used is slower, line of the bill by line, as a table."""
        assert self.used is not None
        groups: dict[str, list[float]] = {}
        for index, est in enumerate((self.found.best, self.used)):
            for line in line_records(est)["time"]:
                groups.setdefault(line["name"], [0.0, 0.0])[index] += line["exposed_seconds"]
        step_s = float(self.found.best.step_time_s)
        # What makes less than half a per cent of the step of difference stands in one row.
        told = {name: of for name, of in groups.items() if abs(of[1] - of[0]) >= 5e-3 * step_s}
        rest = [sum(of[index] for name, of in groups.items() if name not in told) for index in (0, 1)]
        by_size = sorted(told.items(), key=lambda item: -abs(item[1][1] - item[1][0]))
        return [
            "| seconds of a step, by line of the bill | best | really used | difference |",
            "|---|---|---|---|",
            *(f"| `{name}` | {a:.3f} | {b:.3f} | {b - a:+.3f} |" for name, (a, b) in by_size),
            f"| {len(groups) - len(told)} others | {rest[0]:.3f} | {rest[1]:.3f} | {rest[1] - rest[0]:+.3f} |",
            f"| step | {step_s:.3f} | {float(self.used.step_time_s):.3f} "
            f"| {float(self.used.step_time_s) - step_s:+.3f} |",
        ]


def planned_jobs() -> list[Planned]:
    """Plan every job of `planned_jobs.yaml`."""
    jobs: list[dict[str, Any]] = YAML(typ="safe", pure=True).load((HERE / "planned_jobs.yaml").read_text())
    return [
        Planned(
            known,
            plan(**known["job"]),
            estimate_job(make_job(**known["job"] | known["used"], check=False)) if "used" in known else None,
        )
        for known in jobs
    ]


HEAD = (
    "| job | priced | best that the framework launches, switches searched | best of all that divide, switches as they are "
    "(recipe) | really used, its switches | its rank |\n|---|---|---|---|---|---|"
)


def page(jobs: Sequence[Planned], rows: Sequence[str]) -> str:
    """Return docs/plans.md."""
    behind = [job for job in jobs if job.used is not None and job.slower > 0.05]
    parts = [
        "# Plans of known jobs",
        "",
        "Everything is predicted, and written by `python tools/pages/readme_plans.py` from "
        "`tools/pages/planned_jobs.yaml`. Memory is that of the fullest GPU; each fits with 90 %.",
        "",
        HEAD,
        *rows,
        "",
        "## Where the layout really used is more than 5 % behind",
    ]
    for job in behind:
        assert job.used is not None
        parts += [
            "",
            f"### {job.known['name']}",
            "",
            f"Best: `{job.found.commands(1)[0]}`",
            "",
            f"Really used: {_cell(job.used)}. {job.alike()}",
            "",
            job.known["why"],
            "",
            *job.differences(),
        ]
    return "\n".join([*parts, ""])


def main() -> int:
    """Rewrite or check README.md and docs/plans.md."""
    jobs = planned_jobs()
    rows = [job.row() for job in jobs]
    texts = fill(read_pages(), {"plans": "\n".join([HEAD, *rows[:IN_README]])})
    return settle({**texts, DOCS / "plans.md": page(jobs, rows)})


if __name__ == "__main__":
    sys.exit(main())
