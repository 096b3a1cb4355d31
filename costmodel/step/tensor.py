"""Tensor parallelism: every projection is split over the TP group, column-wise then row-wise.

Sends: with sequence parallelism an all-gather into each column-parallel layer and a
reduce-scatter out of each row-parallel one, mirrored in the backward pass, which gathers the
input once more for the weight gradient; without it an all-reduce at the end of each block, each
way. Hides: what the recipe's `tp_overlap` says. Stores: nothing of its own; what it shards is
counted where it lies (compute for activations, data for states).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.bill.lines import MemoryLine, TimeLine, anywhere, memory_line
from costmodel.step.anatomy.operator_parts import PATHS, Part, column_inputs, saved_input_bytes
from costmodel.step.critical_stage import Step
from costmodel.step.placed_job import Block, OperatorTime, PlacedJob, Sent, collective_lines

Array = NDArray[np.float64]

_NONE = np.asarray(0.0)


def time_lines(placed: PlacedJob, block: Block, _: Sequence[TimeLine] = ()) -> list[TimeLine]:
    """Return the collectives of one micro-batch through one block.

    References
    ----------
    .. [1] M. Shoeybi et al., "Megatron-LM," arXiv:1909.08053, section 3.
    .. [2] V. Korthikanti et al., arXiv:2205.05198, section 4.2.2 (sequence parallelism).
    """
    if not anywhere(placed.layout.tp > 1):
        return []
    if block.role == "embedding":
        return _embedding_lines(placed, "embedding")
    if block.role == "mtp":
        return [*_embedding_lines(placed, "mtp.lookup"), *_prediction_lines(placed)]
    if block.role == "head":
        return _head_lines(placed)
    lines: list[TimeLine] = []
    for column, row in block.times.tp_pairs():
        lines += _pair_lines(placed, block, column, row)
    for item in block.times.of_role("summed"):
        lines += _summed_lines(placed, block, item)
    return lines


def _summed_lines(placed: PlacedJob, block: Block, item: OperatorTime) -> list[TimeLine]:
    """Sum the result of a product over slices of its input, and the gradient of that result."""
    size = 2.0 * item.operator.m * item.operator.n
    name = f"{block.label}{item.operator.name}"
    sent = [
        Sent("all_reduce", phase, "all_reduce", size, share) for phase, share in placed.recomputation.passes()
    ]
    return collective_lines(placed, "tp", name, placed.mesh.tp, sent)


class _Windows(NamedTuple):
    """What the collectives around a pair of layers hide behind: those into and out of it, each way. [s]"""

    forward_in: Array = _NONE
    forward_out: Array = _NONE
    backward_out: Array = _NONE
    input_gradient: Array = _NONE
    weight_gradient: Array = _NONE


def _windows(overlap: str, column: OperatorTime, row: OperatorTime) -> _Windows:
    """Return the windows that the recipe's `tp_overlap` opens."""
    behind = _Windows(
        input_gradient=column.backward_input_s,
        weight_gradient=column.backward_weight_s,
    )
    if overlap == "pipelined":
        return behind._replace(
            forward_in=column.forward_s, forward_out=row.forward_s, backward_out=row.backward_input_s
        )
    return behind if overlap == "weight-grad" else _Windows()


def _gathered_width(placed: PlacedJob, part: Part) -> float:
    """Elements of a token that are gathered into a column-parallel layer. [-]"""
    model = placed.model
    if part == "attention" and model.attention == "mla":
        # MLA gathers the compressed queries and keys/values, not the hidden state.
        return float(model.q_lora_rank or model.hidden_size) + model.kv_lora_rank + model.qk_rope_head_dim
    return float(model.hidden_size)


def _pair_lines(placed: PlacedJob, block: Block, column: OperatorTime, row: OperatorTime) -> list[TimeLine]:
    """Return the collectives around one column-parallel / row-parallel pair."""
    model, recipe, tokens = placed.model, placed.recipe, placed.shard.tokens
    part = column.operator.part
    full = 2.0 * tokens * float(model.hidden_size)
    gathered = saved_input_bytes(placed.precision) * tokens * _gathered_width(placed, part)
    sp = placed.layout.sequence_parallel
    plain = 1.0 - sp
    again = placed.recomputation.whole_layers
    # A recomputation that stops early never gets to the output of the MLP.
    summed_again = placed.recomputation.of_sum_after(part)
    # Every column-parallel layer sums its own input gradient.
    inputs = column_inputs(part, model, recipe)
    gathers = sp * inputs if recipe.kernels.own_column_inputs else sp
    into, out, back, dgrad, wgrad = _windows(recipe.overlap.tp_overlap, column, row)
    regathers = sp * recipe.overlap.sp_regathers
    sent = (
        Sent("all_gather", "forward", "all_gather", gathered, gathers, into),
        Sent("reduce_scatter", "forward", "reduce_scatter", full, sp, out),
        Sent("all_reduce", "forward", "all_reduce", full, plain),
        Sent("all_gather", "recompute", "all_gather", gathered, gathers * again, into),
        Sent("reduce_scatter", "recompute", "reduce_scatter", full, sp * summed_again, out),
        Sent("all_reduce", "recompute", "all_reduce", full, plain * summed_again),
        Sent("all_gather", "backward", "all_gather", gathered, sp, back),
        Sent("all_gather_input", "backward", "all_gather", gathered, regathers, dgrad),
        Sent("reduce_scatter", "backward", "reduce_scatter", full, gathers, wgrad),
        Sent("all_reduce", "backward", "all_reduce", full, plain * inputs, wgrad),
    )
    # A pipelined exchange is cut into tp pieces; the first has nothing to hide behind.
    least = 1.0 / placed.layout.tp if recipe.overlap.tp_overlap == "pipelined" else _NONE
    return collective_lines(placed, "tp", f"{block.label}{PATHS[part]}", placed.mesh.tp, sent, least)


