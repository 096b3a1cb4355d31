"""Expansion of words: variables, defaults, arrays, arithmetic, quotes; nothing is run.

What a script cannot know stands in a word as a mark: a variable that is not set, or the output of a
program. A test sees it as empty; a flag whose value is one can name the variable.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass, field
from typing import Protocol

from costmodel.base.errors import CostModelError
from costmodel.interop.shell.arithmetic import evaluate, integer_of

_MARK = re.compile("([\ue000\ue002])([^\ue001]*)\ue001")
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|(\d|[@*#?$!-]))")
_INSIDE = re.compile(r"([#!]?)([A-Za-z_]\w*|\d+|[@*#?$!-])(?:\[([^\]]*)\])?(.*)$", re.S)
_LONGEST = 2_000_000
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|[0-7]{1,3}|.)", re.S)
_ESCAPES = {
    **dict(zip("abefnrtv", "\a\b\x1b\f\n\r\t\v", strict=True)),
    **{plain: plain for plain in "\\'\"?"},
    "E": "\x1b",
}


def unset(name: str) -> str:
    """Return the mark of a variable that is not set."""
    return f"\ue000{name}\ue001"


def unknown(what: str) -> str:
    """Return the mark of a program's output."""
    plain = re.sub(r"[\ue000-\ue002|&;<>(){}$'\"`\\]", "", what)
    return f"\ue002{'_'.join(plain.split())[:60]}\ue001"


def missing_in(text: str) -> str:
    """Say what a text lacks, empty if it is whole: ``$NAME is not set`` or what would have to run."""
    found = _MARK.search(text)
    if not found:
        return ""
    return f"${found[2]} is not set" if found[1] == "\ue000" else f"it is the output of '{found[2]}'"


def without_marks(text: str) -> str:
    """Return a text with what is missing as nothing."""
    return _MARK.sub("", text)


class Substitutes(Protocol):
    """What can say the output of a command."""

    def output_of(self, script: str) -> str:
        """Return what a script writes, or a mark."""


@dataclass
class Scope:
    """Variables of a script, its positional arguments and its functions."""

    values: dict[str, str | list[str]] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)

    def text(self, name: str) -> str | None:
        """Return a variable as one text, None if it is not set."""
        value = self.values.get(name)
        if isinstance(value, list):
            return value[0] if value else None
        return value

    def items(self, name: str) -> list[str] | None:
        """Return a variable as an array."""
        value = self.values.get(name)
        return [value] if isinstance(value, str) else value

    def set(self, name: str, value: str | list[str]) -> None:
        """Set a variable, of bounded length."""
        if sum(map(len, value)) > _LONGEST:
            raise CostModelError(f"{name}: grows beyond {_LONGEST:,} characters")
        self.values[name] = value

    def number(self, name: str) -> int | None:
        """Return a variable as arithmetic sees it."""
        value = self.text(name)
        if value is None:
            return None
        plain = value.strip()
        sign = -1 if plain[:1] == "-" else 1
        digits = plain[1:] if plain[:1] in ("-", "+") else plain
        number = integer_of(digits or "0")
        return None if number is None else sign * number


def arithmetic(expression: str, scope: Scope, outputs: Substitutes) -> int | None:
    """Evaluate an arithmetic expression; None where it depends on something missing."""
    text = "".join(fields(expression, scope, outputs, split=False))
    if missing_in(text):
        return None

    def store(name: str, value: int | None) -> None:
        scope.set(name, unknown(expression) if value is None else str(value))

    return evaluate(text.replace('"', ""), scope.number, store)


def fields(word: str, scope: Scope, outputs: Substitutes, *, split: bool = True) -> list[str]:
    """Expand one word into the words that a command gets.

    Parameters
    ----------
    word : str
        As it is written.
    scope : Scope
        The variables.
    outputs : Substitutes
        Gives the output of ``$( … )``.
    split : bool
        Whether unquoted expansions are split at spaces; not in an assignment.
    """
    builder = _Fields(scope, outputs, split)
    builder.read(word)
    return builder.done()


