"""The language of formulas: text that is read once, compiled, and run on numbers or arrays.

A formula is one expression, or several steps apart by semicolons of which all but the last give a
name to what the next ones use: ``busy_s = share * wire_s; max(busy_s - window_s, 0)``. It is read as
Python, and only arithmetic, comparisons, ``and``, ``or``, ``not`` and the functions of `FUNCTIONS` are let
through. The text is the code: what `explain` prints is what priced the line.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.errors import CostModelError, choices_hint

Array = NDArray[np.float64]


def where(condition: ArrayLike, value: ArrayLike, otherwise: ArrayLike) -> Array:
    """Return `value` where a condition holds, and the other where it does not, as `np.where`.

    One condition for all layouts takes one side as it is: the shape of the other does not spread it.

    >>> where(True, 1.0, np.zeros(1000)).shape, where([True, False], 1.0, 0.0).shape
    ((), (2,))
    """
    if np.ndim(condition) == 0:
        return np.asarray(value if condition else otherwise)
    return np.where(condition, value, otherwise)


FUNCTIONS: dict[str, Callable[..., ArrayLike]] = {
    "max": np.maximum,
    "min": np.minimum,
    "where": where,
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

_SIGNS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Pow: "**",
    ast.Mod: "%",
    ast.USub: "-",
    ast.UAdd: "+",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}


class Step(NamedTuple):
    """One step of a formula with its value; `name` is empty for the last, which is the result."""

    name: str
    expression: str
    value: Array


@dataclass(frozen=True)
class Compiled:
    """A formula that is arithmetic, read once and compiled where it is run.

    `needs` are the names that it must be given and `uses` those and its steps', in the order of their first use;
    `names` those of its steps, of which the result, the last, has none.
    """

    text: str
    needs: tuple[str, ...]
    uses: tuple[str, ...]
    names: tuple[str, ...]
    nodes: tuple[ast.expr, ...]
    body: tuple[str, ...]

    @cached_property
    def step_names(self) -> tuple[str, ...]:
        """Names of all steps but the result."""
        return self.names[:-1]

    @cached_property
    def expressions(self) -> tuple[str, ...]:
        """Text of every step without its name."""
        return tuple(map(ast.unparse, self.nodes))

    @cached_property
    def run(self) -> Callable[[Mapping[str, ArrayLike]], tuple[ArrayLike, ...]]:
        """Function of the numbers that it needs, which returns the value of every step, the result last."""
        results = ", ".join(name or f"_{index}" for index, name in enumerate(self.names))
        numbers = [f"{name} = _terms[{name!r}]" for name in self.needs]
        lines = "\n    ".join([*numbers, *self.body, f"return ({results},)"])
        space: dict[str, Any] = {f"_{name}": call for name, call in FUNCTIONS.items()}
        space |= {f"_{sort.__name__}": call for sort, call in _LOGIC.items()}
        exec(compile(f"def _run(_terms):\n    {lines}\n", f"<formula {self.text}>", "exec"), space)
        return space["_run"]  # type: ignore[no-any-return]


def evaluate_steps(formula: str, terms: Mapping[str, ArrayLike]) -> list[Step]:
    """Return every step of a formula, ``name = expression`` but for the last, with its value; the last one's is the formula's.

    A `CostModelError` says what is no formula, and which name neither `terms` nor an earlier step gives.

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


def names_of(formula: str) -> list[str]:
    """Return the names that a formula uses, in order, functions left out.

    >>> names_of("busy = share * wire_s; max(busy - window_s, 0)")
    ['busy', 'share', 'wire_s', 'window_s']
    """
    return list(compiled(formula).uses)


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
def with_steps(steps: tuple[tuple[str, str], ...], formula: str) -> str:
    """Put those of the steps (names and expressions, in order) before a formula that it needs.

    >>> with_steps((("a", "2 * x"), ("b", "a + y"), ("c", "b + z")), "b * b")
    'a = 2 * x; b = a + y; b * b'
    """
    wanted, needed = set(inputs_of(formula)), []
    for name, expression in reversed(steps):
        if name in wanted:
            needed.append(f"{name} = {expression}")
            wanted |= set(inputs_of(expression))
    return "; ".join([*reversed(needed), formula])


@lru_cache(maxsize=4096)
def compiled(formula: str) -> Compiled:
    """Read a formula, and refuse what is not arithmetic."""
    names, nodes = zip(*_parse(formula), strict=True)
    uses: dict[str, None] = {}
    given: dict[str, None] = {}
    body: list[str] = []
    for index, (name, node) in enumerate(zip(names, nodes, strict=True)):
        used: dict[str, None] = {}
        body.append(f"{name or f'_{index}'} = {_code(node, formula, used)}")
        given |= {term: None for term in used if term not in names[:index]}
        uses |= {term: None for term in (name, *used) if term}
    return Compiled(formula, tuple(given), tuple(uses), names, nodes, tuple(body))


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


def _code(node: ast.expr, formula: str, used: dict[str, None]) -> str:
    """Write checked arithmetic as fast NumPy, and note the names it uses: floats for integers, products for small powers."""

    def code(inner: ast.expr) -> str:
        return _code(inner, formula, used)

    match node:
        case ast.Constant(value=value) if type(value) in (int, float):
            # Integers overflow silently in NumPy; a formula has none.
            return repr(float(value)).replace("inf", "1e309")  # type: ignore[arg-type]
        case ast.Name(id=name) if not name.startswith("_") and name not in FUNCTIONS:
            used[name] = None
            return name
        case ast.BinOp(left=ast.Name(), op=ast.Pow(), right=ast.Constant(value=2 | 3 as power)):
            return f"({' * '.join([code(node.left)] * (2 if power == 2 else 3))})"
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _SIGNS:
            return f"({code(left)} {_SIGNS[type(operator)]} {code(right)})"
        case ast.BoolOp(op=operator, values=values):
            # Python would ask a whole array whether it is true.
            return reduce(f"_{type(operator).__name__}({{}}, {{}})".format, map(code, values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return f"_Not({code(operand)})"
        case ast.UnaryOp(op=operator, operand=operand) if type(operator) in _SIGNS:
            return f"({_SIGNS[type(operator)]}{code(operand)})"
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in _SIGNS:
            return f"({code(left)} {_SIGNS[type(operator)]} {code(right)})"
        case ast.Call(func=ast.Name(id=name), args=[_, *_], keywords=keywords) if name in FUNCTIONS:
            if keywords:
                raise CostModelError(f"formula: {name} in {formula!r} takes no keywords")
            first, *others = map(code, node.args)
            if name not in ("max", "min"):
                return f"_{name}({', '.join([first, *others])})"
            for other in others:
                first = f"_{name}({first}, {other})"
            return first
    raise CostModelError(f"formula: {ast.unparse(node)!r} in {formula!r} is not arithmetic")
