"""Megatron-LM's launch line of one layout: torchrun, ``pretrain_gpt.py`` and its flags.

Names of the flags stand in ``keys/megatron.yaml``; `costmodel.interop.megatron_job` reads them back.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from costmodel.describe.frameworks import FRAMEWORKS, launched_by
from costmodel.describe.jobs.fields import RECOMPUTE_POLICIES
from costmodel.interop.assertions.facts import MODULES, connections, graph_of, has_part
from costmodel.interop.framework import (
    FrameworkConfigError,
    base_recipe,
    comments_of,
    counts_of,
    require_same_model,
    steps_of,
)
from costmodel.interop.keys import Flags
from costmodel.interop.megatron_job import DEFAULT_RECIPE, MEGATRON, read_flags
from costmodel.interop.megatron_mixers import is_hybrid
from costmodel.interop.megatron_model import model_arguments
from costmodel.physics.network.mesh import DEFAULT_ORDER
from costmodel.physics.pipeline.chunks import chunks_text
from costmodel.physics.pipeline.schedules import schedule_at
from costmodel.step.placed_job import place_job
from costmodel.step.price import chunks_of

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job
    from costmodel.describe.recipe import Recipe

_RECORD = FRAMEWORKS["megatron"]
RANK_CAPACITY = 1.5
"""Tokens that a rank's experts have room for over the mean, in graphs of an iteration: NVIDIA-NeMo/Megatron-Bridge
scripts/performance, `set_full_iter_cg_configs`."""
_WORDS = MEGATRON.more["words"]
ORDERS: dict[tuple[str, ...], bool] = {DEFAULT_ORDER: False, ("tp", "cp", "pp", "dp"): True}


def emit_megatron(job: Job) -> str:
    """Return the launch line of one layout."""
    counts = counts_of(job)
    hybrid = is_hybrid(job.model)
    if hybrid and chunks_of(job):
        raise FrameworkConfigError(
            "emit: Megatron-LM's models with state spaces take no pipeline layout; leave out pipeline_layout"
        )
    flags = MEGATRON.flags(
        {
            **model_arguments(job.model, counts["seq_len"]),
            **layout_arguments(job, counts),
            **recipe_arguments(job, counts),
        }
    )
    flags += _RECORD.precisions[job.precision.name].split() + optimizer_flags(job)
    per_node = min(job.cluster.gpus_per_node, counts["gpus"])
    ordered = "export CUDA_DEVICE_MAX_CONNECTIONS=1\n" if connections(job) else ""
    nodes, program = counts["gpus"] // per_node, "pretrain_mamba.py" if hybrid else "pretrain_gpt.py"
    launch = f"{ordered}torchrun --nnodes {nodes} --nproc-per-node {per_node} {program}"
    text = " \\\n    ".join([launch, *_lines_of(flags)]) + "\n"
    back = read_flags(Flags(text), {"recipe": base_recipe(job, DEFAULT_RECIPE)}).answer()
    require_same_model(job, back.job["model"], "Megatron-LM")
    notes = [
        "#!/bin/bash",
        f"# model {job.model.name}, cluster {job.cluster.name}, recipe {job.recipe.name}",
        f"# flags of {launched_by('megatron', job.recipe.launches).release}",
    ]
    notes += comments_of(_RECORD, job, back, "flag")
    unknown = (
        ["--rotary-base (else 10000)"] if job.model.position == "rope" and not job.model.rope_theta else []
    )
    unknown += [] if job.model.norm_epsilon else ["--norm-epsilon (else 1e-5)"]
    if _crosses_streams(job):
        notes.append(
            "# CUDA_DEVICE_MAX_CONNECTIONS stays unset: 1, which orders what tensor and context parallelism overlap, would "
            "queue the exchange of experts behind them (--overlap-moe-expert-parallel-comm)"
        )
    if unknown:
        notes.append(f"# left to you: model: {', '.join(unknown)}, as its config.json has")
    return "\n".join([*notes, text])


def _crosses_streams(job: Job) -> bool:
    """Return whether overlaps want one queue of kernels and several at once; Megatron-LM only warns."""
    ordered = bool(job.layout.tp > 1) or bool(job.layout.cp > 1)
    return ordered and bool(job.model.num_experts) and job.recipe.moe.ep_overlap and not connections(job)


def _by_matrix(job: Job) -> bool:
    """Return whether the optimizer's states are divided matrix by matrix, as only Muon's are."""
    return job.optimizer.name == "muon" and bool(job.layout.zero_stage == 1)


def optimizer_flags(job: Job) -> list[str]:
    """Return the flags of the optimizer."""
    name = job.optimizer.name
    return ["--optimizer", "dist_muon"] if _by_matrix(job) else _RECORD.optimizers[name].split()


def _lines_of(flags: list[str]) -> list[str]:
    """Put each flag with its values on a line."""
    lines: list[list[str]] = []
    for part in flags:
        if part.startswith("--"):
            lines.append([part])
        else:
            lines[-1].append(shlex.quote(part))
    return [" ".join(line) for line in lines]


def layout_arguments(job: Job, counts: dict[str, int]) -> dict[str, Any]:
    """Return degrees, batch, schedule and sharding, by our names."""
    layout, order = job.layout, tuple(job.axis_order)
    if order not in ORDERS:
        raise FrameworkConfigError(f"emit: Megatron-LM cannot place the axes as {' '.join(job.axis_order)}")
    chunks, zero = chunks_of(job), counts["zero_stage"]
    interleaved = schedule_at(layout.schedule).name == "interleaved"
    fsdp = zero >= 2
    found: dict[str, Any] = {
        "tp": counts["tp"],
        "pp": counts["pp"],
        "cp": counts["cp"],
        "sequence_parallel": bool(layout.sequence_parallel) and counts["tp"] > 1,
        # The layout says how many chunks a rank has; Megatron takes one of the two.
        "pipeline_layout": chunks_text(chunks) if chunks else None,
        "vp": counts["vp"] if interleaved and not chunks else None,
        **({"ep": counts["ep"], "etp": counts["etp"]} if job.model.num_experts else {}),
        "tp_pp_dp": ORDERS[order],
        "micro_batch": counts["micro_batch"],
        "global_batch": counts["global_batch"],
        "seq_len": counts["seq_len"],
        "train_iters": steps_of(job),
        "distributed_optimizer": bool(zero) and not _by_matrix(job),
        "fsdp": fsdp,
        "sharding": zero if fsdp else None,
        "checkpoint_format": "fsdp_dtensor" if fsdp else None,
    }
    if counts["shard_group"] and zero:
        ranks = counts["dp"] * counts["cp"]
        if ranks % counts["shard_group"]:
            raise FrameworkConfigError(
                f"emit: shard_group = {counts['shard_group']} does not divide dp·cp = {ranks}"
            )
        found["instances"] = ranks // counts["shard_group"]
    policy = RECOMPUTE_POLICIES[int(layout.recompute)]
    if policy == "full":
        found |= {"recompute": "full", "recompute_method": "uniform", "recompute_layers": 1}
    elif policy == "selective":
        modules = [module for module in job.recipe.memory.selective_modules if module in MODULES]
        found |= {"recompute": "selective", "recompute_modules": modules}
    return found


def recipe_arguments(job: Job, counts: dict[str, int]) -> dict[str, Any]:
    """Return the switches of the recipe that have a flag, by our names."""
    recipe, placed = job.recipe, bool(chunks_of(job))
    overlaps = recipe.overlap.dp_overlap != "none"
    undropped = None if recipe.kernels.dropout else "0.0"
    found: dict[str, Any] = {
        "overlap_grads": overlaps,
        "overlap_params": overlaps and bool(counts["zero_stage"]) and not _by_matrix(job),
        "grads_in_bf16": recipe.dtypes.grad_reduce_dtype == "bf16",
        "grads_in_fp32": job.precision.name == "fp16" and not recipe.dtypes.fp16_gradients,
        "tp_overlap": recipe.overlap.tp_overlap == "pipelined" and counts["tp"] > 1,
        "no_p2p_overlap": not recipe.overlap.pp_overlap,
    }
    if counts["cp"] > 1:
        found["cp_type"] = recipe.overlap.cp_method
        if recipe.overlap.cp_method == "a2a+p2p":
            swapped = int(place_job(job).shard.swaps)
            found["cp_sizes"] = [swapped, counts["cp"] // swapped]
    if job.model.num_experts:
        factor = recipe.moe.moe_capacity_factor
        found |= {
            **_dispatcher(recipe, several=counts["ep"] * counts["etp"] > 1),
            "grouped_gemm": recipe.moe.grouped_gemm,
            "capacity_factor": f"{factor:g}" if factor else None,
            "ep_overlap": recipe.moe.ep_overlap and counts["ep"] > 1,
        }
    return {
        **found,
        "embedding_as_layer": bool(recipe.memory.embedding_as_layer) and not placed,
        "head_as_layer": bool(recipe.memory.head_as_layer) and not placed,
        "attention_dropout": undropped,
        "hidden_dropout": undropped,
        "attention_backend": "unfused" if recipe.kernels.attention_kernel == "unfused" else None,
        "loss_fusion": recipe.kernels.cross_entropy == "fused",
        "optimizer_offload": bool(recipe.host.offload_optimizer),
        "precision_aware": bool(recipe.host.offload_optimizer),
        "fp8_params": recipe.dtypes.quantised_weights == "primary",
        **(_graphs(job) if recipe.host.cuda_graphs else {}),
    }


def _dispatcher(recipe: Recipe, *, several: bool) -> dict[str, Any]:
    """Return how tokens reach their experts; the flex dispatcher needs several ranks of them."""
    dispatcher = recipe.moe.moe_dispatcher
    if dispatcher not in ("deep-ep", "hybrid-ep"):
        return {"dispatcher": dispatcher}
    if not several:
        return {"dispatcher": "all-to-all"}
    sms = recipe.moe.dispatch_sms if dispatcher == "hybrid-ep" else None
    return {"dispatcher": "flex", "flex_backend": dispatcher, "flex_sms": sms or None}


def _graphs(job: Job) -> dict[str, Any]:
    """Return what CUDA graphs hold; parts that the model does not have are no scope of theirs."""
    scope, graph = job.recipe.host.cuda_graph_scope, graph_of(job)
    if graph == "local":
        return {"cuda_graphs": graph, "cuda_graph_scope": ["full_iteration"], "no_nan_check": True}
    if graph == "full_iteration":
        found: dict[str, Any] = {"cuda_graphs": graph, "no_nan_check": True}
        if job.model.num_experts and not job.recipe.moe.moe_capacity_factor:
            # Dropless experts get static shapes: room for a rank's tokens beyond the mean, the rest in pages.
            found |= {"paged_stash": True, "rank_capacity": RANK_CAPACITY, "op_fuser": True}
        return found
    held = [part for part in _WORDS["graph_scopes"][scope] if has_part(job.model, part)]
    return {"cuda_graphs": "transformer_engine", "cuda_graph_scope": held} if held else {}
