"""Tables on a terminal of any width: no number is cut, and no column is missing.

A table whose columns fit keeps its form; texts in it are wrapped. Where they do not fit, each row is a record of
its own, the columns under one another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Literal

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from costmodel.base.grid import Grid

_GAPS = (3, 1)
"""Cells between two columns, the tighter ones where there is no room for the others. [-]"""

_READABLE = 18
"""Least cells of a text that is wrapped in a column. [-]"""
_VALUE = 24
"""Least cells of a value beside its name; where there are fewer it stands below. [-]"""
_NARROWEST = 20
PIPE_WIDTH = 10_000
_NOTE_WIDTH = 120
"""Cells of a line of text where no terminal limits it. [-]"""
_ALARMS = r"does not fit|too much|no layout fits"


def drawn(grids: Sequence[Grid], remarks: Sequence[str], *, width: int | None = None) -> str:
    """Return tables and the sentences below them as text.

    Parameters
    ----------
    grids : sequence of Grid
        The tables.
    remarks : sequence of str
        The sentences.
    width : int, optional
        Cells of a line of the terminal, in which the text is styled; without one tables are as wide as they need. [-]
    """
    text = StringIO()
    if width is None:
        console = Console(file=text, width=PIPE_WIDTH, force_terminal=False, color_system=None)
    else:
        console = Console(file=text, width=max(width, _NARROWEST), force_terminal=True)
    for index, grid in enumerate(grids):
        if index:
            console.print()
        _print(console, grid)
    if remarks:
        console.print()
    for remark in remarks:
        console.print(_text(remark))
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def _print(console: Console, grid: Grid) -> None:
    """Print one table in the form that fits."""
    if grid.title:
        console.print(Text(grid.title, style="bold"))
    limit = console.width
    gap, widths = fitted(grid, limit, whole=True)
    if widths is None and (same := _same_in_all(grid)):
        said = ", ".join(f"{grid.columns[index].title} {grid.rows[0][index]}" for index in same)
        console.print(_text(f"In every row: {said}."))
        grid = _without(grid, same)
    if widths is None:
        gap, widths = fitted(grid, limit)
    if widths is not None:
        console.print(_table(grid, widths, gap))
        limit = max(sum(widths) + gap * (len(widths) - 1), _NOTE_WIDTH)
    elif not any(column.title for column in grid.columns):
        for name, value in (row for row in grid.rows):
            console.print(Text(name, style="bold"))
            console.print(Padding(_text(value), (0, 0, 0, 2)))
    else:
        for line in _records(grid, console.width):
            console.print(line)
        if grid.note:
            console.print()
    if grid.note:
        console.print(_text(grid.note), width=min(limit, console.width))


def _same_in_all(grid: Grid) -> list[int]:
    """Return the columns that say the same in every row, which can be said once; one column always stays."""
    if len(grid.rows) < 2:
        return []
    same = [
        index
        for index, column in enumerate(grid.columns)
        if column.title and len({row[index] for row in grid.rows}) == 1 and grid.rows[0][index]
    ]
    return same if len(same) < len(grid.columns) else same[1:]


def _without(grid: Grid, gone: Sequence[int]) -> Grid:
    """Return the table without some columns."""
    kept = [index for index in range(len(grid.columns)) if index not in gone]
    return grid._replace(
        columns=[grid.columns[index] for index in kept],
        rows=[[row[index] for index in kept] for row in grid.rows],
    )


def fitted(grid: Grid, limit: int, *, whole: bool = False) -> tuple[int, list[int] | None]:
    """Return the gap between columns and their widths in a table of at most `limit`, no widths where none fits.

    Long names are broken only where all else does not help, and not at all if they are to stay `whole`.
    """
    tries = [(gap, True) for gap in _GAPS] + ([] if whole else [(_GAPS[-1], False)])
    for gap, names in tries:
        if (widths := column_widths(grid, limit, gap, whole=names)) is not None:
            return gap, widths
    return _GAPS[0], None


def column_widths(grid: Grid, limit: int, gap: int, *, whole: bool) -> list[int] | None:
    """Return the cells of each column in a table of at most `limit`, none where it cannot be read in that.

    Numbers are never wrapped, texts between words where they are longer than what can be read; the
    longest are wrapped first.
    """
    widths, least = [], []
    for index, column in enumerate(grid.columns):
        cells = [column.title, *(row[index] for row in grid.rows)]
        longest = max(map(cell_len, cells))
        words = max((cell_len(word) for cell in cells for word in _kept(cell, whole)), default=0)
        plain = column.number or (not column.title and index == 0)
        widths.append(longest)
        least.append(longest if plain else min(longest, max(words, _READABLE)))
    room = limit - gap * (len(widths) - 1)
    if sum(least) > room:
        return None
    while (over := sum(widths) - room) > 0:
        # What is longest gives first, down to the next longest.
        free = [i for i in range(len(widths)) if widths[i] > least[i]]
        most = max(widths[i] for i in free)
        top = [i for i in free if widths[i] == most]
        below = max((max(widths[i], least[top[0]]) for i in free if widths[i] < most), default=0)
        floor = max(below, *(least[i] for i in top)) if len(top) == 1 else max(least[i] for i in top)
        step = max(min(most - floor, -(-over // len(top))), 1)
        for i in top:
            taken = min(step, widths[i] - least[i], sum(widths) - room)
            widths[i] -= max(taken, 0)
    return widths


def _kept(cell: str, whole: bool) -> list[str]:
    """Return what of a text is kept in one piece: words, or the pieces of words."""
    indent = len(cell) - len(cell.lstrip())
    words = cell.split()
    if not whole or not words:
        return _pieces(cell)
    return [" " * indent + words[0], *words[1:]]


def _pieces(cell: str) -> list[str]:
    """Return what of a text is kept in one piece: words with the blanks before them, long names up to a mark.

    >>> _pieces("  tp.all_gather 8 GPUs")
    ['  tp.', 'all_', 'gather', ' 8', ' GPUs']
    """
    return _PIECE.findall(cell)


_PIECE = re.compile(r"\s*(?:[^\s._/]+[._/]+(?=[A-Za-z])|\S+?(?=\s|$|(?<=[A-Za-z][._/])[A-Za-z]))")


def _broken(cell: str, width: int) -> str:
    r"""Return a text in lines of at most so many cells, broken between its pieces.

    >>> _broken("  attention.all_gather.forward", 22)
    '  attention.all_\n  gather.forward'
    """
    if cell_len(cell) <= width:
        return cell
    indent = " " * (len(cell) - len(cell.lstrip()))
    lines = [""]
    for piece in _pieces(cell):
        if lines[-1] and cell_len(lines[-1] + piece) > width:
            lines.append(indent + piece.lstrip())
        else:
            lines[-1] += piece
    return "\n".join(lines)


def _table(grid: Grid, widths: Sequence[int], gap: int) -> Table:
    """Return the table with columns of these widths."""
    table = Table(
        box=SIMPLE_HEAD,
        padding=(0, (gap - 1) // 2),
        pad_edge=False,
        show_edge=False,
        show_header=any(column.title for column in grid.columns),
    )
    for column, width in zip(grid.columns, widths, strict=True):
        side: Literal["left", "right"] = "right" if column.number else "left"
        table.add_column(
            Text(column.title), justify=side, width=width, no_wrap=column.number, overflow="fold"
        )
    for index, row in enumerate(grid.rows):
        cells = [_broken(cell, width) for cell, width in zip(row, widths, strict=True)]
        table.add_row(*map(_text, cells), style="bold" if index in grid.strong else None)
    return table


def _records(grid: Grid, limit: int) -> Iterator[Text | Padding | Table]:
    """Yield each row as a record: what its first column says, then the others under one another."""
    first, *others = grid.columns
    names = max((cell_len(column.title) for column in others), default=0)
    beside = limit - 2 - names - _GAPS[0] >= _VALUE
    for index, row in enumerate(grid.rows):
        if index:
            yield Text("")
        yield Text(f"{first.title} ", style="dim").append(row[0].strip() or "–", style="bold not dim")
        for column, cell in zip(others, row[1:], strict=True):
            if not cell:
                continue
            if beside:
                line = Table.grid(padding=(0, _GAPS[0], 0, 0))
                line.add_column(width=names)
                line.add_column(overflow="fold")
                line.add_row(
                    Text(column.title),
                    _text(_broken(cell, limit - 2 - names - _GAPS[0])),
                    style="bold" if index in grid.strong else None,
                )
                yield Padding(line, (0, 0, 0, 2))
            elif cell_len(column.title) + 2 + cell_len(cell) + 2 <= limit:
                yield Padding(Text(f"{column.title}: ").append_text(_text(cell)), (0, 0, 0, 2))
            else:
                yield Padding(Text(f"{column.title}:"), (0, 0, 0, 2))
                yield Padding(_text(_broken(cell, limit - 4)), (0, 0, 0, 4))


def _text(said: str) -> Text:
    """Return a text in which what must not be overlooked stands out."""
    text = Text(said, overflow="fold")
    text.highlight_regex(_ALARMS, "bold red")
    text.highlight_regex(r"^(Warning|Not met):", "bold yellow")
    return text
