"""Time of one kernel on one GPU: matrix multiplication, attention, and memory-bound work.

Every kernel is a roofline with a floor: a fixed start-up time plus the larger of what the tensor
cores and what the memory need, joined smoothly because a kernel near the ridge reaches neither.
What a handful of constants per accelerator and precision add to that is what a GPU really does:
it computes whole tiles in waves over its SMs, fills and drains a pipeline per tile, and lowers
its clock when long kernels draw more power than it may have. The constants are fitted to
published micro-benchmarks by `tools/fit/fit_kernels.py`, never to a training run.

Every function is pure and broadcasts, and returns a `Quantity`: its value with the formula and the
numbers that gave it. Parts that the constants of an accelerator switch off are left out of the formula.
Times are GPU times: the host's launch cost is not in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from costmodel.bill.formula import inputs_of
from costmodel.bill.quantity import Quantity, quantity

SMALL_TILE = 64.0  # Side of the small output tile. [elements]
KEY_TILE = 128.0  # Keys that attention loads at a time. [tokens]


class MatmulConstants(NamedTuple):
    """What the matrix kernels of one accelerator reach at one precision."""

    num_sms: float  # SMs (compute units) that tiles are spread over. [-]
    fixed_s: float  # Time of a kernel with nothing to do. [s]
    peak_fraction: float  # Share of the dense peak inside a full wave of full tiles, at burst clock. [-]
    memory_fraction: float  # Share of the HBM bandwidth that a memory-bound product reaches. [-]
    tile_m: float = 128.0
    tile_n: float = 128.0
    """Output tile of one SM; rows and columns are rounded up to it. [elements]"""
    wave_fraction: float = 0.0  # Share of the idle part of the last wave that is lost. [-]
    split_k: float = 0.0  # Depth from which kernels split it to fill the last wave; 0: never
    small_tile_fraction: float = 0.0
    """Share of the large tile's rate reached with 64 x 64 tiles, which fill small products better; 0 where the choice
    of tiles leaves no trace. [-]"""
    epilogue_fraction: float = 0.0  # Share of the output's memory time that nothing hides. [-]
    ramp_k: float = 0.0  # Depth that filling and draining one tile costs. [elements]
    sustained_loss: float = 0.0  # Share of the peak lost to the power limit in long kernels. [-]
    sustained_flops: float = 1e12  # Size at which a benchmark that repeats it loses half of that
    cast_bytes_per_element: float = 0.0  # HBM bytes of quantising an element of the first operand
    cast_fixed_s: float = 0.0  # Fixed time of the quantising kernels. [s]
    fixed_per_group_s: float = 0.0  # Time that each product of a grouped kernel adds, whatever its size. [s]
    shared_rows: float = 0.0
    """Rows of the tile in which one group ends and the next begins, where a grouped kernel distributes tiles over all rows
    and computes such a tile once for each; 0 where every group has tiles of its own. [elements]"""


class AttentionPassConstants(NamedTuple):
    """What one pass (forward or backward) of a fused attention kernel reaches."""

    num_sms: float
    fixed_s: float
    memory_fraction: float  # As in `MatmulConstants`
    head_dims: tuple[float, ...]
    peak_fractions: tuple[float, ...]
    """Head dimensions measured and the share of the dense peak at each, for long sequences without a mask; between
    them linear in the logarithm of the dimension. [-]"""
    causal_fraction: float = 1.0  # Factor on that share for a causal kernel, beyond its diagonal. [-]
    ramp_seq: float = 0.0  # Average keys per query at which half of the asymptote is reached. [tokens]
    tile_rows: float = 128.0  # Queries (backward: keys) that one SM works on at a time. [tokens]
    wave_fraction: float = 0.0
    side_bytes_per_element: float = 0.0
    """HBM bytes an element of Q that kernels beside the main one move (the row sums of the output's gradient, fp32
    sums of the query gradient and their conversion). [B]"""


class AttentionConstants(NamedTuple):
    """Constants of both passes of one attention kernel."""

    forward: AttentionPassConstants
    backward: AttentionPassConstants


class MemoryConstants(NamedTuple):
    """What memory-bound kernels reach: a share of the HBM bandwidth after a fixed time."""

    bandwidth_fraction: float
    fixed_s: float


def matmul_time(
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    *,
    groups: ArrayLike = 1.0,
    constants: MatmulConstants,
    peak_flops_per_s: ArrayLike,
    memory_bandwidth_bytes_per_s: float,
    input_bytes: ArrayLike = 2.0,
    output_bytes: ArrayLike = 2.0,
    accumulate: ArrayLike = False,
    sustained: ArrayLike = True,
    alone: bool = False,
    cast: ArrayLike = False,
) -> Quantity:
    r"""Time of `groups` products of an m x k by a k x n matrix in one kernel. [s]

    .. math::

        t = t_0 + \left( t_{math}^3 + t_{mem}^3 \right)^{1/3} + \eta\, t_{out}, \qquad
        t_{math} = \frac{2\,w\,S\,T_m T_n (k + k_0)}{e\,\pi}, \qquad
        t_{mem} = \frac{g\,(b_{in} k (m + n) + b_{out} m n (1 + a))}{e_{mem} B}

    with :math:`w = u + q(\lceil u \rceil - u)` waves of
    :math:`u = g \lceil m/T_m \rceil \lceil n/T_n \rceil / S` tiles over :math:`S` SMs,
    :math:`q` falling as :math:`k_s/k` where deep products are split, :math:`e` the burst share of
    the peak :math:`\pi` times :math:`1 - d` for the power limit (in a benchmark of one kernel
    :math:`1 - d F / (F + F_0)`, :math:`F = 2 g m n k`), and :math:`t_{out}` the part of :math:`t_{mem}` that writes the result.

    Parameters
    ----------
    m, n, k, groups : array_like
        Rows, columns and depth of one product, and products in one kernel (experts, or batch x heads). [elements, -]
    constants : MatmulConstants
        Of the accelerator at this precision.
    peak_flops_per_s, memory_bandwidth_bytes_per_s : float
        Of the data sheet, dense, at this precision. [FLOP/s, B/s]
    input_bytes, output_bytes : array_like
        Bytes of one element of either operand, and of the result. [B]
    accumulate, cast : array_like of bool
        The result is read before it is written (weight gradients); separate kernels quantise the first operand.
    sustained : array_like of bool
        Price the clock of kernels run back to back for long, as in training; without it that of a short benchmark.
    alone : bool
        Of a benchmark that repeats this product and nothing else: small ones end before the limit bites.

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
    c = constants
    formula = _matmul_formula(
        bool(c.wave_fraction),
        bool(c.split_k),
        bool(c.small_tile_fraction),
        bool(c.sustained_loss),
        sustained is not True,
        alone,
        accumulate is not False,
        bool(c.epilogue_fraction),
        bool(c.fixed_per_group_s),
        cast is not False and bool(c.cast_bytes_per_element or c.cast_fixed_s),
        bool(c.shared_rows),
    )
    given: dict[str, ArrayLike] = {
        "m": m,
        "n": n,
        "k": k,
        "groups": groups,
        "input_bytes": input_bytes,
        "output_bytes": output_bytes,
        "accumulate": accumulate,
        "sustained": sustained,
        "cast": cast,
        "peak_flops_per_s": peak_flops_per_s,
        "hbm_bytes_per_s": memory_bandwidth_bytes_per_s,
    }
    return _used(formula, given, c)


