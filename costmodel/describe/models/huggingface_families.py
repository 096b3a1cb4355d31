"""How each family's HuggingFace config names what a `Model` needs: one small function a family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from costmodel.describe.models.huggingface_keys import Keys


def common_values(keys: Keys) -> dict[str, Any]:
    """Keys that all families share, some under older names."""
    return {
        "num_layers": keys.need("num_hidden_layers", "n_layer", "n_layers"),
        "hidden_size": keys.need("hidden_size", "n_embd", "n_embed"),
        "num_heads": keys.need("num_attention_heads", "n_head"),
        "vocab_size": keys.need("vocab_size"),
        "tied_embeddings": keys.get("tie_word_embeddings", default=False),
    }


def _grouped(keys: Keys) -> dict[str, Any]:
    """Grouped-query attention with rotary positions and a gated MLP."""
    return {
        "num_kv_heads": keys.get("num_key_value_heads"),
        "head_dim": keys.get("head_dim"),
        "gated_mlp": True,
    }


def _biases(keys: Keys) -> dict[str, Any]:
    """`attention_bias` of the families where it means all four projections."""
    bias = keys.get("attention_bias", default=False)
    return {"qkv_bias": bias, "attention_out_bias": bias}


def _windows(keys: Keys, window: int, kinds: Sequence[str]) -> dict[str, Any]:
    """Turn a list of layer types into "all windowed but every n-th"."""
    full = [number for number, kind in enumerate(kinds, start=1) if kind == "full_attention"]
    if strange := sorted(set(kinds) - {"full_attention", "sliding_attention", "chunked_attention"}):
        raise keys.refuse(f"layer_types: {strange[0]!r} is not supported (full and sliding attention are)")
    if not window or len(full) == len(kinds):
        return {}
    every = full[0] if full else 0
    if full != [number for number in range(1, len(kinds) + 1) if every and number % every == 0]:
        raise keys.refuse("layer_types: only 'every n-th layer has full attention' is supported")
    return {"sliding_window": window, "full_attention_every": every}


def _qwen_windows(keys: Keys) -> dict[str, Any]:
    """Qwen's windows count only where `use_sliding_window` says so."""
    window = keys.get("sliding_window", default=4096)
    first_windowed = keys.get("max_window_layers", default=28)
    kinds = keys.get("layer_types")
    if not keys.get("use_sliding_window", default=False):
        return {}
    if kinds is None:
        layers = keys.need("num_hidden_layers")
        kinds = ["sliding_attention" if i >= first_windowed else "full_attention" for i in range(layers)]
    return _windows(keys, window, kinds)


def _patterned_windows(keys: Keys, window: int, default_every: int) -> dict[str, Any]:
    """Windows given by `layer_types`, or in older files by a repeating pattern."""
    every = keys.get("sliding_window_pattern", "_sliding_window_pattern", default=default_every)
    kinds = keys.get("layer_types")
    if kinds is None:
        layers = keys.need("num_hidden_layers")
        kinds = ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(layers)]
    return _windows(keys, window, kinds)


def _sparse_steps(keys: Keys) -> dict[str, Any]:
    """Which layers of a Qwen MoE have experts."""
    dense, step = keys.get("mlp_only_layers", default=[]), keys.get("decoder_sparse_step", default=1)
    if sorted(dense) != list(range(len(dense))) or (dense and step != 1):
        raise keys.refuse(f"mlp_only_layers {dense}: only leading dense layers are supported")
    return {
        "first_dense_layers": len(dense),
        "moe_layer_freq": step,
        "ffn_size": keys.get("intermediate_size", default=0),
    }


def _llama(keys: Keys) -> dict[str, Any]:
    values = {**_grouped(keys), **_biases(keys), "ffn_size": keys.need("intermediate_size")}
    return {**values, "linear_bias": keys.get("mlp_bias", default=False)}


def _mistral(keys: Keys) -> dict[str, Any]:
    # Absent means the class default of 4,096, null means none.
    window = keys.get("sliding_window", default=0) if "sliding_window" in keys.raw else 4096
    return {**_grouped(keys), "ffn_size": keys.need("intermediate_size"), "sliding_window": window}


def _phi3(keys: Keys) -> dict[str, Any]:
    window = keys.get("sliding_window", default=0)
    return {**_grouped(keys), "ffn_size": keys.need("intermediate_size"), "sliding_window": window}


def _mixtral(keys: Keys) -> dict[str, Any]:
    return {
        **_grouped(keys),
        "sliding_window": keys.get("sliding_window", default=0),
        "num_experts": keys.need("num_local_experts"),
        "top_k": keys.need("num_experts_per_tok"),
        "expert_ffn_size": keys.need("intermediate_size"),
    }


