"""Time of one kernel on one GPU: matrix multiplication, attention, and memory-bound work.

Every kernel is a roofline with a floor: a fixed start-up time plus the larger of what the tensor
cores and what the memory need, joined smoothly because a kernel near the ridge reaches neither.
What a handful of constants per accelerator and precision add to that is what a GPU really does:
it computes whole tiles in waves over its SMs, fills and drains a pipeline per tile, and lowers
its clock when long kernels draw more power than it may have. The constants are fitted to
published micro-benchmarks by `costmodel.trust.calibration.ship_kernels`, never to a training run.

Every function is pure and broadcasts. Times are GPU times: the host's launch cost is not in them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

SMALL_TILE = 64.0
"""Side of the small output tile. [elements]"""


class MatmulConstants(NamedTuple):
    """What the matrix kernels of one accelerator reach at one precision.

    Attributes
    ----------
    num_sms : float
        SMs (compute units) that tiles are dealt to. [-]
    fixed_s : float
        Time of a kernel with nothing to do. [s]
    peak_fraction : float
        Share of the dense peak inside a full wave of full tiles, at burst clock. [-]
    memory_fraction : float
        Share of the HBM bandwidth that a memory-bound product reaches. [-]
    tile_m, tile_n : float
        Output tile of one SM; rows and columns are rounded up to it. [elements]
    wave_fraction : float
        Share of the idle part of the last wave that is really lost (0: none, 1: all). [-]
    split_k : float
        Depth from which kernels split it to fill the last wave; 0 where they do not care. [elements]
    small_tile_fraction : float
        Share of the large tile's rate reached with 64 x 64 tiles, which fill small products
        better; 0 where the choice of tiles leaves no trace. [-]
    epilogue_fraction : float
        Share of the output's memory time that nothing hides. [-]
    ramp_k : float
        Depth that filling and draining one tile costs. [elements]
    sustained_loss : float
        Share of the peak lost to the power limit in long kernels. [-]
    sustained_flops : float
        Size of a kernel at which half of that is lost. [FLOP]
    cast_bytes_per_element : float
        HBM bytes that quantising one element of the first operand is worth. [B]
    cast_fixed_s : float
        Fixed time of the quantising kernels. [s]
    fixed_per_group_s : float
        Time that each product of a grouped kernel adds, whatever its size. [s]
    """

    num_sms: float
    fixed_s: float
    peak_fraction: float
    memory_fraction: float
    tile_m: float = 128.0
    tile_n: float = 128.0
    wave_fraction: float = 0.0
    split_k: float = 0.0
    small_tile_fraction: float = 0.0
    epilogue_fraction: float = 0.0
    ramp_k: float = 0.0
    sustained_loss: float = 0.0
    sustained_flops: float = 1e12
    cast_bytes_per_element: float = 0.0
    cast_fixed_s: float = 0.0
    fixed_per_group_s: float = 0.0


class AttentionPassConstants(NamedTuple):
    """What one pass (forward or backward) of a fused attention kernel reaches.

    Attributes
    ----------
    num_sms, fixed_s, memory_fraction, wave_fraction : float
        As in `MatmulConstants`.
    head_dims, peak_fractions : tuple of float
        Head dimensions measured and the share of the dense peak at each, for long sequences
        without a mask; between them linear in the logarithm of the dimension. [-]
    causal_fraction : float
        Extra factor on that share for a causal kernel, beyond its diagonal blocks. [-]
    ramp_seq : float
        Average keys per query at which half of the asymptote is reached. [tokens]
    tile_rows : float
        Queries (backward: keys) that one SM works on at a time. [tokens]
    side_bytes_per_element : float
        HBM bytes an element of Q that kernels beside the main one move (the row sums of the
        output's gradient, fp32 sums of the query gradient and their conversion). [B]
    """

    num_sms: float
    fixed_s: float
    memory_fraction: float
    head_dims: tuple[float, ...]
    peak_fractions: tuple[float, ...]
    causal_fraction: float = 1.0
    ramp_seq: float = 0.0
    tile_rows: float = 128.0
    wave_fraction: float = 0.0
    side_bytes_per_element: float = 0.0


class AttentionConstants(NamedTuple):
    """Constants of both passes of one attention kernel."""

    forward: AttentionPassConstants
    backward: AttentionPassConstants


class MemoryConstants(NamedTuple):
    """What memory-bound kernels reach: a share of the HBM bandwidth after a fixed time."""

    bandwidth_fraction: float
    fixed_s: float


def _smooth_maximum(a: Array, b: Array) -> Array:
    """Join two bounds: the larger when they differ, 26 % above either when they are equal."""
    return np.asarray(np.cbrt(a * a * a + b * b * b))


def _waves(tiles: Array, num_sms: float, lost_fraction: Array | float) -> Array:
    """Return waves of `tiles` over the SMs, with the stated share of the last one's idle part."""
    waves = tiles / num_sms
    return np.asarray(waves + lost_fraction * (np.ceil(waves) - waves))


def matmul_time_s(
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    *,
    groups: ArrayLike = 1.0,
    constants: MatmulConstants,
    peak_flops_per_s: float | Array,
    memory_bandwidth_bytes_per_s: float,
    input_bytes: ArrayLike = 2.0,
    output_bytes: ArrayLike = 2.0,
    accumulate: ArrayLike = False,
    sustained: ArrayLike = True,
    cast: ArrayLike = False,
) -> Array:
    r"""Time of `groups` products of an m x k by a k x n matrix in one kernel.

    .. math::

        t = t_0 + \left( t_{math}^3 + t_{mem}^3 \right)^{1/3} + \eta\, t_{out}, \qquad
        t_{math} = \frac{2\,w\,S\,T_m T_n (k + k_0)}{e\,\pi}, \qquad
        t_{mem} = \frac{g\,(b_{in} k (m + n) + b_{out} m n (1 + a))}{e_{mem} B}

    with :math:`w = u + q(\lceil u \rceil - u)` waves of
    :math:`u = g \lceil m/T_m \rceil \lceil n/T_n \rceil / S` tiles over :math:`S` SMs,
    :math:`q` falling as :math:`k_s/k` where deep products are split, :math:`e` the burst share of
    the peak :math:`\pi` times :math:`1 - d F / (F + F_0)` for the power limit
    (:math:`F = 2 g m n k`), and :math:`t_{out}` the part of :math:`t_{mem}` that writes the result.

    Parameters
    ----------
    m, n, k : array_like
        Rows, columns and depth of one product. [elements]
    groups : array_like
        Products of that size in one kernel (experts, or batch x heads). [-]
    constants : MatmulConstants
        Of the accelerator at this precision.
    peak_flops_per_s : float
        Dense peak at this precision. [FLOP/s]
    memory_bandwidth_bytes_per_s : float
        HBM bandwidth of the data sheet. [B/s]
    input_bytes, output_bytes : array_like
        Bytes of one element of either operand, and of the result. [B]
    accumulate : array_like of bool
        The result is read before it is written (weight gradients). [-]
    sustained : array_like of bool
        Price the clock of kernels run back to back for long, as in training; without it that
        of a short benchmark.
    cast : array_like of bool
        Add the separate kernels that quantise the first operand (8- and 4-bit recipes).

    Returns
    -------
    time_s : ndarray
        GPU time of the kernel, without the host's launch cost. [s]

    Notes
    -----
    Fitted between 1e8 and 1e14 FLOP and k >= 160. Below, `fixed_s` rules.

    References
    ----------
    .. [1] S. Williams, A. Waterman and D. Patterson, "Roofline: an insightful visual performance
       model for multicore architectures," Commun. ACM, vol. 52, no. 4, pp. 65-76, 2009,
       doi:10.1145/1498765.1498785.
    .. [2] NVIDIA, "Matrix multiplication background user's guide," DU-09798-001, section 4
       (tile and wave quantisation).
    """
    rows, cols, depth, count = (np.asarray(x, dtype=np.float64) for x in (m, n, k, groups))
    c = constants
    area = rows * cols * count
    lost: Array | float = c.wave_fraction
    if c.split_k:
        lost = c.wave_fraction * np.minimum(1.0, c.split_k / depth)
    tiles = np.ceil(rows / c.tile_m) * np.ceil(cols / c.tile_n) * count
    padded_area = _waves(tiles, c.num_sms, lost) * (c.num_sms * c.tile_m * c.tile_n)
    if c.small_tile_fraction:
        tiles = np.ceil(rows / SMALL_TILE) * np.ceil(cols / SMALL_TILE) * count
        small_area = _waves(tiles, c.num_sms, lost) * (c.num_sms * SMALL_TILE**2 / c.small_tile_fraction)
        padded_area = np.minimum(padded_area, small_area)
    math_s = padded_area * (depth + c.ramp_k) * (2.0 / (c.peak_fraction * peak_flops_per_s))
    if c.sustained_loss:
        flops = 2.0 * area * depth
        loss = c.sustained_loss * np.asarray(sustained, dtype=np.float64)
        math_s = math_s / (1.0 - loss * flops / (flops + c.sustained_flops))
    rate = c.memory_fraction * memory_bandwidth_bytes_per_s
    element_s = np.asarray(output_bytes, dtype=np.float64) / rate
    output_s = (1.0 + np.asarray(accumulate, dtype=np.float64)) * element_s * area
    input_s = (rows + cols) * depth * count * (np.asarray(input_bytes, dtype=np.float64) / rate)
    time_s = c.fixed_s + _smooth_maximum(math_s, input_s + output_s) + c.epilogue_fraction * output_s
    if c.fixed_per_group_s:
        time_s = time_s + c.fixed_per_group_s * count
    if c.cast_bytes_per_element or c.cast_fixed_s:
        elements = rows * depth * count
        cast_s = c.cast_fixed_s + (c.cast_bytes_per_element / rate) * elements
        time_s = time_s + np.asarray(cast, dtype=np.float64) * cast_s
    return np.asarray(time_s)


def attention_time_s(
    batch: ArrayLike,
    seq_q: ArrayLike,
    seq_kv: ArrayLike,
    heads: ArrayLike,
    *,
    kv_heads: ArrayLike,
    qk_head_dim: float,
    v_head_dim: float,
    causal: ArrayLike,
    backward: bool,
    constants: AttentionConstants,
    peak_flops_per_s: float,
    memory_bandwidth_bytes_per_s: float,
    keys_per_query: ArrayLike | None = None,
    element_bytes: float = 2.0,
) -> Array:
    r"""Time of a fused attention kernel that never writes the score matrix.

    .. math::

        t = t_0 + \left( t_{math}^3 + t_{mem}^3 \right)^{1/3} + t_{side}, \qquad
        t_{math} = \frac{F}{\pi\, e(d)} \left( 1 + \frac{s_0}{\bar s} \right)
        \frac{\max(w, s / \bar s)}{u}

    where :math:`\bar s` is the average number of keys a query looks at (half of them under a
    causal mask), :math:`u` the tiles per SM and :math:`w` the waves they take. The last factor is
    what too few tiles cost: an SM with the longest row of a causal matrix works twice the average.
    The forward pass multiplies two matrices per score (:math:`F = 2 b h s \bar s (d_{qk} + d_v)`),
    the backward pass five.

    Parameters
    ----------
    batch, seq_q, seq_kv, heads : array_like
        Sequences, queries and keys of each, and query heads on this GPU. [-]
    kv_heads : array_like
        Key and value heads on this GPU. [-]
    qk_head_dim, v_head_dim : float
        Elements of a query or key, and of a value. [elements]
    causal : array_like of bool
        Queries see only the keys before them.
    backward : bool
        Price the backward pass, else the forward pass.
    constants : AttentionConstants
        Of the accelerator, kernel and precision.
    peak_flops_per_s, memory_bandwidth_bytes_per_s : float
        Of the data sheet, dense. [FLOP/s, B/s]
    keys_per_query : array_like, optional
        Average keys per query where the mask is neither full nor causal (sliding window). [-]
    element_bytes : float
        Bytes of an element of Q, K, V and the output. [B]

    Returns
    -------
    time_s : ndarray
        GPU time of the kernel, without the host's launch cost. [s]

    Notes
    -----
    Fitted for head dimensions 64 to 256 and 512 to 131,072 tokens.

    References
    ----------
    .. [1] T. Dao, "FlashAttention-2: faster attention with better parallelism and work
       partitioning," arXiv:2307.08691, section 4.1 (FLOP counts).
    .. [2] J. Shah et al., "FlashAttention-3: fast and accurate attention with asynchrony and
       low-precision," arXiv:2407.08608.
    """
    b, sq, skv, h = (np.asarray(x, dtype=np.float64) for x in (batch, seq_q, seq_kv, heads))
    is_causal = np.asarray(causal, dtype=np.float64)
    c = constants.backward if backward else constants.forward
    keys = skv * (1.0 - 0.5 * is_causal) if keys_per_query is None else np.asarray(keys_per_query, np.float64)
    d_qk, d_v = float(qk_head_dim), float(v_head_dim)
    scores = b * h * sq * keys
    flops = 2.0 * scores * (3.0 * d_qk + 2.0 * d_v if backward else d_qk + d_v)
    peak_fraction = np.interp(np.log(0.5 * (d_qk + d_v)), np.log(c.head_dims), c.peak_fractions)
    rate = peak_fraction * peak_flops_per_s * (1.0 - (1.0 - c.causal_fraction) * is_causal)
    tiles = b * h * np.ceil((skv if backward else sq) / c.tile_rows)
    # 1e-9 keeps no heads at no time instead of none over none.
    per_sm = np.maximum(tiles / c.num_sms, 1e-9)
    keys = np.maximum(keys, 1.0)
    busiest_sm = np.maximum(_waves(tiles, c.num_sms, c.wave_fraction), np.minimum(skv / keys, 2.0))
    math_s = flops / rate * (1.0 + c.ramp_seq / keys) * (busiest_sm / per_sm)
    bandwidth = c.memory_fraction * memory_bandwidth_bytes_per_s
    queries = b * sq * h
    pairs = b * skv * np.asarray(kv_heads, dtype=np.float64)
    moved_bytes = (2.0 if backward else 1.0) * element_bytes * (d_qk + d_v) * (queries + pairs)
    side_s = c.side_bytes_per_element * d_qk * queries / bandwidth
    return np.asarray(c.fixed_s + _smooth_maximum(math_s, moved_bytes / bandwidth) + side_s)


def memory_time_s(
    size_bytes: ArrayLike,
    *,
    constants: MemoryConstants,
    memory_bandwidth_bytes_per_s: float,
    kernels: ArrayLike = 1.0,
) -> Array:
    r"""Time of memory-bound kernels: :math:`t = n_k t_0 + n / (e_{mem} B)`.

    Parameters
    ----------
    size_bytes : array_like
        Bytes read plus bytes written, by all kernels together. [B]
    constants : MemoryConstants
        Of the accelerator.
    memory_bandwidth_bytes_per_s : float
        HBM bandwidth of the data sheet. [B/s]
    kernels : array_like
        Kernels that move them. [-]

    Returns
    -------
    time_s : ndarray
        GPU time, without the host's launch cost. [s]

    Notes
    -----
    Working sets inside the L2 cache are faster; that is not counted.

    Examples
    --------
    >>> constants = MemoryConstants(bandwidth_fraction=0.8, fixed_s=0.0)
    >>> t = memory_time_s(1e9, constants=constants, memory_bandwidth_bytes_per_s=2e12)
    >>> f"{t * 1e6:.0f} us"
    '625 us'
    """
    moved = np.asarray(size_bytes, dtype=np.float64)
    rate = constants.bandwidth_fraction * memory_bandwidth_bytes_per_s
    return np.asarray(np.asarray(kernels, dtype=np.float64) * constants.fixed_s + moved / rate)
