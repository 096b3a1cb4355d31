"""A cluster with some numbers of its profile changed: ``--hw hbm_bandwidth=10TB/s``, ``hw={"tdp": "500 W"}``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from costmodel.base.errors import ProfileError, UnitError, choices_hint, shown
from costmodel.base.numbers import distinct
from costmodel.base.units import parse_number, read_quantity
from costmodel.describe.hardware.cluster import NO_PRICES, Accelerator, Cluster, OtherNodes, Prices, Tier
from costmodel.describe.hardware.hardware import load_accelerator, load_cluster
from costmodel.describe.hardware.kernels import KernelConstants
from costmodel.physics.network.fabric import Fabric

NUMBERS: Mapping[str, str] = {
    "peak": "FLOP/s",
    "hbm_bandwidth": "B/s",
    "memory": "B",
    "tdp": "W",
    "host_link": "B/s",
    "nic": "B/s",
    "placement": "nodes",
    "mixed": "nodes",
}
"""What can be changed beside the tiers of a cluster by their names, and its unit: the dense 16-bit peak (other dtypes
follow in proportion), rate and usable size of the GPU's memory, limit of the board, link to the host, and all tiers that
leave the node (in proportion); and the nodes of each fragment, where a job is on fragments of racks or pods;
and the last nodes where they have another accelerator."""
_OF_DEVICE = {
    "hbm_bandwidth": "memory_bandwidth_bytes_per_s",
    "memory": "memory_bytes",
    "tdp": "tdp_w",
    "host_link": "host_link_bytes_per_s",
}
"""Numbers that are a field of the accelerator."""
_MOST = 1e18
_FURTHEST = {"tdp": 10.0, **dict.fromkeys(("peak", "hbm_bandwidth", "memory", "host_link"), 100.0)}
"""Times the profile's number that are priced, and as small a part of it; links at most 1000 times.

The efficiency of kernels is that of the profile's; at a tenth of its power a board idles, and at ten times it any is at the
burst clock.
"""
_SLOWEST_LINK = 1e-5
"""Part of a link's rate that is priced: a line between sites may be anybody's."""
_FABRIC_RATES = ("copy_bandwidth_bytes_per_s", "ll_bandwidth_bytes_per_s")
_INSIDE = ("pcie", "c2c")


def with_hardware(cluster: Cluster, given: Mapping[str, Any] | None) -> Cluster:
    """Return a cluster with some numbers changed, and all that follows from them.

    `given` maps `NUMBERS` or names of tiers to a quantity in SI units, a text with a unit, or a percentage of the
    profile's. One NIC at half rate is ``nic=50%``: every ring through it goes at its pace, and every step waits for that
    ring.
    """
    found = cluster
    for name, value in (given or {}).items():
        tiers = [tier.name for tier in cluster.tiers]
        if name not in NUMBERS and name not in tiers:
            raise ProfileError(f"hw: {shown(name)} is unknown; {choices_hint(name, [*NUMBERS, *tiers])}")
        if name == "placement":
            found = _placed(found, str(value))
            continue
        if name == "mixed":
            found = _mixed(found, str(value))
            continue
        unit = NUMBERS.get(name, "B/s")
        size = _sized(found, name, value, unit) if isinstance(value, str) else value
        if isinstance(size, bool) or not isinstance(size, int | float) or not 0.0 < size <= _MOST:
            raise ProfileError(f"hw: {name}: expected a positive quantity in {unit}, got {shown(value)}")
        now, most = _now(cluster, name), _FURTHEST.get(name, 1000.0)
        least = 1.0 / most if name in _FURTHEST else _SLOWEST_LINK
        if not least * (1.0 - 1e-9) <= size / now <= most * (1.0 + 1e-9):
            raise ProfileError(
                f"hw: {name}: expected {_text(now * least, unit)} to {_text(now * most, unit)}, {100.0 * least:g}% to "
                f"{most:g} times the profile's {_text(now, unit)}, got {shown(value)}"
            )
        found = _changed(found, name, float(size))
    return found


def _sized(cluster: Cluster, name: str, value: str, unit: str) -> float:
    """Read a quantity, or a percentage of what the profile has."""
    if not value.strip().endswith("%"):
        return read_quantity(f"hw: {name}", value, unit)
    try:
        return _now(cluster, name) * parse_number(value.strip()[:-1]) / 100.0
    except UnitError:
        raise ProfileError(
            f"hw: {name}: expected a quantity in {unit} or a percentage of the profile's, got {shown(value)}"
        ) from None


def _placed(cluster: Cluster, text: str) -> Cluster:
    """Return a cluster of which a job fills fragments of racks or pods in order: nodes of each, such as ``5+27``."""
    tier, node = _split_by_placement(cluster), cluster.gpus_per_node
    parts = [int(part) if part.strip().isdecimal() else 0 for part in text.split("+")]
    if not all(1 <= part <= tier.size // node for part in parts):
        raise ProfileError(
            f"hw: placement: expected nodes of fragments such as 5+27, each of 1 to the {tier.size // node} of a "
            f"{tier.name}, got {shown(text)}"
        )
    placed = replace(tier, ends=tuple(node * nodes for nodes in accumulate(parts)))
    tiers = tuple(placed if one is tier else one for one in cluster.tiers)
    return replace(cluster, tiers=tiers, changed=_recorded(cluster, "placement", "+".join(map(str, parts))))


def _mixed(cluster: Cluster, text: str) -> Cluster:
    """Return a cluster whose last nodes have another accelerator: ``8:h200``, ``8:h200:batch`` with a batch divided by speed."""
    nodes, _, rest = text.partition(":")
    name, _, divided = rest.partition(":")
    if not (nodes.strip().isdecimal() and int(nodes) and name and divided in ("", "batch")):
        raise ProfileError(
            f"hw: mixed: expected nodes and their accelerator such as 8:h200, or 8:h200:batch, got {shown(text)}"
        )
    other, own = load_accelerator(name.strip()), cluster.accelerator
    if other.software.recipe != own.software.recipe or other.is_gpu != own.is_gpu:
        raise ProfileError(
            f"hw: mixed: expected an accelerator with the software of {own.name}, got {other.name}, which runs "
            "other frameworks and collectives"
        )
    least = {
        name: min(getattr(one, name) for one in (own, other))
        for name in ("memory_bytes", "memory_vendor_bytes")
    }
    listed = bool(cluster.price_date)
    prices = (_list_prices(cluster), _list_prices(_cluster_of(name.strip(), other))) if listed else NO_PRICES
    return replace(
        cluster,
        accelerator=replace(own, **least),
        mixed=OtherNodes(
            int(nodes),
            other,
            bool(divided),
            other.memory_bytes - own.memory_bytes,
            prices=prices,
        ),
        changed=_recorded(cluster, "mixed", text),
    )


def _cluster_of(name: str, accelerator: Accelerator) -> Cluster | None:
    """Return the cluster that an accelerator's name means, if it means one."""
    try:
        cluster = load_cluster(name)
    except ProfileError:
        return None
    return cluster if cluster.accelerator.name == accelerator.name else None


