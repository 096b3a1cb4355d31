"""The host's memory: what each GPU sends there and fetches again, and the link that all of it shares.

Sends: the offloaded share of a micro-batch's activations to the host and back; where the optimizer steps
on the host, its gradients. PCIe or C2C, which the GPUs of a host share as its profile says. Hides: behind
the passes of the same stage. Stores: two layers' worth of activations stay on the GPU while they travel;
all the rest of it lies in the host's memory (`HostLine`). Off unless `offload_activations` or
`offload_optimizer` says otherwise; messages over a network without a way of its own into the GPU's memory
take the same link.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.bill.lines import (
    Axis,
    Bill,
    Category,
    HostWay,
    Line,
    MemoryLine,
    Phase,
    TimeLine,
    anywhere,
    broadcast_sum,
    host_line,
    memory_line,
    sum_exposed,
    time_line,
)
from costmodel.bill.quantity import Quantity, quantity
from costmodel.step.critical_stage import Step
from costmodel.step.placed_job import PlacedJob
from costmodel.step.states import fetched_bytes, stays_gathered

Array = NDArray[np.float64]

_LAYERS_ON_THE_WAY = 2.0
_SOURCE = "activation offloading beside compute: SSDTrain, arXiv:2408.10013; double buffering of layers"


class _Passed(NamedTuple):
    """What a line of the host's link is called, and where it stands on the bill."""

    name: str
    axis: Axis
    category: Category
    phase: Phase


_SAVED = _Passed("offload.activations.forward", "compute", "activation", "forward")
_FETCHED = _Passed("offload.activations.backward", "compute", "activation", "backward")
_PARAMETERS = _Passed("offload.parameters.forward", "dp", "state", "forward")
_PARAMETERS_AGAIN = _Passed("offload.parameters.backward", "dp", "state", "backward")
_GRADIENTS = _Passed("offload.gradients.grad_sync", "optimizer", "state", "grad_sync")


def _travelling(placed: PlacedJob, lines: Sequence[MemoryLine]) -> Quantity:
    """Bytes of activations that leave the GPU on each stage (last dimension), micro-batches in flight together. [B]."""
    return quantity(
        "stays = min(layers_on_the_way / max(layers, 1), 1); share * saved_bytes * (1 - stays)",
        share=placed.policy.offload_activations,
        saved_bytes=broadcast_sum([line.bytes for line in lines if _is_saved(line)]),
        layers=broadcast_sum(list(placed.stages.layers)),
        layers_on_the_way=_LAYERS_ON_THE_WAY,
    )


def _is_saved(line: MemoryLine) -> bool:
    """Say whether a line is of activations that wait for their backward pass, not of what that pass makes."""
    return line.part == "activation" and line.lasts in ("in_flight", "micro_batch")


def lines(step: Step, bill: Bill) -> list[Line]:
    """Return what goes over the host's link beside the passes, and what the GPU no longer holds."""
    made: list[Line] = []
    if step.placed.policy.offload_activations:
        made += _activation_lines(step, bill)
    if step.placed.recipe.host.offload_optimizer:
        made.append(_gradient_line(step, bill))
    if step.placed.recipe.host.offload_parameters and anywhere(step.placed.shards_parameters):
        made += _parameter_lines(step)
    return made


def _sent(
    step: Step, passed: _Passed, size: Array, count: Array, window: Array, host_way: HostWay, source: str
) -> TimeLine:
    """Make the line of something that every GPU of a host sends or fetches beside a pass."""
    return time_line(
        passed.name,
        axis=passed.axis,
        category=passed.category,
        phase=passed.phase,
        count=count,
        made=step.placed.host_link.then(
            "link_bytes_per_s",
            "busy_s = size_bytes / link_bytes_per_s; max(busy_s - window_s, 0)",
            size_bytes=size,
            window_s=window,
        ),
        bytes_each=size,
        host_way=host_way,
        source=source,
    )


def _activation_lines(step: Step, bill: Bill) -> list[Line]:
    """Return both ways for each micro-batch, and where the activations lie meanwhile."""
    placed = step.placed
    away = _travelling(placed, bill.memory_lines)
    size = np.asarray((away.value / np.maximum(placed.in_flight, 1.0)).max(axis=-1))
    each, stage = placed.micro_batches, step.stage
    return [
        _sent(step, _SAVED, size, each, stage.forward_each_s, "out", _SOURCE),
        _sent(step, _FETCHED, size, each, stage.backward_each_s, "in", _SOURCE),
        memory_line(
            "offloaded.activations",
            part="activation",
            axis="compute",
            category="activation",
            made=away.then("away_bytes", "-away_bytes"),
            source=_SOURCE,
        ),
        host_line(
            "host.activations",
            part="activation",
            axis="compute",
            category="activation",
            made=away.then(
                "away_bytes", "gpus_per_host * away_bytes", gpus_per_host=placed.gpus_per_host[..., None]
            ),
            source=_SOURCE,
        ),
    ]


