"""Inference and reinforcement learning as tables: figures, lines of a decode step, phases of a step on a time axis."""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING, Any

from costmodel.base.answer import Summary
from costmodel.base.grid import Grid, columns
from costmodel.base.numbers import TO_P90
from costmodel.base.units import format_dollars, format_seconds
from costmodel.base.words import plural
from costmodel.describe.hardware.prices import price_text
from costmodel.describe.jobs.layout_text import layout_text
from costmodel.generation.generate import ASSUMED
from costmodel.reporting.cells import dollars_of, facts_grid, facts_of, say, table_of
from costmodel.reporting.charts import Bars, Chart, Panel, rows_of

if TYPE_CHECKING:
    from costmodel.generation.generate import Generation
    from costmodel.generation.rl_estimate import RLEstimate
    from costmodel.planning.rl import RLPlan, RLRun

_LINES = 6
"""Largest lines that a terminal shows; `--format json` has all, with their formulas."""
_FILLS = {"generation": "tp", "training": "math"}
_POOLS = {"generation": "that generate", "training": "that train"}
_COST_A_MOST = 2
_SPLITS_SHOWN = 12


def generation_grids(found: Generation) -> list[Grid]:
    """Return the figures, and the largest lines of a decode step."""
    chosen = f", the best of {found.considered:,}" if found.considered > 1 else ""
    usd = found.usd_per_million_tokens
    price = (
        f"{format_dollars(usd)} per million generated tokens, at {price_text(found.served.cluster)}"
        if usd
        else ""
    )
    low, high = (exp(side * TO_P90 * found.served.engine.spread) for side in (-1.0, 1.0))
    ends = f"{format_seconds(found.itl_s * low)} to {format_seconds(found.itl_s * high)} a token"
    if usd:
        ends += f", {format_dollars(usd * low)} to {format_dollars(usd * high)}"
    ends += f" (80% of measured steps within; {found.served.engine.basis})"
    title = "{served.model.name} on {work.gpus:plural GPU} of {served.cluster.accelerator.name}: "
    title = say(title + "{tokens_per_s_per_gpu:figure} tokens/s/GPU", found)
    stars = {name: "*" if name in found.work.assumed else "" for name in ASSUMED}
    head = facts_grid(
        "generation",
        found,
        title,
        degrees=found.split.text,
        chosen=chosen,
        price=price,
        range=ends,
        assumed=" (*assumed)" if any(stars.values()) else "",
        **stars,
    )
    lines = sorted(found.bill.time_lines, key=lambda line: -float(line.exposed_seconds))
    shown = [
        {
            "name": line.name.removeprefix("decode."),
            "category": line.category,
            "exposed_seconds": float(line.exposed_seconds),
            "share": float(line.exposed_seconds) / found.itl_s,
        }
        for line in lines[:_LINES]
        if float(line.exposed_seconds) > 0
    ]
    return [head, table_of("decode", shown)]


def generation_summary(found: Generation) -> Summary:
    """Return all of it: its tables are short."""
    return Summary(generation_grids(found), warnings(found))


def _of_answers(found: RLEstimate) -> str:
    """Return the dollars of a step, and of a thousand of its answers."""
    if found.usd_per_step is None:
        return ""
    job = found.job
    thousand = found.usd_per_step / (job.prompts * job.samples) * 1e3
    answers = f" ({format_dollars(thousand)} a thousand answers)" if job.generates else ""
    return f", ${found.usd_per_step:,.2f}{answers}"


def warnings(found: Generation | RLEstimate) -> list[str]:
    """Return the warnings."""
    return [f"Warning: {text}" for text in found.warnings]


def rl_grids(found: RLEstimate) -> list[Grid]:
    """Return what a step of reinforcement learning takes, and its phases."""
    job = found.job
    title = (
        f"{job.model.name}, {job.algorithm} on {plural(job.gpus, 'GPU')} of {job.cluster.accelerator.name}"
    )
    title = title if found.fits else f"DOES NOT FIT: {title}"
    where = f"{job.train_gpus:,} GPUs train, {job.generation_gpus:,} generate, lag {job.lag:g}"
    if not job.generates:
        where = f"{plural(job.gpus, 'GPU')} train"
    elif job.colocated:
        where = f"{plural(job.gpus, 'GPU')} train and generate in turn"
    rows = facts_of("rl", found, where=where, usd=_of_answers(found))
    if not job.colocated:
        rows += facts_of("rl waiting", found)
    if job.generates:
        others = len(job.engine_layouts)
        engine = f"{job.split.text}{f' (the fastest of {others} that divide)' if others > 1 else ''}"
        each = job.answers * job.rollout_factor / job.replicas
        rows += facts_of("rl generating", found, places=max(found.places, 0.0), each=each, engine=engine)
    for part in ("critic", "swapped_optimizer"):
        if part in found.memory:
            rows += facts_of(f"rl {part}", found)
    return [Grid(title, columns("", ""), rows), _phases(found)]


