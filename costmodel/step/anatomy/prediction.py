"""What multi-token prediction runs before its transformer layers and heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from costmodel.step.anatomy.operator_parts import (
    BF16,
    Operator,
    Shard,
    input_tokens,
    linear,
    memory_bound,
    norm_operator,
    quantise_one,
    saved_input_bytes,
)

if TYPE_CHECKING:
    from costmodel.describe.models.model import Model
    from costmodel.describe.precision import Precision
    from costmodel.describe.recipe import Recipe


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
