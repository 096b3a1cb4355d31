"""Options that mean the same in every command that takes them."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from costmodel.cli.completion import completion_of
from costmodel.describe.jobs.field import Field
from costmodel.describe.jobs.fields import FIELD


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
    "bytes": "SIZE",
    "rate": "RATE",
    "time": "TIME",
    "share": "SHARE",
}


def takes_several(field: Field) -> bool:
    """Return whether a search takes several values of a field at once."""
    return field.several or bool(field.turned)


def option(name: str, *, several: bool = False) -> Any:
    """Return the flag of a field in the table; with `several`, one that may name several values."""
    field = FIELD[name]
    many = several and takes_several(field)
    default = "every sensible one" if many and field.turned else field.default_said
    flags = list(field.flags)
    if field.kind == "truth" and not many:
        flags = [f"{flags[0]}/--no-{flags[0].removeprefix('--')}"]
    return typer.Option(
        *flags,
        *([field.short] if field.short else []),
        metavar=None
        if field.kind == "truth" and not many
        else "VALUES"
        if many
        else _METAVARS.get(field.kind, "TEXT"),
        help=field.help
        + (" May be repeated." if field.kind in ("switches", "choices") else "")
        + (f"  [default: {default}]" if default else ""),
        autocompletion=completion_of(name),
    )


JobFilesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="A.yaml B.yaml …", help="Job files, flags on top of each.", show_default=False),
]
FormatOption = Annotated[
    Format | None,
    typer.Option("--format", help="How to print the result; default: by the ending of --out, or table."),
]
OutOption = Annotated[
    str, typer.Option("--out", metavar="FILE", help="Write the result here instead of printing it; - prints.")
]
CsvOption = Annotated[str, typer.Option("--csv", metavar="FILE", help="Write the CSV here as well.")]
PlotOption = Annotated[
    str, typer.Option("--plot", metavar="FILE", help="Draw a figure into this picture: .svg, .png or .pdf.")
]
ExpectOption = Annotated[
    list[str] | None,
    typer.Option(
        "--expect",
        metavar="WHAT",
        help="Exit with code 3 unless all holds, such as 'step_time < 7 s, mfu > 0.4, memory < 75 GiB'.",
    ),
]
StartOption = Annotated[
    str, typer.Option("--start", metavar="DATE", help="Say when it is done if it starts then.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing on stderr but errors.")]
SamplesOption = Annotated[
    int,
    typer.Option(
        "--samples",
        metavar="N",
        min=0,
        help="Price the job again at N samples of everything uncertain, such as 200: p10 to p90, and what makes the "
        "width; columns of their own.  [default: 0, the band of comparable runs]",
        show_default=False,
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Seed of the samples.")]
ProfilesOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--profiles", metavar="DIR", help="Folder with your own hardware profiles; may be repeated."
    ),
]

JobArgument = Annotated[
    str, typer.Argument(metavar="JOB.yaml", help="Job file; flags go on top of it.", show_default=False)
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="KIND", help="What kind of file the job file is; default: its content tells."
    ),
]
VocabSizeOption = Annotated[
    int | None,
    typer.Option("--vocab-size", min=1, help="Tokens of the vocabulary, where only a tokenizer would say."),
]
EnvOption = Annotated[
    list[str] | None,
    typer.Option(
        "--env", metavar="NAME=VALUE", help="Variable that a launch script finds set; may be repeated."
    ),
]
ClusterOption = Annotated[str | None, option("cluster")]
PrecisionOption = Annotated[str | None, option("precision")]
SetOption = Annotated[list[str] | None, option("switches")]
StragglersOption = Annotated[
    bool | None,
    typer.Option(
        "--stragglers/--no-stragglers",
        help="Let every step wait for its slowest rank (see the straggler_* switches).  [default: the recipe's]",
    ),
]
