"""Megatron-LM arguments: launch flags out of a job, and a job out of launch flags.

Flag names as in NVIDIA/Megatron-LM ``megatron/training/arguments.py`` and the argument groups
generated from ``TransformerConfig`` and ``ModelParallelConfig``. Read back, they give the model,
the layout, and the switches of the recipe that have a flag; other switches stay the recipe's.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from costmodel.describe.jobs.fields import RECOMPUTE_POLICIES
from costmodel.describe.models.model import Model
from costmodel.describe.recipe import load_recipe
from costmodel.interop.framework import (
    FrameworkConfigError,
    Imported,
    counts_of,
    require_same_model,
    unsaid_switches,
)
from costmodel.interop.megatron_model import model_flags, model_of_flags
from costmodel.interop.megatron_text import Flags
from costmodel.physics.network.mesh import DEFAULT_ORDER
from costmodel.physics.pipeline.schedules import schedule_at

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job

DEFAULT_RECIPE = "megatron-core"
VALUES_THAT_RUN = {"schedule": "none,1f1b,interleaved", "zero_stage": "0,1"}
"""What a search must keep to for Megatron-LM to run the result with its distributed optimizer.

Megatron-FSDP, which has ZeRO-2 and 3, asks for settings of its own (checkpoint format, connections).
"""

_PRECISION_FLAGS: dict[str, tuple[str, ...]] = {
    "fp32": (),
    "fp16": ("--fp16",),
    "bf16": ("--bf16",),
    "fp8-delayed": ("--bf16", "--fp8-format", "hybrid", "--fp8-recipe", "delayed"),
    "fp8-current": ("--bf16", "--fp8-format", "hybrid", "--fp8-recipe", "tensorwise"),
    "fp8-block": ("--bf16", "--fp8-format", "e4m3", "--fp8-recipe", "blockwise"),
    "mxfp8": ("--bf16", "--fp8-format", "e4m3", "--fp8-recipe", "mxfp8"),
    "nvfp4": ("--bf16", "--fp4-format", "e2m1"),
}
_FP8_RECIPES = {
    "delayed": "fp8-delayed",
    "tensorwise": "fp8-current",
    "blockwise": "fp8-block",
    "mxfp8": "mxfp8",
}
_CP_TYPES = {"ring": "p2p", "all-gather": "allgather", "ulysses": "a2a"}
_SHARDING = ("no_shard", "optim", "optim_grads", "optim_grads_params")
_ORDERS: dict[tuple[str, ...], bool] = {DEFAULT_ORDER: False, ("tp", "cp", "pp", "dp"): True}
# What `--recompute-modules` takes, of the modules that a recipe can name.
_MODULES = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe")
_DEFAULT_DROPOUT = 0.1


def emit_megatron(job: Job) -> str:
    """Return the launch line of one layout: torchrun, ``pretrain_gpt.py`` and its flags.

    Raises
    ------
    FrameworkConfigError
        If Megatron-LM has no setting for the model, the schedule or the axis order.
    """
    counts = counts_of(job)
    flags = [*model_flags(job.model), *_layout_flags(job, counts), *_recipe_flags(job, counts)]
    per_node = min(job.cluster.gpus_per_node, counts["gpus"])
    launch = f"torchrun --nnodes {counts['gpus'] // per_node} --nproc-per-node {per_node} pretrain_gpt.py"
    text = " \\\n    ".join([launch, *_lines_of(flags)]) + "\n"
    back = import_megatron(text, recipe=_base_recipe(job))
    require_same_model(job, back.job["model"], "Megatron-LM")
    notes = [f"# model {job.model.name}, cluster {job.cluster.name}, recipe {job.recipe.name}"]
    notes += [f"# no flag for the recipe's {switch}" for switch in unsaid_switches(job, back)]
    return "\n".join([*notes, text])


def _base_recipe(job: Job) -> str:
    """Return the recipe's name if it is a shipped one, else the default."""
    from costmodel.describe.recipe import list_recipes

    return job.recipe.name if job.recipe.name in list_recipes() else DEFAULT_RECIPE


