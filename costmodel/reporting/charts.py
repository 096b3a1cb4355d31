"""A figure as data: panels of bars, curves, dots, bands and cells, drawn by matplotlib or as a plotly figure of a page.

Fills differ in lightness and hatching as well as in hue (the colours of Okabe and Ito), so that a figure can be read
without colour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    """Bars of one kind, lying unless they stand.

    Attributes
    ----------
    label, fill : str
        Name in the legend, none for an empty one, and the area's style in `FILLS`.
    at, lengths, starts : sequence of float or array
        Place of each bar, its length, and where it begins (0 where none is given).
    texts : sequence of str
        What stands behind the end of each, or inside it where `inside`.
    hover, about : str, sequence
        What a page says under the pointer, in plotly's form, with ``customdata`` from `about`.
    """

    label: str
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

    label: str
    x: Numbers
    y: Numbers
    colour: str = "#000000"
    dash: str = "-"
    width: float = 1.8
    steps: bool = False


@dataclass(frozen=True, kw_only=True)
class Dots:
    """Points of one kind; `texts` stand beside them, `is_named` says whether a page's legend has their label."""

    label: str
    x: Numbers
    y: Numbers
    colour: str = COLOURS[0]
    marker: str = "o"
    size: float = 8.0
    texts: Sequence[str] = ()
    hover: str = ""
    about: Sequence[Any] = ()
    is_named: bool = True
    is_within: bool = False
    """Whether texts stand inside the points."""


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
    """One pair of axes.

    Attributes
    ----------
    marks : sequence
        What is drawn, first below.
    x, y, title : str
        Labels of the axes with their units, and what stands above.
    log : str
        Which axes are logarithmic: ``x``, ``y``, ``xy`` or none.
    x_range, y_range : tuple of float, optional
        What is shown; all of it where none is given. A range that falls runs downward.
    x_ticks, y_ticks : mapping
        Texts by place; numbers where none are given.
    is_extra : bool
        Whether a page leaves it out.
    height : float
        Of a printed figure. [inch]
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
_FONT = {"family": "system-ui, sans-serif", "size": 13, "color": "#1b1b1b"}
# Plotly blends neighbours of a scale: each shade comes twice, so that there are eight and no more.
_SCALE = [[at / 8, colour] for index, colour in enumerate(SHADES) for at in (index, index + 1)]


def marker(name: str) -> dict[str, Any]:
    """Return the plotly marker of a style in `FILLS`."""
    colour, hatch = FILLS[name]
    pattern = {
        "shape": _PATTERNS[hatch],
        "fillmode": "overlay",
        "fgcolor": "#000000",
        "size": 7,
        "solidity": 0.2,
    }
    return {"color": colour, "line": {"color": "#000000", "width": 0.7}, "pattern": pattern}


def plotly_figure(chart: Chart) -> dict[str, Any]:
    """Return a chart as a plain plotly figure: a dict of data and layout."""
    panels = [panel for panel in chart.panels if not panel.is_extra]
    layout: dict[str, Any] = {
        "height": round(sum(80 * panel.height for panel in panels) + 100),
        "margin": {"l": 10, "r": 15, "t": 15, "b": 45},
        "font": _FONT,
        "plot_bgcolor": "#ffffff",
        "paper_bgcolor": "#ffffff",
        "hovermode": "closest",
        "barmode": "overlay",
        "legend": {"orientation": "h", "x": 0.0, "y": 1.02, "yanchor": "bottom"},
    }
    if len(panels) > 1:
        layout["grid"] = {"rows": len(panels), "columns": 1, "pattern": "independent"}
    data: list[dict[str, Any]] = []
    for index, panel in enumerate(panels):
        suffix = str(index + 1) if index else ""
        axes = {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"} if index else {}
        for trace in (trace for mark in panel.marks for trace in _traces(mark)):
            # What two panels both have stands in the legend once.
            again = {"showlegend": False} if trace.get("name") in {one.get("name") for one in data} else {}
            data.append(trace | axes | again)
        layout["shapes"] = [
            *layout.get("shapes", []),
            *(_shape(m) for m in panel.marks if isinstance(m, Band)),
        ]
        has_cells = any(isinstance(mark, Cells) for mark in panel.marks)
        for axis in "xy":
            layout[f"{axis}axis{suffix}"] = _axis(panel, axis, has_cells)
    return {"data": data, "layout": layout}


def _axis(panel: Panel, axis: str, has_cells: bool) -> dict[str, Any]:
    """Return the layout of one axis of a panel."""
    made: dict[str, Any] = {
        "title": {
            "text": getattr(panel, axis)
            or (panel.title.partition(" ")[0] if has_cells and axis == "y" else "")
        },
        "automargin": True,
        "gridcolor": "#dddddd",
    }
    ends, ticks = getattr(panel, f"{axis}_range"), getattr(panel, f"{axis}_ticks")
    if axis in panel.log:
        made["type"] = "log"
        ticks = ticks or log_ticks(*(ends or _reach(panel, axis)))
        ends = None if ends is None else tuple(np.log10(ends).tolist())
    if ends is not None:
        made["range"] = list(ends)
    if ticks:
        made |= {"tickvals": list(ticks), "ticktext": list(ticks.values())}
    if has_cells:
        made |= {"showgrid": False, "zeroline": False} | ({"autorange": "reversed"} if axis == "y" else {})
    return made


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


def _reach(panel: Panel, axis: str) -> tuple[float, float]:
    """Return the least and the largest positive number that an axis shows."""
    held = [
        np.ravel(np.asarray(getattr(mark, axis), dtype=float)) for mark in panel.marks if hasattr(mark, axis)
    ]
    values = np.concatenate(held) if held else np.asarray([1.0, 10.0])
    values = values[np.isfinite(values) & (values > 0)]
    return float(values.min()), float(values.max())


def _traces(mark: Mark) -> list[dict[str, Any]]:
    """Return the plotly traces of one mark."""
    hover = (
        {"hovertemplate": getattr(mark, "hover", "")} if getattr(mark, "hover", "") else {"hoverinfo": "name"}
    )
    about = {"customdata": list(getattr(mark, "about", ()))} if len(getattr(mark, "about", ())) else {}
    if isinstance(mark, Bars):
        style = marker(mark.fill)
        if mark.edge < 0.7:
            style |= {"color": _paled(mark), "line": {"color": "#000000", "width": mark.edge}}
            style.pop("pattern") if mark.fill != "bubble" else None
        along, across = (_short(mark.lengths), np.asarray(mark.at).tolist())
        return [
            {
                "type": "bar",
                "orientation": "v" if mark.stands else "h",
                "name": mark.label,
                **({} if mark.label else {"showlegend": False}),
                "x": across if mark.stands else along,
                "y": along if mark.stands else across,
                **({"base": _short(mark.starts)} if len(mark.starts) else {}),
                **({} if np.ndim(mark.width) == 0 and mark.width == 0.7 else {"width": _widths(mark.width)}),
                "marker": style,
                **(
                    {
                        "text": list(mark.texts),
                        "textposition": "inside",
                        "insidetextanchor": "middle",
                        "textangle": 0,
                    }
                    if mark.inside
                    else {"text": list(mark.texts), "textposition": "outside", "cliponaxis": False}
                    if mark.texts
                    else {}
                ),
                **hover,
                **about,
            }
        ]
    if isinstance(mark, Curve):
        line = {
            "color": mark.colour,
            "dash": _DASHES[mark.dash],
            "width": 2,
            **({"shape": "hv"} if mark.steps else {}),
        }
        x, y = _short(mark.x), _short(mark.y)
        return [
            {
                "type": "scatter",
                "mode": "lines",
                "name": mark.label,
                **({} if mark.label else {"showlegend": False}),
                "x": x,
                "y": y,
                "line": line,
                **hover,
            }
        ]
    if isinstance(mark, Dots):
        style = {
            "color": mark.colour,
            "size": mark.size,
            "symbol": _SYMBOLS.get(mark.marker, "circle"),
            "line": {"color": "#000000", "width": 1 if mark.size > 5 else 0},
        }
        texts = (
            {"text": list(mark.texts), "textposition": "middle center" if mark.is_within else "top center"}
            if mark.texts
            else {}
        )
        return [
            {
                "type": "scatter",
                "mode": "markers+text" if mark.texts else "markers",
                "name": mark.label,
                **({} if mark.is_named else {"showlegend": False}),
                "x": _short(mark.x),
                "y": _short(mark.y),
                "marker": style,
                **texts,
                **hover,
                **about,
            }
        ]
    if isinstance(mark, Cells):
        return [
            {
                "type": "heatmap",
                "z": (mark.numbers % 8).tolist(),
                "text": mark.numbers.astype(int).tolist(),
                "showscale": False,
                "xgap": 1,
                "ygap": 3,
                "zmin": -0.5,
                "zmax": 7.5,
                "colorscale": _SCALE,
                "texttemplate": "%{text}" if mark.has_texts else "",
                **hover,
            }
        ]
    return []


def _shape(band: Band) -> dict[str, Any]:
    ends = {"x0": band.start, "x1": band.end, "y0": 0, "y1": 1, "yref": "paper"}
    look = {"fillcolor": band.colour, "layer": "below", "line": {"width": 0}, "label": {"text": band.text}}
    return {"type": "rect", **ends, **look}


def _paled(bars: Bars) -> str:
    """Return the colour of bars, nearer to white by their paleness."""
    colour = FILLS[bars.fill][0]
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(
        f"{round(255 - (255 - part) * (1 - bars.paleness)):02x}" for part in (red, green, blue)
    )


def _widths(width: Any) -> Any:
    return width if np.ndim(width) == 0 else _short(width)


def _short(values: Numbers) -> list[Any]:
    """Return numbers in as many digits as a page shows."""
    return [float(f"{value:.5g}") for value in np.asarray(values, dtype=float)]


# --- matplotlib -------------------------------------------------------------------------------------


def draw(chart: Chart) -> Any:
    """Draw a chart by matplotlib.

    Raises
    ------
    CostModelError
        If matplotlib is not installed.
    """
    from costmodel.reporting.figures import empty_figure

    rows = -(-len(chart.panels) // chart.columns)
    heights = [
        max(p.height for p in chart.panels[row * chart.columns :][: chart.columns]) for row in range(rows)
    ]
    figure = empty_figure(chart.title, size=(chart.width, min(sum(heights) + 0.5 * rows + 1.0, 60.0)))
    grid = figure.subplots(rows, chart.columns, squeeze=False, height_ratios=heights)
    for axes, panel in zip(grid.flat, chart.panels, strict=True):
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
    named = {
        label: handle
        for axes in grid.flat
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    if named:
        size = "small" if len(named) < 10 else "x-small"
        place = {"loc": "outside lower center", "ncols": chart.legend_columns, "fontsize": size}
        figure.legend(named.values(), named.keys(), **place)
    return figure


def _draw_bars(axes: Any, bars: Bars) -> None:
    colour, hatch = _paled(bars), FILLS[bars.fill][1]
    look = {
        "facecolor": colour,
        "hatch": hatch if bars.edge >= 0.7 or bars.fill == "bubble" else "",
        "edgecolor": "#6b7075",
        "linewidth": min(bars.edge, 0.5),
    }
    starts = np.asarray(bars.starts) if len(bars.starts) else np.zeros(len(bars.at))
    lengths = np.asarray(bars.lengths)
    if bars.stands:
        axes.bar(bars.at, lengths, bottom=starts, width=bars.width, label=bars.label or None, **look)
        axes.grid(visible=False, axis="x")
        return
    axes.barh(bars.at, lengths, left=starts, height=bars.width, label=bars.label or None, **look)
    axes.grid(visible=False, axis="y")
    for place, start, length, text in zip(bars.at, starts, lengths, bars.texts, strict=False):
        if bars.inside:
            ink = {
                "ha": "center",
                "va": "center",
                "fontsize": 6,
                "color": ink_on(colour),
                "clip_on": True,
            }
            axes.text(start + length / 2, place, text, **ink)
        elif text:
            side = {"xytext": (4 if length >= 0 else -4, 0), "ha": "left" if length >= 0 else "right"}
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
            axes.annotate(
                text,
                (start + length, place),
                textcoords="offset points",
                va="center",
                fontsize="small",
                bbox=box,
                **side,
            )


def _draw_curve(axes: Any, curve: Curve) -> None:
    look = {"color": curve.colour, "linestyle": curve.dash, "linewidth": curve.width}
    style = {"drawstyle": "steps-post"} if curve.steps else {}
    axes.plot(curve.x, curve.y, label=curve.label or None, **look, **style)


def _draw_dots(axes: Any, dots: Dots) -> None:
    edge = {"markeredgecolor": "black" if dots.size > 5 else dots.colour, "markeredgewidth": 0.8}
    look = {"color": dots.colour, "markersize": 0.8 * dots.size, "linestyle": "", "label": dots.label or None}
    axes.plot(dots.x, dots.y, dots.marker, **look, **edge)
    for x, y, text in zip(dots.x, dots.y, dots.texts, strict=False):
        if dots.is_within:
            axes.annotate(text, (x, y), ha="center", va="center", fontsize="x-small", fontweight="bold")
            continue
        place = (5, -24) if "\n" in text else (6, 6)
        axes.annotate(text, (x, y), textcoords="offset points", xytext=place, fontsize="x-small")


def _draw_band(axes: Any, band: Band) -> None:
    axes.axvspan(band.start, band.end, color=band.colour, zorder=0)
    axes.axvline(band.start, color="grey", linewidth=0.7)
    narrow = np.log10(band.end / band.start) <= 1.3
    where = {"transform": axes.get_xaxis_transform(), "rotation": 90 if narrow else 0}
    axes.text(
        np.sqrt(band.start * band.end), 0.98, band.text, ha="center", va="top", fontsize="small", **where
    )


def _draw_cells(axes: Any, cells: Cells) -> None:
    from matplotlib.colors import ListedColormap

    rows, width = cells.numbers.shape
    shades = ListedColormap(SHADES)
    shown = np.ma.masked_invalid(cells.numbers) % 8
    axes.pcolormesh(
        shown, cmap=shades, vmin=-0.5, vmax=7.5, edgecolors="white", linewidth=0.3, rasterized=True
    )
    if cells.has_texts:
        for row, place in np.ndindex(rows, width):
            axes.text(
                place + 0.5,
                row + 0.5,
                f"{cells.numbers[row, place]:.0f}",
                ha="center",
                va="center",
                fontsize=6.5,
            )
    axes.grid(visible=False)
    axes.set(ylim=(rows, 0))
    for axis, count in (("x", width), ("y", rows)):
        step = 1 if count <= 16 else 8
        places = range(0, count, step) if cells.has_texts or width > 16 else ()
        getattr(axes, f"set_{axis}ticks")(
            [at + 0.5 for at in places], [str(at) for at in places], fontsize="x-small"
        )


_DRAWN: Mapping[type, Any] = {
    Bars: _draw_bars,
    Curve: _draw_curve,
    Dots: _draw_dots,
    Band: _draw_band,
    Cells: _draw_cells,
}