def _list_prices(cluster: Cluster | None) -> Prices:
    if cluster is None or cluster.price_usd_per_gpu_hour is None:
        return ()
    return (cluster.price_usd_per_gpu_hour, *(cluster.price_range_usd_per_gpu_hour or ()))


def require_placed(cluster: Cluster, gpus: ArrayLike) -> None:
    """Refuse fragments that do not add up to the nodes of a job."""
    for tier in cluster.tiers:
        if tier.ends and np.any(np.asarray(gpus) != tier.ends[-1]):
            text, node = dict(cluster.changed)["placement"], cluster.gpus_per_node
            raise ProfileError(
                f"hw: placement: {text} is {tier.ends[-1] // node} nodes of {node} GPUs; the job has "
                f"{', '.join(f'{count:.0f}' for count in distinct(gpus))} GPUs"
            )


def _split_by_placement(cluster: Cluster) -> Tier:
    """Return the tier whose domains a job may have parts of: the innermost that holds several nodes."""
    for tier in cluster.tiers[:-1]:
        if tier.size > cluster.gpus_per_node and not tier.shape:
            return tier
    raise ProfileError(
        f"hw: placement: {cluster.name} has no racks or pods of several nodes below its outermost tier"
    )


def _now(cluster: Cluster, name: str) -> float:
    """Return a number of a cluster."""
    if name == "peak":
        peaks = cluster.accelerator.peak_flops_per_s
        return peaks["bf16" if "bf16" in peaks else "fp16"]
    if name in _OF_DEVICE:
        return float(getattr(cluster.accelerator, _OF_DEVICE[name]))
    return _rated(cluster, name)[0].bandwidth_bytes_per_s


