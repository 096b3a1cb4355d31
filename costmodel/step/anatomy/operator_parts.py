"""What operators are made of: their sizes, the traffic of element-wise kernels, and how each is built.

Element-wise operators are counted in bytes of HBM traffic, which is the only thing they cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.physics.network.expert_dispatch import DISPATCHERS

if TYPE_CHECKING:
    from costmodel.describe.models.model import Model
    from costmodel.describe.precision import Precision
    from costmodel.describe.recipe import Recipe

Array = NDArray[np.float64]
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

Sharding = Literal["tp", "expert", "replicated"]


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


ZERO = np.asarray(0.0)
ONE = np.asarray(1.0)
BF16 = 2.0


class Shard(NamedTuple):
    """One micro-batch as one rank sees it; arrays over layouts.

    `tokens` are those between the norms (the sequence over cp), `tokens_sp` those of norms and
    residuals (also over tp under sequence parallelism); `expert_tokens` are the token copies
    that arrive at the rank's experts, `local_experts` the experts it holds; `swaps` are the ranks of its
    context group among which attention swaps sequence for heads before K and V go round the others; `span` is
    the length that attention reaches over, shorter than the sequence where that is packed.
    """

    micro_batch: Array
    seq_len: Array
    tokens: Array
    tokens_sp: Array
    tp: Array
    cp: Array
    etp: Array
    expert_tokens: Array
    local_experts: Array
    swaps: Array
    span: Array


class Operator(NamedTuple):
    """One operator of a layer, for one micro-batch on one rank.

    Attributes
    ----------
    part : str
        Which part of the layer it belongs to.
    leaf : str
        Its name inside the part.
    role : str
        What it is to the parallel axes: `column` and `row` are layers that TP splits, whose input is
        gathered and whose output is summed; `core` is attention itself, which CP spreads over ranks;
        `expert` works on what EP dispatched, `permutation` puts that in order; `replicated` is a matrix
        that no axis splits; `scan` is a recurrence; `summed` a product whose result TP sums by itself.
    kind : str
        Which time model prices it.
    modules : frozenset of str
        Recompute modules that contain it.
    m, n, k, groups : Array
        Matrix product: `groups` products of m x k by k x n. [-]
    low_precision : bool
        Whether it follows the job's GEMM precision (else bf16).
    forward_bytes, backward_bytes : Array
        HBM traffic of an element-wise operator. [B]
    kernels_forward, kernels_backward : float or Array
        Kernels that the host launches. [-]
    scalar_forward, scalar_backward : ScalarWork or None
        What of an element-wise operator is done element by element.
    saved_bytes : Array
        What autograd keeps of its output. [B]
    has_weight : bool
        Whether the backward pass has a second product besides the input gradient.
    has_parameters : bool
        Whether that product is a weight gradient, which is accumulated.
    casts : bool
        Whether its kernels quantise, which reach less of the bandwidth than others.
    attention : AttentionShape or None
        Shape of a fused attention kernel.
    neighbour_bytes : Array
        What it needs of the ranks beside its own in the sequence before it can start, such as the last
        tokens for a convolution or the state of a recurrence. [B]
    scan : Scan or None
        Bytes and FLOPs of a recurrence in chunks.
    exchanges : tuple of ContextExchange
        What context parallelism sends around it.
    adapter : Adapter or None
        What it does for adapters, where it stands beside a frozen layer.
    """

    part: Part
    leaf: str
    role: Role
    kind: OperatorKind
    modules: frozenset[str]
    m: Array = ZERO
    n: Array = ZERO
    k: Array = ZERO
    groups: Array = ONE
    low_precision: bool = True
    forward_bytes: Array = ZERO
    backward_bytes: Array = ZERO
    kernels_forward: float | Array = 1.0
    kernels_backward: float | Array = 1.0
    scalar_forward: ScalarWork | None = None
    scalar_backward: ScalarWork | None = None
    saved_bytes: Array = ZERO
    has_weight: bool = True
    casts: bool = False
    has_parameters: bool = True
    attention: AttentionShape | None = None
    neighbour_bytes: Array = ZERO
    scan: Scan | None = None
    exchanges: tuple[ContextExchange, ...] = ()
    adapter: Adapter | None = None

    @property
    def name(self) -> str:
        """Dotted path inside the layer, for people."""
        return f"{PATHS[self.part]}.{self.leaf}"


class Adapter(NamedTuple):
    """What an operator does beside the frozen layer whose leaf is `of`.

    It makes the quantised weight into 16 bits, goes down `into` the rank and `out` of it, adds the result up, or takes
    the lengths of the weight's rows and multiplies by the learned `magnitude`.
    """

    of: str
    does: Literal["dequantise", "into", "out", "add", "lengths", "magnitude"]


class ScalarWork(NamedTuple):
    """What PyTorch's kernels do element by element: where tensors are strided, broadcast or of two dtypes.

    They load no vectors, so that the rate of an SM limits them before the memory does. `size_bytes` is the part of
    the operator's traffic that is theirs. [-, B]
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
    terms: Mapping[str, Array | float] = MappingProxyType({})

    def of(self, **terms: Array | float) -> Scan:
        """Return the same recurrence of these sizes."""
        return self._replace(terms=terms)


