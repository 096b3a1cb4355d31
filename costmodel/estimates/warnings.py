"""Plain words about a bill: what does not fit, what is slow for a reason, what was ignored."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from costmodel.base.units import format_bytes, format_seconds, format_si
from costmodel.base.words import plural
from costmodel.bill.lines import COMMUNICATING, broadcast_sum
from costmodel.describe.hardware.kernels import FALLBACK_DTYPES
from costmodel.describe.odds import RISK
from costmodel.describe.switch_table import SWITCHES
from costmodel.estimates.priced_job import PricedJob
from costmodel.estimates.savings import Saving, memory_savings, time_savings
from costmodel.physics.network.mesh import slowest_tier
from costmodel.physics.pipeline.schedules import schedule_at
from costmodel.physics.run.stragglers import MOST_PIECE_VARIATION
from costmodel.step.overhead import synchronisations
from costmodel.step.price import price
from costmodel.step.unlike_nodes import has_whole_replicas

BUBBLE_SHARE = 0.10
COMMUNICATION_SHARE = 0.20
HOST_SHARE = 0.10
SKEW_SHARE = 1.10
ROUTING_SHARE = 0.01
WORTH_SAYING = 0.01
_BUCKETS = (4.0, 8.0, 16.0, 32.0)  # Sizes of a bucket over the given one that are tried. [-]
UNEVEN = 1.2  # Tokens of the busiest expert rank over the mean, to say what uneven routing would cost. [-]


def warnings_of(est: PricedJob) -> list[str]:
    """Return what somebody should know before running this job, most important first."""
    if est.job.layout.shape or est.shape:
        return []
    about = (
        _other_nodes,
        _memory,
        _placement,
        _bubble,
        _faster,
        _communication,
        _buckets,
        _host,
        _routing,
        _compression,
        _jitter,
        accumulation,
        _balance,
        _ignored,
        _evidence,
    )
    return [sentence for each in about for sentence in each(est)]


def _other_nodes(est: PricedJob) -> Iterator[str]:
    """Say which of two kinds of node waits for the other."""
    mixed, other_share = est.job.cluster.mixed, est.priced.placed.other_share
    if mixed is None or other_share is None:
        return
    share = float(other_share)
    waits = f"they wait {1.0 - share:.0%} of each micro-batch" if share < 1.0 else "the others wait for them"
    apart = has_whole_replicas(est.job)
    if mixed.batch_by_speed and apart:
        divided = "replicas have parts of the batch by speed"
    elif est.priced.placed.split.by_speed:
        divided = "stages have layers by speed"
    else:
        both = f"a replica has nodes of both kinds, so that the batch is in equal parts, and {waits}"
        divided = both if mixed.batch_by_speed else f"where replicas or stages get as much, {waits}"
        if float(est.job.layout.pp) > 1:
            divided += "; stages get layers by speed with pipeline_layout balanced"
    yield (
        f"{plural(mixed.nodes, 'node')} of {mixed.accelerator.name} take {share:.2f} of the time of the others for the "
        f"same work: {divided}"
    )


def accumulation(est: PricedJob) -> Iterator[str]:
    """Say that ZeRO-2 saves nothing where the gradients of several micro-batches are added up whole."""
    layout, recipe = est.job.layout, est.job.recipe
    count = float(est.job.micro_batches)
    if (
        float(layout.zero_stage) == 2
        and count > 1
        and layout.dp * layout.cp > 1
        and not recipe.overlap.reduce_each_micro_batch
    ):
        yield (
            f"zero 2 holds whole gradients here, as zero 1 does: {count:.0f} micro-batches are added up before "
            "one reduction; --set reduce_each_micro_batch=true shards them and reduces each (DeepSpeed, FSDP)"
        )


def _memory(est: PricedJob) -> Iterator[str]:
    """Say by how much it does not fit and what would free most, or that it is tight."""
    need, have = float(est.memory_bytes_per_gpu), est.memory_capacity_bytes
    name = est.job.cluster.accelerator.name
    if need > have:
        yield (
            f"does not fit: the worst stage needs {format_bytes(need)} and {name} offers "
            f"{format_bytes(have)}, {format_bytes(need - have)} too much; {_best_saving(est, have)}"
        )
    elif est.is_tight:
        yield (
            f"tight: {format_bytes(have - need)} of {format_bytes(have)} are left on the worst stage, "
            f"{(have - need) / have:.1%}; runs predicted so full fit with {float(est.fits_probability):.0%}, a plan asks for "
            f"{1.0 - RISK:.0%}"
        )
    on_host, of_host = float(est.host_memory_bytes), est.host_memory_capacity_bytes
    if on_host > of_host:
        parts = sorted(est.bill.host_lines, key=lambda line: -float(line.bytes.max()))
        gpus = float(est.priced.placed.gpus_per_host)
        yield (
            f"does not fit the host: its {gpus:.0f} GPUs send {format_bytes(on_host)} to a memory of "
            f"{format_bytes(of_host)}, {format_bytes(on_host - of_host)} too much, most of it "
            f"{parts[0].name.removeprefix('host.')}"
        )


def _best_saving(est: PricedJob, capacity: float) -> str:
    """Say which single change frees most, and which one that fits costs the least time."""
    savings = memory_savings(est.job)
    if not savings:
        return "no single change of layout or recipe frees memory"
    most, fitting = savings[0], [saving for saving in savings if saving.fits]
    sentence = f"{most.change} frees most ({_costs(est, most)}"
    sentence += ", fits)" if most.fits else f", {_verdict(most, capacity)})"
    if not fitting:
        likeliest = max(savings, key=lambda saving: saving.fits_probability)
        other = f"; {likeliest.change} {_verdict(likeliest, capacity)}" if likeliest is not most else ""
        return f"{sentence}{other}, but no single change is enough"
    cheapest = min(fitting, key=lambda saving: saving.step_time_s)
    if cheapest is most:
        return f"{sentence} and is the cheapest single change that fits"
    return f"{sentence}; {cheapest.change} is the cheapest that fits ({_costs(est, cheapest)})"


def _verdict(saving: Saving, capacity: float) -> str:
    """Say how far a saving is from fitting as surely as a plan asks."""
    if saving.memory_bytes > capacity:
        return "still too much"
    return f"fits with {saving.fits_probability:.0%}, a plan asks for {1.0 - RISK:.0%}"


def _costs(est: PricedJob, saving: Saving) -> str:
    """Say what a saving frees and costs, and at which batch where some files take another with it."""
    percent = f"{saving.slowdown:+.0%}"
    step = "as fast" if percent in ("+0%", "-0%") else f"step {percent}"
    now, then = (float(job.layout.dp * job.layout.micro_batch) for job in (est.job, saving.change.job))
    batch = f" at batch {float(est.job.global_batch):,.0f}" if now != then else ""
    numerics = ", changes numerics" if saving.change.changes_numerics else ""
    return f"{format_bytes(saving.freed_bytes)} less, {step}{batch}{numerics}"


def _placement(est: PricedJob) -> Iterator[str]:
    """Say where tensor parallelism leaves the fastest tier."""
    tiers, group = est.job.cluster.tiers, est.priced.placed.mesh.tp
    crossed = int(slowest_tier(group))
    if crossed > 0:
        inside, slow = tiers[0], tiers[crossed]
        yield (
            f"TP leaves the {inside.name} domain: of {float(group.ranks):.0f} ranks only "
            f"{float(group.members[0]):.0f} share one, the rest is reached over {slow.name} "
            f"({format_si(slow.bandwidth_bytes_per_s, 'B/s')} a GPU instead of "
            f"{format_si(inside.bandwidth_bytes_per_s, 'B/s')})"
        )


def _bubble(est: PricedJob) -> Iterator[str]:
    """Say that the pipeline idles, and what would shrink it."""
    share = float(est.exposed_by("category").get("bubble", 0.0)) / float(est.step_time_s)
    if share > BUBBLE_SHARE:
        layout, micro_batches = est.job.layout, float(est.priced.placed.micro_batches)
        yield (
            f"the pipeline bubble is {share:.0%} of the step ({schedule_at(layout.schedule).name}, pp "
            f"{float(layout.pp):.0f}, vp {float(layout.vp):.0f}, {micro_batches:.0f} micro-batches): more "
            f"micro-batches, a smaller pp or more virtual stages shrink it"
        )


def _faster(est: PricedJob) -> Iterator[str]:
    """Name each change of the pipeline that saves time, with its flag and what it saves."""
    for saving in time_savings(est.job):
        if -saving.slowdown < WORTH_SAYING:
            continue
        over = ", does not fit" if saving.memory_bytes > est.memory_capacity_bytes else ""
        head = ""
        if saving.change.name.startswith("--pipeline-layout"):
            head = f": the stage with the head sets the pace; {saving.chunks} gives it fewer layers"
        yield (
            f"{saving.change} saves {-saving.slowdown:.1%} ({format_seconds(saving.step_time_s, 3)} a step, "
            f"{format_bytes(saving.memory_bytes)}{over}){head}"
        )


def _communication(est: PricedJob) -> Iterator[str]:
    """Name each axis that the step waits for more than a fifth of its time."""
    step_s = float(est.step_time_s)
    for axis in COMMUNICATING:
        waited_s = sum(
            float(line.exposed_seconds)
            for line in est.bill.time_lines
            if line.category == "communication" and line.axis == axis
        )
        if waited_s > COMMUNICATION_SHARE * step_s:
            yield (
                f"{axis.upper()} communication that nothing hides is {waited_s / step_s:.0%} of the step "
                f"({format_seconds(waited_s)})"
            )


def _buckets(est: PricedJob) -> Iterator[str]:
    """Say where messages of the reduction are so small that latency decides, and which size is better."""
    elements = est.job.recipe.overlap.bucket_elements
    if not elements or float(est.job.layout.dp) == 1:
        return
    now = float(est.step_time_s)
    tried = {
        times * elements: _step_s(est, bucket_elements=times * elements)
        for times in _BUCKETS
        if times * elements <= SWITCHES["bucket_elements"].bounds[1]
    }
    best = min(tried, key=lambda size: tried[size], default=elements)
    saved = 1.0 - tried.get(best, now) / now
    if saved > WORTH_SAYING:
        width = est.job.recipe.dtypes.grad_bytes()
        yield (
            f"buckets of {format_bytes(elements * width)} are too small for this network: --set "
            f"bucket_elements={best:.0f} ({format_bytes(best * width)}) saves {saved:.1%} of the step"
        )


def _host(est: PricedJob) -> Iterator[str]:
    """Say that kernels are too small for the host."""
    hosts = [line.exposed_seconds for line in est.bill.time_lines if line.cause == "host"]
    share = float(broadcast_sum(hosts) / est.step_time_s)
    if share > HOST_SHARE:
        yield (
            f"host overhead is {share:.0%} of the step: kernels are so short that the GPU waits for their "
            f"launches; a larger micro-batch, a smaller tp or cuda_graphs=true helps"
        )


def _routing(est: PricedJob) -> Iterator[str]:
    """Say what the busiest expert rank costs over perfect balance, which benchmarks force and training does not have."""
    job, load, moe = est.job, float(est.priced.placed.imbalance), est.job.recipe.moe
    if moe.moe_capacity_factor > 0 or float(job.layout.ep) == 1 or not job.model.num_experts:
        return
    if not moe.moe_loads and moe.moe_imbalance == 1.0:
        more = _step_s(est, moe_imbalance=UNEVEN) / float(est.step_time_s) - 1.0
        how = "perfectly balanced" if moe.moe_balance == "balanced" else "random, even over time"
        yield (
            f"routing of tokens to experts is assumed {how}: "
            f"--set moe_imbalance={UNEVEN} (the busiest rank gets {UNEVEN - 1.0:.0%} more) adds {more:.1%} to the step"
        )
    if load <= 1.0:
        return
    lost = float(est.step_time_s) - _step_s(est, moe_balance="balanced", moe_imbalance=1.0)
    if lost > ROUTING_SHARE * float(est.step_time_s):
        routing = "the measured loads" if job.recipe.moe.moe_loads else "random routing"
        how = routing if job.recipe.moe.moe_balance == "random" else "moe_imbalance"
        yield (
            f"{how} gives the busiest of {float(job.layout.ep):.0f} expert ranks "
            f"{load - 1.0:.0%} more tokens than the mean, which costs {format_seconds(lost)} "
            f"({lost / float(est.step_time_s):.1%} of the step); --set moe_balance=balanced is what benchmarks force"
        )


def _jitter(est: PricedJob) -> Iterator[str]:
    """Say where the given jitter is more than pieces between synchronisations can have."""
    health = est.job.health
    if health.stragglers == "none" or not health.straggler_jitter:
        return
    pieces = max(float(np.max(count)) for count in synchronisations(est.priced.placed))
    varies = health.straggler_jitter * float(np.sqrt(pieces))
    if varies > MOST_PIECE_VARIATION:
        yield (
            f"straggler_jitter {health.straggler_jitter:g} means pieces of a step that vary by {varies:.0%} between its "
            f"{pieces:,.0f} synchronisations, which no time can: {MOST_PIECE_VARIATION:.0%} is priced"
        )


def _compression(est: PricedJob) -> Iterator[str]:
    """Say how many more steps compressed gradients may take before they cost more than they save."""
    job = est.job
    if job.policy.gradient_compression == "none":
        return
    whole_s = _step_s(est, gradient_compression="none")
    gain, more = whole_s / float(est.step_time_s) - 1.0, job.steps_factor - 1.0
    counted = f"{more:.1%} more are counted in days" if more else "none more are counted in days"
    if gain <= 0:
        longer = f"takes {-gain:.1%} longer" if gain < -5e-4 else "is as long"
        yield f"gradient_compression {job.policy.gradient_compression} saves no time: a step {longer}"
        return
    yield (
        f"gradient_compression {job.policy.gradient_compression} changes what is learned: it pays while the same "
        f"loss takes less than {gain:.1%} more steps; {counted} (--set compression_steps=1.05 for others)"
    )


def _balance(est: PricedJob) -> Iterator[str]:
    """Say that layers do not divide over the pipeline, so that the busiest rank sets the pace."""
    layout, stages = est.job.layout, est.priced.placed.stages
    if layout.pp == 1 or est.job.balanced_stages:
        return
    per_stage = broadcast_sum(list(stages.layers))
    most, mean = float(np.max(per_stage)), float(np.mean(per_stage))
    if most > SKEW_SHARE * mean:
        yield (
            f"layers divide unevenly: the fullest of {float(layout.pp):.0f} pipeline stages holds {most:.0f} "
            f"layers, the mean is {mean:.1f}, and the step waits for the fullest"
        )


def _ignored(est: PricedJob) -> Iterator[str]:
    """Name what was given and changes nothing, or is beyond the model."""
    layout, model = est.job.layout, est.job.model
    stage, seq_len = int(layout.zero_stage), float(est.job.seq_len)
    rules = (
        (
            layout.shard_group > 0 and stage == 0,
            f"shard_group {float(layout.shard_group):.0f} is ignored: zero_stage 0 shards nothing",
        ),
        (
            est.job.recipe.host.offload_parameters and stage < 3,
            f"offload_parameters is ignored: zero_stage {stage} keeps whole parameters on the GPU",
        ),
        (layout.sequence_parallel > 0 and layout.tp == 1, "sequence_parallel is ignored: tp is 1"),
        (
            model.position == "learned" and seq_len > model.max_positions,
            f"seq_len {seq_len:.0f} is longer than the model's table of {model.max_positions} learned positions; "
            "the table is priced as it is",
        ),
        (
            model.position != "learned" and 0 < model.context_length < seq_len,
            f"seq_len {seq_len:,.0f} is longer than the {model.context_length:,} that {model.name} is made for",
        ),
    )
    yield from (text for holds, text in rules if holds)


def _evidence(est: PricedJob) -> Iterator[str]:
    """Say where this accelerator cannot be bought, or its matrix kernels are not measured on it."""
    accelerator, dtype = est.job.cluster.accelerator, est.job.precision.matmul_dtype
    if accelerator.announced:
        yield f"{accelerator.name} is announced, not measured: its numbers are its vendor's, and preliminary"
    if accelerator.kernels is None:
        return
    blocks = accelerator.kernels.blocks.matmul
    used = next((each for each in (dtype, *FALLBACK_DTYPES.get(dtype, ())) if each in blocks), None)
    if used is None:
        return
    if used != dtype and {used, dtype} != {"bf16", "fp16"}:
        yield f"{accelerator.name}: constants of {used} matrix kernels stand in for those of {dtype}"
    if blocks[used].basis != "measured":
        yield f"{accelerator.name}: {used} matrix kernels are not measured on it ({blocks[used].basis})"


def _step_s(est: PricedJob, **switches: object) -> float:
    """Return the step time with some switches at other values. [s]"""
    factor = est.priced.step.order_factor
    return float(price(est.job.switched(switches), order_factor=factor).bill.step_time_s())
