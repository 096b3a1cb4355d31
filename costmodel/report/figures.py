"""Figures by matplotlib, an optional extra that is imported when a figure is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from costmodel.errors import CostModelError


def new_figure(title: str) -> tuple[Any, Any]:
    """Return a figure and its axes.

    Raises
    ------
    CostModelError
        If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise CostModelError("figures need matplotlib: pip install 'costmodel[plot]'") from None
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize="medium")
    axes.grid(alpha=0.3)
    return figure, axes


def save(figure: Any, path: Path) -> None:
    """Write a figure in the format that the file's ending names.

    Raises
    ------
    CostModelError
        If the ending is not one of a picture, or the file cannot be written.
    """
    try:
        figure.savefig(path, dpi=120)
    except (ValueError, OSError) as error:
        raise CostModelError(f"{path}: cannot be written ({error})") from None
