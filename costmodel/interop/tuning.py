"""What other programs' files say of adapters and frozen parts, as fields of a job.

Keys and names of layers stand in ``keys/trainers.yaml``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from costmodel.base.errors import CostModelError, shown
from costmodel.describe.jobs.tuning import Tuning, make_tuning
from costmodel.interop.draft import Draft
from costmodel.interop.framework import FrameworkConfigError
from costmodel.interop.keys import Values, key_table

_KEYS = key_table("trainers")

_PEFT_NAMES = {word: f"{word}_proj" for word in ("q", "k", "v", "o", "gate", "up", "down")}
_FUSED_NAMES: Mapping[str, str] = _KEYS.more["bridge_modules"]["fused"]
_CANONICAL_NAMES: Mapping[str, str] = _KEYS.more["bridge_modules"]["canonical"]


def take_bridge_tuning(peft: Mapping[str, Any], draft: Draft) -> None:
    """Read Megatron-Bridge's table of adapters."""
    if not peft or draft["lora_rank"]:
        return
    scheme = str(peft.get("_target_", "lora")).rsplit(".", 1)[-1].lower()
    rank = peft.get("dim", 32)
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise FrameworkConfigError(f"peft.dim: expected a whole number, got {rank!r}")
    words = peft.get("target_modules") or list(
        _CANONICAL_NAMES.values() if "canonical" in scheme else _FUSED_NAMES.values()
    )
    targets = [str(word).rsplit(".", 1)[-1] for word in words]
    draft.put(lora_rank=rank, lora_targets=",".join([*targets, *(["magnitude"] if "dora" in scheme else [])]))


def peft_modules(tuning: Tuning, title: str) -> list[str]:
    """Return the layers with adapters as PEFT names them, none for every linear layer."""
    plain = tuple(word for word in tuning.lora_targets if word != "magnitude")
    if plain == make_tuning(tuning.lora_rank).lora_targets:
        return []
    return _named(dataclasses.replace(tuning, lora_targets=plain), _PEFT_NAMES, title)


def bridge_modules(tuning: Tuning) -> tuple[str, list[str]]:
    """Return Megatron-Bridge's scheme of adapters, and the layers as it names them."""
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


def take_tuning(config: Values, way: str, draft: Draft) -> None:
    """Read adapters of a trainer's keys; `way` is its own word for how it trains."""
    method = way.lower()
    if method in ("", "full", "none") or draft["lora_rank"]:
        return
    if method not in ("lora", "qlora", "dora", "rslora"):
        key = config.key("tuner") if config["tuner"] == way else ""
        raise FrameworkConfigError(
            f"{key and key + ': '}{shown(way)} is no way of training that has a price; expected full, lora, qlora, dora or rslora"
        )
    rank = config["lora_rank"]
    if rank is None:
        rank = 8
        draft.notes.append("lora rank: 8, the default of these trainers")
    targets = _targets(config, draft)
    bits = config["bits"] or _bits_of(config, draft)
    if bits == 4 or config["in_4bit"] or (method == "qlora" and not config["in_8bit"]):
        draft.put(base_dtype="nf4")
    elif bits == 8 or config["in_8bit"]:
        draft.put(base_dtype="fp8")
        draft.notes.append("a base in int8: priced as one in fp8, which is as wide")
    elif bits:
        draft.warnings.append(f"quantization_bit: {bits} bits have no price; the base is priced in bf16")
    if method == "dora" or config["dora"]:
        targets.append("magnitude")
    if method == "rslora" or config["rslora"]:
        draft.notes.append("rslora: costs what LoRA does, its scale alone is another")
    draft.put(lora_rank=rank, lora_targets=",".join(targets) or None)


_QUANTIZED = re.compile(
    r"[-_.](?:(awq|gptq|4bit|int4|w4a16)|(8bit|int8|w8a8)|(aqlm|[123]bit))(?![a-z])", re.I
)
"""What names of checkpoints say of their weights."""


def _bits_of(config: Values, draft: Draft) -> int | None:
    """Return the bits of a base whose checkpoint is quantized by its name, as far as they have a price."""
    named = _QUANTIZED.search(str(config["model"] or ""))
    if named and named[3] and draft["base_dtype"] is None:
        raise FrameworkConfigError(
            f"{config.key('model')}: {shown(config['model'])} has weights of less than 4 bits, which have no price; "
            "give base_dtype"
        )
    bits = 4 if config["gptq"] or (named and named[1]) else 8 if named and named[2] else None
    if bits:
        draft.notes.append(f"base: {bits} bits by the name of its checkpoint")
    return bits


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


def _targets(config: Values, draft: Draft) -> list[str]:
    """Return the layers that get adapters, none for all; what no layer of ours is called is said."""
    named = config["lora_targets"]
    if config["lora_everywhere"]:
        return []
    if not named:
        draft.notes.append("lora targets: not said, priced on every linear layer")
        return []
    if not isinstance(named, (str, list)):
        raise config.error(config.key("lora_targets"), "names of layers", named)
    words = re.split(r"[\s,]+", named.strip()) if isinstance(named, str) else [str(word) for word in named]
    if {word.lower() for word in words} & {"all", "all-linear", "all_linear"}:
        return []
    known: dict[str, None] = {}
    for word in words:
        found = [layer for layer in _projections(word) if _is_target(layer)]
        if not found:
            draft.warnings.append(
                f"lora target {word}: no layer is known by that name; it gets no adapter here"
            )
        elif re.search(r"layers\\?\.\(?\d", word):
            draft.warnings.append(f"lora target {word}: of some layers; priced as of all")
        known |= dict.fromkeys(found)
    if not known:
        draft.warnings.append("lora targets: none is known; priced on every linear layer")
    return [*known]
