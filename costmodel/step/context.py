"""Context parallelism: each rank holds a slice of every sequence; attention must see all of it.

Sends: `ring` rotates K and V (and in the backward pass their gradients) around the group, a
chunk behind the attention of the chunk before; `all-gather` collects K and V first (Llama 3);
`ulysses` swaps sequence for heads by all-to-all before and after attention; `a2a+p2p` does that among
neighbours and rotates K and V around the groups of them. Hides: only the ring,
behind attention itself. A layer without attention sends what its operators need of their
neighbours. Stores: the K and V of other ranks while they pass through. Slices are
in zig-zag order, so that a causal mask leaves every rank the same work, unless the recipe's `cp_slices`
says that they are contiguous.

PyTorch's own (the recipe's `cp_by_torch`) runs attention slice by slice however K and V come. What it gathers is
under way behind the first slice, which is all that is there by then; gradients of K and V go once around the ring in
fp32, the last time with nothing beside them; and what slices return is added up by operators in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import NamedTuple

import numpy as np

from costmodel.base.csv_text import read_records
from costmodel.bill.lines import (
    Array,
    MemoryLine,
    Phase,
    TimeLine,
    any_nonzero,
    broadcast_sum,
    memory_line,
    time_line,
)
from costmodel.bill.quantity import quantity
from costmodel.describe.models.model import Model
from costmodel.physics.network.mesh import Group, split_group
from costmodel.step.anatomy.operator_parts import ContextExchange, core_widths
from costmodel.step.communication import Sent, collective_lines
from costmodel.step.compute import head_bytes_beyond_layers
from costmodel.step.critical_stage import Step
from costmodel.step.placed_job import Block, OperatorTime, PlacedJob

Exchange = tuple[Group, list[Sent]]

_GRADIENTS_IN_FP32 = 2.0
"""Bytes of gradients of K and V in fp32 over those of K and V in 16 bits."""


def time_lines(placed: PlacedJob, block: Block, _: Sequence[TimeLine] = ()) -> list[TimeLine]:
    """Return the exchange of one micro-batch through one layer.

    References
    ----------
    .. [1] H. Liu et al., "Ring attention with blockwise transformers," arXiv:2310.01889, section 3.
    .. [2] A. Grattafiori et al., "The Llama 3 herd of models," arXiv:2407.21783, section 3.3.2.
    .. [3] S. A. Jacobs et al., "DeepSpeed Ulysses," arXiv:2309.14509, section 3.
    """
    if block.kind is None or not any_nonzero(placed.layout.cp > 1):
        return []
    on, again = np.asarray(placed.layout.cp > 1, dtype=np.float64), placed.recomputation.whole_layers

    def lines_of(name: str, group: Group, sent: list[Sent]) -> list[TimeLine]:
        return collective_lines(placed, "cp", f"{block.label}{name}", group, sent)

    lines: list[TimeLine] = []
    for item in block.by_operator.values():
        # What it needs of the neighbouring ranks in the sequence, and its own collectives; backward they run the other way.
        exchanges = [*item.operator.exchanges]
        if any_nonzero(item.operator.neighbour_bytes):
            exchanges.insert(0, ContextExchange("neighbour", "send_recv", item.operator.neighbour_bytes))
        for one in exchanges:
            lines += lines_of(item.operator.name, placed.mesh.cp, [Sent(*one, on, on * again, on)])
    core = block.of_role("core")
    if not core:
        return lines
    if block.kind.selects:
        return lines + lines_of("attention", placed.mesh.cp, _whole_keys(placed))
    method, model = METHODS[placed.recipe.overlap.cp_method], placed.model.seen_by(block.kind)
    for group, sent in method.sends(placed, model, core):
        lines += lines_of("attention", group, sent)
    if method.rotates or placed.recipe.overlap.torch_slices:
        lines += _merge_lines(placed, model, f"cp.{block.label}attention")
    return lines


def _kv_bytes(placed: PlacedJob, model: Model) -> Array:
    """K and V of this rank's slice as they are exchanged, bf16. [B]"""
    repeated = model.attention == "mla" or placed.recipe.overlap.torch_slices
    kv_heads = model.num_heads if repeated else model.num_kv_heads
    per_rank = np.maximum(kv_heads / placed.layout.tp, 1.0)
    return np.asarray(2.0 * placed.shard.tokens * per_rank * (model.head_dim + model.v_head_dim))


