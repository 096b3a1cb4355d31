"""What families of HuggingFace configs share: values of the table, heads, biases, windows, and layers with experts."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from costmodel.base.errors import ModelConfigError, shown
from costmodel.describe.models.huggingface_keys import Keys

HIDDEN = ("hidden_size", "n_embd", "n_embed")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers")
HEADS = ("num_attention_heads", "n_head")
_FULL = ("full_attention", "attention", "global")
_WINDOWED = ("sliding_attention", "chunked_attention", "local")


def value_of(keys: Keys, stated: Any) -> Any:
    """Return what an entry of ``huggingface.yaml`` means for a config; the table's head says how it is written."""
    if isinstance(stated, dict) and "if" in stated:
        return value_of(keys, stated["then"] if value_of(keys, stated["if"]) else stated["else"])
    if isinstance(stated, dict) and "case" in stated:
        return value_of(keys, stated.get(str(value_of(keys, stated["case"])), stated["else"]))
    if isinstance(stated, dict):
        return {name: value_of(keys, each) for name, each in stated.items()}
    if not isinstance(stated, str) or not re.search(r"[!|]", stated):
        return stated
    first, *rest = re.split(r" (\*|\+|//) ", stated)
    value = _term(keys, first)
    for sign, text in zip(rest[::2], rest[1::2], strict=True):
        other = _term(keys, text)
        value = value * other if sign == "*" else value + other if sign == "+" else value // other
    return value


def _term(keys: Keys, text: str) -> Any:
    """Return a number, or the value of a key: ``a, b !``, ``a | default``, ``a | default | null``, ``a ! | null``."""
    named, *defaults = text.split(" | ")
    if re.fullmatch(r"[\d.]+", named):
        return json.loads(named)
    names = named.removesuffix(" !").split(", ")
    values = [json.loads(default) for default in defaults]
    if named.endswith("!"):
        if values and names[0] in keys.raw:
            return keys.get(*names, default=values[0])
        return keys.need(*names)
    return keys.get(*names, default=values[-1] if names[0] in keys.raw else values[0])


def common_values(keys: Keys) -> dict[str, Any]:
    """Return what all families share, some under older names."""
    listed = keys.get("hybrid_override_pattern", "layers_block_type")
    layers = keys.get(*LAYERS, default=len(listed) if listed else None)
    return {
        "num_layers": keys.need(*LAYERS) if layers is None else layers,
        "hidden_size": keys.need(*HIDDEN),
        "num_heads": keys.need(*HEADS),
        "vocab_size": keys.need("vocab_size"),
        "tied_embeddings": keys.get("tie_word_embeddings", default=False),
    }


def grouped(keys: Keys) -> dict[str, Any]:
    """Return grouped-query attention with rotary positions and a gated MLP."""
    hidden, heads = keys.need(*HIDDEN), keys.need(*HEADS)
    # transformers rounds a head's width down where the heads do not divide the model's.
    whole = type(hidden) is int and type(heads) is int and heads > 0
    uneven = hidden // heads if whole and hidden % heads else None
    return {
        "num_kv_heads": keys.get("num_key_value_heads"),
        "head_dim": keys.get("head_dim", default=uneven),
        "gated_mlp": True,
    }


def biases(keys: Keys, default: bool = False) -> dict[str, Any]:
    """Return `attention_bias` of the families where it means all four projections."""
    bias = keys.get("attention_bias", default=default)
    return {"qkv_bias": bias, "attention_out_bias": bias}


def plain(keys: Keys, width: str = "") -> dict[str, Any]:
    """Return what GPT-likes have: LayerNorm, biases, an MLP of two matrices, 4 times the width or what the key `width` says."""
    ffn = keys.get(width) if width else None
    return {
        "ffn_size": 4 * keys.need(*HIDDEN) if ffn is None else ffn,
        "gated_mlp": False,
        "norm": "layernorm",
        "qkv_bias": True,
        "attention_out_bias": True,
        "linear_bias": True,
    }


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
        "q_lora_rank": value_of(keys, "q_lora_rank ! | 0"),
        "kv_lora_rank": keys.need("kv_lora_rank"),
        "qk_nope_head_dim": keys.need("qk_nope_head_dim"),
        "qk_rope_head_dim": keys.need("qk_rope_head_dim"),
        "v_head_dim": keys.need("v_head_dim"),
    }


