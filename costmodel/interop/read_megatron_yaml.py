"""YAML files that hold Megatron's settings: each becomes the flags that `costmodel.interop.read_megatron` knows.

Forms: ``MODEL_ARGS`` of NVIDIA/Megatron-LM d98e8a64 (``tests/functional_tests/test_cases/*/model_config.yaml``) and
``--yaml-cfg`` (``megatron/training/yaml_arguments.py``); NVIDIA/NeMo 1; ``run_config.yaml`` of
NVIDIA-NeMo/Megatron-Bridge. Where a key of theirs is not named as the flag, the flag's row in ``keys/megatron.yaml`` has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from costmodel.base.errors import shown
from costmodel.interop.draft import Draft
from costmodel.interop.framework import FrameworkConfigError, Imported, known_model
from costmodel.interop.interpolation import resolved
from costmodel.interop.keys import Flags, Values, flag_of, key_table, matches, unknown_keys
from costmodel.interop.megatron_job import MEGATRON, read_flags
from costmodel.interop.text_file import TextFile, parse_yaml, table_in
from costmodel.interop.tuning import take_bridge_tuning, take_tuning

_NEGATED: Mapping[str, str] = MEGATRON.more["negated"]
_CONFIGS: Mapping[str, str] = MEGATRON.more["configs"]
_TODAYS = {
    flag: MEGATRON.key(name) for name in _CONFIGS["read"].split() for flag in MEGATRON.fields[name].keys
}
"""Flags that are read of configurations, as of any age and program, with those of today."""
_DEFAULTS = {flag: str(field.default) for field in MEGATRON.fields.values() for flag in field.keys}
_READ = {*_TODAYS.values(), *_NEGATED.values()}
_BESIDE: Mapping[str, str] = MEGATRON.more["beside"]
"""By kind of file, patterns of keys beside the model's that are read or change no price."""


