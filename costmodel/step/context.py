"""Context parallelism: each rank holds a slice of every sequence; attention must see all of it.

Sends: `ring` rotates K and V (and in the backward pass their gradients) around the group, a
chunk behind the attention of the chunk before; `all-gather` collects K and V first (Llama 3);
`ulysses` swaps sequence for heads by all-to-all before and after attention. Hides: only the ring,
behind attention itself. A layer without attention sends what its operators need of their
neighbours. Stores: the K and V of other ranks while they pass through. Slices are
dealt in zig-zag, so that a causal mask leaves every rank the same work.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from costmodel.bill.lines import MemoryLine, Phase, TimeLine, anywhere, memory_line, time_line
from costmodel.bill.quantity import quantity
from costmodel.step.critical_stage import Step
from costmodel.step.placed_job import Block, OperatorTime, PlacedJob, Sent, collective_lines

Array = NDArray[np.float64]


def _kv_bytes(placed: PlacedJob) -> Array:
    """K and V of this rank's slice, bf16. [B]"""
    model = placed.model
    kv_heads = model.num_heads if model.attention == "mla" else model.num_kv_heads
    per_rank = np.maximum(kv_heads / placed.layout.tp, 1.0)
    return np.asarray(2.0 * placed.shard.tokens * per_rank * (model.head_dim + model.v_head_dim))


def time_lines(placed: PlacedJob, block: Block, _: Sequence[TimeLine] = ()) -> list[TimeLine]:
    """Return the exchange of one micro-batch through one layer.

    References
    ----------
    .. [1] H. Liu et al., "Ring attention with blockwise transformers," arXiv:2310.01889, section 3.
    .. [2] A. Grattafiori et al., "The Llama 3 herd of models," arXiv:2407.21783, section 3.3.2.
    .. [3] S. A. Jacobs et al., "DeepSpeed Ulysses," arXiv:2309.14509, section 3.
    """
    if block.role != "layer" or not anywhere(placed.layout.cp > 1):
        return []
    lines: list[TimeLine] = []
    for item in block.times.by_operator.values():
        sent = [*_from_neighbours(placed, item), *_around(placed, item)]
        lines += collective_lines(placed, "cp", f"{block.label}{item.operator.name}", placed.mesh.cp, sent)
    core = block.times.of_role("core")
    if not core:
        return lines
    method = placed.recipe.overlap.cp_method
    exchange = _EXCHANGES[method](placed, core)
    name = f"{block.label}attention"
    lines += collective_lines(placed, "cp", name, placed.mesh.cp, exchange)
    return lines + (_merge_lines(placed, f"cp.{name}") if method == "ring" else [])


def _ring(placed: PlacedJob, core: Sequence[OperatorTime]) -> list[Sent]:
    """Pass K and V around, a chunk behind the attention of the one before."""
    cp, held = placed.layout.cp, _kv_bytes(placed)
    steps, hidden = cp - 1.0, (cp - 1.0) / cp
    again = placed.recomputation.whole_layers
    forward_s = hidden * sum((item.forward_s for item in core), np.asarray(0.0))
    backward_s = hidden * sum((item.backward_s for item in core), np.asarray(0.0))
    return [
        Sent("ring", "forward", "send_recv", held, steps, forward_s),
        Sent("ring", "recompute", "send_recv", held, steps * again, forward_s),
        # K, V and the gradients of both travel together.
        Sent("ring", "backward", "send_recv", 2.0 * held, steps, backward_s),
    ]


def _gathers(placed: PlacedJob, _: Sequence[OperatorTime]) -> list[Sent]:
    """Collect K and V of all ranks before attention, and sum their gradients after it."""
    size = _kv_bytes(placed) * placed.layout.cp
    return [
        Sent("all_gather", "forward", "all_gather", size),
        Sent("all_gather", "recompute", "all_gather", size, placed.recomputation.whole_layers),
        Sent("all_gather", "backward", "all_gather", size),
        Sent("reduce_scatter", "backward", "reduce_scatter", size),
    ]


