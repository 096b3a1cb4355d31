"""What operators are made of: their sizes, the traffic of element-wise kernels, and how each is built.

Element-wise operators are counted in bytes of HBM traffic, which is the only thing they cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.bill.formula import inputs_of
from costmodel.describe.models.model import LayerKind, Model
from costmodel.describe.precision import Precision
from costmodel.describe.recipe import Recipe
from costmodel.physics.network.expert_dispatch import DISPATCHERS

Array = NDArray[np.float64]
Number = Array | float
OperatorKind = Literal["matmul", "grouped_matmul", "attention", "memory", "scan"]
Part = Literal["attention", "mlp", "router", "experts", "shared", "embedding", "head", "mtp", "mixer"]
Role = Literal[
    "column",
    "row",
    "core",
    "expert",
    "replicated",
    "permutation",
    "norm",
    "residual",
    "pointwise",
    "scan",
    "summed",
]

PATHS: Mapping[str, str] = {
    "attention": "attention",
    "mlp": "mlp",
    "router": "moe",
    "experts": "moe.experts",
    "shared": "moe.shared",
    "embedding": "embedding",
    "head": "head",
    "mtp": "mtp",
    "mixer": "mixer",
}
"""Where the names of a part's operators begin; what keeps activations together is its first word."""

_MODULES: dict[str, tuple[str, ...]] = {part: (path.partition(".")[0],) for part, path in PATHS.items()}
_MODULES |= {"mixer": ("attention",), "embedding": (), "head": ()}
"""Recompute modules that a part belongs to; another mixer stands in attention's place."""

Sharding = Literal["tp", "expert", "replicated"]

ZERO = np.asarray(0.0)
ONE = np.asarray(1.0)
BF16 = 2.0


@dataclass(frozen=True, slots=True)
class ParamBlock:
    """Parameters that are computed with, and sharded, together."""

    part: Part | Literal["norm"]
    """What of a model they belong to; norms between parts are of none of them."""
    leaf: str
    """Their name in it, empty where there is nothing else."""
    count: float
    """Elements in the unsharded model. [-]"""
    sharding: Sharding
    """``tp`` (divided by tp), ``expert`` (divided by ep·etp) or ``replicated``."""
    is_matrix: bool = False
    """True for a weight that every token it serves is multiplied with."""
    tensors: int = 1
    """Weights that are kept side by side in it: a gate and its up projection are two. [-]"""

    @property
    def name(self) -> str:
        """Dotted path, for people."""
        return ".".join(word for word in (PATHS.get(self.part, self.part), self.leaf) if word)


class Shard(NamedTuple):
    """One micro-batch as one rank sees it; arrays over layouts. [-]"""

    micro_batch: Array
    seq_len: Array
    tokens: Array
    """Between the norms: the sequence over cp."""
    tokens_sp: Array
    """Of norms and residuals: also over tp under sequence parallelism."""
    tp: Array
    cp: Array
    etp: Array
    expert_tokens: Array
    """Token copies that arrive at the rank's experts."""
    local_experts: Array
    swaps: Array
    """Ranks of its context group that swap sequence for heads before K and V go round the others."""
    span: Array
    """Length that attention reaches over, shorter than the sequence where that is packed."""


