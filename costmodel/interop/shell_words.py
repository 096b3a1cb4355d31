"""Words of a shell script expanded: variables, defaults, arrays, whole numbers; nothing is run.

What a script does not hold stands in a word as a mark: a variable that is not set, or something that only
running the script tells. A reader that needs the value of such a word can name what is missing.
"""

from __future__ import annotations

import ast
import fnmatch
import operator
import re
from collections.abc import Callable, Mapping

from costmodel.base.errors import CostModelError

Values = dict[str, str | list[str]]
_MOST_WORK = 3_000_000
"""Characters of all that is expanded and set while a script is followed."""
UNSET, UNKNOWN = "\ue000\ue002"
"""How the two marks begin, which end with U+E001."""
_MARK = re.compile("([\ue000\ue002])([^\ue001]*)\ue001")
ANY_MARK = re.compile("[\ue000-\ue005]")
_SPACE_IN_MARK, _BREAK, _QUOTES = "\ue003\ue004\ue005"
"""A blank in a mark, the end of a word, and quotes, which make a word even of nothing."""
WORD_MARKS = re.compile(f"[{_BREAK}{_QUOTES}]")
_SHORT = re.compile(r"\$([A-Za-z_]\w*|[\d@*#?$!-])")
_BRACED = re.compile(r"(#?)([A-Za-z_]\w*|\d+|[@*#?$!-])(?:\[([^\]]*)\])?(.*)", re.S)
_OPERATION = re.compile(r"(:?[-=+?]|##?|%%?)(.*)", re.S)
_CHANGED = re.compile(r"\b([A-Za-z_]\w*)\s*(?:\+\+|--|[-+*/%]?=(?!=))|(?:\+\+|--)\s*([A-Za-z_]\w*)")
_IN_BRACES = re.compile(r"(?<!\$)\{[^{}\s'\"$]*(?:,|\.\.)[^{}\s'\"$]*\}")
_OF_PYTHON = re.compile(r"#|[^\x00-\x7f]|\b(?:and|or)\b|\b(?!0[xX][0-9a-fA-F]+\b)\d\w*[A-Za-z_]")
"""What Python would read in an expression of whole numbers and a shell would not, or otherwise."""
_PLAIN = re.compile(r"[^\\'\"`$]+")
_ALL_ITEMS = re.compile(r"\$(?:@|\{@\}|\{\w+\[@\]\})")
_NESTED = {"'": "", "`": "\\", '"': "\\$`", "$'": "\\", "$(": "\\$`'\"(", "${": '\\$`"'}
"""By what opens a part of a word, the characters that open another one in it."""


def unset(name: str) -> str:
    """Return the mark of a variable that is not set."""
    return f"{UNSET}{name}\ue001"


def missing_in(text: str) -> str:
    """Name what a text lacks, empty if it is whole: ``$NAME is not set``, ``it is the output of …``."""
    found = _MARK.search(text)
    if not found:
        return ""
    if found[1] == UNSET:
        return f"${found[2]} is not set"
    return f"it is {found[2].replace(_SPACE_IN_MARK, ' ')}"


def without_marks(text: str) -> str:
    """Return a text with what is missing as nothing."""
    return _MARK.sub("", text)


def is_unknown(text: str) -> bool:
    """Whether only running the script tells a text; a variable that is not set is known to be empty."""
    return UNKNOWN in text


def changed_in(arithmetic: str) -> list[str]:
    """Return the variables that an expression of whole numbers sets: ``X++``, ``X += 2``."""
    return [before or behind for before, behind in _CHANGED.findall(arithmetic)]


def end_of_piece(text: str, at: int) -> int:
    """Return where a character, an escape, a quoted part or an expansion ends that begins at `at`."""
    if text[at] == "\\":
        return at + 2
    opener = next((opener for opener in _NESTED if text.startswith(opener, at)), "")
    return end_of_nested(text, at + len(opener), opener) if opener else at + 1


def end_of_nested(text: str, start: int, opener: str = "$(") -> int:
    """Return the place behind what closes a part, passing what is nested in it."""
    at, closer, nested = start, {"$(": ")", "${": "}"}.get(opener, opener[-1]), _NESTED[opener]
    while at < len(text) and text[at] != closer:
        if text[at] not in nested or (text.startswith("$'", at) and opener != "$("):
            at += 1
        else:
            at = end_of_nested(text, at + 1) if text[at] == "(" else end_of_piece(text, at)
    if at >= len(text):
        raise CostModelError(f"nothing closes {' '.join(text[max(start - 2, 0) : start + 20].split())}")
    return at + 1


