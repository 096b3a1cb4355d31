"""One step as slices on tracks: what every pipeline stage does when, from the simulated schedule.

The schedule engine runs the orders with the durations of the bill. The bill charges the pipeline by a
closed form; where the simulation takes longer, its clock is scaled to fit, where it takes less, stages
stand still until the bill lets them go on. What runs once a step follows. So the last slice ends when
the bill says, and `StepTimeline.scale` tells how far both are apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.base.errors import LayoutError
from costmodel.bill.lines import COMMUNICATING, Phase, TimeLine
from costmodel.estimates.estimate import Estimate, estimate_job
from costmodel.estimates.pipeline_run import durations, fold_of, stages_in_order
from costmodel.physics.pipeline.engine import Task, simulate
from costmodel.physics.pipeline.orders import Orders
from costmodel.physics.pipeline.schedules import schedule_at, task_orders

if TYPE_CHECKING:
    from collections.abc import Iterable

    from costmodel.step.price import Priced

Array = NDArray[np.float64]

STREAMS = ("compute", *COMMUNICATING)
"""Tracks of a stage."""
_PARTS = ("F", "I", "W")
_NAMES = {"F": "forward", "B": "backward", "I": "backward input", "W": "backward weight"}
# In which order what runs once a step follows the pipeline.
_ORDER: dict[Phase, int] = {
    "grad_sync": 0,
    "optimizer": 1,
    "param_sync": 2,
    "forward": 3,
    "backward": 3,
    "backward_weight": 3,
    "recompute": 3,
    "step": 3,
}


class Slice(NamedTuple):
    """Something that runs on a track of a stage.

    Attributes
    ----------
    stage, stream, name : int, str, str
        Where, and what; `kind` groups slices of one colour.
    start_s, end_s : float
        From the step's start. [s]
    kind : str
        forward, backward, backward input, backward weight, communication, optimizer or overhead.
    micro_batch, chunk : int
        -1 where it belongs to none.
    busy_s : float
        Its time on the bill; longer than the slice where it would not fit into the window that hides it. [s]
    """

    stage: int
    stream: str
    name: str
    start_s: float
    end_s: float
    kind: str
    micro_batch: int = -1
    chunk: int = -1
    busy_s: float = 0.0


class MemoryPoint(NamedTuple):
    """Memory of one stage from a moment on."""

    stage: int
    time_s: float
    held_bytes: float


@dataclass(frozen=True)
class StepTimeline:
    """One step of one layout.

    Attributes
    ----------
    slices : tuple of Slice
        Those of one track never overlap.
    memory : tuple of MemoryPoint
        In order of time, by stage.
    step_time_s : float
        Of the bill, and the end of the last slice. [s]
    task_s : tuple of float
        Time in tasks, by stage. [s]
    pipeline_s, simulated_s : float
        What the bill charges for all micro-batches, bubble and messages; what the simulation took. [s]
    bubble_s : float
        What of it is the bubble: what the busiest stage waits for. [s]
    """

    slices: tuple[Slice, ...]
    memory: tuple[MemoryPoint, ...]
    task_s: tuple[float, ...]
    stages: int
    schedule: str
    step_time_s: float
    pipeline_s: float
    simulated_s: float
    bubble_s: float

    @property
    def scale(self) -> float:
        """Factor on the simulation's clock, 1 where it takes no longer than the bill. [-]."""
        return min(1.0, self.pipeline_s / self.simulated_s)

    def idle_s(self) -> Array:
        """Time of each stage in which no task runs, until the last one of all stages ends. [s]."""
        return self.pipeline_s - np.asarray(self.task_s)

    def peak_bytes(self) -> Array:
        """Most memory of each stage. [B]."""
        peaks = np.zeros(self.stages)
        for point in self.memory:
            peaks[point.stage] = max(peaks[point.stage], point.held_bytes)
        return peaks


MOST_PASSES = 50_000
"""Passes of micro-batches through chunks that are drawn; their trace takes 50 MB."""


