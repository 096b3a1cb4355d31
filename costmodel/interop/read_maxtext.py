"""Configurations of MaxText: a model by name or by its base sizes, a mesh of two tiers, a batch of each device.

Keys of AI-Hypercomputer/maxtext (``src/MaxText/configs/base.yml``); what a file leaves out has that file's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from costmodel.base.errors import CostModelError
from costmodel.base.yaml_files import parse_mapping
from costmodel.describe.models.model import Model, make_model
from costmodel.describe.models.model_files import load_model
from costmodel.interop.framework import FrameworkConfigError, Imported
from costmodel.interop.maxtext_blocks import BLOCKS
from costmodel.interop.optimizer_names import take_optimizer
from costmodel.interop.text_file import TextFile

_AXES = ("data", "fsdp", "fsdp_transpose", "tensor", "tensor_sequence", "pipeline", "context", "expert")
_UNREAD_AXES = ("sequence", "autoregressive", "tensor_transpose")
_PRECISIONS = {"bfloat16": "bf16", "float32": "fp32"}
_QUANTIZED = {
    "int8": "int8",
    "fp8": "fp8-current",
    "nanoo_fp8": "fp8-current",
    "te_fp8_delayedscaling": "fp8-delayed",
}


def read(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read a job.

    Raises
    ------
    CostModelError
        If a value cannot be read, or the model is neither known nor described.
    """
    raw = parse_mapping(file.text, file.name, example="key: value", error=FrameworkConfigError)
    job = {key: value for key, value in given.items() if key not in ("vocab_size", "env")}
    warnings: list[str] = []
    notes: list[str] = []
    if "model" not in job:
        model = _model(raw, Path(file.name).stem, given.get("vocab_size"))
        if model is not None:
            job["model"] = model
    degrees = _degrees(raw, job)
    for key, axes in (
        ("tp", ("tensor", "tensor_sequence")),
        ("pp", ("pipeline",)),
        ("cp", ("context",)),
        ("ep", ("expert",)),
    ):
        job.setdefault(key, degrees[axes[0]] * (degrees[axes[1]] if len(axes) > 1 else 1))
    job.setdefault("recipe", "maxtext-tpu" if raw.get("hardware") == "tpu" else "maxtext")
    job.setdefault("zero_stage", 3 if degrees["fsdp"] * degrees["fsdp_transpose"] > 1 else 0)
    each, steps = raw.get("per_device_batch_size"), int(raw.get("gradient_accumulation_steps") or 1)
    if job.get("gpus") and isinstance(each, (int, float)) and "global_batch" not in job:
        total = each * job["gpus"] * steps
        if total != int(total):
            raise FrameworkConfigError(
                f"per_device_batch_size: {each} on {job['gpus']} GPUs is no whole batch"
            )
        job["global_batch"] = int(total)
        replicas = max(1, job["gpus"] // (job["tp"] * job["pp"] * job["cp"]))
        job.setdefault("micro_batch", max(1, int(each * job["gpus"]) // replicas))
    if isinstance(raw.get("max_target_length"), int):
        job.setdefault("seq_len", raw["max_target_length"])
    quantized, dtype = str(raw.get("quantization") or ""), str(raw.get("dtype", "bfloat16"))
    if quantized and quantized not in _QUANTIZED:
        warnings.append(f"quantization {quantized}: has no price; priced as {dtype}")
    job.setdefault("precision", _QUANTIZED.get(quantized) or _PRECISIONS.get(dtype, "bf16"))
    policy = str(raw.get("remat_policy", "full"))
    if "recompute" not in job:
        job["recompute"] = "full" if policy == "full" else "selective"
        if policy != "full":
            warnings.append(f"remat_policy {policy}: priced as selective recomputation of attention")
    facts: dict[str, Any] = {}
    if "optimizer" not in job:
        take_optimizer(str(raw.get("opt_type", "adamw")), job, facts, warnings)
    missing = [key for key in ("model", "gpus", "global_batch", "seq_len") if job.get(key) is None]
    return Imported(job, ("cluster", *missing), (), tuple(notes), tuple(warnings), facts)


def _degrees(raw: Mapping[str, Any], job: dict[str, Any]) -> dict[str, int]:
    """Return how far each axis divides, over both tiers; -1 is what is left.

    Raises
    ------
    FrameworkConfigError
        If a degree is no whole number, or the axes do not divide the GPUs.
    """
    found, open_axis = dict.fromkeys(_AXES, 1), ""
    for tier, whole in (("ici", "fsdp"), ("dcn", "data")):
        for axis in (*_AXES, *_UNREAD_AXES):
            key = f"{tier}_{axis}_parallelism"
            value = raw.get(key, -1 if axis == whole and tier == "ici" else 1)
            if isinstance(value, bool) or not isinstance(value, int) or (value < 1 and value != -1):
                raise FrameworkConfigError(f"{key}: expected a whole number or -1, got {value!r}")
            if axis in _UNREAD_AXES and value != 1:
                raise FrameworkConfigError(f"{key}: this axis cannot be priced")
            if value == -1:
                open_axis = open_axis or axis
            elif axis in found:
                found[axis] *= value
    known = 1
    for degree in found.values():
        known *= degree
    if not open_axis:
        job.setdefault("gpus", known)
    elif job.get("gpus"):
        if job["gpus"] % known:
            raise FrameworkConfigError(f"gpus: {job['gpus']} is not divided by the axes, {known}")
        found[open_axis] *= job["gpus"] // known
    elif open_axis == "fsdp":
        # Everything that is left is sharded, however many GPUs there are.
        found["fsdp"] = max(found["fsdp"], 2)
    return found


def _model(raw: Mapping[str, Any], name: str, vocabulary: int | None) -> Model | None:
    """Return the model that is named or described.

    Raises
    ------
    FrameworkConfigError
        If its block has no price here, or its name is not known.
    """
    named = str(raw.get("model_name") or "default")
    if "base_emb_dim" not in raw:
        if named == "default":
            return None
        try:
            return load_model(named)
        except CostModelError:
            raise FrameworkConfigError(
                f"model_name: {named!r} is not known here; give --model NAME or config.json"
            ) from None
    block = str(raw.get("decoder_block", "llama2"))
    if block not in BLOCKS:
        raise FrameworkConfigError(f"decoder_block: {block!r} is not supported; give --model")
    if raw.get("global_parameter_scale", 1) != 1:
        raise FrameworkConfigError("global_parameter_scale: only 1 is supported")
    wanted = ("base_emb_dim", "base_num_query_heads", "base_num_decoder_layers", "base_mlp_dim")
    if lacking := [key for key in wanted if not isinstance(raw.get(key), int)]:
        raise FrameworkConfigError(f"{lacking[0]}: missing, or no whole number")
    activations = raw.get("mlp_activations", ["silu", "linear"])
    vocab = vocabulary or raw.get("vocab_size", 32000)
    values: dict[str, Any] = {
        "name": named if named != "default" else name,
        "num_layers": raw["base_num_decoder_layers"],
        "hidden_size": raw["base_emb_dim"],
        "num_heads": raw["base_num_query_heads"],
        "num_kv_heads": raw.get("base_num_kv_heads", raw["base_num_query_heads"]),
        "head_dim": raw.get("head_dim", 128),
        "ffn_size": raw["base_mlp_dim"],
        "vocab_size": vocab,
        "gated_mlp": isinstance(activations, list) and len(activations) == 2,
        "tied_embeddings": bool(raw.get("logits_via_embedding", False)),
        "qk_norm": bool(raw.get("use_qk_norm", False)),
    }
    if int(raw.get("num_experts") or 1) > 1:
        values["num_experts"] = raw["num_experts"]
        values["top_k"] = raw.get("num_experts_per_tok", 1)
        values["expert_ffn_size"] = raw.get("base_moe_mlp_dim", raw["base_mlp_dim"])
    values |= BLOCKS[block](raw, values)
    return make_model({key: value for key, value in values.items() if value is not None}, "maxtext")
