"""A job from several places: a YAML file below, flags on top, each value checked for its kind.

A layout text counts as its degrees, so that ``--tp 4`` on top of ``layout: tp8 pp16`` replaces the
one degree. Inside one place the text and a degree must agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import lcm
from pathlib import Path
from typing import Any

from costmodel.base.errors import CostModelError, DataError, LayoutError, ProfileError, near_hint, shown
from costmodel.base.units import read_quantity
from costmodel.base.yaml_files import parse_mapping, read_mapping
from costmodel.describe.hardware.cluster import Cluster
from costmodel.describe.hardware.prices import priced_name
from costmodel.describe.jobs.fields import ANSWER_LENGTHS, DEGREES, JOB_FIELDS, RL_FIELDS
from costmodel.describe.jobs.job import (
    cluster_of,
    expand_layout,
    layout_of_job,
    recipe_of,
    require_dp,
    resolved_cluster,
)
from costmodel.describe.jobs.layout import Layout
from costmodel.describe.jobs.reading import keywords, read, read_all, read_given, read_several
from costmodel.describe.models.model import Model
from costmodel.describe.models.model_files import load_model
from costmodel.describe.recipe import Recipe

RL_SECTION = "rl"
"""Key of a job file whose values say what a step of reinforcement learning does."""
MEASURED = "measured"
"""Key of a job file that says what a step took: read by ``calibrate runs``, none of the job's."""
_PRICE = "price_usd_per_gpu_hour"
_JOB_EXAMPLE = "model: llama3-405b"
_MODEL_FILES = (".yaml", ".yml", ".json")
_PROFILES = {
    "cluster": "give it as --cluster {name} beside a job",
    "accelerator": "name it under accelerator: in a cluster's profile",
    "link": "name it under tiers: in a cluster's profile",
    "storage": "name it under storage: in a cluster's profile",
}
"""What to do with a hardware profile that is given as a job, by kind."""


def read_job(path: str | Path) -> dict[str, Any]:
    """Read a job file, the keywords of `costmodel.estimate` as keys; its paths count from its own folder."""
    file = Path(path)
    values = _read_values(read_mapping(file, example=_JOB_EXAMPLE), str(path))
    for key in ("model", "cluster", "site"):
        named = Path(values.get(key, ""))
        if named.suffix in _MODEL_FILES and not named.is_absolute():
            values[key] = str(file.parent / named)
    return values


def read_job_text(text: str, name: str) -> dict[str, Any]:
    """Read the text of a job file that lies nowhere; `name` is what messages call it."""
    return _read_values(parse_mapping(text, name, example=_JOB_EXAMPLE), name)


