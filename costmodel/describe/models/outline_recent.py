"""Parameters of decoders of 2025 and 2026 whose layers hold more than a `Model` has fields for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from costmodel.describe.models.huggingface_keys import Keys
from costmodel.describe.models.outline_parts import (
    Counted,
    decoder,
    dense_layers,
    experts,
    gated,
    grouped,
    indexer,
    kinds,
    latent,
    linear,
    width,
)


def _axk1(keys: Keys) -> Counted:
    """A.X K1: DeepSeek-V3 with a norm behind each layer's experts."""
    size = width(keys)
    dense = dense_layers(keys, size.layers)
    keys.get("layer_types", "moe_layer_freq")
    ffn = keys.need("moe_intermediate_size")
    shared = ffn * keys.get("n_shared_experts", default=0)
    routed = experts(size.hidden, ffn, keys.need("n_routed_experts"), shared) + size.hidden
    mlps = dense * gated(size.hidden, keys.need("intermediate_size")) + (size.layers - dense) * routed
    return decoder(keys, size, size.layers * (latent(keys, size.hidden) + 2 * size.hidden) + mlps)


def _axk2(keys: Keys) -> Counted:
    """A.X K2: an indexer, attention gated by the latent query, norms gated by a small MLP."""
    size = width(keys)
    hidden, rank, heads = size.hidden, keys.need("q_lora_rank"), size.heads
    plain = keys.need("qk_nope_head_dim") + keys.need("qk_rope_head_dim")
    value = keys.need("v_head_dim")
    # One matrix makes queries from a latent, and gates of the outputs from the other half of it.
    wide = 2 * rank * heads * (plain + value) - rank * heads * plain
    narrow = keys.need("gated_norm_rank")
    dense = dense_layers(keys, size.layers)
    chosen = kinds(keys, size.layers, "indexed_attention")
    one = latent(keys, hidden) + wide + 2 * hidden
    one += 2 * hidden * narrow
    ffn = keys.need("moe_intermediate_size")
    shared = ffn * keys.get("n_shared_experts", default=0)
    routed = experts(hidden, ffn, keys.need("n_routed_experts"), shared) + 2 * hidden * narrow
    layers = size.layers * one + dense * gated(hidden, keys.need("intermediate_size"))
    layers += (size.layers - dense) * routed
    layers += sum(indexer(keys, hidden) for kind in chosen if kind == "indexed_attention")
    return decoder(keys, size, layers, pattern=tuple(chosen))


def _bailing_hybrid(keys: Keys) -> Counted:
    """Ling 3: Kimi's delta rule with gates of full rank, and latent attention with a gate of each head."""
    size = width(keys)
    hidden, every = size.hidden, keys.get("layer_group_size", default=0)
    default = [
        "full_attention" if every and (i + 1) % every == 0 else "linear_attention" for i in range(size.layers)
    ]
    pattern = keys.get("layer_types", default=default)
    heads = keys.get("linear_num_heads", default=size.heads)
    dim = keys.get("linear_head_dim", default=128)
    wide = heads * dim
    kernel = keys.get("linear_conv_kernel_dim", "short_conv_kernel_size", default=4)
    keys.get("short_conv_kernel_size")
    delta = 6 * hidden * wide + 3 * wide * kernel + heads + wide + hidden * heads + dim
    full = latent(keys, hidden) + hidden * size.heads
    dense, ffn = dense_layers(keys, size.layers), keys.need("moe_intermediate_size")
    shared = ffn * keys.get("num_shared_experts", "n_shared_experts", default=0)
    routed = experts(hidden, ffn, keys.need("num_experts", "num_local_experts"), shared)
    layers = sum(full if kind == "full_attention" else delta for kind in pattern)
    layers += size.layers * 2 * hidden + (size.layers - dense) * routed
    layers += dense * gated(hidden, keys.need("intermediate_size"))
    return decoder(keys, size, layers, pattern=tuple(pattern))


