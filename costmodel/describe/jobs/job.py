"""A job: everything an estimate needs, from flags, keywords or a YAML file, checked once.

`make_job` is the boundary: names become objects, texts become numbers, and whatever is unknown,
contradictory or impossible raises one line that names the field, the value and what is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.errors import CostModelError, LayoutError, ProfileError, choices_hint
from costmodel.base.yaml_files import read_mapping
from costmodel.describe.hardware.cluster import Cluster
from costmodel.describe.hardware.hardware import load_cluster
from costmodel.describe.jobs.layout import Layout, first_of, make_layout, parse_layout, require_possible
from costmodel.describe.models.model import Model
from costmodel.describe.models.model_files import load_model
from costmodel.describe.recipe import Precision, Recipe, load_recipe, precision, resolved_for, with_switches
from costmodel.physics.network.mesh import DEFAULT_ORDER
from costmodel.physics.pipeline.chunks import Chunk, parse_chunks, require_chunks
from costmodel.physics.pipeline.schedules import schedule_at, valid

Array = NDArray[np.float64]

DEFAULT_RECIPE = "megatron-core"
DEFAULT_CLUSTER = "dgx-h100-ndr"
_LAYOUT_KEYS = (
    "tp",
    "cp",
    "pp",
    "vp",
    "ep",
    "etp",
    "micro_batch",
    "zero_stage",
    "shard_group",
    "recompute",
    "schedule",
    "sequence_parallel",
)
JOB_KEYS = (
    "model",
    "cluster",
    "gpus",
    "layout",
    "dp",
    *_LAYOUT_KEYS,
    "global_batch",
    "seq_len",
    "precision",
    "recipe",
    "switches",
    "axis_order",
    "tokens",
    "pipeline_layout",
)


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
    tokens: float | None = None
    pipeline_layout: tuple[Chunk, ...] = ()


def make_job(
    *,
    model: str | Model,
    cluster: str | Cluster = DEFAULT_CLUSTER,
    gpus: ArrayLike,
    layout: str | None = None,
    global_batch: ArrayLike,
    seq_len: ArrayLike,
    precision: str = "bf16",
    recipe: str | Recipe = DEFAULT_RECIPE,
    switches: Mapping[str, Any] | None = None,
    axis_order: str | Sequence[str] = DEFAULT_ORDER,
    tokens: float | None = None,
    pipeline_layout: str | None = None,
    dp: int | None = None,
    check: bool = True,
    **degrees: Any,
) -> Job:
    """Check and complete a job; see `costmodel.estimate` for the parameters.

    Raises
    ------
    CostModelError
        One line that names the field, the value and what is allowed.
    """
    unknown = sorted(degrees.keys() - set(_LAYOUT_KEYS))
    if unknown:
        raise LayoutError(f"job: {unknown[0]!r} is not a field; {choices_hint(unknown[0], JOB_KEYS)}")
    given = {key: value for key, value in degrees.items() if value is not None}
    if layout is not None:
        for axis, degree in parse_layout(layout).items():
            if axis != "dp" and given.get(axis, degree) != degree:
                raise LayoutError(f"{axis}: given as {given[axis]} and, in the layout text, as {degree}")
            if axis == "dp":
                if dp is not None and dp != degree:
                    raise LayoutError(f"dp: given as {dp} and, in the layout text, as {degree}")
                dp = degree
            else:
                given[axis] = degree
    the_model = load_model(model) if isinstance(model, str) else model
    the_cluster = load_cluster(cluster) if isinstance(cluster, str) else cluster
    if the_cluster.accelerator.kernels is None:
        raise ProfileError(
            f"accelerator {the_cluster.accelerator.name}: has no 'kernels' block; costmodel calibrate writes one"
        )
    the_recipe = load_recipe(recipe) if isinstance(recipe, str) else recipe
    the_layout = make_layout(gpus=gpus, **given)
    job = Job(
        model=the_model,
        cluster=the_cluster,
        recipe=resolved_for(
            with_switches(the_recipe, dict(switches or {})), the_cluster.accelerator.generation
        ),
        precision=_precision(precision, the_cluster),
        layout=the_layout,
        global_batch=_positive("global_batch", global_batch),
        seq_len=_positive("seq_len", seq_len),
        axis_order=_axis_order(axis_order),
        tokens=None if tokens is None else float(_positive("tokens", tokens)),
        pipeline_layout=() if pipeline_layout is None else parse_chunks(pipeline_layout),
    )
    if job.pipeline_layout:
        _check_pipeline_layout(job)
    if check:
        check_job(job, dp)
    return job


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
    require_possible(layout, job.model, job.global_batch, job.seq_len, method=job.recipe.cp_method)
    micro_batches = job.global_batch / (layout.dp * layout.micro_batch)
    runs = valid(layout.schedule, layout.pp, micro_batches, layout.vp)
    if not np.all(runs):
        code, pp, vp, count = first_of(~runs, layout.schedule, layout.pp, layout.vp, micro_batches)
        schedule = schedule_at(code)
        broken = schedule.broken_rules(stages=pp, micro_batches=count, virtual_stages=vp)
        raise LayoutError(
            f"schedule: {schedule.name} cannot run pp = {pp:.0f} stages, vp = {vp:.0f} and "
            f"{count:.0f} micro-batches; it needs {', '.join(rule.text for rule in broken)}"
        )


def _check_pipeline_layout(job: Job) -> None:
    """Refuse a pipeline layout that does not hold the model on the stages of every layout."""
    pp, vp = np.unique(job.layout.pp), np.unique(job.layout.vp)
    if pp.size > 1 or vp.size > 1:
        raise LayoutError("pipeline_layout: needs one pp and one vp, this job has several")
    require_chunks(
        job.pipeline_layout,
        layers=job.model.num_layers,
        mtp=job.model.mtp_layers,
        pp=int(pp[0]),
        vp=int(vp[0]),
    )


def _check_reduction(job: Job) -> None:
    """Refuse ways to reduce gradients that sharded states rule out."""
    recipe, layout = job.recipe, job.layout
    method = recipe.gradient_compression
    if method in ("top-k", "powersgd") and np.any(layout.zero_stage > 0):
        raise CostModelError(
            f"gradient_compression: {method} needs whole gradients on every replica, zero_stage 0; got "
            f"{float(np.max(layout.zero_stage)):.0f} (fp16, int8 and int4 also work with sharded states)"
        )
    if recipe.sync_every > 1 and np.any((layout.zero_stage > 0) & (layout.shard_group == 0)):
        raise CostModelError(
            f"sync_every: {recipe.sync_every} needs replicas that hold everything: zero_stage 0, or a shard_group "
            f"smaller than dp·cp, between which the average is rare"
        )


def _precision(name: str, cluster: Cluster) -> Precision:
    """Return the precision if the cluster's accelerator has it."""
    from costmodel.describe.hardware.kernels import PEAK_KEY

    found = precision(name, cluster.accelerator.generation)
    peaks = cluster.accelerator.peak_flops_per_s
    if PEAK_KEY[found.matmul_dtype] not in peaks:
        raise CostModelError(
            f"precision: {name!r} needs {PEAK_KEY[found.matmul_dtype]} matrix units, which "
            f"{cluster.accelerator.name} does not have (it has {', '.join(sorted(peaks))})"
        )
    return found


