"""A cluster's fabric fitted to its own sweeps, starting from a shipped profile.

One-node sweeps tell the innermost link, others the network around it; what they do not tell stays
as the profile has it. A fit that should not be used says why (`ClusterFit.problems`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from costmodel.base.errors import DataError
from costmodel.describe.hardware.cluster import Cluster, Tier
from costmodel.estimates.collective import bus_bytes
from costmodel.interop.nccl_tests import LogSweep
from costmodel.physics.network.mesh import Group, usable_domain_size
from costmodel.trust.calibration.fabric_fit import (
    BASE_FIELDS,
    INNER_START,
    NVLS,
    RATES,
    START,
    FabricRun,
    Fitted,
    fit_constants,
    free_names,
    predict,
    predict_inner,
    score,
    with_constants,
)

Array = NDArray[np.float64]

MIN_POINTS = 6
MIN_SPAN = 64.0  # Largest over smallest size below which latency and rate cannot be told apart
MAX_ERROR = 0.20  # Mean relative error above which a fit is refused
NETWORK = "network"
TRUST = 0.2
"""Pull towards the profile, as a share of that of a fit to everybody's sweeps: between 0.1 and 0.3 the
held-out error of 82 published sweeps, each fitted alone, is lowest."""
SWITCH = {"simple_step_s": 1e-6, "ll_bandwidth_bytes_per_s": 100e9}
"""Where a change of protocol inside a node starts from; it must lower the residual by a twentieth."""
BEGIN_AGAIN = 0.05  # Error of a sweep's large messages from which a fit is begun from other rates as well
_RATE_TIMES = 2.0 ** np.arange(-5.0, 2.01, 0.125)
"""What the rates that a fit starts with are tried at, times. [-]"""
LARGE_ERROR = 0.10  # Error of a sweep's large messages from which a fit says so
FAR = 2.0  # Where the times are further off than this, the starting constants are scaled first


class ClusterFit(NamedTuple):
    """Fitted tiers and what speaks for and against them."""

    runs: tuple[FabricRun, ...]  # The sweeps, on two levels: inside the innermost domain and around it
    tiers: Mapping[int, Fitted]  # By index into the cluster's tiers: 0, and that of the network
    # A row a point (`score`); and of fits to every other size, scored on the sizes between
    points: pd.DataFrame
    held_out: pd.DataFrame
    # Why the fit should not be used; sweeps whose large messages it does not give
    problems: tuple[str, ...]
    warnings: tuple[str, ...]


def sweep_run(sweep: LogSweep, cluster: Cluster) -> FabricRun:
    """Return a sweep as a run on two levels of `cluster`."""
    place = f"{sweep.file}:{sweep.line}"
    _check_gpu(sweep, cluster)
    domain = cluster.tiers[0].size
    nodes = sweep.nodes or -(-sweep.ranks // cluster.gpus_per_node)
    if sweep.ranks % nodes:
        raise DataError(f"{place}: {sweep.ranks} ranks on {nodes} nodes: expected as many on each")
    # Trays of a rack-scale domain are nodes by name only.
    rack_scale = domain > cluster.gpus_per_node
    inside = int(usable_domain_size(sweep.ranks, domain)) if rack_scale else sweep.ranks // nodes
    if inside > domain:
        raise DataError(
            f"{place}: {inside} ranks a node, but {cluster.name} joins {domain} GPUs by "
            f"{cluster.tiers[0].name}; another --cluster, or --nodes"
        )
    network = None if inside == sweep.ranks else NETWORK
    if network and len(cluster.tiers) < 2:
        raise DataError(f"{place}: {nodes} nodes, but {cluster.name} has no network")
    timed = np.isfinite(sweep.time_s)
    if not timed.any():
        raise DataError(f"{place}: no out-of-place times")
    return FabricRun(
        sweep.name,
        sweep.primitive,
        Group(np.asarray(float(sweep.ranks)), (np.asarray(float(inside)), np.asarray(float(sweep.ranks)))),
        cluster.tiers[0].link,
        network,
        _forced(sweep, cluster.tiers[0], inside, several=network is not None),
        sweep.size_bytes[timed],
        sweep.time_s[timed],
    )


def _forced(sweep: LogSweep, inner: Tier, inside: int, *, several: bool) -> str:
    """Return the algorithm that NCCL_ALGO forces; where it does not apply, NCCL chooses after all."""
    if sweep.primitive != "all_reduce":
        return "auto"
    if sweep.algorithm.startswith("nvls"):
        usable = inner.reduction_bandwidth_bytes_per_s > 0 and inside >= inner.fabric.nvls_min_ranks
        return ("nvls-tree" if several else "nvls") if usable else "auto"
    return "auto" if sweep.algorithm == "tree" and not several else sweep.algorithm


def _check_gpu(sweep: LogSweep, cluster: Cluster) -> None:
    """Refuse a log of another GPU than the profile's."""
    given = re.search(r"(?:^|[\s_-])G?([VAHB]\d{2,3}|MI\d{3})", sweep.gpu.upper())
    if given and given[1] not in cluster.accelerator.name.upper():
        raise DataError(
            f"{sweep.file}:{sweep.line}: the log is of {sweep.gpu!r}, {cluster.name} has "
            f"{cluster.accelerator.name}; start from another --cluster"
        )