class Given(NamedTuple):
    """What the operators of a block follow from; the model as the layer sees it."""

    model: Model
    shard: Shard
    recipe: Recipe
    precision: Precision

    @classmethod
    def whole(cls, model: Model, recipe: Recipe, precision: Precision) -> Given:
        """Return a rank that holds everything, for one token."""
        shard = Shard(*(ONE,) * len(Shard._fields))
        experts = np.asarray(float(max(model.num_experts, 1)))
        return cls(model, shard._replace(local_experts=experts), recipe, precision)

    def seen_by(self, kind: LayerKind) -> Given:
        """Return the same with the sizes of a layer of a kind."""
        return self._replace(model=self.model.seen_by(kind))

    @property
    def hidden(self) -> float:
        """Width of the model. [-]"""
        return float(self.model.hidden_size)

    @property
    def tokens(self) -> Array:
        """Tokens of a micro-batch on a rank between the norms. [-]"""
        return self.shard.tokens

    @property
    def heads(self) -> Array:
        """Query heads of a rank. [-]"""
        return np.asarray(self.model.num_heads / self.shard.tp)

    @property
    def kv_heads(self) -> Array:
        """Heads of keys and values of a rank; ranks beyond them have copies. [-]"""
        return np.asarray(np.maximum(self.model.num_kv_heads / self.shard.tp, 1.0))

    @property
    def input_bytes(self) -> float:
        """Bytes an element that a linear layer keeps of its input."""
        return saved_input_bytes(self.precision)

    @property
    def input_tokens(self) -> Array:
        """Tokens of a TP-split layer's input as autograd keeps it: a slice, or gathered. [-]"""
        return self.shard.tokens_sp if self.recipe.overlap.sp_regathers else self.shard.tokens


class Operator(NamedTuple):
    """One operator of a layer, for one micro-batch on one rank.

    Roles: `column` and `row` are layers that TP splits, whose input is gathered and whose output is summed; `core` is
    attention itself, which CP spreads over ranks; `expert` works on what EP dispatched, `permutation` puts that in
    order; `replicated` is a matrix that no axis splits; `scan` a recurrence; `summed` a product whose result TP sums.
    """

    part: Part
    leaf: str
    role: Role
    kind: OperatorKind
    modules: frozenset[str]
    """Recompute modules that contain it."""
    m: Array = ZERO
    """Matrix product: `groups` products of m x k by k x n. [-]"""
    n: Array = ZERO
    k: Array = ZERO
    groups: Array = ONE
    low_precision: bool = True
    """Whether it follows the job's GEMM precision (else bf16)."""
    forward_bytes: Array = ZERO
    """HBM traffic of an element-wise operator. [B]"""
    backward_bytes: Array = ZERO
    kernels_forward: Number = 1.0
    """Kernels that the host launches. [-]"""
    kernels_backward: Number = 1.0
    scalar_forward: ScalarWork | None = None
    scalar_backward: ScalarWork | None = None
    saved_bytes: Array = ZERO
    """What autograd keeps of its output. [B]"""
    has_weight: bool = True
    """Whether the backward pass has a second product besides the input gradient."""
    casts: bool = False
    """Whether its kernels quantise, which reach less of the bandwidth than others."""
    has_parameters: bool = True
    """Whether that second product is a weight gradient, which is accumulated."""
    attention: AttentionShape | None = None
    neighbour_bytes: Array = ZERO
    """What it needs of the ranks beside its own in the sequence before it can start: a convolution's last tokens. [B]"""
    scan: Scan | None = None
    exchanges: tuple[ContextExchange, ...] = ()
    """What context parallelism sends around it."""
    adapter: Adapter | None = None
    """What it does for adapters, where it stands beside a frozen layer."""

    @property
    def name(self) -> str:
        """Dotted path inside the layer, for people."""
        return f"{PATHS[self.part]}.{self.leaf}"

    @property
    def is_product(self) -> bool:
        """Whether it is a matrix product."""
        return self.kind in ("matmul", "grouped_matmul")


class Adapter(NamedTuple):
    """What an operator does beside the frozen layer whose leaf is `of`.

    It makes the quantised weight into 16 bits, goes down `into` the rank and `out` of it, adds the result up, or takes
    the lengths of the weight's rows and multiplies by the learned `magnitude`.
    """

    of: str
    does: Literal["dequantise", "into", "out", "add", "lengths", "magnitude"]


class ScalarWork(NamedTuple):
    """What kernels do element by element: where tensors are strided, broadcast or of two dtypes, or rows are reduced.

    The rate of an SM limits them before the memory does. `size_bytes` is the part of the operator's traffic that is
    theirs. [-, B]
    """

    elements: Array
    size_bytes: Array


