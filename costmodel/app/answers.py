"""What each view of the page shows, as plain data: texts, HTML of the pieces in ``pieces.html``, and figures as dicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

import costmodel as cm
from costmodel.app.state import FIGURES, State, query_of
from costmodel.app.texts import (
    MODEL_FILE,
    Texts,
    command,
    job_keywords,
    plan_keywords,
    read_upload,
    run_keywords,
    texts_of,
)
from costmodel.base.csv_text import to_csv
from costmodel.base.errors import one_line
from costmodel.base.grid import Grid, columns, html_table
from costmodel.base.units import format_bytes, format_figure, format_seconds
from costmodel.base.words import with_device_name
from costmodel.describe.jobs.fields import FIELD, KNOBS
from costmodel.describe.jobs.job import expand_layout
from costmodel.describe.jobs.layout_text import plain_value
from costmodel.describe.jobs.short_form import job_file_text, short_form
from costmodel.estimates.samples import QUANTILES
from costmodel.reporting import tables
from costmodel.reporting.cells import say, spread_rows
from costmodel.reporting.charts import Chart, page_record
from costmodel.reporting.html.page import template, warned
from costmodel.reporting.other_pictures import layout_in_short, pareto_chart
from costmodel.reporting.pictures import MOST_TASKS, memory_chart, pipeline_chart, step_panel
from costmodel.reporting.plans import narrow, plan_grids
from costmodel.reporting.series import has_figure, job_title, memory_stacks
from costmodel.reporting.training_runs import run_grids, run_remarks

if TYPE_CHECKING:
    from costmodel.estimates.estimate import Estimate
    from costmodel.estimates.samples import Samples

Record = dict[str, Any]
Progress = Callable[[int, int], None]

SAMPLES = 200
"""Samples of what is uncertain; the command names them."""
_LAYOUTS = 10
_KEPT = ("model", "gpus", "cluster")
"""What stays of the form where a dropped job does not say it."""
_LONG = 24
"""Characters from which on the texts of a column are broken."""
_MINOR = frozenset(
    ("Category", "Count", "Busy", "Tier", "Non-default settings", "Comm", "Bubble", "HBM", "Regret")
)
"""Columns that a narrow page leaves to the opened line, and of a plan to the layout once it is the job's."""


def _piece(name: str, *given: Any) -> str:
    return str(getattr(template("pieces.html", "costmodel.app").module, name)(*given))


def _wrapped(grids: Sequence[Grid]) -> str:
    return "".join(_piece("wrapped", grid) for grid in grids)


def view(state: State) -> Record:
    """Return what a state shows: ``head``, ``body``, a ``figure`` with its ``label``, the job's ``point`` among layouts.

    ``planned`` is the layout by field where the planner chose it.
    """
    shown: Record = {"head": "", "body": "", "figure": None, "label": "", "point": None, "planned": None}
    if state.view == "compare":
        return shown | {"head": "<h1>Job B against job A</h1>", "body": _compared(*state.jobs)}
    if state.view == "run":
        return shown | _whole_run(state.job, state.run)
    est = cm.estimate(**job_keywords(state.job))
    shown["head"] = head(est) + _piece("sentences", est.assumptions, "said")
    knobs = (*KNOBS, "dp") if est.is_planned else ()
    planned = {name: plain_value(name, getattr(est.job.layout, name)) for name in knobs}
    shown["planned"] = {name: str(value).lower() for name, value in planned.items()}
    if state.view == "overview":
        point = {"x": float(est.memory_bytes_per_gpu) / 2**30, "y": float(est.step_time_s)}
        return shown | _overview(est) | {"point": point}
    if state.view == "figures":
        return shown | _figure(est, state.figure)
    if state.view == "sure":
        samples = est.sample(SAMPLES)
        texts = [
            f"Range: {tables.range_text(est, sources=True)}.",
            f"What the uncertain factors alone make of it: {tables.sampled_text(samples)}.",
        ]
        spread = _wrapped([_spread(samples), tables.causes_grid(samples)])
        shown["body"] = _piece("sentences", texts) + spread
    if state.view == "bill":
        shown["body"] = bill_table(tables.time_grid(est, every_line=True), _opened(est, state.line))
    if state.view == "memory":
        shown["body"] = bill_table(tables.memory_grid(est, every_line=True), _opened(est, state.line))
        shown["body"] += _wrapped([tables.host_grid(est)]) if est.bill.host_lines else ""
    return shown


def command_of(state: State) -> str:
    """Return the command that answers the same as a view."""
    job = state.job
    if state.view in ("bill", "memory") and state.line:
        return command("explain", job, ("--line", state.line))
    if state.view == "plan":
        return command("plan", job, search=state.search)
    if state.view == "run":
        return command("run", job, run=state.run)
    if state.view == "compare":
        return "costmodel compare a.yaml b.yaml"
    more = {
        "bill": ("--all-lines",),
        "memory": ("--all-lines",),
        "figures": ("--plot", f"{state.figure}.svg", "--figure", state.figure),
        "sure": ("--samples", str(SAMPLES)),
        "export": ("--csv", "bill.csv"),
    }
    found = command("estimate", job, more.get(state.view, ()))
    return (
        f"{found}\n{command('estimate', job, ('--html', 'report.html'))}" if state.view == "export" else found
    )


