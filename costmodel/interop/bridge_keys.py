"""Megatron's flags as keys of Megatron-Bridge's `ConfigContainer`, both ways.

Which key says what a flag says stands in ``keys/megatron.yaml``. Overrides stand over a recipe, so that what a flag
leaves out is said too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.interop.framework import FrameworkConfigError
from costmodel.interop.keys import unknown_keys
from costmodel.interop.megatron_text import MEGATRON
from costmodel.physics.pipeline.chunks import parse_chunks

KEYS: Mapping[str, Sequence[str]] = MEGATRON.more["bridge"]
"""The value where nothing is said, and Megatron-Bridge's keys, by our names for Megatron-LM's flags."""
_FLAGS = {name: MEGATRON.key(name) for name in KEYS}
_NAME_OF = {key: name for name, (_, *keys) in KEYS.items() for key in keys}
_LISTS = ("recompute_modules", "cuda_graph_scope", "cp_sizes")
_REDUCES = "mixed_precision.grad_reduce_in_fp32"
# Follow from other keys, or switch the recipe's own bundle of overlaps off, so that these hold.
_FOLLOWS = frozenset(
    {"comm_overlap", "model.overlap_p2p_comm", "model.batch_p2p_comm", "mixed_precision", _REDUCES}
)
_PRECISION_FIELDS: Mapping[str, str] = {
    "bf16_mixed": "",
    "bf16_with_fp8_delayed_scaling_mixed": "fp8:hybrid,fp8_recipe:delayed,fp8_margin:0,fp8_amax_history_len:1024,"
    "fp8_amax_compute_algo:max,fp8_param_gather:true",
    "bf16_with_fp8_current_scaling_mixed": "fp8:hybrid,fp8_recipe:tensorwise,first_last_layers_bf16:true,"
    "num_layers_at_start_in_bf16:1,num_layers_at_end_in_bf16:1,fp8_param_gather:true",
    "bf16_with_fp8_subchannel_scaling_mixed": "fp8:hybrid,fp8_recipe:blockwise,fp8_param_gather:false",
    "bf16_with_mxfp8_mixed": "fp8:e4m3,fp8_recipe:mxfp8,fp8_param_gather:true,reuse_grad_buf_for_mxfp8_param_ag:true",
    "bf16_with_nvfp4_mixed": "fp4:e2m1,fp4_recipe:nvfp4,fp8_param_gather:false",
}
"""What a precision's name sets beside bf16 parameters and gradients reduced in fp32 (training/mixed_precision.py)."""
_RECORD_OF_PRECISION = (
    "{{_target_:megatron.bridge.training.mixed_precision.MixedPrecisionConfig,bf16:true,"
    "params_dtype:{{_target_:torch.bfloat16,_call_:false}},pipeline_dtype:{{_target_:torch.bfloat16,_call_:false}},"
    "autocast_enabled:false,grad_reduce_in_fp32:false{fields}}}"
)
_REDUCES_IN_RECORD = re.compile(r"\{.*\bgrad_reduce_in_fp32:(true|false)\b.*\}")
_LINE = re.compile(r"\+?([a-z][\w.]*\.[\w.]+|mixed_precision|comm_overlap)=(.*)")


def overrides_of(flags: Sequence[str]) -> dict[str, str]:
    """Return keys with their values for flags of a layout and of switches; flags that have no key are left out."""
    given: dict[str, list[str]] = {}
    for part in flags:
        if part.startswith("--"):
            given[part] = []
        else:
            given[next(reversed(given))].append(part)
    found: dict[str, str] = {}
    experts = "--expert-model-parallel-size" in given
    for name, (absent, *keys) in KEYS.items():
        flag = _FLAGS[name]
        if not experts and ("moe" in flag or "expert" in flag):
            continue
        if flag not in given:
            value = absent
        elif name in _LISTS:
            value = f"[{','.join(given[flag])}]"
        else:
            value = given[flag][0] if given[flag] else _contrary(absent)
        if value:
            found |= dict.fromkeys(keys, value)
    virtual = found["model.virtual_pipeline_model_parallel_size"] != "null"
    layout, stages = (
        found["model.pipeline_model_parallel_layout"],
        int(found["model.pipeline_model_parallel_size"]),
    )
    virtual = virtual or (layout != "null" and len(parse_chunks(layout)) > stages)
    overlapped = virtual and "--no-overlap-p2p-communication" not in given
    # Megatron-Core refuses overlapped messages outside the interleaved schedule (pipeline_parallel/schedules.py:2004).
    return {
        **found,
        "model.overlap_p2p_comm": str(overlapped).lower(),
        "model.batch_p2p_comm": str(not overlapped).lower(),
        "comm_overlap": "null",
    }


