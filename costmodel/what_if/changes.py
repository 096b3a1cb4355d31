"""Everything about a job that could be otherwise: numbers of the hardware, and switches of the recipe.

A knob knows how to make the job with another value of it. Rates (something per second) and latencies
(seconds) are complete: a job with all rates doubled and all latencies halved takes half the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np

from costmodel.describe.jobs.fields import RECOMPUTE_POLICIES
from costmodel.describe.jobs.job import Job
from costmodel.describe.jobs.policy import Policy
from costmodel.describe.jobs.switches import HOME, switch_choices, switch_field
from costmodel.describe.recipe import GROUP_OF, RecomputeModule

if TYPE_CHECKING:
    from costmodel.describe.hardware.cluster import Accelerator, Tier
    from costmodel.describe.hardware.fabric import FabricConstants
    from costmodel.describe.hardware.kernels import KernelConstants

_HOST_LATENCIES = ("launch_s", "step_overhead_s")
_CHOSEN_FOR = ("auto", "torch")
"""Choices that mean another one."""


class Knob(NamedTuple):
    """A number of the job, and the job with it scaled.

    Attributes
    ----------
    name : str
        Such as ``hbm bandwidth`` or ``nvlink latency``.
    kind : str
        rate, latency or number (of the recipe).
    value : float
        What it is now, in SI units; of several latencies their largest.
    unit : str
        Of `value`.
    scaled : callable
        Returns the job with the number times a factor.
    """

    name: str
    kind: str
    value: float
    unit: str
    scaled: Callable[[float], Job]


class Switch(NamedTuple):
    """A choice of the recipe or the layout that could be another one."""

    name: str
    before: str
    after: str
    switched: Callable[[], Job]


def hardware_knobs(job: Job) -> list[Knob]:
    """Return every rate and every latency of a job's hardware and host.

    Notes
    -----
    Two constants of formulas are not among them, because no profile states them: the fixed time of a
    DeepEP exchange and the network level of an NVLS tree.
    """
    accelerator, knobs = job.cluster.accelerator, []

    def on_accelerator(change: Callable[[float], dict[str, Any]], factor: float) -> Job:
        changed = replace(accelerator, **change(factor))
        return replace(job, cluster=replace(job.cluster, accelerator=changed))

    for dtype, peak in accelerator.peak_flops_per_s.items():
        knobs.append(
            Knob(
                f"{dtype} peak",
                "rate",
                peak,
                "FLOP/s",
                partial(on_accelerator, partial(_peak_scaled, accelerator, dtype)),
            )
        )
    for name, field in (
        ("hbm bandwidth", "memory_bandwidth_bytes_per_s"),
        ("host link", "host_link_bytes_per_s"),
    ):
        value = float(getattr(accelerator, field))
        scaled = partial(lambda field, value, factor: {field: value * factor}, field, value)
        knobs.append(Knob(name, "rate", value, "B/s", partial(on_accelerator, scaled)))
    kernels = accelerator.kernels
    if kernels is not None:
        for name, change, value in _kernel_latencies(kernels):
            knobs.append(Knob(name, "latency", value, "s", partial(on_accelerator, change)))
    for index, tier in enumerate(job.cluster.tiers):
        knobs.append(
            Knob(
                f"{tier.name} bandwidth",
                "rate",
                tier.achieved_bandwidth_bytes_per_s,
                "B/s",
                partial(_tier_scaled, job, index, _with_rate),
            )
        )
        knobs.append(
            Knob(
                f"{tier.name} latency",
                "latency",
                _longest(tier),
                "s",
                partial(_tier_scaled, job, index, _with_latency),
            )
        )
    for field in _HOST_LATENCIES:
        value = float(job.switches[field])
        if value:
            name = {"launch_s": "kernel launch", "step_overhead_s": "step overhead"}[field]
            knobs.append(Knob(name, "latency", value, "s", partial(_recipe_scaled, job, field)))
    return knobs


def _peak_scaled(accelerator: Accelerator, dtype: str, factor: float) -> dict[str, Any]:
    peaks = accelerator.peak_flops_per_s
    return {"peak_flops_per_s": {**peaks, dtype: peaks[dtype] * factor}}


def _kernel_latencies(
    kernels: KernelConstants,
) -> Iterator[tuple[str, Callable[[float], dict[str, Any]], float]]:
    """Yield the fixed times of matrix, attention and memory-bound kernels, and how to scale them."""

    def matmul(factor: float) -> dict[str, Any]:
        tables = {
            table: {
                dtype: c._replace(
                    fixed_s=c.fixed_s * factor,
                    cast_fixed_s=c.cast_fixed_s * factor,
                    fixed_per_group_s=c.fixed_per_group_s * factor,
                )
                for dtype, c in getattr(kernels, table).items()
            }
            for table in ("matmul", "grouped_matmul")
        }
        return {"kernels": kernels.model_copy(update=tables)}

    def attention(factor: float) -> dict[str, Any]:
        table = {
            name: type(both)(*(one._replace(fixed_s=one.fixed_s * factor) for one in both))
            for name, both in kernels.attention.items()
        }
        return {"kernels": kernels.model_copy(update={"attention": table})}

    def memory(factor: float) -> dict[str, Any]:
        changed = kernels.memory._replace(fixed_s=kernels.memory.fixed_s * factor)
        return {"kernels": kernels.model_copy(update={"memory": changed})}

    yield "matrix kernel start", matmul, max(c.fixed_s for c in kernels.matmul.values())
    if kernels.attention:
        starts = [one.fixed_s for both in kernels.attention.values() for one in both]
        yield "attention kernel start", attention, max(starts)
    yield "memory kernel start", memory, kernels.memory.fixed_s


_FABRIC_RATES = ("copy_bandwidth_bytes_per_s", "ll_bandwidth_bytes_per_s")


def _fabric_latencies(fabric: FabricConstants) -> list[str]:
    return [name for name in type(fabric).model_fields if name.endswith("_s") and "per_s" not in name]


def _longest(tier: Tier) -> float:
    """Return the largest of a tier's latencies. [s]."""
    times = [tier.latency_s, tier.base_latency_s]
    if tier.fabric is not None:
        times += [float(getattr(tier.fabric, name)) for name in _fabric_latencies(tier.fabric)]
    return max(times)


