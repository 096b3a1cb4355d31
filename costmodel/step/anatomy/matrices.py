"""The weight matrices of a model, whole: what an optimizer that works on matrices sees."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from costmodel.step.anatomy.operator_parts import Operator, Shard, column_inputs
from costmodel.step.anatomy.operators import layer_operators, prediction_operators

if TYPE_CHECKING:
    from costmodel.describe.models.model import LayerKind, Model
    from costmodel.describe.precision import Precision
    from costmodel.describe.recipe import Recipe

_SPLIT_ROLES = ("column", "row")


class Matrix(NamedTuple):
    """Weights of one shape in a layer, before any axis splits them.

    Attributes
    ----------
    name : str
        Of the operator that multiplies with them.
    short, long : float
        Sides. [-]
    copies : float
        How many there are: every expert has its own. [-]
    is_expert : bool
        Whether EP deals them out.
    is_split : bool
        Whether TP (of experts: ETP) splits each.
    pieces : float
        Matrices that it is kept as, where a framework does not fuse those that share an input. [-]
    """

    name: str
    short: float
    long: float
    copies: float
    is_expert: bool
    is_split: bool
    pieces: float = 1.0

    @property
    def elements(self) -> float:
        """Parameters of one. [-]"""
        return self.short * self.long

    def side(self, which: str) -> float:
        """Return its ``short`` or its ``long`` side. [-]"""
        return {"short": self.short, "long": self.long}[which]


def layer_matrices(model: Model, kind: LayerKind, recipe: Recipe, precision: Precision) -> tuple[Matrix, ...]:
    """Return the weight matrices of one layer of a kind."""
    return _matrices(layer_operators(model, kind, whole_shard(model), recipe, precision), model, recipe)


def prediction_matrices(model: Model, recipe: Recipe, precision: Precision) -> tuple[Matrix, ...]:
    """Return those that multi-token prediction has before one of its layers."""
    return _matrices(prediction_operators(model, whole_shard(model), recipe, precision), model, recipe)


def whole_shard(model: Model) -> Shard:
    """Return the share of a rank that holds everything, for one token."""
    one = np.asarray(1.0)
    return Shard(
        micro_batch=one,
        seq_len=one,
        tokens=one,
        tokens_sp=one,
        tp=one,
        cp=one,
        swaps=one,
        span=one,
        etp=one,
        expert_tokens=one,
        local_experts=np.asarray(float(max(model.num_experts, 1))),
    )


def _matrices(operators: Iterable[Operator], model: Model, recipe: Recipe) -> tuple[Matrix, ...]:
    """Return the matrices that operators have of their own."""
    return tuple(
        Matrix(
            one.name,
            float(min(one.n, one.k)),
            float(max(one.n, one.k)),
            float(one.groups),
            is_expert=one.role == "expert",
            is_split=one.role in (*_SPLIT_ROLES, "expert"),
            pieces=column_inputs(one.part, model, recipe) if one.role == "column" else 1.0,
        )
        for one in operators
        if one.kind in ("matmul", "grouped_matmul") and one.has_weight and one.has_parameters
    )
