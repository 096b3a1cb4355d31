"""`costmodel.profile`: what a trace holds, added up by class, stream and step, and beside the bill of a job."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.base.answer import Answer, columns_of
from costmodel.base.errors import CostModelError, DataError
from costmodel.describe.site import site_text
from costmodel.estimates.estimate import Estimate
from costmodel.trust.profiles.activities import (
    Activities,
    Flags,
    Recording,
    Spans,
    Whole,
    alone_ns,
    both,
    union,
)
from costmodel.trust.profiles.against_bill import AgainstBill, ClassTime, profile_against_bill
from costmodel.trust.profiles.chrome_trace import read_chrome_trace
from costmodel.trust.profiles.classes import UNKNOWN, Labels, family_of, label
from costmodel.trust.profiles.nsight import MAGIC, read_nsight
from costmodel.trust.profiles.site_of_trace import SiteOfTrace, site_of_trace
from costmodel.trust.profiles.steps import StepSpan, find_steps

_NANO = 1e9
_STREAMS_PAIRED = 8  # So many of the busiest streams are laid over each other


@dataclass(frozen=True)
class StreamTime:
    """What ran on one stream: the class that was busy longest, and how long others were busy at the same time. [s]"""

    stream: int
    count: int
    busy_s: float
    mostly: str
    overlap_s: dict[int, float]


@dataclass(frozen=True)
class StepTime:
    """One step, from its first kernel to that of the next, the last one to the end of its own. [s]"""

    name: str
    start_s: float
    time_s: float
    count: int
    idle_s: float
    exposed_communication_s: float


@dataclass(frozen=True)
class FamilyTime:
    """Kernels of one family of names, or one kernel that no family knows. [s]"""

    family: str
    does: str
    count: int
    busy_s: float


@dataclass(frozen=True, repr=False)
class TraceProfile(Answer):
    """What a trace holds, added up, and where a job was given, beside its bill."""

    file: str  # The trace
    kind: str  # The program that wrote it
    gpu: str  # "" where it does not say
    device: int  # Which GPU of the trace, of `devices`
    devices: tuple[int, ...]
    count: int  # Kernels
    busy_s: float  # Sum of the durations of all kernels. [s]
    window_s: float  # From the beginning of the first to the end of the last. [s]
    idle_s: float  # Time within it in which the GPU did nothing. [s]
    communication_s: float  # Time in which kernels communicated. [s]
    exposed_communication_s: float  # Of that the time in which none computed. [s]
    classes: tuple[ClassTime, ...]  # Kernels by class, longest first; they add up to all kernels
    copies: tuple[ClassTime, ...]  # What copy engines did, which are no kernels
    streams: tuple[StreamTime, ...]  # Busiest first
    families: tuple[FamilyTime, ...]  # By family of names; kernels that none knows one by one
    steps_from: str  # How steps were told apart: ranges, repetition, or "" where all is one
    steps: tuple[StepTime, ...]  # In order
    gaps_s: NDArray[np.float64]  # Lengths of the pauses in which the GPU did nothing
    against_bill: AgainstBill | None = None  # The bill of a job beside it
    learnt: SiteOfTrace | None = None  # What it says of the model's factors, with a job

    def files(self, path: str | Path) -> dict[Path, str]:
        """Return the site file of what was measured, with its text, as ``--site`` takes it."""
        if self.learnt is None or self.learnt.site is None:
            raise DataError(
                "profile: nothing to write: a site file needs a job, and kernels that its bill has too"
            )
        return {Path(path): site_text(self.learnt.site)}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and texts."""
        record: dict[str, Any] = {
            "schema_version": 1,
            "file": self.file,
            "format": self.kind,
            "gpu": self.gpu,
            "device": self.device,
            "devices": list(self.devices),
            "kernels": {"count": self.count, "busy_s": self.busy_s},
            "window_s": self.window_s,
            "idle_s": self.idle_s,
            "communication_s": self.communication_s,
            "exposed_communication_s": self.exposed_communication_s,
            "classes": _class_records(self.classes),
            "copies": _class_records(self.copies),
            "streams": [
                {**asdict(one), "overlap_s": {str(key): value for key, value in one.overlap_s.items()}}
                for one in self.streams
            ],
            "steps_from": self.steps_from,
            "steps": [asdict(one) for one in self.steps],
            "families": [asdict(one) for one in self.families],
        }
        if self.against_bill is not None:
            record["against_bill"] = self.against_bill.records()
            record["against_bill_step"] = self.against_bill.step_record()
        if self.learnt is not None:
            record["factors"] = [
                {**one.move._asdict(), "seen": one.seen, "scale": one.scale} for one in self.learnt.measured
            ]
        return record

    def columns(self) -> dict[str, list[Any]]:
        """Return a row a class, copies behind; with a job a row a group of lines."""
        if self.against_bill is not None:
            return self.against_bill.columns()
        return columns_of(_class_records((*self.classes, *self.copies)))


def _class_records(classes: tuple[ClassTime, ...]) -> list[dict[str, Any]]:
    return [
        {"class": one.name, "count": one.count, "busy_s": one.busy_s, "exposed_s": one.exposed_s}
        for one in classes
    ]


