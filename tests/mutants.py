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
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "costmodel"
PARTS = (
    "costmodel",
    "hardware_profiles",
    "tests",
    "docs",
    "tools",
    "README.md",
    "CONTRIBUTING.md",
    "pyproject.toml",
)
"""What a run of the tests reads of the repository."""
HEAVY = (
    "numpy",
    "pydantic",
    "ruamel.yaml",
    "pytest",
    "_pytest.doctest",
    "hypothesis",
    "pandas",
    "typer",
    "rich",
)
"""Imported once, before each test run is forked: they take longer than most of the tests."""
LIMIT_S = 90
"""Of the processor: a machine that is busy with other things has not caught a bug."""
NEAREST = 6
"""Test files a bug is shown to."""
NEVER = ("browser/", "contributing/", "cli/test_notebooks")
"""Tests that run the whole program many times."""
PRICES = ("values/test_price.py", "values/test_compute.py")
"""What prices jobs whatever module is broken."""

OPERATORS = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "/",
    ast.Pow: "*",
    ast.BitAnd: "|",
    ast.BitOr: "&",
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.And: "or",
    ast.Or: "and",
}
NAMES = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "floor": "ceil",
    "ceil": "floor",
    "any": "all",
    "all": "any",
    "tp": "cp",
    "cp": "tp",
    "pp": "vp",
    "vp": "pp",
    "ep": "etp",
    "etp": "ep",
    "forward": "backward",
    "first": "last",
    "last": "first",
}
FORMULA = re.compile(r"^[\w\s.()*/+<>=,;&|-]*[a-z_]{2,} [*/+-] [\w(][\w\s.()*/+<>=,;&|-]*$")
FORMULA_OPERATORS = {" + ": " - ", " - ": " + ", " * ": " / ", " / ": " * "}


class Bug(NamedTuple):
    """One change: in `file` of the package, the text from `start` to `end` becomes `new`."""

    file: str
    start: int
    end: int
    old: str
    new: str
    line: int


class _Sites(ast.NodeVisitor):
    """Where a module can be broken, as offsets into its text."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        self.found: list[Bug] = []
        self._starts = [0]
        for line in text.encode().splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._bytes = text.encode()

    def _at(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def _add(self, start: int, end: int, new: str, line: int) -> None:
        self.found.append(Bug(self.file, start, end, self._bytes[start:end].decode(), new, line))

    def _between(self, left: ast.expr, right: ast.expr, operator: ast.AST) -> None:
        """Note the operator that stands between two expressions."""
        new = OPERATORS.get(type(operator))
        if new is None:
            return
        start = self._at(left.end_lineno or 0, left.end_col_offset or 0)
        end = self._at(right.lineno, right.col_offset)
        match = re.search(rb"[-+*/<>=!&|]+|\bnot in\b|\bin\b|\band\b|\bor\b", self._bytes[start:end])
        if match:
            self._add(start + match.start(), start + match.end(), new, right.lineno)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self._between(node.left, node.right, node.op)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, operator, right in zip(
            [node.left, *node.comparators], node.ops, node.comparators, strict=False
        ):
            self._between(left, right, operator)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self._between(node.values[0], node.values[1], node.op)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        start = self._at(node.lineno, node.col_offset)
        end = self._at(node.end_lineno or 0, node.end_col_offset or 0)
        if isinstance(node.value, bool):
            self._add(start, end, str(not node.value), node.lineno)
        elif isinstance(node.value, int):
            self._add(start, end, str(node.value + 1), node.lineno)
        elif isinstance(node.value, float):
            self._add(start, end, repr(node.value * 1.1 or 1.0), node.lineno)
        elif isinstance(node.value, str) and FORMULA.match(node.value):
            for old, new in FORMULA_OPERATORS.items():
                place = self._bytes.find(old.encode(), start, end)
                if place >= 0:
                    self._add(place, place + len(old), new, node.lineno)

    def visit_keyword(self, node: ast.keyword) -> None:
        """Leave `strict` of zips alone: it guards, and changes no result."""
        if node.arg != "strict":
            self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr in NAMES:
            end = self._at(node.end_lineno or 0, node.end_col_offset or 0)
            self._add(end - len(node.attr), end, NAMES[node.attr], node.end_lineno or 0)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in NAMES:
            start = self._at(node.func.lineno, node.func.col_offset)
            self._add(start, start + len(node.func.id), NAMES[node.func.id], node.lineno)
        self.generic_visit(node)

    def _body(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module) -> None:
        """Visit what runs: no docstrings, annotations or what only a type checker imports."""
        for child in node.body:
            is_text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            of_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
            if not (is_text or of_types or isinstance(child, ast.Import | ast.ImportFrom | ast.Raise)):
                self.visit(child)

    visit_Module = visit_ClassDef = _body

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for default in (*node.args.defaults, *(one for one in node.args.kw_defaults if one)):
            self.visit(default)
        self._body(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Leave texts of errors alone."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave sentences alone: offsets inside them are not given by every Python."""


