"""What a sequence keeps while it is decoded (keys and values, states of other mixers), and the FLOPs of attending to it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from costmodel.bill.lines import Array
from costmodel.describe.models.model import Model
from costmodel.step.anatomy.mixers import mixer_flops, mixer_state


def kv_cache_bytes(model: Model, context: ArrayLike) -> Array:
    r"""Return the key-value cache of one sequence, in 16 bits.

    .. math:: \sum_{\text{layers}} \min(c, w) \cdot
              \begin{cases} h_{kv} (d_k + d_v) & \text{MHA, GQA, MQA} \\
              r_{kv} + d_{rope} & \text{MLA} \end{cases}

    Parameters
    ----------
    model : Model
        With full or windowed layers.
    context : array_like
        c, tokens so far. [-]

    Returns
    -------
    size_bytes : ndarray
        [B]

    References
    ----------
    .. [1] N. Shazeer, "Fast transformer decoding," arXiv:1911.02150 (MQA).
    .. [2] DeepSeek-AI, "DeepSeek-V2," arXiv:2405.04434, table 1 (MLA: the latent and one rotary key).

    Examples
    --------
    >>> from costmodel.describe.models.model_files import load_model
    >>> float(kv_cache_bytes(load_model("llama3-70b"), 1)), float(kv_cache_bytes(load_model("deepseek-v3"), 1))
    (327680.0, 70272.0)
    """
    tokens = np.asarray(context, dtype=np.float64)
    elements = np.zeros_like(tokens)
    for each in cached_layers(model):
        elements = elements + each.layers * each.elements * attended(tokens, each.window)
    return np.asarray(2.0 * (elements + state_elements(model, tokens)))


class CachedLayers(NamedTuple):
    """Layers of one kind that attend, as decoding sees them. [-]"""

    layers: int
    elements: float
    """What each caches of a token; 0 where it takes what an earlier one cached."""
    heads: int
    """Heads by which tensor parallelism can cut that; 1 for MLA's latent, which every rank holds."""
    window: int
    """Tokens that stay cached, 0 for all."""
    reach: int
    """Tokens that a query meets, 0 for all."""
    products: float
    """Multiply-adds of a query for each key that it meets; MLA works in its latent space."""


def cached_layers(model: Model) -> tuple[CachedLayers, ...]:
    """Return the layers that attend, by kind."""
    kind_of, found = model.kind_of_layer, []
    for number, kind in enumerate(model.layer_kinds()):
        if not (kind.attends and model.causal):
            continue
        seen = model.seen_by(kind)
        if seen.attention == "mla":
            elements, heads = float(seen.kv_lora_rank + seen.qk_rope_head_dim), 1
            products = float(seen.num_heads * (2.0 * seen.kv_lora_rank + seen.qk_rope_head_dim))
        else:
            width = seen.head_dim + seen.v_head_dim
            elements, heads = (
                float(seen.num_kv_heads * width) if seen.kv_projections else 0.0,
                seen.num_kv_heads,
            )
            products = float(seen.num_heads * width)
        found.append(CachedLayers(kind_of.count(number), elements, heads, kind.window, kind.reach, products))
    return tuple(found)


def attended(tokens: Array, window: int) -> Array:
    """Return the tokens that a layer looks back on."""
    return np.asarray(np.minimum(tokens, float(window)) if window else tokens)


def state_elements(model: Model, context: ArrayLike) -> Array:
    """Return what a sequence holds beside attention's keys: states of other mixers, keys that choose among keys [-]."""
    tokens = np.asarray(context, dtype=np.float64)
    elements = np.zeros_like(tokens)
    for number, kind in enumerate(model.layer_kinds()):
        if kind.mixer is not None:
            elements = elements + model.kind_of_layer.count(number) * mixer_state(kind.mixer, tokens)
    return np.asarray(elements)


def attention_flops(model: Model, context: ArrayLike) -> Array:
    """Return FLOPs of one decoded token in all attention cores and other mixers; MLA works in its latent space [FLOP]."""
    tokens = np.asarray(context, dtype=np.float64)
    flops = np.zeros_like(tokens)
    for each in cached_layers(model):
        flops = flops + 2.0 * each.layers * each.products * attended(tokens, each.reach)
    for number, kind in enumerate(model.layer_kinds()):
        if kind.mixer is not None:
            flops = flops + model.kind_of_layer.count(number) * mixer_flops(kind.mixer, tokens)
    return np.asarray(flops)
