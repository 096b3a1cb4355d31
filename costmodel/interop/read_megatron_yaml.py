"""YAML files that hold Megatron's settings: each becomes the flags that `costmodel.interop.read_megatron` knows.

Forms, with where their keys are from: ``MODEL_ARGS`` of NVIDIA/Megatron-LM d98e8a64
(``tests/functional_tests/test_cases/*/model_config.yaml``) and ``--yaml-cfg`` (``megatron/training/yaml_arguments.py``);
NVIDIA/NeMo 1 (``examples/nlp/language_modeling/conf/megatron_gpt_config.yaml``); ``run_config.yaml`` of
NVIDIA-NeMo/Megatron-Bridge (``training/config.py``); AMD-AGI/Primus (``examples/megatron/configs``); and
EleutherAI/gpt-neox (``megatron/neox_arguments/neox_args.py``).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from costmodel.base.errors import CostModelError
from costmodel.base.yaml_files import parse_mapping
from costmodel.describe.models.model import MOST_LAYERS, Model
from costmodel.describe.models.model_files import load_model
from costmodel.interop.framework import FrameworkConfigError, Imported
from costmodel.interop.interpolation import resolved
from costmodel.interop.megatron_flags import HARMLESS
from costmodel.interop.read_megatron import flags_to_job
from costmodel.interop.text_file import TextFile
from costmodel.interop.tuning import take_bridge_tuning

# Keys of a configuration that have another name as a flag.
_RENAMED = {
    "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_method": "recompute_method",
    "activations_checkpoint_num_layers": "recompute_num_layers",
    "encoder_seq_length": "seq_length",
    "fp8": "fp8_format",
    "num_moe_experts": "num_experts",
    "moe_router_top_k": "moe_router_topk",
    "model_parallel_size": "tensor_model_parallel_size",
    "pipe_parallel_size": "pipeline_model_parallel_size",
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "train_batch_size": "global_batch_size",
    "intermediate_size": "ffn_hidden_size",
    "num_kv_heads": "num_query_groups",
    "layernorm_epsilon": "norm_epsilon",
    "rotary_percentage": "rotary_percent",
    "rotary_pct": "rotary_percent",
    "rotary_emb_base": "rotary_base",
    "max_steps": "train_iters",
    "qkv_bias": "add_qkv_bias",
    "override_vocab_size": "padded_vocab_size",
    "pos_emb": "position_embedding_type",
    "norm": "normalization",
    "ub_tp_comm_overlap": "tp_comm_overlap",
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
}
# Keys that say the contrary of the flag: the flag stands where they are false.
_NEGATED = {
    "add_bias_linear": "--disable-bias-linear",
    "bias": "--disable-bias-linear",
    "overlap_p2p_comm": "--no-overlap-p2p-communication",
    "share_embeddings_and_output_weights": "--untie-embeddings-and-output-weights",
}
# What a configuration decides and that its class would default to otherwise.
_READ = frozenset(
    """num_layers hidden_size ffn_hidden_size num_attention_heads num_query_groups kv_channels seq_length micro_batch_size
    global_batch_size tensor_model_parallel_size pipeline_model_parallel_size num_virtual_stages_per_pipeline_rank
    context_parallel_size expert_model_parallel_size expert_tensor_parallel_size sequence_parallel num_experts
    moe_router_topk moe_ffn_hidden_size moe_layer_freq moe_shared_expert_intermediate_size moe_router_num_groups
    moe_router_group_topk recompute_granularity recompute_method recompute_num_layers recompute_modules bf16 fp16
    fp8_format fp8_recipe normalization qk_layernorm add_qkv_bias window_size vocab_size make_vocab_size_divisible_by
    padded_vocab_size tokenizer_type use_distributed_optimizer overlap_grad_reduce overlap_param_gather
    tp_comm_overlap overlap_p2p_comm
    multi_latent_attention q_lora_rank kv_lora_rank qk_head_dim qk_pos_emb_head_dim v_head_dim mtp_num_layers
    position_embedding_type max_position_embeddings swiglu squared_relu group_query_attention
    data_parallel_sharding_strategy use_megatron_fsdp zero_stage cp_comm_type cross_entropy_loss_fusion
    rotary_percent rotary_base norm_epsilon max_position_embeddings train_iters train_samples rampup_batch_size
    attention_dropout hidden_dropout cross_entropy_fusion_impl moe_token_dispatcher_type moe_grouped_gemm
    grad_reduce_in_bf16""".split()  # noqa: SIM905
)
_SILENT = re.compile(
    r"_.*|gradient_as_bucket_view|fp8_(hybrid|e4m3|wgrad|margin|amax.*)|apex_.*|.*(init|seed|fusion|dropout|dtype|path|target|loss_scale|timers|kernel|interval|gcd).*|name|exp_manager"
    r"|tokenizer.*|data|optim|nsys_profile|precision|mcore_gpt|megatron_amp_O2|bias_.*|use_.*|rotary.*|openai_gelu"
    r"|activation.*|gated_linear_unit|transformer_.*|normalize.*|pre_process|post_process|grad_.*|enable_.*|hetero.*"
    r"|attention_(type|backend)|persist.*|.*_func|deallocate.*|autocast.*|should_pad_vocab|finalize.*|generation.*"
    r"|moe_(aux|z|router|token|permute|shared_expert_overlap).*|parallel_output|batch_p2p.*|layernorm.*|masked.*|resume.*"
    r"|.*_process_group.*|cuda_graph.*|apply_.*|inference.*|variable_seq.*|test_mode|overlap_.*|defer.*|barrier.*"
)


def read_arguments(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read ``model_config.yaml`` of Megatron's tests, or a file for ``--yaml-cfg``.

    Raises
    ------
    CostModelError
        If it cannot be read.
    """
    raw = _yaml(file)
    table = raw.get("MODEL_ARGS")
    if isinstance(table, dict):
        return flags_to_job(_words(table), given, _stem(file))
    flat: dict[str, Any] = {}
    for key, value in raw.items():
        flat.update(value if isinstance(value, dict) else {key: value})
    return flags_to_job(_words(_translated(flat)), given, _stem(file))