class _Fields:
    """The fields of one word while it is read."""

    def __init__(self, scope: Scope, outputs: Substitutes, split: bool) -> None:
        self.scope, self.outputs, self.split = scope, outputs, split
        self.finished: list[str] = []
        self.current: str | None = None

    def done(self) -> list[str]:
        if self.current is not None:
            self.finished.append(self.current)
        return self.finished

    def add(self, text: str) -> None:
        self.current = (self.current or "") + text

    def add_split(self, text: str) -> None:
        """Add an unquoted expansion: its spaces separate fields."""
        if not self.split:
            self.add(text)
            return
        if not text:
            return
        if text[:1].isspace() and self.current is not None:
            self.finished.append(self.current)
            self.current = None
        parts = text.split()
        for number, part in enumerate(parts):
            if number:
                self.finished.append(self.current or "")
                self.current = None
            self.add(part)
        if parts and text[-1:].isspace():
            self.finished.append(self.current or "")
            self.current = None

    def add_items(self, items: list[str], quoted: bool) -> None:
        """Add ``"${a[@]}"``: each item a field of its own."""
        for number, item in enumerate(items):
            if number and self.split:
                self.finished.append(self.current or "")
                self.current = None
            elif number:
                self.add(" ")
            self.add(item) if quoted else self.add_split(item)

    def read(self, word: str, quoted: bool = False) -> None:
        at = 0
        while at < len(word):
            char = word[at]
            if char == "\\" and at + 1 < len(word):
                following = word[at + 1]
                if quoted and following not in '$`"\\\n':
                    self.add(char)
                if following != "\n":
                    self.add(following)
                at += 2
            elif char == "'" and not quoted:
                end = word.find("'", at + 1)
                end = len(word) if end < 0 else end
                self.add(word[at + 1 : end])
                at = end + 1
            elif char == '"' and not quoted:
                end = _end_of_quote(word, at + 1)
                self.add("")
                self.read(word[at + 1 : end], quoted=True)
                at = end + 1
            elif char == "`":
                end = word.find("`", at + 1)
                end = len(word) if end < 0 else end
                self._output(word[at + 1 : end], quoted)
                at = end + 1
            elif char == "$":
                at = self._dollar(word, at, quoted)
            else:
                self.add(char)
                at += 1

    def _dollar(self, word: str, at: int, quoted: bool) -> int:
        """Read an expansion and return where it ends."""
        if word.startswith("$'", at) and not quoted:
            end = end_of_ansi(word, at + 2)
            self.add(_escaped(word[at + 2 : end]))
            return end + 1
        if word.startswith('$"', at) and not quoted:
            return at + 1  # translated, where a catalogue has it: the text itself
        if word.startswith("$((", at) and (end := _end_of_nest(word, at + 1)) and word[end - 2 : end] == "))":
            value = arithmetic(word[at + 3 : end - 2], self.scope, self.outputs)
            self.add(unknown(word[at:end]) if value is None else str(value))
            return end
        if word.startswith("$(", at):
            end = _end_of_nest(word, at + 1)
            self._output(word[at + 2 : end - 1], quoted)
            return end
        if word.startswith("${", at):
            end = _end_of_nest(word, at + 1)
            self._braced(word[at + 2 : end - 1], quoted)
            return end
        found = _VARIABLE.match(word, at)
        if not found:
            self.add("$")
            return at + 1
        self._value(found[1] or found[2], quoted)
        return found.end()

    def _output(self, script: str, quoted: bool) -> None:
        text = self.outputs.output_of(script)
        self.add(text) if quoted else self.add_split(text)

    def _value(self, name: str, quoted: bool) -> None:
        if name in ("@", "*"):
            self._listed(self.scope.arguments, quoted, joined=name == "*")
            return
        value = self._text_of(name)
        text = unset(name) if value is None else value
        self.add(text) if quoted else self.add_split(text)

    def _listed(self, items: list[str], quoted: bool, *, joined: bool) -> None:
        """Add items, in quotes as one word where they are joined."""
        if quoted and joined:
            self.add((self.scope.text("IFS") or " ")[:1].join(items))
        else:
            self.add_items(items, quoted)

    def _text_of(self, name: str) -> str | None:
        if name.isdigit():
            place = int(name)
            if place == 0:
                return "script"
            if place <= len(self.scope.arguments):
                return self.scope.arguments[place - 1]
            return self.scope.text(name)
        if name == "#":
            return str(len(self.scope.arguments))
        return unknown(f"${name}") if name in "?$!-" else self.scope.text(name)

    def _braced(self, inside: str, quoted: bool) -> None:
        """Read what is between braces: a name, an index, an operation."""
        found = _INSIDE.match(inside)
        if not found:
            self.add(unknown("${" + inside + "}"))
            return
        prefix, name, index, operation = found.groups()
        if prefix and name in "@*#?$!-" and not operation and index is None:
            prefix, operation = "", ""
        items = self.scope.items(name)
        if index in ("@", "*") or (name in ("@", "*")):
            listed = self.scope.arguments if name in ("@", "*") else (items or [])
            if prefix == "#":
                self.add(str(len(listed)))
            elif prefix == "!":
                self.add_items([str(number) for number in range(len(listed))], quoted)
            else:
                self._listed(listed, quoted, joined="*" in (index, name))
            return
        if index is not None:
            place = arithmetic(index, self.scope, self.outputs)
            known = place is not None and items is not None and -len(items) <= place < len(items)
            value = items[place] if known and items is not None and place is not None else None
        else:
            value = self._text_of(name)
        if prefix == "#":
            self.add(str(len(without_marks(value or ""))))
            return
        if prefix == "!":
            value = self._text_of(value) if value else None
        text = self._operated(name, value, operation)
        self.add(text) if quoted else self.add_split(text)

    def _operated(self, name: str, value: str | None, operation: str) -> str:
        """Apply ``:-default``, ``%suffix``, ``/from/to`` and their like."""
        empty = value is None or (without_marks(value) == "" and not missing_in(value).startswith("it"))
        found = re.match(r"(:?)([-=+?])(.*)$", operation, re.S)
        if found:
            lacking = empty if found[1] else value is None
            if found[2] == "+":
                return "" if lacking else self._plain(found[3])
            if not lacking:
                return value or ""
            if found[2] == "?":
                return unset(name)
            default = self._plain(found[3])
            if found[2] == "=":
                self.scope.set(name, default)
            return default
        text = unset(name) if value is None else value
        if not operation or missing_in(text):
            return text
        if operation[0] in "#%":
            greedy = operation[:2] in ("##", "%%")
            return _trimmed(text, operation[0], self._plain(operation[1 + greedy :]), greedy)
        if operation[0] == "/":
            every = operation.startswith("//")
            old, _, new = operation[1 + every :].partition("/")
            return text.replace(self._plain(old), self._plain(new), -1 if every else 1)
        if operation in ("^^", ",,", "^", ","):
            turned = text.upper() if operation[0] == "^" else text.lower()
            return turned if len(operation) == 2 else turned[:1] + text[1:]
        slice_of = re.match(r":\s*(-?\d+)(?::(-?\d+))?$", operation)
        if slice_of:
            start = int(slice_of[1])
            return text[start:] if slice_of[2] is None else text[start:][: int(slice_of[2])]
        return unknown("${" + name + operation + "}")

    def _plain(self, word: str) -> str:
        return "".join(fields(word, self.scope, self.outputs, split=False))


