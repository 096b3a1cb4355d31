"""`costmodel.plan`: the best layout of all that divide and fit, the runners-up, and why the rest is out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import Any, Unpack

import numpy as np

from costmodel.base.answer import Answer
from costmodel.base.errors import CostModelError, LayoutError, shown
from costmodel.base.units import format_days
from costmodel.base.version import __version__
from costmodel.base.words import common_device, errors_called
from costmodel.describe.frameworks import FRAMEWORKS, Launches, launched_by, trainers_of
from costmodel.describe.hardware.cluster import Cluster
from costmodel.describe.hardware.hardware import load_cluster
from costmodel.describe.hardware.prices import with_price
from costmodel.describe.jobs.fields import ANY_FRAMEWORK, FIELD, KNOBS, PLAN_FIELDS
from costmodel.describe.jobs.job import BALANCED, DEFAULT_RECIPE, Job, make_job, usual_recipe
from costmodel.describe.jobs.keywords import PlanKeywords
from costmodel.describe.jobs.layout_text import value_text
from costmodel.describe.jobs.reading import keywords, read, read_codes, read_several, require_complete
from costmodel.describe.jobs.short_form import command_text
from costmodel.describe.jobs.signature import shows
from costmodel.describe.recipe import Recipe, load_recipe
from costmodel.estimates.record import SCHEMA_VERSION, input_record
from costmodel.physics.pipeline.schedules import schedule_code
from costmodel.planning.advice import advice, relaxed_gains, why_not
from costmodel.planning.best import taken
from costmodel.planning.columns import plan_columns
from costmodel.planning.found import KEPT, Found, Progress
from costmodel.planning.job_file import job_file_of
from costmodel.planning.machines import Machine, machine_columns, machines, several_machines
from costmodel.planning.preference import TIE_SHARE
from costmodel.planning.search import Question
from costmodel.planning.tuning import held, searched
from costmodel.planning.uncertain import odds_record
from costmodel.whole_run.run import run_of

_TRAINED = (
    "lora_rank",
    "lora_targets",
    "base_dtype",
    "frozen",
    "packed_len",
    "packed_spread",
    "dataset_samples",
    "epochs",
)

EVEN = "even"
"""The pipeline layout that the recipe makes."""


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

    @property
    def searched(self) -> dict[str, str]:
        """What was searched, by knob, switch or order of the axes, as texts."""
        return searched(self.question)

    @property
    def held(self) -> str:
        """What was not searched, in a sentence."""
        return held(self.question)

    def commands(self, count: int = 10) -> list[str]:
        """Return the command line of each of the layouts of `top`."""
        return [command_text(est.job, files=self.question.files) for est in self.top(count)]

    def job_file(self) -> str:
        """Return the best layout as a job file, which `estimate`, `run` and `report` read.

        Raises
        ------
        CostModelError
            If a file cannot say the job: a model, cluster or recipe that was composed in code.
        """
        return job_file_of(self.best, self.question.files)

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
        for row, est, command in zip(top, tail, self.commands(count), strict=True):
            row["command"] = command
            for what in ("toll", "axis"):
                row[f"exposed_s_by_{what}"] = {
                    name: float(seconds) for name, seconds in est.exposed_by(what).items()
                }
        return {
            "schema_version": SCHEMA_VERSION,
            "version": __version__,
            "objective": self.question.objective,
            "inputs": input_record(best.job),
            "tie_share": TIE_SHARE,
            "fastest_step_time_s": float(self.fastest.step_time_s),
            "searched": self.searched,
            "held": self.held,
            "num_layouts_considered": self.num_considered,
            "num_layouts_priced": self.num_priced,
            "num_layouts_fit": self.num_fit,
            "rejected": dict(self.rejected.most_common()),
            "top": top,
            "try": odds_record(self.odds, self._by_row()),
            "pareto": _records(self.pareto_columns()),
            "machines": _records(machine_columns(self.machines)) if self.has_machines else [],
            "relaxed_gain_by_constraint": dict(gains),
            "advice": self.advice(),
            "why_not": dict(answers),
        }

    @cached_property
    def machines(self) -> tuple[Machine, ...]:
        """The best of every cluster, number of GPUs and precision, with its whole run where the tokens are known."""
        return machines(self)

    @property
    def device_word(self) -> str:
        """What the devices are called where all are called alike."""
        return common_device(job.cluster.accelerator.called for job in self.question.jobs)

    def finished(self, start: str) -> list[str]:
        """Say when the whole run of the pick is done if it starts on a day.

        Raises
        ------
        CostModelError
            If that is no date, the job has no tokens, or its run cannot be priced.
        """
        if self.best.job.tokens is None:
            raise CostModelError("start: needs tokens, for a run that ends")
        days = run_of(self.best, self.best.job.tokens).finishing_dates(start)
        return [f"Started on {start}, done by {', '.join(f'{at} {day}' for at, day in days.items())}."]

    def in_time(self, days: float) -> list[str]:
        """Say whether the whole run is done in so many days on each machine, and how surely.

        Parameters
        ----------
        days : float
            Calendar days, with what failures take. [d]

        Raises
        ------
        CostModelError
            If the job has no tokens, or no run can be priced.
        """
        if self.best.job.tokens is None:
            raise CostModelError("days: needs tokens, for a run that ends")
        if not self.has_machines:
            runs = [run_of(self.best, self.best.job.tokens)]
        else:
            runs = [one.run for one in self.machines if one.run is not None]
        said = []
        for run in runs:
            kept = replace(run, limit_days=days).within()["days"]
            gpus, cluster = float(run.est.job.layout.gpus), run.est.job.cluster
            said.append(
                f"Deadline {format_days(days)} on {gpus:,.0f} of {cluster.name}: expected {format_days(kept.expected)}, "
                f"kept in {kept.probability:.0%} of the runs drawn."
            )
        return said

    @property
    def has_machines(self) -> bool:
        """Whether several clusters, numbers of GPUs or precisions were asked for."""
        return several_machines(self.question)

    def _by_row(self) -> dict[int, dict[str, Any]]:
        """Return the layouts to try as records, by their kept rows."""
        rows = [trial.row for trial in self.odds.trials()]
        table = plan_columns(self.passes, self.kept, taken(self.kept.top, np.asarray(rows, dtype=np.int64)))
        return {
            row: {
                **record,
                "rank": row + 1,
                "command": command_text(self.estimate_of(self.kept.top, row).job, files=self.question.files),
            }
            for row, record in zip(rows, _records(table), strict=True)
        }

    def __repr__(self) -> str:
        return f"Plan({self.num_priced:,} layouts priced, {self.num_fit:,} fit; best: {self.best!r})"


def _records(table: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Turn columns into a record a row."""
    return [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]


