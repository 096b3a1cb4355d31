"""Constants of a link fitted to sweeps of collectives: what published and own measurements share.

The fit is least squares on the logarithm of time, damped for outliers, with a weak pull towards the
starting values (`costmodel.trust.calibration.fitting.fit_pulled`), so that a constant that no run can tell
stays where it was.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from costmodel.describe.hardware.cluster import Tier
from costmodel.estimates.collective import bus_bytes
from costmodel.physics.network.fabric import Fabric
from costmodel.physics.network.mesh import Group
from costmodel.physics.network.nccl import collective_time
from costmodel.trust.calibration.fitting import fit_pulled

Array = NDArray[np.float64]

LARGE_BYTES = 64e6
LARGE_WEIGHT = 3.0
"""Gradients and gathered weights are large, and plateaus are few: what they count for. [B], [-]"""
START: Mapping[str, float] = {
    "base_latency_s": 12e-6,
    "latency_s": 5e-6,
    "rate_factor": 1.0,
    "pipeline_s": 3e-6,
    "pipeline_step_s": 0.1e-6,
    "copy_bandwidth_bytes_per_s": 1000e9,
    "nvls_latency_s": 18e-6,
    "nvls_pipeline_s": 0.7e-6,
    "nvls_rate_factor": 1.0,
    "all_to_all_latency_s": 8e-6,
    "all_to_all_pipeline_s": 3e-6,
    "send_latency_s": 10e-6,
    "send_pipeline_s": 1e-6,
    "send_rate_factor": 1.0,
    "simple_step_s": 3.4e-6,
    "ll_bandwidth_bytes_per_s": 25e9,
    "tree_step_s": 6e-6,
    "tree_pipeline_s": 40e-6,
    "tree_rate_factor": 0.97,
    "nvls_tree_pipeline_s": 5e-6,
}
"""Where a fit starts without a profile, for a network; and for the link inside a node:"""
INNER_START: Mapping[str, float] = {"base_latency_s": 6e-6, "latency_s": 1e-6}
RATES = ("rate_factor", "ll_bandwidth_bytes_per_s", "tree_rate_factor", "send_rate_factor")
BASE_FIELDS = ("base_latency_s", "latency_s")
RING = ("base_latency_s", "latency_s", "rate_factor", "pipeline_s")
SHAPES = ("simple_step_s", "ll_bandwidth_bytes_per_s")
SEND = ("send_latency_s", "send_pipeline_s", "send_rate_factor")
TREE = ("tree_step_s", "tree_pipeline_s", "tree_rate_factor", "nvls_tree_pipeline_s")
NVLS = ("nvls_latency_s", "nvls_pipeline_s", "nvls_rate_factor")
A2A = ("all_to_all_latency_s", "all_to_all_pipeline_s")


class FabricRun(NamedTuple):
    """One sweep: what was run where, and the times."""

    name: str
    primitive: str
    group: Group
    inner: str
    network: str | None
    algorithm: str
    size_bytes: Array
    time_s: Array

    @property
    def nodes(self) -> float:
        """Nodes of the run."""
        return float(self.group.ranks / self.group.members[0])


class Confidence(NamedTuple):
    """A fitted constant: its value, relative standard error, and how much the runs told of it, 0 to 1."""

    value: float
    spread: float
    variance_explained: float


class Fitted(NamedTuple):
    """A link, with its constants on the tier too."""

    tier: Tier
    fabric: Fabric
    points: int
    residual: float
    confidence: Mapping[str, Confidence]
    cost: float


def predict(run: FabricRun, inner: Tier, network: Tier) -> Array:
    """Price a run's sizes."""
    cost = collective_time(
        run.primitive, run.size_bytes, run.group, (inner, network), algorithm=run.algorithm
    )
    return np.asarray(cost.time_s)


def with_constants(tier: Tier, values: Mapping[str, float], known: Fabric) -> Tier:
    """Put fitted values on a tier: its two base latencies and the constants of the library."""
    base: dict[str, Any] = {key: values[key] for key in BASE_FIELDS if key in values}
    fabric = known._replace(**{key: value for key, value in values.items() if key not in BASE_FIELDS})
    # No ring is faster than the wire.
    fabric = fabric._replace(rate_factor=min(fabric.rate_factor, 1.0 / tier.efficiency))
    return replace(tier, **base, fabric=fabric)


