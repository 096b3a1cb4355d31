"""Readers of configs with experts: which layers have them, how many, how wide, what is shared.

The bias that corrects a router's scores counts as a parameter where the family's report counts it
(DeepSeek-V3) or the optimizer steps it (ERNIE 4.5), and not where it is a buffer in transformers.
"""

from __future__ import annotations

from typing import Any

from costmodel.base.errors import ModelConfigError, shown
from costmodel.describe.models.huggingface_keys import Keys
from costmodel.describe.models.huggingface_layers import (
    biases,
    expert_layers,
    grouped,
    leading_dense,
    patterned_windows,
    switched_windows,
    windows,
)


def _mixtral(keys: Keys) -> dict[str, Any]:
    return {
        **grouped(keys),
        "sliding_window": keys.get("sliding_window", default=0),
        "num_experts": keys.need("num_local_experts"),
        "top_k": keys.need("num_experts_per_tok"),
        "expert_ffn_size": keys.need("intermediate_size"),
    }


def _phimoe(keys: Keys) -> dict[str, Any]:
    """Return Phi-3.5-MoE: Mixtral with LayerNorm and biases."""
    return {
        **_mixtral(keys),
        **biases(keys),
        "norm": "layernorm",
        "head_bias": keys.get("lm_head_bias", default=False),
    }


def _granitemoe(keys: Keys) -> dict[str, Any]:
    return {**_mixtral(keys), **biases(keys)}


def _granitemoeshared(keys: Keys) -> dict[str, Any]:
    return {**_granitemoe(keys), "shared_expert_ffn_size": keys.get("shared_intermediate_size", default=0)}


def _granitemoe_swa(keys: Keys) -> dict[str, Any]:
    """Return Granite's experts with windows and sinks; the first of every four layers is full."""
    keys.get("layer_rope_theta")
    window = keys.get("sliding_window", default=128)
    return {
        **_granitemoeshared(keys),
        **patterned_windows(keys, window, 4, first=1),
        "attention_sinks": True,
    }


def _aria(keys: Keys) -> dict[str, Any]:
    """Return Aria's language model: fine-grained experts and shared ones of the same width."""
    width = keys.need("intermediate_size", "moe_intermediate_size")
    return {
        **grouped(keys),
        **biases(keys),
        "num_experts": keys.need("moe_num_experts"),
        "top_k": keys.need("moe_topk"),
        "expert_ffn_size": width,
        "shared_expert_ffn_size": width * keys.get("moe_num_shared_experts", default=0),
    }


def _afmoe(keys: Keys) -> dict[str, Any]:
    """Return Arcee's Trinity: gated attention, windows, four norms, a learned bias of each expert."""
    every = keys.get("global_attn_every_n_layers", default=4)
    width = keys.need("moe_intermediate_size")
    return {
        **grouped(keys),
        **patterned_windows(keys, keys.get("sliding_window", default=1024), every),
        "attention_gate": True,
        "qk_norm": True,
        "norms_per_layer": 4,
        "first_dense_layers": keys.get("num_dense_layers", default=1),
        "ffn_size": keys.get("intermediate_size", default=0),
        "num_experts": keys.need("num_experts"),
        "top_k": keys.need("num_experts_per_tok"),
        "expert_ffn_size": width,
        "shared_expert_ffn_size": width * keys.get("num_shared_experts", default=0),
        "router_bias": True,
    }


def _hy_v3(keys: Keys) -> dict[str, Any]:
    """Return Hunyuan 3: normed heads, leading dense layers, one shared expert."""
    keys.get("first_k_dense_replace")
    return {**grouped(keys), **_routed(keys, 1), **biases(keys), "qk_norm": True}


