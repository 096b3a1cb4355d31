"""Following a launch script: what it sets and the commands that it would start, without starting any.

Where only running the script tells how it goes on, nothing is guessed: a number that depends on it becomes
something that the reader is told is not known, and any other variable is named in a note.
"""

from __future__ import annotations

import fnmatch
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from costmodel.base.errors import CostModelError
from costmodel.base.files import is_there
from costmodel.interop.shell.expand import Scope, Tokens, is_unknown, missing_in, unknown, without_marks
from costmodel.interop.shell.syntax import ASSIGNED, ENDS, Command, end_of, parse

_LONGEST = 1_000_000
_MOST_STEPS = 20_000
_MOST_TURNS = 500
_DEEPEST = 24
_SHELLS = ("bash", "sh", "zsh")
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_PRINTERS = ("echo", "printf", "cat", "dirname", "basename", "realpath", "readlink", "pwd", "expr", "seq")
_SLURM = re.compile(r"^#SBATCH[ \t]+([^\n#]*)", re.M)
_SETS_NO_FLAGS = re.compile(
    r"(?:^|/)(?:activate|conda\.sh|set_?env\.sh|setvars\.sh|modules?\.sh|\.?bash_?(?:rc|profile)|\.?profile|bash|\.env)$"
)
"""Files that set up a shell or a Python, and no job."""
_GLUED = re.compile(r"-([A-Za-z])(\d\S*)")
_SHORT = {
    "N": "nodes",
    "n": "ntasks",
    "G": "gpus",
    "J": "job-name",
    "t": "time",
    "p": "partition",
    "A": "account",
}
"""Options of sbatch by their letter; case matters."""


class _LeaveError(Exception):
    """``break`` and ``continue`` on their way out of a loop; `doubtful` where only running tells whether."""

    def __init__(self, goes_on: bool, doubtful: bool) -> None:
        super().__init__()
        self.goes_on, self.doubtful = goes_on, doubtful


class _EndError(Exception):
    """``return`` and ``exit`` on their way out of a function, a sourced file or the script."""

    def __init__(self, returns: bool) -> None:
        super().__init__()
        self.returns = returns


@dataclass
class Launch:
    """A command that a script would start; `certain` where no condition in doubt stands around it."""

    words: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    certain: bool = True


