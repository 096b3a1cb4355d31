"""Bills side by side as tables and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from functools import partial
from math import ceil

from costmodel.base.answer import Summary
from costmodel.base.errors import CostModelError
from costmodel.base.grid import Grid, columns
from costmodel.base.percentiles import off_middle_text
from costmodel.base.units import format_bytes, format_count, format_days, format_figure, format_seconds
from costmodel.base.words import chance_text, plural
from costmodel.describe.jobs.layout_text import degrees_of, degrees_text
from costmodel.estimates.estimate import Estimate
from costmodel.estimates.tree import slowest_stage
from costmodel.reporting.cells import figures_of, grid_of
from costmodel.reporting.tables import CATEGORY, job_text
from costmodel.what_if.compare import SAMPLES, Comparison, Spent
from costmodel.whole_run.run import first_day

_SMALL_SHARE = 0.005
_SAME = 1e-9


def compare_remarks(comparison: Comparison) -> list[str]:
    """Say of each job in one sentence how it differs from the first, and in which categories."""
    first, remarks = comparison.estimates[0], []
    for job, est in enumerate(comparison.estimates[1:], start=1):
        before, after = float(first.step_time_s), float(est.step_time_s)
        word = "slower" if after > before else "faster"
        moved: dict[str, float] = {}
        for line in comparison.lines:
            if line.bill == "time":
                moved[line.category] = moved.get(line.category, 0.0) + line.difference(job)
        largest = sorted(moved.items(), key=lambda item: -abs(item[1]))[:3]
        parts = ", ".join(
            f"{CATEGORY[name]} {_signed('time', seconds)}" for name, seconds in largest if seconds
        )
        change = f"{format_seconds(abs(after - before))} ({abs(after / before - 1):.1%}) {word} a step"
        a, b = comparison.labels[0], comparison.labels[job]
        remarks.append(
            f"{b} takes as long as {a}." if after == before else f"{b} is {change} than {a}: {parts}."
        )
        odds = comparison.odds[job]
        if after != before and odds.high - odds.low > _SAME:
            chance = odds.probability if after < before else 1.0 - odds.probability
            remarks[-1] += (
                f" {chance_text(chance)} confidence: {odds.low:.2f} to {odds.high:.2f} times as long "
                f"(p10 to p90, {SAMPLES} common samples)."
            )
        remarks[-1] += _stages_moved(first, est)
    return remarks


_ROWS = 8
"""Jobs of a summary, and lines that move most. [-]"""


def compare_summary(comparison: Comparison, *, start: str = "") -> Summary:
    """Return the fastest job against the first in a sentence, a row a job, and the lines that differ most."""
    ests, said = comparison.estimates, compare_remarks(comparison)
    times = [float(est.step_time_s) for est in ests]
    others = sorted(range(1, len(ests)), key=lambda job: (not ests[job].fits, times[job]))
    if not others:
        return Summary(compare_grids(comparison, start=start)[:1])
    listed = [0, *others][:_ROWS]
    cells = {
        "Job": lambda job: comparison.labels[job],
        "Layout": lambda job: degrees_text(degrees_of(ests[job].job.layout)),
        "Step time >": lambda job: format_seconds(times[job], 4),
        "vs first >": lambda job: f"{times[job] / times[0] - 1.0:+.1%}" if job else "",
        "MFU >": lambda job: f"{float(ests[job].mfu):.1%}",
        "Memory >": lambda job: format_bytes(float(ests[job].memory_bytes_per_gpu)),
        "Fits >": lambda job: (
            chance_text(float(ests[job].fits_probability)) if ests[job].fits else "does not fit"
        ),
    }
    if all(one is not None for one in comparison.spent):
        cells["Days >"] = lambda job: f"{comparison.spent[job].days:,.1f}"
        cells["Dollars >"] = lambda job: dollars_of(comparison.spent[job].dollars)
    note = f"the {len(ests) - len(listed)} slowest: --details" if len(listed) < len(ests) else ""
    best = others[0]
    lines = [*comparison.largest("time", best)[:5], *comparison.largest("memory", best)[:2]]
    moved = {
        "Line": "name",
        f"{comparison.labels[0]} >": lambda line: _plain(line.bill, line.values[0]),
        f"{comparison.labels[best]} >": lambda line: _plain(line.bill, line.values[best]),
        "Difference >": lambda line: _signed(line.bill, line.difference(best)),
    }
    return Summary([grid_of(said[best - 1], listed, cells, note=note), grid_of("", lines, moved)])


def dollars_of(usd: float | None) -> str:
    """Return dollars, or that there is no price."""
    return "no price" if usd is None else f"${usd:,.0f}"


def _plain(bill: str, value: float) -> str:
    return format_seconds(value) if bill == "time" else format_bytes(value)


def _signed(bill: str, value: float) -> str:
    return ("−" if value < 0 else "+") + _plain(bill, abs(value))


def compare_grids(comparison: Comparison, *, every_line: bool = False, start: str = "") -> list[Grid]:
    """Return the headline of all jobs, and of each but the first the differences of both bills."""
    ests = comparison.estimates
    rows = figures_of(
        ests,
        {
            "model": "job.model.name",
            "cluster": lambda est: (
                f"{plural(float(est.job.layout.gpus), est.device_word)} of {est.job.cluster.name}"
            ),
            "layout": job_text,
            "recipe": lambda est: f"{est.job.recipe.name}, {est.job.precision.name}",
        },
    )
    rows += _stage_rows(ests)
    rows += figures_of(
        ests,
        {
            "step time": "step_time_s:s4",
            "MFU": lambda est: f"{float(est.mfu):.1%}",
            "tokens/s/GPU": lambda est: f"{float(est.tokens_per_s_per_gpu):,.1f}",
            "memory": "memory_bytes_per_gpu:B",
            "fits": lambda est: "yes" if est.fits else "no",
        },
    )
    money = _money_rows(comparison, start)
    rows += money
    note = "days, GPU-hours and dollars: nothing lost to failures, which costmodel run adds" if money else ""
    grids = [Grid("Jobs", columns("", *comparison.labels), rows, note=note)]
    for job in range(1, len(ests)):
        grids += [
            _difference_grid(comparison, bill, job, every_line)
            for bill in ("time", "memory")
            if comparison.largest(bill, job)
        ]
    return grids


_PERCENTILES = "  p10 / p50 / p90"


def _stage_rows(ests: Sequence[Estimate]) -> list[list[str]]:
    """Return which stages the bills are of, where there are pipelines: lines of other stages are not compared."""
    if all(float(est.job.layout.pp) == 1 for est in ests):
        return []

    def of(est: Estimate, stage: int) -> str:
        pp = float(est.job.layout.pp)
        return "the only one" if pp == 1 else f"{stage} of {pp:.0f}"

    return [
        ["slowest stage, from 0", *(of(est, slowest_stage(est)) for est in ests)],
        ["fullest stage, from 0", *(of(est, est.worst_stage) for est in ests)],
    ]


def _stages_moved(before: Estimate, after: Estimate) -> str:
    """Say that a bill is of another stage than the first job's; empty where it is not, or pipelines differ."""
    pp = float(after.job.layout.pp)
    if pp == 1 or float(before.job.layout.pp) != pp:
        return ""
    moved = [
        f"the {what} stage is now {new} of {pp:.0f} instead of {old}"
        for what, old, new in (
            ("slowest", slowest_stage(before), slowest_stage(after)),
            ("fullest", before.worst_stage, after.worst_stage),
        )
        if old != new
    ]
    return f" Mind that {' and '.join(moved)}." if moved else ""


