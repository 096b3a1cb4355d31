"""Whole runs side by side as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_seconds, format_si
from costmodel.base.words import plural
from costmodel.reporting.tables import job_text, memory_text
from costmodel.reporting.training_runs import limits, off_middle
from costmodel.what_if.runs import Runs
from costmodel.whole_run.run import TrainingRun


def runs_grids(found: Runs) -> list[Grid]:
    """Return a row a figure, a column a run; below each figure from where to where it may lie."""

    def row(name: str, said: Callable[[TrainingRun], str]) -> list[str]:
        return [name, *(said(run) for run in found.runs)]

    def spread(name: str, form: str) -> Callable[[TrainingRun], str]:
        def said(run: TrainingRun) -> str:
            values = run.spread().get(name)
            return "" if values is None else " / ".join(f"{value:{form}}" for value in values)

        return said

    rows = [
        row("model", lambda run: run.est.job.model.name),
        row("cluster", lambda run: f"{plural(run.gpus, run.device_word)} of {run.est.job.cluster.name}"),
        row("layout", lambda run: job_text(run.est)),
        row("precision", lambda run: run.est.job.precision.name),
        row("memory", lambda run: memory_text(run.est)),
        row("tokens", lambda run: format_si(run.tokens, "")),
        row("step time", lambda run: format_seconds(run.step_time_s, 4)),
        row("MFU", lambda run: f"{float(run.est.mfu):.1%}"),
        row("days", lambda run: f"{run.days:,.1f}"),
        row("  p10 / p50 / p90", spread("days", ",.1f")),
        *_off_middle(found.runs),
        row("GPU-hours", lambda run: f"{run.paid_gpu_hours:,.0f}"),
        row("energy, MWh", lambda run: f"{run.energy_kwh / 1e3:,.0f}"),
        row("dollars", lambda run: "no price" if run.dollars is None else f"${run.dollars:,.0f}"),
        row("  p10 / p50 / p90", spread("dollars", ",.0f")),
        row("price of a GPU-hour", _price),
        row("interruptions", lambda run: f"{run.interruptions:,.0f}"),
    ]
    told = [dict(limits(run)) for run in found.runs]
    for name in dict.fromkeys(name for said in told for name in said):
        rows.append([name, *(said.get(name, "") for said in told)])
    strong = frozenset(index for index, cells in enumerate(rows) if cells[0] in ("days", "dollars"))
    note = "At list prices dollars are rent: spare nodes are paid with a --price of your own or --spare-nodes only."
    return [Grid("Runs side by side", columns("", *found.labels), rows, strong, note)]


def _off_middle(runs: Sequence[TrainingRun]) -> list[list[str]]:
    """Return the row that says which headlines are far from the median of the runs drawn, if any is."""
    said = [off_middle(run) for run in runs]
    return [["  beside the median", *(one or "near it" for one in said)]] if any(said) else []


def _price(run: TrainingRun) -> str:
    """Say what a GPU-hour costs and who says so."""
    if run.price_usd_per_gpu_hour is None:
        return run.price_note
    return f"${run.price_usd_per_gpu_hour:,.2f} ({run.price_note})"
