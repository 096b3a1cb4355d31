"""DeepSpeed configurations (JSON), in and out.

Keys of deepspeedai/DeepSpeed ``runtime/config.py`` and ``runtime/zero/config.py``. The file says
batch, ZeRO, tensor and sequence parallelism and precision; pipeline stages, the model and the
sequence length are in the training script, so that they have to be given beside it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.describe.jobs.fields import RECOMPUTE_POLICIES
from costmodel.interop.framework import (
    Imported,
    counts_of,
    left_of,
    model_reference,
    steps_of,
    unsaid_switches,
)
from costmodel.interop.read_deepspeed import DEFAULT_RECIPE, imported
from costmodel.interop.sniff import parse_json

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job


def emit_deepspeed(job: Job) -> str:
    """Return the configuration of one layout; what JSON cannot say is under ``comment``.

    Raises
    ------
    FrameworkConfigError
        If DeepSpeed cannot run the schedule or the precision.
    """
    counts, recipe = counts_of(job), job.recipe
    zero: dict[str, Any] = {
        "stage": counts["zero_stage"],
        "overlap_comm": recipe.overlap.dp_overlap != "none",
        "contiguous_gradients": True,
        "reduce_scatter": counts["zero_stage"] >= 1,
    }
    if counts["shard_group"]:
        zero["mics_shard_size"] = counts["shard_group"]
    if recipe.host.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    values: dict[str, Any] = {
        "train_batch_size": counts["global_batch"],
        "train_micro_batch_size_per_gpu": counts["micro_batch"],
        "gradient_accumulation_steps": counts["micro_batches"],
        "zero_optimization": zero,
        "bf16": {"enabled": job.precision.name == "bf16"},
        "fp16": {"enabled": job.precision.name == "fp16"},
        "communication_data_type": recipe.dtypes.grad_reduce_dtype,
        "data_types": {"grad_accum_dtype": recipe.dtypes.grad_accum_dtype},
    }
    if kind := FRAMEWORKS["deepspeed"].optimizers[job.optimizer.name]:
        values["optimizer"] = {"type": kind}
    if counts["tp"] > 1:
        values["tensor_parallel"] = {"autotp_size": counts["tp"]}
    if counts["cp"] > 1:
        values["sequence_parallel_size"] = counts["cp"]
    if counts["ep"] > 1:
        values["expert_parallel"] = {
            "enabled": True,
            "autoep_size": counts["ep"],
            "expert_tensor_parallel_size": counts["etp"],
        }
    if job.layout.recompute:
        values["activation_checkpointing"] = {"partition_activations": False, "cpu_checkpointing": False}
    from costmodel.describe.recipe import list_recipes

    base = recipe.name if recipe.name in list_recipes() else DEFAULT_RECIPE
    outside = {
        "model": model_reference(job.model),
        "keys of": FRAMEWORKS["deepspeed"].release,
        "cluster": job.cluster.name,
        "gpus": counts["gpus"],
        "pp": counts["pp"],
        "seq_len": counts["seq_len"],
        "recompute": RECOMPUTE_POLICIES[int(job.layout.recompute)],
        "recipe": recipe.name,
        "left to you": left_of(FRAMEWORKS["deepspeed"], job),
    }
    if steps := steps_of(job):
        outside["steps"] = steps
    back = import_deepspeed(json.dumps(values), recipe=base, gpus=counts["gpus"], pp=counts["pp"])
    unsaid = unsaid_switches(job, back)
    if unsaid:
        outside["switches without a key"] = unsaid
    return json.dumps({"comment": outside, **values}, indent=2) + "\n"


def import_deepspeed(
    text: str, *, recipe: str = DEFAULT_RECIPE, gpus: int | None = None, pp: int | None = None
) -> Imported:
    """Read a configuration.

    Parameters
    ----------
    text : str
        The JSON.
    recipe : str
        Recipe that gives what has no key.
    gpus, pp : int, optional
        What the file cannot say; ``gpus`` follows from three batch figures where all are given.

    Raises
    ------
    FrameworkConfigError
        If the text is not such a JSON, or the batch figures contradict each other.
    """
    given = {"recipe": recipe, "gpus": gpus, "pp": pp}
    raw = parse_json(text, "deepspeed")
    return imported(raw, {key: value for key, value in given.items() if value is not None})
