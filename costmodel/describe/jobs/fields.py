"""The one table of names: every field of a job and of a search, once.

Keys of job files, keywords of `costmodel.estimate`, `plan` and `sweep`, flags of the command line,
columns of CSV files, the ranges that are checked, what a search tries, and the table in the README
all follow from `FIELDS`. How a value is read stands in `costmodel.describe.jobs.reading`, once a kind.

Nothing heavy is imported here: ``costmodel --help`` is made from this table.
"""

from __future__ import annotations

from collections.abc import Iterable

from costmodel.base.errors import choices_hint, near_hint
from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.describe.jobs.field import Field, Group, Turned
from costmodel.describe.optimizers import OPTIMIZERS


def _schedules() -> tuple[str, ...]:
    from costmodel.physics.pipeline.schedule_table import SCHEDULES

    return tuple(SCHEDULES)


def _ways_to_checkpoint() -> tuple[str, ...]:
    from costmodel.describe.reliability import CHECKPOINTING

    return CHECKPOINTING


def _base_dtypes() -> tuple[str, ...]:
    from costmodel.describe.jobs.tuning import BASE_DTYPES

    return BASE_DTYPES


def _recompute_policies() -> tuple[str, ...]:
    return RECOMPUTE_POLICIES


def _objectives() -> tuple[str, ...]:
    return OBJECTIVES


def _frameworks() -> tuple[str, ...]:
    return (*FRAMEWORKS, ANY_FRAMEWORK)


RECOMPUTE_POLICIES = ("none", "selective", "full")
ANY_FRAMEWORK = "any"
"""The framework that launches everything."""
QUANTILES = ("p50", "p75", "p90", "p95")
"""Step times that a layout does not exceed with that probability, running out of memory being no end."""
OBJECTIVES = ("step-time", "mfu", "tokens-per-dollar", "gpu-hours", *QUANTILES)
"""What a plan can look for. On one number of GPUs of one cluster the first four agree."""


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


def _number(
    name: str,
    meaning: str,
    least: float,
    most: float,
    default: float | str = "",
    *,
    group: Group = "run",
    unit: str = "-",
    flag: str = "",
) -> Field:
    said = default if isinstance(default, str) else ""
    value = None if isinstance(default, str) else default
    return Field(
        name=name,
        kind="number",
        group=group,
        meaning=meaning,
        least=least,
        most=most,
        default=value,
        default_text=said,
        unit=unit,
        flag=flag,
    )


def _whole(name: str, meaning: str, least: int, most: int) -> Field:
    return Field(name=name, kind="whole", group="look", meaning=meaning, least=least, most=most)


