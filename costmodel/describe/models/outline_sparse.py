"""Parameters of decoders with sparse or irregular attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from costmodel.describe.models.huggingface_keys import Keys
from costmodel.describe.models.outline_parts import (
    Counted,
    Width,
    decoder,
    experts,
    gated,
    grouped,
    indexer,
    kinds,
    latent,
    linear,
    width,
)


def _deepseek_mlps(keys: Keys, size: Width) -> int:
    """Return all MLPs of a DeepSeek: leading dense ones, then experts with a shared one.

    Routers that balance without a loss have a correction of each expert; transformers keeps it as a buffer.
    """
    listed = keys.get("mlp_layer_types")
    dense = sum(1 for kind in listed if kind == "dense") if listed is not None else None
    first = keys.get("first_k_dense_replace", default=0)
    dense = first if dense is None else dense
    ffn, count = keys.need("moe_intermediate_size"), keys.need("n_routed_experts")
    shared = ffn * keys.get("n_shared_experts", default=0)
    shared = keys.get("shared_experts_intermediate_size", default=shared)
    routed = experts(size.hidden, ffn, count, shared)
    routed += count if keys.get("topk_method") == "noaux_tc" else 0
    wide = gated(size.hidden, keys.need("intermediate_size")) if dense else 0
    return int(dense * wide + (size.layers - dense) * routed)


def _deepseek(keys: Keys, *, sparse: bool) -> Counted:
    """DeepSeek with or without its indexer; layers that share one have no own."""
    size = width(keys)
    one = latent(keys, size.hidden) + 2 * size.hidden
    chosen = keys.get("indexer_types", default=["full"] * size.layers)
    own = sum(1 for kind in chosen if kind == "full") if sparse else 0
    layers = size.layers * one + (own * indexer(keys, size.hidden) if own else 0)
    pattern = tuple(f"{kind} indexer" for kind in chosen[: size.layers]) if sparse else ()
    keys.get("layer_types", "moe_layer_freq", "index_topk_freq", "index_skip_topk_offset")
    mlps = _deepseek_mlps(keys, size)
    return decoder(keys, size, layers + mlps, pattern=pattern)


def _deepseek_v4(keys: Keys) -> Counted:
    """DeepSeek-V4: compressed keys of two rates, several residual streams."""
    size = width(keys)
    hidden, dim, rank = size.hidden, size.head_dim, keys.need("q_lora_rank")
    rates = keys.get("compress_rates", default={})
    few = rates.get("compressed_sparse_attention", 4)
    many = rates.get("heavily_compressed_attention", 128)
    ratios = keys.get("compress_ratios")
    if ratios is not None:
        few, many = 4, max(few, many)
        named = {0: "sliding_attention", few: "compressed_sparse_attention"}
        pattern = [named.get(ratio, "heavily_compressed_attention") for ratio in ratios[: size.layers]]
        keys.get("layer_types")
    else:
        pattern = kinds(keys, size.layers)
    low = keys.need("o_lora_rank")
    one = size.heads + hidden * rank + rank + rank * size.heads * dim + hidden * dim + dim
    one += low * size.heads * dim + keys.need("o_groups") * low * hidden
    index_dim, index_heads = keys.need("index_head_dim"), keys.need("index_n_heads")
    indexer = 2 * index_dim * (few + 2 * hidden) + index_dim + rank * index_heads * index_dim
    indexer += index_heads * hidden
    extra = {
        "sliding_attention": 0,
        "heavily_compressed_attention": dim * (many + 2 * hidden) + dim,
        "compressed_sparse_attention": 2 * dim * (few + 2 * hidden) + dim + indexer,
    }
    if strange := sorted(set(pattern) - set(extra)):
        raise keys.refuse(f"layer_types: {strange[0]!r} is not supported")
    streams = keys.need("hc_mult")
    mix = streams * (streams + 2)
    one += 2 * (mix * streams * hidden + mix + 3) + 2 * hidden
    ffn = keys.need("moe_intermediate_size")
    shared = ffn * keys.get("n_shared_experts", default=0)
    one += experts(hidden, ffn, keys.need("n_routed_experts"), shared)
    keys.get("mlp_layer_types", "num_hash_layers")
    layers = size.layers * one + sum(extra[kind] for kind in pattern)
    more = streams * streams * hidden + streams + 1
    return decoder(keys, size, layers, pattern=tuple(pattern), more=more)


def _dots3(keys: Keys) -> Counted:
    """dots3: latent attention of other sizes in its windowed layers, which have no indexer."""
    size = width(keys)
    pattern = kinds(keys, size.layers)
    changed = keys.get("per_layer_config", default={})
    layers = 0
    for number, kind in enumerate(pattern):
        own = changed.get(f"{number:02d}") or changed.get(str(number)) or {}
        here = Keys({**keys.raw, **own}, keys.origin)
        rope = here.need("qk_rope_head_dim")
        layers += latent(here, size.hidden) + rope + here.need("num_attention_heads") * size.hidden
        layers += indexer(here, size.hidden) if kind == "indexed_attention" else 0
        keys.used |= here.used
    mlps = _deepseek_mlps(keys, size)
    return decoder(keys, size, layers + mlps + size.layers * 2 * size.hidden, pattern=tuple(pattern))


def _gemma4(keys: Keys, per_layer: int = 256) -> Counted:
    """Gemma 4: wider heads in full layers, embeddings of each layer, last layers that reuse keys."""
    size = width(keys)
    if keys.get("attention_bias", default=False):
        raise keys.refuse("attention_bias: is not supported")
    pattern = kinds(keys, size.layers)
    changed = keys.get("per_layer_config", default={})
    same = keys.get("attention_k_eq_v", default=False)
    global_dim = keys.get("global_head_dim", default=512)
    global_heads = keys.get("num_global_key_value_heads", default=size.kv_heads) if same else size.kv_heads
    keys.get("num_global_key_value_heads")
    reuse = size.layers - keys.get("num_kv_shared_layers", default=0)
    ffn, double = keys.need("intermediate_size"), keys.get("use_double_wide_mlp", default=False)
    layers = 0
    for number, kind in enumerate(pattern):
        own = changed.get(f"{number:02d}") or changed.get(str(number)) or {}
        full = kind == "full_attention"
        dim = own.get("head_dim", global_dim if full and not changed else size.head_dim)
        heads = own.get("num_key_value_heads", global_heads if full else size.kv_heads)
        layers += 2 * size.hidden * size.heads * dim + dim
        if number < reuse:
            layers += dim + (1 if same and full else 2) * size.hidden * heads * dim
        layers += gated(size.hidden, ffn * (2 if double and number >= reuse else 1))
    one = 4 * size.hidden
    if keys.get("enable_moe_block", default=False):
        count = keys.need("num_experts")
        one += experts(size.hidden, keys.need("moe_intermediate_size"), count) + 4 * size.hidden + count
        keys.get("top_k_experts")
    own_width, more = keys.get("hidden_size_per_layer_input", default=per_layer), 0
    if own_width:
        one += 2 * size.hidden * own_width + size.hidden
        wide = size.layers * own_width
        rows = keys.get("vocab_size_per_layer_input", default=size.vocab)
        more = rows * wide + wide * size.hidden + own_width
    keys.get("vocab_size_per_layer_input")
    return decoder(keys, size, layers + size.layers * one, pattern=tuple(pattern), tied=True, more=more)


def _mimo(keys: Keys) -> Counted:
    """MiMo-V2: windowed layers with more key-value heads and sinks."""
    size = width(keys)
    if keys.get("attention_bias", default=False):
        raise keys.refuse("attention_bias: is not supported")
    older = keys.get("hybrid_layer_pattern")
    if older is not None:
        pattern = ["sliding_attention" if kind else "full_attention" for kind in older]
        keys.get("layer_types")
    else:
        pattern = kinds(keys, size.layers)
    value = keys.get("v_head_dim", default=size.head_dim)
    window_heads = keys.get("swa_num_key_value_heads", default=2 * size.kv_heads)
    for name, expected in (
        ("swa_num_attention_heads", size.heads),
        ("swa_head_dim", size.head_dim),
        ("swa_v_head_dim", value),
    ):
        if keys.get(name, default=expected) != expected:
            raise keys.refuse(f"{name}: windowed layers with other heads than full ones are not supported")
    sinks = size.heads if keys.get("add_swa_attention_sink_bias", default=True) else 0
    mixers = 0
    for kind in pattern:
        heads = size.kv_heads if kind == "full_attention" else window_heads
        mixers += size.hidden * (size.heads * (size.head_dim + value) + heads * (size.head_dim + value))
        mixers += 0 if kind == "full_attention" else sinks
    freq = keys.get("moe_layer_freq")
    listed = keys.get("mlp_layer_types", default=None)
    if isinstance(freq, list):
        dense = sum(1 for routed in freq if not routed)
    else:
        dense = sum(1 for kind in listed if kind == "dense") if listed is not None else 0
    routed = experts(size.hidden, keys.need("moe_intermediate_size"), keys.need("n_routed_experts"))
    mlps = dense * gated(size.hidden, keys.need("intermediate_size")) + (size.layers - dense) * routed
    return decoder(keys, size, mixers + mlps + size.layers * 2 * size.hidden, pattern=tuple(pattern))


def _minimax_m3(keys: Keys) -> Counted:
    """MiniMax-M3: an indexer chooses blocks of keys in most layers; leading dense layers."""
    size = width(keys)
    inside = keys.get("sparse_attention_config", default={})
    marked = inside.get("sparse_attention_freq", [0] * size.layers)
    older = ["minimax_m3_sparse" if mark else "full_attention" for mark in marked]
    pattern = keys.get("layer_types", default=older)[: size.layers]
    if strange := sorted(set(pattern) - {"full_attention", "minimax_m3_sparse"}):
        raise keys.refuse(f"layer_types: {strange[0]!r} is not supported")
    heads = keys.get("index_n_heads") or inside.get("sparse_num_index_heads", 4)
    dim = keys.get("index_head_dim") or inside.get("sparse_index_dim", 128)
    chooses = size.hidden * (heads + 1) * dim + 2 * dim
    keys.get(
        "index_block_size", "index_topk_blocks", "index_local_blocks", "attention_output_gate", "rotary_dim"
    )
    full = grouped(size, norms=2 * size.head_dim)
    marked = keys.get("moe_layer_freq", default=[1] * size.layers)
    default = ["sparse" if mark else "dense" for mark in marked]
    listed = keys.get("mlp_layer_types", default=default)
    dense = sum(1 for kind in listed[: size.layers] if kind == "dense")
    keys.get("first_k_dense_replace", "moe_intermediate_size", "n_shared_experts", "num_mtp_modules")
    count, ffn = keys.need("num_local_experts"), keys.need("intermediate_size")
    routed = experts(size.hidden, ffn, count, keys.get("shared_intermediate_size", default=0))
    wide = gated(size.hidden, keys.need("dense_intermediate_size")) if dense else 0
    keys.get("dense_intermediate_size", "use_qk_norm", "qk_norm_type", "use_routing_bias", "use_gemma_norm")
    layers = size.layers * (full + 2 * size.hidden) + dense * wide + (size.layers - dense) * routed
    layers += sum(chooses for kind in pattern if kind != "full_attention")
    return decoder(keys, size, layers, pattern=tuple(pattern))


def _jetmoe(keys: Keys) -> Counted:
    """JetMoE: experts of attention and of MLPs."""
    hidden, count = keys.need("hidden_size"), keys.need("num_local_experts")
    wide = keys.need("kv_channels") * keys.need("num_key_value_heads")
    mlp = hidden + experts(hidden, keys.need("intermediate_size"), count)
    mixer = hidden + count * (2 * hidden * wide + hidden) + 2 * wide * hidden
    layers = keys.need("num_hidden_layers")
    heads = keys.get("num_attention_heads", default=0)
    size = Width(hidden, layers, heads, keys.need("num_key_value_heads"), 0, keys.need("vocab_size"))
    return decoder(keys, size, layers * (mlp + mixer + 2 * hidden), tied=True)


def _doge(keys: Keys) -> Counted:
    """Doge: attention with a dynamic mask, scaled residuals."""
    size = width(keys)
    if keys.get("is_moe", default=False):
        raise keys.refuse("is_moe: its product-key experts are not supported")
    keys.get("num_experts", "num_experts_per_tok", "norm_topk_prob", "keep_window_size")
    wide = size.kv_heads * size.head_dim
    full = grouped(size, bias=keys.get("attention_bias", default=False), norms=2 * size.head_dim)
    one = full + size.kv_heads + wide * size.kv_heads + 4 * size.hidden
    one += gated(size.hidden, keys.need("intermediate_size"), keys.get("mlp_bias", default=False))
    return decoder(keys, size, size.layers * one)


def _hrm(keys: Keys) -> Counted:
    """HRM-Text: two stacks run several times over, without norm weights."""
    stack = keys.need("num_layers_per_stack")
    size = width(keys)._replace(layers=2 * stack)
    full = grouped(size, gate=linear(size.hidden, size.heads * size.head_dim))
    one = full + gated(size.hidden, keys.need("intermediate_size"), keys.get("mlp_bias", default=False))
    return decoder(keys, size, 2 * stack * one, pattern=("low",) * stack + ("high",) * stack)


SPARSE: Mapping[str, Callable[[Keys], Counted]] = {
    "deepseek_v2": lambda keys: _deepseek(keys, sparse=False),
    "deepseek_v32": lambda keys: _deepseek(keys, sparse=True),
    "deepseek_v4": _deepseek_v4,
    "doge": _doge,
    "dots3_note_text": _dots3,
    "gemma4_text": _gemma4,
    "gemma4_unified_text": lambda keys: _gemma4(keys, 0),
    "glm_moe_dsa": lambda keys: _deepseek(keys, sparse=True),
    "hrm_text": _hrm,
    "jetmoe": _jetmoe,
    "mimo_v2_flash": _mimo,
    "minimax_m3": _minimax_m3,
    "minimax_m3_vl_text": _minimax_m3,
}