def read_nemo(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read a configuration of NeMo 1: ``model`` and ``trainer``.

    Raises
    ------
    CostModelError
        If it cannot be read.
    """
    raw = resolved(_yaml(file))
    model, trainer = _table(raw, "model"), _table(raw, "trainer")
    flat = dict(model)
    optimizer = str(_table(model, "optim").get("name", ""))
    flat["use_distributed_optimizer"] = optimizer.startswith(("distributed_fused", "mcore_distributed"))
    flat["overlap_grad_reduce"] = bool(_table(model, "optim").get("overlap_grad_sync"))
    for key, flag in (("num_nodes", "nnodes"), ("devices", "nproc_per_node")):
        if isinstance(trainer.get(key), int) and trainer[key] > 0:
            flat[flag] = trainer[key]
    precision = str(trainer.get("precision", model.get("precision", "")))
    flat["bf16"], flat["fp16"] = "bf16" in precision, precision.startswith("16")
    if model.get("fp8"):
        flat["fp8"] = "e4m3" if model.get("fp8_e4m3") else "hybrid"
    flat["data"] = None
    sequence = _table(model, "data").get("seq_length")
    flat.setdefault("encoder_seq_length", sequence)
    return _with_tokenizer(flat, _table(model, "tokenizer"), file, given)


def read_bridge(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read ``run_config.yaml`` of Megatron-Bridge, which NeMo 2 writes beside its checkpoints too.

    Raises
    ------
    CostModelError
        If it cannot be read.
    """
    raw = _yaml(file)
    flat = dict(_table(raw, "model"))
    for part in ("train", "ddp", "optimizer"):
        table = _table(raw, part)
        wanted = (
            "micro_batch_size",
            "global_batch_size",
            "use_distributed_optimizer",
            "overlap_grad_reduce",
            "overlap_param_gather",
            "data_parallel_sharding_strategy",
            "use_megatron_fsdp",
        )
        flat.update({key: table[key] for key in wanted if table.get(key) is not None})
    mixed = raw.get("mixed_precision")
    named = (
        mixed
        if isinstance(mixed, str)
        else next((k for k in ("bf16", "fp16") if _table(raw, "mixed_precision").get(k)), "")
    )
    flat["bf16"], flat["fp16"] = "bf16" in named or bool(flat.get("bf16")), "fp16" in named
    inside = _table(raw, "mixed_precision")
    # The precision's own word goes over that of `ddp` (training/mixed_precision.py:122); a name says fp32 but for fp16.
    reduces = inside.get("grad_reduce_in_fp32", _table(raw, "ddp").get("grad_reduce_in_fp32", True))
    flat["grad_reduce_in_bf16"] = reduces is False and (bool(inside) or not isinstance(mixed, str))
    flat["fp8"] = inside.get("fp8") or flat.get("fp8")
    flat["fp8_recipe"] = (inside.get("fp8_recipe") or flat.get("fp8_recipe")) if flat["fp8"] else None
    if not flat.get("num_query_groups"):
        flat.pop("num_query_groups", None)
    found = _with_tokenizer(flat, _table(raw, "tokenizer"), file, given)
    job, warnings = dict(found.job), list(found.warnings)
    take_bridge_tuning(_table(raw, "peft"), job, warnings)
    return dataclasses.replace(found, job=job, warnings=tuple(warnings))


def read_primus(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read an experiment of Primus on Megatron: a module's overrides over the model that it names.

    Raises
    ------
    CostModelError
        If it is for another framework, or its model is not known here.
    """
    raw = _yaml(file)
    modules = [part for part in _table(raw, "modules").values() if isinstance(part, dict)]
    chosen = next((part for part in modules if isinstance(part.get("overrides"), dict)), {})
    framework = str(chosen.get("framework", ""))
    if framework != "megatron":
        raise FrameworkConfigError(f"primus: framework {framework!r} is not supported (megatron is)")
    overrides = dict(chosen["overrides"])
    model, named = given.get("model"), str(chosen.get("model", ""))
    if model is None and "num_layers" not in overrides:
        model = _known(Path(named).stem)
    found = _with_model(
        flags_to_job(_words(_translated(overrides)), given, _stem(file)), model, f"model: {named}"
    )
    presets = (
        f"primus: the presets {chosen.get('config')} and {named} are not beside it: their values are unread"
    )
    return dataclasses.replace(found, warnings=(*found.warnings, presets))


def read_neox(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read a configuration of GPT-NeoX.

    Raises
    ------
    CostModelError
        If it cannot be read.
    """
    raw = {str(key).replace("-", "_"): value for key, value in _yaml(file).items()}
    flat = dict(raw)
    zero, given = _table(raw, "zero_optimization"), dict(given)
    flat["zero_stage"] = zero.get("stage", 0)
    for name in ("fp16", "bf16"):
        flat[name] = bool(_table(raw, name).get("enabled"))
    if raw.get("precision") in ("bfloat16", "fp16"):
        flat["bf16" if raw["precision"] == "bfloat16" else "fp16"] = True
    if raw.get("checkpoint_activations"):
        flat["recompute_granularity"], flat["recompute_method"] = "full", "uniform"
    flat["share_embeddings_and_output_weights"] = not raw.get("no_weight_tying", False)
    if raw.get("mlp_type") == "llama" or raw.get("activation") == "swiglu":
        flat["swiglu"], flat["bias"] = True, raw.get("use_bias_in_mlp", True) is not False
    flat["group_query_attention"] = bool(raw.get("num_kv_heads"))
    flat |= _neox_experts(raw)
    for key in (
        "gradient_accumulation_steps",
        "train_micro_batch_size_per_gpu",
        "model_parallel_size",
        "pipe_parallel_size",
    ):
        if not isinstance(raw.get(key) or 1, int):
            raise FrameworkConfigError(f"{key}: expected a whole number, got {raw[key]!r}")
    steps = raw.get("gradient_accumulation_steps")
    micro, world = raw.get("train_micro_batch_size_per_gpu"), given.get("gpus")
    degrees = int(raw.get("model_parallel_size") or 1) * int(raw.get("pipe_parallel_size") or 1)
    if not raw.get("train_batch_size") and micro and world:
        flat["train_batch_size"] = micro * (steps or 1) * max(1, world // degrees)
    kept = {key: value for key, value in flat.items() if _flag(key)[2:].replace("-", "_") in _READ}
    words = [*_words(_translated({**kept, **{k: flat[k] for k in _NEGATED if k in flat}})), "--deepspeed"]
    found = flags_to_job(words, given, _stem(file))
    model = found.job.get("model")
    if not raw.get("gpt_j_residual") or not isinstance(model, Model):
        return found
    # Attention and MLP side by side, each behind a norm of its own unless they share one.
    beside = {"parallel_block": True, "norms_per_layer": 1 if raw.get("gpt_j_tied") else 2}
    return dataclasses.replace(found, job={**found.job, "model": model.model_copy(update=beside)})


def _neox_experts(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return how many experts which layers have: every n-th from the first on, where one is chosen unless told otherwise.

    Since megablocks the keys are ``moe_num_experts`` and ``moe_expert_interval`` (1); before, ``num_experts`` and
    ``expert_interval`` (2).
    """
    new = "moe_num_experts" in raw
    experts, layers = raw.get("moe_num_experts") or raw.get("num_experts") or 1, raw.get("num_layers")
    every = raw.get("moe_expert_interval") or raw.get("expert_interval") or (1 if new else 2)
    if not all(type(number) is int and number > 0 for number in (experts, layers, every)) or experts == 1:
        return {}
    return {
        "num_experts": experts,
        "moe_router_topk": raw.get("moe_top_k") or 1,
        "moe_layer_freq": [int(layer % every == 0) for layer in range(min(int(layers or 0), MOST_LAYERS))],
    }


def _with_tokenizer(
    flat: dict[str, Any], tokenizer: Mapping[str, Any], file: TextFile, given: Mapping[str, Any]
) -> Imported:
    """Read a model and a job of TransformerConfig's keys; a tokenizer of the hub says the vocabulary."""
    given = dict(given)
    notes: tuple[str, ...] = ()
    for key in ("type", "tokenizer_type"):
        # NeMo's names of Megatron's own tokenizers; what is on the hub has a slash in its name.
        if str(tokenizer.get(key) or "").endswith("Tokenizer"):
            flat.setdefault("tokenizer_type", tokenizer[key])
    named = str(tokenizer.get("type") or tokenizer.get("tokenizer_model") or tokenizer.get("name") or "")
    if not flat.get("vocab_size") and "vocab_size" not in given and "/" in named:
        try:
            given["vocab_size"] = load_model(named).vocab_size
            notes = (f"vocabulary of {named}: {given['vocab_size']}",)
        except CostModelError:
            pass
    translated = _translated(flat)
    kept = {key: value for key, value in translated.items() if _plain(key) in _READ or key.startswith("--")}
    kept |= {key: value for key, value in translated.items() if key in ("nnodes", "nproc_per_node")}
    left = tuple(
        key
        for key, value in translated.items()
        if key not in kept
        and (value is True or value not in (None, False, 0, 1, {}, []))
        and not _SILENT.fullmatch(key)
        and not HARMLESS.match(_flag(key))
    )
    found = flags_to_job(_words(kept), given, _stem(file))
    return dataclasses.replace(found, notes=(*found.notes, *notes), ignored=(*found.ignored, *left))


def _translated(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration's keys as those of flags."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = _RENAMED.get(key, key)
        if key in _NEGATED:
            found[_NEGATED[key]] = value is False
        elif key in ("activation", "activation_func") and isinstance(value, str):
            found["swiglu"] = found.get("swiglu") or value.removeprefix("fast-") in ("swiglu",)
            found["squared_relu"] = value == "squared-relu"
        elif key == "gated_linear_unit":
            found["swiglu"] = found.get("swiglu") or value is True
        elif name == "normalization" and isinstance(value, str):
            found[name] = "RMSNorm" if "rms" in value.lower() else "LayerNorm"
        elif name == "position_embedding_type" and value == "rotary":
            found[name] = "rope"
        elif name == "moe_layer_freq" and isinstance(value, list):
            found[name] = "[" + ",".join(str(part) for part in value) + "]"
        else:
            found[name] = value
    if found.get("num_query_groups"):
        found["group_query_attention"] = True
    return found


def _words(table: Mapping[str, Any]) -> Iterable[str]:
    """Return a mapping as the words of a command: true is a switch, false and null are left out."""
    words: list[str] = []
    for key, value in table.items():
        if value is None or value is False or isinstance(value, dict):
            continue
        words.append(_flag(key))
        if value is not True:
            words += [str(part) for part in value] if isinstance(value, list) else [str(value)]
    return words


def _flag(key: str) -> str:
    return key if key.startswith("--") else f"--{_RENAMED.get(key, key).replace('_', '-')}"


def _plain(key: str) -> str:
    return key.removeprefix("--").replace("-", "_")


def _known(name: str) -> Model:
    """Return the model that a preset's name means.

    Raises
    ------
    FrameworkConfigError
        If none has that name here.
    """
    for spelled in (name, name.replace("_", "-")):
        try:
            return load_model(spelled.lower())
        except CostModelError:
            continue
    raise FrameworkConfigError(f"model: {name!r} is not known here; give --model NAME or config.json")


def _with_model(found: Imported, model: Any, note: str) -> Imported:
    """Put a model into a job that has none."""
    if model is None or found.job.get("model") is not None:
        return found
    missing = tuple(key for key in found.missing if key != "model")
    return dataclasses.replace(
        found, job={**found.job, "model": model}, missing=missing, notes=(*found.notes, note)
    )


def _yaml(file: TextFile) -> dict[str, Any]:
    return parse_mapping(file.text, file.name, example="key: value", error=FrameworkConfigError)


def _table(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = raw.get(key)
    return value if isinstance(value, dict) else {}


def _stem(file: TextFile) -> str:
    return Path(file.name).stem or "megatron"
