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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby, pairwise
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
_MOST_COMPARED = 10_000_000
"""Characters of a text times those of its pattern."""
_LONGEST, _MOST_STEPS, _MOST_TURNS, _DEEPEST = 1_000_000, 20_000, 500, 24
_SHELLS = ("bash", "sh", "zsh")
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_PRINTERS = ("echo", "printf", "cat", "dirname", "basename", "realpath", "readlink", "pwd")
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

_ENDS = {"if": "fi", "for": "done", "while": "done", "until": "done", "select": "done", "case": "esac"}
_ENDS |= {"{": "}", "(": ")"}
"""Keywords that open a compound command, and what closes it."""
_ALONE = {*_ENDS, *_ENDS.values(), "then", "elif", "else", "do"} - {"for", "select", "case"}
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
    """A command as it is written, or a keyword; `joined` is the ``&&``, ``||`` or ``|`` before it.

    An array ``name=( … )`` is one word; a function's head is ``()`` and its name. `parts` are the places of the
    further keywords of a compound command, its end last; `document` is a here document and the sign before it.
    """

    line: int
    joined: str
    negated: bool = False
    words: list[str] = field(default_factory=list)
    parts: list[int] = field(default_factory=list)
    document: tuple[str, str] | None = None
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


def _parsed(text: str, first_line: int = 1) -> list[_Command]:
    """Return the commands of a script."""
    commands, opened = list[_Command](), list[_Command]()
    current, redirect = _Command(0, ""), ""
    for line, token in _tokens(text.replace("\r\n", "\n"), first_line):
        words = current.words
        if words[:1] == ["[["] and words[-1] != "]]":
            words += [token] if token.strip() else []
        elif redirect and token not in _SEPARATORS and not token.startswith("--"):
            # A word with dashes stands behind the end of a placeholder such as <path to data>.
            if redirect[:2] == "<<":
                current.document = redirect, token
            elif redirect in (">", ">>", ">|"):
                current.target = token
            redirect = ""
        elif found := _REDIRECT.fullmatch(token):
            redirect = found[1]
        elif token in _SEPARATORS or (token == ")" and opened and opened[-1].words[0] == "case"):
            current, redirect = _Command(line, token.replace("|&", "|") if token in _JOINS else ""), ""
        elif token == "!" and not words:
            current.negated = not current.negated
        else:
            redirect = ""
            if token == "(" and words:
                raise CostModelError(f"line {line}: a ( stands where none can")
            if token == ")":
                current = _Command(line, "")
            if not current.words:
                current.line = line
                commands.append(current)
            if token.startswith(("() ", "((")):
                current.words += [token[:2], token.removeprefix("() ").removeprefix("((").removesuffix("))")]
            else:
                current.words.append(token)
            first = current.words[0]
            if len(current.words) == 1:
                _nest(commands, opened)
            if first in _ALONE or first == "()" or (first == "case" and token == "in"):
                current = _Command(line, "")
    if commands and commands[-1].words[0] == "[[" and commands[-1].words[-1] != "]]":
        opened.append(commands[-1])
    if opened:
        raise CostModelError(f"line {opened[-1].line}: nothing ends the '{opened[-1].words[0]}'")
    return commands


def _nest(commands: list[_Command], opened: list[_Command]) -> None:
    """Note the place of the last command with the compound command that it opens, closes or divides."""
    line, word = commands[-1].line, commands[-1].words[0]
    if word in _ENDS:
        opened.append(commands[-1])
    elif word in _ALONE:
        closes = word in _ENDS.values()
        if not opened or (closes and _ENDS[opened[-1].words[0]] != word):
            raise CostModelError(f"line {line}: a '{word}' stands where none can")
        opened[-1].parts.append(len(commands) - 1)
        if closes:
            opened.pop()


# Going through the list


_IN_LOOP = "set in a {} loop, whose turns only running the script tells"
_NOT_READ = "set in a {}, which is not followed"
_UNDER_CONDITION = "set under a condition that only running the script tells"


class _EndError(Exception):
    """``return`` and ``exit`` on their way out of a function, a sourced file or the script."""

    def __init__(self, returns: bool) -> None:
        super().__init__()
        self.returns = returns


