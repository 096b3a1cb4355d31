"""The operators of a transformer layer: what each computes, moves and keeps for the backward pass.

One table per layer kind serves both bills: `step.compute` turns it into seconds, and the memory
lines add up what it saves. Sizes are of one micro-batch on one rank, already divided by the
parallel degrees that split the operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from costmodel.step.anatomy.attention import attention_operators
from costmodel.step.anatomy.feed_forward import mlp_operators, moe_operators
from costmodel.step.anatomy.mixers import mixer_operators
from costmodel.step.anatomy.mixers.family import Given
from costmodel.step.anatomy.operator_parts import (
    ADD_FUSED,
    BF16,
    SWIGLU_FUSED,
    ZERO,
    Operator,
    Shard,
    Traffic,
    elementwise,
    input_tokens,
    linear,
    memory_bound,
    norm_operator,
    quantise_one,
    residual_operator,
    saved_input_bytes,
)

if TYPE_CHECKING:
    from costmodel.describe.models.model import LayerKind, Model
    from costmodel.describe.precision import Precision
    from costmodel.describe.recipe import Recipe


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
    made: list[Operator] = []
    model = model.seen_by(kind)
    if kind.attends:
        made += attention_operators(model, kind, shard, recipe, precision)
    if kind.mixer is not None:
        made += mixer_operators(Given(model, shard, recipe, precision), kind.mixer)
    if kind.has_mlp:
        block = moe_operators if kind.is_moe else mlp_operators
        made += block(model, shard, recipe, precision)
    return [*made, *_layer_embedding(model, shard, recipe)]


def _layer_embedding(model: Model, shard: Shard, recipe: Recipe) -> list[Operator]:
    """Return how a layer adds its own embedding: a gate of the hidden state, their product, back to the width, a norm.

    transformers modeling_gemma4.py, ``per_layer_input_gate`` to ``post_per_layer_input_norm``.
    """
    if not (own := float(model.layer_embedding_size)):
        return []
    t, h, modules = shard.tokens_sp, float(model.hidden_size), ("mlp",)
    gate = np.asarray(BF16 * t * own)
    return [
        linear(
            "mlp", "layer_gate", "replicated", modules, t, np.asarray(own), np.asarray(h), saved_bytes=gate
        ),
        elementwise("mlp", "layer_product", modules, np.asarray(t * own), SWIGLU_FUSED, gate),
        linear(
            "mlp",
            "layer_projection",
            "replicated",
            modules,
            t,
            np.asarray(h),
            np.asarray(own),
            saved_bytes=np.asarray(BF16 * t * h),
        ),
        norm_operator("mlp", "layer_norm", t * h, recipe, model.norm == "rmsnorm", ZERO),
        residual_operator("mlp", t * h, recipe),
    ]


def embedding_operators(model: Model, shard: Shard, recipe: Recipe) -> list[Operator]:
    """Return the token (and position) look-up; its backward scatters into fp32 rows."""
    elements = shard.tokens * float(model.hidden_size)
    mask = 1.0 if recipe.kernels.dropout else 0.0
    saved = shard.tokens_sp * float(model.hidden_size) * mask
    return [
        *_embedding_of_layers(model, shard, recipe),
        memory_bound(
            "embedding",
            "lookup",
            (),
            np.asarray(elements),
            4.0,
            8.0,
            kernels_forward=3.0,
            kernels_backward=3.0,
            saved_bytes=saved,
        ),
    ]


def _embedding_of_layers(model: Model, shard: Shard, recipe: Recipe) -> list[Operator]:
    """Return the look-up of all layers' own embeddings, and the projection of the first that is added to them.

    transformers modeling_gemma4.py, ``get_per_layer_inputs`` and ``project_per_layer_inputs``.
    """
    if not model.layer_embedding_size:
        return []
    t, h = shard.tokens, np.asarray(float(model.hidden_size))
    width = np.asarray(float(model.num_layers * model.layer_embedding_size))
    kept = np.asarray(BF16 * t * width)
    return [
        memory_bound(
            "embedding",
            "of_layers",
            (),
            np.asarray(t * width),
            4.0,
            8.0,
            kernels_forward=2.0,
            kernels_backward=2.0,
        ),
        linear("embedding", "of_layers_projection", "replicated", (), t, width, h, saved_bytes=kept),
        norm_operator("embedding", "of_layers_norm", t * width, recipe, model.norm == "rmsnorm", kept),
        # The sum of both, halved in variance.
        elementwise("embedding", "of_layers_sum", (), np.asarray(t * width), ADD_FUSED),
    ]


# HBM traffic of the loss per logit, and the bytes per logit that are alive at its peak: those of the
# recipe; logits and gradient in half precision; a chunk of 1,024 tokens.
_LOSS = {
    "unfused": (Traffic(34, 10, 10, 4), None),
    "fused": (Traffic(6, 4, 3, 1), 4.0),
    "chunked": (Traffic(6, 4, 16, 0), 8.0),
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
    seen = vocab if recipe.kernels.vocab_parallel_loss else np.asarray(float(model.vocab_size))
    gathered = t * (seen - vocab)
    norm = norm_operator(
        "head",
        "norm",
        shard.tokens_sp * h,
        recipe,
        model.norm == "rmsnorm",
        BF16 * input_tokens(shard, recipe) * h,
    )
    loss, alive = _LOSS[recipe.kernels.cross_entropy]
    if alive is None:
        held = recipe.kernels.loss_bytes_per_logit + recipe.kernels.split_loss_bytes_per_logit * (
            shard.tp > 1
        )
    else:
        held = np.asarray(alive)
    chunk = np.minimum(t, _CHUNK_TOKENS) if recipe.kernels.cross_entropy == "chunked" else t
    return [
        norm,
        linear("head", "logits", "column", (), t, vocab, np.asarray(h), low_precision=False),
        elementwise("head", "loss", (), np.asarray(t * seen), loss, held * chunk * seen),
        memory_bound("head", "gathered_logits", (), np.asarray(gathered), 4.0, 0.0, kernels_backward=0.0),
    ]


def prediction_operators(model: Model, shard: Shard, recipe: Recipe, precision: Precision) -> list[Operator]:
    """Return what joins a hidden state with the embedding of the token after it, back at the model's width.

    A look-up, a norm of each, and a projection of both side by side, whose columns TP splits; the layer and
    the head behind it are those of the model.

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V3 technical report," arXiv:2412.19437, section 2.2, equation 21.
    .. [2] NVIDIA/Megatron-LM, megatron/core/transformer/multi_token_prediction.py (``eh_proj``).
    """
    h, t, t_sp = float(model.hidden_size), shard.tokens, shard.tokens_sp
    rms, modules = model.norm == "rmsnorm", ("mtp",)
    width = h / shard.tp
    kept = saved_input_bytes(precision) * input_tokens(shard, recipe) * 2.0 * h
    return [
        memory_bound(
            "mtp", "lookup", modules, t * h, 4.0, 8.0, kernels_forward=3.0, kernels_backward=3.0
        )._replace(saved_bytes=np.asarray(BF16 * t_sp * h)),
        norm_operator("mtp", "hidden_norm", t_sp * h, recipe, rms, np.asarray(0.0)),
        norm_operator("mtp", "embedding_norm", t_sp * h, recipe, rms, np.asarray(0.0)),
        memory_bound("mtp", "concat", modules, t_sp * 2.0 * h, 4.0, 4.0, saved_bytes=np.asarray(kept)),
        *quantise_one("mtp", modules, t_sp * 2.0 * h, t * width, t * 2.0 * h, precision),
        linear(
            "mtp",
            "projection",
            "column",
            modules,
            t,
            width,
            np.asarray(2.0 * h),
            saved_bytes=np.asarray(BF16 * t_sp * h),
        ),
    ]