class ContextExchange(NamedTuple):
    """A collective of each pass over the ranks that share a sequence; its size as `collective_time` takes it. [B]"""

    label: str
    primitive: str
    size_bytes: Array


class Scan(NamedTuple):
    """A recurrence computed in chunks by several kernels one after the other: formulas and their numbers.

    Bytes and FLOPs are of all kernels together, on a rank. `units` are those of the peak that it is held to:
    the matrix units' of 16-bit products, or ``fp32`` for vector units.
    """

    forward_bytes: str
    forward_flops: str
    backward_bytes: str
    backward_flops: str
    kernels_forward: float
    kernels_backward: float
    units: str = ""
    terms: Mapping[str, Number] = MappingProxyType({})

    def of(self, **terms: Number) -> Scan:
        """Return the same recurrence of those of these sizes that its formulas need."""
        texts = (self.forward_bytes, self.forward_flops, self.backward_bytes, self.backward_flops)
        return self._replace(terms={name: terms[name] for text in texts for name in inputs_of(text)})


class AttentionShape(NamedTuple):
    """Shape of fused attention on one rank: `calls` kernels of `heads` (batch x heads). [-]"""

    heads: Array
    seq_q: Array
    seq_k: Array
    keys_share: Array
    """Share of all keys that a query meets."""
    qk_head_dim: float
    v_head_dim: float
    kv_heads: Array
    calls: Array = ONE
    windowed: NDArray[np.bool_] = np.asarray(False)
    """Whether `keys_share` is that of a window."""
    causal: bool = True


def linear(
    part: Part,
    leaf: str,
    role: Role,
    m: Number,
    n: Number,
    k: Number,
    *,
    kept: float = 0.0,
    also: tuple[str, ...] = (),
    kind: OperatorKind = "matmul",
    groups: Number = ONE,
    **more: Any,
) -> Operator:
    """Make a linear layer, one forward GEMM and two backward; autograd keeps `kept` bytes of an element of its output."""
    return Operator(
        part,
        leaf,
        role,
        kind,
        frozenset((*_MODULES[part], *also)),
        m=np.asarray(m),
        n=np.asarray(n),
        k=np.asarray(k),
        groups=np.asarray(groups),
        **{
            "kernels_backward": 2.0,
            "saved_bytes": np.asarray(kept * m * n * groups) if kept else ZERO,
            **more,
        },
    )


class Traffic(NamedTuple):
    """HBM bytes an element, and kernels, of an element-wise operator, forward and backward.

    `scalar_forward` and `scalar_backward` are how often kernels that SMs limit touch each element, and what they
    move of it. [-, B]
    """

    forward: Number
    backward: Number
    kernels_forward: Number = 1.0
    kernels_backward: Number = 1.0
    scalar_forward: tuple[float, float] = (0.0, 0.0)
    scalar_backward: tuple[float, float] = (0.0, 0.0)


