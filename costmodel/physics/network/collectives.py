"""Textbook alpha-beta times of every collective x algorithm, and which algorithm is valid where.

These are the formulas of the literature on one flat tier, by name; `costmodel.physics.network.nccl` prices
what NCCL does on a real fabric. Every cost function has the arguments documented in `CostFunction`
(S = bytes of the full logical tensor, n ranks, alpha, 1/beta, gamma). A group of one is free.

References
----------
.. [1] R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations
   in MPICH," Int. J. High Perform. Comput. Appl. 19(1), 2005, doi:10.1177/1094342005051521, section 4.
.. [2] J. Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing
   systems," IEEE Trans. Parallel Distrib. Syst. 8(11), 1997, doi:10.1109/71.642949.
.. [3] P. Sanders, J. Speck and J. L. Träff, "Two-tree algorithms for full bandwidth broadcast,
   reduction and scan," Parallel Computing 35(12), 2009, doi:10.1016/j.parco.2009.09.001.
.. [4] P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations,"
   J. Parallel Distrib. Comput. 69(2), 2009, doi:10.1016/j.jpdc.2008.09.002.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.errors import LayoutError, choices_hint
from costmodel.physics.network import collectives_rooted as rooted
from costmodel.physics.network.collectives_rooted import (
    Array,
    CollectiveTime,
    CostFunction,
    Terms,
    cost_function,
    pipelined,
)

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "CollectiveTime",
    "CostFunction",
    "crossover_between_bytes",
    "crossover_size_bytes",
    "textbook_time",
]


@cost_function
def naive_all_reduce(terms: Terms) -> tuple[Array, Array]:
    r"""Linear reduce, then linear broadcast: :math:`t = (n-1)(2\alpha + 2S\beta + S\gamma)`."""
    s, n, alpha, beta, gamma, _ = terms
    return 2 * (n - 1) * alpha, (n - 1) * s * (2 * beta + gamma)


@cost_function
def one_shot_all_reduce(terms: Terms) -> tuple[Array, Array]:
    r"""All send their whole vector to all at once: :math:`t = \alpha + (n-1)S(\beta + \gamma)`."""
    s, n, alpha, beta, gamma, _ = terms
    return alpha, (n - 1) * s * (beta + gamma)


@cost_function
def two_shot_all_reduce(terms: Terms) -> tuple[Array, Array]:
    r"""Direct reduce-scatter, direct all-gather: :math:`t = 2\alpha + \frac{n-1}{n}S(2\beta + \gamma)`."""
    s, n, alpha, beta, gamma, _ = terms
    return 2 * alpha, (n - 1) / n * s * (2 * beta + gamma)


@cost_function
def tree_all_reduce(terms: Terms) -> tuple[Array, Array]:
    r"""Binomial reduce, then binomial broadcast, not pipelined.

    .. math:: t = \lceil\log_2 n\rceil(2\alpha + 2S\beta + S\gamma)
    """
    s, _n, alpha, beta, gamma, log = terms
    return 2 * log * alpha, log * s * (2 * beta + gamma)


@cost_function
def recursive_doubling_all_reduce(terms: Terms) -> tuple[Array, Array]:
    r"""Exchange whole vectors at distance 1, 2, 4 …, for short vectors [1]_.

    .. math:: t = \lfloor\log_2 n\rfloor(\alpha + S\beta + S\gamma) + [n \ne 2^k](2\alpha + 2S\beta + S\gamma)

    Notes
    -----
    Ranks beyond the largest power of two fold their vector into a partner and get the result back.
    """
    s, n, alpha, beta, gamma, log = terms
    core = np.floor(np.log2(n))
    folded = log - core
    transfer = core * s * (beta + gamma) + folded * s * (2 * beta + gamma)
    return (core + 2 * folded) * alpha, transfer


@cost_function
def ring_all_reduce(terms: Terms) -> tuple[Array, Array]:
    r"""Reduce-scatter and all-gather round a ring; bandwidth-optimal [4]_.

    .. math:: t = 2(n-1)\alpha + \frac{n-1}{n}S(2\beta + \gamma)

    Examples
    --------
    1 GB over 8 ranks that each send 450 GB/s: 1.75 GB on the wire.

    >>> t = ring_all_reduce(1e9, 8, latency_s=1e-6, bandwidth_bytes_per_s=450e9)
    >>> f"{float(t.latency_s) * 1e6:.0f} us + {float(t.transfer_s) * 1e3:.3f} ms"
    '14 us + 3.889 ms'
    """
    s, n, alpha, beta, gamma, _ = terms
    return 2 * (n - 1) * alpha, (n - 1) / n * s * (2 * beta + gamma)


@cost_function
def halving_doubling_all_reduce(terms: Terms) -> tuple[Array, Array]:
    r"""Recursive halving, then recursive doubling (Rabenseifner) [1]_.

    .. math:: t = 2\log_2 p\,\alpha + \frac{p-1}{p}S(2\beta + \gamma) + [n \ne p](2\alpha + 2S\beta + S\gamma)

    with p the largest power of two up to n.

    Notes
    -----
    Ranks beyond p fold their vector into a partner first. Needs full bisection bandwidth.
    """
    s, n, alpha, beta, gamma, log = terms
    core = np.floor(np.log2(n))
    folded = log - core
    transfer = s * (2 * beta + gamma) * (1 - 0.5**core + folded)
    return 2 * (core + folded) * alpha, transfer


@cost_function
def double_tree_all_reduce(terms: Terms) -> tuple[Array, Array]:
    r"""Reduce up and broadcast down two binary trees with half of the vector each, pipelined [3]_.

    .. math:: t \approx \left(\sqrt{2\lceil\log_2 n\rceil\alpha} + \sqrt{S(2\beta + \gamma)}\right)^2

    Notes
    -----
    Leading terms: an inner rank of one tree is a leaf of the other, so each sends and receives 2S.
    """
    s, _n, alpha, beta, gamma, log = terms
    return pipelined(2 * log + 1, alpha, s * (2 * beta + gamma))


@cost_function
def in_network_all_reduce(terms: Terms) -> tuple[Array, Array]:
    r"""Let the switch add (NVLS): :math:`t = 2\alpha + S(1 + 1/n)\beta`.

    Notes
    -----
    Each rank reads its shard reduced by the switch and multicasts it: S + S/n out and in. The
    additions happen in the switch, so gamma is not charged.
    """
    s, n, alpha, beta, _, _ = terms
    return 2 * alpha, s * (1 + 1 / n) * beta


@cost_function
def ring_all_gather(terms: Terms) -> tuple[Array, Array]:
    r"""Shards go round the ring: :math:`t = (n-1)(\alpha + S\beta/n)` [1]_. Also pairwise all-to-all."""
    s, n, alpha, beta, _, _ = terms
    return (n - 1) * alpha, (n - 1) / n * s * beta


@cost_function
def log_all_gather(terms: Terms) -> tuple[Array, Array]:
    r"""Held shards double each step: recursive doubling (powers of two) or Bruck (any n) [1]_ [2]_.

    .. math:: t = \lceil\log_2 n\rceil\alpha + \frac{n-1}{n}S\beta

    Notes
    -----
    Bruck's final local rotation (one copy of S in memory) is not charged.
    """
    s, n, alpha, beta, _, log = terms
    return log * alpha, (n - 1) / n * s * beta


@cost_function
def direct_all_gather(terms: Terms) -> tuple[Array, Array]:
    r"""All to all at once, start-ups overlapped: :math:`t = \alpha + \frac{n-1}{n}S\beta`."""
    s, n, alpha, beta, _, _ = terms
    return alpha, (n - 1) / n * s * beta


@cost_function
def ring_reduce_scatter(terms: Terms) -> tuple[Array, Array]:
    r"""Ring or pairwise exchange: :math:`t = (n-1)\alpha + \frac{n-1}{n}S(\beta + \gamma)` [1]_."""
    s, n, alpha, beta, gamma, _ = terms
    return (n - 1) * alpha, (n - 1) / n * s * (beta + gamma)


@cost_function
def recursive_halving_reduce_scatter(terms: Terms) -> tuple[Array, Array]:
    r"""Halves at distance n/2, n/4 …: :math:`t = \log_2 n\,\alpha + \frac{n-1}{n}S(\beta + \gamma)` [1]_.

    Notes
    -----
    Powers of two, commutative reductions.
    """
    s, n, alpha, beta, gamma, log = terms
    return log * alpha, (n - 1) / n * s * (beta + gamma)


@cost_function
def direct_reduce_scatter(terms: Terms) -> tuple[Array, Array]:
    r"""All to all at once, start-ups overlapped: :math:`t = \alpha + \frac{n-1}{n}S(\beta + \gamma)`."""
    s, n, alpha, beta, gamma, _ = terms
    return alpha, (n - 1) / n * s * (beta + gamma)


@cost_function
def bruck_all_to_all(terms: Terms) -> tuple[Array, Array]:
    r"""Blocks hop once per set bit of their distance, for short messages [2]_.

    .. math:: t = \lceil\log_2 n\rceil\alpha + \frac{S\beta}{n}\sum_{i<n}\mathrm{popcount}(i)

    Notes
    -----
    The sum is :math:`\frac{n}{2}\log_2 n` for powers of two. Two local copies of S are not charged.
    """
    s, n, alpha, beta, _, log = terms
    span = 2.0 ** np.arange(1, 33)
    rest = np.mod(n[..., None], span)
    hops = (np.floor(n[..., None] / span) * span / 2 + np.maximum(rest - span / 2, 0.0)).sum(axis=-1)
    return log * alpha, hops / n * s * beta


def _any(n: Array) -> NDArray[np.bool_]:
    """Hold for every group."""
    return np.asarray(n >= 1)


def _power_of_two(n: Array) -> NDArray[np.bool_]:
    """Hold where the group is a power of two."""
    return np.asarray(np.log2(n) % 1.0 == 0)


class Algorithm(NamedTuple):
    """A row of the validity table: the formula, for which groups it holds, what it needs."""

    time: CostFunction
    applies: Callable[[Array], NDArray[np.bool_]] = _any
    needs: str = ""


_MESH = "all pairs connected"
_SWITCH = "in-network reduction"

ALGORITHMS: dict[str, dict[str, Algorithm]] = {
    "send_recv": {"direct": Algorithm(rooted.direct_send_recv)},
    "broadcast": {
        "linear": Algorithm(rooted.linear_broadcast),
        "binomial": Algorithm(rooted.binomial_broadcast),
        "scatter-all-gather": Algorithm(rooted.scatter_all_gather_broadcast),
        "chain": Algorithm(rooted.chain_broadcast),
        "two-tree": Algorithm(rooted.two_tree_broadcast),
    },
    "reduce": {
        "linear": Algorithm(rooted.linear_reduce),
        "binomial": Algorithm(rooted.binomial_reduce),
        "reduce-scatter-gather": Algorithm(rooted.reduce_scatter_gather_reduce, _power_of_two),
    },
    "scatter": {
        "linear": Algorithm(rooted.linear_scatter),
        "binomial": Algorithm(rooted.binomial_scatter),
    },
    "gather": {
        "linear": Algorithm(rooted.linear_scatter),
        "binomial": Algorithm(rooted.binomial_scatter),
    },
    "all_reduce": {
        "naive": Algorithm(naive_all_reduce),
        "tree": Algorithm(tree_all_reduce),
        "ring": Algorithm(ring_all_reduce),
        "recursive-doubling": Algorithm(recursive_doubling_all_reduce),
        "halving-doubling": Algorithm(halving_doubling_all_reduce),
        "double-tree": Algorithm(double_tree_all_reduce),
        "one-shot": Algorithm(one_shot_all_reduce, needs=_MESH),
        "two-shot": Algorithm(two_shot_all_reduce, needs=_MESH),
        "in-network": Algorithm(in_network_all_reduce, needs=_SWITCH),
    },
    "all_gather": {
        "ring": Algorithm(ring_all_gather),
        "recursive-doubling": Algorithm(log_all_gather, _power_of_two),
        "bruck": Algorithm(log_all_gather),
        "direct": Algorithm(direct_all_gather, needs=_MESH),
    },
    "reduce_scatter": {
        "ring": Algorithm(ring_reduce_scatter),
        "pairwise": Algorithm(ring_reduce_scatter),
        "recursive-halving": Algorithm(recursive_halving_reduce_scatter, _power_of_two),
        "direct": Algorithm(direct_reduce_scatter, needs=_MESH),
    },
    "all_to_all": {
        "pairwise": Algorithm(ring_all_gather),
        "bruck": Algorithm(bruck_all_to_all),
        "direct": Algorithm(direct_all_gather, needs=_MESH),
    },
}


def textbook_time(
    primitive: str,
    algorithm: str,
    size_bytes: ArrayLike,
    num_ranks: ArrayLike,
    *,
    latency_s: ArrayLike,
    bandwidth_bytes_per_s: ArrayLike,
    gamma_s_per_byte: ArrayLike = 0.0,
) -> CollectiveTime:
    """Time of a collective by a named algorithm, or by ``auto``: the fastest that applies.

    ``auto`` leaves out what needs special hardware (`Algorithm.needs`).

    Raises
    ------
    LayoutError
        If the primitive or algorithm is unknown, or does not apply to a group size.
    """
    rows = _rows(primitive)
    n = np.asarray(num_ranks, dtype=np.float64)

    def price(row: Algorithm) -> CollectiveTime:
        return row.time(
            size_bytes,
            n,
            latency_s=latency_s,
            bandwidth_bytes_per_s=bandwidth_bytes_per_s,
            gamma_s_per_byte=gamma_s_per_byte,
        )

    if algorithm != "auto":
        row = _row(primitive, algorithm)
        if not row.applies(n).all():
            raise LayoutError(f"{algorithm} {primitive} needs a power of two of ranks, got {n.tolist()}")
        return price(row)
    best: CollectiveTime | None = None
    for row in rows.values():
        if row.needs:
            continue
        new, valid = price(row), row.applies(n)
        if best is None:
            best = new
            continue
        faster = valid & (new.time_s < best.time_s)
        best = CollectiveTime(
            np.where(faster, new.latency_s, best.latency_s), np.where(faster, new.transfer_s, best.transfer_s)
        )
    assert best is not None
    return best


def _rows(primitive: str) -> dict[str, Algorithm]:
    """Return the algorithms of a primitive."""
    if primitive not in ALGORITHMS:
        raise LayoutError(f"collective: unknown {primitive!r}; {choices_hint(primitive, ALGORITHMS)}")
    return ALGORITHMS[primitive]


def _row(primitive: str, algorithm: str) -> Algorithm:
    """Return one row of the validity table."""
    rows = _rows(primitive)
    if algorithm not in rows:
        hint = choices_hint(algorithm, [*rows, "auto"])
        raise LayoutError(f"algorithm of {primitive}: unknown {algorithm!r}; {hint}")
    return rows[algorithm]


def crossover_size_bytes(latency_s: ArrayLike, bandwidth_bytes_per_s: ArrayLike) -> Array:
    r"""Message whose start-up and transfer take as long, in bytes: :math:`n^* = \alpha/\beta`.

    >>> float(crossover_size_bytes(1e-6, 450e9))
    450000.0
    """
    return np.asarray(np.asarray(latency_s, dtype=np.float64) * np.asarray(bandwidth_bytes_per_s))


def crossover_between_bytes(
    primitive: str,
    short: str,
    long: str,
    num_ranks: ArrayLike,
    *,
    latency_s: ArrayLike,
    bandwidth_bytes_per_s: ArrayLike,
) -> Array:
    r"""Size above which algorithm `long` beats `short`, both linear in the size (bytes).

    .. math:: S^* = \frac{L_{long} - L_{short}}{b_{short} - b_{long}}

    Infinite where `long` never wins. Not for the pipelined algorithms, which are not linear.
    """
    link = {"latency_s": latency_s, "bandwidth_bytes_per_s": bandwidth_bytes_per_s}
    few = _row(primitive, short).time(1.0, num_ranks, **link)
    many = _row(primitive, long).time(1.0, num_ranks, **link)
    saved_s_per_byte = few.transfer_s - many.transfer_s
    with np.errstate(divide="ignore", invalid="ignore"):
        size = (many.latency_s - few.latency_s) / saved_s_per_byte
    return np.where(saved_s_per_byte > 0, np.maximum(size, 0.0), np.inf)
