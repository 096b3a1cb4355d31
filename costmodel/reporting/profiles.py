"""The profile of a real step as tables and sentences, alone or beside a bill."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from costmodel.base.grid import Grid
from costmodel.base.units import format_seconds
from costmodel.reporting.cells import Form, cell, cells_of, facts_grid, grid_of, signed, table_of
from costmodel.trust.profiles.against_bill import AgainstBill
from costmodel.trust.profiles.profile import TraceProfile

_LONGEST_NAME = 90
_MOST_ROWS = 12
"""Of steps, and of kernels that no family has."""


def profile_grids(found: TraceProfile) -> list[Grid]:
    """Return the bill beside the trace where there is one, then what the trace holds."""
    grids = [_headline(found)]
    if found.against_bill is not None:
        grids.append(_against_grid(found.against_bill))
    if found.learnt is not None and found.learnt.measured:
        factors = {
            "Seen >": lambda row: f"{np.exp(row.seen):.3f} ± {row.scale:.1%}",
            "Before >": lambda row: f"{np.exp(row.move.prior_center):.3f} ± {row.move.prior_spread:.1%}",
            "After >": lambda row: f"{np.exp(row.move.center):.3f} ± {row.move.spread:.1%}",
        }
        grids.append(table_of("profile factors", found.learnt.measured, factors))
    share = {"Share >": lambda row: f"{row.busy_s / found.busy_s if found.busy_s else 0.0:.1%}"}
    whole = ["all kernels", f"{found.count:,}", format_seconds(found.busy_s), "100.0%", ""]
    classes = table_of("profile classes", found.classes, share, sums=[whole])
    copies = table_of("profile classes", found.copies, share).rows
    grids += [classes._replace(rows=[*classes.rows, *copies]), _streams_grid(found)]
    if found.steps_from:
        by = {"ranges": "by ranges of the host", "repetition": "by kernels that recur"}[found.steps_from]
        grids.append(_first_rows("profile steps", found.steps, title=f"Steps, recognised {by}"))
    unknown = [family for family in found.families if family.does == "unknown"]
    if unknown:
        grids.append(_first_rows("profile unknown", unknown, {"Kernel": lambda row: _short(row.family)}))
    return grids


def _short(name: str) -> str:
    printable = "".join(letter for letter in name if letter.isprintable())
    return printable if len(printable) <= _LONGEST_NAME else printable[: _LONGEST_NAME - 1] + "…"


def _first_rows(name: str, records: Any, own: dict[str, Form] | None = None, **more: Any) -> Grid:
    left = len(records) - _MOST_ROWS
    return table_of(name, records[:_MOST_ROWS], own, note=f"{left:,} more." if left > 0 else "", **more)


def _headline(found: TraceProfile) -> Grid:
    share = found.exposed_communication_s / found.communication_s if found.communication_s else 0.0
    pauses = ""
    if found.gaps_s.size:
        longest = format_seconds(float(found.gaps_s.max()))
        pauses = f", in {found.gaps_s.size:,} pauses, the longest {longest}"
    which = f", GPU {found.device} of {len(found.devices)}" if len(found.devices) > 1 else ""
    title = f"{found.kind}{f', {found.gpu}' if found.gpu else ''}{which}"
    return facts_grid("profile", found, title, share=share, idle=found.idle_s / found.window_s, pauses=pauses)


def _streams_grid(found: TraceProfile) -> Grid:
    def overlap(other: Any) -> Callable[[Any], str]:
        return lambda row: format_seconds(row.overlap_s[other]) if other in row.overlap_s else ""

    others = [stream.stream for stream in found.streams if stream.overlap_s][:4]
    cells = cells_of("profile streams") | {f"Beside {other} >": overlap(other) for other in others}
    return grid_of("Streams, and how long each overlaps with another", found.streams, cells)


def _against_grid(against: AgainstBill) -> Grid:
    own = {
        "Off >": lambda row: f"{row.bill_s / row.trace_s - 1:+.0%}" if row.trace_s and row.bill_s else "",
    }
    steps = [cell(against, "bill_step_s:s4"), cell(against, "trace_step_s:s4")]
    share = f"{against.bill_step_s / against.trace_step_s - 1:+.0%}" if against.trace_step_s else ""
    step = [
        "step",
        *steps,
        signed(against.bill_step_s - against.trace_step_s, format_seconds),
        share,
        *steps,
        "",
        "",
    ]
    part = "One step"
    if against.window.scales:
        part = f"{against.window.layers:,.0f} of {against.window.of_layers:,.0f} passes through a layer"
    title = f"{part} against the bill of {against.job}"
    return table_of("profile against", against.groups, own, title=title, sums=[step])


def profile_remarks(found: TraceProfile, most: int = 6) -> list[str]:
    """Say what could explain the largest differences, and what was assumed."""
    remarks = []
    if found.against_bill is not None:
        if found.against_bill.window.scales:
            remarks.append(
                "The trace holds a part of the step: lines of layers are counted as often as it holds layers, others "
                "(head, optimizer, gradients, pipeline, unexplained share) are left out."
            )
        explained = [group for group in found.against_bill.groups if group.why]
        remarks += [f"{group.group}: {group.why}." for group in explained[:most]]
    if not found.steps_from:
        remarks.append("No ranges name steps and no kernels recur: the whole trace is taken as one step.")
    if len(found.devices) > 1:
        others = ", ".join(str(device) for device in found.devices if device != found.device)
        remarks.append(f"GPU {found.device} did the most; --device shows another: {others}.")
    return remarks
