"""Steps of a training log as one measurement: what a steady step takes, how much it varies, and what was left out.

The first steps after every start compile, allocate and connect; they are found by where the run settles, not
counted. The steady step is a median, so that the few steps after a checkpoint do not move it; they are counted
and said all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.base.answer import Answer
from costmodel.base.errors import DataError
from costmodel.bill.quantity import quantity
from costmodel.interop.step_log.collect import StepLog, read_step_log
from costmodel.interop.step_log.formats import EVENTS, SKIPPED, UNITS

if TYPE_CHECKING:
    from costmodel.estimates.estimate import Estimate

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

MOST_WARM_UP = 50
"""Lines after a start that can be warm-up; never more than half of those until the next start."""

LEAST_APART = 0.03
"""A step this much off the steady one is no steady one, however little the others vary. [-]"""

_WARM_SPREADS, _ODD_SPREADS = 3.0, 6.0
_MAD = 1.4826  # Standard deviation of a normal distribution over its median absolute deviation
_FEW_LINES = 5
_TWO_LEVELS = 0.1


class LeftOut(NamedTuple):
    """Lines of steps that are not part of the measurement, and why."""

    reason: str
    lines: int
    detail: str


@dataclass(frozen=True, repr=False)
class StepTimes(Answer):
    """The steps of a log."""

    log: StepLog  # What was read
    times_s: Array  # A step each line of the log that was kept. [s]
    steady: Flags  # Which of them count
    # Those, and lines that are far off them without a reason that the log gives: what a watch looks at
    running: Flags
    left_out: tuple[LeftOut, ...]  # The others, by reason

    @cached_property
    def step_time_s(self) -> float:
        """A steady step: the median. [s]"""
        return float(np.median(self.times_s[self.steady]))

    @cached_property
    def spread(self) -> float:
        """Robust standard deviation of steady lines over the median. [-]"""
        return _spread(self.times_s[self.steady]) / self.step_time_s

    @property
    def error(self) -> float:
        """Standard error of the median over it. [-]"""
        return float(np.sqrt(0.5 * np.pi / self.steady.sum())) * self.spread

    @property
    def memory_bytes(self) -> Mapping[str, float]:
        """Largest peak of a rank, by what was counted. [B]"""
        return self.log.memory_bytes

    @property
    def notes(self) -> list[str]:
        """What a reader of the number should know."""
        found, count = [], int(self.steady.sum())
        if count < _FEW_LINES:
            found.append(f"only {count} steady lines: warm-up may be among them")
        odd = sum(one.lines for one in self.left_out if one.reason in ("slow", "fast"))
        if odd > _TWO_LEVELS * len(self.steady):
            found.append(
                f"{odd} of {len(self.steady)} lines are far off the others: the run has several levels"
            )
        if self.log.format.name == "deepspeed-timers":
            found.append("forward, backward and step are added up: what lies between them is not timed")
        if not self.memory_bytes:
            found.append("the log has no peak memory")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the measurement, and what was left out of it."""
        return {
            "schema_version": 1,
            "log": self.log.name,
            "framework": self.log.format.title,
            "lines": self.log.lines,
            "step_lines": self.log.steps,
            "steady_lines": int(self.steady.sum()),
            "step_time_s": self.step_time_s,
            "spread": self.spread,
            "standard_error": self.error,
            "memory_bytes": dict(self.memory_bytes),
            "left_out": [one._asdict() for one in self.left_out],
            "notes": self.notes,
        }

    def columns(self) -> dict[str, list[Any]]:
        """Return a row a line of a step."""
        return {
            "step": self.log.number.tolist(),
            "time_s": self.times_s.tolist(),
            "start": self.log.segment.tolist(),
            "steady": self.steady.tolist(),
        }


def step_times(logs: str | Path | Iterable[str | Path], est: Estimate | None = None) -> StepTimes:
    """Measure the step of a training log.

    Parameters
    ----------
    logs : path or paths
        One log, or the pieces that it was rotated into, the oldest first.
    est : Estimate, optional
        The job that was run; needed where the framework prints tokens or samples a second. Steps of another
        global batch, as of a ramp, are left out.
    """
    paths = [logs] if isinstance(logs, str | Path) else list(logs)
    return measured_steps(read_step_log(paths), est)


