"""DeepSpeed configurations (JSON), in and out.

Keys of deepspeedai/DeepSpeed ``runtime/config.py`` and ``runtime/zero/config.py``. The file says
batch, ZeRO, tensor and sequence parallelism and precision; pipeline stages, the model and the
sequence length are in the training script, so that they have to be given beside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from costmodel.describe.jobs.fields import RECOMPUTE_POLICIES
from costmodel.describe.recipe import load_recipe
from costmodel.interop.framework import FrameworkConfigError, Imported, counts_of, unsaid_switches
from costmodel.physics.pipeline.schedules import schedule_at

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job

DEFAULT_RECIPE = "deepspeed"
VALUES_THAT_RUN = {"schedule": "none,1f1b", "vp": "1", "sequence_parallel": "false"}
"""What a search must keep to for DeepSpeed to run the result."""

_READ = {
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "zero_optimization",
    "bf16",
    "fp16",
    "tensor_parallel",
    "sequence_parallel_size",
    "expert_parallel",
    "communication_data_type",
    "data_types",
    "activation_checkpointing",
}
_SHAPELESS = {
    "optimizer",
    "scheduler",
    "gradient_clipping",
    "steps_per_print",
    "wall_clock_breakdown",
    "comment",
    "pipeline",
    "zero_allow_untested_optimizer",
    "flops_profiler",
    "tensorboard",
    "wandb",
    "prescale_gradients",
}


def emit_deepspeed(job: Job) -> str:
    """Return the configuration of one layout; what JSON cannot say is under ``comment``.

    Raises
    ------
    FrameworkConfigError
        If DeepSpeed cannot run the schedule or the precision.
    """
    counts, recipe = counts_of(job), job.recipe
    schedule = schedule_at(job.layout.schedule).name
    if schedule not in ("none", "1f1b"):
        raise FrameworkConfigError(
            f"emit: DeepSpeed has no schedule {schedule}; plan with schedule = 1f1b, vp = 1"
        )
    if job.precision.name not in ("bf16", "fp16", "fp32"):
        raise FrameworkConfigError(f"emit: DeepSpeed has no precision {job.precision.name}")
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
        "model": job.model.name,
        "cluster": job.cluster.name,
        "gpus": counts["gpus"],
        "pp": counts["pp"],
        "seq_len": counts["seq_len"],
        "recompute": RECOMPUTE_POLICIES[int(job.layout.recompute)],
        "recipe": recipe.name,
    }
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
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise FrameworkConfigError(f"deepspeed: not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise FrameworkConfigError("deepspeed: expected a JSON object")
    given = raw.get("comment")
    comment: dict[str, Any] = given if isinstance(given, dict) else {}
    stages = pp or int(comment.get("pp", 1))
    tensor = raw.get("tensor_parallel") or {}
    tp = _whole(
        tensor.get("autotp_size") or (tensor.get("tp") or {}).get("tp_size") or 1,
        "tensor_parallel.autotp_size",
    )
    cp = _whole(raw.get("sequence_parallel_size", 1), "sequence_parallel_size")
    micro = _optional(raw, "train_micro_batch_size_per_gpu")
    steps, total = _optional(raw, "gradient_accumulation_steps"), _optional(raw, "train_batch_size")
    world = gpus or comment.get("gpus")
    dp = None if world is None else world // (tp * cp * stages)
    if dp is None and micro and steps and total:
        dp = total // (micro * steps)
        world = dp * tp * cp * stages
    if dp is not None:
        micro, total = _batch(micro, steps, total, dp)
    zero = raw.get("zero_optimization") or {}
    if zero is True:
        zero = {"stage": 1}
    experts = raw.get("expert_parallel") or {}
    recompute = comment.get("recompute") or ("full" if raw.get("activation_checkpointing") else "none")
    job: dict[str, Any] = {
        "recipe": recipe,
        "gpus": world,
        "tp": tp,
        "cp": cp,
        "pp": stages,
        "global_batch": total,
        "micro_batch": micro,
        "zero_stage": _whole(zero.get("stage", 0), "zero_optimization.stage"),
        "shard_group": max(0, _whole(zero.get("mics_shard_size", 0), "zero_optimization.mics_shard_size")),
        "ep": _whole(experts.get("autoep_size", 1), "expert_parallel.autoep_size"),
        "etp": _whole(
            experts.get("expert_tensor_parallel_size", 1), "expert_parallel.expert_tensor_parallel_size"
        ),
        "precision": _precision(raw),
        "recompute": recompute,
        "sequence_parallel": False,
        "schedule": "none" if stages == 1 else "1f1b",
        "model": comment.get("model"),
        "seq_len": comment.get("seq_len"),
        "switches": _switches(raw, zero, recipe, cp),
    }
    missing = tuple(key for key in ("model", "gpus", "global_batch", "seq_len") if job[key] is None)
    ignored = tuple(key for key in raw if key not in _READ | _SHAPELESS)
    return Imported(
        {key: value for key, value in job.items() if value is not None}, ("cluster", *missing), ignored
    )


def _whole(value: Any, key: str) -> int:
    """Return a whole number; "auto" is filled by HuggingFace, not by DeepSpeed."""
    if isinstance(value, bool) or not isinstance(value, int):
        hint = '; "auto" is filled in by HuggingFace at run time, give the number' if value == "auto" else ""
        raise FrameworkConfigError(f"deepspeed: {key}: expected a whole number, got {value!r}{hint}")
    return value


def _optional(raw: Mapping[str, Any], key: str) -> int | None:
    return None if raw.get(key) is None else _whole(raw[key], key)


def _batch(micro: int | None, steps: int | None, total: int | None, dp: int) -> tuple[int | None, int | None]:
    """Complete the batch: total = micro x steps x dp, any two given."""
    if micro and steps and total and micro * steps * dp != total:
        raise FrameworkConfigError(
            f"deepspeed: train_batch_size = {total}, but micro x accumulation x dp = "
            f"{micro}·{steps}·{dp} = {micro * steps * dp}"
        )
    if micro is None and total and steps:
        micro = total // (steps * dp)
    if total is None and micro:
        total = micro * (steps or 1) * dp
    return micro or 1, total


def _precision(raw: Mapping[str, Any]) -> str:
    for name in ("bf16", "fp16"):
        enabled = (raw.get(name) or {}).get("enabled", False)
        if enabled == "auto":
            raise FrameworkConfigError(
                f'deepspeed: {name}.enabled: "auto" is filled in by HuggingFace; give true or false'
            )
        if enabled:
            return name
    return "fp32"


def _switches(raw: Mapping[str, Any], zero: Mapping[str, Any], recipe: str, cp: int) -> dict[str, Any]:
    """Read the switches that differ from those of the recipe."""
    base = load_recipe(recipe)
    # DeepSpeed overlaps by default from stage 3 on.
    overlaps = zero.get("overlap_comm", zero.get("stage", 0) == 3)
    offload = (zero.get("offload_optimizer") or {}).get("device", "none")
    read: dict[str, Any] = {
        "dp_overlap": (base.overlap.dp_overlap if base.overlap.dp_overlap != "none" else "every-layer")
        if overlaps
        else "none",
        "offload_optimizer": offload not in ("none", None),
    }
    wire = raw.get("communication_data_type")
    if wire is not None:
        read["grad_reduce_dtype"] = {"bfp16": "bf16"}.get(wire, wire)
    kept = (raw.get("data_types") or {}).get("grad_accum_dtype")
    if kept is not None:
        read["grad_accum_dtype"] = kept
    if cp > 1:
        read["cp_method"] = "ulysses"
    current = base.switches
    return {key: value for key, value in read.items() if current[key] != value}
