"""Data parallelism: every replica computes its share of the batch; gradients are summed.

Sends: an all-reduce of gradients (DDP), or reduce-scatter and all-gather (ZeRO-1/2), once a step;
or, with parameters sharded too (ZeRO-3, FSDP), a gather of every layer in each pass of each
micro-batch and a reduce-scatter of its gradient. Dense parameters reduce over dp x cp, experts
over their own group. Hides: behind the last micro-batch (Megatron) or behind every layer (FSDP).
Stores: parameters, gradients and optimizer states, in `step.states`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from costmodel.bill.lines import (
    Array,
    Phase,
    TimeLine,
    any_nonzero,
    broadcast_sum,
    counted,
    highest_on_stages,
    repeated,
    sum_exposed,
    time_line,
    without_constant_axes,
)
from costmodel.bill.quantity import quantity
from costmodel.describe.switch_table import DTYPE_BYTES
from costmodel.physics.network.mesh import Group, split_group
from costmodel.step import compression
from costmodel.step.anatomy.params import Params, layer_param_blocks
from costmodel.step.communication import Ports, communication_line, exposed_sum
from costmodel.step.compression import Message
from costmodel.step.critical_stage import Step
from costmodel.step.placed_job import Block, DataPart, PlacedJob
from costmodel.step.states import (
    as_gathered,
    gathered_bytes,
    stays_gathered,
)

# Megatron-Core's default bucket: max(40 million, 1 million x dp) gradients; the last one is exposed.
_BUCKET_ELEMENTS = 40e6
_ZERO, _ONE = np.asarray(0.0), np.asarray(1.0)


def time_lines(step: Step) -> list[TimeLine]:
    """Return gradient reduction and parameter gathers.

    What FSDP hides behind is the exposed time of the other axes' lines of each block.

    References
    ----------
    .. [1] S. Rajbhandari et al., "ZeRO," arXiv:1910.02054, sections 5 and 7.
    .. [2] Y. Zhao et al., "PyTorch FSDP," arXiv:2304.11277, section 3.3 (prefetch, resharding).
    """
    placed, parts, lines = step.placed, _parts(step.placed), []
    if any_nonzero(~placed.shards_parameters):
        lines += _replicated_lines(step, parts)
    if any_nonzero(placed.shards_parameters):
        lines += _sharded_lines(step, parts)
    return lines


class Window:
    """A pass of compute that messages hide behind.

    All messages behind one pass share its ports: on its tier each gets the bandwidth that earlier messages, and
    those of other axes in the same pass, leave free. Tiers run in parallel: while the pass waits for one, the
    others continue, so that the pass waits for the slowest tier alone. With `one_stream` messages wait for each
    other on every tier.
    """

    def __init__(
        self, placed: PlacedJob, pass_s: Array, overlapping: Ports | None = None, *, one_stream: bool = False
    ) -> None:
        self._placed = placed
        self._pass_s = pass_s
        self._ports = overlapping or Ports()
        self._one_stream = one_stream
        self._last_s: Array | None = None
        self._waited_s: Array | None = None

    def part_of_pass(self, pass_s: Array) -> Window:
        """Return a window of a part of the pass, with the same ports and the waits so far."""
        other = Window(self._placed, pass_s, one_stream=self._one_stream)
        other._ports, other._waited_s = self._ports, self._waited_s
        return other

    def left_s(self) -> Array:
        """Return the seconds of the pass that no earlier message uses. [s]"""
        # Evaluated lazily: after the last message nobody needs what it leaves.
        if self._last_s is not None:
            self._pass_s, self._last_s = np.maximum(self._pass_s - self._last_s, 0.0), None
        return self._pass_s

    def send(
        self,
        name: str,
        phase: Phase,
        message: Message,
        *,
        share: Array,
        count: Array,
        pieces: Array | None = None,
        least_share: float | Array = 0.0,
    ) -> TimeLine:
        """Make the line of a message, whole or in `pieces`, behind each of `count` passes a step."""
        size, window, ports, waited_s = message.size_bytes, self.left_s(), self._ports, self._waited_s
        if pieces is not None:
            size, window, count = size / pieces, window / pieces, count * pieces
            ports = ports.in_pieces(pieces)
            waited_s = None if waited_s is None else np.asarray(waited_s / pieces)
        line = communication_line(
            self._placed,
            f"{name}.{message.label}",
            axis="dp",
            phase=phase,
            primitive=message.primitive,
            size_bytes=size,
            group=message.group,
            window_s=window,
            overlapping=ports if any_nonzero(window) else None,
            waited_s=waited_s,
            least_share=least_share,
            share=share,
            count=count,
        )
        times = _ONE if pieces is None else pieces
        if self._one_stream:
            self._last_s = np.asarray(times * line.each_s)
        else:
            self._ports.take(line, times)
            exposed_s = times * line.exposed_each_s
            self._waited_s = np.asarray(exposed_s if self._waited_s is None else self._waited_s + exposed_s)
        return line


class _Part(NamedTuple):
    """Dense or expert parameters, and their groups: all ranks, those that shard one copy, those that replicate a shard."""

    name: DataPart
    whole: Group
    shard: Group
    replica: Group


def _parts(placed: PlacedJob) -> list[_Part]:
    """Return the dense parameters, and the experts where there are any.

    A bidirectional schedule keeps each stage on two pipeline ranks, so that twice as many ranks share it.
    """
    copies, pipeline = placed.weight_copies, placed.mesh.pp
    shard_copies = np.where(placed.layout.shard_group == 0, copies, 1.0)
    parts = []
    groups: tuple[tuple[DataPart, Group], ...] = (("dense", placed.mesh.grad), ("expert", placed.mesh.edp))
    for name, group in groups:
        if name == "expert" and not placed.model.num_experts:
            continue
        members = [
            np.asarray(inside * np.where(domain >= pipeline.ranks, copies, 1.0))
            for inside, domain in zip(group.members, pipeline.members, strict=True)
        ]
        whole = group._replace(ranks=np.asarray(group.ranks * copies), members=tuple(members))
        parts.append(_Part(name, whole, *split_group(whole, placed.shard_ranks.of(name) * shard_copies)))
    return parts


def _replicated_lines(step: Step, parts: list[_Part]) -> list[TimeLine]:
    """DDP and ZeRO-1/2: one reduction and, where the optimizer is sharded, one gather a step."""
    placed, stage, overlap = step.placed, step.stage, step.placed.recipe.overlap
    overlaps = overlap.dp_overlap != "none"
    # Owners of whole tensors hand out their parameters after the step, not behind the next forward pass.
    gathers_late = not overlaps or overlap.zero_by_tensor
    backward, forward = (
        Window(placed, pass_s, step.ports(forward=is_forward), one_stream=True)
        for pass_s, is_forward in (
            (stage.backward_window_s + stage.idle_s if overlaps else _ZERO, False),
            (_ZERO if gathers_late else stage.forward_window_s + stage.idle_s, True),
        )
    )
    lines: list[TimeLine] = []
    for part in parts:
        params = placed.weight_copies * highest_on_stages(step.trained.of(part.name))
        if any_nonzero(params):
            lines += _replicated_part_lines(step, part, params, backward, forward)
    return lines


def _replicated_part_lines(
    step: Step, part: _Part, params: Array, backward: Window, forward: Window
) -> list[TimeLine]:
    """Reduce the gradients of `params` parameters and gather the updated parameters.

    Under ZeRO-2 a framework that keeps no full gradient reduces after every micro-batch. Replicas that are
    averaged every `sync_every` steps (local SGD, DiLoCo) send after a step, behind no compute.
    """
    placed, overlap, name = step.placed, step.placed.recipe.overlap, f"dp.{part.name}"
    sharded = np.asarray(placed.shards_optimizer & ~placed.shards_parameters, dtype=np.float64)
    is_rare = placed.policy.sync_every > 1
    # Between two outer averages ranks that shard states still sum their gradients every step.
    summed = sharded * (overlap.zero_all_reduce and is_rare)
    scattered = sharded * (not overlap.zero_all_reduce)
    whole_sum = np.asarray(1.0 * ~placed.shards_optimizer + sharded - summed - scattered)
    every_micro_batch = (
        without_constant_axes((placed.layout.zero_stage == 2) & overlap.reduce_each_micro_batch) > 0
    )
    repeats = np.where(every_micro_batch, placed.micro_batches, 1.0)
    syncs_per_step = np.asarray(1.0 / placed.policy.sync_every)
    outer_window = _outer_sync_window(step) if is_rare else backward
    bucket_elements = overlap.bucket_elements or _BUCKET_ELEMENTS
    bucket = bucket_elements / np.maximum(params, bucket_elements)
    buckets = 1.0 / bucket if overlap.bucket_elements else _ONE
    owners, reduce, gather = buckets, "reduce_scatter", "all_gather"
    if overlap.zero_by_tensor:
        owners, reduce, gather = np.minimum(part.shard.ranks, _tensors(placed)), "reduce", "broadcast"
    grad = params * compression.gradient_bytes(placed)
    outer = params * compression.outer_bytes(placed)
    replica_sum = Message("grad_replica_all_reduce", "all_reduce", part.replica, outer / part.shard.ranks)
    param_gather = Message(f"param_{gather}", gather, part.shard, params * gathered_bytes(placed))
    sums = compression.all_reduce_messages(step, params, part.whole, part.name)
    scatters = compression.scatter_messages(placed, part.shard, grad, reduce)
    shard_sums = compression.all_reduce_messages(step, params, part.shard, part.name)
    has_replicas = (scattered + summed) * (part.replica.ranks > 1)
    # Order matters: earlier messages leave later ones less compute to hide behind.
    fragments = np.asarray(float(placed.policy.sync_fragments)) if is_rare else None
    traffic: list[tuple[Window, Phase, Message, Array, Array, Array | None]] = [
        *(
            (outer_window, "grad_sync", message, whole_sum, syncs_per_step, fragments if is_rare else buckets)
            for message in sums
        ),
        *((backward, "grad_sync", message, scattered, repeats, owners) for message in scatters),
        *((backward, "grad_sync", message, summed, _ONE, buckets) for message in shard_sums),
        (outer_window, "grad_sync", replica_sum, has_replicas, syncs_per_step, fragments),
        (forward, "param_sync", param_gather, sharded, _ONE, owners),
    ]
    least = bucket if overlap.dp_overlap != "none" else _ZERO
    lines = [
        window.send(
            name,
            phase,
            message,
            share=share,
            count=count,
            pieces=pieces,
            least_share=_ZERO if is_rare and window is outer_window else least,
        )
        for window, phase, message, share, count, pieces in traffic
        if any_nonzero(share)
    ]
    on = np.asarray(1.0 * ~placed.shards_parameters)
    held = np.asarray(params / part.shard.ranks)
    lines += _outer_lines(step, name, held, part, (scattered + summed) * on)
    return lines + compression.kernel_lines(
        step,
        name,
        params,
        part.whole.ranks,
        part.name,
        share=on,
        count=np.asarray(syncs_per_step * whole_sum + summed + repeats * scattered),
    )


def _outer_lines(step: Step, name: str, held: Array, part: _Part, share: Array) -> list[TimeLine]:
    """Return the kernels that quantise, sum and dequantise a rank's part of an outer average."""
    policy, ranks = step.placed.policy, part.replica.ranks
    syncs_per_step, method = np.asarray(1.0 / policy.sync_every), policy.outer_compression
    return compression.kernel_lines(
        step, f"{name}.outer", held, ranks, part.name, share=share, count=syncs_per_step, called=method
    )


