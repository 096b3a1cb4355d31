"""The host's memory: what each GPU sends there and fetches again, and the link that all of it shares.

Sends: the offloaded share of a micro-batch's activations to the host and back; where the optimizer steps
on the host, its gradients. PCIe or C2C, which the GPUs of a host share as its profile says. Hides: behind
the passes of the same stage. Stores: two layers' worth of activations stay on the GPU while they travel;
all the rest of it lies in the host's memory (`HostLine`). Off unless `offload_activations` or
`offload_optimizer` says otherwise; messages over a network without a way of its own into the GPU's memory
take the same link.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from costmodel.bill.lines import (
    Array,
    Axis,
    Bill,
    Category,
    HostLine,
    HostWay,
    Line,
    Phase,
    TimeLine,
    any_nonzero,
    broadcast_sum,
    memory_line,
    sum_exposed,
    time_line,
)
from costmodel.bill.quantity import quantity
from costmodel.step.critical_stage import Step
from costmodel.step.states import fetched_bytes, stays_gathered

_LAYERS_ON_THE_WAY = 2.0


class _Way(NamedTuple):
    """What every GPU of a host sends or fetches beside a pass, so many times a step."""

    name: str
    axis: Axis
    category: Category
    phase: Phase
    host_way: HostWay
    size_bytes: Array
    times: Array
    window_s: Array
    source: str


def lines(step: Step, bill: Bill) -> list[Line]:
    """Return what goes over the host's link beside the passes, and what the GPU no longer holds."""
    placed = step.placed
    ways: list[_Way] = []
    made: list[Line] = []
    if placed.policy.offload_activations:
        ways, made = _activations(step, bill)
    if placed.recipe.host.offload_optimizer:
        ways.append(_gradients(step, bill))
    if placed.recipe.host.offload_parameters and any_nonzero(placed.shards_parameters):
        ways += _parameters(step)
    sent = [
        time_line(
            f"offload.{way.name}.{way.phase}",
            axis=way.axis,
            category=way.category,
            phase=way.phase,
            count=way.times,
            made=placed.host_link.then(
                "link_bytes_per_s",
                "busy_s = size_bytes / link_bytes_per_s; max(busy_s - window_s, 0)",
                size_bytes=way.size_bytes,
                window_s=way.window_s,
            ),
            bytes_each=way.size_bytes,
            host_way=way.host_way,
            source=way.source,
        )
        for way in ways
    ]
    return [*sent, *made]


def _activations(step: Step, bill: Bill) -> tuple[list[_Way], list[Line]]:
    """Return both ways for each micro-batch, and where the activations lie meanwhile.

    Those that wait for their backward pass travel, not what that pass makes, micro-batches in flight together.
    """
    placed, stage = step.placed, step.stage
    waiting = [
        line.bytes
        for line in bill.memory_lines
        if line.part == "activation" and line.lasts in ("in_flight", "micro_batch")
    ]
    away = quantity(
        "stays = min(layers_on_the_way / max(layers, 1), 1); share * saved_bytes * (1 - stays)",
        share=placed.policy.offload_activations,
        saved_bytes=broadcast_sum(waiting),
        layers=broadcast_sum(list(placed.stages.layers)),
        layers_on_the_way=_LAYERS_ON_THE_WAY,
    )
    size = np.asarray((away.value / np.maximum(placed.in_flight, 1.0)).max(axis=-1))
    of_hosts = away.then(
        "away_bytes", "gpus_per_host * away_bytes", gpus_per_host=placed.gpus_per_host[..., None]
    )
    out = _Way(
        "activations",
        "compute",
        "activation",
        "forward",
        "out",
        size,
        placed.micro_batches,
        stage.forward_each_s,
        "activation offloading beside compute: SSDTrain, arXiv:2408.10013; double buffering of layers",
    )
    shared: dict[str, Any] = {
        "part": "activation",
        "axis": "compute",
        "source": out.source,
    }
    return [out, out._replace(phase="backward", host_way="in", window_s=stage.backward_each_s)], [
        memory_line("offloaded.activations", made=away.then("away_bytes", "-away_bytes"), **shared),
        HostLine(*memory_line("host.activations", made=of_hosts, **shared)),
    ]


