r"""What a collective of NCCL (or RCCL) takes on a fabric of nested tiers, in a form cheap to search.

Each way of doing a collective is a `Way`, a row of ``nccl_ways.csv``: a formula over the steps of a path (`paths`),
of the form

.. math:: t = T_0 + \sum_t h_t a_t + 2\sqrt{P\,W b} + W b + \frac{S}{n B_c}

with W the wire bytes of a GPU, b the seconds per byte of the tightest tier, P the fill time of the
chunk pipeline (the square root is what a pipeline with the best chunk size pays [1]_) and B_c the
copy of a rank's own shard; the fastest of the ways that apply is taken, as NCCL's tuner does [2]_:

- low-latency protocol (LL), ring or, for all-reduce, tree: fewest microseconds, rate capped;
- ring with the bandwidth protocol (Simple): `simple_step_s` more per hop, full rate;
- all-reduce by double tree across nodes, or by the switch (NVLS; NVLS-tree across nodes);
- all-gather and reduce-scatter of one GPU a node by parallel aggregated trees (PAT, from NCCL 2.23 on);
- all-reduce by the network's switches (SHARP) where a tier's profile says that they add up, behind NVLS
  or a chain in each node: a port sends its part of the vector once and receives the sum once;
- on a torus, along the sides of the group's box of chips, in turn or at once (`torus`): an all-reduce is a
  reduce-scatter and a gather, a broadcast a scatter and a gather.

References
----------
.. [1] Optimal chunking of a p-stage pipeline; `costmodel.physics.network.collectives`.
.. [2] NVIDIA/nccl, src/graph/tuning.cc (2.30): latency + bytes/rate, least over (algorithm, protocol).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path as File
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.csv_text import read_rows
from costmodel.base.errors import LayoutError, choices_hint
from costmodel.bill.formula import compiled, evaluate, run, with_steps
from costmodel.bill.lines import any_nonzero
from costmodel.bill.quantity import Quantity
from costmodel.physics.network import paths
from costmodel.physics.network.fabric import NCCL_ALGORITHMS, GroupCost, Tier
from costmodel.physics.network.mesh import Group
from costmodel.physics.network.paths import Path, Route, go_on, path_of
from costmodel.physics.network.topologies import TORUS

Array = NDArray[np.float64]

_ROUTES: Mapping[str, Route] = {
    "ring": paths.ring_steps,
    "pairs": paths.pair_steps,
    "link": paths.link_steps,
    "torus-ring": paths.slice_ring_steps,
    "torus-pairs": paths.slice_pair_steps,
    "torus-link": paths.link_steps,
}
_STEPS = (
    ("nodes", "ranks / node_ranks"),
    # Chains inside nodes beside what their ports carry between them.
    ("chain_s_per_byte", "where(node_ranks > 1, 2, 0) / (node_bytes_per_s * node_rate_factor)"),
    # Of two nodes each tree's port moves half of the vector up and half down; of more, all both ways.
    ("tree_s_per_byte", "where(nodes > 2, 2, 1) * outer_s_per_byte / tree_rate_factor"),
    ("sharp_s_per_byte", "max(outer_s_per_byte, 1 / (node_ranks * sharp_bytes_per_s))"),
    ("switch_s_per_byte", "(1 + 1 / node_ranks) / (switch_bytes_per_s * nvls_rate_factor)"),
    ("nvls_fill_s", "nvls_pipeline_s * node_ranks + nvls_tree_pipeline_s"),
)
"""What several ways build on."""


class Way(NamedTuple):
    """One way of doing a collective."""

    algorithm: str  # One of `NCCL_ALGORITHMS`
    primitives: tuple[str, ...]
    route: Route  # The traffic that its formula starts from
    formula: str
    """Steps ``latency_s`` and ``transfer_s``, and their sum, over steps and terms of the route, ``size_bytes`` and
    ``wire_bytes``."""
    applies: str  # True for groups that can do it so; over the same names, but not the size
    protocol: str  # NCCL's name of how messages are handed over
    on_torus: bool

    @property
    def code(self) -> float:
        """Index into `NCCL_ALGORITHMS`."""
        return float(NCCL_ALGORITHMS.index(self.algorithm))


def _way(row: Mapping[str, str]) -> Way:
    """Return a row of ``nccl_ways.csv``: seconds without bytes, on the wire and to fill the pipeline, and a rank's own copy."""
    transfer = "wire_s" + (f" + 2 * sqrt({row['fill']} * wire_s)" if row["fill"] else "")
    transfer += " + size_bytes / ranks * copy_s_per_byte" if row["copies"] else ""
    text = f"latency_s = {row['latency']}; wire_s = {row['wire']}; transfer_s = {transfer}; latency_s + transfer_s"
    return Way(
        row["algorithm"],
        tuple(row["primitives"].split()),
        _ROUTES[row["route"]],
        with_steps(_STEPS, text),
        row["applies"],
        row["protocol"],
        row["route"].startswith("torus"),
    )


WAYS = tuple(_way(row) for row in read_rows(File(__file__).with_name("nccl_ways.csv")))
"""Every way of every collective, in the order in which ties are broken."""

# From there on NCCL takes the switch for all-reduces and not the ring, faster or not (H200, B200 sweeps).
_SWITCH_ONLY = "(size_bytes >= 2097152) * (node_ranks >= nvls_min_ranks) * (node_ranks >= ranks) * (switch_bytes_per_s > 0)"

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

PRIMITIVES = tuple(WIRE_BYTES)  # What `collective_time` can price

_NOTHING = "latency_s = 0; transfer_s = 0; latency_s + transfer_s"


