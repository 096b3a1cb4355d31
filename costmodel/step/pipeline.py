"""Pipeline parallelism: layers are assigned to stages, micro-batches flow through them.

Sends: one activation forward and one gradient backward per micro-batch and chunk, point to
point. Pays: the bubble, which the schedule and the slowest stage decide. Hides: transfers of
interleaved schedules behind the next chunk. Stores: the activations of all micro-batches in
flight (counted in compute, times `in_flight`) and, for schedules that run both ways, a second
copy of the parameters (counted in data).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from costmodel.bill.lines import Array, MemoryLine, TimeLine, any_nonzero, memory_line, time_line
from costmodel.bill.quantity import quantity
from costmodel.physics.network.mesh import split_group
from costmodel.physics.pipeline import schedules
from costmodel.step.communication import communication_line
from costmodel.step.critical_stage import Step, boundary_message, message_bytes
from costmodel.step.placed_job import PlacedJob


def time_lines(step: Step) -> list[TimeLine]:
    """Return the bubble and the stage-to-stage transfers of one step.

    References
    ----------
    .. [1] D. Narayanan et al., SC21, arXiv:2104.04473, section 2.2 (bubble, interleaving) and
       section 4.1 (scatter/gather of the transfers).
    """
    placed = step.placed
    if not any_nonzero(placed.layout.pp > 1):
        return []
    waiting = {**placed.schedule_terms(), **step.stage.passes}
    made = quantity(schedules.closed_form("bubble", placed.layout.schedule), **waiting)
    hidden_s = np.asarray(0.0)
    if step.order_factor != 1.0:
        made = made.then("form_s", _IN_ORDER, order_factor=np.asarray(step.order_factor))
        hidden_s = np.maximum(made.step("stage_step_s") - made.step("in_order_s"), 0.0)
    bubble = _line(
        "pp.bubble",
        category="bubble",
        made=made,
        source="closed form of the schedule, held to its simulation: costmodel/physics/pipeline/schedules.py; passes last with "
        "the messages that ranks stand still for",
    )
    return [bubble, *_message_lines(step, waiting, hidden_s), *_tied_table_lines(placed)]


_line = partial(time_line, axis="pp", phase="step")
_IN_ORDER = (
    "stage_step_s = micro_batches * (forward_s + backward_input_s + backward_weight_s); "
    "in_order_s = order_factor * (stage_step_s + form_s); max(in_order_s - stage_step_s, 0)"
)
"""The bubble of a pipeline that takes so much longer than its closed form as its tasks do one by one."""


def _message_lines(step: Step, waiting: Mapping[str, Array], hidden_s: Array) -> list[TimeLine]:
    """Return the messages of the critical stage, those of others that it waits for, and what comes too late.

    A rank that stands still while it sends pays for every message of its own, and waits for those of others in the
    bubble. Else the critical path waits for some messages whole; how many is a property of the schedule, and
    while the pipeline fills and drains they are those of other stages. What comes too late is a wait; its bytes stand
    in the lines of messages. `hidden_s` is what they hide besides, found task by task. [s]
    """
    placed, layout, several = step.placed, step.placed.layout, step.placed.layout.pp > 1
    overlapped = placed.recipe.overlap.pp_overlap
    messages = np.where(several, 2.0 * layout.vp, 0.0) * placed.micro_batches
    exposed = np.asarray(sum(step.stage.sent) * placed.micro_batches * several)
    cost, made = boundary_message(placed)
    if overlapped:
        waited = schedules.waited_messages(waiting, made.value)
        exposed = np.maximum(waited - hidden_s / np.maximum(made.value, 1e-12), 0.0)
        hidden_s = hidden_s - (waited - exposed) * made.value
    sent = partial(
        _line,
        category="communication",
        group=placed.mesh.pp.dim,
        tier=cost.tier,
        algorithm=cost.algorithm,
    )
    own_s = made.then(
        "busy_s",
        "busy_s * min(exposed_messages / max(messages, 1), 1)",
        exposed_messages=exposed,
        messages=messages,
    )
    own = sent(
        "pp.send_recv",
        count=messages,
        made=own_s,
        bytes_each=cost.wire_bytes,
        source="messages on the critical path of the schedule: costmodel/physics/pipeline/schedules.py",
    )
    if not overlapped:
        return [own]
    late_s = made.then("message_s", schedules.closed_form("late", layout.schedule), **waiting)
    if np.any(hidden_s > 0.0):
        late_s = late_s.then("late_s", "max(late_s - hidden_s, 0)", hidden_s=hidden_s)
    of_others = sent(
        "pp.send_recv_of_others",
        count=np.maximum(exposed - messages, 0.0),
        made=made,
        source="messages between other stages that this one waits for: costmodel/physics/pipeline/schedules.py",
    )
    late = _line(
        "pp.send_recv.late",
        category="communication",
        made=late_s,
        source="messages longer than what hides them: costmodel/physics/pipeline/schedules.py",
    )
    return [own, of_others, late]


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
    # Without recomputation the output of the last layer is saved anyway.
    kept = on * placed.recomputation.whole_layers[..., None] * float(placed.recipe.memory.pp_keeps_outputs)
    output = 2.0 * (placed.shard.tokens_sp * placed.hidden)[..., None]
    line = partial(memory_line, part="buffer", axis="pp")
    return [
        line(
            "buffer.pp.outputs",
            formula="micro_batches * size_bytes",
            terms={"micro_batches": kept * placed.in_flight, "size_bytes": output},
            source=f"recipe {placed.recipe.name}: pp_keeps_outputs",
        ),
        line(
            "buffer.pp.send_recv",
            formula="4 * on * size_bytes",
            terms={"on": on, "size_bytes": message_bytes(placed)[..., None]},
            source="activation and gradient, sent and received",
        ),
    ]