def _outer_sync_window(step: Step) -> Window:
    """Return the compute that hides the outer average of replicas, over all fragments.

    Streaming DiLoCo (arXiv:2501.18512, section 2): each fragment overlaps with `sync_overlap_steps` steps. Overlapping fragments
    share the link, at most `sync_every` steps between two averages of one fragment.
    """
    policy = step.placed.policy
    works = zip(step.counts, step.block_lines, strict=True)
    step_s = broadcast_sum([counted(count, exposed_sum(lines)) for count, lines in works])
    steps = min(policy.sync_fragments * policy.sync_overlap_steps, policy.sync_every)
    return Window(step.placed, np.asarray(steps * step_s))


def _tensors(placed: PlacedJob) -> Array:
    """Return the number of weight tensors of the layers on a stage. [-]"""
    layers = placed.model.kind_of_layer
    tensors = sum(
        layers.count(number) * len(layer_param_blocks(placed.model, kind))
        for number, kind in enumerate(placed.kinds)
    )
    return np.asarray(float(tensors) / placed.layout.pp)


def _sharded_lines(step: Step, parts: list[_Part]) -> list[TimeLine]:
    """ZeRO-3 / FSDP: messages of the critical stage's blocks, and the excess of a stage that sends more."""
    placed = step.placed
    lines: list[TimeLine] = []
    each_s, once_s, own_s = [], [], []
    for block, others, passes in zip(step.blocks, step.block_lines, step.counts, strict=True):
        each, once = _sharded_block_lines(step, block, parts, others)
        each_s.append(sum_exposed(each))
        once_s.append(sum_exposed(once))
        per_micro_batch = np.asarray(passes / placed.micro_batches)
        once_a_step = np.minimum(per_micro_batch, 1.0)
        lines += [*repeated(each, per_micro_batch), *repeated(once, once_a_step)]
        own_s += [counted(per_micro_batch, each_s[-1]), counted(once_a_step, once_s[-1])]
    if any_nonzero(placed.layout.pp > 1):
        lines.append(
            time_line(
                "dp.stage_with_more_to_send",
                axis="dp",
                category="communication",
                phase="param_sync",
                count=1.0 * (placed.layout.pp > 1),
                formula="max(most_s - own_s, 0)",
                terms={"most_s": step.max_beyond_waits_s(each_s, once_s), "own_s": broadcast_sum(own_s)},
                source="the step is as long as the slowest stage's: step/critical_stage.py",
            )
        )
    return lines


