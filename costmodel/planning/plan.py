"""`costmodel.plan`: the best layout of all that divide and fit, the runners-up, and why the rest is out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from costmodel.base.answer import Answer
from costmodel.base.errors import LayoutError, choices_hint
from costmodel.base.version import __version__
from costmodel.describe.jobs.job import DEFAULT_CLUSTER, DEFAULT_RECIPE, Job, make_job
from costmodel.describe.jobs.layout_text import value_text
from costmodel.describe.recipe import load_recipe
from costmodel.estimates.record import SCHEMA_VERSION, input_record
from costmodel.interop.emit import values_that_run
from costmodel.physics.network.mesh import DEFAULT_ORDER
from costmodel.planning.advice import advice, relaxed_gains, why_not
from costmodel.planning.found import KEPT, Found, Progress
from costmodel.planning.search import OBJECTIVES, Question
from costmodel.planning.space import read_values

if TYPE_CHECKING:
    from costmodel.describe.hardware.cluster import Cluster
    from costmodel.describe.models.model import Model
    from costmodel.describe.recipe import Recipe


class Plan(Found, Answer):
    """The answer of a search: the best layouts, the front, and why the others are out."""

    def why_not(self, layout: str | Mapping[str, Any], job: int = 0) -> str:
        """Say why a layout is not the plan: impossible, too large, or slower and by what."""
        return why_not(self, layout, job)

    def advice(self) -> list[str]:
        """Explain the pick in a few sentences with numbers from bills."""
        return advice(self)

    def gains(self) -> list[tuple[str, float]]:
        """Return each of the user's constraints with the share of step time that dropping it would save. [-]"""
        return relaxed_gains(self)

    def to_dict(
        self,
        *,
        count: int = 10,
        gains: Sequence[tuple[str, float]] = (),
        answers: Sequence[tuple[str, str]] = (),
    ) -> dict[str, Any]:
        """Return a plan as numbers, texts and lists of them.

        Parameters
        ----------
        count : int
            Of the best layouts. [-]
        gains : sequence of (str, float)
            What `gains` says, where that was asked for.
        answers : sequence of (str, str)
            Layouts, and what `why_not` says about them.
        """
        best, tail = self.best, self.top(count)
        top = _records(self.columns(count))
        for row, est in zip(top, tail, strict=True):
            for what in ("toll", "axis"):
                row[f"exposed_s_by_{what}"] = {
                    name: float(seconds) for name, seconds in est.exposed_by(what).items()
                }
        return {
            "schema_version": SCHEMA_VERSION,
            "version": __version__,
            "objective": self.question.objective,
            "inputs": input_record(best.job),
            "num_layouts_considered": self.num_considered,
            "num_layouts_priced": self.num_priced,
            "num_layouts_fit": self.num_fit,
            "rejected": dict(self.rejected.most_common()),
            "top": top,
            "pareto": _records(self.pareto_columns()),
            "relaxed_gain_by_constraint": dict(gains),
            "advice": self.advice(),
            "why_not": dict(answers),
        }

    def __repr__(self) -> str:
        return f"Plan({self.num_priced:,} layouts priced, {self.num_fit:,} fit; best: {self.best!r})"


