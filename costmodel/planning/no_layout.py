"""Why a search came back with nothing, and the smallest change that would help."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from math import ceil, gcd
from typing import Any, NamedTuple

import numpy as np

from costmodel.base.errors import CostModelError
from costmodel.base.numbers import distinct
from costmodel.base.units import format_bytes, format_seconds
from costmodel.base.words import plural
from costmodel.describe.frameworks import framework_of
from costmodel.describe.jobs.fields import FIELD
from costmodel.describe.jobs.job import Job
from costmodel.describe.jobs.layout import make_layout
from costmodel.describe.jobs.layout_text import layout_text, value_text
from costmodel.describe.jobs.merge import usual_batch
from costmodel.describe.optimizers import optimizer
from costmodel.describe.recipe import switch_text
from costmodel.estimates.estimate import Estimate
from costmodel.planning.best import Columns
from costmodel.planning.search import JobVariant, Question, Tally, priced_parts, space_of
from costmodel.planning.space import REASONS, Slab

_MOST_GPU_DOUBLINGS = 6
_MOST_FREED = 2
"""Named values whose release is offered. [-]"""
_LONGEST = 300
"""Characters of a message that can still be read. [-]"""


class Remedy(NamedTuple):
    """A change that lets a layout in."""

    change: str
    question: Question
    """What is planned then."""
    numerics: bool = False
    """Whether the model that comes out is another one."""


Answered = Callable[[Question], Estimate]
"""The plan's pick of a question that has one."""


def nothing_fits(
    question: Question, of: JobVariant, leanest: Estimate, answered: Answered, assumed: Collection[str]
) -> str:
    """Say by how much the leanest layout is too large, and what would make room, at the step time that a plan finds then.

    `of` is the variant that the leanest is of. `assumed` are fields that nobody named: a batch among them follows the number
    of GPUs, as does a file's of each GPU.
    """
    job, least = question.jobs[of.origin], float(leanest.memory_bytes_per_gpu)
    limit, device = question.limit_bytes(job), job.cluster.accelerator.memory_bytes
    if leanest.host_memory_bytes > leanest.host_memory_capacity_bytes:
        return (
            f"plan: no layout fits: what goes to the host never fits its {format_bytes(job.cluster.host.memory_bytes)}; "
            "offload_optimizer=false, a smaller offload_activations or more GPUs would need less of it"
        )
    # The leanest has the smallest micro-batch, which goes without saying where a line is short.
    form = ", ".join(map(str, (layout_text(leanest.job.layout).replace("micro-batch 1, ", ""), *of.choices)))
    start = f"plan: no layout fits: the leanest ({form}) needs {needed(leanest, limit)}"
    if least <= device:
        if _keeper(question, job) == "max_memory":
            return f"{start}, which max_memory allows; max_memory = {format_bytes(least)} would do"
        free = max(0.0, 1.0 - least / device)
        if _keeper(question, job) == "headroom":
            return f"{start}, which headroom allows; headroom = {free:.1%} would do"
        risk = 1.0 - float(leanest.fits_probability)
        would = f"risk = {ceil(100.0 * risk)}%" if risk < 0.995 else f"headroom = {free:.1%}"
        return f"{start}, which risk allows, and fits with {1.0 - risk:.0%}; {would} would do"
    if limit < device:
        start = f"{start} ({_keeper(question, job)} keeps {format_bytes(device - limit)} free)"
    switched = list(_switch_remedies(question, job))
    # What leaves the model as it is comes first, and more GPUs before what a long line would cut them for.
    remedies = [
        *(remedy for remedy in switched if not remedy.numerics),
        *_more_gpus(question, job, "global_batch" in assumed),
        *_other_batch(question, job),
        *(remedy for remedy in switched if remedy.numerics),
    ]
    quoted = [*_freed(question, answered), *(_quoted(one, answered(one.question)) for one in remedies)]
    if not quoted:
        return f"{start}; a smaller batch or more memory a GPU is needed"
    sentence = f"{start}; would do: {quoted[0]}"
    for remedy in quoted[1:]:
        longer = f"{sentence}, {remedy}"
        sentence = longer if len(longer) <= _LONGEST else sentence
    return sentence


def _keeper(question: Question, job: Job) -> str:
    """Return what keeps memory of a device free."""
    allowed = job.cluster.accelerator.memory_bytes * (1.0 - question.headroom_share(job))
    if question.max_memory_bytes <= allowed:
        return "max_memory"
    return "risk" if question.headroom is None else "headroom"


def _quoted(remedy: Remedy, best: Estimate) -> str:
    mark = ", changes numerics" if remedy.numerics else ""
    return f"{remedy.change} ({format_seconds(float(best.step_time_s), 3)} a step{mark})"


