"""What a step takes beside its work: ranks that wait for slower ones, the host between steps, data, the recipe's fitted share.

Sends and stores nothing. Hides: the input of the next step is loaded beside all that is known of this one.
At every synchronisation the group waits for its slowest member. Ranks that differ for good cost the expected
maximum over all of them, told by the level that meets them (tensor group, expert group, pipeline, whole job);
jitter costs at each level again. Off unless the job's `stragglers` or `degraded_gpu` says otherwise, but that matrix
products wait for the slowest GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial, reduce

import numpy as np

from costmodel.bill.lines import (
    Array,
    Axis,
    Bill,
    TimeLine,
    any_nonzero,
    broadcast_sum,
    sum_exposed,
    time_line,
)
from costmodel.describe.factors import job_class
from costmodel.physics.run.stragglers import (
    RankTimes,
    expected_maximum_normal,
    jitter_excess,
    lasting_excess,
)
from costmodel.step.critical_stage import Step
from costmodel.step.placed_job import PlacedJob

_line = partial(time_line, axis="compute", category="overhead", phase="step")
_GPUS = "GPUs of one type, by straggler_variation of the job (Sinha et al., SC '22, arXiv:2208.11035),"
_LEVELS = ("tensor", "context", "expert", "pipeline", "job")


def packing_lines(step: Step) -> list[TimeLine]:
    r"""Return what data-parallel ranks wait for the one with the most scores.

    A rank's scores are a sum over its documents of squared lengths. Of N lognormal ones, whose standard deviation is c
    times their mean, that sum varies by :math:`\sqrt{((1 + c^2)^4 - 1) / N}` of itself; the slowest of n ranks has the
    expected maximum of n normals of it, and no rank has more than sequences of one document. That the tokens of a
    sequence are given makes it a little less, which is not counted. Context ranks have an equal part of every document
    (NVIDIA/TransformerEngine attention/context_parallel.py, `thd` format), so that nothing waits there.
    """
    placed, packing = step.placed, step.placed.packing
    if not packing.mean or not packing.spread:
        return []
    core_s = np.asarray(0.0)
    for block, count in zip(step.blocks, step.counts, strict=True):
        for item in block.of_role("core"):
            core_s = core_s + count * (item.forward_s + item.backward_s + item.recompute_s)
    dp = np.asarray(placed.layout.dp)
    return [
        _line(
            "packing.imbalance",
            axis="dp",
            formula="documents = sequences * seq_len / mean; "
            "excess = slowest * sqrt(((1 + spread ** 2) ** 4 - 1) / documents); "
            "core_s * min(excess, seq_len / span - 1)",
            terms={
                "core_s": core_s,
                "slowest": expected_maximum_normal(dp),
                "spread": packing.spread,
                "mean": packing.mean,
                "sequences": placed.global_batch / dp,
                "seq_len": placed.seq_len,
                "span": placed.shard.span,
            },
            source="sum of squared lengths of lognormal documents; expected maximum of independent ranks",
        )
    ]


def image_lines(step: Step) -> list[TimeLine]:
    r"""Return what data-parallel ranks wait for the one with the most of its images' tokens.

    Tokens of N images vary by their spread over :math:`\sqrt N`, and the work of the tower with them.
    """
    placed, images = step.placed, step.placed.images
    if not images.spread or not images.per_sample:
        return []
    passes = [
        count * (block.forward_s + (not block.frozen) * (block.backward_s + block.recompute_s))
        for block, count in zip(step.blocks, step.counts, strict=True)
        if block.role == "tower"
    ]
    dp = np.asarray(placed.layout.dp)
    return [
        _line(
            "packing.images",
            axis="dp",
            formula="tower_s * slowest * spread / sqrt(images)",
            terms={
                "tower_s": broadcast_sum(passes),
                "slowest": expected_maximum_normal(dp),
                "spread": images.spread,
                "images": placed.global_batch * images.per_sample / dp,
            },
            source="sum of independent images; expected maximum of independent ranks",
        )
    ]


def time_lines(step: Step, bill: Bill) -> list[TimeLine]:
    """Return what is known and not overlapped, the share of it that is not explained, and the wait for data."""
    waited = _slowest(step, bill)
    made = [*waited, *_between_steps(step), *_unexplained(step, bill.plus(waited))]
    return [*made, *_input(step, bill.plus(made))]


def _slowest(step: Step, bill: Bill) -> list[TimeLine]:
    """Return what a step waits for the slowest of its GPUs, and of several slices of a torus, which only its network joins.

    GPUs differ in silicon and cooling, which shows where matrix products draw the most power. Where a job says how step
    times of ranks are distributed, that has lines of its own.
    """
    placed, health, tiers = step.placed, step.placed.health, step.placed.cluster.tiers
    of_gpus = health.straggler_variation if placed.accelerator.is_gpu and health.stragglers == "none" else 0.0
    of_slices = max((tier.spread for tier in tiers[1:]), default=0.0) if tiers[0].shape else 0.0
    products = [line for line in bill.time_lines if line.category == "math"]
    slices = np.maximum(placed.layout.gpus / tiers[0].size, 1.0)
    cases: tuple[tuple[str, Axis, float, Array, Iterable[TimeLine], str], ...] = (
        ("gpu", "compute", of_gpus, placed.layout.gpus, products, _GPUS),
        ("slice", "dp", of_slices, slices, bill.time_lines, "slices"),
    )
    return [
        _line(
            f"overhead.slowest_{name}",
            axis=axis,
            cause="proportion",
            formula="spread * slowest * known_s",
            terms={
                "spread": spread,
                "slowest": expected_maximum_normal(count),
                "known_s": sum_exposed(lines),
            },
            source=f"{what} differ as normal numbers: expected maximum of as many (costmodel.physics.run.stragglers)",
        )
        for name, axis, spread, count, lines, what in cases
        if spread and any_nonzero(count > 1.0)
    ]


def _between_steps(step: Step) -> list[TimeLine]:
    """Return the host's time between steps."""
    recipe = step.placed.recipe
    if not recipe.host.step_overhead_s:
        return []
    return [
        _line(
            "overhead.step",
            formula="seconds",
            terms={"seconds": recipe.host.step_overhead_s},
            source=f"recipe {recipe.name}: step_overhead_s: next batch, gradient norm and finiteness with their "
            "synchronisation, optimizer's launches, logging",
        )
    ]


