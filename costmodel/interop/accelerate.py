"""Accelerate's configurations, in and out: processes, precision, and how they shard.

What the keys mean stands in ``keys/accelerate.yaml``; batch and sequence belong to the training script.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from costmodel.base.yaml_files import parse_mapping
from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.interop.deepspeed import imported
from costmodel.interop.framework import (
    FrameworkConfigError,
    Imported,
    counts_of,
    data_degrees,
    fields_of,
    steps_of,
    tokens_of,
)
from costmodel.interop.keys import Values, key_table
from costmodel.interop.text_file import TextFile
from costmodel.interop.trainers import (
    FSDP_RECIPE,
    LEFT_TO_TRAINER,
    configuration_text,
    done,
    joined,
    of_head,
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
_STRATEGIES: Mapping[str, str] = _KEYS.more["cp_strategies"]
_ON = (True, "true", "True")
_SCRIPT = re.compile(r"^# in the training script: ([\w ]+?) = (\d+)$", re.M)


def read(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read a configuration.

    Raises
    ------
    CostModelError
        If it cannot be read.
    """
    raw = parse_mapping(file.text, file.name, example="key: value", error=FrameworkConfigError)
    said = Values(_KEYS, raw)
    left = said.unread()
    job = fields_of({**of_head(file.text), **given})
    chosen = job.get("recipe")
    if said["gpus"]:
        job.setdefault("gpus", said["gpus"])
    mixed, kind = str(said["precision"] or "no").lower(), str(said["kind"]).upper()
    if mixed not in _KEYS.more["precisions"]:
        raise FrameworkConfigError(f"mixed_precision: {mixed!r} is not supported")
    job.setdefault("precision", _KEYS.more["precisions"][mixed])
    notes: list[str] = []
    warnings: list[str] = []
    if kind == "DEEPSPEED":
        if named := said["zero_file"]:
            found = joined(file, named, job, notes, warnings)
        else:
            found = imported(_deepspeed(said, mixed), {"recompute": "none", **job})
        # DeepSpeed's own keys are filled in by the script's trainer.
        wanted = ("cluster", "model", "gpus", "global_batch", "seq_len")
        missing = tuple(key for key in found.missing if key in wanted)
        return dataclasses.replace(found, missing=missing, ignored=(*found.ignored, *left))
    if kind == "FSDP":
        take_sharding(raw.get("fsdp_config") or {}, job, warnings)
    elif kind == "MEGATRON_LM":
        job = {"tp": said["megatron_tp"], "pp": said["megatron_pp"], "recipe": "megatron-core", **job}
        job.setdefault("sequence_parallel", said["megatron_sequence"] in _ON and job["tp"] > 1)
        job.setdefault("recompute", "selective" if said["megatron_recomputes"] in _ON else "none")
        job.setdefault("zero_stage", int(said["megatron_sharded"] in _ON))
    elif kind in ("MULTI_GPU", "NO", ""):
        job = {"recipe": FSDP_RECIPE, "zero_stage": 0, **job}
    else:
        raise FrameworkConfigError(f"distributed_type: {kind!r} is not supported")
    for axis in ("tp", "cp"):
        if said[axis]:
            job.setdefault(axis, said[axis])
    take_mesh(said, job)
    if (job.get("cp") or 1) > 1:
        take_method("all-gather" if said["cp_strategy"] == _STRATEGIES["all-gather"] else "ring", job)
    if not chosen and job["recipe"] == FSDP_RECIPE:
        take_kernels(None, FSDP_RECIPE, job)
    _take_script(job, file.text)
    return dataclasses.replace(done(job, notes, warnings), ignored=left)


def _deepspeed(said: Values, mixed: str) -> dict[str, Any]:
    """Return the DeepSpeed configuration that Accelerate makes of its own keys."""
    zero: dict[str, Any] = {"stage": said["zero_stage"]}
    for part in ("optimizer", "param"):
        if said[f"zero_{part}"] != "none":
            zero[f"offload_{part}"] = {"device": said[f"zero_{part}"]}
    precision = {"bf16" if mixed == "bf16" else "fp16": {"enabled": mixed in ("bf16", "fp16")}}
    return {"zero_optimization": zero, **LEFT_TO_TRAINER, **precision}


def _take_script(job: dict[str, Any], text: str) -> None:
    """Take what our own comments say that the training script has to: batch, sequence and steps."""
    said = {name: int(number) for name, number in _SCRIPT.findall(text)}
    for name, ours in (("per_device_train_batch_size", "micro_batch"), ("sequence length", "seq_len")):
        if name in said:
            job.setdefault(ours, said[name])
    each, micro, gpus = said.get("gradient_accumulation_steps"), job.get("micro_batch"), job.get("gpus")
    if each and micro and gpus:
        shards = (job.get("tp") or 1) * (job.get("cp") or 1)
        job.setdefault("global_batch", micro * each * max(1, gpus // shards))
    job |= tokens_of(said.get("max_steps"), job)


def emit_accelerate(job: Job) -> str:
    """Return the file for ``accelerate launch --config_file``."""
    counts = counts_of(job)
    per_node = min(job.cluster.gpus_per_node, counts["gpus"])
    said: dict[str, Any] = {
        "environment": "LOCAL_MACHINE",
        "kind": "FSDP" if counts["zero_stage"] else "MULTI_GPU",
        "precision": FRAMEWORKS["accelerate"].precisions[job.precision.name],
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
            "cp_strategy": _STRATEGIES.get(job.recipe.overlap.cp_method, "allgather"),
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
