"""The mesh as a table; with a bill, what each axis sends and costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from costmodel.base.grid import Grid, columns
from costmodel.estimates.mesh import MeshRow, MeshTable, RankTable
from costmodel.estimates.priced_job import PricedJob
from costmodel.reporting.cells import say, table_of

_SHOWN = 16
"""Ranks of a group that a terminal shows."""
_SENT = "Link: the slowest that an axis crosses. Sent: over faster links inside that too, so Sent / Busy is no rate of it."
_PAID = ("Sent/GPU/step >", "Busy >", "Exposed >")
_UNPAID = dict.fromkeys(("sent", "busy", "exposed"))
_WHERE = {
    "grad": ("dp", "shard"),
    "grad_replica": ("replica", "dp", "shard"),
    "edp": ("edp", "dp", "shard"),
    "edp_replica": ("edp", "replica", "dp", "shard"),
}
"""Rows of the table that a group of the data axis may stand in; the first that there is."""


def mesh_grids(found: MeshTable) -> list[Grid]:
    """Return a row an axis."""
    return [mesh_grid(found.rows)]


def rank_grids(found: RankTable) -> list[Grid]:
    """Return a row a rank with its coordinates, and a row a group."""
    places = [list(map(str, row)) for row in zip(*found.columns().values(), strict=True)]
    groups = [
        [dim, _ranks_text(ranks)] for dim, of_axis in found.groups.items() for ranks in of_axis.tolist()
    ]
    titles = ["Rank >", *(f"{dim} >" for dim in found.coordinates)]
    return [
        Grid("Coordinates (innermost axis first)", columns(*titles), places),
        Grid("Groups", columns("Dim", "Ranks"), [row for row in groups if " " in row[1]]),
    ]


def _ranks_text(ranks: Sequence[int]) -> str:
    """List ranks; of many, the first ones and the last."""
    more = f" … {ranks[-1]} ({len(ranks):,} ranks)" if len(ranks) > _SHOWN else ""
    return " ".join(map(str, ranks[:_SHOWN])) + more


def mesh_grid(rows: Sequence[MeshRow], est: PricedJob | None = None) -> Grid:
    """Return the table Dim · Factor · Groups · Link · Comm; with a bill, what each axis sends and costs."""
    known: list[dict[str, Any]] = [
        {
            "row": row,
            "factor": row.factor if row.link else 1,
            "groups": row.groups if row.link else None,
            "link": say("{link} ({bandwidth_bytes_per_s:B/s})", row) if row.link else None,
            "comm": row.comm if row.link else None,
        }
        for row in rows
    ]
    note = ""
    if est is not None:
        paid = _paid(est, {row.dim for row in rows})
        for each in known:
            sent, busy, exposed = paid.get(each["row"].dim, (None, 0.0, None))
            each |= {"sent": sent, "busy": busy, "exposed": exposed} if busy else _UNPAID
        names = [tier.name for tier in est.job.cluster.tiers]
        # Ranks of an axis meet on faster links than its slowest too.
        mixed = [row for row in rows if row.link and max((1, *row.members[: names.index(row.link)])) > 1]
        note = _SENT if mixed else ""
    return table_of("mesh", known, without=_PAID if est is None else (), note=note)


def _paid(est: PricedJob, dims: set[str]) -> dict[str, tuple[float, float, float]]:
    """Add up bytes, busy and exposed seconds of the communication lines of each axis of the mesh."""
    total: dict[str, tuple[float, float, float]] = {}
    for line in est.bill.time_lines:
        if line.category == "communication":
            # Experts and replicas have an axis of their own.
            dim = next((dim for dim in _WHERE.get(line.group, (line.group,)) if dim in dims), line.axis)
            sent, busy, exposed = total.get(dim, (0.0, 0.0, 0.0))
            more = float(np.asarray(line.bytes)), float(line.seconds), float(line.exposed_seconds)
            total[dim] = sent + more[0], busy + more[1], exposed + more[2]
    return total
