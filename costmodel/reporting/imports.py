"""What was read of another program's file, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.base.grid import Column, Grid
from costmodel.interop.answer import record
from costmodel.interop.framework import Imported


def import_grids(found: Imported) -> list[Grid]:
    """Return job, model and sweeps, then what was noted and what is missing."""
    answer = record(found)
    grids = (
        [_pairs(f"Job, from a file of {found.framework or found.kind}", _flat(answer["job"]))]
        if answer["job"]
        else []
    )
    if answer["model"]:
        grids.append(_pairs("Model", _told(answer["model"])))
    if answer["sweeps"]:
        names = [name for name in answer["sweeps"][0] if name not in ("sizes", "time_s")]
        columns = tuple(Column(name) for name in (*names, "sizes"))
        rows = [
            (*(str(sweep[name]) for name in names), str(len(sweep.get("sizes", ()))))
            for sweep in answer["sweeps"]
        ]
        grids.append(Grid("Sweeps", columns, tuple(rows)))
    said = {f"note {number}": note for number, note in enumerate(answer["notes"], 1)}
    if answer["missing"]:
        said["missing"] = ", ".join(answer["missing"])
    return [*grids, _pairs("How it was read", said)] if said else grids


def _told(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a model that say something."""
    return {
        name: value for name, value in model.items() if value not in (0, "", None, ()) or name == "priced"
    }


def _flat(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job with its switches one by one."""
    switches = job.get("switches") or {}
    plain = {key: value for key, value in job.items() if key != "switches"}
    return {**plain, **{f"set {name}": value for name, value in switches.items()}}


def _pairs(title: str, values: Mapping[str, Any]) -> Grid:
    rows = tuple((name, f"{value:,}" if type(value) is int else str(value)) for name, value in values.items())
    return Grid(title, (Column("Name"), Column("Value")), rows)
