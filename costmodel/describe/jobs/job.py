"""A job: everything an estimate needs, from flags, keywords or a YAML file, checked once.

`make_job` is the boundary: names become objects, texts become numbers, and whatever is unknown,
contradictory or impossible raises one line that names the field, the value and what is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from costmodel.base.distinct import distinct
from costmodel.base.errors import CostModelError, LayoutError, ProfileError, shown
from costmodel.base.words import errors_called
from costmodel.base.yaml_files import parse_mapping, read_mapping
from costmodel.describe.factors import NOMINAL, PRIOR, Belief, Factors
from costmodel.describe.hardware.changed import with_hardware
from costmodel.describe.hardware.cluster import Cluster
from costmodel.describe.hardware.hardware import load_cluster
from costmodel.describe.hardware.prices import with_price
from costmodel.describe.hardware.slices import parse_slice, slice_text, sliced
from costmodel.describe.jobs.fields import FIELD, JOB_FIELDS, LAYOUT_FIELDS, RL_FIELDS, names
from costmodel.describe.jobs.keywords import JobKeywords
from costmodel.describe.jobs.layout import (
    Layout,
    first_of,
    make_layout,
    parse_layout,
    require_possible,
    torus_problem,
)
from costmodel.describe.jobs.measured import read_measured
from costmodel.describe.jobs.packing import Packing, make_packing
from costmodel.describe.jobs.reading import keywords, read, read_array, require_alike, require_complete
from costmodel.describe.jobs.switches import Settings
from costmodel.describe.jobs.tuning import Tuning, make_tuning
from costmodel.describe.models.model import Model
from costmodel.describe.models.model_files import load_model
from costmodel.describe.optimizers import OPTIMIZERS, Optimizer, optimizer
from costmodel.describe.precision import Precision, precision
from costmodel.describe.recipe import Recipe, load_recipe, require_cores, resolved_for
from costmodel.describe.site import NO_SITE, Site, load_site
from costmodel.describe.switch_table import Health, Policy
from costmodel.physics.network.gradient_compression import METHODS, compression
from costmodel.physics.network.mesh import DEFAULT_ORDER
from costmodel.physics.pipeline.chunks import Chunk, parse_chunks, require_chunks
from costmodel.physics.pipeline.schedules import schedule_at, valid

Array = NDArray[np.float64]

DEFAULT_RECIPE = str(FIELD["recipe"].default)
DEFAULT_CLUSTER = str(FIELD["cluster"].default)
JOB_KEYS = names(JOB_FIELDS)


EVEN = "even"
"""The pipeline layout that the recipe makes."""
BALANCED = "balanced"
"""The pipeline layout that gives the stage with the head no more work than the others."""


@dataclass(frozen=True)
class Job:
    """A checked job. `layout` may hold arrays; everything else is one value."""

    model: Model
    cluster: Cluster
    recipe: Recipe
    precision: Precision
    layout: Layout
    global_batch: Array
    seq_len: Array
    axis_order: tuple[str, ...] = DEFAULT_ORDER
    optimizer: Optimizer = OPTIMIZERS["adamw"]
    tokens: float | None = None
    pipeline_layout: tuple[Chunk, ...] = ()
    balanced_stages: bool = False
    """Layers are balanced over stages to offset the LM head."""
    policy: Policy = field(default_factory=Policy)
    health: Health = field(default_factory=Health)
    tuning: Tuning = field(default_factory=Tuning)
    """What of the model is trained."""
    packing: Packing = field(default_factory=Packing)
    """How long the documents of a sequence are."""
    factors: Factors = NOMINAL
    """What the calibrated constants are multiplied by; samples of them are leading dimensions of every figure."""
    belief: Belief = PRIOR
    """What is known of the factors beyond the shipped spreads: what samples are drawn from."""
    site: str = ""
    """File that factors and belief are from, empty where there is none."""

    @property
    def span(self) -> Array:
        """Length that attention reaches over: of the sequence, or shorter where that is packed. [-]"""
        return self.packing.span(self.seq_len)

    @property
    def micro_batches(self) -> Array:
        """Micro-batches a step of each replica. [-]"""
        return self.layout.micro_batches(self.global_batch)

    @property
    def slice(self) -> str:
        """Shape of its slices on a torus, empty elsewhere."""
        return slice_text(self.cluster.tiers[0].shape)

    @property
    def steps_factor(self) -> float:
        """Steps to the loss that the same tokens reach with whole gradients, over the steps of these. [-]"""
        policy = self.policy
        return policy.compression_steps or compression(policy.gradient_compression).steps

    @property
    def switches(self) -> dict[str, Any]:
        """Values of everything that ``--set`` can change, by name."""
        return Settings(self.recipe, self.policy, self.health).values

    def switched(self, changes: Mapping[str, Any]) -> Job:
        """Return the job with some switches changed; ``auto`` kernels are chosen again.

        Raises
        ------
        RecipeError
            If there is no such switch, or it cannot have the value.
        """
        made = Settings(self.recipe, self.policy, self.health).switched(changes)
        recipe = resolved_for(made.recipe, self.cluster.accelerator)
        _check_optimizer(self.optimizer, recipe)
        return replace(self, recipe=recipe, policy=made.policy, health=made.health)


def usual_recipe(cluster: Cluster) -> str:
    """Return the recipe of a job that names none: what most people run on such hardware.

    >>> usual_recipe(load_cluster("tpu-v5p")), usual_recipe(load_cluster("dgx-h100-ndr"))
    ('maxtext-tpu', 'megatron-core')
    """
    return cluster.accelerator.software.recipe or DEFAULT_RECIPE


def make_job(*, check: bool = True, **asked: Unpack[JobKeywords]) -> Job:
    """Check and complete a job; see `costmodel.estimate` for the keywords.

    Raises
    ------
    CostModelError
        One line that names the field, the value and what is allowed.
    """
    return job_of(asked, who="job", check=check)


def job_of(asked: Mapping[str, Any], *, who: str, check: bool = True) -> Job:
    """Check and complete a job given under the names of the table; `who` asks, for messages.

    Raises
    ------
    CostModelError
        One line that names the field, the value and what is allowed.
    """
    given = spelled_out(keywords(asked, JOB_FIELDS, who=who))
    require_complete(given, who=who)

    def one(name: str) -> Any:
        return read(name, given.get(name, FIELD[name].default))

    model, cluster = one("model"), one("cluster")
    the_model = load_model(model) if isinstance(model, str) else _object("model", model, Model)
    the_cluster = load_cluster(cluster) if isinstance(cluster, str) else _object("cluster", cluster, Cluster)
    with errors_called(the_cluster.accelerator.called):
        return _job_on(the_cluster, the_model, given, check=check)


def _job_on(the_cluster: Cluster, the_model: Model, given: Mapping[str, Any], *, check: bool) -> Job:
    """Check and complete a job whose cluster and model are known."""

    def one(name: str) -> Any:
        return read(name, given.get(name, FIELD[name].default))

    if "price_usd_per_gpu_hour" in given:
        the_cluster = with_price(the_cluster, one("price_usd_per_gpu_hour"))
    if "hw" in given:
        the_cluster = with_hardware(the_cluster, one("hw"))
    recipe = one("recipe") if "recipe" in given else usual_recipe(the_cluster)
    the_recipe = load_recipe(recipe) if isinstance(recipe, str) else _object("recipe", recipe, Recipe)
    if the_recipe.launches and the_recipe.launches.zero_stage == (0,):
        given = {"zero_stage": 0, **given}  # a framework that shards nothing has no other default
    layout = layout_of_job(given)
    require_alike(given)
    the_cluster = sliced_for(the_cluster, layout, one("slice") if "slice" in given else None)
    if the_cluster.accelerator.kernels is None:
        raise ProfileError(
            f"accelerator {the_cluster.accelerator.name}: has no 'kernels' block; costmodel calibrate writes one"
        )
    site = _site(one("site")) if "site" in given else NO_SITE
    chunks = one("pipeline_layout") if "pipeline_layout" in given else ""
    settings = Settings(the_recipe).switched(one("switches") if "switches" in given else {})
    job = Job(
        model=the_model,
        cluster=the_cluster,
        recipe=resolved_for(settings.recipe, the_cluster.accelerator),
        policy=settings.policy,
        health=settings.health,
        precision=precision_on(one("precision") if "precision" in given else None, the_cluster),
        optimizer=optimizer(one("optimizer")),
        layout=layout,
        global_batch=read_array("global_batch", given["global_batch"]),
        seq_len=read_array("seq_len", given["seq_len"]),
        axis_order=one("axis_order"),
        tokens=run_tokens(given),
        pipeline_layout=() if chunks in ("", EVEN, BALANCED) else parse_chunks(chunks),
        balanced_stages=chunks == BALANCED or (chunks == "" and deals_by_work(the_model, settings.recipe)),
        tuning=_tuning(given),
        packing=_packing(given),
        factors=site.factors,
        belief=site.belief,
        site=site.path,
    )
    _check_optimizer(job.optimizer, job.recipe)
    _check_tuning(job)
    if job.pipeline_layout:
        _check_pipeline_layout(job)
    if check:
        require_cores(job.recipe, the_cluster.accelerator)
        check_job(job, one("dp") if "dp" in given else None)
    return job


def _site(given: object) -> Site:
    """Return a site that is named, or given as what it means."""
    return load_site(given) if isinstance(given, str | Path) else _object("site", given, Site)


def _packing(given: Mapping[str, Any]) -> Packing:
    """Return how the documents of a job are packed."""
    mean, spread = (read(name, given.get(name, 0)) for name in ("packed_len", "packed_spread"))
    return make_packing(float(mean), float(spread), read_array("seq_len", given["seq_len"]))


def run_tokens(given: Mapping[str, Any]) -> float | None:
    """Return the tokens of the whole run, as `tokens` or as epochs over the samples of a data set; none if not given. [-]

    Raises
    ------
    CostModelError
        If both are given, or epochs of no data set.
    """
    tokens = read("tokens", given["tokens"]) if "tokens" in given else None
    if "dataset_samples" not in given:
        if "epochs" in given:
            raise CostModelError("epochs: needs dataset_samples, the samples of one epoch")
        return tokens
    if tokens is not None:
        raise CostModelError("tokens: follow from dataset_samples and epochs; give one or the other")
    samples, epochs = (
        read("dataset_samples", given["dataset_samples"]),
        read("epochs", given.get("epochs", 1)),
    )
    length = read("packed_len", given.get("packed_len", 0)) or float(
        np.max(read_array("seq_len", given["seq_len"]))
    )
    return float(samples * epochs * length)


def _tuning(given: Mapping[str, Any]) -> Tuning:
    """Return what of the model a job trains."""
    listed = {
        name: ",".join(value) if isinstance(value := given.get(name, ""), list | tuple) else value
        for name in ("lora_targets", "frozen")
    }
    return make_tuning(
        read("lora_rank", given.get("lora_rank", 0)),
        read("lora_targets", listed["lora_targets"]) if listed["lora_targets"] else "",
        read("base_dtype", given["base_dtype"]) if "base_dtype" in given else "",
        read("frozen", listed["frozen"]) if listed["frozen"] else "",
    )


_Kind = TypeVar("_Kind")


def _object(name: str, given: object, kind: type[_Kind]) -> _Kind:
    """Return an object that was given in place of a name."""
    if not isinstance(given, kind):
        raise CostModelError(f"{name}: expected a text or a {kind.__name__}, got {shown(given)}")
    return given


def spelled_out(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a job with the degrees of its layout text in place of the text.

    Raises
    ------
    LayoutError
        If the text and a degree differ.

    Examples
    --------
    >>> spelled_out({"layout": "tp8 pp16", "gpus": 128})
    {'gpus': 128, 'tp': 8, 'pp': 16}
    """
    found = {name: value for name, value in given.items() if name != "layout"}
    if "layout" not in given:
        return found
    for axis, degree in parse_layout(read("layout", given["layout"])).items():
        if axis in found and not np.array_equal(read_array(axis, found[axis]), degree):
            raise LayoutError(f"{axis}: given as {shown(found[axis])} and, in the layout text, as {degree}")
        found[axis] = degree
    return found


