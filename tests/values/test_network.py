"""Collectives on fabrics with one constant more at a time, and where the ranks of each axis sit."""

import math

import numpy as np
import pytest
from round_jobs import MIB, MOE, SMALL, cluster_file, each_us, line, near, price, ring_us, sent_bytes

from costmodel.physics.network.expert_dispatch import DISPATCH_LATENCY_S, moe_exchange_time
from costmodel.physics.network.mesh import Group, build_mesh, lies_in_boxes, slowest_tier, split_group
from costmodel.physics.network.torus import Box

GATHER = "tp.mlp.all_gather.forward"
SUM = "tp.mlp.all_reduce.forward"
SIZE = 2 * MIB
SIXTEEN_HEADS = {**SMALL, "num_heads": 16}


def machine(inner=None, outer=None, **more):
    """The round machine with a fabric block on its links."""
    return cluster_file(inner={"fabric": inner or {}}, outer={"fabric": outer or {}}, **more)


def flat(fabric=None):
    """A cluster of the outer link alone."""
    tiers = [{"name": "outer", "link": "round-outer", "size": {"value": 4096, "source": "assumed"}}]
    return cluster_file(outer={"fabric": fabric or {}}, cluster={"tiers": tiers, "gpus_per_node": 1})


def tensor_us(name, ranks, cluster, tokens=1024, model=SMALL):
    est = price(
        model,
        gpus=ranks,
        layout=f"tp{ranks}",
        cluster=cluster,
        seq_len=tokens,
        sequence_parallel=name == GATHER,
    )
    return each_us(est)[name]


def pipelined(wire, fill):
    """Chunks of the best size fill the pipeline for twice the root."""
    return wire + 2 * math.sqrt(fill * wire)


def test_every_constant_of_a_ring():
    """80 % of the rate, a fill of 4 us and 1 us a step, and each rank copies its quarter at 500 GB/s."""
    fabric = {"rate_factor": 0.8, "copy_bandwidth": "500 GB/s", "pipeline": "4 us", "pipeline_step": "1 us"}
    cluster = machine(fabric)
    wire = 3 / 4 * SIZE / 0.8e5
    copy = SIZE / 4 / 5e5
    assert tensor_us(GATHER, 4, cluster) == near(5 + 3 + pipelined(wire, 7) + copy)
    assert tensor_us(SUM, 4, cluster) == near(5 + 6 + pipelined(2 * wire, 7) + copy)


def test_protocols_of_a_ring():
    """3 us more a step for the full rate; without them 5 GB/s. Small messages take the latter."""
    cluster = flat({"simple_step": "3 us", "ll_bandwidth": "5 GB/s"})
    assert tensor_us(GATHER, 4, cluster, tokens=8) == near(20 + 30 + 3 / 4 * 16384 / 5e3)
    assert tensor_us(GATHER, 4, cluster) == near(20 + 3 * 13 + 3 / 4 * SIZE / 1e4)
    assert tensor_us(SUM, 4, cluster, tokens=8) == near(20 + 2 * 30 + 3 / 2 * 16384 / 5e3)
    assert tensor_us(SUM, 4, cluster) == near(20 + 2 * 39 + 3 / 2 * SIZE / 1e4)
    # Low latency may not be faster than the ring itself.
    fast = flat({"simple_step": "3 us", "ll_bandwidth": "50 GB/s"})
    assert tensor_us(GATHER, 4, fast) == near(20 + 30 + 3 / 4 * SIZE / 1e4)


def test_a_ring_over_nodes():
    """Sixteen ranks of four nodes: 15 steps, three of which cross; four ports carry each crossing."""
    est = price(SIXTEEN_HEADS, gpus=16, layout="tp16")
    wire = 15 / 16 * SIZE
    assert each_us(est)[GATHER] == near(20 + 12 + 3 * 10 + wire / 4e4)
    assert sent_bytes(est)[GATHER] == near(wire)
    assert float(line(est, GATHER).tier) == 1
    # Where the network is the faster one, three of four members stay inside and one goes out.
    quick = cluster_file(outer={"bandwidth": "1 TB/s"})
    inside = price(SIXTEEN_HEADS, gpus=16, layout="tp16", cluster=quick)
    assert each_us(inside)[GATHER] == near(20 + 12 + 30 + wire * 3 / 4 / 1e5)


def test_a_leaf_between_nodes_and_spine():
    """A NIC is one port to leaf and spine: the four of a node carry all of the ring, though half of it stays in the leaf."""
    sizes = {"inner": 4, "leaf": 8, "spine": 4096}
    tiers = [
        {
            "name": name,
            "link": f"round-{'inner' if name == 'inner' else 'outer'}",
            "size": {"value": size, "source": "assumed"},
        }
        for name, size in sizes.items()
    ]
    spine = tensor_us(GATHER, 16, cluster_file(cluster={"tiers": tiers}), model=SIXTEEN_HEADS)
    assert spine == near(20 + 12 + 3 * 10 + 15 / 16 * SIZE / 4e4)


