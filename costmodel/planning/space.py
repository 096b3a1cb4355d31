"""The space of layouts: values of each knob, what divides, and why the rest is out.

Placements (pp, tp, sequence parallelism, cp, ep, etp, micro-batch) are masked on an open mesh of
their own, so that nothing is priced for a combination that does not divide. What is left is one
array dimension; schedule with virtual stages, recompute policy, and sharding are three more. Each
rejected layout is counted under the first rule that it breaks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.base.divisors import divisors
from costmodel.bill.lines import settled
from costmodel.describe.jobs.fields import LAYOUT_FIELDS, RECOMPUTE_POLICIES, names
from costmodel.describe.jobs.job import Job
from costmodel.describe.jobs.layout import Layout, layout_problems, torus_problem
from costmodel.interop.assertions.tables import ASSERTIONS
from costmodel.physics.network.expert_dispatch import DISPATCHERS
from costmodel.physics.pipeline.schedule_table import SCHEDULES
from costmodel.physics.pipeline.schedules import fact, schedule_code, valid
from costmodel.physics.pipeline.stages import Fold
from costmodel.planning.launchable import Policies, Refused, refused
from costmodel.step.price import stage_split

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

_PLACEMENTS = names(field for field in LAYOUT_FIELDS if field.turned == "placement")
PLACEMENT_KNOBS = ("pp", *(knob for knob in _PLACEMENTS if knob != "pp"))
"""Knobs that say where ranks sit; stages come first, so that placements of one number of them lie together."""

_MAX_MICRO_BATCH = 64
_MAX_VIRTUAL_STAGES = 16
_MAX_EXPERT_TENSOR = 8
_MIN_TOKENS_PER_CONTEXT_RANK = 1024
_SCHEDULES_WORTH_A_LINE = 3
_RUNS_WORTH_A_DIMENSION = 0.5
_RUNS_WORTH_A_SLAB = 300
_PLACEMENTS_WORTH_A_SLAB = 1500

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
    "heads_not_divisible_by_cp": "tp·cp does not divide the heads that Ulysses deals out",
    "heads_not_divisible_by_a2a": "what a2a+p2p swaps inside a node divides cp or the heads of keys not",
    "shard_group_not_divisible": "shard_group does not divide dp·cp",
    "vp_without_pp": "virtual stages without a pipeline",
    "vp_not_divisible": "layers not divisible by pp x vp",
    "sequence_parallel_without_tp": "sequence parallelism without tp",
    "not_along_the_torus": "groups that do not lie along the sides of the slice",
    "tp_beyond_domain": "tp leaves the scale-up domain",
    "experts_beyond_domain": "ep leaves the scale-up domain without a dispatcher that knows nodes",
    "schedule_cannot_run": "the schedule cannot run these stages and micro-batches",
    "sharding_not_divisible": "shard_group without sharding, or not a part of dp·cp",
    "choice_not_started": "experts that the other dispatcher is not for",
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


class Shardings(NamedTuple):
    """Shardings of a slab whose bills have the same lines, as an open mesh before its other dimensions.

    The first dimension is of ZeRO's stages that send alike, such as 1 and 2 of most frameworks, so that only what
    tells them apart is spread over it; the second of what they shard over.
    """

    at: NDArray[np.int64]
    """Which of the slab's shardings each is; where stages are fewer, one stands for several."""
    zero_stage: Array
    shard_group: Array


