"""What ``costmodel read`` takes from its flags, says on stderr, and writes beside its answer."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.base.errors import CostModelError

if TYPE_CHECKING:
    from costmodel.cli.output import Target
    from costmodel.interop.framework import Imported


def surroundings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the flags of a command say of a file's surroundings: fields of a job, variables, vocabulary.

    Raises
    ------
    CostModelError
        If a value cannot be read, or a variable has no name.
    """
    from costmodel.describe.jobs.fields import FIELD
    from costmodel.describe.jobs.merge import with_stragglers
    from costmodel.describe.jobs.reading import read

    said = {name: read(name, value) for name, value in given.items() if name in FIELD and value is not None}
    if (switches := with_stragglers(said.get("switches"), given.get("stragglers"))) is not None:
        said["switches"] = switches
    env = _environment(given.get("env"))
    return {**said, "env": env, "vocab_size": given.get("vocab_size")}


def _environment(pairs: list[str] | None) -> dict[str, str] | None:
    """Read ``NAME=VALUE`` texts."""
    found = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise CostModelError(f"--env: expected NAME=VALUE, got {pair!r}")
        found[name] = value
    return found or None


def job_of_file(path: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of a job that any file describes; what has no price is said on stderr.

    Raises
    ------
    CostModelError
        If the file cannot be read, or its model cannot be priced.
    """
    from costmodel.describe.jobs.fields import FIELD
    from costmodel.describe.jobs.merge import read_job
    from costmodel.interop.reading import kind_of
    from costmodel.interop.reading import read as read_file

    kind = given.get("kind") or (kind_of(path) if Path(path).exists() else "job")
    if kind == "job":
        return read_job(path)
    # Flags of searches may name several values; only those that a reader needs to follow the file go in.
    one = {name: value for name, value in given.items() if name not in FIELD or _is_one(value)}
    found = read_file(path, kind, **surroundings(one))
    if found.unpriced and given.get("model") is None:
        raise CostModelError(f"{path}: the model cannot be priced: {found.unpriced}")
    if found.sweeps and not found.job:
        raise CostModelError(f"{path}: holds measurements, not a job; costmodel calibrate reads them")
    told(found)
    own = {name: value for name, value in found.job.items() if name in FIELD}
    asked = surroundings(one)
    # What the flags said comes on top again, as it was given.
    return {name: value for name, value in own.items() if asked.get(name) is None}


def _is_one(value: Any) -> bool:
    return not (isinstance(value, str) and any(mark in value for mark in (",", ":", " ")))


def told(found: Imported) -> None:
    """Print what changes the bill and was not understood or has no price."""
    for remark in found.remarks:
        print(f"Warning: {remark}", file=sys.stderr)


def write_model(found: Imported, target: Target) -> str:
    """Write the model that a file describes beside a job file, and return its name; nothing for stdout."""
    from costmodel.cli.output import write_file
    from costmodel.describe.models.model import Model
    from costmodel.interop.answer import model_yaml

    model = found.job.get("model")
    if not isinstance(model, Model) or target.out is None:
        return ""
    path = target.out.with_name(f"{target.out.stem}.model.yaml")
    if path.exists() and not target.out.exists():
        raise CostModelError(f"{path}: exists; --force replaces it")
    write_file(path, model_yaml(model), target)
    return path.name
