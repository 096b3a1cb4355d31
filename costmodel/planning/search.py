"""Pricing every layout of a search slab by slab, and keeping the best of them.

Every layout is priced by the same `price` as one estimate. A slab is an open mesh, so that each
line of the bill is computed on the few knobs it depends on, and only the sums of step time and
memory are as large as the slab.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.base.errors import CostModelError
from costmodel.base.numbers import distinct
from costmodel.describe.hardware.kernels import PEAK_KEY
from costmodel.describe.jobs.fields import KNOBS, QUANTILES
from costmodel.describe.jobs.job import Job
from costmodel.describe.jobs.layout import Layout
from costmodel.describe.odds import RISK, odds
from costmodel.interop.answer import JobFile
from costmodel.planning.best import (
    BestLayouts,
    Columns,
    best_rows,
    joined,
    pareto_indices,
    smallest_indices,
    taken,
    undominated,
)
from costmodel.planning.choices import Choice, starts
from costmodel.planning.space import PLACEMENT_KNOBS, Slab, Space, build_space, default_values
from costmodel.step.price import price_unsharded

Array = NDArray[np.float64]

MORE_MEMORY_MARGIN = 0.05
"""How much slower than the best that fits a layout may be for the search to try saving memory on it. [-]"""
MAX_PLACEMENTS = 1024
"""Best placements of a job that are priced again with other switches."""

CHUNK_LAYOUTS = 2**19
"""Layouts priced at a time, which bounds memory and lets intermediate arrays stay in the processor's cache."""
_NO_RISK = 1e-6
"""Probability of running out of host memory below which it is taken as 0. [-]"""


@dataclass(frozen=True)
class Question:
    """A search problem: jobs without a layout, values of every knob, constraints, objective."""

    jobs: tuple[Job, ...]
    """One for each number of GPUs, batch, cluster, precision …"""
    knob_values: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Values to try of some knobs; the others take `default_values`."""
    max_memory_bytes: float = np.inf
    """Memory limit per GPU; that of the device holds as well. [B]"""
    headroom: float | None = None
    """Share of the device's memory to leave free, in place of `risk`. [-]"""
    objective: str = "step-time"
    tp_in_domain: bool = True
    launchable_only: bool = False
    """Whether to search only layouts that the recipe's framework accepts."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Presets or paths that the user gave, by the name of the model or cluster they resolved to."""
    search_switches: bool = False
    """Whether the framework's user-settable switches and the order of the axes are searched too."""
    user_switches: frozenset[str] = frozenset()
    """Those of them that the user set: they stay fixed."""
    user_knobs: frozenset[str] = frozenset(KNOBS)
    """Knobs whose values come from the user, not from the framework's defaults."""
    risk: float | None = None
    """Accepted probability of running out of memory where `headroom` is None; None means `RISK`. [-]"""
    file: JobFile | None = None
    """The job file that was planned, if any."""
    framework_values: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    """Default knob values of each recipe's framework, where the jobs have several recipes; else they are in `given`."""

    @property
    def fixed_switches(self) -> frozenset[str]:
        """Switches that a search keeps: those of the user, and graphs where a schedule of batches changes what they captured."""
        graphs = {"cuda_graphs"} if self.file and len(self.file.batches) > 1 else set()
        return self.user_switches | graphs

    def values(self, job: Job) -> dict[str, tuple[float, ...]]:
        """Return the values of every knob for one of the jobs."""
        framework_values = self.framework_values.get(job.recipe.name, {})
        return {**default_values(job, float(job.layout.gpus)), **framework_values, **self.knob_values}

    def command_of(self, job: Job) -> str:
        """Return the command line that prices a job of one layout, on top of the file that was planned."""
        return (self.file or JobFile({})).command(job, files=self.files)

    def without(self, knob: str) -> Question:
        """Return the question with one knob left to the search."""
        others = {name: values for name, values in self.knob_values.items() if name != knob}
        return replace(self, knob_values=others, tp_in_domain=self.tp_in_domain or knob == "tp")

    def limit_bytes(self, job: Job) -> float:
        """Return the memory that a layout may take. [B]."""
        return min(
            self.max_memory_bytes, job.cluster.accelerator.memory_bytes * (1.0 - self.headroom_share(job))
        )

    def headroom_share(self, job: Job) -> float:
        """Return the share of the device's memory to leave free. [-]."""
        if self.headroom is not None:
            return self.headroom
        return max(1.0 - odds().fits_with(job.recipe.name).share(self.accepted_risk), 0.0)

    @property
    def accepted_risk(self) -> float:
        """Probability of running out of memory that is accepted, where `headroom` is none. [-]"""
        return RISK if self.risk is None else self.risk

    def fits(self, part: PricedSlab, job: Job) -> NDArray[np.bool_]:
        """Return which layouts fit: within the headroom, or with GPU and host together no likelier to run out than the risk."""
        fits = part.fits(self.limit_bytes(job))
        if self.headroom is not None:
            return fits
        chances = odds().fits_with(job.recipe.name)
        doubtful = fits & (part.host_share > chances.share(_NO_RISK))
        if not doubtful.any():
            return fits
        device, surely = job.cluster.accelerator.memory_bytes, np.ones(doubtful.shape)
        gpu, host = (
            np.broadcast_to(each, doubtful.shape)[doubtful] for each in (part.memory_bytes, part.host_share)
        )
        surely[doubtful] = chances.probability(gpu, device) * chances.probability(host, 1.0)
        return np.asarray(fits & (surely >= 1.0 - self.accepted_risk))

    def weight(self, job: Job) -> float:
        """Return the factor that turns step time into the objective: 1/s, FLOP/s·GPU, GPU-hours or dollars per token."""
        tokens = float(job.global_batch * job.seq_len)
        if self.objective in ("step-time", *QUANTILES):
            return 1.0
        gpu_seconds = float(job.layout.gpus) / tokens
        if self.objective == "mfu":
            return gpu_seconds * peak_flops_per_s(job)
        if self.objective == "gpu-hours":
            return gpu_seconds / 3600.0
        usd = job.cluster.price_usd_per_gpu_hour
        if usd is None:
            raise CostModelError(
                f"objective: cluster {job.cluster.name} has no price_usd_per_gpu_hour; use gpu-hours"
            )
        return gpu_seconds / 3600.0 * usd


