"""Following a launch script: what it sets and the commands that it would start, without starting any.

A small part of the shell is read: assignments, arrays, conditions, loops of known turns, functions, here documents,
``source`` below the script's own folder. Where only running the script tells how it goes on, nothing is guessed: what
depends on it is marked as not known, by the construct's name and line (see `shell_words`).
"""

from __future__ import annotations

import fnmatch
import operator
import os
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Literal

from costmodel.base.errors import CostModelError
from costmodel.base.files import is_there
from costmodel.interop.shell_words import (
    LONGEST,
    Scope,
    Values,
    changed_in,
    end_of_nested,
    end_of_piece,
    is_unknown,
    missing_in,
    unknown,
    whole_number,
    without_marks,
)

_MARKS = re.compile("[\ue000-\ue005]")
_WORD_MARKS = re.compile("[\ue004\ue005]")
"""Of words that are expanded already, as those of `eval`: what is missing stays marked."""
_MOST_COMPARED = 10_000_000
"""Characters of a text times those of its pattern."""
_LONGEST, _STEP, _MOST_TURNS, _DEEPEST = 1_000_000, 150, 500, 24
_SHELLS = ("bash", "sh", "zsh")
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_PRINTERS = ("echo", "printf", "cat", "dirname", "basename", "realpath", "readlink", "pwd", "expr")
_NOT_FOLLOWED = ("read", "mapfile", "readarray", "let", "getopts")
"""Commands that set variables as only running the script tells."""
_SETS_NO_FLAGS = re.compile(
    r"(?:^|/)(?:activate|conda\.sh|set_?env\.sh|setvars\.sh|modules?\.sh|\.?bash_?(?:rc|profile)|\.?profile|bash|\.env)$"
)
"""Files that set up a shell or a Python, and no job."""

Status = bool | Literal["program"] | None
"""Whether a command succeeds: a program is taken to, None where only running the script tells."""
_IS_PROGRAM: Literal["program"] = "program"
_TRUE: Status = True


@dataclass
class Launch:
    """A command that a script would start; `certain` where no condition in doubt stands around it."""

    words: list[str]
    environment: dict[str, str]
    certain: bool


@dataclass
class Followed:
    """What following a script has found.

    Every command in order, the variables as the script leaves them (arrays as lists), files that here documents
    write, values of ``#SBATCH`` lines by option, what was not followed, and the files whose variables are not known:
    those that are sourced and were not read, but for such as a virtual environment's, which set no flags.
    """

    launches: list[Launch]
    values: Values
    files: dict[str, str]
    slurm: dict[str, str]
    notes: list[str]
    unread: list[str]


def follow(
    text: str,
    *,
    folder: Path | None = None,
    name: str = "script",
    environment: Mapping[str, str] | None = None,
    allowed: Sequence[str] = (),
) -> Followed:
    """Follow a script of some `name`, with the variables of `environment` set when it starts.

    What it sources is read from `folder`, where it lies, and below, and from `allowed` folders.
    """
    if len(text) > _LONGEST:
        raise CostModelError(f"expected a script of at most {_LONGEST:,} characters, got {len(text):,}")
    slurm: dict[str, str] = {}
    for option, value in _slurm_options(text):
        # The job's own come before those of jobs that it submits.
        slurm.setdefault(option, value)
    places = [] if folder is None else [folder, *map(Path, allowed)]
    walker = _Walker({**_slurm_variables(slurm), **(environment or {})}, places, f"./{name}")
    try:
        with suppress(_EndError):
            walker.run(_parsed(_MARKS.sub("", text)))
    except RecursionError:
        raise CostModelError("the script is nested too deeply") from None
    scope, notes = walker.scope, list(dict.fromkeys(walker.notes))
    return Followed(walker.launches, scope.values, walker.files, slurm | walker.slurm, notes, scope.unread)


# Options of Slurm

