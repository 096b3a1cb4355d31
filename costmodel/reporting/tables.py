"""An estimate for people: headline, time bill, memory bill of the worst stage, mesh, warnings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from costmodel.base.grid import Grid
from costmodel.base.numbers import off_middle_text
from costmodel.base.units import format_bytes, format_dollars, format_seconds
from costmodel.base.words import plural
from costmodel.bill.lines import AXES, CATEGORIES, CATEGORY_NAMES
from costmodel.describe.factors import NOMINAL
from costmodel.describe.hardware.changed import changed_text
from costmodel.describe.hardware.prices import mixed_note, price_text
from costmodel.describe.jobs.layout_text import degrees_of, degrees_text, value_text
from costmodel.estimates.estimate import estimate_job
from costmodel.estimates.frame import WIDE_COLUMNS, line_records, wide_columns
from costmodel.estimates.mesh import mesh_of
from costmodel.estimates.samples import Interval, Samples
from costmodel.physics.pipeline.schedules import schedule_at
from costmodel.reporting.cells import facts_grid, grid_of, say, table_of
from costmodel.reporting.network import mesh_grid

if TYPE_CHECKING:
    from costmodel.estimates.estimate import Estimate

SMALL_SHARE = 0.005
_MANY_LAYOUTS = 20
PLANNED = " (the planner's: none was named)"
"""What stands behind a layout that no job names."""
CAUSES = 3
"""Causes of width that are shown."""
_COUNTS = {"causal": "half the matrix", "hardware": "recomputation counted"}


def estimate_grids(est: Estimate, *, every_line: bool = False) -> list[Grid]:
    """Return the tables of one layout in the order they are read, or the first rows of many."""
    if est.shape:
        return [layouts_grid(est)]
    return [
        headline_grid(est),
        *([causes_grid(est.samples)] if est.samples is not None else []),
        time_grid(est, every_line=every_line),
        memory_grid(est, every_line=every_line),
        *([host_grid(est)] if est.bill.host_lines else []),
        mesh_grid(mesh_of(est), est),
    ]


def estimate_remarks(est: Estimate) -> list[str]:
    """Return what was assumed, and the warnings."""
    return [*est.assumptions, *(f"Warning: {warning}" for warning in est.warnings)]


def causes_grid(samples: Samples) -> Grid:
    """Return the factors that widen step time and memory most, each alone from its p10 to its p90."""
    rows = [
        {"of": of, "cause": cause, "low": cause.low - 1.0, "high": cause.high - 1.0}
        for of, causes in (("step time", samples.time_causes), ("memory", samples.memory_causes))
        for cause in causes[:CAUSES]
    ]
    return table_of("uncertain", rows)


def sampled_text(samples: Samples, source: str = "") -> str:
    """Say where a job's step time and memory lie by samples, and what they follow."""
    memory = samples.interval(figure="memory_bytes_per_gpu")
    spread = f"of {samples.count} samples of {len(samples.factors)} uncertain factors"
    return f"{_range_text(samples.interval(), memory)} (p10 to p90 {source or spread}){off_middle(samples)}"


def _range_text(time_s: Interval, memory_bytes: Interval) -> str:
    return say("{0.low:s3} to {0.high:s3}, {1.low:B} to {1.high:B}", {}, time_s, memory_bytes)


def off_middle(samples: Samples) -> str:
    """Say that the headline's step time is far from the median of its samples; empty where it is near."""
    text = off_middle_text(samples.headline_place, format_seconds(samples.quantile(0.5), 3))
    return f" ({text})" if text else ""


def range_text(est: Estimate, *, sources: bool = False) -> str:
    """Say between which times and bytes the prediction lies, and from what that is known; with `sources` more of it."""
    band, of_memory, need = est.error_band, est.memory_error_band, float(est.memory_bytes_per_gpu)
    if est.samples is not None:
        return sampled_text(est.samples)
    if est.job.belief.names:
        known = sampled_text(est.sample(), f"by the runs of {est.job.site or 'this site'}")
        return known + (_moved_by_site(est) if sources else "")
    if band is None:
        return "unknown: too few published runs of such models and accelerators"
    known = _range_text(est.range_s, Interval(need * of_memory.low, need * of_memory.high))
    known += f" (80% of {band.runs} runs, {of_memory.runs} peaks)"
    if not sources:
        return known
    apart = {
        "unfitted": ", with nothing fitted to this recipe or machine",
        "estimated": ", on machines whose kernels nobody timed, with nothing fitted to them",
    }.get(band.of.rpartition("-")[2], "")
    generation = "" if band.of.startswith("any") else f" of {est.job.cluster.accelerator.generation}"
    return (
        f"{known}: published step times{generation} of {plural(band.sources, 'source')} around their prediction, with the "
        f"source left out of what is fitted{apart}; memory peaks of {plural(of_memory.sources, 'source')}"
    )


