"""Figures of estimates, as data: the step, its memory, its pipeline, both rooflines; jobs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.base.units import format_bytes, format_seconds, format_si
from costmodel.describe.hardware.kernels import PEAK_KEY
from costmodel.estimates.pipeline_run import PipelineRun, lines_after_pipeline, run_pipeline
from costmodel.estimates.roofline import OperatorRow, Roofline, axis_rows, operator_rows
from costmodel.physics.network.comm_roofline import ridge_points
from costmodel.physics.pipeline.schedules import schedule_at
from costmodel.reporting.charts import (
    COLOURS,
    DASHES,
    FILLS,
    Bars,
    Chart,
    Curve,
    Dots,
    Panel,
    rows_of,
)
from costmodel.reporting.series import (
    MEMORY_PARTS,
    STEP_PARTS,
    bubble_text,
    job_title,
    memory_stacks,
    time_parts,
)
from costmodel.reporting.tables import job_text
from costmodel.what_if.sensitivity import Effect, Sensitivity, sensitivity

if TYPE_CHECKING:
    from costmodel.estimates.estimate import Estimate
    from costmodel.physics.pipeline.engine import Task
    from costmodel.what_if.compare import Comparison

_GIB = 2.0**30


def _titled(est: Estimate, text: str) -> str:
    """Return the title of a figure of a job: what it shows, and below that the layout."""
    return f"{job_title(est)}: {text}\n{job_text(est)}"


def time_chart(est: Estimate) -> Chart:
    """Draw the step as a waterfall: each part begins where the one before it ends."""
    parts, step = time_parts(est), float(est.step_time_s)
    starts = np.cumsum([0.0, *(part.exposed_s for part in parts)])
    bars = []
    for row, part in enumerate(parts):
        hidden = max(part.busy_s - part.exposed_s, 0.0)
        text = f"{format_seconds(part.exposed_s)} · {part.exposed_s / step:.1%}"
        text += f" (+ {format_seconds(hidden)} hidden)" if hidden > 0.005 * step else ""
        bars.append(
            Bars(
                fill=part.fill,
                at=[row],
                lengths=[part.exposed_s],
                starts=[float(starts[row])],
                texts=[text],
                hover="%{about}",
                about=[f"{part.label}\nwaited for: {text}\nbusy: {format_seconds(part.busy_s)}"],
            )
        )
    bars.append(Bars(fill="total", at=[len(parts)], lengths=[step], texts=[format_seconds(step, 4)]))
    shape = rows_of([*(part.label for part in parts), "step time"])
    panel = Panel(marks=bars, x="time that the step waits for [s]", x_range=(0.0, 1.4 * step), **shape)
    return Chart(title=_titled(est, f"{format_seconds(step, 4)} a step"), panels=[panel])


def memory_chart(est: Estimate) -> Chart:
    """Draw the memory of a GPU on every pipeline stage as a gauge, up to the line of what the device offers."""
    stages, parts = memory_stacks(est)
    capacity, worst = est.memory_capacity_bytes, float(est.memory_bytes_per_gpu)
    memory_by_part = [
        {name: float(part[row]) / _GIB for name, part in parts.items()} for row in range(len(stages))
    ]
    totals = [format_bytes(float(total)) for total in np.sum(list(parts.values()), axis=0)]
    fullest = int(np.argmax(np.sum(list(parts.values()), axis=0)))
    named = [(f"{label} {format_bytes(float(parts[name][fullest]))}", name) for label, name in MEMORY_PARTS]
    offers = f"{est.job.cluster.accelerator.name} offers {format_bytes(capacity)}"
    limit = Curve(label=offers, x=[capacity / _GIB] * 2, y=[-0.5, len(stages) - 0.5], dash="--")
    panel = Panel(
        marks=[*_stacked(named, memory_by_part, totals), limit],
        x="memory of a GPU [GiB]" + (f"; parts of stage {fullest}, the fullest" if len(stages) > 1 else ""),
        x_range=(0.0, 1.2 * max(worst, capacity) / _GIB),
        **_ranks(len(stages), "pipeline stage [-]", "memory"),
    )
    fits = "fits" if est.fits_gpu else "does not fit"
    title = _titled(est, f"{format_bytes(worst)} of {format_bytes(capacity)}, {fits}")
    return Chart(title=title, panels=[panel])


def step_panel(est: Estimate) -> Panel:
    """Return the step as one stacked bar, its parts named with what the step waits for."""
    step_s = float(est.step_time_s)
    parts = [part for part in time_parts(est) if part.exposed_s > 0]
    named = [
        (f"{part.label} {format_seconds(part.exposed_s)} ({part.exposed_s / step_s:.1%})", part.fill)
        for part in parts
    ]
    bars = _stacked(named, [{part.fill: part.exposed_s for part in parts}], [format_seconds(step_s, 4)])
    return Panel(
        marks=bars,
        x="time that the step waits for [s]",
        x_range=(0.0, 1.22 * step_s),
        **_ranks(1, alone="step"),
    )


def _ranks(count: int, title: str = "", alone: str = "0") -> dict[str, Any]:
    """Return y axis and height of a panel with a row a pipeline stage or rank; `alone` names the only one."""
    several = {row: str(row) for row in range(0, count, max(1, count // 16))}
    return {
        "y": title if count > 1 else "",
        "y_range": (count - 0.4, -0.6),
        "y_ticks": several if count > 1 else {0: alone},
        "height": max(0.3 * count, 0.6),
    }


# --- the pipeline ---

KINDS = {
    "F": ("forward", "forward"),
    "B": ("backward", "backward"),
    "I": ("backward", "backward_input"),
    "W": ("weight gradient", "backward_weight"),
}
MOST_TASKS = 6000
"""That a page draws."""
_LABELLED_TASKS = 45
"""Tasks across the width beyond which a rank is drawn by shares of time, and a period of it by itself."""
_PERIOD_TASKS = 24
"""Tasks of a rank in the period."""
_SLOTS = 120
"""Pieces of the step in which shares are taken."""


def pipeline_chart(est: Estimate, most_tasks: int | None = None) -> Chart:
    """Draw what every pipeline rank does over the step, of so many tasks at most."""
    run = run_pipeline(est) if most_tasks is None else run_pipeline(est, most_tasks=most_tasks)
    spread_s = sum(
        float(line.exposed_seconds) for line in lines_after_pipeline(est.bill) if line.axis == "compute"
    )
    # Host overhead is paid between kernels all along: tasks last longer by it, and what follows them is the rest.
    stretch = 1.0 + spread_s / run.timeline.makespan_s()
    tasks = [
        task._replace(start_s=task.start_s * stretch, end_s=task.end_s * stretch)
        for task in run.timeline.tasks
    ]
    p, end_s = len(run.orders.ranks), run.timeline.makespan_s() * stretch
    after_s = max(run.after_s - spread_s, 0.0)
    step = format_seconds(float(est.step_time_s), 4)
    shape = {**_ranks(p, "pipeline rank [-]"), "height": max(0.26 * p, 1.1)}
    drawn = "whole step" if run.is_whole else f"first {run.simulated} of {run.micro_batches:,} micro-batches"
    whole: Any = {"x_range": (0.0, end_s + after_s)} | shape
    whole["x"] = f"time [s]; {drawn}; step time {step}"
    look: dict[str, Any] = {"width": 0.9, "edge": 0.0}
    ranks = np.arange(p)
    ends = [Bars(label="idle", fill="bubble", at=ranks, lengths=[end_s] * p, hover="idle", **look)]
    if after_s:
        hover = "%{x:.4f} s after the last task"
        about: Any = {"label": "gradients, optimizer", "fill": "optimizer", "hover": hover}
        ends.append(Bars(at=ranks, starts=[end_s] * p, lengths=[after_s] * p, **about, **look))
    if len(tasks) / p <= _LABELLED_TASKS:
        panels = [Panel(marks=[*ends, *_tasks(tasks)], **whole)]
    else:
        period_s = _PERIOD_TASKS * sum(task.end_s - task.start_s for task in tasks) / len(tasks)
        start, stop = 0.5 * end_s, min(end_s, 0.5 * end_s + period_s)
        within = [task for task in tasks if task.end_s > start and task.start_s < stop]
        idle = Bars(fill="bubble", at=ranks, starts=[start] * p, lengths=[stop - start] * p, **look)
        panels = [
            Panel(marks=[*ends, *_shares(tasks, p, end_s)], **whole),
            Panel(
                marks=[idle, *_tasks(within)],
                x="time [s]; a period, with numbers of micro-batches",
                x_range=(start, stop),
                **shape,
            ),
        ]
    shown = "" if run.is_whole else f" (first {run.simulated} of {run.micro_batches:,} micro-batches)"
    name = schedule_at(est.job.layout.schedule).name
    title = f"{_titled(est, f'{name} pipeline{shown}')}\n{idle_text(est, run)}"
    parts = [f"Hatched is idle; {idle_text(est, run)}."]
    if len(panels) > 1:
        parts.append("Above, heights are shares of time; below is a period from the middle of the step.")
    if any(task.chunk for task in tasks):
        parts.append("Later chunks are paler.")
    if spread_s:
        parts.append(f"Host overhead, {format_seconds(spread_s, 3)}, is spread over the tasks.")
    return Chart(title=title, panels=panels, note=" ".join(parts), legend_columns=6, width=11.0)


def _shares(tasks: Sequence[Task], p: int, end_s: float) -> list[Bars]:
    """Return, by rank and piece of the step, how much of it each kind of pass takes, stacked by height."""
    slots = max(20, min(_SLOTS, MOST_TASKS // (len(KINDS) * p)))
    edges = np.linspace(0.0, end_s, slots + 1)
    length = edges[1]
    rank = np.asarray([task.rank for task in tasks])
    starts, stops = np.asarray([(task.start_s, task.end_s) for task in tasks]).T
    below, bars = np.zeros((p, slots)), []
    for kind, (label, name) in KINDS.items():
        of_kind = np.asarray([task.kind == kind for task in tasks])
        if not of_kind.any():
            continue
        # Time of a kind before each edge; its differences are the time in each piece.
        until = np.clip(edges[None, :], starts[of_kind, None], stops[of_kind, None]) - starts[of_kind, None]
        spent = np.zeros((p, slots + 1))
        np.add.at(spent, rank[of_kind], until)
        share = np.diff(spent, axis=1) / length
        at, slot = np.nonzero(share > 0.002)
        height = 0.9 * share[at, slot]
        bars.append(
            Bars(
                label=label,
                fill=name,
                at=at + 0.45 - 0.9 * below[at, slot] - 0.5 * height,
                starts=edges[slot],
                lengths=np.full(len(slot), length),
                width=height,
                edge=0.0,
                about=[f"{value:.0%}" for value in share[at, slot]],
                hover=f"%{{about}} {label}\nfrom %{{base:.4f}} s",
            )
        )
        below += share
    return bars


def _tasks(tasks: Sequence[Task]) -> list[Bars]:
    """Return the bars of tasks, kind by kind and chunk by chunk, with the numbers of their micro-batches."""
    last = max(task.chunk for task in tasks)
    bars = []
    for kind, (label, name) in KINDS.items():
        for chunk in range(last + 1):
            of_chunk = [task for task in tasks if task.kind == kind and task.chunk == chunk]
            if not of_chunk:
                continue
            bars.append(
                Bars(
                    label=label if chunk == 0 else "",
                    fill=name,
                    at=[task.rank for task in of_chunk],
                    starts=[task.start_s for task in of_chunk],
                    lengths=[task.end_s - task.start_s for task in of_chunk],
                    texts=[str(task.micro_batch + 1) for task in of_chunk],
                    texts_inside=True,
                    about=[task.micro_batch + 1 for task in of_chunk],
                    hover=f"{label}, chunk {chunk}, rank %{{y}}, micro-batch %{{about}}\n"
                    "from %{base:.4f} s, %{x:.4f} s long",
                    width=0.9,
                    lightness=0.5 * chunk / last if last else 0.0,
                    edge=0.3,
                )
            )
    return bars


def idle_text(est: Estimate, run: PipelineRun) -> str:
    """Say what the bubble of the bill is, and what ranks stand idle in the simulation."""
    makespan_s, step_s = run.timeline.makespan_s(), float(est.step_time_s)
    # Where only the beginning is drawn, its bubble is longer than its share of the step's.
    idle_s = (makespan_s - run.timeline.busy_s()) * (step_s / (makespan_s + run.after_s))
    bubble_s = float(est.exposed_by("category").get("bubble", 0.0))
    if not run.is_whole:
        return f"bubble {bubble_s / step_s:.1%} of the step: what the busiest rank waits for"
    return bubble_text(bubble_s, idle_s, step_s)


# --- rooflines ---


def operator_points(est: Estimate) -> list[OperatorRow]:
    """Return the forward pass of products and attention of every layer kind, each with the share of all its passes."""
    rows = operator_rows(est)
    shares: dict[str, float] = {}
    for row in rows:
        name = row.name.rsplit(".", 1)[0]
        shares[name] = shares.get(name, 0.0) + row.share
    found = [
        row._replace(name=name, share=shares[name])
        for row in rows
        if row.flops > 0 and row.name.endswith(".forward") and (name := row.name.removesuffix(".forward"))
    ]
    return sorted(found, key=lambda row: -row.share)


def compute_chart(found: Estimate | Roofline) -> Chart:
    """Draw every operator's forward pass under the memory and compute roofs of the GPU."""
    est = found.est if isinstance(found, Roofline) else found
    accelerator, points = est.job.cluster.accelerator, operator_points(est)
    memory = accelerator.memory_bandwidth_bytes_per_s
    used = PEAK_KEY[est.job.precision.matmul_dtype]
    peaks = {name: peak for name, peak in accelerator.peak_flops_per_s.items() if name in {used, "bf16"}}
    top = max(peaks.values())
    least = min(0.1 * top / memory, *(0.3 * point.intensity for point in points))
    most = 3.0 * max(top / memory, *(point.intensity for point in points))
    intensity = np.geomspace(least, most, 60)
    roofs = [
        Curve(
            label=f"{name} {format_si(peak, 'FLOP/s')}, HBM {format_si(memory, 'B/s')}, ridge {peak / memory:.0f}",
            x=intensity,
            y=np.minimum(intensity * memory, peak) / 1e12,
            dash=dash,
        )
        for dash, (name, peak) in zip(DASHES, peaks.items(), strict=False)
    ]
    operators = [
        Dots(
            texts=[f"{point.name} {point.share:.0%}" if point.share > 0.02 else ""],
            x=[point.intensity],
            y=[point.achieved_flops_per_s / 1e12],
            colour=COLOURS[index % len(COLOURS)],
            size=8.0 + 30.0 * point.share**0.5,
            hover=f"{point.name}: {point.share:.1%} of the step\n%{{x:.0f}} FLOP/B, %{{y:.0f}} TFLOP/s",
        )
        for index, point in enumerate(points)
    ]
    panel = Panel(
        marks=[*roofs, *operators],
        x="arithmetic intensity [FLOP per byte of HBM]",
        y="achieved, forward [TFLOP/s]",
        log="xy",
        x_range=(least, most),
    )
    title = _titled(est, "operators of one micro-batch on the roofline of a GPU")
    return Chart(title=title, panels=[panel])


