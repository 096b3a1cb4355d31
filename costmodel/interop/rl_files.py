"""Jobs of reinforcement learning of other programs: NVIDIA-NeMo/RL's YAML, verl's YAML and launch scripts.

What the keys mean stands in ``keys/nemo-rl.yaml`` and ``keys/verl.yaml``. Settings of Megatron in them are read as those
of Megatron-Bridge are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from costmodel.base.errors import shown
from costmodel.describe.jobs.fields import ANSWER_LENGTHS, REQUIRED
from costmodel.interop.draft import Draft
from costmodel.interop.framework import FrameworkConfigError, Imported, known_model
from costmodel.interop.interpolation import resolved
from costmodel.interop.keys import Values, key_table
from costmodel.interop.megatron_job import MEGATRON
from costmodel.interop.read_megatron import followed_script, split_words
from costmodel.interop.read_megatron_yaml import of_configuration
from costmodel.interop.shell_words import is_unknown, missing_in, without_marks
from costmodel.interop.text_file import TextFile, parse_yaml, read_text, table_in, value_of_word

_NEMO, _VERL = key_table("nemo-rl"), key_table("verl")
_FSDP_RECIPE = "torchtitan"
_PROMPT = 128.0
"""Tokens: published runs of NeMo-RL have prompts of 93 to 148. [-]"""
_HALF = 0.5
"""Mean over limit of an answer: the median of NeMo-RL's published runs, which spread from 0.28 to 0.8. [-]"""
_MTP_OF_DEEPSEEK = 1.85
"""Tokens a step of its one prediction layer, whose guesses are accepted at 85 to 90 % (arXiv:2412.19437, section 5.4.3). [-]"""
_MOST_DEFAULTS = 8
_RECOMPUTE = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


