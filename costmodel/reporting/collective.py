"""A collective as tables: every algorithm with its parts, and choices by size."""

from __future__ import annotations

from typing import Any

from costmodel.base.grid import Grid
from costmodel.base.units import format_seconds
from costmodel.estimates.collective import CollectiveCosts, Placed, Price, best_of, dominant, label, size_text
from costmodel.reporting.cells import table_of


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
