"""The model in Megatron-LM's arguments, both ways."""

from __future__ import annotations

from typing import Any

from costmodel.base.errors import ModelConfigError
from costmodel.describe.models.model import Model, make_model
from costmodel.interop.assertions.facts import has_biases, has_expert_bias, positions_of
from costmodel.interop.framework import FrameworkConfigError, known_model
from costmodel.interop.keys import Flags, key_table
from costmodel.interop.megatron_mixers import (
    hybrid_pattern,
    is_hybrid,
    layer_pattern,
    linear_variant,
    mixer_arguments,
    take_mixers,
)

_WORDS = key_table("megatron").more["words"]
_TOKENIZERS = {"GPT2BPETokenizer": 50257}
_LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def model_arguments(model: Model, longest: int = 0) -> dict[str, Any]:
    """Return the arguments that describe a model whose sequences have at most `longest` tokens, by our names."""
    if model.position not in ("learned", "rope", "none"):
        raise FrameworkConfigError(f"emit: Megatron-LM has no position embedding {model.position!r}")
    latent = model.attention == "mla"
    rotates = model.position == "rope"
    grouped = not latent and model.num_kv_heads != model.num_heads
    biased = has_biases(model)
    found: dict[str, Any] = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_heads": model.num_heads,
        "ffn_size": model.ffn_size or model.expert_ffn_size,
        "vocab_size": model.vocab_size,
        "vocab_multiple": 1,
        "position": "yarn" if model.rope_concentration and not latent else model.position,
        "max_positions": positions_of(model, longest),
        "norm": model.norm,
        "rope_theta": f"{model.rope_theta:.0f}" if model.rope_theta and rotates else None,
        "rotary_share": model.rotary_share if model.rotary_share < 1 and not latent else None,
        "norm_epsilon": model.norm_epsilon or None,
        "mla": latent,
        **({name: getattr(model, name) or None for name in _LATENT} if latent else {}),
        "head_dim": None if latent else model.head_dim,
        "grouped_queries": grouped,
        "query_groups": model.num_kv_heads if grouped else None,
        "swiglu": model.gated_mlp,
        "untied": not model.tied_embeddings,
        "no_bias": not biased,
        "qkv_bias": model.qkv_bias and not biased,
        # With latent attention the norms of the compressed queries, keys and values.
        "qk_norm": latent or model.qk_norm,
        "softmax": "learnable" if model.attention_sinks else None,
        "window": f"{model.sliding_window - 1},0" if model.sliding_window else None,
        "window_skip": model.full_attention_every or None if model.sliding_window else None,
        "mtp_layers": model.mtp_layers or None,
        **mixer_arguments(model),
        **_expert_arguments(model),
    }
    if model.activation_clamp:
        # gpt-oss: a clamped SwiGLU with sigmoid(1.702 x), one added to its linear half (arXiv:2508.10925, section 2.3).
        found |= {"swiglu": False, "quick_geglu": True, "glu_offset": "1.0", "activation_clamp": "7.0"}
    return found


def _expert_arguments(model: Model) -> dict[str, Any]:
    if not model.num_experts:
        return {}
    balanced = has_expert_bias(model)
    found: dict[str, Any] = {
        "num_experts": model.num_experts,
        "top_k": model.top_k,
        "expert_ffn_size": model.expert_ffn_size,
        "shared_expert_ffn_size": model.shared_expert_ffn_size or None,
        "shared_expert_gate": bool(model.shared_expert_ffn_size) and model.shared_expert_gate,
        "router_bias": balanced,
        "router_dtype": "fp32",
        "router_score": "sigmoid" if balanced or model.top_k == 1 else None,
        "expert_groups": model.expert_groups or None,
        "groups_per_token": model.groups_per_token if model.expert_groups else None,
    }
    pattern = [int(model.layer_kinds()[kind].is_moe) for kind in model.kind_of_layer]
    if not all(pattern) and not is_hybrid(model):
        first = model.first_dense_layers
        plain = model.moe_layer_freq == 1
        rest = f"[1]*{model.num_layers - first}" if plain else str(pattern[first:]).replace(" ", "")
        found["moe_layer_freq"] = f"([0]*{first}+{rest})" if first else f"({rest})"
    return found


