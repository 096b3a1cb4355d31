"""What a training log holds so far: its steps, the peak memory, restarts and other ranks.

A log may be of any size and may hold several runs one after the other: where the number of the step falls
back, training was started again. Ranks that print the same step count once.
"""

from __future__ import annotations

import gzip
import os
import re
from array import array
from collections.abc import Iterable
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.base.errors import DataError
from costmodel.interop.step_log.formats import BYTES, EVENTS, FORMATS, MEMORY_FORMATS, SKIPPED, LogFormat
from costmodel.interop.step_log.lines import CHUNK_BYTES, LineSplitter, chunks_of, open_log
from costmodel.interop.text_file import shown, uncoloured

_FINGERPRINT_BYTES = 64

_MARKS = (
    *(each.mark for each in (*FORMATS, *MEMORY_FORMATS)),
    *("skipped=", "aved", "aving", "alid", "valuat"),
)
"""One of these is in every line that matters: looking for them is much faster than for patterns."""
_STEP_LINE = re.compile(r"\bstep=(\d+), skipped=\d+")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T_](\d\d:\d\d:\d\d)")
# Who says it: torchrun's [rank0]: and [default0]:, mpirun's [1,0]<stdout>:, srun's 0:, pdsh's host:, pods, Ray's actors.
_SAYER = re.compile(
    r"\s*(\[(?:rank|default|pod/|\d+,)[^\]]*\](?:<\w+>)?|\d+(?=:\s)|\([^()]*\b(?:pid|rank)=[^()]*\)"
    r"|[A-Za-z][\w.-]*(?=:\s))"
)
_HELD = ("number", "value", "at", "batch", "segment", "event")


class StepLog(NamedTuple):
    """The steps of a log of some format, an entry a line.

    Numbers and values of steps, the latter in the format's unit; the time on the log's own clock, nan where the line has
    none [s]; sequences, 0 where it does not say; starts so far, counted where the number of the step falls back; bits of
    `EVENTS` since the line before, and `SKIPPED`. Then lines read, those of steps that another rank or a progress bar had
    printed before, the steps of the whole run (0: unknown), and the largest peaks of memory by what
    they count, max_allocated and max_reserved [B].
    """

    name: str
    format: LogFormat
    number: NDArray[np.int64]
    value: NDArray[np.float64]
    at: NDArray[np.float64]
    batch: NDArray[np.int64]
    segment: NDArray[np.int64]
    event: NDArray[np.int64]
    lines: int
    repeated: int
    last_step: int
    memory_bytes: dict[str, float]

    @property
    def steps(self) -> int:
        """Lines of steps."""
        return len(self.number)


class _Series:
    """Steps of one format while they are read."""

    def __init__(self, format: LogFormat) -> None:
        self.format = format
        self.kept: dict[str, array[int] | array[float]] = {
            name: array("d" if name in ("value", "at") else "q") for name in _HELD
        }
        self.repeated = self.segment = self.last_step = 0
        self.last_number = -1
        self.sayer = ""
        self.pending = 0
        """Bits of `EVENTS` since the last step."""

    def take(self, line: str, value: float, printed_step: int) -> None:
        """Keep a line of a step, unless it was printed before."""
        number = self._number(line, printed_step)
        sayer = found[1] if (found := _SAYER.match(line)) else ""
        if number <= self.last_number:
            if number == self.last_number or sayer != self.sayer:
                self.repeated += 1
                return
            self.segment += 1
        self.last_number, self.sayer = number, sayer
        skipped = SKIPPED if _count(self.format.skipped, line) else 0
        batch = _count(self.format.batch, line)
        row = (number, value, _clock_s(line), batch, self.segment, self.pending | skipped)
        for name, one in zip(_HELD, row, strict=True):
            self.kept[name].append(one)  # type: ignore[arg-type]
        self.pending = 0

    def _number(self, line: str, printed_step: int) -> int:
        pattern = self.format.number
        found = pattern.search(line) if pattern else None
        if found is None:
            return max(printed_step, self.last_number + 1)
        groups = found.groups()
        if len(groups) > 1 and groups[1] is not None:
            self.last_step = int(groups[1][:15])
        return int(next(group for group in groups if group is not None)[:15])


