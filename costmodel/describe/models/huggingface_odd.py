"""Parts of families of HuggingFace configs that no row of the table can say: one function a family.

The functions stand under `parts` in ``huggingface.yaml``, where the other fields of their families are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from costmodel.describe.models.huggingface_keys import Keys
from costmodel.describe.models.huggingface_layers import (
    attention_layers,
    expert_layers,
    full_or_sliding,
    leading_dense,
    value_of,
    windows,
)
from costmodel.describe.models.mixers import OtherHeads

_LETTERS = "abcdeghijklmopqrstuvxyz"
"""Letters that `attention_pattern` leaves to mixers."""


def gpt_neo(keys: Keys) -> dict[str, Any]:
    """Return GPT-Neo's windows, listed by layer or as types with how often they repeat."""
    kinds = keys.get("attention_layers")
    if kinds is None:
        types = keys.need("attention_types")
        kinds = [kind for kinds, times in types for _ in range(times) for kind in kinds]
    keys.get("attention_types")
    return windows(keys, keys.get("window_size", default=256), kinds)


def opt(keys: Keys) -> dict[str, Any]:
    """Refuse OPT-350M, whose embeddings are narrower than its layers."""
    hidden = keys.need("hidden_size")
    if keys.get("word_embed_proj_dim", default=hidden) != hidden:
        raise keys.refuse("word_embed_proj_dim other than hidden_size (OPT-350M) is not supported")
    return {}


def softmax_only(keys: Keys) -> dict[str, Any]:
    """Refuse a MiniMax-M2 with lightning attention."""
    if any(kind != 1 for kind in keys.get("attn_type_list", default=[])):
        raise keys.refuse("attn_type_list: only softmax attention (1) is supported")
    return {}


def cohere2_moe(keys: Keys) -> dict[str, Any]:
    """Return the layers of Command A with experts: leading dense ones have windows of their own."""
    layers, width = keys.need("num_hidden_layers"), keys.need("intermediate_size")
    leading = keys.get("first_k_dense_replace", default=0)
    listed = keys.get("mlp_layer_types", default=["dense"] * leading + ["sparse"] * (layers - leading))
    early = keys.get("prefix_dense_sliding_window_pattern", default=1)
    every = keys.get("sliding_window_pattern", default=4)
    full = [(i + 1) % early == 0 for i in range(leading)]
    full += [(i + 1) % every == 0 for i in range(layers - leading)]
    kinds = keys.get("layer_types", default=full_or_sliding(full))
    return {
        **windows(keys, keys.get("sliding_window", default=4096), kinds),
        **expert_layers(keys, [kind == "sparse" for kind in listed]),
        "norm": "layernorm" if keys.get("rms_norm_eps") is None else "rmsnorm",
        "ffn_size": keys.get("prefix_dense_intermediate_size", default=width) if "dense" in listed else 0,
    }


def indexed(keys: Keys) -> dict[str, Any]:
    """Return DeepSeek-V3.2's indexer: it chooses the keys of latent attention, in each layer or every few."""
    layers = keys.need("num_hidden_layers")
    sizes = {
        "kind": "indexed",
        "heads": keys.need("index_n_heads"),
        "head_dim": keys.need("index_head_dim"),
        "top_k": keys.need("index_topk"),
    }
    own = [kind == "full" for kind in keys.get("indexer_types", default=["full"] * layers)[:layers]]
    mixers = {"i": sizes, "j": {**sizes, "shared": True}}
    used = {"i": any(own), "j": not all(own)}
    shared = keys.get("shared_experts_intermediate_size")
    return {
        **({} if shared is None else {"shared_expert_ffn_size": shared}),
        "router_bias": keys.get("topk_method") == "noaux_tc",
        "attention_pattern": "".join("i" if each else "j" for each in own),
        "mixers": {letter: mixers[letter] for letter, there in used.items() if there},
    }


def ernie4_5_moe(keys: Keys) -> dict[str, Any]:
    """Return which layers of an ERNIE 4.5 have experts."""
    layers = keys.need("num_hidden_layers")
    start, step = keys.get("moe_layer_start_index", default=1), keys.get("moe_layer_interval", default=1)
    end = keys.get("moe_layer_end_index", default=-1)
    end = layers - 1 if end == -1 else end
    return expert_layers(keys, [(i + 1) % step == 0 and start <= i <= end for i in range(layers)])


