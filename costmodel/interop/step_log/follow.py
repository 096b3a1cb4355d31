"""A log that grows: what is new since the last look, also after it was rotated or truncated."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import IO

from costmodel.interop.step_log.collect import StepCollector
from costmodel.interop.step_log.lines import CHUNK_BYTES, LineSplitter, open_log
from costmodel.interop.text_file import shown

_FINGERPRINT_BYTES = 64


class LogFollower:
    """Reads a log as it grows; `collector` knows what was said.

    A file that was moved away is read to its end before the new one of its name; one that was truncated, or
    written anew, is read from its start.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.collector = StepCollector(shown(str(path)))
        self._stream: IO[bytes] = open_log(self.path)
        self._splitter = LineSplitter(self.collector.name)
        self._first = b""

    def look(self) -> bool:
        """Read what is new, and return whether there was anything.

        Raises
        ------
        DataError
            If what is new is no text.
        """
        before = self.collector.lines
        if self._is_cut():
            self._start(self._stream)
        self._drain()
        if self._is_moved():
            for line in self._splitter.feed(b"", last=True):
                self.collector.take(line)
            self._stream.close()
            self._start(open_log(self.path))
            self._drain()
        return self.collector.lines > before

    def close(self) -> None:
        """Let go of the file."""
        self._stream.close()

    def _start(self, stream: IO[bytes]) -> None:
        stream.seek(0)
        self._stream, self._first = stream, b""
        self._splitter = LineSplitter(self.collector.name)

    def _drain(self) -> None:
        while raw := self._stream.read(CHUNK_BYTES):
            if len(self._first) < _FINGERPRINT_BYTES:
                self._first = (self._first + raw)[:_FINGERPRINT_BYTES]
            for line in self._splitter.feed(raw):
                self.collector.take(line)

    def _is_cut(self) -> bool:
        """Whether the open file lost what was read of it; one that is packed, or a pipe, does not grow so."""
        if isinstance(self._stream, gzip.GzipFile) or not self._stream.seekable():
            return False
        at = self._stream.tell()
        if os.fstat(self._stream.fileno()).st_size < at:
            return True
        self._stream.seek(0)
        first = self._stream.read(len(self._first))
        self._stream.seek(at)
        return first != self._first

    def _is_moved(self) -> bool:
        """Whether another file has the log's name now; a name that nobody has yet is waited for."""
        try:
            now = self.path.stat()
        except OSError:
            return False
        ours = os.fstat(self._stream.fileno())
        return (now.st_dev, now.st_ino) != (ours.st_dev, ours.st_ino)
