"""Bills side by side as tables and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from costmodel.base.answer import Summary
from costmodel.base.grid import Grid, columns
from costmodel.base.numbers import off_middle_text
from costmodel.base.units import format_bytes, format_days, format_seconds
from costmodel.base.words import chance_text, plural
from costmodel.bill.lines import CATEGORY_NAMES
from costmodel.describe.jobs.layout_text import degrees_of, degrees_text
from costmodel.estimates.estimate import Estimate
from costmodel.reporting.cells import Form, cell, figures_from, say, signed, table_of
from costmodel.reporting.summaries import first_warning
from costmodel.reporting.tables import job_text
from costmodel.what_if.compare import SAMPLES, Comparison, FasterOdds, Spent

_SMALL_SHARE = 0.005
_SAME = 1e-9
_ROWS = 8
"""Jobs of a summary, and lines that move most. [-]"""
_JOBS_OF_LINES = 4
"""Jobs whose lines stand side by side in a summary; of more the first's and the fastest's. [-]"""


def compare_remarks(comparison: Comparison) -> list[str]:
    """Say of each job how it differs from the first, and what is to be known of some of them."""
    return [*_differences(comparison), *(f"Warning: {text}" for text in _warnings(comparison))]


def _warnings(comparison: Comparison) -> list[str]:
    """Return the warnings of some jobs that others do not have, with the jobs."""
    found: dict[str, list[str]] = {}
    for label, est in zip(comparison.labels, comparison.estimates, strict=True):
        for warning in est.warnings:
            found.setdefault(warning, []).append(label)
    count = len(comparison.estimates)
    return [f"{'; '.join(of)}: {warning}" for warning, of in found.items() if len(of) < count]


def _differences(comparison: Comparison) -> list[str]:
    """Say of each job in one sentence how it differs from the first, and in which categories."""
    first, remarks = comparison.estimates[0], []
    for job, est in enumerate(comparison.estimates[1:], start=1):
        a, b = comparison.labels[0], comparison.labels[job]
        before, after = float(first.step_time_s), float(est.step_time_s)
        if after == before:
            remarks.append(f"{b} takes as long as {a}.{_stages_moved(first, est)}")
            continue
        moved: dict[str, float] = {}
        for line in comparison.lines:
            if line.bill == "time":
                moved[line.category] = moved.get(line.category, 0.0) + line.difference(job)
        largest = sorted(moved.items(), key=lambda item: -abs(item[1]))[:3]
        parts = ", ".join(f"{CATEGORY_NAMES[name]} {_signed('time', s)}" for name, s in largest if s)
        change = f"{format_seconds(abs(after - before))} ({abs(after / before - 1):.1%})"
        text = f"{b} is {change} {'slower' if after > before else 'faster'} a step than {a}: {parts}."
        odds = comparison.odds[job]
        if odds.high - odds.low > _SAME:
            chance = odds.probability if after < before else 1.0 - odds.probability
            text += f" {chance_text(chance)} confidence{_spread_text(odds)}."
        remarks.append(text + _stages_moved(first, est))
    return remarks


def _spread_text(odds: FasterOdds) -> str:
    """Say between which ratios of two step times samples lie, in digits that tell them apart, and by what shares of them err.

    >>> _spread_text(FasterOdds(0.22, 0.9312, 1.0221))
    ': 0.93 to 1.02 times as long (p10 to p90, 400 samples: good to 4 points)'
    """
    apart = (places for places in (2, 3, 4) if round(odds.low, places) != round(odds.high, places))
    places = next(apart, None)
    if places is None:
        return ""
    points = round(200.0 * sqrt(odds.probability * (1.0 - odds.probability) / SAMPLES))
    good = f": good to {points} points" if points > 1 else ""
    return f": {odds.low:.{places}f} to {odds.high:.{places}f} times as long (p10 to p90, {SAMPLES} samples{good})"


def compare_summary(comparison: Comparison) -> Summary:
    """Return the fastest job against the first in a sentence, a row a job, and the lines that differ most."""
    ests, spent = comparison.estimates, comparison.spent
    times = [float(est.step_time_s) for est in ests]
    others = sorted(range(1, len(ests)), key=lambda job: (not ests[job].fits, times[job]))
    listed, best = sorted([0, *others][:_ROWS]), others[0]

    def of_est(form: str) -> Form:
        return lambda job: cell(ests[job], form)

    own = {
        "Job": lambda job: comparison.labels[job],
        "Layout": lambda job: degrees_text(degrees_of(ests[job].job.layout)),
        "Step time >": of_est("step_time_s:s4"),
        "vs first >": lambda job: f"{times[job] / times[0] - 1.0:+.1%}" if job else "",
        "MFU >": of_est("mfu:.1%"),
        "Memory >": of_est("memory_bytes_per_gpu:B"),
        "Fits >": lambda job: (
            cell(ests[job], "fits_probability:chance") if ests[job].fits else "does not fit"
        ),
    }
    if all(each is not None for each in spent):
        own["Days >"] = lambda job: cell(spent[job], "days:,.1f")
        own["Dollars >"] = lambda job: cell(spent[job], "dollars:$") or "no price"
    refused = "" if ests[0].fits else f"{comparison.labels[0]} does not fit. "
    note = f"the {len(ests) - len(listed)} slowest: --details" if len(listed) < len(ests) else ""
    jobs = table_of("jobs", listed, own, title=refused + _differences(comparison)[best - 1], note=note)
    lines = [*comparison.largest("time", best)[:5], *comparison.largest("memory", best)[:2]]
    beside = listed if len(listed) <= _JOBS_OF_LINES else [0, best]
    apart = len(beside) == 2  # of more jobs the values have the room
    rows = [
        [
            line.name,
            *(_plain(line.bill, line.values[job]) for job in beside),
            *([_signed(line.bill, line.difference(best))] if apart else []),
        ]
        for line in lines
    ]
    labels = (f"{comparison.labels[job]} >" for job in beside)
    titles = columns("Line", *labels, *(["Difference >"] if apart else []))
    moved = [Grid("", titles, rows)] if rows else []
    return Summary([jobs, *moved], first_warning(_warnings(comparison)))


def _plain(bill: str, value: float) -> str:
    return format_seconds(value) if bill == "time" else format_bytes(value)


def _signed(bill: str, value: float) -> str:
    return signed(value, format_seconds if bill == "time" else format_bytes)


def compare_grids(comparison: Comparison, *, every_line: bool = False) -> list[Grid]:
    """Return the headline of all jobs, and of each but the first the differences of both bills."""
    ests = comparison.estimates
    own = {
        "cluster": lambda est: (
            f"{plural(float(est.job.layout.gpus), est.device_word)} of {est.job.cluster.name}"
        ),
        "layout": job_text,
        **_stage_rows(ests),
    }
    rows = figures_from("jobs compared", ests, own)
    money = _money_rows(comparison)
    note = "days, GPU-hours and dollars: nothing lost to failures, which costmodel run adds" if money else ""
    grids = [Grid("Jobs", columns("", *comparison.labels), [*rows, *money], note=note)]
    for job in range(1, len(ests)):
        grids += [
            _difference_grid(comparison, bill, job, every_line)
            for bill in ("time", "memory")
            if comparison.largest(bill, job)
        ]
    return grids


def _stage_rows(ests: Sequence[Estimate]) -> dict[str, Form]:
    """Return which stages the bills are of, where there are pipelines: lines of other stages are not compared."""
    if all(float(est.job.layout.pp) == 1 for est in ests):
        return {}

    def of(est: Estimate, stage: int) -> str:
        pp = float(est.job.layout.pp)
        return "the only one" if pp == 1 else f"{stage} of {pp:.0f}"

    return {
        "slowest stage, from 0": lambda est: of(est, est.slowest_stage),
        "fullest stage, from 0": lambda est: of(est, est.worst_stage),
    }


def _stages_moved(before: Estimate, after: Estimate) -> str:
    """Say that a bill is of another stage than the first job's; empty where it is not, or pipelines differ."""
    pp = float(after.job.layout.pp)
    if pp == 1 or float(before.job.layout.pp) != pp:
        return ""
    moved = [
        f"the {what} stage is now {new} of {pp:.0f} instead of {old}"
        for what, old, new in (
            ("slowest", before.slowest_stage, after.slowest_stage),
            ("fullest", before.worst_stage, after.worst_stage),
        )
        if old != new
    ]
    return f" Mind that {' and '.join(moved)}." if moved else ""


