"""What ``costmodel read`` takes from its flags, says on stderr, and writes beside its answer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from costmodel.base.errors import CostModelError

if TYPE_CHECKING:
    from costmodel.cli.output import Target
    from costmodel.interop.framework import Imported


def environment(pairs: list[str] | None) -> dict[str, str] | None:
    """Read ``NAME=VALUE`` texts.

    Raises
    ------
    CostModelError
        If one has no name.
    """
    found = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise CostModelError(f"--env: expected NAME=VALUE, got {pair!r}")
        found[name] = value
    return found or None


def told(found: Imported) -> None:
    """Print what changes the bill and was not understood or has no price."""
    for remark in found.remarks:
        print(f"Warning: {remark}", file=sys.stderr)


def write_model(found: Imported, target: Target) -> str:
    """Write the model that a file describes beside a job file, and return its name; nothing for stdout."""
    from costmodel.cli.output import write_whole
    from costmodel.describe.models.model import Model
    from costmodel.interop.answer import model_yaml

    model = found.job.get("model")
    if not isinstance(model, Model) or target.out is None:
        return ""
    path = target.out.with_name(f"{target.out.stem}.model.yaml")
    if path.exists() and not target.out.exists():
        raise CostModelError(f"{path}: exists; --force replaces it")
    write_whole(path, model_yaml(model), target)
    return path.name
