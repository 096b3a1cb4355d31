"""PAT and SHARP against NCCL's own cost model, written down again here from its constants.

NVIDIA/nccl src/graph/tuning.cc (2.30): time = latency + bytes / rate of each algorithm and protocol, the
least of which is taken. Microseconds and bytes a microsecond; groups of one GPU a node, and of eight.
"""

from dataclasses import replace
from math import log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import costmodel as cm
from costmodel.base.errors import LayoutError
from costmodel.describe.hardware.cluster import Tier
from costmodel.physics.network.fabric import NCCL_ALGORITHMS, Fabric
from costmodel.physics.network.mesh import Group
from costmodel.physics.network.nccl import collective_time

BASE = {"ll": 6.6, "simple": 8.4, "pat": 8.0}
NET = {"ll": 2.7, "simple": 14.0, "pat": 14.0}
RATE = 48e3  # bytes a microsecond of an NDR port
LL_RATE = 20.4e3


def nccl_gather(ranks, size):
    """Times of an all-gather or reduce-scatter of `size` bytes over one GPU a node."""
    ring_bytes = (ranks - 1) / ranks * size
    return {
        "ring": BASE["simple"] + (ranks - 1) * NET["simple"] + ring_bytes / RATE,
        "ll": BASE["ll"] + (ranks - 1) * NET["ll"] + ring_bytes / min(LL_RATE, RATE / 2),
        "pat": BASE["pat"] + log2(ranks) * NET["pat"] / 3.5 + 2.8 * ranks + size / (0.75 * RATE),
    }


FITTED = Fabric(
    simple_step_s=(NET["simple"] - NET["ll"]) * 1e-6,
    ll_bandwidth_bytes_per_s=LL_RATE * 1e6,
    tree_step_s=14e-6,
)
"""Of a link that behaves as the tuner thinks."""
INSIDE = Tier(name="nvlink", size=8, bandwidth_bytes_per_s=360e9, latency_s=0.8e-6, base_latency_s=5e-6)
OUTSIDE = Tier(
    name="net",
    size=2**20,
    bandwidth_bytes_per_s=RATE * 1e6,
    latency_s=NET["ll"] * 1e-6,
    base_latency_s=BASE["ll"] * 1e-6,
    fabric=FITTED,
)
SWITCHED = replace(INSIDE, in_network_reduction=True, reduction_bandwidth_bytes_per_s=300e9)
SHARP = replace(OUTSIDE, in_network_reduction=True, reduction_bandwidth_bytes_per_s=RATE * 1e6)


def group(ranks, inside=1):
    return Group(np.asarray(float(ranks)), (np.asarray(float(inside)), np.asarray(float(ranks))))


def name_of(cost):
    return NCCL_ALGORITHMS[int(cost.algorithm)]


@pytest.mark.parametrize("primitive", ["all_gather", "reduce_scatter"])
@settings(max_examples=200, deadline=None)
@given(ranks=st.integers(2, 8192), exponent=st.floats(10, 34))
def test_pat_is_taken_where_nccl_takes_it(primitive, ranks, exponent):
    size = 2.0**exponent
    wanted = nccl_gather(ranks, size)
    cost = collective_time(primitive, size, group(ranks), (INSIDE, OUTSIDE))
    pat = collective_time(primitive, size, group(ranks), (INSIDE, OUTSIDE), algorithm="pat")
    ours = 1e6 * float(pat.time_s)
    # The ring's bytes, (n - 1)/n of the buffer, stand for NCCL's whole buffer.
    assert ours == pytest.approx(wanted["pat"], rel=1e-9, abs=size / ranks / (0.75 * RATE))
    others = min(wanted["ring"], wanted["ll"])
    if others > 1.05 * wanted["pat"] + 3:
        assert name_of(cost) == "pat"
    if others < 0.95 * wanted["pat"] - 3:
        assert name_of(cost) != "pat"


def test_pat_needs_one_gpu_a_node_and_a_library_that_has_it():
    tiers = (INSIDE, OUTSIDE)
    with pytest.raises(LayoutError, match="does not apply"):
        collective_time("all_gather", 1e6, group(64, 8), tiers, algorithm="pat")
    with pytest.raises(LayoutError, match="does not apply"):
        collective_time("all_reduce", 1e6, group(64), tiers, algorithm="pat")
    assert name_of(collective_time("all_gather", 1e7, group(64), tiers)) == "pat"
    assert name_of(collective_time("all_gather", 1e7, group(64), tiers, without=("pat",))) == "ll"


@pytest.mark.parametrize("nodes", [2, 4, 16, 512])
def test_the_network_adds_up_behind_the_switch_of_a_node(nodes):
    """A port sends an eighth of the vector and receives an eighth of the sum: half of a tree's bytes, a fixed latency."""
    size = 8e9
    cost = collective_time("all_reduce", size, group(8 * nodes, 8), (SWITCHED, SHARP))
    assert name_of(cost) == "nvls-sharp"
    inside, outside = 9 / 8 * size / 300e9, size / (8 * RATE * 1e6)
    assert float(cost.transfer_s) == pytest.approx(max(inside, outside))
    assert 1e6 * float(cost.latency_s) == pytest.approx(20 + 18)
    tree = collective_time("all_reduce", size, group(8 * nodes, 8), (SWITCHED, SHARP), algorithm="nvls-tree")
    assert float(tree.transfer_s) == pytest.approx(max(inside, (1 if nodes == 2 else 2) * outside))


