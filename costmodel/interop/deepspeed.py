"""DeepSpeed configurations (JSON), in and out.

What the keys mean stands in ``keys/deepspeed.yaml``. The file says batch, ZeRO, tensor and sequence parallelism and
precision; pipeline stages, the model and the sequence length are in the training script, so that they have to be given
beside it, as well as what "auto" leaves to the trainer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from costmodel.base.errors import CostModelError
from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.describe.jobs.fields import RECOMPUTE_POLICIES, REQUIRED
from costmodel.describe.recipe import load_recipe
from costmodel.interop.framework import (
    FrameworkConfigError,
    Imported,
    base_recipe,
    changed_switches,
    counts_of,
    fields_of,
    left_of,
    model_reference,
    steps_of,
    tokens_of,
    unsaid_switches,
)
from costmodel.interop.keys import Values, key_table
from costmodel.interop.optimizer_names import settle_offload, take_optimizer
from costmodel.interop.sniff import parse_json
from costmodel.interop.text_file import TextFile

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job

_RECORD = FRAMEWORKS["deepspeed"]
_KEYS = key_table("deepspeed")
_DEVICES = {"none": False, "cpu": True, "nvme": True}


def read(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read a configuration.

    Parameters
    ----------
    file : TextFile
        The JSON.
    given : mapping
        Keywords of a job; those that the file leaves to the trainer ("auto") have to be among them.

    Raises
    ------
    CostModelError
        If the text is no such JSON, or the batch figures contradict each other.
    """
    return imported(parse_json(file.text, file.name), given)


