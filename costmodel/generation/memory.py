"""What a GPU of a replica holds: weights, and the room that is left for the key-value cache."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.bill.quantity import Quantity, quantity
from costmodel.describe.models.model import Model
from costmodel.generation.deployment import Deployment, Split
from costmodel.step.anatomy.kv_cache import attended, cached_layers, state_elements
from costmodel.step.anatomy.params import layer_param_blocks, param_blocks

Array = NDArray[np.float64]

_READ_WITH = {"experts": "experts", "mlp": "mlp", "shared": "mlp", "router": "mlp"}
"""What reads the matrices of a part of a layer; attention, and other mixers, those of all others."""

STATE_BYTES = 2.0
"""Of an element of the state of another mixer, which engines keep in 16 bits. [B]"""

BUFFERS_BYTES = 2.0 * 1024**3
"""CUDA context, graphs, and buffers of collectives beside what a step computes. Assumed. [B]"""


class Weights(NamedTuple):
    """Matrix weights of all layers that are read together: of attention, MLPs (with routers) or experts.

    `split` elements are divided by tensor parallelism (of experts: by all their GPUs), `whole` ones are on every rank.
    """

    name: str
    split: float
    whole: float
    layers: int


def layer_weights(model: Model) -> tuple[Weights, ...]:
    """Return the matrix weights of a model's layers by what reads them."""
    sums = {name: Weights(name, 0.0, 0.0, 0) for name in ("attention", "mlp", "experts")}
    for number, kind in enumerate(model.layer_kinds()):
        count = model.kind_of_layer.count(number)
        blocks = [block for block in layer_param_blocks(model, kind) if block.is_matrix]
        for block in blocks:
            name = _READ_WITH.get(block.part, "attention")
            field = "whole" if block.sharding == "replicated" else "split"
            held = sums[name]
            sums[name] = held._replace(**{field: getattr(held, field) + block.count * count})
        for name in {_READ_WITH.get(block.part, "attention") for block in blocks}:
            sums[name] = sums[name]._replace(layers=sums[name].layers + count)
    return tuple(part for part in sums.values() if part.layers)


def weight_element_bytes(served: Deployment, part: str) -> float:
    """Return the bytes of a weight of a part of the model. [B]"""
    quantised = part != "attention" or served.weights.everything or not served.model.num_experts
    return served.weights.weight_bytes if quantised else 2.0


def _layers_bytes(served: Deployment, split: Split) -> Array:
    """Return the weights of all layers on a GPU, without a pipeline. [B]"""
    shards = {"attention": split.tp, "mlp": split.tp, "experts": split.tp * split.dp}
    layers: Array = np.asarray(0.0)
    for part in layer_weights(served.model):
        held = part.split / shards[part.name] + part.whole
        layers = layers + weight_element_bytes(served, part.name) * held
    return layers


def weights_bytes(served: Deployment, split: Split) -> Array:
    """Return the weights of one GPU of the fullest pipeline stage. [B]"""
    model = served.model
    draft: Array = np.asarray(0.0)
    if served.speculation is not None:
        drafting = served.speculation.draft
        whole = weights_bytes(drafting, split._replace(pp=1.0))
        draft = whole if served.speculation.own_tables else _layers_bytes(drafting, split)
    table = sum(block.count for block in param_blocks("embedding", model))
    output = sum(block.count for block in param_blocks("head", model))
    # Tied, the table is held by the last stage as well.
    output = max(output, float(model.vocab_size) * model.hidden_size) if model.tied_embeddings else output
    return quantity(
        "layers_bytes / pp + where(pp > 1, 2 * max(table, output), 2 * both) / tp + draft_bytes",
        layers_bytes=_layers_bytes(served, split),
        draft_bytes=draft,
        table=table,
        output=output,
        both=table if model.tied_embeddings else table + output,
        tp=split.tp,
        pp=split.pp,
    ).value


def cache_bytes(served: Deployment, split: Split, context: ArrayLike) -> Array:
    """Return the key-value cache, and the states of other mixers, of one sequence on one of its GPUs. [B]

    Keys and values are cut by heads, of which each GPU has one at least; MLA's latent has none to cut.
    """
    tokens = np.asarray(context, dtype=np.float64)
    held: Array = state_elements(served.model, tokens) * STATE_BYTES / split.tp
    for each in cached_layers(served.model):
        kept = each.layers * each.elements * attended(tokens, each.window)
        held = held + served.cache_bytes * kept / np.minimum(split.tp, each.heads)
    held = np.asarray(held / split.pp)
    if served.speculation is not None:
        held = held + cache_bytes(served.speculation.draft, split._replace(pp=1.0), context)
    return held


def cache_room(served: Deployment, split: Split) -> Quantity:
    """Return what the engine's share of a GPU leaves for the cache; below 0 the model does not fit. [B]"""
    model = served.model
    return quantity(
        "memory_fraction * memory_bytes - weights_bytes - buffers_bytes"
        " - 2 * chunk_tokens * (4 * hidden_size + 3 * widest / tp)",
        memory_fraction=served.memory_fraction,
        memory_bytes=served.cluster.accelerator.memory_bytes,
        weights_bytes=weights_bytes(served, split),
        buffers_bytes=BUFFERS_BYTES,
        chunk_tokens=served.chunk_tokens,
        hidden_size=float(model.hidden_size),
        widest=float(max(model.ffn_size, model.expert_ffn_size * model.top_k, model.hidden_size)),
        tp=split.tp,
    )


def largest_batch(served: Deployment, split: Split, context: ArrayLike) -> Array:
    """Return how many sequences of so many tokens a replica can run together; below 1 it does not fit. [-]"""
    room = np.maximum(cache_room(served, split).value, 0.0)
    return np.asarray(split.dp * room / cache_bytes(served, split, context))
