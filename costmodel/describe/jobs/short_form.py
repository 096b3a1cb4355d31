"""A job in as few words as say it: the keywords that are not defaults, a command line, a job file."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from costmodel.describe.hardware.changed import changed_values
from costmodel.describe.hardware.hardware import load_cluster
from costmodel.describe.hardware.prices import given_price
from costmodel.describe.jobs.fields import DEGREES, FIELD, JOB_FIELDS, LAYOUT_FIELDS, names
from costmodel.describe.jobs.job import BALANCED, EVEN, Job, balances_stages, default_recipe, expand_layout
from costmodel.describe.jobs.layout import make_layout
from costmodel.describe.jobs.layout_text import degrees_of, degrees_text, plain_value
from costmodel.describe.jobs.reading import read
from costmodel.describe.jobs.tuning import make_tuning
from costmodel.describe.models.model_files import load_model
from costmodel.describe.recipe import Recipe, list_recipes, load_recipe, resolved_for, switch_text
from costmodel.physics.pipeline.chunks import chunks_text

PAIRS = ("switches", "choices", "hardware")
"""Kinds of fields whose value is pairs ``name=value``, a flag each."""
ASSUMED = frozenset({"cluster", "recipe"})
"""Fields with defaults that change the answer most: a job file always says them."""


def short_form(
    job: Job, files: Mapping[str, str] | None = None, stated: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Return the keywords of `costmodel.estimate` that make a job of one layout, defaults left out but for those in `stated`.

    `files` are paths of models and clusters that were read from files, by their names.
    """
    paths = files or {}
    layout = job.layout
    degrees = {axis: float(degree) for axis, degree in degrees_of(layout).items()}
    plain = make_layout(gpus=layout.gpus, **{axis: degrees[axis] for axis in degrees if axis != "dp"})
    found: dict[str, Any] = {
        "model": paths.get(job.model.name, job.model.name),
        "cluster": paths.get(job.cluster.name, job.cluster.name),
        "recipe": _preset_of(job).name,
        "precision": job.precision.name,
        **job.packing.fields,
        **job.images.fields,
        "gpus": round(float(layout.gpus)),
        "layout": degrees_text({axis: degrees[axis] for axis in DEGREES if axis != "dp"}, always=()) or "tp1",
        "global_batch": round(float(job.global_batch)),
        "seq_len": round(float(job.seq_len)),
        "switches": changed_switches(job),
        "axis_order": " ".join(job.axis_order),
        "site": job.site,
        "hw": changed_values(job.cluster),
        "slice": job.slice,
        "tokens": job.tokens,
        "price_usd_per_gpu_hour": given_price(job.cluster),
        "optimizer": job.optimizer.name,
        **_trained(job),
    }
    # Without tensor parallelism there are no sequences to shard.
    chosen = (name for name in names(LAYOUT_FIELDS) if name != "sequence_parallel" or layout.tp > 1)
    for name in chosen:
        is_usual = float(getattr(layout, name)) == float(getattr(plain, name))
        if name not in DEGREES and (name in stated or not is_usual):
            found[name] = plain_value(name, getattr(layout, name))
    if job.pipeline_layout:
        found["pipeline_layout"] = chunks_text(job.pipeline_layout)
    elif job.balanced_stages and degrees["pp"] > 1:
        found["pipeline_layout"] = BALANCED
    elif balances_stages(job.model, job.recipe) and degrees["pp"] > 1:
        found["pipeline_layout"] = EVEN
    defaults = {"recipe": default_recipe(job.cluster)}
    return {
        name: found[name]
        for name in names(JOB_FIELDS)
        if name in found and found[name] not in (None, "", {})
        if name in stated or found[name] != defaults.get(name, FIELD[name].default)
    }


def command_text(
    job: Job,
    command: str = "estimate",
    files: Mapping[str, str] | None = None,
    *,
    path: str = "",
    below: Mapping[str, Any] | None = None,
    words: Sequence[str] = (),
    reread: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
) -> str:
    """Return the command line that prices a job of one layout: ``costmodel estimate …``.

    `path` is a file that the command names, and `below` the keywords of a job that it says: flags say what differs from
    them; `words` are flags that say how the file is read. `reread` returns what the file says beside given flags: a
    batch that follows from one of them is another then, and has to be a flag as well.
    """
    stated = short_form(job, files) if below is None else _over(job, below, files)
    if reread is not None:
        stated = _over(job, reread(stated), files) | stated
    ordered = ((name, stated[name]) for name in names(JOB_FIELDS) if name in stated)
    flags = (word for name, value in ordered for word in flags_of(name, value))
    return " ".join(map(shlex.quote, ["costmodel", command, *([path] if path else []), *words, *flags]))


