"""What Accelerate and Axolotl assert: `ParallelismConfig`, the FSDP plugin, and Axolotl's schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from costmodel.base.yaml_files import parse_mapping
from costmodel.describe.jobs.fields import RECOMPUTE_POLICIES
from costmodel.interop.assertions.record import WORDS, Arguments, Table, rows

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job

_MESH = "accelerate/parallelism_config.py"
_SCHEMA = "axolotl/utils/schemas/validation.py"
_RANKS = "axolotl/utils/distributed.py"
_METHODS = {"ring": "ring", "all-gather": "all_gather", "ulysses": "ulysses", "a2a+p2p": "ulysses"}


def arguments(job: Job) -> Arguments:
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
        "cp_exchange": WORDS[_METHODS[job.recipe.overlap.cp_method]],
        "selective": layout.recompute == RECOMPUTE_POLICIES.index("selective"),
        "zero_stage": layout.zero_stage,
        "flash_attention_2": 1.0,
        "sample_packing": layout.micro_batch == 1,
        "micro_batch_size": layout.micro_batch,
        "optimizer_8bit": float("8bit" in job.optimizer.name),
        "num_attention_heads": float(model.num_heads),
        "num_key_value_heads": float(model.num_heads if model.attention == "mla" else model.num_kv_heads),
    }


def written_accelerate(text: str) -> dict[str, ArrayLike]:
    """Return what a file of Accelerate says of the same arguments."""
    raw: Mapping[str, Any] = parse_mapping(text, "accelerate", example="key: value")
    inside = raw.get("parallelism_config") or {}
    sizes = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size")
    found = {name: inside[f"parallelism_config_{name}"] for name in sizes if inside}
    found |= {"num_processes": raw["num_processes"], "fsdp": raw["distributed_type"] == "FSDP"}
    return {name: float(value) for name, value in found.items()}


def written_axolotl(text: str) -> dict[str, ArrayLike]:
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


_MESH_ROWS = (
    (
        f"{_MESH}:336",
        "(tp_size > 1 or cp_size > 1) and dp_replicate_size > 1 and dp_shard_size == 1",
        "tensor or context parallelism does not go with {dp_replicate_size} that shard nothing",
    ),
    (
        f"{_MESH}:372",
        "dp_replicate_size * dp_shard_size * tp_size * cp_size != num_processes or not whole_groups",
        "the sizes do not multiply to {num_processes} with replicas of whole shard groups",
    ),
    (
        f"{_MESH}:381",
        "fsdp and dp_shard_size == 1 and cp_size == 1",
        "FSDP has no ranks to shard over: {dp_shard_size}, {cp_size}",
    ),
)
_DROPPED = (
    (
        "accelerate/utils/dataclasses.py:1958",
        "selective",
        "activation checkpointing is that of whole layers: plan with recompute = none, full",
    ),
    (
        "accelerate/utils/dataclasses.py:1877",
        "zero_stage == 1",
        "FSDP2 shards gradients too: {zero_stage} has no setting",
    ),
    (
        "accelerate/parallelism_config.py:342",
        "ep_size > 1",
        "{ep_size}: experts have no axis of their own",
    ),
)

ACCELERATE = Table(
    (
        *rows(
            "accelerate",
            "accelerate 1.15.0",
            *_MESH_ROWS,
            (
                "accelerate/commands/launch.py:1211",
                "not fsdp and (tp_size > 1 or cp_size > 1)",
                "{tp_size} and {cp_size} need FSDP2",
            ),
            (
                "accelerate/utils/dataclasses.py:2247",
                "cp_size > 1 and cp_exchange != all_gather and cp_exchange != ring",
                "{cp_size} gathers keys and values or passes them on: set cp_method = all-gather, ring",
            ),
        ),
        *rows("accelerate", "accelerate 1.15.0", *_DROPPED, raises=False),
    ),
    arguments,
    written_accelerate,
)
"""Accelerate's own checks of what `costmodel.interop.trainers` writes."""

AXOLOTL = Table(
    (
        *rows("axolotl", "accelerate 1.15.0", *_MESH_ROWS),
        *rows(
            "axolotl",
            "axolotl 0.19.0",
            (
                f"{_SCHEMA}:1804",
                "cp_size > 1 and not flash_attention_2",
                "{cp_size} needs attn_implementation: flash_attention_2",
            ),
            (
                f"{_SCHEMA}:1811",
                "cp_size > 1 and sample_packing and micro_batch_size > 1",
                "{cp_size} with packed samples needs {micro_batch_size} to be 1",
            ),
            (
                f"{_SCHEMA}:1257",
                "fsdp and optimizer_8bit",
                "FSDP2 does not go with 8-bit moments of bitsandbytes",
            ),
            (
                f"{_RANKS}:360",
                "dp_shard_size > 1 and not fsdp",
                "{dp_shard_size} needs an fsdp_config",
            ),
        ),
        *rows(
            "axolotl",
            "axolotl 0.19.0",
            (
                f"{_SCHEMA}:1803",
                "cp_size > 1 and cp_exchange != ring",
                "{cp_size} is ring attention: set cp_method = ring",
            ),
            raises=False,
        ),
        *rows("axolotl", "accelerate 1.15.0", *_DROPPED, raises=False),
    ),
    arguments,
    written_axolotl,
)
"""Axolotl's own checks of what `costmodel.interop.trainers` writes."""
