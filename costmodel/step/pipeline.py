"""Pipeline parallelism: layers are dealt to stages, micro-batches flow through them.

Sends: one activation forward and one gradient backward per micro-batch and chunk, point to
point. Pays: the bubble, which the schedule and the slowest stage decide. Hides: transfers of
interleaved schedules behind the next chunk. Stores: the activations of all micro-batches in
flight (counted in compute, times `in_flight`) and, for schedules that run both ways, a second
copy of the parameters (counted in data).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.bill.lines import MemoryLine, TimeLine, anywhere, memory_line, time_line
from costmodel.bill.quantity import Quantity
from costmodel.physics.network.mesh import split_group
from costmodel.physics.pipeline import schedules
from costmodel.step.communication import communication_line
from costmodel.step.critical_stage import Step, boundary_message, message_bytes
from costmodel.step.placed_job import PlacedJob

Array = NDArray[np.float64]


def time_lines(step: Step) -> list[TimeLine]:
    """Return the bubble and the stage-to-stage transfers of one step.

    References
    ----------
    .. [1] D. Narayanan et al., SC21, arXiv:2104.04473, section 2.2 (bubble, interleaving) and
       section 4.1 (scatter/gather of the transfers).
    """
    if not anywhere(step.placed.layout.pp > 1):
        return []
    return [_bubble_line(step), *_message_lines(step), *_tied_table_lines(step.placed)]


def _shape(step: Step) -> dict[str, ArrayLike]:
    """Return what the closed forms of every schedule are told of the layout and of the work on its stages."""
    layout = step.placed.layout
    return {
        "schedule": layout.schedule,
        "stages": layout.pp,
        "micro_batches": step.placed.micro_batches,
        "virtual_stages": layout.vp,
        **step.stage.passes,
    }


def _waiting(step: Step) -> dict[str, ArrayLike]:
    """Return what the closed form of a bubble is told."""
    placed = step.placed
    return {
        **_shape(step),
        "pending_weight_fraction": placed.pending_weight_fraction,
        "synchronized": float(placed.synchronized),
        "largest_chunk": placed.chunk_shares[0],
        "smallest_chunk": placed.chunk_shares[1],
    }


def _bubble_line(step: Step) -> TimeLine:
    """Return what the slowest stage waits while the pipeline fills and drains."""
    placed = step.placed
    return time_line(
        "pp.bubble",
        axis="pp",
        category="bubble",
        phase="step",
        count=1.0,
        formula=schedules.closed_form("bubble", placed.layout.schedule),
        terms=_waiting(step),
        source="closed form of the schedule, held to its simulation: costmodel/physics/pipeline/schedules.py; passes last with "
        "the messages that ranks stand still for",
    )


def _message_lines(step: Step) -> list[TimeLine]:
    """Return the messages of the critical stage, those of others that it waits for, and what comes too late.

    A rank that stands still while it sends pays for every message of its own, and waits for those of others in the
    bubble. Else the critical path waits for some messages whole; how many is a property of the schedule, and
    while the pipeline fills and drains they are those of other stages.
    """
    placed, layout = step.placed, step.placed.layout
    overlapped = placed.recipe.overlap.pp_overlap
    messages = np.where(layout.pp > 1, 2.0 * layout.vp, 0.0) * placed.micro_batches
    stops = sum(step.stage.sent) * placed.micro_batches * (layout.pp > 1)
    message = boundary_message(placed)
    waited = schedules.waited_messages(_waiting(step), message.made.value) if overlapped else None
    exposed = np.asarray(stops) if waited is None else waited
    cost = message.cost
    lines = [
        time_line(
            "pp.send_recv",
            axis="pp",
            category="communication",
            phase="step",
            group=placed.mesh.pp.dim,
            count=messages,
            made=message.made.then(
                "busy_s",
                "busy_s * min(exposed_messages / max(messages, 1), 1)",
                exposed_messages=exposed,
                messages=messages,
            ),
            bytes_each=cost.wire_bytes,
            tier=cost.tier,
            algorithm=cost.algorithm,
            source="messages on the critical path of the schedule: costmodel/physics/pipeline/schedules.py",
        ),
    ]
    if not overlapped:
        return lines
    of_others = time_line(
        "pp.send_recv_of_others",
        axis="pp",
        category="communication",
        phase="step",
        group=placed.mesh.pp.dim,
        count=np.maximum(exposed - messages, 0.0),
        made=message.made,
        tier=cost.tier,
        algorithm=cost.algorithm,
        source="messages between other stages that this one waits for: costmodel/physics/pipeline/schedules.py",
    )
    return [*lines, of_others, _late_line(step, message.made)]


def _late_line(step: Step, message: Quantity) -> TimeLine:
    """Return what overlapped messages come too late: a wait; their bytes stand in the lines of messages."""
    return time_line(
        "pp.send_recv.late",
        axis="pp",
        category="communication",
        phase="step",
        count=1.0,
        made=message.then(
            "message_s",
            schedules.closed_form("late", step.placed.layout.schedule),
            **_shape(step),
        ),
        source="messages longer than what hides them: costmodel/physics/pipeline/schedules.py",
    )


def _tied_table_lines(placed: PlacedJob) -> list[TimeLine]:
    """Sum the gradients of a token table that the first and another stage hold: tied, or read by prediction."""
    model = placed.model
    if not model.tied_embeddings and not model.mtp_layers:
        return []
    ends, _ = split_group(placed.mesh.pp, 2.0)
    return [
        communication_line(
            placed,
            "pp.tied_embedding_grad.all_reduce",
            axis="pp",
            phase="grad_sync",
            primitive="all_reduce",
            size_bytes=4.0 * float(model.vocab_size * model.hidden_size) / placed.layout.tp,
            group=ends,
        )
    ]


def memory_lines(step: Step) -> list[MemoryLine]:
    """Return the send and receive buffers of a stage, and outputs that its engine keeps."""
    placed = step.placed
    on = (placed.layout.pp > 1)[..., None]
    size = message_bytes(placed)[..., None]
    # Without recomputation the output of the last layer is saved anyway.
    kept = on * placed.recomputation.whole_layers[..., None] * float(placed.recipe.memory.pp_keeps_outputs)
    output = 2.0 * (placed.shard.tokens_sp * float(placed.model.hidden_size))[..., None]
    held = kept * placed.in_flight
    return [
        memory_line(
            "buffer.pp.outputs",
            part="buffer",
            axis="pp",
            category="activation",
            formula="micro_batches * size_bytes",
            terms={"micro_batches": held, "size_bytes": output},
            source=f"recipe {placed.recipe.name}: pp_keeps_outputs",
        ),
        memory_line(
            "buffer.pp.send_recv",
            part="buffer",
            axis="pp",
            category="activation",
            formula="4 * on * size_bytes",
            terms={"on": on, "size_bytes": size},
            source="activation and gradient, sent and received",
        ),
    ]
