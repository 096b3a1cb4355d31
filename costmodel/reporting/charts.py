"""A figure as data: panels of bars, curves, dots, bands and cells, drawn by matplotlib or as a plotly figure of a page.

Fills differ in lightness and hatching as well as in hue (the colours of Okabe and Ito), so that a figure can be read
without colour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
"""Colour and hatch of everything that is drawn as an area."""


def ink_on(colour: str) -> str:
    """Return black or white, whichever is read better on a colour.

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
"""Of cells and bands; a group of GPUs takes that of its number modulo eight."""


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Bars of one kind, lying unless they stand; `texts` stand behind the end of each, or inside it.

    `hover` is what a page says under the pointer, in plotly's form, with ``customdata`` from `about`.
    """

    label: str = ""
    fill: str
    at: Numbers
    lengths: Numbers
    starts: Numbers = ()
    texts: Sequence[str] = ()
    inside: bool = False
    hover: str = ""
    about: Sequence[Any] = ()
    width: Any = 0.7
    stands: bool = False
    paleness: float = 0.0
    edge: float = 0.7


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line through points, the straight way or in steps."""

    label: str = ""
    x: Numbers
    y: Numbers
    colour: str = "#000000"
    dash: str = "-"
    width: float = 1.8
    steps: bool = False


@dataclass(frozen=True, kw_only=True)
class Dots:
    """Points of one kind; `texts` stand beside them, or inside where they are large enough (`is_within`)."""

    label: str = ""
    x: Numbers
    y: Numbers
    colour: str = COLOURS[0]
    marker: str = "o"
    size: float = 8.0
    texts: Sequence[str] = ()
    hover: str = ""
    about: Sequence[Any] = ()
    is_within: bool = False


@dataclass(frozen=True, kw_only=True)
class Band:
    """What lies between two places of the x axis, with its name."""

    start: float
    end: float
    text: str
    colour: str


@dataclass(frozen=True, kw_only=True)
class Cells:
    """A map of numbers, a shade by each modulo eight; not a number is left blank."""

    numbers: NDArray[np.float64]
    has_texts: bool = True
    hover: str = ""


