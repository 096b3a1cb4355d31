"""CSV: shipped tables, and what the command line writes: full precision, ``true`` and ``false``, empty for absent numbers."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a shipped table as texts by column."""
    with path.open(encoding="utf-8", newline="") as table:
        return list(csv.DictReader(table))


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
