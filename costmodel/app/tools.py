"""What assistants may ask: list, estimate, plan, run, compare and explain, each a function of JSON.

An assistant reads every schema before it asks anything, and every answer whole: schemas name the fields that most jobs
have and take the others by name; an answer is a sentence, the numbers that decide, and the command that says the rest.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any, NamedTuple

import costmodel as cm
from costmodel.app.texts import text_of
from costmodel.base.errors import choices_hint
from costmodel.describe.jobs.fields import FIELD, JOB_FIELDS, PLAN_FIELDS, RUN_FIELDS, Field, names
from costmodel.describe.jobs.job import Job
from costmodel.describe.jobs.layout_text import layout_text
from costmodel.describe.jobs.merge import merge_jobs
from costmodel.describe.jobs.reading import keywords
from costmodel.describe.jobs.short_form import flags_of
from costmodel.interop.answer import JobFile, job_of_file
from costmodel.reporting.summaries import answer_text, largest_memory, largest_time
from costmodel.reporting.training_runs import run_summary

Progress = Callable[[int, int], None]
Record = dict[str, Any]

_MOST_LINES = 25
"""Lines that a name may open up."""
_LARGEST = 6
"""Lines of a bill that an answer shows."""
_WARNINGS = 2
_LAYOUTS = 3

_JOB = ("model", "cluster", "gpus", "layout", "global_batch", "seq_len", "precision", "recipe", "recompute")
_RUN = (FIELD["dollars"], FIELD["days"], *RUN_FIELDS)
_FILE = {
    "file": {"description": "Text of a job file, launch script, trainer's configuration or config.json"},
    "file_name": {"description": "Its name, such as train.sh"},
}


class Reply(NamedTuple):
    """An answer: sentences, and the numbers behind them."""

    text: str
    record: Record


class Tool(NamedTuple):
    """A question that assistants may ask, with the JSON Schema of its arguments; a long one takes `progress`."""

    name: str
    description: str
    schema: Record
    ask: Callable[..., Reply]
    is_long: bool = False


def _schema(fields: Iterable[str], required: Iterable[str] = (), **more: Record) -> Record:
    """Return the JSON Schema of arguments: fields with their first sentence, and what else a tool takes."""
    about = {name: {"description": FIELD[name].help.partition(": ")[0].rstrip(".")} for name in fields}
    return {"type": "object", "properties": {**about, **more}, "required": list(required)}


def _reply(sentences: Iterable[str], line: str, record: Record) -> Reply:
    """Return sentences and numbers, with the command that answers the same."""
    return Reply("\n".join(sentences) or line, {**record, "command": line})


class _Job(NamedTuple):
    """A job as arguments describe it: what a file says, and the fields on top."""

    file: JobFile
    fields: Record

    @property
    def merged(self) -> Record:
        """The keywords of `costmodel.estimate`."""
        return merge_jobs(self.file.keywords, self.fields)

    @property
    def estimate(self) -> cm.Estimate:
        """The estimate of one layout."""
        est = cm.estimate(**self.merged)
        if est.shape:
            raise cm.CostModelError(f"job: expected one layout, got {prod(est.shape)}; give no lists")
        return est

    def command(self, name: str, job: Job, more: Iterable[str] = ()) -> str:
        """Return the command that answers the same."""
        return f"{self.file.command(job, name)} {shlex.join(more)}".rstrip()


def _job_of(given: Mapping[str, Any], fields: Iterable[Field] = JOB_FIELDS, *, layout: bool = True) -> _Job:
    named = {name: value for name, value in given.items() if value is not None}
    text, called = str(named.pop("file", "") or ""), str(named.pop("file_name", "") or "")
    above = keywords(named, fields, who="job")
    if not text:
        return _Job(JobFile({}), above)
    called = called or ("config.json" if text.lstrip().startswith("{") else "file")
    return _Job(*job_of_file(text_of(called, text.encode("utf-8", "replace")), above, layout=layout))


def _flags(fields: Mapping[str, Any]) -> list[str]:
    """Return the words of a command line that give fields these values."""
    return [word for name, value in fields.items() for word in flags_of(name, value)]


def list_names(given: Mapping[str, Any]) -> Reply:
    """Name what a field may be."""
    what = str(given.get("what") or "")
    if what not in _LISTS:
        raise cm.CostModelError(f"what: {what[:60]!r} is no list; {choices_hint(what, _LISTS)}")
    found = list(_LISTS[what]())
    return Reply(f"{len(found)} {what}.", {what: found})


_LISTS: Mapping[str, Callable[[], Iterable[str]]] = {
    "models": cm.list_models,
    "machines": lambda: cm.list_profiles("cluster"),
    "recipes": cm.list_recipes,
    "fields": lambda: names(JOB_FIELDS),
    "search_fields": lambda: names(field for field in PLAN_FIELDS if field not in JOB_FIELDS),
    "run_fields": lambda: names(RUN_FIELDS),
}


def estimate(given: Mapping[str, Any]) -> Reply:
    """Price one step of a job."""
    job = _job_of(given)
    est = job.estimate
    bill = {
        "exposed_seconds": {name: round(seconds, 6) for name, seconds in largest_time(est)[:_LARGEST]},
        "bytes": {name: float(round(size)) for name, size in largest_memory(est)[:_LARGEST]},
        "warnings": list(est.warnings[:_WARNINGS]),
    }
    return _reply(
        [answer_text(est), *est.assumptions, *job.file.remarks],
        job.command("estimate", est.job),
        {**_figures(est), **bill},
    )


def _figures(est: cm.Estimate) -> Record:
    """Return the numbers that decide: time, memory and how sure they are."""
    return {
        "layout": layout_text(est.job.layout),
        "step_time_s": float(est.step_time_s),
        "step_time_80pct_s": list(est.range_s),
        "mfu": round(float(est.mfu), 4),
        "tokens_per_s_per_gpu": round(float(est.tokens_per_s_per_gpu), 1),
        "memory_bytes_per_gpu": float(est.memory_bytes_per_gpu),
        "memory_capacity_bytes": float(est.memory_capacity_bytes),
        "fits": bool(est.fits),
        "fits_probability": round(float(est.fits_probability), 3),
    }


def plan(given: Mapping[str, Any], *, progress: Progress) -> Reply:
    """Find the best layout of a job."""
    job = _job_of(given, PLAN_FIELDS, layout=False)
    found = cm.plan(job=job.file, **job.fields, progress=progress)
    record = found.to_dict(count=_LAYOUTS, gains=())
    shown = ("rank", "step_time_s", "mfu", "memory_bytes_per_gpu", "fits_probability")
    yours = record["yours"]
    return _reply(
        [found.advice()[0], *found.assumptions],
        shlex.join(
            ["costmodel", "plan", *filter(None, [job.file.path]), *job.file.words, *_flags(job.fields)]
        ),
        {
            "layouts_considered": record["num_layouts_considered"],
            "top": [{name: row[name] for name in (*shown, "command")} for row in record["top"]],
            **({"yours": {name: yours.get(name) for name in shown}} if yours else {}),
        },
    )


def run(given: Mapping[str, Any]) -> Reply:
    """Price a whole training run: days, dollars, energy, and what failures take."""
    job = _job_of(given, (*JOB_FIELDS, *_RUN))
    found = cm.run(**job.merged)
    own = {name: value for name, value in job.fields.items() if name in names(_RUN)}
    record = found.to_dict()
    shown = ("tokens", "steps", "days", "dollars", "price_note", "gpu_hours", "energy_kwh", "tonnes_co2")
    lost = {name: round(hours, 1) for name, hours in found.lost_gpu_hours().items() if hours > 0}
    return _reply(
        [run_summary(found).grids[0].title, *found.est.assumptions, *job.file.remarks],
        job.command("run", found.est.job, _flags(own)),
        {
            **_figures(found.est),
            **{name: record[name] for name in shown},
            "days_p10_p90": [round(float(end), 2) for end in found.spread(10, 90)["days"]],
            "interruptions": record["interruptions"],
            "lost_gpu_hours": lost,
        },
    )


def compare(given: Mapping[str, Any]) -> Reply:
    """Lay the bills of two jobs side by side; the second is what it has otherwise."""
    unknown = sorted(given.keys() - {"first", "second"})
    if unknown or not all(isinstance(given.get(name), Mapping) for name in ("first", "second")):
        raise cm.CostModelError("compare: expected first and second, each an object with fields of a job")
    first, more = (_job_of(given[name]) for name in ("first", "second"))
    second = _Job(more.file if more.file.path else first.file, merge_jobs(first.fields, more.fields))
    ests = [job.estimate for job in (first, second)]
    found = cm.compare(*ests, labels=("first", "second"))
    record = found.to_dict()
    moved = sorted(record["lines"], key=lambda line: -abs(line["differences"][1]))
    by_bill: dict[str, dict[str, float]] = {"time": {}, "memory": {}}
    for line in moved:
        if line["bill"] in by_bill and len(by_bill[line["bill"]]) < _LARGEST:
            by_bill[line["bill"]][line["name"]] = float(line["differences"][1])
    shown = ("step_time_s", "mfu", "memory_bytes_per_gpu", "fits")
    return _reply(
        [*found.remarks()[:1], *ests[0].assumptions],
        "\n".join(job.command("estimate", est.job) for job, est in zip((first, second), ests, strict=True)),
        {
            "jobs": [{name: job[name] for name in shown} for job in record["jobs"]],
            "seconds_more": by_bill["time"],
            "bytes_more": by_bill["memory"],
        },
    )


def explain(given: Mapping[str, Any]) -> Reply:
    """Open up a line of the bill, or name those that begin so."""
    line = str(given.get("line") or "")
    if not line:
        raise cm.CostModelError(
            "line: missing; give the name of a line of the bill, or how several begin, such as tp."
        )
    job = _job_of({name: value for name, value in given.items() if name != "line"})
    est = job.estimate
    found = est.explain(line)
    if len(found) > _MOST_LINES:
        shown = ", ".join(each.name for each in found[:_MOST_LINES])
        raise cm.CostModelError(
            f"line: {len(found)} lines begin with {line!r}, at most {_MOST_LINES} are shown: {shown} …"
        )
    opened = job.command("explain", est.job, ("--line", line))
    if len(found) > 1:
        totals = {each.name: float(each.total) for each in found}
        return _reply(
            [f"{len(found)} lines begin so; ask for one.", *est.assumptions], opened, {"totals": totals}
        )
    (only,) = found.to_dict()["lines"]
    steps = [
        f"{step['name'] or 'each'} = {step['with_numbers']} = {step['value']:.4g}" for step in only["steps"]
    ]
    record = {name: only[name] for name in ("name", "total", "times", "each", "share", "source")}
    return _reply(est.assumptions, opened, {**record, "steps": steps})


_SECOND = {
    "first": {"type": "object", "description": "A job, as estimate takes it"},
    "second": {"type": "object", "description": "What the second has otherwise"},
}
TOOLS = (
    Tool(
        "list",
        "Name what may be asked about: models, machines, recipes, and fields beyond those that schemas name.",
        _schema((), ("what",), what={"enum": list(_LISTS)}),
        list_names,
    ),
    Tool(
        "estimate",
        "Price one training step of an LLM on a GPU cluster: step time, MFU, memory per GPU, whether it fits, and the "
        "largest lines. Every other field of a job is taken too (list: fields).",
        _schema((*_JOB, "zero_stage", "switches"), **_FILE),
        estimate,
    ),
    Tool(
        "plan",
        "Find the best parallel layout (tp, pp, cp, ep, ZeRO, recomputation, micro-batch) of a training job. Fields that are "
        "given are kept to; a knob may be a list of values to try (list: search_fields).",
        _schema((*(name for name in _JOB if name != "layout"), "objective", "framework"), **_FILE),
        plan,
        is_long=True,
    ),
    Tool(
        "run",
        "Price a whole training run with failures: days, dollars, energy, CO2. A job, and how far to train (list: run_fields).",
        _schema((*_JOB, "tokens", "days", "dollars"), **_FILE),
        run,
    ),
    Tool(
        "compare",
        "Lay the bills of two training jobs side by side: what moved, and by how much.",
        _schema((), ("first", "second"), **_SECOND),
        compare,
    ),
    Tool(
        "explain",
        "Open up a line of a job's bill, as estimate names it: its formula with the numbers put in, and its source.",
        _schema(_JOB, ("line",), line={"description": "A line, or how several begin, such as tp."}, **_FILE),
        explain,
    ),
)
"""All of them; every answer names the command that says the same."""
