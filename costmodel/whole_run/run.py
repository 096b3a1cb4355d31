"""A whole training run: from the bill of a step to calendar days, GPU-hours, energy and dollars.

What failures cost is added to the bill of the step as lines of axis `resilience`, in seconds for
each step that counts, so that days are still steps times the sum of the bill.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.base.answer import Answer, columns_of
from costmodel.base.errors import CostModelError, shown
from costmodel.base.numbers import place_of
from costmodel.base.units import format_seconds
from costmodel.base.version import __version__
from costmodel.bill.lines import Bill, TimeLine, time_line
from costmodel.bill.quantity import Figure
from costmodel.describe.hardware.prices import price_note, with_price
from costmodel.describe.jobs.fields import FIELD
from costmodel.describe.jobs.reading import read
from costmodel.describe.reliability import Reliability, make_reliability
from costmodel.estimates.estimate import Estimate
from costmodel.estimates.record import SCHEMA_VERSION, input_record
from costmodel.estimates.samples import LEAST_SAMPLES, Samples
from costmodel.physics.run.goodput import (
    Losses,
    best_interval_s,
    daly_interval_s,
    losses,
    mean_power_w,
    shortage_fraction,
    spares_needed,
    young_interval_s,
)
from costmodel.physics.run.sampling import SampledRuns, sample_runs
from costmodel.step.unlike_nodes import busy_shares
from costmodel.whole_run.checkpoints import Checkpoint, NoHostMemory, describe_checkpoint

Array = NDArray[np.float64]

DAY_S = 86400.0
HOUR_S = 3600.0
PERCENTILES = (10, 50, 90)
_SOURCE = (
    "renewal process of checkpoints and failures: Daly, FGCS 22 (2006), equation 20, with delayed snapshots"
)
_STEP_SAMPLES = 1000  # Steps that are priced again for the runs drawn: quantiles of more are the same
US_GRID_KG_PER_KWH = float(str(FIELD["carbon_intensity"].default))
DEFAULT_RELIABILITY = str(FIELD["reliability"].default)


_RECORDED = (
    "tokens steps step_time_s days effective_training_time_ratio gpu_hours spare_gpu_hours pays_spares dollars "
    "price_usd_per_gpu_hour price_note energy_kwh energy_at_tdp_kwh pue tonnes_co2 tonnes_co2_at_tdp interruptions "
    "planned_stops spare_nodes headline_place samples seed"
)
"""Figures of a run that its record has under their own names."""
_COLUMNS = {
    "days": "d",
    "gpu_hours": "h",
    "energy_kwh": "kWh",
    "tonnes_co2": "t",
    "dollars": "USD",
    "interruptions": "",
    "headline_place": "",
    "effective_training_time_ratio": "",
    "spare_gpu_hours": "h",
}
"""Figures of a run in its table, with their units."""


class Within(NamedTuple):
    """A limit in dollars or days that was given beside the tokens, what is expected, and what that leaves of it."""

    limit: float
    expected: float
    margin: float
    probability: float  # Share of the runs drawn that keep it. [-]


class CauseCost(NamedTuple):
    """What one cause of interruptions takes from a run."""

    cause: str
    interruptions: float  # Expected ones. [-]
    detection_s: float  # Until one is known
    gpu_hours: float  # Of work done again, detection, restart and loading


@dataclass(frozen=True, repr=False)
class TrainingRun(Answer):
    """A priced step, the tokens to train on, and how the machine fails.

    Figures are expectations; `spread` has the percentiles of the same figures.
    """

    _device = "est.device_word"

    est: Estimate
    tokens: float
    reliability: Reliability
    checkpoint: Checkpoint
    interval_s: float
    spare_nodes: int
    price_usd_per_gpu_hour: float | None
    price_note: str
    pue: float
    samples: int
    seed: int
    carbon_intensity: float = US_GRID_KG_PER_KWH  # CO2 equivalent of a kWh of the grid. [kg/kWh]
    pays_spares: bool = True  # Whether dollars hold the spare nodes: where their number was given
    price_range_usd_per_gpu_hour: tuple[float, float] | None = None
    """Lowest and highest list price, none where they are not known or the user gave the price. [USD/h]"""
    budget_usd: float | None = None  # What may be spent, where the tokens are given too. [USD]
    limit_days: float | None = None  # Calendar days, where tokens and GPUs are given too. [d]
    notes: tuple[str, ...] = ()  # What is otherwise than the failure rates have it, in sentences

    gpus = Figure("gpus", "GPUs that train. [-]", gpus="est.job.layout.gpus")
    steps = Figure(
        "steps_factor * tokens / tokens_per_step",
        "Steps of the run, with those that compressed gradients need more. [-]",
        steps_factor="est.job.steps_factor",
        tokens_per_step="est.tokens_per_step",
    )
    step_time_s = Figure("step_s", "One step while nothing fails. [s]", step_s="est.step_time_s")
    downtime_s = Figure(
        "detection_s + restart_s + load_s",
        "From a failure until training goes on, if no restart fails. [s]",
        detection_s="reliability.mean_detection_s",
        restart_s="reliability.restart_s",
        load_s="_load_s",
    )
    planned_fraction = Figure(
        "stops_per_day * (pause_s + restart_s + load_s) / 86400",
        "Share of calendar time that planned stops take. [-]",
        stops_per_day="reliability.planned_stops_per_day",
        pause_s="checkpoint.pause_s",
        restart_s="reliability.restart_s",
        load_s="checkpoint.load_s",
    )
    days = Figure("calendar_s / 86400", "Calendar days. [d]")
    effective_training_time_ratio = Figure(
        "steps * step_time_s / calendar_s", "Time in steps that count over calendar time. [-]"
    )
    interruptions = Figure(
        "failures_per_s * calendar_s * (1 - planned_fraction) * (1 - shortage_fraction)",
        "Unexpected interruptions, those during a restart too. [-]",
    )
    planned_stops = Figure(
        "days * a_day", "Stops for maintenance. [-]", a_day="reliability.planned_stops_per_day"
    )
    gpu_hours = Figure("gpus * calendar_s / 3600", "Hours of the GPUs that train, waiting included. [h]")
    spare_gpu_hours = Figure(
        "spare_nodes * gpus_per_node * calendar_s / 3600",
        "Hours of the GPUs that are kept ready. [h]",
        gpus_per_node="est.job.cluster.gpus_per_node",
    )
    energy_kwh = Figure("gpu_hours * gpu_power_w * pue / 1000", "Energy of GPUs, hosts and building. [kWh]")
    energy_at_tdp_kwh = Figure(
        "gpu_hours * tdp_w * pue / 1000",
        "As model cards count: GPU-hours at the board's limit, no hosts, times the PUE. [kWh]",
        tdp_w="_tdp_w",
    )
    tonnes_co2 = Figure(
        "energy_kwh * carbon_intensity / 1000", "Location-based emissions of that energy. [t CO2 equivalent]"
    )
    tonnes_co2_at_tdp = Figure(
        "energy_at_tdp_kwh * carbon_intensity / 1000",
        "The same of the energy as model cards count it. [t CO2 equivalent]",
    )
    paid_gpu_hours = Figure(
        "gpu_hours + pays_spares * spare_gpu_hours",
        "Hours of the GPUs that train, and of spare ones asked for. [h]",
    )

    @property
    def _tdp_w(self) -> float:
        """Limit of a board, the mean where nodes are of two kinds. [W]"""
        tdps, shares = _tdps(self.est)
        return float(tdps @ shares)

    @property
    def failures_per_s(self) -> float:
        """Rate of unexpected interruptions of the job. [1/s]."""
        return self.reliability.failures_per_second(self.gpus)

    @property
    def mean_time_between_failures_s(self) -> float:
        """Of the whole job; infinite if nothing fails. [s]."""
        return 1.0 / self.failures_per_s if self.failures_per_s else float("inf")

    @property
    def _load_s(self) -> float:
        """Loading a checkpoint after a failure. [s]."""
        return 0.0 if self._peers_hold_all else self.checkpoint.load_s

    @property
    def _peers_hold_all(self) -> bool:
        """Whether other replicas go on from where a failed node was, so that a step is lost and nothing is loaded."""
        return self.reliability.on_failure == "reroute"

    @cached_property
    def losses(self) -> Losses:
        """What checkpoints and failures cost for each second of useful work."""
        if self._peers_hold_all:
            step = losses(
                self.failures_per_s, interval_s=self.step_time_s, pause_s=0.0, downtime_s=self.downtime_s
            )
            share = self.checkpoint.pause_s / self.interval_s
            return step._replace(
                pause=step.pause.then("none", "none + share", share=share),
                total=step.total.then("total", "total + share", share=share),
            )
        return losses(
            self.failures_per_s,
            interval_s=self.interval_s,
            pause_s=self.checkpoint.pause_s,
            downtime_s=self.downtime_s,
            persist_s=self.checkpoint.persist_s,
        )

    @property
    def shortage_fraction(self) -> float:
        """Share of calendar time without enough healthy nodes, in which the job stands. [-]."""
        if self.reliability.on_failure in ("shrink", "reroute"):
            return 0.0
        return float(shortage_fraction(_broken_nodes(self.reliability, self.gpus), self.spare_nodes))

    @property
    def missing_fraction(self) -> float:
        """Share of the work that nodes in repair would have done, where the job goes on without them or their replicas. [-]."""
        if self.reliability.on_failure not in ("shrink", "reroute"):
            return 0.0
        shrinks = self.reliability.on_failure == "shrink"
        nodes = max(self.gpus / self.est.job.cluster.gpus_per_node, 1.0)
        parts = float(self.est.job.layout.dp) if shrinks else nodes
        return _broken_nodes(self.reliability, self.gpus) / parts

    @cached_property
    def bill(self) -> Bill:
        """The bill of the step with what each step pays for failures as lines of axis `resilience`."""
        return replace(self.est.bill, time_lines=(*self.est.bill.time_lines, *self._loss_lines()))

    def _loss_lines(self) -> list[TimeLine]:
        """Return what each step that counts pays for checkpoints, failures, stops and missing nodes."""
        found, given, step_s = self.losses, self.reliability, self.step_time_s
        planned, short, missing = self.planned_fraction, self.shortage_fraction, self.missing_fraction
        made = {
            "checkpoint_pause": found.pause.then("pause", "step_s * pause", step_s=step_s),
            "rework": found.rework.then("rework", "step_s * rework", step_s=step_s),
        }
        # Failed restarts count as detection, restart and loading as these share the downtime.
        parts = {
            "detection": given.mean_detection_s,
            "restart": given.restart_s,
            "checkpoint_load": self._load_s,
        }
        for name, part_s in parts.items() if sum(parts.values()) else ():
            made[name] = found.downtime.then(
                "down", "step_s * down * part_s / downtime_s", step_s=step_s, part_s=part_s
            )
        made["planned_stops"] = found.total.then(
            "total", "step_s * total * planned / (1 - planned)", step_s=step_s, planned=planned
        )
        made["waiting_for_nodes"] = found.total.then(
            "total",
            "available_s = step_s * total / (1 - planned); available_s * short / (1 - short)",
            step_s=step_s,
            planned=planned,
            short=short,
            spare_nodes=float(self.spare_nodes),
        )
        made["missing_nodes"] = found.total.then(
            "total",
            "running_s = step_s * total / ((1 - planned) * (1 - short)); running_s * missing / (1 - missing)",
            step_s=step_s,
            planned=planned,
            short=short,
            missing=missing,
        )
        kind: dict[str, Any] = {
            "axis": "resilience",
            "category": "overhead",
            "phase": "step",
            "source": _SOURCE,
        }
        return [
            time_line(f"resilience.{name}", made=each, **kind)
            for name, each in made.items()
            if float(each.value) > 0.0
        ]

    @cached_property
    def calendar_s(self) -> float:
        """From start to the last step: steps times the sum of the bill. [s]."""
        return self.steps * float(self.bill.step_time_s())

    @cached_property
    def gpu_power_w(self) -> float:
        """Mean power of a GPU and its share of the host, over the calendar time. [W]."""
        return step_power_w(self.est, self.effective_training_time_ratio)

    @property
    def dollars(self) -> float | None:
        """Price of the hours of GPUs that train, and of spare ones that were asked for; none without a price. [USD]."""
        if self.price_usd_per_gpu_hour is None:
            return None
        return self.paid_gpu_hours * self.price_usd_per_gpu_hour

    @property
    def dollars_at_list_prices(self) -> tuple[float, float] | None:
        """What the run costs at the lowest and at the highest list price; none where they are not known. [USD]"""
        if self.price_range_usd_per_gpu_hour is None:
            return None
        low, high = self.price_range_usd_per_gpu_hour
        return self.paid_gpu_hours * low, self.paid_gpu_hours * high

    def within(self) -> dict[str, Within]:
        """Say of the budget and the days that were given beside the tokens what is left, and how surely they are kept."""
        if self.budget_usd is not None and self.dollars is None:
            raise CostModelError(f"budget: {self.price_note}")
        limits: dict[str, tuple[float | None, float | None]] = {
            "dollars": (self.budget_usd, self.dollars),
            "days": (self.limit_days, self.days),
        }
        scale = self.sampled.calendar_s / self.calendar_s
        return {
            name: Within(limit, expected, limit - expected, float(np.mean(expected * scale <= limit)))
            for name, (limit, expected) in limits.items()
            if limit is not None and expected is not None
        }

    def lost_gpu_hours(self) -> dict[str, float]:
        """GPU-hours that the run loses by cause: the resilience lines of the bill. [h]."""
        share = self.steps * self.gpus / HOUR_S
        return {
            line.name.removeprefix("resilience."): float(line.exposed_seconds) * share
            for line in self.bill.time_lines
            if line.axis == "resilience"
        }

    def by_cause(self) -> list[CauseCost]:
        """Return what each cause takes, most first: by their numbers, and of detection by their own times."""
        given, lost = self.reliability, self.lost_gpu_hours()
        total = sum(cause.count for cause in given.causes.values())
        alike = sum(lost.get(name, 0.0) for name in ("rework", "restart", "checkpoint_load"))
        rows = []
        for name, cause in given.causes.items():
            share = cause.count / total
            detection_s = given.detection_s if cause.detection_s is None else cause.detection_s
            known = detection_s / given.mean_detection_s if given.mean_detection_s else 0.0
            hours = share * (alike + known * lost.get("detection", 0.0))
            rows.append(CauseCost(name, share * self.interruptions, detection_s, hours))
        return sorted(rows, key=lambda row: -row.gpu_hours)

    @cached_property
    def step_samples(self) -> Samples:
        """The step at samples of everything that is uncertain, which each of the `sampled` runs takes one of."""
        return self.est.sample(min(max(self.samples, LEAST_SAMPLES), _STEP_SAMPLES), self.seed)

    @cached_property
    def sampled(self) -> SampledRuns:
        """Calendar time and interruptions of `samples` runs, drawn from the seed."""
        rng, given = np.random.default_rng(self.seed), self.reliability
        size = self.samples

        def spread(error: float) -> Array:
            return np.asarray(np.exp(error * rng.standard_normal(size)))

        if given.step_time_error is None:
            step_s = rng.permutation(np.resize(self.step_samples.step_time_s, size))
        else:
            step_s = self.step_time_s * spread(given.step_time_error)
        work = self.steps * step_s
        rate = self.failures_per_s * spread(given.failure_rate_error)
        stop = (given.mean_detection_s + given.restart_s) * spread(given.downtime_error) + self._load_s
        # Where peers hold all, the pause of a checkpoint is shared by the steps between two.
        pause_s = self.checkpoint.pause_s
        if self._peers_hold_all:
            pause_s *= self.step_time_s / self.interval_s
        drawn = sample_runs(
            rng,
            work_s=work,
            failures_per_s=rate,
            interval_s=np.asarray(self.step_time_s if self._peers_hold_all else self.interval_s),
            downtime_s=stop,
            pause_s=np.asarray(pause_s),
            persist_s=np.asarray(0.0 if self._peers_hold_all else self.checkpoint.persist_s),
        )
        available = (
            (1.0 - self.planned_fraction) * (1.0 - self.shortage_fraction) * (1.0 - self.missing_fraction)
        )
        return drawn._replace(calendar_s=drawn.calendar_s / available)

    def spread(self, *percentiles: float) -> dict[str, Array]:
        """Return percentiles of the run's figures (p10, p50 and p90 unless others are given)."""
        at = percentiles or PERCENTILES
        calendar = np.percentile(self.sampled.calendar_s, at)
        scale = calendar / self.calendar_s
        found = {
            "days": calendar / DAY_S,
            "gpu_hours": self.gpu_hours * scale,
            "energy_kwh": self.energy_kwh * scale,
            "interruptions": np.percentile(self.sampled.interruptions, at),
        }
        if self.dollars is not None:
            found["dollars"] = self.dollars * scale
        return found

    @property
    def headline_place(self) -> float:
        """Share of the runs drawn that are done in fewer days than the headline says. [-]."""
        return place_of(self.calendar_s, self.sampled.calendar_s)

    def finishing_dates(self, start: date | str) -> dict[str, date]:
        """Return the day on which the run is done, if it starts on a day such as ``2026-12-01``: p10, p50 and p90."""
        first = first_day(start)
        try:
            days = (timedelta(days=float(np.ceil(day))) for day in self.spread()["days"])
            return {f"p{p}": first + length for p, length in zip(PERCENTILES, days, strict=True)}
        except OverflowError:
            raise CostModelError(f"start: a run of {self.days:,.0f} days outlasts the calendar") from None

    def to_dict(self) -> dict[str, Any]:
        """Return everything about a run as numbers and texts; a spread holds p10, p50 and p90."""
        named = {name: getattr(self, name) for name in _RECORDED.split()}
        prices, fails = self.dollars_at_list_prices, self.failures_per_s > 0
        return {
            "schema_version": SCHEMA_VERSION,
            "version": __version__,
            "inputs": input_record(self.est.job),
            "mfu": float(self.est.mfu),
            "layout_is_planned": self.est.is_planned,
            "memory_bytes_per_gpu": float(self.est.memory_bytes_per_gpu),
            "memory_capacity_bytes": float(self.est.memory_capacity_bytes),
            "fits": bool(self.est.fits),
            "warnings": [*self.notes, *self.est.warnings],
            **named,
            "carbon_intensity_kg_per_kwh": self.carbon_intensity,
            "dollars_at_list_prices": None if prices is None else list(prices),
            "within": {name: kept._asdict() for name, kept in self.within().items()},
            "mean_time_between_failures_s": self.mean_time_between_failures_s if fails else None,
            "checkpoint": {
                **self.checkpoint.__dict__,
                "interval_s": self.interval_s,
                "best_interval_s": self.intervals_s if fails else None,
            },
            "reliability": self.reliability.model_dump(),
            "lost_gpu_hours": self.lost_gpu_hours(),
            "by_cause": [row._asdict() for row in self.by_cause()],
            "spread": {
                name: dict(zip((f"p{p}" for p in PERCENTILES), values.tolist(), strict=True))
                for name, values in self.spread().items()
            },
        }

    @property
    def intervals_s(self) -> dict[str, float]:
        """Best interval between checkpoints by Young, by Daly and by the exact result. [s]"""
        mean, pause = self.mean_time_between_failures_s, max(self.checkpoint.pause_s, 1e-3)
        return {
            "young": float(young_interval_s(pause, mean)),
            "daly": float(daly_interval_s(pause, mean)),
            "exact": float(best_interval_s(pause, mean, persist_s=self.checkpoint.persist_s)),
        }

    def columns(self) -> dict[str, list[Any]]:
        """Return a row a figure: name, unit, expectation and percentiles where they are known."""
        spread = self.spread()
        figures: list[tuple[str, str, float | None]] = [
            *((name, unit, getattr(self, name)) for name, unit in _COLUMNS.items()),
            ("checkpoint_size_bytes", "B", self.checkpoint.size_bytes),
            ("checkpoint_interval_s", "s", self.interval_s),
            *((f"lost_gpu_hours.{name}", "h", hours) for name, hours in self.lost_gpu_hours().items()),
        ]
        rows = []
        for name, unit, value in figures:
            ends = spread[name].tolist() if name in spread else [""] * len(PERCENTILES)
            row = {"figure": name, "unit": unit, "expected": "" if value is None else value}
            rows.append(row | dict(zip((f"p{p}" for p in PERCENTILES), ends, strict=True)))
        return columns_of(rows)


