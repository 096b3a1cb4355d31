"""Plants bugs drawn at random, one at a time, and asks whether the test files nearest to each notice.

    python tests/mutants.py                          60 bugs, drawn by the last commit; caught / all by folder
    python tests/mutants.py --count 20 --seed 7 --only step/ physics/

A bug is one small change of the code or of a formula's text: another operator, comparison, constant, axis or function. The
nearest tests are the files that name most of what the broken module defines, and the examples of the module itself. The
package is copied to a temporary folder, which is what gets broken. Exit code 1 where fewer than `--least` are caught: some
changes make no difference that anybody could see, so not all can be.
"""

import argparse
import ast
import importlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "costmodel"
PARTS = "costmodel hardware_profiles tests docs tools README.md CONTRIBUTING.md pyproject.toml".split()  # noqa: SIM905
"""What a run of the tests reads of the repository."""
HEAVY = "numpy pydantic ruamel.yaml pytest _pytest.doctest hypothesis pandas typer rich".split()  # noqa: SIM905
"""Imported once, before each test run is forked: they take longer than most of the tests."""
LIMIT_S = 90
"""Of the processor: a machine that is busy with other things has not caught a bug."""
NEAREST = 6
"""Test files a bug is shown to."""
NEVER = ("browser/", "contributing/", "cli/test_notebooks")
"""Tests that run the whole program many times."""
PRICES = ("values/test_price.py", "values/test_compute.py")
"""What prices jobs whatever module is broken."""

OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
PAIRS = (
    "min max",
    "minimum maximum",
    "floor ceil",
    "any all",
    "tp cp",
    "pp vp",
    "ep etp",
    "first last",
    "forward backward",
)
NAMES = {one: other for pair in PAIRS for one, other in (pair.split(), pair.split()[::-1])}
FORMULA = re.compile(r"^[\w\s.()*/+<>=,;&|-]*[a-z_]{2,} [*/+-] [\w(][\w\s.()*/+<>=,;&|-]*$")
SIGNS = {" + ": " - ", " - ": " + ", " * ": " / ", " / ": " * "}

Change = tuple[ast.AST, str, object]
"""A node, one of its fields, and what that becomes."""


def other_value(value: object) -> Iterator[object]:
    """Yield what a constant is changed to: another truth, count, size, or sign in a formula's text."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
    elif isinstance(value, float):
        yield value * 1.1 or 1.0
    elif isinstance(value, str) and FORMULA.match(value):
        yield from (value.replace(sign, other, 1) for sign, other in SIGNS.items() if sign in value)


def changes(node: ast.AST) -> Iterator[Change]:
    """Yield every change of what runs below a node: no docstrings, annotations, imports, or texts of errors."""
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in OPERATORS:
        yield node, "op", OPERATORS[type(node.op)]()
    elif isinstance(node, ast.Compare):
        for at, operator in enumerate(node.ops):
            if type(operator) in OPERATORS:
                yield node, "ops", [*node.ops[:at], OPERATORS[type(operator)](), *node.ops[at + 1 :]]
    elif isinstance(node, ast.Constant):
        yield from ((node, "value", value) for value in other_value(node.value))
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        yield node, "attr", NAMES[node.attr]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in NAMES:
        yield node.func, "id", NAMES[node.func.id]
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in ("annotation", "returns") and runs(child):
                yield from changes(child)


def runs(node: ast.AST) -> bool:
    """Tell whether a change of a node could make a difference."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    of_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    guards = isinstance(node, ast.keyword) and node.arg == "strict"
    silent = isinstance(node, ast.Import | ast.ImportFrom | ast.Raise | ast.JoinedStr)
    return not (is_text or of_types or guards or silent)


def phrases_of(text: str) -> set[str]:
    """Return every run of three words of a text, by which sentences are found again that tests quote in part."""
    words = re.findall(r"\w+", text)
    return {" ".join(words[at : at + 3]) for at in range(len(words) - 2)}


