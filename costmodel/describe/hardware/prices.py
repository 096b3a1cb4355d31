"""The price of a GPU-hour: the profile's with its date and range, or what the user says, by cluster where there are several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from numpy.typing import ArrayLike

from costmodel.base.errors import ProfileError
from costmodel.base.numbers import distinct
from costmodel.base.words import plural
from costmodel.describe.hardware.cluster import NO_PRICES, Cluster
from costmodel.describe.hardware.hardware import load_cluster


def with_price(
    cluster: Cluster, given: float | Mapping[str, float] | None, *, among: Iterable[str] = ()
) -> Cluster:
    """Return a cluster at the price that the user gave, as it is where none was given for it. [USD/h]

    Prices by cluster are those of it and the ones `among` which it stands.
    """
    usd = None if isinstance(given, Mapping) else given
    if isinstance(given, Mapping):
        own = {cluster.name: None, **dict.fromkeys(among)}
        prices = {name if name in own else priced_name(name): each for name, each in given.items()}
        if unused := [name for name in prices if name not in own]:
            raise ProfileError(
                f"price_usd_per_gpu_hour: {unused[0]} is not used here; expected {' or '.join(own)}, or one price for all"
            )
        usd = prices.get(cluster.name)
    if usd is None:
        return cluster
    mixed = None if cluster.mixed is None else cluster.mixed._replace(prices=NO_PRICES)
    return replace(
        cluster, price_usd_per_gpu_hour=usd, price_date="", price_range_usd_per_gpu_hour=None, mixed=mixed
    )


def with_mixed_price(cluster: Cluster, gpus: ArrayLike) -> Cluster:
    """Return a cluster with nodes of two kinds at the mean of their list prices, by a job's GPUs; a given price stays."""
    if cluster.mixed is None or not cluster.price_date:
        return cluster
    own, other = cluster.mixed.prices
    counts = distinct(gpus)
    usd, low, high = None, None, None
    if own and other and len(counts) == 1:
        share = cluster.mixed.nodes * cluster.gpus_per_node / counts[0]
        usd, low, high, *_ = *(a + share * (b - a) for a, b in zip(own, other, strict=False)), None, None
    ends = None if low is None or high is None else (low, high)
    return replace(cluster, price_usd_per_gpu_hour=usd, price_range_usd_per_gpu_hour=ends)


def mixed_note(cluster: Cluster) -> str:
    """Say what other nodes cost, and how much more a mean GPU-hour does with them."""
    if cluster.mixed is None or cluster.price_usd_per_gpu_hour is None or not all(cluster.mixed.prices):
        return ""
    (own, *_), (other, *_) = cluster.mixed.prices
    name = f"{plural(cluster.mixed.nodes, 'node')} of {cluster.mixed.accelerator.name}"
    more = cluster.price_usd_per_gpu_hour - own
    return f"{name} at ${other:,.2f} {'add' if more >= 0 else 'take'} ${abs(more):,.2f}"


def priced_name(named: str) -> str:
    """Return the name of the cluster that an alias or a file means."""
    try:
        return load_cluster(named).name
    except ProfileError as error:
        raise ProfileError(f"price_usd_per_gpu_hour: {error}") from None


def given_price(cluster: Cluster) -> float | None:
    """Return the price where the user gave it, none where it is the profile's. [USD/h]."""
    return None if cluster.price_date else cluster.price_usd_per_gpu_hour


def price_text(cluster: Cluster) -> str:
    """Say what a GPU-hour costs, when, and from where to where lists went."""
    usd = cluster.price_usd_per_gpu_hour
    return f"no price: {price_note(cluster)}" if usd is None else f"${usd:,.2f} ({price_note(cluster)})"


def price_note(cluster: Cluster) -> str:
    """Say where a price comes from, and its range."""
    if cluster.price_usd_per_gpu_hour is None:
        if cluster.mixed is not None:
            return f"cluster {cluster.name} with nodes of {cluster.mixed.accelerator.name} has no one price; give --price USD"
        return f"cluster {cluster.name} has no price; give --price USD"
    if not cluster.price_date:
        return "given"
    note, mixed = f"profile {cluster.name}, {cluster.price_date}", mixed_note(cluster)
    if cluster.price_range_usd_per_gpu_hour is None:
        return f"{note}; {mixed}" if mixed else note
    low, high = cluster.price_range_usd_per_gpu_hour
    lists = f"lists from ${low:,.2f} to ${high:,.2f}"
    return "; ".join(filter(None, [f"{note}, median on demand", mixed, lists]))
