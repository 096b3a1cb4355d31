"""The keywords of the public calls as types, for editors and type checkers.

They repeat the names of `costmodel.describe.jobs.fields` because types must be written out; a test holds
names, what is required, and kinds to the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Required, TypedDict

from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from costmodel.describe.hardware.cluster import Cluster
    from costmodel.describe.models.model import Model
    from costmodel.describe.recipe import Recipe
    from costmodel.describe.reliability import Reliability
    from costmodel.describe.site import Site


class ChoiceKeywords(TypedDict, total=False):
    """Degrees and choices of a layout; numbers, words, or arrays of them."""

    tp: ArrayLike | None
    cp: ArrayLike | None
    pp: ArrayLike | None
    vp: ArrayLike | None
    ep: ArrayLike | None
    etp: ArrayLike | None
    micro_batch: ArrayLike | None
    zero_stage: ArrayLike | None
    zero: ArrayLike | None
    shard_group: ArrayLike | None
    recompute: ArrayLike | None
    schedule: ArrayLike | None
    sequence_parallel: ArrayLike | None


class LayoutKeywords(ChoiceKeywords, total=False):
    """What `make_layout` takes."""

    gpus: Required[ArrayLike]


class DescribedKeywords(ChoiceKeywords, total=False):
    """What describes a training step but its number of GPUs, which a run may solve for."""

    model: Required[str | Model]
    cluster: str | Cluster | None
    recipe: str | Recipe | None
    precision: str | None
    optimizer: str | None
    lora_rank: int | str | None
    lora_targets: str | Sequence[str] | None
    base_dtype: str | None
    frozen: str | Sequence[str] | None
    packed_len: int | str | Sequence[int | str] | None
    packed_spread: float | str | Sequence[float | str] | None
    dataset_samples: int | str | None
    epochs: float | str | None
    layout: str | None
    dp: int | str | None
    global_batch: Required[ArrayLike]
    seq_len: Required[ArrayLike]
    switches: Mapping[str, Any] | Sequence[str] | None
    set: Mapping[str, Any] | Sequence[str] | None
    axis_order: str | Sequence[str] | None
    site: str | Site | None
    slice: str | None
    price_usd_per_gpu_hour: float | str | Mapping[str, float | str] | None
    price: float | str | Mapping[str, float | str] | None
    pipeline_layout: str | None


class StepKeywords(DescribedKeywords, total=False):
    """What describes a training step."""

    gpus: Required[ArrayLike]


class JobKeywords(StepKeywords, total=False):
    """What `costmodel.estimate` takes."""

    tokens: float | str | None


class SearchKeywords(TypedDict, total=False):
    """What a search is told beside a job."""

    offload_optimizer: bool | Sequence[bool] | str | None
    offload: bool | Sequence[bool] | str | None
    objective: str | None
    max_memory_bytes: float | str | None
    max_memory: float | str | None
    headroom: float | str | None
    risk: float | str | None
    tp_in_domain: bool | None
    fix: Mapping[str, Any] | Sequence[str] | None
    framework: str | None
    choose: bool | str | None


class PlanKeywords(ChoiceKeywords, SearchKeywords, total=False):
    """What `costmodel.plan` takes: several values where it searches."""

    model: Required[str | Model]
    cluster: str | Cluster | Sequence[str | Cluster] | None
    recipe: str | Recipe | None
    precision: str | Sequence[str] | None
    optimizer: str | Sequence[str] | None
    lora_rank: int | str | None
    lora_targets: str | Sequence[str] | None
    base_dtype: str | None
    frozen: str | Sequence[str] | None
    packed_len: int | str | Sequence[int | str] | None
    packed_spread: float | str | Sequence[float | str] | None
    dataset_samples: int | str | None
    epochs: float | str | None
    gpus: Required[ArrayLike]
    global_batch: Required[ArrayLike]
    seq_len: Required[int | str]
    switches: Mapping[str, Any] | Sequence[str] | None
    set: Mapping[str, Any] | Sequence[str] | None
    axis_order: str | Sequence[str] | Sequence[Sequence[str]] | None
    site: str | Site | None
    slice: str | Sequence[str] | None
    price_usd_per_gpu_hour: float | str | Mapping[str, float | str] | None
    price: float | str | Mapping[str, float | str] | None
    pipeline_layout: str | None
    tokens: float | str | None


class GridKeywords(ChoiceKeywords, SearchKeywords, total=False):
    """What `costmodel.sweep` takes: a list makes a point a value where fields are swept."""

    model: str | Model | Sequence[str | Model]
    cluster: str | Cluster | Sequence[str | Cluster] | None
    recipe: str | Recipe | Sequence[str | Recipe] | None
    precision: str | Sequence[str] | None
    optimizer: str | Sequence[str] | None
    lora_rank: int | str | Sequence[int | str] | None
    lora_targets: str | Sequence[str] | None
    base_dtype: str | Sequence[str] | None
    frozen: str | Sequence[str] | None
    packed_len: int | str | Sequence[int | str] | None
    packed_spread: float | str | Sequence[float | str] | None
    dataset_samples: int | str | None
    epochs: float | str | None
    gpus: int | str | Sequence[int | str]
    layout: str | None
    dp: int | str | None
    global_batch: int | str | Sequence[int | str]
    seq_len: int | str | Sequence[int | str]
    switches: Mapping[str, Any] | Sequence[str] | None
    set: Mapping[str, Any] | Sequence[str] | None
    axis_order: str | Sequence[str] | None
    site: str | Site | None
    slice: str | None
    price_usd_per_gpu_hour: float | str | Mapping[str, float | str] | None
    price: float | str | Mapping[str, float | str] | None
    pipeline_layout: str | None
    tokens: float | str | None
    bandwidth_scale: float | Sequence[float] | None


class RunKeywords(DescribedKeywords, total=False):
    """What `costmodel.run` takes."""

    gpus: int | str | None
    tokens: float | str | None
    dollars: float | str | None
    budget: float | str | None
    days: float | str | None
    reliability: str | Reliability | None
    failures_per_node_day: float | str | None
    failures_per_gpu_day: float | str | None
    checkpointing: str | None
    checkpoint_interval_s: float | str | None
    checkpoint_interval: float | str | None
    detection_s: float | str | None
    detection: float | str | None
    restart_s: float | str | None
    restart: float | str | None
    repair_s: float | str | None
    repair: float | str | None
    spare_nodes: int | str | None
    storage_bytes_per_s: float | str | None
    storage_bandwidth: float | str | None
    pue: float | str | None
    samples: int | str | None
    seed: int | str | None


class BudgetKeywords(TypedDict, total=False):
    """What `costmodel.budget` takes."""

    cluster: str | Cluster | None
    precision: str | None
    gpus: int | str | None
    price_usd_per_gpu_hour: float | str | Mapping[str, float | str] | None
    price: float | str | Mapping[str, float | str] | None
    dollars: float | str | None
    budget: float | str | None
    days: float | str | None
    mfu: float | str | None
    effective_time: float | str | None
    served_tokens: float | str | None
    serve_tokens: float | str | None
    context: int | str | None
    samples: int | str | None
    seed: int | str | None


class PlaceKeywords(TypedDict, total=False):
    """What `costmodel.mesh` takes: what places the ranks of one layout."""

    cluster: str | Cluster | None
    recipe: str | Recipe | None
    gpus: Required[int | str]
    layout: str | None
    tp: int | str | None
    cp: int | str | None
    pp: int | str | None
    dp: int | str | None
    vp: int | str | None
    ep: int | str | None
    etp: int | str | None
    zero_stage: int | str | None
    zero: int | str | None
    shard_group: int | str | None
    sequence_parallel: bool | str | None
    switches: Mapping[str, Any] | Sequence[str] | None
    set: Mapping[str, Any] | Sequence[str] | None
    axis_order: str | Sequence[str] | None
    slice: str | None


class ReadKeywords(ChoiceKeywords, total=False):
    """What `costmodel.read` may be told beside a file: keywords of a job, and what the file's shell knew."""

    env: Mapping[str, str] | None
    vocab_size: int | None
    collective: str | None
    ranks: int | None
    nodes: int | None
    model: str | Model | None
    cluster: str | Cluster | None
    recipe: str | Recipe | None
    precision: str | None
    optimizer: str | None
    lora_rank: int | str | None
    lora_targets: str | Sequence[str] | None
    base_dtype: str | None
    frozen: str | Sequence[str] | None
    packed_len: int | str | Sequence[int | str] | None
    packed_spread: float | str | Sequence[float | str] | None
    dataset_samples: int | str | None
    epochs: float | str | None
    gpus: int | str | None
    layout: str | None
    dp: int | str | None
    global_batch: int | str | None
    seq_len: int | str | None
    switches: Mapping[str, Any] | Sequence[str] | None
    set: Mapping[str, Any] | Sequence[str] | None
    axis_order: str | Sequence[str] | None
    price_usd_per_gpu_hour: float | str | Mapping[str, float | str] | None
    price: float | str | Mapping[str, float | str] | None
    pipeline_layout: str | None
    site: str | Site | None
    slice: str | None
    tokens: float | str | None
