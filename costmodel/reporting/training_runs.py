"""A whole training run for people: headline, where the hours go, how sure that is; a running one, watched; budgets."""

from __future__ import annotations

from datetime import UTC, datetime
from math import exp
from typing import TYPE_CHECKING

import numpy as np

from costmodel.base.answer import Summary
from costmodel.base.grid import Grid, columns
from costmodel.base.numbers import off_middle_text
from costmodel.base.units import format_count, format_days, format_dollars, format_figure, format_seconds
from costmodel.base.words import chance_text, plural
from costmodel.bill.lines import CATEGORY_NAMES
from costmodel.describe.jobs.fields import FIELD
from costmodel.reporting.cells import facts_grid, facts_of, figures_from, say, spread_rows, table_of
from costmodel.reporting.summaries import first_warning, job_rows, machine_text, of_text
from costmodel.reporting.tables import PLANNED, breakdown_text, job_text, memory_text, range_text
from costmodel.whole_run.run import PERCENTILES, TrainingRun

if TYPE_CHECKING:
    from costmodel.what_if.compare import Runs
    from costmodel.whole_run.budget import Budget
    from costmodel.whole_run.watch import Watch

LIKELY = 0.75
"""Probability of fitting below which a whole run warns: it buys what may not start. [-]"""


def run_grids(run: TrainingRun) -> list[Grid]:
    """Return the tables of a run, in the order they are read."""
    return [_headline(run), _hours(run), _spread(run), *_causes(run)]


def _headline(run: TrainingRun) -> Grid:
    est = run.est
    found = run.intervals_s if run.failures_per_s else {}
    rules = "; ".join(say("{0} {1:duration}", {}, *rule) for rule in found.items())
    middle = off_middle(run)
    more = {
        "layout": job_text(est) + (PLANNED if run.est.is_planned else ""),
        "memory": memory_text(est),
        "median": f"; {middle.replace('of them', 'of the runs drawn')}" if middle else "",
        "of_calendar": float(est.mfu) * run.effective_training_time_ratio,
        "hours": _spares_text(run),
        "cost": _cost_text(run),
        "failures": _failures_text(run),
        "rules": f" (best by {rules})" if rules else "",
        **_limits(run),
    }
    title = f"{est.job.model.name} on {plural(run.gpus, 'GPU')} of {est.job.cluster.name}, the whole run"
    return facts_grid("run", run, title, **more)


def _spares_text(run: TrainingRun) -> str:
    """Say how many GPU-hours are used, and how many hot spares stand ready and who pays them."""
    hours = f"{_hours_text(run.gpu_hours, run)} GPU-hours"
    if not run.spare_nodes:
        return hours
    billed = "" if run.pays_spares else ", not billed at cloud prices (--spare-nodes bills them)"
    return f"{hours} (+ {run.spare_gpu_hours:,.0f} for {plural(run.spare_nodes, 'hot spare')}{billed})"


def _cost_text(run: TrainingRun) -> str:
    """Say what a run costs, at which price, and what at the lowest and the highest list price."""
    if run.dollars is None:
        return f"no price: {run.price_note}"
    ends = run.dollars_at_list_prices
    lists = "" if ends is None else f", where it costs {format_dollars(ends[0])} to {format_dollars(ends[1])}"
    return say(
        "{dollars:$} at ${price_usd_per_gpu_hour:,.2f} a GPU-hour ({price_note}){lists}", run, lists=lists
    )


def _failures_text(run: TrainingRun) -> str:
    """Say how often a run is interrupted, expected or not."""
    star = {name: "*" if name in run.est.assumed else "" for name in ("reliability", "spare_nodes")}
    often = "none"
    if run.failures_per_s:
        hours = run.mean_time_between_failures_s / 3600
        text = "{interruptions:events} unexpected, one in {hours:,.1f} h at the rates of {reliability.name}{star}"
        often = say(text, run, hours=hours, star=star["reliability"])
    if run.reliability.planned_stops_per_day:
        often += say(", {planned_stops:events} planned", run)
    if run.spare_nodes:
        billed = "" if run.pays_spares else " not billed"
        often += say(
            ", {spare_nodes:plural hot spare}{star}{billed}", run, star=star["spare_nodes"], billed=billed
        )
    return often + (" (*assumed)" if any(star.values()) else "")


