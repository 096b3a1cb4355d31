"""Pipeline parallelism: layers are dealt to stages, micro-batches flow through them.

Sends: one activation forward and one gradient backward per micro-batch and chunk, point to
point. Pays: the bubble, which the schedule and the slowest stage decide. Hides: transfers of
interleaved schedules behind the next chunk. Stores: the activations of all micro-batches in
flight (counted in compute, times `in_flight`) and, for schedules that run both ways, a second
copy of the parameters (counted in data).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodel.bill.lines import MemoryLine, TimeLine, memory_line, time_line
from costmodel.physics.network.mesh import split_group
from costmodel.physics.network.nccl import collective_time
from costmodel.physics.pipeline import schedules
from costmodel.step.critical_stage import Step
from costmodel.step.placed_job import PlacedJob, communication_line

Array = NDArray[np.float64]

# Launches around a message, counted in DeepSpeed's runtime/pipe/engine.py: a micro-batch sends twice, receives
# twice and copies once, five for the two messages that the critical path waits for. Megatron, which
# synchronises the device after each exchange, is taken as the same.
_LAUNCHES_PER_MESSAGE = 3.0


def _message_bytes(placed: PlacedJob) -> Array:
    """One boundary activation as a rank sends it: split over TP (SP, or Megatron's scatter-gather). [B]"""
    shard = placed.shard
    sent = shard.tokens / shard.tp if placed.recipe.overlap.pp_scatter_gather else shard.tokens_sp
    return np.asarray(2.0 * sent * float(placed.model.hidden_size))


def time_lines(step: Step) -> list[TimeLine]:
    """Return the bubble and the stage-to-stage transfers of one step.

    References
    ----------
    .. [1] D. Narayanan et al., SC21, arXiv:2104.04473, section 2.2 (bubble, interleaving) and
       section 4.1 (scatter/gather of the transfers).
    """
    placed, stage, layout = step.placed, step.stage, step.placed.layout
    if not np.any(layout.pp > 1):
        return []
    m = placed.micro_batches
    messages = schedules.p2p_messages(layout.schedule, stages=layout.pp, virtual_stages=layout.vp) * m
    exposed = schedules.exposed_p2p_messages(
        layout.schedule,
        stages=layout.pp,
        micro_batches=m,
        virtual_stages=layout.vp,
        overlapped=placed.recipe.overlap.pp_overlap,
    )
    size, group, tiers = _message_bytes(placed), placed.mesh.pp, placed.cluster.tiers
    cost = collective_time("send_recv", size, group, tiers)
    host_s = 0.0 if placed.recipe.host.cuda_graphs else _LAUNCHES_PER_MESSAGE * placed.recipe.host.launch_s
    # The critical path waits for some messages whole; how many is a property of the schedule, and
    # while the pipeline fills and drains they are those of other stages.
    others = np.maximum(exposed - messages, 0.0)
    lines = [
        time_line(
            "pp.bubble",
            axis="pp",
            toll="bubble",
            phase="step",
            count=1.0,
            formula=schedules.bubble_formula(layout.schedule),
            terms={
                "schedule": layout.schedule,
                "stages": layout.pp,
                "micro_batches": m,
                "virtual_stages": layout.vp,
                "forward_s": stage.forward_s,
                "backward_input_s": stage.backward_input_s,
                "backward_weight_s": stage.backward_weight_s,
                "sum_forward_s": stage.sum_forward_s,
                "sum_backward_s": stage.sum_backward_s,
                "pending_weight_fraction": pending_weight_fraction(placed),
                "synchronized": float(not placed.recipe.overlap.post_validation),
            },
            source="closed form of the schedule, held to its simulation: physics/pipeline/schedules.py",
        ),
        time_line(
            "pp.send_recv",
            axis="pp",
            toll="communication",
            phase="step",
            group=group.dim,
            count=messages,
            made=cost.made.then(
                "send_s",
                "busy_s = send_s + host_s; busy_s * min(exposed_messages / max(messages, 1), 1)",
                host_s=host_s,
                exposed_messages=exposed,
                messages=messages,
            ),
            bytes_each=cost.wire_bytes,
            tier=cost.tier,
            algorithm=cost.algorithm,
            source="messages on the critical path of the schedule: physics/pipeline/schedules.py",
        ),
        time_line(
            "pp.send_recv_of_others",
            axis="pp",
            toll="communication",
            phase="step",
            group=group.dim,
            count=others,
            made=cost.made.then("send_s", "send_s + host_s", host_s=host_s),
            tier=cost.tier,
            algorithm=cost.algorithm,
            source="messages between other stages that this one waits for: physics/pipeline/schedules.py",
        ),
    ]
    if placed.recipe.overlap.pp_overlap:
        # Bytes and busy time of these messages stand in the lines above: here is what comes too late.
        late = schedules.late_formula(layout.schedule, overlapped=True)
        lines.append(
            time_line(
                "pp.send_recv.late",
                axis="pp",
                toll="communication",
                phase="step",
                count=1.0,
                made=cost.made.then(
                    "send_s",
                    f"message_s = send_s + host_s; busy_s = 0; {late}",
                    host_s=host_s,
                    schedule=layout.schedule,
                    stages=layout.pp,
                    micro_batches=m,
                    virtual_stages=layout.vp,
                    forward_s=stage.forward_s,
                    backward_s=stage.backward_input_s + stage.backward_weight_s,
                    sum_forward_s=stage.sum_forward_s,
                    sum_backward_s=stage.sum_backward_s,
                ),
                source="messages longer than what hides them: physics/pipeline/schedules.py",
            )
        )
    if placed.model.tied_embeddings:
        model = placed.model
        table = 4.0 * float(model.vocab_size * model.hidden_size) / layout.tp
        ends, _ = split_group(placed.mesh.pp, 2.0)
        lines.append(
            communication_line(
                placed,
                "pp.tied_embedding_grad.all_reduce",
                axis="pp",
                phase="grad_sync",
                primitive="all_reduce",
                size_bytes=table,
                group=ends,
            )
        )
    return lines


def pending_weight_fraction(placed: PlacedJob) -> Array:
    """Share of a layer's activations that a postponed weight gradient still needs. [-]

    Zero-bubble schedules free the rest (scores and masks of unfused attention) with the input
    gradient: 32 of 34 + 5 a s / h bytes per token and hidden (Qi et al., arXiv:2401.10241, table 1).
    """
    model = placed.model
    scores = 0.0
    if placed.recipe.kernels.attention_kernel in ("unfused", "fused-softmax"):
        scores = 5.0 * model.num_heads / model.hidden_size
    return np.asarray(32.0 / (34.0 + scores * placed.seq_len))


def memory_lines(step: Step) -> list[MemoryLine]:
    """Return the send and receive buffers of a stage, and outputs that its engine keeps."""
    placed = step.placed
    on = (placed.layout.pp > 1)[..., None]
    size = _message_bytes(placed)[..., None]
    # Without recomputation the output of the last layer is saved anyway.
    kept = on * placed.recomputation.whole_layers[..., None] * float(placed.recipe.memory.pp_keeps_outputs)
    output = 2.0 * (placed.shard.tokens_sp * float(placed.model.hidden_size))[..., None]
    held = kept * placed.in_flight
    return [
        memory_line(
            "buffer.pp.outputs",
            part="buffer",
            axis="pp",
            toll="activation",
            formula="micro_batches * size_bytes",
            terms={"micro_batches": held, "size_bytes": output},
            source=f"recipe {placed.recipe.name}: pp_keeps_outputs",
        ),
        memory_line(
            "buffer.pp.send_recv",
            part="buffer",
            axis="pp",
            toll="activation",
            formula="4 * on * size_bytes",
            terms={"on": on, "size_bytes": size},
            source="activation and gradient, sent and received",
        ),
    ]
