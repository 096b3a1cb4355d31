"""Job files of trainers on transformers, joined with the DeepSpeed or FSDP configuration that they name.

Keys of hiyouga/LLaMA-Factory (``src/llamafactory/hparams``), modelscope/ms-swift (``swift/arguments``),
axolotl-ai-cloud/axolotl (``src/axolotl/utils/schemas``) and huggingface/accelerate
(``src/accelerate/utils/dataclasses.py``, ``commands/config``).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from costmodel.base.errors import CostModelError, shown
from costmodel.base.yaml_files import parse_mapping
from costmodel.describe.jobs.fields import FIELD
from costmodel.describe.jobs.reading import read as read_field
from costmodel.describe.models.model_files import load_model
from costmodel.describe.recipe import load_recipe
from costmodel.interop.deepspeed import imported
from costmodel.interop.framework import FrameworkConfigError, Imported, own_head, tokens_of
from costmodel.interop.optimizer_names import settle_offload, take_optimizer
from costmodel.interop.sniff import parse_json
from costmodel.interop.text_file import TextFile, read_text
from costmodel.interop.tuning import KEYS as TUNING_KEYS
from costmodel.interop.tuning import take_tuning

# PyTorch's shardings as ZeRO stages; those in a node alone are one by themselves.
_SHARDING = {
    "full_shard": 3,
    "shard_grad_op": 2,
    "no_shard": 0,
    "hybrid_shard": 3,
    "hybrid_shard_zero2": 2,
    "1": 3,
    "2": 2,
    "3": 0,
    "4": 3,
    "5": 2,
}
FSDP_RECIPE = "torchtitan"
"""PyTorch's own sharding as torchtitan runs it; none of these trainers has a profile of its own."""
_EAGER_RECIPE = "deepspeed"
"""The recipe whose kernels are those of Hugging Face's models, which all these trainers run."""
_EAGER = ("cross_entropy", "loss_bytes_per_logit", "fused_norm", "fused_rope", "fused_activation")
_LIGER: Mapping[str, Mapping[str, Any]] = {
    "liger_rms_norm": {"fused_norm": True},
    "liger_rope": {"fused_rope": True},
    "liger_glu_activation": {"fused_activation": True},
    "liger_cross_entropy": {"cross_entropy": "fused"},
    "liger_fused_linear_cross_entropy": {"cross_entropy": "chunked"},
}
"""Axolotl's keys of Liger's kernels, and what each puts in place of eager code."""
_ALL_OF_LIGER = ("enable_liger_kernel", "use_liger_kernel", "liger_kernel")
"""Keys of the others, which patch all of a model: the chunked loss in place of the fused one."""

_MODEL = ("model_name_or_path", "base_model", "model", "model_id_or_path")
_LENGTH = ("cutoff_len", "sequence_len", "max_length", "max_seq_length", "model_max_length")
_MICRO = ("per_device_train_batch_size", "micro_batch_size")
_EPOCHS = ("num_epochs", "num_train_epochs")
_TUNING = ("finetuning_type", "adapter", "tuner_type", "train_type", "sft_type")
# Data, logs, learning rates, evaluation, checkpoints: without effect on a step's time or memory.
_HARMLESS = re.compile(
    r"do_.*|dataset.*|template|max_samples|overwrite.*|preprocessing.*|dataloader.*|output_dir|.*_steps|plot_.*|save_.*"
    r"|report_to|learning_rate|lr_.*|warmup.*|ddp_.*|val_.*|eval.*|per_device_eval.*|trust_remote_code|seed"
    r"|logging.*|weight_decay|max_grad_norm|adam_.*|hub_.*|wandb.*|push_.*|chat_template.*|train_on_inputs|group_by_length"
    r"|strict|tokenizer.*|model_type|special_tokens|tf32|resume.*|early_.*|debug|local_rank|pad_to.*|datasets?|lora_.*"
    r"|gradient_checkpointing.*|flash_attention|flash_attn|attn_impl.*|cosine.*|run_name|shuffle.*|streaming|remove_.*"
    r"|enable_thinking|cache_dir|media_dir|image_.*|video_.*|.*_dir|default_system|system|val_set_size|saves_per.*|plugins"
    r"|disable_gradient_checkpointing|include_.*|use_fast_tokenizer|split_.*|loss_.*|xformers_attention|metric.*|load_best.*"
)
_TAKEN = frozenset(
    """gradient_accumulation_steps batch_size bf16 fp16 bfloat16 float16 torch_dtype expert_parallel_size rl stage
    rlhf_type reward_model process_reward_model unfrozen_parameters activation_offloading max_steps
    gradient_checkpointing sequence_parallel_size deepspeed fsdp context_parallel_size tensor_parallel_size
    dp_replicate_size dp_shard_size sequence_parallel_degree sample_packing neat_packing packing torch_compile
    fsdp_config fsdp_version optim optimizer quantization_bit load_in_4bit load_in_8bit freeze_trainable_layers""".split()  # noqa: SIM905
)


