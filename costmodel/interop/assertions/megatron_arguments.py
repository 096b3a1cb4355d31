"""The arguments of Megatron-LM that a job of ours means, on one layout or many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from costmodel.describe.frameworks import FRAMEWORKS, MEGATRON_2026
from costmodel.describe.jobs.fields import RECOMPUTE_POLICIES
from costmodel.describe.models.mixers import GatedDelta, Indexed
from costmodel.interop.assertions.arguments import WORDS, Arguments, kv_heads
from costmodel.interop.megatron_mixers import is_hybrid
from costmodel.physics.pipeline.schedules import fact, schedule_code

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job
    from costmodel.describe.models.model import Model

LONGEST = 2**17
"""Positions that are written where the model has no table of them."""

MODULES = FRAMEWORKS["megatron"].recompute_modules
"""What ``--recompute-modules`` takes, of the modules that a recipe can name."""

_DISPATCHERS = {"all-to-all": "alltoall", "all-gather": "allgather", "deep-ep": "flex", "hybrid-ep": "flex"}


def arguments(job: Job) -> Arguments:
    """Return the arguments of `costmodel.interop.megatron.emit_megatron`'s flags, as far as assertions look at them."""
    return {**_placement(job), **_of_model(job), **_of_recipe(job), **_recomputation(job)}


def _placement(job: Job) -> dict[str, ArrayLike]:
    layout, memory = job.layout, job.recipe.memory
    has_experts = job.model.num_experts > 0
    interleaved = layout.schedule == schedule_code("interleaved")
    by_matrix = job.optimizer.name == "muon"  # deals its states out without the distributed optimizer
    balanced = (layout.pp > 1) & job.balanced_stages & (fact("fold", layout.schedule) == 0)
    given = balanced | bool(job.pipeline_layout)
    return {
        "world_size": layout.gpus,
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
        "virtual_pipeline_model_parallel_size": np.where(interleaved, layout.vp, 0.0),
        "context_parallel_size": layout.cp,
        "expert_model_parallel_size": layout.ep if has_experts else np.asarray(1.0),
        "expert_tensor_parallel_size": layout.etp if has_experts else np.asarray(1.0),
        "data_parallel_size": layout.dp,
        "expert_data_parallel_size": layout.expert_dp,
        "sequence_parallel": layout.sequence_parallel > 0,
        "use_tp_pp_dp_mapping": float(tuple(job.axis_order).index("pp") < tuple(job.axis_order).index("dp")),
        "micro_batch_size": layout.micro_batch,
        "global_batch_size": job.global_batch,
        "seq_length": job.seq_len,
        "use_distributed_optimizer": (layout.zero_stage > 0) & (not by_matrix),
        "use_megatron_fsdp": layout.zero_stage >= 2,
        "pipeline_model_parallel_layout": given,
        "account_for_embedding_in_pipeline_split": ~given & memory.embedding_as_layer,
        "account_for_loss_in_pipeline_split": ~given & (memory.head_as_layer > 0),
    }


def _of_model(job: Job) -> dict[str, ArrayLike]:
    model = job.model
    delta = next((sizes for sizes in model.mixers.values() if isinstance(sizes, GatedDelta)), None)
    return {
        "num_layers": float(model.num_layers),
        "mtp_num_layers": float(model.mtp_layers),
        "num_attention_heads": float(model.num_heads),
        "num_query_groups": kv_heads(model),
        "multi_latent_attention": float(model.attention == "mla"),
        "position_embedding_type": WORDS["rope"] if model.position == "rope" else WORDS["learned_absolute"],
        "max_position_embeddings": positions_of(model, job.seq_len),
        "sliding_window": float(model.sliding_window),
        "softmax_learnable": float(model.attention_sinks),
        "add_bias_linear": float(has_biases(model)),
        "num_experts": float(model.num_experts),
        "hybrid": float(is_hybrid(model)),
        "gated_delta_net": float(delta is not None),
        "linear_num_key_heads": float(delta.key_heads if delta else 16),
        "linear_num_value_heads": float(delta.value_heads if delta else 32),
        "dsa": float(any(isinstance(sizes, Indexed) for sizes in model.mixers.values())),
    }