class AttentionShape(NamedTuple):
    """Shape of fused attention on one rank: `calls` kernels of `heads` (batch x heads). [-]"""

    heads: Array
    seq_q: Array
    seq_k: Array
    causal_share: Array
    qk_head_dim: float
    v_head_dim: float
    kv_heads: Array
    calls: Array
    windowed: Array
    """Whether `causal_share` is that of a window."""


def linear(
    part: Part,
    leaf: str,
    role: Role,
    modules: Iterable[str],
    m: Array,
    n: Array,
    k: Array,
    **more: object,
) -> Operator:
    """Make a linear layer: one forward GEMM, two backward."""
    return Operator(
        part,
        leaf,
        role,
        "matmul",
        frozenset(modules),
        m=m,
        n=np.asarray(n),
        k=np.asarray(k),
        kernels_backward=2.0,
        **more,  # type: ignore[arg-type]
    )


def memory_bound(
    part: Part,
    leaf: str,
    modules: Iterable[str],
    elements: Array,
    forward: float | Array,
    backward: float | Array,
    *,
    role: Role = "pointwise",
    **more: object,
) -> Operator:
    """Make an element-wise operator that moves so many bytes an element."""
    return Operator(
        part,
        leaf,
        role,
        "memory",
        frozenset(modules),
        forward_bytes=np.asarray(elements * forward),
        backward_bytes=np.asarray(elements * backward),
        has_weight=False,
        **more,  # type: ignore[arg-type]
    )


class Traffic(NamedTuple):
    """HBM bytes an element, and kernels, of an element-wise operator, forward and backward.

    `scalar_forward` and `scalar_backward` are how often kernels without vectors touch each element, and what they
    move of it. [-, B]
    """

    forward: float
    backward: float
    kernels_forward: float
    kernels_backward: float
    scalar_forward: tuple[float, float] = (0.0, 0.0)
    scalar_backward: tuple[float, float] = (0.0, 0.0)


# Reads and writes of each kernel in bf16 (2 B), counted kernel by kernel; the unfused chains are
# those of eager PyTorch with fp32 intermediates where the reference code upcasts. The norm is LLaMA's, in fp32;
# Aleph-Alpha/scaling as released later computes it in bf16 (26 and 60 bytes).
NORM_FUSED = Traffic(4, 12, 1, 2)
NORM_CHAIN = Traffic(36, 92, 7, 16)
# The residual is added by the norm's kernel: what is added and the stream in, the sum and its norm out; backward both
# gradients and the sum in, one gradient out (Dao-AILab/flash-attention csrc/layer_norm, dropout_add_layer_norm).
NORM_RESIDUAL = Traffic(8, 8, 1, 2)
ROPE_FUSED = Traffic(4, 4, 1, 1)
ROPE_CHAIN = Traffic(22, 22, 8, 8)
# Tiles of 4 tokens by half of 64 rotated columns are 128 elements for 128 threads: each loads one of a half at a time
# (Dao-AILab/flash-attention flash_attn/ops/triton/rotary.py, BLOCK_M and BLOCK_K).
ROPE_BY_ELEMENT = Traffic(4, 4, 1, 1, scalar_forward=(1, 4), scalar_backward=(1, 4))
GELU_FUSED = Traffic(4, 6, 1, 1)
GELU_CHAIN = Traffic(12, 14, 3, 3)
SWIGLU_FUSED = Traffic(6, 10, 1, 1)
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
# Sums of a layer's branches: autograd adds the gradients that router, experts and shared expert have of one input, a
# kernel a sum; forward the shared expert's output is added to theirs (NVIDIA/Megatron-LM megatron/core/transformer/moe/
# moe_layer.py; pytorch/pytorch torch/csrc/autograd/input_buffer.cpp).
ROUTED = Traffic(0, 6, 0, 1)
ROUTED_AND_SHARED = Traffic(6, 12, 1, 2)
ADD_DROPOUT_FUSED = Traffic(7, 5, 1, 1)
ADD_DROPOUT_CHAIN = Traffic(15, 9, 3, 2)
SOFTMAX_FUSED = Traffic(4, 6, 1, 1)
# Under a causal mask Megatron's kernel loads a row up to its diagonal only, and writes all of it (NVIDIA/Megatron-LM
# megatron/fused_kernels/scaled_upper_triang_masked_softmax.h); rows of so many batches and heads share a block, and
# others are left to PyTorch (megatron/model/fused_softmax.py, is_kernel_available).
SOFTMAX_CAUSAL = Traffic(3, 4, 1, 1)
SOFTMAX_BLOCK = 4.0
SOFTMAX_CHAIN = Traffic(29, 33, 5, 5)
SOFTMAX_DROPOUT = Traffic(5, 5, 1, 1)


