"""Jobs side by side: one with other values of its fields, bills line by line with what moved and why, whole runs.

A line that one bill lacks counts as zero there, so that the differences of all lines add up to the
difference of the totals.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.base.answer import Answer, columns_of
from costmodel.base.errors import CostModelError, choices_hint, shown
from costmodel.base.numbers import place_of, quantiles
from costmodel.base.version import __version__
from costmodel.base.words import common_device
from costmodel.bill.formula import names_of
from costmodel.describe.jobs.fields import JOB_FIELDS, canonical, names, shows
from costmodel.describe.jobs.layout_text import layout_text
from costmodel.describe.jobs.merge import merge_jobs, with_own_prices
from costmodel.describe.jobs.reading import keywords, read
from costmodel.describe.switch_table import SWITCHES
from costmodel.estimates.estimate import Estimate, require_estimate
from costmodel.estimates.frame import line_records
from costmodel.estimates.record import SCHEMA_VERSION
from costmodel.planning.entry import estimate
from costmodel.planning.sweep import spent_on
from costmodel.planning.uncertain import LAYOUT_KNOBS, sampled
from costmodel.step.price import price
from costmodel.whole_run.run import PERCENTILES, TrainingRun

_FIGURES = ("step_time_s", "mfu", "tokens_per_s_per_gpu", "memory_bytes_per_gpu")
_SPREAD = ("days", "gpu_hours", "energy_kwh", "dollars")
_MOST_TERMS = 4
SAMPLES = 400  # Common samples that jobs are compared on. [-]
_CHANGED = 1e-9


def _sampled_step_s(est: Estimate) -> NDArray[np.float64]:
    """Return the step time of a job of one layout at the samples that all jobs of a comparison share. [s]"""
    layout = est.job.layout
    rows = {knob: np.atleast_1d(getattr(layout, knob)) for knob in LAYOUT_KNOBS}
    job = replace(est.job, factors=sampled(est.job, rows, SAMPLES, 0))
    priced = price(job, every_stage=True, order_factor=est.priced.step.order_factor)
    return np.broadcast_to(priced.bill.step_time_s(), (SAMPLES, 1))[:, 0]


class LineDifference(NamedTuple):
    """One line on all bills (time or memory): its value on each, and why it differs from the first."""

    bill: str
    name: str
    axis: str
    category: str
    values: tuple[
        float, ...
    ]  # Exposed seconds of the step, or bytes on the worst stage; 0 where it is absent
    why: tuple[str, ...]  # What changed against the first, "" where nothing did

    def difference(self, job: int) -> float:
        """Return the value of a job less that of the first."""
        return self.values[job] - self.values[0]


class FasterOdds(NamedTuple):
    """Share of common samples in which a job is faster than the first; `low`, `high`: p10, p90 of its step time over that. [-]"""

    probability: float
    low: float
    high: float


class Spent(NamedTuple):
    """A whole training in days, hours, energy and dollars, nothing lost to failures."""

    days: float
    gpu_hours: float
    energy_kwh: float
    dollars: float | None  # None without a price
    low: float  # p10 of the step time over what is predicted, and so of all of the above. [-]
    middle: float  # p50
    high: float  # p90
    headline_place: float  # Share of the samples whose step is shorter than predicted. [-]


def _spent(est: Estimate) -> Spent | None:
    """Return what the whole run of a job takes, on the samples that `run` and an estimate draw."""
    if est.job.tokens is None:
        return None
    step_s, steps_s = float(est.step_time_s), est.sample().step_time_s
    low, middle, high = (float(each) / step_s for each in quantiles(steps_s, 0.1, 0.5, 0.9))
    known: dict[str, Any] = {name: spent_on(est).get(name) for name in _SPREAD}
    return Spent(**known, low=low, middle=middle, high=high, headline_place=place_of(step_s, steps_s))


@dataclass(frozen=True, repr=False)
class Comparison(Answer):
    """Several jobs of one layout each against the first: all lines of all bills, time first, then memory."""

    labels: tuple[str, ...]
    estimates: tuple[Estimate, ...]
    lines: tuple[LineDifference, ...]

    def largest(self, bill: str, job: int) -> list[LineDifference]:
        """Return the lines of a bill that differ from the first job's, largest difference first."""
        moved = [line for line in self.lines if line.bill == bill and line.difference(job)]
        return sorted(moved, key=lambda line: -abs(line.difference(job)))

    @property
    def device_word(self) -> str:
        """What the devices are called where all are called alike."""
        return common_device(est.device_word for est in self.estimates)

    @cached_property
    def spent(self) -> tuple[Spent | None, ...]:
        """What the whole run of each job takes, nothing lost to failures; none where it says no tokens."""
        return tuple(_spent(est) for est in self.estimates)

    @cached_property
    def odds(self) -> tuple[FasterOdds, ...]:
        """How surely each job is faster than the first: one for each, the first included."""
        first, *_ = steps = [_sampled_step_s(est) for est in self.estimates]
        return tuple(
            FasterOdds(float(np.mean(one < first)), *map(float, quantiles(one / first, 0.1, 0.9)))
            for one in steps
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the headline of every job, and every line on all of them."""
        return {
            "schema_version": 1,
            "jobs": [
                {
                    "label": label,
                    **{name: float(getattr(est, name)) for name in _FIGURES},
                    "fits": bool(est.fits),
                    "faster_than_first": faster._asdict(),
                    "spent": None if spent is None else spent._asdict(),
                }
                for label, est, faster, spent in zip(
                    self.labels, self.estimates, self.odds, self.spent, strict=True
                )
            ],
            "lines": [
                {**line._asdict(), "differences": [line.difference(job) for job in range(len(line.values))]}
                for line in self.lines
            ],
        }

    def columns(self) -> dict[str, list[Any]]:
        """Return a row a line and job."""
        rows = [
            {
                "job": label,
                **{name: getattr(line, name) for name in ("bill", "name", "axis", "category")},
                "value": line.values[job],
                "unit": "s" if line.bill == "time" else "B",
                "difference": line.difference(job),
                "why": line.why[job] or "none",
            }
            for line in self.lines
            for job, label in enumerate(self.labels)
        ]
        return columns_of(rows)


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
    for est in estimates:
        require_estimate("compare", est, "estimates one by one, such as compare(a, b)")
    if len(estimates) < 2:
        raise CostModelError(
            f"compare: {len(estimates) or 'no'} job given, expected two or more, such as compare(a, b), "
            "or one with something to vary, such as compare(*vary(…).values())"
        )
    for est in estimates:
        est.require_single("compare")
    names = _labels(labels, len(estimates))
    lines = (*_differences("time", "exposed_seconds", estimates), *_differences("memory", "bytes", estimates))
    return Comparison(names, tuple(estimates), lines)


def _labels(labels: Sequence[str], count: int) -> tuple[str, ...]:
    return tuple(labels) or tuple(chr(ord("A") + index) for index in range(count))


def _differences(bill: str, key: str, estimates: Sequence[Estimate]) -> list[LineDifference]:
    """Match the lines of the jobs' bills by name, in the order in which they first appear."""
    jobs = [{record["name"]: record for record in line_records(est)[bill]} for est in estimates]
    found = []
    for name in dict.fromkeys(name for job in jobs for name in job):
        records = [job.get(name) for job in jobs]
        known = next(record for record in records if record is not None)
        values = tuple(0.0 if record is None else record[key] for record in records)
        why = tuple(_why(records[0], record, key) for record in records)
        found.append(LineDifference(bill, name, known["axis"], known["category"], values, why))
    return found


def _why(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, key: str) -> str:
    """Say in words what changed in a line: how often it runs, what of it shows, its link, its numbers."""
    if before is after:
        return ""
    if before is None or after is None:
        line = before or after or {}
        return "" if not line[key] else ("not there before" if before is None else "gone")
    reasons = []
    if key == "exposed_seconds":
        if _differ(before["count"], after["count"]):
            reasons.append(f"runs {after['count']:,.6g} times instead of {before['count']:,.6g}")
        shown = [
            record["exposed_seconds"] / record["seconds"] if record["seconds"] else 1.0
            for record in (before, after)
        ]
        if abs(shown[0] - shown[1]) > 0.005:
            reasons.append(f"{1 - shown[1]:.0%} hidden instead of {1 - shown[0]:.0%}")
        if before["tier"] != after["tier"] and before["seconds"] and after["seconds"]:
            reasons.append(f"on {after['tier']} instead of {before['tier']}")
    used = set(names_of(after["formula"]))
    reasons += _changed_terms({key: x for key, x in before["terms"].items() if key in used}, after["terms"])
    if not reasons and _differ(before[key], after[key]):
        return "another formula" if before["formula"] != after["formula"] else ""
    return "; ".join(reasons)


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
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e9 else f"{value:.4g}"


_LIMITS = {"limit": "limit", "margin": "margin", "kept_probability": "probability"}


@dataclass(frozen=True, repr=False)
class Runs(Answer):
    """Whole runs beside each other."""

    labels: tuple[str, ...]
    runs: tuple[TrainingRun, ...]

    @property
    def device_word(self) -> str:
        """What the devices are called where all are called alike."""
        return common_device(run.device_word for run in self.runs)

    def to_dict(self) -> dict[str, Any]:
        """Return a record a run."""
        return {
            "schema_version": SCHEMA_VERSION,
            "version": __version__,
            "runs": [
                {"label": label, **run.to_dict()} for label, run in zip(self.labels, self.runs, strict=True)
            ],
        }

    def columns(self) -> dict[str, list[Any]]:
        """Return a row a run: what it is, and its figures with their percentiles."""
        rows = [_run_row(label, run) for label, run in zip(self.labels, self.runs, strict=True)]
        return columns_of(rows)


def _run_row(label: str, run: TrainingRun) -> dict[str, Any]:
    job, spread, within = run.est.job, run.spread(), run.within()
    figures: dict[str, Any] = {}
    for name in _SPREAD:
        ends = spread[name].tolist() if name in spread else [None] * len(PERCENTILES)
        places = (f"{name}_p{percent}" for percent in PERCENTILES)
        figures |= {name: getattr(run, name), **dict(zip(places, ends, strict=True))}
    limits = {
        f"{limit}_{column}": getattr(within.get(limit), name, None)
        for limit in ("dollars", "days")
        for column, name in _LIMITS.items()
    }
    return {
        "label": label,
        "model": job.model.name,
        "cluster": job.cluster.name,
        "gpus": int(run.gpus),
        "precision": job.precision.name,
        "layout": layout_text(job.layout),
        "fits": bool(run.est.fits),
        "tokens": run.tokens,
        "step_time_s": run.step_time_s,
        "mfu": float(run.est.mfu),
        **figures,
        **{name: getattr(run, name) for name in ("headline_place", "price_usd_per_gpu_hour", "price_note")},
        "interruptions": run.interruptions,
        **limits,
        "spare_nodes": run.spare_nodes,
    }


def runs(*priced: TrainingRun, labels: Sequence[str] = ()) -> Runs:
    """Lay whole runs side by side.

    Parameters
    ----------
    *priced : TrainingRun
        Two or more, of `costmodel.run`.
    labels : sequence of str
        What to call them; A, B, C … by default.

    Raises
    ------
    CostModelError
        If there are fewer than two, or not as many labels.

    Examples
    --------
    >>> import costmodel as cm
    >>> job = {"model": "llama3-8b", "gpus": 8, "global_batch": 8, "seq_len": 2048, "tokens": 1e12}
    >>> found = cm.runs(cm.run(**job, tp=2), cm.run(**job, tp=4))
    >>> found.labels, found.columns()["gpus"]
    (('A', 'B'), [8, 8])
    """
    if len(priced) < 2:
        raise CostModelError("runs: one run given, expected two or more")
    names = _labels(labels, len(priced))
    if len(names) != len(priced):
        raise CostModelError(f"runs: {len(priced)} runs given, expected as many labels, got {len(names)}")
    return Runs(names, tuple(priced))


@shows(JOB_FIELDS)
def vary(values: Sequence[str], **job: Any) -> dict[str, Estimate]:
    """Price a job with every combination of other values of fields or switches.

    Parameters
    ----------
    values : sequence of str
        ``name=a,b`` each, such as ``"tp=4,8"`` or ``"dp_overlap=none"``.
    **job
        As for `costmodel.estimate`. The data-parallel degree follows from what varies.

    Returns
    -------
    estimates : dict of Estimate
        By label, for `costmodel.compare`; a single combination is preceded by the job as given, under "".

    Raises
    ------
    CostModelError
        If a text is not ``name=values``, or there is no such field or switch.

    Examples
    --------
    >>> job = {"model": "llama3-8b", "gpus": 8, "global_batch": 16, "seq_len": 4096}
    >>> list(vary(["tp=2,4", "dp_overlap=none"], **job))
    ['tp=2 dp_overlap=none', 'tp=4 dp_overlap=none']
    """
    base = keywords(job, JOB_FIELDS, who="vary")
    labels, jobs = zip(*varied_jobs(base, values), strict=True)
    return {label: estimate(**job) for label, job in zip(labels, with_own_prices(jobs), strict=True)}


def varied_jobs(job: Mapping[str, Any], vary: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """Return labels and keywords of the job with every combination of the values to vary; see `vary`."""
    choices = [_read_values(text) for text in vary]
    changes = [dict(values) for values in product(*choices)] if choices else []
    found = [("", dict(job))] if len(changes) < 2 else []
    for change in changes:
        switches = {name: value for (name, is_switch), value in change.items() if is_switch}
        fields = {name: value for (name, is_switch), value in change.items() if not is_switch}
        label = " ".join(f"{name}={_value_label(value)}" for (name, _), value in change.items())
        below = {key: value for key, value in job.items() if key != "dp" or not fields}
        found.append((label, merge_jobs(below, {"dp": None, **fields, "switches": switches or None})))
    return found


def _value_label(value: Any) -> str:
    if isinstance(value, Mapping):
        return "+".join(f"{name}={one}" for name, one in value.items()) or "profile"
    if isinstance(value, (list, tuple)):
        return ("+" if isinstance(value, list) else " ").join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _hardware_of(part: str) -> Any:
    """Read several numbers of the hardware, or none, which are those of the profile.

    >>> _hardware_of("nic=50%+tdp=500W"), _hardware_of("placement=5+27"), _hardware_of("")
    ({'nic': '50%', 'tdp': '500W'}, {'placement': '5+27'}, {})
    """
    return read("hw", re.split(r"\+(?=[a-z_]+=)", part)) if part else {}


def _read_values(text: str) -> list[tuple[tuple[str, bool], Any]]:
    """Read one ``name=a,b`` as pairs of (name, whether it is a switch) and value."""
    name, equals, values = text.partition("=")
    name = canonical(name.strip().replace("-", "_"))
    if not equals or not values:
        raise CostModelError(f"vary: expected name=values, such as tp=4,8; got {shown(text)}")
    fields = {*names(JOB_FIELDS)} - {"switches", "dp"}
    switches = set(SWITCHES)
    if name not in fields | switches:
        raise CostModelError(
            f"vary: {shown(name)} is no field or switch; {choices_hint(name, fields | switches)}"
        )
    parts = [part.strip() for part in values.split(",")]
    if name == "hw":
        return [((name, False), _hardware_of(part)) for part in parts]
    if not all(parts):
        raise CostModelError(f"vary: {name}: expected a value before and after each comma, got {shown(text)}")
    if name in switches:
        return [((name, True), part.split("+") if SWITCHES[name].is_list else part) for part in parts]
    return [((name, False), read(name, part)) for part in parts]
