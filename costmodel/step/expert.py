"""Expert parallelism: experts are dealt to ranks, and tokens travel to them and back.

Sends: a dispatch and a combine in every MoE layer, forward and backward, over the EP group; with
expert tensor parallelism also an all-gather and a reduce-scatter inside each expert's TP group.
Hides: behind the compute of another micro-batch where the recipe overlaps them. Stores: the
send and receive buffers. The busiest rank sets the pace, so all of it scales with the imbalance.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodel.bill.formula import evaluate
from costmodel.bill.lines import MemoryLine, Phase, TimeLine, memory_line, time_line
from costmodel.physics.network.expert_dispatch import DISPATCHERS, moe_exchange_time
from costmodel.step.placed_job import HIDDEN, Block, PlacedJob, communication_line

Array = NDArray[np.float64]


def time_lines(placed: PlacedJob, block: Block) -> list[TimeLine]:
    """Return dispatch and combine of one micro-batch through one MoE layer.

    References
    ----------
    .. [1] D. Lepikhin et al., "GShard," arXiv:2006.16668, section 3.
    .. [2] DeepSeek-AI, "DeepSeek-V3 technical report," arXiv:2412.19437, section 3.2.2.
    """
    if block.role != "layer" or block.kind is None or not block.kind.is_moe:
        return []
    layout = placed.layout
    if not (np.any(layout.ep > 1) or np.any(layout.etp > 1)):
        return []
    return [*_dispatch_lines(placed, block), *_expert_tensor_lines(placed, block)]


def _dispatch_lines(placed: PlacedJob, block: Block) -> list[TimeLine]:
    """Return the exchange over the EP group, each way, in each pass."""
    model, recipe, shard = placed.model, placed.recipe, placed.shard
    group = placed.mesh.ep
    h = float(model.hidden_size)
    again = placed.recomputation.of_module("moe")
    times = block.times
    # Half of the other micro-batch's pass runs beside each of the two exchanges.
    forward_window = 0.5 * times.forward_s if recipe.moe.ep_overlap else np.asarray(0.0)
    backward_window = (
        0.5 * (times.backward_s + times.recompute_s) if recipe.moe.ep_overlap else np.asarray(0.0)
    )
    by = DISPATCHERS[recipe.moe.moe_dispatcher]
    dispatch_bytes = by.quantised_bytes if placed.precision.cast_bytes else 2.0
    name = f"ep.{block.label}moe"
    imbalance = (
        recipe.moe.moe_imbalance if recipe.moe.moe_capacity_factor == 0 else recipe.moe.moe_capacity_factor
    )
    copies = evaluate(by.copies, {"ranks": placed.layout.ep, "top_k": model.top_k, "imbalance": imbalance})
    lines: list[TimeLine] = []

    def exchange(label: str, phase: Phase, element_bytes: float, window: Array, share: Array) -> None:
        if not np.any(share):
            return
        if not by.dispatch:
            lines.append(
                _own_exchange_line(placed, f"{name}.{label}.{phase}", phase, element_bytes, window, share)
            )
            return
        lines.append(
            communication_line(
                placed,
                f"{name}.{label}.{phase}",
                axis="ep",
                phase=phase,
                primitive=by.dispatch if label == "dispatch" else by.combine,
                size_bytes=element_bytes * h * shard.tokens_sp * copies,
                group=group,
                window_s=window,
                share=share,
            )
        )

    one = np.asarray(1.0)
    exchange("dispatch", "forward", dispatch_bytes, forward_window, one)
    exchange("combine", "forward", 2.0, forward_window, one)
    exchange("dispatch", "recompute", dispatch_bytes, forward_window, again)
    exchange("combine", "recompute", 2.0, forward_window, again)
    # The gradient of combine is a dispatch of bf16 gradients, and the other way round.
    exchange("combine", "backward", 2.0, backward_window, one)
    exchange("dispatch", "backward", 2.0, backward_window, one)
    return lines


def _own_exchange_line(
    placed: PlacedJob, name: str, phase: Phase, element_bytes: float, window: Array, share: Array
) -> TimeLine:
    """Price an exchange that sends each token once to each node that needs it."""
    model, recipe = placed.model, placed.recipe
    tokens, token_bytes = placed.shard.tokens_sp, element_bytes * float(model.hidden_size)
    cost = moe_exchange_time(
        tokens,
        token_bytes,
        float(model.top_k),
        placed.mesh.ep,
        placed.cluster.tiers,
        node_limit=float(recipe.moe.node_limited_routing),
    )
    made = cost.made.then(
        "exchange_s",
        f"busy_s = share * imbalance * exchange_s; {HIDDEN}",
        share=share,
        imbalance=recipe.moe.moe_imbalance,
        window_s=window,
        least_share=0.0,
        contention=recipe.overlap.overlap_contention,
    )
    return time_line(
        name,
        axis="ep",
        toll="communication",
        phase=phase,
        group=placed.mesh.ep.dim,
        count=1.0,
        made=made,
        bytes_each=cost.wire_bytes * share,
        tier=cost.tier,
        algorithm=cost.algorithm,
        source=DISPATCHERS[recipe.moe.moe_dispatcher].source,
    )


def _expert_tensor_lines(placed: PlacedJob, block: Block) -> list[TimeLine]:
    """Return the collectives inside each expert's TP group."""
    layout, shard = placed.layout, placed.shard
    if not np.any(layout.etp > 1):
        return []
    size = 2.0 * float(placed.model.hidden_size) * shard.expert_tokens
    again = placed.recomputation.of_module("moe")
    one = np.asarray(1.0)
    lines = []
    shares: tuple[tuple[Phase, Array], ...] = (("forward", one), ("recompute", again), ("backward", one))
    for phase, share in shares:
        for primitive in ("all_gather", "reduce_scatter"):
            lines.append(
                communication_line(
                    placed,
                    f"ep.{block.label}expert_tensor.{primitive}.{phase}",
                    axis="ep",
                    phase=phase,
                    primitive=primitive,
                    size_bytes=size,
                    group=placed.mesh.etp,
                    share=share,
                )
            )
    return lines


def memory_lines(placed: PlacedJob) -> list[MemoryLine]:
    """Return the receive buffers of one dispatch and one combine."""
    shard = placed.shard
    moe = float(any(kind.is_moe for kind in placed.kinds))
    on = moe * (placed.layout.ep * placed.layout.etp > 1)
    size = 2.0 * shard.expert_tokens * float(placed.model.hidden_size)
    return [
        memory_line(
            "buffer.ep.exchange",
            part="buffer",
            axis="ep",
            toll="activation",
            formula="2 * on * size_bytes",
            terms={"on": np.asarray(on)[..., None], "size_bytes": size[..., None]},
            source="tokens received by dispatch and sent by combine, bf16",
        )
    ]
