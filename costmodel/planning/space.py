"""The space of layouts: values of each knob, what divides, and why the rest is out.

Placements (pp, tp, sequence parallelism, cp, ep, etp, micro-batch) are masked on an open mesh of their own, so that
nothing is priced for a combination that does not divide. What is left is one array dimension; schedule with virtual
stages, recompute policy, and sharding are three more. Each rejected layout is counted under the first rule that it breaks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.base.numbers import distinct, divisors
from costmodel.bill.lines import without_constant_axes
from costmodel.describe.jobs.fields import LAYOUT_FIELDS, RECOMPUTE_POLICIES, names
from costmodel.describe.jobs.job import Job
from costmodel.describe.jobs.layout import Layout, layout_problems, torus_problem
from costmodel.interop.assertions.facts import facts
from costmodel.interop.assertions.tables import ASSERTIONS, Assertion, asserted
from costmodel.physics.pipeline.schedule_table import SCHEDULES
from costmodel.physics.pipeline.schedules import schedule_code, valid
from costmodel.step.placed_job import stage_split

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

_PLACEMENTS = names(field for field in LAYOUT_FIELDS if field.tuned == "placement")
PLACEMENT_KNOBS = ("pp", *(knob for knob in _PLACEMENTS if knob != "pp"))
"""Knobs that say where ranks sit."""

_MAX_MICRO_BATCH = 64
_MAX_VIRTUAL_STAGES = 16
_MAX_EXPERT_TENSOR = 8
_MIN_TOKENS_PER_CONTEXT_RANK = 1024
_RUNS_WORTH_A_DIMENSION = 0.5
_MORE_RUNS_WORTH_A_SLAB = 1500

REASONS = {
    "gpus_not_divisible": "tp·cp·pp does not divide the GPUs",
    "heads_not_divisible": "tp does not divide the attention heads",
    "ffn_not_divisible": "tp does not divide the MLP width",
    "shared_expert_not_divisible": "tp does not divide the width of the shared experts",
    "expert_ffn_not_divisible": "etp does not divide the width of the experts",
    "layer_embeddings_split": "embeddings of each layer, which no tp splits",
    "sequence_not_divisible": "cp·tp does not divide the sequence",
    "too_many_stages": "more pipeline chunks than layers",
    "batch_not_divisible": "dp·micro_batch does not divide the batch",
    "experts_not_divisible": "ep does not divide the experts",
    "expert_ranks_not_divisible": "ep·etp does not divide tp·cp·dp",
    "heads_not_divisible_by_cp": "tp·cp does not divide the heads that Ulysses divides",
    "heads_not_divisible_by_a2a": "what a2a+p2p swaps inside a node divides cp or the heads of keys not",
    "shard_group_not_divisible": "shard_group does not divide dp·cp",
    "vp_without_pp": "virtual stages without a pipeline",
    "vp_not_divisible": "layers not divisible by pp x vp",
    "sequence_parallel_without_tp": "sequence parallelism without tp",
    "not_along_the_torus": "groups that do not lie along the sides of the slice",
    "tp_beyond_domain": "tp leaves the scale-up domain",
    "schedule_cannot_run": "the schedule cannot run these stages and micro-batches",
    "sharding_not_divisible": "shard_group without sharding, or not a part of dp·cp",
    "batch_of_schedule": "dp·micro_batch does not divide a batch of the file's schedule",
    "run_of_schedule": "the pipeline cannot run the micro-batches of a batch of the file's schedule",
    "does_not_fit": "needs more memory than is allowed",
    **{code: assertion.in_words for code, assertion in ASSERTIONS.items()},
}
"""Why a layout is out, in words."""


def default_values(job: Job, gpus: float) -> dict[str, tuple[float, ...]]:
    """Return the values that a search tries for each knob where the user names none."""
    model, domain = job.model, float(job.cluster.tiers[0].size)
    batch, seq = float(np.max(job.global_batch)), float(np.max(job.seq_len))
    moe = model.num_experts > 0
    places = model.num_layers + 2
    beyond = (domain * 2.0**k for k in range(1, 24))
    groups = [*divisors(min(domain, gpus))[1:], *(size for size in beyond if size < gpus)]
    if moe:
        # Experts shard over a group of their own; the rest rarely goes beyond one domain.
        groups = [domain] if domain < gpus else []
    return {
        "tp": divisors(gpus, min(4.0 * domain, model.num_heads)),
        "sequence_parallel": (0.0, 1.0),
        "cp": divisors(gpus, max(1.0, seq / _MIN_TOKENS_PER_CONTEXT_RANK)),
        "ep": tuple(d for d in divisors(model.num_experts) if gpus % d == 0) if moe else (1.0,),
        "etp": divisors(gpus, min(_MAX_EXPERT_TENSOR, domain)) if moe else (1.0,),
        "micro_batch": divisors(batch, _MAX_MICRO_BATCH),
        "pp": divisors(gpus, model.num_layers),
        "vp": tuple(float(v) for v in range(1, min(places // 2, _MAX_VIRTUAL_STAGES) + 1)),
        "schedule": tuple(float(code) for code in range(len(SCHEDULES))),
        "recompute": tuple(float(code) for code in range(len(RECOMPUTE_POLICIES))),
        "zero_stage": (0.0, 1.0, 2.0, 3.0),
        "shard_group": (0.0, *groups),
    }


@dataclass(frozen=True)
class Slab:
    """Layouts of one number of GPUs that divide, as sharding x recompute x schedule x placement."""

    gpus: float
    placements: Mapping[str, Array]
    number: NDArray[np.int64]
    """Which placement of the space each is: with one schedule each, a placement may stand here several times."""
    schedule: Array
    vp: Array
    """As `schedule` by schedule and placement; the latter of one where they are the same for all placements."""
    recompute: Array
    zero_stage: Array
    shard_group: Array
    possible: Mask

    @property
    def shape(self) -> tuple[int, ...]:
        """Sharding x recompute x schedule x placement."""
        return self.possible.shape

    @property
    def num_possible(self) -> int:
        """Layouts of the slab that can run."""
        return int(np.count_nonzero(self.possible))

    def layout(self) -> Layout:
        """Return the slab as an open mesh."""
        return Layout(
            gpus=np.asarray(self.gpus),
            **{knob: without_constant_axes(values) for knob, values in self.placements.items()},
            vp=without_constant_axes(self.vp[0] if len(self.vp) == 1 else self.vp),
            schedule=self.schedule[0] if len(self.schedule) == 1 else self.schedule,
            recompute=self.recompute[:, None, None],
            zero_stage=self.zero_stage[:, None, None, None],
            shard_group=self.shard_group[:, None, None, None],
        )

    def parts(self, most: int) -> Iterator[Slab]:
        """Cut the slab along its placements so that no part has more than `most` layouts."""
        *policies, total = self.shape
        for some in np.array_split(np.arange(total), ceil(total / max(1, most // prod(policies)))):
            yield self._taking(some).where(True)

    def where(self, fine: Mask | bool) -> Slab:
        """Return the slab of the layouts that are fine, without placements and policies that have none of them."""
        possible = self.possible & fine
        sharding, recompute, schedule, placement = (
            np.flatnonzero(possible.any(axis=tuple({0, 1, 2, 3} - {axis}))) for axis in range(4)
        )
        part = replace(self, possible=possible)._taking(placement)
        return replace(
            part,
            schedule=part.schedule[schedule],
            vp=part.vp[schedule],
            recompute=part.recompute[recompute],
            zero_stage=part.zero_stage[sharding],
            shard_group=part.shard_group[sharding],
            possible=part.possible[np.ix_(sharding, recompute, schedule)],
        )

    def _taking(self, some: NDArray[np.int64]) -> Slab:
        """Return the slab of some of its placements."""
        return replace(
            self,
            placements={knob: values[some] for knob, values in self.placements.items()},
            number=self.number[some],
            schedule=self.schedule[:, some] if self.schedule.shape[1] > 1 else self.schedule,
            vp=self.vp[:, some] if self.vp.shape[1] > 1 else self.vp,
            possible=self.possible[..., some],
        )


class Space(NamedTuple):
    """The slabs of a search, and the count of what is not in them."""

    slabs: tuple[Slab, ...]
    considered: int
    rejected: Counter[str]

    @property
    def num_possible(self) -> int:
        """Layouts that can run."""
        return sum(slab.num_possible for slab in self.slabs)


def build_space(
    job: Job,
    gpus: float,
    values: Mapping[str, Sequence[float]],
    *,
    tp_in_domain: bool = True,
    launchable_only: bool = False,
    among: Mapping[str, Array] | None = None,
    batches: Sequence[int] = (),
) -> Space:
    """Return the layouts on `gpus` that divide, and count the others by the first rule that they break.

    The layout of the job is not looked at. `tp_in_domain` keeps tensor parallelism in the innermost domain, `launchable_only`
    to what the recipe's framework starts; `among` are placements to look at in place of all combinations of values. With
    `batches`, a layout has to run each of them, beside the job's.
    """
    rejected: Counter[str] = Counter()
    arrays = {knob: np.asarray(each, dtype=np.float64) for knob, each in values.items()}
    schedule, vp = (grid.ravel() for grid in np.meshgrid(arrays["schedule"], arrays["vp"], indexing="ij"))
    zero, group = (
        grid.ravel() for grid in np.meshgrid(arrays["zero_stage"], arrays["shard_group"], indexing="ij")
    )
    per_run = len(zero) * len(arrays["recompute"])

    mesh = dict(zip(PLACEMENT_KNOBS, np.ix_(*(arrays[knob] for knob in PLACEMENT_KNOBS)), strict=True))
    mesh = mesh if among is None else {knob: among[knob] for knob in PLACEMENT_KNOBS}
    alive = np.ones(np.broadcast_shapes(*(each.shape for each in mesh.values())), dtype=bool)
    considered = alive.size * len(schedule) * per_run
    rules = _placement_rules(job, gpus, mesh, tp_in_domain)
    a_time = gpus / (mesh["tp"] * mesh["cp"] * mesh["pp"]) * mesh["micro_batch"]
    rules += [("batch_of_schedule", batch % a_time != 0) for batch in batches]
    for code, bad in rules:
        out = alive & bad
        rejected[code] += int(out.sum()) * len(schedule) * per_run
        alive &= ~out
    placements = {knob: np.broadcast_to(each, alive.shape)[alive] for knob, each in mesh.items()}
    if not alive.any():
        return Space((), considered, +rejected)

    # Schedules see no more of a placement than its stages and its micro-batches.
    sizes = [placements[knob] for knob in ("tp", "cp", "pp")]
    micro_batches = np.max(job.global_batch) * prod(sizes) / (gpus * placements["micro_batch"])
    kinds, of_kind = np.unique(np.stack([placements["pp"], micro_batches]), axis=1, return_inverse=True)
    runs = np.ones((len(schedule), kinds.shape[1]), dtype=bool)
    count = np.bincount(of_kind.ravel(), minlength=kinds.shape[1])
    rules = _schedule_rules(job, schedule[:, None], vp[:, None], *kinds)
    for batch in batches:
        counts = kinds[1] * batch / np.max(job.global_batch)
        rules.append(("run_of_schedule", ~valid(schedule[:, None], kinds[0], counts, vp[:, None])))
    for code, bad in rules:
        out = runs & bad
        rejected[code] += int(out.sum(axis=0) @ count) * per_run
        runs &= ~out
    runs = runs[:, of_kind.ravel()]

    # A bill for few costs as much as for many: what is not many of one number of stages stands side by side.
    alone = np.zeros(len(of_kind.ravel()), dtype=bool)
    cut = []
    for stages in distinct(placements["pp"]):
        here = np.flatnonzero(placements["pp"] == stages)
        used = np.flatnonzero(runs[:, here].any(axis=1))
        if _is_dense(runs[np.ix_(used, here)]):
            alone[here] = True
            cut.append((here, schedule[used, None], vp[used, None], runs[np.ix_(used, here)]))
    row, column = np.nonzero(runs & ~alone)
    cut.append((column, schedule[row][None], vp[row][None], np.ones((1, len(row)), dtype=bool)))
    slabs = []
    for number, schedules, chunks, can_run in cut:
        some = {knob: each[number] for knob, each in placements.items()}
        ranks = gpus / (some["tp"] * some["pp"])  # dp x cp
        groups = group[:, None]
        divides = (groups == 0) | ((ranks % np.maximum(groups, 1.0) == 0) & (groups < ranks))
        shards = divides & ((group == 0) | (zero > 0))[:, None]
        rejected["sharding_not_divisible"] += int(
            (can_run.sum(axis=0) * (~shards).sum(axis=0)).sum() * len(arrays["recompute"])
        )
        possible = np.repeat(shards[:, None, None, :] & can_run, len(arrays["recompute"]), axis=1)
        slab = Slab(gpus, some, number, schedules, chunks, arrays["recompute"], zero, group, possible)
        slabs.append(_launched(job, slab, rejected) if launchable_only else slab.where(True))
    return Space(tuple(slab for slab in slabs if slab.num_possible), considered, +rejected)


def _is_dense(runs: Mask) -> bool:
    """Tell whether a dimension of schedules saves more than a slab of its own costs."""
    some = runs[:, runs.any(axis=0)]
    return bool(
        some.sum() - some.shape[1] > _MORE_RUNS_WORTH_A_SLAB and some.mean() >= _RUNS_WORTH_A_DIMENSION
    )


def _launched(job: Job, slab: Slab, rejected: Counter[str]) -> Slab:
    """Return the layouts of a slab that the job's framework starts; counts those that it refuses."""
    if not slab.possible.size:
        return slab
    possible, known = slab.possible.copy(), facts(replace(job, layout=slab.layout()))
    for assertion in asserted_of(job):
        bad = assertion.bad(known)
        if bad.any():
            rejected[assertion.code] += int(np.count_nonzero(possible & bad))
            possible &= ~bad
    return slab.where(possible)


