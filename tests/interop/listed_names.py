"""Names of other programs' flags and keys that our readers and writers list, by framework."""

from __future__ import annotations

import re
from pathlib import Path

from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.interop import read_deepspeed, read_trainer
from costmodel.interop.assertions.megatron_arguments import _NUMBERS, _SWITCHES, _WORDED
from costmodel.interop.bridge_keys import KEYS
from costmodel.interop.megatron_flags import OTHER_MIXERS, UNPRICED

INTEROP = Path(read_trainer.__file__).parent
FLAG = re.compile(r"(?<![\w-])--([a-z][A-Za-z0-9-]*[a-z0-9])")
KEYWORD = re.compile(r'"([a-z][a-z0-9_]+)":')


def _text(name: str) -> str:
    return (INTEROP / name).read_text(encoding="utf-8")


def megatron() -> set[str]:
    """Return the flags that readers and writers of Megatron's arguments name, ours among none of them."""
    files = ("megatron.py", "megatron_model.py", "megatron_mixers.py", "megatron_job.py")
    quoted = {flag for name in files for flag in re.findall(r'"--([a-z][A-Za-z0-9-]+)"', _text(name))}
    record = FRAMEWORKS["megatron"]
    words = " ".join((*record.precisions.values(), *record.optimizers.values()))
    listed = {flag.removeprefix("--") for flag in (*UNPRICED, *OTHER_MIXERS)}
    return quoted | set(FLAG.findall(words)) | listed | {*_NUMBERS, *_SWITCHES, *_WORDED}


def written() -> set[str]:
    """Return the flags that are written for Megatron-LM."""
    found = set(re.findall(r'"--([a-z][A-Za-z0-9-]+)"', _text("megatron.py")))
    for name, start, end in (
        ("megatron_model.py", "def model_flags", "# Words for"),
        ("megatron_mixers.py", "def mixer_flags", "def hybrid_pattern"),
    ):
        text = _text(name)
        found |= set(re.findall(r'"--([a-z][A-Za-z0-9-]+)"', text[text.index(start) : text.index(end)]))
    record = FRAMEWORKS["megatron"]
    return found | set(FLAG.findall(" ".join((*record.precisions.values(), *record.optimizers.values()))))


def bridge() -> set[str]:
    """Return the keys of Megatron-Bridge, without the part that they stand in."""
    return {name.rsplit(".", 1)[-1] for key in KEYS for name in key.keys}


def deepspeed() -> set[str]:
    """Return the keys of the first level, of ZeRO and of what has no price."""
    return {*read_deepspeed.KEYS, *read_deepspeed._HARMLESS_ZERO, *read_deepspeed._UNPRICED}


def accelerate() -> set[str]:
    """Return the keys that are written for Accelerate."""
    text = _text("trainers.py")
    return set(KEYWORD.findall(text[text.index("def emit_accelerate") : text.index("script = {")]))


def axolotl() -> set[str]:
    """Return the keys that are written for Axolotl."""
    text = _text("trainers.py")
    body = text[text.index("def emit_axolotl") : text.index("def _text(")]
    keys = text[text.index("def _adapter_keys") : text.index("def _recomputes")]
    return set(KEYWORD.findall(body + keys)) - {"nf4", "fp8"}


LISTED = {
    "megatron": megatron,
    "megatron-bridge": bridge,
    "deepspeed": deepspeed,
    "accelerate": accelerate,
    "axolotl": axolotl,
}
