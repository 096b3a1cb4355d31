"""Sizes that a table gives as formulas over a HuggingFace config's keys: models without a price, and towers.

``unpriced.yaml`` and ``towers.yaml`` are the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from costmodel.base.errors import ModelConfigError, shown
from costmodel.base.yaml_files import read_mapping
from costmodel.bill.formula import evaluate, inputs_of, names_of
from costmodel.describe.models.huggingface_keys import Keys, by_name, sizes_of
from costmodel.describe.models.huggingface_wrappers import language_model
from costmodel.describe.models.model import Tower

_COUNTED = (
    *("languages", "per_layer_config"),
    *("deepstack_visual_indexes", "fullatt_block_indexes", "outer_vision_feature_layer"),
)
"""Keys of which a formula needs how many there are; another list is no number."""

_UNCOUNTED = ("add_cross_attention", "is_moe", "asm", "adapter_layer_norm", "pre_norm")
"""Switches (BERT, Doge, XLM, X-MOD) that add or move parameters, which most rows do not have."""

_PREDICTING = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
"""Layers that predict further tokens, which transformers does not build."""


class Size(NamedTuple):
    """What is known of a model without a price."""

    shape: dict[str, Any]  # Parameters, layers and widths, under the names of `Model`
    left_out: tuple[str, ...]  # Sentences: towers and layers that are not counted


def size_of(raw: Mapping[str, Any], origin: str, name: str = "") -> Size | None:
    """Return the size of the model that a config describes, parameters where a row counts its type; None of unknown types."""
    text = language_model(raw, origin)
    kind = str(text.raw.get("model_type"))
    if kind not in counted_types():
        known = {"name": name or kind, "model_type": kind, **sizes_of(text.raw)}
        return Size(known, text.left_out) if kind in by_name("refused") else None
    keys = Keys(text.raw, origin, text.defaults)
    formulas = _formulas("unpriced.yaml", kind, "_decoder")
    for key in _UNCOUNTED:
        if keys.get(key) and key not in formulas:
            raise keys.refuse(f"{key}: a {kind!r} with it cannot be counted")
    fields = {
        "num_params": "parameters",
        "num_layers": "layers",
        "hidden_size": "hidden",
        "num_heads": "heads",
    }
    fields |= {"num_kv_heads": "num_key_value_heads", "vocab_size": "vocab"}
    try:
        with np.errstate(all="raise"):
            found = {field: _number(keys, formulas, each) for field, each in fields.items()}
            tied = _number(keys, formulas, "tied")
    except ArithmeticError:
        raise keys.refuse(f"model_type {kind!r}: a size of 0 cannot be counted") from None
    if strange := [field for field, value in found.items() if value < 0 or not value.is_integer()]:
        raise keys.refuse(f"model_type {kind!r}: its sizes make {strange[0]} no whole number")
    sizes = {field: int(value) for field, value in found.items() if value}
    shape = {"name": name or kind, "model_type": kind, **sizes, "tied_embeddings": bool(tied)}
    predicting = [f"{key}: these layers are not counted" for key in _PREDICTING if keys.raw.get(key)]
    return Size(shape, (*text.left_out, *predicting))


def counted_types() -> tuple[str, ...]:
    """Return every ``model_type`` whose parameters are counted."""
    return tuple(kind for kind in _rows("unpriced.yaml") if not kind.startswith("_"))


_MAPPINGS = {"vision_config": "vision", "audio_config": "audio"}
_TOWER = (
    *("layers", "hidden", "heads", "head_dim", "ffn", "gated", "qkv_bias", "out_bias", "mlp_bias"),
    *("norm_bias", "window", "full", "tokens", "merge", "patch", "projector", "rest"),
)
"""Formulas of the fields of a `Tower` behind its name, in their order."""


def tower_of(raw: Mapping[str, Any], hidden_size: int, origin: str) -> Tower | None:
    """Return the tower of a multimodal config, by the width of its language model; None where no row counts it."""
    kind = str(raw.get("model_type"))
    for key, name in _MAPPINGS.items():
        if not isinstance(raw.get(key), dict):
            continue
        keys, formulas = _formulas_of_tower(raw, kind, key, hidden_size, origin)
        if "projector" not in formulas:
            return None
        try:
            with np.errstate(all="raise"):
                numbers = [_number(keys, formulas, word) for word in _TOWER]
        except ArithmeticError:
            raise _refused_sizes(keys, "sizes divide by zero or are too large") from None
        _, *fields = Tower.model_fields.items()
        sizes = {
            field: bool(number) if info.annotation is bool else round(number)
            for (field, info), number in zip(fields, numbers, strict=True)
        }
        try:
            tower = Tower.model_validate({"name": name, **sizes})
        except ValidationError as error:
            wrong = error.errors()[0]
            raise _refused_sizes(keys, f"{wrong['loc'][0]}: {wrong['msg']}, got {wrong['input']}") from None
        if "head_dim" not in keys.raw and tower.hidden_size % tower.num_heads:
            raise keys.refuse(
                f"{formulas['heads']}: expected a divisor of the width {tower.hidden_size}, got {tower.num_heads}"
            )
        return tower
    return None


def _refused_sizes(keys: Keys, otherwise: str) -> ModelConfigError:
    """Return the error for sizes that make no tower: the keys that are not positive, or another reason."""
    found = {name: keys.raw.get(name) for name in sorted(keys.used)}
    wrong = [
        f"{name}: expected more than 0, got {value}"
        for name, value in found.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value <= 0
    ]
    return keys.refuse("; ".join(wrong) or otherwise)


def _formulas_of_tower(
    raw: Mapping[str, Any], kind: str, key: str, hidden_size: int, origin: str
) -> tuple[Keys, dict[str, str]]:
    """Return the keys of a tower's part of a config, and its formulas: none of a kind without a row."""
    part, rows = raw[key], _rows("towers.yaml")
    outer = {f"outer_{word}": value for word, value in raw.items() if not isinstance(value, dict)}
    texts = {f"{word}_{value}": 1 for word, value in part.items() if isinstance(value, str)}
    given = {**part, **texts, **outer, "text_hidden": hidden_size}
    # Sides of a square, written twice.
    square = {
        word: value[0]
        for word, value in part.items()
        if word.endswith("_size") and isinstance(value, list) and len(value) == 2 and value[0] == value[1]
    }
    keys, own = Keys({**given, **square}, f"{origin}: {key}"), str(part.get("model_type") or kind)
    if own.startswith("_") or own not in rows:
        return keys, {}
    joined = {word: str(formula) for word, formula in rows["_joined"].get(kind, {}).items()}
    return keys, {**_formulas("towers.yaml", own, "_tower"), **joined}