def names_of(file: str) -> set[str]:
    """Return what tests can name of a module: what it defines, words of its texts, as lines of bills are named, and phrases."""
    names: set[str] = set()
    phrases: set[str] = set()
    for node in ast.walk(ast.parse((PACKAGE / file).read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if " " in node.value:
                phrases |= phrases_of(node.value)
            else:
                names |= set(re.findall(r"\w+", node.value))
    return {name for name in names if len(name) > 4} | phrases


def nearest(file: str, texts: dict[str, str]) -> list[str]:
    """Return the test files that name most of a module that few others name, those called like it first."""
    module = "costmodel." + file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    stem, names = Path(file).stem, names_of(file)
    named = {test: names & (set(re.findall(r"\w+", text)) | phrases_of(text)) for test, text in texts.items()}
    tests_of = Counter(name for some in named.values() for name in some)
    scores = {
        test: sum(1.0 / tests_of[name] for name in some)
        + 3 * (module in texts[test])
        + 5 * (stem in Path(test).stem)
        for test, some in named.items()
    }
    found = [test for test in sorted(scores, key=lambda test: -scores[test]) if scores[test]][:NEAREST]
    return list(dict.fromkeys((*found, *PRICES))) if len(found) < NEAREST else found


def with_data(test: Path) -> str:
    """Return the text of a test file and of the tables beside it that it names."""
    text = test.read_text()
    tables = (path for path in sorted(test.parent.glob("*.yaml")) if path.name in text)
    return "\n".join([text, *(path.read_text() for path in tables)])


def copied(to: Path) -> None:
    """Copy what git knows of the repository, and what it would add."""
    command = ["git", "ls-files", "-co", "--exclude-standard", *PARTS]
    for name in subprocess.check_output(command, cwd=ROOT, text=True).splitlines():
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, to / name)


def passes(copy: Path, tests: list[str]) -> bool:
    """Run tests on the copy in a forked process; too slow counts as not passed."""
    child = os.fork()
    if child == 0:
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
        os.chdir(copy)
        sys.path.insert(0, str(copy))
        os.environ["PYTHONPATH"] = str(copy)
        sys.dont_write_bytecode = True
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        pytest = importlib.import_module("pytest")
        os._exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests])))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def drawn(count: int, seed: str, only: list[str]) -> tuple[list[tuple[str, str, str]], int]:
    """Return bugs, each as a file, what it does in words and the whole broken text, and of how many places they are."""
    places: list[tuple[str, ast.Module, Change]] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        file = str(path.relative_to(PACKAGE))
        if not only or any(file.startswith(start) for start in only):
            tree = ast.parse(path.read_text())
            places += [(file, tree, change) for change in changes(tree)]
    bugs = []
    for at in sorted(random.Random(seed).sample(range(len(places)), min(count, len(places)))):
        file, tree, (node, field, new) = places[at]
        old, before = getattr(node, field), ast.unparse(node)
        setattr(node, field, new)
        line = getattr(node, "lineno", 0)
        bugs.append((file, f"{file}:{line}: {before[:60]} -> {ast.unparse(node)[:60]}", ast.unparse(tree)))
        setattr(node, field, old)
    return bugs, len(places)


def counted(bugs: list[tuple[str, str, str]], is_caught: Callable[[str, str], bool]) -> tuple[int, list[str]]:
    """Show every bug to its tests and print how that went, by folder at the end; return how many are caught, and the rest."""
    caught, total = Counter[str](), Counter[str]()
    survivors = []
    for file, words, text in bugs:
        began = time.monotonic()
        found = is_caught(file, text)
        room = file.split("/")[0]
        total[room] += 1
        caught[room] += found
        survivors += [words] * (not found)
        print(f"{'caught' if found else 'SURVIVES':8} {time.monotonic() - began:5.1f} s  {words}", flush=True)
    for room in sorted(total):
        print(f"{room:16} {caught[room]:4} / {total[room]}")
    return caught.total(), survivors


def main() -> int:
    """Plant, test, count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="PATH", help="folders or files to break")
    parser.add_argument("--count", type=int, default=60, metavar="N", help="bugs to plant")
    parser.add_argument("--seed", metavar="TEXT", help="of the draw; the last commit unless said")
    parser.add_argument("--least", type=float, default=0.0, metavar="SHARE", help="fail below this caught")
    asked = parser.parse_args()
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()
    bugs, places = drawn(asked.count, asked.seed or commit, asked.only)
    tests = {
        str(path.relative_to(ROOT / "tests")): path for path in sorted((ROOT / "tests").rglob("test_*.py"))
    }
    texts = {test: with_data(path) for test, path in tests.items() if not test.startswith(NEVER)}
    for name in HEAVY:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        copied(copy)

        def is_caught(file: str, text: str) -> bool:
            path = copy / "costmodel" / file
            whole = path.read_text()
            examples = [f"costmodel/{file}"] if ">>>" in whole else []
            path.write_text(text)
            found = not passes(copy, [*examples, *(f"tests/{test}" for test in nearest(file, texts))])
            path.write_text(whole)
            return found

        caught, survivors = counted(bugs, is_caught)
    print(f"{'all':16} {caught:4} / {len(bugs)}, {caught / max(len(bugs), 1):.0%} of {places:,} places")
    print("\n".join(f"survives: {words}" for words in survivors))
    return int(caught < asked.least * len(bugs))


if __name__ == "__main__":
    sys.exit(main())
