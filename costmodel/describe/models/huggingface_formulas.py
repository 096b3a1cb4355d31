"""Sizes that a table gives as formulas over the keys of a HuggingFace config: ``unpriced.yaml``, ``towers.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from costmodel.base.errors import ModelConfigError, shown
from costmodel.base.yaml_files import read_mapping
from costmodel.bill.formula import evaluate, inputs_of, names_of
from costmodel.describe.models.huggingface_keys import Keys

_COUNTED = (
    *("cross_attention_layers", "per_layer_config"),
    *("deepstack_visual_indexes", "fullatt_block_indexes", "outer_vision_feature_layer"),
)
"""Keys of which a formula needs how many there are; another list is no number."""


@cache
def rows_of(file: str) -> Mapping[str, Any]:
    """Return a table's row of every type."""
    path = files("costmodel") / "describe" / "data" / file
    table = read_mapping(path, example="bitnet: {layer: attention}", error=ModelConfigError)
    return {kind: row for kinds, row in table.items() for kind in kinds.split()}


@cache
def formulas_of(file: str, kind: str, base: str) -> dict[str, str]:
    """Return the formulas of a type by name, with those of the rows that it is like, `base` where it names none."""
    row = {name: str(formula) for name, formula in rows_of(file)[kind].items()}
    like = row.pop("like", base)
    return {**formulas_of(file, like, base), **row} if like != kind else row


def number_of(keys: Keys, formulas: Mapping[str, str], name: str, asking: tuple[str, ...] = ()) -> float:
    """Return what a name stands for: a key of the config, a part of its lists and mappings, or a formula."""
    value = keys.get(name)
    if value is None:
        value = _part(keys, formulas, name)
    if isinstance(value, (list, dict)) and name in _COUNTED:
        return float(len(value))
    if value is not None and not (value == "auto" and name in formulas):
        if not isinstance(value, (int, float)):
            raise keys.refuse(f"{name}: expected a number, got {shown(value)}")
        return float(value)
    if name not in formulas or name in asking:
        keys.need(name)
    terms = {each: number_of(keys, formulas, each, (*asking, name)) for each in inputs_of(formulas[name])}
    return float(evaluate(formulas[name], terms))


def _part(keys: Keys, formulas: Mapping[str, str], name: str) -> Any:
    """Return how many layers a list of the config calls so, or the value inside a mapping; None if it has neither."""
    shared = (each for each in keys.raw if name.startswith(f"{each}_"))
    key = next((each for each in shared if isinstance(keys.get(each), (list, dict))), None)
    if key is None:
        return None
    found, wanted = keys.get(key), name.removeprefix(f"{key}_")
    if isinstance(found, dict):
        inner = [each for each in found.values() if isinstance(each, dict)]
        values = [each.get(wanted) for each in inner] if inner else [found.get(wanted)]
        if any(value != values[0] for value in values):
            raise keys.refuse(f"{key}: layers of more than two {wanted} cannot be counted")
        return values[0]
    layers = int(number_of(keys, formulas, "layers"))
    listed = [str(kind) for kind in found[:layers]]
    known = {other for formula in formulas.values() for other in names_of(formula)} | formulas.keys()
    if strange := [kind for kind in listed if f"{key}_{kind}" not in known]:
        raise keys.refuse(f"{key}: {strange[0]!r} cannot be counted")
    if len(listed) < layers:
        raise keys.refuse(f"{key}: has {len(listed)} layers, the model has {layers}")
    return listed.count(wanted)
