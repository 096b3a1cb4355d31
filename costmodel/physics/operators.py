"""The operators of a transformer layer: what each computes, moves and keeps for the backward pass.

One table per layer kind serves both bills: `axes.compute` turns it into seconds, and the memory
lines add up what it saves. Sizes are of one micro-batch on one rank, already divided by the
parallel degrees that split the operator; element-wise operators are counted in bytes of HBM
traffic, which is the only thing they cost.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from costmodel.describe.model import LayerKind, Model
    from costmodel.describe.recipe import Precision, Recipe

Array = NDArray[np.float64]
OperatorKind = Literal["matmul", "grouped_matmul", "attention", "memory"]

_ZERO = np.asarray(0.0)
_ONE = np.asarray(1.0)
_BF16 = 2.0


class Shard(NamedTuple):
    """One micro-batch as one rank sees it; arrays over layouts.

    `tokens` are those between the norms (the sequence over cp), `tokens_sp` those of norms and
    residuals (also over tp under sequence parallelism); `expert_tokens` are the token copies
    that arrive at the rank's experts, `local_experts` the experts it holds.
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


class Operator(NamedTuple):
    """One operator of a layer, for one micro-batch on one rank.

    Attributes
    ----------
    name : str
        Dotted path inside the layer.
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
    """

    name: str
    kind: OperatorKind
    modules: frozenset[str]
    m: Array = _ZERO
    n: Array = _ZERO
    k: Array = _ZERO
    groups: Array = _ONE
    low_precision: bool = True
    forward_bytes: Array = _ZERO
    backward_bytes: Array = _ZERO
    kernels_forward: float | Array = 1.0
    kernels_backward: float | Array = 1.0
    saved_bytes: Array = _ZERO
    has_weight: bool = True
    casts: bool = False
    has_parameters: bool = True
    attention: AttentionShape | None = None


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


def _matmul(name: str, modules: Iterable[str], m: Array, n: Array, k: Array, **more: object) -> Operator:
    """Make a linear layer: one forward GEMM, two backward."""
    return Operator(
        name, "matmul", frozenset(modules), m=m, n=np.asarray(n), k=np.asarray(k), kernels_backward=2.0, **more  # type: ignore[arg-type]
    )


def _memory(
    name: str, modules: Iterable[str], elements: Array, forward: float, backward: float, **more: object
) -> Operator:
    """Make an element-wise operator that moves so many bytes an element."""
    return Operator(
        name,
        "memory",
        frozenset(modules),
        forward_bytes=np.asarray(elements * forward),
        backward_bytes=np.asarray(elements * backward),
        has_weight=False,
        **more,  # type: ignore[arg-type]
    )


class _Traffic(NamedTuple):
    """HBM bytes an element, and kernels, of an element-wise operator, forward and backward."""

    forward: float
    backward: float
    kernels_forward: float
    kernels_backward: float


# Reads and writes of each kernel in bf16 (2 B), counted kernel by kernel; the unfused chains are
# those of eager PyTorch with fp32 intermediates where the reference code upcasts. The norm is LLaMA's, in fp32;
# Aleph-Alpha/scaling as released later computes it in bf16 (26 and 60 bytes).
_NORM_FUSED = _Traffic(4, 12, 1, 2)
_NORM_CHAIN = _Traffic(36, 92, 7, 16)
_ROPE_FUSED = _Traffic(4, 4, 1, 1)
_ROPE_CHAIN = _Traffic(22, 22, 8, 8)
_GELU_FUSED = _Traffic(4, 6, 1, 1)
_GELU_CHAIN = _Traffic(12, 14, 3, 3)
_SWIGLU_FUSED = _Traffic(6, 10, 1, 1)
_SWIGLU_CHAIN = _Traffic(10, 18, 2, 4)
_ADD_FUSED = _Traffic(6, 0, 1, 0)
_ADD_DROPOUT_FUSED = _Traffic(7, 5, 1, 1)
_ADD_DROPOUT_CHAIN = _Traffic(15, 9, 3, 2)
_SOFTMAX_FUSED = _Traffic(4, 6, 1, 1)
_SOFTMAX_CHAIN = _Traffic(29, 33, 5, 5)
_SOFTMAX_DROPOUT = _Traffic(5, 5, 1, 1)


