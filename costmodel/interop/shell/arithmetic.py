"""Integer arithmetic of the shell, on variables that may be unknown."""

from __future__ import annotations

import re
from collections.abc import Callable

from costmodel.base.errors import CostModelError

_TOKEN = re.compile(
    r"\s*(?:(0[xX][0-9a-fA-F]+|\d+#[0-9a-zA-Z@_]+|\d\w*)|([A-Za-z_]\w*)|(\*\*|<<|>>|<=|>=|==|!=|&&|\|\||\+\+|--|[-+*/%]=|[-+*/%<>=!~&|^?:(),]))"
)
_LEVELS = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", "<=", ">", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)
_LARGEST = 2**63
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ@_"
"""By value; up to base 36 the case of letters does not matter (bash(1), Arithmetic Evaluation)."""

Look = Callable[[str], int | None]
Store = Callable[[str, int | None], None]


def integer_of(text: str) -> int | None:
    """Return a constant of the shell's arithmetic, None if it is none: ``0x1f``, octal ``017``, ``2#101``.

    >>> integer_of("0x1f"), integer_of("017"), integer_of("2#101"), integer_of("08")
    (31, 15, 5, None)
    """
    base, mark, digits = text.partition("#")
    if not mark:
        base, digits = (
            ("16", text[2:]) if text[:2].lower() == "0x" else ("8" if text[:1] == "0" else "10", text)
        )
    if not base.isdecimal() or not 2 <= int(base) <= len(_DIGITS) or not digits:
        return None
    radix, value = int(base), 0
    for digit in digits if radix > 36 else digits.lower():
        place = _DIGITS.find(digit)
        if not 0 <= place < radix:
            return None
        value = value * radix + place
        if value > _LARGEST:
            raise CostModelError("arithmetic: the number is too large")
    return value


def evaluate(expression: str, look: Look, store: Store) -> int | None:
    """Return the value of an expression, None if it depends on something unknown.

    Parameters
    ----------
    expression : str
        Without the double parentheses, its ``$`` already expanded.
    look, store : callable
        Read and set a variable.

    Raises
    ------
    CostModelError
        If the expression is not one, or divides by zero.
    """
    return _Sum(expression, look, store).value()


class _Sum:
    """One expression while it is evaluated."""

    def __init__(self, text: str, look: Look, store: Store) -> None:
        self.text, self.look, self.store = text, look, store
        self.tokens: list[str] = []
        at = 0
        stripped = text.rstrip()
        while at < len(stripped):
            found = _TOKEN.match(stripped, at)
            if not found:
                raise CostModelError(f"arithmetic: cannot read {text.strip()[:60]!r}")
            self.tokens.append(found[1] or found[2] or found[3])
            at = found.end()
        self.at = 0

    def value(self) -> int | None:
        if not self.tokens:
            return 0
        result = self._list()
        if self.at < len(self.tokens):
            raise CostModelError(f"arithmetic: cannot read {self.text.strip()[:60]!r}")
        return result

    def _peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self.at += 1
        return token

    def _list(self) -> int | None:
        result = self._assigned()
        while self._peek() == ",":
            self.at += 1
            result = self._assigned()
        return result

    def _assigned(self) -> int | None:
        name = self._peek()
        follows = self.tokens[self.at + 1] if self.at + 1 < len(self.tokens) else ""
        if name.isidentifier() and follows in ("=", "+=", "-=", "*=", "/=", "%="):
            self.at += 2
            value = self._assigned()
            if follows != "=":
                value = _apply(follows[0], self.look(name), value)
            self.store(name, value)
            return value
        return self._choice()

    def _choice(self) -> int | None:
        condition = self._level(0)
        if self._peek() != "?":
            return condition
        self.at += 1
        first = self._assigned()
        if self._next() != ":":
            raise CostModelError(f"arithmetic: cannot read {self.text.strip()[:60]!r}")
        second = self._assigned()
        return None if condition is None else first if condition else second

    def _level(self, level: int) -> int | None:
        if level == len(_LEVELS):
            return self._power()
        left = self._level(level + 1)
        while self._peek() in _LEVELS[level]:
            operator = self._next()
            left = _apply(operator, left, self._level(level + 1))
        return left

    def _power(self) -> int | None:
        base = self._unary()
        if self._peek() != "**":
            return base
        self.at += 1
        return _apply("**", base, self._power())

    def _unary(self) -> int | None:
        token = self._next()
        if token in ("-", "+", "!", "~"):
            value = self._unary()
            if value is None:
                return None
            return {"-": -value, "+": value, "!": int(not value), "~": ~value}[token]
        if token in ("++", "--"):
            name = self._next()
            value = _apply(token[0], self.look(name), 1)
            self.store(name, value)
            return value
        if token == "(":
            value = self._list()
            if self._next() != ")":
                raise CostModelError(f"arithmetic: cannot read {self.text.strip()[:60]!r}")
            return value
        if token.isidentifier():
            value = self.look(token)
            if self._peek() in ("++", "--"):
                self.store(token, _apply(self._next()[0], value, 1))
            return value
        number = integer_of(token)
        if number is None:
            raise CostModelError(f"arithmetic: cannot read {self.text.strip()[:60]!r}")
        return number


def _apply(operator: str, left: int | None, right: int | None) -> int | None:
    """Apply a binary operator; what is unknown stays so."""
    if left is None or right is None:
        return None
    if operator in ("/", "%") and right == 0:
        raise CostModelError("arithmetic: division by zero")
    if operator in ("**", "<<") and not 0 <= right < 64:
        raise CostModelError("arithmetic: the exponent is out of range")
    quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1) if operator in "/%" else 0
    table: dict[str, Callable[[], int]] = {
        "+": lambda: left + right,
        "-": lambda: left - right,
        "*": lambda: left * right,
        "/": lambda: quotient,
        "%": lambda: left - quotient * right,
        "**": lambda: left**right,
        "<<": lambda: left << right,
        ">>": lambda: left >> min(max(right, 0), 63),
        "<": lambda: int(left < right),
        "<=": lambda: int(left <= right),
        ">": lambda: int(left > right),
        ">=": lambda: int(left >= right),
        "==": lambda: int(left == right),
        "!=": lambda: int(left != right),
        "&&": lambda: int(bool(left) and bool(right)),
        "||": lambda: int(bool(left) or bool(right)),
        "&": lambda: left & right,
        "|": lambda: left | right,
        "^": lambda: left ^ right,
    }
    result = table[operator]()
    if abs(result) > _LARGEST:
        raise CostModelError("arithmetic: the number is too large")
    return result
