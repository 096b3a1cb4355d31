"""``costmodel validate``: published runs against the model."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from costmodel.cli import options as opt
from costmodel.cli.job_options import takes_output

EPILOG = """\b
Examples:
  costmodel validate
  costmodel validate runs.csv --csv predicted.csv --worst 10
  costmodel validate runs.csv --plot predicted.png
  costmodel validate runs.csv --format json
"""


@takes_output()
def validate(
    output: Mapping[str, Any],
    file: Annotated[
        str, typer.Argument(help="Table of runs (CSV); without one, the published runs that are shipped.")
    ] = "",
    worst: Annotated[int, typer.Option("--worst", min=0, help="Also list the runs furthest off.")] = 0,
    plot: opt.PlotOption = "",
) -> None:
    """Price every run of a table and compare with what was measured.

    The columns are those of tests/published/runs.csv, which is shipped: recipe names the recipe, switches
    (JSON) what the run set otherwise; an empty cell takes what is usual. Errors are relative to the
    measurement, over rows of quality A and B. A row that cannot be priced is counted with its
    reason. --csv writes a row per run.
    """
    import costmodel as cm
    from costmodel.cli.output import answer_result, plan_output, show
    from costmodel.cli.pictures import planned_figure
    from costmodel.cli.plan_input import waiting

    target = plan_output(**output)
    draw = planned_figure("Validation", plot, "", force=output["force"])
    with waiting("pricing runs", quiet=target.quiet) as progress:
        checked = cm.validate(file or None, progress=progress)
    show(answer_result(checked, worst=worst), target)
    draw(checked.plot, target)