@dataclass(frozen=True)
class Slab:
    """Layouts of one number of GPUs that divide, with schedules that deal layers to ranks alike.

    The dimensions are sharding, recompute, schedule and placement, the last one the longest. `schedule` and
    `vp` are by schedule and placement; the latter of one where they are the same for all placements.
    """

    gpus: float
    placements: Mapping[str, Array]
    schedule: Array
    vp: Array
    recompute: Array
    zero_stage: Array
    shard_group: Array
    runs: Mask
    shards: Mask
    recomputes: Mask

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Sharding x recompute x schedule x placement."""
        return len(self.zero_stage), len(self.recompute), len(self.schedule), len(self.placements["tp"])

    @property
    def num_possible(self) -> int:
        """Layouts of the slab that can run."""
        return int((self.runs.sum(axis=0) * self.shards.sum(axis=0) * self.recomputes.sum(axis=0)).sum())

    def layout(self) -> Layout:
        """Return the slab as an open mesh."""
        return Layout(
            gpus=np.asarray(self.gpus),
            **self.placements,
            vp=settled(self.vp[0] if len(self.vp) == 1 else self.vp),
            schedule=self.schedule[0] if len(self.schedule) == 1 else self.schedule,
            recompute=self.recompute[:, None, None],
            zero_stage=self.zero_stage[:, None, None, None],
            shard_group=self.shard_group[:, None, None, None],
        )

    def shardings(self) -> Iterator[Shardings]:
        """Yield those that leave parameters whole, and those that shard them: what either sends the other does not."""
        sharded = self.zero_stage >= 3
        for some in (np.flatnonzero(~sharded), np.flatnonzero(sharded)):
            columns: dict[tuple[bool, float], list[int]] = {}
            for index in some:
                same = bool(self.zero_stage[index] > 0), float(self.shard_group[index])
                columns.setdefault(same, []).append(int(index))
            stages = max(map(len, columns.values()), default=0)
            if stages:
                at = np.asarray(
                    [[each[min(row, len(each) - 1)] for each in columns.values()] for row in range(stages)]
                )
                mesh = *at.shape, 1, 1, 1
                yield Shardings(
                    at, self.zero_stage[at].reshape(mesh), self.shard_group[at[:1]].reshape(1, *mesh[1:])
                )

    def possible(self) -> Mask:
        """Return the mask of layouts that can run; without a dimension of recomputation where all can."""
        possible = self.runs[None, None, :, :] & self.shards[:, None, None, :]
        return possible if self.recomputes.all() else possible & self.recomputes[None, :, None, :]

    def parts(self, most: int) -> Iterator[Slab]:
        """Cut the slab along its placements so that no part has more than `most` layouts."""
        sharding, recompute, schedules, _ = self.shape
        # The many lines of sharded parameters do not know the schedule: few schedules save little.
        policies = sharding * recompute * max(schedules, _SCHEDULES_WORTH_A_LINE)
        step = max(1, most // policies)
        total = self.shape[3]
        step = ceil(total / ceil(total / step))
        for start in range(0, total, step):
            yield self.taking(slice(start, start + step)).trimmed()

    def taking(self, chosen: slice | Mask) -> Slab:
        """Return the slab of some of its placements."""
        return replace(
            self,
            placements={knob: values[chosen] for knob, values in self.placements.items()},
            schedule=_of_placements(self.schedule, chosen),
            vp=_of_placements(self.vp, chosen),
            runs=self.runs[:, chosen],
            shards=self.shards[:, chosen],
            recomputes=self.recomputes[:, chosen],
        )

    def trimmed(self) -> Slab:
        """Drop placements that cannot run at all, and policies that none of the others can use."""
        part = self.taking(
            np.asarray(self.runs.any(axis=0) & self.shards.any(axis=0) & self.recomputes.any(axis=0))
        )
        run, shard, recompute = (used.any(axis=1) for used in (part.runs, part.shards, part.recomputes))
        return replace(
            part,
            schedule=part.schedule[run],
            vp=part.vp[run],
            runs=part.runs[run],
            zero_stage=part.zero_stage[shard],
            shard_group=part.shard_group[shard],
            shards=part.shards[shard],
            recompute=part.recompute[recompute],
            recomputes=part.recomputes[recompute],
        )


def _of_placements(values: Array, chosen: slice | Mask) -> Array:
    """Return what is by schedule and placement for some of the placements."""
    return values[:, chosen] if values.shape[1] > 1 else values


class Space(NamedTuple):
    """The slabs of a search, and the count of what is not in them."""

    slabs: list[Slab]
    considered: int
    rejected: Counter[str]


def build_space(
    job: Job,
    gpus: float,
    values: Mapping[str, Sequence[float]],
    *,
    tp_in_domain: bool = True,
    launchable: bool = False,
    among: Mapping[str, Array] | None = None,
) -> Space:
    """Return the layouts on `gpus` that divide, by number of stages, and count the others by reason.

    Parameters
    ----------
    job : Job
        Model, cluster, batch and sequence length; its layout is not looked at.
    gpus : float
        GPUs of the job. [-]
    values : mapping of str to sequence of float
        Values of every knob.
    tp_in_domain : bool
        Whether tensor parallelism must stay in the innermost domain.
    launchable : bool
        Whether to keep to what the recipe's framework starts.
    among : mapping of str to Array, optional
        The only placements to look at, a column a knob, of values that `values` has.
    """
    rejected: Counter[str] = Counter()
    per_placement = prod(
        len(values[knob]) for knob in ("vp", "schedule", "recompute", "zero_stage", "shard_group")
    )
    axes = [np.asarray(values[knob], dtype=np.float64) for knob in PLACEMENT_KNOBS]
    mesh = dict(zip(PLACEMENT_KNOBS, np.ix_(*axes), strict=True))
    shape = tuple(len(axis) for axis in axes)
    alive = np.full(shape, among is None)
    if among is not None:
        alive[
            tuple(
                np.argmax(axis == among[knob][:, None], axis=1) for knob, axis in zip(mesh, axes, strict=True)
            )
        ] = True
    policies = _policies(values)
    out_of_reach = refused(job, gpus, mesh, policies) if launchable else []
    rules = _placement_rules(job, gpus, mesh, tp_in_domain)
    rules += [(each.code, each.bad) for each in out_of_reach if not each.policy]
    for code, bad in [*rules, *(_launch_rules(job, mesh) if launchable else ())]:
        out = alive & bad
        rejected[code] += int(out.sum()) * per_placement
        alive &= ~out
    by_stages = []
    # Stages come first among the knobs, so that placements of one number of them lie together.
    for index in range(len(axes[0])):
        where = (np.full(int(alive[index].sum()), index), *np.nonzero(alive[index]))
        placements = {knob: axis[w] for knob, axis, w in zip(PLACEMENT_KNOBS, axes, where, strict=True)}
        if where[0].size:
            stopped = [(each, each.at(where)) for each in out_of_reach if each.policy]
            by_stages.append(_with_policies(job, gpus, placements, policies, rejected, stopped))
    return Space(_by_split(by_stages, job.balanced_stages), prod(shape) * per_placement, +rejected)


def _by_split(by_stages: list[Slab], balanced: bool) -> list[Slab]:
    """Join the slabs of all numbers of stages, and part them by how schedules deal layers to ranks.

    How stages share ranks decides what each holds, and whether the backward pass is split what the host
    issues in it; alike within a slab, neither spreads the lines of parameters, gradients and layers over the
    dimension of schedules.
    """
    if not by_stages:
        return []
    whole = _joined(by_stages)
    # Ranks are balanced for their number of chunks.
    splits = (fact("fold", whole.schedule) + len(Fold) * (whole.vp if balanced else 0.0))[:, 0]
    splits = np.where(fact("splits_backward", whole.schedule)[:, 0] > 0, -1.0 - splits, splits)
    alike = []
    for kind in np.unique(splits):
        here = splits == kind
        here &= whole.runs.any(axis=1)
        if here.any():
            alike.append(
                replace(whole, schedule=whole.schedule[here], vp=whole.vp[here], runs=whole.runs[here])
            )
    is_dense = [slab.runs.sum() > _RUNS_WORTH_A_SLAB and not _is_sparse(slab) for slab in alike]
    is_dense = [dense and len(slab.schedule) > 1 for slab, dense in zip(alike, is_dense, strict=True)]
    dense = [slab for slab, whole in zip(alike, is_dense, strict=True) if whole]
    single = [slab for slab, whole in zip(alike, is_dense, strict=True) if not whole]
    slabs = [*dense, *(_by_stages(_one_below_another(single)) if single else [])]
    return [slab for slab in (slab.trimmed() for slab in slabs) if slab.num_possible]


def _by_stages(single: Slab) -> list[Slab]:
    """Part a slab of schedules that share little: by the number of stages, or into what runs, side by side.

    Placements of as many stages run nearly the same numbers of chunks. Where they are many, a slab of their own
    is dense, and prices what knows no schedule once for all of them; the few that are left lie side by side.
    """
    slabs, few = [], []
    for stages in np.unique(single.placements["pp"]):
        alike = single.taking(single.placements["pp"] == stages)
        rows = alike.trimmed()
        saved = rows.runs.sum() - rows.runs.shape[1]
        if saved > _PLACEMENTS_WORTH_A_SLAB and not _is_sparse(rows):
            slabs.append(rows)
        else:
            few.append(alike)
    return [*slabs, _side_by_side(few)] if few else slabs


def _one_below_another(slabs: Sequence[Slab]) -> Slab:
    """Join slabs of the same placements along their schedules."""
    schedule, vp, runs = (
        np.concatenate(each)
        for each in zip(*((one.schedule, one.vp, one.runs) for one in slabs), strict=True)
    )
    return replace(slabs[0], schedule=schedule, vp=vp, runs=runs)


def _is_sparse(slab: Slab) -> bool:
    """Tell whether few of a slab's placements run most of its schedules, as those of many chunks."""
    return float(slab.runs[:, slab.runs.any(axis=0)].mean()) < _RUNS_WORTH_A_DIMENSION


