"""Expert parallelism: experts are assigned to ranks, and tokens travel to them and back.

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
from numpy.typing import ArrayLike

from costmodel.bill.formula import evaluate, names_of
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
from costmodel.physics.network.expert_dispatch import DISPATCHERS, moe_exchange_time
from costmodel.physics.pipeline.schedules import unpaired_share
from costmodel.step.anatomy.operator_parts import exchanged_bytes
from costmodel.step.communication import Ports, Sent, collective_lines, communication_line, hidden_behind
from costmodel.step.compute import head_bytes_beyond_layers
from costmodel.step.critical_stage import Step
from costmodel.step.placed_job import Block, PlacedJob


def time_lines(placed: PlacedJob, block: Block, others: Sequence[TimeLine]) -> list[TimeLine]:
    """Return dispatch and combine of one micro-batch through one MoE layer, and the collectives inside each expert.

    `others` are the messages of the other axes in the same layer, which take the ports of theirs.

    References
    ----------
    .. [1] D. Lepikhin et al., "GShard," arXiv:2006.16668, section 3.
    .. [2] DeepSeek-AI, "DeepSeek-V3 technical report," arXiv:2412.19437, section 3.2.2.
    """
    layout, shard = placed.layout, placed.shard
    if block.kind is None or not block.kind.is_moe or not any_nonzero((layout.ep > 1) | (layout.etp > 1)):
        return []
    dispatched, gradients = exchanged_bytes(placed.recipe, placed.precision)
    one, again = np.asarray(1.0), placed.recomputation.of_module("moe")
    # What an element takes on the wire, and in which layouts each is made. The gradient of combine is a dispatch of
    # gradients, and the other way round.
    exchanged: tuple[tuple[str, Phase, float, Array], ...] = (
        ("dispatch", "forward", dispatched, one),
        ("combine", "forward", 2.0, one),
        ("dispatch", "recompute", dispatched, again),
        ("combine", "recompute", 2.0, again),
        ("combine", "backward", gradients, one),
        ("dispatch", "backward", 2.0, one),
    )
    of_pair = broadcast_sum([size * share for _, _, size, share in exchanged])
    by = DISPATCHERS[placed.recipe.moe.moe_dispatcher]
    lines = []
    for label, phase, element_bytes, share in exchanged:
        if not any_nonzero(share):
            continue
        name, hiding = (
            f"ep.{block.label}moe.{label}.{phase}",
            _hiding(placed, block, others, element_bytes / of_pair),
        )
        token_bytes = element_bytes * placed.hidden
        if not by.dispatch:
            lines.append(_own_exchange_line(placed, block, name, phase, token_bytes, share, hiding))
            continue
        copies = evaluate(
            by.copies, {"ranks": layout.ep, "top_k": placed.model.top_k, "imbalance": placed.imbalance}
        )
        lines.append(
            communication_line(
                placed,
                name,
                axis="ep",
                phase=phase,
                primitive=by.dispatch if label == "dispatch" else by.combine,
                size_bytes=token_bytes * shard.tokens_sp * copies,
                group=placed.mesh.ep,
                window_s=hiding.window_s,
                overlapping=hiding.overlapping,
                least_share=hiding.least_share,
                share=share,
            )
        )
    if any_nonzero(layout.etp > 1):
        size = 2.0 * placed.hidden * shard.expert_tokens
        inside = [Sent(kind, kind, size, one, again, one) for kind in ("all_gather", "reduce_scatter")]
        lines += collective_lines(placed, "ep", f"{block.label}expert_tensor", placed.mesh.etp, inside)
    return lines


class _Hiding(NamedTuple):
    """What an exchange hides behind: a part of a forward pass and a backward pass of two micro-batches that run paired."""

    window_s: Array
    least_share: Array
    """What cannot hide. [-]"""
    share: Array
    """Of the passes that have another micro-batch beside them. [-]"""
    overlapping: Ports | None


def _hiding(placed: PlacedJob, block: Block, others: Sequence[TimeLine], part: Array) -> _Hiding:
    """Return what an exchange hides behind that has such a part of the bytes of a pair.

    A pair has four exchanges, six where some run again, and each of them any part of the other micro-batch to run
    beside [1]_: they divide the compute of both passes as their bytes. Those of the first and last micro-batch, and of
    the passes that fill and drain the pipeline, have nothing beside them; of the rest, a share cannot hide
    between nodes.

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V3 technical report," arXiv:2412.19437, section 3.2.1, figure 4.
    """
    layout, zero = placed.layout, np.asarray(0.0)
    if not any_nonzero(placed.overlaps_expert_exchange):
        return _Hiding(zero, zero, zero, None)
    alone = unpaired_share(
        layout.schedule, stages=layout.pp, micro_batches=placed.micro_batches, virtual_stages=layout.vp
    )
    paired = np.asarray(placed.overlaps_expert_exchange * (1.0 - alone))
    inside = placed.mesh.ep.members[0] >= placed.mesh.ep.ranks
    hidden = np.where(inside, 1.0, placed.recipe.moe.ep_hidden_between_nodes)
    window_s = np.asarray(paired * part * _pass_s(block))
    return _Hiding(window_s, np.asarray(1.0 - paired * hidden), paired, Ports(others, part * paired))


def _pass_s(block: Block) -> Array:
    """Seconds of both passes, with what runs again. [s]"""
    return np.asarray(block.forward_s + block.backward_s + block.recompute_s)


_UNDER_LOAD = "loaded_s = exchange_s * (1 + paired * (1 / rate_under_load - 1)); "
"""Kernels that send share memory, L2 and links with what is computed beside them, where something is."""
_SMS_TAKEN = "contention = min(dispatch_sms / num_sms, 1) * products_s / pass_s; "
"""Matrix products run on the other SMs while an exchange is on its way; what memory bounds does not need all of them."""


def _own_exchange_line(
    placed: PlacedJob,
    block: Block,
    name: str,
    phase: Phase,
    token_bytes: float,
    share: Array,
    hiding: _Hiding,
) -> TimeLine:
    """Price an exchange by kernels of the dispatcher's own, which send each token once to each node that needs it."""
    recipe, by = placed.recipe, DISPATCHERS[placed.recipe.moe.moe_dispatcher]
    cost = moe_exchange_time(
        placed.shard.tokens_sp,
        token_bytes,
        float(placed.model.top_k),
        placed.mesh.ep,
        placed.cluster.tiers,
        node_limit=_node_limit(placed),
        network_rate=by.network_rate,
    )
    hidden, more = hidden_behind(hiding.overlapping, cost.tier)
    terms: dict[str, ArrayLike] = {**more}
    steps, sent, rate = "", "exchange_s", recipe.moe.exchange_rate_under_load
    # SMs that it takes from what runs beside it; none where they are set aside for good.
    sms = 0.0 if recipe.overlap.reserved_sm_share else recipe.moe.dispatch_sms or by.sms
    if sms:
        products = [item for item in block.by_operator.values() if item.operator.kind != "memory"]
        products_s = [item.backward_s + item.forward_s + item.recompute_s for item in products]
        terms |= {"dispatch_sms": float(sms), "num_sms": float(placed.accelerator.num_sms)}
        terms |= {"products_s": broadcast_sum(products_s), "pass_s": _pass_s(block)}
        steps = _SMS_TAKEN
    else:
        terms["contention"] = placed.contention
    if rate < 1.0:
        steps, sent = steps + _UNDER_LOAD, "loaded_s"
        terms |= {"rate_under_load": rate, "paired": hiding.share}
    made = placed.message_time(cost).then(
        "exchange_s",
        f"{steps}busy_s = share * imbalance * {sent}; {hidden}",
        share=share,
        imbalance=placed.imbalance,
        window_s=placed.window_s("ep", hiding.window_s),
        least_share=hiding.least_share,
        **terms,
    )
    return time_line(
        name,
        axis="ep",
        category="communication",
        phase=phase,
        group=placed.mesh.ep.dim,
        made=made,
        bytes_each=cost.wire_bytes * share,
        tier=cost.tier,
        algorithm=cost.algorithm,
        source=by.source,
    )


