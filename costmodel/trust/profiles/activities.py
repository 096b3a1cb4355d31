"""What a profiler recorded of the GPUs, whichever profiler it was, and exact unions of its intervals of time."""

from __future__ import annotations

from array import array
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]
Flags = NDArray[np.bool_]
Activities = np.recarray[Any, Any]
"""Everything that one GPU did, in order of its start, in columns of whole numbers: ``start_ns`` and ``end_ns``; when and by
which ``thread`` of the host it was issued (``launch_ns``; -1 where the trace does not say); ``stream``; ``name``, an
index into the names of the recording; ``work``, one into `WORKS`."""

Work = Literal["kernel", "memcpy", "memset"]
WORKS: tuple[Work, ...] = ("kernel", "memcpy", "memset")
"""What a GPU does: kernels on its SMs, copies and fills by its engines."""
_COLUMNS = ("start_ns", "end_ns", "launch_ns", "thread", "stream", "name", "work")


class Spans(NamedTuple):
    """Intervals that do not touch, in order: what is covered by a set of intervals. [ns]"""

    start: Whole
    end: Whole

    def length(self) -> int:
        """Return how long they last together. [ns]"""
        return int((self.end - self.start).sum())

    def gaps(self) -> Whole:
        """Return how long each pause between two of them lasts. [ns]"""
        return np.asarray(self.start[1:] - self.end[:-1])

    def until(self, times: Whole) -> Whole:
        """Return how much is covered before each of some times. [ns]"""
        if not self.start.size:
            return np.zeros_like(times)
        before = np.concatenate(([0], np.cumsum(self.end - self.start)))
        last = np.searchsorted(self.start, times, side="right")
        # What of the last span that has begun lies behind the time.
        rest = np.maximum(self.end[np.maximum(last - 1, 0)] - times, 0)
        return np.asarray(np.where(last > 0, before[last] - rest, 0))


def union(start: Whole, end: Whole) -> Spans:
    """Return the union of intervals given in any order; those of no length cover nothing."""
    order = np.argsort(start, kind="stable")
    order = order[end[order] > start[order]]
    first, reach = start[order], np.maximum.accumulate(end[order])
    # An interval opens a new span where everything before it has ended.
    opens = np.append(True, first[1:] > reach[:-1])[: first.size]
    return Spans(first[opens], reach[np.append(opens[1:], True)[: first.size]])


def both(one: Spans, other: Spans) -> Spans:
    """Return the union of two sets."""
    return union(np.concatenate((one.start, other.start)), np.concatenate((one.end, other.end)))


def alone_ns(one: Spans, other: Spans) -> int:
    """Return how long the first covers what the second does not. [ns]"""
    return both(one, other).length() - other.length()


class Range(NamedTuple):
    """A named range of a program: an annotation of PyTorch, or one of NVTX. [ns]"""

    name: str
    start_ns: int
    end_ns: int


class Recording(NamedTuple):
    """A trace as its reader hands it on."""

    kind: str  # Program that wrote it
    gpu: str  # Name of the GPU, "" where the trace does not say
    names: tuple[str, ...]  # Names of kernels, each once
    devices: dict[int, Activities]  # By device
    ranges: tuple[Range, ...]  # Of the host, in order of their start, the longer first
    # Spans in which PyTorch's engine of gradients ran, (starts, ends) by thread. [ns]
    backward: dict[int, tuple[Whole, Whole]]


class Recorder:
    """A recording while it is read: a few machine words an activity, however large the file."""

    def __init__(self) -> None:
        self.ranges: list[Range] = []
        self.backward: dict[int, array[int]] = {}
        self._names: dict[str, int] = {}
        self._devices: dict[tuple[int, object], int] = {}
        self._rows: dict[int, array[int]] = {}
        self._calls = array("q")

    def add(
        self,
        work: Work,
        name: str,
        device: int,
        process: object,
        stream: int,
        start_ns: int,
        end_ns: int,
        call: int,
    ) -> None:
        """Add an activity, with the number of the call that issued it."""
        if end_ns < start_ns:
            raise ValueError(f"{name[:40]} ends before it starts")
        index = self._names.setdefault(name, len(self._names))
        if (device, process) not in self._devices:
            # Several processes may call their devices by the same number.
            taken = set(self._devices.values())
            self._devices[device, process] = device if device not in taken else max(taken) + 1
        rows = self._rows.setdefault(self._devices[device, process], array("q"))
        rows.extend((start_ns, end_ns, call, stream, index, WORKS.index(work)))

    def call(self, number: int, time_ns: int, thread: int) -> None:
        """Add a call of the driver."""
        self._calls.extend((number, time_ns, thread))

    def __bool__(self) -> bool:
        return bool(self._rows)

    def recording(self, kind: str, gpu: str) -> Recording:
        """Return what was read."""
        calls = _table(self._calls, 3)
        calls = calls[np.argsort(calls[:, 0], kind="stable")]
        devices = {}
        for device, rows in sorted(self._rows.items()):
            table = _table(rows, 6)
            start, end, call, stream, name, work = table[np.argsort(table[:, 0], kind="stable")].T
            launch, thread = np.full((2, call.size), -1, dtype=np.int64)
            if len(calls):
                at = np.minimum(np.searchsorted(calls[:, 0], call), len(calls) - 1)
                met = calls[at, 0] == call
                launch, thread = np.where(met, calls[at, 1:].T, -1)
            columns = [start, end, launch, thread, stream, name, work]
            devices[device] = np.rec.fromarrays(columns, dtype=[(name, np.int64) for name in _COLUMNS])
        ranges = tuple(sorted(self.ranges, key=lambda one: (one.start_ns, -one.end_ns)))
        backward = {
            thread: (_table(spans, 2)[:, 0], _table(spans, 2)[:, 1])
            for thread, spans in self.backward.items()
        }
        return Recording(kind, gpu, tuple(self._names), devices, ranges, backward)


def _table(numbers: array[int], width: int) -> Whole:
    return np.array(numbers, dtype=np.int64).reshape(-1, width)
