"""A running training held against its estimate: whether steps left the band, since when, and what that costs.

Steps have left the band when most of the last `LEAST_LINES` lines of the log lie on one side of it, and more lines
do than do not, counted back to where that began: one slow step is none of its business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from costmodel.base.answer import Answer
from costmodel.bill.quantity import Figure
from costmodel.describe.jobs.fields import JOB_FIELDS, RUN_FIELDS, shows
from costmodel.describe.jobs.reading import keywords
from costmodel.estimates.estimate import Estimate, estimate
from costmodel.estimates.record import SCHEMA_VERSION
from costmodel.estimates.samples import Interval
from costmodel.interop.step_log.collect import LogFollower
from costmodel.trust.step_times import StepTimes, longest_run, measured_steps, step_times
from costmodel.whole_run.run import DAY_S, TrainingRun, run_of
from costmodel.whole_run.solve import split_options

State = Literal["inside", "slower", "faster", "unknown"]

LEAST_LINES = 5  # Lines that say whether steps are in the band; with fewer nothing is said

RECENT_LINES = 20  # Lines that the present step is the median of, while all is well

_ALIKE = 0.1  # How far lines of one level lie apart; less than what a jump that is worth telling takes. [-]


@dataclass(frozen=True, repr=False)
class Watch(Answer):
    """One look at a running training: its job, what its log says so far, and where its steps are expected.

    `run` is the whole run, for what the rest of it costs; none where neither log nor job says how long it is.
    """

    est: Estimate
    times: StepTimes
    band: Interval  # The range of the estimate. [s]
    run: TrainingRun | None

    @cached_property
    def _lines(self) -> tuple[State, int]:
        """Return the state, and how many of the last running lines made it."""
        seconds = self.times.times_s[self.times.running]
        outside: dict[State, Any] = {
            "slower": seconds > self.band.high,
            "faster": seconds < self.band.low,
        }
        for state, flags in outside.items():
            lines = longest_run(flags[::-1])
            if lines >= LEAST_LINES and 2 * flags[-LEAST_LINES:].sum() > LEAST_LINES:
                return state, lines
        return ("inside" if len(seconds) >= LEAST_LINES else "unknown"), min(len(seconds), RECENT_LINES)

    @property
    def state(self) -> State:
        """Where steps lie now: inside the band, slower, faster, or too few to tell."""
        return self._lines[0]

    @cached_property
    def step_time_s(self) -> float:
        """A step now: the median of the last level since the band was left, or of the last lines. [s]"""
        lately = self.times.times_s[self.times.running][-self._lines[1] :]
        if self.state in ("inside", "unknown"):
            return float(np.median(lately))
        # Steps may have jumped again since: the level that counts is that of the lines like the last few.
        now = float(np.median(lately[-LEAST_LINES:]))
        alike = np.abs(lately[::-1] / now - 1.0) <= _ALIKE
        return float(np.median(lately[-max(longest_run(alike), LEAST_LINES) :]))

    @cached_property
    def _since(self) -> int:
        """Index of the line since which the state lasts."""
        return int(np.flatnonzero(self.times.running)[-self._lines[1]])

    @property
    def since_step(self) -> int:
        """First step of the state. [-]"""
        return int(self.times.log.number[self._since])

    @property
    def since_s(self) -> float:
        """When that step was printed, on the log's clock; nan where it prints no time. [s]"""
        return float(self.times.log.at[self._since])

    @property
    def last_step(self) -> int:
        """The step that was printed last. [-]"""
        return int(self.times.log.number[-1])

    off = Figure(
        "step_time_s / middle_s - 1",
        "A step now over what is expected, less one. [-]",
        middle_s="est.step_time_s",
    )

    @property
    def steps_left(self) -> float | None:
        """Steps until the end of the run; none where nobody says how long it is. [-]"""
        if self.run is None:
            return None
        return max((self.times.log.last_step or self.run.steps) - self.last_step, 0.0)

    @property
    def is_done(self) -> bool:
        """Whether the last step of the run was printed."""
        return self.steps_left == 0.0

    @property
    def extra_days(self) -> float | None:
        """Calendar days that the rest takes beyond what is expected, failures counted as they go. [d]"""
        if self.run is None:
            return None
        longer_s = (self.steps_left or 0.0) * (self.step_time_s - float(self.est.step_time_s))
        return longer_s / self.run.effective_training_time_ratio / DAY_S

    @property
    def paid_spare_nodes(self) -> int:
        """Spare nodes that cost while they wait: none where a cloud keeps its own. [-]"""
        return 0 if self.run is None or not self.run.pays_spares else self.run.spare_nodes

    @property
    def extra_dollars(self) -> float | None:
        """What these days cost, with spare nodes where they are the user's; none without a price. [USD]"""
        if self.run is None or self.run.price_usd_per_gpu_hour is None:
            return None
        spare = self.paid_spare_nodes * self.est.job.cluster.gpus_per_node
        return (self.extra_days or 0.0) * 24.0 * (self.run.gpus + spare) * self.run.price_usd_per_gpu_hour

    def to_dict(self) -> dict[str, Any]:
        """Return the look as numbers and texts."""
        rest = ("steps_left", "extra_days", "extra_dollars", "paid_spare_nodes")
        return {
            "schema_version": SCHEMA_VERSION,
            "log": self.times.log.name,
            "state": self.state,
            "step": self.last_step,
            "step_time_s": self.step_time_s,
            "expected_step_time_s": float(self.est.step_time_s),
            "band_s": [self.band.low, self.band.high],
            "off": self.off,
            "since_step": self.since_step,
            "since_s": self.since_s if np.isfinite(self.since_s) else None,
            **{name: getattr(self, name) for name in rest},
            "measured": self.times.to_dict(),
        }

    def columns(self) -> dict[str, list[Any]]:
        """Return one row."""
        record = self.to_dict()
        low, high = record.pop("band_s")
        plain = {name: value for name, value in record.items() if not isinstance(value, dict)}
        return {name: [value] for name, value in {**plain, "low_s": low, "high_s": high}.items()}