class PricedSlab(NamedTuple):
    """Prices of the layouts of a slab, as arrays of its shape."""

    job: int
    slab: Slab
    step_time_s: Array
    memory_bytes: Array
    host_share: Array
    """Share of the host's memory that is used. [-]"""

    def fits(self, limit_bytes: float) -> NDArray[np.bool_]:
        """Return which layouts can run within a limit."""
        return np.asarray(self.slab.possible & (self.memory_bytes <= limit_bytes))


class JobVariant(NamedTuple):
    """A job with some switches changed from its recipe, and the layouts to price for it."""

    number: int
    """Its index in `SwitchSearch.variants`, and `PricedSlab.job`."""
    job: Job
    slabs: tuple[Slab, ...]
    """Empty for the user's own layout, which is priced apart."""
    origin: int
    """Index of its job in the question."""
    choices: tuple[Choice, ...] = ()

    def parts(self, chunk: int = CHUNK_LAYOUTS) -> Iterator[PricedSlab]:
        """Price its layouts, at most `chunk` at a time."""
        for slab in self.slabs:
            # Layouts that these switches cannot run are not priced.
            startable = slab.where(starts(self.job, self.choices, slab.layout())) if self.choices else slab
            for part in startable.parts(chunk) if startable.num_possible else ():
                yield PricedSlab(self.number, part, *price_slab(self.job, part))


def priced_parts(question: Question, *, chunk: int = CHUNK_LAYOUTS) -> Iterator[PricedSlab]:
    """Price every layout of the question's jobs, at most `chunk` at a time."""
    for index, job in enumerate(question.jobs):
        yield from JobVariant(index, job, space_of(question, job).slabs, index).parts(chunk)


def price_slab(job: Job, slab: Slab) -> tuple[Array, Array, Array]:
    """Return step time, memory per GPU, and share of the host's memory, of every layout of a slab. [s, B, -].

    Memory is infinite where the host's does not suffice.
    """
    step_s, memory, host_share = np.empty(slab.shape), np.empty(slab.shape), np.zeros(slab.shape)
    unsharded = price_unsharded(replace(job, layout=slab.layout()))
    for is_sharded in (False, True):
        # Sharded parameters (ZeRO-3) add all-gather lines to the bill, so these layouts are priced apart.
        at = np.flatnonzero((slab.zero_stage >= 3) == is_sharded)
        if not at.size:
            continue
        mesh = at[:, None, None, None]
        bill = unsharded.sharded(slab.zero_stage[mesh], slab.shard_group[mesh]).bill
        step_s[at], memory[at] = bill.step_time_s(), bill.memory_bytes()
        if bill.host_lines:
            host_share[at] = bill.host_memory_bytes() / job.cluster.host.memory_bytes
    return step_s, np.where(host_share > 1.0, np.inf, memory), host_share


