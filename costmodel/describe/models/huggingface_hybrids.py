"""Readers of configs whose layers mix tokens by linear attention or state space beside attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from costmodel.describe.models.huggingface_experts import latent, sparse_step
from costmodel.describe.models.huggingface_keys import Keys
from costmodel.describe.models.huggingface_layers import biases, expert_layers, grouped, leading_dense

FULL = ("full_attention", "attention")


def _mixed(letter: str, sizes: dict[str, Any], attends: Sequence[bool]) -> dict[str, Any]:
    """Return which layers have attention and which the mixer that `letter` names."""
    if all(attends):
        return {}
    pattern = "".join("f" if full else letter for full in attends)
    return {"attention_pattern": pattern, "mixers": {letter: sizes}}


def _listed(keys: Keys, kinds: Sequence[str], other: tuple[str, ...]) -> list[bool]:
    """Return which layers of a list of types have attention.

    Raises
    ------
    ModelConfigError
        If there are other than the number of layers, or of another type.
    """
    layers = keys.need("num_hidden_layers")
    if len(kinds) != layers:
        raise keys.refuse(f"layer_types: has {len(kinds)} layers, num_hidden_layers is {layers}")
    if strange := sorted({str(kind) for kind in kinds} - {*FULL, *other}):
        raise keys.refuse(f"layer_types: {strange[0]!r} is not supported")
    return [kind in FULL for kind in kinds]


def _delta(keys: Keys) -> dict[str, Any]:
    """Return a gated delta rule under Qwen's keys."""
    return {
        "kind": "gated-delta",
        "key_heads": keys.need("linear_num_key_heads"),
        "value_heads": keys.need("linear_num_value_heads"),
        "key_head_dim": keys.need("linear_key_head_dim"),
        "value_head_dim": keys.need("linear_value_head_dim"),
        "conv_kernel": keys.need("linear_conv_kernel_dim"),
    }


