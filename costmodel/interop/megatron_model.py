"""The model in Megatron-LM's arguments, both ways."""

from __future__ import annotations

from typing import Any

from costmodel.base.errors import CostModelError, ModelConfigError
from costmodel.describe.models.model import Model, make_model
from costmodel.describe.models.model_files import load_model
from costmodel.interop.assertions.megatron_arguments import has_biases, has_expert_bias, positions_of
from costmodel.interop.framework import FrameworkConfigError
from costmodel.interop.megatron_flags import OTHER_MIXERS
from costmodel.interop.megatron_mixers import (
    PATTERNS,
    RATIOS,
    hybrid_pattern,
    is_hybrid,
    mixer_flags,
    take_mixers,
)
from costmodel.interop.megatron_text import Flags, layer_pattern

_POSITIONS = {"learned": "learned_absolute", "rope": "rope", "none": "none"}


def model_flags(model: Model, longest: int = 0) -> list[str]:
    """Return the flags that describe a model whose sequences have at most `longest` tokens.

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
    concentrated = model.rope_concentration and model.attention != "mla"
    flags += ["--position-embedding-type", "yarn" if concentrated else _POSITIONS[model.position]]
    flags += ["--max-position-embeddings", str(positions_of(model, longest))]
    flags += ["--normalization", "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm"]
    if model.rope_theta and model.position == "rope":
        flags += ["--rotary-base", f"{model.rope_theta:.0f}"]
    if model.rotary_share < 1 and model.attention != "mla":
        flags += ["--rotary-percent", f"{model.rotary_share!r}"]
    if model.norm_epsilon:
        flags += ["--norm-epsilon", f"{model.norm_epsilon!r}"]
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
        # Norms of the compressed queries, keys and values.
        flags.append("--qk-layernorm")
    else:
        flags += ["--kv-channels", str(model.head_dim)]
        if model.num_kv_heads != model.num_heads:
            flags += ["--group-query-attention", "--num-query-groups", str(model.num_kv_heads)]
    if model.activation_clamp:
        # gpt-oss: a clamped SwiGLU with sigmoid(1.702 x), one added to its linear half (arXiv:2508.10925, section 2.3).
        flags += ["--quick-geglu", "--glu-linear-offset", "1.0", "--activation-func-clamp-value", "7.0"]
    elif model.gated_mlp:
        flags.append("--swiglu")
    if not model.tied_embeddings:
        flags.append("--untie-embeddings-and-output-weights")
    if not has_biases(model):
        flags.append("--disable-bias-linear")
        if model.qkv_bias:
            flags.append("--add-qkv-bias")
    if model.qk_norm:
        flags.append("--qk-layernorm")
    if model.attention_sinks:
        flags += ["--softmax-type", "learnable"]
    if model.sliding_window:
        flags += ["--window-size", f"{model.sliding_window - 1},0"]
        if model.full_attention_every:
            flags += ["--window-attn-skip-freq", str(model.full_attention_every)]
    if model.mtp_layers:
        flags += ["--mtp-num-layers", str(model.mtp_layers)]
    return flags + mixer_flags(model) + _expert_flags(model)


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
    if has_expert_bias(model):
        flags.append("--moe-router-enable-expert-bias")
    flags += ["--moe-router-dtype", "fp32"]
    if has_expert_bias(model) or model.top_k == 1:
        flags += ["--moe-router-score-function", "sigmoid"]
    if model.expert_groups:
        flags += ["--moe-router-num-groups", str(model.expert_groups)]
        flags += ["--moe-router-group-topk", str(model.groups_per_token)]
    pattern = [int(model.layer_kinds()[kind].is_moe) for kind in model.kind_of_layer]
    if not all(pattern) and not is_hybrid(model):
        first = model.first_dense_layers
        plain = model.moe_layer_freq == 1
        rest = f"[1]*{model.num_layers - first}" if plain else str(pattern[first:]).replace(" ", "")
        flags += ["--moe-layer-freq", f"([0]*{first}+{rest})" if first else f"({rest})"]
    return flags


# Words for positions in flags of all ages, with ours.
_ALL_POSITIONS = {
    **{flag: name for name, flag in _POSITIONS.items()},
    "learned": "learned",
    "absolute": "learned",
    "rotary": "rope",
    "yarn": "rope",
    "mrope": "rope",
    "alibi": "alibi",
}
_GATED = ("--swiglu", "--geglu", "--quick-geglu", "--quick-glu", "--gated-linear-unit")
_GLU = ("swiglu", "geglu", "reglu", "liglu")
_TOKENIZERS = {"GPT2BPETokenizer": 50257}


def model_of_flags(flags: Flags, name: str, notes: list[str] | None = None) -> Model:
    """Return the model that flags describe, with Megatron-LM's defaults.

    Parameters
    ----------
    flags : Flags
        Of the program.
    name : str
        For the model.
    notes : list of str, optional
        Takes sentences on what was understood from something else than a flag of its own.

    Raises
    ------
    FrameworkConfigError
        If a needed flag is missing or the model is contradictory.
    """
    said: list[str] = [] if notes is None else notes
    if (pattern := hybrid_pattern(flags)) and "--num-layers" not in flags.names():
        flags.give("--num-layers", len(pattern))
    if any("/" in flags.text(flag, "") for flag in PATTERNS):
        said.append("prediction layers, behind the slash of the pattern, are not priced")
    values = _dimensions(flags, name)
    layers = values["num_layers"]
    position = flags.text("--position-embedding-type", "learned_absolute")
    if flags.has("--use-rotary-position-embeddings"):
        position = "rope"
    if position not in _ALL_POSITIONS:
        raise FrameworkConfigError(
            f"--position-embedding-type: expected one of {', '.join(sorted(_ALL_POSITIONS))}, got {position!r}"
        )
    values["position"] = _ALL_POSITIONS[position]
    values["rope_concentration"] = position == "yarn"
    # Without a length of its own the table is as long as the sequence.
    if values["position"] == "learned":
        values["max_positions"] = flags.number("--max-position-embeddings", flags.number("--seq-length", 0))
    values |= _details(flags, values["position"])
    values["vocab_size"] = _vocabulary(flags, said)
    biased = not flags.has("--disable-bias-linear")
    values |= {
        "linear_bias": biased,
        "qkv_bias": flags.has("--add-qkv-bias") or biased,
        "attention_out_bias": flags.has("--add-dense-bias") or biased,
        "qk_norm": flags.has("--qk-layernorm") and values.get("attention") != "mla",
        "embedding_norm": flags.has("--embed-layernorm"),
        "attention_sinks": flags.text("--softmax-type", "vanilla") == "learnable",
        "mtp_layers": flags.number("--mtp-num-layers", 0),
        "parallel_block": flags.has("--parallel-attn"),
    }
    if flags.has("--post-norm") or flags.has("--use-post-norm"):
        values["norms_per_layer"] = 4
    values |= _windows(flags)
    spec = flags.words("--spec")
    if spec and not any(
        known in " ".join(spec) for known in ("deepseek", "gpt_layer_specs", "local", "te_spec")
    ):
        said.append(f"--spec {' '.join(spec)}: the layers are priced as the other flags describe them")
    ffn = values.pop("ffn_size")
    values |= _experts(flags, layers, ffn)
    values |= take_mixers(flags, values)
    if pattern:
        values = _of_one_block({**values, "ffn_size": ffn})
    try:
        return make_model(values, "megatron")
    except ModelConfigError as error:
        raise FrameworkConfigError(str(error)) from None


def _details(flags: Flags, position: str) -> dict[str, Any]:
    """Return what has no price, as far as the flags say it."""
    numbers = {"norm_epsilon": flags.plain_number("--norm-epsilon")}
    if position == "rope":
        numbers["rope_theta"] = flags.plain_number("--rotary-base")
        numbers["rotary_share"] = flags.plain_number("--rotary-percent")
    found: dict[str, Any] = {name: number for name, number in numbers.items() if number}
    if position != "learned" and (longest := flags.plain_number("--max-position-embeddings")):
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
    names = flags.names()
    variant = flags.text("--experimental-attention-variant", "")
    if variant in ("gated_delta_net", "dsa") or set(names) & {*PATTERNS, *RATIOS}:
        return ""
    found = [flag for flag in OTHER_MIXERS if flag in names and flag not in ("--attention-output-gate",)]
    spec = " ".join(flags.words("--spec")).lower()
    if "qwen3_next" in spec or "mamba" in spec or "linear_attention" in spec:
        found = found or ["--spec"]
    flags.pass_over(*OTHER_MIXERS)
    if not found:
        return ""
    return f"{found[0]}: the flags do not say all sizes of these layers; give --model NAME or its config.json"


def shape_of_flags(flags: Flags) -> dict[str, Any]:
    """Return the dimensions of a model whose layers cannot be priced."""
    values = _dimensions(flags, "megatron")
    values |= _expert_counts(flags)
    flags.pass_over(
        "--qk-layernorm", "--disable-bias-linear", "--add-qkv-bias", "--mtp-num-layers", "--vocab-size"
    )
    flags.pass_over("--padded-vocab-size", "--make-vocab-size-divisible-by", "--position-embedding-type")
    return values


def _dimensions(flags: Flags, name: str) -> dict[str, Any]:
    """Return layers, widths, heads and what an MLP is made of."""
    noop = [part for part in flags.text("--noop-layers", "").split(",") if part.strip()]
    hidden, heads = flags.need("--hidden-size"), flags.need("--num-attention-heads")
    gated = any([flags.has(flag) for flag in _GATED]) | (flags.text("--glu-activation", "") in _GLU)
    default_ffn = int(4 * hidden * 2 / 3 / 64) * 64 if flags.has("--swiglu") else 4 * hidden
    norm = flags.text("--normalization", "LayerNorm").lower().replace("_", "").replace("-", "")
    if norm not in ("rmsnorm", "layernorm", "l2norm"):
        raise FrameworkConfigError(f"--normalization: expected LayerNorm or RMSNorm, got {norm!r}")
    flags.pass_over(
        "--squared-relu", "--activation-func-clamp-value", "--glu-linear-offset", "--enable-gpt-oss"
    )
    flags.pass_over("--openai-gelu", "--onnx-safe", "--reference-swiglu", "--bert-no-binary-head")
    return {
        "name": name,
        "num_layers": flags.need("--num-layers") - len(noop),
        "hidden_size": hidden,
        "num_heads": heads,
        "gated_mlp": gated,
        "activation_clamp": flags.real("--activation-func-clamp-value", 0.0) > 0,
        "ffn_size": flags.number("--ffn-hidden-size", default_ffn),
        "tied_embeddings": not (
            flags.has("--untie-embeddings-and-output-weights") | flags.has("--no-tie-embed-logits")
        ),
        "norm": "rmsnorm" if norm == "rmsnorm" or flags.has("--use-rms-norm") else "layernorm",
        **_attention(flags, heads),
    }


def _vocabulary(flags: Flags, notes: list[str]) -> int:
    """Return the rows of the table that Megatron-LM stores: padded to a multiple over TP."""
    padded = flags.number("--padded-vocab-size")
    each = flags.number("--make-vocab-size-divisible-by", 128)
    size = flags.number("--vocab-size")
    if padded is not None and size is None:
        return padded
    if size is None:
        size = _tokenizer_size(flags, notes)
    multiple = each * flags.number("--tensor-model-parallel-size", 1)
    # A multiple of one is a table that is padded already.
    return size if each == 1 else -(-size // multiple) * multiple


def _tokenizer_size(flags: Flags, notes: list[str]) -> int:
    """Return the vocabulary of a tokenizer that is known by name."""
    kind, named = flags.text("--tokenizer-type", ""), ""
    for flag in ("--tokenizer-model", "--tokenizer-name-or-path"):
        named = named or flags.text(flag, "")
    by_name = not kind and "--vocab-file" in flags.names()  # older Megatron's default
    if kind in _TOKENIZERS or by_name:
        size = _TOKENIZERS[kind if kind in _TOKENIZERS else "GPT2BPETokenizer"]
        notes.append(f"vocabulary: {size} tokens of {kind or 'GPT2BPETokenizer'}")
        return size
    if named:
        try:
            size = load_model(named).vocab_size
        except CostModelError:
            size = 0
        if size:
            notes.append(f"vocabulary: {size} tokens of {named}")
            return size
    raise FrameworkConfigError(
        "megatron: --vocab-size is missing: Megatron takes it from the tokenizer; give --vocab-size"
    )


def _attention(flags: Flags, heads: int) -> dict[str, Any]:
    if flags.has("--multi-latent-attention") | flags.has("--multi-head-latent-attention"):
        flags.pass_over("--kv-channels", "--num-query-groups", "--group-query-attention")
        return {
            "attention": "mla",
            "q_lora_rank": flags.number("--q-lora-rank", 0),
            "kv_lora_rank": flags.number("--kv-lora-rank", 32),
            "qk_nope_head_dim": flags.number("--qk-head-dim", flags.number("--qk-nope-head-dim", 128)),
            "qk_rope_head_dim": flags.number("--qk-pos-emb-head-dim", flags.number("--qk-rope-head-dim", 64)),
            "v_head_dim": flags.number("--v-head-dim", 128),
        }
    groups = flags.number("--num-query-groups", 1)
    kv_heads = groups if flags.has("--group-query-attention") else heads
    kv_heads = flags.number("--num-key-value-heads", flags.number("--num-attention-heads-kv", kv_heads))
    if flags.text("--attention-head-type", "multihead") == "multiquery":
        kv_heads = 1
    channels = flags.number("--kv-channels")
    return {"num_kv_heads": kv_heads} | ({} if channels is None else {"head_dim": channels})


def _windows(flags: Flags) -> dict[str, Any]:
    """Read sliding windows: Megatron counts the tokens before the query, we count the query too."""
    window = " ".join(flags.words("--window-size")).strip("() ").replace(" ", ",")
    if not window:
        return {}
    before = window.split(",")[0]
    if not before.lstrip("-").isdigit():
        raise FrameworkConfigError(f"--window-size: expected two numbers such as 127,0, got {window!r}")
    if int(before) < 0:
        return {}
    return {
        "sliding_window": int(before) + 1,
        "full_attention_every": flags.number("--window-attn-skip-freq", 0),
    }


def _expert_counts(flags: Flags) -> dict[str, Any]:
    """Return how many experts there are, and how many a token visits."""
    experts = flags.number("--num-experts", 0)
    if experts <= 1:
        return {}
    old = flags.has("--moe-expert-parallel-size")
    return {
        "num_experts": experts,
        "top_k": flags.number("--moe-router-topk", flags.number("--topk", 1 if old else 2)),
    }


def _experts(flags: Flags, layers: int, ffn: int) -> dict[str, Any]:
    """Read the experts; where every layer has them there is no dense MLP."""
    counts = _expert_counts(flags)
    if not counts:
        return {"ffn_size": ffn}
    if flags.has("--moe-expert-parallel-size"):
        # Megatron-DeepSpeed: every second layer unless told otherwise (megatron/arguments.py, --expert-interval).
        every = flags.number("--expert-interval", 2)
        return {
            **counts,
            "expert_ffn_size": ffn,
            "moe_layer_freq": every,
            "ffn_size": ffn if every > 1 else 0,
        }
    dense = flags.number("--first-k-dense-replace", 0)
    pattern = layer_pattern(flags.text("--moe-layer-freq", "1"), layers)
    pattern = [int(bool(each) and place >= dense) for place, each in enumerate(pattern)]
    first = pattern.index(1) if 1 in pattern else layers
    freq = int(_follows(pattern, first, 1))
    places: dict[str, Any] = {"first_dense_layers": first, "moe_layer_freq": freq}
    if not freq:
        # The first MoE layer may itself end a run of n; what has no period is a pattern.
        leading = _leading(pattern)
        places = (
            {"mlp_pattern": "".join("e" if each else "d" for each in pattern)}
            if leading is None
            else {"first_dense_layers": leading[0], "moe_layer_freq": leading[1]}
        )
    width = flags.number("--moe-ffn-hidden-size", flags.number("--moe-intermediate-size", ffn))
    shared = flags.number("--moe-shared-expert-intermediate-size", 0)
    number = flags.number("--n-shared-experts", 1)
    values = {
        **counts,
        "expert_ffn_size": width,
        "shared_expert_ffn_size": shared or ("--n-shared-experts" in flags.names()) * number * width,
        "shared_expert_gate": flags.has("--moe-shared-expert-gate"),
        # With biases in all linear layers the gate has one as well (megatron/core/transformer/moe/router.py).
        "router_bias": flags.has("--moe-router-enable-expert-bias")
        | (not flags.has("--disable-bias-linear")),
        **_groups(flags),
        **places,
    }
    return values if all(pattern) else {**values, "ffn_size": ffn}


def _groups(flags: Flags) -> dict[str, Any]:
    """Return the groups that routing is limited to, if to fewer than all."""
    groups, used = flags.number("--moe-router-num-groups", 0), flags.number("--moe-router-group-topk", 0)
    return {"expert_groups": groups, "groups_per_token": used} if 1 <= used < groups else {}


def _follows(pattern: list[int], first: int, step: int) -> bool:
    """Whether after `first` dense layers every `step`-th layer, the last of each, is MoE."""
    expected = [int(i >= first and (i - first + 1) % step == 0) for i in range(len(pattern))]
    return expected == pattern


def _leading(pattern: list[int]) -> tuple[int, int] | None:
    """Return dense layers at the start and the period of a pattern whose first MoE layer ends a period."""
    experts = [i for i, expert in enumerate(pattern) if expert]
    if not experts:
        return (1, len(pattern)) if len(pattern) > 1 else None
    step = experts[1] - experts[0] if len(experts) > 1 else experts[0] + 1
    first = experts[0] + 1 - step
    return (first, step) if first >= 0 and _follows(pattern, first, step) else None