def _trimmed(text: str, side: str, pattern: str, greedy: bool) -> str:
    """Remove a prefix (``#``) or suffix (``%``) that matches a pattern."""
    lengths = range(len(text), -1, -1) if greedy else range(len(text) + 1)
    for length in lengths:
        part = text[:length] if side == "#" else text[len(text) - length :]
        if fnmatch.fnmatchcase(part, pattern):
            return text[length:] if side == "#" else text[: len(text) - length]
    return text


def end_of_ansi(word: str, start: int) -> int:
    """Return where ``$'…'`` closes, whose content starts at `start`: a quote behind a backslash does not."""
    found = re.compile(r"(?:[^\\']|\\.)*", re.S).match(word, start)
    return found.end() if found else len(word)


def _escaped(text: str) -> str:
    """Return what ``$'…'`` stands for (bash(1), QUOTING)."""

    def of(found: re.Match[str]) -> str:
        escape = found[1]
        if escape[0] in "xuU":
            code = int(escape[1:], 16)
            return chr(code) if 0 < code < 0xD800 else ""
        if escape[0] in "01234567":
            return chr(int(escape, 8) % 256)
        return _ESCAPES.get(escape, "\\" + escape)

    return _ESCAPE.sub(of, text)


def _end_of_quote(word: str, start: int) -> int:
    """Return where a double quote closes."""
    at = start
    while at < len(word) and word[at] != '"':
        if word[at] == "\\":
            at += 2
        elif word.startswith(("$(", "${"), at):
            at = _end_of_nest(word, at + 1)
        else:
            at += 1
    return min(at, len(word))


