r"""What a collective of NCCL (or RCCL) takes on a fabric of nested tiers, in a form cheap to search.

Each way of doing a collective is a `Way`: a formula over the steps of a path (`paths`), of the form

.. math:: t = T_0 + \sum_t h_t a_t + 2\sqrt{P\,W b} + W b + \frac{S}{n B_c}

with W the wire bytes of a GPU, b the seconds per byte of the tightest tier, P the fill time of the
chunk pipeline (the square root is what a pipeline with the best chunk size pays [1]_) and B_c the
copy of a rank's own shard; the fastest of the ways that apply is taken, as NCCL's tuner does [2]_:

- low-latency protocol (LL), ring or, for all-reduce, tree: fewest microseconds, rate capped;
- ring with the bandwidth protocol (Simple): `simple_step_s` more per hop, full rate;
- all-reduce by double tree across nodes, or by the switch (NVLS; NVLS-tree across nodes);
- all-gather and reduce-scatter of one GPU a node by parallel aggregated trees (PAT, from NCCL 2.23 on);
- all-reduce by the network's switches (SHARP) where a tier's profile says that they add up, behind NVLS
  or a chain in each node;
- on a torus, along the sides of the group's box of chips, in turn or at once (`torus`).

Across two nodes a tree's NICs carry S/2 up and S/2 down, half of what more nodes need.

References
----------
.. [1] Optimal chunking of a p-stage pipeline; `costmodel.physics.network.collectives`.
.. [2] NVIDIA/nccl, src/graph/tuning.cc (2.30): latency + bytes/rate, least over (algorithm, protocol).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.errors import LayoutError, choices_hint
from costmodel.bill.formula import compiled, evaluate, run
from costmodel.bill.lines import anywhere
from costmodel.bill.quantity import Quantity
from costmodel.physics.network.expert_dispatch import moe_exchange_time
from costmodel.physics.network.fabric import NCCL_ALGORITHMS, Fabric, GroupCost, TierLike
from costmodel.physics.network.mesh import Group
from costmodel.physics.network.paths import (
    LINK,
    PAIRS,
    RING,
    SLICE_LINK,
    SLICE_PAIRS,
    SLICE_RING,
    Path,
    Route,
    Steps,
    go_on,
    path_of,
)
from costmodel.physics.network.topologies import TORUS

__all__ = [
    "NCCL_ALGORITHMS",
    "PRIMITIVES",
    "PROTOCOLS",
    "WAYS",
    "Fabric",
    "GroupCost",
    "Way",
    "collective_candidates",
    "collective_time",
    "moe_exchange_time",
]

Array = NDArray[np.float64]


_TUNER = "NVIDIA/nccl src/graph/tuning.cc: latency + bytes / rate of (algorithm, protocol)"


class Way(NamedTuple):
    """One way of doing a collective.

    Attributes
    ----------
    algorithm : str
        One of `NCCL_ALGORITHMS`.
    primitives : tuple of str
        What it does.
    route : Route
        The traffic that its formula starts from.
    formula : str
        Steps ``latency_s`` and ``transfer_s``, and their sum, over the steps and terms of the route,
        ``size_bytes`` and ``wire_bytes``.
    applies : str
        True for groups that can do it so; over the same names, but not the size.
    kept_off : str
        True where the library does not take it, faster or not.
    protocol : str
        NCCL's name of how messages are handed over.
    source : str
        Where the form comes from.
    """

    algorithm: str
    primitives: tuple[str, ...]
    route: Route
    formula: str
    applies: str = "1"
    kept_off: str = "0"
    protocol: str = "Simple"
    source: str = _TUNER

    @property
    def code(self) -> float:
        """Index into `NCCL_ALGORITHMS`."""
        return float(NCCL_ALGORITHMS.index(self.algorithm))


_SENDS = "NVIDIA/nccl: point-to-point messages of one group, started together"
_COPIED = "size_bytes / ranks * copy_s_per_byte"
# Chains inside nodes beside what their ports carry between them.
_CHAINS = (
    "chain_s_per_byte = where(node_ranks > 1, 2, 0) / (node_bytes_per_s * node_efficiency); "
    "wire_s = size_bytes * max(chain_s_per_byte, port_s_per_byte)"
)
_ADD = "latency_s + transfer_s"
_HAS_LL = "(simple_hop_s > 0) * (ll_bytes_per_s > 0)"
# From there on NCCL takes the switch (H200, B200 sweeps).
_SWITCH_ONLY = "(size_bytes >= 2097152) * (node_ranks >= nvls_min_ranks) * (node_ranks >= ranks) * (switch_bytes_per_s > 0)"
# NCCL's own constant for a network level of NVLS-tree [2].
_NVLS_LEVEL = "20.9e-6"
# NCCL's own constants of PAT: base, a level of the network (14 us over 3.5), what each rank adds, share of the
# ring's rate; and of SHARP: the network's part behind NVLS and behind a chain, a hop of the chain [2].
_PAT = {"base": "8e-6", "level": "4e-6", "rank": "2.8e-6", "rate": "0.75"}
_SHARP_LATENCY, _CHAIN_LATENCY, _CHAIN_HOP = "18e-6", "30e-6", "2.8e-6"
_BY_NETWORK = "(sharp_bytes_per_s > 0) * (ranks > node_ranks)"
_SCATTERED = ("all_gather", "reduce_scatter")
_ROOTED = ("broadcast", "reduce")

# An all-reduce is a reduce-scatter and a gather; a broadcast a scatter and a gather, a reduce that backwards.
_TWICE = ("all_reduce", *_ROOTED)
_TORUS = "costmodel.physics.network.torus: rings and lines along the sides of a box of chips"


def _pipelined(fill_s: str) -> str:
    """Return the time of chunks of the best size, whose pipeline takes `fill_s` to fill."""
    return f"transfer_s = wire_s + 2 * sqrt({fill_s} * wire_s)"


def _on_torus(sides: str, primitives: tuple[str, ...]) -> Way:
    """Return a gather inside every slice and between slices, there and back where `primitives` do both."""
    word = {"at-once": "once", "in-turn": "turn"}[sides]
    passes = "2 * " if primitives is _TWICE else ""
    return Way(
        algorithm=f"sides-{sides}",
        primitives=primitives,
        route=SLICE_RING,
        formula="latency_s = slice_start_s + outer_start_s "
        f"+ {passes}({word}_hops * slice_hop_s + outer_hops_s); "
        f"slice_s = {passes}size_bytes * {word}_s_per_byte; "
        f"outer_s = {passes}(slices - 1) / slices * size_bytes * outer_s_per_byte; "
        f"transfer_s = slice_s + outer_s; {_ADD}",
        source=_TORUS,
    )


WAYS: tuple[Way, ...] = (
    Way(
        algorithm="ring",
        primitives=("all_reduce",),
        route=RING,
        formula="latency_s = base_latency_s + 2 * (hops_s + (ranks - 1) * simple_hop_s); "
        f"wire_s = wire_bytes * ring_s_per_byte; {_pipelined('fill_s')} + {_COPIED}; {_ADD}",
        kept_off=_SWITCH_ONLY,
    ),
    Way(
        algorithm="ring",
        primitives=_SCATTERED,
        route=RING,
        formula="latency_s = base_latency_s + hops_s + (ranks - 1) * simple_hop_s; "
        f"wire_s = wire_bytes * ring_s_per_byte; {_pipelined('fill_s')} + {_COPIED}; {_ADD}",
    ),
    Way(
        algorithm="ring",
        primitives=_ROOTED,
        route=RING,
        formula="latency_s = base_latency_s + hops_s + (ranks - 1) * simple_hop_s; "
        f"wire_s = wire_bytes * ring_s_per_byte; {_pipelined('fill_s')}; {_ADD}",
    ),
    Way(
        algorithm="ll",
        protocol="LL",
        primitives=("all_reduce",),
        route=RING,
        formula="latency_s = base_latency_s + 2 * min(hops_s, chain_s + tree_s); "
        f"transfer_s = wire_bytes * max(1 / max(ll_bytes_per_s, 1), ring_s_per_byte); {_ADD}",
        applies=_HAS_LL,
    ),
    Way(
        algorithm="ll",
        protocol="LL",
        primitives=(*_SCATTERED, *_ROOTED),
        route=RING,
        formula="latency_s = base_latency_s + hops_s; "
        f"transfer_s = wire_bytes * max(1 / max(ll_bytes_per_s, 1), ring_s_per_byte); {_ADD}",
        applies=_HAS_LL,
    ),
    Way(
        algorithm="tree",
        primitives=("all_reduce",),
        route=RING,
        # Of two nodes each tree's port moves half of the vector up and half down; of more, all both ways.
        formula="latency_s = base_latency_s + 2 * (chain_s + tree_s); "
        "port_s_per_byte = where(ranks / node_ranks > 2, 2, 1) * outer_s_per_byte / tree_efficiency; "
        f"{_CHAINS}; {_pipelined('tree_fill_s')}; {_ADD}",
        applies="ranks > node_ranks",
    ),
    Way(
        algorithm="nvls",
        primitives=("all_reduce",),
        route=RING,
        formula="latency_s = nvls_latency_s; "
        "wire_s = size_bytes * (1 + 1 / node_ranks) / (switch_bytes_per_s * nvls_efficiency); "
        f"{_pipelined('(nvls_fill_step_s * node_ranks + nvls_tree_fill_s)')}; {_ADD}",
        applies="(switch_bytes_per_s > 0) * (node_ranks >= nvls_min_ranks) * (node_ranks >= ranks)",
    ),
    Way(
        algorithm="nvls-tree",
        primitives=("all_reduce",),
        route=RING,
        formula="nodes = ranks / node_ranks; "
        f"latency_s = nvls_latency_s + base_latency_s + 2 * log2(nodes) * {_NVLS_LEVEL}; "
        "port_s_per_byte = where(nodes > 2, 2, 1) * outer_s_per_byte / tree_efficiency; "
        "switch_s_per_byte = (1 + 1 / node_ranks) / (switch_bytes_per_s * nvls_efficiency * nvls_tree_efficiency); "
        "wire_s = size_bytes * max(switch_s_per_byte, port_s_per_byte); "
        f"{_pipelined('(nvls_fill_step_s * node_ranks + nvls_tree_fill_s)')}; {_ADD}",
        applies="(switch_bytes_per_s > 0) * (node_ranks >= nvls_min_ranks) * (ranks > node_ranks)",
    ),
    Way(
        algorithm="pat",
        primitives=_SCATTERED,
        route=RING,
        formula=f"latency_s = {_PAT['base']} + log2(ranks) * {_PAT['level']} + ranks * {_PAT['rank']}; "
        f"transfer_s = size_bytes * ring_s_per_byte / {_PAT['rate']}; {_ADD}",
        applies="(node_ranks <= 1) * (ranks > 1)",
        source=f"{_TUNER}; PAT from 2.23 on, one GPU a node",
    ),
    # The network's switches add up: a port sends its part of the vector once and receives the sum once.
    Way(
        algorithm="nvls-sharp",
        primitives=("all_reduce",),
        route=RING,
        formula=f"latency_s = nvls_latency_s + {_SHARP_LATENCY}; "
        "port_s_per_byte = max(outer_s_per_byte, 1 / (node_ranks * sharp_bytes_per_s)); "
        "switch_s_per_byte = (1 + 1 / node_ranks) / (switch_bytes_per_s * nvls_efficiency); "
        "wire_s = size_bytes * max(switch_s_per_byte, port_s_per_byte); "
        f"{_pipelined('(nvls_fill_step_s * node_ranks + nvls_tree_fill_s)')}; {_ADD}",
        applies=f"{_BY_NETWORK} * (switch_bytes_per_s > 0) * (node_ranks >= nvls_min_ranks)",
        source=f"{_TUNER}; NVLS over nodes with CollNet (SHARP)",
    ),
    Way(
        algorithm="collnet-chain",
        primitives=("all_reduce",),
        route=RING,
        formula=f"latency_s = 2 * (node_ranks - 1) * {_CHAIN_HOP} + {_CHAIN_LATENCY}; "
        "port_s_per_byte = max(outer_s_per_byte, 1 / (node_ranks * sharp_bytes_per_s)); "
        f"{_CHAINS}; {_pipelined('tree_fill_s')}; {_ADD}",
        applies=_BY_NETWORK,
        source=f"{_TUNER}; CollNetChain (SHARP)",
    ),
    Way(
        algorithm="direct",
        primitives=("all_to_all",),
        route=PAIRS,
        formula="latency_s = start_s + far_peers * message_s; wire_s = size_bytes * pair_s_per_byte; "
        f"{_pipelined('pipeline_s')} + {_COPIED}; {_ADD}",
        source=_SENDS,
    ),
    Way(
        algorithm="direct",
        primitives=("send_recv",),
        route=LINK,
        formula="latency_s = start_s; wire_s = size_bytes / (link_bytes_per_s * link_efficiency); "
        f"{_pipelined('pipeline_s')}; {_ADD}",
        source=_SENDS,
    ),
    *(
        _on_torus(sides, primitives)
        for sides in ("at-once", "in-turn")
        for primitives in (_TWICE, _SCATTERED)
    ),
    Way(
        algorithm="direct",
        primitives=("all_to_all",),
        route=SLICE_PAIRS,
        formula="latency_s = slice_start_s + spread_hops * slice_hop_s + outer_start_s + far_peers * message_s; "
        "transfer_s = size_bytes * max(node_ranks / ranks * spread_s_per_byte, pair_s_per_byte); "
        f"{_ADD}",
        source=_TORUS,
    ),
    Way(
        algorithm="direct",
        primitives=("send_recv",),
        route=SLICE_LINK,
        formula="latency_s = start_s; wire_s = size_bytes * crowd / (link_bytes_per_s * link_efficiency); "
        f"{_pipelined('pipeline_s')}; {_ADD}",
        source=_TORUS,
    ),
)
"""Every way of every collective, in the order in which ties are broken."""

PROTOCOLS: Mapping[str, str] = {"none": "", **{way.algorithm: way.protocol for way in WAYS}}
"""What an algorithm of `NCCL_ALGORITHMS` hands its messages over by."""

_SENT = "(ranks - 1) / ranks * size_bytes"
WIRE_BYTES: Mapping[str, str] = {
    "all_reduce": f"2 * {_SENT}",
    "all_gather": _SENT,
    "reduce_scatter": _SENT,
    "all_to_all": _SENT,
    "broadcast": "size_bytes",
    "reduce": "size_bytes",
    "send_recv": "size_bytes",
}
"""Bytes that a GPU sends by the ring's count."""

