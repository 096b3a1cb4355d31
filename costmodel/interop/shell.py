"""Following a launch script: what it sets and the commands that it would start, without starting any.

A small part of the shell is read: assignments, arrays, conditions, loops of known turns, here documents,
``source`` below the script's own folder. Where only running the script tells how it goes on, nothing is guessed: what
depends on it is marked as not known, by the construct's name and line (see `shell_words`).
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Literal

from costmodel.base.errors import CostModelError
from costmodel.base.files import is_there
from costmodel.interop.shell_words import (
    ANY_MARK,
    WORD_MARKS,
    Scope,
    Values,
    changed_in,
    end_of_nested,
    end_of_piece,
    is_unknown,
    missing_in,
    without_marks,
)
from costmodel.interop.text_file import read_text

_LONGEST, _STEP, _MOST_TURNS, _DEEPEST = 1_000_000, 150, 500, 24
_SHELLS = ("bash", "sh", "zsh")
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_PRINTERS = ("echo", "printf", "cat", "dirname", "basename", "realpath", "readlink", "pwd", "expr")
_QUIET = ("true", ":", "false", "break", "continue", "return", "shift", "set")
_NOT_FOLLOWED = ("read", "mapfile", "readarray", "let", "getopts")
"""Commands that set variables as only running the script tells."""
_SETS_NO_FLAGS = re.compile(
    r"(?:^|/)(?:activate|conda\.sh|set_?env\.sh|setvars\.sh|modules?\.sh|\.?bash_?(?:rc|profile)|\.?profile|bash|\.env)$"
)
"""Files that set up a shell or a Python, and no job."""

Status = bool | Literal["program"] | None
"""Whether a command succeeds: a program is taken to, None where only running the script tells."""


@dataclass
class Launch:
    """A command that a script would start; `certain` where no condition in doubt stands around it."""

    words: list[str]
    environment: dict[str, str]
    certain: bool


def follow(
    text: str,
    *,
    folder: Path | None = None,
    name: str = "script",
    environment: Mapping[str, str] | None = None,
    allowed: Sequence[str] = (),
) -> Script:
    """Follow a script of some `name`, with the variables of `environment` set when it starts.

    What it sources is read from `folder`, where it lies, and below, and from `allowed` folders.
    """
    if len(text) > _LONGEST:
        raise CostModelError(f"expected a script of at most {_LONGEST:,} characters, got {len(text):,}")
    # The job's own options come before those of jobs that it submits.
    slurm = dict(reversed(_slurm_options(text)))
    places = [] if folder is None else [folder, *map(Path, allowed)]
    script = Script({**_slurm_variables(slurm), **(environment or {})}, places, f"./{name}")
    script.slurm |= slurm
    try:
        script.nested(ANY_MARK.sub("", text), 1)
    except RecursionError:
        raise CostModelError("the script is nested too deeply") from None
    return script


# Options of Slurm

_SLURM = re.compile(r"^#SBATCH[ \t]+([^\n#]*)", re.M)
_GLUED = re.compile(r"-([A-Za-z])(\d\S*)")
_SHORT = dict(N="nodes", n="ntasks", G="gpus", J="job-name", t="time", p="partition", A="account")
"""Options of sbatch by their letter; case matters."""
_GPUS = {"gpus-per-node": r"(?:[\w.-]+:)*(\d+)", "gres": r"(?:.*,)?gpu(?::[\w.-]+)?:(\d+)"}
"""sbatch(1): ``--gpus-per-node=[type:]number``, ``--gres=gpu[:type]:number`` among others."""


def _slurm_options(text: str) -> list[tuple[str, str]]:
    """Return the options of a Slurm script by their long names, in order; a line may have several."""
    return [item for line in _SLURM.finditer(text) for item in options_of(line[1].split()).items()]


def options_of(words: list[str]) -> dict[str, str]:
    """Return the options of ``srun`` by their long names.

    >>> options_of(["-N", "4", "--gpus-per-node=8"]), options_of(["-N4", "--exclusive"])
    ({'nodes': '4', 'gpus-per-node': '8'}, {'nodes': '4', 'exclusive': ''})
    """
    found = {}
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        if not word.startswith("-"):
            continue
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
    """Return what a Slurm job asks for on each node, empty if it has no such option."""
    matches = (re.match(pattern, slurm.get(option, "")) for option, pattern in _GPUS.items())
    return next((found[1] for found in matches if found), "")


# A script as words and the signs between them

_JOINS = ("&&", "||", "|", "|&")
_SEPARATORS = ("\n", ";", "&", *_JOINS)
_NEXT_CASE = (";;", ";&", ";;&")
_CLOSE = ("fi", "done", "esac", "}", "then", "elif", "else", "do", ")", *_NEXT_CASE)
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?(\+?)=")
_FUNCTION = re.compile(
    r"(?:function[ \t]+([\w.:-]+)(?:[ \t]*\([ \t]*\))?|([A-Za-z_][\w.:-]*)[ \t]*\([ \t]*\))\s*(?=[{(])"
)
_BLANK = re.compile(r"(?:[ \t\r]|\\\n)+|#[^\n]*")
_REDIRECT = re.compile(r"(\d*|&)(<<<|<<[-']?|>>?[&|]?|<[&>]?)(?!\()")
_SIGN = re.compile(rf"{_REDIRECT.pattern}|&&|\|\|?&?|;;&?|;&|[;&()\n]")
_STOPS = " \t\r\n;&|()<>"


def _tokens(text: str, line: int) -> Iterator[tuple[int, str]]:
    """Yield the words of a script as they are written and the signs between them, each with its line.

    An array ``name=( … )`` and ``(( … ))`` are a word each, a function's head is ``() name``. A here document follows
    its line, behind ``<<``, or ``<<'`` if it is not expanded.
    """
    at, sign = 0, ""
    documents = list[tuple[str, str]]()
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
                documents.append((sign, word))
            else:
                yield line, word
            sign = ""
        if sign == "\n" and start < at:
            for kind, word in documents:
                last, written = re.sub(r"['\"\\]", "", word), list[str]()
                while at < len(text) and written[-1:] != [last]:
                    end = text.find("\n", at) + 1 or len(text)
                    written.append(text[at:end].rstrip("\n").lstrip("\t" if kind == "<<-" else ""))
                    at = end
                yield line, "<<" if last == word else "<<'"
                yield line, "\n".join(written[:-1] if written[-1:] == [last] else written)
            documents, sign = [], ""
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
    except CostModelError as error:
        raise CostModelError(f"line {line}: {error}") from None
    return at


# Going through it

_IN_LOOP = "set in a {} loop, whose turns only running the script tells"
_NOT_READ = "set in a {}, which is not followed"
_UNDER_CONDITION = "set under a condition that only running the script tells"
_COUNTED = re.compile(r"\(\(\s*([A-Za-z_]\w*)\s*=([^;]*);\s*\1\s*(<=?)([^;]*);\s*(?:\1\s*\+\+|\+\+\1)\s*\)\)")
"""``i=0; i<N; i++``, the loop whose turns are counted."""
_NUMBERS = {"-eq": "==", "-ne": "!=", "-gt": ">", "-ge": ">=", "-lt": "<", "-le": "<="}


class Script(Scope):
    """A script that is followed: its commands in order, its variables, and what was not followed.

    Every method that reads tokens takes whether they are `live`: those of a branch that is not taken are only passed.
    """

    def __init__(self, values: Mapping[str, str | list[str]], places: Sequence[Path], own: str) -> None:
        super().__init__(values, own)
        self.places = [place.resolve() for place in places]
        """Folders that files are sourced from, the script's own first."""
        self.launches: list[Launch] = []
        self.files: dict[str, str] = {}
        """Files that here documents write."""
        self.slurm: dict[str, str] = {}
        """Values of ``#SBATCH`` lines by option."""
        self.notes: list[str] = []
        self.sources: list[Path] = []
        self.output: list[str] | None = None
        """What is printed, inside of ``$( … )``."""
        self.depth = 0
        """How deep in scripts of scripts and sourced files."""
        self.certain = True
        """Whether no condition in doubt stands around."""
        self.ended = False
        """Whether an ``exit`` was reached."""
        self.tokens: list[tuple[int, str]] = []
        self.at = 0

    def nested(self, script: str, line: int, *, apart: bool = False) -> None:
        """Follow a script, or what stands in a word, in a document or in a file beside it; `apart` if no variable stays."""
        if self.depth >= _DEEPEST:
            raise CostModelError(f"line {line}: the script calls itself without end")
        self.spend(len(script) if self.depth else 0)
        outer, ended, values = (self.tokens, self.at), self.ended, dict(self.values)
        self.tokens, self.at = list(_tokens(script.replace("\r\n", "\n"), line)), 0
        self.depth += 1
        self.block(True, "")
        self.depth -= 1
        (self.tokens, self.at), self.ended = outer, ended
        if apart:
            self.values = values

    def next(self) -> str:
        """Return the token that comes next, empty at the end."""
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        """Return the token that comes next and pass it, empty at the end."""
        token = self.next()
        self.at += 1
        return token

    def until(self, *ends: str) -> list[str]:
        """Return the tokens up to one of some, which is not passed."""
        start = self.at
        while self.at < len(self.tokens) and self.next() not in ends:
            self.at += 1
        return [token for _, token in self.tokens[start : self.at]]

    def block(self, live: bool, opener: str, *ends: str) -> Status:
        """Go through commands and past the word that closes them; return whether the last one succeeds."""
        first = self.tokens[self.at - 1][0] if opener else 0
        joined, truth = "", True  # type: str, Status
        while token := self.next():
            self.line = self.tokens[self.at][0]
            if token in ends:
                self.at += 1
                return truth
            if token in _SEPARATORS:
                joined = token if token in _JOINS else ""
                self.at += 1
            elif token in _CLOSE:
                raise CostModelError(f"line {self.line}: a '{token}' stands where none can")
            else:
                truth = self.joined(live and not self.ended, joined, truth)
        if ends:
            raise CostModelError(f"line {first}: nothing ends the '{opener}'")
        return truth

    def joined(self, live: bool, sign: str, truth: Status) -> Status:
        """Go through the command behind ``&&``, ``||``, ``|`` or none, given whether the one before succeeded."""
        if live and sign in ("|", "|&") and self.output is not None:
            self.output.append(self.unknown("a pipe"))
        if not live or sign in ("", "|", "|&"):
            return self.one(live)
        if truth is None:
            self.in_doubt(True, _UNDER_CONDITION, self.one)
            return None
        runs = bool(truth) is (sign == "&&")
        status = self.one(runs)
        return status if runs else truth

    def one(self, live: bool) -> Status:
        """Go through one command, compound or not."""
        first, line, truth = self.take(), self.line, True  # type: str, int, Status
        if live:
            self.spend(_STEP)
        match first:
            case "!":
                status = self.one(live)
                return not status if isinstance(status, bool) else None
            case "if":
                truth = self.choose(live)
            case "while" | "until":
                truth = self.block(live, first, "do")
                turns = live and truth is not (first == "until")
                self.in_doubt(turns, _IN_LOOP.format(first), self.block, first, "done")
                truth = True
            case "for":
                self.loop(live)
            case "case":
                self.until("in", "")
                self.in_doubt(live, _NOT_READ.format(first), self.cases)
            case "{":
                truth = self.block(live, first, "}")
            case "(":
                values, ended = dict(self.values), self.ended
                truth = self.block(live, first, ")")
                self.values, self.ended = values, ended
            case "[[":
                words = [word for word in self.until("]]") if word.strip()]
                if not self.take():
                    raise CostModelError(f"line {line}: nothing ends the '[['")
                truth = self.test(words) if live else None
            case "select" | "coproc":
                raise CostModelError(f"line {line}: '{first}' is not followed")
            case _ if first.startswith("() "):
                self.in_doubt(live, _NOT_READ.format("function"), self.one)
            case _ if first.startswith("(("):
                value = self.arithmetic(first[2:].removesuffix("))")) if live else ""
                truth = None if missing_in(value) else value != "0"
            case _:
                self.at -= 1
                return self.simple(live)
        self.words()
        return truth

    def in_doubt(self, live: bool, what: str, read: Callable[..., object], *given: str) -> None:
        """Go through what only running the script tells whether it is reached, and mark the variables that it sets."""
        if live:
            line, after = self.line, self.aside(read, *given)
            self.line = line
            self.merge([after], what)
        else:
            read(False, *given)

    def aside(self, read: Callable[..., object], *given: str) -> Values:
        """Follow what only running the script tells whether it is reached; return the variables at its end."""
        self.spend(len(self.values))
        before, certain, ended = dict(self.values), self.certain, self.ended
        self.certain = False
        read(True, *given)
        if self.output is not None:
            self.output.append(self.unknown("a condition"))
        self.certain, self.ended = certain, ended
        after, self.values = self.values, before
        return after

    def merge(self, others: list[Values], what: str) -> None:
        """Mark what differs in variables that the script may have as well: not known, or noted where it is flags."""
        flags = []
        for name in dict.fromkeys(name for other in others for name in (*other, *self.values)):
            values = [values.get(name, "") for values in (*others, self.values)]
            if all(value == values[-1] for value in values):
                continue
            if any("--" in str(value) for value in values):
                flags.append(f"${name}")
            elif not any("/" in str(value) for value in values):
                self.set(name, self.unknown(what))
        if flags:
            self.note(f"line {self.line}: {', '.join(flags)}: {what}, and not read")

    def note(self, text: str) -> None:
        """Keep a sentence once."""
        self.notes += [text] if text not in self.notes else []

    def choose(self, live: bool) -> Status:
        """Go through an ``if``: the first branch that is taken, and aside those before it that may be."""
        line, others, branch = self.line, list[Values](), "if"
        taken: Status = True
        ended = self.ended
        while branch != "fi":
            holds = True if branch == "else" else self.block(live, branch, "then")
            ends = ("fi",) if branch == "else" else ("elif", "else", "fi")
            if live and not isinstance(holds, bool):
                others.append(self.aside(self.block, branch, *ends))
            else:
                truth = self.block(live and bool(holds), branch, *ends)
                if live and holds:
                    live, taken = False, truth
            branch = self.tokens[self.at - 1][1]
        if others:
            self.ended, self.line = ended, line
            self.merge(others, _UNDER_CONDITION)
        return taken

    def cases(self, live: bool) -> None:
        """Go through all branches of a ``case``, from its ``in`` on."""
        line = self.line
        self.at += 1
        while True:
            self.until("esac", ")")
            if not self.next():
                raise CostModelError(f"line {line}: nothing ends the 'case'")
            if self.take() == "esac":
                return
            self.block(live, "case", "esac", *_NEXT_CASE)
            self.at -= self.tokens[self.at - 1][1] == "esac"

    def loop(self, live: bool) -> None:
        """Go through a ``for`` loop; aside where only running tells its turns."""
        line = self.line
        words = self.until(*_SEPARATORS, "do")
        self.block(False, "for", "do")
        start = self.at
        self.block(False, "for", "done")
        end, self.line = self.at, line
        if not live:
            return
        if not words:
            raise CostModelError(f"line {line}: a 'for' without a variable")
        header = words[0]
        counted, names = _COUNTED.fullmatch(header), words[:1]
        if header[0] == "(":
            names = changed_in(header)
            items = [self.unknown("a counted loop")]
        else:
            items = [item for word in words[2:] for item in self.fields(word)]
        if counted:
            items = [self.arithmetic(part) for part in counted.group(2, 4)]
            if not any(map(missing_in, items)):
                turns = range(int(items[0]), int(items[1]) + (counted[3] == "<="))
                items = [*map(str, turns[: _MOST_TURNS + 1])]
        body = [token for _, token in self.tokens[start:end]]
        sets = {found[1] for found in map(_ASSIGNED.match, body) if found}
        changes = header[0] == "(" and not sets.isdisjoint(re.findall(r"\w+", header))
        leaves = changes or "break" in body or "continue" in body
        if leaves or len(items) > _MOST_TURNS or any(map(missing_in, items)):
            what = _IN_LOOP.format("for")
            for name in names:
                self.set(name, self.unknown(what))
            self.at = start
            self.in_doubt(True, what, self.block, "for", "done")
            return
        for item in items:
            self.set(names[0], item)
            self.at = start
            self.block(True, "for", "done")
        if counted:
            self.set(names[0], self.unknown("the count of a loop"))
        self.at = end

    def test(self, words: list[str]) -> bool | None:
        """Whether ``[ … ]`` holds, None where only running the script tells."""
        if words[:1] == ["!"]:
            truth = self.test(words[1:])
            return None if truth is None else not truth
        for sign, decides in (("||", True), ("&&", False)):
            parts = [list(part) for is_sign, part in groupby(words, sign.__eq__) if not is_sign]
            if len(parts) > 1 and "(" not in words:
                ways = [self.test(part) for part in parts]
                return decides if decides in ways else None if None in ways else not decides
        if len(words) == 3 and words[0][:1] != "-":
            return self.compared(*words)
        text = self.expand(words[-1]) if words else ""
        if len(words) == 2 and words[0] in ("-f", "-e", "-s", "-r"):
            return True if self.neighbour(text) else None
        if len(words) > 2 or is_unknown(text) or words[:-1] not in ([], ["-n"], ["-z"]):
            return None
        return bool(without_marks(text)) is (words[:1] != ["-z"] or len(words) == 1)

    def compared(self, left: str, sign: str, right: str) -> bool | None:
        """Compare two words; a second one without quotes is a pattern. None if only running the script tells."""
        first, second = self.expand(left), self.expand(right)
        if is_unknown(first + second):
            return None
        first, second = without_marks(first), without_marks(second)
        if sign in _NUMBERS:
            value = self.arithmetic(f"{first or 0} {_NUMBERS[sign]} {second or 0}")
            return None if missing_in(value) else value == "1"
        if sign not in ("=", "==", "!="):
            return None
        self.spend(len(first) * len(second) // 10)
        equal = first == second if right[:1] in "'\"" else fnmatch.fnmatchcase(first, second)
        return equal is (sign != "!=")

    def words(self) -> tuple[list[str], str, str, str]:
        """Return the words up to the end of a command, its here document with the sign before, and where it prints to."""
        words, sign, document, target = list[str](), "", "", ""
        while self.at < len(self.tokens) and self.next() not in (*_SEPARATORS, *_NEXT_CASE, ")"):
            line, token = self.tokens[self.at]
            self.at += 1
            redirect = _REDIRECT.fullmatch(token)
            if token == "(":
                raise CostModelError(f"line {line}: a ( stands where none can")
            if redirect is None:
                words.append(token)
            # A word with dashes stands behind the end of a placeholder such as <path to data>.
            elif self.next() not in (*_SEPARATORS, ")", "") and self.next()[:2] != "--":
                behind = self.take()
                if redirect[2][:2] == "<<":
                    sign, document = redirect[2], behind
                elif redirect[2][0] == ">" and redirect[1] != "2":
                    target = behind
        return words, sign, document, target

    def simple(self, live: bool) -> Status:
        """Go through a simple command."""
        written, sign, document, target = self.words()
        if not live:
            return None
        place = next((n for n, word in enumerate(written) if not _ASSIGNED.match(word)), len(written))
        if place == len(written) or written[place] in _DECLARES:
            for word in written:
                self.assign(word)
            return True
        if written[place] in ("[", "test"):
            return self.test(written[1 : -1 if written[0] == "[" else None])
        local = {name: self.expand(value) for name, _, value in (w.partition("=") for w in written[:place])}
        words = [part for word in written[place:] for part in self.fields(word)]
        if not words:
            return True
        name, given = words[0], words[1:]
        if sign != "<<'":
            document = self.expand(document, quoted=sign != "<<<")
        if sign[:2] == "<<" and sign != "<<<" and target:
            self.files[Path(without_marks(self.expand(target))).name] = document
        names = [word for word in given if word.isidentifier()]
        if name in ("source", "."):
            self.source(given[:1])
        elif name == "eval":
            self.nested(WORD_MARKS.sub("", " ".join(given)), self.line)
        elif name == "printf" and given[:1] == ["-v"] and len(given) == 4 and given[2].count("%") == 1:
            self.set(given[1], given[2].replace("%s", given[3]))
        elif name in _PRINTERS:
            if self.output is not None and not target:
                self.output.append(self.printed(name, given))
        elif name == "read" and sign == "<<<" and names and {*given} - {*names} <= {"-r"}:
            parts = document.split(local.get("IFS") or None, len(names) - 1)
            for place, variable in enumerate(names):
                part = "".join(parts[place : place + 1])
                self.set(variable, document if missing_in(document) else part)
        elif name in _NOT_FOLLOWED:
            for variable in (word.partition("=")[0].strip() for word in given):
                if variable.isidentifier():
                    self.set(variable, self.unknown(f"what '{name} {' '.join(given)}' sets"))
            return False if name == "getopts" else "program"  # without arguments there are no options
        elif name == "unset":
            for variable in given:
                self.values.pop(variable, None)
        elif name == "exit":
            # A check of what was given, which fails, does not end it.
            self.ended = given[:1] in ([], ["0"])
        elif name in _QUIET:
            return name != "false"
        elif name == "cd":
            before, to = self.text("PWD") or ".", "".join([word for word in given if word[:1] != "-"][:1])
            known = to and not missing_in(before + to)
            self.set("PWD", os.path.normpath(os.path.join(before, to)) if known else to)
        elif self.output is not None:
            self.output.append(self.unknown("a program"))
        elif Path(name).name in ("sbatch", *_SHELLS) and sign:
            self.slurm |= dict(_slurm_options(document))
            self.nested(ANY_MARK.sub("", document), self.line)
        else:
            self.launch(words, local)
            return "program"
        return True

    def assign(self, word: str) -> None:
        """Set the variable of a word that is an assignment."""
        head = _ASSIGNED.match(word)
        if head is None:
            return
        (name, index, adds), value = head.groups(), word[head.end() :]
        held = self.values.get(name, "")
        if value[:1] == "(":
            signs = (*_SEPARATORS, *"<>()")
            parts = [token for _, token in _tokens(value[1:-1], self.line) if token not in signs]
            items = [item for part in parts for item in self.fields(part)]
            if any(re.match(r"\[[^\]]*\]=", item) for item in items):
                items = [self.unknown(f"an item of {name}, an array with keys")]
            self.set(name, [*self.items(name), *items] if adds else items)
        elif index is not None:
            self.set(name, [self.unknown(f"an item of {name}, which is set by its place")])
        elif isinstance(held, list):
            first = held[0] if held and adds else ""
            self.set(name, [first + self.expand(value), *held[1:]])
        else:
            self.set(name, (held if adds else "") + self.expand(value))

    def launch(self, words: list[str], local: dict[str, str]) -> None:
        """Note a command; a shell in it that gets a script as one word is followed into it."""
        place = next((n for n, word in enumerate(words) if Path(word).name in _SHELLS), len(words))
        rest = words[place + 1 :]
        if not any(re.fullmatch(r"-\w*c", part) for part in rest):
            self.launches.append(Launch(words, local, self.certain))
            return
        script = next((part for part in rest if " " in part or "\n" in part), "")
        self.nested(ANY_MARK.sub("", script), self.line)

    def neighbour(self, name: str) -> Path | None:
        """Return a file that may be read, None if there is none."""
        plain, there = without_marks(name), self.text("PWD") or "."
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
                self.note(f"source {without_marks(name) or name}: not read")
                if not _SETS_NO_FLAGS.search(name):
                    self.unread.append(without_marks(name) or "a file")
            return
        if file in self.sources:
            raise CostModelError(f"source: {file.name} reads itself in a circle")
        self.sources.append(file)
        self.note(f"source {file.name}: followed")
        self.nested(ANY_MARK.sub("", read_text(file).text), 1)
        self.sources.pop()

    def output_of(self, script: str) -> str:
        """Return what a command would write where that follows from the script, else a mark."""
        line, outer = self.line, self.output
        written = self.output = list[str]()
        try:
            self.nested(script, line, apart=True)
        except CostModelError:
            written.append(self.unknown("unread"))
        self.output, self.line = outer, line
        if any(map(is_unknown, written)):
            return self.unknown(f"the output of '{script.strip()}'")
        return "\n".join(written).rstrip("\n")

    def printed(self, name: str, given: list[str]) -> str:
        """Return what a program writes, of those that only depend on their words."""
        if name == "echo":
            return " ".join(given[given[:1] in (["-e"], ["-n"], ["-E"]) :])
        if name == "pwd":
            return self.text("PWD") or "."
        if name == "expr":
            return self.arithmetic(" ".join(given))
        if not given or name in ("cat", "printf"):
            return self.unknown("a program")
        path = Path(given[-1])
        return {"dirname": str(path.parent), "basename": path.name}.get(name, given[-1])
