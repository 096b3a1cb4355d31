"""Names of other programs' flags and keys that our readers and writers list, by framework."""

from __future__ import annotations

from costmodel.interop.keys import key_table


def _todays(table: str) -> set[str]:
    """Return the keys of today that a table uses, and those that have no price."""
    found = key_table(table)
    return {*(field.keys[0] for field in found.fields.values()), *found.unpriced}


def megatron() -> set[str]:
    """Return the flags of Megatron-LM."""
    return {flag.removeprefix("--") for flag in _todays("megatron")}


def bridge() -> set[str]:
    """Return the keys of Megatron-Bridge, without the part that they stand in."""
    return {
        key.rsplit(".", 1)[-1] for _, *keys in key_table("megatron").more["bridge"].values() for key in keys
    }


def deepspeed() -> set[str]:
    """Return the keys of the first level, of ZeRO and of what has no price."""
    named = {key for key in _todays("deepspeed") if not key.startswith("comment.")}
    return {key.split(".")[1] if key.startswith("zero_optimization.") else key.split(".")[0] for key in named}


def accelerate() -> set[str]:
    """Return the keys of Accelerate's own tables."""
    return {
        key.rpartition(".")[2]
        for key in _todays("accelerate")
        if not key.startswith(("deepspeed", "megatron"))
    }


LISTED = {"megatron": megatron, "megatron-bridge": bridge, "deepspeed": deepspeed, "accelerate": accelerate}
