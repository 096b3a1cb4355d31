"""Parameters of models with layers of linear attention, state space, or convolution beside attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from costmodel.describe.models.huggingface_keys import Keys
from costmodel.describe.models.outline_parts import (
    Counted,
    Width,
    decoder,
    dense_layers,
    experts,
    gated,
    grouped,
    kinds,
    latent,
    linear,
    width,
)


def _mamba1(keys: Keys, hidden: int, inner: int, prefix: str = "", norms: bool = False) -> int:
    """Return the weights of a state-space mixer of the first kind."""
    state = keys.need(f"{prefix}d_state" if prefix else "state_size")
    kernel = keys.need(f"{prefix}d_conv" if prefix else "conv_kernel")
    rank = keys.need(f"{prefix}dt_rank" if prefix else "time_step_rank")
    rank = -(-hidden // 16) if rank == "auto" else rank
    conv_bias = keys.get(f"{prefix}conv_bias" if prefix else "use_conv_bias", default=True)
    bias = keys.get(f"{prefix}proj_bias" if prefix else "use_bias", default=False)
    return int(
        inner * state
        + inner
        + linear(kernel, inner, conv_bias)
        + linear(hidden, 2 * inner, bias)
        + inner * (rank + 2 * state)
        + linear(rank, inner, bias=True)
        + linear(inner, hidden, bias)
        + (rank + 2 * state if norms else 0)
    )


def _mamba2(
    hidden: int,
    heads: int,
    inner: int,
    groups: int,
    state: int,
    kernel: int,
    *,
    conv_bias: bool,
    bias: bool,
    norm: bool = True,
) -> int:
    """Return the weights of a state-space mixer of the second kind."""
    mixed = inner + 2 * groups * state
    return (
        3 * heads
        + linear(kernel, mixed, conv_bias)
        + linear(hidden, inner + mixed + heads, bias)
        + (inner if norm else 0)
        + linear(inner, hidden, bias)
    )


def _prefixed_mamba2(
    keys: Keys, hidden: int, inner: int | None = None, *, norm: bool = True, bias: bool = False
) -> int:
    """Return a mixer of the second kind whose keys begin with ``mamba_``."""
    inner = inner or keys.need("mamba_expand") * hidden
    keys.get("mamba_d_head", "mamba_chunk_size")
    return _mamba2(
        hidden,
        keys.need("mamba_n_heads"),
        inner,
        keys.need("mamba_n_groups"),
        keys.need("mamba_d_state"),
        keys.need("mamba_d_conv"),
        conv_bias=keys.get("mamba_conv_bias", default=True),
        bias=keys.get("mamba_proj_bias", default=bias),
        norm=norm,
    )


def _delta(keys: Keys, hidden: int) -> int:
    """Return the weights of a gated delta rule: Qwen's."""
    key_heads, value_heads = keys.need("linear_num_key_heads"), keys.need("linear_num_value_heads")
    value_dim = keys.need("linear_value_head_dim")
    key, value = key_heads * keys.need("linear_key_head_dim"), value_heads * value_dim
    mixed = 2 * key + value
    return int(
        mixed * keys.need("linear_conv_kernel_dim")
        + hidden * (mixed + value + 2 * value_heads)
        + 2 * value_heads
        + value_dim
        + value * hidden
    )