def _joined(slabs: Sequence[Slab]) -> Slab:
    """Join slabs of the same policies along their placements."""
    return replace(
        slabs[0],
        placements={
            knob: np.concatenate([slab.placements[knob] for slab in slabs]) for knob in PLACEMENT_KNOBS
        },
        runs=np.concatenate([slab.runs for slab in slabs], axis=1),
        shards=np.concatenate([slab.shards for slab in slabs], axis=1),
        recomputes=np.concatenate([slab.recomputes for slab in slabs], axis=1),
    )


def _side_by_side(slabs: Sequence[Slab]) -> Slab:
    """Join what runs as placements of one schedule each, whichever it is: a bill for few costs as much as for many."""
    flat = [_flat(slab) for slab in slabs]
    schedule, vp = (
        np.concatenate(each, axis=1)
        for each in ([slab.schedule for slab in flat], [slab.vp for slab in flat])
    )
    return replace(_joined(flat), schedule=schedule, vp=vp)


def _flat(slab: Slab) -> Slab:
    """Return each schedule with each placement that runs it as a placement of its own."""
    row, column = np.nonzero(slab.runs)
    return replace(
        slab,
        placements={knob: values[column] for knob, values in slab.placements.items()},
        schedule=slab.schedule[row].T,
        vp=slab.vp[row].T,
        runs=np.ones((1, len(row)), dtype=bool),
        shards=slab.shards[:, column],
        recomputes=slab.recomputes[:, column],
    )