@lru_cache(maxsize=512)
def _matmul_formula(
    waves_lost: bool,
    split: bool,
    small_tiles: bool,
    power_limited: bool,
    any_clock: bool,
    alone: bool,
    accumulates: bool,
    epilogue: bool,
    per_group: bool,
    casts: bool,
    shared: bool,
) -> str:
    """Return the steps of a matrix product that its constants and arguments leave."""
    lost = "wave_fraction * min(1, split_k / k)" if split else "wave_fraction"

    def waves(tiles: str) -> str:
        whole = f"{tiles} / num_sms"
        return f"{whole} + {lost} * (ceil({whole}) - {whole})" if waves_lost else whole

    # Wherever a group begins in its first tile, it touches as many rows as it has and, on average, one tile more.
    rows = "(m + shared_rows) / tile_m" if shared else "ceil(m / tile_m)"
    steps = [f"tiles = {rows} * ceil(n / tile_n) * groups", f"waves = {waves('tiles')}"]
    area = "waves * (num_sms * tile_m * tile_n)"
    if small_tiles:
        side = f"{SMALL_TILE:.0f}"
        steps += [
            f"small_tiles = ceil(m / {side}) * ceil(n / {side}) * groups",
            f"small_waves = {waves('small_tiles')}",
        ]
        area = f"min({area}, small_waves * (num_sms * {side} * {side} / small_tile_fraction))"
    steps += [f"padded_area = {area}", "area = m * n * groups", "flops = 2 * k * area"]
    rate = "peak_fraction * peak_flops_per_s"
    if power_limited:
        # The limit is held on average over milliseconds: in a step, by products of any size.
        loss = "sustained * sustained_loss" if any_clock else "sustained_loss"
        rate += f" * (1 - {loss}{' * flops / (flops + sustained_flops)' if alone else ''})"
    steps += [
        f"math_s = 2 * padded_area * (k + ramp_k) / ({rate})",
        f"written_bytes = {'(1 + accumulate) * ' if accumulates else ''}output_bytes * area",
        "moved_bytes = input_bytes * (m + n) * k * groups + written_bytes",
        "memory_s = moved_bytes / (memory_fraction * hbm_bytes_per_s)",
    ]
    total = "fixed_s + cbrt(math_s ** 3 + memory_s ** 3)"
    if epilogue:
        total += " + epilogue_fraction / (memory_fraction * hbm_bytes_per_s) * written_bytes"
    if per_group:
        total += " + fixed_per_group_s * groups"
    if casts:
        cast = "cast_bytes_per_element / (memory_fraction * hbm_bytes_per_s) * m * k * groups"
        total += f" + cast * (cast_fixed_s + {cast})"
    return "; ".join([*steps, total])


