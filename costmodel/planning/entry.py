"""The calls `estimate`, `run` and `generate`: a job from a file, words and keywords, completed by one rule behind every door.

A batch or a sequence length that nobody names is the usual one. Where no degree of the layout is named, it is data
parallelism alone, and the planner's best where that does not fit or does not divide the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from costmodel.base.errors import CostModelError, LayoutError
from costmodel.base.units import format_bytes, format_seconds
from costmodel.describe.hardware.cluster import Cluster
from costmodel.describe.jobs.fields import (
    FIELD,
    GENERATE_FIELDS,
    JOB_FIELDS,
    LAYOUT_FIELDS,
    PLAN_FIELDS,
    RUN_FIELDS,
    Field,
    names,
    shows,
)
from costmodel.describe.jobs.job import BALANCED, job_of
from costmodel.describe.jobs.layout_text import layout_text
from costmodel.describe.jobs.merge import merge_jobs, names_no_degree, unnamed, usual_batch
from costmodel.describe.jobs.positional import file_and_keywords
from costmodel.describe.jobs.reading import keywords, require_complete
from costmodel.describe.jobs.short_form import short_form
from costmodel.describe.models.model import Model
from costmodel.estimates.estimate import Estimate, estimate_job
from costmodel.interop.answer import JobFile, job_of_file

if TYPE_CHECKING:
    from costmodel.generation.generate import Generation
    from costmodel.planning.plan import Plan
    from costmodel.whole_run.run import TrainingRun

_DECIDED = ("layout", "switches", "axis_order", "pipeline_layout", *names(LAYOUT_FIELDS))
"""What a plan decides of a job."""


def planned(job: Mapping[str, Any]) -> Plan:
    """Return the plan of a job whose degrees are open; what else it names is kept to."""
    from costmodel.planning.plan import plan  # as much to import as the rest of an estimate

    known = names(PLAN_FIELDS)
    return plan(**{name: value for name, value in job.items() if name in known and value is not None})


def candidates(job: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Return what the best layouts of a plan decide, and those that take less memory, as keywords of a job: `count` each."""
    found = planned({name: job[name] for name in names(JOB_FIELDS) if name in job})
    front = found.pareto()
    spread = [front[round(at)] for at in np.linspace(0, len(front) - 1, min(count, len(front)))]
    return [_decided_of(est) for est in dict.fromkeys([*found.top(count), *spread])]


def _decided_of(est: Estimate) -> dict[str, Any]:
    return {name: value for name, value in short_form(est.job).items() if name in _DECIDED}


def _completed(
    job: object, machine: object, flags: Mapping[str, Any], fields: Iterable[Field], who: str
) -> tuple[dict[str, Any], frozenset[str], tuple[str, ...]]:
    """Return the keywords of a job with what is usual, the fields that nobody named, and what was not understood."""
    file, named = job_of_file(*file_and_keywords(job, machine, flags, who=who))
    named = merge_jobs(file.keywords, keywords(named, fields, who=who))
    least = {"global_batch": 1, "seq_len": 1, **({"gpus": 1} if who == "run" else {})}
    require_complete({**least, **named}, who=who, remarks=(*file.remarks, *file.notes))
    return {**named, **usual_batch(named)}, unnamed(named), file.remarks


def _estimate(job: Mapping[str, Any]) -> Estimate:
    """Price a complete job; where no degree is named and data parallelism does not do, as the planner has it.

    What the planner chooses is more than numbers, so that arrays of jobs that need it have no one answer.
    """
    try:
        est = estimate_job(job_of(job, who="estimate"))
    except LayoutError:
        if not names_no_degree(job) or any(np.ndim(value) for value in job.values()):
            raise
        return _as_planned(job)
    if not names_no_degree(job) or np.all(est.fits):
        return est
    if est.shape:
        fits = np.broadcast_to(est.fits, est.shape)
        raise LayoutError(
            f"layout: none is named, and data parallelism alone does not fit {np.count_nonzero(~fits)} of {fits.size} jobs, "
            "each of which has a best of its own: ask for one at a time, or name a degree (tp=1 for data parallelism alone)"
        )
    try:
        return _as_planned(job)
    except CostModelError:
        return est


def _as_planned(job: Mapping[str, Any]) -> Estimate:
    found = planned({name: job[name] for name in names(JOB_FIELDS) if name in job})
    est = estimate_job(job_of({**job, **_decided_of(found.best)}, who="estimate"))
    est.is_planned, est.chosen = True, found.columns(1)["choices"][0]
    if est.job.balanced_stages and not job.get("pipeline_layout"):
        est.chosen = ", ".join(text for text in (est.chosen, f"pipeline_layout={BALANCED}") if text)
    return est


