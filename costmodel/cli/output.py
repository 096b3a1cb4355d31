"""Where results go: stdout or files that appear whole or not at all; talk goes to stderr."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from costmodel.base.errors import CostModelError
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
        write_whole(target.csv, _text(result, Format.csv), target)
    text = _text(result, target.format, to_terminal=target.out is None)
    if target.out is not None:
        write_whole(target.out, text, target)
    else:
        sys.stdout.write(text)
        sys.stdout.flush()
    if target.format is Format.csv and not target.quiet:
        for remark in result.remarks:
            print(remark, file=sys.stderr)


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
    return _tables(result, to_terminal and sys.stdout.isatty())


def _tables(result: Result, terminal: bool) -> str:
    """Draw the tables: as wide as they need unless a terminal shows them, so that no cell is cut."""
    from io import StringIO

    from rich.console import Console
    from rich.text import Text

    from costmodel.base.grid import rich_table

    text = StringIO()
    if terminal:
        console = Console(file=text, force_terminal=True)
    else:
        console = Console(file=text, width=1000, height=1000, force_terminal=False, color_system=None)
    for index, grid in enumerate(result.grids()):
        if index:
            console.print()
        console.print(rich_table(grid))
    if result.remarks:
        console.print()
    for remark in result.remarks:
        console.print(Text(remark))
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def write_whole(path: Path, text: str, target: Target) -> None:
    """Write a file so that it appears complete or not at all.

    Raises
    ------
    CostModelError
        If the file cannot be written.
    """
    real = path.resolve()
    try:
        handle, name = tempfile.mkstemp(prefix=f".{real.name}.", dir=real.parent)
    except OSError as error:
        raise CostModelError(f"{path}: cannot be written ({error.strerror})") from None
    part = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        # mkstemp makes private files; a result is as public as the user's other files.
        mask = os.umask(0)
        os.umask(mask)
        part.chmod(0o666 & ~mask)
        part.replace(real)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise CostModelError(f"{path}: cannot be written ({error.strerror})") from None
    if not target.quiet:
        print(f"wrote {path}", file=sys.stderr)
