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
from numpy.typing import NDArray

from costmodel.bill.lines import MemoryLine, Phase, TimeLine, memory_line
from costmodel.step.anatomy.operator_parts import PATHS, saved_input_bytes
from costmodel.step.critical_stage import Step
from costmodel.step.placed_job import Block, OperatorTime, PlacedJob, communication_line

Array = NDArray[np.float64]


def time_lines(placed: PlacedJob, block: Block, _: Sequence[TimeLine] = ()) -> list[TimeLine]:
    """Return the collectives of one micro-batch through one block.

    References
    ----------
    .. [1] M. Shoeybi et al., "Megatron-LM," arXiv:1909.08053, section 3.
    .. [2] V. Korthikanti et al., arXiv:2205.05198, section 4.2.2 (sequence parallelism).
    """
    if not np.any(placed.layout.tp > 1):
        return []
    if block.role == "embedding":
        return _embedding_lines(placed)
    if block.role == "head":
        return _head_lines(placed)
    lines: list[TimeLine] = []
    for column, row in block.times.tp_pairs():
        lines += _pair_lines(placed, block, column, row)
    return lines


def _pair_lines(placed: PlacedJob, block: Block, column: OperatorTime, row: OperatorTime) -> list[TimeLine]:
    """Return the collectives around one column-parallel / row-parallel pair."""
    model, recipe, shard = placed.model, placed.recipe, placed.shard
    sp = placed.layout.sequence_parallel
    again = placed.recomputation.whole_layers
    width = float(model.hidden_size)
    part = column.operator.part
    if part == "attention" and model.attention == "mla":
        # MLA gathers the compressed queries and keys/values, not the hidden state.
        gathered = float(model.q_lora_rank or model.hidden_size) + model.kv_lora_rank + model.qk_rope_head_dim
    else:
        gathered = width
    full = 2.0 * shard.tokens * width
    gather_size = saved_input_bytes(placed.precision) * shard.tokens * gathered
    forward_in, forward_out, behind_dgrad, behind_wgrad, backward_out = (np.asarray(0.0),) * 5
    least: Array = np.asarray(0.0)
    if recipe.overlap.tp_overlap in ("weight-grad", "pipelined"):
        behind_wgrad, behind_dgrad = column.backward_weight_s, column.backward_input_s
    if recipe.overlap.tp_overlap == "pipelined":
        forward_in, forward_out, backward_out = column.forward_s, row.forward_s, row.backward_input_s
        # The exchange is cut into tp pieces; the first has nothing to hide behind.
        least = 1.0 / placed.layout.tp
    # Every column-parallel layer sums its own input gradient.
    inputs = 2.0 if recipe.kernels.separate_gate and model.gated_mlp and part != "attention" else 1.0
    name = f"tp.{block.label}{PATHS[part]}"
    group = placed.mesh.tp

    def line(
        label: str, phase: Phase, primitive: str, size: Array, window: Array, share: Array
    ) -> list[TimeLine]:
        if not np.any(share):
            return []
        return [
            communication_line(
                placed,
                f"{name}.{label}",
                axis="tp",
                phase=phase,
                primitive=primitive,
                size_bytes=size,
                group=group,
                window_s=window,
                least_share=least,
                share=share,
            )
        ]

    none = np.asarray(0.0)
    # A recomputation that stops early never gets to the output of the MLP.
    summed_again = placed.recomputation.of_sum_after(part)
    return [
        *line("all_gather.forward", "forward", "all_gather", gather_size, forward_in, sp),
        *line("reduce_scatter.forward", "forward", "reduce_scatter", full, forward_out, sp),
        *line("all_reduce.forward", "forward", "all_reduce", full, none, 1.0 - sp),
        *line("all_gather.recompute", "recompute", "all_gather", gather_size, forward_in, sp * again),
        *line(
            "reduce_scatter.recompute", "recompute", "reduce_scatter", full, forward_out, sp * summed_again
        ),
        *line("all_reduce.recompute", "recompute", "all_reduce", full, none, (1.0 - sp) * summed_again),
        *line("all_gather.backward", "backward", "all_gather", gather_size, backward_out, sp),
        *line(
            "all_gather_input.backward",
            "backward",
            "all_gather",
            gather_size,
            behind_dgrad,
            sp * recipe.overlap.sp_regathers,
        ),
        *line("reduce_scatter.backward", "backward", "reduce_scatter", full, behind_wgrad, sp),
        *line("all_reduce.backward", "backward", "all_reduce", full, behind_wgrad, (1.0 - sp) * inputs),
    ]


def _embedding_lines(placed: PlacedJob) -> list[TimeLine]:
    """Vocabulary-parallel embedding: the partial look-ups are summed."""
    full = 2.0 * placed.shard.tokens * float(placed.model.hidden_size)
    sp, group = placed.layout.sequence_parallel, placed.mesh.tp
    return [
        communication_line(
            placed,
            "tp.embedding.reduce_scatter.forward",
            axis="tp",
            phase="forward",
            primitive="reduce_scatter",
            size_bytes=full,
            group=group,
            share=sp,
        ),
        communication_line(
            placed,
            "tp.embedding.all_reduce.forward",
            axis="tp",
            phase="forward",
            primitive="all_reduce",
            size_bytes=full,
            group=group,
            share=1.0 - sp,
        ),
        communication_line(
            placed,
            "tp.embedding.all_gather.backward",
            axis="tp",
            phase="backward",
            primitive="all_gather",
            size_bytes=full,
            group=group,
            share=sp,
        ),
    ]


def _head_lines(placed: PlacedJob) -> list[TimeLine]:
    """Vocabulary-parallel logits: gather the hidden states, then three small sums for the loss, or the logits."""
    tokens = placed.shard.tokens
    full = 2.0 * tokens * float(placed.model.hidden_size)
    sp, group = placed.layout.sequence_parallel, placed.mesh.tp
    if placed.recipe.kernels.vocab_parallel_loss:
        loss = communication_line(
            placed,
            "tp.head.loss.all_reduce.forward",
            axis="tp",
            phase="forward",
            primitive="all_reduce",
            size_bytes=4.0 * tokens,
            group=group,
            share=3.0,
        )
    else:
        logits = 2.0 * tokens * float(placed.model.vocab_size)
        loss = communication_line(
            placed,
            "tp.head.logits.all_gather.forward",
            axis="tp",
            phase="forward",
            primitive="all_gather",
            size_bytes=logits,
            group=group,
        )
    return [
        loss,
        communication_line(
            placed,
            "tp.head.all_gather.forward",
            axis="tp",
            phase="forward",
            primitive="all_gather",
            size_bytes=full,
            group=group,
            share=sp,
        ),
        communication_line(
            placed,
            "tp.head.reduce_scatter.backward",
            axis="tp",
            phase="backward",
            primitive="reduce_scatter",
            size_bytes=full,
            group=group,
            share=sp,
        ),
        communication_line(
            placed,
            "tp.head.all_gather_input.backward",
            axis="tp",
            phase="backward",
            primitive="all_gather",
            size_bytes=full,
            group=group,
            share=sp * placed.recipe.overlap.sp_regathers,
        ),
        communication_line(
            placed,
            "tp.head.all_reduce.backward",
            axis="tp",
            phase="backward",
            primitive="all_reduce",
            size_bytes=full,
            group=group,
            share=1.0 - sp,
        ),
    ]


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
            toll="activation",
            formula="on * size_bytes",
            terms={"on": on, "size_bytes": size},
            source="Megatron-Core tensor_parallel/layers.py: one global gather buffer",
        )
    ]
