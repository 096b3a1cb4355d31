"""Expert parallelism: experts are dealt to ranks, and tokens travel to them and back.

Sends: a dispatch and a combine in every MoE layer, forward and backward, over the EP group; with
expert tensor parallelism also an all-gather and a reduce-scatter inside each expert's TP group.
Hides: behind the compute of another micro-batch where the recipe overlaps them and the schedule
has one. Stores: the send and receive buffers; the activations of the other micro-batch are in flight.
The busiest rank sets the pace, so all of it scales with the imbalance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.bill.formula import evaluate, names_of
from costmodel.bill.lines import MemoryLine, Phase, TimeLine, anywhere, broadcast_sum, memory_line, time_line
from costmodel.bill.quantity import quantity
from costmodel.physics.network.expert_dispatch import DISPATCHERS, moe_exchange_time
from costmodel.physics.pipeline.schedules import unpaired_share
from costmodel.step.anatomy.operator_parts import exchanged_bytes
from costmodel.step.compute import unfilled_by_layers
from costmodel.step.critical_stage import Step
from costmodel.step.placed_job import (
    Block,
    LayerTimes,
    PlacedJob,
    Sent,
    collective_lines,
    communication_line,
    hidden_beside,
)
from costmodel.step.ports import Ports

Array = NDArray[np.float64]


def time_lines(placed: PlacedJob, block: Block, others: Sequence[TimeLine]) -> list[TimeLine]:
    """Return dispatch and combine of one micro-batch through one MoE layer.

    `others` are the messages of the other axes in the same layer, which take the ports of theirs.

    References
    ----------
    .. [1] D. Lepikhin et al., "GShard," arXiv:2006.16668, section 3.
    .. [2] DeepSeek-AI, "DeepSeek-V3 technical report," arXiv:2412.19437, section 3.2.2.
    """
    if block.role != "layer" or block.kind is None or not block.kind.is_moe:
        return []
    layout = placed.layout
    if not (anywhere(layout.ep > 1) or anywhere(layout.etp > 1)):
        return []
    return [*_dispatch_lines(placed, block, others), *_expert_tensor_lines(placed, block)]


class _Hiding:
    """What an exchange hides behind: a part of a forward pass and a backward pass of two micro-batches that run paired.

    A pair has four exchanges, six where some run again, and each of them any part of the other micro-batch to run
    beside [1]_: they divide the compute of both passes as their bytes. Those of the first and last micro-batch, and of
    the passes that fill and drain the pipeline, have nothing beside them, a `share` has; of that, a share cannot hide
    between nodes.

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V3 technical report," arXiv:2412.19437, section 3.2.1, figure 4.
    """

    def __init__(self, placed: PlacedJob, times: LayerTimes, others: Sequence[TimeLine], part: Array) -> None:
        layout, recipe = placed.layout, placed.recipe
        self.pass_s = times.forward_s + times.backward_s + times.recompute_s
        self.products_s = _products_s(times)
        self.window_s, self.least_share, self.share = np.asarray(0.0), np.asarray(0.0), np.asarray(0.0)
        self.beside: Ports | None = None
        if not anywhere(placed.pairs_passes):
            return
        alone = unpaired_share(
            layout.schedule, stages=layout.pp, micro_batches=placed.micro_batches, virtual_stages=layout.vp
        )
        beside = placed.pairs_passes * (1.0 - alone)
        inside = placed.mesh.ep.members[0] >= placed.mesh.ep.ranks
        hidden = np.where(inside, 1.0, recipe.moe.ep_hidden_between_nodes)
        self.share = np.asarray(beside)
        self.window_s = np.asarray(beside * part * self.pass_s)
        self.beside = Ports(others, part * beside)
        self.least_share = np.asarray(1.0 - beside * hidden)


class _Exchange(NamedTuple):
    """One way of one pass: what an element takes on the wire, what it hides behind, and in which layouts it is made."""

    label: str
    phase: Phase
    element_bytes: float
    hiding: _Hiding
    share: Array


def _dispatch_lines(placed: PlacedJob, block: Block, others: Sequence[TimeLine]) -> list[TimeLine]:
    """Return the exchange over the EP group, each way, in each pass."""
    dispatched, gradients = exchanged_bytes(placed.recipe, placed.precision)
    one, again = np.asarray(1.0), placed.recomputation.of_module("moe")
    exchanged: tuple[tuple[str, Phase, float, Array], ...] = (
        ("dispatch", "forward", dispatched, one),
        ("combine", "forward", 2.0, one),
        ("dispatch", "recompute", dispatched, again),
        ("combine", "recompute", 2.0, again),
        # The gradient of combine is a dispatch of gradients, and the other way round.
        ("combine", "backward", gradients, one),
        ("dispatch", "backward", 2.0, one),
    )
    of_pair = broadcast_sum([size * share for _, _, size, share in exchanged])
    return [
        _exchange_line(
            placed,
            block,
            _Exchange(label, phase, size, _Hiding(placed, block.times, others, size / of_pair), share),
        )
        for label, phase, size, share in exchanged
        if anywhere(share)
    ]


def _exchange_line(placed: PlacedJob, block: Block, each: _Exchange) -> TimeLine:
    """Price one exchange: by a collective, or by kernels of the dispatcher's own."""
    model, by = placed.model, DISPATCHERS[placed.recipe.moe.moe_dispatcher]
    name = f"ep.{block.label}moe.{each.label}.{each.phase}"
    if not by.dispatch:
        return _own_exchange_line(placed, name, each)
    copies = evaluate(
        by.copies, {"ranks": placed.layout.ep, "top_k": model.top_k, "imbalance": placed.imbalance}
    )
    return communication_line(
        placed,
        name,
        axis="ep",
        phase=each.phase,
        primitive=by.dispatch if each.label == "dispatch" else by.combine,
        size_bytes=each.element_bytes * float(model.hidden_size) * placed.shard.tokens_sp * copies,
        group=placed.mesh.ep,
        window_s=each.hiding.window_s,
        beside=each.hiding.beside,
        least_share=each.hiding.least_share,
        share=each.share,
    )


