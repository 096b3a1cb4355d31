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
from costmodel.describe.jobs.fields import RECOMPUTE_POLICIES
from costmodel.describe.recipe import load_recipe
from costmodel.interop.draft import Draft
from costmodel.interop.framework import (
    FrameworkConfigError,
    Imported,
    base_recipe,
    changed_switches,
    counts_of,
    inexpressible_switches,
    left_of,
    model_reference,
    steps_of,
)
from costmodel.interop.keys import Values, key_table
from costmodel.interop.text_file import TextFile, parse_json

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job

_RECORD = FRAMEWORKS["deepspeed"]
_KEYS = key_table("deepspeed")


def read(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read a configuration; what it leaves to the trainer ("auto") has to be given beside it."""
    return imported(parse_json(file.text, file.name), given).answer()


def imported(raw: Mapping[str, Any], given: Mapping[str, Any]) -> Draft:
    """Read a configuration's content."""
    config = _values(raw)
    if not any(key in _KEYS.tables or key in _KEYS.used for key in raw if key != "comment"):
        raise FrameworkConfigError(
            "deepspeed: no key of a DeepSpeed configuration, such as zero_optimization or train_batch_size"
        )
    draft = Draft(given, config)
    auto = [config.key(name) for name in ("micro_batch", "accumulation", "global_batch", "zero_stage")]
    auto = [key for key in auto if key in config.placeholders]
    if draft["precision"] is None and not config["bf16"] and not config["fp16"]:
        if any(key.endswith(".enabled") for key in config.placeholders):
            auto.append("precision")
        else:
            draft.put(precision="fp32")
    draft.put(precision="bf16" if config["bf16"] else "fp16" if config["fp16"] else None)
    draft.put(**{axis: config[axis] for axis in ("tp", "cp", "ep", "etp")}, pp=config["pp"] or 1)
    _take_batch(config, draft)
    if "train_micro_batch_size_per_gpu" not in auto:
        draft.put(micro_batch=1)
    _take_unpriced(config, draft)
    if _takes_bf16_optimizer(config):
        draft.notes.append(
            "zero_optimization.stage 0 with bf16: BF16_Optimizer shards its states as ZeRO-1 does, after an all-reduce of "
            "gradients that are added up in fp32 (runtime/bf16_optimizer.py): priced as that"
        )
    if draft["recompute"] is None and config["recompute"] is None and config["recomputation"]:
        draft.warnings.append(
            "activation_checkpointing: says how, the training script says whether; priced as full "
            "recomputation, give --recompute none where the script does not"
        )
    draft.put(
        recipe=_RECORD.recipe,
        zero_stage=1 if _takes_bf16_optimizer(config) else _stage(config),
        shard_group=max(config["shard_group"], 0),
        recompute=config["recompute"] or ("full" if config["recomputation"] else "none"),
        sequence_parallel=False,
        schedule="none" if draft["pp"] == 1 else "1f1b",
        model=config["model"],
        seq_len=config["seq_len"],
    )
    draft.job["switches"] = {**_switches(config, draft), **(draft["switches"] or {})}
    draft.put_steps(config["steps"])
    draft.step_offloaded_as_adam()
    if auto:
        draft.notes.append(f'"auto", filled in by the trainer: {", ".join(auto)}')
    known = {
        "train_micro_batch_size_per_gpu": draft["micro_batch"],
        "gradient_accumulation_steps": config["accumulation"]
        or (draft["micro_batch"] and draft["global_batch"]),
        "train_batch_size": draft["global_batch"],
        "precision": draft["precision"],
        "zero_optimization.stage": given.get("zero_stage"),
    }
    draft.missing += [key for key in auto if known[key] is None]
    return draft


def stage_and_switches(text: str) -> tuple[int | None, dict[str, Any]]:
    """Return stage and switches that a configuration inside a script, or beside it, states; none if it is unreadable."""
    try:
        config = _values(parse_json(text, "ds_config"))
        stage = _stage(config) if config.has("zero_stage") else None
        return stage, {"offload_optimizer": True} if _offloads(config, "optimizer") else {}
    except CostModelError:
        return None, {}


def _values(raw: Mapping[str, Any]) -> Values:
    """Return what a configuration says; ZeRO's table may be a truth, and a comment a text."""
    zero = raw.get("zero_optimization")
    kept = {key: value for key, value in raw.items() if key != "comment" or isinstance(value, dict)}
    return Values(_KEYS, {**kept, "zero_optimization": {"stage": 1}} if zero is True else kept, "deepspeed")


def _stage(config: Values) -> int:
    stage = config["zero_stage"]
    if not 0 <= stage <= 3:
        raise config.error(config.key("zero_stage"), "a whole number from 0 to 3", stage)
    return int(stage)


def _takes_bf16_optimizer(config: Values) -> bool:
    """Tell whether the engine wraps the optimizer so: bf16 without ZeRO, gradients added up in fp32 as by default."""
    return (
        bool(config["bf16"]) and not config["zero_stage"] and config["accumulation_dtype"] in (None, "fp32")
    )


def _take_batch(config: Values, draft: Draft) -> None:
    """Complete the batch and the GPUs: total = micro x steps x data-parallel ranks."""
    given = draft["micro_batch"] or draft["global_batch"]
    draft.put(**{name: config[name] for name in ("micro_batch", "global_batch", "gpus")})
    micro, total, steps = draft["micro_batch"], draft["global_batch"], config["accumulation"]
    shards = draft["tp"] * draft["cp"] * draft["pp"]
    if draft["gpus"] is None and micro and steps and total:
        draft.put(gpus=total // (micro * steps) * shards)
    if draft["gpus"] is None:
        return
    dp = max(1, draft["gpus"] // shards)
    if micro and total:
        if steps and not given and micro * steps * dp != total:
            raise FrameworkConfigError(
                f"deepspeed: train_batch_size = {total}, but micro x accumulation x dp = "
                f"{micro}·{steps}·{dp} = {micro * steps * dp}"
            )
    elif micro:
        draft.put(global_batch=micro * (steps or 1) * dp)
    elif total and steps:
        draft.put(micro_batch=max(1, total // (steps * dp)))


def _offloads(config: Values, part: str) -> bool:
    """Whether optimizer or parameters are on the host or on a disk, under the key of any age."""
    older = {"optimizer": "cpu_offload", "param": "cpu_offload_params"}
    return bool(config[f"offload_{part}"]) or config[older[part]] is True


def _take_unpriced(config: Values, draft: Draft) -> None:
    """Say what has no price, and read the optimizer."""
    if "nvme" not in (config["offload_optimizer"], config["offload_param"]):
        draft.warnings = [text for text in draft.warnings if not text.startswith("aio: ")]
    if _offloads(config, "param"):
        draft.facts["offload_param"] = True
        draft.warnings.append(
            "offload_param: parameters on the host are priced by --set offload_parameters=true, here on the GPU"
        )
    if config["optimizer"]:
        draft.put_optimizer(config["optimizer"])


def _switches(config: Values, draft: Draft) -> dict[str, Any]:
    """Read the switches that differ from those of the recipe."""
    base = load_recipe(draft["recipe"])
    overlapped = base.overlap.dp_overlap if base.overlap.dp_overlap != "none" else "every-layer"
    # DeepSpeed overlaps by default from stage 3 on.
    overlaps = config["zero_stage"] == 3 if config["overlaps"] is None else config["overlaps"]
    read: dict[str, Any] = {
        "dp_overlap": overlapped if overlaps else "none",
        "offload_optimizer": _offloads(config, "optimizer"),
        "grad_reduce_dtype": config["reduce_dtype"],
        "grad_accum_dtype": config["accumulation_dtype"],
        "cp_method": "ulysses" if draft["cp"] > 1 else None,
        "hpz_ranks": config["hpz_ranks"] if config["zero_stage"] == 3 and config["hpz_ranks"] > 1 else None,
    }
    if _takes_bf16_optimizer(config):
        read |= {"zero_all_reduce": True, "grad_accum_dtype": "fp32"}
    return changed_switches({name: value for name, value in read.items() if value is not None}, base)


def emit_deepspeed(job: Job) -> str:
    """Return the configuration of one layout; what JSON cannot say is under ``comment``."""
    counts, recipe = counts_of(job), job.recipe
    config: dict[str, Any] = {
        "global_batch": counts["global_batch"],
        "micro_batch": counts["micro_batch"],
        "accumulation": counts["micro_batches"],
        "zero_stage": counts["zero_stage"],
        "overlaps": recipe.overlap.dp_overlap != "none",
        "contiguous_gradients": True,
        "reduce_scatter": counts["zero_stage"] >= 1,
        "shard_group": counts["shard_group"] or None,
        "hpz_ranks": recipe.overlap.hpz_ranks or None,
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
        config |= {"experts": True, "ep": counts["ep"], "etp": counts["etp"]}
    values = _KEYS.nested(config)
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
    if inexpressible := inexpressible_switches(job, imported(values, given).answer()):
        comment["switches without a key"] = inexpressible
    return json.dumps({"comment": comment, **values}, indent=2) + "\n"
