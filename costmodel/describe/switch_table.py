"""The switches of recipes and jobs: one row each in ``describe/data/switches.csv``, and a checked model of each group.

A row has the switch's name, group, kind, default, the range of a number or the words that it may be, and what it
changes on the bill, with the source. A new switch is a new row and what reads it in `costmodel.step`.
"""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, NonNegativeFloat, create_model

from costmodel.base.csv_text import read_rows

DTYPE_BYTES: dict[str, float] = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp4": 0.5625}
"""Bytes an element; fp4 with the fp8 scale of its block of 16 (NVFP4)."""


class Switch(NamedTuple):
    """A row of the table.

    `kind` is truth, whole, number, open number (may be null: left to the device), elements (of a tensor: none, or one
    and more), numbers, word (one of `choices`) or words (some of them); `range` an interval such as ``[0, 1)``.
    """

    name: str
    group: str
    kind: str
    default: Any
    range: str
    choices: tuple[str, ...]
    meaning: str

    @property
    def bounds(self) -> tuple[float, float]:
        """Ends of the range, infinite where there is none."""
        low, high = (text.strip() for text in self.range[1:-1].split(",")) if self.range else ("", "")
        return float(low or "-inf"), float(high or "inf")

    @property
    def words(self) -> tuple[str, ...]:
        """What it is one of; empty for a number or a list."""
        return self.choices if self.kind == "word" else ()

    @property
    def is_number(self) -> bool:
        """Whether it is a number, which may be left to the device."""
        return self.kind in ("number", "open number", "elements")

    @property
    def is_list(self) -> bool:
        """Whether it takes several values."""
        return self.kind in ("words", "numbers")


class Switches(BaseModel):
    """A group of switches."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    if TYPE_CHECKING:
        # The fields are rows of the table, which a type checker does not read.
        def __getattr__(self, name: str) -> Any: ...


class DtypeSizes(Switches):
    """Dtypes in which weights, gradients and optimizer states live and travel."""

    def grad_bytes(self) -> float:
        """Bytes a parameter of the resident gradient."""
        return DTYPE_BYTES[self.grad_accum_dtype]

    def param_bytes(self) -> float:
        """Bytes a parameter of the resident weights."""
        return DTYPE_BYTES[self.param_dtype]


class OverlapWays(Switches):
    """How the ranks of each axis talk, and what of it hides behind compute."""

    @property
    def torch_slices(self) -> bool:
        """Whether attention runs slice by slice as PyTorch's own does, which rotates or gathers K and V only."""
        return self.cp_by_torch and self.cp_method in ("ring", "all-gather")


def _none_or_one(value: float) -> float:
    """Refuse a part of an element."""
    if 0.0 < value < 1.0:
        raise ValueError("expected 0, or 1 and more")
    return value


def _some_loaded(loads: tuple[float, ...]) -> tuple[float, ...]:
    """Refuse loads without a token."""
    if loads and not sum(loads) > 0:
        raise ValueError("expected tokens of some expert, got none")
    return loads


_TYPES: dict[str, Any] = {
    "truth": bool,
    "whole": int,
    "number": float,
    "open number": float,
    "elements": float,
    "numbers": tuple[NonNegativeFloat, ...],
}
_CHECKS = {"elements": AfterValidator(_none_or_one), "numbers": AfterValidator(_some_loaded)}


def _switch(row: dict[str, str]) -> Switch:
    """Read a row of the table."""
    kind, default, choices = row["kind"], row["default"], tuple(row["choices"].split())
    if kind in ("words", "numbers"):
        value: Any = tuple(default.split())
    elif kind == "word":
        value = default
    elif kind == "open number" and not default:
        value = None
    else:
        value = json.loads(default) if kind in ("truth", "whole") else float(default)
    return Switch(row["name"], row["group"], kind, value, row["range"], choices, row["meaning"])


def _field(switch: Switch) -> tuple[Any, Any]:
    """Return the type and the field of a switch, as a model has them."""
    literal: Any = Literal  # of words that only the table knows
    several: Any = tuple
    if switch.choices:
        word = literal[switch.choices]
        kind = word if switch.kind == "word" else several[word, ...]
    else:
        kind = _TYPES[switch.kind]
    if switch.range and switch.kind != "numbers":
        low, high = switch.bounds
        number = int if switch.kind == "whole" else float
        bounds: dict[str, Any] = {"ge" if switch.range[0] == "[" else "gt": number(low)}
        if isfinite(high):
            bounds["le" if switch.range[-1] == "]" else "lt"] = number(high)
        kind = Annotated[kind, Field(**bounds)]
    if switch.kind in _CHECKS:
        kind = Annotated[kind, _CHECKS[switch.kind]]
    if switch.kind == "open number":
        kind = kind | None
    return kind, Field(default=switch.default, description=switch.meaning)


SWITCHES = {row["name"]: _switch(row) for row in read_rows(Path(__file__).parent / "data" / "switches.csv")}
"""Every switch by its name."""

GROUP_OF = {name: switch.group for name, switch in SWITCHES.items()}
"""Where each switch stands: kernels, dtypes, overlap, moe (experts), host, memory, policy (of a job) or health (of its
ranks)."""


def _group(group: str) -> Any:
    """Return the checked model of a group."""
    fields: dict[str, Any] = {
        name: _field(switch) for name, switch in SWITCHES.items() if switch.group == group
    }
    base = {"dtypes": DtypeSizes, "overlap": OverlapWays}.get(group, Switches)
    return create_model(group.title(), __base__=base, __module__=__name__, **fields)


GROUPS: dict[str, Any] = {group: _group(group) for group in dict.fromkeys(GROUP_OF.values())}
"""The groups of switches, in the order in which they are shown."""
# Processes of a sweep exchange recipes: pickle finds a class in the module that made it.
globals().update((model.__name__, model) for model in GROUPS.values())