def _unexplained(step: Step, bill: Bill) -> list[TimeLine]:
    """Return the one fitted constant: a share of the passes, attention kernels apart, which are timed whole.

    What is sent and done once a step for data parallelism costs what it was measured to. A factor of a class of jobs
    or of a layout is one of all seconds; what data parallelism costs depends on other knobs than the rest, and has a
    line of its own, which keeps a search on small grids.
    """
    placed, factor = step.placed, None
    if placed.factors:
        found = [placed.factors.of(role, job_class(placed)) for role in ("unexplained", "layout")]
        known = [one for one in found if one is not None]
        factor = np.asarray(reduce(np.multiply, known)) if known else None
    terms = {
        "fraction": np.asarray(placed.recipe.host.overhead_fraction),
        "known_s": bill.exposed_s(by_sharding=False),
        "attention_s": sum_exposed([line for line in bill.time_lines if line.cause == "attention"]),
    }
    formula = "fraction * (known_s - attention_s)"
    if factor is not None:
        formula = f"factor * {formula} + (factor - 1) * known_s"
        terms |= {"factor": factor}
    lines = [("overhead.unexplained", formula, terms)]
    if factor is not None:
        of_data = {"factor": factor, "known_s": bill.exposed_s(by_sharding=True)}
        lines.append(("overhead.unexplained.data_parallel", "(factor - 1) * known_s", of_data))
    return [
        _line(
            name,
            cause="proportion",
            formula=text,
            terms=numbers,
            source=f"recipe {placed.recipe.name} on {placed.accelerator.generation}: overhead_fraction, "
            "fitted to whole runs (costmodel/describe/data/overheads.csv)",
        )
        for name, text, numbers in lines
    ]


