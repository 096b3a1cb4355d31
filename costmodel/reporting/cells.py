"""Tables from records: what stands in each column or row, as text templates, of which most stand in two CSV files.

``tables.csv`` has a row a table: its columns as ``Title=form | Title >=form``, a title that ends in ``>`` being one of
numbers; of a column without a form the code says what stands in it, or leaves it out. A column with ``?=form`` is left out
where it is empty in every row. ``facts.csv`` has a row of text for
each row of the tables that say something of one record.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

from costmodel.base.csv_text import read_rows
from costmodel.base.grid import Grid, columns
from costmodel.base.units import (
    format_bytes,
    format_count,
    format_days,
    format_dollars,
    format_duration,
    format_figure,
    format_seconds,
    format_si,
)
from costmodel.base.words import chance_text, plural
from costmodel.bill.lines import CATEGORY_NAMES
from costmodel.describe.recipe import switch_text

PERCENTILES = "  p10 / p50 / p90"
"""What a row of percentiles is called, below the row that it is of."""
Form = str | Callable[[Any], str]
"""A template, the name of a figure with how it is written (``time_s:s4``), or a function of a record."""


def signed(value: float, form: Callable[[float], str]) -> str:
    """Return a difference with its sign."""
    return ("-" if value < 0 else "+") + form(abs(value))


_UNITS: Mapping[str, Callable[..., str]] = {
    "s": format_seconds,
    "+s": lambda value: signed(value, format_seconds),
    "B": format_bytes,
    **{
        unit: lambda value, digits=3, unit=unit: format_si(value, unit, digits)
        for unit in ("B/s", "FLOP", "FLOP/s")
    },
    "SI": lambda value: format_si(value, "B"),
    "size": lambda size: format_si(size, "B") if 0.0 < size < inf else "–" if size else "0 B",
    "$": format_dollars,
    "count": format_count,
    "days": format_days,
    "duration": format_duration,
    "figure": format_figure,
    "us": lambda seconds: f"{seconds * 1e6:.2g} us",
    "hours": lambda days: format_figure(24.0 * days),
    "events": lambda count: f"{count:,.0f}" if count >= 10.0 else f"{count:.2g}",
    "MWh": lambda kwh: f"{kwh / 1e3:,.0f} MWh" if kwh >= 1e5 else f"{kwh / 1e3:.3g} MWh",
    "kWh_in_MWh": lambda kwh: format_figure(kwh / 1e3),
    "tonnes": lambda tonnes: f"{tonnes:,.0f} t CO2e" if tonnes >= 100.0 else f"{tonnes:.3g} t CO2e",
    "chance": chance_text,
    "pc": lambda value: f"{value:.1f} %",
    "yes": lambda value: "yes" if value else "no",
    "category": CATEGORY_NAMES.__getitem__,
    "switch": switch_text,
    "billion": lambda value: f"{value / 1e9:,.1f} B",
}


class _Written(string.Formatter):
    """Templates over a record: paths through its attributes and items, in the units of `_UNITS` or as `format` has it."""

    def __init__(self, record: Any) -> None:
        self.record, self.is_empty = record, True

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> tuple[Any, str]:
        """Follow a path such as ``est.job`` or ``range_s[0]``; beyond what is None there is nothing."""
        first, *path = _PARTS.findall(field_name)
        if first.isdigit():
            value = args[int(first)]
        elif first == "record":
            value = self.record
        else:
            value = kwargs[first] if first in kwargs else _part_of(self.record, first)
        for part in path:
            value = None if value is None else _part_of(value, part)
        return value, first

    def format_field(self, value: Any, form: str) -> str:
        form, _, none = form.partition("|")
        if value is None or value != value:
            return none
        self.is_empty = False
        unit = form.rstrip("0123456789")
        if unit in _UNITS:
            digits = form[len(unit) :]
            number = value if unit in ("category", "switch") else float(value)
            return _UNITS[unit](number, *([int(digits)] if digits else []))
        if form.startswith("plural "):
            return plural(float(value), form.removeprefix("plural "))
        return f"{value:{form}}" if form else str(value)


_PARTS = re.compile(r"[^.\[\]]+")


def _part_of(record: Any, name: str) -> Any:
    if name.isdigit():
        return record[int(name)]
    return record[name] if isinstance(record, Mapping) else getattr(record, name)


def say(template: str, record: Any, *values: Any, **more: Any) -> str:
    """Fill in a template from the attributes or items of a record, and from what else is given.

    Fields are such as ``{time_s:s4}``: ``s`` a time, ``B`` bytes, ``B/s``, ``FLOP`` and ``FLOP/s`` with a prefix, each with
    a number of digits if not three; ``$``, ``count``, ``days``, ``duration``, ``figure``, ``chance`` and ``plural NOUN``;
    else as `format` has it. What is None or not a number is empty, or what stands behind a ``|``.

    >>> line = {"name": "fc1", "time_s": 0.0123, "share": 0.25, "size": 2**31, "left": None}
    >>> say("{name}: {time_s:s4}, {share:.1%}, {size:B}{left.to:s}, {left:$|no price}, {gpus:plural GPU}", line, gpus=1)
    'fc1: 12.30 ms, 25.0%, 2.00 GiB, no price, 1 GPU'
    """
    return _Written(record).vformat(template, values, more)


def cell(record: Any, form: str) -> str:
    """Return one figure of a record as text, such as ``step_time_s:s4``; empty where it has none."""
    return say("{" + form + "}", record)


def _reader(form: Form) -> Callable[[Any], str]:
    if callable(form):
        return form
    template = form if "{" in form else "{" + form + "}"

    def read(record: Any, **more: Any) -> str:
        """Return the text, or nothing where it would be of nothing but what is missing."""
        written = _Written(record)
        text = written.vformat(template, (), more)
        return text if "{" not in form or not written.is_empty else ""

    return read


def grid_of(
    title: str,
    records: Iterable[Any],
    cells: Mapping[str, Any],
    *,
    sums: Sequence[Sequence[str]] = (),
    strong: frozenset[int] = frozenset(),
    note: str = "",
    keys: Sequence[str] = (),
) -> Grid:
    """Return a table with a row a record, and below them rows of sums that stand out.

    >>> grid_of("Links", [{"name": "nvlink", "time_s": 2e-6}], {"Link": "name", "Time >": "time_s:s"}).rows
    [['nvlink', '2.00 us']]
    """
    shown = {title: _reader(form) for title, form in cells.items()}
    made = [{title: form(record) for title, form in shown.items()} for record in records]
    for optional in [heading for heading in shown if heading.endswith("?")]:
        nothing = {"", str(cells[optional]).partition("|")[2]}
        if all(row[optional] in nothing for row in made):
            del shown[optional]
    rows = [[row[title] for title in shown] for row in made]
    strong = strong | frozenset(range(len(rows), len(rows) + len(sums)))
    return Grid(
        title,
        columns(*(name.removesuffix("?") for name in shown)),
        [*rows, *map(list, sums)],
        strong,
        note,
        keys,
    )


@cache
def _read(name: str) -> list[dict[str, str]]:
    return read_rows(Path(__file__).with_name(name))


@cache
def _table(name: str) -> Mapping[str, str]:
    return next(row for row in _read("tables.csv") if row["table"] == name)


def cells_of(
    name: str, own: Mapping[str, Any] | None = None, without: Collection[str] = ()
) -> dict[str, Any]:
    """Return the columns of a table of ``tables.csv``; those that have no form there are `own`, or left out."""
    own = own or {}
    cells: dict[str, Any] = {}
    for column in _table(name)["columns"].split(" | "):
        title, has_form, form = column.partition("=")
        if (title in own or has_form) and title not in without:
            cells[title] = own.get(title, form)
    unknown = own.keys() - cells.keys()
    if unknown:
        raise KeyError(f"{name}: tables.csv has no column {unknown}")
    return cells


def table_of(
    name: str,
    records: Iterable[Any],
    own: Mapping[str, Any] | None = None,
    without: Collection[str] = (),
    **more: Any,
) -> Grid:
    """Return a table of ``tables.csv``; see `grid_of` for what else may be given, title and note among it."""
    known = _table(name)
    return grid_of(
        more.pop("title", known["title"]),
        records,
        cells_of(name, own, without),
        note=more.pop("note", known["note"]),
        **more,
    )


@cache
def _facts(name: str) -> list[dict[str, str]]:
    rows = [row for row in _read("facts.csv") if row["table"] == name]
    if not rows:
        raise KeyError(f"facts.csv has no table {name}")
    return rows


def facts_of(name: str, record: Any, **more: Any) -> list[tuple[str, str]]:
    """Return the rows that ``facts.csv`` has on a record: a name and a text, those left out that are empty."""
    rows = [(say(row["row"], record), say(row["text"], record, **more)) for row in _facts(name)]
    return [(title, text) for title, text in rows if text]


def facts_grid(name: str, record: Any, title: str, **more: Any) -> Grid:
    """Return a table of two columns about one record, see `facts_of`."""
    return Grid(title, columns("", ""), facts_of(name, record, **more))


def figures_from(name: str, items: Sequence[Any], own: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows that ``facts.csv`` has on several records, a column a record; `own` says what has no text there.

    A row that says nothing of any is left out; one named ``  of X`` holds the percentiles of the row above it.
    """
    forms = {row["row"]: own.get(row["row"], row["text"]) for row in _facts(name)}
    unknown = own.keys() - forms.keys()
    if unknown:
        raise KeyError(f"{name}: facts.csv has no row {unknown}")
    rows = [[title, *(_reader(form)(item) for item in items)] for title, form in forms.items() if form]
    shown = [row for row in rows if any(row[1:])]
    return [[PERCENTILES if row[0].startswith("  of ") else row[0], *row[1:]] for row in shown]


def spread_rows(spread: Mapping[str, Iterable[float]]) -> list[list[str]]:
    """Return a row a figure with its percentiles, as ``facts.csv`` has it."""
    forms = {row["row"]: row["text"] for row in _facts("percentiles")}
    rows = []
    for name, values in spread.items():
        title, form = forms[name].split(": ")
        rows.append([title, *(say(form, {}, float(value)) for value in values)])
    return rows


def dollars_of(usd: float | None) -> str:
    """Return dollars, or that there is no price."""
    return say("{0:$|no price}", {}, usd)
