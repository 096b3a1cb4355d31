"""Configurations of trainers on transformers: Accelerate's FSDP2 YAML and Axolotl's job file.

Keys of accelerate 1.15.0 (``commands/config/config_args.py``, ``parallelism_config.py``) and axolotl 0.19.0
(``utils/schemas/config.py``, ``utils/distributed.py``); `costmodel.interop.read_trainer` reads both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from costmodel.base.yaml_files import document_text
from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.describe.jobs.fields import RECOMPUTE_POLICIES
from costmodel.interop.framework import counts_of, data_degrees, left_of, model_reference, steps_of
from costmodel.interop.tuning import peft_modules

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job

STRATEGIES = {"all-gather": "allgather", "ring": "alltoall"}
"""Accelerate's words for how context parallelism brings keys and values together."""


def emit_accelerate(job: Job) -> str:
    """Return the file for ``accelerate launch --config_file``; batch and sequence belong to the training script."""
    counts = counts_of(job)
    per_node = min(job.cluster.gpus_per_node, counts["gpus"])
    values: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if counts["zero_stage"] else "MULTI_GPU",
        "mixed_precision": FRAMEWORKS["accelerate"].precisions[job.precision.name],
        "num_machines": counts["gpus"] // per_node,
        "num_processes": counts["gpus"],
    }
    if counts["zero_stage"]:
        values["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": counts["zero_stage"] == 3,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
            "fsdp_offload_params": job.recipe.host.offload_optimizer,
            "fsdp_activation_checkpointing": _recomputes(job),
        }
        replicate, shard = data_degrees(counts)
        values["parallelism_config"] = {
            "parallelism_config_dp_replicate_size": replicate,
            "parallelism_config_dp_shard_size": shard,
            "parallelism_config_tp_size": counts["tp"],
            "parallelism_config_cp_size": counts["cp"],
            "parallelism_config_cp_comm_strategy": STRATEGIES.get(job.recipe.overlap.cp_method, "allgather"),
        }
    script = {
        "per_device_train_batch_size": counts["micro_batch"],
        "gradient_accumulation_steps": counts["micro_batches"],
        "sequence length": counts["seq_len"],
        **({"max_steps": steps} if (steps := steps_of(job)) else {}),
    }
    said = [f"# in the training script: {key} = {value}" for key, value in script.items()]
    said += [f"# in the training script: {line}" for line in _peft_lines(job)]
    return _text(job, "accelerate", values, said)


def emit_axolotl(job: Job) -> str:
    """Return the job file for ``axolotl train``."""
    counts = counts_of(job)
    values: dict[str, Any] = {
        "base_model": model_reference(job.model),
        "sequence_len": counts["seq_len"],
        "micro_batch_size": counts["micro_batch"],
        "gradient_accumulation_steps": counts["micro_batches"],
        **({"max_steps": steps} if (steps := steps_of(job)) else {}),
        "bf16": job.precision.name == "bf16",
        "fp16": job.precision.name == "fp16",
        "gradient_checkpointing": _recomputes(job),
        "optimizer": FRAMEWORKS["axolotl"].optimizers[job.optimizer.name],
        "sample_packing": counts["micro_batch"] == 1,
        "attn_implementation": "flash_attention_2",
        "tensor_parallel_size": counts["tp"],
        "context_parallel_size": counts["cp"],
    }
    values |= _adapter_keys(job)
    if counts["zero_stage"]:
        replicate, shard = data_degrees(counts)
        values |= {"dp_replicate_size": replicate, "dp_shard_size": shard, "fsdp_version": 2}
        values["fsdp_config"] = {
            "reshard_after_forward": counts["zero_stage"] == 3,
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "state_dict_type": "SHARDED_STATE_DICT",
            "offload_params": job.recipe.host.offload_optimizer,
        }
    return _text(job, "axolotl", values, [])


def _text(job: Job, framework: str, values: Mapping[str, Any], said: list[str]) -> str:
    """Write a configuration under what it was made from and what it leaves open."""
    head = (
        f"# model {model_reference(job.model)} on {float(job.layout.gpus):.0f} GPUs of {job.cluster.name}, "
        f"recipe {job.recipe.name}"
    )
    left = [f"# left to you: {what}" for what in left_of(FRAMEWORKS[framework], job)]
    return "\n".join(
        [head, f"# keys of {FRAMEWORKS[framework].release}", *said, *left, document_text(values)]
    )


def _peft_lines(job: Job) -> list[str]:
    """Return what a script hands to PEFT and bitsandbytes."""
    tuning = job.tuning
    if not tuning.lora_rank:
        return []
    modules = peft_modules(tuning, "PEFT") or "all-linear"
    dora = ", use_dora=True" if tuning.magnitudes else ""
    lines = [f"peft.LoraConfig(r={tuning.lora_rank}, target_modules={modules!r}{dora})"]
    bits = {"nf4": 'load_in_4bit=True, bnb_4bit_quant_type="nf4"', "fp8": "load_in_8bit=True"}
    if tuning.computes_in:
        lines.append(f"transformers.BitsAndBytesConfig({bits[tuning.base_dtype]})")
    return lines


def _adapter_keys(job: Job) -> dict[str, Any]:
    """Return Axolotl's keys of adapters and of the base that they lie on."""
    tuning = job.tuning
    if not tuning.lora_rank:
        return {}
    modules = peft_modules(tuning, "Axolotl")
    found: dict[str, Any] = {
        "adapter": "qlora" if tuning.base_dtype == "nf4" else "lora",
        "lora_r": tuning.lora_rank,
        "lora_alpha": 2 * tuning.lora_rank,
        **({"lora_target_modules": modules} if modules else {"lora_target_linear": True}),
        **({"peft_use_dora": True} if tuning.magnitudes else {}),
    }
    if tuning.computes_in:
        found[{"nf4": "load_in_4bit", "fp8": "load_in_8bit"}[tuning.base_dtype]] = True
    return found


def _recomputes(job: Job) -> bool:
    return RECOMPUTE_POLICIES[int(job.layout.recompute)] == "full"