def _watched(times: StepTimes, est: Estimate, run_options: Mapping[str, Any]) -> Watch:
    """Hold the steps of a log against an estimate, whose tokens say how long the run is where the log does not."""
    tokens = float(est.tokens_per_step) * times.log.last_step or est.job.tokens
    return Watch(est, times, est.range_s, run_of(est, tokens, **run_options) if tokens else None)


@shows((*JOB_FIELDS, *RUN_FIELDS))
def watch(log: str | Path | Iterable[str | Path], **fields: Any) -> Watch:
    """Hold the steps of a training log against the estimate of its job.

    Parameters
    ----------
    log : path or paths
        What the framework printed; several are the pieces that it was rotated into, the oldest first.
    **fields
        The job as for `costmodel.estimate`, and of `costmodel.run` what prices the rest of the run.

    Raises
    ------
    CostModelError
        If the job or the log cannot be read, or the log is of another job.
    """
    est, options = _job_and_options(fields)
    est.require_single("watch")
    return _watched(step_times(log, est), est, options)


class Watcher:
    """Looks at a log again and again as it grows, through rotation and truncation."""

    def __init__(self, log: str | Path, **fields: Any) -> None:
        self._est, self._options = _job_and_options(fields)
        self._est.require_single("watch")
        self._follower = LogFollower(log)

    def look(self) -> Watch | None:
        """Read what is new; none while no step was printed yet."""
        self._follower.poll()
        if not self._follower.collector.has_steps:
            return None
        times = measured_steps(self._follower.collector.found(), self._est)
        return _watched(times, self._est, self._options)


def _job_and_options(fields: Any) -> tuple[Estimate, dict[str, Any]]:
    """Return the job of the keywords, and the options of its run."""
    job, options = split_options(keywords(fields, (*JOB_FIELDS, *RUN_FIELDS), who="watch"))
    return estimate(**job), options
