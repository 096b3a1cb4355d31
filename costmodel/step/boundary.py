"""What stages send each other at their boundary: one activation forward, its gradient backward."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.bill.quantity import Quantity
from costmodel.physics.network.fabric import GroupCost
from costmodel.step.placed_job import PlacedJob

Array = NDArray[np.float64]

# Launches around a message, counted in DeepSpeed's runtime/pipe/engine.py: a micro-batch sends twice, receives
# twice and copies once, five for the two messages that the critical path waits for. Megatron, which
# synchronises the device after each exchange, is taken as the same.
_LAUNCHES_PER_MESSAGE = 3.0


class Message(NamedTuple):
    """One message between neighbouring stages.

    `made` is what it takes on the wire and on the host. [s]
    """

    cost: GroupCost
    made: Quantity


def message_bytes(placed: PlacedJob) -> Array:
    """One boundary activation as a rank sends it: split over TP (SP, or Megatron's scatter-gather). [B]"""
    shard = placed.shard
    sent = shard.tokens / shard.tp if placed.recipe.overlap.pp_scatter_gather else shard.tokens_sp
    return np.asarray(2.0 * sent * float(placed.model.hidden_size))


def boundary_message(placed: PlacedJob) -> Message:
    """Price one message between neighbouring stages."""
    cost = placed.messages.collective("send_recv", message_bytes(placed), placed.mesh.pp)
    host_s = np.asarray(0.0 if placed.recipe.host.cuda_graphs else _LAUNCHES_PER_MESSAGE * placed.launch_s)
    return Message(cost, placed.sent(cost).then("send_s", "send_s + host_s", host_s=host_s))