def _input_tokens(shard: Shard, recipe: Recipe) -> Array:
    """Tokens of a TP-split layer's input as autograd keeps it: a slice, or gathered. [-]"""
    return shard.tokens_sp if recipe.sp_regathers else shard.tokens


def _norm(name: str, elements: Array, recipe: Recipe, rms: bool, saved: Array) -> Operator:
    """Make a norm; saves its output, which is the next GEMM's input."""
    traffic = _NORM_FUSED if recipe.fused_norm or recipe.compiled or not rms else _NORM_CHAIN
    extra = 0.0 if traffic is _NORM_FUSED else 6.0  # fp32 copy and normalised input
    return _elementwise(name, ("layernorm",), elements, traffic, saved + extra * elements)


def _elementwise(
    name: str, modules: Iterable[str], elements: Array, traffic: _Traffic, saved: Array = _ZERO
) -> Operator:
    return _memory(
        name,
        modules,
        elements,
        traffic.forward,
        traffic.backward,
        kernels_forward=traffic.kernels_forward,
        kernels_backward=traffic.kernels_backward,
        saved_bytes=saved,
    )


def _residual(name: str, elements: Array, recipe: Recipe) -> Operator:
    """Make bias + dropout + residual addition; saves the new residual stream and the mask."""
    if not recipe.dropout:
        traffic = _ADD_FUSED
    else:
        traffic = _ADD_DROPOUT_FUSED if recipe.fused_dropout_add or recipe.compiled else _ADD_DROPOUT_CHAIN
    mask = 1.0 if recipe.dropout else 0.0
    return _elementwise(name, (), elements, traffic, elements * (_BF16 + mask))


class _Cast(NamedTuple):
    """Elements that a pair of linear layers quantises: what enters its first and its second, and their gradients.

    The input of the first and the gradient of the second are sharded by sequence parallelism;
    `gathered` is what tensor parallelism makes of each.
    """

    column_input: Array
    row_input: Array
    column_grad: Array
    row_grad: Array
    gathered: Array


