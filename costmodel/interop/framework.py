"""What the importers and exporters of framework configurations share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.base.errors import CostModelError
from costmodel.base.files import is_there
from costmodel.base.words import plural
from costmodel.describe.frameworks import Framework, trainers_of
from costmodel.describe.jobs.fields import FIELD, REQUIRED
from costmodel.describe.jobs.layout_text import job_numbers
from costmodel.describe.models.model import Model
from costmodel.describe.models.model_files import load_model
from costmodel.describe.recipe import Recipe, list_recipes, load_recipe, resolved_for
from costmodel.physics.pipeline.schedules import schedule_at
from costmodel.step.unlike_nodes import has_whole_replicas

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job


class FrameworkConfigError(CostModelError):
    """A framework's configuration that cannot be read, or a job that it cannot express."""


@dataclass(frozen=True)
class Imported:
    """A file of another program, in our names.

    Attributes
    ----------
    job : mapping
        Keywords of `costmodel.estimate` that the file says; ``model`` is a `Model` where it describes one.
    missing : tuple of str
        Keywords that the file cannot say and the caller has to add (cluster, gpus, model …).
    ignored : tuple of str
        Keys that are not known, and whose names say nothing of what is priced.
    notes : tuple of str
        Sentences: how something was understood.
    warnings : tuple of str
        Sentences: what changes the model, the time or the memory and has no price here.
    facts : mapping
        What the file says of the job that has no price, under a name (optimizer, offload_param).
    shape : mapping
        Dimensions of a model that cannot be priced, under the names of `Model` as far as it has them.
    unpriced : str
        Why the model cannot be priced, empty where it can.
    sweeps : tuple of mapping
        Measurements, of a log.
    kind, framework : str
        What the file was taken for.
    batches : tuple of int
        Sequences a step of a batch that grows, the first to the last; empty where it does not. [-]
    """

    job: Mapping[str, Any]
    missing: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    warnings: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    shape: Mapping[str, Any] = field(default_factory=dict)
    unpriced: str = ""
    sweeps: tuple[Mapping[str, Any], ...] = ()
    kind: str = ""
    framework: str = ""
    batches: tuple[int, ...] = ()

    def estimate_keywords(self, **more: Any) -> dict[str, Any]:
        """Return keywords for `costmodel.estimate`, with what the caller adds on top.

        Raises
        ------
        FrameworkConfigError
            If something is still missing, or the model cannot be priced.
        """
        keywords = {**self.job, **{key: value for key, value in more.items() if value is not None}}
        if self.unpriced and keywords.get("model") is None:
            raise FrameworkConfigError(f"model: {self.unpriced}")
        lacking = [key for key in REQUIRED if keywords.get(key) is None]
        if lacking:
            raise FrameworkConfigError(
                f"job: the configuration does not say {', '.join(lacking)}; give it beside the file"
            )
        return keywords

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences that a reader of the bill has to see, what was not read at the end."""
        more = len(self.ignored) - _MOST_NAMED
        unread = f"not known here, and not read: {', '.join(self.ignored[:_MOST_NAMED])}"
        unread += f" and {more:,} more" if more > 0 else ""
        model = (f"the model cannot be priced: {self.unpriced}",) if self.unpriced else ()
        return (*model, *self.warnings, *((unread,) if self.ignored else ()))


_MOST_NAMED = 200
"""Keys that a warning names."""
_BESIDE_A_JOB = ("env", "allow_source", "vocab_size")


def fields_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is given beside a file and is a field of a job."""
    return {name: value for name, value in given.items() if name not in _BESIDE_A_JOB}


