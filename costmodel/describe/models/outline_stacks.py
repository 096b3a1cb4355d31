"""Parameters of models that are no single stack of like layers: shared blocks, cross attention, recurrence, bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from costmodel.describe.models.huggingface_keys import Keys
from costmodel.describe.models.outline_parts import (
    Counted,
    Width,
    decoder,
    gated,
    grouped,
    linear,
    width,
)


def _zamba_layers(keys: Keys, layers: int) -> list[str]:
    """Return which layers run the shared block before their state space."""
    named = {"mamba": "linear_attention"}
    listed = keys.get("layers_block_type", "layer_types")
    keys.get("hybrid_layer_ids")
    if listed is not None:
        return [named.get(str(kind), str(kind)) for kind in listed[:layers]]
    every, first = keys.need("attn_layer_period"), keys.need("attn_layer_offset")
    return ["hybrid" if i % every == first else "linear_attention" for i in range(layers)]


def _zamba(keys: Keys) -> Counted:
    """Zamba: one shared block of attention and MLP, over state-space layers of several heads."""
    size = width(keys)
    hidden, pattern = size.hidden, _zamba_layers(keys, size.layers)
    inner, heads = int(keys.need("mamba_expand") * hidden), keys.get("n_mamba_heads", default=1)
    state, rank = keys.need("mamba_d_state"), keys.need("mamba_dt_rank")
    rank = -(-hidden // 16) if rank == "auto" else rank
    bias = keys.get("mamba_proj_bias", default=False)
    part = inner // heads
    one = heads * ((rank + 2 * state) * part + part * rank + part + part * state + part)
    one += linear(keys.need("mamba_d_conv"), inner, keys.get("mamba_conv_bias", default=True))
    one += linear(hidden, 2 * inner, bias) + linear(inner, hidden, bias) + hidden
    wide, dim = keys.get("attention_hidden_size", default=2 * hidden), keys.get("attention_head_dim")
    dim = 2 * hidden // size.heads if dim is None else dim
    shared = wide * dim * (size.heads + 2 * size.kv_heads) + size.heads * dim * hidden + wide + hidden
    shared += gated(hidden, keys.need("intermediate_size"))
    hybrid = sum(1 for kind in pattern if kind == "hybrid")
    layers = size.layers * one + hybrid * hidden * hidden + (shared if hybrid else 0)
    return decoder(keys, size, layers, tied=True, pattern=tuple(pattern))


def _zamba2(keys: Keys) -> Counted:
    """Zamba2: a few shared blocks, adapted by a pair of small matrices where each is used."""
    size = width(keys)
    hidden, pattern = size.hidden, _zamba_layers(keys, size.layers)
    inner, heads = int(keys.need("mamba_expand") * hidden), keys.need("n_mamba_heads")
    groups, bias = keys.get("mamba_ngroups", default=1), keys.get("add_bias_linear", default=False)
    mixed = inner + 2 * groups * keys.need("mamba_d_state")
    keys.get("mamba_headdim", "attention_hidden_size", "kv_channels", "num_query_groups")
    one = 3 * heads + linear(keys.need("mamba_d_conv"), mixed, keys.get("use_conv_bias", default=True))
    one += linear(hidden, inner + mixed + heads, bias) + inner + linear(inner, hidden, bias) + hidden
    ffn, rank = keys.get("intermediate_size", default=4 * hidden), keys.get("adapter_rank", default=128)
    dim = 2 * hidden // size.heads
    keys.get("attention_head_dim")
    block = 2 * hidden * dim * (size.heads + 2 * size.kv_heads) + size.heads * dim * hidden + 3 * hidden
    block += gated(hidden, ffn, bias)
    uses = sum(1 for kind in pattern if kind == "hybrid")
    adapter = rank * (hidden + 2 * ffn)
    if keys.get("use_shared_attention_adapter", default=False):
        adapter += 3 * 2 * rank * 2 * hidden
    blocks = min(keys.get("num_mem_blocks", default=1), uses)
    layers = size.layers * one + uses * (hidden * hidden + adapter) + blocks * block
    return decoder(keys, size, layers, tied=True, pattern=tuple(pattern))


def _recurrent_gemma(keys: Keys) -> Counted:
    """RecurrentGemma: gated linear recurrences with gates of a block each, and local attention."""
    size = width(keys)
    hidden, heads = size.hidden, size.heads
    size = size._replace(head_dim=hidden // heads)
    cycle = keys.need("block_types")
    pattern = [cycle[i % len(cycle)] for i in range(size.layers)]
    wide = keys.get("lru_width", default=hidden)
    recurrent = 2 * linear(hidden, wide, bias=True) + linear(wide, hidden, bias=True)
    recurrent += linear(keys.get("conv1d_width", default=4), wide, bias=True)
    recurrent += wide + 2 * (wide * (wide // heads) + wide)
    full = grouped(size, bias=bool(keys.get("attention_bias", default=False)))
    full += 0 if keys.get("attention_bias", default=False) else hidden
    # The width that a file says is that of gate and way up together.
    ffn = keys.need("intermediate_size") // 2
    layers = sum(full if kind == "attention" else recurrent for kind in pattern)
    layers += size.layers * (gated(hidden, ffn, bias=True) + 2 * hidden)
    keys.get("attention_window_size", "w_init_variance_scale", "final_w_init_variance_scale")
    return decoder(keys, size, layers, tied=True, pattern=tuple(pattern))


def _rwkv(keys: Keys) -> Counted:
    """RWKV-4: time and channel mixing without attention."""
    hidden, layers, vocab = keys.need("hidden_size"), keys.need("num_hidden_layers"), keys.need("vocab_size")
    wide = keys.get("attention_hidden_size", default=hidden)
    ffn = keys.get("intermediate_size", default=4 * hidden)
    one = 4 * hidden + 2 * wide + 3 * hidden + 4 * hidden * wide
    one += 2 * hidden + 2 * hidden * ffn + hidden * hidden
    size = Width(hidden, layers, 0, 0, 0, vocab)
    return decoder(keys, size, layers * one, more=3 * hidden, pattern=("wkv",) * layers)


def _mllama(keys: Keys) -> Counted:
    """Llama 3.2's vision models without the tower: some layers attend to the picture instead of the text."""
    size = width(keys)
    crossing = set(keys.need("cross_attention_layers"))
    pattern = ["cross_attention" if i in crossing else "full_attention" for i in range(size.layers)]
    one = grouped(size) + gated(size.hidden, keys.need("intermediate_size")) + 2 * size.hidden
    more = sum(1 for kind in pattern if kind == "cross_attention") * (2 * size.head_dim + 2)
    # Eight rows of the table stand for special tokens of pictures.
    return decoder(keys, size, size.layers * one, more=more + 8 * size.hidden, pattern=tuple(pattern))


