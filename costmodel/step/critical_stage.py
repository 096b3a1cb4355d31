"""The stage that sets the pace, which blocks it runs how often in a step, and what the others leave to it.

A step is as long as the slowest stage's whole step: m micro-batches, the bubble that the others make, and all
that it does once a step. Stages differ in their layers, the embedding and the head, and so in compute and in
what data parallelism sends for them. With 1F1B a stage s that takes t_s a micro-batch pays (m - 1) t_s, the sum
over all stages, and what it sends; the sum is the same for all. But while it waits for the stages behind it, a slower
one works on other micro-batches, and where a schedule splits the backward pass it also waits by how its passes are
made up. So the bill is that of the stage that takes longest with its bubble, and what another stage pays beyond it
counts less what that stage waits: the difference of both.

Where stages wait alike (GPipe) the bill is that of the stage with the most compute, and another waits (m - 1) (t - t_s).
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
from costmodel.physics.pipeline.stages import Meetings
from costmodel.step.anatomy.params import Params
from costmodel.step.communication import Ports, exposed_sum
from costmodel.step.placed_job import Block, PlacedJob

# Launches around a message, counted in DeepSpeed's runtime/pipe/engine.py: a micro-batch sends twice, receives
# twice and copies once, five for the two messages that the critical path waits for. Megatron, which
# synchronises the device after each exchange, is taken as the same.
_LAUNCHES_PER_MESSAGE = 3.0
_TIE = 1e-9
"""Share of a stage's pass by which stages of the same pace are told apart. [-]"""


class StageTimes(NamedTuple):
    """What one micro-batch takes on the critical stage and on all together, and what others leave."""

    passes: Mapping[str, Array]
    """The times, with the messages that ranks stand still for, as `schedules.bubble_time_s` names them. [s]"""
    sent: schedules.Sent
    """Messages that the critical stage sends to others. [-]"""
    forward_window_s: Array
    """The least over stages of a pass and half of what the stage waits in a step: what may hide on every one once a
    step. It waits once, not for what it gathers at first and again for what it sums in the end. [s]"""
    backward_window_s: Array
    forward_each_s: Array
    """The same for what is sent beside every micro-batch, which share what a stage waits. [s]"""
    backward_each_s: Array
    idle_s: Array
    """What the critical stage waits beside each further micro-batch where neighbours set the pace. [s]"""
    waits_s: Array
    """What each looked-at stage (last dimension) waits for the critical one in a step. [s]"""


