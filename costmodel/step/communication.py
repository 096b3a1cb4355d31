"""Messages: the line of each, what of it hides, and the ports that it shares.

What runs beside a pass hides behind its compute, but only where the port of its tier is not taken by
other messages of the same time: expert, context, pipeline and data parallelism share the NIC, tensor
parallelism shares NVLink with what experts exchange inside a node. Tiers are different ports, each of
which carries one message at a time, and work side by side.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from costmodel.bill.lines import (
    Array,
    Axis,
    Bill,
    Phase,
    TimeLine,
    any_nonzero,
    broadcast_sum,
    counted,
    time_line,
)
from costmodel.physics.network.mesh import Group
from costmodel.step.placed_job import PlacedJob

NCCL_SOURCE = "Hockney alpha-beta, least over NCCL's (algorithm, protocol); NVIDIA/nccl src/graph/tuning.cc"

HIDDEN = (
    "exposed_s = max(busy_s - window_s, least_share * busy_s); exposed_s + contention * (busy_s - exposed_s)"
)
"""What the critical path pays for ``busy_s`` of communication beside a window of compute.

The part beyond the window is exposed, at least `least_share` of it (the first and last piece of a
pipelined exchange cannot hide); the hidden part slows the compute that it runs beside by the share
of SMs and bandwidth that it takes.
"""
HIDDEN_BESIDE = f"free_s = max(window_s - port_busy_s, 0); {HIDDEN.replace('window_s', 'free_s')}"
"""The same where other messages take the port for `port_busy_s` of the window."""
HIDDEN_WHILE_OTHERS_WAIT = HIDDEN_BESIDE.replace("window_s", "window_s + waited_s", 1)
"""The same where the pass has waited for `waited_s` on other ports already, which leaves this one more time."""


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
        known = id(line.tier) in self._by_tiers
        if line.category == "communication" and (known or any_nonzero(line.tier >= 0)):
            each = line.each_s if times is None else counted(np.asarray(times), line.each_s)
            sums = self._by_tiers.setdefault(id(line.tier), (line.tier, {}))[1]
            sums[each.shape] = each if (so_far := sums.get(each.shape)) is None else np.asarray(so_far + each)

    def busy_s(self, tier: ArrayLike) -> Array:
        """Seconds that the ports of `tier`, one a layout, are taken. [s]"""
        found = []
        for of, sums in self._by_tiers.values():
            same = np.asarray(of == tier)
            layouts = np.count_nonzero(same)
            if layouts:
                total = broadcast_sum(sums.values())
                found.append(total if layouts == same.size else np.asarray(total * same))
        return counted(self._times, broadcast_sum(found))

    def in_pieces(self, pieces: ArrayLike) -> Ports:
        """Return what of the messages falls on each of so many equal parts of the pass."""
        part = Ports(times=self._times / np.asarray(pieces))
        part._by_tiers = self._by_tiers
        return part

    def __bool__(self) -> bool:
        """Whether anything is sent at all."""
        return bool(self._by_tiers)


def port_lines(_: object, bill: Bill) -> list[TimeLine]:
    """Return what each tier is busy for beyond the step so far: no port works longer than the step lasts.

    Whatever is called hidden is hidden beside something that takes time; once everything on a tier together
    takes longer than the step, the rest of it is not. Tiers work at the same time, so that the slowest
    counts: each line adds what it needs beyond those before it.
    """
    sent: dict[tuple[int, int], tuple[TimeLine, list[Array]]] = {}
    for line in bill.time_lines:
        if line.category == "communication":
            sent.setdefault((id(line.count), id(line.tier)), (line, []))[1].append(line.each_s)
    ports, together = Ports(), []
    for line, each in sent.values():
        of_count = line._replace(each_s=broadcast_sum(each))
        ports.take(of_count, line.count)
        if any_nonzero(line.tier >= 0):
            together.append(of_count.seconds)
    known = bill.step_time_s()
    # No tier is busier than all of them together.
    if not any_nonzero(broadcast_sum(together) > known):
        return []
    made: list[TimeLine] = []
    for index, name in enumerate(bill.tier_names):
        busy = ports.busy_s(index)
        if not any_nonzero(busy > known):
            continue
        made.append(
            time_line(
                f"overhead.port.{name}",
                axis="compute",
                category="communication",
                phase="step",
                formula="max(port_busy_s - known_s, 0)",
                terms={"port_busy_s": busy, "known_s": known},
                source="a port carries one message at a time: it is never busy for longer than the step lasts",
            )
        )
        known = np.maximum(known, busy)
    return made


def hidden_behind(
    overlapping: Ports | None, tier: Array, waited_s: Array | None = None
) -> tuple[str, dict[str, Array]]:
    """Return what of a message hides, as text, and the numbers of the messages `overlapping` it on its tier."""
    if not overlapping:
        return HIDDEN, {}
    taken = {"port_busy_s": overlapping.busy_s(tier)}
    if waited_s is None:
        return HIDDEN_BESIDE, taken
    return HIDDEN_WHILE_OTHERS_WAIT, {**taken, "waited_s": waited_s}


def communication_line(
    placed: PlacedJob,
    name: str,
    *,
    axis: Axis,
    phase: Phase,
    primitive: str,
    size_bytes: ArrayLike,
    group: Group,
    window_s: ArrayLike = 0.0,
    overlapping: Ports | None = None,
    waited_s: Array | None = None,
    least_share: ArrayLike = 0.0,
    share: ArrayLike = 1.0,
    count: ArrayLike = 1.0,
) -> TimeLine:
    """Price one collective over `group` and make its line; what fits into `window_s` is hidden.

    Messages `overlapping` it in the same window leave it what they do not take of its port, and what the pass has
    `waited_s` for them is time for this one. `share` scales the whole line (a recomputed pass that only
    some layouts run). A group of one costs nothing.
    """
    cost = placed.messages.collective(primitive, size_bytes, group)
    part = np.asarray(share, dtype=np.float64)
    hidden, taken = hidden_behind(overlapping, cost.tier, waited_s)
    made = placed.message_time(cost).then(
        "collective_s",
        f"busy_s = share * collective_s; {hidden}",
        share=part,
        window_s=placed.window_s(axis, window_s),
        least_share=least_share,
        contention=placed.contention,
        **taken,
    )
    return time_line(
        name,
        axis=axis,
        category="communication",
        phase=phase,
        group=group.dim,
        count=count,
        made=made,
        bytes_each=cost.wire_bytes * part,
        tier=cost.tier,
        algorithm=cost.algorithm,
        source=NCCL_SOURCE,
    )


class Sent(NamedTuple):
    """A collective of a block: in which share of layouts, or how often, each pass makes it, and what it hides behind."""

    label: str
    primitive: str
    size_bytes: Array
    forward: ArrayLike = 0.0
    recompute: ArrayLike = 0.0
    backward: ArrayLike = 0.0
    forward_window_s: ArrayLike = 0.0
    """Of a recomputed pass as well."""
    backward_window_s: ArrayLike = 0.0


def collective_lines(
    placed: PlacedJob, axis: Axis, name: str, group: Group, sent: Iterable[Sent], least_share: ArrayLike = 0.0
) -> list[TimeLine]:
    """Return the lines of those collectives over `group` that some layout makes, pass by pass."""
    every = list(sent)
    passes: tuple[Phase, ...] = ("forward", "recompute", "backward")
    return [
        communication_line(
            placed,
            f"{axis}.{name}.{one.label}.{phase}",
            axis=axis,
            phase=phase,
            primitive=one.primitive,
            size_bytes=one.size_bytes,
            group=group,
            window_s=one.backward_window_s if phase == "backward" else one.forward_window_s,
            least_share=least_share,
            share=getattr(one, phase),
        )
        for phase in passes
        for one in every
        if any_nonzero(getattr(one, phase))
    ]


def exposed_sum(lines: Iterable[TimeLine]) -> Array:
    """Exposed seconds of one execution of each line, added up. [s]"""
    return broadcast_sum([line.exposed_each_s for line in lines])
