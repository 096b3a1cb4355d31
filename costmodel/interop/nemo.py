"""NeMo / Megatron-Bridge overrides: ``key=value`` lines for a recipe's command line, both ways.

Keys of ``ConfigContainer`` in NVIDIA-NeMo/Megatron-Bridge; which key says what a flag of Megatron-LM says stands below
``bridge`` in ``keys/megatron.yaml``. Overrides stand over a recipe, so that what a flag leaves out is said too. The model
is that of the recipe which they override, so that it has to be given beside them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from costmodel.describe.frameworks import FRAMEWORKS, launched_by
from costmodel.interop.framework import (
    FrameworkConfigError,
    Imported,
    base_recipe,
    comments_of,
    counts_of,
    model_reference,
    own_head,
)
from costmodel.interop.keys import Flags, unknown_keys, words_of
from costmodel.interop.megatron import layout_arguments, optimizer_flags, recipe_arguments
from costmodel.interop.megatron_job import MEGATRON, read_flags
from costmodel.interop.text_file import TextFile
from costmodel.interop.tuning import bridge_modules, take_bridge_tuning
from costmodel.physics.pipeline.chunks import parse_chunks

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job

_RECORD = FRAMEWORKS["nemo"]
_KEYS: Mapping[str, list[str]] = MEGATRON.more["bridge"]["keys"]
"""The value where nothing is said, and Megatron-Bridge's keys, by our names for Megatron-LM's flags."""
_NAME_OF = {key: name for name, (_, *keys) in _KEYS.items() for key in keys}
_PRECISIONS: Mapping[str, str] = MEGATRON.more["bridge"]["precisions"]
_REDUCES = "mixed_precision.grad_reduce_in_fp32"
_REDUCES_IN_RECORD = re.compile(r"\{.*\bgrad_reduce_in_fp32:(true|false)\b.*\}")
_LINE = re.compile(r"\+?([a-z][\w.]*\.[\w.]+|mixed_precision|comm_overlap)=(.*)")


def emit_nemo(job: Job) -> str:
    """Return the overrides of one layout, a line each."""
    counts = counts_of(job)
    arguments = {**layout_arguments(job, counts), **recipe_arguments(job, counts)}
    values = _overrides_of(arguments, optimizer_flags(job))
    if job.tuning.lora_rank:
        scheme, modules = bridge_modules(job.tuning)
        # Over those of the recipe's own scheme of adapters.
        values |= {"peft.dim": str(job.tuning.lora_rank), "peft.target_modules": f"[{','.join(modules)}]"}
    named = _RECORD.precisions[job.precision.name]
    lines = [*(f"{key}={value}" for key, value in values.items()), f"mixed_precision={named}"]
    if values["ddp.grad_reduce_in_fp32"] == "false" and named in _PRECISIONS:
        # A precision's name has gradients reduced in fp32, over what ``ddp`` says (megatron-bridge 0.3.1,
        # training/config.py:1864): a second line puts all that it means in its place, with that changed.
        fields = f",{_PRECISIONS[named]}" if _PRECISIONS[named] else ""
        lines.append(f"mixed_precision={{{MEGATRON.more['bridge']['record']}{fields}}}")
    head = (
        f"# Megatron-Bridge overrides: {model_reference(job.model)} on {counts['gpus']} GPUs of "
        f"{job.cluster.name}, recipe {job.recipe.name}"
    )
    text = "\n".join([head, *lines]) + "\n"
    back = import_nemo(text, model=job.model, recipe=base_recipe(job, _RECORD.recipe))
    notes = [f"# keys of {launched_by('nemo', job.recipe.launches).release}"]
    notes += comments_of(_RECORD, job, back, "key")
    if job.tuning.lora_rank:
        notes.append(f"# left to you: a finetune recipe with peft_scheme={scheme}")
    return "\n".join([head, *notes, *lines]) + "\n"


def _overrides_of(arguments: Mapping[str, Any], optimizer: list[str]) -> dict[str, str]:
    """Return keys with their values for a layout and switches by our names; those that have no key are left out."""
    words = Flags([*MEGATRON.flags(arguments), *optimizer]).raw
    found: dict[str, str] = {}
    for name, (absent, *keys) in _KEYS.items():
        flag = MEGATRON.key(name)
        if ("moe" in flag or "expert" in flag) and "ep" not in arguments:
            continue
        given_words = words.get(flag)
        if given_words is None:
            value = absent
        elif MEGATRON.fields[name].kind == "words":
            value = f"[{','.join(given_words)}]"
        else:
            value = given_words[0] if given_words else _contrary(absent)
        if value:
            found |= dict.fromkeys(keys, value)
    stages, chunks = int(found["model.pipeline_model_parallel_size"]), arguments["pipeline_layout"]
    virtual = bool(arguments["vp"]) or (bool(chunks) and len(parse_chunks(chunks)) > stages)
    # Megatron-Core refuses overlapped messages outside the interleaved schedule (pipeline_parallel/schedules.py:2004).
    overlapped = virtual and not arguments["no_p2p_overlap"]
    return {
        **found,
        "model.overlap_p2p_comm": str(overlapped).lower(),
        "model.batch_p2p_comm": str(not overlapped).lower(),
        "comm_overlap": "null",
    }


def _contrary(word: str) -> str:
    return "false" if word == "true" else "true"


def read(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read a file of overrides."""
    return import_nemo(file.text, **given)


