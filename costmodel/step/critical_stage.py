"""The critical pipeline stage: how often it runs each block in a step, and its bubble and overlap windows.

A step lasts as long as that of the slowest stage: m micro-batches, its bubble, and what runs once a step. Stages
differ in layers, embedding and head, and so in compute and in data-parallel communication. With 1F1B a stage s with
t_s per micro-batch takes (m - 1) t_s, plus the sum of t over all stages, plus its messages. Bubbles differ: while a
stage waits for those after it, a slower one works on other micro-batches, and with split backward passes the bubble
depends on F, B and W separately. So the bill is that of the stage with the largest sum of compute and bubble. Another
stage's communication counts only as far as it exceeds the time by which that stage waits for the critical one.

Where all stages have the same bubble (GPipe) the critical stage is the one with the most compute, and another one waits
(m - 1) (t - t_s) for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.bill.formula import where
from costmodel.bill.lines import (
    Array,
    TimeLine,
    any_nonzero,
    at_stage,
    broadcast_sum,
    counted,
    highest_on_stages,
    lowest_on_stages,
    without_constant_axes,
)
from costmodel.bill.quantity import Quantity
from costmodel.physics.network.fabric import GroupCost
from costmodel.physics.pipeline import schedules
from costmodel.physics.pipeline.stages import ChunkWaits
from costmodel.step.anatomy.params import Params
from costmodel.step.communication import Ports, exposed_sum
from costmodel.step.placed_job import Block, PlacedJob

# Launches around a message, counted in DeepSpeed's runtime/pipe/engine.py: a micro-batch sends twice, receives
# twice and copies once, five for the two messages that the critical path waits for. Megatron, which
# synchronises the device after each exchange, is taken as the same.
_LAUNCHES_PER_MESSAGE = 3.0
_TIE = 1e-9
"""Weight of a stage's compute by which ties between equally slow stages are broken. [-]"""


class StageTimes(NamedTuple):
    """Times of one micro-batch on the critical stage and on all, and the windows for overlap that stages have. [s]"""

    passes: Mapping[str, Array]
    """Terms of `schedules.bubble_time_s` by name, blocking messages included. [s]"""
    sent: schedules.Sent
    """Messages that the critical stage sends to others. [-]"""
    forward_window_s: Array
    """Window of the forward pass for communication once a step: the least over stages of the pass plus half of the
    stage's wait. The other half is the backward pass's, as a stage waits only once. [s]"""
    backward_window_s: Array
    forward_each_s: Array
    """The same for communication of every micro-batch, over which the wait is divided. [s]"""
    backward_each_s: Array
    idle_s: Array
    """Wait of the critical stage per additional micro-batch, where a wait cycle of its neighbours sets the pace. [s]"""
    waits_s: Array
    """Time that each priced stage (last dimension) waits for the critical one in a step. [s]"""


