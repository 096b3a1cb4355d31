"""A whole training run for people and machines: the headline, where the hours go, and how sure that is."""

from __future__ import annotations

from collections.abc import Collection

from costmodel.base.answer import Summary
from costmodel.base.grid import Grid, columns
from costmodel.base.percentiles import off_middle_text
from costmodel.base.units import (
    format_bytes,
    format_count,
    format_days,
    format_duration,
    format_figure,
    format_seconds,
)
from costmodel.base.words import chance_text, plural
from costmodel.reporting.cells import figures_of
from costmodel.reporting.summaries import (
    band_row,
    first_warning,
    job_rows,
    machine_text,
    of_text,
)
from costmodel.reporting.tables import PLANNED, breakdown_text, job_text, memory_text
from costmodel.what_if.compare import Runs
from costmodel.whole_run.run import PERCENTILES, TrainingRun

_SPREAD_TITLES = {
    "days": "days",
    "gpu_hours": "GPU-hours",
    "energy_kwh": "energy, MWh",
    "dollars": "dollars",
    "interruptions": "interruptions",
}


def run_grids(run: TrainingRun) -> list[Grid]:
    """Return the tables of a run, in the order they are read."""
    return [_headline(run), _hours(run), _spread(run), *_causes(run)]


def _headline(run: TrainingRun) -> Grid:
    """Return what people ask first."""
    est, given, checkpoint = run.est, run.reliability, run.checkpoint
    found = run.intervals_s if run.failures_per_s else {}
    rules = "; ".join(f"{name} {format_duration(seconds)}" for name, seconds in found.items())
    whose = PLANNED if run.is_planned else ""
    rows = [
        ("layout", f"{job_text(est)}{whose}"),
        ("memory", memory_text(est)),
        (
            "calendar time",
            f"{format_days(run.days)} for {format_count(run.tokens)} tokens in {plural(run.steps, 'step')} of "
            f"{format_seconds(run.step_time_s, 4)}{_middle(run)}",
        ),
        (
            "effective training time",
            f"{run.effective_training_time_ratio:.1%} of it; MFU {float(est.mfu):.1%} in the "
            f"step, {float(est.mfu) * run.effective_training_time_ratio:.1%} of the calendar",
        ),
        ("GPU-hours", _spares_text(run)),
        ("cost", _cost_text(run)),
        *limits(run),
        (
            "energy",
            f"{_megawatt_hours(run.energy_kwh)} at {run.gpu_power_w:,.0f} W a GPU and host, PUE {run.pue:.2f} "
            f"(boards alone at their limit: {_megawatt_hours(run.energy_at_tdp_kwh)})",
        ),
        ("CO2", f"{_tonnes_text(run)} (of the boards alone: {_tonnes(run.tonnes_co2_at_tdp)})"),
        ("interruptions", f"{_failures_text(run)} (rates: {given.name})"),
        (
            "checkpoint",
            f"{format_bytes(checkpoint.size_bytes)}, {given.checkpointing}: written in "
            f"{format_duration(checkpoint.write_s)}, training waits "
            f"{format_duration(checkpoint.pause_s)}",
        ),
        ("interval", f"{format_duration(run.interval_s)}" + (f" (best by {rules})" if rules else "")),
    ]
    title = f"{est.job.model.name} on {plural(run.gpus, 'GPU')} of {est.job.cluster.name}, the whole run"
    return Grid(title, columns("", ""), rows)


def _spares_text(run: TrainingRun) -> str:
    """Say how many GPU-hours are used, and how many hot spares stand ready and who pays them."""
    hours = f"{_hours_text(run.gpu_hours, run)} GPU-hours"
    if not run.spare_nodes:
        return hours
    billed = "" if run.pays_spares else ", not billed at cloud prices (--spare-nodes bills them)"
    return f"{hours} (+ {run.spare_gpu_hours:,.0f} for {plural(run.spare_nodes, 'hot spare')}{billed})"


def _cost_text(run: TrainingRun) -> str:
    """Say what a run costs, and at which price."""
    if run.dollars is None:
        return f"no price: {run.price_note}"
    return f"${run.dollars:,.0f} at ${run.price_usd_per_gpu_hour:,.2f} a GPU-hour ({run.price_note}){_at_lists(run)}"


