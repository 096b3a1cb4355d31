"""How many parameters a job trains, and what that takes off its FLOPs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from costmodel.step.anatomy.adapters import adapter_params, is_frozen, tuned
from costmodel.step.anatomy.matrices import whole_shard
from costmodel.step.anatomy.operators import layer_operators
from costmodel.step.anatomy.params import (
    active_fraction,
    embedding_param_blocks,
    head_param_blocks,
    layer_param_blocks,
    model_flops_per_token,
    mtp_param_blocks,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from costmodel.describe.jobs.job import Job
    from costmodel.describe.jobs.tuning import Tuning
    from costmodel.describe.models.model import Model
    from costmodel.describe.precision import Precision
    from costmodel.describe.recipe import Recipe
    from costmodel.step.anatomy.operator_parts import ParamBlock


def num_trained_params(model: Model, tuning: Tuning, recipe: Recipe, precision: Precision) -> float:
    """Return the parameters that have gradients, adapters among them, multi-token prediction left out. [-]"""
    trained = sum(block.count for block in _blocks(model) if not is_frozen(tuning, block))
    return trained + sum(_adapters(model, tuning, recipe, precision))


def job_flops_per_token(job: Job, *, causal: bool = False) -> NDArray[np.float64]:
    """Return the model FLOPs that a job trains a token with, frozen weights counted four times. [FLOP]

    Parameters
    ----------
    job : Job
        Its packing says how far attention reaches, its tuning what is trained.
    causal : bool
        Halve the attention products; see `model_flops_per_token`.
    """
    whole = model_flops_per_token(job.model, job.span, causal)
    if job.tuning.whole:
        return whole
    return whole + tuning_flops_per_token(job.model, job.tuning, job.recipe, job.precision)


def tuning_flops_per_token(model: Model, tuning: Tuning, recipe: Recipe, precision: Precision) -> float:
    """Return what training a part adds to the model FLOPs of a token, below 0 where it saves more. [FLOP]

    No weight gradient of frozen matrices, two FLOPs each; adapters are matrices of their own.
    """
    blocks = [*_blocks(model), *mtp_param_blocks(model)]
    frozen = sum(
        block.count * active_fraction(model, block)
        for block in blocks
        if block.is_matrix and is_frozen(tuning, block)
    )
    if model.tied_embeddings and "head" in tuning.frozen:
        frozen += float(model.vocab_size) * model.hidden_size
    dense, expert = _adapters(model, tuning, recipe, precision)
    return 6.0 * (dense + expert * model.top_k / max(model.num_experts, 1)) - 2.0 * frozen


def _blocks(model: Model) -> list[ParamBlock]:
    """Return the parameters of the model, layer by layer."""
    kinds = model.layer_kinds()
    layers = [block for kind in model.kind_of_layer for block in layer_param_blocks(model, kinds[kind])]
    return [*embedding_param_blocks(model), *layers, *head_param_blocks(model)]


def _adapters(model: Model, tuning: Tuning, recipe: Recipe, precision: Precision) -> tuple[float, float]:
    """Return the parameters of all adapters: beside dense layers, and experts'. [-]"""
    if not tuning.lora_rank:
        return 0.0, 0.0
    whole = whole_shard(model)
    kinds = model.layer_kinds()
    dense = expert = 0.0
    for number, kind in enumerate(kinds):
        operators = layer_operators(model, kind, whole, recipe, precision)
        beside, inside = adapter_params(tuned(operators, model.seen_by(kind), whole, tuning, precision))
        layers = model.kind_of_layer.count(number)
        dense, expert = dense + layers * float(beside), expert + layers * float(inside)
    return dense, expert
