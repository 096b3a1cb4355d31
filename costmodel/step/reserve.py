"""Memory that no tensor shows: allocator slack, the CUDA context, the buffers of communicators."""

from __future__ import annotations

import numpy as np

from costmodel.bill.lines import Bill, MemoryLine, broadcast_sum, memory_line
from costmodel.step.critical_stage import Step


def memory_lines(step: Step, bill: Bill) -> list[MemoryLine]:
    """Return what the framework and its libraries hold beside what they are asked for."""
    placed, memory = step.placed, step.placed.recipe.memory
    layout, name = placed.layout, placed.recipe.name
    slack = []
    # States and activations depend on different knobs: one line each keeps a search on small grids.
    for toll in ("state", "activation"):
        allocated = broadcast_sum([line.bytes for line in bill.memory_lines if line.toll == toll])
        slack.append(
            memory_line(
                f"reserve.allocator_slack.{toll}",
                part="reserve",
                seen="reserved",
                axis="compute",
                toll="state",
                formula="slack * allocated_bytes",
                terms={"slack": memory.allocator_slack, "allocated_bytes": allocated},
                source=f"recipe {name}: fragmentation of the caching allocator",
            )
        )
    axes = (layout.tp, layout.cp, layout.pp, placed.mesh.grad.ranks, layout.ep)
    # One more for the norm over all that hold a part of the model.
    several = (*(ranks > 1 for ranks in axes), (layout.tp > 1) & (layout.pp > 1))
    groups = broadcast_sum([np.asarray(some, dtype=np.float64) for some in several])[..., None]
    return [
        *slack,
        memory_line(
            "reserve.cuda_context",
            part="reserve",
            seen="device",
            axis="compute",
            toll="state",
            formula="context_bytes",
            terms={"context_bytes": memory.context_bytes},
            source="CUDA context and libraries: 0.5-2 GB seen by nvidia-smi",
        ),
        memory_line(
            "reserve.communicators",
            part="reserve",
            seen="device",
            axis="dp",
            toll="state",
            formula="communicator_bytes * groups",
            terms={"communicator_bytes": memory.communicator_bytes, "groups": groups},
            source="NCCL buffers of each axis' group, 342-392 MiB measured for 2-8 ranks (aiconfigurator system files)",
        ),
    ]