class _Walker:
    """Follows commands, keeping variables, functions and what would be started."""

    def __init__(self, values: Mapping[str, str | list[str]], places: Sequence[Path], own: str) -> None:
        self.scope = Scope(self.output_of, {"PWD": ".", "BASH_SOURCE": own, **values}, own)
        self.places = [place.resolve() for place in places]
        """Folders that files are sourced from, the script's own first."""
        self.functions: dict[str, tuple[list[_Command], int, int]] = {}
        self.launches: list[Launch] = []
        self.files: dict[str, str] = {}
        self.slurm: dict[str, str] = {}
        self.notes: list[str] = []
        self.sources: list[Path] = []
        self.output: list[str] | None = None
        # How deep in scripts of scripts, functions and sourced files, conditions in doubt.
        self.steps = self.depth = self.bodies = self.doubts = 0
        self.certain = True
        """Whether no condition in doubt stands around."""

    def run(self, commands: list[_Command], start: int = 0, end: int | None = None) -> Status:
        """Follow commands; return whether the last one succeeds."""
        truth: Status = True
        at, end = start, len(commands) if end is None else end
        while at < end:
            command = commands[at]
            is_head = command.words[0] == "()"
            parts = commands[at + 1].parts if is_head and at + 1 < end else command.parts
            stop = parts[-1] + 1 if parts else at + 1
            self.steps += 1
            self.scope.line = command.line
            if self.steps > _MOST_STEPS:
                raise CostModelError(f"line {command.line}: the script does not come to an end")
            if command.joined == "|":
                # Of a pipe, the last part says how it ends; the parts are shells of their own.
                with suppress(_EndError):
                    truth = self.one(commands, at, stop)
            elif command.joined and truth is None:
                self.choose(commands, [(None, at, stop)])
            elif not command.joined or bool(truth) is (command.joined == "&&"):
                truth = self.one(commands, at, stop)
            at = stop
        return truth

    def condition(self, commands: list[_Command], start: int, end: int) -> bool | None:
        """Say whether a condition holds, None if only running it tells."""
        truth = self.run(commands, start, end)
        return None if truth == _IS_PROGRAM else truth

    def one(self, commands: list[_Command], at: int, stop: int) -> Status:
        """Follow one command, compound or not."""
        command, parts = commands[at], commands[at].parts
        first, truth = command.words[0], _TRUE
        if first == "if":
            truth = self.choose(commands, self.branches(commands, at))
        elif first in ("while", "until"):
            if self.condition(commands, at + 1, parts[0]) is not (first == "until"):
                self.in_doubt(commands, at, parts[0] + 1, stop)
        elif first == "for":
            self.loop(commands, at, stop)
        elif first in ("case", "select"):
            self.in_doubt(commands, at, at + 1, stop, _NOT_READ)
        elif first == "{":
            truth = self.run(commands, at + 1, stop - 1)
        elif first == "(":
            truth = self.apart(commands, at + 1, stop - 1)
        elif first == "()":
            self.functions[command.words[1]] = (commands, at + 1, stop)
        elif first in ("[", "[[", "test"):
            truth = self.test(command.words[1:] if first == "test" else command.words[1:-1])
        elif first == "((":
            value = self.scope.arithmetic(command.words[1])
            truth = None if missing_in(value) else value != "0"
        else:
            truth = self.command(command)
        if not command.negated:
            return truth
        return None if truth is None or truth == _IS_PROGRAM else not truth

    def branches(self, commands: list[_Command], at: int) -> Iterator[tuple[bool | None, int, int]]:
        """Yield for each branch of an ``if`` whether its condition holds, and from where to where it goes."""
        asked, parts = at, commands[at].parts
        for then, following in pairwise(parts):
            if commands[then].words[0] == "elif":
                asked = then
            else:
                is_else = commands[then].words[0] == "else"
                yield is_else or self.condition(commands, asked + 1, then), then + 1, following

    def copied(self) -> Values:
        """Return a copy of the variables as they are."""
        self.scope.spend(len(self.scope.values))
        return dict(self.scope.values)

    def apart(self, commands: list[_Command], start: int = 0, end: int | None = None) -> Status:
        """Follow a shell of its own, whose variables and whose exit are its own."""
        values = self.copied()
        try:
            return self.run(commands, start, end)
        except _EndError:
            return True
        finally:
            self.scope.values = values

    def choose(self, commands: list[_Command], branches: Iterable[tuple[bool | None, int, int]]) -> Status:
        """Follow the first branch that is taken; those before it that may be, in doubt."""
        line, truth = self.scope.line, _TRUE
        others = list[Values]()
        for holds, start, end in branches:
            if holds is None:
                before = self.copied()
                self.doubtfully(commands, start, end)
                others.append(self.scope.values)
                self.scope.values = before
            elif holds:
                self.doubts += bool(others)
                truth = self.run(commands, start, end)
                self.doubts -= bool(others)
                break
        flags = []
        for name in dict.fromkeys(name for other in others for name in _differing(other, self.scope.values)):
            texts = [str(values.get(name, "")) for values in (*others, self.scope.values)]
            if any("--" in text for text in texts):
                flags.append(f"${name}")
            elif not any("/" in text for text in texts):
                self.scope.set(name, unknown(_UNDER_CONDITION, line))
        if flags:
            self.notes.append(
                f"line {line}: only running the script tells whether a condition holds; "
                f"what is set under it, {', '.join(flags)}, is not read"
            )
        return truth

    def doubtfully(self, commands: list[_Command], start: int, end: int) -> None:
        """Follow what only running the script tells whether it is reached."""
        certain = self.certain
        self.doubts, self.certain = self.doubts + 1, False
        self.run(commands, start, end)
        self.doubts, self.certain = self.doubts - 1, certain

    def in_doubt(self, commands: list[_Command], at: int, start: int, end: int, what: str = _IN_LOOP) -> None:
        """Follow once what is run as only running tells, such as a loop; what it sets is not known."""
        line, before = self.scope.line, self.copied()
        self.doubtfully(commands, start, end - 1)
        for name in _differing(self.scope.values, before):
            self.scope.set(name, unknown(what.format(commands[at].words[0]), line))

    def loop(self, commands: list[_Command], at: int, stop: int) -> None:
        """Follow a ``for`` loop; in doubt where only running tells its turns."""
        scope, words, do = self.scope, commands[at].words, commands[at].parts[0]
        names, after = words[1:2], list[str]()
        if words[1:2] == ["(("]:
            counted = _COUNTED.fullmatch(words[2])
            names = changed_in(words[2])
            bounds = [scope.arithmetic(part) for part in counted.group(2, 4)] if counted else []
            items = [part for part in bounds if missing_in(part)] or [scope.unknown("a counted loop")]
            if counted and not any(map(missing_in, bounds)):
                turns = range(int(bounds[0]), int(bounds[1]) + (counted[3] == "<="))
                items, after = [*map(str, turns[: _MOST_TURNS + 1])], [str(max(turns.stop, turns.start))]
        else:
            if not names:
                raise CostModelError(f"line {commands[at].line}: a 'for' without a variable")
            given = words[3:] if words[2:3] == ["in"] else ['"$@"']
            items = [item for word in given for item in scope.fields(word)]
        leaves = any(command.words[0] in ("break", "continue") for command in commands[do:stop])
        if leaves or len(items) > _MOST_TURNS or any(map(missing_in, items)):
            for name in names:
                scope.set(name, scope.unknown(_IN_LOOP.format("for")))
            self.in_doubt(commands, at, do + 1, stop)
            return
        for item in items:
            scope.set(names[0], item)
            self.run(commands, do + 1, stop - 1)
            if (
                after
                and counted
                and [scope.text(names[0]), scope.arithmetic(counted[4])] != [item, bounds[1]]
            ):
                raise CostModelError(f"line {scope.line}: a loop that changes its own count is not followed")
        for item in after:
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
        if name in self.functions:
            arguments, scope.arguments = scope.arguments, given
            self.body(*self.functions[name])
            scope.arguments = arguments
        elif name in ("source", "."):
            self.source(given[:1])
        elif name == "eval":
            self.nested(" ".join(given))
        elif name == "printf" and given[:1] == ["-v"] and len(given) > 2:
            scope.set(given[1], self.printed(name, given[2:], ""))
        elif name in _PRINTERS:
            if self.output is not None and not command.target:
                self.output.append(self.printed(name, given, document))
        elif name in _NOT_FOLLOWED:
            for variable in (word.partition("=")[0].strip() for word in given):
                if variable.isidentifier():
                    scope.set(variable, scope.unknown(f"what '{name} {' '.join(given)}' sets"))
            return False if name == "getopts" else _IS_PROGRAM  # without arguments there are no options
        elif name == "shift":
            count = whole_number(given[0]) if given else 1
            del scope.arguments[: 1 if count is None else max(count, 0)]
        elif name == "set":
            scope.arguments = given[1:] if given[:1] == ["--"] else scope.arguments
        elif name == "unset":
            for variable in given:
                scope.values.pop(variable, None)
        elif name in ("return", "exit"):
            self.end(name == "return", given[0] if given else "0")
        elif name in ("true", ":", "false", "break", "continue"):
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

    def end(self, returns: bool, status: str) -> None:
        """Leave a function or the script; not where that is in doubt, nor where a check of what was given fails."""
        leaves = returns or status == "0" or missing_in(status)
        if leaves and not self.doubts and (self.bodies or not returns):
            raise _EndError(returns)

    def body(self, commands: list[_Command], start: int = 0, end: int | None = None) -> None:
        """Follow the body of a function or a sourced file, which ``return`` leaves."""
        self.bodies += 1
        try:
            self.deeper(commands, start, end)
        except _EndError as left:
            if not left.returns:
                raise
        finally:
            self.bodies -= 1

    def nested(self, script: str) -> None:
        """Follow a script that stands in a word or a document of this one."""
        self.scope.spend(len(script))
        with suppress(_EndError):
            self.deeper(_parsed(script, self.scope.line))

    def deeper(self, commands: list[_Command], start: int = 0, end: int | None = None) -> None:
        """Follow commands that others call."""
        if self.depth >= _DEEPEST:
            raise CostModelError(f"line {self.scope.line}: the script calls itself without end")
        self.depth += 1
        try:
            self.run(commands, start, end)
        finally:
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
        self.body(_parsed(_MARKS.sub("", read_text(file).text)))
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


def _differing(values: Values, other: Values) -> list[str]:
    """Return the names whose values differ."""
    return [name for name in {**values, **other} if values.get(name) != other.get(name)]


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
