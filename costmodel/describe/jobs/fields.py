"""The one table of names: every field of a job and of a search, once, from ``describe/data/fields.csv``.

Keys of job files, keywords of `costmodel.estimate`, `plan` and `sweep`, flags of the command line,
columns of CSV files, the ranges that are checked, what a search tries, and the table in the README
all follow from `FIELDS`. How a value is read stands in `costmodel.describe.jobs.reading`, once a kind.

Nothing heavy is imported here: ``costmodel --help`` is made from this table.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from costmodel.base.csv_text import read_rows
from costmodel.base.errors import choices_hint, near_hint
from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.describe.optimizers import OPTIMIZERS

_Call = TypeVar("_Call", bound=Callable[..., Any])
ANY_FRAMEWORK = "any"
"""The framework that launches everything."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field of a job or of a search: a row of ``describe/data/fields.csv``."""

    name: str  # Key of a job file, keyword in Python, column of a CSV
    group: str
    """job: what is trained where; layout: how it is spread over the GPUs; search, run, rl: what `plan` and `sweep`, a
    whole run, a step of reinforcement learning take beside a job; solve: money and time to solve for; generate, look:
    other commands."""
    kind: str  # How a value is read: a name in `costmodel.describe.jobs.reading`
    unit: str  # Of its numbers; ``text`` and ``bool`` for what is none
    least: float
    most: float  # Range of a number; what lies outside is refused wherever it comes from
    default: object
    default_text: str
    """Value where none is given, none if there is no single one; and in words what `default` cannot say."""
    thousand: float  # What ``k`` stands for, 0 where ``16k`` has two readings and is refused
    flag: str
    short: str  # Of the command line; ``--name`` where none is named
    aliases: tuple[str, ...]  # Other names that mean the same in a file, as a keyword and as a flag
    tuned: str  # How a search turns it: a placement (where ranks sit), a policy on top of one, or empty
    choices: tuple[str, ...]  # The words that a word may be, where the table lists them
    meaning: str
    hint: str  # What it says, and how it is written, in the words of every help text
    marks: frozenset[str]
    """required: a job is incomplete without it; several: `plan` takes several values at once; swept: a list of it makes
    a point each of a `sweep`; places: it says where ranks sit; degree: a layout text may name it; column: tables of
    layouts have it; slider: the page about a job has one; budget, served: `budget` and `generate` take it too."""

    def __getattr__(self, name: str) -> bool:
        """Whether it has a mark."""
        if name not in _MARKS:
            raise AttributeError(name)
        return name in self.marks

    @property
    def flags(self) -> tuple[str, ...]:
        """Every flag of the command line that means this field, the preferred one first."""
        first = self.flag or f"--{self.name.replace('_', '-')}"
        others = (f"--{name.replace('_', '-')}" for name in (self.name, *self.aliases))
        return tuple(dict.fromkeys((first, *others)))

    @property
    def words(self) -> tuple[str, ...]:
        """The words it may be, empty where it is none."""
        if self.name == "schedule":  # late: its table needs numpy, which `--help` does not pay for
            from costmodel.physics.pipeline.schedule_table import SCHEDULES

            return tuple(SCHEDULES)
        return self.choices

    @property
    def shown_default(self) -> str:
        """Its default in words, empty where there is none."""
        if self.default_text or self.default is None:
            return self.default_text
        return str(self.default).lower() if isinstance(self.default, bool) else str(self.default)

    @property
    def allowed(self) -> str:
        """What it takes, for the message that refuses something else."""
        if self.kind == "whole":
            return f"a whole number from {self.least:,.0f} to {self.most:,.0f}"
        if self.unit == "d":
            return f"days from {self.least:g} to {self.most:g}, or a time such as 24h or 6 weeks"
        if self.kind in ("number", "price"):
            return f"a number from {self.least:g} to {self.most:g}"
        if self.kind == "time":
            return f"a time from {self.least:g} s to {self.most:g} s, such as 90s, 15min, 3h or 2d"
        if self.kind == "share" and self.least:
            return f"a share from {self.least:.1%} to below 100%, {self.hint}"
        if self.kind == "word":
            return f"one of {', '.join(self.words)}"
        return _ALLOWED[self.kind]

    @property
    def help(self) -> str:
        """The meaning as a sentence, with how it is written."""
        stated = f"{self.meaning[0].upper()}{self.meaning[1:]}"
        return f"{stated}: {self.hint}." if self.hint else f"{stated}."


_ALLOWED: dict[str, str] = {
    "name": "a text",
    "text": "a text",
    "truth": "true or false",
    "layout": "degrees in one text, such as 'tp8 cp1 pp16 vp2'",
    "order": "the axes, innermost first, such as 'tp cp dp pp'",
    "switches": "a mapping of switches",
    "bytes": "an amount of memory such as 72GiB",
    "rate": "a rate such as 100GB/s",
    "share": "a share from 0 to below 1, such as 10% or 0.1",
    "hardware": "a mapping of names to quantities, such as {tdp: 500 W}",
    "choices": "a mapping of fields to values, such as {pp: 1, schedule: 1f1b}",
}

_LISTS = {"optimizers": ", ".join(OPTIMIZERS), "frameworks": ", ".join(FRAMEWORKS)}
"""What the hints of the table leave to other tables."""
_MARKS = ("required", "several", "swept", "places", "degree", "column", "slider", "budget", "served")
_DEFAULTS: dict[str, Callable[[str], Any]] = {"whole": int, "number": float, "truth": "true".__eq__}


