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
from costmodel.trust.profiles.activities import Calls, Columns, Devices, Range, Recording, Work

MAGIC = b"SQLite format 3\x00"

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_ENGINES: dict[str, Work] = {"CUPTI_ACTIVITY_KIND_MEMCPY": "memcpy", "CUPTI_ACTIVITY_KIND_MEMSET": "memset"}
_CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
_RANGES = "NVTX_EVENTS"
_RANGE_TYPES = (59, 60)
"""eventType of NVTX ranges: pushed and popped, or started and ended [1]_."""
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
"""CUpti_ActivityMemcpyKind."""


def read_nsight(path: Path) -> Recording:
    """Read an SQLite export of Nsight Systems.

    Raises
    ------
    DataError
        If it is damaged, is no such export, or holds nothing that ran on a GPU.
    """
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
    columns, calls, devices = Columns(), Calls(), Devices()
    if _KERNELS in tables:
        for start, end, device, stream, call, process, long, short in _rows(
            base,
            path,
            _KERNELS,
            "start end deviceId streamId correlationId",
            "globalPid demangledName shortName",
        ):
            name = texts.get(long) or texts.get(short) or f"kernel {long}"
            seen = devices.number(device, _process(process))
            columns.add("kernel", name, seen, stream, start, end, _call(process, call))
    if _GRAPHS in tables:
        for start, end, device, stream, call, process, graph in _rows(
            base, path, _GRAPHS, "start end deviceId streamId correlationId", "globalPid graphId"
        ):
            seen = devices.number(device, _process(process))
            columns.add("kernel", f"CUDA graph {graph}", seen, stream, start, end, _call(process, call))
    for table, work in _ENGINES.items():
        if table in tables:
            for start, end, device, stream, call, process, kind in _rows(
                base, path, table, "start end deviceId streamId correlationId", "globalPid copyKind"
            ):
                name = "Memset" if work == "memset" else f"Memcpy {_COPY_KINDS.get(kind, kind)}"
                seen = devices.number(device, _process(process))
                columns.add(work, name, seen, stream, start, end, _call(process, call))
    if not columns:
        raise DataError(
            f"{path}: holds nothing that ran on a GPU: record it with nsys profile --trace=cuda,nvtx"
        )
    if _CALLS in tables:
        for start, call, thread in _rows(base, path, _CALLS, "start correlationId globalTid"):
            calls.add(_call(thread, call), start, thread)
    gpu = ""
    if "TARGET_INFO_GPU" in tables:
        gpu = next((str(name) for (name,) in _rows(base, path, "TARGET_INFO_GPU", "name")), "")
    ranges = tuple(_ranges(base, path, texts)) if _RANGES in tables else ()
    return Recording("Nsight Systems", gpu, columns.by_device(calls), ranges, {})


def _call(process: int | None, number: int | None) -> int:
    """Tell calls of several processes apart: each numbers its own. The process is above the lowest 24 bits."""
    if number is None:
        return -1
    return _process(process) << 32 | number & 0xFFFFFFFF


def _process(number: int | None) -> int:
    return (number or 0) >> 24 & 0xFFFFFF


def _rows(
    base: sqlite3.Connection, path: Path, table: str, needed: str, wanted: str = ""
) -> Iterator[tuple[Any, ...]]:
    """Yield columns of a table; those only wanted are empty where this release does not have them."""
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


def _ranges(base: sqlite3.Connection, path: Path, texts: dict[int, str]) -> Iterator[Range]:
    """Yield the NVTX ranges that ended, in order of their start."""
    found = _rows(base, path, _RANGES, "start end eventType", "text textId")
    for start, end, kind, text, number in sorted(found, key=lambda row: (row[0], -(row[1] or 0))):
        name = text or texts.get(number)
        if kind in _RANGE_TYPES and end is not None and name:
            yield Range(name, start, end)