def _node_limit(placed: PlacedJob) -> Array:
    """Nodes that the experts of one token may lie on; 0 is no limit. [-]

    A token keeps to some of the groups that the model divides its experts into. On fewer nodes than groups a
    node holds several of them; on more a group spreads over several nodes.
    """
    model, group = placed.model, placed.mesh.ep
    if placed.recipe.moe.node_limited_routing or not model.expert_groups:
        return np.asarray(float(placed.recipe.moe.node_limited_routing))
    nodes = group.ranks / group.members[0]
    return np.asarray(model.groups_per_token * np.maximum(1.0, nodes / model.expert_groups))


# NCCL on eight H100: 32 channels to each peer, 10 MiB for the three protocols and 2 MiB at each end. With them the
# first all-to-all takes 7 * 32 * 14 MiB, which are the 3.28 GB that nvidia-smi shows (NVIDIA/nccl issue 1685). Of
# domains of more than eight nobody has published it.
_CONNECTIONS = {"channels": 32.0, "channel_bytes": 14.0 * 2**20, "measured": 8.0}


def memory_lines(step: Step) -> list[MemoryLine]:
    """Return what one dispatch and one combine receive, and the buffers of a dispatcher or of the library."""
    placed, moe = step.placed, any(kind.is_moe for kind in step.placed.kinds)
    layout, several = placed.layout, placed.layout.ep > 1
    received = memory_line(
        "buffer.ep.exchange",
        part="buffer",
        axis="ep",
        formula="max(2 * on * size_bytes - head_bytes, 0)",
        terms={
            "on": np.asarray(moe * 1.0 * (layout.ep * layout.etp > 1))[..., None],
            "size_bytes": (2.0 * placed.shard.expert_tokens * placed.hidden)[..., None],
            "head_bytes": head_bytes_beyond_layers(step),
        },
        source="tokens received by dispatch and sent by combine, bf16; gone again when the logits are alive",
    )
    return [*(_library_lines(placed) if moe and any_nonzero(several) else []), received]