def _sharded_block_lines(
    step: Step, block: Block, parts: list[_Part], others: Sequence[TimeLine]
) -> tuple[list[TimeLine], list[TimeLine]]:
    """Return the lines that every such block of a stage adds to a step, and those that only its first one adds."""
    placed, overlap = step.placed, step.placed.recipe.overlap
    overlaps = overlap.dp_overlap != "none"
    passes = (
        [line for line in others if line.phase == "forward"],
        [line for line in others if line.phase != "forward"],
    )
    forward, backward = (
        Window(placed, exposed_sum(lines), Ports(lines)) if overlaps else Window(placed, _ZERO)
        for lines in passes
    )
    gathered = as_gathered(placed, block)
    sent: list[tuple[_Part, list[TimeLine], list[TimeLine]]] = []
    each: list[TimeLine] = []
    once: list[TimeLine] = []
    for part in parts:
        if not any_nonzero(gathered.of(part.name)):
            continue
        forward_window, backward_window = forward, backward
        if overlaps and part.name == "expert" and not overlap.fsdp_across_layers:
            experts = block.of_part("experts")
            forward_window = forward.part_of_pass(
                exposed_sum(passes[0]) - broadcast_sum([item.forward_s for item in experts])
            )
            backward_window = backward.part_of_pass(
                exposed_sum(passes[1])
                - broadcast_sum([item.backward_s + item.recompute_s for item in experts])
            )
        sent.append(
            (part, *_sharded_part_lines(step, block, part, gathered, forward_window, backward_window))
        )
    # Replicas are summed once a step, after the messages of all micro-batches, which therefore come first.
    for part, lines, first_and_last in sent:
        replica_sums = _replica_lines(step, block, part, gathered, backward)
        each += [*lines, *replica_sums]
        if overlap.dp_overlap == "every-layer" and block.role == "layer":
            once.append(
                _first_and_last_line(
                    _name(block, part), first_and_last[0], [*first_and_last[1:], *replica_sums]
                )
            )
    return each, once