_SLURM = re.compile(r"^#SBATCH[ \t]+([^\n#]*)", re.M)
_GLUED = re.compile(r"-([A-Za-z])(\d\S*)")
_SHORT = dict(N="nodes", n="ntasks", G="gpus", J="job-name", t="time", p="partition", A="account")
"""Options of sbatch by their letter; case matters."""


def _slurm_options(text: str) -> list[tuple[str, str]]:
    """Return the options of a Slurm script by their long names, in order; a line may have several."""
    return [item for line in _SLURM.finditer(text) for item in options_of(line[1].split()).items()]


def options_of(words: list[str]) -> dict[str, str]:
    """Return the options of ``srun`` by their long names.

    >>> options_of(["-N", "4", "--gpus-per-node=8"]), options_of(["-N4", "--exclusive"])
    ({'nodes': '4', 'gpus-per-node': '8'}, {'nodes': '4', 'exclusive': ''})
    """
    found = {}
    for place, word in enumerate(words):
        if not word.startswith("-"):
            continue
        following = "".join(words[place + 1 : place + 2])
        if glued := _GLUED.fullmatch(word):
            option, value = glued.groups()
        else:
            option, equals, value = word.lstrip("-").partition("=")
            value = value if equals or following.startswith("-") else following
        found[_SHORT.get(option, option.lower())] = value.strip("\"'")
    return found


def _slurm_variables(slurm: Mapping[str, str]) -> dict[str, str | list[str]]:
    """Return the variables that Slurm sets from the options of a job."""
    nodes, gpus = slurm.get("nodes") or "", gpus_per_node(slurm)
    found = {
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NTASKS_PER_NODE": slurm.get("ntasks-per-node", ""),
        "SLURM_GPUS_ON_NODE": gpus,
        "SLURM_GPUS_PER_NODE": gpus,
    }
    return {name: value for name, value in found.items() if value.isdigit()}


def gpus_per_node(slurm: Mapping[str, str]) -> str:
    """Return what a Slurm job asks for on each node, empty if it does not say."""
    # sbatch(1): --gpus-per-node=[type:]number, --gres=gpu[:type]:number among others.
    for option, pattern in (
        ("gpus-per-node", r"(?:[\w.-]+:)*(\d+)"),
        ("gres", r"(?:.*,)?gpu(?::[\w.-]+)?:(\d+)"),
    ):
        found = re.match(pattern, slurm.get(option, ""))
        if found:
            return found[1]
    return ""


# A script as a list of commands

_CLOSE = ("fi", "done", "esac", "}", "then", "elif", "else", "do")
_GROUPS = {"{": "}", "(": ")"}
_JOINS = ("&&", "||", "|", "|&")
_SEPARATORS = ("\n", ";", "&", ";;", ";&", ";;&", *_JOINS)
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?(\+?)=")
_FUNCTION = re.compile(
    r"(?:function[ \t]+([\w.:-]+)(?:[ \t]*\([ \t]*\))?|([A-Za-z_][\w.:-]*)[ \t]*\([ \t]*\))\s*(?=[{(])"
)
_BLANK = re.compile(r"(?:[ \t\r]|\\\n)+|#[^\n]*")
_REDIRECT = re.compile(r"(?:\d*|&)(<<<|<<[-']?|>>?[&|]?|<[&>]?)(?!\()")
_SIGN = re.compile(rf"{_REDIRECT.pattern}|&&|\|\|?&?|;;&?|;&|[;&()\n]")
_STOPS = " \t\r\n;&|()<>"


@dataclass
class _Command:
    """A command as it is written; `joined` is the ``&&``, ``||`` or ``|`` before it.

    An array ``name=( … )`` is one word, a function's head ``()`` and its name. `blocks` are the commands inside of a compound
    one: of an ``if`` each condition and what follows it, of a loop its condition and its body. `document` is a here
    document and the sign before it, `target` the file that the output goes to.
    """

    line: int
    joined: str
    negated: bool
    words: list[str]
    blocks: list[list[_Command]] = field(default_factory=list)
    document: tuple[str, str] = ("", "")
    target: str = ""


