"""Bills side by side: the difference line by line, what moved, and why.

A line that one bill lacks counts as zero there, so that the differences of all lines add up to the
difference of the totals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from costmodel.base.errors import CostModelError
from costmodel.base.grid import Grid, columns, html_table
from costmodel.base.units import format_bytes, format_seconds
from costmodel.bill.formula import names_of
from costmodel.estimates.record import memory_records, require_single, time_records

if TYPE_CHECKING:
    from costmodel.estimates.estimate import Estimate

_SMALL_SHARE = 0.005
_MOST_TERMS = 4
_CHANGED = 1e-9


class LineDifference(NamedTuple):
    """One line on all bills: its value on each, 0 where it is absent, and why it differs from the first.

    Attributes
    ----------
    bill, name, axis, toll : str
        As on the bill that has it first; `bill` is time or memory.
    values : tuple of float
        Exposed seconds of the step, or bytes on the worst stage, by job.
    why : tuple of str
        By job: in plain words what changed against the first; empty where nothing did.
    """

    bill: str
    name: str
    axis: str
    toll: str
    values: tuple[float, ...]
    why: tuple[str, ...]

    def difference(self, job: int) -> float:
        """Return the value of a job less that of the first."""
        return self.values[job] - self.values[0]


class Comparison(NamedTuple):
    """Several jobs against the first.

    Attributes
    ----------
    labels : tuple of str
        What the jobs are called.
    estimates : tuple of Estimate
        Of one layout each.
    lines : tuple of LineDifference
        All lines of all bills: time, then memory.
    """

    labels: tuple[str, ...]
    estimates: tuple[Estimate, ...]
    lines: tuple[LineDifference, ...]

    def largest(self, bill: str, job: int) -> list[LineDifference]:
        """Return the lines of a bill that differ from the first job's, largest difference first."""
        moved = [line for line in self.lines if line.bill == bill and line.difference(job)]
        return sorted(moved, key=lambda line: -abs(line.difference(job)))

    def _repr_html_(self) -> str:
        return "".join(html_table(grid) for grid in compare_grids(self))


def compare(*estimates: Estimate, labels: Sequence[str] = ()) -> Comparison:
    """Lay the bills of several jobs side by side.

    Parameters
    ----------
    *estimates : Estimate
        Two or more, of one layout each; the others are compared with the first.
    labels : sequence of str
        What to call them; A, B, C … by default.

    Returns
    -------
    comparison : Comparison
        The differences of all lines add up to those of the totals.

    Raises
    ------
    CostModelError
        If there is nothing to compare with, or an estimate holds many layouts.
    """
    if len(estimates) < 2:
        raise CostModelError("compare: one job given, expected two or more, or one with something to vary")
    for est in estimates:
        require_single(est, "compare")
    names = tuple(labels) or tuple(chr(ord("A") + i) for i in range(len(estimates)))
    time = [{record["name"]: record for record in time_records(est)} for est in estimates]
    memory = [{record["name"]: record for record in memory_records(est)} for est in estimates]
    return Comparison(
        names,
        tuple(estimates),
        (*_differences("time", "exposed_seconds", time), *_differences("memory", "bytes", memory)),
    )


def _differences(bill: str, key: str, jobs: list[dict[str, dict[str, Any]]]) -> list[LineDifference]:
    """Match the lines of the jobs' bills by name, in the order in which they first appear."""
    found = []
    for name in dict.fromkeys(name for job in jobs for name in job):
        records = [job.get(name) for job in jobs]
        known = next(record for record in records if record is not None)
        values = tuple(0.0 if record is None else record[key] for record in records)
        why = tuple(_why(records[0], record, key) for record in records)
        found.append(LineDifference(bill, name, known["axis"], known["toll"], values, why))
    return found


