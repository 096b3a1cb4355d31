"""What it takes to launch the layouts that a plan says to try: a folder of files each."""

from __future__ import annotations

import difflib
import re
from math import ceil, isclose
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from costmodel.base.errors import CostModelError
from costmodel.base.units import format_bytes, format_seconds
from costmodel.base.words import chance_text, plural
from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.describe.jobs.job import BALANCED
from costmodel.describe.jobs.layout_text import layout_text
from costmodel.describe.jobs.short_form import command_text
from costmodel.estimates.estimate import estimate
from costmodel.interop.emit import emit
from costmodel.interop.framework import FrameworkConfigError
from costmodel.interop.script_changes import read_alone, script_changes

if TYPE_CHECKING:
    from costmodel.estimates.estimate import Estimate
    from costmodel.interop.answer import JobFile
    from costmodel.planning.uncertain import Trial

_AS = ", written as "
_SAME = 1e-3  # Of a step: Megatron-LM pads a vocabulary to a multiple of the degree
_LEFT = re.compile(r'(?:# left to you: |^ {6}")([^"\n]+)', re.M)


def launch_files(
    est: Estimate,
    trial: Trial,
    command: str,
    texts: dict[str, str],
    framework: str,
    *,
    today: Estimate | None,
    file: JobFile | None,
    missing: dict[str, str],
) -> dict[str, str]:
    """Return the texts of a layout's folder: the given ones, a framework's configuration, and the README.

    `missing` is why a file is missing, should it be.
    """
    unsaid = ""
    if framework in FRAMEWORKS:
        written, unsaid = _configuration(est, today, framework, file)
        texts = texts | written
    return {**texts, "README.md": _readme(est, trial, command, texts, framework, missing, file, unsaid)}


def _configuration(
    est: Estimate, today: Estimate | None, framework: str, file: JobFile | None
) -> tuple[dict[str, str], str]:
    """Return a framework's configuration of a layout with what to change in a script, or how it differs from today's.

    Besides what of the layout the changed script does not say.
    """
    name = FRAMEWORKS[framework].file
    written = emit(est, framework)
    if today is None:
        return {name: written}, ""
    try:
        before = emit(today, framework)
    except FrameworkConfigError:
        return {name: written}, ""
    if file is not None and file.path and (file.kind, framework) == ("megatron", "megatron"):
        changes, changed = script_changes(file, _own(file, today) or before, written)
        if changes:
            return {name: written, "changes.diff": changes}, _unsaid(est, file, changed)
    today_name = Path(file.path).name if file is not None and file.path else "today"
    today_lines, lines = (text.splitlines(keepends=True) for text in (before, written))
    return {
        name: written,
        "changes.diff": "".join(
            difflib.unified_diff(today_lines, lines, f"{today_name}{_AS}{name}", name, n=0)
        ),
    }, ""


def _own(file: JobFile, today: Estimate) -> str:
    """Return what is written for the job of a script alone, without what is given beside it; empty where it is none."""
    for gpus in ({"gpus": int(today.job.layout.gpus)}, {}):  # its batch may divide among its own GPUs alone
        try:
            job = {**read_alone(file).keywords, "cluster": today.job.cluster, **gpus}
            job.pop("dp", None)
            return emit(estimate(**job), "megatron")
        except CostModelError:
            pass
    return ""


def _unsaid(est: Estimate, file: JobFile, changed: str) -> str:
    """Return what of a layout its changed script does not say, as flags on top, and how it is priced; empty where it says all."""
    try:
        below: dict[str, Any] = {"gpus": int(est.job.layout.gpus), **read_alone(file, changed).keywords}
    except CostModelError as error:
        return f"all of it; the patched script is refused: {error}"
    try:
        machine = {"cluster": est.job.cluster, "site": est.job.site, "slice": est.job.slice}
        below |= {name: value for name, value in machine.items() if value}
        again = float(estimate(**below).step_time_s)
        if isclose(again, float(est.step_time_s), rel_tol=_SAME):
            return ""
        priced = f"priced at {format_seconds(again, 4)}, not {format_seconds(float(est.step_time_s), 4)}"
    except CostModelError as error:
        priced = f"refused: {error}"
    below["tokens"] = est.job.tokens  # they follow from the batch
    if est.job.balanced_stages and "pipeline_layout" in below:
        below["pipeline_layout"] = BALANCED
    flags = command_text(est.job, path="-", below=below).removeprefix("costmodel estimate -").strip()
    return f"{f'`{flags}`' if flags else 'what no flag says'}; the patched script alone is {priced}"


def _readme(
    est: Estimate,
    trial: Trial,
    command: str,
    texts: dict[str, str],
    framework: str,
    missing: dict[str, str],
    file: JobFile | None,
    unsaid: str,
) -> str:
    """Return what a layout promises, what each file is, and what is left to the person."""
    step, memory = format_seconds(float(est.step_time_s), 4), format_bytes(float(est.memory_bytes_per_gpu))
    low, high = (format_seconds(end, 3) for end in est.range_s)
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
            before = texts["changes.diff"].partition("\n")[0].removeprefix("--- ")
            today, written, _ = before.partition(_AS)
            folder = Path(file.path).absolute().parent if file is not None else Path()
            lines.append(
                f"* `changes.diff`: what changes against the layout that {today} has, both as `{record.file}`."
                if written
                else f"* `changes.diff`: {today} with this layout: `patch -p0 -d {quote(str(folder))} < changes.diff` here."
            )
            if unsaid:
                lines.append(f"* Not in `changes.diff`: {unsaid}.")
    else:
        missing = {name: why for name, why in missing.items() if name != "changes.diff"}
        lines.append(
            "* No framework's configuration, and no `changes.diff`: none is written for the recipe "
            f"{est.job.recipe.name}."
        )
    lines += [f"* No `{name}`: {why}." for name, why in missing.items() if name not in texts]
    if framework in FRAMEWORKS:
        per_node = est.job.cluster.gpus_per_node
        nodes = ceil(float(est.job.layout.gpus) / per_node)
        lines += [
            "",
            "Left to you:",
            "",
            f"* {plural(nodes, 'node')} of up to {per_node} GPUs: start it on as many",
        ]
        if file is not None and (batches := file.batches):
            lines.append(
                f"* batch schedule: this layout runs all {len(batches)} batches of your file's, from {batches[0]:,} to "
                f"{batches[-1]:,}; `{record.file}` has the batch {float(est.job.global_batch):,.0f} alone"
            )
        lines += [f"* {one}" for one in _LEFT.findall(texts[record.file])]
    return "\n".join(lines) + "\n"
