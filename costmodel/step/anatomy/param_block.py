"""Parameters that are computed with, and sharded, together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Sharding = Literal["tp", "expert", "replicated"]


@dataclass(frozen=True, slots=True)
class ParamBlock:
    """Parameters that are computed with, and sharded, together."""

    name: str
    count: float
    """Elements in the unsharded model. [-]"""
    sharding: Sharding
    """``tp`` (divided by tp), ``expert`` (divided by ep·etp) or ``replicated``."""
    is_matrix: bool = False
    """True for a weight that every token it serves is multiplied with."""
