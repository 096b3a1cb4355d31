"""Decoding by roofline: what a token costs to serve, for a choice of model size, not a simulator.

A step of decoding reads the weights once for the whole batch and the cache of every sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.step.anatomy.mixers import mixer_flops, mixer_state
from costmodel.step.anatomy.params import num_active_params, num_params

if TYPE_CHECKING:
    from costmodel.describe.models.model import Model

Array = NDArray[np.float64]


def kv_cache_bytes(model: Model, context: ArrayLike, *, element_bytes: float = 2.0) -> Array:
    r"""Return the key-value cache of one sequence.

    .. math:: \sum_{\text{layers}} \min(c, w) \cdot
              \begin{cases} h_{kv} (d_k + d_v) & \text{MHA, GQA, MQA} \\
              r_{kv} + d_{rope} & \text{MLA} \end{cases}

    Parameters
    ----------
    model : Model
        With full or windowed layers.
    context : array_like
        c, tokens so far. [-]
    element_bytes : float
        2 for bf16, 1 for fp8. [B]

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
    held = np.zeros_like(tokens)
    for each in cached_layers(model):
        held = held + each.layers * each.elements * attended(tokens, each.window)
    return np.asarray(element_bytes * (held + state_elements(model, tokens)))


class CachedLayers(NamedTuple):
    """Layers of one kind that attend, as decoding sees them.

    Attributes
    ----------
    layers : int
        How many there are. [-]
    elements : float
        What each caches of a token; 0 where it takes what an earlier one cached. [-]
    heads : int
        Heads by which tensor parallelism can cut that; 1 for MLA's latent, which every rank holds. [-]
    window, reach : int
        Tokens that stay cached, and those that a query meets, 0 for all. [-]
    products : float
        Multiply-adds of a query for each key that it meets; MLA works in its latent space. [-]
    """

    layers: int
    elements: float
    heads: int
    window: int
    reach: int
    products: float


def cached_layers(model: Model) -> tuple[CachedLayers, ...]:
    """Return the layers that attend, by kind."""
    kind_of, found = model.kind_of_layer, []
    for number, kind in enumerate(model.layer_kinds()):
        if not kind.attends:
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
    held = np.zeros_like(tokens)
    for number, kind in enumerate(model.layer_kinds()):
        if kind.mixer is not None:
            held = held + model.kind_of_layer.count(number) * mixer_state(kind.mixer, tokens)
    return np.asarray(held)


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


def weights_read_bytes(model: Model, batch: ArrayLike, *, element_bytes: float = 2.0) -> Array:
    r"""Return the weights that a step of decoding reads: of the experts, those that any token visits [B].

    With E experts, of which a token visits k at random, :math:`1 - (1 - k/E)^b` of them.
    """
    tokens = np.asarray(batch, dtype=np.float64)
    whole, active = num_params(model), num_active_params(model)
    if not model.num_experts:
        return np.asarray(element_bytes * whole + np.zeros_like(tokens))
    share = model.top_k / model.num_experts
    experts = (whole - active) / (1.0 - share) if share < 1.0 else 0.0
    touched = 1.0 - (1.0 - share) ** tokens
    return np.asarray(element_bytes * (whole - experts * (1.0 - touched)))


def decode_step_s(
    model: Model,
    batch: ArrayLike,
    context: ArrayLike,
    *,
    gpus: ArrayLike,
    peak_flops_per_s: float,
    memory_bandwidth_bytes_per_s: float,
    flops_efficiency: float = 0.6,
    memory_efficiency: float = 0.8,
    weight_bytes: float = 2.0,
    cache_bytes: float = 2.0,
) -> Array:
    r"""Time of one step of decoding, a token for each sequence of the batch.

    .. math:: t = \max\left(\frac{W(b) + b\,K(c)}{g B e_m}, \frac{b\,(2 N + F(c))}{g P e_f}\right)

    Parameters
    ----------
    model : Model
        N active parameters, K bytes of cache, F FLOPs of attention.
    batch, context : array_like
        Sequences decoded together, and tokens of each so far. [-]
    gpus : array_like
        g, that split the model evenly. [-]
    peak_flops_per_s, memory_bandwidth_bytes_per_s : float
        P and B of one GPU. [FLOP/s], [B/s]
    flops_efficiency, memory_efficiency : float
        Shares of them that kernels reach. Assumed. [-]
    weight_bytes, cache_bytes : float
        Of a weight and of an element of the cache. [B]

    Returns
    -------
    step_s : ndarray
        [s]

    Notes
    -----
    Communication between the GPUs, prefill and scheduling are left out: a lower bound.

    References
    ----------
    .. [1] R. Pope et al., "Efficiently scaling transformer inference," arXiv:2211.05102, section 2.
    """
    tokens, split = np.asarray(batch, dtype=np.float64), np.asarray(gpus, dtype=np.float64)
    moved = weights_read_bytes(model, tokens, element_bytes=weight_bytes)
    moved = moved + tokens * kv_cache_bytes(model, context, element_bytes=cache_bytes)
    flops = tokens * (2.0 * num_active_params(model) + attention_flops(model, context))
    return np.asarray(
        np.maximum(
            moved / (split * memory_bandwidth_bytes_per_s * memory_efficiency),
            flops / (split * peak_flops_per_s * flops_efficiency),
        )
    )


def largest_batch(
    model: Model,
    context: ArrayLike,
    *,
    gpus: ArrayLike,
    memory_bytes: float,
    weight_bytes: float = 2.0,
    cache_bytes: float = 2.0,
    usable_fraction: float = 0.9,
) -> Array:
    """Return how many sequences of so many tokens fit beside the weights; below 1 the model does not fit [-]."""
    room = np.asarray(gpus, dtype=np.float64) * memory_bytes * usable_fraction - weight_bytes * num_params(
        model
    )
    return np.asarray(room / kv_cache_bytes(model, context, element_bytes=cache_bytes))