def step_timeline(est: Estimate) -> StepTimeline:
    """Lay one step of one layout out in time.

    Parameters
    ----------
    est : Estimate
        Of one layout.

    Returns
    -------
    timeline : StepTimeline
        Slices of every stage and stream, and memory over time.

    Notes
    -----
    A task's communication is drawn in one piece: what the bill hides, beside the end of its compute,
    what it exposes, after it. What a data-parallel line hides is drawn at the end of the backward
    passes, or for parameters at the start of the step.
    """
    est.require_single("trace")
    placed = est.priced.placed
    layout = placed.layout
    stages, m = int(layout.pp), int(placed.micro_batches)
    if np.size(placed.stages.index) != stages:
        est = estimate_job(est.job, every_stage=True)
        placed = est.priced.placed
    passes = stages * int(layout.vp) * m
    if passes > MOST_PASSES:
        raise LayoutError(
            f"trace: {m:,} micro-batches through {stages * int(layout.vp)} chunks are more than {MOST_PASSES:,} passes; "
            "a smaller global_batch draws the same pattern"
        )
    schedule = schedule_at(layout.schedule).name
    orders = task_orders(schedule, stages, m, int(layout.vp))
    parts = _part_times(est.priced)
    pipeline = [line for line in est.bill.time_lines if line.axis == "pp" and line.phase == "step"]
    message_s = next((float(line.each_s) for line in pipeline if line.group == "pp"), 0.0)
    pending = float(placed.pending_weight_fraction)
    times = durations(est.priced)
    run = simulate(
        orders,
        **times._asdict(),
        message_s=message_s,
        blocking=not placed.recipe.overlap.pp_overlap,
        pending_weight_fraction=pending,
        synchronized=placed.synchronized,
    )
    in_blocks = {line.name for lines in est.priced.step.block_lines for line in lines}
    in_pipeline = in_blocks | {line.name for line in pipeline}
    step_s = float(est.step_time_s)
    after = [line for line in est.bill.time_lines if line.name not in in_pipeline]
    pipeline_s = step_s - sum(float(line.exposed_seconds) for line in after)
    begin = min(task.start_s for task in run.tasks)
    simulated_s = run.makespan_s()
    scale = min(1.0, pipeline_s / simulated_s)
    tasks = [
        task._replace(start_s=(task.start_s - begin) * scale, end_s=(task.end_s - begin) * scale)
        for task in run.tasks
    ]
    slices = _task_slices(tasks, orders, parts, fold_of(est.priced), scale)
    slices += _message_slices(tasks, orders, message_s * scale)
    slices += _step_slices(after, stages, pipeline_s, step_s)
    memory = _memory(est, tasks, stages, orders.tasks_per_stage, pending)
    return StepTimeline(
        slices=tuple(slices),
        memory=tuple(memory),
        task_s=tuple((run.busy_s() * scale).tolist()),
        stages=stages,
        schedule=schedule,
        step_time_s=step_s,
        pipeline_s=pipeline_s,
        simulated_s=simulated_s,
        bubble_s=float(est.exposed_by("toll").get("bubble", 0.0)),
    )


class _PartTimes(NamedTuple):
    """Seconds of one micro-batch in one part of its way (F, I or W), by stream and stage."""

    exposed_s: Array
    busy_s: Array


def _part_times(priced: Priced) -> dict[str, _PartTimes]:
    """Add up the lines of the blocks that each stage holds, by part and stream."""
    plan = stages_in_order(priced)
    shape = (2, len(STREAMS), plan.index.size)
    times = {part: _PartTimes(*np.zeros(shape)) for part in _PARTS}
    blocks = plan.blocks(priced.placed.model.mtp_layers)
    for held, lines in zip(blocks, priced.step.block_lines, strict=True):
        for line in lines:
            backward = "W" if line.phase == "backward_weight" else "I"
            part = times["F" if line.phase == "forward" else backward]
            stream = STREAMS.index(line.axis)
            part.exposed_s[stream] += np.asarray(held) * float(line.exposed_each_s)
            part.busy_s[stream] += np.asarray(held) * float(line.each_s)
    return times


def _task_slices(
    tasks: Iterable[Task], orders: Orders, parts: dict[str, _PartTimes], fold: int, scale: float
) -> list[Slice]:
    """Cut every task into its compute and, behind it, what the streams of communication expose."""
    made = []
    last, ranks = parts["F"].exposed_s.shape[1] - 1, len(orders.ranks)
    pieces = 1 if fold or last >= ranks else orders.tasks_per_stage
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