def communication_chart(found: Estimate | Roofline) -> Chart:
    """Draw the tiers' ridge points as a staircase, and each axis by its FLOPs per byte sent."""
    est = found.est if isinstance(found, Roofline) else found
    tiers, points = est.job.cluster.tiers, axis_rows(est)
    ridges = ridge_points(est.peak_flops_per_s, tiers)
    spread = [*ridges, *(point.intensity for point in points)]
    intensity = np.geomspace(min(spread) / 4.0, max(spread) * 4.0, 80)
    marks: list[Any] = [
        Curve(
            label=f"{tier.name}: {format_si(tier.achieved_bandwidth_bytes_per_s, 'B/s')} a GPU, ridge {ridge:,.0f} FLOP/B",
            x=intensity,
            y=np.minimum(intensity / ridge, 1.0),
            colour=COLOURS[index % len(COLOURS)],
            dash=DASHES[index % len(DASHES)],
        )
        for index, (tier, ridge) in enumerate(zip(tiers, ridges, strict=True))
    ]
    for point in points:
        sentence = f"{point.axis} on {point.tier}: {point.intensity:,.0f} FLOP/B, {point.regime}"
        marks.append(
            Dots(
                x=[point.intensity],
                y=[point.allowed],
                colour=FILLS[point.axis][0],
                size=14.0,
                texts=[point.axis],
                hover=sentence,
            )
        )
    lowest = min([0.05, *(0.5 * point.allowed for point in points)])
    panel = Panel(
        marks=marks,
        x="computation to communication [model FLOP of a GPU per byte it sends]",
        y="share of the dense peak [-]",
        log="xy",
        x_range=(float(intensity[0]), float(intensity[-1])),
        y_range=(lowest, 1.6),
    )
    title = f"{job_title(est)}: what share of the peak each link allows, all communication hidden\n{job_text(est)}"
    return Chart(title=title, panels=[panel], legend_columns=2)


