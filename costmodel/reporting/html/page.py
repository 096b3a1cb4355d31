"""The page: headline, sliders, figures, tables and sources in one HTML file that opens without a network."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from costmodel.base.errors import CostModelError
from costmodel.base.grid import Grid, columns, html_table
from costmodel.base.units import format_bytes, format_seconds, format_si
from costmodel.base.version import __version__, install_command
from costmodel.base.words import called
from costmodel.describe.hardware.prices import price_text
from costmodel.describe.jobs.short_form import command_text
from costmodel.describe.jobs.switches import Settings
from costmodel.describe.recipe import load_recipe, resolved_for
from costmodel.estimates.frame import line_records
from costmodel.estimates.record import MFU_CONVENTION, input_record, source_record
from costmodel.reporting import tables
from costmodel.reporting.html import charts
from costmodel.reporting.plans import front_grid, rejected_grid, top_grid
from costmodel.reporting.sensitivity import sensitivity_grids, sensitivity_remarks
from costmodel.reporting.series import job_title
from costmodel.reporting.training_runs import run_grids
from costmodel.what_if.slider_grid import PARTS, SLIDERS, SliderGrid, slider_grid
from costmodel.whole_run.run import run_of

if TYPE_CHECKING:
    from costmodel.estimates.estimate import Estimate
    from costmodel.planning.plan import Plan
    from costmodel.what_if.sensitivity import Sensitivity

_KNOB_LABELS = {
    "gpus": "GPUs",
    "tp": "tensor parallel (tp)",
    "pp": "pipeline stages (pp)",
    "cp": "context parallel (cp)",
    "ep": "expert parallel (ep)",
    "micro_batch": "micro-batch [sequences]",
}
_PART_LABELS = {
    "compute": ("compute", "math"),
    "tp": ("tensor parallel", "tp"),
    "cp": ("context parallel", "cp"),
    "ep": ("expert parallel", "ep"),
    "pp": ("pipeline messages", "pp"),
    "bubble": ("bubble", "bubble"),
    "dp": ("data parallel, optimizer, other", "dp"),
}


def report_page(
    est: Estimate,
    *,
    plan: Plan | None = None,
    found: Sensitivity | None = None,
    start: str = "",
    is_planned: bool = False,
    tick: Callable[[], None] = lambda: None,
) -> str:
    """Return the whole page about one job as HTML.

    Parameters
    ----------
    est : Estimate
        Of one layout.
    plan : Plan, optional
        Layouts to set beside it.
    found : Sensitivity, optional
        What each number and switch is worth.
    start : str
        Day on which the run starts, such as ``2026-12-01``, to say when it is done.
    is_planned : bool
        Whether the layout is the planner's, because none was named.
    tick : callable
        Called after each part.

    Raises
    ------
    CostModelError
        If plotly is not installed, or the estimate holds several layouts.
    """
    est.require_single("report")
    library = plotly_library()
    figures: dict[str, charts.Figure] = {}
    made = (
        f"{escape(__version__)} on {date.today():%Y-%m-%d}; the same on the command line: "
        f"<code>{escape(command_text(est.job))}</code>"
    )
    sections = [headline(est, tables.PLANNED if is_planned else ""), warned(est), _whole_run(est, start)]
    # What a printed summary says of itself stands on its page; on the screen it is the footer's.
    sections += [f'<p class="printed">costmodel {made}</p>', _uncertain(est), _sliders(est)]
    for make in (_bills, _pipeline, _rooflines, _mesh):
        sections.append(make(est, figures))
        tick()
    if plan is not None:
        sections.append(_plans(plan, est, figures))
    if found is not None:
        sections.append(_sensitivity(found, figures))
    sections.append(_assumptions(est))
    data = {"figures": figures, "grid": grid_record(slider_grid(est)), "job": job_record(est)}
    tick()
    names = {
        "title": escape(f"{job_title(est)}: {format_seconds(float(est.step_time_s), 4)} a step"),
        "style": _asset("page.css"),
        "body": "\n".join(sections),
        "library": library,
        "data": _script_json(data),
        "script": _asset("page.js"),
        "version": escape(__version__),
        "made": made,
    }
    for name in ("title", "body", "data", "script"):
        names[name] = called(names[name], est.device_word)
    page = _asset("page.html")
    for name in ("title", "version", "made", "style", "body", "script", "data", "library"):
        page = page.replace(f"<!--{name}-->", names[name], 1)
    return page


def plotly_library() -> str:
    """Return plotly.js as the page's script unpacks it: gzip in base64.

    Raises
    ------
    CostModelError
        If plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise CostModelError(f"a report needs plotly: {install_command('report')}") from None
    return base64.b64encode(gzip.compress(str(get_plotlyjs()).encode(), mtime=0)).decode("ascii")


