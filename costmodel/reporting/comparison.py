"""Bills side by side as tables and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from math import ceil

from costmodel.base.errors import CostModelError
from costmodel.base.grid import Grid, columns
from costmodel.base.percentiles import off_middle_text
from costmodel.base.units import format_bytes, format_seconds, format_si
from costmodel.base.words import plural
from costmodel.describe.hardware.cluster import Cluster
from costmodel.estimates.estimate import Estimate
from costmodel.estimates.tree import slowest_stage
from costmodel.reporting.tables import job_text
from costmodel.what_if.compare import SAMPLES, Comparison, Spent
from costmodel.whole_run.run import first_day

_SMALL_SHARE = 0.005
_SAME = 1e-9


def compare_remarks(comparison: Comparison) -> list[str]:
    """Say of each job in one sentence how it differs from the first, and which tolls it is."""
    first, remarks = comparison.estimates[0], []
    for job, est in enumerate(comparison.estimates[1:], start=1):
        before, after = float(first.step_time_s), float(est.step_time_s)
        word = "slower" if after > before else "faster"
        tolls: dict[str, float] = {}
        for line in comparison.lines:
            if line.bill == "time":
                tolls[line.toll] = tolls.get(line.toll, 0.0) + line.difference(job)
        largest = sorted(tolls.items(), key=lambda item: -abs(item[1]))[:3]
        parts = ", ".join(f"{toll} {_signed_seconds(seconds)}" for toll, seconds in largest if seconds)
        change = f"{format_seconds(abs(after - before))} ({abs(after / before - 1):.1%}) {word} a step"
        a, b = comparison.labels[0], comparison.labels[job]
        remarks.append(
            f"{b} takes as long as {a}." if after == before else f"{b} is {change} than {a}: {parts}."
        )
        odds = comparison.odds[job]
        if after != before and odds.high - odds.low > _SAME:
            chance = odds.probability if after < before else 1.0 - odds.probability
            remarks[-1] += (
                f" That it is {word} is {chance:.0%} sure: {odds.low:.2f} to {odds.high:.2f} times as long "
                f"(p10 to p90 of {SAMPLES} common samples)."
            )
        remarks[-1] += _stages_moved(first, est)
    return remarks


def _signed_seconds(value: float) -> str:
    return ("−" if value < 0 else "+") + format_seconds(abs(value))


def _signed_bytes(value: float) -> str:
    return ("−" if value < 0 else "+") + format_bytes(abs(value))


def compare_grids(comparison: Comparison, *, every_line: bool = False, start: str = "") -> list[Grid]:
    """Return the headline of all jobs, and of each but the first the differences of both bills."""
    ests = comparison.estimates
    rows = [
        ["model", *(est.job.model.name for est in ests)],
        [
            "cluster",
            *(
                f"{plural(float(est.job.layout.gpus), est.device_word)} of {est.job.cluster.name}"
                for est in ests
            ),
        ],
        ["layout", *(job_text(est) for est in ests)],
        ["recipe", *(f"{est.job.recipe.name}, {est.job.precision.name}" for est in ests)],
        *_stage_rows(ests),
        ["step time", *(format_seconds(float(est.step_time_s), 4) for est in ests)],
        ["MFU", *(f"{float(est.mfu):.1%}" for est in ests)],
        ["tokens/s/GPU", *(f"{float(est.tokens_per_s_per_gpu):,.1f}" for est in ests)],
        ["memory", *(format_bytes(float(est.memory_bytes_per_gpu)) for est in ests)],
        ["fits", *("yes" if est.fits else "no" for est in ests)],
    ]
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


def _ends(one: Spent) -> tuple[float, float, float]:
    """Return what scales a figure of a whole training to its p10, p50 and p90. [-]"""
    return one.low, one.middle, one.high


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
    prices = [est.job.cluster for est in ests]

    def dollars(one: Spent, cluster: Cluster) -> str:
        if one.dollars is None:
            return "no price"
        return (
            f"${one.dollars:,.0f} (${cluster.price_usd_per_gpu_hour:,.2f}/h, {cluster.price_date or 'given'})"
        )

    rows = [
        ["tokens", *(format_si(float(est.job.tokens or 0.0), "") for est in ests)],
        ["days", *(f"{one.days:,.1f}" for one in spent)],
        [_PERCENTILES, *(" / ".join(f"{one.days * end:,.1f}" for end in _ends(one)) for one in spent)],
    ]
    apart = [off_middle_text(one.headline_place, f"{one.days * one.middle:,.1f} days") for one in spent]
    if any(apart):
        rows.append(["  beside the median", *(said or "near it" for said in apart)])
    if start:
        first = first_day(start)
        ends = ([one.days * scale for scale in (one.low, 1.0, one.high)] for one in spent)
        rows.append(["done by, p10 mean p90", *(", ".join(_dates(first, days)) for days in ends)])
    rows += [
        ["GPU-hours", *(f"{one.gpu_hours:,.0f}" for one in spent)],
        ["energy, MWh", *(f"{one.energy_kwh / 1e3:,.0f}" for one in spent)],
        ["dollars", *(dollars(one, cluster) for one, cluster in zip(spent, prices, strict=True))],
    ]
    if any(one.dollars is not None for one in spent):
        rows.append(
            [
                _PERCENTILES,
                *(
                    ""
                    if one.dollars is None
                    else " / ".join(f"${one.dollars * end:,.0f}" for end in _ends(one))
                    for one in spent
                ),
            ]
        )
    return rows


def _dates(first: date, days: Sequence[float]) -> list[str]:
    """Return on which days runs of so many days are done."""
    try:
        return [str(first + timedelta(days=ceil(count))) for count in days]
    except OverflowError:
        raise CostModelError(f"start: a run of {max(days):,.0f} days outlasts the calendar") from None


def _difference_grid(comparison: Comparison, bill: str, job: int, every_line: bool) -> Grid:
    """Return what moved between the first job and another on one bill."""
    plain, signed = (format_seconds, _signed_seconds) if bill == "time" else (format_bytes, _signed_bytes)
    moved = comparison.largest(bill, job)
    totals = [sum(line.values[i] for line in comparison.lines if line.bill == bill) for i in (0, job)]
    least = 0.0 if every_line else _SMALL_SHARE * max(totals)
    large = [line for line in moved if abs(line.difference(job)) >= least]
    rest = [line for line in moved if abs(line.difference(job)) < least]
    rows = [
        [
            line.name,
            plain(line.values[0]),
            plain(line.values[job]),
            signed(line.difference(job)),
            line.why[job],
        ]
        for line in large
    ]
    if rest:
        sums = [sum(line.values[i] for line in rest) for i in (0, job)]
        rows.append([f"{len(rest)} lines that move less", *map(plain, sums), signed(sums[1] - sums[0]), ""])
    strong = frozenset({len(rows)})
    name = "step time" if bill == "time" else "memory of the worst stage"
    rows.append([name, *map(plain, totals), signed(totals[1] - totals[0]), ""])
    before, after = comparison.labels[0], comparison.labels[job]
    titles = columns("Line", f"{before} >", f"{after} >", "Difference >", "Why")
    return Grid(f"{after} against {before}: {bill}", titles, rows, strong)
