"""An estimate for people: headline, time bill, memory bill of the worst stage, mesh, warnings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from costmodel.base.grid import Grid, columns
from costmodel.base.percentiles import off_middle_text
from costmodel.base.units import (
    format_bytes,
    format_count,
    format_days,
    format_figure,
    format_seconds,
    format_si,
)
from costmodel.base.words import plural
from costmodel.bill.lines import AXES, CATEGORIES
from costmodel.describe.factors import NOMINAL
from costmodel.describe.hardware.changed import changed_text
from costmodel.describe.hardware.prices import price_text
from costmodel.describe.jobs.layout_text import degrees_of, degrees_text, value_text
from costmodel.estimates.estimate import estimate_job
from costmodel.estimates.frame import WIDE_COLUMNS, line_records, wide_columns
from costmodel.estimates.mesh import mesh_of
from costmodel.estimates.samples import Samples
from costmodel.physics.pipeline.schedules import schedule_at
from costmodel.reporting.mesh import mesh_grid

if TYPE_CHECKING:
    from costmodel.estimates.estimate import Estimate

SMALL_SHARE = 0.005
_MANY_LAYOUTS = 20
CATEGORY = {
    "math": "GEMM+attention",
    "hbm": "memory-bound",
    "communication": "exposed communication",
    "bubble": "pipeline bubble",
    "state": "optimizer",
    "activation": "activations",
    "overhead": "overhead",
}
"""What the categories of a bill are called in sentences."""

PLANNED = " (the planner's: none was named)"
"""What stands behind a layout that no job names."""


def estimate_grids(est: Estimate, *, every_line: bool = False) -> list[Grid]:
    """Return the tables of one layout in the order they are read, or the first rows of many.

    Parameters
    ----------
    est : Estimate
        Of one layout or many.
    every_line : bool
        Also show lines of less than half a percent one by one.
    """
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
    """Return the warnings."""
    return [f"Warning: {warning}" for warning in est.warnings]


CAUSES = 3
"""Causes of width that are shown."""


def causes_grid(samples: Samples) -> Grid:
    """Return the factors that widen step time and memory most, each alone from its p10 to its p90."""
    rows = [
        [of, cause.scales, f"{cause.low - 1.0:+.1%} to {cause.high - 1.0:+.1%}", cause.source]
        for of, causes in (("step time", samples.time_causes), ("memory", samples.memory_causes))
        for cause in causes[:CAUSES]
    ]
    return Grid(
        "Main sources of uncertainty",
        columns("Of", "Factor", "From its p10 to its p90 >", "Known from"),
        rows,
    )


def sampled_text(samples: Samples) -> str:
    """Say where a job's step time and memory lie."""
    time_s, held = samples.interval(), samples.interval(figure="memory_bytes_per_gpu")
    middle = format_seconds(samples.quantile(0.5), 3)
    return (
        f"{format_seconds(time_s.low, 3)} to {format_seconds(time_s.high, 3)}, median {middle}: p10 to p90 of "
        f"{samples.count} samples of {len(samples.factors)} uncertain factors{off_middle(samples)}; memory "
        f"{format_bytes(held.low)} to {format_bytes(held.high)}"
    )


def off_middle(samples: Samples) -> str:
    """Say that the headline's step time is far from the median of its samples; empty where it is near."""
    said = off_middle_text(samples.headline_place, format_seconds(samples.quantile(0.5), 3))
    return f" ({said})" if said else ""


def band_text(est: Estimate) -> str:
    """Say how far off the predictions may be, and from what that is known."""
    if est.samples is not None:
        return sampled_text(est.samples)
    band, of_memory = est.error_band, est.memory_error_band
    generation = est.job.cluster.accelerator.generation
    if est.job.belief.names:
        drawn = est.sample()
        within, middle = drawn.interval(), format_seconds(drawn.quantile(0.5), 3)
        return (
            f"{format_seconds(within.low, 3)} to {format_seconds(within.high, 3)}, median {middle}: p10 to p90 with what "
            f"the runs of {est.job.site or 'this site'} say{off_middle(drawn)}{_moved_by_site(est)}"
        )
    if band is None:
        return f"unknown: too few published runs of such models on {generation} GPUs to compare with"
    low, high = (format_seconds(float(est.step_time_s) * share, 3) for share in (band.low, band.high))
    least, most = (
        format_bytes(float(est.memory_bytes_per_gpu) * part) for part in (of_memory.low, of_memory.high)
    )
    whose = "" if band.of.startswith("any") else f"{generation} "
    apart = {
        "unfitted": ", with nothing fitted to this recipe or machine",
        "estimated": ", on machines whose kernels nobody timed, with nothing fitted to them",
    }.get(band.of.rpartition("-")[2], "")
    return (
        f"{low} to {high}: where 80 % of {band.runs} published {whose}runs of {_sources(band.sources)} lie around their "
        f"prediction, with their source left out of what is fitted{apart}; memory {least} to {most} ({of_memory.runs} runs "
        f"of {_sources(of_memory.sources)})"
    )


def _sources(count: int) -> str:
    return "1 source" if count == 1 else f"{count} sources"


def _moved_by_site(est: Estimate) -> str:
    """Say how far a site moves the step time of a job."""
    shipped_s = float(estimate_job(replace(est.job, factors=NOMINAL)).step_time_s)
    moved = float(est.step_time_s) / shipped_s - 1.0
    return (
        f"; they move it by {moved:+.1%} from {format_seconds(shipped_s, 4)}, by as much as they are believed"
    )


def headline_grid(est: Estimate) -> Grid:
    """Return what people ask first; the convention of each utilisation stands beside it."""
    job, layout = est.job, est.job.layout
    peak = format_si(est.peak_flops_per_s, "FLOP/s", 4)
    rows = [
        ("layout", job_text(est)),
        ("step time", format_seconds(float(est.step_time_s), 4)),
        ("error band", band_text(est)),
        (
            "MFU",
            f"{float(est.mfu):.1%} of {peak} dense {job.precision.name}, full attention matrix "
            f"(causal-masked MFU {float(est.mfu_causal):.1%}){_printed_text(est)}",
        ),
        ("HFU", f"{float(est.hfu):.1%}, recomputation counted too"),
        ("tokens/s/GPU", f"{float(est.tokens_per_s_per_gpu):,.1f}"),
        ("model TFLOP/s/GPU", f"{float(est.model_tflops_per_gpu):,.1f}"),
        ("breakdown", breakdown_text(est)),
        ("memory", memory_text(est)),
    ]
    if est.bill.host_lines:
        sent, room = float(est.host_memory_bytes), est.host_memory_capacity_bytes
        word = "fits" if est.fits_host else "does not fit"
        rows.append(("host memory", f"{format_bytes(sent)} of {format_bytes(room)} a host: {word}"))
    if job.tokens is not None:
        days, hours = float(est.days(job.tokens)), float(est.gpu_hours(job.tokens))
        price = job.cluster.price_usd_per_gpu_hour
        rent = "" if price is None else f"${price * hours:,.0f} at {price_text(job.cluster)}, "
        spent = f"{format_days(days)}, {format_figure(hours)} GPU-hours, {rent}without failures{spent_text(est.samples)}"
        rows.append((f"{format_count(job.tokens)} tokens", spent))
    title = (
        f"{job.model.name} on {plural(float(layout.gpus), 'GPU')} of {changed_text(job.cluster)} "
        f"({job.cluster.accelerator.name}), recipe {job.recipe.name}"
    )
    return Grid(title, columns("", ""), rows)


def spent_text(samples: Samples | None) -> str:
    """Say between which days and dollars training ends, p10 to p90; empty without samples or tokens.

    >>> spent_text(None)
    ''
    """
    if samples is None or "days" not in samples.figures:
        return ""
    low, high = samples.interval(figure="days")
    said = f"; p10 to p90 {format_days(low)} to {format_days(high)} (median {format_days(samples.quantile(0.5, 'days'))})"
    if "dollars" not in samples.figures:
        return said
    low, high = samples.interval(figure="dollars")
    return f"{said}, ${low:,.0f} to ${high:,.0f} (median ${samples.quantile(0.5, 'dollars'):,.0f})"


_COUNTS = {"causal": "half the matrix", "hardware": "recomputation counted"}


def _printed_text(est: Estimate) -> str:
    """Say which MFU the recipe's framework prints, where that counts otherwise than we do."""
    told, value = est.job.recipe.prints, est.mfu_printed
    if told is None or value is None or told.mfu not in _COUNTS:
        return ""
    return f"; {est.job.recipe.name} prints {float(value):.1%}, {_COUNTS[told.mfu]}"


def memory_text(est: Estimate) -> str:
    """Say what the worst stage needs, what a GPU has, and whether that fits."""
    layout = est.job.layout
    need, have = float(est.memory_bytes_per_gpu), est.memory_capacity_bytes
    over = format_bytes(abs(have - need))
    word = "tight" if est.is_tight else "fits"
    fits = f"{word}, {over} left" if est.fits_gpu else f"does not fit, {over} too much"
    stage = f"stage {est.worst_stage} of {float(layout.pp):.0f}" if layout.pp > 1 else "every rank"
    chance = float(est.fits_probability)
    return f"{format_bytes(need)} of {format_bytes(have)} a GPU ({stage}): {fits}; {chance:.0%} likely to fit"


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
    return ", ".join(
        f"{CATEGORY[name]} {shares[name]:.0%}" for name in largest if shares.get(name, 0.0) >= 0.005
    )


def hidden_text(est: Estimate) -> str:
    """Say which share of the communication runs beside compute, in all and by axis; empty where nothing is sent."""
    shares = {name: float(share) for name, share in est.hidden_by_axis().items()}
    if not shares:
        return ""
    axes = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if name != "all")
    return f"{shares['all']:.0%} hidden beside compute" + (f" ({axes})" if len(shares) > 2 else "")


def time_grid(est: Estimate, *, every_line: bool = False) -> Grid:
    """Return the time bill by axis: what each line costs, and what of it the step waits for."""
    step = float(est.step_time_s)
    records = [r for r in line_records(est, "time") if r["seconds"] > 0 or r["exposed_seconds"] != 0]
    rows: list[list[str]] = []
    keys: list[str] = []
    strong = []
    for axis in AXES:
        lines = [record for record in records if record["axis"] == axis]
        if not lines:
            continue
        lines.sort(key=lambda line: (-line["exposed_seconds"], -line["seconds"]))
        large = [line for line in lines if every_line or _is_large(line, step)]
        small = [line for line in lines if line not in large]
        if len(small) == 1:
            large, small = lines, []
        strong.append(len(rows))
        rows.append(_time_row(axis, lines, step))
        # A line under its own axis need not repeat it.
        rows += [_time_row("  " + line["name"].removeprefix(f"{axis}."), [line], step) for line in large]
        keys += ["", *(line["name"] for line in large)]
        if small:
            rows.append(_time_row(f"  {len(small)} smaller lines", small, step))
            keys.append("")
    strong.append(len(rows))
    keys.append("")
    rows.append(["step time", "", "", "", format_seconds(step, 4), "100.0%", ""])
    note = "Busy: on the critical rank. Exposed: what the step waits for; only this adds up to the step time."
    titles = columns("Time", "Category", "Count >", "Busy >", "Exposed >", "Share >", "Tier")
    return Grid("Time bill", titles, rows, frozenset(strong), note, keys)


def _is_large(line: dict[str, Any], step_time_s: float) -> bool:
    """Say whether a line is worth a row of its own."""
    return bool(max(line["exposed_seconds"], line["seconds"]) >= SMALL_SHARE * step_time_s)


def _time_row(label: str, lines: list[dict[str, Any]], step_time_s: float) -> list[str]:
    """Return the row of one line, or of the sum of several."""
    busy, exposed = (sum(line[key] for line in lines) for key in ("seconds", "exposed_seconds"))
    costs = [format_seconds(busy), format_seconds(exposed), f"{exposed / step_time_s:.1%}"]
    if len(lines) > 1 or not label.startswith(" "):
        return [label, "", "", *costs, ""]
    return [label, lines[0]["category"], f"{lines[0]['count']:,.0f}", *costs, lines[0]["tier"] or ""]