def _phases(found: RLEstimate) -> Grid:
    def longest(phase: Any) -> str:
        seconds: dict[str, float] = {}
        for line in phase.lines:
            part = line.name.split(".")[1:3][-1]
            seconds[part] = seconds.get(part, 0.0) + float(line.exposed_seconds)
        most = sorted(seconds, key=lambda name: -seconds[name])[:_COST_A_MOST]
        return ", ".join(f"{name} {seconds[name] / max(phase.seconds, 1e-12):.0%}" for name in most)

    own = {
        "GPUs": lambda phase: "all" if found.job.colocated else _POOLS[phase.pool],
        "Of the step >": lambda phase: f"{phase.seconds / found.step_time_s:.1%}",
        "Mostly": longest,
    }
    overlap = "Phases of the two halves overlap, and generate is one rollout alone, which bounds no step"
    note = f"{overlap}; {found.period_text}." if found.period_text else ""
    step = ["step", "", format_seconds(found.step_time_s, 4), "", ""]
    return table_of("rl phases", found.phases, own, sums=[step], note=note)


def plan_grids(plan: RLPlan) -> list[Grid]:
    """Return the splits, the fastest first."""
    own = {
        "Generate >": lambda found: (
            f"{found.job.generation_gpus:,}"
            if found.job.generation_gpus
            else "the same"
            if found.job.generates
            else "none"
        ),
        "Layout": lambda found: layout_text(found.training.job.layout),
        "Engine": lambda found: f"tp{float(found.job.split.tp):.0f}" if found.job.generates else "",
        "Training >": lambda found: format_seconds(found.seconds_of("training")),
        "Rollout >": lambda found: (
            format_seconds(found.seconds_of("generation")) if found.job.generates else ""
        ),
        "Trainer waits >": lambda found: (
            "" if found.job.colocated else f"{found.waiting_s / found.step_time_s:.0%}"
        ),
    }
    job = plan.best.job
    what = "splits between training and generation" if job.generates else "all train, none generates"
    title = f"{job.model.name}, {job.algorithm} on {plural(job.gpus, 'GPU')}: {what}"
    return [table_of("rl plan", plan.found[:_SPLITS_SHOWN], own, title=title)]


def plan_remarks(plan: RLPlan) -> list[str]:
    """Return how many were priced, and what would be sick about the best."""
    best = plan.best
    engine = "each with the engine layout of its shortest step, refit included"
    priced = f"{plural(len(plan.found), 'split')} priced, {engine}"
    if not best.job.generates:
        priced = f"{best.job.algorithm} trains on answers that are there"
    bound = [f"Of the best {best.period_text}; Rollout is one alone."] if best.period_text else []
    tuned = [f"Switches of the best: {plan.switches}."] if plan.switches else []
    return [f"{priced}; {plan.impossible:,} do not fit or divide.", *bound, *tuned, *best.warnings]


def run_grids(run: RLRun) -> list[Grid]:
    """Return what a campaign takes, above the table of its step."""
    low, high = (f"{days:,.2f}" for days in run.days_range)
    ends = f"{low} to {high} days"
    if run.dollars_range is not None:
        low, high = (f"${usd:,.0f}" for usd in run.dollars_range)
        ends += f", {low} to {high}"
    title = "The campaign, without what failures take"
    title = title if run.step.fits else f"DOES NOT FIT: {title}"
    return [facts_grid("rl run", run, title, usd=dollars_of(run.dollars), range=ends), *rl_grids(run.step)]


def run_remarks(run: RLRun) -> list[str]:
    """Return the warnings of its step."""
    return warnings(run.step)


def phases_chart(found: RLEstimate) -> Chart:
    """Draw the phases of a step on a time axis, a row a pool of GPUs; white is waiting."""
    pools = ["all GPUs"] if found.job.colocated else ["GPUs that generate", "GPUs that train"]
    begun, count = dict.fromkeys(pools, 0.0), dict.fromkeys(pools, 0)
    if not found.job.colocated:
        begun[pools[1]] = found.waiting_s
    bars = []
    phases = [phase for phase in found.phases if phase.seconds]
    narrow = [phase.name for phase in phases if phase.seconds <= 0.06 * found.step_time_s]
    for phase in phases:
        pool = pools[0] if phase.pool == "generation" else pools[-1]
        bars.append(
            Bars(
                fill=_FILLS[phase.pool],
                at=[pools.index(pool)],
                starts=[begun[pool]],
                lengths=[phase.seconds],
                texts=["" if phase.name in narrow else phase.name],
                texts_inside=True,
                about=[f"{phase.name}\n{format_seconds(phase.seconds)}"],
                hover="%{about}",
                lightness=0.35 * (count[pool] % 2),
            )
        )
        begun[pool] += phase.seconds
        count[pool] += 1
    step = format_seconds(found.step_time_s, 4)
    end = 1.02 * max([*begun.values(), found.step_time_s])
    unnamed = f"; too narrow for a name, in order: {', '.join(narrow)}" if narrow else ""
    axis = f"time [s]; a step every {step}{unnamed}"
    panel = Panel(marks=bars, x=axis, x_range=(0.0, end), **rows_of(pools))
    late = "Answers of a longer rollout than the step are those of several steps together."
    title = f"{found.job.model.name}, {found.job.algorithm}: {step} a step"
    return Chart(title=title, panels=[panel], note="" if found.job.colocated else late, width=11.0)
