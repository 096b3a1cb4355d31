"""The pick of a plan explained by bills: what each choice costs, and what the alternatives would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from costmodel.base.errors import LayoutError, NoLayoutError, NothingFitsError
from costmodel.base.units import format_bytes, format_seconds
from costmodel.base.words import plural
from costmodel.describe.jobs.fields import DEGREES, FIELD, KNOBS, LAYOUT_FIELDS
from costmodel.describe.jobs.job import Job, require_possible
from costmodel.describe.jobs.layout import make_layout, parse_layout
from costmodel.describe.jobs.layout_text import difference_text, layout_text, value_text
from costmodel.describe.jobs.reading import keywords, read, read_codes
from costmodel.describe.odds import RISK
from costmodel.estimates.estimate import Estimate
from costmodel.estimates.warnings import accumulation
from costmodel.interop.assertions.facts import facts
from costmodel.interop.assertions.tables import ASSERTIONS
from costmodel.physics.pipeline.chunks import chunks_text
from costmodel.planning.found import SearchResult
from costmodel.planning.no_layout import (
    needed,
    reason_of,
)
from costmodel.planning.preference import TIE_SHARE
from costmodel.planning.search import Question, space_of
from costmodel.step.price import chunks_of
from costmodel.step.unlike_nodes import has_whole_replicas

_AS_FAST = 0.0005
"""Share of a step that prints as none. [-]"""
_AXES = {
    "tp": "tensor parallelism",
    "pp": "pipeline",
    "cp": "context parallelism",
    "ep": "expert parallelism",
}
_DEGREES = tuple(axis for axis in DEGREES if FIELD[axis].tuned == "placement")


def advice(plan: SearchResult) -> list[str]:
    """Explain the pick in a few sentences with numbers from bills."""
    best, question = plan.best, plan.question
    headroom_share = question.headroom_share(best.job)
    opening = (
        f"{layout_text(best.job.layout)}: {format_seconds(float(best.step_time_s))} a step at {float(best.mfu):.1%} "
        f"MFU, {format_bytes(float(best.memory_bytes_per_gpu))} of the {format_bytes(question.limit_bytes(best.job))} "
        f"that a GPU may use{f' ({headroom_share:.1%} of its memory is kept free)' if headroom_share else ''}."
    )
    choices = (
        yours_text(plan),
        simplest(plan),
        by_speed(plan),
        *(_axis_text(plan, axis) for axis in _AXES),
        _data(plan),
        _recompute(plan),
    )
    limits = (
        "Memory does not limit it: no layout that needs more is faster by half a percent."
        if plan.memory_gain < TIE_SHARE
        else f"With memory enough for any layout, the step would be {plan.memory_gain:.1%} shorter."
    )
    warned = [f"Mind: {text}." for text in accumulation(best)]
    return [opening, *(text for text in choices if text), limits, *warned]


def yours_text(plan: SearchResult) -> str:
    """Say how the layout that the job has today compares with the pick: time, money, rank."""
    if plan.current_problem:
        return f"Yours cannot be priced: {plan.current_problem}."
    yours = plan.yours
    if yours is None:
        return ""
    est = yours.est
    degrees = layout_text(est.job.layout).partition(",")[0]
    step = f"Yours ({degrees}): {format_seconds(float(est.step_time_s), 4)} a step"
    if plan.current_row == plan.pick:
        return (
            f"{step}; no layout is more than {TIE_SHARE:.1%} faster."
            if plan.pick == 0
            else f"{step}; it is the plan."
        )
    parts = [step, f"{yours.slower:+.1%}"]
    ours, theirs = plan.columns_of([plan.current_row or 0, plan.pick])["dollars"]
    if ours is not None and theirs is not None:
        parts.append(f"${abs(ours - theirs):,.0f} {'more' if ours > theirs else 'less'} over the run")
    if yours.rank is not None:
        parts.append(f"rank {yours.rank:,} of {yours.num_fit:,} layouts that fit")
    elif yours.unrequested:
        parts.append(f"and it is not as asked ({', '.join(yours.unrequested)})")
    elif not est.fits:
        need, have = float(est.memory_bytes_per_gpu), est.memory_capacity_bytes
        parts.append(f"and it does not fit: {format_bytes(need)} of {format_bytes(have)}")
    else:
        limit = plan.question.limit_bytes(est.job)
        parts.append(f"and it takes more than the {format_bytes(limit)} that a plan's layouts may use")
    return f"{', '.join(parts)}."


def simplest(plan: SearchResult) -> str:
    """Say that the pick is the simplest of those as fast, by how much it is slower, and without what."""
    score = float(plan.candidates.top["score"][0])
    if plan.pick_score == score:
        return ""
    return (
        f"The simplest within {TIE_SHARE:.1%} of the fastest, {plan.pick_score / score - 1.0:.2%} slower than "
        f"{difference_text(plan.fastest.job, plan.best.job)}."
    )


def by_speed(plan: SearchResult) -> str:
    """Say how the work is divided over nodes of two kinds, and what the best takes that a search finds without that."""
    best, mixed = plan.best, plan.best.job.cluster.mixed
    if mixed is None:
        return ""
    placed, name, parts = best.priced.placed, mixed.accelerator.name, []
    if placed.split.by_speed:
        chunks = chunks_text(chunks_of(best.job))
        parts.append(f"stages have layers by speed{f' ({chunks})' if chunks else ''}")
    if mixed.batch_by_speed and has_whole_replicas(best.job):
        parts.append(f"the slower replicas have {float(placed.micro_batches):,.0f} micro-batches a step")
    if not parts:
        return f"No part of the work is divided by the speed of the {plural(mixed.nodes, 'node')} of {name}."
    jobs = tuple(_with_parts(job, batch=False, layers=False) for job in plan.question.jobs)
    weight, score = plan.question.weight(best.job), _best_score(plan, replace(plan.question, jobs=jobs))
    return (
        f"{plural(mixed.nodes, 'node')} of {name}: {' and '.join(parts)}; the best that is found without takes "
        f"{format_seconds(score / weight, 4)} a step ({score / plan.pick_score - 1.0:+.1%})."
    )


def _with_parts(job: Job, *, batch: bool, layers: bool) -> Job:
    """Return a job with parts of the work by speed or equal ones; as it is where all nodes are alike."""
    mixed = job.cluster.mixed
    if mixed is None:
        return job
    parts = mixed._replace(batch_by_speed=batch, layers_by_speed=layers)
    return replace(job, cluster=replace(job.cluster, mixed=parts))


def _share(est: Estimate, *axes: str, category: str | None = None) -> str:
    """Return the share of the step that lines of some axes pay."""
    paid = sum(
        float(line.exposed_seconds)
        for line in est.bill.time_lines
        if line.axis in axes and (category is None or line.category == category)
    )
    return f"{paid / float(est.step_time_s):.1%}"


def _otherwise(plan: SearchResult, knob: str, value: float) -> str:
    """Say what the best layout with another value of a knob costs."""
    name = f"{knob} {value_text(knob, value)}"
    score = plan.by_value.get(knob, {}).get(value, np.inf)
    if not np.isfinite(score):
        return f"nothing with {name} fits"
    return f"the best with {name} is {_slower_text(score / plan.pick_score - 1.0)}"


def _slower_text(share: float) -> str:
    """Say how much slower something is, or that it is faster."""
    if abs(share) < _AS_FAST:
        return "as fast"
    return f"{share:.1%} slower" if share > 0 else f"{-share:.1%} faster"


def _alternatives(plan: SearchResult, knob: str) -> str:
    """Say what the values next to the chosen one would cost."""
    chosen = float(plan.candidates.top[knob][plan.pick])
    known = sorted(plan.by_value.get(knob, {}))
    if len(known) < 2:
        return ""
    place = known.index(chosen)
    near = [known[i] for i in (place - 1, place + 1) if 0 <= i < len(known)]
    return "; " + ", ".join(_otherwise(plan, knob, value) for value in near)


def _axis_text(plan: SearchResult, axis: str) -> str:
    """Say what an axis costs, or that it is not used, and what the degrees next to the chosen one would cost."""
    best, degree = plan.best, float(getattr(plan.best.job.layout, axis))
    alternatives = _alternatives(plan, axis)
    if degree == 1:
        return f"No {_AXES[axis]}{alternatives}." if alternatives else ""
    costs = f"costs {_share(best, axis)} of the step"
    if axis == "tp":
        domain = best.job.cluster.tiers[0]
        is_inside = degree <= domain.size
        where = f"stays in the {domain.size}-GPU {domain.name} domain" if is_inside else "leaves its domain"
        costs = f"{where} and {costs}"
    elif axis == "pp":
        bubble, messages = (_share(best, "pp", category=what) for what in ("bubble", "communication"))
        costs = (
            f"with {value_text('schedule', float(best.job.layout.schedule))} leaves a {bubble} bubble and {messages} in "
            f"messages, and divides the layers' states{_memory_without_pipeline(best)}"
        )
    return f"{axis.upper()}{degree:.0f} {costs}{alternatives}."


def _memory_without_pipeline(best: Estimate) -> str:
    """Say what the states of all stages together would take on one GPU."""
    states = sum(
        (
            np.broadcast_to(line.bytes, best.bill.memory_per_stage_bytes().shape)
            for line in best.bill.memory_lines
            if line.category == "state" and line.part != "reserve"
        ),
        np.zeros(1),
    )
    return f" ({format_bytes(float(states.max()))} a GPU instead of {format_bytes(float(states.sum()))})"


def _data(plan: SearchResult) -> str:
    layout = plan.best.job.layout
    return (
        f"DP{float(layout.dp):.0f} with ZeRO-{float(layout.zero_stage):.0f} costs {_share(plan.best, 'dp')} of the step "
        f"and the optimizer {_share(plan.best, 'optimizer')}{_alternatives(plan, 'zero_stage')}."
    )


def _recompute(plan: SearchResult) -> str:
    values = plan.by_value.get("recompute", {})
    chosen = float(plan.candidates.top["recompute"][plan.pick])
    others = [value for value in sorted(values) if value != chosen]
    if not others:
        return ""
    listed = ", ".join(_otherwise(plan, "recompute", value) for value in others)
    return f"Recompute {value_text('recompute', chosen)}: {listed}."


def relaxed_gains(plan: SearchResult) -> list[tuple[str, float]]:
    """Return each of the user's constraints with the share of step time that dropping it would save."""
    # Other choices are left out on both sides: what a constraint costs does not hang on them.
    question = replace(plan.question, search_switches=False)
    jobs: Sequence[int] = range(len(question.jobs))
    score = _least(plan.tally.best_score, jobs)
    if not np.isfinite(score):
        # No request starts with the recipe's own switches: those of the fastest stand on both sides.
        jobs = (int(plan.candidates.top["job"][0]),)
        question = replace(question, jobs=(plan.jobs[jobs[0]],))
        score = _least(plan.tally.best_score, jobs)
    gains = [
        (f"{knob} = {', '.join(value_text(knob, v) for v in values)}", question.without(knob))
        for knob, values in question.knob_values.items()
        if knob in question.user_knobs
    ]
    if np.isfinite(question.max_memory_bytes):
        unlimited = replace(question, max_memory_bytes=np.inf)
        gains.append((f"max-memory {format_bytes(question.max_memory_bytes)}", unlimited))
    unlike = [job.cluster.mixed for job in question.jobs if job.cluster.mixed is not None]
    if unlike and not unlike[0].batch_by_speed:
        divided = tuple(_with_parts(job, batch=True, layers=True) for job in question.jobs)
        gains.append(("equal batches of all replicas (hw mixed=...:batch)", replace(question, jobs=divided)))
    saved = [(name, 1.0 - _best_score(plan, relaxed) / score) for name, relaxed in gains]
    if headroom_share := question.headroom_share(plan.best.job):
        limit = (
            f"headroom {headroom_share:.1%}"
            if question.headroom
            else f"risk {RISK if question.risk is None else question.risk:.0%}"
        )
        saved.append((limit, 1.0 - _least(plan.tally.best_in_device, jobs) / score))
    domain = plan.best.job.cluster.tiers[0].size
    if question.tp_in_domain and float(plan.candidates.top["tp"][plan.pick]) >= domain:
        # What lies inside the domain has been priced.
        wider = tuple(tp for job in question.jobs for tp in question.values(job)["tp"] if tp > domain)
        beyond = replace(
            question.without("tp"), knob_values={**question.knob_values, "tp": wider}, tp_in_domain=False
        )
        saved.append(("tp inside the domain", 1.0 - min(_best_score(plan, beyond), score) / score))
    saved.append(("memory of the GPU", plan.memory_gain))
    return saved


