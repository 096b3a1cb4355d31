"""Other mixers than softmax attention: operators, model FLOPs and state; their parameters are rows of ``params.csv``.

A kind that ``mixers.csv`` does not have is an error wherever it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from numpy.typing import ArrayLike

from costmodel.base.csv_text import read_records
from costmodel.base.errors import ModelConfigError, choices_hint
from costmodel.bill.lines import Array
from costmodel.bill.quantity import quantity
from costmodel.describe.models.mixers import AnyMixer
from costmodel.step.anatomy.mixers.rows import operators_of
from costmodel.step.anatomy.operator_parts import Given, Operator


class Mixer(NamedTuple):
    """A way to mix tokens: a row of ``mixers.csv``."""

    name: str
    """The `kind` of its sizes in `costmodel.describe.models.mixers`."""
    flops: str
    """Model FLOPs of a token in the forward pass beyond its matrices, a formula over the sizes."""
    state: str
    """Elements that a sequence's state holds in decoding, a formula over the sizes."""
    source: str
    """Where the equations and the kernels are."""


MIXERS: Mapping[str, Mixer] = read_records(Path(__file__).with_name("mixers.csv"), Mixer)
"""Every mixer by the kind of its sizes."""


def mixer_of(kind: str) -> Mixer:
    """Return the record of a kind."""
    if kind not in MIXERS:
        raise ModelConfigError(f"mixer: {kind!r} is unknown; {choices_hint(kind, MIXERS)}")
    return MIXERS[kind]


def mixer_operators(given: Given, sizes: AnyMixer) -> list[Operator]:
    """Return the operators of one layer's mixer, in the order in which they run."""
    return operators_of(mixer_of(sizes.kind).name, given, _numbers(sizes))


def _numbers(sizes: AnyMixer) -> dict[str, float]:
    """Return the sizes of a mixer as the numbers of its formulas."""
    fields = sizes.model_dump(exclude={"kind", "beside_attention"})
    return {key: float(value) for key, value in fields.items()}


def mixer_flops(sizes: AnyMixer, keys: ArrayLike) -> Array:
    """Return the model FLOPs of a token in the forward pass of a mixer beyond its matrices. [FLOP]

    `keys` are those before it; only what chooses among them looks at all. [-]
    """
    return quantity(mixer_of(sizes.kind).flops, keys=keys, **_numbers(sizes)).value


def mixer_state(sizes: AnyMixer, tokens: ArrayLike) -> Array:
    """Return the elements that the state of a sequence of so many tokens holds beside attention's keys. [-]"""
    return quantity(mixer_of(sizes.kind).state, tokens=tokens, **_numbers(sizes)).value