def free_names(runs: Iterable[FabricRun], *, network: bool) -> list[str]:
    """List the constants that these runs can tell."""
    kinds = {run.primitive for run in runs}
    names = [*RING, *(SHAPES if network else ("pipeline_step_s",))]
    if not network and kinds & {"all_gather", "reduce_scatter"}:
        names.append("copy_bandwidth_bytes_per_s")
    if "all_reduce" in kinds and network:
        names += TREE
    if "all_to_all" in kinds:
        names += A2A
    if "send_recv" in kinds:
        names += SEND
    return names


def predict_inner(run: FabricRun, tier: Tier) -> Array:
    """Price a run of one node over its link."""
    return predict(run, tier, tier)


def fit_constants(
    runs: Sequence[FabricRun],
    price: Callable[[FabricRun, Tier], Array],
    tier: Tier,
    names: Sequence[str],
    start: Mapping[str, float],
    known: Fabric,
    *,
    network: bool,
    trust: float = 1.0,
    begin: Mapping[str, float] | None = None,
) -> Fitted:
    """Fit the constants `names` of a tier to `runs`, pulled to `start` by `trust`; the search begins there or at `begin`."""

    def fitted(x: Array) -> Tier:
        return with_constants(tier, dict(zip(names, x, strict=True)), known)

    def model(x: Array) -> Array:
        made = fitted(x)
        return np.concatenate([price(run, made) for run in runs])

    measured = np.concatenate([run.time_s for run in runs])
    weight = np.where(np.concatenate([run.size_bytes for run in runs]) >= LARGE_BYTES, LARGE_WEIGHT, 1.0)
    firm = {"latency_s": 1.0, "rate_factor": 2.0, "tree_rate_factor": 1.0} if network else {}
    pull = [trust * firm.get(name, 0.3) for name in names]
    centre = np.array([start[name] for name in names])
    first = None if begin is None else np.array([begin.get(name, start[name]) for name in names])
    found = fit_pulled(model, centre, measured, pull=pull, weight=weight, begin=first)
    best = fitted(found.values)
    residual = float(np.mean(np.abs(model(found.values) / measured - 1.0)))
    columns = (column.tolist() for column in (found.values, found.spread, found.variance_explained))
    facts = {name: Confidence(*row) for name, *row in zip(names, *columns, strict=True)}
    return Fitted(best, best.fabric, len(measured), residual, facts, found.cost)


def plain_ring(run: FabricRun) -> Array:
    """Best alpha-beta of this very run, T0 + wire bytes / B: the yardstick."""
    wire = bus_bytes(run.primitive, run.size_bytes, float(run.group.ranks))
    start = np.array([run.time_s.min(), float(np.max(wire / run.time_s))])
    x = fit_pulled(lambda p: p[0] + wire / p[1], start, run.time_s, pull=0.0).values
    return np.asarray(x[0] + wire / x[1])


def score(runs: Iterable[FabricRun], price: Callable[[FabricRun], Array]) -> pd.DataFrame:
    """Relative errors point by point: of our model, and of the plain ring."""
    frames = []
    for run in runs:
        fitted = price(run)
        signed = fitted / run.time_s - 1.0
        plain = np.abs(plain_ring(run) / run.time_s - 1.0) if len(run.time_s) > 2 else np.nan
        row: dict[str, Any] = {"run": run.name, "collective": run.primitive, "ranks": int(run.group.ranks)}
        row |= {"nodes": int(run.nodes), "network": run.network or run.inner, "size": run.size_bytes}
        row |= {"measured": run.time_s, "fitted": fitted, "signed": signed}
        frames.append(pd.DataFrame({**row, "error": np.abs(signed), "plain": plain}))
    return pd.concat(frames, ignore_index=True)


def quantity_text(name: str, value: float) -> str:
    """Write a constant as the profiles do, with its unit."""
    if name.endswith("bytes_per_s"):
        return f"{value / 1e9:.4g} GB/s"
    if name.endswith("_s"):
        return f"{value * 1e6:.4g} us"
    return f"{value:.4g}"


def fabric_block(
    fabric: Fabric, *, basis: str, source: str, points: int = 0, residual: float | None = None
) -> dict[str, Any]:
    """Return the ``fabric:`` block of a link file; constants at their default are left out."""
    block: dict[str, Any] = {"basis": basis, "source": source}
    if residual is not None:
        block |= {"points": points, "residual": round(residual, 3)}
    for name, value in fabric._asdict().items():
        if value != Fabric._field_defaults[name]:
            text = quantity_text(name, value)
            has_unit = name.endswith("_s")
            block[name.removesuffix("_bytes_per_s").removesuffix("_s")] = text if has_unit else float(text)
    return block
