"""What generates: a model in a number format, run by an engine, split over the GPUs of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.base.csv_text import read_records
from costmodel.base.errors import CostModelError, choices_hint
from costmodel.base.words import plural
from costmodel.describe.hardware.cluster import Cluster, Tier
from costmodel.describe.hardware.hardware import load_cluster
from costmodel.describe.hardware.kernels import PEAK_KEY, KernelConstants
from costmodel.describe.hardware.slices import sliced
from costmodel.describe.jobs.fields import FIELD
from costmodel.describe.jobs.layout import parse_layout
from costmodel.describe.jobs.reading import read
from costmodel.describe.models.model import Model
from costmodel.describe.models.model_files import load_model
from costmodel.physics.network.mesh import Mesh, build_mesh

Array = NDArray[np.float64]


class NumberFormat(NamedTuple):
    """How weights are stored and multiplied: a row of ``number_formats.csv``."""

    name: str
    weight_bytes: float  # Of a quantised weight, its scales included. [B]
    matmul_dtype: str  # Key of the accelerator's peaks and kernel constants
    # All linear layers but the head are quantised; otherwise, in a mixture of experts, its MLPs alone
    everything: bool
    kernels: float  # Kernels a layer that quantise inputs of products. [-]


class Engine(NamedTuple):
    """What an inference engine takes beside the work of the GPUs: a row of ``engines.csv``."""

    # The engine, and the generation of the accelerator (`any`: the pooled figure)
    name: str
    generation: str
    step_s: float  # Host time of a step that the GPU waits for: scheduling, sampling, detokenising. [s]
    # What every sequence of a replica's groups on one node adds: a process takes in and streams out for them. [s]
    sequence_s: float
    kernel_s: float  # Start and drain of one kernel inside a CUDA graph. [s]
    all_reduce_s: float  # Latency of the engine's own all-reduce inside an NVLink domain. [s]
    # GPUs of an NVLink domain that it may span, where that is more than a node. [-]
    all_reduce_gpus: float
    # Latency of sending tokens to their experts, or back, with the wait for the last group. [s]
    exchange_s: float
    prefill_factor: float  # Time of a prefill over that of its products, attention and messages. [-]
    overlaps: bool  # The host's work on sequences runs while the GPU works on the step
    spread: float  # Standard deviation of the logarithm of measured over predicted step times. [-]
    basis: str  # What it was fitted to


_HERE = Path(__file__).parent

NUMBER_FORMATS: dict[str, NumberFormat] = read_records(_HERE / "number_formats.csv", NumberFormat)
ENGINES: dict[str, Engine] = read_records(
    _HERE / "engines.csv",
    Engine,
    name=lambda row: row["engine"].split()[0],
    generation=lambda row: row["engine"].split()[1],
)
"""Constants by engine and generation of the accelerator; ``any`` is the pooled figure."""
ENGINE_NAMES = tuple(sorted({engine.name for engine in ENGINES.values()}))


def engine_of(name: str, generation: str) -> Engine:
    """Return the constants of an engine on a generation of accelerators, or the pooled ones nearest to it."""
    if name not in ENGINE_NAMES:
        raise CostModelError(f"engine: {name!r} is unknown; {choices_hint(name, ENGINE_NAMES)}")
    nearest = (f"{name} {generation}", f"{name} any", f"any {generation}", "any any")
    return next(ENGINES[key] for key in nearest if key in ENGINES)


def number_format(name: str) -> NumberFormat:
    """Return a number format by name."""
    if name not in NUMBER_FORMATS:
        raise CostModelError(f"precision: {name!r} is unknown; {choices_hint(name, NUMBER_FORMATS)}")
    return NUMBER_FORMATS[name]


class Split(NamedTuple):
    """GPUs of one replica: numbers, or arrays over splits that broadcast together."""

    tp: float | Array = 1.0  # GPUs that share each attention layer. [-]
    pp: float | Array = 1.0  # Pipeline stages. [-]
    # GPUs over which the experts are spread, whole; the other ``tp dp / ep`` cut each expert. [-]
    ep: float | Array = 1.0
    # Groups of `tp` GPUs that attend to sequences of their own and share the experts (attention data
    # parallelism); copies of a model that share nothing are replicas, not `dp`. [-]
    dp: float | Array = 1.0

    @property
    def gpus(self) -> Array:
        """GPUs of a replica. [-]"""
        return np.asarray(self.tp * self.pp * self.dp, dtype=np.float64)

    @property
    def degrees(self) -> dict[str, float]:
        """Degrees of one split by name. [-]"""
        return {name: float(degree) for name, degree in self._asdict().items()}

    @property
    def text(self) -> str:
        """Degrees of one split, such as ``tp8 ep8``."""
        return " ".join(f"{name}{n:.0f}" for name, n in self._asdict().items() if n > 1) or "tp1"


def parse_split(field: str, text: str, gpus: int, model: Model) -> Split:
    """Return the layout of a replica that a field names."""
    degrees = parse_layout(read(field, text))
    for name in degrees:
        if name not in Split._fields:
            raise CostModelError(f"{field}: {name} is no degree of an engine; expected tp, pp, ep and dp")
    split = Split(**{name: float(degree) for name, degree in degrees.items()})
    each, spread = float(split.gpus), float(split.tp * split.dp)
    if gpus % each:
        raise CostModelError(f"{field}: replicas of {each:.0f} GPUs do not fill the {gpus:,}")
    if split.dp > 1 and split.ep != spread:
        raise CostModelError(
            f"{field}: attention groups apart (dp{split.dp:.0f}) spread the experts over all of them: ep{spread:.0f}"
        )
    if not divides(model, *map(float, split)):
        raise CostModelError(f"{field}: {text} does not divide the heads, layers or experts of {model.name}")
    return split


def divides(model: Model, tp: float, pp: float, ep: float, dp: float) -> bool:
    """Tell whether an engine can cut a model so: heads by tp, layers by pp, experts by all of tp times dp, or each by tp."""
    if model.num_heads % tp or pp > model.num_layers:
        return False
    if not model.num_experts:
        return ep == 1 and dp == 1
    # Where groups attend apart, tokens reach the experts by the exchange of expert parallelism.
    return model.num_experts % ep == 0 and ep in ((tp * dp,) if dp > 1 else (1, tp))


class Speculation(NamedTuple):
    """Speculative decoding: a draft guesses some tokens, and one forward pass of the model verifies all of them."""

    draft: Deployment
    own_tables: bool  # The draft has a token table and a head of its own
    tokens: int  # That the draft guesses a step, one after the other. [-]
    acceptance_length: (
        float  # Tokens of an answer that a step yields on average, the model's own included. [-]
    )


@dataclass(frozen=True)
class Deployment:
    """A model as an engine runs it on the GPUs of a cluster."""

    model: Model
    cluster: Cluster
    weights: NumberFormat
    engine: Engine
    cache_bytes: float = 2.0
    """Of an element of the key-value cache. [B]"""
    cuda_graphs: bool = True
    """Decode steps are replayed as one graph; otherwise the host issues every kernel."""
    memory_fraction: float = 0.9
    """Share of the GPU's memory that the engine takes (vLLM's ``gpu_memory_utilization``). [-]"""
    chunk_tokens: float = 8192.0
    """Tokens of prompts that one step takes at most. [-]"""
    speculation: Speculation | None = None

    @property
    def kernels(self) -> KernelConstants:
        """Constants of the kernels, which `deployment` has made sure of."""
        assert self.cluster.accelerator.kernels is not None
        return self.cluster.accelerator.kernels

    @property
    def speculation_text(self) -> str:
        """How it speculates, as the end of a sentence; empty where it does not."""
        if self.speculation is None:
            return ""
        draft, _, tokens, length = self.speculation
        return f", {plural(tokens, 'draft token')} a step by {draft.model.name}, acceptance length {length:g}"

    @cached_property
    def has_units(self) -> bool:
        """Whether the chip multiplies in the number format of the weights, by kernels whose constants are known."""
        dtype, kernels = self.weights.matmul_dtype, self.kernels
        peaks = self.cluster.accelerator.peak_flops_per_s
        return PEAK_KEY[dtype] in peaks and dtype in kernels.matmul and dtype in kernels.grouped_matmul

    def mesh(self, split: Split) -> Mesh:
        """Place the groups of a replica on the tiers, innermost first: tp, dp, pp."""
        tp, pp, ep, dp = (np.asarray(degree, dtype=np.float64) for degree in split)
        tiers = self.tiers(split)
        return build_mesh(
            tp=tp,
            cp=1.0,
            pp=pp,
            dp=dp,
            ep=ep,
            etp=tp * dp / ep,
            tier_sizes=[tier.size for tier in tiers],
            ends=[tier.ends for tier in tiers],
            shape=tiers[0].shape,
        )

    def tiers(self, split: Split) -> tuple[Tier, ...]:
        """Return the tiers that a replica sees; on a torus the slice of the largest of the splits."""
        return sliced(self.cluster, float(np.max(split.gpus))).tiers


def deployment(
    model: str | Model,
    cluster: str | Cluster,
    *,
    precision: str = "bf16",
    engine: str = "any",
    cuda_graphs: bool = True,
    memory_fraction: float = 0.9,
    num_speculative_tokens: int = 0,
    acceptance_length: float | None = None,
    draft_model: str | Model | None = None,
) -> Deployment:
    """Return a model on an engine and a cluster."""
    model = load_model(model) if isinstance(model, str) else model
    cluster = load_cluster(cluster) if isinstance(cluster, str) else cluster
    accelerator = cluster.accelerator
    draft = load_model(draft_model) if isinstance(draft_model, str) else draft_model
    for field, generates in (("model", model), ("draft_model", draft)):
        if generates is not None and not generates.causal:
            raise CostModelError(
                f"{field}: {generates.name} is an encoder, which generates no tokens; name a decoder"
            )
    if accelerator.kernels is None or "bf16" not in accelerator.peak_flops_per_s:
        raise CostModelError(
            f"cluster: {accelerator.name} has no 16-bit kernel constants with bf16, which generation is priced by"
        )
    served = Deployment(
        model,
        cluster,
        number_format(precision),
        engine_of(engine, accelerator.generation),
        cuda_graphs=cuda_graphs,
        memory_fraction=memory_fraction,
    )
    for name, value in (("acceptance_length", acceptance_length), ("draft_model", draft_model)):
        if value is not None and not num_speculative_tokens:
            raise CostModelError(f"{name}: is of speculative decoding; give num_speculative_tokens too")
    if not num_speculative_tokens:
        return served
    if acceptance_length is None or acceptance_length > num_speculative_tokens + 1:
        found = "nothing" if acceptance_length is None else f"{acceptance_length:g}"
        raise CostModelError(
            f"acceptance_length: expected the tokens that a step yields on average, from 1 to {num_speculative_tokens + 1} "
            f"with {plural(num_speculative_tokens, 'draft token')}, got {found} (DeepSeek-V3 with 1: 1.85, arXiv:2412.19437)"
        )
    if draft is None and not model.mtp_layers:
        raise CostModelError(
            f"draft_model: num_speculative_tokens needs one, because {model.name} has no layer of multi-token prediction"
        )
    drafting = replace(served, model=draft or prediction_layer(model))
    own_tables = draft is not None
    return replace(
        served, speculation=Speculation(drafting, own_tables, num_speculative_tokens, acceptance_length)
    )


def prediction_layer(model: Model) -> Model:
    """Return a model of one layer of the last kind: what multi-token prediction drafts with (arXiv:2412.19437, section 2.2)."""
    kind = model.layer_kinds()[model.kind_of_layer[-1]]
    every = model.full_attention_every
    letter = model.attention_pattern[-1:]
    return model.model_copy(
        update={
            "name": "its prediction layer",
            "num_layers": 1,
            "mtp_layers": 0,
            "first_dense_layers": 0 if kind.is_moe or not model.num_experts else 1,
            "moe_layer_freq": 1,
            "full_attention_every": int(every > 0 and model.num_layers % every == 0),
            "attention_pattern": letter,
            "mlp_pattern": model.mlp_pattern[-1:],
            "mixers": {name: mixer for name, mixer in model.mixers.items() if name == letter},
        }
    )


def beyond_context(model: Model, tokens: float) -> list[str]:
    """Return what to say of sequences that are longer than the model's positions."""
    if not 0 < model.context_length < tokens:
        return []
    return [f"sequences of {tokens:,.0f} tokens are longer than the {model.context_length:,} of {model.name}"]


SERVED = ("engine", "cuda_graphs", "num_speculative_tokens", "acceptance_length", "draft_model")
"""Fields that `deployment` takes as they are given."""


def value_of(given: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """Return a field as it is given and read, or this default, or the field's own."""
    value = given.get(name, FIELD[name].default if default is None else default)
    return None if value is None else read(name, value)
