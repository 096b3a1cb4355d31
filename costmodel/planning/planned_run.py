"""`costmodel.run`: a whole run, of the layout that was named or else of the planner's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack

from costmodel.base.errors import CostModelError
from costmodel.base.units import format_bytes
from costmodel.describe.jobs.fields import FIELD, JOB_FIELDS, RUN_FIELDS
from costmodel.describe.jobs.keywords import RunKeywords
from costmodel.describe.jobs.layout_text import layout_text
from costmodel.describe.jobs.merge import names_no_degree
from costmodel.describe.jobs.reading import keywords, require_complete
from costmodel.describe.jobs.signature import shows
from costmodel.estimates.estimate import Estimate
from costmodel.planning.beside import decided
from costmodel.whole_run import solve
from costmodel.whole_run.run import TrainingRun

_FIELDS = (*JOB_FIELDS, *RUN_FIELDS, FIELD["dollars"], FIELD["days"])


@shows((*JOB_FIELDS, FIELD["dollars"], FIELD["days"], *RUN_FIELDS))
def run(*, changes: Mapping[str, Any] | None = None, **asked: Unpack[RunKeywords]) -> TrainingRun:
    """Price a whole training run; or solve for how far to train, or on how many GPUs.

    Without a layout it is the planner's.

    Parameters
    ----------
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
    given = keywords(asked, _FIELDS, who="run")
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
