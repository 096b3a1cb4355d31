"""One step on a time axis: what every pipeline stage does when, and the same as a trace-event file.

The schedule engine runs the orders with the durations of the bill. The bill charges the pipeline by a closed form;
where the simulation takes longer, its clock is scaled to fit, where it takes less, stages stand still until the bill
lets them go on. What runs once a step follows. So the last slice ends when the bill says, and `Trace.scale`
tells how far both are apart.

References
----------
.. [1] "Trace Event Format", Google (complete events X, counters C, metadata M; times in microseconds), which
   chrome://tracing and ui.perfetto.dev open: here a process a stage, a thread a stream.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.base.answer import Answer, columns_of
from costmodel.base.errors import LayoutError
from costmodel.bill.lines import TimeLine
from costmodel.describe.jobs.job import Job
from costmodel.estimates.estimate import Estimate, estimate_job
from costmodel.estimates.pipeline_run import (
    STREAMS,
    PartTimes,
    PipelineRun,
    fold_of,
    part_times,
    run_pipeline,
)
from costmodel.physics.pipeline.engine import Task
from costmodel.physics.pipeline.schedules import schedule_at

if TYPE_CHECKING:
    from collections.abc import Iterable

Array = NDArray[np.float64]

MOST_PASSES = 50_000  # Passes of micro-batches through chunks that are drawn; their trace takes 50 MB
_NAMES = {"F": "forward", "B": "backward", "I": "backward input", "W": "backward weight"}
_ONCE_ORDER = ("grad_sync", "optimizer", "param_sync")
"""In which order what runs once a step follows the pipeline; all else comes last."""
_COLOURS = {
    "forward": "good",
    "backward": "bad",
    "backward input": "bad",
    "backward weight": "terrible",
    "communication": "thread_state_iowait",
    "optimizer": "thread_state_running",
    "overhead": "grey",
}


class Slice(NamedTuple):
    """Something that runs on a track of a stage, from the step's start."""

    stage: int
    stream: str
    name: str
    start_s: float
    end_s: float
    kind: str
    """Slices of one colour: one of `_COLOURS`."""
    micro_batch: int = -1  # -1 where it belongs to none, as `chunk`
    chunk: int = -1
    busy_s: float = 0.0
    """Its time on the bill; longer than the slice where it would not fit into the window that hides it. [s]"""


class MemoryPoint(NamedTuple):
    """Memory of one stage from a moment on."""

    stage: int
    time_s: float
    held_bytes: float