def _positive(name: str, value: ArrayLike) -> Array:
    """Return a positive whole number (or an array of them) as float64."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise LayoutError(f"{name}: expected a positive whole number, got {value!r}") from None
    if not np.all(np.isfinite(array) & (array >= 1) & (array == np.floor(array))):
        raise LayoutError(f"{name}: expected a positive whole number, got {value!r}")
    return array


def _axis_order(order: str | Sequence[str]) -> tuple[str, ...]:
    """Read an axis order such as "tp cp dp pp" or "tp-cp-pp-dp", innermost first."""
    axes = tuple(order.replace("-", " ").replace(",", " ").split() if isinstance(order, str) else order)
    if sorted(axes) != sorted(DEFAULT_ORDER):
        raise LayoutError(
            f"axis_order: {' '.join(axes)!r} must name each of tp, cp, dp, pp once, innermost first"
        )
    return axes


def load_job_file(path: str | Path) -> dict[str, Any]:
    """Read a job from YAML: the keywords of `costmodel.estimate` as keys.

    Raises
    ------
    CostModelError
        If the file is missing, is not YAML, or has a key that is not a field of a job.
    """
    file = Path(path)
    raw = read_mapping(file, example="model: llama3-405b")
    for key in raw:
        if key not in JOB_KEYS:
            raise CostModelError(
                f"{file}: {key!r} is not a field of a job; {choices_hint(str(key), JOB_KEYS)}"
            )
    return raw
