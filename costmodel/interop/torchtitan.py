"""torchtitan job files: TOML (until February 2026) in and out, and the JSON of its newer configs in.

Keys of pytorch/torchtitan ``config_manager.py`` and ``config/job_config.py``. Sizes of the model
live in torchtitan's Python; the file says name and flavor, which name a preset here where one is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from costmodel.describe.jobs.fields import RECOMPUTE_POLICIES
from costmodel.interop.framework import FrameworkConfigError, Imported, counts_of, unsaid_switches
from costmodel.interop.read_torchtitan import DEFAULT_RECIPE, LOW_PRECISION, SCHEDULES, content, imported
from costmodel.physics.pipeline.schedules import schedule_at

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job

_FLAVORS = {
    "llama3-8b": ("llama3", "8B"),
    "llama3-70b": ("llama3", "70B"),
    "llama3-405b": ("llama3", "405B"),
    "deepseek-v3-671b": ("deepseek_v3", "671B"),
    "qwen3-8b": ("qwen3", "8B"),
    "qwen3-32b": ("qwen3", "32B"),
    "qwen3-30b-a3b": ("qwen3", "30B-A3B"),
    "qwen3-235b-a22b": ("qwen3", "235B-A22B"),
}


def emit_torchtitan(job: Job) -> str:
    """Return the job file (TOML) of one layout.

    Raises
    ------
    FrameworkConfigError
        If torchtitan has no setting for the sharding, the schedule or the precision.
    """
    import tomli_w

    counts, layout = counts_of(job), job.layout
    schedule = schedule_at(layout.schedule).name
    ranks = counts["dp"] * counts["cp"]
    if counts["zero_stage"] in (1, 2) or (counts["zero_stage"] == 0 and ranks > 1 and counts["cp"] > 1):
        raise FrameworkConfigError(
            f"emit: torchtitan has no ZeRO-{counts['zero_stage']}; plan with zero_stage = 3"
        )
    if counts["tp"] > 1 and not layout.sequence_parallel:
        raise FrameworkConfigError(
            "emit: torchtitan's tensor parallelism is sequence-parallel; set sequence_parallel"
        )
    replicate, shard = _data_degrees(counts)
    name, flavor = _FLAVORS.get(job.model.name, (job.model.name, "custom"))
    recipe, micro_batches = job.recipe, counts["micro_batches"]
    parallelism: dict[str, Any] = {
        "data_parallel_replicate_degree": replicate,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": "always" if recipe.overlap.fsdp_reshard_after_forward else "never",
        "tensor_parallel_degree": counts["tp"],
        "enable_async_tensor_parallel": recipe.overlap.tp_overlap == "pipelined",
        "context_parallel_degree": counts["cp"],
        "context_parallel_rotate_method": "alltoall" if recipe.overlap.cp_method == "ring" else "allgather",
        "pipeline_parallel_degree": counts["pp"],
    }
    if job.model.num_experts:
        parallelism |= {
            "expert_parallel_degree": counts["ep"],
            "expert_tensor_parallel_degree": counts["etp"],
        }
    local = counts["micro_batch"]
    if counts["pp"] > 1:
        # The pipeline cuts the local batch; without one, accumulation does.
        local *= micro_batches
        parallelism |= {
            "pipeline_parallel_schedule": SCHEDULES[schedule],
            "pipeline_parallel_microbatch_size": counts["micro_batch"],
        }
        if counts["vp"] > 1:
            layers = -(-job.model.num_layers // (counts["pp"] * counts["vp"]))
            parallelism["pipeline_parallel_layers_per_stage"] = layers
    training: dict[str, Any] = {
        "local_batch_size": local,
        "global_batch_size": counts["global_batch"],
        "seq_len": counts["seq_len"],
        "mixed_precision_param": "float32" if job.precision.name == "fp32" else "bfloat16",
        "mixed_precision_reduce": "bfloat16" if recipe.dtypes.grad_reduce_dtype == "bf16" else "float32",
    }
    policy = RECOMPUTE_POLICIES[int(layout.recompute)]
    checkpoint: dict[str, Any] = {"mode": policy}
    if policy == "selective":
        checkpoint["selective_ac_option"] = "op"
    tables: dict[str, dict[str, Any]] = {
        "model": {"name": name, "flavor": flavor},
        "training": training,
        "parallelism": parallelism,
        "activation_checkpoint": checkpoint,
        "compile": {"enable": recipe.kernels.compiled},
    }
    if job.precision.name in LOW_PRECISION:
        # Only a converter turns it on; the table says how.
        tables["model"]["converters"] = [f"quantize.linear.{LOW_PRECISION[job.precision.name]}"]
        kind = LOW_PRECISION[job.precision.name]
        tables["quantize"] = {"linear": {kind: {"enable_fsdp_float8_all_gather": False}}}
    text = tomli_w.dumps(tables)
    back = import_torchtitan(text, recipe=recipe.name if _is_shipped(recipe.name) else DEFAULT_RECIPE)
    notes = [f"# model {job.model.name} on {counts['gpus']} GPUs of {job.cluster.name}, recipe {recipe.name}"]
    notes += [f"# no key for the recipe's {switch}" for switch in unsaid_switches(job, back)]
    return "\n".join([*notes, text])


def _is_shipped(name: str) -> bool:
    from costmodel.describe.recipe import list_recipes

    return name in list_recipes()


def _data_degrees(counts: Mapping[str, int]) -> tuple[int, int]:
    """Return replicate and shard degree; cp shards together with the latter."""
    if counts["zero_stage"] == 0:
        return counts["dp"], 1
    if not counts["shard_group"]:
        return 1, counts["dp"]
    if counts["shard_group"] % counts["cp"] or (counts["dp"] * counts["cp"]) % counts["shard_group"]:
        raise FrameworkConfigError(
            f"emit: shard_group = {counts['shard_group']} does not divide dp·cp by a multiple of cp"
        )
    shard = counts["shard_group"] // counts["cp"]
    return counts["dp"] // shard, shard


def import_torchtitan(text: str, *, recipe: str = DEFAULT_RECIPE, gpus: int | None = None) -> Imported:
    """Read a job file: TOML, or JSON that a newer torchtitan saved.

    Parameters
    ----------
    text : str
        The file.
    recipe : str
        Recipe that gives what has no key.
    gpus : int, optional
        GPUs, where the shard degree is -1 ("the rest").

    Raises
    ------
    FrameworkConfigError
        If the text is neither, or a value is of the wrong kind.
    """
    found = imported(content(text), {"recipe": recipe} | ({} if gpus is None else {"gpus": gpus}))
    if found.job.get("gpus") is None:
        raise FrameworkConfigError(
            "torchtitan: parallelism.data_parallel_shard_degree is -1 (the rest); give gpus"
        )
    return found