def _rated(cluster: Cluster, name: str) -> list[Tier]:
    """Return the tiers that a name means; those of the network are of another sort of wire than inside the node."""
    if name != "nic":
        return [tier for tier in cluster.tiers if tier.name == name]
    inside = (cluster.tiers[0].kind, *_INSIDE)
    rated = [tier for tier in cluster.tiers[1:] if tier.kind not in inside]
    if not rated:
        raise ProfileError(f"hw: nic: {cluster.name} has no tier that leaves the node")
    return rated


def _changed(cluster: Cluster, name: str, value: float) -> Cluster:
    r"""Return a cluster with one number changed.

    At another power limit the clock under load goes with the cube root of it,

    .. math:: f'/f = (P'/P)^{1/3}, \qquad P \propto f V^2, \quad V \propto f

    as dynamic power does where voltage follows the clock (Hennessy and Patterson, Computer Architecture, section 1.5);
    the profile of an H100 at 500 W is that of the 700 W one by the same rule. The burst clock, at which peaks are, is not
    exceeded.
    """
    device, factor = cluster.accelerator, value / _now(cluster, name)
    changes: dict[str, Any] = {_OF_DEVICE[name]: value} if name in _OF_DEVICE else {}
    if name == "peak":
        changes["peak_flops_per_s"] = {
            dtype: peak * factor for dtype, peak in device.peak_flops_per_s.items()
        }
    elif name == "memory":
        changes["memory_vendor_bytes"] = device.memory_vendor_bytes * factor
    elif name == "tdp":
        changes["kernels"] = device.kernels and _at_clock(device.kernels, float(factor ** (1.0 / 3.0)))
    rated = [] if changes else _rated(cluster, name)
    return replace(
        cluster,
        accelerator=replace(device, **changes) if changes else device,
        tiers=tuple(at_rate(tier, factor) if tier in rated else tier for tier in cluster.tiers),
        changed=_recorded(cluster, name, value),
    )


def _recorded(cluster: Cluster, name: str, value: float | str) -> tuple[tuple[str, float | str], ...]:
    """Return what of a cluster is changed, with one thing more."""
    return tuple({**dict(cluster.changed), name: value}.items())


def at_rate(tier: Tier, factor: float) -> Tier:
    """Return a tier whose link is `factor` times as fast, with what a switch reduces and what small messages reach."""
    return replace(
        tier,
        bandwidth_bytes_per_s=tier.bandwidth_bytes_per_s * factor,
        reduction_bandwidth_bytes_per_s=tier.reduction_bandwidth_bytes_per_s * factor,
        fabric=fabric_scaled(tier.fabric, _FABRIC_RATES, factor),
    )


def fabric_scaled(fabric: Fabric, names: Iterable[str], factor: float) -> Fabric:
    """Return the constants of a link with some scaled."""
    return fabric._replace(**{name: factor * getattr(fabric, name) for name in names})


def _at_clock(kernels: KernelConstants, clock: float) -> KernelConstants:
    """Return kernels at a multiple of the clock that they have under load."""
    # The constants of attention are at the clock under load, which 16-bit products have too.
    burst = 1.0 / (1.0 - max(c.sustained_loss for c in kernels.matmul.values()))
    factor = min(clock, burst)
    return kernels.changed(
        lambda c: c._replace(sustained_loss=max(0.0, 1.0 - (1.0 - c.sustained_loss) * clock)),
        lambda one: one._replace(
            peak_fractions=tuple(min(share * factor, 1.0) for share in one.peak_fractions)
        ),
    )


def changed_values(cluster: Cluster) -> dict[str, str]:
    """Return what of a cluster was changed, as `with_hardware` takes it.

    >>> from costmodel.describe.hardware.hardware import load_cluster
    >>> changed_values(with_hardware(load_cluster("h100"), {"tdp": "500W", "nic": "25 GB/s", "memory": "96GiB"}))
    {'tdp': '500W', 'nic': '25GB/s', 'memory': '96GiB'}
    """
    return {name: _text(value, NUMBERS.get(name, "B/s")) for name, value in cluster.changed}


def changed_text(cluster: Cluster) -> str:
    """Return the name of a cluster, with what of it was changed."""
    changed = ", ".join(f"{name} {value}" for name, value in changed_values(cluster).items())
    return f"{cluster.name} with {changed}" if changed else cluster.name


def _text(value: float | str, unit: str) -> str:
    if isinstance(value, str):
        return value
    if unit == "B":
        return f"{value / 2**30:.12g}GiB"
    scale, prefix = next(
        (s, p) for s, p in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1.0, "")) if value >= s or s == 1.0
    )
    return f"{value / scale:.12g}{prefix}{unit}"
