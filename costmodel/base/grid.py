"""A table before it is drawn: titles and texts, shown in a terminal or as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from costmodel.base.words import DEVICE, with_device_name


class Column(NamedTuple):
    """Title of a column, and whether its texts are numbers (aligned right)."""

    title: str
    number: bool = False


class Grid(NamedTuple):
    """A table of texts."""

    title: str  # What the table shows
    columns: Sequence[Column]  # Left to right
    rows: Sequence[Sequence[str]]  # A text a column
    strong: frozenset[int] = frozenset()  # Numbers of the rows that are sums
    note: str = ""  # A sentence below
    keys: Sequence[str] = ()
    """What each row is called where it can be opened, empty for a row that cannot; none if no row can."""


def columns(*titles: str) -> tuple[Column, ...]:
    """Make columns; a title that ends in ``>`` is one of numbers."""
    return tuple(Column(title.removesuffix(">").strip(), title.endswith(">")) for title in titles)


def grid_called(grid: Grid, device: str) -> Grid:
    """Return a table about GPUs in the word of other hardware; see `costmodel.base.words.called`."""
    if device == DEVICE:
        return grid
    return grid._replace(
        title=with_device_name(grid.title, device),
        columns=[column._replace(title=with_device_name(column.title, device)) for column in grid.columns],
        rows=[[with_device_name(cell, device) for cell in row] for row in grid.rows],
        note=with_device_name(grid.note, device),
    )


def html_table(grid: Grid) -> str:
    """Return the grid as an HTML table, every text escaped."""
    sides = ["right" if column.number else "left" for column in grid.columns]
    head = "".join(
        f'<th style="text-align:{side}">{escape(column.title)}</th>' if column.title else "<td></td>"
        for column, side in zip(grid.columns, sides, strict=True)
    )
    body = []
    for index, row in enumerate(grid.rows):
        weight = ";font-weight:bold" if index in grid.strong else ""
        cells = "".join(
            f'<td style="text-align:{side}{weight}">{escape(cell)}</td>'
            for cell, side in zip(row, sides, strict=True)
        )
        body.append(f"<tr>{cells}</tr>")
    header = f"<thead><tr>{head}</tr></thead>" if any(column.title for column in grid.columns) else ""
    note = f"<p><small>{escape(grid.note)}</small></p>" if grid.note else ""
    caption = f'<caption style="text-align:left;font-weight:bold">{escape(grid.title)}</caption>'
    return f"<table>{caption}{header}<tbody>{''.join(body)}</tbody></table>{note}"