def search(question: Question, *, keep: int = KEPT, progress: Progress | None = None) -> Plan:
    """Answer a question; see `Found.search`."""
    with errors_called(common_device(job.cluster.accelerator.called for job in question.jobs)):
        return Plan.search(question, keep=keep, progress=progress)


def make_question(**asked: Unpack[PlanKeywords]) -> Question:
    """Check what a plan is asked and make the jobs it searches over; see `plan` for the keywords."""
    told = keywords(asked, PLAN_FIELDS, who="plan")
    require_complete(told, who="plan")

    def one(name: str) -> Any:
        return read(name, told[name]) if name in told else FIELD[name].default

    def several(name: str) -> list[Any]:
        return read_several(name, told[name]) if name in told else [FIELD[name].default]

    framework = one("framework") or ""
    if one("lora_rank") and not framework and "recipe" not in told:
        framework = trainers_of(one("base_dtype") or "bf16")[0]
    clusters = _clusters(several("cluster"), one("price_usd_per_gpu_hour"))
    recipes = [_recipe(_recipe_on(cluster, told, framework), framework) for cluster in clusters]
    alike = len({recipe.name for recipe in recipes}) == 1
    given = _values(told, one("fix") or {}, framework, recipes[0].launches if alike else None)
    switches = one("switches") or {}
    jobs: list[Job] = []
    searched = (
        "precision",
        "optimizer",
        "offload_optimizer",
        "axis_order",
        "slice",
        "gpus",
        "global_batch",
    )
    for (cluster, recipe), precision, optimizer, offload, order, shape, gpus, batch in product(
        zip(clusters, recipes, strict=True), *(several(name) for name in searched)
    ):
        chunks = _pipeline_layout(told.get("pipeline_layout"), recipe.launches, framework)
        job = make_job(
            model=told["model"] if not jobs else jobs[0].model,
            cluster=cluster,
            gpus=gpus,
            global_batch=batch,
            seq_len=one("seq_len"),
            precision=precision,
            optimizer=optimizer,
            recipe=recipe,
            pipeline_layout=chunks,
            switches={**switches, **({} if offload is None else {"offload_optimizer": offload})},
            axis_order=order,
            slice=shape,
            tokens=one("tokens"),
            **{name: told[name] for name in (*_TRAINED, "site") if name in told},
            check=False,
        )
        if framework != ANY_FRAMEWORK:
            _require_adapters(job)
        largest = job.cluster.tiers[-1].size
        if gpus > largest:
            raise LayoutError(f"gpus: {gpus} is more than cluster {job.cluster.name} can hold ({largest})")
        jobs.append(job)
    inside, limit = one("tp_in_domain"), one("max_memory_bytes")
    question = Question(
        jobs=tuple(jobs),
        given=given,
        max_memory_bytes=np.inf if limit is None else limit,
        headroom=one("headroom"),
        objective=one("objective"),
        # Naming the values of tp is asking for them, beyond the domain or not.
        tp_in_domain="tp" not in given if inside is None else inside,
        launchable=framework != ANY_FRAMEWORK,
        files=_files(told, jobs),
        chooses=framework != ANY_FRAMEWORK and bool(one("choose")),
        named=frozenset({*(knob for knob in KNOBS if knob in told), *(one("fix") or {})}),
        held=frozenset({*switches, *(("axis_order",) if "axis_order" in told else ())}),
        risk=_risk(told),
        launched={}
        if alike
        else {
            recipe.name: {
                knob: values for knob, values in _launched(recipe.launches).items() if knob not in given
            }
            for recipe in recipes
        },
    )
    for job in jobs:
        question.weight(job)
    return question


