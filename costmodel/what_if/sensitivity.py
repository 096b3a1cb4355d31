r"""Sensitivity: what a little more of each number, and the other choice of each switch, do to a job.

The elasticity of step time T to a number x is the change in percent per percent,

.. math:: e_x = \frac{\ln T(1.1\,x) - \ln T(0.9\,x)}{\ln 1.1 - \ln 0.9}

Time is homogeneous: with all rates doubled and all latencies halved everything takes half as long.
By Euler's theorem the elasticities to all rates, less those to all latencies, add up to -1, as far
as no algorithm switches in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from costmodel.base.answer import Answer, columns_of
from costmodel.base.errors import CostModelError
from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.describe.jobs.job import Change, Job, check_job
from costmodel.describe.jobs.reading import read
from costmodel.describe.recipe import NUMERIC
from costmodel.estimates.estimate import Estimate, estimate_job, require_estimate
from costmodel.interop.assertions.tables import Assertion, broken
from costmodel.what_if.changes import choice_changes, hardware_changes, number_changes

_LEAST = 1e-9


class Effect(NamedTuple):
    """What a change of one number, little of it, or of one choice does to a job."""

    name: str
    kind: str  # rate, latency, number or switch
    before: str  # Value of a switch, "" for a number
    after: str
    value: float  # Of a number, NaN for a switch
    unit: str
    elasticity: float  # Per cent of step time per per cent of the number
    memory_elasticity: float
    less: float  # Relative change of step time with 10 % less of a number, or the other value of a switch
    more: float
    memory_more: float
    fits: bool  # With more of a number, or the other value of a switch
    removed: str  # The lines that shrink and grow most when things get faster
    created: str

    @property
    def reach(self) -> float:
        """Largest relative change of step time that it makes. [-]."""
        return max(abs(self.less), abs(self.more))


@dataclass(frozen=True, repr=False)
class Sensitivity(Answer):
    """All effects on a job, largest first, and the switches that it cannot turn with why not."""

    _device = "estimate.device_word"

    estimate: Estimate
    change: float
    effects: tuple[Effect, ...]
    refused: tuple[tuple[str, str], ...]

    def total(self, kind: str) -> float:
        """Sum of the elasticities of a kind: rate, latency or number. [-]."""
        return math.fsum(effect.elasticity for effect in self.effects if effect.kind == kind)

    @property
    def switches(self) -> list[Effect]:
        """The switches that leave the numerics as they are, and with which a job that fits still does."""
        fitting = [one for one in self.effects if one.fits or not self.estimate.fits]
        return [one for one in fitting if one.kind == "switch" and one.name not in NUMERIC]

    @property
    def best_switch(self) -> Effect | None:
        """The one of `switches` that saves most time; None where none saves a thousandth."""
        best = min(self.switches, key=lambda one: one.more, default=None)
        return best if best is not None and best.more < -0.001 else None

    def to_dict(self) -> dict[str, Any]:
        """Return all effects as plain data."""
        return {
            "schema_version": 1,
            "change": self.change,
            "step_time_s": float(self.estimate.step_time_s),
            "memory_bytes_per_gpu": float(self.estimate.memory_bytes_per_gpu),
            "sum_of_rates": self.total("rate"),
            "sum_of_latencies": self.total("latency"),
            "effects": [
                {key: None if value != value else value for key, value in effect._asdict().items()}
                for effect in self.effects
            ],
            "refused": [{"switch": name, "reason": reason} for name, reason in self.refused],
        }

    def columns(self) -> dict[str, list[Any]]:
        """Return a row an effect."""
        texts = ("before", "after", "unit", "removed", "created")
        rows = [effect._asdict() for effect in self.effects]
        return columns_of([{**row, **{key: row[key] or "none" for key in texts}} for row in rows])


def sensitivity(
    est: Estimate | None = None,
    *,
    change: float = 0.1,
    progress: Callable[[int, int], None] | None = None,
    **unknown: Any,
) -> Sensitivity:
    """Price a job with a little less and a little more of everything, and with every switch turned.

    Parameters
    ----------
    est : Estimate
        Of one layout.
    change : float
        How much less and more. [-]
    progress : callable, optional
        Called with numbers and switches priced, and those to price.

    Returns
    -------
    sensitivity : Sensitivity
        Effects on step time and memory, largest first.

    Notes
    -----
    A switch may need what the job has not (a kernel, a schedule), or the framework may refuse it: then it is among `refused`.

    Examples
    --------
    >>> import costmodel as cm
    >>> est = cm.estimate(model="llama3-8b", gpus=8, tp=2, global_batch=64, seq_len=8192)
    >>> [effect.name for effect in cm.sensitivity(est).effects if effect.kind != "switch"][0]
    'bf16 peak'
    """
    if unknown:
        raise CostModelError(
            f"sensitivity: {', '.join(unknown)}: expected an estimate, such as sensitivity(estimate(…)), and change"
        )
    est = require_estimate("sensitivity", est, "an estimate, such as sensitivity(estimate(…))")
    est.require_single("sensitivity")
    change = read("change", change)
    less, more = (
        [*hardware_changes(est.job, factor), *number_changes(est.job, factor)]
        for factor in (1.0 - change, 1.0 + change)
    )
    span = math.log((1.0 + change) / (1.0 - change))
    choices = choice_changes(est.job)
    tell = (lambda done, total: None) if progress is None else progress
    broken_before = [row for row, _ in _broken(est.job)]
    effects, refused = [], []
    for done, (smaller, larger) in enumerate(zip(less, more, strict=True), start=1):
        effects.append(_effect(est, larger, estimate_job(smaller.job), estimate_job(larger.job), span))
        tell(done, len(more) + len(choices))
    for done, choice in enumerate(choices, start=len(more) + 1):
        try:
            check_job(choice.job)
            if newly := [text for row, text in _broken(choice.job) if row not in broken_before]:
                raise CostModelError(newly[0])
            other = estimate_job(choice.job)
            effects.append(_effect(est, choice, other, other))
        except (CostModelError, KeyError, ZeroDivisionError) as error:
            refused.append((f"{choice.name}={choice.after}", str(error)))
        tell(done, len(more) + len(choices))
    effects.sort(key=lambda effect: -effect.reach)
    return Sensitivity(est, change, tuple(effects), tuple(refused))


def _broken(job: Job) -> list[tuple[Assertion, str]]:
    """Return the assertions of its recipe's framework that a job breaks; none of a framework without a table."""
    launches = job.recipe.launches
    return broken(launches.framework, job) if launches and launches.framework in FRAMEWORKS else []


