"""Memory that no tensor shows: allocator slack, the CUDA context, the buffers of communicators."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

import numpy as np
from numpy.typing import ArrayLike

from costmodel.bill.lines import (
    Array,
    Bill,
    Category,
    MemoryLine,
    MemoryPart,
    any_nonzero,
    broadcast_sum,
    memory_line,
    without_constant_axes,
)
from costmodel.physics.network.fabric import NCCL_ALGORITHMS
from costmodel.step.critical_stage import Step
from costmodel.step.placed_job import PlacedJob

_BY_SWITCH = [float(NCCL_ALGORITHMS.index(name)) for name in ("nvls", "nvls-tree", "nvls-sharp")]


_line = partial(memory_line, part="reserve")


def memory_lines(step: Step, bill: Bill) -> list[MemoryLine]:
    """Return what the framework and its libraries hold beside what they are asked for."""
    placed, memory, layout = step.placed, step.placed.recipe.memory, step.placed.layout
    axes = (layout.tp, layout.cp, layout.pp, placed.mesh.grad.ranks, layout.ep)
    # One more for the norm over all that hold a part of the model.
    several = (
        *(ranks > 1 for ranks in axes),
        (layout.tp > 1) & (layout.pp > 1),
        # Context groups that swap heads inside and rotate keys across.
        (placed.shard.swaps > 1) & (placed.shard.swaps < layout.cp),
    )
    groups = broadcast_sum([np.asarray(some, dtype=np.float64) for some in several])[..., None]
    lines = [
        *_slack_lines(placed, bill),
        _line(
            "reserve.cuda_context",
            seen="device",
            axis="compute",
            formula="context_bytes",
            terms={"context_bytes": memory.context_bytes},
            source="CUDA context and libraries: 0.5-2 GB seen by nvidia-smi",
        ),
        _line(
            "reserve.communicators",
            seen="device",
            axis="dp",
            formula="communicator_bytes * groups",
            terms={"communicator_bytes": memory.communicator_bytes, "groups": groups},
            source="NCCL buffers of each axis' group, 342-392 MiB measured for 2-8 ranks (aiconfigurator system files): "
            "37 to 43 connections of 4 MiB + 512 KiB + 4.7 MiB for the protocols Simple, LL and LL128",
        ),
        *_user_buffer_lines(placed),
        *_multicast_lines(placed, bill),
    ]
    return [*lines, *_left_empty_lines(placed, [*bill.memory_lines, *lines])]


def _slack_lines(placed: PlacedJob, bill: Bill) -> list[MemoryLine]:
    """Return what a caching allocator reserves beyond tensors, and what a sample of factors says they are off by.

    States and activations depend on different knobs: one line each keeps a search on small grids.
    """
    slack, beyond, lines = placed.recipe.memory.allocator_slack, placed.factors.of("slack"), []
    kinds: tuple[tuple[Category, str, MemoryPart], ...] = (
        ("state", "states", "parameters"),
        ("activation", "activations", "activation"),
    )
    for category, name, part in kinds:
        allocated = broadcast_sum([line.bytes for line in bill.memory_lines if line.category == category])
        if (factor := placed.factors.of(name)) is not None:
            wrong = memory_line(
                f"reserve.misjudged.{category}",
                part=part,
                axis="compute",
                category=category,
                formula="(factor - 1) * allocated_bytes",
                terms={"factor": factor[..., None], "allocated_bytes": allocated},
                source="a sample of uncertain factors: describe/factors.py",
            )
            lines.append(wrong)
            allocated = np.asarray(allocated + wrong.bytes)
        formula, terms = "slack * allocated_bytes", {"slack": slack, "allocated_bytes": allocated}
        if beyond is not None:
            formula = "(factor * (1 + slack) - 1) * allocated_bytes"
            terms["factor"] = beyond[..., None]
        lines.append(
            _line(
                f"reserve.allocator_slack.{category}",
                seen="reserved",
                axis="compute",
                formula=formula,
                terms=terms,
                source=f"recipe {placed.recipe.name}: fragmentation of the caching allocator",
            )
        )
    return lines


def _left_empty_lines(placed: PlacedJob, lines: Sequence[MemoryLine]) -> list[MemoryLine]:
    """Return where parameters lay before they were copied into flat buffers, as far as nothing has come to lie there.

    An allocator gives a tensor a chunk of its own, and one that is free to what fits: gradients and activations. It gives
    chunks back before memory runs out.
    """
    on = placed.layout.zero_stage == 2
    if not placed.recipe.memory.flattens_parameters or not any_nonzero(on):
        return []
    fits = [line.bytes for line in lines if line.category == "activation" or line.part == "gradients"]
    return [
        _line(
            "reserve.left_by_flattening",
            seen="reserved",
            axis="dp",
            formula="left = max(left_bytes - fitting_bytes, 0); "
            "on * min(left, max(memory_bytes - held_bytes, 0))",
            terms={
                "on": 1.0 * on[..., None],
                "left_bytes": broadcast_sum([line.bytes for line in lines if line.part == "parameters"]),
                "fitting_bytes": broadcast_sum(fits),
                "memory_bytes": placed.cluster.accelerator.memory_bytes,
                "held_bytes": broadcast_sum([line.bytes for line in lines]),
            },
            source="PaddlePaddle/Paddle group_sharded_optimizer_stage2.py _integration_params; "
            "auto_growth_best_fit_allocator.cc: FLAGS_free_idle_chunk is false, idle chunks go when an allocation fails",
        )
    ]


# Products of a layer that gather through a user buffer, in what they compute in, and that scatter, in bf16.
_GATHERING, _SCATTERING = 6.0, 4.0


def _user_buffer_lines(placed: PlacedJob) -> list[MemoryLine]:
    """Return the buffers that tensor-parallel ranks write into each other's of, where products overlap their exchange.

    A runtime whose messages go from where they lie (XLA on TPU: no buffers of communicators) has none.
    """
    layout, recipe = placed.layout, placed.recipe
    registers = recipe.memory.communicator_bytes > 0
    if recipe.overlap.tp_overlap != "pipelined" or not registers or not any_nonzero(layout.tp > 1):
        return []
    gathering, scattering = np.asarray(_GATHERING), np.asarray(_SCATTERING)
    source = "NVIDIA/TransformerEngine module/base.py initialize_ub: one for each of ten products"
    if recipe.kernels.compiled:
        gathering, scattering = np.asarray(0.0), np.asarray(2.0 / layout.tp)
        source = (
            "pytorch torch/distributed/_symmetric_memory: two parts of an output in the workspace of a group"
        )
    return [
        _line(
            "reserve.tp.user_buffers",
            seen="device",
            axis="tp",
            formula="on * (gathering * input_bytes + scattering * 2) * tokens * hidden",
            terms={
                "on": ((layout.tp > 1) * (layout.sequence_parallel > 0))[..., None],
                "gathering": gathering[..., None],
                "scattering": scattering[..., None],
                # Bytes are the least that these buffers hold.
                "input_bytes": min(max(placed.precision.input_bytes, 1.0), 2.0),
                "tokens": placed.shard.tokens[..., None],
                "hidden": placed.hidden,
            },
            source=source,
        )
    ]


# NVIDIA/nccl src/transport/nvls.cc: NVLS_NCHANNELS and NVLS_CHUNKSIZE as they are by default, NCCL_STEPS,
# NCCL_MAX_NVLS_ARITY.
_NVLS = {"channels": 16.0, "chunk_bytes": 128.0 * 2**10, "chunks": 8.0, "most_heads": 32.0}


def _multicast_lines(placed: PlacedJob, bill: Bill) -> list[MemoryLine]:
    """Return the multicast buffers of every group that lets the switch add: in and out, one part a member of a domain."""
    if not placed.cluster.tiers[0].reduction_bandwidth_bytes_per_s:
        return []
    used: dict[str, list[Array]] = {}
    of_group: dict[str, ArrayLike] = {}
    for line in bill.time_lines:
        if not line.group:
            continue
        by_switch = reduce(np.logical_or, [line.algorithm == code for code in _BY_SWITCH])
        # Of layouts side by side, some do not send at all what others do.
        by_switch = by_switch & (line.each_s > 0.0) if any_nonzero(by_switch) else by_switch
        if any_nonzero(by_switch):
            used.setdefault(line.group, []).append(np.asarray(by_switch, dtype=np.float64))
            of_group[line.group] = line.terms["node_ranks"]
    return [
        _line(
            f"reserve.nvls.{dim}",
            seen="device",
            axis="dp",
            formula="on * channels * 2 * chunk_bytes * chunks * min(members, most_heads)",
            terms={
                "on": without_constant_axes(np.minimum(broadcast_sum(on), 1.0))[..., None],
                "members": np.asarray(of_group[dim])[..., None],
                **_NVLS,
            },
            source="NVIDIA/nccl src/transport/nvls.cc ncclNvlsBufferSetup; allocated where a group takes NVLS",
        )
        for dim, on in used.items()
    ]
