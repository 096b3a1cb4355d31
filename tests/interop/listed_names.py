"""Names of other programs' flags and keys that our readers and writers list, by framework."""

from __future__ import annotations

import re
from pathlib import Path

from costmodel.interop import read_deepspeed, read_trainer
from costmodel.interop.keys import key_table

INTEROP = Path(read_trainer.__file__).parent
KEYWORD = re.compile(r'"([a-z][a-z0-9_]+)":')


def _text(name: str) -> str:
    return (INTEROP / name).read_text(encoding="utf-8")


def megatron() -> set[str]:
    """Return the flags of today that are read and written, and those that have no price."""
    table = key_table("megatron")
    flags = {*(field.keys[0] for field in table.fields.values()), *table.unpriced}
    return {flag.removeprefix("--") for flag in flags}


def bridge() -> set[str]:
    """Return the keys of Megatron-Bridge, without the part that they stand in."""
    return {
        key.rsplit(".", 1)[-1] for _, *keys in key_table("megatron").more["bridge"].values() for key in keys
    }


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