def _beam(keys: Keys) -> Counted:
    """Beam: gated attention with a bias of each head, four norms, leading dense layers."""
    size = width(keys)
    wide = size.heads * size.head_dim
    one = grouped(size, norms=2 * size.head_dim, gate=size.heads + size.hidden * wide, bias=_biased(keys))
    dense = dense_layers(keys, size.layers)
    routed = experts(size.hidden, keys.need("moe_intermediate_size"), keys.need("num_experts"))
    layers = size.layers * (one + 4 * size.hidden) + (size.layers - dense) * routed
    layers += dense * gated(size.hidden, keys.need("intermediate_size"))
    return decoder(keys, size, layers, pattern=tuple(kinds(keys, size.layers)))


def _bitnet(keys: Keys) -> Counted:
    """BitNet b1.58: a norm before each way out."""
    size, ffn = width(keys), keys.need("intermediate_size")
    one = grouped(size, bias=_biased(keys), norms=size.hidden + ffn)
    return decoder(keys, size, size.layers * (one + gated(size.hidden, ffn) + 2 * size.hidden))


def _diffllama(keys: Keys) -> Counted:
    """DiffLlama: the difference of two softmaxes, weighed by four vectors of a head's width."""
    size = width(keys)
    one = grouped(size, bias=_biased(keys), norms=4 * size.head_dim)
    one += gated(size.hidden, keys.need("intermediate_size"), keys.get("mlp_bias", default=False))
    return decoder(keys, size, size.layers * (one + 2 * size.hidden))


def _gemma3n(keys: Keys) -> Counted:
    """Gemma 3n: embeddings of each layer, several residual streams, layers that reuse keys and values."""
    size = width(keys)
    hidden, streams = size.hidden, keys.get("altup_num_inputs", default=4)
    own, rank = keys.need("hidden_size_per_layer_input"), keys.need("laurel_rank")
    bias, dim = _biased(keys), size.head_dim
    reuse = size.layers - keys.get("num_kv_shared_layers", default=0)
    widths = keys.need("intermediate_size")
    widths = widths if isinstance(widths, list) else [widths] * size.layers
    layers = sum(gated(hidden, ffn) for ffn in widths[: size.layers])
    queries = 2 * linear(hidden, size.heads * dim, bias) + (hidden - size.heads * dim if bias else 0) + dim
    layers += size.layers * queries + reuse * (2 * linear(hidden, size.kv_heads * dim, bias) + dim)
    mixed = streams * streams + streams**3 + streams * hidden + hidden
    mixed += hidden
    layers += size.layers * (mixed + 2 * hidden * rank + hidden + 2 * hidden * own + hidden + 4 * hidden)
    rows = keys.get("vocab_size_per_layer_input", default=size.vocab)
    more = rows * size.layers * own + hidden * size.layers * own + own
    more += 2 * (streams - 1) * hidden * hidden
    keys.get("altup_correct_scale", "activation_sparsity_pattern", "altup_active_idx", "altup_coef_clip")
    pattern = tuple(kinds(keys, size.layers))
    return decoder(keys, size, layers, tied=True, more=more, pattern=pattern)


def _hy_v4(keys: Keys) -> Counted:
    """Hunyuan 4: latent attention with sinks, gates and an indexer, several residual streams."""
    size = width(keys)
    hidden, streams = size.hidden, keys.need("hc_mult")
    one = latent(keys, hidden) + 2 * hidden + size.heads
    one += hidden * size.heads * keys.need("v_head_dim")
    one += 2 * (2 * streams * streams * hidden + 2 * streams + 2)
    chosen = keys.get("indexer_types", default=["full"] * size.layers)
    dense, ffn = dense_layers(keys, size.layers), keys.need("moe_intermediate_size")
    shared = ffn * keys.get("n_shared_experts", default=0)
    layers = size.layers * one + dense * gated(hidden, keys.need("intermediate_size"))
    layers += (size.layers - dense) * experts(hidden, ffn, keys.need("n_routed_experts"), shared)
    layers += sum(indexer(keys, hidden) for kind in chosen[: size.layers] if kind == "full")
    more = streams * streams * hidden + streams + 1
    keys.get("layer_types")
    pattern = tuple(f"{kind} indexer" for kind in chosen[: size.layers])
    return decoder(keys, size, layers, more=more, pattern=pattern)