def windows(keys: Keys, window: int | None, kinds: Sequence[str]) -> dict[str, Any]:
    """Turn a list of layer types into "all windowed but every n-th", or else into a pattern."""
    attends = attention_layers(keys, kinds, _WINDOWED)
    full = [number for number, each in enumerate(attends, start=1) if each]
    if not window or all(attends):
        return {}
    every = full[0] if full else 0
    if full == [number for number in range(1, len(attends) + 1) if every and number % every == 0]:
        return {"sliding_window": window, "full_attention_every": every}
    pattern = "".join("f" if each else "w" for each in attends)
    return {"sliding_window": window, "attention_pattern": pattern}


def full_or_sliding(full: Sequence[bool]) -> list[str]:
    """Return the types of layers that have full attention or not."""
    return ["full_attention" if each else "sliding_attention" for each in full]


def patterned_windows(keys: Keys, window: Any, every: Any, first: int = 0) -> dict[str, Any]:
    """Return windows given by `layer_types`, or in older files by a repeating pattern.

    `first` is 1 where the first layer of each period is the full one instead of the last.
    """
    period = keys.get("sliding_window_pattern", "_sliding_window_pattern", default=value_of(keys, every))
    if isinstance(period, str):
        # EXAONE writes the period as letters, such as LLLG.
        period = period.upper().index("G") + 1 if "G" in period.upper() else 0
    layers = range(1, keys.need("num_hidden_layers") + 1)
    usual = full_or_sliding([bool(period) and (number - first) % period == 0 for number in layers])
    return windows(keys, value_of(keys, window), keys.get("layer_types", default=usual))


def late_windows(keys: Keys, window: Any, first: Any, **switch: Any) -> dict[str, Any]:
    """Return windows from the layer `first` on, unless `layer_types` says where; none where the switch `if` is off."""
    width, begin = value_of(keys, window), value_of(keys, first)
    usual = full_or_sliding([i < begin for i in range(keys.need("num_hidden_layers"))])
    kinds = keys.get("layer_types", default=usual)
    return windows(keys, width, kinds) if value_of(keys, switch["if"]) else {}


def listed_windows(keys: Keys, window: Any, unlisted: str) -> dict[str, Any]:
    """Return windows where `layer_types` says; a file without it has them in all layers or none, or is refused."""
    width = value_of(keys, window)
    kinds = keys.need("layer_types") if unlisted == "refused" else keys.get("layer_types")
    if kinds is not None:
        return windows(keys, width, kinds)
    return {"sliding_window": width} if unlisted == "all" else {}


def expert_layers(keys: Keys, kinds: Sequence[bool]) -> dict[str, Any]:
    """Turn "has experts" of each layer into leading dense layers and a period, or else into a pattern."""
    layers = len(kinds)
    if layers != keys.need(*LAYERS, "num_layers"):
        raise keys.refuse(f"mlp_layer_types: has {layers} layers, expected as many as num_hidden_layers")
    first = list(kinds).index(True) if True in kinds else layers
    for step in range(1, layers - first + 1):
        for leading in {first, max(0, first + 1 - step)}:
            if list(kinds) == [i >= leading and (i - leading + 1) % step == 0 for i in range(layers)]:
                return {"first_dense_layers": leading, "moe_layer_freq": step}
    return {"mlp_pattern": "".join("e" if kind else "d" for kind in kinds)}


def leading_dense(keys: Keys, default: int | None = None) -> dict[str, Any]:
    """Return which layers have experts: `mlp_layer_types`, or some leading dense ones."""
    kinds = keys.get("mlp_layer_types")
    if kinds is not None:
        keys.get("first_k_dense_replace")
        return expert_layers(keys, [kind == "sparse" for kind in kinds])
    leading = keys.get("first_k_dense_replace", default=default)
    return {"first_dense_layers": keys.need("first_k_dense_replace") if leading is None else leading}