def _end_of_nest(word: str, start: int) -> int:
    """Return the place behind the bracket that closes the one at `start`."""
    opener = word[start]
    closer = {"(": ")", "{": "}"}[opener]
    depth, at = 0, start
    while at < len(word):
        char = word[at]
        if char == "\\":
            at += 2
            continue
        if word.startswith("$'", at) and opener == "(":
            at = end_of_ansi(word, at + 2) + 1
            continue
        if char == '"':
            at = _end_of_quote(word, at + 1) + 1
            continue
        if char == "'" and opener == "(":
            end = word.find("'", at + 1)
            at = len(word) if end < 0 else end + 1
            continue
        depth += {opener: 1, closer: -1}.get(char, 0)
        at += 1
        if depth == 0:
            return at
    return len(word)


def holds(words: list[str]) -> bool | None:
    """Say whether a test of expanded words is true; None where it depends on something missing."""
    return _Condition(words).value()


class _Condition:
    """``[ … ]`` and ``[[ … ]]`` over words."""

    def __init__(self, words: list[str]) -> None:
        self.words, self.at = words, 0

    def value(self) -> bool | None:
        return self._either() if self.words else False

    def _peek(self) -> str:
        return self.words[self.at] if self.at < len(self.words) else ""

    def _either(self) -> bool | None:
        result = self._both()
        while self._peek() in ("||", "-o"):
            self.at += 1
            other = self._both()
            result = True if result or other else None if None in (result, other) else False
        return result

    def _both(self) -> bool | None:
        result = self._one()
        while self._peek() in ("&&", "-a"):
            self.at += 1
            other = self._one()
            result = False if False in (result, other) else None if None in (result, other) else True
        return result

    def _one(self) -> bool | None:
        word = self._peek()
        if word == "!":
            self.at += 1
            value = self._one()
            return None if value is None else not value
        if word == "(":
            self.at += 1
            value = self._either()
            self.at += 1
            return value
        following = self.words[self.at + 1 : self.at + 3]
        if len(following) == 2 and following[0] in _COMPARISONS:
            self.at += 3
            return _compare(word, following[0], following[1])
        if re.fullmatch(r"-[a-zA-Z]", word):
            self.at += 1
            if self._peek() in ("", "&&", "||", "]", ")"):
                return word == "-z"  # an unset variable leaves nothing behind
            operand = self._peek()
            self.at += 1
            return _property(word, operand)
        self.at += 1
        if self._peek() in _COMPARISONS:
            # ``[ $UNSET = x ]``: nothing stands before the operator.
            operator = self._peek()
            self.at += 2
            return _compare(word, operator, self.words[self.at - 1] if self.at <= len(self.words) else "")
        if missing_in(word).startswith("it"):
            return None
        return bool(without_marks(word))


_COMPARISONS = ("=", "==", "!=", "=~", "-eq", "-ne", "-gt", "-ge", "-lt", "-le", "<", ">")


def _property(option: str, operand: str) -> bool | None:
    """Answer ``-z``, ``-n``, ``-v``; files are unknown."""
    missing = missing_in(operand)
    if option in ("-z", "-n"):
        if missing.startswith("it"):
            return None
        empty = without_marks(operand) == ""
        return empty if option == "-z" else not empty
    return None


def _compare(left: str, operator: str, right: str) -> bool | None:
    if missing_in(left).startswith("it") or missing_in(right).startswith("it"):
        return None
    left, right = without_marks(left), without_marks(right)
    if operator in ("=", "=="):
        return fnmatch.fnmatchcase(left, right)
    if operator == "!=":
        return not fnmatch.fnmatchcase(left, right)
    if operator == "=~":
        try:
            return bool(re.search(right, left)) if len(right) < 200 and len(left) < 2000 else None
        except re.error:
            return None
    if operator in ("<", ">"):
        return left < right if operator == "<" else left > right
    try:
        first, second = int(left or 0), int(right or 0)
    except ValueError:
        return None
    return {
        "-eq": first == second,
        "-ne": first != second,
        "-gt": first > second,
        "-ge": first >= second,
        "-lt": first < second,
        "-le": first <= second,
    }[operator]
