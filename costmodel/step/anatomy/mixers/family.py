"""What every mixer says of itself, and the parts that their operators are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.step.anatomy.operator_parts import (
    BF16,
    Array,
    Cast,
    ContextExchange,
    Operator,
    ParamBlock,
    Scan,
    Shard,
    Traffic,
    elementwise,
    input_tokens,
    linear,
    memory_bound,
    norm_operator,
    quantise,
    residual_operator,
    saved_input_bytes,
)

if TYPE_CHECKING:
    from costmodel.describe.models.model import Model
    from costmodel.describe.precision import Precision
    from costmodel.describe.recipe import Recipe

MODULES = ("attention",)
"""Recompute modules that a mixer belongs to: it stands in attention's place."""


@dataclass(frozen=True)
class Mixer:
    """A way to mix tokens: what it weighs, what it computes, and what the parallel axes do with it.

    Attributes
    ----------
    name : str
        The `kind` of its sizes in `costmodel.describe.models.mixers`.
    params : callable
        Parameter blocks of one layer of (model, sizes); `is_matrix` are those that its products have.
    operators : callable
        Operators of (given, sizes) between the layer's norm and its residual addition.
    flops : str
        Model FLOPs of a token in the forward pass beyond its matrices, a formula over the sizes.
    state : str
        Elements that a sequence's state holds in decoding, a formula over the sizes.
    source : str
        Where the equations and the kernels are.
    """

    name: str
    params: Callable[[Model, Any], list[ParamBlock]]
    operators: Callable[[Given, Any], list[Operator]]
    flops: str
    state: str
    source: str


@dataclass(frozen=True)
class Given:
    """What the operators of a layer follow from."""

    model: Model
    shard: Shard
    recipe: Recipe
    precision: Precision

    @property
    def hidden(self) -> float:
        """Width of the model. [-]"""
        return float(self.model.hidden_size)

    @property
    def tokens(self) -> Array:
        """Tokens of a micro-batch on a rank between the norms. [-]"""
        return self.shard.tokens


def weight(name: str, count: float, sharding: Any = "tp") -> ParamBlock:
    """Return a matrix that every token is multiplied with."""
    return ParamBlock("mixer", name, count, sharding, is_matrix=True)


def vector(name: str, count: float, sharding: Any = "tp") -> ParamBlock:
    """Return parameters that no product has."""
    return ParamBlock("mixer", name, count, sharding)


def way_in(given: Given, width: Array | float, leaf: str = "in") -> Operator:
    """Return the projections of a mixer's input, whose columns TP splits; `width` is a rank's. [-]"""
    return linear(
        "mixer",
        leaf,
        "column",
        MODULES,
        given.tokens,
        np.asarray(width),
        np.asarray(given.hidden),
        saved_bytes=np.asarray(BF16 * given.tokens * width),
    )


def way_out(given: Given, width: Array | float) -> Operator:
    """Return the projection of a mixer's output; `width` is what a rank puts in. [-]"""
    out = np.asarray(given.hidden)
    return linear("mixer", "out", "row", MODULES, given.tokens, out, np.asarray(width))


def low_rank(given: Given, leaf: str, rank: float, width: Array | float) -> list[Operator]:
    """Return two products through a small rank: the first whole on every tensor rank, the second split."""
    t, hidden, small = given.tokens, np.asarray(given.hidden), np.asarray(rank)
    down, up = np.asarray(BF16 * t * rank), np.asarray(BF16 * t * width)
    return [
        linear("mixer", f"{leaf}_down", "replicated", MODULES, t, small, hidden, saved_bytes=down),
        linear("mixer", f"{leaf}_up", "column", MODULES, t, np.asarray(width), small, saved_bytes=up),
    ]


def convolution(given: Given, channels: Array | float) -> Operator:
    """Return the short causal convolution, its bias and its SiLU in one kernel (Dao-AILab/causal-conv1d).

    Reads and writes an element a channel; backward reads input and gradient and writes a gradient.
    """
    elements = np.asarray(given.tokens * channels)
    return memory_bound(
        "mixer", "conv", MODULES, elements, 4.0, 6.0, kernels_backward=1.0, saved_bytes=BF16 * elements
    )


GATED_NORM = Traffic(6, 12, 1, 2)
GATE = Traffic(6, 10, 1, 1)


def gated_norm(given: Given, width: Array | float) -> Operator:
    """Return the norm of each head times a gate: reads both and writes one; keeps its output."""
    elements = np.asarray(given.tokens * width)
    kept = saved_input_bytes(given.precision) * elements
    return elementwise("mixer", "gated_norm", MODULES, elements, GATED_NORM, kept)


def gate(given: Given, width: Array | float) -> Operator:
    """Return a gate without a norm."""
    elements = np.asarray(given.tokens * width)
    kept = saved_input_bytes(given.precision) * elements
    return elementwise("mixer", "gate", MODULES, elements, GATE, kept)


def scan(
    work: Scan, saved_bytes: Array, exchanges: tuple[ContextExchange, ...] = (), leaf: str = "scan"
) -> Operator:
    """Return the recurrence as its chunked kernels."""
    return Operator(
        "mixer",
        leaf,
        "scan",
        "scan",
        frozenset(MODULES),
        kernels_forward=work.kernels_forward,
        kernels_backward=work.kernels_backward,
        saved_bytes=np.asarray(saved_bytes),
        has_weight=False,
        scan=work,
        exchanges=exchanges,
    )


def heads_for_sequence(given: Given, into: Array | float, out: Array | float) -> tuple[ContextExchange, ...]:
    """Return what context parallelism sends where each rank takes some heads of the whole sequence.

    All channels of the convolution are swapped for the sequence before it, the result back after the
    recurrence (NVIDIA/Megatron-LM megatron/core/ssm/mamba_context_parallel.py; gated_delta_net.py alike).
    `into` and `out` are channels of a tensor rank. [-]
    """
    return tuple(
        ContextExchange(label, "all_to_all", np.asarray(BF16 * given.tokens * width))
        for label, width in (("heads", into), ("sequence", out))
    )


def states_of_ranks(given: Given, elements: Array | float) -> tuple[ContextExchange, ...]:
    """Return what context parallelism sends where every rank gets the states of all: their fp32 sums over a slice.

    W. Sun et al., "LASP-2," arXiv:2502.07563, algorithm 1. `elements` are those of a sequence's state on a
    tensor rank. [-]
    """
    size = np.asarray(4.0 * given.shard.micro_batch * elements * given.shard.cp)
    return (ContextExchange("states", "all_gather", size),)


def around(
    given: Given, inner: list[Operator], *, column_width: Array | float, row_width: Array | float
) -> list[Operator]:
    """Put the layer's norm before a mixer's operators, its casts and the residual addition behind them."""
    shard, h, t = given.shard, given.hidden, given.tokens
    kept = saved_input_bytes(given.precision) * input_tokens(shard, given.recipe) * h
    into = shard.tokens_sp * h
    cast = Cast(into, np.asarray(t * row_width), np.asarray(t * column_width), into, t * h)
    return [
        norm_operator("mixer", "norm", into, given.recipe, given.model.norm == "rmsnorm", kept),
        *inner,
        *quantise("mixer", MODULES, cast, given.precision),
        residual_operator("mixer", into, given.recipe),
    ]


def numbers(sizes: Any) -> Mapping[str, float]:
    """Return the sizes of a mixer as the numbers of its formulas."""
    return {
        key: float(value) for key, value in sizes.model_dump(exclude={"kind", "beside_attention"}).items()
    }