def grid_record(grid: SliderGrid) -> dict[str, Any]:
    """Return a slider grid as JSON: little-endian arrays in base64, the last knob fastest."""
    return {
        "knobs": [
            {
                "name": knob,
                "label": _KNOB_LABELS[knob],
                "values": list(grid.values[knob]),
                "start": grid.start[knob],
            }
            for knob in SLIDERS
        ],
        "parts": [
            {"name": part, "label": _PART_LABELS[part][0], "marker": charts.marker(_PART_LABELS[part][1])}
            for part in PARTS
        ],
        "reasons": list(grid.reasons),
        "step_time_s": _packed(grid.step_time_s, "<f4"),
        "memory_bytes": _packed(grid.memory_bytes, "<f4"),
        "shares": _packed(np.round(np.nan_to_num(grid.shares) * 65535.0), "<u2"),
        "reason": _packed(grid.reason, "<u1"),
        "plain": _packed(grid.plain, "<u1"),
    }


def _packed(values: NDArray[Any], dtype: str) -> str:
    """Return an array as base64 of its bytes."""
    return base64.b64encode(np.ascontiguousarray(values).astype(dtype).tobytes()).decode("ascii")


def job_record(est: Estimate) -> dict[str, Any]:
    """Return what the sliders need to know of the job."""
    flops = est.model_flops() / est.peak_flops_per_s
    return {
        "inputs": {key: value for key, value in input_record(est.job).items() if key != "switches"},
        "switches": changed_switches(est),
        "capacity_bytes": float(est.memory_capacity_bytes),
        "step_time_s": float(est.step_time_s),
        "peak_seconds_of_one_gpu": float(flops),
        "tokens_per_step": float(est.tokens_per_step),
    }


def changed_switches(est: Estimate) -> list[str]:
    """Return the switches that differ from the recipe's preset, as ``--set`` takes them."""
    job = est.job
    try:
        preset = Settings(resolved_for(load_recipe(job.recipe.name), job.cluster.accelerator))
    except CostModelError:
        return []
    theirs, ours = preset.plain(), Settings(job.recipe, job.policy, job.health).plain()
    changed = {key: value for key, value in ours.items() if theirs.get(key) != value}
    return [
        f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in changed.items()
    ]


def _script_json(data: Mapping[str, Any]) -> str:
    """Return JSON that may stand inside a script element."""
    # Neither the end of the element nor the beginning of a comment, which would hide its end.
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _asset(name: str) -> str:
    """Return a file that lies beside this module."""
    return (files("costmodel.reporting.html") / name).read_text(encoding="utf-8")


def _chart(name: str, figure: charts.Figure, label: str, figures: dict[str, charts.Figure]) -> str:
    """Keep a figure and return the place where it is drawn."""
    figures[name] = figure
    return f'<div class="chart" id="chart-{name}" role="img" aria-label="{escape(label)}"></div>'


def _section(name: str, title: str, *parts: str) -> str:
    """Return a section with a heading."""
    return f'<section id="{name}"><h2>{escape(title)}</h2>{"".join(parts)}</section>'


def _table(grid: Grid) -> str:
    """Return a table that scrolls on its own where the page is narrow."""
    return f'<div class="wide" tabindex="0">{html_table(grid)}</div>'


def _folded(title: str, *parts: str) -> str:
    """Return parts that open on demand."""
    return f"<details><summary>{escape(title)}</summary>{''.join(parts)}</details>"


def _fits_text(est: Estimate) -> str:
    """Say whether a job fits, and if not, where."""
    if est.fits:
        return "fits"
    return "does not fit" if est.fits_host else "does not fit the host's memory"


def _uncertain(est: Estimate) -> str:
    """Return what makes the width of the headline, where the job was sampled."""
    if est.samples is None:
        return ""
    return _section("uncertain", "How sure", _table(tables.causes_grid(est.samples)))


