"""`costmodel.collective`: one collective on a cluster by every algorithm, and which of them runs when.

`place` puts a group on the tiers of a cluster, `price_collective` prices it by what the library would do and by the
textbook, `choices` says from which size on the library does what.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.answer import Answer, columns_of, rows_of
from costmodel.base.errors import LayoutError, choices_hint, shown
from costmodel.base.units import format_seconds, format_si, read_quantity
from costmodel.base.words import DEVICE
from costmodel.describe.hardware.cluster import Cluster, Tier
from costmodel.describe.hardware.hardware import load_cluster
from costmodel.describe.hardware.slices import sliced
from costmodel.describe.jobs.job import DEFAULT_CLUSTER
from costmodel.describe.jobs.reading import read
from costmodel.physics.network.collectives import ALGORITHMS, TWO_LEVEL, CollectiveTime, two_level_time
from costmodel.physics.network.expert_dispatch import moe_exchange_time
from costmodel.physics.network.fabric import NCCL_ALGORITHMS, GroupCost
from costmodel.physics.network.mesh import Group, slowest_tier, usable_domain_size
from costmodel.physics.network.nccl import PRIMITIVES, collective_candidates, collective_time
from costmodel.physics.network.torus import Box

Array = NDArray[np.float64]

MOE = ("moe_dispatch", "moe_combine")
"""Token exchanges of mixtures of experts; priced alike, each with the bytes of its own dtype."""

NAMES = (*PRIMITIVES, "scatter", "gather", *MOE)  # What can be priced; hyphens do as well as underscores

SEARCHED_SIZES: Array = 2.0 ** np.arange(0.0, 41.0, 0.125)
"""Sizes among which crossovers are looked for, 1 B to 1 TiB. [B]"""

_PER_SHARD = ("all_gather", "reduce_scatter", "all_to_all", "scatter", "gather")


class Routing(NamedTuple):
    """How tokens find their experts."""

    top_k: int = 8
    node_limit: int = 0
    imbalance: float = 1.0


class Placed(NamedTuple):
    """A group on the tiers of a cluster."""

    group: Group
    tiers: tuple[Tier, ...]
    concurrent: float

    @property
    def ranks(self) -> int:
        """Members of the group."""
        return int(self.group.ranks)

    @property
    def outermost(self) -> Tier:
        """The tier that the textbook formulas take: the outermost one that is crossed."""
        return self.tiers[max(int(slowest_tier(self.group)), 0)]

    def has_library(self, name: str) -> bool:
        """Whether a library runs such a collective here: of two ranks or more, on links that are known."""
        return name in PRIMITIVES and self.ranks > 1 and bool(self.tiers[0].link)


class Price(NamedTuple):
    """A collective by one algorithm; arrays over sizes."""

    family: str  # ``nccl``, ``torus``, ``textbook`` or ``kernel`` (token exchange)
    algorithm: str
    size_bytes: Array
    latency_s: Array
    transfer_s: Array
    wire_bytes: Array  # What nccl-tests counts on the bus. [B]
    chosen: NDArray[np.bool_]  # Whether the library takes this algorithm at this size
    crossover_bytes: float  # Size at which latency and transfer are equal, the n* of this algorithm. [B]
    needs: str = ""  # Hardware without which the textbook algorithm cannot run

    @property
    def time_s(self) -> Array:
        """Latency and transfer together. [s]."""
        return np.asarray(self.latency_s + self.transfer_s)

    @property
    def algbw_bytes_per_s(self) -> Array:
        """Size over time. [B/s]."""
        return _rate(self.size_bytes, self.time_s)

    @property
    def busbw_bytes_per_s(self) -> Array:
        """Bytes on the bus over time, nccl-tests' bus bandwidth. [B/s]."""
        return _rate(self.wire_bytes, self.time_s)


def _rate(size: Array, time_s: Array) -> Array:
    """Divide, giving 0 where nothing took any time."""
    return np.divide(size, time_s, out=np.zeros(np.shape(size)), where=time_s > 0)


def canonical(name: str) -> str:
    """Return the name of a collective with underscores; an unknown one is a `LayoutError`."""
    if not isinstance(name, str):
        raise LayoutError(f"collective: expected a name, got {shown(name)}")
    wanted = name.strip().lower().replace("-", "_")
    # NCCL's own names have no hyphens: alltoall, reducescatter.
    wanted = next((known for known in NAMES if known.replace("_", "") == wanted), wanted)
    if wanted not in NAMES:
        known = [one.replace("_", "-") for one in NAMES]
        raise LayoutError(f"collective: unknown {shown(name)}; {choices_hint(name, known)}")
    return wanted


