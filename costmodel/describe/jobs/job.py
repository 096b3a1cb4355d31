"""A job: everything an estimate needs, from flags, keywords or a YAML file, checked once.

`make_job` is the boundary: names become objects, texts become numbers, and unknown, contradictory or
impossible input raises a one-line error with the field, the value and what is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodel.base.errors import CostModelError, LayoutError, ProfileError, shown
from costmodel.base.numbers import distinct
from costmodel.base.words import errors_with_device_name
from costmodel.describe.factors import NOMINAL, PRIOR, Belief, Factors
from costmodel.describe.hardware.changed import require_placed, with_hardware
from costmodel.describe.hardware.cluster import Accelerator, Cluster
from costmodel.describe.hardware.hardware import load_cluster
from costmodel.describe.hardware.kernels import PEAK_KEY
from costmodel.describe.hardware.prices import with_mixed_price, with_price
from costmodel.describe.hardware.slices import parse_slice, slice_text, sliced
from costmodel.describe.jobs.fields import FIELD, JOB_FIELDS, LAYOUT_FIELDS, names
from costmodel.describe.jobs.layout import (
    Layout,
    first_of,
    layout_problems,
    make_layout,
    parse_layout,
    torus_problem,
)
from costmodel.describe.jobs.packing import Images, Packing, make_images, make_packing
from costmodel.describe.jobs.reading import (
    keywords,
    read,
    read_array,
    read_given,
    require_alike,
    require_complete,
)
from costmodel.describe.jobs.tuning import Tuning, make_tuning
from costmodel.describe.models.model import Model
from costmodel.describe.models.model_files import load_model
from costmodel.describe.optimizers import OPTIMIZERS, Optimizer, optimizer
from costmodel.describe.precision import Precision, precision
from costmodel.describe.recipe import NUMERIC, Recipe, load_recipe, require_cores, resolved_for, switch_text
from costmodel.describe.site import NO_SITE, Site, load_site
from costmodel.describe.switch_table import Switches
from costmodel.physics.network.gradient_compression import METHODS, compression
from costmodel.physics.network.mesh import DEFAULT_ORDER
from costmodel.physics.pipeline.chunks import Chunk, parse_chunks, require_chunks
from costmodel.physics.pipeline.schedules import schedule_at, valid

Array = NDArray[np.float64]

DEFAULT_RECIPE = str(FIELD["recipe"].default)
DEFAULT_CLUSTER = str(FIELD["cluster"].default)

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
    balanced_stages: bool = False  # Layers are balanced over stages to offset the LM head
    tuning: Tuning = field(default_factory=Tuning)  # Which parameters are trained
    packing: Packing = field(default_factory=Packing)  # Lengths of the documents in a sequence
    images: Images = field(default_factory=Images)  # Images of a sequence
    factors: Factors = NOMINAL
    """What the calibrated constants are multiplied by; samples of them are leading dimensions of every figure."""
    belief: Belief = PRIOR
    """What is known of the factors beyond the shipped spreads: what samples are drawn from."""
    site: str = ""  # File that factors and belief are from, empty where there is none

    @property
    def policy(self) -> Switches:
        """Switches of gradient synchronisation, compression and offloading."""
        return self.recipe.policy

    @property
    def health(self) -> Switches:
        """Switches of stragglers and failures."""
        return self.recipe.health

    @property
    def span(self) -> Array:
        """Length that attention spans: the sequence, or less where documents are packed. [-]"""
        return self.packing.span(self.seq_len)

    @property
    def micro_batches(self) -> Array:
        """Micro-batches a step of each replica. [-]"""
        return self.layout.micro_batches(self.global_batch)

    @property
    def slice(self) -> str:
        """Shape of the job's slices of a torus; empty elsewhere."""
        return slice_text(self.cluster.tiers[0].shape)

    @property
    def steps_factor(self) -> float:
        """Steps to the same loss with compressed gradients over those with full gradients. [-]"""
        known = compression(self.policy.gradient_compression).steps
        return float(self.policy.compression_steps or known)

    @property
    def switches(self) -> dict[str, Any]:
        """Values of everything that ``--set`` can change, by name."""
        return self.recipe.switches

    def switched(self, changes: Mapping[str, Any]) -> Job:
        """Return the job with some switches changed; ``auto`` kernels are chosen again."""
        recipe = resolved_for(self.recipe.switched(changes), self.cluster.accelerator, self.precision.name)
        _check_optimizer(self.optimizer, recipe)
        return replace(self, recipe=recipe)


