"""The language of formulas: text that is read once, compiled, and run on numbers or arrays.

A formula is one expression, or several steps apart by semicolons of which all but the last give a
name to what the next ones use: ``busy_s = share * wire_s; max(busy_s - window_s, 0)``. It is read as
Python, and only arithmetic, comparisons, ``and``, ``or``, ``not`` and the functions of `FUNCTIONS` are let
through. The text is the code: what `explain` prints is what priced the line.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.errors import CostModelError, choices_hint

Array = NDArray[np.float64]

FUNCTIONS: dict[str, Callable[..., ArrayLike]] = {
    "max": np.maximum,
    "min": np.minimum,
    "where": np.where,
    "abs": np.abs,
    "ceil": np.ceil,
    "floor": np.floor,
    "sqrt": np.sqrt,
    "cbrt": np.cbrt,
    "log2": np.log2,
    "exp": np.exp,
    "expm1": np.expm1,
}
"""What a formula may call; ``max`` and ``min`` take two values or more."""

_LOGIC: dict[type[ast.AST], Callable[..., ArrayLike]] = {
    ast.And: np.logical_and,
    ast.Or: np.logical_or,
    ast.Not: np.logical_not,
}
"""What ``and``, ``or`` and ``not`` are on arrays."""

_OPERATORS: tuple[type[ast.AST], ...] = (
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.Div,
    ast.Pow,
    ast.Mod,
    ast.USub,
    ast.UAdd,
    ast.Gt,
    ast.GtE,
    ast.Lt,
    ast.LtE,
    ast.Eq,
    ast.NotEq,
    *_LOGIC,
)


class Step(NamedTuple):
    """One step of a formula with its value; `name` is empty for the last, which is the result."""

    name: str
    expression: str
    value: Array


class Compiled(NamedTuple):
    """A formula ready to run: `run(numbers)` returns the value of every step, the result last.

    `needs` are the names that it must be given, in the order of their first use; `step_names` are `names`
    without that of the result, which has none.
    """

    needs: tuple[str, ...]
    names: tuple[str, ...]
    step_names: tuple[str, ...]
    expressions: tuple[str, ...]
    run: Callable[[Mapping[str, ArrayLike]], tuple[ArrayLike, ...]]


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
    made = compiled(formula)
    values = run(formula, terms)
    arrays = [np.asarray(value, dtype=np.float64) for value in values]
    return [Step(*step) for step in zip(made.names, made.expressions, arrays, strict=True)]


def evaluate(formula: str, terms: Mapping[str, ArrayLike]) -> Array:
    """Return the value of a formula at the given numbers; see `evaluate_steps`.

    >>> float(evaluate("fixed_s + size_bytes / rate", {"fixed_s": 1, "size_bytes": 6, "rate": 3}))
    3.0
    """
    return np.asarray(run(formula, terms)[-1], dtype=np.float64)


def run(formula: str, terms: Mapping[str, ArrayLike]) -> tuple[ArrayLike, ...]:
    """Return the values of all steps of a formula, the result last; see `evaluate_steps`."""
    try:
        return compiled(formula).run(terms)
    except KeyError as missing:
        (name,) = missing.args
        raise CostModelError(
            f"formula: {name!r} in {formula!r} has no number; {choices_hint(name, terms)}"
        ) from None


@lru_cache(maxsize=4096)
def names_of(formula: str) -> list[str]:
    """Return the names that a formula uses, in order, functions left out.

    >>> names_of("busy = share * wire_s; max(busy - window_s, 0)")
    ['busy', 'share', 'wire_s', 'window_s']
    """
    nodes = [node for node in ast.walk(ast.parse(formula)) if isinstance(node, ast.Name)]
    nodes.sort(key=lambda node: (node.lineno, node.col_offset))
    return list(dict.fromkeys(node.id for node in nodes if node.id not in FUNCTIONS))


def inputs_of(formula: str) -> tuple[str, ...]:
    """Return the names that a formula must be given, in the order of their first use.

    >>> inputs_of("busy = share * wire_s; max(busy - window_s, 0)")
    ('share', 'wire_s', 'window_s')
    """
    return compiled(formula).needs


@lru_cache(maxsize=4096)
def named_result(formula: str, name: str) -> str:
    """Give the unnamed result of a formula a name, so that steps can follow.

    >>> named_result("a = 2 * x; a + 1", "b")
    'a = 2 * x; b = a + 1'
    """
    head, separator, last = formula.rpartition("; ")
    return f"{head}{separator}{name} = {last}"


@lru_cache(maxsize=4096)
def compiled(formula: str) -> Compiled:
    """Read a formula, refuse what is not arithmetic, and compile it to NumPy calls.

    Raises
    ------
    CostModelError
        If the formula is not one.
    """
    steps = _parse(formula)
    given: dict[str, None] = {}
    known: set[str] = set()
    body: list[str] = []
    for index, (name, node) in enumerate(steps):
        _check(node, formula)
        given |= {used: None for used in names_of(ast.unparse(node)) if used not in known}
        value = ast.unparse(ast.fix_missing_locations(_Compile().visit(ast.parse(ast.unparse(node)).body[0])))
        body.append(f"{name or f'_{index}'} = {value}")
        known.add(name)
    held = ", ".join(name or f"_{index}" for index, (name, _) in enumerate(steps))
    numbers = [f"{name} = _terms[{name!r}]" for name in given]
    lines = "\n    ".join([*numbers, *body, f"return ({held},)"])
    space: dict[str, Callable[..., ArrayLike]] = {f"_{name}": call for name, call in FUNCTIONS.items()}
    space |= {f"_{kind.__name__}": call for kind, call in _LOGIC.items()}
    exec(compile(f"def _run(_terms):\n    {lines}\n", f"<formula {formula}>", "exec"), space)
    expressions = tuple(ast.unparse(node) for _, node in steps)
    names = tuple(name for name, _ in steps)
    return Compiled(tuple(given), names, names[:-1], expressions, space["_run"])  # type: ignore[arg-type]


class _Compile(ast.NodeTransformer):
    """Turn checked arithmetic into fast NumPy: floats for integers, products for small powers."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        # Integers overflow silently in NumPy; a formula has none.
        return ast.Constant(float(node.value))  # type: ignore[arg-type]

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        power = node.right.value if isinstance(node.right, ast.Constant) else None
        if isinstance(node.op, ast.Pow) and isinstance(node.left, ast.Name) and power in (2, 3):
            made: ast.expr = node.left
            for _ in range(2 if power == 2 else 1, 3):
                made = ast.BinOp(made, ast.Mult(), node.left)
            return made
        return self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        # Python would ask a whole array whether it is true.
        first, *rest = [self.visit(value) for value in node.values]
        for value in rest:
            first = ast.Call(ast.Name(f"_{type(node.op).__name__}", ast.Load()), [first, value], [])
        return first  # type: ignore[no-any-return]

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        if isinstance(node.op, ast.Not):
            return ast.Call(ast.Name("_Not", ast.Load()), [self.visit(node.operand)], [])
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        assert isinstance(node.func, ast.Name)
        call = ast.Name(f"_{node.func.id}", ast.Load())
        arguments: list[ast.expr] = [self.visit(argument) for argument in node.args]
        if node.func.id not in ("max", "min"):
            return ast.Call(call, arguments, [])
        made = arguments[0]
        for argument in arguments[1:]:
            made = ast.Call(call, [made, argument], [])
        return made


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
    if any(name.startswith("_") for name, _ in steps):
        raise CostModelError(f"formula: a step of {formula!r} starts with an underscore")
    return tuple(steps)


def _check(node: ast.expr, formula: str) -> None:
    """Refuse every node that is not arithmetic on names and numbers."""
    inner: list[ast.expr]
    operator: type[ast.AST]
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return
    if isinstance(node, ast.Name) and not node.id.startswith("_") and node.id not in FUNCTIONS:
        return
    if isinstance(node, ast.BinOp):
        inner, operator = [node.left, node.right], type(node.op)
    elif isinstance(node, ast.BoolOp):
        inner, operator = node.values, type(node.op)
    elif isinstance(node, ast.UnaryOp):
        inner, operator = [node.operand], type(node.op)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        inner, operator = [node.left, node.comparators[0]], type(node.ops[0])
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
        if node.keywords:
            raise CostModelError(f"formula: {node.func.id} in {formula!r} takes no keywords")
        inner, operator = list(node.args), ast.Add
    else:
        inner, operator = [], type(node)
    if operator not in _OPERATORS or not inner:
        raise CostModelError(f"formula: {ast.unparse(node)!r} in {formula!r} is not arithmetic")
    for part in inner:
        _check(part, formula)
