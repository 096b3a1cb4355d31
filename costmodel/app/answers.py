"""What each view of the page shows, as plain data: texts, HTML in which each text is escaped, and figures as dicts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any

import costmodel as cm
from costmodel.app.asked import (
    MODEL_FILE,
    Texts,
    command,
    job_keywords,
    plan_keywords,
    run_keywords,
    texts_of,
)
from costmodel.app.first_view import head, overview
from costmodel.app.state import State, query_of
from costmodel.app.uploads import read_upload
from costmodel.base.csv_text import to_csv
from costmodel.base.errors import one_line
from costmodel.base.grid import Grid, columns, html_table
from costmodel.base.units import format_bytes, format_seconds
from costmodel.describe.jobs.fields import FIELD, REQUIRED
from costmodel.describe.jobs.job import spelled_out
from costmodel.describe.jobs.merge import assumed_recipe, names_no_degree
from costmodel.describe.jobs.short_form import job_file_text, short_form
from costmodel.estimates.record import input_record
from costmodel.estimates.samples import QUANTILES
from costmodel.planning.beside import Beside, named_or_planned
from costmodel.reporting import tables
from costmodel.reporting.charts import plotly_figure
from costmodel.reporting.html.page import warned
from costmodel.reporting.other_pictures import pareto_chart, short_layout
from costmodel.reporting.pictures import MOST_TASKS, pipeline_chart
from costmodel.reporting.plans import plan_grids
from costmodel.reporting.training_runs import run_grids, run_remarks

if TYPE_CHECKING:
    from costmodel.estimates.estimate import Estimate
    from costmodel.estimates.samples import Samples

Figure = dict[str, Any]
Record = dict[str, Any]
Progress = Callable[[int, int], None]

TITLES = {
    "overview": "Overview",
    "bill": "Time",
    "memory": "Memory",
    "sure": "How sure",
    "figures": "Figures",
    "plan": "Plan",
    "run": "Whole run",
    "compare": "Compare",
    "export": "Export",
}
"""Of the views."""
SAMPLES = 200
"""Samples of what is uncertain; the command names them."""
_LAYOUTS = 10
_KEPT = (*REQUIRED, "cluster")
"""What stays of the form where a dropped job does not say it."""


def view(state: State) -> Record:
    """Return what a state shows: ``head``, ``body``, a ``figure`` with its ``label``, the job's ``point`` among layouts.

    A plan and a report are asked for by themselves.

    Raises
    ------
    CostModelError
        As the command line has it.
    """
    shown: Record = {"head": "", "body": "", "figure": None, "label": "", "point": None}
    if state.view == "compare":
        return shown | {"body": _compared(*state.jobs)}
    if state.view == "run":
        return shown | _whole_run(state.job, state.run)
    est = cm.estimate(**(asked := job_keywords(state.job)))
    if state.view == "sure":
        est = est.with_samples(SAMPLES)
    assumed = [*_assumed(est, asked), *assumed_recipe(asked, named_by="the field recipe")]
    shown["head"] = head(est) + _paragraphs(assumed, "said")
    if state.view == "overview":
        point = {"x": float(est.memory_bytes_per_gpu) / 2**30, "y": float(est.step_time_s)}
        return shown | {"body": overview(est), "point": point}
    if state.view == "figures":
        figure, label, note = _figure(est, state.figure)
        return shown | {"body": _paragraphs([note] if note else []), "figure": figure, "label": label}
    if state.view == "sure" and est.samples is not None:
        spread = "".join(map(_wrapped, (_spread(est.samples), tables.causes_grid(est.samples))))
        return shown | {"body": _paragraphs([f"{tables.sampled_text(est.samples)}."]) + spread}
    if state.view == "bill":
        shown["body"] = bill_table(tables.time_grid(est, every_line=True), _opened(est, state.line))
    if state.view == "memory":
        shown["body"] = bill_table(tables.memory_grid(est, every_line=True), _opened(est, state.line))
        shown["body"] += _wrapped(tables.host_grid(est)) if est.bill.host_lines else ""
    return shown


def command_of(state: State) -> str:
    """Return the command that answers the same as a view."""
    job, view = state.job, state.view
    if view == "overview":
        return command("estimate", job)
    if view in ("bill", "memory"):
        if state.line:
            return command("explain", job, ("--line", state.line))
        return command("estimate", job, ("--all-lines",))
    if view == "figures":
        return command("estimate", job, ("--plot", f"{state.figure}.svg", "--figure", state.figure))
    if view == "sure":
        return command("estimate", job, ("--samples", str(SAMPLES)))
    if view == "plan":
        return command("plan", job, search=state.search)
    if view == "run":
        return command("run", job, run=state.run)
    if view == "compare":
        return "costmodel compare a.yaml b.yaml"
    bill, report = (("--csv", "bill.csv"), ("--html", "report.html"))
    return "\n".join((command("estimate", job, bill), command("report", job, report)))


def with_file(state: State, name: str, content: bytes) -> tuple[State, str]:
    """Return a state with the job or the model of a file in it, and what is to be said of the file.

    Raises
    ------
    CostModelError
        If the file cannot be read.
    """
    found, now = read_upload(name, content), state.job
    is_model = found.kind in ("hf", "model")
    kept = now.fields if is_model else {key: now.fields.get(key, "") for key in _KEPT}
    texts = {**kept, **found.job.fields}
    if found.job.model:
        texts.pop("model", None)
    model = found.job.model or ("" if "model" in found.job.fields else now.model)
    said = " ".join(["Read as", f"{found.kind}.", *map(one_line, found.remarks[:12])])
    return state.with_job(Texts(texts, model)), said


def warnings(job: Texts) -> str:
    """Return what is unusual about a job, which takes longer than the rest of its answer.

    Raises
    ------
    CostModelError
        If the job cannot be priced.
    """
    return warned(cm.estimate(**job_keywords(job)))


def _assumed(est: Estimate, asked: Mapping[str, Any]) -> list[str]:
    """Say what layout was assumed where nobody named one."""
    if not names_no_degree(asked):
        return []
    return [f"{Beside(est).sentences[0]} The plan view looks for a better one."]


def _paragraphs(sentences: Sequence[str], kind: str = "note") -> str:
    return "".join(f'<p class="{kind}">{escape(sentence)}</p>' for sentence in sentences)


def _wide(table: str, label: str, kind: str = "") -> str:
    """Return a table that scrolls by itself where the page is narrow, by keyboard too."""
    return f'<div class="wide {kind}" tabindex="0" role="region" aria-label="{escape(label)}">{table}</div>'


def _wrapped(grid: Grid) -> str:
    """Return a table whose texts are broken where the page is narrow."""
    return _wide(html_table(grid), grid.title, "wrap")


_MINOR = frozenset(
    ("Category", "Count", "Busy", "Tier", "Non-default settings", "Comm", "Bubble", "HBM", "Regret")
)
"""Columns that a narrow page leaves to the opened line, and of a plan to the layout once it is the job's."""


