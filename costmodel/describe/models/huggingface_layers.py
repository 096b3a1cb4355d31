"""What readers of HuggingFace configs share: heads, biases, and which layers are windowed or have experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from costmodel.describe.models.huggingface_keys import Keys

_FULL, _WINDOWED = (
    ("full_attention", "attention", "global"),
    ("sliding_attention", "chunked_attention", "local"),
)


def common_values(keys: Keys) -> dict[str, Any]:
    """Return what all families share, some under older names."""
    listed = keys.get("hybrid_override_pattern", "layers_block_type")
    layers = keys.get("num_hidden_layers", "n_layer", "n_layers", default=len(listed) if listed else None)
    return {
        "num_layers": keys.need("num_hidden_layers", "n_layer", "n_layers") if layers is None else layers,
        "hidden_size": keys.need("hidden_size", "n_embd", "n_embed"),
        "num_heads": keys.need("num_attention_heads", "n_head"),
        "vocab_size": keys.need("vocab_size"),
        "tied_embeddings": keys.get("tie_word_embeddings", default=False),
    }


def grouped(keys: Keys) -> dict[str, Any]:
    """Return grouped-query attention with rotary positions and a gated MLP."""
    hidden, heads = (
        keys.need("hidden_size", "n_embd", "n_embed"),
        keys.need("num_attention_heads", "n_head"),
    )
    # transformers rounds a head's width down where the heads do not divide the model's.
    whole = type(hidden) is int and type(heads) is int and heads > 0
    uneven = hidden // heads if whole and hidden % heads else None
    return {
        "num_kv_heads": keys.get("num_key_value_heads"),
        "head_dim": keys.get("head_dim", default=uneven),
        "gated_mlp": True,
    }


def biases(keys: Keys, *, default: bool = False) -> dict[str, Any]:
    """Return `attention_bias` of the families where it means all four projections."""
    bias = keys.get("attention_bias", default=default)
    return {"qkv_bias": bias, "attention_out_bias": bias}


def plain(keys: Keys, width: Any) -> dict[str, Any]:
    """Return what GPT-likes have: LayerNorm, biases everywhere, an MLP of two matrices, 4 times the width."""
    return {
        "ffn_size": width if width is not None else 4 * keys.need("hidden_size", "n_embd", "n_embed"),
        "gated_mlp": False,
        "norm": "layernorm",
        "qkv_bias": True,
        "attention_out_bias": True,
        "linear_bias": True,
    }


def windows(keys: Keys, window: int | None, kinds: Sequence[str]) -> dict[str, Any]:
    """Turn a list of layer types into "all windowed but every n-th", or else into a pattern."""
    layers = keys.need("num_hidden_layers", "n_layer", "n_layers")
    if strange := sorted({str(kind) for kind in kinds} - {*_FULL, *_WINDOWED}):
        raise keys.refuse(f"layer_types: {strange[0]!r} is not supported (full and sliding attention are)")
    if len(kinds) != layers:
        raise keys.refuse(f"layer_types: has {len(kinds)} layers, num_hidden_layers is {layers}")
    full = [number for number, kind in enumerate(kinds, start=1) if kind in _FULL]
    if not window or len(full) == layers:
        return {}
    every = full[0] if full else 0
    if full == [number for number in range(1, layers + 1) if every and number % every == 0]:
        return {"sliding_window": window, "full_attention_every": every}
    return {
        "sliding_window": window,
        "attention_pattern": "".join("f" if kind in _FULL else "w" for kind in kinds),
    }


def patterned_windows(
    keys: Keys, window: int | None, default_every: int, *, first: int = 0
) -> dict[str, Any]:
    """Return windows given by `layer_types`, or in older files by a repeating pattern.

    `first` is 1 where the first layer of each period is the full one instead of the last.
    """
    every = keys.get("sliding_window_pattern", "_sliding_window_pattern", default=default_every)
    kinds = keys.get("layer_types")
    if isinstance(every, str):
        # EXAONE writes the period as letters, such as LLLG.
        every = every.upper().index("G") + 1 if "G" in every.upper() else 0
    if kinds is None:
        layers = keys.need("num_hidden_layers")
        full = [bool(every) and (i + 1 - first) % every == 0 for i in range(layers)]
        kinds = ["full_attention" if whole else "sliding_attention" for whole in full]
    return windows(keys, window, kinds)


def switched_windows(keys: Keys) -> dict[str, Any]:
    """Return Qwen's windows, which count only where `use_sliding_window` says so."""
    window = keys.get("sliding_window", default=4096)
    first_windowed = keys.get("max_window_layers", default=28)
    kinds = keys.get("layer_types")
    if not keys.get("use_sliding_window", default=False):
        return {}
    if kinds is None:
        layers = keys.need("num_hidden_layers")
        kinds = ["sliding_attention" if i >= first_windowed else "full_attention" for i in range(layers)]
    return windows(keys, window, kinds)


def expert_layers(keys: Keys, kinds: Sequence[bool]) -> dict[str, Any]:
    """Turn "has experts" of each layer into leading dense layers and a period, or else into a pattern."""
    layers = len(kinds)
    if layers != keys.need("num_hidden_layers", "n_layer", "n_layers", "num_layers"):
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
