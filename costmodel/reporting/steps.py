"""Measured steps and fitted kernels for people and programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_bytes, format_seconds
from costmodel.trust.calibration.kernel_profile import KernelResult
from costmodel.trust.step_residuals import Explanation, MeasuredStep


def step_grids(steps: Sequence[MeasuredStep], explanations: Sequence[Explanation]) -> list[Grid]:
    """Return the residual of each step, and what each part alone could explain."""
    rows = []
    for step in steps:
        model, memory = float(step.estimate.step_time_s), float(step.estimate.memory_bytes_per_gpu)
        row = [
            step.name,
            format_seconds(step.time_s, 4),
            format_seconds(model, 4),
            f"{model / step.time_s - 1:+.1%}",
        ]
        if np.isfinite(step.memory_bytes):
            row += [
                format_bytes(step.memory_bytes),
                format_bytes(memory),
                f"{memory / step.memory_bytes - 1:+.1%}",
            ]
        rows.append(row + [""] * (7 - len(row)))
    titles = columns("Job", "Measured >", "Model >", "Off >", "Memory >", "Model >", "Off >")
    parts = []
    for one in explanations:
        share = f"{one.share:.1%}" if np.isfinite(one.share) else ""
        parts.append(
            [one.part, share, _change(one), f"{one.error_left:.1%}", "yes" if one.plausible else "no"]
        )
    one_only = "One step: every part can explain it; measure another layout to tell them apart."
    note = (
        one_only if len(steps) == 1 else "Error left with that part alone changed; the lowest explains most."
    )
    return [
        Grid("Measured steps", titles, rows),
        Grid(
            "What could explain it",
            columns("Part", "Share >", "Would be >", "Error left >", "Plausible"),
            parts,
            note=note,
        ),
    ]


def _change(one: Explanation) -> str:
    """Write a factor, or the seconds of a constant."""
    return format_seconds(one.factor) if one.part == "constant" else f"x {one.factor:.3f}"


def step_columns(steps: Sequence[MeasuredStep]) -> dict[str, list[Any]]:
    """Return a row a step."""
    model = [float(step.estimate.step_time_s) for step in steps]
    return {
        "job": [step.name for step in steps],
        "measured_step_time_s": [step.time_s for step in steps],
        "step_time_s": model,
        "relative_error": [ours / step.time_s - 1 for ours, step in zip(model, steps, strict=True)],
        "measured_memory_bytes": [step.memory_bytes for step in steps],
        "memory_bytes_per_gpu": [float(step.estimate.memory_bytes_per_gpu) for step in steps],
    }


def step_record(steps: Sequence[MeasuredStep], explanations: Sequence[Explanation]) -> dict[str, Any]:
    """Return everything as plain data."""
    table = step_columns(steps)
    rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    parts = [
        {
            key: value if not isinstance(value, float) or np.isfinite(value) else None
            for key, value in one._asdict().items()
        }
        for one in explanations
    ]
    for row in rows:
        row["measured_memory_bytes"] = (
            row["measured_memory_bytes"] if np.isfinite(row["measured_memory_bytes"]) else None
        )
    return {"schema_version": 1, "steps": rows, "explanations": parts}


def kernel_grid(results: Sequence[KernelResult], accelerator: str) -> Grid:
    """Return the fitted kernels: error of the profile as it was, and of the fit on rows left out."""
    rows = [
        [
            one.section,
            one.name,
            f"{one.points}",
            f"{one.before:.1%}" if np.isfinite(one.before) else "–",
            f"{one.held_out_error:.1%}",
        ]
        for one in results
    ]
    titles = columns("Kernel", "Kind", "Rows >", f"{accelerator} was off >", "Fit, held out >")
    return Grid("Fitted kernels", titles, rows, note="Mean relative error of the time.")


def kernel_columns(results: Sequence[KernelResult]) -> dict[str, list[Any]]:
    """Return a row a fitted kernel."""
    return {
        "section": [one.section for one in results],
        "name": [one.name for one in results],
        "points": [one.points for one in results],
        "error_before": [one.before for one in results],
        "held_out_error": [one.held_out_error for one in results],
    }


def kernel_record(results: Sequence[KernelResult]) -> dict[str, Any]:
    """Return the fitted kernels and their constants."""
    rows = [
        {
            "section": one.section,
            "name": one.name,
            "points": one.points,
            "error_before": one.before if np.isfinite(one.before) else None,
            "held_out_error": one.held_out_error,
            "constants": dict(one.block),
        }
        for one in results
    ]
    return {"schema_version": 1, "kernels": rows}