# Reads and writes of each kernel in bf16 (2 B), counted kernel by kernel; the unfused chains are
# those of eager PyTorch with fp32 intermediates where the reference code upcasts. The norm is LLaMA's, in fp32;
# Aleph-Alpha/scaling as released later computes it in bf16 (26 and 60 bytes).
# Kernels that reduce a row, or take a sigmoid and its slope, reach what SMs compute before they reach the memory's rate.
# On an H200 a norm took 1.6 ps an element and 3.9 backward, SwiGLU 4.4 backward between products; linkedin/Liger-Kernel has
# norms on A100 and H100, compiled ones too (tests/published/memory_kernels.csv): an element costs an SM about as much as
# one of the conversions that `costmodel.describe.hardware.cluster.SCALAR_PER_SM` is of. How often, is fitted to these timings.
NORM_FUSED = Traffic(4, 6, 1, 2, scalar_forward=(0.45, 4), scalar_backward=(1.1, 6))
NORM_COMPILED = Traffic(4, 6, 1, 2, scalar_forward=(0.7, 4), scalar_backward=(2.5, 6))
NORM_CHAIN = Traffic(36, 92, 7, 16)
# The residual is added by the norm's kernel: what is added and the stream in, the sum and its norm out; backward both
# gradients and the sum in, one gradient out (Dao-AILab/flash-attention csrc/layer_norm, dropout_add_layer_norm). Those of
# DeepSeek-V3's published profile move them at the memory's rate (tests/published/test_deepseek_profile.py).
NORM_RESIDUAL = Traffic(8, 8, 1, 2)
ROPE_FUSED = Traffic(4, 4, 1, 1)
ROPE_CHAIN = Traffic(22, 22, 8, 8)
# Tiles of 4 tokens by half of 64 rotated columns are 128 elements for 128 threads: each loads one of a half at a time
# (Dao-AILab/flash-attention flash_attn/ops/triton/rotary.py, BLOCK_M and BLOCK_K).
ROPE_BY_ELEMENT = Traffic(4, 4, 1, 1, scalar_forward=(1, 4), scalar_backward=(1, 4))
GELU_FUSED = Traffic(4, 6, 1, 1)
GELU_CHAIN = Traffic(12, 14, 3, 3)
SWIGLU_FUSED = Traffic(6, 10, 1, 1, scalar_backward=(1.2, 10))
SWIGLU_CHAIN = Traffic(10, 18, 2, 4)
# Two clamps of strided halves (4 B) and a concatenation (4), an element of both halves. Backward a comparison of one half
# and two of the other (3 each), their conjunction (3), the masked gradient (5) and a concatenation (4); all but that
# conjunction and the concatenations walk strided tensors. NVIDIA/Megatron-LM megatron/core/fusions/fused_bias_geglu.py,
# weighted_bias_quick_geglu_impl; pytorch/pytorch torch/csrc/autograd/FunctionsManual.cpp, clamp_backward.
CLAMP = Traffic(8, 15, 3, 7, scalar_forward=(1, 4), scalar_backward=(2.5, 9.5))
# A grouped product's epilogue activates; its backward pass reads what the forward product had written
# (cuDNN frontend, grouped GEMM + SwiGLU and + dSwiGLU; Transformer Engine ForwardGroupedMLP_CuTeGEMMSwiGLU_MXFP8).
GROUPED_EPILOGUE = Traffic(0, 4, 0, 0)
ADD_FUSED = Traffic(6, 0, 1, 0)
ADDED_BY_NORM = Traffic(0, 0, 0, 0)
# Dropout draws a number an element (Philox, ten rounds): 4.2 ps on an A100 whatever is moved (flagos-ai/FlagGems pull
# request 85: PyTorch's kernel moves 952.7 GB/s of fp16 in and out).
RANDOM_NUMBERS = 0.78
ADD_DROPOUT_FUSED = Traffic(7, 5, 1, 1, scalar_forward=(RANDOM_NUMBERS, 7))
ADD_DROPOUT_CHAIN = Traffic(15, 9, 3, 2, scalar_forward=(RANDOM_NUMBERS, 5))


def elementwise(
    part: Part,
    leaf: str,
    elements: Number,
    traffic: Traffic,
    saved: Number = ZERO,
    *,
    role: Role = "pointwise",
    modules: tuple[str, ...] | None = None,
    also: tuple[str, ...] = (),
    **more: Any,
) -> Operator:
    """Make an element-wise operator of the given traffic."""
    return Operator(
        part,
        leaf,
        role,
        "memory",
        frozenset((*(_MODULES[part] if modules is None else modules), *also)),
        forward_bytes=np.asarray(elements * traffic.forward),
        backward_bytes=np.asarray(elements * traffic.backward),
        kernels_forward=traffic.kernels_forward,
        kernels_backward=traffic.kernels_backward,
        has_weight=False,
        saved_bytes=np.asarray(saved),
        scalar_forward=_scalar_work(elements, traffic.scalar_forward),
        scalar_backward=_scalar_work(elements, traffic.scalar_backward),
        **more,
    )