def _clusters(named: Sequence[Any], price: float | Mapping[str, float] | None) -> list[Cluster]:
    """Return the clusters of a question, at the prices that were given for them."""
    found = [load_cluster(one) if isinstance(one, str) else one for one in named]
    known = [one.name for one in found if isinstance(one, Cluster)]
    # What is no cluster is for the job to refuse.
    return [with_price(one, price, among=known) if isinstance(one, Cluster) else one for one in found]


def _recipe_on(cluster: Cluster, told: Mapping[str, Any], framework: str) -> str | Recipe:
    """Return the recipe of a plan on one cluster: named, or the framework's, or what is usual there."""
    if "recipe" in told:
        named: str | Recipe = read("recipe", told["recipe"])
        return named
    if framework in FRAMEWORKS:
        return FRAMEWORKS[framework].recipe
    return usual_recipe(cluster) if isinstance(cluster, Cluster) else DEFAULT_RECIPE


def _require_adapters(job: Job) -> None:
    """Refuse to search layouts of adapters for a framework whose configurations cannot train them.

    Raises
    ------
    CostModelError
        Naming the frameworks that can.
    """
    launches, base = job.recipe.launches, job.tuning.base_dtype
    framework = FRAMEWORKS.get(launches.framework) if launches else None
    if framework and job.tuning.lora_rank and base not in framework.adapters:
        raise CostModelError(
            f"lora_rank: {framework.title}, which recipe {job.recipe.name} is for, trains no adapters on a base in {base}; "
            f"--framework {', '.join(trainers_of(base))} do, and --framework any prices every layout"
        )


def _risk(told: Mapping[str, Any]) -> float | None:
    """Return the accepted risk of running out of memory, None where none is named."""
    if "risk" not in told:
        return None
    if "headroom" in told:
        raise CostModelError(
            "risk: says how much memory to leave free, as headroom does; give one or the other"
        )
    risk = float(read("risk", told["risk"]))
    if not 0.0 < risk < 1.0:
        raise CostModelError(f"risk: expected a probability between 0 and 1, such as 20%, got {risk:g}")
    return risk


def _files(told: Mapping[str, Any], jobs: Sequence[Job]) -> dict[str, str]:
    """Return how models and clusters were given as texts, by the names that they have."""
    found = {jobs[0].model.name: told["model"]} if isinstance(told["model"], str) else {}
    for given in read_several("cluster", told["cluster"]) if "cluster" in told else ():
        if isinstance(given, str):
            found[load_cluster(given).name] = given
    return found


def _recipe(given: str | Recipe, framework: str) -> Recipe:
    """Return the recipe, launched by the framework where one is named."""
    recipe = load_recipe(given) if isinstance(given, str) else given
    if framework not in FRAMEWORKS:
        return recipe
    return recipe.model_copy(update={"launches": launched_by(framework, recipe.launches)})


