"""Optimizers by the names that other programs have for them."""

from __future__ import annotations

import re
from typing import Any

from costmodel.describe.optimizers import OPTIMIZERS

# Without case, dashes, underscores and what says who wrote the kernel.
_OURS = {
    "adam": "adamw",
    "adamw": "adamw",
    "adam8bit": "adamw-8bit",
    "adamw8bit": "adamw-8bit",
    "pagedadam8bit": "paged-adamw-8bit",
    "pagedadamw8bit": "paged-adamw-8bit",
    "adafactor": "adafactor",
    "lion": "lion",
    "muon": "muon",
    "distmuon": "muon",
    "sgdmomentum": "sgd-momentum",
    "shampoo": "shampoo",
    "distributedshampoo": "shampoo",
    "soap": "soap",
}
_MAKERS = re.compile(r"torch|fused|apex|bnb|hf|xla|foreach|npu|deepspeed|cpu|32bit|config$")


def optimizer_of(name: str, *, sgd: str) -> str | None:
    """Return our name of an optimizer, none where there is none like it.

    Parameters
    ----------
    name : str
        As another program has it.
    sgd : str
        What plain SGD is there: ``sgd``, or ``sgd-momentum``.

    Examples
    --------
    >>> optimizer_of("adamw_torch_fused", sgd="sgd"), optimizer_of("paged_adamw_8bit", sgd="sgd")
    ('adamw', 'paged-adamw-8bit')
    >>> optimizer_of("OneBitAdam", sgd="sgd") is None
    True
    """
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    if plain.startswith("paged") and "8bit" not in plain:
        return None
    short = _MAKERS.sub("", plain)
    found = sgd if short == "sgd" else _OURS.get(short)
    assert found is None or found in OPTIMIZERS
    return found


def settle_offload(job: dict[str, Any], warnings: list[str]) -> None:
    """Price Adam in place of an optimizer that no host steps, where the job offloads it, and say so."""
    name = job.get("optimizer")
    switches = job.get("switches") or {}
    if name and switches.get("offload_optimizer") and not OPTIMIZERS[name].on_host:
        del job["optimizer"]
        warnings.append(f"optimizer {name}: no host steps it; its offloaded step is priced as Adam's")


def take_optimizer(
    name: str, job: dict[str, Any], facts: dict[str, Any], warnings: list[str], *, sgd: str = "sgd"
) -> None:
    """Put an optimizer into a job, or warn that it is priced as Adam."""
    ours = optimizer_of(name, sgd=sgd)
    if ours == "adamw":
        return
    facts["optimizer"] = name
    if ours is None:
        warnings.append(f"optimizer {name}: priced as Adam, with its states, its traffic and its time")
    else:
        job["optimizer"] = ours
