"""Jobs of reinforcement learning of other programs: NVIDIA-NeMo/RL's YAML, verl's YAML and launch scripts.

What the keys mean stands in ``keys/nemo-rl.yaml`` and ``keys/verl.yaml``. Settings of Megatron in them are read as those
of Megatron-Bridge are. A key that no table knows and that names parallelism, precision, batch, lengths or offload
(``keys/rl_stops.yaml``) stops the reading.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from costmodel.base.errors import CostModelError, shown
from costmodel.base.yaml_files import parse_mapping, read_mapping
from costmodel.describe.jobs.fields import REQUIRED
from costmodel.describe.models.model_files import load_model
from costmodel.interop.framework import FrameworkConfigError, Imported, fields_of
from costmodel.interop.interpolation import resolved
from costmodel.interop.keys import Values, key_table, matches
from costmodel.interop.read_megatron import with_given
from costmodel.interop.read_megatron_yaml import of_configuration
from costmodel.interop.shell import follow
from costmodel.interop.shell_words import is_unknown, missing_in
from costmodel.interop.text_file import TextFile, read_text

_NEMO, _VERL = key_table("nemo-rl"), key_table("verl")
_FSDP_RECIPE = "torchtitan"
_FORMATS = {
    "bfloat16": "bf16",
    "float16": "bf16",
    "auto": "bf16",
    "bf16": "bf16",
    "fp8": "fp8",
    "mxfp8": "mxfp8",
}
_PROMPT = 128.0
"""Tokens: published runs of NeMo-RL have prompts of 93 to 148. [-]"""
_HALF = 0.5
"""Mean over limit of an answer: the median of NeMo-RL's published runs, which spread from 0.28 to 0.8. [-]"""
_MOST_DEFAULTS = 8


