"""A figure as data: panels of bars, curves, dots and bands. Matplotlib draws it, or ``draw.js`` on a page.

Fills differ in lightness and hatching as well as in hue (the colours of Okabe and Ito), so that a figure can be read
without colour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.base.errors import CostModelError
from costmodel.base.files import write_whole
from costmodel.base.version import install_command

Numbers = Any
"""A sequence of numbers: a list, an array, a range."""

FILLS: Mapping[str, tuple[str, str]] = {
    "math": ("#2A6FB0", ""),
    "hbm": ("#8FC1E8", "///"),
    "overhead": ("#8A8F94", "..."),
    "tp": ("#E69F00", ""),
    "cp": ("#009E73", "xxx"),
    "ep": ("#CC79A7", "\\\\\\"),
    "pp": ("#D55E00", "---"),
    "bubble": ("#F4F4F4", "////"),
    "dp": ("#E8D44D", ""),
    "optimizer": ("#5B3A1E", "ooo"),
    "resilience": ("#3A3F44", "+++"),
    "parameters": ("#3D3B8E", ""),
    "gradients": ("#9C8AD6", "///"),
    "activation": ("#35A7A0", ""),
    "buffer": ("#C5D96B", "\\\\\\"),
    "reserve": ("#D5D8DB", "..."),
    "forward": ("#9CCBEF", ""),
    "backward": ("#1D5C97", ""),
    "backward_input": ("#1D5C97", ""),
    "backward_weight": ("#7CCBA2", ""),
    "rest": ("#8A8F94", ""),
    "total": ("#33383D", ""),
}
"""Colour and hatch of every fill."""


def ink_on(colour: str) -> str:
    """Return black or white, whichever has more contrast on a colour.

    >>> ink_on("#F0E442"), ink_on("#0072B2")
    ('#000000', '#ffffff')
    """
    red, green, blue = (int(colour[at : at + 2], 16) / 255.0 for at in (1, 3, 5))
    luminance = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
    return "#000000" if luminance > 0.18 else "#ffffff"


COLOURS = [FILLS[name][0] for name in ("math", "tp", "cp", "ep", "hbm", "pp", "dp", "overhead", "optimizer")]
MARKERS = "osD^vP*Xph<>8d"
DASHES = ("-", "--", "-.", ":")
SHADES = ("#eeeeee", "#b5dcf3", "#f7f1a0", "#c8c8c8", "#f3cd80", "#9fd8c0", "#e5b3cf", "#8fa9c4")
"""Colours of bands."""


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Horizontal bars with one fill; `texts` are labels at the end of each, or inside it.

    `hover` is the template of a page's tooltip: ``%{x:.2f}``, ``y`` and ``base`` are numbers of a bar, ``about`` its item of
    `about`.
    """

    label: str = ""
    fill: str
    at: Numbers
    lengths: Numbers
    starts: Numbers = ()
    texts: Sequence[str] = ()
    texts_inside: bool = False
    hover: str = ""
    about: Sequence[Any] = ()
    width: Any = 0.7
    lightness: float = 0.0
    edge: float = 0.7


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line through points, straight or in steps."""

    label: str = ""
    x: Numbers
    y: Numbers
    colour: str = "#000000"
    dash: str = "-"
    width: float = 1.8
    steps: bool = False


@dataclass(frozen=True, kw_only=True)
class Dots:
    """Points of one kind; `texts` stand beside them, or inside where they are large enough (`texts_inside`)."""

    label: str = ""
    x: Numbers
    y: Numbers
    colour: str = COLOURS[0]
    marker: str = "o"
    size: float = 8.0
    texts: Sequence[str] = ()
    hover: str = ""
    about: Sequence[Any] = ()
    texts_inside: bool = False


@dataclass(frozen=True, kw_only=True)
class Band:
    """A labelled range of the x axis."""

    start: float
    end: float
    text: str
    colour: str


Mark = Bars | Curve | Dots | Band


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes; marks are drawn in order, the later over the earlier.

    `log` names the logarithmic axes (``x``, ``y`` or ``xy``), a descending range flips the axis, ticks are labels
    by position, and `height` is that of a printed figure. [inch]
    """

    marks: Sequence[Mark]
    x: str = ""
    y: str = ""
    title: str = ""
    log: str = ""
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    x_ticks: Mapping[float, str] = field(default_factory=dict)
    y_ticks: Mapping[float, str] = field(default_factory=dict)
    height: float = 4.0


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A figure: its title, its panels in rows of `columns`, and a note below it on a page."""

    title: str
    panels: Sequence[Panel]
    columns: int = 1
    note: str = ""
    legend_columns: int = 3
    width: float = 9.0


def rows_of(labels: Sequence[str]) -> dict[str, Any]:
    """Return y ticks, y range and height of a panel with a horizontal bar per label, the first on top."""
    return {
        "y_ticks": dict(enumerate(labels)),
        "y_range": (len(labels) - 0.4, -0.6),
        "height": 0.42 * len(labels) + 0.7,
    }


def log_ticks(low: float, high: float) -> dict[float, str]:
    """Return the ticks of a logarithmic axis and their texts: 1, 2 and 5 of each decade, of many decades only 1.

    >>> log_ticks(30, 600)
    {50.0: '50', 100.0: '100', 200.0: '200', 500.0: '500'}
    """
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    every = -(-len(decades) // 10)
    steps = (1, 2, 5) if np.log10(high / low) < 2.5 else (1,)
    places = [step * 10.0**decade for decade in decades[::every] for step in steps]
    return {float(f"{at:g}"): _tick(at) for at in places if low <= at * 1.0001 and at <= high * 1.0001}


def _tick(value: float) -> str:
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _lightened(bars: Bars) -> str:
    """Return the colour of bars, mixed with white by their lightness."""
    colour = FILLS[bars.fill][0]
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 - (255 - part) * (1 - bars.lightness)):02x}" for part in parts)


# --- a page -----------------------------------------------------------------------------------------

_PAD = 0.04
"""Padding of an axis without a given range, as a share of its data. [-]"""


def page_record(chart: Chart) -> dict[str, Any]:
    """Return a chart as ``draw.js`` draws it on a page: its panels, each with its two axes and its marks."""
    panels = [
        {
            "height": panel.height,
            "x": _axis(panel, "x"),
            "y": _axis(panel, "y"),
            "marks": [_mark(mark) for mark in panel.marks],
        }
        for panel in chart.panels
    ]
    return {"panels": panels}


def _axis(panel: Panel, axis: str) -> dict[str, Any]:
    """Return title, limits and ticks of one axis; without ticks the page chooses them."""
    ends, ticks = getattr(panel, f"{axis}_range") or _limits(panel, axis), getattr(panel, f"{axis}_ticks")
    if axis in panel.log:
        ticks = ticks or log_ticks(*ends)
    return {
        "title": getattr(panel, axis),
        "log": axis in panel.log,
        "ends": _rounded(ends),
        "ticks": [[float(at), text] for at, text in ticks.items()] or None,
    }


def _limits(panel: Panel, axis: str) -> tuple[float, float]:
    """Return the limits of an axis that show all marks, with padding."""
    values = np.concatenate([np.ravel(_extent(mark, axis)).astype(float) for mark in panel.marks])
    values = values[np.isfinite(values)]
    if axis in panel.log:
        values = np.log10(values[values > 0])
    low, high = float(values.min()), float(values.max())
    pad = _PAD * (high - low or 1.0)
    low, high = low - pad, high + pad
    return (10.0**low, 10.0**high) if axis in panel.log else (low, high)


def _extent(mark: Any, axis: str) -> Any:
    """Return the extent of a mark on an axis; bars only on the axis across them, the other has a given range."""
    if not isinstance(mark, Bars):
        return getattr(mark, axis)
    return np.asarray(mark.at)[:, None] + np.asarray([-0.5, 0.5])


def _mark(mark: Mark) -> dict[str, Any]:
    """Return the fields of a mark that differ from their defaults, with its colours and rounded numbers."""
    record: dict[str, Any] = {"kind": type(mark).__name__.lower()}
    for each in fields(mark):
        value = getattr(mark, each.name)
        if each.name in ("texts", "about"):
            record |= {each.name: list(value)} if len(value) else {}
        elif np.ndim(value):
            record |= {each.name: _rounded(value)} if np.size(value) else {}
        elif value != each.default:
            record[each.name] = value
    if isinstance(mark, Bars):
        colour, hatch = _lightened(mark), FILLS[mark.fill][1]
        record |= {"colour": colour, "ink": ink_on(colour)}
        if mark.edge >= 0.7 or mark.fill == "bubble":
            record["hatch"] = hatch[:1]
    else:
        record |= {"colour": mark.colour} | ({"size": mark.size} if isinstance(mark, Dots) else {})
    return record


def _rounded(values: Numbers) -> list[Any]:
    """Round numbers to the five digits that a page shows."""
    return [float(f"{value:.5g}") for value in np.ravel(np.asarray(values, dtype=float))]


# --- matplotlib, an optional extra that is imported when a figure is asked for ----------------------

FORMATS = (".svg", ".png", ".pdf")
_STYLE: Any = {"svg.hashsalt": "costmodel", "svg.fonttype": "path", "font.size": 10.0, "hatch.linewidth": 0.5}


@cache
def _figure_class() -> Any:
    """Return matplotlib's figure class, able to show itself in a notebook without pyplot."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise CostModelError(f"figures need matplotlib: {install_command('plot')}") from None

    class NotebookFigure(Figure):
        def _repr_png_(self) -> bytes:
            drawn = BytesIO()
            self.savefig(drawn, format="png", dpi=75)
            return drawn.getvalue()

    return NotebookFigure


