"""One record a field: its name everywhere, how it is read, its range, and who takes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "name",
    "text",
    "whole",
    "number",
    "word",
    "truth",
    "layout",
    "order",
    "switches",
    "bytes",
    "rate",
    "time",
    "share",
    "choices",
    "price",
    "hardware",
]
"""How a value is read. name: a text that a table of its own resolves, or the object that it means; text: only
that; whole, number: within `least` and `most`; word: one of `choices`; truth: true or false; layout: degrees in
one text; order: the axes, innermost first; switches: names and values of the recipe's switches; bytes, rate,
time: a number in SI units or a text with a unit; share: from 0 to below 1, or per cent; choices: names and values
of searched fields; price: a number of dollars, or one a cluster; hardware: names and quantities."""

Group = Literal["job", "layout", "search", "run", "solve", "look", "rl", "generate"]
"""job: what is trained where; layout: how it is spread over the GPUs; search: what `plan` and `sweep` are
told beside a job; run: what a whole run is told; solve: money and time to solve for; look: other commands; rl: what
a step of reinforcement learning is told beside a job."""

Turned = Literal["", "placement", "policy"]
"""Whether a search turns a field, and as what: a placement (where ranks sit) or a policy on top of one."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field of a job or of a search: a row of ``describe/data/fields.csv``.

    Attributes
    ----------
    name : str
        Key of a job file, keyword in Python, column of a CSV.
    group, kind, turned : str
        See `Group`, `Kind` and `Turned`.
    unit : str
        Of its numbers; ``text`` and ``bool`` for what is none.
    least, most : float
        Range of a number; what lies outside is refused wherever it comes from.
    default : object
        Value where none is given; none if there is no single one.
    default_text : str
        The default in words where `default` cannot say it.
    thousand : float
        What ``k`` stands for, 0 where ``16k`` has two readings and is refused.
    flag, short : str
        Of the command line; ``--name`` where none is named.
    aliases : tuple of str
        Other names that mean the same in a file, as a keyword and as a flag.
    required : bool
        Whether a job is incomplete without it.
    several : bool
        Whether `plan` takes several values at once (a field that is turned always does).
    swept : bool
        Whether a list of it makes a point each of a `sweep`.
    places : bool
        Whether it says where ranks sit, so that `mesh` reads it.
    degree : bool
        Whether a layout text may name it.
    column : bool
        Whether tables of layouts have a column of it.
    slider : bool
        Whether the page about a job has a slider for it.
    choices : tuple of str
        The words that a word may be, where the table lists them.
    meaning, hint : str
        What it says, and how it is written, in the words of every help text.
    """

    name: str
    group: Group
    kind: Kind
    unit: str
    least: float
    most: float
    default: object
    default_text: str
    thousand: float
    flag: str
    short: str
    aliases: tuple[str, ...]
    turned: Turned
    required: bool
    several: bool
    swept: bool
    places: bool
    degree: bool
    column: bool
    slider: bool
    choices: tuple[str, ...]
    meaning: str
    hint: str

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
    def default_said(self) -> str:
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
        if self.kind == "word":
            return f"one of {', '.join(self.words)}"
        return _ALLOWED[self.kind]

    @property
    def help(self) -> str:
        """The meaning as a sentence, with how it is written."""
        said = f"{self.meaning[0].upper()}{self.meaning[1:]}"
        return f"{said}: {self.hint}." if self.hint else f"{said}."


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