class _Candidate(NamedTuple):
    """A way of one collective, priced: seconds, and where groups do not have it (None if all do)."""

    way: Way
    made: Quantity
    barred: NDArray[np.bool_] | None

    @property
    def seconds(self) -> Array:
        """What it takes, for ever where groups do not have it."""
        return self.made.value if self.barred is None else np.where(self.barred, np.inf, self.made.value)


def collective_time(
    primitive: str,
    size_bytes: ArrayLike,
    group: Group,
    tiers: Sequence[Tier],
    *,
    algorithm: str = "auto",
    concurrent: ArrayLike = 1.0,
    without: tuple[str, ...] = (),
) -> GroupCost:
    """Time of one collective of `group` over a fabric, by the fastest algorithm, or the one forced; see the module.

    `size_bytes` is the full logical tensor, :math:`S`: reduced buffer, gathered output, scattered input, all that one rank
    sends in an all-to-all, the message of a send, across the outermost tier that the group spans. [B] `tiers` are the levels
    of the fabric, innermost first; `concurrent` groups share every port and link [-]; `without` are algorithms that the
    library does not have or leaves by a variable (NCCL_ALGO, NCCL_PAT_ENABLE=0). Exactly zero in a group of one. Sizes
    below a few bytes, chunk alignment and the number of channels are not seen.
    """
    path, wire, candidates = _candidates(primitive, size_bytes, group, tiers, concurrent, without)
    if algorithm != "auto":
        candidates = _only(algorithm, primitive, candidates)
    elif any(one.way.algorithm == "nvls" for one in candidates):
        candidates = [_without_ring(one, size_bytes, path) for one in candidates]
    best = candidates[0].seconds
    codes: Array = np.asarray(candidates[0].way.code)
    for new in candidates[1:]:
        faster = new.seconds < best
        best, codes = np.where(faster, new.seconds, best), np.where(faster, new.way.code, codes)
    if any_nonzero(path.alone):
        codes = np.where(path.alone, 0.0, codes)
        wire = np.where(path.alone, 0.0, wire)
    return GroupCost(_chosen(codes, candidates, path), wire, path.tier, codes)


def collective_candidates(
    primitive: str, size_bytes: ArrayLike, group: Group, tiers: Sequence[Tier], *, concurrent: ArrayLike = 1.0
) -> dict[str, GroupCost]:
    """Return every way in which `collective_time` could do a collective of one group of several ranks, by name."""
    path, wire, candidates = _candidates(primitive, size_bytes, group, tiers, concurrent, ())
    return {
        one.way.algorithm: GroupCost(one.made, wire, path.tier, np.asarray(one.way.code))
        for one in candidates
    }


def _candidates(
    primitive: str,
    size_bytes: ArrayLike,
    group: Group,
    tiers: Sequence[Tier],
    concurrent: ArrayLike,
    without: tuple[str, ...],
) -> tuple[Path, Array, list[_Candidate]]:
    """Price the ways that some group has; with the path, and the bytes that a GPU sends."""
    if primitive not in WIRE_BYTES:
        raise LayoutError(f"collective: unknown {primitive!r}; {choices_hint(primitive, PRIMITIVES)}")
    ways = _WAYS_OF[primitive, tiers[0].topology == TORUS.name]
    path = path_of(group, tiers, concurrent, ways[0].route)
    size = np.asarray(size_bytes, dtype=np.float64)
    wire = evaluate(WIRE_BYTES[primitive], {"ranks": path.ranks, "size_bytes": size})
    steps = (*path.steps, ("wire_bytes", WIRE_BYTES[primitive]))
    known = {**path.terms, **path.values, "size_bytes": size, "wire_bytes": wire}
    found = []
    for way in ways:
        barred = None
        if way.algorithm in without:
            continue
        if way.applies != "1":
            has = np.asarray(evaluate(way.applies, known) > 0.0)
            if not any_nonzero(has):
                continue
            barred = ~has if any_nonzero(~has) else None
        found.append(_Candidate(way, go_on(way.formula, steps, known), barred))
    return path, wire, found


_WAYS_OF = {
    (name, torus): tuple(way for way in WAYS if name in way.primitives and way.on_torus == torus)
    for name in WIRE_BYTES
    for torus in (False, True)
}


def _without_ring(one: _Candidate, size_bytes: ArrayLike, path: Path) -> _Candidate:
    """Keep large all-reduces of a domain whose switch adds off the ring, as NCCL does."""
    if one.way.algorithm != "ring":
        return one
    off = evaluate(_SWITCH_ONLY, {**path.terms, "size_bytes": size_bytes}) > 0.0
    if not any_nonzero(off):
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
    if not any_nonzero(codes != first):
        if first == 0.0:
            return go_on(_NOTHING, (), {})
        return next(one.made for one in candidates if one.way.code == first)
    taken = [one for one in candidates if any_nonzero(codes == one.way.code)]
    picks = {0.0: ("0", "0")} if any_nonzero(path.alone) else {}
    heads: list[str] = []
    known: dict[str, ArrayLike] = {"algorithm": codes}
    terms: dict[str, ArrayLike] = {"algorithm": codes}
    for one in taken:
        prefix = one.way.algorithm.replace("-", "_")
        heads.append(_prefixed(one.made.formula, compiled(one.way.formula).step_names, prefix))
        picks[one.way.code] = f"{prefix}_latency_s", f"{prefix}_transfer_s"
        known |= {f"{prefix}_{name}": one.made.steps[name] for name in ("latency_s", "transfer_s")}
        terms |= one.made.terms
    pick = _pick_text(tuple(picks.items()))
    latency_s, transfer_s, seconds = run(pick, known)
    text = _joined(tuple(heads), pick)
    steps = {"latency_s": latency_s, "transfer_s": transfer_s}
    return Quantity(np.asarray(seconds, dtype=np.float64), text, terms, steps)


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