def default_recipe(cluster: Cluster) -> str:
    """Return the recipe of a job that names none: what most people run on such hardware."""
    return cluster.accelerator.software.recipe or DEFAULT_RECIPE


def make_job(*, check: bool = True, **fields: Any) -> Job:
    """Check and complete a job; see `costmodel.estimate` for the keywords."""
    return job_of(fields, who="job", check=check)


def job_of(fields: Mapping[str, Any], *, who: str, check: bool = True) -> Job:
    """Check and complete a job given by field names; `who` names the caller in messages."""
    given = expand_layout(keywords(fields, JOB_FIELDS, who=who))
    require_complete(given, who=who)
    model, cluster = read_given(given, "model"), cluster_of(given)
    the_model = load_model(model) if isinstance(model, str) else _instance("model", model, Model)
    with errors_with_device_name(cluster.accelerator.called):
        return _job_on(cluster, the_model, given, check=check)


def cluster_of(given: Mapping[str, Any]) -> Cluster:
    """Return the cluster of a job, given by name or as an object."""
    named = read_given(given, "cluster")
    return load_cluster(named) if isinstance(named, str) else _instance("cluster", named, Cluster)


def resolved_cluster(cluster: Cluster, given: Mapping[str, Any], layout: Layout) -> Cluster:
    """Return the cluster with the changed numbers (`hw`), prices and slices of a job."""
    if "hw" in given:
        cluster = with_hardware(cluster, read("hw", given["hw"]))
    require_placed(cluster, layout.gpus)
    cluster = with_mixed_price(cluster, layout.gpus)
    return sliced_for(cluster, layout, read_given(given, "slice"))


def recipe_of(given: Mapping[str, Any], cluster: Cluster) -> Recipe:
    """Return the recipe of a job, or the default of its cluster, with the job's switches."""
    named = read("recipe", given["recipe"]) if "recipe" in given else default_recipe(cluster)
    recipe = load_recipe(named) if isinstance(named, str) else _instance("recipe", named, Recipe)
    return recipe.switched(read("switches", given["switches"])) if given.get("switches") else recipe


def _job_on(cluster: Cluster, model: Model, given: Mapping[str, Any], *, check: bool) -> Job:
    """Check and complete a job whose cluster and model are known."""
    cluster = with_price(cluster, read_given(given, "price_usd_per_gpu_hour"))
    recipe = recipe_of(given, cluster)
    if recipe.launches and recipe.launches.zero_stage == (0,):
        given = {"zero_stage": 0, **given}  # a framework that shards nothing has no other default
    layout = layout_of_job(given)
    require_alike(given)
    cluster = resolved_cluster(cluster, given, layout)
    accelerator = cluster.accelerator
    if accelerator.kernels is None:
        raise ProfileError(
            f"accelerator {accelerator.name}: has no 'kernels' block; costmodel observed calibrate writes one"
        )
    site = read_given(given, "site") or NO_SITE
    site = load_site(site) if isinstance(site, str | Path) else _instance("site", site, Site)
    chunks = read_given(given, "pipeline_layout") or ""
    seq_len = read_array("seq_len", given["seq_len"])
    named = read("precision", given["precision"]) if "precision" in given else None
    precision = precision_on(named, accelerator)
    per_sample = (
        read("images_per_sample", given["images_per_sample"]) if "images_per_sample" in given else None
    )
    job = Job(
        model=model,
        cluster=cluster,
        recipe=resolved_for(recipe, accelerator, precision.name),
        precision=precision,
        optimizer=optimizer(read_given(given, "optimizer")),
        layout=layout,
        global_batch=read_array("global_batch", given["global_batch"]),
        seq_len=seq_len,
        axis_order=read_given(given, "axis_order"),
        tokens=run_tokens(given),
        pipeline_layout=() if chunks in ("", EVEN, BALANCED) else parse_chunks(chunks),
        balanced_stages=chunks == BALANCED or (chunks == "" and balances_stages(model, recipe)),
        tuning=_tuning(given),
        packing=make_packing(read_given(given, "packed_len"), read_given(given, "packed_spread"), seq_len),
        images=make_images(
            model, per_sample, read_given(given, "image_tokens"), read_given(given, "image_spread"), seq_len
        ),
        factors=site.factors,
        belief=site.belief,
        site=site.path,
    )
    _check_optimizer(job.optimizer, job.recipe)
    _check_tuning(job)
    if job.pipeline_layout:
        _check_pipeline_layout(job)
    if check:
        require_cores(job.recipe, accelerator)
        check_job(job, read_given(given, "dp"))
    return job