def run_remarks(run: TrainingRun) -> list[str]:
    """Return what was assumed, and the warnings."""
    return [*run.est.assumptions, *(f"Warning: {text}" for text in _warnings(run))]


def _warnings(run: TrainingRun) -> list[str]:
    """Return the warnings of the step, what is otherwise than was assumed, and that a layout fits but may well not."""
    est, chance = run.est, float(run.est.fits_probability)
    warnings = [*run.notes, *est.warnings]
    if not est.fits or chance >= LIKELY:
        return warnings
    layout = "the planner's layout" if est.is_planned else "this layout"
    surer = "costmodel plan --risk 10% looks for one that is surer (name it with -l)."
    return [*warnings, f"{layout} is only {chance:.0%} likely to fit; {surer}"]


def _limits(run: TrainingRun) -> dict[str, str]:
    """Say of each limit that was given beside the tokens what is left of it, and how surely it is kept."""
    limits = {"budget": "", "allowed": ""}
    for name, limit in run.within().items():
        unit = "$" if name == "dollars" else "days"
        text = "{limit:UNIT}: {apart:UNIT} ({share:.1%}) {word}; kept in {probability:.0%} of the runs drawn"
        limits["budget" if name == "dollars" else "allowed"] = say(
            text.replace("UNIT", unit),
            limit,
            apart=abs(limit.margin),
            share=abs(limit.margin) / limit.limit,
            word="left" if limit.margin >= 0 else "too little",
        )
    return limits


def _hours(run: TrainingRun) -> Grid:
    """Return where the GPU-hours go: the categories of the step, and what failures take."""
    share = run.steps * run.gpus / 3600.0
    useful: dict[str, float] = {}
    for line in run.est.bill.time_lines:
        category = "stragglers" if line.axis == "resilience" else line.category
        useful[category] = useful.get(category, 0.0) + float(line.exposed_seconds) * share
    in_step = ("stragglers", "jitter")
    lost = {name: hours for name, hours in run.lost_gpu_hours().items() if not name.startswith(in_step)}
    rows: list[tuple[str, float]] = []
    for title, parts in (("in steps that count", useful), ("lost to failures and checkpoints", lost)):
        rows.append((title, sum(parts.values())))
        for name, hours in sorted(parts.items(), key=lambda item: -item[1]):
            rows.append((f"  {CATEGORY_NAMES.get(name, name.replace('_', ' '))}", hours))
    rows.append(("the whole run", run.gpu_hours))
    strong = frozenset(at for at, (name, _) in enumerate(rows) if not name.startswith(" "))
    texts = [[name, _hours_text(hours, run), f"{hours / run.gpu_hours:.1%}"] for name, hours in rows]
    return Grid("Where the GPU-hours go", columns("", "GPU-hours >", "Share >"), texts, strong)


def _causes(run: TrainingRun) -> list[Grid]:
    """Return what interrupts the run and what that takes, where the rates say it."""
    rows = run.by_cause()
    if not (rows and run.failures_per_s):
        return []
    own = {
        "GPU-hours >": lambda row: _hours_text(row.gpu_hours, run),
        "Share >": lambda row: f"{row.gpu_hours / run.gpu_hours:.2%}",
    }
    note = f"work done again, detection, restart and loading; causes as counted by {run.reliability.name}"
    return [table_of("causes", rows, own, note=note)]


def _spread(run: TrainingRun) -> Grid:
    reliability = run.reliability
    step = f"step time as {len(run.step_samples.factors)} uncertain factors have it"
    if reliability.step_time_error is not None:
        step = f"step time ±{reliability.step_time_error:.0%}"
    price = "; dollars at ${price_usd_per_gpu_hour:,.2f} a GPU-hour throughout"
    price = "" if run.dollars is None else say(price, run)
    note = (
        f"{run.samples:,} runs drawn from seed {run.seed}: {step}, failure rate ×/÷{exp(reliability.failure_rate_error):.1f}, "
        f"downtime ×/÷{exp(reliability.downtime_error):.1f} (one standard deviation){price}"
    )
    shown = (
        run.spread() if run.days >= 1.0 else {f"{name} in short": ends for name, ends in run.spread().items()}
    )
    titles = columns("", *(f"p{p} >" for p in PERCENTILES))
    return Grid("How sure that is", titles, spread_rows(shown), note=note)