def _embedding_lines(placed: PlacedJob, name: str) -> list[TimeLine]:
    """Vocabulary-parallel embedding: the partial look-ups are summed."""
    full = 2.0 * placed.shard.tokens * float(placed.model.hidden_size)
    sp = placed.layout.sequence_parallel
    sent = (
        Sent("reduce_scatter", "forward", "reduce_scatter", full, sp),
        Sent("all_reduce", "forward", "all_reduce", full, 1.0 - sp),
        Sent("all_gather", "backward", "all_gather", full, sp),
    )
    return collective_lines(placed, "tp", name, placed.mesh.tp, sent)


def _prediction_lines(placed: PlacedJob) -> list[TimeLine]:
    """Gather what enters the projection of multi-token prediction, and its columns behind it.

    Nothing follows row by row, so every rank needs whole hidden states (NVIDIA/Megatron-LM
    megatron/core/transformer/multi_token_prediction.py, ``gather_from_tensor_model_parallel_region``).
    """
    hidden = placed.shard.tokens * float(placed.model.hidden_size)
    into, out = saved_input_bytes(placed.precision) * 2.0 * hidden, 2.0 * hidden
    sp, again = placed.layout.sequence_parallel, placed.recomputation.whole_layers
    sent = (
        Sent("all_gather", "forward", "all_gather", into, sp),
        Sent("columns", "forward", "all_gather", out),
        Sent("all_gather", "recompute", "all_gather", into, sp * again),
        Sent("columns", "recompute", "all_gather", out, again),
        Sent("all_gather", "backward", "all_gather", out, sp),
        Sent("all_gather_input", "backward", "all_gather", into, sp * placed.recipe.overlap.sp_regathers),
        Sent("reduce_scatter", "backward", "reduce_scatter", 2.0 * out, sp),
        Sent("all_reduce", "backward", "all_reduce", 2.0 * out, 1.0 - sp),
    )
    return collective_lines(placed, "tp", "mtp.projection", placed.mesh.tp, sent)


def _head_lines(placed: PlacedJob) -> list[TimeLine]:
    """Vocabulary-parallel logits: gather the hidden states, then three small sums for the loss, or the logits."""
    tokens = placed.shard.tokens
    full = 2.0 * tokens * float(placed.model.hidden_size)
    logits = 2.0 * tokens * float(placed.model.vocab_size)
    sp = placed.layout.sequence_parallel
    loss = (
        Sent("loss.all_reduce", "forward", "all_reduce", 4.0 * tokens, np.asarray(3.0))
        if placed.recipe.kernels.vocab_parallel_loss
        else Sent("logits.all_gather", "forward", "all_gather", logits, np.asarray(1.0))
    )
    sent = (
        loss,
        Sent("all_gather", "forward", "all_gather", full, sp),
        Sent("reduce_scatter", "backward", "reduce_scatter", full, sp),
        Sent("all_gather_input", "backward", "all_gather", full, sp * placed.recipe.overlap.sp_regathers),
        Sent("all_reduce", "backward", "all_reduce", full, 1.0 - sp),
    )
    return collective_lines(placed, "tp", "head", placed.mesh.tp, sent)


def memory_lines(step: Step) -> list[MemoryLine]:
    """Return the gathered input of the widest layer, which sequence parallelism makes for a moment."""
    placed = step.placed
    on = (placed.layout.sequence_parallel * (placed.layout.tp > 1))[..., None]
    size = 2.0 * placed.shard.tokens[..., None] * float(placed.model.hidden_size)
    return [
        memory_line(
            "buffer.tp.gathered_input",
            part="buffer",
            axis="tp",
            category="activation",
            formula="on * size_bytes",
            terms={"on": on, "size_bytes": size},
            source="Megatron-Core tensor_parallel/layers.py: one global gather buffer",
        )
    ]