@cache
def _rows(file: str) -> Mapping[str, Any]:
    """Return a table's row of every type."""
    path = files("costmodel") / "describe" / "data" / file
    table = read_mapping(path, example="bitnet: {layer: attention}", error=ModelConfigError)
    return {kind: row for kinds, row in table.items() for kind in kinds.split()}


@cache
def _formulas(file: str, kind: str, base: str) -> dict[str, str]:
    """Return the formulas of a type by name, with those of the rows that it is like, `base` where it names none."""
    row = {name: str(formula) for name, formula in _rows(file)[kind].items()}
    like = row.pop("like", base)
    return {**_formulas(file, like, base), **row} if like != kind else row


def _number(keys: Keys, formulas: Mapping[str, str], name: str, asking: tuple[str, ...] = ()) -> float:
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
    terms = {each: _number(keys, formulas, each, (*asking, name)) for each in inputs_of(formulas[name])}
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
    layers = int(_number(keys, formulas, "layers"))
    listed = [str(kind) for kind in found[:layers]]
    known = {other for formula in formulas.values() for other in names_of(formula)} | formulas.keys()
    if strange := [kind for kind in listed if f"{key}_{kind}" not in known]:
        raise keys.refuse(f"{key}: {strange[0]!r} cannot be counted")
    if len(listed) < layers:
        raise keys.refuse(f"{key}: has {len(listed)} layers, the model has {layers}")
    return listed.count(wanted)
