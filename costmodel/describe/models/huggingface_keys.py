"""A HuggingFace config that notes what was read of it, and the table of families."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from costmodel.base.errors import ModelConfigError, shown
from costmodel.base.yaml_files import read_mapping
from costmodel.describe.models.model import MOST, MOST_LAYERS

_MISSING = object()

_SHAPELESS = re.compile(
    r"_token_(id|ids|index)$"
    r"|(dropout|_pdrop|_prob|_eps|_epsilon|_coef|_std|_softcap|_softcapping|_penalty)$"
    r"|^(rope|rotary|output|summary|use_cache)(_|$)"
)
"""Names of tokens, of regularisation and initialisation, and of rotary tables: they change no size.

No ending hides a precision: those are named one by one.
"""


@cache
def table(section: str) -> Any:
    """Return a section of ``huggingface.yaml``."""
    path = files("costmodel") / "describe" / "data" / "huggingface.yaml"
    return read_mapping(path, example="families: {}", error=ModelConfigError)[section]


@cache
def by_name(section: str) -> dict[str, str]:
    """Return a section that lists names behind what they share, by name."""
    return {name: shared for shared, names in table(section).items() for name in names.split()}


@cache
def shapes_nothing(name: str) -> bool:
    """Tell whether a key has no part in any size: it is known, or its name says so."""
    return name in table("shapes_nothing").split() or _SHAPELESS.search(name) is not None


_SIZES = {
    "num_layers": ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "decoder_layers", "num_blocks"),
    "hidden_size": ("hidden_size", "d_model", "n_embd", "emb_dim", "embedding_dim"),
    "vocab_size": ("vocab_size",),
}


def sizes_of(raw: Mapping[str, Any]) -> dict[str, int]:
    """Return layers and widths of a config of any type, as far as it says them by a usual name."""
    found = {
        field: [raw[name] for name in names if type(raw.get(name)) is int] for field, names in _SIZES.items()
    }
    return {field: values[0] for field, values in found.items() if values}


_COUNTS = re.compile(r"^(num|n)_(?!expert_group)|_(size|dim|layers|heads|rank|interval|period|offset|step)$")
"""Names of keys that count something."""
_NO_LISTS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "hidden_size", "vocab_size")
_AUTO = ("mamba_dt_rank",)
"""Counts that a file may leave to a rule."""
_LISTS = (
    *("mlp_only_layers", "layer_types", "layers_block_type"),
    *("no_rope_layers", "mlp_layer_types", "full_attn_idxs"),
)


class Keys:
    """A config that notes which of its keys were looked at, and which defaults of its class it took."""

    def __init__(
        self, raw: Mapping[str, Any], origin: str, defaults: Mapping[str, Any] | None = None
    ) -> None:
        self.raw, self.origin, self.defaults = raw, origin, defaults or {}
        self.used: set[str] = set()
        self.defaulted: set[str] = set()

    def get(self, *names: str, default: Any = None) -> Any:
        """Return the first key that is present and not null, else the default."""
        self.used.update(name.split(".")[0] for name in names)
        for name in names:
            if (value := self._inside(name)) is not None:
                return self._checked(name.rsplit(".", 1)[-1], value)
        for name in names:
            if self.defaults.get(name) is not None and name not in self.raw:
                self.defaulted.add(name)
                return self.defaults[name]
        return default

    def _inside(self, name: str) -> Any:
        """Return the value of a key, or of one inside a mapping."""
        value: Any = self.raw
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def _checked(self, name: str, value: Any) -> Any:
        """Return a value whose kind is what the key's name says."""
        if name in _LISTS and not isinstance(value, list):
            raise self.refuse(f"{name}: expected a list, got {shown(value)}")
        if name in _LISTS and (strange := [each for each in value if not isinstance(each, (int, str))]):
            raise self.refuse(f"{name}: expected names or numbers, got {shown(strange[0])} among them")
        if name == "model_type" and not isinstance(value, str):
            raise self.refuse(f"model_type: expected a name, got {shown(value)}")
        if name in _NO_LISTS and isinstance(value, (list, dict)):
            raise self.refuse(f"{name}: expected a whole number, got {shown(value)}")
        if not _COUNTS.search(name) or "adjust" in name or "_all_" in name or isinstance(value, (list, dict)):
            return value
        if value == "auto" and name in _AUTO:
            return value
        most = MOST_LAYERS if name.endswith(("_layers", "_layer")) else MOST
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise self.refuse(f"{name}: expected a whole number from 0 to {most:,}, got {shown(value)}")
        return value

    def need(self, *names: str) -> Any:
        """Return the first key that is present and not null."""
        value = self.get(*names, default=_MISSING)
        if value is _MISSING:
            kind = self.raw.get("model_type", "")
            raise ModelConfigError(
                f"{self.origin}: missing {' or '.join(repr(name) for name in names)}"
                + (f", which model_type {kind!r} needs" if kind else "")
            )
        return value

    def refuse(self, reason: str) -> ModelConfigError:
        """Return the error for a config that cannot be expressed."""
        return ModelConfigError(f"{self.origin}: {reason}")
