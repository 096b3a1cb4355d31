"""Traces of the PyTorch profiler: Chrome trace JSON, plain or gzipped, read event by event.

Only what is needed is kept, a few numbers an event, so that memory does not grow with what a trace says of the
host. Times are taken to whole nanoseconds before anything is added up: microseconds since 1970 leave a float
64 only a quarter of a microsecond.

References
----------
.. [1] "Trace Event Format", Google.
.. [2] pytorch/kineto, libkineto/src/output_json.cpp: categories, arguments, and microseconds with three decimals.
"""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from array import array
from collections.abc import Iterator
from json import JSONDecodeError, JSONDecoder
from pathlib import Path
from typing import IO, Any

from costmodel.base.errors import DataError, shown
from costmodel.trust.profiles.activities import Range, Recorder, Recording, Work

_CHUNK = 1 << 20
_LONGEST_PIECE = 16 << 20  # What one event, or one entry of the header, may be long
_BETWEEN = re.compile(r"[\s,]*")
# Numbers with decimals stay texts until an event turns out to be wanted; control characters in names do occur.
_DECODER = JSONDecoder(parse_float=str, parse_constant=str, strict=False)

_WORK: dict[str, Work] = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
}
_CALLS = ("cuda_runtime", "cuda_driver", "runtime", "hip_runtime")
_ANNOTATIONS = ("user_annotation", "python_user_annotation")
_GRADIENTS = "autograd::engine::evaluate_function"


class _Text:
    """A file of JSON as a window of text that moves on."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file, self._path = file, path
        self._text, self._at, self._ended = "", 0, False
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._before = 0

    def peek(self) -> str:
        """Return the next character that is neither space nor comma, "" at the end."""
        while True:
            match = _BETWEEN.match(self._text, self._at)
            assert match is not None
            self._at = match.end()
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def skip(self) -> None:
        """Move on by a character."""
        self._at += 1

    def value(self) -> Any:
        """Read one value; a `DataError` if there is none."""
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except (JSONDecodeError, RecursionError) as error:
                if isinstance(error, JSONDecodeError) and self._more():
                    continue
                place = f"{self._before + self._at:,} characters in"
                raise DataError(f"{self._path}: is no whole trace: cut off, or not JSON, {place}") from None
            # A number or a word that touches the end may go on in the next chunk.
            if end < len(self._text) or not self._more():
                self._at = end
                return value

    def _more(self) -> bool:
        """Read on; tells whether there was something."""
        if self._ended or len(self._text) - self._at > _LONGEST_PIECE:
            return False
        chunk = self._file.read(_CHUNK)
        self._ended = not chunk
        self._before += self._at
        self._text = self._text[self._at :] + self._decoder.decode(chunk, final=self._ended)
        self._at = 0
        return bool(chunk)


def _pieces(text: _Text, path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the entries of the header under their names, and each event under the name "event"."""
    start = text.peek()
    if start == "[":
        # The array form of the format [1]_; its end may be missing.
        yield from _events(text, open_end=True)
        return
    if start != "{":
        what = "is empty" if not start else "is not a trace: expected JSON, gzipped JSON or SQLite"
        raise DataError(f"{path}: {what}")
    text.skip()
    while text.peek() != "}":
        key = text.value()
        if text.peek() != ":" or not isinstance(key, str):
            raise DataError(f"{path}: is not a trace: expected a name and a value in its header")
        text.skip()
        if key == "traceEvents" and text.peek() == "[":
            yield from _events(text, open_end=False)
        else:
            yield key, text.value()


def _events(text: _Text, *, open_end: bool) -> Iterator[tuple[str, Any]]:
    """Yield the events of an array."""
    text.skip()
    while (next_one := text.peek()) != "]":
        if not next_one and open_end:
            return
        yield "event", text.value()
    text.skip()