def _placement_rules(
    job: Job, gpus: float, mesh: Mapping[str, Array], tp_in_domain: bool
) -> list[tuple[str, Mask]]:
    """Return the rules of a placement with the mask of those that break them."""
    zero, one = np.asarray(0.0), np.asarray(1.0)
    layout = Layout(
        gpus=np.asarray(gpus),
        vp=one,
        **mesh,
        zero_stage=zero,
        shard_group=zero,
        recompute=zero,
        schedule=zero,
    )
    rules = [
        (p.code, p.bad)
        for p in layout_problems(
            layout,
            job.model,
            job.global_batch,
            job.seq_len,
            method=job.recipe.overlap.cp_method,
            swapped=job.recipe.overlap.cp_a2a_ranks,
        )
    ]
    misplaced = torus_problem(layout, job.cluster, job.axis_order)
    rules.append((misplaced.code, misplaced.bad))
    if np.any(mesh["sequence_parallel"] == 0):
        # With one rank it changes nothing, so that one of the two values is enough.
        alone = (mesh["sequence_parallel"] > 0) & (mesh["tp"] == 1)
        rules.append(("sequence_parallel_without_tp", alone))
    if tp_in_domain:
        rules.append(("tp_beyond_domain", mesh["tp"] > float(job.cluster.tiers[0].size)))
    return rules


def _launch_rules(job: Job, mesh: Mapping[str, Array]) -> list[tuple[str, Mask]]:
    """Return what nobody runs, with the mask of it.

    Plain all-to-all over InfiniBand by ranks is what DeepEP's node-aware dispatch was made to replace.
    """
    domain = float(job.cluster.tiers[0].size)
    if not DISPATCHERS[job.recipe.moe.moe_dispatcher].dispatch:
        return []
    return [("experts_beyond_domain", (mesh["ep"] > 1) & (mesh["ep"] * mesh["etp"] > domain))]