@dataclass(frozen=True)
class Step:
    """The blocks that the critical stage runs, and its times, from which the lines of a whole step are made."""

    placed: PlacedJob
    blocks: tuple[Block, ...]
    """Layers of every kind, the embedding, the head, and the MTP projection."""
    block_lines: tuple[tuple[TimeLine, ...], ...]
    """Lines of each block for one micro-batch through one such block, count 1."""
    counts: tuple[Array, ...]
    """Runs of each block on the critical stage in a step. [-]"""
    stage: StageTimes
    order_factor: float = 1.0
    """Time of the pipeline with its tasks run one by one, over that of the closed form. [-]"""

    @cached_property
    def params(self) -> Params:
        """Parameters of a rank on each priced stage (last dimension). [-]"""
        return self._summed([block.params for block in self.blocks], with_embedding_copies=True)

    @cached_property
    def trained(self) -> Params:
        """Parameters with gradients of a rank on each priced stage. [-]"""
        if self.placed.tuning.whole:
            return self.params
        return self._summed(
            [block.trained for block in self.blocks],
            with_embedding_copies="embedding" not in self.placed.tuning.frozen,
        )

    @cached_property
    def quantised(self) -> Params:
        """Parameters of a rank on each priced stage that are stored in the dtype of a frozen base. [-]"""
        return self._summed([block.quantised for block in self.blocks], with_embedding_copies=False)

    def _summed(self, each: Sequence[Params], *, with_embedding_copies: bool) -> Params:
        """Add up the parameters of all blocks on each stage; on request with copies of the embedding table."""
        placed, stages, model = self.placed, self.placed.stages, self.placed.model
        zero = np.zeros_like(stages.has_head)
        total = Params(zero, zero)
        for block, params in zip(self.blocks, each, strict=True):
            total = total + params.for_stages().scaled(block.num_on_stage)
        if not with_embedding_copies:
            return total
        # Stages after the first need a copy of the embedding table: for tied logits, and for MTP's look-up.
        needs_table = stages.has_head if model.tied_embeddings else zero
        needs_table = np.maximum(needs_table, np.minimum(stages.mtp, 1.0))
        rows = np.asarray(float(model.vocab_size * model.hidden_size) / placed.layout.tp)[..., None]
        copies = np.maximum(needs_table - stages.has_embedding, 0.0)
        return total + Params(rows * copies, np.zeros_like(copies))

    def ports(self, *, forward: bool) -> Ports:
        """Return the traffic of one micro-batch on the critical stage, in its forward pass or in the rest."""
        sent = Ports()
        for lines, count in zip(self.block_lines, self.counts, strict=True):
            each = np.asarray(count / self.placed.micro_batches)
            for line in lines:
                if (line.phase == "forward") == forward:
                    sent.take(line, each)
        return sent

    def max_beyond_waits_s(self, each_s: Sequence[Array], once_s: Sequence[Array]) -> Array:
        """Return the largest time of any stage beyond its wait: `each_s` per run of a block, `once_s` if it runs at all. [s]"""
        runs = [block.runs_on_stage for block in self.blocks]

        def paid_beyond_waits(stage: int) -> Array:
            here = [at_stage(count, stage) for count in runs]
            paid = [
                counted(count, each) for count, each in zip(here, each_s, strict=True) if any_nonzero(count)
            ]
            paid += [
                np.asarray(np.minimum(count, 1.0) * once)
                for count, once in zip(here, once_s, strict=True)
                if any_nonzero(once)
            ]
            return np.asarray(broadcast_sum(paid) - self.stage.waits_s[..., stage])

        # Stage by stage, so that a search never holds all stages of the large grid at once.
        return reduce(np.maximum, map(paid_beyond_waits, range(self.stage.waits_s.shape[-1])))