def _laguna(keys: Keys) -> Counted:
    """Laguna: a number of heads for each layer, gated head by head."""
    size = width(keys)
    hidden, dim, bias = size.hidden, size.head_dim, _biased(keys)
    per_head = keys.get("gating", default=True) is True or keys.get("gating") == "per-head"
    layers = 0
    for heads in keys.get("num_attention_heads_per_layer", default=[size.heads] * size.layers):
        own = size._replace(heads=heads)
        layers += grouped(own, bias=bias, norms=2 * dim, gate=hidden * heads * (1 if per_head else dim))
    dense, count = dense_layers(keys, size.layers, default=1), keys.need("num_experts")
    shared = keys.get("shared_expert_intermediate_size", default=0)
    routed = experts(hidden, keys.need("moe_intermediate_size"), count, shared) + count
    layers += dense * gated(hidden, keys.need("intermediate_size")) + (size.layers - dense) * routed
    pattern = tuple(kinds(keys, size.layers))
    return decoder(keys, size, layers + size.layers * 2 * hidden, pattern=pattern)


def _longcat(keys: Keys) -> Counted:
    """LongCat-Flash: two latent attentions and dense MLPs beside the experts of a layer; empty experts."""
    # Files that transformers has saved count both attentions as layers.
    twice = keys.get("num_hidden_layers", default=0)
    size = width(keys)._replace(layers=keys.get("num_layers", default=twice // 2))
    hidden, ffn = size.hidden, keys.need("expert_ffn_hidden_size")
    count, empty = keys.need("n_routed_experts"), keys.get("zero_expert_num", default=0)
    keys.get("moe_topk")
    # The first matrix of empty experts is there, as transformers builds it.
    routed = (count + empty) * (2 * hidden * ffn + hidden) + count * ffn * hidden
    routed += count + empty if keys.get("router_bias", default=False) else 0
    one = 2 * (latent(keys, hidden) + gated(hidden, keys.need("ffn_hidden_size")) + 2 * hidden) + routed
    return decoder(keys, size, size.layers * one)


def _nanochat(keys: Keys) -> Counted:
    """nanochat: norms without weights, an MLP of two matrices."""
    size, ffn = width(keys), keys.need("intermediate_size")
    one = grouped(size, bias=_biased(keys)) + 2 * size.hidden * ffn
    return decoder(keys, size, size.layers * one, more=-size.hidden)


def _zaya(keys: Keys) -> Counted:
    """ZAYA1: compressed convolutional attention, routers of several layers, scaled residuals."""
    size = width(keys)
    hidden, dim, count, bias = size.hidden, size.head_dim, keys.need("num_experts"), _biased(keys)
    query, key = size.heads * dim, size.kv_heads * dim
    first, second = keys.get("cca_time0", default=2), keys.get("cca_time1", default=2)
    mixed = query + key
    attention = linear(hidden, query, bias) + linear(hidden, key, bias) + 2 * linear(hidden, key // 2, bias)
    attention += linear(query, hidden, bias) + size.kv_heads
    attention += linear(first, mixed, bias=True) + mixed * dim * second + mixed
    rank = keys.need("router_hidden_size")
    router = linear(hidden, rank, bias=True) + rank + 2 * linear(rank, rank, bias=True) + rank * (count + 1)
    ffn = keys.need("moe_intermediate_size", "intermediate_size")
    one = attention + router + count * gated(hidden, ffn) + 10 * hidden
    layers = size.layers * one + (size.layers - 1) * rank
    more = 2 * hidden + (size.vocab if keys.get("lm_head_bias", default=False) else 0)
    return decoder(keys, size, layers, tied=True, more=more)


def _inkling(keys: Keys) -> Counted:
    """Inkling: short convolutions around attention and MLP, relative positions, windowed layers' own heads."""
    size = width(keys)
    hidden, kernel, relative = size.hidden, keys.get("conv_kernel_size", default=4), keys.need("d_rel")
    pattern = kinds(keys, size.layers, "hybrid")
    listed = keys.get("mlp_layer_types", default=["sparse"] * size.layers)
    layers = 0
    for kind in pattern:
        windowed = kind == "hybrid_sliding"
        own = size
        if windowed:
            own = size._replace(
                heads=keys.get("swa_num_attention_heads", default=size.heads),
                kv_heads=keys.get("swa_num_key_value_heads", default=size.kv_heads),
                head_dim=keys.get("swa_head_dim", default=size.head_dim),
            )
        keys_wide = own.kv_heads * own.head_dim
        reach = keys.need("sliding_window_size") if windowed else keys.need("rel_extent")
        layers += grouped(own, norms=2 * own.head_dim) + hidden * own.heads * relative + relative * reach
        layers += 2 * keys_wide * kernel + 2 * hidden * kernel + 2 * hidden
    count, shared = keys.need("n_routed_experts"), keys.get("n_shared_experts", default=0)
    ffn = keys.need("moe_intermediate_size")
    keys.get("shared_expert_sink")
    routed = (count + shared) * (gated(hidden, ffn) + hidden) + 1
    dense = sum(1 for kind in listed[: size.layers] if kind == "dense")
    layers += (size.layers - dense) * routed
    layers += dense * (gated(hidden, keys.need("intermediate_size")) + 1) if dense else 0
    return decoder(keys, size, layers, more=hidden, pattern=tuple(pattern))


def _inkling2(keys: Keys) -> Counted:
    """Inkling 2: attention over earlier blocks' outputs, gates and sinks made of the input, dynamic convolutions."""
    size = width(keys)
    hidden, kernel, relative = size.hidden, keys.get("conv_kernel_size", default=4), keys.need("d_rel")
    pattern = kinds(keys, size.layers, "hybrid")
    keys.get("n_layers_per_attn_res_block", "unpadded_vocab_size", "log_scaling_n_floor", "log_scaling_alpha")
    layers = 0
    for number, kind in enumerate(pattern):
        windowed = kind == "hybrid_sliding"
        prefix = "swa_" if windowed else ""
        heads = keys.get(f"{prefix}num_attention_heads", default=size.heads)
        kv_heads = keys.get(f"{prefix}num_key_value_heads", default=size.kv_heads)
        own = size._replace(
            heads=heads, kv_heads=kv_heads, head_dim=keys.get(f"{prefix}head_dim", default=size.head_dim)
        )
        reach = keys.need("sliding_window_size") if windowed else keys.need("rel_extent")
        inputs = 1 if windowed else 3
        layers += grouped(own, gate=hidden * heads * (own.head_dim + 1 + relative) + relative * reach)
        layers += heads * (own.head_dim + relative)
        layers += 2 * kernel * own.kv_heads * own.head_dim
        layers += 0 if windowed else 2 * kernel * own.kv_heads * hidden
        layers += (inputs if number else 0) * hidden + inputs * hidden + 2 * hidden + 2 * hidden * kernel
    routed = experts(hidden, keys.need("moe_intermediate_size"), keys.need("n_routed_experts"))
    layers += size.layers * routed
    return decoder(keys, size, layers, more=2 * hidden, pattern=tuple(pattern))


def _biased(keys: Keys) -> bool:
    """Return whether attention's projections have biases."""
    return bool(keys.get("attention_bias", default=False))


RECENT: Mapping[str, Callable[[Keys], Counted]] = {
    "axk1": _axk1,
    "axk2": _axk2,
    "bailing_hybrid": _bailing_hybrid,
    "beam": _beam,
    "bitnet": _bitnet,
    "diffllama": _diffllama,
    "gemma3n_text": _gemma3n,
    "hy_v4": _hy_v4,
    "inkling2_text": _inkling2,
    "inkling_text": _inkling,
    "laguna": _laguna,
    "longcat_flash": _longcat,
    "nanochat": _nanochat,
    "zaya": _zaya,
}
