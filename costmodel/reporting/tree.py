"""The step as a tree, indented."""

from __future__ import annotations

from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_seconds
from costmodel.estimates.tree import StepTree, tree_rows


def tree_grids(found: StepTree, *, least_share: float = 0.0) -> list[Grid]:
    """Return the tree as a table, indented."""
    rows = [
        [
            "  " * depth + part.name,
            f"{part.times:,.6g}",
            format_seconds(part.each_s, 4),
            format_seconds(seconds, 4),
            f"{share:.1%}",
        ]
        for depth, part, seconds, share in tree_rows(found.root, least_share=least_share)
    ]
    note = "Exposed time. Count: inside one of the parent; each: of one; a step: of all of them in a step."
    hidden = f" Parts below {least_share:.1%} are left out; --all-lines shows them." if least_share else ""
    titles = columns("Part", "Count >", "Each >", "A step >", "Share >")
    return [Grid("The step", titles, rows, frozenset({0}), note + hidden)]