def _money_rows(comparison: Comparison, start: str) -> list[list[str]]:
    """Return time, energy and money of jobs that say how far they train, with p10 and p90; nothing lost to failures."""
    ests = comparison.estimates
    spent = [one for one in comparison.spent if one is not None]
    if len(spent) < len(ests):
        return []

    def dollars(index: int) -> str:
        cluster, usd = ests[index].job.cluster, spent[index].dollars
        if usd is None:
            return "no price"
        return f"${usd:,.0f} (${cluster.price_usd_per_gpu_hour:,.2f}/h, {cluster.price_date or 'given'})"

    def usd_ends(one: Spent) -> str:
        usd = one.dollars
        return (
            "" if usd is None else " / ".join(f"${usd * at:,.0f}" for at in (one.low, one.middle, one.high))
        )

    rows = figures_of(ests, {"tokens": lambda est: format_count(float(est.job.tokens or 0.0))})
    days = {
        "calendar time": lambda one: format_days(one.days),
        _PERCENTILES: lambda one: format_days(*(one.days * at for at in (one.low, one.middle, one.high))),
    }
    rows += figures_of(spent, days)
    apart = [off_middle_text(one.headline_place, format_days(one.days * one.middle)) for one in spent]
    if any(apart):
        rows.append(["  beside the median", *(said or "near it" for said in apart)])
    if start:
        first = first_day(start)
        last = [[one.days * scale for scale in (one.low, 1.0, one.high)] for one in spent]
        rows += figures_of(last, {"done by, p10 mean p90": lambda days: ", ".join(_dates(first, days))})
    hours = {"GPU-hours": "gpu_hours:,.0f", "energy, MWh": lambda one: format_figure(one.energy_kwh / 1e3)}
    rows += figures_of(spent, hours)
    rows += figures_of(range(len(spent)), {"dollars": dollars})
    if any(one.dollars is not None for one in spent):
        rows += figures_of(spent, {_PERCENTILES: usd_ends})
    return rows


def _dates(first: date, days: Sequence[float]) -> list[str]:
    """Return on which days runs of so many days are done."""
    try:
        return [str(first + timedelta(days=ceil(count))) for count in days]
    except OverflowError:
        raise CostModelError(f"start: a run of {max(days):,.0f} days outlasts the calendar") from None


def _difference_grid(comparison: Comparison, bill: str, job: int, every_line: bool) -> Grid:
    """Return what moved between the first job and another on one bill."""
    plain, signed = partial(_plain, bill), partial(_signed, bill)
    moved = comparison.largest(bill, job)
    totals = [sum(line.values[i] for line in comparison.lines if line.bill == bill) for i in (0, job)]
    least = 0.0 if every_line else _SMALL_SHARE * max(totals)
    large = [line for line in moved if abs(line.difference(job)) >= least]
    rest = [line for line in moved if abs(line.difference(job)) < least]
    before, after = comparison.labels[0], comparison.labels[job]
    cells = {
        "Line": lambda line: line.name,
        "before": lambda line: plain(line.values[0]),
        "after": lambda line: plain(line.values[job]),
        "Difference >": lambda line: signed(line.difference(job)),
        "Why": lambda line: line.why[job],
    }
    name = "step time" if bill == "time" else "memory of the worst stage"
    sums = [[name, *map(plain, totals), signed(totals[1] - totals[0]), ""]]
    grid = grid_of(f"{after} against {before}: {bill}", large, cells)
    rows = list(grid.rows)
    if rest:
        small = [sum(line.values[i] for line in rest) for i in (0, job)]
        rows.append(
            [f"{len(rest)} lines that move less", *map(plain, small), signed(small[1] - small[0]), ""]
        )
    titles = columns("Line", f"{before} >", f"{after} >", "Difference >", "Why")
    return grid._replace(columns=titles, rows=[*rows, *sums], strong=frozenset({len(rows)}))
