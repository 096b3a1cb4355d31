"""What every answer can: be data, be a frame, show itself in a notebook, and be drawn.

Data about an answer stands beside it. What draws it is above it and registers here, under the name of
the answer's class; the first answer that wants to be seen imports `costmodel.reporting`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from costmodel.base.errors import CostModelError, choices_hint
from costmodel.base.grid import grid_called, html_table
from costmodel.base.words import DEVICE, called

if TYPE_CHECKING:
    import pandas as pd

    from costmodel.base.grid import Grid

_DRAWN_BY = "costmodel.reporting.faces"


class Face(ABC):
    """How answers of one kind are seen: their tables, and their figures by name.

    A method without underscore, other than those of this class, is a figure and returns what
    matplotlib draws on.
    """

    registered: ClassVar[dict[str, type[Face]]] = {}

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    @abstractmethod
    def grids(self, **options: Any) -> list[Grid]:
        """Return the answer as tables for people."""

    def remarks(self) -> list[str]:
        """Return sentences that stand below the tables."""
        return []

    def html(self) -> str:
        """Return the answer as a notebook shows it."""
        return "".join(html_table(grid) for grid in self.grids())

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of the figures."""
        return tuple(name for name in vars(cls) if not name.startswith("_") and not hasattr(Face, name))

    @classmethod
    def require(cls, name: str) -> None:
        """Refuse a name of no figure.

        Raises
        ------
        CostModelError
            If there is none of that name.
        """
        if name.replace("-", "_") not in cls.names():
            raise CostModelError(f"figure: {name!r} is unknown; {choices_hint(name, cls.names())}")

    def named(self, name: str) -> Any:
        """Draw the figure of that name.

        Raises
        ------
        CostModelError
            If there is none.
        """
        self.require(name)
        return getattr(self, name.replace("-", "_"))()

    __call__ = named

    def __getattr__(self, name: str) -> Callable[[], Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        known = self.names()
        raise AttributeError(f"no figure is called {name!r}; {choices_hint(name, known)}")


def to_json(record: Mapping[str, Any] | list[Any]) -> str:
    """Return a record as JSON; a number that JSON does not have is an error, not a ``NaN``."""
    return json.dumps(record, allow_nan=False, indent=2, ensure_ascii=False)


AnyFace = TypeVar("AnyFace", bound=type[Face])


def face(kind: str) -> Callable[[AnyFace], AnyFace]:
    """Register what draws answers whose class is called `kind`."""

    def register(drawn: AnyFace) -> AnyFace:
        Face.registered[kind] = drawn
        return drawn

    return register


def face_of(kind: str) -> type[Face]:
    """Return what draws answers whose class is called `kind`."""
    if not Face.registered:
        import_module(_DRAWN_BY)
    return Face.registered[kind]


class Answer(ABC):
    """What the public functions return.

    Each answer gives `to_dict` and `columns`, from which everything else follows.
    """

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
        return face_of(type(self).__name__)(self)

    @property
    def device_word(self) -> str:
        """What a device of the hardware is called: GPU, chip, core …; tables and remarks say so."""
        return DEVICE

    def grids(self, **options: Any) -> list[Grid]:
        """Return the answer as tables for people, as the command line prints them."""
        return [grid_called(grid, self.device_word) for grid in self.plot.grids(**options)]

    def remarks(self) -> list[str]:
        """Return what the command line says below the tables."""
        return [called(remark, self.device_word) for remark in self.plot.remarks()]

    def _repr_html_(self) -> str:
        return called(self.plot.html(), self.device_word)


@dataclass(frozen=True)
class Listing(Answer):
    """What there is of a kind: a row each.

    Attributes
    ----------
    what : str
        The kind, such as ``models``.
    table : mapping
        Columns.
    """

    what: str
    table: Mapping[str, Sequence[Any]]

    def to_dict(self) -> dict[str, Any]:
        """Return a record a row."""
        rows = [
            dict(zip(self.table, values, strict=True)) for values in zip(*self.table.values(), strict=True)
        ]
        return {"schema_version": 1, self.what: rows}

    def columns(self) -> dict[str, list[Any]]:
        """Return the table."""
        return {name: list(values) for name, values in self.table.items()}