def _moved_by_site(est: Estimate) -> str:
    shipped_s = float(estimate_job(replace(est.job, factors=NOMINAL)).step_time_s)
    moved = float(est.step_time_s) / shipped_s - 1.0
    return (
        f"; they move it by {moved:+.1%} from {format_seconds(shipped_s, 4)}, by as much as they are believed"
    )


def headline_grid(est: Estimate) -> Grid:
    """Return what people ask first; the convention of each utilisation stands beside it."""
    job = est.job
    more: dict[str, Any] = {"printed": _printed_text(est), "host": "", "spent": spent_text(est, sources=True)}
    more |= {"layout": job_text(est), "band": range_text(est, sources=True), "memory": memory_text(est)}
    more["breakdown"] = breakdown_text(est)
    if est.bill.host_lines:
        word = "fits" if est.fits_host else "does not fit"
        more["host"] = say("{host_memory_bytes:B} of {host_memory_capacity_bytes:B} a host: ", est) + word
    title = (
        f"{job.model.name} on {plural(float(job.layout.gpus), 'GPU')} of {changed_text(job.cluster)} "
        f"({job.cluster.accelerator.name}), recipe {job.recipe.name}"
    )
    return facts_grid("estimate", est, title, **more)


def spent_text(est: Estimate, *, sources: bool = False) -> str:
    """Say how long training on the job's tokens takes and what it costs without failures; with `sources` of the price."""
    job = est.job
    if job.tokens is None:
        return ""
    hours, price = float(est.gpu_hours(job.tokens)), job.cluster.price_usd_per_gpu_hour
    cost = ""
    if price is not None:
        mixed = mixed_note(job.cluster)
        each = price_text(job.cluster) if sources else f"${price:,.2f}{f' ({mixed})' if mixed else ''}"
        cost = f", {format_dollars(price * hours)} at {each}"
    text = "{0:count} in {1:days}, {2:figure} GPU-hours{cost}, no failures{ends}"
    ends = _spent_range(est.samples)
    return say(text, {}, job.tokens, float(est.days(job.tokens)), hours, cost=cost, ends=ends)


def _spent_range(samples: Samples | None) -> str:
    """Say between which days and dollars training ends, p10 to p90; empty without samples or tokens."""
    text = ""
    for name, unit, before in (("days", "days", "; p10 to p90 "), ("dollars", "$", ", ")):
        if samples is not None and name in samples.figures:
            median = samples.quantile(0.5, name)
            ends = f"{{low:{unit}}} to {{high:{unit}}} (median {{median:{unit}}})"
            text += before + say(ends, samples.interval(figure=name), median=median)
    return text


def _printed_text(est: Estimate) -> str:
    """Say which MFU the recipe's framework prints, where that counts otherwise than we do."""
    prints, value = est.job.recipe.prints, est.mfu_printed
    if prints is None or value is None or prints.mfu not in _COUNTS:
        return ""
    return f"; {est.job.recipe.name} prints {float(value):.1%}, {_COUNTS[prints.mfu]}"


def memory_text(est: Estimate) -> str:
    """Say what the worst stage needs, what a GPU has, and whether that fits."""
    layout = est.job.layout
    over = format_bytes(abs(est.memory_capacity_bytes - float(est.memory_bytes_per_gpu)))
    fits = f"does not fit, {over} too much"
    if est.fits_gpu:
        fits = f"{'tight' if est.is_tight else 'fits'}, {over} left"
    stage = f"stage {est.worst_stage} of {float(layout.pp):.0f}" if layout.pp > 1 else "every rank"
    text = "{memory_bytes_per_gpu:B} of {memory_capacity_bytes:B} a GPU ({stage}): {fits}; {fits_probability:chance} likely"
    return say(f"{text} to fit", est, stage=stage, fits=fits)


def job_text(est: Estimate) -> str:
    """Describe a layout in one line."""
    layout, job = est.job.layout, est.job
    degrees = degrees_text(degrees_of(layout), always=("tp", "cp", "pp", "dp"))
    schedule = schedule_at(layout.schedule).name
    passes = plural(float(est.priced.placed.micro_batches), "micro-batch", several="micro-batches")
    return (
        f"{degrees}, zero {float(layout.zero_stage):.0f}, {schedule if schedule != 'none' else 'no pipeline'}, "
        f"recompute {value_text('recompute', float(layout.recompute))}, {passes} of "
        f"{float(layout.micro_batch):.0f}, {plural(float(job.global_batch), 'sequence')} of "
        f"{plural(float(job.seq_len), 'token')}"
    )


def breakdown_text(est: Estimate) -> str:
    """Say in one line what categories take of the step, largest first."""
    step = float(est.step_time_s)
    shares = {name: float(seconds) / step for name, seconds in est.exposed_by("category").items()}
    largest = sorted(CATEGORIES, key=lambda name: -shares.get(name, 0.0))
    shown = [name for name in largest if shares.get(name, 0.0) >= SMALL_SHARE]
    return ", ".join(f"{CATEGORY_NAMES[name]} {shares[name]:.0%}" for name in shown)


