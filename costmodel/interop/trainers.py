"""Jobs of trainers on transformers: LLaMA-Factory's, ms-swift's and Axolotl's read, Axolotl's written; Accelerate's.

What the keys mean stands in ``keys/trainers.yaml`` and ``keys/accelerate.yaml``. A job is joined with the DeepSpeed or
FSDP configuration that it names. In Accelerate's files batch and sequence belong to the training script.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.base.errors import CostModelError, shown
from costmodel.base.yaml_files import document_text
from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.describe.jobs.fields import FIELD, RECOMPUTE_POLICIES, REQUIRED
from costmodel.describe.jobs.reading import read as read_field
from costmodel.describe.models.huggingface import read_hf_config
from costmodel.describe.recipe import load_recipe
from costmodel.interop.deepspeed import imported
from costmodel.interop.draft import ALL_BF16, Draft
from costmodel.interop.framework import (
    FrameworkConfigError,
    Imported,
    counts_of,
    data_degrees,
    hub_name,
    inexpressible_switches,
    known_model,
    left_of,
    model_reference,
    own_head,
    steps_of,
)
from costmodel.interop.interpolation import resolved
from costmodel.interop.keys import Flags, Values, key_table, matches, unknown_keys
from costmodel.interop.read_megatron import followed_script
from costmodel.interop.rl_files import take_lengths
from costmodel.interop.shell_words import missing_in
from costmodel.interop.text_file import (
    TextFile,
    beside,
    parse_json,
    parse_yaml,
    read_text,
    table_in,
    value_of_word,
)
from costmodel.interop.tuning import peft_modules, take_tuning

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job

_FSDP_RECIPE = "torchtitan"
"""PyTorch's own sharding as torchtitan runs it; none of these trainers has a profile of its own."""
_EAGER_RECIPE = "deepspeed"
"""The recipe whose kernels are those of Hugging Face's models, which all these trainers run."""
_EAGER = ("cross_entropy", "loss_bytes_per_logit", "fused_norm", "fused_rope", "fused_activation")
_KEYS, _ACCELERATE, _HYPERPOD = map(key_table, ("trainers", "accelerate", "hyperpod"))
_LIGER: Mapping[str, Mapping[str, Any]] = _KEYS.more["liger"]
_SHARDING: Mapping[str, Any] = _KEYS.more["sharding"]