def profile(
    trace: str | Path, est: Estimate | None = None, *, device: int | None = None, step_range: str = ""
) -> TraceProfile:
    """Read a profiler's trace of training steps and add it up; with an estimate lay it beside the bill.

    Parameters
    ----------
    trace : str or Path
        Trace of the PyTorch profiler (JSON, also gzipped), or SQLite export of Nsight Systems.
    est : Estimate, optional
        The job that ran, of one layout.
    device : int, optional
        Which GPU of the trace; by default the one with the most kernels.
    step_range : str
        What the names of the ranges that are steps begin with; by default names such as ``ProfilerStep#3`` and
        ``iteration 3``, otherwise kernels that recur.

    Returns
    -------
    TraceProfile
        Kernels by class, what of them is exposed, streams and their overlap, idle time, steps.

    Raises
    ------
    CostModelError
        If the trace cannot be read or holds nothing that ran on a GPU, has no such device or range, or the estimate
        has many layouts.
    """
    if est is not None and est.shape:
        raise CostModelError("profile: expected an estimate of one layout")
    path = Path(trace)
    recording = read_recording(path)
    devices = recording.devices
    if device is None:
        device = max(devices, key=lambda one: devices[one].size)
    if device not in devices:
        raise CostModelError(f"--device: {device} is not in the trace; it has {', '.join(map(str, devices))}")
    work = devices[device]
    labels = label(work, recording)
    steps_from, spans = find_steps(work, recording.ranges, step_range)
    found = _added_up(path, recording, device, labels, steps_from, spans)
    if est is None:
        return found
    steps = len(spans)
    held = np.isin(np.arange(work.size), np.concatenate([step.members for step in spans]))
    each = [
        ClassTime(one.name, one.count / steps, one.busy_s / steps, one.exposed_s / steps)
        for one in class_times(work[held], Labels(labels.names, labels.which[held]))
    ]
    against = profile_against_bill(
        est,
        each,
        {one.family for one in found.families},
        step_s=sum(one.time_s for one in found.steps) / steps,
        idle_s=sum(one.idle_s for one in found.steps) / steps,
    )
    return replace(found, against_bill=against, learnt=site_of_trace(est, against, path.name))


def read_recording(path: Path) -> Recording:
    """Read a trace of either profiler, told by what is in it."""
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


def _added_up(
    path: Path,
    recording: Recording,
    device: int,
    labels: Labels,
    steps_from: str,
    steps: tuple[StepSpan, ...],
) -> TraceProfile:
    work = recording.devices[device]
    kernels = work.work == 0
    talks = labels.communicates() & kernels
    covered = union(work.start_ns, work.end_ns)
    computed, talked = _spans(work, kernels & ~talks), _spans(work, talks)
    times = class_times(work, labels)
    return TraceProfile(
        file=str(path),
        kind=recording.kind,
        gpu=recording.gpu,
        device=device,
        devices=tuple(recording.devices),
        count=int(kernels.sum()),
        busy_s=_seconds((work.end_ns - work.start_ns)[kernels].sum()),
        window_s=_seconds(work.end_ns.max() - work.start_ns.min()),
        idle_s=_seconds(covered.gaps().sum()),
        communication_s=_seconds(talked.length()),
        exposed_communication_s=_seconds(alone_ns(talked, computed)),
        classes=tuple(one for one in times if one.name not in ("memcpy", "memset")),
        copies=tuple(one for one in times if one.name in ("memcpy", "memset")),
        streams=_streams(work, labels),
        families=_families(work, recording.names),
        steps_from=steps_from,
        steps=_step_times(work, steps, covered, computed, both(talked, computed)),
        gaps_s=covered.gaps() / _NANO,
    )


def class_times(work: Any, labels: Labels) -> list[ClassTime]:
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


def _spans(work: Activities, mask: Flags) -> Spans:
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
        busy_ns = covered[stream].length()
        paired = order[:_STREAMS_PAIRED] if stream in order[:_STREAMS_PAIRED] else []
        overlap = {
            other: _seconds(busy_ns - alone_ns(covered[stream], covered[other]))
            for other in paired
            if other != stream
        }
        mostly = labels.names[int(by_label.argmax())]
        found.append(StreamTime(stream, int(members.sum()), _seconds(busy_ns), mostly, overlap))
    return tuple(found)


def _families(work: Activities, kernels: tuple[str, ...]) -> tuple[FamilyTime, ...]:
    """Return the kernels by family, unknown ones by their own name, longest first."""
    ran = work[work.work == 0]
    counts = np.bincount(ran.name, minlength=len(kernels))
    lengths = np.bincount(ran.name, weights=ran.end_ns - ran.start_ns, minlength=len(kernels))
    found: dict[str, FamilyTime] = {}
    for name, count, length in zip(kernels, counts.tolist(), lengths.tolist(), strict=True):
        if count:
            family = family_of(name)
            key = name if family.does == UNKNOWN else family.name
            before = found.get(key, FamilyTime(key, family.does, 0, 0.0))
            found[key] = FamilyTime(key, family.does, before.count + count, before.busy_s + length / _NANO)
    return tuple(sorted(found.values(), key=lambda one: -one.busy_s))


def _step_times(
    work: Activities, steps: tuple[StepSpan, ...], covered: Spans, computed: Spans, computed_or_talked: Spans
) -> tuple[StepTime, ...]:
    """Return the steps, each until the next one begins."""
    found = sorted(steps, key=lambda step: step.first)
    starts = np.array([step.first for step in found], dtype=np.int64)
    stops = np.append(starts[1:], work.end_ns[found[-1].members].max())

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
