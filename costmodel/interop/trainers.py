"""Job files of trainers on transformers: LLaMA-Factory's, ms-swift's and Axolotl's read, Axolotl's written.

What the keys mean stands in ``keys/trainers.yaml``. A job is joined with the DeepSpeed or FSDP configuration that it
names.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.base.errors import CostModelError, shown
from costmodel.base.files import is_there
from costmodel.base.yaml_files import document_text, parse_mapping
from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.describe.jobs.fields import FIELD, RECOMPUTE_POLICIES
from costmodel.describe.jobs.reading import read as read_field
from costmodel.describe.models.model_files import load_model
from costmodel.describe.recipe import load_recipe
from costmodel.interop.deepspeed import imported
from costmodel.interop.framework import (
    FrameworkConfigError,
    Imported,
    counts_of,
    data_degrees,
    fields_of,
    left_of,
    model_reference,
    own_head,
    steps_of,
    tokens_of,
)
from costmodel.interop.keys import Values, key_table
from costmodel.interop.optimizer_names import settle_offload, take_optimizer
from costmodel.interop.sniff import parse_json
from costmodel.interop.text_file import TextFile, read_text
from costmodel.interop.tuning import peft_modules, take_tuning

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job

FSDP_RECIPE = "torchtitan"
"""PyTorch's own sharding as torchtitan runs it; none of these trainers has a profile of its own."""
_EAGER_RECIPE = "deepspeed"
"""The recipe whose kernels are those of Hugging Face's models, which all these trainers run."""
_EAGER = ("cross_entropy", "loss_bytes_per_logit", "fused_norm", "fused_rope", "fused_activation")
_KEYS = key_table("trainers")
_LIGER: Mapping[str, Mapping[str, Any]] = _KEYS.more["liger"]
_SUPERVISED = ("sft", "pt", "pretrain", "none", "false", "")