# 2 MiB summed by a double tree: a chain of three in the node and log2(nodes) levels of 12 us, up and down.
@pytest.mark.parametrize(("ranks", "nodes"), [(8, 2), (16, 4)])
def test_a_tree_over_nodes(ranks, nodes):
    cluster = machine(outer={"tree_step": "12 us", "tree_rate_factor": 0.95})
    levels = math.log2(nodes)
    # Two nodes' ports carry half of the vector each way, those of more nodes all of it.
    port = (2 if nodes > 2 else 1) / 4e4 / 0.95
    tree = 20 + 2 * (3 + 12 * levels) + SIZE * max(2 / 1e5, port)
    ring = 20 + 2 * (ranks - nodes + 10 * (nodes - 1)) + 2 * (ranks - 1) / ranks * SIZE / 4e4
    assert tree < ring
    assert tensor_us(SUM, ranks, cluster, model=SIXTEEN_HEADS) == near(tree)
    slow = machine(outer={"tree_step": "12 us", "tree_rate_factor": 0.95, "tree_pipeline": "50 us"})
    filled = 20 + 2 * (3 + 12 * levels) + pipelined(SIZE * max(2 / 1e5, port), 50)
    assert tensor_us(SUM, ranks, slow, model=SIXTEEN_HEADS) == near(min(filled, ring))


SWITCH = {
    "in_network_reduction": True,
    "reduction_bandwidth": "200 GB/s",
    "fabric": {
        "nvls_rate_factor": 0.8,
        "nvls_pipeline": "1 us",
        "nvls_min_ranks": 4,
        "nvls_latency": "21 us",
    },
}


def test_a_switch_that_adds():
    """21 us, the vector sent and a fifth of it received, and 1 us a rank to fill."""
    cluster = cluster_file(inner=SWITCH)
    wire = SIZE * 1.25 / 1.6e5
    assert tensor_us(SUM, 4, cluster) == near(21 + pipelined(wire, 4))
    # Two ranks are too few for it, and small sums are faster by ring.
    assert tensor_us(SUM, 2, cluster) == near(ring_us(SIZE, passes=2))
    assert tensor_us(SUM, 4, cluster, tokens=8) == near(ring_us(16384, 4, passes=2))
    # From 2 MiB on the library takes it, faster or not.
    dear = cluster_file(inner={**SWITCH, "fabric": {**SWITCH["fabric"], "nvls_latency": "500 us"}})
    assert tensor_us(SUM, 4, dear) == near(500 + pipelined(wire, 4))


def test_a_tree_of_switches():
    """Two levels of 20.9 us over four nodes, 95 % of the switch's rate or the ports of the node."""
    outer = {"nvls_tree_rate_factor": 0.95, "nvls_tree_pipeline": "2 us", "tree_step": "1000 us"}
    cluster = cluster_file(inner=SWITCH, outer={"fabric": outer, "latency": "100 us"})
    wire = SIZE * max(1.25 / (1.6e5 * 0.95), 2 / 4e4)
    expected = 21 + 20 + 2 * 2 * 20.9 + pipelined(wire, 1 * 4 + 2)
    assert tensor_us(SUM, 16, cluster, model=SIXTEEN_HEADS) == near(expected)


def test_every_constant_of_an_all_to_all():
    """Over two nodes 33 us, 2 us for each of four peers there, a fill of 5 us, and a copy of an eighth."""
    outer = {
        "all_to_all_latency": "33 us",
        "all_to_all_message": "2 us",
        "all_to_all_pipeline": "5 us",
        "copy_bandwidth": "400 GB/s",
    }
    est = price(MOE, gpus=8, layout="ep8", global_batch=8, cluster=machine(outer=outer))
    sent = 2 * SIZE
    expected = 33 + 8 + pipelined(sent / 2 / 1e4, 5) + sent / 8 / 4e5
    assert each_us(est)["ep.moe.dispatch.forward"] == near(expected)


def test_every_constant_of_a_send():
    inner = {"send_latency": "9 us", "send_pipeline": "2 us", "send_rate_factor": 0.5}
    est = price(gpus=2, layout="pp2", global_batch=4, cluster=machine(inner))
    assert each_us(est)["pp.send_recv"] == near(9 + pipelined(SIZE / 0.5e5, 2))