def place(
    cluster: Cluster, ranks: int, *, members_per_node: int | None = None, concurrent: float = 1.0
) -> Placed:
    """Put a group on a cluster.

    `members_per_node` members are inside one innermost domain: fewer than fit there are spread evenly, as the data-parallel
    group of a tensor-parallel node is; as many as fit by default. On a torus that domain is the slices of a job of the
    group's size. `concurrent` groups share every port and link. [-]
    """
    ranks, members_inside, stride = read("ranks", ranks), members_per_node, 1
    if members_inside is not None:
        members_inside = int(read("members_per_node", members_inside))
    concurrent = read("concurrent", concurrent)
    tiers = cluster.tiers
    is_torus = bool(tiers[0].shape)
    if members_inside is not None and (
        (is_torus and members_inside < 1) or (members_inside > 0 and ranks % min(members_inside, ranks))
    ):
        raise LayoutError(f"members-per-node: {members_inside} does not divide {ranks} ranks")
    if is_torus:
        tiers = sliced(cluster, ranks if members_inside is None else members_inside).tiers
        inside = prod(tiers[0].shape)
    else:
        domain = tiers[0].size
        inside = int(usable_domain_size(ranks, domain)) if members_inside is None else members_inside
        if not 1 <= inside <= domain:
            raise LayoutError(
                f"members-per-node: expected 1 to {domain}, the {tiers[0].name} domain; got {inside}"
            )
        inside = min(inside, ranks)
        # A group that leaves GPUs of each domain to others runs in strides over all outer tiers.
        stride = domain // inside if members_inside is not None and ranks > inside else 1
    members = [float(inside)]
    for outer in tiers[1:]:
        fitting = usable_domain_size(ranks * stride, outer.size) / stride
        members.append(float(np.clip(np.floor(fitting), members[-1], ranks)))
    if members[-1] < ranks:
        raise LayoutError(
            f"ranks: {ranks}{f' ranks in strides of {stride}' if not is_torus else ''} do not fit on the "
            f"{cluster.max_gpus} {cluster.accelerator.called}s of {cluster.name}"
        )
    group = Group(np.asarray(float(ranks)), tuple(np.asarray(fitting) for fitting in members))
    if is_torus:
        sides = tuple(np.asarray(float(length)) for length in tiers[0].shape)
        group = group._replace(box=Box(sides, sides))
    return Placed(group, tiers, concurrent)


def bus_bytes(name: str, size_bytes: Array, ranks: float) -> Array:
    """Return the bytes that nccl-tests counts: twice or once (n - 1)/n of the size, or the size."""
    if name == "all_reduce":
        return np.asarray(size_bytes * 2 * (ranks - 1) / ranks)
    return np.asarray(size_bytes * ((ranks - 1) / ranks if name in _PER_SHARD else float(ranks > 1)))


def price_collective(
    name: str, size_bytes: Sequence[float] | Array, placed: Placed, routing: Routing | None = None
) -> list[Price]:
    """Price a collective at every size by every algorithm that applies, the library's ways first.

    `size_bytes` is the full logical tensor; for a token exchange, which `routing` describes, all tokens of one rank, once. [B]
    """
    name = canonical(name)
    size = np.atleast_1d(np.asarray(size_bytes, dtype=np.float64))
    zero, never = np.zeros_like(size), np.zeros(size.shape, dtype=np.bool_)
    taken = _taken(name, size, placed)
    costs, searched = (
        list(_costs(name, sizes, placed, routing or Routing())) for sizes in (size, SEARCHED_SIZES)
    )
    prices = []
    for (family, algorithm, needs, cost), (*_, wide) in zip(costs, searched, strict=True):
        if isinstance(cost, GroupCost):
            wire, chosen = cost.wire_bytes, taken == algorithm
        else:
            wire, chosen = bus_bytes(name, size, float(placed.ranks)), never
        parts = cost.latency_s + zero, cost.transfer_s + zero, wire + zero
        crossover = _crossover(wide.latency_s, wide.transfer_s)
        prices.append(Price(family, algorithm, size, *parts, chosen, crossover, needs))
    return prices


