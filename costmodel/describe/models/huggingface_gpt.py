"""Readers of GPT-like configs: LayerNorm, mostly biases, learned or rotary positions or ALiBi."""

from __future__ import annotations

from typing import Any

from costmodel.describe.models.huggingface_keys import Keys
from costmodel.describe.models.huggingface_layers import (
    biases,
    grouped,
    patterned_windows,
    plain,
    windows,
)


def _no_biases(keys: Keys, width: Any) -> dict[str, Any]:
    """Return a plain MLP and LayerNorm, with biases nowhere but in the norms."""
    return {**plain(keys, width), "qkv_bias": False, "attention_out_bias": False, "linear_bias": False}


def _gpt2(keys: Keys) -> dict[str, Any]:
    return {
        **plain(keys, keys.get("n_inner")),
        "tied_embeddings": keys.get("tie_word_embeddings", default=True),
        "position": "learned",
        "max_positions": keys.need("n_positions", "max_position_embeddings"),
    }


def _gpt_bigcode(keys: Keys) -> dict[str, Any]:
    """Return StarCoder's first generation: GPT-2 with one head of keys and values."""
    keys.get("num_key_value_heads")
    return {**_gpt2(keys), "num_kv_heads": 1 if keys.get("multi_query", default=True) else None}


def _gpt_neo(keys: Keys) -> dict[str, Any]:
    kinds = keys.get("attention_layers")
    if kinds is None:
        kinds = [
            kind for types, times in keys.need("attention_types") for _ in range(times) for kind in types
        ]
    keys.get("attention_types")
    return {
        **plain(keys, keys.get("intermediate_size")),
        **windows(keys, keys.get("window_size", default=256), kinds),
        "qkv_bias": False,
        "tied_embeddings": keys.get("tie_word_embeddings", default=True),
        "position": "learned",
        "max_positions": keys.need("max_position_embeddings"),
    }


def _gptj(keys: Keys) -> dict[str, Any]:
    """Return GPT-J and CodeGen: one norm for attention and MLP, biases in the MLP and the head alone."""
    return {
        **plain(keys, keys.get("n_inner")),
        "qkv_bias": False,
        "attention_out_bias": False,
        "parallel_block": True,
        "head_bias": True,
    }


def _opt(keys: Keys) -> dict[str, Any]:
    if keys.get("word_embed_proj_dim", default=keys.need("hidden_size")) != keys.need("hidden_size"):
        raise keys.refuse("word_embed_proj_dim other than hidden_size (OPT-350M) is not supported")
    if not keys.get("enable_bias", default=True) or not keys.get(
        "layer_norm_elementwise_affine", default=True
    ):
        raise keys.refuse("enable_bias and layer_norm_elementwise_affine: only true is supported")
    return {
        **plain(keys, keys.need("ffn_dim")),
        "tied_embeddings": keys.get("tie_word_embeddings", default=True),
        "position": "learned",
        "max_positions": keys.need("max_position_embeddings") + 2,  # the table starts two rows early
    }


def _biogpt(keys: Keys) -> dict[str, Any]:
    return {
        **plain(keys, keys.need("intermediate_size")),
        "tied_embeddings": keys.get("tie_word_embeddings", default=True),
        "position": "learned",
        "max_positions": keys.need("max_position_embeddings") + 2,  # as OPT's
    }


def _gpt_neox(keys: Keys) -> dict[str, Any]:
    return {
        **plain(keys, keys.need("intermediate_size")),
        **biases(keys, default=True),
        "parallel_block": keys.get("use_parallel_residual", default=True),
        "norms_per_layer": 2,
    }


def _bloom(keys: Keys) -> dict[str, Any]:
    return {
        **plain(keys, None),
        "tied_embeddings": keys.get("tie_word_embeddings", default=True),
        "position": "alibi",
        "embedding_norm": True,
    }


def _mpt(keys: Keys) -> dict[str, Any]:
    """Return MPT; its attention settings are a mapping of their own."""
    attention = keys.get("attn_config", default={})
    if attention.get("attn_type", "multihead_attention") != "multihead_attention" or attention.get("qk_ln"):
        raise keys.refuse("attn_config: only multihead_attention without qk_ln is supported")
    if not keys.get("no_bias", default=True):
        raise keys.refuse("no_bias: false is not supported")
    keys.get("learned_pos_emb", "norm_type", "embedding_fraction")
    alibi = attention.get("alibi", True)
    return {
        **_no_biases(keys, keys.get("expansion_ratio", default=4) * keys.need("hidden_size")),
        "norm_bias": False,
        "tied_embeddings": keys.get("tie_word_embeddings", default=True),
        "position": "alibi" if alibi else "learned",
        "max_positions": 0 if alibi else keys.need("max_seq_len"),
    }