def _cohere2_moe(keys: Keys) -> dict[str, Any]:
    """Return Command A with experts: attention beside them, leading dense layers with windows of their own."""
    layers, width = keys.need("num_hidden_layers"), keys.need("intermediate_size")
    leading = keys.get("first_k_dense_replace", default=0)
    listed = keys.get("mlp_layer_types", default=["dense"] * leading + ["sparse"] * (layers - leading))
    early = keys.get("prefix_dense_sliding_window_pattern", default=1)
    every = keys.get("sliding_window_pattern", default=4)
    full = [(i + 1) % early == 0 for i in range(leading)]
    full += [(i + 1) % every == 0 for i in range(layers - leading)]
    own = [("full" if whole else "sliding") + "_attention" for whole in full]
    named = "rmsnorm" if keys.get("rms_norm_eps") is not None else "layernorm"
    return {
        **grouped(keys),
        **biases(keys),
        **windows(keys, keys.get("sliding_window", default=4096), keys.get("layer_types", default=own)),
        **expert_layers(keys, [kind == "sparse" for kind in listed]),
        "norm": named,
        "norm_bias": False,
        "parallel_block": True,
        "ffn_size": keys.get("prefix_dense_intermediate_size", default=width) if "dense" in listed else 0,
        "num_experts": keys.need("num_experts"),
        "top_k": keys.need("num_experts_per_tok"),
        "expert_ffn_size": width,
        "shared_expert_ffn_size": width * keys.get("num_shared_experts", default=0),
        "tied_embeddings": keys.get("tie_word_embeddings", default=True),
    }


def _minimax_m2(keys: Keys) -> dict[str, Any]:
    """Return MiniMax-M2: a norm over all query heads and one over all key heads."""
    normed = keys.get("use_qk_norm", default=True)
    if keys.get("qk_norm_type", default="per_layer") != "per_layer":
        raise keys.refuse("qk_norm_type: only per_layer is supported")
    keys.get(
        "mtp_transformer_layers",
        "use_mtp",
        "use_routing_bias",
        "layernorm_full_attention_beta",
        "layernorm_mlp_beta",
    )
    if shared := keys.get("shared_intermediate_size", default=0):
        raise keys.refuse(f"shared_intermediate_size: {shared} is not supported")
    if any(kind != 1 for kind in keys.get("attn_type_list", default=[])):
        raise keys.refuse("attn_type_list: only softmax attention (1) is supported")
    return {
        **_mixtral(keys),
        "qk_norm": normed,
        "qk_norm_all_heads": normed,
        "mtp_layers": keys.get("num_mtp_modules", default=0),
    }


def _dbrx(keys: Keys) -> dict[str, Any]:
    """Return DBRX, which keeps attention and experts in mappings of their own."""
    attention, ffn = keys.need("attn_config"), keys.need("ffn_config")
    for name, table, wanted in (
        ("attn_config", attention, ("kv_n_heads",)),
        ("ffn_config", ffn, ("ffn_hidden_size", "moe_num_experts", "moe_top_k")),
    ):
        for key in wanted:
            if key not in table:
                raise keys.refuse(f"{name}: missing {key!r}")
    return {
        "num_kv_heads": attention["kv_n_heads"],
        "gated_mlp": True,
        "norm": "layernorm",
        "norm_bias": False,
        "num_experts": ffn["moe_num_experts"],
        "top_k": ffn["moe_top_k"],
        "expert_ffn_size": ffn["ffn_hidden_size"],
    }


def sparse_step(keys: Keys) -> int:
    """Return every how many layers one has experts.

    Raises
    ------
    ModelConfigError
        If it is no whole number from 1.
    """
    step = keys.get("decoder_sparse_step", default=1)
    if type(step) is not int or step < 1:
        raise ModelConfigError(f"decoder_sparse_step: expected a whole number >= 1, got {shown(step)}")
    return step


def _sparse_steps(keys: Keys) -> dict[str, Any]:
    """Which layers of a Qwen MoE have experts."""
    dense, step = keys.get("mlp_only_layers", default=[]), sparse_step(keys)
    layers = keys.need("num_hidden_layers")
    kinds = [i not in dense and (i + 1) % step == 0 for i in range(layers)]
    return {**expert_layers(keys, kinds), "ffn_size": keys.get("intermediate_size", default=0)}


