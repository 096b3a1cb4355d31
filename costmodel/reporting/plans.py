"""A plan as tables and as one record: the best, the front, what is out and why."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from costmodel.base.answer import Summary
from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_bytes, format_count, format_days, format_figure, format_seconds
from costmodel.base.words import chance_text, plural
from costmodel.describe.factors import factors
from costmodel.describe.hardware.cluster import Cluster
from costmodel.describe.jobs.fields import DEGREES
from costmodel.describe.jobs.layout_text import degrees_of, degrees_text, layout_text
from costmodel.estimates.estimate import Estimate
from costmodel.estimates.pipeline_run import floors_of_ports
from costmodel.estimates.samples import QUANTILES, Samples
from costmodel.planning.advice import simplest, yours_text
from costmodel.planning.finalists import SIMULATED
from costmodel.planning.machines import Machine
from costmodel.planning.plan import Plan
from costmodel.planning.preference import TIE_SHARE
from costmodel.planning.space import REASONS
from costmodel.planning.sweep import Sweep
from costmodel.planning.uncertain import NOISE, Odds
from costmodel.reporting.cells import cell, figures_of, grid_of
from costmodel.reporting.comparison import dollars_of
from costmodel.reporting.summaries import answer_text, job_rows, largest_memory, spent_text
from costmodel.reporting.tables import breakdown_text, off_middle
from costmodel.reporting.training_runs import (
    AT_LISTS,
    PERCENTILE_TITLE,
    dollars_at_lists,
    dollars_text,
    percentiles_text,
)
from costmodel.step.anatomy.adapters import job_flops_per_token
from costmodel.whole_run.run import TrainingRun

_FRONT_ROWS = 12
_ALWAYS = ("tp", "pp", "dp")

Cells = dict[str, str | Callable[[Any], str]]


def plan_grids(
    plan: Plan,
    *,
    count: int = 10,
    gains: Sequence[tuple[str, float]] = (),
    commands: bool = False,
    start: str = "",
) -> list[Grid]:
    """Return the tables of a plan: the best of each machine, the best layouts, the front, scaling, what is out …"""
    grids = [machines_grid(plan, start)] if plan.has_machines else []
    grids += [top_grid(plan, count), *([commands_grid(plan, count)] if commands else []), front_grid(plan)]
    if len(plan.by_value["gpus"]) > 1:
        grids.append(_scaling_grid(plan))
    grids += [searched_grid(plan), rejected_grid(plan)]
    if gains:
        grids.append(_gains_grid(gains))
    return [*grids, trials_grid(plan)]


def plan_summary(
    plan: Plan, *, assumed: Collection[str] = (), count: int | None = None, commands: bool = False
) -> Summary:
    """Return a plan in twenty lines: the best, three parallel layouts to benchmark, and what is gained by that.

    Below it stand the best layouts and their commands where they are asked for.
    """
    short = _machines_summary(plan) if plan.has_machines else _single_summary(plan, assumed)
    asked = [
        *([top_grid(plan, count)] if count is not None else []),
        *([commands_grid(plan, count or 10)] if commands else []),
    ]
    return short._replace(grids=[*short.grids, *asked])


def _single_summary(plan: Plan, assumed: Collection[str]) -> Summary:
    """Return the plan of one machine in twenty lines."""
    best, choices = plan.best, plan.columns(1)["choices"][0]
    layout, *job = job_rows(best, assumed)
    held = ", ".join(f"{name} {format_bytes(size)}" for name, size in largest_memory(best)[:3])
    rows = [
        layout,
        *([("set", choices)] if choices else []),
        *job,
        ("time", breakdown_text(best)),
        ("memory", held),
    ]
    if best.job.tokens is not None:
        rows.append(("tokens", spent_text(best, best.job.tokens)))
    remarks = [said for said in (yours_text(plan), simplest(plan)) if said]
    if bound_by_port(best):
        remarks.append("Bound by the NIC: a port is busy for the whole step.")
    return Summary([Grid(answer_text(best), columns("", ""), rows), try_grid(plan)], remarks)


def try_grid(plan: Plan) -> Grid:
    """Return three parallel layouts to benchmark: the best, then those that lower the expected loss most."""
    found = plan.odds
    chosen = found.chosen()
    trials = [found.trial(column, chosen[0]) for column in chosen]
    table = plan.shown_columns([int(row) for row in found.rows[chosen]])
    shown = _row_cells(plan, table)
    names = ["# >", "Layout", "MBS >", *(["Recompute"] if len(set(table["recompute"])) > 1 else [])]
    shown["MBS >"] = shown["Micro-batch >"]
    cells = {name: shown[name] for name in names} | {
        "Step >": lambda row: format_seconds(table["step_time_s"][row], 4),
        **_simulated_cell(table),
        "p10 to p90 >": lambda row: " to ".join(
            format_seconds(end, 3).removesuffix(" s" if not at else "")
            for at, end in enumerate((trials[row].low_s, trials[row].high_s))
        ),
        "MFU >": lambda row: f"{table['mfu'][row]:.1%}",
        "Memory >": lambda row: format_bytes(table["memory_bytes_per_gpu"][row]),
        "Fits >": lambda row: chance_text(table["fits_probability"][row]),
        "Fastest >": lambda row: chance_text(trials[row].best_probability),
    }
    said = _odds_text(found, chosen)
    shared = found.rests_on()
    if shared is not None:
        said += f" All rely on {shared.switch}: without it the best takes {shared.slower:.0%} longer."
    title = f"{'Three to try' if len(chosen) == 3 else 'To try'}, of {plan.num_fit:,} layouts that fit"
    return grid_of(f"{title} ({plan.num_priced:,} priced)", range(len(chosen)), cells, note=said)


def _odds_text(found: Odds, chosen: Sequence[int]) -> str:
    """Say how likely the fastest layout is among a few, and what benchmarking them gains."""
    said = f"{found.holds(chosen):.0%} chance that the fastest layout (within {NOISE:.0%}) is one of these."
    if len(chosen) < 2:
        return said
    every = "both" if len(chosen) == 2 else f"all {len(chosen)}"
    return (
        f"{said} Benchmark {every}: expected loss vs. the true optimum drops from {found.regret([0]):.1%} to "
        f"{found.regret_after(chosen):.1%}; tune micro-batch, virtual stages, recompute and ZeRO in each benchmark."
    )


def _machines_summary(plan: Plan) -> Summary:
    """Return the best layout of each machine, a row each, and which is the fastest and which the cheapest."""
    found = [one for one in plan.machines if one.est is not None]

    def of_est(form: str) -> Callable[[Machine], str]:
        return lambda one: "" if one.est is None else cell(one.est, form)

    several = len({float(one.job.layout.gpus) for one in plan.machines}) > 1
    cells: Cells = {
        "Machine": lambda one: one.job.cluster.name,
        **({"GPUs >": lambda one: f"{float(one.job.layout.gpus):,.0f}"} if several else {}),
        "Layout": lambda one: (
            "no layout fits" if one.est is None else degrees_text(degrees_of(one.est.job.layout))
        ),
        "Step >": of_est("step_time_s:s4"),
        "MFU >": of_est("mfu:.1%"),
        "Memory >": of_est("memory_bytes_per_gpu:B"),
        "Fits >": lambda one: "" if one.est is None else chance_text(float(one.est.fits_probability)),
    }
    if len({one.job.precision.name for one in plan.machines}) > 1:
        cells["Precision"] = lambda one: one.job.precision.name
    if any(one.run is not None for one in found):
        cells["Days >"] = lambda one: "" if one.run is None else f"{one.run.days:,.1f}"
        cells["Dollars >"] = lambda one: "" if one.run is None else dollars_text(one.run)
        note = "days and dollars with failures"
    else:
        cells["$ per 1T tokens >"] = lambda one: dollars_of(one.usd_per_trillion_tokens) if one.est else ""
        note = "dollars without failures"
    prices = ", ".join(f"{one.job.cluster.name} {_price_of(one.job.cluster)}" for one in plan.machines)

    def name(one: Machine) -> str:
        return f"{one.job.cluster.name} ({float(one.job.layout.gpus):,.0f}, {one.job.precision.name})"

    fastest = min(found, key=lambda one: float(one.est.step_time_s) if one.est else np.inf)
    priced = [one for one in found if one.usd_per_trillion_tokens is not None]
    title = f"Fastest: {name(fastest)}, {cell(fastest.est, 'step_time_s:s4')} a step, {cell(fastest.est, 'mfu:.1%')} MFU"
    if priced:
        cheapest = min(priced, key=lambda one: float(one.usd_per_trillion_tokens or 0.0))
        title += (
            f"; cheapest: {name(cheapest)}, {dollars_of(cheapest.usd_per_trillion_tokens)} a trillion tokens"
        )
    return Summary([grid_of(title, plan.machines, cells, note=f"{note}; a GPU-hour: {prices}")])


def plan_remarks(plan: Plan) -> list[str]:
    """Explain the pick in a few sentences."""
    return list(plan.advice())


def machines_grid(plan: Plan, start: str = "") -> Grid:
    """Return the best layout on each machine side by side: a row a figure, time and money with p10 and p90."""
    found = plan.machines

    def of_best(said: Callable[[Estimate], str], none: str = "") -> Callable[[Machine], str]:
        return lambda one: none if one.est is None else said(one.est)

    def of_run(said: Callable[[TrainingRun], str]) -> Callable[[Machine], str]:
        return lambda one: "" if one.run is None else said(one.run)

    def per_trillion(one: Machine) -> str:
        usd = one.usd_per_trillion_tokens
        return "" if one.est is None else "no price" if usd is None else f"${usd:,.0f}"

    def trillion_at_lists(one: Machine) -> str:
        usd, span = one.usd_per_trillion_tokens, one.job.cluster.price_range_usd_per_gpu_hour
        if usd is None or span is None:
            return ""
        per_price = usd / float(one.job.cluster.price_usd_per_gpu_hour or 1.0)
        return " / ".join(f"${per_price * price:,.0f}" for price in span)

    def break_even(one: Machine) -> str:
        usd, first = one.usd_per_trillion_tokens, found[0].usd_per_trillion_tokens
        if usd is None or first is None or one is found[0]:
            return ""
        return f"${float(one.job.cluster.price_usd_per_gpu_hour or 0.0) * first / usd:,.2f}"

    figures = {
        "recipe": lambda one: f"{one.job.recipe.name}, {one.job.precision.name}",
        "layout": of_best(lambda est: layout_text(est.job.layout), "no layout fits"),
        "step time": of_best(lambda est: cell(est, "step_time_s:s4")),
        PERCENTILE_TITLE: of_best(lambda est: _of_samples(est.sample())),
        "MFU": of_best(lambda est: f"{float(est.mfu):.1%} of {cell(est, 'peak_flops_per_s:FLOP/s4')}"),
        "memory": of_best(
            lambda est: f"{cell(est, 'memory_bytes_per_gpu:B')} of {cell(est, 'memory_capacity_bytes:B')}"
        ),
        "price of an hour": lambda one: _price_of(one.job.cluster),
        "  lists": lambda one: _lists_of(one.job.cluster),
        "a trillion tokens": per_trillion,
        AT_LISTS: trillion_at_lists,
        "break-even price": break_even,
    }
    whole = {
        "calendar time": of_run(lambda run: format_days(run.days)),
        PERCENTILE_TITLE: of_run(lambda run: percentiles_text(run, "days")),
        **({"done by, p10 p50 p90": of_run(lambda run: _dates(run, start))} if start else {}),
        "GPU-hours": of_run(lambda run: f"{run.paid_gpu_hours:,.0f}"),
        "energy, MWh": of_run(lambda run: format_figure(run.energy_kwh / 1e3)),
        "dollars": of_run(dollars_text),
    }
    paid = {
        PERCENTILE_TITLE: of_run(lambda run: percentiles_text(run, "dollars")),
        AT_LISTS: of_run(dollars_at_lists),
    }
    has_runs = any(one.run is not None for one in found)
    rows = [row for group in (figures, whole, paid) for row in figures_of(found, group) if any(row[1:])]
    titles = [
        f"{plural(float(one.job.layout.gpus), one.job.cluster.accelerator.called)} of {one.job.cluster.name}"
        for one in found
    ]
    note = "; ".join(
        [
            "best first",
            "a trillion tokens: nothing lost to failures",
            "break-even: price of an hour at which it costs as much as the first",
            *(["calendar time and dollars: with failures"] if has_runs else []),
            *(f"{title}: {one.problem}" for title, one in zip(titles, found, strict=True) if one.problem),
        ]
    )
    strong = frozenset(
        i for i, row in enumerate(rows) if row[0] in ("calendar time", "dollars", "a trillion tokens")
    )
    return Grid("The best on each", columns("", *titles), rows, strong, note)


def _price_of(cluster: Cluster) -> str:
    """Say what an hour of a device costs, and since when."""
    usd = cluster.price_usd_per_gpu_hour
    return "no price" if usd is None else f"${usd:,.2f} ({cluster.price_date or 'given'})"


def _lists_of(cluster: Cluster) -> str:
    """Say from where to where lists went on that day."""
    span = cluster.price_range_usd_per_gpu_hour
    return "" if span is None else f"${span[0]:,.2f} to ${span[1]:,.2f}"


def _of_samples(drawn: Samples) -> str:
    """Say where the step time of samples lies, and where the headline is far from their median."""
    ends = " / ".join(format_seconds(drawn.quantile(share), 3) for share in QUANTILES)
    return f"{ends}{off_middle(drawn)}"


def _dates(run: TrainingRun, start: str) -> str:
    """Say on which days a run is done."""
    return ", ".join(str(day) for day in run.finishing_dates(start).values())


def trials_grid(plan: Plan) -> Grid:
    """Return the few layouts worth a trial, and what measuring them would settle."""
    found, trials = plan.odds, list(zip(plan.odds.trials(), plan.trials(), strict=True))
    chosen = found.chosen()
    table = plan.shown_columns(found.rows[chosen])

    def decides(row: int) -> str:
        trial = trials[row][0]
        return factors()[trial.settles].scales if trial.settles else "parallel layout" if row else ""

    def ends(row: int) -> str:
        trial = trials[row][0]
        return " / ".join(format_seconds(end, 3) for end in (trial.low_s, trial.middle_s, trial.high_s))

    cells = _row_cells(plan, table) | {
        "Step >": lambda row: cell(trials[row][1][0], "step_time_s:s4"),
        "p10 / p50 / p90": ends,
        "Best >": lambda row: f"{trials[row][0].best_probability:.0%}",
        "Regret >": lambda row: f"{trials[row][0].regret:.1%}",
        "Fits >": lambda row: f"{table['fits_probability'][row]:.0%}",
        "Main difference from #1": decides,
    }
    settled = f"{_odds_text(found, chosen)} {len(found.cost)} common samples of {len(found.rows)} layouts"
    shared = found.rests_on()
    if shared is not None and not shared.in_band:
        settled += (
            f"; all rely on {shared.switch}, without which the best takes {shared.slower:.0%} longer: "
            "verify first that it runs"
        )
    return grid_of("Try these", range(len(trials)), cells, note=settled)


def _row_cells(plan: Plan, table: Mapping[str, list[Any]]) -> Cells:
    """Return the columns that every table of layouts begins with: its number, what jobs differ in, the layout."""

    def layout(row: int) -> str:
        sequence = "no-sp" if table["tp"][row] > 1 and not table["sequence_parallel"][row] else ""
        return f"{degrees_text({axis: table[axis][row] for axis in DEGREES}, _ALWAYS)} {sequence}".rstrip()

    def zero(row: int) -> str:
        group = table["shard_group"][row]
        return str(table["zero_stage"][row]) + (f" / {group}" if group else "")

    return {
        "# >": lambda row: "" if table["rank"][row] is None else f"{table['rank'][row]:,}",
        **({"": lambda row: table["mark"][row]} if any(table["mark"]) else {}),
        **_also_differing(plan, table),
        "GPUs >": lambda row: str(table["gpus"][row]),
        "Layout": layout,
        "Micro-batch >": lambda row: str(table["micro_batch"][row]),
        "ZeRO": zero,
        "Schedule": lambda row: str(table["schedule"][row]),
        "Recompute": lambda row: str(table["recompute"][row]),
    }


def _also_differing(plan: Plan, table: Mapping[str, list[Any]]) -> Cells:
    """Return what jobs of one plan may differ in beside layouts, where they do."""
    jobs = plan.question.jobs
    held: dict[str, tuple[str, set[Any]]] = {
        "Cluster": ("cluster", {job.cluster.name for job in jobs}),
        "Precision": ("precision", {job.precision.name for job in jobs}),
        "Optimizer": ("optimizer", {job.optimizer.name for job in jobs}),
        "Batch >": ("global_batch", {float(job.global_batch) for job in jobs}),
        "Non-default settings": ("choices", {"", *table["choices"]}),
        "Slice": ("slice", {job.slice for job in jobs}),
        "Axis order": ("axis_order", {job.axis_order for job in jobs}),
        "Offload": ("offload_optimizer", {job.recipe.host.offload_optimizer for job in jobs}),
    }

    def said(name: str) -> Callable[[int], str]:
        return lambda row: {True: "yes", False: "no"}.get(table[name][row], str(table[name][row]))

    return {title: said(name) for title, (name, values) in held.items() if len(values) > 1}


def top_grid(plan: Plan, count: int) -> Grid:
    """Return the best layouts with memory, days and dollars where they are known, and the main categories."""
    table, ests = plan.columns(count), list(plan.top(count))
    paid = [est.exposed_by("category") for est in ests]

    def category(name: str) -> Callable[[int], str]:
        return lambda row: f"{float(paid[row].get(name, 0.0)) / float(ests[row].step_time_s):.1%}"

    def spent(name: str, form: str, none: str) -> Callable[[int], str]:
        return lambda row: none if table[name][row] is None else form.format(table[name][row])

    cells = _row_cells(plan, table) | {
        "Step >": lambda row: cell(ests[row], "step_time_s:s4"),
        **_simulated_cell(table),
        "MFU >": lambda row: f"{float(ests[row].mfu):.1%}",
        "Memory >": lambda row: cell(ests[row], "memory_bytes_per_gpu:B"),
        "Fits >": lambda row: f"{table['fits_probability'][row]:.0%}",
    }
    for title, name, form, none in (
        ("Days >", "days", "{:,.1f}", ""),
        ("Dollars >", "dollars", "${:,.0f}", "no price"),
    ):
        if any(value is not None for value in table[name]):
            cells[title] = spent(name, form, none)
    cells |= {"Comm >": category("communication"), "Bubble >": category("bubble"), "HBM >": category("hbm")}
    title = f"Best by {plan.question.objective}"
    return grid_of(title, range(len(ests)), cells, strong=frozenset({0}), note=_top_note(table, ests))


_SHOWN = 0.002
"""Share of a step by which its simulation differs from its bill that is worth a column. [-]"""


def _simulated_cell(table: Mapping[str, list[Any]]) -> Cells:
    """Return the column of steps with the pipeline simulated, where that is not the bill's."""
    took, billed = table[SIMULATED], table["step_time_s"]
    if not any(one and abs(one / step_s - 1.0) > _SHOWN for one, step_s in zip(took, billed, strict=True)):
        return {}
    return {"Simulated >": lambda row: "" if took[row] is None else format_seconds(took[row], 4)}


