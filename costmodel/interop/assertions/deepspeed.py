"""What DeepSpeed asserts: its pipeline engine, its configuration, Ulysses, and AutoEP beside AutoTP."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from costmodel.interop.assertions.record import WORDS, Arguments, Table, rows

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job

_ENGINE = "deepspeed/runtime/engine.py"
_CONFIG = "deepspeed/runtime/config.py"
_ULYSSES = "deepspeed/runtime/sequence_parallel/ulysses_sp.py"
_FOLDING = "deepspeed/module_inject/auto_ep_folding.py"
_EXPERTS = "deepspeed/module_inject/auto_ep_config.py"
_METHODS = {"ring": "ring", "all-gather": "all_gather", "ulysses": "ulysses", "a2a+p2p": "ring"}


def arguments(job: Job) -> Arguments:
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
        "num_key_value_heads": float(model.num_heads if model.attention == "mla" else model.num_kv_heads),
        "num_experts": float(model.num_experts),
        "num_expert_groups": float(model.expert_groups),
        "num_limited_groups": float(model.groups_per_token),
        "seq_length": job.seq_len,
        "sequence_exchange": WORDS[_METHODS[job.recipe.overlap.cp_method]],
    }


def written(text: str) -> dict[str, ArrayLike]:
    """Return what a configuration says of the same arguments."""
    raw: Mapping[str, Any] = json.loads(text)
    zero, experts = raw.get("zero_optimization") or {}, raw.get("expert_parallel") or {}
    outside = raw.get("comment") or {}
    tp = (raw.get("tensor_parallel") or {}).get("autotp_size", 1)
    cp, stages, world = raw.get("sequence_parallel_size", 1), outside.get("pp", 1), outside.get("gpus", 1)
    found = {
        "world_size": world,
        "pipeline_stages": stages,
        "zero_stage": zero.get("stage", 0),
        "mics_shard_size": zero.get("mics_shard_size", 0),
        "autotp_size": tp,
        "sequence_parallel_size": cp,
        "autoep_size": experts.get("autoep_size", 1),
        "expert_tensor_parallel_size": experts.get("expert_tensor_parallel_size", 1),
        "seq_length": outside.get("seq_len", 0),
        "train_batch_size": raw.get("train_batch_size", 0),
        "train_micro_batch_size_per_gpu": raw.get("train_micro_batch_size_per_gpu", 0),
        "gradient_accumulation_steps": raw.get("gradient_accumulation_steps", 0),
        "data_parallel_size": world / (tp * cp * stages),
        "offload_optimizer": "offload_optimizer" in zero,
        "fp16": (raw.get("fp16") or {}).get("enabled", False),
        "bf16": (raw.get("bf16") or {}).get("enabled", False),
    }
    return {name: float(value) for name, value in found.items()}


DEEPSPEED = Table(
    (
        *rows(
            "deepspeed",
            "deepspeed 0.19.8",
            (
                "deepspeed/runtime/pipe/engine.py:76",
                "zero_stage >= 2 and pipeline_stages > 1",
                "{zero_stage} does not go with {pipeline_stages}: the pipeline engine takes ZeRO-0 and 1",
            ),
            (
                f"{_CONFIG}:120",
                "mics_shard_size > 0",
                "{mics_shard_size}: sharding inside groups (MiCS) was removed",
            ),
            (
                f"{_CONFIG}:511",
                "fp16 and bf16",
                "fp16 and bf16 at once",
            ),
            (
                f"{_CONFIG}:602",
                "train_batch_size"
                " != train_micro_batch_size_per_gpu * gradient_accumulation_steps * data_parallel_size",
                "{train_batch_size} is not {train_micro_batch_size_per_gpu} times {gradient_accumulation_steps}"
                " times {data_parallel_size}",
            ),
            (
                "deepspeed/runtime/sequence_parallel/parallel_state_sp.py:37",
                "world_size % sequence_parallel_size != 0",
                "{sequence_parallel_size} does not divide {world_size}",
            ),
            (
                f"{_ULYSSES}:147",
                "sequence_parallel_size > 1 and num_attention_heads % sequence_parallel_size != 0",
                "{sequence_parallel_size} does not divide {num_attention_heads}",
            ),
            (
                f"{_ULYSSES}:149",
                "sequence_parallel_size > 1 and num_key_value_heads % sequence_parallel_size != 0"
                " and sequence_parallel_size % num_key_value_heads != 0",
                "{sequence_parallel_size} neither divides {num_key_value_heads} nor is a multiple of it",
            ),
            (
                f"{_ULYSSES}:706",
                "seq_length % sequence_parallel_size != 0",
                "{sequence_parallel_size} does not divide {seq_length}",
            ),
            (
                f"{_ENGINE}:2219",
                "autoep_size > 1 and zero_stage == 3 and sequence_parallel_size > 1",
                "expert parallelism with {zero_stage} does not go with {sequence_parallel_size}",
            ),
            (
                f"{_FOLDING}:105",
                "autoep_size > 1 and (world_size / pipeline_stages) % autotp_size != 0",
                "{autotp_size} does not divide the ranks of a stage",
            ),
            (
                f"{_FOLDING}:111",
                "autoep_size > 1 and (world_size / pipeline_stages) % (autoep_size * expert_tensor_parallel_size) != 0",
                "{autoep_size} times {expert_tensor_parallel_size} does not divide the ranks of a stage",
            ),
            (
                f"{_FOLDING}:206",
                "autoep_size > 1 and autotp_size > 1 and pipeline_stages > 1",
                "expert parallelism with {autotp_size} needs {pipeline_stages} to be 1",
            ),
            (
                f"{_FOLDING}:210",
                "autoep_size > 1 and autotp_size > 1 and sequence_parallel_size > 1",
                "expert parallelism with {autotp_size} needs {sequence_parallel_size} to be 1",
            ),
            (
                f"{_FOLDING}:214",
                "autoep_size > 1 and expert_tensor_parallel_size != 1",
                "{expert_tensor_parallel_size} is not supported yet",
            ),
            (
                f"{_FOLDING}:248",
                "autoep_size > 1 and autotp_size > 1 and offload_optimizer",
                "expert parallelism with {autotp_size} does not offload the optimizer",
            ),
            (
                f"{_EXPERTS}:369",
                "autoep_size > max(num_experts, 1)",
                "{autoep_size} is more than {num_experts}",
            ),
            (
                f"{_EXPERTS}:378",
                "num_experts % autoep_size != 0",
                "{autoep_size} does not divide {num_experts}",
            ),
            (
                f"{_EXPERTS}:397",
                "autoep_size > 1 and num_expert_groups > 0 and num_experts % max(num_expert_groups, 1) != 0",
                "{num_expert_groups} does not divide {num_experts}",
            ),
            (
                f"{_EXPERTS}:407",
                "autoep_size > 1 and num_expert_groups > 0 and num_limited_groups > num_expert_groups",
                "{num_limited_groups} is more than {num_expert_groups}",
            ),
        ),
        *rows(
            "deepspeed",
            "deepspeedai/Megatron-DeepSpeed f1feb8877d76",
            (
                "megatron/core/parallel_state.py:initialize_model_parallel, sequence-parallel",
                "sequence_parallel_size > 1 and pipeline_stages > 1",
                "{sequence_parallel_size} needs {pipeline_stages} to be 1: the pipeline's grid has no such axis",
            ),
        ),
        *rows(
            "deepspeed",
            "deepspeed 0.19.8",
            (
                "deepspeed/sequence/layer.py:465",
                "sequence_parallel_size > 1 and sequence_exchange != ulysses",
                "{sequence_parallel_size} exchanges heads (Ulysses), not keys and values: set cp_method = ulysses",
            ),
            (
                f"{_ENGINE}:1046",
                "autotp_size > num_key_value_heads",
                "{autotp_size} is more than {num_key_value_heads}: the ranks beyond hold no attention",
            ),
            raises=False,
        ),
    ),
    arguments,
    written,
)
"""DeepSpeed's own checks of what `costmodel.interop.deepspeed` writes."""
