"""`costmodel.collective`: one collective on a cluster by every algorithm, and which of them runs when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from costmodel.base.answer import Answer
from costmodel.base.errors import LayoutError, shown
from costmodel.base.units import format_seconds, format_si, read_quantity
from costmodel.base.words import DEVICE
from costmodel.describe.hardware.cluster import Cluster
from costmodel.describe.hardware.hardware import load_cluster
from costmodel.describe.jobs.job import DEFAULT_CLUSTER
from costmodel.describe.jobs.reading import read
from costmodel.estimates.collective import (
    Choice,
    Placed,
    Price,
    Routing,
    best_of,
    canonical,
    choices,
    flat_fabric,
    place,
    price_collective,
    size_text,
)

LARGEST = 1e18
"""Bytes of a collective; no machine holds as many."""


@dataclass(frozen=True)
class CollectiveCosts(Answer):
    """A collective at one size or several, by every algorithm that applies.

    Attributes
    ----------
    name : str
        Of the collective, with underscores.
    prices : tuple of Price
        By algorithm, the library's ways first; arrays over sizes.
    choices : tuple of Choice
        Which algorithm the library takes from which size on.
    placed : Placed
        The group on its fabric.
    where : str
        What the fabric is called.
    one_size : bool
        Whether a single size was asked for.
    routing : Routing
        Of a token exchange.
    device : str
        What the ranks are called.
    """

    name: str
    prices: tuple[Price, ...]
    choices: tuple[Choice, ...]
    placed: Placed
    where: str
    one_size: bool
    routing: Routing
    device: str = DEVICE

    @property
    def device_word(self) -> str:
        """What the ranks are called."""
        return self.device

    @property
    def time_s(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Time of what is taken at each size; without a library, of the fastest that any fabric can run. [s]"""
        sizes = range(len(self.prices[0].size_bytes))
        return np.asarray([float(best_of(self.prices, i).time_s[i]) for i in sizes])

    @property
    def title(self) -> str:
        """What was asked."""
        of = f" of {size_text(float(self.prices[0].size_bytes[0]))}" if self.one_size else ""
        return f"{self.name.replace('_', '-')}{of} over {self.placed.ranks:,} {self.device}s of {self.where}"

    def columns(self) -> dict[str, list[Any]]:
        """Return a row a size and algorithm."""
        rows = [
            {
                "collective": self.name,
                "ranks": self.placed.ranks,
                "size_bytes": float(size),
                "family": price.family,
                "algorithm": price.algorithm,
                "chosen": bool(price.chosen[i]),
                "needs": price.needs,
                "latency_s": float(price.latency_s[i]),
                "transfer_s": float(price.transfer_s[i]),
                "time_s": float(price.time_s[i]),
                "wire_bytes": float(price.wire_bytes[i]),
                "algbw_bytes_per_s": float(price.algbw_bytes_per_s[i]),
                "busbw_bytes_per_s": float(price.busbw_bytes_per_s[i]),
                "crossover_bytes": price.crossover_bytes if np.isfinite(price.crossover_bytes) else None,
            }
            for price in self.prices
            for i, size in enumerate(price.size_bytes)
        ]
        return {key: [row[key] for row in rows] for key in rows[0]}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        table, placed = self.columns(), self.placed
        rows = [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]
        members = {tier.name: int(m) for tier, m in zip(placed.tiers, placed.group.members, strict=True)}
        return {
            "schema_version": 1,
            "collective": self.name,
            "ranks": placed.ranks,
            "members_by_tier": members,
            "concurrent": placed.concurrent,
            "choices": [
                {
                    "algorithm": one.algorithm,
                    "from_bytes": one.from_bytes,
                    "to_bytes": one.to_bytes if np.isfinite(one.to_bytes) else None,
                }
                for one in self.choices
            ],
            "prices": rows,
        }


def _read_size(given: object) -> float:
    """Return a size in bytes: a number, or a text with its unit."""
    if isinstance(given, str):
        return read_quantity("size", given, "B")
    try:
        return float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise LayoutError(f"size: expected bytes, or a text such as '1 GB', got {shown(given)}") from None


