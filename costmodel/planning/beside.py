"""A job whose layout nobody named: what is assumed, what to run instead, and `costmodel.run` of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from costmodel.base.errors import CostModelError, LayoutError
from costmodel.base.units import format_bytes, format_seconds
from costmodel.describe.hardware.cluster import Cluster
from costmodel.describe.jobs.fields import FIELD, JOB_FIELDS, LAYOUT_FIELDS, PLAN_FIELDS, RUN_FIELDS, names
from costmodel.describe.jobs.keywords import RunKeywords
from costmodel.describe.jobs.layout_text import layout_text
from costmodel.describe.jobs.merge import merge_jobs, names_no_degree
from costmodel.describe.jobs.positional import file_and_keywords
from costmodel.describe.jobs.reading import keywords, require_complete
from costmodel.describe.jobs.short_form import short_form
from costmodel.describe.jobs.signature import shows
from costmodel.describe.models.model import Model
from costmodel.estimates.estimate import Estimate, estimate
from costmodel.interop.answer import job_file
from costmodel.planning.plan import Plan, plan
from costmodel.planning.preference import TIE_SHARE
from costmodel.whole_run import solve
from costmodel.whole_run.run import TrainingRun


def planned(asked: Mapping[str, Any]) -> Plan:
    """Return the plan of a job whose degrees are open; what else it names is kept to."""
    known = names(PLAN_FIELDS)
    return plan(**{name: value for name, value in asked.items() if name in known and value is not None})


_DECIDED = ("layout", "switches", "axis_order", "pipeline_layout", *names(LAYOUT_FIELDS))
"""What a plan decides of a job."""


def decided(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a plan decides of a job whose degrees are open, as keywords of a job."""
    pick = planned({name: asked[name] for name in names(JOB_FIELDS) if name in asked}).best
    return {name: value for name, value in short_form(pick.job).items() if name in _DECIDED}


def named_or_planned(asked: Mapping[str, Any]) -> tuple[Estimate, bool]:
    """Return the estimate of a job, and whether its layout is the planner's, because it names no degree of one."""
    is_open = names_no_degree(asked)
    return estimate(**{**asked, **(decided(asked) if is_open else {})}), is_open


def fitting_or_planned(asked: Mapping[str, Any]) -> tuple[Estimate, bool]:
    """Return the estimate of a job, and whether its layout is the planner's.

    It is where no degree is named, and data parallelism alone does not fit or does not divide the batch. Where no layout
    fits, it is that of data parallelism.
    """
    is_open = names_no_degree(asked)
    try:
        est = estimate(**asked)
    except LayoutError:
        if not is_open:
            raise
        return named_or_planned(asked)
    if est.fits or not is_open:
        return est, False
    try:
        return named_or_planned(asked)
    except CostModelError:
        return est, False


class Beside(NamedTuple):
    """An estimate of what was assumed, and the pick of the planner, or why there is none."""

    assumed: Estimate
    pick: Estimate | None = None
    command: str = ""
    refusal: str = ""

    @property
    def sentences(self) -> list[str]:
        """What was assumed, and what to run instead."""
        est = self.assumed
        fits = "which fits" if est.fits else "which does not fit"
        said = [f"No layout is named; assumed: {layout_text(est.job.layout)}, {fits}."]
        if self.pick is None:
            return [*said, f"Nor does another: {self.refusal}." if self.refusal else "No plan was made."]
        ours, theirs = float(est.step_time_s), float(self.pick.step_time_s)
        size = format_bytes(float(self.pick.memory_bytes_per_gpu))
        best = f"The planner's best takes {format_seconds(theirs, 4)} a step and {size}"
        if theirs >= (1.0 - TIE_SHARE) * ours:
            return [*said, f"The planner finds nothing that is {TIE_SHARE:.1%} faster."]
        return [*said, f"{best}, {1.0 - theirs / ours:.1%} less: {self.command}"]

    @property
    def short(self) -> str:
        """The planner's best against what was assumed, or why there is none."""
        if self.pick is None:
            return f"Nor does another layout fit: {self.refusal}." if self.refusal else "No plan was made."
        theirs, ours = float(self.pick.step_time_s), float(self.assumed.step_time_s)
        held = format_bytes(float(self.pick.memory_bytes_per_gpu))
        best = f"{format_seconds(theirs, 4)} a step ({theirs / ours - 1.0:+.1%}), {held}"
        return f"No layout was named. Best: {best}:"

    def record(self) -> dict[str, Any] | None:
        """Return the pick as numbers and texts, none where there is none."""
        if self.pick is None:
            return None
        return {
            "job": short_form(self.pick.job),
            "step_time_s": float(self.pick.step_time_s),
            "memory_bytes_per_gpu": float(self.pick.memory_bytes_per_gpu),
            "command": self.command,
        }


