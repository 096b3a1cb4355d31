"""What other programs' files say of adapters and frozen parts, as fields of a job.

Keys and names of layers stand in ``keys/trainers.yaml``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from costmodel.base.errors import CostModelError
from costmodel.describe.jobs.tuning import Tuning, make_tuning
from costmodel.interop.framework import FrameworkConfigError
from costmodel.interop.keys import Values, key_table

_KEYS = key_table("trainers")
_ALL = {"all", "all-linear", "all_linear"}
_ADAPTED = ("lora", "qlora", "dora", "rslora")

_PEFT_NAMES = {word: f"{word}_proj" for word in ("q", "k", "v", "o", "gate", "up", "down")}
_FUSED_NAMES: Mapping[str, str] = _KEYS.more["bridge_modules"]["fused"]
_CANONICAL_NAMES: Mapping[str, str] = _KEYS.more["bridge_modules"]["canonical"]


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
        _CANONICAL_NAMES.values() if "canonical" in scheme else _FUSED_NAMES.values()
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
    fused = not set(tuning.lora_targets) - set(_FUSED_NAMES)
    names = _FUSED_NAMES if fused else _CANONICAL_NAMES
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


def take_tuning(said: Values, way: str, job: dict[str, Any], notes: list[str], warnings: list[str]) -> None:
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
    rank = 8 if said["lora_rank"] is None else said["lora_rank"]
    if said["lora_rank"] is None:
        notes.append("lora rank: 8, the default of these trainers")
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise said.error(said.key("lora_rank"), "a whole number above 0", rank)
    job["lora_rank"] = rank
    _take_targets(said, job, notes, warnings)
    bits = said["bits"]
    if bits == 4 or said["in_4bit"] or (method == "qlora" and not said["in_8bit"]):
        job["base_dtype"] = "nf4"
    elif bits == 8 or said["in_8bit"]:
        job["base_dtype"] = "fp8"
        notes.append("a base in int8: priced as one in fp8, which is as wide")
    elif bits:
        warnings.append(f"quantization_bit: {bits} bits have no price; the base is priced in bf16")
    if method == "dora" or said["dora"]:
        job["lora_targets"] = ",".join(part for part in (job.get("lora_targets", ""), "magnitude") if part)
    if method == "rslora" or said["rslora"]:
        notes.append("rslora: costs what LoRA does, its scale alone is another")


_HUB_NAMES: Mapping[str, list[str]] = _KEYS.more["modules"]
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


def _take_targets(said: Values, job: dict[str, Any], notes: list[str], warnings: list[str]) -> None:
    """Read which layers get adapters; what no layer of ours is called is said."""
    if said["lora_everywhere"]:
        return
    named = said["lora_targets"]
    if not named:
        notes.append("lora targets: not said, priced on every linear layer")
        return
    if not isinstance(named, (str, list)):
        raise said.error(said.key("lora_targets"), "names of layers", named)
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
