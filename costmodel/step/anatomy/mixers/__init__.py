"""Other mixers than softmax attention, a record each: parameters, operators, model FLOPs, state.

A kind that no record has is an error wherever it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping

from numpy.typing import ArrayLike

from costmodel.base.errors import ModelConfigError, choices_hint
from costmodel.bill.lines import Array
from costmodel.bill.quantity import quantity
from costmodel.describe.models.mixers import AnyMixer
from costmodel.describe.models.model import Model
from costmodel.step.anatomy.mixers.family import Mixer
from costmodel.step.anatomy.mixers.recurrent import (
    GATED_DELTA,
    KIMI_DELTA,
    LIGHTNING,
    MAMBA,
    MAMBA_2,
    SHORT_CONVOLUTION,
)
from costmodel.step.anatomy.mixers.sparse import BLOCK_SPARSE, INDEXED, NATIVE_SPARSE
from costmodel.step.anatomy.operator_parts import Given, Operator, ParamBlock

MIXERS: Mapping[str, Mixer] = {
    one.name: one
    for one in (
        GATED_DELTA,
        KIMI_DELTA,
        LIGHTNING,
        MAMBA,
        MAMBA_2,
        SHORT_CONVOLUTION,
        INDEXED,
        BLOCK_SPARSE,
        NATIVE_SPARSE,
    )
}
"""Every mixer by the kind of its sizes."""


def mixer_of(kind: str) -> Mixer:
    """Return the record of a kind."""
    if kind not in MIXERS:
        raise ModelConfigError(f"mixer: {kind!r} is unknown; {choices_hint(kind, MIXERS)}")
    return MIXERS[kind]


def mixer_param_blocks(model: Model, sizes: AnyMixer) -> list[ParamBlock]:
    """Return the parameters of one layer's mixer."""
    return mixer_of(sizes.kind).params(model, sizes)


def mixer_operators(given: Given, sizes: AnyMixer) -> list[Operator]:
    """Return the operators of one layer's mixer, norm and residual addition included."""
    return mixer_of(sizes.kind).operators(given, sizes)


def _numbers(sizes: AnyMixer) -> dict[str, float]:
    """Return the sizes of a mixer as the numbers of its formulas."""
    held = sizes.model_dump(exclude={"kind", "beside_attention"})
    return {key: float(value) for key, value in held.items()}


def mixer_flops(sizes: AnyMixer, keys: ArrayLike) -> Array:
    """Return the model FLOPs of a token in the forward pass of a mixer beyond its matrices. [FLOP]

    `keys` are those before it; only what chooses among them looks at all. [-]
    """
    return quantity(mixer_of(sizes.kind).flops, keys=keys, **_numbers(sizes)).value


def mixer_state(sizes: AnyMixer, tokens: ArrayLike) -> Array:
    """Return the elements that the state of a sequence of so many tokens holds beside attention's keys. [-]"""
    return quantity(mixer_of(sizes.kind).state, tokens=tokens, **_numbers(sizes)).value