def asserted_of(job: Job) -> tuple[Assertion, ...]:
    """Return what the framework of a job's recipe asserts."""
    launches = job.recipe.launches
    return asserted("none" if launches is None else launches.framework, job)


def _placement_rules(
    job: Job, gpus: float, mesh: Mapping[str, Array], tp_in_domain: bool
) -> list[tuple[str, Mask]]:
    """Return the rules of a placement with the mask of those that break them."""
    nothing = dict.fromkeys(("zero_stage", "shard_group", "recompute", "schedule"), np.asarray(0.0))
    layout = Layout(gpus=np.asarray(gpus), vp=np.asarray(1.0), **mesh, **nothing)
    problems = layout_problems(layout, job.model, job.global_batch, job.seq_len, job.recipe.overlap)
    problems = [*problems, torus_problem(layout, job.cluster, job.axis_order)]
    rules = [(problem.code, problem.bad) for problem in problems]
    if np.any(mesh["sequence_parallel"] == 0):
        # With one rank it changes nothing, so that one of the two values is enough.
        alone = (mesh["sequence_parallel"] > 0) & (mesh["tp"] == 1)
        rules.append(("sequence_parallel_without_tp", alone))
    if tp_in_domain:
        rules.append(("tp_beyond_domain", mesh["tp"] > float(job.cluster.tiers[0].size)))
    return rules