def _is_waited_for_backwards(line: TimeLine) -> bool:
    """Say whether a line is a message of data parallelism in the backward pass."""
    return line.phase == "grad_sync" or (line.phase == "param_sync" and line.name.endswith(".backward"))


def _gradient_line(step: Step, bill: Bill) -> TimeLine:
    """Return the way of the gradients to an optimizer on the host, after every reduction.

    It hides behind the backward pass, and beside what of the reductions, and of the gathers of that pass, nothing
    hides: these take another port. The parameters come back with the step (`optimizer.adam`).
    """
    placed, zero = step.placed, step.placed.layout.zero_stage
    each = (zero >= 3) | ((zero == 2) & placed.recipe.overlap.reduce_each_micro_batch)
    times = np.where(each, placed.micro_batches, 1.0)
    waited_s = sum_exposed([line for line in bill.time_lines if _is_waited_for_backwards(line)])
    size = quantity(
        "bytes_per_param * params",
        bytes_per_param=placed.recipe.dtypes.grad_bytes(),
        params=placed.most_stepped(step.trained),
    ).value
    return _sent(
        step,
        _GRADIENTS,
        size,
        times,
        np.where(each, step.stage.backward_each_s, step.stage.backward_window_s) + waited_s / times,
        "out",
        "ZeRO-Offload, arXiv:2101.06840, section 4.1: gradients travel beside the backward pass",
    )


def _parameter_lines(step: Step) -> list[TimeLine]:
    """Return the way of a rank's share of the parameters from the host, before the gathers of each pass."""
    placed, stage = step.placed, step.stage
    size = fetched_bytes(step).max(axis=-1)
    stays = stays_gathered(placed)
    each = np.where(stays, 1.0, placed.micro_batches)
    again = np.where(stays, 0.0, each) * float(placed.recipe.overlap.fsdp_reshard_after_forward)
    source = "ZeRO-Infinity, arXiv:2104.07857, section 6.2: fetched ahead of the gathers, all links of a host at once"
    return [
        _sent(
            step,
            _PARAMETERS,
            size,
            each,
            np.where(stays, stage.forward_window_s, stage.forward_each_s),
            "in",
            source,
        ),
        _sent(step, _PARAMETERS_AGAIN, size, again, stage.backward_each_s, "in", source),
    ]


def port_lines(step: Step, bill: Bill) -> list[TimeLine]:
    """Return what the host's link is busy for beyond the step so far, each way by itself.

    Out go activations, gradients and messages of networks that only send from the host's memory; activations
    and such messages come in.
    """
    placed = step.placed
    staged = _staged_bytes(placed, bill)
    sent, fetched = (
        [line.seconds for line in bill.time_lines if line.host_way == way] for way in ("out", "in")
    )
    if not sent and not fetched and staged is None:
        return []
    busy = placed.host_link.then(
        "link_bytes_per_s",
        "staged_s = staged_bytes / link_bytes_per_s; link_busy_s = max(sent_s, fetched_s) + staged_s; "
        "max(link_busy_s - known_s, 0)",
        staged_bytes=0.0 if staged is None else staged,
        sent_s=broadcast_sum(sent),
        fetched_s=broadcast_sum(fetched),
        known_s=sum_exposed(bill.time_lines),
    )
    if not anywhere(busy.value):
        return []
    return [
        time_line(
            "overhead.port.host",
            axis="compute",
            category="overhead",
            phase="step",
            count=1.0,
            made=busy,
            source="a link carries one message at a time: it is never busy for longer than the step lasts",
        )
    ]


def _staged_bytes(placed: PlacedJob, bill: Bill) -> Array | None:
    """Bytes a GPU sends by way of its host's memory, never more than its port carries meanwhile. [B]"""
    tiers = placed.cluster.tiers
    found = [
        np.asarray((line.tier == index) * np.minimum(line.bytes, line.seconds * tier.bandwidth_bytes_per_s))
        for index, tier in enumerate(tiers)
        if tier.through_host
        for line in bill.time_lines
        if line.category == "communication" and anywhere(line.tier == index)
    ]
    return broadcast_sum(found) if found else None