def _own_exchange_line(placed: PlacedJob, name: str, each: _Exchange) -> TimeLine:
    """Price an exchange that sends each token once to each node that needs it."""
    model, recipe, hiding = placed.model, placed.recipe, each.hiding
    tokens, token_bytes = placed.shard.tokens_sp, each.element_bytes * float(model.hidden_size)
    cost = moe_exchange_time(
        tokens,
        token_bytes,
        float(model.top_k),
        placed.mesh.ep,
        placed.cluster.tiers,
        node_limit=_node_limit(placed),
        network_rate=DISPATCHERS[recipe.moe.moe_dispatcher].network_rate,
    )
    hidden, taken = hidden_beside(hiding.beside, cost.tier)
    slowed, sent = _loaded(placed)
    made = placed.sent(cost).then(
        "exchange_s",
        f"{_SMS_TAKEN if _own_sms(placed) else ''}{slowed}busy_s = share * imbalance * {sent}; {hidden}",
        share=each.share,
        imbalance=placed.imbalance,
        window_s=placed.window_s("ep", hiding.window_s),
        least_share=hiding.least_share,
        **_contention(placed, hiding),
        **_load(placed, hiding),
        **taken,
    )
    return time_line(
        name,
        axis="ep",
        category="communication",
        phase=each.phase,
        group=placed.mesh.ep.dim,
        count=1.0,
        made=made,
        bytes_each=cost.wire_bytes * each.share,
        tier=cost.tier,
        algorithm=cost.algorithm,
        source=DISPATCHERS[recipe.moe.moe_dispatcher].source,
    )


_UNDER_LOAD = "loaded_s = exchange_s * (1 + beside * (1 / rate_under_load - 1)); "
"""Kernels that send share memory, L2 and links with what is computed beside them, where something is."""


def _loaded(placed: PlacedJob) -> tuple[str, str]:
    """Return the step that slows an exchange beside compute, and what it makes; none where a recipe knows of none."""
    slowed = placed.recipe.moe.exchange_rate_under_load < 1.0
    return (_UNDER_LOAD, "loaded_s") if slowed else ("", "exchange_s")


def _load(placed: PlacedJob, hiding: _Hiding) -> dict[str, ArrayLike]:
    """Return the numbers behind that step."""
    rate = placed.recipe.moe.exchange_rate_under_load
    return {"rate_under_load": rate, "beside": hiding.share} if rate < 1.0 else {}


_SMS_TAKEN = "contention = min(dispatch_sms / num_sms, 1) * products_s / pass_s; "
"""Matrix products run on the other SMs while an exchange is on its way; what memory bounds does not need all of them."""


def _products_s(times: LayerTimes) -> Array:
    """Seconds of both passes in matrix products and attention, with those that run again. [s]"""
    products = [item for item in times.by_operator.values() if item.operator.kind != "memory"]
    return broadcast_sum(
        [item.backward_s + (1.0 + item.recompute_share) * item.forward_s for item in products]
    )


def _own_sms(placed: PlacedJob) -> float:
    """Count the SMs that the exchange takes from what runs beside it; 0 where they are set aside for good. [-]"""
    recipe = placed.recipe
    if recipe.overlap.reserved_sm_share:
        return 0.0
    return recipe.moe.dispatch_sms or DISPATCHERS[recipe.moe.moe_dispatcher].sms


def _contention(placed: PlacedJob, hiding: _Hiding) -> dict[str, ArrayLike]:
    """Return the numbers behind the share of compute that an exchange takes while it is hidden."""
    if sms := _own_sms(placed):
        return {
            "dispatch_sms": float(sms),
            "num_sms": float(placed.accelerator.num_sms),
            "products_s": hiding.products_s,
            "pass_s": hiding.pass_s,
        }
    return {"contention": placed.contention}


