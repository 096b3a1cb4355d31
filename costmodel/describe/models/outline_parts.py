"""Parameters of the parts that outlines are made of."""

from __future__ import annotations

from typing import Any, NamedTuple

from costmodel.describe.models.huggingface_keys import Keys


class Counted(NamedTuple):
    """A model that was counted."""

    params: int
    tied: bool
    shape: dict[str, Any]
    layers: tuple[str, ...] = ()


class Width(NamedTuple):
    """What nearly every decoder has."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int


def linear(rows: int, columns: int, bias: bool = False) -> int:
    """Return the weights of a projection."""
    return rows * columns + (columns if bias else 0)


def gated(hidden: int, ffn: int, bias: bool = False) -> int:
    """Return the weights of a gated MLP."""
    return 2 * linear(hidden, ffn, bias) + linear(ffn, hidden, bias)


def experts(hidden: int, ffn: int, count: int, shared: int = 0) -> int:
    """Return the weights of gated experts, their router, and a shared expert of a width."""
    return count * gated(hidden, ffn) + count * hidden + gated(hidden, shared)


def width(keys: Keys) -> Width:
    """Return the widths of a decoder."""
    hidden, heads = keys.need("hidden_size"), keys.need("num_attention_heads")
    listed = keys.get("hybrid_override_pattern", "layers_block_type")
    layers = keys.get("num_hidden_layers", "num_layers", default=len(listed) if listed else None)
    return Width(
        hidden,
        keys.need("num_hidden_layers", "num_layers") if layers is None else layers,
        heads,
        keys.get("num_key_value_heads", default=heads),
        keys.get("head_dim", "attention_head_dim", default=hidden // heads),
        keys.need("vocab_size"),
    )


def grouped(size: Width, *, bias: bool = False, norms: int = 0, gate: int = 0) -> int:
    """Return the weights of grouped-query attention; `norms` and `gate` are of its queries and keys."""
    queries, keys = size.heads * size.head_dim, size.kv_heads * size.head_dim
    return (
        linear(size.hidden, queries, bias)
        + 2 * linear(size.hidden, keys, bias)
        + linear(queries, size.hidden, bias)
        + norms
        + gate
    )


def latent(keys: Keys, hidden: int) -> int:
    """Return the weights of multi-head latent attention."""
    heads, low = keys.need("num_attention_heads"), keys.need("kv_lora_rank")
    plain, rotary = keys.need("qk_nope_head_dim"), keys.need("qk_rope_head_dim")
    value, rank = keys.need("v_head_dim"), keys.get("q_lora_rank", default=0)
    keys.get("qk_head_dim", "head_dim", "num_key_value_heads")
    queries = heads * (plain + rotary)
    down = hidden * rank + rank + rank * queries if rank else hidden * queries
    up = low + low * heads * (plain + value)
    bias = rank + low + rotary + hidden if keys.get("attention_bias", default=False) else 0
    return int(down + hidden * (low + rotary) + up + heads * value * hidden + bias)


def indexer(keys: Keys, hidden: int) -> int:
    """Return the weights that choose which tokens latent attention looks at."""
    dim, heads = keys.need("index_head_dim"), keys.need("index_n_heads")
    return int(keys.need("q_lora_rank") * heads * dim + dim * hidden + 2 * dim + heads * hidden)


def dense_layers(keys: Keys, layers: int, default: int | None = None) -> int:
    """Return how many layers have no experts; `default` is that of a file that does not say."""
    listed = keys.get("mlp_layer_types")
    if listed is not None:
        keys.get("first_k_dense_replace")
        return sum(1 for kind in listed[:layers] if kind == "dense")
    first = keys.get("first_k_dense_replace", default=default)
    return int(keys.need("first_k_dense_replace") if first is None else first)


def kinds(keys: Keys, count: int, default: str = "full_attention") -> list[str]:
    """Return the kind of every layer.

    Raises
    ------
    ModelConfigError
        If there are other than the number of layers.
    """
    found = keys.get("layer_types", default=[default] * count)
    if len(found) < count:
        raise keys.refuse(f"layer_types: has {len(found)} layers, num_hidden_layers is {count}")
    return [str(kind) for kind in found[:count]]


def decoder(
    keys: Keys, size: Width, layers: int, *, pattern: tuple[str, ...] = (), tied: bool = False, more: int = 0
) -> Counted:
    """Return a decoder: table, layers, last norm, head, and `more`."""
    tied = keys.get("tie_word_embeddings", default=tied)
    table = size.vocab * size.hidden
    shape = {
        "num_layers": size.layers,
        "hidden_size": size.hidden,
        "num_heads": size.heads,
        "num_kv_heads": size.kv_heads,
        "vocab_size": size.vocab,
    }
    return Counted(
        table * (1 if tied else 2) + layers + size.hidden + more,
        tied,
        {k: v for k, v in shape.items() if v},
        pattern,
    )
