"""The mesh as a map: which GPUs form a group of each axis, on the first nodes and on the whole machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from costmodel.estimates.mesh import MeshRow, mesh_of
from costmodel.reporting.figures import empty_figure
from costmodel.reporting.series import job_title
from costmodel.reporting.tables import job_text

if TYPE_CHECKING:
    from costmodel.estimates.estimate import Estimate

_EXPERT_AXES = ("etp", "ep", "edp")
_NODES_SHOWN = 8
_WIDEST = 72


def group_numbers(est: Estimate, gpus: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Return the group that each GPU belongs to, by axis; axes of one are left out.

    Ranks are numbered along the axis order, innermost first; a group holds the ranks that differ
    in its own axis alone. Expert axes lie over tp, cp and dp of one pipeline stage.
    """
    layout, order = est.job.layout, est.job.axis_order
    size = {axis: int(getattr(layout, axis)) for axis in order}
    place, inner = {}, 1
    for axis in order:
        place[axis] = gpus // inner % size[axis]
        inner *= size[axis]
    found = {
        axis: _number(gpus.shape, [(place[a], size[a]) for a in order if a != axis])
        for axis in order
        if size[axis] > 1
    }
    ep, etp = int(layout.ep), int(layout.etp)
    if ep * etp > 1:
        others = [axis for axis in order if axis != "pp"]
        rank = _number(gpus.shape, [(place[a], size[a]) for a in others])
        width = {"etp": etp, "ep": ep, "edp": int(np.prod([size[a] for a in others])) // (ep * etp)}
        at = {"etp": rank % etp, "ep": rank // etp % ep, "edp": rank // (etp * ep)}
        for axis in _EXPERT_AXES:
            if width[axis] > 1:
                rest = [(at[a], width[a]) for a in _EXPERT_AXES if a != axis]
                found[axis] = _number(gpus.shape, [*rest, (place["pp"], size["pp"])])
    return found


def _number(shape: tuple[int, ...], digits: list[tuple[NDArray[np.int64], int]]) -> NDArray[np.int64]:
    """Count the combinations of some places, the first digit fastest."""
    number, weight = np.zeros(shape, dtype=np.int64), 1
    for digit, base in digits:
        number = number + digit * weight
        weight *= base
    return number


def draw_mesh(est: Estimate) -> Any:
    """Draw a row an axis: groups on the first nodes, and where the group of GPU 0 sits on the machine."""
    gpus, domain = int(est.job.layout.gpus), est.job.cluster.tiers[0].size
    width = min(domain, gpus, _WIDEST)
    rows = {row.dim: row for row in mesh_of(est) if row.link}
    shown = min(_NODES_SHOWN if width <= 16 else 3, -(-gpus // width))
    numbers = group_numbers(est, np.arange(min(gpus, shown * width)))
    everywhere = group_numbers(est, np.arange(gpus))
    title = f"{job_title(est)}: groups of each axis\n{job_text(est)}"
    count = max(len(numbers), 1)
    figure = empty_figure(title, size=(11.0, 0.7 + count * (0.28 * shown + 1.15)))
    panels = figure.subplots(count, 2, squeeze=False, width_ratios=(1.0, 1.0))
    if not numbers:
        panels[0][0].text(0.5, 0.5, "one GPU a group: every axis is 1", ha="center")
    for (axis, groups), (left, right) in zip(numbers.items(), panels, strict=False):
        row = rows.get(axis) or next(r for r in rows.values() if r.dim in ("shard", axis))
        _draw_nodes(left, axis, row, groups, width, shown)
        _draw_machine(right, everywhere[axis], width)
    panels[-1][0].set_xlabel(f"GPU in its {est.job.cluster.tiers[0].name} domain; the number is its group's")
    panels[-1][1].set_xlabel("dark: holds members of GPU 0's group")
    return figure


_SHADES = ("#FFFFFF", "#B5DCF3", "#F7F1A0", "#C8C8C8", "#F3CD80", "#9FD8C0", "#E5B3CF", "#8FA9C4")


def _draw_nodes(
    axes: Any, axis: str, row: MeshRow, groups: NDArray[np.int64], width: int, shown: int
) -> None:
    """Draw the GPUs of the first domains, with the number and a shade of their group."""
    from matplotlib.patches import Rectangle

    for gpu, group in enumerate(groups):
        node, place = divmod(gpu, width)
        shade = _SHADES[int(group) % len(_SHADES)]
        axes.add_patch(Rectangle((place, node), 1, 1, facecolor=shade, edgecolor="grey", linewidth=0.4))
        if width <= 16:
            axes.text(place + 0.5, node + 0.5, str(group), ha="center", va="center", fontsize=6.5)
    for node in range(shown):
        axes.add_patch(Rectangle((0, node), width, 1, facecolor="none", edgecolor="black", linewidth=1.6))
    inside = row.members[0]
    axes.set_title(
        f"{axis} = {row.factor:,}: {row.groups:,} groups on {row.link}, {inside} of it in a domain",
        fontsize="small",
        loc="left",
    )
    axes.set(xlim=(-0.05, width + 0.05), ylim=(shown + 0.05, -0.05), ylabel="domain")
    axes.set_yticks(np.arange(shown) + 0.5, [str(node) for node in range(shown)], fontsize="x-small")
    step = 1 if width <= 16 else 8
    axes.set_xticks(
        np.arange(0, width, step) + 0.5, [str(i) for i in range(0, width, step)], fontsize="x-small"
    )
    axes.tick_params(length=0)


def _draw_machine(axes: Any, groups: NDArray[np.int64], width: int) -> None:
    """Draw all domains of the machine, dark where the group of GPU 0 has members."""
    nodes = -(-len(groups) // width)
    members = np.zeros(nodes * width)
    members[: len(groups)] = groups == groups[0]
    per_node = members.reshape(nodes, width).sum(axis=1)
    columns = int(2 ** np.ceil(np.log2(max(np.sqrt(3.0 * nodes), 1.0))))
    grid = np.full((-(-nodes // columns), columns), np.nan)
    grid.flat[:nodes] = per_node > 0
    axes.pcolormesh(
        grid, cmap="Greys", vmin=-0.25, vmax=1.25, edgecolors="white", linewidth=0.3, rasterized=True
    )
    held = int((per_node > 0).sum())
    axes.set_title(
        f"group of GPU 0: on {held:,} of {nodes:,} domains (squares, in reading order)",
        fontsize="small",
        loc="left",
    )
    axes.set(ylim=(grid.shape[0], 0), xticks=[], yticks=[])