def _costs(
    name: str, size: Array, placed: Placed, routing: Routing
) -> Iterator[tuple[str, str, str, CollectiveTime | GroupCost]]:
    """Yield every way of a collective: family, algorithm, the hardware that it needs, and its cost at some sizes."""
    if name in MOE:
        yield from _exchange_costs(size, placed, routing)
        return
    if placed.has_library(name):
        family = "torus" if placed.tiers[0].shape else "nccl"
        ways = collective_candidates(name, size, placed.group, placed.tiers, concurrent=placed.concurrent)
        for way, cost in ways.items():
            yield family, way, "", cost
    # The literature's on one flat tier, and on two levels where there are two.
    tier, ranks = placed.outermost, np.asarray(float(placed.ranks))
    rate = tier.achieved_bandwidth_bytes_per_s / placed.concurrent
    for algorithm, one in ALGORITHMS[name].items():
        if one.applies(ranks).all():
            flat = one.time(size, ranks, latency_s=tier.latency_s, bandwidth_bytes_per_s=rate)
            yield "textbook", algorithm, one.needs, flat
    inside = float(placed.group.members[0])
    if not 1.0 < inside < placed.ranks:
        return
    inner = placed.tiers[0]
    for algorithm in TWO_LEVEL.get(name, ()):
        levels = two_level_time(
            name,
            algorithm,
            size,
            inside,
            placed.ranks / inside,
            intra_latency_s=inner.latency_s,
            intra_bandwidth_bytes_per_s=inner.achieved_bandwidth_bytes_per_s / placed.concurrent,
            inter_latency_s=tier.latency_s,
            inter_bandwidth_bytes_per_s=rate,
        )
        yield "textbook", algorithm, "", levels


def _taken(name: str, size: Array, placed: Placed) -> NDArray[np.str_]:
    """Return the algorithm that the library takes at each size, "" where there is no library."""
    if name in MOE or not placed.has_library(name):
        return np.full(size.shape, "once-per-node" if name in MOE else "")
    cost = collective_time(name, size, placed.group, placed.tiers, concurrent=placed.concurrent)
    codes = np.broadcast_to(cost.algorithm, size.shape).astype(np.int64)
    return np.asarray(NCCL_ALGORITHMS)[codes]


def _exchange_costs(
    size: Array, placed: Placed, routing: Routing
) -> Iterator[tuple[str, str, str, GroupCost]]:
    """Yield a token exchange by kernels that send a token once a node, or once an expert, and by NCCL."""
    group, tiers, shared = placed.group, placed.tiers, placed.concurrent
    for way, deduplicate in (("once-per-node", True), ("once-per-expert", False)):
        cost = moe_exchange_time(
            size,
            1.0,
            routing.top_k,
            group,
            tiers,
            node_limit=routing.node_limit,
            deduplicate=deduplicate,
            imbalance=routing.imbalance,
            concurrent=shared,
        )
        yield "kernel", way, "", cost
    copies = routing.top_k * routing.imbalance
    yield (
        "nccl",
        "all-to-all",
        "",
        collective_time("all_to_all", size * copies, group, tiers, concurrent=shared),
    )


def _crossover(latency_s: Array, transfer_s: Array) -> float:
    """Return the size at which the transfer takes as long as the latency; nan where there is none."""
    latency_s, transfer_s = (np.broadcast_to(part, SEARCHED_SIZES.shape) for part in (latency_s, transfer_s))
    more = transfer_s >= latency_s
    if not more.any() or (more.all() and not np.any(latency_s > 0)):
        return float("nan")
    at = int(np.argmax(more))
    if at == 0:
        return float(SEARCHED_SIZES[0])
    gap = np.log(transfer_s[at - 1 : at + 1]) - np.log(latency_s[at - 1 : at + 1])
    share = -gap[0] / (gap[1] - gap[0])
    return float(SEARCHED_SIZES[at - 1] * (SEARCHED_SIZES[at] / SEARCHED_SIZES[at - 1]) ** share)


class Choice(NamedTuple):
    """A range of sizes in which the library takes one algorithm."""

    algorithm: str
    from_bytes: float
    to_bytes: float


def choices(name: str, placed: Placed) -> list[Choice]:
    """Return which algorithm the library takes from which size on, to an eighth of an octave."""
    name = canonical(name)
    if not placed.has_library(name):
        return []
    taken = _taken(name, SEARCHED_SIZES, placed)
    starts = [0, *(np.flatnonzero(taken[1:] != taken[:-1]) + 1)]
    borders = [0.0, *SEARCHED_SIZES[starts[1:]].tolist(), np.inf]
    return [Choice(str(taken[at]), *ends) for at, ends in zip(starts, pairwise(borders), strict=True)]


def dominant(price: Price) -> str:
    """Say what the time of one size is made of, in a few words."""
    latency, time = float(price.latency_s[0]), float(price.time_s[0])
    share = latency / time
    if 0.4 <= share <= 0.6:
        return f"neither latency ({share:.0%}) nor bandwidth"
    return f"latency ({share:.0%})" if share > 0.5 else f"bandwidth ({1 - share:.0%})"


def label(price: Price) -> str:
    """Name an algorithm with the family that it is of."""
    return f"{price.family} {price.algorithm}"


def best_of(prices: Sequence[Price], index: int) -> Price:
    """Return what is taken at a size; where no library chooses, the fastest that any fabric can run."""
    for price in prices:
        if price.chosen[index]:
            return price
    free = [price for price in prices if not price.needs]
    return min(free or prices, key=lambda price: float(price.time_s[index]))


