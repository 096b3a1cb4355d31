"""Figures by matplotlib, an optional extra that is imported when a figure is asked for.

Fills differ in lightness and hatching as well as in hue (the colours of Okabe and Ito), so that a
figure can be read without colour.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

from costmodel.base.errors import CostModelError
from costmodel.base.files import write_whole
from costmodel.base.version import install_command

FORMATS = (".svg", ".png", ".pdf")

FILLS: Mapping[str, tuple[str, str]] = {
    "math": ("#0072B2", ""),
    "hbm": ("#56B4E9", "///"),
    "overhead": ("#999999", "..."),
    "tp": ("#E69F00", ""),
    "cp": ("#009E73", "xxx"),
    "ep": ("#CC79A7", "\\\\\\"),
    "pp": ("#D55E00", "---"),
    "bubble": ("#FFFFFF", "////"),
    "dp": ("#F0E442", ""),
    "optimizer": ("#5B3A1E", "ooo"),
    "resilience": ("#444444", "+++"),
    "parameters": ("#0072B2", ""),
    "gradients": ("#56B4E9", "///"),
    "activation": ("#E69F00", ""),
    "buffer": ("#CC79A7", "\\\\\\"),
    "reserve": ("#DDDDDD", "..."),
    "forward": ("#56B4E9", ""),
    "backward": ("#0072B2", ""),
    "backward_input": ("#009E73", ""),
    "backward_weight": ("#F0E442", ""),
    "rest": ("#999999", "..."),
}
"""Colour and hatch of everything that is drawn as an area."""

_STYLE: Any = {"svg.hashsalt": "costmodel", "svg.fonttype": "path", "font.size": 10.0, "hatch.linewidth": 0.5}


def new_figure(title: str, *, size: tuple[float, float] = (8.0, 5.0)) -> tuple[Any, Any]:
    """Return a figure with one pair of axes, under a title.

    Raises
    ------
    CostModelError
        If matplotlib is not installed.
    """
    figure = empty_figure(title, size=size)
    axes = figure.add_subplot()
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    return figure, axes


def empty_figure(title: str = "", *, size: tuple[float, float] = (8.0, 5.0)) -> Any:
    """Return a figure without axes; it draws itself in a notebook.

    Raises
    ------
    CostModelError
        If matplotlib is not installed.
    """
    figure = _figure_class()(figsize=size, layout="constrained")
    if title:
        # Over the whole figure: job titles are longer than axes are wide.
        figure.suptitle(title, fontsize="medium", x=0.01, ha="left")
    return figure


@cache
def _figure_class() -> Any:
    """Return matplotlib's figure, able to show itself in a notebook without pyplot."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise CostModelError(f"figures need matplotlib: {install_command('plot')}") from None

    class ShownFigure(Figure):
        def _repr_png_(self) -> bytes:
            """Draw the figure for a notebook."""
            drawn = BytesIO()
            self.savefig(drawn, format="png", dpi=75)
            return drawn.getvalue()

    return ShownFigure


def fill(name: str) -> dict[str, Any]:
    """Return the keywords that fill an area in the style of `name`."""
    colour, hatch = FILLS[name]
    return {"facecolor": colour, "hatch": hatch, "edgecolor": "black", "linewidth": 0.5}


def check_picture(path: Path) -> None:
    """Refuse a file that is not a picture by its ending.

    Raises
    ------
    CostModelError
        If the ending is another.
    """
    if path.suffix.lower() not in FORMATS:
        raise CostModelError(f"{path}: expected a picture, ending in {', '.join(FORMATS)}")


def save(figure: Any, path: Path) -> None:
    """Write a figure in the format that the file's ending names.

    Raises
    ------
    CostModelError
        If the ending is not one of a picture, or the file cannot be written.
    """
    check_picture(path)
    from matplotlib import rc_context

    # Without a date and with a fixed salt the same figure is the same file.
    stamp = {".svg": "Date", ".pdf": "CreationDate"}.get(path.suffix.lower())
    drawn = BytesIO()
    with rc_context(_STYLE):
        figure.savefig(
            drawn, format=path.suffix[1:].lower(), dpi=120, metadata={stamp: None} if stamp else None
        )
    write_whole(path, drawn.getvalue())