def _qwen2(keys: Keys) -> dict[str, Any]:
    return {
        **_grouped(keys),
        **_qwen_windows(keys),
        "ffn_size": keys.need("intermediate_size"),
        "qkv_bias": True,
    }


def _qwen3(keys: Keys) -> dict[str, Any]:
    values = {**_qwen2(keys), **_biases(keys), "qk_norm": True}
    return {**values, "head_dim": keys.get("head_dim", default=128)}


def _qwen_moe(keys: Keys) -> dict[str, Any]:
    return {
        **_grouped(keys),
        **_qwen_windows(keys),
        **_sparse_steps(keys),
        "num_experts": keys.need("num_experts", "num_local_experts"),
        "top_k": keys.need("num_experts_per_tok"),
        "expert_ffn_size": keys.need("moe_intermediate_size"),
    }


def _qwen2_moe(keys: Keys) -> dict[str, Any]:
    return {
        **_qwen_moe(keys),
        "qkv_bias": keys.get("qkv_bias", default=True),
        "shared_expert_ffn_size": keys.need("shared_expert_intermediate_size"),
        "shared_expert_gate": True,
    }


def _qwen3_moe(keys: Keys) -> dict[str, Any]:
    return {**_qwen_moe(keys), **_biases(keys), "qk_norm": True}


def _deepseek_experts(keys: Keys) -> dict[str, Any]:
    """Leading dense layers, then routed and shared experts of one width."""
    width, freq = keys.need("moe_intermediate_size"), keys.get("moe_layer_freq", default=1)
    if freq != 1:
        raise keys.refuse(f"moe_layer_freq {freq} is not supported (1 is)")
    return {
        "ffn_size": keys.need("intermediate_size"),
        "first_dense_layers": keys.need("first_k_dense_replace"),
        "num_experts": keys.need("n_routed_experts", "num_local_experts"),
        "top_k": keys.need("num_experts_per_tok"),
        "expert_ffn_size": width,
        "shared_expert_ffn_size": keys.get("n_shared_experts", default=0) * width,
    }


def _deepseek_v2(keys: Keys) -> dict[str, Any]:
    # `head_dim` and `num_key_value_heads` are looked at only to be passed over: a re-saved file
    # has the rotary part as `head_dim`, and latent attention has no KV heads.
    keys.get("head_dim", "num_key_value_heads", "qk_head_dim")
    return {
        **_deepseek_experts(keys),
        **_biases(keys),
        "gated_mlp": True,
        "attention": "mla",
        "q_lora_rank": keys.need_or_null("q_lora_rank"),
        "kv_lora_rank": keys.need("kv_lora_rank"),
        "qk_nope_head_dim": keys.need("qk_nope_head_dim"),
        "qk_rope_head_dim": keys.need("qk_rope_head_dim"),
        "v_head_dim": keys.need("v_head_dim"),
    }


def _deepseek_v3(keys: Keys) -> dict[str, Any]:
    prediction_layers = keys.get("num_nextn_predict_layers", "num_mtp_layers", default=0)
    return {**_deepseek_v2(keys), "router_bias": True, "mtp_layers": prediction_layers}


def _glm4_moe(keys: Keys) -> dict[str, Any]:
    return {
        **_grouped(keys),
        **_deepseek_experts(keys),
        "qkv_bias": keys.get("attention_bias", default=False),
        "qk_norm": keys.get("use_qk_norm", default=False),
        "router_bias": True,
        "mtp_layers": keys.get("num_nextn_predict_layers", default=0),
    }


def _gpt_oss(keys: Keys) -> dict[str, Any]:
    return {
        **_grouped(keys),
        **_patterned_windows(keys, keys.need_or_null("sliding_window"), 2),
        "head_dim": keys.get("head_dim", default=64),
        "qkv_bias": keys.get("attention_bias", default=True),
        "attention_out_bias": keys.get("attention_bias", default=True),
        "linear_bias": True,
        "router_bias": True,
        "attention_sinks": True,
        "num_experts": keys.need("num_local_experts"),
        "top_k": keys.need("num_experts_per_tok", "experts_per_token"),
        "expert_ffn_size": keys.need("intermediate_size"),
    }