class Scope:
    """The variables of a script, of a path of its `own`."""

    def __init__(self, values: Mapping[str, str | list[str]], own: str) -> None:
        self.values: Values = {"PWD": ".", "BASH_SOURCE": own, **values}
        self.own = own
        self.line = self.work = 0
        self.unread: list[str] = []
        """Files that are sourced and were not read: what is not set, they may set."""

    def output_of(self, script: str) -> str:
        """Return what ``$( … )`` writes, or a mark."""
        return self.unknown(f"the output of '{script}'")

    def unknown(self, what: str) -> str:
        """Return the mark of what only running the script tells, at this line; `what` completes "it is …"."""
        plain = re.sub(r"[\ue000-\ue005|&;<>(){}$\"'`\\/\s]+", " ", what).strip()
        return UNKNOWN + f"{plain[:100]}, line {self.line}".replace(" ", _SPACE_IN_MARK) + "\ue001"

    def spend(self, count: int) -> None:
        """Count the characters and values that were gone through, so that following ends in seconds."""
        self.work += count
        if self.work > _MOST_WORK:
            raise CostModelError(
                f"line {self.line}: the script is too long to follow: "
                f"its words expand to more than {_MOST_WORK:,} characters"
            )

    def text(self, name: str) -> str | None:
        """Return a variable as one text, None if it is not set."""
        if name in "?$!-":
            return self.unknown(f"the shell's own {name}")
        if name in ("0", "#"):
            return self.own if name == "0" else "0"
        value = self.values.get(name)
        return (value[0] if value else None) if isinstance(value, list) else value

    def items(self, name: str) -> list[str]:
        """Return a variable as an array; a script has no arguments."""
        if name in ("@", "*"):
            return []
        value = self.values.get(name, [unset(name)] if self.unread else [])
        return [value] if isinstance(value, str) else value

    def set(self, name: str, value: str | list[str]) -> None:
        """Set a variable."""
        self.spend(2 * (len(value) if isinstance(value, str) else sum(len(item) + 1 for item in value)))
        self.values[name] = value

    def fields(self, word: str) -> list[str]:
        """Expand a word as it is written into the words that a command gets."""
        if braces := _IN_BRACES.search(word):
            return [self.unknown(f"a brace expansion {braces[0]}")]
        parts = self._expanded(word, _BREAK).split(_BREAK)
        return [part.replace(_QUOTES, "") for part in parts if part]

    def expand(self, word: str, *, quoted: bool = False) -> str:
        """Expand a word that is not split, as in an assignment; a text as in double quotes if `quoted`."""
        return self._expanded(word, " ", quoted).replace(_QUOTES, "")

    def _expanded(self, word: str, between: str, quoted: bool = False) -> str:
        """Expand each piece of a word; `between` stands where an expansion ends a word."""
        self.spend(len(word))
        done, at = [], 0
        while at < len(word):
            if plain := _PLAIN.match(word, at):
                done.append(plain[0])
                at = plain.end()
                continue
            is_plain = quoted and (word[at] in "'\"" or word.startswith("$'", at))
            short = _SHORT.match(word, at)
            start, at = at, at + 1 if is_plain else short.end() if short else end_of_piece(word, at)
            piece = word[start:at]
            if piece[0] == "\\" and piece != "\\":
                keeps = quoted and piece[1] not in '$`"\\\n'
                done.append("" if piece[1] == "\n" else piece if keeps else piece[1])
            elif piece[0] in "'\"" and not quoted:
                inner = piece[1:-1]
                done.append(inner if piece[0] == "'" else self._expanded(inner, between, quoted=True))
                done.append("" if _ALL_ITEMS.fullmatch(inner) else _QUOTES)
            elif piece[0] == "`" or len(piece) > 1:
                for value in self._values_of(piece, quoted):
                    self.spend(len(value) + 1)
                    splits = between == _BREAK and not quoted
                    done += [re.sub(r"\s+", _BREAK, value) if splits else value or _QUOTES, between]
                done[-1:] = []
            elif piece != "$" or word[at : at + 1] != '"' or quoted:
                done.append(piece)
        return "".join(done)

    def _values_of(self, piece: str, quoted: bool) -> list[str]:
        """Return what an expansion stands for; several texts for an array's items."""
        if piece.startswith("$((") and piece.endswith("))"):
            return [self.arithmetic(piece[3:-2])]
        if piece[:2] == "$(" or piece[0] == "`":
            return [self.output_of(piece[1:-1] if piece[0] == "`" else piece[2:-1])]
        not_followed = self.unknown(f"the expansion {piece}")
        found = _BRACED.fullmatch(piece[2:-1] if piece[1] == "{" else piece[1:])
        if piece[1] == "'" or not found:
            return [not_followed]
        length, name, index, operation = found.groups()
        if name in ("@", "*") or index in ("@", "*"):
            items = self.items(name)
            self.spend(len(items))
            if operation:
                return [not_followed]
            if length:
                return [item for item in items if is_unknown(item)][:1] or [str(len(items))]
            joined = str(self.values.get("IFS", " "))[:1].join(items)
            return [joined] if quoted and "*" in (index, name) else items
        value = self._item(name, index)
        if length:
            return [value if value and missing_in(value) else str(len(value or ""))]
        if not operation:
            return [unset(name) if value is None else value]
        parts = _OPERATION.fullmatch(operation)
        return [self._operated(name, value, parts[1], parts[2]) if parts else not_followed]

    def _item(self, name: str, index: str | None) -> str | None:
        """Return a variable, or an item of an array; None if it is not set."""
        if index is None:
            return self.text(name)
        place, items = self.arithmetic(index), self.items(name)
        if items and is_unknown(items[0]):
            return items[0]
        if missing_in(place):
            return place
        return items[int(place)] if -len(items) <= int(place) < len(items) else None

    def _operated(self, name: str, value: str | None, kind: str, rest: str) -> str:
        """Apply ``:-default``, ``%suffix`` and their like."""
        if kind[-1] in "-=+?":
            lacks = value is None or (kind[0] == ":" and not is_unknown(value) and not without_marks(value))
            if kind[-1] == "+":
                return "" if lacks else self.expand(rest)
            if value is not None and not lacks:
                return value
            default = unset(name) if kind[-1] == "?" else self.expand(rest)
            if kind[-1] == "=":
                self.set(name, default)
            return default
        if value is None or missing_in(value):
            return unset(name) if value is None else value
        pattern = self.expand(rest)
        self.spend(len(value) * len(pattern))
        cuts = range(len(value) + 1) if kind in ("#", "%%") else range(len(value), -1, -1)
        for head, tail in ((value[:cut], value[cut:]) for cut in cuts):
            if fnmatch.fnmatchcase(head if kind[0] == "#" else tail, pattern):
                return tail if kind[0] == "#" else head
        return value

    def arithmetic(self, expression: str) -> str:
        """Return the value of an expression of whole numbers as text, or a mark.

        What it assigns (``X++``, ``X += 2``) is not followed, so its variables are no longer known.
        """
        text = self.expand(expression, quoted=True).replace('"', "")
        if found := _MARK.search(text):
            return found[0]
        not_followed = self.unknown(f"the arithmetic {text[:60]}")
        if names := changed_in(text):
            for name in names:
                self.set(name, not_followed)
            return not_followed
        if len(text) > 1000 or _OF_PYTHON.search(text):
            return not_followed
        for name in re.findall(r"\b[A-Za-z_]\w*", text):
            held = self.text(name)
            if held is None or missing_in(held):
                return unset(name) if held is None else held
        try:
            return str(self._number(ast.parse(" ".join(text.split()) or "0", mode="eval").body))
        except (ValueError, SyntaxError, ZeroDivisionError, KeyError, RecursionError, MemoryError):
            return not_followed

    def _number(self, node: ast.AST) -> int:
        """Return the value of a part of Python's syntax that means in a shell what it means in Python."""
        match node:
            case ast.Constant(value=int(value)) if not isinstance(value, bool):
                result = value
            case ast.Name(id=name):
                result = int((self.text(name) or "").strip() or "0", 0)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                result = -self._number(operand)
            case ast.BinOp(left=left, op=sign, right=right):
                result = _BINARY[type(sign)](self._number(left), self._number(right))
            case ast.Compare(left=left, ops=[sign], comparators=[right]):
                result = int(_BINARY[type(sign)](self._number(left), self._number(right)))
            case _:
                raise ValueError(node)
        if abs(result) >= 2**63:
            raise ValueError("beyond the shell's whole numbers")
        return result


def _quotient(left: int, right: int) -> int:
    """Divide towards zero, unlike Python."""
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


_BINARY: Mapping[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _quotient,
    ast.Mod: lambda left, right: left - right * _quotient(left, right),
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