def _tokens(text: str, line: int = 1) -> Iterator[tuple[int, str]]:
    """Yield the words of a script as they are written and the signs between them, each with its line.

    A function's head is ``() name``. A here document follows its line, behind ``<<``, or ``<<'`` if it is not
    expanded.
    """
    at, sign = 0, ""
    waiting = list[tuple[str, str]]()
    while at < len(text):
        start = at
        if blank := _BLANK.match(text, at):
            at = blank.end()
        elif head := _FUNCTION.match(text, at):
            at = head.end()
            yield line, f"() {head[1] or head[2]}"
        elif found := _SIGN.match(text, at):
            at = _end_of_word(text, at, line) if text.startswith("((", at) else found.end()
            sign = found[0].lstrip("0123456789")
            if sign not in ("<<", "<<-", "\n"):
                yield line, text[start:at]
        else:
            at = _end_of_word(text, at, line)
            word = f"${text[start + 1 : at]}" if text[start] in "<>" else text[start:at]  # <( … ) and >( … )
            if sign in ("<<", "<<-"):
                waiting.append((sign, word))
            else:
                yield line, word
            sign = ""
        if sign == "\n" and start < at:
            for kind, word in waiting:
                last, document = re.sub(r"['\"\\]", "", word), list[str]()
                while at < len(text):
                    end = text.find("\n", at) + 1 or len(text)
                    written, at = text[at:end].lstrip("\t" if kind == "<<-" else ""), end
                    if written.strip() == last:
                        break
                    document.append(written)
                yield line, "<<" if last == word else "<<'"
                yield line, "".join(document).rstrip("\n")
            waiting, sign = [], ""
            yield line, "\n"
        line += text.count("\n", start, at)


def _end_of_word(text: str, start: int, line: int) -> int:
    """Return where a word ends, be it an array, ``((…))`` or ``<(…)``."""
    try:
        at = end_of_nested(text, start + 2) if text[start] in "<>" else start
        at = end_of_nested(text, start + 1) if text[start] == "(" else at
        while at < len(text) and text[at] not in _STOPS:
            at = end_of_piece(text, at)
            if text.startswith("(", at) and _ASSIGNED.fullmatch(text, start, at):
                at = end_of_nested(text, at + 1)
            if at - start > LONGEST:
                raise CostModelError(f"a word of more than {LONGEST:,} characters")
    except CostModelError as error:
        raise CostModelError(f"line {line}: {error}") from None
    return at


