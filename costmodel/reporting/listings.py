"""Lists of models, recipes and profiles as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from costmodel.base.answer import Listing
from costmodel.base.grid import Grid, columns


def list_grids(listing: Listing) -> list[Grid]:
    """Return a list as a table."""
    rows = list(zip(*listing.table.values(), strict=True))
    if listing.what == "models":
        return [_models(listing.table)]
    if listing.what == "recipes":
        return [Grid("Recipes", columns("Recipe", "Description"), rows)]
    return [Grid("Hardware profiles", columns("Kind", "Name", "Or", "Title"), rows)]


def _models(table: Mapping[str, Sequence[Any]]) -> Grid:
    """Return the models with their sizes."""
    rows = [
        [
            name,
            f"{params:,.0f}",
            f"{active:,.0f}" if active < params else "",
            str(layers),
            str(hidden),
            f"{heads}/{kv}",
            attention,
            str(experts or ""),
        ]
        for name, params, active, layers, hidden, heads, kv, attention, experts in zip(
            *(
                table[key]
                for key in (
                    "name",
                    "num_params",
                    "num_active_params",
                    "num_layers",
                    "hidden_size",
                    "num_heads",
                    "num_kv_heads",
                    "attention",
                    "num_experts",
                )
            ),
            strict=True,
        )
    ]
    titles = (
        "Model",
        "Parameters >",
        "Active >",
        "Layers >",
        "Hidden >",
        "Heads/KV >",
        "Attention",
        "Experts >",
    )
    return Grid("Models", columns(*titles), rows, note="also dense-<N>b, a model file, or a config.json")
