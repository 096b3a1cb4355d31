"""Names of other programs' flags and keys that our readers and writers list, by framework."""

from __future__ import annotations

import costmodel as cm
from costmodel.interop.keys import key_table
from costmodel.interop.text_file import TextFile
from costmodel.interop.torchtitan import module_tables


def _todays(table: str) -> set[str]:
    """Return the keys of today that a table uses, and those that have no price."""
    found = key_table(table)
    return {*(field.keys[0] for field in found.fields.values()), *found.unpriced}


def megatron() -> set[str]:
    """Return the flags of Megatron-LM."""
    return {flag.removeprefix("--") for flag in _todays("megatron")}


def bridge() -> set[str]:
    """Return the keys of Megatron-Bridge, without the part that they stand in."""
    return {
        key.rsplit(".", 1)[-1]
        for _, *keys in key_table("megatron").more["bridge"]["keys"].values()
        for key in keys
    }


def deepspeed() -> set[str]:
    """Return the keys of the first level, of ZeRO and of what has no price."""
    named = {key for key in _todays("deepspeed") if not key.startswith("comment.")}
    return {key.split(".")[1] if key.startswith("zero_optimization.") else key.split(".")[0] for key in named}


def accelerate() -> set[str]:
    """Return the keys of Accelerate's own tables."""
    return {
        key.rpartition(".")[2]
        for key in _todays("accelerate")
        if not key.startswith(("deepspeed", "megatron"))
    }


_JOB = {"model": "llama3-8b", "cluster": "dgx-h100-ndr", "gpus": 16, "global_batch": 32, "seq_len": 2048}
_JOB |= {"zero_stage": 3, "recompute": "full", "recipe": "torchtitan"}


def torchtitan() -> set[str]:
    """Return the settings of batch and layout that are written for torchtitan."""
    est = cm.estimate(**_JOB, layout="pp2 vp2", schedule="interleaved", tokens=1e9)
    tables = module_tables(TextFile(cm.emit(est, "torchtitan"), "job.py"))
    return {*tables["training"], *tables["parallelism"]} - {"_type"}


def axolotl() -> set[str]:
    """Return the keys that are written for Axolotl, of a job with adapters."""
    est = cm.estimate(**_JOB, layout="tp1", lora_rank=8)
    lines = cm.emit(est, "axolotl").splitlines()
    keys = {line.split(":")[0].strip() for line in lines if ":" in line and not line.startswith("#")}
    return keys - {"fsdp_config"}


LISTED = {
    "megatron": megatron,
    "megatron-bridge": bridge,
    "deepspeed": deepspeed,
    "accelerate": accelerate,
    "torchtitan": torchtitan,
    "axolotl": axolotl,
}
