"""One step as a trace-event file, for chrome://tracing and ui.perfetto.dev: a process a stage, a thread a stream.

References
----------
.. [1] "Trace Event Format", Google (complete events X, counters C, metadata M; times in microseconds).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from costmodel.base.answer import Answer
from costmodel.describe.jobs.job import Job
from costmodel.estimates.estimate import Estimate
from costmodel.estimates.timeline import STREAMS, Slice, StepTimeline, step_timeline

_MICRO = 1e6
_COLOURS = {
    "forward": "good",
    "backward": "bad",
    "backward input": "bad",
    "backward weight": "terrible",
    "communication": "thread_state_iowait",
    "optimizer": "thread_state_running",
    "overhead": "grey",
}


@dataclass(frozen=True)
class Trace(Answer):
    """One step of a job laid out in time."""

    job: Job
    timeline: StepTimeline

    def to_dict(self) -> dict[str, Any]:
        """Return the trace-event object of the step.

        Returns
        -------
        trace : dict
            ``traceEvents``: names of processes and threads, a slice an event with the stage as process
            and the stream as thread, and a counter of memory a stage. ``otherData``: the job, the step
            time, and how far simulation and bill are apart.
        """
        events: list[dict[str, Any]] = []
        used = {(piece.stage, piece.stream) for piece in self.timeline.slices}
        for stage in range(self.timeline.stages):
            events.append(_named("process_name", stage, 0, {"name": f"stage {stage}"}))
            events.append(_named("process_sort_index", stage, 0, {"sort_index": stage}))
            for thread, stream in enumerate(STREAMS):
                if (stage, stream) in used:
                    events.append(_named("thread_name", stage, thread, {"name": stream}))
                    events.append(_named("thread_sort_index", stage, thread, {"sort_index": thread}))
        events += [_event(piece) for piece in self.timeline.slices]
        events += [
            {
                "ph": "C",
                "name": "memory",
                "pid": point.stage,
                "ts": point.time_s * _MICRO,
                "args": {"GiB": point.held_bytes / 2**30},
            }
            for point in self.timeline.memory
        ]
        job, devices = self.job, f"{self.job.cluster.accelerator.called}s"
        about = {
            "job": f"{job.model.name} on {float(job.layout.gpus):.0f} {devices} of {job.cluster.name}, recipe {job.recipe.name}",
            "schedule": self.timeline.schedule,
            "step_time_s": self.timeline.step_time_s,
            "pipeline_on_bill_s": self.timeline.pipeline_s,
            "pipeline_simulated_s": self.timeline.simulated_s,
            "clock_scale": self.timeline.scale,
        }
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}

    def to_json(self) -> str:
        """Return the trace as compact JSON, as viewers read it."""
        return json.dumps(self.to_dict(), allow_nan=False, separators=(",", ":"))

    def columns(self) -> dict[str, list[Any]]:
        """Return all slices as columns."""
        return {field: [getattr(piece, field) for piece in self.timeline.slices] for field in Slice._fields}


def trace(est: Estimate) -> Trace:
    """Simulate one step with the durations of its bill; the last slice ends at its step time.

    Parameters
    ----------
    est : Estimate
        Of one layout.

    Returns
    -------
    Trace
        ``.to_json()`` is what ui.perfetto.dev opens.

    Raises
    ------
    CostModelError
        If the estimate holds many layouts.
    """
    return Trace(est.job, step_timeline(est))


def _named(kind: str, stage: int, thread: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": stage, "tid": thread, "args": arguments}


def _event(piece: Slice) -> dict[str, Any]:
    """Return a complete event; its arguments say what the bill says."""
    about: dict[str, Any] = {"bill_s": piece.busy_s}
    if piece.micro_batch >= 0:
        about |= {"micro_batch": piece.micro_batch, "chunk": piece.chunk}
    return {
        "ph": "X",
        "name": piece.name,
        "cat": piece.kind,
        "pid": piece.stage,
        "tid": STREAMS.index(piece.stream),
        "ts": piece.start_s * _MICRO,
        "dur": (piece.end_s - piece.start_s) * _MICRO,
        "cname": _COLOURS[piece.kind],
        "args": about,
    }