PRIMITIVES = tuple(WIRE_BYTES)
"""What `collective_time` can price."""

_NOTHING = "latency_s = 0; transfer_s = 0; latency_s + transfer_s"


class _Candidate(NamedTuple):
    """A way of one collective, priced: seconds, and where groups do not have it (None if all do)."""

    way: Way
    made: Quantity
    barred: NDArray[np.bool_] | None


def collective_time(
    primitive: str,
    size_bytes: ArrayLike,
    group: Group,
    tiers: Sequence[TierLike],
    *,
    algorithm: str = "auto",
    concurrent: ArrayLike = 1.0,
    without: tuple[str, ...] = (),
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
        ``auto``, or ``ring``, ``ll``, ``tree``, ``nvls`` … to force one.
    concurrent : array_like
        Groups that share every port and link of this one; divides all bandwidths. [-]
    without : tuple of str
        Algorithms that the library does not have or is told to leave (NCCL_ALGO, NCCL_PAT_ENABLE=0).

    Returns
    -------
    cost : GroupCost
        Exactly zero in a group of one.

    Raises
    ------
    LayoutError
        If there is no such collective, or no group can do it by the algorithm.

    Notes
    -----
    A send is priced across the outermost tier that the group spans. Sizes below a few bytes, chunk
    alignment and the number of channels are not seen.
    """
    path, wire, candidates = _candidates(primitive, size_bytes, group, tiers, concurrent, without)
    if algorithm != "auto":
        candidates = _only(algorithm, primitive, candidates)
    elif any(one.way.algorithm == "nvls" for one in candidates):
        candidates = [_without_kept_off(one, size_bytes, path) for one in candidates]
    best = _seconds(candidates[0])
    codes: Array = np.asarray(candidates[0].way.code)
    for new in candidates[1:]:
        seconds = _seconds(new)
        faster = seconds < best
        best, codes = np.where(faster, seconds, best), np.where(faster, new.way.code, codes)
    if anywhere(path.alone):
        codes = np.where(path.alone, 0.0, codes)
        wire = np.where(path.alone, 0.0, wire)
    return GroupCost(_chosen(codes, candidates, path), wire, path.tier, codes)


def collective_candidates(
    primitive: str,
    size_bytes: ArrayLike,
    group: Group,
    tiers: Sequence[TierLike],
    *,
    concurrent: ArrayLike = 1.0,
) -> dict[str, GroupCost]:
    """Every way in which `collective_time` could do a collective of one group, by name.

    Takes what `collective_time` takes; `size_bytes` may be an array, the group is one of several ranks.
    """
    path, wire, candidates = _candidates(primitive, size_bytes, group, tiers, concurrent)
    return {
        one.way.algorithm: GroupCost(one.made, wire, path.tier, np.asarray(one.way.code))
        for one in candidates
    }


def _candidates(
    primitive: str,
    size_bytes: ArrayLike,
    group: Group,
    tiers: Sequence[TierLike],
    concurrent: ArrayLike,
    without: tuple[str, ...] = (),
) -> tuple[Path, Array, list[_Candidate]]:
    """Price the ways that some group has; with the path, and the bytes that a GPU sends."""
    if primitive not in WIRE_BYTES:
        raise LayoutError(f"collective: unknown {primitive!r}; {choices_hint(primitive, PRIMITIVES)}")
    ways = _WAYS_OF[primitive, tiers[0].topology == TORUS.name]
    path = path_of(group, tiers, concurrent, ways[0].route)
    size = np.asarray(size_bytes, dtype=np.float64)
    expression = WIRE_BYTES[primitive]
    wire = evaluate(expression, {"ranks": path.ranks, "size_bytes": size})
    steps = _wire_steps(path.steps, expression)
    known = {**path.terms, **path.values, "size_bytes": size, "wire_bytes": wire}
    found = []
    for way in ways:
        barred = None
        if way.algorithm in without:
            continue
        if way.applies != "1":
            has = np.asarray(evaluate(way.applies, known) > 0.0)
            if not anywhere(has):
                continue
            barred = ~has if anywhere(~has) else None
        found.append(_Candidate(way, go_on(way.formula, steps, known), barred))
    return path, wire, found


_ON_TORUS = (SLICE_RING, SLICE_PAIRS, SLICE_LINK)
_WAYS_OF = {
    (name, torus): tuple(way for way in WAYS if name in way.primitives and (way.route in _ON_TORUS) == torus)
    for name in WIRE_BYTES
    for torus in (False, True)
}


@lru_cache(maxsize=1024)
def _wire_steps(steps: Steps, expression: str) -> Steps:
    return (*steps, ("wire_bytes", expression))


def _seconds(one: _Candidate) -> Array:
    """Return what a way takes, for ever where groups do not have it."""
    return one.made.value if one.barred is None else np.where(one.barred, np.inf, one.made.value)


def _without_kept_off(one: _Candidate, size_bytes: ArrayLike, path: Path) -> _Candidate:
    """Keep large all-reduces of a domain whose switch adds off the ring, as NCCL does, faster or not."""
    if one.way.kept_off == "0":
        return one
    off = evaluate(one.way.kept_off, {**path.terms, "size_bytes": size_bytes}) > 0.0
    if not anywhere(off):
        return one
    return one._replace(barred=np.asarray(off if one.barred is None else off | one.barred))


def _only(algorithm: str, primitive: str, candidates: list[_Candidate]) -> list[_Candidate]:
    """Keep the named candidates."""
    names = {one.way.algorithm: one for one in candidates}
    if algorithm not in names:
        hint = choices_hint(algorithm, ["auto", *names])
        raise LayoutError(f"algorithm of {primitive}: {algorithm!r} does not apply here; {hint}")
    return [names[algorithm]]


def _chosen(codes: Array, candidates: list[_Candidate], path: Path) -> Quantity:
    """Return the way taken; where several are, their steps side by side and a pick by the code."""
    first = float(codes.flat[0])
    if not anywhere(codes != first):
        if first == 0.0:
            return go_on(_NOTHING, (), {})
        return next(one.made for one in candidates if one.way.code == first)
    taken = [one for one in candidates if anywhere(codes == one.way.code)]
    picks = {0.0: ("0", "0")} if anywhere(path.alone) else {}
    heads: list[str] = []
    known: dict[str, ArrayLike] = {"algorithm": codes}
    terms: dict[str, ArrayLike] = {"algorithm": codes}
    for one in taken:
        prefix = one.way.algorithm.replace("-", "_")
        heads.append(_prefixed(one.made.formula, compiled(one.way.formula).names[:-1], prefix))
        parts = f"{prefix}_latency_s", f"{prefix}_transfer_s"
        picks[one.way.code] = parts
        known |= {f"{prefix}_{name}": one.made.steps[name] for name in ("latency_s", "transfer_s")}
        terms |= one.made.terms
    pick = _pick_text(tuple(picks.items()))
    values = run(pick, known)
    text = _joined(tuple(heads), pick)
    return Quantity(
        np.asarray(values[-1], dtype=np.float64),
        text,
        terms,
        {"latency_s": values[0], "transfer_s": values[1]},
    )


@lru_cache(maxsize=256)
def _pick_text(picks: tuple[tuple[float, tuple[str, str]], ...]) -> str:
    """Write the choice of both parts by the code of the algorithm."""
    *others, (_, (latency, transfer)) = picks
    for code, (one_latency, one_transfer) in reversed(others):
        latency = f"where(algorithm == {code:.0f}, {one_latency}, {latency})"
        transfer = f"where(algorithm == {code:.0f}, {one_transfer}, {transfer})"
    return f"latency_s = {latency}; transfer_s = {transfer}; latency_s + transfer_s"


@lru_cache(maxsize=1024)
def _prefixed(formula: str, own: tuple[str, ...], prefix: str) -> str:
    """Return all steps of a way but its result, its own under names that no other way has."""
    steps = formula.rpartition("; ")[0]
    return re.sub(rf"\b({'|'.join(own)})\b", rf"{prefix}_\1", steps)


@lru_cache(maxsize=1024)
def _joined(heads: tuple[str, ...], last: str) -> str:
    """Write steps side by side, shared ones once."""
    steps = dict.fromkeys(step for head in heads for step in head.split("; "))
    return "; ".join([*steps, last])