def _quantise(
    name: str,
    modules: Iterable[str],
    cast: _Cast,
    precision: Precision,
    after_norm: bool = True,
    tensors: Array = _ONE,
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
            name,
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


def saved_input_bytes(precision: Precision) -> float:
    """Bytes an element that a linear layer keeps of its input: the quantised copy where there is one."""
    return precision.input_bytes if precision.cast_bytes else _BF16


def attention_operators(
    model: Model, kind: LayerKind, shard: Shard, recipe: Recipe, precision: Precision
) -> list[Operator]:
    """Return the operators of the attention block: norm, projections, rotary, core, residual."""
    h, t, t_sp, tp = float(model.hidden_size), shard.tokens, shard.tokens_sp, shard.tp
    heads = model.num_heads / tp
    kv_heads = np.maximum(model.num_kv_heads / tp, 1.0)
    d_qk, d_v = float(model.head_dim), float(model.v_head_dim)
    saved_in = saved_input_bytes(precision)
    q_width, k_width, v_width = heads * d_qk, kv_heads * d_qk, kv_heads * d_v
    rms = model.norm == "rmsnorm"
    whole = ("attention",)
    kept = _input_tokens(shard, recipe)
    ops = [_norm("attention.norm", t_sp * h, recipe, rms, saved_in * kept * h)]
    if model.attention == "mla":
        ops += _latent_projections(model, shard, recipe, precision)
        k_width, v_width = heads * d_qk, heads * d_v
        kv_heads = heads
    else:
        saved = _BF16 * t * (q_width + k_width + v_width)
        ops.append(
            _matmul("attention.qkv", (*whole, "qkv"), t, q_width + k_width + v_width, np.asarray(h), saved_bytes=saved)
        )
    if model.qk_norm:
        ops.append(_norm("attention.qk_norm", t * (q_width + k_width), recipe, rms, _BF16 * t * (q_width + k_width)))
    if model.position == "rope":
        rotated = t * (q_width + k_width)
        if model.attention == "mla":
            rotated = t * model.qk_rope_head_dim * (heads + 1.0)
        traffic = _ROPE_FUSED if recipe.fused_rope or recipe.compiled else _ROPE_CHAIN
        ops.append(_elementwise("attention.rope", whole, np.asarray(rotated), traffic))
    width = t * (q_width + k_width + v_width)
    ops += _quantise(
        "attention.quantise", whole, _Cast(t_sp * h, t * heads * d_v, width, t_sp * h, t * h), precision
    )
    ops += _core(model, kind, shard, recipe, heads, kv_heads)
    ops.append(_matmul("attention.out", whole, t, np.asarray(h), heads * d_v))
    if model.linear_bias:
        ops += _bias_gradients("attention", whole, t * (q_width + k_width + v_width) + t_sp * h)
    ops.append(_residual("attention.residual", t_sp * h, recipe))
    return ops


def _latent_projections(model: Model, shard: Shard, recipe: Recipe, precision: Precision) -> list[Operator]:
    """MLA: down-projections (replicated over TP, on sharded tokens) and up-projections per head.

    DeepSeek-V2, arXiv:2405.04434, equations 9-19.
    """
    h, t, t_sp = float(model.hidden_size), shard.tokens, shard.tokens_sp
    heads = model.num_heads / shard.tp
    kv_down = float(model.kv_lora_rank + model.qk_rope_head_dim)
    q_rank = float(model.q_lora_rank)
    ops: list[Operator] = []
    q_input = h
    if q_rank:
        ops.append(_matmul("attention.q_down", ("attention",), t_sp, np.asarray(q_rank), np.asarray(h),
                           saved_bytes=_BF16 * t_sp * q_rank))  # fmt: skip
        ops.append(_norm("attention.q_norm", t * q_rank, recipe, True, _BF16 * t * q_rank))
        q_input = q_rank
    ops.append(_matmul("attention.kv_down", ("attention",), t_sp, np.asarray(kv_down), np.asarray(h),
                       saved_bytes=_BF16 * t_sp * kv_down))  # fmt: skip
    ops.append(_norm("attention.kv_norm", t * float(model.kv_lora_rank), recipe, True,
                     _BF16 * t * float(model.kv_lora_rank)))  # fmt: skip
    q_width = heads * float(model.head_dim)
    up = ("attention", "mla_up_proj")
    ops.append(_matmul("attention.q_up", up, t, q_width, np.asarray(q_input), saved_bytes=_BF16 * t * q_width))
    kv_up = heads * float(model.qk_nope_head_dim + model.v_head_dim)
    kept = heads * float(model.head_dim + model.v_head_dim)
    ops.append(_matmul("attention.kv_up", up, t, kv_up, np.asarray(float(model.kv_lora_rank)),
                       saved_bytes=_BF16 * t * kept))  # fmt: skip
    # K is written once more with the shared rotary part copied to every head.
    ops.append(_memory("attention.kv_concat", up, np.asarray(t * kept), 4.0, 4.0, kernels_forward=2.0,
                       kernels_backward=2.0))  # fmt: skip
    return ops


def _core(
    model: Model, kind: LayerKind, shard: Shard, recipe: Recipe, heads: Array, kv_heads: Array
) -> list[Operator]:
    """Return attention itself: one fused kernel, or two batched GEMMs around a softmax through HBM."""
    modules = ("attention", "core_attn")
    d_qk, d_v = float(model.head_dim), float(model.v_head_dim)
    batch_heads = shard.micro_batch * heads
    seq_q, seq_k = shard.seq_len / shard.cp, shard.seq_len
    window = float(kind.window) if kind.window else np.inf
    reach = np.minimum(seq_k, window)
    out_saved = _BF16 * shard.tokens * heads * d_v
    if recipe.attention_kernel not in ("unfused", "fused-softmax"):
        # A causal row sees half the keys on average; under a window nearly all of it.
        share = np.where(window < seq_k, reach / seq_k * (1.0 - 0.5 * reach / seq_k), 0.5)
        lse = 4.0 * shard.tokens * heads
        shape = AttentionShape(batch_heads, seq_q, seq_k, share, d_qk, d_v, shard.micro_batch * kv_heads, np.asarray(1.0))
        if recipe.cp_method == "ring":
            # One kernel a step of the ring, each over one slice of queries and one of keys.
            shape = shape._replace(seq_k=seq_k / shard.cp, calls=shard.cp)
        return [
            Operator("attention.core", "attention", frozenset(modules), saved_bytes=out_saved + lse,
                     kernels_backward=2.0, has_weight=False, attention=shape)  # fmt: skip
        ]
    scores = batch_heads * seq_q * seq_k
    fused = recipe.attention_kernel == "fused-softmax" or recipe.compiled
    softmax = _SOFTMAX_FUSED if fused else _SOFTMAX_CHAIN
    ops = [
        _matmul("attention.scores", modules, seq_q, seq_k, np.asarray(d_qk), groups=batch_heads, low_precision=False,
                has_parameters=False),
        _elementwise("attention.softmax", modules, np.asarray(scores), softmax, _BF16 * scores),
    ]  # fmt: skip
    if recipe.dropout:
        ops.append(_elementwise("attention.dropout", modules, np.asarray(scores), _SOFTMAX_DROPOUT, 3.0 * scores))
    ops.append(_matmul("attention.context", modules, seq_q, np.asarray(d_v), seq_k, groups=batch_heads,
                       low_precision=False, has_parameters=False, saved_bytes=out_saved))  # fmt: skip
    return ops


def mlp_operators(model: Model, shard: Shard, recipe: Recipe, precision: Precision) -> list[Operator]:
    """Return the operators of a dense MLP block, norm and residual included."""
    h, t, t_sp = float(model.hidden_size), shard.tokens, shard.tokens_sp
    width = float(model.ffn_size) / shard.tp
    rms = model.norm == "rmsnorm"
    kept = _input_tokens(shard, recipe)
    ops = [_norm("mlp.norm", t_sp * h, recipe, rms, saved_input_bytes(precision) * kept * h)]
    ops += _two_layers("mlp", ("mlp",), t, h, width, _ONE, model.gated_mlp, recipe, precision, "matmul", t_sp)
    if model.gated_mlp and recipe.separate_gate:
        # Autograd adds the input gradients of gate and up projection.
        ops.append(_memory("mlp.input_gradient_sum", ("mlp",), t * h, 0.0, 6.0, kernels_forward=0.0))
    if model.linear_bias:
        ops += _bias_gradients("mlp", ("mlp",), t * width + t_sp * h)
    ops.append(_residual("mlp.residual", t_sp * h, recipe))
    return ops


def _bias_gradients(prefix: str, modules: Iterable[str], elements: Array) -> list[Operator]:
    """Sum the output gradients over tokens: one more read of each in the backward pass."""
    return [_memory(f"{prefix}.bias_gradient", modules, np.asarray(elements), 0.0, _BF16, kernels_forward=0.0,
                    kernels_backward=2.0)]  # fmt: skip


def _two_layers(
    prefix: str,
    modules: tuple[str, ...],
    tokens: Array,
    h: float,
    width: Array,
    groups: Array,
    gated: bool,
    recipe: Recipe,
    precision: Precision,
    kind: OperatorKind,
    tokens_sp: Array | None = None,
) -> list[Operator]:
    """Return fc1, activation, fc2 on `tokens` rows in each of `groups` experts."""
    up = 2.0 * width if gated else width
    rows = tokens * groups
    # Experts get their tokens by exchange, not by gathering a sequence shard.
    sharded = (tokens if tokens_sp is None else tokens_sp) * groups * h
    fused = recipe.fused_activation or recipe.compiled
    gelu, swiglu = (_GELU_FUSED, _SWIGLU_FUSED) if fused else (_GELU_CHAIN, _SWIGLU_CHAIN)
    # What the host issues for all experts: one kernel, or one each from a loop in C++ or in Python.
    share = recipe.grouped_launch_share if recipe.grouped_gemm else 1.0
    loop = np.maximum(1.0, share * groups) if kind == "grouped_matmul" else _ONE
    # The block scales of all experts are rearranged in one kernel an operand.
    launches = np.asarray(loop + precision.scale_kernels)
    act_module = "moe_act" if kind == "grouped_matmul" else "mlp_act"
    h_array = np.asarray(h)
    # Unfused SwiGLU keeps the activated gate besides; GELU is one kernel, which needs its input only.
    extra = _BF16 if gated and not fused else 0.0
    return [
        *_quantise(f"{prefix}.quantise", modules, _Cast(sharded, rows * width, rows * up, sharded, rows * h), precision,
                   after_norm=kind == "matmul", tensors=loop),
        Operator(f"{prefix}.fc1", kind, frozenset(modules), m=tokens, n=np.asarray(up), k=h_array, groups=groups,
                 kernels_forward=launches, kernels_backward=2.0 * launches, saved_bytes=_BF16 * rows * up),
        _elementwise(f"{prefix}.activation", (*modules, act_module), np.asarray(rows * width),
                     swiglu if gated else gelu, rows * width * (saved_input_bytes(precision) + extra)),
        Operator(f"{prefix}.fc2", kind, frozenset(modules), m=tokens, n=h_array, k=np.asarray(width), groups=groups,
                 kernels_forward=launches, kernels_backward=2.0 * launches),
    ]  # fmt: skip


# Kernels of router and preprocessing, forward: as PyTorch operators, fused, and with the dispatcher's
# own preprocessing (NVIDIA/Megatron-LM docs/discussions/deepseek-v3-gb200-optimization, 2.1.4 and 2.2.1).
_ROUTER_KERNELS: dict[str | bool, float] = {False: 72.0, True: 31.0, "deep-ep": 17.0}


# Bias of the experts' second layer, times the router's fp32 probability: product (4 B), sum (6 in,
# 4 out), concatenation (8) and cast (6); backward the casts, two products and two reductions in fp32.
# NVIDIA/Megatron-LM megatron/core/transformer/moe/experts.py, TEGroupedMLP._apply_bias.
_EXPERT_BIAS = _Traffic(28, 36, 5, 8)


def moe_operators(model: Model, shard: Shard, recipe: Recipe, precision: Precision) -> list[Operator]:
    """Return the operators of an MoE block: norm, router, permutation, experts, shared expert."""
    h, t_sp = float(model.hidden_size), shard.tokens_sp
    rms = model.norm == "rmsnorm"
    modules = ("moe",)
    copies = shard.expert_tokens
    ops = [_norm("mlp.norm", t_sp * h, recipe, rms, saved_input_bytes(precision) * t_sp * h)]
    ops.append(
        _matmul("moe.router", modules, t_sp, np.asarray(float(model.num_experts)), np.asarray(h), low_precision=False,
                saved_bytes=4.0 * t_sp * model.num_experts)
    )  # fmt: skip
    # Scores in fp32: sigmoid or softmax, top-k, normalisation, auxiliary loss, routing maps. Their
    # backward pass is taken to launch half as many kernels.
    kernels = _ROUTER_KERNELS["deep-ep" if recipe.moe_dispatcher == "deep-ep" else recipe.router_fusion]
    ops.append(
        _memory("moe.routing", modules, np.asarray(t_sp * model.num_experts), 24.0, 24.0, kernels_forward=kernels,
                kernels_backward=0.5 * kernels)
    )  # fmt: skip
    # Gather into expert order before sending and again after receiving; the way back likewise.
    ops.append(_memory("moe.permute", modules, copies * h, 8.0, 8.0, kernels_forward=2.0, kernels_backward=2.0,
                       saved_bytes=saved_input_bytes(precision) * copies * h))  # fmt: skip
    per_expert = copies / shard.local_experts
    width = np.asarray(model.expert_ffn_size / shard.etp)
    ops += _two_layers("moe.experts", modules, per_expert, h, width, shard.local_experts, model.gated_mlp, recipe,
                       precision, "grouped_matmul")  # fmt: skip
    if model.linear_bias and recipe.expert_bias_chain:
        ops.append(_elementwise("moe.experts.bias", modules, copies * h, _EXPERT_BIAS))
    ops.append(_memory("moe.unpermute", modules, copies * h, 8.0, 8.0, kernels_forward=2.0, kernels_backward=2.0,
                       saved_bytes=np.asarray(_ZERO)))  # fmt: skip
    if model.shared_expert_ffn_size:
        shared = np.asarray(model.shared_expert_ffn_size / shard.tp)
        ops += _two_layers("moe.shared", modules, shard.tokens, h, shared, _ONE, model.gated_mlp, recipe, precision,
                           "matmul", t_sp)  # fmt: skip
    ops.append(_residual("mlp.residual", t_sp * h, recipe))
    return ops


def layer_operators(
    model: Model, kind: LayerKind, shard: Shard, recipe: Recipe, precision: Precision
) -> list[Operator]:
    """Return all operators of a layer of `kind`, in order.

    References
    ----------
    .. [1] V. Korthikanti et al., "Reducing activation recomputation in large transformer models,"
       MLSys 2023, arXiv:2205.05198, section 4 and equations 1-4 (what each operator saves).
    .. [2] T. Dao et al., "FlashAttention," NeurIPS 2022, arXiv:2205.14135 (nothing quadratic is kept).
    """
    block = moe_operators if kind.is_moe else mlp_operators
    return [
        *attention_operators(model, kind, shard, recipe, precision),
        *block(model, shard, recipe, precision),
    ]


def embedding_operators(model: Model, shard: Shard, recipe: Recipe) -> list[Operator]:
    """Return the token (and position) look-up; its backward scatters into fp32 rows."""
    elements = shard.tokens * float(model.hidden_size)
    mask = 1.0 if recipe.dropout else 0.0
    saved = shard.tokens_sp * float(model.hidden_size) * mask
    return [_memory("embedding.lookup", (), np.asarray(elements), 4.0, 8.0, kernels_forward=3.0, kernels_backward=3.0,
                    saved_bytes=saved)]  # fmt: skip


# HBM traffic of the loss per logit, and the bytes per logit that are alive at its peak: those of the
# recipe; logits and gradient in half precision; a chunk of 1,024 tokens.
_LOSS = {
    "unfused": (_Traffic(34, 10, 10, 4), None),
    "fused": (_Traffic(6, 4, 3, 1), 4.0),
    "chunked": (_Traffic(6, 4, 16, 0), 8.0),
}
_CHUNK_TOKENS = 1024.0


def head_operators(model: Model, shard: Shard, recipe: Recipe) -> list[Operator]:
    """Return the final norm, the logits GEMM and the cross-entropy over vocabulary shards.

    Unfused cross-entropy goes through an fp32 copy of the logits in several passes (maximum,
    subtract, exponentiate, sum, gradient); fused reads and writes them once each way; chunked
    does so a thousand tokens at a time and computes the gradient in the forward pass.
    """
    h, t = float(model.hidden_size), shard.tokens
    vocab = model.vocab_size / shard.tp
    # Without a parallel loss the logits are gathered and copied into one tensor, and cut up on the way back.
    seen = vocab if recipe.vocab_parallel_loss else np.asarray(float(model.vocab_size))
    gathered = t * (seen - vocab)
    norm = _norm("head.norm", shard.tokens_sp * h, recipe, model.norm == "rmsnorm",
                 _BF16 * _input_tokens(shard, recipe) * h)  # fmt: skip
    loss, alive = _LOSS[recipe.cross_entropy]
    alive = alive or recipe.loss_bytes_per_logit + recipe.split_loss_bytes_per_logit * (shard.tp > 1)
    chunk = np.minimum(t, _CHUNK_TOKENS) if recipe.cross_entropy == "chunked" else t
    return [
        norm,
        _matmul("head.logits", (), t, vocab, np.asarray(h), low_precision=False),
        _elementwise("head.loss", (), np.asarray(t * seen), loss, alive * chunk * seen),
        _memory("head.gathered_logits", (), np.asarray(gathered), 4.0, 0.0, kernels_backward=0.0),
    ]
