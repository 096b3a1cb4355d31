"""Activations in the host's memory: each stage sends what it saves, and fetches it for the backward pass.

Sends: the offloaded share of a micro-batch's activations to the host and back, over PCIe or C2C.
Hides: behind the forward and the backward pass of the same stage. Stores: two layers' worth stay
on the GPU while they travel. Off unless the job's `offload_activations` says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from costmodel.bill.lines import (
    Bill,
    Line,
    MemoryLine,
    Phase,
    broadcast_sum,
    memory_line,
    time_line,
)
from costmodel.bill.quantity import Quantity, quantity
from costmodel.step.critical_stage import Step
from costmodel.step.placed_job import PlacedJob

Array = NDArray[np.float64]

_LAYERS_ON_THE_WAY = 2.0
_SOURCE = "activation offloading beside compute: SSDTrain, arXiv:2408.10013; double buffering of layers"


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
    """Return both ways over the host's link for each micro-batch, and what the GPU no longer holds."""
    placed = step.placed
    if not placed.policy.offload_activations:
        return []
    away = _travelling(placed, bill.memory_lines)
    size = np.asarray((away.value / np.maximum(placed.in_flight, 1.0)).max(axis=-1))
    windows: tuple[tuple[Phase, Array], ...] = (
        ("forward", step.stage.forward_window_s),
        ("backward", step.stage.backward_window_s),
    )
    made: list[Line] = [
        time_line(
            f"offload.activations.{phase}",
            axis="compute",
            toll="activation",
            phase=phase,
            count=placed.micro_batches,
            formula="busy_s = size_bytes / link_bytes_per_s; max(busy_s - window_s, 0)",
            terms={
                "size_bytes": size,
                "link_bytes_per_s": placed.accelerator.host_link_bytes_per_s,
                "window_s": window,
            },
            bytes_each=size,
            source=_SOURCE,
        )
        for phase, window in windows
    ]
    held = memory_line(
        "offloaded.activations",
        part="activation",
        axis="compute",
        toll="activation",
        made=away.then("away_bytes", "-away_bytes"),
        source=_SOURCE,
    )
    return [*made, held]
