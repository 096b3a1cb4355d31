"""A file that keeps the finished points of a sweep, for one sweep at a time.

Lines are only ever added, each on the disk before the next point is begun, so that a kill or a full disk can
take no more than the line that is being written. Every line says which sweep it belongs to and carries a
checksum: one that is torn, or that somebody else wrote, loses its points and no others.
"""

from __future__ import annotations

import json
import os
import stat
import weakref
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from costmodel.base.errors import CostModelError

Row = dict[str, Any]
_VERSION = 4
_OPEN: weakref.WeakSet[KeptPoints] = weakref.WeakSet()


class KeptPointsError(CostModelError):
    """A file of finished points that cannot be read or written, or is of something else."""


class KeptPoints:
    """The finished chunks of one sweep in a file, locked as long as it is open.

    Attributes
    ----------
    path : Path
        The file.
    done : dict of int to list of dict
        Rows by the number of their chunk.

    Parameters
    ----------
    path : Path
        The file; made if absent.
    key : str
        What tells the sweep from others.
    belongs : callable
        Says whether rows are those of the chunk of that number.
    say : callable
        Takes sentences for the user.

    Raises
    ------
    KeptPointsError
        If the file cannot be opened, or holds something else than this sweep.
    """

    def __init__(
        self,
        path: Path,
        key: str,
        belongs: Callable[[int, Sequence[Any]], bool],
        say: Callable[[str], object],
    ) -> None:
        self.path, self.key = path, key
        self._belongs, self._say = belongs, say
        self.done: dict[int, list[Row]] = {}
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        except OSError as error:
            raise KeptPointsError(f"{path}: cannot be written ({error.strerror})") from None
        try:
            if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                raise KeptPointsError(f"{path}: is not a regular file")
            self._lock()
            self._end = self._load()
        except BaseException:
            os.close(self._descriptor)
            raise
        _OPEN.add(self)

    def __enter__(self) -> KeptPoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file and its lock."""
        from portalocker import unlock

        if self in _OPEN:
            _OPEN.discard(self)
            unlock(self._descriptor)
            os.close(self._descriptor)

    def _lock(self) -> None:
        """Wait until no other sweep has the file."""
        from portalocker import LockFlags, lock
        from portalocker.exceptions import AlreadyLocked

        try:
            lock(self._descriptor, LockFlags.EXCLUSIVE | LockFlags.NON_BLOCKING)
        except AlreadyLocked:
            self._say(f"{self.path}: another sweep has it; waiting for what it finishes")
            lock(self._descriptor, LockFlags.EXCLUSIVE)

    def _load(self) -> int:
        """Read what is there; return where the next line begins."""
        text = self._read()
        lines = text.split(b"\n")
        own = others = torn = 0
        for line in lines:
            record = _parsed(line)
            if record is None or not isinstance(record.get("sweep"), str):
                torn += bool(line.strip())
            elif record["sweep"] != self.key:
                others += 1
            elif "chunk" not in record:
                own += 1
            elif self._is_whole(record):
                own += 1
                self.done[record["chunk"]] = record["rows"]
            else:
                torn += 1
                own += 1
        if not own and others:
            raise KeptPointsError(f"{self.path}: belongs to another sweep; remove it or name another file")
        if not own and torn:
            if not self._header().startswith(text):
                raise KeptPointsError(f"{self.path}: is not the file of a sweep")
            torn = 0
        if torn + others:
            count = torn + others
            lines_are = "1 line is" if count == 1 else f"{count} lines are"
            self._say(f"{self.path}: {lines_are} torn or of another sweep, and left out")
        # What was being written when the last sweep ended goes; a whole line only lacks its end.
        end = len(text) - (len(lines[-1]) if _parsed(lines[-1]) is None else 0)
        if not own:
            return self._append(0, self._header())
        return end if text[:end].endswith(b"\n") else self._append(end, b"\n")

    def _read(self) -> bytes:
        parts = []
        while part := os.read(self._descriptor, 1 << 20):
            parts.append(part)
        return b"".join(parts)

    def _header(self) -> bytes:
        return json.dumps({"sweep": self.key, "version": _VERSION}).encode() + b"\n"

    def _is_whole(self, record: dict[str, Any]) -> bool:
        index, rows = record["chunk"], record.get("rows")
        return (
            type(index) is int
            and isinstance(rows, list)
            and record.get("check") == _check(rows)
            and self._belongs(index, rows)
        )

    def append(self, index: int, rows: list[Row]) -> None:
        """Keep one more chunk.

        Raises
        ------
        KeptPointsError
            If it cannot be written; the file is then as it was.
        """
        record = {"sweep": self.key, "chunk": index, "rows": rows, "check": _check(rows)}
        self._end = self._append(self._end, json.dumps(record).encode() + b"\n")
        self.done[index] = rows

    def _append(self, end: int, data: bytes) -> int:
        """Write at the end and wait for the disk; return the new end."""
        try:
            os.ftruncate(self._descriptor, end)
            os.lseek(self._descriptor, end, os.SEEK_SET)
            left = memoryview(data)
            while left:
                left = left[os.write(self._descriptor, left) :]
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, end)
            raise KeptPointsError(
                f"{self.path}: cannot be written ({error.strerror}); the points before are kept"
            ) from None
        return end + len(data)


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Return the record of a line; none if it is no JSON object."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _check(rows: Sequence[Any]) -> str:
    return f"{zlib.crc32(json.dumps(rows).encode()):08x}"


def _forked() -> None:
    """Let go of files that a worker was born with: it would hold their lock when its sweep is long dead."""
    for kept in list(_OPEN):
        os.close(kept._descriptor)
    _OPEN.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
