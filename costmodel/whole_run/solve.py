"""`costmodel.run`: a whole run priced, or solved for its tokens or its GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from costmodel.base.errors import CostModelError, LayoutError
from costmodel.describe.jobs.fields import JOB_FIELDS
from costmodel.describe.jobs.job import job_of, spelled_out
from costmodel.describe.jobs.keywords import StepKeywords
from costmodel.describe.jobs.reading import keywords, read, require_complete
from costmodel.describe.reliability import DEFAULT_RELIABILITY, Reliability
from costmodel.estimates.estimate import estimate, estimate_job
from costmodel.whole_run.run import TrainingRun, run_of

_PROBE_TOKENS = 1e12
"""Days and dollars are in proportion to tokens, so any number tells how far a budget reaches."""


def positive(name: str, value: float | None) -> float | None:
    """Return a positive number or None."""
    if value is not None and not (np.isfinite(value) and value > 0):
        raise CostModelError(f"{name}: expected a positive number, got {value!r}")
    return value


def affordable_tokens(
    found: TrainingRun, *, dollars: float | None = None, days: float | None = None
) -> float:
    """Return the tokens that a run of the same job reaches within a budget or a time; the tighter of both.

    Raises
    ------
    CostModelError
        If the job has no price, or nothing is given.
    """
    limits = []
    if positive("budget", dollars) is not None:
        if not found.dollars:
            raise CostModelError(f"budget: {found.price_note}")
        limits.append(float(dollars or 0.0) / found.dollars)
    if positive("days", days) is not None:
        limits.append(float(days or 0.0) / found.days)
    if not limits:
        raise CostModelError("run: give --tokens, --budget or --days")
    return found.tokens * min(limits)


def gpus_needed(job: Mapping[str, Any], tokens: float, days: float, **run_options: Any) -> TrainingRun:
    """Return the run with the fewest GPUs, replicas added, that trains on so many tokens in so many days.

    Parameters
    ----------
    job : mapping
        As for `costmodel.estimate`, without gpus.
    tokens, days : float
        What must be reached. [-], [d]
    **run_options
        As for `costmodel.whole_run.run.run_of`.

    Raises
    ------
    CostModelError
        If no data-parallel degree of the batch, up to the cluster's size, is fast enough.
    """
    positive("days", days)
    settings = {key: value for key, value in job.items() if key not in ("gpus", "dp", "tokens")}
    probe = {key: int(settings.get(key) or 1) for key in ("tp", "cp", "pp", "micro_batch")}
    replica = probe["tp"] * probe["cp"] * probe["pp"]
    sequences = int(settings["global_batch"]) // probe["micro_batch"]
    best_days, refusal = float("inf"), ""
    for dp in (d for d in range(1, sequences + 1) if sequences % d == 0):
        try:
            found = run_of(estimate(**settings, gpus=replica * dp), tokens, **run_options)
        except LayoutError as error:
            refusal = refusal or str(error)
            continue
        best_days = min(best_days, found.days)
        if found.days <= days:
            return found
    if np.isinf(best_days):
        raise CostModelError(f"days: no number of replicas can run this job ({refusal})")
    raise CostModelError(
        f"days: {days:g} cannot be reached with a global batch of {settings['global_batch']}; the fastest takes "
        f"{best_days:,.1f} (a larger batch, another layout, or faster GPUs)"
    )


def run(
    *,
    tokens: float | str | None = None,
    budget_usd: float | None = None,
    days: float | None = None,
    reliability: str | Reliability = DEFAULT_RELIABILITY,
    changes: Mapping[str, Any] | None = None,
    price_usd_per_gpu_hour: float | None = None,
    pue: float | None = None,
    storage_bytes_per_s: float | None = None,
    samples: int = 10_000,
    seed: int = 0,
    **job: Unpack[StepKeywords],
) -> TrainingRun:
    """Price a whole training run; or solve for how far to train, or on how many GPUs.

    Parameters
    ----------
    tokens : float, optional
        Tokens to train on; without them as many as `budget_usd` pays for and `days` allow. [-]
    budget_usd : float, optional
        To spend. [USD]
    days : float, optional
        Calendar days; with `tokens`, and a job without gpus, replicas are added until it is done in time. [d]
    reliability : str or Reliability
        Published failure rates: llama3, rsc-1, rsc-2, megascale, opt-175b, bloom or none.
    changes : mapping, optional
        Fields of `costmodel.describe.reliability.Reliability` to change.
    price_usd_per_gpu_hour : float, optional
        In place of the cluster's dated price. [USD/h]
    pue : float, optional
        In place of the cluster's. [-]
    storage_bytes_per_s : float, optional
        What the file system takes and gives in all, in place of the cluster's. [B/s]
    samples, seed : int
        Of the Monte Carlo behind `TrainingRun.spread`. [-]
    **job
        As for `costmodel.estimate`.

    Returns
    -------
    TrainingRun
        Days, GPU-hours, energy and dollars, with the losses as lines of its bill.

    Raises
    ------
    CostModelError
        One line that names the field, the value and what is allowed.
    """
    solve_gpus = tokens is not None and days is not None and job.get("gpus") is None
    if tokens is None and budget_usd is None and days is None:
        raise CostModelError(
            "run: tokens missing; give --tokens 2e12, or --budget or --days to solve for them"
        )
    if tokens is not None and (budget_usd is not None or (days is not None and not solve_gpus)):
        raise CostModelError(
            "run: --tokens and --gpus already say how long and how much; leave out --budget and --days"
        )
    options: dict[str, Any] = {
        "reliability": reliability,
        "changes": changes,
        "price_usd_per_gpu_hour": price_usd_per_gpu_hour,
        "pue": pue,
        "storage_bytes_per_s": storage_bytes_per_s,
        "samples": samples,
        "seed": seed,
    }
    if solve_gpus:
        asked = {**job, "gpus": 1}
        given = spelled_out(keywords(asked, JOB_FIELDS, who="run"))
        require_complete(given, who="run")
        return gpus_needed(given, read("tokens", tokens), float(days or 0.0), **options)
    known = None if tokens is None else read("tokens", tokens)
    est = estimate_job(replace(job_of(job, who="run"), tokens=known))
    found = run_of(est, _PROBE_TOKENS if known is None else known, **options)
    if known is not None:
        return found
    return replace(found, tokens=affordable_tokens(found, dollars=budget_usd, days=days))
