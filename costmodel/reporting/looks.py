"""Looks into one estimate, as tables: opened lines, the step as a tree and in time, both rooflines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from costmodel.base.answer import Summary
from costmodel.base.grid import Grid
from costmodel.base.units import format_bytes, format_seconds, format_si
from costmodel.estimates.explain import Explanation, headline, where_text, with_unit
from costmodel.estimates.roofline import OperatorRow, Roofline
from costmodel.estimates.trace import Trace
from costmodel.estimates.tree import StepTree, tree_rows
from costmodel.physics.network.comm_roofline import ridge_points
from costmodel.reporting.cells import cell, grid_of
from costmodel.reporting.series import bubble_text
from costmodel.reporting.summaries import LINES, machine_text

_SMALL_SHARE = 0.001


def explain_grids(lines: Explanation) -> list[Grid]:
    """Return a table a line: a row a step, with its formula, the numbers put in, and its value."""
    cells = {
        "Step": lambda step: step.name or "=",
        "Formula": "expression",
        "With its numbers": "with_numbers",
        "Value >": lambda step: with_unit(step.value, step.unit),
    }
    grids = []
    for line in lines:
        note = f"{where_text(line)}source: {line.source}" + (f"\n{line.beside}" if line.beside else "")
        last = frozenset({len(line.steps) - 1})
        grids.append(grid_of(headline(line), line.steps, cells, strong=last, note=note))
    return grids


def explain_summary(lines: Explanation) -> Summary | None:
    """Return the ten largest lines of time and the largest of memory; None for few lines, which are opened."""
    time, memory = (
        sorted((line for line in lines if line.bill == bill), key=lambda line: -line.total)
        for bill in ("time", "memory")
    )
    if len(time) + len(memory) <= 10:
        return None
    cells = {
        "Line": "name",
        "Category": "category",
        "Count >": "times:,.6g",
        "Each >": "each:s",
        "Exposed >": "total:s",
        "Share >": "share:.1%",
    }
    step_s = sum(line.total for line in time)
    shown = time[:10]
    title = (
        f"A step of {format_seconds(step_s, 4)} in {len(time)} lines; the ten largest are "
        f"{sum(line.total for line in shown) / step_s:.0%} of it"
    )
    held = ", ".join(f"{line.name} {format_bytes(line.total)}" for line in memory[:LINES])
    return Summary([grid_of(title, shown, cells)], [f"Memory, the largest of {len(memory)} lines: {held}."])


def tree_grids(found: StepTree, *, least_share: float = 0.0) -> list[Grid]:
    """Return the tree as a table, indented."""
    cells = {
        "Part": lambda row: "  " * row[0] + row[1].name,
        "Count >": lambda row: f"{row[1].times:,.6g}",
        "Each >": lambda row: format_seconds(row[1].each_s, 4),
        "A step >": lambda row: format_seconds(row[2], 4),
        "Share >": lambda row: f"{row[3]:.1%}",
    }
    note = "Exposed time. Count: inside one of the parent; each: of one; a step: of all of them in a step."
    note += f" Parts below {least_share:.1%} are left out; --all-lines shows them." if least_share else ""
    rows = tree_rows(found.root, least_share=least_share)
    return [grid_of("The step", rows, cells, strong=frozenset({0}), note=note)]


def trace_grids(trace: Trace) -> list[Grid]:
    """Return a row a stage: time in tasks, idle time and most memory."""
    line = trace.timeline
    stages = [
        {"stage": stage, "busy_s": busy, "idle_s": idle, "share": idle / line.step_time_s, "held": held}
        for stage, (busy, idle, held) in enumerate(
            zip(line.task_s, line.idle_s(), line.peak_bytes(), strict=True)
        )
    ]
    cells = {
        "Stage >": "stage",
        "In tasks >": "busy_s:s4",
        "Idle >": "idle_s:s4",
        "Of the step >": "share:.1%",
        "Most memory >": "held:B",
    }
    bubble = bubble_text(line.bubble_s, line.idle_s(), line.step_time_s) if line.stages > 1 else ""
    note = (
        f"Schedule {line.schedule}, simulated: {format_seconds(line.simulated_s, 4)} for all micro-batches, "
        f"{format_seconds(line.pipeline_s, 4)} on the bill; step {format_seconds(line.step_time_s, 4)}. {bubble}"
    )
    return [grid_of("Stages of a step", stages, cells, note=note.rstrip())]


def roofline_grids(found: Roofline, *, every_operator: bool = False) -> list[Grid]:
    """Return roofs, operators, tiers and axes."""
    accelerator, tiers = found.est.job.cluster.accelerator, found.est.job.cluster.tiers
    memory = accelerator.memory_bandwidth_bytes_per_s
    roofs = {
        "Dtype": lambda roof: roof[0],
        "Dense peak >": lambda roof: format_si(roof[1], "FLOP/s", 4),
        "Ridge >": lambda roof: f"{roof[1] / memory:,.0f} FLOP/B",
    }
    fabric = {
        "Tier": lambda row: row[0].name,
        "GPUs >": lambda row: f"{row[0].size:,}",
        "Link": lambda row: row[0].link,
        "Achieved a GPU >": lambda row: cell(row[0], "achieved_bandwidth_bytes_per_s:B/s"),
        "Ridge >": lambda row: f"{float(row[1]):,.0f} FLOP/B",
    }
    axes = {
        "Axis": "axis",
        "Slowest tier": "tier",
        "Sent a step >": "sent_bytes:B",
        "FLOP/B >": "intensity:,.0f",
        "Ridge >": "ridge:,.0f",
        "Allows >": "allowed:.0%",
        "Exposed >": "exposed:.1%",
        "Regime": "regime",
        "To move it": "advice",
    }
    return [
        grid_of(
            f"Roofs of {accelerator.name}: HBM {format_si(memory, 'B/s')}",
            sorted(accelerator.peak_flops_per_s.items(), key=lambda item: item[1]),
            roofs,
            note="Ridge: FLOPs per byte of HBM from which on the dtype's peak is the lower roof.",
        ),
        _operator_grid(found.operators, every_operator),
        grid_of(
            "Tiers of the fabric",
            zip(tiers, ridge_points(found.est.peak_flops_per_s, tiers), strict=True),
            fabric,
            note="Ridge: model FLOPs of a GPU per byte that it sends, from which on the tier allows the peak.",
        ),
        grid_of(
            "Axes of this layout",
            found.axes,
            axes,
            note="Allows: share of the peak if all of it were hidden. Exposed: share of the step that the bill charges.",
        ),
    ]


def operator_cells() -> dict[str, Any]:
    """Return the columns of operators; what computes nothing has no roof but the memory's."""

    def of_flops(form: str) -> Callable[[Any], str]:
        return lambda row: cell(row, form) if row.flops else ""

    def achieved(row: OperatorRow) -> str:
        return (
            cell(row, "achieved_flops_per_s:FLOP/s")
            if row.flops
            else format_si(row.moved_bytes / row.seconds, "B/s")
        )

    return {
        "Operator and pass": "name",
        "FLOPs >": of_flops("flops:FLOP"),
        "HBM >": "moved_bytes:B",
        "FLOP/B >": of_flops("intensity:,.0f"),
        "Time >": "seconds:s4",
        "Achieved >": achieved,
        "Of roof >": of_flops("of_roof:.0%"),
        "Bound by": "bound",
        "Of step >": "share:.1%",
    }


