"""The page: a form made from the table of fields, six views of what it describes, and the command for each.

One object a visitor holds all there is of him; nothing is kept beside it, and the address says the same.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import replace
from html import escape
from importlib.resources import files
from typing import Any

from nicegui import ui

from costmodel.app import answers
from costmodel.app.asked import MODEL_FILE, Texts, command, field_of
from costmodel.app.form import (
    CONSTRAINT_FIELDS,
    FIRST_FIELDS,
    KNOB_FIELDS,
    LAYOUT_FIELDS,
    OTHER_FIELDS,
    RUN_FIRST_FIELDS,
    RUN_OTHER_FIELDS,
    Form,
)
from costmodel.app.limits import LIMITS, StoppedError
from costmodel.app.link import FIGURES, VIEWS, State, query_of, state_of
from costmodel.app.uploads import Upload, read_upload
from costmodel.app.workers import BrokenWorkerError, Workers
from costmodel.base.errors import CostModelError, one_line
from costmodel.describe.jobs.fields import REQUIRED

_TITLES = {
    "bill": "Time",
    "memory": "Memory",
    "sure": "How sure",
    "figures": "Figures",
    "plan": "Plan",
    "run": "Whole run",
    "compare": "Compare",
    "export": "Export",
}
_KEPT = (*REQUIRED, "cluster")
"""What stays of the form where a dropped job does not say it."""
_LOOK_EVERY_S = 0.1
_LONGEST_LINE = 200

_CONFIG = {"responsive": False, "displaylogo": False, "displayModeBar": False}
"""Of figures; the page's script fits them to the window, as the library's own observer outlives what it observes."""


def page_of(workers: Workers, plans: Workers) -> Callable[..., Awaitable[None]]:
    """Return what builds the page for one visitor.

    Parameters
    ----------
    workers, plans : Workers
        What prices jobs, and what searches and writes reports.
    """

    async def build(request: Any) -> None:
        problem = ""
        try:
            state = state_of(request.url.query)
        except CostModelError as error:
            state, problem = State(), one_line(str(error))
        await Visit(state, workers, plans).open(problem)

    # The library looks annotations up in this module.
    from fastapi import Request

    build.__annotations__["request"] = Request
    return build


class Visit:
    """One visitor's page: what he has typed, what he sees, and what runs for him."""

    def __init__(self, state: State, workers: Workers, plans: Workers) -> None:
        self.state = state
        self._workers, self._plans = workers, plans
        self._layouts: tuple[Any, ...] = ()
        self._stop: threading.Event | None = None
        self._wanted = False
        self._busy = False
        self._problem = ""
        self._warned_of: Texts | None = None
        self._client = ui.context.client

    # --- what is drawn ---------------------------------------------------------------------------

    async def open(self, problem: str) -> None:
        """Draw the page and answer the first time."""
        ui.add_css(_asset("page.css"))
        ui.add_body_html(f"<script>{_asset('page.js')}</script>")
        ui.on("costmodel_line", self._open_line)
        ui.on("costmodel_use", self._use_layout)
        self._client.on_delete(self._end)
        self._dark = ui.dark_mode(None)
        ui.html('<a class="app-skip" href="#answer">Skip to the answer</a>')
        with ui.element("header").classes("app-header"):
            ui.html("costmodel", tag="p").classes("app-name")
            ui.html("What a training step takes, line by line", tag="p").classes("app-said")
            ui.button("Dark or light", on_click=self._turn_dark).props("flat dense no-caps")
        ui.colors(primary="#00578a")
        with ui.element("main").classes("app-main"):
            with ui.element("section").classes("app-head").props('aria-label="The headline"'):
                self._error = ui.html("").classes("app-error").props("role=alert")
                self._head = ui.html("").props("aria-live=polite").classes("app-panel")
                self._warned = ui.html("").props("aria-live=polite").classes("app-panel")
            with ui.element("section").classes("app-form").props('aria-label="The job"'):
                self._draw_form()
            with (
                ui.element("section")
                .classes("app-answer")
                .props('aria-label="The answer" id=answer tabindex=-1')
            ):
                self._draw_answer()
        self._show_view()
        # The page is on its way before the first answer is asked for.
        await self._client.connected()
        if problem:
            self._say(problem)
        else:
            await self._answer()

    def _draw_form(self) -> None:
        with ui.element("div").classes("app-row"):
            self._which = ui.toggle(
                {0: "Job A", 1: "Job B"}, value=int(self.state.second), on_change=self._switch
            )
            self._which.props("no-caps dense")
            ui.button("Copy to the other", on_click=self._copy).props("flat dense no-caps")
        upload = ui.upload(
            label="Drop or choose a job, a launch script, a configuration or a config.json",
            max_file_size=LIMITS.upload_bytes,
            max_files=1000,
            auto_upload=True,
            on_upload=self._uploaded,
            on_rejected=lambda: self._say(f"expected one file of at most {LIMITS.upload_bytes:,} bytes"),
        )
        upload.classes("app-upload").props("flat")
        self._upload = upload
        self._dropped = ui.html("").classes("app-note").props("role=status")
        texts = self.state.job.fields
        self._forms = [Form(FIRST_FIELDS, texts, self._typed)]
        ui.html("Layout", tag="h2")
        self._forms.append(Form(LAYOUT_FIELDS, texts, self._typed))
        more = ui.expansion("More fields").classes("app-panel").props("dense")
        with more:
            self._forms.append(Form(OTHER_FIELDS, texts, self._typed))
        more.value = any(texts.get(field.name) for field in OTHER_FIELDS)

    def _draw_answer(self) -> None:
        with ui.tabs(on_change=self._turn).classes("app-tabs") as self._tabs:
            self._tabs.props('align=left dense outside-arrows mobile-arrows inline-label aria-label="Views"')
            for name in VIEWS:
                ui.tab(name, _TITLES[name])
            self._tabs.value = self.state.view
        with ui.element("div").classes("app-panel").props("role=tabpanel id=view"):
            self._panel = {
                name: ui.element("div").classes("app-panel")
                for name in ("figures", "plan", "run", "compare", "export")
            }
            with self._panel["figures"]:
                titles = {name: answers.FIGURES[name][0] for name in FIGURES}
                self._which_figure = ui.select(
                    titles, value=self.state.figure, label="Figure", on_change=self._draw_other
                )
                self._which_figure.props("outlined dense")
            with self._panel["plan"]:
                self._draw_plan()
            with self._panel["run"]:
                self._draw_run()
            with self._panel["compare"], ui.element("div").classes("app-row"):
                ui.button("a.yaml", on_click=lambda: self._give_job(0)).props("outline dense no-caps")
                ui.button("b.yaml", on_click=lambda: self._give_job(1)).props("outline dense no-caps")
            with self._panel["export"]:
                self._draw_export()
            self._command = (
                ui.html("", tag="code")
                .classes("app-command")
                .props('tabindex=0 aria-label="The command that does the same"')
            )
            self._body = ui.html("").classes("app-panel")
            self._figure = ui.element("div").classes("app-panel")
            self._planned = ui.html("").classes("app-panel")
            self._pareto = ui.element("div").classes("app-panel")

    def _draw_plan(self) -> None:
        ui.html(
            "What is trained, on which cluster and batch, is the job's; its layout is what the search finds. "
            "Values to try may be several: 1,2,4.",
            tag="p",
        ).classes("app-note")
        self._search = [Form(CONSTRAINT_FIELDS, self.state.search, self._typed_search, several=True)]
        with ui.expansion("Values to try").classes("app-panel").props("dense") as more:
            self._search.append(Form(KNOB_FIELDS, self.state.search, self._typed_search, several=True))
        more.value = any(self.state.search.get(field.name) for field in KNOB_FIELDS)
        with ui.element("div").classes("app-row"):
            self._go = ui.button("Find the best layout", on_click=self._plan).props("no-caps unelevated")
            self._halt = ui.button("Stop", on_click=self._end).props("no-caps outline")
            self._halt.set_enabled(False)
        self._bar = ui.linear_progress(0.0, show_value=False, size="12px").props(
            'aria-label="Layouts priced"'
        )
        self._bar.visible = False
        self._told = ui.html("").classes("app-note").props("role=status")

    def _draw_run(self) -> None:
        ui.html(
            "How far it trains is the job's field tokens, or dollars or days here without it; the price is among the job's "
            "other fields.",
            tag="p",
        ).classes("app-note")
        self._run = [Form(RUN_FIRST_FIELDS, self.state.run, self._typed_run)]
        with ui.expansion("More of the run").classes("app-panel").props("dense") as more:
            self._run.append(Form(RUN_OTHER_FIELDS, self.state.run, self._typed_run))
        more.value = any(self.state.run.get(field.name) for field in RUN_OTHER_FIELDS)

    def _draw_export(self) -> None:
        with ui.element("div").classes("app-row"):
            for text, give in (
                ("Job (YAML)", lambda: self._give_job(self.state.second)),
                ("Bill (CSV)", self._give_csv),
                ("Report (one HTML page)", self._give_report),
            ):
                ui.button(text, on_click=give).props("outline no-caps")
            self._model_button = ui.button("Model (YAML)", on_click=self._give_model).props("outline no-caps")
            self._stop_report = ui.button("Stop", on_click=self._end).props("outline no-caps")
            self._stop_report.set_enabled(False)
        self._exported = ui.html("").classes("app-note").props("role=status")
        ui.html(
            "The address of this page holds the whole state: keep it, or send it to somebody whose costmodel has a page.",
            tag="p",
        ).classes("app-note")

    # --- what is typed ---------------------------------------------------------------------------

    async def _typed(self, name: str, text: str) -> None:
        """Take the text of one field of the job; a model that is named replaces one that was dropped."""
        job = self.state.job
        model = "" if name == "model" and text.strip() else job.model
        self.state = self.state.with_job(Texts({**job.fields, name: text}, model))
        await self._answer()

    async def _typed_search(self, name: str, text: str) -> None:
        self.state = replace(self.state, search={**self.state.search, name: text})
        self._show_command()
        self._show_link()

    async def _typed_run(self, name: str, text: str) -> None:
        self.state = replace(self.state, run={**self.state.run, name: text})
        await self._answer()

    async def _turn(self, event: Any) -> None:
        if str(event.value) == self.state.view:
            return
        self.state = replace(self.state, view=str(event.value), line="")
        self._show_view()
        await self._answer()

    async def _draw_other(self, event: Any) -> None:
        self.state = replace(self.state, figure=str(event.value))
        await self._answer()

    async def _switch(self, event: Any) -> None:
        self.state = replace(self.state, second=bool(event.value))
        self._fill()
        await self._answer()

    async def _copy(self) -> None:
        self.state = replace(self.state, jobs=(self.state.job, self.state.job))
        self._dropped.content = f"Job {'A' if self.state.second else 'B'} is a copy of this one."
        await self._answer()

    async def _use_layout(self, event: Any) -> None:
        """Make a layout of the plan the job's."""
        index = str(event.args)
        if not index.isdecimal() or int(index) >= len(self._layouts):
            return
        model = self.state.job.fields.get("model", "")
        texts = {**({"model": model} if model else {}), **self._layouts[int(index)]}
        self.state = replace(self.state.with_job(Texts(texts, self.state.job.model)), view="bill", line="")
        self._fill()
        self._tabs.value = "bill"
        self._show_view()
        await self._answer()

    async def _uploaded(self, event: Any) -> None:
        """Read a file that was dropped, and put what it says into the form."""
        self._upload.reset()
        name, content = str(event.file.name), await event.file.read()
        try:
            found: Upload = await self._ask(read_upload, name, content)
        except CostModelError as error:
            self._say(one_line(str(error)))
            return
        now = self.state.job
        of_model = found.kind in ("hf", "model")
        kept = now.fields if of_model else {key: now.fields.get(key, "") for key in _KEPT}
        texts = {**kept, **found.job.fields}
        if found.job.model:
            texts.pop("model", None)
        model = found.job.model or ("" if "model" in found.job.fields else now.model)
        self.state = self.state.with_job(Texts(texts, model))
        self._fill()
        said = " ".join(one_line(remark) for remark in found.remarks[:12])
        self._dropped.content = _text(f"Read as {found.kind}. {said}")
        await self._answer()

    def _fill(self) -> None:
        """Put the job that is looked at into the form."""
        for form in self._forms:
            form.fill(self.state.job.fields)
        self._dropped.content = ""

    # --- what is answered ------------------------------------------------------------------------

    async def _answer(self) -> None:
        """Show what the state asks for; of what is typed while an answer is on its way only the last is asked."""
        self._show_command()
        self._show_link()
        self._wanted = True
        if self._busy:
            return
        self._busy = True
        try:
            while self._wanted:
                self._wanted = False
                asked = self.state
                try:
                    shown = await self._ask(answers.view, asked)
                except CostModelError as error:
                    self._say(one_line(str(error)))
                else:
                    self._show(asked, shown)
                    await self._warn(asked)
        finally:
            self._busy = False

    async def _warn(self, asked: State) -> None:
        """Show the warnings of a job that is on the page, unless another is asked for by then."""
        if self._warned_of == asked.job and asked.view != "compare":
            return
        self._warned.classes(add="app-old")
        if self._wanted:
            return
        try:
            told = "" if asked.view == "compare" else await self._ask(answers.warnings, asked.job)
        except CostModelError as error:
            self._say(one_line(str(error)))
            return
        if self.state.job == asked.job:
            self._warned_of = None if asked.view == "compare" else asked.job
            self._warned.content = told
            self._warned.classes(remove="app-old")

    async def _ask(self, function: Callable[..., Any], *given: Any) -> Any:
        """Let a worker answer.

        Raises
        ------
        CostModelError
            Also where it fails: the message is for the visitor.
        """
        return await self._awaited(lambda: self._workers.submit(function, *given, most_s=LIMITS.answer_s))

    async def _awaited(self, start: Callable[[], Future[Any]]) -> Any:
        try:
            return await asyncio.wrap_future(start())
        except BrokenWorkerError as error:
            raise CostModelError(str(error)) from None
        except CostModelError:
            raise
        except Exception:  # a bug: the page stays, the terminal has it
            traceback.print_exc(file=sys.stderr)
            raise CostModelError("this is a bug of the program; its server has the details") from None

    def _show(self, asked: State, shown: answers.Shown) -> None:
        self._say("")
        self._head.content = shown.head
        self._body.content = shown.body
        _draw(self._figure, shown)

    def _say(self, problem: str) -> None:
        """Show an error, at its field where it names one; what was shown before is greyed."""
        if problem == self._problem:
            return
        self._problem = problem
        self._error.content = _text(problem)
        named = field_of(problem)
        for form in (*self._forms, *self._search, *self._run):
            form.blame(named, problem)
        self._client.run_javascript(f"costmodelBlame({json.dumps(named)})")
        for part in (self._head, self._warned, self._body, self._figure):
            part.classes(add="app-old") if problem else part.classes(remove="app-old")

    def _show_view(self) -> None:
        """Show the parts that a view has."""
        view = self.state.view
        for name, panel in self._panel.items():
            panel.visible = name == view
        self._planned.visible = self._pareto.visible = view == "plan"
        self._figure.clear()
        self._body.content = ""
        self._model_button.visible = bool(self.state.job.model)

    def _show_command(self) -> None:
        state, job = self.state, self.state.job
        self._model_button.visible = bool(job.model)
        said = {
            "bill": command("explain", job, ("--line", state.line))
            if state.line
            else command("estimate", job, ("--all-lines",)),
            "memory": command("explain", job, ("--line", state.line))
            if state.line
            else command("estimate", job, ("--all-lines",)),
            "figures": command("estimate", job, ("--plot", f"{state.figure}.svg", "--figure", state.figure)),
            "sure": command("estimate", job, ("--samples", str(answers.SAMPLES))),
            "plan": command("plan", job, search=state.search),
            "run": command("run", job, run=state.run),
            "compare": "costmodel compare a.yaml b.yaml",
            "export": "\n".join(
                (
                    command("estimate", job, ("--csv", "bill.csv")),
                    command("report", job, ("--html", "report.html")),
                )
            ),
        }[state.view]
        self._command.content = _text(said)

    def _show_link(self) -> None:
        link = f"/?{query_of(self.state)}"
        self._client.run_javascript(f"history.replaceState(null, '', {json.dumps(link)})")

    async def _open_line(self, event: Any) -> None:
        """Open a line of the bill."""
        line = str(event.args)[:_LONGEST_LINE]
        self.state = replace(self.state, line=line)
        self._show_command()
        self._show_link()
        if not line:
            return
        try:
            html = await self._ask(answers.explained, self.state.job, line)
        except CostModelError as error:
            self._say(one_line(str(error)))
            return
        self._client.run_javascript(f"costmodelOpen({json.dumps(line)}, {json.dumps(html)})")

    # --- what takes longer -----------------------------------------------------------------------

    async def _plan(self) -> None:
        """Search, with a bar that moves and a button that stops."""
        job, search = self.state.job, dict(self.state.search)
        self._planned.classes("app-old")
        try:
            shown = await self._long(answers.plan, job, search, told=self._tell_plan)
        except StoppedError:
            self._tell_plan("Stopped.")
            return
        except CostModelError as error:
            self._tell_plan("")
            self._say(one_line(str(error)))
            return
        finally:
            self._bar.visible = False
            self._planned.classes(remove="app-old")
        self._say("")
        self._tell_plan("Done.")
        self._layouts = shown.layouts
        self._planned.content = shown.body
        _draw(self._pareto, shown)

    def _tell_plan(self, said: str, share: float | None = None) -> None:
        self._told.content = _text(said)
        self._bar.visible = share is not None
        if share is not None:
            self._bar.value = share

    async def _long(self, function: Callable[..., Any], *given: Any, told: Callable[..., None]) -> Any:
        """Run what takes seconds where it can be stopped, one for each visitor.

        Raises
        ------
        CostModelError
            As it raises it; `LimitError` where too many run.
        """
        if self._stop is not None:
            raise CostModelError("one search of yours is running; stop it first")
        at = [0, 0]

        def note(done: int, total: int) -> None:
            at[:] = done, total

        self._stop = threading.Event()
        self._busy_buttons(True)
        told("Starting …", 0.0)
        stop = self._stop
        try:
            future = self._plans.submit(function, *given, most_s=LIMITS.plan_s, progress=note, stop=stop)
            while not future.done():
                await asyncio.sleep(_LOOK_EVERY_S)
                if at[1]:
                    told(f"{at[0]:,} of {at[1]:,}", at[0] / at[1])
            return await self._awaited(lambda: future)
        finally:
            self._stop = None
            self._busy_buttons(False)

    def _busy_buttons(self, runs: bool) -> None:
        self._go.set_enabled(not runs)
        self._halt.set_enabled(runs)
        self._stop_report.set_enabled(runs)

    def _end(self) -> None:
        """Stop what runs."""
        if self._stop is not None:
            self._stop.set()

    # --- what is taken away ----------------------------------------------------------------------

    def _turn_dark(self) -> None:
        self._client.run_javascript("Quasar.Dark.set(!Quasar.Dark.isActive)")

    async def _give(self, name: str, function: Callable[..., Any], *given: Any) -> None:
        try:
            text = await self._ask(function, *given)
        except CostModelError as error:
            self._say(one_line(str(error)))
            return
        self._send(name, text)

    def _send(self, name: str, text: str) -> None:
        with self._client:
            ui.download.content(text, name)
        self._exported.content = _text(f"{name} is on its way.")

    async def _give_job(self, second: bool | int) -> None:
        await self._give(f"{'b' if second else 'a'}.yaml", answers.job_yaml, self.state.jobs[bool(second)])

    async def _give_csv(self) -> None:
        await self._give("bill.csv", answers.bill_csv, self.state.job)

    def _give_model(self) -> None:
        self._send(MODEL_FILE, self.state.job.model)

    async def _give_report(self) -> None:
        def told(said: str, share: float | None = None) -> None:
            self._exported.content = _text(f"Writing the report: part {said}")

        try:
            page = await self._long(answers.report, self.state.job, told=told)
        except StoppedError:
            self._exported.content = "Stopped."
            return
        except CostModelError as error:
            self._exported.content = ""
            self._say(one_line(str(error)))
            return
        self._send("report.html", page)


def _draw(place: Any, shown: answers.Shown) -> None:
    """Draw the figure of a view, in place of the one before."""
    place.clear()
    if shown.figure is not None:
        with place:
            made = ui.plotly({**shown.figure, "config": _CONFIG}).classes("app-figure").props("role=img")
            made.props["aria-label"] = shown.label


def _text(said: str) -> str:
    return escape(said)


def _asset(name: str) -> str:
    """Return a file that lies beside this module."""
    return (files("costmodel.app") / name).read_text(encoding="utf-8")
