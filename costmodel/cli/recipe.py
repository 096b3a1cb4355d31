"""``costmodel recipe``: how frameworks run a step."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from costmodel.cli import options as opt
from costmodel.cli.job_options import takes_output
from costmodel.cli.texts import command_group

app = command_group("Recipes: list them, show the switches of one.")

LIST_EPILOG = """\b
Example:
  costmodel recipe list
"""
SHOW_EPILOG = """\b
Example:
  costmodel recipe show torchtitan --set dp_overlap=none
"""


@app.command("list", epilog=LIST_EPILOG)
@takes_output()
def list_all(
    output: Mapping[str, Any],
) -> None:
    """List the shipped recipes."""
    import costmodel as cm
    from costmodel.cli.output import answer_result, plan_output, show

    show(answer_result(cm.recipes_table()), plan_output(**output))


@app.command("show", epilog=SHOW_EPILOG)
@takes_output()
def show_one(
    output: Mapping[str, Any],
    name: Annotated[str, typer.Argument(help="Name of a recipe.")],
    switches: opt.SetOption = None,
) -> None:
    """Show every switch of a recipe: its value, its default, its choices and what it changes."""
    import costmodel as cm
    from costmodel.cli.output import answer_result, plan_output, show

    target = plan_output(**output)
    show(answer_result(cm.recipe(name, switches=switches)), target)