def run_tokens(given: Mapping[str, Any]) -> float | None:
    """Return the tokens of the whole run, as `tokens` or as epochs over the samples of a data set; none if not given. [-]"""
    tokens: float | None = read_given(given, "tokens")
    if "dataset_samples" not in given:
        if "epochs" in given:
            raise CostModelError("epochs: needs dataset_samples, the samples of one epoch")
        return tokens
    if tokens is not None:
        raise CostModelError("tokens: follow from dataset_samples and epochs; give one or the other")
    samples, epochs = read("dataset_samples", given["dataset_samples"]), read_given(given, "epochs")
    longest = float(np.max(read_array("seq_len", given["seq_len"])))
    return float(samples * epochs * (read_given(given, "packed_len") or longest))


def _tuning(given: Mapping[str, Any]) -> Tuning:
    """Return which parts of the model a job trains."""

    def words(name: str) -> str:
        value = given.get(name, "")
        text = ",".join(value) if isinstance(value, list | tuple) else value
        return str(read(name, text)) if text else ""

    rank, base = read_given(given, "lora_rank"), read_given(given, "base_dtype")
    return make_tuning(rank, words("lora_targets"), base, words("frozen"))


_Kind = TypeVar("_Kind")


def _instance(name: str, given: object, kind: type[_Kind]) -> _Kind:
    """Return an object that was given in place of a name, checked for its class."""
    if not isinstance(given, kind):
        raise CostModelError(f"{name}: expected a text or a {kind.__name__}, got {shown(given)}")
    return given


