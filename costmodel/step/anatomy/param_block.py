"""Parameters that are computed with, and sharded, together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from costmodel.step.anatomy.operator_parts import PATHS, Part

Sharding = Literal["tp", "expert", "replicated"]


@dataclass(frozen=True, slots=True)
class ParamBlock:
    """Parameters that are computed with, and sharded, together."""

    part: Part | Literal["norm"]
    """What of a model they belong to; norms between parts are of none of them."""
    leaf: str
    """Their name in it, empty where there is nothing else."""
    count: float
    """Elements in the unsharded model. [-]"""
    sharding: Sharding
    """``tp`` (divided by tp), ``expert`` (divided by ep·etp) or ``replicated``."""
    is_matrix: bool = False
    """True for a weight that every token it serves is multiplied with."""
    tensors: int = 1
    """Weights that are kept side by side in it: a gate and its up projection are two. [-]"""

    @property
    def name(self) -> str:
        """Dotted path, for people."""
        return ".".join(word for word in (PATHS.get(self.part, self.part), self.leaf) if word)
