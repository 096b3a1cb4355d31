"""An interpreter of launch scripts: the variables that they set and the commands that they would start, without starting any.

A subset of the shell is interpreted: assignments, arrays, conditions, loops with known iterations, here documents,
``source`` below the script's own folder. Methods are named as the POSIX grammar (Shell Command Language, 2.10). What is
known only at run time is never guessed: values that depend on it are marked as unknown, with the construct and line
(see `shell_words`).
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

_MAX_CHARACTERS, _COMMAND_WORK, _MAX_ITERATIONS, _MAX_DEPTH = 1_000_000, 150, 500, 24
"""Limits of a script: its length, work charged for a command (`Scope.spend`), iterations of a loop, nested scripts."""
_SHELLS = ("bash", "sh", "zsh")
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_PRINTERS = ("echo", "printf", "cat", "dirname", "basename", "realpath", "readlink", "pwd", "expr")
_NO_EFFECT = ("true", ":", "false", "break", "continue", "return", "shift", "set")
_NOT_FOLLOWED = ("read", "mapfile", "readarray", "let", "getopts")
"""Commands that set variables to values known only at run time."""
_SETS_NO_FLAGS = re.compile(
    r"(?:^|/)(?:activate|conda\.sh|set_?env\.sh|setvars\.sh|modules?\.sh|\.?bash_?(?:rc|profile)|\.?profile|bash|\.env)$"
)
"""Sourced files that set up a shell or Python environment and no flags of a job."""

Status = bool | Literal["program"] | None
"""Whether a command succeeds: a program is assumed to; None where that is known only at run time."""


@dataclass
class Launch:
    """A command that a script would start; `certain` outside of conditions that are known only at run time."""

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

    Sourced files are read from `folder`, the script's own, from below it, and from `allowed` folders.
    """
    if len(text) > _MAX_CHARACTERS:
        raise CostModelError(
            f"expected a script of at most {_MAX_CHARACTERS:,} characters, got {len(text):,}"
        )
    # The first of repeated options is the job's own; later ones are of jobs that it submits.
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


# Tokens: words and operators

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
_WORD_ENDS = " \t\r\n;&|()<>"


