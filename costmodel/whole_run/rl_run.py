"""Days and dollars of many steps of reinforcement learning."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from costmodel.base.answer import Answer, columns_of
from costmodel.base.errors import CostModelError, shown
from costmodel.base.version import __version__
from costmodel.bill.quantity import Figure
from costmodel.describe.hardware.cluster import Cluster
from costmodel.describe.jobs.fields import JOB_FIELDS, RL_FIELDS
from costmodel.describe.jobs.keywords import RLKeywords, shows
from costmodel.describe.jobs.reading import read
from costmodel.describe.models.model import Model
from costmodel.estimates.record import SCHEMA_VERSION
from costmodel.generation.rl_estimate import RLEstimate, estimate_rl_job
from costmodel.generation.rl_job import rl_job_of
from costmodel.interop.answer import rl_fields


@dataclass(frozen=True, repr=False)
class RLRun(Answer):
    """A campaign: so many steps, without what failures take."""

    _device = "step.device_word"

    step: RLEstimate
    steps: int

    def __repr__(self) -> str:
        """Return steps and days in one line."""
        return f"RLRun({self.steps:,} steps, {self.days:,.2f} days, {self.gpu_hours:,.0f} GPU-hours; {self.step!r})"

    days = Figure("steps * step_s / 86400", "Days of all steps. [d]", step_s="step.step_time_s")
    gpu_hours = Figure(
        "days * 24 * gpus", "GPU-hours of all steps, waiting included. [h]", gpus="step.job.gpus"
    )

    @property
    def dollars(self) -> float | None:
        """Dollars of all steps, none where the cluster has no price. [USD]"""
        price = self.step.training.job.cluster.price_usd_per_gpu_hour
        return None if price is None else self.gpu_hours * price

    @property
    def days_range(self) -> tuple[float, float]:
        """Days of all steps at the ends of the step's range. [d]"""
        low, high = (self.days * end / self.step.step_time_s for end in self.step.range_s)
        return low, high

    @property
    def dollars_range(self) -> tuple[float, float] | None:
        """Dollars at the ends of the step's range, none where the cluster has no price. [USD]"""
        if self.dollars is None:
            return None
        low, high = (self.dollars * end / self.step.step_time_s for end in self.step.range_s)
        return low, high

    def _record(self) -> dict[str, Any]:
        job = self.step.job
        return {
            "steps": self.steps,
            "answers": self.steps * job.answers,
            "generated_tokens": self.steps * job.answers * job.rollout_factor * job.lengths.mean,
            "step_time_s": self.step.step_time_s,
            "days": self.days,
            "gpu_hours": self.gpu_hours,
            "dollars": self.dollars,
            **_ends("days", self.days_range),
            **_ends("dollars", self.dollars_range),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the figures with those of the step."""
        head = {"schema_version": SCHEMA_VERSION, "version": __version__}
        return {**head, **self._record(), "step": self.step.to_dict()}

    def columns(self) -> dict[str, list[Any]]:
        """Return one row."""
        return columns_of([self._record()])


def _ends(name: str, ends: tuple[float, float] | None) -> dict[str, float | None]:
    """Return the two ends of a range under their names."""
    low, high = ends or (None, None)
    return {f"{name}_low": low, f"{name}_high": high}


@shows((*JOB_FIELDS, *RL_FIELDS))
def run_rl(
    model_or_job: str | Path | Model | int | None = None,
    machine: str | Cluster | None = None,
    /,
    *,
    steps: int | str | None = None,
    **job: Unpack[RLKeywords],
) -> RLRun:
    """Price so many steps of reinforcement learning: days, GPU-hours and dollars.

    Parameters
    ----------
    model_or_job, machine : optional
        As for `costmodel.estimate`; a number is that of the steps.
    steps : int
        Of reinforcement learning. [-]
    **job
        Keywords of `costmodel.estimate_rl`.

    Raises
    ------
    CostModelError
        One line that names the field, the value and what is allowed.
    """
    if steps is None and isinstance(model_or_job, int):
        steps, model_or_job = model_or_job, None
    try:
        count = read("prompts", steps)
    except CostModelError:
        raise CostModelError(
            f"steps: expected a whole number from 1 to 100,000,000, got {shown(steps)}"
        ) from None
    fields = rl_fields(model_or_job, machine, job, who="run_rl")
    return RLRun(estimate_rl_job(rl_job_of(fields, who="run_rl")), count)
