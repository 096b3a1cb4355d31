"""What a family of models has in common and tables of dimensions leave out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_GPT = {"norm": "layernorm", "qkv_bias": True, "attention_out_bias": True, "linear_bias": True}
_NO_BIAS_LAYERNORM = {"norm": "layernorm", "norm_bias": False}

# The longest prefix of the model's name decides; without one, a gated MLP means Llama-like
# (RMSNorm, rotary positions, no biases) and a plain one GPT-like (LayerNorm, biases everywhere,
# a learned table of one position a token).
FAMILIES: dict[str, dict[str, Any]] = {
    "bloom": {**_GPT, "position": "alibi", "embedding_norm": True},
    # BigScience's trials of 178B to 205B had ALiBi, the 1.3B ones a learned table.
    "bs-gpt-1": {**_GPT, "position": "alibi"},
    "bs-gpt-2": {**_GPT, "position": "alibi"},
    "bs-gpt-1.3b": {**_GPT, "position": "learned"},
    "deepseek-v3": {"router_bias": True},
    "falcon": {"norm": "layernorm", "parallel_block": True, "norms_per_layer": 2, "position": "rope"},
    "gpt-neox": {**_GPT, "parallel_block": True, "norms_per_layer": 2, "position": "rope"},
    "gpt-oss": {
        "attention_sinks": True,
        "activation_clamp": True,
        "rope_concentration": True,
        "sliding_window": 128,
        "full_attention_every": 2,
        "qkv_bias": True,
        "attention_out_bias": True,
        "linear_bias": True,
        "router_bias": True,
    },
    # NeMo's GPT-3 recipes and Megatron-Core's own scaling series rotate instead of a learned table.
    "gpt3-126m": {**_GPT, "position": "rope"},
    "gpt3-175b": {**_GPT, "position": "rope"},
    "gpt3-5b": {**_GPT, "position": "rope"},
    "grok1": {"norms_per_layer": 4},
    "megatron-gpt": {**_GPT, "position": "rope"},
    "nemotron4": {"norm": "layernorm", "position": "rope"},
    "palm": {**_NO_BIAS_LAYERNORM, "parallel_block": True, "position": "rope"},
    "pythia": {**_GPT, "parallel_block": True, "norms_per_layer": 2, "position": "rope"},
    "qwen2": {"qkv_bias": True},
    "qwen2-57b-a14b": {"qkv_bias": True, "shared_expert_gate": True},
    "qwen3": {"qk_norm": True},
}

_COLUMNS = {
    "num_layers": "layers",
    "hidden_size": "hidden",
    "num_heads": "heads",
    "num_kv_heads": "kv_heads",
    "head_dim": "head_dim",
    "v_head_dim": "v_head_dim",
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "qk_nope_head_dim": "qk_nope_head_dim",
    "qk_rope_head_dim": "qk_rope_head_dim",
    "ffn_size": "ffn",
    "vocab_size": "vocab",
    "mtp_layers": "mtp_layers",
}
_EXPERT_COLUMNS = {
    "num_experts": "num_experts",
    "top_k": "top_k",
    "expert_ffn_size": "expert_ffn",
    "shared_expert_ffn_size": "shared_expert_ffn",
    "first_dense_layers": "first_dense_layers",
    "moe_layer_freq": "moe_layer_freq",
}


def family_of(name: str) -> dict[str, Any]:
    """Return the fields that the family with the longest matching prefix has in common."""
    prefixes = [prefix for prefix in FAMILIES if name.lower().startswith(prefix)]
    return FAMILIES[max(prefixes, key=len)] if prefixes else {}


def values_from_dims(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `Model` from columns: see `costmodel.describe.models.model.model_from_dims`."""
    given = {key: value for key, value in fields.items() if not _is_missing(value)}
    name = str(given.get("model", ""))
    columns = _COLUMNS | (_EXPERT_COLUMNS if given.get("num_experts") else {})
    values: dict[str, Any] = {
        field: _whole(given[column]) for field, column in columns.items() if column in given
    }
    gated = _truth(given.get("gated_mlp", True))
    values |= {"name": name, "gated_mlp": gated}
    values["tied_embeddings"] = _truth(given.get("tied_embeddings", False))
    if "attention" in given:
        values["attention"] = str(given["attention"])
    family = family_of(name)
    if not gated and not family:
        family = {**_GPT, "position": "learned"}
    values |= family
    if values.get("position") == "learned":
        values["max_positions"] = _whole(given.get("seq_len", 0))
    return values


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