def _tokens(text: str, line: int) -> Iterator[tuple[int, str]]:
    """Yield the unexpanded words and the operators of a script, each with its line.

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
    """Return the end of a word, which may be an array, ``((…))`` or ``<(…)``."""
    try:
        at = end_of_nested(text, start + 2) if text[start] in "<>" else start
        at = end_of_nested(text, start + 1) if text[start] == "(" else at
        while at < len(text) and text[at] not in _WORD_ENDS:
            at = end_of_piece(text, at)
            if text.startswith("(", at) and _ASSIGNED.fullmatch(text, start, at):
                at = end_of_nested(text, at + 1)
    except CostModelError as error:
        raise CostModelError(f"line {line}: {error}") from None
    return at


# Interpretation

_IN_LOOP = "set in a {} loop, whose turns only running the script tells"
_NOT_READ = "set in a {}, which is not followed"
_UNDER_CONDITION = "set under a condition that only running the script tells"
_COUNTED = re.compile(r"\(\(\s*([A-Za-z_]\w*)\s*=([^;]*);\s*\1\s*(<=?)([^;]*);\s*(?:\1\s*\+\+|\+\+\1)\s*\)\)")
"""``i=0; i<N; i++``, a counted loop."""
_NUMBERS = {"-eq": "==", "-ne": "!=", "-gt": ">", "-ge": ">=", "-lt": "<", "-le": "<="}


class Script(Scope):
    """State of a script that is interpreted: its commands in order, its variables, and what was not followed.

    Methods that consume tokens take whether these are `live`: those of a branch that is not taken are skipped.
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
        """Depth in nested scripts and sourced files."""
        self.certain = True
        """Whether no enclosing condition is known only at run time."""
        self.ended = False
        """Whether an ``exit`` was reached."""
        self.tokens: list[tuple[int, str]] = []
        self.at = 0

    def nested(self, script: str, line: int, *, subshell: bool = False) -> None:
        """Interpret a script, also of a word, here document or sourced file; a `subshell` keeps its variables to itself."""
        if self.depth >= _MAX_DEPTH:
            raise CostModelError(f"line {line}: the script calls itself without end")
        self.spend(len(script) if self.depth else 0)
        outer, ended, values = (self.tokens, self.at), self.ended, dict(self.values)
        self.tokens, self.at = list(_tokens(script.replace("\r\n", "\n"), line)), 0
        self.depth += 1
        self.compound_list(True, "")
        self.depth -= 1
        (self.tokens, self.at), self.ended = outer, ended
        if subshell:
            self.values = values

    def peek(self) -> str:
        """Return the next token without consuming it; empty at the end."""
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        """Consume and return the next token; empty at the end."""
        token = self.peek()
        self.at += 1
        return token

    def tokens_until(self, *ends: str) -> list[str]:
        """Consume and return the tokens before the first of `ends`."""
        start = self.at
        while self.at < len(self.tokens) and self.peek() not in ends:
            self.at += 1
        return [token for _, token in self.tokens[start : self.at]]

    def compound_list(self, live: bool, opener: str, *ends: str) -> Status:
        """Interpret commands up to and including the word that closes them; return whether the last one succeeds."""
        first = self.tokens[self.at - 1][0] if opener else 0
        joined, truth = "", True  # type: str, Status
        while token := self.peek():
            self.line = self.tokens[self.at][0]
            if token in ends:
                self.at += 1
                return truth
            if token in _SEPARATORS:
                joined = token if token in _JOINS else ""
                self.at += 1
            elif token in _CLOSE:
                raise CostModelError(f"line {self.line}: a '{token}' stands where none can in a shell script")
            else:
                truth = self.and_or_item(live and not self.ended, joined, truth)
        if ends:
            raise CostModelError(f"line {first}: nothing ends the '{opener}'")
        return truth

    def and_or_item(self, live: bool, sign: str, truth: Status) -> Status:
        """Interpret the command after ``&&``, ``||``, ``|`` or none, given whether the previous one succeeded."""
        if live and sign in ("|", "|&") and self.output is not None:
            self.output.append(self.unknown("a pipe"))
        if not live or sign in ("", "|", "|&"):
            return self.command(live)
        if truth is None:
            self.uncertain(True, _UNDER_CONDITION, self.command)
            return None
        runs = bool(truth) is (sign == "&&")
        status = self.command(runs)
        return status if runs else truth

    def command(self, live: bool) -> Status:
        """Interpret one command, simple or compound."""
        first, line, truth = self.take(), self.line, True  # type: str, int, Status
        if live:
            self.spend(_COMMAND_WORK)
        match first:
            case "!":
                status = self.command(live)
                return not status if isinstance(status, bool) else None
            case "if":
                truth = self.if_clause(live)
            case "while" | "until":
                truth = self.compound_list(live, first, "do")
                turns = live and truth is not (first == "until")
                self.uncertain(turns, _IN_LOOP.format(first), self.compound_list, first, "done")
                truth = True
            case "for":
                self.for_clause(live)
            case "case":
                self.tokens_until("in", "")
                self.uncertain(live, _NOT_READ.format(first), self.case_clause)
            case "{":
                truth = self.compound_list(live, first, "}")
            case "(":
                values, ended = dict(self.values), self.ended
                truth = self.compound_list(live, first, ")")
                self.values, self.ended = values, ended
            case "[[":
                words = [word for word in self.tokens_until("]]") if word.strip()]
                if not self.take():
                    raise CostModelError(f"line {line}: nothing ends the '[['")
                truth = self.test(words) if live else None
            case "select" | "coproc":
                raise CostModelError(f"line {line}: '{first}' is not followed")
            case _ if first.startswith("() "):
                self.uncertain(live, _NOT_READ.format("function"), self.command)
            case _ if first.startswith("(("):
                value = self.arithmetic(first[2:].removesuffix("))")) if live else ""
                truth = None if missing_in(value) else value != "0"
            case _:
                self.at -= 1
                return self.simple_command(live)
        self.command_words()
        return truth

    def uncertain(self, live: bool, what: str, read: Callable[..., object], *given: str) -> None:
        """Interpret commands that may not run, and mark the variables that they set as unknown."""
        if live:
            line, after = self.line, self.values_if_run(read, *given)
            self.line = line
            self.merge([after], what)
        else:
            read(False, *given)

    def values_if_run(self, read: Callable[..., object], *given: str) -> Values:
        """Interpret commands that may not run; return the variables if they do, and leave those of the script."""
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
        """Mark variables that differ between possible executions as unknown; where they hold flags, keep them with a note."""
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
        """Add a note unless it is there."""
        self.notes += [text] if text not in self.notes else []

    def if_clause(self, live: bool) -> Status:
        """Interpret an ``if``: the first branch that is taken, and those before it that may be."""
        line, others, branch = self.line, list[Values](), "if"
        taken: Status = True
        ended = self.ended
        while branch != "fi":
            holds = True if branch == "else" else self.compound_list(live, branch, "then")
            ends = ("fi",) if branch == "else" else ("elif", "else", "fi")
            if live and not isinstance(holds, bool):
                others.append(self.values_if_run(self.compound_list, branch, *ends))
            else:
                truth = self.compound_list(live and bool(holds), branch, *ends)
                if live and holds:
                    live, taken = False, truth
            branch = self.tokens[self.at - 1][1]
        if others:
            self.ended, self.line = ended, line
            self.merge(others, _UNDER_CONDITION)
        return taken

    def case_clause(self, live: bool) -> None:
        """Interpret all branches of a ``case``, from its ``in`` on."""
        line = self.line
        self.at += 1
        while True:
            self.tokens_until("esac", ")")
            if not self.peek():
                raise CostModelError(f"line {line}: nothing ends the 'case'")
            if self.take() == "esac":
                return
            self.compound_list(live, "case", "esac", *_NEXT_CASE)
            self.at -= self.tokens[self.at - 1][1] == "esac"

    def for_clause(self, live: bool) -> None:
        """Interpret a ``for`` loop; as one that may not run where its iterations are unknown."""
        line = self.line
        words = self.tokens_until(*_SEPARATORS, "do")
        self.compound_list(False, "for", "do")
        start = self.at
        self.compound_list(False, "for", "done")
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
                iterations = range(int(items[0]), int(items[1]) + (counted[3] == "<="))
                items = [*map(str, iterations[: _MAX_ITERATIONS + 1])]
        body = [token for _, token in self.tokens[start:end]]
        sets = {found[1] for found in map(_ASSIGNED.match, body) if found}
        changes = header[0] == "(" and not sets.isdisjoint(re.findall(r"\w+", header))
        leaves = changes or "break" in body or "continue" in body
        if leaves or len(items) > _MAX_ITERATIONS or any(map(missing_in, items)):
            what = _IN_LOOP.format("for")
            for name in names:
                self.set(name, self.unknown(what))
            self.at = start
            self.uncertain(True, what, self.compound_list, "for", "done")
            return
        for item in items:
            self.set(names[0], item)
            self.at = start
            self.compound_list(True, "for", "done")
        if counted:
            self.set(names[0], self.unknown("the count of a loop"))
        self.at = end

    def test(self, words: list[str]) -> bool | None:
        """Return whether ``[ … ]`` holds; None where that is known only at run time."""
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
            return True if self.readable_file(text) else None
        if len(words) > 2 or is_unknown(text) or words[:-1] not in ([], ["-n"], ["-z"]):
            return None
        return bool(without_marks(text)) is (words[:1] != ["-z"] or len(words) == 1)

    def compared(self, left: str, sign: str, right: str) -> bool | None:
        """Compare two words; a second one without quotes is a pattern. None where the result is known only at run time."""
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

    def command_words(self) -> tuple[list[str], str, str, str]:
        """Return the words of a command, the operator and text of its here document, and the file it prints to."""
        words, sign, document, target = list[str](), "", "", ""
        while self.at < len(self.tokens) and self.peek() not in (*_SEPARATORS, *_NEXT_CASE, ")"):
            line, token = self.tokens[self.at]
            self.at += 1
            redirect = _REDIRECT.fullmatch(token)
            if token == "(":
                raise CostModelError(f"line {line}: a ( stands where none can in a shell script")
            if redirect is None:
                words.append(token)
            # Flags follow a placeholder such as <path to data>, which is no redirection.
            elif self.peek() not in (*_SEPARATORS, ")", "") and self.peek()[:2] != "--":
                behind = self.take()
                if redirect[2][:2] == "<<":
                    sign, document = redirect[2], behind
                elif redirect[2][0] == ">" and redirect[1] != "2":
                    target = behind
        return words, sign, document, target

    def simple_command(self, live: bool) -> Status:
        """Interpret a simple command."""
        written, sign, document, target = self.command_words()
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
            # ``exit 1`` is a failed check of arguments, assumed not to happen.
            self.ended = given[:1] in ([], ["0"])
        elif name in _NO_EFFECT:
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
        """Record a command; the script of a ``bash -c`` in it is interpreted instead."""
        place = next((n for n, word in enumerate(words) if Path(word).name in _SHELLS), len(words))
        rest = words[place + 1 :]
        if not any(re.fullmatch(r"-\w*c", part) for part in rest):
            self.launches.append(Launch(words, local, self.certain))
            return
        script = next((part for part in rest if " " in part or "\n" in part), "")
        self.nested(ANY_MARK.sub("", script), self.line)

    def readable_file(self, name: str) -> Path | None:
        """Return the path of a file in the allowed folders; None if there is none."""
        plain, there = without_marks(name), self.text("PWD") or "."
        if not plain or missing_in(Path(name).name):
            return None
        paths = [Path("" if missing_in(there) else there, plain), Path(plain), Path(Path(plain).name)]
        for path in (place / path for place in self.places for path in paths):
            if is_there(path) and any(path.resolve().is_relative_to(place) for place in self.places):
                return path.resolve()
        return None

    def source(self, named: list[str]) -> None:
        """Interpret a readable sourced file; note others."""
        file = self.readable_file(named[0]) if named else None
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
        """Return the output of a command where it follows from the script, else a mark."""
        line, outer = self.line, self.output
        written = self.output = list[str]()
        try:
            self.nested(script, line, subshell=True)
        except CostModelError:
            written.append(self.unknown("unread"))
        self.output, self.line = outer, line
        if any(map(is_unknown, written)):
            return self.unknown(f"the output of '{script.strip()}'")
        return "\n".join(written).rstrip("\n")

    def printed(self, name: str, given: list[str]) -> str:
        """Return the output of a program that depends on its arguments alone."""
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