def _field(row: dict[str, Any]) -> Field:
    """Read a row of the table."""
    read_default = _DEFAULTS.get(row["kind"], str)
    row |= {name: float(row[name] or 0) for name in ("least", "most", "thousand")}
    row["choices"] = (*FRAMEWORKS, ANY_FRAMEWORK) if row["name"] == "framework" else row["choices"].split()
    return Field(
        **row
        | {
            "default": read_default(row["default"]) if row["default"] else None,
            "aliases": tuple(row["aliases"].split()),
            "choices": tuple(row["choices"]),
            "hint": row["hint"].format(**_LISTS),
            "marks": frozenset(row["marks"].split()),
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


def _of(*groups: str, mark: str = "") -> tuple[Field, ...]:
    """Return the fields of some groups, and those with a mark."""
    return tuple(field for field in FIELDS if field.group in groups or mark in field.marks)


JOB_FIELDS = _of("job", "layout")
"""What a job file, `estimate` and its flags take."""

SWEEP_FIELDS = _of("job", "layout", "search")
"""What a point of `sweep` takes: those of a plan, or of an estimate where it names a layout."""

PLAN_FIELDS = tuple(field for field in SWEEP_FIELDS if field.name not in ("layout", "dp", "bandwidth_scale"))
"""What `plan` takes; the layout is what it finds."""

RUN_FIELDS = _of("run")
"""Fields of a whole run besides those of a job."""

BUDGET_FIELDS = _of("solve", mark="budget")
"""What `budget` takes."""

RL_FIELDS = _of("rl")
"""Fields of a step of reinforcement learning besides those of a job: the section `rl` of a job file."""

ANSWER_LENGTHS = ("response_len", "response_quantiles", "response_file")
"""Ways to say how long answers are, of which a job has one."""

LENGTH_FIELDS = tuple(
    FIELD[name] for name in ("prompt_len", "response_len", "response_quantiles", "acceptance_length")
)
"""What a configuration of reinforcement learning leaves to its data: flags beside a file."""

GENERATE_FIELDS = _of("generate", mark="served")
"""What `generate` takes."""

PLACE_FIELDS = _of(mark="places")
"""What places ranks, and so what `mesh` takes."""

LAYOUT_FIELDS = tuple(field for field in FIELDS if field.column and field.group == "layout")
"""Degrees and choices of a layout, dp among them."""

NUMBER_FIELDS = tuple(field for field in FIELDS if field.column and field.kind in ("whole", "word", "truth"))
"""Fields that an array holds, words as their codes; each has a column in tables of layouts."""


def names(fields: Iterable[Field]) -> tuple[str, ...]:
    """Return the names of fields.

    >>> names(field for field in FIELDS if field.required)
    ('model', 'gpus', 'global_batch', 'seq_len')
    """
    return tuple(field.name for field in fields)


DEGREES = names(_of(mark="degree"))
"""Degrees that a layout text may name."""

KNOBS = names(field for field in FIELDS if field.tuned)
"""Every field that a search may turn."""

REQUIRED = names(_of(mark="required"))
"""What a job has no default for."""

_MEANT = {alias: field.name for field in FIELDS for alias in field.aliases}


def canonical(name: str) -> str:
    """Return the name of a field for an alias; any other text as it is."""
    return _MEANT.get(name, name)


def unknown_field(name: object, fields: Iterable[Field], thing: str = "field") -> str:
    """Return the end of the message about a name that is no field: the nearest ones, or all."""
    listed = tuple(fields)
    known = [*names(listed), *(alias for field in listed for alias in field.aliases)]
    near = near_hint(str(name), known)
    if name in names(RL_FIELDS):
        return f"{name!r} is of reinforcement learning (section rl), which only estimate, plan and run price"
    return f"{name!r} is not a {thing}; {near or choices_hint('', names(listed))}"


def known_words(name: str) -> tuple[str, ...]:
    """Return the words that a field may be, or that it may begin with, for a shell and a page to offer; empty for numbers."""
    # The tables are loaded late, as a shell asks for one field.
    match name:
        case "model":
            from costmodel.describe.models.model_files import list_models

            return list_models()
        case "cluster":
            from costmodel.describe.hardware.hardware import list_profiles

            return tuple(list_profiles("cluster"))
        case "recipe":
            from costmodel.describe.recipe import list_recipes

            return list_recipes()
        case "precision":
            from costmodel.describe.precision import PRECISIONS

            return ("fp8", *PRECISIONS)
        case "optimizer":
            return tuple(OPTIMIZERS)
        case "switches":
            from costmodel.describe.switch_table import SWITCHES

            return tuple(
                f"{each}={word}" for each, switch in SWITCHES.items() for word in ("", *switch.words)
            )
        case "hw":
            from costmodel.describe.hardware.changed import NUMBERS

            return tuple(f"{each}=" for each in NUMBERS)
        case _:
            return FIELD[name].words


def shows(fields: Iterable[Field], *, searched: bool = False) -> Callable[[_Call], _Call]:
    """Give a call the names and defaults of its ``**keywords``; `searched` shows no default of what a search turns."""

    def default(field: Field) -> object:
        if field.required:
            return inspect.Parameter.empty  # the mark of a keyword that must be given
        return None if searched and field.tuned else field.default

    def decorate(call: _Call) -> _Call:
        signature = inspect.signature(call)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        more = [
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default(field))
            for field in fields
            if field.name not in signature.parameters
        ]
        setattr(call, "__signature__", signature.replace(parameters=[*own, *more]))  # noqa: B010
        return call

    return decorate
