"""One assertion of a framework: a condition over its own arguments, evaluated on numbers or arrays.

A condition is a formula over a framework's own argument names that is true where the framework refuses.
Words of its enumerations (``full``, ``alltoall`` …) are numbers of their own, so that a condition reads as
the framework's source does and still runs on a million layouts at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.bill.formula import inputs_of, run

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job

Arguments = Mapping[str, ArrayLike]
"""Values of a framework's arguments by name; 0 is false, none and not given."""

_WORDS = """none full selective block uniform alltoall allgather flex softmax sigmoid ring ulysses all_gather rope
    learned_absolute local transformer_engine full_iteration"""
WORDS: Mapping[str, float] = {word: float(number) for number, word in enumerate(_WORDS.split())}
"""Words that arguments take as values, each as a number; ``none`` is 0."""


@dataclass(frozen=True)
class Assertion:
    """A condition under which a framework does not start, or starts as something else than was planned.

    Attributes
    ----------
    framework : str
        Whose it is, as in `costmodel.interop.emit.FRAMEWORKS`.
    release : str
        Release or commit that was read.
    only : str
        ``own`` if only the framework's own release states it, a later release if only that does, else empty.
    place : str
        Where it is stated there: file and line, or file and function.
    refused : str
        Formula over the framework's arguments, true where it refuses.
    message : str
        What is wrong, with arguments in braces.
    stops : bool
        Whether the framework stops; otherwise it runs another job than the one that was priced.
    """

    framework: str
    release: str
    only: str
    place: str
    refused: str
    message: str
    stops: bool = True

    @property
    def code(self) -> str:
        """What the assertion is counted under."""
        return f"{self.framework} {self.place}"

    @property
    def needs(self) -> tuple[str, ...]:
        """Arguments that the condition looks at."""
        return tuple(name for name in inputs_of(self.refused) if name not in WORDS)

    def bad(self, arguments: Arguments) -> NDArray[np.bool_]:
        """Return where the framework refuses."""
        return np.asarray(run(self.refused, {**WORDS, **arguments})[-1], dtype=bool)

    def sentence(self, arguments: Arguments) -> str:
        """Say what is wrong with one job, and where the framework says so."""
        numbers = {name: f"{name} = {float(np.max(value)):g}" for name, value in arguments.items()}
        return f"{self.message.format_map(numbers)} ({self.place}, {self.release})"

    @property
    def in_words(self) -> str:
        """What is wrong without the numbers of a job, and where the framework says so."""
        return f"{self.message.replace('{', '').replace('}', '')} ({self.place}, {self.release})"


class Table(NamedTuple):
    """What one framework asserts, and what the arguments of a job are there.

    Attributes
    ----------
    assertions : tuple of Assertion
        In the order in which they are looked at.
    arguments : callable
        Takes a job of one layout or many; returns the framework's arguments.
    """

    assertions: tuple[Assertion, ...]
    arguments: Callable[[Job], Arguments]

    def of(self, release: str) -> Table:
        """Return what one release asserts: ``own``, or a later one by name."""
        return self._replace(assertions=tuple(row for row in self.assertions if row.only in ("", release)))
