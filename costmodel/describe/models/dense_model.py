"""A generic dense model of a given size, for questions that name no model (``dense-100b``)."""

from __future__ import annotations

import math

from costmodel.base.errors import ModelConfigError
from costmodel.describe.models.model import Model, make_model

HEAD_DIM = 128
VOCAB_SIZE = 128256
LAYERS_MULTIPLE = 4
WIDTH_PER_LAYER = 115.0
SMALLEST, LARGEST = 5e8, 2e13


def dense_model(num_params: float) -> Model:
    """Return a Llama-3-like dense model of about `num_params` parameters.

    The rule: heads of 128, 8 KV heads, a gated MLP of 3.5 times the width (up to the next 256),
    vocabulary 128,256, untied. The width is a multiple of 1,024 (512 below 6B), the depth a
    multiple of 4, both chosen for a count close to `num_params` and a width near 115 per layer
    (Llama 3: 128, 102 and 130 at 8B, 70B and 405B).
    """
    if not SMALLEST <= num_params <= LARGEST:
        raise ModelConfigError(
            f"model: dense-<N>b exists for N = {SMALLEST / 1e9:g} … {LARGEST / 1e9:g}, "
            f"got {num_params / 1e9:g}"
        )
    step = 1024 if num_params >= 6e9 else 512
    guess = (num_params * WIDTH_PER_LAYER / 13.0) ** (1 / 3)
    widths = (step * k for k in range(max(1, int(guess / step / 2)), int(guess / step * 2) + 3))
    _, width, layers, kv_heads, ffn_size = min(_shape(width, num_params) for width in widths)
    return make_model(
        {
            "name": f"dense-{num_params / 1e9:g}b",
            "source": "generic: the rule of costmodel.describe.models.dense_model",
            "num_layers": layers,
            "hidden_size": width,
            "num_heads": width // HEAD_DIM,
            "num_kv_heads": kv_heads,
            "ffn_size": ffn_size,
            "gated_mlp": True,
            "vocab_size": VOCAB_SIZE,
        }
    )


def _shape(width: int, num_params: float) -> tuple[float, int, int, int, int]:
    """Return misfit, width, layers, KV heads and MLP width; few heads share what divides them.

    The misfit is the distance from the wished count, weighed 10, and from the wished width a layer.
    """
    kv_heads, ffn_size = math.gcd(width // HEAD_DIM, 8), 256 * math.ceil(3.5 * width / 256)
    layer, tables = (
        width * (2.0 * width + 2.0 * kv_heads * HEAD_DIM + 3.0 * ffn_size),
        2.0 * VOCAB_SIZE * width,
    )
    layers = max(1, round((num_params - tables) / layer / LAYERS_MULTIPLE)) * LAYERS_MULTIPLE
    count = math.log((tables + layers * layer) / num_params)
    misfit = 10 * abs(count) + abs(math.log(width / (WIDTH_PER_LAYER * layers)))
    return misfit, width, layers, kv_heads, ffn_size
