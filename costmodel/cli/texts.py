"""Help that several commands share: examples and the answer to a command without arguments."""

import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from textwrap import shorten
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

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


def command_group(text: str) -> typer.Typer:
    """Return a group of commands that shows its help where none of them is called."""
    group = typer.Typer(rich_markup_mode=None, help=text)
    group.callback(invoke_without_command=True)(_without_command)
    return group


def _without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        show_help(context)


def show_help(context: typer.Context) -> None:
    """Print the help of a command group that was called without a command, and exit with code 2."""
    typer.echo(context.get_help())
    raise typer.Exit(2)


GROUPS = {
    "One step": {
        "estimate": "Price one training step: step time, MFU and memory per GPU, with the lines they add up from.",
        "mesh": "Show each axis of a layout: its factor, its groups, the link they meet on and what they send.",
        "report": "Write a page with the bill, figures, other layouts, sources, and sliders that are already priced.",
    },
    "Look into it": {
        "explain": "Open up the bill: each line's formula with its numbers put in, units, tier and source.",
        "compare": "Lay bills side by side: the difference line by line, what moved and why.",
        "sensitivity": "Show what each number of the hardware and each switch of the recipe is worth.",
        "roofline": "Show where operators lie under the GPU's roofs, and each axis against the tiers of the fabric.",
        "profile": "Add up a profiler's trace of real steps: by class, stream and step, and beside the bill of a job.",
        "trace": "Write one step as a trace: a process a pipeline stage, a thread a stream, a counter of memory.",
    },
    "Choose": {
        "plan": "Find the best layout: every one that divides is priced; the best, the front and the reasons are shown.",
        "sweep": "Plan every point of a grid of models, clusters, scales, batches and link speeds.",
    },
    "The whole run": {
        "run": "Price a whole training run: days, GPU-hours, energy and dollars, with what failures take.",
        "watch": "Follow a training log: say when steps leave the band of the estimate, since when, and what it costs.",
        "budget": "Say what model to train, and on how many tokens, for a budget, by the published scaling laws.",
    },
    "Elsewhere": {
        "app": "Serve a page to choose a job, see its bill, memory and figures, plan, compare and export.",
        "mcp": "Answer an assistant over the Model Context Protocol: tools estimate, plan, explain and compare.",
    },
    "Your own cluster": {
        "hardware": "Accelerators, links, clusters and storage: list, show, check.",
        "calibrate": "Profiles from your own measurements: collectives, kernels, training steps.",
        "measure": "Measure kernels and collectives of this machine (needs torch and a GPU).",
        "collective": "Price one collective by every algorithm: NCCL's ways on the fabric, and the textbook's on one tier.",
    },
    "Models, frameworks, trust": {
        "model": "Models: list the presets, show parameters and FLOPs of one.",
        "recipe": "Recipes: list them, show the switches of one.",
        "read": "Read a file of another program: what it trains, on what, how, and what was not understood.",
        "schema": "Print the JSON Schema of a kind of file, by which editors complete and check it.",
        "validate": "Price every run of a table and compare with what was measured.",
    },
}
"""Commands under the headings of the README, with the first sentence of their own help."""


class Commands(Mapping[str, Any]):
    """The commands by name, each built when it is asked for: flags of twenty cost ten times what one needs.

    A command is the function of its module's name with its `EPILOG`, or the group of commands `app`.
    """

    def __init__(self) -> None:
        self._built: dict[str, Any] = {}
        self._names = tuple(name for names in GROUPS.values() for name in names)

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._built:
            self._built[name] = _built(name)
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _built(name: str) -> Any:
    """Build one command."""
    module = import_module(f"costmodel.cli.{name}")
    alone = typer.Typer(rich_markup_mode=None, add_completion=False)
    if isinstance(getattr(module, "app", None), typer.Typer):
        alone.add_typer(module.app, name=name)
        group: Any = get_command(alone).commands[name]  # type: ignore[attr-defined]
        for command in group.commands.values():
            command.epilog = fitted(command.epilog or "")
        return group
    alone.command(name, epilog=module.EPILOG)(getattr(module, name))
    command = get_command(alone)
    for parameter in command.params:
        _leave_absent(parameter)
    command.epilog = fitted(command.epilog or "")
    return command


_WORD = re.compile(r"""(?:"[^"]*"|'[^']*'|\S)+""")
"""A word of a command line, with blanks where it is quoted."""


def fitted(epilog: str, width: int | None = None) -> str:
    r"""Break the commands among a help's examples where a shell may go on, so that a narrow terminal need not.

    Parameters
    ----------
    epilog : str
        Lines; commands begin with ``costmodel``.
    width : int, optional
        Columns; without it those of the terminal, and nothing is broken where there is none.

    Examples
    --------
    >>> print(fitted('  costmodel plan -m llama3-70b -l "tp8 pp4"', 28))
      costmodel plan \
          -m llama3-70b \
          -l "tp8 pp4"
    """
    if width is None:
        if sys.stdout is None or not sys.stdout.isatty():
            return epilog
        # The help stands two columns to the right.
        width = shutil.get_terminal_size().columns - 2
    lines: list[str] = []
    goes_on = False
    for line in epilog.splitlines():
        is_command = goes_on or line.lstrip().startswith("costmodel ")
        goes_on = is_command and line.endswith("\\")
        lines += _broken(line, width) if is_command and len(line) > width else [line]
    return "\n".join(lines)


def _broken(line: str, width: int) -> list[str]:
    """Break a command line before words, flags with their values where there is room."""
    indent = line[: len(line) - len(line.lstrip())]
    inner = indent if line.lstrip().startswith("-") else f"{indent}    "
    words = _WORD.findall(line)
    ends = " \\" if words[-1] == "\\" else ""
    words = words[:-1] if ends else words
    units: list[str] = []
    for word in words:
        last = units[-1] if units else ""
        if last.startswith("-") and " " not in last and not word.startswith(("-", "|", ">", "&")):
            units[-1] = f"{last} {word}"
        else:
            units.append(word)
    rows = [indent + units[0]]
    for unit in units[1:]:
        if len(rows[-1]) + 1 + len(unit) + 2 <= width:
            rows[-1] += f" {unit}"
        else:
            rows[-1] += " \\"
            rows.append(inner + unit)
    rows[-1] += ends
    return rows


def _leave_absent(parameter: Any) -> None:
    """Let a flag that was not given stay as it is; typer would build a pydantic reader for it, a millisecond each."""
    # Flags that may be repeated are lists, which older versions of typer make of nothing too.
    if parameter.required or parameter.default not in (None, "") or getattr(parameter, "multiple", False):
        return
    read = parameter.process_value

    def process_value(ctx: Any, value: Any) -> Any:
        return value if value in (None, "") else read(ctx, value)

    parameter.process_value = process_value


class GroupedCommands(TyperGroup):
    """Commands in help under headings; a wrong one is answered with the nearest right ones."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = Commands()  # type: ignore[assignment]

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
        for heading, summaries in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, _shortened(text, limit)) for name, text in summaries.items()])


_LEAST_LINE = 40


def _shortened(text: str, limit: int) -> str:
    """Return a sentence, or what of its words fits."""
    # Where there is no room for a line, sentences are wrapped instead.
    return (
        text
        if len(text) <= limit or limit < _LEAST_LINE
        else shorten(text, limit, placeholder="...", break_on_hyphens=False)
    )
