"""The grammar of launch scripts: a Bash text as a tree of statements.

The subset is what launch scripts are made of: commands, assignments and arrays, if, case, for and
while, functions, tests, arithmetic, here documents, pipes. Words stay as they are written; expanding
them is `costmodel.interop.shell.expand`'s. A line that cannot be parsed is passed over, as the flags of
a job are rarely in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from costmodel.base.errors import CostModelError

_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGN = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?(\+?)=")
_CLOSERS = {"then", "else", "elif", "fi", "do", "done", "esac", "}", ")", ";;"}
_DEEPEST = 60


@dataclass(frozen=True)
class Assign:
    """``name=value``, ``name+=value`` or ``name=( … )``."""

    name: str
    index: str | None
    adds: bool
    value: str
    array: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Command:
    """Words as written, assignments before them, and a here document behind them."""

    assigns: tuple[Assign, ...]
    words: tuple[str, ...]
    target: str = ""
    """File that the output goes to."""
    document: str | None = None
    literal: bool = False
    """The here document is not expanded."""
    string: str = ""
    """Here string, as it is written."""


@dataclass(frozen=True)
class If:
    """Branches of condition and body; the last may have no condition."""

    branches: tuple[tuple[Commands | None, Commands], ...]


@dataclass(frozen=True)
class Loop:
    """``for name in words``, ``for ((…))``, ``while`` and ``until``."""

    body: Commands
    name: str = ""
    words: tuple[str, ...] = ()
    arithmetic: tuple[str, str, str] | None = None
    condition: Commands | None = None
    until: bool = False


@dataclass(frozen=True)
class Case:
    """``case word in pattern) … ;; esac``."""

    word: str
    branches: tuple[tuple[tuple[str, ...], Commands], ...]


@dataclass(frozen=True)
class Function:
    """A function and its body."""

    name: str
    body: Commands


@dataclass(frozen=True)
class Test:
    """``[[ … ]]`` as words, or ``(( … ))`` as one expression."""

    words: tuple[str, ...]
    arithmetic: bool = False


@dataclass(frozen=True)
class Chain:
    """Statements joined by ``&&``, ``||`` or ``|``; each with the operator before it."""

    parts: tuple[tuple[str, Statement], ...]
    negated: bool = False


@dataclass(frozen=True)
class Commands:
    """Statements in order."""

    statements: tuple[Statement, ...] = field(default=())
    apart: bool = False
    """In a shell of their own, which ``exit`` leaves."""


Statement = Assign | Command | If | Loop | Case | Function | Test | Chain | Commands


class _Stop(Exception):
    """A line that is no statement of the subset."""


def parse(text: str) -> Commands:
    """Return the statements of a script.

    Raises
    ------
    CostModelError
        If statements are nested deeper than any launch script's.
    """
    reader = _Reader(text.replace("\r\n", "\n"))
    statements: list[Statement] = []
    while not reader.at_end():
        statements += reader.block(set()).statements
        if not reader.at_end():
            reader.skip_line()  # a closer without an opener
    return Commands(tuple(statements))


class _Reader:
    """Goes through a script character by character."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth = text, 0, 0
        self.documents: list[tuple[str, bool, bool]] = []
        self.strings: list[str] = []
        self.bodies: list[str] = []

    def at_end(self) -> bool:
        return self.at >= len(self.text)

    def peek(self, length: int = 1) -> str:
        return self.text[self.at : self.at + length]

    def skip_blank(self) -> None:
        """Pass spaces, continued lines and comments."""
        while not self.at_end():
            if self.peek() in " \t":
                self.at += 1
            elif self.peek(2) == "\\\n":
                self.at += 2
            elif self.peek() == "#" and (self.at == 0 or self.text[self.at - 1] in " \t\n;("):
                self.at = self._line_end()
            else:
                return

    def skip_lines(self) -> None:
        """Pass blanks, empty lines and separators."""
        while not self.at_end():
            self.skip_blank()
            if self.peek() == "\n":
                self.newline()
            elif self.peek() == ";" and self.peek(2) != ";;":
                self.at += 1
            else:
                return

    def newline(self) -> None:
        """Pass a line's end, and the here documents that begin behind it."""
        self.at += 1
        for word, strips, _ in self.documents:
            lines: list[str] = []
            while not self.at_end():
                end = self._line_end()
                line = self.text[self.at : end]
                self.at = min(end + 1, len(self.text))
                if (line.lstrip("\t") if strips else line).strip() == word:
                    break
                lines.append(line.lstrip("\t") if strips else line)
            self.bodies.append("\n".join(lines))
        self.documents = []

    def skip_line(self) -> None:
        self.at = self._line_end()
        if not self.at_end():
            self.newline()

    def _line_end(self) -> int:
        found = self.text.find("\n", self.at)
        return len(self.text) if found < 0 else found

    def word_ahead(self) -> str:
        """Return the plain word that comes next, without taking it."""
        found = re.compile(r"[^\s;&|()<>]+").match(self.text, self.at)
        if self.peek(2) == ";;":
            return ";;"
        return found[0] if found else self.peek()

    def block(self, closers: set[str]) -> Commands:
        """Return statements up to a closing word, which is not taken."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise CostModelError("the script is nested too deeply")
        statements: list[Statement] = []
        while True:
            self.skip_lines()
            if self.at_end() or self.word_ahead() in closers | _CLOSERS:
                break
            start = self.at
            try:
                statement = self.chain()
                if statement is not None:
                    statements.append(statement)
            except _Stop:
                self.at = max(self.at, start)
                self.skip_line()
            if self.at == start:
                self.at += 1
        self.depth -= 1
        return Commands(tuple(statements))

    def chain(self) -> Statement | None:
        """Return commands joined by ``&&``, ``||`` and ``|``."""
        parts: list[tuple[str, Statement]] = []
        operator = ""
        while True:
            negated = False
            self.skip_blank()
            while self.word_ahead() == "!":
                self.at, negated = self.at + 1, not negated
                self.skip_blank()
            statement = self.statement()
            if statement is not None:
                # It turns one command of a chain, not all of them.
                parts.append((operator, Chain((("", statement),), True) if negated else statement))
            self.skip_blank()
            if self.peek(2) in ("&&", "||", "|&"):
                operator, self.at = self.peek(2).replace("|&", "|"), self.at + 2
            elif self.peek() == "|":
                operator, self.at = "|", self.at + 1
            else:
                break
            self.skip_blank()
            while self.peek() == "\n":
                self.newline()
                self.skip_blank()
        while self.peek() == "&":
            self.at += 1
        if self.documents and self.peek() == "\n":
            first = len(self.bodies)
            literal = [literal for _, _, literal in self.documents]
            self.newline()
            parts = _with_documents(parts, self.bodies[first:], literal)
        if not parts:
            return None
        return parts[0][1] if len(parts) == 1 else Chain(tuple(parts))

    def statement(self) -> Statement | None:
        """Return one statement."""
        word = self.word_ahead()
        compound: dict[str, Callable[[], Statement]] = {
            "if": self._if,
            "for": self._for,
            "while": self._while,
            "until": self._while,
            "case": self._case,
            "function": self._function,
        }
        if word in compound:
            return compound[word]()
        if word == "[[":
            return self._test()
        if self.peek(2) == "((":
            return Test((self._arithmetic(),), arithmetic=True)
        if self.peek() == "(" or word == "{":
            apart = self.peek() == "("
            self.at += 1
            body = self.block({")", "}"})
            self._take(self.peek())
            self._redirects([])
            return replace(body, apart=apart)
        named = re.compile(r"([A-Za-z_][\w.-]*)\s*\(\)\s*").match(self.text, self.at)
        if named:
            self.at = named.end()
            return self._body_of(named[1])
        return self._command()

    def _take(self, word: str) -> None:
        """Pass a word that has to come."""
        self.skip_lines()
        if not self.text.startswith(word, self.at):
            raise _Stop
        self.at += len(word)

    def _if(self) -> If:
        self._take("if")
        branches: list[tuple[Commands | None, Commands]] = []
        condition: Commands | None = self.block({"then"})
        self._take("then")
        while True:
            branches.append((condition, self.block({"elif", "else", "fi"})))
            self.skip_lines()
            word = self.word_ahead()
            self._take(word if word in ("elif", "else", "fi") else "fi")
            if word == "elif":
                condition = self.block({"then"})
                self._take("then")
            elif word == "else":
                condition = None
            else:
                return If(tuple(branches))

    def _for(self) -> Loop:
        self._take("for")
        self.skip_blank()
        if self.peek(2) == "((":
            parts = ([*self._arithmetic().split(";"), "", ""])[:3]
            return Loop(self._do(), arithmetic=(parts[0], parts[1], parts[2]))
        name = _NAME.match(self.text, self.at)
        if name is None:
            raise _Stop
        self.at = name.end()
        self.skip_blank()
        words: list[str] = []
        if self.word_ahead() == "in":
            self.at += 2
            words = self._words()
        return Loop(self._do(), name=name[0], words=tuple(words))

    def _do(self) -> Commands:
        self._take("do")
        body = self.block({"done"})
        self._take("done")
        self._redirects([])
        return body

    def _while(self) -> Loop:
        word = self.word_ahead()
        self._take(word)
        condition = self.block({"do"})
        return Loop(self._do(), condition=condition, until=word == "until")

    def _case(self) -> Case:
        self._take("case")
        self.skip_blank()
        subject = self._word()
        self._take("in")
        branches: list[tuple[tuple[str, ...], Commands]] = []
        while True:
            self.skip_lines()
            if self.at_end() or self.word_ahead() == "esac":
                break
            close = self.text.find(")", self.at)
            if close < 0:
                raise _Stop
            patterns = self.text[self.at : close].lstrip("( \t").split("|")
            self.at = close + 1
            branches.append((tuple(part.strip() for part in patterns), self.block({";;", "esac"})))
            if self.peek(2) == ";;":
                self.at += 2
        self._take("esac")
        return Case(subject, tuple(branches))

    def _function(self) -> Function:
        self._take("function")
        self.skip_blank()
        name = self.word_ahead()
        self.at += len(name)
        self.skip_blank()
        if self.peek(2) == "()":
            self.at += 2
        return self._body_of(name)

    def _body_of(self, name: str) -> Function:
        self.skip_lines()
        opener = self.peek()
        if opener not in "{(":
            raise _Stop
        self.at += 1
        body = self.block({"}", ")"})
        self._take("}" if opener == "{" else ")")
        return Function(name, body)

    def _test(self) -> Test:
        close = re.compile(r"\s\]\]").search(self.text, self.at)
        if close is None:
            raise _Stop
        inside = _Reader(self.text[self.at + 2 : close.start()].replace("\n", " "))
        self.at = close.end()
        return Test(tuple(inside.all_words()))

    def all_words(self) -> list[str]:
        """Return every word to the end, with ``&&``, ``||``, ``(``, ``)``, ``<`` and ``>`` as words."""
        words: list[str] = []
        while True:
            self.skip_blank()
            if self.at_end():
                return words
            if self.peek(2) in ("&&", "||"):
                words.append(self.peek(2))
                self.at += 2
            elif self.peek() in "()<>":
                words.append(self.peek())
                self.at += 1
            else:
                word = self._word()
                if not word:
                    self.at += 1
                words.append(word)

    def _arithmetic(self) -> str:
        """Return what is between double parentheses."""
        start, open_ones = self.at + 2, 0
        for place in range(self.at, len(self.text)):
            open_ones += {"(": 1, ")": -1}.get(self.text[place], 0)
            if open_ones == 0:
                self.at = place + 1
                return self.text[start : place - 1]
        raise _Stop

    def _words(self) -> list[str]:
        """Return the words to the end of the command."""
        words: list[str] = []
        while True:
            self.skip_blank()
            if self.at_end() or self.peek() in "\n;&|)":
                return words
            word = self._word()
            if not word:
                return words
            words.append(word)

    def _command(self) -> Statement | None:
        """Return assignments and words up to the end of the command."""
        assigns: list[Assign] = []
        words: list[str] = []
        redirects: list[str] = []
        while True:
            self.skip_blank()
            self._redirects(redirects)
            self.skip_blank()
            if self.at_end() or self.peek() in "\n;&|)":
                break
            assigned = _ASSIGN.match(self.text, self.at)
            if assigned and (not words or words[0] in ("export", "declare", "local", "readonly", "typeset")):
                self.at = assigned.end()
                assigns.append(self._assignment(assigned))
                continue
            word = self._word()
            if not word:
                break
            words.append(word)
        target = redirects[-1] if redirects else ""
        if words and words[0] in ("export", "declare", "local", "readonly", "typeset"):
            words = [] if assigns else words
        if not words:
            if not assigns:
                return None
            return Commands(tuple(assigns)) if len(assigns) > 1 else assigns[0]
        strings, self.strings = self.strings, []
        return Command(tuple(assigns), tuple(words), target, string="".join(strings[-1:]))

    def _assignment(self, head: re.Match[str]) -> Assign:
        name, index, adds = head[1], head[2], bool(head[3])
        if self.peek() != "(":
            return Assign(name, index, adds, self._word())
        self.at += 1
        items: list[str] = []
        while True:
            self.skip_blank()
            if self.at_end():
                raise _Stop
            if self.peek() == "\n":
                self.newline()
            elif self.peek() == ")":
                self.at += 1
                return Assign(name, index, adds, "", tuple(items))
            else:
                word = self._word()
                if not word:
                    self.at += 1  # an operator inside a list, as placeholders have
                else:
                    items.append(word)

    def _redirects(self, targets: list[str]) -> None:
        """Take redirections; note files that output goes to, and here documents to come."""
        while True:
            self.skip_blank()
            found = re.compile(r"(?:\d|&)?(<<<|<<-?|>>|>&|<&|>\||<|>)").match(self.text, self.at)
            if not found or self.text.startswith(("<(", ">("), self.at):
                return
            before, self.at = self.at, found.end()
            self.skip_blank()
            if found[1] in ("<", ">") and self.peek(2) == "--":
                # The end of a placeholder such as <path to data>, not a file.
                return
            word = self._word()
            if not word and self.at == before:
                return
            if found[1].startswith("<<") and found[1] != "<<<":
                self.documents.append((_unquoted(word), found[1] == "<<-", word != _unquoted(word)))
            elif found[1] in (">", ">>", ">|") and word:
                targets.append(word)
            elif found[1] == "<<<":
                self.strings.append(word)

    def _word(self) -> str:
        """Return one word as it is written, quotes and expansions whole."""
        start = self.at
        while not self.at_end():
            char = self.peek()
            if char in " \t\n;&|()<>":
                break
            self._skip_piece()
        return self.text[start : self.at].replace("\\\n", "")

    def _skip_piece(self) -> None:
        """Pass a character, a quoted part or an expansion."""
        char = self.peek()
        if char == "\\":
            self.at += 2
        elif self.peek(2) == "$'":
            closing = re.compile(r"(?:[^\\']|\\.)*'?", re.S).match(self.text, self.at + 2)
            self.at = closing.end() if closing else len(self.text)
        elif char == "'":
            self.at = self._close_of("'", self.at + 1)
        elif char == '"':
            self.at += 1
            while not self.at_end() and self.peek() != '"':
                if self.peek() in "\\$`":
                    self._skip_piece()
                else:
                    self.at += 1
            self.at += 1
        elif char == "`":
            self.at = self._close_of("`", self.at + 1)
        elif self.peek(2) in ("$(", "${"):
            self._skip_nested("(" if self.peek(2) == "$(" else "{")
        else:
            self.at += 1

    def _close_of(self, quote: str, start: int) -> int:
        found = self.text.find(quote, start)
        return len(self.text) if found < 0 else found + 1

    def _skip_nested(self, opener: str) -> None:
        """Pass ``$( … )`` or ``${ … }``, with what is nested in it."""
        closer = {"(": ")", "{": "}"}[opener]
        self.at += 2
        depth = 1
        while not self.at_end() and depth:
            char = self.peek()
            if (char in "'\"`" or (self.peek(2) == "$'" and opener == "(")) and not (
                char == "'" and opener == "{"
            ):
                self._skip_piece()
                continue
            if char == "\\":
                self.at += 1
            elif char == opener:
                depth += 1
            elif char == closer:
                depth -= 1
            self.at += 1


def _unquoted(word: str) -> str:
    return word.strip("'\"").replace("\\", "")


def _with_documents(
    parts: list[tuple[str, Statement]], bodies: list[str], literal: list[bool]
) -> list[tuple[str, Statement]]:
    """Give the first command without one its here document."""
    done = []
    left = list(zip(bodies, literal, strict=False))
    for operator, part in parts:
        if left and isinstance(part, Command):
            body, plain = left.pop(0)
            part = replace(part, document=body, literal=plain)
        done.append((operator, part))
    return done
