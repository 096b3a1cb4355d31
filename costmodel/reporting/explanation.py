"""Opened lines of a bill as tables: a row a step, with its formula, the numbers put in, and its value."""

from __future__ import annotations

from costmodel.base.grid import Grid, columns
from costmodel.estimates.explain import Explanation, headline, where_text, with_unit


def explain_grids(lines: Explanation) -> list[Grid]:
    """Return a table a line: a row a step, with its formula, the numbers put in, and its value."""
    grids = []
    for line in lines:
        rows = [
            [step.name or "=", step.expression, step.with_numbers, with_unit(step.value, step.unit)]
            for step in line.steps
        ]
        note = f"{where_text(line)}source: {line.source}" + (f"\n{line.beside}" if line.beside else "")
        titles = columns("Step", "Formula", "With its numbers", "Value >")
        grids.append(Grid(headline(line), titles, rows, frozenset({len(rows) - 1}), note))
    return grids
