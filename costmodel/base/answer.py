"""What every answer can: be data, be a frame, show itself in a notebook, and be drawn.

Data about an answer stands beside it. What draws it is above it, in the table of `costmodel.reporting.faces`, under
the name of the answer's class; it is imported when an answer is first seen.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from importlib import import_module
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from costmodel.base.errors import CostModelError, choices_hint, near_hint
from costmodel.base.grid import grid_called, html_table
from costmodel.base.words import DEVICE, called

if TYPE_CHECKING:
    import pandas as pd

    from costmodel.base.grid import Grid

_DRAWN_BY = "costmodel.reporting.faces"


class Summary(NamedTuple):
    """An answer in twenty lines: the answer as the title of the first table, then sentences below the tables."""

    grids: Sequence[Grid]
    remarks: Sequence[str] = ()


class Drawing(NamedTuple):
    """Where the functions are that draw answers of one kind, as ``module:name`` inside `costmodel.reporting`."""

    grids: str
    """Returns the tables of an answer; takes their options."""
    remarks: str = ""
    """Returns the sentences below them, none where it is empty."""
    figures: Mapping[str, str] = MappingProxyType({})
    """By name, what returns each figure as a chart."""
    summary: str = ""
    """Returns the `Summary` of an answer whose tables are long; none where it is empty."""


class Face:
    """How an answer of one kind is seen: its tables, remarks, and figures by name."""

    def __init__(self, kind: str, answer: Any = None) -> None:
        self._drawing: Drawing = import_module(_DRAWN_BY).DRAWINGS[kind]
        self._answer = answer

    def _drawn(self, function: str, **options: Any) -> Any:
        module, _, name = function.partition(":")
        return getattr(import_module(f"costmodel.reporting.{module}"), name)(self._answer, **options)

    def part(self, name: str, **options: Any) -> Any:
        """Return what a function of `Drawing` makes of the answer; None where the kind has no such part."""
        function = getattr(self._drawing, name)
        return self._drawn(function, **options) if function else None

    def names(self) -> tuple[str, ...]:
        """Return the names of the figures."""
        return tuple(self._drawing.figures)

    def require(self, name: str) -> str:
        """Return the name of a figure with underscores; an unknown one is a `CostModelError`."""
        if name.replace("-", "_") not in self.names():
            raise CostModelError(f"figure: {name!r} is unknown; {choices_hint(name, self.names())}")
        return name.replace("-", "_")

    def named(self, name: str) -> Any:
        """Draw the figure of that name by matplotlib."""
        return import_module("costmodel.reporting.charts").draw(self.chart(name))

    def chart(self, name: str) -> Any:
        """Return the figure of that name as data, a `costmodel.reporting.charts.Chart`."""
        return self._drawn(self._drawing.figures[self.require(name)])

    __call__ = named

    def __getattr__(self, name: str) -> Callable[[], Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self.names():
            raise AttributeError(f"no figure is called {name!r}; {choices_hint(name, self.names())}")
        return partial(self.named, name)


def to_json(record: Mapping[str, Any] | list[Any]) -> str:
    """Return a record as JSON; a number that JSON does not have is an error, not a ``NaN``."""
    return json.dumps(record, allow_nan=False, indent=2, ensure_ascii=False)


class figure(property):
    """A property that is a Python number where it holds one, which `json` takes, and an array where it holds several."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        value = super().__get__(instance, owner)
        return value if getattr(value, "shape", True) else value.item()


class Answer(ABC):
    """What the public functions return.

    Each answer gives `to_dict` and `columns`, from which everything else follows.
    """

    def __repr__(self) -> str:
        """Return what it is and the title of its first table, in one line."""
        title = next((grid.title for grid in self.grids() if grid.title), "")
        return f"{type(self).__name__}({title})"

    def __getattr__(self, name: str) -> Any:
        """Say which name was meant."""
        if hasattr(type(self), name):
            # A property of that name failed: its own error says more.
            return object.__getattribute__(self, name)
        known = [known for known in dir(type(self)) if not known.startswith("_")]
        hint = "" if name.startswith("_") else near_hint(name, known)
        raise AttributeError(f"{type(self).__name__} has no {name!r}{hint and '; ' + hint}")

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and texts, as ``--format json`` prints it."""

    @abstractmethod
    def columns(self) -> dict[str, list[Any]]:
        """Return the answer as columns of equal length, as ``--format csv`` prints it."""

    def to_frame(self) -> pd.DataFrame:
        """Return the answer as a frame with the columns of `columns`."""
        import pandas as pd

        return pd.DataFrame(self.columns())

    @property
    def plot(self) -> Face:
        """Figures by name: ``answer.plot.names()`` lists them."""
        return Face(type(self).__name__, self)

    _device = ""
    """Attributes that lead to what a device is called, such as ``est.device_word``; empty where there is none."""

    @property
    def device_word(self) -> str:
        """What a device of the hardware is called: GPU, chip, core …; tables and remarks say so."""
        return str(attrgetter(self._device)(self)) if self._device else DEVICE

    def grids(self, **options: Any) -> list[Grid]:
        """Return the answer as tables for people, as the command line prints them."""
        return [grid_called(grid, self.device_word) for grid in self.plot.part("grids", **options)]

    def remarks(self) -> list[str]:
        """Return what the command line says below the tables."""
        return [called(remark, self.device_word) for remark in self.plot.part("remarks") or ()]

    def brief(self, **options: Any) -> Summary | None:
        """Return the answer in twenty lines, as the command line prints it; None where its tables are short already."""
        found, device = self.plot.part("summary", **options), self.device_word
        if found is None:
            return None
        grids = [grid_called(grid, device) for grid in found.grids]
        return Summary(grids, [called(remark, device) for remark in found.remarks])

    def _repr_html_(self) -> str:
        first, *rest = map(html_table, self.grids())
        items = "".join(f"<li>{escape(remark)}</li>" for remark in self.remarks())
        return "".join([first, f"<ul>{items}</ul>" if items else "", *rest])


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return rows of the same keys, at least one, as columns."""
    return {name: [row[name] for row in rows] for name in rows[0]}


def rows_of(table: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return columns of equal length as rows."""
    return [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]


@dataclass(frozen=True, repr=False)
class Listing(Answer):
    """What there is of a kind: a row each."""

    what: str
    """The kind, such as ``models``."""
    table: Mapping[str, Sequence[Any]]
    """Columns."""

    def to_dict(self) -> dict[str, Any]:
        """Return a record a row."""
        return {"schema_version": 1, self.what: rows_of(self.table)}

    def columns(self) -> dict[str, list[Any]]:
        """Return the table."""
        return {name: list(values) for name, values in self.table.items()}