def nanoseconds(microseconds: Any) -> int:
    """Return microseconds, a whole number or a text with decimals, as whole nanoseconds."""
    if isinstance(microseconds, int):
        return microseconds * 1000
    whole, _, decimals = str(microseconds).strip().partition(".")
    if not (decimals or "0").isdecimal() or not whole.removeprefix("-").isdecimal():
        return round(float(microseconds) * 1000)
    sign = -1 if whole.startswith("-") else 1
    return int(whole) * 1000 + sign * int(f"{decimals:0<4}"[:4]) // 10


def read_chrome_trace(path: Path) -> Recording:
    """Read a trace of the PyTorch profiler: JSON, or JSON in gzip whatever its name."""
    reader = _Reader()
    with path.open("rb") as plain:
        zipped = plain.read(2) == b"\x1f\x8b"
        plain.seek(0)
        file: IO[bytes] = gzip.GzipFile(fileobj=plain) if zipped else plain  # type: ignore[assignment]
        try:
            for name, piece in _pieces(_Text(file, path), path):
                reader.take(name, piece)
        except EOFError:
            raise DataError(f"{path}: is cut off: its gzip stream has no end; copy it again") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{path}: its gzip stream is damaged ({error})") from None
        except (ValueError, TypeError, KeyError, OverflowError, AttributeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{path}: event {reader.count} is not one of a trace ({error})") from None
    if not reader.count:
        raise DataError(f"{path}: holds no events")
    if not reader.kept:
        raise DataError(
            f"{path}: holds nothing that ran on a GPU ({reader.of_host} events of the host): "
            "record it with ProfilerActivity.CUDA"
        )
    return reader.kept.recording("PyTorch profiler", reader.gpu)


def _stream(text: Any) -> int:
    """Return the number of a stream, which older recordings name ``stream 7``."""
    found = re.fullmatch(r"stream (\d{1,9})\b.*", text) if isinstance(text, str) else None
    return int(found[1]) if found else int(text)


class _Reader:
    """What is kept of a trace: complete events, which are all that PyTorch writes [2]_."""

    def __init__(self) -> None:
        self.count = self.of_host = 0
        self.gpu = ""
        self.kept = Recorder()
        self._threads: dict[Any, int] = {}

    def take(self, name: str, piece: Any) -> None:
        """Take an entry of the header, or an event."""
        if name == "deviceProperties" and piece:
            self.gpu = str(piece[0].get("name", ""))
        if name != "event":
            return
        self.count += 1
        if piece.get("ph") != "X":
            return
        if not isinstance(piece.get("name"), str):
            raise ValueError(f"its name is {shown(piece.get('name'))}")
        category = str(piece.get("cat", "")).lower()
        if category in _WORK:
            self._activity(_WORK[category], piece)
            return
        self.of_host += 1
        # The name of a thread may be a text.
        thread = self._threads.setdefault((piece.get("pid"), piece.get("tid")), len(self._threads))
        if category in _CALLS:
            number = piece.get("args", {}).get("correlation")
            if number is not None:
                self.kept.call(int(number), nanoseconds(piece["ts"]), thread)
            return
        gradients = category in ("cpu_op", "operator") and piece["name"].startswith(_GRADIENTS)
        if gradients or category in _ANNOTATIONS:
            start = nanoseconds(piece["ts"])
            end = start + nanoseconds(piece.get("dur", 0))
            if gradients:
                self.kept.backward.setdefault(thread, array("q")).extend((start, end))
            else:
                self.kept.ranges.append(Range(piece["name"], start, end))

    def _activity(self, work: Work, piece: dict[str, Any]) -> None:
        about = piece.get("args", {})
        start = nanoseconds(piece["ts"])
        if piece.get("dur") is None:
            raise ValueError(f"{shown(piece['name'])} has no dur")
        length = nanoseconds(piece["dur"])
        if length < 0:
            raise ValueError(f"{shown(piece['name'])} lasts {shown(piece['dur'])} us")
        device, process = int(about.get("device", piece.get("pid", 0))), piece.get("pid")
        stream = _stream(about.get("stream", piece.get("tid", 0)))
        call = int(about.get("correlation", -1))
        self.kept.add(work, piece["name"], device, process, stream, start, start + length, call)