def critical_step(
    placed: PlacedJob, blocks: Sequence[Block], block_lines: Sequence[Sequence[TimeLine]]
) -> Step:
    """Find the critical stage: how often it runs each block in a step, and its times."""
    runs = [block.runs_on_stage for block in blocks]
    forward, back, weight = [], [], []
    for lines in block_lines:
        forward.append(exposed_sum(line for line in lines if line.phase == "forward"))
        weight.append(exposed_sum(line for line in lines if line.phase == "backward_weight"))
        rest = exposed_sum(line for line in lines if line.phase not in ("forward", "backward_weight"))
        back.append(np.asarray(weight[-1] + rest))
    forward_s, backward_s, weight_s = (
        broadcast_sum([count * each[..., None] for count, each in zip(runs, times, strict=True)])
        for times in (forward, back, weight)
    )

    # Which of the priced stages are the first or the last of the pipeline.
    index, ends = placed.stages.index, placed.layout.pp[..., None] - 1
    first, last = np.asarray((index == 0) * 1.0), np.asarray((index == ends) * 1.0)
    sent = _sent(placed, first, last)
    # How long a message blocks its sender.
    blocks_sender = not placed.recipe.overlap.pp_overlap and any_nonzero(placed.layout.pp > 1)
    blocking_s = _message_s(placed) if blocks_sender else np.zeros(1)
    pass_s, back_s = forward_s + blocking_s * sent.forward, backward_s + blocking_s * sent.backward
    shared = _pipeline_times(placed, blocks, (forward, back, weight), blocking_s[..., 0])
    shared |= {"most_forward_s": highest_on_stages(pass_s), "most_backward_s": highest_on_stages(back_s)}
    if placed.chunk_waits is not None:
        each_s = [np.asarray(f + b) for f, b in zip(forward, back, strict=True)]
        last_s = np.asarray(pass_s[..., -1] + back_s[..., -1])
        shared |= _interleaved_times(placed, placed.chunk_waits, blocks, each_s, last_s, shared)
        # Each rank sends the output of its first chunk, and all but the first send its input gradient.
        ranks = np.maximum(placed.layout.pp, 2.0)
        shared["first_chunk_s"] = shared["first_chunk_s"] + blocking_s[..., 0] * (2.0 * ranks - 3.0) / (
            ranks - 1.0
        )
    of_stage = {
        "forward_s": pass_s,
        "backward_input_s": np.asarray(back_s - weight_s),
        "backward_weight_s": weight_s,
        "first": first,
        "last": last,
        "behind": placed.stages.behind,
    }
    step_s = _step_s_if_critical(placed, of_stage, shared)
    # With one micro-batch every stage of a plain schedule has the same step time, and where a wait cycle sets the
    # pace all stages have its pace: the tie goes to the busiest stage.
    busy_s = pass_s + back_s
    ranking_s = step_s + _TIE * busy_s
    at_slowest = _at_largest(where(_with_stage_axis(placed.waits_differ_by_rank), ranking_s, busy_s))

    counts = [at_slowest(count) for count in runs]
    waits_s = np.asarray(at_slowest(step_s)[..., None] - step_s)
    half_wait_each_s = 0.5 * waits_s / placed.micro_batches[..., None]
    passes = {**{name: at_slowest(each) for name, each in of_stage.items()}, **shared}
    stage = StageTimes(
        passes=passes,
        sent=schedules.Sent(*map(at_slowest, sent)),
        forward_window_s=lowest_on_stages(np.asarray(forward_s + 0.5 * waits_s)),
        backward_window_s=lowest_on_stages(np.asarray(backward_s + 0.5 * waits_s)),
        forward_each_s=lowest_on_stages(np.asarray(forward_s + half_wait_each_s)),
        backward_each_s=lowest_on_stages(np.asarray(backward_s + half_wait_each_s)),
        idle_s=_idle_s(placed, passes),
        waits_s=waits_s,
    )
    return Step(
        placed,
        tuple(blocks),
        tuple(tuple(lines) for lines in block_lines),
        tuple(np.asarray(count * placed.micro_batches) for count in counts),
        stage,
    )


def _at_largest(scores: Array) -> Callable[[Array], Array]:
    """Return a function that selects, from values by stage (last dimension), the first stage with the largest score."""
    if scores.ndim == 1:
        best = int(np.argmax(scores))
        return lambda values: at_stage(values, best)
    largest = highest_on_stages(scores)
    is_largest = [scores[..., stage] == largest for stage in range(scores.shape[-1] - 1)]

    def of_largest(values: Array) -> Array:
        chosen = values[..., -1]
        if values.shape[-1] > 1:
            for stage, here in reversed(list(enumerate(is_largest))):
                chosen = np.where(here, values[..., stage], chosen)
        return np.asarray(chosen)

    return of_largest


def _sent(placed: PlacedJob, first: Array, last: Array) -> schedules.Sent:
    """Return the blocking messages of stages, given whether each is the first or the last. [-]"""
    if placed.recipe.overlap.pp_overlap:
        return schedules.Sent(np.zeros(1), np.zeros(1))
    schedule, chunks = without_constant_axes(placed.layout.schedule), without_constant_axes(placed.layout.vp)
    return schedules.sent_by_rank(
        schedule[..., None], virtual_stages=chunks[..., None], first=first, last=last
    )


