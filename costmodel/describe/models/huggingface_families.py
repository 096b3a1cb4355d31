"""The families of HuggingFace configs: the table `huggingface.yaml` as readers from keys to fields of `Model`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from costmodel.describe.models.huggingface_keys import Keys, table
from costmodel.describe.models.huggingface_layers import COMMON_PARTS, value_of
from costmodel.describe.models.huggingface_odd import ODD_PARTS

_PARTS = COMMON_PARTS | ODD_PARTS


class Family(NamedTuple):
    """One row of the table, with what it takes from the rows it is like."""

    parts: tuple[tuple[str, Any], ...] = ()
    """Functions that read several fields at once, each with its argument."""
    fields: Mapping[str, Any] = {}
    """Other fields: a constant, or text for `value_of`."""
    reads: tuple[str, ...] = ()
    never: Mapping[str, str] = {}
    only: Mapping[str, Any] = {}
    keys: Mapping[str, str] = {}


@cache
def families() -> dict[str, Family]:
    """Return the families by ``model_type``."""
    rows = table("families")
    found = {name: _family(name, rows) for name in rows}
    found |= {other: found[name] for name, row in rows.items() for other in row.get("also", ())}
    return {name: found[name] for name in sorted(found) if not name.startswith("_")}


def _family(name: str, rows: Mapping[str, Any]) -> Family:
    """Return one row over the one that it is like."""
    row = dict(rows[name])
    base = _family(row["like"], rows) if "like" in row else Family()
    parts = tuple(
        next(iter(part.items())) if isinstance(part, dict) else (part, None) for part in row.get("parts", ())
    )
    fields = {
        field: said
        for names, said in row.items()
        if names not in (*Family._fields, "like", "also")
        for field in names.split(", ")
    }
    return Family(
        (*base.parts, *parts),
        {**base.fields, **fields},
        (*base.reads, *row.get("reads", "").split()),
        {**base.never, **row.get("never", {})},
        {**base.only, **row.get("only", {})},
        row.get("keys", {}),
    )


def read_fields(keys: Keys, family: Family) -> dict[str, Any]:
    """Return the fields of `Model` that a config of this family says."""
    for key, reason in family.never.items():
        if keys.get(key):
            raise keys.refuse(f"{key}: {reason}")
    for key, supported in family.only.items():
        if keys.get(key, default=supported) != supported:
            word = supported if isinstance(supported, str) else json.dumps(supported)
            raise keys.refuse(f"{key}: only {word} is supported")
    keys.get(*family.reads)
    values: dict[str, Any] = {}
    for name, argument in family.parts:
        part = _PARTS[name]
        if isinstance(argument, dict):
            values |= part(keys, **argument)
        else:
            values |= part(keys) if argument is None else part(keys, argument)
    return values | {field: value_of(keys, said) for field, said in family.fields.items()}