def read_nemo_rl(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read a configuration of NeMo-RL, with those that its ``defaults`` name where they lie beside it."""
    draft = Draft(given)
    own = _with_defaults(file, draft.notes)
    if "rm" in own:
        raise FrameworkConfigError("rm: the training of a reward model has no price; give a job file")
    kind = next((word for word in _NEMO.more["algorithms"] if word in own), "grpo")
    config = Values(_NEMO, resolved(own), "NeMo-RL")
    limit, micro = config["max_total_len"], config["micro_batch"] * (2 if kind == "dpo" else 1)
    packs = config["packing"] or config["dynamic"]
    room = config["packed_tokens"] if config["packing"] else config["dynamic_tokens"]
    _take_model(config["model"], draft)
    draft.put(
        gpus=config["nodes"] * config["gpus_per_node"],
        seq_len=(room or limit * micro) if packs else limit,
        micro_batch=1 if packs else micro,
    )
    _nemo_training(config, file, given, draft)
    if kind == "sft":
        if packs:
            draft.notes.append(
                f"global batch: {config['train_batch']} samples of lengths that are not in the file, packed; "
                "give --global-batch in packed sequences"
            )
        else:
            draft.put(global_batch=config["train_batch"])
        return _answer(config, draft, needed=REQUIRED)
    draft.put(
        algorithm="dapo" if kind == "grpo" and config["sampling"] else _NEMO.more["algorithms"][kind],
        rl_framework="nemo-rl",
        batching="packing" if packs else "padding",
    )
    if kind == "dpo":
        draft.put(prompts=config["train_batch"], samples_per_prompt=2)
    else:
        draft.put(
            prompts=config["prompts"], samples_per_prompt=config["samples"] or (16 if kind == "grpo" else 1)
        )
        answers = draft["prompts"] * draft["samples_per_prompt"]
        draft.put(optimizer_steps=max(round(answers / config["train_batch"]), 1))
        _nemo_generation(config, draft)
    if kind == "distillation":
        _take_model(config["teacher"], draft, "teacher")
    else:
        draft.put(reference=bool(config["kl_penalty"]) and not config["skip_reference"])
    if kind == "grpo":
        draft.put(
            old_logprobs=not config["on_policy"],
            rollout_factor=max(float(config["sampling_factor"]), 1.0) if config["sampling"] else None,
        )
    longest = min(config["max_new_tokens"] or limit, config["max_model_len"] or limit, limit)
    take_lengths(draft, longest, limit)
    return _answer(config, draft)


def _nemo_generation(config: Values, draft: Draft) -> None:
    """Read the generating half."""
    if not config["colocated"]:
        each = config["generation_gpus_per_node"] or config["gpus_per_node"]
        draft.put(
            generation_gpus=(config["generation_nodes"] or 1) * each,
            lag=float(config["max_age"]) if config["asynchronous"] else 0.0,
        )
    tp, ep = config["vllm_tp"], config["vllm_ep"]
    draft.put(
        # In vLLM ranks of data parallelism share the experts: EP = DP x TP.
        generation_layout=_split(tp, config["vllm_pp"], ep, max(ep // tp, 1)),
        engine=config["backend"] if config["backend"] in ("vllm", "sglang") else "any",
        generation_precision=config["vllm_precision"] or config["precision"],
        memory_fraction=config["memory_fraction"] or (0.6 if config["colocated"] else None),
        cuda_graphs=not config["eager"],
        max_running=config["max_running"],
    )
    _take_speculation(config["speculative"], draft)


def _nemo_training(config: Values, file: TextFile, given: Mapping[str, Any], draft: Draft) -> None:
    """Read the training half: Megatron's or PyTorch's sharding."""
    table = config["megatron"]
    if not table.get("enabled"):
        draft.put(
            recipe=_FSDP_RECIPE,
            zero_stage=3,
            precision=config["precision"],
            recompute="full" if config["recompute"] else "none",
            lora_rank=config["lora_rank"] if config["lora"] else None,
            **{name: config[name] for name in ("tp", "cp", "ep")},
        )
        draft.put_optimizer(config["optimizer"].rsplit(".", 1)[-1])
        if config["cpu_offload"]:
            draft.put_switches({"offload_optimizer": True, "offload_parameters": True})
        return
    optimizer, fp8, peft = (table_in(table, name) for name in ("optimizer", "fp8_cfg", "peft"))
    draft.put(lora_rank=peft.get("dim", config["lora_rank"]) if peft.get("enabled") else None)
    flat = {**table, **table_in(table, "distributed_data_parallel_config")}
    flat |= {
        "grad_reduce_in_bf16": flat.get("grad_reduce_in_fp32") is False,
        "use_distributed_optimizer": optimizer.get("use_distributed_optimizer", True),
        "optimizer_cpu_offload": optimizer.get("optimizer_cpu_offload", False),
        **{
            key: optimizer[key]
            for key in ("optimizer", "exp_avg_dtype", "exp_avg_sq_dtype")
            if key in optimizer
        },
        "bf16": config["precision"] == "bf16",
    }
    if fp8.get("enabled"):
        flat |= {"fp8": fp8.get("fp8", "e4m3"), "fp8_recipe": fp8.get("fp8_recipe", "blockwise")}
    if not table.get("activation_checkpointing"):
        flat["recompute_granularity"] = None
    elif table.get("recompute_granularity") == "selective":
        flat["recompute_method"] = flat["recompute_num_layers"] = None
    else:
        flat |= _RECOMPUTE
    _megatron(flat, "policy.megatron_cfg", file, given, draft)


def read_verl(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read verl's settings: a YAML file of its trainer, or a script that starts it with overrides."""
    draft = Draft(given)
    raw, megatron = _verl_settings(file, given, draft.notes)
    config = Values(_VERL, resolved(raw), "verl")
    estimator = config["estimator"].lower().removeprefix("advantageestimator.")
    critic = config["critic"] if config["critic"] is not None else estimator == "gae"
    _take_model(config["model"], draft)
    _verl_batch(config, draft)
    whole = config["max_prompt_len"] + config["max_response_len"]
    take_lengths(draft, config["max_response_len"], whole, most_prompt=config["max_prompt_len"])
    micro = config["micro_batch"] or max((config["all_micro_batch"] or 1) // draft["gpus"], 1)
    packs = config["dynamic"] or (megatron if config["unpadded"] is None else config["unpadded"])
    mean = float(draft["response_len"] or whole / 2) + draft["prompt_len"]
    ulysses = 1 if megatron else config["ulysses"]
    room = config["tokens_per_gpu"] * ulysses if config["dynamic"] else micro * mean
    draft.put(
        algorithm="ppo" if critic else "dapo" if config["filter_groups"] else "grpo",
        rl_framework="verl",
        reference=bool(config["kl_loss"] or config["kl_reward"] or config["kl_kinds"]),
        old_logprobs=not config["bypass"],
        critic_epochs=config["critic_epochs"] if critic else None,
        batching="packing" if packs else "padding",
        seq_len=round(max(room, whole)) if packs else whole,
        micro_batch=1 if packs else micro,
    )
    _verl_training(config, megatron, file, given, draft)
    draft.put_optimizer(config["optimizer"])
    draft.put(
        generation_layout=_split(
            config["rollout_tp"], config["rollout_pp"], config["rollout_ep"], config["rollout_dp"]
        ),
        engine=config["rollout"] if config["rollout"] in ("vllm", "sglang", "trtllm") else "any",
        generation_precision=config["quantization"] or config["rollout_dtype"],
        memory_fraction=config["memory_fraction"],
        cuda_graphs=not config["eager"],
        max_running=config["max_running"],
    )
    if config["speculative"].get("enable_rollout", config["speculative"].get("enable")):
        _take_speculation(config["speculative"], draft)
    if config["reward_model"]:
        _take_model(config["reward_path"], draft, "reward_model")
    return _answer(config, draft)


def _verl_batch(config: Values, draft: Draft) -> None:
    """Read prompts and steps of the optimizer, and which GPUs generate."""
    mini, prompts, lag = config["mini_batch"], config["prompts"], 1.0
    gpus = config["nodes"] * config["gpus_per_node"]
    if config["staleness"] is not None or not prompts:
        # Fully asynchronous: weights go to the engine after so many mini-batches, and no step has a batch.
        prompts = mini * config["require_batches"] * config["sync_steps"]
        lag = float(config["staleness"] or 0.0)
    if config["rollout_nodes"] or (config["rollout_gpus_per_node"] and not config["hybrid"]):
        apart = (config["rollout_nodes"] or 1) * (config["rollout_gpus_per_node"] or config["gpus_per_node"])
        draft.put(generation_gpus=apart, lag=lag)
        gpus += apart
    else:
        draft.put(
            optimizer_swap=bool(config["optimizer_swap"] or config["megatron"].get("optimizer_offload"))
        )
    filtered = config["filter_groups"] and (config["generated_prompts"] or 0) > prompts
    draft.put(
        gpus=gpus,
        samples_per_prompt=config["samples"],
        prompts=prompts,
        optimizer_steps=max(-(-prompts // mini), 1),
        ppo_epochs=config["epochs"],
        rollout_factor=config["generated_prompts"] / prompts if filtered else None,
    )


def _verl_training(
    config: Values, megatron: bool, file: TextFile, given: Mapping[str, Any], draft: Draft
) -> None:
    """Read the training half: Megatron's, or FSDP's with Ulysses."""
    draft.put(lora_rank=config["lora_rank"] or None)
    if not megatron:
        draft.put(
            recipe=_FSDP_RECIPE,
            zero_stage=3 if config["reshard"] not in (False, "false") else 2,
            precision="bf16",
            recompute="full" if config["recompute"] else "none",
            cp=config["ulysses"] if config["ulysses"] > 1 else None,
            shard_group=config["fsdp_size"] if config["fsdp_size"] > 1 else None,
        )
        draft.put_switches({"cp_method": "ulysses"} if config["ulysses"] > 1 else {})
        draft.put_switches({"offload_optimizer": True} if config["optimizer_on_host"] else {})
        return
    table = config["megatron"]
    over = table_in(table, "override_transformer_config")
    flat = {**table, **over, **table_in(table, "override_ddp_config")}
    flat |= {
        "bf16": True,
        "use_distributed_optimizer": True,
        "optimizer_cpu_offload": config["overrides"].get("optimizer_cpu_offload", False),
        "sequence_parallel": table.get("sequence_parallel", True),
    }
    if not over.get("recompute_granularity"):
        flat["recompute_granularity"] = None
        # Since 0.5 the overrides list it, and the model's own key is for FSDP (workers/engine/megatron).
        requested = "recompute_granularity" not in over and config.has("recompute") and config["recompute"]
        flat |= _RECOMPUTE if requested else {}
    _megatron(flat, "actor_rollout_ref.actor.megatron", file, given, draft)


def _verl_settings(file: TextFile, given: Mapping[str, Any], notes: list[str]) -> tuple[dict[str, Any], bool]:
    """Return verl's settings as tables in tables, and whether Megatron trains."""
    words: list[str] = []
    before, table, _ = file.text.replace('"', "").partition("actor_rollout_ref:")
    raw: dict[str, Any] = {}
    if table and "actor_rollout_ref." not in before:
        raw = parse_yaml(file.text, file.name)
        # A recipe of SageMaker HyperPod has it one level down.
        recipe = raw.pop("training_config", {})
        raw = {**raw, **(recipe if isinstance(recipe, dict) else {})}
    else:
        words = _overrides_of(file, given, notes)
    for word in words:
        key, _, text = word.lstrip("+~").partition("=")
        if word.startswith(("~", "--")):
            continue
        missing, text = missing_in(text), text if is_unknown(text) else without_marks(text)
        if missing and (not text or is_unknown(text)):
            if _VERL.knows(key) and key not in _VERL.used:
                continue
            if not key.endswith("model.path"):
                advice = missing[1:].split()[0] if missing.startswith("$") else "NAME"
                raise FrameworkConfigError(f"verl: {key}: {missing}; give --env {advice}=…")
            text = missing.split()[0]
        here = raw
        *path, last = key.split(".")
        for part in path:
            inside = here.setdefault(part, {})
            if not isinstance(inside, dict):
                raise FrameworkConfigError(f"verl: {key}: expected a table above it, got {shown(inside)}")
            here = inside
        here[last] = value_of_word(text)
    actor = table_in(table_in(raw, "actor_rollout_ref"), "actor")
    strategy = actor.get("strategy")
    named = any("megatron" in word for word in words if word.lstrip("-").startswith("config-name"))
    return raw, strategy == "megatron" or (strategy is None and (named or "megatron" in actor))


def _overrides_of(file: TextFile, given: Mapping[str, Any], notes: list[str]) -> list[str]:
    """Return the overrides of the command of a script that has most of them."""
    followed = followed_script(file, given)

    def telling(words: Iterable[str]) -> list[str]:
        several = (word.count("actor_rollout_ref.") > 1 for word in words)
        parts = [
            part
            for word, many in zip(words, several, strict=True)
            for part in (split_words(word) if many else [word])
        ]
        overrides = [part for part in parts if "=" in part and "." in part.split("=")[0] and part[:2] != "--"]
        return [*(part for part in parts if part.startswith("--config-name")), *overrides]

    values = (v if isinstance(v, list) else [v] for v in followed.values.values())
    found = [telling(launch.words) for launch in followed.launches] or [telling(value) for value in values]
    most = max(found, key=len, default=[])
    if not any("actor_rollout_ref." in word for word in most):
        raise FrameworkConfigError("verl: no command has overrides such as actor_rollout_ref.rollout.n=8")
    notes += followed.notes
    return most


def _megatron(
    flat: dict[str, Any], where: str, file: TextFile, given: Mapping[str, Any], draft: Draft
) -> None:
    """Read the training half of Megatron's settings."""
    flat = {key: value for key, value in flat.items() if not isinstance(value, dict)}
    # As checkpoints of the hub have them; dispatcher and GEMMs as Megatron-Bridge's and mbridge's own defaults.
    flat |= {"attention_dropout": 0.0, "hidden_dropout": 0.0}
    flat = {"moe_token_dispatcher_type": "alltoall", "moe_grouped_gemm": True, **flat}
    recipe = "megatron-core" if where.startswith("actor") else "megatron-bridge"
    beside = {
        "recipe": draft["recipe"] or recipe,
        "micro_batch": draft["micro_batch"],
        "seq_len": draft["seq_len"],
        "model": draft["model"],
        "gpus": draft["gpus"],
        **({"vocab_size": given["vocab_size"]} if given.get("vocab_size") else {}),
    }
    found = of_configuration(flat, {}, file, beside, MEGATRON.more["beside"]["rl"])
    draft.put_switches(found["switches"] or {})
    absent = ("model", "gpus", "global_batch", "tokens", "switches")
    draft.put(**{name: value for name, value in found.job.items() if name not in absent})
    draft.notes += found.notes
    draft.warnings += found.warnings
    draft.ignored += [f"{where}.{key}" for key in found.ignored]


_REQUIRED = tuple(name for name in REQUIRED if name not in ("global_batch", "seq_len"))


def _answer(config: Values, draft: Draft, needed: Iterable[str] = _REQUIRED) -> Imported:
    draft.ignored = [*config.unknown(), *draft.ignored]
    draft.warnings += config.unpriced()
    return draft.answer(needed=needed)


def _take_model(named: str, draft: Draft, field: str = "model") -> None:
    """Read a model that is named if its shape is known offline, else say so."""
    if draft[field] is not None:
        return
    for spelled in (named.rstrip("/").rsplit("/", 1)[-1], named):
        if known_model(spelled):
            draft.put(**{field: spelled})
            return
    if field == "model":
        draft.more["unpriced"] = f"the shape of {shown(named)} is not known offline; give --model config.json"
        return
    draft.warnings.append(
        f"{field} {shown(named)}: its shape is not known offline; its pass is left out; give {field} below rl:"
    )


def take_lengths(draft: Draft, limit: float, whole: float, most_prompt: float = 1e9) -> None:
    """Read the lengths: the limit is the file's, means are given beside it or assumed and said."""
    if draft["prompt_len"] is None:
        draft.put(prompt_len=min(_PROMPT, most_prompt, whole / 4))
        draft.warnings.append(
            f"prompt_len: {draft['prompt_len']:g} tokens are assumed, since the file has only a limit; give --prompt-len"
        )
    draft.job["prompt_len"] = float(draft["prompt_len"])
    draft.put(max_response_len=max(min(limit, whole - draft["prompt_len"]), 1.0))
    if all(draft[name] is None for name in ANSWER_LENGTHS):
        draft.put(response_len=max(_HALF * draft["max_response_len"], 1.0))
        draft.warnings.append(
            f"response_len: {draft['response_len']:,.0f} tokens are assumed, half the limit (published runs: 0.28 to "
            "0.8 of it); most of a step follows it: give --response-len"
        )


def _take_speculation(table: Mapping[str, Any], draft: Draft) -> None:
    """Read speculative decoding, if it is known or published how many tokens a step yields."""
    tokens = table.get("num_speculative_tokens", 1 if table else 0)
    if tokens and draft["acceptance_length"] is None:
        if tokens > 1 or "deepseek" not in str(draft["model"]).lower():
            draft.warnings.append(
                f"speculative decoding by {tokens} tokens a step is left out: the file has no acceptance length; "
                "give --acceptance-length"
            )
            return
        draft.put(acceptance_length=_MTP_OF_DEEPSEEK)
        draft.warnings.append(
            f"acceptance_length: {_MTP_OF_DEEPSEEK} tokens are assumed, as published of DeepSeek-V3; give --acceptance-length"
        )
    draft.put(num_speculative_tokens=tokens or None)
    if tokens and table.get("model"):
        _take_model(table["model"], draft, "draft_model")


def _split(tp: int, pp: int, ep: int, dp: int) -> str:
    """Return the layout of a replica of the engine."""
    degrees = zip(("tp", "pp", "ep", "dp"), (tp, pp, ep, dp), strict=True)
    return " ".join(f"{name}{degree}" for name, degree in degrees if degree > 1 or name == "tp")


def _with_defaults(file: TextFile, notes: list[str]) -> dict[str, Any]:
    """Return a file over those that its ``defaults`` name; examples of NeMo-RL's own are known."""
    whole, folder = _tables(file), file.folder
    named, depth = whole.get("defaults"), 1
    while named:
        first = named[0] if isinstance(named, list) and named else named
        path = None if folder is None or not isinstance(first, str) else folder / first
        if path is not None and path.suffix == "":
            path = path.with_suffix(".yaml")
        if path is None or path.suffix not in (".yaml", ".yml") or not path.is_file():
            base = Path(str(first)).name.removesuffix(".yaml")
            if base not in _NEMO.more["bases"]:
                raise FrameworkConfigError(
                    f"defaults: {first} is not beside the file, and what it says is unknown; read it where it lies"
                )
            notes.append(f"defaults: {first} is not there; what it says is that of NeMo-RL's own example")
            while base:
                below = _NEMO.more["bases"][base]
                whole, base = _merged(below, whole), below.get("defaults")
            return whole
        if depth > _MOST_DEFAULTS:
            raise FrameworkConfigError(f"defaults: more than {_MOST_DEFAULTS} files name each other")
        below, folder = _tables(read_text(path)), path.parent
        named, depth = below.get("defaults"), depth + 1
        whole = _merged(below, whole)
    return whole


def _tables(file: TextFile) -> dict[str, Any]:
    """Return a file of NeMo-RL, in which ``dtensor_cfg`` may have its name of 2026, ``automodel_cfg``."""
    return parse_yaml(file.text.replace("automodel_cfg", "dtensor_cfg"), file.name)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Lay tables over tables, key by key."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = _merged(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged
