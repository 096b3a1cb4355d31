"""A step of reinforcement learning as tables, and its phases on a time axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_bytes, format_count, format_seconds
from costmodel.base.words import plural
from costmodel.describe.jobs.layout_text import layout_text
from costmodel.reporting.cells import grid_of
from costmodel.reporting.charts import Bars, Chart, Panel, rows_of

if TYPE_CHECKING:
    from costmodel.generation.rl_estimate import RLEstimate
    from costmodel.planning.rl_plan import RLPlan
    from costmodel.whole_run.rl_run import RLRun

_FILLS = {"generation": "tp", "training": "math"}
_POOLS = {"generation": "that generate", "training": "that train"}
_COST_A_MOST = 3
_SPLITS_SHOWN = 12


def rl_grids(found: RLEstimate) -> list[Grid]:
    """Return what a step takes, and its phases."""
    return [_head(found), _phases(found)]


def rl_remarks(found: RLEstimate) -> list[str]:
    """Return the warnings."""
    return list(found.warnings)


def _head(found: RLEstimate) -> Grid:
    job, memory, lengths = found.job, found.memory, found.job.lengths
    capacity = format_bytes(float(job.cluster.accelerator.memory_bytes))
    usd = "" if found.usd_per_step is None else f", ${found.usd_per_step:,.2f}"
    rows = [
        ("where", f"{_where(found)}, {job.cluster.name}"),
        (
            "answers",
            f"{job.prompts:,} prompts x {job.samples:,}, {lengths.mean:,.0f} tokens on average, at most {lengths.longest:,.0f}",
        ),
        ("step time", format_seconds(found.step_time_s, 4) + usd),
        (
            "answers a day",
            f"{format_count(found.samples_per_day)}; {found.tokens_per_s_per_gpu:,.0f} tokens/s/GPU",
        ),
        (
            "training half",
            f"{format_bytes(memory['training'])} of {capacity} a GPU, "
            f"{plural(job.optimizer_steps, 'optimizer step')} of {format_seconds(float(found.training.step_time_s))}",
        ),
    ]
    if not job.colocated:
        rows.append(("trainer waits", f"{format_seconds(found.waiting_s)} a step for answers"))
    if job.generates:
        weights, room = memory["generation_weights"], memory["generation_cache_room"]
        running = (
            f"{max(found.places, 0.0):,.0f} answers a replica, {found.spans.mean_batch:,.0f} run on average"
        )
        held = f"{format_bytes(weights)} of weights and {format_bytes(room)} of cache a GPU"
        rows.append(("generating half", f"{held}: {running}"))
    if "critic" in memory:
        rows.append(("critic", f"{format_bytes(memory['critic'])} of the training half"))
    if "swapped_optimizer" in memory:
        rows.append(
            (
                "swapped",
                f"{format_bytes(memory['swapped_optimizer'])} of optimizer a GPU to main memory and back",
            )
        )
    title = (
        f"{job.model.name}, {job.algorithm} on {plural(job.gpus, 'GPU')} of {job.cluster.accelerator.name}"
    )
    return Grid(title, columns("", ""), rows)


def _where(found: RLEstimate) -> str:
    job = found.job
    if not job.generates:
        return f"{plural(job.gpus, 'GPU')} train"
    if job.colocated:
        return f"{plural(job.gpus, 'GPU')} train and generate in turn"
    return f"{job.train_gpus:,} GPUs train, {job.generation_gpus:,} generate, lag {job.lag:g}"


def _phases(found: RLEstimate) -> Grid:
    def longest(phase: Any) -> str:
        seconds: dict[str, float] = {}
        for line in phase.lines:
            part = line.name.split(".", 1)[1].split(".")[0:2]
            seconds[" ".join(part)] = seconds.get(" ".join(part), 0.0) + float(line.exposed_seconds)
        most = sorted(seconds, key=lambda name: -seconds[name])[:_COST_A_MOST]
        return ", ".join(f"{name} {seconds[name] / max(phase.seconds, 1e-12):.0%}" for name in most)

    cells = {
        "Phase": "name",
        "GPUs": lambda phase: "all" if found.job.colocated else _POOLS[phase.pool],
        "Seconds >": lambda phase: format_seconds(phase.seconds),
        "Of the step >": lambda phase: f"{phase.seconds / found.step_time_s:.1%}",
        "Mostly": longest,
    }
    note = (
        ""
        if found.job.colocated or not found.job.lag
        else "Phases of the two halves overlap; the step is " + found.period.formula
    )
    step = ["step", "", format_seconds(found.step_time_s, 4), "", ""]
    return grid_of("Phases", found.phases, cells, sums=[step], note=note)


def plan_grids(plan: RLPlan) -> list[Grid]:
    """Return the splits, the fastest first."""
    cells = {
        "Train >": lambda found: f"{found.job.train_gpus:,}",
        "Generate >": lambda found: (
            f"{found.job.generation_gpus:,}" if found.job.generation_gpus else "the same"
        ),
        "Lag >": lambda found: f"{found.job.lag:g}",
        "Layout": lambda found: layout_text(found.training.job.layout),
        "Engine": lambda found: f"tp{float(found.job.split.tp):.0f}",
        "Step >": lambda found: format_seconds(found.step_time_s, 4),
        "Training >": lambda found: format_seconds(found.seconds_of("training")),
        "Rollout >": lambda found: format_seconds(found.seconds_of("generation")),
        "Trainer waits >": lambda found: (
            "" if found.job.colocated else f"{found.waiting_s / found.step_time_s:.0%}"
        ),
        "$ a step >": lambda found: "" if found.usd_per_step is None else f"{found.usd_per_step:,.2f}",
    }
    job = plan.best.job
    title = f"{job.model.name}, {job.algorithm} on {plural(job.gpus, 'GPU')}: splits between training and generation"
    return [grid_of(title, plan.found[:_SPLITS_SHOWN], cells)]


def plan_remarks(plan: RLPlan) -> list[str]:
    """Return how many were priced, and what would be sick about the best."""
    priced = f"{plural(len(plan.found), 'split')} priced with their best engine layout; {plan.impossible:,} do not fit or divide."
    return [priced, *plan.best.warnings]


def run_grids(run: RLRun) -> list[Grid]:
    """Return what a campaign takes, above the table of its step."""
    dollars = "no price" if run.dollars is None else f"${run.dollars:,.0f}"
    rows = [
        ("steps", f"{run.steps:,} of {format_seconds(run.step.step_time_s, 4)}"),
        ("days", f"{run.days:,.2f}"),
        ("GPU-hours", f"{run.gpu_hours:,.0f}"),
        ("dollars", dollars),
    ]
    return [Grid("The campaign, without what failures take", columns("", ""), rows), *rl_grids(run.step)]


def run_remarks(run: RLRun) -> list[str]:
    """Return the warnings of its step."""
    return rl_remarks(run.step)


def phases_chart(found: RLEstimate) -> Chart:
    """Draw the phases of a step on a time axis, a row a pool of GPUs; white is waiting."""
    pools = ["all GPUs"] if found.job.colocated else ["GPUs that generate", "GPUs that train"]
    begun = dict.fromkeys(pools, 0.0)
    if not found.job.colocated:
        begun[pools[1]] = found.waiting_s
    bars, parity = [], dict.fromkeys(pools, 0)
    for phase in found.phases:
        pool = pools[0] if phase.pool == "generation" else pools[-1]
        if not phase.seconds:
            continue
        bars.append(
            Bars(
                label="",
                fill=_FILLS[phase.pool],
                at=[pools.index(pool)],
                starts=[begun[pool]],
                lengths=[phase.seconds],
                texts=[phase.name if phase.seconds > 0.06 * found.step_time_s else ""],
                inside=True,
                about=[f"{phase.name}<br>{format_seconds(phase.seconds)}"],
                hover="%{customdata}<extra></extra>",
                paleness=0.35 * (parity[pool] % 2),
            )
        )
        begun[pool] += phase.seconds
        parity[pool] += 1
    shape = rows_of(pools)
    x = f"time [s]; a step every {format_seconds(found.step_time_s, 4)}"
    panel = Panel(marks=bars, x=x, x_range=(0.0, 1.02 * max([*begun.values(), found.step_time_s])), **shape)
    title = f"{found.job.model.name}, {found.job.algorithm}: {format_seconds(found.step_time_s, 4)} a step"
    note = (
        ""
        if found.job.colocated
        else "Answers of a longer rollout than the step are those of several steps together."
    )
    return Chart(title=title, panels=[panel], note=note, width=11.0)