def _qwen_next(keys: Keys) -> dict[str, Any]:
    """Return Qwen3-Next and Qwen3.5: three gated delta rules and one gated attention in four layers."""
    layers, every = keys.need("num_hidden_layers"), keys.get("full_attention_interval", default=4)
    kinds = keys.get("layer_types")
    if kinds is None:
        kinds = ["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(layers)]
    keys.get("mamba_ssm_dtype")
    if keys.get("attn_output_gate", default=True) is False:
        raise keys.refuse("attn_output_gate: attention without its gate is not supported")
    values = {
        **grouped(keys),
        **biases(keys),
        **_mixed("d", _delta(keys), _listed(keys, kinds, ("linear_attention",))),
        "qk_norm": True,
        "attention_gate": True,
        "mtp_layers": keys.get("num_nextn_predict_layers", "mtp_num_hidden_layers", default=0),
    }
    dense, step = keys.get("mlp_only_layers", default=[]), sparse_step(keys)
    count = keys.get("num_experts", "num_local_experts", default=0)
    if not count:
        return {**values, "ffn_size": keys.need("intermediate_size")}
    return {
        **values,
        **expert_layers(keys, [i not in dense and (i + 1) % step == 0 for i in range(layers)]),
        "ffn_size": keys.get("intermediate_size", default=0),
        "num_experts": count,
        "top_k": keys.need("num_experts_per_tok"),
        "expert_ffn_size": keys.need("moe_intermediate_size"),
        "shared_expert_ffn_size": keys.get("shared_expert_intermediate_size", default=0),
        "shared_expert_gate": True,
    }


def _olmo_hybrid(keys: Keys) -> dict[str, Any]:
    """Return OLMo hybrid: gated delta rules, and attention normed over all heads."""
    attends = _listed(keys, keys.need("layer_types"), ("linear_attention",))
    return {
        **grouped(keys),
        **biases(keys),
        **_mixed("d", _delta(keys), attends),
        "ffn_size": keys.need("intermediate_size"),
        "qk_norm": True,
        "qk_norm_all_heads": True,
    }


def _kimi_linear(keys: Keys) -> dict[str, Any]:
    """Return Kimi Linear: channel-wise gated delta rules and latent attention, experts."""
    inner, layers = keys.get("linear_attn_config", default={}), keys.need("num_hidden_layers")
    if "full_attn_layers" in inner:
        # Counted from one in the published files.
        attends = [number in inner["full_attn_layers"] for number in range(1, layers + 1)]
    else:
        attends = _listed(keys, keys.need("layer_types"), ("linear_attention",))
    sizes = {
        "kind": "kimi-delta",
        "heads": inner.get("num_heads") or keys.need("linear_num_heads"),
        "head_dim": inner.get("head_dim") or keys.need("linear_head_dim"),
        "conv_kernel": inner.get("short_conv_kernel_size") or keys.need("linear_conv_kernel_dim"),
    }
    width = keys.need("moe_intermediate_size")
    keys.get("moe_layer_freq", "moe_router_activation_func")
    return {
        **{**latent(keys), "q_lora_rank": keys.get("q_lora_rank", default=0)},
        **_mixed("k", sizes, attends),
        **leading_dense(keys),
        "position": "none" if keys.get("mla_use_nope", default=False) else "rope",
        "ffn_size": keys.need("intermediate_size"),
        "num_experts": keys.need("num_experts"),
        "top_k": keys.need("num_experts_per_token", "num_experts_per_tok"),
        "expert_ffn_size": width,
        "shared_expert_ffn_size": width * keys.get("num_shared_experts", default=0),
        "mtp_layers": keys.get("num_nextn_predict_layers", default=0),
    }


def _minimax(keys: Keys) -> dict[str, Any]:
    """Return MiniMax-Text-01: seven lightning attentions and one attention in eight layers, experts everywhere."""
    older = keys.get("attn_type_list")
    if older is None:
        kinds = keys.need("layer_types")
    else:
        keys.get("layer_types")
        kinds = ["full_attention" if kind else "linear_attention" for kind in older]
    values = grouped(keys)
    heads = keys.need("num_attention_heads")
    dim = keys.get("head_dim", default=keys.need("hidden_size") // heads)
    sizes = {"kind": "lightning", "heads": heads, "head_dim": dim}
    if keys.get("shared_intermediate_size", default=0):
        raise keys.refuse("shared_intermediate_size: a shared expert is not supported")
    keys.get("num_mtp_modules", "shared_moe_mode", "postnorm", "layernorm_full_attention_alpha")
    return {
        **values,
        **_mixed("l", sizes, _listed(keys, kinds, ("linear_attention",))),
        "num_experts": keys.need("num_local_experts"),
        "top_k": keys.need("num_experts_per_tok"),
        "expert_ffn_size": keys.need("intermediate_size"),
    }


_LETTERS = {"M": "mamba", "*": "full_attention", "-": "mlp", "E": "moe"}
_NAMES = {"linear_attention": "mamba", "attention": "full_attention"}


def _nemotron_h(keys: Keys) -> dict[str, Any]:
    """Return Nemotron-H: each layer is one block, of state space, attention, MLP, or experts."""
    written, named = keys.get("hybrid_override_pattern"), keys.get("layers_block_type")
    if written is not None:
        kinds = [_LETTERS.get(letter, letter) for letter in written]
    else:
        kinds = [_NAMES.get(name, name) for name in keys.need("layers_block_type")]
    if strange := sorted(set(kinds) - set(_LETTERS.values())):
        raise keys.refuse(f"hybrid_override_pattern: {strange[0]!r} is not supported")
    if len(kinds) != keys.get("num_hidden_layers", default=len(kinds)):
        raise keys.refuse(
            f"hybrid_override_pattern: has {len(kinds)} layers, num_hidden_layers another number"
        )
    if keys.get("moe_latent_size"):
        raise keys.refuse("moe_latent_size: experts of a latent width cannot be priced yet")
    del named
    heads = keys.need("mamba_num_heads")
    keys.get("expand")
    width = keys.get("head_dim", "attention_head_dim")
    sizes = {
        "kind": "mamba-2",
        "heads": heads,
        "head_dim": keys.need("mamba_head_dim"),
        "groups": keys.need("n_groups"),
        "state": keys.need("ssm_state_size"),
        "conv_kernel": keys.need("conv_kernel"),
        "chunk": keys.get("chunk_size", default=128),
        "conv_bias": keys.get("use_conv_bias", default=True),
        "bias": keys.get("mamba_proj_bias", "use_bias", default=False),
    }
    mixing = {"mamba": "m", "full_attention": "f"}
    values = {
        **grouped(keys),
        **({} if width is None else {"head_dim": width}),
        **biases(keys),
        "num_layers": len(kinds),
        "position": "none",
        "gated_mlp": False,
        "linear_bias": keys.get("mlp_bias", default=False),
        "attention_pattern": "".join(mixing.get(kind, "n") for kind in kinds),
        "mixers": {"m": sizes} if "mamba" in kinds else {},
        "mlp_pattern": "".join({"mlp": "d", "moe": "e"}.get(kind, "n") for kind in kinds),
        "ffn_size": keys.get("intermediate_size", default=0) if "mlp" in kinds else 0,
        "mtp_layers": 0,
    }
    if keys.get("num_nextn_predict_layers", default=0):
        raise keys.refuse("num_nextn_predict_layers: prediction layers of several blocks are not supported")
    if "moe" not in kinds:
        return values
    shared = keys.get("moe_shared_expert_intermediate_size", default=0)
    return {
        **values,
        "num_experts": keys.need("n_routed_experts"),
        "top_k": keys.need("num_experts_per_tok"),
        "expert_ffn_size": keys.need("moe_intermediate_size"),
        "shared_expert_ffn_size": shared if keys.get("n_shared_experts", default=0) else 0,
    }


def _prefixed_mamba2(keys: Keys, inner: int, **more: Any) -> dict[str, Any]:
    """Return a state space of the second kind whose keys begin with ``mamba_``."""
    heads = keys.need("mamba_n_heads")
    keys.get("mamba_d_head", "mamba_expand")
    return {
        "kind": "mamba-2",
        "heads": heads,
        "head_dim": inner // heads,
        "groups": keys.need("mamba_n_groups"),
        "state": keys.need("mamba_d_state"),
        "conv_kernel": keys.need("mamba_d_conv"),
        "chunk": keys.get("mamba_chunk_size", default=256),
        "conv_bias": keys.get("mamba_conv_bias", default=True),
        "bias": keys.get("mamba_proj_bias", default=False),
        **more,
    }


def _gated_mlp(keys: Keys) -> dict[str, Any]:
    """Return grouped attention, its biases, and a gated MLP with or without."""
    return {
        **grouped(keys),
        **biases(keys),
        "ffn_size": keys.need("intermediate_size"),
        "linear_bias": keys.get("mlp_bias", default=False),
    }


def _bamba(keys: Keys) -> dict[str, Any]:
    """Return Bamba: state space everywhere but in the named layers."""
    full = keys.get("attn_layer_indices", default=[])
    sizes = _prefixed_mamba2(keys, keys.need("mamba_expand") * keys.need("hidden_size"))
    attends = [number in full for number in range(keys.need("num_hidden_layers"))]
    return {**_gated_mlp(keys), **_mixed("m", sizes, attends)}


def _falcon_h1(keys: Keys) -> dict[str, Any]:
    """Return Falcon-H1: attention and state space side by side in every layer."""
    inner = keys.get("mamba_d_ssm") or keys.need("mamba_expand") * keys.need("hidden_size")
    norm = keys.get("mamba_rms_norm", default=False)
    sizes = _prefixed_mamba2(keys, inner, norm=norm, beside_attention=True)
    return {**_gated_mlp(keys), **_mixed("m", sizes, [False] * keys.need("num_hidden_layers"))}


def _granite_hybrid(keys: Keys) -> dict[str, Any]:
    """Return Granite 4: state space and attention, a shared MLP, experts in the larger ones."""
    named = keys.get("layer_types", "layers_block_type", default=["mamba"] * keys.need("num_hidden_layers"))
    attends = _listed(keys, named, ("mamba", "linear_attention"))
    sizes = _prefixed_mamba2(keys, keys.need("mamba_expand") * keys.need("hidden_size"))
    shared = keys.need("shared_intermediate_size")
    values = {
        **grouped(keys),
        **biases(keys),
        **_mixed("m", sizes, attends),
        "position": "rope" if keys.get("position_embedding_type", default="nope") == "rope" else "none",
    }
    if not (count := keys.get("num_local_experts", default=0)):
        keys.get("intermediate_size", "num_experts_per_tok")
        return {**values, "ffn_size": shared}
    return {
        **values,
        "num_experts": count,
        "top_k": keys.need("num_experts_per_tok"),
        "expert_ffn_size": keys.need("intermediate_size"),
        "shared_expert_ffn_size": shared,
    }


def _jamba(keys: Keys) -> dict[str, Any]:
    """Return Jamba: one attention in eight layers, experts in every second."""
    layers, hidden = keys.need("num_hidden_layers"), keys.need("hidden_size")
    period, offset = keys.need("attn_layer_period"), keys.need("attn_layer_offset")
    rank = keys.need("mamba_dt_rank")
    sizes = {
        "kind": "mamba",
        "inner": keys.need("mamba_expand") * hidden,
        "state": keys.need("mamba_d_state"),
        "dt_rank": -(-hidden // 16) if rank == "auto" else rank,
        "conv_kernel": keys.need("mamba_d_conv"),
        "conv_bias": keys.get("mamba_conv_bias", default=True),
        "bias": keys.get("mamba_proj_bias", default=False),
        "inner_norms": True,
    }
    ffn, count = keys.need("intermediate_size"), keys.need("num_experts")
    values = {
        **grouped(keys),
        **_mixed("m", sizes, [number % period == offset for number in range(layers)]),
        "position": "none",
        "ffn_size": ffn,
    }
    period, offset = keys.need("expert_layer_period"), keys.need("expert_layer_offset")
    if count < 2:
        keys.get("num_experts_per_tok")
        return values
    return {
        **values,
        **expert_layers(keys, [number % period == offset for number in range(layers)]),
        "num_experts": count,
        "top_k": keys.need("num_experts_per_tok"),
        "expert_ffn_size": ffn,
    }


def _lfm2(keys: Keys) -> dict[str, Any]:
    """Return LFM2: short convolutions, and attention in the named layers; with or without experts."""
    layers, hidden = keys.need("num_hidden_layers"), keys.need("hidden_size")
    named = keys.get("layer_types")
    if named is None:
        full = keys.need("full_attn_idxs")
        named = ["full_attention" if number in full else "conv" for number in range(layers)]
    keys.get("full_attn_idxs", "conv_dim", "conv_dim_out", "conv_use_xavier_init")
    sizes = {
        "kind": "short-convolution",
        "channels": hidden,
        "conv_kernel": keys.need("conv_L_cache"),
        "bias": keys.get("conv_bias", default=False),
    }
    values = {
        **grouped(keys),
        **_mixed("c", sizes, _listed(keys, named, ("conv", "short_conv"))),
        "tied_embeddings": keys.get("tie_word_embeddings", "tie_embedding", default=True),
        "qk_norm": True,
    }
    ffn = keys.need("intermediate_size", "block_ff_dim")
    if not (count := keys.get("num_experts", default=0)):
        if keys.get("block_auto_adjust_ff_dim", default=True):
            of = keys.get("block_multiple_of", default=256)
            ffn = int(keys.get("block_ffn_dim_multiplier", default=1.0) * int(2 * ffn / 3))
            ffn = of * -(-ffn // of)
        keys.get("block_mlp_init_scale", "block_norm_eps", "block_use_swiglu", "block_use_xavier_init")
        keys.get("block_dim", "block_multiple_of", "block_ffn_dim_multiplier", "block_out_init_scale")
        return {**values, "ffn_size": ffn}
    keys.get("use_expert_bias")
    return {
        **values,
        "first_dense_layers": keys.get("num_dense_layers", default=2),
        "ffn_size": ffn,
        "num_experts": count,
        "top_k": keys.need("num_experts_per_tok"),
        "expert_ffn_size": keys.need("moe_intermediate_size"),
    }


HYBRID_READERS: dict[str, Callable[[Keys], dict[str, Any]]] = {
    "bamba": _bamba,
    "falcon_h1": _falcon_h1,
    "granitemoehybrid": _granite_hybrid,
    "jamba": _jamba,
    "kimi_linear": _kimi_linear,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
    "minimax": _minimax,
    "minimax_m1": _minimax,
    "minimax_text_01": _minimax,
    "nemotron_h": _nemotron_h,
    "olmo_hybrid": _olmo_hybrid,
    "qwen3_5_moe_text": _qwen_next,
    "qwen3_5_text": _qwen_next,
    "qwen3_next": _qwen_next,
}