@dataclass
class Tally:
    """Best layouts and counts of a search so far."""

    candidates: BestLayouts | None = None
    num_priced: int = 0
    num_fit: int = 0
    reference_score: float = np.inf
    """Score of the user's own layout; `num_better` counts the layouts that fit and beat it."""
    num_better: int = 0
    fastest_s: dict[int, float] = field(default_factory=dict)
    leanest: Columns | None = None
    by_value: dict[str, dict[float, float]] = field(default_factory=dict)
    best_score: dict[int, float] = field(default_factory=dict)
    """Best score of each job."""
    best_in_device: dict[int, float] = field(default_factory=dict)
    """Best score of each job if the whole device memory could be used, without headroom."""
    first: dict[int, Columns] = field(default_factory=dict)
    """Best layout of each job, one row each."""
    placements: dict[int, Columns] = field(default_factory=dict)
    """Best placements of each job among those with a layout that fits, with their scores."""
    memory_limited: dict[int, Columns] = field(default_factory=dict)
    """Placements of each job whose fastest layout does not fit, with the score of that layout."""

    def add(self, question: Question, part: PricedSlab, count: int) -> None:
        """Merge the best layouts and the Pareto front of one more slab."""
        job = question.jobs[part.job]
        weight = question.weight(job)
        self.num_priced += part.slab.num_possible
        step_s = np.where(part.slab.possible, part.step_time_s, np.inf)
        self.fastest_s[part.job] = min(self.fastest_s.get(part.job, np.inf), float(step_s.min()))
        whole_bytes = min(question.max_memory_bytes, job.cluster.accelerator.memory_bytes)
        in_device = weight * float(np.where(part.fits(whole_bytes), part.step_time_s, np.inf).min())
        self.best_in_device[part.job] = min(self.best_in_device.get(part.job, np.inf), in_device)
        fits = question.fits(part, job)
        fit = np.flatnonzero(fits)
        self._record_memory_limited(part, weight * step_s, fits)
        if not fit.size:
            self._record_smallest(part)
            return
        self.num_fit += fit.size
        self._record_values(part, np.where(fits, step_s, np.inf), weight)
        step_s, memory = part.step_time_s.reshape(-1)[fit], part.memory_bytes.reshape(-1)[fit]
        score = step_s * weight
        self.num_better += int(np.count_nonzero(score < self.reference_score * (1.0 - 1e-12)))
        top = self._contenders(score, count)
        front = self._on_front(score, memory)
        new = BestLayouts(
            best_rows(rows_of(part, fit[top], score[top]), count),
            rows_of(part, fit[front], score[front]),
        )
        self.candidates = new if self.candidates is None else self.candidates.merged(new, count)
        least, before = np.asarray([np.argmin(score)]), self.first.get(part.job)
        if before is None or score[least[0]] < before["score"][0]:
            self.first[part.job] = rows_of(part, fit[least], score[least])

    def _contenders(self, score: Array, count: int) -> NDArray[np.int64]:
        """Return the layouts of a slab that may be among the best `count`: at most the worst score kept so far."""
        best: Array = np.empty(0) if self.candidates is None else self.candidates.top["score"]
        if best.size < count:
            return smallest_indices(score, count)
        near = np.flatnonzero(score <= best.max())
        return np.asarray(near[smallest_indices(score[near], count)])

    def _on_front(self, score: Array, memory: Array) -> NDArray[np.int64]:
        """Return the layouts of a slab that may be on the Pareto front of score against memory."""
        if self.candidates is None:
            return pareto_indices(score, memory)
        front = self.candidates.front
        alive = undominated(score, memory, front["score"], front["memory_bytes"])
        return np.asarray(alive[pareto_indices(score[alive], memory[alive])])

    def _record_values(self, part: PricedSlab, cost: Array, weight: float) -> None:
        """Record the best score of every value of every knob, and the best placements; `cost` is inf where it does not fit."""
        slab, by_run = part.slab, cost.min(axis=(0, 1))
        by_placement, by_sharding = by_run.min(axis=0), cost.min(axis=(1, 2, 3))
        self.best_score[part.job] = min(self.best_score.get(part.job, np.inf), weight * float(by_run.min()))
        self.placements[part.job] = _best_placements(part, weight * cost, self.placements.get(part.job))
        best: list[tuple[str, Array, Array]] = [
            ("gpus", np.asarray([slab.gpus]), np.asarray([by_run.min()])),
            ("recompute", slab.recompute, cost.min(axis=(0, 2, 3))),
            ("schedule", np.broadcast_to(slab.schedule, by_run.shape), by_run),
            ("vp", np.broadcast_to(slab.vp, by_run.shape), by_run),
            ("zero_stage", slab.zero_stage, by_sharding),
            ("shard_group", slab.shard_group, by_sharding),
            *((knob, values, by_placement) for knob, values in slab.placements.items()),
        ]
        for knob, values, costs in best:
            table = self.by_value.setdefault(knob, {})
            for value in distinct(values):
                least = weight * float(costs[values == value].min())
                table[value] = min(table.get(value, np.inf), least)

    def _record_memory_limited(self, part: PricedSlab, score: Array, fits: NDArray[np.bool_]) -> None:
        """Record the placements that would be faster with more memory, the best first."""
        fitting = np.where(fits, score, np.inf).min(axis=(0, 1, 2))
        found = _best_placements(
            part, np.where(score < fitting, score, np.inf), self.memory_limited.get(part.job)
        )
        self.memory_limited[part.job] = taken(found, np.flatnonzero(np.isfinite(found["score"])))

    def near_best_with_more_memory(
        self, job: int, best: float, margin: float = MORE_MEMORY_MARGIN
    ) -> Columns | None:
        """Return the placements of a job that with more memory would score within the margin of the best; None if none."""
        found = self.memory_limited.get(job)
        if found is None:
            return None
        rows = np.flatnonzero(found["score"] <= best * (1.0 + margin))
        return taken(found, rows) if rows.size else None

    def _record_smallest(self, part: PricedSlab) -> None:
        """Record the layout of least memory, for the message when none fits."""
        if self.candidates is not None:
            return
        at = int(np.argmin(np.where(part.slab.possible, part.memory_bytes, np.inf)))
        if self.leanest is None or part.memory_bytes.flat[at] < self.leanest["memory_bytes"][0]:
            self.leanest = rows_of(part, np.asarray([at]), np.zeros(1))


