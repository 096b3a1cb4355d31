"""Ports: the links of a GPU by fabric tier, each of which carries one message at a time.

What runs beside a pass hides behind its compute, but only where the port of its tier is not taken by
other messages of the same time: expert, context, pipeline and data parallelism share the NIC, tensor
parallelism shares NVLink with what experts exchange inside a node. Tiers are different ports, and work
side by side.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.bill.lines import Bill, TimeLine, anywhere, broadcast_sum, counted, time_line

Array = NDArray[np.float64]


class Ports:
    """Seconds that messages keep each tier busy during one pass."""

    def __init__(self, lines: Iterable[TimeLine] = (), times: ArrayLike = 1.0) -> None:
        self._times = np.asarray(times, dtype=np.float64)
        # Lines of one group have the very same array of tiers: they are added up before it is looked at.
        self._by_tiers: dict[int, tuple[Array, dict[tuple[int, ...], Array]]] = {}
        for line in lines:
            self.take(line)

    def take(self, line: TimeLine, times: ArrayLike | None = None) -> None:
        """Add the messages of a line, so many of them in the pass."""
        if _sends(line, known=id(line.tier) in self._by_tiers):
            each = line.each_s if times is None else counted(np.asarray(times), line.each_s)
            sums = self._by_tiers.setdefault(id(line.tier), (line.tier, {}))[1]
            sums[each.shape] = each if (held := sums.get(each.shape)) is None else np.asarray(held + each)

    def busy_s(self, tier: Array) -> Array:
        """Seconds that the ports of `tier`, one a layout, are taken. [s]"""
        shared = _on_tier(tier, ((of, sums.values()) for of, sums in self._by_tiers.values()))
        return counted(self._times, broadcast_sum(shared))

    def in_pieces(self, pieces: ArrayLike) -> Ports:
        """Return what of the messages falls on each of so many equal parts of the pass."""
        part = Ports(times=self._times / np.asarray(pieces))
        part._by_tiers = self._by_tiers
        return part

    def __bool__(self) -> bool:
        """Whether anything is sent at all."""
        return bool(self._by_tiers)


def time_lines(_: object, bill: Bill) -> list[TimeLine]:
    """Return what each tier is busy for beyond the step so far: no port works longer than the step lasts.

    Whatever is called hidden is hidden beside something that takes time; once everything on a tier together
    takes longer than the step, the rest of it is not. Tiers work at the same time, so that the slowest
    counts: each line adds what it needs beyond those before it.
    """
    lines = bill.time_lines
    sent: dict[tuple[int, int], tuple[TimeLine, list[Array]]] = {}
    for line in lines:
        if line.category == "communication":
            sent.setdefault((id(line.count), id(line.tier)), (line, []))[1].append(line.each_s)
    by_tiers: dict[int, tuple[Array, list[Array]]] = {}
    for line, each in sent.values():
        if not _sends(line):
            continue
        parts = by_tiers.setdefault(id(line.tier), (line.tier, []))[1]
        parts.append(counted(line.count, broadcast_sum(each)))
    seconds = [(tier, [broadcast_sum(parts)]) for tier, parts in by_tiers.values()]
    known = bill.step_time_s()
    # No tier is busier than all of them together.
    if not anywhere(broadcast_sum([busy_s for _, (busy_s,) in seconds]) > known):
        return []
    made: list[TimeLine] = []
    for index, name in enumerate(bill.tier_names):
        busy = broadcast_sum(_on_tier(index, seconds))
        if not anywhere(busy > known):
            continue
        made.append(
            time_line(
                f"overhead.port.{name}",
                axis="compute",
                category="communication",
                phase="step",
                count=1.0,
                formula="max(port_busy_s - known_s, 0)",
                terms={"port_busy_s": busy, "known_s": known},
                source="a port carries one message at a time: it is never busy for longer than the step lasts",
            )
        )
        known = np.maximum(known, busy)
    return made


def _sends(line: TimeLine, *, known: bool = False) -> bool:
    """Tell whether a line has messages on some tier, which may be `known` of others with its tiers."""
    return line.category == "communication" and (known or anywhere(line.tier >= 0))


def _on_tier(tier: ArrayLike, seconds: Iterable[tuple[Array, Iterable[Array]]]) -> list[Array]:
    """Return the sums of those seconds whose tier, one a layout, is this one; 0 in layouts where it is another. [s]"""
    found = []
    for of, each in seconds:
        same = np.asarray(of == tier)
        layouts = np.count_nonzero(same)
        if layouts:
            total = broadcast_sum(each)
            found.append(total if layouts == same.size else np.asarray(total * same))
    return found
