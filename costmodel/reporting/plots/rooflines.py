"""Both rooflines: operators against the GPU's roofs, and axes against the tiers of the fabric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.base.units import format_si
from costmodel.describe.hardware.kernels import PEAK_KEY
from costmodel.estimates.roofline import AxisRow, Roofline, axis_rows, operator_rows
from costmodel.physics.network.comm_roofline import REGIMES, regime, ridge_points
from costmodel.reporting.figures import FILLS, new_figure
from costmodel.reporting.series import job_title
from costmodel.reporting.tables import job_text

if TYPE_CHECKING:
    from costmodel.estimates.estimate import Estimate


class OperatorPoint(NamedTuple):
    """An operator's forward pass on the roofline; `seconds` and `share` of the step by all its passes."""

    name: str
    flops_per_byte: float
    flops_per_s: float
    seconds: float
    share: float


def operator_points(est: Estimate) -> list[OperatorPoint]:
    """Return the matrix products and attention of every layer kind, largest share of the step first."""
    rows = operator_rows(est)
    step = float(est.step_time_s)
    shares: dict[str, float] = {}
    for row in rows:
        name = row.name.rsplit(".", 1)[0]
        shares[name] = shares.get(name, 0.0) + row.share
    found = [
        OperatorPoint(name, row.intensity, row.achieved_flops_per_s, shares[name] * step, shares[name])
        for row in rows
        if row.flops > 0 and row.name.endswith(".forward") and (name := row.name.removesuffix(".forward"))
    ]
    return sorted(found, key=lambda point: -point.share)


def draw_compute(found: Roofline) -> Any:
    """Draw operators under the roofs of the GPU."""
    return draw_compute_roofline(found.est)


def draw_communication(found: Roofline) -> Any:
    """Draw axes against the ridge points of the fabric."""
    return draw_communication_roofline(found.est)


_MARKERS = "osD^vP*Xph<>8dH"


def draw_compute_roofline(est: Estimate) -> Any:
    """Draw every operator's forward pass under the memory and compute roofs of the GPU."""
    accelerator = est.job.cluster.accelerator
    points = operator_points(est)
    title = f"{job_title(est)}: operators of one micro-batch on the roofline of a GPU\n{job_text(est)}"
    figure, axes = new_figure(title, size=(9.0, 5.6))
    used = PEAK_KEY[est.job.precision.matmul_dtype]
    peaks = {name: peak for name, peak in accelerator.peak_flops_per_s.items() if name in {used, "bf16"}}
    memory = accelerator.memory_bandwidth_bytes_per_s
    top = max(peaks.values())
    left = min([0.1 * top / memory, *(0.3 * point.flops_per_byte for point in points)])
    right = max([4.0 * top / memory, *(2.0 * point.flops_per_byte for point in points)])
    intensity = np.geomspace(left, right, 200)
    for style, (name, peak) in zip(
        ("-", "--", ":"), sorted(peaks.items(), key=lambda item: -item[1]), strict=False
    ):
        axes.plot(intensity, np.minimum(intensity * memory, peak) / 1e12, "k", linestyle=style, linewidth=1.3)
        axes.text(
            right,
            peak / 1e12 * 1.04,
            f"{name}: {format_si(peak, 'FLOP/s')}",
            ha="right",
            va="bottom",
            fontsize="small",
        )
        ridge = peak / memory
        axes.plot([ridge, ridge], [_low(points), peak / 1e12], color="grey", linestyle=":", linewidth=0.8)
        axes.text(
            ridge, _low(points) * 1.05, f" ridge {ridge:.0f}", fontsize="x-small", rotation=90, va="bottom"
        )
    slope = float(np.degrees(np.arctan(memory / 1e12)))
    axes.text(
        left * 1.15,
        left * 1.15 * memory / 1e12,
        f"HBM: {format_si(memory, 'B/s')}",
        rotation=slope,
        rotation_mode="anchor",
        transform_rotates_text=True,
        fontsize="small",
        va="bottom",
    )
    for index, point in enumerate(sorted(points, key=lambda point: -point.seconds)):
        marker = _MARKERS[index % len(_MARKERS)]
        axes.plot(
            point.flops_per_byte,
            point.flops_per_s / 1e12,
            marker,
            markersize=8,
            markeredgecolor="black",
            color=_COLOURS[index % len(_COLOURS)],
            label=f"{point.name} · {point.share:.1%}",
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="arithmetic intensity [FLOP per byte of HBM]",
        ylabel="achieved, forward [TFLOP/s]",
        xlim=(left, right),
        ylim=(_low(points), 2.2 * top / 1e12),
    )
    figure.legend(
        loc="outside lower center",
        fontsize="x-small",
        title="operator · share of the step, all passes",
        title_fontsize="x-small",
        ncols=4,
    )
    return figure


