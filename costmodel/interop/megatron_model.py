"""The model in Megatron-LM's arguments, both ways."""

from __future__ import annotations

from math import ceil
from typing import Any

from costmodel.base.errors import ModelConfigError
from costmodel.describe.models.model import Model, make_model
from costmodel.interop.framework import FrameworkConfigError
from costmodel.interop.megatron_text import Flags, layer_pattern

_POSITIONS = {"learned": "learned_absolute", "rope": "rope", "none": "none"}


def model_flags(model: Model) -> list[str]:
    """Return the flags that describe a model.

    Raises
    ------
    FrameworkConfigError
        If Megatron-LM has no flag for something about it.
    """
    if model.position not in _POSITIONS:
        raise FrameworkConfigError(f"emit: Megatron-LM has no position embedding {model.position!r}")
    flags = [
        "--num-layers",
        str(model.num_layers),
        "--hidden-size",
        str(model.hidden_size),
        "--num-attention-heads",
        str(model.num_heads),
    ]
    flags += ["--ffn-hidden-size", str(model.ffn_size or model.expert_ffn_size)]
    flags += ["--vocab-size", str(model.vocab_size), "--make-vocab-size-divisible-by", "1"]
    flags += ["--position-embedding-type", _POSITIONS[model.position]]
    flags += ["--max-position-embeddings", str(model.max_positions or 2**17)]
    flags += ["--normalization", "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm"]
    if model.attention == "mla":
        flags += [
            "--multi-latent-attention",
            "--kv-lora-rank",
            str(model.kv_lora_rank),
            "--qk-head-dim",
            str(model.qk_nope_head_dim),
            "--qk-pos-emb-head-dim",
            str(model.qk_rope_head_dim),
            "--v-head-dim",
            str(model.v_head_dim),
        ]
        if model.q_lora_rank:
            flags += ["--q-lora-rank", str(model.q_lora_rank)]
    else:
        flags += ["--kv-channels", str(model.head_dim)]
        if model.num_kv_heads != model.num_heads:
            flags += ["--group-query-attention", "--num-query-groups", str(model.num_kv_heads)]
    if model.gated_mlp:
        flags.append("--swiglu")
    if not model.tied_embeddings:
        flags.append("--untie-embeddings-and-output-weights")
    biased = model.linear_bias and model.qkv_bias and model.attention_out_bias
    if not biased:
        flags.append("--disable-bias-linear")
        if model.qkv_bias:
            flags.append("--add-qkv-bias")
    if model.qk_norm:
        flags.append("--qk-layernorm")
    if model.attention_sinks:
        flags += ["--softmax-type", "learnable"]
    if model.sliding_window:
        flags += ["--window-size", f"{model.sliding_window},0"]
        if model.full_attention_every:
            flags += ["--window-attn-skip-freq", str(model.full_attention_every)]
    if model.mtp_layers:
        flags += ["--mtp-num-layers", str(model.mtp_layers)]
    return flags + _expert_flags(model)


def _expert_flags(model: Model) -> list[str]:
    if not model.num_experts:
        return []
    flags = [
        "--num-experts",
        str(model.num_experts),
        "--moe-router-topk",
        str(model.top_k),
        "--moe-ffn-hidden-size",
        str(model.expert_ffn_size),
    ]
    if model.shared_expert_ffn_size:
        flags += ["--moe-shared-expert-intermediate-size", str(model.shared_expert_ffn_size)]
        if model.shared_expert_gate:
            flags.append("--moe-shared-expert-gate")
    if model.router_bias:
        flags.append("--moe-router-enable-expert-bias")
    pattern = [int(model.layer_kinds()[kind].is_moe) for kind in model.kind_of_layer]
    if not all(pattern):
        first = model.first_dense_layers
        plain = model.moe_layer_freq == 1
        rest = f"[1]*{model.num_layers - first}" if plain else str(pattern[first:]).replace(" ", "")
        flags += ["--moe-layer-freq", f"([0]*{first}+{rest})" if first else f"({rest})"]
    return flags