def sliced_for(cluster: Cluster, layout: Layout, shape: str | None) -> Cluster:
    """Return the cluster with the slices that a job's layouts run on.

    Raises
    ------
    LayoutError
        If there is no such slice, or layouts of several numbers of GPUs are given for one torus.
    """
    gpus = distinct(layout.gpus)
    if cluster.tiers[0].shape and len(gpus) > 1:
        raise LayoutError(
            f"gpus: a job on the torus of {cluster.name} has one number of chips, this one several"
        )
    return sliced(cluster, gpus[0], parse_slice(shape) if shape is not None else ())


def layout_of_job(given: Mapping[str, Any]) -> Layout:
    """Return the layout of a job that is given field by field."""
    taken = {"gpus", *names(LAYOUT_FIELDS)} - {"dp"}
    choices: dict[str, Any] = {name: value for name, value in given.items() if name in taken}
    return make_layout(**choices)


def check_job(job: Job, dp: int | None = None) -> None:
    """Raise for the first thing that makes a job of one layout impossible."""
    layout, largest = job.layout, job.cluster.tiers[-1].size
    if np.any(layout.gpus > largest):
        raise LayoutError(
            f"gpus: {float(layout.gpus.max()):.0f} is more than cluster {job.cluster.name} can hold ({largest})"
        )
    product = layout.tp * layout.cp * layout.pp
    if dp is not None and np.any(layout.gpus != product * dp):
        tp, cp, pp, gpus = first_of(layout.gpus != product * dp, layout.tp, layout.cp, layout.pp, layout.gpus)
        raise LayoutError(
            f"layout: tp·cp·pp·dp = {tp:.0f}·{cp:.0f}·{pp:.0f}·{dp} = {tp * cp * pp * dp:.0f}, but gpus = {gpus:.0f}"
        )
    _check_reduction(job)
    misplaced = torus_problem(layout, job.cluster, job.axis_order)
    if misplaced.bad.any():
        raise LayoutError(f"layout: {misplaced.sentence}")
    overlap = job.recipe.overlap
    require_possible(
        layout,
        job.model,
        job.global_batch,
        job.seq_len,
        method=overlap.cp_method,
        swapped=overlap.cp_a2a_ranks,
    )
    micro_batches = job.micro_batches
    runs = valid(layout.schedule, layout.pp, micro_batches, layout.vp)
    if not np.all(runs):
        code, pp, vp, count = first_of(~runs, layout.schedule, layout.pp, layout.vp, micro_batches)
        schedule = schedule_at(code)
        broken = schedule.broken_rules(stages=pp, micro_batches=count, virtual_stages=vp)
        raise LayoutError(
            f"schedule: {schedule.name} cannot run pp = {pp:.0f} stages, vp = {vp:.0f} and "
            f"{count:.0f} micro-batches; it needs {', '.join(rule.text for rule in broken)}"
        )