@dataclass(frozen=True)
class Step:
    """What the critical path of a step runs: what the lines of a whole step are made from."""

    placed: PlacedJob
    blocks: tuple[Block, ...]
    """Layers of every kind, the embedding, the head, and what is before a predicting layer."""
    block_lines: tuple[tuple[TimeLine, ...], ...]
    """Of each block: its lines for one micro-batch through one such block, count 1."""
    counts: tuple[Array, ...]
    """Of each block: how often the critical stage runs it in a step. [-]"""
    stage: StageTimes

    @cached_property
    def params(self) -> Params:
        """Parameters of a rank on each looked-at stage (last dimension). [-]"""
        return self._held([block.params for block in self.blocks], table=True)

    @cached_property
    def trained(self) -> Params:
        """Those of them that have gradients. [-]"""
        if self.placed.tuning.whole:
            return self.params
        return self._held(
            [block.trained for block in self.blocks], table="embedding" not in self.placed.tuning.frozen
        )

    @cached_property
    def quantised(self) -> Params:
        """Those of them that lie in the dtype of a frozen base. [-]"""
        return self._held([block.quantised for block in self.blocks], table=False)

    def _held(self, each: Sequence[Params], *, table: bool) -> Params:
        """Add up parameters of blocks on each stage, with copies of the `table` of tokens."""
        placed, stages, model = self.placed, self.placed.stages, self.placed.model
        zero = np.zeros_like(stages.has_head)
        total = Params(zero, zero)
        for block, params in zip(self.blocks, each, strict=True):
            total = total + params.for_stages().scaled(block.held)
        if not table:
            return total
        # With several stages others than the first need their own copy of the table: for the logits where it
        # is tied, and for the look-up of multi-token prediction.
        reads = stages.has_head if model.tied_embeddings else zero
        reads = np.maximum(reads, np.minimum(stages.mtp, 1.0))
        rows = np.asarray(float(model.vocab_size * model.hidden_size) / placed.layout.tp)[..., None]
        copies = np.maximum(reads - stages.has_embedding, 0.0)
        return total + Params(rows * copies, np.zeros_like(copies))

    def ports(self, *, forward: bool) -> Ports:
        """Return what one micro-batch sends on the critical stage, in its forward pass or in the rest."""
        sent = Ports()
        for lines, count in zip(self.block_lines, self.counts, strict=True):
            each = np.asarray(count / self.placed.micro_batches)
            for line in lines:
                if (line.phase == "forward") == forward:
                    sent.take(line, each)
        return sent

    def most_on_a_stage(self, each_s: Sequence[Array], once_s: Sequence[Array]) -> Array:
        """Return the most that any stage pays for its blocks beyond what it waits: each of them, and once where any is. [s]"""
        held = [block.passes for block in self.blocks]

        def paid_beyond_waits(stage: int) -> Array:
            here = [at_stage(count, stage) for count in held]
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
    """Find the slowest stage: how many blocks of each sort it runs in a step, and its times."""
    held = [block.passes for block in blocks]
    forward, back, weight = [], [], []
    for lines in block_lines:
        forward.append(exposed_sum(line for line in lines if line.phase == "forward"))
        weight.append(exposed_sum(line for line in lines if line.phase == "backward_weight"))
        rest = exposed_sum(line for line in lines if line.phase not in ("forward", "backward_weight"))
        back.append(np.asarray(weight[-1] + rest))
    forward_s, backward_s, weight_s = (
        broadcast_sum([count * each[..., None] for count, each in zip(held, times, strict=True)])
        for times in (forward, back, weight)
    )

    # Where the looked-at stages are the first or the last of a rank's.
    index, ends = placed.stages.index, placed.layout.pp[..., None] - 1
    first, last = np.asarray((index == 0) * 1.0), np.asarray((index == ends) * 1.0)
    sent = _sent(placed, first, last)
    pause_s = _pause_s(placed)
    pass_s, back_s = forward_s + pause_s * sent.forward, backward_s + pause_s * sent.backward
    shared = _of_pipeline(placed, blocks, (forward, back, weight), pause_s[..., 0])
    shared |= {"most_forward_s": highest_on_stages(pass_s), "most_backward_s": highest_on_stages(back_s)}
    if placed.meetings is not None:
        each_s = [np.asarray(f + b) for f, b in zip(forward, back, strict=True)]
        last_s = np.asarray(pass_s[..., -1] + back_s[..., -1])
        shared |= _by_chunk(placed, placed.meetings, blocks, each_s, last_s, shared)
        # Each rank sends what its first chunk has made, and all but the first its gradients.
        ranks = np.maximum(placed.layout.pp, 2.0)
        shared["first_chunk_s"] = shared["first_chunk_s"] + pause_s[..., 0] * (2.0 * ranks - 3.0) / (
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
    paced_s = _paced_s(placed, of_stage, shared)
    # Of a single micro-batch every stage of a plain schedule waits for all others alike.
    # Where a cycle through neighbours sets the pace it is that of all stages: the busiest of them counts.
    busy_s = pass_s + back_s
    told_apart_s = paced_s + _TIE * busy_s
    at_slowest = _of_largest(where(_with_stages(placed.ranks_wait_unlike), told_apart_s, busy_s))

    counts = [at_slowest(count) for count in held]
    waits_s = np.asarray(at_slowest(paced_s)[..., None] - paced_s)
    beside_each_s = 0.5 * waits_s / placed.micro_batches[..., None]
    passes = {**{name: at_slowest(each) for name, each in of_stage.items()}, **shared}
    stage = StageTimes(
        passes=passes,
        sent=schedules.Sent(*map(at_slowest, sent)),
        forward_window_s=lowest_on_stages(np.asarray(forward_s + 0.5 * waits_s)),
        backward_window_s=lowest_on_stages(np.asarray(backward_s + 0.5 * waits_s)),
        forward_each_s=lowest_on_stages(np.asarray(forward_s + beside_each_s)),
        backward_each_s=lowest_on_stages(np.asarray(backward_s + beside_each_s)),
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


def _of_largest(scores: Array) -> Callable[[Array], Array]:
    """Return what takes of values by stage (last dimension) those of the stage with the largest score, the first of equals."""
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
    """Return the messages that make stages with these ends stand still. [-]"""
    if placed.recipe.overlap.pp_overlap:
        return schedules.Sent(np.zeros(1), np.zeros(1))
    schedule, chunks = without_constant_axes(placed.layout.schedule), without_constant_axes(placed.layout.vp)
    return schedules.sent_by_rank(
        schedule[..., None], virtual_stages=chunks[..., None], first=first, last=last
    )


def _pause_s(placed: PlacedJob) -> Array:
    """Return how long a rank stands still for a message that it sends (an empty last dimension for stages). [s]"""
    if placed.recipe.overlap.pp_overlap or not any_nonzero(placed.layout.pp > 1):
        return np.zeros(1)
    return _message_s(placed)


def _of_pipeline(
    placed: PlacedJob,
    blocks: Sequence[Block],
    each: tuple[Sequence[Array], Sequence[Array], Sequence[Array]],
    pause_s: Array,
) -> dict[str, Array]:
    """Return what one micro-batch takes on all stages together, and on the fullest and the mean one without ends.

    `each` are the forward, backward and weight-gradient seconds of the blocks.
    """
    forward, back, weight = each
    layers = [at for at, block in enumerate(blocks) if block.role == "layer"]
    stages = placed.layout.pp
    none, one = np.zeros(1), np.ones(1)
    inner, first, last = (_sent(placed, *ends) for ends in ((none, none), (one, none), (none, one)))

    def in_all(times: Sequence[Array], some: Iterable[int]) -> Array:
        return broadcast_sum([np.asarray(blocks[at].passes_in_all * times[at]) for at in some])

    def total(
        times: Sequence[Array], inner_sent: Array | float = 0.0, ends_sent: Array | float = 0.0
    ) -> Array:
        spent = in_all(times, range(len(blocks)))
        return np.asarray(spent + pause_s * ((stages - 2.0) * inner_sent + ends_sent))

    def fullest(times: Sequence[Array], sent: Array | float = 0.0) -> Array:
        on_stages = broadcast_sum([blocks[at].passes * times[at][..., None] for at in layers])
        return np.asarray(highest_on_stages(on_stages) + pause_s * sent)

    def mean(times: Sequence[Array], sent: Array | float = 0.0) -> Array:
        return np.asarray(in_all(times, layers) / stages + pause_s * sent)

    ends = schedules.Sent(*(np.asarray(one + other) for one, other in zip(first, last, strict=True)))
    found: dict[str, Array] = {}
    for name, times, between, at_ends in (
        ("forward", forward, inner.forward[..., 0], ends.forward[..., 0]),
        ("backward", back, inner.backward[..., 0], ends.backward[..., 0]),
        ("backward_weight", weight, 0.0, 0.0),
    ):
        # Of two ranks both are ends.
        each_sent = np.where(stages > 2, between, 0.5 * at_ends) if name != "backward_weight" else 0.0
        found[f"sum_{name}_s"] = total(times, between, at_ends)
        found[f"plain_{name}_s"] = fullest(times, each_sent)
        found[f"mean_{name}_s"] = mean(times, each_sent)
    return found | _of_rings(placed, blocks, layers, each, pause_s)


def _of_rings(
    placed: PlacedJob,
    blocks: Sequence[Block],
    of_layers: list[int],
    each: tuple[Sequence[Array], Sequence[Array], Sequence[Array]],
    pause_s: Array,
) -> dict[str, Array]:
    """Return what one micro-batch takes on neighbours of a V, by the names of `schedules.bubble_time_s`.

    A rank sends two messages each way, the last, at which the V turns, one. On its way up through the last chunks of
    the first three ranks and down again a micro-batch is sent twice, and once more ahead of its next way up.
    """
    rings = placed.rings
    if rings is None:
        return {}
    forward, back, weight = each
    inputs = [np.asarray(b - w) for b, w in zip(back, weight, strict=True)]

    def most(held: Sequence[Array], times: Sequence[Array], sent: Array | float = 0.0) -> Array:
        parts = zip(held, of_layers, strict=True)
        layers = broadcast_sum([count * times[at][..., None] for count, at in parts])
        return highest_on_stages(np.asarray(layers + pause_s[..., None] * sent))

    of_pair, of_three = 4.0 - rings.pair_turns, 6.0 - rings.three_turns
    held = dict(zip(of_layers, rings.turn, strict=True))
    turn = [
        np.asarray(held.get(at, block.passes_in_all) * (forward[at] + inputs[at]))
        for at, block in enumerate(blocks)
        if block.role != "embedding"
    ]
    return {
        "pair_forward_s": most(rings.pairs, forward, of_pair),
        "pair_input_s": most(rings.pairs, inputs, of_pair),
        "pair_weight_s": most(rings.pairs, weight),
        "three_forward_s": most(rings.threes, forward, of_three),
        "three_input_s": most(rings.threes, inputs, of_three),
        "vee_turn_s": np.asarray(broadcast_sum(turn) + 5.0 * pause_s),
    }


def _by_chunk(
    placed: PlacedJob,
    meetings: Meetings,
    blocks: Sequence[Block],
    each: Sequence[Array],
    last_s: Array,
    shared: Mapping[str, Array],
) -> dict[str, Array]:
    """Return what one micro-batch takes where ranks run chunk by chunk, by the names of `schedules.bubble_time_s`.

    `each` are the seconds of the blocks, forward and back, `last_s` those of the last rank.
    """
    each = [
        np.asarray(one * block.passes_in_all) if block.role == "head" else one
        for block, one in zip(blocks, each, strict=True)
    ]
    rows = range(len(blocks))
    longer_s = broadcast_sum([meetings.more[at] * each[at][..., None] for at in rows])
    groups = (placed.micro_batches / placed.layout.pp)[..., None]
    waits_s = meetings.share * (1.0 - meetings.of_next / groups) * np.maximum(longer_s, 0.0)
    # A chunk that ranks may be apart for each further hop between them.
    mean_s = shared["mean_forward_s"] + shared["mean_backward_s"]
    apart_s = np.asarray(mean_s / (placed.layout.vp * placed.layout.pp))[..., None]
    most_s: Array = np.asarray(0.0)
    for number in range(int(meetings.rank.max()) + 1):
        here = meetings.rank == number
        further = np.where(here, meetings.hops - 1.0, 0.0).max(axis=-1)
        most_s = np.maximum(most_s, np.where(here, waits_s, 0.0).sum(axis=-1) - further * apart_s[..., 0])
    first_s = broadcast_sum([np.asarray(meetings.first[at] * each[at]) for at in rows])
    return {"last_by_chunk_s": np.asarray(last_s + most_s), "first_chunk_s": first_s}


def _paced_s(placed: PlacedJob, of_stage: Mapping[str, Array], shared: Mapping[str, Array]) -> Array:
    """Return what a step lasts if each looked-at stage (last dimension) sets the pace, less what is the same for all. [s]"""
    micro_batches = placed.micro_batches[..., None]
    stage_s = np.asarray(of_stage["forward_s"] + of_stage["backward_input_s"] + of_stage["backward_weight_s"])
    unlike = placed.ranks_wait_unlike
    # Of a stage's own first micro-batch, all chunks but one pass while it waits for the others.
    paced_s = np.asarray((micro_batches - placed.chunk_shares[0][..., None]) * stage_s)
    if not any_nonzero(unlike):
        return paced_s
    waiting = {
        **placed.schedule_terms(by_stage=True),
        **of_stage,
        **{name: value[..., None] for name, value in shared.items()},
    }
    waits_s = schedules.bubble_time_s(**waiting)
    if placed.recipe.overlap.pp_overlap:
        # What a slower stage hides of the messages is a part of what sets the pace.
        message_s = _message_s(placed)
        sent = schedules.waited_messages(waiting, message_s)
        waits_s = np.asarray(waits_s + sent * message_s)
    return where(_with_stages(unlike), micro_batches * stage_s + waits_s, paced_s)


def _idle_s(placed: PlacedJob, passes: Mapping[str, Array]) -> Array:
    """Return by how much the bubble of the critical stage grows with a micro-batch where neighbours set the pace. [s]

    Its passes may then get shorter and the step not: what hides behind them has as long as before.
    """
    if placed.rings is None:
        return np.asarray(0.0)
    terms, few = {**placed.schedule_terms(), **passes}, placed.micro_batches
    less_s, more_s = (
        schedules.bubble_time_s(**{**terms, "micro_batches": micro_batches})
        for micro_batches in (few, few + 1.0)
    )
    return where(schedules.fact("has_rings", placed.layout.schedule), np.maximum(more_s - less_s, 0.0), 0.0)


def _with_stages(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a mask with a dimension for pipeline stages, but for one value for all layouts."""
    return mask[..., None] if mask.ndim else mask


def message_bytes(placed: PlacedJob) -> Array:
    """One boundary activation as a rank sends it: split over TP (SP, or Megatron's scatter-gather). [B]"""
    shard = placed.shard
    sent = shard.tokens / shard.tp if placed.recipe.overlap.pp_scatter_gather else shard.tokens_sp
    return np.asarray(2.0 * sent * placed.hidden)


def _message_s(placed: PlacedJob) -> Array:
    """Return how long a message between stages takes, where there are several (an empty last dimension for stages). [s]"""
    return np.where(placed.layout.pp > 1, boundary_message(placed)[1].value, 0.0)[..., None]


def boundary_message(placed: PlacedJob) -> tuple[GroupCost, Quantity]:
    """Price one message between neighbouring stages: the send, and what it takes with the launches of the host. [s]"""
    cost = placed.messages.collective("send_recv", message_bytes(placed), placed.mesh.pp)
    host_s = np.asarray(0.0 if placed.recipe.host.cuda_graphs else _LAUNCHES_PER_MESSAGE * placed.launch_s)
    return cost, placed.sent(cost).then("send_s", "send_s + host_s", host_s=host_s)
