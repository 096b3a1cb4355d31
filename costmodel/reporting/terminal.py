"""A chart in a terminal: what ``draw.js`` draws on a page, in characters."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.text import Text

from costmodel.reporting.charts import Chart, page_record

_FILLS = "█▓▒░▚▤◆▥◇▦▞"
"""Of one fill after another, so that bars can be told apart without colour."""
_ROWS = 18
"""Height of a panel of curves and dots."""
_LONGEST_LABEL = 30

Mark = dict[str, Any]


def terminal_text(chart: Chart, width: int) -> Text:
    """Return a chart in so many columns."""
    lines = [Text(chart.title, style="bold")]
    for panel in page_record(chart)["panels"]:
        lines += _Panel(panel, width).lines()
    return Text("\n").join(lines)


class _Panel:
    """A panel on a grid of characters, each with its colour."""

    def __init__(self, panel: dict[str, Any], width: int) -> None:
        self.panel, self.rows, self.each = panel, _ROWS, 0
        widths = [mark.get("width", 0.7) for mark in panel["marks"] if mark["kind"] == "bars"]
        if widths:  # a bar in a row, or several in one: side by side, or by their share of its height
            self.each = 4 if any(map(np.ndim, widths)) else 2 if min(widths) < 0.5 else 1
            self.rows = round(abs(np.diff(panel["y"]["ends"])[0])) * self.each
        ticks = panel["y"]["ticks"] or self._even("y", 5)
        named = {self._row(at): text.split("\n")[0][:_LONGEST_LABEL] for at, text in ticks}
        margin = max(map(len, named.values()), default=0)
        self.margins = [named.get(row, "").rjust(margin) + " " for row in range(self.rows)]
        self.width = width - margin - 1
        self.cells = np.full((self.rows, self.width), " ")
        self.colours = np.full((self.rows, self.width), "", dtype=object)
        self.texts: list[tuple[int, int, str]] = []
        self.fills = {"bubble": "╱"}

    def lines(self) -> list[Text]:
        """Return key, rows, ticks and title."""
        key = [Text()]
        for mark in self.panel["marks"]:
            drawn = getattr(self, f"_{mark['kind']}")(mark)
            if label := mark.get("label"):
                if len(key[-1]) + len(label) + 2 > self.width:
                    key.append(Text())
                key[-1].append(f"{drawn} ", _ink(mark)).append(f"{label}  ")
        for row, column, text in self.texts:
            for shown in (text, text.split(" (")[0]):
                place = slice(column, column + len(shown))
                if 0 <= column <= self.width - len(shown) and (self.cells[row, place] == " ").all():
                    self.cells[row, place] = list(shown)
                    break
        rows = [
            Text.assemble(margin, *zip(cells, colours, strict=True))
            for margin, cells, colours in zip(self.margins, self.cells, self.colours, strict=True)
        ]
        below = " " * self.width
        for at, text in self.panel["x"]["ticks"] or self._even("x", 6):
            start = min(self._column(at), self.width - len(text))
            if not below[max(start - 1, 0) : start + len(text) + 1].strip():
                below = below[:start] + text + below[start + len(text) :]
        for line in rows:
            line.rstrip()
        indent = " " * len(self.margins[0])
        above = [part for part in (*key, Text(self.panel["y"]["title"])) if part]
        return [
            *above,
            *rows,
            *(Text(indent + text) for text in (below.rstrip(), self.panel["x"]["title"], "")),
        ]

    def _even(self, axis: str, count: int) -> list[tuple[float, str]]:
        start, stop = self.panel[axis]["ends"]
        return [(at, f"{at:.3g}") for at in np.linspace(start, stop, count).tolist()]

    def _share(self, axis: str, value: Any) -> Any:
        """Return how far along an axis a value is."""
        ends, value = np.asarray(self.panel[axis]["ends"]), np.asarray(value, dtype=float)
        if self.panel[axis]["log"]:
            ends, value = np.log(ends), np.log(value)
        return (value - ends[0]) / (ends[1] - ends[0])

    def _column(self, value: float) -> int:
        return int(np.clip(round(self._share("x", value) * (self.width - 1)), 0, self.width - 1))

    def _row(self, value: float) -> int:
        at = (value + 0.5) * self.each
        if not self.each:
            at = (1.0 - self._share("y", value)) * (self.rows - 1) + 0.5
        return int(np.clip(at, 0, self.rows - 1))

    def _bars(self, mark: Mark) -> str:
        char = self.fills.setdefault(mark["fill"], _FILLS[(len(self.fills) - 1) % len(_FILLS)])
        count, middles = len(mark["at"]), (np.arange(self.rows) + 0.5) / self.each - 0.5
        more = [np.broadcast_to(mark.get("width", 0.7), count), mark.get("starts", [0.0] * count)]
        texts = mark.get("texts", [""] * count)
        for at, wide, start, length, text in zip(mark["at"], *more, mark["lengths"], texts, strict=True):
            rows = np.flatnonzero((abs(middles - at) <= wide / 2) & (length != 0.0))
            first, last = sorted((self._column(start), self._column(start + length)))
            for row in rows:
                self.cells[row, first : max(last, first + 1)] = char
                self.colours[row, first : max(last, first + 1)] = mark["colour"]
            if not mark.get("texts_inside"):
                behind = max(last, first + 1) + 1
                self.texts.append((self._row(at), behind if length >= 0 else first - len(text) - 1, text))
        return char

    def _curve(self, mark: Mark) -> str:
        x, y = self._share("x", mark["x"]), self._share("y", mark["y"])
        if x[0] == x[-1]:
            first, last = sorted(map(self._row, (mark["y"][0], mark["y"][-1])))
            self.cells[first : last + 1, self._column(mark["x"][0])] = "┃"
            return "┃"
        at = np.linspace(0.0, 1.0, self.width)
        before = np.clip(np.searchsorted(x, at, side="right") - 1, 0, len(x) - 1)
        heights = y[before] if mark.get("steps") else np.interp(at, x, y)
        for column in np.flatnonzero((at >= x[0]) & (at <= x[-1]) & (heights >= 0.0) & (heights <= 1.0)):
            row = round((1.0 - heights[column]) * (self.rows - 1))
            self.cells[row, column], self.colours[row, column] = "─", _ink(mark)
        return "─"

    def _dots(self, mark: Mark) -> str:
        char, inside = (
            "★" if mark.get("marker") == "*" else "·" if mark["size"] <= 5 else "●",
            mark.get("texts_inside"),
        )
        for x, y, text in zip(mark["x"], mark["y"], mark.get("texts") or [""] * len(mark["x"]), strict=True):
            row, column = self._row(y), self._column(x)
            self.cells[row, column], self.colours[row, column] = text[0] if inside else char, _ink(mark)
            self.texts.append((max(row - 1, 0), column + 2, "" if inside else text.split("\n")[0]))
        return char

    def _band(self, mark: Mark) -> str:
        self.texts.append((0, self._column((mark["start"] * mark["end"]) ** 0.5), mark["text"]))
        return " "


def _ink(mark: Mark) -> str:
    """Return the colour of a mark, none for black: a terminal may be."""
    return "" if mark["colour"] == "#000000" else str(mark["colour"])
