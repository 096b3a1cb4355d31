"""The commands: under which heading they are listed, where they are, and how one is read when it is asked for."""

from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from costmodel.base.csv_text import read_rows
from costmodel.base.errors import CostModelError, choices_hint


class Entry(NamedTuple):
    """A command: the heading of the README that it stands under, its module in this folder, what its help begins with.

    Without a heading it is an old name, which no help lists, and its summary is what it is called now.
    """

    heading: str
    module: str
    summary: str


COMMANDS = {row.pop("command"): Entry(**row) for row in read_rows(Path(__file__).with_name("commands.csv"))}
LISTED = {name: entry for name, entry in COMMANDS.items() if entry.heading}


class Group(TyperGroup):
    """Several commands, whose help is the answer where none of them is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Print the help, and exit with code 2, where there is nothing to parse."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            raise typer.Exit(2)
        return super().parse_args(ctx, args)


class Command(TyperCommand):
    """A command whose ``--help`` shows ten flags, those that people use most, and ``--help-all`` all of them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse a flag of one value that is given twice, of which the parser would take the last in silence."""
        options: list[Any] = self.make_parser(ctx).parse_args(args=[*args])[2]
        for one in options:
            is_single = one.param_type_name == "option" and not one.multiple and not one.is_flag
            if is_single and options.count(one) > 1:
                raise CostModelError(f"{one.opts[0]}: given twice, and takes one value")
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, and the flags that are used most or all."""
        flags = [one for one in self.get_params(ctx) if one.param_type_name == "option"]
        if _EVERY not in ctx.meta and len(flags) > SHOWN_FLAGS + 2:
            order = {name: place for place, name in enumerate(_FIRST)}
            ranked = sorted(flags, key=lambda one: order.get(str(one.name), len(order)))
            shown = {one.name for one in ranked[:SHOWN_FLAGS]} | {"help", "help_all"}
            for one in flags:
                one.hidden = one.hidden or one.name not in shown  # type: ignore[attr-defined]
        super().format_options(ctx, formatter)


SHOWN_FLAGS = 10
"""Flags that the short help of a command shows beside those of the help itself."""
_EVERY = "costmodel.help_all"
_FIRST = (
    *(
        "model",
        "cluster",
        "gpus",
        "prompt_len",
        "response_len",
        "batch",
        "engine",
        "keep",
        "framework",
        "emit",
        "html",
        "trace",
        "log",
    ),
    *("vary", "line", "tokens", "days", "dollars", "layout", "global_batch", "seq_len"),
    *("recipe", "top", "plot", "details", "precision", "recompute", "switches", "hw"),
    *("zero_stage", "format", "out", "csv"),
)
"""Flags by how often they are used; the others follow as they stand."""


def print_whole_help(ctx: typer.Context, wanted: bool) -> None:
    """Print the help with all flags, and end."""
    if wanted and not ctx.resilient_parsing:
        ctx.meta[_EVERY] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


class LazyGroup(Group):
    """All commands: the help of all reads none of them, and a call reads its own."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, in the order of the headings."""
        return list(LISTED)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Read one command: the function of that name in its module, or the group of commands."""
        if cmd_name not in COMMANDS:
            return None
        found = getattr(import_module(f"costmodel.cli.{COMMANDS[cmd_name].module}"), cmd_name)
        if isinstance(found, typer.Typer):
            group: Any = get_command(found)
            group.name = cmd_name
            return group
        alone = typer.Typer(rich_markup_mode=None, add_completion=False)
        alone.command(cmd_name, cls=Command, epilog=found.epilog)(found)
        return get_command(alone)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command."""
        entry = COMMANDS.get(args[0]) if args else None
        if args and not args[0].startswith("-") and entry is None:
            raise CostModelError(f"no command is called {args[0]!r}; {choices_hint(args[0], LISTED)}")
        if entry is not None and not entry.heading:
            if not {"-q", "--quiet", "--help", "-h"} & {*args}:
                note = f"Note: costmodel {args[0]} is now costmodel {entry.summary}"
                typer.echo(typer.style(note, dim=True), err=True)
            args = [*entry.summary.split(), *args[1:]]
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one section a heading."""
        for heading in dict.fromkeys(entry.heading for entry in LISTED.values()):
            rows = [(name, entry.summary) for name, entry in LISTED.items() if entry.heading == heading]
            with formatter.section(heading):
                formatter.write_dl(rows)