def _failures_text(run: TrainingRun) -> str:
    """Say how often a run is interrupted, expected or not."""
    if not run.failures_per_s:
        often = "none"
    else:
        often = (
            f"{_count(run.interruptions)} unexpected, one in {run.mean_time_between_failures_s / 3600:,.1f} h"
        )
    planned = f", {_count(run.planned_stops)} planned" if run.reliability.planned_stops_per_day else ""
    return often + planned


def _count(expected: float) -> str:
    """Return an expected number of events, small ones with two digits.

    >>> _count(45.3), _count(0.234)
    ('45', '0.23')
    """
    return f"{expected:,.0f}" if expected >= 10.0 else f"{expected:.2g}"


def _middle(run: TrainingRun) -> str:
    """Say the median beside a headline that is far from it."""
    said = off_middle(run)
    return f"; {said.replace('of them', 'of the runs drawn')}" if said else ""


def _at_lists(run: TrainingRun) -> str:
    """Say what the run costs at the lowest and at the highest list price."""
    ends = run.dollars_at_list_prices
    return "" if ends is None else f", where it costs ${ends[0]:,.0f} to ${ends[1]:,.0f}"


LIKELY = 0.75
"""Probability of fitting below which a whole run warns: it buys what may not start. [-]"""


def run_remarks(run: TrainingRun) -> list[str]:
    """Return the warnings of the step, and of a layout that fits but may well not."""
    est = run.est
    said = [f"Warning: {warning}" for warning in est.warnings]
    chance = float(est.fits_probability)
    if not est.fits or chance >= LIKELY:
        return said
    whose = "the planner's layout" if run.is_planned else "this layout"
    return [
        *said,
        f"Warning: {whose} is only {chance:.0%} likely to fit; costmodel plan --risk 10% looks for one that is surer "
        "(name it with -l).",
    ]


def limits(run: TrainingRun) -> list[tuple[str, str]]:
    """Say of each limit that was given beside the tokens what is left of it, and how surely it is kept."""
    rows = []
    for name, kept in run.within().items():
        limit, apart = (
            (f"${kept.limit:,.0f}", f"${abs(kept.margin):,.0f}")
            if name == "dollars"
            else (format_days(kept.limit), format_days(abs(kept.margin)))
        )
        word = "left" if kept.margin >= 0 else "too little"
        share = f"{abs(kept.margin) / kept.limit:.1%}"
        rows.append(
            (
                "budget" if name == "dollars" else "time allowed",
                f"{limit}: {apart} ({share}) {word}; kept in {kept.probability:.0%} of the runs drawn",
            )
        )
    return rows


def _hours(run: TrainingRun) -> Grid:
    """Return where the GPU-hours go: the categories of the step, and what failures take."""
    share = run.steps * run.gpus / 3600.0
    by_category: dict[str, float] = {}
    for line in run.est.bill.time_lines:
        category = "stragglers" if line.axis == "resilience" else line.category
        by_category[category] = by_category.get(category, 0.0) + float(line.exposed_seconds) * share
    useful = sorted(by_category.items(), key=lambda item: -item[1])
    in_step = ("stragglers", "jitter")
    lost = {name: hours for name, hours in run.lost_gpu_hours().items() if not name.startswith(in_step)}
    rows = [_hours_row("in steps that count", sum(by_category.values()), run)]
    rows += [_hours_row(f"  {name}", hours, run) for name, hours in useful]
    lost_row = len(rows)
    rows.append(_hours_row("lost to failures and checkpoints", sum(lost.values()), run))
    largest_first = sorted(lost.items(), key=lambda item: -item[1])
    rows += [_hours_row("  " + name.replace("_", " "), hours, run) for name, hours in largest_first]
    rows.append(_hours_row("the whole run", run.gpu_hours, run))
    strong = frozenset({0, lost_row, len(rows) - 1})
    return Grid("Where the GPU-hours go", columns("", "GPU-hours >", "Share >"), rows, strong)


