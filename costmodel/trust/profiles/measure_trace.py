"""A trace, added up: classes and what of them is exposed, streams and their overlap, steps and their gaps."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from costmodel.base.errors import CostModelError, DataError
from costmodel.trust.profiles.activities import Activities, Recording
from costmodel.trust.profiles.chrome_trace import read_chrome_trace
from costmodel.trust.profiles.classing import Labels, label
from costmodel.trust.profiles.intervals import Spans, Whole, alone_ns, both, shared_ns, union
from costmodel.trust.profiles.kernel_families import UNKNOWN, family_of
from costmodel.trust.profiles.nsight import MAGIC, read_nsight
from costmodel.trust.profiles.steps import Steps, find_steps
from costmodel.trust.profiles.trace_profile import ClassTime, FamilyTime, StepTime, StreamTime, TraceProfile

_NANO = 1e9
_STREAMS_PAIRED = 8
"""So many of the busiest streams are laid over each other."""


def read_recording(path: Path) -> Recording:
    """Read a trace of either profiler, told by what is in it.

    Raises
    ------
    DataError
        If it cannot be read, or holds nothing that ran on a GPU.
    """
    if path.is_dir():
        raise DataError(f"{path}: is a folder, expected a trace")
    if not path.exists():
        raise DataError(f"{path}: there is no such file")
    if not path.is_file():
        raise DataError(f"{path}: is not a regular file")
    with path.open("rb") as file:
        start = file.read(len(MAGIC))
    if not start:
        raise DataError(f"{path}: is empty")
    return read_nsight(path) if start == MAGIC else read_chrome_trace(path)


class Measured:
    """The activities of one GPU, classed, cut into steps, and added up.

    Parameters
    ----------
    path : Path
        Trace of the PyTorch profiler, or SQLite export of Nsight Systems.
    device : int, optional
        Which GPU; by default the one that did the most.
    step_range : str
        What the names of ranges that are steps begin with.

    Raises
    ------
    CostModelError
        If the trace cannot be read, or has no such device or range.
    """

    def __init__(self, path: Path, *, device: int | None = None, step_range: str = "") -> None:
        recording = read_recording(path)
        self.devices = tuple(recording.devices)
        if device is None:
            device = max(self.devices, key=lambda one: recording.devices[one].start_ns.size)
        if device not in recording.devices:
            known = ", ".join(map(str, self.devices))
            raise CostModelError(f"--device: {device} is not in the trace; it has {known}")
        self.path, self.device = path, device
        self.kind, self.gpu = recording.kind, recording.gpu
        self.work = recording.devices[device]
        self.labels = label(self.work, recording)
        self.steps = find_steps(self.work, recording.ranges, step_range)

    def profile(self) -> TraceProfile:
        """Return everything added up."""
        work, labels = self.work, self.labels
        kernels = work.work == 0
        talks = labels.communicates() & kernels
        covered = union(work.start_ns, work.end_ns)
        computed, talked = _spans(work, kernels & ~talks), _spans(work, talks)
        times = class_times(work, labels)
        return TraceProfile(
            file=str(self.path),
            kind=self.kind,
            gpu=self.gpu,
            device=self.device,
            devices=self.devices,
            count=int(kernels.sum()),
            busy_s=_seconds((work.end_ns - work.start_ns)[kernels].sum()),
            window_s=_seconds(work.end_ns.max() - work.start_ns.min()),
            idle_s=_seconds(covered.gaps().sum()),
            communication_s=_seconds(talked.length()),
            exposed_communication_s=_seconds(alone_ns(talked, computed)),
            classes=tuple(one for one in times if one.name not in ("memcpy", "memset")),
            copies=tuple(one for one in times if one.name in ("memcpy", "memset")),
            streams=_streams(work, labels),
            families=_families(work),
            told_by=self.steps.told_by,
            steps=_step_times(work, self.steps, covered, computed, both(talked, computed)),
            gaps_s=covered.gaps() / _NANO,
        )

    def each_step(self) -> list[ClassTime]:
        """Return what the classes took in one step, the mean of all."""
        members = np.concatenate([step.members for step in self.steps.steps])
        mask = np.zeros(self.work.start_ns.size, dtype=np.bool_)
        mask[members] = True
        found = class_times(self.work.only(mask), Labels(self.labels.names, self.labels.which[mask]))
        steps = len(self.steps.steps)
        return [
            ClassTime(one.name, one.count / steps, one.busy_s / steps, one.exposed_s / steps) for one in found
        ]


def class_times(work: Activities, labels: Labels) -> list[ClassTime]:
    """Return what each class took, the longest first."""
    computes = (work.work == 0) & ~labels.communicates()
    lengths = work.end_ns - work.start_ns
    found = []
    for index, name in enumerate(labels.names):
        members = labels.which == index
        if members.any():
            others = _spans(work, computes & ~members)
            exposed = _seconds(alone_ns(_spans(work, members), others))
            found.append(ClassTime(name, int(members.sum()), _seconds(lengths[members].sum()), exposed))
    return sorted(found, key=lambda one: -one.busy_s)


def _spans(work: Activities, mask: np.typing.NDArray[np.bool_]) -> Spans:
    return union(work.start_ns[mask], work.end_ns[mask])


def _seconds(nanoseconds: int | np.integer) -> float:
    return float(nanoseconds) / _NANO


def _streams(work: Activities, labels: Labels) -> tuple[StreamTime, ...]:
    """Return the streams, busiest first, and how long the busiest run beside each other."""
    lengths = work.end_ns - work.start_ns
    covered = {int(stream): _spans(work, work.stream == stream) for stream in np.unique(work.stream)}
    order = sorted(covered, key=lambda stream: -covered[stream].length())
    found = []
    for stream in order:
        members = work.stream == stream
        by_label = np.bincount(labels.which[members], weights=lengths[members], minlength=len(labels.names))
        paired = [] if stream not in order[:_STREAMS_PAIRED] else order[:_STREAMS_PAIRED]
        overlap = {
            other: _seconds(shared_ns(covered[stream], covered[other])) for other in paired if other != stream
        }
        mostly = labels.names[int(by_label.argmax())]
        busy = _seconds(covered[stream].length())
        found.append(StreamTime(stream, int(members.sum()), busy, mostly, overlap))
    return tuple(found)


def _families(work: Activities) -> tuple[FamilyTime, ...]:
    """Return the kernels by family, unknown ones by their own name, longest first."""
    kernels = work.work == 0
    names = work.name[kernels]
    counts = np.bincount(names, minlength=len(work.names))
    lengths = np.bincount(names, weights=(work.end_ns - work.start_ns)[kernels], minlength=len(work.names))
    found: dict[tuple[str, str], tuple[int, float]] = {}
    for name, count, length in zip(work.names, counts.tolist(), lengths.tolist(), strict=True):
        if count:
            family = family_of(name)
            key = (name if family.does == UNKNOWN else family.name, family.does)
            before = found.get(key, (0, 0.0))
            found[key] = (before[0] + count, before[1] + length)
    rows = [FamilyTime(*key, count, length / _NANO) for key, (count, length) in found.items()]
    return tuple(sorted(rows, key=lambda one: -one.busy_s))


def _step_times(
    work: Activities, steps: Steps, covered: Spans, computed: Spans, computed_or_talked: Spans
) -> tuple[StepTime, ...]:
    """Return the steps, each until the next one begins."""
    found = sorted(steps.steps, key=lambda step: step.first)
    ends = [step.first for step in found[1:]] + [int(work.end_ns[found[-1].members].max())]
    starts = np.array([step.first for step in found], dtype=np.int64)
    stops = np.array(ends, dtype=np.int64)

    def within(spans: Spans) -> Whole:
        return np.asarray(spans.until(stops) - spans.until(starts))

    idle = stops - starts - within(covered)
    exposed = within(computed_or_talked) - within(computed)
    zero = int(work.start_ns.min())
    return tuple(
        StepTime(
            step.name,
            _seconds(step.first - zero),
            _seconds(stop - step.first),
            step.members.size,
            _seconds(pause),
            _seconds(bare),
        )
        for step, stop, pause, bare in zip(found, stops, idle, exposed, strict=True)
    )
