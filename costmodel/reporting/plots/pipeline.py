"""The pipeline as a Gantt chart, from the simulated schedule with this job's durations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.base.units import format_seconds
from costmodel.estimates.pipeline_run import PipelineRun, run_pipeline
from costmodel.physics.pipeline.schedules import schedule_at
from costmodel.reporting.figures import FILLS, empty_figure
from costmodel.reporting.series import bubble_text, job_title
from costmodel.reporting.tables import job_text

if TYPE_CHECKING:
    from costmodel.estimates.estimate import Estimate

KINDS = {
    "F": ("forward", "forward"),
    "B": ("backward", "backward"),
    "I": ("backward to inputs", "backward_input"),
    "W": ("backward to weights", "backward_weight"),
}
_LABELLED_TASKS = 45  # tasks across the width beyond which numbers do not fit


def draw_pipeline(est: Estimate) -> Any:
    """Draw every task of every pipeline rank; white is the bubble."""
    run = run_pipeline(est)
    p = run.timeline.num_ranks
    whole_s = run.timeline.makespan_s() + run.after_s
    shown = "" if run.is_whole else f" (first {run.simulated} of {run.micro_batches:,} micro-batches)"
    title = (
        f"{job_title(est)}: {schedule_at(est.job.layout.schedule).name} pipeline{shown}\n"
        f"{job_text(est)}\n{idle_text(est, run)}"
    )
    zoomed = len(run.timeline.tasks) / p > _LABELLED_TASKS
    figure = empty_figure(title, size=(11.0, (0.22 * p + 1.1) * (2 if zoomed else 1) + 0.9))
    panels = figure.subplots(2 if zoomed else 1, 1, squeeze=False)[:, 0]
    _draw(panels[0], run, (0.0, whole_s), numbers=not zoomed)
    step = format_seconds(float(est.step_time_s), 4)
    panels[0].set_xlabel(
        f"time [s]; whole step, {format_seconds(whole_s, 4)} as simulated, {step} on the bill"
    )
    if zoomed:
        longest = max(task.end_s - task.start_s for task in run.timeline.tasks)
        _draw(panels[1], run, (0.0, min(whole_s, 25 * longest)), numbers=True)
        panels[1].set_xlabel("time [s]; the beginning, with numbers of micro-batches")
    _legend(figure, run)
    return figure


def idle_text(est: Estimate, run: PipelineRun) -> str:
    """Say what the bubble of the bill is, and what ranks stand idle in the simulation."""
    makespan_s, step_s = run.timeline.makespan_s(), float(est.step_time_s)
    # Where only the beginning is drawn, its bubble is longer than its share of the step's.
    idle_s = (makespan_s - run.timeline.busy_s()) * (step_s / (makespan_s + run.after_s))
    bubble_s = float(est.exposed_by("toll").get("bubble", 0.0))
    if not run.is_whole:
        return f"bubble {bubble_s / step_s:.1%} of the step: what the busiest rank waits for"
    return bubble_text(bubble_s, idle_s, step_s)


def _draw(axes: Any, run: PipelineRun, limits: tuple[float, float], *, numbers: bool) -> None:
    """Draw the tasks that begin inside the limits."""
    p = run.timeline.num_ranks
    tasks = [task for task in run.timeline.tasks if task.start_s < limits[1]]
    chunks = 1 + max(task.chunk for task in tasks)
    for kind, (_, name) in KINDS.items():
        for chunk in range(chunks):
            # Later chunks are paler, so that they can be told apart.
            paleness = 1.0 - 0.55 * chunk / max(chunks - 1, 1) if chunks > 1 else 1.0
            held = [task for task in tasks if task.kind == kind and task.chunk == chunk]
            for rank in range(p):
                bars = [(task.start_s, task.end_s - task.start_s) for task in held if task.rank == rank]
                axes.broken_barh(
                    bars,
                    (rank - 0.45, 0.9),
                    facecolor=_paler(FILLS[name][0], paleness),
                    edgecolor="black",
                    linewidth=0.4 if numbers else 0.15,
                )
    if run.after_s and limits[1] > run.timeline.makespan_s():
        start = run.timeline.makespan_s()
        for rank in range(p):
            axes.broken_barh(
                [(start, run.after_s)],
                (rank - 0.45, 0.9),
                facecolor=FILLS["rest"][0],
                hatch="...",
                edgecolor="black",
                linewidth=0.3,
            )
    if numbers:
        for task in tasks:
            width = (task.end_s - task.start_s) / (limits[1] - limits[0])
            if width > 0.011 and task.end_s <= limits[1]:
                dark = task.kind in "BI" and task.chunk == 0
                axes.text(
                    (task.start_s + task.end_s) / 2,
                    task.rank,
                    str(task.micro_batch + 1),
                    ha="center",
                    va="center",
                    fontsize=6,
                    color="white" if dark else "black",
                )
    axes.set(xlim=limits, ylim=(p - 0.4, -0.6), ylabel="pipeline rank [-]")
    axes.set_yticks(range(0, p, max(1, p // 16)))


def _paler(colour: str, share: float) -> str:
    """Mix a colour with white."""
    rgb = np.asarray([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    mixed = np.round(255 - (255 - rgb) * share).astype(int)
    return "#{:02x}{:02x}{:02x}".format(*mixed)


def _legend(figure: Any, run: PipelineRun) -> None:
    """Name the kinds of task, the bubble and the rest of the step."""
    from matplotlib.patches import Patch

    kinds = {task.kind for task in run.timeline.tasks}
    handles = [
        Patch(facecolor=FILLS[name][0], edgecolor="black", label=label)
        for kind, (label, name) in KINDS.items()
        if kind in kinds
    ]
    handles.append(Patch(facecolor="white", edgecolor="black", label="no task: bubble, or less to do"))
    if run.after_s:
        handles.append(
            Patch(
                facecolor=FILLS["rest"][0],
                hatch="...",
                edgecolor="black",
                label="gradients, optimizer, overhead",
            )
        )
    if any(task.chunk for task in run.timeline.tasks):
        handles.append(Patch(facecolor="none", edgecolor="none", label="paler: later chunks"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize="small")
