"""One thing of a job different: a number scaled, a switch turned, a degree of the layout changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from costmodel.describe.jobs.job import Job
from costmodel.describe.recipe import NUMERIC, switch_text

Kind = Literal["rate", "latency", "number", "switch", "layout"]


class Change(NamedTuple):
    """A job with one thing different: a name such as ``hbm bandwidth``, ``dp_overlap`` or ``tp``, and both values.

    `kind` is rate (something per second), latency (seconds), number (any other of the recipe or the job), switch (a
    choice of them), or layout; numbers are in SI units.
    """

    name: str
    before: float | str
    after: float | str
    job: Job
    kind: Kind
    unit: str = ""

    @property
    def changes_numerics(self) -> bool:
        """Whether the model that comes out is another one."""
        return self.kind == "switch" and self.name in NUMERIC

    def __str__(self) -> str:
        """Say what to set, as flags and job files take it."""
        if self.kind == "switch":
            return f"{self.name}={self.after}"
        return f"{self.name} {self.after}".strip()


def with_layout(job: Job, name: str, before: str, after: str, **degrees: float) -> Change:
    """Return the job with some degrees of its one layout, or choices as codes, changed, unchecked."""
    changes: dict[str, Any] = {field: np.asarray(float(value)) for field, value in degrees.items()}
    return Change(name, before, after, replace(job, layout=replace(job.layout, **changes)), "layout")


def with_switch(job: Job, name: str, value: Any) -> Change:
    """Return the job with one switch at another value."""
    changed = job.switched({name: value})
    return Change(name, switch_text(job.switches[name]), switch_text(value), changed, "switch")
