"""What a profiler recorded of the GPUs, whichever profiler it was."""

from __future__ import annotations

from array import array
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.trust.profiles.intervals import Whole

Work = Literal["kernel", "memcpy", "memset"]
WORKS: tuple[Work, ...] = ("kernel", "memcpy", "memset")
"""What a GPU does: kernels on its SMs, copies and fills by its engines."""


class Range(NamedTuple):
    """A named range of a program: an annotation of PyTorch, or one of NVTX. [ns]"""

    name: str
    start_ns: int
    end_ns: int


class Activities(NamedTuple):
    """Everything that one GPU did, in order of its start.

    Attributes
    ----------
    start_ns, end_ns : Whole
        When it ran. [ns]
    launch_ns : Whole
        When the host issued it, -1 where the trace does not say. [ns]
    thread : Whole
        Thread of the host that issued it, -1 where the trace does not say.
    stream : Whole
        Stream that it ran on.
    name : Whole
        Index into `names`.
    work : NDArray
        Index into `WORKS`.
    names : tuple of str
        Names of kernels, each once.
    """

    start_ns: Whole
    end_ns: Whole
    launch_ns: Whole
    thread: Whole
    stream: Whole
    name: Whole
    work: NDArray[np.int8]
    names: tuple[str, ...]

    def only(self, mask: NDArray[np.bool_] | Whole) -> Activities:
        """Return those of a mask, or in another order."""
        return Activities(
            start_ns=self.start_ns[mask],
            end_ns=self.end_ns[mask],
            launch_ns=self.launch_ns[mask],
            thread=self.thread[mask],
            stream=self.stream[mask],
            name=self.name[mask],
            work=self.work[mask],
            names=self.names,
        )


class Recording(NamedTuple):
    """A trace as its reader hands it on.

    Attributes
    ----------
    kind : str
        Program that wrote it.
    gpu : str
        Name of the GPU, "" where the trace does not say.
    devices : dict
        Activities by device.
    ranges : tuple of Range
        Annotations of the host, in order of their start.
    backward : dict
        Spans in which PyTorch's engine of gradients ran, (starts, ends) by thread. [ns]
    """

    kind: str
    gpu: str
    devices: dict[int, Activities]
    ranges: tuple[Range, ...]
    backward: dict[int, tuple[Whole, Whole]]


class Devices:
    """Numbers of devices: those of a trace, and others where several processes call theirs by the same one."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, object], int] = {}

    def number(self, device: int, process: object) -> int:
        """Return the number of a device as a process sees it."""
        if (device, process) not in self._numbers:
            taken = set(self._numbers.values())
            free = device if device not in taken else max(taken) + 1
            self._numbers[device, process] = free
        return self._numbers[device, process]


class Columns:
    """Activities while they are read: a few machine words each, however large the file."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._rows: dict[int, tuple[array[int], ...]] = {}

    def add(
        self, work: Work, name: str, device: int, stream: int, start_ns: int, end_ns: int, call: int
    ) -> None:
        """Add one, with the number of the call that issued it."""
        if end_ns < start_ns:
            raise ValueError(f"{name[:40]} ends before it starts")
        index = self._names.setdefault(name, len(self._names))
        if device not in self._rows:
            self._rows[device] = tuple(array("q") for _ in range(6))
        row = (start_ns, end_ns, call, stream, index, WORKS.index(work))
        for column, value in zip(self._rows[device], row, strict=True):
            column.append(value)

    def __bool__(self) -> bool:
        return bool(self._rows)

    def by_device(self, calls: Calls) -> dict[int, Activities]:
        """Return the activities of each device, with when and by which thread they were issued."""
        names = tuple(self._names)
        found = {}
        for device, columns in sorted(self._rows.items()):
            start, end, call, stream, name, work = (np.array(column, dtype=np.int64) for column in columns)
            launch, thread = calls.find(call)
            read = Activities(start, end, launch, thread, stream, name, work.astype(np.int8), names)
            found[device] = read.only(np.argsort(start, kind="stable"))
        return found


class Calls:
    """Calls of the driver by their number: when, and from which thread."""

    def __init__(self) -> None:
        self._number, self._time, self._thread = array("q"), array("q"), array("q")

    def add(self, number: int, time_ns: int, thread: int) -> None:
        """Add one."""
        self._number.append(number)
        self._time.append(time_ns)
        self._thread.append(thread)

    def find(self, numbers: Whole) -> tuple[Whole, Whole]:
        """Return time and thread of calls, -1 of those that were not recorded."""
        missing = np.full(numbers.shape, -1, dtype=np.int64)
        if not self._number:
            return missing, missing
        known = np.array(self._number, dtype=np.int64)
        order = np.argsort(known, kind="stable")
        known = known[order]
        at = np.minimum(np.searchsorted(known, numbers), known.size - 1)
        met = known[at] == numbers
        time = np.array(self._time, dtype=np.int64)[order][at]
        thread = np.array(self._thread, dtype=np.int64)[order][at]
        return np.where(met, time, -1), np.where(met, thread, -1)
