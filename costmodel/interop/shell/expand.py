"""Words of a shell script expanded: variables, defaults, arrays, whole numbers; nothing is run.

What a script cannot know stands in a word as a mark: a variable that is not set, or something that only
running the script tells. A reader that needs the value of such a word can say what it lacks.
"""

from __future__ import annotations

import fnmatch
import operator
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from costmodel.base.errors import CostModelError

Value = TypeVar("Value")

_MARK = re.compile("([\ue000\ue002])([^\ue001]*)\ue001")
_SPACE_IN_MARK = "\ue003"
LONGEST, _MOST_WRITTEN = 100_000, 1_000_000
"""Characters of a variable, and of all that a script sets."""
_NAME = re.compile(r"[A-Za-z_]\w*")
_SHORT = re.compile(r"\$([A-Za-z_]\w*|[\d@*#?$!-])")
_BRACED = re.compile(r"([#!]?)([A-Za-z_]\w*|\d+|[@*#?$!-])(?:\[([^\]]*)\])?(.*)", re.S)
_OPERATION = re.compile(r"(:?[-=+?]|##?|%%?|//?|\^\^?|,,?|:)(.*)", re.S)
_ALL_ITEMS = re.compile(r'"\$(?:@|\{@\}|\{([A-Za-z_]\w*)\[@\]\})"')
_BRACE_EXPANSION = re.compile(r"(?<!\$)\{[^{}\s'\"$]*(?:,|\.\.)[^{}\s'\"$]*\}")
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"'}


def unset(name: str) -> str:
    """Return the mark of a variable that is not set."""
    return f"\ue000{name}\ue001"


def unknown(what: str, line: int) -> str:
    """Return the mark of what only running the script tells; `what` completes "it is …"."""
    plain = re.sub(r"[\ue000-\ue003|&;<>(){}$\"'`\\/\s]+", " ", what).strip()
    return "\ue002" + f"{plain[:100]}, line {line}".replace(" ", _SPACE_IN_MARK) + "\ue001"


def missing_in(text: str) -> str:
    """Say what a text lacks, empty if it is whole: ``$NAME is not set``, ``it is the output of …``."""
    found = _MARK.search(text)
    if not found:
        return ""
    if found[1] == "\ue000":
        return f"${found[2]} is not set"
    return f"it is {found[2].replace(_SPACE_IN_MARK, ' ')}"


def without_marks(text: str) -> str:
    """Return a text with what is missing as nothing."""
    return _MARK.sub("", text)


def is_unknown(text: str) -> bool:
    """Whether only running the script tells a text; a variable that is not set is known to be empty."""
    return "\ue002" in text


def end_of_piece(text: str, at: int) -> int:
    """Return where a character, an escape, a quoted part or an expansion ends that begins at `at`.

    Raises
    ------
    CostModelError
        If nothing closes it.
    """
    if text[at] == "\\":
        if at + 1 == len(text):
            raise CostModelError("a \\ at the end")
        return at + 2
    for opener, closer in (("'", "'"), ('"', '"'), ("`", "`"), ("$'", "$'"), ("$(", ")"), ("${", "}")):
        if text.startswith(opener, at):
            return _end_of(text, at + len(opener), closer)
    return at + 1


def _end_of(text: str, start: int, closer: str) -> int:
    """Return the place behind what closes a part, passing what is nested in it."""
    # Which characters begin a part of their own there.
    nested = {"'": "", "`": "", '"': "\\$`", "$'": "\\", ")": "\\$`'\"(", "}": '\\$`"'}[closer]
    at = start
    while at < len(text):
        if text[at] == closer[-1]:
            return at + 1
        if text[at] not in nested or (text.startswith("$'", at) and closer != ")"):
            at += 1
        else:
            at = _end_of(text, at + 1, ")") if text[at] == "(" else end_of_piece(text, at)
    raise CostModelError(f"nothing closes {' '.join(text[max(start - 2, 0) : start + 20].split())}")