def model_of_flags(flags: Flags, name: str, notes: list[str]) -> Model:
    """Return the model that flags describe, with Megatron-LM's defaults; `notes` takes what was understood otherwise."""
    if (pattern := hybrid_pattern(flags)) and not flags.has("num_layers"):
        flags.set("num_layers", len(pattern))
    if "/" in flags["hybrid_pattern"]:
        notes.append("prediction layers, behind the slash of the pattern, are not priced")
    values = _dimensions(flags, name)
    layers, ffn = values["num_layers"], values.pop("ffn_size")
    biased = not flags["no_bias"]
    values |= {
        **_positions(flags),
        "vocab_size": _vocabulary(flags, notes),
        "linear_bias": biased,
        "qkv_bias": flags["qkv_bias"] or biased,
        "attention_out_bias": flags["out_bias"] or biased,
        "qk_norm": flags["qk_norm"] and not flags["mla"],
        "embedding_norm": flags["embedding_norm"],
        "attention_sinks": flags["softmax"] == "learnable",
        "mtp_layers": flags["mtp_layers"],
        "parallel_block": flags["parallel_block"],
        **({"norms_per_layer": 4} if flags["post_norm"] else {}),
        **({"norm_epsilon": epsilon} if (epsilon := flags["norm_epsilon"]) else {}),
        **_windows(flags),
        **_experts(flags, layers, ffn),
        **take_mixers(flags, values["hidden_size"], layers),
    }
    spec = " ".join(flags["spec"])
    if spec and not any(known in spec for known in ("deepseek", "gpt_layer_specs", "local", "te_spec")):
        notes.append(f"--spec {spec}: the layers are priced as the other flags describe them")
    if pattern:
        values = _of_one_block({**values, "ffn_size": ffn})
    try:
        return make_model(values, "megatron")
    except ModelConfigError as error:
        raise FrameworkConfigError(str(error)) from None


def _positions(flags: Flags) -> dict[str, Any]:
    """Return positions as far as the flags say them."""
    spelled = "rope" if flags["rope"] else flags["position"]
    longest = flags["max_positions"]
    found: dict[str, Any] = {
        "position": "rope" if spelled == "yarn" else spelled,
        "rope_concentration": spelled == "yarn",
    }
    if found["position"] == "rope":
        found |= {name: flags[name] for name in ("rope_theta", "rotary_share") if flags[name]}
    if spelled == "learned":
        flags.text(flags.key("max_positions"))  # refuses what only a variable says
        # Without a length of its own the table is as long as the sequence.
        found["max_positions"] = int(flags["seq_len"] or 0 if longest is None else longest)
    elif longest:
        found["context_length"] = int(longest)
    return found


