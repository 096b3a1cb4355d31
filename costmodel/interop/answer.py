"""What was read of a file, as data for tables, JSON and a job file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.describe.models.model import Model
from costmodel.interop.framework import Imported

SCHEMA_VERSION = 1


def record(found: Imported) -> dict[str, Any]:
    """Return everything that was read, as plain values: what ``costmodel read --format json`` writes."""
    job = {key: value for key, value in found.job.items() if key != "model"}
    model = found.job.get("model")
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": found.kind,
        "framework": found.framework,
        "job": {**({"model": model} if isinstance(model, str) else {}), **job, **found.facts},
        "model": model_of(found),
        "sweeps": [dict(sweep) for sweep in found.sweeps],
        "notes": list(found.notes),
        "warnings": [
            *found.warnings,
            *([f"the model cannot be priced: {found.unpriced}"] if found.unpriced else []),
        ],
        "ignored": list(found.ignored),
        "missing": list(found.missing),
    }


def model_of(found: Imported) -> dict[str, Any] | None:
    """Return the model's fields with its parameters; only its known dimensions if it cannot be priced."""
    model = found.job.get("model")
    if isinstance(model, str):
        from costmodel.describe.models.model_files import load_model

        model = load_model(model)
    if isinstance(model, Model):
        from costmodel.step.anatomy.params import num_active_params, num_params

        fields = model.model_dump()
        counts = {
            "num_params": round(num_params(model)),
            "num_active_params": round(num_active_params(model)),
        }
        return {"name": fields.pop("name"), **counts, "priced": True, **fields}
    return {**found.shape, "priced": False} if found.shape else None


def job_yaml(found: Imported, model_file: str = "") -> str:
    """Return the job as a job file of ours; what is missing and was not understood stands in comments.

    `model_file` is the name of the file beside it that `model_yaml` fills, where the model has no name of its own.
    """
    from costmodel.base.yaml_files import document_text

    job: dict[str, Any] = {}
    for key, value in found.job.items():
        if isinstance(value, Model):
            job[key] = model_file or value.name
        elif isinstance(value, Mapping):
            job[key] = {name: list(item) if isinstance(item, tuple) else item for name, item in value.items()}
        else:
            job[key] = value
    lines = [f"# {remark}" for remark in (*found.notes, *found.remarks)]
    unpriced = {key: value for key, value in found.facts.items() if key not in found.job}
    lines += [f"# {key} = {value}: read, without a price" for key, value in unpriced.items()]
    lines += [f"# missing: {key}" for key in found.missing]
    return "\n".join([*lines, document_text(job)])


def model_yaml(model: Model) -> str:
    """Return a model as a model file of ours."""
    from costmodel.base.yaml_files import document_text

    return document_text(model.model_dump(exclude_defaults=True))