def _head_tokens(placed: PlacedJob, model: Model) -> Array:
    """Tokens of this rank's slice times its query heads outside attention. [-]"""
    return np.asarray(placed.shard.tokens * model.num_heads / placed.layout.tp)


def _swapped_in_bytes(placed: PlacedJob, model: Model) -> Array:
    """Q, K and V of this rank's slice, bf16. [B]"""
    return np.asarray(_kv_bytes(placed, model) + 2.0 * _head_tokens(placed, model) * model.head_dim)


def _whole_keys(placed: PlacedJob) -> list[Sent]:
    """Collect all keys before attention that may choose any of them, and sum their gradients: latents where there are."""
    model = placed.model
    kv_bytes = _kv_bytes(placed, model)
    if model.attention == "mla":
        kv_bytes = np.asarray(2.0 * placed.shard.tokens * core_widths(model)[0])
    return _collected(placed, kv_bytes)


def _collected(placed: PlacedJob, kv_bytes: Array) -> list[Sent]:
    """Collect what all ranks hold as much of, in every pass, and sum the gradients of it."""
    size = kv_bytes * placed.layout.cp
    return [
        Sent("all_gather", "all_gather", size, 1.0, placed.recomputation.whole_layers, 1.0),
        Sent("reduce_scatter", "reduce_scatter", size, backward=1.0),
    ]


def _ring(placed: PlacedJob, model: Model, core: Sequence[OperatorTime]) -> list[Exchange]:
    """Pass K and V around, a chunk behind the attention of the one before."""
    return [(placed.mesh.cp, _rotation(placed, model, core, placed.layout.cp))]


def _rotation(placed: PlacedJob, model: Model, core: Sequence[OperatorTime], ranks: Array) -> list[Sent]:
    """Return what a ring of so many `ranks` sends."""
    kv_bytes = _kv_bytes(placed, model)
    steps, hidden = ranks - 1.0, (ranks - 1.0) / ranks
    forward_s, backward_s = (hidden * seconds for seconds in _core_seconds(core))
    by_torch = placed.recipe.overlap.torch_slices
    # K, V and the gradients of both travel together.
    both = (1.0 + _GRADIENTS_IN_FP32 if by_torch else 2.0) * kv_bytes
    again = steps * placed.recomputation.whole_layers
    return [
        Sent("ring", "send_recv", kv_bytes, steps, again, forward_window_s=forward_s),
        Sent("ring", "send_recv", both, backward=steps, backward_window_s=backward_s),
        *([_last_gradients(kv_bytes, ranks)] if by_torch else []),
    ]


def _core_seconds(core: Sequence[OperatorTime]) -> tuple[Array, Array]:
    """Return seconds of a layer's attention, forward and backward."""
    return broadcast_sum([item.forward_s for item in core]), broadcast_sum([item.backward_s for item in core])


def _last_gradients(kv_bytes: Array, ranks: Array) -> Sent:
    """Send gradients of K and V home to the rank that owns them: after the last slice, with nothing beside it."""
    return Sent("gradients_home", "send_recv", _GRADIENTS_IN_FP32 * kv_bytes, backward=1.0 * (ranks > 1))


def _gathers(placed: PlacedJob, model: Model, core: Sequence[OperatorTime]) -> list[Exchange]:
    """Collect K and V of all ranks before attention, and sum their gradients after it."""
    kv_bytes, ranks = _kv_bytes(placed, model), placed.layout.cp
    sent = _collected(placed, kv_bytes)
    if placed.recipe.overlap.torch_slices:
        forward_s, backward_s = _core_seconds(core)
        gradients = Sent(
            "gradients",
            "send_recv",
            _GRADIENTS_IN_FP32 * kv_bytes,
            backward=ranks - 1.0,
            backward_window_s=backward_s * (ranks - 1.0) / ranks,
        )
        behind = sent[0]._replace(forward_window_s=forward_s / ranks, backward_window_s=backward_s / ranks)
        sent = [behind, gradients, _last_gradients(kv_bytes, ranks)]
    return [(placed.mesh.cp, sent)]