def _pipeline_times(
    placed: PlacedJob,
    blocks: Sequence[Block],
    block_times: tuple[Sequence[Array], Sequence[Array], Sequence[Array]],
    blocking_s: Array,
) -> dict[str, Array]:
    """Return times of one micro-batch on all stages together, and those of layers alone on the fullest and the mean stage.

    `block_times` are the forward, backward and weight-gradient seconds of the blocks.
    """
    forward, back, weight = block_times
    layers = [at for at, block in enumerate(blocks) if block.role == "layer"]
    stages = placed.layout.pp
    none, one = np.zeros(1), np.ones(1)
    inner, first, last = (_sent(placed, *ends) for ends in ((none, none), (one, none), (none, one)))

    def summed(times: Sequence[Array], some: Iterable[int]) -> Array:
        return broadcast_sum([np.asarray(blocks[at].runs_in_model * times[at]) for at in some])

    found: dict[str, Array] = {}
    for name, times, inner_messages, end_messages in (
        ("forward", forward, inner.forward[..., 0], (first.forward + last.forward)[..., 0]),
        ("backward", back, inner.backward[..., 0], (first.backward + last.backward)[..., 0]),
        ("backward_weight", weight, np.asarray(0.0), np.asarray(0.0)),
    ):
        on_stages = broadcast_sum([blocks[at].runs_on_stage * times[at][..., None] for at in layers])
        # With two ranks both are ends.
        sent_s = blocking_s * np.where(stages > 2, inner_messages, 0.5 * end_messages)
        all_sent_s = blocking_s * ((stages - 2.0) * inner_messages + end_messages)
        found[f"sum_{name}_s"] = np.asarray(summed(times, range(len(blocks))) + all_sent_s)
        found[f"plain_{name}_s"] = np.asarray(highest_on_stages(on_stages) + sent_s)
        found[f"mean_{name}_s"] = np.asarray(summed(times, layers) / stages + sent_s)
    return found | _wait_cycle_times(placed, blocks, layers, block_times, blocking_s)


def _wait_cycle_times(
    placed: PlacedJob,
    blocks: Sequence[Block],
    layers: list[int],
    block_times: tuple[Sequence[Array], Sequence[Array], Sequence[Array]],
    blocking_s: Array,
) -> dict[str, Array]:
    """Return times of one micro-batch on the wait cycles of a V-shaped schedule, as terms of `schedules.bubble_time_s`.

    A rank sends two messages each way, the last, at which the V turns, one. Through the last chunks of the first
    three ranks a micro-batch is sent twice forward and twice backward, and once more before the next one.
    """
    wait_cycles = placed.wait_cycles
    if wait_cycles is None:
        return {}
    forward, back, weight = block_times
    inputs = [np.asarray(b - w) for b, w in zip(back, weight, strict=True)]

    def most(counts: Sequence[Array], times: Sequence[Array], sent: Array | float = 0.0) -> Array:
        parts = zip(counts, layers, strict=True)
        layers_s = broadcast_sum([count * times[at][..., None] for count, at in parts])
        return highest_on_stages(np.asarray(layers_s + blocking_s[..., None] * sent))

    pair_messages, three_messages = 4.0 - wait_cycles.pair_turns, 6.0 - wait_cycles.three_turns
    layers_at_turn = dict(zip(layers, wait_cycles.turn, strict=True))
    turn = [
        np.asarray(layers_at_turn.get(at, block.runs_in_model) * (forward[at] + inputs[at]))
        for at, block in enumerate(blocks)
        if block.role not in ("embedding", "tower")
    ]
    return {
        "pair_forward_s": most(wait_cycles.pairs, forward, pair_messages),
        "pair_input_s": most(wait_cycles.pairs, inputs, pair_messages),
        "pair_weight_s": most(wait_cycles.pairs, weight),
        "three_forward_s": most(wait_cycles.threes, forward, three_messages),
        "three_input_s": most(wait_cycles.threes, inputs, three_messages),
        "vee_turn_s": np.asarray(broadcast_sum(turn) + 5.0 * blocking_s),
    }


def _interleaved_times(
    placed: PlacedJob,
    chunk_waits: ChunkWaits,
    blocks: Sequence[Block],
    block_s: Sequence[Array],
    last_s: Array,
    shared: Mapping[str, Array],
) -> dict[str, Array]:
    """Return times of one micro-batch under interleaving, as terms of `schedules.bubble_time_s`.

    `block_s` are the seconds of the blocks, forward and backward, `last_s` those of the last rank.
    """
    block_s = [
        np.asarray(one * block.runs_in_model) if block.role == "head" else one
        for block, one in zip(blocks, block_s, strict=True)
    ]
    # A tower is in no chunk: its time is that of the whole first stage.
    rows = [at for at, block in enumerate(blocks) if block.role != "tower"]
    longer_s = broadcast_sum([chunk_waits.more[at] * block_s[at][..., None] for at in rows])
    groups = (placed.micro_batches / placed.layout.pp)[..., None]
    waits_s = chunk_waits.share * (1.0 - chunk_waits.next_group / groups) * np.maximum(longer_s, 0.0)
    # Every further hop between two ranks allows one more mean chunk of slack.
    mean_s = shared["mean_forward_s"] + shared["mean_backward_s"]
    slack_s = np.asarray(mean_s / (placed.layout.vp * placed.layout.pp))[..., None]
    most_s: Array = np.asarray(0.0)
    for rank in range(int(chunk_waits.rank.max()) + 1):
        here = chunk_waits.rank == rank
        extra_hops = np.where(here, chunk_waits.hops - 1.0, 0.0).max(axis=-1)
        most_s = np.maximum(most_s, np.where(here, waits_s, 0.0).sum(axis=-1) - extra_hops * slack_s[..., 0])
    first_s = broadcast_sum([np.asarray(chunk_waits.first[at] * block_s[at]) for at in rows])
    return {"last_by_chunk_s": np.asarray(last_s + most_s), "first_chunk_s": first_s}