def test_rate_of_a_dispatch():
    est = price(
        MOE,
        gpus=4,
        layout="ep4",
        global_batch=4,
        cluster=machine({"dispatch_rate_factor": 0.5}),
        switches={"moe_dispatcher": "deep-ep"},
    )
    copies = 4 * (1 - (3 / 4) ** 2) * 3 / 4
    assert each_us(est)["ep.moe.dispatch.forward"] == near(25 + SIZE * copies / 0.5e5)


def test_shared_and_slow_links():
    """A link of 50 % efficiency, twice oversubscribed, has a quarter of its rate."""
    tiers = [
        {"name": "inner", "link": "round-inner", "size": {"value": 4, "source": "assumed"}},
        {
            "name": "outer",
            "link": "round-outer",
            "size": {"value": 4096, "source": "assumed"},
            "oversubscription": {"value": 2, "source": "assumed"},
            "efficiency": {"value": 0.5, "source": "assumed"},
            "added_latency": {"value": "1 us", "source": "assumed"},
        },
    ]
    est = price(gpus=8, layout="tp4 pp2", global_batch=4, cluster=cluster_file(cluster={"tiers": tiers}))
    assert each_us(est)["pp.send_recv"] == near(31 + SIZE / 4 / 2.5e3)


N = 128_459_776


def test_experts_are_laid_over_their_own_axes():
    """Expert tensor ranks are neighbours: of four expert ranks two sit in a node, and a quarter of the rest goes out."""
    est = price(MOE, gpus=8, layout="ep4 etp2", global_batch=8)
    # Each sends half of its 4 MiB to the other node, through its own port.
    assert each_us(est)["ep.moe.dispatch.forward"] == near(30 + 2 * SIZE / 2 / 1e4)
    assert each_us(est)["ep.expert_tensor.all_gather.forward"] == near(ring_us(2 * 2 * SIZE))
    both = price(MOE, gpus=8, layout="ep2 etp2", global_batch=8)
    assert each_us(both)["ep.moe.dispatch.forward"] == near(6 + 2 * SIZE / 2 / 1e5)
    # Replicas of an expert are four ranks apart, in the other node.
    experts = 4 * 4 * 1536 * 1024 / 2
    assert each_us(both)["dp.expert.param_all_gather"] == near(ring_us(2 * experts, outer=True))


def test_stages_inside_replicas():
    """With stages next to each other a node holds two ranks of a stage: experts of four meet across nodes."""
    job = {"gpus": 16, "layout": "pp2 ep4", "global_batch": 16}
    usual = price(MOE, **job)
    inside = price(MOE, axis_order="tp cp pp dp", **job)
    assert each_us(usual)["ep.moe.dispatch.forward"] == near(6 + 3 / 4 * 2 * SIZE / 1e5)
    assert each_us(inside)["ep.moe.dispatch.forward"] == near(30 + 2 * SIZE / 2 / 1e4)
    assert each_us(usual)["pp.send_recv"] == near(30 + SIZE / 1e4)
    assert each_us(inside)["pp.send_recv"] == near(6 + SIZE / 1e5)


def test_axis_order():
    """Tensor ranks next to each other; context ranks four apart where they are, or the other way round."""
    job = {"gpus": 16, "layout": "tp4 cp4", "seq_len": 4096, "sequence_parallel": False}
    first, last = price(**job), price(axis_order="cp tp dp pp", **job)
    assert float(line(first, "tp.mlp.all_reduce.forward").tier) == 0
    assert float(line(first, "cp.attention.ring.forward").tier) == 1
    assert float(line(last, "tp.mlp.all_reduce.forward").tier) == 1
    assert float(line(last, "cp.attention.ring.forward").tier) == 0


def test_dense_gradients_are_summed_over_context_too():
    est = price(gpus=4, layout="cp2", global_batch=2, seq_len=2048, zero_stage=0)
    assert each_us(est, "dp.") == near({"dp.dense.grad_all_reduce": ring_us(4 * N, 4, passes=2)})


def test_tensor_ranks_that_do_not_fill_a_node():
    """Three tensor ranks in nodes of four: the next replica starts in the node, but no two of a group share one."""
    model = {**SMALL, "hidden_size": 1152, "num_heads": 9, "num_kv_heads": 9, "ffn_size": 3072}
    est = price(model, gpus=12, layout="tp3", global_batch=4, seq_len=1536)
    parameters = next(
        float(one.bytes[0]) for one in est.bill.memory_lines if one.name == "state.dense.parameters"
    )
    assert each_us(est)["dp.dense.param_all_gather"] == near(ring_us(parameters, 4, outer=True))


def test_nodes_that_a_job_does_not_fill():
    """Of nodes of six, a job of eight takes four in each of two."""
    tiers = [
        {"name": "inner", "link": "round-inner", "size": {"value": 6, "source": "assumed"}},
        {"name": "outer", "link": "round-outer", "size": {"value": 6000, "source": "assumed"}},
    ]
    est = price(gpus=8, global_batch=8, cluster=cluster_file(cluster={"tiers": tiers, "gpus_per_node": 6}))
    assert each_us(est)["dp.dense.param_all_gather"] == near(20 + 6 + 10 + 7 / 8 * 2 * N / 4e4)