def hidden_text(est: Estimate) -> str:
    """Say which share of the communication runs beside compute, in all and by axis; empty where nothing is sent."""
    shares = {name: float(share) for name, share in est.hidden_by_axis().items()}
    if not shares:
        return ""
    axes = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if name != "all")
    return f"{shares['all']:.0%} overlapped with compute" + (f" ({axes})" if len(shares) > 2 else "")


def time_grid(est: Estimate, *, every_line: bool = False) -> Grid:
    """Return the time bill by axis: what each line costs, and what of it the step waits for."""
    step = float(est.step_time_s)
    least = 0.0 if every_line else SMALL_SHARE * step
    blank = dict.fromkeys(("name", "category", "count", "tier"))

    def total(label: str, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {
            **blank,
            "label": label,
            **{key: sum(line[key] for line in lines) for key in ("seconds", "exposed_seconds")},
        }

    records = [r for r in line_records(est)["time"] if r["seconds"] > 0 or r["exposed_seconds"] != 0]
    records.sort(key=lambda line: (-line["exposed_seconds"], -line["seconds"]))
    rows: list[dict[str, Any]] = []
    strong = []
    for axis in AXES:
        lines = [record for record in records if record["axis"] == axis]
        if not lines:
            continue
        small = [line for line in lines if max(line["exposed_seconds"], line["seconds"]) < least]
        if len(small) == 1:
            small = []
        strong.append(len(rows))
        rows.append(total(axis, lines))
        # A line under its own axis need not repeat it.
        rows += [
            {**line, "label": "  " + line["name"].removeprefix(f"{axis}.")}
            for line in lines
            if line not in small
        ]
        rows += [total(f"  {len(small)} smaller lines", small)] if small else []
    return table_of(
        "time",
        [{**row, "share": row["exposed_seconds"] / step} for row in rows],
        sums=[["step time", "", "", "", format_seconds(step, 4), "100.0%", ""]],
        strong=frozenset(strong),
        keys=[*(row["name"] or "" for row in rows), ""],
    )


def memory_grid(est: Estimate, *, every_line: bool = False) -> Grid:
    """Return the memory bill of the worst stage, against what the accelerator offers."""
    total, have = float(est.memory_bytes_per_gpu), est.memory_capacity_bytes
    stages = float(est.job.layout.pp)
    where = f" of stage {est.worst_stage} (of 0 … {stages - 1:.0f}), the worst" if stages > 1 else ""
    sums = [("memory per GPU", total), (f"{est.job.cluster.accelerator.name} offers", have)]
    records = [record for record in line_records(est)["memory"] if record["bytes"] > 0]
    least = 0.0 if every_line else SMALL_SHARE * total
    return _capacity_grid(f"Memory bill{where}", "Of the GPU >", records, sums, have, least)


def host_grid(est: Estimate) -> Grid:
    """Return what the GPUs of a host keep in its memory, against what it has."""
    sums = [("memory per host", float(est.host_memory_bytes))]
    records = line_records(est)["host"]
    return _capacity_grid(
        "Memory of a host", "Of the host >", records, sums, est.host_memory_capacity_bytes, 0.0
    )


def _capacity_grid(
    title: str,
    share: str,
    records: Sequence[dict[str, Any]],
    sums: list[tuple[str, float]],
    have: float,
    least: float,
) -> Grid:
    """Return lines of memory of at least so many bytes, their sums, and what is left of what there is."""
    records = sorted(records, key=lambda record: -record["bytes"])
    rows = [(record["name"], record["bytes"]) for record in records if record["bytes"] >= least]
    large = len(rows)
    if small := records[large:]:
        rows.append((f"{len(small)} smaller lines", sum(record["bytes"] for record in small)))
    left = have - sums[0][1]
    last = [*sums, ("left" if left >= 0 else "too much", abs(left))]
    return grid_of(
        title,
        [{"name": name, "bytes": size, "share": size / have} for name, size in [*rows, *last]],
        {"Memory": "name", "Size >": "bytes:B", share: "share:.1%"},
        strong=frozenset(range(len(rows), len(rows) + len(last))),
        keys=[*(name for name, _ in rows[:large]), *[""] * (len(rows) - large + len(last))],
    )


def layouts_grid(est: Estimate) -> Grid:
    """Return inputs that differ and the main results of many layouts, a row each."""
    table = wide_columns(est)
    size, names = len(table["layout"]), [column.name for column in WIDE_COLUMNS]
    inputs = names[: names.index("step_time_s")]
    differing = [name for name in inputs if name == "layout" or len(set(table[name])) > 1]
    records = [{name: table[name][row] for name in names} for row in range(min(size, _MANY_LAYOUTS))]
    cells = {f"{name} >": name for name in differing} | {
        "step time >": "step_time_s:s4",
        "MFU >": "mfu:.1%",
        "memory/GPU >": "memory_bytes_per_gpu:B",
        "fits": "fits:yes",
    }
    note = f"the first {_MANY_LAYOUTS} of {size}; to_frame('wide') has all" if size > _MANY_LAYOUTS else ""
    return grid_of(f"{plural(size, 'layout')} of {est.job.model.name}", records, cells, note=note)