@dataclass(frozen=True, repr=False)
class Trace(Answer):
    """One step of one layout laid out in time; slices of one track never overlap."""

    job: Job
    slices: tuple[Slice, ...]
    memory: tuple[MemoryPoint, ...]
    """In order of time, by stage."""
    task_s: tuple[float, ...]  # Time in tasks, by stage. [s]
    stages: int
    schedule: str
    step_time_s: float
    """Of the bill, and the end of the last slice. [s]"""
    pipeline_s: float  # What the bill charges for all micro-batches, bubble and messages. [s]
    simulated_s: float  # What the simulation took. [s]
    bubble_s: float  # What of it the busiest stage waits for. [s]

    @property
    def scale(self) -> float:
        """Factor on the simulation's clock, 1 where it takes no longer than the bill. [-]."""
        return min(1.0, self.pipeline_s / self.simulated_s)

    def idle_s(self) -> Array:
        """Time of each stage in which no task runs, until the last one of all stages ends. [s]."""
        return self.pipeline_s - np.asarray(self.task_s)

    def peak_bytes(self) -> Array:
        """Highest memory of each stage. [B]."""
        peaks = np.zeros(self.stages)
        for point in self.memory:
            peaks[point.stage] = max(peaks[point.stage], point.held_bytes)
        return peaks

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

        def label(what: str, stage: int, thread: int, name: str, index: int) -> None:
            event = {"ph": "M", "pid": stage, "tid": thread}
            events.append({**event, "name": f"{what}_name", "args": {"name": name}})
            events.append({**event, "name": f"{what}_sort_index", "args": {"sort_index": index}})

        used = {(piece.stage, piece.stream) for piece in self.slices}
        for stage in range(self.stages):
            label("process", stage, 0, f"stage {stage}", stage)
            for thread, stream in enumerate(STREAMS):
                if (stage, stream) in used:
                    label("thread", stage, thread, stream, thread)
        events += [_event(piece) for piece in self.slices]
        for stage, time_s, held_bytes in self.memory:
            gib = {"GiB": held_bytes / 2**30}
            events.append({"ph": "C", "name": "memory", "pid": stage, "ts": 1e6 * time_s, "args": gib})
        job, devices = self.job, f"{self.job.cluster.accelerator.called}s"
        about = {
            "job": f"{job.model.name} on {float(job.layout.gpus):.0f} {devices} of {job.cluster.name}, recipe {job.recipe.name}",
            "schedule": self.schedule,
            "step_time_s": self.step_time_s,
            "pipeline_on_bill_s": self.pipeline_s,
            "pipeline_simulated_s": self.simulated_s,
            "clock_scale": self.scale,
        }
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}

    def to_json(self) -> str:
        """Return the trace as compact JSON, as viewers read it."""
        return json.dumps(self.to_dict(), allow_nan=False, separators=(",", ":"))

    def columns(self) -> dict[str, list[Any]]:
        """Return all slices as columns."""
        return columns_of([piece._asdict() for piece in self.slices])


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
    est.require_single("trace")
    layout = est.priced.placed.layout
    stages, chunks, m = int(layout.pp), int(layout.pp * layout.vp), int(est.priced.placed.micro_batches)
    if chunks * m > MOST_PASSES:
        raise LayoutError(
            f"trace: {m:,} micro-batches through {chunks} chunks are more than {MOST_PASSES:,} passes; "
            "a smaller global_batch draws the same pattern"
        )
    if np.size(est.priced.placed.stages.index) != stages:
        est = estimate_job(est.job, every_stage=True)
    run = run_pipeline(est, most_tasks=3 * stages * chunks * m)
    in_pipeline = {line.name for lines in est.priced.step.block_lines for line in lines}
    in_pipeline |= {line.name for line in est.bill.time_lines if line.axis == "pp" and line.phase == "step"}
    after = [line for line in est.bill.time_lines if line.name not in in_pipeline]
    step_s = float(est.step_time_s)
    pipeline_s = step_s - sum(float(line.exposed_seconds) for line in after)
    begin = min(task.start_s for task in run.timeline.tasks)
    simulated_s = run.timeline.makespan_s()
    scale = min(1.0, pipeline_s / simulated_s)
    tasks = [
        task._replace(start_s=(task.start_s - begin) * scale, end_s=(task.end_s - begin) * scale)
        for task in run.timeline.tasks
    ]
    slices = _task_slices(tasks, run, part_times(est.priced), fold_of(est.priced), scale)
    slices += _message_slices(tasks, run, scale)
    slices += _once_slices(after, stages, pipeline_s, step_s)
    return Trace(
        job=est.job,
        slices=tuple(slices),
        memory=tuple(_memory(est, tasks, run.orders.tasks_per_stage)),
        task_s=tuple((run.timeline.busy_s() * scale).tolist()),
        stages=stages,
        schedule=schedule_at(layout.schedule).name,
        step_time_s=step_s,
        pipeline_s=pipeline_s,
        simulated_s=simulated_s,
        bubble_s=float(est.exposed_by("category").get("bubble", 0.0)),
    )


def _task_slices(
    tasks: Iterable[Task], run: PipelineRun, parts: dict[str, PartTimes], fold: int, scale: float
) -> list[Slice]:
    """Cut every task into its compute and, behind it, what the streams of communication expose."""
    made = []
    last, ranks = parts["F"].exposed_s.shape[1] - 1, len(run.orders.ranks)
    pieces = 1 if fold or last >= ranks else run.orders.tasks_per_stage
    for task in tasks:
        kinds = ("I", "W") if task.kind == "B" else (task.kind,)
        around = task.rank + (task.chunk * ranks if last >= ranks else 0)
        stage = last - task.rank if fold and task.chunk == 1 else around
        exposed = np.sum([parts[kind].exposed_s[:, stage] for kind in kinds], axis=0) / pieces
        busy = np.sum([parts[kind].busy_s[:, stage] for kind in kinds], axis=0) / pieces
        name = f"{_NAMES[task.kind]} {task.micro_batch}" + (f".{task.chunk}" if task.chunk else "")
        at = task.start_s
        for stream, shown, whole in zip(STREAMS, exposed, busy, strict=True):
            if not whole:
                continue
            # What is hidden runs beside the compute before it; it cannot start before the task does.
            start = at if stream == "compute" else max(task.start_s, at - (whole - shown) * scale)
            at += float(shown) * scale
            kind = _NAMES[task.kind] if stream == "compute" else "communication"
            made.append(
                Slice(task.rank, stream, name, start, at, kind, task.micro_batch, task.chunk, float(whole))
            )
    return made