_COLOURS = [FILLS[name][0] for name in ("math", "tp", "cp", "ep", "hbm", "pp", "dp", "overhead")]


def _low(points: Sequence[OperatorPoint]) -> float:
    """Return where the axis of rates begins. [TFLOP/s]"""
    return float(min([50.0, *(0.4 * point.flops_per_s / 1e12 for point in points)]))


def draw_communication_roofline(est: Estimate) -> Any:
    """Draw the tiers' ridge points as a staircase, and each axis by its FLOPs per byte sent."""
    tiers, peak = est.job.cluster.tiers, est.peak_flops_per_s
    points = axis_rows(est)
    ridges = ridge_points(peak, tiers)
    title = f"{job_title(est)}: what share of the peak each link allows, all communication hidden\n{job_text(est)}"
    figure, axes = new_figure(title, size=(9.0, 5.6))
    left = min([float(ridges.min()), *(p.intensity for p in points)]) / 4.0
    right = max([float(ridges.max()), *(p.intensity for p in points)]) * 4.0
    intensity = np.geomspace(left, right, 300)
    for index, (tier, ridge) in enumerate(zip(tiers, ridges, strict=True)):
        style = ("-", "--", "-.", ":")[index % 4]
        rate = format_si(tier.achieved_bandwidth_bytes_per_s, "B/s")
        axes.plot(
            intensity,
            np.minimum(intensity / ridge, 1.0),
            color=_COLOURS[index % len(_COLOURS)],
            linestyle=style,
            linewidth=1.8,
            label=f"{tier.name} ({tier.link}): {rate} a GPU, ridge {float(ridge):,.0f} FLOP/B",
        )
    names = [tier.name for tier in tiers]
    for index, point in enumerate(sorted(points, key=lambda point: point.intensity)):
        ridge = float(ridges[names.index(point.tier)])
        allowed = min(point.intensity / ridge, 1.0)
        where = REGIMES[int(regime(point.intensity, ridge))]
        axes.plot(
            point.intensity,
            allowed,
            _MARKERS[index],
            markersize=10,
            markeredgecolor="black",
            color=FILLS[point.axis][0],
            label=f"{point.axis} on {point.tier}: {point.intensity:,.0f} FLOP/B, {where}",
        )
        axes.annotate(
            point.axis,
            (point.intensity, allowed),
            textcoords="offset points",
            xytext=(0, (10, -20)[index % 2]),
            ha="center",
            fontweight="bold",
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(left, right),
        ylim=(_lowest(points, ridges, names), 1.6),
        xlabel="computation to communication [model FLOP of a GPU per byte it sends]",
        ylabel="share of the dense peak [-]",
    )
    figure.legend(loc="outside lower center", fontsize="small", ncols=2)
    return figure


def _lowest(points: Sequence[AxisRow], ridges: NDArray[np.float64], names: list[str]) -> float:
    """Return where the axis of shares begins. [-]"""
    shares = [point.intensity / float(ridges[names.index(point.tier)]) for point in points]
    return float(min([0.05, *(0.5 * share for share in shares)]))