def _name(block: Block, part: _Part) -> str:
    """Return the prefix of the names of a part's lines."""
    return f"dp.{block.label}{block.role}.{part.name}"


def _sharded_part_lines(
    step: Step, block: Block, part: _Part, gathered: Params, forward: Window, backward: Window
) -> tuple[list[TimeLine], list[TimeLine]]:
    """Gather parameters of one block for its passes, reduce the gradients of the trained ones, and copy both to and from buffers.

    Where parameters stay gathered for all micro-batches, this happens once a step. Returns all lines, and the subset
    of forward gather and reductions.
    """
    placed, overlap, name = step.placed, step.placed.recipe.overlap, _name(block, part)
    params, trained = gathered.of(part.name), block.trained.of(part.name)
    on = np.asarray(1.0 * placed.shards_parameters)
    stays = stays_gathered(placed)
    count = np.where(stays, 1.0, np.maximum(placed.micro_batches, 1.0))
    regather = np.where(stays, 0.0, on) if overlap.fsdp_reshard_after_forward else _ZERO
    reduces = on if placed.tuning.whole else on * (trained > 0)
    backward_gather_window = backward if overlap.fsdp_backward_prefetch else Window(placed, _ZERO)
    min_share, size = _first_matrix_share(placed, block, part), np.asarray(params * gathered_bytes(placed))
    gather_group = split_group(part.shard, overlap.hpz_ranks)[0] if overlap.hpz_ranks else part.shard
    gathers = [
        window.send(
            name,
            "param_sync",
            Message(f"param_all_gather.{label}", "all_gather", group, size),
            share=share,
            count=count,
            least_share=min_share,
        )
        for label, group, window, share in (
            ("forward", part.shard, forward, on),
            ("backward", gather_group, backward_gather_window, regather),
        )
    ]
    reduced = np.asarray(trained * compression.gradient_bytes(placed))
    sums = [
        backward.send(name, "grad_sync", message, share=reduces, count=count, least_share=min_share)
        for message in compression.scatter_messages(placed, part.shard, reduced)
    ]
    is_sharded = part.shard.ranks > 1
    lines = [
        *gathers,
        *sums,
        *compression.kernel_lines(
            step, name, trained, part.shard.ranks, part.name, share=reduces, count=count
        ),
        *_buffer_lines(placed, name, params, trained, on * is_sharded, regather * is_sharded, count),
    ]
    return lines, [gathers[0], *sums]


