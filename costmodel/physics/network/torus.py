r"""Collectives on a torus: rings along one dimension or all at once, and all-to-all by what links carry.

A group is a box of chips, e_i along its i-th longest side. A side that covers a whole dimension whose ends
are joined is a ring, every other a line. Each chip has one link a side and direction; c groups that lie
interleaved along a side share its links. With B the rate of a link, l = 2 on a ring (both ways round) and
1 on a line (the end of a line has one link), and q_i = c_i / (l_i B):

- gather along one side, every chip handing on what it got: :math:`(e-1)\,M q` for shards of M bytes, in
  :math:`\lfloor e/2 \rfloor` steps on a ring and :math:`e-1` on a line;
- sides in turn: the shards of the next side are what the last one gathered, so
  :math:`\frac{S}{n}\sum_i (e_i - 1) q_i \prod_{j>i} e_j`, the longest side last;
- k sides at once: the data in k parts, part p starting with side p and going on round; in each of k phases
  every side carries one part, and the slowest sets its time. With k equal rings this is
  :math:`\frac{n-1}{n}\frac{S}{2kB}`, all links of every chip busy; on the boxes of `tests/oracles` no
  more than a quarter over that where sides differ;
- all-to-all by dimension order, in k parts as above: a link of side i carries
  :math:`\frac{S}{4 l_i}\left(e_i - \frac{e_i \bmod 2}{e_i}\right)`, half of the data of half of the
  chips, which is the bound of the bisection; the slowest side sets the time.

A reduce-scatter is a gather backwards, an all-reduce both, a broadcast a scatter and a gather. Over several
slices each chip goes on with its part over its own port of the outer network.

References
----------
.. [1] P. Sack and W. Gropp, "Faster topology-aware collective algorithms through non-minimal
   communication," PPoPP 2012, doi:10.1145/2145816.2145823 (several parts over the dimensions of a torus).
.. [2] W. J. Dally and B. Towles, "Principles and Practices of Interconnection Networks," Morgan Kaufmann
   2004, chapters 3 and 8 (channel load, bisection, dimension-ordered routing).
.. [3] J. Austin et al., "How to Scale Your Model," 2025, chapters 2 and 3: bidirectional rings on TPU slices.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Steps = tuple[tuple[str, str], ...]


class Box(NamedTuple):
    """The chips of a group inside one slice, a number a dimension of the torus."""

    sides: tuple[Array, ...]  # Members along each dimension. [-]
    spans: tuple[Array, ...]  # Chips from the first member to the last, and the gap behind. [-]


def split_box(box: Box, shard: Array) -> tuple[Box, Box]:
    """Split a box into those of `shard` neighbours each, and the boxes of the replicas across them."""
    near_sides, near_spans, far_sides = [], [], []
    left: Array = np.asarray(shard, dtype=np.float64)
    for side, span in zip(box.sides, box.spans, strict=True):
        near = np.clip(left, 1.0, side)
        left = left / near
        near_sides.append(np.asarray(near))
        near_spans.append(np.asarray(span * near / side))
        far_sides.append(np.asarray(side / near))
    return Box(tuple(near_sides), tuple(near_spans)), Box(tuple(far_sides), box.spans)


def side_terms(box: Box, shape: tuple[int, ...], wraps: tuple[bool, ...]) -> tuple[dict[str, Array], Array]:
    """Return the terms of a box, longest side first, and how many sides have more than one chip. [-]

    `shape` are the chips of the slice along each dimension, `wraps` whether its ends are joined.
    """
    every = np.stack(np.broadcast_arrays(*box.sides, *box.spans))
    sides, spans = every[: len(shape)], every[len(shape) :]
    lengths = np.asarray(shape, dtype=np.float64).reshape(-1, *[1] * (sides.ndim - 1))
    joined = np.asarray(wraps, dtype=bool).reshape(lengths.shape)
    lanes = np.where(joined & (spans >= lengths), 2.0, 1.0)
    order = np.argsort(-sides, axis=0, kind="stable")
    terms: dict[str, Array] = {}
    for name, values in (("side", sides), ("lanes", lanes), ("crowd", spans / sides)):
        for index, value in enumerate(np.take_along_axis(values, order, axis=0), start=1):
            terms[f"{name}_{index}"] = value
    return terms, np.asarray((sides > 1.0).sum(axis=0))


def torus_steps(axes: tuple[int, ...]) -> Steps:
    """Return the steps of a box with so many sides longer than one chip; several numbers mean ``where``.

    Seconds a byte of the whole tensor and hops, of a gather with sides in turn or at once and of an all-to-all (``spread_…``).
    """
    every = range(1, max(axes) + 1)
    steps: list[tuple[str, str]] = []
    for i in every:
        steps.append((f"hops_{i}", f"where(lanes_{i} == 2, floor(side_{i} / 2), side_{i} - 1)"))
        steps.append((f"link_{i}_s_per_byte", f"crowd_{i} / (lanes_{i} * link_bytes_per_s)"))
    chips = " * ".join(f"side_{i}" for i in every)
    turns = [
        " * ".join([f"(side_{i} - 1)", *(f"side_{j}" for j in every if j > i), f"link_{i}_s_per_byte"])
        for i in every
    ]
    steps.append(("turn_s_per_byte", f"({' + '.join(turns)}) / ({chips})"))
    steps.append(("turn_hops", " + ".join(f"hops_{i}" for i in every)))
    once, hops = _at_once(axes[-1])
    for number in reversed(axes[:-1]):
        fewer, fewer_hops = _at_once(number)
        once = f"where(axes == {number}, {fewer}, {once})"
        hops = f"where(axes == {number}, {fewer_hops}, {hops})"
    steps.append(("once_s_per_byte", once))
    steps.append(("once_hops", hops))
    spread = [f"(side_{i} - side_{i} % 2 / side_{i}) / 4 * link_{i}_s_per_byte" for i in every]
    steps.append(("spread_s_per_byte", f"max({', '.join(spread)})" if len(spread) > 1 else spread[0]))
    steps.append(("spread_hops", " + ".join(f"hops_{i}" for i in every)))
    return tuple(steps)


def _at_once(number: int) -> tuple[str, str]:
    """Return seconds a byte and hops of a gather in as many parts as sides, each part along all of them."""
    sides = range(1, number + 1)
    phases = []
    for phase in range(number):
        parts = []
        for first in range(number):
            at = (first + phase) % number + 1
            before = [f"side_{(first + earlier) % number + 1}" for earlier in range(phase)]
            parts.append(" * ".join([f"(side_{at} - 1)", *before, f"link_{at}_s_per_byte"]))
        phases.append(f"max({', '.join(parts)})" if number > 1 else parts[0])
    chips = " * ".join(f"side_{i}" for i in sides)
    longest = f"max({', '.join(f'hops_{i}' for i in sides)})" if number > 1 else "hops_1"
    return (
        f"({' + '.join(phases)}) / ({number} * {chips})" if number > 1 else f"{phases[0]} / {chips}",
        f"{number} * {longest}" if number > 1 else longest,
    )
