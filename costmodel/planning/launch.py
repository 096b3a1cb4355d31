"""What it takes to launch the layouts that a plan says to try: a folder of files each."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from costmodel.base.errors import CostModelError
from costmodel.base.units import format_bytes, format_seconds
from costmodel.base.words import chance_text
from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.describe.jobs.layout_text import layout_text
from costmodel.interop.emit import emit

if TYPE_CHECKING:
    from costmodel.estimates.estimate import Estimate
    from costmodel.planning.plan import Plan
    from costmodel.planning.uncertain import Trial

_LEFT = re.compile(r'(?:# left to you: |^ {6}")([^"\n]+)', re.M)


def launch_folders(plan: Plan, framework: str = "") -> dict[str, str]:
    """Return the files of `Plan.launch_folders` by their paths."""
    launches = plan.best.job.recipe.launches
    named = framework or (launches.framework if launches is not None else "")
    files: dict[str, str] = {}
    for number, (est, trial) in enumerate(plan.trials(), start=1):
        degrees = layout_text(est.job.layout).partition(",")[0]
        folder = f"{number}-{degrees.replace(' ', '-')}"
        texts = _job_file(plan, est)
        if named in FRAMEWORKS:
            texts |= _configuration(plan, est, named)
        texts["README.md"] = _readme(est, trial, texts, named, plan.command_of(trial.row))
        files |= {f"{folder}/{name}": text for name, text in texts.items()}
    return files


def _job_file(plan: Plan, est: Estimate) -> dict[str, str]:
    """Return a layout as a job file, none where a file cannot say its model, cluster or recipe."""
    try:
        return {"job.yaml": plan.job_file(est)}
    except CostModelError:
        return {}


def _configuration(plan: Plan, est: Estimate, framework: str) -> dict[str, str]:
    """Return a framework's configuration of a layout, and how it differs from that of the layout of today."""
    name = FRAMEWORKS[framework].file
    written = emit(est, framework)
    if plan.yours is None:
        return {name: written}
    today = emit(plan.yours.est, framework)
    lines = (text.splitlines(keepends=True) for text in (today, written))
    return {name: written, "changes.diff": "".join(difflib.unified_diff(*lines, "today", name, n=0))}


def _readme(est: Estimate, trial: Trial, texts: dict[str, str], framework: str, command: str) -> str:
    """Return what a layout promises, what each file is, and what is left to the person."""
    step, memory = format_seconds(float(est.step_time_s), 4), format_bytes(float(est.memory_bytes_per_gpu))
    low, high = (format_seconds(end, 3) for end in trial.range_s(est))
    lines = [
        f"# {layout_text(est.job.layout)}",
        "",
        f"{step} a step ({low} to {high}), {memory} a GPU, fits with {chance_text(float(est.fits_probability))}.",
        "",
        f"    {command}",
        "",
        "prices it again.",
        "",
    ]
    if "job.yaml" in texts:
        lines.append("* `job.yaml`: the same as a job file, for every command.")
    if framework in FRAMEWORKS:
        record = FRAMEWORKS[framework]
        lines.append(f"* `{record.file}`: for {record.title}, {record.release}.")
        if "changes.diff" in texts:
            lines.append(
                "* `changes.diff`: what changes against the layout that your file has, both as written here."
            )
        lines += ["", "Left to you:", "", *(f"* {one}" for one in _LEFT.findall(texts[record.file]))]
    else:
        lines += ["", f"No framework's configuration is written for the recipe {est.job.recipe.name}."]
    return "\n".join(lines) + "\n"