def _llama4(keys: Keys) -> dict[str, Any]:
    layers, width = keys.need("num_hidden_layers"), keys.need("intermediate_size")
    step, moe_layers = keys.get("interleave_moe_layer_step", default=1), keys.get("moe_layers")
    if moe_layers is not None and list(moe_layers) != list(range(step - 1, layers, step)):
        raise keys.refuse("moe_layers: only every n-th layer (interleave_moe_layer_step) is supported")
    keys.get("no_rope_layers", "no_rope_layer_interval", "use_qk_norm")
    return {
        **_grouped(keys),
        **_biases(keys),
        **_patterned_windows(keys, keys.get("attention_chunk_size", default=8192), 4),
        "ffn_size": keys.need("intermediate_size_mlp"),
        "num_experts": keys.need("num_local_experts"),
        "top_k": keys.need("num_experts_per_tok"),
        "moe_layer_freq": step,
        "expert_ffn_size": width,
        "shared_expert_ffn_size": width,
    }


def _gemma(keys: Keys) -> dict[str, Any]:
    values = {**_llama(keys), "head_dim": keys.get("head_dim", default=256)}
    return {**values, "tied_embeddings": keys.get("tie_word_embeddings", default=True)}


def _gemma2(keys: Keys) -> dict[str, Any]:
    window = keys.get("sliding_window", default=4096)
    return {**_gemma(keys), **_patterned_windows(keys, window, 2), "norms_per_layer": 4}


def _gemma3(keys: Keys) -> dict[str, Any]:
    window = keys.get("sliding_window", default=4096)
    return {**_gemma(keys), **_patterned_windows(keys, window, 6), "norms_per_layer": 4, "qk_norm": True}


def _plain(keys: Keys, width: Any) -> dict[str, Any]:
    """GPT-like: LayerNorm, biases everywhere, two matrices in the MLP of 4 times the width."""
    return {
        "ffn_size": width if width is not None else 4 * keys.need("hidden_size", "n_embd", "n_embed"),
        "gated_mlp": False,
        "norm": "layernorm",
        "qkv_bias": True,
        "attention_out_bias": True,
        "linear_bias": True,
    }


def _gpt2(keys: Keys) -> dict[str, Any]:
    return {
        **_plain(keys, keys.get("n_inner")),
        "tied_embeddings": keys.get("tie_word_embeddings", default=True),
        "position": "learned",
        "max_positions": keys.need("n_positions", "max_position_embeddings"),
    }


def _opt(keys: Keys) -> dict[str, Any]:
    if keys.get("word_embed_proj_dim", default=keys.need("hidden_size")) != keys.need("hidden_size"):
        raise keys.refuse("word_embed_proj_dim other than hidden_size (OPT-350M) is not supported")
    return {
        **_plain(keys, keys.need("ffn_dim")),
        "tied_embeddings": keys.get("tie_word_embeddings", default=True),
        "position": "learned",
        "max_positions": keys.need("max_position_embeddings") + 2,  # the table starts two rows early
    }


def _gpt_neox(keys: Keys) -> dict[str, Any]:
    bias = keys.get("attention_bias", default=True)
    return {
        **_plain(keys, keys.need("intermediate_size")),
        "qkv_bias": bias,
        "attention_out_bias": bias,
        "parallel_block": keys.get("use_parallel_residual", default=True),
        "norms_per_layer": 2,
    }


def _bloom(keys: Keys) -> dict[str, Any]:
    return {
        **_plain(keys, None),
        "tied_embeddings": keys.get("tie_word_embeddings", default=True),
        "position": "alibi",
        "embedding_norm": True,
    }


def _falcon(keys: Keys) -> dict[str, Any]:
    new, parallel = (
        keys.get("new_decoder_architecture", default=False),
        keys.get("parallel_attn", default=True),
    )
    grouped = keys.get("num_kv_heads", "n_head_kv", default=keys.need("num_attention_heads", "n_head"))
    multi_query = keys.get("multi_query", default=True)
    bias = keys.get("bias", default=False)
    two_norms = keys.get("num_ln_in_parallel_attn", default=2 if new else 1) == 2 or not parallel
    return {
        **_plain(keys, keys.get("ffn_hidden_size")),
        "tied_embeddings": keys.get("tie_word_embeddings", default=True),
        "num_kv_heads": grouped if new or not multi_query else 1,
        "qkv_bias": bias,
        "attention_out_bias": bias,
        "linear_bias": bias,
        "parallel_block": parallel,
        "norms_per_layer": 2 if two_norms else 1,
        "position": "alibi" if keys.get("alibi", default=False) else "rope",
    }


READERS: dict[str, Callable[[Keys], dict[str, Any]]] = {
    "bloom": _bloom,
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _deepseek_v3,
    "falcon": _falcon,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma3_text": _gemma3,
    "glm4_moe": _glm4_moe,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "gpt_oss": _gpt_oss,
    "kimi_k2": _deepseek_v3,
    "llama": _llama,
    "llama4": _llama4,
    "llama4_text": _llama4,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "opt": _opt,
    "phi3": _phi3,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
}
