"""Collectives on a torus against messages sent one by one over links between chips that hold real data.

The simulator knows chips and directed links, not collectives: a message waits for its data and for its
link, takes alpha + bytes / rate, and is then there. Data are sets of pieces (and, in a reduction, of
contributors), so that a wrong schedule fails on what the chips hold at the end, not only on its time.
"""

import heapq
from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytest

from costmodel.describe.hardware.cluster import Tier
from costmodel.physics.network.fabric import Fabric
from costmodel.physics.network.mesh import Group, build_mesh
from costmodel.physics.network.nccl import collective_time
from costmodel.physics.network.torus import Box

ALPHA, RATE = 3.0, 2.0
LINES = 10_000  # no side is a multiple of it: nothing wraps


def torus(shape, wrap_multiple=1, alpha=ALPHA):
    """Return a slice whose links carry `RATE`."""
    ports = 2 * len(shape)
    return Tier(
        name="ici",
        size=prod(shape),
        bandwidth_bytes_per_s=RATE * ports,
        latency_s=alpha,
        topology="torus",
        shape=shape,
        wrap_multiple=wrap_multiple,
    )


def whole(shape):
    """Return the group of all chips of a slice."""
    n = np.asarray(float(prod(shape)))
    sides = tuple(np.asarray(float(side)) for side in shape)
    return Group(n, (n,), box=Box(sides, sides))


def formula(primitive, size, shape, *, wraps, alpha=ALPHA, algorithm="auto"):
    tier = torus(shape, 1 if wraps else LINES, alpha)
    return float(collective_time(primitive, size, whole(shape), [tier], algorithm=algorithm).time_s)


class Links:
    """Directed links, one message at a time each; a message is sent when its data is there."""

    def __init__(self, alpha):
        self.alpha = alpha
        self.free = {}
        self.events = []
        self.count = 0
        self.time = 0.0

    def at(self, when, call):
        heapq.heappush(self.events, (when, self.count, call))
        self.count += 1

    def send(self, now, link, size, arrived):
        begin = max(now, self.free.get(link, 0.0))
        end = begin + self.alpha + size / RATE
        self.free[link] = end
        self.at(end, arrived)

    def run(self):
        while self.events:
            self.time, _, call = heapq.heappop(self.events)
            call(self.time)
        return self.time


def gather_line(links, start, ring, size_each, label, wraps, done):
    """Let chips along a side hand their blocks both ways until all have all; `ring` lists them in order."""
    e = len(ring)
    if e == 1:
        links.at(start, done)
        return
    got = [{i: {0, 1}} for i in range(e)]
    # Blocks go so far to each side; the block opposite on an even ring goes half each way.
    reach = {+1: e // 2, -1: (e - 1) // 2} if wraps else {+1: e - 1, -1: e - 1}
    split = wraps and e % 2 == 0
    missing = 2 * e * (e - 1)

    def halves(distance):
        return 1 if split and distance == e // 2 else 2

    def hand_on(now, chip, block, way, distance):
        nonlocal missing
        target = chip + way
        if not wraps and not 0 <= target < e:
            return
        far = e // 2 if split else reach[way]
        if distance > far:
            return
        target %= e
        parts = {0, 1} if halves(distance) == 2 else ({0} if way > 0 else {1})

        def arrived(when):
            nonlocal missing
            new = parts - got[target].setdefault(block, set())
            assert new == parts, "a piece came twice"
            got[target][block] |= parts
            missing -= len(parts)
            if missing == 0:
                assert all(len(g) == e and all(p == {0, 1} for p in g.values()) for g in got)
                done(when)
            hand_on(when, target, block, way, distance + 1)

        links.send(now, (label, ring[chip], ring[target], way), size_each * len(parts) / 2, arrived)

    def begin(now):
        for chip in range(e):
            for way in (+1, -1):
                hand_on(now, chip, chip, way, 1)

    links.at(start, begin)


def lines_of(shape, side):
    """Yield the chips along every line of a side."""
    others = [range(length) if i != side else [0] for i, length in enumerate(shape)]
    for fixed in product(*others):
        yield [tuple(at if i == side else c for i, c in enumerate(fixed)) for at in range(shape[side])]


def gather_in_turn(shape, size, *, wraps, alpha):
    """Gather the whole along the shortest side, then what there is along the next."""
    n = prod(shape)
    links, start, before = Links(alpha), 0.0, 1
    for side in sorted(range(len(shape)), key=lambda i: shape[i]):
        for line in lines_of(shape, side):
            gather_line(links, start, line, size / n * before, side, wraps, lambda _: None)
        start = links.run()
        before *= shape[side]
    return start


def test_a_gather_along_one_side():
    for wraps in [False, True]:
        for e in [2, 3, 4, 5, 8, 16, 64, 128]:
            wraps = wraps and e > 2
            links = Links(ALPHA)
            gather_line(links, 0.0, [(i,) for i in range(e)], 7.0, 0, wraps, lambda _: None)
            time = links.run()
            # A reduce-scatter is a gather that runs backwards; whole results are scattered, then gathered.
            passes = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2, "broadcast": 2, "reduce": 2}
            for primitive, times in passes.items():
                found = formula(primitive, 7.0 * e, (e,), wraps=wraps)
                assert found == pytest.approx(times * time, rel=1e-9), (primitive, e)