def _read_values(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the keywords that a job file says, with those of its section about reinforcement learning."""
    if (kind := raw.get("profile")) in _PROFILES:
        raise LayoutError(
            f"{name}: is the profile of a piece of hardware ({kind}), not a job; "
            f"{_PROFILES[kind].format(name=name)} (costmodel hardware check {name} tells whether it can be used)"
        )
    if MEASURED in raw:
        read_measured(raw[MEASURED], name)
    fields = {key: value for key, value in raw.items() if key not in (MEASURED, RL_SECTION)}
    found = keywords(fields, JOB_FIELDS, who=name, thing="field of a job")
    section = raw.get(RL_SECTION, {})
    if not isinstance(section, Mapping):
        raise LayoutError(
            f"{name}: {RL_SECTION}: expected a mapping such as {{prompts: 64}}, got {shown(section)}"
        )
    found |= keywords(section, RL_FIELDS, who=f"{name}: {RL_SECTION}")
    try:
        return read_all(found)
    except CostModelError as error:
        raise type(error)(f"{name}: {error}") from None


def merge_jobs(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one description of a job over another; switches are merged one by one."""
    lower, upper = (
        expand_layout({key: value for key, value in job.items() if value is not None})
        for job in (below, above)
    )
    if any(name in upper for name in ANSWER_LENGTHS):
        lower = {name: value for name, value in lower.items() if name not in ANSWER_LENGTHS}
    merged = {**lower, **upper}
    switches: dict[str, Any] = {}
    for given in (job.get("switches") or {} for job in (lower, upper)):
        switches |= given if isinstance(given, Mapping) else read("switches", given)
    return {**merged, "switches": switches} if switches else merged


def with_own_prices(jobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return jobs without the prices of clusters that others of them are on, where prices of several are given."""
    found = [dict(job) for job in jobs]
    several = []
    for job in found:
        # A job on a cluster that nobody knows is refused where it is priced.
        with suppress(ProfileError):
            if isinstance(read_given(job, _PRICE), Mapping):
                several.append((job, cluster_of(job).name))
    clusters = {own for _, own in several}
    for job, own in several:
        prices = read_given(job, _PRICE).items()
        others = clusters - {own}
        job[_PRICE] = {name: usd for name, usd in prices if name == own or priced_name(name) not in others}
    return found


def with_stragglers(switches: Mapping[str, Any] | None, stragglers: bool | None) -> dict[str, Any] | None:
    """Add what the flag for stragglers says to switches, which win over it."""
    flag = {} if stragglers is None else {"stragglers": "normal" if stragglers else "none"}
    return {**flag, **(switches or {})} or None


def names_no_degree(job: Mapping[str, Any]) -> bool:
    """Say whether the keywords of a job leave all degrees of its layout open."""
    return all(job.get(name) is None for name in ("layout", *DEGREES, "pipeline_layout"))


def is_rl(job: Mapping[str, Any]) -> bool:
    """Say whether the keywords of a job describe a step of reinforcement learning."""
    return any(job.get(field.name) is not None for field in RL_FIELDS)


_DECISIVE = ("cluster", "recipe", "precision", "global_batch", "seq_len")


def unnamed(job: Mapping[str, Any]) -> frozenset[str]:
    """Return what of a job nobody named, of the fields that change the answer most."""
    open_layout = {"layout"} if names_no_degree(job) else set()
    return frozenset(open_layout | {name for name in _DECISIVE if job.get(name) is None})


_USUAL_TOKENS = 4_194_304
"""Tokens a step where nobody names a batch: of Llama 2 at all sizes (arXiv:2307.09288, section 2.2). [-]"""
_USUAL_SEQ_LEN = 8192


def usual_batch(job: Mapping[str, Any]) -> dict[str, int]:
    """Return the sequence length and the global batch that are usual, those of both that a job does not name.

    Sequences are as long as the model's positions, 8,192 tokens at most. A step has about four million tokens: a power
    of two times what is odd in the number of GPUs, so that replicas divide it, and at least a sequence for eight GPUs.
    A step of reinforcement learning, whose batch is its prompts, and a job without a model have none.
    """
    found: dict[str, int] = {}
    if job.get("model") is None or is_rl(job):
        return found
    if job.get("seq_len") is None:
        named = job["model"]
        model = load_model(named) if isinstance(named, str) else named
        longest = (model.max_positions or model.context_length) if isinstance(model, Model) else 0
        found["seq_len"] = min(longest or _USUAL_SEQ_LEN, _USUAL_SEQ_LEN)
    if job.get("global_batch") is None:
        gpus, seq_lens = (
            read_several(name, usual if job.get(name) is None else job[name])
            for name, usual in (("gpus", 1), ("seq_len", found.get("seq_len")))
        )
        least = max(_USUAL_TOKENS // max(map(int, seq_lens)), max(gpus) // 8)
        batch = lcm(*(count // (count & -count) for count in gpus))
        while batch < least:
            batch *= 2
        found["global_batch"] = batch
    return found


def placement(job: Mapping[str, Any]) -> tuple[Layout, Cluster, tuple[str, ...], Recipe]:
    """Return what places the ranks of a job: layout, cluster, axis order and recipe, no model."""
    if "gpus" not in job:
        raise CostModelError("job: gpus missing; give gpus=… or a job file with this key")
    layout = layout_of_job(job)
    require_dp(layout, job.get("dp"))
    cluster = resolved_cluster(cluster_of(job), job, layout)
    return layout, cluster, read_given(job, "axis_order"), recipe_of(job, cluster)


TIME = ("step_time", "step_time_s", "measured_step_time_s")
MEMORY = ("memory", "peak_memory_gib", "measured_memory_bytes")
MEMORY_KINDS = ("max_allocated", "max_reserved", "nvidia-smi", "stated", "")
"""Ways of measuring memory, those of `costmodel.trust.published_runs.seen_by_kind`."""


def read_measured(stated: object, where: str) -> tuple[float, float, str]:
    """Return step time, memory and how it was measured; nan for what was not. [s], [B]"""
    if not isinstance(stated, Mapping) or not stated:
        raise DataError(
            f"{where}: measured: expected what was measured, such as {{step_time: 5.2s, memory: 61GiB}}"
        )
    for key in stated:
        if key not in (*TIME, *MEMORY, "memory_kind"):
            raise DataError(
                f"{where}: measured: {shown(key)} is unknown; expected step_time, memory, memory_kind"
            )
    try:
        found = measured_of({str(key): str(value) for key, value in stated.items()})
    except CostModelError as error:
        raise DataError(f"{where}: measured: {error}") from None
    if not {*stated} & {*TIME, *MEMORY}:
        raise DataError(f"{where}: measured: expected step_time or memory")
    return found


def measured_of(row: Mapping[str, str]) -> tuple[float, float, str]:
    """Return step time, memory and how it was measured of a row's texts; a bare number is in the column's unit. [s], [B]"""
    time_s, memory = (
        next((_positive(key, row[key], unit) for key in keys if key in row), float("nan"))
        for keys, unit in ((TIME, "s"), (MEMORY, "B"))
    )
    kind = row.get("memory_kind", "")
    if kind not in MEMORY_KINDS:
        hint = near_hint(kind, MEMORY_KINDS) or f"expected {', '.join(filter(None, MEMORY_KINDS))}"
        raise DataError(f"memory_kind: {shown(kind)} is unknown; {hint}")
    is_gib = "memory" not in row and "peak_memory_gib" in row
    return time_s, memory * (2.0**30 if is_gib else 1.0), kind


def _positive(key: str, text: str, unit: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = read_quantity(key, text, unit)
    if not 0 < value < 1e18:
        raise DataError(f"{key}: expected more than 0, got {shown(text)}")
    return value