def _operator_grid(rows: list[OperatorRow], every_operator: bool) -> Grid:
    """Return the operators under their roofs."""
    shown = [row for row in rows if every_operator or row.share >= _SMALL_SHARE]
    left = len(rows) - len(shown)
    note = (
        f"{left} passes below {_SMALL_SHARE:.1%} of the step are left out; --all shows them." if left else ""
    )
    return grid_of("Operators of one micro-batch on one GPU", shown, operator_cells(), note=note)


def roofline_remarks(found: Roofline) -> list[str]:
    """Say which batch data parallelism needs, and which context a ring."""
    batch, length = found.critical_batch, found.ring_hides_from
    ring = (
        []
        if length is None
        else [f"Context parallelism hides all that it ever does from sequences of {length:,} tokens on."]
    )
    if batch is None:
        return ring
    now = float(found.est.job.global_batch)
    relation = "above it" if now >= batch else "below it"
    return [
        f"Critical batch of data parallelism: {batch:,.0f} sequences ({batch * float(found.est.job.seq_len):,.3g} tokens); "
        f"this job's {now:,.0f} are {relation}.",
        *ring,
    ]


def roofline_summary(found: Roofline) -> Summary:
    """Return what operators reach of their roofs, and which axes are bound by their links."""
    est, cells = found.est, operator_cells()
    bound: dict[str, float] = {}
    for row in found.operators:
        bound[row.bound] = bound.get(row.bound, 0.0) + row.share
    parts = ", ".join(
        f"{share:.0%} {name}-bound"
        for name, share in sorted(bound.items(), key=lambda at: -at[1])
        if share >= 0.005
    )
    title = f"{machine_text(est)}: {float(est.mfu):.1%} MFU; kernels are {sum(bound.values()):.0%} of the step: {parts}"
    operators = {
        name: cells[name]
        for name in ("Operator and pass", "Time >", "Achieved >", "Of roof >", "Bound by", "Of step >")
    }
    axes = {
        "Axis": "axis",
        "Slowest tier": "tier",
        "FLOP/B >": "intensity:,.0f",
        "Ridge >": "ridge:,.0f",
        "Exposed >": "exposed:.1%",
        "Regime": "regime",
        "To move it": "advice",
    }
    return Summary(
        [grid_of(title, found.operators[:8], operators), grid_of("", found.axes[:4], axes)],
        roofline_remarks(found),
    )