def off_middle(run: TrainingRun) -> str:
    """Say that the headline's days are far from the median of the runs drawn; empty where they are near."""
    return off_middle_text(run.headline_place, format_days(float(run.spread(50)["days"][0])))


def _hours_text(hours: float, run: TrainingRun) -> str:
    """Return GPU-hours, in whole ones where the run takes a day."""
    return f"{hours:,.0f}" if run.days >= 1.0 else format_figure(hours)


def run_summary(run: TrainingRun) -> Summary:
    """Return a run in twenty lines: days and dollars with p10 and p90, whether it fits, where the GPU-hours go."""
    est, spread = run.est, run.spread(10, 90)
    need = of_text(float(est.memory_bytes_per_gpu), est.memory_capacity_bytes)
    cost = "" if run.dollars is None else f", {format_dollars(run.dollars)}"
    title = f"{machine_text(est)}, {format_count(run.tokens)} tokens: {format_days(run.days)}{cost}; {need}"
    title = (
        f"{title}, {chance_text(float(est.fits_probability))} likely to fit"
        if est.fits
        else f"DOES NOT FIT: {title}"
    )
    ends = " to ".join(format_days(float(days)) for days in spread["days"])
    if run.dollars is not None:
        ends += ", " + " to ".join(map(format_dollars, map(float, spread["dollars"])))
    largest = sorted(run.lost_gpu_hours().items(), key=lambda item: -item[1])[:3]
    lost = [f"{name.replace('_', ' ')} {spent / run.gpu_hours:.1%}" for name, spent in largest if spent > 0]
    (layout, layout_of_job), setting = job_rows(est)
    rows = [
        (layout, layout_of_job + (PLANNED if est.is_planned else "")),
        setting,
        *facts_of("run in short", run, ends=ends),
        ("range", range_text(est)),
        *facts_of(
            "run below",
            run,
            time=breakdown_text(est),
            lost=", ".join(lost) or "nothing",
            cost=_cost_text(run),
            failures=_failures_text(run),
            **_limits(run),
        ),
    ]
    return Summary([Grid(title, columns("", ""), rows)], first_warning(_warnings(run)))


# --- several runs side by side ---


def runs_grids(found: Runs) -> list[Grid]:
    """Return a row a figure, a column a run; below each figure from where to where it may lie."""
    runs = found.runs
    apart = any(off_middle(run) for run in runs)
    own = {
        "cluster": lambda run: f"{plural(run.gpus, run.device_word)} of {run.est.job.cluster.name}",
        "layout": lambda run: job_text(run.est),
        "memory": lambda run: memory_text(run.est),
        "  p10 / p50 / p90": lambda run: percentiles_text(run, "days"),
        "  vs. the median": lambda run: (off_middle(run) or "near it") if apart else "",
        "  of dollars": lambda run: percentiles_text(run, "dollars"),
        AT_LISTS: dollars_at_lists,
        "price of a GPU-hour": lambda run: (
            say("${price_usd_per_gpu_hour:,.2f} ({price_note})", run)
            if run.price_usd_per_gpu_hour
            else run.price_note
        ),
        "budget": lambda run: _limits(run)["budget"],
        "time allowed": lambda run: _limits(run)["allowed"],
    }
    rows = figures_from("runs", runs, own)
    strong = frozenset(index for index, row in enumerate(rows) if row[0] in ("calendar time", "dollars"))
    note = "p10 to p90 of dollars holds the price; --spare-nodes bills spare nodes too."
    return [Grid("Runs side by side", columns("", *found.labels), rows, strong, note)]


AT_LISTS = "  at the lowest / highest list price"


def percentiles_text(run: TrainingRun, name: str) -> str:
    """Say where days or dollars of a run lie, empty where it has none."""
    values = run.spread().get(name)
    if values is None:
        return ""
    return format_days(*map(float, values)) if name == "days" else " / ".join(f"{usd:,.0f}" for usd in values)


def dollars_at_lists(run: TrainingRun) -> str:
    """Say what a run costs at the ends of the lists, empty where they are not known."""
    ends = run.dollars_at_list_prices
    return "" if ends is None else " / ".join(f"${usd:,.0f}" for usd in ends)


# --- a running training held against its estimate ---

_STATES = {
    "inside": "inside the band",
    "slower": "slower than the band",
    "faster": "faster than the band",
    "unknown": "too few steps to tell",
}