def check_picture(path: Path) -> None:
    """Refuse a file whose suffix is not of a picture format."""
    if path.suffix.lower() not in FORMATS:
        raise CostModelError(f"{path}: expected a picture, ending in {', '.join(FORMATS)}")


def save(figure: Any, path: Path) -> None:
    """Write a figure in the format of the file's suffix."""
    check_picture(path)
    from matplotlib import rc_context

    # Without a date and with a fixed salt the same figure is the same file.
    form = path.suffix[1:].lower()
    stamp = {"svg": "Date", "pdf": "CreationDate"}.get(form)
    drawn = BytesIO()
    with rc_context(_STYLE):
        figure.savefig(drawn, format=form, dpi=120, metadata={stamp: None} if stamp else None)
    write_whole(path, drawn.getvalue())


def draw(chart: Chart) -> Any:
    """Draw a chart by matplotlib."""
    rows = -(-len(chart.panels) // chart.columns)
    heights = [
        max(p.height for p in chart.panels[row * chart.columns :][: chart.columns]) for row in range(rows)
    ]
    size = chart.width, min(sum(heights) + 0.5 * rows + 1.0, 60.0)
    figure = _figure_class()(figsize=size, layout="constrained")
    # Over the whole figure: job titles are longer than axes are wide.
    figure.suptitle(chart.title, fontsize="medium", x=0.01, ha="left")
    grid = figure.subplots(rows, chart.columns, squeeze=False, height_ratios=heights)
    for axes, panel in zip(grid.flat, chart.panels, strict=True):
        _draw_panel(axes, panel, chart.width / chart.columns)
    named = {
        label: handle
        for axes in grid.flat
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    if named:
        style = {
            "ncols": chart.legend_columns,
            "fontsize": "small" if len(named) < 10 else "x-small",
            "markerscale": 0.7,
        }
        figure.legend(named.values(), named.keys(), loc="outside lower center", **style)
    return figure


def _draw_panel(axes: Any, panel: Panel, width: float) -> None:
    axes.grid(color="#e4e6e8", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#b5babf")
    axes.tick_params(color="#b5babf")
    for mark in panel.marks:
        _DRAW_FUNCTIONS[type(mark)](axes, mark)
    axes.set(xlabel=panel.x, ylabel=panel.y)
    axes.set_title(panel.title, fontsize="small", loc="left")
    for axis in "xy":
        shown = _axis(panel, axis)
        scale = "log" if shown["log"] else "linear"
        axes.set(**{f"{axis}scale": scale, f"{axis}lim": shown["ends"]})
        if shown["ticks"]:
            getattr(axes, f"set_{axis}ticks")(*zip(*shown["ticks"], strict=True), fontsize="small")
    axes.minorticks_off()
    dots = [mark for mark in panel.marks if isinstance(mark, Dots)]
    _name_dots(axes, dots, (0.85 * 72 * width, 0.85 * 72 * panel.height))


def _name_dots(axes: Any, marks: Sequence[Dots], size: tuple[float, float]) -> None:
    """Write names of dots on axes of about so many points, each where no dot and no name stands already."""
    place_of = axes.transData + axes.transAxes.inverted()

    def places(dots: Dots) -> NDArray[np.float64]:
        both = np.stack([np.asarray(dots.x, float), np.asarray(dots.y, float)], axis=-1)
        return np.asarray(place_of.transform(both)) * size

    taken = [
        (*(at - 0.4 * dots.size), *(at + 0.4 * dots.size))
        for dots in marks
        for at in places(dots)
        if dots.size > 5
    ]
    for dots in reversed(marks):
        for (x, y), data, text in zip(
            places(dots), zip(dots.x, dots.y, strict=True), dots.texts, strict=False
        ):
            if dots.texts_inside:
                axes.annotate(text, data, fontsize="x-small", ha="center", va="center", fontweight="bold")
                continue
            lines, off = text.split("\n"), 0.4 * dots.size + 2
            wide, high = 4.3 * max(map(len, lines)), 9.0 * len(lines)
            above = [(off, off), *((-wide / 2, off + rise * high) for rise in (0, 1))]
            below = [(off, -off - high), *((-wide / 2, -off - rise * high) for rise in (1, 2))]
            for away in (*below, *above) if len(lines) > 1 else (*above, *below):
                box = (x + away[0], y + away[1], x + away[0] + wide, y + away[1] + high)
                if any(box[0] < c and box[2] > a and box[1] < d and box[3] > b for a, b, c, d in taken):
                    continue
                taken.append(box)
                axes.annotate(text, data, xytext=away, textcoords="offset points", fontsize="x-small")
                break


def _draw_bars(axes: Any, bars: Bars) -> None:
    colour = _lightened(bars)
    style = {
        "label": bars.label or None,
        "facecolor": colour,
        "hatch": FILLS[bars.fill][1] if bars.edge >= 0.7 or bars.fill == "bubble" else "",
        "edgecolor": "#6b7075",
        "linewidth": min(bars.edge, 0.5),
    }
    starts = np.asarray(bars.starts) if len(bars.starts) else np.zeros(len(bars.at))
    lengths = np.asarray(bars.lengths)
    axes.barh(bars.at, lengths, left=starts, height=bars.width, **style)
    axes.grid(visible=False, axis="y")
    for place, start, length, text in zip(bars.at, starts, lengths, bars.texts, strict=False):
        if bars.texts_inside:
            # A pipeline has hundreds of them, a step of reinforcement learning one a phase.
            ink = {"fontsize": 6 if len(bars.texts) > 1 else 8, "color": ink_on(colour), "clip_on": True}
            axes.text(start + length / 2, place, text, ha="center", va="center", **ink)
        elif text:
            side = {"xytext": (4 if length >= 0 else -4, 0), "ha": "left" if length >= 0 else "right"}
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
            place_of = {"textcoords": "offset points", "va": "center", **side}
            axes.annotate(text, (start + length, place), fontsize="small", bbox=box, **place_of)


def _draw_curve(axes: Any, curve: Curve) -> None:
    style = {"color": curve.colour, "linestyle": curve.dash, "linewidth": curve.width}
    steps = {"drawstyle": "steps-post"} if curve.steps else {}
    axes.plot(curve.x, curve.y, label=curve.label or None, **style, **steps)


def _draw_dots(axes: Any, dots: Dots) -> None:
    edge = {"markeredgecolor": "black" if dots.size > 5 else dots.colour, "markeredgewidth": 0.8}
    style = {
        "color": dots.colour,
        "markersize": 0.8 * dots.size,
        "linestyle": "",
        "label": dots.label or None,
    }
    axes.plot(dots.x, dots.y, dots.marker, **style, **edge)


def _draw_band(axes: Any, band: Band) -> None:
    axes.axvspan(band.start, band.end, color=band.colour, zorder=0)
    axes.axvline(band.start, color="grey", linewidth=0.7)
    narrow = np.log10(band.end / band.start) <= 1.3
    style = {"ha": "center", "va": "top", "fontsize": "small", "rotation": 90 if narrow else 0}
    middle = np.sqrt(band.start * band.end)
    axes.text(middle, 0.98, band.text, transform=axes.get_xaxis_transform(), **style)


_DRAW_FUNCTIONS: Mapping[type, Any] = {
    Bars: _draw_bars,
    Curve: _draw_curve,
    Dots: _draw_dots,
    Band: _draw_band,
}
