"""A profiled step as figures: its classes, and bill and trace side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from costmodel.base.errors import CostModelError
from costmodel.base.units import format_seconds
from costmodel.reporting.figures import fill, new_figure

if TYPE_CHECKING:
    from costmodel.trust.profiles.trace_profile import TraceProfile


def draw_classes(found: TraceProfile) -> Any:
    """Draw what each class took; what of it is exposed is drawn on top."""
    rows = (*found.classes, *found.copies)
    title = (
        f"{found.kind}{f', {found.gpu}' if found.gpu else ''}: {found.count:,} kernels in "
        f"{format_seconds(found.window_s, 4)}, nothing runs for {format_seconds(found.idle_s)}"
    )
    figure, axes = new_figure(title, size=(9.0, 0.36 * len(rows) + 1.6))
    for row, one in enumerate(rows):
        axes.barh(row, one.busy_s, height=0.7, label="busy" if not row else None, **fill("reserve"))
        axes.barh(row, one.exposed_s, height=0.7, label="exposed" if not row else None, **fill("math"))
        axes.text(
            one.busy_s,
            row,
            f"  {format_seconds(one.busy_s)}, {one.count:,.0f} x",
            va="center",
            fontsize="small",
        )
    axes.set_yticks(range(len(rows)), [one.name for one in rows])
    axes.set(
        xlim=(0.0, 1.25 * max(one.busy_s for one in rows)), ylim=(len(rows) - 0.4, -0.6), xlabel="time [s]"
    )
    axes.grid(visible=False, axis="y")
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    return figure


def draw_beside(found: TraceProfile) -> Any:
    """Draw bill and trace side by side, the largest difference on top.

    Raises
    ------
    CostModelError
        If there is no job beside the trace.
    """
    beside = found.beside
    if beside is None:
        raise CostModelError("figure: beside needs a job: --job JOB.yaml")
    rows = beside.groups
    title = f"{beside.job}\nbill {format_seconds(beside.bill_step_s, 4)} a step, trace {format_seconds(beside.trace_step_s, 4)}"
    figure, axes = new_figure(title, size=(9.0, 0.55 * len(rows) + 1.8))
    sides = (("bill", "math", -0.2), ("trace", "tp", 0.2))
    for row, one in enumerate(rows):
        for side, area, shift in sides:
            busy, exposed = (
                (one.bill_s, one.bill_exposed_s) if side == "bill" else (one.trace_s, one.trace_exposed_s)
            )
            hidden = max(busy - exposed, 0.0)
            label = {"label": side} if not row else {}
            axes.barh(row + shift, min(exposed, busy), height=0.38, **fill(area), **label)
            label = {"label": "hidden"} if not row and side == "bill" else {}
            axes.barh(row + shift, hidden, left=busy - hidden, height=0.38, **fill("bubble"), **label)
        longest = max(one.bill_s, one.trace_s)
        sign = "−" if one.difference_s < 0 else "+"
        axes.text(
            longest, row, f"  {sign}{format_seconds(abs(one.difference_s))}", va="center", fontsize="small"
        )
    axes.set_yticks(range(len(rows)), [one.group for one in rows])
    right = 1.15 * max(max(one.bill_s, one.trace_s) for one in rows)
    axes.set(xlim=(0.0, right), ylim=(len(rows) - 0.4, -0.6), xlabel="busy time of one step [s]")
    axes.grid(visible=False, axis="y")
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    return figure
