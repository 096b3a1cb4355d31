"""Collectives over nested tiers: who shares which link, and what never happens."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.base.errors import LayoutError
from costmodel.describe.hardware.cluster import Tier
from costmodel.describe.hardware.hardware import load_cluster
from costmodel.describe.hardware.profile_schema import FabricConstants
from costmodel.physics.network.expert_dispatch import moe_exchange_time
from costmodel.physics.network.fabric import Fabric
from costmodel.physics.network.mesh import Group
from costmodel.physics.network.nccl import PRIMITIVES, collective_time

CLUSTERS = ("dgx-h100-ndr", "dgx-a100-hdr", "gb200-nvl72-ndr")
TIERS = {name: load_cluster(name).tiers for name in CLUSTERS}
# Links without fitted constants: what is left is the physics of shared ports.
PLAIN = (
    Tier(name="nvlink", size=8, bandwidth_bytes_per_s=400e9, kind="nvlink"),
    Tier(name="leaf", size=64, bandwidth_bytes_per_s=50e9, kind="ib"),
    Tier(name="spine", size=4096, bandwidth_bytes_per_s=50e9, oversubscription=5.0, kind="ib"),
)


def group(ranks, *members):
    """Build a group; tiers that are not given hold all ranks."""
    held = [np.asarray(m, dtype=float) for m in members]
    ranks = np.asarray(ranks, dtype=float)
    return Group(ranks, (*held, *[ranks] * (3 - len(held))))


def on(cluster, ranks, inner):
    """Build a group with `inner` members in each scale-up domain, all under one leaf."""
    tiers = TIERS[cluster]
    ranks = np.asarray(ranks, dtype=float)
    return Group(ranks, (np.asarray(inner, dtype=float), *[ranks] * (len(tiers) - 1))), tiers


def bus_rate(cost):
    return float(cost.wire_bytes / cost.transfer_s)


@settings(max_examples=150, deadline=None)
@given(
    cluster=st.sampled_from(CLUSTERS),
    primitive=st.sampled_from(PRIMITIVES),
    size=st.floats(1, 1e11),
    inner=st.sampled_from([1, 2, 4, 8]),
    nodes=st.sampled_from([1, 2, 3, 4, 64]),
    level=st.integers(0, 1),
    better=st.floats(1, 50),
)
def test_a_better_link_is_never_slower(cluster, primitive, size, inner, nodes, level, better):
    members, tiers = on(cluster, inner * nodes, inner)
    base = float(collective_time(primitive, size, members, tiers).time_s)
    rate = tiers[level].bandwidth_bytes_per_s
    changes = (
        {"bandwidth_bytes_per_s": rate * better},
        {"latency_s": tiers[level].latency_s / better},
        {"base_latency_s": tiers[level].base_latency_s / better},
        {"reduction_bandwidth_bytes_per_s": tiers[level].reduction_bandwidth_bytes_per_s * better},
    )
    for change in changes:
        changed = [replace(t, **change) if i == level else t for i, t in enumerate(tiers)]
        assert float(collective_time(primitive, size, members, changed).time_s) <= base * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(
    cluster=st.sampled_from(CLUSTERS),
    primitive=st.sampled_from(PRIMITIVES),
    size=st.floats(1, 1e11),
    inner=st.sampled_from([1, 2, 8]),
    nodes=st.sampled_from([1, 2, 16]),
    more=st.floats(1, 10),
)
def test_more_bytes_or_company_is_never_faster(cluster, primitive, size, inner, nodes, more):
    members, tiers = on(cluster, inner * nodes, inner)
    base = float(collective_time(primitive, size, members, tiers).time_s)
    assert float(collective_time(primitive, size * more, members, tiers).time_s) >= base * (1 - 1e-9)
    shared = collective_time(primitive, size, members, tiers, concurrent=more)
    assert float(shared.time_s) >= base * (1 - 1e-9)


def test_a_ring_that_leaves_the_node_keeps_one_hop_in_eight_off_nvlink():
    # 8 ports of 60 GB/s would carry more than NVLink's 400 x 8/7.
    fast = (PLAIN[0], replace(PLAIN[1], bandwidth_bytes_per_s=60e9), PLAIN[2])
    assert bus_rate(collective_time("all_gather", 1e12, group(32, 8, 32), fast)) == pytest.approx(
        400e9 * 8 / 7
    )


def test_unknown_names_are_refused():
    with pytest.raises(LayoutError, match="did you mean 'all_reduce'"):
        collective_time("allreduce", 1.0, *on("dgx-h100-ndr", 8, 8))
    with pytest.raises(LayoutError, match="does not apply here"):
        collective_time("all_reduce", 1.0, *on("dgx-a100-hdr", 8, 8), algorithm="nvls")


def test_the_file_model_has_every_constant_with_its_unit_and_default():
    """Defaults stand once, in `Fabric`; what a file says is in the unit that the name ends in."""
    assert FabricConstants().constants == Fabric()
    assert set(Fabric._fields) < set(FabricConstants.model_fields)
    for name in Fabric._fields:
        key = FabricConstants.model_fields[name].alias or name
        text = {"_bytes_per_s": "3 GB/s", "_s": "3 us"}
        ending = next((one for one in text if name.endswith(one)), "")
        value = {"_bytes_per_s": 3e9, "_s": 3e-6, "": 3.0}[ending]
        read = FabricConstants.model_validate({key: text[ending] if ending else 3})
        assert getattr(read.constants, name) == pytest.approx(value), name
    for wrong in ({"rate_factor": 0}, {"nvls_min_ranks": 1}, {"pipeline": "3 GB/s"}, {"pipeline": 3}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            FabricConstants.model_validate(wrong)


def test_dispatch_of_one_rank_costs_nothing_and_one_node_never_uses_the_nic():
    tiers = TIERS["dgx-h100-ndr"]
    alone = moe_exchange_time(4096, 7168, 8, on("dgx-h100-ndr", 1, 1)[0], tiers)
    assert float(alone.time_s) == 0
    inside = moe_exchange_time(4096, 7168, 8, on("dgx-h100-ndr", 8, 8)[0], tiers)
    assert float(inside.tier) == 0
    across = moe_exchange_time(4096, 7168, 8, on("dgx-h100-ndr", [8, 64], [8, 8])[0], tiers)
    assert float(across.time_s[0]) == float(inside.time_s)
    assert across.time_s[1] > across.time_s[0]


def test_gpus_that_a_token_may_go_to_are_those_of_its_nodes():
    """Sixteen GPUs, four a node, two experts, one node: 4 (1 - (3/4)^2) of four GPUs, but for its own, over slow wires."""
    tiers = (
        replace(PLAIN[0], bandwidth_bytes_per_s=1e9),
        *(replace(one, bandwidth_bytes_per_s=1e15) for one in PLAIN[1:]),
    )
    cost = moe_exchange_time(1000.0, 1000.0, 2.0, group(16, 4), tiers, node_limit=1.0)
    assert float(cost.transfer_s) == pytest.approx(1.75 * 15 / 16 * 1e6 / 0.85e9)
