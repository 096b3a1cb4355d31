"""Flags: those of fields, made from the table of fields, and those that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import typer

from costmodel.cli.group import print_whole_help
from costmodel.describe.jobs.fields import FIELD, Field


class Format(StrEnum):
    """How a result is printed."""

    table = "table"
    json = "json"
    csv = "csv"


class Form(StrEnum):
    """Which of the two tables of an estimate a CSV holds."""

    long = "long"
    wide = "wide"


_METAVARS = {
    "whole": "INTEGER",
    "number": "NUMBER",
    "price": "USD",
    "switches": "SWITCH=VALUE",
    "choices": "FIELD=VALUE",
    "hardware": "NUMBER=VALUE",
    "bytes": "SIZE",
    "rate": "RATE",
    "time": "TIME",
    "share": "SHARE",
}


def takes_several(field: Field) -> bool:
    """Return whether a search takes several values of a field at once."""
    return field.several or bool(field.turned)


def complete(name: str, incomplete: str) -> list[str]:
    """Return the words that a field takes and that begin as typed; the last one of several with commas.

    >>> complete("recompute", "s"), complete("recompute", "none,f")
    (['selective'], ['none,full'])
    """
    from costmodel.describe.jobs.known_words import known_words

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{word}" for word in known_words(name) if word.startswith(last)]


def _completion_of(name: str) -> Callable[[str], list[str]]:
    # typer looks at the function's parameters, so a partial will not do.
    def found(incomplete: str) -> list[str]:
        return complete(name, incomplete)

    return found


def of_field(name: str, *, several: bool = False) -> Any:
    """Return the flag of a field in the table; with `several`, one that may name several values."""
    field = FIELD[name]
    many = several and takes_several(field)
    is_truth = field.kind == "truth" and not many
    default = "every sensible one" if many and field.turned else field.default_said
    flags = list(field.flags)
    if is_truth:
        flags = [f"{flags[0]}/--no-{flags[0].removeprefix('--')}"]
    metavar = None if is_truth else "VALUES" if many else _METAVARS.get(field.kind, "TEXT")
    repeats = " May be repeated." if field.kind in ("switches", "choices", "hardware") else ""
    return typer.Option(
        None,
        *flags,
        *([field.short] if field.short else []),
        metavar=metavar,
        help=field.help + repeats + (f"  [default: {default}]" if default else ""),
        autocompletion=_completion_of(name),
    )


JOB_FILE = typer.Argument(
    "",
    metavar="JOB.yaml|MODEL",
    help="Job file, file of another program, or model; flags go on top of it.",
    show_default=False,
)
MACHINE = typer.Argument(
    "", metavar="MACHINE", help="How many GPUs of which kind, such as 256xH100.", show_default=False
)
JOB_FILES = typer.Argument(
    None,
    metavar="JOB.yaml|MODEL … MACHINE",
    help="Job files or models, flags on top of each; and GPUs such as 256xH100.",
    show_default=False,
)
JOB_OPTION = typer.Option("", "--job", metavar="JOB.yaml", help="Job file; flags go on top of it.")

# Flags of a job that are no fields.
STRAGGLERS = typer.Option(
    None,
    "--stragglers/--no-stragglers",
    help="Let every step wait for its slowest rank (see the straggler_* switches).  [default: the recipe's]",
)
PROFILES = typer.Option(
    None, "--profiles", metavar="DIR", help="Folder with your own hardware profiles; may be repeated."
)
FROM = typer.Option(
    None, "--from", metavar="KIND", help="What kind of file the job file is; default: its content tells."
)
VOCAB_SIZE = typer.Option(
    None, "--vocab-size", min=1, help="Tokens of the vocabulary, where only a tokenizer would say."
)
ENV = typer.Option(
    None, "--env", metavar="NAME=VALUE", help="Variable that a launch script finds set; may be repeated."
)
ALLOW_SOURCE = typer.Option(
    None,
    "--allow-source",
    metavar="DIR",
    help="Folder that a launch script may source files from, beside its own; may be repeated.",
)

# Flags of a result.
FORMAT = typer.Option(
    None, "--format", help="How to print the result; default: by the ending of --out, or table."
)
OUT = typer.Option(
    "", "--out", metavar="FILE", help="Write the result here instead of printing it; - prints."
)
CSV = typer.Option("", "--csv", metavar="FILE", help="Write the CSV here as well.")
FORCE = typer.Option(False, "--force", help="Replace files that exist.")
DETAILS = typer.Option(False, "--details", help="Print everything: all tables, lines and notes.")
QUIET = typer.Option(False, "--quiet", "-q", help="Say nothing on stderr but errors.")

HELP_ALL = typer.Option(
    False, "--help-all", help="Show all flags and exit.", is_eager=True, callback=print_whole_help
)

# Flags of several commands.
CLUSTER = of_field("cluster")
SWITCHES = of_field("switches")
PLOT = typer.Option("", "--plot", metavar="FILE", help="Draw a figure into this picture: .svg, .png or .pdf.")
EXPECT = typer.Option(
    None,
    "--expect",
    metavar="WHAT",
    help="Exit with code 3 unless all holds, such as 'step_time < 7 s, mfu > 0.4, memory < 75 GiB'.",
)
CHECK = typer.Option(False, "--check", help="Exit with code 3 if the job does not fit.")
START = typer.Option("", "--start", metavar="DATE", help="Say when it is done if it starts then.")
SAMPLES = typer.Option(
    0,
    "--samples",
    metavar="N",
    min=0,
    help="Price the job again at N samples of everything uncertain, such as 200: p10 to p90, and what makes the "
    "width; columns of their own.  [default: 0, the band of comparable runs]",
    show_default=False,
)
SEED = typer.Option(0, "--seed", min=0, max=2**32 - 1, help="Seed of the samples.")
