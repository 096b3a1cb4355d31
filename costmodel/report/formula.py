"""The formulas of a bill's lines, as text: their value at the numbers of the line, and their steps.

A formula is one expression, or several steps apart by semicolons of which all but the last give a
name to what the next ones use: ``busy = share * wire_s; max(busy - window_s, 0)``. It is read as
Python, and only arithmetic, comparisons and the functions of `FUNCTIONS` are let through.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import lru_cache, reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.errors import CostModelError, choices_hint

Array = NDArray[np.float64]

FUNCTIONS: dict[str, Callable[..., ArrayLike]] = {
    "max": lambda *values: reduce(np.maximum, values), "min": lambda *values: reduce(np.minimum, values),
    "where": np.where, "ceil": np.ceil, "floor": np.floor, "sqrt": np.sqrt, "cbrt": np.cbrt, "log2": np.log2,
}  # fmt: skip
"""What a formula may call."""

_OPERATORS: dict[type[ast.AST], Callable[..., ArrayLike]] = {
    ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.divide, ast.Pow: np.power,
    ast.USub: np.negative, ast.UAdd: np.positive, ast.Gt: np.greater, ast.GtE: np.greater_equal,
    ast.Lt: np.less, ast.LtE: np.less_equal, ast.Eq: np.equal, ast.NotEq: np.not_equal,
}  # fmt: skip


class Step(NamedTuple):
    """One step of a formula with its value; `name` is empty for the last, which is the result."""

    name: str
    expression: str
    value: Array


def evaluate_steps(formula: str, terms: Mapping[str, ArrayLike]) -> list[Step]:
    """Return every step of a formula with its value; the last one's is the formula's.

    Parameters
    ----------
    formula : str
        Steps apart by semicolons, all but the last ``name = expression``.
    terms : mapping of str to array_like
        The numbers that the names stand for; arrays broadcast.

    Raises
    ------
    CostModelError
        If the formula is not one, or uses a name that neither `terms` nor an earlier step gives.

    Examples
    --------
    >>> steps = evaluate_steps("busy = 2 * wire_s; max(busy - window_s, 0)", {"wire_s": 3, "window_s": 1})
    >>> [(step.name, step.expression, float(step.value)) for step in steps]
    [('busy', '2 * wire_s', 6.0), ('', 'max(busy - window_s, 0)', 5.0)]
    """
    known: dict[str, ArrayLike] = dict(terms)
    steps = []
    for name, node in _parse(formula):
        value = np.asarray(_value(node, known, formula), dtype=np.float64)
        if name:
            known[name] = value
        steps.append(Step(name, ast.unparse(node), value))
    return steps


def evaluate(formula: str, terms: Mapping[str, ArrayLike]) -> Array:
    """Return the value of a formula at the given numbers; see `evaluate_steps`.

    >>> float(evaluate("fixed_s + size_bytes / rate", {"fixed_s": 1, "size_bytes": 6, "rate": 3}))
    3.0
    """
    return evaluate_steps(formula, terms)[-1].value


def names_of(formula: str) -> list[str]:
    """Return the names that a formula uses, in order, functions left out.

    >>> names_of("busy = share * wire_s; max(busy - window_s, 0)")
    ['busy', 'share', 'wire_s', 'window_s']
    """
    nodes = [node for node in ast.walk(ast.parse(formula)) if isinstance(node, ast.Name)]
    nodes.sort(key=lambda node: (node.lineno, node.col_offset))
    return list(dict.fromkeys(node.id for node in nodes if node.id not in FUNCTIONS))


@lru_cache(maxsize=256)
def _parse(formula: str) -> tuple[tuple[str, ast.expr], ...]:
    """Split a formula into named expressions, the last one without a name."""
    try:
        statements = ast.parse(formula).body
    except SyntaxError as error:
        raise CostModelError(f"formula: cannot read {formula!r} ({error.msg})") from None
    steps: list[tuple[str, ast.expr]] = []
    for statement in statements:
        if isinstance(statement, ast.Expr):
            steps.append(("", statement.value))
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            steps.append((statement.targets[0].id, statement.value))
        else:
            text = ast.unparse(statement)
            raise CostModelError(f"formula: {text!r} is neither an expression nor a named one")
    if not steps or [bool(name) for name, _ in steps] != [True] * (len(steps) - 1) + [False]:
        raise CostModelError(f"formula: {formula!r} must be named steps and one unnamed result at the end")
    return tuple(steps)


def _value(node: ast.expr, known: Mapping[str, ArrayLike], formula: str) -> ArrayLike:
    """Evaluate one node of the expression tree; anything not listed here is refused."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return float(node.value)
    if isinstance(node, ast.Name):
        if node.id not in known:
            hint = choices_hint(node.id, known)
            raise CostModelError(f"formula: {node.id!r} in {formula!r} has no number; {hint}")
        return known[node.id]
    operands: list[ast.expr]
    operator: type[ast.AST]
    if isinstance(node, ast.BinOp):
        operands, operator = [node.left, node.right], type(node.op)
    elif isinstance(node, ast.UnaryOp):
        operands, operator = [node.operand], type(node.op)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        operands, operator = [node.left, node.comparators[0]], type(node.ops[0])
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
        if node.keywords:
            raise CostModelError(f"formula: {node.func.id} in {formula!r} takes no keywords")
        return FUNCTIONS[node.func.id](*(_value(argument, known, formula) for argument in node.args))
    else:
        operands, operator = [], type(node)
    if operator not in _OPERATORS:
        raise CostModelError(f"formula: {ast.unparse(node)!r} in {formula!r} is not arithmetic")
    return _OPERATORS[operator](*(_value(operand, known, formula) for operand in operands))