@dataclass
class Scope:
    """Variables of a script, its arguments, and where it is read.

    Attributes
    ----------
    output_of : callable
        Tells what ``$( … )`` writes, or gives a mark.
    values : dict
        Variables, arrays as lists.
    arguments : list of str
        ``$1`` and so on.
    line : int
        For messages.
    written : int
        Characters that have been set in all.
    own : str
        The script's own path.
    unread : list of str
        Files that are sourced and were not read: what is not set, they may set.
    """

    output_of: Callable[[str], str]
    values: dict[str, str | list[str]] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    line: int = 0
    written: int = 0
    own: str = "./script"
    unread: list[str] = field(default_factory=list)

    def text(self, name: str) -> str | None:
        """Return a variable as one text, None if it is not set."""
        if name.isdigit() and int(name) <= len(self.arguments):
            return ([self.own, *self.arguments])[int(name)]
        if name in "?$!-":
            return unknown(f"the shell's own {name}", self.line)
        if name == "#":
            return str(len(self.arguments))
        value = self.values.get(name)
        return (value[0] if value else None) if isinstance(value, list) else value

    def items(self, name: str) -> list[str]:
        """Return a variable as an array."""
        value = self.values.get(name, [unset(name)] if self.unread else [])
        return [value] if isinstance(value, str) else value

    def set(self, name: str, value: str | list[str]) -> None:
        """Set a variable, of bounded length."""
        size = len(value) if isinstance(value, str) else sum(map(len, value))
        self.written += size
        if size > LONGEST or self.written > _MOST_WRITTEN:
            raise CostModelError(f"line {self.line}: {name} grows beyond {LONGEST:,} characters")
        self.values[name] = value

    def fields(self, word: str) -> list[str]:
        """Expand a word as it is written into the words that a command gets."""
        if found := _ALL_ITEMS.fullmatch(word):
            return list(self.items(found[1]) if found[1] else self.arguments)
        if found := _BRACE_EXPANSION.search(word):
            return [unknown(f"a brace expansion {found[0]}", self.line)]
        return shlex.split(self._expanded(word, splits=True))

    def one(self, word: str) -> str:
        """Expand a word that is not split, as in an assignment."""
        return "".join(shlex.split(self._expanded(word, splits=False)))

    def inside(self, text: str) -> str:
        """Expand a text as between double quotes, such as a here document."""
        return shlex.split('"' + self._expanded(text, splits=False, quoted=True) + '"')[0]

    def _expanded(self, word: str, *, splits: bool, quoted: bool = False) -> str:
        """Return a word whose expansions are replaced by text that shlex takes apart as the shell would."""
        special = "\\$`" if quoted else "\\$`'\""
        escaped = re.compile(r'["\\]' if quoted else r"""['"\\]""" if splits else r"""['"\\\s]""")
        between = " " if splits and not quoted else '" "' if splits else " " if quoted else "\\ "
        done, at = "", 0
        while at < len(word):
            is_plain = word[at] not in special or (quoted and word.startswith("$'", at))
            start, at = at, at + 1 if is_plain else end_of_piece(word, at)
            piece = word[start:at]
            if piece == "\\\n":
                continue
            if quoted and piece[0] == "\\":
                plain = piece[1:] if piece[1:] in {"$", "`", '"', "\\"} else piece
                done += escaped.sub(r"\\\g<0>", plain)
            elif piece[0] == '"' and not quoted:
                done += f'"{self._expanded(piece[1:-1], splits=splits, quoted=True)}"'
            elif piece[:2] == "$'":
                done += shlex.quote(re.sub(r"\\(.)", lambda e: _ESCAPES.get(e[1], e[0]), piece[2:-1]))
            elif piece == "$" and not _SHORT.match(word, start):
                done += "" if word[at : at + 1] == '"' and not quoted else "$"
            elif piece[0] in "$`":
                if found := _SHORT.match(word, start):
                    piece, at = "${" + found[1] + "}", found.end()
                done += between.join(escaped.sub(r"\\\g<0>", text) for text in self._values_of(piece, quoted))
            else:
                is_kept = quoted or (not splits and piece.isspace())
                done += escaped.sub(r"\\\g<0>", piece) if is_kept else piece
        return done

    def _values_of(self, piece: str, quoted: bool) -> list[str]:
        """Return what ``$( … )``, ``$(( … ))`` or ``${ … }`` stands for; several texts for an array's items."""
        if piece.startswith("$((") and piece.endswith("))"):
            return [self.arithmetic(piece[3:-2])]
        if piece[:2] != "${":
            return [self.output_of(piece[1:-1] if piece[0] == "`" else piece[2:-1])]
        not_followed = unknown(f"the expansion {piece}", self.line)
        found = _BRACED.fullmatch(piece[2:-1])
        if not found:
            return [not_followed]
        prefix, name, index, operation = found.groups()
        if index in ("@", "*") or name in ("@", "*"):
            items = list(self.arguments if name in ("@", "*") else self.items(name))
            if operation:
                return [not_followed]
            if prefix and any(map(is_unknown, items)):
                return [item for item in items if is_unknown(item)][:1]
            if prefix:
                return [str(len(items))] if prefix == "#" else [str(place) for place in range(len(items))]
            joined = str(self.values.get("IFS", " "))[:1].join(items)
            return [joined] if quoted and "*" in (index, name) else items
        value = self.text(name)
        if index is not None:
            items = self.items(name)
            if len(items) == 1 and is_unknown(items[0]):
                return items
            place = self.arithmetic(index)
            if missing_in(place):
                return [place]
            value = items[int(place)] if -len(items) <= int(place) < len(items) else None
        if prefix == "#":
            return [str(len(value or "")) if not missing_in(value or "") else value or ""]
        if prefix == "!":
            name, value = value or name, self.text(value) if value else None
        return [self._operated(name, value, operation, not_followed)]

    def _operated(self, name: str, value: str | None, operation: str, not_followed: str) -> str:
        """Apply ``:-default``, ``%suffix``, ``/old/new`` and their like."""
        if not operation:
            return unset(name) if value is None else value
        found = _OPERATION.fullmatch(operation)
        if found is None:
            return not_followed
        kind, rest = found.groups()
        if kind[-1] in "-=+?":
            lacks = value is None or (kind[0] == ":" and not is_unknown(value) and not without_marks(value))
            if kind[-1] == "+":
                return "" if lacks else self.one(rest)
            if value is not None and not lacks:
                return value
            default = unset(name) if kind[-1] == "?" else self.one(rest)
            if kind[-1] == "=":
                self.set(name, default)
            return default
        if value is None or missing_in(value):
            return unset(name) if value is None else value
        if kind[0] in "#%":
            return _trimmed(value, kind, self.one(rest))
        if kind[0] == "/":
            old, _, new = rest.partition("/")
            return value.replace(self.one(old), self.one(new), -1 if kind == "//" else 1)
        if kind == ":":
            start, _, length = rest.partition(":")
            first, count = self.arithmetic(start), self.arithmetic(length) if length else str(len(value))
            if missing_in(first + count):
                return first + count
            return value[int(first) :][: int(count)]
        turned = value.upper() if kind[0] == "^" else value.lower()
        return turned if len(kind) == 2 else turned[:1] + value[1:]

    def arithmetic(self, expression: str) -> str:
        """Return the value of an expression of whole numbers as text, or a mark."""
        text = self.inside(expression).replace('"', "")
        if found := _MARK.search(text):
            return found[0]
        try:
            return str(_Arithmetic(text, self).value())
        except _MissingError as missing:
            return missing.mark
        except (ValueError, ZeroDivisionError, IndexError):
            return unknown(f"the arithmetic {text[:60]}", self.line)


