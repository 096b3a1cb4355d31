"""Charts of the page as plain plotly figures: dicts of data and layout, no object per mark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.base.units import format_bytes, format_seconds, format_si
from costmodel.describe.hardware.kernels import PEAK_KEY
from costmodel.estimates.pipeline_run import run_pipeline
from costmodel.estimates.roofline import axis_rows
from costmodel.physics.network.comm_roofline import REGIMES, regime, ridge_points
from costmodel.reporting.figures import FILLS
from costmodel.reporting.plots.pipeline import KINDS, idle_text
from costmodel.reporting.plots.rooflines import operator_points
from costmodel.reporting.plots.tornado import effect_label, tornado_effects
from costmodel.reporting.series import MEMORY_PARTS, memory_stacks, time_parts

if TYPE_CHECKING:
    from costmodel.estimates.estimate import Estimate
    from costmodel.planning.plan import Plan
    from costmodel.what_if.sensitivity import Sensitivity

Figure = dict[str, Any]

_PATTERNS = {
    "": "",
    "///": "/",
    "\\\\\\": "\\",
    "...": ".",
    "xxx": "x",
    "---": "-",
    "////": "/",
    "ooo": ".",
    "+++": "+",
}
# Plotly blends neighbours of a scale: each shade comes twice, so that there are eight and no more.
_SHADES = [
    [at / 8, colour]
    for index, colour in enumerate(
        ("#eeeeee", "#b5dcf3", "#f7f1a0", "#c8c8c8", "#f3cd80", "#9fd8c0", "#e5b3cf", "#8fa9c4")
    )
    for at in (index, index + 1)
]
_MOST_TASKS = 6000
_FONT = {"family": "system-ui, sans-serif", "size": 13, "color": "#1b1b1b"}


def marker(name: str) -> dict[str, Any]:
    """Return the plotly marker of a style in `figures.FILLS`."""
    colour, hatch = FILLS[name]
    pattern = {
        "shape": _PATTERNS[hatch],
        "fillmode": "overlay",
        "fgcolor": "#000000",
        "size": 7,
        "solidity": 0.2,
    }
    return {"color": colour, "line": {"color": "#000000", "width": 0.7}, "pattern": pattern}


def layout(height: int, x: str, y: str = "", **more: Any) -> dict[str, Any]:
    """Return the layout that all charts share."""
    return {
        "height": height,
        "margin": {"l": 10, "r": 15, "t": 15, "b": 45},
        "font": _FONT,
        "plot_bgcolor": "#ffffff",
        "paper_bgcolor": "#ffffff",
        "hovermode": "closest",
        "xaxis": {
            "title": {"text": x},
            "automargin": True,
            "gridcolor": "#dddddd",
            "zerolinecolor": "#999999",
        },
        "yaxis": {"title": {"text": y}, "automargin": True, "gridcolor": "#dddddd"},
        "legend": {"orientation": "h", "x": 0.0, "y": 1.02, "yanchor": "bottom"},
        **more,
    }


def time_chart(est: Estimate) -> Figure:
    """Return the waterfall of the step."""
    parts, step = time_parts(est), float(est.step_time_s)
    starts = np.cumsum([0.0, *(part.exposed_s for part in parts)])
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "base": [float(start)],
            "x": [part.exposed_s],
            "y": [part.label],
            "marker": marker(part.fill),
            "showlegend": False,
            "hovertext": [
                f"{part.label}<br>waited for: {format_seconds(part.exposed_s)}, {part.exposed_s / step:.1%}"
                f"<br>busy: {format_seconds(part.busy_s)}"
            ],
            "hoverinfo": "text",
            "text": [f"{part.exposed_s / step:.1%}"],
            "textposition": "outside",
            "cliponaxis": False,
        }
        for part, start in zip(parts, starts, strict=False)
    ]
    data.append(
        {
            "type": "bar",
            "orientation": "h",
            "x": [step],
            "y": ["step time"],
            "marker": {"color": "#333333"},
            "showlegend": False,
            "hovertext": [f"step time<br>{format_seconds(step, 4)}"],
            "hoverinfo": "text",
        }
    )
    made = layout(36 * (len(parts) + 1) + 70, "time [s]")
    made["yaxis"]["autorange"] = "reversed"
    made["xaxis"]["range"] = [0.0, 1.3 * step]  # room for the texts beside the bars
    return {"data": data, "layout": made}


def memory_chart(est: Estimate) -> Figure:
    """Return memory by pipeline stage, with the capacity."""
    stages, parts = memory_stacks(est)
    capacity = est.memory_capacity_bytes / 2**30
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": label,
            "x": stages.tolist(),
            "y": (parts[name] / 2**30).tolist(),
            "marker": marker(name),
            "hovertemplate": "stage %{x}: %{y:.2f} GiB<extra>" + label + "</extra>",
        }
        for label, name in MEMORY_PARTS
        if parts[name].max() > 0
    ]
    span = [float(stages[0]) - 0.5, float(stages[-1]) + 0.5]
    data.append(
        {
            "type": "scatter",
            "mode": "lines",
            "x": span,
            "y": [capacity, capacity],
            "line": {"color": "#000000", "dash": "dash", "width": 2},
            "name": f"{est.job.cluster.accelerator.name} offers {format_bytes(est.memory_capacity_bytes)}",
            "hoverinfo": "name",
        }
    )
    made = layout(420, "pipeline stage [-]", "memory of a GPU [GiB]", barmode="stack")
    made["xaxis"]["dtick"] = max(1, len(stages) // 16)
    return {"data": data, "layout": made}


def pipeline_chart(est: Estimate) -> tuple[Figure, str]:
    """Return the schedule task by task, and a sentence about what is shown."""
    run = run_pipeline(est, most_tasks=_MOST_TASKS)
    # Borders of many tasks would cover the short ones, which are the forward passes.
    border = 0.3 if len(run.timeline.tasks) < 120 * run.timeline.num_ranks else 0.0
    data = []
    for kind, (label, name) in KINDS.items():
        held = [task for task in run.timeline.tasks if task.kind == kind]
        if not held:
            continue
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": label,
                "y": [task.rank for task in held],
                "base": [round(task.start_s, 5) for task in held],
                "x": [round(task.end_s - task.start_s, 5) for task in held],
                "marker": {"color": FILLS[name][0], "line": {"color": "#000000", "width": border}},
                "customdata": [[task.micro_batch + 1, task.chunk] for task in held],
                "hovertemplate": "rank %{y}, micro-batch %{customdata[0]}, chunk %{customdata[1]}<br>"
                "from %{base:.4f} s, %{x:.4f} s long<extra>" + label + "</extra>",
            }
        )
    p = run.timeline.num_ranks
    if run.is_whole and run.after_s:
        start = run.timeline.makespan_s()
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": "gradients, optimizer, overhead",
                "y": list(range(p)),
                "base": [start] * p,
                "x": [run.after_s] * p,
                "marker": marker("rest"),
                "hovertemplate": "%{x:.4f} s after the pipeline<extra></extra>",
            }
        )
    made = layout(24 * p + 140, "time [s]", "pipeline rank [-]", barmode="overlay", bargap=0.1)
    made["yaxis"] |= {"autorange": "reversed", "dtick": max(1, p // 16)}
    whole = "" if run.is_whole else f" The first {run.simulated} of {run.micro_batches:,} micro-batches."
    return {"data": data, "layout": made}, f"White is no task; {idle_text(est, run)}.{whole}"


def compute_chart(est: Estimate) -> Figure:
    """Return the operators under the roofs of the GPU."""
    accelerator, points = est.job.cluster.accelerator, operator_points(est)
    memory = accelerator.memory_bandwidth_bytes_per_s
    used = PEAK_KEY[est.job.precision.matmul_dtype]
    peaks = {name: peak for name, peak in accelerator.peak_flops_per_s.items() if name in {used, "bf16"}}
    least = min(0.1 * max(peaks.values()) / memory, *(0.3 * point.flops_per_byte for point in points))
    most = 3.0 * max(max(peaks.values()) / memory, *(point.flops_per_byte for point in points))
    intensity = np.geomspace(least, most, 60)
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": intensity.tolist(),
            "hoverinfo": "name",
            "y": (np.minimum(intensity * memory, peak) / 1e12).tolist(),
            "line": {"color": "#000000", "dash": dash, "width": 2},
            "name": f"{name} {format_si(peak, 'FLOP/s')}, HBM {format_si(memory, 'B/s')}, ridge {peak / memory:.0f}",
        }
        for dash, (name, peak) in zip(("solid", "dash", "dot"), peaks.items(), strict=False)
    ]
    data.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "operators, forward; size: share of the step",
            "x": [point.flops_per_byte for point in points],
            "y": [point.flops_per_s / 1e12 for point in points],
            "marker": {
                "color": FILLS["tp"][0],
                "line": {"color": "#000000", "width": 1},
                "size": [8.0 + 36.0 * point.share**0.5 for point in points],
                "opacity": 0.75,
            },
            "text": [f"{point.name}: {point.share:.1%} of the step" for point in points],
            "hovertemplate": "%{text}<br>%{x:.0f} FLOP/B, %{y:.0f} TFLOP/s<extra></extra>",
        }
    )
    made = layout(420, "FLOP per byte of HBM [FLOP/B]", "achieved [TFLOP/s]")
    made["xaxis"]["type"] = made["yaxis"]["type"] = "log"
    return {"data": data, "layout": made}


def communication_chart(est: Estimate) -> Figure:
    """Return the tiers' ridge points as a staircase, with the axes."""
    tiers, points = est.job.cluster.tiers, axis_rows(est)
    ridges = ridge_points(est.peak_flops_per_s, tiers)
    spread = [*ridges.tolist(), *(point.intensity for point in points)]
    intensity = np.geomspace(min(spread) / 4.0, max(spread) * 4.0, 80)
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": intensity.tolist(),
            "y": np.minimum(intensity / ridge, 1.0).tolist(),
            "hoverinfo": "name",
            "line": {"dash": dash, "width": 2, "color": FILLS[colour][0]},
            "name": f"{tier.name}: {format_si(tier.achieved_bandwidth_bytes_per_s, 'B/s')}, ridge {ridge:,.0f}",
        }
        for dash, colour, tier, ridge in zip(
            ("solid", "dash", "dashdot", "dot", "longdash"),
            ("math", "tp", "cp", "pp", "ep"),
            tiers,
            ridges,
            strict=False,
        )
    ]
    names = [tier.name for tier in tiers]
    for point, symbol in zip(
        points, ("circle", "square", "diamond", "triangle-up", "star", "cross"), strict=False
    ):
        ridge = float(ridges[names.index(point.tier)])
        where = REGIMES[int(regime(point.intensity, ridge))]
        data.append(
            {
                "type": "scatter",
                "mode": "markers+text",
                "x": [point.intensity],
                "text": [point.axis],
                "y": [min(point.intensity / ridge, 1.0)],
                "textposition": "top center",
                "name": point.axis,
                "marker": {
                    "size": 14,
                    "symbol": symbol,
                    "color": FILLS[point.axis][0],
                    "line": {"color": "#000000", "width": 1},
                },
                "hovertext": [f"{point.axis} on {point.tier}: {point.intensity:,.0f} FLOP/B, {where}"],
                "hoverinfo": "text",
                "showlegend": False,
            }
        )
    made = layout(420, "FLOP per byte sent [FLOP/B]", "share of the peak [-]")
    for axis in ("xaxis", "yaxis"):
        made[axis] |= {"type": "log", "dtick": 1}
    return {"data": data, "layout": made}