Mark = Bars | Curve | Dots | Band | Cells


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes, what is drawn first below.

    `log` names the logarithmic axes (``x``, ``y`` or ``xy``), a range that falls runs downward, ticks are texts by
    place, `is_extra` says that a page leaves the panel out, and `height` is that of a printed figure. [inch]
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
    is_extra: bool = False
    height: float = 4.0


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A figure: its title, its panels in rows of so many `columns`, and a sentence below it on a page."""

    title: str
    panels: Sequence[Panel]
    columns: int = 1
    note: str = ""
    legend_columns: int = 3
    width: float = 9.0


def rows_of(labels: Sequence[str]) -> dict[str, Any]:
    """Return ticks, range and height of a panel whose bars lie in rows, the first on top."""
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


def _paled(bars: Bars) -> str:
    """Return the colour of bars, nearer to white by their paleness."""
    colour = FILLS[bars.fill][0]
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 - (255 - part) * (1 - bars.paleness)):02x}" for part in parts)


# --- a page -----------------------------------------------------------------------------------------

_PATTERNS = {
    "": "",
    "///": "/",
    "\\\\\\": "\\",
    "...": ".",
    "xxx": "x",
    "---": "-",
    "////": "/",
    "ooo": ".",
    "+++": "+",
}
_DASHES = {"-": "solid", "--": "dash", "-.": "dashdot", ":": "dot"}
_SYMBOLS = {"o": "circle", "s": "square", "D": "diamond", "^": "triangle-up", "*": "star", "P": "cross"}
# Plotly blends neighbours of a scale: each shade comes twice, so that there are eight and no more.
_SCALE = [[at / 8, colour] for index, colour in enumerate(SHADES) for at in (index, index + 1)]
_BLACK = "#000000"


def marker(name: str) -> dict[str, Any]:
    """Return the plotly marker of a style in `FILLS`."""
    colour, hatch = FILLS[name]
    look = {"fillmode": "overlay", "fgcolor": _BLACK, "size": 7, "solidity": 0.2}
    return {
        "color": colour,
        "line": {"color": _BLACK, "width": 0.7},
        "pattern": {"shape": _PATTERNS[hatch], **look},
    }


def plotly_figure(chart: Chart) -> dict[str, Any]:
    """Return a chart as a plain plotly figure: a dict of data and layout."""
    panels = [panel for panel in chart.panels if not panel.is_extra]
    layout: dict[str, Any] = {
        "height": round(sum(80 * panel.height for panel in panels) + 100),
        "margin": {"l": 10, "r": 15, "t": 15, "b": 45},
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#1b1b1b"},
        "plot_bgcolor": "#ffffff",
        "paper_bgcolor": "#ffffff",
        "hovermode": "closest",
        "barmode": "overlay",
        "legend": {"orientation": "h", "x": 0.0, "y": 1.02, "yanchor": "bottom"},
        "shapes": [_shape(mark) for panel in panels for mark in panel.marks if isinstance(mark, Band)],
    }
    if len(panels) > 1:
        layout["grid"] = {"rows": len(panels), "columns": 1, "pattern": "independent"}
    data: list[dict[str, Any]] = []
    for index, panel in enumerate(panels):
        suffix = str(index + 1) if index else ""
        axes = {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"} if index else {}
        for mark in panel.marks:
            if isinstance(mark, Band):
                continue
            trace = _TRACES[type(mark)](mark) | axes
            # What two panels both have stands in the legend once.
            if trace.get("name") in {each.get("name") for each in data}:
                trace["showlegend"] = False
            data.append({key: value for key, value in trace.items() if value is not None})
        for axis in "xy":
            layout[f"{axis}axis{suffix}"] = _axis(panel, axis)
    return {"data": data, "layout": layout}


def _axis(panel: Panel, axis: str) -> dict[str, Any]:
    """Return the layout of one axis of a panel."""
    has_cells = any(isinstance(mark, Cells) for mark in panel.marks)
    title = getattr(panel, axis) or (panel.title.partition(" ")[0] if has_cells and axis == "y" else "")
    made: dict[str, Any] = {"title": {"text": title}, "automargin": True, "gridcolor": "#dddddd"}
    ends, ticks = getattr(panel, f"{axis}_range"), getattr(panel, f"{axis}_ticks")
    if axis in panel.log:
        made["type"] = "log"
        ticks = ticks or log_ticks(*(ends or _reach(panel, axis)))
        ends = None if ends is None else np.log10(ends).tolist()
    if ends is not None:
        made["range"] = list(ends)
    if ticks:
        made |= {"tickvals": list(ticks), "ticktext": list(ticks.values())}
    if has_cells:
        made |= {"showgrid": False, "zeroline": False} | ({"autorange": "reversed"} if axis == "y" else {})
    return made


def _reach(panel: Panel, axis: str) -> tuple[float, float]:
    """Return the least and the largest positive number that an axis shows."""
    held = [np.ravel(getattr(mark, axis)).astype(float) for mark in panel.marks if hasattr(mark, axis)]
    values = np.concatenate(held) if held else np.asarray([1.0, 10.0])
    values = values[np.isfinite(values) & (values > 0)]
    return float(values.min()), float(values.max())


def _named(mark: Any) -> dict[str, Any]:
    """Return what the traces of all marks say of themselves: in the legend, and under the pointer."""
    label, hover, about = (getattr(mark, name, "") for name in ("label", "hover", "about"))
    return {
        "name": label,
        "showlegend": None if label else False,
        "hovertemplate": hover or None,
        "hoverinfo": None if hover else "name",
        "customdata": list(about) or None,
    }


def _bar_trace(bars: Bars) -> dict[str, Any]:
    style = marker(bars.fill)
    if bars.edge < 0.7:
        style |= {"color": _paled(bars), "line": {"color": _BLACK, "width": bars.edge}}
        style["pattern"] = style["pattern"] if bars.fill == "bubble" else None
        style = {key: value for key, value in style.items() if value}
    along, across = _short(bars.lengths), np.asarray(bars.at).tolist()
    place: dict[str, Any] = {"textposition": "outside", "cliponaxis": False} if bars.texts else {}
    if bars.inside:
        place = {"textposition": "inside", "insidetextanchor": "middle", "textangle": 0}
    width = bars.width if np.ndim(bars.width) == 0 else _short(bars.width)
    return {
        "type": "bar",
        "orientation": "v" if bars.stands else "h",
        **_named(bars),
        "x": across if bars.stands else along,
        "y": along if bars.stands else across,
        "base": _short(bars.starts) if len(bars.starts) else None,
        "width": None if width == 0.7 else width,
        "marker": style,
        "text": list(bars.texts) if place else None,
        **place,
    }


def _curve_trace(curve: Curve) -> dict[str, Any]:
    shape = {"shape": "hv"} if curve.steps else {}
    line = {"color": curve.colour, "dash": _DASHES[curve.dash], "width": 2, **shape}
    x, y = _short(curve.x), _short(curve.y)
    return {"type": "scatter", "mode": "lines", **_named(curve), "x": x, "y": y, "line": line}


def _dot_trace(dots: Dots) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers+text" if dots.texts else "markers",
        **_named(dots),
        "x": _short(dots.x),
        "y": _short(dots.y),
        "marker": {
            "color": dots.colour,
            "size": dots.size,
            "symbol": _SYMBOLS.get(dots.marker, "circle"),
            "line": {"color": _BLACK, "width": 1 if dots.size > 5 else 0},
        },
        "text": list(dots.texts) or None,
        "textposition": ("middle center" if dots.is_within else "top center") if dots.texts else None,
    }


def _cell_trace(cells: Cells) -> dict[str, Any]:
    look = {"showscale": False, "xgap": 1, "ygap": 3, "zmin": -0.5, "zmax": 7.5, "colorscale": _SCALE}
    return {
        "type": "heatmap",
        "z": (cells.numbers % 8).tolist(),
        "text": cells.numbers.astype(int).tolist(),
        "texttemplate": "%{text}" if cells.has_texts else "",
        "hovertemplate": cells.hover,
        **look,
    }


_TRACES: Mapping[type, Any] = {Bars: _bar_trace, Curve: _curve_trace, Dots: _dot_trace, Cells: _cell_trace}


def _shape(band: Band) -> dict[str, Any]:
    ends = {"x0": band.start, "x1": band.end, "y0": 0, "y1": 1, "yref": "paper"}
    look = {"fillcolor": band.colour, "layer": "below", "line": {"width": 0}, "label": {"text": band.text}}
    return {"type": "rect", **ends, **look}


def _short(values: Numbers) -> list[Any]:
    """Return numbers in as many digits as a page shows."""
    return [float(f"{value:.5g}") for value in np.asarray(values, dtype=float)]


# --- matplotlib, an optional extra that is imported when a figure is asked for ----------------------

FORMATS = (".svg", ".png", ".pdf")
_STYLE: Any = {"svg.hashsalt": "costmodel", "svg.fonttype": "path", "font.size": 10.0, "hatch.linewidth": 0.5}


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
    """Refuse a file that is not a picture by its ending."""
    if path.suffix.lower() not in FORMATS:
        raise CostModelError(f"{path}: expected a picture, ending in {', '.join(FORMATS)}")


def save(figure: Any, path: Path) -> None:
    """Write a figure in the format that the file's ending names."""
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
        _draw_panel(axes, panel)
    named = {
        label: handle
        for axes in grid.flat
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    if named:
        look = {"ncols": chart.legend_columns, "fontsize": "small" if len(named) < 10 else "x-small"}
        figure.legend(named.values(), named.keys(), loc="outside lower center", **look)
    return figure


def _draw_panel(axes: Any, panel: Panel) -> None:
    axes.grid(color="#e4e6e8", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#b5babf")
    axes.tick_params(color="#b5babf")
    for mark in panel.marks:
        _DRAWN[type(mark)](axes, mark)
    axes.set(xlabel=panel.x, ylabel=panel.y)
    axes.set_title(panel.title, fontsize="small", loc="left")
    for axis in "xy":
        if axis in panel.log:
            axes.set(**{f"{axis}scale": "log"})
        if getattr(panel, f"{axis}_range") is not None:
            axes.set(**{f"{axis}lim": getattr(panel, f"{axis}_range")})
        ticks = getattr(panel, f"{axis}_ticks")
        if axis in panel.log and not ticks:
            ticks = log_ticks(*sorted(getattr(axes, f"get_{axis}lim")()))
        if ticks:
            getattr(axes, f"set_{axis}ticks")(list(ticks), list(ticks.values()), fontsize="small")
            axes.tick_params(axis=axis, which="minor", length=0, labelsize=0)


def _draw_bars(axes: Any, bars: Bars) -> None:
    colour = _paled(bars)
    look = {
        "label": bars.label or None,
        "facecolor": colour,
        "hatch": FILLS[bars.fill][1] if bars.edge >= 0.7 or bars.fill == "bubble" else "",
        "edgecolor": "#6b7075",
        "linewidth": min(bars.edge, 0.5),
    }
    starts = np.asarray(bars.starts) if len(bars.starts) else np.zeros(len(bars.at))
    lengths = np.asarray(bars.lengths)
    if bars.stands:
        axes.bar(bars.at, lengths, bottom=starts, width=bars.width, **look)
        axes.grid(visible=False, axis="x")
        return
    axes.barh(bars.at, lengths, left=starts, height=bars.width, **look)
    axes.grid(visible=False, axis="y")
    for place, start, length, text in zip(bars.at, starts, lengths, bars.texts, strict=False):
        if bars.inside:
            ink = {"fontsize": 6, "color": ink_on(colour), "clip_on": True}
            axes.text(start + length / 2, place, text, ha="center", va="center", **ink)
        elif text:
            side = {"xytext": (4 if length >= 0 else -4, 0), "ha": "left" if length >= 0 else "right"}
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
            place_of = {"textcoords": "offset points", "va": "center", **side}
            axes.annotate(text, (start + length, place), fontsize="small", bbox=box, **place_of)


def _draw_curve(axes: Any, curve: Curve) -> None:
    look = {"color": curve.colour, "linestyle": curve.dash, "linewidth": curve.width}
    style = {"drawstyle": "steps-post"} if curve.steps else {}
    axes.plot(curve.x, curve.y, label=curve.label or None, **look, **style)


def _draw_dots(axes: Any, dots: Dots) -> None:
    edge = {"markeredgecolor": "black" if dots.size > 5 else dots.colour, "markeredgewidth": 0.8}
    look = {"color": dots.colour, "markersize": 0.8 * dots.size, "linestyle": "", "label": dots.label or None}
    axes.plot(dots.x, dots.y, dots.marker, **look, **edge)
    for x, y, text in zip(dots.x, dots.y, dots.texts, strict=False):
        place: dict[str, Any] = {
            "xytext": (5, -24) if "\n" in text else (6, 6),
            "textcoords": "offset points",
        }
        if dots.is_within:
            place = {"ha": "center", "va": "center", "fontweight": "bold"}
        axes.annotate(text, (x, y), fontsize="x-small", **place)


def _draw_band(axes: Any, band: Band) -> None:
    axes.axvspan(band.start, band.end, color=band.colour, zorder=0)
    axes.axvline(band.start, color="grey", linewidth=0.7)
    narrow = np.log10(band.end / band.start) <= 1.3
    look = {"ha": "center", "va": "top", "fontsize": "small", "rotation": 90 if narrow else 0}
    middle = np.sqrt(band.start * band.end)
    axes.text(middle, 0.98, band.text, transform=axes.get_xaxis_transform(), **look)


def _draw_cells(axes: Any, cells: Cells) -> None:
    from matplotlib.colors import ListedColormap

    shown = np.ma.masked_invalid(cells.numbers) % 8
    look = {"cmap": ListedColormap(SHADES), "vmin": -0.5, "vmax": 7.5}
    axes.pcolormesh(shown, edgecolors="white", linewidth=0.3, rasterized=True, **look)
    if cells.has_texts:
        for (row, place), number in np.ndenumerate(cells.numbers):
            axes.text(place + 0.5, row + 0.5, f"{number:.0f}", ha="center", va="center", fontsize=6.5)
    axes.grid(visible=False)
    rows, width = cells.numbers.shape
    axes.set(ylim=(rows, 0))
    for axis, count in (("x", width), ("y", rows)):
        places = range(0, count, 1 if count <= 16 else 8) if cells.has_texts or width > 16 else ()
        ticks = [at + 0.5 for at in places], [str(at) for at in places]
        getattr(axes, f"set_{axis}ticks")(*ticks, fontsize="x-small")


_DRAWN: Mapping[type, Any] = {
    Bars: _draw_bars,
    Curve: _draw_curve,
    Dots: _draw_dots,
    Band: _draw_band,
    Cells: _draw_cells,
}
