"""``costmodel recipe``: how frameworks run a step."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from costmodel.cli import options as opt
from costmodel.cli.job_options import takes_output
from costmodel.cli.texts import show_help

app = typer.Typer(rich_markup_mode=None, help="Recipes: list them, show the switches of one.")

LIST_EPILOG = """\b
Example:
  costmodel recipe list
"""
SHOW_EPILOG = """\b
Example:
  costmodel recipe show torchtitan --set dp_overlap=none
"""


@app.callback(invoke_without_command=True)
def _start(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        show_help(context)


@app.command("list", epilog=LIST_EPILOG)
@takes_output()
def list_all(
    output: Mapping[str, Any],
) -> None:
    """List the shipped recipes."""
    from costmodel.cli.output import Result, plan_output, show
    from costmodel.reporting.recipes import list_columns, list_grid

    target = plan_output(**output)
    table = list_columns()
    rows = [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]
    show(
        Result(
            grids=lambda: [list_grid(table)],
            record=lambda: {"schema_version": 1, "recipes": rows},
            table=lambda: table,
        ),
        target,
    )


@app.command("show", epilog=SHOW_EPILOG)
@takes_output()
def show_one(
    output: Mapping[str, Any],
    name: Annotated[str, typer.Argument(help="Name of a recipe.")],
    switches: opt.SetOption = None,
) -> None:
    """Show every switch of a recipe: its value, its default, its choices and what it changes."""
    from costmodel.cli.output import Result, plan_output, show
    from costmodel.describe.jobs.reading import parse_switches
    from costmodel.describe.jobs.switches import Settings
    from costmodel.describe.recipe import load_recipe
    from costmodel.reporting.recipes import recipe_grid, recipe_record, switch_columns

    target = plan_output(**output)
    record = recipe_record(Settings(load_recipe(name)).switched(parse_switches(switches)))
    show(
        Result(
            grids=lambda: [recipe_grid(record)],
            record=lambda: record,
            table=lambda: switch_columns(record),
        ),
        target,
    )
