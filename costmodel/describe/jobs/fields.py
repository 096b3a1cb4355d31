"""The one table of names: every field of a job and of a search, once.

Keys of job files, keywords of `costmodel.estimate`, `plan` and `sweep`, flags of the command line,
columns of CSV files, the ranges that are checked, what a search tries, and the table in the README
all follow from `FIELDS`. How a value is read stands in `costmodel.describe.jobs.reading`, once a kind.

Nothing heavy is imported here: ``costmodel --help`` is made from this table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from costmodel.base.errors import choices_hint, near_hint

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
    "share",
    "choices",
]
"""How a value is read. name: a text that a table of its own resolves, or the object that it means; text: only
that; whole, number: within `least` and `most`; word: one of `choices`; truth: true or false; layout: degrees in
one text; order: the axes, innermost first; switches: names and values of the recipe's switches; bytes: an
amount of memory; share: from 0 to below 1, or per cent; choices: names and values of searched fields."""

Group = Literal["job", "layout", "search"]
"""job: what is trained where; layout: how it is spread over the GPUs; search: what `plan` and `sweep` are
told beside a job."""

Turned = Literal["", "placement", "policy"]
"""Whether a search turns a field, and as what: a placement (where ranks sit) or a policy on top of one."""


def _schedules() -> tuple[str, ...]:
    from costmodel.physics.pipeline.schedules import SCHEDULES

    return tuple(SCHEDULES)


def _recompute_policies() -> tuple[str, ...]:
    return RECOMPUTE_POLICIES


def _objectives() -> tuple[str, ...]:
    return OBJECTIVES


RECOMPUTE_POLICIES = ("none", "selective", "full")
OBJECTIVES = ("step-time", "mfu", "tokens-per-dollar", "gpu-hours")
"""What a plan can look for. On one number of GPUs of one cluster all four agree."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field of a job or of a search.

    Attributes
    ----------
    name : str
        Key of a job file, keyword in Python, column of a CSV.
    kind : str
        How a value is read, see `Kind`.
    group : str
        See `Group`.
    meaning : str
        What it says, in the words of every help text and table.
    hint : str
        How it is written, for help texts.
    least, most : float
        Range of a number; what lies outside is refused wherever it comes from.
    default : object
        Value where none is given; none if there is no single one.
    default_text : str
        The default in words where `default` cannot say it.
    required : bool
        Whether a job is incomplete without it.
    unit : str
        Of its numbers; ``text`` and ``bool`` for what is none.
    flag, short : str
        Of the command line; ``--name`` where none is named.
    aliases : tuple of str
        Other names that mean the same in a file, as a keyword and as a flag.
    thousand : float
        What ``k`` stands for, 0 where ``16k`` has two readings and is refused.
    choices : callable
        Returns the words that a word may be; looked up late, because their home needs numpy.
    turned : str
        Whether `plan` searches over it, see `Turned`.
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
    """

    name: str
    kind: Kind
    group: Group
    meaning: str
    hint: str = ""
    least: float = 0.0
    most: float = 0.0
    default: object = None
    default_text: str = ""
    required: bool = False
    unit: str = "-"
    flag: str = ""
    short: str = ""
    aliases: tuple[str, ...] = ()
    thousand: float = 0.0
    choices: Callable[[], tuple[str, ...]] | None = None
    turned: Turned = ""
    several: bool = False
    swept: bool = False
    places: bool = False
    degree: bool = False
    column: bool = False
    slider: bool = False

    @property
    def flags(self) -> tuple[str, ...]:
        """Every flag of the command line that means this field, the preferred one first."""
        first = self.flag or f"--{self.name.replace('_', '-')}"
        others = (f"--{name.replace('_', '-')}" for name in (self.name, *self.aliases))
        return tuple(dict.fromkeys((first, *others)))

    @property
    def words(self) -> tuple[str, ...]:
        """The words it may be, empty where it is none."""
        return self.choices() if self.choices is not None else ()

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
        if self.kind == "number":
            return f"a number from {self.least:g} to {self.most:g}"
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
    "share": "a share from 0 to below 1, such as 10% or 0.1",
    "choices": "a mapping of fields to values, such as {pp: 1, schedule: 1f1b}",
}
_MOST_GPUS = 10_000_000


def _degree(
    name: str, meaning: str, *, most: int = 1_000_000, turned: Turned = "placement", slider: bool = False
) -> Field:
    return Field(
        name=name,
        kind="whole",
        group="layout",
        meaning=meaning,
        least=1,
        most=most,
        default=1,
        turned=turned,
        places=True,
        degree=True,
        column=True,
        slider=slider,
    )


FIELDS: tuple[Field, ...] = (
    Field(
        name="model",
        kind="name",
        group="job",
        meaning="model",
        hint="preset, dense-70b (of any size), model file or HuggingFace config.json",
        required=True,
        unit="text",
        short="-m",
        swept=True,
        column=True,
    ),
    Field(
        name="cluster",
        kind="name",
        group="job",
        meaning="cluster profile",
        hint="name or file",
        default="dgx-h100-ndr",
        unit="text",
        short="-c",
        several=True,
        swept=True,
        places=True,
        column=True,
    ),
    Field(
        name="recipe",
        kind="name",
        group="job",
        meaning="recipe",
        hint="how a framework runs a step",
        default="megatron-core",
        unit="text",
        short="-r",
        swept=True,
        places=True,
        column=True,
    ),
    Field(
        name="precision",
        kind="text",
        group="job",
        meaning="precision of the matrix products",
        hint="bf16, fp16, fp32, fp8 (what Transformer Engine takes on the GPU), fp8-delayed, fp8-current, fp8-block, "
        "mxfp8, mxfp4 or nvfp4",
        default="bf16",
        unit="text",
        several=True,
        swept=True,
        column=True,
    ),
    Field(
        name="gpus",
        kind="whole",
        group="job",
        meaning="GPUs of the job",
        least=1,
        most=_MOST_GPUS,
        required=True,
        short="-n",
        several=True,
        swept=True,
        places=True,
        column=True,
        slider=True,
    ),
    Field(
        name="layout",
        kind="layout",
        group="layout",
        meaning="degrees in one text",
        hint='"tp8 cp1 pp16 vp2"',
        unit="text",
        short="-l",
        places=True,
    ),
    _degree("tp", "tensor-parallel degree", slider=True),
    _degree("cp", "context-parallel degree", slider=True),
    _degree("pp", "pipeline stages", slider=True),
    Field(
        name="dp",
        kind="whole",
        group="layout",
        meaning="data-parallel degree, gpus / (tp·cp·pp)",
        hint="follows from the rest, so a check",
        least=1,
        most=_MOST_GPUS,
        default_text="follows",
        places=True,
        degree=True,
        column=True,
    ),
    _degree("vp", "virtual stages of a pipeline rank", most=10_000, turned="policy"),
    _degree("ep", "expert-parallel degree", slider=True),
    _degree("etp", "tensor-parallel degree of the experts"),
    Field(
        name="micro_batch",
        kind="whole",
        group="layout",
        meaning="sequences of a micro-batch on one data-parallel rank",
        least=1,
        most=1_000_000,
        default=1,
        turned="placement",
        column=True,
        slider=True,
    ),
    Field(
        name="zero_stage",
        kind="whole",
        group="layout",
        meaning="what data parallelism shards: 0 nothing, 1 optimizer, 2 + gradients, 3 + parameters",
        least=0,
        most=3,
        default=1,
        flag="--zero",
        aliases=("zero",),
        turned="policy",
        places=True,
        column=True,
    ),
    Field(
        name="shard_group",
        kind="whole",
        group="layout",
        meaning="ranks that shard together (HSDP), 0 for all of dp·cp",
        least=0,
        most=_MOST_GPUS,
        default=0,
        turned="policy",
        places=True,
        column=True,
    ),
    Field(
        name="recompute",
        kind="word",
        group="layout",
        meaning="activations computed again",
        hint="none, selective or full",
        choices=_recompute_policies,
        default="none",
        unit="text",
        turned="policy",
        column=True,
    ),
    Field(
        name="schedule",
        kind="word",
        group="layout",
        meaning="pipeline schedule",
        hint="gpipe, 1f1b, interleaved, zb-h1, dualpipe …",
        choices=_schedules,
        default_text="1f1b where pp > 1, interleaved where vp > 1 too",
        unit="text",
        turned="policy",
        column=True,
    ),
    Field(
        name="sequence_parallel",
        kind="truth",
        group="layout",
        meaning="norms and residuals are sharded over tp",
        default_text="where tp > 1",
        unit="bool",
        turned="placement",
        places=True,
        column=True,
    ),
    Field(
        name="global_batch",
        kind="whole",
        group="job",
        meaning="sequences a step",
        least=1,
        most=1_000_000_000,
        required=True,
        several=True,
        swept=True,
        column=True,
    ),
    Field(
        name="seq_len",
        kind="whole",
        group="job",
        meaning="tokens of a sequence",
        hint="32k is 32,768",
        least=1,
        most=1_000_000_000,
        required=True,
        thousand=1024.0,
        swept=True,
        column=True,
    ),
    Field(
        name="switches",
        kind="switches",
        group="job",
        meaning="switches of the recipe to change",
        default_text="the recipe's",
        unit="text",
        flag="--set",
        short="-s",
        aliases=("set",),
    ),
    Field(
        name="axis_order",
        kind="order",
        group="job",
        meaning="axes on the machine, innermost first",
        default="tp cp dp pp",
        unit="text",
        several=True,
        swept=True,
        places=True,
    ),
    Field(
        name="slice",
        kind="text",
        group="job",
        meaning="chips of a slice of a torus along each dimension, the first one innermost",
        hint="such as 8x16x16",
        default_text="the box with most joined ends",
        unit="text",
        several=True,
        swept=True,
        places=True,
    ),
    Field(
        name="tokens",
        kind="number",
        group="job",
        meaning="tokens of the whole run, for days and GPU-hours",
        hint="such as 15T or 300B",
        least=1.0,
        most=1e18,
        thousand=1000.0,
    ),
    Field(
        name="pipeline_layout",
        kind="text",
        group="job",
        meaning="layers of every pipeline chunk, as Megatron-LM writes them",
        hint="such as Et*3|(tt|)*29,m|L",
        default_text="as even as it goes",
        unit="text",
    ),
    Field(
        name="offload_optimizer",
        kind="truth",
        group="search",
        meaning="optimizer states on the CPU",
        hint="true, false, or both to choose",
        default_text="the recipe's",
        unit="bool",
        flag="--offload",
        aliases=("offload",),
        several=True,
    ),
    Field(
        name="objective",
        kind="word",
        group="search",
        meaning="what to look for",
        hint="step-time, mfu, tokens-per-dollar or gpu-hours",
        choices=_objectives,
        default="step-time",
        unit="text",
    ),
    Field(
        name="max_memory_bytes",
        kind="bytes",
        group="search",
        meaning="memory limit a GPU beside what the device offers",
        hint="such as 72GiB",
        default_text="the device's",
        unit="B",
        flag="--max-memory",
        aliases=("max_memory",),
    ),
    Field(
        name="headroom",
        kind="share",
        group="search",
        meaning="share of memory to leave free",
        hint="such as 10%",
        default=0.0,
    ),
    Field(
        name="tp_in_domain",
        kind="truth",
        group="search",
        meaning="tensor parallelism stays in the innermost domain",
        default_text="unless values of tp are given",
        unit="bool",
    ),
    Field(
        name="fix",
        kind="choices",
        group="search",
        meaning="fields that are decided",
        hint="pp=1",
        unit="text",
    ),
    Field(
        name="framework",
        kind="text",
        group="search",
        meaning="only what megatron, torchtitan, deepspeed or nemo can launch",
        default_text="any",
        unit="text",
    ),
    Field(
        name="bandwidth_scale",
        kind="number",
        group="search",
        meaning="speed of the tiers outside the innermost over what they are; of sweeps",
        least=1e-6,
        most=1e6,
        default=1.0,
        swept=True,
    ),
)

FIELD = {field.name: field for field in FIELDS}
"""Every field by its name."""

JOB_FIELDS = tuple(field for field in FIELDS if field.group != "search")
"""What a job file, `estimate` and its flags take."""

GRID_FIELDS = tuple(field for field in FIELDS if field.name not in ("layout", "dp", "pipeline_layout"))
PLAN_FIELDS = tuple(field for field in GRID_FIELDS if field.name != "bandwidth_scale")
"""What `plan` takes; the layout is what it finds."""

PLACE_FIELDS = tuple(field for field in FIELDS if field.places)
"""What places ranks, and so what `mesh` takes."""

SWEEP_FIELDS = FIELDS
"""What a point of `sweep` takes: those of a plan, or of an estimate where it names a layout."""

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
