"""Everything about a job that could be otherwise: numbers of the hardware, and switches of the recipe.

Each is a `Change`: the job with another value of it. Rates (something per second) and latencies
(seconds) are complete: a job with all rates doubled and all latencies halved takes half the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from costmodel.describe.hardware.changed import at_rate, fabric_scaled
from costmodel.describe.jobs.fields import RECOMPUTE_POLICIES
from costmodel.describe.jobs.job import Change, Job, Kind, layout_change, switch_change
from costmodel.describe.switch_table import SWITCHES
from costmodel.physics.network.fabric import Fabric

if TYPE_CHECKING:
    from costmodel.describe.hardware.cluster import Tier
    from costmodel.describe.hardware.kernels import KernelConstants

_HOST_LATENCIES = {
    "launch_s": "kernel launch",
    "kernel_gap_s": "gap between kernels",
    "step_overhead_s": "step overhead",
}
_UNTRAINED = frozenset(
    (name, "fp4") for name in ("param_dtype", "gather_dtype", "grad_accum_dtype", "grad_reduce_dtype")
)
"""Choices that can be priced, and that nobody trains with: they are no proposals."""
_OF_OTHERS = frozenset(("node_limited_routing", "dispatch_sms", "cp_a2a_ranks", "hpz_ranks"))
"""Counts whose 0 leaves them to the model or the library: one is not the next value."""
_CHOSEN_FOR = ("auto", "torch")  # Choices that mean another one


def hardware_changes(job: Job, factor: float) -> list[Change]:
    """Return every rate and every latency of a job's hardware and host, each times a factor.

    Not the fixed time of a DeepEP exchange and the network level of an NVLS tree, which no profile states.
    """
    accelerator, found = job.cluster.accelerator, []

    def number(name: str, kind: Kind, value: float, unit: str, made: Job) -> None:
        found.append(Change(name, value, value * factor, made, kind, unit))

    def with_accelerator(**changes: Any) -> Job:
        changed = replace(accelerator, **changes)
        return replace(job, cluster=replace(job.cluster, accelerator=changed))

    peaks = accelerator.peak_flops_per_s
    for dtype, peak in peaks.items():
        made = with_accelerator(peak_flops_per_s={**peaks, dtype: peak * factor})
        number(f"{dtype} peak", "rate", peak, "FLOP/s", made)
    for name, field in (
        ("hbm bandwidth", "memory_bandwidth_bytes_per_s"),
        ("host link", "host_link_bytes_per_s"),
    ):
        value = float(getattr(accelerator, field))
        number(name, "rate", value, "B/s", with_accelerator(**{field: value * factor}))
    if scalar := accelerator.scalar_elements_per_s:
        made = with_accelerator(scalar_per_sm=scalar / accelerator.num_sms * factor)
        number("SM scalar rate", "rate", scalar, "element/s", made)
    if accelerator.kernels is not None:
        for name, kernels, value in _kernel_latencies(accelerator.kernels, factor):
            number(name, "latency", value, "s", with_accelerator(kernels=kernels))
    tiers = job.cluster.tiers
    for index, tier in enumerate(tiers):
        rate, latency = (
            replace(job, cluster=replace(job.cluster, tiers=(*tiers[:index], changed, *tiers[index + 1 :])))
            for changed in (at_rate(tier, factor), _with_latency(tier, factor))
        )
        number(f"{tier.name} bandwidth", "rate", tier.achieved_bandwidth_bytes_per_s, "B/s", rate)
        number(f"{tier.name} latency", "latency", _longest(tier), "s", latency)
    for field, name in _HOST_LATENCIES.items():
        value = float(job.switches[field])
        if value:
            number(
                name, "latency", value, "s", replace(job, recipe=job.recipe.replaced(field, value * factor))
            )
    return found


def _kernel_latencies(
    kernels: KernelConstants, factor: float
) -> Iterator[tuple[str, KernelConstants, float]]:
    """Yield the fixed times of matrix, attention and memory-bound kernels: the kernels with each scaled, and its value."""
    products = kernels.changed(
        lambda c: c._replace(
            fixed_s=c.fixed_s * factor,
            cast_fixed_s=c.cast_fixed_s * factor,
            fixed_per_group_s=c.fixed_per_group_s * factor,
        )
    )
    yield "matrix kernel start", products, max(c.fixed_s for c in kernels.matmul.values())
    if kernels.attention:
        attention = kernels.changed(one_pass=lambda one: one._replace(fixed_s=one.fixed_s * factor))
        slowest = max(one.fixed_s for both in kernels.attention.values() for one in both)
        yield "attention kernel start", attention, slowest
    memory = kernels.memory._replace(fixed_s=kernels.memory.fixed_s * factor)
    yield "memory kernel start", kernels.model_copy(update={"memory": memory}), kernels.memory.fixed_s


_LATENCIES = tuple(name for name in Fabric._fields if name.endswith("_s") and "per_s" not in name)
"""Constants of a link that are times."""


def _longest(tier: Tier) -> float:
    """Return the largest of a tier's latencies. [s]."""
    times = [tier.latency_s, tier.base_latency_s]
    times += [getattr(tier.fabric, name) for name in _LATENCIES]
    return max(times)


def _with_latency(tier: Tier, factor: float) -> Tier:
    return replace(
        tier,
        latency_s=tier.latency_s * factor,
        base_latency_s=tier.base_latency_s * factor,
        fabric=fabric_scaled(tier.fabric, _LATENCIES, factor),
    )


_AT_ITS_END = ("degraded_gpu",)
"""Numbers whose default is the end of their range, where a little more is none."""


def number_changes(job: Job, factor: float) -> list[Change]:
    """Return the numbers among the switches that are not zero, host latencies aside, each times a factor."""
    found = []
    for name, value in job.switches.items():
        if SWITCHES[name].is_number and value and name not in (*_HOST_LATENCIES, *_AT_ITS_END):
            made = replace(job, recipe=job.recipe.replaced(name, value * factor))
            unit = "B" if "bytes" in name else "s" if name.endswith("_s") else ""
            found.append(Change(name, float(value), value * factor, made, "number", unit))
    return found


def choice_changes(job: Job) -> list[Change]:
    """Return every other choice that a switch has, and other policies of the layout."""
    found = [
        switch_change(job, name, value)
        for name, now in job.switches.items()
        if not SWITCHES[name].is_number
        for value in _alternatives(name, now)
    ]
    policy, stage = RECOMPUTE_POLICIES[int(job.layout.recompute)], int(job.layout.zero_stage)
    found += [
        layout_change(job, "recompute", policy, other, recompute=code)
        for code, other in enumerate(RECOMPUTE_POLICIES)
        if other != policy
    ]
    others = (other for other in range(4) if other != stage)
    return [*found, *(layout_change(job, "zero", f"{stage}", f"{n}", zero_stage=n) for n in others)]


def _alternatives(name: str, now: Any) -> list[Any]:
    """Return the other values of a switch: other truth or words, next whole numbers, other modules."""
    if isinstance(now, bool):
        return [not now]
    if isinstance(now, int):
        if name in _OF_OTHERS and not now:
            return []
        return [value for value in (now - 1, now + 1) if value >= SWITCHES[name].bounds[0]]
    if isinstance(now, tuple):
        if not (known := SWITCHES[name].choices):
            return []  # what was measured has no alternatives
        return [tuple(m for m in now if m != gone) for gone in now if len(now) > 1] + [
            (*now, more) for more in known if more not in now
        ]
    return [
        choice
        for choice in SWITCHES[name].words
        if choice != now and choice not in _CHOSEN_FOR and (name, choice) not in _UNTRAINED
    ]