def model_of_flags(flags: Flags, name: str) -> Model:
    """Return the model that flags describe, with Megatron-LM's defaults.

    Raises
    ------
    FrameworkConfigError
        If a needed flag is missing or the model is contradictory.
    """
    layers, hidden = flags.need("--num-layers"), flags.need("--hidden-size")
    heads, swiglu = flags.need("--num-attention-heads"), flags.has("--swiglu")
    default_ffn = int(4 * hidden * 2 / 3 / 64) * 64 if swiglu else 4 * hidden
    ffn = flags.number("--ffn-hidden-size", default_ffn)
    biased = not flags.has("--disable-bias-linear")
    qkv_bias = flags.has("--add-qkv-bias") or biased
    positions = {flag: name for name, flag in _POSITIONS.items()}
    position = flags.text("--position-embedding-type", "learned_absolute")
    if flags.has("--use-rotary-position-embeddings"):
        position = "rope"
    if position not in positions:
        raise FrameworkConfigError(
            f"--position-embedding-type: expected one of {', '.join(positions)}, got {position!r}"
        )
    longest = flags.number("--max-position-embeddings", 0)
    values: dict[str, Any] = {
        "name": name,
        "num_layers": layers,
        "hidden_size": hidden,
        "num_heads": heads,
        "gated_mlp": swiglu,
        "vocab_size": _vocabulary(flags),
        "tied_embeddings": not flags.has("--untie-embeddings-and-output-weights"),
        "linear_bias": biased,
        "qkv_bias": qkv_bias,
        "attention_out_bias": biased,
        "norm": "rmsnorm" if flags.text("--normalization", "LayerNorm") == "RMSNorm" else "layernorm",
        "qk_norm": flags.has("--qk-layernorm"),
        "position": positions[position],
        "max_positions": longest if positions[position] == "learned" else 0,
        "attention_sinks": flags.text("--softmax-type", "vanilla") == "learnable",
        "mtp_layers": flags.number("--mtp-num-layers", 0),
    }
    values |= _attention(flags, heads)
    window = flags.text("--window-size", "")
    if window:
        values["sliding_window"] = int(window.strip("()").split(",")[0])
        values["full_attention_every"] = flags.number("--window-attn-skip-freq", 0)
    values |= _experts(flags, layers, ffn)
    try:
        return make_model(values, "megatron")
    except ModelConfigError as error:
        raise FrameworkConfigError(str(error)) from None


def _vocabulary(flags: Flags) -> int:
    """Return the rows of the table that Megatron-LM stores: padded to a multiple over TP."""
    padded = flags.number("--padded-vocab-size")
    if padded is not None:
        return padded
    multiple = flags.number("--make-vocab-size-divisible-by", 128) * flags.number(
        "--tensor-model-parallel-size", 1
    )
    size = flags.need("--vocab-size")
    # A multiple of one is a table that is padded already.
    return (
        size if flags.number("--make-vocab-size-divisible-by", 128) == 1 else ceil(size / multiple) * multiple
    )


def _attention(flags: Flags, heads: int) -> dict[str, Any]:
    if flags.has("--multi-latent-attention"):
        return {
            "attention": "mla",
            "q_lora_rank": flags.number("--q-lora-rank", 0),
            "kv_lora_rank": flags.number("--kv-lora-rank", 32),
            "qk_nope_head_dim": flags.number("--qk-head-dim", 128),
            "qk_rope_head_dim": flags.number("--qk-pos-emb-head-dim", 64),
            "v_head_dim": flags.number("--v-head-dim", 128),
        }
    groups = flags.number("--num-query-groups", 1)
    kv_heads = groups if flags.has("--group-query-attention") else heads
    channels = flags.number("--kv-channels")
    return {"num_kv_heads": kv_heads} | ({} if channels is None else {"head_dim": channels})


def _experts(flags: Flags, layers: int, ffn: int) -> dict[str, Any]:
    """Read the experts; where every layer has them there is no dense MLP."""
    experts = flags.number("--num-experts", 0)
    if not experts:
        return {"ffn_size": ffn}
    pattern = layer_pattern(flags.text("--moe-layer-freq", "1"), layers)
    first = pattern.index(1) if 1 in pattern else layers
    freq = next((step for step in range(1, layers + 1) if _follows(pattern, first, step)), 0)
    if not freq:
        # The first MoE layer may itself end a run of n.
        first, freq = _leading(pattern)
    values = {
        "num_experts": experts,
        "top_k": flags.number("--moe-router-topk", 2),
        "expert_ffn_size": flags.number("--moe-ffn-hidden-size", ffn),
        "shared_expert_ffn_size": flags.number("--moe-shared-expert-intermediate-size", 0),
        "shared_expert_gate": flags.has("--moe-shared-expert-gate"),
        "router_bias": flags.has("--moe-router-enable-expert-bias"),
        "first_dense_layers": first,
        "moe_layer_freq": freq,
    }
    return values if all(pattern) else {**values, "ffn_size": ffn}


def _follows(pattern: list[int], first: int, step: int) -> bool:
    """Whether after `first` dense layers every `step`-th layer, the last of each, is MoE."""
    expected = [int(i >= first and (i - first + 1) % step == 0) for i in range(len(pattern))]
    return expected == pattern


def _leading(pattern: list[int]) -> tuple[int, int]:
    """Return dense layers at the start and the period of a pattern whose first MoE layer ends a period."""
    for first in range(len(pattern)):
        for step in range(1, len(pattern) + 1):
            if _follows(pattern, first, step):
                return first, step
    raise FrameworkConfigError("--moe-layer-freq: only every n-th layer after some dense ones is supported")
