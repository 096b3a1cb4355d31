"""Predicted against measured, one mark a published run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.base.errors import CostModelError
from costmodel.reporting.figures import FILLS, new_figure

if TYPE_CHECKING:
    from costmodel.trust.validation import Validation

_MARKERS = "osD^vP*Xph<>8d"
_COLOURS = [FILLS[name][0] for name in ("math", "tp", "cp", "ep", "hbm", "pp", "dp", "overhead")]


def draw_predicted(checked: Validation) -> Any:
    """Draw predicted over measured step time, marked by accelerator, between lines of 10 and 25 %.

    Raises
    ------
    CostModelError
        If no run was priced and measured.
    """
    runs = checked.judged.dropna(subset=["time_error"])
    if not len(runs):
        raise CostModelError("predicted: no run has both a measured and a predicted step time")
    size = runs.time_error.abs()
    title = (
        f"Step time of {len(runs):,} published runs: median error {size.median():.1%}, "
        f"90 % within {size.quantile(0.9):.1%}, bias {runs.time_error.mean():+.1%}"
    )
    figure, axes = new_figure(title, size=(8.0, 8.6))
    low = 0.7 * float(min(runs.measured_step_time_s.min(), runs.predicted_step_time_s.min()))
    high = 1.4 * float(max(runs.measured_step_time_s.max(), runs.predicted_step_time_s.max()))
    line = np.asarray([low, high])
    axes.plot(line, line, "k-", linewidth=1.2, label="predicted = measured")
    for off, style in ((0.10, "--"), (0.25, ":")):
        axes.plot(line, line * (1 + off), color="black", linestyle=style, linewidth=0.8, label=f"± {off:.0%}")
        axes.plot(line, line * (1 - off), color="black", linestyle=style, linewidth=0.8)
    for index, (name, group) in enumerate(runs.groupby("accelerator")):
        axes.plot(
            group.measured_step_time_s,
            group.predicted_step_time_s,
            _MARKERS[index % len(_MARKERS)],
            color=_COLOURS[index % len(_COLOURS)],
            markeredgecolor="black",
            markersize=6,
            alpha=0.8,
            linestyle="",
            label=f"{name} ({len(group)})",
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(low, high),
        ylim=(low, high),
        xlabel="measured step time [s]",
        ylabel="predicted step time [s]",
    )
    axes.set_aspect("equal")
    figure.legend(loc="outside lower center", fontsize="small", ncols=3)
    return figure
