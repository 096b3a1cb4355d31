"""What assistants may ask: estimate, plan, explain and compare, each a function of JSON.

Arguments are fields of the table of fields under their names, with numbers, texts, lists or mappings as JSON has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import costmodel as cm
from costmodel.app.asked import (
    Texts,
    command,
    job_keywords,
    known_fields,
    laid_over,
    plan_keywords,
)
from costmodel.app.uploads import read_upload
from costmodel.base.grid import Grid
from costmodel.base.screen import drawn
from costmodel.describe.jobs.field import Field
from costmodel.describe.jobs.fields import JOB_FIELDS, PLAN_FIELDS
from costmodel.describe.jobs.merge import assumed_recipe, names_no_degree
from costmodel.describe.schemas import one_of_field
from costmodel.planning.beside import Beside

Progress = Callable[[int, int], None]
Schema = dict[str, Any]

_LINES = 25
_LAYOUTS = 5
_FILE = {
    "file": {
        "type": "string",
        "description": "Text of a job file, a launch script, another program's configuration, or a config.json of a "
        "model; the fields given go on top of it. Files of the machine are not read.",
    },
    "file_name": {"type": "string", "description": "Name of that file, such as config.json or train.sh."},
}


@dataclass(frozen=True)
class Reply:
    """An answer: tables as text, and the numbers behind them."""

    text: str
    record: dict[str, Any]


@dataclass(frozen=True)
class Tool:
    """A question that assistants may ask.

    Attributes
    ----------
    name, description : str
        What it is called, and when to use it.
    schema : mapping
        JSON Schema of its arguments.
    ask : callable
        Answers.
    is_long : bool
        Whether it searches, and so takes a keyword `progress`.
    """

    name: str
    description: str
    schema: Schema
    ask: Callable[..., Reply]
    is_long: bool = False


def _schema(fields: Iterable[Field], **more: Schema) -> Schema:
    """Return the JSON Schema of arguments: some fields, and what else a tool takes."""
    properties = {field.name: _of_field(field) for field in fields}
    return {"type": "object", "properties": {**properties, **more}, "additionalProperties": False}


def _of_field(field: Field) -> Schema:
    """Return what a field takes, switches without the long list of their names (`costmodel recipe show` has it)."""
    if field.kind in ("switches", "choices", "hardware"):
        return {"type": "object", "description": field.help}
    if field.turned or field.several:
        one = one_of_field(field)
        return {**one, "anyOf": [*one["anyOf"], {"type": "array", "items": {"anyOf": one["anyOf"]}}]}
    return one_of_field(field)


def _job_of(given: Mapping[str, Any]) -> Texts:
    """Return the job that arguments describe: fields on top of a file's.

    Raises
    ------
    CostModelError
        If a name is no field, or the file cannot be read.
    """
    told = dict(given)
    below, _ = _file_of(told)
    fields = known_fields({key: value for key, value in told.items() if value is not None}, JOB_FIELDS, "job")
    return laid_over(below, Texts(fields))


def _file_of(told: dict[str, Any]) -> tuple[Texts, str]:
    """Take the file out of arguments and return what it says, and what it is called.

    Raises
    ------
    CostModelError
        If it cannot be read.
    """
    text, called = str(told.pop("file", "") or ""), str(told.pop("file_name", "") or "")
    if not text:
        return Texts(), ""
    named = called or ("config.json" if text.lstrip().startswith("{") else "file")
    return read_upload(named, text.encode("utf-8", "replace")).job, named


def estimate(given: Mapping[str, Any]) -> Reply:
    """Price one step of a job.

    Raises
    ------
    CostModelError
        As the command line has it.
    """
    job = _job_of(given)
    est = cm.estimate(**(asked := job_keywords(job)))
    assumed = (
        [Beside(est).sentences[0], "The tool plan finds the best layout."] if names_no_degree(asked) else []
    )
    record = est.to_dict()
    lines = sorted(record["lines"], key=lambda line: -line["exposed_seconds"])[:_LINES]
    kept = {key: value for key, value in record.items() if not isinstance(value, list | dict)}
    return _reply(
        est.grids(),
        [*assumed, *assumed_recipe(asked, named_by="the field recipe"), *est.remarks()],
        command("estimate", job),
        {
            **kept,
            "lines": [
                {key: line[key] for key in ("name", "axis", "toll", "exposed_seconds")} for line in lines
            ],
            "warnings": list(est.warnings),
        },
    )


def explain(given: Mapping[str, Any]) -> Reply:
    """Open up a line of the bill, or all whose names begin so.

    Raises
    ------
    CostModelError
        As the command line has it.
    """
    told = dict(given)
    line = str(told.pop("line", "") or "")
    if not line:
        raise cm.CostModelError(
            "line: missing; give the name of a line of the bill, or how several begin, such as tp."
        )
    job = _job_of(told)
    found = cm.estimate(**job_keywords(job)).explain(line)
    if len(found) > _LINES:
        shown = ", ".join(each.name for each in found[:_LINES])
        raise cm.CostModelError(
            f"line: {len(found)} lines begin with {line!r}, at most {_LINES} are shown: {shown} …"
        )
    return _reply(found.grids(), found.remarks(), command("explain", job, ("--line", line)), found.to_dict())


def compare(given: Mapping[str, Any]) -> Reply:
    """Lay the bills of two jobs side by side; the second is told by what it has otherwise.

    Raises
    ------
    CostModelError
        As the command line has it.
    """
    unknown = sorted(given.keys() - {"first", "second"})
    if unknown or not all(isinstance(given.get(name), Mapping) for name in ("first", "second")):
        raise cm.CostModelError("compare: expected first and second, each an object with fields of a job")
    first = _job_of(given["first"])
    second = laid_over(first, _job_of(given["second"]))
    found = cm.compare(
        *(cm.estimate(**job_keywords(job)) for job in (first, second)), labels=("first", "second")
    )
    record = found.to_dict()
    moved = sorted(record["lines"], key=lambda line: -abs(line["differences"][1]))
    lines = [
        line
        for kind in ("time", "memory")
        for line in [each for each in moved if each["bill"] == kind][:_LINES]
    ]
    return _reply(
        found.grids(),
        found.remarks(),
        f"{command('estimate', first)}\n{command('estimate', second)}",
        {"jobs": record["jobs"], "lines": lines},
    )


def plan(given: Mapping[str, Any], *, progress: Progress) -> Reply:
    """Find the best layout of a job.

    Raises
    ------
    CostModelError
        As the command line has it; also where no layout is left.
    """
    told = {name: value for name, value in given.items() if value is not None}
    below, called = _file_of(told)
    asked = known_fields(told, PLAN_FIELDS, "plan")
    found = cm.plan(**plan_keywords(below, asked, called), progress=progress)
    record = found.to_dict(count=_LAYOUTS)
    kept = (
        "objective",
        "held",
        "num_layouts_considered",
        "num_layouts_priced",
        "num_layouts_fit",
        "top",
        "yours",
        "advice",
    )
    return _reply(
        found.grids(count=_LAYOUTS, commands=True),
        found.remarks(),
        command("plan", Texts(), search=asked, file=called),
        {key: record[key] for key in kept},
    )


def _reply(grids: Sequence[Grid], remarks: Sequence[str], line: str, record: dict[str, Any]) -> Reply:
    """Return tables and sentences as text, with the command that answers the same."""
    tables = drawn(grids, [])
    return Reply("\n".join([tables, *remarks, "", f"The same: {line}"]), {**record, "command": line})


_SECOND = {
    "type": "object",
    "description": "The second job: only what it has otherwise than the first.",
    "additionalProperties": True,
}

TOOLS = (
    Tool(
        "estimate",
        "Price one training step of an LLM on a GPU cluster: step time, MFU, memory per GPU and whether it fits, with the "
        "lines that they add up from. Give model, gpus, global_batch and seq_len, and what else is known.",
        _schema(JOB_FIELDS, **_FILE),
        estimate,
    ),
    Tool(
        "plan",
        "Find the best parallel layout (tp, pp, cp, ep, ZeRO, recomputation, micro-batch) of a training job by pricing every "
        "one that divides; knobs that are given are kept to, and may be lists of values to try.",
        _schema(PLAN_FIELDS, **_FILE),
        plan,
        is_long=True,
    ),
    Tool(
        "explain",
        "Open up a line of a job's bill: its formula with the numbers put in, units and source. Names of lines are those that "
        "estimate shows, with their axis in front, such as tp.mlp.all_gather.forward.",
        _schema(
            JOB_FIELDS,
            line={"type": "string", "description": "A line, or the beginning of several names such as tp."},
            **_FILE,
        ),
        explain,
    ),
    Tool(
        "compare",
        "Lay the bills of two training jobs side by side: what moved, by how much, and why.",
        {
            "type": "object",
            "properties": {"first": _schema(JOB_FIELDS, **_FILE), "second": _SECOND},
            "required": ["first", "second"],
            "additionalProperties": False,
        },
        compare,
    ),
)
"""All of them; every answer names the command that says the same."""