def _pipeline_layout(asked: Any, launches: Launches | None, framework: str) -> str | None:
    """Return how layers are dealt: balanced where the framework lets a user choose, unless asked otherwise."""
    if asked is not None and asked not in (EVEN, BALANCED):
        raise LayoutError(f"pipeline_layout: a plan takes {EVEN} or {BALANCED}, got {shown(asked)}")
    free = framework == ANY_FRAMEWORK or launches is None or launches.pipeline_layouts
    return BALANCED if asked == BALANCED or (asked is None and free) else None


def _values(
    told: Mapping[str, Any], fix: Mapping[str, Any], framework: str, launches: Launches | None
) -> dict[str, tuple[float, ...]]:
    """Return the values of knobs that are allowed: those named, decided, and what a framework launches."""
    given = {knob: read_codes(knob, told[knob]) for knob in KNOBS if knob in told}
    for knob, value in fix.items():
        fixed = read_codes(knob, value)
        if knob in given and not set(fixed) <= set(given[knob]):
            asked = ", ".join(f"{number:g}" for number in given[knob])
            raise LayoutError(f"{knob}: fixed to {shown(value)}, but only {asked} is allowed")
        given[knob] = fixed
    if framework == ANY_FRAMEWORK:
        return given
    if not framework:
        # What the user names is asked for, whether the recipe's framework has it or not.
        return {**_launched(launches), **given}
    runs = {knob: read_codes(knob, value) for knob, value in FRAMEWORKS[framework].values.items()}
    for knob, values in given.items():
        beyond = sorted(set(values) - set(runs.get(knob, values)))
        if beyond:
            allowed = ", ".join(value_text(knob, value) for value in runs[knob])
            raise LayoutError(
                f"{knob}: {framework} does not launch {value_text(knob, beyond[0])}; it has {allowed}"
            )
    return {**runs, **given}


def _launched(launches: Launches | None) -> dict[str, tuple[float, ...]]:
    """Return the values of knobs that a recipe's framework starts with."""
    if launches is None:
        return {}
    kept = {knob: read_codes(knob, value) for knob, value in launches.keeps.items()}
    return {
        "sequence_parallel": (1.0,),
        **kept,
        "zero_stage": tuple(float(stage) for stage in launches.zero_stage),
        "schedule": tuple(float(schedule_code(name)) for name in launches.schedule),
    }


@shows(PLAN_FIELDS, searched=True)
def plan(*, keep: int = KEPT, progress: Progress | None = None, **asked: Unpack[PlanKeywords]) -> Plan:
    """Find the best layout of a job by pricing every one that divides.

    Parameters
    ----------
    model, cluster, gpus, global_batch, seq_len, precision, optimizer, recipe, switches, axis_order, slice, tokens
        As in `costmodel.estimate`. Lists of clusters, gpus, batches, precisions, optimizers, axis orders
        or slices are searched together.
    offload_optimizer : bool or sequence of bool, optional
        Optimizer states on the CPU; both to let the search choose. Default: the recipe's.
    objective : str
        One of `OBJECTIVES`: step-time, mfu, tokens-per-dollar, gpu-hours, or p50, p75, p90, p95 of the step time.
    max_memory_bytes : float
        Memory limit beside what the device offers. [B]
    headroom : float
        Share of the device's memory to leave free; by default 5 %, or by how much the memory of 80 % of comparable
        runs was predicted too low if that is more. [-]
    risk : float
        Probability of running out of memory that is accepted, in place of `headroom`. [-]
    tp_in_domain : bool
        Keep tensor parallelism in the innermost domain; by default unless values of tp are given.
    fix : mapping, optional
        Knobs that are decided: ``{"pp": 1, "schedule": "1f1b"}``.
    framework : str
        Keep to what one of `FRAMEWORKS` can launch; ``any`` for every layout that divides.
        By default to what the recipe's framework launches, where knobs are not given.
    choose : bool
        Also turn the switches and axis orders that the recipe's framework leaves to its users (overlaps,
        dispatcher, graphs, context method), where they are not given; not with ``framework="any"``.
    pipeline_layout : str
        ``balanced`` deals layers so that the stage with the head does no more than the others, ``even``
        as the recipe does. Default: balanced where the framework lets a user choose.
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