def bound_by_port(est: Estimate) -> bool:
    """Return whether a port is busy for longer than all else takes, so that the step is as long as its messages."""
    return any(float(line.exposed_seconds) > _SHOWN * float(est.step_time_s) for line in floors_of_ports(est))


def _top_note(table: Mapping[str, list[Any]], ests: Sequence[Estimate]) -> str:
    """Say what the order of the rows is, and what a row stands for."""
    said = []
    if _simulated_cell(table):
        said.append("ranked by the step with its pipeline simulated, of the first rows")
    bound = [str(rank) for rank, est in zip(table["rank"], ests, strict=True) if bound_by_port(est)]
    if bound:
        said.append(f"bound by the NIC, busy for the whole step: {', '.join(bound)}")
    if any(table["num_alike"]):
        said.append(
            f"near-duplicates (< {TIE_SHARE:.1%} apart, differing in vp, shard group or switches only) merged"
        )
    if table["days"][0] is not None:
        said.append("days and dollars: nothing lost to failures (costmodel run has them)")
    return "; ".join(said)


def commands_grid(plan: Plan, count: int) -> Grid:
    """Return the command line of each of the best layouts."""
    ranks = [str(plan.ranks[row] or "") for row in plan.shown(count)]
    rows = [list(row) for row in zip(ranks, plan.commands(count), strict=True)]
    return Grid("Reproduce", columns("# >", "Command"), rows)


