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

from costmodel.bill.lines import Bill, TimeLine, broadcast_sum, sum_exposed, time_line

Array = NDArray[np.float64]


class Ports:
    """Seconds that messages keep each tier busy during one pass."""

    def __init__(self, lines: Iterable[TimeLine] = (), times: ArrayLike = 1.0) -> None:
        self._times = np.asarray(times, dtype=np.float64)
        # Lines of one group have the very same array of tiers: they are added up before it is looked at.
        self._by_tiers: dict[int, tuple[Array, list[Array]]] = {}
        for line in lines:
            self.take(line)

    def take(self, line: TimeLine, times: ArrayLike | None = None) -> None:
        """Add the messages of a line, so many of them in the pass."""
        if line.toll == "communication" and np.any(line.tier >= 0):
            each = line.each_s if times is None else np.asarray(line.each_s * np.asarray(times))
            self._by_tiers.setdefault(id(line.tier), (line.tier, []))[1].append(each)

    def busy_s(self, tier: Array) -> Array:
        """Seconds that the ports of `tier`, one a layout, are taken. [s]"""
        shared = [
            np.asarray(broadcast_sum(each) * same)
            for of, each in self._by_tiers.values()
            if np.any(same := of == tier)
        ]
        return np.asarray(self._times * broadcast_sum(shared))

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
        if line.toll == "communication" and np.any(line.tier >= 0):
            sent.setdefault((id(line.count), id(line.tier)), (line, []))[1].append(line.each_s)
    seconds = [(line.tier, np.asarray(line.count * broadcast_sum(each))) for line, each in sent.values()]
    known = sum_exposed(lines)
    made: list[TimeLine] = []
    for index, name in enumerate(bill.tier_names):
        on_tier = [
            part if np.all(same) else np.asarray(part * same)
            for tier, part in seconds
            if np.any(same := tier == index)
        ]
        busy = broadcast_sum(on_tier)
        if np.all(busy <= known):
            continue
        made.append(
            time_line(
                f"overhead.port.{name}",
                axis="compute",
                toll="communication",
                phase="step",
                count=1.0,
                formula="max(port_busy_s - known_s, 0)",
                terms={"port_busy_s": busy, "known_s": known},
                source="a port carries one message at a time: it is never busy for longer than the step lasts",
            )
        )
        known = np.asarray(known + made[-1].exposed_seconds)
    return made