def _least(scores: Mapping[int, float], jobs: Sequence[int]) -> float:
    return min(scores.get(index, np.inf) for index in jobs)


def _best_score(plan: SearchResult, question: Question) -> float:
    """Return the best score of a question; infinite where no layout is left."""
    try:
        return _least(plan.search(question, num_candidates=1).tally.best_score, range(len(question.jobs)))
    except NoLayoutError:
        return float("inf")


def why_not(plan: SearchResult, layout: str | Mapping[str, Any], job: int = 0) -> str:
    """Say why a layout is not the plan: impossible, too large, or slower and by what.

    Degrees left out are 1; other choices take their best value. A number is that of a row of the plan's tables.
    """
    question = plan.question
    if isinstance(layout, str) and layout.strip().isdecimal():
        row, top = plan.row_of(int(layout)), plan.candidates.top
        est, score = plan.estimate_of(top, row), float(top["score"][row])
        settings = str(plan.columns_of([row])["choices"][0])
        return (
            _it_is(plan) if row == plan.pick else _slower(plan, est, score, question, int(layout), settings)
        )
    job_of_row = question.jobs[job]
    named = keywords(
        parse_layout(layout) if isinstance(layout, str) else layout,
        LAYOUT_FIELDS,
        who="why-not",
        thing="knob",
    )
    dp = read("dp", named.pop("dp")) if "dp" in named else None
    # What the layout does not name stays as the question has it: policies free, degrees 1.
    knob_values = {**question.knob_values, **dict.fromkeys(_DEGREES, (1.0,))}
    knob_values |= {knob: read_codes(knob, value) for knob, value in named.items()}
    product = float(np.prod([knob_values[axis][0] for axis in ("tp", "cp", "pp")]))
    gpus = float(job_of_row.layout.gpus)
    if knob_values.get("shard_group", (0.0,))[0] * product == gpus * knob_values["cp"][0]:
        knob_values["shard_group"] = (0.0,)  # a group of all is none
    if dp is not None and product * dp != gpus:
        return f"impossible: tp·cp·pp·dp = {product * dp:.0f}, but there are {gpus:.0f} GPUs"
    narrowed = replace(question, jobs=(job_of_row,), knob_values=knob_values, tp_in_domain=False)
    roomy = replace(job_of_row.cluster.accelerator, memory_bytes=np.inf)
    limitless = (replace(job_of_row, cluster=replace(job_of_row.cluster, accelerator=roomy)),)
    try:
        plan.search(
            replace(narrowed, max_memory_bytes=np.inf, headroom=0.0, jobs=limitless), num_candidates=1
        )
    except NoLayoutError:
        return f"impossible: {_broken_rule(question, knob_values, job_of_row)}"
    try:
        found = plan.search(narrowed)
    except NothingFitsError as error:
        return _too_large(question, error.leanest)
    if layout_text(found.best.job.layout) == layout_text(plan.best.job.layout):
        return _it_is(plan)
    return _slower(plan, found.best, found.pick_score, question, plan.rank_of(found.pick_score))


