"""Tables that explain one estimate: formulas of lines, the step as a tree, its trace by stage, and rooflines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from costmodel.base.answer import Summary
from costmodel.base.grid import Grid
from costmodel.base.units import format_bytes, format_seconds, format_si
from costmodel.estimates.explain import Explanation, headline, where_text, with_unit
from costmodel.estimates.roofline import OperatorRow, Roofline
from costmodel.estimates.trace import Trace
from costmodel.physics.network.comm_roofline import ridge_points
from costmodel.reporting.cells import cell, table_of
from costmodel.reporting.series import bubble_text
from costmodel.reporting.summaries import LINES, machine_text

_SMALL_SHARE = 0.001


def explain_grids(lines: Explanation) -> list[Grid]:
    """Return a table for each formula with its numbers: a row a step, under the lines that it is of."""
    grids = []
    for alike in lines.alike():
        line, title = alike[0], "\n".join(map(headline, alike))
        note = f"{where_text(line)}source: {line.source}" + (f"\n{line.textbook}" if line.textbook else "")
        last = frozenset({len(line.steps) - 1})
        steps = [
            step._asdict() | {"name": step.name or "=", "value": with_unit(step.value, step.unit)}
            for step in line.steps
        ]
        grids.append(table_of("steps", steps, title=title, strong=last, note=note))
    return grids


def explain_remarks(lines: Explanation) -> list[str]:
    """Say what the lines come to together."""
    return lines.sums()


def explain_summary(lines: Explanation, *, count: int = 10) -> Summary | None:
    """Return the largest lines of time and of memory; None for few lines, which are opened."""
    time, memory = (
        sorted((line for line in lines if line.bill == bill), key=lambda line: -line.total)
        for bill in ("time", "memory")
    )
    if len(time) + len(memory) <= 10:
        return None
    step_s, shown = sum(line.total for line in time), time[:count]
    title = (
        f"A step of {format_seconds(step_s, 4)} in {len(time)} lines; the {len(shown)} largest are "
        f"{sum(line.total for line in shown) / step_s:.0%} of it"
    )
    largest = ", ".join(f"{line.name} {format_bytes(line.total)}" for line in memory[:LINES])
    memory_note = f"Memory, the largest of {len(memory)} lines: {largest}."
    return Summary(
        [table_of("lines", shown, title=title)],
        [memory_note],
    )


def trace_grids(line: Trace) -> list[Grid]:
    """Return a row a stage: time in tasks, idle time and most memory."""
    stages = [
        {"stage": stage, "busy_s": busy, "idle_s": idle, "share": idle / line.step_time_s, "held": memory}
        for stage, (busy, idle, memory) in enumerate(
            zip(line.task_s, line.idle_s(), line.peak_bytes(), strict=True)
        )
    ]
    bubble = bubble_text(line.bubble_s, line.idle_s(), line.step_time_s) if line.stages > 1 else ""
    note = (
        f"Schedule {line.schedule}, simulated: {format_seconds(line.simulated_s, 4)} for all micro-batches, "
        f"{format_seconds(line.pipeline_s, 4)} on the bill; step {format_seconds(line.step_time_s, 4)}. {bubble}"
    )
    return [table_of("stages", stages, note=note.rstrip())]


def _operators(rows: Sequence[OperatorRow]) -> list[dict[str, Any]]:
    """Return operators as rows; what computes nothing has no roof but the memory's."""
    return [
        row._asdict()
        | {
            "flops": row.flops or None,
            "intensity": row.intensity if row.flops else None,
            "of_roof": row.of_roof if row.flops else None,
            "achieved": cell(row, "achieved_flops_per_s:FLOP/s")
            if row.flops
            else format_si(row.moved_bytes / row.seconds, "B/s"),
        }
        for row in rows
    ]


def roofline_grids(found: Roofline, *, every_operator: bool = False) -> list[Grid]:
    """Return roofs, operators, tiers and axes."""
    accelerator, tiers = found.est.job.cluster.accelerator, found.est.job.cluster.tiers
    memory = accelerator.memory_bandwidth_bytes_per_s
    peaks = sorted(accelerator.peak_flops_per_s.items(), key=lambda item: item[1])
    roofs = [{"dtype": dtype, "peak": peak, "ridge": peak / memory} for dtype, peak in peaks]
    ridges = ridge_points(found.est.peak_flops_per_s, tiers)
    fabric: list[Any] = [{"tier": tier, "ridge": ridge} for tier, ridge in zip(tiers, ridges, strict=True)]
    shown = [row for row in found.operators if every_operator or row.share >= _SMALL_SHARE]
    left = len(found.operators) - len(shown)
    note = (
        f"{left} passes below {_SMALL_SHARE:.1%} of the step are left out; --all shows them." if left else ""
    )
    return [
        table_of("roofs", roofs, title=f"Roofs of {accelerator.name}: HBM {format_si(memory, 'B/s')}"),
        table_of("operators", _operators(shown), note=note),
        table_of("tiers", fabric),
        table_of("axes", found.axes),
    ]


def roofline_remarks(found: Roofline) -> list[str]:
    """Say which batch data parallelism needs, and which context a ring."""
    batch, length = found.critical_batch, found.ring_hides_from
    remarks = []
    if batch is not None:
        now = float(found.est.job.global_batch)
        relation = "above it" if now >= batch else "below it"
        remarks.append(
            f"Critical batch of data parallelism: {batch:,.0f} sequences; this job's {now:,.0f} are {relation}."
        )
    if length is not None:
        remarks.append(f"Context parallelism hides its messages best from {length:,} tokens a sequence on.")
    return remarks


def roofline_summary(found: Roofline) -> Summary:
    """Return what operators reach of their roofs, and which axes are bound by their links."""
    est = found.est
    bound: dict[str, float] = {}
    for row in found.operators:
        bound[row.bound] = bound.get(row.bound, 0.0) + row.share
    largest = sorted(bound.items(), key=lambda at: -at[1])
    parts = ", ".join(f"{share:.0%} {name}-bound" for name, share in largest if share >= 0.005)
    title = f"{machine_text(est)}: {float(est.mfu):.1%} MFU; kernels are {sum(bound.values()):.0%} of the step: {parts}"
    operators = table_of("operators in short", _operators(found.operators[:5]), title=title)
    return Summary([operators, table_of("axes in short", found.axes[:4])], roofline_remarks(found))