def tornado_chart(found: Sensitivity) -> Figure:
    """Return what each number of the hardware and the recipe is worth."""
    effects = tornado_effects(found, switches=False, most=14)
    labels = [effect_label(effect) for effect in effects]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": labels,
            "x": [100 * getattr(e, side) for e in effects],
            "marker": marker(style),
            "hovertemplate": "%{y}: %{x:+.2f} %<extra>" + name + "</extra>",
        }
        for name, side, style in (
            (f"{found.change:.0%} less", "less", "hbm"),
            (f"{found.change:.0%} more", "more", "math"),
        )
    ]
    made = layout(30 * max(len(effects), 1) + 130, "change of step time [%]", barmode="overlay")
    made["yaxis"]["autorange"] = "reversed"
    return {"data": data, "layout": made}


def pareto_chart(plan: Plan, est: Estimate) -> Figure:
    """Return step time against memory: the best layouts, the front, and the job itself."""
    from costmodel.reporting.plots.plans import short_layout

    kept, front = plan.columns(300), plan.pareto_columns()

    def points(table: dict[str, list[Any]], **more: Any) -> dict[str, Any]:
        rows = range(len(table["rank"]))
        return {
            "type": "scatter",
            "x": [round(size / 2**30, 3) for size in table["memory_bytes_per_gpu"]],
            "y": [round(step, 5) for step in table["step_time_s"]],
            "text": [short_layout(table, row) for row in rows],
            "hovertemplate": "%{text}<br>%{y:.4g} s, %{x:.1f} GiB<extra></extra>",
            **more,
        }

    grey = {"color": "#999999", "size": 5}
    blue = {"color": FILLS["math"][0], "size": 9, "line": {"color": "#000000", "width": 1}}
    star = {"color": FILLS["tp"][0], "size": 17, "symbol": "star", "line": {"color": "#000000", "width": 1}}
    data = [
        points(kept, mode="markers", marker=grey, name="among the best"),
        points(front, mode="markers", marker=blue, name="front"),
        {
            "type": "scatter",
            "mode": "markers",
            "x": [float(est.memory_bytes_per_gpu) / 2**30],
            "y": [float(est.step_time_s)],
            "marker": star,
            "name": "this job",
            "hovertemplate": "this job<br>%{y:.4g} s, %{x:.1f} GiB<extra></extra>",
        },
    ]
    made = layout(420, "memory of a GPU, worst stage [GiB]", "step time [s]")
    made["yaxis"]["type"] = "log"
    return {"data": data, "layout": made}


