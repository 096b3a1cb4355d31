"""A file that keeps the finished chunks of a sweep: a SQLite database, so that a kill loses no chunk that was kept."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from costmodel.base.errors import CostModelError

Row = dict[str, Any]
_WAIT_S = 60.0
"""How long to wait for another process that is writing."""


class KeptPointsError(CostModelError):
    """A file of finished points that cannot be read or written, or is of something else."""


class KeptPoints:
    """The finished chunks of one sweep in a file.

    Several sweeps may have the file at a time; each keeps what it finishes.
    """

    def __init__(self, path: Path, key: str, belongs: Callable[[int, Sequence[Any]], bool]) -> None:
        self.path = path
        with self._opened() as database:
            database.execute("CREATE TABLE IF NOT EXISTS sweep (key TEXT PRIMARY KEY)")
            database.execute("CREATE TABLE IF NOT EXISTS chunk (number INTEGER PRIMARY KEY, rows TEXT)")
            owner = database.execute("SELECT key FROM sweep").fetchone()
            if owner is not None and owner[0] != key:
                raise KeptPointsError(f"{path}: belongs to another sweep; remove it or name another file")
            database.execute("INSERT OR IGNORE INTO sweep VALUES (?)", (key,))
            kept = {number: json.loads(rows) for number, rows in database.execute("SELECT * FROM chunk")}
        self.done: dict[int, list[Row]] = {n: rows for n, rows in kept.items() if belongs(n, rows)}

    def append(self, number: int, rows: list[Row]) -> None:
        """Keep one more chunk; it is on the disk when this returns."""
        with self._opened() as database:
            database.execute("INSERT OR REPLACE INTO chunk VALUES (?, ?)", (number, json.dumps(rows)))
        self.done[number] = rows

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open the file for one transaction: a worker that is forked meanwhile inherits no connection."""
        try:
            with closing(sqlite3.connect(self.path, timeout=_WAIT_S)) as database, database:
                yield database
        except (sqlite3.Error, ValueError) as error:
            reason = (
                "is not the file of a sweep"
                if "not a database" in str(error)
                else f"cannot be used ({error})"
            )
            raise KeptPointsError(f"{self.path}: {reason}") from None