def _causes(run: TrainingRun) -> list[Grid]:
    """Return what interrupts the run and what that takes, where the rates say it."""
    rows = [
        [
            row.cause,
            _count(row.interruptions),
            format_duration(row.detection_s),
            _hours_text(row.gpu_hours, run),
            f"{row.gpu_hours / run.gpu_hours:.2%}",
        ]
        for row in run.by_cause()
    ]
    heads = columns("", "Times >", "Until known >", "GPU-hours >", "Share >")
    note = f"work done again, detection, restart and loading; causes as counted by {run.reliability.name}"
    return [Grid("What interrupts it", heads, rows, note=note)] if rows and run.failures_per_s else []


def _hours_row(label: str, hours: float, run: TrainingRun) -> list[str]:
    """Return one row."""
    return [label, _hours_text(hours, run), f"{hours / run.gpu_hours:.1%}"]


def _spread(run: TrainingRun) -> Grid:
    """Return the percentiles of the Monte Carlo."""
    given = run.reliability
    rows = []
    for name, values in run.spread().items():
        title = _SPREAD_TITLES[name]
        if run.days < 1.0 and name != "interruptions":
            title, scale = (
                ("hours", 24.0) if name == "days" else (title, 1e-3 if name == "energy_kwh" else 1.0)
            )
            rows.append([title, *(format_figure(value * scale) for value in values)])
        elif name == "energy_kwh":
            rows.append([title, *(format_figure(value / 1e3) for value in values)])
        else:
            rows.append([title, *(f"{value:,.{1 if name == 'days' else 0}f}" for value in values)])
    step = (
        f"step time as {len(run.step_samples.factors)} uncertain factors have it"
        if given.step_time_error is None
        else f"step time ±{given.step_time_error:.0%}"
    )
    note = (
        f"{run.samples:,} runs drawn from seed {run.seed}: {step}, failure rate "
        f"×/÷{_factor(given.failure_rate_error)}, downtime ×/÷{_factor(given.downtime_error)} (one standard deviation)"
        + (
            ""
            if run.dollars is None
            else f"; dollars at ${run.price_usd_per_gpu_hour:,.2f} a GPU-hour throughout"
        )
    )
    return Grid("How sure that is", columns("", *(f"p{p} >" for p in PERCENTILES)), rows, note=note)


def off_middle(run: TrainingRun) -> str:
    """Say that the headline's days are far from the median of the runs drawn; empty where they are near."""
    return off_middle_text(run.headline_place, f"{format_days(float(run.spread(50)['days'][0]))}")


def _hours_text(hours: float, run: TrainingRun) -> str:
    """Return GPU-hours, in whole ones where the run takes a day."""
    return f"{hours:,.0f}" if run.days >= 1.0 else format_figure(hours)


def _factor(error: float) -> str:
    """Return a spread of a logarithm as a factor."""
    from math import exp

    return f"{exp(error):.1f}"


def _megawatt_hours(energy_kwh: float) -> str:
    """Write an energy in MWh, small ones with three digits."""
    return f"{energy_kwh / 1e3:,.0f} MWh" if energy_kwh >= 1e5 else f"{energy_kwh / 1e3:.3g} MWh"


def _tonnes(tonnes: float) -> str:
    """Write tonnes of CO2 equivalent, small ones with three digits."""
    return f"{tonnes:,.0f} t CO2e" if tonnes >= 100.0 else f"{tonnes:.3g} t CO2e"


def _tonnes_text(run: TrainingRun) -> str:
    """Say what the energy emits, and on which grid."""
    return f"{_tonnes(run.tonnes_co2)} at {run.carbon_intensity:g} kg/kWh"


