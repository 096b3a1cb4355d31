"""Readers of Llama-like configs: RMSNorm, rotary positions, grouped heads, a gated MLP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from costmodel.describe.models.huggingface_experts import EXPERT_READERS
from costmodel.describe.models.huggingface_gpt import GPT_READERS
from costmodel.describe.models.huggingface_heads import HEADS_READERS
from costmodel.describe.models.huggingface_hybrids import HYBRID_READERS
from costmodel.describe.models.huggingface_keys import Keys
from costmodel.describe.models.huggingface_layers import (
    biases,
    grouped,
    patterned_windows,
    switched_windows,
    windows,
)


def _llama(keys: Keys) -> dict[str, Any]:
    values = {**grouped(keys), **biases(keys), "ffn_size": keys.need("intermediate_size")}
    return {**values, "linear_bias": keys.get("mlp_bias", default=False)}


def _gated(keys: Keys) -> dict[str, Any]:
    """Return Llama without any bias, whatever keys say."""
    return {**grouped(keys), "ffn_size": keys.need("intermediate_size")}


def _mistral(keys: Keys) -> dict[str, Any]:
    # Absent means the class default of 4,096, null means none.
    window = keys.get("sliding_window", default=0) if "sliding_window" in keys.raw else 4096
    return {**_gated(keys), "sliding_window": window}


def _optional_window(keys: Keys) -> dict[str, Any]:
    """Return Phi 3 and 4 and Ministral 3, whose window is none unless the file has one."""
    kinds = keys.get("layer_types")
    window = keys.get("sliding_window", default=0)
    if kinds is not None:
        return {**_gated(keys), **windows(keys, window, kinds)}
    return {**_gated(keys), "sliding_window": window}


def _qwen2(keys: Keys) -> dict[str, Any]:
    return {**_gated(keys), **switched_windows(keys), "qkv_bias": True}


def _qwen3(keys: Keys) -> dict[str, Any]:
    values = {**_qwen2(keys), **biases(keys), "qk_norm": True}
    return {**values, "head_dim": keys.get("head_dim", default=128)}


def _smollm3(keys: Keys) -> dict[str, Any]:
    """Return SmolLM3; layers without rotary positions cost the same to four digits."""
    keys.get("no_rope_layers", "no_rope_layer_interval")
    return {
        **_llama(keys),
        **switched_windows(keys),
        "tied_embeddings": keys.get("tie_word_embeddings", default=True),
    }


def _seed_oss(keys: Keys) -> dict[str, Any]:
    return {
        **_llama(keys),
        "qkv_bias": keys.get("attention_bias", default=True),
        "attention_out_bias": keys.get("attention_out_bias", default=False),
    }


def _ernie4_5(keys: Keys) -> dict[str, Any]:
    bias = keys.get("use_bias", default=False)
    return {
        **_gated(keys),
        "qkv_bias": bias,
        "attention_out_bias": bias,
        "linear_bias": bias,
        "tied_embeddings": keys.get("tie_word_embeddings", default=True),
    }


def _glm(keys: Keys) -> dict[str, Any]:
    return {
        **_gated(keys),
        "head_dim": keys.get("head_dim", default=128),
        "qkv_bias": keys.get("attention_bias", default=True),
    }


def _glm4(keys: Keys) -> dict[str, Any]:
    return {**_glm(keys), "norms_per_layer": 4}


def _exaone4(keys: Keys) -> dict[str, Any]:
    window = keys.get("sliding_window", default=0 if "sliding_window" in keys.raw else 4096)
    return {**_gated(keys), **patterned_windows(keys, window, 4), "qk_norm": True}


def _internlm3(keys: Keys) -> dict[str, Any]:
    bias = keys.get("bias", "mlp_bias", default=False)
    return {
        **_gated(keys),
        "qkv_bias": keys.get("qkv_bias", "attention_bias", default=False),
        "attention_out_bias": keys.get("bias", "attention_bias", default=False),
        "linear_bias": bias,
    }


def _granite_swa(keys: Keys) -> dict[str, Any]:
    """Return Granite with windows and sinks; the first of every four layers is full."""
    keys.get("layer_rope_theta")
    window = keys.get("sliding_window", default=128)
    values = {**_llama(keys), **patterned_windows(keys, window, 4, first=1), "attention_sinks": True}
    return {**values, "tied_embeddings": keys.get("tie_word_embeddings", default=True)}


def _helium(keys: Keys) -> dict[str, Any]:
    return {**_llama(keys), "attention_out_bias": False}


def _hyperclovax(keys: Keys) -> dict[str, Any]:
    return {**_llama(keys), "norms_per_layer": 4 if keys.get("use_post_norm", default=True) else 2}


def _cwm(keys: Keys) -> dict[str, Any]:
    window = keys.get("sliding_window", default=8192)
    return {**_gated(keys), **patterned_windows(keys, window, 4, first=1)}


def _hunyuan_dense(keys: Keys) -> dict[str, Any]:
    return {**_gated(keys), **biases(keys), "qk_norm": keys.get("use_qk_norm", default=True)}


def _apertus(keys: Keys) -> dict[str, Any]:
    """Return Apertus: xIELU in an MLP of two matrices."""
    return {**_gated(keys), **biases(keys), "gated_mlp": False, "activation_params": 2, "qk_norm": True}


def _arcee(keys: Keys) -> dict[str, Any]:
    """Return AFM: squared ReLU in an MLP of two matrices."""
    return {**_llama(keys), "gated_mlp": False}


def _olmo2(keys: Keys) -> dict[str, Any]:
    """Return OLMo 2: norms behind attention and MLP, and over all heads of queries and of keys."""
    return {**_gated(keys), **biases(keys), "qk_norm": True, "qk_norm_all_heads": True}


def _olmo3(keys: Keys) -> dict[str, Any]:
    return {**_olmo2(keys), **patterned_windows(keys, keys.get("sliding_window", default=4096), 4)}


def _gemma_tied(keys: Keys) -> dict[str, Any]:
    values = {**_llama(keys), "head_dim": keys.get("head_dim", default=256)}
    return {**values, "tied_embeddings": keys.get("tie_word_embeddings", default=True)}


def _gemma2(keys: Keys) -> dict[str, Any]:
    window = keys.get("sliding_window", default=4096)
    return {**_gemma_tied(keys), **patterned_windows(keys, window, 2), "norms_per_layer": 4}


def _gemma3(keys: Keys) -> dict[str, Any]:
    window = keys.get("sliding_window", default=4096)
    values = {**_gemma_tied(keys), **patterned_windows(keys, window, 6)}
    return {**values, "norms_per_layer": 4, "qk_norm": True}


def _vaultgemma(keys: Keys) -> dict[str, Any]:
    window, kinds = keys.get("sliding_window", default=4096), keys.get("layer_types")
    return {**_gemma_tied(keys), **({} if kinds is None else windows(keys, window, kinds))}


def _internlm2(keys: Keys) -> dict[str, Any]:
    bias = keys.get("bias", default=False)
    return {**_gated(keys), "qkv_bias": bias, "attention_out_bias": bias}


def _baichuan(keys: Keys) -> dict[str, Any]:
    """Return Baichuan 1 and 2; the 13B (width 5,120) has ALiBi, the 7B rotates."""
    return {**_gated(keys), "position": "alibi" if keys.need("hidden_size") == 5120 else "rope"}


def _qwen(keys: Keys) -> dict[str, Any]:
    """Return the first Qwen: `intermediate_size` is that of gate and up projection together."""
    keys.get("kv_channels", "no_bias")
    return {
        "num_kv_heads": None,
        "gated_mlp": True,
        "ffn_size": keys.need("intermediate_size") // 2,
        "qkv_bias": True,
    }


def _chatglm(keys: Keys) -> dict[str, Any]:
    """Return ChatGLM 2 and 3 and GLM-4-9B as remote code."""
    groups = keys.get("multi_query_group_num", default=1)
    bias = keys.get("add_bias_linear", default=False)
    return {
        "num_kv_heads": groups if keys.get("multi_query_attention", default=False) else None,
        "head_dim": keys.get("kv_channels"),
        "gated_mlp": True,
        "ffn_size": keys.need("ffn_hidden_size"),
        "qkv_bias": keys.get("add_qkv_bias", default=False) or bias,
        "attention_out_bias": bias,
        "linear_bias": bias,
        "norm": "rmsnorm" if keys.get("rmsnorm", default=True) else "layernorm",
    }


def _minicpm(keys: Keys) -> dict[str, Any]:
    if keys.get("num_experts", default=0):
        raise keys.refuse("num_experts: MiniCPM-MoE is not supported")
    if sparse := keys.get("sparse_config"):
        raise keys.refuse(f"sparse_config: sparse attention ({len(sparse)} settings) cannot be priced yet")
    keys.get("dim_model_base", "mup_denominator")
    return {**_llama(keys), "tied_embeddings": keys.get("tie_word_embeddings", default=True)}


def _minicpm3(keys: Keys) -> dict[str, Any]:
    from costmodel.describe.models.huggingface_experts import latent

    keys.get("dim_model_base", "mup_denominator")
    values = {**latent(keys), "ffn_size": keys.need("intermediate_size")}
    return {**values, "tied_embeddings": keys.get("tie_word_embeddings", default=True)}


def _mimo(keys: Keys) -> dict[str, Any]:
    """Return MiMo-7B: Qwen2 with prediction layers."""
    return {**_qwen2(keys), "mtp_layers": keys.get("num_nextn_predict_layers", default=0)}


def _internlm(keys: Keys) -> dict[str, Any]:
    """Return the first InternLM: Llama with biases of all four projections."""
    bias = keys.get("bias", default=True)
    return {**_gated(keys), "qkv_bias": bias, "attention_out_bias": bias}


def _orion(keys: Keys) -> dict[str, Any]:
    """Return Orion: Llama with LayerNorm."""
    return {**_gated(keys), **biases(keys), "norm": "layernorm"}


RENAMED: dict[str, dict[str, str]] = {
    "exaone": {"num_layers": "num_hidden_layers"},
    "chatglm": {"num_layers": "num_hidden_layers", "padded_vocab_size": "vocab_size"},
    "dbrx": {"d_model": "hidden_size", "n_heads": "num_attention_heads", "n_layers": "num_hidden_layers"},
    "gpt_neo": {"num_layers": "num_hidden_layers", "num_heads": "num_attention_heads"},
    "mpt": {"d_model": "hidden_size", "n_heads": "num_attention_heads", "n_layers": "num_hidden_layers"},
}
"""Names of their own that some types have for what all have, by type."""

_LLAMAS = ("Yi", "yi", "aquila", "code_llama", "skywork", "xverse")
"""Llama by another name."""

READERS: dict[str, Callable[[Keys], dict[str, Any]]] = {
    **GPT_READERS,
    **EXPERT_READERS,
    **HYBRID_READERS,
    **HEADS_READERS,
    "apertus": _apertus,
    "arcee": _arcee,
    "baichuan": _baichuan,
    "chatglm": _chatglm,
    "cwm": _cwm,
    "ernie4_5": _ernie4_5,
    "emu3_text_model": _gated,
    "exaone": _gated,
    "exaone4": _exaone4,
    "gemma": _gemma_tied,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma3_text": _gemma3,
    "glm": _glm,
    "glm4": _glm4,
    "glm4v_text": _glm4,
    "granite": _llama,
    "granite_swa": _granite_swa,
    "helium": _helium,
    "hunyuan_v1_dense": _hunyuan_dense,
    "hyperclovax": _hyperclovax,
    "internlm": _internlm,
    "internlm2": _internlm2,
    "internlm3": _internlm3,
    "iquestcoder": _llama,
    "llama": _llama,
    "mimo": _mimo,
    "minicpm": _minicpm,
    "minicpm3": _minicpm3,
    "ministral": _mistral,
    "ministral3": _optional_window,
    "mistral": _mistral,
    "olmo2": _olmo2,
    "olmo3": _olmo3,
    "orion": _orion,
    "phi3": _optional_window,
    "qwen": _qwen,
    "qwen2": _qwen2,
    "qwen2_5_vl_text": _qwen2,
    "qwen2_vl_text": _qwen2,
    "qwen3": _qwen3,
    "qwen3_vl_text": _qwen3,
    "seed_oss": _seed_oss,
    "smollm3": _smollm3,
    "vaultgemma": _vaultgemma,
    "qwen2_5_omni_text": _qwen2,
    **dict.fromkeys(_LLAMAS, _llama),
}