def test_replicas_of_shard_groups_leave_the_node():
    est = price(gpus=8, global_batch=8, shard_group=4)
    assert each_us(est)["dp.dense.grad_replica_all_reduce"] == near(ring_us(N, passes=2, outer=True))
    pairs = price(gpus=8, global_batch=8, shard_group=2)
    # Two of the four replicas share a node: half of the sum crosses at two ports each.
    tree = 20 + 2 * (1 + 10) + 2 * N * max(2 / 1e5, 1 / 2e4)
    assert each_us(pairs)["dp.dense.grad_replica_all_reduce"] == near(tree)


def test_copies_of_experts_lie_on_the_ranks_of_context_too():
    """tp 2, cp 2, dp 4 are sixteen ranks; ep 4 with etp 2 leaves two copies of every expert."""
    mesh = build_mesh(tp=2, cp=2, pp=1, dp=4, ep=4, etp=2, tier_sizes=[8.0, 16.0])
    assert (float(mesh.etp.ranks), float(mesh.ep.ranks), float(mesh.edp.ranks)) == (2, 4, 2)
    assert float(mesh.grad.ranks) == 8


def test_ranks_that_no_tier_holds_together_cross_the_outermost():
    group = Group(np.asarray(16.0), (np.asarray(8.0), np.asarray(8.0)), "dp", None)
    assert float(slowest_tier(group)) == 1
    inside = Group(np.asarray(8.0), (np.asarray(8.0), np.asarray(8.0)), "dp", None)
    assert float(slowest_tier(inside)) == 0


def test_copies_of_a_token_by_the_nodes_that_it_may_use():
    """Four nodes of four, two experts a token; 10 GB/s a port between nodes is the slowest, 100 GB/s inside.

    Of all four nodes a token reaches 4 (1 - (3/4)^2) = 1.75, of two that it may use 2 (1 - (1/2)^2) = 1.5, of one one;
    three in four of them are others' than its own. No limit is that of none, beside limits too.
    """
    placed = price(MOE, gpus=16, layout="ep8", global_batch=16).priced.placed
    group = Group(np.asarray(16.0), (np.asarray(4.0), np.asarray(16.0)))
    tiers = placed.cluster.tiers
    limits = np.asarray([0.0, 2.0, 1.0])
    cost = moe_exchange_time(1000.0, 2000.0, 2.0, group, tiers, node_limit=limits)
    copies = np.asarray([1.75, 1.5, 1.0]) * 3 / 4
    rates = copies * 2e6 / (np.asarray(cost.made.value) - DISPATCH_LATENCY_S)
    assert rates == pytest.approx(float(rates[0]))
    for limit, together in zip(limits, np.asarray(cost.made.value), strict=True):
        alone = moe_exchange_time(1000.0, 2000.0, 2.0, group, tiers, node_limit=limit)
        assert float(alone.made.value) == near(together)


def test_groups_that_cover_boxes_of_chips():
    """Ranks are whole sides, and whole slices of their product."""
    for ranks, sides, whole in [
        (16.0, (2.0, 2.0, 4.0), True),
        (32.0, (2.0, 2.0, 4.0), True),  # two slices
        (24.0, (2.0, 2.0, 4.0), False),  # one slice and a half
        (3.0, (1.5, 2.0, 1.0), False),  # half a chip
        (4.0, (8.0, 1.0, 1.0), False),  # half a box
    ]:
        box = Box(tuple(map(np.asarray, sides)), tuple(map(np.asarray, sides)))
        group = Group(np.asarray(ranks), (np.asarray(ranks),), "tp", box)
        assert bool(lies_in_boxes([group])) is whole
        assert bool(lies_in_boxes([Group(np.asarray(7.0), (np.asarray(7.0),)), group])) is whole


def test_shards_and_their_replicas():
    """Of 16 ranks, 8 a node: shards of 4 stay inside, and of their four replicas two share a node."""
    whole = Group(np.asarray(16.0), (np.asarray(8.0), np.asarray(16.0)), "dp")
    inside, across = split_group(whole, 4)
    assert (inside.ranks, inside.members, inside.dim) == (4.0, (4.0, 4.0), "dp")
    assert (across.ranks, across.members, across.dim) == (4.0, (2.0, 4.0), "dp_replica")
    wide, one = split_group(whole, 64)
    assert (wide.ranks, wide.members) == (16.0, (8.0, 16.0))
    assert (one.ranks, one.members) == (1.0, (1.0, 1.0))