def _trimmed(text: str, kind: str, pattern: str) -> str:
    """Remove a prefix (``#``) or suffix (``%``) that matches a pattern, the longest where the sign is double."""
    lengths = range(len(text), -1, -1) if len(kind) == 2 else range(len(text) + 1)
    for length in lengths:
        head, tail = text[:length], text[len(text) - length :]
        if fnmatch.fnmatchcase(head if kind[0] == "#" else tail, pattern):
            return text[length:] if kind[0] == "#" else text[: len(text) - length]
    return text


class Tokens:
    """The tokens of an expression, whose binary operators have a precedence."""

    def __init__(self, tokens: list[str], precedence: Mapping[str, int]) -> None:
        self.tokens, self.at, self.precedence = tokens, 0, precedence

    def peek(self, ahead: int = 0) -> str:
        """Return a token without taking it, empty at the end."""
        return "".join(self.tokens[self.at + ahead : self.at + ahead + 1])

    def take(self) -> str:
        """Return the next token; IndexError at the end."""
        self.at += 1
        return self.tokens[self.at - 1]

    def climb(
        self, operand: Callable[[], Value], apply: Callable[[str, Value, Value], Value], level: int = 0
    ) -> Value:
        """Return the value of what follows, as far as its operators bind more strongly than `level`."""
        left = operand()
        while (strength := self.precedence.get(self.peek(), 0)) > level:
            sign = self.take()
            left = apply(sign, left, self.climb(operand, apply, strength))
        return left


