"""Predicted beside measured, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from costmodel.base.grid import Grid
from costmodel.reporting.cells import table_of
from costmodel.trust.validation import GROUPINGS, Validation

if TYPE_CHECKING:
    import pandas as pd


def validation_grids(checked: Validation, *, worst: int = 0) -> list[Grid]:
    """Return the summary tables: by class beside the noise floor, all rows, by the other groupings; memory; sweeps."""
    first, *others = GROUPINGS
    left_out = "as shipped and with the run's family of sources left out of the fit"
    grids = [
        _summary_grid(f"Step time by {first}", checked.summary(first)),
        _summary_grid("Step time, all rows of quality A and B", checked.summary()),
        _summary_grid(f"Step time by quality, {left_out}", checked.cells()),
    ]
    floor = checked.noise_floor()
    if len(floor):
        grids.append(table_of("noise floor", floor.to_dict("records")))
    grids += [_summary_grid(f"Step time by {by}", checked.summary(by)) for by in others]
    memory = checked.summary(of="memory")
    if memory["runs"].sum():
        grids.append(_summary_grid("Peak memory, all rows of quality A and B", memory))
        grids.append(_summary_grid("Peak memory by source", checked.summary("source", of="memory")))
    known = checked.out_of_memory()
    if known["oom_rows"]:
        grids.append(table_of("out of memory", [known]))
    sweeps = checked.sweeps()
    if len(sweeps):
        note = (
            f"Median Spearman {sweeps.spearman.median():.2f}; median regret {sweeps.regret.median():.1%}, "
            f"p90 {sweeps.regret.quantile(0.9):.1%}; {checked.pair_order():.1%} of layout pairs measured 2 % or more apart "
            "ordered right."
        )
        grids.append(table_of("sweeps", sweeps.to_dict("records"), note=note))
    if worst:
        runs = checked.judged.dropna(subset=["time_error"])
        runs = runs.loc[runs.time_error.abs().sort_values(ascending=False).index].head(worst)
        grids.append(table_of("worst", runs.to_dict("records"), title=f"The {worst} runs furthest off"))
    return grids


def validation_remarks(checked: Validation) -> list[str]:
    """Say why rows were left out."""
    return list(checked.skipped)


def _summary_grid(title: str, frame: pd.DataFrame) -> Grid:
    """Return one summary as a table; the first column names the group."""
    group = str(frame.columns[0])
    rows = [{"group": row[group], **row} for row in frame.to_dict("records")]
    grid = table_of("summary", rows, title=title)
    return grid._replace(columns=[grid.columns[0]._replace(title=group.capitalize()), *grid.columns[1:]])
