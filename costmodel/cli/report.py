"""``costmodel report``: one page about a job that opens anywhere."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

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
) -> None:
    """Write a page with the bill, figures, other layouts, sources, and sliders that are already priced.

    The page needs no network: it can be mailed, archived and opened from a login node. To
    make it takes plotly (the extra `report`).
    """
    import sys

    from costmodel.cli.output import plan_output, write_whole
    from costmodel.cli.progress import progress
    from costmodel.estimates.estimate import estimate
    from costmodel.reporting.html.page import plotly_library, report_page
    from costmodel.reporting.html.search import other_layouts
    from costmodel.what_if.sensitivity import sensitivity

    target = plan_output(None, html, **output)
    plotly_library()
    est = estimate(**merged_job(given))
    with progress("writing the page", 7, quiet=target.quiet) as tick:
        plan = other_layouts(est) if with_plan else None
        tick()
        found = sensitivity(est) if with_sensitivity else None
        tick()
        page = report_page(est, plan=plan, found=found, tick=tick)
    if target.out is None:
        sys.stdout.write(page)
    else:
        write_whole(target.out, page, target)
