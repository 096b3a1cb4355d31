"""What MaxText's decoder blocks are, as fields of a model: one function a block.

Keys of AI-Hypercomputer/maxtext (``src/maxtext/configs/base.yml`` and ``configs/models/*.yml``; blocks in
``src/maxtext/models/*.py``). Every function gets the file and the values that all blocks have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from costmodel.interop.framework import FrameworkConfigError

Raw = Mapping[str, Any]
Values = dict[str, Any]


def whole(raw: Raw, key: str, default: int | None = None) -> int:
    """Return a whole number.

    Raises
    ------
    FrameworkConfigError
        If it is missing and has no default, or is none.
    """
    value = raw.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise FrameworkConfigError(f"{key}: missing, or no whole number")
    return value


def _plain(raw: Raw, values: Values) -> Values:
    """Return nothing more: RMSNorm, grouped attention without biases, an MLP by `mlp_activations`."""
    del raw, values
    return {}


def _qwen3(raw: Raw, values: Values) -> Values:
    del values
    return {"qk_norm": bool(raw.get("use_qk_norm", True))}


def _gemma2(raw: Raw, values: Values) -> Values:
    """Return Gemma 2, of which a layer of MaxText is two: a windowed one and a full one."""
    window = whole(raw, "sliding_window_size", 4096)
    return {
        "num_layers": 2 * values["num_layers"],
        "norms_per_layer": 4,
        "sliding_window": window,
        "full_attention_every": 2,
    }


def _gemma3(raw: Raw, values: Values) -> Values:
    del values
    window = whole(raw, "sliding_window_size", 1024)
    return {"norms_per_layer": 4, "qk_norm": True, "sliding_window": window, "full_attention_every": 6}


def _olmo3(raw: Raw, values: Values) -> Values:
    del values
    return {
        "qk_norm": True,
        "qk_norm_all_heads": True,
        "sliding_window": whole(raw, "sliding_window_size", 4096),
        "full_attention_every": whole(raw, "inhomogeneous_layer_cycle_interval", 4),
    }


def _gpt3(raw: Raw, values: Values) -> Values:
    """Return GPT-3 as MLPerf trains it: a learned table, LayerNorm and biases."""
    del values
    return {
        "position": "learned",
        "max_positions": whole(raw, "trainable_position_size"),
        "norm": "layernorm",
        "qkv_bias": True,
        "attention_out_bias": True,
        "linear_bias": True,
    }


def _gpt_oss(raw: Raw, values: Values) -> Values:
    """Return gpt-oss: windows and sinks in every second layer, clamped experts with biases."""
    del values
    bias = bool(raw.get("attention_bias", True))
    return {
        "sliding_window": whole(raw, "sliding_window_size", 128),
        "full_attention_every": whole(raw, "inhomogeneous_layer_cycle_interval", 2),
        "attention_sinks": bool(raw.get("attention_sink", True)),
        "activation_clamp": True,
        "rope_concentration": True,
        "qkv_bias": bias,
        "attention_out_bias": bias,
        "linear_bias": bool(raw.get("mlp_bias", True)),
        "router_bias": bool(raw.get("routed_bias", True)),
        "ffn_size": 0,
    }


def _llama4(raw: Raw, values: Values) -> Values:
    """Return Llama 4: experts with a shared one in some layers, attention in chunks but for every n-th layer."""
    step = whole(raw, "interleave_moe_layer_step", 1)
    return {
        "sliding_window": whole(raw, "chunk_attn_window_size", 8192),
        "full_attention_every": whole(raw, "nope_layer_interval", 4),
        "moe_layer_freq": step,
        "shared_expert_ffn_size": whole(raw, "shared_experts", 1) * values["expert_ffn_size"],
        "ffn_size": values["ffn_size"] if step > 1 else 0,
    }


def _deepseek(raw: Raw, values: Values) -> Values:
    """Return DeepSeek: latent attention, leading dense layers, shared experts, keys that an indexer may choose."""
    found: Values = {
        "attention": "mla",
        "num_kv_heads": None,
        "head_dim": None,
        "q_lora_rank": whole(raw, "q_lora_rank", 0),
        "kv_lora_rank": whole(raw, "kv_lora_rank", 512),
        "qk_nope_head_dim": whole(raw, "qk_nope_head_dim", 128),
        "qk_rope_head_dim": whole(raw, "qk_rope_head_dim", 64),
        "v_head_dim": whole(raw, "v_head_dim", 128),
        "first_dense_layers": whole(raw, "first_num_dense_layers", 0),
        "shared_expert_ffn_size": whole(raw, "shared_experts", 0) * values.get("expert_ffn_size", 0),
        "router_bias": bool(raw.get("routed_bias", False)),
        "mtp_layers": whole(raw, "mtp_num_layers", 0),
    }
    groups, used = whole(raw, "n_routing_groups", -1), whole(raw, "topk_routing_group", -1)
    if 1 <= used < groups:
        found |= {"expert_groups": groups, "groups_per_token": used}
    if raw.get("use_indexer"):
        sizes = {
            "kind": "indexed",
            "heads": whole(raw, "indexer_n_heads"),
            "head_dim": whole(raw, "indexer_head_dim"),
            "top_k": whole(raw, "indexer_topk"),
        }
        found |= {"attention_pattern": "i" * values["num_layers"], "mixers": {"i": sizes}}
    return found


def _qwen3_next(raw: Raw, values: Values) -> Values:
    """Return Qwen3-Next: gated delta nets with one gated attention a cycle, experts and a gated shared one everywhere."""
    every = whole(raw, "inhomogeneous_layer_cycle_interval", 4)
    layers = values["num_layers"]
    sizes = {
        "kind": "gated-delta",
        "key_heads": whole(raw, "gdn_num_key_heads", 16),
        "value_heads": whole(raw, "gdn_num_value_heads", 32),
        "key_head_dim": whole(raw, "gdn_key_head_dim", 128),
        "value_head_dim": whole(raw, "gdn_value_head_dim", 128),
        "conv_kernel": whole(raw, "gdn_conv_kernel_dim", 4),
    }
    return {
        "attention_pattern": "".join("f" if (i + 1) % every == 0 else "d" for i in range(layers)),
        "mixers": {"d": sizes},
        "attention_gate": True,
        "qk_norm": True,
        "ffn_size": 0,
        "shared_expert_ffn_size": values["expert_ffn_size"],
        "shared_expert_gate": True,
    }


BLOCKS: dict[str, Callable[[Raw, Values], Values]] = {
    "default": _plain,
    "deepseek": _deepseek,
    "gemma": _plain,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gpt3": _gpt3,
    "gpt_oss": _gpt_oss,
    "llama2": _plain,
    "llama4": _llama4,
    "mistral": _plain,
    "mixtral": _plain,
    "olmo3": _olmo3,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3,
    "qwen3_next": _qwen3_next,
}
"""Every block with a price, by MaxText's name of it."""
