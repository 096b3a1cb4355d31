"""Keywords of a plan and a job whose layout is free, made into one question, the same behind every door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from costmodel.base.errors import CostModelError, LayoutError, choices_hint, shown
from costmodel.describe.frameworks import FRAMEWORKS, Launches, framework_of, launched_by, trainers_of
from costmodel.describe.hardware.changed import with_hardware
from costmodel.describe.hardware.cluster import Cluster
from costmodel.describe.hardware.hardware import load_cluster
from costmodel.describe.hardware.prices import with_price
from costmodel.describe.jobs.fields import (
    ANY_FRAMEWORK,
    FIELD,
    JOB_FIELDS,
    KNOBS,
    LAYOUT_FIELDS,
    PLAN_FIELDS,
    canonical,
    names,
)
from costmodel.describe.jobs.job import BALANCED, DEFAULT_RECIPE, EVEN, Job, default_recipe, make_job
from costmodel.describe.jobs.layout_text import plain_value, value_text
from costmodel.describe.jobs.merge import merge_jobs, names_no_degree, unnamed, usual_batch, with_own_prices
from costmodel.describe.jobs.reading import keywords, read, read_codes, read_several, require_complete
from costmodel.describe.recipe import Recipe, load_recipe
from costmodel.interop.answer import JobFile
from costmodel.physics.pipeline.schedules import schedule_code
from costmodel.planning.search import Question

_TRAINED = (
    *("lora_rank", "lora_targets", "base_dtype", "frozen", "packed_len", "packed_spread"),
    *("images_per_sample", "image_tokens", "image_spread", "dataset_samples", "epochs", "site"),
)
"""Keywords of a plan that every job of it takes as they are."""

ANY = "any"
"""Of a knob: every value that is tried where none is named."""

_FREE = (*(name for name in names(LAYOUT_FIELDS) if name != "dp"), "axis_order", "pipeline_layout")
"""What a plan finds, whatever the file has."""


class Request(NamedTuple):
    """A question, and the layout that the planned job has today."""

    question: Question
    own: Job | None = None
    problem: str = ""
    framework: str = ""
    assumed: frozenset[str] = frozenset()


def requested(job: JobFile | Mapping[str, Any] | None, flags: Mapping[str, Any]) -> Request:
    """Lay the keywords of a plan over a job whose layout is free; see `costmodel.plan` for the keywords.

    Of the job its model, machine, batch and what the search does not turn stay. Its degrees, micro-batch,
    recomputation, schedule, sharding, order of the axes, and the switches that its framework leaves to its users are
    free, but for those that `keep` names.
    """
    options = keywords(flags, PLAN_FIELDS, who="plan")
    options = {
        name: value
        for name, value in options.items()
        if not (name in _FREE and isinstance(value, str) and value.strip().lower() == ANY)
    }
    fixed_names = (
        [canonical(name) for name in read_several("keep", options.pop("keep"))] if "keep" in options else []
    )
    file = job if isinstance(job, JobFile) else JobFile(job or {})
    if fixed_names and not file.keywords:
        raise LayoutError("keep: says what stays of the layout of a job; none is given")
    below = merge_jobs(file.keywords, {})
    target = options.get("framework") or file.launcher
    overlap = (below.get("switches") or {}).get("dp_overlap")
    if overlap and below.get("recipe") == "deepspeed" and target in {*FRAMEWORKS} - {"deepspeed"}:
        # A setting of DeepSpeed's own: another framework overlaps whatever its file says.
        planned = {name: value for name, value in below["switches"].items() if name != "dp_overlap"}
    else:
        planned = below.get("switches") or {}
    assumed = unnamed({**below, **options}) - {"layout"}
    options |= usual_batch({**below, **options})
    fixed = {name: value for name, value in below.items() if name in names(PLAN_FIELDS) and name not in _FREE}
    own, problem = _own_job(below, options)
    fixed |= _fixed_values(fixed_names, below, own, problem)
    switches = {**planned, **(read("switches", options.get("switches", {})))}
    question = make_question(
        file=file,
        free=frozenset(below.get("switches") or {}) - {*fixed_names},
        **{**fixed, **options, "switches": switches},
    )
    named = read("framework", options["framework"]) if "framework" in options else ""
    return Request(question, own, problem, "" if named == ANY_FRAMEWORK else named, assumed)


def _own_job(below: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Job | None, str]:
    """Return the job with its own layout, under the constraints of all layouts, or why it cannot be priced."""
    if names_no_degree(below):
        return None, ""
    above = {}
    for name in names(JOB_FIELDS):
        if name not in options or name in _FREE:
            continue
        values = read_several(name, options[name]) if FIELD[name].several else [options[name]]
        above[name] = below[name] if below.get(name) in values else values[0]
    merged = merge_jobs(below, above)
    if "gpus" in above:
        merged.pop("dp", None)
    clusters = read_several("cluster", options["cluster"]) if "cluster" in options else []
    try:
        own, *_ = with_own_prices([merged, *({**merged, "cluster": cluster} for cluster in clusters)])
        return make_job(**own), ""
    except CostModelError as error:
        return None, str(error)


def _fixed_values(
    fixed_names: Sequence[str], below: Mapping[str, Any], own: Job | None, problem: str
) -> dict[str, Any]:
    """Return the values of what stays of a job's own layout."""
    found: dict[str, Any] = {}
    switches = below.get("switches") or {}
    for name in fixed_names:
        if name in switches:
            continue
        if name not in _FREE:
            raise LayoutError(
                f"keep: {shown(name)} is no part of a layout; {choices_hint(name, (*_FREE, *switches))}"
            )
        if own is None:
            raise LayoutError(f"keep: {problem or 'the job names no layout of which anything could stay'}")
        if name in KNOBS:
            found[name] = plain_value(name, getattr(own.layout, name))
        elif name in below:
            found[name] = below[name]
        else:
            found[name] = own.axis_order if name == "axis_order" else EVEN
    return found