def first_day(start: date | str) -> date:
    """Return the day on which a run starts."""
    try:
        return date.fromisoformat(start) if isinstance(start, str) else start
    except ValueError:
        raise CostModelError(f"start: expected a date such as 2026-12-01, got {shown(start)}") from None


def _broken_nodes(reliability: Reliability, gpus: float) -> float:
    """Return how many nodes are in repair on average [-]."""
    return reliability.failures_per_second(gpus) * reliability.hardware_fraction * reliability.repair_s


def step_power_w(est: Estimate, running: float = 1.0) -> float:
    """Return the mean power of a GPU and its share of the host, in steps for a share of the time. [W]."""
    by_category = est.exposed_by("category")
    busy_s = sum(float(by_category.get(category, 0.0)) for category in ("math", "hbm", "state", "activation"))
    (tdps, shares), mixed = _tdps(est), est.job.cluster.mixed
    busy = busy_s / float(est.step_time_s) * np.asarray(busy_shares(est.priced.step) if mixed else 1.0)
    return float(mean_power_w(tdps, busy_fraction=busy, running_fraction=running) @ shares)


def _tdps(est: Estimate) -> tuple[Array, Array]:
    """Return the limits of the boards of a job's kinds of node, and their shares of its GPUs. [W], [-]"""
    cluster = est.job.cluster
    if cluster.mixed is None:
        return np.asarray([cluster.accelerator.tdp_w]), np.ones(1)
    others = cluster.mixed.nodes * cluster.gpus_per_node / float(est.job.layout.gpus)
    tdps = [cluster.accelerator.tdp_w, cluster.mixed.accelerator.tdp_w]
    return np.asarray(tdps), np.asarray([1.0 - others, others])


