"""Models without a file: from tables of dimensions, by what the family of a name has in common, and generic dense ones."""

from __future__ import annotations

import math
from functools import cache
from importlib.resources import files
from typing import Any

from costmodel.base.errors import ModelConfigError
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
    """Return a model from the columns of a table of published runs; what they leave out follows from the family of its name."""
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


HEAD_DIM = 128
VOCAB_SIZE = 128256
LAYERS_MULTIPLE = 4
WIDTH_PER_LAYER = 115.0
SMALLEST, LARGEST = 5e8, 2e13


def dense_model(num_params: float) -> Model:
    """Return a Llama-3-like dense model of about `num_params` parameters.

    The rule: heads of 128, 8 KV heads, a gated MLP of 3.5 times the width (up to the next 256),
    vocabulary 128,256, untied. The width is a multiple of 1,024 (512 below 6B), the depth a
    multiple of 4, both chosen for a count close to `num_params` and a width near 115 per layer
    (Llama 3: 128, 102 and 130 at 8B, 70B and 405B).
    """
    if not SMALLEST <= num_params <= LARGEST:
        raise ModelConfigError(
            f"model: dense-<N>b exists for N = {SMALLEST / 1e9:g} … {LARGEST / 1e9:g}, "
            f"got {num_params / 1e9:g}"
        )
    step = 1024 if num_params >= 6e9 else 512
    guess = (num_params * WIDTH_PER_LAYER / 13.0) ** (1 / 3)
    widths = (step * k for k in range(max(1, int(guess / step / 2)), int(guess / step * 2) + 3))
    _, width, layers, kv_heads, ffn_size = min(_dense_shape(width, num_params) for width in widths)
    return make_model(
        {
            "name": f"dense-{num_params / 1e9:g}b",
            "source": "generic: the rule of costmodel.describe.models.model_families",
            "num_layers": layers,
            "hidden_size": width,
            "num_heads": width // HEAD_DIM,
            "num_kv_heads": kv_heads,
            "ffn_size": ffn_size,
            "gated_mlp": True,
            "vocab_size": VOCAB_SIZE,
        }
    )


def _dense_shape(width: int, num_params: float) -> tuple[float, int, int, int, int]:
    """Return misfit, width, layers, KV heads and MLP width; few heads share what divides them."""
    kv_heads, ffn_size = math.gcd(width // HEAD_DIM, 8), 256 * math.ceil(3.5 * width / 256)
    layer, tables = (
        width * (2.0 * width + 2.0 * kv_heads * HEAD_DIM + 3.0 * ffn_size),
        2.0 * VOCAB_SIZE * width,
    )
    layers = max(1, round((num_params - tables) / layer / LAYERS_MULTIPLE)) * LAYERS_MULTIPLE
    count = math.log((tables + layers * layer) / num_params)
    misfit = 10 * abs(count) + abs(math.log(width / (WIDTH_PER_LAYER * layers)))
    return misfit, width, layers, kv_heads, ffn_size
