"""What a launch file says of a model and no price depends on: its rotation, its norms' epsilon, its longest sequence.

Such a key of an unexpected kind (a base for each layer) is passed over: it has no price, and no one setting to write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.describe.models.huggingface_keys import Keys
from costmodel.describe.models.model import MOST

_THETA = ("rope_theta", "rotary_emb_base", "rope_base", "rotary_base")
_EPSILON = (
    "rms_norm_eps",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "layernorm_epsilon",
    "norm_epsilon",
    "norm_eps",
    "layer_norm_rms_epsilon",
)
_LENGTH = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    "model_max_length",
    "seq_length",
)
_SHARE = ("partial_rotary_factor", "rotary_pct", "rope_pct", "rotary_percent")


def launch_details(keys: Keys, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of `Model` that frameworks have to be told of, as far as a config says them as one number.

    Parameters
    ----------
    keys : Keys
        The config; nothing is noted as read, for these names are known to shape nothing.
    values : mapping
        What its family's reader has made of it.
    """
    raw = keys.raw
    found: dict[str, Any] = {"norm_epsilon": _number(raw, _EPSILON, below=1)}
    length = _number(raw, _LENGTH, below=MOST)
    position = values.get("position", "rope")
    if position != "learned" and length is not None and length == int(length):
        found["context_length"] = int(length)
    # transformers 5 has all of a rotation in one table, one inside another where layers differ.
    table = raw.get("rope_parameters")
    tables = [table if isinstance(table, dict) else {}, raw]
    if position == "rope":
        found["rope_theta"] = next((n for n in (_number(each, _THETA) for each in tables) if n), None)
    if position == "rope" and values.get("attention") != "mla":
        shares = (_number(each, _SHARE, below=1 + 1e-9) for each in tables)
        found["rotary_share"] = next((share for share in shares if share), _share_of_dims(raw, values))
    return {name: value for name, value in found.items() if value}


def _share_of_dims(raw: Mapping[str, Any], values: Mapping[str, Any]) -> float | None:
    """Return the rotated share where a config counts the dimensions that are (GPT-J)."""
    dims, width = raw.get("rotary_dim"), values.get("head_dim")
    hidden, heads = values.get("hidden_size"), values.get("num_heads")
    if width is None and type(hidden) is int and type(heads) is int and heads > 0:
        width = hidden // heads
    if type(dims) is not int or type(width) is not int or not 0 < dims < width:
        return None
    return dims / width


def _number(raw: Mapping[str, Any], names: tuple[str, ...], below: float = float("inf")) -> float | None:
    """Return the first of some keys that is a positive number below a bound."""
    for name in names:
        value = raw.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < below:
            return float(value)
    return None
