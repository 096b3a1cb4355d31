"""``costmodel sensitivity``: what each number and each switch is worth."""

from typing import Annotated, Any

import typer

from costmodel.cli import options as opt
from costmodel.cli.job_options import merged_job, takes_job

EPILOG = """\b
Examples:
  costmodel sensitivity job.yaml
  costmodel sensitivity job.yaml --plot tornado.svg
  costmodel sensitivity job.yaml --by 0.5 --format csv
"""


@takes_job()
def sensitivity(
    given: dict[str, Any],
    output: dict[str, Any],
    by: Annotated[float, typer.Option("--by", help="How much less and more of each number.")] = 0.1,
    plot: opt.PlotOption = "",
    every_one: Annotated[bool, typer.Option("--all", help="Also list what moves nothing.")] = False,
) -> None:
    """Show what each number of the hardware and each switch of the recipe is worth.

    Elasticity is the change of step time in percent per percent of the number, from 10 % less and 10 %
    more. Beside it stand the lines that shrink and grow most: the bottleneck that goes, and the one
    that comes.
    """
    from costmodel.cli.output import answer_result, plan_output, show
    from costmodel.cli.pictures import planned_figure
    from costmodel.cli.progress import progress
    from costmodel.estimates.estimate import estimate
    from costmodel.reporting.faces import SensitivityFace
    from costmodel.reporting.sensitivity import sensitivity_remarks
    from costmodel.what_if.sensitivity import count_knobs
    from costmodel.what_if.sensitivity import sensitivity as find

    target = plan_output(**output)
    draw = planned_figure(SensitivityFace, plot, "", force=output["force"])
    est = estimate(**merged_job(given))
    with progress("pricing variants", count_knobs(est), quiet=target.quiet) as tick:
        found = find(est, change=by, tick=tick)
    show(
        answer_result(found, remarks=sensitivity_remarks(found), every_one=every_one),
        target,
    )
    draw(found.plot, target)
