"""Figures of a search: the front of step time against memory, and scaling with the number of GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.base.units import format_bytes
from costmodel.describe.jobs.fields import DEGREES
from costmodel.describe.jobs.layout_text import degrees_text
from costmodel.estimates.record import input_record
from costmodel.planning.scaling import best_of_each_job
from costmodel.reporting.figures import FILLS, new_figure
from costmodel.reporting.series import job_title

if TYPE_CHECKING:
    from costmodel.estimates.estimate import Estimate
    from costmodel.planning.plan import Plan

_LABELLED = 6
_SLOWEST_SHOWN = 4.0


def short_layout(table: dict[str, list[Any]], row: int) -> str:
    """Name the layout of one row in a few letters."""
    degrees = {axis: table[axis][row] for axis in DEGREES if axis != "dp"}
    text = degrees_text(degrees, always=()) or "dp only"
    policy = table["recompute"][row]
    return f"{text} mb{table['micro_batch'][row]} z{table['zero_stage'][row]}" + (
        "" if policy == "none" else f" {policy}"
    )


def draw_pareto(plan: Plan) -> Any:
    """Draw the best layouts and the front of step time against memory."""
    kept, front = plan.columns(), plan.pareto_columns()
    limit = plan.question.limit_bytes(plan.question.jobs[0])
    title = (
        f"{job_title(plan.best)}: layouts by step time and memory\n"
        f"{plan.num_considered:,} considered, {plan.num_fit:,} fit; the best {len(plan):,} and the front are shown"
    )
    figure, axes = new_figure(title, size=(9.0, 5.6))
    axes.scatter(
        np.asarray(kept["memory_bytes_per_gpu"]) / 2**30,
        kept["step_time_s"],
        s=10,
        color="#999999",
        label="among the best",
    )
    memory = np.asarray(front["memory_bytes_per_gpu"]) / 2**30
    step = np.asarray(front["step_time_s"])
    order = np.argsort(memory)
    axes.step(memory[order], step[order], where="post", color=FILLS["math"][0], linewidth=1.5)
    axes.plot(
        memory,
        step,
        "o",
        color=FILLS["math"][0],
        markersize=5,
        markeredgecolor="black",
        label="front: nothing is both faster and leaner",
    )
    axes.plot(
        kept["memory_bytes_per_gpu"][0] / 2**30,
        kept["step_time_s"][0],
        "*",
        markersize=17,
        color=FILLS["tp"][0],
        markeredgecolor="black",
        label=f"best: {short_layout(kept, 0)}",
    )
    axes.axvline(
        limit / 2**30, color="black", linestyle="--", linewidth=1.3, label=f"limit: {format_bytes(limit)}"
    )
    # The leanest layouts can be a hundred times slower; nobody chooses among them.
    shown = step <= _SLOWEST_SHOWN * step.min()
    _label_front(axes, front, memory, step, shown)
    beyond = f"; {np.sum(~shown)} of the front are slower" if not shown.all() else ""
    axes.set(
        xlabel="memory of a GPU, worst stage [GiB]",
        ylabel=f"step time [s]{beyond}",
        ylim=(0.9 * step.min(), 1.1 * step[shown].max()),
    )
    figure.legend(loc="outside lower center", fontsize="small", ncols=2)
    return figure


def _label_front(axes: Any, front: dict[str, list[Any]], memory: Any, step: Any, shown: Any) -> None:
    """Name a few of the layouts of the front that are shown, spread over the height of the figure."""
    spread = np.log(step[shown].max() / step.min()) + 1e-9, np.ptp(memory[shown]) + 1e-9
    named: list[int] = []
    for row in sorted(np.flatnonzero(shown), key=lambda row: -step[row]):
        far = [
            abs(np.log(step[row] / step[one])) / spread[0] + abs(memory[row] - memory[one]) / spread[1]
            for one in named
        ]
        if len(named) < _LABELLED and min(far, default=1.0) > 1.0 / _LABELLED and step[row] > step.min():
            named.append(int(row))
            axes.annotate(
                short_layout(front, int(row)),
                (memory[row], step[row]),
                textcoords="offset points",
                xytext=(8, 4),
                fontsize="x-small",
            )


def draw_scaling(plan: Plan) -> Any:
    """Draw the throughput of the best layout over the number of GPUs, beside perfect scaling."""
    best: dict[float, Estimate] = {}
    for est in best_of_each_job(plan):
        gpus = float(est.job.layout.gpus)
        if gpus not in best or _rate(est) > _rate(best[gpus]):
            best[gpus] = est
    counts = np.asarray(sorted(best))
    rates = np.asarray([_rate(best[count]) for count in counts])
    perfect = rates[0] * counts / counts[0]
    job = plan.best.job
    title = f"{job.model.name} on {job.cluster.name}, {float(job.seq_len):,.0f} tokens a sequence: best layouts by GPUs"
    figure, axes = new_figure(title, size=(9.0, 5.6))
    axes.plot(counts, perfect, "k--", linewidth=1.0, label="perfect scaling from the fewest")
    axes.plot(
        counts,
        rates,
        "o-",
        color=FILLS["math"][0],
        markeredgecolor="black",
        label="best layout: share of perfect, MFU, layout",
    )
    for count, rate, ideal in zip(counts, rates, perfect, strict=True):
        est = best[float(count)]
        table = {name: [value] for name, value in input_record(est.job).items()}
        axes.annotate(
            f"{rate / ideal:.0%} · {float(est.mfu):.1%}\n{short_layout(table, 0)}",
            (count, rate),
            textcoords="offset points",
            xytext=(5, -24),
            fontsize="x-small",
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="GPUs [-]",
        ylabel="throughput [tokens/s]",
        xlim=(counts[0] / 1.2, counts[-1] * 2.0),
        ylim=(rates[0] / 2.0, perfect[-1] * 1.5),
    )
    axes.set_xticks(counts, [f"{count:,.0f}" for count in counts])
    axes.minorticks_off()
    axes.set_yticks(rates, [f"{rate:,.0f}" for rate in rates])
    axes.minorticks_off()
    axes.legend(loc="upper left", fontsize="small")
    return figure


def _rate(est: Estimate) -> float:
    """Return the tokens of a second on all GPUs. [1/s]"""
    return float(est.tokens_per_step / est.step_time_s)