def watch_grids(seen: Watch) -> list[Grid]:
    """Return one look as a table."""
    left = "" if seen.steps_left is None else f", {seen.steps_left:,.0f} left"
    rows = facts_of("watch", seen, state_text=_STATES[seen.state], left=left)
    return [Grid(f"Watch {seen.times.log.name}", columns("", "Now"), rows)]


def watch_remarks(seen: Watch) -> list[str]:
    """Say in one line where steps lie, since when, and what that costs."""
    step = format_seconds(seen.step_time_s, 4)
    if seen.state in ("inside", "unknown"):
        of_expected = f"{step} a step ({seen.off:+.1%} of what is expected)"
        return [f"step {seen.last_step:,}: {_STATES[seen.state]}, {of_expected}"]
    faster = seen.state == "faster"
    beyond = abs(seen.step_time_s / (seen.band.low if faster else seen.band.high) - 1.0)
    clock = (
        f" ({datetime.fromtimestamp(seen.since_s, UTC):%Y-%m-%d %H:%M:%S})"
        if np.isfinite(seen.since_s)
        else ""
    )
    text = (
        "step {last_step:,}: {step_time_s:s4} a step since step {since_step:,}{clock}, {beyond:.1%} {side} the band "
        "({band.low:s4} to {band.high:s4}) and {off:+.1%} off the {est.step_time_s:s4} expected; {cost}"
    )
    side = "below" if faster else "above"
    return [say(text, seen, clock=clock, beyond=beyond, side=side, cost=_watch_cost(seen))]


def _watch_cost(seen: Watch) -> str:
    """Say what the rest of the run costs more, or saves."""
    if seen.extra_days is None or seen.steps_left is None:
        return f"{1.0 / (1.0 + seen.off) - 1.0:+.1%} steps a day (--tokens says how many are left)"
    verb = "costs" if seen.extra_days > 0 else "saves"
    spares = f" ({plural(seen.paid_spare_nodes, 'spare node')} paid too)" if seen.paid_spare_nodes else ""
    money = " (no price: --price USD)"
    if seen.extra_dollars is not None:
        money = f" and ${abs(seen.extra_dollars):,.0f}{spares}"
    return f"over the {seen.steps_left:,.0f} steps that are left this {verb} {abs(seen.extra_days):,.3g} days{money}"


# --- a budget: what it buys, and what each rule would train ---


def budget_grids(found: Budget) -> list[Grid]:
    """Return the tables of a budget."""
    without = () if found.served_tokens else ("Serving >", "Together >")
    own = {
        "Together >": lambda choice: say(
            "{0:$|–}", {}, choice.serve_usd and choice.serve_usd + choice.train_usd
        )
    }
    rules = table_of("budget", found.choices, {} if without else own, without)
    if found.served_tokens:
        reached = "'Cheapest with serving' reaches the same law's compute-optimal loss."
        rules = rules._replace(note=f"{rules.note} {reached}")
    if not found.solved:
        return [_budget_head(found), rules]
    solved = table_of("solved", found.solved, title=f"{format_count(found.answers)} problems")
    return [solved, _budget_head(found), rules]


_ASSUMED = ("cluster", "mfu", "precision", "effective_time")


def _budget_head(found: Budget) -> Grid:
    """Return what the budget buys before anything is chosen."""
    when = ""
    if found.gpus is not None and found.days is not None:
        when = f" on {plural(found.gpus, 'GPU')} in {found.days:,.1f} days"
    spread = {name: tuple(ends.values()) for name, ends in found.spread.items()}
    spent = "${:,.0f} / ${:,.0f} / ${:,.0f}".format(*spread["dollars"])
    if "days" in spread:
        spent += " and {:,.1f} / {:,.1f} / {:,.1f} days".format(*spread["days"])
    bought = "{:.3g} / {:.3g} / {:.3g} FLOP".format(*spread["training_flops"])
    stars = {f"{name}_star": "*" if name in found.assumed else "" for name in _ASSUMED}
    flags = ", ".join(FIELD[name].flags[0] for name in found.assumed)
    note = f" (*assumed: {flags}; estimate a similar job for its MFU)" if flags else ""
    rows = facts_of("budget", found, when=when, spent=spent, bought=bought, assumed_note=note, **stars)
    rows += facts_of("budget serving", found) if found.served_tokens else []
    title = f"A budget on {found.cluster.accelerator.name}{stars['cluster_star']}"
    return Grid(title, columns("", ""), rows)