def input_tokens(shard: Shard, recipe: Recipe) -> Array:
    """Tokens of a TP-split layer's input as autograd keeps it: a slice, or gathered. [-]"""
    return shard.tokens_sp if recipe.overlap.sp_regathers else shard.tokens


def column_inputs(part: Part, model: Model, recipe: Recipe) -> float:
    """Column-parallel layers of a part that take one input, each as a layer of its own. [-]"""
    if part == "attention" and model.attention != "mla":
        return 1.0 + model.kv_projections if recipe.kernels.separate_qkv else 1.0
    gates = part not in ("attention", "mixer") and model.gated_mlp
    return 2.0 if recipe.kernels.separate_gate and gates else 1.0


def kept_inputs(part: Part, model: Model, shard: Shard, recipe: Recipe) -> Array:
    """Tokens of all inputs that the TP-split layers of a part keep: one that they share, or one each. [-]"""
    own = column_inputs(part, model, recipe) if recipe.kernels.own_column_inputs else 1.0
    return np.asarray(input_tokens(shard, recipe) * np.where(shard.tp > 1, own, 1.0))


def input_operators(
    part: Part, modules: Iterable[str], model: Model, shard: Shard, recipe: Recipe
) -> list[Operator]:
    """Return what layers of their own on one input cost: a copy each, and the sum of their gradients."""
    apart = column_inputs(part, model, recipe)
    elements = shard.tokens * float(model.hidden_size)
    ops = []
    if apart > 1.0:
        # Autograd adds one gradient to the others at a time: two reads and a write.
        ops.append(
            memory_bound(
                part,
                "input_gradient_sum",
                modules,
                elements,
                0.0,
                6.0 * (apart - 1.0),
                kernels_forward=0.0,
                kernels_backward=apart - 1.0,
            )
        )
    if recipe.kernels.own_column_inputs:
        # A gathered input is nobody else's already.
        copied = apart * (shard.tp > 1) * (shard.tokens_sp == shard.tokens)
        ops.append(
            memory_bound(
                part,
                "input_copy",
                modules,
                elements * copied,
                2.0 * BF16,
                0.0,
                kernels_forward=copied,
                kernels_backward=0.0,
            )
        )
    return ops


def bias_gradients(part: Part, modules: Iterable[str], elements: Array) -> Operator:
    """Sum the output gradients over tokens: one more read of each in the backward pass."""
    return memory_bound(
        part,
        "bias_gradient",
        modules,
        np.asarray(elements),
        0.0,
        BF16,
        kernels_forward=0.0,
        kernels_backward=2.0,
    )


def norm_operator(
    part: Part, leaf: str, elements: Array, recipe: Recipe, rms: bool, saved: Array
) -> Operator:
    """Make a norm; saves its output, which is the next GEMM's input."""
    traffic = NORM_FUSED if recipe.kernels.fused_norm or recipe.kernels.compiled or not rms else NORM_CHAIN
    extra = 0.0 if traffic is NORM_FUSED else 6.0  # fp32 copy and normalised input
    if recipe.kernels.norm_adds_residual and leaf == "norm" and part in ("attention", "mlp"):
        traffic = NORM_RESIDUAL
    return elementwise(part, leaf, ("layernorm",), elements, traffic, saved + extra * elements, role="norm")


def elementwise(
    part: Part,
    leaf: str,
    modules: Iterable[str],
    elements: Array,
    traffic: Traffic,
    saved: Array = ZERO,
    *,
    role: Role = "pointwise",
) -> Operator:
    """Make an element-wise operator of the given traffic."""
    return memory_bound(
        part,
        leaf,
        modules,
        elements,
        traffic.forward,
        traffic.backward,
        role=role,
        kernels_forward=traffic.kernels_forward,
        kernels_backward=traffic.kernels_backward,
        scalar_forward=_scalar_work(elements, traffic.scalar_forward),
        scalar_backward=_scalar_work(elements, traffic.scalar_backward),
        saved_bytes=saved,
    )