def with_file(state: State, name: str, content: bytes) -> tuple[State, str]:
    """Return a state with the job or the model of a file in it, and what is to be said of the file."""
    now = state.job
    kept = {key: now.fields.get(key, "") for key in _KEPT}
    job, found = read_upload(name, content, kept)
    texts = {**(now.fields if found.kind in ("hf", "model") else kept), **job.fields}
    if job.model:
        texts.pop("model", None)
    model = job.model or ("" if "model" in job.fields else now.model)
    remarks = " ".join(["Read as", f"{found.kind}.", *map(one_line, found.remarks[:12])])
    return state.with_job(Texts(texts, model, job.batches)), remarks


def warnings(job: Texts) -> str:
    """Return what is unusual about a job, which takes longer than the rest of its answer."""
    return warned(cm.estimate(**job_keywords(job)))


# --- the first view ---


def head(est: Estimate) -> str:
    """Return the job, whether it fits, and its numbers in one line; the rest of them folded."""
    job, refusal = est.job, ""
    if not est.fits_gpu:
        over = format_bytes(float(est.memory_bytes_per_gpu) - est.memory_capacity_bytes)
        refusal = f"a GPU lacks {over}: more GPUs, more sharding or recomputation, or another layout"
    elif not est.fits:
        refusal = "the host's memory is too small for what is offloaded"
    numbers = [
        ("big", format_seconds(float(est.step_time_s), 4), " a step"),
        ("", f"{float(est.mfu):.1%}", " MFU"),
        (
            "fits" if est.fits else "over",
            *say("{memory_bytes_per_gpu:B}| of {memory_capacity_bytes:B} a GPU", est).split("|"),
        ),
        ("", format_figure(float(est.tokens_per_s_per_gpu)), " tokens/s/GPU"),
    ]
    details = [
        say("{fits_probability:chance} likely to fit", est),
        f"error band: {tables.range_text(est, sources=True)}",
        say("causal-masked MFU: {mfu_causal:.1%}", est),
        f"step: {tables.breakdown_text(est)}",
    ]
    if job.tokens is not None:
        usd = job.cluster.price_usd_per_gpu_hour
        cost = "" if usd is None else f" · ${usd * float(est.gpu_hours(job.tokens)):,.0f}"
        numbers.append(("", f"{float(est.days(job.tokens)):,.1f}", f" days{cost}, no failures"))
        details.append(f"tokens: {tables.spent_text(est, sources=True)}")
    about = f"{tables.job_text(est)}; recipe {job.recipe.name}"
    return with_device_name(
        _piece("head", est, job_title(est), about, refusal, numbers, details), est.device_word
    )


def _overview(est: Estimate) -> Record:
    """Return the step as a bar and the memory of each stage as a gauge; its numbers are the figure's label too."""
    chart = Chart(title="", panels=[step_panel(est), *memory_chart(est).panels])
    labels = [
        [label for mark in panel.marks if (label := getattr(mark, "label", ""))] for panel in chart.panels
    ]
    _, parts = memory_stacks(est)
    stages = ", ".join(format_bytes(float(total)) for total in np.sum(list(parts.values()), axis=0))
    sentences = [
        f"A step of {format_seconds(float(est.step_time_s), 4)}: {', '.join(labels[0])}.",
        f"Memory of a GPU by stage: {stages}; of the fullest: {', '.join(labels[1])}.",
    ]
    return {"figure": page_record(chart), "label": with_device_name(" ".join(sentences), est.device_word)}


# --- the bills ---


def bill_table(grid: Grid, opened: Mapping[str, str] | None = None, uses: tuple[str, int] = ("", 0)) -> str:
    """Return a table whose lines are buttons."""
    sides = [
        ("number" if column.number else "text")
        + (" minor" if column.title in _MINOR else "")
        + (" long" if any(len(row[index]) > _LONG for row in grid.rows) else "")
        for index, column in enumerate(grid.columns)
    ]
    return _piece("bill", grid, sides, opened or {}, *uses)


def _opened(est: Estimate, line: str) -> dict[str, str]:
    """Return the HTML of a line by its name; nothing where the bill has none of that name."""
    lines = {each.name for each in est.bill.time_lines} | {each.name for each in est.bill.memory_lines}
    return {line: _explained(est, line)} if line in lines else {}


def _explained(est: Estimate, line: str) -> str:
    return "".join(map(html_table, est.explain(line).grids()))


def explained(job: Texts, line: str) -> str:
    """Return a line opened up: its formula with the numbers in it, and its source."""
    return _explained(cm.estimate(**job_keywords(job)), line)


# --- the other views ---


