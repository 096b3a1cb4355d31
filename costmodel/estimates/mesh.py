"""The mesh table: each axis with its factor, its groups, the link they meet on and what they send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.base.answer import Answer, columns_of
from costmodel.base.errors import LayoutError
from costmodel.base.words import DEVICE, errors_with_device_name
from costmodel.describe.jobs.fields import PLACE_FIELDS, shows
from costmodel.describe.jobs.job import expand_layout
from costmodel.describe.jobs.layout import place_groups, require_ranks
from costmodel.describe.jobs.merge import placement
from costmodel.describe.jobs.reading import keywords
from costmodel.estimates.priced_job import PricedJob
from costmodel.physics.network.expert_dispatch import DISPATCHERS
from costmodel.physics.network.mesh import Group, slowest_tier, split_group

if TYPE_CHECKING:
    from costmodel.describe.hardware.cluster import Cluster
    from costmodel.describe.jobs.layout import Layout
    from costmodel.describe.recipe import Recipe

_CP_COMM = {
    "ring": "send/recv of keys and values",
    "all-gather": "all-gather of keys and values",
    "ulysses": "all-to-all of heads and sequence",
    "a2a+p2p": "all-to-all of heads among neighbours, send/recv of keys and values",
}


class MeshRow(NamedTuple):
    """One axis of the mesh; `link` is empty for an axis of one."""

    dim: str
    factor: int
    groups: int
    link: str
    bandwidth_bytes_per_s: float  # Per GPU and direction, over the link's oversubscription
    members: tuple[int, ...]  # Members of one group inside one domain of each tier, innermost first
    comm: str


def mesh_rows(layout: Layout, cluster: Cluster, order: Sequence[str], recipe: Recipe) -> list[MeshRow]:
    """Place one layout on a cluster and describe each axis, innermost first, then the experts' axes."""
    require_ranks(layout)
    gpus = float(layout.gpus)
    if gpus > cluster.max_gpus:
        raise LayoutError(
            f"gpus: {gpus:.0f} is more than cluster {cluster.name} can hold ({cluster.max_gpus})"
        )
    mesh = place_groups(layout, cluster, order)
    sequence = float(layout.sequence_parallel) > 0
    tp_comm = "all-gather + reduce-scatter of activations" if sequence else "all-reduce of activations"
    dense = {
        "tp": [("tp", mesh.tp, tp_comm)],
        "cp": [("cp", mesh.cp, _CP_COMM[recipe.overlap.cp_method])],
        "pp": [("pp", mesh.pp, "send/recv of activations")],
        "dp": _data_axes(layout, mesh.dp, mesh.grad),
    }
    axes = [row for axis in order for row in dense[axis]]
    if float(layout.ep * layout.etp) > 1:
        axes += [
            ("ep", mesh.ep, DISPATCHERS[recipe.moe.moe_dispatcher].description),
            ("etp", mesh.etp, "all-gather + reduce-scatter of tokens"),
            ("edp", mesh.edp, _gradient_comm(layout) + " (experts)"),
        ]
    return [_row(dim, group, comm, gpus, cluster) for dim, group, comm in axes]


def _data_axes(layout: Layout, dp: Group, grad: Group) -> list[tuple[str, Group, str]]:
    """Return data parallelism as one axis, or as shards and their replicas (HSDP)."""
    shard = float(layout.shard_group)
    if shard > 0 and float(layout.zero_stage) > 0 and shard < float(grad.ranks):
        inner, replicas = split_group(grad, shard)
        return [("shard", inner, _gradient_comm(layout)), ("replica", replicas, "all-reduce of gradients")]
    return [("dp", dp, _gradient_comm(layout))]


def _gradient_comm(layout: Layout) -> str:
    """Say what data parallelism sends at this ZeRO stage."""
    stage = int(layout.zero_stage)
    if stage == 0:
        return "all-reduce of gradients"
    how_often = "of each layer" if stage == 3 else "of gradients and parameters"
    return f"all-gather + reduce-scatter {how_often}"


def _row(dim: str, group: Group, comm: str, gpus: float, cluster: Cluster) -> MeshRow:
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


_OF_EXPERTS = ("etp", "ep", "edp")  # Axes over the ranks of one pipeline stage, innermost first