def _lines_of(flags: list[str]) -> list[str]:
    """Put each flag with its values on a line."""
    lines: list[list[str]] = []
    for part in flags:
        if part.startswith("--"):
            lines.append([part])
        else:
            lines[-1].append(shlex.quote(part))
    return [" ".join(line) for line in lines]


def _layout_flags(job: Job, counts: dict[str, int]) -> list[str]:
    """Return degrees, batch, schedule and sharding."""
    layout = job.layout
    schedule = schedule_at(layout.schedule).name
    if schedule not in ("none", "1f1b", "interleaved"):
        raise FrameworkConfigError(
            f"emit: Megatron-LM has no schedule {schedule}; plan with schedule = 1f1b, interleaved"
        )
    if tuple(job.axis_order) not in _ORDERS:
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
    if schedule == "interleaved":
        flags += ["--num-virtual-stages-per-pipeline-rank", str(counts["vp"])]
    if job.model.num_experts:
        flags += [
            "--expert-model-parallel-size",
            str(counts["ep"]),
            "--expert-tensor-parallel-size",
            str(counts["etp"]),
        ]
    if _ORDERS[tuple(job.axis_order)]:
        flags.append("--use-tp-pp-dp-mapping")
    flags += [
        "--micro-batch-size",
        str(counts["micro_batch"]),
        "--global-batch-size",
        str(counts["global_batch"]),
        "--seq-length",
        str(counts["seq_len"]),
    ]
    if counts["zero_stage"]:
        flags.append("--use-distributed-optimizer")
    if counts["zero_stage"] >= 2:
        flags += ["--use-megatron-fsdp", "--data-parallel-sharding-strategy", _SHARDING[counts["zero_stage"]]]
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
        flags += [module for module in job.recipe.memory.selective_modules if module in _MODULES]
    return flags


def _recipe_flags(job: Job, counts: dict[str, int]) -> list[str]:
    """Return precision and the switches of the recipe that have a flag."""
    recipe = job.recipe
    flags = list(_PRECISION_FLAGS[job.precision.name])
    if recipe.overlap.dp_overlap != "none":
        flags.append("--overlap-grad-reduce")
        if counts["zero_stage"]:
            flags.append("--overlap-param-gather")
    if recipe.dtypes.grad_reduce_dtype == "bf16":
        flags.append("--grad-reduce-in-bf16")
    if recipe.overlap.tp_overlap == "pipelined":
        flags.append("--tp-comm-overlap")
    if not recipe.overlap.pp_overlap:
        flags.append("--no-overlap-p2p-communication")
    if counts["cp"] > 1:
        flags += ["--cp-comm-type", _CP_TYPES[recipe.overlap.cp_method]]
    if job.model.num_experts:
        if recipe.moe.moe_dispatcher == "deep-ep":
            flags += ["--moe-token-dispatcher-type", "flex", "--moe-flex-dispatcher-backend", "deepep"]
        else:
            flags += ["--moe-token-dispatcher-type", recipe.moe.moe_dispatcher.replace("-", "")]
        if recipe.moe.grouped_gemm:
            flags.append("--moe-grouped-gemm")
        if recipe.moe.moe_capacity_factor:
            flags += ["--moe-expert-capacity-factor", f"{recipe.moe.moe_capacity_factor:g}"]
        if recipe.moe.ep_overlap:
            flags.append("--overlap-moe-expert-parallel-comm")
    if recipe.memory.embedding_as_layer:
        flags.append("--account-for-embedding-in-pipeline-split")
    if recipe.memory.head_as_layer:
        flags.append("--account-for-loss-in-pipeline-split")
    if not recipe.kernels.dropout:
        flags += ["--attention-dropout", "0.0", "--hidden-dropout", "0.0"]
    if recipe.kernels.attention_kernel == "unfused":
        flags += ["--attention-backend", "unfused"]
    if recipe.kernels.cross_entropy == "fused":
        flags.append("--cross-entropy-loss-fusion")
    if recipe.host.offload_optimizer:
        flags.append("--optimizer-cpu-offload")
    if recipe.host.cuda_graphs:
        flags.append("--enable-cuda-graph")
    return flags


