"""A quantity: a value together with the formula and the numbers that made it."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, MutableMapping
from operator import attrgetter
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.bill.formula import compiled, named_result, run

Array = NDArray[np.float64]


class Quantity(NamedTuple):
    """The value of `formula` at `terms`, computed once, and the values of its named steps."""

    value: Array  # What the formula gives; a scalar or an array over layouts
    formula: str  # Steps and a result in the language of `costmodel.bill.formula`
    terms: Mapping[str, ArrayLike]  # The numbers of the formula's names, in SI units
    steps: Mapping[str, ArrayLike]  # The values of the steps that were computed last, by name

    def step(self, name: str) -> Array:
        """Return the value of a named step that was computed last.

        >>> float(quantity("a = 2 * x; a + 1", x=3.0).step("a"))
        6.0
        """
        return np.asarray(self.steps[name], dtype=np.float64)

    def then(self, name: str, formula: str, **more: ArrayLike) -> Quantity:
        """Call this value `name` and go on with `formula`, which may use it and the numbers of `more`.

        Only the new part is computed.
        """
        for key in more:
            if key in self.terms and self.terms[key] is not more[key]:
                raise ValueError(
                    f"formula: {key!r} stands for two numbers in {self.formula!r} and {formula!r}"
                )
        known: dict[str, ArrayLike] = {}
        # Not all of them: some are made when they are asked for.
        for numbers in (self.terms, self.steps, more):
            known |= {key: numbers[key] for key in compiled(formula).needs if key in numbers}
        new = _made(formula, {**known, name: self.value})
        return Quantity(
            new.value,
            f"{named_result(self.formula, name)}; {formula}",
            _with_more(self.terms, more),
            {name: self.value, **new.steps},
        )


def _with_more(terms: Mapping[str, ArrayLike], more: dict[str, ArrayLike]) -> Mapping[str, ArrayLike]:
    """Return more terms after those that there are; none is made for it that is made when it is asked for."""
    if isinstance(terms, dict):
        return {**terms, **more}
    return ChainMap(more, cast("MutableMapping[str, ArrayLike]", terms))


def quantity(formula: str, **terms: ArrayLike) -> Quantity:
    """Compute `formula` at `terms`.

    >>> float(quantity("a = 2 * x; a + 1", x=3).value)
    7.0
    """
    return _made(formula, terms)


def _made(formula: str, terms: Mapping[str, ArrayLike]) -> Quantity:
    values = run(formula, terms)
    steps = dict(zip(compiled(formula).step_names, values, strict=False))
    return Quantity(np.asarray(values[-1], dtype=np.float64), formula, terms, steps)


class Figure:
    """An attribute that is a formula of other attributes, or of what `paths` such as ``est.job.tokens`` lead to.

    >>> class Run:
    ...     gpus, hours = 8, 2.0
    ...     gpu_hours = Figure("gpus * hours", "Hours of all GPUs. [h]")
    >>> Run().gpu_hours
    16.0
    """

    def __init__(self, formula: str, meaning: str, **paths: str) -> None:
        self.formula, self.__doc__ = formula, meaning
        self._terms = [(name, attrgetter(paths.get(name, name))) for name in compiled(formula).needs]

    def __get__(self, instance: Any, owner: type | None = None) -> float:
        if instance is None:
            return cast("float", self)
        return float(quantity(self.formula, **{name: value(instance) for name, value in self._terms}).value)
