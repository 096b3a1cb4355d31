"""What each framework asserts, read from ``assertions.csv``, and what a job breaks of it.

A row is a condition of a framework's own source, with file and line. Megatron-Bridge starts Megatron-Core, and
Axolotl Accelerate: their rows name both.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import TYPE_CHECKING

from costmodel.describe.frameworks import FRAMEWORKS, launched_by
from costmodel.interop.assertions import arguments as of
from costmodel.interop.assertions.megatron_arguments import arguments as of_megatron
from costmodel.interop.assertions.record import Arguments, Assertion, Table
from costmodel.interop.framework import FrameworkConfigError

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job

_ARGUMENTS: Mapping[str, Callable[[Job], Arguments]] = {
    "megatron": of_megatron,
    "torchtitan": of.torchtitan,
    "deepspeed": of.deepspeed,
    "nemo": of_megatron,
    "accelerate": of.trainers,
    "axolotl": of.trainers,
    "neuronx": of.neuronx,
    "papers": of.papers,
}


def _read() -> dict[str, Table]:
    """Return the tables by framework; ``none`` stands for those whose code nobody outside reads."""
    text = (files("costmodel.interop.assertions") / "assertions.csv").read_text(encoding="utf-8")
    rows: dict[str, list[Assertion]] = {name: [] for name in _ARGUMENTS}
    for row in csv.DictReader(text.splitlines()):
        stops = row.pop("stops") == "yes"
        for name in row.pop("frameworks").split():
            rows[name].append(Assertion(name, **row, stops=stops))
    return {
        "none" if name == "papers" else name: Table(tuple(stated), _ARGUMENTS[name])
        for name, stated in rows.items()
    }


TABLES: Mapping[str, Table] = _read()

ASSERTIONS: Mapping[str, Assertion] = {
    assertion.code: assertion for known in TABLES.values() for assertion in known.assertions
}
"""Every assertion by the code that it is counted under."""


def table_of(framework: str, job: Job) -> Table:
    """Return what a framework asserts in the release that a job's recipe names, or in its own.

    One whose assertions nobody has read yet is held to what the methods themselves need.
    """
    known = TABLES.get(framework, TABLES["none"])
    if framework not in FRAMEWORKS:
        return known
    release = launched_by(framework, job.recipe.launches).release
    return known.of("own" if release == FRAMEWORKS[framework].release else release)


def broken(framework: str, job: Job, given: Arguments | None = None) -> list[tuple[Assertion, str]]:
    """Return the assertions that a job of one layout breaks, each with what is wrong in words.

    Parameters
    ----------
    framework : str
        One of `TABLES`.
    job : Job
        With one layout.
    given : mapping, optional
        Arguments that somebody wrote in place of those that follow from the job.
    """
    known = table_of(framework, job)
    arguments = {**known.arguments(job), **(given or {})}
    return [
        (assertion, assertion.sentence(arguments))
        for assertion in known.assertions
        if assertion.bad(arguments).any()
    ]


def require_launchable(framework: str, job: Job, given: Arguments | None = None) -> None:
    """Refuse a job that a framework would not start, or would run as another one.

    Raises
    ------
    FrameworkConfigError
        With the first assertion that it breaks, and its file and line.
    """
    found = broken(framework, job, given)
    if found:
        more = f"; and {len(found) - 1} more" if len(found) > 1 else ""
        raise FrameworkConfigError(f"emit: {FRAMEWORKS[framework].title}: {found[0][1]}{more}")
