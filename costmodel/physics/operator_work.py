"""FLOPs and least bytes of one operator's forward pass: where it lies on a GPU's roofline."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.physics.operator_parts import Operator

Array = NDArray[np.float64]

_BF16 = 2.0


class Work(NamedTuple):
    """What one pass computes and moves at least. [FLOP, B]"""

    flops: Array
    moved_bytes: Array


def forward_work(operator: Operator, element_bytes: ArrayLike = _BF16) -> Work:
    r"""Count the FLOPs and the compulsory HBM traffic of an operator's forward pass.

    .. math:: F = 2\,g\,m\,n\,k, \qquad Q = g\,(e\,(m k + k n) + 2\,m n)

    and for fused attention, which keeps scores on the chip,
    :math:`F = 2\,c\,h\,s_q s_k (d_{qk} + d_v)` over its calls and heads, times the share that is not masked.

    Parameters
    ----------
    operator : Operator
        One operator of a layer, of one micro-batch on one rank.
    element_bytes : array_like
        Bytes of an operand of a matrix product, e; the result is written in bf16. [B]

    Returns
    -------
    Work
        An element-wise operator does no counted FLOPs.

    Notes
    -----
    Every operand is read once and the result written once, which is the best a kernel can do.

    Examples
    --------
    >>> square = Operator("x", "matmul", frozenset(), m=np.asarray(4096.0), n=np.asarray(4096.0), k=np.asarray(4096.0))
    >>> work = forward_work(square)
    >>> round(float(work.flops / work.moved_bytes))
    1365
    """
    if operator.kind == "memory":
        return Work(np.asarray(0.0), operator.forward_bytes)
    if operator.attention is not None:
        shape = operator.attention
        width = shape.qk_head_dim + shape.v_head_dim
        scores = shape.calls * shape.heads * shape.seq_q * shape.seq_k * shape.causal_share
        moved = shape.calls * (shape.heads * shape.seq_q + shape.kv_heads * shape.seq_k) * width
        return Work(np.asarray(2.0 * scores * width), np.asarray(_BF16 * moved))
    operand = np.asarray(element_bytes, dtype=np.float64)
    m, n, k = operator.m, operator.n, operator.k
    moved = operator.groups * (operand * (m * k + k * n) + _BF16 * m * n)
    return Work(np.asarray(2.0 * operator.groups * m * n * k), np.asarray(moved))
