"""What `help`, notebooks and editors show of calls that take fields as keywords."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from costmodel.describe.jobs.fields import Field

_Call = TypeVar("_Call", bound=Callable[..., Any])


def shows(fields: Iterable[Field], *, searched: bool = False) -> Callable[[_Call], _Call]:
    """Give a call the names and defaults of the fields it takes as ``**keywords``, instead of two stars.

    With `searched`, what a search turns takes every sensible value where none is given: none is shown.
    """

    def default(field: Field) -> object:
        if field.required:
            return inspect.Parameter.empty  # the mark of a keyword that must be given
        return None if searched and field.turned else field.default

    def decorate(call: _Call) -> _Call:
        signature = inspect.signature(call)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        more = [
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default(field))
            for field in fields
            if field.name not in signature.parameters
        ]
        setattr(call, "__signature__", signature.replace(parameters=[*own, *more]))  # noqa: B010
        return call

    return decorate
