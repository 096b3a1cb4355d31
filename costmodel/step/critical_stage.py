"""The stage that sets the pace: which blocks it runs how often in a step, and how long its passes take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.bill.lines import TimeLine, broadcast_sum
from costmodel.step.placed_job import Block, PlacedJob, exposed_sum
from costmodel.step.ports import Ports

Array = NDArray[np.float64]


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


@dataclass(frozen=True)
class Step:
    """What the critical path of a step runs: what the lines of a whole step are made from.

    Attributes
    ----------
    placed : PlacedJob
        The job.
    blocks : tuple of Block
        Layers of every kind, the embedding, the head.
    block_lines : tuple of tuple of TimeLine
        Of each block: its lines for one micro-batch through one such block, count 1.
    counts : tuple of Array
        Of each block: how often the critical stage runs it in a step. [-]
    stage : StageTimes
        What one micro-batch takes there.
    """

    placed: PlacedJob
    blocks: tuple[Block, ...]
    block_lines: tuple[tuple[TimeLine, ...], ...]
    counts: tuple[Array, ...]
    stage: StageTimes

    def ports(self, *, forward: bool) -> Ports:
        """Return what one micro-batch sends on the critical stage, in its forward pass or in the rest."""
        sent = Ports()
        for lines, count in zip(self.block_lines, self.counts, strict=True):
            each = np.asarray(count / self.placed.micro_batches)
            for line in lines:
                if (line.phase == "forward") == forward:
                    sent.take(line, each)
        return sent


def passes_on_stages(placed: PlacedJob, block: Block) -> Array:
    """Count the passes through a block that a micro-batch makes on every stage. [-]

    Each layer of multi-token prediction runs the head once more.
    """
    return np.asarray(block.held * (1.0 + placed.model.mtp_layers) if block.role == "head" else block.held)


def _passes_in_all(placed: PlacedJob, block: Block) -> float:
    """Count the passes through a block that a micro-batch makes on all stages together. [-]"""
    model = placed.model
    if block.role != "layer":
        return 1.0 + model.mtp_layers if block.role == "head" else 1.0
    kinds = [placed.kinds[kind] for kind in model.kind_of_layer]
    kinds += [kinds[-1]] * model.mtp_layers
    return float(sum(kind == block.kind for kind in kinds))


def critical_step(
    placed: PlacedJob, blocks: Sequence[Block], block_lines: Sequence[Sequence[TimeLine]]
) -> Step:
    """Find the slowest stage: how many blocks of each sort it runs in a step, and its times."""
    held = [passes_on_stages(placed, block) for block in blocks]
    forward, weight, rest = [], [], []
    for lines in block_lines:
        forward.append(exposed_sum(line for line in lines if line.phase == "forward"))
        weight.append(exposed_sum(line for line in lines if line.phase == "backward_weight"))
        others = (line for line in lines if line.phase not in ("forward", "backward_weight"))
        rest.append(exposed_sum(others))
    whole = [np.asarray(f + w + r) for f, w, r in zip(forward, weight, rest, strict=True)]
    stage_s = broadcast_sum([count * each[..., None] for count, each in zip(held, whole, strict=True)])
    slowest = np.argmax(stage_s, axis=-1)[..., None]

    def at_slowest(values: Array) -> Array:
        spread = np.broadcast_to(values, np.broadcast_shapes(values.shape, stage_s.shape))
        return np.asarray(np.take_along_axis(spread, slowest, axis=-1)[..., 0])

    def total(counts: Sequence[Array | float], each: Sequence[Array]) -> Array:
        return broadcast_sum([np.asarray(c * e) for c, e in zip(counts, each, strict=True)])

    counts = [at_slowest(count) for count in held]
    in_all = [_passes_in_all(placed, block) for block in blocks]
    stage = StageTimes(
        forward_s=total(counts, forward),
        backward_input_s=total(counts, rest),
        backward_weight_s=total(counts, weight),
        sum_forward_s=total(in_all, forward),
        sum_backward_s=total(in_all, [np.asarray(r + w) for r, w in zip(rest, weight, strict=True)]),
    )
    return Step(
        placed,
        tuple(blocks),
        tuple(tuple(lines) for lines in block_lines),
        tuple(np.asarray(count * placed.micro_batches) for count in counts),
        stage,
    )