def _of_recipe(job: Job) -> dict[str, ArrayLike]:
    recipe, layout, precision = job.recipe, job.layout, job.precision.name
    moe, host, has_experts = recipe.moe, recipe.host, job.model.num_experts > 0
    graphs_static = host.cuda_graphs and host.cuda_graph_scope == "static"
    return {
        "tp_comm_overlap": (recipe.overlap.tp_overlap == "pipelined") & (layout.tp > 1),
        "overlap_p2p_comm": float(recipe.overlap.pp_overlap),
        "cp_by_a2a": (recipe.overlap.cp_method == "ulysses") & (layout.cp > 1),
        "cp_by_all_gather": (recipe.overlap.cp_method == "all-gather") & (layout.cp > 1),
        "moe_token_dispatcher_type": WORDS[_DISPATCHERS[moe.moe_dispatcher]] if has_experts else 0.0,
        "hybrid_ep": (moe.moe_dispatcher == "hybrid-ep") & (layout.ep * layout.etp > 1),
        "moe_expert_capacity_factor": float(moe.moe_capacity_factor if has_experts else 0),
        "moe_grouped_gemm": float(has_experts and moe.grouped_gemm),
        "overlap_moe_expert_parallel_comm": has_experts & moe.ep_overlap & (layout.ep > 1),
        "fp16": float(precision == "fp16"),
        "bf16": float(precision not in ("fp16", "fp32")),
        "fp8_delayed": float(precision == "fp8-delayed"),
        "use_precision_aware_optimizer": float(host.offload_optimizer),
        "muon": float(job.optimizer.name == "muon"),
        "cuda_graph_impl": WORDS[graph_of(job)],
        "cuda_graph_full_iteration": float(host.cuda_graphs and host.cuda_graph_scope == "all"),
        "cuda_graph_mlp": float(graphs_static and has_part(job.model, "mlp")),
    }


def _recomputation(job: Job) -> dict[str, ArrayLike]:
    codes = np.asarray([WORDS[name] for name in RECOMPUTE_POLICIES])
    policy = codes[np.asarray(job.layout.recompute, dtype=np.int64)]
    named, selective = set(job.recipe.memory.selective_modules), policy == WORDS["selective"]
    requested = {name: selective & (name in named) for name in ("moe_act", "layernorm", "mla_up_proj", "moe")}
    return {
        "recompute_granularity": policy,
        "recompute_other": selective & bool(named - set(MODULES)),
        **{f"recompute_{name}": value for name, value in requested.items()},
    }


def positions_of(model: Model, longest: ArrayLike) -> Any:
    """Return the positions a model is given: its own, made longer where its sequences are."""
    return model.max_positions or np.maximum(model.context_length or LONGEST, longest)


def has_biases(model: Model) -> bool:
    """Return whether every linear layer has a bias."""
    return model.linear_bias and model.qkv_bias and model.attention_out_bias


def has_expert_bias(model: Model) -> bool:
    """Return whether experts are chosen by scores with a bias of their own; a gate with a bias is a linear layer."""
    return model.router_bias and not has_biases(model)


def has_part(model: Model, part: str) -> bool:
    """Return whether a model has what a scope of CUDA graphs names."""
    if part == "mlp":
        return any(not kind.is_moe for kind in model.layer_kinds())
    return bool(model.num_experts) or not part.startswith("moe")


def graph_of(job: Job) -> str:
    """Return which implementation of CUDA graphs runs a recipe's scope, as the release that it names spells it."""
    host, launches = job.recipe.host, job.recipe.launches
    if not host.cuda_graphs:
        return "none"
    if host.cuda_graph_scope != "all":
        return "transformer_engine"
    return "full_iteration" if launches and launches.release == MEGATRON_2026 else "local"


def connections(job: Job) -> ArrayLike:
    """Return what ``CUDA_DEVICE_MAX_CONNECTIONS`` has to be: 1 where TP or CP order their kernels, else free (0)."""
    ordered = (job.layout.tp > 1) | (job.layout.cp > 1)
    overlapped = (job.model.num_experts > 0) & job.recipe.moe.ep_overlap & (job.layout.ep > 1)
    return np.where(ordered & ~np.asarray(overlapped) & (job.layout.zero_stage < 2), 1.0, 0.0)