# --- what numbers are worth, and jobs side by side ---

MOST_BARS = 14
_LEAST_REACH = 5e-4


def tornado_effects(found: Sensitivity, *, switches: bool) -> list[Effect]:
    """Return the numbers, or the switches, that a picture shows, largest first."""
    moving = [effect for effect in found.effects if effect.reach >= _LEAST_REACH]
    effects = [effect for effect in moving if (effect.kind == "switch") == switches]
    return sorted(effects, key=lambda effect: -effect.reach)[:MOST_BARS]


def effect_label(effect: Effect) -> str:
    """Name a number, or a switch with both of its values; of a longer list only what is added."""
    if effect.kind != "switch":
        return effect.name
    if effect.before and effect.after.startswith(f"{effect.before}+"):
        return f"{effect.name}: + {effect.after.removeprefix(f'{effect.before}+')}"
    return f"{effect.name}: {effect.before} → {effect.after}"


def tornado_chart(found: Estimate | Sensitivity) -> Chart:
    """Draw a bar for less and a bar for more of each number; below, one for the other value of each switch."""
    found = found if isinstance(found, Sensitivity) else sensitivity(found)
    by = f"{found.change:.0%}"
    numbers, switches = (tornado_effects(found, switches=which) for which in (False, True))
    panels = [
        _tornado(numbers, {f"{by} less": ("less", "hbm"), f"{by} more": ("more", "math")}),
        _tornado(switches, {"the other value of a switch": ("more", "tp")}),
    ]
    title = (
        f"{job_title(found.estimate)}: change of the {format_seconds(float(found.estimate.step_time_s), 4)} step\n"
        f"with {by} less or more of a number (above), with the other value of a switch (below)"
    )
    return Chart(title=title, panels=panels)