def run_summary(run: TrainingRun, *, assumed: Collection[str] = ()) -> Summary:
    """Return a run in twenty lines: days and dollars with p10 and p90, whether it fits, where the GPU-hours go."""
    est, spread = run.est, run.spread(10, 90)
    need, have = float(est.memory_bytes_per_gpu), est.memory_capacity_bytes
    chance = f"{of_text(need, have)}, {chance_text(float(est.fits_probability))} likely to fit"
    cost = "" if run.dollars is None else f", ${run.dollars:,.0f}"
    title = f"{machine_text(est)}, {format_count(run.tokens)} tokens: {format_days(run.days)}{cost}; {chance}"
    if not est.fits:
        title = f"DOES NOT FIT ({of_text(need, have)}): {title}"
    low, high = spread["days"]
    ends = f"{format_days(float(low))} to {format_days(float(high))}"
    if run.dollars is not None:
        ends += ", ${:,.0f} to ${:,.0f}".format(*spread["dollars"])
    hours = [(name.replace("_", " "), spent) for name, spent in run.lost_gpu_hours().items() if spent > 0]
    largest = sorted(hours, key=lambda item: -item[1])[:3]
    lost = ", ".join(f"{name} {spent / run.gpu_hours:.1%}" for name, spent in largest)
    steps = f"{plural(run.steps, 'step')} of {format_seconds(run.step_time_s, 4)}"
    rows = [
        *job_rows(est, {*assumed, *(["layout"] if run.is_planned else [])}),
        ("spread", f"{ends} (p10 to p90)"),
        (
            "steps",
            f"{steps} at {float(est.mfu):.1%} MFU, {run.effective_training_time_ratio:.1%} of the time effective",
        ),
        *band_row(est),
        ("time", breakdown_text(est)),
        ("lost", lost or "nothing"),
        ("cost", _cost_text(run)),
        *limits(run),
        ("energy", f"{_megawatt_hours(run.energy_kwh)}, PUE {run.pue:.2f}; {_tonnes_text(run)}"),
        ("faults", _failures_text(run)),
    ]
    return Summary(
        [Grid(title, columns("", ""), rows)],
        first_warning([said.removeprefix("Warning: ") for said in run_remarks(run)]),
    )


# --- several runs side by side ---


def runs_grids(found: Runs) -> list[Grid]:
    """Return a row a figure, a column a run; below each figure from where to where it may lie."""
    runs = found.runs
    rows = figures_of(
        runs,
        {
            "model": "est.job.model.name",
            "cluster": lambda run: f"{plural(run.gpus, run.device_word)} of {run.est.job.cluster.name}",
            "layout": lambda run: job_text(run.est),
            "precision": "est.job.precision.name",
            "memory": lambda run: memory_text(run.est),
            "tokens": lambda run: format_count(run.tokens),
            "step time": "step_time_s:s4",
            "MFU": lambda run: f"{float(run.est.mfu):.1%}",
            "calendar time": lambda run: format_days(run.days),
            PERCENTILE_TITLE: lambda run: percentiles_text(run, "days"),
        },
    )
    apart = [off_middle(run) for run in runs]
    if any(apart):
        rows.append(["  beside the median", *(said or "near it" for said in apart)])
    rows += figures_of(
        runs,
        {
            "GPU-hours": "paid_gpu_hours:,.0f",
            "energy, MWh": lambda run: format_figure(run.energy_kwh / 1e3),
            "dollars": dollars_text,
        },
    )
    rows += figures_of(
        runs, {PERCENTILE_TITLE: lambda run: percentiles_text(run, "dollars"), AT_LISTS: dollars_at_lists}
    )
    rows += figures_of(runs, {"price of a GPU-hour": _price, "interruptions": "interruptions:,.0f"})
    kept = [dict(limits(run)) for run in runs]
    names = dict.fromkeys(name for limit in kept for name in limit)
    rows += figures_of(kept, {name: lambda limit, name=name: limit.get(name, "") for name in names})
    strong = frozenset(index for index, cells in enumerate(rows) if cells[0] in ("calendar time", "dollars"))
    note = "p10 to p90 of dollars holds the price; --spare-nodes bills spare nodes too."
    return [Grid("Runs side by side", columns("", *found.labels), rows, strong, note)]


PERCENTILE_TITLE = "  p10 / p50 / p90"


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


def dollars_text(run: TrainingRun) -> str:
    """Say what a run costs."""
    return "no price" if run.dollars is None else f"${run.dollars:,.0f}"


def _price(run: TrainingRun) -> str:
    """Say what a GPU-hour costs and who says so."""
    if run.price_usd_per_gpu_hour is None:
        return run.price_note
    return f"${run.price_usd_per_gpu_hour:,.2f} ({run.price_note})"
