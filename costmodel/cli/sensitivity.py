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
    top: Annotated[
        int,
        typer.Option("--top", min=1, help="Numbers, and switches, to list: those that move, or save, most."),
    ] = 15,
    every_one: Annotated[bool, typer.Option("--all", help="List all, also what moves nothing.")] = False,
) -> None:
    """Show what each number of the hardware and each switch of the recipe is worth.

    Elasticity is the change of step time in percent per percent of the number, from 10 % less and 10 %
    more. Beside it stand the lines that shrink and grow most: the bottleneck that goes, and the one
    that comes.
    """
    import costmodel as cm
    from costmodel.cli.output import answer_result, plan_output, show
    from costmodel.cli.pictures import planned_figure
    from costmodel.cli.plan_input import waiting

    target = plan_output(**output)
    draw = planned_figure("Sensitivity", plot, "", force=output["force"])
    est = cm.estimate(**merged_job(given))
    with waiting("pricing variants", quiet=target.quiet) as progress:
        found = cm.sensitivity(est, change=by, progress=progress)
    show(answer_result(found, every_one=every_one, top=top), target)
    draw(found.plot, target)
