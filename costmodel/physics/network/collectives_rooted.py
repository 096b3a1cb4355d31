"""Textbook alpha-beta times of point-to-point and rooted collectives, and the terms all share.

All cost functions have the arguments of `CostFunction`: broadcastable arrays in, a `CollectiveTime`
out, for one flat tier without contention, links full duplex and one message at a time per port
(Hockney). Sizes are bytes of the full logical tensor: what the root holds. A group of one is free.

References
----------
.. [1] R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations
   in MPICH," Int. J. High Perform. Comput. Appl. 19(1), 2005, doi:10.1177/1094342005051521, section 4.
.. [2] P. Sanders, J. Speck and J. L. Träff, "Two-tree algorithms for full bandwidth broadcast,
   reduction and scan," Parallel Computing 35(12), 2009, doi:10.1016/j.parco.2009.09.001.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


class CollectiveTime(NamedTuple):
    """Time of one collective in its start-up and its byte-proportional part, in seconds."""

    latency_s: Array
    transfer_s: Array

    @property
    def time_s(self) -> Array:
        """Both parts together, in seconds."""
        return np.asarray(self.latency_s + self.transfer_s)


class CostFunction(Protocol):
    """What every textbook algorithm is: one formula for scalars and arrays of any shape."""

    def __call__(
        self,
        size_bytes: ArrayLike,
        num_ranks: ArrayLike,
        *,
        latency_s: ArrayLike,
        bandwidth_bytes_per_s: ArrayLike,
        gamma_s_per_byte: ArrayLike = 0.0,
    ) -> CollectiveTime:
        r"""Price the collective.

        Parameters
        ----------
        size_bytes : array_like
            The full logical tensor, :math:`S`: reduced buffer, gathered output, scattered input,
            all that one rank sends in an all-to-all, the message of a send. [B]
        num_ranks : array_like
            Group size, :math:`n \ge 1`. [-]
        latency_s : array_like
            Start-up time of one message, :math:`\alpha`. [s]
        bandwidth_bytes_per_s : array_like
            What one rank sends in one direction, :math:`1/\beta`. [B/s]
        gamma_s_per_byte : array_like
            Local reduction of one byte, :math:`\gamma`; counted in ``transfer_s``. [s/B]
        """


class Terms(NamedTuple):
    """The symbols of the formulas, as float64: S, n, alpha, beta, gamma and ceil(log2 n)."""

    size: Array
    n: Array
    alpha: Array
    beta: Array
    gamma: Array
    log: Array


def cost_function(formula: Callable[[Terms], tuple[Array, Array]]) -> CostFunction:
    """Make a `CostFunction` of a formula that returns its latency and its transfer part."""

    def price(
        size_bytes: ArrayLike,
        num_ranks: ArrayLike,
        *,
        latency_s: ArrayLike,
        bandwidth_bytes_per_s: ArrayLike,
        gamma_s_per_byte: ArrayLike = 0.0,
    ) -> CollectiveTime:
        n = np.asarray(num_ranks, dtype=np.float64)
        terms = Terms(
            np.asarray(size_bytes, dtype=np.float64),
            n,
            np.asarray(latency_s, dtype=np.float64),
            1.0 / np.asarray(bandwidth_bytes_per_s, dtype=np.float64),
            np.asarray(gamma_s_per_byte, dtype=np.float64),
            np.ceil(np.log2(n)),
        )
        return CollectiveTime(*(np.where(n <= 1.0, 0.0, part) for part in formula(terms)))

    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        setattr(price, name, getattr(formula, name))
    return price


def pipelined(stages: Array, alpha: Array, bytes_beta: Array) -> tuple[Array, Array]:
    r"""Latency and transfer part of a pipeline of `stages` hops with the best chunk size.

    With :math:`k` chunks :math:`t = (p - 1 + k)(\alpha + S\beta/k)`, least at
    :math:`k^2 = (p - 1) S\beta/\alpha`; never less than one chunk. The cross term
    :math:`2\sqrt{(p-1)\alpha S\beta}` is half filling the pipe and half extra start-ups.
    """
    fill = stages - 1.0
    cross = np.sqrt(np.maximum(fill, 0.0) * alpha * bytes_beta)
    chunked = fill * bytes_beta > alpha
    latency = np.where(chunked, fill * alpha + cross, stages * alpha)
    transfer = np.where(chunked, bytes_beta + cross, stages * bytes_beta)
    return latency, transfer


@cost_function
def direct_send_recv(terms: Terms) -> tuple[Array, Array]:
    r"""One message: :math:`t = \alpha + S\beta` (Hockney 1994)."""
    s, _n, alpha, beta, _, _ = terms
    return alpha, s * beta


@cost_function
def linear_broadcast(terms: Terms) -> tuple[Array, Array]:
    r"""Root sends to all in turn: :math:`t = (n-1)(\alpha + S\beta)`."""
    s, n, alpha, beta, _, _ = terms
    return (n - 1) * alpha, (n - 1) * s * beta


@cost_function
def binomial_broadcast(terms: Terms) -> tuple[Array, Array]:
    r"""Informed ranks double each step: :math:`t = \lceil\log_2 n\rceil(\alpha + S\beta)` [1]_."""
    s, _n, alpha, beta, _, log = terms
    return log * alpha, log * s * beta


@cost_function
def scatter_all_gather_broadcast(terms: Terms) -> tuple[Array, Array]:
    r"""Binomial scatter, then ring all-gather (van de Geijn), for long buffers [1]_.

    .. math:: t = (\lceil\log_2 n\rceil + n - 1)\alpha + 2\frac{n-1}{n}S\beta
    """
    s, n, alpha, beta, _, log = terms
    return (log + n - 1) * alpha, 2 * (n - 1) / n * s * beta


@cost_function
def chain_broadcast(terms: Terms) -> tuple[Array, Array]:
    r"""Chunks flow down a chain of n ranks, at the best (real) number of chunks.

    .. math:: t = \left(\sqrt{(n-2)\alpha} + \sqrt{S\beta}\right)^2
    """
    s, n, alpha, beta, _, _ = terms
    return pipelined(n - 1, alpha, s * beta)


@cost_function
def two_tree_broadcast(terms: Terms) -> tuple[Array, Array]:
    r"""Two binary trees with half of the buffer each, pipelined [2]_.

    .. math:: t \approx \left(\sqrt{2\lceil\log_2 n\rceil\alpha} + \sqrt{S\beta}\right)^2

    Notes
    -----
    The leading terms of [2]_; the exact schedule depends on how the trees are coloured.
    """
    s, _n, alpha, beta, _, log = terms
    return pipelined(2 * log + 1, alpha, s * beta)


@cost_function
def linear_reduce(terms: Terms) -> tuple[Array, Array]:
    r"""Root receives from all in turn: :math:`t = (n-1)(\alpha + S\beta + S\gamma)`."""
    s, n, alpha, beta, gamma, _ = terms
    return (n - 1) * alpha, (n - 1) * s * (beta + gamma)


@cost_function
def binomial_reduce(terms: Terms) -> tuple[Array, Array]:
    r"""Broadcast backwards, adding: :math:`t = \lceil\log_2 n\rceil(\alpha + S\beta + S\gamma)` [1]_."""
    s, _n, alpha, beta, gamma, log = terms
    return log * alpha, log * s * (beta + gamma)


@cost_function
def reduce_scatter_gather_reduce(terms: Terms) -> tuple[Array, Array]:
    r"""Recursive-halving reduce-scatter, then binomial gather (Rabenseifner) [1]_.

    .. math:: t = 2\log_2 n\,\alpha + \frac{n-1}{n}S(2\beta + \gamma)

    Notes
    -----
    Powers of two.
    """
    s, n, alpha, beta, gamma, log = terms
    return 2 * log * alpha, (n - 1) / n * s * (2 * beta + gamma)


@cost_function
def linear_scatter(terms: Terms) -> tuple[Array, Array]:
    r"""Root deals one shard at a time: :math:`t = (n-1)(\alpha + S\beta/n)`; a gather backwards."""
    s, n, alpha, beta, _, _ = terms
    return (n - 1) * alpha, (n - 1) / n * s * beta


@cost_function
def binomial_scatter(terms: Terms) -> tuple[Array, Array]:
    r"""Root hands whole subtrees on; also a gather, backwards [1]_.

    .. math:: t = \lceil\log_2 n\rceil\alpha + \frac{n-1}{n}S\beta
    """
    s, n, alpha, beta, _, log = terms
    return log * alpha, (n - 1) / n * s * beta