def _time(name: str, meaning: str, default: str, *, least: float = 0.0) -> Field:
    return Field(
        name=f"{name}_s",
        kind="time",
        group="run",
        meaning=meaning,
        least=least,
        most=1e9,
        default_text=default,
        unit="s",
        flag=f"--{name.replace('_', '-')}",
        aliases=(name,),
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
        default_text="megatron-core; maxtext-tpu on TPUs, neuronx-distributed on Trainium",
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
        "mxfp8, mxfp4, nvfp4 or int8 (AQT on TPUs)",
        default="bf16",
        unit="text",
        several=True,
        swept=True,
        column=True,
    ),
    Field(
        name="optimizer",
        kind="text",
        group="job",
        meaning="what steps the parameters",
        hint=", ".join(OPTIMIZERS),
        default="adamw",
        unit="text",
        several=True,
        swept=True,
        column=True,
    ),
    Field(
        name="lora_rank",
        kind="whole",
        group="job",
        meaning="rank of low-rank adapters on a frozen base, 0 to train the base",
        least=0,
        most=65_536,
        default=0,
        swept=True,
    ),
    Field(
        name="lora_targets",
        kind="text",
        group="job",
        meaning="layers with an adapter",
        hint="q, k, v, o, gate, up, down; qkv and fc1 for one adapter of fused layers; experts, mixer; attention, mlp, all; "
        "magnitude for DoRA",
        default_text="all but experts",
        unit="text",
    ),
    Field(
        name="base_dtype",
        kind="word",
        group="job",
        meaning="dtype in which frozen layers lie",
        hint="bf16, fp8 or nf4 (QLoRA)",
        choices=_base_dtypes,
        default="bf16",
        unit="text",
        swept=True,
    ),
    Field(
        name="frozen",
        kind="text",
        group="job",
        meaning="parts without gradients where there are no adapters",
        hint="embedding, attention, mixer, mlp, router, experts, head",
        default_text="none",
        unit="text",
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
        name="packed_len",
        kind="whole",
        group="job",
        meaning="mean tokens of a document where several are packed into a sequence, 0 for one a sequence",
        least=0,
        most=1_000_000_000,
        default=0,
        thousand=1024.0,
        swept=True,
    ),
    Field(
        name="packed_spread",
        kind="number",
        group="job",
        meaning="standard deviation of the length of documents over its mean",
        least=0.0,
        most=10.0,
        default=0.0,
        swept=True,
    ),
    Field(
        name="dataset_samples",
        kind="whole",
        group="job",
        meaning="samples of a data set, for the tokens of the whole run",
        hint="such as 52k",
        least=1,
        most=10**15,
        thousand=1000.0,
    ),
    Field(
        name="epochs",
        kind="number",
        group="job",
        meaning="passes over the data set",
        least=1e-3,
        most=1e6,
        default=1.0,
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
        places=True,
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
        name="site",
        kind="name",
        group="job",
        meaning="what your own runs say of the model's constants",
        hint="a file that calibrate runs wrote",
        default_text="the shipped spreads alone",
        unit="text",
    ),
    Field(
        name="slice",
        kind="text",
        group="job",
        meaning="chips of a slice of a torus along each dimension, the first one innermost",
        hint="such as 8x16x16",
        default_text="all ends joined, else most like a cube",
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
        name="price_usd_per_gpu_hour",
        kind="price",
        group="job",
        meaning="price of a GPU-hour (of a chip-hour, where chips are counted)",
        hint="such as 2.5, or by cluster: dgx-h200-ndr=2.5,tpu-v6e=1.8",
        least=1e-4,
        most=1e6,
        default_text="the profile's",
        unit="USD/h",
        flag="--price",
        aliases=("price",),
    ),
    Field(
        name="pipeline_layout",
        kind="text",
        group="job",
        meaning="layers of every pipeline chunk, as Megatron-LM writes them",
        hint="such as Et*3|(tt|)*29,m|L, or balanced for as little as possible on the busiest stage",
        default_text="as even as it goes, and as the recipe says",
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
        hint="step-time, mfu, tokens-per-dollar, gpu-hours, or a quantile of step time: p50, p75, p90, p95",
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
        default_text="5%, or by how much the memory of 80 % of comparable runs was predicted too low if that is more",
    ),
    Field(
        name="risk",
        kind="share",
        group="search",
        meaning="probability of running out of memory that is accepted, in place of headroom",
        hint="such as 20%",
        default_text="what headroom leaves",
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
        kind="word",
        group="search",
        meaning="only what a framework can launch, or everything",
        hint=f"{', '.join(FRAMEWORKS)}, or any",
        choices=_frameworks,
        default_text="what the recipe's framework launches",
        unit="text",
    ),
    Field(
        name="choose",
        kind="truth",
        group="search",
        meaning="also turn switches and axis orders that the framework leaves to its users",
        hint="overlaps, dispatcher, graphs",
        default=True,
        unit="bool",
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
    Field(
        name="reliability",
        kind="name",
        group="run",
        meaning="published failure rates",
        hint="llama3, rsc-1, rsc-2, megascale, opt-175b, bloom or none",
        default="llama3",
        unit="text",
    ),
    _number("failures_per_node_day", "interruptions for each eight GPUs and day", 0, 1000),
    _number("failures_per_gpu_day", "interruptions for each GPU and day", 0, 1000),
    Field(
        name="checkpointing",
        kind="word",
        group="run",
        meaning="how checkpoints are written",
        hint="blocking, async or replica (in another node's memory)",
        choices=_ways_to_checkpoint,
        default_text="the rates'",
        unit="text",
    ),
    _time("checkpoint_interval", "work between two checkpoints", "the best one", least=1),
    _time("detection", "from a failure until it is diagnosed", "the rates'"),
    _time("restart", "from then until the job runs again, without loading", "the rates'"),
    _time("repair", "until a node that failed is back", "the rates'"),
    Field(
        name="spare_nodes",
        kind="whole",
        group="run",
        meaning="nodes kept ready",
        least=0,
        most=1_000_000,
        default_text="as many as it takes",
    ),
    Field(
        name="storage_bytes_per_s",
        kind="rate",
        group="run",
        meaning="what the file system takes and gives in all",
        hint="such as 100GB/s",
        default_text="the profile's",
        unit="B/s",
        flag="--storage-bandwidth",
        aliases=("storage_bandwidth",),
    ),
    _number("pue", "power of the building over that of the machines", 1, 10, "the profile's"),
    Field(
        name="samples",
        kind="whole",
        group="run",
        meaning="draws for p10, p50 and p90",
        least=1,
        most=1_000_000,
        default=10_000,
    ),
    Field(
        name="seed",
        kind="whole",
        group="run",
        meaning="seed of the draws",
        least=0,
        most=2**32 - 1,
        default=0,
    ),
    Field(
        name="dollars",
        kind="number",
        group="solve",
        meaning="to spend on training",
        hint="such as 5e6 or 3M",
        least=1.0,
        most=1e15,
        unit="USD",
        flag="--budget",
        aliases=("budget",),
        thousand=1000.0,
    ),
    _number("days", "calendar days of training", 1e-3, 1e6, group="solve", unit="d"),
    # MFU and effective time of well-run trainings of this size (Llama 3: 38-43 % and above 90 %).
    _number("mfu", "utilisation of a step, as estimate gives it", 1e-3, 1, 0.4, group="solve"),
    _number(
        "effective_time", "share of time in steps that count, as run gives it", 1e-3, 1, 0.93, group="solve"
    ),
    Field(
        name="served_tokens",
        kind="whole",
        group="solve",
        meaning="tokens to serve over the model's life, 0 for none",
        hint="such as 10T",
        least=0,
        most=10**18,
        default=0,
        flag="--serve-tokens",
        aliases=("serve_tokens",),
        thousand=1000.0,
    ),
    Field(
        name="context",
        kind="whole",
        group="solve",
        meaning="tokens of a served sequence",
        least=1,
        most=1_000_000_000,
        default=4096,
        thousand=1024.0,
    ),
    _number("change", "how much less and more of each number", 1e-6, 0.99, 0.1, group="look", flag="--by"),
    _number("concurrent", "groups at a time that share each port and link", 1, 1e6, 1.0, group="look"),
    _number("imbalance", "busiest rank's tokens over the mean", 1, 1e6, 1.0, group="look"),
    _whole("ranks", "GPUs of a group", 1, _MOST_GPUS),
    _whole("members_per_node", "members inside one innermost domain", 1, _MOST_GPUS),
    _whole("top_k", "experts of a token", 1, 1_000_000),
    _whole("node_limit", "nodes that a token may go to, 0 for all", 0, _MOST_GPUS),
)

FIELD = {field.name: field for field in FIELDS}
"""Every field by its name."""

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
)
BUDGET_FIELDS = tuple(field for field in FIELDS if field.name in _SOLVED_FOR or field.group == "solve")
"""What `budget` takes."""

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