def attention_time(
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
    windowed: ArrayLike = False,
) -> Quantity:
    r"""Time of a fused attention kernel that never writes the score matrix. [s]

    .. math::

        t = t_0 + \left( t_{math}^3 + t_{mem}^3 \right)^{1/3} + t_{side}, \qquad
        t_{math} = \frac{F}{\pi\, e(d)} \left( 1 + \frac{s_0}{\bar s} \right)
        \frac{\max(w, s / \bar s)}{u}

    where :math:`\bar s` is the average number of keys a query looks at (half of them under a
    causal mask), :math:`u` the tiles per SM and :math:`w` the waves they take. The last factor is
    what too few tiles cost: an SM with the longest row of a causal matrix works twice the average.
    The forward pass multiplies two matrices per score (:math:`F = 2 b h s \bar s (d_{qk} + d_v)`),
    the backward pass five. Under a window a tile of rows meets the keys of all its rows, and those whole
    tiles of keys: :math:`\bar s` is longer by a tile of either, up to what causality leaves.

    Parameters
    ----------
    batch, seq_q, seq_kv, heads, kv_heads : array_like
        Sequences, queries and keys of each, query heads and key and value heads on this GPU. [-]
    qk_head_dim, v_head_dim : float
        Elements of a query or key, and of a value; Q, K, V and the output are in 16 bits. [elements]
    causal, windowed : array_like of bool
        Queries see only the keys before them; `keys_per_query` are those of a window, whose edges cut tiles.
    constants : AttentionConstants
        Of the accelerator, kernel and precision.
    peak_flops_per_s, memory_bandwidth_bytes_per_s : float
        Of the data sheet, dense. [FLOP/s, B/s]
    keys_per_query : array_like, optional
        Average keys per query where the mask is neither full nor causal (sliding window). [-]

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
    c = constants.backward if backward else constants.forward
    formula = _attention_formula(
        backward,
        keys_per_query is None,
        causal if isinstance(causal, bool) else None,
        bool(c.wave_fraction),
        bool(c.side_bytes_per_element),
        keys_per_query is not None and windowed is not False,
    )
    given: dict[str, ArrayLike] = {
        "batch": batch,
        "seq_q": seq_q,
        "seq_kv": seq_kv,
        "heads": heads,
        "kv_heads": kv_heads,
        "qk_head_dim": qk_head_dim,
        "v_head_dim": v_head_dim,
        "causal": causal,
        "windowed": windowed,
        "element_bytes": 2.0,
        "peak_fraction": _peak_fraction(c, qk_head_dim, v_head_dim),
        "peak_flops_per_s": peak_flops_per_s,
        "hbm_bytes_per_s": memory_bandwidth_bytes_per_s,
    }
    if keys_per_query is not None:
        given["keys_per_query"] = keys_per_query
    return _used(formula, given, c)


@lru_cache(maxsize=512)
def _peak_fraction(c: AttentionPassConstants, qk_head_dim: float, v_head_dim: float) -> float:
    """Share of the peak at the mean of both head dimensions. [-]"""
    return float(np.interp(np.log(0.5 * (qk_head_dim + v_head_dim)), np.log(c.head_dims), c.peak_fractions))


@lru_cache(maxsize=64)
def _attention_formula(
    backward: bool, whole: bool, causal: bool | None, waves_lost: bool, side: bool, windows: bool
) -> str:
    """Return the steps of fused attention: two products a score forward, five backward.

    `whole` attention counts its keys itself; `causal` is None where it differs along an array.
    """
    products = "(3 * qk_head_dim + 2 * v_head_dim)" if backward else "(qk_head_dim + v_head_dim)"
    rows, moves = ("seq_kv", "2 * ") if backward else ("seq_q", "")
    waves = "per_sm + wave_fraction * (ceil(tiles / num_sms) - tiles / num_sms)" if waves_lost else "per_sm"
    mask = {True: " * causal_fraction", False: "", None: " * (1 - (1 - causal_fraction) * causal)"}[causal]
    steps = ["keys_per_query = seq_kv * (1 - causal / 2)"] if whole else []
    if windows:
        edges = f"min(tile_rows + {KEY_TILE:.0f}, max(seq_kv / 2 - keys_per_query, 0))"
        steps.append(f"met_keys = keys_per_query + windowed * {edges}")
    met = "met_keys" if windows else "keys_per_query"
    steps += [
        f"flops = 2 * {products} * batch * heads * seq_q * {met}",
        f"keys = max({met}, 1)",
        f"tiles = batch * heads * ceil({rows} / tile_rows)",
        # 1e-9 keeps no heads at no time instead of none over none.
        "per_sm = max(tiles / num_sms, 1e-9)",
        f"busiest_sm = max({waves}, min(seq_kv / keys, 2))",
        f"math_s = flops / (peak_fraction{mask} * peak_flops_per_s) * (1 + ramp_seq / keys) * busiest_sm / per_sm",
        f"moved_bytes = {moves}element_bytes * (qk_head_dim + v_head_dim) * batch"
        " * (seq_q * heads + seq_kv * kv_heads)",
        "memory_s = moved_bytes / (memory_fraction * hbm_bytes_per_s)",
    ]
    total = "fixed_s + cbrt(math_s ** 3 + memory_s ** 3)"
    if side:
        rate = "(memory_fraction * hbm_bytes_per_s)"
        total += f" + side_bytes_per_element * qk_head_dim / {rate} * batch * seq_q * heads"
    return "; ".join([*steps, total])


class ScalarRate(NamedTuple):
    """What memory-bound kernels do element by element. [B, -, 1/s]"""

    scalar_bytes: ArrayLike
    scalar_elements: ArrayLike
    scalar_elements_per_s: float


def memory_time(
    moved_bytes: ArrayLike | Quantity,
    *,
    constants: MemoryConstants,
    memory_bandwidth_bytes_per_s: float,
    kernels: ArrayLike = 1.0,
    cast_slowdown: float = 1.0,
    waves: float = 1.0,
    scalar: ScalarRate | None = None,
) -> Quantity:
    r"""Time of memory-bound kernels: :math:`t = n_k t_0 + c\, n / (e_{mem} B)`. [s]

    `moved_bytes` are read and written by all `kernels` together; of kernels that load element by element, the part
    :math:`n_s` of the bytes takes no less than :math:`m / r` for its :math:`m` elements (`scalar`). `cast_slowdown` is how
    much slower kernels that quantise move a byte, `waves` the time of a grid where some SMs are held by others over that of
    the grid on all. Working sets inside the L2 cache are faster; that is not counted.
    """
    given: dict[str, ArrayLike] = {
        "kernels": kernels,
        "fixed_s": constants.fixed_s,
        "memory_fraction": constants.bandwidth_fraction,
        "hbm_bytes_per_s": memory_bandwidth_bytes_per_s,
    }
    given |= {
        name: each for name, each in (("waves", waves), ("cast_slowdown", cast_slowdown)) if each != 1.0
    }
    slower = "".join(f"{name} * " for name in ("waves", "cast_slowdown") if name in given)
    formula = f"kernels * fixed_s + {slower}moved_bytes / (memory_fraction * hbm_bytes_per_s)"
    if scalar is not None:
        given |= scalar._asdict()
        formula = (
            f"rate = memory_fraction * hbm_bytes_per_s; kernels * fixed_s + {slower}((moved_bytes - scalar_bytes) / rate "
            "+ max(scalar_bytes / rate, scalar_elements / scalar_elements_per_s))"
        )
    if isinstance(moved_bytes, Quantity):
        return moved_bytes.then("moved_bytes", formula, **given)
    return quantity(formula, moved_bytes=moved_bytes, **given)


def _used(
    formula: str, given: Mapping[str, ArrayLike], constants: MatmulConstants | AttentionPassConstants
) -> Quantity:
    """Compute a formula from what of the given numbers and the constants it names."""
    terms = {name: given[name] if name in given else getattr(constants, name) for name in inputs_of(formula)}
    return quantity(formula, **terms)
