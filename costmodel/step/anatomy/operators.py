"""The operators of a transformer layer, and its weight matrices: what each computes, moves and keeps for the backward pass.

One table per layer kind serves both bills: `step.compute` turns it into seconds, and the memory
lines add up what it saves. Sizes are of one micro-batch on one rank, already divided by the
parallel degrees that split the operator.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from costmodel.describe.models.model import LayerKind, Tower
from costmodel.step.anatomy.attention import attention_operators
from costmodel.step.anatomy.feed_forward import mlp_operators, moe_operators
from costmodel.step.anatomy.mixers import mixer_operators
from costmodel.step.anatomy.operator_parts import (
    ADD_FUSED,
    BF16,
    GELU_FUSED,
    SWIGLU_FUSED,
    ZERO,
    Cast,
    Given,
    Operator,
    Traffic,
    elementwise,
    linear,
    norm,
    quantise,
    residual,
)

_LOOKUP = Traffic(4, 8, 3, 3)
"""Look-up in a table of tokens; backward it scatters into fp32 rows."""


def layer_operators(given: Given, kind: LayerKind) -> list[Operator]:
    """Return all operators of a layer of `kind`, in order.

    References
    ----------
    .. [1] V. Korthikanti et al., "Reducing activation recomputation in large transformer models,"
       MLSys 2023, arXiv:2205.05198, section 4 and equations 1-4 (what each operator saves).
    .. [2] T. Dao et al., "FlashAttention," NeurIPS 2022, arXiv:2205.14135 (nothing quadratic is kept).
    """
    given = given.seen_by(kind)
    made: list[Operator] = []
    if kind.attends:
        made += attention_operators(given, kind)
    if kind.mixer is not None:
        made += mixer_operators(given, kind.mixer)
    if kind.has_mlp:
        made += moe_operators(given) if kind.is_moe else mlp_operators(given)
    if given.model.layer_embedding_size:
        made += _layer_embedding(given)
    return made


def _layer_embedding(given: Given) -> list[Operator]:
    """Return how a layer adds its own embedding: a gate of the hidden state, their product, back to the width, a norm.

    transformers modeling_gemma4.py, ``per_layer_input_gate`` to ``post_per_layer_input_norm``.
    """
    t, h, own = given.shard.tokens_sp, given.hidden, float(given.model.layer_embedding_size)
    return [
        linear("mlp", "layer_gate", "replicated", t, own, h, kept=BF16),
        elementwise("mlp", "layer_product", t * own, SWIGLU_FUSED, BF16 * t * own),
        linear("mlp", "layer_projection", "replicated", t, h, own, kept=BF16),
        norm(given, "mlp", "layer_norm", t * h, ZERO),
        residual(given, "mlp"),
    ]


def embedding_operators(given: Given) -> list[Operator]:
    """Return the token (and position) look-up; its backward scatters into fp32 rows."""
    mask = given.shard.tokens_sp * given.hidden * given.recipe.kernels.dropout
    return [
        *(_embedding_of_layers(given) if given.model.layer_embedding_size else []),
        elementwise("embedding", "lookup", given.tokens * given.hidden, _LOOKUP, mask),
    ]


def _embedding_of_layers(given: Given) -> list[Operator]:
    """Return the look-up of all layers' own embeddings, and the projection of the first that is added to them.

    transformers modeling_gemma4.py, ``get_per_layer_inputs`` and ``project_per_layer_inputs``.
    """
    t, width = given.tokens, float(given.model.num_layers * given.model.layer_embedding_size)
    elements = t * width
    return [
        elementwise("embedding", "of_layers", elements, Traffic(4, 8, 2, 2)),
        linear("embedding", "of_layers_projection", "replicated", t, width, given.hidden, kept=BF16),
        norm(given, "embedding", "of_layers_norm", elements, BF16 * elements),
        # The sum of both, halved in variance.
        elementwise("embedding", "of_layers_sum", elements, ADD_FUSED),
    ]


# HBM traffic of the loss per logit, and the bytes per logit that are alive at its peak: those of the
# recipe; logits and gradient in half precision; a chunk of 1,024 tokens.
LOSS = {
    "unfused": (Traffic(34, 10, 10, 4), None),
    "fused": (Traffic(6, 4, 3, 1), 4.0),
    "chunked": (Traffic(6, 4, 16, 0), 8.0),
}
_CHUNK_TOKENS = 1024.0


def head_operators(given: Given) -> list[Operator]:
    """Return the last norms, the logits GEMM and the cross-entropy over vocabulary shards; a dense layer where a model has one.

    Unfused cross-entropy goes through an fp32 copy of the logits in several passes (maximum,
    subtract, exponentiate, sum, gradient); fused reads and writes them once each way; chunked
    does so a thousand tokens at a time and computes the gradient in the forward pass.
    """
    shard, kernels, h, t = given.shard, given.recipe.kernels, given.hidden, given.tokens
    norms, rows = float(given.model.head_norms), shard.tokens_sp * h
    dense = [linear("head", "dense", "replicated", shard.tokens_sp, h, h, kept=BF16)]
    dense.append(elementwise("head", "activation", rows, GELU_FUSED, BF16 * rows))
    vocab = given.model.vocab_size / shard.tp
    # Without a parallel loss the logits are gathered and copied into one tensor, and cut up on the way back.
    seen = vocab if kernels.vocab_parallel_loss else np.asarray(float(given.model.vocab_size))
    loss, alive = LOSS[kernels.cross_entropy]
    saved_per_logit = kernels.loss_bytes_per_logit + kernels.split_loss_bytes_per_logit * (shard.tp > 1)
    chunk = np.minimum(t, _CHUNK_TOKENS) if kernels.cross_entropy == "chunked" else t
    saved_bytes = (saved_per_logit if alive is None else alive) * chunk * seen
    return [
        *(dense if given.model.head_dense else []),
        norm(given, "head", "norm", norms * rows, norms * BF16 * given.input_tokens * h),
        linear("head", "logits", "column", t, vocab, h, low_precision=False),
        elementwise("head", "loss", t * seen, loss, saved_bytes),
        elementwise("head", "gathered_logits", t * (seen - vocab), Traffic(4, 0, 1, 0)),
    ]


def prediction_operators(given: Given) -> list[Operator]:
    """Return what joins a hidden state with the embedding of the token after it, back at the model's width.

    A look-up, a norm of each, and a projection of both side by side, whose columns TP splits; the layer and
    the head behind it are those of the model.

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V3 technical report," arXiv:2412.19437, section 2.2, equation 21.
    .. [2] NVIDIA/Megatron-LM, megatron/core/transformer/multi_token_prediction.py (``eh_proj``).
    """
    h, t, t_sp = given.hidden, given.tokens, given.shard.tokens_sp
    width, both = h / given.shard.tp, 2.0 * h
    kept = given.input_bytes * given.input_tokens * both
    return [
        elementwise("mtp", "lookup", t * h, _LOOKUP, BF16 * t_sp * h),
        norm(given, "mtp", "hidden_norm", t_sp * h, ZERO),
        norm(given, "mtp", "embedding_norm", t_sp * h, ZERO),
        elementwise("mtp", "concat", t_sp * both, Traffic(4, 4), kept),
        *quantise(given, "mtp", Cast(t_sp * both, t * width, t * both)),
        linear("mtp", "projection", "column", t, width, both, saved_bytes=np.asarray(BF16 * t_sp * h)),
    ]


def tower_ends(given: Given, tower: Tower, hidden: float) -> list[Operator]:
    """Return what makes the tokens of a tower, and what brings them to the width of the language model; whole on every rank."""
    t, h = given.tokens, given.hidden
    merged = t / tower.merge
    return [
        linear(
            "embedding", "patches", "replicated", t, h, tower.patch_params / h, kept=BF16, low_precision=False
        ),
        elementwise("embedding", "positions", t * h, ADD_FUSED),
        linear(
            "embedding", "projector", "replicated", merged, hidden, tower.projector_params / hidden, kept=BF16
        ),
    ]


class Matrix(NamedTuple):
    """Weights of one shape in a layer, before any axis splits them: what an optimizer of matrices sees. [-]"""

    name: str
    """Of the operator that multiplies with them."""
    short: float
    long: float
    copies: float
    """How many there are: every expert has its own."""
    is_expert: bool
    """Whether EP shards them."""
    is_split: bool
    """Whether TP (of experts: ETP) splits each."""

    @property
    def elements(self) -> float:
        """Parameters of one. [-]"""
        return self.short * self.long


def weight_matrices(whole: Given, kind: LayerKind | None) -> tuple[Matrix, ...]:
    """Return the matrices of a layer of a kind, or of what multi-token prediction has before one of its layers."""
    operators = prediction_operators(whole) if kind is None else layer_operators(whole, kind)
    return tuple(
        Matrix(
            one.name,
            float(min(one.n, one.k)),
            float(max(one.n, one.k)),
            float(one.groups),
            is_expert=one.role == "expert",
            is_split=one.role in ("column", "row", "expert"),
        )
        for one in operators
        if one.is_product and one.has_weight and one.has_parameters
    )
