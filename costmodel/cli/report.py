"""``costmodel report``: one page about a job that opens anywhere."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from costmodel.cli import options as opt
from costmodel.cli.job_options import merged_job, takes_job

EPILOG = """\b
Examples:
  costmodel report job.yaml --html report.html
  costmodel report -m llama3-70b -n 64 -l "tp8 pp4" --global-batch 128 --seq-len 8192 --html r.html
  costmodel report job.yaml --html report.html --no-plan --force
"""


@takes_job(output=("force", "quiet"))
def report(
    given: Mapping[str, Any],
    output: Mapping[str, Any],
    html: Annotated[str, typer.Option("--html", metavar="FILE", help="Write the page here; - prints it.")],
    with_plan: Annotated[
        bool, typer.Option("--plan/--no-plan", help="Search for other layouts of the job.")
    ] = True,
    with_sensitivity: Annotated[
        bool, typer.Option("--sensitivity/--no-sensitivity", help="Vary each number and each switch.")
    ] = True,
    samples: Annotated[
        int, typer.Option("--samples", min=10, help="Samples of everything uncertain, for p10 to p90.")
    ] = 200,
    seed: opt.SeedOption = 0,
    start: opt.StartOption = "",
) -> None:
    """Write a page with the bill, figures, other layouts, sources, and sliders that are already priced.

    The page needs no network: it can be mailed, archived and opened from a login node. To
    make it takes plotly (the extra `report`). Where no degree of the layout is named, it is the planner's.
    """
    import sys

    import costmodel as cm
    from costmodel.cli.output import plan_output, write_file
    from costmodel.cli.plan_input import waiting

    target = plan_output(None, html, **output)
    with waiting("writing the page", quiet=target.quiet) as progress:
        est, is_planned = cm.named_or_planned(merged_job(given))
        page = cm.report(
            est,
            plan=with_plan,
            sensitivities=with_sensitivity,
            samples=samples,
            seed=seed,
            start=start,
            is_planned=is_planned,
            progress=progress,
        )
    if target.out is None:
        sys.stdout.write(page)
    else:
        write_file(target.out, page, target)
