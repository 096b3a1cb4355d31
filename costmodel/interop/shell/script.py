"""Following a launch script: what it sets and the commands that it would start, without starting any."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from costmodel.base.errors import CostModelError
from costmodel.interop.shell.expand import (
    Scope,
    arithmetic,
    fields,
    holds,
    missing_in,
    unknown,
    without_marks,
)
from costmodel.interop.shell.syntax import (
    Assign,
    Case,
    Chain,
    Command,
    Commands,
    Function,
    If,
    Loop,
    Statement,
    Test,
    parse,
)

_MOST_STEPS = 50_000
_DEEPEST = 12
_MOST_TURNS = 2_000
_SHELLS = ("bash", "sh", "zsh", "/bin/bash", "/bin/sh")
_SILENT = {"cd", "mkdir", "set", "ulimit", "trap", "wait", "sleep", "rm", "touch", "chmod", "module", "clear"}
_TESTS = (("[",), ("test",), ("true",), ("false",), (":",))
_SLURM = re.compile(r"^#SBATCH[ \t]+([^\n#]*)", re.M)
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
    """``break`` and ``continue`` on their way out of a loop, or of several."""

    def __init__(self, loops: int, goes_on: bool) -> None:
        super().__init__()
        self.loops, self.goes_on = loops, goes_on


class _EndError(Exception):
    """``return`` and ``exit`` on their way out of a function, a sourced file or the script."""

    def __init__(self, returns: bool) -> None:
        super().__init__()
        self.returns = returns


@dataclass
class Launch:
    """A command that a script would start."""

    words: list[str]
    environment: dict[str, str] = field(default_factory=dict)


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
    """

    launches: list[Launch]
    scope: Scope
    files: dict[str, str]
    slurm: dict[str, str]
    notes: list[str]


def follow(
    text: str,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    doubtful: bool = False,
) -> Followed:
    """Follow a script.

    Parameters
    ----------
    text : str
        The script.
    folder : Path, optional
        Where ``source`` finds its neighbours; without one nothing is read.
    environment : mapping, optional
        Variables that are set when it starts.
    doubtful : bool
        Take branches whose condition cannot be known; otherwise pass them over.

    Raises
    ------
    CostModelError
        If files source each other in a circle, or the script does not come to an end.
    """
    slurm: dict[str, str] = {}
    for option, value in _slurm_options(text):
        # The job's own come before those of jobs that it submits.
        slurm.setdefault(option, value)
    scope = Scope({**_slurm_variables(slurm), **(environment or {})})
    walker = _Walker(scope, folder, doubtful)
    with suppress(_EndError):
        walker.follow(parse(text))
    slurm |= walker.slurm
    return Followed(walker.launches, scope, walker.files, slurm, walker.notes)


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


