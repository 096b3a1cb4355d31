"""One line of a table of nccl-tests: its numbers, and whether they hold together."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

NUMBER = re.compile(r"^[-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf)\S*$", re.I)

_TYPE = re.compile(
    r"u?int(?:8|32|64)?|u?char|half|float(?:16)?|double|b(?:float|f)16|fp(?:16|32)|f(?:8|p8_)(?:e4m3|e5m2)"
)
_MEASURED = ["time", "algbw", "busbw", "#wrong"]


class Row(NamedTuple):
    """A line of a table: size in bytes, times in us (nan where not printed), bandwidths in GB/s."""

    line: int
    size: float
    time_us: float
    algbw: float
    busbw: float
    in_place_us: float = math.nan
    wrong: float = 0.0
    redop: str = ""


def looks_like_row(words: Sequence[str]) -> bool:
    """Say whether a line is of a table even without its head: size, count, type."""
    return len(words) >= 3 and words[1].isdigit() and bool(_TYPE.fullmatch(words[2]))


def default_columns(count: int) -> list[str]:
    """Return the columns of a table without its head, by their number."""
    head = ["size", "count", "type", "redop", "root"]
    if count in (11, 12):
        head = head[: count - 8]
    return [*head, *_MEASURED, *([] if count == 9 else _MEASURED)]


def read_row(number: int, words: Sequence[str], columns: Sequence[str]) -> Row | str:
    """Return the numbers of a row, or what is wrong with it."""
    names = list(columns) or default_columns(len(words))
    if "time" not in names[:-2]:
        return f"the head of the table ({' '.join(names[-4:])}) has no columns time, algbw and busbw"
    if not re.fullmatch(r"[-+]?\d+", words[0]):
        return f"size: expected a whole number of bytes; got {words[0]!r}"
    if len(words) == len(names) - 1 and "redop" in names and NUMBER.match(words[names.index("redop")]):
        # Tests that reduce nothing left the column blank until 2.13.
        names = [name for name in names if name != "redop"]
    size = float(words[0])
    if size < 0:
        return f"size: expected at least 0 bytes; got {words[0]}"
    if len(words) < len(names):
        return f"ends after {len(words)} of {len(names)} columns: was the log cut off?"
    if len(words) > len(names):
        return f"has {len(words)} columns; expected {len(names)} ({' '.join(names[:6])} …)"
    first = names.index("time")
    places = {"time": first, "algbw": first + 1, "busbw": first + 2}
    if "time" in names[first + 1 :]:
        places["in-place time"] = names.index("time", first + 1)
    numbers = {}
    for name, at in places.items():
        may_be_zero = "time" not in name or size == 0
        try:
            value = numbers[name] = float(words[at])
        except ValueError:
            return f"{name}: expected a number without a unit; got {words[at]!r}"
        if not math.isfinite(value):
            return f"{name}: expected a finite number; got {words[at]}"
        if value < 0.0 or (value == 0.0 and not may_be_zero):
            return f"{name}: expected {'at least' if may_be_zero else 'more than'} 0; got {words[at]}"
    if size:
        rate, digits = size / numbers["time"] / 1e3, len(words[first].partition(".")[2])
        # What rounding of the two allows.
        allowed = 0.006 + rate * (0.01 + 0.51 * 10.0**-digits / numbers["time"])
        if abs(rate - numbers["algbw"]) > allowed:
            return f"{size:.0f} B in {words[first]} us is {rate:.4g} GB/s, but algbw says {words[first + 1]}: mixed units?"
    wrong = words[first + 3] if len(words) > first + 3 and names[first + 3] != "time" else "0"
    try:
        count = float(wrong)
    except ValueError:
        count = 0.0  # what was not checked counts as right
    redop = words[names.index("redop")] if "redop" in names else ""
    in_place = numbers.get("in-place time", math.nan)
    return Row(number, size, numbers["time"], numbers["algbw"], numbers["busbw"], in_place, count, redop)


def bus_factor(primitive: str, ranks: float) -> float:
    """Return busbw over algbw."""
    passes = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
    return passes[primitive] * (1.0 - 1.0 / ranks) if primitive in passes else 1.0
