"""Help that several commands share: examples and the answer to a command without arguments."""

from typing import Any

import typer
from typer.core import TyperGroup

from costmodel.base.errors import CostModelError, choices_hint

# \b keeps the lines of a paragraph apart.
EXAMPLES = """\b
Examples:
  costmodel estimate --model llama3-8b --gpus 64 --layout "tp2 pp1" --global-batch 512 --seq-len 8192
  costmodel plan --model llama3-70b --gpus 64 --global-batch 128 --seq-len 8192
  costmodel mesh --cluster llama3-roce --gpus 16384 --layout "tp8 pp16" --axis-order "tp cp pp dp"
  costmodel hardware show h100-sxm-80gb
  costmodel model show deepseek-v3-671b
"""


def show_help(context: typer.Context) -> None:
    """Print the help of a command group that was called without a command, and exit with code 2."""
    typer.echo(context.get_help())
    raise typer.Exit(2)


GROUPS = {
    "One step": ("estimate", "mesh", "report"),
    "Look into it": ("explain", "compare", "sensitivity", "roofline", "trace"),
    "Choose": ("plan", "sweep"),
    "The whole run": ("run", "budget"),
    "Your own cluster": ("hardware", "calibrate", "measure", "collective"),
    "Models, frameworks, trust": ("model", "recipe", "read", "validate"),
}
"""Commands under the headings of the README."""


class GroupedCommands(TyperGroup):
    """Commands in help under headings; a wrong one is answered with the nearest right ones."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command.

        Raises
        ------
        CostModelError
            If there is none of that name.
        """
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            raise CostModelError(f"no command is called {args[0]!r}; {choices_hint(args[0], self.commands)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one section a heading."""
        limit = formatter.width - 6 - max(map(len, self.commands))
        for heading, names in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(limit)) for name in names])
