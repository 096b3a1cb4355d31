"""Parts of families of HuggingFace configs whose layers mix tokens by linear attention or state space beside attention.

The functions stand under `parts` in ``huggingface.yaml``, where the other fields of their families are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from costmodel.describe.models.huggingface_keys import Keys
from costmodel.describe.models.huggingface_layers import expert_layers, sparse_steps

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


def qwen_next(keys: Keys) -> dict[str, Any]:
    """Return the layers of Qwen3-Next and Qwen3.5: three gated delta rules and one attention in four; experts or not."""
    layers, every = keys.need("num_hidden_layers"), keys.get("full_attention_interval", default=4)
    kinds = keys.get("layer_types")
    if kinds is None:
        kinds = ["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(layers)]
    values = _mixed("d", _delta(keys), _listed(keys, kinds, ("linear_attention",)))
    experts = sparse_steps(keys)
    count = keys.get("num_experts", "num_local_experts", default=0)
    if not count:
        return {**values, "ffn_size": keys.need("intermediate_size")}
    return {
        **values,
        **experts,
        "ffn_size": keys.get("intermediate_size", default=0),
        "num_experts": count,
        "top_k": keys.need("num_experts_per_tok"),
        "expert_ffn_size": keys.need("moe_intermediate_size"),
        "shared_expert_ffn_size": keys.get("shared_expert_intermediate_size", default=0),
        "shared_expert_gate": True,
    }


def olmo_hybrid(keys: Keys) -> dict[str, Any]:
    """Return OLMo hybrid: gated delta rules in the layers that its list names."""
    return _mixed("d", _delta(keys), _listed(keys, keys.need("layer_types"), ("linear_attention",)))


def kimi_delta(keys: Keys) -> dict[str, Any]:
    """Return Kimi Linear's channel-wise gated delta rules, under its own keys or those of transformers."""
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
    return _mixed("k", sizes, attends)


def lightning(keys: Keys) -> dict[str, Any]:
    """Return MiniMax-Text-01's layers: lightning attention, and attention in the named ones."""
    older = keys.get("attn_type_list")
    if older is None:
        kinds = keys.need("layer_types")
    else:
        keys.get("layer_types")
        kinds = ["full_attention" if kind else "linear_attention" for kind in older]
    heads = keys.need("num_attention_heads")
    dim = keys.get("head_dim", default=keys.need("hidden_size") // heads)
    sizes = {"kind": "lightning", "heads": heads, "head_dim": dim}
    return _mixed("l", sizes, _listed(keys, kinds, ("linear_attention",)))


_LETTERS = {"M": "mamba", "*": "full_attention", "-": "mlp", "E": "moe"}
_NAMES = {"linear_attention": "mamba", "attention": "full_attention"}


def nemotron_h(keys: Keys) -> dict[str, Any]:
    """Return Nemotron-H: each layer is one block, of state space, attention, MLP, or experts."""
    written = keys.get("hybrid_override_pattern")
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
    sizes = {
        "kind": "mamba-2",
        "heads": keys.need("mamba_num_heads"),
        "head_dim": keys.need("mamba_head_dim"),
        "groups": keys.need("n_groups"),
        "state": keys.need("ssm_state_size"),
        "conv_kernel": keys.need("conv_kernel"),
        "chunk": keys.get("chunk_size", default=128),
        "conv_bias": keys.get("use_conv_bias", default=True),
        "bias": keys.get("mamba_proj_bias", "use_bias", default=False),
    }
    width = keys.get("head_dim", "attention_head_dim")
    values = {
        **({} if width is None else {"head_dim": width}),
        "num_layers": len(kinds),
        "attention_pattern": "".join({"mamba": "m", "full_attention": "f"}.get(kind, "n") for kind in kinds),
        "mixers": {"m": sizes} if "mamba" in kinds else {},
        "mlp_pattern": "".join({"mlp": "d", "moe": "e"}.get(kind, "n") for kind in kinds),
        "ffn_size": keys.get("intermediate_size", default=0) if "mlp" in kinds else 0,
    }
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


def mamba2(keys: Keys) -> dict[str, Any]:
    """Return Mamba-2 alone (arXiv:2405.21060): every layer is one block of state space, without attention or MLP."""
    layers, heads = keys.need("num_hidden_layers"), keys.need("num_attention_heads")
    inner = keys.get("expand", default=2) * keys.need("hidden_size")
    width = keys.need("head_dim")
    if inner != heads * width:
        raise keys.refuse(
            f"num_heads: expected expand * hidden_size / head_dim, {inner / width:g}; got {heads}"
        )
    sizes = {
        "kind": "mamba-2",
        "heads": heads,
        "head_dim": width,
        "groups": keys.get("n_groups", default=8),
        "state": keys.get("state_size", default=128),
        "conv_kernel": keys.get("conv_kernel", default=4),
        "chunk": keys.get("chunk_size", default=256),
        "conv_bias": keys.get("use_conv_bias", default=True),
        "bias": keys.get("use_bias", default=False),
    }
    return {
        "num_kv_heads": heads,
        "head_dim": width,
        "attention_pattern": "m" * layers,
        "mixers": {"m": sizes},
        "mlp_pattern": "n" * layers,
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


def bamba(keys: Keys) -> dict[str, Any]:
    """Return Bamba: state space everywhere but in the named layers."""
    full = keys.get("attn_layer_indices", default=[])
    sizes = _prefixed_mamba2(keys, keys.need("mamba_expand") * keys.need("hidden_size"))
    attends = [number in full for number in range(keys.need("num_hidden_layers"))]
    return _mixed("m", sizes, attends)


def falcon_h1(keys: Keys) -> dict[str, Any]:
    """Return Falcon-H1: attention and state space side by side in every layer."""
    inner = keys.get("mamba_d_ssm") or keys.need("mamba_expand") * keys.need("hidden_size")
    norm = keys.get("mamba_rms_norm", default=False)
    sizes = _prefixed_mamba2(keys, inner, norm=norm, beside_attention=True)
    return _mixed("m", sizes, [False] * keys.need("num_hidden_layers"))


def granite_hybrid(keys: Keys) -> dict[str, Any]:
    """Return Granite 4: state space and attention, a shared MLP, experts in the larger ones."""
    named = keys.get("layer_types", "layers_block_type", default=["mamba"] * keys.need("num_hidden_layers"))
    attends = _listed(keys, named, ("mamba", "linear_attention"))
    sizes = _prefixed_mamba2(keys, keys.need("mamba_expand") * keys.need("hidden_size"))
    shared = keys.need("shared_intermediate_size")
    values = {
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


def jamba(keys: Keys) -> dict[str, Any]:
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
    values = _mixed("m", sizes, [number % period == offset for number in range(layers)])
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


def lfm2(keys: Keys) -> dict[str, Any]:
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
    values = _mixed("c", sizes, _listed(keys, named, ("conv", "short_conv")))
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


HYBRID_PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    part.__name__: part
    for part in (
        *(bamba, falcon_h1, granite_hybrid, jamba, kimi_delta, lfm2, lightning, mamba2, nemotron_h),
        *(olmo_hybrid, qwen_next),
    )
}
