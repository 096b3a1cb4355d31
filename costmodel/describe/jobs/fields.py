"""The one table of names: every field of a job and of a search, once, from ``describe/data/fields.csv``.

Keys of job files, keywords of `costmodel.estimate`, `plan` and `sweep`, flags of the command line,
columns of CSV files, the ranges that are checked, what a search tries, and the table in the README
all follow from `FIELDS`. How a value is read stands in `costmodel.describe.jobs.reading`, once a kind.

Nothing heavy is imported here: ``costmodel --help`` is made from this table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from costmodel.base.csv_text import read_rows
from costmodel.base.errors import choices_hint, near_hint
from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.describe.jobs.field import Field
from costmodel.describe.optimizers import OPTIMIZERS

ANY_FRAMEWORK = "any"
"""The framework that launches everything."""

_LISTS = {"optimizers": ", ".join(OPTIMIZERS), "frameworks": ", ".join(FRAMEWORKS)}
"""What the hints of the table leave to other tables."""
_MARKS = ("required", "several", "swept", "places", "degree", "column", "slider")
_DEFAULTS: dict[str, Callable[[str], Any]] = {"whole": int, "number": float, "truth": "true".__eq__}


def _field(row: dict[str, Any]) -> Field:
    """Read a row of the table."""
    read_default = _DEFAULTS.get(row["kind"], str)
    numbers = {name: float(row[name] or 0) for name in ("least", "most", "thousand")}
    choices = (*FRAMEWORKS, ANY_FRAMEWORK) if row["name"] == "framework" else tuple(row["choices"].split())
    marks = row.pop("marks").split()
    return Field(
        **row
        | numbers
        | {mark: mark in marks for mark in _MARKS}
        | {
            "default": read_default(row["default"]) if row["default"] else None,
            "aliases": tuple(row["aliases"].split()),
            "choices": choices,
            "hint": row["hint"].format(**_LISTS),
        }
    )


FIELDS: tuple[Field, ...] = tuple(map(_field, read_rows(Path(__file__).parents[1] / "data" / "fields.csv")))

FIELD = {field.name: field for field in FIELDS}
"""Every field by its name."""

RECOMPUTE_POLICIES = FIELD["recompute"].choices
OBJECTIVES = FIELD["objective"].choices
"""What a plan can look for. On one number of GPUs of one cluster the first four agree."""
QUANTILES = OBJECTIVES[4:]
"""Step times that a layout does not exceed with that probability, running out of memory being no end."""

JOB_FIELDS = tuple(field for field in FIELDS if field.group in ("job", "layout"))
"""What a job file, `estimate` and its flags take."""

SWEEP_FIELDS = tuple(field for field in FIELDS if field.group in ("job", "layout", "search"))
"""What a point of `sweep` takes: those of a plan, or of an estimate where it names a layout."""

_FOUND = ("layout", "dp", "bandwidth_scale")
PLAN_FIELDS = tuple(field for field in SWEEP_FIELDS if field.name not in _FOUND)
"""What `plan` takes; the layout is what it finds."""

RUN_FIELDS = tuple(field for field in FIELDS if field.group == "run")
"""What a whole run is told beside a job."""

_SOLVED_FOR = (
    "cluster",
    "precision",
    "gpus",
    "dollars",
    "days",
    "price_usd_per_gpu_hour",
    "samples",
    "seed",
    "model",
    "samples_per_prompt",
    "prompt_len",
    "response_len",
)
BUDGET_FIELDS = tuple(field for field in FIELDS if field.name in _SOLVED_FOR or field.group == "solve")
"""What `budget` takes."""

RL_FIELDS = tuple(field for field in FIELDS if field.group == "rl")
"""What a step of reinforcement learning is told beside a job: the section `rl` of a job file."""

LENGTH_FIELDS = tuple(FIELD[name] for name in ("prompt_len", "response_len", "response_quantiles"))
"""What a configuration of reinforcement learning leaves to its data: flags beside a file."""

_SERVED = (
    *("model", "cluster", "gpus", "layout", "precision", "price_usd_per_gpu_hour"),
    *("prompt_len", "response_len", "engine", "memory_fraction", "max_running", "cuda_graphs"),
)
GENERATE_FIELDS = tuple(field for field in FIELDS if field.name in _SERVED or field.group == "generate")
"""What `generate` takes."""

PLACE_FIELDS = tuple(field for field in FIELDS if field.places)
"""What places ranks, and so what `mesh` takes."""


LAYOUT_FIELDS = tuple(field for field in FIELDS if field.column and field.group == "layout")
"""Degrees and choices of a layout, dp among them."""

NUMBER_FIELDS = tuple(field for field in FIELDS if field.column and field.kind in ("whole", "word", "truth"))
"""Fields that an array holds, words as their codes; each has a column in tables of layouts."""

DEGREES = tuple(field.name for field in FIELDS if field.degree)
"""Degrees that a layout text may name."""

KNOBS = tuple(field.name for field in FIELDS if field.turned)
"""Every field that a search may turn."""

REQUIRED = tuple(field.name for field in FIELDS if field.required)
"""What a job has no default for."""

_MEANT = {alias: field.name for field in FIELDS for alias in field.aliases}


def names(fields: Iterable[Field]) -> tuple[str, ...]:
    """Return the names of fields.

    >>> names(field for field in FIELDS if field.required)
    ('model', 'gpus', 'global_batch', 'seq_len')
    """
    return tuple(field.name for field in fields)


def canonical(name: str) -> str:
    """Return the name of a field for an alias; any other text as it is.

    >>> canonical("zero"), canonical("set"), canonical("tp")
    ('zero_stage', 'switches', 'tp')
    """
    return _MEANT.get(name, name)


def unknown_field(name: object, fields: Iterable[Field], thing: str = "field") -> str:
    """Return the end of the message about a name that is no field: the nearest ones, or all.

    >>> unknown_field("gpu", JOB_FIELDS)
    "'gpu' is not a field; did you mean 'gpus'?"
    """
    held = tuple(fields)
    known = [*names(held), *(alias for field in held for alias in field.aliases)]
    near = near_hint(str(name), known)
    return f"{name!r} is not a {thing}; {near or choices_hint('', names(held))}"