def _schedule_rules(
    job: Job, schedule: Array, vp: Array, pp: Array, micro_batches: Array
) -> list[tuple[str, Mask]]:
    """Return the rules of schedules and virtual stages, with the mask of what breaks them."""
    runs = valid(schedule, pp, micro_batches, vp)
    # One stage runs no schedule, several run one.
    runs &= (schedule == schedule_code("none")) == (pp == 1)
    return [
        ("vp_without_pp", (vp > 1) & (pp == 1)),
        ("vp_not_divisible", ~_even_chunks(job, pp, vp)),
        ("schedule_cannot_run", ~runs),
    ]


def _even_chunks(job: Job, pp: Array, vp: Array) -> Mask:
    """Where all chunks of a rank hold as many layers: ranks that interleave wait for each other's larger ones.

    Embedding and head may take the places of layers, up to all of a chunk each. On nodes of two kinds ranks have layers
    by their speed, which is known once they are priced.
    """
    layers, memory = job.model.num_layers, job.recipe.memory
    if not job.balanced_stages:
        places = layers + int(memory.embedding_as_layer) + int(memory.head_as_layer)
        return np.asarray((vp == 1) | ((np.ceil(places / pp) % vp == 0) & (pp * vp <= places)))
    if job.cluster.mixed is not None and job.cluster.mixed.layers_by_speed:
        return np.asarray((vp == 1) | (pp * vp <= layers))
    schedule = np.asarray(float(schedule_code("interleaved")))
    split = stage_split(replace(job, layout=replace(job.layout, pp=pp, vp=vp, schedule=schedule)))
    places = layers + np.asarray(split.embedding) + np.asarray(split.head)
    return np.asarray((vp == 1) | ((places % (pp * vp) == 0) & (pp * vp <= layers + 2)))
