"""What was read of a file, as data for tables, JSON and a job file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from costmodel.base.errors import CostModelError
from costmodel.describe.jobs.fields import FIELD, RL_FIELDS, names
from costmodel.describe.jobs.merge import RL_SECTION
from costmodel.describe.models.model import Model
from costmodel.interop.framework import Imported

SCHEMA_VERSION = 1
RL_NAMES = names(RL_FIELDS)


class JobFile(NamedTuple):
    """What a file of any kind says of a job: below flags, keywords and fields of a form.

    Attributes
    ----------
    keywords : mapping
        Those of `costmodel.estimate`, values read; what the file does not say is left out.
    path : str
        As it was given, so that a command that names it runs in the same folder; empty where there is no file.
    words : tuple of str
        Flags that say how to read it (``--from``, ``--env``, ``--vocab-size``).
    remarks : tuple of str
        What of the file was not understood or has no price.
    """

    keywords: Mapping[str, Any]
    path: str = ""
    words: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def job_file(path: str | Path, kind: str = "", **given: Any) -> JobFile:
    """Read the job that a file of any kind describes: ours, a launch script, a configuration, a ``config.json``."""
    from costmodel.describe.jobs.merge import read_job
    from costmodel.interop.reading import kind_of, read

    said = str(path)
    kind_read = kind or (kind_of(path) if Path(path).exists() else "job")
    if kind_read == "job":
        return JobFile(read_job(path), said)
    found = read(path, kind_read, **given)
    if found.unpriced and given.get("model") is None:
        raise CostModelError(f"{said}: the model cannot be priced: {found.unpriced}")
    if found.sweeps and not found.job:
        raise CostModelError(
            f"{said}: holds measurements, not a job; costmodel observed calibrate reads them"
        )
    # Switches are one field of many: those of the file stay beside those given.
    kept = {
        name: value
        for name, value in found.job.items()
        if name in FIELD and (name == "switches" or given.get(name) is None)
    }
    words = (
        *(("--from", kind) if kind else ()),
        *(word for name, value in (given.get("env") or {}).items() for word in ("--env", f"{name}={value}")),
        *(("--vocab-size", str(given["vocab_size"])) if given.get("vocab_size") else ()),
    )
    return JobFile(kept, said, words, tuple(found.remarks))


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
    section = {key: job.pop(key) for key in [*job] if key in RL_NAMES}
    if section:
        job[RL_SECTION] = section
    lines = [f"# {remark}" for remark in (*found.notes, *found.remarks)]
    unpriced = {key: value for key, value in found.facts.items() if key not in found.job}
    lines += [f"# {key} = {value}: read, without a price" for key, value in unpriced.items()]
    lines += [f"# missing: {key}" for key in found.missing]
    return "\n".join([*lines, document_text(job)])


def model_yaml(model: Model) -> str:
    """Return a model as a model file of ours."""
    from costmodel.base.yaml_files import document_text

    return document_text(model.model_dump(exclude_defaults=True))