def _of_one_block(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a model whose pattern says where its experts and its dense MLPs are."""
    absent = {"first_dense_layers", "moe_layer_freq"}
    absent |= {"ffn_size"} if "d" not in values["mlp_pattern"] else set()
    if "e" not in values["mlp_pattern"]:
        absent |= {
            key for key in values if "expert" in key or key in ("top_k", "router_bias", "groups_per_token")
        }
    return {key: value for key, value in values.items() if key not in absent}


def other_mixer(flags: Flags) -> str:
    """Say why the layers cannot be priced, empty where they can."""
    if flags["custom_model"]:
        return (
            f"{flags.key('custom_model')}: the layers are in that code; give --model NAME or its config.json"
        )
    if linear_variant(flags) in ("gated_delta_net", "dsa") or flags.has("hybrid_pattern"):
        return ""
    found = [flag for flag in _WORDS["other_mixers"].split() if flag in flags.raw]
    spec = " ".join(flags["spec"]).lower()
    if any(word in spec for word in ("qwen3_next", "mamba", "linear_attention")):
        found.append("--spec")
    if not found:
        return ""
    return f"{found[0]}: the flags do not say all sizes of these layers; give --model NAME or its config.json"


def shape_of_flags(flags: Flags) -> dict[str, Any]:
    """Return the dimensions of a model whose layers cannot be priced."""
    return {**_dimensions(flags, "megatron"), **_expert_counts(flags)}


def _dimensions(flags: Flags, name: str) -> dict[str, Any]:
    """Return layers, widths, heads and what an MLP is made of."""
    hidden, heads = flags.require("hidden_size"), flags.require("num_heads")
    gated = flags["swiglu"] or flags["quick_geglu"] or flags["gated_older"]
    default_ffn = int(4 * hidden * 2 / 3 / 64) * 64 if flags["swiglu"] else 4 * hidden
    return {
        "name": name,
        "num_layers": flags.require("num_layers") - len(noop_layers(flags)),
        "hidden_size": hidden,
        "num_heads": heads,
        "gated_mlp": gated or flags["glu_activation"] in _WORDS["glu_activations"],
        "activation_clamp": flags["activation_clamp"] > 0,
        "ffn_size": default_ffn if flags["ffn_size"] is None else flags["ffn_size"],
        "tied_embeddings": not flags["untied"],
        "norm": "rmsnorm" if flags["rms_norm"] else flags["norm"],
        **_attention(flags, heads),
    }


def noop_layers(flags: Flags) -> list[str]:
    """Return the places of layers that do nothing."""
    return [part.strip() for part in flags["noop_layers"].replace(";", ",").split(",") if part.strip()]


def _vocabulary(flags: Flags, notes: list[str]) -> int:
    """Return the rows of the table that Megatron-LM stores: padded to a multiple over TP."""
    size, padded = flags["vocab_size"], flags["padded_vocab_size"]
    if size is None and padded is not None:
        return int(padded)
    if size is None:
        size = _tokenizer_size(flags, notes)
    multiple = flags["vocab_multiple"] * flags["tp"]
    # A multiple of one is a table that is padded already.
    return int(size if flags["vocab_multiple"] == 1 else -(-size // multiple) * multiple)


def _tokenizer_size(flags: Flags, notes: list[str]) -> int:
    """Return the vocabulary of a tokenizer that is known by name."""
    kind, named = (
        "" if flags.unresolved(flags.key(name)) else flags[name] for name in ("tokenizer_type", "tokenizer")
    )
    if not kind and flags.has("vocab_file"):
        kind = "GPT2BPETokenizer"  # older Megatron's default
    model = None if kind in _TOKENIZERS or not named else known_model(named)
    size = _TOKENIZERS.get(kind) or (model.vocab_size if model else 0)
    if not size:
        raise FrameworkConfigError(
            "megatron: --vocab-size is missing: Megatron takes it from the tokenizer; give --vocab-size"
        )
    notes.append(f"vocabulary: {size} tokens of {kind if kind in _TOKENIZERS else named}")
    return size


def _attention(flags: Flags, heads: int) -> dict[str, Any]:
    if flags["mla"]:
        return {"attention": "mla", **{name: flags[name] for name in _LATENT}}
    kv_heads = flags["num_kv_heads"]
    if kv_heads is None:
        kv_heads = flags["query_groups"] if flags["grouped_queries"] else heads
    if flags["head_type"] == "multiquery":
        kv_heads = 1
    channels = flags["head_dim"]
    return {"num_kv_heads": kv_heads} | ({} if channels is None else {"head_dim": channels})


def _windows(flags: Flags) -> dict[str, Any]:
    """Read sliding windows: Megatron counts the tokens before the query, we count the query too."""
    window = " ".join(flags["window"]).strip("() ").replace(" ", ",")
    before = window.split(",")[0]
    if window and not before.lstrip("-").isdigit():
        raise FrameworkConfigError(f"--window-size: expected two numbers such as 127,0, got {window!r}")
    if not window or int(before) < 0:
        return {}
    return {"sliding_window": int(before) + 1, "full_attention_every": flags["window_skip"]}


def _expert_counts(flags: Flags) -> dict[str, Any]:
    """Return how many experts there are, and how many a token visits."""
    if flags["num_experts"] <= 1:
        return {}
    default_top_k = 1 if flags.has("deepspeed_ep") else 2
    return {
        "num_experts": flags["num_experts"],
        "top_k": default_top_k if flags["top_k"] is None else flags["top_k"],
    }


def _experts(flags: Flags, layers: int, ffn: int) -> dict[str, Any]:
    """Read the experts; where every layer has them there is no dense MLP."""
    counts = _expert_counts(flags)
    if not counts:
        return {"ffn_size": ffn}
    if flags.has("deepspeed_ep"):
        # Megatron-DeepSpeed: every second layer where nothing is said (megatron/arguments.py, --expert-interval).
        every = flags["expert_interval"]
        dense = ffn if every > 1 else 0
        return {**counts, "expert_ffn_size": ffn, "moe_layer_freq": every, "ffn_size": dense}
    pattern = layer_pattern(flags["moe_layer_freq"], layers)
    pattern = [int(bool(each) and place >= flags["first_dense_layers"]) for place, each in enumerate(pattern)]
    width = ffn if flags["expert_ffn_size"] is None else flags["expert_ffn_size"]
    limited = 1 <= flags["groups_per_token"] < flags["expert_groups"]
    values = {
        **counts,
        "expert_ffn_size": width,
        "shared_expert_ffn_size": flags["shared_expert_ffn_size"] or flags["shared_experts"] * width,
        "shared_expert_gate": flags["shared_expert_gate"],
        # With biases in all linear layers the gate has one as well (megatron/core/transformer/moe/router.py).
        "router_bias": flags["router_bias"] or not flags["no_bias"],
        "expert_groups": flags["expert_groups"] if limited else 0,
        "groups_per_token": flags["groups_per_token"] if limited else 0,
        **_places(pattern),
    }
    return values if all(pattern) else {**values, "ffn_size": ffn}


def _places(pattern: list[int]) -> dict[str, Any]:
    """Return which layers have experts: dense ones first and then one in so many, or letter by letter."""
    experts = [place for place, expert in enumerate(pattern) if expert]
    first = experts[0] if experts else len(pattern)
    # The first MoE layer may itself end a run of n.
    step = experts[1] - experts[0] if len(experts) > 1 else first + 1
    for dense, every in ((first, 1), (first + 1 - step, step)):
        expected = [int(i >= dense and (i - dense + 1) % every == 0) for i in range(len(pattern))]
        if dense >= 0 and expected == pattern:
            return {"first_dense_layers": dense, "moe_layer_freq": every}
    return {"mlp_pattern": "".join("e" if each else "d" for each in pattern)}