def _node_limit(placed: PlacedJob) -> Array:
    """Nodes that the experts of one token may lie on; 0 is no limit. [-]

    A token keeps to some of the groups that the model deals its experts to. On fewer nodes than groups a
    node holds several of them; on more a group spreads over several nodes.
    """
    model, group = placed.model, placed.mesh.ep
    if placed.recipe.moe.node_limited_routing or not model.expert_groups:
        return np.asarray(float(placed.recipe.moe.node_limited_routing))
    nodes = group.ranks / group.members[0]
    return np.asarray(model.groups_per_token * np.maximum(1.0, nodes / model.expert_groups))


def _expert_tensor_lines(placed: PlacedJob, block: Block) -> list[TimeLine]:
    """Return the collectives inside each expert's TP group."""
    layout, shard = placed.layout, placed.shard
    if not anywhere(layout.etp > 1):
        return []
    size = 2.0 * float(placed.model.hidden_size) * shard.expert_tokens
    sent = [
        Sent(primitive, phase, primitive, size, share)
        for phase, share in placed.recomputation.passes("moe")
        for primitive in ("all_gather", "reduce_scatter")
    ]
    return collective_lines(placed, "ep", f"{block.label}expert_tensor", placed.mesh.etp, sent)


def memory_lines(step: Step) -> list[MemoryLine]:
    """Return what one dispatch and one combine receive, and the buffers of a dispatcher of own kernels."""
    placed = step.placed
    shard = placed.shard
    moe = float(any(kind.is_moe for kind in placed.kinds))
    on = moe * (placed.layout.ep * placed.layout.etp > 1)
    size = 2.0 * shard.expert_tokens * float(placed.model.hidden_size)
    return [
        *_own_buffer_lines(placed),
        *_connection_lines(placed),
        memory_line(
            "buffer.ep.exchange",
            part="buffer",
            axis="ep",
            category="activation",
            formula="max(2 * on * size_bytes - head_bytes, 0)",
            terms={
                "on": np.asarray(on)[..., None],
                "size_bytes": size[..., None],
                "head_bytes": unfilled_by_layers(step),
            },
            source="tokens received by dispatch and sent by combine, bf16; gone again when the logits are alive",
        ),
    ]


# NCCL on eight H100: 32 channels to each peer, 10 MiB for the three protocols and 2 MiB at each end. With them the
# first all-to-all takes 7 * 32 * 14 MiB, which are the 3.28 GB that nvidia-smi shows (NVIDIA/nccl issue 1685). Of
# domains of more than eight nobody has published it.
_CONNECTIONS = {"channels": 32.0, "channel_bytes": 14.0 * 2**20, "measured": 8.0}


def _connection_lines(placed: PlacedJob) -> list[MemoryLine]:
    """Return the buffers of connections to every peer behind a switch, which the library's all-to-all opens."""
    recipe, ranks = placed.recipe, placed.layout.ep[..., None]
    swaps = DISPATCHERS[recipe.moe.moe_dispatcher].dispatch == "all_to_all"
    by_library = swaps and recipe.memory.communicator_bytes > 0
    device = placed.cluster.accelerator
    switched = placed.cluster.tiers[0].topology == "switch" and device.is_gpu and not device.has_own_stack
    if not (by_library and switched and any(kind.is_moe for kind in placed.kinds) and anywhere(ranks > 1)):
        return []
    return [
        memory_line(
            "reserve.ep.connections",
            part="reserve",
            seen="device",
            axis="ep",
            category="state",
            formula="on * (min(members, measured) - 1) * channels * channel_bytes",
            terms={
                "on": np.asarray(ranks > 1, dtype=np.float64),
                "members": placed.mesh.ep.members[0][..., None],
                **_CONNECTIONS,
            },
            source="NVIDIA/nccl issue 1685: memory before and after the first all-to-all on eight H100",
        )
    ]


def _own_buffer_lines(placed: PlacedJob) -> list[MemoryLine]:
    """Return the buffers that a dispatcher of own kernels allocates beside the framework's memory."""
    recipe = placed.recipe
    by = DISPATCHERS[recipe.moe.moe_dispatcher]
    ranks = placed.layout.ep[..., None]
    if by.dispatch or not any(kind.is_moe for kind in placed.kinds) or not anywhere(ranks > 1):
        return []
    on = np.asarray(ranks > 1, dtype=np.float64)
    terms: dict[str, ArrayLike] = {
        "ranks": ranks,
        "sms": float(recipe.moe.dispatch_sms or by.sms),
        "hidden_size": float(placed.model.hidden_size),
        "tokens": placed.shard.tokens_sp[..., None],
        "experts": float(placed.model.num_experts),
        "domain": placed.mesh.ep.members[0][..., None],
    }
    made = {"node": by.node_buffer, "network": by.network_buffer}
    return [
        memory_line(
            f"buffer.ep.dispatcher.{where}",
            part="buffer",
            seen="device",
            axis="ep",
            category="activation",
            made=quantity(buffer, **{key: terms[key] for key in names_of(buffer) if key in terms}).then(
                "buffer_bytes", "on * buffer_bytes", on=on
            ),
            source=by.buffer_source,
        )
        for where, buffer in made.items()
    ]
