"""What each framework asserts, read from ``assertions.csv``, and what a job breaks of it.

A row is a condition of a framework's own source, with file and line: a formula over a job's `facts` that is true where
it refuses. Megatron-Bridge starts Megatron-Core, and Axolotl Accelerate: their rows name both.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from costmodel.bill.formula import run
from costmodel.describe.frameworks import FRAMEWORKS, launched_by
from costmodel.interop.assertions.facts import Facts, facts
from costmodel.interop.framework import FrameworkConfigError

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job


@dataclass(frozen=True)
class Assertion:
    """A condition under which a framework does not start, or (`stops` empty) starts as something else than was planned.

    `refused` is a formula over facts, true where it refuses, `message` what is wrong, with facts in braces; `only` is
    ``own`` where only the framework's own release states it, a later release where only that does.
    """

    code: str
    release: str
    only: str
    place: str
    refused: str
    message: str
    stops: str

    def bad(self, known: Facts) -> NDArray[np.bool_]:
        """Return where the framework refuses."""
        return np.asarray(run(self.refused, known)[-1], dtype=bool)

    def sentence(self, known: Facts) -> str:
        """Say what is wrong with one job, and where the framework says so."""
        numbers = {name: f"{name} = {float(np.max(value)):g}" for name, value in known.items()}
        return f"{self.message.format_map(numbers)} ({self.place}, {self.release})"

    @property
    def in_words(self) -> str:
        """What is wrong without the numbers of a job, and where the framework says so."""
        return f"{self.message.replace('{', '').replace('}', '')} ({self.place}, {self.release})"


def _read() -> dict[str, tuple[Assertion, ...]]:
    """Return the assertions by framework; ``none`` stands for those whose code nobody outside reads."""
    text = (files("costmodel.interop.assertions") / "assertions.csv").read_text(encoding="utf-8")
    rows: dict[str, list[Assertion]] = {}
    for row in csv.DictReader(text.splitlines()):
        for name in row.pop("frameworks").split():
            rows.setdefault(name, []).append(Assertion(f"{name} {row['place']}", **row))
    return {name: tuple(stated) for name, stated in rows.items()}


TABLES = _read()

ASSERTIONS: Mapping[str, Assertion] = {
    assertion.code: assertion for table in TABLES.values() for assertion in table
}
"""Every assertion by the code that it is counted under."""


def asserted(framework: str, job: Job) -> tuple[Assertion, ...]:
    """Return what a framework asserts in the release that a job's recipe names, or in its own.

    One whose assertions nobody has read yet is held to what the methods themselves need.
    """
    known = TABLES.get(framework, TABLES["none"])
    if framework not in FRAMEWORKS:
        return known
    release = launched_by(framework, job.recipe.launches).release
    stated = ("", "own" if release == FRAMEWORKS[framework].release else release)
    return tuple(row for row in known if row.only in stated)


def broken(framework: str, job: Job) -> list[tuple[Assertion, str]]:
    """Return the assertions that a job of one layout breaks, each with what is wrong in words."""
    known = facts(job)
    return [(row, row.sentence(known)) for row in asserted(framework, job) if row.bad(known).any()]


def require_launchable(framework: str, job: Job) -> None:
    """Refuse a job that a framework would not start, or would run as another one."""
    found = broken(framework, job)
    if found:
        more = f"; and {len(found) - 1} more" if len(found) > 1 else ""
        raise FrameworkConfigError(f"emit: {FRAMEWORKS[framework].title}: {found[0][1]}{more}")
