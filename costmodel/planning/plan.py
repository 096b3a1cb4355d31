"""`costmodel.plan`: the best layout of all that divide and fit, the runners-up, and why the rest is out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.errors import LayoutError, choices_hint
from costmodel.describe.jobs.job import DEFAULT_CLUSTER, DEFAULT_RECIPE, Job, make_job
from costmodel.describe.jobs.layout_text import value_text
from costmodel.describe.recipe import load_recipe, with_switches
from costmodel.estimates.estimate import Estimate, estimate_job
from costmodel.interop.emit import values_that_run
from costmodel.physics.network.mesh import DEFAULT_ORDER
from costmodel.planning.best import Kept
from costmodel.planning.columns import plan_columns
from costmodel.planning.search import OBJECTIVES, Question, Tally, build_spaces, layout_of, priced_parts
from costmodel.planning.space import read_values

if TYPE_CHECKING:
    import pandas as pd

    from costmodel.describe.hardware.cluster import Cluster
    from costmodel.describe.models.model import Model
    from costmodel.describe.recipe import Recipe
    from costmodel.reporting.plots.faces import PlanPlots

Array = NDArray[np.float64]
Progress = Callable[[int, int], None]

_KEPT = 1000


class NoLayoutError(LayoutError):
    """No layout meets the constraints; the message names the one that bites, and what would do."""


class Plan:
    """The answer of a search: the best layouts, the front, and why the others are out."""

    def __init__(
        self,
        question: Question,
        kept: Kept,
        *,
        num_considered: int,
        num_priced: int,
        num_fit: int,
        rejected: Counter[str],
        fastest_s: Mapping[int, float],
        by_value: Mapping[str, Mapping[float, float]],
    ) -> None:
        self.question = question
        self.kept = kept
        self.num_considered = num_considered
        self.num_priced = num_priced
        self.num_fit = num_fit
        self.rejected = rejected
        self.by_value = by_value
        self._fastest_s = fastest_s

    def __len__(self) -> int:
        return int(self.kept.top["score"].size)

    def estimate_of(self, columns: Mapping[str, Array], row: int) -> Estimate:
        """Return the estimate of one kept row."""
        job = self.question.jobs[int(columns["job"][row])]
        return estimate_job(replace(job, layout=layout_of(columns, row)))

    @cached_property
    def best(self) -> Estimate:
        """The estimate of the best layout."""
        return self.estimate_of(self.kept.top, 0)

    def top(self, count: int = 10) -> list[Estimate]:
        """Return the estimates of the best layouts, best first."""
        return [self.estimate_of(self.kept.top, row) for row in range(min(count, len(self)))]

    def pareto(self) -> list[Estimate]:
        """Return the layouts that no other beats in objective and memory both, best objective first."""
        return [self.estimate_of(self.kept.front, row) for row in range(self.kept.front["score"].size)]

    @property
    def fastest_without_memory_limit_s(self) -> float:
        """Step time of the fastest layout whether it fits or not, for the best one's job. [s]."""
        return float(self._fastest_s[int(self.kept.top["job"][0])])

    def better_than(self, score: float) -> int:
        """Count the layouts that fit and score better (the rank of one is one more)."""
        count = 0
        for part in priced_parts(self.question, build_spaces(self.question)):
            job = self.question.jobs[part.job]
            better = part.step_time_s * self.question.weight(job) < score * (1.0 - 1e-12)
            count += int(
                np.sum(part.possible & better & (part.memory_bytes <= self.question.limit_bytes(job)))
            )
        return count

    def why_not(self, layout: str | Mapping[str, Any], job: int = 0) -> str:
        """Say why a layout is not the plan: impossible, too large, or slower and by what."""
        from costmodel.planning.advice import why_not

        return why_not(self, layout, job)

    def advice(self) -> list[str]:
        """Explain the pick in a few sentences with numbers from bills."""
        from costmodel.planning.advice import advice

        return advice(self)

    def columns(self, count: int | None = None) -> dict[str, list[Any]]:
        """Return the kept layouts as columns: rank, figures, knobs by name, and whether on the front."""
        rows = len(self) if count is None else min(count, len(self))
        return plan_columns(
            self.question, self.kept, {name: values[:rows] for name, values in self.kept.top.items()}
        )

    def pareto_columns(self) -> dict[str, list[Any]]:
        """Return the front as columns."""
        return plan_columns(self.question, self.kept, self.kept.front)

    @property
    def plot(self) -> PlanPlots:
        """Figures: ``plan.plot.pareto()`` and, over several GPU counts, ``plan.plot.scaling()``."""
        from costmodel.reporting.plots.faces import PlanPlots

        return PlanPlots(self)

    def to_frame(self) -> pd.DataFrame:
        """Return the kept layouts, a row each, best first."""
        import pandas as pd

        return pd.DataFrame(self.columns())

    def _repr_html_(self) -> str:
        return str(self.to_frame().head(10).to_html(index=False))

    def __repr__(self) -> str:
        return f"Plan({self.num_priced:,} layouts priced, {self.num_fit:,} fit; best: {self.best!r})"


def search(question: Question, *, keep: int = _KEPT, progress: Progress | None = None) -> Plan:
    """Answer a question: price every layout that divides.

    Raises
    ------
    NoLayoutError
        If none is left; the message names the constraint that bites first and what would do.
    """
    if not question.jobs:
        raise LayoutError("plan: no job to plan")
    spaces = build_spaces(question)
    rejected: Counter[str] = Counter()
    for space in spaces:
        rejected.update(space.rejected)
    considered = sum(space.considered for space in spaces)
    total = sum(slab.num_possible for space in spaces for slab in space.slabs)
    tally = Tally()
    for part in priced_parts(question, spaces):
        tally.add(question, part, keep)
        if progress is not None:
            progress(tally.num_priced, total)
    if tally.kept is None:
        from costmodel.planning.no_layout import explain_empty

        raise NoLayoutError(explain_empty(question, rejected, tally.leanest))
    rejected["does_not_fit"] = tally.num_priced - tally.num_fit
    return Plan(
        question,
        tally.kept,
        num_considered=considered,
        num_priced=tally.num_priced,
        num_fit=tally.num_fit,
        rejected=+rejected,
        fastest_s=tally.fastest_s,
        by_value=tally.by_value,
    )


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
    base = with_switches(base, dict(switches or {}))
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
        one_recipe = base if offload is None else with_switches(base, {"offload_optimizer": bool(offload)})
        job = make_job(
            model=model if not jobs else jobs[0].model,
            cluster=one_cluster,
            gpus=count,
            global_batch=batch,
            seq_len=seq_len,
            precision=one_precision,
            recipe=one_recipe,
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


def plan(*, keep: int = _KEPT, progress: Progress | None = None, **asked: Any) -> Plan:
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
    return search(make_question(**asked), keep=keep, progress=progress)
