"""A short convolution between two gates, in attention's place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from costmodel.step.anatomy.mixers.family import (
    GATE,
    MODULES,
    Given,
    Mixer,
    around,
    convolution,
    vector,
    way_in,
    way_out,
    weight,
)
from costmodel.step.anatomy.operator_parts import BF16, Operator, elementwise

if TYPE_CHECKING:
    from costmodel.describe.models.mixers import ShortConvolution
    from costmodel.describe.models.model import Model
    from costmodel.step.anatomy.operator_parts import ParamBlock


def _params(model: Model, sizes: ShortConvolution) -> list[ParamBlock]:
    """Return both gates and what they gate in one matrix; the convolution; the way out."""
    h, wide = float(model.hidden_size), float(sizes.channels)
    return [
        weight("in", 3.0 * wide * h),
        vector("in.bias", 3.0 * wide * sizes.bias),
        vector("conv", wide * (sizes.conv_kernel + sizes.bias)),
        weight("out", wide * h),
        vector("out.bias", h * sizes.bias, "replicated"),
    ]


def _operators(given: Given, sizes: ShortConvolution) -> list[Operator]:
    wide = np.asarray(sizes.channels / given.shard.tp)
    elements = np.asarray(given.tokens * wide)
    # A rank's first tokens need the last ones of the rank before it.
    before = np.asarray(BF16 * given.shard.micro_batch * (sizes.conv_kernel - 1.0) * wide)
    return around(
        given,
        [
            way_in(given, 3.0 * wide),
            elementwise("mixer", "gate_in", MODULES, elements, GATE, BF16 * elements),
            convolution(given, wide)._replace(neighbour_bytes=before),
            elementwise("mixer", "gate_out", MODULES, elements, GATE, BF16 * elements),
            way_out(given, wide),
        ],
        column_width=3.0 * wide,
        row_width=wide,
    )


SHORT_CONVOLUTION = Mixer(
    name="short-convolution",
    params=_params,
    operators=_operators,
    flops="2 * channels * conv_kernel",
    state="channels * (conv_kernel - 1)",
    source="LFM2, arXiv:2511.23404, section 2; transformers modeling_lfm2.py, Lfm2ShortConv (`slow_forward`: two gates "
    "as kernels of their own around causal-conv1d)",
)