def read_arguments(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read ``model_config.yaml`` of Megatron's tests, or a file for ``--yaml-cfg``."""
    raw = _yaml(file)
    arguments = raw.get("MODEL_ARGS")
    left = _beside("megatron-yaml", raw) if isinstance(arguments, dict) else ()
    if not isinstance(arguments, dict):
        flat: dict[str, Any] = {}
        for key, value in raw.items():
            flat.update(value if isinstance(value, dict) else {key: value})
        arguments = _flags_of(flat)
    draft = read_flags(Flags(arguments), given, name=_stem(file))
    draft.ignored += left
    return draft.answer()


def read_nemo(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read a configuration of NeMo 1: ``model`` and ``trainer``."""
    raw = resolved(_yaml(file))
    model, trainer = table_in(raw, "model"), table_in(raw, "trainer")
    optimizer = table_in(model, "optim")
    sharded = str(optimizer.get("name", "")).startswith(("distributed_fused", "mcore_distributed"))
    precision = str(trainer.get("precision", model.get("precision", "")))
    flat = dict(model) | {
        "use_distributed_optimizer": sharded,
        "overlap_grad_reduce": bool(optimizer.get("overlap_grad_sync")),
        "bf16": "bf16" in precision,
        "fp16": precision.startswith("16"),
        "data": None,
    }
    for key, flag in (("num_nodes", "nnodes"), ("devices", "nproc_per_node")):
        if isinstance(trainer.get(key), int) and trainer[key] > 0:
            flat[flag] = trainer[key]
    if model.get("fp8"):
        flat["fp8"] = "e4m3" if model.get("fp8_e4m3") else "hybrid"
    flat.setdefault("encoder_seq_length", table_in(model, "data").get("seq_length"))
    if flat.pop("fsdp", False):
        flat["use_megatron_fsdp"] = True
        by_gradients = flat.get("fsdp_sharding_strategy", "full") == "grad"
        flat["data_parallel_sharding_strategy"] = "optim_grads" if by_gradients else "optim_grads_params"
    draft = of_configuration(flat, table_in(model, "tokenizer"), file, given)
    draft.ignored += _beside("nemo", {**raw, "optim": optimizer})
    return draft.answer()


def read_neuronx(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read a configuration of neuronx-distributed-training: NeMo's model beside a ``distributed_strategy``."""
    raw = resolved(_yaml(file))
    model, trainer, data = dict(table_in(raw, "model")), table_in(raw, "trainer"), table_in(raw, "data")
    layout, precision = dict(table_in(raw, "distributed_strategy")), table_in(raw, "precision")
    experts = table_in(model, "moe")
    aligned = table_in(raw, "model_alignment_strategy")
    for key, strategy in (
        ("model_alignment_strategy", aligned),
        ("data.alignment_strategy", table_in(data, "alignment_strategy")),
    ):
        if other := sorted(set(strategy) - {"sft", "peft"}):
            raise FrameworkConfigError(f"{key}.{other[0]}: is not supported (sft and peft are)")
    kinds = MEGATRON.more["neuronx"]["precisions"]
    kind = str(precision.get("type", "mixed_precision"))
    if kind not in kinds:
        raise FrameworkConfigError(f"precision.type: expected one of {', '.join(kinds)}, got {shown(kind)}")
    if "model_config" in model and "num_attention_heads" not in model:
        if given.get("model") is None:
            raise FrameworkConfigError(
                f"model.model_config: the model is in {shown(model['model_config'])}; give it by --model config.json"
            )
        model = {key: value for key, value in model.items() if key not in ("num_layers", "hidden_size")}
    flat = {
        key: value for key, value in model.items() if key not in ("moe", "optim", "fusions", "sliding_window")
    } | {
        "micro_batch_size": data.get("micro_batch_size"),
        "global_batch_size": data.get("global_batch_size"),
        "encoder_seq_length": data.get("seq_length") or model.get("encoder_seq_length"),
        "use_distributed_optimizer": bool(layout.pop("zero1", False)),
        "bf16": kinds[kind] == "bf16",
        "nnodes": trainer.get("num_nodes"),
        "nproc_per_node": trainer.get("devices"),
        "max_steps": trainer.get("max_steps"),
        "add_bias_linear": model.get("has_bias") is not False,
        "num_moe_experts": experts.get("num_experts"),
        "moe_router_topk": experts.get("top_k"),
        "moe_expert_capacity_factor": None if experts.get("dropless") else experts.get("capacity_factor"),
        "moe_layer_freq": experts.get("frequency", 1) if experts else None,
        "window_size": [model["sliding_window"] - 1, 0] if type(model.get("sliding_window")) is int else None,
        **layout,
    }
    if raw.get("model_source") == "hf":  # its modeling files drop nothing
        flat = {"attention_dropout": 0.0, "hidden_dropout": 0.0, **flat}
    requested = {"recipe": "neuronx-distributed", **given}
    draft = of_configuration(flat, table_in(data, "tokenizer"), file, requested)
    # What its files have no key for is the recipe's, and not Megatron-LM's default.
    kept = {"dropout", "moe_capacity_factor", *(given.get("switches") or {})}
    draft.job["switches"] = {name: value for name, value in draft["switches"].items() if name in kept}
    draft.ignored += _beside("neuronx", {**raw, "moe": experts, "optim": table_in(model, "optim")})
    draft.put_optimizer(str(table_in(model, "optim").get("name", "adamw")).removesuffix("_fp32OptState"))
    if adapters := table_in(aligned, "peft"):
        take_tuning(Values(key_table("trainers"), adapters), "lora", draft)
    if kind == "bf16SR":
        draft.put_switches({"master_weights_bytes": 0})
    elif kind == "autocast":
        draft.warnings.append(
            "precision.type autocast: parameters stay in fp32; priced in bf16 beside fp32 main weights"
        )
    recomputed = model.get("activations_checkpoint_recompute")
    if model.get("activations_checkpoint_recompute_mlp") or (recomputed or ["CoreAttention"]) != [
        "CoreAttention"
    ]:
        draft.warnings.append(
            f"activations_checkpoint_recompute {shown(recomputed)}: priced as core attention"
        )
    return draft.answer()


def read_bridge(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read ``run_config.yaml`` of Megatron-Bridge, which NeMo 2 writes beside its checkpoints too."""
    raw = _yaml(file)
    flat = dict(table_in(raw, "model"))
    if "num_layers" not in flat:
        raise FrameworkConfigError(
            "model.num_layers: is not in the file, which changes a recipe that it does not name; "
            "read the run_config.yaml that Megatron-Bridge writes"
        )
    for name in MEGATRON.more["bridge"]["run_config"].split():
        for part, field in (key.split(".") for key in MEGATRON.more["bridge"]["keys"][name][1:]):
            if (value := table_in(raw, part).get(field)) is not None:
                flat[MEGATRON.key(name)] = value
    mixed, inside = raw.get("mixed_precision"), table_in(raw, "mixed_precision")
    named = mixed if isinstance(mixed, str) else next((k for k in ("bf16", "fp16") if inside.get(k)), "")
    flat["bf16"], flat["fp16"] = "bf16" in named or bool(flat.get("bf16")), "fp16" in named
    # The precision's own word goes over that of `ddp` (training/mixed_precision.py:122); a name says fp32 but for fp16.
    reduces = inside.get("grad_reduce_in_fp32", table_in(raw, "ddp").get("grad_reduce_in_fp32", True))
    flat["grad_reduce_in_bf16"] = reduces is False and (bool(inside) or not isinstance(mixed, str))
    flat["fp8"] = inside.get("fp8") or flat.get("fp8")
    flat["fp8_recipe"] = (inside.get("fp8_recipe") or flat.get("fp8_recipe")) if flat["fp8"] else None
    flat["num_query_groups"] = flat.get("num_query_groups") or None
    draft = of_configuration(flat, table_in(raw, "tokenizer"), file, given)
    take_bridge_tuning(table_in(raw, "peft"), draft)
    draft.ignored += _beside("megatron-bridge", raw)
    return draft.answer()


def of_configuration(
    flat: dict[str, Any],
    tokenizer: Mapping[str, Any],
    file: TextFile,
    given: Mapping[str, Any],
    irrelevant: str = "",
) -> Draft:
    """Read a model and a job of TransformerConfig's keys; a tokenizer of the hub says the vocabulary.

    `irrelevant` are patterns of more keys that change no price.
    """
    for key in ("type", "tokenizer_type"):
        # NeMo's names of Megatron's own tokenizers; what is on the hub has a slash in its name.
        if str(tokenizer.get(key) or "").endswith("Tokenizer"):
            flat.setdefault("tokenizer_type", tokenizer[key])
    named = str(tokenizer.get("type") or tokenizer.get("tokenizer_model") or tokenizer.get("name") or "")
    is_hub_model = "/" in named and not flat.get("vocab_size") and "vocab_size" not in given
    model = known_model(named) if is_hub_model else None
    if model is not None:
        given = {**given, "vocab_size": model.vocab_size}
    kept = {flag: value for flag, value in _flags_of(flat).items() if flag in _READ}
    draft = read_flags(Flags(kept), given, name=_stem(file))
    if model is not None:
        draft.notes.append(f"vocabulary of {named}: {model.vocab_size}")
    draft.ignored += _unread(flat, irrelevant)
    return draft


def _beside(kind: str, raw: Mapping[str, Any]) -> tuple[str, ...]:
    """Return keys that stand beside the model's and are not known, of a file's parts by their names."""
    flat = {
        f"{part}.{key}".rstrip("."): value
        for part, table in raw.items()
        for key, value in (table.items() if isinstance(table, dict) and table else [("", table)])
    }
    return unknown_keys({key: value for key, value in flat.items() if not matches(_BESIDE[kind], key)})


def _unread(flat: Mapping[str, Any], irrelevant: str) -> tuple[str, ...]:
    """Return keys that no flag stands for; those of Megatron that are not read of configurations among them."""
    return unknown_keys(
        {
            key: value
            for key, value in flat.items()
            if key not in _NEGATED
            and str(value) != _DEFAULTS.get(flag_of(key))
            and _TODAYS.get(flag_of(key), flag_of(key)) not in _READ
            and (flag_of(key) in MEGATRON.used or not MEGATRON.knows(flag_of(key)))
            and not matches(f"{_CONFIGS['irrelevant']} {irrelevant}", key)
        }
    )


def _flags_of(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration's keys as flags."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        flag = _TODAYS.get(flag_of(key), flag_of(key))
        if key in _NEGATED:
            found[_NEGATED[key]] = value is False
        elif key in ("activation", "activation_func") and isinstance(value, str):
            found["--swiglu"] = found.get("--swiglu") or value.removeprefix("fast-") == "swiglu"
        elif key == "gated_linear_unit":
            found["--swiglu"] = found.get("--swiglu") or value is True
        elif flag == "--normalization" and isinstance(value, str):
            found[flag] = "RMSNorm" if "rms" in value.lower() else "LayerNorm"
        elif flag == "--moe-layer-freq" and isinstance(value, list):
            found[flag] = "[" + ",".join(str(part) for part in value) + "]"
        else:
            found[flag] = value
    if found.get("--num-query-groups"):
        found["--group-query-attention"] = True
    return found


def _yaml(file: TextFile) -> dict[str, Any]:
    """Return a file's content with every key as a word; ``1:`` and ``null:`` are none of any program's."""

    def worded(value: Any) -> Any:
        return {str(key): worded(item) for key, item in value.items()} if isinstance(value, dict) else value

    raw = parse_yaml(file.text, file.name)
    return {key: worded(value) for key, value in raw.items()}


def _stem(file: TextFile) -> str:
    return Path(file.name).stem or "megatron"