def run_of(
    est: Estimate,
    tokens: float,
    *,
    reliability: str | Reliability = DEFAULT_RELIABILITY,
    changes: Mapping[str, Any] | None = None,
    price_usd_per_gpu_hour: float | Mapping[str, float] | None = None,
    pue: float | None = None,
    carbon_intensity: float | None = None,
    storage_bytes_per_s: float | None = None,
    samples: int = 10_000,
    seed: int = 0,
) -> TrainingRun:
    """Price a whole run of an estimate of one layout; see `run` for the parameters."""
    if np.shape(est.step_time_s):
        raise CostModelError("run: expected one layout, got an array of them")
    tokens, samples, seed = read("tokens", tokens), read("samples", samples), read("seed", seed)
    given = make_reliability(reliability, changes) if isinstance(reliability, str) else reliability
    cluster = est.job.cluster
    if price_usd_per_gpu_hour is not None:
        cluster = with_price(cluster, read("price_usd_per_gpu_hour", price_usd_per_gpu_hour))
    pue = None if pue is None else read("pue", pue)
    notes: tuple[str, ...] = ()
    try:
        checkpoint = describe_checkpoint(est, given.checkpointing, storage_bytes_per_s)
    except NoHostMemory as error:
        if given is reliability or (changes or {}).get("checkpointing") is not None:
            raise
        notes = (f"Training waits while checkpoints are written (blocking): {error.has}.",)
        given = given.model_copy(update={"checkpointing": "blocking"})
        checkpoint = describe_checkpoint(est, "blocking", storage_bytes_per_s)
    gpus = float(est.job.layout.gpus)
    # A checkpoint lies between two steps.
    interval = max(_interval(given, checkpoint, gpus), float(est.step_time_s))
    spares = 0 if given.on_failure != "spares" and given.spare_nodes is None else given.spare_nodes
    made = TrainingRun(
        est=est,
        tokens=float(tokens),
        reliability=given,
        checkpoint=checkpoint,
        interval_s=interval,
        spare_nodes=spares_needed(_broken_nodes(given, gpus)) if spares is None else spares,
        pays_spares=spares is not None,
        price_usd_per_gpu_hour=cluster.price_usd_per_gpu_hour,
        price_note=price_note(cluster),
        price_range_usd_per_gpu_hour=cluster.price_range_usd_per_gpu_hour,
        pue=cluster.pue if pue is None else pue,
        samples=samples,
        seed=seed,
        notes=notes,
        carbon_intensity=US_GRID_KG_PER_KWH
        if carbon_intensity is None
        else read("carbon_intensity", carbon_intensity),
    )
    if given.on_failure in ("shrink", "reroute") and float(est.job.layout.dp) == 1:
        raise CostModelError(
            f"on_failure: {given.on_failure} takes other replicas, and dp is 1; wait or spares do not"
        )
    standing = max(made.shortage_fraction, made.missing_fraction)
    if made.planned_fraction >= 1.0 or standing > 0.99:
        raise CostModelError(
            f"reliability: the job never ends: it waits for missing nodes {min(standing, 1.0):.0%} of the time, "
            f"and planned stops take {made.planned_fraction:.0%} (more spare_nodes, on_failure shrink or reroute, or a "
            "shorter repair_s would do)"
        )
    return made


