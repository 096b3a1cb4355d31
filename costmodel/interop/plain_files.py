"""Files that need no table of keys: our own job file, a model of the hub, a log of nccl-tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from costmodel.base.errors import ModelConfigError
from costmodel.describe.jobs.fields import REQUIRED
from costmodel.describe.jobs.merge import merge_jobs, read_job_text
from costmodel.describe.jobs.merge import read_job as read_job_file
from costmodel.describe.models.huggingface import read_hf_config
from costmodel.describe.models.unpriced import size_of
from costmodel.interop.framework import FrameworkConfigError, Imported, fields_of
from costmodel.interop.nccl_tests import read_log_text
from costmodel.interop.sniff import parse_json
from costmodel.interop.text_file import TextFile


def read_job(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read our own job file; `given` goes on top of it."""
    own = read_job_text(file.text, file.name) if file.folder is None else read_job_file(file.name)
    job = merge_jobs(own, fields_of(given))
    return Imported(job, tuple(key for key in REQUIRED if key not in job))


def read_model(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read a HuggingFace ``config.json``; `given` may complete a job around the model."""
    raw = parse_json(file.text, file.name)
    name = _name_of(file, raw)
    try:
        found = read_hf_config(raw, name)
    except ModelConfigError as error:
        size = size_of(raw, file.name, name)
        if size is None:
            raise
        reason = str(error).split(": ", 1)[-1]
        return Imported(
            fields_of(given), ignored=size.ignored, warnings=size.left_out, shape=size.shape, unpriced=reason
        )
    job = {**fields_of(given), "model": found.model}
    missing = [key for key in ("gpus", "global_batch", "seq_len") if key not in job]
    left_out = tuple(note for note in found.notes if note.endswith("is priced"))
    notes = tuple(note for note in found.notes if note not in left_out)
    return Imported(job, tuple(missing), found.ignored, notes, left_out)


def _name_of(file: TextFile, raw: Mapping[str, Any]) -> str:
    """Return the model's name: as the file has it, else its folder or its own name."""
    named = str(raw.get("_name_or_path") or "").rstrip("/").rsplit("/", 1)[-1]
    if named or file.folder is None:
        return named
    stem = file.name.replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".json")
    return file.folder.absolute().name if stem in ("config", file.folder.name) else stem


def read_log(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read the sweeps of a log; `given` says ``collective``, ``ranks`` and ``nodes`` where it does not."""
    beside = {name: given[name] for name in ("collective", "ranks", "nodes") if given.get(name)}
    log = read_log_text(file.text, Path(file.name).name, **beside)
    if not log.sweeps:
        more = f" (and {len(log.problems) - 1} more)" if len(log.problems) > 1 else ""
        raise FrameworkConfigError(f"{log.problems[0]}{more}" if log.problems else "holds no sweep")
    shown = ("primitive", "algorithm", "ranks", "nodes", "gpu", "version")
    sweeps = [
        {name: getattr(sweep, name) for name in shown}
        | {
            "sizes": [int(size) for size in sweep.size_bytes],
            "time_s": [float(time) for time in sweep.time_s],
        }
        for sweep in log.sweeps
    ]
    return Imported(
        {},
        notes=tuple(str(note) for note in log.notes[:5]),
        warnings=tuple(str(problem) for problem in log.problems[:10]),
        sweeps=tuple(sweeps),
    )
