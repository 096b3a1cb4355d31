"""Plants the bugs of `mutants.yaml`, one at a time, and asks whether the tests nearest to each notice.

    python tests/mutants.py                         all of them, caught/all by folder
    python tests/mutants.py --only step/ tp-loss    folders, files, or the beginning of ids
    python tests/mutants.py --check                 only that each old text stands exactly once

The package is copied to a temporary folder, which is what gets broken. Exit code 1 where a mutant
survives, 2 where the list no longer fits the code.
"""

import argparse
import compileall
import importlib
import os
import py_compile
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_name("mutants.yaml")
# What a run of the tests reads of the repository.
PARTS = ("costmodel", "hardware_profiles", "tests", "docs", "README.md", "pyproject.toml")
# Imported once, before each test run is forked: they take longer than most of the tests.
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
LIMIT_S = 60


class Mutant(NamedTuple):
    """One bug: in `file` of the package, `old` becomes `new`; `tests` should notice."""

    id: str
    file: str
    old: str
    new: str
    note: str
    tests: tuple[str, ...]


def read_mutants(path: Path = LIST) -> list[Mutant]:
    """Read the list; each mutant takes its own tests or those of the longest path, and the examples of its module."""
    raw = YAML(typ="safe", pure=True).load(path.read_text())
    nearest = sorted(raw["nearest"].items(), key=lambda item: -len(item[0]))
    found = []
    for values in raw["mutants"]:
        of_path = next((tests for start, tests in nearest if values["file"].startswith(start)), [])
        own = ROOT / "costmodel" / values["file"]
        examples = [f"../costmodel/{values['file']}"] if own.exists() and ">>>" in own.read_text() else []
        tests = (*examples, *values.pop("tests", of_path))
        found.append(Mutant(tests=tests, **values))
    return found


def problems(mutants: list[Mutant], package: Path) -> dict[str, str]:
    """Say which mutants do not fit the code, or have no test, by id."""
    found = {id: f"listed {count} times" for id, count in Counter(m.id for m in mutants).items() if count > 1}
    for mutant in mutants:
        file = package / mutant.file
        times = file.read_text().count(mutant.old) if file.exists() else -1
        if times != 1:
            how = "there is no such file" if times < 0 else f"old text stands {times} times"
            found[mutant.id] = f"{mutant.file}: {how}: {mutant.old!r}"
        if mutant.old == mutant.new:
            found[mutant.id] = "old and new text are the same"
        missing = [test for test in mutant.tests if not (ROOT / "tests" / test).exists()]
        if missing or not mutant.tests:
            found[mutant.id] = f"no test {', '.join(missing)}"
    return found


def chosen(mutants: list[Mutant], only: list[str]) -> list[Mutant]:
    """Keep those whose file or id starts with one of `only`; all without."""
    return [m for m in mutants if not only or any(m.file.startswith(o) or m.id.startswith(o) for o in only)]


def copied(to: Path) -> None:
    """Copy what git knows of the repository, and what it would add, compiled by content and not by time."""
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
    compileall.compile_dir(
        to / "costmodel", quiet=1, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH
    )


def passes(copy: Path, tests: tuple[str, ...], limit_s: int, show: bool) -> bool:
    """Run tests on the copy in a forked process; too slow counts as not passed."""
    child = os.fork()
    if child == 0:
        signal.alarm(limit_s)
        os.chdir(copy)
        sys.path.insert(0, str(copy))
        sys.dont_write_bytecode = True
        if not show:
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
        pytest = importlib.import_module("pytest")
        code = pytest.main(
            ["-x", "-q", "--tb=short", "-p", "no:cacheprovider", *(f"tests/{t}" for t in tests)]
        )
        os._exit(int(code))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def main() -> int:
    """Plant, test, count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="PATH|ID", help="folders, files or ids")
    parser.add_argument("--check", action="store_true", help="only that the list fits the code")
    parser.add_argument(
        "--limit", type=int, default=LIMIT_S, metavar="S", help="seconds for the tests of one"
    )
    parser.add_argument("--show", action="store_true", help="print what pytest prints")
    asked = parser.parse_args()
    every = read_mutants()
    mutants = chosen(every, asked.only)
    wrong = problems(mutants, ROOT / "costmodel")
    for id, problem in wrong.items():
        print(f"{id}: {problem}")
    mutants = [mutant for mutant in mutants if mutant.id not in wrong]
    if asked.check or not mutants:
        print(f"{len(mutants)} mutants fit the code")
        return 2 if wrong or not mutants else 0
    for name in HEAVY:
        importlib.import_module(name)
    caught: Counter[str] = Counter()
    total: Counter[str] = Counter()
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        copied(copy)
        for tests in sorted({mutant.tests for mutant in mutants}):
            if not passes(copy, tests, limit_s=10 * asked.limit, show=asked.show):
                print(f"without a bug, {' '.join(tests)} fails")
                return 2
        for mutant in mutants:
            file = copy / "costmodel" / mutant.file
            text = file.read_text()
            file.write_text(text.replace(mutant.old, mutant.new))
            began = time.monotonic()
            survived = passes(copy, mutant.tests, asked.limit, asked.show)
            took = time.monotonic() - began
            file.write_text(text)
            place = str(Path(mutant.file).parent)
            total[place] += 1
            caught[place] += not survived
            if survived:
                survivors.append(mutant)
            verdict = "SURVIVES" if survived else "caught"
            print(f"{verdict:8} {took:5.1f} s  {mutant.file}  {mutant.id}: {mutant.note}", flush=True)
    print()
    for place in sorted(total):
        print(f"{place:32} {caught[place]:4} / {total[place]}")
    print(f"{'all':32} {sum(caught.values()):4} / {sum(total.values())}")
    for mutant in survivors:
        print(f"survives: {mutant.id} ({mutant.file})")
    for id in wrong:
        print(f"does not fit the code: {id}")
    return 2 if wrong else 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
