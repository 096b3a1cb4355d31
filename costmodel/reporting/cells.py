"""One table from records: what stands in each column, said once beside its title."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_bytes, format_seconds, format_si


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

    Parameters
    ----------
    title, note, strong, keys
        Of the table; see `Grid`.
    records : iterable
        What the rows are about: objects, or mappings.
    cells : mapping
        By the title of a column (see `columns`), a function of a record, or what `cell` reads.
    sums : sequence of sequence of str
        Rows of texts.

    Examples
    --------
    >>> grid_of("Links", [{"name": "nvlink", "time_s": 2e-6}], {"Link": "name", "Time >": "time_s:s"}).rows
    [['nvlink', '2.00 us']]
    """
    forms = [form if callable(form) else _reader(form) for form in cells.values()]
    rows = [[form(record) for form in forms] for record in records]
    strong = strong | frozenset(range(len(rows), len(rows) + len(sums)))
    return Grid(title, columns(*cells), [*rows, *map(list, sums)], strong, note, keys)


def cell(record: Any, form: str) -> str:
    """Return a figure of a record as text, empty where it has none.

    Parameters
    ----------
    record : object or mapping
        What has the figure.
    form : str
        Its name, a colon, and how it is written: ``s`` as a time, ``B`` in bytes, ``B/s``, ``FLOP`` and ``FLOP/s`` with
        a prefix, each with a number of digits if not three (``s4``), or as `format` has it (``.1%``).

    Examples
    --------
    >>> line = {"name": "fc1", "time_s": 0.0123, "share": 0.25, "size": 2**31, "left": None}
    >>> [cell(line, form) for form in ("name", "time_s:s4", "share:.1%", "size:B", "left:s")]
    ['fc1', '12.30 ms', '25.0%', '2.00 GiB', '']
    """
    return _reader(form)(record)


_UNITS: Mapping[str, Callable[..., str]] = {
    "s": format_seconds,
    "B": format_bytes,
    **{
        unit: lambda value, digits=3, unit=unit: format_si(value, unit, digits)
        for unit in ("B/s", "FLOP", "FLOP/s")
    },
}


def _reader(form: str) -> Callable[[Any], str]:
    name, _, spec = form.partition(":")
    unit, digits = spec.rstrip("0123456789"), spec[len(spec.rstrip("0123456789")) :]

    def read(record: Any) -> str:
        value = record[name] if isinstance(record, Mapping) else attrgetter(name)(record)
        if value is None:
            return ""
        if spec == "$":
            return f"${value:,.0f}"
        if unit in _UNITS:
            return _UNITS[unit](float(value), *([int(digits)] if digits else []))
        return f"{value:{spec}}" if spec else str(value)

    return read


def figures_of(items: Sequence[Any], figures: Mapping[str, Any]) -> list[list[str]]:
    """Return rows of figures, a column an item: by its name, what `cell` reads or a function of an item.

    >>> figures_of([{"days": 3.25}, {"days": 7.0}], {"days": "days:,.1f"})
    [['days', '3.2', '7.0']]
    """
    forms = {name: form if callable(form) else _reader(form) for name, form in figures.items()}
    return [[name, *(form(item) for item in items)] for name, form in forms.items()]
