"""Textbook times of collectives over two levels: g ranks in a node, N nodes.

S is the full logical tensor as everywhere; both bandwidths are per rank and direction, so a node of
g ranks has g times `inter_bandwidth_bytes_per_s` to the outside. Phases run one after the other.

References
----------
.. [1] R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations
   in MPICH," Int. J. High Perform. Comput. Appl. 19(1), 2005, doi:10.1177/1094342005051521.
"""

import numpy as np
from numpy.typing import ArrayLike

from costmodel.physics.network.collectives import (
    direct_all_gather,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)
from costmodel.physics.network.collectives_rooted import CollectiveTime, binomial_broadcast


def _in_turn(*phases: CollectiveTime) -> CollectiveTime:
    """Add up phases that follow one another."""
    return CollectiveTime(
        np.asarray(sum(p.latency_s for p in phases)), np.asarray(sum(p.transfer_s for p in phases))
    )


def hierarchical_all_reduce(
    size_bytes: ArrayLike,
    ranks_per_node: ArrayLike,
    num_nodes: ArrayLike,
    *,
    intra_latency_s: ArrayLike,
    intra_bandwidth_bytes_per_s: ArrayLike,
    inter_latency_s: ArrayLike,
    inter_bandwidth_bytes_per_s: ArrayLike,
    gamma_s_per_byte: ArrayLike = 0.0,
) -> CollectiveTime:
    r"""Reduce-scatter in the node, all-reduce of a g-th by every rank's NIC, all-gather in the node.

    .. math:: t = 2(g-1)\alpha_i + 2\frac{g-1}{g}S\beta_i + 2(N-1)\alpha_e + 2\frac{N-1}{N}\frac{S}{g}\beta_e

    Parameters
    ----------
    size_bytes : array_like
        Buffer held by each rank, :math:`S`. [B]
    ranks_per_node, num_nodes : array_like
        :math:`g` and :math:`N`. [-]
    intra_latency_s, inter_latency_s : array_like
        Start-up of a message inside and between nodes. [s]
    intra_bandwidth_bytes_per_s, inter_bandwidth_bytes_per_s : array_like
        What one rank sends inside and between nodes. [B/s]
    gamma_s_per_byte : array_like
        Local reduction of one byte. [s/B]
    """
    intra = {"latency_s": intra_latency_s, "bandwidth_bytes_per_s": intra_bandwidth_bytes_per_s}
    inter = {"latency_s": inter_latency_s, "bandwidth_bytes_per_s": inter_bandwidth_bytes_per_s}
    shard = np.asarray(size_bytes, dtype=np.float64) / np.asarray(ranks_per_node, dtype=np.float64)
    return _in_turn(
        ring_reduce_scatter(size_bytes, ranks_per_node, **intra, gamma_s_per_byte=gamma_s_per_byte),
        ring_all_reduce(shard, num_nodes, **inter, gamma_s_per_byte=gamma_s_per_byte),
        ring_all_gather(size_bytes, ranks_per_node, **intra),
    )


def leader_all_reduce(
    size_bytes: ArrayLike,
    ranks_per_node: ArrayLike,
    num_nodes: ArrayLike,
    *,
    intra_latency_s: ArrayLike,
    intra_bandwidth_bytes_per_s: ArrayLike,
    inter_latency_s: ArrayLike,
    inter_bandwidth_bytes_per_s: ArrayLike,
    gamma_s_per_byte: ArrayLike = 0.0,
) -> CollectiveTime:
    r"""All-reduce in the node, all-reduce of the whole vector among one rank per node, broadcast.

    Notes
    -----
    Leaves all but one NIC of a node idle: real libraries do `hierarchical_all_reduce`.
    """
    intra = {"latency_s": intra_latency_s, "bandwidth_bytes_per_s": intra_bandwidth_bytes_per_s}
    inter = {"latency_s": inter_latency_s, "bandwidth_bytes_per_s": inter_bandwidth_bytes_per_s}
    return _in_turn(
        ring_all_reduce(size_bytes, ranks_per_node, **intra, gamma_s_per_byte=gamma_s_per_byte),
        ring_all_reduce(size_bytes, num_nodes, **inter, gamma_s_per_byte=gamma_s_per_byte),
        binomial_broadcast(size_bytes, ranks_per_node, **intra),
    )


def hierarchical_all_gather(
    size_bytes: ArrayLike,
    ranks_per_node: ArrayLike,
    num_nodes: ArrayLike,
    *,
    intra_latency_s: ArrayLike,
    intra_bandwidth_bytes_per_s: ArrayLike,
    inter_latency_s: ArrayLike,
    inter_bandwidth_bytes_per_s: ArrayLike,
    gamma_s_per_byte: ArrayLike = 0.0,
) -> CollectiveTime:
    r"""Gather a g-th over the NICs, then all of it in the node; a reduce-scatter backwards.

    .. math:: t = (N-1)\alpha_e + \frac{N-1}{N}\frac{S}{g}(\beta_e + \gamma)
              + (g-1)\alpha_i + \frac{g-1}{g}S(\beta_i + \gamma)
    """
    shard = np.asarray(size_bytes, dtype=np.float64) / np.asarray(ranks_per_node, dtype=np.float64)
    return _in_turn(
        ring_reduce_scatter(
            shard,
            num_nodes,
            latency_s=inter_latency_s,
            bandwidth_bytes_per_s=inter_bandwidth_bytes_per_s,
            gamma_s_per_byte=gamma_s_per_byte,
        ),
        ring_reduce_scatter(
            size_bytes,
            ranks_per_node,
            latency_s=intra_latency_s,
            bandwidth_bytes_per_s=intra_bandwidth_bytes_per_s,
            gamma_s_per_byte=gamma_s_per_byte,
        ),
    )


def two_step_all_to_all(
    size_bytes: ArrayLike,
    ranks_per_node: ArrayLike,
    num_nodes: ArrayLike,
    *,
    intra_latency_s: ArrayLike,
    intra_bandwidth_bytes_per_s: ArrayLike,
    inter_latency_s: ArrayLike,
    inter_bandwidth_bytes_per_s: ArrayLike,
) -> CollectiveTime:
    r"""To the local rank on the target's rail, then one message per node (PXN-like).

    .. math:: t = \alpha_i + \frac{g-1}{g}S\beta_i + (N-1)\alpha_e + \frac{N-1}{N}S\beta_e

    Notes
    -----
    A rank sends N - 1 messages over its NIC instead of (N-1)g, each g times as long; the bytes on the
    NIC stay the same, and all of them stay on one rail.
    """
    return _in_turn(
        direct_all_gather(
            size_bytes,
            ranks_per_node,
            latency_s=intra_latency_s,
            bandwidth_bytes_per_s=intra_bandwidth_bytes_per_s,
        ),
        ring_all_gather(
            size_bytes,
            num_nodes,
            latency_s=inter_latency_s,
            bandwidth_bytes_per_s=inter_bandwidth_bytes_per_s,
        ),
    )
