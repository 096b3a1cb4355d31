"""``costmodel model``: presets and their exact sizes."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from costmodel.cli.job_options import takes_output
from costmodel.cli.texts import show_help

app = typer.Typer(rich_markup_mode=None, help="Models: list the presets, show parameters and FLOPs of one.")

LIST_EPILOG = """\b
Example:
  costmodel model list --format csv
"""
SHOW_EPILOG = """\b
Examples:
  costmodel model show llama3-405b --seq-len 8192
  costmodel model show ./config.json
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
    """List the shipped models with their exact parameter counts."""
    from costmodel.cli.output import Result, plan_output, show
    from costmodel.reporting.models import list_columns, list_grid

    target = plan_output(**output)
    table = list_columns()
    rows = [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]
    show(
        Result(
            grids=lambda: [list_grid(table)],
            record=lambda: {"schema_version": 1, "models": rows},
            table=lambda: table,
        ),
        target,
    )


@app.command("show", epilog=SHOW_EPILOG)
@takes_output()
def show_one(
    output: Mapping[str, Any],
    name: Annotated[str, typer.Argument(help="Preset, dense-<N>b, model file or HuggingFace config.json.")],
    seq_len: Annotated[
        int, typer.Option("--seq-len", min=1, help="Tokens of a sequence, for the FLOPs of attention.")
    ] = 4096,
) -> None:
    """Show a model's parameters by component, its FLOPs per token and its dimensions."""
    from costmodel.cli.output import Result, plan_output, show
    from costmodel.describe.models.model_files import load_model
    from costmodel.reporting.models import component_columns, model_grids, model_record

    target = plan_output(**output)
    record = model_record(load_model(name), seq_len)
    show(
        Result(
            grids=lambda: model_grids(record),
            record=lambda: record,
            table=lambda: component_columns(record),
        ),
        target,
    )
