"""A job while a file of another program is read: fields, notes and warnings, and the names that optimizers have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from costmodel.base.errors import choices_hint, shown
from costmodel.describe.jobs.fields import REQUIRED
from costmodel.describe.optimizers import OPTIMIZERS
from costmodel.interop.framework import FrameworkConfigError, Imported, fields_of, tokens_of
from costmodel.interop.keys import Values

_OPTIMIZERS = {name.replace("-", ""): name for name in OPTIMIZERS} | {
    "adam": "adamw",
    "lionw": "lion",
    "adam8bit": "adamw-8bit",
    "pagedadam": "adamw",
    "pagedadamw": "adamw",
    "pagedadam8bit": "paged-adamw-8bit",
}
"""Optimizers without case, dashes, underscores and what says who wrote the kernel."""
_COMPRESSED = ("onebitadam", "zerooneadam")
"""Adam whose messages are compressed."""
_MAKERS = re.compile(
    r"torch|fused|apex|bnb|hf|xla|foreach|npu|deepspeed|cpu|32bit|config$|^(?:decoupled|dist(?:ributed)?|hybrid|megatron)|pax$"
)


ALL_BF16 = {
    "param_dtype": "bf16",
    "grad_accum_dtype": "bf16",
    "grad_reduce_dtype": "bf16",
    "master_weights_bytes": 0.0,
    "moments_bytes": 4.0,
}
"""Switches where parameters are bf16 without fp32 copies: gradients and moments have their dtype."""


def optimizer_of(name: str, *, sgd: str = "sgd") -> str | None:
    """Return our name of an optimizer, none where there is none like it; `sgd` is what plain SGD is there.

    >>> optimizer_of("adamw_torch_fused"), optimizer_of("paged_adamw_8bit"), optimizer_of("OneBitAdam")
    ('adamw', 'paged-adamw-8bit', None)
    """
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    short = _MAKERS.sub("", plain)
    return sgd if short == "sgd" else _OPTIMIZERS.get(short)


class Draft:
    """A job while it is read: what is given beside the file stands, then what was said of it first.

    Keys of the file that nobody knows, and those without a price, are named whatever its reader does.
    """

    def __init__(self, given: Mapping[str, Any], config: Values | None = None) -> None:
        self.job = {name: value for name, value in fields_of(given).items() if value is not None}
        self.notes: list[str] = []
        self.warnings: list[str] = config.unpriced() if config else []
        self.facts: dict[str, Any] = {}
        self.missing: list[str] = []
        """Names of what is missing beside fields."""
        self.ignored: list[str] = [*config.unknown()] if config else []
        self.more: dict[str, Any] = {}
        """Other parts of the answer, as `Imported` has them."""

    def __getitem__(self, name: str) -> Any:
        """Return a field, null where nobody says it."""
        return self.job.get(name)

    def put(self, **fields: Any) -> None:
        """Fill in fields that nobody has said; null says nothing."""
        for name, value in fields.items():
            if value is not None and self.job.get(name) is None:
                self.job[name] = value

    def put_switches(self, switches: Mapping[str, Any]) -> None:
        """Fill in switches of the recipe beside those that were said."""
        if switches:
            self.job["switches"] = {**switches, **(self.job.get("switches") or {})}

    def put_optimizer(self, name: str, *, sgd: str = "sgd") -> None:
        """Put in an optimizer by another program's name; one without a price stops the reading, unless another is given."""
        if self["optimizer"] is not None:
            return
        ours = optimizer_of(name, sgd=sgd)
        if ours is None and re.sub(r"[^a-z0-9]", "", name.lower()) in _COMPRESSED:
            self.facts["optimizer"] = name
            self.warnings.append(
                f"optimizer {name}: Adam's states, priced with messages that are not compressed"
            )
        elif ours is None:
            raise FrameworkConfigError(
                f"optimizer: {shown(name)} has no price; {choices_hint(name, OPTIMIZERS)}; to price another, give optimizer"
            )
        elif "paged" in name.lower() and ours == "adamw":
            self.warnings.append(f"optimizer {name}: priced with all states on the GPU, where they fit")
        elif ours != "adamw":
            self.facts["optimizer"] = name
            self.job["optimizer"] = ours

    def put_steps(self, steps: object) -> None:
        """Put in the tokens of a run of some steps, where the batch is known."""
        self.put(**tokens_of(steps if type(steps) is int else None, self.job))

    def step_offloaded_as_adam(self) -> None:
        """Price Adam in place of an optimizer that no host steps, where the job offloads it, and say so."""
        name = self["optimizer"]
        if name and (self["switches"] or {}).get("offload_optimizer") and not OPTIMIZERS[name].on_host:
            del self.job["optimizer"]
            self.warnings.append(
                f"optimizer {name}: no host steps it; its offloaded step is priced as Adam's"
            )

    def answer(self, *, needed: Iterable[str] = ("cluster", *REQUIRED)) -> Imported:
        """Return what was read, with what of `needed` is missing."""
        unpriced = self.more.get("unpriced")
        missing = [name for name in needed if self[name] is None and not (name == "model" and unpriced)]
        return Imported(
            self.job,
            (*missing, *self.missing),
            tuple(self.ignored),
            tuple(self.notes),
            tuple(self.warnings),
            self.facts,
            **self.more,
        )
