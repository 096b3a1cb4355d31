"""Collectives on a torus against every block's route, link by link: odd sides, sides of one chip, ends joined or not.

Chips have coordinates, groups the coordinates of their members. A block is carried hop by hop over directed links
between neighbours, members or not, and every link counts what it carries; the busiest sets the time of a phase. What
members hold is followed too, so that a schedule that leaves somebody without a block fails before its time is compared.
"""

from collections import Counter
from itertools import product
from math import prod

import numpy as np
import pytest
from test_torus_simulation import RATE, torus

from costmodel.physics.network.mesh import Group, build_mesh
from costmodel.physics.network.nccl import collective_time
from costmodel.physics.network.torus import Box


def chip(index, shape):
    """Return the coordinates of a chip, numbered along the first dimension first."""
    at = []
    for length in shape:
        at.append(index % length)
        index //= length
    return tuple(at)


def groups_of(shape, stride, size):
    """Return the members of every group of an axis, as coordinates."""
    n = prod(shape)
    return [
        [chip(block * stride * size + offset + stride * i, shape) for i in range(size)]
        for block in range(n // (stride * size))
        for offset in range(stride)
    ]


def walk(load, start, stop, side, way, length, size):
    """Carry `size` from coordinate to coordinate along a side; return nothing, count every link."""
    at = list(start)
    while at[side] != stop:
        load[(tuple(at), side, way)] += size
        at[side] = (at[side] + way) % length


def gather_along(load, held, members, side, shape, wraps):
    """Bring every block of a line of members to all of them, the shorter way round where there is one."""
    line = sorted(members, key=lambda m: m[side])
    e = len(line)
    if e == 1:
        return
    step = line[1][side] - line[0][side]
    ring = wraps[side] and step * e == shape[side]
    before = {m: dict(held[m]) for m in line}
    for i, source in enumerate(line):
        size = sum(before[source].values())
        if ring:
            # As far as half way round to each side; the member opposite gets half from either.
            ways = [(+1, e // 2, size), (-1, (e - 1) // 2, size)]
            if e % 2 == 0:
                ways = [(+1, e // 2 - 1, size), (-1, e // 2 - 1, size)]
                opposite = line[(i + e // 2) % e][side]
                # The halves that go on to the member opposite take the last hops alone.
                for way in (+1, -1):
                    last = list(source)
                    last[side] = line[(i + way * (e // 2 - 1)) % e][side]
                    walk(load, last, opposite, side, way, shape[side], size / 2)
        else:
            ways = [(+1, e - 1 - i, size), (-1, i, size)]
        for way, reach, carried in ways:
            if reach:
                walk(load, source, line[(i + way * reach) % e][side], side, way, shape[side], carried)
        for target in line:
            held[target].update(before[source])


def lines_along(members, side):
    """Return the members by line: those that differ along this side alone."""
    found = {}
    for member in members:
        found.setdefault((*member[:side], *member[side + 1 :]), []).append(member)
    return found.values()


def gathered_s(shape, wraps, groups, *, at_once):
    """Return the seconds of a gather in all groups together, phases in step, for shards of one byte."""
    extent = [len({m[side] for m in groups[0]}) for side in range(len(shape))]
    longest_first = sorted((side for side in range(len(shape)) if extent[side] > 1), key=lambda s: -extent[s])
    parts = len(longest_first) if at_once else 1
    held = [
        [{member: {member: 1.0 / parts} for member in members} for members in groups] for _ in range(parts)
    ]
    total = 0.0
    for phase in range(len(longest_first)):
        load = Counter()
        for part in range(parts):
            order = longest_first if at_once else longest_first[::-1]
            side = order[(part + phase) % len(order)]
            for members, mine in zip(groups, held[part], strict=True):
                for line in lines_along(members, side):
                    gather_along(load, mine, line, side, shape, wraps)
        total += max(load.values()) / RATE
    for of_part in held:
        for members, mine in zip(groups, of_part, strict=True):
            assert all(mine[m].keys() == set(members) for m in members), "somebody lacks a block"
    return total


def all_to_all_s(shape, wraps, groups):
    """Return the seconds of an all-to-all along one side after another, its parts along turned orders, by link load."""
    sides = [s for s in range(len(shape)) if len({m[s] for m in groups[0]}) > 1]
    slowest = 0.0
    for first in range(len(sides)):
        order = sides[first:] + sides[:first]
        load = Counter()
        for members in groups:
            for source, target in product(members, members):
                at = list(source)
                for side in order:
                    length = shape[side]
                    line = sorted({m[side] for m in members})
                    ring = wraps[side] and (line[1] - line[0]) * len(line) == length
                    away = (target[side] - at[side]) % length
                    if ring and 2 * away == length:
                        for way in (+1, -1):
                            walk(load, at, target[side], side, way, length, 0.5)
                    elif target[side] != at[side]:
                        way = +1 if (2 * away < length if ring else target[side] > at[side]) else -1
                        walk(load, at, target[side], side, way, length, 1.0)
                    at[side] = target[side]
        slowest = max(slowest, max(load.values()) / RATE)
    return slowest


SLICES = [
    # shape, a side whose ends are joined has a length that is a multiple of
    ((5,), 1),
    ((8,), 1),
    ((7,), 99),
    ((16,), 99),
    ((1, 6), 1),
    ((6, 1), 99),
    ((3, 5), 1),
    ((5, 3), 99),
    ((4, 16), 16),
    ((8, 16), 16),
    ((16, 16), 16),
    ((3, 1, 5), 1),
    ((1, 1, 9), 1),
    ((2, 2, 4), 99),
    ((2, 2, 4), 4),
    ((4, 4, 4), 4),
    ((4, 6, 4), 4),
    ((3, 4, 5), 5),
]


def every(shape):
    """Return the group of all chips, and its coordinates."""
    n = np.asarray(float(prod(shape)))
    sides = tuple(np.asarray(float(side)) for side in shape)
    return Group(n, (n,), box=Box(sides, sides)), groups_of(shape, 1, prod(shape))


def test_collectives_of_a_whole_slice():
    for shape, multiple in SLICES:
        tier = torus(shape, multiple, alpha=0.0)
        group, members = every(shape)
        n = float(prod(shape))
        for algorithm, at_once in (("sides-at-once", True), ("sides-in-turn", False)):
            want = gathered_s(shape, tier.wraps, members, at_once=at_once)
            for primitive, passes in (
                ("all_gather", 1),
                ("reduce_scatter", 1),
                ("all_reduce", 2),
                ("broadcast", 2),
            ):
                cost = collective_time(primitive, n, group, [tier], algorithm=algorithm)
                assert float(cost.transfer_s) == pytest.approx(passes * want, rel=1e-9), (
                    primitive,
                    algorithm,
                )
        cost = collective_time("all_to_all", n, group, [tier])
        assert float(cost.transfer_s) == pytest.approx(all_to_all_s(shape, tier.wraps, members), rel=1e-9)


LAYOUTS = [
    ((8, 4), 4, 1),
    ((16, 4), 2, 4),
    ((9, 3), 3, 1),
    ((6, 4), 2, 1),
    ((6, 4), 3, 2),
    ((4, 8, 2), 4, 1),
    ((4, 4, 4), 2, 1),
    ((5, 3, 2), 5, 1),
    ((1, 4, 6), 4, 2),
    ((12, 4), 3, 1),
]


def test_groups_of_every_axis_in_the_slice_at_once():
    """Groups of an axis lie beside or between each other, over one side or several, and all talk at the same time."""
    for multiple in [1, 4, 99]:
        for shape, tp, pp in LAYOUTS:
            n = prod(shape)
            dp = n // tp // pp
            mesh = build_mesh(tp=tp, cp=1, pp=pp, dp=dp, ep=1, etp=1, tier_sizes=[n], shape=shape)
            tier = torus(shape, multiple, alpha=0.0)
            compared = 0
            for group, stride, size in ((mesh.tp, 1, tp), (mesh.dp, tp, dp), (mesh.pp, tp * dp, pp)):
                if size == 1:
                    continue
                members = groups_of(shape, stride, size)
                for algorithm, at_once in (("sides-at-once", True), ("sides-in-turn", False)):
                    cost = collective_time("all_gather", float(size), group, [tier], algorithm=algorithm)
                    want = gathered_s(shape, tier.wraps, members, at_once=at_once)
                    assert float(cost.transfer_s) == pytest.approx(want, rel=1e-9), (stride, size, algorithm)
                cost = collective_time("all_to_all", float(size), group, [tier])
                assert float(cost.transfer_s) == pytest.approx(
                    all_to_all_s(shape, tier.wraps, members), rel=1e-9
                )
                compared += 1
            assert compared