def read_trainer(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read a job of LLaMA-Factory, ms-swift or Axolotl or the script that starts it, with the DeepSpeed JSON beside it."""
    if re.search(rf"^[^#\n]*(?:{_STARTS.pattern}|{_TRAINER_FLAG}\b)", file.text, re.M):
        raw, given = _started(file, given)
    else:
        raw = parse_yaml(file.text, file.name)
    if str(raw.get("fsdp")).endswith(".json"):
        raw = {**raw, "fsdp": None} | parse_json(
            read_text(_sharding_file(file, "fsdp", raw["fsdp"])).text, raw["fsdp"]
        )
    config, head = Values(_KEYS, raw), own_head(file.text)
    draft = _draft_under(head, given, config)
    chosen, axolotl = draft["recipe"], "base_model" in raw
    draft.put(micro_batch=config["micro_batch"] or 1, seq_len=config["seq_len"])
    _take_model(str(config["model"] or ""), draft)
    if draft["precision"] is None:
        _take_precision(config, draft, axolotl=axolotl)
    # LLaMA-Factory and ms-swift recompute where nothing says otherwise.
    recomputes = config["recomputation"]
    if recomputes is None:
        recomputes = not axolotl and not config["no_recomputation"]
    draft.put(
        recompute="none" if recomputes in (False, "false") else "full",
        cp=config["cp"] or config["ulysses"] or 1,
        tp=config["tp"],
        ep=config["ep"] if axolotl else None,
    )
    _take_mesh(config, draft)
    draft.put(gpus=head.get("gpus"), global_batch=config["global_batch"])
    _take_batch(config, draft, axolotl=axolotl)
    if any(raw.get(key) is True for key in _KEYS.fields["sample_packing"].keys):
        draft.notes.append(
            "packing: the lengths of documents are not in the file; attention is priced over whole sequences, "
            "give --packed-len"
        )
    _take_epochs(config, draft)
    take_tuning(config, str(config["tuner"] or "full"), draft)
    _take_unpriced(config, draft)
    draft.put_optimizer(str(config["optimizer"]))
    if named := config["deepspeed"]:
        if not chosen:
            _take_kernels(config, _EAGER_RECIPE, draft)
        draft = _joined(file, named, draft)
        return _answer(file, config, draft)
    if (config["cp"] or config["ulysses"] or 1) > 1:
        ring = config["cp"] and not config["sharding"]
        _take_method(config["sequence_mode"] or ("ring" if ring else "ulysses"), draft)
    if any(config[name] for name in ("fsdp", "fsdp_config", "fsdp_version")) or config["sharding"] == "fsdp2":
        words = {"fsdp_sharding": config["fsdp"]} if config["fsdp"] else {}
        _take_sharding({**config["fsdp_config"], **words}, draft)
    else:
        if draft["zero_stage"] is None:
            draft.notes.append("no sharding is named: every GPU has a copy (DDP)")
        draft.put(recipe=_FSDP_RECIPE, zero_stage=0)
    if not given.get("recipe"):
        _take_kernels(config, draft["recipe"], draft)
    draft.step_offloaded_as_adam()
    return _answer(file, config, draft)


def _answer(file: TextFile, config: Values, draft: Draft) -> Imported:
    """Return what was read; of DPO a step on pairs of answers, each sequence with a pass of the reference."""
    own = (name for name, words in _OWN_WORDS.items() if re.search(words, file.text, re.M))
    draft.more["framework"] = next(own, "transformers")
    if config["stage"] != "dpo":
        draft.put_steps(config["steps"])
        return draft.answer()
    pairs = draft.job.pop("global_batch", None)
    draft.put(algorithm="dpo", prompts=pairs, samples_per_prompt=2, batching="padding", seq_len=_CUTOFF)
    draft.put(reference=config["preference_loss"] not in ("orpo", "simpo"))
    draft.job["micro_batch"] *= 2
    take_lengths(draft, draft["seq_len"], draft["seq_len"])
    for name in ("epochs", "tokens", "dataset_samples"):
        draft.job.pop(name, None)
    return draft.answer(needed=[name for name in REQUIRED if name not in ("global_batch", "seq_len")])


_STARTS = re.compile(r"\b(?:swift (?:sft|pt|rlhf)|swift/cli/(?:sft|pt|rlhf)\.py|llamafactory-cli train)\b")
_OWN_WORDS = {
    "Axolotl": r"\bbase_model\"?\s*:",
    "LLaMA-Factory": r"llamafactory|\b(?:finetuning_type|cutoff_len)\b",
    "ms-swift": r"\bswift\b|\b(?:tuner_type|train_type|sft_type)\b",
}
"""What only the files of one trainer have; all others are of the Trainer of transformers."""
_CUTOFF = 2048
"""Tokens of a sequence of DPO where nothing says how long it may be: LLaMA-Factory's `cutoff_len`."""
_LAUNCHER = ("nproc_per_node", "num_processes", "num_gpus", "nnodes", "num_nodes", "config_file")
"""Flags of torchrun, DeepSpeed's launcher and Accelerate that are read."""
_TRAINER_FLAG = "--per_device_train_batch_size"
"""A flag of every script on the Trainer of transformers."""
_SWIFT_BATCH = 16
"""Sequences of a step that ms-swift accumulates to where nothing says how often."""
_OF_LAUNCHER = ("gpus", "zero_stage", "shard_group", "tp", "cp")
"""What Accelerate's file says for the trainer; precision and batch are the trainer's own."""


def _started(file: TextFile, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the job that a script starts, as its file would say it, and what its launcher says of GPUs and sharding."""
    followed = followed_script(file, given)
    for launch in followed.launches:
        words = launch.words
        starts = (
            place
            for place in range(1, len(words) + 1)
            if _STARTS.search(" ".join(words[:place]))
            or (words[place - 1].endswith(".py") and any(word.startswith(_TRAINER_FLAG) for word in words))
        )
        if place := next(starts, 0):
            break
    else:
        raise FrameworkConfigError("starts no training that can be read: the command is not followed")
    before, command = words[:place], " ".join(words[place - 2 : place])
    variables = {**followed.values, **launch.environment}
    launcher = {
        key: value[0] if isinstance(value, list) else value for key, value in _arguments(before).items()
    }
    counts = (launcher.get(name) for name in ("nproc_per_node", "num_processes", "num_gpus"))
    each = next(filter(None, counts), variables.get("NPROC_PER_NODE"))
    nodes = launcher.get("nnodes") or launcher.get("num_nodes") or variables.get("NNODES") or 1
    known = dict(given)
    if named := launcher.get("config_file"):
        launched = read_accelerate(read_text(_sharding_file(file, "--config_file", named)), given).job
        known = {name: launched[name] for name in _OF_LAUNCHER if name in launched}
        if launched["recipe"] != _FSDP_RECIPE:
            known["recipe"] = launched["recipe"]
        if launched["switches"].get("offload_optimizer"):
            known["switches"] = {"offload_optimizer": True}
        known |= given
    if known.get("gpus") is None and str(each).isdigit() and str(nodes).isdigit():
        known["gpus"] = int(str(each)) * int(str(nodes))
    raw: dict[str, Any] = {}
    if place < len(words) and words[place].endswith((".yaml", ".yml", ".json")):
        path = beside(file, words[place])
        if path is None:
            raise FrameworkConfigError(
                f"{shown(words[place])}: is not beside the script; read it where it lies"
            )
        raw = parse_yaml(read_text(path).text, path.name)
        place += 1
    raw |= _arguments(words[place:])
    if not _STARTS.search(command) and "finetuning_type" not in raw:
        # Scripts of transformers' own Trainer: all parameters, kept inputs and fp32 unless they say otherwise.
        raw.setdefault("gradient_checkpointing", False)
        config = Values(_KEYS, raw)
        if config["scripts_lora"] and config["lora_rank"] is None and given.get("lora_rank") is None:
            raise FrameworkConfigError(
                f"{config.key('scripts_lora')}: the rank is the script's own default; give --lora-rank"
            )
        raw.setdefault("finetuning_type", "lora" if config["scripts_lora"] else "full")
        return raw | {key: raw.get(key, False) for key in ("bf16", "fp16")}, known
    if "swift" not in command:
        raw.setdefault("finetuning_type", "lora")
        return raw, known
    raw.setdefault(
        "tuner_type", next((raw.pop(key) for key in ("train_type", "sft_type") if key in raw), "lora")
    )
    raw.setdefault("torch_dtype", "bfloat16")
    if "rlhf" in command:
        raw.setdefault("rlhf_type", "dpo")
    micro = raw.get("per_device_train_batch_size", 1)
    if "gradient_accumulation_steps" not in raw and type(micro) is int and micro > 0 and known.get("gpus"):
        raw["gradient_accumulation_steps"] = max(1, -(-_SWIFT_BATCH // (micro * known["gpus"])))
    return raw, known


def _sharding_file(file: TextFile, key: str, named: Any) -> Path:
    """Return the path of a file beside a job that says how parameters are sharded."""
    path = beside(file, str(named))
    if path is None:
        raise FrameworkConfigError(
            f"{key}: {shown(named)} says how parameters are sharded, and is not beside the script"
        )
    return path


def _arguments(words: list[str]) -> dict[str, Any]:
    """Return the arguments of a command as keys with values; one that is not in the script is an error if it matters."""
    found: dict[str, Any] = {}
    for flag, values in (Flags(words).raw if any(word[:2] == "--" for word in words) else {}).items():
        key = flag.lstrip("-").replace("-", "_")
        if missing := next(filter(None, map(missing_in, values)), ""):
            if key not in _KEYS.used and key not in _LAUNCHER:
                found[key] = f"({missing})"
                continue
            advice = f"; give --env {missing[1:].split()[0]}=…" if missing.startswith("$") else ""
            raise FrameworkConfigError(f"{flag}: its value is not in the script: {missing}{advice}")
        read = [value_of_word(word) for word in values]
        found[key] = read if len(read) > 1 else read[0] if read else True
    return found


def _draft_under(head: Mapping[str, Any], given: Mapping[str, Any], config: Values) -> Draft:
    """Return a draft with what our own first comment says and no key does; a model only where it is known."""
    draft = Draft(given, config)
    draft.put(recipe=head.get("recipe"), model=known_model(head["model"]) if "model" in head else None)
    return draft


def _take_model(named: str, draft: Draft) -> None:
    """Read the model that is named if its shape is known offline."""
    if named and draft["model"] is None:
        known = known_model(named)
        draft.put(model=known and known.model_copy(update={"source": named}))
        if known is None:
            draft.warnings.append(f"model {named}: its shape is not known offline; give --model config.json")


def _take_precision(config: Values, draft: Draft, *, axolotl: bool) -> None:
    """Read the precision; where a file says none, that is said."""
    dtype, bf16, fp16 = str(config["torch_dtype"]), config["bf16"], config["fp16"]
    if config["fp8"] is True:
        # Axolotl hands torchao no recipe: one scale a tensor.
        draft.put(precision="fp8-current" if axolotl else config["fp8_backend"])
        return
    if config["pure_bf16"] is True:
        draft.put(precision="bf16")
        draft.put_switches({} if config["deepspeed"] else ALL_BF16)
        return
    is_bf16 = bf16 or "bf16" in config.placeholders or config["bfloat16"] is True
    if is_bf16 or "bfloat16" in dtype:
        draft.put(precision="bf16")
    elif fp16 or config["float16"] is True or dtype == "float16":
        draft.put(precision="fp16")
    elif axolotl and bf16 is None:
        draft.put(precision="bf16")
        draft.notes.append("precision: not said; Axolotl takes bf16 where a GPU has it")
    elif bf16 is False and fp16 is False:
        draft.put(precision="fp32")
    else:
        draft.notes.append("precision: not said; give --precision where it is not bf16")


def _take_batch(config: Values, draft: Draft, *, axolotl: bool) -> None:
    """Read the batch of all data-parallel ranks, where their number is known."""
    micro = draft["micro_batch"]
    # Axolotl's batch_size is of one rank and one step (utils/config/__init__.py).
    steps = config["accumulation"] or max(1, ((config["rank_batch"] if axolotl else None) or 0) // micro)
    if draft["gpus"]:
        draft.put(global_batch=_sequences(micro * steps, draft["gpus"], draft["cp"] * (draft["tp"] or 1)))
    elif draft["global_batch"] is None:
        draft.notes.append(f"global batch: {micro} x {steps} x data-parallel GPUs; give --gpus")


def _sequences(a_rank: int, gpus: int, others: int) -> int:
    """Return the batch of all ranks, on GPUs that the other degrees do not divide of as many sequences a GPU."""
    return max(a_rank, a_rank * gpus // others)


def _take_epochs(config: Values, draft: Draft) -> None:
    """Read how often the data is passed over; without the samples of a data set that is said, and is no length."""
    key, given = config.key("epochs"), config["epochs"]
    if given is None:
        return
    try:
        epochs = read_field("epochs", float("nan" if isinstance(given, bool) else given))
    except (CostModelError, TypeError, ValueError):
        raise FrameworkConfigError(
            f"{key}: expected a number from {FIELD['epochs'].least:g} to {FIELD['epochs'].most:g}, got {shown(given)}"
        ) from None
    if draft["epochs"] is not None or draft["tokens"] is not None:
        return
    steps = config["steps"] if type(config["steps"]) is int else 0
    if draft["dataset_samples"] is not None:
        draft.put(epochs=epochs)
    elif steps < 1:
        draft.notes.append(
            f"{key}: {epochs:g}; give --dataset-samples, and they set the tokens of the whole run"
        )


def _take_unpriced(config: Values, draft: Draft) -> None:
    """Warn of what has no price: among it training that is more than two passes of one model, or less than all of it."""
    if config["base_quantized"] and not config["dequantized"]:
        raise FrameworkConfigError(
            f"{config.key('base_quantized')}: {shown(config['base_quantized'])} has no price where it is not dequantized"
        )
    bits = () if draft["lora_rank"] else ("bits", "in_4bit", "in_8bit")
    draft.warnings += [f"{config.key(field)}: has no price" for field in bits if config[field]]
    if "cut_cross_entropy" in str(config["plugins"]):
        draft.warnings.append(
            "plugins: the loss of cut_cross_entropy is priced by --set cross_entropy=chunked"
        )


def _take_kernels(config: Values | None, recipe: str, draft: Draft) -> None:
    """Read which kernels the model has where the recipe has others: eager ones, Liger's, compiled ones.

    Without Liger's kernels the loss goes through fp32 copies of all logits, however parameters are sharded
    (transformers loss/loss_utils.py, ForCausalLMLoss).
    """
    eager, base = load_recipe(_EAGER_RECIPE).switches, load_recipe(recipe).switches
    found = {name: eager[name] for name in _EAGER}
    found["compiled"] = config is not None and config["compiled"] is True
    for key, kernels in _LIGER.items():
        if config is not None and (config["liger"] is True or config.raw.get(key) is True):
            found |= kernels
    if found["cross_entropy"] != eager["cross_entropy"]:
        del found["loss_bytes_per_logit"]  # of an unfused loss
    draft.put_switches({name: value for name, value in found.items() if base[name] != value})


def _take_mesh(config: Values, draft: Draft) -> None:
    """Read replicas and shards of the data-parallel ranks; tensor parallelism here is not sequence-parallel."""
    replicate, shard = config["replicate"] or 1, config["shard"]
    tp, cp = draft["tp"] or 1, draft["cp"] or 1
    if tp > 1:
        draft.put(sequence_parallel=False)
    if shard is not None:
        draft.put(
            gpus=replicate * shard * tp * cp,
            shard_group=shard * cp if replicate > 1 else None,
        )


def _take_method(method: str, draft: Draft) -> None:
    """Say how context parallelism works where the recipe says otherwise."""
    if load_recipe(draft["recipe"] or _FSDP_RECIPE).overlap.cp_method != method:
        draft.put_switches({"cp_method": method})


def _take_sharding(fsdp: Mapping[str, Any], draft: Draft) -> None:
    """Read FSDP's settings, of either version."""
    stages = _SHARDING["stages"]
    plain = {str(key).removeprefix("fsdp_"): fsdp[key] for key in fsdp}
    unknown = {key: value for key, value in plain.items() if not matches(_SHARDING["known"], key)}
    draft.ignored += unknown_keys({f"fsdp_config.{key}": value for key, value in unknown.items()})
    after, words = plain.get("reshard_after_forward"), plain.get("sharding")
    named = str(plain.get("sharding_strategy") or "").lower()
    if isinstance(words, (str, list)) and not named:
        split = words.split() if isinstance(words, str) else [str(word) for word in words]
        named = next((word.lower() for word in split if word.lower() in stages), "")
    if isinstance(after, str) and after.lower() in stages:
        named = after.lower()
    draft.put(recipe=_FSDP_RECIPE, zero_stage=2 if after is False and not named else stages.get(named, 3))
    if plain.get("activation_checkpointing"):
        draft.job["recompute"] = "full"
    if named in _SHARDING["hybrid"]:
        draft.warnings.append(f"{named}: shards inside a node; priced over all GPUs, give --shard-group")
    if plain.get("offload_params") or "offload" in str(words):
        draft.warnings.append(
            "offload_params: parameters on the host are priced by --set offload_parameters=true, here on the GPU"
        )
        draft.put_switches({"offload_optimizer": True})


def _joined(file: TextFile, named: Any, draft: Draft) -> Draft:
    """Fill a DeepSpeed configuration's ``auto`` with what the job says; it is beside the file or of a usual name."""
    if isinstance(named, dict):
        content, where = named, "DeepSpeed: inside the file"
    else:
        content, where = _neighbour(file, str(named))
    found = imported(content, {"recompute": "none", **draft.job})
    found.notes += [*draft.notes, where]
    found.warnings += draft.warnings
    found.facts = {**draft.facts, **found.facts}
    found.ignored += draft.ignored
    found.missing = [key for key in found.missing if key not in _LEFT_TO_TRAINER and draft[key] is None]
    return found


def _neighbour(file: TextFile, named: str) -> tuple[dict[str, Any], str]:
    """Return the DeepSpeed JSON that a job names, from beside it or its folders above or by its name, and say which."""
    known = _known_by_name(named)
    if "/" not in named and "." not in named and known is not None:
        return known, f"DeepSpeed: {named}"
    if path := beside(file, named):
        return parse_json(read_text(path).text, named), f"DeepSpeed: {named}"
    if known is not None:
        own = _AXOLOTLS_STAGE_2 in named
        as_what = "Axolotl's, with the optimizer on the host" if own else "what its name says"
        return known, f"DeepSpeed: {named} is not beside the file; taken for {as_what}"
    raise FrameworkConfigError(
        f"deepspeed: {shown(named)} is not beside the file; read it with the job's values given"
    )


_AXOLOTLS_STAGE_2 = "deepspeed_configs/zero2"
# LLaMA-Factory's examples/deepspeed (ds_...), axolotl's deepspeed_configs and ms-swift's short names say stage and
# offload in their names, and leave all else to the trainer; the latter two overlap at any stage, and Axolotl's zero2.json
# has the optimizer on the host without a word of it.
_BY_NAME = re.compile(
    r"(?:ds_)?z(?:ero)?_?([0-3])(?:_(?:bf16|fp16|fp8))?(_(?:cpu)?offload(?:_(?:params?|all))?)?(?:_config)?(?:\.json)?"
)


def _known_by_name(named: str) -> dict[str, Any] | None:
    """Return what a DeepSpeed configuration of a usual name holds, None for another name."""
    found = _BY_NAME.fullmatch(named.rsplit("/", 1)[-1])
    if not found:
        return None
    stage, offload = found.groups()
    zero: dict[str, Any] = {"stage": int(stage)}
    if found[0].startswith("zero"):
        zero["overlap_comm"] = True
    if _AXOLOTLS_STAGE_2 in named or (offload and not offload.endswith(("param", "params"))):
        zero["offload_optimizer"] = {"device": "cpu"}
    if offload and stage == "3":
        zero["offload_param"] = {"device": "cpu"}
    enabled = {"enabled": "auto"}
    return {"zero_optimization": zero, "bf16": enabled, "fp16": enabled, **_LEFT_TO_TRAINER}


_LEFT_TO_TRAINER = dict.fromkeys(
    ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto"
)
"""What trainers fill in of a DeepSpeed configuration."""


def emit_axolotl(job: Job) -> str:
    """Return the job file for ``axolotl train``."""
    counts, tuning = counts_of(job), job.tuning
    config: dict[str, Any] = {
        "model": hub_name(job.model) or model_reference(job.model),
        "seq_len": counts["seq_len"],
        "micro_batch": counts["micro_batch"],
        "accumulation": counts["micro_batches"],
        "steps": steps_of(job),
        "bf16": job.precision.name == "bf16",
        "fp16": job.precision.name == "fp16",
        "recomputation": _recomputes(job),
        "optimizer": FRAMEWORKS["axolotl"].optimizers[job.optimizer.name],
        "sample_packing": counts["micro_batch"] == 1,
        "attention": "flash_attention_2",
        "compiled": bool(job.switches["compiled"]),
        "tp": counts["tp"],
        "cp": counts["cp"],
    }
    if tuning.lora_rank:
        modules = peft_modules(tuning, "Axolotl")
        config |= {
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
        config |= {"replicate": replicate, "shard": shard, "fsdp_version": 2}
        config["fsdp_config"] = {
            "reshard_after_forward": counts["zero_stage"] == 3,
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "state_dict_type": "SHARDED_STATE_DICT",
            "offload_params": job.recipe.host.offload_optimizer,
        }
    liger = {key: True for key, kernels in _LIGER.items() if kernels.items() <= job.switches.items()}
    if counts["tp"] > 1:
        # integrations/liger/args.py refuses it beside tensor parallelism.
        liger.pop("liger_rms_norm", None)
    if liger:
        config["plugins"] = ["axolotl.integrations.liger.LigerPlugin"]
    values = {**_KEYS.nested(config), **liger}
    back = read_trainer(TextFile(_configuration_text(job, "axolotl", values, []), "axolotl.yaml"), {})
    lost = [f"# no key for the recipe's {switch}" for switch in inexpressible_switches(job, back)]
    return _configuration_text(job, "axolotl", values, lost)


def _configuration_text(job: Job, framework: str, values: Mapping[str, Any], lines: list[str]) -> str:
    """Write a configuration under what it was made from and what it leaves open."""
    head = (
        f"# model {model_reference(job.model)} on {float(job.layout.gpus):.0f} GPUs of {job.cluster.name}, "
        f"recipe {job.recipe.name}"
    )
    record = FRAMEWORKS[framework]
    left = [f"# left to you: {what}" for what in left_of(record, job)]
    return "\n".join([head, f"# keys of {record.release}", *lines, *left, document_text(values)])


def _recomputes(job: Job) -> bool:
    """Return whether a job recomputes whole layers."""
    return RECOMPUTE_POLICIES[int(job.layout.recompute)] == "full"


def read_hyperpod(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read a recipe of SageMaker HyperPod for a model of Hugging Face, as it is or below ``recipes``."""
    whole = parse_yaml(file.text, file.name)
    recipe = table_in(whole, "recipes")
    if recipe:
        del whole["recipes"]
    config = Values(_HYPERPOD, resolved({**whole, **recipe}), "HyperPod")
    draft = Draft(given, config)
    if config["model"]:
        _take_model(config["model"], draft)
    elif draft["model"] is None:
        table, known = table_in(recipe or whole, "model"), _HYPERPOD.irrelevant["sizes"]
        held = {key: config.raw[f"model.{key}"] for key in table if matches(known, f"model.{key}")}
        sizes = {re.sub("^mi[sx]tral_", "", key): value for key, value in held.items() if value is not None}
        sizes["model_type"] = config["model_type"]
        draft.put(model=read_hf_config(sizes, Path(file.name).stem).model)
    draft.put(
        gpus=config["nodes"] * config["gpus_per_node"],
        recipe=_FSDP_RECIPE,
        zero_stage=config["sharding"],
        precision="fp8-delayed" if config["of_sagemaker"] and config["fp8"] else config["precision"],
        recompute="full" if config["recompute"] else "none",
        **{name: config[name] for name in ("tp", "cp", "ep", "micro_batch", "seq_len")},
    )
    # Without a degree hybrid sharding is PyTorch's own: inside of a node.
    ranks = draft["gpus"] // draft["tp"]
    hybrid = "hybrid" in str(config.raw.get("model.sharding_strategy") or "hybrid") and draft["tp"] == 1
    shard = config["shard"] or (config["gpus_per_node"] if hybrid else ranks)
    draft.put(
        global_batch=_sequences(draft["micro_batch"], draft["gpus"], draft["tp"] * draft["cp"]),
        shard_group=shard if shard < ranks else None,
    )
    draft.put_optimizer(config["optimizer"])
    if tuner := config["tuner"]:
        adapters = {"lora_rank": config["lora_rank"], "lora_target": config["lora_target"]}
        take_tuning(Values(_KEYS, adapters), tuner, draft)
    _take_kernels(None, _FSDP_RECIPE, draft)
    draft.put_steps(config["steps"])
    return draft.answer()


_SCRIPT = re.compile(r"^# in the training script: ([\w ]+?) = (\d+)$", re.M)


def read_accelerate(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read a configuration."""
    raw = parse_yaml(file.text, file.name)
    config = Values(_ACCELERATE, raw)
    draft = _draft_under(own_head(file.text), given, config)
    chosen, kind = draft["recipe"], str(config["kind"]).upper()
    draft.put(gpus=config["gpus"], precision=config["precision"])
    if kind == "DEEPSPEED":
        draft = _joined(file, config["zero_file"] or _deepspeed(config), draft)
        # DeepSpeed's own keys are filled in by the script's trainer.
        draft.missing = []
        return draft.answer()
    if kind == "FSDP":
        _take_sharding(raw.get("fsdp_config") or {}, draft)
    elif kind in ("MULTI_GPU", "NO", ""):
        draft.put(recipe=_FSDP_RECIPE, zero_stage=0)
    else:
        raise FrameworkConfigError(f"distributed_type: {kind!r} is not supported")
    draft.put(tp=config["tp"], cp=config["cp"])
    _take_mesh(config, draft)
    if (draft["cp"] or 1) > 1:
        _take_method(config["cp_strategy"], draft)
    if not chosen and draft["recipe"] == _FSDP_RECIPE:
        _take_kernels(None, _FSDP_RECIPE, draft)
    _take_script(file.text, draft)
    return draft.answer()


def _deepspeed(config: Values) -> dict[str, Any]:
    """Return the DeepSpeed configuration that Accelerate makes of its own keys."""
    zero: dict[str, Any] = {"stage": config["zero_stage"]}
    for part in ("optimizer", "param"):
        if config[f"zero_{part}"] != "none":
            zero[f"offload_{part}"] = {"device": config[f"zero_{part}"]}
    mixed = config["precision"]
    precision = {"bf16" if mixed == "bf16" else "fp16": {"enabled": mixed in ("bf16", "fp16")}}
    return {"zero_optimization": zero, **_LEFT_TO_TRAINER, **precision}


def _take_script(text: str, draft: Draft) -> None:
    """Read what our own comments say that the training script has to: batch, sequence and steps."""
    config = {name: int(number) for name, number in _SCRIPT.findall(text)}
    draft.put(micro_batch=config.get("per_device_train_batch_size"), seq_len=config.get("sequence length"))
    each, micro, gpus = config.get("gradient_accumulation_steps"), draft["micro_batch"], draft["gpus"]
    if each and micro and gpus:
        shards = (draft["tp"] or 1) * (draft["cp"] or 1)
        draft.put(global_batch=_sequences(micro * each, gpus, shards))
    draft.put_steps(config.get("max_steps"))


def emit_accelerate(job: Job) -> str:
    """Return the file for ``accelerate launch --config_file``."""
    counts = counts_of(job)
    per_node = min(job.cluster.gpus_per_node, counts["gpus"])
    config: dict[str, Any] = {
        "environment": "LOCAL_MACHINE",
        "kind": "FSDP" if counts["zero_stage"] else "MULTI_GPU",
        "precision": job.precision.name,
        "nodes": counts["gpus"] // per_node,
        "gpus": counts["gpus"],
    }
    if counts["zero_stage"]:
        replicate, shard = data_degrees(counts)
        config |= {
            "fsdp_version": 2,
            "wraps": "TRANSFORMER_BASED_WRAP",
            "reshards": counts["zero_stage"] == 3,
            "state_dict": "SHARDED_STATE_DICT",
            "offloads": job.recipe.host.offload_optimizer,
            "recomputes": _recomputes(job),
            "replicate": replicate,
            "shard": shard,
            "tp": counts["tp"],
            "cp": counts["cp"],
            "cp_strategy": "ring" if job.recipe.overlap.cp_method == "ring" else "all-gather",
        }
    script: dict[str, Any] = {
        "per_device_train_batch_size": counts["micro_batch"],
        "gradient_accumulation_steps": counts["micro_batches"],
        "sequence length": counts["seq_len"],
    }
    if steps := steps_of(job):
        script["max_steps"] = steps
    lines = [*(f"{key} = {value}" for key, value in script.items()), *_peft_lines(job)]
    script_lines = [f"# in the training script: {line}" for line in lines]
    return _configuration_text(job, "accelerate", _ACCELERATE.nested(config), script_lines)


def _peft_lines(job: Job) -> list[str]:
    """Return what a script hands to PEFT and bitsandbytes."""
    tuning = job.tuning
    if not tuning.lora_rank:
        return []
    modules = peft_modules(tuning, "PEFT") or "all-linear"
    dora = ", use_dora=True" if tuning.magnitudes else ""
    lines = [f"peft.LoraConfig(r={tuning.lora_rank}, target_modules={modules!r}{dora})"]
    bits = {"nf4": 'load_in_4bit=True, bnb_4bit_quant_type="nf4"', "fp8": "load_in_8bit=True"}
    if tuning.computes_in:
        lines.append(f"transformers.BitsAndBytesConfig({bits[tuning.base_dtype]})")
    return lines
