"""The arguments of Megatron-LM that a job of ours means, on one layout or many, and those that flags say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from costmodel.describe.jobs.fields import RECOMPUTE_POLICIES
from costmodel.describe.models.mixers import GatedDelta, Indexed
from costmodel.interop.assertions.record import WORDS, Arguments
from costmodel.interop.megatron_mixers import is_hybrid
from costmodel.interop.megatron_text import Flags
from costmodel.physics.pipeline.chunks import parse_chunks
from costmodel.physics.pipeline.schedules import fold, schedule_code

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job
    from costmodel.describe.models.model import Model

LONGEST = 2**17
"""Positions that are written where the model has no table of them."""

MODULES = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe")
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
    grouped = sharded & (layout.shard_group > 0)
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
        "num_distributed_optimizer_instances": np.where(
            grouped, layout.dp * layout.cp / np.maximum(layout.shard_group, 1.0), 1.0
        ),
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
        "hidden_size": float(model.hidden_size),
        "num_attention_heads": float(model.num_heads),
        "num_query_groups": float(model.num_heads if model.attention == "mla" else model.num_kv_heads),
        "multi_latent_attention": float(model.attention == "mla"),
        "position_embedding_type": WORDS["rope"] if model.position == "rope" else WORDS["learned_absolute"],
        "rotary_base": _rotary_base(model),
        "rope_theta": _rotary_base(model),
        "window_size": float(model.sliding_window - 1 if model.sliding_window else 0),
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


def _rotary_base(model: Model) -> float:
    """Return the base of a model's rotation, Megatron's own where it is not known."""
    return model.rope_theta or 10_000.0


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
        "cuda_graph_impl": graph_of(recipe.host.cuda_graphs, recipe.host.cuda_graph_scope),
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


def graph_of(graphs: bool, scope: str) -> float:
    """Return which implementation of CUDA graphs runs a scope of ours."""
    return 0.0 if not graphs else WORDS["local"] if scope == "all" else WORDS["transformer_engine"]


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
        **{f"recompute_{name}": selective & (name in named) for name in MODULES},
        "recompute_other": selective & bool(named - set(MODULES)),
    }


def _layout(job: Job) -> dict[str, ArrayLike]:
    """Return how layers are dealt to stages: by a layout string, or by counting embedding and head as layers."""
    layout, chunks = job.layout, job.pipeline_layout
    piped = layout.pp > 1
    balanced = piped & job.balanced_stages & (fold(layout.schedule) == 0)
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


_NUMBERS = """tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size expert-model-parallel-size
    expert-tensor-parallel-size micro-batch-size global-batch-size seq-length num-layers mtp-num-layers hidden-size
    num-attention-heads num-query-groups num-experts moe-ffn-hidden-size moe-router-topk moe-router-num-groups
    moe-router-group-topk max-position-embeddings recompute-num-layers num-virtual-stages-per-pipeline-rank
    num-distributed-optimizer-instances""".split()  # noqa: SIM905
_SWITCHES = """sequence-parallel use-megatron-fsdp
    use-tp-pp-dp-mapping use-distributed-optimizer overlap-grad-reduce overlap-param-gather
    multi-latent-attention moe-router-enable-expert-bias moe-router-pre-softmax tp-comm-overlap moe-grouped-gemm
    overlap-moe-expert-parallel-comm fp16 bf16 optimizer-cpu-offload use-precision-aware-optimizer
    account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split""".split()  # noqa: SIM905
_WORDED = {
    "position-embedding-type": "learned_absolute",
    "moe-router-score-function": "softmax",
    "moe-token-dispatcher-type": "allgather",
    "recompute-granularity": "none",
    "recompute-method": "none",
    "cuda-graph-impl": "none",
}


def written(text: str) -> dict[str, ArrayLike]:
    """Return what flags say of the same arguments: those that are not there have Megatron's defaults.

    Parameters
    ----------
    text : str
        A launch script of ours: flags, and the environment before them.
    """
    flags = Flags(text)
    found: dict[str, ArrayLike] = {_name(flag): float(flags.number(f"--{flag}", 0)) for flag in _NUMBERS}
    for degree in ("tensor_model", "pipeline_model", "context", "expert_model"):
        found[f"{degree}_parallel_size"] = np.maximum(found[f"{degree}_parallel_size"], 1.0)
    tp = found["tensor_model_parallel_size"]
    found["expert_tensor_parallel_size"] = found["expert_tensor_parallel_size"] or (
        tp if found["num_experts"] else 1.0
    )
    found |= {_name(flag): float(flags.has(f"--{flag}")) for flag in _SWITCHES}
    for flag, default in _WORDED.items():
        word = flags.text(f"--{flag}", default).replace("yarn", "rope")
        found[_name(flag)] = WORDS[word if word in WORDS else default]
    if not found["num_experts"]:
        found |= {"moe_token_dispatcher_type": 0.0, "moe_router_score_function": WORDS["softmax"]}
    if not flags.has("--group-query-attention"):
        found["num_query_groups"] = found["num_attention_heads"]
    nodes, each = flags.number("--nnodes", 1), flags.number("--nproc-per-node", 1)
    world = found["world_size"] = float(nodes * each)
    pp, cp = found["pipeline_model_parallel_size"], found["context_parallel_size"]
    experts = found["expert_model_parallel_size"] * found["expert_tensor_parallel_size"]  # type: ignore[operator]
    found["data_parallel_size"] = world / (tp * pp * cp)  # type: ignore[operator]
    found["expert_data_parallel_size"] = world / (pp * experts)  # type: ignore[operator]
    found["num_distributed_optimizer_instances"] = found["num_distributed_optimizer_instances"] or 1.0
    found["rotary_base"] = float(flags.number("--rotary-base", 10_000))
    by = flags.text("--cp-comm-type", "p2p")
    found["cp_by_a2a"], found["cp_by_all_gather"] = (
        float(by == "a2a"),
        float(by.replace("_", "") == "allgather"),
    )
    found["softmax_learnable"] = float(flags.text("--softmax-type", "vanilla") == "learnable")
    found["muon"] = float("muon" in flags.text("--optimizer", "adam"))
    found["add_bias_linear"] = float(not flags.has("--disable-bias-linear"))
    found["overlap_p2p_comm"] = float(not flags.has("--no-overlap-p2p-communication"))
    found["fp8"], found["fp4"] = float(flags.has("--fp8-format")), float(flags.has("--fp4-format"))
    found["fp8_delayed"] = float(bool(found["fp8"]) and flags.text("--fp8-recipe", "delayed") == "delayed")
    found["ckpt_format_fsdp_dtensor"] = float(flags.text("--ckpt-format", "") == "fsdp_dtensor")
    variant = flags.text("--experimental-attention-variant", "")
    found["gated_delta_net"], found["dsa"] = float(variant == "gated_delta_net"), float(variant == "dsa")
    found["linear_num_key_heads"] = float(flags.number("--linear-num-key-heads", 16))
    found["linear_num_value_heads"] = float(flags.number("--linear-num-value-heads", 32))
    found["window_size"] = float(flags.text("--window-size", "0").split(",")[0])
    scope = flags.words("--cuda-graph-scope")
    found["cuda_graph_full_iteration"] = float("full_iteration" in scope)
    found["cuda_graph_mlp"] = float("mlp" in scope)
    modules = flags.words("--recompute-modules") or ["core_attn"]
    selective = found["recompute_granularity"] == WORDS["selective"]
    found |= {f"recompute_{name}": float(selective and name in modules) for name in MODULES}
    found["recompute_other"] = float(selective and bool(set(modules) - set(MODULES)))
    found["cuda_device_max_connections"] = float("CUDA_DEVICE_MAX_CONNECTIONS=1" in text)
    return found | _written_layout(flags, found)


def _written_layout(flags: Flags, found: dict[str, ArrayLike]) -> dict[str, ArrayLike]:
    """Return what a layout string deals out, and the chunks of a rank."""
    text = flags.text("--pipeline-model-parallel-layout", "")
    chunks = parse_chunks(text) if text else ()
    pp, asked = found["pipeline_model_parallel_size"], found["num_virtual_stages_per_pipeline_rank"]
    each = float(len(chunks) // int(pp)) if chunks else float(asked)  # type: ignore[arg-type]
    return {
        "pipeline_model_parallel_layout": float(bool(chunks)),
        "layout_stages": float(len(chunks)) if chunks else float(pp) * max(float(asked), 1.0),  # type: ignore[arg-type]
        "layout_layers": float(sum(c.layers for c in chunks)) if chunks else found["num_layers"],
        "layout_mtp_layers": float(sum(c.mtp for c in chunks)) if chunks else found["mtp_num_layers"],
        "virtual_pipeline_model_parallel_size": each if each > 1 else 0.0,
    }


def _name(flag: str) -> str:
    return flag.replace("-", "_")
