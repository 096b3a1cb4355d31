"""An estimate as plain data: the one record that ``--format json`` prints and `to_dict` returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from costmodel.base.answer import rows_of
from costmodel.base.errors import CostModelError
from costmodel.base.version import __version__
from costmodel.describe.hardware.changed import changed_values, with_hardware
from costmodel.describe.hardware.cluster import Cluster
from costmodel.describe.hardware.prices import given_price, with_mixed_price, with_price
from costmodel.describe.jobs.fields import JOB_FIELDS, names
from costmodel.describe.jobs.job import BALANCED, EVEN, Job, balances_stages, sliced_for
from costmodel.describe.jobs.layout_text import job_names, job_numbers, plain_value
from costmodel.estimates.frame import line_records, wide_columns
from costmodel.estimates.mesh import mesh_of, mesh_records
from costmodel.estimates.priced_job import PricedJob
from costmodel.physics.pipeline.chunks import chunks_text

SCHEMA_VERSION = 1
MFU_CONVENTION = (
    "model FLOPs with the full attention matrix and without recomputation, over the dense peak at the "
    "precision of the matrix products; mfu_causal counts half the attention matrix, hfu adds recomputation"
)
_RATES = ("peak_flops_per_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu")
_MEMORY = (
    *("memory_bytes_per_gpu", "memory_capacity_bytes", "host_memory_bytes", "host_memory_capacity_bytes"),
    *("fits", "fits_probability", "worst_stage"),
)


def estimate_record(est: PricedJob, warnings: Sequence[str], assumed: Sequence[str]) -> dict[str, Any]:
    """Return everything about an estimate as numbers, texts and lists of them."""
    head: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "version": __version__}
    if est.shape:
        rows = rows_of(wide_columns(est))
        layouts = [{key: _json_value(value) for key, value in row.items()} for row in rows]
        return {**head, "layouts": layouts, "sources": source_record(est.job)}
    tokens, price = est.job.tokens, est.job.cluster.price_usd_per_gpu_hour
    lines = line_records(est)
    return {
        **head,
        "inputs": input_record(est.job),
        "assumed": list(assumed),
        "step_time_s": est.step_time_s,
        "error_band": None if est.error_band is None else est.error_band._asdict(),
        "memory_error_band": est.memory_error_band._asdict(),
        **{name: getattr(est, name) for name in ("mfu", "mfu_causal", "hfu")},
        "mfu_convention": MFU_CONVENTION,
        "mfu_printed": _printed_record(est),
        **{name: getattr(est, name) for name in _RATES},
        "days": None if tokens is None else float(est.days(tokens)),
        "gpu_hours": None if tokens is None else float(est.gpu_hours(tokens)),
        "dollars": None if tokens is None or price is None else price * float(est.gpu_hours(tokens)),
        **{name: getattr(est, name) for name in _MEMORY},
        "lines": lines["time"],
        "memory_lines": lines["memory"],
        "host_lines": lines["host"],
        "mesh": mesh_records(mesh_of(est)),
        "warnings": list(warnings),
        "sources": source_record(est.job),
    }


def _printed_record(est: PricedJob) -> dict[str, Any] | None:
    """Return the MFU as the recipe's framework prints it, how that counts, and who says so."""
    prints, value = est.job.recipe.prints, est.mfu_printed
    if prints is None or value is None:
        return None
    return {"recipe": est.job.recipe.name, "counts": prints.mfu, "value": value, "source": prints.source}


def input_record(job: Job) -> dict[str, Any]:
    """Return a job of one layout as the keywords of `costmodel.estimate`, nothing left to a default."""
    fields: dict[str, Any] = {
        **job_names(job),
        **{name: plain_value(name, number) for name, number in job_numbers(job).items()},
        **job.tuning.fields,
        **job.packing.fields,
        **job.images.fields,
        "switches": job.recipe.plain_switches,
        "axis_order": " ".join(job.axis_order),
        "site": job.site or None,
        "hw": changed_values(job.cluster) or None,
        "slice": job.slice or None,
        "tokens": job.tokens,
        "price_usd_per_gpu_hour": given_price(job.cluster),
        "pipeline_layout": _pipeline_layout(job),
    }
    return {name: fields[name] for name in names(JOB_FIELDS) if name in fields}


def _pipeline_layout(job: Job) -> str | None:
    """Return how a job assigns its layers to stages where that is not what happens by itself."""
    if job.balanced_stages:
        return BALANCED
    return chunks_text(job.pipeline_layout) or (EVEN if balances_stages(job.model, job.recipe) else None)


def _of_profile(profile: Cluster, job: Job) -> Cluster:
    """Return the cluster of a profile as the job has it: with its numbers, at its price, and on a torus its slices."""
    profile = with_hardware(profile, dict(job.cluster.changed))
    profile = with_mixed_price(with_price(profile, given_price(job.cluster)), job.layout.gpus)
    return sliced_for(profile, job.layout, job.slice or None)


def source_record(job: Job) -> dict[str, dict[str, str]]:
    """Return the sources of the hardware's numbers: profile -> key of the number -> title of the source.

    A profile that is not the one found under its name (composed in code, or given by path) is left
    out, because its sources are not known here.
    """
    from costmodel.describe.hardware.hardware import (
        load_accelerator,
        load_cluster,
        load_link,
        profile_numbers,
    )

    cluster = job.cluster
    profiles = [("cluster", cluster.name), ("accelerator", cluster.accelerator.name)]
    profiles += [("link", name) for name in dict.fromkeys(tier.link for tier in cluster.tiers if tier.link)]
    found: dict[str, dict[str, str]] = {}
    for kind, name in profiles:
        try:
            is_shipped = {
                "cluster": lambda name: _of_profile(load_cluster(name), job) == cluster,
                "accelerator": lambda name: load_accelerator(name) == cluster.accelerator,
                "link": lambda name: bool(load_link(name).name),
            }[kind](name)
            numbers = profile_numbers(kind, name) if is_shipped else []
        except CostModelError:
            continue
        if numbers:
            found[f"{kind} {name}"] = {number.key: number.title or number.source for number in numbers}
    found["model"] = {job.model.name: job.model.source}
    found["recipe"] = {job.recipe.name: job.recipe.source}
    return found


def _json_value(value: Any) -> Any:
    """Return a cell of a frame as JSON has it: numpy scalars unpacked, NaN as none."""
    plain = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(plain, float) and not np.isfinite(plain) else plain
