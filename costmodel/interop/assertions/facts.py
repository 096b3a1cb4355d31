"""What frameworks' assertions look at: numbers of a job, on one layout or many, under our own names; 0 is false or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from costmodel.describe.frameworks import FRAMEWORKS, MEGATRON_2026
from costmodel.describe.jobs.fields import RECOMPUTE_POLICIES
from costmodel.describe.models.mixers import GatedDelta, Indexed
from costmodel.interop.keys import key_table
from costmodel.interop.megatron_mixers import is_hybrid
from costmodel.physics.pipeline.schedule_table import SCHEDULES
from costmodel.physics.pipeline.schedules import fact, schedule_code

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job
    from costmodel.describe.models.model import Model

Facts = Mapping[str, ArrayLike]

LONGEST = 2**17
"""Positions that are written where the model has no table of them."""
MODULES = FRAMEWORKS["megatron"].recompute_modules
"""What ``--recompute-modules`` takes, of the modules that a recipe can name."""
_TORCHTITAN = key_table("torchtitan").more
_ROTARY_TABLES = {"llama3": 131072, "deepseek_v3": 16384, "gpt_oss": 131072, "qwen3": 40960}
"""Longest sequence of each family's rotary table (torchtitan/models/*/__init__.py, `max_seq_len`)."""


def facts(job: Job) -> Facts:
    """Return every number of a job that an assertion may name."""
    return {**_of_layout(job), **_of_model(job), **_of_recipe(job)}


def _of_layout(job: Job) -> dict[str, ArrayLike]:
    layout, memory = job.layout, job.recipe.memory
    interleaved = layout.schedule == schedule_code("interleaved")
    several = [name in _TORCHTITAN["words"]["several_stages"] for name in SCHEDULES]
    looped = np.asarray(several)[np.asarray(layout.schedule, np.int64)]
    balanced = (layout.pp > 1) & job.balanced_stages & (fact("fold", layout.schedule) == 0)
    placed = balanced | bool(job.pipeline_layout)
    # FSDP shards over whole groups of context ranks.
    ranks, sharded = layout.dp * layout.cp, layout.zero_stage > 0
    group = np.where(sharded & (layout.shard_group > 0), layout.shard_group, ranks)
    shard = np.where(sharded, np.maximum(group / layout.cp, 1.0), 1.0)
    first, last = float(memory.embedding_as_layer), float(memory.head_as_layer)
    each = np.ceil((job.model.num_layers + first + last) / (layout.pp * layout.vp))
    dense = {} if job.model.num_experts else {"ep": 1.0, "etp": 1.0}
    return {
        **{field.name: getattr(layout, field.name) for field in fields(layout)},
        **dense,
        "dp": layout.dp,
        "expert_dp": layout.expert_dp,
        "global_batch": job.global_batch,
        "seq_len": job.seq_len,
        "micro_batches": job.micro_batches,
        "local_batch": layout.micro_batch * np.where(layout.pp > 1, job.micro_batches, 1.0),
        "shard": shard,
        "replicas": layout.dp / shard,
        "whole_groups": (group % layout.cp == 0) & (ranks % group == 0),
        "pp_before_dp": float(tuple(job.axis_order).index("pp") < tuple(job.axis_order).index("dp")),
        "interleaved": interleaved,
        "virtual_stages": np.where(interleaved, layout.vp, 0.0),
        "looped": looped,
        "stages_per_rank": np.where(looped, layout.vp, 1.0),
        "layers_per_stage": np.where((layout.pp > 1) & looped & (layout.vp != 2), each, 0.0),
        "placed": placed,
        "embedding_as_layer": first,
        "head_as_layer": last,
        "selective": layout.recompute == RECOMPUTE_POLICIES.index("selective"),
        "full": layout.recompute == RECOMPUTE_POLICIES.index("full"),
    }


def _of_model(job: Job) -> dict[str, ArrayLike]:
    model = job.model
    delta = next((sizes for sizes in model.mixers.values() if isinstance(sizes, GatedDelta)), None)
    family = next((family for name, (family, *_) in _TORCHTITAN["models"].items() if name == model.name), "")
    return {
        "num_layers": float(model.num_layers),
        "mtp_layers": float(model.mtp_layers),
        "num_heads": float(model.num_heads),
        # Latent attention has keys and values for each query.
        "num_kv_heads": float(model.num_heads if model.attention == "mla" else model.num_kv_heads),
        "num_experts": float(model.num_experts),
        "mla": float(model.attention == "mla"),
        "rotary": float(model.position == "rope"),
        "rotary_table": float(_ROTARY_TABLES.get(family, np.inf)),
        "max_positions": positions_of(model, job.seq_len),
        "sliding_window": float(model.sliding_window),
        "attention_sinks": float(model.attention_sinks),
        "biases": float(has_biases(model)),
        "tied_embeddings": float(model.tied_embeddings),
        "hybrid": float(is_hybrid(model)),
        "gated_delta": float(delta is not None),
        "key_heads": float(delta.key_heads if delta else 1),
        "value_heads": float(delta.value_heads if delta else 1),
        "indexed": float(any(isinstance(sizes, Indexed) for sizes in model.mixers.values())),
    }


def _of_recipe(job: Job) -> dict[str, ArrayLike]:
    layout, recipe, precision = job.layout, job.recipe, job.precision.name
    moe, host, overlap, has_experts = recipe.moe, recipe.host, recipe.overlap, job.model.num_experts > 0
    named = set(recipe.memory.selective_modules)
    selective = layout.recompute == RECOMPUTE_POLICIES.index("selective")
    static = host.cuda_graphs and host.cuda_graph_scope == "static"
    return {
        **{f"cp_by_{way}": float(overlap.cp_method == way.replace("_", "-")) for way in _CP_WAYS},
        "tp_pipelined": float(overlap.tp_overlap == "pipelined"),
        "pp_overlap": float(overlap.pp_overlap),
        "gathers_tokens": float(has_experts and moe.moe_dispatcher == "all-gather"),
        "hybrid_ep": (moe.moe_dispatcher == "hybrid-ep") & (layout.ep * layout.etp > 1),
        "moe_capacity_factor": float(moe.moe_capacity_factor if has_experts else 0),
        "grouped_gemm": float(has_experts and moe.grouped_gemm),
        "ep_overlap": has_experts & moe.ep_overlap & (layout.ep > 1),
        "fp16": float(precision == "fp16"),
        "bf16": float(precision not in ("fp16", "fp32")),
        "fp8_delayed": float(precision == "fp8-delayed"),
        "reduces_in_fp32": float(recipe.dtypes.grad_reduce_dtype == "fp32"),
        "compiled": float(recipe.kernels.compiled),
        "offload_optimizer": float(host.offload_optimizer),
        "muon": float(job.optimizer.name == "muon"),
        "moments_in_8_bits": float("8bit" in job.optimizer.name),
        "cuda_graphs": float(host.cuda_graphs),
        "graph_of_all": float(host.cuda_graphs and host.cuda_graph_scope == "all"),
        "graph_of_mlp": float(static and has_part(job.model, "mlp")),
        "graph_by_te": float(graph_of(job) == "transformer_engine"),
        "recompute_other": selective & bool(named - set(MODULES)),
        **{f"recompute_{name}": selective & (name in named) for name in _RECOMPUTED},
    }


_CP_WAYS = ("ring", "ulysses", "all_gather")
_RECOMPUTED = ("moe_act", "layernorm", "mla_up_proj", "moe")


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
