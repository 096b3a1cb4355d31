"""Which ranks share the states of a rank's parameters, and what is left to each."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from costmodel.bill.lines import highest_on_stages
from costmodel.physics.network.mesh import Group, split_group
from costmodel.step.held_params import Params
from costmodel.step.placed_job import PlacedJob

Array = NDArray[np.float64]

DataPart = Literal["dense", "expert"]
"""Parameters that share a group of ranks: experts have one of their own."""
DATA_PARTS: tuple[DataPart, ...] = get_args(DataPart)


def state_group(placed: PlacedJob, part: DataPart) -> Group:
    """Return the ranks that share the optimizer's states of a part: one where nothing is sharded."""
    dense, expert = placed.shard_ranks
    whole, ranks = (placed.mesh.grad, dense) if part == "dense" else (placed.mesh.edp, expert)
    return split_group(whole, np.where(placed.shards_optimizer, ranks, 1.0))[0]


def local_params(placed: PlacedJob, params: Params) -> Array:
    """Parameters that a rank's optimizer steps, worst stage. [-]"""
    dense_ranks, expert_ranks = placed.shard_ranks
    sharded = placed.shards_optimizer
    dense = highest_on_stages(params.dense) / np.where(sharded, dense_ranks, 1.0)
    expert = highest_on_stages(params.expert) / np.where(sharded, expert_ranks, 1.0)
    return np.asarray(dense + expert)
