"""A collective for people and programs: every algorithm with its parts, choices, and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_seconds, format_si
from costmodel.estimates.collective import Choice, Placed, Price, dominant


def label(price: Price) -> str:
    """Name an algorithm with the family that it is of."""
    return f"{price.family} {price.algorithm}"


def crossover_text(size_bytes: float) -> str:
    """Write a size at which something changes."""
    return format_si(size_bytes, "B") if np.isfinite(size_bytes) else "–"


def place_text(placed: Placed) -> str:
    """Say where the members sit."""
    if not placed.tiers[0].link:
        return "A flat fabric of one latency and one rate"
    held = [
        f"{int(m)} in a {t.name} of {t.size:,}"
        for t, m in zip(placed.tiers, placed.group.members, strict=True)
    ]
    crossed = next((i for i, m in enumerate(placed.group.members) if m >= placed.ranks), len(held) - 1)
    return ", ".join(held[: crossed + 1])


def fabric_grid(placed: Placed) -> Grid:
    """Return the tiers with the alpha, the rate and the n* = alpha B of each."""
    rows = []
    for index, tier in enumerate(placed.tiers):
        rate = tier.achieved_bandwidth_bytes_per_s / placed.concurrent
        mark = "textbook" if index == placed.flat_tier else ""
        rows.append(
            [
                tier.name,
                tier.link,
                format_seconds(tier.latency_s),
                format_si(rate, "B/s"),
                crossover_text(tier.latency_s * rate),
                mark,
            ]
        )
    note = "alpha of one step and rate a GPU gets, per direction; n* = alpha B: a message half latency."
    return Grid("Fabric", columns("Tier", "Link", "alpha >", "B >", "n* >", "Used by"), rows, note=note)


def one_size_grids(
    title: str, prices: Sequence[Price], picks: Sequence[Choice], placed: Placed
) -> list[Grid]:
    """Return the tables of one size: every algorithm, what the library takes when, the fabric."""
    rows = []
    strong = frozenset(i for i, price in enumerate(prices) if price.chosen[0])
    for price in prices:
        mark = "taken" if price.chosen[0] else f"needs {price.needs}" if price.needs else ""
        rows.append([label(price), *_figures(price, 0), crossover_text(price.crossover_bytes), mark])
    titles = columns("Algorithm", "Latency >", "Transfer >", "Time >", "algbw >", "busbw >", "n* >", "")
    note = f"{place_text(placed)}. n*: size from which an algorithm's transfer takes longer than its latency."
    grids = [Grid(title, titles, rows, strong, note)]
    if len(picks) > 1:
        spans = [
            [
                one.algorithm,
                crossover_text(one.from_bytes) if one.from_bytes else "0 B",
                crossover_text(one.to_bytes),
            ]
            for one in picks
        ]
        grids.append(Grid("What the library takes", columns("Algorithm", "From >", "To >"), spans))
    return [*grids, fabric_grid(placed)]


def _figures(price: Price, index: int) -> list[str]:
    """Write latency, transfer, time and the two bandwidths of one size."""
    return [
        format_seconds(float(price.latency_s[index])),
        format_seconds(float(price.transfer_s[index])),
        format_seconds(float(price.time_s[index]), 4),
        format_si(float(price.algbw_bytes_per_s[index]), "B/s"),
        format_si(float(price.busbw_bytes_per_s[index]), "B/s"),
    ]


def headline(title: str, prices: Sequence[Price]) -> str:
    """Answer in a sentence: the time, by what, and what dominates."""
    best = best_of(prices, 0)
    time = format_seconds(float(best.time_s[0]), 4)
    return f"{title}: {time} by {label(best)}; {dominant(best)} dominates."


def best_of(prices: Sequence[Price], index: int) -> Price:
    """Return what is taken at a size; where no library chooses, the fastest that any fabric can run."""
    for price in prices:
        if price.chosen[index]:
            return price
    free = [price for price in prices if not price.needs]
    return min(free or prices, key=lambda price: float(price.time_s[index]))


def range_grid(title: str, prices: Sequence[Price], placed: Placed) -> Grid:
    """Return a row a size: what is taken, and the best of the textbook beside it."""
    rows = []
    textbook = [price for price in prices if price.family == "textbook" and not price.needs]
    for i, size in enumerate(prices[0].size_bytes):
        best = best_of(prices, i)
        other = min(textbook, key=lambda price: float(price.time_s[i])) if textbook else best
        rows.append(
            [
                size_text(size),
                best.algorithm,
                *_figures(best, i),
                other.algorithm,
                format_seconds(float(other.time_s[i])),
            ]
        )
    titles = columns(
        "Size >",
        "Taken",
        "Latency >",
        "Transfer >",
        "Time >",
        "algbw >",
        "busbw >",
        "Best textbook",
        "Its time >",
    )
    return Grid(title, titles, rows, note=f"{place_text(placed)}. CSV and JSON have every algorithm.")


def size_text(size_bytes: float) -> str:
    """Write a size exactly: powers of two by binary prefixes, others in bytes."""
    for scale, unit in ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB")):
        if size_bytes % scale == 0 and 1 <= size_bytes / scale < 1024:
            return f"{size_bytes / scale:.0f} {unit}"
    return format_si(size_bytes, "B")


def price_columns(collective: str, prices: Sequence[Price], placed: Placed) -> dict[str, list[Any]]:
    """Return the long form: a row a size and algorithm."""
    table: dict[str, list[Any]] = {}
    for price in prices:
        for i, size in enumerate(price.size_bytes):
            row: Mapping[str, Any] = {
                "collective": collective,
                "ranks": placed.ranks,
                "size_bytes": float(size),
                "family": price.family,
                "algorithm": price.algorithm,
                "chosen": bool(price.chosen[i]),
                "needs": price.needs,
                "latency_s": float(price.latency_s[i]),
                "transfer_s": float(price.transfer_s[i]),
                "time_s": float(price.time_s[i]),
                "wire_bytes": float(price.wire_bytes[i]),
                "algbw_bytes_per_s": float(price.algbw_bytes_per_s[i]),
                "busbw_bytes_per_s": float(price.busbw_bytes_per_s[i]),
                "crossover_bytes": price.crossover_bytes if np.isfinite(price.crossover_bytes) else None,
            }
            for key, value in row.items():
                table.setdefault(key, []).append(value)
    return table


def price_record(
    collective: str, prices: Sequence[Price], picks: Sequence[Choice], placed: Placed
) -> dict[str, Any]:
    """Return everything as plain data."""
    table = price_columns(collective, prices, placed)
    rows = [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]
    members = {tier.name: int(m) for tier, m in zip(placed.tiers, placed.group.members, strict=True)}
    return {
        "schema_version": 1,
        "collective": collective,
        "ranks": placed.ranks,
        "members_by_tier": members,
        "concurrent": placed.concurrent,
        "choices": [
            {
                "algorithm": one.algorithm,
                "from_bytes": one.from_bytes,
                "to_bytes": one.to_bytes if np.isfinite(one.to_bytes) else None,
            }
            for one in picks
        ],
        "prices": rows,
    }
