"""NeMo / Megatron-Bridge overrides: ``key=value`` lines for a recipe's command line, both ways.

Keys of ``ConfigContainer`` in NVIDIA-NeMo/Megatron-Bridge. The model is that of the recipe which they override, so
that it has to be given beside them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from costmodel.describe.frameworks import FRAMEWORKS, launched_by
from costmodel.describe.models.model_files import load_model
from costmodel.interop.bridge_keys import flags_of, overrides_of, precision_lines, read_overrides
from costmodel.interop.framework import (
    Imported,
    base_recipe,
    counts_of,
    left_of,
    model_reference,
    own_head,
    unsaid_switches,
)
from costmodel.interop.megatron import layout_arguments, optimizer_flags, recipe_arguments
from costmodel.interop.megatron_job import job_of_flags
from costmodel.interop.megatron_text import MEGATRON, Flags
from costmodel.interop.read_megatron import with_given
from costmodel.interop.text_file import TextFile
from costmodel.interop.tuning import bridge_modules, take_bridge_tuning

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job

_RECORD = FRAMEWORKS["nemo"]


def emit_nemo(job: Job) -> str:
    """Return the overrides of one layout, a line each.

    Raises
    ------
    FrameworkConfigError
        If Megatron-Bridge cannot place the axes.
    """
    counts = counts_of(job)
    arguments = {**layout_arguments(job, counts), **recipe_arguments(job, counts)}
    values = overrides_of([*MEGATRON.flags(arguments), *optimizer_flags(job)])
    values |= _adapter_keys(job)
    lines = [f"{key}={value}" for key, value in values.items()]
    lines += precision_lines(
        _RECORD.precisions[job.precision.name], reduces_in_bf16=values["ddp.grad_reduce_in_fp32"] == "false"
    )
    head = (
        f"# Megatron-Bridge overrides: {model_reference(job.model)} on {counts['gpus']} GPUs of "
        f"{job.cluster.name}, recipe {job.recipe.name}"
    )
    text = "\n".join([head, *lines]) + "\n"
    back = import_nemo(text, model=job.model, recipe=base_recipe(job, _RECORD.recipe))
    notes = [f"# keys of {launched_by('nemo', job.recipe.launches).release}"]
    notes += [f"# no key for the recipe's {switch}" for switch in unsaid_switches(job, back)]
    notes += [f"# left to you: {what}" for what in left_of(_RECORD, job)]
    if job.tuning.lora_rank:
        notes.append(f"# left to you: a finetune recipe with peft_scheme={bridge_modules(job.tuning)[0]}")
    return "\n".join([head, *notes, *lines]) + "\n"


def _adapter_keys(job: Job) -> dict[str, str]:
    """Return the keys of adapters, over those of the recipe's own scheme."""
    if not job.tuning.lora_rank:
        return {}
    modules = bridge_modules(job.tuning)[1]
    return {"peft.dim": str(job.tuning.lora_rank), "peft.target_modules": f"[{','.join(modules)}]"}


def import_nemo(text: str, **given: Any) -> Imported:
    """Read overrides; `given` are keywords of a job, ``model`` among them unless the first comment names one.

    Raises
    ------
    FrameworkConfigError
        If a line is no override, or a value cannot be read.
    """
    said: Mapping[str, Any] = {**own_head(text), **given}
    overrides = read_overrides(text)
    adapters = {
        key: overrides.pop(f"peft.{key}") for key in ("dim", "target_modules") if f"peft.{key}" in overrides
    }
    words, left = flags_of(overrides)
    flags = Flags(words)
    if said.get("gpus"):
        flags.give("world_size", said["gpus"])
    named = said.get("model")
    model = load_model(named) if isinstance(named, str) else named
    found = job_of_flags(flags, recipe=said.get("recipe") or _RECORD.recipe, model=model)
    job = with_given({**found.job, **_adapters(adapters)}, said)
    missing = tuple(key for key in found.missing if job.get(key) is None)
    return dataclasses.replace(found, job=job, ignored=(*found.ignored, *left), missing=missing)


def _adapters(keys: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a job that keys of adapters say.

    Raises
    ------
    FrameworkConfigError
        If the rank is no whole number.
    """
    rank = keys.get("dim", "32")
    modules = [word.strip("'\" ") for word in keys.get("target_modules", "").strip("[]").split(",")]
    job: dict[str, Any] = {}
    table = {
        "dim": int(rank) if rank.isdigit() else rank,
        "target_modules": [word for word in modules if word],
    }
    take_bridge_tuning(table if keys else {}, job, [])
    return job


def read(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read a file of overrides.

    Raises
    ------
    CostModelError
        If it is none.
    """
    return import_nemo(file.text, **given)