def _records(table: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Turn columns into a record a row."""
    return [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]


def search(question: Question, *, keep: int = KEPT, progress: Progress | None = None) -> Plan:
    """Answer a question; see `Found.search`."""
    return Plan.search(question, keep=keep, progress=progress)


def make_question(
    *,
    model: str | Model,
    cluster: str | Cluster | Sequence[str | Cluster] = DEFAULT_CLUSTER,
    gpus: ArrayLike,
    global_batch: ArrayLike,
    seq_len: int,
    precision: str | Sequence[str] = "bf16",
    recipe: str | Recipe = DEFAULT_RECIPE,
    switches: Mapping[str, Any] | None = None,
    axis_order: str | Sequence[str] = DEFAULT_ORDER,
    offload_optimizer: bool | Sequence[bool] | None = None,
    tokens: float | None = None,
    objective: str = "step-time",
    max_memory_bytes: float = np.inf,
    headroom: float = 0.0,
    tp_in_domain: bool | None = None,
    fix: Mapping[str, Any] | None = None,
    framework: str = "",
    **values: Any,
) -> Question:
    """Check what a plan is asked and make the jobs it searches over; see `plan` for the parameters."""
    if objective not in OBJECTIVES:
        raise LayoutError(f"objective: {objective!r} is unknown; {choices_hint(objective, OBJECTIVES)}")
    if not 0.0 <= headroom < 1.0:
        raise LayoutError(f"headroom: expected a share from 0 to below 1, got {headroom!r}")
    if not max_memory_bytes > 0.0:
        raise LayoutError(f"max_memory: expected a positive amount of memory, got {max_memory_bytes!r}")
    given = {knob: read_values(knob, value) for knob, value in values.items() if value is not None}
    for knob, value in (fix or {}).items():
        fixed = read_values(knob, value)
        if knob in given and not set(fixed) <= set(given[knob]):
            asked = ", ".join(f"{number:g}" for number in given[knob])
            raise LayoutError(f"{knob}: fixed to {value}, but only {asked} is allowed")
        given[knob] = fixed
    if framework:
        runs = {knob: read_values(knob, value) for knob, value in values_that_run(framework).items()}
        for knob, values_asked in given.items():
            beyond = sorted(set(values_asked) - set(runs.get(knob, values_asked)))
            if beyond:
                allowed = ", ".join(value_text(knob, value) for value in runs[knob])
                raise LayoutError(
                    f"{knob}: {framework} does not launch {value_text(knob, beyond[0])}; it has {allowed}"
                )
        given = {**runs, **given}
    base = load_recipe(recipe) if isinstance(recipe, str) else recipe
    offloads = [None] if offload_optimizer is None else np.atleast_1d(np.asarray(offload_optimizer)).tolist()
    orders = (
        [axis_order] if isinstance(axis_order, str) or axis_order[0] in DEFAULT_ORDER else list(axis_order)
    )
    clusters = list(cluster) if isinstance(cluster, (list, tuple)) else [cluster]
    precisions = [precision] if isinstance(precision, str) else list(precision)
    jobs: list[Job] = []
    combinations = product(
        clusters,
        precisions,
        offloads,
        orders,
        np.atleast_1d(np.asarray(gpus)).tolist(),
        np.atleast_1d(np.asarray(global_batch)).tolist(),
    )
    for one_cluster, one_precision, offload, order, count, batch in combinations:
        offloaded = {} if offload is None else {"offload_optimizer": bool(offload)}
        job = make_job(
            model=model if not jobs else jobs[0].model,
            cluster=one_cluster,
            gpus=count,
            global_batch=batch,
            seq_len=seq_len,
            precision=one_precision,
            recipe=base,
            switches={**(switches or {}), **offloaded},
            axis_order=order,
            tokens=tokens,
            check=False,
        )
        largest = job.cluster.tiers[-1].size
        if count > largest:
            raise LayoutError(f"gpus: {count} is more than cluster {job.cluster.name} can hold ({largest})")
        jobs.append(job)
    # Naming the values of tp is asking for them, beyond the domain or not.
    inside = "tp" not in given if tp_in_domain is None else tp_in_domain
    question = Question(
        jobs=tuple(jobs),
        given=given,
        max_memory_bytes=max_memory_bytes,
        headroom=headroom,
        objective=objective,
        tp_in_domain=inside,
    )
    for job in jobs:
        question.weight(job)
    return question


def plan(*, keep: int = KEPT, progress: Progress | None = None, **asked: Any) -> Plan:
    """Find the best layout of a job by pricing every one that divides.

    Parameters
    ----------
    model, cluster, gpus, global_batch, seq_len, precision, recipe, switches, axis_order, tokens
        As in `costmodel.estimate`. Lists of clusters, gpus, batches, precisions or axis orders
        are searched together.
    offload_optimizer : bool or sequence of bool, optional
        Optimizer states on the CPU; both to let the search choose. Default: the recipe's.
    objective : str
        One of `OBJECTIVES`: step-time, mfu, tokens-per-dollar, gpu-hours.
    max_memory_bytes : float
        Memory limit beside what the device offers. [B]
    headroom : float
        Share of the device's memory to leave free. [-]
    tp_in_domain : bool
        Keep tensor parallelism in the innermost domain; by default unless values of tp are given.
    fix : mapping, optional
        Knobs that are decided: ``{"pp": 1, "schedule": "1f1b"}``.
    framework : str
        Keep to what megatron, torchtitan, deepspeed or nemo can launch, where knobs are not given.
    tp, sequence_parallel, cp, ep, etp, micro_batch, pp, vp, schedule, recompute, zero_stage, shard_group
        Values to try of a knob, numbers or names; every sensible one where not given.
    keep : int
        Layouts to keep. [-]
    progress : callable, optional
        Called with layouts priced and layouts to price.

    Returns
    -------
    Plan
        ``.best``, ``.top(n)``, ``.pareto()``, ``.why_not(layout)``, ``.to_frame()``.

    Raises
    ------
    CostModelError
        For wrong input, and where no layout is left: which constraint bites, and what would do.

    Examples
    --------
    >>> found = plan(model="llama3-8b", cluster="dgx-h100-ndr", gpus=8, global_batch=128, seq_len=8192,
    ...              fix={"pp": 1, "recompute": "none"})
    >>> found.num_considered == found.num_priced + sum(
    ...     count for reason, count in found.rejected.items() if reason != "does_not_fit")
    True
    """
    return Plan.search(make_question(**asked), keep=keep, progress=progress)