def _swaps(placed: PlacedJob, model: Model, _: Sequence[OperatorTime]) -> list[Exchange]:
    """Swap the sequence for heads before attention, and back after it."""
    return [(placed.mesh.cp, _swapped(placed, model, np.asarray(1.0)))]


def _swapped(placed: PlacedJob, model: Model, on: Array) -> list[Sent]:
    """Return both swaps of every pass."""
    again = on * placed.recomputation.whole_layers
    out = 2.0 * _head_tokens(placed, model) * model.v_head_dim
    return [
        Sent("all_to_all_qkv", "all_to_all", _swapped_in_bytes(placed, model), on, again, on),
        Sent("all_to_all_out", "all_to_all", out, on, again, on),
    ]


def _swaps_and_ring(placed: PlacedJob, model: Model, core: Sequence[OperatorTime]) -> list[Exchange]:
    """Swap heads among neighbours, and rotate K and V around the groups of them.

    A swap leaves a rank as many bytes of K and V: of fewer heads, but a longer slice.
    """
    swaps = placed.shard.swaps
    inside, across = split_group(placed.mesh.cp, swaps)
    return [
        (inside, _swapped(placed, model, np.asarray(1.0 * (swaps > 1)))),
        (across, _rotation(placed, model, core, np.asarray(placed.layout.cp / swaps))),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way in which the ranks of a context group come to each other's K and V."""

    name: str
    """Value of the recipe's `cp_method`."""
    sends: Callable[[PlacedJob, Model, Sequence[OperatorTime]], list[Exchange]]
    """Groups, and what each of them sends in a layer, of the model as the layer sees it and its attention kernels."""
    rotates: bool
    """Whether K and V come slice by slice, so that partial results are added up."""
    held_slices: str
    """Slices of K and V that a rank holds beside its own at its peak, of `others`: the other ranks that it sees. [-]"""
    swaps: bool
    """Whether heads are swapped for sequence among some ranks, which holds Q, K and V once more."""
    source: str


_SENDS = {"ring": _ring, "all-gather": _gathers, "ulysses": _swaps, "a2a+p2p": _swaps_and_ring}
METHODS: Mapping[str, Method] = read_records(
    Path(__file__).with_name("context_methods.csv"), Method, sends=lambda row: _SENDS[row["name"]]
)
"""Every method by its name, a row of ``context_methods.csv``."""


class _Merged(NamedTuple):
    """Bytes that adding up partial results moves, and how many kernels a step it takes.

    `elements` are those of outputs or of queries, `keys` those of K and V; `steps` are slices of keys.
    """

    forward: str
    backward: str
    kernels: float
    source: str


_MERGED: Mapping[bool, _Merged] = {
    False: _Merged(
        # Each step reads its bf16 result and reads and writes an fp32 accumulator.
        forward="share * steps * 10 * elements",
        backward="share * steps * 10 * (elements + keys)",
        kernels=2.0,
        source="NVIDIA/TransformerEngine attention/context_parallel.py: softmax correction of each step",
    ),
    True: _Merged(
        # On the last rank, which has the most to add. Each result is cast to fp32 (6), but for the first it is taken from
        # what there is (12), weighed (8) and taken off (12), and the whole becomes bf16 (6); K and V are put side by side.
        forward="share * (elements * (38 * steps - 26) + keys * 4 * (steps - 1))",
        # Sums of fp32 are cleared (4) and become bf16 (6). Each step adds to that of queries (10), to that of the first
        # half of the slice of K and V (5), which makes a new whole (8), the first to all of it (10); it puts the latter
        # side by side to send them (8), and but for the last K and V too (4).
        backward="share * (elements * 10 * (steps + 1) + keys * (25 * steps + 3))",
        kernels=8.0,
        source="pytorch torch/distributed/tensor/experimental/_attention.py: _SDPAMerger, _partial_update, "
        "_templated_ring_attention_backward",
    ),
}
"""By whether attention is PyTorch's."""


def _merge_lines(placed: PlacedJob, model: Model, name: str) -> list[TimeLine]:
    """Add up what the steps of the ring return: outputs with their softmax sums, and gradients."""
    head_tokens = _head_tokens(placed, model)
    steps = np.asarray(placed.layout.cp / placed.shard.swaps)
    on = np.asarray(1.0 * (steps > 1))
    outputs, queries = head_tokens * model.v_head_dim, head_tokens * model.head_dim
    made = _MERGED[placed.recipe.overlap.torch_slices]
    again = on * placed.recomputation.whole_layers
    passes: list[tuple[Phase, Array, Array]] = [("forward", outputs, on), ("backward", queries, on)]
    if any_nonzero(placed.recomputation.whole_layers):
        passes.insert(1, ("recompute", outputs, again))
    lines = []
    for phase, elements, share in passes:
        formula, keys = made.backward if phase == "backward" else made.forward, _kv_bytes(placed, model) / 2.0
        moved = quantity(formula, share=share, steps=steps, elements=elements, keys=keys)
        lines.append(
            time_line(
                f"{name}.merge.{phase}",
                axis="cp",
                category="hbm",
                phase=phase,
                made=placed.memory_bound(moved, kernels=made.kernels * share * steps),
                bytes_each=moved.value,
                source=made.source,
            )
        )
    return lines


# Slices as long as K and V in 16 bits, by whether they rotate: what came of K and V, and in fp32 the gradients of both
# as they are added up, side by side to be sent, and as they come, and those of queries.
_HELD_BY_TORCH: Mapping[bool, str] = {
    False: "where(others > 0, others + 8, 0)",
    True: "where(others > 0, 9, 0)",
}


def memory_lines(step: Step) -> list[MemoryLine]:
    """Return the K and V of other ranks while they pass, and what they are swapped into.

    Both are gone when the logits are alive, and only add to the peak what these leave.
    """
    placed = step.placed
    method = METHODS[placed.recipe.overlap.cp_method]
    slices = method.held_slices
    source = f"{method.source}; NVIDIA/TransformerEngine attention/dot_product_attention/context_parallel.py"
    if placed.recipe.overlap.torch_slices:
        slices = _HELD_BY_TORCH[method.rotates]
        source = (
            "pytorch torch/distributed/tensor/experimental/_attention.py _templated_ring_attention_backward"
        )
    seen = [placed.model.seen_by(kind) for kind in placed.kinds if kind.attends]

    def widest(size: Callable[[PlacedJob, Model], Array]) -> Array:
        sizes = (size(placed, model) for model in seen)
        return np.asarray(reduce(np.maximum, sizes, np.asarray(0.0)))[..., None]

    lines = [
        memory_line(
            "buffer.cp.keys_values",
            part="buffer",
            axis="cp",
            formula=f"slices = {slices}; max(slices * size_bytes - head_bytes, 0)",
            terms={
                "others": np.asarray(placed.layout.cp / placed.shard.swaps - 1.0)[..., None],
                "size_bytes": widest(_kv_bytes),
                "head_bytes": head_bytes_beyond_layers(step),
            },
            source=f"K and V of other ranks, {source}",
        )
    ]
    if method.swaps:
        lines.append(
            memory_line(
                "buffer.cp.swapped",
                part="buffer",
                axis="cp",
                formula="on * size_bytes",
                terms={
                    "on": 1.0 * (placed.shard.swaps > 1)[..., None],
                    "size_bytes": widest(_swapped_in_bytes),
                },
                source=f"Q, K and V with heads swapped for sequence, {method.source}",
            )
        )
    return lines