def deals_by_work(model: Model, recipe: Recipe) -> bool:
    """Tell whether layers are dealt by work where nobody names a pipeline layout.

    Multi-token prediction repeats the head on the last stage; nearly all published runs of such models make room for it
    (Megatron-Bridge's recipes, DeepSeek-V3).
    """
    return model.mtp_layers > 0 and (recipe.launches is None or recipe.launches.pipeline_layouts)


def _check_pipeline_layout(job: Job) -> None:
    """Refuse a pipeline layout that does not hold the model on the stages of every layout."""
    pp, vp = distinct(job.layout.pp), distinct(job.layout.vp)
    if len(pp) > 1 or len(vp) > 1:
        raise LayoutError("pipeline_layout: needs one pp and one vp, this job has several")
    require_chunks(
        job.pipeline_layout,
        layers=job.model.num_layers,
        mtp=job.model.mtp_layers,
        pp=int(pp[0]),
        vp=int(vp[0]),
    )


def _check_tuning(job: Job) -> None:
    """Refuse what has no price where only a part of the model is trained."""
    chosen = job.optimizer
    if not job.tuning.whole and (len(chosen.updates) > 1 or chosen.matrices.counts_sides):
        alike = (
            name
            for name, one in OPTIMIZERS.items()
            if len(one.updates) == 1 and not one.matrices.counts_sides
        )
        raise CostModelError(
            f"optimizer: {chosen.name}, which steps matrices in a way of their own, has no price with lora_rank or "
            f"frozen; {', '.join(alike)} have"
        )


