"""The network as tables: the mesh of a layout with what its axes send, and what a collective costs by each algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_seconds
from costmodel.estimates.collective import CollectiveCosts, Placed, Price, best_of, dominant, label, size_text
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


# --- a collective ---


def cost_grids(found: CollectiveCosts) -> list[Grid]:
    """Return the tables of one size, or one of a range of sizes."""
    return _one_size_grids(found) if found.one_size else [_range_grid(found)]


def cost_remarks(found: CollectiveCosts) -> list[str]:
    """Answer in a sentence, where one size is asked for: the time, by what, and what dominates."""
    if not found.one_size:
        return []
    best = best_of(found.prices, 0)
    time = format_seconds(float(best.time_s[0]), 4)
    if found.placed.ranks == 1:
        return [f"{found.title}: one rank has nobody to send to."]
    return [f"{found.title}: {time} by {label(best)}; {dominant(best)} dominates."]


def _figures(price: Price, index: int) -> dict[str, Any]:
    """Return the figures of an algorithm at one of its sizes."""
    names = ("latency_s", "transfer_s", "time_s", "algbw_bytes_per_s", "busbw_bytes_per_s")
    return {"price": price, **{name: float(getattr(price, name)[index]) for name in names}}


def _one_size_grids(found: CollectiveCosts) -> list[Grid]:
    """Return every algorithm, what the library takes when, and the fabric."""
    rows = [
        {
            **_figures(price, 0),
            "label": label(price),
            "taken": "taken" if price.chosen[0] else f"needs {price.needs}" if price.needs else "",
        }
        for price in found.prices
    ]
    strong = frozenset(index for index, price in enumerate(found.prices) if price.chosen[0])
    note = f"{place_text(found.placed)}. n*: size from which an algorithm's transfer takes longer than its latency."
    grids = [table_of("algorithms", rows, title=found.title, strong=strong, note=note)]
    if len(found.choices) > 1:
        grids.append(table_of("choices", found.choices))
    return [*grids, _fabric_grid(found.placed)]


def _range_grid(found: CollectiveCosts) -> Grid:
    """Return a row a size: what is taken, and the best of the textbook beside it."""
    prices = found.prices
    textbook = [price for price in prices if price.family == "textbook" and not price.needs]

    def rival(index: int) -> Price:
        return min(textbook or [best_of(prices, index)], key=lambda price: float(price.time_s[index]))

    rows = []
    for index, size in enumerate(prices[0].size_bytes):
        best, other = best_of(prices, index), rival(index)
        rows.append(
            {
                **_figures(best, index),
                "size": size_text(float(size)),
                "other": other.algorithm,
                "other_s": other.time_s[index],
            }
        )
    note = f"{place_text(found.placed)}. CSV and JSON have every algorithm."
    return table_of("sizes", rows, title=found.title, note=note)


def _fabric_grid(placed: Placed) -> Grid:
    """Return the tiers with the alpha, the rate and the n* = alpha B of each."""
    rows = [
        {
            "tier": tier,
            "rate": (rate := float(tier.achieved_bandwidth_bytes_per_s / placed.concurrent)),
            "crossover": tier.latency_s * rate,
            "used": "textbook" if tier is placed.outermost else "",
        }
        for tier in placed.tiers
    ]
    return table_of("fabric", rows)


def place_text(placed: Placed) -> str:
    """Say where the members sit."""
    if not placed.tiers[0].link:
        return "A flat fabric of one latency and one rate"
    members = placed.group.members
    placements = [f"{int(m)} in a {t.name} of {t.size:,}" for t, m in zip(placed.tiers, members, strict=True)]
    crossed = next((i for i, m in enumerate(members) if m >= placed.ranks), len(placements) - 1)
    return ", ".join(placements[: crossed + 1])