def fit_cluster(runs: Sequence[FabricRun], cluster: Cluster, *, max_error: float = MAX_ERROR) -> ClusterFit:
    """Fit the tiers that the runs cross, starting from those of the cluster, and judge the fit."""
    if not runs:
        raise DataError("calibrate: no sweeps to fit")
    tiers = _fit_tiers(runs, cluster.tiers)
    price = partial(price_run, base=cluster.tiers, tiers=tiers)
    points = score(runs, price)
    problems = [*_too_little(runs, cluster), *_too_far(points, max_error), *_too_fast(runs, cluster, tiers)]
    return ClusterFit(
        tuple(runs),
        tiers,
        points,
        score_held_out(runs, cluster.tiers),
        tuple(problems),
        tuple(_not_learned(runs, price)),
    )


def price_run(run: FabricRun, base: Sequence[Tier], tiers: Mapping[int, Fitted]) -> Array:
    """Price a run on fitted tiers, and on those of the profile where none was fitted."""
    inner = tiers[0].tier if 0 in tiers else base[0]
    if run.network is None:
        return predict_inner(run, inner)
    return predict(run, inner, tiers[1].tier if 1 in tiers else base[1])


def _fit_tiers(runs: Sequence[FabricRun], base: Sequence[Tier], *, blank: bool = False) -> dict[int, Fitted]:
    """Fit the innermost tier, then the network with it held fixed."""
    fitted: dict[int, Fitted] = {}
    inside = [run for run in runs if run.network is None]
    if inside:
        fitted[0] = _fit_tier(base[0], inside, predict_inner, network=False, blank=blank)
    across = [run for run in runs if run.network is not None]
    if across:
        inner = fitted[0].tier if fitted else base[0]

        def price(run: FabricRun, tier: Tier) -> Array:
            return predict(run, inner, tier)

        fitted[1] = _fit_tier(base[1], across, price, network=True, blank=blank)
    return fitted


def _fit_tier(
    tier: Tier,
    runs: Sequence[FabricRun],
    price: Callable[[FabricRun, Tier], Array],
    *,
    network: bool,
    blank: bool,
) -> Fitted:
    """Fit one tier, from the profile's constants (or `blank`), scaled where the times are far from them."""
    known = tier.fabric
    names = free_names(runs, network=network)
    ranks = max((float(run.group.members[0]) for run in runs if run.primitive == "all_reduce"), default=0.0)
    if not network and tier.reduction_bandwidth_bytes_per_s and ranks >= known.nvls_min_ranks:
        names += NVLS
    constants = known._asdict() | {key: getattr(tier, key) for key in BASE_FIELDS}
    assumed = {**START} if network else {**START, **INNER_START}
    start = {name: constants[name] if constants[name] > 0 and not blank else assumed[name] for name in names}
    measured = np.concatenate([run.time_s for run in runs])
    size = np.concatenate([run.size_bytes for run in runs])
    ratio = measured / np.concatenate([price(run, tier) for run in runs])
    slow, thin = (
        float(np.median(ratio[part]))
        for part in (size <= np.quantile(size, 0.25), size >= np.quantile(size, 0.75))
    )

    def fit(names: Sequence[str], start: Mapping[str, float]) -> Fitted:
        moved = {name: value * _scale(name, slow, thin) for name, value in start.items()}
        begun = partial(fit_constants, runs, price, tier, names, moved, known, network=network, trust=TRUST)
        found = begun()
        # Where another part of the path is the slower one, no small step of a rate changes anything.
        if max(error for error, _ in _off_at_large(runs, lambda run: price(run, found.tier))) < BEGIN_AGAIN:
            return found

        def off(values: Mapping[str, float]) -> float:
            made = with_constants(tier, values, known)
            return sum(error for error, _ in _off_at_large(runs, lambda run: price(run, made)))

        others = [begun(begin=begin) for begin in _rate_begins(moved, off)]
        return min((found, *others), key=lambda one: one.cost)

    best = fit(names, start)
    if network or set(SWITCH) & set(names):
        return best
    switching = fit([*names, *SWITCH], start | SWITCH)
    return switching if switching.residual < 0.95 * best.residual else best


def _scale(name: str, slow: float, thin: float) -> float:
    """Return what to multiply a constant by where small times or large ones are far off."""
    if name in (*RATES, "copy_bandwidth_bytes_per_s", "nvls_rate_factor"):
        return 1.0 if 1 / FAR < thin < FAR else 1.0 / thin
    return 1.0 if 1 / FAR < slow < FAR else slow