class StepCollector:
    """Takes a log line by line, and says at any time what it has heard."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines = 0
        self._series: dict[str, _Series] = {}
        self._memory: dict[str, float] = {}
        self._printed_step = 0

    def take(self, raw: str) -> None:
        """Read one line."""
        self.lines += 1
        if not any(mark in raw for mark in _MARKS):
            return
        line = uncoloured(raw)
        self._take_memory(line)
        for format in FORMATS:
            if format.mark in line and (found := _value(format, line)) is not None:
                self._series.setdefault(format.name, _Series(format)).take(line, found, self._printed_step)
                return
        if printed_step := _STEP_LINE.search(line):
            self._printed_step = int(printed_step[1][:15])
        for event in EVENTS:
            if event.pattern.search(line):
                for series in self._series.values():
                    series.pending |= event.bit

    def _take_memory(self, line: str) -> None:
        for known in MEMORY_FORMATS:
            if known.mark in line:
                sizes = [_finite(text) * BYTES[known.unit] for text in known.value.findall(line)]
                self._memory[known.name] = max([self._memory.get(known.name, 0.0), *sizes])

    @property
    def has_steps(self) -> bool:
        """Whether any line was that of a step."""
        return bool(self._series)

    def found(self) -> StepLog:
        """Return what was heard so far."""
        if not self._series:
            known = ", ".join(dict.fromkeys(f.title.partition("'")[0] for f in FORMATS))
            raise DataError(
                f"{self.name}: no line of {self.lines:,} tells how long a step took (read: {known})"
            )
        # Of formats with nearly as many lines as any, the one that is trusted most.
        counts = {name: len(series.kept["number"]) for name, series in self._series.items()}
        most = max(counts.values())
        series = next(self._series[f.name] for f in FORMATS if 2 * counts.get(f.name, -1) >= most)
        held = {key: np.array(values) for key, values in series.kept.items()}
        return StepLog(
            self.name,
            series.format,
            **held,
            lines=self.lines,
            repeated=series.repeated,
            last_step=series.last_step,
            memory_bytes={kind: size for kind, size in self._memory.items() if size > 0},
        )


def _count(pattern: re.Pattern[str] | None, line: str) -> int:
    """Return the whole number that a pattern finds in a line, 0 for none."""
    found = pattern.search(line) if pattern else None
    return int(found[1][:15]) if found else 0


def _finite(text: str) -> float:
    """Return a number of a log, 0 for what only looks like one."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if value < 1e15 else 0.0


def _value(format: LogFormat, line: str) -> float | None:
    """Return the value of a line of a step, none where it has none above nought."""
    found = format.value.search(line if format.unit != "tokens/s/GPU" else line.replace(",", ""))
    if found is None or (format.number is not None and not format.number.search(line)):
        return None
    value = sum(_finite(text) for text in found.groups())
    return value if value > 0 else None


def _clock_s(line: str) -> float:
    """Return the first time in a line as seconds, on the clock of whoever wrote it; nan where there is none."""
    found = _TIME.search(line)
    if found is None:
        return float("nan")
    try:
        return datetime.fromisoformat(f"{found[1]}T{found[2]}+00:00").timestamp()
    except ValueError:
        return float("nan")


def read_step_log(paths: Iterable[str | Path]) -> StepLog:
    """Read the steps of one log, or of the pieces that it was rotated into, the oldest first; also gzipped."""
    files = [Path(path) for path in paths]
    if not files:
        raise DataError("log: expected a file")
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    collector = StepCollector(f"{shown(str(files[0]))}{more}")
    for file in files:
        splitter = LineSplitter(shown(str(file)))
        for chunk in chain(chunks_of(file), [b""]):
            for line in splitter.feed(chunk, last=not chunk):
                collector.take(line)
    return collector.found()


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

    def poll(self) -> bool:
        """Read what is new, and return whether there was anything."""
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
