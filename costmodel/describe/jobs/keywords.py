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


class StepKeywords(ChoiceKeywords, total=False):
    """What describes a training step."""

    model: Required[str | Model]
    cluster: str | Cluster | None
    recipe: str | Recipe | None
    precision: str | None
    gpus: Required[ArrayLike]
    layout: str | None
    dp: int | str | None
    global_batch: Required[ArrayLike]
    seq_len: Required[ArrayLike]
    switches: Mapping[str, Any] | Sequence[str] | None
    set: Mapping[str, Any] | Sequence[str] | None
    axis_order: str | Sequence[str] | None
    slice: str | None
    pipeline_layout: str | None


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
    tp_in_domain: bool | None
    fix: Mapping[str, Any] | Sequence[str] | None
    framework: str | None


class PlanKeywords(ChoiceKeywords, SearchKeywords, total=False):
    """What `costmodel.plan` takes: several values where it searches."""

    model: Required[str | Model]
    cluster: str | Cluster | Sequence[str | Cluster] | None
    recipe: str | Recipe | None
    precision: str | Sequence[str] | None
    gpus: Required[ArrayLike]
    global_batch: Required[ArrayLike]
    seq_len: Required[int | str]
    switches: Mapping[str, Any] | Sequence[str] | None
    set: Mapping[str, Any] | Sequence[str] | None
    axis_order: str | Sequence[str] | Sequence[Sequence[str]] | None
    slice: str | Sequence[str] | None
    tokens: float | str | None


class GridKeywords(ChoiceKeywords, SearchKeywords, total=False):
    """What `costmodel.sweep` takes: a list makes a point a value where fields are swept."""

    model: str | Model | Sequence[str | Model]
    cluster: str | Cluster | Sequence[str | Cluster] | None
    recipe: str | Recipe | Sequence[str | Recipe] | None
    precision: str | Sequence[str] | None
    gpus: int | str | Sequence[int | str]
    layout: str | None
    dp: int | str | None
    global_batch: int | str | Sequence[int | str]
    seq_len: int | str | Sequence[int | str]
    switches: Mapping[str, Any] | Sequence[str] | None
    set: Mapping[str, Any] | Sequence[str] | None
    axis_order: str | Sequence[str] | None
    slice: str | None
    pipeline_layout: str | None
    tokens: float | str | None
    bandwidth_scale: float | Sequence[float] | None