def _message_slices(tasks: Iterable[Task], orders: Orders, message_s: float) -> list[Slice]:
    """Send what a task made to the rank that goes on with it; a rank sends one message after the other."""
    if not message_s:
        return []
    onward: set[tuple[int, int, int]] = set()
    back: set[tuple[int, int, int]] = set()
    for way, path in enumerate(orders.paths):
        for here, there in pairwise(path):
            if here[0] != there[0]:
                onward.add((way, *here))
                back.add((way, *there))
    free: dict[int, float] = {}
    made = []
    for task in sorted(tasks, key=lambda task: task.end_s):
        place = (task.micro_batch % len(orders.paths), task.rank, task.chunk)
        if task.kind == "W" or place not in (onward if task.kind == "F" else back):
            continue
        start = max(task.end_s, free.get(task.rank, 0.0))
        free[task.rank] = start + message_s
        name = f"send {_NAMES[task.kind]} {task.micro_batch}"
        made.append(
            Slice(
                task.rank,
                "pp",
                name,
                start,
                start + message_s,
                "communication",
                task.micro_batch,
                task.chunk,
                message_s,
            )
        )
    return made


def _step_slices(lines: list[TimeLine], stages: int, pipeline_s: float, step_s: float) -> list[Slice]:
    """Draw what runs once a step, on every stage alike: exposed parts in a row, hidden parts in their windows."""
    ordered = sorted(lines, key=lambda line: _ORDER[line.phase])
    drawn: list[tuple[str, str, str, float, float, float]] = []
    at = pipeline_s
    hidden: dict[bool, list[tuple[str, float]]] = {True: [], False: []}
    for line in ordered:
        stream = line.axis if line.axis in STREAMS else "compute"
        seconds, shown = float(line.seconds), float(line.exposed_seconds)
        if stream == "dp" and seconds > shown:
            hidden[line.phase == "param_sync"].append((line.name, seconds - shown))
        if shown > 0:
            kind = (
                "optimizer"
                if line.axis == "optimizer"
                else "communication"
                if line.toll == "communication"
                else "overhead"
            )
            drawn.append((stream, line.name, kind, at, at + shown, seconds))
            at += shown
    if drawn:
        # The sum of many lines ends where the bill does, to the last digit.
        drawn[-1] = (*drawn[-1][:4], step_s, drawn[-1][5])
    sums = {first: sum(seconds for _, seconds in parts) for first, parts in hidden.items()}
    fit = min(1.0, pipeline_s / max(sum(sums.values()), 1e-30))
    for first, parts in hidden.items():
        start = 0.0 if first else pipeline_s - sums[first] * fit
        for name, seconds in parts:
            end = start + seconds * fit
            drawn.append(("dp", f"{name} (hidden)", "communication", start, end, seconds))
            start = end
    return [
        Slice(stage, stream, name, start, end, kind, busy_s=busy)
        for stage in range(stages)
        for stream, name, kind, start, end, busy in drawn
    ]


def _memory(
    est: Estimate, tasks: Iterable[Task], stages: int, tasks_per_stage: int, pending: float
) -> list[MemoryPoint]:
    """Follow each stage's memory: all that stays, and the activations of the micro-batches under way."""
    shape = (stages,)
    total = np.broadcast_to(est.bill.memory_per_stage_bytes(), shape)
    each, peak = np.zeros(stages), np.zeros(stages)
    for line in est.bill.memory_lines:
        if line.lasts == "in_flight":
            size = np.broadcast_to(line.bytes, shape)
            in_flight = np.broadcast_to(line.terms["in_flight"], shape)
            each, peak = each + size / in_flight, peak + size
    share = {"F": 1.0, "B": -1.0, "I": pending - 1.0, "W": -pending}
    changes: list[list[tuple[float, float]]] = [[(0.0, 0.0)] for _ in range(stages)]
    for task in tasks:
        # What ends when something starts has freed its memory.
        time = task.start_s if task.kind == "F" else task.end_s
        changes[task.rank].append((round(time, 12), share[task.kind] / tasks_per_stage))
    points = []
    for stage, steps in enumerate(changes):
        held = float(total[stage] - peak[stage])
        for time, change in sorted(steps):
            held += change * float(each[stage])
            points.append(MemoryPoint(stage, time, held))
    return points
