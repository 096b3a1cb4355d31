"""`costmodel.estimate` and what it returns: a bill with the figures people ask for first."""

from __future__ import annotations

from collections.abc import Collection
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.base.answer import Answer
from costmodel.base.errors import CostModelError, choices_hint, shown
from costmodel.base.words import errors_with_device_name, with_device_name
from costmodel.describe.jobs.job import Job, job_of
from costmodel.estimates.explain import Explanation, explain
from costmodel.estimates.frame import long_columns, wide_columns
from costmodel.estimates.pipeline_run import price_with_task_order
from costmodel.estimates.priced_job import PricedJob
from costmodel.estimates.record import estimate_record
from costmodel.estimates.samples import (
    DEFAULT_SAMPLES,
    SHARE,
    Interval,
    Samples,
    require_share,
    sample,
    sample_columns,
    sample_record,
)
from costmodel.estimates.warnings import warnings_of

if TYPE_CHECKING:
    import pandas as pd

PLANNED = "Layout: the planner's best: none was named, and dp alone does not do."
_FORMS = {"long": long_columns, "wide": wide_columns}


class Estimate(PricedJob, Answer):
    """A priced job, or an array of them. Every figure comes from the lines of `bill`."""

    _device = "job.cluster.accelerator.called"

    samples: Samples | None = None  # Samples of what is uncertain, where the estimate was asked for them
    assumed: frozenset[str] = frozenset()  # Fields that nobody named, of those that change the answer most
    is_planned: bool = False
    """Whether the layout is the planner's, because nobody named one and data parallelism alone does not do."""
    chosen: str = ""  # Switches and pipeline layout that the planner chose with it, as text
    notes: tuple[str, ...] = ()  # What of the job's file was not understood or has no price

    @property
    def assumptions(self) -> list[str]:
        """What was assumed where nobody named it, and what of the job's file was not understood, in sentences."""
        planned = [PLANNED] if self.is_planned else []
        return [*self.notes, *assumed_sentences(self.job, self.assumed), *planned]

    @cached_property
    def warnings(self) -> list[str]:
        """Plain words about what is unusual or does not fit (one layout only)."""
        return [with_device_name(warning, self.device_word) for warning in warnings_of(self)]

    def explain(self, name: str = "") -> Explanation:
        """Open up lines of the bill: formula, numbers with units, steps, tier and source (one layout only).

        `name` is a line's, or the first parts of several (``"tp"``, ``"tp.attention"``); all lines without. Prints as
        text, and shows as tables in a notebook.

        Raises
        ------
        CostModelError
            If no line is called so.
        """
        return explain(self, name)

    def sample(self, count: int = DEFAULT_SAMPLES, seed: int = 0) -> Samples:
        """Price the job again at `count` samples of everything that is uncertain (one layout only).

        The same seed gives the same values of a factor in every job. Returns distributions of step time, memory, days and
        GPU-hours, the probability that it fits, and causes of width.

        Raises
        ------
        CostModelError
            If the estimate holds several layouts, or the number of samples is no such number.
        """
        return sample(self, count, seed)

    def with_samples(self, count: int = DEFAULT_SAMPLES, seed: int = 0) -> Estimate:
        """Return the estimate with samples of what is uncertain, which its tables, records and columns then say."""
        other = copy(self)
        other.samples = self.sample(count, seed)
        return other

    def interval(self, share: float = SHARE, *, samples: int = DEFAULT_SAMPLES, seed: int = 0) -> Interval:
        """Return where the middle `share` of the step time's distribution lies (one layout only). [s]

        Raises
        ------
        CostModelError
            If the share is not between 0 and 1.
        """
        require_share(share)
        return self.sample(samples, seed).interval(share)

    @property
    def range_s(self) -> Interval:
        """Where 80 % of comparable published step times lie (one layout only). [s]

        p10 to p90 of samples where such runs are too few, where samples were asked for, and for a site with runs of its own.
        """
        band, step_s = self.error_band, float(self.step_time_s)
        if band is not None and self.samples is None:
            return Interval(step_s * band.low, step_s * band.high)
        return (self.samples or self.sample()).interval()

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and texts, as `--format json` prints it."""
        record = estimate_record(self, self.warnings, sorted(self.assumed))
        if self.is_planned:
            record |= {"layout_is_planned": True}
        return record if self.samples is None else {**record, "uncertainty": sample_record(self.samples)}

    def columns(self, form: str = "long") -> dict[str, list[Any]]:
        """Return the bill as columns: `long` has a row a line, `wide` a row a layout.

        Raises
        ------
        CostModelError
            If there is no such form.
        """
        if form not in _FORMS:
            raise CostModelError(f"form: {form!r} is unknown; {choices_hint(form, _FORMS)}")
        table = _FORMS[form](self)
        if form == "wide" and self.samples is not None:
            table |= sample_columns(self.samples)
        return table

    def to_frame(self, form: str = "long") -> pd.DataFrame:
        """Return the bill as a frame: `long` has a row a line, `wide` a row a layout."""
        import pandas as pd

        return pd.DataFrame(self.columns(form))


def assumed_sentences(job: Job, names: Collection[str]) -> list[str]:
    """Say what of a job nobody named, as its keywords."""
    values = {
        "cluster": job.cluster.name,
        "recipe": job.recipe.name,
        "precision": job.precision.name,
        "global_batch": f"{float(np.max(job.global_batch)):.0f}",
        "seq_len": f"{float(np.max(job.seq_len)):.0f}",
    }
    assumed = ", ".join(f"{name}={value}" for name, value in values.items() if name in names)
    return [f"Assumed: {assumed}."] if assumed else []


def require_estimate(who: str, value: Any, expected: str) -> Estimate:
    """Refuse what is no estimate, saying what is expected."""
    if not isinstance(value, Estimate):
        raise CostModelError(f"{who}: expected {expected}, got {shown(value)}")
    return value


def estimate_job(job: Job, *, every_stage: bool | None = None) -> Estimate:
    """Price a checked job."""
    single = job.layout.shape == ()
    with errors_with_device_name(job.cluster.accelerator.called):
        return Estimate(
            job, price_with_task_order(job, every_stage=single if every_stage is None else every_stage)
        )


def estimate(**job: Any) -> Estimate:
    """Price the job that keywords describe in full; see `costmodel.estimate`, which completes one."""
    return estimate_job(job_of(job, who="estimate"))