def make_question(
    *, file: JobFile | None = None, free: frozenset[str] = frozenset(), **fields: Any
) -> Question:
    """Check the keywords of a plan and make the jobs it searches over; see `costmodel.plan` for the keywords."""
    options = keywords(fields, PLAN_FIELDS, who="plan")
    require_complete(options, who="plan", remarks=(*file.remarks, *file.notes) if file else ())

    def one(name: str) -> Any:
        return read(name, options[name]) if name in options else FIELD[name].default

    def several(name: str) -> list[Any]:
        return read_several(name, options[name]) if name in options else [FIELD[name].default]

    framework = one("framework") or ""
    if one("lora_rank") and not framework and "recipe" not in options:
        framework = trainers_of(one("base_dtype") or "bf16")[0]
    clusters = _clusters(several("cluster"), one("price_usd_per_gpu_hour"), one("hw"))
    launcher = framework
    if file is not None and not framework and file.keywords.get("recipe") == options.get("recipe"):
        launcher = file.launcher
    recipes = [_recipe(_recipe_on(cluster, options, framework), launcher) for cluster in clusters]
    alike = len({recipe.name for recipe in recipes}) == 1
    knob_values = _values(options, one("fix") or {}, framework, recipes[0].launches if alike else None)
    chooses = framework != ANY_FRAMEWORK and bool(one("choose"))
    switches = one("switches") or {}
    if chooses:
        switches = {name: value for name, value in switches.items() if name not in free & _tuned(recipes[0])}
    jobs: list[Job] = []
    # What the accelerator has where none is named.
    precisions = several("precision") if "precision" in options else [None]
    searched = ("optimizer", "offload_optimizer", "axis_order", "slice", "gpus", "global_batch")
    for (cluster, recipe), precision, optimizer, offload, order, shape, gpus, batch in product(
        zip(clusters, recipes, strict=True), precisions, *(several(name) for name in searched)
    ):
        chunks = _pipeline_layout(options.get("pipeline_layout"), recipe.launches, framework)
        job = make_job(
            model=options["model"] if not jobs else jobs[0].model,
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
            **{name: options[name] for name in _TRAINED if name in options},
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
        knob_values=knob_values,
        max_memory_bytes=np.inf if limit is None else limit,
        headroom=one("headroom"),
        objective=one("objective"),
        # Naming the values of tp is asking for them, beyond the domain or not.
        tp_in_domain="tp" not in knob_values if inside is None else inside,
        launchable_only=framework != ANY_FRAMEWORK,
        files=_files(options, jobs),
        file=file,
        search_switches=chooses,
        user_knobs=frozenset({*(knob for knob in KNOBS if knob in options), *(one("fix") or {})}),
        user_switches=frozenset({*switches, *(("axis_order",) if "axis_order" in options else ())}),
        risk=_risk(options),
        framework_values={}
        if alike
        else {
            recipe.name: {
                knob: values for knob, values in _launched(recipe.launches).items() if knob not in knob_values
            }
            for recipe in recipes
        },
    )
    for job in jobs:
        question.weight(job)
    return question


def _tuned(recipe: Recipe) -> frozenset[str]:
    """Return the switches of a recipe that a search turns."""
    launches = recipe.launches
    framework = framework_of(launches)
    if framework is None or launches is None:
        return frozenset()
    found = {*framework.switches} & {*launches.chooses}
    return frozenset({*found, *({"cuda_graph_scope"} if "cuda_graphs" in found else ())})


def _clusters(
    named: Sequence[Any], price: float | Mapping[str, float] | None, hw: Mapping[str, Any] | None
) -> list[Cluster]:
    """Return the clusters of a question, with the numbers and at the prices that were given for them."""
    found = [load_cluster(one) if isinstance(one, str) else one for one in named]
    known = [one.name for one in found if isinstance(one, Cluster)]
    # What is no cluster is for the job to refuse.
    return [
        with_price(with_hardware(one, hw), price, among=known) if isinstance(one, Cluster) else one
        for one in found
    ]


