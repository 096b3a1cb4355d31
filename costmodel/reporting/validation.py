"""Predicted beside measured, for people and machines."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from costmodel.base.grid import Grid, columns
from costmodel.trust.validation import GROUPINGS, Validation

if TYPE_CHECKING:
    import pandas as pd

_FIGURES = ("median_%", "mean_%", "p90_%", "bias_%")


def validation_grids(checked: Validation, *, worst: int = 0) -> list[Grid]:
    """Return the summary tables: by class beside the noise floor, all rows, by the other groupings; memory; sweeps."""
    first, *others = GROUPINGS
    grids = [
        _summary_grid(f"Step time by {first}", checked.summary(first)),
        _summary_grid("Step time, all rows of quality A and B", checked.summary()),
    ]
    floor = checked.noise_floor()
    if len(floor):
        grids.append(_noise_grid(floor))
    for by in others:
        grids.append(_summary_grid(f"Step time by {by}", checked.summary(by)))
    memory = checked.summary(of="memory")
    if memory["runs"].sum():
        grids.append(_summary_grid("Peak memory, all rows of quality A and B", memory))
        grids.append(_summary_grid("Peak memory by source", checked.summary("source", of="memory")))
    known = checked.out_of_memory()
    if known["oom_rows"]:
        grids.append(
            Grid(
                "Does it fit? Runs that ran out of memory, and runs that did not",
                columns("Runs >", "Out of memory >", "Right >", "Precision >", "Recall >"),
                [
                    [
                        f"{known['rows']:.0f}",
                        f"{known['oom_rows']:.0f}",
                        f"{known['right']:.1%}",
                        f"{known['precision']:.1%}",
                        f"{known['recall']:.1%}",
                    ]
                ],
            )
        )
    sweeps = checked.sweeps()
    if len(sweeps):
        grids.append(_sweep_grid(sweeps, checked.pair_order()))
    if worst:
        grids.append(_worst_grid(checked, worst))
    return grids


def validation_remarks(checked: Validation) -> list[str]:
    """Say why rows were left out."""
    return list(checked.skipped)


def _summary_grid(title: str, frame: pd.DataFrame) -> Grid:
    """Return one summary as a table; the first column names the group."""
    group = str(frame.columns[0])
    rows = [
        [
            str(row[group]),
            f"{row['runs']:.0f}",
            f"{row['skipped']:.0f}",
            *(_percent(row[name]) for name in _FIGURES),
        ]
        for row in frame.to_dict("records")
    ]
    return Grid(
        title,
        columns(group.capitalize(), "Runs >", "Skipped >", "Median >", "Mean >", "p90 >", "Bias >"),
        rows,
    )


def _noise_grid(floor: pd.DataFrame) -> Grid:
    """Return how far apart two releases of a framework run one layout."""
    rows = [
        [str(r["pairs"]), f"{r['count']:.0f}", _percent(r["median_%"]), _percent(r["p90_%"])]
        for r in floor.to_dict("records")
    ]
    note = "The same layout, model, machine and precision in two tables of a family: no prediction is nearer to both."
    return Grid("Noise floor", columns("Pairs of", "Pairs >", "Median >", "p90 >"), rows, note=note)


def _percent(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.1f} %"


def _sweep_grid(sweeps: pd.DataFrame, ordered: float) -> Grid:
    """Return rank correlation and regret of every sweep."""
    rows = [
        [
            r["source"],
            r["model"],
            f"{r['gpus']:.0f}",
            f"{r['global_batch']:.0f}",
            f"{r['layouts']:.0f}",
            f"{r['spearman']:.2f}",
            f"{r['regret']:.1%}",
        ]
        for r in sweeps.to_dict("records")
    ]
    note = (
        f"Median Spearman {sweeps.spearman.median():.2f}; median regret {sweeps.regret.median():.1%}, "
        f"p90 {sweeps.regret.quantile(0.9):.1%}; {ordered:.1%} of layout pairs measured 2 % or more apart ordered right."
    )
    titles = columns("Source", "Model", "GPUs >", "Batch >", "Layouts >", "Spearman >", "Regret >")
    return Grid("Sweeps: layouts of one job, ranked", titles, rows, note=note)


def _worst_grid(checked: Validation, count: int) -> Grid:
    """Return the runs that are furthest off."""
    runs = checked.judged.dropna(subset=["time_error"])
    runs = runs.loc[runs.time_error.abs().sort_values(ascending=False).index].head(count)
    rows = [
        [
            r["id"],
            r["model"],
            f"{r['gpus']:.0f}",
            r["parallelism"],
            f"{r['measured_step_time_s']:.3g} s",
            f"{r['predicted_step_time_s']:.3g} s",
            f"{r['time_error']:+.1%}",
        ]
        for r in runs.to_dict("records")
    ]
    titles = columns("Run", "Model", "GPUs >", "Axes", "Measured >", "Predicted >", "Error >")
    return Grid(f"The {count} runs furthest off", titles, rows)
