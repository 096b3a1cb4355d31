"""What was read from a file: the keywords of a job, a record for JSON, and a job file to write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from costmodel.base.errors import CostModelError
from costmodel.base.yaml_files import parse_mapping
from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.describe.jobs.fields import FIELD, JOB_FIELDS, LENGTH_FIELDS, RL_FIELDS, canonical, names
from costmodel.describe.jobs.job import Job
from costmodel.describe.jobs.merge import RL_SECTION, merge_jobs, read_job, read_job_text
from costmodel.describe.jobs.positional import file_and_keywords
from costmodel.describe.jobs.reading import read
from costmodel.describe.jobs.short_form import command_text
from costmodel.describe.models.model import Model, make_model
from costmodel.interop.framework import Imported
from costmodel.interop.text_file import TextFile, read_text

SCHEMA_VERSION = 1
RL_NAMES = names(RL_FIELDS)


class JobFile(NamedTuple):
    """The job that a file of any kind describes; flags, keywords and form fields take precedence over it.

    `path` is as it was given, so that a command that names it runs in the same folder; `words` are flags that say how to
    read it, `reading` the same as keywords with what the file leaves open, `remarks` what was not understood or has no price;
    `batches` are all batches of one that grows, `notes` what its reader had to say besides, `launcher` the framework of
    `FRAMEWORKS` that starts what a trainer's file describes.
    """

    keywords: Mapping[str, Any]
    path: str = ""
    words: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    kind: str = ""
    reading: Mapping[str, Any] = {}
    batches: tuple[int, ...] = ()
    text: TextFile | None = None
    """Where it was given as text."""
    notes: tuple[str, ...] = ()
    launcher: str = ""

    def with_flags(self, flags: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what the file says where these flags are given beside it: a batch of each GPU follows their number."""
        if not self.reading:
            return self.keywords
        how = {name: self.reading[name] for name in READING if self.reading.get(name)}
        try:
            return job_of_file(self.text or self.path, {**how, **flags})[0].keywords
        except CostModelError:  # flags that the file's own rules do not allow
            return self.keywords

    def command(self, job: Job, name: str = "estimate", files: Mapping[str, str] | None = None) -> str:
        """Return the command line that prices a job of one layout on top of this file."""
        if not self.path:
            return command_text(job, name, files, words=self.words)
        return command_text(
            job, name, files, path=self.path, below=self.keywords, words=self.words, reread=self.with_flags
        )


def job_file(file: str | Path | TextFile, kind: str = "", **given: Any) -> JobFile:
    """Read the job that a file of any kind describes: a job file, a launch script, a configuration, a model.

    The file is given by its path, or as text.
    """
    from costmodel.interop.reading import kind_of, read_file

    source = file.name if isinstance(file, TextFile) else str(file)
    try:
        text = file if isinstance(file, TextFile) else read_text(file)
    except CostModelError:
        if kind or Path(source).exists():
            raise
        return JobFile(read_job(source), source)  # raises, with what a job file is
    kind_read = kind or kind_of(text)
    if kind_read == "job":
        raw = parse_mapping(text.text, source, example="model: llama3-8b")
        if "num_layers" in raw:
            name = {"name": PurePath(source).stem}
            model = source if text.folder else make_model({**name, **raw}, source)
            return JobFile({"model": model}, source, kind="model")
        return JobFile(
            read_job(source) if text.folder else read_job_text(text.text, source), source, kind="job"
        )
    found = read_file(text, kind_read, **given)
    if found.unpriced and given.get("model") is None:
        raise CostModelError(f"{source}: the model cannot be priced: {found.unpriced}")
    if found.sweeps and not found.job:
        raise CostModelError(
            f"{source}: holds measurements, not a job; costmodel observed calibrate reads them"
        )
    # `switches` is a table: those of the file and those given are merged, so the field is kept.
    fields = {
        name: value
        for name, value in found.job.items()
        if name in FIELD and value is not None and (name == "switches" or given.get(name) is None)
    }
    words = (
        *(("--from", kind) if kind else ()),
        *(word for name, value in (given.get("env") or {}).items() for word in ("--env", f"{name}={value}")),
        *(("--vocab-size", str(given["vocab_size"])) if given.get("vocab_size") else ()),
    )
    reading = {"kind": kind_read, **given}
    held = file if isinstance(file, TextFile) else None
    remarks, notes = tuple(found.remarks), found.notes
    launcher = _launcher_of(found)
    return JobFile(fields, source, words, remarks, found.kind, reading, found.batches, held, notes, launcher)


def _launcher_of(found: Imported) -> str:
    """Return the framework that starts the job of a trainer's file, none where its recipe's own framework does.

    Axolotl starts its own; the others' trainers are started by Accelerate. A DeepSpeed configuration beside a job without
    adapters is written as one again.
    """
    own = FRAMEWORKS["deepspeed"].recipe == found.job.get("recipe") and not found.job.get("lora_rank")
    if found.kind not in ("trainer", "accelerate") or own:
        return ""
    return "axolotl" if found.framework == FRAMEWORKS["axolotl"].title else "accelerate"


READING = ("kind", "env", "vocab_size", "allow_source")
"""Keywords that say how to read a file."""


def job_of_file(
    file: str | TextFile, requested: Mapping[str, Any], *, layout: bool = True
) -> tuple[JobFile, dict[str, Any]]:
    """Return the job of a file, an empty one for an empty path, and the fields that override it.

    Fields with a single value may complete what the file leaves open (its reader gets them), those of the layout only
    with `layout`: in a search they are constraints and say nothing about the file.
    """
    reading = {name: requested[name] for name in READING if requested.get(name)}
    above = {name: value for name, value in requested.items() if name not in READING}
    if not file:
        if reading:
            raise CostModelError(f"{next(iter(reading))}: says how to read a file; none is given")
        return JobFile({}), above
    taken = {field.name for field in (*JOB_FIELDS, *LENGTH_FIELDS) if layout or field.group != "layout"}
    named = {canonical(name): value for name, value in above.items()}
    fills = {
        name: read(name, value) for name, value in named.items() if name in taken and _is_one(name, value)
    }
    return job_file(file, reading.pop("kind", ""), **reading, **fills), above


def rl_fields(job: object, machine: object, requested: Mapping[str, Any], *, who: str) -> dict[str, Any]:
    """Return the keywords of a job of reinforcement learning, those of a file below those that are given."""
    file, given = job_of_file(*file_and_keywords(job, machine, requested, who=who))
    return merge_jobs(file.keywords, given)


def _is_one(name: str, value: Any) -> bool:
    """Tell whether a field is given a single value, not several to search."""
    if isinstance(value, str):
        return FIELD[name] in LENGTH_FIELDS or not any(mark in value for mark in (",", ":", " "))
    is_list = isinstance(value, list | tuple) or bool(getattr(value, "shape", ()))
    return value is not None and (not is_list or FIELD[name].kind == "switches")


def record(found: Imported) -> dict[str, Any]:
    """Return everything that was read, as plain values for ``costmodel read --format json``."""
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
    """Return the text of a job file; comments list what is missing and what was not understood.

    `model_file` is the file that `model_yaml` is written to, where the model is not a preset.
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
    """Return the text of a model file."""
    from costmodel.base.yaml_files import document_text

    return document_text(model.model_dump(exclude_defaults=True))