def _check_optimizer(chosen: Optimizer, recipe: Recipe) -> None:
    """Refuse to offload what no host steps."""
    if recipe.host.offload_optimizer and not chosen.on_host:
        known = ", ".join(name for name, one in OPTIMIZERS.items() if one.on_host)
        raise CostModelError(f"offload_optimizer: no host steps {chosen.name}; it needs optimizer {known}")


def _also_sharded() -> str:
    names = [one.name for one in METHODS.values() if one.shards and one.name != "none"]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _check_reduction(job: Job) -> None:
    """Refuse ways to reduce gradients that sharded states rule out."""
    policy, layout = job.policy, job.layout
    method = compression(policy.gradient_compression)
    if not job.tuning.whole and not method.shards:
        raise CostModelError(
            f"gradient_compression: {method.name} is for training of every parameter; with lora_rank or frozen "
            f"{_also_sharded()} work"
        )
    if not method.shards and np.any(layout.zero_stage > 0):
        raise CostModelError(
            f"gradient_compression: {method.name} needs whole gradients on every replica, zero_stage 0; got "
            f"{float(np.max(layout.zero_stage)):.0f} ({_also_sharded()} also work with sharded states)"
        )
    if policy.sync_every > 1 and np.any((layout.zero_stage > 0) & (layout.shard_group == 0)):
        raise CostModelError(
            f"sync_every: {policy.sync_every} needs replicas that hold everything: zero_stage 0, or a shard_group "
            f"smaller than dp·cp, between which the average is rare"
        )