def _library_lines(placed: PlacedJob) -> list[MemoryLine]:
    """Return what a dispatcher of own kernels allocates beside the framework's memory.

    Or the buffers of connections to every peer behind a switch, which the all-to-all of a library opens.
    """
    recipe, device, domain = placed.recipe, placed.cluster.accelerator, placed.mesh.ep.members[0][..., None]
    by, ranks = DISPATCHERS[recipe.moe.moe_dispatcher], placed.layout.ep[..., None]
    on = np.asarray(1.0 * (ranks > 1))
    if not by.dispatch:
        terms: dict[str, ArrayLike] = {
            "ranks": ranks,
            "sms": float(recipe.moe.dispatch_sms or by.sms),
            "hidden_size": placed.hidden,
            "tokens": placed.shard.tokens_sp[..., None],
            "experts": float(placed.model.num_experts),
            "domain": domain,
        }
        return [
            memory_line(
                f"buffer.ep.dispatcher.{where}",
                part="buffer",
                seen="device",
                axis="ep",
                made=quantity(buffer, **{key: terms[key] for key in names_of(buffer) if key in terms}).then(
                    "buffer_bytes", "on * buffer_bytes", on=on
                ),
                source=by.buffer_source,
            )
            for where, buffer in (("node", by.node_buffer), ("network", by.network_buffer))
        ]
    switched = placed.cluster.tiers[0].topology == "switch" and device.is_gpu and not device.has_own_stack
    if by.dispatch != "all_to_all" or not recipe.memory.communicator_bytes > 0 or not switched:
        return []
    return [
        memory_line(
            "reserve.ep.connections",
            part="reserve",
            seen="device",
            axis="ep",
            formula="on * (min(members, measured) - 1) * channels * channel_bytes",
            terms={"on": on, "members": domain, **_CONNECTIONS},
            source="NVIDIA/nccl issue 1685: memory before and after the first all-to-all on eight H100",
        )
    ]
