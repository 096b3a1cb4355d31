r"""What a collective of NCCL (or RCCL) takes on a fabric of nested tiers, in a form cheap to search.

A group with :math:`m_t` members inside one domain of tier :math:`t` (:math:`m_{-1} = 1`, all n at the
end) crosses tier :math:`t` in :math:`h_t = n/m_{t-1} - n/m_t` of the n - 1 hops of a ring, and
:math:`m_{t-1}` members, each with its own port, share every crossing. A TP-strided data-parallel group
(:math:`m_0 = 1`) has one NIC and a whole node has eight, by the same formula. Each candidate is

.. math:: t = T_0 + \sum_t h_t a_t + 2\sqrt{P\,W b} + W b + \frac{S}{n B_c}

with W the wire bytes of a GPU, b the seconds per byte of the tightest tier, P the fill time of the
chunk pipeline (the square root is what a pipeline with the best chunk size pays [1]_) and B_c the
copy of a rank's own shard; the fastest of these candidates is taken, as NCCL's tuner does [2]_:

- low-latency protocol (LL), ring or, for all-reduce, tree: fewest microseconds, rate capped;
- ring with the bandwidth protocol (Simple): `simple_step_s` more per hop, full rate;
- all-reduce by double tree across nodes, or by the switch (NVLS; NVLS-tree across nodes).

Across two nodes a tree's NICs carry S/2 up and S/2 down, half of what more nodes need.

References
----------
.. [1] Optimal chunking of a p-stage pipeline; `costmodel.physics.network.collectives_rooted.pipelined`.
.. [2] NVIDIA/nccl, src/graph/tuning.cc (2.30): latency + bytes/rate, least over (algorithm, protocol).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.errors import LayoutError, choices_hint
from costmodel.physics.network.expert_dispatch import moe_exchange_time
from costmodel.physics.network.fabric import NCCL_ALGORITHMS, Fabric, GroupCost, TierLike, constants_of
from costmodel.physics.network.mesh import Group

__all__ = [
    "NCCL_ALGORITHMS",
    "PRIMITIVES",
    "Fabric",
    "GroupCost",
    "collective_candidates",
    "collective_time",
    "moe_exchange_time",
]

Array = NDArray[np.float64]

_NONE, _LL, _RING, _TREE, _NVLS, _NVLS_TREE, _DIRECT = map(float, range(7))


class _Path(NamedTuple):
    """What a group meets on its way through the tiers; arrays over groups, not over sizes."""

    ranks: Array
    inner: Array  # members in a domain of the innermost tier
    tier: Array
    base_s: Array
    hops_s: Array  # sum of h_t a_t
    slow_hops_s: Array  # what the bandwidth protocol adds to them
    fill_s: Array
    beta: Array  # seconds per wire byte of a ring, tightest tier
    outer_beta: Array  # the same of the tiers outside the innermost one
    copy_beta: Array
    ll_beta: Array  # _NEVER where no switch of protocol is seen
    chain_s: Array  # one way through a tree: the chain in the node
    tree_s: Array  # and the levels outside
    tree_fill_s: Array
    tree_factor: Array
    nvls_fill_s: Array  # of a tree of in-switch reductions


_NEVER = 1e30  # seconds per byte of what is not to be chosen; finite, so that no bytes cost nothing
_NVLS_MIN_BYTES = 2.0**21  # from there on NCCL takes the switch (H200, B200 sweeps)
_NVLS_TREE_STEP_S = 20.9e-6  # NCCL's own constant for a network level of NVLS-tree [2]


def _walk(group: Group, tiers: Sequence[TierLike], concurrent: Array) -> _Path:
    """Follow a ring and a tree of `group` through the tiers; the outermost tier sets the fixed costs."""
    n = np.asarray(group.ranks, dtype=np.float64)
    zero = np.zeros_like(n)
    inner = np.asarray(group.members[0], dtype=np.float64) + zero
    path = _Path(
        ranks=n,
        inner=inner,
        tier=zero - 1.0,
        base_s=zero,
        hops_s=zero,
        slow_hops_s=zero,
        fill_s=zero,
        beta=zero,
        outer_beta=zero,
        copy_beta=zero,
        ll_beta=zero + _NEVER,
        chain_s=zero,
        tree_s=zero,
        tree_fill_s=zero,
        tree_factor=zero + 1.0,
        nvls_fill_s=zero,
    )
    below = np.ones_like(n)
    for t, (tier, members) in enumerate(zip(tiers, group.members, strict=True)):
        inside = np.asarray(members, dtype=np.float64)
        crossed = inside > below
        if not crossed.any():
            continue
        fabric = constants_of(tier)
        rate = tier.achieved_bandwidth_bytes_per_s * fabric.rate_factor / concurrent
        crossings = n / below - n / inside
        # Where the ring goes on to an outer tier, one subdomain in each domain leaves over that one.
        share = np.where(inside < n, 1.0 - below / inside, 1.0)
        beta = np.where(crossed, share / (below * rate), 0.0)
        ll_rate = fabric.ll_bandwidth_bytes_per_s
        copy_rate = fabric.copy_bandwidth_bytes_per_s
        tree_step_s = fabric.tree_step_s or tier.latency_s

        def here(value: ArrayLike, elsewhere: Array, crossed: NDArray[np.bool_] = crossed) -> Array:
            return np.where(crossed, value, elsewhere)

        path = path._replace(
            tier=here(float(t), path.tier),
            base_s=here(tier.base_latency_s, path.base_s),
            hops_s=path.hops_s + crossings * tier.latency_s,
            slow_hops_s=here((n - 1.0) * fabric.simple_step_s, path.slow_hops_s),
            fill_s=here(fabric.pipeline_s, path.fill_s) + crossings * fabric.pipeline_step_s,
            beta=np.maximum(path.beta, beta),
            outer_beta=np.maximum(path.outer_beta, beta) if t else path.outer_beta,
            copy_beta=here(1.0 / copy_rate, path.copy_beta) if copy_rate else path.copy_beta,
            ll_beta=here(concurrent / ll_rate if ll_rate else _NEVER, path.ll_beta),
            chain_s=path.chain_s if t else (inner - 1.0) * tier.latency_s,
            tree_s=path.tree_s + tree_step_s * np.log2(inside / below) if t else path.tree_s,
            tree_fill_s=here(fabric.tree_pipeline_s, path.tree_fill_s),
            tree_factor=here(fabric.tree_rate_factor, path.tree_factor),
            nvls_fill_s=here(fabric.nvls_tree_pipeline_s, path.nvls_fill_s),
        )
        below = inside
    return path


_KEPT_PATHS = 64
_paths: dict[tuple[int, ...], tuple[tuple[object, ...], _Path]] = {}


def _path_of(group: Group, tiers: Sequence[TierLike], concurrent: Array) -> _Path:
    """Return the path of a group, walked once for all the collectives it does.

    The key is which arrays these are; holding on to them keeps it theirs.
    """
    held = (group.ranks, *group.members, *tiers)
    if concurrent.ndim:
        return _walk(group, tiers, concurrent)
    key = (*map(id, held), hash(float(concurrent)))
    kept = _paths.get(key)
    if kept is None:
        if len(_paths) >= _KEPT_PATHS:
            _paths.clear()
        kept = _paths[key] = (held, _walk(group, tiers, concurrent))
    return kept[1]


class _Candidate(NamedTuple):
    """One way to do a collective: which, the part without bytes, the part with."""

    code: ArrayLike
    latency_s: Array
    transfer_s: Array


def _pipelined(fill_s: Array, transfer_s: Array) -> Array:
    """Transfer through a pipeline with the best chunk size."""
    return np.asarray(transfer_s + 2.0 * np.sqrt(fill_s * transfer_s))


def _ring(size: Array, wire: Array, own: float, path: _Path, passes: float) -> list[_Candidate]:
    """Protocols of a ring that goes round `passes` times; small all-reduces may take a tree."""
    transfer = _pipelined(path.fill_s, wire * path.beta) + size * (own * path.copy_beta / path.ranks)
    latency = path.base_s + passes * (path.hops_s + path.slow_hops_s)
    found = [_Candidate(_RING, latency, transfer)]
    if path.slow_hops_s.any():
        hops = passes * path.hops_s
        if passes == 2.0:
            hops = np.minimum(hops, 2.0 * (path.chain_s + path.tree_s))
        found.append(_Candidate(_LL, path.base_s + hops, wire * np.maximum(path.ll_beta, path.beta)))
    return found


def _tree(size: Array, path: _Path, tiers: Sequence[TierLike], concurrent: Array) -> list[_Candidate]:
    """All-reduce by double tree across nodes, or by the innermost switch (and a tree of those)."""
    first, fabric = tiers[0], constants_of(tiers[0])
    outside = path.inner < path.ranks
    nodes = path.ranks / path.inner
    # Of two nodes each tree's port moves half of the vector up and half down; of more, all both ways.
    nic_beta = np.where(nodes > 2.0, 2.0, 1.0) * path.outer_beta / path.tree_factor
    found = []
    if outside.any():
        chain_rate = first.achieved_bandwidth_bytes_per_s * fabric.rate_factor
        chain_beta = np.where(path.inner > 1.0, 2.0 * concurrent / chain_rate, 0.0)
        beta = np.maximum(chain_beta, nic_beta)
        latency = np.where(outside, path.base_s + 2.0 * (path.chain_s + path.tree_s), np.inf)
        found.append(_Candidate(_TREE, latency, _pipelined(path.tree_fill_s, size * beta)))
    switch_rate = first.reduction_bandwidth_bytes_per_s * fabric.nvls_rate_factor
    usable = path.inner >= fabric.nvls_min_ranks
    if switch_rate > 0.0 and usable.any():
        across = np.where(outside, fabric.nvls_tree_rate_factor, 1.0)
        beta = np.maximum(concurrent * (1.0 + 1.0 / path.inner) / (switch_rate * across), nic_beta)
        levels = np.log2(nodes)
        latency = fabric.nvls_latency_s + np.where(
            outside, path.base_s + 2.0 * levels * _NVLS_TREE_STEP_S, 0.0
        )
        latency = np.where(usable, latency, np.inf)
        fill = fabric.nvls_pipeline_s * path.inner + path.nvls_fill_s
        code = np.where(outside, _NVLS_TREE, _NVLS)
        found.append(_Candidate(code, latency, _pipelined(fill, size * beta)))
    return found


def _all_to_all(
    size: Array, group: Group, path: _Path, tiers: Sequence[TierLike], concurrent: Array
) -> _Candidate:
    """Send to every peer directly, all at once: each tier carries what leaves the domain below it."""
    latency, beta, fill = path.base_s, np.zeros_like(path.ranks), np.zeros_like(path.ranks)
    below = np.ones_like(path.ranks)
    for tier, members in zip(tiers, group.members, strict=True):
        crossed = np.asarray(members, dtype=np.float64) > below
        if not crossed.any():
            continue
        fabric = constants_of(tier)
        away = (path.ranks - below) / path.ranks
        rate = tier.achieved_bandwidth_bytes_per_s * fabric.rate_factor
        beta = np.where(crossed, np.maximum(beta, away * concurrent / rate), beta)
        fixed = fabric.all_to_all_latency_s or tier.base_latency_s + tier.latency_s
        message = fabric.all_to_all_message_s * (path.ranks - below)
        latency = np.where(crossed, fixed + message, latency)
        fill = np.where(crossed, fabric.all_to_all_pipeline_s, fill)
        below = np.maximum(below, members)
    copy = size * (path.copy_beta / path.ranks)
    return _Candidate(_DIRECT, latency, _pipelined(fill, size * beta) + copy)


def _send(size: Array, path: _Path, tiers: Sequence[TierLike], concurrent: Array) -> _Candidate:
    """One message across the outermost tier that the group spans, by one GPU's port."""
    latency, beta, fill = np.zeros_like(path.ranks), np.zeros_like(path.ranks), np.zeros_like(path.ranks)
    for t, tier in enumerate(tiers):
        here = path.tier == t
        if not here.any():
            continue
        fabric = constants_of(tier)
        rate = tier.achieved_bandwidth_bytes_per_s * fabric.send_rate_factor
        latency = np.where(here, fabric.send_latency_s or tier.base_latency_s + tier.latency_s, latency)
        beta = np.where(here, concurrent / rate, beta)
        fill = np.where(here, fabric.send_pipeline_s, fill)
    return _Candidate(_DIRECT, latency, _pipelined(fill, size * beta))


PRIMITIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv")
"""What `collective_time` can price."""

_SHARED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def collective_time(
    primitive: str,
    size_bytes: ArrayLike,
    group: Group,
    tiers: Sequence[TierLike],
    *,
    algorithm: str = "auto",
    concurrent: ArrayLike = 1.0,
) -> GroupCost:
    r"""Time of one collective of `group` over a fabric, by the fastest algorithm; see the module.

    Parameters
    ----------
    primitive : str
        One of `PRIMITIVES`.
    size_bytes : array_like
        The full logical tensor, :math:`S`: reduced buffer, gathered output, scattered input, all
        that one rank sends in an all-to-all, the message of a send. [B]
    group : Group
        Ranks and members per tier; broadcasts against `size_bytes`.
    tiers : sequence of Tier
        Levels of the fabric, innermost first, as many as the group has members.
    algorithm : str
        ``auto``, or ``ring``, ``ll``, ``tree``, ``nvls`` (also across nodes) to force one.
    concurrent : array_like
        Groups that share every port and link of this one; divides all bandwidths. [-]

    Returns
    -------
    cost : GroupCost
        Exactly zero in a group of one.

    Notes
    -----
    A send is priced across the outermost tier that the group spans. Sizes below a few bytes, chunk
    alignment and the settings of a user (NCCL_ALGO, channels, SHARP) are not seen.
    """
    candidates, path, wire = _candidates(primitive, size_bytes, group, tiers, concurrent)
    if algorithm != "auto":
        candidates = _only(algorithm, primitive, candidates)
    elif primitive == "all_reduce":
        candidates = _without_ring(np.asarray(size_bytes, dtype=np.float64), path, tiers[0], candidates)
    best = candidates[0]
    for new in candidates[1:]:
        faster = new.latency_s + new.transfer_s < best.latency_s + best.transfer_s
        best = _Candidate(*(np.where(faster, a, b) for a, b in zip(new, best, strict=True)))
    return _cost(best, path, wire)