def _gradients(step: Step, bill: Bill) -> _Way:
    """Return the way of the gradients to an optimizer on the host, after every reduction.

    It hides behind the backward pass, and beside what of the reductions, and of the gathers of that pass, nothing
    hides: these take another port. The parameters come back with the step (`optimizer.adam`).
    """
    placed, stage, zero = step.placed, step.stage, step.placed.layout.zero_stage
    each = (zero >= 3) | ((zero == 2) & placed.recipe.overlap.reduce_each_micro_batch)
    times = np.where(each, placed.micro_batches, 1.0)
    waited = [
        line
        for line in bill.time_lines
        if line.phase == "grad_sync" or (line.phase == "param_sync" and line.name.endswith(".backward"))
    ]
    window_s = np.where(each, stage.backward_each_s, stage.backward_window_s)
    return _Way(
        "gradients",
        "optimizer",
        "state",
        "grad_sync",
        "out",
        np.asarray(placed.recipe.dtypes.grad_bytes() * placed.max_optimizer_params(step.trained)),
        times,
        np.asarray(window_s + sum_exposed(waited) / times),
        "ZeRO-Offload, arXiv:2101.06840, section 4.1: gradients travel beside the backward pass",
    )


def _parameters(step: Step) -> list[_Way]:
    """Return the way of a rank's share of the parameters from the host, before the gathers of each pass."""
    placed, stage, stays = step.placed, step.stage, stays_gathered(step.placed)
    each = np.where(stays, 1.0, placed.micro_batches)
    again = np.where(stays, 0.0, each) * float(placed.recipe.overlap.fsdp_reshard_after_forward)
    fetched = _Way(
        "parameters",
        "dp",
        "state",
        "forward",
        "in",
        fetched_bytes(step).max(axis=-1),
        each,
        np.where(stays, stage.forward_window_s, stage.forward_each_s),
        "ZeRO-Infinity, arXiv:2104.07857, section 6.2: fetched ahead of the gathers, all links of a host at once",
    )
    return [fetched, fetched._replace(phase="backward", times=again, window_s=stage.backward_each_s)]


def port_lines(step: Step, bill: Bill) -> list[TimeLine]:
    """Return what the host's link is busy for beyond the step so far, each way by itself.

    Out go activations, gradients and messages of networks that only send from the host's memory; activations
    and such messages come in.
    """
    placed = step.placed
    # What goes by way of the host's memory, never more than its port carries meanwhile.
    staged = [
        np.asarray((line.tier == index) * np.minimum(line.bytes, line.seconds * tier.bandwidth_bytes_per_s))
        for index, tier in enumerate(placed.cluster.tiers)
        if tier.through_host
        for line in bill.time_lines
        if line.category == "communication" and any_nonzero(line.tier == index)
    ]
    sent, fetched = (
        [line.seconds for line in bill.time_lines if line.host_way == way] for way in ("out", "in")
    )
    if not (sent or fetched or staged):
        return []
    busy = placed.host_link.then(
        "link_bytes_per_s",
        "staged_s = staged_bytes / link_bytes_per_s; link_busy_s = max(sent_s, fetched_s) + staged_s; "
        "max(link_busy_s - known_s, 0)",
        staged_bytes=broadcast_sum(staged),
        sent_s=broadcast_sum(sent),
        fetched_s=broadcast_sum(fetched),
        known_s=sum_exposed(bill.time_lines),
    )
    if not any_nonzero(busy.value):
        return []
    return [
        time_line(
            "overhead.port.host",
            axis="compute",
            category="overhead",
            phase="step",
            made=busy,
            source="a link carries one message at a time: it is never busy for longer than the step lasts",
        )
    ]