def flags_of(name: str, value: Any, *, is_listed: bool = False) -> list[str]:
    """Return the words of a command line that give a field a value, or a text of it; a plan lists values of some."""
    field = FIELD[name]
    flag = field.short or field.flags[0]
    if isinstance(value, Mapping):
        value = [f"{key}={switch_text(each)}" for key, each in value.items()]
    if field.kind in PAIRS:
        return [
            part for pair in (value.split() if isinstance(value, str) else value) for part in (flag, pair)
        ]
    if isinstance(value, list | tuple):
        return [flag, ",".join(map(str, value))]
    if field.kind == "truth" and not (is_listed and (field.several or field.tuned)):
        is_on = value.lower() in ("true", "on", "yes") if isinstance(value, str) else value
        return [flag if is_on else f"--no-{flag.removeprefix('--')}"]
    return [flag, number_text(value) if isinstance(value, float) else str(value)]


def number_text(value: float) -> str:
    """Return a number as it is typed, in so many digits that it reads as the same.

    >>> number_text(8.0), number_text(15.6e12), number_text(1234567890125.0)
    ('8', '15.6T', '1234567890125.0')
    """
    for scale, letter in ((1e12, "T"), (1e9, "B")):
        if value >= scale and float(f"{value / scale:g}") * scale == value:
            return f"{value / scale:g}{letter}"
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def _over(job: Job, below: Mapping[str, Any], files: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the keywords that make a job of what a file says: those that differ from it, and what it leaves out."""
    in_file = expand_layout(below)
    usual = short_form(job, files)
    every = short_form(job, files, frozenset(names(JOB_FIELDS)))
    found: dict[str, Any] = {}
    for name in names(JOB_FIELDS):
        if name == "layout":
            degrees = {axis: round(float(degree)) for axis, degree in degrees_of(job.layout).items()}
            if "dp" not in in_file:
                degrees.pop("dp")
            if any(degree != in_file.get(axis, 1) for axis, degree in degrees.items()):
                # A degree that is not named stays as the file has it.
                above_1 = [axis for axis in degrees if in_file.get(axis, 1) > 1]
                found[name] = degrees_text(degrees, always=above_1) or "tp1"
        elif name == "switches":
            found[name] = _switches_over(job, in_file.get(name) or {}, usual.get(name) or {})
        elif name == "tokens" and "dataset_samples" in in_file:
            continue  # they follow from it
        elif name not in in_file:
            found |= {name: usual[name]} if name in usual else {}
        elif name == "pipeline_layout":
            ours = every.get(name, BALANCED if job.balanced_stages else EVEN)
            found |= {} if ours == in_file[name] else {name: ours}
        elif name in every and not _is_same(name, in_file[name], job, every[name]):
            found[name] = every[name]
    return {name: value for name, value in found.items() if value not in ("", {})}


def _switches_over(job: Job, in_file: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the switches that a job has otherwise than a file, or than its recipe where the file names none."""
    theirs = _preset_of(job).switched(in_file).switches
    return {
        name: value
        for name, value in job.switches.items()
        if (theirs[name] != value if name in in_file else name in changed)
    }


def _is_same(name: str, theirs: Any, job: Job, ours: Any) -> bool:
    """Say whether a file's value of a field is the job's."""
    if name == "model":
        return bool((load_model(theirs) if isinstance(theirs, str) else theirs).name == job.model.name)
    if name == "cluster":
        return bool((load_cluster(theirs) if isinstance(theirs, str) else theirs).name == job.cluster.name)
    return bool(read(name, theirs) == read(name, ours))


def job_file_text(job: Job, files: Mapping[str, str] | None = None) -> str:
    """Return a job of one layout as a job file (YAML)."""
    from costmodel.base.yaml_files import document_text

    fields = short_form(job, files, ASSUMED)
    switches = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in fields.pop("switches", {}).items()
    }
    return document_text({**fields, **({"switches": switches} if switches else {})})


def _trained(job: Job) -> dict[str, Any]:
    """Return what of the model is trained, where that is not all of it."""
    fields, tuning = job.tuning.fields, job.tuning
    usual = tuning.lora_rank > 0 and tuning.lora_targets == make_tuning(tuning.lora_rank).lora_targets
    return fields | {"lora_targets": ""} if usual else fields


def _preset_of(job: Job) -> Recipe:
    """Return the shipped recipe of a job, the usual one where its own is none."""
    return load_recipe(job.recipe.name if job.recipe.name in list_recipes() else default_recipe(job.cluster))


def changed_switches(job: Job) -> dict[str, Any]:
    """Return the switches that differ from those of the recipe as it runs on this accelerator."""
    plain = resolved_for(_preset_of(job), job.cluster.accelerator, job.precision.name).switches
    return {name: value for name, value in job.switches.items() if plain[name] != value}
