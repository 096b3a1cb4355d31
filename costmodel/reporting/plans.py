"""A plan as tables: the best, three to try, each machine, the front, what is out and why; and the points of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.base.answer import Summary, rows_of
from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_seconds
from costmodel.base.words import plural
from costmodel.describe.hardware.cluster import Cluster
from costmodel.describe.jobs.fields import DEGREES
from costmodel.describe.jobs.layout_text import degrees_of, degrees_text, layout_text
from costmodel.estimates.estimate import Estimate
from costmodel.estimates.pipeline_run import port_floor_lines
from costmodel.estimates.samples import QUANTILES
from costmodel.planning.advice import by_speed, simplest, yours_text
from costmodel.planning.machines import Machine
from costmodel.planning.plan import Plan
from costmodel.planning.preference import TIE_SHARE
from costmodel.planning.space import REASONS
from costmodel.planning.uncertain import NOISE, Odds
from costmodel.reporting.cells import Form, dollars_of, figures_from, say, table_of
from costmodel.reporting.summaries import answer_text, job_rows
from costmodel.reporting.tables import breakdown_text, off_middle, spent_text
from costmodel.reporting.training_runs import AT_LISTS, dollars_at_lists, percentiles_text

if TYPE_CHECKING:
    from costmodel.planning.sweep import Sweep
    from costmodel.whole_run.run import TrainingRun

_FRONT_ROWS = 12
_ALWAYS = ("tp", "pp", "dp")
_POLICY = ("ZeRO", "Schedule", "Recompute")
_SETTINGS = ("Cluster", "Precision", "Batch >", "Non-default settings")
_OF_BEST = ("Fits >", "Days >?", "Dollars >?", "Comm >", "Bubble >", "Memory-bound >")
"""Columns of the best layouts that the front leaves out."""
_SHOWN = 0.002
"""Share of a step by which its simulation differs from its bill that is worth a column. [-]"""


def plan_grids(
    plan: Plan,
    *,
    count: int = 10,
    gains: Sequence[tuple[str, float]] = (),
    start: str = "",
) -> list[Grid]:
    """Return the tables of a plan: the best of each machine, the best layouts, the front, what is out …"""
    grids = [machines_grid(plan, start)] if plan.has_machines else []
    grids += [top_grid(plan, count), front_grid(plan)]
    searched = [[name, values] for name, values in plan.searched.items()]
    grids.append(Grid("Searched", columns("Knob", "Values"), searched, note=f"{plan.fixed}."))
    grids.append(rejected_grid(plan))
    if gains:
        rows = [[name, f"{gain:.1%}"] for name, gain in gains]
        titles = columns("Constraint", "Step time saved >")
        grids.append(Grid("Gain from lifting each constraint", titles, rows))
    return [*grids, try_grid(plan, in_full=True)]


def plan_summary(plan: Plan, *, count: int | None = None) -> Summary:
    """Return a plan in twenty lines: the best, three parallel layouts to benchmark, and what is gained by that."""
    short = _machines_summary(plan) if plan.has_machines else _single_summary(plan)
    return short if count is None else short._replace(grids=[*short.grids, top_grid(plan, count)])


def _single_summary(plan: Plan) -> Summary:
    best, choices = plan.best, plan.columns(1)["choices"][0]
    layout, *job = job_rows(best, plan.assumed)
    rows = [layout, ("set", choices), *job, ("time", breakdown_text(best)), ("tokens", spent_text(best))]
    remarks = [yours_text(plan), simplest(plan), by_speed(plan)]
    if bound_by_port(best):
        remarks.append("Bound by the NIC: a port is busy for the whole step.")
    shown = Grid(answer_text(best), columns("", ""), [row for row in rows if row[1]])
    return Summary([shown, try_grid(plan)], [remark for remark in remarks if remark])


def try_grid(plan: Plan, *, in_full: bool = False) -> Grid:
    """Return three parallel layouts to benchmark: the best, then those that lower the expected loss most."""
    found = plan.odds
    chosen = found.chosen()
    kept = [int(row) for row in found.rows[chosen]]
    rows = _layouts(plan.columns_of(kept))
    for row, at, column in zip(rows, kept, chosen, strict=True):
        ends = plan.estimate_of(plan.candidates.top, at).range_s
        row["range"] = "–".join(format_seconds(end, 3) for end in ends).replace(" s–", "–")
        row["best_probability"] = found.trial(column, chosen[0]).best_probability
    # An 80-column terminal has no room for more.
    without = _alike(plan, rows) if in_full else [*_SETTINGS, *_POLICY, "MFU >", "GPUs >"]
    note = _odds_text(found, chosen)
    rests_on = found.rests_on()
    if rests_on is not None:
        top = plan.candidates.top
        with_it, without_s = (
            float(plan.estimate_of(top, int(found.rows[column])).step_time_s)
            for column in (chosen[0], rests_on.column)
        )
        slower = without_s / with_it - 1.0
        note += f" All rely on {rests_on.switch}: without it the best takes {slower:.1%} longer"
        note += "." if rests_on.in_band else "; verify first that it runs."
    several = "Three to try" if len(chosen) == 3 else "To try"
    title = f"{several}, of {plan.num_fit:,} layouts that fit ({plan.num_priced:,} priced)"
    return table_of("to try", rows, without=without, title=title, note=note)


def _odds_text(found: Odds, chosen: Sequence[int]) -> str:
    """Say how likely the fastest layout is among a few, and what benchmarking them gains."""
    chance = f"{found.holds(chosen):.0%} chance that one of these is the fastest layout (within {NOISE:.0%})"
    if len(chosen) < 2:
        return f"{chance}."
    every = "both" if len(chosen) == 2 else f"all {len(chosen)}"
    before, after = found.regret([0]), found.regret_after(chosen)
    return f"{chance}; to benchmark {every} cuts the expected loss from {before:.1%} to {after:.1%}."


# --- several machines ---


def _machines_summary(plan: Plan) -> Summary:
    """Return the best layout of each machine, a row each, and which is the fastest and which the cheapest."""
    found = [machine for machine in plan.machines if machine.est is not None]
    own: dict[str, Form] = {
        "Layout": lambda machine: (
            "no layout fits" if machine.est is None else degrees_text(degrees_of(machine.est.job.layout))
        ),
    }
    without = []
    if len({float(machine.job.layout.gpus) for machine in plan.machines}) == 1:
        without.append("GPUs >")
    if len({machine.job.precision.name for machine in plan.machines}) == 1:
        without.append("Precision")
    if any(machine.run is not None for machine in found):
        own["Dollars >"] = lambda machine: "" if machine.run is None else dollars_of(machine.run.dollars)
        note = "days and dollars with failures"
    else:
        without.append("Days >")
        own["$ per 1T tokens >"] = lambda machine: (
            dollars_of(machine.usd_per_trillion_tokens) if machine.est else ""
        )
        note = "dollars without failures"
    clusters = {machine.job.cluster.name: machine.job.cluster for machine in plan.machines}
    prices = ", ".join(f"{name} {_price_of(cluster)}" for name, cluster in clusters.items())
    name = "{job.cluster.name} ({job.layout.gpus:,.0f}, {job.precision.name})"
    fastest = min(found, key=lambda machine: float(machine.est.step_time_s) if machine.est else np.inf)
    title = say(f"Fastest: {name}, {{est.step_time_s:s4}} a step, {{est.mfu:.1%}} MFU", fastest)
    # As the rows have it: what the run costs with its failures, else a trillion tokens without any.
    runs = [machine for machine in found if machine.run is not None and machine.run.dollars is not None]
    priced = [machine for machine in found if machine.usd_per_trillion_tokens is not None]
    if runs:
        cheapest = min(runs, key=lambda machine: float((machine.run and machine.run.dollars) or 0.0))
        title += say(f"; cheapest: {name}, {{run.dollars:$}} for {{run.tokens:count}} tokens", cheapest)
    elif priced:
        cheapest = min(priced, key=lambda machine: float(machine.usd_per_trillion_tokens or 0.0))
        title += say(f"; cheapest: {name}, {{usd_per_trillion_tokens:$}} a trillion tokens", cheapest)
    note += f"; a GPU-hour: {prices}"
    return Summary([table_of("machines", plan.machines, own, without, title=title, note=note)])


def plan_remarks(plan: Plan) -> list[str]:
    """Explain the pick in a few sentences."""
    return [*plan.assumptions, *plan.advice()]


def machines_grid(plan: Plan, start: str = "") -> Grid:
    """Return the best layout on each machine side by side: a row a figure, time and money with p10 and p90."""
    found = plan.machines

    def trillion_at_lists(machine: Machine) -> str:
        usd, span = machine.usd_per_trillion_tokens, machine.job.cluster.price_range_usd_per_gpu_hour
        if usd is None or span is None:
            return ""
        per_price = usd / float(machine.job.cluster.price_usd_per_gpu_hour or 1.0)
        return " / ".join(f"${per_price * price:,.0f}" for price in span)

    def break_even(machine: Machine) -> str:
        usd, first = machine.usd_per_trillion_tokens, found[0].usd_per_trillion_tokens
        if usd is None or first is None or machine is found[0]:
            return ""
        return f"${float(machine.job.cluster.price_usd_per_gpu_hour or 0.0) * first / usd:,.2f}"

    def step_of_samples(machine: Machine) -> str:
        if machine.est is None:
            return ""
        drawn = machine.est.sample()
        return " / ".join(format_seconds(drawn.quantile(share), 3) for share in QUANTILES) + off_middle(drawn)

    def of_run(text: Callable[[TrainingRun], str]) -> Form:
        return lambda machine: "" if machine.run is None else text(machine.run)

    def lists_of(machine: Machine) -> str:
        span = machine.job.cluster.price_range_usd_per_gpu_hour
        return "" if span is None else f"${span[0]:,.2f} to ${span[1]:,.2f}"

    own = {
        "layout": lambda machine: (
            "no layout fits" if machine.est is None else layout_text(machine.est.job.layout)
        ),
        "  of step time": step_of_samples,
        "price of an hour": lambda machine: _price_of(machine.job.cluster),
        "  lists": lists_of,
        "a trillion tokens": lambda machine: (
            "" if machine.est is None else dollars_of(machine.usd_per_trillion_tokens)
        ),
        AT_LISTS: trillion_at_lists,
        "break-even price": break_even,
        "  of calendar time": of_run(lambda run: percentiles_text(run, "days")),
        "done by, p10 p50 p90": of_run(
            lambda run: ", ".join(map(str, run.finishing_dates(start).values())) if start else ""
        ),
        "dollars": of_run(lambda run: dollars_of(run.dollars)),
        "  of dollars": of_run(lambda run: percentiles_text(run, "dollars")),
        f"{AT_LISTS} ": of_run(dollars_at_lists),
    }
    rows = [
        [name.removesuffix(" "), *texts] for name, *texts in figures_from("machines compared", found, own)
    ]
    titles = [
        f"{plural(float(machine.job.layout.gpus), machine.job.cluster.accelerator.called)} of {machine.job.cluster.name}"
        for machine in found
    ]
    notes = [
        "best first",
        "a trillion tokens: nothing lost to failures",
        "break-even: price of an hour at which it costs as much as the first",
    ]
    if any(machine.run is not None for machine in found):
        notes.append("calendar time and dollars: with failures")
    notes += [f"{title}: {m.problem}" for title, m in zip(titles, found, strict=True) if m.problem]
    shown = ("calendar time", "dollars", "a trillion tokens")
    strong = frozenset(i for i, row in enumerate(rows) if row[0] in shown)
    return Grid("The best on each", columns("", *titles), rows, strong, "; ".join(notes))


def _price_of(cluster: Cluster) -> str:
    usd = cluster.price_usd_per_gpu_hour
    return "no price" if usd is None else f"${usd:,.2f} ({cluster.price_date or 'given'})"


# --- tables of layouts ---


def _layouts(table: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Return layouts as rows, with their degrees and their sharding as texts."""
    rows = rows_of(table)
    for row in rows:
        sequence = " no-sp" if row["tp"] > 1 and not row["sequence_parallel"] else ""
        row["layout"] = degrees_text({axis: row[axis] for axis in DEGREES}, _ALWAYS) + sequence
        row["zero"] = say("{zero_stage} / {shard_group}" if row["shard_group"] else "{zero_stage}", row)
    return rows


