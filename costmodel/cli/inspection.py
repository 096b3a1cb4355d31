"""Commands that explain an estimate: ``explain``, ``compare``, ``sensitivity``, ``observed profile``, and estimate's views."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from costmodel.cli.command import command, command_with, jobs_side_by_side, merged_job, priced
from costmodel.cli.output import Result, Target, planned_figure, result_of, shortened, waiting
from costmodel.describe.jobs.fields import FIELD, JOB_FIELDS

if TYPE_CHECKING:
    from costmodel.estimates.estimate import Estimate


@command(
    """
    costmodel explain job.yaml --line compute.mlp.fc1.forward
    costmodel explain job.yaml --line tp.
    """,
    fields=JOB_FIELDS,
)
def explain(
    given: Mapping[str, Any],
    line: str,
    top: int | None,
) -> Result:
    """Open up the bill: each line's formula with its numbers put in, units, tier and source.

    A job is given as to `estimate`. Printed numbers have seven digits: the last step of each formula,
    recomputed by hand, gives the line; count times line is what the step pays.
    """
    est = priced(given)
    lines = est.explain(line)
    if line:
        return result_of(lines)
    largest = max((one for one in lines if one.bill == "time"), key=lambda one: one.total)
    opened = command_with("explain", given, JOB_FIELDS, "--line", largest.name)
    return shortened(result_of(lines), lines, opened, count=top or 10)


@command(
    """
    costmodel compare before.yaml after.yaml
    costmodel compare llama3-8b 64xH100 64xB200
    costmodel compare job.yaml --vary tp=4,8
    costmodel compare h200.yaml v6e.yaml --tokens 1T --price dgx-h200-ndr=2.5,tpu-v6e=1.8
    costmodel compare job.yaml --vary recompute=none,full --vary dp_overlap=none,last-micro-batch
    costmodel compare job.yaml --vary zero=0,1,2,3 --plot zero.svg
    """,
    fields=JOB_FIELDS,
    uses="plot",
)
def compare(given: Mapping[str, Any], target: Target, options: Any) -> None:
    """Lay bills side by side: the difference line by line, what moved and why.

    Every job is compared with the first; with one value to vary, the job as given is the first.
    Differences of lines add up to the difference of step times (and of memory).
    """
    import costmodel as cm

    draw = planned_figure("Comparison", options.plot, target)
    found = {
        f"{name} {label}".strip() or "as given": est
        for name, one in jobs_side_by_side(given, options.job).items()
        for label, est in cm.vary(options.vary or [], **one).items()
    }
    comparison = cm.compare(*found.values(), labels=list(found))
    result = result_of(comparison, every_line=options.every_line)
    if not options.every_line:
        more = [part for one in options.vary or [] for part in ("--vary", one)]
        result = shortened(
            result,
            comparison,
            command_with("compare", {**given, "job": options.job}, JOB_FIELDS, *more, "--details"),
        )
    target.show(result)
    draw(comparison)


@command(
    """
    costmodel sensitivity job.yaml
    costmodel sensitivity job.yaml --plot tornado.svg
    costmodel sensitivity job.yaml --by 0.5 --format csv
    """,
    fields=JOB_FIELDS,
    uses="plot",
)
def sensitivity(given: Mapping[str, Any], target: Target, options: Any) -> None:
    """Show what each number of the hardware and each switch of the recipe is worth.

    Elasticity is the change of step time in percent per percent of the number, from 10 % less and 10 %
    more. Beside it stand the lines that shrink and grow most: the bottleneck that goes, and the one
    that comes.
    """
    import costmodel as cm

    draw = planned_figure("Sensitivity", options.plot, target)
    est = priced(given)
    with waiting("pricing variants", quiet=target.quiet) as progress:
        found = cm.sensitivity(est, change=options.by, progress=progress)
    result = result_of(found, every_one=options.every_one, top=options.top or 15)
    if not options.every_one and options.top is None:
        best = found.best_switch
        tuned = [] if best is None else ["--vary", f"{best.name}={best.before},{best.after}"]
        following = [command_with("sensitivity", given, JOB_FIELDS, "--details")]
        following += [command_with("compare", given, JOB_FIELDS, *tuned)] if tuned else []
        result = shortened(result, found, *following)
    target.show(result)
    draw(found)


def roofline_result(est: Estimate, given: Mapping[str, Any], every_operator: bool) -> Result:
    """Return the roofline of an estimate: in twenty lines, or whole."""
    import costmodel as cm

    found = cm.roofline(est)
    result = result_of(found, every_operator=every_operator)
    if every_operator:
        return result
    following = (
        command_with("estimate", given, JOB_FIELDS, "--roofline", "--details"),
        command_with("explain", given, JOB_FIELDS, "--line", f"compute.{found.operators[0].name}"),
    )
    return shortened(result, found, *following)


@command(
    """
    costmodel observed profile trace.json.gz                  # PyTorch profiler
    costmodel observed profile report.sqlite                  # nsys export --type sqlite report.nsys-rep
    costmodel observed profile trace.json.gz --job job.yaml --plot against-bill.png
    costmodel observed profile trace.json.gz --job job.yaml --write site.yaml
    costmodel observed profile trace.json.gz --job job.yaml --set attention_kernel=flash3 --format json
    """,
    fields=JOB_FIELDS,
    uses="plot",
)
def profile(given: Mapping[str, Any], target: Target, options: Any) -> None:
    """Add up a profiler's trace of real steps: by class, stream and step, and against the bill of a job.

    A job, by --job or by its flags, is compared with it group by group, the largest difference first. Kernels are told
    by their names; those that no family has are listed.
    """
    import costmodel as cm

    has_job = bool(options.job) or any(value is not None for name, value in given.items() if name in FIELD)
    if options.plot and not has_job:
        raise cm.CostModelError("--plot: draws the trace against the bill of a job; give --job JOB.yaml")
    draw = planned_figure("TraceProfile", options.plot, target)
    path = target.file(options.write)
    est = cm.estimate(**merged_job(given, options.job)) if has_job else None
    found = cm.profile(options.trace, est, device=options.device, step_range=options.step_range)
    files = found.files(path) if path is not None else {}
    target.show(found)
    for file, text in files.items():
        target.write(file, text)
    draw(found)
