r"""Dispatch and combine of mixture-of-experts tokens by kernels that send each token once per node.

A token goes to the domains that hold its top-k experts. Sent once per domain and passed on inside
(DeepEP), the copies that leave a domain are the distinct domains hit, less the sender's own:

.. math:: c = \min(L, N)\left(1 - \left(1 - \tfrac{1}{\min(L, N)}\right)^k\right)\left(1 - \tfrac{1}{N}\right)

of N domains of which routing may use L; each tier carries its copies and the slowest sets the time.
Combine is the same with the bytes of its own dtype.

References
----------
.. [1] DeepSeek-AI, DeepEP, README (measured bandwidths) and tests/test_internode.py (what they count:
   copies to the sender's own node too, so the printed 58 GB/s is 43 GB/s on a 50 GB/s port).
.. [2] DeepSeek-AI, "DeepSeek-V3 technical report," arXiv:2412.19437, section 3.2.2 (node-limited routing).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.physics.network.fabric import NCCL_ALGORITHMS, GroupCost, TierLike, constants_of
from costmodel.physics.network.mesh import Group

Array = NDArray[np.float64]

DISPATCH_LATENCY_S = 25e-6
"""Fixed time of a dispatch or combine: DeepEP's low-latency table at EP 8 to 256, straight line."""


def expected_copies(num_domains: ArrayLike, top_k: ArrayLike, *, domain_limit: ArrayLike = np.inf) -> Array:
    """Count the copies of a token that leave its own domain, one per other domain it is routed to.

    >>> round(float(expected_copies(8, 8, domain_limit=4)), 2)
    3.15
    """
    domains = np.asarray(num_domains, dtype=np.float64)
    usable = np.minimum(np.asarray(domain_limit, dtype=np.float64), domains)
    hit = usable * (1.0 - (1.0 - 1.0 / usable) ** np.asarray(top_k, dtype=np.float64))
    return np.asarray(hit * (1.0 - 1.0 / domains))


def moe_exchange_time(
    num_tokens: ArrayLike,
    bytes_per_token: ArrayLike,
    top_k: ArrayLike,
    group: Group,
    tiers: Sequence[TierLike],
    *,
    node_limit: ArrayLike = 0.0,
    deduplicate: bool = True,
    imbalance: ArrayLike = 1.0,
    concurrent: ArrayLike = 1.0,
) -> GroupCost:
    """Time to send each rank's tokens to their experts, or to bring the results back.

    Parameters
    ----------
    num_tokens : array_like
        Tokens of one rank. [-]
    bytes_per_token : array_like
        Hidden size times bytes per element, with scales. [B]
    top_k : array_like
        Routed experts per token. [-]
    group : Group
        The expert-parallel group.
    tiers : sequence of Tier
        Levels of the fabric, innermost first.
    node_limit : array_like
        Innermost domains that routing may use for one token (DeepSeek-V3: 4), 0 = all. [-]
    deduplicate : bool
        One copy per domain, passed on inside; else one per expert (low-latency kernels).
    imbalance : array_like
        Tokens of the busiest rank over the mean. [-]
    concurrent : array_like
        Groups that share each port. [-]

    Returns
    -------
    cost : GroupCost
        ``wire_bytes`` on the slowest tier; exactly zero in a group of one.

    Notes
    -----
    Routing is uniform over experts. The kernels take SMs from the computation beside them, which is
    for the caller to count.
    """
    n = np.asarray(group.ranks, dtype=np.float64)
    tokens = np.asarray(num_tokens, dtype=np.float64) * np.asarray(imbalance, dtype=np.float64)
    payload = tokens * np.asarray(bytes_per_token, dtype=np.float64)
    nodes = np.asarray(node_limit, dtype=np.float64)
    nodes = np.where(nodes > 0.0, nodes, np.inf)
    below = np.ones_like(n)
    transfer, wire = np.zeros_like(payload * n), np.zeros_like(payload * n)
    index = np.zeros_like(n) - 1.0
    for t, (tier, members) in enumerate(zip(tiers, group.members, strict=True)):
        inside = np.asarray(members, dtype=np.float64)
        crossed = inside > below
        domains = n / below
        # GPUs that a token may go to are those of the nodes that it may use.
        limit = nodes * (inside if t == 0 else 1.0)
        once = expected_copies(domains, top_k, domain_limit=limit)
        copies = once if deduplicate else np.asarray(top_k) * (1.0 - 1.0 / domains)
        sent = np.where(crossed, payload * copies, 0.0)
        rate = tier.achieved_bandwidth_bytes_per_s * constants_of(tier).dispatch_rate_factor
        seconds = sent * concurrent / rate
        slower = seconds > transfer
        transfer, wire = np.where(slower, seconds, transfer), np.where(slower, sent, wire)
        index = np.where(crossed, float(t), index)
        below = np.maximum(below, inside)
    alone = n <= 1.0
    direct = float(NCCL_ALGORITHMS.index("direct"))
    return GroupCost(
        np.where(alone, 0.0, DISPATCH_LATENCY_S), transfer, wire, index, np.where(alone, 0.0, direct)
    )