def expand_layout(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a job with the degrees of its layout text in place of the text."""
    found = {name: value for name, value in given.items() if name != "layout"}
    if "layout" not in given:
        return found
    for axis, degree in parse_layout(read("layout", given["layout"])).items():
        if axis in found and not np.array_equal(read_array(axis, found[axis]), degree):
            named = read_array(axis, found[axis]).astype(int)
            raise LayoutError(
                f"{axis}: given as {shown(named.tolist())} and, in the layout text, as {degree}"
            )
        found[axis] = degree
    return found


def sliced_for(cluster: Cluster, layout: Layout, shape: str | None) -> Cluster:
    """Return the cluster with the slices that a job's layouts run on."""
    gpus = distinct(layout.gpus)
    if cluster.tiers[0].shape and len(gpus) > 1:
        raise LayoutError(
            f"gpus: a job on the torus of {cluster.name} has one number of chips, this one several"
        )
    return sliced(cluster, gpus[0], parse_slice(shape) if shape is not None else ())


def layout_of_job(given: Mapping[str, Any]) -> Layout:
    """Return the layout of a job from its fields."""
    taken = {"gpus", *names(LAYOUT_FIELDS)} - {"dp"}
    choices: dict[str, Any] = {name: value for name, value in given.items() if name in taken}
    return make_layout(**choices)


def require_dp(layout: Layout, dp: float | None) -> None:
    """Refuse a data-parallel degree that does not follow from the others."""
    product = layout.tp * layout.cp * layout.pp
    if dp is not None and np.any(layout.gpus != product * dp):
        tp, cp, pp, gpus = first_of(layout.gpus != product * dp, layout.tp, layout.cp, layout.pp, layout.gpus)
        raise LayoutError(
            f"layout: tp·cp·pp·dp = {tp:.0f}·{cp:.0f}·{pp:.0f}·{dp} = {tp * cp * pp * dp:.0f}, but gpus = {gpus:.0f}"
        )


def check_job(job: Job, dp: int | None = None) -> None:
    """Raise an error for the first rule that a job of one layout breaks."""
    layout, largest = job.layout, job.cluster.tiers[-1].size
    if np.any(layout.gpus > largest):
        raise LayoutError(
            f"gpus: {float(layout.gpus.max()):.0f} is more than cluster {job.cluster.name} can hold ({largest})"
        )
    require_dp(layout, dp)
    _check_gradient_sync(job)
    misplaced = torus_problem(layout, job.cluster, job.axis_order)
    if misplaced.bad.any():
        raise LayoutError(f"layout: {misplaced.sentence}")
    require_possible(layout, job)
    micro_batches = job.micro_batches
    runs = valid(layout.schedule, layout.pp, micro_batches, layout.vp)
    if not np.all(runs):
        code, pp, vp, count = first_of(~runs, layout.schedule, layout.pp, layout.vp, micro_batches)
        schedule = schedule_at(code)
        broken = schedule.broken_rules(stages=pp, micro_batches=count, virtual_stages=vp)
        raise LayoutError(
            f"schedule: {schedule.name} cannot run pp = {pp:.0f} stages, vp = {vp:.0f} and "
            f"{count:.0f} micro-batches; it needs {', '.join(broken)}"
        )


def balances_stages(model: Model, recipe: Recipe) -> bool:
    """Tell whether layers are divided by work where no pipeline layout is given.

    Multi-token prediction repeats the head on the last stage; nearly all published runs of such models make room for it
    (Megatron-Bridge's recipes, DeepSeek-V3).
    """
    return model.mtp_layers > 0 and (recipe.launches is None or recipe.launches.pipeline_layouts)


def _check_pipeline_layout(job: Job) -> None:
    """Refuse a pipeline layout that does not match the model and the number of stages."""
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
    """Refuse optimizers without a price where only a part of the model is trained."""
    if not job.tuning.whole and job.optimizer.has_own_steps:
        alike = (name for name, one in OPTIMIZERS.items() if not one.has_own_steps)
        raise CostModelError(
            f"optimizer: {job.optimizer.name}, which steps matrices in a way of their own, has no price with "
            f"lora_rank or frozen; {', '.join(alike)} have"
        )


def _check_optimizer(chosen: Optimizer, recipe: Recipe) -> None:
    """Refuse to offload an optimizer that has no CPU implementation."""
    if recipe.host.offload_optimizer and not chosen.on_host:
        known = ", ".join(name for name, one in OPTIMIZERS.items() if one.on_host)
        raise CostModelError(f"offload_optimizer: no host steps {chosen.name}; it needs optimizer {known}")


def require_possible(layout: Layout, job: Job) -> None:
    """Raise `LayoutError` with the numbers of the first rule that a layout of a job breaks."""
    for problem in layout_problems(layout, job.model, job.global_batch, job.seq_len, job.recipe.overlap):
        if problem.bad.any():
            numbers = problem.numbers
            first = dict(zip(numbers, first_of(problem.bad, *numbers.values()), strict=True))
            hint = ""
            if problem.code == "batch_not_divisible":
                hint = f"; a multiple of {first['dp'] * first['micro_batch']:.0f} does, or costmodel plan finds a layout"
            raise LayoutError(f"layout: {problem.sentence.format(**first, model=job.model.name)}{hint}")


def _check_gradient_sync(job: Job) -> None:
    """Refuse ways of synchronising gradients that sharded states exclude."""
    policy, layout = job.policy, job.layout
    method = compression(policy.gradient_compression)
    *most, last = (one.name for one in METHODS.values() if one.shards and one.name != "none")
    also = f"{', '.join(most)} and {last}"
    if not job.tuning.whole and not method.shards:
        raise CostModelError(
            f"gradient_compression: {method.name} is for training of every parameter; with lora_rank or frozen "
            f"{also} work"
        )
    if not method.shards and np.any(layout.zero_stage > 0):
        raise CostModelError(
            f"gradient_compression: {method.name} needs whole gradients on every replica, zero_stage 0; got "
            f"{float(np.max(layout.zero_stage)):.0f} ({also} also work with sharded states)"
        )
    if policy.sync_every > 1 and np.any((layout.zero_stage > 0) & (layout.shard_group == 0)):
        raise CostModelError(
            f"sync_every: {policy.sync_every} needs replicas that hold everything: zero_stage 0, or a shard_group "
            f"smaller than dp·cp, between which the average is rare"
        )
    groups = (layout.zero_stage > 0) & (layout.shard_group > 0)
    if policy.outer_compression != "none" and not (policy.sync_every > 1 and np.all(groups)):
        raise CostModelError(
            f"outer_compression: {policy.outer_compression} is for averages between the groups of a shard_group, with "
            "sync_every above 1; elsewhere gradient_compression is of all that replicas send"
        )
    for name, value, most in (
        ("sync_fragments", policy.sync_fragments, policy.sync_every),
        ("sync_overlap_steps", policy.sync_overlap_steps, policy.sync_every - 1),
    ):
        if value > most:
            raise CostModelError(
                f"{name}: expected at most {most} where sync_every is {policy.sync_every}, got {value}"
            )


def precision_on(name: str | None, accelerator: Accelerator) -> Precision:
    """Return the precision if the accelerator has it; with no name, bf16, or fp16 or fp32 where it has no bf16.

    ``fp8`` is what Transformer Engine takes where no recipe is named: MXFP8 where the matrix units have it,
    delayed scaling elsewhere (transformer_engine/pytorch/quantization.py, `get_default_fp8_recipe`).
    """
    peaks, software = accelerator.peak_flops_per_s, accelerator.software
    if name is None:
        name = next(one for one in ("bf16", "fp16", "fp32") if PEAK_KEY[one] in peaks)
    elif name == "fp8":
        name = software.fp8
    found = precision(name, transposes=software.fp8_layouts == "one")
    if PEAK_KEY[found.matmul_dtype] not in peaks:
        raise CostModelError(
            f"precision: {name!r} needs {PEAK_KEY[found.matmul_dtype]} matrix units, which "
            f"{accelerator.name} does not have (it has {', '.join(sorted(peaks))})"
        )
    # Matrix units that scale blocks themselves do so in 8 bits and in 4: Blackwell, CDNA4 and later.
    if found.matmul_dtype == "mxfp8" and "fp4" not in peaks:
        raise CostModelError(
            f"precision: {name!r} needs matrix units that scale blocks, which {accelerator.name} does not "
            f"have; its 8 bits are fp8-delayed, fp8-current and fp8-block"
        )
    return found


Kind = Literal["rate", "latency", "number", "switch", "layout"]


class Change(NamedTuple):
    """A job with one change: a name such as ``hbm bandwidth``, ``dp_overlap`` or ``tp``, and both values.

    `kind` is rate (something per second), latency (seconds), number (any other of the recipe or the job), switch (a
    choice of them), or layout; numbers are in SI units.
    """

    name: str
    before: float | str
    after: float | str
    job: Job
    kind: Kind
    unit: str = ""

    @property
    def changes_numerics(self) -> bool:
        """Whether the change alters the trained weights."""
        return self.kind == "switch" and self.name in NUMERIC

    def __str__(self) -> str:
        """Return the change as flags and job files take it."""
        if self.kind == "switch":
            return f"{self.name}={self.after}"
        return f"{self.name} {self.after}".strip()


def layout_change(job: Job, name: str, before: str, after: str, **degrees: float) -> Change:
    """Return the change of some degrees of a job's single layout, or of choices by their codes; unchecked."""
    changes: dict[str, Any] = {field: np.asarray(float(value)) for field, value in degrees.items()}
    return Change(name, before, after, replace(job, layout=replace(job.layout, **changes)), "layout")


def switch_change(job: Job, name: str, value: Any) -> Change:
    """Return the change of one switch to another value."""
    changed = job.switched({name: value})
    return Change(name, switch_text(job.switches[name]), switch_text(value), changed, "switch")