def _freed(question: Question, answered: Answered) -> list[str]:
    """Quote the named values whose release costs least: a file names more than its reader meant to keep."""
    found = []
    for knob in question.knob_values:
        free = question.without(knob)
        if knob in question.user_knobs and (rows := feasible(free)) is not None:
            found.append((float(rows["step_time_s"][0]), knob, free))
    quoted = []
    for _, knob, free in sorted(found, key=operator.itemgetter(0))[:_MOST_FREED]:
        best = answered(free)
        named = ", ".join(value_text(knob, value) for value in question.knob_values[knob])
        change = f"{knob} = {value_text(knob, float(getattr(best.job.layout, knob)))} instead of {named}"
        quoted.append((float(best.step_time_s), _quoted(Remedy(change, free), best)))
    return [text for _, text in sorted(quoted)]


_CHUNKED = {"cross_entropy": "chunked"}
_AWAY = {"offload_optimizer": True}
_NARROWER = {"grad_accum_dtype": "bf16", "grad_reduce_dtype": "bf16"}
_SAME_MODEL: tuple[tuple[dict[str, Any], str], ...] = (
    (_CHUNKED, ""),
    (_AWAY, ""),
    ({**_AWAY, **_CHUNKED}, ""),
    ({**_AWAY, "offload_activations": 1.0, **_CHUNKED}, ""),
)
"""Switches and an optimizer that save memory, least first; those below change numerics."""
_OTHER_MODEL: tuple[tuple[dict[str, Any], str], ...] = (
    (_NARROWER, ""),
    ({}, "adamw-bf16"),
    ({}, "adamw-8bit"),
    (_NARROWER, "adamw-bf16"),
    (_NARROWER, "adamw-8bit"),
    ({**_NARROWER, **_CHUNKED}, "adamw-bf16"),
    ({**_NARROWER, **_CHUNKED}, "adamw-8bit"),
)


def _switch_remedies(question: Question, job: Job) -> Iterator[Remedy]:
    """Try what a recipe may save: without another result, and with one. One of each is enough."""
    framework = framework_of(job.recipe.launches)
    for tries in (_SAME_MODEL, _OTHER_MODEL):
        for switches, other in tries:
            if other and framework is not None and other not in framework.optimizers:
                continue
            numerics = tries is _OTHER_MODEL
            found = _tried(question, job, switches, other if job.optimizer.name == "adamw" else "", numerics)
            if found is not None:
                yield found
                break


def _tried(
    question: Question, job: Job, switches: Mapping[str, Any], other_optimizer: str, numerics: bool
) -> Remedy | None:
    """Return a change of switches and optimizer as a remedy, if it is one and no change of what the user named."""
    changed = {name: value for name, value in switches.items() if job.switches[name] != value}
    if (not changed and not other_optimizer) or question.user_switches & set(changed):
        return None
    try:
        with_optimizer = replace(job, optimizer=optimizer(other_optimizer)) if other_optimizer else job
        tried = replace(
            question,
            jobs=(with_optimizer.switched(changed),),
            user_switches=question.user_switches | {*changed},
        )
        if feasible(tried) is None:
            return None
    except CostModelError:
        return None  # what no host steps, or this recipe does not have
    flags = [f"--set {name}={switch_text(value)}" for name, value in changed.items()]
    flags += [f"--optimizer {other_optimizer}"] if other_optimizer else []
    return Remedy(" ".join(flags), tried, numerics)


def lacking_factor(gpus: float, batch: float) -> int:
    """Return what of the GPUs' odd factors the batch has not: replicas cannot be as many, so other axes must take it.

    >>> lacking_factor(72, 1024), lacking_factor(72, 1008), lacking_factor(96, 1026), lacking_factor(64, 1000)
    (9, 1, 1, 1)
    """
    odd = int(gpus)
    while odd % 2 == 0:
        odd //= 2
    return odd // gcd(odd, int(batch))


def dividing_batch(gpus: float, batch: float) -> float:
    """Return the multiple of the GPUs that is nearest to a batch.

    >>> dividing_batch(72, 1024), dividing_batch(24, 2048), dividing_batch(72, 16)
    (1008.0, 2040.0, 72.0)
    """
    return float(max(round(batch / gpus), 1) * gpus)


def _other_batch(question: Question, job: Job) -> Iterator[Remedy]:
    """Try the nearest batch that the GPUs divide, where both share few factors."""
    gpus, batch = float(job.layout.gpus), float(job.global_batch)
    nearest = dividing_batch(gpus, batch)
    other = replace(question, jobs=(job_with(job, global_batch=nearest),))
    if lacking_factor(gpus, batch) > 1 and feasible(other) is not None:
        yield Remedy(f"global_batch = {nearest:.0f} instead of {batch:.0f}", other)


def has_slices(job: Job) -> bool:
    """Say whether a job runs on slices of a torus, which come in some sizes only."""
    return any(tier.topology == "torus" for tier in job.cluster.tiers)


