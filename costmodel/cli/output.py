"""Where results go: stdout or files that appear whole or not at all; talk goes to stderr."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from costmodel.base.errors import CostModelError, one_line
from costmodel.base.files import write_whole
from costmodel.cli.options import Format
from costmodel.describe.jobs.fields import FIELD

if TYPE_CHECKING:
    from costmodel.base.answer import Answer, Summary
    from costmodel.base.grid import Grid

_MOST_LINES = 25
_PATIENCE_S = 1.0
_PIPED_COLUMNS, _LEAST_COLUMNS = 100, 60
"""Of a figure that is drawn in no terminal, and of the narrowest."""


_KEYWORD = re.compile(r"(?:(?<=give )|(?<=Assumed: )|(?<=, )|(?<=… )|(?<=or )|(?<=and ))([a-z_]+)=(?=[^\s=])")


def with_flags(text: str) -> str:
    """Return a sentence that names keywords of a call with the flags that mean the same.

    >>> with_flags("Assumed: global_batch=512, seq_len=8192."), with_flags("tokens missing; give tokens=2e12")
    ('Assumed: --global-batch 512, --seq-len 8192.', 'tokens missing; give --tokens 2e12')
    """

    def flag(found: re.Match[str]) -> str:
        return f"{FIELD[found[1]].flags[0]} " if found[1] in FIELD else found[0]

    return _KEYWORD.sub(flag, text)


class Result(NamedTuple):
    """The three forms of one answer; only those that are asked for are made."""

    grids: Callable[[], Sequence[Grid]]
    record: Callable[[], Any]
    table: Callable[[], Mapping[str, Sequence[Any]]]
    remarks: Sequence[str] = ()
    """Sentences below the tables; with CSV they go to stderr."""
    json_text: Callable[[], str] | None = None
    """JSON in a form of its own instead of `record`, for files that other programs read."""
    summary: Callable[[], Summary | None] | None = None
    """The answer in twenty lines, which a terminal or a pipe gets unless details are asked for."""


def result_of(answer: Answer, **options: Any) -> Result:
    """Return the forms of an answer; `options` are those of its tables."""
    return Result(
        grids=lambda: answer.grids(**options),
        record=answer.to_dict,
        table=answer.columns,
        remarks=list(map(with_flags, answer.remarks())),
    )


def shortened(
    result: Result, answer: Answer, *commands: str, before: Sequence[str] = (), **options: Any
) -> Result:
    """Return a result that is shown in twenty lines, with sentences before them and commands to run next."""

    def summary() -> Summary | None:
        found = answer.brief(**options)
        if found is None:
            return None
        following = ["Next:", *(f"  {command}" for command in commands)] if commands else []
        return found._replace(remarks=[*before, *found.remarks, *following])

    return result._replace(summary=summary)


class Target(NamedTuple):
    """Where a result goes and in which format, decided before any work is done."""

    format: Format
    out: Path | None
    csv: Path | None
    quiet: bool
    force: bool
    details: bool = False
    is_short: bool = False
    """Whether a table in a terminal ends after `_MOST_LINES`, unless details are asked for."""

    @classmethod
    def of(
        cls,
        format: Format | None = None,
        out: str = "",
        csv: str = "",
        force: bool = False,
        quiet: bool = False,
        details: bool = False,
        endings: Sequence[str] = (),
    ) -> Target:
        """Decide format and files from the flags; `endings` are those of files besides tables."""
        path, csv_path = checked_file(out, force), checked_file(csv, force)
        known = (*_TABLES, *endings)
        if path is not None and path.suffix.lower() not in ("", *known):
            more = "; --html writes a page, --plot a figure"
            raise CostModelError(f"--out: expected a file of {', '.join(known)}, got {path}{more}")
        if path is not None and path == csv_path:
            raise CostModelError(f"--out and --csv: both name {path}")
        return cls(format or _format_of(path), path, csv_path, quiet, force, details)

    @property
    def is_read_by_programs(self) -> bool:
        """Whether the result is more than a table to read."""
        return self.format is not Format.table or self.out is not None or self.csv is not None

    def other(self, name: str) -> Target:
        """Return another file to write, in the format of its ending."""
        path = self.file(name)
        return self._replace(out=path, format=_format_of(path), csv=None)

    def file(self, name: str) -> Path | None:
        """Check another file to write; none where none is named."""
        return checked_file(name, self.force)

    def show(self, found: Answer | Result, **options: Any) -> None:
        """Print or write an answer, and its CSV where that is asked for too."""
        result = found if isinstance(found, Result) else result_of(found, **options)
        if self.csv is not None:
            self.write(self.csv, _text(result, Format.csv))
        terminal = _terminal_width() if self.out is None else None
        width = terminal or (_piped_width() if self.out is None else None)
        from costmodel.base.answer import Summary

        is_short = self.format is Format.table and self.out is None and not self.details
        short = result.summary() if is_short and result.summary is not None else None
        is_listing = type(found).__name__ == "Listing"
        if short is None and is_short and self.is_short and terminal is not None and not is_listing:
            short = Summary(result.grids(), result.remarks)
        if short is not None:
            from costmodel.base.screen import drawn_short

            most = _MOST_LINES if self.is_short and terminal is not None else None
            self.put(drawn_short(*short, width=width, most=most, styled=terminal is not None))
        else:
            self.put(_text(result, self.format, width=width, styled=terminal is not None))
        if self.format is Format.csv:
            for remark in result.remarks:
                self.note(remark)

    def put(self, text: str) -> None:
        """Print a text, or write it where a file is named."""
        if self.out is not None:
            self.write(self.out, text)
        else:
            sys.stdout.write(text)
            sys.stdout.flush()

    def write(self, path: Path, content: str | bytes) -> None:
        """Write a file whole, and say so."""
        write_whole(path, content)
        self.wrote(path)

    def wrote(self, path: Path) -> None:
        """Say that a file was written."""
        self.note(f"wrote {one_line(str(path))}")

    def note(self, text: str) -> None:
        """Say something on stderr, unless it was asked to be quiet."""
        if not self.quiet:
            print(with_flags(text), file=sys.stderr)


_TABLES = (".csv", ".json", ".txt", ".md", ".log")
"""Endings of files that hold a result: two of data, and of tables as they are printed."""


def _format_of(path: Path | None) -> Format:
    """Return the format that the ending of a file means, a table where it means none."""
    endings = {".csv": Format.csv, ".json": Format.json}
    return endings.get(path.suffix.lower(), Format.table) if path is not None else Format.table


def checked_folder(name: str, force: bool) -> Path:
    """Return the folder to write files into: a new one, or with `force` one that has files."""
    path = Path(name)
    if path.exists() and not path.is_dir():
        raise CostModelError(f"{path}: is a file, expected a folder")
    if path.is_dir() and any(path.iterdir()) and not force:
        raise CostModelError(f"{path}: has files; --force writes among them")
    if not path.absolute().parent.is_dir():
        raise CostModelError(f"{path}: there is no folder {path.parent}")
    return path


def checked_file(name: str, force: bool) -> Path | None:
    """Return the file to write, none for stdout; it may exist with `force` only, and its folder must."""
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


def _text(result: Result, format: Format, width: int | None = None, *, styled: bool = False) -> str:
    if format is Format.json:
        from costmodel.base.answer import to_json

        return (to_json(result.record()) if result.json_text is None else result.json_text()) + "\n"
    if format is Format.csv:
        from costmodel.base.csv_text import to_csv

        return to_csv(result.table())
    from costmodel.base.screen import drawn

    return drawn(result.grids(), result.remarks, width=width, styled=styled)


def _terminal_width() -> int | None:
    """Return the width of the terminal that shows the result, none where it goes elsewhere."""
    if not sys.stdout.isatty():
        return None
    from shutil import get_terminal_size

    return get_terminal_size().columns


def _piped_width() -> int | None:
    """Return the cells of a line that ``COLUMNS`` allows where no terminal shows the result."""
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) >= _LEAST_COLUMNS else None


def planned_figure(kind: str, plot: str, target: Target, figure: str = "") -> Callable[[Answer], None]:
    """Check the figure's name and file before any work is done; returns what draws it, nothing if none is asked for."""
    path, here = target.file(plot), plot == "-"
    if not plot:
        if figure:
            raise CostModelError("--figure: needs --plot, a file to draw it into or - for the terminal")
        return lambda answer: None
    if here and target.format is not Format.table:
        raise CostModelError(f"--plot -: draws below a table, not below {target.format.value}; name a file")
    if here and (columns := _terminal_width() or _PIPED_COLUMNS) < _LEAST_COLUMNS:
        raise CostModelError(
            f"--plot -: expected {_LEAST_COLUMNS} columns at least, the terminal has {columns}"
        )
    from costmodel.base.answer import Views
    from costmodel.reporting.charts import check_picture, save

    views = Views(kind)
    name = figure or views.names()[0]
    views.require(name)
    if path is not None:
        check_picture(path)

    def draw(answer: Answer) -> None:
        if here:
            from rich.console import Console

            from costmodel.reporting.terminal import terminal_text

            Console(width=columns).print(terminal_text(answer.plot.chart(name), columns))
        if path is not None:
            save(answer.plot.named(name), path)
            target.wrote(path)

    return draw


@contextmanager
def waiting(what: str, *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar on stderr once something takes longer than a second, only where a person watches."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=None)
    start = time.monotonic()
    shown = False

    def progress(done: int, total: int) -> None:
        nonlocal shown
        if not shown and time.monotonic() - start > _PATIENCE_S:
            bar.start()
            shown = True
        bar.update(task, completed=done, total=total)

    try:
        yield progress
    finally:
        if shown:
            bar.stop()


def hold(answer: Any, expected: Sequence[str]) -> None:
    """Say on stderr what is not as expected, and exit with code 3 if anything is not."""
    import typer

    import costmodel as cm

    missed = [outcome for text in expected for outcome in cm.expect(answer, text) if not outcome.holds]
    for outcome in missed:
        typer.echo(f"Not met: {outcome.sentence}.", err=True)
    if missed:
        raise typer.Exit(3)