def hunyuan_moe(keys: Keys) -> dict[str, Any]:
    """Return Hunyuan-A13B: every layer alike, one shared MLP of `num_shared_expert` times the width."""

    def alike(name: str, value: Any) -> Any:
        values = sorted(set(value)) if isinstance(value, list) else [value]
        if len(values) != 1:
            raise keys.refuse(f"{name}: differs from layer to layer, which is not supported")
        return values[0]

    dense = keys.need("intermediate_size")
    width = alike("moe_intermediate_size", keys.get("moe_intermediate_size", default=dense))
    shared = alike("num_shared_expert", keys.get("num_shared_expert", default=1))
    return {
        "num_experts": alike("num_experts", keys.need("num_experts", "num_local_experts")),
        "top_k": alike("moe_topk", keys.need("moe_topk", "num_experts_per_tok")),
        "expert_ffn_size": width,
        "shared_expert_ffn_size": dense * shared,
    }


def llama4(keys: Keys) -> dict[str, Any]:
    """Return which layers of a Llama 4 have experts, and the width of the others."""
    layers = keys.need("num_hidden_layers")
    step, listed = keys.get("interleave_moe_layer_step", default=1), keys.get("moe_layers")
    each = range(step - 1, layers, step) if listed is None else listed
    dense = keys.need("intermediate_size_mlp")
    return {
        **expert_layers(keys, [i in each for i in range(layers)]),
        # Scout's files carry the width of a dense layer that it does not have.
        "ffn_size": dense if len(each) < layers else 0,
    }


def _by_layer(layers: Sequence[OtherHeads]) -> dict[str, Any]:
    """Return the most common heads as the model's, and the others as mixers."""
    counts = Counter(layers)
    usual = max(counts, key=lambda each: (each.kv_projections == 2 and not each.ffn_size, counts[each]))
    letters = {usual: "w" if usual.window else "f"}
    others = [each for each in counts if each != usual]
    letters |= dict(zip(others, _LETTERS, strict=False))
    values = usual.model_dump(exclude={"kind", "beside_attention", "window", "ffn_size"})
    if not others and not usual.window:
        return values
    return {
        **values,
        "sliding_window": usual.window,
        "attention_pattern": "".join(letters[each] for each in layers),
        "mixers": {letters[each]: each for each in others},
    }


def _gemma4_heads(keys: Keys, layers: int) -> list[OtherHeads]:
    """Return the heads of each layer of a Gemma 4."""
    heads, kv_heads = keys.need("num_attention_heads"), keys.need("num_key_value_heads")
    dim, window = keys.get("head_dim", default=256), keys.get("sliding_window", default=512)
    changed = keys.get("per_layer_config", default={})
    same = keys.get("attention_k_eq_v", default=False)
    global_dim = keys.get("global_head_dim", default=512)
    listed = keys.get("num_global_key_value_heads", default=kv_heads)
    global_heads = listed if same else kv_heads
    # transformers: every sixth layer and the last one are full.
    usual = full_or_sliding([(i + 1) % 6 == 0 or i == layers - 1 for i in range(layers)])
    kinds = keys.get("layer_types", default=usual)
    reuse = layers - keys.get("num_kv_shared_layers", default=0)
    double = keys.get("use_double_wide_mlp", default=False)
    made = []
    for number, full in enumerate(attention_layers(keys, kinds, ("sliding_attention",))):
        windowed = not full
        own = changed.get(f"{number:02d}") or changed.get(str(number)) or {}
        wide = own.get("head_dim", dim if windowed or changed else global_dim)
        projections = 0 if number >= reuse else 1 if same and not windowed else 2
        made.append(
            OtherHeads(
                num_heads=heads,
                num_kv_heads=own.get("num_key_value_heads", kv_heads if windowed else global_heads),
                head_dim=wide,
                v_head_dim=wide,
                window=window if windowed else 0,
                kv_projections=projections,
                ffn_size=2 * keys.need("intermediate_size") if double and number >= reuse else 0,
            )
        )
    return made


