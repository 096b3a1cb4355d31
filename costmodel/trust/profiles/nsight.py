"""Exports of Nsight Systems: ``nsys export --type sqlite``.

References
----------
.. [1] NVIDIA, "Nsight Systems user guide: SQLite schema reference": a table an activity, created only where there
   are rows; times in nanoseconds; names as numbers into StringIds; the process in the upper bits of a global id.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from costmodel.base.errors import DataError
from costmodel.trust.profiles.activities import Range, Recorder, Recording, Work

MAGIC = b"SQLite format 3\x00"

_ACTIVITIES: tuple[tuple[str, Work, str], ...] = (
    ("CUPTI_ACTIVITY_KIND_KERNEL", "kernel", "demangledName shortName"),
    ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "kernel", "graphId"),
    ("CUPTI_ACTIVITY_KIND_MEMCPY", "memcpy", "copyKind"),
    ("CUPTI_ACTIVITY_KIND_MEMSET", "memset", ""),
)
"""Tables of what a GPU does, with the columns that name it."""
_CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
_RANGES = "NVTX_EVENTS"
_RANGE_TYPES = (59, 60)  # eventType of NVTX ranges: pushed and popped, or started and ended [1]_
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}  # CUpti_ActivityMemcpyKind


def read_nsight(path: Path) -> Recording:
    """Read an SQLite export of Nsight Systems."""
    try:
        # Read-only: sqlite3 would otherwise make a journal beside the file.
        base = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            return _read(base, path)
        finally:
            base.close()
    except (sqlite3.Error, OverflowError, TypeError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: cannot be read as an export of Nsight Systems ({error})") from None


def _read(base: sqlite3.Connection, path: Path) -> Recording:
    tables = {
        name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
    }
    if "StringIds" not in tables:
        raise DataError(f"{path}: is SQLite, but no export of Nsight Systems: it has no table StringIds")
    texts = {number: str(text) for number, text in base.execute("SELECT id, value FROM StringIds")}
    kept = Recorder()
    for table, work, naming in _ACTIVITIES:
        needed = "start end deviceId streamId correlationId"
        for start, end, device, stream, call, process, *named in _rows(
            base, path, tables, table, needed, f"globalPid {naming}"
        ):
            if work == "kernel" and len(named) == 2:
                name = texts.get(named[0]) or texts.get(named[1]) or f"kernel {named[0]}"
            elif work == "kernel":
                name = f"CUDA graph {named[0]}"
            else:
                name = "Memset" if work == "memset" else f"Memcpy {_COPY_KINDS.get(named[0], named[0])}"
            kept.add(work, name, device, _process(process), stream, start, end, _call(process, call))
    if not kept:
        raise DataError(
            f"{path}: holds nothing that ran on a GPU: record it with nsys profile --trace=cuda,nvtx"
        )
    for start, call, thread in _rows(base, path, tables, _CALLS, "start correlationId globalTid"):
        kept.call(_call(thread, call), start, thread)
    for start, end, kind, text, number in _rows(
        base, path, tables, _RANGES, "start end eventType", "text textId"
    ):
        named_range = text or texts.get(number)
        if kind in _RANGE_TYPES and end is not None and named_range:
            kept.ranges.append(Range(named_range, start, end))
    gpus = [str(name) for (name,) in _rows(base, path, tables, "TARGET_INFO_GPU", "name")]
    return kept.recording("Nsight Systems", gpus[0] if gpus else "")


def _call(process: int | None, number: int | None) -> int:
    """Tell calls of several processes apart: each numbers its own. The process is above the lowest 24 bits."""
    if number is None:
        return -1
    return _process(process) << 32 | number & 0xFFFFFFFF


def _process(number: int | None) -> int:
    return (number or 0) >> 24 & 0xFFFFFF


def _rows(
    base: sqlite3.Connection, path: Path, tables: set[str], table: str, needed: str, wanted: str = ""
) -> Iterator[tuple[Any, ...]]:
    """Yield columns of a table, if there is one; those only wanted are empty where this release does not have them."""
    if table not in tables:
        return
    there = {row[1] for row in base.execute(f"PRAGMA table_info({table})")}
    missing = [name for name in needed.split() if name not in there]
    if missing:
        raise DataError(
            f"{path}: table {table} has no column {missing[0]}; export it again with a newer nsys"
        )
    parts = [f'"{name}"' if name in there else "NULL" for name in (*needed.split(), *wanted.split())]
    # What had not ended when the recording did has no end, and no length.
    ended = ' WHERE "end" IS NOT NULL' if "end" in needed.split() else ""
    yield from base.execute(f"SELECT {', '.join(parts)} FROM {table}{ended}")