def measured_steps(log: StepLog, est: Estimate | None = None) -> StepTimes:
    """Measure the step of a log that was read; see `step_times`."""
    times = _seconds_of(log, est)
    ours = _of_batch(log, est)
    warm = ~ours
    for segment in np.unique(log.segment):
        at = np.flatnonzero((log.segment == segment) & ours)
        warm[at[: warm_up_lines(times[at])]] = True
    # Lines far off the others.
    level = float(np.median(times[~warm]))
    far = max(_ODD_SPREADS * _spread(times[~warm]), LEAST_APART * level)
    odd = ~warm & (np.abs(times - level) > far)
    steady = ~warm & ~odd
    running = steady | (odd & (log.event == 0))
    return StepTimes(log, times, steady, running, tuple(_reasons(log, times, ours, warm & ours, odd, steady)))


def _seconds_of(log: StepLog, est: Estimate | None) -> Array:
    """Return the times of the steps of a log; where it has rates, the job says how many tokens or samples a step has. [s]"""
    formula = UNITS[log.format.unit]
    terms: dict[str, Any] = {"value": log.value}
    if log.format.unit not in ("s", "ms"):
        if est is None:
            raise DataError(
                f"{log.name}: {log.format.title} prints {log.format.unit}: the time of a step needs the job (--job)"
            )
        est.require_single("log")
        if "gpus" in formula:
            terms |= {"tokens_per_step": est.tokens_per_step, "gpus": est.job.layout.gpus}
        else:
            terms |= {"global_batch": est.job.global_batch}
    return np.asarray(quantity(formula, **terms).value, dtype=np.float64)


def _of_batch(log: StepLog, est: Estimate | None) -> Flags:
    """Return which steps have the job's global batch; those whose line says nothing have."""
    if est is None:
        return np.ones(len(log.number), dtype=bool)
    batch = float(est.job.global_batch)
    ours = (log.batch == 0) | (log.batch == batch)
    if not ours.any():
        raise DataError(
            f"{log.name}: global batch is {int(log.batch[-1])} in the log, but {batch:.0f} in the job"
        )
    return np.asarray(ours)


def _spread(times: Array) -> float:
    """Return a standard deviation that the odd step does not move. [s]"""
    return float(_MAD * np.median(np.abs(times - np.median(times))))


def longest_run(flags: Flags) -> int:
    """Return how many entries from the start belong together: to where marked less unmarked ones are most."""
    score = np.cumsum(np.where(flags, 1, -1))
    best = int(np.argmax(score)) if len(score) else 0
    return best + 1 if len(score) and score[best] > 0 else 0


def warm_up_lines(times: Array) -> int:
    """Return how many lines after a start are slower than where the run settles: the second half of it."""
    tail = times[len(times) // 2 :]
    if len(times) < 2:
        return 0
    level = float(np.median(tail))
    slow = times > level + max(_WARM_SPREADS * _spread(tail), LEAST_APART * level)
    return longest_run(slow[: min(len(times) // 2, MOST_WARM_UP)])


def _reasons(
    log: StepLog, times: Array, ours: Flags, warm: Flags, odd: Flags, steady: Flags
) -> list[LeftOut]:
    """Return what was left out, by reason, with how far off it is."""
    level = float(np.median(times[steady]))
    slow = odd & (times > level)
    first = warm & (log.segment == log.segment[0])
    groups = {"other batch": ~ours, "warm-up": first, "warm-up after a restart": warm & ~first}
    left = slow
    for event in EVENTS:
        groups[f"slow after {event.name}"] = left & (log.event & event.bit > 0)
        left = left & ~groups[f"slow after {event.name}"]
    skipped = odd & ~slow & (log.event & SKIPPED > 0)
    groups |= {"slow": left, "skipped update": skipped, "fast": odd & ~slow & ~skipped}
    found = []
    for reason, which in groups.items():
        if which.any():
            steps = log.number[which]
            span = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
            ratio = times[which] / level
            furthest = float(ratio[np.argmax(np.abs(np.log(ratio)))])
            detail = f"{span}, up to {furthest:.3g} times the steady step"
            if reason == "other batch":
                detail = f"{span}, global batch {log.batch[which].min()} to {log.batch[which].max()}"
            found.append(LeftOut(reason, int(which.sum()), detail))
    return found