def _every(keys: Keys, layers: int) -> list[str]:
    """Return Qwen's layers: every n-th is of full attention."""
    every = keys.get("full_attention_interval", default=4)
    if keys.get("layer_types") is not None:
        return kinds(keys, layers)
    return ["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(layers)]


def _qwen(keys: Keys) -> Counted:
    """Qwen3-Next and Qwen3.5: three gated delta rules and one gated attention in four layers."""
    size = width(keys)
    pattern = _every(keys, size.layers)
    bias = keys.get("attention_bias", default=False)
    full = grouped(
        size, bias=bias, norms=2 * size.head_dim, gate=linear(size.hidden, size.heads * size.head_dim, bias)
    )
    mixers = sum(full if kind == "full_attention" else _delta(keys, size.hidden) for kind in pattern)
    keys.get("attn_output_gate", "mamba_ssm_dtype")
    dense, step = (
        set(keys.get("mlp_only_layers", default=[])),
        keys.get("decoder_sparse_step", default=1),
    )
    count = keys.get("num_experts", default=0)
    routed = [bool(count) and i not in dense and (i + 1) % step == 0 for i in range(size.layers)]
    mlp = 0
    if any(routed):
        shared = keys.get("shared_expert_intermediate_size", default=0)
        one = experts(size.hidden, keys.need("moe_intermediate_size"), count, shared) + size.hidden
        mlp += sum(routed) * one
    if not all(routed):
        mlp += (size.layers - sum(routed)) * gated(size.hidden, keys.need("intermediate_size"))
    return decoder(keys, size, mixers + mlp + size.layers * 2 * size.hidden, pattern=tuple(pattern))


def _olmo_hybrid(keys: Keys) -> Counted:
    """OLMo hybrid: gated delta rules with separate projections."""
    size = width(keys)
    pattern = kinds(keys, size.layers)
    heads, value_dim = keys.need("linear_num_value_heads"), keys.need("linear_value_head_dim")
    key = keys.need("linear_num_key_heads") * keys.need("linear_key_head_dim")
    value = heads * value_dim
    one = 2 * heads + size.hidden * (2 * key + 2 * value + 2 * heads) + value * size.hidden
    one += (2 * key + value) * keys.need("linear_conv_kernel_dim") + value_dim
    full = grouped(
        size,
        bias=keys.get("attention_bias", default=False),
        norms=(size.heads + size.kv_heads) * size.head_dim,
    )
    rest = size.layers * (gated(size.hidden, keys.need("intermediate_size")) + 2 * size.hidden)
    mixers = sum(full if kind == "full_attention" else one for kind in pattern)
    return decoder(keys, size, mixers + rest, pattern=tuple(pattern))


def _kimi_linear(keys: Keys) -> Counted:
    """Kimi Linear: channel-wise gated delta rules and latent attention, experts."""
    size = width(keys)
    inner = keys.get("linear_attn_config", default={})
    heads = inner.get("num_heads") or keys.need("linear_num_heads")
    dim = inner.get("head_dim") or keys.need("linear_head_dim")
    kernel = inner.get("short_conv_kernel_size") or keys.need("linear_conv_kernel_dim")
    if "full_attn_layers" in inner:
        # Counted from one in the published files.
        full_at = set(inner["full_attn_layers"])
        pattern = ["full_attention" if i + 1 in full_at else "linear_attention" for i in range(size.layers)]
    else:
        pattern = kinds(keys, size.layers)
    wide = heads * dim
    one = 3 * (size.hidden * wide + wide * kernel) + wide + heads + 2 * (dim * size.hidden + wide * dim)
    one += heads * size.hidden + dim + wide * size.hidden
    full = latent(keys, size.hidden)
    keys.get("mla_use_nope", "moe_layer_freq")
    mixers = sum(full if kind == "full_attention" else one for kind in pattern)
    dense = dense_layers(keys, size.layers)
    ffn = keys.need("moe_intermediate_size")
    routed = experts(
        size.hidden, ffn, keys.need("num_experts"), ffn * keys.get("num_shared_experts", default=0)
    )
    mlp = dense * gated(size.hidden, keys.need("intermediate_size")) + (size.layers - dense) * routed
    return decoder(keys, size, mixers + mlp + size.layers * 2 * size.hidden, pattern=tuple(pattern))


def _minimax(keys: Keys) -> Counted:
    """MiniMax-Text-01: lightning attention, experts everywhere."""
    size = width(keys)
    older = keys.get("attn_type_list")
    if older is not None:
        pattern = ["full_attention" if kind else "linear_attention" for kind in older]
    else:
        pattern = kinds(keys, size.layers)
    if len(pattern) != size.layers:
        raise keys.refuse(f"attn_type_list: has {len(pattern)} layers, num_hidden_layers is {size.layers}")
    wide = size.heads * size.head_dim
    one = wide + size.hidden * 3 * wide + wide * size.hidden + size.hidden * wide
    mixers = sum(grouped(size) if kind == "full_attention" else one for kind in pattern)
    mlp = experts(size.hidden, keys.need("intermediate_size"), keys.need("num_local_experts"))
    return decoder(keys, size, mixers + size.layers * (mlp + 2 * size.hidden), pattern=tuple(pattern))


_LETTERS = {"M": "mamba", "*": "full_attention", "-": "mlp", "E": "moe"}
_NAMES = {"linear_attention": "mamba", "attention": "full_attention"}


def _nemotron_h(keys: Keys) -> Counted:
    """Nemotron-H: each layer is one block, of state space, attention, MLP, or experts."""
    written = keys.get("hybrid_override_pattern")
    if written is not None:
        keys.get("layers_block_type")
        pattern = [_LETTERS.get(letter, letter) for letter in written]
    else:
        pattern = [_NAMES.get(name, name) for name in keys.need("layers_block_type")]
    size = width(keys)._replace(layers=len(pattern))
    blocks: dict[str, Callable[[], int]] = {
        "mamba": lambda: _nemotron_mixer(keys, size.hidden),
        "full_attention": lambda: grouped(size, bias=keys.get("attention_bias", default=False)),
        "mlp": lambda: _two(size.hidden, keys.need("intermediate_size"), keys),
        "moe": lambda: _nemotron_experts(keys, size.hidden),
    }
    if strange := sorted(set(pattern) - set(blocks)):
        raise keys.refuse(f"hybrid_override_pattern: {strange[0]!r} is not supported")
    counted = {kind: blocks[kind]() + size.hidden for kind in set(pattern)}
    return decoder(keys, size, sum(counted[kind] for kind in pattern), pattern=tuple(pattern))


def _two(hidden: int, ffn: int, keys: Keys) -> int:
    """Return the weights of an MLP of two matrices."""
    bias = keys.get("mlp_bias", default=False)
    return linear(hidden, ffn, bias) + linear(ffn, hidden, bias)


def _nemotron_mixer(keys: Keys, hidden: int) -> int:
    """Return a state-space block of Nemotron-H."""
    heads = keys.need("mamba_num_heads")
    keys.get("expand", "chunk_size")
    return _mamba2(
        hidden,
        heads,
        heads * keys.need("mamba_head_dim"),
        keys.need("n_groups"),
        keys.need("ssm_state_size"),
        keys.need("conv_kernel"),
        conv_bias=keys.get("use_conv_bias", default=True),
        bias=keys.get("mamba_proj_bias", "use_bias", default=False),
    )


def _nemotron_experts(keys: Keys, hidden: int) -> int:
    """Return a block of experts of Nemotron-H."""
    # Nemotron 3 Super and Ultra: routed experts work on a narrower width, with a projection each way.
    inner = keys.get("moe_latent_size") or hidden
    ways = 0 if inner == hidden else 2 * hidden * inner
    count, ffn = keys.need("n_routed_experts"), keys.need("moe_intermediate_size")
    shared = keys.need("moe_shared_expert_intermediate_size") if keys.get("n_shared_experts") else 0
    return int(count * 2 * inner * ffn + count * hidden + 2 * hidden * shared + ways)


def _mamba_decoder(keys: Keys, tied: bool, mixer: Callable[[int], int]) -> Counted:
    """Return a model of state-space layers alone."""
    hidden, layers = keys.need("hidden_size"), keys.need("num_hidden_layers")
    size = Width(hidden, layers, 0, 0, 0, keys.need("vocab_size"))
    return decoder(keys, size, layers * (mixer(hidden) + hidden), tied=tied, pattern=("mamba",) * layers)


def _mamba(keys: Keys) -> Counted:
    inner = keys.get("intermediate_size", default=0)
    return _mamba_decoder(
        keys,
        True,
        lambda hidden: _mamba1(keys, hidden, inner or int(keys.get("expand", default=2) * hidden)),
    )


def _mamba2_model(keys: Keys) -> Counted:
    def mixer(hidden: int) -> int:
        keys.get("head_dim", "chunk_size")
        return _mamba2(
            hidden,
            keys.need("num_heads"),
            int(keys.get("expand", default=2) * hidden),
            keys.need("n_groups"),
            keys.need("state_size"),
            keys.need("conv_kernel"),
            conv_bias=keys.get("use_conv_bias", default=True),
            bias=keys.get("use_bias", default=False),
        )

    return _mamba_decoder(keys, False, mixer)


def _jamba(keys: Keys) -> Counted:
    """Jamba: one attention in eight layers, experts in every second."""
    size = width(keys)
    period, offset = keys.need("attn_layer_period"), keys.need("attn_layer_offset")
    pattern = ["full_attention" if i % period == offset else "mamba" for i in range(size.layers)]
    inner = keys.need("mamba_expand") * size.hidden
    one = _mamba1(keys, size.hidden, inner, "mamba_", norms=True)
    mixers = sum(grouped(size) if kind == "full_attention" else one for kind in pattern)
    count, ffn = keys.need("num_experts"), keys.need("intermediate_size")
    period, offset = keys.need("expert_layer_period"), keys.need("expert_layer_offset")
    routed = sum(1 for i in range(size.layers) if count > 1 and i % period == offset)
    mlp = routed * experts(size.hidden, ffn, count) + (size.layers - routed) * gated(size.hidden, ffn)
    return decoder(keys, size, mixers + mlp + size.layers * 2 * size.hidden, pattern=tuple(pattern))


def _bamba(keys: Keys) -> Counted:
    """Bamba: state space everywhere but in the named layers."""
    size = width(keys)
    full = set(keys.get("attn_layer_indices", default=[]))
    pattern = ["full_attention" if i in full else "mamba" for i in range(size.layers)]
    one = _prefixed_mamba2(keys, size.hidden)
    mixers = sum(
        grouped(size, bias=keys.get("attention_bias", default=False)) if kind == "full_attention" else one
        for kind in pattern
    )
    mlp = gated(size.hidden, keys.need("intermediate_size"), keys.get("mlp_bias", default=False))
    return decoder(keys, size, mixers + size.layers * (mlp + 2 * size.hidden), pattern=tuple(pattern))


def _falcon_h1(keys: Keys) -> Counted:
    """Falcon-H1: attention and state space side by side in every layer."""
    size = width(keys)
    norm = keys.get("mamba_rms_norm", default=False)
    mixer = _prefixed_mamba2(keys, size.hidden, keys.get("mamba_d_ssm"), norm=norm)
    keys.get("mamba_expand")
    one = mixer + grouped(size, bias=keys.get("attention_bias", default=False))
    one += gated(size.hidden, keys.need("intermediate_size"), keys.get("mlp_bias", default=False))
    pattern = ("attention and mamba",) * size.layers
    return decoder(keys, size, size.layers * (one + 2 * size.hidden), pattern=pattern)


def _granite_hybrid(keys: Keys) -> Counted:
    """Granite 4: state space and attention, a shared MLP, experts in the larger ones."""
    size = width(keys)
    named = keys.get("layer_types", "layers_block_type", default=["mamba"] * size.layers)
    pattern = ["mamba" if kind in ("mamba", "linear_attention") else "full_attention" for kind in named]
    one = _prefixed_mamba2(keys, size.hidden)
    full = grouped(size, bias=keys.get("attention_bias", default=False))
    mixers = sum(full if kind == "full_attention" else one for kind in pattern)
    mlp = gated(size.hidden, keys.need("shared_intermediate_size"))
    if count := keys.get("num_local_experts", default=0):
        mlp += experts(size.hidden, keys.need("intermediate_size"), count)
    return decoder(keys, size, mixers + size.layers * (mlp + 2 * size.hidden), pattern=tuple(pattern))


def _lfm(keys: Keys, *, adjust: bool) -> Counted:
    """LFM: short convolutions and attention."""
    size = width(keys)
    named = keys.get("layer_types")
    if named is None:
        full = set(keys.need("full_attn_idxs"))
        named = ["full_attention" if i in full else "conv" for i in range(size.layers)]
    keys.get("full_attn_idxs")
    pattern = [str(kind) for kind in named]
    ffn = keys.need("intermediate_size", "block_ff_dim")
    if adjust and keys.get("block_auto_adjust_ff_dim", default=True):
        of = keys.get("block_multiple_of", default=256)
        ffn = int(keys.get("block_ffn_dim_multiplier", default=1.0) * int(2 * ffn / 3))
        ffn = of * -(-ffn // of)
    bias = keys.get("conv_bias", default=False)
    conv = linear(keys.need("conv_L_cache"), size.hidden, bias)
    conv += linear(size.hidden, 3 * size.hidden, bias) + linear(size.hidden, size.hidden, bias)
    gate = size.heads * size.hidden if keys.get("use_attention_gate", default=False) else 0
    full_one = grouped(size, norms=2 * size.head_dim, gate=gate)
    norms = 4 if keys.get("use_sandwich_norm", default=False) else 2
    mixers = sum(conv if kind == "conv" else full_one for kind in pattern)
    rest = size.layers * (gated(size.hidden, ffn) + norms * size.hidden)
    return decoder(keys, size, mixers + rest, tied=True, pattern=tuple(pattern))


def _xlstm(keys: Keys) -> Counted:
    """xLSTM: matrix memories with gates of each head."""
    hidden, layers = keys.need("hidden_size", "embedding_dim"), keys.need("num_hidden_layers", "num_blocks")
    keys.get("embedding_dim", "num_blocks")
    heads, bias = keys.need("num_heads"), keys.get("use_bias", default=False)
    query = int(hidden * keys.need("qk_dim_factor"))
    value = int(hidden * keys.need("v_dim_factor"))
    of = keys.need("ffn_round_up_to_multiple_of")
    ffn = of * -(-int(hidden * keys.need("ffn_proj_factor")) // of)
    one = 2 * linear(hidden, query, bias) + 2 * linear(hidden, value, bias) + linear(value, hidden, bias)
    one += 2 * linear(hidden, heads, bias=True) + value + gated(hidden, ffn, bias) + 2 * hidden
    size = Width(hidden, layers, heads, 0, 0, keys.need("vocab_size"))
    more = 0 if keys.get("add_out_norm", default=True) else -hidden
    return decoder(keys, size, layers * one, more=more, pattern=("mlstm",) * layers)


HYBRIDS: Mapping[str, Callable[[Keys], Counted]] = {
    "bamba": _bamba,
    "falcon_h1": _falcon_h1,
    "falcon_mamba": _mamba,
    "granitemoehybrid": _granite_hybrid,
    "jamba": _jamba,
    "kimi_linear": _kimi_linear,
    "lfm2": lambda keys: _lfm(keys, adjust=True),
    "lfm3": lambda keys: _lfm(keys, adjust=False),
    "mamba": _mamba,
    "mamba2": _mamba2_model,
    "minimax": _minimax,
    "minimax_m1": _minimax,
    "minimax_text_01": _minimax,
    "nemotron_h": _nemotron_h,
    "olmo_hybrid": _olmo_hybrid,
    "qwen3_5_moe_text": _qwen,
    "qwen3_5_text": _qwen,
    "qwen3_next": _qwen,
    "xlstm": _xlstm,
}
