"""A collective as tables: every algorithm with its parts, and choices by size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_seconds, format_si
from costmodel.estimates.collective import (
    Choice,
    CollectiveCosts,
    Placed,
    Price,
    best_of,
    dominant,
    label,
    size_text,
)


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


def cost_remarks(found: CollectiveCosts) -> list[str]:
    """Answer in a sentence, where one size is asked for: the time, by what, and what dominates."""
    if not found.one_size:
        return []
    best = best_of(found.prices, 0)
    time = format_seconds(float(best.time_s[0]), 4)
    return [f"{found.title}: {time} by {label(best)}; {dominant(best)} dominates."]


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


def cost_grids(found: CollectiveCosts) -> list[Grid]:
    """Return the tables of one size, or one of a range of sizes."""
    if found.one_size:
        return one_size_grids(found.title, found.prices, found.choices, found.placed)
    return [range_grid(found.title, found.prices, found.placed)]
