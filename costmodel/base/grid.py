"""A table before it is drawn: titles and texts, shown by rich in a terminal or as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from rich.table import Table


class Column(NamedTuple):
    """Title of a column, and whether its texts are numbers (aligned right)."""

    title: str
    number: bool = False


class Grid(NamedTuple):
    """A table of texts.

    Attributes
    ----------
    title : str
        What the table shows.
    columns : sequence of Column
        Left to right.
    rows : sequence of sequence of str
        A text a column.
    strong : frozenset of int
        Numbers of the rows that are sums.
    note : str
        A sentence below.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    strong: frozenset[int] = frozenset()
    note: str = ""


def columns(*titles: str) -> tuple[Column, ...]:
    """Make columns; a title that ends in ``>`` is one of numbers.

    >>> columns("Line", "Time >")
    (Column(title='Line', number=False), Column(title='Time', number=True))
    """
    return tuple(Column(title.removesuffix(">").strip(), title.endswith(">")) for title in titles)


def rich_table(grid: Grid) -> Table:
    """Return the grid for a rich console; cells are never cut."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(grid.title, style="bold"),
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        caption=Text(grid.note) if grid.note else None,
        caption_justify="left",
        show_edge=False,
        show_header=any(column.title for column in grid.columns),
    )
    for column in grid.columns:
        side: Literal["left", "right"] = "right" if column.number else "left"
        table.add_column(Text(column.title), justify=side, no_wrap=column.number, overflow="fold")
    for index, row in enumerate(grid.rows):
        table.add_row(*(Text(cell) for cell in row), style="bold" if index in grid.strong else None)
    return table


def html_table(grid: Grid) -> str:
    """Return the grid as an HTML table, every text escaped."""
    sides = ["right" if column.number else "left" for column in grid.columns]
    head = "".join(
        f'<th style="text-align:{side}">{escape(column.title)}</th>'
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