class _Parser:
    """Reads the tokens of a script as commands with the commands inside of them."""

    def __init__(self, text: str, first_line: int = 1) -> None:
        self.tokens = deque(_tokens(text.replace("\r\n", "\n"), first_line))
        self.end = ""
        """What closed the last block."""

    def next_is(self, *tokens: str) -> bool:
        """Whether one of some tokens comes next."""
        return bool(self.tokens) and self.tokens[0][1] in tokens

    def block(self, opener: str, line: int, *ends: str) -> list[_Command]:
        """Return the commands up to one of some words that close a block; a script itself has none."""
        commands, joined, negated = list[_Command](), "", False
        while self.tokens:
            at, token = self.tokens.popleft()
            if token in ends:
                self.end = token
                return commands
            if token == ")" and opener == "case":
                del commands[-1:]  # the pattern
            elif token in _SEPARATORS:
                joined, negated = token.replace("|&", "|") if token in _JOINS else "", False
            elif token == "!":
                negated = not negated
            elif token in _CLOSE or token == ")":
                raise CostModelError(f"line {at}: a '{token}' stands where none can")
            elif _REDIRECT.fullmatch(token):
                self.tokens.appendleft((at, token))
                commands.append(_Command(at, joined, negated, []))
                self.words(commands[-1])
                commands[-1].words = commands[-1].words or [":"]
            else:
                commands.append(self.command(_Command(at, joined, negated, [token])))
        if ends:
            raise CostModelError(f"line {line}: nothing ends the '{opener}'")
        return commands

    def command(self, found: _Command) -> _Command:
        """Return a command with its words and blocks, of which its first word is read."""
        first, line = found.words[0], found.line
        if first == "if":
            self.end = "elif"
            while self.end == "elif":
                found.blocks.append(self.block(first, line, "then"))
                found.blocks.append(self.block(first, line, "elif", "else", "fi"))
            if self.end == "else":
                found.blocks.append(self.block(first, line, "fi"))
        elif first in ("while", "until"):
            found.blocks += [self.block(first, line, "do"), self.block(first, line, "done")]
        elif first in ("for", "select"):
            while self.tokens and not self.next_is(*_SEPARATORS, "do"):
                found.words.append(self.tokens.popleft()[1])
            self.block(first, line, "do")
            found.blocks.append(self.block(first, line, "done"))
        elif first == "case":
            while self.tokens and found.words[-1] != "in":
                found.words.append(self.tokens.popleft()[1])
            found.blocks.append(self.block(first, line, "esac"))
        elif first in _GROUPS:
            found.blocks.append(self.block(first, line, _GROUPS[first]))
        elif first.startswith("() "):
            body = self.command(_Command(line, "", False, [self.tokens.popleft()[1]]))
            found.words, found.blocks = ["()"], [[body]]
        elif first.startswith("(("):
            found.words = ["((", first[2:].removesuffix("))")]
        elif first == "[[":
            while self.tokens and found.words[-1] != "]]":
                token = self.tokens.popleft()[1]
                found.words += [token] if token.strip() else []
            if found.words[-1] != "]]":
                raise CostModelError(f"line {line}: nothing ends the '[['")
        self.words(found)
        return found

    def words(self, found: _Command) -> None:
        """Read what follows the first word, or the end of a compound command: words, redirections."""
        while self.tokens and not self.next_is(*_SEPARATORS, ")"):
            line, token = self.tokens.popleft()
            redirect = _REDIRECT.fullmatch(token)
            if token == "(":
                raise CostModelError(f"line {line}: a ( stands where none can")
            if redirect is None:
                found.words += [] if found.blocks else [token]
            # A word with dashes stands behind the end of a placeholder such as <path to data>.
            elif self.tokens and not self.next_is(*_SEPARATORS, ")") and self.tokens[0][1][:2] != "--":
                behind = self.tokens.popleft()[1]
                if redirect[1][:2] == "<<":
                    found.document = redirect[1], behind
                elif redirect[1] in (">", ">>", ">|"):
                    found.target = behind


def _parsed(text: str, first_line: int = 1) -> list[_Command]:
    """Return the commands of a script."""
    return _Parser(text, first_line).block("", first_line)


# Going through them


_IN_LOOP = "set in a {} loop, whose turns only running the script tells"
_NOT_READ = "set in a {}, which is not followed"
_UNDER_CONDITION = "set under a condition that only running the script tells"


class _EndError(Exception):
    """``exit`` on its way out of the script, or of a shell in it."""