def _too_large(question: Question, est: Estimate) -> str:
    """Say that the leanest form of a layout exceeds GPU or host, or fits less surely than was asked for."""
    need_bytes, device = float(est.memory_bytes_per_gpu), est.memory_capacity_bytes
    needs = f"its leanest form ({layout_text(est.job.layout)}) needs {needed(est)}"
    if not est.fits:
        return f"does not fit: {needs}"
    if question.max_memory_bytes < need_bytes:
        return f"{needs}, more than max_memory {format_bytes(question.max_memory_bytes)}"
    accepted = (
        f"headroom {question.headroom:.1%}" if question.headroom else f"{1.0 - question.accepted_risk:.0%}"
    )
    return (
        f"{needs} and would leave {1.0 - need_bytes / device:.1%} of the GPU free, which fits with "
        f"{float(est.fits_probability):.0%}; you asked for {accepted}"
    )


def _it_is(plan: SearchResult) -> str:
    return f"it is the plan: {layout_text(plan.best.job.layout)}"


def _slower(
    plan: SearchResult, est: Estimate, score: float, question: Question, rank: int, settings: str = ""
) -> str:
    """Compare the best form of a layout with the plan, line group by line group."""
    ours, theirs = est.exposed_by("axis"), plan.best.exposed_by("axis")
    step_s = float(plan.best.step_time_s)
    moved = {axis: float(ours.get(axis, 0.0)) - float(theirs.get(axis, 0.0)) for axis in {**theirs, **ours}}
    main = sorted(moved, key=lambda axis: -abs(moved[axis]))[:3]
    where = ", ".join(f"{axis} {moved[axis] / step_s:+.1%}" for axis in main)
    outside = [
        knob
        for knob, values in question.knob_values.items()
        if float(getattr(est.job.layout, knob)) not in values
    ]
    layout = ", ".join(filter(None, [layout_text(est.job.layout), settings]))
    note = f"; it breaks the constraint on {', '.join(outside)}" if outside else ""
    return (
        f"{_slower_text(score / plan.pick_score - 1.0)}, rank {rank:,} of {plan.num_fit:,}: {layout} takes "
        f"{format_seconds(float(est.step_time_s))} a step ({where} of the best step) and "
        f"{format_bytes(float(est.memory_bytes_per_gpu))}{note}"
    )


def _broken_rule(question: Question, knob_values: Mapping[str, tuple[float, ...]], job: Job) -> str:
    """Return the rule that a layout breaks, with numbers where it is one of the degrees."""
    degrees = {
        axis: values[0] for axis, values in knob_values.items() if axis not in ("schedule", "recompute")
    }
    layout = make_layout(gpus=job.layout.gpus, **degrees)
    try:
        require_possible(layout, job)
    except LayoutError as error:
        return str(error)
    space = space_of(replace(question, knob_values=dict(knob_values), tp_in_domain=False), job)
    code = list(space.rejected)[-1]
    if code not in ASSERTIONS:
        return reason_of(question, space.rejected)
    knobs = {knob: np.asarray(knob_values[knob][0]) for knob in KNOBS if knob in knob_values}
    chosen = replace(job, layout=replace(layout, **knobs))
    return ASSERTIONS[code].sentence(facts(chosen))