def _modernbert(keys: Keys) -> Counted:
    """ModernBERT as a decoder: a head of one projection and norm, a bias of each token."""
    size = width(keys)
    hidden, norm = size.hidden, size.hidden * (2 if keys.get("norm_bias", default=False) else 1)
    one = grouped(size, bias=bool(keys.get("attention_bias", default=False)))
    one += gated(hidden, keys.need("intermediate_size"), keys.get("mlp_bias", default=False)) + 2 * norm
    head = linear(hidden, hidden, keys.get("classifier_bias", default=False)) + norm
    head += size.vocab if keys.get("decoder_bias", default=True) else 0
    every = keys.get("global_attn_every_n_layers", default=3)
    local = [("full" if i % every == 0 else "sliding") + "_attention" for i in range(size.layers)]
    keys.get("local_attention")
    pattern = keys.get("layer_types", default=local)
    # The norm after the table stands for the first layer's own, and the last one is counted by `decoder`.
    more = head + norm - hidden
    return decoder(keys, size, size.layers * one, tied=True, more=more, pattern=tuple(pattern))


def _moshi(keys: Keys) -> Counted:
    """Moshi's language model: a gated MLP whose width is that of gate and way up together."""
    size, ffn = width(keys), keys.need("ffn_dim")
    keys.get("num_codebooks", "audio_vocab_size", "depth_decoder_config", "audio_encoder_config")
    one = grouped(size) + size.hidden * ffn + ffn // 2 * size.hidden + 2 * size.hidden
    return decoder(keys, size, size.layers * one, more=size.hidden)


