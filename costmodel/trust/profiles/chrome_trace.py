"""Traces of the PyTorch profiler: Chrome trace JSON, plain or gzipped.

Of each event a few numbers are kept while the text is read, so that a trace takes little more memory than its text.
Times are taken to whole nanoseconds before anything is added up: microseconds since 1970 leave a float
64 only a quarter of a microsecond.

References
----------
.. [1] "Trace Event Format", Google.
.. [2] pytorch/kineto, libkineto/src/output_json.cpp: categories, arguments, and microseconds with three decimals.
"""

from __future__ import annotations

import gzip
import re
import zlib
from array import array
from json import JSONDecodeError, JSONDecoder
from pathlib import Path
from typing import Any

from costmodel.base.errors import DataError, shown
from costmodel.trust.profiles.activities import Range, Recorder, Recording, Work

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
    data = path.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        try:
            data = gzip.decompress(data)
        except EOFError:
            raise DataError(f"{path}: is cut off: its gzip stream has no end; copy it again") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{path}: its gzip stream is damaged ({error})") from None
    text = data.decode(errors="replace").strip()
    del data
    if not text.startswith(("{", "[")):
        what = "is not a trace: expected JSON, gzipped JSON or SQLite" if text else "is empty"
        raise DataError(f"{path}: {what}")
    if text.startswith("[") and not text.endswith("]"):
        # The array form of the format [1]_; its end may be missing.
        text = text.rstrip(",") + "]"
    reader = _Reader()
    # Numbers with decimals stay texts until an event turns out to be wanted; control characters in names do occur.
    decoder = JSONDecoder(object_hook=reader.take, parse_float=str, parse_constant=str, strict=False)
    try:
        content, _ = decoder.raw_decode(text)
        events = content if isinstance(content, list) else content.get("traceEvents")
        for index, event in enumerate(events if isinstance(events, list) else (), start=1):
            if not isinstance(event, dict | None):
                raise DataError(f"{path}: event {index} is not one of a trace ({shown(event)})")
    except (JSONDecodeError, RecursionError) as error:
        place = f", {error.pos:,} characters in" if isinstance(error, JSONDecodeError) else ""
        raise DataError(f"{path}: is no whole trace: cut off, or not JSON{place}") from None
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

    def take(self, piece: dict[str, Any]) -> dict[str, Any] | None:
        """Take an object as it has been read; an event is not kept, anything else stays as it is."""
        if isinstance(piece.get("deviceProperties"), list) and piece["deviceProperties"]:
            self.gpu = str(piece["deviceProperties"][0].get("name", ""))
        if "ph" not in piece:
            return piece
        self.count += 1
        if piece["ph"] == "X":
            self._event(piece)
        return None

    def _event(self, piece: dict[str, Any]) -> None:
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
