"""Both rooflines: operators under the GPU's roofs, and axes against the tiers of the fabric.

Work and times of an operator are those in its line's formula; nothing is priced here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from costmodel.base.answer import Answer, columns_of
from costmodel.bill.formula import evaluate_steps
from costmodel.bill.lines import TimeLine, broadcast_sum, sum_exposed
from costmodel.estimates.estimate import Estimate
from costmodel.physics.network.comm_roofline import REGIMES, regime, ridge_point, ridge_points
from costmodel.physics.network.fabric import Tier
from costmodel.step.price import price


class OperatorRow(NamedTuple):
    """One pass of an operator on the roofline, once executed; padding is not counted."""

    name: str  # Of its line, without ``compute.``
    flops: float
    moved_bytes: float
    intensity: float  # FLOPs per byte of HBM. [FLOP/B]
    peak_flops_per_s: float  # Of the data sheet at its precision
    roof_flops_per_s: float  # What that and the memory's bandwidth allow at its intensity
    seconds: float
    share: float  # Of the step, all executions. [-]
    bound: str  # What its time goes to most: compute, memory or launch (of the kernel)

    @property
    def achieved_flops_per_s(self) -> float:
        """Rate of its useful FLOPs. [FLOP/s]."""
        return self.flops / self.seconds

    @property
    def of_roof(self) -> float:
        """Share of what the roofs allow: of FLOPs, or of bytes where there are no FLOPs. [-]."""
        return self.achieved_flops_per_s / self.roof_flops_per_s if self.flops else math.nan


def operator_rows(est: Estimate) -> list[OperatorRow]:
    """Return every pass of every operator that takes time, largest share of the step first."""
    est.require_single("roofline")
    rows = (
        _operator_row(line, float(est.step_time_s))
        for line in est.bill.time_lines
        if line.axis == "compute" and line.category in ("math", "hbm") and float(line.exposed_each_s) > 0
    )
    return sorted((row for row in rows if row is not None), key=lambda row: -row.share)


def _operator_row(line: TimeLine, step_time_s: float) -> OperatorRow | None:
    """Read the work of one pass off its formula; a recomputed pass is a share of the first."""
    known = {key: float(np.asarray(value)) for key, value in line.terms.items()}
    known |= {step.name: float(step.value) for step in evaluate_steps(line.formula, line.terms) if step.name}
    again = known.get("recompute_share", 1.0) * known.get("calls", 1.0)
    if "moved_bytes" not in known:
        return None
    flops, moved = known.get("flops", 0.0) * again, known["moved_bytes"] * again
    memory_s = known.get(
        "memory_s", known["moved_bytes"] / (known["memory_fraction"] * known["hbm_bytes_per_s"])
    )
    parts = {
        "compute": known.get("math_s", 0.0),
        "memory": memory_s,
        "launch": known["fixed_s"] * known.get("kernels", 1.0),
    }
    intensity = flops / moved if moved else 0.0
    peak = known.get("peak_flops_per_s", math.inf)
    return OperatorRow(
        name=line.name.removeprefix("compute."),
        flops=flops,
        moved_bytes=moved,
        intensity=intensity,
        peak_flops_per_s=peak,
        roof_flops_per_s=min(peak, intensity * known["hbm_bytes_per_s"]),
        seconds=float(line.exposed_each_s),
        share=float(line.exposed_seconds) / step_time_s,
        bound=max(parts, key=lambda part: parts[part]),
    )


class AxisRow(NamedTuple):
    """What an axis sends in a step, against the ridge point of the slowest tier that it crosses."""

    axis: str
    tier: str
    sent_bytes: float  # By one GPU. [B]
    intensity: float  # Model FLOPs of a GPU per byte sent. [FLOP/B]
    ridge: float
    """FLOPs per byte from which on the tier allows the peak, over all links that the group takes there. [FLOP/B]"""
    allowed: float  # Share of the peak that the tier allows, all communication hidden. [-]
    exposed: float  # Share of the step that it really costs. [-]
    regime: str
    advice: str


def axis_rows(est: Estimate) -> list[AxisRow]:
    """Return every axis that sends, against the slowest tier that it uses."""
    est.require_single("roofline")
    flops_per_gpu = float(est.model_flops(causal=True)) / float(est.job.layout.gpus)
    sending = [line for line in est.bill.time_lines if line.category == "communication"]
    rows = []
    for axis in dict.fromkeys(line.axis for line in sending if float(line.bytes) > 0):
        lines = [line for line in sending if line.axis == axis]
        outermost = max(lines, key=lambda line: (float(line.bytes) > 0, int(line.tier), float(line.bytes)))
        if int(outermost.tier) < 0:
            continue
        tier, rate = _slowest_tier(outermost, est.job.cluster.tiers)
        ridge = float(ridge_point(est.peak_flops_per_s, rate))
        sent = sum(float(line.bytes) for line in lines)
        exposed = sum(float(line.exposed_seconds) for line in lines) / float(est.step_time_s)
        intensity = flops_per_gpu / sent
        code = int(regime(intensity, ridge))
        rows.append(
            AxisRow(
                axis,
                tier.name,
                sent,
                intensity,
                ridge,
                min(intensity / ridge, 1.0),
                exposed,
                REGIMES[code],
                _advice(est, axis, tier.name, code, exposed),
            )
        )
    return rows


def _slowest_tier(line: TimeLine, tiers: Sequence[Tier]) -> tuple[Tier, float]:
    """Return which tier that a line crosses passes its bytes on slowest, and the rate of its group there. [B/s]

    A ring takes turns on the links of all members of a domain; what is sent to one peer takes one link of the outermost tier.
    """
    steps = {step.name: float(step.value) for step in evaluate_steps(line.formula, line.terms)}
    of_ring = {tier: steps.get(f"{tier.name}_s_per_byte", 0.0) for tier in tiers[: int(line.tier) + 1]}
    if "ring_s_per_byte" not in steps or not any(of_ring.values()):
        return tiers[int(line.tier)], tiers[int(line.tier)].achieved_bandwidth_bytes_per_s
    slowest = max(of_ring, key=lambda tier: of_ring[tier])
    factor = float(np.asarray(line.terms.get(f"{slowest.name}_rate_factor", 1.0)))
    return slowest, 1.0 / (of_ring[slowest] * factor)


_OVERLAPS = {
    "tp": "tp_overlap",
    "dp": "dp_overlap",
    "ep": "ep_overlap",
    "pp": "pp_overlap",
    "cp": "cp_method=ring",
}
_WORTH_HIDING = 0.02


def _advice(est: Estimate, axis: str, tier: str, code: int, exposed: float) -> str:
    """Say what moves an axis towards its ridge point, where it is not beyond."""
    if REGIMES[code] == "compute-bound":
        return f"hide more of it: {_OVERLAPS[axis]}" if exposed > _WORTH_HIDING else "leave it"
    inner = est.bill.tier_names[0]
    outside = tier != inner
    if axis == "dp":
        return "more tokens a GPU between reductions (larger batch, fewer replicas), or 16-bit gradients"
    if axis == "tp":
        return f"keep tp inside {inner}" if outside else "a smaller tp, or tp_overlap=pipelined"
    if axis == "ep":
        return "node-limited routing, 8-bit dispatch, ep_overlap" if outside else "ep_overlap"
    if axis == "cp":
        return f"keep cp inside {inner}, or a ring that hides behind attention" if outside else "a smaller cp"
    return "fewer virtual stages, or pp_overlap"


_COLUMNS = (
    *("kind", "name", "tier", "flops", "bytes", "flops_per_byte", "ridge_flops_per_byte"),
    *("seconds", "share", "verdict"),
)


class Roofline(Answer):
    """Operators of one job under the GPU's roofs, and its axes against the tiers of the fabric."""

    _device = "est.device_word"

    def __init__(self, est: Estimate) -> None:
        est.require_single("roofline")
        self.est = est

    @cached_property
    def operators(self) -> list[OperatorRow]:
        """Every pass of every operator that takes time, largest share of the step first."""
        return operator_rows(self.est)

    @cached_property
    def axes(self) -> list[AxisRow]:
        """Every axis that sends, the one nearest to being in the way first."""
        return sorted(axis_rows(self.est), key=lambda row: row.intensity / row.ridge)

    @property
    def critical_batch(self) -> float | None:
        """Global batch at which data parallelism reaches its tier's ridge point, none without; ZeRO-3 has none. [sequences]"""
        row = next((row for row in self.axes if row.axis == "dp"), None)
        if row is None or self.est.job.layout.zero_stage >= 3:
            return None
        return float(self.est.job.global_batch) * row.ridge / row.intensity

    @cached_property
    def ring_hides_from(self) -> int | None:
        """Sequence length from which context parallelism hides as much of its messages as it ever does. [tokens]

        Of powers of two up to 4 Mi tokens, the first at which what is exposed of the bill's lines is within a tenth of the
        share at the last. None without context parallelism, or where messages do not hide at all.
        """
        if float(self.est.job.layout.cp) == 1:
            return None
        lengths = np.asarray(2.0 ** np.arange(10, 23), dtype=np.float64)
        lines = [
            line
            for line in price(replace(self.est.job, seq_len=lengths)).bill.time_lines
            if line.axis == "cp" and line.category == "communication"
        ]
        sent_s = broadcast_sum([line.seconds for line in lines])
        exposed = sum_exposed(lines) / np.maximum(sent_s, 1e-300)
        hidden = np.broadcast_to(exposed <= 1.1 * exposed[..., -1], lengths.shape)
        return int(lengths[int(np.argmax(hidden))]) if np.all(exposed[..., -1] < 0.9) else None

    def to_dict(self) -> dict[str, Any]:
        """Return both rooflines as plain data."""
        accelerator, tiers = self.est.job.cluster.accelerator, self.est.job.cluster.tiers
        return {
            "schema_version": 1,
            "hbm_bytes_per_s": accelerator.memory_bandwidth_bytes_per_s,
            "peak_flops_per_s": dict(accelerator.peak_flops_per_s),
            "operators": [
                {
                    **row._asdict(),
                    "achieved_flops_per_s": row.achieved_flops_per_s,
                    # Memory-bound ones have no compute roof.
                    **({} if row.flops else {"peak_flops_per_s": None, "roof_flops_per_s": None}),
                }
                for row in self.operators
            ],
            "tiers": [
                {
                    "tier": tier.name,
                    "bandwidth_bytes_per_s": tier.achieved_bandwidth_bytes_per_s,
                    "ridge_flops_per_byte": ridge,
                }
                for tier, ridge in zip(tiers, ridge_points(self.est.peak_flops_per_s, tiers), strict=True)
            ],
            "axes": [row._asdict() for row in self.axes],
            "critical_batch_sequences": self.critical_batch,
            "ring_hides_from_tokens": self.ring_hides_from,
        }

    def columns(self) -> dict[str, list[Any]]:
        """Return operators and axes as columns, a row each."""
        hbm, nothing = self.est.job.cluster.accelerator.memory_bandwidth_bytes_per_s, math.nan
        rows: list[tuple[Any, ...]] = []
        for one in self.operators:
            ridge = one.peak_flops_per_s / hbm if one.flops else nothing
            work = one.flops, one.moved_bytes, one.intensity, ridge
            rows.append(("operator", one.name, "none", *work, one.seconds, one.share, one.bound))
        for axis in self.axes:
            sent = nothing, axis.sent_bytes, axis.intensity, axis.ridge, nothing
            rows.append(("axis", axis.axis, axis.tier, *sent, axis.exposed, axis.regime))
        return columns_of([dict(zip(_COLUMNS, row, strict=True)) for row in rows])


def roofline(est: Estimate) -> Roofline:
    """Set a job against both rooflines: FLOPs per byte of memory, and FLOPs per byte sent.

    Parameters
    ----------
    est : Estimate
        Of one layout.

    Returns
    -------
    Roofline
        ``.operators``, ``.axes``, ``.critical_batch``; ``.plot.compute()`` and ``.plot.communication()``.

    Raises
    ------
    CostModelError
        If the estimate holds many layouts.
    """
    return Roofline(est)
