"""One step as a trace-event file, for chrome://tracing and ui.perfetto.dev: a process a stage, a thread a stream.

References
----------
.. [1] "Trace Event Format", Google (complete events X, counters C, metadata M; times in microseconds).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_bytes, format_seconds
from costmodel.estimates.timeline import STREAMS, Slice, StepTimeline

if TYPE_CHECKING:
    from costmodel.estimates.estimate import Estimate

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


def trace_record(timeline: StepTimeline, est: Estimate) -> dict[str, Any]:
    """Return the trace-event object of a step.

    Parameters
    ----------
    timeline : StepTimeline
        Of `step_timeline`.
    est : Estimate
        What it was made from, for the title.

    Returns
    -------
    trace : dict
        ``traceEvents``: names of processes and threads, a slice an event with the stage as process
        and the stream as thread, and a counter of memory a stage. ``otherData``: the job, the step
        time, and how far simulation and bill are apart.
    """
    events: list[dict[str, Any]] = []
    used = {(piece.stage, piece.stream) for piece in timeline.slices}
    for stage in range(timeline.stages):
        events.append(_named("process_name", stage, 0, {"name": f"stage {stage}"}))
        events.append(_named("process_sort_index", stage, 0, {"sort_index": stage}))
        for thread, stream in enumerate(STREAMS):
            if (stage, stream) in used:
                events.append(_named("thread_name", stage, thread, {"name": stream}))
                events.append(_named("thread_sort_index", stage, thread, {"sort_index": thread}))
    events += [_event(piece) for piece in timeline.slices]
    events += [
        {
            "ph": "C",
            "name": "memory",
            "pid": point.stage,
            "ts": point.time_s * _MICRO,
            "args": {"GiB": point.held_bytes / 2**30},
        }
        for point in timeline.memory
    ]
    job = est.job
    about = {
        "job": f"{job.model.name} on {float(job.layout.gpus):.0f} GPUs of {job.cluster.name}, recipe {job.recipe.name}",
        "schedule": timeline.schedule,
        "step_time_s": timeline.step_time_s,
        "pipeline_on_bill_s": timeline.pipeline_s,
        "pipeline_simulated_s": timeline.simulated_s,
        "clock_scale": timeline.scale,
    }
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def trace_text(timeline: StepTimeline, est: Estimate) -> str:
    """Return the trace as compact JSON."""
    return json.dumps(trace_record(timeline, est), allow_nan=False, separators=(",", ":"))


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


def trace_columns(timeline: StepTimeline) -> dict[str, list[Any]]:
    """Return all slices as columns."""
    fields = Slice._fields
    return {field: [getattr(piece, field) for piece in timeline.slices] for field in fields}


def trace_grid(timeline: StepTimeline) -> Grid:
    """Return a row a stage: time in tasks, idle time and most memory."""
    rows = [
        [
            f"{stage}",
            format_seconds(busy, 4),
            format_seconds(float(idle), 4),
            f"{float(idle) / timeline.pipeline_s:.1%}",
            format_bytes(float(held)),
        ]
        for stage, (busy, idle, held) in enumerate(
            zip(timeline.task_s, timeline.idle_s(), timeline.peak_bytes(), strict=True)
        )
    ]
    note = (
        f"Schedule {timeline.schedule}, simulated: {format_seconds(timeline.simulated_s, 4)} for all micro-batches, "
        f"{format_seconds(timeline.pipeline_s, 4)} on the bill; step {format_seconds(timeline.step_time_s, 4)}."
    )
    titles = columns("Stage >", "In tasks >", "Idle >", "Idle share >", "Most memory >")
    return Grid("Stages of a step", titles, rows, note=note)
