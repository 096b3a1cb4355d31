"""`costmodel.report`: headline, sliders, figures, tables and sources of a job in one HTML file that needs no network."""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.base.errors import CostModelError
from costmodel.base.grid import Grid, html_table
from costmodel.base.units import format_seconds
from costmodel.base.version import __version__
from costmodel.base.words import with_device_name
from costmodel.describe.jobs.short_form import ASSUMED, command_text, flags_of, short_form
from costmodel.estimates.estimate import Estimate
from costmodel.estimates.frame import line_records
from costmodel.estimates.mesh import mesh_of
from costmodel.estimates.record import MFU_CONVENTION, input_record, source_record
from costmodel.estimates.samples import DEFAULT_SAMPLES
from costmodel.planning.plan import Plan
from costmodel.planning.plan import plan as plan_of
from costmodel.reporting import pictures, tables
from costmodel.reporting.cells import facts_of, table_of
from costmodel.reporting.charts import FILLS, Chart, page_record
from costmodel.reporting.lists import pairs
from costmodel.reporting.network import mesh_grid
from costmodel.reporting.other_pictures import pareto_chart
from costmodel.reporting.plans import front_grid, narrow, rejected_grid, top_grid, try_grid
from costmodel.reporting.renderers import FIGURES
from costmodel.reporting.sensitivity import sensitivity_grids, sensitivity_remarks
from costmodel.reporting.series import has_figure, job_title
from costmodel.reporting.summaries import answer_text
from costmodel.reporting.training_runs import percentiles_text, run_grids
from costmodel.what_if.sensitivity import sensitivity
from costmodel.what_if.slider_grid import PARTS, SLIDERS, SliderGrid, slider_grid
from costmodel.whole_run.run import TrainingRun, run_of

_PACKAGE = "costmodel.reporting.html"
_TICKS = 6
"""Parts that progress is reported in."""
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


def report(
    est: Estimate,
    *,
    plan: bool = True,
    sensitivities: bool = True,
    samples: int = DEFAULT_SAMPLES,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> str:
    """Return a page with the bill, figures, other layouts, sources, and sliders that are already priced.

    Parameters
    ----------
    est : Estimate
        Of one layout.
    plan : bool
        Search for other layouts of the job.
    sensitivities : bool
        Vary each number and each switch.
    samples, seed : int
        Of the uncertain factors, for p10 to p90, and what they follow from.
    progress : callable, optional
        Called with parts done and parts in all.

    Returns
    -------
    page : str
        HTML that needs no network.

    Raises
    ------
    CostModelError
        If the estimate holds many layouts.
    """
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, _TICKS)

    est.require_single("report")
    alone = est
    est = est if est.samples is not None else est.with_samples(samples, seed)
    other = other_layouts(est) if plan else None
    tick()
    moved = sensitivity(est) if sensitivities else None
    tick()
    drawn = _charts(est)
    if other is not None:
        drawn["pareto"] = ("Step time against memory of other layouts", pareto_chart(other, est))
    if moved is not None:
        drawn["tornado"] = ("Change of step time by each number", pictures.tornado_chart(moved))
    tick()
    run = _whole_run(est)
    tick()
    figures = {name: page_record(chart) for name, (_, chart) in drawn.items()}
    data = {"figures": figures, "grid": grid_record(slider_grid(est)), "job": job_record(est)}
    tick()
    page = template("page.html").render(
        title=f"{job_title(est)}: {format_seconds(float(est.step_time_s), 4)} a step",
        heading=job_title(est),
        answer=answer_text(est),
        fits=est.fits,
        job=f"{tables.job_text(est)}{f'; set {est.chosen}' if est.chosen else ''}"
        f"{tables.PLANNED if est.is_planned else ''}; recipe {est.job.recipe.name}",
        cards=_cards(est, alone, run),
        warnings=warned(est),
        labels={name: label for name, (label, _) in drawn.items()},
        notes={name: chart.note for name, (_, chart) in drawn.items()},
        causes=None if est.samples is None else tables.causes_grid(est.samples),
        bill={
            "time": tables.time_grid(est, every_line=True),
            "memory": tables.memory_grid(est, every_line=True),
            "host": tables.host_grid(est) if est.bill.host_lines else None,
        },
        run=_run_record(run),
        mesh=mesh_grid(mesh_of(est), est),
        plan=other
        and {
            "advice": other.advice(),
            "try": try_grid(other),
            "top": narrow(top_grid(other, 10)),
            "front": narrow(front_grid(other)),
            "rejected": rejected_grid(other),
        },
        moved=moved and {"remarks": sensitivity_remarks(moved), "grids": sensitivity_grids(moved)},
        batch=f"{float(est.job.global_batch):,.0f}",
        band=tables.range_text(alone, sources=True),
        mfu=MFU_CONVENTION,
        sources=_assumptions(est),
        command=command_text(est.job),
        version=__version__,
        date=f"{date.today():%Y-%m-%d}",
        style=asset("draw.css") + asset("page.css"),
        script=asset("draw.js") + asset("page.js"),
        data=_script_json(data),
    )
    tick()
    return str(with_device_name(page, est.device_word))


def other_layouts(est: Estimate) -> Plan | None:
    """Search the layouts of a job as `costmodel plan` does; none if none fits."""
    job = {**short_form(est.job), "model": est.job.model, "cluster": est.job.cluster}
    # With the memory to spare that `plan` leaves; to the brim only where nothing else fits.
    for headroom in (None, 0.0):
        with suppress(CostModelError):
            return plan_of(job=job, headroom=headroom)
    return None