@pytest.mark.parametrize(("inside", "nodes"), [(1, 64), (4, 64), (8, 2)])
def test_without_a_switch_in_the_node_it_adds_up_behind_a_chain(inside, nodes):
    size = 1e9
    cost = collective_time(
        "all_reduce", size, group(inside * nodes, inside), (INSIDE, SHARP), algorithm="collnet-chain"
    )
    chain = 2 * size / 360e9 if inside > 1 else 0.0
    assert float(cost.transfer_s) == pytest.approx(max(chain, size / (inside * RATE * 1e6)))
    assert 1e6 * float(cost.latency_s) == pytest.approx(2 * (inside - 1) * 2.8 + 30)
    if inside == 1:
        ring = collective_time(
            "all_reduce", size, group(inside * nodes, inside), (INSIDE, SHARP), algorithm="ring"
        )
        assert float(ring.transfer_s) / float(cost.transfer_s) == pytest.approx(
            2 * (1 - 1 / (inside * nodes)), rel=0.02
        )


def test_a_slower_reduction_than_the_port_is_the_limit():
    slow = replace(SHARP, reduction_bandwidth_bytes_per_s=RATE * 1e6 / 4)
    cost = collective_time("all_reduce", 1e9, group(64), (INSIDE, slow), algorithm="collnet-chain")
    assert float(cost.transfer_s) == pytest.approx(4 * 1e9 / (RATE * 1e6))
    # A tree of 80 % of the ring's rate takes as much of what the switches add.
    fitted = Fabric(tree_rate_factor=0.8)
    cost = collective_time(
        "all_reduce", 1e9, group(64), (INSIDE, replace(slow, fabric=fitted)), algorithm="collnet-chain"
    )
    assert float(cost.transfer_s) == pytest.approx(4 * 1e9 / (0.8 * RATE * 1e6))


@pytest.mark.parametrize("algorithm", ["nvls-sharp", "collnet-chain"])
def test_the_network_adds_up_only_where_its_profile_says_so(algorithm):
    with pytest.raises(LayoutError, match="does not apply"):
        collective_time("all_reduce", 1e9, group(64, 8), (SWITCHED, OUTSIDE), algorithm=algorithm)
    with pytest.raises(LayoutError, match="does not apply"):
        collective_time("all_reduce", 1e9, group(8, 8), (SWITCHED, SHARP), algorithm=algorithm)
    shipped = cm.collective("all-reduce", "1 GB", ranks=64, cluster="dgx-h100-ndr")
    assert algorithm not in {price.algorithm for price in shipped.prices}


PROFILE = """
schema_version: 1
profile: cluster
name: sharp
title: H100 with switches that add up
inherit: dgx-h100-ndr
tiers:
  - name: nvlink
    link: nvlink4
    size: {value: 8, source: assumed}
  - name: spine
    link: ib-ndr
    size: {value: 65536, source: assumed}
    reduction_bandwidth: {value: 50 GB/s, source: assumed}
"""


@pytest.fixture
def sharp(tmp_path):
    (tmp_path / "sharp.yaml").write_text(PROFILE)
    return str(tmp_path / "sharp.yaml")


def algorithms(est, start):
    return {
        NCCL_ALGORITHMS[int(line.algorithm)] for line in est.bill.time_lines if line.name.startswith(start)
    }


def test_a_job_takes_what_its_profile_and_recipe_allow(sharp):
    job = {
        "model": "llama3-8b",
        "gpus": 64,
        "global_batch": 64,
        "seq_len": 4096,
        "zero_stage": 0,
        "layout": "tp1",
    }
    on = cm.estimate(cluster=sharp, **job)
    off = cm.estimate(cluster="dgx-h100-ndr", **job)
    assert algorithms(on, "dp.") == {"nvls-sharp"}
    assert "nvls-sharp" not in algorithms(off, "dp.")
    busy = [
        sum(float(line.seconds) for line in est.bill.time_lines if line.axis == "dp") for est in (on, off)
    ]
    assert busy[0] < 0.8 * busy[1]


@pytest.mark.parametrize("on", [True, False])
def test_gathers_of_one_gpu_a_node_take_pat_where_the_recipe_has_it(on):
    est = cm.estimate(
        model="llama3-8b",
        cluster="dgx-h100-ndr",
        gpus=4096,
        layout="tp8",
        global_batch=512,
        seq_len=4096,
        recipe="torchtitan",
        zero_stage=3,
        switches={"nccl_pat": on},
    )
    gathers = algorithms(est, "dp.layer.dense.param_all_gather")
    assert gathers == ({"pat"} if on else {"ll"} | (gathers - {"pat"}))
    assert ("pat" in gathers) is on


@pytest.mark.parametrize("exponent", [10, 20, 22, 26])
def test_a_grid_of_groups_is_priced_as_each_of_them(exponent):
    """Four ranks are too few for the switch, which eight take from 2 MiB on: neither is seen in the other."""
    ranks, inside = np.array([2.0, 4.0, 8.0, 16.0, 64.0]), np.array([2.0, 4.0, 8.0, 8.0, 8.0])
    dear = Fabric(nvls_latency_s=0.5, ll_bandwidth_bytes_per_s=1e11)
    tiers = (replace(SWITCHED, fabric=dear), OUTSIDE)
    grid = collective_time("all_reduce", 2.0**exponent, Group(ranks, (inside, ranks)), tiers)
    for at, (n, near) in enumerate(zip(ranks, inside, strict=True)):
        alone = collective_time("all_reduce", 2.0**exponent, group(n, near), tiers)
        assert grid.time_s[at] == pytest.approx(float(alone.time_s), rel=1e-12)
        assert int(grid.algorithm[at]) == int(alone.algorithm)
    names = [NCCL_ALGORITHMS[int(code)] for code in grid.algorithm]
    assert (names[2] == "nvls") == (exponent > 20)
    assert "nvls" not in names[:2]
