"""The tables of all frameworks by name, and what a job breaks of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.interop.assertions.bridge import BRIDGE
from costmodel.interop.assertions.deepspeed import DEEPSPEED
from costmodel.interop.assertions.megatron import MEGATRON
from costmodel.interop.assertions.neuronx import NEURONX
from costmodel.interop.assertions.published import PUBLISHED
from costmodel.interop.assertions.record import Assertion, Table
from costmodel.interop.assertions.torchtitan import TORCHTITAN
from costmodel.interop.assertions.trainers import ACCELERATE, AXOLOTL
from costmodel.interop.framework import FrameworkConfigError

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job

TABLES: Mapping[str, Table] = {
    "megatron": MEGATRON,
    "torchtitan": TORCHTITAN,
    "deepspeed": DEEPSPEED,
    "nemo": BRIDGE,
    "accelerate": ACCELERATE,
    "axolotl": AXOLOTL,
    "neuronx": NEURONX,
    "none": PUBLISHED,
}
"""What each framework asserts; none stands for those whose code nobody outside reads."""

ASSERTIONS: Mapping[str, Assertion] = {
    assertion.code: assertion for known in TABLES.values() for assertion in known.assertions
}
"""Every assertion by the code that it is counted under."""


def broken(framework: str, job: Job, text: str = "") -> list[tuple[Assertion, str]]:
    """Return the assertions that a job of one layout breaks, each with what is wrong in words.

    Parameters
    ----------
    framework : str
        One of `TABLES`.
    job : Job
        With one layout.
    text : str
        A configuration of the job: what it says counts in place of what it should.
    """
    known = TABLES.get(framework, TABLES["none"])
    arguments = {**known.arguments(job), **(known.written(text) if text else {})}
    return [
        (assertion, assertion.sentence(arguments))
        for assertion in known.assertions
        if assertion.bad(arguments).any()
    ]


def require_launchable(framework: str, job: Job, text: str = "") -> None:
    """Refuse a job that a framework would not start, or would run as another one.

    Raises
    ------
    FrameworkConfigError
        With the first assertion that it breaks, and its file and line.
    """
    found = broken(framework, job, text)
    if found:
        more = f"; and {len(found) - 1} more" if len(found) > 1 else ""
        raise FrameworkConfigError(f"emit: {FRAMEWORKS[framework].title}: {found[0][1]}{more}")