def gemma4(keys: Keys, own_width: int) -> dict[str, Any]:
    """Return Gemma 4: wider heads in full layers, embeddings of each layer, last layers that reuse keys.

    Of the ones with experts every layer has a dense MLP beside them, priced as a shared expert.
    """
    if keys.get("attention_bias", default=False):
        raise keys.refuse("attention_bias: is not supported")
    own = keys.get("hidden_size_per_layer_input", default=own_width)
    rows = keys.get("vocab_size_per_layer_input", default=keys.need("vocab_size"))
    values = {
        **_by_layer(_gemma4_heads(keys, keys.need("num_hidden_layers"))),
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


def mimo_v2(keys: Keys) -> dict[str, Any]:
    """Return MiMo-V2's heads: windowed layers have more key-value heads, and sinks; and which layers have experts."""
    older = keys.get("hybrid_layer_pattern")
    if older is None:
        kinds = keys.need("layer_types")
    else:
        kinds = full_or_sliding([not kind for kind in older])
        keys.get("layer_types")
    heads, kv_heads = keys.need("num_attention_heads"), keys.need("num_key_value_heads")
    dim = keys.get("head_dim", default=keys.need("hidden_size") // heads)
    value = keys.get("v_head_dim", default=dim)
    full = OtherHeads(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        v_head_dim=value,
        attention_sinks=keys.get("add_full_attention_sink_bias", default=False),
    )
    windowed = OtherHeads(
        num_heads=keys.get("swa_num_attention_heads", default=heads),
        num_kv_heads=keys.get("swa_num_key_value_heads", default=2 * kv_heads),
        head_dim=keys.get("swa_head_dim", default=dim),
        v_head_dim=keys.get("swa_v_head_dim", default=value),
        window=keys.get("sliding_window", "sliding_window_size", default=129),
        attention_sinks=keys.get("add_swa_attention_sink_bias", default=True),
    )
    freq = keys.get("moe_layer_freq")
    if isinstance(freq, list):
        keys.get("mlp_layer_types", "first_k_dense_replace")
        experts = expert_layers(keys, [bool(each) for each in freq])
    else:
        experts = leading_dense(keys, 0)
    attends = attention_layers(keys, kinds, ("sliding_attention",))
    return {**_by_layer([full if each else windowed for each in attends]), **experts}


_LETTERS_OF = {"M": "mamba", "*": "full_attention", "-": "mlp", "E": "moe"}
_NAMES = {"linear_attention": "mamba", "attention": "full_attention"}


def nemotron_h(keys: Keys, **sizes: Any) -> dict[str, Any]:
    """Return Nemotron-H: each layer is one block, of state space, attention, MLP, or experts."""
    written = keys.get("hybrid_override_pattern")
    if written is not None:
        kinds = [_LETTERS_OF.get(letter, letter) for letter in written]
    else:
        kinds = [_NAMES.get(name, name) for name in keys.need("layers_block_type")]
    if strange := sorted(set(kinds) - set(_LETTERS_OF.values())):
        raise keys.refuse(f"hybrid_override_pattern: {strange[0]!r} is not supported")
    if len(kinds) != keys.get("num_hidden_layers", default=len(kinds)):
        raise keys.refuse(
            f"hybrid_override_pattern: has {len(kinds)} layers, num_hidden_layers another number"
        )
    mixer, width = value_of(keys, sizes), keys.get("head_dim", "attention_head_dim")
    values = {
        **({} if width is None else {"head_dim": width}),
        "num_layers": len(kinds),
        "attention_pattern": "".join({"mamba": "m", "full_attention": "f"}.get(kind, "n") for kind in kinds),
        "mixers": {"m": mixer} if "mamba" in kinds else {},
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
    """Return that no layer of a Mamba-2 has an MLP; refuse heads that are not as wide as its channels ask for."""
    heads, width = keys.need("num_attention_heads"), keys.need("head_dim")
    inner = keys.get("expand", default=2) * keys.need("hidden_size")
    if inner != heads * width:
        raise keys.refuse(
            f"num_heads: expected expand * hidden_size / head_dim, {inner / width:g}; got {heads}"
        )
    return {"mlp_pattern": "n" * keys.need("num_hidden_layers")}


def jamba_experts(keys: Keys) -> dict[str, Any]:
    """Return the experts of a Jamba, in every second layer."""
    period, offset = keys.need("expert_layer_period"), keys.need("expert_layer_offset")
    count = keys.need("num_experts")
    keys.get("num_experts_per_tok")
    if count < 2:
        return {}
    return {
        **expert_layers(keys, [i % period == offset for i in range(keys.need("num_hidden_layers"))]),
        "num_experts": count,
        "top_k": keys.need("num_experts_per_tok"),
        "expert_ffn_size": keys.need("intermediate_size"),
    }


def lfm2_widths(keys: Keys) -> dict[str, Any]:
    """Return the width of the MLP of an LFM2, which a file may leave to a rule, or its experts."""
    ffn, count = keys.need("intermediate_size", "block_ff_dim"), keys.get("num_experts", default=0)
    if count:
        keys.get("use_expert_bias")
        return {
            "first_dense_layers": keys.get("num_dense_layers", default=2),
            "ffn_size": ffn,
            "num_experts": count,
            "top_k": keys.need("num_experts_per_tok"),
            "expert_ffn_size": keys.need("moe_intermediate_size"),
        }
    if keys.get("block_auto_adjust_ff_dim", default=True):
        of = keys.get("block_multiple_of", default=256)
        ffn = of * -(-int(keys.get("block_ffn_dim_multiplier", default=1.0) * int(2 * ffn / 3)) // of)
    keys.get("block_mlp_init_scale", "block_norm_eps", "block_use_swiglu", "block_use_xavier_init")
    keys.get("block_dim", "block_multiple_of", "block_ffn_dim_multiplier", "block_out_init_scale")
    return {"ffn_size": ffn}
