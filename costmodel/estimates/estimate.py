"""`costmodel.estimate` and what it returns: a bill with the figures people ask for first."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from costmodel.base.answer import Answer
from costmodel.base.errors import CostModelError, choices_hint
from costmodel.base.words import called, errors_called
from costmodel.describe.hardware.cluster import Cluster
from costmodel.describe.jobs.fields import JOB_FIELDS
from costmodel.describe.jobs.job import Job, job_of
from costmodel.describe.jobs.keywords import JobKeywords
from costmodel.describe.jobs.merge import merge_jobs
from costmodel.describe.jobs.positional import file_and_keywords, file_keywords
from costmodel.describe.jobs.signature import shows
from costmodel.describe.models.model import Model
from costmodel.estimates.explain import Explanation, explain
from costmodel.estimates.frame import long_columns, wide_columns
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
from costmodel.estimates.tree import StepTree
from costmodel.estimates.warnings import warnings_of
from costmodel.step.price import price

if TYPE_CHECKING:
    import pandas as pd

_FORMS = {"long": long_columns, "wide": wide_columns}


class Estimate(PricedJob, Answer):
    """A priced job, or an array of them. Every figure comes from the lines of `bill`."""

    _device = "job.cluster.accelerator.called"

    samples: Samples | None = None
    """Samples of what is uncertain, where the estimate was asked for them."""

    @cached_property
    def warnings(self) -> list[str]:
        """Plain words about what is unusual or does not fit (one layout only)."""
        return [called(warning, self.device_word) for warning in warnings_of(self)]

    def explain(self, name: str = "") -> Explanation:
        """Open up lines of the bill: formula, numbers with units, steps, tier and source (one layout only).

        `name` is a line's, or the beginning of several (``"tp."``); all lines without. Prints as text, and shows as
        tables in a notebook.

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
        other = Estimate(self.job, self.priced)
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

    def tree(self) -> StepTree:
        """Return the step as a tree: stage, micro-batch, layer, operator (one layout only)."""
        return StepTree(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and texts, as `--format json` prints it."""
        record = estimate_record(self, self.warnings)
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


def estimate_job(job: Job, *, every_stage: bool | None = None) -> Estimate:
    """Price a checked job."""
    single = job.layout.shape == ()
    with errors_called(job.cluster.accelerator.called):
        return Estimate(job, price(job, every_stage=single if every_stage is None else every_stage))


@shows(JOB_FIELDS)
def estimate(
    model_or_job: str | Path | Model | None = None,
    machine: str | Cluster | None = None,
    /,
    **job: Unpack[JobKeywords],
) -> Estimate:
    """Price one training step of a job.

    Parameters
    ----------
    model_or_job, machine : optional
        Without their names: a model or the path of a job file, and a machine such as ``"256xH100"`` or a cluster.
    model : str or Model
        Preset, path of a model file or of a HuggingFace ``config.json``, or a `Model`.
    cluster : str or Cluster
        Shipped cluster, path of a profile, or a `Cluster`.
    gpus : array_like of int
        GPUs of the job. [-]
    layout : str, optional
        Degrees as text, ``"tp8 cp1 pp16 vp2"``; or as keywords below.
    global_batch : array_like of int
        Sequences a step. [-]
    seq_len : array_like of int
        Tokens a sequence. [-]
    precision : str
        Of the GEMMs: bf16, fp16, fp8-delayed, fp8-current, fp8-block, mxfp8, mxfp4, nvfp4, int8.
    recipe : str or Recipe
        Framework preset.
    switches : mapping, optional
        Single switches of the recipe to change.
    axis_order : str or sequence of str
        Order of the axes on the machine, innermost first.
    tokens : float, optional
        Tokens of the whole run, for days and GPU-hours.
    tp, cp, pp, vp, ep, etp, micro_batch, zero_stage, shard_group, recompute, schedule, sequence_parallel
        Degrees and choices of the layout: numbers, words, or arrays that broadcast.
    dp : int, optional
        Follows from the rest; where it is given, it is checked.
    pipeline_layout : str, optional
        Layers of every pipeline chunk, as Megatron-LM writes them: ``"Et*3|(tt|)*29,m|L"``.

    Notes
    -----
    The table of fields (`costmodel.describe.jobs.fields`) has ranges and defaults. Numbers may be texts
    (``seq_len="32k"``, ``tokens="15T"``); ``zero`` and ``set`` mean ``zero_stage`` and ``switches``.

    Returns
    -------
    Estimate
        With arrays among the arguments, every figure is an array.

    Raises
    ------
    CostModelError
        One line that names the field, the value and what is allowed.

    Examples
    --------
    >>> est = estimate("llama3-8b", "8xH100", tp=2, global_batch=64, seq_len=8192)
    >>> int(est.job.layout.dp), est.job.cluster.name
    (4, 'dgx-h100-ndr')
    """
    file, asked = file_and_keywords(model_or_job, machine, job, who="estimate")
    if file:
        asked = merge_jobs(file_keywords(file), asked)
    return estimate_job(job_of(asked, who="estimate"))
