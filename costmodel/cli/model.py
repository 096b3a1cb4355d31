"""``costmodel model``: presets and their exact sizes."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from costmodel.cli.job_options import takes_output
from costmodel.cli.texts import command_group

app = command_group("Models: list the presets, show parameters and FLOPs of one.")

LIST_EPILOG = """\b
Example:
  costmodel model list --format csv
"""
SHOW_EPILOG = """\b
Examples:
  costmodel model show llama3-405b --seq-len 8192
  costmodel model show ./config.json
"""


@app.command("list", epilog=LIST_EPILOG)
@takes_output()
def list_all(
    output: Mapping[str, Any],
) -> None:
    """List the shipped models with their exact parameter counts."""
    import costmodel as cm
    from costmodel.cli.output import answer_result, plan_output, show

    show(answer_result(cm.models_table()), plan_output(**output))


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
    import costmodel as cm
    from costmodel.cli.output import answer_result, plan_output, show

    target = plan_output(**output)
    show(answer_result(cm.model_facts(name, seq_len=seq_len)), target)
