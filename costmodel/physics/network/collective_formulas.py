r"""The cost of a collective as text: wire bytes, the rate they get, and the fill time of the pipeline.

Whatever algorithm `nccl.collective_time` takes, the part that depends on the size S is

.. math:: t = W b + 2 \sqrt{P\,W b}, \qquad W = S\,\{2 \tfrac{n-1}{n},\ \tfrac{n-1}{n},\ 1\}

so that one text serves all of them; b and P are read off two sizes of the very function. Tests hold
the text to the function over primitives, groups and sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.physics.network.fabric import NCCL_ALGORITHMS, GroupCost, TierLike
from costmodel.physics.network.mesh import Group
from costmodel.physics.network.nccl import collective_candidates

Array = NDArray[np.float64]

_PROBE_BYTES = 1e6
_WIRE = {
    "all_reduce": "2 * (ranks - 1) / ranks * size_bytes",
    "all_gather": "(ranks - 1) / ranks * size_bytes",
    "reduce_scatter": "(ranks - 1) / ranks * size_bytes",
    "all_to_all": "(ranks - 1) / ranks * size_bytes",
}


def collective_text(primitive: str) -> str:
    """Return the steps up to ``transfer_s``; the next one may use it and ``latency_s``.

    >>> collective_text("all_gather").split("; ")[0]
    'wire_bytes = (ranks - 1) / ranks * size_bytes'
    """
    wire = _WIRE.get(primitive, "where(ranks > 1, size_bytes, 0)")
    return f"wire_bytes = {wire}; wire_s = wire_bytes / bus_bytes_per_s; transfer_s = wire_s + 2 * sqrt(fill_s * wire_s)"


def collective_terms(
    primitive: str, size_bytes: ArrayLike, group: Group, tiers: Sequence[TierLike], cost: GroupCost
) -> Mapping[str, ArrayLike]:
    """Return the numbers of `collective_text` for what `collective_time` returned.

    ``bus_bytes_per_s`` is the rate of wire bytes by the ring's count (nccl-tests' bus bandwidth) of
    large messages, a rank's copy of its own part included; ``algorithm`` the code of the one taken.
    """
    small, large = (_transfer(primitive, factor * _PROBE_BYTES, group, tiers, cost) for factor in (1.0, 4.0))
    # t(4S) - 2 t(S) = 2 S b: the square root drops out.
    linear = 0.5 * (large - 2.0 * small)
    root = np.maximum(0.5 * (small - linear), 0.0)
    sends = linear > 0
    safe = np.where(sends, linear, 1.0)
    ranks = np.asarray(group.ranks, dtype=np.float64)
    share = {"all_reduce": 2.0 * (1.0 - 1.0 / ranks)}.get(
        primitive, 1.0 - 1.0 / ranks if primitive in _WIRE else 1.0
    )
    return {
        "size_bytes": size_bytes,
        "ranks": ranks,
        "latency_s": cost.latency_s,
        "algorithm": cost.algorithm,
        "bus_bytes_per_s": np.where(sends, _PROBE_BYTES * share / safe, 1.0),
        "fill_s": np.where(sends, root * root / safe, 0.0),
    }


DISPATCH_TEXT = "wire_bytes = tokens * token_bytes * copies; transfer_s = wire_bytes / bus_bytes_per_s"
"""Steps of `expert_dispatch.moe_exchange_time` up to ``transfer_s``, on the slowest tier."""


def dispatch_terms(
    tokens: ArrayLike, token_bytes: ArrayLike, group: Group, cost: GroupCost
) -> Mapping[str, ArrayLike]:
    """Return the numbers of `DISPATCH_TEXT`: ``copies`` of a token cross the slowest tier, at the kernels' rate."""
    payload = np.asarray(tokens, dtype=np.float64) * np.asarray(token_bytes, dtype=np.float64)
    sends = np.asarray(cost.transfer_s) > 0
    return {
        "tokens": tokens,
        "token_bytes": token_bytes,
        "ranks": group.ranks,
        "latency_s": cost.latency_s,
        "copies": cost.wire_bytes / payload,
        "algorithm": cost.algorithm,
        "bus_bytes_per_s": np.where(sends, cost.wire_bytes, 1.0) / np.where(sends, cost.transfer_s, 1.0),
    }


def _transfer(
    primitive: str, size_bytes: float, group: Group, tiers: Sequence[TierLike], cost: GroupCost
) -> Array:
    """Return the part with bytes of a size, by the algorithm that `cost` says. [s]"""
    ways = collective_candidates(primitive, size_bytes, group, tiers, finite=False)
    found = np.zeros_like(np.asarray(cost.algorithm, dtype=np.float64))
    for name, one in ways.items():
        # One way of the switch is two, with and without a tree across nodes.
        same = {NCCL_ALGORITHMS.index(name)} | ({4, 5} if name.startswith("nvls") else set())
        found = np.where(np.isin(cost.algorithm, list(same)), one.transfer_s, found)
    return np.asarray(found)