class _Walker:
    """Follows commands, keeping variables, functions and what would be started."""

    def __init__(self, values: Mapping[str, str | list[str]], places: Sequence[Path], own: str) -> None:
        self.scope = Scope(self.output_of, {"PWD": ".", "BASH_SOURCE": own, **values}, own)
        self.places = [place.resolve() for place in places]
        """Folders that files are sourced from, the script's own first."""
        self.launches: list[Launch] = []
        self.files: dict[str, str] = {}
        self.slurm: dict[str, str] = {}
        self.notes: list[str] = []
        self.sources: list[Path] = []
        self.output: list[str] | None = None
        self.depth = 0
        """How deep in scripts of scripts and sourced files."""
        self.certain = True
        """Whether no condition in doubt stands around."""

    def run(self, commands: list[_Command]) -> Status:
        """Follow commands; return whether the last one succeeds."""
        truth: Status = True
        for command in commands:
            self.scope.line = command.line
            self.scope.spend(_STEP)
            if command.joined == "|":
                # Of a pipe, the last part says how it ends; the parts are shells of their own.
                with suppress(_EndError):
                    truth = self.one(command)
            elif command.joined and truth is None:
                self.merge([self.aside([command])], _UNDER_CONDITION)
            elif not command.joined or bool(truth) is (command.joined == "&&"):
                truth = self.one(command)
        return truth

    def condition(self, commands: list[_Command]) -> bool | None:
        """Say whether a condition holds, None if only running it tells."""
        truth = self.run(commands)
        return None if truth == _IS_PROGRAM else truth

    def one(self, command: _Command) -> Status:
        """Follow one command, compound or not."""
        words, blocks, truth = command.words, command.blocks, _TRUE
        match words[0]:
            case "if":
                truth = self.choose(blocks)
            case "while" | "until":
                if self.condition(blocks[0]) is not (words[0] == "until"):
                    self.merge([self.aside(blocks[1])], _IN_LOOP.format(words[0]))
            case "for":
                self.loop(words, blocks[0])
            case "case" | "select" | "()":
                what = _NOT_READ.format("function" if words[0] == "()" else words[0])
                self.merge([self.aside(blocks[0])], what)
            case "{":
                truth = self.run(blocks[0])
            case "(":
                truth = self.apart(blocks[0])
            case "[" | "[[" | "test":
                truth = self.test(words[1:] if words[0] == "test" else words[1:-1])
            case "((":
                value = self.scope.arithmetic(words[1])
                truth = None if missing_in(value) else value != "0"
            case _:
                truth = self.command(command)
        if not command.negated:
            return truth
        return None if truth is None or truth == _IS_PROGRAM else not truth

    def apart(self, commands: list[_Command]) -> Status:
        """Follow a shell of its own, whose variables and whose exit are its own."""
        values = self.scope.copied()
        try:
            return self.run(commands)
        except _EndError:
            return True
        finally:
            self.scope.values = values

    def aside(self, commands: list[_Command]) -> Values:
        """Follow what only running the script tells whether it is reached; return the variables at its end."""
        before, certain = self.scope.copied(), self.certain
        self.certain = False
        with suppress(_EndError):
            self.run(commands)
        self.certain = certain
        after, self.scope.values = self.scope.values, before
        return after

    def merge(self, others: list[Values], what: str) -> None:
        """Mark what differs in variables that the script may have as well: not known, or noted where it is flags."""
        scope, flags = self.scope, []
        for name in dict.fromkeys(name for other in others for name in (*other, *scope.values)):
            values = [values.get(name, "") for values in (*others, scope.values)]
            if all(value == values[-1] for value in values):
                continue
            if any("--" in str(value) for value in values):
                flags.append(f"${name}")
            elif not any("/" in str(value) for value in values):
                scope.set(name, scope.unknown(what))
        if flags:
            self.notes.append(f"line {scope.line}: {', '.join(flags)}: {what}, and not read")

    def choose(self, blocks: list[list[_Command]]) -> Status:
        """Follow the first branch that is taken; those before it that may be, aside."""
        line, others = self.scope.line, list[Values]()
        truth = _TRUE
        for asked, body in zip_longest(blocks[::2], blocks[1::2]):
            # The last block of an odd number is what stands behind ``else``.
            holds = True if body is None else self.condition(asked)
            if holds is None:
                others.append(self.aside(body))
            elif holds:
                with suppress(*([_EndError] if others else [])):
                    truth = self.run(asked if body is None else body)
                break
        self.scope.line = line
        self.merge(others, _UNDER_CONDITION)
        return truth

    def loop(self, words: list[str], body: list[_Command]) -> None:
        """Follow a ``for`` loop; aside where only running tells its turns."""
        scope = self.scope
        names, last, counted = words[1:2], list[str](), None
        if names and names[0].startswith("(("):
            counted = _COUNTED.fullmatch(names[0][2:-2])
            names = [counted[1]] if counted else []
            bounds = [scope.arithmetic(part) for part in counted.group(2, 4)] if counted else [""]
            items = [scope.unknown("a counted loop")]
            if counted and not any(map(missing_in, bounds)):
                turns = range(int(bounds[0]), int(bounds[1]) + (counted[3] == "<="))
                items, last = [*map(str, turns[: _MOST_TURNS + 1])], [str(max(turns.stop, turns.start))]
        else:
            if not names:
                raise CostModelError(f"line {scope.line}: a 'for' without a variable")
            given = words[3:] if words[2:3] == ["in"] else ['"$@"']
            items = [item for word in given for item in scope.fields(word)]
        if _leaves(body) or len(items) > _MOST_TURNS or any(map(missing_in, items)):
            what = _IN_LOOP.format("for")
            for name in names or changed_in(words[1]):
                scope.set(name, scope.unknown(what))
            self.merge([self.aside(body)], what)
            return
        for item in items:
            scope.set(names[0], item)
            self.run(body)
            if counted and [scope.text(names[0]), scope.arithmetic(counted[4])] != [item, bounds[1]]:
                raise CostModelError(f"line {scope.line}: a loop that changes its own count is not followed")
        for item in last:
            scope.set(names[0], item)

    def test(self, words: list[str]) -> bool | None:
        """Say whether ``[ … ]`` holds, None where only running the script tells."""
        if words[:1] == ["!"]:
            truth = self.test(words[1:])
            return None if truth is None else not truth
        if len(words) == 3 and words[1] in _COMPARISONS:
            left, right = (self.scope.one(word) for word in (words[0], words[2]))
            return _compare(left, words[1], right, is_literal=words[2][:1] in "'\"")
        for signs, decides in ((("||", "-o"), True), (("&&", "-a"), False)):
            parts = [list(part) for is_sign, part in groupby(words, signs.__contains__) if not is_sign]
            if len(parts) > 1 and "(" not in words:
                ways = [self.test(part) for part in parts]
                return decides if decides in ways else None if None in ways else not decides
        text = self.scope.one(words[-1]) if words else ""
        if len(words) == 2 and words[0] in ("-f", "-e", "-s", "-r"):
            return True if self.neighbour(text) else None
        if len(words) > 2 or is_unknown(text) or words[:-1] not in ([], ["-n"], ["-z"]):
            return None
        return bool(without_marks(text)) is (words[:1] != ["-z"] or len(words) == 1)

    def command(self, command: _Command) -> Status:
        """Follow a simple command."""
        scope = self.scope
        place = next(
            (n for n, word in enumerate(command.words) if not _ASSIGNED.match(word)), len(command.words)
        )
        if place == len(command.words) or command.words[place] in _DECLARES:
            for word in command.words:
                self.assign(word)
            return True
        local = {
            name: scope.one(value) for name, _, value in (w.partition("=") for w in command.words[:place])
        }
        words = [part for word in command.words[place:] for part in scope.fields(word)]
        if not words:
            return True
        name, given = words[0], words[1:]
        sign, document = command.document or ("", "")
        if sign == "<<":
            document = scope.one(document, quoted=True)
        if sign[:2] == "<<" and sign != "<<<" and command.target:
            self.files[Path(without_marks(scope.one(command.target))).name] = document
        names = [word for word in given if word.isidentifier()]
        if name in ("source", "."):
            self.source(given[:1])
        elif name == "eval":
            self.nested(" ".join(given), marks=_WORD_MARKS)
        elif name == "printf" and given[:1] == ["-v"] and len(given) > 2:
            scope.set(given[1], self.printed(name, given[2:], ""))
        elif name in _PRINTERS:
            if self.output is not None and not command.target:
                self.output.append(self.printed(name, given, document))
        elif name == "read" and sign == "<<<" and names and {*given} - {*names} <= {"-r", "-a", "-ra"}:
            text, cut = scope.one(document), local.get("IFS") or None
            if {"-a", "-ra"} & {*given}:
                scope.set(names[0], [text] if missing_in(text) else text.split(cut))
            else:
                parts = [text] * len(names) if missing_in(text) else text.split(cut, len(names) - 1)
                for variable, value in zip_longest(names, parts, fillvalue=""):
                    scope.set(variable, value)
        elif name in _NOT_FOLLOWED:
            for variable in (word.partition("=")[0].strip() for word in given):
                if variable.isidentifier():
                    scope.set(variable, scope.unknown(f"what '{name} {' '.join(given)}' sets"))
            return False if name == "getopts" else _IS_PROGRAM  # without arguments there are no options
        elif name == "unset":
            for variable in given:
                scope.values.pop(variable, None)
        elif name == "exit":
            # A check of what was given, which fails, does not end it.
            if given[:1] in ([], ["0"]):
                raise _EndError
        elif name in ("true", ":", "false", "break", "continue", "return", "shift", "set"):
            return name != "false"
        elif name == "cd":
            before, to = scope.text("PWD") or ".", "".join([word for word in given if word[:1] != "-"][:1])
            scope.set(
                "PWD",
                os.path.normpath(os.path.join(before, to)) if to and not missing_in(before + to) else to,
            )
        elif Path(name).name in ("sbatch", *_SHELLS) and sign:
            self.slurm |= dict(_slurm_options(document))
            self.nested(document)
        else:
            self.launch(words, local)
            return _IS_PROGRAM
        return True

    def assign(self, word: str) -> None:
        """Set the variable of a word that is an assignment."""
        head, scope = _ASSIGNED.match(word), self.scope
        if head is None:
            return
        (name, index, adds), value = head.groups(), word[head.end() :]
        held = scope.values.get(name, "")
        if value[:1] == "(":
            parts = (
                token for _, token in _tokens(value[1:-1]) if token not in _SEPARATORS and token not in "<>()"
            )
            items = [item for part in parts for item in scope.fields(part)]
            if any(re.match(r"\[[^\]]*\]=", item) for item in items):
                items = [scope.unknown(f"an item of {name}, an array with keys")]
            scope.set(name, [*scope.items(name), *items] if adds else items)
        elif index is not None:
            scope.set(name, [scope.unknown(f"an item of {name}, which is set by its place")])
        elif isinstance(held, list):
            first = held[0] if held and adds else ""
            scope.set(name, [first + scope.one(value), *held[1:]])
        else:
            scope.set(name, (held if adds else "") + scope.one(value))

    def nested(self, script: str, *, marks: re.Pattern[str] = _MARKS) -> None:
        """Follow a script that stands in a word, in a document or in a file beside this one, without some marks."""
        self.scope.spend(len(script))
        if self.depth >= _DEEPEST:
            raise CostModelError(f"line {self.scope.line}: the script calls itself without end")
        self.depth += 1
        with suppress(_EndError):
            self.run(_parsed(marks.sub("", script), self.scope.line))
        self.depth -= 1

    def launch(self, words: list[str], local: dict[str, str]) -> None:
        """Note a command; a shell in it that gets a script as one word is followed into it."""
        place = next((n for n, word in enumerate(words) if Path(word).name in _SHELLS), len(words))
        rest = words[place + 1 :]
        if any(re.fullmatch(r"-\w*c", part) for part in rest):
            known = len(self.launches)
            self.nested(next((part for part in rest if " " in part or "\n" in part), ""))
            if Path(words[0]).name == "deepspeed":
                # Its own options, such as how many GPUs there are, hold for what it starts.
                for inner in self.launches[known:]:
                    inner.words = [*words[:place], *inner.words]
            return
        self.launches.append(Launch(words, local, self.certain))

    def neighbour(self, name: str) -> Path | None:
        """Return a file that may be read, None if there is none."""
        plain, there = without_marks(name), self.scope.text("PWD") or "."
        if not plain or missing_in(Path(name).name):
            return None
        paths = [Path("" if missing_in(there) else there, plain), Path(plain), Path(Path(plain).name)]
        for path in (place / path for place in self.places for path in paths):
            if is_there(path) and any(path.resolve().is_relative_to(place) for place in self.places):
                return path.resolve()
        return None

    def source(self, named: list[str]) -> None:
        """Follow a neighbouring file; others are noted."""
        file = self.neighbour(named[0]) if named else None
        if file is None:
            for name in named:
                self.notes.append(f"source {without_marks(name) or name}: not read")
                if not _SETS_NO_FLAGS.search(name):
                    self.scope.unread.append(without_marks(name) or "a file")
            return
        if file in self.sources:
            raise CostModelError(f"source: {file.name} reads itself in a circle")
        from costmodel.interop.text_file import read_text

        self.sources.append(file)
        self.notes.append(f"source {file.name}: followed")
        self.nested(read_text(file).text)
        self.sources.pop()

    def output_of(self, script: str) -> str:
        """Return what a command would write where that follows from the script, else a mark."""
        line = self.scope.line
        not_known = unknown(f"the output of '{script.strip()}'", line)
        self.scope.spend(len(script))
        try:
            commands = _parsed(script, line)
        except CostModelError:
            return not_known
        known = (*_PRINTERS, "cd", "exit", "return")
        if any(c.joined == "|" or not (c.words[0] in known or _ASSIGNED.match(c.words[0])) for c in commands):
            return not_known
        before, self.output = self.output, []
        self.apart(commands)
        written, self.output, self.scope.line = self.output, before, line
        return "\n".join(written).rstrip("\n")

    def printed(self, name: str, given: list[str], document: str) -> str:
        """Return what a program writes, of those that only depend on their words."""
        while name == "echo" and given[:1] in (["-e"], ["-n"], ["-E"]):
            given = given[1:]
        if name == "echo":
            return " ".join(given)
        if name == "pwd":
            return self.scope.text("PWD") or "."
        if name == "expr":
            return self.scope.arithmetic(" ".join(given))
        if name == "cat" and document:
            return document
        if given and name in ("dirname", "basename", "realpath", "readlink"):
            path = Path(given[-1])
            return {"dirname": str(path.parent), "basename": path.name}.get(name, given[-1])
        if name == "printf" and given and given[0].count("%") == len(given) - 1 == given[0].count("%s"):
            return (given[0] % tuple(given[1:])).replace("\\n", "\n")
        return self.scope.unknown(f"the output of '{name} {' '.join(given)}'")


