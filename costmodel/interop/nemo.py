"""NeMo / Megatron-Bridge overrides for a job: ``key=value`` lines for a recipe's command line.

Keys of ``ConfigContainer`` in NVIDIA-NeMo/Megatron-Bridge; there is no importer, because recipes
are Python functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.describe.jobs.fields import RECOMPUTE_POLICIES
from costmodel.interop.framework import FrameworkConfigError, counts_of
from costmodel.interop.megatron import ORDERS
from costmodel.interop.megatron_job import CP_TYPES, GRAPH_SCOPES
from costmodel.physics.pipeline.chunks import chunks_text
from costmodel.step.price import chunks_of

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job

_SHARDING = ("no_shard", "optim", "optim_grads", "optim_grads_params")


def emit_nemo(job: Job) -> str:
    """Return the overrides of one layout, a line each.

    Raises
    ------
    FrameworkConfigError
        If Megatron-Bridge cannot run the schedule or the precision.
    """
    counts, recipe = counts_of(job), job.recipe
    policy = RECOMPUTE_POLICIES[int(job.layout.recompute)]
    chunks = chunks_of(job)
    values: dict[str, object] = {
        "model.tensor_model_parallel_size": counts["tp"],
        "model.pipeline_model_parallel_size": counts["pp"],
        "model.virtual_pipeline_model_parallel_size": counts["vp"] if counts["vp"] > 1 else None,
        "model.pipeline_model_parallel_layout": chunks_text(chunks) if chunks else None,
        "model.context_parallel_size": counts["cp"],
        "model.sequence_parallel": bool(job.layout.sequence_parallel) and counts["tp"] > 1,
        "model.seq_length": counts["seq_len"],
        "dataset.seq_length": counts["seq_len"],
        "train.micro_batch_size": counts["micro_batch"],
        "train.global_batch_size": counts["global_batch"],
        "mixed_precision": FRAMEWORKS["nemo"].precisions[job.precision.name],
        "ddp.use_distributed_optimizer": counts["zero_stage"] >= 1,
        "ddp.data_parallel_sharding_strategy": _SHARDING[counts["zero_stage"]],
        "ddp.overlap_grad_reduce": recipe.overlap.dp_overlap != "none",
        "ddp.overlap_param_gather": recipe.overlap.dp_overlap != "none" and counts["zero_stage"] >= 1,
        "comm_overlap.tp_comm_overlap": recipe.overlap.tp_overlap == "pipelined",
        "comm_overlap.overlap_p2p_comm": recipe.overlap.pp_overlap and counts["vp"] > 1,
    }
    if kind := FRAMEWORKS["nemo"].optimizers[job.optimizer.name]:
        values["optimizer.optimizer"] = kind
    if tuple(job.axis_order) not in ORDERS:
        raise FrameworkConfigError(
            f"emit: Megatron-Bridge cannot place the axes as {' '.join(job.axis_order)}"
        )
    if ORDERS[tuple(job.axis_order)]:
        values["dist.use_tp_pp_dp_mapping"] = True
    if counts["cp"] > 1:
        values["model.cp_comm_type"] = CP_TYPES[recipe.overlap.cp_method]
    if recipe.host.cuda_graphs:
        values["model.cuda_graph_impl"] = (
            "local" if recipe.host.cuda_graph_scope == "all" else "transformer_engine"
        )
        values["model.cuda_graph_scope"] = f"[{GRAPH_SCOPES[recipe.host.cuda_graph_scope]}]"
    if job.model.num_experts:
        values["model.expert_model_parallel_size"] = counts["ep"]
        values["model.expert_tensor_parallel_size"] = counts["etp"]
        flexible = recipe.moe.moe_dispatcher == "deep-ep"
        kind = "flex" if flexible else recipe.moe.moe_dispatcher.replace("-", "")
        values["model.moe_token_dispatcher_type"] = kind
        if flexible:
            values["model.moe_flex_dispatcher_backend"] = "deepep"
        values["comm_overlap.overlap_moe_expert_parallel_comm"] = recipe.moe.ep_overlap
    if counts["zero_stage"] >= 2:
        values["ddp.use_megatron_fsdp"] = True
    if policy != "none":
        values["model.recompute_granularity"] = policy
    if policy == "full":
        values["model.recompute_method"], values["model.recompute_num_layers"] = "uniform", 1
    elif policy == "selective":
        values["model.recompute_modules"] = "[" + ",".join(recipe.memory.selective_modules) + "]"
    head = f"# Megatron-Bridge overrides: {job.model.name} on {counts['gpus']} GPUs of {job.cluster.name}"
    lines = [f"{key}={_plain(value)}" for key, value in values.items()]
    return "\n".join([head, *lines]) + "\n"


def _plain(value: object) -> str:
    """Return a value as Hydra reads it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
