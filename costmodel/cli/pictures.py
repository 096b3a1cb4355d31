"""Pictures that a command draws beside its result."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.base.errors import one_line
from costmodel.cli.output import Target, plan_output

if TYPE_CHECKING:
    from costmodel.base.answer import Face


def plan_picture(name: str, *, force: bool) -> Path | None:
    """Check a picture's file as `plan_output` checks results; none if none is asked for."""
    return plan_output(None, name, force=force).out if name else None


def tell(path: Path, target: Target) -> None:
    """Say on stderr that a file was written."""
    if not target.quiet:
        print(f"wrote {one_line(str(path))}", file=sys.stderr)


def planned_figure(kind: str, plot: str, figure: str, *, force: bool) -> Callable[[Face, Target], None]:
    """Check the figure's name and file before any work is done; returns what draws it, nothing if none is asked for.

    Raises
    ------
    CostModelError
        If there is no such figure, or its file cannot be written.
    """
    from costmodel.base.answer import Face
    from costmodel.reporting.figures import check_picture

    face = Face(kind)
    name = figure or face.names()[0]
    face.require(name)
    path = plan_picture(plot, force=force)
    if path is not None:
        check_picture(path)

    def draw(plots: Face, target: Target) -> None:
        if path is not None:
            write_figure(plots.named(name), path, target)

    return draw


def write_figure(figure: Any, path: Path, target: Target) -> None:
    """Write a figure and say so."""
    from costmodel.reporting.figures import save

    save(figure, path)
    tell(path, target)