def _qwen_moe(keys: Keys) -> dict[str, Any]:
    return {
        **grouped(keys),
        **switched_windows(keys),
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
    return {**_qwen_moe(keys), **biases(keys), "qk_norm": True}


def _flint(keys: Keys) -> dict[str, Any]:
    """Return Flint: Qwen3's experts and a shared one, sinks, windows by layer."""
    keys.get("use_sliding_window")
    return {
        **_qwen3_moe(keys),
        **windows(keys, keys.need("sliding_window"), keys.need("layer_types")),
        "attention_sinks": True,
        "shared_expert_ffn_size": keys.get("shared_expert_intermediate_size", default=0),
    }


def _mellum(keys: Keys) -> dict[str, Any]:
    window = keys.get("sliding_window", default=1024)
    kinds = keys.get("layer_types")
    keys.get("mtp_layer_types", "mtp_mlp_layer_types")
    return {
        **grouped(keys),
        **biases(keys),
        **({} if kinds is None else windows(keys, window, kinds)),
        **leading_dense(keys, 0),
        "ffn_size": keys.get("intermediate_size", default=0),
        "qk_norm": True,
        "num_experts": keys.need("num_local_experts", "num_experts"),
        "top_k": keys.need("num_experts_per_tok"),
        "expert_ffn_size": keys.need("moe_intermediate_size"),
        "mtp_layers": keys.get("num_nextn_predict_layers", "num_mtp_layers", default=0),
    }


def _kolibri1(keys: Keys) -> dict[str, Any]:
    return {
        **grouped(keys),
        **windows(keys, keys.need("sliding_window"), keys.need("layer_types")),
        "qk_norm": True,
        "norms_per_layer": 4,
        "num_experts": keys.need("num_local_experts", "num_experts"),
        "top_k": keys.need("num_experts_per_tok"),
        "expert_ffn_size": keys.need("moe_intermediate_size"),
        "shared_expert_ffn_size": keys.get("shared_expert_intermediate_size", default=0),
    }


def _routed(keys: Keys, leading: int | None = None) -> dict[str, Any]:
    """Leading dense layers, then routed and shared experts of one width."""
    width, freq = keys.need("moe_intermediate_size"), keys.get("moe_layer_freq", default=1)
    experts = keys.need("n_routed_experts", "num_local_experts", "num_experts")
    shared = keys.get("n_shared_experts", "num_shared_experts", default=0)
    kinds = {"mlp_layer_types": None} | leading_dense(keys, leading)
    kinds.pop("mlp_layer_types")
    if freq != 1:
        first, layers = kinds.get("first_dense_layers", 0), keys.need("num_hidden_layers")
        each = freq if isinstance(freq, list) else [int(i >= first and i % freq == 0) for i in range(layers)]
        kinds = expert_layers(keys, [bool(kind) for kind in each])
    return {
        **kinds,
        "ffn_size": keys.get("intermediate_size", default=0),
        "num_experts": experts,
        "top_k": keys.need("num_experts_per_tok"),
        "expert_ffn_size": width,
        "shared_expert_ffn_size": shared * width,
    }


def routing_groups(keys: Keys) -> dict[str, Any]:
    """Return the groups that routing is limited to (DeepSeek-V2, arXiv:2405.04434, section 2.2.2), if to fewer than all.

    Whatever family names them: a `topk_method` of greedy leaves them unused.
    """
    groups, used = keys.get("n_group", "num_expert_group", default=None), keys.get("topk_group", default=None)
    limited = groups is not None and used is not None and 1 <= used < groups
    limited = limited and keys.get("topk_method", default="") != "greedy"
    return {"expert_groups": groups, "groups_per_token": used} if limited else {}


def latent(keys: Keys) -> dict[str, Any]:
    """Return multi-head latent attention (DeepSeek-V2, arXiv:2405.04434)."""
    # `head_dim` and `num_key_value_heads` are looked at only to be passed over: a re-saved file
    # has the rotary part as `head_dim`, and latent attention has no KV heads.
    keys.get("head_dim", "num_key_value_heads", "qk_head_dim")
    if keys.get("attention_bias", default=False):
        raise keys.refuse("attention_bias: biases of latent attention cannot be priced")
    return {
        "gated_mlp": True,
        "attention": "mla",
        "q_lora_rank": keys.need_or_null("q_lora_rank"),
        "kv_lora_rank": keys.need("kv_lora_rank"),
        "qk_nope_head_dim": keys.need("qk_nope_head_dim"),
        "qk_rope_head_dim": keys.need("qk_rope_head_dim"),
        "v_head_dim": keys.need("v_head_dim"),
    }


def _deepseek_v2(keys: Keys) -> dict[str, Any]:
    return {**_routed(keys), **latent(keys), "linear_bias": keys.get("mlp_bias", default=False)}


def _deepseek_v3(keys: Keys) -> dict[str, Any]:
    prediction_layers = keys.get("num_nextn_predict_layers", "num_mtp_layers", default=0)
    return {**_routed(keys), **latent(keys), "router_bias": True, "mtp_layers": prediction_layers}


def _deepseek_v32(keys: Keys) -> dict[str, Any]:
    """Return DeepSeek-V3.2 and GLM-5: latent attention whose keys an indexer chooses, in each layer or every few."""
    layers = keys.need("num_hidden_layers")
    sizes = {
        "kind": "indexed",
        "heads": keys.need("index_n_heads"),
        "head_dim": keys.need("index_head_dim"),
        "top_k": keys.need("index_topk"),
    }
    own = [kind == "full" for kind in keys.get("indexer_types", default=["full"] * layers)[:layers]]
    keys.get("layer_types", "index_topk_freq", "index_skip_topk_offset", "indexer_rope_interleave")
    mixers = {"i": sizes, "j": {**sizes, "shared": True}}
    used = {"i": any(own), "j": not all(own)}
    values = _deepseek_v3(keys)
    if (shared := keys.get("shared_experts_intermediate_size")) is not None:
        values["shared_expert_ffn_size"] = shared
    return {
        **values,
        "router_bias": keys.get("topk_method") == "noaux_tc",
        "attention_pattern": "".join("i" if one else "j" for one in own),
        "mixers": {letter: mixers[letter] for letter, there in used.items() if there},
    }


def _glm4_moe_lite(keys: Keys) -> dict[str, Any]:
    prediction_layers = keys.get("num_nextn_predict_layers", default=0)
    return {**_routed(keys, 1), **latent(keys), "mtp_layers": prediction_layers}


def _youtu(keys: Keys) -> dict[str, Any]:
    return {
        **latent(keys),
        "ffn_size": keys.need("intermediate_size"),
        "tied_embeddings": keys.get("tie_word_embeddings", default=True),
    }


def _bailing_moe(keys: Keys) -> dict[str, Any]:
    """Return Ling and Ring of both generations, remote code: fine-grained experts and shared ones, normed heads in 2.0."""
    keys.get(
        "norm_head", "norm_softmax", "moe_router_enable_expert_bias", "moe_shared_expert_intermediate_size"
    )
    bias, qkv = keys.get("use_bias", default=False), keys.get("use_qkv_bias", default=False)
    second = keys.get("model_type") == "bailing_moe_v2"
    keys.get(
        "multi_gate", "embedding_dropout", "output_dropout", "moe_router_enable_shared_expert", "router_type"
    )
    return {
        **grouped(keys),
        **_routed(keys, 0),
        "qkv_bias": qkv,
        "attention_out_bias": bias,
        "qk_norm": keys.get("use_qk_norm", default=second),
        "mtp_layers": keys.get("num_nextn_predict_layers", default=0),
    }


def _glm4_moe(keys: Keys) -> dict[str, Any]:
    return {
        **grouped(keys),
        **_routed(keys),
        "qkv_bias": keys.get("attention_bias", default=False),
        "qk_norm": keys.get("use_qk_norm", default=False),
        "router_bias": True,
        "mtp_layers": keys.get("num_nextn_predict_layers", default=0),
    }


def _solar_open(keys: Keys) -> dict[str, Any]:
    return {**grouped(keys), **_routed(keys, 0), **biases(keys)}


def _dots1(keys: Keys) -> dict[str, Any]:
    window, first = keys.get("sliding_window", default=0), keys.get("max_window_layers", default=0)
    kinds = keys.get("layer_types")
    if kinds is None and window:
        kinds = [
            "sliding_attention" if i >= first else "full_attention"
            for i in range(keys.need("num_hidden_layers"))
        ]
    return {
        **grouped(keys),
        **_routed(keys, 0),
        **biases(keys),
        **(windows(keys, window, kinds) if kinds is not None else {}),
        "qk_norm": True,
    }


def _deepseek(keys: Keys) -> dict[str, Any]:
    """Return DeepSeekMoE-16B, remote code of January 2024: Llama's attention, fine-grained experts."""
    return {**grouped(keys), **_routed(keys, 0), **biases(keys)}


def _exaone_moe(keys: Keys) -> dict[str, Any]:
    return {
        **grouped(keys),
        **_routed(keys, 1),
        **patterned_windows(keys, keys.get("sliding_window", default=4096), 4),
        "qk_norm": True,
        "mtp_layers": keys.get("num_nextn_predict_layers", default=0),
    }


def _ernie4_5_moe(keys: Keys) -> dict[str, Any]:
    if keys.get("use_bias", default=False):
        raise keys.refuse("use_bias: biases beside experts without any are not supported")
    layers, width = keys.need("num_hidden_layers"), keys.need("moe_intermediate_size")
    start, step = (
        keys.get("moe_layer_start_index", default=1),
        keys.get("moe_layer_interval", default=1),
    )
    end = keys.get("moe_layer_end_index", default=-1)
    end = layers - 1 if end == -1 else end
    kinds = [(i + 1) % step == 0 and start <= i <= end for i in range(layers)]
    return {
        **grouped(keys),
        **expert_layers(keys, kinds),
        "ffn_size": keys.need("intermediate_size"),
        "num_experts": keys.need("moe_num_experts", "num_experts"),
        "top_k": keys.need("moe_k", "num_experts_per_tok"),
        "expert_ffn_size": width,
        "shared_expert_ffn_size": keys.get("moe_num_shared_experts", default=0) * width,
        "router_bias": keys.get("moe_use_aux_free", default=True),
        "mtp_layers": keys.get("num_nextn_predict_layers", default=0),
        "tied_embeddings": keys.get("tie_word_embeddings", default=True),
    }


def _hunyuan_moe(keys: Keys) -> dict[str, Any]:
    """Return Hunyuan-A13B: every layer alike, one shared MLP of `num_shared_expert` times the width."""

    def one(name: str, value: Any) -> Any:
        values = sorted(set(value)) if isinstance(value, list) else [value]
        if len(values) != 1:
            raise keys.refuse(f"{name}: differs from layer to layer, which is not supported")
        return values[0]

    width = keys.get("moe_intermediate_size", default=keys.need("intermediate_size"))
    width = one("moe_intermediate_size", width)
    shared = one("num_shared_expert", keys.get("num_shared_expert", default=1))
    normed = keys.get("use_qk_norm", default=True)
    return {
        **grouped(keys),
        **biases(keys),
        "qk_norm": normed,
        "num_experts": one("num_experts", keys.need("num_experts", "num_local_experts")),
        "top_k": one("moe_topk", keys.need("moe_topk", "num_experts_per_tok")),
        "expert_ffn_size": width,
        "shared_expert_ffn_size": keys.need("intermediate_size") * shared,
    }


def _olmoe(keys: Keys) -> dict[str, Any]:
    """Return OLMoE: norms over all query heads and over all key heads."""
    return {
        **grouped(keys),
        **biases(keys),
        "qk_norm": True,
        "qk_norm_all_heads": True,
        "num_experts": keys.need("num_experts"),
        "top_k": keys.need("num_experts_per_tok"),
        "expert_ffn_size": keys.need("intermediate_size"),
    }


def _gpt_oss(keys: Keys) -> dict[str, Any]:
    return {
        **grouped(keys),
        **patterned_windows(keys, keys.need_or_null("sliding_window"), 2),
        "head_dim": keys.get("head_dim", default=64),
        "qkv_bias": keys.get("attention_bias", default=True),
        "attention_out_bias": keys.get("attention_bias", default=True),
        "linear_bias": True,
        "router_bias": True,
        "attention_sinks": True,
        "activation_clamp": True,
        "rope_concentration": True,
        "num_experts": keys.need("num_local_experts"),
        "top_k": keys.need("num_experts_per_tok", "experts_per_token"),
        "expert_ffn_size": keys.need("intermediate_size"),
    }


def _llama4(keys: Keys) -> dict[str, Any]:
    layers, width = keys.need("num_hidden_layers"), keys.need("intermediate_size")
    step, moe_layers = keys.get("interleave_moe_layer_step", default=1), keys.get("moe_layers")
    each = range(step - 1, layers, step) if moe_layers is None else moe_layers
    kinds = expert_layers(keys, [i in each for i in range(layers)])
    keys.get("no_rope_layers", "no_rope_layer_interval", "use_qk_norm")
    dense = keys.need("intermediate_size_mlp")
    return {
        **grouped(keys),
        **biases(keys),
        **patterned_windows(keys, keys.get("attention_chunk_size", default=8192), 4),
        **kinds,
        # Scout's files carry the width of a dense layer that it does not have.
        "ffn_size": dense if len(each) < layers else 0,
        "num_experts": keys.need("num_local_experts"),
        "top_k": keys.need("num_experts_per_tok"),
        "expert_ffn_size": width,
        "shared_expert_ffn_size": width,
    }


EXPERT_READERS = {
    "afmoe": _afmoe,
    "aria_text": _aria,
    "bailing_moe": _bailing_moe,
    "bailing_moe_v2": _bailing_moe,
    "cohere2_moe": _cohere2_moe,
    "dbrx": _dbrx,
    "deepseek": _deepseek,
    "deepseek_v2": _deepseek_v2,
    "deepseek_v32": _deepseek_v32,
    "deepseek_v3": _deepseek_v3,
    "dots1": _dots1,
    "ernie4_5_moe": _ernie4_5_moe,
    "exaone_moe": _exaone_moe,
    "flint": _flint,
    "flex_olmo": _olmoe,
    "glm4_moe": _glm4_moe,
    "glm_moe_dsa": _deepseek_v32,
    "glm4_moe_lite": _glm4_moe_lite,
    "glm4v_moe_text": _glm4_moe,
    "gpt_oss": _gpt_oss,
    "granitemoe": _granitemoe,
    "granitemoeshared": _granitemoeshared,
    "hunyuan_v1_moe": _hunyuan_moe,
    "granitemoe_swa": _granitemoe_swa,
    "hy_v3": _hy_v3,
    "kimi_k2": _deepseek_v3,
    "kolibri1": _kolibri1,
    "llama4": _llama4,
    "llama4_text": _llama4,
    "mellum": _mellum,
    "minimax_m2": _minimax_m2,
    "mixtral": _mixtral,
    "olmoe": _olmoe,
    "phimoe": _phimoe,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "qwen3_omni_moe_text": _qwen3_moe,
    "qwen3_vl_moe_text": _qwen3_moe,
    "solar_open": _solar_open,
    "youtu": _youtu,
}
