"""The base class of all answers: data, a frame, tables for terminals and notebooks, and figures.

The functions that render an answer are in `costmodel.reporting.renderers`, by the name of its class; that module is
imported when an answer is first shown.
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
from costmodel.base.words import DEVICE, with_device_name

if TYPE_CHECKING:
    import pandas as pd

    from costmodel.base.grid import Grid

_RENDERERS = "costmodel.reporting.renderers"


class Summary(NamedTuple):
    """A summary in about twenty lines: tables, the first titled with the answer, and remarks below them."""

    grids: Sequence[Grid]
    remarks: Sequence[str] = ()


class Renderers(NamedTuple):
    """The functions that render answers of one class, as ``module:name`` inside `costmodel.reporting`."""

    grids: str  # Returns the tables of an answer, given their options
    remarks: str = ""  # Returns the remarks below them; empty for no remarks
    figures: Mapping[str, str] = MappingProxyType({})  # Functions that return a chart, by its name
    summary: str = ""  # Returns the `Summary` of an answer with long tables; empty for none


class Views:
    """The renderings of an answer: its tables, remarks, and figures by name."""

    def __init__(self, kind: str, answer: Any = None) -> None:
        self._renderers: Renderers = import_module(_RENDERERS).RENDERERS[kind]
        self._answer = answer

    def _rendered(self, function: str, **options: Any) -> Any:
        module, _, name = function.partition(":")
        return getattr(import_module(f"costmodel.reporting.{module}"), name)(self._answer, **options)

    def part(self, name: str, **options: Any) -> Any:
        """Return the tables, remarks or summary of the answer, by the field of `Renderers`; None if it has none."""
        function = getattr(self._renderers, name)
        return self._rendered(function, **options) if function else None

    def names(self) -> tuple[str, ...]:
        """Return the names of the figures."""
        return tuple(self._renderers.figures)

    def require(self, name: str) -> str:
        """Return the name of a figure with underscores; an unknown one is a `CostModelError`."""
        if name.replace("-", "_") not in self.names():
            raise CostModelError(f"figure: {name!r} is unknown; {choices_hint(name, self.names())}")
        return name.replace("-", "_")

    def named(self, name: str = "") -> Any:
        """Draw the figure of that name by matplotlib, the first where none is named, as ``--plot`` does."""
        return import_module("costmodel.reporting.charts").draw(self.chart(name or self.names()[0]))

    def chart(self, name: str) -> Any:
        """Return the figure of that name as data, a `costmodel.reporting.charts.Chart`."""
        return self._rendered(self._renderers.figures[self.require(name)])

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
    """A property whose value is a Python number (which `json` accepts) for one layout, and an array for several."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return plain(super().__get__(instance, owner))


def plain(value: Any) -> Any:
    """Return the Python number of an array of one layout, and anything else as it is."""
    return value if getattr(value, "shape", True) else value.item()


class Answer(ABC):
    """What the public functions return.

    Each answer gives `to_dict` and `columns`, from which everything else follows.
    """

    def __repr__(self) -> str:
        """Return the class name and the answer in a sentence: the title of the first table."""
        short = self.brief()
        grids = self.grids() if short is None else short.grids
        title = next((grid.title for grid in grids if grid.title), "")
        return f"{type(self).__name__}({title})"

    def __getattr__(self, name: str) -> Any:
        """Raise an error that suggests the nearest attribute."""
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
    def plot(self) -> Views:
        """Figures by name: ``answer.plot.names()`` lists them."""
        return Views(type(self).__name__, self)

    _device = ""
    """Dotted attribute with the word for a device, such as ``est.device_word``; empty for the usual one."""

    @property
    def device_word(self) -> str:
        """Word for a device of this hardware in tables and remarks: GPU, chip, core …."""
        return str(attrgetter(self._device)(self)) if self._device else DEVICE

    def grids(self, **options: Any) -> list[Grid]:
        """Return the answer as tables for people, as the command line prints them."""
        return [grid_called(grid, self.device_word) for grid in self.plot.part("grids", **options)]

    def remarks(self) -> list[str]:
        """Return what the command line says below the tables."""
        return [with_device_name(remark, self.device_word) for remark in self.plot.part("remarks") or ()]

    def brief(self, **options: Any) -> Summary | None:
        """Return the answer in twenty lines, as the command line prints it; None where its tables are short already."""
        found, device = self.plot.part("summary", **options), self.device_word
        if found is None:
            return None
        grids = [grid_called(grid, device) for grid in found.grids]
        return Summary(grids, [with_device_name(remark, device) for remark in found.remarks])

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
    """A list of things of one kind, a row each."""

    what: str  # The kind, such as ``models``
    table: Mapping[str, Sequence[Any]]  # Columns

    def to_dict(self) -> dict[str, Any]:
        """Return a record a row."""
        return {"schema_version": 1, self.what: rows_of(self.table)}

    def columns(self) -> dict[str, list[Any]]:
        """Return the table."""
        return {name: list(values) for name, values in self.table.items()}
