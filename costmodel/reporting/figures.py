"""Files of figures by matplotlib, an optional extra that is imported when a figure is asked for."""

from __future__ import annotations

from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

from costmodel.base.errors import CostModelError
from costmodel.base.files import write_whole
from costmodel.base.version import install_command

FORMATS = (".svg", ".png", ".pdf")

_STYLE: Any = {"svg.hashsalt": "costmodel", "svg.fonttype": "path", "font.size": 10.0, "hatch.linewidth": 0.5}


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