def _step_s_if_critical(
    placed: PlacedJob, of_stage: Mapping[str, Array], shared: Mapping[str, Array]
) -> Array:
    """Return the step time that each priced stage (last dimension) would set as the critical one, up to a common constant. [s]"""
    micro_batches = placed.micro_batches[..., None]
    stage_s = np.asarray(of_stage["forward_s"] + of_stage["backward_input_s"] + of_stage["backward_weight_s"])
    waits_differ = placed.waits_differ_by_rank
    # A stage's first micro-batch overlaps with its wait for the others, except in one chunk.
    paced_s = np.asarray((micro_batches - placed.chunk_shares[0][..., None]) * stage_s)
    if not any_nonzero(waits_differ):
        return paced_s
    terms = {
        **placed.schedule_terms(by_stage=True),
        **of_stage,
        **{name: value[..., None] for name, value in shared.items()},
    }
    waits_s = schedules.bubble_time_s(**terms)
    if placed.recipe.overlap.pp_overlap:
        # Overlapped messages still delay the stages that wait for them.
        message_s = _message_s(placed)
        sent = schedules.waited_messages(terms, message_s)
        waits_s = np.asarray(waits_s + sent * message_s)
    return where(_with_stage_axis(waits_differ), micro_batches * stage_s + waits_s, paced_s)


def _idle_s(placed: PlacedJob, passes: Mapping[str, Array]) -> Array:
    """Return the growth of the critical stage's bubble per micro-batch where a wait cycle limits the step. [s]

    That time is a window for overlap too: shorter passes of the critical stage would not shorten the step.
    """
    if placed.wait_cycles is None:
        return np.asarray(0.0)
    terms, micro_batches = {**placed.schedule_terms(), **passes}, placed.micro_batches
    less_s, more_s = (
        schedules.bubble_time_s(**{**terms, "micro_batches": count})
        for count in (micro_batches, micro_batches + 1.0)
    )
    return where(
        schedules.fact("has_wait_cycles", placed.layout.schedule), np.maximum(more_s - less_s, 0.0), 0.0
    )


def _with_stage_axis(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a mask with a last dimension for pipeline stages; a single value for all layouts stays as it is."""
    return mask[..., None] if mask.ndim else mask


def message_bytes(placed: PlacedJob) -> Array:
    """Bytes of a boundary activation that a rank sends: split over TP by SP or Megatron's scatter-gather. [B]"""
    shard = placed.shard
    sent = shard.tokens / shard.tp if placed.recipe.overlap.pp_scatter_gather else shard.tokens_sp
    return np.asarray(2.0 * sent * placed.hidden)


def _message_s(placed: PlacedJob) -> Array:
    """Return the time of a message between stages, 0 for one stage (an empty last dimension for stages). [s]"""
    return np.where(placed.layout.pp > 1, boundary_message(placed)[1].value, 0.0)[..., None]


def boundary_message(placed: PlacedJob) -> tuple[GroupCost, Quantity]:
    """Price one message between neighbouring stages: the send, and what it takes with the launches of the host. [s]"""
    cost = placed.messages.collective("send_recv", message_bytes(placed), placed.mesh.pp)
    host_s = np.asarray(0.0 if placed.recipe.host.cuda_graphs else _LAUNCHES_PER_MESSAGE * placed.launch_s)
    return cost, placed.message_time(cost).then("send_s", "send_s + host_s", host_s=host_s)
