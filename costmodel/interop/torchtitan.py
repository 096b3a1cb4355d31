"""torchtitan job files: TOML (until February 2026) in and out, and the JSON of its newer configs in.

Keys of pytorch/torchtitan ``config_manager.py`` and ``config/job_config.py``. Sizes of the model
live in torchtitan's Python; the file says name and flavor, which name a preset here where one is known.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from costmodel.describe.jobs.fields import RECOMPUTE_POLICIES
from costmodel.describe.recipe import load_recipe
from costmodel.interop.framework import FrameworkConfigError, Imported, counts_of, unsaid_switches
from costmodel.physics.pipeline.schedules import schedule_at

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job

DEFAULT_RECIPE = "torchtitan"
_SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}
_SCHEDULE_OF = {name.lower(): ours for ours, name in _SCHEDULES.items()}
VALUES_THAT_RUN = {
    "schedule": ",".join(["none", *_SCHEDULES]),
    "zero_stage": "3",
    "sequence_parallel": "true",
}
"""What a search must keep to for torchtitan to run the result: FSDP2 shards parameters."""

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
_PRESET_OF = {flavor: preset for preset, flavor in _FLAVORS.items()}
_LOW_PRECISION = {"fp8-current": "float8", "mxfp8": "mx"}


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
    if schedule != "none" and schedule not in _SCHEDULES:
        raise FrameworkConfigError(
            f"emit: torchtitan has no schedule {schedule}; plan with {', '.join(_SCHEDULES)}"
        )
    ranks = counts["dp"] * counts["cp"]
    if counts["zero_stage"] in (1, 2) or (counts["zero_stage"] == 0 and ranks > 1 and counts["cp"] > 1):
        raise FrameworkConfigError(
            f"emit: torchtitan has no ZeRO-{counts['zero_stage']}; plan with zero_stage = 3"
        )
    if job.precision.name not in ("bf16", "fp32", *_LOW_PRECISION):
        raise FrameworkConfigError(f"emit: torchtitan has no precision {job.precision.name}")
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
            "pipeline_parallel_schedule": _SCHEDULES[schedule],
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
    if job.precision.name in _LOW_PRECISION:
        kind = _LOW_PRECISION[job.precision.name]
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


class _Table:
    """A table of a config that remembers what was read."""

    def __init__(self, raw: Mapping[str, Any], path: str) -> None:
        self.raw, self.path, self.read = raw, path, set[str]()

    def get(self, key: str, default: Any, kind: type) -> Any:
        """Return a value of a kind."""
        self.read.add(key)
        value = self.raw.get(key, default)
        if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise FrameworkConfigError(
                f"torchtitan: {self.path}.{key}: expected {kind.__name__}, got {value!r}"
            )
        return value


_READ_TABLES = ("model", "training", "parallelism", "activation_checkpoint", "compile", "quantize")


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
    raw = _read(text)
    tables = {name: _Table(raw.get(name) or {}, name) for name in _READ_TABLES}
    parallel, training = tables["parallelism"], tables["training"]
    degrees = {
        "tp": parallel.get("tensor_parallel_degree", 1, int),
        "cp": parallel.get("context_parallel_degree", 1, int),
        "pp": parallel.get("pipeline_parallel_degree", 1, int),
        "ep": parallel.get("expert_parallel_degree", 1, int),
        "etp": parallel.get("expert_tensor_parallel_degree", 1, int),
    }
    replicate = parallel.get("data_parallel_replicate_degree", 1, int)
    shard = parallel.get("data_parallel_shard_degree", -1, int)
    others = degrees["tp"] * degrees["cp"] * degrees["pp"] * replicate
    if shard < 0:
        if gpus is None:
            raise FrameworkConfigError(
                "torchtitan: parallelism.data_parallel_shard_degree is -1 (the rest); give gpus"
            )
        shard = gpus // others
    job: dict[str, Any] = {"recipe": recipe, **degrees, "gpus": others * shard}
    sharded = shard * degrees["cp"] > 1
    job["zero_stage"] = 3 if sharded or replicate == 1 else 0
    job["shard_group"] = shard * degrees["cp"] if replicate > 1 and sharded else 0
    job |= _batch_of(training, parallel, degrees["pp"], replicate * shard)
    job |= _stages_of(parallel, degrees["pp"])
    mode = tables["activation_checkpoint"].get("mode", "selective", str)
    option = tables["activation_checkpoint"].get("selective_ac_option", "2", str)
    if mode not in RECOMPUTE_POLICIES:
        raise FrameworkConfigError(
            f"torchtitan: activation_checkpoint.mode: expected none, selective or full, got {mode!r}"
        )
    job["recompute"] = mode
    notes: list[str] = []
    model = tables["model"]
    flavor = (model.get("name", "", str), model.get("flavor", "", str))
    preset = _PRESET_OF.get(flavor)
    layers_each = job.pop("layers_per_stage", None)
    if preset is not None:
        job["model"] = preset
        if layers_each:
            from costmodel.describe.models.model_files import load_model

            job["vp"] = -(-load_model(preset).num_layers // (degrees["pp"] * layers_each))
    elif layers_each:
        notes.append("pipeline_parallel_layers_per_stage: virtual stages need the model's layers; give vp")
    if mode == "selective" and option != "op":
        notes.append(f"selective_ac_option {option!r} is priced as 'op'")
    quantize = (raw.get("quantize") or {}).get("linear") or {}
    low = next((ours for ours, key in _LOW_PRECISION.items() if key in quantize), "")
    stored = training.get("mixed_precision_param", "bfloat16", str)
    job["precision"] = low or ("fp32" if stored == "float32" else "bf16")
    job["switches"] = _switches_of(training, parallel, tables["compile"], recipe, degrees)
    if preset is None:
        notes.append(
            f"model {' '.join(flavor).strip() or 'unnamed'}: sizes live in torchtitan's code; give a model"
        )
    ignored = [
        f"{t.path}.{key}"
        for t in tables.values()
        for key in t.raw
        if key not in t.read and t.path != "quantize"
    ]
    missing = [key for key in ("model", "global_batch", "seq_len") if job.get(key) is None]
    return Imported(
        {k: v for k, v in job.items() if v is not None}, ("cluster", *missing), tuple(ignored), tuple(notes)
    )


def _read(text: str) -> Mapping[str, Any]:
    try:
        raw = json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except (tomllib.TOMLDecodeError, json.JSONDecodeError) as error:
        raise FrameworkConfigError(
            f"torchtitan: neither TOML nor JSON: {str(error).splitlines()[0]}"
        ) from None
    if "parallelism" not in raw and "training" not in raw:
        raise FrameworkConfigError("torchtitan: neither [parallelism] nor [training] in the file")
    return dict(raw)


def _batch_of(training: _Table, parallel: _Table, pp: int, dp: int) -> dict[str, Any]:
    """Read tokens and batch, of the old file or the new one."""
    seq = training.get("seq_len", None, int) or training.get("max_context_length", None, int)
    local = training.get("local_batch_size", training.raw.get("batch_size", 1), int)
    training.read.add("batch_size")
    total = training.get("global_batch_size", -1, int)
    per_rank = training.get("num_tokens_per_microbatch_per_dp_rank", None, int)
    per_step = training.get("num_tokens_per_train_step", None, int)
    if per_rank is not None and seq:
        return {
            "seq_len": seq,
            "micro_batch": max(1, per_rank // seq),
            "global_batch": per_step // seq if per_step and per_step > 0 else dp * max(1, per_rank // seq),
        }
    micro = parallel.get("pipeline_parallel_microbatch_size", 1, int) if pp > 1 else local
    return {
        "seq_len": seq,
        "micro_batch": micro,
        "global_batch": total if total and total > 0 else dp * local,
    }


def _stages_of(parallel: _Table, pp: int) -> dict[str, Any]:
    """Read the schedule and the virtual stages."""
    if pp == 1:
        return {"schedule": "none", "vp": 1}
    given = parallel.get("pipeline_parallel_schedule", "1F1B", str)
    parallel.read.add("pipeline_parallel_layers_per_stage")
    if given.lower() not in _SCHEDULE_OF:
        known = ", ".join(_SCHEDULES.values())
        raise FrameworkConfigError(
            f"torchtitan: pipeline_parallel_schedule: expected one of {known}, got {given!r}"
        )
    schedule = _SCHEDULE_OF[given.lower()]
    layers = parallel.raw.get("pipeline_parallel_layers_per_stage")
    looped = schedule in ("interleaved", "zb-v", "dualpipe-v")
    found: dict[str, Any] = {"schedule": schedule, "vp": 2 if looped else 1}
    if layers and schedule == "interleaved":
        found["layers_per_stage"] = layers
    return found


def _switches_of(
    training: _Table, parallel: _Table, compile_table: _Table, recipe: str, degrees: Mapping[str, int]
) -> dict[str, Any]:
    """Read the switches that differ from those of the recipe."""
    base = load_recipe(recipe)
    reduce = training.get("mixed_precision_reduce", "float32", str)
    reshard = parallel.get("fsdp_reshard_after_forward", "default", str)
    rotate = parallel.get("context_parallel_rotate_method", "allgather", str)
    pipelined = parallel.get("enable_async_tensor_parallel", False, bool)
    read: dict[str, Any] = {
        "grad_reduce_dtype": "bf16" if reduce == "bfloat16" else "fp32",
        # By default torchtitan keeps layers gathered where a pipeline would gather them again each time.
        "fsdp_reshard_after_forward": degrees["pp"] == 1 if reshard == "default" else reshard == "always",
        "compiled": compile_table.get("enable", False, bool),
        "tp_overlap": "pipelined"
        if pipelined
        else "none"
        if base.overlap.tp_overlap == "pipelined"
        else base.overlap.tp_overlap,
    }
    if degrees["cp"] > 1:
        read["cp_method"] = "ring" if rotate == "alltoall" else "all-gather"
    current = base.switches
    return {key: value for key, value in read.items() if current[key] != value}