class Alternative(NamedTuple):
    """The pick of the planner for a job whose layout nobody named, or why there is none."""

    est: Estimate | None = None
    command: str = ""
    refusal: str = ""

    def sentence(self, assumed: Estimate) -> str:
        """Compare with what was assumed, data parallelism alone."""
        from costmodel.planning.preference import TIE_SHARE

        if self.est is None:
            return f"Nor does another layout fit: {self.refusal}." if self.refusal else "No plan was made."
        ours, theirs = float(assumed.step_time_s), float(self.est.step_time_s)
        if theirs >= (1.0 - TIE_SHARE) * ours:
            return f"No layout was named; no other is {TIE_SHARE:.1%} faster than {layout_text(assumed.job.layout)}."
        memory = format_bytes(float(self.est.memory_bytes_per_gpu))
        return f"No layout was named. Best: {format_seconds(theirs, 4)} a step ({theirs / ours - 1.0:+.1%}), {memory}:"

    def record(self) -> dict[str, Any] | None:
        """Return the pick as numbers and texts, none where there is none."""
        if self.est is None:
            return None
        return {
            "job": short_form(self.est.job),
            "step_time_s": float(self.est.step_time_s),
            "memory_bytes_per_gpu": float(self.est.memory_bytes_per_gpu),
            "command": self.command,
        }


def alternative(job: Mapping[str, Any], file: JobFile | None = None) -> Alternative:
    """Plan a job whose degrees were left open; a command names the `file` that it is from."""
    try:
        found = planned(job)
    except CostModelError as error:
        return Alternative(refusal=str(error).removeprefix("plan: "))
    return Alternative(found.best, replace(found.question, file=file).command_of(found.best.job))


