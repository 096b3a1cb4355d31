"""Configurations of MaxText: a model by name or by its base sizes, a mesh of two tiers, a batch of each device.

What the keys mean, and what a file leaves out, stands in ``keys/maxtext.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from costmodel.base.errors import shown
from costmodel.describe.jobs.fields import FIELD
from costmodel.describe.models.huggingface import read_hf_config
from costmodel.describe.models.model import MOST_LAYERS, Model, make_model
from costmodel.interop.draft import ALL_BF16, Draft
from costmodel.interop.framework import FrameworkConfigError, Imported, known_model
from costmodel.interop.keys import Values, key_table, unknown_keys
from costmodel.interop.text_file import TextFile, beside, parse_yaml, read_text

_KEYS = key_table("maxtext")
_TABLES = _KEYS.more
_MOST_BASES = 8


def read(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read a job."""
    raw = _with_base(file)
    config = Values(_KEYS, raw)
    draft = Draft(given)
    draft.warnings += config.unpriced()
    if draft["model"] is None:
        draft.put(model=_model(raw, config, Path(file.name).stem, given.get("vocab_size")))
    degrees = _degrees(raw, draft)
    draft.put(
        tp=degrees["tensor"] * degrees["tensor_sequence"],
        pp=degrees["pipeline"],
        cp=degrees["context"],
        ep=degrees["expert"],
        recipe="maxtext-tpu" if config["hardware"] == "tpu" else "maxtext",
        zero_stage=3 if degrees["fsdp"] * degrees["fsdp_transpose"] > 1 else 0,
        seq_len=config["seq_len"],
    )
    _take_batch(config, draft)
    precisions, quantized = _TABLES["precisions"], str(config["quantization"] or "")
    if quantized and quantized not in precisions["quantization"]:
        raise config.error("quantization", f"one of {', '.join(precisions['quantization'])}", quantized)
    plain = precisions["dtype"].get(config["dtype"], "bf16")
    draft.put(precision=precisions["quantization"].get(quantized, plain))
    if config["weight_dtype"] == "bf16":
        draft.put_switches(ALL_BF16)
    if draft["recompute"] is None:
        draft.put(recompute="full" if config["remat"] == "full" else "selective")
        if config["remat"] != "full":
            draft.warnings.append(
                f"remat_policy {config['remat']}: priced as selective recomputation of attention"
            )
    draft.put_optimizer(config["optimizer"])
    if config["capacity_factor"] > 0:
        draft.put_switches({"moe_capacity_factor": config["capacity_factor"]})
    if config["lora"]:
        draft.put(lora_rank=config["lora_rank"], base_dtype=config["lora_dtype"])
        draft.notes.append("lora targets: priced on every linear layer")
    draft.ignored += _unread(config)
    return draft.answer()


def _with_base(file: TextFile) -> dict[str, Any]:
    """Return a file over the one that its ``base_config`` names, unless that is MaxText's own defaults."""
    raw = parse_yaml(file.text, file.name)
    for _ in range(_MOST_BASES):
        named = str(raw.get("base_config") or "base.yml")
        if Path(named).name == "base.yml":
            return raw
        path = beside(file, named)
        if path is None:
            raise FrameworkConfigError(
                f"base_config: {shown(named)} is not beside the file, and what it says is unknown; read it where it lies"
            )
        file = read_text(path)
        below = parse_yaml(file.text, file.name)
        raw = {**below, **raw, "base_config": below.get("base_config")}
    raise FrameworkConfigError(f"base_config: more than {_MOST_BASES} files name each other")


def _unread(config: Values) -> tuple[str, ...]:
    """Return keys that are neither known nor at a default that changes nothing."""
    of_blocks = {
        keys[0]
        for fields in (*_TABLES["blocks"].values(), *_TABLES["mixers"].values())
        for keys in fields.values()
        if isinstance(keys, list)
    }
    axes = {
        f"{tier}_{axis}_parallelism"
        for tier in ("ici", "dcn")
        for axes in _TABLES["axes"].values()
        for axis in axes
    }
    of_transformers = {key for keys in _TABLES["transformers"].values() for key in keys.values()}
    known = {*of_blocks, *of_transformers, *axes, "use_indexer", "inhomogeneous_layer_cycle_interval"}
    return unknown_keys(
        {
            key: value
            for key, value in config.raw.items()
            if key not in known and not _KEYS.knows(key) and value not in (-1, _TABLES["defaults"].get(key))
        }
    )


