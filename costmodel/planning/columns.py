"""Layouts that a search keeps as columns with names and units, for frames, CSV and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.describe.jobs.fields import KNOBS, LAYOUT_FIELDS, names
from costmodel.describe.jobs.job import Job
from costmodel.describe.jobs.layout_text import plain_value
from costmodel.describe.odds import odds
from costmodel.planning.best import BestLayouts
from costmodel.planning.search import JobVariant, peak_flops_per_s
from costmodel.step.anatomy.adapters import job_flops_per_token

Array = NDArray[np.float64]


def plan_columns(
    variants: Sequence[JobVariant],
    candidates: BestLayouts,
    rows: Mapping[str, Array],
) -> dict[str, list[Any]]:
    """Turn kept rows into columns with names instead of codes."""
    numbers = rows["job"].astype(int).tolist()
    of_row = [variants[number] for number in numbers]
    jobs = [one.job for one in of_row]
    step_s, memory, gpus = rows["step_time_s"], rows["memory_bytes"], rows["gpus"]
    tokens = np.asarray([float(job.global_batch * job.seq_len) for job in jobs])
    per_token = {number: float(job_flops_per_token(variants[number].job)) for number in set(numbers)}
    flops = tokens * [per_token[number] for number in numbers]
    peak = np.asarray([peak_flops_per_s(job) for job in jobs])
    front, keys = (
        list(zip(*(part[name].tolist() for name in ("job", *KNOBS)), strict=True))
        for part in (candidates.front, rows)
    )
    on_front = set(front)
    columns: dict[str, list[Any]] = {
        "step_time_s": step_s.tolist(),
        "mfu": (flops / step_s / gpus / peak).tolist(),
        "tokens_per_s_per_gpu": (tokens / step_s / gpus).tolist(),
        "memory_bytes_per_gpu": memory.tolist(),
        "on_pareto_front": [key in on_front for key in keys],
        "cluster": [job.cluster.name for job in jobs],
        "precision": [job.precision.name for job in jobs],
        "optimizer": [job.optimizer.name for job in jobs],
        "gpus": [int(count) for count in gpus],
        "global_batch": [int(job.global_batch) for job in jobs],
        "seq_len": [int(job.seq_len) for job in jobs],
        "axis_order": [" ".join(job.axis_order) for job in jobs],
        "slice": [job.slice for job in jobs],
        "offload_optimizer": [job.recipe.host.offload_optimizer for job in jobs],
        "choices": [", ".join(str(choice) for choice in one.choices) for one in of_row],
        **_money(jobs, step_s, gpus),
    }
    dp = gpus / (rows["tp"] * rows["cp"] * rows["pp"])
    # Without tensor parallelism there is no sequence to divide.
    known = {**rows, "dp": dp, "sequence_parallel": rows["sequence_parallel"] * (rows["tp"] > 1.0)}
    for name in names(LAYOUT_FIELDS):
        columns[name] = [plain_value(name, number) for number in known[name]]
    chances = [odds().fits_with(job.recipe.name) for job in jobs]
    columns["fits_probability"] = [
        float(of_job.probability(need, job.cluster.accelerator.memory_bytes) * of_job.probability(share, 1.0))
        for of_job, job, need, share in zip(
            chances, jobs, memory.tolist(), rows["host_share"].tolist(), strict=True
        )
    ]
    return columns


def _money(jobs: Sequence[Job], step_s: Array, gpus: Array) -> dict[str, list[Any]]:
    """Return days, GPU-hours and dollars of the whole run, nothing lost to failures; none where not known."""
    steps = np.asarray(
        [job.steps_factor * (job.tokens or np.nan) / float(job.global_batch * job.seq_len) for job in jobs]
    )
    prices = [job.cluster.price_usd_per_gpu_hour for job in jobs]
    days, hours = steps * step_s / 86400.0, steps * step_s * gpus / 3600.0
    dollars = hours * np.asarray([np.nan if price is None else price for price in prices])
    return {
        name: [None if np.isnan(one) else float(one) for one in values]
        for name, values in (("days", days), ("gpu_hours", hours), ("dollars", dollars))
    }