def read_nemo_rl(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read a configuration of NeMo-RL, with those that its ``defaults`` name where they lie beside it.

    Raises
    ------
    CostModelError
        If it is of no step of reinforcement learning, or a key that changes the answer is unknown.
    """
    notes: list[str] = []
    own, whole = _with_defaults(file, notes)
    kind = next((word for word in _NEMO.more["algorithms"] if word in own), "")
    if not kind:
        named = next((word for word in _NEMO.more["supervised"].split() if word in own), "")
        if named:
            raise FrameworkConfigError(
                f"{named}: trains on answers that are there, no step of reinforcement learning"
            )
        kind = "grpo"
    if not whole:
        bases = _NEMO.more["bases"]
        own = _merged(_merged(bases["all"], bases.get(kind, {})), own)
    said = Values(_NEMO, resolved(own), "NeMo-RL")
    job: dict[str, Any] = {"algorithm": _NEMO.more["algorithms"][kind], "rl_framework": "nemo-rl"}
    warnings: list[str] = _take_model(said["model"], given, job)
    nodes, each = said["nodes"], said["gpus_per_node"]
    job["gpus"] = nodes * each
    packs = said["packing"] or said["dynamic"]
    room = said["packed_tokens"] if said["packing"] else said["dynamic_tokens"]
    job["batching"] = "packing" if packs else "padding"
    limit = said["max_total_len"]
    job["seq_len"] = (room or limit * said["micro_batch"]) if packs else limit
    training = _nemo_training(
        said, file, {**given, **job, "micro_batch": 1 if packs else said["micro_batch"]}
    )
    if kind == "dpo":
        job |= {"prompts": said["train_batch"], "samples_per_prompt": 2}
    else:
        job["prompts"] = said["prompts"]
        job["samples_per_prompt"] = said["samples"] or (16 if kind == "grpo" else 1)
        job["optimizer_steps"] = max(
            round(job["prompts"] * job["samples_per_prompt"] / said["train_batch"]), 1
        )
        _nemo_generation(said, job, nodes, each)
    if kind == "distillation":
        warnings += _take_model(said["teacher"], given, job, "teacher")
    else:
        job["reference"] = bool(said["kl_penalty"]) and not said["skip_reference"]
    if kind == "grpo":
        job["old_logprobs"] = not said["on_policy"]
        if said["sampling"]:
            job["rollout_factor"] = max(float(said["sampling_factor"]), 1.0)
            job["algorithm"] = "dapo"
    _take_lengths(
        job,
        given,
        min(said["max_new_tokens"] or limit, said["max_model_len"] or limit, limit),
        limit,
        warnings,
    )
    if said["turns"] > 1:
        warnings.append(
            f"{said.key('turns')}: environments of several turns have no price; answers are priced as one turn"
        )
    return _done(said, job, training, given, notes, warnings)


def _nemo_generation(said: Values, job: dict[str, Any], nodes: int, each: int) -> None:
    """Put the generating half into a job."""
    if not said["colocated"]:
        per_node = said["generation_gpus_per_node"] or each
        job["generation_gpus"] = (said["generation_nodes"] or 1) * per_node
        job["lag"] = float(said["max_age"]) if said["asynchronous"] else 0.0
    tp, ep = said["vllm_tp"], said["vllm_ep"]
    # In vLLM ranks of data parallelism share the experts: EP = DP x TP.
    job["generation_layout"] = _split(tp, said["vllm_pp"], ep, max(ep // tp, 1))
    job["engine"] = said["backend"] if said["backend"] in ("vllm", "sglang") else "any"
    job["generation_precision"] = _format(said, "vllm_precision", said["vllm_precision"] or said["precision"])
    if said["memory_fraction"] or said["colocated"]:
        job["memory_fraction"] = said["memory_fraction"] or 0.6
    job["cuda_graphs"] = not said["eager"]
    if said["max_running"]:
        job["max_running"] = said["max_running"]


def _nemo_training(said: Values, file: TextFile, given: dict[str, Any]) -> Imported:
    """Return the training half: Megatron's or PyTorch's sharding."""
    table = said["megatron"]
    micro = given["micro_batch"]
    if table.get("enabled"):
        flat = {**table, **_inside(table, "distributed_data_parallel_config")}
        flat["grad_reduce_in_bf16"] = flat.get("grad_reduce_in_fp32") is False
        optimizer, fp8 = _inside(table, "optimizer"), _inside(table, "fp8_cfg")
        flat["use_distributed_optimizer"] = optimizer.get("use_distributed_optimizer", True)
        flat["optimizer_cpu_offload"] = optimizer.get("optimizer_cpu_offload", False)
        if fp8.get("enabled"):
            flat |= {"fp8": fp8.get("fp8", "e4m3"), "fp8_recipe": fp8.get("fp8_recipe", "blockwise")}
        if table.get("activation_checkpointing"):
            flat = {
                **flat,
                **_NEMO.more["recompute"],
                **{
                    k: v
                    for k, v in table.items()
                    if k in ("recompute_granularity", "recompute_modules") and v
                },
            }
            if flat["recompute_granularity"] == "selective":
                flat["recompute_method"] = flat["recompute_num_layers"] = None
        else:
            flat["recompute_granularity"] = None
        flat["bf16"] = said["precision"] == "bfloat16"
        return _megatron(
            flat, _NEMO.more["megatron_irrelevant"], "policy.megatron_cfg", file, given, "megatron-bridge"
        )
    job: dict[str, Any] = {
        "recipe": _FSDP_RECIPE,
        "zero_stage": 3,
        "precision": _format(said, "precision", said["precision"]),
        "recompute": "full" if said["recompute"] else "none",
        "micro_batch": micro,
        **{name: said[name] for name in ("tp", "cp", "ep")},
    }
    if said["lora"]:
        job["lora_rank"] = said["lora_rank"]
    if said["cpu_offload"]:
        job["switches"] = {"offload_optimizer": True, "offload_parameters": True}
    return Imported(job)


def read_verl(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read verl's settings: a YAML file of its trainer, or a script that starts it with overrides.

    Raises
    ------
    CostModelError
        If no trainer is started, or a key that changes the answer is unknown.
    """
    notes: list[str] = []
    raw, megatron = _verl_settings(file, given, notes)
    said = Values(_VERL, resolved(raw), "verl")
    warnings: list[str] = []
    job: dict[str, Any] = {"rl_framework": "verl"}
    estimator = said["estimator"].lower().removeprefix("advantageestimator.")
    critic = said["critic"] if said["critic"] is not None else estimator == "gae"
    job["algorithm"] = "ppo" if critic else "dapo" if said["filter_groups"] else "grpo"
    warnings += _take_model(said["model"], given, job)
    each, nodes = said["gpus_per_node"], said["nodes"]
    job |= {"gpus": each * nodes, "samples_per_prompt": said["samples"]}
    mini, prompts = said["mini_batch"], said["prompts"]
    if said["staleness"] is not None or not prompts:
        # Fully asynchronous: weights go to the engine after so many mini-batches, and no step has a batch.
        prompts = mini * said["require_batches"] * said["sync_steps"]
        job["lag"] = float(said["staleness"] or 0.0)
    if said["rollout_nodes"] or (said["rollout_gpus_per_node"] and not said["hybrid"]):
        job["generation_gpus"] = (said["rollout_nodes"] or 1) * (said["rollout_gpus_per_node"] or each)
        job["gpus"] += job["generation_gpus"]
        job.setdefault("lag", 1.0)
    else:
        job.pop("lag", None)
        job["optimizer_swap"] = bool(said["optimizer_swap"] or said["megatron"].get("optimizer_offload"))
    job["prompts"] = prompts
    job["optimizer_steps"] = max(-(-prompts // mini), 1) * said["epochs"]
    if said["filter_groups"] and (said["generated_prompts"] or 0) > prompts:
        job["rollout_factor"] = said["generated_prompts"] / prompts
    job["reference"] = said["kl_loss"] or said["kl_reward"]
    job["old_logprobs"] = not said["bypass"]
    whole = said["max_prompt_len"] + said["max_response_len"]
    _take_lengths(job, given, said["max_response_len"], whole, warnings, most_prompt=said["max_prompt_len"])
    micro = said["micro_batch"] or max((said["all_micro_batch"] or 1) // job["gpus"], 1)
    packs = said["dynamic"] or (megatron if said["unpadded"] is None else said["unpadded"])
    job["batching"] = "packing" if packs else "padding"
    mean = float(given.get("response_len") or job.get("response_len") or whole / 2) + job["prompt_len"]
    ulysses = 1 if megatron else said["ulysses"]
    room = said["tokens_per_gpu"] * ulysses if said["dynamic"] else micro * mean
    job["seq_len"] = round(max(room, whole)) if packs else whole
    training = _verl_training(said, megatron, file, {**given, **job, "micro_batch": 1 if packs else micro})
    job["generation_layout"] = _split(
        said["rollout_tp"], said["rollout_pp"], said["rollout_ep"], said["rollout_dp"]
    )
    job["engine"] = said["rollout"] if said["rollout"] in ("vllm", "sglang", "trtllm") else "any"
    quantized = said["quantization"]
    job["generation_precision"] = _format(
        said, "rollout_dtype", quantized if isinstance(quantized, str) else said["rollout_dtype"]
    )
    job |= {
        "memory_fraction": said["memory_fraction"],
        "cuda_graphs": not said["eager"],
        "max_running": said["max_running"],
    }
    if said["reward_model"]:
        warnings += _take_model(said["reward_path"], given, job, "reward_model")
    if said["turns"]:
        warnings.append(f"{said.key('turns')}: several turns have no price; answers are priced as one turn")
    return _done(said, job, training, given, notes, warnings)


def _verl_training(said: Values, megatron: bool, file: TextFile, given: dict[str, Any]) -> Imported:
    """Return the training half: Megatron's, or FSDP's with Ulysses."""
    if megatron:
        table = said["megatron"]
        over = _inside(table, "override_transformer_config")
        flat = {
            **table,
            **over,
            **_inside(table, "override_ddp_config"),
            "bf16": True,
            "use_distributed_optimizer": True,
        }
        flat["optimizer_cpu_offload"] = said["overrides"].get("optimizer_cpu_offload", False)
        flat["sequence_parallel"] = table.get("sequence_parallel", True)
        if not over.get("recompute_granularity"):
            flat["recompute_granularity"] = None
            if said.said("recompute") and said["recompute"]:
                flat |= _VERL.more["recompute"]
        return _megatron(
            flat,
            _VERL.more["megatron_irrelevant"],
            "actor_rollout_ref.actor.megatron",
            file,
            given,
            "megatron-core",
        )
    job: dict[str, Any] = {
        "recipe": _FSDP_RECIPE,
        "zero_stage": 3 if said["reshard"] not in (False, "false") else 2,
        "precision": "bf16",
        "recompute": "full" if said["recompute"] else "none",
        "micro_batch": given["micro_batch"],
    }
    if said["ulysses"] > 1:
        job |= {"cp": said["ulysses"], "switches": {"cp_method": "ulysses"}}
    if said["fsdp_size"] > 1:
        job["shard_group"] = said["fsdp_size"]
    if said["lora_rank"]:
        job["lora_rank"] = said["lora_rank"]
    if said["optimizer_on_host"]:
        job["switches"] = {**job.get("switches", {}), "offload_optimizer": True}
    return Imported(job)


def _verl_settings(file: TextFile, given: Mapping[str, Any], notes: list[str]) -> tuple[dict[str, Any], bool]:
    """Return verl's settings as tables in tables, and whether Megatron trains.

    Raises
    ------
    FrameworkConfigError
        If no command of a script has overrides of verl, or a value is unknown.
    """
    words: list[str] = []
    if (
        "actor_rollout_ref:" in file.text
        and "actor_rollout_ref." not in file.text.split("actor_rollout_ref:", 1)[0]
    ):
        raw = _parsed(file.text, file.name)
    else:
        raw, words = {}, _overrides_of(file, given, notes)
    for word in words:
        key, _, text = word.lstrip("+~").partition("=")
        if word.startswith(("~", "--")):
            continue
        if is_unknown(text):
            if _VERL.knows(key) and key not in _VERL.used:
                continue
            if not key.endswith("model.path"):
                raise FrameworkConfigError(f"verl: {key}: {missing_in(text)}; give --env NAME=VALUE")
        here = raw
        *path, last = key.split(".")
        for part in path:
            inside = here.setdefault(part, {})
            if not isinstance(inside, dict):
                raise FrameworkConfigError(f"verl: {key}: expected a table above it, got {shown(inside)}")
            here = inside
        here[last] = _hydra_value(text)
    actor = _inside(_inside(raw, "actor_rollout_ref"), "actor")
    strategy = actor.get("strategy")
    named = any("megatron" in word for word in words if word.lstrip("-").startswith("config-name"))
    return raw, strategy == "megatron" or (strategy is None and (named or "megatron" in actor))


def _overrides_of(file: TextFile, given: Mapping[str, Any], notes: list[str]) -> list[str]:
    """Return the overrides of the command of a script that has most of them."""
    environment = {str(key): str(value) for key, value in (given.get("env") or {}).items()}
    allowed = given.get("allow_source") or ()
    followed = follow(
        file.text,
        folder=file.folder,
        name=Path(file.name).name,
        environment=environment,
        allowed=(allowed,) if isinstance(allowed, str) else tuple(allowed),
    )

    def telling(words: Iterable[str]) -> list[str]:
        parts = [part for word in words for part in _split_words(word)]
        named = [part for part in parts if part.startswith("--config-name")]
        return [
            *named,
            *(part for part in parts if "=" in part and "." in part.split("=")[0] and part[:2] != "--"),
        ]

    values = (v if isinstance(v, list) else [v] for v in followed.values.values())
    found = [telling(launch.words) for launch in followed.launches] or [telling(value) for value in values]
    most = max(found, key=len, default=[])
    if not any("actor_rollout_ref." in word for word in most):
        raise FrameworkConfigError("verl: no command has overrides such as actor_rollout_ref.rollout.n=8")
    notes += followed.notes
    return most


def _split_words(word: str) -> list[str]:
    """Split a word that holds several overrides, as a quoted variable does."""
    if word.count("actor_rollout_ref.") < 2:
        return [word]
    try:
        return shlex.split(word)
    except ValueError:
        return word.split()


def _hydra_value(text: str) -> Any:
    """Return the value of an override as Hydra reads it: YAML, and its words for true and null."""
    try:
        value = parse_mapping(f"value: {text}", "override", example="key: value")["value"]
    except CostModelError:
        return text
    return {"True": True, "False": False, "None": None}.get(value, value) if isinstance(value, str) else value


def _megatron(
    flat: dict[str, Any], irrelevant: str, where: str, file: TextFile, given: dict[str, Any], recipe: str
) -> Imported:
    """Return the training half of Megatron's settings; keys that neither it nor we know stop the reading."""
    flat = {key: value for key, value in flat.items() if not isinstance(value, dict)}
    flat |= {"attention_dropout": 0.0, "hidden_dropout": 0.0}  # as checkpoints of the hub have them
    beside = {
        "recipe": recipe,
        **{k: v for k, v in given.items() if k in ("micro_batch", "seq_len", "recipe", "vocab_size") and v},
    }
    asked = {**beside, "model": given.get("model") or "llama3-8b"}
    found = of_configuration(flat, {}, file, asked, irrelevant)
    for key in found.ignored:
        _require_known(f"{where}.{key}", flat.get(key))
    job = {
        key: value
        for key, value in found.job.items()
        if key not in ("model", "gpus", "global_batch", "tokens", "dp")
    }
    return dataclasses.replace(found, job=job, ignored=tuple(f"{where}.{key}" for key in found.ignored))


@cache
def _stops() -> Mapping[str, str]:
    return read_mapping(Path(__file__).parent / "keys" / "rl_stops.yaml", example="batch: words")


def _require_known(key: str, value: object) -> None:
    """Refuse a key that no table knows where its name says that it changes the answer and its value is not off.

    Raises
    ------
    FrameworkConfigError
        Naming it, its value and what it is about.
    """
    if value is None or value in ("", 0, [], {}):
        return
    last = key.rpartition(".")[2]
    about = next((reason for reason, words in _stops().items() if matches(words, last)), "")
    if about:
        raise FrameworkConfigError(
            f"{key}: {shown(value)} is about {about} and is not known here; leave it out, or give what it means by flags"
        )


def _done(
    said: Values,
    job: dict[str, Any],
    training: Imported,
    given: Mapping[str, Any],
    notes: list[str],
    warnings: list[str],
) -> Imported:
    """Return what was read, after refusing keys that nobody knows and that change the answer."""
    for key, value in said.left().items():
        _require_known(key, value)
    merged = with_given({**training.job, **job}, {k: v for k, v in given.items() if k in fields_of(given)})
    needed = [name for name in REQUIRED if name not in ("global_batch", "seq_len")]
    return Imported(
        merged,
        missing=tuple(name for name in needed if merged.get(name) is None),
        ignored=(*said.left(), *training.ignored),
        notes=(*notes, *training.notes),
        warnings=(*warnings, *said.unpriced(), *training.warnings),
    )


def _take_model(named: str, given: Mapping[str, Any], job: dict[str, Any], field: str = "model") -> list[str]:
    """Put a model that is named into the job if its shape is known offline, else say so."""
    if given.get(field) is not None:
        return []
    for spelled in (named.rstrip("/").rsplit("/", 1)[-1], named):
        try:
            load_model(spelled)
        except CostModelError:
            continue
        job[field] = spelled
        return []
    ways = "give --model config.json" if field == "model" else f"its pass is left out; give {field} below rl:"
    return [f"{field} {shown(named)}: its shape is not known offline; {ways}"]


def _take_lengths(
    job: dict[str, Any],
    given: Mapping[str, Any],
    limit: float,
    whole: float,
    warnings: list[str],
    most_prompt: float = 1e9,
) -> None:
    """Put the lengths into a job: the limit is the file's, means are given beside it or assumed and said."""
    prompt = given.get("prompt_len")
    if prompt is None:
        prompt = min(_PROMPT, most_prompt, whole / 4)
        warnings.append(
            f"prompt_len: {prompt:g} tokens are assumed, since the file has only a limit; give --prompt-len"
        )
    job["prompt_len"] = float(prompt)
    job["max_response_len"] = max(min(limit, whole - prompt), 1.0)
    if not any(
        given.get(name) is not None for name in ("response_len", "response_quantiles", "response_file")
    ):
        job["response_len"] = max(_HALF * job["max_response_len"], 1.0)
        warnings.append(
            f"response_len: {job['response_len']:,.0f} tokens are assumed, half the limit (published runs: 0.28 to 0.8 of it); "
            "most of a step follows it: give --response-len"
        )


def _format(said: Values, name: str, word: str) -> str:
    """Return a number format of ours.

    Raises
    ------
    FrameworkConfigError
        If it is unknown.
    """
    if word not in _FORMATS:
        raise said.error(said.key(name), f"one of {', '.join(_FORMATS)}", word)
    return _FORMATS[word]


def _split(tp: int, pp: int, ep: int, dp: int) -> str:
    """Return the layout of a replica of the engine."""
    return " ".join(
        f"{name}{degree}"
        for name, degree in zip(("tp", "pp", "ep", "dp"), (tp, pp, ep, dp), strict=True)
        if degree > 1 or name == "tp"
    )


def _with_defaults(file: TextFile, notes: list[str]) -> tuple[dict[str, Any], bool]:
    """Return a file over those that its ``defaults`` name, and whether all of them were there.

    Raises
    ------
    FrameworkConfigError
        If they name each other over and over.
    """
    own = _parsed(file.text, file.name)
    here, chain, folder = own, [own], file.folder
    while named := here.get("defaults"):
        first = named[0] if isinstance(named, list) and named else named
        path = None if folder is None or not isinstance(first, str) else folder / first
        if path is not None and path.suffix == "":
            path = path.with_suffix(".yaml")
        if path is None or path.suffix not in (".yaml", ".yml") or not path.is_file():
            notes.append(f"defaults: {first} is not there; what it says is that of NeMo-RL's own example")
            return _layered(chain), False
        if len(chain) > _MOST_DEFAULTS:
            raise FrameworkConfigError(f"defaults: more than {_MOST_DEFAULTS} files name each other")
        here, folder = _parsed(read_text(path).text, path.name), path.parent
        chain.append(here)
    return _layered(chain), True


def _layered(chain: list[dict[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for one in reversed(chain):
        merged = _merged(merged, one)
    return merged


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Lay tables over tables, key by key."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = _merged(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged


def _parsed(text: str, name: str) -> dict[str, Any]:
    return parse_mapping(text, name, example="key: value", error=FrameworkConfigError)


def _inside(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = raw.get(key)
    return value if isinstance(value, dict) else {}