def _slurm_variables(slurm: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Slurm sets from the options of a job."""
    nodes = slurm.get("nodes") or ""
    found = {"SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes}
    found["SLURM_NTASKS_PER_NODE"] = slurm.get("ntasks-per-node", "")
    gpus = gpus_per_node(slurm)
    found["SLURM_GPUS_ON_NODE"] = found["SLURM_GPUS_PER_NODE"] = gpus
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


class _Walker:
    """Follows statements, keeping variables, functions and what would be started."""

    def __init__(self, scope: Scope, folder: Path | None, doubtful: bool) -> None:
        self.scope, self.folder, self.doubtful = scope, folder, doubtful
        self.functions: dict[str, Commands] = {}
        self.launches: list[Launch] = []
        self.files: dict[str, str] = {}
        self.slurm: dict[str, str] = {}
        self.notes: list[str] = []
        self.sources: list[Path] = []
        self.output: list[str] | None = None
        self.steps = self.depth = self.loops = 0
        # How many conditions around a statement cannot be known, and how many functions and sourced files.
        self.doubts = self.bodies = 0

    # What a statement does

    def follow(self, block: Commands) -> bool:
        """Follow statements; return whether the last one succeeded as far as one can say."""
        self.depth += 1
        if self.depth > 4 * _DEEPEST:
            raise CostModelError("the script calls itself without end")
        result = True
        try:
            for statement in block.statements:
                result = self.one(statement)
        finally:
            self.depth -= 1
        return result

    def one(self, statement: Statement) -> bool:
        """Follow one statement."""
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise CostModelError("the script does not come to an end")
        match statement:
            case Assign():
                self.assign(statement)
                return True
            case Command():
                return self.command(statement)
            case Commands(apart=True):
                with suppress(_EndError):
                    return self.follow(statement)
                return True
            case Commands():
                return self.follow(statement)
            case If():
                return self.branch(statement)
            case Loop():
                self.loop(statement)
                return True
            case Case():
                return self.case(statement)
            case Function():
                self.functions[statement.name] = statement.body
                return True
            case Test():
                return self.settled(self.truth(statement))
            case Chain():
                return self.chain(statement)

    def settled(self, truth: bool | None) -> bool:
        """Return a truth value, what cannot be known as the walk takes it."""
        return self.doubtful if truth is None else truth

    def words(self, raw: tuple[str, ...]) -> list[str]:
        return [field for word in raw for field in fields(word, self.scope, self)]

    def text(self, word: str) -> str:
        return "".join(fields(word, self.scope, self, split=False))

    def assign(self, given: Assign) -> None:
        if given.array is not None:
            items = self.words(given.array)
            keyed = [re.match(r"\[(\d+)\]=(.*)$", item, re.S) for item in items]
            items = [found[2] if found else item for found, item in zip(keyed, items, strict=True)]
            before = self.scope.items(given.name) or []
            self.scope.set(given.name, [*before, *items] if given.adds else items)
            return
        value = self.text(given.value)
        if given.index is not None:
            place = arithmetic(given.index, self.scope, self)
            items = list(self.scope.items(given.name) or [])
            if place is not None and 0 <= place < _MOST_TURNS:
                items += [""] * (place + 1 - len(items))
                items[place] = items[place] + value if given.adds else value
                self.scope.set(given.name, items)
            return
        held = self.scope.values.get(given.name)
        if given.adds and isinstance(held, list):
            self.scope.set(given.name, [(held[0] if held else "") + value, *held[1:]])
        elif given.adds:
            self.scope.set(given.name, (held if isinstance(held, str) else "") + value)
        else:
            self.scope.set(given.name, value)

    def branch(self, given: If) -> bool:
        """Follow the first branch whose condition holds."""
        doubtful = False
        for condition, body in given.branches:
            truth = True if condition is None else self.known(condition)
            doubtful |= truth is None
            if self.settled(truth):
                with self.doubted(doubtful):
                    return self.follow(body)
        return True

    @contextmanager
    def doubted(self, doubtful: bool) -> Iterator[None]:
        """Follow what only running would tell whether it is reached: nothing in it ends the script."""
        self.doubts += doubtful
        try:
            yield
        finally:
            self.doubts -= doubtful

    def known(self, block: Commands) -> bool | None:
        """Say whether a condition holds; None if only running it would tell."""
        result: bool | None = True
        for statement in block.statements:
            result = self.truth(statement)
        return result

    def condition(self, block: Commands) -> bool:
        return self.settled(self.known(block))

    def truth(self, statement: Statement) -> bool | None:
        """Say whether a statement succeeds; None if only running it would tell."""
        match statement:
            case Test(words, arithmetic=True):
                value = arithmetic(words[0], self.scope, self)
                return None if value is None else bool(value)
            case Test(words):
                return holds([self.text(word) for word in words])
            case Command(words=(("[" | "test"), *rest)):
                given = self.words(tuple(rest))
                return holds(given[:-1] if given[-1:] == ["]"] else given)
            case Command(words=("true" | ":",)):
                return True
            case Command(words=("false",)):
                return False
            case Chain(parts, negated):
                result: bool | None = True
                for operator, part in parts:
                    if operator == "||" and result is True:
                        continue
                    if operator == "&&" and result is False:
                        continue
                    other = self.truth(part)
                    if operator == "&&":
                        result = False if other is False else None if None in (result, other) else True
                    elif operator == "||":
                        result = True if other else None if None in (result, other) else False
                    else:
                        result = other
                return (None if result is None else not result) if negated else result
            case Command():
                self.command(statement)
                return None
            case _:
                self.one(statement)
                return None

    def chain(self, given: Chain) -> bool:
        """Follow commands joined by ``&&``, ``||`` and ``|``."""
        result: bool | None = True
        doubtful = False
        for operator, part in given.parts:
            if (operator == "&&" and result is False) or (operator == "||" and result is True):
                continue
            with self.doubted(doubtful or operator == "|"):
                result = self.truth(part) if _is_test(part) else self.one(part)
            # Of a command, only running it tells whether it succeeds.
            doubtful |= result is None or not _is_test(part)
        return self.settled(result) != given.negated

    def case(self, given: Case) -> bool:
        subject = without_marks(self.text(given.word))
        for patterns, body in given.branches:
            if any(fnmatch.fnmatchcase(subject, self.text(pattern)) for pattern in patterns):
                with self.doubted(bool(missing_in(self.text(given.word)))):
                    return self.follow(body)
        return True

    def loop(self, given: Loop) -> None:
        """Follow a loop, as often as it would turn; ``break`` and ``continue`` may leave several."""
        self.loops += 1
        try:
            self._turns(given)
        except _LeaveError as leave:
            if leave.loops > 1 and self.loops > 1:
                raise _LeaveError(leave.loops - 1, leave.goes_on) from None
        finally:
            self.loops -= 1

    def _body(self, given: Loop) -> None:
        try:
            self.follow(given.body)
        except _LeaveError as leave:
            if leave.loops > 1 or not leave.goes_on:
                raise

    def _turns(self, given: Loop) -> None:
        if given.arithmetic is not None:
            start, go_on, step = (part.strip() for part in given.arithmetic)
            arithmetic(start or "0", self.scope, self)
            for _ in range(_MOST_TURNS):
                if not arithmetic(go_on or "1", self.scope, self):
                    return
                before = self.steps
                self._body(given)
                arithmetic(step or "0", self.scope, self)
                if not go_on and (self.doubtful or self.steps == before):
                    return
            return
        if given.condition is not None:
            for _ in range(_MOST_TURNS):
                if self.condition(given.condition) == given.until:
                    return
                before = self.steps
                self._body(given)
                if self.doubtful or self.steps == before:
                    return
            return
        for word in self.words(given.words)[:_MOST_TURNS]:
            self.scope.set(given.name, word)
            self._body(given)

    # What a command would be

    def command(self, given: Command) -> bool:
        words = self.words(given.words)
        document = given.document
        if document is not None and not given.literal:
            reader = "".join(fields('"' + document.replace('"', '\\"') + '"', self.scope, self, split=False))
            document = reader
        if document is not None and given.target:
            self.files[Path(without_marks(self.text(given.target))).name] = document
        local = {item.name: self.text(item.value) for item in given.assigns if item.array is None}
        if not words:
            for item in given.assigns:
                self.assign(item)
            return True
        name = words[0]
        if name in self.functions:
            self._call(name, words[1:])
        elif name in ("source", "."):
            self._source(words[1:2])
        elif name == "eval":
            self._nested(" ".join(words[1:]))
        elif name in ("echo", "printf"):
            self._print(words)
        elif name == "cat" and document is not None and not given.target:
            self._write(document)
        elif name == "let":
            for expression in words[1:]:
                arithmetic(expression, self.scope, self)
        elif name == "read" and (document is not None or given.string):
            self._read(words[1:], document if document is not None else self.text(given.string), local)
        elif name in ("shift",):
            del self.scope.arguments[: int(words[1]) if words[1:] and words[1].isdigit() else 1]
        elif name == "unset":
            for variable in words[1:]:
                self.scope.values.pop(variable, None)
        elif name in ("break", "continue"):
            if self.loops:
                count = words[1] if len(words) > 1 and re.fullmatch(r"[1-9]\d{0,3}", words[1]) else "1"
                raise _LeaveError(int(count), name == "continue")
        elif name in ("return", "exit"):
            self._end(name == "return", words[1] if len(words) > 1 else "0")
        elif name in _SILENT:
            pass
        elif name in ("[", "test"):
            return self.settled(holds(words[1:-1] if name == "[" else words[1:]))
        elif name in ("sbatch", *_SHELLS) and document is not None:
            self.slurm |= dict(_slurm_options(document))
            self._nested(document)
        else:
            self._launch(words, local)
        return True

    def _end(self, returns: bool, status: str) -> None:
        """Leave a function or the script; not where that is in doubt, nor where a check of what was given fails."""
        if self.doubts or (returns and not self.bodies):
            return
        if returns or status == "0" or missing_in(status):
            raise _EndError(returns)

    def _launch(self, words: list[str], local: dict[str, str]) -> None:
        """Note a command; a shell in it that gets a script as one word is followed into it."""
        for place, word in enumerate(words):
            if Path(word).name in _SHELLS and any(
                re.fullmatch(r"-\w*c", part) for part in words[place + 1 :]
            ):
                scripts = [part for part in words[place + 1 :] if " " in part or "\n" in part]
                if scripts:
                    known = len(self.launches)
                    self._nested(scripts[0])
                    if Path(words[0]).name == "deepspeed":
                        # Its own options, such as how many GPUs there are, hold for what it starts.
                        self.launches[known:] = [
                            Launch([*words[:place], *inner.words], inner.environment)
                            for inner in self.launches[known:]
                        ]
                    return
        self.launches.append(Launch(words, local))

    def _nested(self, script: str) -> None:
        if self.depth > _DEEPEST:
            raise CostModelError("the script starts scripts in scripts without end")
        self.depth += 3
        try:
            with suppress(_EndError):
                self.follow(parse(script))
        finally:
            self.depth -= 3

    def _call(self, name: str, arguments: list[str]) -> None:
        before = self.scope.arguments
        self.scope.arguments = list(arguments)
        try:
            self._followed_apart(self.functions[name])
        finally:
            self.scope.arguments = before

    def _followed_apart(self, body: Commands) -> None:
        """Follow the body of a function or a sourced file, which ``return`` leaves."""
        self.bodies += 1
        try:
            self.follow(body)
        except _EndError as end:
            if not end.returns:
                raise
        finally:
            self.bodies -= 1

    def _print(self, words: list[str]) -> None:
        """Follow ``printf -v`` and, inside ``$( … )``, what is written."""
        if words[0] == "printf" and words[1:2] == ["-v"] and len(words) > 3:
            self.scope.set(words[2], _formatted(words[3], words[4:]))
        else:
            given = words[1:]
            while given and given[0] in ("-e", "-n", "-E"):
                given = given[1:]
            self._write(
                _formatted(given[0], given[1:]) if words[0] == "printf" and given else " ".join(given)
            )

    def _write(self, text: str) -> None:
        """Note what is written inside ``$( … )``."""
        if self.output is not None:
            self.output.append(text)

    def _read(self, words: list[str], text: str, local: Mapping[str, str]) -> None:
        """Follow ``read`` from a here document or a here string: into an array, or word by word, the rest into the last."""
        options = [word for word in words if word.startswith("-")]
        whole = any(option.startswith("-") and "d" in option for option in options)
        names = [word for word in words if re.fullmatch(r"[A-Za-z_]\w*", word)] or ["REPLY"]
        lines = text if whole else text.partition("\n")[0]
        split = local.get("IFS", self.scope.text("IFS") or "")
        parts = re.split(f"[{re.escape(split)}]", lines.strip()) if split.strip() else lines.split()
        if any("a" in option for option in options):
            self.scope.set(names[-1], parts)
            return
        for place, name in enumerate(names[:-1]):
            self.scope.set(name, parts[place] if place < len(parts) else "")
        alone = lines.strip() if len(names) == 1 else " ".join(parts[len(names) - 1 :])
        self.scope.set(names[-1], alone)

    def _source(self, named: list[str]) -> None:
        """Follow a neighbouring file; others are noted."""
        if not named:
            return
        plain = without_marks(named[0])
        candidates = [] if self.folder is None else [self.folder / plain, self.folder / Path(plain).name]
        inside = (
            []
            if self.folder is None
            else [
                path
                for path in candidates
                if path.is_file() and path.resolve().is_relative_to(self.folder.resolve().parent)
            ]
        )
        if not inside or missing_in(Path(named[0]).name):
            self.notes.append(f"source {plain or named[0]}: not read")
            return
        file = inside[0].resolve()
        if file in self.sources:
            raise CostModelError(f"source: {file.name} reads itself in a circle")
        from costmodel.interop.text_file import read_text

        self.sources.append(file)
        self.notes.append(f"source {file.name}: followed")
        try:
            self._followed_apart(parse(read_text(file).text))
        finally:
            self.sources.pop()

    def output_of(self, script: str) -> str:
        """Return what a command would write where that follows from the script, else a mark."""
        plain = script.strip()
        if plain == "pwd":
            return "."
        block = parse(plain)
        if not block.statements or self.depth > _DEEPEST:
            return unknown(plain)
        simple = block.statements[0]
        if isinstance(simple, Command) and simple.words[0] in ("dirname", "basename"):
            given = self.words(simple.words)[1:]
            if len(given) == 1 and not missing_in(given[0]):
                path = Path(given[0])
                return str(path.parent) if simple.words[0] == "dirname" else path.name
            return unknown(plain)
        if isinstance(simple, Command) and len(block.statements) == 1:
            computed = self._computed(simple)
            if computed is not None:
                return computed
        if isinstance(simple, Chain) and _is_calculator(simple):
            value = arithmetic(self.output_of(plain.rpartition("|")[0]), self.scope, self)
            return unknown(plain) if value is None else str(value)
        if not all(_only_prints(part) for part in block.statements):
            return unknown(plain)
        before, held = self.output, dict(self.scope.values)
        self.output = []
        self.depth += 3
        with suppress(_EndError):
            self.follow(block)
        self.depth -= 3
        written, self.output = "\n".join(self.output), before
        self.scope.values = held
        return written.rstrip("\n")

    def _computed(self, given: Command) -> str | None:
        """Return what ``expr``, ``seq`` and a line of Python write where that is arithmetic of whole numbers."""
        words = self.words(given.words)
        if not words or any(missing_in(word) for word in words):
            return None
        name = Path(words[0]).name
        if name == "expr":
            value = arithmetic(" ".join(words[1:]), self.scope, self)
            return None if value is None else str(value)
        if name == "seq" and all(re.fullmatch(r"-?\d{1,6}", word) for word in words[1:]) and words[1:]:
            numbers = [int(word) for word in words[1:]]
            start, step, end = {1: (1, 1, numbers[-1]), 2: (numbers[0], 1, numbers[-1])}.get(
                len(numbers), (numbers[0], ([*numbers, 1])[1], numbers[-1])
            )
            steps = range(start, end + (1 if step > 0 else -1), step or 1)[:_MOST_TURNS]
            return "\n".join(map(str, steps))
        if re.fullmatch(r"python[\d.]*", name) and words[1:2] == ["-c"] and len(words) == 3:
            found = re.fullmatch(r"\s*print\((?:int\()?([\d\s+*/()-]+?)\)?\)\s*;?", words[2])
            if found and found[1].count("(") == found[1].count(")"):
                value = arithmetic(found[1].replace("//", "/"), self.scope, self)
                return None if value is None else str(value)
        return None


def _is_calculator(statement: Chain) -> bool:
    """Whether a pipe writes one expression into ``bc``."""
    if len(statement.parts) != 2 or statement.negated:
        return False
    (_, first), (operator, second) = statement.parts
    return operator == "|" and _only_prints(first) and isinstance(second, Command) and second.words[0] == "bc"


def _is_test(statement: Statement) -> bool:
    """Whether a statement only succeeds or fails, turned by ``!`` or not."""
    if isinstance(statement, Chain):
        return statement.negated and all(_is_test(part) for _, part in statement.parts)
    return isinstance(statement, Test) or (isinstance(statement, Command) and statement.words[:1] in _TESTS)


def _only_prints(statement: Statement) -> bool:
    """Whether a statement only sets variables and writes text."""
    if isinstance(statement, Command):
        writes_document = statement.words[:1] == ("cat",) and statement.document is not None
        return writes_document or statement.words[:1] in (("echo",), ("printf",), ("exit",), ("return",))
    if isinstance(statement, Commands):
        return all(_only_prints(part) for part in statement.statements)
    return isinstance(statement, Assign)


def _formatted(form: str, values: list[str]) -> str:
    """Return what printf writes, of its plain forms."""
    left = list(values)

    def next_value(found: re.Match[str]) -> str:
        return "%" if found[0] == "%%" else left.pop(0) if left else ""

    return re.sub(r"%%|%-?0?\d*[sd]", next_value, form).replace("\\n", "\n")