def memory_grid(est: Estimate, *, every_line: bool = False) -> Grid:
    """Return the memory bill of the worst stage, against what the accelerator offers."""
    total, have = float(est.memory_bytes_per_gpu), est.memory_capacity_bytes
    records = sorted(
        (r for r in line_records(est, "memory") if r["bytes"] > 0), key=lambda record: -record["bytes"]
    )
    large = [record for record in records if every_line or record["bytes"] >= SMALL_SHARE * total]
    rows = [[r["name"], r["category"], format_bytes(r["bytes"]), f"{r['bytes'] / have:.1%}"] for r in large]
    keys = [*(record["name"] for record in large)]
    if len(large) < len(records):
        rest = sum(record["bytes"] for record in records) - sum(record["bytes"] for record in large)
        rows.append(
            [f"{len(records) - len(large)} smaller lines", "", format_bytes(rest), f"{rest / have:.1%}"]
        )
    first_sum = len(rows)
    rows.append(["memory per GPU", "", format_bytes(total), f"{total / have:.1%}"])
    rows.append([f"{est.job.cluster.accelerator.name} offers", "", format_bytes(have), "100.0%"])
    word = "left" if est.fits_gpu else "too much"
    rows.append([word, "", format_bytes(abs(have - total)), f"{abs(have - total) / have:.1%}"])
    stages = float(est.job.layout.pp)
    where = f" of stage {est.worst_stage} (of 0 … {stages - 1:.0f}), the worst" if stages > 1 else ""
    strong = frozenset(range(first_sum, len(rows)))
    titles = columns("Memory", "Category", "Size >", "Of the GPU >")
    keys += [""] * (len(rows) - len(keys))
    return Grid(f"Memory bill{where}", titles, rows, strong, keys=keys)


def host_grid(est: Estimate) -> Grid:
    """Return what the GPUs of a host keep in its memory, against what it has."""
    total, have = float(est.host_memory_bytes), est.host_memory_capacity_bytes
    records = sorted(line_records(est, "host"), key=lambda record: -record["bytes"])
    rows = [[r["name"], r["category"], format_bytes(r["bytes"]), f"{r['bytes'] / have:.1%}"] for r in records]
    word = "left" if est.fits_host else "too much"
    rows.append(["memory per host", "", format_bytes(total), f"{total / have:.1%}"])
    rows.append([word, "", format_bytes(abs(have - total)), f"{abs(have - total) / have:.1%}"])
    strong = frozenset(range(len(records), len(rows)))
    return Grid("Memory of a host", columns("Memory", "Category", "Size >", "Of the host >"), rows, strong)


def layouts_grid(est: Estimate) -> Grid:
    """Return inputs that differ and the main results of many layouts, a row each."""
    table = wide_columns(est)
    size = len(table["layout"])
    inputs = [column.name for column in WIDE_COLUMNS[: WIDE_COLUMNS.index(_first_result())]]
    differing = [name for name in inputs if name == "layout" or len(set(table[name])) > 1]
    rows = [
        [
            *(str(table[name][i]) for name in differing),
            format_seconds(table["step_time_s"][i], 4),
            f"{table['mfu'][i]:.1%}",
            format_bytes(table["memory_bytes_per_gpu"][i]),
            "yes" if table["fits"][i] else "no",
        ]
        for i in range(min(size, _MANY_LAYOUTS))
    ]
    titles = [*(f"{name} >" for name in differing), "step time >", "MFU >", "memory/GPU >", "fits"]
    note = f"the first {_MANY_LAYOUTS} of {size}; to_frame('wide') has all" if size > _MANY_LAYOUTS else ""
    return Grid(f"{plural(size, 'layout')} of {est.job.model.name}", columns(*titles), rows, note=note)


def _first_result() -> object:
    """Return the first column of the wide form that is not an input."""
    return next(column for column in WIDE_COLUMNS if column.name == "step_time_s")
