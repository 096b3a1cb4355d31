"""Where results go: stdout or files that appear whole or not at all; talk goes to stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from costmodel.base.errors import CostModelError, one_line
from costmodel.base.files import write_whole
from costmodel.cli.options import Format

if TYPE_CHECKING:
    from costmodel.base.answer import Answer
    from costmodel.base.grid import Grid


class Result(NamedTuple):
    """The three faces of one answer; only those that are asked for are made."""

    grids: Callable[[], Sequence[Grid]]
    record: Callable[[], Any]
    table: Callable[[], Mapping[str, Sequence[Any]]]
    remarks: Sequence[str] = ()
    """Sentences below the tables; with CSV they go to stderr."""
    json_text: Callable[[], str] | None = None
    """JSON in a form of its own instead of `record`, for files that other programs read."""


def answer_result(answer: Answer, **options: Any) -> Result:
    """Return the faces of an answer; `options` are those of its tables."""
    return Result(
        grids=lambda: answer.grids(**options),
        record=answer.to_dict,
        table=answer.columns,
        remarks=answer.remarks(),
    )


class Target(NamedTuple):
    """Where to write, and in which format."""

    format: Format
    out: Path | None
    csv: Path | None
    quiet: bool


def plan_output(
    format: Format | None,
    out: str,
    csv: str = "",
    *,
    force: bool = False,
    quiet: bool = False,
) -> Target:
    """Decide format and files before any work is done, and refuse files that exist.

    Raises
    ------
    CostModelError
        If a file exists without `force`, its folder does not, or both files are the same.
    """
    path, csv_path = _file(out, force), _file(csv, force)
    if path is not None and path == csv_path:
        raise CostModelError(f"--out and --csv: both name {path}")
    endings = {".csv": Format.csv, ".json": Format.json}
    if format is None:
        format = endings.get(path.suffix.lower(), Format.table) if path is not None else Format.table
    return Target(format, path, csv_path, quiet)


def _file(name: str, force: bool) -> Path | None:
    """Return the file to write, none for stdout."""
    if name in ("", "-"):
        return None
    path = Path(name)
    if path.is_dir():
        raise CostModelError(f"{path}: is a folder, expected a file name")
    if path.exists() and not path.is_file():
        raise CostModelError(f"{path}: is not a regular file; use - for stdout")
    if path.exists() and not force:
        raise CostModelError(f"{path}: exists; --force replaces it")
    if not path.parent.is_dir():
        raise CostModelError(f"{path}: there is no folder '{path.parent}'")
    return path


def show(result: Result, target: Target) -> None:
    """Print or write a result, and its CSV where that is asked for too."""
    if target.csv is not None:
        write_file(target.csv, _text(result, Format.csv), target)
    text = _text(result, target.format, to_terminal=target.out is None)
    if target.out is not None:
        write_file(target.out, text, target)
    else:
        sys.stdout.write(text)
        sys.stdout.flush()
    if target.format is Format.csv and not target.quiet:
        for remark in result.remarks:
            print(remark, file=sys.stderr)


def hold(answer: Any, expected: Sequence[str]) -> None:
    """Say on stderr what is not as expected, and exit with code 3 if anything is not.

    Raises
    ------
    CostModelError
        If an expectation cannot be read.
    Exit
        If one does not hold.
    """
    import typer

    import costmodel as cm

    missed = [outcome for text in expected for outcome in cm.expect(answer, text) if not outcome.holds]
    for outcome in missed:
        typer.echo(f"Not met: {outcome.sentence}.", err=True)
    if missed:
        raise typer.Exit(3)


def _text(result: Result, format: Format, *, to_terminal: bool = False) -> str:
    """Return a result as text."""
    if format is Format.json and result.json_text is not None:
        return result.json_text() + "\n"
    if format is Format.json:
        from costmodel.base.answer import to_json

        return to_json(result.record()) + "\n"
    if format is Format.csv:
        from costmodel.base.csv_text import to_csv

        return to_csv(result.table())
    from costmodel.base.screen import drawn

    return drawn(result.grids(), result.remarks, width=_terminal_width() if to_terminal else None)


def _terminal_width() -> int | None:
    """Return the width of the terminal that shows the result, none where it goes elsewhere."""
    if not sys.stdout.isatty():
        return None
    from shutil import get_terminal_size

    return get_terminal_size().columns


def write_file(path: Path, content: str | bytes, target: Target) -> None:
    """Write a file whole, and say so.

    Raises
    ------
    CostModelError
        If the file cannot be written.
    """
    write_whole(path, content)
    if not target.quiet:
        print(f"wrote {one_line(str(path))}", file=sys.stderr)