def _input(step: Step, bill: Bill) -> list[TimeLine]:
    """Return what a step waits for the data of the next, which its host prepares meanwhile.

    Ranks of one replica train on the same sequences; a host feeds the replicas it holds, at least one.
    """
    placed, recipe, layout = step.placed, step.placed.recipe, step.placed.layout
    if not recipe.host.input_tokens_per_s:
        return []
    replicas = np.maximum(placed.cluster.gpus_per_node / (layout.tp * layout.cp * layout.pp), 1.0)
    tokens = placed.global_batch * placed.seq_len / layout.dp * np.minimum(replicas, layout.dp)
    return [
        _line(
            "overhead.input",
            formula="max(tokens / tokens_per_s - known_s, 0)",
            terms={
                "tokens": tokens,
                "tokens_per_s": recipe.host.input_tokens_per_s,
                "known_s": sum_exposed(bill.time_lines),
            },
            source=f"recipe {recipe.name}: input_tokens_per_s of each host, loaded one step ahead",
        )
    ]


def straggler_lines(step: Step, bill: Bill) -> list[TimeLine]:
    """Return what each level of synchronisation waits for its slowest rank.

    A slow rank is slow at its own work: communication of the critical path does not grow.
    """
    placed, health = step.placed, step.placed.health
    made: list[TimeLine] = []
    if health.degraded_gpu < 1.0:
        # Its stage sets the pace of all micro-batches, and its work is the critical stage's; what communicates and
        # what idles is not slower.
        works = [line for line in bill.time_lines if line.category not in ("communication", "bubble")]
        made.append(
            _line(
                "resilience.degraded_gpu",
                axis="resilience",
                formula="(1 / speed - 1) * work_s",
                terms={"speed": health.degraded_gpu, "work_s": sum_exposed(works)},
                source="every synchronisation waits for the slowest rank: step/overhead.py",
            )
        )
    if health.stragglers == "none":
        return made
    work_s = sum_exposed([line for line in bill.time_lines if line.category != "communication"])
    ranks = _ranks_below(placed)
    times = RankTimes(
        health.straggler_variation,
        health.stragglers == "lognormal",
        health.straggler_slow_fraction,
        health.straggler_slowdown,
    )
    excesses = {"stragglers": lasting_excess(ranks, times)}
    if health.straggler_jitter:
        excesses["jitter"] = jitter_excess(ranks, synchronisations(placed), health.straggler_jitter)
    made += [
        _line(
            f"resilience.{kind}.{level}",
            axis="resilience",
            formula="excess * work_s",
            terms={"excess": excess, "work_s": work_s, "ranks": count},
            source="expected maximum of independent ranks: David and Nagaraja, Order Statistics, section 3.1",
        )
        for kind, each in excesses.items()
        for level, excess, count in zip(_LEVELS, each, ranks, strict=True)
    ]
    return [line for line in made if any_nonzero(line.each_s)]


def _ranks_below(placed: PlacedJob) -> list[Array]:
    """Return how many ranks have waited for one another once each level has met."""
    layout = placed.layout
    context = layout.tp * layout.cp
    expert = np.maximum(context, layout.ep * layout.etp)
    pipeline = np.minimum(expert * layout.pp, layout.gpus)
    return [np.asarray(n) for n in (layout.tp, context, expert, pipeline, layout.gpus)]


def synchronisations(placed: PlacedJob) -> list[Array]:
    """Return how often each level synchronises a rank in a step."""
    layout, m = placed.layout, placed.micro_batches
    # Attention and MLP meet once each way, as do dispatch and combine.
    layers = np.maximum(4.0 * m * placed.model.num_layers / layout.pp, 1.0)
    return [layers, layers, layers, np.maximum(2.0 * m * layout.vp, 1.0), np.ones_like(m)]
