r"""Textbook alpha-beta times of every collective x algorithm, and which algorithm is valid where.

These are the formulas of the literature, by name, on one flat tier (`ALGORITHMS`) or on nodes of g ranks
(`TWO_LEVEL`); `costmodel.physics.network.nccl` prices what NCCL does on a real fabric. Links are full
duplex, one message at a time per port (Hockney 1994), without contention. Each record's formula is what
is evaluated, over these numbers, scalars or arrays:

- ``size_bytes``, the full logical tensor S: reduced buffer, gathered output, scattered input, all that
  one rank sends in an all-to-all, the message of a send, what a root holds [B];
- ``ranks``, the group n [-]; ``start_s``, start-up of one message, alpha [s]; ``bytes_per_s``, what one
  rank sends in one direction, 1/beta [B/s]; ``add_s_per_byte``, local reduction of one byte, gamma [s/B].

A group of one is free.

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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.errors import LayoutError, choices_hint
from costmodel.bill.formula import evaluate, run

__all__ = [
    "ALGORITHMS",
    "TWO_LEVEL",
    "Algorithm",
    "CollectiveTime",
    "TwoLevel",
    "crossover_between_bytes",
    "crossover_size_bytes",
    "textbook_time",
    "two_level_time",
]

Array = NDArray[np.float64]


class CollectiveTime(NamedTuple):
    """Time of one collective in its start-up and its byte-proportional part, in seconds."""

    latency_s: Array
    transfer_s: Array

    @property
    def time_s(self) -> Array:
        """Both parts together, in seconds."""
        return np.asarray(self.latency_s + self.transfer_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One textbook algorithm of one collective on a flat tier.

    Attributes
    ----------
    primitive, name : str
        What it does, and what it is called.
    latency, transfer : str
        The part without and the part with bytes, as expressions. [s]
    steps : str
        Named expressions that both use, each with its semicolon; empty if none.
    valid : str
        True for groups that it holds for.
    needs : str
        Hardware without which it cannot run; empty if none.
    source : str
        Reference of this module.
    """

    primitive: str
    name: str
    latency: str
    transfer: str
    steps: str
    valid: str
    needs: str
    source: str

    @property
    def formula(self) -> str:
        """Steps ``latency_s`` and ``transfer_s``, and their sum."""
        return (
            f"{self.steps}latency_s = where(ranks > 1, {self.latency}, 0); "
            f"transfer_s = where(ranks > 1, {self.transfer}, 0); latency_s + transfer_s"
        )

    def applies(self, num_ranks: ArrayLike) -> NDArray[np.bool_]:
        """Say for which group sizes the formula holds."""
        n = np.asarray(num_ranks, dtype=np.float64)
        return np.broadcast_to(evaluate(self.valid, {"ranks": n}) > 0, n.shape)

    def time(
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
        size_bytes, num_ranks : array_like
            :math:`S` and :math:`n \ge 1`. [B], [-]
        latency_s, bandwidth_bytes_per_s, gamma_s_per_byte : array_like
            :math:`\alpha`, :math:`1/\beta` and :math:`\gamma`. [s], [B/s], [s/B]
        """
        n = np.asarray(num_ranks, dtype=np.float64)
        return _priced(
            self.formula,
            {
                "size_bytes": size_bytes,
                "ranks": n,
                "start_s": latency_s,
                "bytes_per_s": bandwidth_bytes_per_s,
                "add_s_per_byte": gamma_s_per_byte,
                "set_bits": _set_bits(n) if "set_bits" in self.formula else 0.0,
            },
        )


def _priced(formula: str, terms: Mapping[str, ArrayLike]) -> CollectiveTime:
    """Return the steps ``latency_s`` and ``transfer_s`` of a formula, the last before its sum."""
    floats = {name: np.asarray(value, dtype=np.float64) for name, value in terms.items()}
    *_, latency_s, transfer_s, _ = run(formula, floats)
    return CollectiveTime(*(np.asarray(part, dtype=np.float64) for part in (latency_s, transfer_s)))


def _set_bits(n: Array) -> Array:
    r"""Count the bits that are set in all whole numbers below n: :math:`\sum_{i<n}\mathrm{popcount}(i)`."""
    span = 2.0 ** np.arange(1, 33)
    rest = np.mod(n[..., None], span)
    return np.asarray(
        (np.floor(n[..., None] / span) * span / 2 + np.maximum(rest - span / 2, 0.0)).sum(axis=-1)
    )


_ANY = "1"
_POWER_OF_TWO = "log2(ranks) == floor(log2(ranks))"
_MESH = "all pairs connected"
_SWITCH = "in-network reduction"
_LOG = "ceil(log2(ranks))"
_SHARDS = "(ranks - 1) / ranks * size_bytes"

# p the largest power of two up to n; ranks beyond it fold their vector into a partner first.
_FOLDED = "core = floor(log2(ranks)); folded = ceil(log2(ranks)) - core; "


def _pipelined(stages: str, wire_s: str) -> tuple[str, str, str]:
    r"""Return steps, latency and transfer part of a pipeline of `stages` hops with the best chunk size.

    With :math:`k` chunks :math:`t = (p - 1 + k)(\alpha + S\beta/k)`, least at
    :math:`k^2 = (p - 1) S\beta/\alpha`; never less than one chunk. The cross term
    :math:`2\sqrt{(p-1)\alpha S\beta}` is half filling the pipe and half extra start-ups.
    """
    steps = (
        f"stages = {stages}; fill = stages - 1; wire_s = {wire_s}; "
        "cross_s = sqrt(max(fill, 0) * start_s * wire_s); "
    )
    chunked = "fill * wire_s > start_s"
    latency = f"where({chunked}, fill * start_s + cross_s, stages * start_s)"
    transfer = f"where({chunked}, wire_s + cross_s, stages * wire_s)"
    return steps, latency, transfer


def _algorithm(
    primitive: str,
    name: str,
    latency: str,
    transfer: str,
    source: str,
    *,
    steps: str = "",
    valid: str = _ANY,
    needs: str = "",
) -> Algorithm:
    return Algorithm(
        primitive=primitive,
        name=name,
        latency=latency,
        transfer=transfer,
        steps=steps,
        valid=valid,
        needs=needs,
        source=source,
    )


_CHAIN = _pipelined("ranks - 1", "size_bytes / bytes_per_s")
_TWO_TREE = _pipelined(f"2 * {_LOG} + 1", "size_bytes / bytes_per_s")
# An inner rank of one tree is a leaf of the other, so each sends and receives twice the vector.
_DOUBLE_TREE = _pipelined(f"2 * {_LOG} + 1", "size_bytes * (2 / bytes_per_s + add_s_per_byte)")

_RECORDS: tuple[Algorithm, ...] = (
    _algorithm("send_recv", "direct", "start_s", "size_bytes / bytes_per_s", "Hockney 1994"),
    # The root sends to all in turn.
    _algorithm(
        "broadcast", "linear", "(ranks - 1) * start_s", "(ranks - 1) * size_bytes / bytes_per_s", "by count"
    ),
    # Informed ranks double each step.
    _algorithm("broadcast", "binomial", f"{_LOG} * start_s", f"{_LOG} * size_bytes / bytes_per_s", "[1]"),
    # Binomial scatter, then ring all-gather (van de Geijn), for long buffers.
    _algorithm(
        "broadcast",
        "scatter-all-gather",
        f"({_LOG} + ranks - 1) * start_s",
        f"2 * {_SHARDS} / bytes_per_s",
        "[1]",
    ),
    # Chunks flow down a chain, at the best (real) number of chunks.
    _algorithm("broadcast", "chain", _CHAIN[1], _CHAIN[2], "by count", steps=_CHAIN[0]),
    # Two binary trees with half of the buffer each: the leading terms; the exact schedule depends on
    # how the trees are coloured.
    _algorithm("broadcast", "two-tree", _TWO_TREE[1], _TWO_TREE[2], "[3]", steps=_TWO_TREE[0]),
    _algorithm(
        "reduce",
        "linear",
        "(ranks - 1) * start_s",
        "(ranks - 1) * size_bytes * (1 / bytes_per_s + add_s_per_byte)",
        "by count",
    ),
    _algorithm(
        "reduce",
        "binomial",
        f"{_LOG} * start_s",
        f"{_LOG} * size_bytes * (1 / bytes_per_s + add_s_per_byte)",
        "[1]",
    ),
    # Recursive-halving reduce-scatter, then binomial gather (Rabenseifner).
    _algorithm(
        "reduce",
        "reduce-scatter-gather",
        f"2 * {_LOG} * start_s",
        f"{_SHARDS} * (2 / bytes_per_s + add_s_per_byte)",
        "[1]",
        valid=_POWER_OF_TWO,
    ),
    # The root deals one shard at a time; a gather backwards.
    _algorithm("scatter", "linear", "(ranks - 1) * start_s", f"{_SHARDS} / bytes_per_s", "by count"),
    # The root hands whole subtrees on.
    _algorithm("scatter", "binomial", f"{_LOG} * start_s", f"{_SHARDS} / bytes_per_s", "[1]"),
    _algorithm("gather", "linear", "(ranks - 1) * start_s", f"{_SHARDS} / bytes_per_s", "by count"),
    _algorithm("gather", "binomial", f"{_LOG} * start_s", f"{_SHARDS} / bytes_per_s", "[1]"),
    # Linear reduce, then linear broadcast.
    _algorithm(
        "all_reduce",
        "naive",
        "2 * (ranks - 1) * start_s",
        "(ranks - 1) * size_bytes * (2 / bytes_per_s + add_s_per_byte)",
        "by count",
    ),
    # Binomial reduce, then binomial broadcast, not pipelined.
    _algorithm(
        "all_reduce",
        "tree",
        f"2 * {_LOG} * start_s",
        f"{_LOG} * size_bytes * (2 / bytes_per_s + add_s_per_byte)",
        "[1]",
    ),
    # Reduce-scatter and all-gather round a ring: bandwidth-optimal.
    _algorithm(
        "all_reduce",
        "ring",
        "2 * (ranks - 1) * start_s",
        f"{_SHARDS} * (2 / bytes_per_s + add_s_per_byte)",
        "[4]",
    ),
    # Exchange whole vectors at distance 1, 2, 4 …, for short vectors.
    _algorithm(
        "all_reduce",
        "recursive-doubling",
        "(core + 2 * folded) * start_s",
        "core * size_bytes * (1 / bytes_per_s + add_s_per_byte) "
        "+ folded * size_bytes * (2 / bytes_per_s + add_s_per_byte)",
        "[1]",
        steps=_FOLDED,
    ),
    # Recursive halving, then recursive doubling (Rabenseifner); needs full bisection bandwidth.
    _algorithm(
        "all_reduce",
        "halving-doubling",
        "2 * (core + folded) * start_s",
        "size_bytes * (2 / bytes_per_s + add_s_per_byte) * (1 - 0.5 ** core + folded)",
        "[1]",
        steps=_FOLDED,
    ),
    # Reduce up and broadcast down two binary trees with half of the vector each: leading terms.
    _algorithm("all_reduce", "double-tree", _DOUBLE_TREE[1], _DOUBLE_TREE[2], "[3]", steps=_DOUBLE_TREE[0]),
    # All send their whole vector to all at once.
    _algorithm(
        "all_reduce",
        "one-shot",
        "start_s",
        "(ranks - 1) * size_bytes * (1 / bytes_per_s + add_s_per_byte)",
        "by count",
        needs=_MESH,
    ),
    # Direct reduce-scatter, direct all-gather.
    _algorithm(
        "all_reduce",
        "two-shot",
        "2 * start_s",
        f"{_SHARDS} * (2 / bytes_per_s + add_s_per_byte)",
        "by count",
        needs=_MESH,
    ),
    # Each rank reads its shard reduced by the switch and multicasts it: S + S/n out and in; the
    # additions happen in the switch (NVLS).
    _algorithm(
        "all_reduce",
        "in-network",
        "2 * start_s",
        "size_bytes * (1 + 1 / ranks) / bytes_per_s",
        "by count",
        needs=_SWITCH,
    ),
    _algorithm("all_gather", "ring", "(ranks - 1) * start_s", f"{_SHARDS} / bytes_per_s", "[1]"),
    # Held shards double each step.
    _algorithm(
        "all_gather",
        "recursive-doubling",
        f"{_LOG} * start_s",
        f"{_SHARDS} / bytes_per_s",
        "[1]",
        valid=_POWER_OF_TWO,
    ),
    # The same for any n; the final local rotation (one copy of S in memory) is not charged.
    _algorithm("all_gather", "bruck", f"{_LOG} * start_s", f"{_SHARDS} / bytes_per_s", "[2]"),
    # All to all at once, start-ups overlapped.
    _algorithm("all_gather", "direct", "start_s", f"{_SHARDS} / bytes_per_s", "by count", needs=_MESH),
    _algorithm(
        "reduce_scatter",
        "ring",
        "(ranks - 1) * start_s",
        f"{_SHARDS} * (1 / bytes_per_s + add_s_per_byte)",
        "[1]",
    ),
    _algorithm(
        "reduce_scatter",
        "pairwise",
        "(ranks - 1) * start_s",
        f"{_SHARDS} * (1 / bytes_per_s + add_s_per_byte)",
        "[1]",
    ),
    # Halves at distance n/2, n/4 …; commutative reductions.
    _algorithm(
        "reduce_scatter",
        "recursive-halving",
        f"{_LOG} * start_s",
        f"{_SHARDS} * (1 / bytes_per_s + add_s_per_byte)",
        "[1]",
        valid=_POWER_OF_TWO,
    ),
    _algorithm(
        "reduce_scatter",
        "direct",
        "start_s",
        f"{_SHARDS} * (1 / bytes_per_s + add_s_per_byte)",
        "by count",
        needs=_MESH,
    ),
    _algorithm("all_to_all", "pairwise", "(ranks - 1) * start_s", f"{_SHARDS} / bytes_per_s", "[1]"),
    # Blocks hop once per set bit of their distance, for short messages; ``set_bits`` is that sum,
    # n/2 log2 n for powers of two. Two local copies of S are not charged.
    _algorithm(
        "all_to_all",
        "bruck",
        f"{_LOG} * start_s",
        "set_bits / ranks * size_bytes / bytes_per_s",
        "[2]",
    ),
    _algorithm("all_to_all", "direct", "start_s", f"{_SHARDS} / bytes_per_s", "by count", needs=_MESH),
)

ALGORITHMS: dict[str, dict[str, Algorithm]] = {
    primitive: {one.name: one for one in _RECORDS if one.primitive == primitive}
    for primitive in dict.fromkeys(one.primitive for one in _RECORDS)
}
"""Every algorithm on a flat tier, by collective and name."""


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

    ``auto`` leaves out what needs special hardware (`Algorithm.needs`). Takes what `Algorithm.time` takes.

    Raises
    ------
    LayoutError
        If the primitive or algorithm is unknown, or does not apply to a group size.

    Examples
    --------
    1 GB over 8 ranks that each send 450 GB/s: 1.75 GB on the wire.

    >>> t = textbook_time("all_reduce", "ring", 1e9, 8, latency_s=1e-6, bandwidth_bytes_per_s=450e9)
    >>> f"{float(t.latency_s) * 1e6:.0f} us + {float(t.transfer_s) * 1e3:.3f} ms"
    '14 us + 3.889 ms'
    """
    n = np.asarray(num_ranks, dtype=np.float64)
    link = {
        "latency_s": latency_s,
        "bandwidth_bytes_per_s": bandwidth_bytes_per_s,
        "gamma_s_per_byte": gamma_s_per_byte,
    }
    if algorithm != "auto":
        row = _row(primitive, algorithm)
        if not row.applies(n).all():
            raise LayoutError(f"{algorithm} {primitive} needs a power of two of ranks, got {n.tolist()}")
        return row.time(size_bytes, n, **link)
    best: CollectiveTime | None = None
    for row in _rows(primitive).values():
        if row.needs:
            continue
        new, valid = row.time(size_bytes, n, **link), row.applies(n)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoLevel:
    """One textbook algorithm over nodes, its phases one after the other.

    The formula is over ``size_bytes``, ``node_ranks`` g, ``nodes`` N, and start-up and rate of one rank
    inside a node and between nodes (a node has g times ``net_bytes_per_s`` to the outside).

    Attributes
    ----------
    primitive, name : str
        What it does, and what it is called.
    latency, transfer : str
        The part without and the part with bytes, as expressions. [s]
    source : str
        What it is, in words.
    """

    primitive: str
    name: str
    latency: str
    transfer: str
    source: str

    @property
    def formula(self) -> str:
        """Steps ``latency_s`` and ``transfer_s``, and their sum."""
        return f"latency_s = {self.latency}; transfer_s = {self.transfer}; latency_s + transfer_s"


_IN_NODE = "(node_ranks - 1) / node_ranks * size_bytes"
_OVER_NET = "(nodes - 1) / nodes * size_bytes"
_NODE_START = "(node_ranks - 1) * node_start_s"
_NET_START = "(nodes - 1) * net_start_s"


def _gathered(primitive: str) -> TwoLevel:
    return TwoLevel(
        primitive=primitive,
        name="two-level",
        latency=f"{_NET_START} + {_NODE_START}",
        transfer=f"{_OVER_NET} / node_ranks * (1 / net_bytes_per_s + add_s_per_byte) "
        f"+ {_IN_NODE} * (1 / node_bytes_per_s + add_s_per_byte)",
        source="a g-th over the NICs, then all of it in the node; a reduce-scatter backwards",
    )


_TWO_LEVEL_RECORDS: tuple[TwoLevel, ...] = (
    TwoLevel(
        primitive="all_reduce",
        name="two-level",
        latency=f"2 * {_NODE_START} + 2 * {_NET_START}",
        transfer=f"{_IN_NODE} * (2 / node_bytes_per_s + add_s_per_byte) "
        f"+ {_OVER_NET} / node_ranks * (2 / net_bytes_per_s + add_s_per_byte)",
        source="reduce-scatter in the node, all-reduce of a g-th by every rank's NIC, all-gather in the node",
    ),
    TwoLevel(
        primitive="all_reduce",
        name="node-leaders",
        latency=f"2 * {_NODE_START} + 2 * {_NET_START} + ceil(log2(node_ranks)) * node_start_s",
        transfer=f"{_IN_NODE} * (2 / node_bytes_per_s + add_s_per_byte) "
        f"+ {_OVER_NET} * (2 / net_bytes_per_s + add_s_per_byte) "
        "+ ceil(log2(node_ranks)) * size_bytes / node_bytes_per_s",
        source="all-reduce in the node, of the whole vector among one rank a node, broadcast: leaves all "
        "but one NIC of a node idle",
    ),
    _gathered("all_gather"),
    _gathered("reduce_scatter"),
    TwoLevel(
        primitive="all_to_all",
        name="two-step",
        latency=f"where(node_ranks > 1, node_start_s, 0) + {_NET_START}",
        transfer=f"{_IN_NODE} / node_bytes_per_s + {_OVER_NET} / net_bytes_per_s",
        source="to the local rank on the target's rail, then one message a node (PXN-like): N - 1 messages "
        "instead of (N - 1) g, each g times as long",
    ),
)

TWO_LEVEL: dict[str, dict[str, TwoLevel]] = {
    primitive: {one.name: one for one in _TWO_LEVEL_RECORDS if one.primitive == primitive}
    for primitive in dict.fromkeys(one.primitive for one in _TWO_LEVEL_RECORDS)
}
"""Every algorithm over nodes, by collective and name."""


def two_level_time(
    primitive: str,
    algorithm: str,
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
    r"""Time of a collective over nodes by a named algorithm of `TWO_LEVEL`.

    Parameters
    ----------
    primitive, algorithm : str
        Keys of `TWO_LEVEL`.
    size_bytes : array_like
        The full logical tensor, :math:`S`. [B]
    ranks_per_node, num_nodes : array_like
        :math:`g` and :math:`N`. [-]
    intra_latency_s, inter_latency_s : array_like
        Start-up of a message inside and between nodes. [s]
    intra_bandwidth_bytes_per_s, inter_bandwidth_bytes_per_s : array_like
        What one rank sends inside and between nodes. [B/s]
    gamma_s_per_byte : array_like
        Local reduction of one byte. [s/B]

    Raises
    ------
    LayoutError
        If there is no such algorithm.
    """
    rows = TWO_LEVEL.get(primitive, {})
    if algorithm not in rows:
        raise LayoutError(
            f"algorithm of {primitive} over nodes: unknown {algorithm!r}; {choices_hint(algorithm, rows)}"
        )
    return _priced(
        rows[algorithm].formula,
        {
            "size_bytes": size_bytes,
            "node_ranks": ranks_per_node,
            "nodes": num_nodes,
            "node_start_s": intra_latency_s,
            "node_bytes_per_s": intra_bandwidth_bytes_per_s,
            "net_start_s": inter_latency_s,
            "net_bytes_per_s": inter_bandwidth_bytes_per_s,
            "add_s_per_byte": gamma_s_per_byte,
        },
    )


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
