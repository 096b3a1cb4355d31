"""The profile of a training step as an answer: what its GPU did by class, by stream and by step."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.base.answer import Answer
from costmodel.base.errors import DataError
from costmodel.describe.site import site_text
from costmodel.trust.profiles.beside import Beside
from costmodel.trust.profiles.site_of_trace import SiteOfTrace


@dataclass(frozen=True)
class ClassTime:
    """What the kernels of one class took. [s]

    Attributes
    ----------
    name : str
        Class, with the pass behind a dot where the trace tells it.
    count : int
        Kernels.
    busy_s : float
        Sum of their durations.
    exposed_s : float
        Time in which one of them ran, and no computing kernel of another class.
    """

    name: str
    count: float
    busy_s: float
    exposed_s: float


@dataclass(frozen=True)
class StreamTime:
    """What ran on one stream. [s]

    `mostly` is the class that was busy longest; `overlap_s` how long another stream was busy at the same time, by
    its number.
    """

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
    """What a trace holds, added up, and where a job was given, beside its bill.

    Attributes
    ----------
    file, kind, gpu : str
        The trace, the program that wrote it, and the GPU, "" where it does not say.
    device : int
        Which GPU of the trace, of `devices`.
    count : int
        Kernels.
    busy_s : float
        Sum of the durations of all kernels. [s]
    window_s : float
        From the beginning of the first to the end of the last. [s]
    idle_s : float
        Time within it in which the GPU did nothing. [s]
    communication_s, exposed_communication_s : float
        Time in which kernels communicated, and of that in which none computed. [s]
    classes : tuple of ClassTime
        Kernels by class, longest first; they add up to all kernels.
    copies : tuple of ClassTime
        What copy engines did, which are no kernels.
    streams : tuple of StreamTime
        Streams, busiest first.
    families : tuple of FamilyTime
        By family of names; kernels that none knows one by one.
    told_by : str
        How steps were told apart: ranges, repetition, or "" where all is one.
    steps : tuple of StepTime
        In order.
    gaps_s : NDArray
        Lengths of the pauses in which the GPU did nothing. [s]
    beside : Beside or None
        The bill of a job beside it.
    learnt : SiteOfTrace or None
        What it says of the model's factors, with a job.
    """

    file: str
    kind: str
    gpu: str
    device: int
    devices: tuple[int, ...]
    count: int
    busy_s: float
    window_s: float
    idle_s: float
    communication_s: float
    exposed_communication_s: float
    classes: tuple[ClassTime, ...]
    copies: tuple[ClassTime, ...]
    streams: tuple[StreamTime, ...]
    families: tuple[FamilyTime, ...]
    told_by: str
    steps: tuple[StepTime, ...]
    gaps_s: NDArray[np.float64]
    beside: Beside | None = None
    learnt: SiteOfTrace | None = None

    def files(self, path: str | Path) -> dict[Path, str]:
        """Return the site file of what was measured, with its text, as ``--site`` takes it.

        Raises
        ------
        DataError
            If there is no job beside the trace, or it says nothing of any factor.
        """
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
            "classes": [_class_record(one) for one in self.classes],
            "copies": [_class_record(one) for one in self.copies],
            "streams": [
                {**asdict(one), "overlap_s": {str(key): value for key, value in one.overlap_s.items()}}
                for one in self.streams
            ],
            "steps_told_by": self.told_by,
            "steps": [asdict(one) for one in self.steps],
            "families": [asdict(one) for one in self.families],
        }
        if self.beside is not None:
            record["beside"] = self.beside.records()
            record["beside_step"] = self.beside.step_record()
        if self.learnt is not None:
            record["factors"] = [
                {**one.move._asdict(), "seen": one.seen, "scale": one.scale} for one in self.learnt.measured
            ]
        return record

    def columns(self) -> dict[str, list[Any]]:
        """Return a row a class, copies behind; with a job a row a group of lines."""
        if self.beside is not None:
            return self.beside.columns()
        rows = [_class_record(one) for one in (*self.classes, *self.copies)]
        return {key: [row[key] for row in rows] for key in ("class", "count", "busy_s", "exposed_s")}


def _class_record(one: ClassTime) -> dict[str, Any]:
    return {"class": one.name, "count": one.count, "busy_s": one.busy_s, "exposed_s": one.exposed_s}