def _more_gpus(question: Question, job: Job, is_usual_batch: bool) -> Iterator[Remedy]:
    """Try twice, four … times the GPUs, then halve the way twice to the fewest that do, in whole nodes."""
    gpus, most, node = float(job.layout.gpus), job.cluster.tiers[-1].size, max(job.cluster.gpus_per_node, 1)

    def of_file(count: float) -> float | None:
        """Return the batch that the planned file has on so many GPUs, none where it has one batch or a flag says it."""
        file = question.file
        own = file.keywords.get("global_batch") if file is not None and file.reading else None
        if file is None or own is None or float(own) != float(job.global_batch):
            return None
        given = {name: value for name, value in file.reading.items() if name in FIELD}
        found = file.with_flags({**given, "gpus": int(count)}).get("global_batch")
        return None if found is None else float(found)

    def on(count: float) -> Question | None:
        usual = usual_batch({"model": job.model, "seq_len": float(job.seq_len), "gpus": int(count)})
        batch = float(usual["global_batch"]) if is_usual_batch else of_file(count)
        more = replace(question, jobs=(job_with(job, gpus=count, global_batch=batch),))
        return None if feasible(more) is None else more

    doubled = [gpus * 2.0**doubling for doubling in range(1, _MOST_GPU_DOUBLINGS + 1)]
    for enough in (count for count in doubled if count <= most):
        found = on(enough)
        if found is None:
            continue
        best, step = enough, enough / 4.0
        for _ in range(0 if has_slices(job) else 2):
            fewer = best - step
            if fewer % node or fewer % 1.0 or fewer <= enough / 2.0:
                break
            tried = on(fewer)
            if tried is not None:
                best, found = fewer, tried
            step /= 2.0
        then = float(found.jobs[0].global_batch)
        follows = is_usual_batch or then != float(job.global_batch)
        batch = f" with batch {then:.0f}" if follows else ""
        yield Remedy(f"{plural(best, 'GPU', form='.0f')}{batch}", found)
        return


def needed(est: Estimate, limit_bytes: float | None = None) -> str:
    """Say what memory a layout needs of a GPU's, or of a limit, and of the host's where it sends anything there."""
    need = f"{format_bytes(float(est.memory_bytes_per_gpu))} of {format_bytes(limit_bytes or est.memory_capacity_bytes)}"
    host = f", its host {format_bytes(float(est.host_memory_bytes))} of {format_bytes(est.host_memory_capacity_bytes)}"
    return need + (host if est.host_memory_bytes else "")


def feasible(question: Question) -> Columns | None:
    """Return the best layout of a changed question, if there is one."""
    tally = Tally()
    for part in priced_parts(question):
        tally.add(question, part, 1)
    return None if tally.candidates is None else tally.candidates.top


def nothing_divides(question: Question, rejected: Counter[str]) -> str:
    """Name the rule that removes everything, and the nearest change of one given number that does not."""
    for knob in question.knob_values:
        free = question.without(knob)
        slabs = [slab for job in question.jobs for slab in space_of(free, job).slabs]
        allowed = sorted({value for slab in slabs for value in _values(knob, slab)})
        if allowed:
            fixed = ", ".join(value_text(knob, value) for value in question.knob_values[knob])
            would = ", ".join(value_text(knob, value) for value in allowed[:12])
            why = reason_of(question, rejected)
            return (
                f"plan: no layout with {knob} = {fixed} is possible ({why}); with the other constraints "
                f"{would} would do"
            )
    job = question.jobs[0]
    for name, nearest in (
        ("global_batch", _near(float(job.global_batch))),
        ("gpus", _near(float(job.layout.gpus))),
    ):
        for value in nearest:
            if name == "gpus" and value > job.cluster.tiers[-1].size:
                continue
            changed = replace(question, jobs=(job_with(job, **{name: value}),))
            if space_of(changed, changed.jobs[0]).num_possible:
                now = float(getattr(job, name) if name == "global_batch" else job.layout.gpus)
                why = reason_of(question, rejected)
                return f"plan: no layout divides ({why}); {name} = {value:.0f} instead of {now:.0f} would do"
    return f"plan: no layout divides: {reason_of(question, rejected)}"


def _values(knob: str, slab: Slab) -> list[float]:
    """Values of a knob that occur in a slab."""
    placed = slab.placements.get(knob)
    return distinct(getattr(slab, knob) if placed is None else placed)


def reason_of(question: Question, rejected: Counter[str]) -> str:
    """Return the reason that removes the last layouts, in words: each rule counts what those before it left."""
    code = list(rejected)[-1] if rejected else ""
    if code.endswith("_of_schedule") and question.file:
        batches = question.file.batches
        return f"{REASONS[code]}, which has {len(batches)}, {batches[0]} to {batches[-1]}"
    return REASONS[code] if code else "there is nothing to try"


def _near(number: float) -> Iterator[float]:
    """Yield numbers near one, nearest first, then the powers of two around it."""
    for step in range(1, 33):
        yield number + step
        if number - step >= 1:
            yield number - step
    power = 2.0 ** np.floor(np.log2(number))
    yield from (2.0 * power, power)


def job_with(job: Job, *, gpus: float | None = None, global_batch: float | None = None) -> Job:
    """Return the job with another number of GPUs or another batch."""
    return replace(
        job,
        layout=job.layout if gpus is None else make_layout(gpus=gpus),
        global_batch=job.global_batch if global_batch is None else np.asarray(global_batch),
    )
