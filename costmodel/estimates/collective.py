"""One collective on a cluster, by every algorithm: what `costmodel collective` shows.

`place` puts a group on the tiers of a cluster, `price_collective` prices it by what the library
would do and by the textbook, `choices` says from which size on the library does what.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.base.errors import LayoutError, choices_hint, shown
from costmodel.base.units import format_si
from costmodel.describe.hardware.cluster import Cluster, Tier
from costmodel.describe.hardware.slices import sliced
from costmodel.describe.jobs.reading import read
from costmodel.physics.network.collectives import ALGORITHMS, TWO_LEVEL, CollectiveTime, two_level_time
from costmodel.physics.network.fabric import NCCL_ALGORITHMS
from costmodel.physics.network.mesh import Group, slowest_tier, usable_domain_size
from costmodel.physics.network.nccl import (
    PRIMITIVES,
    GroupCost,
    collective_candidates,
    collective_time,
    moe_exchange_time,
)
from costmodel.physics.network.torus import Box

Array = NDArray[np.float64]

MOE = ("moe_dispatch", "moe_combine")
"""Token exchanges of mixtures of experts; priced alike, each with the bytes of its own dtype."""

NAMES = (*PRIMITIVES, "scatter", "gather", *MOE)
"""What can be priced; hyphens do as well as underscores."""

SEARCHED_SIZES: Array = 2.0 ** np.arange(0.0, 41.0, 0.125)
"""Sizes among which crossovers are looked for, 1 B to 1 TiB. [B]"""

_PER_SHARD = ("all_gather", "reduce_scatter", "all_to_all", "scatter", "gather")


class Routing(NamedTuple):
    """How tokens find their experts."""

    top_k: int = 8
    node_limit: int = 0
    imbalance: float = 1.0


class Placed(NamedTuple):
    """A group on the tiers of a cluster, and the tier that the textbook formulas take."""

    group: Group
    tiers: tuple[Tier, ...]
    flat_tier: int
    concurrent: float = 1.0

    @property
    def ranks(self) -> int:
        """Members of the group."""
        return int(self.group.ranks)


class Price(NamedTuple):
    """A collective by one algorithm; arrays over sizes.

    Attributes
    ----------
    family, algorithm : str
        ``nccl``, ``torus``, ``textbook`` or ``kernel`` (token exchange), and the name there.
    size_bytes, latency_s, transfer_s : Array
        The full logical tensor [B]; the part without bytes and the part with [s].
    wire_bytes : Array
        Bytes that nccl-tests counts on the bus. [B]
    chosen : Array
        Whether the library takes this algorithm at this size.
    crossover_bytes : float
        Size at which both parts are equal, the n* of this algorithm. [B]
    needs : str
        Hardware without which the textbook algorithm cannot run.
    """

    family: str
    algorithm: str
    size_bytes: Array
    latency_s: Array
    transfer_s: Array
    wire_bytes: Array
    chosen: NDArray[np.bool_]
    crossover_bytes: float
    needs: str = ""

    @property
    def time_s(self) -> Array:
        """Both parts together. [s]."""
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
    """Return the name of a collective with underscores.

    Raises
    ------
    LayoutError
        If there is no such collective.
    """
    if not isinstance(name, str):
        raise LayoutError(f"collective: expected a name, got {shown(name)}")
    wanted = name.strip().lower().replace("-", "_")
    wanted = {
        "alltoall": "all_to_all",
        "allreduce": "all_reduce",
        "allgather": "all_gather",
        "reducescatter": "reduce_scatter",
        "sendrecv": "send_recv",
    }.get(wanted, wanted)
    if wanted not in NAMES:
        known = [one.replace("_", "-") for one in NAMES]
        raise LayoutError(f"collective: unknown {shown(name)}; {choices_hint(name, known)}")
    return wanted


def place(
    cluster: Cluster,
    ranks: int,
    *,
    members_per_node: int | None = None,
    tier: str | None = None,
    concurrent: float = 1.0,
) -> Placed:
    """Put a group on a cluster.

    Parameters
    ----------
    cluster : Cluster
        Its tiers, innermost first.
    ranks : int
        Members of the group. [-]
    members_per_node : int, optional
        Members inside one innermost domain; fewer than fit there are spread evenly, as the
        data-parallel group of a tensor-parallel node is. Default: as many as fit. [-]
    tier : str, optional
        Name of the tier whose latency and rate the textbook formulas take; default: the
        outermost one that the group crosses.
    concurrent : float
        Groups that share every port and link. [-]

    Raises
    ------
    LayoutError
        If the numbers do not go together or the cluster is too small.
    """
    ranks = read("ranks", ranks)
    if members_per_node is not None:
        members_per_node = int(read("members_per_node", members_per_node))
    concurrent = read("concurrent", concurrent)
    if cluster.tiers[0].shape:
        return _place_on_torus(cluster, ranks, members_per_node, tier, concurrent)
    tiers = cluster.tiers
    domain = tiers[0].size
    inside = int(usable_domain_size(ranks, domain)) if members_per_node is None else members_per_node
    if not 1 <= inside <= domain:
        raise LayoutError(
            f"members-per-node: expected 1 to {domain}, the {tiers[0].name} domain; got {inside}"
        )
    inside = min(inside, ranks)
    if ranks % inside:
        raise LayoutError(f"members-per-node: {inside} does not divide {ranks} ranks")
    # A group that leaves GPUs of each domain to others runs in strides over all outer tiers.
    stride = domain // inside if members_per_node is not None and ranks > inside else 1
    members = [float(inside)]
    for outer in tiers[1:]:
        held = usable_domain_size(ranks * stride, outer.size) / stride
        members.append(float(np.clip(np.floor(held), members[-1], ranks)))
    if members[-1] < ranks:
        raise LayoutError(
            f"ranks: {ranks} ranks in strides of {stride} do not fit on the "
            f"{cluster.max_gpus} {cluster.accelerator.called}s of {cluster.name}"
        )
    group = Group(np.asarray(float(ranks)), tuple(np.asarray(held) for held in members))
    return Placed(group, tiers, _flat_tier(cluster, group, tier), concurrent)


def _place_on_torus(
    cluster: Cluster, ranks: int, members: int | None, tier: str | None, concurrent: float
) -> Placed:
    """Put a group on the slices that a job of its size gets: as many members in each as `members` says."""
    if members is not None and (members < 1 or ranks % members):
        raise LayoutError(f"members-per-node: {members} does not divide {ranks} ranks")
    whole = sliced(cluster, ranks if members is None else members)
    shape = whole.tiers[0].shape
    inside = float(prod(shape))
    n = np.asarray(float(ranks))
    held = [np.clip(usable_domain_size(ranks, outer.size), inside, ranks) for outer in whole.tiers[1:]]
    if (held[-1] if held else inside) < ranks:
        raise LayoutError(
            f"ranks: {ranks} do not fit on the {cluster.max_gpus} {cluster.accelerator.called}s of {cluster.name}"
        )
    sides = tuple(np.asarray(float(length)) for length in shape)
    group = Group(n, (np.asarray(inside), *held), box=Box(sides, sides))
    return Placed(group, whole.tiers, _flat_tier(cluster, group, tier), concurrent)


def _flat_tier(cluster: Cluster, group: Group, tier: str | None) -> int:
    """Return the index of the tier that the textbook formulas take."""
    names = [one.name for one in cluster.tiers]
    if tier is not None and tier not in names:
        raise LayoutError(f"tier: unknown {shown(tier)} in {cluster.name}; {choices_hint(tier, names)}")
    return names.index(tier) if tier is not None else max(int(slowest_tier(group)), 0)


def flat_fabric(latency_s: float, bandwidth_bytes_per_s: float, ranks: int) -> Placed:
    """Return a fabric of one tier that is a latency and a rate, nothing fitted."""
    ranks = read("ranks", ranks)
    tier = Tier(
        name="flat",
        size=ranks,
        bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        latency_s=latency_s,
        kind="",
    )
    n = np.asarray(float(ranks))
    return Placed(Group(n, (n,)), (tier,), 0)


def bus_bytes(name: str, size_bytes: Array, ranks: float) -> Array:
    """Return the bytes that nccl-tests counts: twice or once (n - 1)/n of the size, or the size."""
    if name == "all_reduce":
        return np.asarray(size_bytes * 2 * (ranks - 1) / ranks)
    return np.asarray(size_bytes * ((ranks - 1) / ranks if name in _PER_SHARD else float(ranks > 1)))


def price_collective(
    name: str, size_bytes: Sequence[float] | Array, placed: Placed, routing: Routing | None = None
) -> list[Price]:
    """Price a collective at every size by every algorithm that applies, the library's ways first.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    size_bytes : array_like
        The full logical tensor; for a token exchange all tokens of one rank, once. [B]
    placed : Placed
        The group and its fabric.
    routing : Routing, optional
        For token exchanges.
    """
    name = canonical(name)
    size = np.atleast_1d(np.asarray(size_bytes, dtype=np.float64))
    if name in MOE:
        return _price_exchange(size, placed, routing or Routing())
    return [*_price_library(name, size, placed), *_price_textbook(name, size, placed)]


def _price_library(name: str, size: Array, placed: Placed) -> list[Price]:
    """Price what NCCL could do."""
    if name not in PRIMITIVES or placed.ranks < 2 or not placed.tiers[0].link:
        return []
    prices = []
    group, tiers, shared = placed.group, placed.tiers, placed.concurrent
    family = "torus" if tiers[0].shape else "nccl"
    chosen = _chosen(name, size, placed)
    searched = collective_candidates(name, SEARCHED_SIZES, group, tiers, concurrent=shared)
    for algorithm, cost in collective_candidates(name, size, group, tiers, concurrent=shared).items():
        taken = chosen == float(NCCL_ALGORITHMS.index(algorithm))
        prices.append(_from_cost(family, algorithm, size, cost, taken, searched[algorithm]))
    return prices


def _from_cost(
    family: str, algorithm: str, size: Array, cost: GroupCost, chosen: NDArray[np.bool_], searched: GroupCost
) -> Price:
    """Put the cost of a group into a row."""
    shape = np.zeros_like(size)
    return Price(
        family,
        algorithm,
        size,
        cost.latency_s + shape,
        cost.transfer_s + shape,
        cost.wire_bytes + shape,
        chosen,
        _crossover(searched.latency_s, searched.transfer_s),
    )


def _chosen(name: str, size: Array, placed: Placed) -> Array:
    """Return the code of the algorithm that the library takes at each size."""
    cost = collective_time(name, size, placed.group, placed.tiers, concurrent=placed.concurrent)
    return np.asarray(cost.algorithm + np.zeros_like(size))


def _price_textbook(name: str, size: Array, placed: Placed) -> list[Price]:
    """Price the algorithms of the literature on one flat tier, and on two levels where there are two."""
    tier = placed.tiers[placed.flat_tier]
    ranks = np.asarray(float(placed.ranks))
    rate = tier.achieved_bandwidth_bytes_per_s / placed.concurrent
    zero = np.zeros_like(size)

    def row(algorithm: str, at: Callable[[Array], CollectiveTime], needs: str = "") -> Price:
        time, searched = at(size), at(SEARCHED_SIZES)
        crossover = _crossover(searched.latency_s, searched.transfer_s)
        bus = bus_bytes(name, size, float(ranks))
        latency, transfer = time.latency_s + zero, time.transfer_s + zero
        return Price("textbook", algorithm, size, latency, transfer, bus, zero > 0, crossover, needs)

    link = {"latency_s": tier.latency_s, "bandwidth_bytes_per_s": rate}
    flat = [
        row(algorithm, partial(one.time, num_ranks=ranks, **link), one.needs)
        for algorithm, one in ALGORITHMS[name].items()
        if one.applies(ranks).all()
    ]
    inside = float(placed.group.members[0])
    if not 1.0 < inside < placed.ranks:
        return flat
    inner, outer = placed.tiers[0], placed.tiers[max(int(slowest_tier(placed.group)), placed.flat_tier)]
    levels = {
        "ranks_per_node": inside,
        "num_nodes": placed.ranks / inside,
        "intra_latency_s": inner.latency_s,
        "intra_bandwidth_bytes_per_s": inner.achieved_bandwidth_bytes_per_s / placed.concurrent,
        "inter_latency_s": outer.latency_s,
        "inter_bandwidth_bytes_per_s": outer.achieved_bandwidth_bytes_per_s / placed.concurrent,
    }
    return flat + [
        row(algorithm, partial(two_level_time, name, algorithm, **levels))
        for algorithm in TWO_LEVEL.get(name, ())
    ]


def _price_exchange(size: Array, placed: Placed, routing: Routing) -> list[Price]:
    """Price a token exchange by kernels that send a token once a node, or once an expert, and by NCCL."""
    group, tiers, shared = placed.group, placed.tiers, placed.concurrent

    def kernels(payload: Array, deduplicate: bool) -> GroupCost:
        return moe_exchange_time(
            payload,
            1.0,
            routing.top_k,
            group,
            tiers,
            node_limit=routing.node_limit,
            deduplicate=deduplicate,
            imbalance=routing.imbalance,
            concurrent=shared,
        )

    copies = routing.top_k * routing.imbalance

    def all_to_all(payload: Array) -> GroupCost:
        return collective_time("all_to_all", payload * copies, group, tiers, concurrent=shared)

    ways: dict[tuple[str, str], Callable[[Array], GroupCost]] = {
        ("kernel", "once-per-node"): partial(kernels, deduplicate=True),
        ("kernel", "once-per-expert"): partial(kernels, deduplicate=False),
        ("nccl", "all-to-all"): all_to_all,
    }
    return [
        _from_cost(
            family, way, size, price(size), np.full(size.shape, way == "once-per-node"), price(SEARCHED_SIZES)
        )
        for (family, way), price in ways.items()
    ]


def _crossover(latency_s: Array, transfer_s: Array) -> float:
    """Return the size at which the transfer takes as long as the latency; nan where there is none."""
    more = (transfer_s + np.zeros_like(SEARCHED_SIZES)) >= latency_s + np.zeros_like(SEARCHED_SIZES)
    if not more.any() or (more.all() and not np.any(latency_s > 0)):
        return float("nan")
    at = int(np.argmax(more))
    if at == 0:
        return float(SEARCHED_SIZES[0])
    gap = np.log(np.broadcast_to(transfer_s, SEARCHED_SIZES.shape)[at - 1 : at + 1]) - np.log(
        np.broadcast_to(latency_s, SEARCHED_SIZES.shape)[at - 1 : at + 1]
    )
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
    if name not in PRIMITIVES or placed.ranks < 2 or not placed.tiers[0].link:
        return []
    codes = _chosen(name, SEARCHED_SIZES, placed)
    starts = np.flatnonzero(np.diff(codes, prepend=np.nan) != 0)
    ends = [*(SEARCHED_SIZES[starts[1:]]), np.inf]
    return [
        Choice(NCCL_ALGORITHMS[int(codes[at])], 0.0 if at == 0 else float(SEARCHED_SIZES[at]), float(end))
        for at, end in zip(starts, ends, strict=True)
    ]


def dominant(price: Price) -> str:
    """Say what the time of one size is made of, in a few words."""
    latency, time = float(price.latency_s[0]), float(price.time_s[0])
    if time == 0.0:
        return "nothing to do"
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
