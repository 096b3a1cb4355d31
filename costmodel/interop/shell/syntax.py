"""A launch script taken apart into simple commands, in order, with the keywords between them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from costmodel.base.errors import CostModelError
from costmodel.interop.shell.expand import LONGEST, end_of_piece

ENDS = {
    "if": "fi",
    "for": "done",
    "while": "done",
    "until": "done",
    "select": "done",
    "case": "esac",
    "{": "}",
    "(": ")",
}
"""Keywords that open a compound command, and what closes it."""

ASSIGNED = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?(\+?)=")
_KEYWORDS = {*ENDS, *ENDS.values(), "then", "elif", "else", "do"} - {"for", "select", "case"}
_OPERATOR = re.compile(r"&&|\|\|?&?|;;&?|;&|[;&()\n]")
_REDIRECT = re.compile(r"(?:\d*|&)(<<<|<<-?|>>?[&|]?|<[&>]?)(?!\()[ \t]*")
_FUNCTION = re.compile(
    r"(?:function[ \t]+([\w.:-]+)[ \t]*(?:\([ \t]*\))?|([A-Za-z_][\w.:-]*)[ \t]*\([ \t]*\))\s*(?=[{(])"
)
_STOPS = " \t\r\n;&|()<>"
_BLANK = re.compile(r"(?:[ \t\r]|\\\n)+")


@dataclass
class Command:
    """A command as it is written, or a keyword.

    Attributes
    ----------
    line : int
        Where it begins.
    joined : str
        The ``&&``, ``||`` or ``|`` before it.
    negated : bool
        Whether a ``!`` stands before it.
    words : list of str
        Its words; of ``case`` patterns, ``pattern`` and each of them; of a function's head, ``()`` and its name.
    arrays : dict
        Items of the words that are ``name=( … )``, by their place.
    document : str or None
        A here document or a here string.
    literal : bool
        Whether that is not expanded.
    target : str
        The file that the output goes to.
    """

    line: int
    joined: str = ""
    negated: bool = False
    words: list[str] = field(default_factory=list)
    arrays: dict[int, list[str]] = field(default_factory=dict)
    document: str | None = None
    literal: bool = False
    target: str = ""


def parse(text: str, first_line: int = 1) -> list[Command]:
    """Return the commands of a script.

    Raises
    ------
    CostModelError
        If a quote, a bracket or a keyword has no end.
    """
    reader = _Reader(text, first_line)
    try:
        reader.read()
    except CostModelError as error:
        raise CostModelError(f"line {reader.line}: {error}") from None
    return [command for command in reader.commands if command.words]


def end_of(commands: list[Command], start: int) -> int:
    """Return the place of the keyword that closes the one at `start`."""
    depth = 0
    for place in range(start, len(commands)):
        word = commands[place].words[0]
        depth += (word in ENDS) - (word in ENDS.values())
        if depth == 0:
            return place
    raise CostModelError(f"line {commands[start - 1].line}: a function without its body")


class _Reader:
    """Goes through a script once."""

    def __init__(self, text: str, first_line: int) -> None:
        self.text, self.at, self.line = text.replace("\r\n", "\n"), 0, first_line
        self.commands: list[Command] = []
        self.current: Command | None = None
        self.joined = ""
        self.open: list[str] = []
        """Compound commands that are not closed, a case without its pattern as ``in``."""
        self.waiting: list[tuple[Command, str, bool]] = []
        """Commands whose here document is still to come, its last word, whether tabs go."""

    def read(self) -> None:
        """Read to the end."""
        while self.at < len(self.text):
            start = self.at
            if blank := _BLANK.match(self.text, self.at):
                self.at = blank.end()
            elif self.text[self.at] == "#":
                self.at = self._end_of_line()
            elif self.open[-1:] == ["in"]:
                self._pattern()
            elif self._in_test():
                self._word_of_test()
            elif redirect := _REDIRECT.match(self.text, self.at):
                self._redirect(redirect)
            elif operator := _OPERATOR.match(self.text, self.at):
                self._operator(operator[0])
            else:
                self._word()
            self.line += self.text.count("\n", start, self.at)
        if self.open:
            raise CostModelError(f"nothing ends the '{self.open[-1].replace('in', 'case')}'")

    def _in_test(self) -> bool:
        """Whether what comes stands between double brackets or begins with double parentheses."""
        words = self.current.words if self.current else []
        if words[:1] == ["[["]:
            return words[-1] != "]]"
        return words in ([], ["for"]) and self.text.startswith("((", self.at)

    def _word_of_test(self) -> None:
        """Read a word or an operator between double brackets, or what stands in double parentheses."""
        command, start = self._command(), self.at
        if command.words[:1] != ["[["]:
            self.at = end_of_piece("$" + self.text[start:], 0) + start - 1
            command.words += ["((", self.text[start + 2 : self.at - 2]]
        elif command.words[-1] == "=~":
            command.words.append(self.text[start:].split(maxsplit=1)[0])
            self.at += len(command.words[-1])
        elif sign := re.compile(r"&&|\|\||[()<>;&|]|\n").match(self.text, self.at):
            self.at = sign.end()
            command.words += sign[0].split()
        else:
            self._word()

    def _end_of_line(self) -> int:
        end = self.text.find("\n", self.at)
        return end if end >= 0 else len(self.text)

    def _command(self) -> Command:
        if self.current is None:
            self.current = Command(self.line, self.joined)
            self.commands.append(self.current)
            self.joined = ""
        return self.current

    def _operator(self, sign: str) -> None:
        if sign == "(" and self.current and self.current.words:
            raise CostModelError("a ( stands where none can")
        self.at += len(sign)
        self.current = None
        if sign in "()":
            self._keyword(sign)
        elif sign.startswith(";;") or sign == ";&":
            if self.open[-1:] != ["case"]:
                raise CostModelError(f"a {sign} stands outside of a case")
            self.open[-1] = "in"
        elif sign[0] in "&|" and sign != "&":
            self.joined = sign[:2] if sign != "|&" else "|"
        elif sign == "\n":
            self._documents()

    def _keyword(self, word: str) -> None:
        """Note a keyword as a command of its own."""
        self._command().words.append(word)
        self.current = None
        if word in ENDS:
            self.open.append(word)
        elif word in ENDS.values() and (not self.open or ENDS.get(self.open.pop()) != word):
            raise CostModelError(f"a '{word}' stands where none can")

    def _word(self) -> None:
        command = self._command()
        begins = not command.words
        if begins and (found := _FUNCTION.match(self.text, self.at)):
            command.words += ["()", found[1] or found[2]]
            self.at, self.current = found.end(), None
            return
        start = self.at
        while self.at < len(self.text) and self.text[self.at] not in _STOPS:
            self.at = end_of_piece(self.text, self.at)
            if self.at - start > LONGEST:
                raise CostModelError(f"a word of more than {LONGEST:,} characters")
            if self.text[self.at : self.at + 1] == "(" and ASSIGNED.fullmatch(self.text[start : self.at]):
                command.arrays[len(command.words)] = self._items()
                break
        word = self.text[start : self.at]
        if not word:  # <( … ) and >( … )
            self.at = end_of_piece("$" + self.text[start + 1 :], 0) + start
            word = "/dev/fd/63"
        if begins and word == "!":
            command.negated = not command.negated
            return
        if begins and word in _KEYWORDS:
            self._keyword(word)
            return
        command.words.append(word)
        if begins and word in ENDS:
            self.open.append(word)
        if word == "in" and command.words[0] == "case" and len(command.words) == 3:
            self.open[-1], self.current = "in", None

    def _items(self) -> list[str]:
        """Return the words of an array; operators in it are those of placeholders such as <path>."""
        self.at += 1
        items: list[str] = []
        while self.text[self.at : self.at + 1] != ")":
            if self.at >= len(self.text):
                raise CostModelError("nothing closes an array")
            start = self.at
            if found := re.compile(r"(?:\s|\\\n)+|#[^\n]*|[;&|(<>]").match(self.text, self.at):
                self.at = found.end()
                continue
            while self.at < len(self.text) and self.text[self.at] not in _STOPS:
                self.at = end_of_piece(self.text, self.at)
            items.append(self.text[start : self.at])
        self.at += 1
        return items

    def _pattern(self) -> None:
        """Read the patterns of a case's next branch, or its end."""
        if self.text[self.at] in "\n;":
            self.at += 1
        elif re.compile(r"esac\b").match(self.text, self.at):
            self.at += 4
            self.open[-1] = "case"
            self._keyword("esac")
        else:
            start = self.at
            while self.text[self.at : self.at + 1] not in (")", ""):
                self.at = end_of_piece(self.text, self.at)
            patterns = [part.strip() for part in self.text[start : self.at].lstrip("(").split("|")]
            self._command().words += ["pattern", *patterns]
            self.at, self.current, self.open[-1] = self.at + 1, None, "case"

    def _redirect(self, found: re.Match[str]) -> None:
        """Pass a redirection; note a file that output goes to, and a document."""
        command, self.at = self._command(), found.end()
        start = self.at
        while self.at < len(self.text) and self.text[self.at] not in _STOPS:
            self.at = end_of_piece(self.text, self.at)
        word = self.text[start : self.at]
        if word.startswith("--"):  # behind the end of a placeholder such as <path to data>
            self.at = start
        elif found[1] in ("<<", "<<-"):
            self.waiting.append((command, word, found[1] == "<<-"))
        elif found[1] in (">", ">>", ">|"):
            command.target = word

    def _documents(self) -> None:
        """Take the here documents that begin behind a line."""
        for command, word, strips in self.waiting:
            last, lines = re.sub(r"['\"\\]", "", word), []
            while self.at < len(self.text):
                line = self.text[self.at : self._end_of_line()].rstrip("\r")
                self.at = min(self._end_of_line() + 1, len(self.text))
                line = line.lstrip("\t") if strips else line
                if line.strip() == last:
                    break
                lines.append(line)
            command.document, command.literal = "\n".join(lines), last != word
        self.waiting = []