def rank_groups(rows: Sequence[MeshRow]) -> dict[str, NDArray[np.int64]]:
    """Return the ranks of each group, a row a group, by axis.

    Ranks are numbered along the axes, innermost first (Megatron-LM, ``megatron/core/parallel_state.py``:
    ``RankGenerator``); a group holds those that differ in its own axis alone.

    >>> row = MeshRow("tp", 2, 3, "nvlink", 0.0, (), "")
    >>> rows = [row, row._replace(dim="dp", factor=3), row._replace(dim="pp", factor=1)]
    >>> {axis: groups.tolist() for axis, groups in rank_groups(rows).items() if axis != "pp"}
    {'tp': [[0, 1], [2, 3], [4, 5]], 'dp': [[0, 2, 4], [1, 3, 5]]}
    """
    factors = {row.dim: row.factor for row in rows}

    def along(grid: NDArray[np.int64], axis: int) -> NDArray[np.int64]:
        return np.moveaxis(grid, axis, 0).reshape(grid.shape[axis], -1, order="F").T

    dense = [dim for dim in factors if dim not in _OF_EXPERTS]
    every = np.arange(rows[0].factor * rows[0].groups)
    grid = every.reshape([factors[dim] for dim in dense], order="F")
    found = {dim: along(grid, axis) for axis, dim in enumerate(dense)}
    if "ep" in factors:
        stages = np.moveaxis(grid, dense.index("pp"), -1)
        grid = stages.reshape(*(factors[dim] for dim in _OF_EXPERTS), -1, order="F")
        found |= {dim: along(grid, axis) for axis, dim in enumerate(_OF_EXPERTS)}
    return {dim: found[dim] for dim in factors}


class RankTable(Answer):
    """Where ranks of a job stand on each axis, and the ranks of the groups that they belong to."""

    def __init__(self, groups: Mapping[str, NDArray[np.int64]], ranks: NDArray[np.int64]) -> None:
        self.ranks, self.coordinates, self.groups = ranks, {}, {}
        for dim, members in groups.items():
            numbers, self.coordinates[dim] = np.divmod(
                np.argsort(members, axis=None)[ranks], members.shape[1]
            )
            self.groups[dim] = members[np.unique(numbers)]

    def to_dict(self) -> dict[str, Any]:
        """Return a record a rank, and the ranks of each group, as plain data."""
        table = self.columns()
        ranks = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
        groups = {dim: members.tolist() for dim, members in self.groups.items()}
        return {"schema_version": 1, "ranks": ranks, "groups": groups}

    def columns(self) -> dict[str, list[Any]]:
        """Return a row a rank: its coordinates."""
        return {
            name: of_ranks.tolist() for name, of_ranks in ({"rank": self.ranks} | self.coordinates).items()
        }


class MeshTable(Answer):
    """Each axis of a layout: its factor, its groups, the link they meet on and what they send."""

    _device = "called"

    def __init__(self, rows: Sequence[MeshRow], device: str = DEVICE) -> None:
        self.rows, self.called = tuple(rows), device

    def of_ranks(self, rank: int | None = None) -> RankTable:
        """Return the coordinates of a global rank, or of all, and the ranks of its groups, as Megatron numbers them.

        The experts' axes lie over the ranks of one pipeline stage, in their order. A `LayoutError` if there is no such rank.
        """
        every = np.arange(self.rows[0].factor * self.rows[0].groups)
        if rank is not None and not 0 <= rank < every.size:
            raise LayoutError(f"rank: {rank} is unknown; the job has ranks 0 to {every.size - 1}")
        return RankTable(rank_groups(self.rows), every if rank is None else every[[rank]])

    def to_dict(self) -> dict[str, Any]:
        """Return the rows as plain data."""
        return {"schema_version": 1, "mesh": mesh_records(self.rows)}

    def columns(self) -> dict[str, list[Any]]:
        """Return a row an axis."""
        rows = [row._asdict() for row in self.rows]
        for row in rows:
            members = " ".join(str(count) for count in row.pop("members"))
            row |= {"members_per_domain": members, "comm": row.pop("comm") or "none"}
            row["link"] = row["link"] or "none"
        return columns_of(rows)


@shows(PLACE_FIELDS)
def mesh(**placed: Any) -> MeshTable:
    """Place the axes of a layout on a cluster; needs no model.

    Parameters
    ----------
    **placed
        Of the keywords of `costmodel.estimate` those that place ranks: cluster, gpus, layout, its
        degrees, zero_stage, shard_group, sequence_parallel, recipe, switches and axis_order.

    Returns
    -------
    MeshTable
        A row an axis, innermost first, then those of the experts.

    Raises
    ------
    CostModelError
        If degrees do not divide the GPUs, the cluster is too small, or a name is unknown.

    Examples
    --------
    >>> [(row.dim, row.factor, row.link) for row in mesh(cluster="dgx-h100-ndr", gpus=64, layout="tp8").rows]
    [('tp', 8, 'nvlink'), ('cp', 1, ''), ('dp', 8, 'leaf'), ('pp', 1, '')]
    """
    layout, cluster, order, recipe = placement(expand_layout(keywords(placed, PLACE_FIELDS, who="mesh")))
    with errors_with_device_name(cluster.accelerator.called):
        return MeshTable(mesh_rows(layout, cluster, order, recipe), cluster.accelerator.called)