@cache
def template(name: str, package: str = _PACKAGE) -> Any:
    """Return a template of a package, compiled once."""
    from jinja2 import Environment, PackageLoader

    found = Environment(loader=PackageLoader(package, "."), autoescape=True)
    found.globals["html_table"] = html_table
    return found.get_template(name)


def asset(name: str, package: str = _PACKAGE) -> str:
    """Return a file of a package."""
    return (files(package) / name).read_text(encoding="utf-8")


def _charts(est: Estimate) -> dict[str, tuple[str, Chart]]:
    """Return the figures that a job has by name, each with what it shows."""
    found = {}
    for row in FIGURES:
        name = row["figure"]
        if row["answer"] == "Estimate" and name != "tornado" and has_figure(est, name):
            chart = (
                pictures.pipeline_chart(est, pictures.MOST_TASKS)
                if name == "pipeline"
                else est.plot.chart(name)
            )
            found[name] = (row["title"], chart)
    return found


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
            {"label": label, "colour": FILLS[fill][0], "hatch": FILLS[fill][1][:1]}
            for label, fill in (_PART_LABELS[part] for part in PARTS)
        ],
        "reasons": list(grid.reasons),
        "step_time_s": _packed(grid.step_time_s, "<f4"),
        "memory_bytes": _packed(grid.memory_bytes, "<f4"),
        "shares": _packed(np.round(np.nan_to_num(grid.shares) * 65535.0), "<u2"),
        "reason": _packed(grid.reason, "<u1"),
        "plain": _packed(grid.plain, "<u1"),
    }


def _packed(values: NDArray[Any], dtype: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values).astype(dtype).tobytes()).decode("ascii")


_MOVED = ("gpus", "layout", "pp", "vp", "etp", "micro_batch", "schedule", "pipeline_layout")
"""What the script writes into the command of a position; the rest of it stays as the job has it."""


def job_record(est: Estimate) -> dict[str, Any]:
    """Return what the sliders need to know of the job."""
    flops, inputs = est.model_flops() / est.peak_flops_per_s, input_record(est.job)
    stays = short_form(est.job, stated=ASSUMED | {"precision", "zero_stage", "shard_group", "recompute"})
    words = [word for name in stays if name not in _MOVED for word in flags_of(name, stays[name])]
    return {
        "inputs": {key: value for key, value in inputs.items() if key in _MOVED},
        "command": shlex.join(["costmodel", "estimate", *words]),
        "capacity_bytes": float(est.memory_capacity_bytes),
        "step_time_s": float(est.step_time_s),
        "peak_seconds_of_one_gpu": float(flops),
        "tokens_per_step": float(est.tokens_per_step),
    }


def _script_json(data: Mapping[str, Any]) -> str:
    """Return JSON that may stand inside a script element."""
    # Neither the end of the element nor the beginning of a comment, which would hide its end.
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _cards(
    est: Estimate, alone: Estimate, run: TrainingRun | CostModelError | None
) -> list[tuple[str, str, str]]:
    """Return the figures that people ask for first, each with what it means: of a whole run days, dollars and risk."""
    cards = facts_of("cards", est, range=alone.range_s)
    if isinstance(run, TrainingRun):
        ends = {f"{name}_ends": percentiles_text(run, name) for name in ("days", "dollars")}
        cards += facts_of("cards of a run", run, lost=1.0 - run.effective_training_time_ratio, **ends)
    found = [(name, *text.split(" | ")) for name, text in cards]
    return [(name, value, note) for name, value, note in found if value]


def warned(est: Estimate) -> str:
    """Return the warnings as HTML, empty where there are none; to price what each would gain takes its time."""
    warnings = "".join(f"<li>{escape(text)}</li>" for text in est.warnings)
    return f'<ul class="warnings">{warnings}</ul>' if warnings else ""


def _whole_run(est: Estimate) -> TrainingRun | CostModelError | None:
    """Return the run of a job that says how far it trains, or why it has none."""
    if est.job.tokens is None:
        return None
    try:
        return run_of(est, est.job.tokens)
    except CostModelError as error:
        return error


def _run_record(run: TrainingRun | CostModelError | None) -> dict[str, Any] | None:
    """Return days, dollars, energy and what failures take."""
    if not isinstance(run, TrainingRun):
        return None if run is None else {"problem": str(run)}
    whole, hours, spread, *causes = run_grids(run)
    return {"whole": whole, "spread": spread, "folded": [hours, *causes]}


def _assumptions(est: Estimate) -> list[Grid]:
    """Return everything that went in: inputs, switches, formulas, and where each number is from."""
    inputs = {name: str(value) for name, value in input_record(est.job).items()}
    switches = {name: str(value) for name, value in input_record(est.job)["switches"].items()}
    inputs.pop("switches")
    tier = {"Tier": lambda line: line["tier"] or "–"}
    lines = [line for line in line_records(est)["time"] if line["seconds"] > 0]
    grids = [
        pairs("Inputs, after defaults", ("Input", "Value"), inputs),
        pairs(f"Switches of recipe {est.job.recipe.name}", ("Switch", "Value"), switches),
        table_of("formulas", lines, tier),
    ]
    sources = source_record(est.job).items()
    return [
        *grids,
        *(pairs(f"Sources: {profile}", ("Number", "Source"), message) for profile, message in sources),
    ]