def collective(
    name: str,
    size_bytes: ArrayLike | str | Sequence[str],
    *,
    ranks: int,
    cluster: str | Cluster | None = None,
    members_per_node: int | None = None,
    tier: str | None = None,
    concurrent: float = 1.0,
    latency_s: float | None = None,
    bandwidth_bytes_per_s: float | None = None,
    top_k: int = 8,
    node_limit: int = 0,
    imbalance: float = 1.0,
) -> CollectiveCosts:
    """Price one collective by every algorithm: NCCL's ways on the fabric, and the textbook's on one tier.

    Parameters
    ----------
    name : str
        all-reduce, all-gather, reduce-scatter, all-to-all, broadcast, reduce, scatter, gather,
        send-recv, moe-dispatch or moe-combine.
    size_bytes : array_like or text
        The full logical tensor; for a token exchange all tokens of one rank, once. Numbers, or
        texts such as ``"64 MiB"``. [B]
    ranks : int
        Members of the group. [-]
    cluster : str or Cluster, optional
        Whose fabric; the default cluster unless a flat fabric is given.
    members_per_node : int, optional
        Members inside one innermost domain, spread evenly; as many as fit by default. [-]
    tier : str, optional
        Tier of the textbook formulas; the outermost one crossed by default.
    concurrent : float
        Groups that share every port and link. [-]
    latency_s, bandwidth_bytes_per_s : float, optional
        In place of a cluster: a flat fabric of one latency a step and one rate per GPU. [s], [B/s]
    top_k, node_limit, imbalance
        Experts of a token, most nodes it may go to (0: all), busiest rank's tokens over the mean. [-]

    Returns
    -------
    CollectiveCosts
        ``.time_s`` of what is taken, ``.prices`` by algorithm, ``.choices`` by size.

    Raises
    ------
    CostModelError
        For an unknown collective or tier, or numbers that do not go together.

    Examples
    --------
    >>> found = collective("all-reduce", "1 GB", ranks=8, latency_s=1e-6, bandwidth_bytes_per_s=450e9)
    >>> bool(found.time_s[0] > 1e9 * 2 * 7 / 8 / 450e9)
    True
    """
    kind = canonical(name)
    one_size = isinstance(size_bytes, str) or not np.iterable(size_bytes)
    listed = [size_bytes] if one_size else list(size_bytes)  # type: ignore[arg-type]
    sizes = [_read_size(one) for one in listed]
    if not sizes or not all(0 < size <= LARGEST for size in sizes):
        raise LayoutError(f"size: expected more than 0 and at most 1 EB, got {shown(size_bytes)}")
    if (latency_s is None) != (bandwidth_bytes_per_s is None):
        raise LayoutError("latency_s: expected latency_s and bandwidth_bytes_per_s together, or a cluster")
    if latency_s is not None and bandwidth_bytes_per_s is not None:
        if cluster is not None or tier is not None or members_per_node is not None:
            raise LayoutError("latency_s: a flat fabric takes no cluster, tier or members_per_node")
        placed = flat_fabric(latency_s, bandwidth_bytes_per_s, ranks)._replace(concurrent=concurrent)
        where, device = f"{format_seconds(latency_s)} and {format_si(bandwidth_bytes_per_s, 'B/s')}", DEVICE
    else:
        named = DEFAULT_CLUSTER if cluster is None else cluster
        machine = named if isinstance(named, Cluster) else load_cluster(named)
        placed = place(machine, ranks, members_per_node=members_per_node, tier=tier, concurrent=concurrent)
        where, device = f"{machine.name} ({machine.accelerator.name})", machine.accelerator.called
    routing = Routing(read("top_k", top_k), read("node_limit", node_limit), read("imbalance", imbalance))
    prices = price_collective(kind, sizes, placed, routing)
    return CollectiveCosts(
        kind, tuple(prices), tuple(choices(kind, placed)), placed, where, one_size, routing, device
    )
