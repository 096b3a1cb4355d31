"""What other programs' files say of adapters and frozen parts, as fields of a job.

Keys of hiyouga/LLaMA-Factory (``src/llamafactory/hparams/finetuning_args.py``), axolotl-ai-cloud/axolotl
(``src/axolotl/utils/schemas/peft.py``), modelscope/ms-swift (``swift/arguments``) and huggingface/peft
(``adapter_config.json``, ``src/peft/tuners/lora/config.py``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from costmodel.base.errors import CostModelError
from costmodel.describe.jobs.tuning import make_tuning
from costmodel.interop.framework import FrameworkConfigError

_RANK = ("lora_rank", "lora_r", "r")
_TARGETS = ("lora_target", "lora_target_modules", "target_modules")
_ALL = {"all", "all-linear", "all_linear"}
_ADAPTED = ("lora", "qlora", "dora", "rslora")

KEYS = frozenset(
    (
        *_RANK,
        *_TARGETS,
        "lora_target_linear",
        "quantization_bit",
        "quant_bits",
        "load_in_4bit",
        "load_in_8bit",
    )
)
"""Keys that are read here."""


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
    if method in ("dora", "rslora"):
        warnings.append(f"{way}: priced as LoRA, without what it adds")


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
    known = []
    for word in words:
        try:
            make_tuning(1, word)
        except CostModelError:
            warnings.append(f"lora target {word}: no layer is known by that name; it gets no adapter here")
        else:
            known.append(word)
    if known:
        job["lora_targets"] = ",".join(known)
    else:
        warnings.append("lora targets: none is known; priced on every linear layer")