def _rate_begins(
    start: Mapping[str, float], off: Callable[[Mapping[str, float]], float]
) -> list[dict[str, float]]:
    """Return rates to begin a fit from: all of them, or one alone, times what meets the large messages best."""
    rates = [name for name in (*RATES, "nvls_rate_factor") if name in start]
    found = []
    for names in (rates, *([name] for name in rates)):
        tried = [{name: times * start[name] for name in names} for times in _RATE_TIMES]
        found.append(min(tried, key=lambda begin: off({**start, **begin})))
    return found


def _off_at_large(
    runs: Sequence[FabricRun], price: Callable[[FabricRun], Array]
) -> list[tuple[float, FabricRun]]:
    """Return how far each sweep's largest quarter of sizes is off, on average, as a share of its times."""
    found = []
    for run in runs:
        large = run.size_bytes >= np.quantile(run.size_bytes, 0.75)
        found.append((float(np.mean(np.abs(price(run) / run.time_s - 1.0)[large])), run))
    return found


def _not_learned(runs: Sequence[FabricRun], price: Callable[[FabricRun], Array]) -> list[str]:
    """Say which sweeps have large messages that the fit does not give."""
    found = []
    for error, run in _off_at_large(runs, price):
        if error > LARGE_ERROR:
            bus = bus_bytes(run.primitive, run.size_bytes, float(run.group.ranks))
            top = int(np.argmax(run.size_bytes))
            found.append(
                f"{run.name}: large messages are {error:.0%} off: measured up to "
                f"{bus[top] / run.time_s[top] / 1e9:.4g} GB/s of bus bandwidth, fitted "
                f"{bus[top] / price(run)[top] / 1e9:.4g}"
            )
    return found


def score_held_out(runs: Sequence[FabricRun], base: Sequence[Tier], *, blank: bool = False) -> pd.DataFrame:
    """Score fits to every other size on the sizes between, both ways; `blank`: from constants that no sweep was fitted to."""
    frames = []
    for first in (0, 1):
        halves = [
            [
                run._replace(size_bytes=run.size_bytes[start::2], time_s=run.time_s[start::2])
                for start in (first, 1 - first)
            ]
            for run in runs
            if len(run.size_bytes) > 1
        ]
        if halves:
            tiers = _fit_tiers([train for train, _ in halves], base, blank=blank)
            price = partial(price_run, base=base, tiers=tiers)
            frames.append(score([test for _, test in halves], price))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _too_little(runs: Sequence[FabricRun], cluster: Cluster) -> list[str]:
    """Say which tiers have too few or too similar sizes."""
    found = []
    for network, tier in ((None, cluster.tiers[0]), (NETWORK, cluster.tiers[min(1, len(cluster.tiers) - 1)])):
        sizes = [run.size_bytes for run in runs if run.network == network]
        if not sizes:
            continue
        size = np.concatenate(sizes)
        if len(size) < MIN_POINTS:
            found.append(f"{tier.name}: {len(size)} points; expected at least {MIN_POINTS}")
        elif size.max() < MIN_SPAN * size.min():
            found.append(
                f"{tier.name}: sizes from {size.min():.0f} to {size.max():.0f} B; expected a range of "
                f"{MIN_SPAN:.0f} times or more, to tell latency from rate"
            )
    return found


def _too_far(points: pd.DataFrame, max_error: float) -> list[str]:
    """Say which tiers the fit misses."""
    found = []
    for several, part in points.groupby(points["nodes"] > 1):
        error = float(part["error"].mean())
        if error > max_error:
            by_run = part.groupby("run")["error"].mean()
            where = "several nodes" if several else "one node"
            found.append(
                f"{where}: the fit is {error:.0%} off on average, more than {max_error:.0%} (--max-error); "
                f"worst is {by_run.idxmax()} with {by_run.max():.0%}"
            )
    return found


def _too_fast(runs: Sequence[FabricRun], cluster: Cluster, tiers: Mapping[int, Fitted]) -> list[str]:
    """Say where large messages were faster than the profile's wire."""
    found = []
    for run in runs:
        index = 0 if run.network is None else 1
        # Of an all-reduce the switch may add, and two nodes may take a tree.
        if run.primitive == "all_reduce" or index not in tiers:
            continue
        tier, alone = cluster.tiers[index], run.primitive in ("send_recv", "all_to_all") or index == 0
        bus = bus_bytes(run.primitive, run.size_bytes, float(run.group.ranks))
        rate = float(np.max(bus / run.time_s))
        line = tier.bandwidth_bytes_per_s * (1.0 if alone else float(run.group.members[0]))
        if rate > 1.1 * line:
            found.append(
                f"{run.name}: {rate / 1e9:.4g} GB/s of bus bandwidth, but {tier.link} of {cluster.name} "
                f"carries {line / 1e9:.4g} GB/s; start from a cluster with the right network"
            )
    return found
