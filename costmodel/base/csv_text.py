"""CSV: shipped tables, and what the command line writes: full precision, ``true`` and ``false``, empty for absent numbers."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
_WORDS = {"yes": True, "true": True, "no": False, "false": False, "": False}
_READ: Mapping[str, Callable[[str], Any]] = {
    "bool": _WORDS.__getitem__,
    "int": int,
    "float": float,
    "float | None": lambda text: float(text) if text else None,
    "tuple[str, ...]": lambda text: tuple(text.split()),
}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a shipped table as texts by column."""
    with path.open(encoding="utf-8", newline="") as table:
        return list(csv.DictReader(table))


def read_records(path: Path, kind: type[T], **made: Callable[[dict[str, Any]], Any]) -> dict[str, T]:
    """Return the rows of a shipped table as records by their first column, each cell as its field is annotated.

    `made` are fields that follow from a row otherwise; columns that are no fields are notes for people.
    """
    hints = {name: getattr(hint, "__forward_arg__", hint) for name, hint in kind.__annotations__.items()}
    readers = {name: _READ.get(getattr(hint, "__name__", str(hint)), str) for name, hint in hints.items()}
    found = {}
    for row in read_rows(path):
        cells = {name: read(row[name]) for name, read in readers.items() if name in row and name not in made}
        found[next(iter(row.values()))] = kind(**cells, **{name: make(row) for name, make in made.items()})
    return found


def to_csv(table: Mapping[str, Sequence[Any]]) -> str:
    """Return columns of equal length as CSV with one header row."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows([_cell(value) for value in row] for row in zip(*table.values(), strict=True))
    return text.getvalue()


def _cell(value: Any) -> str:
    """Return one value; `repr` of a float is its shortest text that reads back equal."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)