def _interval(given: Reliability, checkpoint: Checkpoint, gpus: float) -> float:
    """Return the interval to use; refuse one that hardly any run between two failures reaches."""
    rate = given.failures_per_second(gpus)
    if not rate:
        return HOUR_S if given.checkpoint_interval_s is None else given.checkpoint_interval_s
    mean = 1.0 / rate
    best = float(best_interval_s(max(checkpoint.pause_s, 1e-3), mean, persist_s=checkpoint.persist_s))
    interval = best if given.checkpoint_interval_s is None else given.checkpoint_interval_s
    safe_after = checkpoint.pause_s + checkpoint.persist_s
    if safe_after > mean:
        raise CostModelError(
            f"checkpoint: writing one takes {safe_after:,.0f} s, longer than the mean time between failures of the "
            f"job ({mean:,.0f} s); faster storage or fewer GPUs"
        )
    if interval + checkpoint.pause_s < checkpoint.persist_s:
        raise CostModelError(
            f"checkpoint_interval_s: {interval:.0f} is shorter than a checkpoint takes to be safe "
            f"({checkpoint.persist_s:.0f} s); faster storage, or an interval of {best:.0f} s"
        )
    if interval > mean:
        raise CostModelError(
            f"checkpoint_interval_s: {interval:,.0f} is longer than the mean time between failures of the job "
            f"({mean:,.0f} s); the best interval is {format_seconds(best)}"
        )
    return interval
