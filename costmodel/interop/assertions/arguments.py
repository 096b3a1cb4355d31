"""The arguments of each framework that a job of ours means, on one layout or many; Megatron's stand beside.

What an exporter writes, as far as assertions look at it, under the framework's own names; 0 is false or none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from costmodel.base.yaml_files import parse_mapping
from costmodel.describe.jobs.fields import RECOMPUTE_POLICIES
from costmodel.interop.assertions.record import WORDS, Arguments
from costmodel.interop.keys import key_table
from costmodel.physics.pipeline.schedule_table import SCHEDULES
from costmodel.physics.pipeline.schedules import schedule_code

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job
    from costmodel.describe.models.model import Model

_EXCHANGES = {"ring": "ring", "all-gather": "all_gather", "ulysses": "ulysses", "a2a+p2p": "ring"}
_TRAINERS_EXCHANGES = {**_EXCHANGES, "a2a+p2p": "ulysses"}
_WORDS = key_table("torchtitan").more
_SEVERAL_STAGES = _WORDS["words"]["several_stages"]

_POSITIONS = {"llama3": 131072, "deepseek_v3": 16384, "gpt_oss": 131072, "qwen3": 40960}
"""Longest sequence of each family's rotary table (torchtitan/models/*/__init__.py, `max_seq_len`)."""

_FAMILY_OF = {ours: family for ours, (family, *_) in _WORDS["models"].items()}


def _kv_heads(model: Model) -> float:
    """Return heads of keys and values; latent attention has one for each query."""
    return float(model.num_heads if model.attention == "mla" else model.num_kv_heads)


def deepspeed(job: Job) -> Arguments:
    """Return what `costmodel.interop.deepspeed.emit_deepspeed` writes, and what the script has to say beside it."""
    layout, model = job.layout, job.model
    moe = bool(model.num_experts)
    return {
        "world_size": layout.gpus,
        "pipeline_stages": layout.pp,
        "zero_stage": layout.zero_stage,
        "mics_shard_size": np.where(layout.zero_stage > 0, layout.shard_group, 0.0),
        "autotp_size": layout.tp,
        "sequence_parallel_size": layout.cp,
        "autoep_size": layout.ep if moe else np.asarray(1.0),
        "expert_tensor_parallel_size": layout.etp if moe else np.asarray(1.0),
        "train_batch_size": job.global_batch,
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": job.micro_batches,
        "data_parallel_size": layout.dp,
        "offload_optimizer": float(job.recipe.host.offload_optimizer),
        "fp16": float(job.precision.name == "fp16"),
        "bf16": float(job.precision.name == "bf16"),
        "num_attention_heads": float(model.num_heads),
        "num_key_value_heads": _kv_heads(model),
        "num_experts": float(model.num_experts),
        "num_expert_groups": float(model.expert_groups),
        "num_limited_groups": float(model.groups_per_token),
        "seq_length": job.seq_len,
        "sequence_exchange": WORDS[_EXCHANGES[job.recipe.overlap.cp_method]],
    }


def torchtitan(job: Job) -> Arguments:
    """Return what `costmodel.interop.torchtitan.emit_torchtitan` writes, as far as assertions look at it."""
    layout, model, recipe = job.layout, job.model, job.recipe
    piped, sharded = layout.pp > 1, layout.zero_stage > 0
    group = np.where(layout.shard_group > 0, layout.shard_group, layout.dp * layout.cp)
    shard = np.where(sharded, np.maximum(group / layout.cp, 1.0), 1.0)
    several = np.asarray([name in _SEVERAL_STAGES for name in SCHEDULES])
    looped = several[np.asarray(layout.schedule, dtype=np.int64)]
    weights = float(recipe.memory.embedding_as_layer) + float(recipe.memory.head_as_layer)
    each = np.ceil((model.num_layers + weights) / (layout.pp * layout.vp))
    moe = bool(model.num_experts)
    return {
        "world_size": layout.gpus,
        "zero_stage": layout.zero_stage,
        "data_parallel_replicate_degree": layout.dp / shard,
        "data_parallel_shard_degree": shard,
        "tensor_parallel_degree": layout.tp,
        "context_parallel_degree": layout.cp,
        "pipeline_parallel_degree": layout.pp,
        "expert_parallel_degree": layout.ep if moe else np.asarray(1.0),
        "expert_tensor_parallel_degree": layout.etp if moe else np.asarray(1.0),
        "enable_sequence_parallel": layout.sequence_parallel > 0,
        "looped": looped,
        "stages_per_rank": np.where(looped, layout.vp, 1.0),
        "layers_per_stage": np.where(piped & looped & (layout.vp != 2), each, 0.0),
        "layers": float(model.num_layers),
        "first_stage_less_layers": float(recipe.memory.embedding_as_layer),
        "last_stage_less_layers": float(recipe.memory.head_as_layer),
        "local_batch_size": layout.micro_batch * np.where(piped, job.micro_batches, 1.0),
        "microbatch_size": layout.micro_batch,
        "global_batch_size": job.global_batch,
        "seq_len": job.seq_len,
        "batch_degree": layout.dp,
        "disable_cuda_graphs": float(not recipe.host.cuda_graphs),
        "reduce_in_float32": float(recipe.dtypes.grad_reduce_dtype == "fp32"),
        "enable_async_tensor_parallel": float(recipe.overlap.tp_overlap == "pipelined"),
        "compile": float(recipe.kernels.compiled),
        "context_exchange": WORDS[_EXCHANGES[recipe.overlap.cp_method]],
        "n_heads": float(model.num_heads),
        "n_kv_heads": _kv_heads(model),
        "num_mtp_layers": float(model.mtp_layers),
        "max_seq_len": _positions(model.name),
        "enable_weight_tying": float(model.tied_embeddings),
        "sharded_shape": _sharded_shape(job),
    }