class _MissingError(Exception):
    """A variable of an arithmetic expression has no value."""

    def __init__(self, mark: str) -> None:
        super().__init__(mark)
        self.mark = mark


_ARITHMETIC_TOKEN = re.compile(
    r"\s*(0[xX][0-9a-fA-F]+|\d+|[A-Za-z_]\w*|\*\*|&&|\|\||\+\+|--|[-+*/%]=|[<>=!]=|[-+*/%<>=!?:(),])"
)
_ARITHMETIC: dict[str, tuple[int, Callable[[int, int], int]]] = {
    "||": (1, lambda a, b: int(bool(a or b))),
    "&&": (2, lambda a, b: int(bool(a and b))),
    "==": (3, lambda a, b: int(a == b)),
    "!=": (3, lambda a, b: int(a != b)),
    "<": (4, lambda a, b: int(a < b)),
    "<=": (4, lambda a, b: int(a <= b)),
    ">": (4, lambda a, b: int(a > b)),
    ">=": (4, lambda a, b: int(a >= b)),
    "+": (5, operator.add),
    "-": (5, operator.sub),
    "*": (6, operator.mul),
    # Towards zero, unlike Python's.
    "/": (6, lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)),
    "%": (6, lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1)),
}
"""Binary operators: how strongly they bind, and what they do."""


class _Arithmetic(Tokens):
    """``$(( … ))``: whole numbers, comparisons, a choice by ``?``, assignments."""

    def __init__(self, text: str, scope: Scope) -> None:
        tokens, at, text = [], 0, text.rstrip()
        while at < len(text):
            found = _ARITHMETIC_TOKEN.match(text, at)
            if found is None:
                raise ValueError(text)
            tokens.append(found[1])
            at = found.end()
        super().__init__(tokens, {sign: strength for sign, (strength, _) in _ARITHMETIC.items()})
        self.scope = scope

    def value(self) -> int:
        """Return the value of the whole expression."""
        result = self._list() if self.tokens else 0
        if self.peek() or abs(result) >= 2**63:
            raise ValueError(self.peek())
        return result

    def _list(self) -> int:
        result = self._choice()
        while self.peek() == ",":
            self.take()
            result = self._choice()
        return result

    def _choice(self) -> int:
        if _NAME.fullmatch(self.peek()) and re.fullmatch(r"[-+*/%]?=", self.peek(1)):
            name, sign = self.take(), self.take()
            value = self._choice()
            if sign != "=":
                value = _ARITHMETIC[sign[0]][1](self._number(name), value)
            self.scope.set(name, str(value))
            return value
        condition = self.climb(self._power, lambda sign, left, right: _ARITHMETIC[sign][1](left, right))
        if self.peek() != "?":
            return condition
        self.take()
        first = self._choice()
        if self.take() != ":":
            raise ValueError(":")
        second = self._choice()
        return first if condition else second

    def _power(self) -> int:
        base = self._operand()
        if self.peek() != "**":
            return base
        self.take()
        exponent = self._power()
        if not (0 <= exponent < 64 and abs(base) < 2**32):
            raise ValueError("**")
        return int(base**exponent)

    def _operand(self) -> int:
        token = self.take()
        if token in ("-", "+", "!"):
            value = self._operand()
            return {"-": -value, "+": value, "!": int(not value)}[token]
        if token == "(":
            value = self._list()
            if self.take() != ")":
                raise ValueError("(")
            return value
        before = token in ("++", "--")
        if before or (_NAME.fullmatch(token) and self.peek() in ("++", "--")):
            name, sign = (self.take(), token) if before else (token, self.take())
            value = self._number(name)
            changed = value + (1 if sign == "++" else -1)
            self.scope.set(name, str(changed))
            return changed if before else value
        return self._number(token) if _NAME.fullmatch(token) else _constant(token)

    def _number(self, name: str) -> int:
        value = self.scope.text(name)
        if found := _MARK.search(unset(name) if value is None else value):
            raise _MissingError(found[0])
        return _constant((value or "").strip() or "0")


def _constant(text: str) -> int:
    """Return a constant; one that begins with 0 would be octal, and is not read."""
    if not re.fullmatch(r"[-+]?(?:0[xX][0-9a-fA-F]+|0|[1-9]\d*)", text):
        raise ValueError(text)
    return int(text, 0)