def _tornado(effects: Sequence[Effect], sides: Mapping[str, tuple[str, str]]) -> Panel:
    """Draw the bars of some effects, the longer one of each with its value."""
    worst = [max((getattr(effect, side) for side, _ in sides.values()), key=abs) for effect in effects]
    bars = [
        Bars(
            label=label,
            fill=fill,
            at=range(len(effects)),
            lengths=[100 * getattr(effect, side) for effect in effects],
            texts=[
                f"{100 * w:+.1f} %" if w == getattr(e, side) else ""
                for e, w in zip(effects, worst, strict=True)
            ],
            hover="%{y}: %{x:+.2f} %, " + label,
        )
        for label, (side, fill) in sides.items()
    ]
    most = 125.0 * max([1e-3, *map(abs, worst)])
    shape = rows_of(["\n".join(wrap(effect_label(effect), 44)) for effect in effects])
    ends = (-most if min([0.0, *worst]) < 0 else 0.0, most)
    return Panel(marks=bars, x="change of step time [%]", x_range=ends, **shape)


def comparison_chart(comparison: Comparison) -> Chart:
    """Draw a bar a job: exposed time by part on the left, memory of the worst stage by part on the right."""
    ests = comparison.estimates
    steps = [{part.fill: part.exposed_s for part in time_parts(est)} for est in ests]
    memory_by_part = []
    for est in ests:
        _, parts = memory_stacks(est)
        worst = int(np.argmax(sum(parts.values())))
        memory_by_part.append({name: float(part[worst]) / _GIB for name, part in parts.items()})
    times = [format_seconds(float(est.step_time_s), 4) for est in ests]
    memories = [
        format_bytes(float(est.memory_bytes_per_gpu)) + ("" if est.fits_gpu else ", does not fit")
        for est in ests
    ]
    offers = [
        Curve(
            label="" if row else "what a device offers",
            x=[est.memory_capacity_bytes / _GIB] * 2,
            y=[row - 0.46, row + 0.46],
            dash="--",
            width=2.0,
        )
        for row, est in enumerate(ests)
    ]
    labels = [label if len(label) <= 40 else label[:39] + "…" for label in comparison.labels]
    left, right = _stacked(STEP_PARTS, steps, times), _stacked(MEMORY_PARTS, memory_by_part, memories)
    most = [1.3 * max(sum(bar.values()) for bar in bars) for bars in (steps, memory_by_part)]
    most[1] = max(most[1], 1.1 * max(est.memory_capacity_bytes for est in ests) / _GIB)
    shape = rows_of(labels)
    panels = [
        Panel(marks=left, x="time that the step waits for [s]", x_range=(0.0, most[0]), **shape),
        Panel(
            marks=[*offers, *right], x="memory of a GPU, worst stage [GiB]", x_range=(0.0, most[1]), **shape
        ),
    ]
    title = job_title(ests[0])
    if any(job_title(est) != title for est in ests):
        title = "jobs side by side"
    return Chart(
        title=f"{title}: the step and its memory", panels=panels, columns=2, legend_columns=4, width=12.0
    )


def _stacked(parts: Sequence[tuple[str, str]], bars: list[dict[str, float]], texts: list[str]) -> list[Bars]:
    """Return bars part after part; a part that no bar has is left out, and texts stand behind the last."""
    ends, made = np.zeros(len(bars)), []
    nonzero = [(label, name) for label, name in parts if any(bar.get(name) for bar in bars)]
    for label, name in nonzero:
        lengths = np.asarray([bar.get(name, 0.0) for bar in bars])
        behind = texts if name == nonzero[-1][1] else ()
        look: Any = {"label": label, "fill": name, "hover": f"{label}\n%{{y}}: %{{x:.4g}}"}
        made.append(Bars(at=range(len(bars)), lengths=lengths, starts=ends, texts=behind, **look))
        ends = ends + lengths
    return made