def _why(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, key: str) -> str:
    """Say in words what changed in a line: how often it runs, what of it shows, its link, its numbers."""
    if before is after:
        return ""
    if before is None or after is None:
        held = before or after or {}
        return "" if not held[key] else ("not there before" if before is None else "gone")
    reasons = []
    if key == "exposed_seconds":
        if _differ(before["count"], after["count"]):
            reasons.append(f"runs {after['count']:,.6g} times instead of {before['count']:,.6g}")
        shown = [_share(record["exposed_seconds"], record["seconds"]) for record in (before, after)]
        if abs(shown[0] - shown[1]) > 0.005:
            reasons.append(f"{1 - shown[1]:.0%} hidden instead of {1 - shown[0]:.0%}")
        if before["tier"] != after["tier"] and before["seconds"] and after["seconds"]:
            reasons.append(f"on {after['tier']} instead of {before['tier']}")
    used = set(names_of(after["formula"]))
    reasons += _changed_terms({key: x for key, x in before["terms"].items() if key in used}, after["terms"])
    if not reasons and _differ(before[key], after[key]):
        return "another formula" if before["formula"] != after["formula"] else ""
    return "; ".join(reasons)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 1.0


def _differ(a: float, b: float) -> bool:
    return abs(a - b) > _CHANGED * max(abs(a), abs(b))


def _changed_terms(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """Return the numbers of a formula that changed most, those that are results of others last."""
    changed = [name for name in before if name in after and _differ(before[name], after[name])]

    def order(name: str) -> tuple[bool, float]:
        ratio = after[name] / before[name] if before[name] and after[name] else np.inf
        return name.endswith("_s") and not name.endswith("per_s"), -abs(np.log(abs(ratio)))

    changed.sort(key=order)
    return [f"{name} {_short(before[name])} → {_short(after[name])}" for name in changed[:_MOST_TERMS]]


def _short(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e9 else f"{value:.4g}"


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
    return remarks


def _signed_seconds(value: float) -> str:
    return ("−" if value < 0 else "+") + format_seconds(abs(value))


def _signed_bytes(value: float) -> str:
    return ("−" if value < 0 else "+") + format_bytes(abs(value))


def compare_grids(comparison: Comparison, *, every_line: bool = False) -> list[Grid]:
    """Return the headline of all jobs, and of each but the first the differences of both bills."""
    from costmodel.reporting.tables import layout_text

    ests = comparison.estimates
    rows = [
        ["model", *(est.job.model.name for est in ests)],
        ["cluster", *(f"{float(est.job.layout.gpus):,.0f} GPUs of {est.job.cluster.name}" for est in ests)],
        ["layout", *(layout_text(est) for est in ests)],
        ["recipe", *(f"{est.job.recipe.name}, {est.job.precision.name}" for est in ests)],
        ["step time", *(format_seconds(float(est.step_time_s), 4) for est in ests)],
        ["MFU", *(f"{float(est.mfu):.1%}" for est in ests)],
        ["tokens/s/GPU", *(f"{float(est.tokens_per_s_per_gpu):,.1f}" for est in ests)],
        ["memory", *(format_bytes(float(est.memory_bytes_per_gpu)) for est in ests)],
        ["fits", *("yes" if est.fits else "no" for est in ests)],
    ]
    grids = [Grid("Jobs", columns("", *comparison.labels), rows)]
    for job in range(1, len(ests)):
        grids += [
            _difference_grid(comparison, bill, job, every_line)
            for bill in ("time", "memory")
            if comparison.largest(bill, job)
        ]
    return grids


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


def compare_record(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as plain data."""
    return {
        "schema_version": 1,
        "jobs": [
            {
                "label": label,
                "step_time_s": float(est.step_time_s),
                "mfu": float(est.mfu),
                "tokens_per_s_per_gpu": float(est.tokens_per_s_per_gpu),
                "memory_bytes_per_gpu": float(est.memory_bytes_per_gpu),
                "fits": bool(est.fits),
            }
            for label, est in zip(comparison.labels, comparison.estimates, strict=True)
        ],
        "lines": [
            {**line._asdict(), "differences": [line.difference(job) for job in range(len(line.values))]}
            for line in comparison.lines
        ],
    }


def compare_columns(comparison: Comparison) -> dict[str, list[Any]]:
    """Return a comparison as columns, a row a line and job."""
    rows = [
        {
            "job": label,
            "bill": line.bill,
            "name": line.name,
            "axis": line.axis,
            "toll": line.toll,
            "value": line.values[job],
            "unit": "s" if line.bill == "time" else "B",
            "difference": line.difference(job),
            "why": line.why[job] or "none",
        }
        for line in comparison.lines
        for job, label in enumerate(comparison.labels)
    ]
    return {key: [row[key] for row in rows] for key in rows[0]}