@shows(JOB_FIELDS)
def estimate(
    model_or_job: str | Path | Model | None = None,
    machine: str | Cluster | None = None,
    /,
    **named: Any,
) -> Estimate:
    """Price one training step of a job.

    A batch and a sequence length that nobody names are the usual ones. Where no degree of the layout is named, it is data
    parallelism alone, and the planner's best where that does not fit (of arrays, which have no one best, a refusal).
    `Estimate.assumptions` says what was assumed.

    Parameters
    ----------
    model_or_job, machine : optional
        Without their names: a model or a file of any kind that `costmodel.read` reads, and a machine such as
        ``"256xH100"`` or a cluster.
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
        Of the GEMMs: bf16, fp16, fp8-delayed, fp8-current, fp8-rowwise, fp8-block, mxfp8, mxfp4, nvfp4, int8.
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

    kind, env, vocab_size, allow_source : optional
        How to read a file, as for `costmodel.read`.

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
    job, assumed, notes = _completed(model_or_job, machine, named, JOB_FIELDS, "estimate")
    est = _estimate(job)
    est.assumed, est.notes = assumed, notes
    return est


_RUN_FIELDS = (*JOB_FIELDS, FIELD["dollars"], FIELD["days"], *RUN_FIELDS)


@shows(_RUN_FIELDS)
def run(
    model_or_job: str | Path | Model | None = None,
    machine: str | Cluster | None = None,
    /,
    *,
    changes: Mapping[str, Any] | None = None,
    **named: Any,
) -> TrainingRun:
    """Price a whole training run; or solve for how far to train, or on how many GPUs.

    The job is completed as for `costmodel.estimate`.

    Parameters
    ----------
    model_or_job, machine : optional
        As for `costmodel.estimate`.
    tokens : float or str, optional
        Tokens to train on; without them as many as `dollars` pay for and `days` allow. [-]
    dollars : float or str, optional
        To spend, without `tokens`; with them a limit: `TrainingRun.within` says what is left and how surely. [USD]
    days : float, optional
        Calendar days, without `tokens`; with `tokens` and without `gpus`, replicas are added until it is
        done in time; with both a limit. [d]
    reliability : str or Reliability
        Published failure rates: llama3, rsc-1, rsc-2, megascale, opt-175b, bloom or none.
    changes : mapping, optional
        Fields of `costmodel.describe.reliability.Reliability` to change; the usual ones are keywords too.
    failures_per_node_day, failures_per_gpu_day : float, optional
        Interruptions for each eight GPUs, or each GPU, and day. [1/d]
    checkpointing : str, optional
        blocking, async or replica.
    checkpoint_interval_s, detection_s, restart_s, repair_s : float or str, optional
        Times in seconds, or texts such as ``"15min"``. [s]
    spare_nodes : int, optional
        Nodes kept ready; as many as it takes where not given. [-]
    price_usd_per_gpu_hour : float or mapping, optional
        In place of the cluster's dated price; by cluster with a mapping. [USD/h]
    pue : float, optional
        In place of the cluster's. [-]
    storage_bytes_per_s : float or str, optional
        What the file system takes and gives in all, in place of the cluster's. [B/s]
    samples, seed : int
        Of the Monte Carlo behind `TrainingRun.spread`. [-]
    **requested
        The job, as for `costmodel.estimate`.

    Returns
    -------
    TrainingRun
        Days, GPU-hours, energy and dollars, with the losses as lines of its bill.

    Raises
    ------
    CostModelError
        One line that names the field, the value and what is allowed.
    """
    from costmodel.whole_run import solve

    fields, assumed, notes = _completed(model_or_job, machine, named, _RUN_FIELDS, "run")
    is_planned, chosen = False, ""
    if names_no_degree(fields) and fields.get("gpus") is not None:
        est = _estimate({name: fields[name] for name in names(JOB_FIELDS) if name in fields})
        is_planned, chosen = est.is_planned, est.chosen
        fields |= _decided_of(est) if is_planned else {}
    found = solve.run(changes=changes, **fields)
    if fields.get("gpus") is None and names_no_degree(fields):
        _require_room(found.est)
    named_rates = {"reliability", "failures_per_node_day", "failures_per_gpu_day"} & {
        *fields,
        *(changes or {}),
    }
    assumed |= set() if named_rates else {"reliability"}
    assumed |= {"spare_nodes"} if not found.pays_spares and found.spare_nodes else set()
    found.est.assumed, found.est.notes = assumed, notes
    found.est.is_planned, found.est.chosen = is_planned, chosen
    return found


def _require_room(est: Estimate) -> None:
    """Refuse a layout that nobody named and that does not fit."""
    if not est.fits:
        raise CostModelError(
            f"layout: none is named, and {layout_text(est.job.layout)} needs "
            f"{format_bytes(float(est.memory_bytes_per_gpu))} of {format_bytes(est.memory_capacity_bytes)} a GPU; "
            "name one, or gpus for costmodel plan to find one"
        )


@shows(GENERATE_FIELDS)
def generate(
    model_or_job: str | Path | Model | None = None,
    machine: str | Cluster | None = None,
    /,
    **fields: Any,
) -> Generation:
    """Price a batch of prompts that an inference engine answers.

    Parameters
    ----------
    model_or_job, machine : optional
        Without their names: a model or a file of any kind that `costmodel.read` reads, of which model, machine and
        price count, and a machine such as ``"8xH100"`` or a cluster.
    model, cluster, gpus
        As in `costmodel.estimate`.
    layout : str, optional
        Of one replica, such as ``"tp8"`` or ``"tp8 ep16 dp2"`` (dp: groups of tp GPUs that attend to sequences of
        their own and share the experts); by default the one that yields the most tokens a second.
    precision : str, optional
        How weights are stored: bf16, fp8, int8, nvfp4, mxfp4.
    prompt_len, response_len : float, optional
        Tokens of prompts and of answers, on average. [-]
    batch : float, optional
        Sequences that are answered together on all GPUs; by default as many as fit. [-]
    engine : str, optional
        vllm, vllm-sync (before 0.14), sglang, trtllm or any.
    memory_fraction : float, optional
        Share of the GPU's memory that the engine takes. [-]
    max_running : int, optional
        Sequences that the engine of a replica runs together at most. [-]
    cuda_graphs : bool, optional
        Whether decode steps are replayed as one graph.
    price_usd_per_gpu_hour : float, optional
        By default the profile's. [USD/h]

    Returns
    -------
    Generation
        Its `itl_s` is the sum of its bill's lines.

    Raises
    ------
    NoLayoutError
        If no layout holds the model and one whole sequence.
    CostModelError
        One line that names the field, the value and what is allowed.

    Examples
    --------
    >>> found = generate(model="llama3-8b", cluster="h100", gpus=8, prompt_len=128, response_len=512, batch=64)
    >>> found.running, 0.002 < found.itl_s < 0.012
    (64.0, True)
    """
    from costmodel.generation.generate import generation_of

    file, flags = job_of_file(*file_and_keywords(model_or_job, machine, fields, who="generate"))
    # A job file's layout is that of training.
    taken = {*names(GENERATE_FIELDS)} - {"layout"}
    below = {name: value for name, value in file.keywords.items() if name in taken}
    return generation_of({**below, **keywords(flags, GENERATE_FIELDS, who="generate")})
