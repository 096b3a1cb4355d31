"""Models from tables of dimensions, with what the family of a name has in common and such tables leave out."""

from __future__ import annotations

import math
from functools import cache
from importlib.resources import files
from typing import Any

from costmodel.base.yaml_files import read_mapping
from costmodel.describe.models.model import Model, make_model

_RENAMED = {
    "num_layers": "layers",
    "hidden_size": "hidden",
    "num_heads": "heads",
    "num_kv_heads": "kv_heads",
    "ffn_size": "ffn",
    "vocab_size": "vocab",
    "expert_ffn_size": "expert_ffn",
    "shared_expert_ffn_size": "shared_expert_ffn",
}
_SAME = (
    *("head_dim", "v_head_dim", "q_lora_rank", "kv_lora_rank"),
    *("qk_nope_head_dim", "qk_rope_head_dim", "mtp_layers"),
)
_EXPERTS = ("num_experts", "top_k", "first_dense_layers", "moe_layer_freq")
_COLUMNS = _RENAMED | {name: name for name in (*_SAME, *_EXPERTS)}
"""Columns of a table by the fields of `Model`."""
_OF_EXPERTS = (*_EXPERTS, "expert_ffn_size", "shared_expert_ffn_size")


@cache
def _families() -> dict[str, dict[str, Any]]:
    path = files("costmodel") / "describe" / "data" / "model_families.yaml"
    return read_mapping(path, example="qwen3: {qk_norm: true}")


def _family(name: str, gated: bool) -> dict[str, Any]:
    """Return the fields that the family with the longest matching prefix has in common."""
    prefixes = [prefix for prefix in _families() if name.lower().startswith(prefix)]
    if prefixes:
        return _families()[max(prefixes, key=len)]
    return {} if gated else _families()["_plain"]


def model_from_dims(**fields: Any) -> Model:
    """Return a model from the dimension columns that tables of published runs carry.

    Takes ``model`` (the name), ``layers``, ``hidden``, ``heads``, ``kv_heads``, ``head_dim``, ``ffn``,
    ``gated_mlp``, ``vocab``, ``tied_embeddings``, ``seq_len``, ``attention`` with its ranks, the
    expert columns and ``mtp_layers``; None, NaN and empty text mean "not given", other columns are
    not looked at. What such tables leave out (norms, biases, positions) follows from the family that
    the name starts with (``describe/data/model_families.yaml``).
    """
    given = {key: value for key, value in fields.items() if not _is_missing(value)}
    name = str(given.get("model", ""))
    values: dict[str, Any] = {
        field: _whole(given[column])
        for field, column in _COLUMNS.items()
        if column in given and (given.get("num_experts") or field not in _OF_EXPERTS)
    }
    gated = _truth(given.get("gated_mlp", True))
    values |= {
        "name": name,
        "gated_mlp": gated,
        "tied_embeddings": _truth(given.get("tied_embeddings", False)),
    }
    if "attention" in given:
        values["attention"] = str(given["attention"])
    values |= _family(name, gated)
    if values.get("position") == "learned":
        values["max_positions"] = _whole(given.get("seq_len", 0))
    return make_model(values, f"model {name} (from its dimensions)")


def _is_missing(value: Any) -> bool:
    """Whether a cell is empty."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _whole(value: Any) -> Any:
    """Return 32.0 or "32" as 32, and anything else as it is for the validation to refuse."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return value
    return int(number) if number.is_integer() else value


def _truth(value: Any) -> Any:
    """Return the boolean that a cell means."""
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.strip().lower(), value)
    return bool(value)
