"""What a GPU of a replica holds: weights, and the room that is left for the key-value cache."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.bill.quantity import Quantity, quantity
from costmodel.describe.models.model import Model
from costmodel.generation.deployment import Deployment, Split
from costmodel.step.anatomy.kv_cache import attended, cached_layers, state_elements
from costmodel.step.anatomy.params import embedding_param_blocks, head_param_blocks, layer_param_blocks

Array = NDArray[np.float64]


class Weights(NamedTuple):
    """Matrix weights of all layers that are read together.

    Attributes
    ----------
    name : str
        ``attention`` (with other mixers), ``mlp`` (with shared experts and routers) or ``experts``.
    split, whole : float
        Those that tensor parallelism divides (of experts: all their GPUs), and those that every rank holds. [-]
    layers : int
        Layers that have such. [-]
    """

    name: str
    split: float
    whole: float
    layers: int


def layer_weights(model: Model) -> tuple[Weights, ...]:
    """Return the matrix weights of a model's layers by what reads them."""
    kinds, kind_of = model.layer_kinds(), model.kind_of_layer
    sums = {name: [0.0, 0.0, 0] for name in ("attention", "mlp", "experts")}
    for number, kind in enumerate(kinds):
        count, seen = kind_of.count(number), set()
        for block in layer_param_blocks(model, kind):
            if not block.is_matrix:
                continue
            name = {"experts": "experts", "mlp": "mlp", "shared": "mlp", "router": "mlp"}.get(
                block.part, "attention"
            )
            sums[name][block.sharding == "replicated"] += block.count * count
            seen.add(name)
        for name in seen:
            sums[name][2] += count
    return tuple(
        Weights(name, split, whole, int(layers)) for name, (split, whole, layers) in sums.items() if layers
    )


def weight_element_bytes(served: Deployment, part: str) -> float:
    """Return the bytes of a weight of a part of the model. [B]"""
    quantised = part == "experts" or served.weights.everything or (part == "mlp")
    if part == "attention" and not served.model.num_experts:
        quantised = True
    return served.weights.weight_bytes if quantised and part != "head" else 2.0


def weights_bytes(served: Deployment, split: Split) -> Array:
    """Return the weights of one GPU of the fullest pipeline stage. [B]"""
    return _weights(served, split).value


def _weights(served: Deployment, split: Split) -> Quantity:
    tp, pp, _, dp = split.floats()
    model = served.model
    shards = {"attention": tp, "mlp": tp, "experts": tp * dp}
    layers: Array = np.asarray(0.0)
    for part in layer_weights(model):
        held = part.split / shards[part.name] + part.whole
        layers = layers + weight_element_bytes(served, part.name) * held
    table = sum(block.count for block in embedding_param_blocks(model))
    output = sum(block.count for block in head_param_blocks(model))
    # Tied, the table is held by the last stage as well.
    output = max(output, float(model.vocab_size) * model.hidden_size) if model.tied_embeddings else output
    both = table if model.tied_embeddings else table + output
    return quantity(
        "layers_bytes / pp + where(pp > 1, 2 * max(table, output), 2 * both) / tp",
        layers_bytes=layers,
        table=table,
        output=output,
        both=both,
        tp=tp,
        pp=pp,
    )


def cache_bytes(served: Deployment, split: Split, context: ArrayLike) -> Array:
    """Return the key-value cache, and the states of other mixers, of one sequence on one of its GPUs. [B]

    Keys and values are cut by heads, of which each GPU has one at least; MLA's latent has none to cut.
    """
    tp, pp, _, _ = split.floats()
    tokens = np.asarray(context, dtype=np.float64)
    held: Array = state_elements(served.model, tokens) * STATE_BYTES / tp
    for each in cached_layers(served.model):
        kept = each.layers * each.elements * attended(tokens, each.window)
        held = held + served.cache_bytes * kept / np.minimum(tp, each.heads)
    return np.asarray(held / pp)


STATE_BYTES = 2.0
"""Of an element of the state of another mixer, which engines keep in 16 bits. [B]"""

BUFFERS_BYTES = 2.0 * 1024**3
"""CUDA context, graphs, and buffers of collectives beside what a step computes. Assumed. [B]"""


def cache_room(served: Deployment, split: Split) -> Quantity:
    """Return what the engine's share of a GPU leaves for the cache; below 0 the model does not fit. [B]"""
    tp, _, _, _ = split.floats()
    model = served.model
    widest = max(float(model.ffn_size), float(model.expert_ffn_size * model.top_k), float(model.hidden_size))
    return quantity(
        "memory_fraction * memory_bytes - weights_bytes - buffers_bytes"
        " - 2 * chunk_tokens * (4 * hidden_size + 3 * widest / tp)",
        memory_fraction=served.memory_fraction,
        memory_bytes=served.cluster.accelerator.memory_bytes,
        weights_bytes=weights_bytes(served, split),
        buffers_bytes=BUFFERS_BYTES,
        chunk_tokens=served.chunk_tokens,
        hidden_size=float(model.hidden_size),
        widest=widest,
        tp=tp,
    )


def largest_batch(served: Deployment, split: Split, context: ArrayLike) -> Array:
    """Return how many sequences of so many tokens a replica can run together; below 1 it does not fit. [-]"""
    _, _, _, dp = split.floats()
    return np.asarray(
        dp * np.maximum(cache_room(served, split).value, 0.0) / cache_bytes(served, split, context)
    )
