"""Write the README's table of plans: the best layouts of known jobs beside the ones really used.

    python tests/published/readme_plans.py            # rewrite README.md
    python tests/published/readme_plans.py --check    # exit 1 if it is out of date

The jobs stand in `planned_jobs.yaml`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from readme_tables import README, fill
from ruamel.yaml import YAML

from costmodel import plan
from costmodel.describe.jobs.job import make_job
from costmodel.describe.jobs.layout_text import layout_text
from costmodel.describe.recipe import load_recipe
from costmodel.estimates.estimate import Estimate, estimate_job
from costmodel.physics.pipeline.schedules import schedule_at

HERE = Path(__file__).parent


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


def plans_table() -> str:
    """Return the jobs as a Markdown table; all figures are predictions."""
    lines = [
        "| job | layouts priced | best that the recipe's framework launches | best of all that divide, and who has "
        "its schedule and sharding | really used | its rank |",
        "|---|---|---|---|---|---|",
    ]
    jobs: list[dict[str, Any]] = YAML(typ="safe", pure=True).load((HERE / "planned_jobs.yaml").read_text())
    for known in jobs:
        found = plan(**known["job"])
        anything = plan(**known["job"], framework="any").best
        used, rank = "none published", "-"
        if "used" in known:
            est = estimate_job(make_job(**known["job"], **known["used"], check=False))
            before = found.better_than(float(est.step_time_s) * found.question.weight(est.job))
            slower = float(est.step_time_s / found.best.step_time_s) - 1.0
            used = f"{_cell(est)} ({known['reference']})"
            rank = f"{before + 1:,} of {found.num_fit:,}, {slower:.1%} slower"
        lines.append(
            f"| {known['name']} | {found.num_priced:,} | {_cell(found.best)} | {_cell(anything)} "
            f"({launched_by(anything)}) | {used} | {rank} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Rewrite or check the README."""
    before = README.read_text()
    after = fill(before, "plans", plans_table())
    if "--check" in sys.argv[1:]:
        return int(before != after)
    README.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