def _compared(first: Texts, second: Texts) -> str:
    if not second.named() and not second.model:
        missing = "There is no second job yet: copy this one, change it, and both stand here."
        return _piece("sentences", [missing])
    ests = []
    for name, job in (("A", first), ("B", second)):
        try:
            ests.append(cm.estimate(**job_keywords(job)))
        except cm.CostModelError as error:
            raise type(error)(f"job {name}: {error}") from None
    found = cm.compare(*ests, labels=("A", "B"))
    return _piece("sentences", found.remarks()) + _wrapped(found.grids())


def _spread(samples: Samples) -> Grid:
    rows = spread_rows(
        {
            name: [samples.quantile(share, name) for share in QUANTILES]
            for name in samples.figures
            if name != "dollars"
        }
    )
    return Grid("Where it lies", columns("Figure", "p10 >", "p50 >", "p90 >"), rows)


def _whole_run(job: Texts, requested: Mapping[str, str]) -> Record:
    """Return days, dollars and energy of a whole run, where its hours go, and how sure that is."""
    how_far = ("tokens", "dollars", "days", "dataset_samples")
    if not any({**job.fields, **requested}.get(name, "").strip() for name in how_far):
        est = cm.estimate(**job_keywords(job))  # which says first what is wrong with the job
        missing = ["How far does it train? Name the job's tokens, or dollars or days here."]
        return {"head": head(est), "body": _piece("sentences", missing)}
    run = cm.run(**run_keywords(job, requested))
    whole, hours, spread, *causes = run_grids(run)
    body = _piece("sentences", run_remarks(run)) + _wrapped([whole, spread, hours, *causes])
    return {"head": head(run.est), "body": body}


def _figure(est: Estimate, name: str) -> Record:
    """Return a figure, what it shows, and a sentence below it."""
    title = FIGURES[name]
    if not has_figure(est, name.replace("-", "_")):
        return {"body": _piece("sentences", [f"{title}: this job has none."])}
    chart = pipeline_chart(est, MOST_TASKS) if name == "pipeline" else est.plot.chart(name)
    note = [chart.note] if chart.note else []
    return {"figure": page_record(chart), "label": title, "body": _piece("sentences", note)}


# --- layouts ---


def plan(state: State, *, progress: Progress) -> Record:
    """Search the layouts of a job; ``layouts`` has the state with each of those that are listed."""
    found = cm.plan(**plan_keywords(state.job, state.search), progress=progress)
    best, front, *others, tried = plan_grids(found, count=_LAYOUTS)
    trials = [est for est, _ in found.trials()]
    return {
        "body": _piece("sentences", found.advice())
        + bill_table(narrow(tried), uses=("trial", 0))
        + bill_table(narrow(best), uses=("layout", len(trials)))
        + "".join(_piece("folded", grid) for grid in (narrow(front), *others)),
        "layouts": [_taken(state, est) for est in (*trials, *found.top(_LAYOUTS))],
        "figure": page_record(pareto_chart(found)),
        "label": "Step time against memory of the best layouts",
    }


def overview_plan(state: State, *, progress: Progress) -> Record:
    """Search the layouts of a job whatever layout it has now: the figure, and a few of them to take."""
    free = {name: text for name, text in state.job.fields.items() if FIELD[name].group != "layout"}
    found = cm.plan(**plan_keywords(replace(state.job, fields=free), {}), progress=progress)
    trials = [est for est, _ in found.trials()]
    layouts = [
        (
            layout_in_short(est),
            format_seconds(float(est.step_time_s), 4),
            say("{mfu:.1%} MFU, {memory_bytes_per_gpu:B}", est),
        )
        for est in trials
    ]
    return {
        "body": _piece("tries", layouts),
        "layouts": [_taken(state, est) for est in trials],
        "figure": page_record(pareto_chart(found)),
        "label": "Step time against memory: the front, the layouts to try, and yours",
        "best_s": float(trials[0].step_time_s),
    }


def _taken(state: State, est: Estimate) -> str:
    """Return the query of the state in which a layout is the job's."""
    texts = texts_of(expand_layout(short_form(est.job)))
    model = {"model": state.job.fields["model"]} if state.job.fields.get("model") else {}
    fields = {**{name: text for name, text in texts.items() if name != "model"}, **model}
    job = replace(state.job, fields=fields)
    return query_of(replace(state.with_job(job), view="overview", line=""))


# --- files ---


def job_yaml(job: Texts) -> str:
    """Return a job file that every command reads; a model of its own lies beside it as `MODEL_FILE`."""
    made = cm.estimate(**job_keywords(job)).job
    return job_file_text(made, {made.model.name: MODEL_FILE} if job.model else None)


def bill_csv(job: Texts) -> str:
    """Return the bill as CSV, a row a line."""
    return to_csv(cm.estimate(**job_keywords(job)).columns())


def report(state: State, *, progress: Progress) -> Record:
    """Write the page of `costmodel estimate --html`."""
    page = cm.report(cm.estimate(**job_keywords(state.job)), progress=progress)
    return {"name": "report.html", "text": page}
