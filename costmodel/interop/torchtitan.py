"""torchtitan's configurations: a function of its Python registry out, every form of them in.

Since February 2026 torchtitan takes a Python function by ``--module`` and ``--config`` (torchtitan 0.3.0,
``torchtitan/config/manager.py``), and no TOML. Sizes of the model live in torchtitan's Python; family and flavor
name a preset here where one is known. What is written is read by `costmodel.interop.read_torchtitan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.describe.jobs.fields import RECOMPUTE_POLICIES
from costmodel.describe.models.model import Model, same_shape
from costmodel.describe.models.model_files import load_model
from costmodel.interop.assertions.torchtitan import SEVERAL_STAGES
from costmodel.interop.framework import (
    FrameworkConfigError,
    Imported,
    base_recipe,
    counts_of,
    left_of,
    steps_of,
    unsaid_switches,
)
from costmodel.interop.read_torchtitan import DEFAULT_RECIPE, FLAVORS, content, imported, registry
from costmodel.interop.trainers import data_degrees
from costmodel.physics.pipeline.schedules import schedule_at

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job

_RECORD = FRAMEWORKS["torchtitan"]
# The function whose data, tokenizer, optimizer and loss a flavor takes over: its own, or its family's nearest.
_BASES = {
    "llama3-8b": "llama3_8b",
    "llama3-70b": "llama3_70b",
    "llama3-405b": "llama3_405b",
    "deepseek-v2-lite": "deepseek_v3_16b",
    "deepseek-v2-236b": "deepseek_v3_671b",
    "deepseek-v3-671b": "deepseek_v3_671b",
    "gpt-oss-20b": "gpt_oss_20b",
    "gpt-oss-120b": "gpt_oss_120b",
    "qwen3-0.6b": "qwen3_0_6b",
    "qwen3-1.7b": "qwen3_1_7b",
    "qwen3-4b": "qwen3_1_7b",
    "qwen3-8b": "qwen3_14b",
    "qwen3-14b": "qwen3_14b",
    "qwen3-32b": "qwen3_32b",
    "qwen3-30b-a3b": "qwen3_30b_a3b",
    "qwen3-235b-a22b": "qwen3_30b_a3b",
}
_SPELLED = {"a3b": "A3B", "a22b": "A22B"}
_CONVERTERS = {"fp8-current": "Float8LinearConverter", "mxfp8": "MXFP8LinearConverter"}
_POLICIES = {"none": "None", "selective": "SelectiveAC.Config()", "full": "FullAC.Config()"}


def emit_torchtitan(job: Job) -> str:
    """Return a module whose function ``job`` is the configuration of one layout.

    Raises
    ------
    FrameworkConfigError
        If torchtitan does not have the model.
    """
    counts = counts_of(job)
    name = _registered(job.model)
    family, flavor = _flavor(name)
    base = _BASES[name]
    policy = RECOMPUTE_POLICIES[int(job.layout.recompute)]
    compiled = job.recipe.kernels.compiled
    pipelined = job.recipe.overlap.tp_overlap == "pipelined"
    imports = [
        "from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig",
        f"from torchtitan.models.{family} import model_registry",
        f"from torchtitan.models.{family}.config_registry import {base}",
        "from torchtitan.trainer import Trainer",
    ]
    if policy != "none":
        kind = _POLICIES[policy].split(".")[0]
        imports.insert(1, f"from torchtitan.distributed.activation_checkpoint import {kind}")
    if job.precision.name in _CONVERTERS:
        imports.insert(0, f"from torchtitan.components.quantization import {_CONVERTERS[job.precision.name]}")
    body = [
        f"config = {base}()",
        f"config.model_spec = model_registry({', '.join(_model_arguments(job, flavor))})",
        f"config.training = {_call('TrainingConfig', _training(job, counts))}",
        f"config.parallelism = {_call('ParallelismConfig', _parallelism(job, counts))}",
        f"config.activation_checkpoint = {_POLICIES[policy]}",
        f"config.compile = CompileConfig(enable={compiled}, enable_async_tensor_parallel={pipelined})",
        "return config",
    ]
    text = "\n".join([*imports, "", "", "def job() -> Trainer.Config:", *(f"    {line}" for line in body)])
    back = import_torchtitan(text, recipe=base_recipe(job, DEFAULT_RECIPE))
    notes = [
        f"# model {job.model.name} on {counts['gpus']} GPUs of {job.cluster.name}, recipe {job.recipe.name}",
        f"# settings of {_RECORD.release}",
        "# saved as costmodel_job.py: torchrun … -m torchtitan.train --module costmodel_job --config job",
    ]
    notes += [f"# no setting for the recipe's {switch}" for switch in unsaid_switches(job, back)]
    notes += [f"# left to you: {what}" for what in left_of(_RECORD, job)]
    return "\n".join([*notes, text]) + "\n"


def _registered(model: Model) -> str:
    """Return the name of ours for a model of torchtitan's registry: its own, or that of one of the same shape."""
    if model.name in _BASES:
        return model.name
    for name in _BASES:
        if same_shape(load_model(name), model):
            return name
    raise FrameworkConfigError(
        f"emit: torchtitan has no model {model.name}; it has {', '.join(sorted(_BASES))}"
    )