def sites(only: list[str]) -> Iterator[Bug]:
    """Yield every bug that could be planted."""
    for path in sorted(PACKAGE.rglob("*.py")):
        file = str(path.relative_to(PACKAGE))
        if not only or any(file.startswith(start) for start in only):
            text = path.read_text()
            visitor = _Sites(file, text)
            visitor.visit(ast.parse(text))
            yield from visitor.found


def phrases_of(text: str) -> set[str]:
    """Return every run of three words of a text, by which sentences are found again that tests quote in part."""
    words = re.findall(r"\w+", text)
    return {" ".join(words[at : at + 3]) for at in range(len(words) - 2)}


def names_of(file: str) -> set[str]:
    """Return what tests can name of a module: what it defines, words of its texts, as lines of bills are named, and phrases."""
    tree = ast.parse((PACKAGE / file).read_text())
    names: set[str] = set()
    phrases: set[str] = set()
    for node in ast.walk(tree):
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


def copied(to: Path) -> None:
    """Copy what git knows of the repository, and what it would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *PARTS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, to / name)


def passes(copy: Path, tests: list[str], limit_s: int) -> bool:
    """Run tests on the copy in a forked process; too slow counts as not passed."""
    child = os.fork()
    if child == 0:
        signal.setitimer(signal.ITIMER_PROF, limit_s)
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


def main() -> int:
    """Plant, test, count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="PATH", help="folders or files of the package"
    )
    parser.add_argument("--count", type=int, default=60, metavar="N", help="bugs to plant")
    parser.add_argument("--seed", metavar="TEXT", help="of the draw; the last commit unless said")
    parser.add_argument(
        "--least", type=float, default=0.0, metavar="SHARE", help="fail below this share caught"
    )
    asked = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    every = list(sites(asked.only))
    bugs = random.Random(asked.seed or commit).sample(every, min(asked.count, len(every)))
    texts = {
        str(path.relative_to(ROOT / "tests")): path.read_text()
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if not str(path.relative_to(ROOT / "tests")).startswith(NEVER)
    }
    for name in HEAVY:
        importlib.import_module(name)
    caught, total = Counter[str](), Counter[str]()
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        copied(copy)
        for bug in sorted(bugs):
            path = copy / "costmodel" / bug.file
            whole = path.read_bytes()
            examples = [f"costmodel/{bug.file}"] if b">>>" in whole else []
            tests = [*examples, *(f"tests/{test}" for test in nearest(bug.file, texts))]
            path.write_bytes(whole[: bug.start] + bug.new.encode() + whole[bug.end :])
            began = time.monotonic()
            survived = passes(copy, tests, LIMIT_S)
            path.write_bytes(whole)
            room = bug.file.split("/")[0]
            total[room] += 1
            caught[room] += not survived
            said = f"{bug.file}:{bug.line}: {bug.old!r} -> {bug.new!r}"
            if survived:
                survivors.append(said)
            print(
                f"{'SURVIVES' if survived else 'caught':8} {time.monotonic() - began:5.1f} s  {said}",
                flush=True,
            )
    for room in sorted(total):
        print(f"{room:16} {caught[room]:4} / {total[room]}")
    share = sum(caught.values()) / max(sum(total.values()), 1)
    print(
        f"{'all':16} {sum(caught.values()):4} / {sum(total.values())}, {share:.0%} of {len(every):,} places"
    )
    for said in survivors:
        print(f"survives: {said}")
    return int(share < asked.least)


if __name__ == "__main__":
    sys.exit(main())
