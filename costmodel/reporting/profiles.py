"""The profile of a real step as tables and sentences, alone or beside a bill."""

from __future__ import annotations

import numpy as np

from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_seconds
from costmodel.trust.profiles.beside import Beside
from costmodel.trust.profiles.site_of_trace import SiteOfTrace
from costmodel.trust.profiles.trace_profile import ClassTime, TraceProfile

_LONGEST_NAME = 90
_MOST_STEPS = 12
_MOST_UNKNOWN = 12


def profile_grids(found: TraceProfile) -> list[Grid]:
    """Return the bill beside the trace where there is one, then what the trace holds."""
    grids = [_headline(found)]
    if found.beside is not None:
        grids.append(_beside_grid(found.beside))
    if found.learnt is not None and found.learnt.measured:
        grids.append(_factors_grid(found.learnt))
    grids += [_classes_grid(found), _streams_grid(found)]
    if found.told_by:
        grids.append(_steps_grid(found))
    unknown = [one for one in found.families if one.does == "unknown"]
    if unknown:
        rows = [
            [_short(one.family), f"{one.count:,}", format_seconds(one.busy_s)]
            for one in unknown[:_MOST_UNKNOWN]
        ]
        more = f"{len(unknown) - len(rows)} more." if len(unknown) > len(rows) else ""
        titles = columns("Kernel", "Count >", "Busy >")
        grids.append(Grid("Kernels that no family has", titles, rows, note=more))
    return grids


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _headline(found: TraceProfile) -> Grid:
    share = found.exposed_communication_s / found.communication_s if found.communication_s else 0.0
    rows = [
        ["from the first kernel to the end of the last", format_seconds(found.window_s, 4)],
        ["kernels", f"{found.count:,}, {format_seconds(found.busy_s, 4)} one after the other"],
        ["nothing runs", f"{format_seconds(found.idle_s, 3)} ({found.idle_s / found.window_s:.1%})"],
        [
            "communication",
            f"{format_seconds(found.communication_s, 4)}, {format_seconds(found.exposed_communication_s, 3)} "
            f"of it exposed ({share:.1%})",
        ],
    ]
    gaps = found.gaps_s
    if gaps.size:
        rows[2][1] += f", in {gaps.size:,} pauses, the longest {format_seconds(float(gaps.max()))}"
    which = f", GPU {found.device} of {len(found.devices)}" if len(found.devices) > 1 else ""
    title = f"{found.kind}{f', {found.gpu}' if found.gpu else ''}{which}"
    return Grid(title, columns("", ""), rows)


def _class_row(one: ClassTime, busy_s: float) -> list[str]:
    share = one.busy_s / busy_s if busy_s else 0.0
    texts = (format_seconds(one.busy_s), f"{share:.1%}", format_seconds(one.exposed_s))
    return [one.name, f"{one.count:,.0f}", *texts]


def _classes_grid(found: TraceProfile) -> Grid:
    rows = [_class_row(one, found.busy_s) for one in found.classes]
    rows.append(["all kernels", f"{found.count:,}", format_seconds(found.busy_s), "100.0%", ""])
    total = len(rows) - 1
    rows += [_class_row(one, found.busy_s) for one in found.copies]
    note = "Exposed: while no computing kernel of another class runs. Copies by engines are no kernels."
    titles = columns("Class", "Count >", "Busy >", "Share >", "Exposed >")
    return Grid("Kernels by class", titles, rows, strong=frozenset({total}), note=note)


def _streams_grid(found: TraceProfile) -> Grid:
    shown = [one.stream for one in found.streams if one.overlap_s][:4]
    rows = []
    for one in found.streams:
        beside = [format_seconds(one.overlap_s[other]) if other in one.overlap_s else "" for other in shown]
        rows.append([f"{one.stream}", f"{one.count:,}", format_seconds(one.busy_s), one.mostly, *beside])
    titles = ("Stream >", "Kernels and copies >", "Busy >", "Mostly", *(f"Beside {one} >" for one in shown))
    return Grid("Streams, and how long each runs beside another", columns(*titles), rows)


def _steps_grid(found: TraceProfile) -> Grid:
    rows = [
        [
            one.name,
            format_seconds(one.time_s, 4),
            f"{one.count:,}",
            format_seconds(one.idle_s),
            format_seconds(one.exposed_communication_s),
        ]
        for one in found.steps[:_MOST_STEPS]
    ]
    told = {"ranges": "by ranges of the host", "repetition": "by kernels that recur"}[found.told_by]
    more = len(found.steps) - len(rows)
    note = f"{more:,} more." if more > 0 else ""
    titles = columns("Step", "Time >", "Kernels and copies >", "Nothing runs >", "Communication exposed >")
    return Grid(f"Steps, told apart {told}", titles, rows, note=note)


def _signed(seconds: float) -> str:
    return ("−" if seconds < 0 else "+") + format_seconds(abs(seconds))


def _beside_grid(beside: Beside) -> Grid:
    rows = [
        [
            one.group,
            format_seconds(one.bill_s),
            format_seconds(one.trace_s),
            _signed(one.difference_s),
            f"{one.bill_s / one.trace_s - 1:+.0%}" if one.trace_s and one.bill_s else "",
            format_seconds(one.bill_exposed_s),
            format_seconds(one.trace_exposed_s),
            f"{one.bill_count:,.0f}",
            f"{one.trace_count:,.0f}",
        ]
        for one in beside.groups
    ]
    step = [format_seconds(beside.bill_step_s, 4), format_seconds(beside.trace_step_s, 4)]
    off = beside.bill_step_s - beside.trace_step_s
    share = f"{beside.bill_step_s / beside.trace_step_s - 1:+.0%}" if beside.trace_step_s else ""
    rows.append(["step", *step, _signed(off), share, *step, "", ""])
    titles = columns(
        "Group of lines",
        "Bill >",
        "Trace >",
        "Difference >",
        "Off >",
        "Bill waits >",
        "Trace waits >",
        "Lines run >",
        "Kernels >",
    )
    part = "One step"
    if beside.window.scales:
        part = f"{beside.window.layers:,.0f} of {beside.window.of_layers:,.0f} passes through a layer"
    title = f"{part} beside the bill of {beside.job}"
    return Grid(title, titles, rows, strong=frozenset({len(rows) - 1}), note="Largest difference first.")


def _factors_grid(learnt: SiteOfTrace) -> Grid:
    rows = [
        [
            one.move.scales,
            f"{np.exp(one.seen):.3f} ± {one.scale:.1%}",
            f"{np.exp(one.move.prior_center):.3f} ± {one.move.prior_spread:.1%}",
            f"{np.exp(one.move.center):.3f} ± {one.move.spread:.1%}",
        ]
        for one in learnt.measured
    ]
    titles = columns("Factor of", "Seen >", "Before >", "After >")
    return Grid(
        "What the profile says of the model's factors", titles, rows, note="--write puts it into a site file."
    )


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