_COUNTED = re.compile(r"\s*([A-Za-z_]\w*)\s*=([^;]*);\s*\1\s*(<=?)([^;]*);\s*(?:\1\s*\+\+|\+\+\1)\s*")
"""``i=0; i<N; i++``, the loop whose turns are counted."""
_NUMBERS = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
}
_NUMBERS["-le"] = operator.le
_COMPARISONS = ("=", "==", "!=", "=~", "<", ">", *_NUMBERS)


def _leaves(commands: list[_Command]) -> bool:
    """Whether a loop's body may leave it before its end."""
    return any(
        command.words[0] in ("break", "continue") or any(map(_leaves, command.blocks)) for command in commands
    )


def _compare(left: str, sign: str, right: str, *, is_literal: bool) -> bool | None:
    """Compare two words; `is_literal` where the second is no pattern. None if only running the script tells."""
    if is_unknown(left) or is_unknown(right) or sign in ("=~", "<", ">"):
        return None
    left, right = without_marks(left), without_marks(right)
    if sign in _NUMBERS:
        first, second = whole_number(left or "0"), whole_number(right or "0")
        return None if first is None or second is None else bool(_NUMBERS[sign](first, second))
    if not is_literal and len(left) * len(right) > _MOST_COMPARED:
        return None
    equal = left == right if is_literal else fnmatch.fnmatchcase(left, right)
    return equal is (sign != "!=")