def _recipe_on(cluster: Cluster, options: Mapping[str, Any], framework: str) -> str | Recipe:
    """Return the recipe of a plan on one cluster: named, or the framework's, or what is usual there."""
    if "recipe" in options:
        named: str | Recipe = read("recipe", options["recipe"])
        return named
    if framework in FRAMEWORKS:
        return FRAMEWORKS[framework].recipe
    return default_recipe(cluster) if isinstance(cluster, Cluster) else DEFAULT_RECIPE


def _require_adapters(job: Job) -> None:
    """Refuse to search layouts of adapters for a framework whose configurations cannot train them."""
    launches, base = job.recipe.launches, job.tuning.base_dtype
    framework = framework_of(launches)
    if framework and job.tuning.lora_rank and base not in framework.adapters:
        raise CostModelError(
            f"lora_rank: {framework.title}, which recipe {job.recipe.name} is for, trains no adapters on a base in {base}; "
            f"--framework {', '.join(trainers_of(base))} do, and --framework any prices every layout"
        )


def _risk(options: Mapping[str, Any]) -> float | None:
    """Return the accepted risk of running out of memory, None where none is named."""
    if "risk" not in options:
        return None
    if "headroom" in options:
        raise CostModelError(
            "risk: says how much memory to leave free, as headroom does; give one or the other"
        )
    return float(read("risk", options["risk"]))


def _files(options: Mapping[str, Any], jobs: Sequence[Job]) -> dict[str, str]:
    """Return how models and clusters were given as texts, by the names that they have."""
    found = {jobs[0].model.name: options["model"]} if isinstance(options["model"], str) else {}
    for cluster in read_several("cluster", options["cluster"]) if "cluster" in options else ():
        if isinstance(cluster, str):
            found[load_cluster(cluster).name] = cluster
    return found


def _recipe(name: str | Recipe, framework: str) -> Recipe:
    """Return the recipe, launched by the framework where one is named."""
    recipe = load_recipe(name) if isinstance(name, str) else name
    # To name the framework that the recipe is for anyway changes nothing.
    if framework not in FRAMEWORKS or (recipe.launches and recipe.launches.framework == framework):
        return recipe
    return recipe.model_copy(update={"launches": launched_by(framework, recipe.launches)})


def _pipeline_layout(requested: Any, launches: Launches | None, framework: str) -> str:
    """Return how layers are split over stages: balanced where the framework lets a user choose, unless another is requested."""
    if requested is not None and requested not in (EVEN, BALANCED):
        raise LayoutError(f"pipeline_layout: a plan takes {EVEN} or {BALANCED}, got {shown(requested)}")
    free = framework == ANY_FRAMEWORK or launches is None or launches.pipeline_layouts
    return BALANCED if requested == BALANCED or (requested is None and free) else EVEN


def _values(
    options: Mapping[str, Any], fix: Mapping[str, Any], framework: str, launches: Launches | None
) -> dict[str, tuple[float, ...]]:
    """Return the values of knobs that are allowed: those named, decided, and what a framework launches."""
    allowed = {knob: read_codes(knob, options[knob]) for knob in KNOBS if knob in options}
    for knob, value in fix.items():
        fixed = read_codes(knob, value)
        if knob in allowed and not set(fixed) <= set(allowed[knob]):
            choices = ", ".join(f"{number:g}" for number in allowed[knob])
            raise LayoutError(f"{knob}: fixed to {shown(value)}, but only {choices} is allowed")
        allowed[knob] = fixed
    if framework == ANY_FRAMEWORK:
        return allowed
    # What the user names is tried, whether the recipe's framework has it or not; a framework that is named refuses it.
    runs = framework_values(framework)
    for knob, values in allowed.items():
        beyond = sorted(set(values) - set(runs.get(knob, values)))
        if beyond:
            runnable = ", ".join(value_text(knob, value) for value in runs[knob])
            raise LayoutError(
                f"{knob}: {framework} does not launch {value_text(knob, beyond[0])}; it has {runnable}"
            )
    return {**_launched(launches), **allowed}


def framework_values(framework: str) -> dict[str, tuple[float, ...]]:
    """Return the values of knobs that a framework launches at all; none where none is named."""
    values = FRAMEWORKS[framework].values if framework in FRAMEWORKS else {}
    return {knob: read_codes(knob, value) for knob, value in values.items()}


def _launched(launches: Launches | None) -> dict[str, tuple[float, ...]]:
    """Return the values of knobs that a recipe's framework starts with."""
    if launches is None:
        return {}
    return {
        "sequence_parallel": (1.0,),
        "zero_stage": tuple(float(stage) for stage in launches.zero_stage),
        "schedule": tuple(float(schedule_code(name)) for name in launches.schedule),
        **{knob: read_codes(knob, value) for knob, value in launches.keeps.items()},
    }