_SIZES = (
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "ffn_size",
    "expert_ffn_size",
    "num_experts",
    "top_k",
    "tied_embeddings",
)
"""Fields of a model that stand beside its name only where they are the same."""


def _take_batch(config: Values, draft: Draft) -> None:
    """Read the batch of all devices, where their number is known."""
    each, gpus = config["device_batch"], draft["gpus"]
    if not gpus or each is None or draft["global_batch"] is not None:
        return
    if not 0 < each <= FIELD["global_batch"].most:
        raise config.error(config.key("device_batch"), "a number above 0", each)
    at_once = each * gpus
    if at_once * config["accumulation"] != int(at_once * config["accumulation"]):
        raise FrameworkConfigError(f"per_device_batch_size: {each} on {gpus} GPUs is no whole batch")
    replicas = max(1, gpus // (draft["tp"] * draft["pp"] * draft["cp"]))
    draft.put(
        global_batch=int(at_once * config["accumulation"]), micro_batch=max(1, int(at_once) // replicas)
    )


def _degrees(raw: Mapping[str, Any], draft: Draft) -> dict[str, int]:
    """Return how far each axis divides, over both tiers; -1 is what is left."""
    priced, unpriced = _TABLES["axes"]["priced"], _TABLES["axes"]["unpriced"]
    found, open_axis = dict.fromkeys(priced, 1), ""
    for tier in ("ici", "dcn"):
        for axis in (*priced, *unpriced):
            key = f"{tier}_{axis}_parallelism"
            value = raw.get(key, -1 if (tier, axis) == ("ici", "fsdp") else 1)
            if isinstance(value, bool) or not isinstance(value, int) or (value < 1 and value != -1):
                raise FrameworkConfigError(f"{key}: expected a whole number or -1, got {value!r}")
            if axis in unpriced and value != 1:
                raise FrameworkConfigError(f"{key}: this axis cannot be priced")
            if value == -1:
                open_axis = open_axis or axis
            elif axis in found:
                found[axis] *= value
    known = prod(found.values())
    gpus = draft["gpus"]
    if not open_axis:
        draft.put(gpus=known)
    elif gpus:
        if gpus % known:
            raise FrameworkConfigError(f"gpus: {gpus} is not divided by the axes, {known}")
        found[open_axis] *= gpus // known
    elif open_axis == "fsdp":
        # Everything that is left is sharded, however many GPUs there are.
        found["fsdp"] = max(found["fsdp"], 2)
    return found


def _model(raw: Mapping[str, Any], config: Values, name: str, vocabulary: int | None) -> Model | None:
    """Return the model that is named or described."""
    named, block = config["named"], config["block"]
    if not config.has("hidden_size"):
        if named == "default":
            return None
        model = known_model(named)
        if model is None:
            raise FrameworkConfigError(
                f"model_name: {named!r} is not known here; give --model NAME or config.json"
            )
        for field in _SIZES:
            if config.has(field) and config[field] != getattr(model, field):
                raise FrameworkConfigError(
                    f"{config.key(field)}: {config[field]} is not that of model_name {named}, {getattr(model, field)}; "
                    "give --model"
                )
        return model
    if block in _TABLES["transformers"]:
        return _of_transformers(block, named if named != "default" else name, raw, vocabulary)
    if block not in _TABLES["blocks"]:
        raise FrameworkConfigError(f"decoder_block: {block!r} is not supported; give --model")
    if config["scale"] != 1:
        raise FrameworkConfigError("global_parameter_scale: only 1 is supported")
    wanted = ("hidden_size", "num_heads", "num_layers", "ffn_size")
    if lacking := [field for field in wanted if config[field] is None]:
        raise FrameworkConfigError(f"{config.key(lacking[0])}: missing, or no whole number")
    plain = ("num_layers", "hidden_size", "num_heads", "head_dim", "ffn_size", "tied_embeddings", "qk_norm")
    activations = config["activations"]
    values: dict[str, Any] = {
        "name": named if named != "default" else name,
        **{field: config[field] for field in plain},
        "num_kv_heads": config["num_kv_heads"] or config["num_heads"],
        "vocab_size": vocabulary or config["vocab_size"],
        "gated_mlp": isinstance(activations, list) and len(activations) == 2,
    }
    if config["num_experts"] > 1:
        width = config["ffn_size"] if config["expert_ffn_size"] is None else config["expert_ffn_size"]
        values |= {"num_experts": config["num_experts"], "top_k": config["top_k"], "expert_ffn_size": width}
    values |= _looked_up(_TABLES["blocks"][block], raw)
    _compute(block, values, raw)
    return make_model({key: value for key, value in values.items() if value is not None}, "maxtext")


def _of_transformers(block: str, name: str, raw: Mapping[str, Any], vocabulary: int | None) -> Model:
    """Return a model of a block that is read as transformers' class; every fifth layer of Gemma 4 E2B is a full one."""
    kind, *keys = _TABLES["transformers"][block].items()
    config = {kind[0]: kind[1]} | {theirs: raw[key] for theirs, key in keys if raw.get(key) is not None}
    every = 5 if "e2b" in name else 6
    layers = config.get("num_hidden_layers")
    if type(layers) is int and 0 < layers <= MOST_LAYERS:
        kinds = (
            "full_attention" if (layer + 1) % every == 0 else "sliding_attention" for layer in range(layers)
        )
        config["layer_types"] = list(kinds)
    config["enable_moe_block"] = (raw.get("num_experts") or 1) != 1
    config.setdefault("hidden_size_per_layer_input", 0)
    return read_hf_config(config | ({"vocab_size": vocabulary} if vocabulary else {}), name).model


def _looked_up(fields: Mapping[str, Any], raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a block: values as they are, and those that a key of the file says."""
    found = {}
    for field, value in fields.items():
        if isinstance(value, list):
            key, *default = value
            value = raw.get(key, *default)
            if default and isinstance(default[0], bool):
                value = bool(value)
            elif isinstance(value, bool) or not isinstance(value, int):
                raise FrameworkConfigError(f"{key}: missing, or no whole number")
        found[field] = value
    return found


def _compute(block: str, values: dict[str, Any], raw: Mapping[str, Any]) -> None:
    """Put into a model's fields what follows from several keys of its block."""
    shared = values.pop("shared_experts", 0)
    if shared:
        values["shared_expert_ffn_size"] = shared * values.get("expert_ffn_size", 0)
    if not 1 <= values.get("groups_per_token", 0) < values.get("expert_groups", 0):
        values.pop("groups_per_token", None)
        values.pop("expert_groups", None)
    if block == "gemma2":
        values["num_layers"] *= 2  # a layer of MaxText is a windowed one and a full one
    layers = values["num_layers"]
    if block == "llama4" and values["moe_layer_freq"] == 1:
        values["ffn_size"] = 0
    if values.get("attention") == "mla" and raw.get("use_indexer"):
        sizes = {"kind": "indexed", **_looked_up(_TABLES["mixers"]["indexed"], raw)}
        values |= {"attention_pattern": "i" * layers, "mixers": {"i": sizes}}
    if block in ("qwen3_next", "qwen3_5"):
        every = _looked_up({"every": ["inhomogeneous_layer_cycle_interval", 4]}, raw)["every"]
        sizes = {"kind": "gated-delta", **_looked_up(_TABLES["mixers"]["gated-delta"], raw)}
        pattern = "".join("f" if (layer + 1) % every == 0 else "d" for layer in range(layers))
        values |= {"attention_pattern": pattern, "mixers": {"d": sizes}}