def _effect(
    est: Estimate, change: Change, below: Estimate, above: Estimate, span: float = math.nan
) -> Effect:
    """Compare a job with less and with more of a number, `span` apart on a log scale, or with another choice twice."""
    time = [float(priced.step_time_s) for priced in (below, est, above)]
    memory = [float(priced.memory_bytes_per_gpu) for priced in (below, est, above)]
    is_choice = math.isnan(span)
    before, now = _seconds(est), _seconds(above if time[2] <= time[0] else below)
    moved = {name: now.get(name, 0.0) - before.get(name, 0.0) for name in {**before, **now}}
    least = _LEAST * min(time[0], time[2])
    falls, rises = min(moved, key=lambda name: moved[name]), max(moved, key=lambda name: moved[name])
    return Effect(
        change.name,
        "switch" if is_choice else change.kind,
        before=str(change.before) if is_choice else "",
        after=str(change.after) if is_choice else "",
        value=math.nan if is_choice else float(change.before),
        unit=change.unit,
        elasticity=math.log(time[2] / time[0]) / span,
        memory_elasticity=math.log(memory[2] / memory[0]) / span,
        less=time[0] / time[1] - 1.0,
        more=time[2] / time[1] - 1.0,
        memory_more=memory[2] / memory[1] - 1.0,
        fits=bool(above.fits),
        removed=falls if moved[falls] < -least else "",
        created=rises if moved[rises] > least else "",
    )


def _seconds(est: Estimate) -> dict[str, float]:
    """Return the seconds of every line by name, but of those that move with all others: they are no bottleneck."""
    return {
        line.name: float(line.exposed_seconds) for line in est.bill.time_lines if line.cause != "proportion"
    }