def import_megatron(text: str, *, recipe: str = DEFAULT_RECIPE, name: str = "megatron") -> Imported:
    """Read launch flags (a shell script, or the arguments alone).

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
    model = model_of_flags(flags, name)
    job: dict[str, Any] = {"model": model, "recipe": recipe, **_layout_of(flags, model)}
    job["precision"] = _precision_of(flags)
    job["switches"] = _switches_of(flags, recipe, model)
    if flags.has("--use-tp-pp-dp-mapping"):
        job["axis_order"] = "tp cp pp dp"
    missing = tuple(key for key in ("gpus", "global_batch", "seq_len") if job.get(key) is None)
    return Imported(
        {key: value for key, value in job.items() if value is not None}, ("cluster", *missing), flags.unread()
    )


def _layout_of(flags: Flags, model: Model) -> dict[str, Any]:
    """Read degrees, batch, schedule, sharding and recomputation."""
    tp, pp = (
        flags.number("--tensor-model-parallel-size", 1),
        flags.number("--pipeline-model-parallel-size", 1),
    )
    cp = flags.number("--context-parallel-size", 1)
    nodes, per_node = flags.number("--nnodes"), flags.number("--nproc-per-node")
    gpus = flags.number("--world-size", None if nodes is None or per_node is None else nodes * per_node)
    vp = flags.number("--num-virtual-stages-per-pipeline-rank")
    layers_each = flags.number("--num-layers-per-virtual-pipeline-stage")
    if vp is None:
        vp = 1 if layers_each is None else model.num_layers // (pp * layers_each)
    zero = 1 if flags.has("--use-distributed-optimizer") else 0
    fsdp = flags.has("--use-megatron-fsdp") | flags.has("--use-custom-fsdp") | flags.has("--use-torch-fsdp2")
    strategy = flags.text("--data-parallel-sharding-strategy", "optim_grads_params" if fsdp else "")
    if fsdp:
        if strategy not in _SHARDING:
            raise FrameworkConfigError(
                f"--data-parallel-sharding-strategy: expected one of {', '.join(_SHARDING)}, got {strategy!r}"
            )
        zero = _SHARDING.index(strategy)
    instances = flags.number("--num-distributed-optimizer-instances", 1)
    shard_group = 0
    if instances > 1 and zero:
        if gpus is None:
            raise FrameworkConfigError(
                "--num-distributed-optimizer-instances: needs --nnodes and --nproc-per-node"
            )
        shard_group = gpus // (tp * pp) // instances
    granularity = flags.text(
        "--recompute-granularity", "selective" if flags.has("--recompute-activations") else "none"
    )
    flags.has("--recompute-activations")
    for unused in ("--recompute-method", "--recompute-num-layers"):
        flags.text(unused, "")
    ep = flags.number("--expert-model-parallel-size", 1)
    return {
        "gpus": gpus,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "vp": vp,
        "ep": ep,
        "etp": flags.number("--expert-tensor-parallel-size", tp if ep > 1 or model.num_experts else 1),
        "micro_batch": flags.number("--micro-batch-size", 1),
        "global_batch": flags.number("--global-batch-size"),
        "seq_len": flags.number("--seq-length"),
        "zero_stage": zero,
        "shard_group": shard_group,
        "recompute": granularity,
        "sequence_parallel": flags.has("--sequence-parallel") and tp > 1,
        "schedule": "none" if pp == 1 else "interleaved" if vp > 1 else "1f1b",
    }


def _precision_of(flags: Flags) -> str:
    """Read the precision of the GEMMs."""
    bf16, fp16 = flags.has("--bf16"), flags.has("--fp16")
    fp8, fp4 = flags.text("--fp8-format", ""), flags.text("--fp4-format", "")
    recipe = flags.text("--fp8-recipe", "delayed")
    if fp4:
        return "nvfp4"
    if fp8:
        if recipe not in _FP8_RECIPES:
            raise FrameworkConfigError(
                f"--fp8-recipe: expected one of {', '.join(_FP8_RECIPES)}, got {recipe!r}"
            )
        return _FP8_RECIPES[recipe]
    return "fp16" if fp16 else "bf16" if bf16 else "fp32"


def _switches_of(flags: Flags, recipe: str, model: Model) -> dict[str, Any]:
    """Read the switches that differ from those of the recipe."""
    base = load_recipe(recipe)
    overlaps = flags.has("--overlap-grad-reduce") | flags.has("--overlap-param-gather")
    pipelined, fused_loss = flags.has("--tp-comm-overlap"), flags.has("--cross-entropy-loss-fusion")
    dropout = (
        max(
            flags.real("--attention-dropout", _DEFAULT_DROPOUT),
            flags.real("--hidden-dropout", _DEFAULT_DROPOUT),
        )
        > 0
    )
    read: dict[str, Any] = {
        "dp_overlap": (base.overlap.dp_overlap if base.overlap.dp_overlap != "none" else "last-micro-batch")
        if overlaps
        else "none",
        "tp_overlap": "pipelined"
        if pipelined
        else "weight-grad"
        if base.overlap.tp_overlap == "pipelined"
        else base.overlap.tp_overlap,
        "pp_overlap": not flags.has("--no-overlap-p2p-communication"),
        "cross_entropy": "fused"
        if fused_loss
        else "unfused"
        if base.kernels.cross_entropy == "fused"
        else base.kernels.cross_entropy,
        "offload_optimizer": flags.has("--optimizer-cpu-offload"),
        "cuda_graphs": flags.has("--enable-cuda-graph") | flags.has("--cuda-graph-impl"),
        "embedding_as_layer": flags.has("--account-for-embedding-in-pipeline-split"),
        "head_as_layer": flags.has("--account-for-loss-in-pipeline-split"),
        "dropout": dropout,
    }
    if flags.has("--grad-reduce-in-bf16"):
        read["grad_reduce_dtype"] = "bf16"
    elif base.dtypes.grad_reduce_dtype == "bf16":
        read["grad_reduce_dtype"] = "fp32"
    flags.has("--accumulate-allreduce-grads-in-fp32")
    methods = {flag: method for method, flag in _CP_TYPES.items()}
    comm_type = flags.text("--cp-comm-type", "")
    if comm_type:
        if comm_type not in methods:
            raise FrameworkConfigError(
                f"--cp-comm-type: expected one of {', '.join(methods)}, got {comm_type!r}"
            )
        read["cp_method"] = methods[comm_type]
    if flags.text("--attention-backend", "auto") == "unfused":
        read["attention_kernel"] = "unfused"
    modules = flags.words("--recompute-modules")
    if modules:
        read["selective_modules"] = tuple(modules)
    if model.num_experts:
        read |= _expert_switches(flags)
    current = base.switches
    return {key: value for key, value in read.items() if current[key] != value}


def _expert_switches(flags: Flags) -> dict[str, Any]:
    """Read how tokens reach their experts."""
    kinds = {"alltoall": "all-to-all", "allgather": "all-gather", "flex": "deep-ep"}
    given = flags.text("--moe-token-dispatcher-type", "allgather")
    flags.text("--moe-flex-dispatcher-backend", "")
    if given not in kinds:
        raise FrameworkConfigError(
            f"--moe-token-dispatcher-type: expected one of {', '.join(kinds)}, got {given!r}"
        )
    return {
        "moe_dispatcher": kinds[given],
        "grouped_gemm": flags.has("--moe-grouped-gemm"),
        "moe_capacity_factor": flags.real("--moe-expert-capacity-factor", 0.0),
        "ep_overlap": flags.has("--overlap-moe-expert-parallel-comm"),
    }
