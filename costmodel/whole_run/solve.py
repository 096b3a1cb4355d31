"""A whole run of a named layout priced, or solved for its tokens or its GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from costmodel.base.errors import CostModelError, LayoutError
from costmodel.base.numbers import divisors
from costmodel.base.units import format_days, format_seconds
from costmodel.describe.jobs.fields import FIELD, JOB_FIELDS, RUN_FIELDS, names
from costmodel.describe.jobs.job import expand_layout, job_of, layout_of_job, run_tokens
from costmodel.describe.jobs.reading import keywords, read, read_all, require_complete
from costmodel.describe.reliability import Reliability
from costmodel.estimates.estimate import estimate, estimate_job
from costmodel.whole_run.run import TrainingRun, run_of

_PROBE_TOKENS = 1e12
"""Days and dollars are in proportion to tokens, so any number tells how far a budget reaches."""


def run(*, changes: Mapping[str, Any] | None = None, **fields: Any) -> TrainingRun:
    """Price a whole training run of the layout that is named; see `costmodel.planning.entry.run`."""
    given = keywords(fields, (*JOB_FIELDS, *RUN_FIELDS, FIELD["dollars"], FIELD["days"]), who="run")
    tokens, dollars, days = (
        read(name, given.pop(name)) if name in given else None for name in ("tokens", "dollars", "days")
    )
    if "dataset_samples" in given or "epochs" in given:
        require_complete({"gpus": 1, **given}, who="run")
        tokens = run_tokens(given if tokens is None else {**given, "tokens": tokens})
        given = {name: value for name, value in given.items() if name not in ("dataset_samples", "epochs")}
    given, options = split_options(given)
    options["changes"] = {**(changes or {}), **options["changes"]}
    if tokens is None and dollars is None and days is None:
        raise CostModelError(
            "run: tokens missing; give tokens=2e12, or dollars=… or days=… to solve for them, or dataset_samples=…"
        )
    if tokens is not None and days is not None and "gpus" not in given:
        require_complete({"gpus": 1, **given}, who="run")
        found, limit_days = gpus_needed(expand_layout(given), tokens, days, **options), None
    else:
        est = estimate_job(replace(job_of(given, who="run"), tokens=tokens))
        found, limit_days = run_of(est, _PROBE_TOKENS if tokens is None else tokens, **options), days
    if tokens is None:
        return replace(found, tokens=affordable_tokens(found, dollars=dollars, days=days))
    if dollars is not None and found.dollars is None:
        raise CostModelError(f"budget: {found.price_note}")
    return replace(found, budget_usd=dollars, limit_days=limit_days)


def split_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keywords of a job, and those of `run_of`, read."""
    options = read_all({name: given[name] for name in names(RUN_FIELDS) if name in given})
    changes = {name: options.pop(name) for name in [*options] if name in Reliability.model_fields}
    job = {name: value for name, value in given.items() if name not in names(RUN_FIELDS)}
    return job, {**options, "changes": changes}


def affordable_tokens(
    found: TrainingRun, *, dollars: float | None = None, days: float | None = None
) -> float:
    """Return the tokens that a run of the same job reaches within a budget or a time; the tighter of both."""
    limits = [] if days is None else [days / found.days]
    if dollars is not None:
        if not found.dollars:
            raise CostModelError(f"budget: {found.price_note}")
        limits.append(dollars / found.dollars)
    tokens = float(found.tokens * min(limits))
    step = found.tokens / found.steps
    if tokens < step:
        named = {"days": days, "budget": dollars}
        given = ", ".join(f"{name}: {value:g}" for name, value in named.items() if value is not None)
        least = "" if found.dollars is None else f" and ${found.dollars / found.steps:,.2f}"
        raise CostModelError(
            f"{given} buys less than one step, which takes {format_seconds(found.calendar_s / found.steps)}{least}"
        )
    return tokens


def gpus_needed(job: Mapping[str, Any], tokens: float, days: float, **run_options: Any) -> TrainingRun:
    """Return the run with the fewest GPUs, replicas added, that trains on so many tokens in so many days.

    The job is as for `costmodel.estimate`, without gpus; `run_options` are those of `run_of`.
    """
    settings = {key: value for key, value in job.items() if key not in ("gpus", "dp", "tokens")}
    probe = layout_of_job({**expand_layout(settings), "gpus": 1})
    replica = round(float(probe.tp * probe.cp * probe.pp))
    best_days, refusal = float("inf"), ""
    for dp in divisors(read("global_batch", settings["global_batch"])):
        try:
            found = run_of(estimate(**settings, gpus=replica * int(dp)), tokens, **run_options)
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
        f"{format_days(best_days)} (a larger batch, another layout, or faster GPUs)"
    )