def _scalar_work(elements: Array, each: tuple[float, float]) -> ScalarWork | None:
    """Return what kernels without vectors do, where there are such."""
    touched, moved = each
    return ScalarWork(np.asarray(touched * elements), np.asarray(moved * elements)) if touched else None


def residual_operator(part: Part, elements: Array, recipe: Recipe) -> Operator:
    """Make bias + dropout + residual addition; saves the new residual stream and the mask."""
    if recipe.kernels.norm_adds_residual:
        traffic = ADDED_BY_NORM
    elif not recipe.kernels.dropout:
        traffic = ADD_FUSED
    else:
        traffic = (
            ADD_DROPOUT_FUSED
            if recipe.kernels.fused_dropout_add or recipe.kernels.compiled
            else ADD_DROPOUT_CHAIN
        )
    mask = 1.0 if recipe.kernels.dropout else 0.0
    return elementwise(part, "residual", (), elements, traffic, elements * (BF16 + mask), role="residual")


class Cast(NamedTuple):
    """Elements that a pair of linear layers quantises: what enters its first and its second, and their gradients.

    The input of the first and the gradient of the second are sharded by sequence parallelism;
    `gathered` is what tensor parallelism makes of each.
    """

    column_input: Array
    row_input: Array
    column_grad: Array
    row_grad: Array
    gathered: Array


def quantise(
    part: Part,
    modules: Iterable[str],
    cast: Cast,
    precision: Precision,
    after_norm: bool = True,
    tensors: Array = ONE,
) -> list[Operator]:
    """Cast GEMM inputs (forward) and output gradients (backward) to the low precision.

    Transformer Engine casts and transposes in one kernel; the norm writes its output already cast
    under delayed scaling. What sequence parallelism gathers after the cast has to be transposed
    on its own, as has the norm's output, where the matrix units only take one layout (Hopper).

    References
    ----------
    .. [1] NVIDIA/TransformerEngine, pytorch/module/layernorm_linear.py and base.py
       (`grad_output_preprocess`), release 1.7.
    """
    if precision.cast_bytes == 0:
        return []
    each, transpose = precision.cast_bytes, precision.transpose_bytes
    first = 0.0 if after_norm and precision.norm_casts else each
    alone = transpose * cast.gathered if first == 0.0 else transpose * (cast.gathered - cast.column_input)
    alone = alone + transpose * (cast.gathered - cast.row_grad)
    return [
        Operator(
            part,
            "quantise",
            "pointwise",
            "memory",
            frozenset(modules),
            forward_bytes=np.asarray(first * cast.column_input + each * cast.row_input),
            backward_bytes=np.asarray(each * (cast.column_grad + cast.row_grad) + alone),
            kernels_forward=2.0 * tensors,
            kernels_backward=(2.0 if transpose == 0.0 else 4.0) * tensors,
            has_weight=False,
            casts=True,
        )
    ]


def quantise_one(
    part: Part, modules: Iterable[str], given: Array, grad: Array, gathered: Array, precision: Precision
) -> list[Operator]:
    """Quantise for a column-parallel layer that no row-parallel one follows: its input, and its gradient.

    `given` elements enter on a rank, `gathered` are what tensor parallelism makes of them.
    """
    if precision.cast_bytes == 0:
        return []
    each, alone = precision.cast_bytes, precision.transpose_bytes
    first = 0.0 if precision.norm_casts else each
    turned = alone * (gathered if first == 0.0 else gathered - given)
    return [
        Operator(
            part,
            "quantise",
            "pointwise",
            "memory",
            frozenset(modules),
            forward_bytes=np.asarray(first * given),
            backward_bytes=np.asarray(each * grad + turned),
            kernels_forward=1.0,
            kernels_backward=1.0 if alone == 0.0 else 2.0,
            has_weight=False,
            casts=True,
        )
    ]


def exchanged_bytes(recipe: Recipe, precision: Precision) -> tuple[float, float]:
    """Bytes an element of tokens that are dispatched to experts, and of gradients that are."""
    if not precision.cast_bytes:
        return BF16, BF16
    tokens = DISPATCHERS[recipe.moe.moe_dispatcher].quantised_bytes
    return tokens, tokens if recipe.moe.moe_dispatches_gradients_in_fp8 else BF16


def saved_input_bytes(precision: Precision) -> float:
    """Bytes an element that a linear layer keeps of its input: the quantised copy where there is one."""
    return precision.input_bytes if precision.cast_bytes else BF16
