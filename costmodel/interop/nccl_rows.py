"""One line of a table of nccl-tests: its numbers, and whether they hold together."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

NUMBER = re.compile(r"^[-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf)\S*$", re.I)

_TYPES = {
    "int8",
    "uint8",
    "char",
    "int32",
    "int",
    "uint32",
    "int64",
    "uint64",
    "half",
    "float16",
    "float",
    "double",
    "bfloat16",
    "bf16",
    "fp16",
    "fp32",
    "f8e4m3",
    "f8e5m2",
    "fp8_e4m3",
    "fp8_e5m2",
}


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
    return len(words) >= 3 and words[1].isdigit() and words[2] in _TYPES


def read_row(number: int, words: Sequence[str], columns: Sequence[str]) -> Row | str:
    """Return the numbers of a row, or what is wrong with it."""
    names = list(columns) or default_columns(len(words))
    if "time" not in names[:-2]:
        return f"the head of the table ({' '.join(names[-4:])}) has no columns time, algbw and busbw"
    if not re.fullmatch(r"[-+]?\d+", words[0]):
        return f"size: expected a whole number of bytes; got {words[0]!r}"
    if len(words) == len(names) - 1 and "redop" in names and not _is_word(words[names.index("redop")]):
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
        numbers[name], problem = _number(name, words[at], may_be_zero="time" not in name or size == 0)
        if problem:
            return problem
    problem = _rate_problem(size, words[first], numbers["algbw"], words[first + 1])
    if problem:
        return problem
    wrong = words[first + 3] if len(words) > first + 3 and names[first + 3] != "time" else "0"
    return Row(
        number,
        size,
        numbers["time"],
        numbers["algbw"],
        numbers["busbw"],
        numbers.get("in-place time", math.nan),
        _count(wrong),
        words[names.index("redop")] if "redop" in names else "",
    )


def _is_word(text: str) -> bool:
    """Whether a cell names a reduction instead of being a number or a root."""
    return not NUMBER.match(text)


def _number(name: str, text: str, *, may_be_zero: bool) -> tuple[float, str]:
    """Return a number and what is wrong with it."""
    try:
        value = float(text)
    except ValueError:
        return 0.0, f"{name}: expected a number without a unit; got {text!r}"
    if not math.isfinite(value):
        return 0.0, f"{name}: expected a finite number; got {text}"
    if value < 0.0 or (value == 0.0 and not may_be_zero):
        return 0.0, f"{name}: expected {'at least' if may_be_zero else 'more than'} 0; got {text}"
    return value, ""


def _rate_problem(size: float, time_text: str, algbw: float, algbw_text: str) -> str:
    """Say if size over time is not the bandwidth beside it, within what rounding allows."""
    if size == 0:
        return ""
    time_us = float(time_text)
    rate = size / time_us / 1e3
    digits = len(time_text.partition(".")[2])
    if abs(rate - algbw) <= 0.006 + rate * (0.01 + 0.51 * 10.0**-digits / time_us):
        return ""
    return f"{size:.0f} B in {time_text} us is {rate:.4g} GB/s, but algbw says {algbw_text}: mixed units?"


def _count(text: str) -> float:
    """Read #wrong; what was not checked counts as right."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def default_columns(count: int) -> list[str]:
    """Return the columns of a table without its head, by their number."""
    measured = ["time", "algbw", "busbw", "#wrong"]
    heads = {
        13: ["size", "count", "type", "redop", "root"],
        12: ["size", "count", "type", "redop"],
        11: ["size", "count", "type"],
        9: ["size", "count", "type", "redop", "root"],
    }
    if count in (11, 12, 13):
        return [*heads[count], *measured, *measured]
    return [*heads[9], *measured] if count == 9 else [*heads[13], *measured, *measured]


def bus_factor(primitive: str, ranks: float) -> float:
    """Return busbw over algbw."""
    if primitive == "all_reduce":
        return 2.0 * (ranks - 1.0) / ranks
    return (ranks - 1.0) / ranks if primitive in ("all_gather", "reduce_scatter", "all_to_all") else 1.0


def ranks_by_ratio(primitive: str, rows: Sequence[Row]) -> int | None:
    """Return the number of ranks that the largest bandwidths tell, none if they do not."""
    best = max(rows, key=lambda row: row.algbw)
    algbw, busbw = best.algbw, best.busbw
    passes = 2.0 if primitive == "all_reduce" else 1.0
    if primitive in ("broadcast", "reduce", "send_recv") or algbw < 1.0:
        return None
    gap = passes - busbw / algbw
    if gap <= 0:
        return None
    ranks = passes / gap
    doubt = ranks * ranks * 0.006 / algbw / passes
    return round(ranks) if doubt < 0.3 and abs(ranks - round(ranks)) < 0.3 and ranks > 1.5 else None


def guess_primitive(rows: Sequence[Row], ranks: int) -> str:
    """Tell the collective by its ratio of bandwidths and its reduction, empty if two are possible."""
    best = max(rows, key=lambda row: row.algbw)
    if best.algbw < 1.0:
        return ""
    ratio = best.busbw / best.algbw
    reduces = best.redop not in ("", "none")
    if reduces and ratio > 1.02:
        return "all_reduce"
    if reduces and ratio < 0.995 and ranks != 2:
        return "reduce_scatter"
    return ""