def collective_candidates(
    primitive: str,
    size_bytes: ArrayLike,
    group: Group,
    tiers: Sequence[TierLike],
    *,
    concurrent: ArrayLike = 1.0,
    finite: bool = True,
) -> dict[str, GroupCost]:
    """Every way in which `collective_time` could do a collective of one group, by name.

    Takes what `collective_time` takes; `size_bytes` may be an array, the group is one. Ways that
    such a group does not have are left out, unless not `finite`: then they take for ever.
    """
    candidates, path, wire = _candidates(primitive, size_bytes, group, tiers, concurrent)
    costs = {NCCL_ALGORITHMS[int(np.min(one.code))]: _cost(one, path, wire) for one in candidates}
    return {name: cost for name, cost in costs.items() if not finite or np.isfinite(cost.latency_s).all()}


def _candidates(
    primitive: str, size_bytes: ArrayLike, group: Group, tiers: Sequence[TierLike], concurrent: ArrayLike
) -> tuple[list[_Candidate], _Path, Array]:
    """List the ways to do a collective, the path of its ring, and the bytes that a GPU sends."""
    if primitive not in PRIMITIVES:
        raise LayoutError(f"collective: unknown {primitive!r}; {choices_hint(primitive, PRIMITIVES)}")
    size = np.asarray(size_bytes, dtype=np.float64)
    shared = np.asarray(concurrent, dtype=np.float64)
    path = _path_of(group, tiers, shared)
    n = path.ranks
    passes = 2.0 if primitive == "all_reduce" else 1.0
    wire = size * (passes * (n - 1.0) / n) if primitive in _SHARED else size * (n > 1.0)
    if primitive == "all_to_all":
        candidates = [_all_to_all(size, group, path, tiers, shared)]
    elif primitive == "send_recv":
        candidates = [_send(size, path, tiers, shared)]
    else:
        candidates = _ring(size, wire, 1.0 if primitive in _SHARED else 0.0, path, passes)
        if primitive == "all_reduce":
            candidates += _tree(size, path, tiers, shared)
    return candidates, path, wire


