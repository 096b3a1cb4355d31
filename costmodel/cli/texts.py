"""Help that several commands share: examples and the answer to a command without arguments."""

import typer

# \b keeps the lines of a paragraph apart.
EXAMPLES = """\b
Examples:
  costmodel estimate --model llama3-8b --gpus 64 --layout "tp2 pp1" --global-batch 512 --seq-len 8192
  costmodel mesh --cluster llama3-roce --gpus 16384 --layout "tp8 pp16" --axis-order "tp cp pp dp"
  costmodel hardware show h100-sxm-80gb
  costmodel model show deepseek-v3-671b
"""


def show_help(context: typer.Context) -> None:
    """Print the help of a command group that was called without a command, and exit with code 2."""
    typer.echo(context.get_help())
    raise typer.Exit(2)
