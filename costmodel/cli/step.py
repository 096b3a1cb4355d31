"""One step, and inference: ``costmodel estimate``, ``mesh`` and ``generate``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import typer

from costmodel.cli.command import (
    command,
    command_with,
    file_and_flags,
    merged_job,
    refuse_flags,
)
from costmodel.cli.output import Target, hold, planned_figure, result_of, shortened, waiting
from costmodel.describe.jobs.fields import (
    GENERATE_FIELDS,
    JOB_FIELDS,
    LAYOUT_FIELDS,
    LENGTH_FIELDS,
    PLACE_FIELDS,
    PLAN_FIELDS,
    names,
)


@command(
    r"""
    costmodel estimate llama3-8b 64xH100 -l "tp2 pp1"
    costmodel estimate -m llama3-405b -c llama3-roce -n 16384 -l "tp8 cp1 pp16 vp8" \
        --global-batch 2048 --seq-len 8192 --tokens 15.6e12
    costmodel estimate job.yaml --recompute full --set attention_kernel=flash3
    costmodel estimate job.yaml --samples 200 --format json | jq .uncertainty.time_causes
    costmodel estimate job.yaml --plot pipeline.svg --figure pipeline
    costmodel estimate job.yaml --html report.html
    costmodel estimate job.yaml --trace step.json      # open in ui.perfetto.dev or chrome://tracing
    costmodel estimate job.yaml --roofline
    costmodel estimate job.yaml --expect "mfu > 0.3, memory < 78 GiB" --format json | jq .mfu
    """,
    fields=(*JOB_FIELDS, *LENGTH_FIELDS),
    uses="samples seed expect check plot",
)
def estimate(given: Mapping[str, Any], target: Target, options: Any) -> None:
    """Price one training step: step time, MFU and memory per GPU, with the lines they add up from.

    A job is given by flags, by a YAML file with the same names as keys, or by both; flags win. A file with a section
    ``rl`` is a step of reinforcement learning: generation, log-probs, training and refit. Where no
    degree of the layout is named, it is data parallelism alone, and the planner's best where that does not fit.

    --html writes a page with the bill, figures, other layouts, sources, and sliders that are already priced; it needs no
    network. --trace writes one step as a trace: a process a pipeline stage, a thread a stream, a counter of memory.
    --roofline shows where operators lie under the GPU's roofs, and each axis against the tiers of the fabric, in place of
    the bill.
    """
    job = merged_job(given)
    import costmodel as cm
    from costmodel.cli.inspection import roofline_result
    from costmodel.describe.jobs.merge import is_rl, names_no_degree

    if is_rl(job):
        why = "is of a training step; this is one of reinforcement learning"
        refuse_flags(
            given, why, ("plot", "figure", "check"), details=target.details, tokens=job.get("tokens")
        )
        return _estimate_rl(job, target, options.check, options.plot, options.figure)
    draw = planned_figure("Estimate", options.plot, target, options.figure)
    views = [target if name == "-" else target.other(name) for name in (options.html, options.trace)]
    for text in options.expect or []:
        cm.read_expected(text)
    est = cm.estimate(**job)
    if options.samples:
        est = est.with_samples(options.samples, options.seed)
    result = result_of(est, every_line=options.every_line)._replace(
        table=partial(est.columns, options.form.value)
    )
    before: Sequence[str] = ()
    file = file_and_flags(given)[0]
    # Asked here, since a search is twice as much to import as an estimate.
    if names_no_degree(job) and not est.is_planned:
        other = cm.alternative(job, file)
        before = [other.sentence(est), *([f"  {other.command}"] if other.command else [])]
        record = {**est.to_dict(), "planned": other.record()}
        result = result._replace(record=lambda: record, remarks=[" ".join(before), *result.remarks])
    if not options.every_line:
        open_fields = [field for field in PLAN_FIELDS if field.name not in names(LAYOUT_FIELDS)]
        # A part of a script leaves out what the rest gives: what the reader advises stands in the command to plan it.
        advised = re.findall(r"give (\w+)=(\w+)$", "\n".join(file.remarks), re.MULTILINE)
        advice = {name: value for name, value in advised if given.get(name) is None}
        following = (
            command_with("plan", {**given, **advice}, open_fields),
            command_with("estimate", given, JOB_FIELDS, "--details"),
        )
        result = shortened(result, est, *following, before=before)
    if options.roofline:
        result = roofline_result(est, given, options.every_line)
    page = ""
    # Made before anything is shown: what stops it is then all that is said.
    if options.html:
        with waiting("writing the page", quiet=target.quiet) as progress:
            page = cm.report(
                est,
                plan=options.with_plan,
                sensitivities=options.with_sensitivity,
                seed=options.seed,
                progress=progress,
            )
    if "-" not in (options.html, options.trace):
        target.show(result)
    draw(est)
    if options.html:
        views[0].put(page)
    if options.trace:
        found = cm.trace(est)
        views[1].show(result_of(found)._replace(json_text=found.to_json))
    if options.check and not est.fits:
        raise typer.Exit(3)
    hold(est, options.expect or [])


def _estimate_rl(job: Mapping[str, Any], target: Target, check: bool, plot: str, figure: str) -> None:
    """Show a step of reinforcement learning: a job file with a section ``rl``."""
    import costmodel as cm

    draw = planned_figure("RLEstimate", plot, target, figure)
    found = cm.estimate_rl(**job)
    result = result_of(found)
    better = cm.better_rl(found, job)
    target.show(result._replace(remarks=[*([better] if better else []), *result.remarks]))
    draw(found)
    if check and not found.fits:
        raise typer.Exit(3)


@command(
    """
    costmodel mesh -c llama3-roce -n 16384 -l "tp8 cp1 pp16" --axis-order "tp cp pp dp"
    costmodel mesh -c dgx-h100-ndr -n 64 --tp 2 --zero 3 --shard-group 4
    costmodel mesh -c dgx-h100-ndr -n 64 -l "tp4 pp2" --rank 37
    costmodel mesh -c dgx-h100-ndr -n 64 -l "tp4 pp2" --ranks --format csv
    """,
    fields=PLACE_FIELDS,
)
def mesh(
    given: Mapping[str, Any],
    rank: int | None,
    ranks: bool,
) -> Any:
    """Show each axis of a layout: its factor, its groups, the link they meet on and what they send.

    Needs no model; of a job file it reads what places the ranks.
    """
    import costmodel as cm

    job, places = merged_job(given), names(PLACE_FIELDS)
    found = cm.mesh(**{name: value for name, value in job.items() if name in places})
    return found.of_ranks(rank) if ranks or rank is not None else found


@command(
    """
    costmodel generate llama3-70b 8xH100 --prompt 128 --response 3000 --batch 256
    costmodel generate deepseek-v3-671b 16xH200 --precision fp8 --engine sglang
    costmodel generate qwen3-235b-a22b 8xB200 --precision fp8 --format json
    """,
    fields=GENERATE_FIELDS,
)
def generate(target: Target, given: Mapping[str, Any]) -> None:
    """Price inference: time a token, tokens/s/GPU, the batch that fits, dollars per million tokens.

    Where no layout of a replica is named, the one that yields the most tokens a second is found. Of a job file it
    reads model, machine and price.
    """
    import costmodel as cm

    # A job file's layout is that of training.
    job: dict[str, Any] = merged_job({**given, "layout": None}) | {"layout": given.get("layout")}
    taken: Any = {name: job.get(name) for name in names(GENERATE_FIELDS)}
    found = cm.generate(**taken)
    following = []
    if given.get("layout"):
        following.append(command_with("generate", {**given, "layout": None}, GENERATE_FIELDS))
    elif 0 < found.running < found.largest_batch:
        largest = {**given, "batch": f"{found.largest_batch:.0f}", "max_running": None}
        following.append(command_with("generate", largest, GENERATE_FIELDS))
    following.append(command_with("generate", given, GENERATE_FIELDS, "--format", "json"))
    target.show(shortened(result_of(found), found, *following))
