"""One estimate: collect the lines of every axis, and hand back the bill.

`price` is the only place where a job becomes a bill; a search calls it with arrays of layouts,
`costmodel.estimate` with scalars. Lines are first made for one block (a layer of some kind, the
embedding, the head) and one micro-batch; the slowest pipeline stage then says how many of each
the critical path runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.bill.lines import (
    Bill,
    MemoryLine,
    TimeLine,
    broadcast_sum,
    memory_line,
    settled,
    sum_exposed,
    time_line,
)
from costmodel.bill.quantity import quantity
from costmodel.describe.jobs.job import Job
from costmodel.physics.network.mesh import build_mesh
from costmodel.physics.pipeline import schedules
from costmodel.physics.pipeline.stages import Split, plan_stages
from costmodel.physics.run.stragglers import expected_maximum_normal
from costmodel.step import (
    compression,
    compute,
    context,
    data,
    expert,
    offload,
    pipeline,
    resilience,
    states,
    tensor,
)
from costmodel.step.anatomy.operator_parts import Shard
from costmodel.step.pipeline import StageTimes
from costmodel.step.placed_job import Block, PlacedJob, exposed_sum

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Priced:
    """A bill and what it was made from."""

    bill: Bill
    placed: PlacedJob
    blocks: tuple[Block, ...]
    stage: StageTimes
    block_lines: tuple[tuple[TimeLine, ...], ...] = ()
    """Of each block: its lines for one micro-batch through one such block, count 1."""


def price(job: Job, *, every_stage: bool = False) -> Priced:
    """Price a job, or an array of jobs that differ in layout, batch or sequence length.

    Parameters
    ----------
    job : Job
        Its layout, batch and sequence length may be arrays that broadcast together.
    every_stage : bool
        Look at every pipeline stage of a single layout instead of first, middle and last.

    Returns
    -------
    Priced
        The bill and what it was made from. Layouts that cannot exist are priced all the same;
        `costmodel.describe.jobs.layout.layout_problems` masks them.
    """
    placed = place_job(job, every_stage=every_stage)
    blocks = compute.build_blocks(placed)
    block_lines = [_block_lines(placed, block) for block in blocks]
    counts, stage = _critical_stage(placed, blocks, block_lines)
    m = placed.micro_batches
    time_lines: list[TimeLine] = []
    step_counts = [np.asarray(count * m) for count in counts]
    for lines, count in zip(block_lines, step_counts, strict=True):
        time_lines += [replace(line, count=count) for line in lines]
    time_lines += pipeline.time_lines(placed, stage)
    time_lines += data.time_lines(placed, blocks, step_counts, block_lines, stage)
    in_flight = pipeline.in_flight(placed)
    memory_lines = [
        *states.memory_lines(placed, blocks),
        *compression.memory_lines(placed, blocks),
        *compute.memory_lines(placed, blocks, in_flight),
        *tensor.memory_lines(placed),
        *context.memory_lines(placed),
        *expert.memory_lines(placed),
        *pipeline.memory_lines(placed),
    ]
    time_lines += offload.time_lines(placed, memory_lines, in_flight, stage)
    memory_lines += offload.memory_lines(placed, memory_lines)
    time_lines += _overhead_lines(placed, time_lines)
    time_lines += resilience.time_lines(placed, time_lines)
    memory_lines += states.step_memory_lines(placed, blocks, memory_lines)
    memory_lines += _reserve_lines(placed, memory_lines)
    names = tuple(tier.name for tier in job.cluster.tiers)
    made = tuple(tuple(lines) for lines in block_lines)
    return Priced(Bill(tuple(time_lines), tuple(memory_lines), names), placed, tuple(blocks), stage, made)


def place_job(job: Job, *, every_stage: bool = False) -> PlacedJob:
    """Place the ranks and work out what one micro-batch looks like on one of them."""
    model, recipe, layout, seq = job.model, job.recipe, job.layout, job.seq_len
    kinds = tuple(model.layer_kinds())
    split = _split(job)
    stages = plan_stages(
        model.kind_of_layer,
        len(kinds),
        layout.pp,
        split,
        fold=settled(schedules.fold(layout.schedule)),
        every_stage=every_stage,
    )
    tokens = layout.micro_batch * seq / layout.cp
    tokens_sp = np.where(layout.sequence_parallel > 0, tokens / layout.tp, tokens)
    load = _load(job, np.asarray(tokens_sp))
    shard = Shard(
        micro_batch=layout.micro_batch,
        seq_len=seq,
        tokens=np.asarray(tokens),
        tokens_sp=np.asarray(tokens_sp),
        tp=layout.tp,
        cp=layout.cp,
        etp=layout.etp,
        expert_tokens=np.asarray(tokens_sp * max(model.top_k, 1) * layout.etp * load),
        local_experts=np.asarray(max(model.num_experts, 1) / layout.ep),
    )
    mesh = build_mesh(
        tp=layout.tp,
        cp=layout.cp,
        pp=layout.pp,
        dp=layout.dp,
        ep=layout.ep,
        etp=layout.etp,
        tier_sizes=[float(tier.size) for tier in job.cluster.tiers],
        order=job.axis_order,
    )
    return PlacedJob(
        model=model,
        cluster=job.cluster,
        recipe=recipe,
        policy=job.policy,
        health=job.health,
        precision=job.precision,
        layout=layout,
        mesh=mesh,
        split=split,
        stages=stages,
        shard=shard,
        kinds=kinds,
        global_batch=job.global_batch,
        seq_len=seq,
        micro_batches=job.micro_batches,
        imbalance=load,
    )


def _load(job: Job, tokens: Array) -> Array:
    r"""Tokens of the busiest expert rank over the mean. [-]

    Where each of T tokens a rank picks k of E experts by itself, a rank of n gets
    :math:`1 + m_n \sqrt{(E - k) / ((E - 1) T k)}` times the mean on the busiest, with :math:`m_n` the
    expected maximum of n normals: picks without replacement have the variance of a hypergeometric count,
    their sum over tokens is nearly normal, and what one rank gets another lacks.
    """
    moe, model, ranks = job.recipe.moe, job.model, job.layout.ep
    if moe.moe_capacity_factor > 0:
        return np.asarray(moe.moe_capacity_factor)
    if moe.moe_balance == "balanced" or model.num_experts < 2 or not np.any(ranks > 1):
        return np.asarray(moe.moe_imbalance)
    degrees, where = np.unique(ranks, return_inverse=True)
    deviations = expected_maximum_normal(degrees)[where].reshape(np.shape(ranks))
    spread = quantity(
        "sqrt((experts - top_k) / ((experts - 1) * tokens * top_k))",
        experts=float(model.num_experts),
        top_k=float(model.top_k),
        tokens=tokens,
    )
    return np.asarray(moe.moe_imbalance * (1.0 + deviations * spread.value))


def _split(job: Job) -> Split:
    """Return how the layers of a model are dealt to pipeline stages: as written out, or as the recipe does."""
    model, recipe = job.model, job.recipe
    # Heads x head size x hidden size four times, whatever the key-value heads, and the MLP.
    layer = 4 * model.num_heads * model.head_dim + (3 if model.gated_mlp else 2) * model.ffn_size
    head = model.vocab_size / layer if recipe.memory.head_by_work else recipe.memory.head_as_layer
    return Split(float(recipe.memory.embedding_as_layer), float(head), model.mtp_layers, job.pipeline_layout)


def _block_lines(placed: PlacedJob, block: Block) -> list[TimeLine]:
    """Return all lines of one block for one micro-batch."""
    communication = [
        *tensor.time_lines(placed, block),
        *context.time_lines(placed, block),
        *expert.time_lines(placed, block),
    ]
    return [
        *compute.time_lines(placed, block),
        *compute.host_lines(placed, block, communication),
        *communication,
    ]


def blocks_on_stages(placed: PlacedJob) -> list[Array]:
    """Count the passes through each block that a micro-batch makes on every stage: layers, embedding, head. [-]"""
    stages = placed.stages
    return [*stages.layers, stages.has_embedding, stages.has_head * (1.0 + placed.model.mtp_layers)]


def _critical_stage(
    placed: PlacedJob, blocks: list[Block], block_lines: list[list[TimeLine]]
) -> tuple[list[Array], StageTimes]:
    """Find the slowest stage: how many blocks of each sort it holds, and its times."""
    model = placed.model
    held = blocks_on_stages(placed)
    head_passes = 1.0 + model.mtp_layers
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

    counts = [at_slowest(count) for count in held]
    pattern = np.asarray(model.kind_of_layer)
    total_layers = [float(np.sum(pattern == kind)) for kind in range(len(placed.kinds))]
    total_layers[int(pattern[-1])] += model.mtp_layers
    totals = [*total_layers, 1.0, head_passes]
    return counts, StageTimes(
        forward_s=broadcast_sum([c * f for c, f in zip(counts, forward, strict=True)]),
        backward_input_s=broadcast_sum([c * r for c, r in zip(counts, rest, strict=True)]),
        backward_weight_s=broadcast_sum([c * w for c, w in zip(counts, weight, strict=True)]),
        sum_forward_s=broadcast_sum([np.asarray(t * f) for t, f in zip(totals, forward, strict=True)]),
        sum_backward_s=broadcast_sum(
            [np.asarray(t * (r + w)) for t, r, w in zip(totals, rest, weight, strict=True)]
        ),
    )


def _overhead_lines(placed: PlacedJob, lines: list[TimeLine]) -> list[TimeLine]:
    """Return the host's time between steps, the wait for data, and the recipe's one fitted constant."""
    recipe, layout = placed.recipe, placed.layout
    made = []
    if recipe.host.step_overhead_s:
        made.append(
            time_line(
                "overhead.step",
                axis="compute",
                toll="overhead",
                phase="step",
                count=1.0,
                formula="seconds",
                terms={"seconds": recipe.host.step_overhead_s},
                source=f"recipe {recipe.name}: step_overhead_s",
            )
        )
    if recipe.host.overhead_fraction:
        data_axes = ("dp", "optimizer")
        parts = {
            "overhead.unexplained": [line for line in lines if line.axis not in data_axes],
            "overhead.unexplained.data_parallel": [line for line in lines if line.axis in data_axes],
        }
        # What data parallelism costs depends on other knobs than the rest: a line of its own keeps
        # a search on small grids.
        for name, part in parts.items():
            known = sum_exposed(part)
            made.append(
                time_line(
                    name,
                    axis="compute",
                    toll="overhead",
                    phase="step",
                    cause="proportion",
                    count=1.0,
                    formula="fraction * known_s",
                    terms={"fraction": recipe.host.overhead_fraction, "known_s": known},
                    source=f"recipe {recipe.name}: overhead_fraction, fitted to whole runs",
                )
            )
    if recipe.host.input_tokens_per_s:
        known = sum_exposed([*lines, *made])
        # Ranks of one replica train on the same sequences; a host feeds the replicas it holds, at least one.
        replicas = np.maximum(placed.cluster.gpus_per_node / (layout.tp * layout.cp * layout.pp), 1.0)
        tokens = placed.global_batch * placed.seq_len / layout.dp * np.minimum(replicas, layout.dp)
        made.append(
            time_line(
                "overhead.input",
                axis="compute",
                toll="overhead",
                phase="step",
                count=1.0,
                formula="max(tokens / tokens_per_s - known_s, 0)",
                terms={"tokens": tokens, "tokens_per_s": recipe.host.input_tokens_per_s, "known_s": known},
                source=f"recipe {recipe.name}: input_tokens_per_s of each host, loaded one step ahead",
            )
        )
    return made


def _reserve_lines(placed: PlacedJob, lines: list[MemoryLine]) -> list[MemoryLine]:
    """Return what the tensors do not show: allocator slack, CUDA context, communicators."""
    recipe = placed.recipe
    layout, mesh = placed.layout, placed.mesh
    axes = (layout.tp, layout.cp, layout.pp, mesh.grad.ranks, layout.ep)
    # One more for the norm over all that hold a part of the model.
    several = (*(ranks > 1 for ranks in axes), (layout.tp > 1) & (layout.pp > 1))
    used = [np.asarray(some, dtype=np.float64) for some in several]
    groups = broadcast_sum(used)[..., None]
    slack = []
    # States and activations depend on different knobs: one line each keeps a search on small grids.
    for toll in ("state", "activation"):
        allocated = broadcast_sum([line.bytes for line in lines if line.toll == toll])
        slack.append(
            memory_line(
                f"reserve.allocator_slack.{toll}",
                part="reserve",
                seen="reserved",
                axis="compute",
                toll="state",
                formula="slack * allocated_bytes",
                terms={"slack": np.asarray(recipe.memory.allocator_slack), "allocated_bytes": allocated},
                source=f"recipe {recipe.name}: fragmentation of the caching allocator",
            )
        )
    return [
        *slack,
        memory_line(
            "reserve.cuda_context",
            part="reserve",
            seen="device",
            axis="compute",
            toll="state",
            formula="context_bytes",
            terms={"context_bytes": np.asarray(recipe.memory.context_bytes)},
            source="CUDA context and libraries: 0.5-2 GB seen by nvidia-smi",
        ),
        memory_line(
            "reserve.communicators",
            part="reserve",
            seen="device",
            axis="dp",
            toll="state",
            formula="communicator_bytes * groups",
            terms={"communicator_bytes": np.asarray(recipe.memory.communicator_bytes), "groups": groups},
            source="NCCL buffers of each axis' group, 342-392 MiB measured for 2-8 ranks (aiconfigurator system files)",
        ),
    ]