def _flavor(name: str) -> tuple[str, str]:
    """Return family and flavor of a model of ours, as torchtitan spells them."""
    family, flavor = next(spelled for spelled, ours in FLAVORS.items() if ours == name)
    if family == "gpt_oss":
        return family, flavor
    return family, "-".join(_SPELLED.get(part, part.upper()) for part in flavor.split("-"))


def _model_arguments(job: Job, flavor: str) -> list[str]:
    """Return what the family's registry is asked for."""
    made = [f'"{flavor}"', 'attn_backend="flex"']
    if job.model.mtp_layers:
        made.append(f"num_mtp_layers={job.model.mtp_layers}")
    if job.precision.name in _CONVERTERS:
        converter = _CONVERTERS[job.precision.name]
        made.append(f"converters=[{converter}.Config(model_compile_enabled={job.recipe.kernels.compiled})]")
    return made


def _training(job: Job, counts: Mapping[str, int]) -> dict[str, Any]:
    """Return batch, sequence and numerics."""
    # The pipeline cuts the local batch; without one, accumulation does.
    cuts = counts["micro_batches"] if counts["pp"] > 1 else 1
    return {
        "local_batch_size": counts["micro_batch"] * cuts,
        "global_batch_size": counts["global_batch"],
        "seq_len": counts["seq_len"],
        **({"steps": steps} if (steps := steps_of(job)) else {}),
        "mixed_precision_param": "float32" if job.precision.name == "fp32" else "bfloat16",
        "mixed_precision_reduce": "bfloat16" if job.recipe.dtypes.grad_reduce_dtype == "bf16" else "float32",
        "disable_cuda_graphs": not job.recipe.host.cuda_graphs,
    }


def _parallelism(job: Job, counts: Mapping[str, int]) -> dict[str, Any]:
    """Return degrees, sharding and the pipeline."""
    overlap, memory = job.recipe.overlap, job.recipe.memory
    replicate, shard = data_degrees(counts)
    kept = counts["pp"] > 1 and overlap.fsdp_pp_keeps_gathered
    values: dict[str, Any] = {
        "data_parallel_replicate_degree": replicate,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": "never"
        if not overlap.fsdp_reshard_after_forward
        else "default"
        if kept
        else "always",
        "tensor_parallel_degree": counts["tp"],
        "enable_sequence_parallel": bool(job.layout.sequence_parallel) or counts["tp"] == 1,
        "context_parallel_degree": counts["cp"],
        "pipeline_parallel_degree": counts["pp"],
        "expert_parallel_degree": counts["ep"],
    }
    if counts["pp"] > 1:
        schedule = schedule_at(job.layout.schedule).name
        first, last = int(memory.embedding_as_layer), int(memory.head_as_layer)
        values |= {
            "pipeline_parallel_schedule": _RECORD.schedules[schedule],
            "pipeline_parallel_microbatch_size": counts["micro_batch"],
            "pipeline_parallel_first_stage_less_layers": first,
            "pipeline_parallel_last_stage_less_layers": last,
        }
        if schedule in SEVERAL_STAGES and counts["vp"] != 2:
            places = job.model.num_layers + first + last
            values["pipeline_parallel_layers_per_stage"] = -(-places // (counts["pp"] * counts["vp"]))
    return values


def _call(name: str, values: Mapping[str, Any]) -> str:
    """Write a call with keywords, one a line."""
    lines = "".join(
        f'        {key}="{value}",\n' if isinstance(value, str) else f"        {key}={value},\n"
        for key, value in values.items()
    )
    return f"{name}(\n{lines}    )"


def import_torchtitan(text: str, *, recipe: str = DEFAULT_RECIPE, gpus: int | None = None) -> Imported:
    """Read a configuration: a module of the Python registry, TOML, or JSON that torchtitan saved.

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
        If the text is none of them, or a value is of the wrong kind.
    """
    given = {"recipe": recipe} | ({} if gpus is None else {"gpus": gpus})
    raw = registry(text, "") if "Trainer.Config" in text else content(text)
    found = imported(raw, given)
    if found.job.get("gpus") is None:
        raise FrameworkConfigError(
            "torchtitan: parallelism.data_parallel_shard_degree is -1 (the rest); give gpus"
        )
    return found