def _policies(values: Mapping[str, Sequence[float]]) -> Policies:
    """Return every schedule with every number of virtual stages, and every sharding with every group."""
    schedule, vp = (grid.ravel() for grid in np.meshgrid(values["schedule"], values["vp"], indexing="ij"))
    zero, group = (
        grid.ravel() for grid in np.meshgrid(values["zero_stage"], values["shard_group"], indexing="ij")
    )
    return Policies(zero, group, np.asarray(values["recompute"], dtype=np.float64), schedule, vp)


def _even_chunks(job: Job, pp: float, vp: Array) -> Mask:
    """Where all chunks of a rank hold as many layers: ranks that interleave wait for each other's larger ones."""
    layers, memory = job.model.num_layers, job.recipe.memory
    if not job.balanced_stages:
        places = layers + int(memory.embedding_as_layer) + int(memory.head_as_layer)
        return np.asarray(ceil(places / pp) % vp == 0)
    own = replace(
        job,
        layout=replace(
            job.layout,
            pp=np.asarray(pp),
            vp=vp,
            schedule=np.asarray(schedule_code("interleaved"), dtype=np.float64),
        ),
    )
    split = stage_split(own)
    places = layers + np.asarray(split.embedding) + np.asarray(split.head)
    return np.asarray((vp == 1) | (places % (pp * vp) == 0))


def _with_policies(
    job: Job,
    gpus: float,
    placements: Mapping[str, Array],
    policies: Policies,
    rejected: Counter[str],
    out_of_reach: Sequence[tuple[Refused, Mask]],
) -> Slab:
    """Add the policies to the placements of one number of stages; count those that cannot run."""
    pp = float(placements["pp"][0])
    schedule, vp, recompute = policies.schedule, policies.vp, policies.recompute
    zero, group = policies.zero_stage, policies.shard_group
    ranks = gpus / (placements["tp"] * pp)  # dp x cp
    micro_batches = float(np.max(job.global_batch)) / (ranks / placements["cp"] * placements["micro_batch"])
    too_deep = (pp * vp > job.model.num_layers) & (vp > 1)
    without = (vp > 1) & (pp == 1)
    uneven = ~_even_chunks(job, pp, vp) & ~(too_deep | without)
    runs = valid(schedule[:, None], pp, micro_batches, vp[:, None])
    # One stage runs no schedule, several run one.
    runs &= (schedule[:, None] == schedule_code("none")) == (pp == 1)
    runs &= ~(too_deep | without | uneven)[:, None]
    divides = (group[:, None] == 0) | (
        (ranks % np.maximum(group[:, None], 1.0) == 0) & (group[:, None] < ranks)
    )
    shards = divides & ((group == 0) | (zero > 0))[:, None]
    for code, bad in (
        ("vp_without_pp", without),
        ("too_many_stages", too_deep & ~without),
        ("vp_not_divisible", uneven),
    ):
        rejected[code] += int(bad.sum()) * len(ranks) * len(zero) * len(recompute)
    stopped = (~runs & ~(too_deep | without | uneven)[:, None]).sum()
    rejected["schedule_cannot_run"] += int(stopped) * len(zero) * len(recompute)
    unsharded = (runs.sum(axis=0) * (~shards).sum(axis=0)).sum()
    rejected["sharding_not_divisible"] += int(unsharded) * len(recompute)
    masks = {"runs": runs, "shards": shards, "recomputes": np.ones((len(recompute), len(ranks)), dtype=bool)}
    for each, bad in out_of_reach:
        out = masks[each.policy] & bad
        others = [masks[policy].sum(axis=0) for policy in masks if policy != each.policy]
        rejected[each.code] += int((out.sum(axis=0) * prod(others)).sum())
        masks[each.policy] = masks[each.policy] & ~out
    return Slab(
        gpus=gpus,
        placements=placements,
        schedule=schedule[:, None],
        vp=vp[:, None],
        recompute=recompute,
        zero_stage=zero,
        shard_group=group,
        **masks,
    )
