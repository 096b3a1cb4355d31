"""What figures show, as numbers: the bill by parts that fit a picture; nothing is added up anywhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.bill.lines import CATEGORY_NAMES, TimeLine
from costmodel.reporting.renderers import FIGURES

if TYPE_CHECKING:
    from costmodel.estimates.estimate import Estimate

Array = NDArray[np.float64]


class StackPart(NamedTuple):
    """A part of the step: `fill` names its style in `charts.FILLS`."""

    label: str
    fill: str
    exposed_s: float
    busy_s: float


STEP_PARTS = (
    *((CATEGORY_NAMES[name], name) for name in ("math", "hbm", "overhead")),
    ("tensor parallel", "tp"),
    ("context parallel", "cp"),
    ("expert parallel", "ep"),
    ("pipeline messages", "pp"),
    ("data parallel", "dp"),
    ("optimizer", "optimizer"),
    ("failures and checkpoints", "resilience"),
    (CATEGORY_NAMES["bubble"], "bubble"),
)
"""Labels and styles of the parts of a step, in the order they are drawn."""


def _fill_of(line: TimeLine) -> str:
    """Return which part of the picture a line belongs to."""
    if line.axis == "compute":
        return line.category if line.category in ("math", "hbm") else "overhead"
    return "bubble" if line.category == "bubble" else line.axis


def bubble_text(bubble_s: float, idle_s: Array, step_s: float) -> str:
    """Say what the bubble of the bill is, and why ranks are idle for longer (`idle_s` by rank); for every view.

    >>> bubble_text(0.1, np.asarray([0.1, 0.3]), 10.0)
    'bubble 1.0% of the step (what the busiest rank waits for); ranks idle 2.0% of it on average, as the others have less to do'
    """
    idle = float(np.mean(idle_s)) / step_s
    return (
        f"bubble {bubble_s / step_s:.1%} of the step (what the busiest rank waits for); ranks idle {idle:.1%} of it "
        "on average, as the others have less to do"
    )


def time_parts(est: Estimate) -> list[StackPart]:
    """Return the step by parts, in the order they are drawn; exposed seconds sum to the step time."""
    est.require_single("time_parts")
    exposed: dict[str, float] = {}
    busy: dict[str, float] = {}
    for line in est.bill.time_lines:
        part = _fill_of(line)
        exposed[part] = exposed.get(part, 0.0) + float(line.exposed_seconds)
        busy[part] = busy.get(part, 0.0) + float(line.seconds)
    return [
        StackPart(label, name, exposed[name], busy[name])
        for label, name in STEP_PARTS
        if busy.get(name, 0.0) > 0 or exposed.get(name, 0.0) != 0
    ]


MEMORY_PARTS = (
    ("parameters", "parameters"),
    ("gradients", "gradients"),
    ("optimizer states", "optimizer"),
    ("activations", "activation"),
    ("buffers", "buffer"),
    ("reserve (allocator, context, NCCL)", "reserve"),
)
"""Labels and styles of the memory figure, from the bottom up."""


def memory_stacks(est: Estimate) -> tuple[Array, dict[str, Array]]:
    """Return the stage numbers, and the bytes of each part on every stage; parts sum to the memory."""
    est.require_single("memory_stacks")
    per_stage = est.bill.memory_per_stage_bytes()
    stages = np.broadcast_to(est.priced.placed.stages.index, per_stage.shape)
    parts = {name: np.zeros(per_stage.shape) for _, name in MEMORY_PARTS}
    for line in est.bill.memory_lines:
        parts[line.part] += np.broadcast_to(line.bytes, per_stage.shape)
    return np.asarray(stages), parts


def has_figure(est: Estimate, name: str) -> bool:
    """Return whether a job has a figure: there is a pipeline, or there are several GPUs, where it is about those."""
    needs = next(row["needs"] for row in FIGURES if (row["answer"], row["figure"]) == ("Estimate", name))
    return not needs or float(getattr(est.job.layout, needs)) > 1


def job_title(est: Estimate) -> str:
    """Return the job in a line, for the title of a figure."""
    job = est.job
    return f"{job.model.name} on {float(job.layout.gpus):,.0f} {job.cluster.accelerator.name} ({job.cluster.name})"
