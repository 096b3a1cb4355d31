"""The arguments of Megatron-LM that a job of ours means, on one layout or many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from costmodel.describe.frameworks import FRAMEWORKS, MEGATRON_2026
from costmodel.describe.jobs.fields import RECOMPUTE_POLICIES
from costmodel.describe.models.mixers import GatedDelta, Indexed
from costmodel.interop.assertions.record import WORDS, Arguments
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
    return {
        **_placement(job),
        **_of_model(job.model),
        **_of_recipe(job),
        **_recomputation(job),
        **_layout(job),
    }


def _placement(job: Job) -> dict[str, ArrayLike]:
    layout = job.layout
    interleaved = layout.schedule == schedule_code("interleaved")
    sharded = layout.zero_stage > 0
    by_matrix = job.optimizer.name == "muon"  # deals its states out without the distributed optimizer
    return {
        "world_size": layout.gpus,
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
        "virtual_pipeline_model_parallel_size": np.where(interleaved, layout.vp, 0.0),
        "context_parallel_size": layout.cp,
        "expert_model_parallel_size": layout.ep if job.model.num_experts else np.asarray(1.0),
        "expert_tensor_parallel_size": layout.etp if job.model.num_experts else np.asarray(1.0),
        "data_parallel_size": layout.dp,
        "expert_data_parallel_size": layout.expert_dp,
        "sequence_parallel": (layout.sequence_parallel > 0) & (layout.tp > 1),
        "use_tp_pp_dp_mapping": float(tuple(job.axis_order).index("pp") < tuple(job.axis_order).index("dp")),
        "micro_batch_size": layout.micro_batch,
        "global_batch_size": job.global_batch,
        "seq_length": job.seq_len,
        "use_distributed_optimizer": sharded & (not by_matrix),
        "use_megatron_fsdp": layout.zero_stage >= 2,
        "ckpt_format_fsdp_dtensor": layout.zero_stage >= 2,
        "overlap_grad_reduce": float(job.recipe.overlap.dp_overlap != "none"),
        "overlap_param_gather": sharded & (not by_matrix) & (job.recipe.overlap.dp_overlap != "none"),
    }


def _of_model(model: Model) -> dict[str, ArrayLike]:
    gate_bias = has_expert_bias(model)
    return {
        "num_layers": float(model.num_layers),
        "mtp_num_layers": float(model.mtp_layers),
        "num_attention_heads": float(model.num_heads),
        "num_query_groups": float(model.num_heads if model.attention == "mla" else model.num_kv_heads),
        "multi_latent_attention": float(model.attention == "mla"),
        "position_embedding_type": WORDS["rope"] if model.position == "rope" else WORDS["learned_absolute"],
        "sliding_window": float(model.sliding_window),
        "add_bias_linear": float(has_biases(model)),
        "num_experts": float(model.num_experts),
        "moe_ffn_hidden_size": float(model.expert_ffn_size if model.num_experts else 0),
        "moe_router_topk": float(model.top_k),
        "moe_router_num_groups": float(model.expert_groups),
        "moe_router_group_topk": float(model.groups_per_token),
        "moe_router_enable_expert_bias": float(gate_bias),
        "moe_router_score_function": WORDS["sigmoid"] if gate_bias or model.top_k == 1 else WORDS["softmax"],
        "moe_router_pre_softmax": 0.0,
        **_of_mixers(model),
    }


def _of_mixers(model: Model) -> dict[str, ArrayLike]:
    """Return what assertions look at of layers that are no plain softmax attention."""
    delta = next((sizes for sizes in model.mixers.values() if isinstance(sizes, GatedDelta)), None)
    return {
        "hybrid": float(is_hybrid(model)),
        "gated_delta_net": float(delta is not None),
        "linear_num_key_heads": float(delta.key_heads if delta else 16),
        "linear_num_value_heads": float(delta.value_heads if delta else 32),
        "dsa": float(any(isinstance(sizes, Indexed) for sizes in model.mixers.values())),
    }


def _of_recipe(job: Job) -> dict[str, ArrayLike]:
    recipe, model, precision = job.recipe, job.model, job.precision.name
    moe = bool(model.num_experts)
    return {
        "max_position_embeddings": positions_of(model, job.seq_len),
        "tp_comm_overlap": (recipe.overlap.tp_overlap == "pipelined") & (job.layout.tp > 1),
        "overlap_p2p_comm": float(recipe.overlap.pp_overlap),
        "cp_by_a2a": (recipe.overlap.cp_method == "ulysses") & (job.layout.cp > 1),
        "cp_by_all_gather": (recipe.overlap.cp_method == "all-gather") & (job.layout.cp > 1),
        "softmax_learnable": float(model.attention_sinks),
        "moe_token_dispatcher_type": _dispatcher(job) if moe else 0.0,
        "hybrid_ep": (recipe.moe.moe_dispatcher == "hybrid-ep") & (job.layout.ep * job.layout.etp > 1),
        "moe_expert_capacity_factor": float(recipe.moe.moe_capacity_factor if moe else 0),
        "moe_grouped_gemm": float(moe and recipe.moe.grouped_gemm),
        "overlap_moe_expert_parallel_comm": (moe and recipe.moe.ep_overlap) & (job.layout.ep > 1),
        "fp16": float(precision == "fp16"),
        "bf16": float(precision not in ("fp16", "fp32")),
        "fp8": float(precision.startswith(("fp8", "mxfp8"))),
        "fp4": float(precision.endswith("fp4")),
        "fp8_delayed": float(precision == "fp8-delayed"),
        "optimizer_cpu_offload": float(recipe.host.offload_optimizer),
        "use_precision_aware_optimizer": float(recipe.host.offload_optimizer),
        "muon": float(job.optimizer.name == "muon"),
        "cuda_graph_impl": WORDS[graph_of(job)],
        "cuda_graph_full_iteration": float(recipe.host.cuda_graphs and recipe.host.cuda_graph_scope == "all"),
        "cuda_graph_mlp": float(
            recipe.host.cuda_graphs and recipe.host.cuda_graph_scope == "static" and has_part(model, "mlp")
        ),
        "cuda_device_max_connections": connections(job),
        "blackwell": float(job.cluster.accelerator.software.fp8 == "mxfp8"),
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


def _dispatcher(job: Job) -> ArrayLike:
    """Return how tokens travel; where one rank holds all experts nothing does, and the flex dispatcher refuses."""
    chosen = WORDS[_DISPATCHERS[job.recipe.moe.moe_dispatcher]]
    return np.where(job.layout.ep * job.layout.etp > 1, chosen, min(chosen, WORDS["alltoall"]))


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
    overlapped = bool(job.model.num_experts) and job.recipe.moe.ep_overlap
    return np.where(ordered & (not overlapped) & (job.layout.zero_stage < 2), 1.0, 0.0)


def _recomputation(job: Job) -> dict[str, ArrayLike]:
    policy = job.layout.recompute
    codes = np.asarray([WORDS[name] for name in RECOMPUTE_POLICIES])
    full = policy == RECOMPUTE_POLICIES.index("full")
    named = set(job.recipe.memory.selective_modules)
    selective = policy == RECOMPUTE_POLICIES.index("selective")
    return {
        "recompute_granularity": codes[np.asarray(policy, dtype=np.int64)],
        "recompute_method": np.where(full, WORDS["uniform"], 0.0),
        "recompute_num_layers": np.where(full, 1.0, 0.0),
        **{
            f"recompute_{name}": selective & (name in named)
            for name in ("moe_act", "layernorm", "mla_up_proj", "moe")
        },
        "recompute_other": selective & bool(named - set(MODULES)),
    }


def _layout(job: Job) -> dict[str, ArrayLike]:
    """Return how layers are dealt to stages: by a layout string, or by counting embedding and head as layers."""
    layout, chunks = job.layout, job.pipeline_layout
    piped = layout.pp > 1
    balanced = piped & job.balanced_stages & (fact("fold", layout.schedule) == 0)
    given = balanced | bool(chunks)
    held = float(sum(chunk.layers for chunk in chunks)) if chunks else float(job.model.num_layers)
    return {
        "pipeline_model_parallel_layout": given,
        "layout_stages": float(len(chunks)) if chunks else layout.pp * layout.vp,
        "layout_layers": held,
        "layout_mtp_layers": float(sum(chunk.mtp for chunk in chunks))
        if chunks
        else float(job.model.mtp_layers),
        # The two are never written beside each other: the layout says how many chunks a rank has.
        "num_virtual_stages_per_pipeline_rank": np.where(
            given | (layout.schedule != schedule_code("interleaved")), 0.0, layout.vp
        ),
        "account_for_embedding_in_pipeline_split": np.logical_not(given)
        & job.recipe.memory.embedding_as_layer,
        "account_for_loss_in_pipeline_split": np.logical_not(given) & (job.recipe.memory.head_as_layer > 0),
    }
