"""What other programs' files say of adapters and frozen parts, as fields of a job.

Keys of hiyouga/LLaMA-Factory (``src/llamafactory/hparams/finetuning_args.py``), axolotl-ai-cloud/axolotl
(``src/axolotl/utils/schemas/peft.py``), modelscope/ms-swift (``swift/arguments``) and huggingface/peft
(``adapter_config.json``, ``src/peft/tuners/lora/config.py``).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from costmodel.base.errors import CostModelError
from costmodel.describe.jobs.tuning import Tuning, make_tuning
from costmodel.interop.framework import FrameworkConfigError

_RANK = ("lora_rank", "lora_r", "r")
_TARGETS = ("lora_target", "lora_target_modules", "target_modules")
_ALL = {"all", "all-linear", "all_linear"}
_DORA = ("use_dora", "peft_use_dora")
_RSLORA = ("use_rslora", "peft_use_rslora")
_ADAPTED = ("lora", "qlora", "dora", "rslora")

_PEFT_NAMES = {word: f"{word}_proj" for word in ("q", "k", "v", "o", "gate", "up", "down")}
_BRIDGE_NAMES = {"qkv": "linear_qkv", "o": "linear_proj", "fc1": "linear_fc1", "down": "linear_fc2"}
_CANONICAL_NAMES = {
    "q": "linear_q",
    "k": "linear_k",
    "v": "linear_v",
    "o": "linear_proj",
    "gate": "linear_fc1_gate",
    "up": "linear_fc1_up",
    "down": "linear_fc2",
}

KEYS = frozenset(
    (
        *_RANK,
        *_TARGETS,
        *_DORA,
        *_RSLORA,
        "lora_target_linear",
        "quantization_bit",
        "quant_bits",
        "load_in_4bit",
        "load_in_8bit",
    )
)
"""Keys that are read here."""


def take_bridge_tuning(peft: Mapping[str, Any], job: dict[str, Any], warnings: list[str]) -> None:
    """Fill a job's adapters from Megatron-Bridge's table of them.

    Raises
    ------
    FrameworkConfigError
        If the rank is no whole number.
    """
    if not peft or "lora_rank" in job:
        return
    scheme = str(peft.get("_target_", "lora")).rsplit(".", 1)[-1].lower()
    rank = peft.get("dim", 32)
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise FrameworkConfigError(f"peft.dim: expected a whole number, got {rank!r}")
    job["lora_rank"] = rank
    words = peft.get("target_modules") or list(
        _CANONICAL_NAMES.values() if "canonical" in scheme else _BRIDGE_NAMES.values()
    )
    job["lora_targets"] = ",".join(str(word).rsplit(".", 1)[-1] for word in words)
    if "dora" in scheme:
        job["lora_targets"] += ",magnitude"


def peft_modules(tuning: Tuning, title: str) -> list[str]:
    """Return the layers with adapters as PEFT names them, none for every linear layer.

    Raises
    ------
    FrameworkConfigError
        If one is a layer that transformers' models do not have as one.
    """
    plain = tuple(word for word in tuning.lora_targets if word != "magnitude")
    if plain == make_tuning(tuning.lora_rank).lora_targets:
        return []
    return _named(dataclasses.replace(tuning, lora_targets=plain), _PEFT_NAMES, title)


def bridge_modules(tuning: Tuning) -> tuple[str, list[str]]:
    """Return Megatron-Bridge's scheme of adapters, and the layers as it names them.

    Raises
    ------
    FrameworkConfigError
        If one has an adapter that it does not know.
    """
    fused = not set(tuning.lora_targets) - set(_BRIDGE_NAMES)
    names = _BRIDGE_NAMES if fused else _CANONICAL_NAMES
    if "mixer" in tuning.lora_targets:
        tuning = dataclasses.replace(
            tuning, lora_targets=tuple(word for word in tuning.lora_targets if word != "mixer")
        )
    return "lora" if fused else "canonical_lora", _named(tuning, names, "Megatron-Bridge")


def _named(tuning: Tuning, names: Mapping[str, str], title: str) -> list[str]:
    """Return the words of a list as another program has them."""
    unknown = [word for word in tuning.lora_targets if word not in names]
    if unknown:
        raise FrameworkConfigError(
            f"emit: {title} has no layer for the lora target {unknown[0]!r}; it has those of {', '.join(names)}"
        )
    return [names[word] for word in tuning.lora_targets]


def take_tuning(
    raw: Mapping[str, Any], way: str, job: dict[str, Any], notes: list[str], warnings: list[str]
) -> None:
    """Fill a job's adapters from a trainer's keys; `way` is its own word for how it trains.

    Raises
    ------
    FrameworkConfigError
        If the rank is no whole number.
    """
    method = way.lower()
    if method in ("", "full", "none") or "lora_rank" in job:
        return
    if method not in _ADAPTED:
        warnings.append(f"{way}: has no price; priced as training of every parameter")
        return
    given = next((raw[key] for key in _RANK if raw.get(key) is not None), None)
    if given is None:
        notes.append("lora rank: 8, the default of these trainers")
    rank = 8 if given is None else given
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise FrameworkConfigError(f"{_RANK[0]}: expected a whole number, got {rank!r}")
    job["lora_rank"] = rank
    _take_targets(raw, job, notes, warnings)
    bits = raw.get("quantization_bit") or raw.get("quant_bits")
    if bits == 4 or raw.get("load_in_4bit") or (method == "qlora" and not raw.get("load_in_8bit")):
        job["base_dtype"] = "nf4"
    elif bits == 8 or raw.get("load_in_8bit"):
        job["base_dtype"] = "fp8"
        notes.append("a base in int8: priced as one in fp8, which is as wide")
    elif bits:
        warnings.append(f"quantization_bit: {bits} bits have no price; the base is priced in bf16")
    if method == "dora" or any(raw.get(key) for key in _DORA):
        job["lora_targets"] = ",".join(part for part in (job.get("lora_targets", ""), "magnitude") if part)
    if method == "rslora" or any(raw.get(key) for key in _RSLORA):
        notes.append("rslora: costs what LoRA does, its scale alone is another")


# Modules by the names that models of the hub have for them.
_HUB_NAMES = {
    "query_key_value": ("qkv",),
    "qkv_proj": ("qkv",),
    "wqkv": ("qkv",),
    "w_pack": ("qkv",),
    "c_attn": ("qkv",),
    "dense": ("o_proj",),
    "out_proj": ("o_proj",),
    "wo": ("o_proj",),
    "c_proj": ("o_proj", "down_proj"),
    "c_fc": ("up_proj",),
    "dense_h_to_4h": ("up_proj",),
    "dense_4h_to_h": ("down_proj",),
    "gate_up_proj": ("fc1",),
    "w1": ("gate_proj",),
    "w2": ("down_proj",),
    "w3": ("up_proj",),
    # Latent attention: its two steps of queries, and of keys and values.
    "q_a_proj": ("q_proj",),
    "q_b_proj": ("q_proj",),
    "kv_a_proj_with_mqa": ("k_proj", "v_proj"),
    "kv_b_proj": ("k_proj", "v_proj"),
    "in_proj": ("mixer",),
    "x_proj": ("mixer",),
    "dt_proj": ("mixer",),
}
_TOWERS = ("vision", "visual", "audio", "projector", "adapter.")
_MIXERS = ("linear_attn", "mamba", "conv.")


def _projections(word: str) -> list[str]:
    r"""Return the layers that a target names: by itself, by its place in the model, or by a pattern of places.

    >>> _projections("self_attn.q_proj"), _projections(r"model.layers.[\d]+.(mlp|self_attn).(up|q)_proj")
    (['q_proj'], ['up_proj', 'q_proj'])
    """
    lower = word.lower()
    if any(tower in lower for tower in _TOWERS) and "language_model" not in lower:
        return []
    if _is_target(word):
        return [word]
    if any(mixer in lower for mixer in _MIXERS):
        return ["mixer"]
    last = lower.rsplit(".", 1)[-1]
    if last in _HUB_NAMES:
        return list(_HUB_NAMES[last])
    # PEFT matches a text as a regular expression; those in use list the projections.
    found = [f"{name}_proj" for group in re.findall(r"\(([\w|]+)\)_proj", word) for name in group.split("|")]
    return found + re.findall(r"(?<![\w|)])[a-z]+_proj(?!\w)", word)


def _is_target(word: str) -> bool:
    """Tell whether a job has such a target."""
    try:
        make_tuning(1, word)
    except CostModelError:
        return False
    return True


def _take_targets(raw: Mapping[str, Any], job: dict[str, Any], notes: list[str], warnings: list[str]) -> None:
    """Read which layers get adapters; what no layer of ours is called is said."""
    if raw.get("lora_target_linear"):
        return
    named = next((raw[key] for key in _TARGETS if raw.get(key)), None)
    if named is None:
        notes.append("lora targets: not said, priced on every linear layer")
        return
    words = re.split(r"[\s,]+", named.strip()) if isinstance(named, str) else [str(word) for word in named]
    if {word.lower() for word in words} & _ALL:
        return
    known: list[str] = []
    for word in words:
        found = [each for each in _projections(word) if _is_target(each)]
        if not found:
            warnings.append(f"lora target {word}: no layer is known by that name; it gets no adapter here")
        elif re.search(r"layers\\?\.\(?\d", word):
            warnings.append(f"lora target {word}: of some layers; priced as of all")
        known += [each for each in found if each not in known]
    if known:
        job["lora_targets"] = ",".join(known)
    else:
        warnings.append("lora targets: none is known; priced on every linear layer")