def _scalar_work(elements: Number, each: tuple[float, float]) -> ScalarWork | None:
    """Return what kernels without vectors do, where there are such."""
    touched, moved = each
    return ScalarWork(np.asarray(touched * elements), np.asarray(moved * elements)) if touched else None


def fused_attention(
    part: Part, leaf: str, shape: AttentionShape, saved: Array, also: tuple[str, ...] = ()
) -> Operator:
    """Make attention as one fused kernel."""
    return Operator(
        part,
        leaf,
        "core",
        "attention",
        frozenset((*_MODULES[part], "core_attn", *also)),
        saved_bytes=np.asarray(saved),
        kernels_backward=2.0,
        has_weight=False,
        attention=shape,
    )


def norm(
    given: Given, part: Part, leaf: str, elements: Array, saved: Number, *, always_rms: bool = False
) -> Operator:
    """Make a norm; it saves its output, which is the next GEMM's input."""
    kernels = given.recipe.kernels
    chain = (always_rms or given.model.norm == "rmsnorm") and not (kernels.fused_norm or kernels.compiled)
    traffic = NORM_CHAIN if chain else NORM_COMPILED if kernels.compiled else NORM_FUSED
    extra = 6.0 if chain else 0.0  # fp32 copy and normalised input
    if kernels.norm_adds_residual and leaf == "norm" and part in ("attention", "mlp"):
        traffic = NORM_RESIDUAL
    saved = saved + extra * elements
    return elementwise(part, leaf, elements, traffic, saved, role="norm", modules=("layernorm",))


def first_norm(given: Given, part: Part, inputs: Array) -> Operator:
    """Make the norm before a part, whose output is kept for so many tokens of `inputs`. [-]"""
    kept = given.input_bytes * inputs * given.hidden
    return norm(given, part, "norm", np.asarray(given.shard.tokens_sp * given.hidden), kept)


def residual(given: Given, part: Part) -> Operator:
    """Make bias + dropout + residual addition; it saves the new residual stream and the mask."""
    kernels, elements = given.recipe.kernels, given.shard.tokens_sp * given.hidden
    traffic = ADD_FUSED
    if kernels.norm_adds_residual:
        traffic = ADDED_BY_NORM
    elif kernels.dropout:
        traffic = ADD_DROPOUT_FUSED if kernels.fused_dropout_add or kernels.compiled else ADD_DROPOUT_CHAIN
    saved = elements * (BF16 + kernels.dropout)
    return elementwise(part, "residual", elements, traffic, saved, role="residual", modules=())


def column_inputs(part: Part, model: Model, recipe: Recipe) -> float:
    """Column-parallel layers of a part that take one input, each as a layer of its own. [-]"""
    if part == "attention" and model.attention != "mla":
        return 1.0 + model.kv_projections if recipe.kernels.separate_qkv else 1.0
    gates = part not in ("attention", "mixer") and model.gated_mlp
    return 2.0 if recipe.kernels.separate_gate and gates else 1.0


def kept_inputs(given: Given, part: Part) -> Array:
    """Tokens of all inputs that the TP-split layers of a part keep: one that they share, or one each. [-]"""
    own = column_inputs(part, given.model, given.recipe) if given.recipe.kernels.own_column_inputs else 1.0
    return np.asarray(given.input_tokens * np.where(given.shard.tp > 1, own, 1.0))