def precision_on(name: str | None, cluster: Cluster) -> Precision:
    """Return the precision if the cluster's accelerator has it; with no name, bf16, or fp16 or fp32 where it has no bf16.

    ``fp8`` is what Transformer Engine takes where no recipe is named: MXFP8 where the matrix units have it,
    delayed scaling elsewhere (transformer_engine/pytorch/quantization.py, `get_default_fp8_recipe`).
    """
    from costmodel.describe.hardware.kernels import PEAK_KEY

    peaks = cluster.accelerator.peak_flops_per_s
    if name is None:
        name = next(one for one in ("bf16", "fp16", "fp32") if PEAK_KEY[one] in peaks)
    elif name == "fp8":
        name = cluster.accelerator.software.fp8
    found = precision(name, transposes=cluster.accelerator.software.fp8_layouts == "one")
    if PEAK_KEY[found.matmul_dtype] not in peaks:
        raise CostModelError(
            f"precision: {name!r} needs {PEAK_KEY[found.matmul_dtype]} matrix units, which "
            f"{cluster.accelerator.name} does not have (it has {', '.join(sorted(peaks))})"
        )
    # Matrix units that scale blocks themselves do so in 8 bits and in 4: Blackwell, CDNA4 and later.
    if found.matmul_dtype == "mxfp8" and "fp4" not in peaks:
        raise CostModelError(
            f"precision: {name!r} needs matrix units that scale blocks, which {cluster.accelerator.name} does not "
            f"have; its 8 bits are fp8-delayed, fp8-current and fp8-block"
        )
    return found


_JOB_EXAMPLE = "model: llama3-405b"


def load_job_file(path: str | Path) -> dict[str, Any]:
    """Read a job from YAML: the keywords of `costmodel.estimate` as keys.

    Raises
    ------
    CostModelError
        If the file is missing, is not YAML, or has a key that is not a field of a job.
    """
    file = Path(path)
    raw = read_mapping(file, example=_JOB_EXAMPLE)
    return _job_keys(raw, str(file))


def parse_job(text: str, name: str) -> dict[str, Any]:
    """Read the text of a job file; see `load_job_file`."""
    return _job_keys(parse_mapping(text, name, example=_JOB_EXAMPLE), name)


RL_SECTION = "rl"
"""Key of a job file whose values say what a step of reinforcement learning does."""

MEASURED = "measured"
"""Key of a job file that says what a step took: read by ``calibrate runs``, none of the job's."""


_PROFILES = {
    "cluster": "give it as --cluster {name} beside a job",
    "accelerator": "name it under accelerator: in a cluster's profile",
    "link": "name it under tiers: in a cluster's profile",
    "storage": "name it under storage: in a cluster's profile",
}
"""What to do with a hardware profile that is given as a job, by kind."""


def _job_keys(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    if (kind := raw.get("profile")) in _PROFILES:
        raise LayoutError(
            f"{name}: is the profile of a piece of hardware ({kind}), not a job; "
            f"{_PROFILES[kind].format(name=name)} (costmodel hardware check {name} tells whether it can be used)"
        )
    if MEASURED in raw:
        read_measured(raw[MEASURED], name)
    fields = {key: value for key, value in raw.items() if key not in (MEASURED, RL_SECTION)}
    found = keywords(fields, JOB_FIELDS, who=name, thing="field of a job")
    if RL_SECTION not in raw:
        return found
    section = raw[RL_SECTION]
    if not isinstance(section, Mapping):
        raise LayoutError(
            f"{name}: {RL_SECTION}: expected a mapping such as {{prompts: 64}}, got {shown(section)}"
        )
    return {**found, **keywords(section, RL_FIELDS, who=f"{name}: {RL_SECTION}")}