def _falcon(keys: Keys) -> dict[str, Any]:
    new, parallel = (
        keys.get("new_decoder_architecture", default=False),
        keys.get("parallel_attn", default=True),
    )
    kv_heads = keys.get("num_kv_heads", "n_head_kv", default=keys.need("num_attention_heads", "n_head"))
    multi_query = keys.get("multi_query", default=True)
    bias = keys.get("bias", default=False)
    two_norms = keys.get("num_ln_in_parallel_attn", default=2 if new else 1) == 2 or not parallel
    return {
        **plain(keys, keys.get("ffn_hidden_size")),
        "tied_embeddings": keys.get("tie_word_embeddings", default=True),
        "num_kv_heads": kv_heads if new or not multi_query else 1,
        "qkv_bias": bias,
        "attention_out_bias": bias,
        "linear_bias": bias,
        "parallel_block": parallel,
        "norms_per_layer": 2 if two_norms else 1,
        "position": "alibi" if keys.get("alibi", default=False) else "rope",
    }


def _phi(keys: Keys) -> dict[str, Any]:
    """Return Phi 1 and 2: one norm for attention and MLP, a head with a bias."""
    return {
        **plain(keys, keys.need("intermediate_size")),
        "num_kv_heads": keys.get("num_key_value_heads"),
        "parallel_block": True,
        "head_bias": True,
        "qk_norm": keys.get("qk_layernorm", default=False),
    }


def _persimmon(keys: Keys) -> dict[str, Any]:
    return {
        **plain(keys, keys.need("intermediate_size")),
        "qk_norm": keys.get("qk_layernorm", default=True),
    }


def _starcoder2(keys: Keys) -> dict[str, Any]:
    bias = keys.get("use_bias", default=True)
    return {
        **plain(keys, keys.need("intermediate_size")),
        "num_kv_heads": keys.get("num_key_value_heads"),
        "head_dim": keys.get("head_dim"),
        "qkv_bias": bias,
        "attention_out_bias": bias,
        "linear_bias": bias,
        "sliding_window": keys.get("sliding_window", default=0),
        "tied_embeddings": keys.get("tie_word_embeddings", default=True),
    }


def _nemotron(keys: Keys) -> dict[str, Any]:
    """Return Nemotron 3 and 4 (and Minitron): squared ReLU, grouped heads, LayerNorm."""
    return {
        **_no_biases(keys, keys.need("intermediate_size")),
        **biases(keys),
        "linear_bias": keys.get("mlp_bias", default=False),
        "num_kv_heads": keys.get("num_key_value_heads"),
        "head_dim": keys.get("head_dim"),
    }


def _jais2(keys: Keys) -> dict[str, Any]:
    return {
        **_nemotron(keys),
        **biases(keys, default=True),
        "linear_bias": keys.get("mlp_bias", default=True),
    }


def _stablelm(keys: Keys) -> dict[str, Any]:
    parallel = keys.get("use_parallel_residual", default=False)
    if keys.get("qk_layernorm", default=False):
        # Each head has weights of its own, without biases, beside layer norms with biases.
        raise keys.refuse("qk_layernorm of StableLM cannot be expressed yet")
    return {
        **grouped(keys),
        "ffn_size": keys.need("intermediate_size"),
        "norm": "layernorm",
        "qkv_bias": keys.get("use_qkv_bias", default=False),
        "parallel_block": parallel,
    }


def _cohere(keys: Keys) -> dict[str, Any]:
    """Return Command-R: one norm without bias, attention and MLP side by side."""
    return {
        **grouped(keys),
        **biases(keys),
        "ffn_size": keys.need("intermediate_size"),
        "norm": "layernorm",
        "norm_bias": False,
        "parallel_block": True,
        "qk_norm": keys.get("use_qk_norm", default=False),
        "qk_norm_all_heads": keys.get("use_qk_norm", default=False),
        "tied_embeddings": keys.get("tie_word_embeddings", default=True),
    }


def _cohere2(keys: Keys) -> dict[str, Any]:
    window = keys.get("sliding_window", default=4096)
    return {**_cohere(keys), **patterned_windows(keys, window, 4)}


def _olmo(keys: Keys) -> dict[str, Any]:
    """Return OLMo 1, whose layer norms have no parameters."""
    return {
        **grouped(keys),
        **biases(keys),
        "ffn_size": keys.need("intermediate_size"),
        "norm": "layernorm",
        "norm_bias": False,
        "norm_scale": False,
    }


GPT_READERS = {
    "biogpt": _biogpt,
    "bloom": _bloom,
    "codegen": _gptj,
    "cohere": _cohere,
    "cohere2": _cohere2,
    "falcon": _falcon,
    "gpt2": _gpt2,
    "gpt_bigcode": _gpt_bigcode,
    "gpt_neo": _gpt_neo,
    "gpt_neox": _gpt_neox,
    "gptj": _gptj,
    "jais2": _jais2,
    "mpt": _mpt,
    "nemotron": _nemotron,
    "olmo": _olmo,
    "opt": _opt,
    "persimmon": _persimmon,
    "phi": _phi,
    "stablelm": _stablelm,
    "starcoder2": _starcoder2,
}