def front_grid(plan: Plan) -> Grid:
    """Return the front of step time against memory, thinned to a dozen rows."""
    table = plan.pareto_columns()
    total = len(table["rank"])
    step = max(1, -(-total // _FRONT_ROWS))
    cells = _row_cells(plan, table) | {
        "Step >": lambda row: format_seconds(table["step_time_s"][row], 4),
        "MFU >": lambda row: f"{table['mfu'][row]:.1%}",
        "Memory >": lambda row: format_bytes(table["memory_bytes_per_gpu"][row]),
    }
    note = f"showing {len(range(0, total, step))} of {total}; --format json has all" if step > 1 else ""
    return grid_of(
        f"Pareto front: {plan.question.objective} vs. memory", range(0, total, step), cells, note=note
    )


_TRILLION = 1e12


def _scores(plan: Plan, score: float) -> dict[str, str]:
    """Return what a score of a search (`Question.weight`) is in words that people use, by title."""
    objective, job = plan.question.objective, plan.best.job
    if objective == "tokens-per-dollar":
        return {
            "Tokens a dollar >": format_count(1.0 / score),
            "Dollars a trillion tokens >": f"${score * _TRILLION:,.0f}",
        }
    if objective == "gpu-hours":
        return {"GPU-hours a trillion tokens >": f"{score * _TRILLION:,.0f}"}
    if objective == "mfu":
        return {"MFU >": f"{float(job_flops_per_token(job)) / score:.1%}"}
    return {"Step >": format_seconds(score, 4)}


def _scaling_grid(plan: Plan) -> Grid:
    """Return what the best layout on each number of GPUs reaches of what was asked for."""
    objective, scores = plan.question.objective, plan.by_value["gpus"]
    fewest = min(scores)
    rows = [
        [f"{gpus:,.0f}", *_scores(plan, scores[gpus]).values(), f"{scores[fewest] / scores[gpus]:.2f}"]
        for gpus in sorted(scores)
    ]
    return Grid(
        f"Best {objective} by GPUs",
        columns("GPUs >", *_scores(plan, scores[fewest]), "Gain >"),
        rows,
        note="gain: how many times as good as on the fewest GPUs",
    )


def searched_grid(plan: Plan) -> Grid:
    """Return what was searched, and what was not."""
    rows = [[name, said] for name, said in plan.searched.items()]
    return Grid("Searched", columns("Knob", "Values"), rows, note=f"{plan.held}.")


def rejected_grid(plan: Plan) -> Grid:
    """Return how many layouts are out, by the first reason that applies."""
    rows = [[REASONS[code], f"{count:,}"] for code, count in plan.rejected.most_common()]
    rows.append(["priced", f"{plan.num_priced:,}"])
    rows.append(["fit", f"{plan.num_fit:,}"])
    title = f"{plan.num_considered:,} combinations considered"
    return Grid(title, columns("Rejected layouts", "Layouts >"), rows, strong=frozenset({len(rows) - 1}))


def _gains_grid(gains: Sequence[tuple[str, float]]) -> Grid:
    """Return what dropping each constraint would save."""
    rows = [[name, f"{gain:.1%}"] for name, gain in gains]
    return Grid("Gain from lifting each constraint", columns("Constraint", "Step time saved >"), rows)


_SPENT = (
    ("Days >", "days", "{:,.1f}"),
    ("kWh >", "energy_kwh", "{:,.0f}"),
    ("Dollars >", "dollars", "${:,.0f}"),
)


def sweep_remarks(done: Sweep) -> list[str]:
    """Say how many points failed."""
    failed = len(done.failed)
    return [f"Warning: {plural(failed, 'point')} failed; run again with --resume"] if failed else []


def sweep_grids(done: Sweep) -> list[Grid]:
    """Return the rows of a sweep; days, energy and dollars where the points say how far they train."""
    rows = []
    money = [
        (title, name, form)
        for title, name, form in _SPENT
        if any(row.get(name) is not None for row in done.rows)
    ]
    for row in done.rows:
        inputs = [str(row[name]) for name in ("model", "cluster", "gpus", "global_batch", "bandwidth_scale")]
        if row["step_time_s"] is None:
            rows.append([*inputs, row["status"], row["problem"], "", "", "", *("" for _ in money)])
            continue
        degrees = degrees_text({axis: row[axis] for axis in DEGREES}, _ALWAYS)
        figures = [
            format_seconds(row["step_time_s"], 4),
            f"{row['mfu']:.1%}",
            format_bytes(row["memory_bytes_per_gpu"]),
            *("no price" if row[name] is None else form.format(row[name]) for _, name, form in money),
        ]
        rows.append([*inputs, row["status"], f"{degrees} {row['schedule']}", *figures])
    titles = (
        "Model",
        "Cluster",
        "GPUs >",
        "Batch >",
        "Links x >",
        "Status",
        "Best layout",
        "Step >",
        "MFU >",
        "Memory >",
        *(title for title, _, _ in money),
    )
    note = "days, energy and dollars: nothing lost to failures" if money else ""
    return [Grid(plural(len(done), "point"), columns(*titles), rows, note=note)]
