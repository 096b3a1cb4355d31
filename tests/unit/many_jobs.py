"""Properties that hold for every job; `test_many_jobs` checks them over as many random ones as wanted.

Layouts of one question (model, cluster, recipe, switches) are priced together as arrays, so that 20,000 take minutes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.bill.formula import evaluate
from costmodel.bill.lines import AXES, CATEGORIES, PHASES
from costmodel.describe.jobs.job import Job, make_job
from costmodel.describe.jobs.layout import layout_problems
from costmodel.describe.recipe import list_recipes
from costmodel.estimates.estimate import Estimate, estimate_job
from costmodel.estimates.pipeline_run import (
    PIPELINE_TOLERANCE,
    billed_pipeline_s,
    run_pipeline,
    simulated_pipeline_s,
)
from costmodel.physics.pipeline.schedule_table import SCHEDULES
from costmodel.physics.pipeline.schedules import fact, schedule_code, valid
from costmodel.step.price import price
from costmodel.what_if.changes import hardware_changes

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

DENSE = ("llama3-8b", "gpt3-175b", "llama-7b")
MOE = ("mixtral-8x7b", "deepseek-v3-671b", "gpt-oss-20b", "qwen3-30b-a3b")
TWO_CHUNKS = ("interleaved", "zb-v", "dualpipe-v", "v-half", "v-min")
MODELS = (*DENSE, "llama3-70b", "qwen2.5-7b", *MOE, "gpt-oss-120b")
CLUSTERS = (
    "dgx-h100-ndr",
    "dgx-a100-hdr",
    "gb200-nvl72-ndr",
    "cloud-h100-100gbe",
    "llama3-roce",
    "hgx-b300-xdr",
    "mi300x-roce400",
)
SWITCHES: dict[str, tuple[Any, ...]] = {
    "cp_method": ("ring", "all-gather", "ulysses"),
    "moe_dispatcher": ("all-to-all", "all-gather", "deep-ep"),
    "tp_overlap": ("none", "weight-grad", "pipelined"),
    "dp_overlap": ("none", "last-micro-batch", "every-layer"),
    "pp_overlap": (False, True),
    "post_validation": (False, True),
    "ep_overlap": (False, True),
    "grouped_gemm": (False, True),
    "fsdp_reshard_after_forward": (False, True),
    "offload_optimizer": (False, True),
}
PER_QUESTION = 10
TOO_LITTLE = 1e-6
"""Relative differences below this: of adding in another order, and 1.2e-7 of a step that waits for its host, whose launches
alone the unexplained share stretches."""


@dataclass(frozen=True)
class Batch:
    """Layouts of one question, and what they cost."""

    question: dict[str, Any]
    layouts: dict[str, Array]
    job: Job
    est: Estimate
    rng: np.random.Generator

    def __len__(self) -> int:
        return len(self.layouts["tp"])

    def changed(self, **layouts: Array | float) -> tuple[Job, Estimate]:
        """Price the same layouts with some of their numbers changed."""
        job = make_job(**self.question, **{**self.layouts, **layouts}, check=False)
        return job, estimate_job(job, every_stage=False)

    def command(self, at: int) -> str:
        """Return one job as keywords of `cm.estimate`."""
        one = {name: np.asarray(value)[at].item() for name, value in self.layouts.items()}
        one["schedule"] = list(SCHEDULES)[int(one["schedule"])]
        return ", ".join(f"{name}={value!r}" for name, value in {**self.question, **one}.items())

    def whole(self, value: Array) -> Array:
        """Return one number for each layout."""
        return np.broadcast_to(np.asarray(value, dtype=np.float64), (len(self),))


def batches(count: int, seed: int) -> Iterator[Batch]:
    """Draw batches of possible jobs until there are `count` jobs."""
    rng = np.random.default_rng(seed)
    while count > 0:
        made = draw(rng, min(count, PER_QUESTION))
        if made is not None:
            count -= len(made)
            yield made


def draw(rng: np.random.Generator, count: int) -> Batch | None:
    """Draw a question and up to `count` possible layouts; None if there is none."""

    def one(choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    model = one(MODELS)
    question = {
        "model": model,
        "cluster": one(CLUSTERS),
        "recipe": one(list_recipes()),
        "gpus": one((64, 512, 2048)),
        "switches": {name: one(values) for name, values in SWITCHES.items() if rng.random() < 0.4},
    }
    tries = 40 * count
    pick = lambda *choices: rng.choice(np.asarray(choices, dtype=np.float64), tries)  # noqa: E731
    pp = pick(1, 1, 2, 4, 8, 16)
    plain = [code for code, name in enumerate(SCHEDULES) if name != "none"]
    schedule = np.where(pp > 1, pick(*plain), schedule_code("none"))
    two = np.isin(schedule, [schedule_code(name) for name in TWO_CHUNKS])
    chunks = np.where(schedule == schedule_code("interleaved"), pick(2, 2, 4), 2.0)
    moe = model in (*MOE, "gpt-oss-120b")
    layouts: dict[str, Array] = {
        "tp": pick(1, 1, 2, 4, 8),
        "cp": pick(1, 1, 1, 2, 4),
        "pp": pp,
        "vp": np.where(two, chunks, 1.0),
        "schedule": schedule,
        "ep": pick(1, 2, 8) if moe else np.ones(tries),
        "etp": pick(1, 1, 2) if moe else np.ones(tries),
        "micro_batch": pick(1, 2),
        "zero_stage": pick(0, 1, 2, 3),
        "shard_group": pick(0, 0, 2, 8),
        "recompute": pick(0, 1, 2),
        "sequence_parallel": pick(0, 1),
        "global_batch": question["gpus"] * pick(1, 2, 4, 8),
        "seq_len": pick(1024, 4096, 16384),
    }
    job = make_job(**question, **layouts, check=False)
    good = np.ones(tries, dtype=np.bool_)
    for problem in layout_problems(job.layout, job.model, job.global_batch, job.seq_len, job.recipe.overlap):
        good &= ~problem.bad
    good &= valid(job.layout.schedule, job.layout.pp, job.micro_batches, job.layout.vp)
    chosen = np.flatnonzero(good)[:count]
    if not chosen.size:
        return None
    layouts = {name: value[chosen] for name, value in layouts.items()}
    job = make_job(**question, **layouts, check=False)
    return Batch(question, layouts, job, estimate_job(job, every_stage=False), rng)


@dataclass(frozen=True)
class Checked:
    """What one property found in one batch: which jobs were asked, and by how much each fails (0: holds). [-]"""

    asked: Flags
    excess: Array
    what: str = ""


def passes_have_it_all(job: Job) -> Flags:
    """Leave out messages of data parallelism in every pass where the pipeline is paid for by what a pass lasts.

    Their waits are added to the step and not to the passes, so that a bubble, or the wait for a late message, which
    both shrink as some pass grows, does not see them: up to 3 % of a step.

    Nor where layers wait in their turn (XLA's scanned layers) for experts and the rest apart: the experts' messages hide
    behind the rest alone, but wait for ports as long as before, 0.01 % of a step.
    """
    layout, overlap = job.layout, job.recipe.overlap
    often = (layout.zero_stage == 3) | ((layout.zero_stage == 2) & overlap.reduce_each_micro_batch)
    late = np.asarray(overlap.pp_overlap & np.isin(layout.schedule, [schedule_code("interleaved")]))
    in_turn = bool(job.model.num_experts) and not overlap.fsdp_across_layers
    return np.asarray(~(often & ((fact("splits_backward", layout.schedule) > 0) | late | in_turn)))


def faster(batch: Batch) -> Iterator[Checked]:
    """A rate that is higher or a latency that is lower never makes a step longer."""
    factor = float(batch.rng.choice([1.1, 2.0, 4.0]))
    changes = [c for c in hardware_changes(batch.job, factor) if c.kind == "rate"]
    changes += [c for c in hardware_changes(batch.job, 1.0 / factor) if c.kind == "latency"]
    before = batch.whole(batch.est.step_time_s)
    for at in batch.rng.choice(len(changes), min(3, len(changes)), replace=False):
        after = batch.whole(estimate_job(changes[at].job, every_stage=False).step_time_s)
        factor_of = factor if changes[at].kind == "rate" else 1.0 / factor
        yield _all(
            batch, after / before - 1.0, f"{changes[at].name} x {factor_of:g}", passes_have_it_all(batch.job)
        )


def more_tokens(batch: Batch) -> Iterator[Checked]:
    """Twice the sequence, or twice the batch, never makes a step shorter."""
    before = batch.whole(batch.est.step_time_s)
    for name in ("seq_len", "global_batch"):
        _, est = batch.changed(**{name: 2 * batch.layouts[name]})
        asked = passes_have_it_all(batch.job)
        if batch.job.recipe.kernels.attention_kernel in ("unfused", "fused-softmax"):
            # Scores that grow as the square of the sequence are freed before the weight gradients, of which the same
            # memory then holds more.
            held = [schedule_code(name) for name in ("zb-h1", "zb-2p")]
            asked = asked & ~np.isin(batch.job.layout.schedule, held)
        yield _all(batch, 1.0 - batch.whole(est.step_time_s) / before, f"{name} x 2", asked)


def one_port(batch: Batch) -> Iterator[Checked]:
    """No fabric tier is busy for longer than the step lasts."""
    step_s = batch.whole(batch.est.step_time_s)
    for index, name in enumerate(batch.est.bill.tier_names):
        busy_s = np.zeros(len(batch))
        for line in batch.est.bill.time_lines:
            if line.category == "communication":
                busy_s = busy_s + batch.whole(line.count * line.each_s * (line.tier == index))
        yield _all(batch, busy_s / step_s - 1.0, name)


def one_micro_batch(batch: Batch) -> Iterator[Checked]:
    """With one micro-batch there is none beside it to hide what experts exchange."""
    if not batch.job.model.num_experts:
        return
    job = batch.job
    batch_of_one = job.layout.dp * job.layout.micro_batch
    switches = {**batch.question["switches"], "ep_overlap": True}
    alone = replace(batch, question={**batch.question, "switches": switches})
    job, est = alone.changed(global_batch=batch_of_one)
    asked = valid(job.layout.schedule, job.layout.pp, job.micro_batches, job.layout.vp) & (job.layout.ep > 1)
    paid_s, busy_s = np.zeros(len(batch)), np.zeros(len(batch))
    for line in est.bill.time_lines:
        if line.axis == "ep" and line.category == "communication":
            paid_s = paid_s + batch.whole(line.exposed_seconds)
            busy_s = busy_s + batch.whole(line.seconds)
    yield Checked(
        asked, np.maximum(1.0 - paid_s / np.maximum(busy_s, 1e-30) - TOO_LITTLE, 0.0) * (busy_s > 0)
    )


def whole_gradients(batch: Batch) -> Iterator[Checked]:
    """ZeRO-2 that reduces once a step holds the whole gradients of ZeRO-1 while micro-batches add up."""
    recipe = batch.job.recipe
    if recipe.overlap.reduce_each_micro_batch or recipe.overlap.reduce_each_chunk:
        return
    held = []
    for stage in (1, 2):
        _, est = batch.changed(zero_stage=float(stage))
        lines = [
            line for line in est.bill.memory_lines if "grad" in line.name and line.name.startswith("state")
        ]
        held.append(sum(np.broadcast_to(np.sum(line.bytes, axis=-1), (len(batch),)) for line in lines))
    first, second = (np.asarray(each) for each in held)
    asked = batch.job.micro_batches > 1
    yield Checked(np.broadcast_to(asked, (len(batch),)), np.maximum(1.0 - second / first - TOO_LITTLE, 0.0))


def grouped_shards(batch: Batch) -> Iterator[Checked]:
    """HSDP with a node a group takes at most 1.02 times as long as FSDP where the NIC makes FSDP wait.

    Inside of the node, messages of a group must take at most three quarters of what FSDP's ring takes: where eight NICs
    together carry as much as the node's own links, those make it wait, and groups have as many bytes to send there.
    It must send at most a quarter over the NIC: HSDP's sum of gradients all falls on the last backward pass, and with
    one micro-batch, gradients in fp32 and parameters that stay gathered it is larger than all that FSDP sends.
    The optimizer, which has more to step on every GPU, is left out of both.
    """
    inside = batch.job.cluster.tiers[0]
    if batch.job.model.num_experts or inside.topology != "switch":
        return  # In a mesh of GPUs a group of two has one link of seven: slower than the NIC.
    layout = batch.job.layout
    node = float(inside.size) / layout.tp
    switches = {**batch.question["switches"], "dp_overlap": "every-layer", "hsdp_overlap": True}
    switches |= {"offload_optimizer": False, "overhead_fraction": 0.0}
    both = replace(batch, question={**batch.question, "switches": switches})
    step_s, nic_s, paid_s, inside_s = [], [], [], []
    for group in (np.zeros(len(batch)), np.maximum(np.floor(node), 1.0)):
        _, est = both.changed(zero_stage=3.0, shard_group=group)
        lines = est.bill.time_lines
        optimizer_s = sum(batch.whole(line.exposed_seconds) for line in lines if line.axis == "optimizer")
        sent = [line for line in lines if line.axis == "dp" and line.category == "communication"]
        step_s.append(batch.whole(est.step_time_s) - optimizer_s)
        nic_s.append(sum(batch.whole(line.seconds * (line.tier > 0)) for line in sent))
        inside_s.append(sum(batch.whole(line.seconds * (line.tier == 0)) for line in sent))
        paid_s.append(sum(batch.whole(line.exposed_seconds * (line.tier > 0)) for line in sent))
    groups = (node >= 2) & (node % 1 == 0) & (layout.dp * layout.cp % np.maximum(node, 1.0) == 0)
    asked = (
        (paid_s[0] > 0.1 * step_s[0])
        & (nic_s[1] <= 0.25 * nic_s[0])
        & (inside_s[1] <= 0.75 * nic_s[0])
        & groups
        & (layout.dp * layout.cp > node)
    )
    asked = asked & (layout.pp == 1)
    yield Checked(asked, np.maximum(step_s[1] / (1.02 * step_s[0]) - 1.0, 0.0))


FIGURES = ("step_time_s", "memory_bytes_per_gpu", "mfu", "mfu_causal", "hfu", "tokens_per_s_per_gpu")


def assert_sound(est: Estimate) -> None:
    """Check the names, ranges and sums of the lines of a bill, and that each follows from its formula."""
    bill = est.bill
    names = [line.name for line in (*bill.time_lines, *bill.memory_lines)]
    assert len(names) == len({*names})
    total_s = sum(line.count * line.exposed_each_s for line in bill.time_lines)
    np.testing.assert_allclose(est.step_time_s, total_s, rtol=1e-12)
    stages = bill.memory_per_stage_bytes()
    by_stage = sum(np.broadcast_to(line.bytes, stages.shape) for line in bill.memory_lines)
    np.testing.assert_allclose(stages, by_stage, rtol=1e-12)
    np.testing.assert_allclose(est.memory_bytes_per_gpu, np.max(by_stage, axis=-1), rtol=1e-12)
    for line in bill.time_lines:
        assert line.axis in AXES and line.category in CATEGORIES and line.phase in PHASES, line.name  # noqa: PT018
        for value in (line.count, line.exposed_each_s, line.bytes_each):
            assert np.all(np.isfinite(value) & (value >= 0)), line.name
        assert np.all(line.exposed_each_s <= line.each_s * (1 + 1e-12)), line.name
        # Whoever sends alone sends nothing: experts' data-parallel groups and HSDP's replicas can be of one, too.
        alone = np.asarray(line.terms.get("ranks", 2.0)) == 1
        assert not np.any(alone & ((line.each_s > 0) | (line.bytes_each > 0))), line.name
    for line in bill.memory_lines:
        assert line.axis in AXES and line.category in CATEGORIES, line.name  # noqa: PT018
        assert np.all(np.isfinite(line.bytes) & (line.bytes >= 0)), line.name
    found = [(line, line.exposed_each_s) for line in bill.time_lines]
    for line, value in (*found, *((line, line.bytes) for line in bill.memory_lines)):
        shape = np.broadcast_shapes(np.shape(value), np.shape(evaluate(line.formula, line.terms)))
        ours, theirs = (np.broadcast_to(one, shape) for one in (value, evaluate(line.formula, line.terms)))
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, err_msg=line.name)


def sound(batch: Batch) -> Iterator[Checked]:
    """A bill is the sum of lines that follow from their formulas."""
    assert_sound(batch.est)
    yield _all(batch, np.zeros(len(batch)), "sums")


def one_by_one(batch: Batch) -> Iterator[Checked]:
    """Layouts priced together cost what each costs alone."""
    at = int(batch.rng.integers(len(batch)))
    layout = {name: float(value[at]) for name, value in batch.layouts.items()}
    alone = estimate_job(make_job(**batch.question, **layout, check=False), every_stage=False)
    for figure in FIGURES:
        together = batch.whole(getattr(batch.est, figure))[at]
        np.testing.assert_allclose(together, getattr(alone, figure), rtol=1e-12, err_msg=figure)
    yield _all(batch, np.zeros(len(batch)), "alone")


ONE_STAGE = {"pp": 1.0, "vp": 1.0, "schedule": 0.0}
ONE_EXPERT_RANK = {"ep": 1.0, "etp": 1.0}
ALONE = {
    "tp": {"tp": 1.0},
    "cp": {"cp": 1.0},
    "pp": ONE_STAGE,
    "ep": ONE_EXPERT_RANK,
    "dp": {"tp": 1.0, "cp": 1.0, "global_batch": 8.0, **ONE_STAGE, **ONE_EXPERT_RANK},
}


def groups_of_one(batch: Batch) -> Iterator[Checked]:
    """A group of one rank costs no time, sends no bytes and has no buffers."""
    axis = str(batch.rng.choice(sorted(ALONE)))
    gpus = {"gpus": 1} if axis == "dp" else {}
    _, est = replace(batch, question={**batch.question, **gpus}).changed(**ALONE[axis])
    costs = [
        (line.name, line.seconds + line.exposed_seconds + line.bytes, line) for line in est.bill.time_lines
    ]
    held = ("buffer.", "reserve.")
    costs += [(line.name, line.bytes, line) for line in est.bill.memory_lines if line.name.startswith(held)]
    assert [name for name, cost, line in costs if line.axis == axis and np.any(cost)] == []
    yield _all(batch, np.zeros(len(batch)), axis)


def state_bytes(est: Estimate) -> Array:
    """Return parameters, gradients and optimizer states of the worst stage, without what a step makes for a moment. [B]"""
    lines = [line for line in est.bill.memory_lines if line.name.startswith("state.")]
    held = [np.atleast_1d(line.bytes) for line in lines if not line.name.endswith(".temporaries")]
    return np.asarray(np.max(np.broadcast_arrays(sum(held))[0], axis=-1))


def more_shards(batch: Batch) -> Iterator[Checked]:
    """More ZeRO, larger groups that share and more GPUs never hold more state; ZeRO-3 holds less than ZeRO-0."""
    stages = [state_bytes(batch.changed(zero_stage=float(stage))[1]) for stage in range(4)]
    groups = [state_bytes(batch.changed(shard_group=float(group))[1]) for group in (1, 4, 0)]
    for held in (stages, groups):
        for fewer, more in pairwise(held):
            yield _all(batch, batch.whole(more / fewer - 1.0), "shards")
    if not batch.question["switches"].get("offload_optimizer"):
        several = batch.whole(batch.job.layout.dp) > 1
        yield _all(batch, batch.whole((stages[3] >= stages[0]) * 1.0), "ZeRO-3", several)


SIMULATED_PER_BATCH = 1
MOST_MICRO_BATCHES = 128


def simulated(batch: Batch) -> Iterator[Checked]:
    """What closed forms charge for a pipeline is what its order takes task by task, within 5 % of 1F1B, 15 % of others.

    An estimate of one layout is half a per cent from it at most.
    """
    several = np.flatnonzero(
        (batch.job.layout.pp > 1)
        & (batch.job.micro_batches >= batch.job.layout.pp)
        & (batch.job.micro_batches <= MOST_MICRO_BATCHES)
    )
    for at in batch.rng.permutation(several)[:SIMULATED_PER_BATCH]:
        layout = {name: np.asarray(value)[at].item() for name, value in batch.layouts.items()}
        job = make_job(**batch.question, **layout, check=False)
        by_form, charged, soon = pipeline_shares(job)
        asked = np.arange(len(batch)) == at
        name = list(SCHEDULES)[int(layout["schedule"])]
        excess = max(abs(by_form) - (0.05 if name == "1f1b" else 0.15), 0.0)
        excess += max(abs(charged) - 1.2 * PIPELINE_TOLERANCE, 0.0) if soon else 0.0
        yield Checked(asked, np.where(asked, excess, 0.0), f"{name} {by_form:+.1%}, charged {charged:+.1%}")


def pipeline_shares(job: Job) -> tuple[float, float, bool]:
    """Return by what share closed forms and an estimate differ from a pipeline's simulation, and whether that is soon done."""
    est, form = estimate_job(job), price(job, every_stage=True)
    run = run_pipeline(est)
    assert run.is_whole
    waits = job.recipe.overlap.post_validation
    took_s = run.timeline.step_s() if waits else run.timeline.makespan_s()
    by_form, charged = (billed_pipeline_s(bill) / took_s - 1.0 for bill in (form.bill, est.bill))
    return by_form, charged, simulated_pipeline_s(form) is not None


def _all(batch: Batch, excess: Array, what: str, asked: Flags | None = None) -> Checked:
    everywhere = np.ones(len(batch), dtype=np.bool_)
    return Checked(
        everywhere if asked is None else everywhere & asked, np.where(excess > TOO_LITTLE, excess, 0.0), what
    )


PROPERTIES = (
    sound,
    one_by_one,
    groups_of_one,
    more_shards,
    faster,
    more_tokens,
    one_port,
    one_micro_batch,
    whole_gradients,
    grouped_shards,
    simulated,
)


def failures(batch: Batch, holds: Callable[[Batch], Iterator[Checked]]) -> tuple[int, list[str]]:
    """Return how many jobs of a batch a property was asked of, and those that fail, as keywords of `cm.estimate`."""
    asked, found = np.zeros(len(batch), dtype=np.bool_), []
    for checked in holds(batch):
        asked |= checked.asked
        for at in np.flatnonzero(checked.asked & ~(checked.excess <= 0.0)):
            found.append(f"{checked.excess[at]:.3%} {checked.what}: {batch.command(at)}")
    return int(asked.sum()), found
