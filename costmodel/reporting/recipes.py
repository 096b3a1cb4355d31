"""Recipes as tables: a list, and one with every switch, what it may be and what it changes."""

from __future__ import annotations

from costmodel.base.grid import Grid, columns
from costmodel.describe.jobs.recipe_page import RecipePage, set_text


def recipe_grids(page: RecipePage) -> list[Grid]:
    """Return the switches as a table; those that differ from the default stand out."""
    record = page.to_dict()
    rows = [
        [row["switch"], set_text(row["value"]), set_text(row["default"]), row["choices"], row["meaning"]]
        for row in record["switches"]
    ]
    changed = frozenset(i for i, row in enumerate(record["switches"]) if row["value"] != row["default"])
    title = f"{record['name']}: {record['description']}"
    titles = columns("Switch", "Value", "Default", "Choices", "Meaning")
    note = f"source: {record['source']}" if record["source"] else ""
    return [Grid(title, titles, rows, changed, note)]