def _fabric_scaled(fabric: FabricConstants | None, names: Callable[[Any], Any], factor: float) -> Any:
    """Return the fitted constants of a link with some scaled, built anew (copies keep cached numbers)."""
    if fabric is None:
        return None
    values = {name: getattr(fabric, name) for name in type(fabric).model_fields}
    for name in names(fabric):
        values[name] = values[name] * factor
    return type(fabric).model_construct(**values)


def _with_rate(tier: Tier, factor: float) -> Tier:
    return replace(
        tier,
        bandwidth_bytes_per_s=tier.bandwidth_bytes_per_s * factor,
        reduction_bandwidth_bytes_per_s=tier.reduction_bandwidth_bytes_per_s * factor,
        fabric=_fabric_scaled(tier.fabric, lambda _: _FABRIC_RATES, factor),
    )


def _with_latency(tier: Tier, factor: float) -> Tier:
    return replace(
        tier,
        latency_s=tier.latency_s * factor,
        base_latency_s=tier.base_latency_s * factor,
        fabric=_fabric_scaled(tier.fabric, _fabric_latencies, factor),
    )


def _tier_scaled(job: Job, index: int, change: Callable[[Tier, float], Tier], factor: float) -> Job:
    tiers = list(job.cluster.tiers)
    tiers[index] = change(tiers[index], factor)
    return replace(job, cluster=replace(job.cluster, tiers=tuple(tiers)))


def _recipe_scaled(job: Job, field: str, factor: float) -> Job:
    value = job.switches[field] * factor
    if field in GROUP_OF:
        return replace(job, recipe=job.recipe.replaced(field, value))
    home = "policy" if HOME[field] is Policy else "health"
    return replace(job, **{home: getattr(job, home).model_copy(update={field: value})})


def recipe_knobs(job: Job) -> list[Knob]:
    """Return the recipe's numbers that are not zero, host latencies aside."""
    knobs = []
    for name, value in job.switches.items():
        if switch_field(name).annotation is float and name not in _HOST_LATENCIES and value:
            knobs.append(Knob(name, "number", float(value), _unit(name), partial(_recipe_scaled, job, name)))
    return knobs


def _unit(name: str) -> str:
    return "B" if "bytes" in name else "s" if name.endswith("_s") else ""


def switches(job: Job) -> list[Switch]:
    """Return every other choice that a switch of the recipe has, and other policies of the layout."""
    found = []
    for name, now in job.switches.items():
        if switch_field(name).annotation is float:
            continue
        for value in _alternatives(name, now):
            found.append(Switch(name, _text(now), _text(value), partial(job.switched, {name: value})))
    layout = job.layout
    for code, policy in enumerate(RECOMPUTE_POLICIES):
        if code != int(layout.recompute):
            found.append(
                Switch(
                    "recompute",
                    RECOMPUTE_POLICIES[int(layout.recompute)],
                    policy,
                    partial(_layout_changed, job, "recompute", code),
                )
            )
    for stage in range(4):
        if stage != int(layout.zero_stage):
            found.append(
                Switch(
                    "zero",
                    f"{int(layout.zero_stage)}",
                    f"{stage}",
                    partial(_layout_changed, job, "zero_stage", stage),
                )
            )
    return found


def _alternatives(name: str, now: Any) -> list[Any]:
    """Return the other values of a switch: other truth or words, next whole numbers, other modules."""
    if isinstance(now, bool):
        return [not now]
    if isinstance(now, int):
        least = next((rule.ge for rule in switch_field(name).metadata if hasattr(rule, "ge")), 0)
        return [value for value in (now - 1, now + 1) if value >= least]
    if isinstance(now, tuple):
        known = get_args(RecomputeModule)
        return [tuple(m for m in now if m != gone) for gone in now if len(now) > 1] + [
            (*now, more) for more in known if more not in now
        ]
    return [choice for choice in switch_choices(name) if choice != now and choice not in _CHOSEN_FOR]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _layout_changed(job: Job, name: str, value: float) -> Job:
    changes: dict[str, Any] = {name: np.asarray(float(value))}
    return replace(job, layout=replace(job.layout, **changes))
