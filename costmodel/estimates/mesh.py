"""The mesh table: each axis with its factor, its groups, the link they meet on and what they send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from costmodel.base.errors import LayoutError
from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_bytes, format_seconds, format_si
from costmodel.estimates.priced_job import PricedJob
from costmodel.physics.network.expert_dispatch import DISPATCHERS
from costmodel.physics.network.mesh import Group, build_mesh, slowest_tier, split_group

if TYPE_CHECKING:
    from costmodel.bill.lines import TimeLine
    from costmodel.describe.hardware.cluster import Cluster
    from costmodel.describe.jobs.layout import Layout
    from costmodel.describe.recipe import Recipe

_CP_COMM = {
    "ring": "send/recv of keys and values",
    "all-gather": "all-gather of keys and values",
    "ulysses": "all-to-all of heads and sequence",
}


class MeshRow(NamedTuple):
    """One axis of the mesh; `link` is empty for an axis of one."""

    dim: str
    factor: int
    groups: int
    link: str
    bandwidth_bytes_per_s: float
    """Line rate of the link per GPU and direction, over its oversubscription. [B/s]"""
    members: tuple[int, ...]
    """Members of one group inside one domain of each tier, innermost first."""
    comm: str


def mesh_rows(layout: Layout, cluster: Cluster, order: Sequence[str], recipe: Recipe) -> list[MeshRow]:
    """Place one layout on a cluster and describe each axis, innermost first, then the experts' axes.

    Raises
    ------
    LayoutError
        If the degrees do not divide the GPUs, or the cluster is too small.
    """
    gpus, product = float(layout.gpus), float(layout.tp * layout.cp * layout.pp)
    if gpus % product:
        raise LayoutError(
            f"layout: tp·cp·pp = {float(layout.tp):.0f}·{float(layout.cp):.0f}·{float(layout.pp):.0f} = "
            f"{product:.0f} does not divide gpus = {gpus:.0f}"
        )
    if (gpus / float(layout.pp)) % float(layout.ep * layout.etp):
        raise LayoutError(
            f"layout: ep·etp = {float(layout.ep):.0f}·{float(layout.etp):.0f} does not divide "
            f"tp·cp·dp = {gpus / float(layout.pp):.0f}"
        )
    if gpus > cluster.max_gpus:
        raise LayoutError(
            f"gpus: {gpus:.0f} is more than cluster {cluster.name} can hold ({cluster.max_gpus})"
        )
    mesh = build_mesh(
        tp=layout.tp,
        cp=layout.cp,
        pp=layout.pp,
        dp=layout.dp,
        ep=layout.ep,
        etp=layout.etp,
        tier_sizes=[float(tier.size) for tier in cluster.tiers],
        order=order,
    )
    sequence = float(layout.sequence_parallel) > 0
    tp_comm = "all-gather + reduce-scatter of activations" if sequence else "all-reduce of activations"
    held: list[tuple[str, Group, str]] = []
    for axis in order:
        if axis == "tp":
            held.append(("tp", mesh.tp, tp_comm))
        elif axis == "cp":
            held.append(("cp", mesh.cp, _CP_COMM[recipe.overlap.cp_method]))
        elif axis == "pp":
            held.append(("pp", mesh.pp, "send/recv of activations"))
        else:
            held += _data_axes(layout, mesh.dp, mesh.grad)
    if float(layout.ep * layout.etp) > 1:
        held += [
            ("ep", mesh.ep, DISPATCHERS[recipe.moe.moe_dispatcher].description),
            ("etp", mesh.etp, "all-gather + reduce-scatter of tokens"),
            ("edp", mesh.edp, _gradient_comm(layout) + " (experts)"),
        ]
    return [_row(dim, group, comm, gpus, cluster) for dim, group, comm in held]


def _data_axes(layout: Layout, dp: Group, grad: Group) -> list[tuple[str, Group, str]]:
    """Return data parallelism as one axis, or as shards and their replicas (HSDP)."""
    shard = float(layout.shard_group)
    if shard > 0 and float(layout.zero_stage) > 0 and shard < float(grad.ranks):
        inner, replicas = split_group(grad, shard)
        return [
            ("shard", inner, _gradient_comm(layout)),
            ("replica", replicas, "all-reduce of gradients"),
        ]
    return [("dp", dp, _gradient_comm(layout))]


def _gradient_comm(layout: Layout) -> str:
    """Say what data parallelism sends at this ZeRO stage."""
    stage = int(layout.zero_stage)
    if stage == 0:
        return "all-reduce of gradients"
    how_often = "of each layer" if stage == 3 else "of gradients and parameters"
    return f"all-gather + reduce-scatter {how_often}"


def _row(dim: str, group: Group, comm: str, gpus: float, cluster: Cluster) -> MeshRow:
    """Describe one group."""
    ranks, tier = float(group.ranks), int(slowest_tier(group))
    members = tuple(int(m) for m in group.members)
    if tier < 0:
        return MeshRow(dim, 1, int(gpus), "", 0.0, members, "")
    link = cluster.tiers[tier]
    rate = link.bandwidth_bytes_per_s / link.oversubscription
    return MeshRow(dim, round(ranks), round(gpus / ranks), link.name, rate, members, comm)


def mesh_of(est: PricedJob) -> list[MeshRow]:
    """Return the mesh rows of an estimate of one layout."""
    job = est.job
    return mesh_rows(job.layout, job.cluster, job.axis_order, job.recipe)


def mesh_records(rows: Sequence[MeshRow]) -> list[dict[str, Any]]:
    """Return the rows as plain data: `link` is none for an axis of one."""
    return [{**row._asdict(), "link": row.link or None, "members": list(row.members)} for row in rows]


def mesh_columns(rows: Sequence[MeshRow]) -> dict[str, list[Any]]:
    """Return the rows as columns of a CSV."""
    return {
        "dim": [row.dim for row in rows],
        "factor": [row.factor for row in rows],
        "groups": [row.groups for row in rows],
        "link": [row.link or "none" for row in rows],
        "bandwidth_bytes_per_s": [row.bandwidth_bytes_per_s for row in rows],
        "members_per_domain": [" ".join(str(m) for m in row.members) for row in rows],
        "comm": [row.comm or "none" for row in rows],
    }


def mesh_grid(rows: Sequence[MeshRow], est: PricedJob | None = None) -> Grid:
    """Return the table Dim · Factor · Groups · Link · Comm; with a bill, what each axis sends and costs."""
    titles = ["Dim", "Factor >", "Groups >", "Link", "Comm"]
    paid = _paid(est, {row.dim for row in rows}) if est is not None else {}
    cells = []
    for row in rows:
        if not row.link:
            cells.append([row.dim, "1", "–", "–", "–"])
        else:
            link = f"{row.link} ({format_si(row.bandwidth_bytes_per_s, 'B/s')})"
            cells.append([row.dim, f"{row.factor:,}", f"{row.groups:,}", link, row.comm])
        if est is not None:
            sent, busy, exposed = paid.get(row.dim, (0.0, 0.0, 0.0))
            known = busy > 0
            cells[-1] += (
                [format_bytes(sent), format_seconds(busy), format_seconds(exposed)] if known else ["–"] * 3
            )
    if est is not None:
        titles += ["Sent/GPU/step >", "Busy >", "Exposed >"]
    return Grid("Mesh (innermost first; link rate per GPU and direction)", columns(*titles), cells)


def _paid(est: PricedJob, dims: set[str]) -> dict[str, tuple[float, float, float]]:
    """Add up bytes, busy and exposed seconds of the communication lines of each axis of the mesh."""
    total: dict[str, tuple[float, float, float]] = {}
    for line in est.bill.time_lines:
        if line.toll != "communication":
            continue
        dim = _dim_of(line, dims)
        sent, busy, exposed = total.get(dim, (0.0, 0.0, 0.0))
        total[dim] = (
            sent + float(np.asarray(line.bytes)),
            busy + float(line.seconds),
            exposed + float(line.exposed_seconds),
        )
    return total


_WHERE = {
    "grad": ("dp", "shard"),
    "grad_replica": ("replica", "dp", "shard"),
    "edp": ("edp", "dp", "shard"),
    "edp_replica": ("edp", "replica", "dp", "shard"),
}
"""Rows of the table that a group of the data axis may stand in; the first that there is."""


def _dim_of(line: TimeLine, dims: set[str]) -> str:
    """Return the axis of the mesh that a line runs on: experts and replicas have their own."""
    return next((dim for dim in _WHERE.get(line.group, (line.group,)) if dim in dims), line.axis)
