"""Parameters that one rank holds before data parallelism shards them, dense and expert."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.describe.jobs.layout import Layout
from costmodel.step.anatomy.param_block import ParamBlock

Array = NDArray[np.float64]


class Params(NamedTuple):
    """Parameters that one rank holds before data parallelism shards them: dense and expert. [-]"""

    dense: Array
    expert: Array

    def __add__(self, other: object) -> Params:
        """Add two sets block by block."""
        assert isinstance(other, Params)
        return Params(np.asarray(self.dense + other.dense), np.asarray(self.expert + other.expert))

    def scaled(self, factor: Array) -> Params:
        """Return `factor` such sets."""
        return Params(np.asarray(self.dense * factor), np.asarray(self.expert * factor))

    def for_stages(self) -> Params:
        """Return the same with a trailing dimension for pipeline stages."""
        return Params(self.dense[..., None], self.expert[..., None])


def held_params(blocks: Iterable[ParamBlock], layout: Layout) -> Params:
    """Divide parameter blocks by the axes that split them."""
    dense: Array = np.zeros_like(layout.tp)
    expert: Array = np.zeros_like(layout.ep * layout.etp)
    for block in blocks:
        if block.sharding == "expert":
            expert = expert + block.count / (layout.ep * layout.etp)
        else:
            dense = dense + block.count / (layout.tp if block.sharding == "tp" else 1.0)
    return Params(np.asarray(dense), np.asarray(expert))
