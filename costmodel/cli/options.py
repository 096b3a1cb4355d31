"""Flags: those of fields, made from the table of fields, and all others, a row each of ``flags.csv``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import typer

from costmodel.base.csv_text import read_rows
from costmodel.cli.group import print_whole_help
from costmodel.describe.jobs.fields import ANY_FRAMEWORK, FIELD, Field


class Format(StrEnum):
    """How a result is printed."""

    table = "table"
    json = "json"
    csv = "csv"


class ReadFormat(StrEnum):
    """Forms of what was read of another program's file."""

    table = "table"
    json = "json"
    yaml = "yaml"


class Form(StrEnum):
    """Which of the two tables of an estimate a CSV holds."""

    long = "long"
    wide = "wide"


SURROUNDINGS = ("stragglers", "profiles", "kind", "vocab_size", "env", "allow_source")
"""Flags of a job that are no fields."""
_TYPES: dict[str, Any] = {
    "text": str,
    "text?": str | None,
    "texts": list[str],
    "texts?": list[str] | None,
    "path": Path,
    "paths": list[Path],
    "paths?": list[Path] | None,
    "truth": bool,
    "truth?": bool | None,
    "whole": int,
    "whole?": int | None,
    "number": float,
    "form": Form,
    "format?": Format | None,
    "read-format?": ReadFormat | None,
}
"""Of the values of flags and arguments, by their names in ``flags.csv``; a mark is for those that may be missing."""

JOB = "job"
"""What ``--emit`` takes beside the names of frameworks: a job file of ours."""
_WRITTEN = ", ".join((*(name for name in FIELD["framework"].words if name != ANY_FRAMEWORK), JOB))

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
_PAIRS = ("switches", "choices", "hardware")


def takes_several(field: Field) -> bool:
    """Return whether a search takes several values of a field at once."""
    return field.several or bool(field.tuned)


def complete(name: str, incomplete: str) -> list[str]:
    """Return the words that a field takes and that begin as typed; the last one of several with commas.

    >>> complete("recompute", "s"), complete("recompute", "none,f")
    (['selective'], ['none,full'])
    """
    from costmodel.describe.jobs.fields import known_words

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{word}" for word in known_words(name) if word.startswith(last)]


def _completion_of(name: str) -> Callable[[str], list[str]]:
    # typer looks at the function's parameters, so a partial will not do.
    def found(incomplete: str) -> list[str]:
        return complete(name, incomplete)

    return found


def _parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


@cache
def of_field(field: Field, several: bool = False) -> inspect.Parameter:
    """Return the flag of a field, whose value is read later; with `several`, one that may name several values."""
    many = several and takes_several(field)
    is_truth = field.kind == "truth" and not many
    default = "every sensible one" if many and field.tuned else field.shown_default
    flags = list(field.flags)
    if is_truth:
        flags = [f"{flags[0]}/--no-{flags[0].removeprefix('--')}"]
    repeats = " May be repeated." if field.kind in _PAIRS else ""
    option = typer.Option(
        None,
        *flags,
        *([field.short] if field.short else []),
        metavar=None if is_truth else "VALUES" if many else _METAVARS.get(field.kind, "TEXT"),
        help=field.help + repeats + (f"  [default: {default}]" if default else ""),
        autocompletion=_completion_of(field.name),
    )
    kind: Any = list[str] | None if field.kind in _PAIRS or many else bool | None if is_truth else str | None
    return _parameter(field.name, option, kind)


@cache
def _rows() -> dict[tuple[str, str], dict[str, str]]:
    rows = read_rows(Path(__file__).with_name("flags.csv"))
    return {(row["command"], row["name"]): row for row in rows}


def names_of(command: str) -> list[str]:
    """Return the flags and arguments of one command alone."""
    return [name for of, name in _rows() if of == command]


def flag(command: str, name: str) -> inspect.Parameter:
    """Return a flag or an argument of a command: its own row of the table, that of all commands, or a field's."""
    row = _rows().get((command, name)) or _rows().get(("", name))
    if row is None:
        return of_field(FIELD[name])
    kind, default = row["type"], row["default"]
    annotation = _TYPES[kind]
    value: Any = default
    if default == "required":
        value = ...
    elif kind.endswith("?") and not default:
        value = None
    elif annotation is bool:
        value = default == "yes"
    elif annotation in (int, float):
        value = annotation(default)
    about: dict[str, Any] = {
        "metavar": row["metavar"] or None,
        "help": row["help"].replace("{frameworks}", _WRITTEN),
        # Where the help says it in words.
        "show_default": "[default: " not in row["help"],
    }
    if not row["flags"]:
        return _parameter(name, typer.Argument(value, **about), annotation)
    number = float if kind == "number" else int
    about |= {end: number(row[key]) for key, end in (("least", "min"), ("most", "max")) if row[key]}
    if name == "help_all":
        about |= {"is_eager": True, "callback": print_whole_help}
    return _parameter(name, typer.Option(value, *row["flags"].split(), **about), annotation)