def _message_slices(tasks: Iterable[Task], run: PipelineRun, scale: float) -> list[Slice]:
    """Send what a task made to the rank that goes on with it; a rank sends one message after the other."""
    message_s, paths = run.message_s * scale, run.orders.paths
    if not message_s:
        return []
    onward: set[tuple[int, int, int]] = set()
    back: set[tuple[int, int, int]] = set()
    for way, path in enumerate(paths):
        for here, there in pairwise(path):
            if here[0] != there[0]:
                onward.add((way, *here))
                back.add((way, *there))
    free: dict[int, float] = {}
    made = []
    for task in sorted(tasks, key=lambda task: task.end_s):
        place = (task.micro_batch % len(paths), task.rank, task.chunk)
        if task.kind == "W" or place not in (onward if task.kind == "F" else back):
            continue
        start = max(task.end_s, free.get(task.rank, 0.0))
        end = free[task.rank] = start + message_s
        name = f"send {_NAMES[task.kind]} {task.micro_batch}"
        made.append(
            Slice(task.rank, "pp", name, start, end, "communication", task.micro_batch, task.chunk, message_s)
        )
    return made


def _once_slices(lines: list[TimeLine], stages: int, pipeline_s: float, step_s: float) -> list[Slice]:
    """Draw what runs once a step, on every stage alike: exposed parts in a row, hidden parts in their windows."""
    drawn: list[Slice] = []
    at = pipeline_s
    hidden: dict[bool, list[tuple[str, float]]] = {True: [], False: []}
    order = dict(zip(_ONCE_ORDER, range(3), strict=True))
    for line in sorted(lines, key=lambda line: order.get(line.phase, 3)):
        stream = line.axis if line.axis in STREAMS else "compute"
        seconds, shown = float(line.seconds), float(line.exposed_seconds)
        if stream == "dp" and seconds > shown:
            hidden[line.phase == "param_sync"].append((line.name, seconds - shown))
        if shown > 0:
            kind = "communication" if line.category == "communication" else "overhead"
            kind = "optimizer" if line.axis == "optimizer" else kind
            drawn.append(Slice(0, stream, line.name, at, at + shown, kind, busy_s=seconds))
            at += shown
    if drawn:
        # The sum of many lines ends where the bill does, to the last digit.
        drawn[-1] = drawn[-1]._replace(end_s=step_s)
    sums = {first: sum(seconds for _, seconds in parts) for first, parts in hidden.items()}
    fit = min(1.0, pipeline_s / max(sum(sums.values()), 1e-30))
    for first, parts in hidden.items():
        start = 0.0 if first else pipeline_s - sums[first] * fit
        for name, seconds in parts:
            end = start + seconds * fit
            drawn.append(Slice(0, "dp", f"{name} (hidden)", start, end, "communication", busy_s=seconds))
            start = end
    return [piece._replace(stage=stage) for stage in range(stages) for piece in drawn]


def _memory(est: Estimate, tasks: Iterable[Task], tasks_per_stage: int) -> list[MemoryPoint]:
    """Follow each stage's memory: all that stays, and the activations of the micro-batches under way."""
    stages = int(est.job.layout.pp)
    pending = float(est.priced.placed.pending_weight_fraction)
    total = np.broadcast_to(est.bill.memory_per_stage_bytes(), (stages,))
    each, peak = np.zeros(stages), np.zeros(stages)
    for line in est.bill.memory_lines:
        if line.lasts == "in_flight":
            size = np.broadcast_to(line.bytes, (stages,))
            each, peak = each + size / np.broadcast_to(line.terms["in_flight"], (stages,)), peak + size
    share = {"F": 1.0, "B": -1.0, "I": pending - 1.0, "W": -pending}
    changes: list[list[tuple[float, float]]] = [[(0.0, 0.0)] for _ in range(stages)]
    for task in tasks:
        # What ends when something starts has freed its memory.
        time = task.start_s if task.kind == "F" else task.end_s
        changes[task.rank].append((round(time, 12), share[task.kind] / tasks_per_stage))
    points = []
    for stage, steps in enumerate(changes):
        current = float(total[stage] - peak[stage])
        for time, change in sorted(steps):
            current += change * float(each[stage])
            points.append(MemoryPoint(stage, time, current))
    return points


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
        "ts": 1e6 * piece.start_s,
        "dur": 1e6 * (piece.end_s - piece.start_s),
        "cname": _COLOURS[piece.kind],
        "args": about,
    }