def _positions(model: str) -> float:
    """Return the longest sequence of a model's rotary table, where torchtitan has the model."""
    return float(_POSITIONS.get(_FAMILY_OF.get(model, ""), np.inf))


def _sharded_shape(job: Job) -> ArrayLike:
    """Return where a group of shards is a whole number of context-parallel groups that divides the replicas."""
    layout = job.layout
    grouped = (layout.zero_stage > 0) & (layout.shard_group > 0)
    group = np.where(grouped, layout.shard_group, layout.dp * layout.cp)
    return np.asarray((group % layout.cp == 0) & ((layout.dp * layout.cp) % group == 0))


def trainers(job: Job) -> Arguments:
    """Return what `costmodel.interop.trainers` writes, as far as assertions look at it."""
    layout, model = job.layout, job.model
    sharded = layout.zero_stage > 0
    grouped = sharded & (layout.shard_group > 0)
    group = np.where(grouped, layout.shard_group, layout.dp * layout.cp)
    shard = np.where(sharded, np.maximum(group / layout.cp, 1.0), 1.0)
    return {
        "num_processes": layout.gpus,
        "fsdp": sharded,
        "dp_replicate_size": layout.dp / shard,
        "dp_shard_size": shard,
        "tp_size": layout.tp,
        "cp_size": layout.cp,
        "whole_groups": (group % layout.cp == 0) & ((layout.dp * layout.cp) % group == 0),
        "ep_size": layout.ep * layout.etp if model.num_experts else np.asarray(1.0),
        "cp_exchange": WORDS[_TRAINERS_EXCHANGES[job.recipe.overlap.cp_method]],
        "selective": layout.recompute == RECOMPUTE_POLICIES.index("selective"),
        "zero_stage": layout.zero_stage,
        "flash_attention_2": 1.0,
        "sample_packing": layout.micro_batch == 1,
        "micro_batch_size": layout.micro_batch,
        "optimizer_8bit": float("8bit" in job.optimizer.name),
    }


def written_in_axolotl(text: str) -> dict[str, ArrayLike]:
    """Return what a job file of Axolotl says of the same arguments."""
    raw: Mapping[str, Any] = parse_mapping(text, "axolotl", example="key: value")
    found = {name: raw[name] for name in ("dp_replicate_size", "dp_shard_size") if name in raw}
    found |= {
        "tp_size": raw["tensor_parallel_size"],
        "cp_size": raw["context_parallel_size"],
        "fsdp": "fsdp_config" in raw,
        "sample_packing": raw["sample_packing"],
        "micro_batch_size": raw["micro_batch_size"],
        "flash_attention_2": raw["attn_implementation"] == "flash_attention_2",
    }
    return {name: float(value) for name, value in found.items()}


def neuronx(job: Job) -> Arguments:
    """Return what `neuronx_distributed` is given, under its own names."""
    layout, model = job.layout, job.model
    return {
        "tensor_model_parallel_size": layout.tp,
        "context_parallel_size": layout.cp,
        "pipeline_model_parallel_size": layout.pp,
        "interleaved": layout.schedule == schedule_code("interleaved"),
        "num_microbatches": job.micro_batches,
        "seqlen": job.seq_len,
        "num_key_value_heads": _kv_heads(model),
    }


def papers(job: Job) -> Arguments:
    """Return what papers speak of, under our own names."""
    model = job.model
    return {
        "tp": job.layout.tp,
        "cp": job.layout.cp,
        "seq_len": job.seq_len,
        "num_kv_heads": _kv_heads(model),
    }
