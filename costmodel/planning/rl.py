"""Reinforcement learning as it is called: the price of a step, the split of its GPUs, and days and dollars of many steps."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costmodel.base.answer import Answer, columns_of
from costmodel.base.errors import CostModelError, NoLayoutError, NothingFitsError, shown
from costmodel.base.units import format_seconds
from costmodel.base.version import __version__
from costmodel.base.yaml_files import document_text
from costmodel.bill.quantity import Figure
from costmodel.describe.hardware.cluster import Cluster
from costmodel.describe.jobs.fields import JOB_FIELDS, RL_FIELDS, names, shows
from costmodel.describe.jobs.job import expand_layout
from costmodel.describe.jobs.layout_text import layout_text
from costmodel.describe.jobs.merge import RL_SECTION, names_no_degree, read_job_text
from costmodel.describe.jobs.reading import keywords, read
from costmodel.describe.jobs.short_form import changed_switches, flags_of
from costmodel.describe.models.model import Model
from costmodel.describe.recipe import switch_text
from costmodel.estimates.record import SCHEMA_VERSION
from costmodel.generation.phases import training_batch
from costmodel.generation.rl_estimate import RLEstimate, estimate_rl_job
from costmodel.generation.rl_job import RLJob, rl_job_of
from costmodel.interop.answer import RL_NAMES, rl_fields
from costmodel.planning.entry import candidates
from costmodel.planning.preference import TIE_SHARE

_PARTS = 16
"""Sequences of so many tokens, or multiples of them, divide among ranks of tensor and context parallelism. [-]"""
_FINALISTS = 2
_LAYOUTS = 8
"""Layouts that train, the fastest and those that leave more room each, of which the whole step decides."""
_SPLITS = 24
_TOO_LARGE = "a half does not fit its memory"


@dataclass(frozen=True, repr=False)
class RLPlan(Answer):
    """Splits of the GPUs, the fastest step first."""

    _device = "best.device_word"

    found: tuple[RLEstimate, ...]
    impossible: int
    """Splits that were left out: they do not fit, or layouts do not divide them."""
    request: Mapping[str, Any]
    """Keywords that were given."""

    def __repr__(self) -> str:
        """Return the number of splits, and the best."""
        one = self.best.job
        split = f"{one.train_gpus:,} train, {one.generation_gpus or one.gpus:,} generate, lag {one.lag:g}"
        return f"RLPlan({len(self.found):,} splits; best: {split}, {layout_of(self.best)}: {self.best!r})"

    @property
    def best(self) -> RLEstimate:
        """The fastest."""
        return self.found[0]

    @property
    def switches(self) -> str:
        """Switches of the best that differ from its recipe's, as text."""
        return switches_of(self.best)

    def job_fields(self) -> dict[str, Any]:
        """Return the best as the keys of a job file: those that were given, and what the plan decided."""
        job = self.best.job
        decided = {
            name: value for name, value in job.training.items() if name not in ("model", "cluster", "gpus")
        }
        apart = {"generation_gpus": job.generation_gpus, "lag": job.lag} if job.generation_gpus else {}
        engine = {"generation_layout": f"tp{float(job.split.tp):.0f}"} if job.generates else {}
        found = {**engine, **expand_layout(self.request), **decided, **apart}
        return {name: _plain(value) for name, value in found.items() if value is not None}

    def job_file(self) -> str:
        """Return the best split as a job file; it is priced again first.

        Raises
        ------
        CostModelError
            If a file cannot say the job: a model, cluster or recipe that was composed in code.
        """
        fields = self.job_fields()
        section = {name: fields.pop(name) for name in [*fields] if name in RL_NAMES}
        text = document_text({**fields, RL_SECTION: section})
        try:
            back = estimate_rl_job(rl_job_of(read_job_text(text, "job file"), who="plan_rl"))
        except CostModelError as error:
            raise CostModelError(f"emit: a job file cannot say this job ({error})") from None
        if not math.isclose(back.step_time_s, self.best.step_time_s, rel_tol=1e-12):
            raise CostModelError(
                "emit: a job file cannot say this job: its model, cluster or recipe is not the one under its name"
            )
        return text

    def records(self) -> list[dict[str, Any]]:
        """Return a record a split."""
        of_job = ("train_gpus", "generation_gpus", "lag")
        return [
            {
                **{name: getattr(found.job, name) for name in of_job},
                "training_layout": layout_of(found),
                "training_switches": switches_of(found),
                "generation_tp": int(float(found.job.split.tp)),
                "step_time_s": found.step_time_s,
                "training_s": found.seconds_of("training"),
                "generation_s": found.seconds_of("generation"),
                "latency_s": found.answer_latency_s,
                **{
                    name: getattr(found, name)
                    for name in ("waiting_s", "tokens_per_s_per_gpu", "usd_per_step")
                },
            }
            for found in self.found
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the splits as plain numbers."""
        head = {"schema_version": SCHEMA_VERSION, "version": __version__, "impossible": self.impossible}
        return {**head, "job": self.job_fields(), "splits": self.records()}

    def columns(self) -> dict[str, list[Any]]:
        """Return a row a split."""
        return columns_of(self.records())


def layout_of(found: RLEstimate) -> str:
    """Return the degrees of the half that trains, such as ``tp2 pp2``."""
    return layout_text(found.training.job.layout)


def switches_of(found: RLEstimate) -> str:
    """Return the switches of the half that trains that differ from its recipe's, as text."""
    changed = changed_switches(found.training.job)
    return " ".join(f"{name}={switch_text(value)}" for name, value in changed.items())


def _plain(value: Any) -> Any:
    """Return a value as a job file has it: what is named by its name, a file by its whole path."""
    if isinstance(value, Mapping):
        return {name: list(item) if isinstance(item, tuple) else item for name, item in value.items()}
    if isinstance(value, str) and value.endswith((".yaml", ".yml", ".json", ".txt", ".csv")):
        return os.path.realpath(value)
    return list(value) if isinstance(value, tuple) else getattr(value, "name", value)


def layouts_of(found: RLEstimate, halves: Iterable[str] = ("training", "generation")) -> str:
    """Return the layouts of the halves, such as ``training tp2 dp8, generation tp4``."""
    layouts = {
        "training": layout_text(found.training.job.layout).partition(",")[0],
        "generation": found.job.split.text,
    }
    return ", ".join(f"{half} {layouts[half]}" for half in halves)


def better_rl(found: RLEstimate, job: Mapping[str, Any]) -> str:
    """Compare a step whose layouts nobody named with the best of `plan_rl` on the same split; empty where all are named."""
    is_open = {
        "training": names_no_degree(job),
        "generation": found.job.generates and not job.get("generation_layout"),
    }
    if not any(is_open.values()):
        return ""
    assumed = f"Assumed layouts: {layouts_of(found, [half for half in is_open if is_open[half]])}."
    try:
        planned = plan_rl(**{**job, "generation_gpus": found.job.generation_gpus})
    except CostModelError as error:
        return f"{assumed} No other fits: {error}."
    best = planned.best
    gain = best.step_time_s / found.step_time_s - 1.0
    if found.fits and gain > -TIE_SHARE:
        return f"{assumed} No other is {TIE_SHARE:.1%} faster on these GPUs."
    best_of = "Best" if found.fits else "Best that fits"
    step = f"{format_seconds(best.step_time_s, 4)} a step ({gain:+.1%})"
    return f"{assumed} {best_of} on these GPUs: {step}, {layouts_of(best)}: {_flags_over(planned.job_fields(), job)}"


def _flags_over(best: Mapping[str, Any], job: Mapping[str, Any]) -> str:
    """Return the flags that make the best of a job: all that the plan decided of the half that trains.

    The engine's layout follows from it, as it does in the plan.
    """
    given = expand_layout(job)
    theirs = given.get("switches") or {}
    flags = []
    for name in names(JOB_FIELDS):
        value = best.get(name)
        if name == "switches":
            value = {switch: one for switch, one in (value or {}).items() if theirs.get(switch) != one}
        elif given.get(name) is not None:
            continue
        if value not in (None, {}):
            flags += flags_of(name, value)
    return shlex.join(flags)


def _planned_layouts(job: RLJob) -> list[dict[str, Any]]:
    """Return layouts that `costmodel.plan` finds for the GPUs that train, on the batch of one optimizer step, the best first."""
    ranks = math.gcd(job.train_gpus, 2 ** max(int(math.log2(max(job.answers / job.optimizer_steps, 1.0))), 0))
    fields = {**job.training, **training_batch(job, min(ranks, job.train_gpus), _PARTS)}
    return candidates({name: value for name, value in fields.items() if value is not None}, _LAYOUTS)


def _splits(job: RLJob, fields: Mapping[str, Any]) -> Iterator[int]:
    """Yield how many GPUs may only generate: as given, or none and every share that fills nodes."""
    if fields.get("generation_gpus") is not None or not job.generates:
        yield job.generation_gpus
        return
    yield 0
    node = min(int(job.cluster.gpus_per_node), max(job.gpus // 4, 1))
    unit = node * max(job.gpus // node // _SPLITS, 1)
    yield from range(unit, job.gpus, unit)


@shows((*JOB_FIELDS, *RL_FIELDS))
def estimate_rl(
    model_or_job: str | Path | Model | None = None,
    machine: str | Cluster | None = None,
    /,
    **job: Any,
) -> RLEstimate:
    """Price one step of reinforcement learning: answers are generated, scored and trained on.

    Takes the keywords of `costmodel.estimate` for the GPUs that train, without the batch and with `seq_len` as the
    capacity of a packed sequence, and those of the section ``rl`` of a job file.

    Parameters
    ----------
    model_or_job, machine : optional
        As for `costmodel.estimate`.
    prompts, samples_per_prompt : int
        Prompts a step, and answers to each. [-]
    prompt_len, response_len, max_response_len : float
        Mean tokens of a prompt and of an answer, and the limit of an answer. [-]
    generation_gpus : int
        GPUs that only generate; 0 where all train and generate in turn. [-]
    lag : float
        Steps by which the generating policy may be older than the trained one. [-]

    Returns
    -------
    RLEstimate

    Raises
    ------
    CostModelError
        One line that names the field, the value and what is allowed.

    Examples
    --------
    >>> import costmodel as cm
    >>> found = cm.estimate_rl(model="llama3-8b", gpus=16, layout="pp2", recompute="full", prompts=64,
    ...     samples_per_prompt=32, prompt_len=130, response_len=1060, max_response_len=3966, optimizer_steps=4)
    >>> found.fits, bool(60 < found.step_time_s < 130)
    (True, True)
    """
    return estimate_rl_job(
        rl_job_of(rl_fields(model_or_job, machine, job, who="estimate_rl"), who="estimate_rl")
    )


@shows((*JOB_FIELDS, *RL_FIELDS))
def plan_rl(
    model_or_job: str | Path | Model | None = None,
    machine: str | Cluster | None = None,
    /,
    **job: Any,
) -> RLPlan:
    """Find the split of the GPUs between training and generation, and the layouts of both halves.

    Takes the keywords of `costmodel.estimate_rl`. What is given stays: `generation_gpus`, `generation_layout`, `lag`
    (1 where GPUs are apart and none is given) and a layout that trains, whose replicas follow from the GPUs. Where no
    degree of it is named, `costmodel.plan` finds it for all GPUs; splits are ranked with that, and the first ones are
    priced again with the plan for the GPUs that train in them: of its best layouts, and of those that take less memory, the
    one with the shortest whole step counts.

    Raises
    ------
    NoLayoutError
        If no split fits.
    CostModelError
        One line that names the field, the value and what is allowed.
    """
    request: Mapping[str, Any] = keywords(
        rl_fields(model_or_job, machine, job, who="plan_rl"), (*JOB_FIELDS, *RL_FIELDS), who="plan_rl"
    )
    fixed = {name: value for name, value in request.items() if name not in ("lag", "generation_gpus")}
    refusals: list[str] = []

    def job_of(count: int, **half: Any) -> RLJob:
        lag = {"lag": request["lag"]} if count and request.get("lag") is not None else {}
        return rl_job_of({**fixed, **half, **lag, "generation_gpus": count}, who="plan_rl")

    def step_at(count: int, half: Mapping[str, Any]) -> RLEstimate | None:
        """Return the step with so many GPUs that only generate, none where it does not fit."""
        try:
            made = estimate_rl_job(job_of(count, **half))
        except CostModelError as error:
            refusals.append(str(error))
            return None
        if made.fits:
            return made
        refusals.append(_TOO_LARGE)
        return None

    first = job_of(request.get("generation_gpus") or 0)
    is_open = names_no_degree(request)
    halves = _planned_layouts(first) if is_open else [{}]

    def first_at(count: int) -> RLEstimate | None:
        """Return the step with the best of the layouts that train which runs at all on the GPUs that are left."""
        return next((made for half in halves if (made := step_at(count, half)) is not None), None)

    found = [made for count in _splits(first, request) if (made := first_at(count)) is not None]
    found.sort(key=lambda each: each.step_time_s)
    for number, before in enumerate(found[:_FINALISTS] if is_open else []):
        count = before.job.generation_gpus
        own = halves if before.job.train_gpus == first.train_gpus else _planned_layouts(job_of(count))
        tried = [made for half in own if (made := step_at(count, half)) is not None]
        found[number] = min([before, *tried], key=lambda each: each.step_time_s)
    if not found:
        kind = NothingFitsError if _TOO_LARGE in refusals else NoLayoutError
        raise kind(f"plan_rl: no split of {first.gpus:,} GPUs works; the last one: {refusals[-1]}")
    return RLPlan(tuple(sorted(found, key=lambda each: each.step_time_s)), len(refusals), request)


@dataclass(frozen=True, repr=False)
class RLRun(Answer):
    """A campaign: so many steps, without what failures take."""

    _device = "step.device_word"

    step: RLEstimate
    steps: int

    def __repr__(self) -> str:
        """Return steps and days in one line."""
        return f"RLRun({self.steps:,} steps, {self.days:,.2f} days, {self.gpu_hours:,.0f} GPU-hours; {self.step!r})"

    days = Figure("steps * step_s / 86400", "Days of all steps. [d]", step_s="step.step_time_s")
    gpu_hours = Figure(
        "days * 24 * gpus", "GPU-hours of all steps, waiting included. [h]", gpus="step.job.gpus"
    )

    @property
    def dollars(self) -> float | None:
        """Dollars of all steps, none where the cluster has no price. [USD]"""
        each = self.step.usd_per_step
        return None if each is None else self.steps * each

    @property
    def days_range(self) -> tuple[float, float]:
        """Days of all steps at the ends of the step's range. [d]"""
        low, high = (self.steps * step_s / 86400.0 for step_s in self.step.range_s)
        return low, high

    @property
    def dollars_range(self) -> tuple[float, float] | None:
        """Dollars at the ends of the step's range, none where the cluster has no price. [USD]"""
        if self.dollars is None:
            return None
        low, high = (self.dollars * days / self.days for days in self.days_range)
        return low, high

    def _record(self) -> dict[str, Any]:
        job = self.step.job
        answers = self.steps * job.answers
        return {
            "steps": self.steps,
            "answers": answers,
            "generated_tokens": answers * job.rollout_factor * job.lengths.mean,
            "step_time_s": self.step.step_time_s,
            **{name: getattr(self, name) for name in ("days", "gpu_hours", "dollars")},
            **dict(zip(("days_low", "days_high"), self.days_range, strict=True)),
            **dict(zip(("dollars_low", "dollars_high"), self.dollars_range or (None, None), strict=True)),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the figures with those of the step."""
        head = {"schema_version": SCHEMA_VERSION, "version": __version__}
        return {**head, **self._record(), "step": self.step.to_dict()}

    def columns(self) -> dict[str, list[Any]]:
        """Return one row."""
        return columns_of([self._record()])


@shows((*JOB_FIELDS, *RL_FIELDS))
def run_rl(
    model_or_job: str | Path | Model | int | None = None,
    machine: str | Cluster | None = None,
    /,
    *,
    steps: int | str | None = None,
    **job: Any,
) -> RLRun:
    """Price so many steps of reinforcement learning: days, GPU-hours and dollars.

    Parameters
    ----------
    model_or_job, machine : optional
        As for `costmodel.estimate`; a number is that of the steps.
    steps : int
        Of reinforcement learning. [-]
    **job
        Keywords of `costmodel.estimate_rl`.

    Raises
    ------
    CostModelError
        One line that names the field, the value and what is allowed.
    """
    if steps is None and isinstance(model_or_job, int):
        steps, model_or_job = model_or_job, None
    try:
        count = read("prompts", steps)
    except CostModelError:
        raise CostModelError(
            f"steps: expected a whole number from 1 to 100,000,000, got {shown(steps)}"
        ) from None
    fields = rl_fields(model_or_job, machine, job, who="run_rl")
    return RLRun(estimate_rl_job(rl_job_of(fields, who="run_rl")), count)