@dataclass
class Followed:
    """What following a script has found.

    Attributes
    ----------
    launches : list of Launch
        Every command, in order.
    scope : Scope
        The variables as the script leaves them.
    files : dict
        Files that here documents write, by name.
    slurm : dict
        Values of ``#SBATCH`` lines by option.
    notes : list of str
        What was not followed.
    unread : list of str
        Files whose variables are not known: those that are sourced and were not read, but for such as a virtual
        environment's, which set no flags.
    """

    launches: list[Launch]
    scope: Scope
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
    """Follow a script.

    Parameters
    ----------
    text : str
        The script.
    folder : Path, optional
        Where ``source`` finds its neighbours, there and below; without one nothing is read.
    name : str, optional
        The script's own, for what it says of itself.
    environment : mapping, optional
        Variables that are set when it starts.
    allowed : sequence of str, optional
        Other folders that files may be sourced from.

    Raises
    ------
    CostModelError
        If it is no script, is too long, files source each other in a circle, or it does not come to an end.
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
            walker.run(parse(text))
    except RecursionError:
        raise CostModelError("the script is nested too deeply") from None
    slurm |= walker.slurm
    notes = list(dict.fromkeys(walker.notes))
    return Followed(walker.launches, walker.scope, walker.files, slurm, notes, walker.scope.unread)


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


Body = tuple[list[Command], int, int]
"""Commands, and which of them: from, to."""


class _Walker:
    """Follows commands, keeping variables, functions and what would be started."""

    def __init__(self, values: Mapping[str, str | list[str]], places: Sequence[Path], own: str) -> None:
        self.scope = Scope(self.output_of, {"PWD": ".", "BASH_SOURCE": own, **values}, own=own)
        self.places = places
        """Folders that files are sourced from, the script's own first."""
        self.functions: dict[str, Body] = {}
        self.launches: list[Launch] = []
        self.files: dict[str, str] = {}
        self.slurm: dict[str, str] = {}
        self.notes: list[str] = []
        self.sources: list[Path] = []
        self.output: list[str] | None = None
        # How deep in scripts of scripts, loops, functions and sourced files, and conditions in doubt.
        self.steps = self.depth = self.loops = self.bodies = self.doubts = 0
        self.certain = True
        """Whether no condition in doubt stands around."""
        self.by_command = False
        """Whether the last status is that of a program, which only running it tells."""

    def run(self, commands: list[Command], start: int = 0, end: int | None = None) -> bool | None:
        """Follow commands; return whether the last one succeeds, None if only running it tells."""
        truth: bool | None = True
        at, end = start, len(commands) if end is None else end
        while at < end:
            command = commands[at]
            is_function = command.words[0] == "()"
            stop = end_of(commands, at + is_function) if is_function or command.words[0] in ENDS else at
            self.steps += 1
            self.scope.line = command.line
            if self.steps > _MOST_STEPS:
                raise CostModelError(f"line {command.line}: the script does not come to an end")
            if command.joined == "|":
                # Of a pipe, the last part says how it ends; the parts are shells of their own.
                with suppress(_EndError):
                    truth = self.one(commands, at, stop)
            elif truth is None and command.joined:
                self._choose(commands, [(None, at, stop + 1)])
            elif truth is not (command.joined == "||") or not command.joined:
                truth = self.one(commands, at, stop)
            at = stop + 1
        return truth

    def condition(self, commands: list[Command], start: int, end: int) -> bool | None:
        """Say whether a condition holds, None if only running it tells."""
        truth = self.run(commands, start, end)
        return None if self.by_command else truth

    def one(self, commands: list[Command], at: int, stop: int) -> bool | None:
        """Follow one statement, compound or not."""
        command = commands[at]
        first = command.words[0]
        self.by_command = False
        truth: bool | None = True
        if first == "if":
            truth = self._choose(commands, self._if(commands, at, stop))
        elif first == "case":
            truth = self._choose(commands, self._case(commands, at, stop))
        elif first in ("for", "while", "until", "select"):
            self._loop(commands, at, stop)
        elif first == "{":
            truth = self.run(commands, at + 1, stop)
        elif first == "(":
            truth = self._apart(lambda: self.run(commands, at + 1, stop))
        elif first == "()":
            self.functions[command.words[1]] = (commands, at + 1, stop + 1)
        elif first in ("[", "[[", "test"):
            truth = self._test(command.words[1:-1] if first != "test" else command.words[1:])
        elif first == "((":
            value = self.scope.arithmetic(command.words[1])
            truth = None if missing_in(value) else value != "0"
        else:
            truth = self._command(command)
        return truth if truth is None or not command.negated else not truth

    def _apart(self, run: Callable[[], bool | None]) -> bool | None:
        """Follow a shell of its own, whose variables and whose exit are its own."""
        values = dict(self.scope.values)
        try:
            return run()
        except _EndError:
            return True
        finally:
            self.scope.values = values

    def _in_doubt(self, commands: list[Command], start: int, end: int) -> dict[str, str | list[str]]:
        """Follow what only running the script tells whether it is reached; return what it would set."""
        before, certain = dict(self.scope.values), self.certain
        self.doubts, self.certain = self.doubts + 1, False
        try:
            self.run(commands, start, end)
        finally:
            self.doubts, self.certain = self.doubts - 1, certain
        other, self.scope.values = self.scope.values, before
        return other

    def _choose(
        self, commands: list[Command], branches: Iterable[tuple[bool | None, int, int]]
    ) -> bool | None:
        """Follow the first branch that is taken; those before it that may be, in doubt."""
        line = self.scope.line
        truth: bool | None = True
        others: list[dict[str, str | list[str]]] = []
        for holds, start, end in branches:
            if holds is None:
                others.append(self._in_doubt(commands, start, end))
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
                what = "set under a condition that only running the script tells"
                self.scope.set(name, unknown(what, line))
        if flags:
            self.notes.append(
                f"line {line}: only running the script tells whether a condition holds; "
                f"what is set under it, {', '.join(flags)}, is not read"
            )
        return truth

    def _if(self, commands: list[Command], at: int, stop: int) -> Iterator[tuple[bool | None, int, int]]:
        """Yield for each branch whether its condition holds, and from where to where it goes."""
        places = [*_parts(commands, at, stop, ("then", "elif", "else")), stop]
        for asked, place, following in zip(places, places[1:], places[2:], strict=False):
            word = commands[place].words[0]
            if word != "elif":
                holds = True if word == "else" else self.condition(commands, asked + 1, place)
                yield holds, place + 1, following

    def _case(self, commands: list[Command], at: int, stop: int) -> Iterator[tuple[bool | None, int, int]]:
        """Yield for each branch whether one of its patterns matches, and from where to where it goes."""
        subject = self.scope.one("".join(commands[at].words[1:2]))
        places = [*_parts(commands, at, stop, ("pattern",)), stop]
        for place, following in pairwise(places[1:]):
            patterns = [self.scope.one(pattern) for pattern in commands[place].words[1:]]
            holds: bool | None = any(fnmatch.fnmatchcase(without_marks(subject), text) for text in patterns)
            yield None if is_unknown(subject) and patterns != ["*"] else holds, place + 1, following

    def _loop(self, commands: list[Command], at: int, stop: int) -> None:
        """Follow a loop; where only running tells how often it turns, once, and what it sets is not known."""
        line, before = self.scope.line, dict(self.scope.values)
        self.loops += 1
        try:
            is_known = self._turns(commands, at, stop)
        except _LeaveError as leave:
            is_known = not leave.doubtful
        finally:
            self.loops -= 1
        if not is_known:
            for name in _differing(self.scope.values, before):
                what = f"set in a '{commands[at].words[0]}' loop, whose turns only running the script tells"
                self.scope.set(name, unknown(what, line))

    def _turns(self, commands: list[Command], at: int, stop: int) -> bool:
        """Follow the turns of a loop; return whether their number is known."""
        words = commands[at].words
        if words == ["for"] or words == ["select"]:
            raise CostModelError(f"line {commands[at].line}: a '{words[0]}' without a name")
        (_, do, *_) = [*_parts(commands, at, stop, ("do",)), stop]
        step = ""

        def body() -> None:
            try:
                self.run(commands, do + 1, stop)
            except _LeaveError as leave:
                if leave.doubtful or not leave.goes_on:
                    raise

        if words[0] in ("for", "select") and words[1:2] != ["(("]:
            given = words[3:] if words[2:3] == ["in"] else ['"$@"']
            items = [item for word in given for item in self.scope.fields(word)]
            is_known = words[0] == "for" and len(items) <= _MOST_TURNS and not any(map(missing_in, items))
            for item in items if is_known else items[:1]:
                self.scope.set(words[1], item)
                body()
            return is_known
        if words[0] == "for":
            start, condition, step = ([*words[2].split(";"), "", ""])[:3]
            self.scope.arithmetic(start)
        for _ in range(_MOST_TURNS):
            if words[0] == "for":
                value = self.scope.arithmetic(condition.strip() or "1")
                truth = None if missing_in(value) else value != "0"
            else:
                truth = self.condition(commands, at + 1, do)
            if truth is (words[0] == "until"):
                return True
            values = dict(self.scope.values)
            body()
            if truth is None:
                return False
            self.scope.arithmetic(step)
            if values == self.scope.values:
                return True
        return False

    def _test(self, words: list[str]) -> bool | None:
        """Say whether a test holds; None where only running the script tells."""
        try:
            return _Condition(words, self.scope.one, self._is_file).value()
        except IndexError:
            return None

    # What a command would be

    def _command(self, command: Command) -> bool | None:
        scope = self.scope
        document = command.document
        if document is not None and not command.literal:
            document = scope.inside(document)
        place = 0
        local: dict[str, str] = {}
        while place < len(command.words) and ASSIGNED.match(command.words[place]):
            place += 1
        if place == len(command.words):
            for number in range(place):
                self._assign(command, number)
            return True
        for word in command.words[:place]:
            name, _, value = word.partition("=")
            local[name] = scope.one(value)
        if command.words[place] in _DECLARES:
            for number in range(place + 1, len(command.words)):
                if ASSIGNED.match(command.words[number]):
                    self._assign(command, number)
            return True
        words = [field for word in command.words[place:] for field in scope.fields(word)]
        if not words:
            return True
        name, given = words[0], words[1:]
        if document is not None and command.target:
            self.files[Path(without_marks(scope.one(command.target))).name] = document
        if name in self.functions:
            arguments, scope.arguments = scope.arguments, given
            self._body(lambda: self.run(*self.functions[name]))
            scope.arguments = arguments
        elif name in ("source", "."):
            self._source(given[:1])
        elif name == "eval":
            self._nested(" ".join(given))
        elif name == "printf" and given[:1] == ["-v"] and len(given) > 2:
            scope.set(given[1], _formatted(given[2], given[3:]))
        elif name in _PRINTERS:
            if self.output is not None and not command.target:
                self.output.append(self._printed(name, given, document))
        elif name == "let":
            for expression in given:
                scope.arithmetic(expression)
        elif name in ("read", "mapfile", "readarray"):
            self._read(given, document if name == "read" else None)
        elif name == "shift":
            del scope.arguments[: int(given[0]) if given and given[0].isdigit() else 1]
        elif name == "set" and given[:1] == ["--"]:
            scope.arguments = given[1:]
        elif name == "unset":
            for variable in given:
                scope.values.pop(variable, None)
        elif name in ("break", "continue"):
            if given:
                raise CostModelError(
                    f"line {command.line}: '{name} {given[0]}' of several loops is not followed"
                )
            if self.loops:
                raise _LeaveError(name == "continue", doubtful=self.doubts > 0)
        elif name in ("return", "exit"):
            self._end(name == "return", given[0] if given else "0")
        elif name in ("true", ":", "false", "getopts"):
            return name in ("true", ":")  # without arguments there are no options
        elif name == "cd":
            self._change_folder([word for word in given if not word.startswith("-")])
        elif Path(name).name in ("sbatch", *_SHELLS) and document is not None:
            self.slurm |= dict(_slurm_options(document))
            self._nested(document)
        else:
            self.by_command = True
            self._launch(words, local)
        return True

    def _assign(self, command: Command, place: int) -> None:
        """Set the variable of a word that is an assignment."""
        scope, word = self.scope, command.words[place]
        head = ASSIGNED.match(word)
        if head is None:
            return
        name, index, adds = head.groups()
        held = scope.values.get(name, "")
        if place in command.arrays:
            items = [field for item in command.arrays[place] for field in scope.fields(item)]
            if any(re.match(r"\[[^\]]*\]=", item) for item in items):
                items = [unknown(f"an item of {name}, an array with keys", scope.line)]
            scope.set(name, [*scope.items(name), *items] if adds else items)
        elif index is not None:
            scope.set(name, [unknown(f"an item of {name}, which is set by its place", scope.line)])
        elif isinstance(held, list):
            first = held[0] if held and adds else ""
            scope.set(name, [first + scope.one(word[head.end() :]), *held[1:]])
        else:
            scope.set(name, (held if adds else "") + scope.one(word[head.end() :]))

    def _end(self, returns: bool, status: str) -> None:
        """Leave a function or the script; not where that is in doubt, nor where a check of what was given fails."""
        if self.doubts or (returns and not self.bodies):
            return
        if returns or status == "0" or missing_in(status):
            raise _EndError(returns)

    def _body(self, run: Callable[[], object]) -> None:
        """Follow the body of a function or a sourced file, which ``return`` leaves."""
        self.bodies += 1
        self.depth += 1
        if self.depth > _DEEPEST:
            raise CostModelError(f"line {self.scope.line}: the script calls itself without end")
        try:
            run()
        except _EndError as end:
            if not end.returns:
                raise
        finally:
            self.bodies -= 1
            self.depth -= 1

    def _nested(self, script: str) -> None:
        """Follow a script that stands in a word or a document of this one."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise CostModelError(f"line {self.scope.line}: the script starts scripts in scripts without end")
        try:
            with suppress(_EndError):
                self.run(parse(script, self.scope.line))
        finally:
            self.depth -= 1

    def _launch(self, words: list[str], local: dict[str, str]) -> None:
        """Note a command; a shell in it that gets a script as one word is followed into it."""
        for place, word in enumerate(words):
            rest = words[place + 1 :]
            if Path(word).name in _SHELLS and any(re.fullmatch(r"-\w*c", part) for part in rest):
                scripts = [part for part in rest if " " in part or "\n" in part]
                if scripts:
                    known = len(self.launches)
                    self._nested(scripts[0])
                    if Path(words[0]).name == "deepspeed":
                        # Its own options, such as how many GPUs there are, hold for what it starts.
                        for inner in self.launches[known:]:
                            inner.words = [*words[:place], *inner.words]
                    return
        self.launches.append(Launch(words, local, self.certain))

    def _read(self, words: list[str], document: str | None) -> None:
        """Follow ``read -d '' name`` of a here document; what is read otherwise is not known."""
        names = [word for word in words if re.fullmatch(r"[A-Za-z_]\w*", word)] or ["REPLY"]
        is_whole = any(word.startswith("-") and "d" in word for word in words)
        for name in names:
            what = f"what 'read {' '.join(words)}' reads"
            self.scope.set(
                name, document.strip() if document and is_whole else unknown(what, self.scope.line)
            )

    def _change_folder(self, named: list[str]) -> None:
        """Go into a folder, which paths are relative to from now on."""
        scope = self.scope
        before, to = scope.text("PWD") or ".", "".join(named[:1])
        is_known = to and not missing_in(before + to)
        scope.set("PWD", os.path.normpath(os.path.join(before, to)) if is_known else to)

    def _neighbour(self, name: str) -> Path | None:
        """Return a file that may be read, None if there is none."""
        plain, there = without_marks(name), self.scope.text("PWD") or "."
        if not plain or missing_in(Path(name).name):
            return None
        paths = [Path(plain), Path(Path(plain).name)]
        if not missing_in(there):
            paths.insert(0, Path(there, plain))
        inside = [place.resolve() for place in self.places]
        for path in (place / path for place in self.places for path in paths):
            if is_there(path) and any(path.resolve().is_relative_to(place) for place in inside):
                return path.resolve()
        return None

    def _is_file(self, name: str) -> bool | None:
        return True if self._neighbour(name) else None

    def _source(self, named: list[str]) -> None:
        """Follow a neighbouring file; others are noted."""
        file = self._neighbour(named[0]) if named else None
        if file is None:
            self.notes += [f"source {without_marks(name) or name}: not read" for name in named]
            self.scope.unread += [
                without_marks(name) or "a file" for name in named[:1] if not _SETS_NO_FLAGS.search(name)
            ]
            return
        if file in self.sources:
            raise CostModelError(f"source: {file.name} reads itself in a circle")
        from costmodel.interop.text_file import read_text

        self.sources.append(file)
        self.notes.append(f"source {file.name}: followed")
        try:
            self._body(lambda: self.run(parse(read_text(file).text)))
        finally:
            self.sources.pop()

    def output_of(self, script: str) -> str:
        """Return what a command would write where that follows from the script, else a mark."""
        line = self.scope.line
        not_known = unknown(f"the output of '{script.strip()}'", line)
        try:
            commands = parse(script, line)
        except CostModelError:
            return not_known
        if not all(
            command.joined != "|"
            and (command.words[0] in (*_PRINTERS, "cd", "exit", "return") or ASSIGNED.match(command.words[0]))
            for command in commands
        ):
            return not_known
        before, self.output = self.output, []
        self._apart(lambda: self.run(commands))
        written, self.output, self.scope.line = self.output, before, line
        return "\n".join(written).rstrip("\n")

    def _printed(self, name: str, given: list[str], document: str | None) -> str:
        """Return what a program writes, of those that only depend on their words."""
        while name == "echo" and given[:1] in (["-e"], ["-n"], ["-E"]):
            given = given[1:]
        if name == "echo":
            return " ".join(given)
        if name == "pwd":
            return self.scope.text("PWD") or "."
        if name == "cat" and document is not None:
            return document
        if given and name == "printf":
            return _formatted(given[0], given[1:])
        if given and name in ("dirname", "basename", "realpath", "readlink"):
            path = Path(given[-1])
            return {"dirname": str(path.parent), "basename": path.name}.get(name, given[-1])
        if name == "expr":
            return self.scope.arithmetic(" ".join(given))
        if name == "seq" and given and all(re.fullmatch(r"-?\d{1,6}", word) for word in given):
            numbers = [int(word) for word in given]
            start, step = numbers[0] if len(given) > 1 else 1, numbers[1] if len(given) > 2 else 1
            return "\n".join(map(str, range(start, numbers[-1] + (1 if step > 0 else -1), step or 1)))
        return unknown(f"the output of '{name} {' '.join(given)}'", self.scope.line)


def _parts(commands: list[Command], at: int, stop: int, words: tuple[str, ...]) -> list[int]:
    """Return the place of a compound command and those of its own keywords."""
    places, place = [at], at + 1
    while place < stop:
        word = commands[place].words[0]
        if word in words:
            places.append(place)
        place = end_of(commands, place) + 1 if word in ENDS else place + 1
    return places


def _differing(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """Return the names whose values differ."""
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]


def _formatted(form: str, values: list[str]) -> str:
    """Return what printf writes, of its plain forms."""
    left = list(values)

    def next_value(found: re.Match[str]) -> str:
        return "%" if found[0] == "%%" else left.pop(0) if left else ""

    return re.sub(r"%%|%-?0?\d*[sd]", next_value, form).replace("\\n", "\n")


_CONNECTED = {"||": 1, "-o": 1, "&&": 2, "-a": 2}
_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
}
_COMPARISONS = ("=", "==", "!=", "=~", "<", ">", *_NUMBERS)


class _Condition(Tokens):
    """``[ … ]`` and ``[[ … ]]`` over words as they are written."""

    def __init__(
        self, words: list[str], expanded: Callable[[str], str], is_file: Callable[[str], bool | None]
    ) -> None:
        super().__init__(words, _CONNECTED)
        self.expanded, self.is_file = expanded, is_file

    def value(self) -> bool | None:
        """Return whether the test holds."""
        truth = self.climb(self._operand, self._connected) if self.tokens else False
        return None if self.peek() else truth

    def _connected(self, sign: str, left: bool | None, right: bool | None) -> bool | None:
        decided = sign in ("||", "-o")
        if decided in (left, right):
            return decided
        return None if None in (left, right) else not decided

    def _operand(self) -> bool | None:
        if self.peek(1) in _COMPARISONS and self.at + 2 < len(self.tokens):
            left, sign, right = self.take(), self.take(), self.take()
            return _compare(self.expanded(left), sign, self.expanded(right), right[:1] in "'\"")
        word = self.take()
        if word == "!":
            value = self._operand()
            return None if value is None else not value
        if word == "(":
            value = self.climb(self._operand, self._connected)
            return value if self.take() == ")" else None
        if re.fullmatch(r"-[a-zA-Z]", word) and self.peek() not in ("", ")", *_CONNECTED):
            text = self.expanded(self.take())
            if word in ("-z", "-n"):
                return None if is_unknown(text) else (without_marks(text) == "") is (word == "-z")
            return self.is_file(text) if word in ("-f", "-e", "-s", "-r") else None
        text = self.expanded(word)
        return None if is_unknown(text) else bool(without_marks(text))


def _compare(left: str, sign: str, right: str, literal: bool) -> bool | None:
    """Compare two words; `literal` where the second is no pattern."""
    if is_unknown(left) or is_unknown(right):
        return None
    left, right = without_marks(left), without_marks(right)
    if sign in ("=", "==", "!="):
        equal = left == right if literal else fnmatch.fnmatchcase(left, right)
        return equal is (sign != "!=")
    if sign in ("<", ">"):
        return left < right if sign == "<" else left > right
    try:
        if sign == "=~":
            with warnings.catch_warnings(action="error"):
                return bool(re.search(right, left)) if len(right) < 200 and len(left) < 2000 else None
        return _NUMBERS[sign](int(left or 0), int(right or 0))
    except (ValueError, re.error, FutureWarning):
        return None
