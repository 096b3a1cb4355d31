"""What the importers and exporters of framework configurations share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from costmodel.base.errors import CostModelError
from costmodel.describe.jobs.fields import FIELD, REQUIRED
from costmodel.describe.jobs.layout_text import job_numbers
from costmodel.describe.jobs.switches import Settings
from costmodel.describe.models.model import Model
from costmodel.describe.recipe import load_recipe, resolved_for

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job


class FrameworkConfigError(CostModelError):
    """A framework's configuration that cannot be read, or a job that it cannot express."""


@dataclass(frozen=True)
class Imported:
    """A framework's configuration as keywords of `costmodel.estimate`.

    Attributes
    ----------
    job : mapping
        What the configuration says; ``model`` is a `Model` where it describes one.
    missing : tuple of str
        Keywords that the file cannot say and the caller has to add (cluster, gpus, model …).
    ignored : tuple of str
        Keys that were not read.
    """

    job: Mapping[str, Any]
    missing: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def estimate_keywords(self, **more: Any) -> dict[str, Any]:
        """Return keywords for `costmodel.estimate`, with what the caller adds on top.

        Raises
        ------
        FrameworkConfigError
            If something is still missing.
        """
        keywords = {**self.job, **{key: value for key, value in more.items() if value is not None}}
        lacking = [key for key in REQUIRED if keywords.get(key) is None]
        if lacking:
            raise FrameworkConfigError(
                f"job: the configuration does not say {', '.join(lacking)}; give it beside the file"
            )
        return keywords


def unsaid_switches(job: Job, imported: Imported) -> list[str]:
    """Return the recipe's switches that come back different from a configuration, as ``name = value``."""
    back = Settings(load_recipe(imported.job["recipe"])).switched(imported.job.get("switches") or {})
    theirs = back._replace(recipe=resolved_for(back.recipe, job.cluster.accelerator.generation)).values
    return [f"{name} = {value}" for name, value in job.switches.items() if theirs[name] != value]


def counts_of(job: Job) -> dict[str, int]:
    """Return the whole numbers of a job of one layout by field, and its micro-batches."""
    numbers = job_numbers(job)
    found = {name: round(float(numbers[name])) for name in numbers if FIELD[name].kind == "whole"}
    found["micro_batches"] = round(float(job.micro_batches))
    return found


def require_same_model(job: Job, model: Model, framework: str) -> None:
    """Refuse a model whose shape the framework's keys do not carry.

    Raises
    ------
    FrameworkConfigError
        Naming the first field that would come back different.
    """
    ours, theirs = (
        job.model.model_dump(exclude={"name", "source"}),
        model.model_dump(exclude={"name", "source"}),
    )
    for name, value in ours.items():
        if theirs[name] != value:
            raise FrameworkConfigError(
                f"emit: {framework} has no setting for {name} = {value} of {job.model.name}"
            )