def import_nemo(text: str, **given: Any) -> Imported:
    """Read overrides; `given` are keywords of a job, ``model`` among them unless the first comment names one."""
    options = {**own_head(text), **given}
    overrides = _read_lines(text)
    adapters = {
        key: overrides.pop(f"peft.{key}") for key in ("dim", "target_modules") if f"peft.{key}" in overrides
    }
    flags, left = _flags_of(overrides)
    if options.get("gpus"):
        flags.set("world_size", options["gpus"])
    draft = read_flags(flags, {"recipe": _RECORD.recipe, **options})
    draft.ignored += left
    if adapters:
        rank = adapters.get("dim", "32")
        modules = [word.strip("'\" ") for word in adapters.get("target_modules", "").strip("[]").split(",")]
        take_bridge_tuning(
            {"dim": int(rank) if rank.isdigit() else rank, "target_modules": [*filter(None, modules)]}, draft
        )
    return draft.answer()


def _read_lines(text: str) -> dict[str, str]:
    """Return the keys and values of a text of overrides; comments are left out."""
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


def _flags_of(overrides: Mapping[str, str]) -> tuple[Flags, tuple[str, ...]]:
    """Return overrides as flags of Megatron-LM, and the keys that are none of them."""
    words: dict[str, Any] = {}
    for key, value in overrides.items():
        name = _NAME_OF.get(key)
        if name is None:
            continue
        flag, kind = MEGATRON.key(name), MEGATRON.fields[name].kind
        if kind == "switch" and value in ("true", "false"):
            words[flag] = value == _contrary(_KEYS[name][0])
        elif value not in ("null", "[]", "none"):
            words[flag] = value.strip("[]").split(",") if kind == "words" else value
    virtual = overrides.get("model.virtual_pipeline_model_parallel_size", "null") != "null"
    if overrides.get("model.overlap_p2p_comm") == "false" and virtual:
        words["--no-overlap-p2p-communication"] = True
    named = overrides.get("mixed_precision")
    # What a precision's name says of it goes over `ddp`; that of fp16 reduces in fp16.
    reduces = overrides.get(_REDUCES, "true" if named in _PRECISIONS else "")
    if reduces:
        words["--grad-reduce-in-bf16"] = reduces == "false"
    known = {theirs: ours for ours, theirs in _RECORD.precisions.items()}
    if named is not None and named not in known:
        raise FrameworkConfigError(
            f"megatron-bridge: mixed_precision: expected one of {', '.join(known)}, got {named!r}"
        )
    precision = FRAMEWORKS["megatron"].precisions[known[named]].split() if named is not None else []
    flags = Flags([*(word for flag, value in words.items() for word in words_of(flag, value)), *precision])
    follow = MEGATRON.more["bridge"]["follow"].split()
    left = {key: value for key, value in overrides.items() if key not in _NAME_OF and key not in follow}
    return flags, unknown_keys(left)
