"""Tables on a terminal of any width: no number is cut, and no column is missing.

A table whose columns fit keeps its form; texts in it are wrapped. Where they do not fit, it goes on below with the
other columns; where not even two fit, each row is a record of its own, the columns under one another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import StringIO
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from costmodel.base.words import plural

if TYPE_CHECKING:
    from costmodel.base.grid import Grid

_GAPS = (3, 1)  # Cells between two columns, the tighter ones where there is no room for the others. [-]
_READABLE = 18  # Least cells of a text that is wrapped in a column. [-]
_NARROWEST = 20
_WHOLE_ROWS = 3
_SHORTER = ((6, 100), (6, 2), (2, 2))
"""Rows of a table, and tables, that are left of an answer in short: the next pair where the one before does not do. [-]"""
PIPE_WIDTH = 10_000
_PIPED = 200  # Cells of a table of texts where no terminal limits it; numbers take what they need. [-]
_NOTE_WIDTH = 120  # Cells of a line of text where no terminal limits it. [-]
COMMAND = "  costmodel "  # What a line begins with that is a command to copy
_ALARMS = r"DOES NOT FIT|does not fit|too much|no layout fits|only \d+% likely to fit|< 1% likely to fit"


def drawn(
    grids: Sequence[Grid], remarks: Sequence[str], *, width: int | None = None, styled: bool = True
) -> str:
    """Return tables and the sentences below them as text.

    `width` are the cells of a line, of a terminal if the text is to be `styled`; without one they are as many as
    numbers need. [-]
    """
    text = StringIO()
    if width is None or not styled:
        cells = PIPE_WIDTH if width is None else width
        console = Console(file=text, width=cells, force_terminal=False, color_system=None)
    else:
        console = Console(file=text, width=max(width, _NARROWEST), force_terminal=True)
    for index, grid in enumerate(grids):
        if index:
            console.print()
        _print(console, grid)
    if grids and remarks:
        console.print()
    for remark in remarks:
        is_command = remark.startswith(COMMAND)
        lines = _command_lines(remark, console.width) if is_command else [remark]
        for line in lines:
            console.print(_text(line), soft_wrap=is_command)
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def _command_lines(remark: str, width: int) -> list[str]:
    """Break a command before flags, as a shell reads it, where it is longer than a line."""
    first, *parts = re.split(r" (?=-)(?=(?:[^']*'[^']*')*[^']*$)", remark)
    lines = [first]
    for part in parts:
        if len(lines[-1]) + len(part) + 3 <= width:
            lines[-1] += f" {part}"
        else:
            lines[-1] += " \\"
            lines.append(f"    {part}")
    return lines


def drawn_short(
    grids: Sequence[Grid],
    remarks: Sequence[str],
    *,
    width: int | None = None,
    most: int | None = None,
    styled: bool = True,
) -> str:
    """Return tables and sentences as text, in at most so many lines of a terminal.

    The longest tables lose their last rows, and the last tables go; rows come back, the first table's first, while there
    is room. Tables without titles, which have the answer, and those of three rows stay whole.
    """
    text = drawn(grids, remarks, width=width, styled=styled)
    if width is None or most is None:
        return text
    counts = [len(grid.rows) if any(column.title for column in grid.columns) else 0 for grid in grids]
    left = [0 if count <= _WHOLE_ROWS else min(count, most) for count in counts]

    def drawn_with(left: Sequence[int]) -> str:
        shown = []
        for grid, count, rows in zip(grids, counts, left, strict=False):
            note = f"{grid.note} {rows} of {count} rows: --details has all".strip()
            shown.append(grid._replace(rows=grid.rows[:rows], note=note) if 0 < rows < count else grid)
        gone = len(grids) - len(left)
        more = [f"{plural(gone, 'more table')}: --details"] if gone else []
        return drawn(shown, [*remarks, *more], width=width)

    for fewest_rows, fewest_grids in _SHORTER:
        while text.count("\n") > most and (max(left) > fewest_rows or len(left) > fewest_grids):
            place = left.index(max(left))
            if left[place] > fewest_rows:
                left[place] = max(fewest_rows, int(left[place] * 0.9))
            else:
                left = left[:-1]
            text = drawn_with(left)
    for place, count in enumerate(counts[: len(left)]):
        while 0 < left[place] < count:
            longer = [*left[:place], left[place] + 1, *left[place + 1 :]]
            with_more = drawn_with(longer)
            if with_more.count("\n") > most:
                break
            left, text = longer, with_more
    return text


def _print(console: Console, grid: Grid) -> None:
    """Print one table in the form that fits."""
    if grid.title:
        title = _text(grid.title)
        title.stylize_before("bold")
        console.print(title)
    titled = any(column.title for column in grid.columns)
    gap = _gap(grid, console.width)
    if gap is None and titled and (same := _same_in_all(grid)):
        message = ", ".join(f"{grid.columns[index].title} {grid.rows[0][index]}" for index in same)
        console.print(_text(f"In every row: {message}."))
        grid = _of(grid, [index for index in range(len(grid.columns)) if index not in same])
    if parts := _parts(grid, console.width) if titled or gap else []:
        width = _PIPED if console.width == PIPE_WIDTH and _gap(grid, _PIPED) is not None else console.width
        for index, part in enumerate(parts):
            if index:
                console.print()
            table = _table(part, _gap(part, console.width) or _GAPS[1], titled, console.width)
            console.print(table, width=width)
        note_width = max(min(console.measure(table).maximum, width), _NOTE_WIDTH)
    else:
        for index, row in enumerate(grid.rows):
            if index and titled:
                console.print()
            console.print(_record(grid, row, index in grid.strong))
        note_width = console.width
        if grid.note and titled:
            console.print()
    if grid.note:
        console.print(_text(grid.note), width=min(note_width, console.width))


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


def _parts(grid: Grid, limit: int) -> list[Grid]:
    """Return a table in as few parts as fit, each with the first column; none where a column does not fit beside it."""
    parts: list[list[int]] = []
    for index in range(1, len(grid.columns)):
        if parts and _gap(_of(grid, [0, *parts[-1], index]), limit) is not None:
            parts[-1].append(index)
        else:
            parts.append([index])
    found = [_of(grid, [0, *part]) for part in parts or [[]]]
    is_record = len(found) > 1 and len(grid.rows) < 2
    return [] if is_record or any(_gap(part, limit) is None for part in found) else found


def _of(grid: Grid, kept: Sequence[int]) -> Grid:
    """Return the table of some columns."""
    return grid._replace(
        columns=[grid.columns[index] for index in kept],
        rows=[[row[index] for index in kept] for row in grid.rows],
    )


def _whole(grid: Grid, index: int) -> bool:
    """Tell whether the cells of a column are never wrapped: numbers, and what names the rows."""
    return grid.columns[index].number or (index == 0 and not grid.columns[0].title)


def _gap(grid: Grid, limit: int) -> int | None:
    """Return the cells between columns with which the table fits in `limit`, none if it cannot be read in that.

    Only where nothing else helps are words of a text folded.
    """
    words, folded = 0, 0
    for index, column in enumerate(grid.columns):
        cells = [column.title, *(row[index] for row in grid.rows)]
        longest, readable = max(map(cell_len, cells)), _readable(grid, index)
        word = max((cell_len(word) for cell in cells for word in cell.split()), default=0)
        folded += readable
        words += min(longest, max(readable, word))
    between = len(grid.columns) - 1
    for least, gap in ((words, _GAPS[0]), (words, _GAPS[1]), (folded, _GAPS[1])):
        if least + gap * between <= limit:
            return gap
    return None


def _readable(grid: Grid, index: int) -> int:
    """Return the cells with which a column can be read: all of what is never wrapped."""
    cells = (grid.columns[index].title, *(row[index] for row in grid.rows))
    longest = max(map(cell_len, cells))
    if _whole(grid, index):
        return longest
    # Names in the first column are folded behind dots alone.
    names = [cell_len(part) for cell in cells for part in re.findall(r"^ *\S*?\.|[^\s.]+\.?", cell)]
    return min(longest, max(_READABLE, *names, 0) if index == 0 else _READABLE)


def _folded_at_dots(cell: str, cells: int) -> str:
    r"""Return a text whose words of more cells go on behind a dot on the next line, as far in as the first.

    >>> _folded_at_dots("compute.mlp.fc1.backward_weight", 18)
    'compute.mlp.fc1.\nbackward_weight'
    """

    def folded(found: re.Match[str]) -> str:
        lines = [""]
        for part in re.findall(r"[^.]*\.|[^.]+$", found[0]):
            if lines[-1] and cell_len(lines[-1] + part) > cells:
                lines.append("")
            lines[-1] += part
        return f"\n{before}".join(lines)

    before = cell[: len(cell) - len(cell.lstrip())]
    return re.sub(r"\S+", lambda word: folded(word) if cell_len(word[0]) > cells else word[0], cell)


def _table(grid: Grid, gap: int, titled: bool, limit: int) -> Table:
    """Return the table, whose texts rich wraps where they are too long, names behind a dot."""
    titles = [max(map(cell_len, column.title.split()), default=0) for column in grid.columns]
    needed = [max(_readable(grid, index), title) for index, title in enumerate(titles)]
    spare = limit - sum(needed) - gap * (len(needed) - 1)
    indent = [
        max((cell_len(row[index]) - cell_len(row[index].lstrip()) for row in grid.rows), default=0)
        for index in range(len(needed))
    ]
    rows = [
        [
            cell
            if spare < 0 or index or _whole(grid, index)
            else _folded_at_dots(cell, needed[index] + spare - indent[index])
            for index, cell in enumerate(row)
        ]
        for row in grid.rows
    ]
    # Beside folded names texts of other columns have the least width.
    widest = [
        max((cell_len(line) for row in rows for line in row[index].split("\n")), default=0)
        if any(row[index] != old[index] for row, old in zip(rows, grid.rows, strict=True))
        else 0
        for index in range(len(needed))
    ]
    padding = (0, (gap - 1) // 2)
    table = Table(box=SIMPLE_HEAD, padding=padding, pad_edge=False, show_edge=False, show_header=titled)
    for index, column in enumerate(grid.columns):
        table.add_column(
            Text(column.title),
            justify="right" if column.number else "left",
            no_wrap=_whole(grid, index),
            overflow="fold",
            width=None
            if _whole(grid, index) or not any(widest)
            else max(min(widest[index], needed[index] + spare), needed[index]),
        )
    for index, row in enumerate(rows):
        table.add_row(*map(_text, row), style="bold" if index in grid.strong else None)
    return table


def _record(grid: Grid, row: Sequence[str], strong: bool) -> Group:
    """Return a row as a record: what its first column says, then the others under one another."""
    first, *others = grid.columns
    record = Table.grid(padding=(0, _GAPS[0], 0, 0))
    record.add_column(overflow="fold")
    record.add_column(overflow="fold")
    for column, cell in zip(others, row[1:], strict=True):
        if cell:
            record.add_row(Text(column.title), _text(cell), style="bold" if strong else None)
    name = Text(f"{first.title} " if first.title else "", style="dim")
    name.append(row[0].strip() or "–", style="bold not dim")
    return Group(name, Padding(record, (0, 0, 0, 2)))


def _text(message: str) -> Text:
    """Return a text in which what must not be overlooked stands out."""
    text = Text(message, overflow="fold")
    text.highlight_regex(_ALARMS, "bold red")
    text.highlight_regex(r"^(Warning|Not met):", "bold yellow")
    return text
