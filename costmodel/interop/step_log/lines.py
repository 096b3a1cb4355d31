"""Bytes of a log as lines, chunk by chunk: whatever the encoding, the line ends, or the length of a line."""

from __future__ import annotations

import codecs
import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from costmodel.base.errors import DataError
from costmodel.interop.text_file import encoding_of, shown

CHUNK_BYTES = 1 << 20
LONGEST_LINE = 1 << 16
"""Characters of a line that are looked at: a progress bar without line ends can be a gigabyte long."""

_GZIP = b"\x1f\x8b"
# A log that was truncated while its writer went on has a hole before the next line; no text has as many zeros.
_HOLE = re.compile(rb"\x00{16,}")


class LineSplitter:
    """Turns bytes into lines, however they are cut; holds back no more than one line.

    A carriage return ends a line too: progress bars are drawn over by it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._decoder: codecs.IncrementalDecoder | None = None
        self._first = b""
        self._rest = ""

    def feed(self, raw: bytes, *, last: bool = False) -> Iterator[str]:
        """Give the lines that end in these bytes; with `last` also the one that nothing ends."""
        text = self._decoded(raw, last)
        if not text and not last:
            return
        lines = (self._rest + text).replace("\r", "\n").split("\n")
        self._rest = "" if last else lines.pop()[:LONGEST_LINE]
        for line in lines:
            if line:
                yield line[:LONGEST_LINE]

    def _decoded(self, raw: bytes, last: bool) -> str:
        raw = _HOLE.sub(b"", raw)
        if self._decoder is None:
            # Two bytes of UTF-16 do not tell; a log that has only begun waits for more.
            self._first += raw
            if len(self._first) < 64 and not last:
                return ""
            raw, self._first = self._first, b""
            self._decoder = codecs.getincrementaldecoder(encoding_of(raw, self._name))(errors="replace")
        return self._decoder.decode(raw, last)


def open_log(path: Path) -> IO[bytes]:
    """Open a log for reading, unpacked where it is gzipped."""
    called = shown(str(path))
    try:
        if path.is_dir():
            raise DataError(f"{called}: is a folder, expected a log")
        stream = path.open("rb")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a name of a file"
        raise DataError(f"{called}: cannot be read ({reason})") from None
    packed = path.is_file() and stream.read(2) == _GZIP
    if path.is_file():
        stream.seek(0)
    return gzip.open(stream) if packed else stream  # type: ignore[return-value]


def chunks_of(path: Path) -> Iterator[bytes]:
    """Give a file piece by piece."""
    with open_log(path) as stream:
        while True:
            try:
                raw = stream.read(CHUNK_BYTES)
            except (OSError, EOFError) as error:
                reason = getattr(error, "strerror", None) or str(error)
                raise DataError(f"{shown(str(path))}: cannot be read ({reason})") from None
            if not raw:
                return
            yield raw
