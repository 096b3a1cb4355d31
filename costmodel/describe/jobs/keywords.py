"""The keywords of the public calls as types, for editors and type checkers; a test holds them to the table of fields.

A type checker refuses a name that is no field. What one call does not take, leaves out, or takes only one value of,
it says when it runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from numpy.typing import ArrayLike

from costmodel.describe.jobs.fields import Field

if TYPE_CHECKING:
    from costmodel.describe.hardware.cluster import Cluster
    from costmodel.describe.models.model import Model
    from costmodel.describe.recipe import Recipe
    from costmodel.describe.reliability import Reliability
    from costmodel.describe.site import Site

_Call = TypeVar("_Call", bound=Callable[..., Any])
Words = str | Sequence[str] | None
Number = float | str | None
Numbers = ArrayLike | None
Named = Mapping[str, Any] | Sequence[str] | None
Price = float | str | Mapping[str, float | str] | None


class LayoutKeywords(TypedDict, total=False):
    """Degrees and choices of a layout; numbers, words, or arrays of them."""

    gpus: Numbers
    tp: Numbers
    cp: Numbers
    pp: Numbers
    vp: Numbers
    ep: Numbers
    etp: Numbers
    micro_batch: Numbers
    zero_stage: Numbers
    zero: Numbers
    shard_group: Numbers
    recompute: Numbers
    schedule: Numbers
    sequence_parallel: Numbers


class JobKeywords(LayoutKeywords, total=False):
    """What describes a training step, for `costmodel.estimate` and all that starts from one."""

    model: str | Model | Sequence[str | Model]
    cluster: str | Cluster | Sequence[str | Cluster] | None
    recipe: str | Recipe | Sequence[str | Recipe] | None
    precision: Words
    optimizer: Words
    lora_rank: Numbers
    lora_targets: Words
    base_dtype: Words
    frozen: Words
    packed_len: Numbers
    packed_spread: Numbers
    images_per_sample: Numbers
    image_tokens: Numbers
    image_spread: Numbers
    dataset_samples: Number
    epochs: Number
    layout: str | None
    dp: Number
    global_batch: Numbers
    seq_len: Numbers
    switches: Named
    set: Named
    axis_order: str | Sequence[str] | Sequence[Sequence[str]] | None
    site: str | Site | None
    hw: Named
    slice: Words
    tokens: Number
    price_usd_per_gpu_hour: Price
    price: Price
    pipeline_layout: str | None


class PlanKeywords(JobKeywords, total=False):
    """What `costmodel.plan` and `costmodel.sweep` take beside a job."""

    offload_optimizer: bool | Sequence[bool] | str | None
    offload: bool | Sequence[bool] | str | None
    objective: str | None
    max_memory_bytes: Number
    max_memory: Number
    headroom: Number
    risk: Number
    tp_in_domain: bool | None
    fix: Named
    keep: Words
    framework: str | None
    choose: bool | str | None
    bandwidth_scale: float | Sequence[float] | None


class RunKeywords(JobKeywords, total=False):
    """What `costmodel.run` takes beside a job, and `costmodel.budget` in place of one."""

    dollars: Number
    budget: Number
    days: Number
    reliability: str | Reliability | None
    failures_per_node_day: Number
    failures_per_gpu_day: Number
    checkpointing: str | None
    checkpoint_interval_s: Number
    checkpoint_interval: Number
    detection_s: Number
    detection: Number
    restart_s: Number
    restart: Number
    repair_s: Number
    repair: Number
    spare_nodes: Number
    storage_bytes_per_s: Number
    storage_bandwidth: Number
    pue: Number
    carbon_intensity: Number
    on_failure: str | None
    samples: Number
    seed: Number
    mfu: Number
    effective_time: Number
    served_tokens: Number
    serve_tokens: Number
    context: Number
    answers: Number
    pass_rate: str | None
    samples_per_prompt: Number
    prompt_len: Number
    prompt: Number
    response_len: Number
    response: Number


class RLKeywords(JobKeywords, total=False):
    """What `costmodel.estimate_rl` takes beside a job."""

    algorithm: str | None
    prompts: Number
    samples_per_prompt: Number
    prompt_len: Number
    response_len: Number
    max_response_len: Number
    response_quantiles: str | None
    response_file: str | None
    rollout_factor: Number
    optimizer_steps: Number
    ppo_epochs: Number
    batching: str | None
    reference: bool | str | None
    old_logprobs: bool | str | None
    teacher: str | Model | None
    reward_model: str | Model | None
    reward_s: Number
    generation_gpus: Number
    lag: Number
    generation_layout: str | None
    engine: str | None
    generation_precision: str | None
    memory_fraction: Number
    max_running: Number
    cuda_graphs: bool | str | None
    optimizer_swap: bool | str | None
    refit: str | None
    rl_framework: str | None


class GenerateKeywords(TypedDict, total=False):
    """What `costmodel.generate` takes."""

    model: str | Model
    cluster: str | Cluster
    gpus: Number
    layout: str | None
    precision: str | None
    price_usd_per_gpu_hour: Number
    prompt_len: Number
    response_len: Number
    batch: Number
    engine: str | None
    memory_fraction: Number
    max_running: Number
    cuda_graphs: bool | str | None


class ReadKeywords(JobKeywords, total=False):
    """What `costmodel.read` takes besides a file: keywords of a job, and what the file's shell knew."""

    env: Mapping[str, str] | None
    allow_source: Words
    vocab_size: int | None
    collective: str | None
    ranks: int | None
    nodes: int | None


def shows(fields: Iterable[Field], *, searched: bool = False) -> Callable[[_Call], _Call]:
    """Give a call the names and defaults of its ``**keywords``; `searched` shows no default of what a search turns."""

    def default(field: Field) -> object:
        if field.required:
            return inspect.Parameter.empty  # the mark of a keyword that must be given
        return None if searched and field.tuned else field.default

    def decorate(call: _Call) -> _Call:
        signature = inspect.signature(call)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        more = [
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default(field))
            for field in fields
            if field.name not in signature.parameters
        ]
        setattr(call, "__signature__", signature.replace(parameters=[*own, *more]))  # noqa: B010
        return call

    return decorate
