"""Tensor parallelism: every projection is split over the TP group, column-wise then row-wise.

Sends: with sequence parallelism an all-gather into each column-parallel layer and a
reduce-scatter out of each row-parallel one, mirrored in the backward pass, which gathers the
input once more for the weight gradient; without it an all-reduce at the end of each block, each
way. Hides: what the recipe's `tp_overlap` says. Stores: nothing of its own; what it shards is
counted where it lies (compute for activations, data for states).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodel.bill.lines import MemoryLine, TimeLine, any_nonzero, memory_line
from costmodel.step.anatomy.operator_parts import PATHS, column_inputs, saved_input_bytes
from costmodel.step.communication import Sent, collective_lines
from costmodel.step.critical_stage import Step
from costmodel.step.placed_job import Block, OperatorTime, PlacedJob


def time_lines(placed: PlacedJob, block: Block, _: Sequence[TimeLine] = ()) -> list[TimeLine]:
    """Return the collectives of one micro-batch through one block.

    References
    ----------
    .. [1] M. Shoeybi et al., "Megatron-LM," arXiv:1909.08053, section 3.
    .. [2] V. Korthikanti et al., arXiv:2205.05198, section 4.2.2 (sequence parallelism).
    """
    if not any_nonzero(placed.layout.tp > 1):
        return []
    if block.role == "embedding":
        return _embedding_lines(placed, "embedding")
    if block.role == "mtp":
        return [*_embedding_lines(placed, "mtp.lookup"), *_prediction_lines(placed)]
    if block.role == "head":
        return _head_lines(placed)
    lines: list[TimeLine] = []
    # The first column-parallel and the last row-parallel layer of each part.
    columns = {item.operator.part: item for item in reversed(block.of_role("column"))}
    for part, row in {item.operator.part: item for item in block.of_role("row")}.items():
        if part in columns:
            lines += _pair_lines(placed, block, columns[part], row)
    for item in block.of_role("summed"):
        # The result of a product over slices of its input, and the gradient of that result.
        size, again = 2.0 * item.operator.m * item.operator.n, placed.recomputation.whole_layers
        sent = Sent("all_reduce", "all_reduce", size, 1.0, again, 1.0)
        lines += collective_lines(placed, "tp", f"{block.label}{item.operator.name}", placed.mesh.tp, [sent])
    return lines


def _pair_lines(placed: PlacedJob, block: Block, column: OperatorTime, row: OperatorTime) -> list[TimeLine]:
    """Return the collectives around one column-parallel / row-parallel pair."""
    model, recipe, tokens = placed.model, placed.recipe, placed.shard.tokens
    part, overlap = column.operator.part, recipe.overlap.tp_overlap
    full = 2.0 * tokens * placed.hidden
    width = placed.hidden
    if part == "attention" and model.attention == "mla":
        # MLA gathers the compressed queries and keys/values, not the hidden state.
        width = float(model.q_lora_rank or model.hidden_size) + model.kv_lora_rank + model.qk_rope_head_dim
    gathered = saved_input_bytes(placed.precision) * tokens * width
    sp = placed.layout.sequence_parallel
    plain = 1.0 - sp
    again = placed.recomputation.whole_layers
    # A recomputation that stops early never gets to the output of the MLP.
    summed_again = placed.recomputation.of_sum_after(part)
    # Every column-parallel layer sums its own input gradient.
    inputs = column_inputs(part, model, recipe)
    gathers = sp * inputs if recipe.kernels.own_column_inputs else sp
    regathers = sp * recipe.overlap.sp_regathers
    # Collectives of the backward pass hide behind the gradients of the layer they belong to, pipelined ones
    # behind the product that they are cut up with.
    into = out = back = input_gradient = weight_gradient = np.asarray(0.0)
    if overlap in ("pipelined", "weight-grad"):
        input_gradient, weight_gradient = column.backward_input_s, column.backward_weight_s
    if overlap == "pipelined":
        into, out, back = column.forward_s, row.forward_s, row.backward_input_s
    sent = (
        Sent("all_gather", "all_gather", gathered, gathers, gathers * again, sp, into, back),
        Sent(
            "all_gather_input",
            "all_gather",
            gathered,
            backward=regathers,
            backward_window_s=input_gradient,
        ),
        Sent("reduce_scatter", "reduce_scatter", full, sp, sp * summed_again, gathers, out, weight_gradient),
        Sent(
            "all_reduce",
            "all_reduce",
            full,
            plain,
            plain * summed_again,
            plain * inputs,
            backward_window_s=weight_gradient,
        ),
    )
    # A pipelined exchange is cut into tp pieces; the first has nothing to hide behind.
    least = 1.0 / placed.layout.tp if overlap == "pipelined" else 0.0
    return collective_lines(placed, "tp", f"{block.label}{PATHS[part]}", placed.mesh.tp, sent, least)


def _embedding_lines(placed: PlacedJob, name: str) -> list[TimeLine]:
    """Vocabulary-parallel embedding: the partial look-ups are summed."""
    full, sp = 2.0 * placed.shard.tokens * placed.hidden, placed.layout.sequence_parallel
    sent = (
        Sent("reduce_scatter", "reduce_scatter", full, sp),
        Sent("all_reduce", "all_reduce", full, 1.0 - sp),
        Sent("all_gather", "all_gather", full, backward=sp),
    )
    return collective_lines(placed, "tp", name, placed.mesh.tp, sent)


def _prediction_lines(placed: PlacedJob) -> list[TimeLine]:
    """Gather what enters the projection of multi-token prediction, and its columns behind it.

    Nothing follows row by row, so every rank needs whole hidden states (NVIDIA/Megatron-LM
    megatron/core/transformer/multi_token_prediction.py, ``gather_from_tensor_model_parallel_region``).
    """
    hidden = placed.shard.tokens * placed.hidden
    into, out = saved_input_bytes(placed.precision) * 2.0 * hidden, 2.0 * hidden
    sp, again = placed.layout.sequence_parallel, placed.recomputation.whole_layers
    sent = (
        Sent("all_gather", "all_gather", into, sp, sp * again),
        Sent("columns", "all_gather", out, 1.0, again),
        Sent("all_gather", "all_gather", out, backward=sp),
        Sent("all_gather_input", "all_gather", into, backward=sp * placed.recipe.overlap.sp_regathers),
        Sent("reduce_scatter", "reduce_scatter", 2.0 * out, backward=sp),
        Sent("all_reduce", "all_reduce", 2.0 * out, backward=1.0 - sp),
    )
    return collective_lines(placed, "tp", "mtp.projection", placed.mesh.tp, sent)


def _head_lines(placed: PlacedJob) -> list[TimeLine]:
    """Vocabulary-parallel logits: gather the hidden states, then three small sums for the loss, or the logits."""
    tokens, sp = placed.shard.tokens, placed.layout.sequence_parallel
    full = 2.0 * tokens * placed.hidden
    loss = Sent("logits.all_gather", "all_gather", 2.0 * tokens * float(placed.model.vocab_size), 1.0)
    if placed.recipe.kernels.vocab_parallel_loss:
        loss = Sent("loss.all_reduce", "all_reduce", 4.0 * tokens, 3.0)
    sent = (
        loss,
        Sent("all_gather", "all_gather", full, sp),
        Sent("reduce_scatter", "reduce_scatter", full, backward=sp),
        Sent("all_gather_input", "all_gather", full, backward=sp * placed.recipe.overlap.sp_regathers),
        Sent("all_reduce", "all_reduce", full, backward=1.0 - sp),
    )
    return collective_lines(placed, "tp", "head", placed.mesh.tp, sent)


def memory_lines(step: Step) -> list[MemoryLine]:
    """Return the gathered input of the widest layer, which sequence parallelism makes for a moment."""
    layout = step.placed.layout
    return [
        memory_line(
            "buffer.tp.gathered_input",
            part="buffer",
            axis="tp",
            formula="on * size_bytes",
            terms={
                "on": (layout.sequence_parallel * (layout.tp > 1))[..., None],
                "size_bytes": 2.0 * step.placed.shard.tokens[..., None] * step.placed.hidden,
            },
            source="Megatron-Core tensor_parallel/layers.py: one global gather buffer",
        )
    ]