def _money_rows(comparison: Comparison) -> list[list[str]]:
    """Return time, energy and money of jobs that say how far they train, with p10 and p90; nothing lost to failures."""
    spent = [each for each in comparison.spent if each is not None]
    if len(spent) < len(comparison.estimates):
        return []
    pairs = list(zip(comparison.estimates, spent, strict=True))
    apart = [off_middle_text(each.headline_place, format_days(each.days * each.middle)) for each in spent]

    def dollars(pair: tuple[Estimate, Spent]) -> str:
        text = "{0:$} (${price_usd_per_gpu_hour:,.2f}/h, {1})"
        cluster, usd = pair[0].job.cluster, pair[1].dollars
        return "no price" if usd is None else say(text, cluster, usd, cluster.price_date or "given")

    def usd_ends(pair: tuple[Estimate, Spent]) -> str:
        usd = pair[1].dollars
        return "" if usd is None else " / ".join(f"${usd * at:,.0f}" for at in _ends(pair[1]))

    own = {
        "  of calendar time": lambda pair: format_days(*(pair[1].days * at for at in _ends(pair[1]))),
        "  vs. the median": lambda pair: (apart[pairs.index(pair)] or "near it") if any(apart) else "",
        "dollars": dollars,
        "  of dollars": usd_ends,
    }
    return figures_from("jobs' money", pairs, own)


def _ends(spent: Spent) -> tuple[float, float, float]:
    return spent.low, spent.middle, spent.high


def _difference_grid(comparison: Comparison, bill: str, job: int, every_line: bool) -> Grid:
    def row(name: str, values: Sequence[float], why: str = "") -> list[str]:
        return [name, *(_plain(bill, value) for value in values), _signed(bill, values[1] - values[0]), why]

    totals = [sum(line.values[i] for line in comparison.lines if line.bill == bill) for i in (0, job)]
    least = 0.0 if every_line else _SMALL_SHARE * max(totals)
    rows, rest = [], []
    for line in comparison.largest(bill, job):
        values = [line.values[0], line.values[job]]
        if abs(line.difference(job)) >= least:
            rows.append(row(line.name, values, line.why[job]))
        else:
            rest.append(values)
    if rest:
        rows.append(row(f"{len(rest)} lines that move less", [sum(ends) for ends in zip(*rest, strict=True)]))
    rows.append(row("step time" if bill == "time" else "memory of the worst stage", totals))
    before, after = comparison.labels[0], comparison.labels[job]
    titles = columns("Line", f"{before} >", f"{after} >", "Difference >", "Why")
    return Grid(f"{after} against {before}: {bill}", titles, rows, frozenset({len(rows) - 1}))