def _first_matrix_share(placed: PlacedJob, block: Block, part: _Part) -> float:
    """Return the share of a layer's dense parameters in its first matrix, whose gather no compute of the layer hides. [-]"""
    if placed.recipe.overlap.fsdp_across_layers or part.name == "expert" or block.role != "layer":
        return 0.0
    dense = [one for one in block.parts if one.sharding != "expert"]
    first = next((one.count for one in dense if one.is_matrix), 0.0)
    return first / sum(one.count for one in dense)


def _replica_lines(
    step: Step, block: Block, part: _Part, gathered: Params, backward: Window
) -> list[TimeLine]:
    """Sum the gradients of one block over replicas of the shards, once a step or more rarely.

    Behind the backward pass of the layers below, on the ports that gathers and scatters leave free; outer averages
    behind a block's part of the steps that they overlap with.
    """
    placed = step.placed
    has_replicas, params = part.replica.ranks > 1, gathered.of(part.name)
    if not any_nonzero(has_replicas):
        return []
    window = backward if placed.recipe.overlap.hsdp_overlap else Window(placed, _ZERO)
    if placed.policy.sync_every > 1:
        blocks = broadcast_sum([np.asarray(count / placed.micro_batches) for count in step.counts])
        window = Window(placed, np.asarray(_outer_sync_window(step).left_s() / blocks))
    elements = np.asarray(params / part.shard.ranks)
    size = np.asarray(elements * compression.outer_bytes(placed))
    on = np.asarray(1.0 * placed.shards_parameters * has_replicas * (placed.tuning.whole | (params > 0)))
    return [
        *_outer_lines(step, _name(block, part), elements, part, on),
        window.send(
            _name(block, part),
            "grad_sync",
            Message("grad_replica_all_reduce", "all_reduce", part.replica, size),
            share=on,
            count=np.asarray(1.0 / placed.policy.sync_every),
        ),
    ]


