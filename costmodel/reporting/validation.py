"""Predicted beside measured, for people and machines."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from costmodel.base.grid import Grid, columns

if TYPE_CHECKING:
    import pandas as pd

    from costmodel.trust.validation import Validation

_FIGURES = ("median_%", "mean_%", "p90_%", "bias_%")
GROUPINGS = ("source", "accelerator", "axis")


def validation_grids(checked: Validation, *, worst: int = 0) -> list[Grid]:
    """Return the summary tables: all rows, then by source, accelerator and axis; sweeps; memory."""
    grids = [_summary_grid("Step time, all rows of quality A and B", checked.summary())]
    for by in GROUPINGS:
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


def skipped_remarks(checked: Validation) -> list[str]:
    """Return a sentence for every reason why rows were left out."""
    reasons = checked.runs.skipped_reason[checked.runs.skipped_reason != ""].value_counts()
    return [f"skipped {count} row{'s' if count > 1 else ''}: {reason}" for reason, count in reasons.items()]


def validation_record(checked: Validation) -> dict[str, Any]:
    """Return the summary as plain numbers, absent ones as None."""

    def table(frame: pd.DataFrame) -> list[dict[str, Any]]:
        return [{str(k): _plain(v) for k, v in row.items()} for row in frame.to_dict("records")]

    return {
        "schema_version": 1,
        "time": {"all": table(checked.summary()), **{by: table(checked.summary(by)) for by in GROUPINGS}},
        "memory": {
            "all": table(checked.summary(of="memory")),
            "source": table(checked.summary("source", of="memory")),
        },
        "out_of_memory": {key: _plain(value) for key, value in checked.out_of_memory().items()},
        "sweeps": table(checked.sweeps()),
        "pair_order": _plain(checked.pair_order()),
        "skipped": skipped_remarks(checked),
    }


def _plain(value: Any) -> Any:
    """Return a number that JSON has."""
    if isinstance(value, float) and math.isnan(value):
        return None
    return value.item() if hasattr(value, "item") else value