def read(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read a job of LLaMA-Factory, ms-swift or Axolotl, with the DeepSpeed JSON beside it.

    Raises
    ------
    CostModelError
        If it cannot be read, or names a configuration that cannot be.
    """
    raw = parse_mapping(file.text, file.name, example="key: value", error=FrameworkConfigError)
    said = Values(_KEYS, raw)
    warnings: list[str] = []
    notes: list[str] = []
    job = fields_of({**of_head(file.text), **given})
    chosen, axolotl = job.get("recipe"), "base_model" in raw
    job["micro_batch"] = job.get("micro_batch") or said["micro_batch"] or 1
    if said["seq_len"]:
        job.setdefault("seq_len", said["seq_len"])
    if "model" not in job:
        _take_model(str(said["model"] or ""), job, warnings)
    if "precision" not in job:
        _take_precision(said, job, notes, axolotl=axolotl)
    if "recompute" not in job:
        # LLaMA-Factory and ms-swift recompute unless told otherwise.
        asked = said["recomputation"]
        if asked is None:
            asked = not axolotl and not said["no_recomputation"]
        job["recompute"] = "none" if asked in (False, "false") else "full"
    job["cp"] = job.get("cp") or said["cp"] or said["ulysses"] or 1
    if said["tp"]:
        job.setdefault("tp", said["tp"])
    if axolotl and said["ep"]:
        job.setdefault("ep", said["ep"])
    take_mesh(said, job)
    if gpus := own_head(file.text).get("gpus"):
        job.setdefault("gpus", gpus)
    _take_batch(said, job, notes, axolotl=axolotl)
    if any(raw.get(key) is True for key in _KEYS.fields["sample_packing"].keys):
        notes.append(
            "packing: the lengths of documents are not in the file; attention is priced over whole sequences, "
            "give --packed-len"
        )
    _take_epochs(said, job, notes)
    take_tuning(said, str(said["tuner"] or "full"), job, notes, warnings)
    warnings += _unpriced(said, whole="lora_rank" not in job)
    facts: dict[str, Any] = {}
    if "optimizer" not in job:
        take_optimizer(str(said["optimizer"]), job, facts, warnings)
    left = said.unread()
    steps = said["steps"] if type(said["steps"]) is int else None
    if named := said["deepspeed"]:
        if not chosen:
            take_kernels(said, _EAGER_RECIPE, job)
        found = joined(file, named, job, notes, warnings)
        return dataclasses.replace(
            found,
            job={**found.job, **tokens_of(steps, found.job)},
            ignored=(*found.ignored, *left),
            facts={**facts, **found.facts},
        )
    if (said["cp"] or 1) > 1:
        take_method("ring", job)
    if said["fsdp"] or said["fsdp_config"] or said["fsdp_version"]:
        words = {"fsdp_sharding": said["fsdp"]} if said["fsdp"] else {}
        take_sharding({**said["fsdp_config"], **words}, job, warnings)
    else:
        job = {"recipe": FSDP_RECIPE, "zero_stage": 0, **job}
        notes.append("no sharding is named: every GPU has a copy (DDP)")
    if not chosen:
        take_kernels(said, FSDP_RECIPE, job)
    settle_offload(job, warnings)
    job |= tokens_of(steps, job)
    return dataclasses.replace(done(job, notes, warnings), ignored=left, facts=facts)


def of_head(text: str) -> dict[str, Any]:
    """Return what our own first comment says and no key does; a model only where it is known."""
    said = own_head(text)
    said.pop("gpus", None)
    try:
        named = {"model": load_model(said.pop("model"))} if "model" in said else {}
    except CostModelError:
        named = {}
    return {**said, **named}


def _take_model(named: str, job: dict[str, Any], warnings: list[str]) -> None:
    """Put the model that is named into the job if its shape is known offline."""
    for spelled in (named, named.rstrip("/").rsplit("/", 1)[-1]) if named else ():
        try:
            job["model"] = load_model(spelled)
        except CostModelError:
            continue
        return
    if named:
        warnings.append(f"model {named}: its shape is not known offline; give --model config.json")


def _take_precision(said: Values, job: dict[str, Any], notes: list[str], *, axolotl: bool) -> None:
    """Read the precision; where a file says none, that is said."""
    dtype, bf16, fp16 = str(said["torch_dtype"]), said["bf16"], said["fp16"]
    asked = bf16 in (True, "true") or "bf16" in said.unsaid or said["bfloat16"] is True
    if asked or "bfloat16" in dtype:
        job["precision"] = "bf16"
    elif fp16 in (True, "true") or said["float16"] is True or dtype == "float16":
        job["precision"] = "fp16"
    elif axolotl and bf16 is None:
        job["precision"] = "bf16"
        notes.append("precision: not said; Axolotl takes bf16 where a GPU has it")
    elif bf16 is False and fp16 is False:
        job["precision"] = "fp32"
    else:
        notes.append("precision: not said; give --precision where it is not bf16")


def _take_batch(said: Values, job: dict[str, Any], notes: list[str], *, axolotl: bool) -> None:
    """Put the batch of all data-parallel ranks into a job, where their number is known."""
    micro = job["micro_batch"]
    # Axolotl's batch_size is of one rank and one step (utils/config/__init__.py).
    steps = said["accumulation"] or max(1, ((said["rank_batch"] if axolotl else None) or 0) // micro)
    if "global_batch" in job:
        return
    if job.get("gpus"):
        job["global_batch"] = micro * steps * max(1, job["gpus"] // (job["cp"] * (job.get("tp") or 1)))
    else:
        notes.append(f"global batch: {micro} x {steps} x data-parallel GPUs; give --gpus")


def _take_epochs(said: Values, job: dict[str, Any], notes: list[str]) -> None:
    """Read how often the data is passed over; without the samples of a data set that is said, and is no length.

    Raises
    ------
    FrameworkConfigError
        If it is no number of passes.
    """
    key, given = said.key("epochs"), said["epochs"]
    if given is None:
        return
    try:
        epochs = read_field("epochs", float("nan" if isinstance(given, bool) else given))
    except (CostModelError, TypeError, ValueError):
        raise FrameworkConfigError(
            f"{key}: expected a number from {FIELD['epochs'].least:g} to {FIELD['epochs'].most:g}, got {shown(given)}"
        ) from None
    if job.get("epochs") is not None or job.get("tokens") is not None:
        return
    steps = said["steps"] if type(said["steps"]) is int else 0
    if job.get("dataset_samples") is not None:
        job["epochs"] = epochs
    elif steps < 1:
        notes.append(f"{key}: {epochs:g}; give --dataset-samples, and they set the tokens of the whole run")


def _unpriced(said: Values, *, whole: bool) -> list[str]:
    """Warn of what has no price: among it training that is more than two passes of one model, or less than all of it."""
    fields = ["frozen_layers", *(("bits", "in_4bit", "in_8bit") if whole else ())]
    found = [f"{said.key(field)}: has no price" for field in fields if said[field]]
    if "cut_cross_entropy" in str(said["plugins"]):
        found.append("plugins: the loss of cut_cross_entropy is priced by --set cross_entropy=chunked")
    for field in ("reinforcement", "stage", "rlhf"):
        way = str(said[field] or "").lower()
        if way not in _SUPERVISED:
            found.append(
                f"{said.key(field)}: {way}: priced as supervised training; passes of other models, pairs of answers and "
                "generation have no price"
            )
    for field in ("reward_model", "process_reward_model"):
        if said[field] is True:
            found.append(f"{field}: priced as a language model, with its whole head")
    if said["unfrozen"]:
        found.append(
            "unfrozen_parameters: only some parameters are trained; priced as training of all, give --frozen"
        )
    if said["activation_offloading"] or said["recomputation"] in ("offload", "offload_disk"):
        found.append(
            "activation_offloading: kept inputs lie on the GPU here; price the host by --set offload_activations=<share>"
        )
    return found


def take_kernels(said: Values | None, recipe: str, job: dict[str, Any]) -> None:
    """Put into the switches which kernels the model has where the recipe has others: eager ones, Liger's, compiled ones.

    Without Liger's kernels the loss goes through fp32 copies of all logits, however parameters are sharded
    (transformers loss/loss_utils.py, ForCausalLMLoss).
    """
    eager, base = load_recipe(_EAGER_RECIPE).switches, load_recipe(recipe).switches
    found = {name: eager[name] for name in _EAGER}
    found["compiled"] = said is not None and said["compiled"] is True
    for key, kernels in _LIGER.items():
        if said is not None and (said["liger"] is True or said[key] is True):
            found |= kernels
    changed = {name: value for name, value in found.items() if base[name] != value}
    if changed:
        job["switches"] = changed | (job.get("switches") or {})


def take_mesh(said: Values, job: dict[str, Any]) -> None:
    """Read replicas and shards of the data-parallel ranks; tensor parallelism here is not sequence-parallel."""
    replicate, shard = said["replicate"] or 1, said["shard"]
    tp, cp = job.get("tp") or 1, job.get("cp") or 1
    if tp > 1:
        job.setdefault("sequence_parallel", False)
    if shard is None:
        return
    job.setdefault("gpus", replicate * shard * tp * cp)
    if replicate > 1:
        job.setdefault("shard_group", shard * cp)


def take_method(method: str, job: dict[str, Any]) -> None:
    """Say how context parallelism works where the recipe says otherwise."""
    recipe = load_recipe(job.get("recipe") or FSDP_RECIPE)
    if recipe.overlap.cp_method != method:
        job["switches"] = {"cp_method": method, **(job.get("switches") or {})}


def take_sharding(fsdp: Mapping[str, Any], job: dict[str, Any], warnings: list[str]) -> None:
    """Read FSDP's settings, of either version."""
    stages, plain = (
        _KEYS.more["sharding"]["stages"],
        {str(key).removeprefix("fsdp_"): fsdp[key] for key in fsdp},
    )
    after, words = plain.get("reshard_after_forward"), plain.get("sharding")
    named = str(plain.get("sharding_strategy") or "").lower()
    if isinstance(words, (str, list)) and not named:
        split = words.split() if isinstance(words, str) else [str(word) for word in words]
        named = next((word.lower() for word in split if word.lower() in stages), "")
    if isinstance(after, str) and after.lower() in stages:
        named = after.lower()
    job.setdefault("recipe", FSDP_RECIPE)
    job.setdefault("zero_stage", 2 if after is False and not named else stages.get(named, 3))
    if plain.get("activation_checkpointing"):
        job["recompute"] = "full"
    if named in _KEYS.more["sharding"]["hybrid"]:
        warnings.append(f"{named}: shards inside a node; priced over all GPUs, give --shard-group")
    if plain.get("offload_params") or "offload" in str(words):
        warnings.append(
            "offload_params: parameters on the host are priced by --set offload_parameters=true, here on the GPU"
        )
        job["switches"] = {**(job.get("switches") or {}), "offload_optimizer": True}


def joined(
    file: TextFile, named: Any, job: dict[str, Any], notes: list[str], warnings: list[str]
) -> Imported:
    """Fill a DeepSpeed configuration's ``auto`` with what the job says.

    Raises
    ------
    FrameworkConfigError
        If it is neither beside the file nor of a usual name, or cannot be read.
    """
    content, where = (
        (named, "DeepSpeed: inside the file") if isinstance(named, dict) else _neighbour(file, str(named))
    )
    found = imported(content, {"recompute": "none", **job, "recipe": job.get("recipe") or "deepspeed"})
    return dataclasses.replace(
        found,
        notes=(*found.notes, *notes, where),
        warnings=(*found.warnings, *warnings),
        missing=tuple(dict.fromkeys(key for key in found.missing if job.get(key) is None)),
    )


def _neighbour(file: TextFile, named: str) -> tuple[dict[str, Any], str]:
    """Return the DeepSpeed JSON that a job names, from beside it or its folders above or by its name, and say which."""
    known = _known_by_name(named)
    if "/" not in named and "." not in named and known is not None:
        return known, f"DeepSpeed: {named}"
    folder = file.folder
    places = [] if folder is None else [folder, *list(folder.absolute().parents)[:4]]
    inside = not Path(named).is_absolute() and ".." not in Path(named).parts
    for place in places if inside else ():
        if is_there(place / named):
            return parse_json(read_text(place / named).text, named), f"DeepSpeed: {named}"
    if known is not None:
        return known, f"DeepSpeed: {named} is not beside the file; taken for what its name says"
    raise FrameworkConfigError(
        f"deepspeed: {named} is not beside the file; read it with the job's values given"
    )


# LLaMA-Factory's examples/deepspeed, axolotl's deepspeed_configs and ms-swift's short names say stage and offload in
# their names, and leave all else to the trainer.
_BY_NAME = re.compile(
    r"(?:ds_)?z(?:ero)?_?([0-3])(?:_(?:bf16|fp16))?(_(?:cpu)?offload(?:_(?:params?|all))?)?(?:_config)?(?:\.json)?"
)


def _known_by_name(named: str) -> dict[str, Any] | None:
    """Return what a DeepSpeed configuration of a usual name holds, None for another name."""
    found = _BY_NAME.fullmatch(named.rsplit("/", 1)[-1])
    if not found:
        return None
    stage, offload = found.groups()
    zero: dict[str, Any] = {"stage": int(stage)}
    if offload and not offload.endswith(("param", "params")):
        zero["offload_optimizer"] = {"device": "cpu"}
    if offload and stage == "3":
        zero["offload_param"] = {"device": "cpu"}
    return {
        "zero_optimization": zero,
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        **LEFT_TO_TRAINER,
    }


LEFT_TO_TRAINER = dict.fromkeys(
    ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto"
)
"""What trainers fill in of a DeepSpeed configuration."""


def done(job: dict[str, Any], notes: list[str], warnings: list[str]) -> Imported:
    """Return an answer with what is missing."""
    missing = [key for key in ("model", "gpus", "global_batch", "seq_len") if job.get(key) is None]
    return Imported(
        {key: value for key, value in job.items() if value is not None},
        ("cluster", *missing),
        (),
        tuple(notes),
        tuple(warnings),
    )


def emit_axolotl(job: Job) -> str:
    """Return the job file for ``axolotl train``."""
    counts, tuning = counts_of(job), job.tuning
    said: dict[str, Any] = {
        "model": model_reference(job.model),
        "seq_len": counts["seq_len"],
        "micro_batch": counts["micro_batch"],
        "accumulation": counts["micro_batches"],
        "steps": steps_of(job),
        "bf16": job.precision.name == "bf16",
        "fp16": job.precision.name == "fp16",
        "recomputation": recomputes(job),
        "optimizer": FRAMEWORKS["axolotl"].optimizers[job.optimizer.name],
        "sample_packing": counts["micro_batch"] == 1,
        "attention": "flash_attention_2",
        "tp": counts["tp"],
        "cp": counts["cp"],
    }
    if tuning.lora_rank:
        modules = peft_modules(tuning, "Axolotl")
        said |= {
            "tuner": "qlora" if tuning.base_dtype == "nf4" else "lora",
            "lora_rank": tuning.lora_rank,
            "lora_alpha": 2 * tuning.lora_rank,
            "lora_targets": modules or None,
            "lora_everywhere": None if modules else True,
            "dora": True if tuning.magnitudes else None,
            "in_4bit": True if tuning.computes_in and tuning.base_dtype == "nf4" else None,
            "in_8bit": True if tuning.computes_in and tuning.base_dtype == "fp8" else None,
        }
    if counts["zero_stage"]:
        replicate, shard = data_degrees(counts)
        said |= {"replicate": replicate, "shard": shard, "fsdp_version": 2}
        said["fsdp_config"] = {
            "reshard_after_forward": counts["zero_stage"] == 3,
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "state_dict_type": "SHARDED_STATE_DICT",
            "offload_params": job.recipe.host.offload_optimizer,
        }
    values = _KEYS.nested({name: value for name, value in said.items() if value is not None})
    return configuration_text(job, "axolotl", values, [])


def configuration_text(job: Job, framework: str, values: Mapping[str, Any], lines: list[str]) -> str:
    """Write a configuration under what it was made from and what it leaves open."""
    head = (
        f"# model {model_reference(job.model)} on {float(job.layout.gpus):.0f} GPUs of {job.cluster.name}, "
        f"recipe {job.recipe.name}"
    )
    record = FRAMEWORKS[framework]
    left = [f"# left to you: {what}" for what in left_of(record, job)]
    return "\n".join([head, f"# keys of {record.release}", *lines, *left, document_text(values)])


def recomputes(job: Job) -> bool:
    """Return whether a job recomputes whole layers."""
    return RECOMPUTE_POLICIES[int(job.layout.recompute)] == "full"
