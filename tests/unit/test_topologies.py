"""Wirings of a tier: what a group gets of a GPU's bandwidth, by hand; records that cannot forget."""

import dataclasses

import numpy as np
import pytest

from costmodel.base.errors import CostModelError, LayoutError
from costmodel.describe.hardware.cluster import Tier
from costmodel.physics.network.expert_dispatch import moe_exchange_time
from costmodel.physics.network.mesh import Group
from costmodel.physics.network.nccl import collective_time
from costmodel.physics.network.topologies import TOPOLOGIES, topology

XGMI = Tier(name="xgmi", size=8, bandwidth_bytes_per_s=448e9, topology="full-mesh")
NET = Tier(name="net", size=1024, bandwidth_bytes_per_s=50e9)


def inside(ranks):
    n = np.asarray(float(ranks))
    return Group(n, (n,))


def transfer_s(primitive, size, group, *tiers):
    return float(collective_time(primitive, size, group, tiers).transfer_s)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_full_mesh_gives_a_group_the_wires_between_its_members(ranks):
    """MI300X: seven wires of 64 GB/s a GPU, one to each other; two GPUs have one of them."""
    wires = (ranks - 1) * 64e9
    size = 1e9
    sent = (ranks - 1) / ranks * size
    assert transfer_s("all_gather", size, inside(ranks), XGMI) == pytest.approx(sent / wires)
    assert transfer_s("all_reduce", size, inside(ranks), XGMI) == pytest.approx(2 * sent / wires)
    assert transfer_s("all_to_all", size, inside(ranks), XGMI) == pytest.approx(size / ranks / 64e9)
    assert transfer_s("send_recv", size, inside(ranks), XGMI) == pytest.approx(size / 64e9)
    copies = 1 - (1 - 1 / ranks) ** 2
    cost = moe_exchange_time(1e6, 100.0, 2.0, inside(ranks), (XGMI,))
    assert float(cost.transfer_s) == pytest.approx(1e8 * copies * (ranks - 1) / wires / 0.85)


def test_two_cores_of_a_chip_share_its_ports():
    """Thirty-two cores of Trainium on ports of 192 GB/s a chip: rings bring what both need once, pairs do not."""
    ports = Tier(name="ports", size=32, bandwidth_bytes_per_s=192e9, topology="paired")
    assert transfer_s("all_gather", 1e9, inside(32), ports) == pytest.approx(31 / 32 * 1e9 / 192e9)
    assert transfer_s("all_to_all", 1e9, inside(32), ports) == pytest.approx(31 / 32 * 1e9 / 96e9)
    assert transfer_s("send_recv", 1e9, inside(2), ports) == pytest.approx(1e9 / 192e9)


def test_arrays_of_groups_on_a_full_mesh_are_priced_as_each():
    ranks = np.asarray([1.0, 2.0, 4.0, 8.0, 16.0])
    members = np.minimum(ranks, 8.0)
    for primitive in ("all_gather", "all_reduce", "all_to_all", "send_recv"):
        grid = collective_time(primitive, 1e9, Group(ranks, (members, ranks)), (XGMI, NET))
        for at, (n, m) in enumerate(zip(ranks, members, strict=True)):
            one = collective_time(primitive, 1e9, Group(n, (m, n)), (XGMI, NET))
            assert float(grid.time_s[at]) == pytest.approx(float(one.time_s), rel=1e-12)


@pytest.mark.parametrize(("groups", "neighbours"), [(2, 1.0), (3, 0.5), (5, 0.5), (33, 0.5)])
def test_neighbouring_groups_of_a_dragonfly_meet_over_few_links_or_over_all_twice(groups, neighbours):
    leaf = Tier(name="switch", size=16, bandwidth_bytes_per_s=25e9)
    across = Tier(
        name="groups",
        size=16 * groups,
        bandwidth_bytes_per_s=25e9,
        topology="dragonfly",
        oversubscription=2.0,
    )
    ring = Group(np.asarray(2.0), (np.asarray(1.0), np.asarray(2.0)))
    assert transfer_s("all_gather", 1e9, ring, leaf, across) == pytest.approx(0.5e9 / (12.5e9 * neighbours))
    # From all groups to all, every global link is in use, once.
    n = np.asarray(16.0 * groups)
    everybody = Group(n, (np.asarray(16.0), n))
    away = (groups - 1) / groups * 1e9
    assert transfer_s("all_to_all", 1e9, everybody, leaf, across) == pytest.approx(away / 12.5e9)


def test_on_rails_messages_to_another_index_cross_the_node_first():
    """Eight nodes of eight, PXN: seven eighths leave, of which seven eighths were handed on inside."""
    slow = Tier(name="pcie", size=8, bandwidth_bytes_per_s=40e9)
    n = np.asarray(64.0)
    everybody = Group(n, (np.asarray(8.0), n))
    rails = Tier(name="rail", size=1024, bandwidth_bytes_per_s=400e9, topology="rails")
    carried = (63 / 64 + 56 / 64 * 7 / 8) * 1e9
    assert transfer_s("all_to_all", 1e9, everybody, slow, rails) == pytest.approx(carried / 40e9)
    switch = dataclasses.replace(rails, topology="switch")
    assert transfer_s("all_to_all", 1e9, everybody, slow, switch) == pytest.approx(63 / 64 * 1e9 / 40e9)
    # One GPU a node has nobody inside to hand on to; rings do not change rails.
    strided = Group(np.asarray(8.0), (np.asarray(1.0), np.asarray(8.0)))
    assert transfer_s("all_to_all", 1e9, strided, slow, rails) == pytest.approx(7 / 8 * 1e9 / 400e9)
    for one in (everybody, strided):
        assert transfer_s("all_gather", 1e9, one, slow, rails) == transfer_s(
            "all_gather", 1e9, one, slow, switch
        )


def test_wirings_have_a_source_and_an_unknown_one_is_refused():
    for name, record in TOPOLOGIES.items():
        assert record.name == name
        assert record.source
    with pytest.raises(CostModelError, match="did you mean 'torus'"):
        topology("tours")
    with pytest.raises(LayoutError, match="ici: a group on a torus needs to know its sides"):
        collective_time(
            "all_gather",
            1e9,
            inside(4),
            [Tier(name="ici", size=4, bandwidth_bytes_per_s=1e9, topology="torus", shape=(4,))],
        )


@pytest.mark.parametrize("name", ["switch", "node", "link", "ring", "tree", "send", "pair", "once"])
def test_a_tier_may_have_any_name(name):
    """Terms are called after tiers: one called as another term is priced as under a name of its own."""
    group = Group(np.asarray(16.0), (np.asarray(8.0), np.asarray(16.0)))
    for primitive in ("all_reduce", "all_to_all", "send_recv"):
        found = [
            float(collective_time(primitive, 1e8, group, (dataclasses.replace(XGMI, name=one), NET)).time_s)
            for one in ("xgmi", name)
        ]
        assert found[0] == found[1]