def size_text(size_bytes: float) -> str:
    """Write a size exactly: powers of two by binary prefixes, thousands and others by decimal ones.

    >>> size_text(2.0**20), size_text(96 * 2.0**10), size_text(1.024e6), size_text(128e3)
    ('1 MiB', '96 KiB', '1.02 MB', '128 kB')
    """
    # 1,024,000 bytes are 1,000 KiB, but nobody who doubles a thousand bytes means those.
    if size_bytes % 1000.0 == 0:
        return format_si(size_bytes, "B")
    for scale, unit in ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB")):
        if size_bytes % scale == 0 and 1 <= size_bytes / scale < 1024:
            return f"{size_bytes / scale:.0f} {unit}"
    return format_si(size_bytes, "B")


LARGEST = 1e18  # Bytes of a collective; no machine holds as many


_FIGURES = ("latency_s", "transfer_s", "time_s", "wire_bytes", "algbw_bytes_per_s", "busbw_bytes_per_s")


@dataclass(frozen=True, repr=False)
class CollectiveCosts(Answer):
    """A collective at one size or several, by every algorithm that applies."""

    name: str  # With underscores
    prices: tuple[Price, ...]  # By algorithm, the library's ways first; arrays over sizes
    choices: tuple[Choice, ...]  # Which algorithm the library takes from which size on
    placed: Placed
    where: str  # What the fabric is called
    one_size: bool  # Whether a single size was asked for
    routing: Routing
    device_word: str = DEVICE  # What the ranks are called

    @property
    def time_s(self) -> Array:
        """Time of what is taken at each size; without a library, of the fastest that any fabric can run. [s]"""
        sizes = range(len(self.prices[0].size_bytes))
        return np.asarray([float(best_of(self.prices, i).time_s[i]) for i in sizes])

    @property
    def title(self) -> str:
        """What was asked."""
        of = f" of {size_text(float(self.prices[0].size_bytes[0]))}" if self.one_size else ""
        return f"{self.name.replace('_', '-')}{of} over {self.placed.ranks:,} {self.device_word}s of {self.where}"

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
                **{name: float(getattr(price, name)[i]) for name in _FIGURES},
                "crossover_bytes": price.crossover_bytes if np.isfinite(price.crossover_bytes) else None,
            }
            for price in self.prices
            for i, size in enumerate(price.size_bytes)
        ]
        return columns_of(rows)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        placed = self.placed
        members = {tier.name: int(m) for tier, m in zip(placed.tiers, placed.group.members, strict=True)}
        return {
            "schema_version": 1,
            "collective": self.name,
            "ranks": placed.ranks,
            "members_by_tier": members,
            "concurrent": placed.concurrent,
            "choices": [
                {**choice._asdict(), "to_bytes": choice.to_bytes if np.isfinite(choice.to_bytes) else None}
                for choice in self.choices
            ],
            "prices": rows_of(self.columns()),
        }


def _read_size(size: object) -> float:
    """Return a size in bytes: a number, or a text with its unit."""
    if isinstance(size, str):
        return read_quantity("size", size, "B")
    try:
        return float(size)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise LayoutError(f"size: expected bytes, or a text such as '1 GB', got {shown(size)}") from None


def collective(
    name: str,
    size_bytes: ArrayLike | str | Sequence[str],
    *,
    ranks: int,
    cluster: str | Cluster | None = None,
    members_per_node: int | None = None,
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
        raise LayoutError("latency_s: expected --alpha and --bandwidth together, or a cluster")
    if latency_s is not None and bandwidth_bytes_per_s is not None:
        if cluster is not None or members_per_node is not None:
            raise LayoutError("alpha: a flat fabric takes no cluster or members_per_node")
        # One tier that is a latency and a rate, nothing fitted.
        n = np.asarray(float(read("ranks", ranks)))
        tier_of_all = Tier(
            name="flat", size=int(n), bandwidth_bytes_per_s=bandwidth_bytes_per_s, latency_s=latency_s
        )
        placed = Placed(Group(n, (n,)), (tier_of_all,), concurrent)
        where, device = f"{format_seconds(latency_s)} and {format_si(bandwidth_bytes_per_s, 'B/s')}", DEVICE
    else:
        named = DEFAULT_CLUSTER if cluster is None else cluster
        machine = named if isinstance(named, Cluster) else load_cluster(named)
        placed = place(machine, ranks, members_per_node=members_per_node, concurrent=concurrent)
        where, device = f"{machine.name} ({machine.accelerator.name})", machine.accelerator.called
    routing = Routing(read("top_k", top_k), read("node_limit", node_limit), read("imbalance", imbalance))
    prices = price_collective(kind, sizes, placed, routing)
    return CollectiveCosts(
        kind, tuple(prices), tuple(choices(kind, placed)), placed, where, one_size, routing, device
    )
