"""Megatron-LM arguments: launch flags out of a job, and a job out of launch flags.

Flag names as in NVIDIA/Megatron-LM ``megatron/training/arguments.py`` and the argument groups
generated from ``TransformerConfig`` and ``ModelParallelConfig``. Read back, they give the model,
the layout, and the switches of the recipe that have a flag; other switches stay the recipe's.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.describe.jobs.fields import RECOMPUTE_POLICIES
from costmodel.interop.assertions.megatron_arguments import MODULES, connections, has_part
from costmodel.interop.framework import (
    FrameworkConfigError,
    Imported,
    base_recipe,
    counts_of,
    left_of,
    require_same_model,
    steps_of,
    unsaid_switches,
)
from costmodel.interop.megatron_job import CP_TYPES, DEFAULT_RECIPE, GRAPH_SCOPES, SHARDING, job_of_flags
from costmodel.interop.megatron_mixers import PATTERNS, is_hybrid
from costmodel.interop.megatron_model import model_flags
from costmodel.interop.megatron_text import Flags
from costmodel.physics.network.mesh import DEFAULT_ORDER
from costmodel.physics.pipeline.chunks import chunks_text
from costmodel.physics.pipeline.schedules import schedule_at
from costmodel.step.price import chunks_of, place_job

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job
    from costmodel.describe.recipe import Recipe

_RECORD = FRAMEWORKS["megatron"]
ORDERS: dict[tuple[str, ...], bool] = {DEFAULT_ORDER: False, ("tp", "cp", "pp", "dp"): True}


def emit_megatron(job: Job) -> str:
    """Return the launch line of one layout: torchrun, ``pretrain_gpt.py`` and its flags.

    Raises
    ------
    FrameworkConfigError
        If Megatron-LM has no setting for the model, the schedule or the axis order.
    """
    counts = counts_of(job)
    flags = [
        *model_flags(job.model, counts["seq_len"]),
        *layout_flags(job, counts),
        *recipe_flags(job, counts),
    ]
    if is_hybrid(job.model) and chunks_of(job):
        raise FrameworkConfigError(
            "emit: Megatron-LM's models with state spaces take no pipeline layout; leave out pipeline_layout"
        )
    program = "pretrain_mamba.py" if is_hybrid(job.model) else "pretrain_gpt.py"
    per_node = min(job.cluster.gpus_per_node, counts["gpus"])
    ordered = "".join(f"export {line}\n" for line in _environment(job))
    launch = f"{ordered}torchrun --nnodes {counts['gpus'] // per_node} --nproc-per-node {per_node} {program}"
    text = " \\\n    ".join([launch, *_lines_of(flags)]) + "\n"
    back = import_megatron(text, recipe=base_recipe(job, DEFAULT_RECIPE))
    require_same_model(job, back.job["model"], "Megatron-LM")
    notes = [
        f"# model {job.model.name}, cluster {job.cluster.name}, recipe {job.recipe.name}",
        f"# flags of {_RECORD.release}",
    ]
    notes += [f"# no flag for the recipe's {switch}" for switch in unsaid_switches(job, back)]
    notes += [f"# left to you: {what}" for what in left_of(_RECORD, job)]
    unknown = ["--rotary-base"] if job.model.position == "rope" and not job.model.rope_theta else []
    unknown += [] if job.model.norm_epsilon else ["--norm-epsilon"]
    if _crosses_streams(job):
        notes.append(
            "# CUDA_DEVICE_MAX_CONNECTIONS stays unset: 1, which orders what tensor and context parallelism overlap, would "
            "queue the exchange of experts behind them (--overlap-moe-expert-parallel-comm)"
        )
    if unknown:
        notes.append(f"# left to you: model: {', '.join(unknown)} of its config.json (else 10000, 1e-5)")
    return "\n".join([*notes, text])


def _environment(job: Job) -> list[str]:
    """Return variables that the program asks for."""
    return ["CUDA_DEVICE_MAX_CONNECTIONS=1"] if connections(job) else []


def _crosses_streams(job: Job) -> bool:
    """Return whether overlaps want one queue of kernels and several at once; Megatron-LM only warns."""
    ordered = bool(job.layout.tp > 1) or bool(job.layout.cp > 1)
    return ordered and bool(job.model.num_experts) and job.recipe.moe.ep_overlap and not connections(job)


def by_matrix(job: Job) -> bool:
    """Return whether the optimizer's states are dealt out matrix by matrix, as only Muon's are."""
    return job.optimizer.name == "muon" and bool(job.layout.zero_stage == 1)


def _lines_of(flags: list[str]) -> list[str]:
    """Put each flag with its values on a line."""
    lines: list[list[str]] = []
    for part in flags:
        if part.startswith("--"):
            lines.append([part])
        else:
            lines[-1].append(shlex.quote(part))
    return [" ".join(line) for line in lines]


_BACKENDS = {"deep-ep": "deepep", "hybrid-ep": "hybridep"}


def _dispatcher_flags(recipe: Recipe, *, several: bool) -> list[str]:
    """Return how tokens reach their experts; the flex dispatcher needs several ranks of them."""
    dispatcher = recipe.moe.moe_dispatcher
    if dispatcher not in _BACKENDS:
        return ["--moe-token-dispatcher-type", dispatcher.replace("-", "")]
    if not several:
        return ["--moe-token-dispatcher-type", "alltoall"]
    flags = ["--moe-token-dispatcher-type", "flex", "--moe-flex-dispatcher-backend", _BACKENDS[dispatcher]]
    if dispatcher == "hybrid-ep" and recipe.moe.dispatch_sms:
        flags += ["--moe-hybridep-num-sms", str(recipe.moe.dispatch_sms)]
    return flags


def layout_flags(job: Job, counts: dict[str, int]) -> list[str]:
    """Return degrees, batch, schedule and sharding."""
    layout = job.layout
    schedule = schedule_at(layout.schedule).name
    if tuple(job.axis_order) not in ORDERS:
        raise FrameworkConfigError(f"emit: Megatron-LM cannot place the axes as {' '.join(job.axis_order)}")
    flags = [
        "--tensor-model-parallel-size",
        str(counts["tp"]),
        "--pipeline-model-parallel-size",
        str(counts["pp"]),
        "--context-parallel-size",
        str(counts["cp"]),
    ]
    if layout.sequence_parallel and counts["tp"] > 1:
        flags.append("--sequence-parallel")
    if chunks := chunks_of(job):
        # The layout says how many chunks a rank has; Megatron takes one of the two.
        flags += ["--pipeline-model-parallel-layout", chunks_text(chunks)]
    elif schedule == "interleaved":
        flags += ["--num-virtual-stages-per-pipeline-rank", str(counts["vp"])]
    if job.model.num_experts:
        flags += [
            "--expert-model-parallel-size",
            str(counts["ep"]),
            "--expert-tensor-parallel-size",
            str(counts["etp"]),
        ]
    if ORDERS[tuple(job.axis_order)]:
        flags.append("--use-tp-pp-dp-mapping")
    flags += [
        "--micro-batch-size",
        str(counts["micro_batch"]),
        "--global-batch-size",
        str(counts["global_batch"]),
        "--seq-length",
        str(counts["seq_len"]),
    ]
    if steps := steps_of(job):
        flags += ["--train-iters", str(steps)]
    if counts["zero_stage"] and not by_matrix(job):
        flags.append("--use-distributed-optimizer")
    if counts["zero_stage"] >= 2:
        flags += ["--use-megatron-fsdp", "--data-parallel-sharding-strategy", SHARDING[counts["zero_stage"]]]
        flags += ["--ckpt-format", "fsdp_dtensor"]
    if counts["shard_group"] and counts["zero_stage"]:
        ranks = counts["dp"] * counts["cp"]
        if ranks % counts["shard_group"]:
            raise FrameworkConfigError(
                f"emit: shard_group = {counts['shard_group']} does not divide dp·cp = {ranks}"
            )
        flags += ["--num-distributed-optimizer-instances", str(ranks // counts["shard_group"])]
    policy = RECOMPUTE_POLICIES[int(layout.recompute)]
    if policy == "full":
        flags += [
            "--recompute-granularity",
            "full",
            "--recompute-method",
            "uniform",
            "--recompute-num-layers",
            "1",
        ]
    elif policy == "selective":
        flags += ["--recompute-granularity", "selective", "--recompute-modules"]
        flags += [module for module in job.recipe.memory.selective_modules if module in MODULES]
    return flags


def recipe_flags(job: Job, counts: dict[str, int]) -> list[str]:
    """Return precision and the switches of the recipe that have a flag."""
    recipe = job.recipe
    flags = _RECORD.precisions[job.precision.name].split()
    flags += (
        ["--optimizer", "dist_muon"] if by_matrix(job) else _RECORD.optimizers[job.optimizer.name].split()
    )
    if recipe.overlap.dp_overlap != "none":
        flags.append("--overlap-grad-reduce")
        if counts["zero_stage"] and not by_matrix(job):
            flags.append("--overlap-param-gather")
    if recipe.dtypes.grad_reduce_dtype == "bf16":
        flags.append("--grad-reduce-in-bf16")
    if recipe.overlap.tp_overlap == "pipelined" and counts["tp"] > 1:
        flags.append("--tp-comm-overlap")
    if not recipe.overlap.pp_overlap:
        flags.append("--no-overlap-p2p-communication")
    if counts["cp"] > 1:
        flags += ["--cp-comm-type", CP_TYPES[recipe.overlap.cp_method]]
        if recipe.overlap.cp_method == "a2a+p2p":
            swapped = int(place_job(job).shard.swaps)
            flags += ["--hierarchical-context-parallel-sizes", str(swapped), str(counts["cp"] // swapped)]
    if job.model.num_experts:
        flags += _dispatcher_flags(recipe, several=counts["ep"] * counts["etp"] > 1)
        if recipe.moe.grouped_gemm:
            flags.append("--moe-grouped-gemm")
        if recipe.moe.moe_capacity_factor:
            flags += ["--moe-expert-capacity-factor", f"{recipe.moe.moe_capacity_factor:g}"]
        if recipe.moe.ep_overlap and counts["ep"] > 1:
            flags.append("--overlap-moe-expert-parallel-comm")
    dealt = bool(chunks_of(job))
    if recipe.memory.embedding_as_layer and not dealt:
        flags.append("--account-for-embedding-in-pipeline-split")
    if recipe.memory.head_as_layer and not dealt:
        flags.append("--account-for-loss-in-pipeline-split")
    if not recipe.kernels.dropout:
        flags += ["--attention-dropout", "0.0", "--hidden-dropout", "0.0"]
    if recipe.kernels.attention_kernel == "unfused":
        flags += ["--attention-backend", "unfused"]
    if recipe.kernels.cross_entropy == "fused":
        flags.append("--cross-entropy-loss-fusion")
    if recipe.host.offload_optimizer:
        flags += ["--optimizer-cpu-offload", "--use-precision-aware-optimizer"]
    if recipe.dtypes.quantised_weights == "primary":
        flags.append("--fp8-param-gather")
    if recipe.host.cuda_graphs:
        flags += _graph_flags(job)
    return flags


def _graph_flags(job: Job) -> list[str]:
    """Return what CUDA graphs hold; parts that the model does not have are no scope of theirs."""
    scope = job.recipe.host.cuda_graph_scope
    if scope == "all":
        return [
            "--cuda-graph-impl",
            "local",
            "--cuda-graph-scope",
            "full_iteration",
            "--no-check-for-nan-in-loss-and-grad",
        ]
    held = [part for part in GRAPH_SCOPES[scope] if has_part(job.model, part)]
    return ["--cuda-graph-impl", "transformer_engine", "--cuda-graph-scope", *held] if held else []


def import_megatron(text: str, *, recipe: str = DEFAULT_RECIPE, name: str = "megatron") -> Imported:
    """Read launch flags: the arguments alone, or one command line without variables.

    Parameters
    ----------
    text : str
        Flags, with or without the command before them; comments and line continuations are fine.
    recipe : str
        Recipe that gives what has no flag.
    name : str
        Name for the model.

    Returns
    -------
    Imported
        GPUs come from ``--nnodes`` and ``--nproc-per-node`` where the text has them.

    Raises
    ------
    FrameworkConfigError
        If a flag has no readable value, or flags contradict each other.
    """
    flags = Flags(text)
    instead = {"--vocab-size": ("--padded-vocab-size",), "--num-layers": PATTERNS}
    for flag in ("--num-layers", "--hidden-size", "--num-attention-heads", "--vocab-size"):
        if not set(flags.names()) & set(instead.get(flag, ())):
            flags.need(flag)
    return job_of_flags(flags, recipe=recipe, name=name)
