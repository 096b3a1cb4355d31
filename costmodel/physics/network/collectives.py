r"""Textbook alpha-beta times of every collective x algorithm, and which algorithm is valid where.

The formulas of the literature stand in ``collectives.csv``, a record a row, on one flat tier (`ALGORITHMS`) or
on nodes of g ranks (`TWO_LEVEL`); `costmodel.physics.network.nccl` prices what NCCL does on a real fabric.
Links are full duplex, one message at a time per port (Hockney 1994), without contention. Each record's formula
is what is evaluated, over the steps of `STEPS` and these numbers, scalars or arrays:

- ``size_bytes``, the full logical tensor S: reduced buffer, gathered output, scattered input, all that
  one rank sends in an all-to-all, the message of a send, the root's buffer [B];
- ``ranks``, the group n [-]; ``start_s``, start-up of one message, alpha [s]; ``bytes_per_s``, what one
  rank sends in one direction, 1/beta [B/s]; ``add_s_per_byte``, local reduction of one byte, gamma [s/B];
- over nodes ``node_ranks``, g, ``nodes``, N [-], and start-up and rate of one rank inside a node and between
  nodes: ``node_start_s``, ``net_start_s`` [s], ``node_bytes_per_s``, ``net_bytes_per_s`` [B/s]; a node has g times
  ``net_bytes_per_s`` to the outside.

A group of one is free. A record with ``stages`` is a pipeline of so many hops whose message is cut into chunks.
With :math:`k` chunks :math:`t = (p - 1 + k)(\alpha + S\beta/k)`, least at :math:`k^2 = (p - 1) S\beta/\alpha`,
never less than one chunk; the cross term :math:`2\sqrt{(p-1)\alpha S\beta}` is half filling the pipe and half
extra start-ups.

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
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.csv_text import read_rows
from costmodel.base.errors import LayoutError, choices_hint
from costmodel.bill.formula import evaluate, run, with_steps

Array = NDArray[np.float64]

STEPS = (
    ("log_ranks", "ceil(log2(ranks))"),
    ("others_bytes", "(ranks - 1) / ranks * size_bytes"),
    # Exponent of the largest power of two up to n, and 1 where ranks beyond it fold their vector into a partner first.
    ("core", "floor(log2(ranks))"),
    ("folded", "ceil(log2(ranks)) - floor(log2(ranks))"),
    ("in_node_bytes", "(node_ranks - 1) / node_ranks * size_bytes"),
    ("between_bytes", "(nodes - 1) / nodes * size_bytes"),
)
"""Steps that several records use."""
_FLAT = "latency_s = where(ranks > 1, {latency}, 0); transfer_s = where(ranks > 1, {transfer}, 0); latency_s + transfer_s"
_NODES = "latency_s = {latency}; transfer_s = {transfer}; latency_s + transfer_s"
_CHUNKED = (
    "stages = {stages}; wire_s = {transfer}; "
    "fill = stages - 1; cross_s = sqrt(max(fill, 0) * start_s * wire_s); cut = fill * wire_s > start_s; "
    + _FLAT.format(
        latency="where(cut, fill * start_s + cross_s, stages * start_s)",
        transfer="where(cut, wire_s + cross_s, stages * wire_s)",
    )
)


class CollectiveTime(NamedTuple):
    """Time of one collective in its start-up and its byte-proportional part, in seconds."""

    latency_s: Array
    transfer_s: Array

    @property
    def time_s(self) -> Array:
        """Both parts together, in seconds."""
        return np.asarray(self.latency_s + self.transfer_s)


class Algorithm(NamedTuple):
    """One textbook algorithm of one collective: a row of ``collectives.csv``."""

    primitive: str
    name: str
    over: str  # ``ranks`` of a flat tier, or ``nodes``
    latency: str
    transfer: str
    """The part without and the part with bytes, as expressions. [s]"""
    stages: str  # Hops of a pipeline of chunks; empty where messages are not cut
    valid: str  # Condition on the group for which it holds; empty for all groups
    needs: str  # Hardware without which it cannot run; empty if none
    source: str  # Reference of this module
    note: str  # What ranks send to whom

    @property
    def formula(self) -> str:
        """Steps ``latency_s`` and ``transfer_s``, and their sum."""
        text = _NODES if self.over == "nodes" else _CHUNKED if self.stages else _FLAT
        return with_steps(STEPS, text.format(**self._asdict()))

    def applies(self, num_ranks: ArrayLike) -> NDArray[np.bool_]:
        """Return for which group sizes the formula holds."""
        n = np.asarray(num_ranks, dtype=np.float64)
        return np.broadcast_to(evaluate(with_steps(STEPS, self.valid or "1"), {"ranks": n}) > 0, n.shape)

    def time(
        self,
        size_bytes: ArrayLike,
        num_ranks: ArrayLike,
        *,
        latency_s: ArrayLike,
        bandwidth_bytes_per_s: ArrayLike,
        gamma_s_per_byte: ArrayLike = 0.0,
    ) -> CollectiveTime:
        """Price the collective; see `textbook_time`."""
        return self._priced(
            ranks=num_ranks,
            size_bytes=size_bytes,
            start_s=latency_s,
            bytes_per_s=bandwidth_bytes_per_s,
            add_s_per_byte=gamma_s_per_byte,
            set_bits=_set_bits(num_ranks) if "set_bits" in self.formula else 0.0,
        )

    def _priced(self, **terms: ArrayLike) -> CollectiveTime:
        """Return the steps ``latency_s`` and ``transfer_s`` of the formula, the last before its sum."""
        floats = {name: np.asarray(value, dtype=np.float64) for name, value in terms.items()}
        *_, latency_s, transfer_s, _ = run(self.formula, floats)
        return CollectiveTime(*(np.asarray(part, dtype=np.float64) for part in (latency_s, transfer_s)))


def _set_bits(num_ranks: ArrayLike) -> Array:
    r"""Return the set bits of all whole numbers below n: :math:`\sum_{i<n}\mathrm{popcount}(i)`."""
    n = np.asarray(num_ranks, dtype=np.float64)[..., None]
    span = 2.0 ** np.arange(1, 33)
    ones = np.floor(n / span) * span / 2 + np.maximum(np.mod(n, span) - span / 2, 0.0)
    return np.asarray(ones.sum(axis=-1))


def _algorithms_over(over: str) -> dict[str, dict[str, Algorithm]]:
    """Return the records over ranks or nodes, by collective and name."""
    found: dict[str, dict[str, Algorithm]] = {}
    for row in read_rows(Path(__file__).with_name("collectives.csv")):
        if row["over"] == over:
            found.setdefault(row["primitive"], {})[row["name"]] = Algorithm(**row)
    return found


ALGORITHMS = _algorithms_over("ranks")  # Every algorithm on a flat tier, by collective and name
TWO_LEVEL = _algorithms_over("nodes")  # Every algorithm over nodes, by collective and name


def _record(table: Mapping[str, Mapping[str, Algorithm]], primitive: str, algorithm: str) -> Algorithm:
    """Return the record of an algorithm; an unknown one is a `LayoutError`."""
    known = _of_primitive(table, primitive)
    if algorithm not in known:
        raise LayoutError(
            f"algorithm of {primitive}: unknown {algorithm!r}; {choices_hint(algorithm, known)}"
        )
    return known[algorithm]


def _of_primitive(table: Mapping[str, Mapping[str, Algorithm]], primitive: str) -> Mapping[str, Algorithm]:
    """Return the records of a primitive; an unknown one is a `LayoutError`."""
    if primitive not in table:
        raise LayoutError(f"collective: unknown {primitive!r}; {choices_hint(primitive, table)}")
    return table[primitive]


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
    r"""Time of a collective by a named algorithm, or by ``auto``: the fastest that applies.

    ``auto`` leaves out what needs special hardware (`Algorithm.needs`).

    Parameters
    ----------
    primitive, algorithm : str
        Keys of `ALGORITHMS`.
    size_bytes, num_ranks : array_like
        :math:`S` and :math:`n \ge 1`. [B], [-]
    latency_s, bandwidth_bytes_per_s, gamma_s_per_byte : array_like
        :math:`\alpha`, :math:`1/\beta` and :math:`\gamma`. [s], [B/s], [s/B]

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
        row = _record(ALGORITHMS, primitive, algorithm)
        if not row.applies(n).all():
            raise LayoutError(f"{algorithm} {primitive} needs a power of two of ranks, got {n.tolist()}")
        return row.time(size_bytes, n, **link)
    best = CollectiveTime(np.asarray(np.inf), np.asarray(np.inf))
    for row in _of_primitive(ALGORITHMS, primitive).values():
        if not row.needs:
            new = row.time(size_bytes, n, **link)
            faster = row.applies(n) & (new.time_s < best.time_s)
            best = CollectiveTime(*(np.where(faster, *parts) for parts in zip(new, best, strict=True)))
    return best


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
    """
    return _record(TWO_LEVEL, primitive, algorithm)._priced(
        size_bytes=size_bytes,
        node_ranks=ranks_per_node,
        nodes=num_nodes,
        node_start_s=intra_latency_s,
        node_bytes_per_s=intra_bandwidth_bytes_per_s,
        net_start_s=inter_latency_s,
        net_bytes_per_s=inter_bandwidth_bytes_per_s,
        add_s_per_byte=gamma_s_per_byte,
    )


def crossover_size_bytes(latency_s: ArrayLike, bandwidth_bytes_per_s: ArrayLike) -> Array:
    r"""Message size at which start-up and transfer take equally long, in bytes: :math:`n^* = \alpha/\beta`.

    >>> float(crossover_size_bytes(1e-6, 450e9))
    450000.0
    """
    return np.asarray(np.asarray(latency_s, dtype=np.float64) * np.asarray(bandwidth_bytes_per_s))