def input_operators(given: Given, part: Part) -> list[Operator]:
    """Return what layers of their own on one input cost: a copy each, and the sum of their gradients."""
    shard, apart = given.shard, column_inputs(part, given.model, given.recipe)
    elements = shard.tokens * given.hidden
    ops = []
    if apart > 1.0:
        # Autograd adds one gradient to the others at a time: two reads and a write.
        summed = Traffic(0, 6.0 * (apart - 1.0), 0, apart - 1.0)
        ops.append(elementwise(part, "input_gradient_sum", elements, summed))
    if given.recipe.kernels.own_column_inputs:
        # A gathered input is nobody else's already.
        copied = apart * (shard.tp > 1) * (shard.tokens_sp == shard.tokens)
        copy = Traffic(2.0 * BF16, 0, copied, 0)
        ops.append(elementwise(part, "input_copy", elements * copied, copy))
    return ops


def bias_gradients(part: Part, elements: Array) -> Operator:
    """Sum the output gradients over tokens: one more read of each in the backward pass."""
    return elementwise(part, "bias_gradient", elements, Traffic(0, BF16, 0, 2))


class Cast(NamedTuple):
    """Elements that linear layers quantise: what enters a column-parallel one, a row-parallel one after it, their gradients.

    The input of the first and the gradient of the second are sharded by sequence parallelism;
    `gathered` is what tensor parallelism makes of each.
    """

    column_input: Array
    column_grad: Array
    gathered: Array
    row_input: Array | None = None
    row_grad: Array = ZERO


def quantise(
    given: Given, part: Part, cast: Cast, *, after_norm: bool = True, tensors: Number = 1.0
) -> list[Operator]:
    """Cast GEMM inputs (forward) and output gradients (backward) to the low precision.

    Transformer Engine casts and transposes in one kernel; the norm writes its output already cast
    under delayed scaling. What sequence parallelism gathers after the cast has to be transposed
    on its own, as has the norm's output, where the matrix units only take one layout (Hopper).
    NVIDIA/TransformerEngine, pytorch/module/layernorm_linear.py and base.py (`grad_output_preprocess`), release 1.7.
    """
    precision = given.precision
    if precision.cast_bytes == 0:
        return []
    each, transpose = precision.cast_bytes, precision.transpose_bytes
    first = 0.0 if after_norm and precision.norm_casts else each
    tuned = cast.gathered if first == 0.0 else cast.gathered - cast.column_input
    forward, backward, kernels = first * cast.column_input, each * cast.column_grad, 1.0 * tensors
    if cast.row_input is not None:
        tuned = tuned + cast.gathered - cast.row_grad
        forward, backward = forward + each * cast.row_input, backward + each * cast.row_grad
        kernels = 2.0 * tensors
    made = elementwise(part, "quantise", forward, Traffic(1, 0, kernels), casts=True)
    return [
        made._replace(
            backward_bytes=np.asarray(backward + transpose * tuned),
            kernels_backward=kernels if transpose == 0.0 else 2.0 * kernels,
        )
    ]


def core_widths(model: Model) -> tuple[float, float]:
    """Widths of a query and of a value where keys are chosen one by one: latent attention stays in its latents. [-]

    DeepSeek-V3.2 computes it as attention with one key for all heads (arXiv:2512.02556, section 2.1 and appendix A).
    """
    if model.attention == "mla":
        return float(model.kv_lora_rank + model.qk_rope_head_dim), float(model.kv_lora_rank)
    return float(model.head_dim), float(model.v_head_dim)


def exchanged_bytes(recipe: Recipe, precision: Precision) -> tuple[float, float]:
    """Bytes an element of tokens that are dispatched to experts, and of gradients that are."""
    if not precision.cast_bytes:
        return BF16, BF16
    tokens = DISPATCHERS[recipe.moe.moe_dispatcher].quantised_bytes
    return tokens, tokens if recipe.moe.moe_dispatches_gradients_in_fp8 else BF16


def saved_input_bytes(precision: Precision) -> float:
    """Bytes an element that a linear layer keeps of its input: the quantised copy where there is one."""
    return precision.input_bytes if precision.cast_bytes else BF16