def beside(est: Estimate, asked: Mapping[str, Any]) -> Beside | None:
    """Plan the job of an estimate whose degrees were left open; none where the keywords `asked` name one."""
    if not names_no_degree(asked):
        return None
    try:
        found = planned(asked)
    except CostModelError as error:
        return Beside(est, refusal=str(error).removeprefix("plan: "))
    return Beside(est, found.best, found.commands(1)[0])


_FIELDS = (*JOB_FIELDS, *RUN_FIELDS, FIELD["dollars"], FIELD["days"])


@shows((*JOB_FIELDS, FIELD["dollars"], FIELD["days"], *RUN_FIELDS))
def run(
    model_or_job: str | Path | Model | None = None,
    machine: str | Cluster | None = None,
    /,
    *,
    changes: Mapping[str, Any] | None = None,
    **asked: Unpack[RunKeywords],
) -> TrainingRun:
    """Price a whole training run; or solve for how far to train, or on how many GPUs.

    Without a layout it is the planner's.

    Parameters
    ----------
    model_or_job, machine : optional
        Without their names: a model or a file of any kind that `costmodel.read` reads, and a machine such as
        ``"256xH100"`` or a cluster.
    tokens : float or str, optional
        Tokens to train on; without them as many as `dollars` pay for and `days` allow. [-]
    dollars : float or str, optional
        To spend, without `tokens`; with them a limit: `TrainingRun.within` says what is left and how surely. [USD]
    days : float, optional
        Calendar days, without `tokens`; with `tokens` and without `gpus`, replicas are added until it is
        done in time; with both a limit. [d]
    reliability : str or Reliability
        Published failure rates: llama3, rsc-1, rsc-2, megascale, opt-175b, bloom or none.
    changes : mapping, optional
        Fields of `costmodel.describe.reliability.Reliability` to change; the usual ones are keywords too.
    failures_per_node_day, failures_per_gpu_day : float, optional
        Interruptions for each eight GPUs, or each GPU, and day. [1/d]
    checkpointing : str, optional
        blocking, async or replica.
    checkpoint_interval_s, detection_s, restart_s, repair_s : float or str, optional
        Times in seconds, or texts such as ``"15min"``. [s]
    spare_nodes : int, optional
        Nodes kept ready; as many as it takes where not given. [-]
    price_usd_per_gpu_hour : float or mapping, optional
        In place of the cluster's dated price; by cluster with a mapping. [USD/h]
    pue : float, optional
        In place of the cluster's. [-]
    storage_bytes_per_s : float or str, optional
        What the file system takes and gives in all, in place of the cluster's. [B/s]
    samples, seed : int
        Of the Monte Carlo behind `TrainingRun.spread`. [-]
    **asked
        The job, as for `costmodel.estimate`.

    Returns
    -------
    TrainingRun
        Days, GPU-hours, energy and dollars, with the losses as lines of its bill.

    Raises
    ------
    CostModelError
        One line that names the field, the value and what is allowed; without a layout also where none fits.
    """
    file, given = file_and_keywords(model_or_job, machine, asked, who="run")
    if file:
        given = merge_jobs(job_file(file).keywords, given)
    given = keywords(given, _FIELDS, who="run")
    if not names_no_degree(given):
        return solve.run(changes=changes, **given)
    if given.get("gpus") is None:
        found = solve.run(changes=changes, **given)
        _require_room(found.est)
        return found
    require_complete(given, who="run")
    return replace(solve.run(changes=changes, **{**given, **decided(given)}), is_planned=True)


def _require_room(est: Estimate) -> None:
    """Refuse a layout that nobody named and that does not fit."""
    if not est.fits:
        raise CostModelError(
            f"layout: none is named, and {layout_text(est.job.layout)} needs "
            f"{format_bytes(float(est.memory_bytes_per_gpu))} of {format_bytes(est.memory_capacity_bytes)} a GPU; "
            "name one, or gpus for costmodel plan to find one"
        )