def _first_and_last_line(name: str, gather: TimeLine, sums: list[TimeLine]) -> TimeLine:
    """Return the hidden time of the first gather and the last reduction, which no compute overlaps."""
    return time_line(
        f"{name}.first_and_last",
        axis="dp",
        category="communication",
        phase="param_sync",
        group=gather.group,
        count=gather.count,
        formula="gather_s - gather_exposed_s + reduce_s - reduce_exposed_s",
        terms={
            "gather_s": gather.each_s,
            "gather_exposed_s": gather.exposed_each_s,
            "reduce_s": sum((line.each_s for line in sums), start=_ZERO),
            "reduce_exposed_s": exposed_sum(sums),
        },
        source="FSDP has no compute to hide the first gather and the last reduction behind",
    )


def _buffer_lines(
    placed: PlacedJob, name: str, params: Array, trained: Array, on: Array, regather: Array, count: Array
) -> list[TimeLine]:
    """Return the copies that a framework makes around the collectives of sharded parameters.

    Both run on the stream of the layers. FSDP2 copies the gathered buffer into every parameter,
    and every gradient into the buffer to be reduced. FSDP1 gathers into one flat parameter, but
    concatenates the gradients of its pieces, casts them and scales them before the reduction.

    References
    ----------
    .. [1] pytorch/pytorch, torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py
       (foreach_all_gather_copy_out, foreach_reduce).
    .. [2] pytorch/pytorch, torch/distributed/fsdp/_runtime_utils.py (_post_backward_hook).
    """
    gathered = gathered_bytes(placed)
    reduced = DTYPE_BYTES[placed.recipe.dtypes.grad_reduce_dtype]
    cast = 0.0 if reduced == gathered else gathered + reduced
    after_gather, before_reduce = {
        "none": (0.0, 0.0),
        "flat": (0.0, 2.0 * gathered + cast + 2.0 * reduced),
        "per-parameter": (2.0 * gathered, gathered + reduced),
    }[placed.recipe.memory.fsdp_buffers]
    lines = []
    copies: tuple[tuple[str, Phase, float, Array, Array], ...] = (
        ("gather_copy", "param_sync", after_gather, on + regather, params),
        ("reduce_copy", "grad_sync", before_reduce, on, trained),
    )
    for label, phase, width, times, copied in copies:
        if not width or not any_nonzero(copied):
            continue
        moved = quantity(
            "kernels * bytes_per_param * params", kernels=times, bytes_per_param=width, params=copied
        )
        lines.append(
            time_line(
                f"{name}.{label}",
                axis="dp",
                category="hbm",
                phase=phase,
                count=count,
                made=placed.memory_bound(moved, kernels=times),
                bytes_each=moved.value,
                source="PyTorch FSDP: copies between parameters and communication buffers",
            )
        )
    return lines
