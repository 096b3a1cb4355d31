"""The arguments of each framework that a job of ours means, on one layout or many; Megatron's stand beside.

What an exporter writes, as far as assertions look at it, under the framework's own names; 0 is false or none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.describe.jobs.fields import RECOMPUTE_POLICIES
from costmodel.interop.keys import key_table
from costmodel.physics.pipeline.schedule_table import SCHEDULES
from costmodel.physics.pipeline.schedules import schedule_code

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job
    from costmodel.describe.jobs.layout import Layout
    from costmodel.describe.models.model import Model

Arguments = Mapping[str, ArrayLike]
"""Values of a framework's arguments by name; 0 is false, none and not given."""

_WORDS = (
    "none full selective block alltoall allgather flex ring ulysses all_gather rope learned_absolute local"
)
WORDS: Mapping[str, float] = {
    word: float(number)
    for number, word in enumerate((*_WORDS.split(), "transformer_engine", "full_iteration"))
}
"""Words that arguments take as values, each as a number, so that a condition runs on arrays; ``none`` is 0."""

_EXCHANGES = {"ring": "ring", "all-gather": "all_gather", "ulysses": "ulysses", "a2a+p2p": "ring"}
_TORCHTITAN = key_table("torchtitan").more["words"]["several_stages"], key_table("torchtitan").more["models"]
_POSITIONS = {"llama3": 131072, "deepseek_v3": 16384, "gpt_oss": 131072, "qwen3": 40960}
"""Longest sequence of each family's rotary table (torchtitan/models/*/__init__.py, `max_seq_len`)."""


def kv_heads(model: Model) -> float:
    """Return heads of keys and values; latent attention has one for each query."""
    return float(model.num_heads if model.attention == "mla" else model.num_kv_heads)


def _shards(layout: Layout) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return ranks that FSDP shards over beside those of context parallelism, and whether its groups are whole."""
    ranks = layout.dp * layout.cp
    sharded = layout.zero_stage > 0
    group = np.where(sharded & (layout.shard_group > 0), layout.shard_group, ranks)
    shard = np.where(sharded, np.maximum(group / layout.cp, 1.0), 1.0)
    return shard, (group % layout.cp == 0) & (ranks % group == 0)


def deepspeed(job: Job) -> Arguments:
    """Return what `costmodel.interop.deepspeed.emit_deepspeed` writes, and what the script has to say beside it."""
    layout, model = job.layout, job.model
    return {
        "world_size": layout.gpus,
        "pipeline_stages": layout.pp,
        "zero_stage": layout.zero_stage,
        "mics_shard_size": np.where(layout.zero_stage > 0, layout.shard_group, 0.0),
        "autotp_size": layout.tp,
        "sequence_parallel_size": layout.cp,
        "autoep_size": layout.ep if model.num_experts else np.asarray(1.0),
        "expert_tensor_parallel_size": layout.etp if model.num_experts else np.asarray(1.0),
        "offload_optimizer": float(job.recipe.host.offload_optimizer),
        "num_attention_heads": float(model.num_heads),
        "num_key_value_heads": kv_heads(model),
        "num_experts": float(model.num_experts),
        "seq_length": job.seq_len,
        "sequence_exchange": WORDS[_EXCHANGES[job.recipe.overlap.cp_method]],
    }


def torchtitan(job: Job) -> Arguments:
    """Return what `costmodel.interop.torchtitan.emit_torchtitan` writes, as far as assertions look at it."""
    layout, model, recipe = job.layout, job.model, job.recipe
    several_stages, models = _TORCHTITAN
    family = next((family for ours, (family, *_) in models.items() if ours == model.name), "")
    piped = layout.pp > 1
    shard, is_whole = _shards(layout)
    looped = np.asarray([name in several_stages for name in SCHEDULES])[np.asarray(layout.schedule, np.int64)]
    first, last = float(recipe.memory.embedding_as_layer), float(recipe.memory.head_as_layer)
    each = np.ceil((model.num_layers + first + last) / (layout.pp * layout.vp))
    return {
        "world_size": layout.gpus,
        "zero_stage": layout.zero_stage,
        "data_parallel_replicate_degree": layout.dp / shard,
        "data_parallel_shard_degree": shard,
        "tensor_parallel_degree": layout.tp,
        "context_parallel_degree": layout.cp,
        "pipeline_parallel_degree": layout.pp,
        "expert_parallel_degree": layout.ep if model.num_experts else np.asarray(1.0),
        "expert_tensor_parallel_degree": layout.etp if model.num_experts else np.asarray(1.0),
        "enable_sequence_parallel": layout.sequence_parallel > 0,
        "looped": looped,
        "stages_per_rank": np.where(looped, layout.vp, 1.0),
        "layers_per_stage": np.where(piped & looped & (layout.vp != 2), each, 0.0),
        "layers": float(model.num_layers),
        "first_stage_less_layers": first,
        "last_stage_less_layers": last,
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
        "n_kv_heads": kv_heads(model),
        "num_mtp_layers": float(model.mtp_layers),
        "max_seq_len": float(_POSITIONS.get(family, np.inf)),
        "enable_weight_tying": float(model.tied_embeddings),
        "sharded_shape": is_whole,
    }


def trainers(job: Job) -> Arguments:
    """Return what `costmodel.interop.trainers` writes, as far as assertions look at it."""
    layout, exchange = job.layout, job.recipe.overlap.cp_method
    shard, is_whole = _shards(layout)
    return {
        "num_processes": layout.gpus,
        "fsdp": layout.zero_stage > 0,
        "dp_replicate_size": layout.dp / shard,
        "dp_shard_size": shard,
        "tp_size": layout.tp,
        "cp_size": layout.cp,
        "whole_groups": is_whole,
        "ep_size": layout.ep * layout.etp if job.model.num_experts else np.asarray(1.0),
        "cp_exchange": WORDS["ulysses" if exchange == "a2a+p2p" else _EXCHANGES[exchange]],
        "selective": layout.recompute == RECOMPUTE_POLICIES.index("selective"),
        "zero_stage": layout.zero_stage,
        "flash_attention_2": 1.0,
        "sample_packing": layout.micro_batch == 1,
        "micro_batch_size": layout.micro_batch,
        "optimizer_8bit": float("8bit" in job.optimizer.name),
    }


def neuronx(job: Job) -> Arguments:
    """Return what `neuronx_distributed` is given, under its own names."""
    layout = job.layout
    return {
        "tensor_model_parallel_size": layout.tp,
        "context_parallel_size": layout.cp,
        "pipeline_model_parallel_size": layout.pp,
        "interleaved": layout.schedule == schedule_code("interleaved"),
        "num_microbatches": job.micro_batches,
        "seqlen": job.seq_len,
        "num_key_value_heads": kv_heads(job.model),
    }


def papers(job: Job) -> Arguments:
    """Return what papers speak of, under our own names."""
    layout = job.layout
    return {"tp": layout.tp, "cp": layout.cp, "seq_len": job.seq_len, "num_kv_heads": kv_heads(job.model)}