def _swaps(placed: PlacedJob, _: Sequence[OperatorTime]) -> list[Sent]:
    """Swap the sequence for heads before attention, and back after it."""
    model, tokens = placed.model, placed.shard.tokens
    heads = model.num_heads / placed.layout.tp
    into = _kv_bytes(placed) + 2.0 * tokens * heads * model.head_dim
    out = 2.0 * tokens * heads * model.v_head_dim
    return [
        Sent(label, phase, "all_to_all", size, share)
        for phase, share in placed.recomputation.passes()
        for label, size in (("all_to_all_qkv", into), ("all_to_all_out", out))
    ]


_EXCHANGES = {"ring": _ring, "all-gather": _gathers, "ulysses": _swaps}


def _from_neighbours(placed: PlacedJob, item: OperatorTime) -> list[Sent]:
    """Return what an operator that is not attention waits for from the ranks beside it in the sequence."""
    size = item.operator.neighbour_bytes
    if not anywhere(size):
        return []
    on = np.asarray(placed.layout.cp > 1, dtype=np.float64)
    return [
        Sent("neighbour", phase, "send_recv", size, on * share)
        for phase, share in placed.recomputation.passes()
    ]


def _around(placed: PlacedJob, item: OperatorTime) -> list[Sent]:
    """Return the collectives that an operator asks for itself; backward they run the other way."""
    on = np.asarray(placed.layout.cp > 1, dtype=np.float64)
    return [
        Sent(one.label, phase, one.primitive, one.size_bytes, on * share)
        for one in item.operator.exchanges
        for phase, share in placed.recomputation.passes()
    ]


def _merge_lines(placed: PlacedJob, name: str) -> list[TimeLine]:
    """Add up what the steps of the ring return: outputs with their softmax sums, and gradients.

    Each step reads its bf16 result and reads and writes an fp32 accumulator.
    """
    model, cp = placed.model, placed.layout.cp
    heads = model.num_heads / placed.layout.tp
    tokens = placed.shard.tokens
    on = np.asarray(cp > 1, dtype=np.float64)
    outputs = tokens * heads * model.v_head_dim
    gradients = tokens * heads * model.head_dim + _kv_bytes(placed) / 2.0
    lines = []
    passes: list[tuple[Phase, Array, Array]] = [("forward", outputs, on), ("backward", gradients, on)]
    if anywhere(placed.recomputation.whole_layers):
        passes.insert(1, ("recompute", outputs, on * placed.recomputation.whole_layers))
    for phase, elements, share in passes:
        moved = quantity("share * cp * 10 * elements", share=share, cp=cp, elements=elements)
        lines.append(
            time_line(
                f"{name}.merge.{phase}",
                axis="cp",
                toll="hbm",
                phase=phase,
                count=1.0,
                made=placed.memory_bound(moved, kernels=2.0 * share * cp),
                bytes_each=moved.value,
                source="NVIDIA/TransformerEngine attention/context_parallel.py: softmax correction of each step",
            )
        )
    return lines


def memory_lines(step: Step) -> list[MemoryLine]:
    """Return the K and V of other ranks: two chunks in flight on a ring, all of them otherwise."""
    placed = step.placed
    cp = placed.layout.cp
    chunks = np.minimum(2.0, cp - 1.0) if placed.recipe.overlap.cp_method == "ring" else cp - 1.0
    attends = any(kind.attends for kind in placed.kinds)
    size = _kv_bytes(placed) * float(attends)
    return [
        memory_line(
            "buffer.cp.keys_values",
            part="buffer",
            axis="cp",
            toll="activation",
            formula="chunks * size_bytes",
            terms={"chunks": chunks[..., None], "size_bytes": size[..., None]},
            source="K and V received from other ranks, arXiv:2310.01889, section 3",
        )
    ]
