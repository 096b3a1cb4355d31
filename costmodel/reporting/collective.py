"""A collective as tables: every algorithm with its parts, and choices by size."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from costmodel.base.grid import Grid
from costmodel.base.units import format_seconds, format_si
from costmodel.estimates.collective import CollectiveCosts, Placed, Price, best_of, dominant, label, size_text
from costmodel.reporting.cells import grid_of


def cost_grids(found: CollectiveCosts) -> list[Grid]:
    """Return the tables of one size, or one of a range of sizes."""
    return _one_size_grids(found) if found.one_size else [_range_grid(found)]


def cost_remarks(found: CollectiveCosts) -> list[str]:
    """Answer in a sentence, where one size is asked for: the time, by what, and what dominates."""
    if not found.one_size:
        return []
    best = best_of(found.prices, 0)
    time = format_seconds(float(best.time_s[0]), 4)
    return [f"{found.title}: {time} by {label(best)}; {dominant(best)} dominates."]


_FIGURES: Mapping[str, Any] = {
    "Latency >": lambda price, index: format_seconds(float(price.latency_s[index])),
    "Transfer >": lambda price, index: format_seconds(float(price.transfer_s[index])),
    "Time >": lambda price, index: format_seconds(float(price.time_s[index]), 4),
    "algbw >": lambda price, index: format_si(float(price.algbw_bytes_per_s[index]), "B/s"),
    "busbw >": lambda price, index: format_si(float(price.busbw_bytes_per_s[index]), "B/s"),
}
"""Of an algorithm at one of its sizes."""


def _at(form: Any, index: int, price: Price) -> str:
    return str(form(price, index))


def _one_size_grids(found: CollectiveCosts) -> list[Grid]:
    """Return every algorithm, what the library takes when, and the fabric."""
    cells = {
        "Algorithm": label,
        **{title: partial(_at, form, 0) for title, form in _FIGURES.items()},
        "n* >": lambda price: crossover_text(price.crossover_bytes),
        "": lambda price: "taken" if price.chosen[0] else f"needs {price.needs}" if price.needs else "",
    }
    strong = frozenset(index for index, price in enumerate(found.prices) if price.chosen[0])
    note = f"{place_text(found.placed)}. n*: size from which an algorithm's transfer takes longer than its latency."
    grids = [grid_of(found.title, found.prices, cells, strong=strong, note=note)]
    if len(found.choices) > 1:
        taken = {
            "Algorithm": "algorithm",
            "From >": lambda one: crossover_text(one.from_bytes) if one.from_bytes else "0 B",
            "To >": lambda one: crossover_text(one.to_bytes),
        }
        grids.append(grid_of("What the library takes", found.choices, taken))
    return [*grids, _fabric_grid(found.placed)]


def _range_grid(found: CollectiveCosts) -> Grid:
    """Return a row a size: what is taken, and the best of the textbook beside it."""
    prices = found.prices
    textbook = [price for price in prices if price.family == "textbook" and not price.needs]

    def other(index: int) -> Price:
        return (
            min(textbook, key=lambda price: float(price.time_s[index]))
            if textbook
            else best_of(prices, index)
        )

    def taken(form: Any, index: int) -> str:
        return str(form(best_of(prices, index), index))

    cells = {
        "Size >": lambda index: size_text(float(prices[0].size_bytes[index])),
        "Taken": lambda index: best_of(prices, index).algorithm,
        **{title: partial(taken, form) for title, form in _FIGURES.items()},
        "Best textbook": lambda index: other(index).algorithm,
        "Its time >": lambda index: format_seconds(float(other(index).time_s[index])),
    }
    note = f"{place_text(found.placed)}. CSV and JSON have every algorithm."
    return grid_of(found.title, range(len(prices[0].size_bytes)), cells, note=note)


def _fabric_grid(placed: Placed) -> Grid:
    """Return the tiers with the alpha, the rate and the n* = alpha B of each."""

    def rate(tier: Any) -> float:
        return float(tier.achieved_bandwidth_bytes_per_s / placed.concurrent)

    used = placed.tiers[placed.flat_tier] if placed.flat_tier is not None else None
    cells = {
        "Tier": "name",
        "Link": "link",
        "alpha >": "latency_s:s",
        "B >": lambda tier: format_si(rate(tier), "B/s"),
        "n* >": lambda tier: crossover_text(tier.latency_s * rate(tier)),
        "Used by": lambda tier: "textbook" if tier is used else "",
    }
    note = "alpha of one step and rate a GPU gets, per direction; n* = alpha B: a message half latency."
    return grid_of("Fabric", placed.tiers, cells, note=note)


def crossover_text(size_bytes: float) -> str:
    """Write a size at which something changes."""
    return format_si(size_bytes, "B") if np.isfinite(size_bytes) else "–"


def place_text(placed: Placed) -> str:
    """Say where the members sit."""
    if not placed.tiers[0].link:
        return "A flat fabric of one latency and one rate"
    members = placed.group.members
    held = [f"{int(m)} in a {t.name} of {t.size:,}" for t, m in zip(placed.tiers, members, strict=True)]
    crossed = next((i for i, m in enumerate(members) if m >= placed.ranks), len(held) - 1)
    return ", ".join(held[: crossed + 1])
