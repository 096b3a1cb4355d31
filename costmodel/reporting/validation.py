"""Predicted beside measured, as tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from costmodel.base.grid import Grid
from costmodel.reporting.cells import grid_of
from costmodel.trust.validation import GROUPINGS, Validation

if TYPE_CHECKING:
    import pandas as pd


def validation_grids(checked: Validation, *, worst: int = 0) -> list[Grid]:
    """Return the summary tables: by class beside the noise floor, all rows, by the other groupings; memory; sweeps."""
    first, *others = GROUPINGS
    grids = [
        _summary_grid(f"Step time by {first}", checked.summary(first)),
        _summary_grid("Step time, all rows of quality A and B", checked.summary()),
        _summary_grid(
            "Step time by quality, as shipped and with the run's family of sources left out of the fit",
            checked.cells(),
        ),
    ]
    floor = checked.noise_floor()
    if len(floor):
        cells = {
            "Pairs of": "pairs",
            "Pairs >": "count:.0f",
            "Median >": _percent("median_%"),
            "p90 >": _percent("p90_%"),
        }
        note = "The same layout, model, machine and precision in two tables of a family: no prediction is nearer to both."
        grids.append(grid_of("Noise floor", floor.to_dict("records"), cells, note=note))
    grids += [_summary_grid(f"Step time by {by}", checked.summary(by)) for by in others]
    memory = checked.summary(of="memory")
    if memory["runs"].sum():
        grids.append(_summary_grid("Peak memory, all rows of quality A and B", memory))
        grids.append(_summary_grid("Peak memory by source", checked.summary("source", of="memory")))
    known = checked.out_of_memory()
    if known["oom_rows"]:
        cells = {
            "Runs >": "rows:.0f",
            "Out of memory >": "oom_rows:.0f",
            "Right >": "right:.1%",
            "Precision >": "precision:.1%",
            "Recall >": "recall:.1%",
        }
        title = "Does it fit? Runs that ran out of memory, and runs that did not"
        grids.append(grid_of(title, [known], cells))
    sweeps = checked.sweeps()
    if len(sweeps):
        grids.append(_sweep_grid(sweeps, checked.pair_order()))
    return [*grids, *([_worst_grid(checked, worst)] if worst else [])]


def validation_remarks(checked: Validation) -> list[str]:
    """Say why rows were left out."""
    return list(checked.skipped)


def _percent(name: str) -> Callable[[Any], str]:
    return lambda row: "" if math.isnan(row[name]) else f"{row[name]:.1f} %"


def _summary_grid(title: str, frame: pd.DataFrame) -> Grid:
    """Return one summary as a table; the first column names the group."""
    group = str(frame.columns[0])
    figures = {"Median >": "median_%", "Mean >": "mean_%", "p90 >": "p90_%", "Bias >": "bias_%"}
    cells = {
        group.capitalize(): group,
        "Runs >": "runs:.0f",
        "Skipped >": "skipped:.0f",
        **{title: _percent(name) for title, name in figures.items()},
    }
    return grid_of(title, frame.to_dict("records"), cells)


def _sweep_grid(sweeps: pd.DataFrame, ordered: float) -> Grid:
    """Return rank correlation and regret of every sweep."""
    note = (
        f"Median Spearman {sweeps.spearman.median():.2f}; median regret {sweeps.regret.median():.1%}, "
        f"p90 {sweeps.regret.quantile(0.9):.1%}; {ordered:.1%} of layout pairs measured 2 % or more apart ordered right."
    )
    cells = {
        "Source": "source",
        "Model": "model",
        "GPUs >": "gpus:.0f",
        "Batch >": "global_batch:.0f",
        "Layouts >": "layouts:.0f",
        "Spearman >": "spearman:.2f",
        "Regret >": "regret:.1%",
    }
    return grid_of("Sweeps: layouts of one job, ranked", sweeps.to_dict("records"), cells, note=note)


def _worst_grid(checked: Validation, count: int) -> Grid:
    """Return the runs that are furthest off."""
    runs = checked.judged.dropna(subset=["time_error"])
    runs = runs.loc[runs.time_error.abs().sort_values(ascending=False).index].head(count)
    cells = {
        "Run": "id",
        "Model": "model",
        "GPUs >": "gpus:.0f",
        "Axes": "parallelism",
        "Measured >": lambda run: f"{run['measured_step_time_s']:.3g} s",
        "Predicted >": lambda run: f"{run['predicted_step_time_s']:.3g} s",
        "Error >": "time_error:+.1%",
    }
    return grid_of(f"The {count} runs furthest off", runs.to_dict("records"), cells)