def changed_switches(read: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    """Return the switches of a file that differ from those of its recipe."""
    current = recipe.switches
    return {key: value for key, value in read.items() if current[key] != value}


def inexpressible_switches(job: Job, imported: Imported) -> list[str]:
    """Return the recipe's switches that come back different from a configuration, as ``name = value``."""
    back = load_recipe(imported.job["recipe"]).switched(imported.job.get("switches") or {})
    theirs = resolved_for(back, job.cluster.accelerator, job.precision.name).switches
    return [f"{name} = {value}" for name, value in job.switches.items() if theirs[name] != value]


_NEEDED: Mapping[str, Callable[[Job], bool]] = {
    "nodes": lambda job: bool(np.any(job.layout.gpus > job.cluster.gpus_per_node)),
    "routing": lambda job: job.model.num_experts > 0,
    "positions": lambda job: job.model.position == "rope",
    "pipeline": lambda job: bool(np.any(job.layout.pp > 1)),
    "model": lambda job: not hub_name(job.model) and model_reference(job.model) == job.model.name,
    "adapters": lambda job: job.tuning.lora_rank > 0,
    "recomputation": lambda job: bool(np.any(job.layout.recompute > 0)),
}
"""What of a framework's leaves only some jobs have."""
_LENGTHS = ("--train-iters", "train.train_iters", "training.steps", "num_epochs")


def comments_of(framework: Framework, job: Job, back: Imported, word: str) -> list[str]:
    """Return comments on switches of the recipe that a configuration has no `word` for, and on what it leaves to its user."""
    lost = [f"# no {word} for the recipe's {switch}" for switch in inexpressible_switches(job, back)]
    return [*lost, *(f"# left to you: {what}" for what in left_of(framework, job))]


def left_of(framework: Framework, job: Job) -> list[str]:
    """Return what a job's configuration leaves to its user: what it has none of, or says itself, is not left."""
    left = []
    for what in framework.leaves:
        kind, _, names = what.partition(": ")
        if kind in _NEEDED and not _NEEDED[kind](job):
            continue
        if job.tokens and kind == "training":
            names = ", ".join(name for name in names.split(", ") if name not in _LENGTHS)
        left.append(f"{kind}: {names}")
    if job.cluster.mixed is not None:
        left.append(
            f"order of nodes: {plural(job.cluster.mixed.nodes, 'node')} of {job.cluster.mixed.accelerator.name} last"
        )
    return left


def steps_of(job: Job) -> int | None:
    """Return the optimizer's steps that a job's tokens take, the last one whole, None where it has no end."""
    if not job.tokens:
        return None
    return ceil(float(job.tokens) / (float(job.global_batch) * float(job.seq_len)))


_MOST_TOKENS = 10**18


def tokens_of(steps: int | None, job: Mapping[str, Any]) -> dict[str, float]:
    """Return the tokens of a run of some steps, none where its batch is not known or the job says its own."""
    if "tokens" in job or "dataset_samples" in job:
        return {}
    batch, length = job.get("global_batch"), job.get("seq_len")
    if steps is None or steps < 1 or not isinstance(batch, int) or not isinstance(length, int):
        return {}
    tokens = steps * batch * length
    # What no run has is a placeholder ("until it is stopped").
    return {"tokens": float(tokens)} if tokens <= _MOST_TOKENS else {}


def known_model(*names: str) -> Model | None:
    """Return the model that one of some names means offline, by itself or by the last part of a path."""
    for spelled in dict.fromkeys(
        part for name in names for part in (name, name.rstrip("/").rsplit("/", 1)[-1])
    ):
        try:
            return load_model(spelled)
        except CostModelError:
            continue
    return None


def model_reference(model: Model) -> str:
    """Return a word that `load_model` makes the same model of: its name, or else the file that it was read from."""
    but = {"name", "source"}
    known = known_model(model.name)
    if known is not None and known.model_dump(exclude=but) == model.model_dump(exclude=but):
        return model.name
    named = model.source.removeprefix("model file ")
    path = Path(named)
    if path.suffix not in (".json", ".yaml", ".yml") or not is_there(path):
        return model.name
    return str((path.parent if path.name == "config.json" else path).absolute())


def hub_name(model: Model) -> str:
    """Return the hub's name of a model that a file had it from, or its folder; empty where it is not known."""
    known = known_model(model.source) if re.fullmatch(r"\S+/\S+", model.source) else None
    but = {"name", "source"}
    return model.source if known and known.model_dump(exclude=but) == model.model_dump(exclude=but) else ""


_OWN_HEAD = re.compile(
    r"^# (?:Megatron-Bridge overrides: |model )(\S.*?)(?: on (\d+) GPUs of |, cluster )\S+?(?:, recipe (\S+))?$",
    re.M,
)


def own_head(text: str) -> dict[str, Any]:
    """Return what the first comment of a configuration of ours says: model, recipe, and GPUs where it has them."""
    head = _OWN_HEAD.search(text)
    if head is None:
        return {}
    found: dict[str, Any] = {"model": head[1]}
    if head[2]:
        found["gpus"] = int(head[2])
    if head[3] in list_recipes():
        found["recipe"] = head[3]
    return found


def require_launched(job: Job, framework: Framework) -> None:
    """Refuse a schedule, a precision or an optimizer that a framework does not have."""
    _require_trained(job, framework)
    if job.model.head_dense or not job.model.causal:
        raise FrameworkConfigError(
            f"emit: {framework.title}: only decoders are written; {job.model.name} predicts masked tokens"
        )
    if job.images.per_sample:
        raise FrameworkConfigError(
            f"emit: {framework.title}: the tower of {job.model.name} is not written; leave out images_per_sample"
        )
    mixed = job.cluster.mixed
    if (
        mixed is not None
        and mixed.batch_by_speed
        and np.all(job.layout.dp > 1)
        and np.all(has_whole_replicas(job))
    ):
        raise FrameworkConfigError(
            f"emit: {framework.title} gives all replicas equal parts of the batch; leave :batch out of hw mixed"
        )
    for what, name, there in (
        ("schedule", schedule_at(job.layout.schedule).name, framework.schedules),
        ("precision", job.precision.name, framework.precisions),
        ("optimizer", job.optimizer.name, framework.optimizers),
    ):
        if name not in there:
            allowed = ", ".join(word for word in there if word != "none") or "pp 1"
            raise FrameworkConfigError(f"emit: {framework.title} has no {what} {name}; plan with {allowed}")
    overlap = job.recipe.overlap
    if np.any(job.layout.cp > 1) and overlap.cp_method != "ulysses" and overlap.cp_slices != "zigzag":
        raise FrameworkConfigError(
            f"emit: {framework.title} splits sequences over context ranks in zig-zag, not {overlap.cp_slices}; "
            "leave out cp_slices"
        )


def _require_trained(job: Job, framework: Framework) -> None:
    """Refuse adapters and frozen parts that a framework has no setting for."""
    tuning = job.tuning
    if tuning.whole:
        return
    if not tuning.lora_rank:
        raise FrameworkConfigError(
            f"emit: {framework.title} freezes parts in a training script, not in its configuration; leave out frozen"
        )
    if tuning.base_dtype not in framework.adapters:
        raise FrameworkConfigError(
            f"emit: {framework.title}: adapters on a base in {tuning.base_dtype} are not written; "
            f"they are for {', '.join(trainers_of(tuning.base_dtype))}"
        )


def base_recipe(job: Job, default: str) -> str:
    """Return the name of a job's recipe if it is a shipped one, else a framework's own."""
    return job.recipe.name if job.recipe.name in list_recipes() else default


def counts_of(job: Job) -> dict[str, int]:
    """Return the whole numbers of a job of one layout by field, and its micro-batches."""
    numbers = job_numbers(job)
    found = {name: round(float(numbers[name])) for name in numbers if FIELD[name].kind == "whole"}
    found["micro_batches"] = round(float(job.micro_batches))
    return found


def data_degrees(counts: Mapping[str, int]) -> tuple[int, int]:
    """Return replicas and shards of the data-parallel ranks; cp shards together with the latter."""
    if not counts["zero_stage"]:
        return counts["dp"], 1
    if not counts["shard_group"]:
        return 1, counts["dp"]
    shard = max(1, counts["shard_group"] // counts["cp"])
    return counts["dp"] // shard, shard


def require_same_model(job: Job, model: Model, framework: str) -> None:
    """Refuse a model whose shape the framework's keys do not carry."""
    # Positions are made longer for a longer sequence.
    but = {"name", "source", "context_length"}
    ours, theirs = job.model.model_dump(exclude=but), model.model_dump(exclude=but)
    dense = any(kind.has_mlp and not kind.is_moe for kind in job.model.layer_kinds())
    for name, value in ours.items():
        # The width of a dense MLP that no layer has is nobody's setting.
        if theirs[name] != value and (dense or name != "ffn_size"):
            raise FrameworkConfigError(
                f"emit: {framework} has no setting for {name} = {value} of {job.model.name}"
            )