def _contrary(word: str) -> str:
    return "false" if word == "true" else "true"


def read_overrides(text: str) -> dict[str, str]:
    """Return the keys and values of a text of overrides; comments are left out.

    Raises
    ------
    FrameworkConfigError
        If a line is none.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        plain = line.strip().removesuffix("\\").strip()
        if not plain or plain.startswith("#"):
            continue
        match = _LINE.fullmatch(plain)
        if match is None:
            raise FrameworkConfigError(f"megatron-bridge: expected key=value, got {plain[:60]!r}")
        key, value = match[1], match[2].strip("'\"")
        record = _REDUCES_IN_RECORD.fullmatch(value) if key == "mixed_precision" else None
        if record and key in found:
            key, value = _REDUCES, record[1]  # the whole precision again, that of the name but for this
        found[key] = value
    return found


def precision_lines(named: str, *, reduces_in_bf16: bool) -> list[str]:
    """Return the overrides of a precision.

    Its name alone has gradients reduced in fp32, over what ``ddp`` says (megatron-bridge 0.3.1, training/config.py:1864).
    The second line replaces the name, whatever the recipe had there, by all that it means, with that changed.
    """
    lines = [f"mixed_precision={named}"]
    if reduces_in_bf16 and named in _PRECISION_FIELDS:
        fields = f",{_PRECISION_FIELDS[named]}" if _PRECISION_FIELDS[named] else ""
        lines.append(f"mixed_precision={_RECORD_OF_PRECISION.format(fields=fields)}")
    return lines


def flags_of(overrides: Mapping[str, str]) -> tuple[list[str], tuple[str, ...]]:
    """Return overrides as flags of Megatron-LM, and the keys that are none of them.

    Raises
    ------
    FrameworkConfigError
        If a precision is unknown, or a key that changes what is priced.
    """
    words: dict[str, list[str]] = {}
    left = []
    for key, value in overrides.items():
        name = _NAME_OF.get(key)
        if name is None:
            left += [] if key in _FOLLOWS else [key]
        elif MEGATRON.fields[name].kind == "switch" and value in ("true", "false"):
            words |= {_FLAGS[name]: []} if value == _contrary(KEYS[name][0]) else {}
        elif value not in ("null", "[]", "none"):
            words[_FLAGS[name]] = value.strip("[]").split(",") if name in _LISTS else [value]
    if (
        overrides.get("model.overlap_p2p_comm") == "false"
        and overrides.get("model.virtual_pipeline_model_parallel_size", "null") != "null"
    ):
        words["--no-overlap-p2p-communication"] = []
    # What a precision's name says of it goes over `ddp`; that of fp16 reduces in fp16.
    reduces = overrides.get(_REDUCES, "true" if overrides.get("mixed_precision") in _PRECISION_FIELDS else "")
    if reduces == "true":
        words.pop("--grad-reduce-in-bf16", None)
    elif reduces == "false":
        words["--grad-reduce-in-bf16"] = []
    flags = [part for flag, values in words.items() for part in (flag, *values)]
    return [*flags, *_precision_flags(overrides.get("mixed_precision"))], unknown_keys(
        {key: overrides[key] for key in left}
    )


def _precision_flags(named: str | None) -> list[str]:
    """Return the flags that a mixed precision's name means."""
    names = {word: ours for ours, word in FRAMEWORKS["nemo"].precisions.items()}
    if named is None:
        return []
    if named not in names:
        known = ", ".join(names)
        raise FrameworkConfigError(
            f"megatron-bridge: mixed_precision: expected one of {known}, got {named!r}"
        )
    return FRAMEWORKS["megatron"].precisions[names[named]].split()