def _best_placements(part: PricedSlab, score: Array, before: Columns | None) -> Columns:
    """Return the best placements of a slab and of those found before, each with its best layout."""
    count = part.slab.shape[-1]
    by_placement = score.reshape(-1, count)
    layout = by_placement.argmin(axis=0)
    least = by_placement[layout, np.arange(count)]
    order = np.argsort(least, kind="stable")
    first = np.unique(part.slab.number[order], return_index=True)[1]
    best = order[np.sort(first)[:MAX_PLACEMENTS]]
    new = rows_of(part, layout[best] * count + best, least[best])
    return new if before is None else best_placements([before, new], MAX_PLACEMENTS)


def best_placements(found: Sequence[Columns], most: int = MAX_PLACEMENTS) -> Columns:
    """Return the best placements of several searches, each once."""
    both = joined(found)
    order = np.argsort(both["score"], kind="stable")
    keys = np.stack([both[knob][order] for knob in PLACEMENT_KNOBS], axis=1)
    first = np.unique(keys, axis=0, return_index=True)[1]
    return taken(both, order[np.sort(first)[:most]])


def rows_of(part: PricedSlab, flat: NDArray[np.int64], score: Array) -> Columns:
    """Return some layouts of a slab, by flat index, as columns."""
    slab = part.slab
    sharding, recompute, schedule, placement = np.unravel_index(flat, slab.shape)
    codes, chunks = (np.broadcast_to(values, slab.shape[2:]) for values in (slab.schedule, slab.vp))
    return {
        "score": score,
        "memory_bytes": part.memory_bytes.reshape(-1)[flat],
        "host_share": part.host_share.reshape(-1)[flat],
        "step_time_s": part.step_time_s.reshape(-1)[flat],
        "job": np.full(flat.size, float(part.job)),
        "gpus": np.full(flat.size, slab.gpus),
        **{knob: values[placement] for knob, values in slab.placements.items()},
        "vp": chunks[schedule, placement],
        "schedule": codes[schedule, placement],
        "recompute": slab.recompute[recompute],
        "zero_stage": slab.zero_stage[sharding],
        "shard_group": slab.shard_group[sharding],
    }


def layout_of(columns: Mapping[str, Array], row: int | slice = slice(None)) -> Layout:
    """Return the layout (or layouts) of rows that a search kept."""
    return Layout(
        gpus=np.asarray(columns["gpus"][row]), **{knob: np.asarray(columns[knob][row]) for knob in KNOBS}
    )


def peak_flops_per_s(job: Job) -> float:
    """Dense peak of a job's accelerator at the precision of its GEMMs. [FLOP/s]."""
    return job.cluster.accelerator.peak_flops_per_s[PEAK_KEY[job.precision.matmul_dtype]]


def space_of(question: Question, job: Job, among: Mapping[str, Array] | None = None) -> Space:
    """Return the layouts of a job that a question allows; with `among`, only those of the given placements."""
    return build_space(
        job,
        float(job.layout.gpus),
        question.values(job),
        tp_in_domain=question.tp_in_domain,
        launchable_only=question.launchable_only,
        among=among,
        batches=question.file.batches if question.file else (),
    )