def headline(est: Estimate, whose: str = "") -> str:
    """Return the figures that people ask for first, as HTML; `whose` the layout is stands behind it."""
    need, have = float(est.memory_bytes_per_gpu), est.memory_capacity_bytes
    cards = [
        ("step time", format_seconds(float(est.step_time_s), 4), tables.band_text(est)),
        ("MFU", f"{float(est.mfu):.1%}", f"causal half: {float(est.mfu_causal):.1%}"),
        (
            "memory of a GPU",
            format_bytes(need),
            f"of {format_bytes(have)}: {_fits_text(est)}, {float(est.fits_probability):.0%} likely to fit",
        ),
        ("tokens/s/GPU", f"{float(est.tokens_per_s_per_gpu):,.0f}", tables.tolls_text(est)),
    ]
    if est.job.tokens is not None:
        tokens = f"for {format_si(est.job.tokens, '')} tokens, no failures{tables.spent_text(est.samples)}"
        cards.append(("days", f"{float(est.days(est.job.tokens)):,.1f}", tokens))
        usd = est.job.cluster.price_usd_per_gpu_hour
        if usd is not None:
            rent = f"${usd * float(est.gpu_hours(est.job.tokens)):,.0f}"
            cards.append(("dollars", rent, f"no failures, at {price_text(est.job.cluster)}"))
    made = "".join(
        f'<div class="card"><h3>{escape(name)}</h3><p class="big">{escape(value)}</p><p>{escape(note)}</p></div>'
        for name, value, note in cards
    )
    head = (
        f"<header><h1>{escape(job_title(est))}</h1><p>{escape(tables.job_text(est))}{whose}; recipe "
        f'{escape(est.job.recipe.name)}</p></header><div class="cards" id="headline">{made}</div>'
    )
    return called(head, est.device_word)


def warned(est: Estimate) -> str:
    """Return the warnings as HTML, empty where there are none; to price what each would gain takes its time."""
    warnings = "".join(f"<li>{escape(text)}</li>" for text in est.warnings)
    return f'<ul class="warnings">{warnings}</ul>' if warnings else ""


def _whole_run(est: Estimate, start: str = "") -> str:
    """Return days, dates, dollars, energy and what failures take, where the job says how far it trains."""
    if est.job.tokens is None:
        return ""
    try:
        run = run_of(est, est.job.tokens)
    except CostModelError as error:
        return _section("run", "The whole run", f"<p>{escape(str(error))}</p>")
    first, hours, spread = run_grids(run)
    days = run.finishing_dates(start) if start else {}
    dated = ", ".join(f"{percent} {day}" for percent, day in days.items())
    return _section(
        "run",
        "The whole run",
        f"<p>Started on {escape(start)}, done by {escape(dated)}.</p>" if start else "",
        _table(first),
        _table(spread),
        _folded("Where the GPU-hours go", _table(hours)),
    )


def _sliders(est: Estimate) -> str:
    """Return the place of the sliders; the script fills it from the priced grid."""
    note = (
        "Every position was priced by costmodel when this page was made; nothing is computed here. "
        f"Global batch ({float(est.job.global_batch):,.0f} sequences) and everything else stay as in the job."
    )
    return _section(
        "sliders",
        "What if",
        f"<p>{escape(note)}</p>",
        '<div class="panel"><div id="knobs"></div><div id="answer" aria-live="polite">'
        '<p class="big"><output id="slider-step"></output></p><p><output id="slider-compare"></output></p>'
        '<p class="big"><output id="slider-memory"></output></p><p><output id="slider-fit"></output></p>'
        '<div class="chart" id="chart-slider" role="img" aria-label="Parts of the step at this position"></div>'
        '<ul id="slider-parts"></ul>'
        '<p><code id="slider-command"></code></p><button type="button" id="slider-reset">Back to the job</button>'
        "</div></div>",
    )


def _bills(est: Estimate, figures: dict[str, charts.Figure]) -> str:
    """Return both bills: figures and tables."""
    step = format_seconds(float(est.step_time_s), 4)
    return _section(
        "bills",
        "The bill",
        _chart("time", charts.time_chart(est), f"Waterfall of the step of {step}", figures),
        _folded("Time, line by line", _table(tables.time_grid(est, every_line=True))),
        _chart("memory", charts.memory_chart(est), "Memory of a GPU by pipeline stage", figures),
        _folded("Memory, line by line", _table(tables.memory_grid(est, every_line=True))),
        _folded("Memory of a host", _table(tables.host_grid(est))) if est.bill.host_lines else "",
    )


