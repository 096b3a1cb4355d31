"""What frameworks print of a step and of memory, read from ``formats.csv``; what makes the next step slow.

A row says by which words a line is known, where its numbers stand, in what unit, and which file of the framework
prints it. Rates become seconds once a job says how many tokens or samples a step has.
"""

from __future__ import annotations

import csv
import re
from importlib.resources import files
from typing import NamedTuple

_NUMBER = r"([\d.]+(?:[eE][+-]?\d+)?)"

UNITS = {
    "ms": "value * 1e-3",
    "s": "value",
    "tokens/s/GPU": "tokens_per_step / (value * gpus)",
    "samples/s": "global_batch / value",
}
"""Seconds of a step from what is printed, over terms of the job."""

BYTES = {"MiB": 2.0**20, "GiB": 2.0**30, "GB": 1e9}
"""Of the units of memory."""


class LogFormat(NamedTuple):
    """One way in which a framework prints its steps, or a peak of memory: a row of ``formats.csv``.

    Every such line has the words of `mark`, looked for before anything else. The groups of `value`, added up, are the
    value in `unit`, a key of `UNITS`, or of `BYTES` for memory. `number` finds the step in the first group that takes
    part, and in the second one the steps of the whole run; `batch` the sequences of the step; `skipped` the steps since
    the line before whose update was skipped, as after an overflow of the loss scale. Where a line has no such number
    the pattern is None.
    """

    name: str
    title: str
    mark: str
    value: re.Pattern[str]
    unit: str
    number: re.Pattern[str] | None
    batch: re.Pattern[str] | None
    skipped: re.Pattern[str] | None
    source: str


def _read(kind: str) -> tuple[LogFormat, ...]:
    """Return the rows of steps or of memory."""
    table = (files("costmodel.interop.step_log") / "formats.csv").read_text(encoding="utf-8")
    found = []
    for row in csv.DictReader(table.splitlines()):
        if row.pop("of") == kind:
            value = re.compile(row.pop("value").replace("<number>", _NUMBER))
            patterns = {
                name: re.compile(row[name]) if row[name] else None for name in ("number", "batch", "skipped")
            }
            found.append(LogFormat(**{**row, **patterns}, value=value))  # type: ignore[arg-type]
    return tuple(found)


FORMATS = _read("step")
"""In the order in which they are trusted where one log has several: those that time a whole step come first."""

MEMORY_FORMATS = _read("memory")
"""Peaks of one rank each; the largest of a log is the busiest rank's, if all ranks print."""


class LogEvent(NamedTuple):
    """Something between two steps that makes the next one slow."""

    bit: int
    name: str
    pattern: re.Pattern[str]


EVENTS = (
    LogEvent(
        1,
        "a checkpoint",
        re.compile(r"\bsav(?:ed|ing)\b.{0,60}?\bcheckpoint|\bcheckpoint.{0,40}?\bsaved\b", re.I),
    ),
    LogEvent(
        2,
        "an evaluation",
        re.compile(r"\bvalidat(?:e|ion)\b.{0,30}?(?:loss|step|iteration)|\bevaluat(?:e|ing|ion)\b", re.I),
    ),
)
SKIPPED = 4
"""Bit of a step whose update was skipped."""