def _alike(plan: Plan, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns of settings in which no job of a plan differs."""
    jobs = plan.question.jobs
    values: dict[str, set[Any]] = {
        "Cluster": {job.cluster.name for job in jobs},
        "Precision": {job.precision.name for job in jobs},
        "Optimizer": {job.optimizer.name for job in jobs},
        "Batch >": {float(job.global_batch) for job in jobs},
        "Non-default settings": {"", *(row["choices"] for row in rows)},
        "Slice": {job.slice for job in jobs},
        "Axis order": {job.axis_order for job in jobs},
        "Offload": {job.recipe.host.offload_optimizer for job in jobs},
    }
    return [title for title, found in values.items() if len(found) < 2]


def top_grid(plan: Plan, count: int) -> Grid:
    """Return the best layouts with memory, days and dollars where they are known, and the main categories."""
    ests = list(plan.top(count))
    rows = _layouts(plan.columns(count))
    for row, est in zip(rows, ests, strict=True):
        paid = est.exposed_by("category")
        row |= {
            name: float(paid.get(name, 0.0)) / float(est.step_time_s)
            for name in ("communication", "bubble", "hbm")
        }
    return table_of(
        "layouts",
        rows,
        without=_alike(plan, rows),
        title=f"Best by {plan.question.objective}",
        strong=frozenset({0}),
        note=_top_note(rows, ests),
    )


def bound_by_port(est: Estimate) -> bool:
    """Return whether a port is busy for longer than all else takes, so that the step is as long as its messages."""
    return any(
        float(line.exposed_seconds) > _SHOWN * float(est.step_time_s) for line in port_floor_lines(est.bill)
    )


def _top_note(rows: Sequence[Mapping[str, Any]], ests: Sequence[Estimate]) -> str:
    """Say what the order of the rows is, and what a row stands for."""
    notes = []
    bound = [str(row["rank"]) for row, est in zip(rows, ests, strict=True) if bound_by_port(est)]
    if bound:
        notes.append(f"bound by the NIC, busy for the whole step: {', '.join(bound)}")
    if any(row["num_alike"] for row in rows):
        notes.append(
            f"near-duplicates (< {TIE_SHARE:.1%} apart, differing in vp, shard group or switches only) merged"
        )
    if rows[0]["days"] is not None:
        notes.append("days and dollars: nothing lost to failures (costmodel run has them)")
    return "; ".join(notes)


def front_grid(plan: Plan) -> Grid:
    """Return the front of step time against memory, thinned to a dozen rows."""
    front = _layouts(plan.pareto_columns())
    shown = front[:: max(1, -(-len(front) // _FRONT_ROWS))]
    note = f"showing {len(shown)} of {len(front)}; --format json has all" if len(shown) < len(front) else ""
    title = f"Pareto front: {plan.question.objective} vs. memory"
    without = [*_alike(plan, front), *_OF_BEST]
    return table_of("layouts", shown, without=without, title=title, note=note)


def rejected_grid(plan: Plan) -> Grid:
    """Return how many layouts are out, by the first reason that applies."""
    rows = [[REASONS[code], f"{count:,}"] for code, count in plan.rejected.most_common()]
    rows += [["priced", f"{plan.num_priced:,}"], ["fit", f"{plan.num_fit:,}"]]
    title = f"{plan.num_considered:,} combinations considered"
    return Grid(title, columns("Rejected layouts", "Layouts >"), rows, strong=frozenset({len(rows) - 1}))


# --- a sweep ---


def sweep_remarks(done: Sweep) -> list[str]:
    """Say how many points failed."""
    failed = len(done.failed)
    return [f"Warning: {plural(failed, 'point')} failed; run again with --resume"] if failed else []


def sweep_grids(done: Sweep) -> list[Grid]:
    """Return the rows of a sweep; days, energy and dollars where the points say how far they train."""

    def layout(row: Mapping[str, Any]) -> str:
        if row["step_time_s"] is None:
            return str(row["problem"])
        return f"{degrees_text({axis: row[axis] for axis in DEGREES}, _ALWAYS)} {row['schedule']}"

    grid = table_of("sweep", done.rows, {"Best layout": layout}, title=plural(len(done), "point"))
    if all(row.get("days") is None for row in done.rows):
        return [grid]
    return [grid._replace(note="days, energy and dollars: nothing lost to failures")]


_SHOWN_BELOW = ("Micro-batch", "ZeRO", "Schedule", "Recompute")
_NON_DEFAULT = "Non-default settings"


def narrow(grid: Grid) -> Grid:
    """Return layouts with what they run under their degrees, and settings last, so that the numbers are in sight."""
    at = {column.title: index for index, column in enumerate(grid.columns)}
    moved = {"GPUs", "Layout", *_SHOWN_BELOW, _NON_DEFAULT}
    numbers = [index for title, index in at.items() if title not in moved]
    order = [*numbers[:2], at["Layout"], *numbers[2:], *([at[_NON_DEFAULT]] if _NON_DEFAULT in at else [])]

    def cell(row: Sequence[str], index: int) -> str:
        if index != at["Layout"]:
            return row[index].replace(" / ", " \u2013 ")
        policy = {title: row[at[title]] for title in _SHOWN_BELOW if title in at}
        runs = [f"{title.lower()} {text}" for title, text in policy.items() if text != "none"]
        return ", ".join([row[index], *runs])

    rows = [[cell(row, index) for index in order] for row in grid.rows]
    return grid._replace(columns=[grid.columns[index] for index in order], rows=rows)
