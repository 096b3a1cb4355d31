"""A collective as tables: every algorithm with its parts, and choices by size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from costmodel.base.grid import Grid
from costmodel.base.units import format_seconds, format_si
from costmodel.estimates.collective import CollectiveCosts, Placed, Price, best_of, dominant, label, size_text
from costmodel.reporting.cells import Form, table_of


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


def _figures(at: Callable[[Any], tuple[Price, int]]) -> dict[str, Form]:
    """Return the columns of an algorithm at one of its sizes, both named by a row."""

    def of(name: str, form: Callable[[float], str]) -> Callable[[Any], str]:
        return lambda row: form(float(getattr(at(row)[0], name)[at(row)[1]]))

    def rate(value: float) -> str:
        return format_si(value, "B/s")

    return {
        "Latency >": of("latency_s", format_seconds),
        "Transfer >": of("transfer_s", format_seconds),
        "Time >": of("time_s", lambda value: format_seconds(value, 4)),
        "algbw >": of("algbw_bytes_per_s", rate),
        "busbw >": of("busbw_bytes_per_s", rate),
    }


def _one_size_grids(found: CollectiveCosts) -> list[Grid]:
    """Return every algorithm, what the library takes when, and the fabric."""
    own = _figures(lambda price: (price, 0)) | {
        "Algorithm": label,
        "n* >": lambda price: crossover_text(price.crossover_bytes),
        "": lambda price: "taken" if price.chosen[0] else f"needs {price.needs}" if price.needs else "",
    }
    strong = frozenset(index for index, price in enumerate(found.prices) if price.chosen[0])
    note = f"{place_text(found.placed)}. n*: size from which an algorithm's transfer takes longer than its latency."
    grids = [table_of("algorithms", found.prices, own, title=found.title, strong=strong, note=note)]
    if len(found.choices) > 1:
        ends = {
            "From >": lambda choice: crossover_text(choice.from_bytes) if choice.from_bytes else "0 B",
            "To >": lambda choice: crossover_text(choice.to_bytes),
        }
        grids.append(table_of("choices", found.choices, ends))
    return [*grids, _fabric_grid(found.placed)]


def _range_grid(found: CollectiveCosts) -> Grid:
    """Return a row a size: what is taken, and the best of the textbook beside it."""
    prices = found.prices
    textbook = [price for price in prices if price.family == "textbook" and not price.needs]

    def other(index: int) -> Price:
        return min(textbook or [best_of(prices, index)], key=lambda price: float(price.time_s[index]))

    own = _figures(lambda index: (best_of(prices, index), index)) | {
        "Size >": lambda index: size_text(float(prices[0].size_bytes[index])),
        "Taken": lambda index: best_of(prices, index).algorithm,
        "Best textbook": lambda index: other(index).algorithm,
        "Its time >": lambda index: format_seconds(float(other(index).time_s[index])),
    }
    note = f"{place_text(found.placed)}. CSV and JSON have every algorithm."
    return table_of("sizes", range(len(prices[0].size_bytes)), own, title=found.title, note=note)


def _fabric_grid(placed: Placed) -> Grid:
    """Return the tiers with the alpha, the rate and the n* = alpha B of each."""

    def rate(tier: Any) -> float:
        return float(tier.achieved_bandwidth_bytes_per_s / placed.concurrent)

    used = placed.tiers[placed.flat_tier] if placed.flat_tier is not None else None
    own = {
        "B >": lambda tier: format_si(rate(tier), "B/s"),
        "n* >": lambda tier: crossover_text(tier.latency_s * rate(tier)),
        "Used by": lambda tier: "textbook" if tier is used else "",
    }
    return table_of("fabric", placed.tiers, own)


def crossover_text(size_bytes: float) -> str:
    """Write a size at which something changes."""
    return format_si(size_bytes, "B") if np.isfinite(size_bytes) else "–"


def place_text(placed: Placed) -> str:
    """Say where the members sit."""
    if not placed.tiers[0].link:
        return "A flat fabric of one latency and one rate"
    members = placed.group.members
    placements = [f"{int(m)} in a {t.name} of {t.size:,}" for t, m in zip(placed.tiers, members, strict=True)]
    crossed = next((i for i, m in enumerate(members) if m >= placed.ranks), len(placements) - 1)
    return ", ".join(placements[: crossed + 1])