BOXES = [
    (2, 2),
    (4, 4),
    (3, 5),
    (4, 8),
    (16, 16),
    (4, 32),
    (2, 2, 2),
    (4, 4, 4),
    (4, 4, 8),
    (8, 8, 8),
    (3, 4, 5),
]


def test_a_gather_with_sides_in_turn():
    for wraps in [False, True]:
        for shape in BOXES:
            wraps = wraps and min(shape) > 2
            want = gather_in_turn(shape, 1e4, wraps=wraps, alpha=ALPHA)
            got = formula("all_gather", 1e4, shape, wraps=wraps, algorithm="sides-in-turn")
            assert got == pytest.approx(want, rel=1e-9)
            assert formula("all_gather", 1e4, shape, wraps=wraps) <= got * (1 + 1e-12)


def test_links_reach_what_their_profile_says():
    """Half of the rate by the constants of a link takes twice as long, bytes only."""
    half = Fabric(rate_factor=0.5)
    for primitive in ("all_gather", "all_to_all"):
        plain, slow = (
            collective_time(primitive, 1e4, whole((4, 4)), [replace(torus((4, 4)), fabric=fitted)])
            for fitted in (Fabric(), half)
        )
        assert float(slow.transfer_s) == pytest.approx(2 * float(plain.transfer_s), rel=1e-12)
        assert float(slow.latency_s) == float(plain.latency_s)


def test_slices_meet_over_every_chips_own_port():
    """Two slices of 4 x 4: gather inside, and half of a chip's sixteenth over its port of the network."""
    shape, port = (4, 4), 0.25
    slices = Tier(name="dcn", size=32, bandwidth_bytes_per_s=port, latency_s=5.0, base_latency_s=11.0)
    n = np.asarray(32.0)
    four = np.asarray(4.0)
    group = Group(n, (np.asarray(16.0), n), box=Box((four, four), (four, four)))
    cost = collective_time("all_gather", 3200.0, group, [torus(shape, alpha=0.0), slices])
    inside = formula("all_gather", 3200.0, shape, wraps=True, alpha=0.0)
    assert float(cost.transfer_s) == pytest.approx(inside + 3200 / 16 / 2 / port, rel=1e-12)
    assert float(cost.latency_s) == pytest.approx(11 + 5, rel=1e-12)
    both = collective_time("all_reduce", 3200.0, group, [torus(shape, alpha=0.0), slices])
    assert float(both.transfer_s) == pytest.approx(2 * float(cost.transfer_s), rel=1e-12)
    # Only across slices: a ring of two over one port.
    one = np.asarray(1.0)
    across = Group(np.asarray(2.0), (one, np.asarray(2.0)), box=Box((one, one), (one, one)))
    cost = collective_time("all_gather", 3200.0, across, [torus(shape, alpha=0.0), slices])
    assert float(cost.transfer_s) == pytest.approx(1600 / port, rel=1e-12)


@pytest.mark.parametrize("primitive", ["all_reduce", "all_gather", "all_to_all", "send_recv", "broadcast"])
def test_an_array_of_groups_is_priced_as_each_of_them(primitive):
    """One, two and three sides, one chip, and several slices in one array."""
    tp = np.asarray([1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 64.0, 1.0])
    dp = np.asarray([64.0, 32.0, 16.0, 8.0, 4.0, 1.0, 4.0, 256.0])
    tiers = [torus((4, 4, 4)), Tier(name="dcn", size=4096, bandwidth_bytes_per_s=0.25, latency_s=5.0)]
    sizes = np.asarray([1.0, 1e4])[:, None]

    def priced(tp, dp, name):
        mesh = build_mesh(tp=tp, cp=1, pp=1, dp=dp, ep=1, etp=1, tier_sizes=[64, 4096], shape=(4, 4, 4))
        group = mesh.groups()[name]
        return collective_time(primitive, sizes if np.ndim(tp) else sizes[:, 0], group, tiers)

    for name in ("tp", "dp"):
        grid = priced(tp, dp, name)
        for j in range(tp.size):
            cell = priced(float(tp[j]), float(dp[j]), name)
            np.testing.assert_allclose(
                np.broadcast_to(grid.time_s, (2, tp.size))[:, j], cell.time_s + np.zeros(2), rtol=1e-12
            )


def test_an_all_to_all_over_slices_leaves_its_share_on_the_links_of_each():
    """Two slices of eight in a ring: half of a chip's data stays inside, half leaves over its port.

    Inside, blocks of ten bytes go 1, 2, 3 and half of them 4 hops each way round: 80 bytes a link.
    """
    n, eight = np.asarray(16.0), np.asarray(8.0)
    group = Group(n, (eight, n), box=Box((eight,), (eight,)))

    def transfer_s(port):
        dcn = Tier(name="dcn", size=16, bandwidth_bytes_per_s=port)
        return float(collective_time("all_to_all", 160.0, group, [torus((8,), alpha=0.0), dcn]).transfer_s)

    assert transfer_s(1e9) == pytest.approx(80.0 / RATE, rel=1e-9)
    assert transfer_s(0.5) == pytest.approx(80.0 / 0.5, rel=1e-9)
