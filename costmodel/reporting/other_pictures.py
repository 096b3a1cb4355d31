"""Figures of searches, collectives, measurements and profiles, as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.base.errors import CostModelError
from costmodel.base.units import format_bytes, format_seconds
from costmodel.describe.jobs.fields import DEGREES
from costmodel.describe.jobs.layout_text import degrees_text
from costmodel.estimates.collective import SEARCHED_SIZES, Price, bus_bytes, price_collective
from costmodel.estimates.record import input_record
from costmodel.reporting.cells import signed
from costmodel.reporting.charts import (
    COLOURS,
    DASHES,
    MARKERS,
    SHADES,
    Band,
    Bars,
    Chart,
    Curve,
    Dots,
    Panel,
    rows_of,
)
from costmodel.reporting.series import job_title

if TYPE_CHECKING:
    from costmodel.estimates.collective import CollectiveCosts
    from costmodel.estimates.estimate import Estimate
    from costmodel.planning.plan import Plan
    from costmodel.trust.calibrate import FabricCalibration
    from costmodel.trust.profiles.profile import TraceProfile
    from costmodel.trust.validation import Validation

_GIB = 2.0**30
_SLOWEST_SHOWN = 4.0
_MOST_KEPT = 300


def short_layout(table: dict[str, list[Any]], row: int) -> str:
    """Name the layout of one row in a few letters."""
    degrees = {axis: table[axis][row] for axis in DEGREES if axis != "dp"}
    text = degrees_text(degrees, always=()) or "dp only"
    policy = table["recompute"][row]
    return f"{text} mb{table['micro_batch'][row]} z{table['zero_stage'][row]}" + (
        "" if policy == "none" else f" {policy}"
    )


def layout_in_short(est: Estimate) -> str:
    """Name the layout of a job in a few letters."""
    return short_layout({name: [value] for name, value in input_record(est.job).items()}, 0)


def pareto_chart(plan: Plan, est: Estimate | None = None) -> Chart:
    """Draw the best layouts and the front of step time against memory, with those to try or another job among them."""
    candidates, front = plan.columns_of(plan.shown(_MOST_KEPT)), plan.pareto_columns()
    memory, step = np.asarray(front["memory_bytes_per_gpu"]) / _GIB, np.asarray(front["step_time_s"])
    order = np.argsort(memory)
    memory, step, names = memory[order], step[order], [short_layout(front, int(row)) for row in order]
    # The leanest layouts can be a hundred times slower; nobody chooses among them.
    shown = step <= _SLOWEST_SHOWN * step.min()
    beyond = f"; {np.sum(~shown)} of the front are slower" if not shown.all() else ""
    tried = [found for found, _ in plan.trials()] if est is None else [est]
    names_of = [f"{row}: {layout_in_short(one)}" for row, one in enumerate(tried, start=1)]
    limit = plan.question.limit_bytes(plan.question.jobs[0])
    hover = "%{about}\n%{y:.4g} s, %{x:.1f} GiB"
    in_range = (0.9 * step.min(), 1.1 * max(step[shown].max(), *(float(one.step_time_s) for one in tried)))
    panel = Panel(
        marks=[
            Dots(
                label="among the best",
                x=np.asarray(candidates["memory_bytes_per_gpu"]) / _GIB,
                y=candidates["step_time_s"],
                colour="#999999",
                size=5.0,
                about=[short_layout(candidates, row) for row in range(len(candidates["rank"]))],
                hover=hover,
            ),
            Curve(x=memory, y=step, colour=COLOURS[0], steps=True),
            Dots(
                label="front: nothing is both faster and leaner",
                x=memory,
                y=step,
                size=9.0,
                texts=[
                    name if row < len(names) - 1 and in_view else ""
                    for row, (name, in_view) in enumerate(zip(names, shown, strict=True))
                ],
                about=names,
                hover=hover,
            ),
            Dots(
                label="to try" if est is None else f"this job: {layout_in_short(tried[0])}",
                x=[float(one.memory_bytes_per_gpu) / _GIB for one in tried],
                y=[float(one.step_time_s) for one in tried],
                colour=COLOURS[1],
                marker="o" if est is None else "*",
                size=19.0,
                texts=[str(row + 1) for row in range(len(tried))] if est is None else (),
                texts_inside=True,
                about=names_of,
                hover=hover,
            ),
            Curve(
                label=f"limit: {format_bytes(limit)}", x=[limit / _GIB] * 2, y=in_range, dash="--", width=1.3
            ),
        ],
        x="memory of a GPU, worst stage [GiB]",
        y=f"step time [s]{beyond}",
        y_range=in_range,
    )
    title = (
        f"{job_title(plan.best)}: layouts by step time and memory\n"
        f"{plan.num_considered:,} considered, {plan.num_fit:,} fit; the best {len(candidates['rank']):,} and the front are shown"
    )
    return Chart(title=title, panels=[panel], legend_columns=2)


_DRAWN_SIZES = SEARCHED_SIZES[24::4]
"""From 8 B on, two an octave. [B]"""


def collective_chart(found: CollectiveCosts) -> Chart:
    """Draw time over size; shaded bands name what is taken. One size is drawn among all."""
    prices: Sequence[Price] = found.prices
    if found.one_size:
        prices = price_collective(found.name, _DRAWN_SIZES, found.placed, found.routing)
    sizes = prices[0].size_bytes
    ends = float(sizes[0]), float(sizes[-1])
    library = [price for price in prices if price.family != "textbook"]
    shown = library or [price for price in prices if not price.needs]
    marks: list[Any] = []
    for index, one in enumerate(found.choices):
        left, right = max(one.from_bytes, ends[0]), min(one.to_bytes, ends[1])
        if right > left:
            marks.append(Band(start=left, end=right, text=one.algorithm, colour=SHADES[1 + index % 7]))
    for index, price in enumerate(shown):
        look: dict[str, Any] = {"colour": COLOURS[index % len(COLOURS)], "dash": DASHES[index % len(DASHES)]}
        name = f"{price.family} {price.algorithm}"
        marks.append(Curve(label=name, x=sizes, y=price.time_s * 1e6, **look))
    for price in prices if library else ():
        if price.family == "textbook" and price.algorithm == "ring":
            marks.append(
                Curve(label="textbook ring", x=sizes, y=price.time_s * 1e6, colour="#808080", width=1.0)
            )
    low = min(float(price.time_s[price.time_s > 0].min()) for price in shown) * 1e6
    high = max(float(price.time_s.max()) for price in shown) * 1e6
    panel = Panel(
        marks=marks,
        x="size of the whole tensor [B]",
        y="time [us]",
        log="xy",
        x_range=ends,
        y_range=(low * 0.6, high * 3.0),
        height=5.0,
    )
    name = found.name.replace("_", "-")
    title = f"{name} over {found.placed.ranks:,} GPUs of {found.where}: time by size, and what is taken where"
    return Chart(title=title, panels=[panel])


def fit_chart(found: FabricCalibration) -> Chart:
    """Draw measured bus bandwidths as dots and the fit as lines, over size."""
    from costmodel.trust.calibration.cluster_fit import price_run

    marks: list[Any] = []
    for index, run in enumerate(found.fit.runs):
        colour = COLOURS[index % len(COLOURS)]
        bus = bus_bytes(run.primitive, run.size_bytes, float(run.group.ranks)) / 1e9
        ours = price_run(run, found.cluster.tiers, found.fit.tiers)
        marks.append(Dots(x=run.size_bytes, y=bus / run.time_s, colour=colour, size=5.0))
        marks.append(Curve(label=run.name, x=run.size_bytes, y=bus / ours, colour=colour, width=1.0))
    panel = Panel(marks=marks, x="size [B]", y="bus bandwidth [GB/s]", log="xy")
    return Chart(title=f"Measured (dots) and fitted (lines), from {found.cluster.name}", panels=[panel])


def predicted_chart(checked: Validation) -> Chart:
    """Draw predicted over measured step time, marked by accelerator, between lines of 10 and 25 %."""
    runs = checked.judged.dropna(subset=["time_error"])
    if not len(runs):
        raise CostModelError("predicted: no run has both a measured and a predicted step time")
    both = runs[["measured_step_time_s", "predicted_step_time_s"]]
    ends = np.asarray([0.7 * float(both.min().min()), 1.4 * float(both.max().max())])
    marks: list[Any] = [Curve(label="predicted = measured", x=ends, y=ends, width=1.2)]
    for off, dash in ((0.10, "--"), (0.25, ":")):
        marks.append(Curve(label=f"± {off:.0%}", x=ends, y=ends * (1 + off), dash=dash, width=0.8))
        marks.append(Curve(x=ends, y=ends * (1 - off), dash=dash, width=0.8))
    for index, (name, group) in enumerate(runs.groupby("accelerator")):
        marks.append(
            Dots(
                label=f"{name} ({len(group)})",
                x=group.measured_step_time_s,
                y=group.predicted_step_time_s,
                colour=COLOURS[index % len(COLOURS)],
                marker=MARKERS[index % len(MARKERS)],
            )
        )
    size = runs.time_error.abs()
    title = (
        f"Step time of {len(runs):,} published runs: median error {size.median():.1%}, "
        f"90 % within {size.quantile(0.9):.1%}, bias {runs.time_error.mean():+.1%}"
    )
    x, y = "measured step time [s]", "predicted step time [s]"
    shown = (float(ends[0]), float(ends[1]))
    return Chart(
        title=title, panels=[Panel(marks=marks, x=x, y=y, log="xy", x_range=shown, y_range=shown, height=7.5)]
    )


def against_bill_chart(found: TraceProfile) -> Chart:
    """Draw bill and trace side by side, the largest difference on top."""
    against = found.against_bill
    if against is None:
        raise CostModelError("figure: against_bill needs a job: --job JOB.yaml")
    rows, bars = against.groups, []
    off = [signed(one.difference_s, format_seconds) for one in rows]
    for side, fill, shift in (("bill", "math", -0.2), ("trace", "tp", 0.2)):
        busy = np.asarray([getattr(one, f"{side}_s") for one in rows])
        waited = np.minimum([getattr(one, f"{side}_exposed_s") for one in rows], busy)
        at = np.arange(len(rows)) + shift
        texts = off if side == "bill" else ()
        bars.append(Bars(label=side, fill=fill, at=at, lengths=waited, width=0.38))
        label = "hidden" if side == "bill" else ""
        bars.append(
            Bars(
                label=label,
                fill="bubble",
                at=at,
                starts=waited,
                lengths=busy - waited,
                width=0.38,
                texts=texts,
            )
        )
    most = 1.2 * max(max(one.bill_s, one.trace_s) for one in rows)
    shape = rows_of([one.group for one in rows])
    times = f"bill {format_seconds(against.bill_step_s, 4)} a step, trace {format_seconds(against.trace_step_s, 4)}"
    panel = Panel(marks=bars, x="busy time of one step [s]", x_range=(0.0, most), **shape)
    return Chart(title=f"{against.job}\n{times}", panels=[panel])
