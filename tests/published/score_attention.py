"""Time of attention that writes the score matrix to HBM: unfused, or with a fused softmax.

Two batched products and the kernels between them. Against published timings of PyTorch's unfused
attention (FlashAttention repository, A100 and H100, 2,048 tokens and more) the sum is within 10 %.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.physics.kernels.roofline import MatmulConstants, MemoryConstants, matmul_time, memory_time

Array = NDArray[np.float64]


class ScoreTraffic(NamedTuple):
    """HBM bytes per score that kernels between the products move, and how many kernels these are."""

    forward_bytes: float
    forward_kernels: float
    backward_bytes: float
    backward_kernels: float


def score_traffic(
    *, fused_softmax: bool, masked: bool, dropout: bool, element_bytes: float = 2.0
) -> ScoreTraffic:
    """Return what the kernels between the two products move.

    A softmax reads and writes the scores once; backward it reads gradient and output and writes.
    A mask of its own reads and writes them once more each way; a fused softmax takes it (and the
    scale) along, and reads only what it leaves. Dropout adds one byte of mask a score.

    Parameters
    ----------
    fused_softmax : bool
        Scale, mask and softmax in one kernel.
    masked : bool
        The model masks scores (causal).
    dropout : bool
        Dropout of the probabilities.
    element_bytes : float
        Bytes of a score. [B]

    Returns
    -------
    traffic : ScoreTraffic
        Per score, both passes.

    References
    ----------
    .. [1] V. Korthikanti et al., "Reducing activation recomputation in large transformer
       models," arXiv:2205.05198, section 4.1.

    Examples
    --------
    >>> score_traffic(fused_softmax=True, masked=True, dropout=True).forward_bytes
    8.0
    """
    pass_over, mask_kernels = 2.0 * element_bytes, float(masked and not fused_softmax)
    dropped = float(dropout)
    unread = float(masked and fused_softmax) * 0.5 * element_bytes
    return ScoreTraffic(
        forward_bytes=pass_over * (1.0 + mask_kernels) - unread + dropped * (pass_over + 1.0),
        forward_kernels=1.0 + mask_kernels + dropped,
        backward_bytes=pass_over * (1.5 + mask_kernels) - 2.0 * unread + dropped * (pass_over + 1.0),
        backward_kernels=1.0 + mask_kernels + dropped,
    )


def score_matrix_attention_time_s(
    batch: ArrayLike,
    seq_q: ArrayLike,
    seq_kv: ArrayLike,
    heads: ArrayLike,
    *,
    qk_head_dim: float,
    v_head_dim: float,
    backward: bool,
    traffic: ScoreTraffic,
    matmul: MatmulConstants,
    memory: MemoryConstants,
    peak_flops_per_s: float,
    memory_bandwidth_bytes_per_s: float,
    element_bytes: float = 2.0,
) -> Array:
    r"""Time of attention that writes the score matrix to memory (unfused, or fused softmax).

    Forward: two batched products, :math:`Q K^T` and :math:`P V`, with the scale, mask, softmax
    and dropout kernels between them, which move bytes per score.
    Backward: the four products of the chain rule and the backward kernels. A causal mask saves
    nothing, because the products compute the whole matrix.

    Parameters
    ----------
    batch, seq_q, seq_kv, heads : array_like
        Sequences, queries and keys of each, and query heads on this GPU. [-]
    qk_head_dim, v_head_dim : float
        Elements of a query or key, and of a value. [elements]
    backward : bool
        Price the backward pass, else the forward pass.
    traffic : ScoreTraffic
        What the kernels between the products move: see `score_traffic`.
    matmul, memory : MatmulConstants, MemoryConstants
        Of the accelerator at this precision.
    peak_flops_per_s, memory_bandwidth_bytes_per_s : float
        Of the data sheet, dense. [FLOP/s, B/s]
    element_bytes : float
        Bytes of an element. [B]

    Returns
    -------
    time_s : ndarray
        GPU time of all these kernels, without the host's launch cost. [s]

    Notes
    -----
    The products' own traffic over the score matrix is priced in `matmul_time`.

    References
    ----------
    .. [1] V. Korthikanti et al., "Reducing activation recomputation in large transformer
       models," arXiv:2205.05198, section 4.1 (the operators and what they keep).
    """
    b, sq, skv, h = (np.asarray(x, dtype=np.float64) for x in (batch, seq_q, seq_kv, heads))
    groups = b * h

    def product(m: ArrayLike, n: ArrayLike, k: ArrayLike) -> Array:
        return matmul_time(
            m,
            n,
            k,
            groups=groups,
            constants=matmul,
            peak_flops_per_s=peak_flops_per_s,
            memory_bandwidth_bytes_per_s=memory_bandwidth_bytes_per_s,
            input_bytes=element_bytes,
            output_bytes=element_bytes,
        ).value

    scores_s, values_s = product(sq, skv, qk_head_dim), product(sq, v_head_dim, skv)
    if backward:
        # dP = dO V^T is shaped like the scores; dV, dQ and dK reduce over a sequence.
        scores_s = product(sq, skv, v_head_dim)
        query_and_key_s = product(sq, qk_head_dim, skv) + product(skv, qk_head_dim, sq)
        values_s = product(skv, v_head_dim, sq) + query_and_key_s
    bytes_per_score = traffic.backward_bytes if backward else traffic.forward_bytes
    softmax_s = memory_time(
        groups * sq * skv * bytes_per_score,
        constants=memory,
        memory_bandwidth_bytes_per_s=memory_bandwidth_bytes_per_s,
        kernels=traffic.backward_kernels if backward else traffic.forward_kernels,
    )
    return np.asarray(scores_s + values_s + softmax_s.value)
