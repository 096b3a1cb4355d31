"""Time of attention that writes the score matrix to HBM: unfused, or with a fused softmax.

Two batched products and the kernels between them (V. Korthikanti et al., arXiv:2205.05198, section 4.1). Against
published timings of PyTorch's unfused attention (FlashAttention repository, A100 and H100, 2,048 tokens and more) the
sum is within 10 %.
"""

from typing import NamedTuple

import numpy as np

from costmodel.physics.kernels.roofline import matmul_time, memory_time


class ScoreTraffic(NamedTuple):
    """HBM bytes per score that kernels between the products move, and how many kernels these are."""

    forward_bytes: float
    forward_kernels: float
    backward_bytes: float
    backward_kernels: float


def score_traffic(*, fused_softmax, masked, dropout, element_bytes=2.0):
    """Return what the kernels between the two products move for each score.

    A softmax reads and writes the scores once; backward it reads gradient and output and writes.
    A mask of its own reads and writes them once more each way; a fused softmax takes it (and the
    scale) along, and reads only what it leaves. Dropout adds one byte of mask a score.
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
    batch,
    seq_q,
    seq_kv,
    heads,
    *,
    qk_head_dim,
    v_head_dim,
    backward,
    traffic,
    matmul,
    memory,
    peak_flops_per_s,
    memory_bandwidth_bytes_per_s,
    element_bytes=2.0,
):
    """GPU time of the products and of the kernels between them. [s]

    Forward Q K^T and P V, backward the four products of the chain rule. A causal mask saves nothing, because the
    products compute the whole matrix; their own traffic over it is priced in `matmul_time`.
    """
    sq, skv, groups = (np.asarray(x, dtype=np.float64) for x in (seq_q, seq_kv, batch * np.asarray(heads)))

    def product(m, n, k):
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

    products_s = product(sq, skv, qk_head_dim) + product(sq, v_head_dim, skv)
    if backward:
        # dP = dO V^T is shaped like the scores; dV, dQ and dK reduce over a sequence.
        products_s = product(sq, skv, v_head_dim) + product(skv, v_head_dim, sq)
        products_s = products_s + product(sq, qk_head_dim, skv) + product(skv, qk_head_dim, sq)
    softmax_s = memory_time(
        groups * sq * skv * (traffic.backward_bytes if backward else traffic.forward_bytes),
        constants=memory,
        memory_bandwidth_bytes_per_s=memory_bandwidth_bytes_per_s,
        kernels=traffic.backward_kernels if backward else traffic.forward_kernels,
    )
    return np.asarray(products_s + softmax_s.value)
