"""The profile of a real step as tables and sentences, alone or beside a bill."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_seconds
from costmodel.reporting.cells import cell, grid_of
from costmodel.trust.profiles.beside import Beside
from costmodel.trust.profiles.profile import TraceProfile

_LONGEST_NAME = 90
_MOST_STEPS = 12
_MOST_UNKNOWN = 12


def profile_grids(found: TraceProfile) -> list[Grid]:
    """Return the bill beside the trace where there is one, then what the trace holds."""
    grids = [_headline(found)]
    if found.beside is not None:
        grids.append(_beside_grid(found.beside))
    if found.learnt is not None and found.learnt.measured:
        factors = {
            "Factor of": "move.scales",
            "Seen >": lambda one: f"{np.exp(one.seen):.3f} ± {one.scale:.1%}",
            "Before >": lambda one: f"{np.exp(one.move.prior_center):.3f} ± {one.move.prior_spread:.1%}",
            "After >": lambda one: f"{np.exp(one.move.center):.3f} ± {one.move.spread:.1%}",
        }
        title, note = "What the profile says of the model's factors", "--write puts it into a site file."
        grids.append(grid_of(title, found.learnt.measured, factors, note=note))
    grids += [_classes_grid(found), _streams_grid(found)]
    if found.told_by:
        grids.append(_steps_grid(found))
    unknown = [one for one in found.families if one.does == "unknown"]
    if unknown:
        kernels = {
            "Kernel": lambda one: _short(one.family),
            "Count >": "count:,",
            "Busy >": "busy_s:s",
        }
        more = f"{len(unknown) - _MOST_UNKNOWN} more." if len(unknown) > _MOST_UNKNOWN else ""
        grids.append(grid_of("Kernels that no family has", unknown[:_MOST_UNKNOWN], kernels, note=more))
    return grids


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _headline(found: TraceProfile) -> Grid:
    share = found.exposed_communication_s / found.communication_s if found.communication_s else 0.0
    idle = f"{format_seconds(found.idle_s, 3)} ({found.idle_s / found.window_s:.1%})"
    if found.gaps_s.size:
        idle += f", in {found.gaps_s.size:,} pauses, the longest {format_seconds(float(found.gaps_s.max()))}"
    rows = [
        ["from the first kernel to the end of the last", format_seconds(found.window_s, 4)],
        ["kernels", f"{found.count:,}, {format_seconds(found.busy_s, 4)} one after the other"],
        ["nothing runs", idle],
        [
            "communication",
            f"{format_seconds(found.communication_s, 4)}, {format_seconds(found.exposed_communication_s, 3)} "
            f"of it exposed ({share:.1%})",
        ],
    ]
    which = f", GPU {found.device} of {len(found.devices)}" if len(found.devices) > 1 else ""
    return Grid(f"{found.kind}{f', {found.gpu}' if found.gpu else ''}{which}", columns("", ""), rows)


def _classes_grid(found: TraceProfile) -> Grid:
    cells = {
        "Class": "name",
        "Count >": "count:,.0f",
        "Busy >": "busy_s:s",
        "Share >": lambda one: f"{one.busy_s / found.busy_s if found.busy_s else 0.0:.1%}",
        "Exposed >": "exposed_s:s",
    }
    note = "Exposed: while no computing kernel of another class runs. Copies by engines are no kernels."
    all_kernels = ["all kernels", f"{found.count:,}", format_seconds(found.busy_s), "100.0%", ""]
    grid = grid_of("Kernels by class", found.classes, cells, sums=[all_kernels], note=note)
    copies = grid_of("", found.copies, cells).rows
    return grid._replace(rows=[*grid.rows, *copies])


def _streams_grid(found: TraceProfile) -> Grid:
    def overlap(other: Any) -> Callable[[Any], str]:
        return lambda one: format_seconds(one.overlap_s[other]) if other in one.overlap_s else ""

    shown = [one.stream for one in found.streams if one.overlap_s][:4]
    cells: dict[str, Any] = {
        "Stream >": "stream",
        "Kernels and copies >": "count:,",
        "Busy >": "busy_s:s",
        "Mostly": "mostly",
    }
    cells |= {f"Beside {other} >": overlap(other) for other in shown}
    return grid_of("Streams, and how long each runs beside another", found.streams, cells)


def _steps_grid(found: TraceProfile) -> Grid:
    cells = {
        "Step": "name",
        "Time >": "time_s:s4",
        "Kernels and copies >": "count:,",
        "Nothing runs >": "idle_s:s",
        "Communication exposed >": "exposed_communication_s:s",
    }
    told = {"ranges": "by ranges of the host", "repetition": "by kernels that recur"}[found.told_by]
    more = len(found.steps) - _MOST_STEPS
    note = f"{more:,} more." if more > 0 else ""
    return grid_of(f"Steps, told apart {told}", found.steps[:_MOST_STEPS], cells, note=note)


def _signed(seconds: float) -> str:
    return ("−" if seconds < 0 else "+") + format_seconds(abs(seconds))


def _beside_grid(beside: Beside) -> Grid:
    cells = {
        "Group of lines": "group",
        "Bill >": "bill_s:s",
        "Trace >": "trace_s:s",
        "Difference >": lambda one: _signed(one.difference_s),
        "Off >": lambda one: f"{one.bill_s / one.trace_s - 1:+.0%}" if one.trace_s and one.bill_s else "",
        "Bill waits >": "bill_exposed_s:s",
        "Trace waits >": "trace_exposed_s:s",
        "Lines run >": "bill_count:,.0f",
        "Kernels >": "trace_count:,.0f",
    }
    steps = [cell(beside, "bill_step_s:s4"), cell(beside, "trace_step_s:s4")]
    share = f"{beside.bill_step_s / beside.trace_step_s - 1:+.0%}" if beside.trace_step_s else ""
    step = ["step", *steps, _signed(beside.bill_step_s - beside.trace_step_s), share, *steps, "", ""]
    part = "One step"
    if beside.window.scales:
        part = f"{beside.window.layers:,.0f} of {beside.window.of_layers:,.0f} passes through a layer"
    title = f"{part} beside the bill of {beside.job}"
    return grid_of(title, beside.groups, cells, sums=[step], note="Largest difference first.")


def profile_remarks(found: TraceProfile, most: int = 6) -> list[str]:
    """Say what could explain the largest differences, and what was assumed."""
    remarks = []
    if found.beside is not None:
        if found.beside.window.scales:
            remarks.append(
                "The trace holds a part of the step: lines of layers are counted as often as it holds layers, others "
                "(head, optimizer, gradients, pipeline, unexplained share) are left out."
            )
        explained = [one for one in found.beside.groups if one.why]
        remarks += [f"{one.group}: {one.why}." for one in explained[:most]]
    if not found.told_by:
        remarks.append("No ranges name steps and no kernels recur: the whole trace is taken as one step.")
    if len(found.devices) > 1:
        others = ", ".join(str(one) for one in found.devices if one != found.device)
        remarks.append(f"GPU {found.device} did the most; --device shows another: {others}.")
    return remarks