def mesh_chart(est: Estimate) -> tuple[Figure, str] | None:
    """Return the groups of each axis on the first domains as heat maps, and a sentence; none if there are none."""
    from costmodel.reporting.plots.mesh_map import group_numbers

    gpus = int(est.job.layout.gpus)
    width = min(est.job.cluster.tiers[0].size, gpus, 72)
    shown = max(1, min(8 if width <= 16 else 3, gpus // width))
    numbers = group_numbers(est, np.arange(shown * width))
    if not numbers:
        return None
    data: list[dict[str, Any]] = []
    made = layout(
        (26 * shown + 62) * len(numbers),
        "",
        grid={"rows": len(numbers), "columns": 1, "pattern": "independent"},
    )
    made["annotations"] = []
    for index, (axis, groups) in enumerate(numbers.items()):
        suffix = "" if index == 0 else str(index + 1)
        grid = groups.reshape(shown, width)
        data.append(
            {
                "type": "heatmap",
                "z": (grid % 8).tolist(),
                "text": grid.tolist(),
                "xaxis": f"x{suffix}",
                "yaxis": f"y{suffix}",
                "showscale": False,
                "xgap": 1,
                "ygap": 3,
                "zmin": -0.5,
                "zmax": 7.5,
                "colorscale": _SHADES,
                "texttemplate": "%{text}" if width <= 16 else "",
                "hovertemplate": f"domain %{{y}}, GPU %{{x}}: {axis} group %{{text}}<extra></extra>",
            }
        )
        made[f"xaxis{suffix}"] = {"showgrid": False, "dtick": 1 if width <= 16 else 8, "zeroline": False}
        made[f"yaxis{suffix}"] = {
            "title": {"text": axis},
            "autorange": "reversed",
            "dtick": 1,
            "showgrid": False,
            "zeroline": False,
            "automargin": True,
        }
    tier = est.job.cluster.tiers[0].name
    return {"data": data, "layout": made}, (
        f"The first {shown} {tier} domains; a row a domain, a cell a GPU, with the number of its group."
    )
