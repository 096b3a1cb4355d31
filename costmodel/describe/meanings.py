"""What the fields of a model mean, in the words below each in its source."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import BaseModel


def meanings_of(home: type[BaseModel]) -> dict[str, str]:
    """Return the text below each field of a model in its source, in one line."""
    try:
        source = inspect.getsource(home)
    except OSError:
        # Made while the program runs, as `Sourced` of a kind of number is.
        return {}
    tree = ast.parse(textwrap.dedent(source)).body[0]
    assert isinstance(tree, ast.ClassDef)
    return {
        field.target.id: " ".join(str(ast.literal_eval(below.value)).split())
        for field, below in zip(tree.body, tree.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
    }