def _cost(one: _Candidate, path: _Path, wire: Array) -> GroupCost:
    """Return a candidate as the cost of the group, nothing for a group of one."""
    alone = path.ranks <= 1.0
    return GroupCost(
        np.where(alone, 0.0, one.latency_s),
        np.where(alone, 0.0, one.transfer_s),
        np.asarray(wire),
        path.tier,
        np.where(alone, _NONE, one.code),
    )


def _without_ring(
    size: Array, path: _Path, first: TierLike, candidates: list[_Candidate]
) -> list[_Candidate]:
    """Keep large all-reduces of a domain whose switch adds off the ring, as NCCL does, faster or not."""
    switched = path.inner >= constants_of(first).nvls_min_ranks
    if first.reduction_bandwidth_bytes_per_s <= 0.0 or not switched.any():
        return candidates
    banned = (size >= _NVLS_MIN_BYTES) & switched & (path.inner >= path.ranks)
    ring = candidates[0]
    return [ring._replace(latency_s=np.where(banned, np.inf, ring.latency_s)), *candidates[1:]]


def _only(algorithm: str, primitive: str, candidates: list[_Candidate]) -> list[_Candidate]:
    """Keep the named candidates."""
    names = {NCCL_ALGORITHMS[int(np.min(c.code))]: c for c in candidates}
    if algorithm not in names:
        hint = choices_hint(algorithm, ["auto", *names])
        raise LayoutError(f"algorithm of {primitive}: {algorithm!r} does not apply here; {hint}")
    return [names[algorithm]]