def _pipeline(est: Estimate, figures: dict[str, charts.Figure]) -> str:
    """Return the schedule, where there is a pipeline."""
    if float(est.job.layout.pp) == 1:
        return ""
    figure, note = charts.pipeline_chart(est)
    made = _chart("pipeline", figure, "Every task of every pipeline rank over time", figures)
    return _section("pipeline", "The pipeline", f"<p>{escape(note)}</p>", made)


def _rooflines(est: Estimate, figures: dict[str, charts.Figure]) -> str:
    """Return both rooflines."""
    parts = [
        "<p>Operators under the roofs of one GPU.</p>",
        _chart("compute", charts.compute_chart(est), "Operators on the roofline", figures),
    ]
    if float(est.job.layout.gpus) > 1:
        parts += [
            "<p>Axes under the links of the fabric: the share of the peak that a link allows, were all of an "
            "axis' communication hidden.</p>",
            _chart(
                "communication",
                charts.communication_chart(est),
                "Axes on the communication roofline",
                figures,
            ),
        ]
    return _section("rooflines", "Rooflines", *parts)


def _mesh(est: Estimate, figures: dict[str, charts.Figure]) -> str:
    """Return the mesh: table and map."""
    from costmodel.estimates.mesh import mesh_of
    from costmodel.reporting.mesh import mesh_grid

    parts = [_table(mesh_grid(mesh_of(est), est))]
    made = charts.mesh_chart(est)
    if made is not None:
        figure, note = made
        parts += [
            f"<p>{escape(note)}</p>",
            _chart("mesh", figure, "Groups of each axis on the first GPUs", figures),
        ]
    return _section("mesh", "The mesh", *parts)


def _plans(plan: Plan, est: Estimate, figures: dict[str, charts.Figure]) -> str:
    """Return the best layouts of the same job."""
    note = (
        "A search over the degrees of all axes, micro-batches up to 8, recomputation and ZeRO stages, with the job's "
        "schedule, 1F1B and interleaving; everything else as in the job. costmodel plan searches further."
    )
    return _section(
        "plans",
        "Other layouts",
        f"<p>{escape(note)}</p>",
        "".join(f"<p>{escape(sentence)}</p>" for sentence in plan.advice()),
        _chart(
            "pareto", charts.pareto_chart(plan, est), "Step time against memory of other layouts", figures
        ),
        _table(top_grid(plan, 10)),
        _folded("The front of step time against memory", _table(front_grid(plan))),
        _folded("Why the others are out", _table(rejected_grid(plan))),
    )


def _sensitivity(found: Sensitivity, figures: dict[str, charts.Figure]) -> str:
    """Return what each number and each switch is worth."""
    grids: Sequence[Grid] = sensitivity_grids(found)
    return _section(
        "sensitivity",
        "What each number is worth",
        "".join(f"<p>{escape(sentence)}</p>" for sentence in sensitivity_remarks(found)),
        _chart("tornado", charts.tornado_chart(found), "Change of step time by each number", figures),
        *(_folded(grid.title, _table(grid)) for grid in grids),
    )


def _assumptions(est: Estimate) -> str:
    """Return everything that went in: inputs, switches, formulas, and where each number is from."""
    record = input_record(est.job)
    inputs = [[key, str(value)] for key, value in record.items() if key != "switches"]
    switches = [[key, str(value)] for key, value in record["switches"].items()]
    formulas = [
        [
            line["name"],
            line["formula"],
            format_seconds(line["exposed_seconds"]),
            line["tier"] or "–",
            line["source"],
        ]
        for line in line_records(est, "time")
        if line["seconds"] > 0
    ]
    grids = [
        Grid("Inputs, after defaults", columns("Input", "Value"), inputs),
        Grid(f"Switches of recipe {est.job.recipe.name}", columns("Switch", "Value"), switches),
        Grid(
            "Formulas", columns("Line", "Formula of one execution", "Exposed >", "Tier", "Source"), formulas
        ),
    ]
    for profile, numbers in source_record(est.job).items():
        rows = [[key, source] for key, source in numbers.items()]
        grids.append(Grid(f"Sources: {profile}", columns("Number", "Source"), rows))
    band = f"<p>Error band: {escape(tables.band_text(est))}.</p><p>MFU: {escape(MFU_CONVENTION)}.</p>"
    return _section(
        "assumptions", "Assumptions and sources", band, *(_folded(grid.title, _table(grid)) for grid in grids)
    )