def imported(raw: Mapping[str, Any], given: Mapping[str, Any]) -> Imported:
    """Read a configuration's content; see `read`."""
    said = _values(raw)
    if not any(key in _KEYS.tables or key in _KEYS.used for key in raw if key != "comment"):
        raise FrameworkConfigError(
            "deepspeed: no key of a DeepSpeed configuration, such as zero_optimization or train_batch_size"
        )
    auto: list[str] = [
        key
        for key in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
        if key in said.unsaid
    ]
    if said.key("zero_stage") in said.unsaid:
        auto.append("zero_optimization.stage")
    precision, stage = given.get("precision"), given.get("zero_stage")
    if precision is None:
        precision = "bf16" if said["bf16"] else "fp16" if said["fp16"] else None
        if precision is None and any(key.endswith(".enabled") for key in said.unsaid):
            auto.append("precision")
        else:
            precision = precision or "fp32"
    tp, cp = given.get("tp") or said["tp"], given.get("cp") or said["cp"]
    pp = given.get("pp") or said["pp"] or 1
    micro = given.get("micro_batch") or said["micro_batch"]
    total = given.get("global_batch") or said["global_batch"]
    steps, gpus = said["accumulation"], given.get("gpus") or said["gpus"]
    dp = None if gpus is None else max(1, gpus // (tp * cp * pp))
    if dp is None and micro and steps and total:
        dp = total // (micro * steps)
        gpus = dp * tp * cp * pp
    if dp is not None:
        contradicts = micro and total and not (given.get("micro_batch") or given.get("global_batch"))
        micro, total = _batch(micro, steps if contradicts or not (micro and total) else None, total, dp)
    if "train_micro_batch_size_per_gpu" not in auto:
        micro = micro or 1
    warnings, facts, chosen = _unpriced(said)
    recompute = given.get("recompute") or said["recompute"]
    if recompute is None:
        recompute = "full" if said["recomputation"] else "none"
        if said["recomputation"]:
            warnings.append(
                "activation_checkpointing: says how, the training script says whether; priced as full "
                "recomputation, give --recompute none where the script does not"
            )
    recipe = given.get("recipe") or _RECORD.recipe
    job: dict[str, Any] = {
        **chosen,
        **fields_of(given),
        "recipe": recipe,
        "gpus": gpus,
        "tp": tp,
        "cp": cp,
        "pp": pp,
        "global_batch": total,
        "micro_batch": micro,
        "zero_stage": _stage(said) if stage is None else stage,
        "shard_group": max(0, said["shard_group"]),
        "ep": said["ep"],
        "etp": said["etp"],
        "precision": precision,
        "recompute": recompute,
        "sequence_parallel": False,
        "schedule": given.get("schedule") or ("none" if pp == 1 else "1f1b"),
        "model": given.get("model") or said["model"],
        "seq_len": given.get("seq_len") or said["seq_len"],
        "switches": {**_switches(said, recipe, cp), **(given.get("switches") or {})},
    }
    job |= tokens_of(said["steps"] if type(said["steps"]) is int else None, job)
    settle_offload(job, warnings)
    known = {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": steps or (micro and total),
        "train_batch_size": total,
        "precision": precision,
        "zero_optimization.stage": stage,
    }
    missing = [key for key in REQUIRED if job[key] is None]
    notes = [f'"auto", filled in by the trainer: {", ".join(auto)}'] if auto else []
    return Imported(
        {key: value for key, value in job.items() if value is not None},
        ("cluster", *missing, *(key for key in auto if known[key] is None)),
        said.unread(),
        tuple(notes),
        tuple(warnings),
        facts,
    )


def beside_flags(text: str) -> tuple[int | None, dict[str, Any]]:
    """Return stage and switches that a configuration inside a script, or beside it, states; none if it is unreadable."""
    try:
        said = _values(parse_json(text, "ds_config"))
        stage = _stage(said) if said.said("zero_stage") else None
        return stage, {"offload_optimizer": True} if _offloads(said, "optimizer") else {}
    except CostModelError:
        return None, {}


def _values(raw: Mapping[str, Any]) -> Values:
    """Return what a configuration says; ZeRO's table may be a truth, and a comment a text."""
    zero = raw.get("zero_optimization")
    kept = {key: value for key, value in raw.items() if key != "comment" or isinstance(value, dict)}
    return Values(_KEYS, {**kept, "zero_optimization": {"stage": 1}} if zero is True else kept, "deepspeed")


def _stage(said: Values) -> int:
    stage = said["zero_stage"]
    if not 0 <= stage <= 3:
        raise said.error(said.key("zero_stage"), "a whole number from 0 to 3", stage)
    return int(stage)


def _batch(micro: int | None, steps: int | None, total: int | None, dp: int) -> tuple[int | None, int | None]:
    """Complete the batch: total = micro x steps x dp, any two given."""
    if micro and steps and total and micro * steps * dp != total:
        raise FrameworkConfigError(
            f"deepspeed: train_batch_size = {total}, but micro x accumulation x dp = "
            f"{micro}·{steps}·{dp} = {micro * steps * dp}"
        )
    if micro is None and total and steps:
        micro = max(1, total // (steps * dp))
    if total is None and micro:
        total = micro * (steps or 1) * dp
    return micro, total


def _offloads(said: Values, part: str) -> bool:
    """Whether optimizer or parameters are on the host or on a disk, under the key of any age."""
    older = {"optimizer": "cpu_offload", "param": "cpu_offload_params"}
    return bool(said.choice(f"offload_{part}", _DEVICES)) or said[older[part]] is True


def _unpriced(said: Values) -> tuple[list[str], dict[str, Any], dict[str, Any]]:
    """Return warnings of what has no price, the facts among it, and the optimizer where it has one."""
    swaps = "nvme" in (said["offload_optimizer"], said["offload_param"])
    warnings = [said_so for said_so in said.unpriced() if swaps or not said_so.startswith("aio: ")]
    facts: dict[str, Any] = {}
    chosen: dict[str, Any] = {}
    if _offloads(said, "param"):
        facts["offload_param"] = True
        warnings.append(
            "offload_param: parameters on the host are priced by --set offload_parameters=true, here on the GPU"
        )
    if said["optimizer"]:
        take_optimizer(said["optimizer"], chosen, facts, warnings)
    if said["second_copy"] > 1:
        warnings.append("zero_hpz_partition_size: the second copy of parameters inside a node has no price")
    if said["quantized_weights"]:
        warnings.append("zero_quantized_weights: price it by --set gather_dtype=fp8")
    if said["quantized_gradients"]:
        warnings.append("zero_quantized_gradients: price it by --set gradient_compression=int4")
    if said["zenflow"]:
        warnings.append(
            "zenflow: its stall-free updates have no price: the offloaded step is priced as it waits"
        )
    return warnings, facts, chosen


def _switches(said: Values, recipe: str, cp: int) -> dict[str, Any]:
    """Read the switches that differ from those of the recipe."""
    base = load_recipe(recipe)
    overlapped = base.overlap.dp_overlap if base.overlap.dp_overlap != "none" else "every-layer"
    # DeepSpeed overlaps by default from stage 3 on.
    overlaps = said["zero_stage"] == 3 if said["overlaps"] is None else said["overlaps"]
    read: dict[str, Any] = {
        "dp_overlap": overlapped if overlaps else "none",
        "offload_optimizer": _offloads(said, "optimizer"),
    }
    for switch, name in (("grad_reduce_dtype", "reduce_dtype"), ("grad_accum_dtype", "accumulation_dtype")):
        if said[name]:
            read[switch] = said.choice(name, _KEYS.more["dtypes"])
    if cp > 1:
        read["cp_method"] = "ulysses"
    return changed_switches(read, base)


def emit_deepspeed(job: Job) -> str:
    """Return the configuration of one layout; what JSON cannot say is under ``comment``.

    Raises
    ------
    FrameworkConfigError
        If DeepSpeed cannot run the schedule or the precision.
    """
    counts, recipe = counts_of(job), job.recipe
    said: dict[str, Any] = {
        "global_batch": counts["global_batch"],
        "micro_batch": counts["micro_batch"],
        "accumulation": counts["micro_batches"],
        "zero_stage": counts["zero_stage"],
        "overlaps": recipe.overlap.dp_overlap != "none",
        "contiguous_gradients": True,
        "reduce_scatter": counts["zero_stage"] >= 1,
        "shard_group": counts["shard_group"] or None,
        "offload_optimizer": "cpu" if recipe.host.offload_optimizer else None,
        "bf16": job.precision.name == "bf16",
        "fp16": job.precision.name == "fp16",
        "reduce_dtype": recipe.dtypes.grad_reduce_dtype,
        "accumulation_dtype": recipe.dtypes.grad_accum_dtype,
        "optimizer": _RECORD.optimizers[job.optimizer.name] or None,
        "tp": counts["tp"] if counts["tp"] > 1 else None,
        "cp": counts["cp"] if counts["cp"] > 1 else None,
    }
    if counts["ep"] > 1:
        said |= {"experts": True, "ep": counts["ep"], "etp": counts["etp"]}
    values = _KEYS.nested({name: value for name, value in said.items() if value is not None})
    if recipe.host.offload_optimizer:
        values["zero_optimization"]["offload_optimizer"]["pin_memory"] = True
    if job.layout.recompute:
        values["activation_checkpointing"] = {"partition_activations": False, "cpu_checkpointing": False}
    comment: dict[str, Any] = {
        "model": model_reference(job.model),
        "keys of": _RECORD.release,
        "cluster": job.cluster.name,
        "gpus": counts["gpus"],
        "pp": counts["pp"],
        "seq_len": counts["seq_len"],
        "recompute": RECOMPUTE_POLICIES[int(job.layout.recompute)],
        "recipe": recipe.name,
        "left to you": left_of(_RECORD, job),
    }
    if steps := steps_of(job):
        comment["steps"] = steps
    given = {"recipe": base_recipe(job, _RECORD.recipe), "gpus": counts["gpus"], "pp": counts["pp"]}
    if unsaid := unsaid_switches(job, imported(values, given)):
        comment["switches without a key"] = unsaid
    return json.dumps({"comment": comment, **values}, indent=2) + "\n"