_LONG = 24
"""Characters from which on the texts of a column are broken."""


def bill_table(
    grid: Grid, opened: Mapping[str, str] | None = None, uses: tuple[str, int] | None = None
) -> str:
    """Return a table whose lines are buttons.

    Parameters
    ----------
    grid : Grid
        The table; a line that has a key opens.
    opened : mapping, optional
        HTML of the lines that are open, by key.
    uses : tuple of str and int, optional
        What a line is, where it is a layout that can be made the job's, and how many layouts are counted before it.
    """
    below = opened or {}
    keys = grid.keys or ("",) * len(grid.rows)
    sides = [
        ("number" if column.number else "text")
        + (" minor" if column.title in _MINOR else "")
        + (" long" if any(len(row[index]) > _LONG for row in grid.rows) else "")
        for index, column in enumerate(grid.columns)
    ]
    head = "".join(
        f'<th scope="col" class="{side}">{escape(column.title)}</th>' if column.title else "<td></td>"
        for column, side in zip(grid.columns, sides, strict=True)
    )
    rows = []
    for index, (row, key) in enumerate(zip(grid.rows, keys, strict=True)):
        label = re.sub(r"([._])", r"\1<wbr>", escape(row[0].strip()))
        if key:
            is_open = "true" if key in below else "false"
            label = (
                f'<button type="button" data-line="{escape(key)}" aria-expanded="{is_open}">{label}</button>'
            )
        if uses:
            label += f' <button type="button" data-use="{uses[1] + index}" aria-label="Use {uses[0]} {index + 1}">Use</button>'
        cells = "".join(
            f'<td class="{side}">{escape(cell)}</td>' for cell, side in zip(row[1:], sides[1:], strict=True)
        )
        kind = "sum" if index in grid.strong else "part"
        rows.append(f'<tr class="{kind}"><th scope="row" class="{sides[0]}">{label}</th>{cells}</tr>')
        if key in below:
            rows.append(f'<tr class="opened"><td colspan="{len(row)}">{below[key]}</td></tr>')
    note = f'<p class="note">{escape(grid.note)}</p>' if grid.note else ""
    table = (
        f'<table class="bill"><caption>{escape(grid.title)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
    return _wide(table, grid.title) + note


def _opened(est: Estimate, line: str) -> dict[str, str]:
    """Return the HTML of a line by its name; nothing where the bill has none of that name."""
    bill = est.bill
    lines = {each.name for each in bill.time_lines} | {each.name for each in bill.memory_lines}
    return {line: _explained(est, line)} if line in lines else {}


def _explained(est: Estimate, line: str) -> str:
    return "".join(map(html_table, est.explain(line).grids()))


def explained(job: Texts, line: str) -> str:
    """Return a line opened up: its formula with the numbers in it, and its source.

    Raises
    ------
    CostModelError
        If the job cannot be priced, or its bill has no such line.
    """
    return _explained(cm.estimate(**job_keywords(job)), line)


def _compared(first: Texts, second: Texts) -> str:
    """Return two bills side by side."""
    if not second.said() and not second.model:
        return _paragraphs(["There is no second job yet: copy this one, change it, and both stand here."])
    ests = []
    for name, job in (("A", first), ("B", second)):
        try:
            ests.append(cm.estimate(**job_keywords(job)))
        except cm.CostModelError as error:
            raise type(error)(f"job {name}: {error}") from None
    found = cm.compare(*ests, labels=("A", "B"))
    return _paragraphs(found.remarks()) + "".join(map(_wrapped, found.grids()))


def _spread(samples: Samples) -> Grid:
    """Return the quantiles of what is sampled."""
    said: dict[str, tuple[str, Callable[[float], str]]] = {
        "step_time_s": ("step time", format_seconds),
        "mfu": ("MFU", "{:.1%}".format),
        "memory_bytes_per_gpu": ("memory of a GPU", format_bytes),
        "days": ("days", "{:,.1f}".format),
        "gpu_hours": ("GPU-hours", "{:,.0f}".format),
    }
    rows = [
        [title, *(form(samples.quantile(share, name)) for share in QUANTILES)]
        for name, (title, form) in said.items()
        if name in samples.figures
    ]
    return Grid("Where it lies", columns("Figure", "p10 >", "p50 >", "p90 >"), rows)


def _whole_run(job: Texts, asked: Mapping[str, str]) -> Record:
    """Return days, dollars and energy of a whole run, where its hours go, and how sure that is."""
    run = cm.run(**run_keywords(job, asked))
    whole, hours, spread, *causes = run_grids(run)
    whose = (
        ["No degree of the layout was named: this is the planner's, as the command has it."]
        if run.is_planned
        else []
    )
    body = _paragraphs([*whose, *run_remarks(run)]) + "".join(map(_wrapped, (whole, spread, hours, *causes)))
    return {"head": head(run.est), "body": body}


def _figure(est: Estimate, name: str) -> tuple[Figure | None, str, str]:
    """Return a figure, what it shows, and a sentence below it."""
    title, is_there = FIGURES[name]
    if not is_there(est):
        return None, "", f"{title}: this job has none."
    chart = pipeline_chart(est, MOST_TASKS) if name == "pipeline" else est.plot.chart(name)
    return plotly_figure(chart), title, chart.note


def _always(est: Estimate) -> bool:
    return True


def _has_network(est: Estimate) -> bool:
    return bool(est.job.layout.gpus > 1)


FIGURES: Mapping[str, tuple[str, Callable[[Estimate], bool]]] = {
    "time": ("Waterfall of the step", _always),
    "memory": ("Memory of a GPU by pipeline stage", _always),
    "pipeline": ("Every task of every pipeline rank over time", lambda est: bool(est.job.layout.pp > 1)),
    "compute-roofline": ("Operators on the roofline of the GPU", _always),
    "communication-roofline": ("Axes on the communication roofline", _has_network),
    "mesh": ("Groups of each axis on the first GPUs", _has_network),
    "tornado": ("Change of step time by each number", _always),
}
"""By name: what a figure shows, and whether a job has it."""


def plan(state: State, *, progress: Progress) -> Record:
    """Search the layouts of a job; ``layouts`` has the state with each of those that are listed.

    Raises
    ------
    CostModelError
        As the command line has it; also where no layout is left.
    """
    job, search = state.job, state.search
    found = cm.plan(**plan_keywords(job, search), progress=progress)
    best, front, *others, tried = plan_grids(found, count=_LAYOUTS)
    top, trials = found.top(_LAYOUTS), [est for est, _ in found.trials()]
    body = (
        _paragraphs(found.advice())
        + bill_table(_narrow(tried), uses=("trial", 0))
        + bill_table(_narrow(best), uses=("layout", len(trials)))
        + "".join(
            f"<details><summary>{escape(grid.title)}</summary>{_wrapped(grid)}</details>"
            for grid in (_narrow(front), *others)
        )
    )
    return {
        "body": body,
        "layouts": [_taken(state, est) for est in (*trials, *top)],
        "figure": plotly_figure(pareto_chart(found)),
        "label": "Step time against memory of the best layouts",
    }


_POLICY = ("Micro-batch", "ZeRO", "Schedule", "Recompute")
_SETTINGS = "Non-default settings"


def _narrow(grid: Grid) -> Grid:
    """Return layouts with what they run under their degrees, and settings last, so that the numbers are in sight."""
    at = {column.title: index for index, column in enumerate(grid.columns)}
    moved = {"GPUs", "Layout", *_POLICY, _SETTINGS}
    numbers = [index for title, index in at.items() if title not in moved]
    order = [*numbers[:2], at["Layout"], *numbers[2:], *([at[_SETTINGS]] if _SETTINGS in at else [])]

    def cell(row: Sequence[str], index: int) -> str:
        if index != at["Layout"]:
            return row[index].replace(" / ", " \u2013 ")
        said = {title: row[at[title]] for title in _POLICY if title in at}
        return ", ".join(
            [row[index], *(f"{title.lower()} {text}" for title, text in said.items() if text != "none")]
        )

    rows = [[cell(row, index) for index in order] for row in grid.rows]
    return grid._replace(columns=[grid.columns[index] for index in order], rows=rows)


def overview_plan(state: State, *, progress: Progress) -> Record:
    """Search the layouts of a job whatever layout it has now: the figure, and a few of them to take.

    Raises
    ------
    CostModelError
        As the command line has it; also where no layout is left.
    """
    free = {name: text for name, text in state.job.fields.items() if FIELD[name].group != "layout"}
    found = cm.plan(**plan_keywords(Texts(free, state.job.model), {}), progress=progress)
    trials = [est for est, _ in found.trials()]
    rows = "".join(
        f'<li><button type="button" data-use="{index}" aria-label="Use layout {index + 1}">{index + 1}</button> '
        f"<span>{escape(short_layout({name: [value] for name, value in input_record(est.job).items()}, 0))}</span> "
        f"<b>{format_seconds(float(est.step_time_s), 4)}</b> {float(est.mfu):.1%} MFU, "
        f"{format_bytes(float(est.memory_bytes_per_gpu))}</li>"
        for index, est in enumerate(trials)
    )
    return {
        "body": f'<ol class="tries">{rows}</ol>',
        "layouts": [_taken(state, est) for est in trials],
        "figure": plotly_figure(pareto_chart(found)),
        "label": "Step time against memory: the front, the layouts to try, and yours",
        "best_s": float(trials[0].step_time_s),
    }


def _taken(state: State, est: Estimate) -> str:
    """Return the query of the state in which a layout is the job's."""
    texts = texts_of(spelled_out(short_form(est.job)))
    model = {"model": state.job.fields["model"]} if state.job.fields.get("model") else {}
    job = Texts({**{name: text for name, text in texts.items() if name != "model"}, **model}, state.job.model)
    return query_of(replace(state.with_job(job), view="overview", line=""))


def job_yaml(job: Texts) -> str:
    """Return a job file that every command reads; a model of its own lies beside it as `MODEL_FILE`.

    Raises
    ------
    CostModelError
        As the command line has it.
    """
    made = cm.estimate(**job_keywords(job)).job
    return job_file_text(made, {made.model.name: MODEL_FILE} if job.model else None)


def bill_csv(job: Texts) -> str:
    """Return the bill as CSV, a row a line.

    Raises
    ------
    CostModelError
        As the command line has it.
    """
    return to_csv(cm.estimate(**job_keywords(job)).columns())


def report(state: State, *, progress: Progress) -> Record:
    """Write the page of `costmodel report`.

    Raises
    ------
    CostModelError
        As the command line has it.
    """
    est, is_planned = named_or_planned(job_keywords(state.job))
    return {"name": "report.html", "text": cm.report(est, is_planned=is_planned, progress=progress)}