def _gpt(keys: Keys) -> Counted:
    """Return the first GPT: norms behind attention and MLP, none at the end."""
    hidden, layers, vocab = keys.need("n_embd"), keys.need("n_layer"), keys.need("vocab_size")
    one = 4 * linear(hidden, hidden, bias=True) + 4 * hidden
    one += linear(hidden, 4 * hidden, bias=True) + linear(4 * hidden, hidden, bias=True)
    size = Width(hidden, layers, keys.need("n_head"), 0, 0, vocab)
    more = keys.need("n_positions") * hidden - hidden
    return decoder(keys, size, layers * one, tied=True, more=more)


def _cpmant(keys: Keys) -> Counted:
    """CPM-Ant: relative position biases, prompts in the token table, a head of its own."""
    hidden, layers, heads = (
        keys.need(k) for k in ("hidden_size", "num_hidden_layers", "num_attention_heads")
    )
    vocab, wide = keys.need("vocab_size"), heads * keys.need("dim_head")
    one = 4 * hidden * wide + gated(hidden, keys.need("dim_ff")) + 2 * hidden
    segments = keys.need("segment_types")
    buckets = segments * segments + keys.need("position_bias_num_buckets")
    prompts = keys.need("prompt_types") * keys.need("prompt_length")
    size = Width(hidden, layers, heads, heads, 0, vocab)
    more = segments * hidden + buckets * heads + prompts * hidden
    # Tables of unlike sizes cannot be one: the head is there whatever the file says.
    more += vocab * hidden if keys.get("tie_word_embeddings", default=True) else 0
    return decoder(keys, size, layers * one, tied=True, more=more)


def _blt(keys: Keys) -> Counted:
    """Byte latent transformer: bytes to patches and back, and the transformer between."""
    total, parts = 0, {}
    for name in ("encoder", "global", "decoder", "patcher"):
        part = Keys(keys.need(f"{name}_config"), keys.origin)
        size = width(Keys({"vocab_size": 0, **part.raw}, keys.origin))
        one = grouped(size) + gated(size.hidden, part.need("intermediate_size")) + 2 * size.hidden
        total += size.layers * one
        parts[name] = (part, size)
    wide = parts["global"][1].hidden
    for name, way_in in (("encoder", parts["encoder"][1].hidden), ("decoder", wide)):
        part, size = parts[name]
        crossing = size.layers if part.get("cross_attn_all_layers", default=False) else 1
        total += crossing * (4 * size.hidden**2 + 2 * size.hidden)
        total += way_in * size.hidden * part.get("cross_attn_k", default=2)
        # The encoder's table, the decoder's head.
        total += part.need("vocab_size") * size.hidden
    near, small = parts["encoder"][1].hidden, parts["patcher"][1].hidden
    total += parts["decoder"][1].hidden + 2 * parts["patcher"][0].need("vocab_size") * small + small
    hashes = keys.get("encoder_hash_byte_group_size", default=[3, 4, 5, 6, 7, 8])
    each = keys.get("encoder_hash_byte_group_nb_functions", default=1)
    total += keys.get("encoder_hash_byte_group_vocab", default=500_002) * len(hashes) * each * near
    depths = [parts[name][1].layers for name in ("encoder", "global", "decoder")]
    shape = {"num_layers": sum(depths), "hidden_size": wide, "vocab_size": keys.need("vocab_size")}
    pattern = ("local",) * depths[0] + ("global",) * depths[1] + ("local",) * depths[2]
    return Counted(total, False, shape, pattern)


STACKS: Mapping[str, Callable[[Keys], Counted]] = {
    "blt": _blt,
    "cpmant": _cpmant,
    "mllama_text_model": _mllama,
    "modernbert-decoder": _modernbert,
    "moshi": _moshi,
    "openai-gpt": _gpt,
    "recurrent_gemma": _recurrent_gemma,
    "rwkv": _rwkv,
    "zamba": _zamba,
    "zamba2": _zamba2,
}
