"""Accelerate's configurations, in and out: processes, precision, and how they shard.

What the keys mean stands in ``keys/accelerate.yaml``; batch and sequence belong to the training script.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from costmodel.interop.draft import Draft
from costmodel.interop.framework import (
    FrameworkConfigError,
    Imported,
    counts_of,
    data_degrees,
    own_head,
    steps_of,
)
from costmodel.interop.keys import Values, key_table
from costmodel.interop.text_file import TextFile, parse_yaml
from costmodel.interop.trainers import (
    FSDP_RECIPE,
    LEFT_TO_TRAINER,
    configuration_text,
    draft_under,
    joined,
    recomputes,
    take_kernels,
    take_mesh,
    take_method,
    take_sharding,
)
from costmodel.interop.tuning import peft_modules

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job

_KEYS = key_table("accelerate")
_ON = (True, "true", "True")
_SCRIPT = re.compile(r"^# in the training script: ([\w ]+?) = (\d+)$", re.M)


def read(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read a configuration."""
    raw = parse_yaml(file.text, file.name)
    said = Values(_KEYS, raw)
    draft = draft_under(own_head(file.text), given, said)
    chosen, kind = draft["recipe"], str(said["kind"]).upper()
    draft.put(gpus=said["gpus"], precision=said["precision"])
    if kind == "DEEPSPEED":
        draft = joined(file, said["zero_file"] or _deepspeed(said), draft)
        # DeepSpeed's own keys are filled in by the script's trainer.
        draft.missing = []
        return draft.answer()
    if kind == "FSDP":
        take_sharding(raw.get("fsdp_config") or {}, draft)
    elif kind == "MEGATRON_LM":
        draft.put(
            tp=said["megatron_tp"],
            pp=said["megatron_pp"],
            recipe="megatron-core",
            recompute="selective" if said["megatron_recomputes"] in _ON else "none",
            zero_stage=int(said["megatron_sharded"] in _ON),
        )
        draft.put(sequence_parallel=said["megatron_sequence"] in _ON and draft["tp"] > 1)
    elif kind in ("MULTI_GPU", "NO", ""):
        draft.put(recipe=FSDP_RECIPE, zero_stage=0)
    else:
        raise FrameworkConfigError(f"distributed_type: {kind!r} is not supported")
    draft.put(tp=said["tp"], cp=said["cp"])
    take_mesh(said, draft)
    if (draft["cp"] or 1) > 1:
        take_method(said["cp_strategy"], draft)
    if not chosen and draft["recipe"] == FSDP_RECIPE:
        take_kernels(None, FSDP_RECIPE, draft)
    _take_script(file.text, draft)
    return draft.answer()


def _deepspeed(said: Values) -> dict[str, Any]:
    """Return the DeepSpeed configuration that Accelerate makes of its own keys."""
    zero: dict[str, Any] = {"stage": said["zero_stage"]}
    for part in ("optimizer", "param"):
        if said[f"zero_{part}"] != "none":
            zero[f"offload_{part}"] = {"device": said[f"zero_{part}"]}
    mixed = said["precision"]
    precision = {"bf16" if mixed == "bf16" else "fp16": {"enabled": mixed in ("bf16", "fp16")}}
    return {"zero_optimization": zero, **LEFT_TO_TRAINER, **precision}


def _take_script(text: str, draft: Draft) -> None:
    """Read what our own comments say that the training script has to: batch, sequence and steps."""
    said = {name: int(number) for name, number in _SCRIPT.findall(text)}
    draft.put(micro_batch=said.get("per_device_train_batch_size"), seq_len=said.get("sequence length"))
    each, micro, gpus = said.get("gradient_accumulation_steps"), draft["micro_batch"], draft["gpus"]
    if each and micro and gpus:
        shards = (draft["tp"] or 1) * (draft["cp"] or 1)
        draft.put(global_batch=micro * each * max(1, gpus // shards))
    draft.put_steps(said.get("max_steps"))


def emit_accelerate(job: Job) -> str:
    """Return the file for ``accelerate launch --config_file``."""
    counts = counts_of(job)
    per_node = min(job.cluster.gpus_per_node, counts["gpus"])
    said: dict[str, Any] = {
        "environment": "LOCAL_MACHINE",
        "kind": "FSDP" if counts["zero_stage"] else "MULTI_GPU",
        "precision": job.precision.name,
        "nodes": counts["gpus"] // per_node,
        "gpus": counts["gpus"],
    }
    if counts["zero_stage"]:
        replicate, shard = data_degrees(counts)
        said |= {
            "fsdp_version": 2,
            "wraps": "TRANSFORMER_BASED_WRAP",
            "reshards": counts["zero_stage"] == 3,
            "state_dict": "SHARDED_STATE_DICT",
            "offloads": job.recipe.host.offload_optimizer,
            "recomputes": recomputes(job),
            "replicate": replicate,
            "shard": shard,
            "tp": counts["tp"],
            "cp": counts["cp"],
            "cp_strategy": "ring" if job.recipe.overlap.cp_method == "ring" else "all-gather",
        }
    script: dict[str, Any] = {
        "per_device_train_batch_size": counts["micro_batch"],
        "gradient_accumulation_steps": counts["micro_batches"],
        "sequence length": counts["seq_len"],
    }
    if steps := steps_of(job):
        script["max_steps"] = steps
    lines = [*(f"{key} = {value}" for key, value in script.items()), *_peft_lines(job)]
    beside = [f"# in the training script: {line}" for line in lines]
    return configuration_text(job, "accelerate", _KEYS.nested(said), beside)


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
