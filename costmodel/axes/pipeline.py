"""Pipeline parallelism: layers are dealt to stages, micro-batches flow through them.

Sends: one activation forward and one gradient backward per micro-batch and chunk, point to
point. Pays: the bubble, which the schedule and the slowest stage decide. Hides: transfers of
interleaved schedules behind the next chunk. Stores: the activations of all micro-batches in
flight (counted in compute, times `in_flight`) and, for schedules that run both ways, a second
copy of the parameters (counted in data).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.axes.situation import Situation, communication_line
from costmodel.bill import LazyTerms, MemoryLine, TimeLine, memory_line, time_line
from costmodel.physics import schedules
from costmodel.physics.collective_formulas import collective_terms, collective_text
from costmodel.physics.nccl import collective_time
from costmodel.physics.schedule_formulas import BUBBLE_FORMULAS
from costmodel.physics.schedule_messages import exposed_p2p_messages

Array = NDArray[np.float64]

# Launches around a message, counted in DeepSpeed's runtime/pipe/engine.py: a micro-batch sends twice, receives
# twice and copies once, five for the two messages that the critical path waits for. Megatron, which
# synchronises the device after each exchange, is taken as the same.
_LAUNCHES_PER_MESSAGE = 3.0


@dataclass(frozen=True)
class StageTimes:
    """Seconds that one micro-batch takes: on the critical stage, and on all stages together."""

    forward_s: Array
    backward_input_s: Array
    backward_weight_s: Array
    sum_forward_s: Array
    sum_backward_s: Array

    @property
    def backward_s(self) -> Array:
        """Both backward passes and recomputation on the critical stage. [s]"""
        return np.asarray(self.backward_input_s + self.backward_weight_s)


def _message_bytes(situation: Situation) -> Array:
    """One boundary activation as a rank sends it: split over TP (SP, or Megatron's scatter-gather). [B]"""
    shard = situation.shard
    sent = shard.tokens / shard.tp if situation.recipe.pp_scatter_gather else shard.tokens_sp
    return np.asarray(2.0 * sent * float(situation.model.hidden_size))


def time_lines(situation: Situation, stage: StageTimes) -> list[TimeLine]:
    """Return the bubble and the stage-to-stage transfers of one step.

    References
    ----------
    .. [1] D. Narayanan et al., SC21, arXiv:2104.04473, section 2.2 (bubble, interleaving) and
       section 4.1 (scatter/gather of the transfers).
    """
    layout = situation.layout
    if not np.any(layout.pp > 1):
        return []
    m = situation.micro_batches
    bubble = schedules.bubble_time_s(
        layout.schedule, stages=layout.pp, micro_batches=m, virtual_stages=layout.vp, forward_s=stage.forward_s,
        backward_input_s=stage.backward_input_s, backward_weight_s=stage.backward_weight_s,
        sum_forward_s=stage.sum_forward_s, sum_backward_s=stage.sum_backward_s,
        pending_weight_fraction=pending_weight_fraction(situation),
    )  # fmt: skip
    messages = schedules.p2p_messages(layout.schedule, stages=layout.pp, virtual_stages=layout.vp) * m
    exposed = exposed_p2p_messages(
        layout.schedule, stages=layout.pp, micro_batches=m, virtual_stages=layout.vp,
        overlapped=situation.recipe.pp_overlap,
    )  # fmt: skip
    size, group, tiers = _message_bytes(situation), situation.mesh.pp, situation.cluster.tiers
    cost = collective_time("send_recv", size, group, tiers)
    sent = collective_text("send_recv")

    def message_terms() -> Mapping[str, ArrayLike]:
        return collective_terms("send_recv", size, group, tiers, cost)

    host_s = 0.0 if situation.recipe.cuda_graphs else _LAUNCHES_PER_MESSAGE * situation.recipe.launch_s
    message_s = np.asarray(cost.latency_s + cost.transfer_s + host_s)
    # The critical path waits for some messages whole; how many is a property of the schedule, and
    # while the pipeline fills and drains they are those of other stages.
    share = np.minimum(exposed / np.maximum(messages, 1.0), 1.0)
    others = np.maximum(exposed - messages, 0.0)
    lines = [
        time_line("pp.bubble", axis="pp", toll="bubble", phase="step", count=1.0, each_s=bubble,
                  formula=_bubble_formula(situation),
                  terms={"bubble_s": bubble, "stages": layout.pp, "micro_batches": m, "virtual_stages": layout.vp,
                         "forward_s": stage.forward_s, "backward_input_s": stage.backward_input_s,
                         "backward_weight_s": stage.backward_weight_s, "sum_forward_s": stage.sum_forward_s,
                         "sum_backward_s": stage.sum_backward_s,
                         "pending_weight_fraction": pending_weight_fraction(situation)},
                  source="closed form of the schedule, checked against its simulation: physics/schedules.py"),
        time_line("pp.send_recv", axis="pp", toll="communication", phase="step", count=messages, each_s=message_s,
                  exposed_each_s=message_s * share, bytes_each=cost.wire_bytes, tier=cost.tier,
                  formula=f"{sent}; (latency_s + transfer_s + host_s) * min(exposed_messages / messages, 1)",
                  terms=LazyTerms(lambda: {**message_terms(), "host_s": host_s, "exposed_messages": exposed,
                                           "messages": np.maximum(messages, 1.0)}),
                  source="messages on the critical path of the schedule: physics/schedule_messages.py"),
        time_line("pp.send_recv_of_others", axis="pp", toll="communication", phase="step", count=others,
                  each_s=message_s, tier=cost.tier, formula=f"{sent}; latency_s + transfer_s + host_s",
                  terms=LazyTerms(lambda: {**message_terms(), "host_s": host_s}),
                  source="messages between other stages that this one waits for: physics/schedule_messages.py"),
    ]  # fmt: skip
    if situation.model.tied_embeddings:
        model = situation.model
        table = 4.0 * float(model.vocab_size * model.hidden_size) / layout.tp
        ends = situation.mesh.pp._replace(ranks=np.minimum(situation.mesh.pp.ranks, 2.0))
        ends = ends._replace(members=tuple(np.minimum(part, 2.0) for part in ends.members))
        lines.append(
            communication_line(situation, "pp.tied_embedding_grad.all_reduce", axis="pp", phase="grad_sync",
                               primitive="all_reduce", size_bytes=table, group=ends)
        )  # fmt: skip
    return lines


def _bubble_formula(situation: Situation) -> str:
    """Return the closed form of the schedule; many schedules at once have no single one."""
    layout = situation.layout
    if layout.schedule.size > 1:
        return "bubble_s"
    formula = BUBBLE_FORMULAS.get(schedules.SCHEDULES[int(layout.schedule.item())], "0")
    steps = formula.split("; ")
    return formula if layout.pp.size == 1 else "; ".join([*steps[:-1], f"where(stages > 1, {steps[-1]}, 0)"])


def pending_weight_fraction(situation: Situation) -> Array:
    """Share of a layer's activations that a postponed weight gradient still needs. [-]

    Zero-bubble schedules free the rest (scores and masks of unfused attention) with the input
    gradient: 32 of 34 + 5 a s / h bytes per token and hidden (Qi et al., arXiv:2401.10241, table 1).
    """
    model = situation.model
    scores = 0.0
    if situation.recipe.attention_kernel in ("unfused", "fused-softmax"):
        scores = 5.0 * model.num_heads / model.hidden_size
    return np.asarray(32.0 / (34.0 + scores * situation.seq_len))


def in_flight(situation: Situation) -> Array:
    """Return the micro-batches whose activations each stage holds at its peak (last dimension: stages)."""
    layout = situation.layout
    return schedules.in_flight(
        layout.schedule[..., None], stages=layout.pp[..., None], micro_batches=situation.micro_batches[..., None],
        virtual_stages=layout.vp[..., None], stage=situation.stages.index,
    )  # fmt: skip


def memory_lines(situation: Situation) -> list[MemoryLine]:
    """Return the send and receive buffers of a stage, and outputs that its engine keeps."""
    on = (situation.layout.pp > 1)[..., None]
    size = _message_bytes(situation)[..., None]
    # Without recomputation the output of the last layer is saved anyway.
    kept = on * (situation.layout.recompute > 1)[..., None] * float(situation.recipe.pp_keeps_outputs)
    output = 2.0 * (situation.shard.tokens_sp * float(situation.model.hidden_size))[..., None]
    held = kept * in_flight(situation)
    return [
        memory_line("buffer.pp.outputs", axis="pp", toll="activation", size_bytes=held * output,
                    formula="micro_batches * size_bytes", terms={"micro_batches": held, "size_bytes": output},
                    source=f"recipe {situation.recipe.name}: pp_keeps_outputs"),
        memory_line("buffer.pp.send_recv", axis="pp", toll="activation", size_bytes=4.0 * on * size,
                    formula="4 * on * size_bytes", terms={"on": on, "size_bytes": size},
                    source="activation and gradient, sent and received")
    ]  # fmt: skip
