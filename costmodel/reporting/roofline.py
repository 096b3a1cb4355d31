"""Both rooflines as tables."""

from __future__ import annotations

from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_bytes, format_seconds, format_si
from costmodel.estimates.estimate import Estimate
from costmodel.estimates.roofline import AxisRow, OperatorRow, Roofline
from costmodel.physics.network.comm_roofline import ridge_points

_SMALL_SHARE = 0.001


def roofline_grids(found: Roofline, *, every_operator: bool = False) -> list[Grid]:
    """Return roofs, operators, tiers and axes."""
    return [
        _roof_grid(found.est),
        _operator_grid(found.operators, every_operator),
        _tier_grid(found.est),
        _axis_grid(found.axes),
    ]


def _roof_grid(est: Estimate) -> Grid:
    """Return the compute roofs and where each meets the memory's."""
    accelerator = est.job.cluster.accelerator
    bandwidth = accelerator.memory_bandwidth_bytes_per_s
    rows = [
        [dtype, format_si(peak, "FLOP/s", 4), f"{peak / bandwidth:,.0f} FLOP/B"]
        for dtype, peak in sorted(accelerator.peak_flops_per_s.items(), key=lambda item: item[1])
    ]
    title = f"Roofs of {accelerator.name}: HBM {format_si(bandwidth, 'B/s')}"
    note = "Ridge: FLOPs per byte of HBM from which on the dtype's peak is the lower roof."
    return Grid(title, columns("Dtype", "Dense peak >", "Ridge >"), rows, note=note)


def _operator_grid(rows: list[OperatorRow], every_operator: bool) -> Grid:
    """Return the operators under their roofs."""
    shown = [row for row in rows if every_operator or row.share >= _SMALL_SHARE]
    cells = [
        [
            row.name,
            format_si(row.flops, "FLOP") if row.flops else "",
            format_bytes(row.moved_bytes),
            f"{row.intensity:,.0f}" if row.flops else "",
            format_seconds(row.seconds, 4),
            format_si(row.achieved_flops_per_s, "FLOP/s")
            if row.flops
            else format_si(row.moved_bytes / row.seconds, "B/s"),
            f"{row.of_roof:.0%}" if row.flops else "",
            row.bound,
            f"{row.share:.1%}",
        ]
        for row in shown
    ]
    titles = columns(
        "Operator and pass",
        "FLOPs >",
        "HBM >",
        "FLOP/B >",
        "Time >",
        "Achieved >",
        "Of roof >",
        "Bound by",
        "Of step >",
    )
    left = len(rows) - len(shown)
    note = (
        f"{left} passes below {_SMALL_SHARE:.1%} of the step are left out; --all shows them." if left else ""
    )
    return Grid("Operators of one micro-batch on one GPU", titles, cells, note=note)


def _tier_grid(est: Estimate) -> Grid:
    """Return the tiers as the steps of a staircase."""
    rows = []
    ridges = ridge_points(est.peak_flops_per_s, est.job.cluster.tiers)
    for tier, ridge in zip(est.job.cluster.tiers, ridges, strict=True):
        rate = format_si(tier.achieved_bandwidth_bytes_per_s, "B/s")
        rows.append([tier.name, f"{tier.size:,}", tier.link, rate, f"{float(ridge):,.0f} FLOP/B"])
    note = "Ridge: model FLOPs of a GPU per byte that it sends, from which on the tier allows the peak."
    titles = columns("Tier", "GPUs >", "Link", "Achieved a GPU >", "Ridge >")
    return Grid("Tiers of the fabric", titles, rows, note=note)


def _axis_grid(rows: list[AxisRow]) -> Grid:
    """Return each axis of this layout on its tier."""
    cells = [
        [
            row.axis,
            row.tier,
            format_bytes(row.sent_bytes),
            f"{row.intensity:,.0f}",
            f"{row.ridge:,.0f}",
            f"{row.allowed:.0%}",
            f"{row.exposed:.1%}",
            row.regime,
            row.advice,
        ]
        for row in rows
    ]
    titles = columns(
        "Axis",
        "Slowest tier",
        "Sent a step >",
        "FLOP/B >",
        "Ridge >",
        "Allows >",
        "Exposed >",
        "Regime",
        "To move it",
    )
    note = "Allows: share of the peak if all of it were hidden. Exposed: share of the step that the bill charges."
    return Grid("Axes of this layout", titles, cells, note=note)


def roofline_remarks(found: Roofline) -> list[str]:
    """Say which batch data parallelism needs."""
    batch = found.critical_batch
    if batch is None:
        return []
    now = float(found.est.job.global_batch)
    relation = "above it" if now >= batch else "below it"
    return [
        f"Critical batch of data parallelism: {batch:,.0f} sequences ({batch * float(found.est.job.seq_len):,.3g} tokens); "
        f"this job's {now:,.0f} are {relation}."
    ]