def read(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read a job of LLaMA-Factory, ms-swift or Axolotl, with the DeepSpeed JSON beside it.

    Raises
    ------
    CostModelError
        If it cannot be read, or names a configuration that cannot be.
    """
    raw = parse_mapping(file.text, file.name, example="key: value", error=FrameworkConfigError)
    warnings: list[str] = []
    notes: list[str] = []
    job = {**_of_head(file.text), **given}
    chosen = job.get("recipe")
    job.pop("vocab_size", None)
    job.pop("env", None)
    axolotl = "base_model" in raw
    micro = job.get("micro_batch") or next((n for n in (_whole(raw, key) for key in _MICRO) if n), 1)
    # Axolotl's batch_size is of one rank and one step (utils/config/__init__.py).
    whole = _whole(raw, "batch_size") if axolotl else None
    steps = _whole(raw, "gradient_accumulation_steps") or max(1, (whole or 0) // micro)
    job["micro_batch"] = micro
    length = next((n for n in (_whole(raw, key) for key in _LENGTH) if n), None)
    if length and "seq_len" not in job:
        job["seq_len"] = length
    if "model" not in job:
        _take_model(raw, job, warnings)
    if "precision" not in job:
        _take_precision(raw, job, notes, axolotl=axolotl)
    _take_recomputation(raw, job)
    rings = _whole(raw, "context_parallel_size") or _whole(raw, "sequence_parallel_degree")
    job["cp"] = job.get("cp") or rings or _whole(raw, "sequence_parallel_size") or 1
    if tensors := _whole(raw, "tensor_parallel_size"):
        job.setdefault("tp", tensors)
    if axolotl and (experts := _whole(raw, "expert_parallel_size")):
        job.setdefault("ep", experts)
    _take_mesh(raw, "", job)
    if gpus := own_head(file.text).get("gpus"):
        job.setdefault("gpus", gpus)
    shards = job["cp"] * (job.get("tp") or 1)
    if job.get("gpus") and "global_batch" not in job:
        job["global_batch"] = micro * steps * max(1, job["gpus"] // shards)
    elif "global_batch" not in job:
        notes.append(f"global batch: {micro} x {steps} x data-parallel GPUs; give --gpus")
    if _packs(raw):
        notes.append(_PACKED)
    _take_epochs(raw, job, notes)
    tuning = next((str(raw[key]) for key in _TUNING if raw.get(key)), "full")
    take_tuning(raw, tuning, job, notes, warnings)
    unpriced = ["freeze_trainable_layers"]
    if "lora_rank" not in job:
        unpriced += ["quantization_bit", "load_in_4bit", "load_in_8bit"]
    warnings += [f"{key}: has no price" for key in unpriced if raw.get(key)]
    if "cut_cross_entropy" in str(raw.get("plugins")):
        warnings.append("plugins: the loss of cut_cross_entropy is priced by --set cross_entropy=chunked")
    warnings += _other_training(raw)
    optimizer = str(raw.get("optim") or raw.get("optimizer") or "adamw")
    facts: dict[str, Any] = {}
    if "optimizer" not in job:
        take_optimizer(optimizer, job, facts, warnings)
    known = {*_MODEL, *_LENGTH, *_MICRO, *_EPOCHS, *_TUNING, *_TAKEN, *TUNING_KEYS, *_LIGER, *_ALL_OF_LIGER}
    left = tuple(
        key
        for key, value in raw.items()
        if key not in known and value not in (None, False, "", [], {}) and not _HARMLESS.fullmatch(str(key))
    )
    named = raw.get("deepspeed")
    if named:
        if not chosen:
            _take_kernels(raw, _EAGER_RECIPE, job)
        found = _joined(file, named, job, notes, warnings)
        return dataclasses.replace(
            found,
            job={**found.job, **tokens_of(_steps(raw), found.job)},
            ignored=(*found.ignored, *left),
            facts={**facts, **found.facts},
        )
    if (rings or 1) > 1:
        _take_method("ring", job)
    fsdp = _table(raw, "fsdp_config")
    if raw.get("fsdp") or fsdp or _whole(raw, "fsdp_version"):
        _take_sharding({**fsdp, **({"fsdp_sharding": raw["fsdp"]} if raw.get("fsdp") else {})}, job, warnings)
    else:
        job.setdefault("recipe", FSDP_RECIPE)
        job.setdefault("zero_stage", 0)
        notes.append("no sharding is named: every GPU has a copy (DDP)")
    if not chosen:
        _take_kernels(raw, FSDP_RECIPE, job)
    settle_offload(job, warnings)
    job |= tokens_of(_steps(raw), job)
    return dataclasses.replace(_done(job, notes, warnings), ignored=left, facts=facts)


def _take_kernels(raw: Mapping[str, Any], recipe: str, job: dict[str, Any]) -> None:
    """Put into the switches which kernels the model has where the recipe has others: eager ones, Liger's, compiled ones.

    Without Liger's kernels the loss goes through fp32 copies of all logits, however parameters are sharded
    (transformers loss/loss_utils.py, ForCausalLMLoss).
    """
    eager, base = load_recipe(_EAGER_RECIPE).switches, load_recipe(recipe).switches
    found = {name: eager[name] for name in _EAGER} | {"compiled": raw.get("torch_compile") is True}
    whole = any(raw.get(key) is True for key in _ALL_OF_LIGER)
    for key, kernels in _LIGER.items():
        if whole or raw.get(key) is True:
            found |= kernels
    changed = {name: value for name, value in found.items() if base[name] != value}
    if changed:
        job["switches"] = changed | (job.get("switches") or {})


def _take_precision(raw: Mapping[str, Any], job: dict[str, Any], notes: list[str], *, axolotl: bool) -> None:
    """Read the precision; where a file says none, that is said."""
    dtype = str(raw.get("torch_dtype", ""))
    yes = (True, "true", "auto")
    unasked = axolotl and raw.get("bf16") is None and raw.get("fp16") not in yes[:2]
    if raw.get("bf16") in yes or raw.get("bfloat16") is True or "bfloat16" in dtype:
        job["precision"] = "bf16"
    elif raw.get("fp16") in (True, "true") or raw.get("float16") is True or dtype == "float16":
        job["precision"] = "fp16"
    elif unasked:
        job["precision"] = "bf16"
        notes.append("precision: not said; Axolotl takes bf16 where a GPU has it")
    elif raw.get("bf16") is False and raw.get("fp16") is False:
        job["precision"] = "fp32"
    else:
        notes.append("precision: not said; give --precision where it is not bf16")


_SUPERVISED = ("sft", "pt", "pretrain", "none", "false", "")


def _other_training(raw: Mapping[str, Any]) -> list[str]:
    """Warn of training that is more than a forward and a backward pass of one model, or less than all of it."""
    found = []
    for key in ("rl", "stage", "rlhf_type"):
        way = str(raw.get(key) or "").lower()
        if way not in _SUPERVISED:
            found.append(
                f"{key}: {way}: priced as supervised training; passes of other models, pairs of answers and "
                "generation have no price"
            )
    for key in ("reward_model", "process_reward_model"):
        if raw.get(key) is True:
            found.append(f"{key}: priced as a language model, with its whole head")
    if raw.get("unfrozen_parameters"):
        found.append(
            "unfrozen_parameters: only some parameters are trained; priced as training of all, give --frozen"
        )
    if raw.get("activation_offloading") or raw.get("gradient_checkpointing") in ("offload", "offload_disk"):
        found.append(
            "activation_offloading: kept inputs lie on the GPU here; price the host by --set offload_activations=<share>"
        )
    return found


_PACKED = (
    "packing: the lengths of documents are not in the file; attention is priced over whole sequences, "
    "give --packed-len"
)


def _packs(raw: Mapping[str, Any]) -> bool:
    """Tell whether documents are packed and do not look at each other."""
    return any(raw.get(key) is True for key in ("sample_packing", "neat_packing", "packing"))


def read_accelerate(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read a configuration of Accelerate: processes, precision, and how they shard.

    Raises
    ------
    CostModelError
        If it cannot be read.
    """
    raw = parse_mapping(file.text, file.name, example="key: value", error=FrameworkConfigError)
    said = {**_of_head(file.text), **given}
    chosen = said.get("recipe")
    job = {key: value for key, value in said.items() if key not in ("vocab_size", "env")}
    if "gpus" not in job and (processes := _whole(raw, "num_processes")):
        job["gpus"] = processes
    mixed = str(raw.get("mixed_precision") or "no").lower()
    precisions = {"bf16": "bf16", "fp16": "fp16", "no": "fp32", "fp8": "fp8-delayed"}
    if mixed not in precisions:
        raise FrameworkConfigError(f"mixed_precision: {mixed!r} is not supported")
    job.setdefault("precision", precisions[mixed])
    kind = str(raw.get("distributed_type", "")).upper()
    notes: list[str] = []
    warnings: list[str] = []
    if kind == "DEEPSPEED":
        inside = _table(raw, "deepspeed_config")
        if named := inside.get("deepspeed_config_file"):
            found = _joined(file, named, job, notes, warnings)
            return dataclasses.replace(found, missing=_of_jobs(found.missing))
        zero: dict[str, Any] = {"stage": inside.get("zero_stage", 2)}
        for part in ("optimizer", "param"):
            device = inside.get(f"offload_{part}_device")
            if device not in (None, "none"):
                zero[f"offload_{part}"] = {"device": device}
        content = {
            "zero_optimization": zero,
            "gradient_accumulation_steps": "auto",
            "train_batch_size": "auto",
        }
        content["train_micro_batch_size_per_gpu"] = "auto"
        content["bf16" if mixed == "bf16" else "fp16"] = {"enabled": mixed in ("bf16", "fp16")}
        found = imported(content, {"recompute": "none", **job})
        return dataclasses.replace(found, missing=_of_jobs(found.missing))
    if kind == "FSDP":
        _take_sharding(_table(raw, "fsdp_config"), job, warnings)
    elif kind == "MEGATRON_LM":
        inside = _table(raw, "megatron_lm_config")
        for key, name in (("tp", "megatron_lm_tp_degree"), ("pp", "megatron_lm_pp_degree")):
            job.setdefault(key, _whole(inside, name) or 1)
        job.setdefault("recipe", "megatron-core")
    elif kind in ("MULTI_GPU", "NO", ""):
        job.setdefault("recipe", FSDP_RECIPE)
        job.setdefault("zero_stage", 0)
    else:
        raise FrameworkConfigError(f"distributed_type: {kind!r} is not supported")
    parallel = _table(raw, "parallelism_config")
    for key, name in (("tp", "parallelism_config_tp_size"), ("cp", "parallelism_config_cp_size")):
        if size := _whole(parallel, name):
            job.setdefault(key, size)
    _take_mesh(parallel, "parallelism_config_", job)
    if (job.get("cp") or 1) > 1:
        gathers = parallel.get("parallelism_config_cp_comm_strategy", "allgather") == "allgather"
        _take_method("all-gather" if gathers else "ring", job)
    if not chosen and job["recipe"] == FSDP_RECIPE:
        _take_kernels({}, FSDP_RECIPE, job)
    _take_script(job, file.text)
    return _done(job, notes, warnings)


def _of_head(text: str) -> dict[str, Any]:
    """Return what our own first comment says and no key does; a model only where it is known."""
    said = own_head(text)
    said.pop("gpus", None)
    try:
        named = {"model": load_model(said.pop("model"))} if "model" in said else {}
    except CostModelError:
        named = {}
    return {**said, **named}


_SCRIPT = re.compile(r"^# in the training script: ([\w ]+?) = (\d+)$", re.M)


def _take_script(job: dict[str, Any], text: str) -> None:
    """Take what our own comments say that the training script has to: batch, sequence and steps."""
    said = {name: int(number) for name, number in _SCRIPT.findall(text)}
    for name, ours in (("per_device_train_batch_size", "micro_batch"), ("sequence length", "seq_len")):
        if name in said:
            job.setdefault(ours, said[name])
    each, micro, gpus = said.get("gradient_accumulation_steps"), job.get("micro_batch"), job.get("gpus")
    if each and micro and gpus:
        shards = (job.get("tp") or 1) * (job.get("cp") or 1)
        job.setdefault("global_batch", micro * each * max(1, gpus // shards))
    job |= tokens_of(said.get("max_steps"), job)


def _steps(raw: Mapping[str, Any]) -> int | None:
    """Return the steps that a run is ended after, None where its epochs end it."""
    steps = raw.get("max_steps")
    return steps if type(steps) is int else None


def _take_epochs(raw: Mapping[str, Any], job: dict[str, Any], notes: list[str]) -> None:
    """Read how often the data is passed over; without the samples of a data set that is said, and is no length.

    Raises
    ------
    FrameworkConfigError
        If it is no number of passes.
    """
    key = next((name for name in _EPOCHS if raw.get(name) not in (None, "auto")), None)
    if key is None:
        return
    try:
        if isinstance(raw[key], bool):
            raise TypeError
        epochs = read_field("epochs", float(raw[key]))
    except (CostModelError, TypeError, ValueError):
        raise FrameworkConfigError(
            f"{key}: expected a number from {FIELD['epochs'].least:g} to {FIELD['epochs'].most:g}, got {shown(raw[key])}"
        ) from None
    if job.get("epochs") is not None or job.get("tokens") is not None:
        return
    if job.get("dataset_samples") is not None:
        job["epochs"] = epochs
    elif _steps(raw) is None or (_steps(raw) or 0) < 1:
        notes.append(f"{key}: {epochs:g}; give --dataset-samples, and they set the tokens of the whole run")


def _of_jobs(missing: Iterable[str]) -> tuple[str, ...]:
    """Return keys of a job, without those of DeepSpeed that its trainer fills in."""
    return tuple(key for key in missing if key in ("cluster", "model", "gpus", "global_batch", "seq_len"))


def _take_mesh(sizes: Mapping[str, Any], prefix: str, job: dict[str, Any]) -> None:
    """Read replicas and shards of the data-parallel ranks; tensor parallelism here is not sequence-parallel."""
    replicate, shard = _whole(sizes, f"{prefix}dp_replicate_size"), _whole(sizes, f"{prefix}dp_shard_size")
    tp, cp = job.get("tp") or 1, job.get("cp") or 1
    if tp > 1:
        job.setdefault("sequence_parallel", False)
    if shard is None:
        return
    job.setdefault("gpus", (replicate or 1) * shard * tp * cp)
    if (replicate or 1) > 1:
        job.setdefault("shard_group", shard * cp)


def _take_method(method: str, job: dict[str, Any]) -> None:
    """Say how context parallelism works where the recipe says otherwise."""
    recipe = load_recipe(job.get("recipe") or FSDP_RECIPE)
    if recipe.overlap.cp_method != method:
        job["switches"] = {"cp_method": method, **(job.get("switches") or {})}


def _take_model(raw: Mapping[str, Any], job: dict[str, Any], warnings: list[str]) -> None:
    """Put the model that is named into the job if its shape is known offline."""
    named = next((str(raw[key]) for key in _MODEL if raw.get(key)), "")
    if not named:
        return
    for spelled in (named, named.rstrip("/").rsplit("/", 1)[-1]):
        try:
            job["model"] = load_model(spelled)
        except CostModelError:
            continue
        return
    warnings.append(f"model {named}: its shape is not known offline; give --model config.json")


def _take_recomputation(raw: Mapping[str, Any], job: dict[str, Any]) -> None:
    """Read whether activations are recomputed; LLaMA-Factory and ms-swift do unless told otherwise."""
    if "recompute" in job:
        return
    said = raw.get("gradient_checkpointing")
    if said is None and raw.get("disable_gradient_checkpointing"):
        said = False
    if said is None:
        said = "base_model" not in raw
    job["recompute"] = "none" if said in (False, "false", None) else "full"


def _take_sharding(fsdp: Mapping[str, Any], job: dict[str, Any], warnings: list[str]) -> None:
    """Read FSDP's settings, of either version."""
    plain = {str(key).removeprefix("fsdp_"): value for key, value in fsdp.items()}
    after = plain.get("reshard_after_forward")
    words = plain.get("sharding")
    named = str(plain.get("sharding_strategy") or "").lower()
    if isinstance(words, (str, list)) and not named:
        split = words.split() if isinstance(words, str) else [str(word) for word in words]
        named = next((word.lower() for word in split if word.lower() in _SHARDING), "")
    if isinstance(after, str) and after.lower() in _SHARDING:
        named = after.lower()
    stage = _SHARDING.get(named, 3)
    if isinstance(after, bool) and not named:
        stage = 3 if after else 2
    job.setdefault("recipe", FSDP_RECIPE)
    job.setdefault("zero_stage", stage)
    if plain.get("activation_checkpointing"):
        job["recompute"] = "full"
    if named in ("hybrid_shard", "hybrid_shard_zero2", "4", "5"):
        warnings.append(f"{named}: shards inside a node; priced over all GPUs, give --shard-group")
    offloads = plain.get("offload_params") or "offload" in str(words)
    if offloads:
        warnings.append(
            "offload_params: parameters on the host are priced by --set offload_parameters=true, here on the GPU"
        )
        job["switches"] = {**(job.get("switches") or {}), "offload_optimizer": True}


def _joined(
    file: TextFile,
    named: Any,
    job: dict[str, Any],
    notes: list[str],
    warnings: list[str],
) -> Imported:
    """Fill a DeepSpeed configuration's ``auto`` with what the job says."""
    content, said = (
        (named, "DeepSpeed: inside the file") if isinstance(named, dict) else _neighbour(file, str(named))
    )
    job = {**job, "recipe": job.get("recipe") or "deepspeed"}
    job.setdefault("recompute", "none")
    found = imported(content, job)
    return dataclasses.replace(
        found,
        notes=(*found.notes, *notes, said),
        warnings=(*found.warnings, *warnings),
        missing=tuple(dict.fromkeys(key for key in found.missing if job.get(key) is None)),
    )


def _neighbour(file: TextFile, named: str) -> tuple[dict[str, Any], str]:
    """Return the DeepSpeed JSON that a job names, from beside it or its folders above or by its name, and say which.

    Raises
    ------
    FrameworkConfigError
        If it is not there.
    """
    if "/" not in named and "." not in named and (content := _known_by_name(named)) is not None:
        return content, f"DeepSpeed: {named}"
    folder = file.folder
    places = [] if folder is None else [folder, *list(folder.absolute().parents)[:4]]
    for place in places:
        path = place / named
        inside = Path(named).is_absolute() is False and ".." not in Path(named).parts
        if inside and path.is_file():
            return parse_json(read_text(path).text, named), f"DeepSpeed: {named}"
    if (content := _known_by_name(named)) is not None:
        return content, f"DeepSpeed: {named} is not beside the file; taken for what its name says"
    raise FrameworkConfigError(
        f"deepspeed: {named} is not beside the file; read it with the job's values given"
    )


def _done(job: dict[str, Any], notes: list[str], warnings: list[str]) -> Imported:
    """Return an answer with what is missing."""
    missing = [key for key in ("model", "gpus", "global_batch", "seq_len") if job.get(key) is None]
    return Imported(
        {key: value for key, value in job.items() if value is not None},
        ("cluster", *missing),
        (),
        tuple(notes),
        tuple(warnings),
    )


def _table(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = raw.get(key)
    return value if isinstance(value, dict) else {}


def _whole(raw: Mapping[str, Any], key: str) -> int | None:
    """Return a whole number, none where there is none.

    Raises
    ------
    FrameworkConfigError
        If it is something else.
    """
    value = raw.get(key)
    if value in (None, "auto"):
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise FrameworkConfigError(f"{key}: expected a whole number, got {value!r}")
    return value


# LLaMA-Factory's examples/deepspeed, axolotl's deepspeed_configs and ms-swift's short names say stage and offload in
# their names, and leave all else to the trainer.
_BY_NAME = re.compile(
    r"(?:ds_)?z(?:ero)?_?([0-3])(?:_(bf16|fp16))?(_(?:cpu)?offload(?:_(?:params?|all))?)?(?:_config)?(?:\.json)?"
)


def _known_by_name(named: str) -> dict[str, Any] | None:
    """Return what a DeepSpeed configuration of a usual name holds, None for another name."""
    found = _BY_NAME.fullmatch(named.rsplit("/", 1)[-1])
    if not found:
        return None
    stage, _, offload = found.groups()
    zero: dict[str, Any] = {"stage": int(stage)}
    if offload and not offload.endswith(("param", "params")):
        zero["offload_optimizer"] = {"device": "cpu"}
    if offload and stage == "3":
        zero["offload_param"] = {"device": "cpu"}
    return {
        "zero_optimization": zero,
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
    }