def sparse_steps(keys: Keys) -> dict[str, Any]:
    """Return which layers of a Qwen have experts: every so many, but for the named dense ones."""
    dense, step = keys.get("mlp_only_layers", default=[]), keys.get("decoder_sparse_step", default=1)
    if not keys.get("num_experts", "num_local_experts", default=0):
        return {}
    if type(step) is not int or step < 1:
        raise ModelConfigError(f"decoder_sparse_step: expected a whole number >= 1, got {shown(step)}")
    layers = range(keys.need("num_hidden_layers"))
    return expert_layers(keys, [i not in dense and (i + 1) % step == 0 for i in layers])


def routed(keys: Keys, leading: int | None = None) -> dict[str, Any]:
    """Return leading dense layers, then routed and shared experts of one width."""
    width, freq = keys.need("moe_intermediate_size"), keys.get("moe_layer_freq", default=1)
    experts = keys.need("n_routed_experts", "num_local_experts", "num_experts")
    shared = keys.get("n_shared_experts", "num_shared_experts", default=0)
    kinds = leading_dense(keys, leading)
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
    """Return the groups that routing is limited to (DeepSeek-V2, arXiv:2405.04434, section 2.2.2), if to fewer than all."""
    groups, used = keys.get("n_group", "num_expert_group", default=None), keys.get("topk_group", default=None)
    limited = groups is not None and used is not None and 1 <= used < groups
    limited = limited and keys.get("topk_method", default="") != "greedy"
    return {"expert_groups": groups, "groups_per_token": used} if limited else {}


def mixed(
    keys: Keys,
    letter: str,
    *,
    types: Any = None,
    others: str = "linear_attention",
    flags: Any = None,
    numbers: Any = None,
    first: int = 0,
    period: Any = None,
    offset: Any = None,
    **sizes: Any,
) -> dict[str, Any]:
    """Return which layers have attention and which the mixer that `letter` names, with its sizes.

    A list of types says it, which may be one of `others`; else truths, or the numbers of layers with attention, counted
    from `first`; else a period, whose last layer has attention where no offset is named.
    """
    layers = keys.need("num_hidden_layers")
    full = [False] * layers
    if (kinds := value_of(keys, types)) is not None:
        full = attention_layers(keys, kinds, others.split())
    elif flags is not None:
        full = [bool(flag) for flag in value_of(keys, flags)]
    elif numbers is not None:
        named = value_of(keys, numbers)
        full = [number in named for number in range(first, layers + first)]
    elif period is not None:
        every = value_of(keys, period)
        full = [
            number % every == (every - 1 if offset is None else value_of(keys, offset))
            for number in range(layers)
        ]
    if len(full) != layers:
        raise keys.refuse(f"layer_types: has {len(full)} layers, num_hidden_layers is {layers}")
    made = value_of(keys, sizes)
    if made.get("dt_rank") == "auto":
        made["dt_rank"] = -(-keys.need("hidden_size") // 16)
    if all(full):
        return {}
    return {"attention_pattern": "".join("f" if each else letter for each in full), "mixers": {letter: made}}


def attention_layers(keys: Keys, kinds: Sequence[str], others: Sequence[str]) -> list[bool]:
    """Return which layers of a list of types have attention over all tokens; refuse other types, or another length."""
    layers = keys.need(*LAYERS)
    if len(kinds) != layers:
        raise keys.refuse(f"layer_types: has {len(kinds)} layers, num_hidden_layers is {layers}")
    if strange := sorted({str(kind) for kind in kinds} - {*_FULL, *others}):
        also = " (full and sliding attention are)" if "sliding_attention" in others else ""
        raise keys.refuse(f"layer_types: {strange[0]!r} is not supported{also}")
    return [kind in _FULL for kind in kinds]


def fields(keys: Keys, **stated: Any) -> dict[str, Any]:
    """Return more fields, among them those that a config has under a condition alone."""
    found: dict[str, Any] = value_of(keys, stated)
    return found
