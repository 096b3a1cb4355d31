"""Readers of configs whose layers have heads of several sizes: Gemma 4, MiMo-V2."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from costmodel.describe.models.huggingface_keys import Keys
from costmodel.describe.models.huggingface_layers import expert_layers, leading_dense

_LETTERS = "abcdeghijklmopqrstuvxyz"
"""Letters that `attention_pattern` leaves to mixers."""


class _Heads(NamedTuple):
    """Attention of one layer, and the width of its MLP where that is another than the others'."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int = 0
    attention_sinks: bool = False
    kv_projections: int = 2
    ffn_size: int = 0


def _by_layer(layers: Sequence[_Heads]) -> dict[str, Any]:
    """Return the most common heads as the model's, and the others as mixers."""
    counts = Counter(layers)
    usual = max(counts, key=lambda each: (each.kv_projections == 2 and not each.ffn_size, counts[each]))
    letters = {usual: "w" if usual.window else "f"}
    others = [each for each in counts if each != usual]
    letters |= dict(zip(others, _LETTERS, strict=False))
    values = usual._asdict()
    window = values.pop("window")
    values.pop("ffn_size")
    if not others and not window:
        return values
    return {
        **values,
        "sliding_window": window,
        "attention_pattern": "".join(letters[each] for each in layers),
        "mixers": {letters[each]: {"kind": "other-heads", **each._asdict()} for each in others},
    }


def _windowed(keys: Keys, kinds: Sequence[str], layers: int) -> list[bool]:
    """Return which layers have windows.

    Raises
    ------
    ModelConfigError
        If there are other than the number of layers, or of another type.
    """
    if len(kinds) != layers:
        raise keys.refuse(f"layer_types: has {len(kinds)} layers, num_hidden_layers is {layers}")
    if strange := sorted({str(kind) for kind in kinds} - {"full_attention", "sliding_attention"}):
        raise keys.refuse(f"layer_types: {strange[0]!r} is not supported (full and sliding attention are)")
    return [kind == "sliding_attention" for kind in kinds]


def _gemma4_heads(keys: Keys, layers: int) -> list[_Heads]:
    """Return the heads of each layer of a Gemma 4."""
    heads, kv_heads = keys.need("num_attention_heads"), keys.need("num_key_value_heads")
    dim, window = keys.get("head_dim", default=256), keys.get("sliding_window", default=512)
    changed = keys.get("per_layer_config", default={})
    same = keys.get("attention_k_eq_v", default=False)
    global_dim = keys.get("global_head_dim", default=512)
    listed = keys.get("num_global_key_value_heads", default=kv_heads)
    global_heads = listed if same else kv_heads
    # transformers: every sixth layer and the last one are full.
    usual = ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(layers - 1)]
    kinds = keys.get("layer_types", default=[*usual, "full_attention"])
    reuse = layers - keys.get("num_kv_shared_layers", default=0)
    double = keys.get("use_double_wide_mlp", default=False)
    made = []
    for number, windowed in enumerate(_windowed(keys, kinds, layers)):
        own = changed.get(f"{number:02d}") or changed.get(str(number)) or {}
        wide = own.get("head_dim", dim if windowed or changed else global_dim)
        projections = 0 if number >= reuse else 1 if same and not windowed else 2
        made.append(
            _Heads(
                heads,
                own.get("num_key_value_heads", kv_heads if windowed else global_heads),
                wide,
                wide,
                window if windowed else 0,
                kv_projections=projections,
                ffn_size=2 * keys.need("intermediate_size") if double and number >= reuse else 0,
            )
        )
    return made


def _gemma4(keys: Keys, own_width: int = 256) -> dict[str, Any]:
    """Return Gemma 4: wider heads in full layers, embeddings of each layer, last layers that reuse keys.

    Of the ones with experts every layer has a dense MLP beside them, priced as a shared expert.
    """
    if keys.get("attention_bias", default=False):
        raise keys.refuse("attention_bias: is not supported")
    layers = keys.need("num_hidden_layers")
    own = keys.get("hidden_size_per_layer_input", default=own_width)
    rows = keys.get("vocab_size_per_layer_input", default=keys.need("vocab_size"))
    values = {
        **_by_layer(_gemma4_heads(keys, layers)),
        "tied_embeddings": keys.get("tie_word_embeddings", default=True),
        "gated_mlp": True,
        "qk_norm": True,
        "layer_embedding_size": own,
        "layer_embedding_rows": rows if own else 0,
    }
    if not keys.get("enable_moe_block", default=False):
        keys.get("num_experts", "top_k_experts", "moe_intermediate_size")
        return {**values, "norms_per_layer": 4, "ffn_size": keys.need("intermediate_size")}
    return {
        **values,
        # Both halves' own, and the scale in front of the router.
        "norms_per_layer": 8,
        # A learned scale of each expert.
        "router_bias": True,
        "num_experts": keys.need("num_experts"),
        "top_k": keys.need("top_k_experts", "num_experts_per_tok"),
        "expert_ffn_size": keys.need("moe_intermediate_size"),
        "shared_expert_ffn_size": keys.need("intermediate_size"),
    }


def _mimo_v2(keys: Keys) -> dict[str, Any]:
    """Return MiMo-V2: windowed layers with more key-value heads and sinks."""
    if keys.get("attention_bias", default=False):
        raise keys.refuse("attention_bias: is not supported")
    layers = keys.need("num_hidden_layers")
    older = keys.get("hybrid_layer_pattern")
    if older is None:
        kinds = keys.need("layer_types")
    else:
        kinds = ["sliding_attention" if kind else "full_attention" for kind in older]
        keys.get("layer_types")
    heads, kv_heads = keys.need("num_attention_heads"), keys.need("num_key_value_heads")
    dim = keys.get("head_dim", default=keys.need("hidden_size") // heads)
    value = keys.get("v_head_dim", default=dim)
    full = _Heads(
        heads,
        kv_heads,
        dim,
        value,
        attention_sinks=keys.get("add_full_attention_sink_bias", default=False),
    )
    swa_dim = keys.get("swa_head_dim", default=dim)
    windowed = _Heads(
        keys.get("swa_num_attention_heads", default=heads),
        keys.get("swa_num_key_value_heads", default=2 * kv_heads),
        swa_dim,
        keys.get("swa_v_head_dim", default=value),
        keys.get("sliding_window", "sliding_window_size", default=129),
        attention_sinks=keys.get("add_swa_attention_sink_bias", default=True),
    )
    freq = keys.get("moe_layer_freq")
    if isinstance(freq, list):
        keys.get("mlp_layer_types", "first_k_dense_replace")
        routed = expert_layers(keys, [bool(each) for each in freq])
    else:
        routed = leading_dense(keys, 0)
    return {
        **_by_layer([windowed if short else full for short in _windowed(keys, kinds, layers)]),
        **routed,
        "gated_mlp": True,
        "ffn_size": keys.need("intermediate_size"),
        "num_experts": keys.need("n_routed_experts"),
        "top_k": keys.need("num_experts_per_tok"),
        "expert_ffn_size": keys.need("moe_intermediate_size"),
    }


HEADS_READERS: dict[str, Callable[[Keys], dict[str, Any]]] = {
    "gemma4_text": _gemma4,
    "gemma4_unified_text": lambda keys: _gemma4(keys, 0),
    "mimo_v2_flash": _mimo_v2,
}
