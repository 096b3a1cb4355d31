"""Memory and SMs that libraries of communication take: DeepEP, NVSHMEM, the multicast buffers of NVLS."""

import numpy as np
import pytest
from round_jobs import MOE, SMALL, line, memory, near, price

import costmodel as cm
from costmodel.describe.recipe import list_recipes, load_recipe
from costmodel.physics.network.expert_dispatch import DISPATCH_LATENCY_S, DISPATCHERS, moe_exchange_time

MANY = {**MOE, "num_experts": 160}
DEEP = {"moe_dispatcher": "deep-ep"}
SLOT = 2 * 1024 + 8 + 128 * 16  # a token of 1,024 in bf16, its source, 128 experts, weights and scales
PIECE = 2**29
MIB = 2**20


def test_buffers_of_a_dispatcher_of_own_kernels():
    for ranks, node, network in [
        (1, 0, 0),
        (2, 10 * 2 * 256 * SLOT, 0),
        (8, 10 * 8 * 256 * SLOT, 0),
        (16, 10 * 8 * 288 * SLOT, PIECE),
        (32, 10 * 8 * 288 * SLOT, PIECE),
        # 10 channels, 16 nodes, 128 slots, to and fro: 169 MB.
        (160, 10 * 8 * 720 * SLOT, PIECE),
    ]:
        est = price(MANY, switches=DEEP, gpus=ranks, layout=f"ep{ranks}", global_batch=ranks)
        held = memory(est, "buffer.ep.dispatcher")
        wanted = {"buffer.ep.dispatcher.node": node, "buffer.ep.dispatcher.network": network}
        assert held == near({name: size for name, size in wanted.items() if size})


def test_connections_that_an_all_to_all_opens():
    """Of 32 channels to each peer, 14 MiB each: 3.288 GB for the seven others of a node."""
    for ranks, machine, peers in [
        (1, {}, 0),
        (2, {}, 1),
        (4, {}, 3),
        (16, {}, 3),  # nodes of four
        (8, {"cluster": "dgx-h100-ndr"}, 7),
        (32, {"cluster": "dgx-h100-ndr"}, 7),
        (32, {"cluster": "gb200-nvl72-ndr"}, 7),  # no more than were measured
        (8, {"cluster": "mi300x-roce400"}, 0),  # a link to each and no switch
    ]:
        few = {**MOE, "num_experts": 32}
        job = {"gpus": ranks, "layout": f"ep{ranks}", "global_batch": ranks, **machine}
        est = price(few, switches={"communicator_bytes": 1.0}, **job)
        name = "reserve.ep.connections"
        assert memory(est, name) == near({name: peers * 469_762_048} if peers else {})


def test_what_opens_no_connections_to_every_peer():
    eight = {"gpus": 8, "layout": "ep8", "global_batch": 8}
    for switches in (
        {"communicator_bytes": 0.0},  # XLA sends from where things lie
        {"communicator_bytes": 1.0, "moe_dispatcher": "all-gather"},
        {"communicator_bytes": 1.0, "moe_dispatcher": "deep-ep"},
    ):
        assert memory(price(MOE, switches=switches, **eight), "reserve.ep") == {}
    dense = price(switches={"communicator_bytes": 1.0}, gpus=8, layout="tp2", global_batch=8)
    assert memory(dense, "reserve.ep") == {}


def test_a_wide_model_needs_more_than_one_piece_of_the_heap():
    """Hidden 16,384 over 160 ranks: 10 x 20 x 128 x 2 slots of 34 kB are 1.8 GB, four pieces."""
    wide = {**MANY, "hidden_size": 16384, "num_heads": 128}
    est = price(wide, switches=DEEP, gpus=160, layout="ep160", global_batch=160)
    slot = 2 * 16384 + 8 + 128 * 16
    assert 3 * PIECE < 10 * 20 * 128 * 2 * (slot + 16) < 4 * PIECE
    assert memory(est, "buffer.ep.dispatcher.network")["buffer.ep.dispatcher.network"] == near(4 * PIECE)
    twice = price(wide, switches={**DEEP, "dispatch_sms": 26}, gpus=160, layout="ep160", global_batch=160)
    assert 4 * PIECE < 13 * 20 * 128 * 2 * (slot + 16) < 5 * PIECE
    assert memory(twice, "buffer.ep.dispatcher.network")["buffer.ep.dispatcher.network"] == near(5 * PIECE)


@pytest.mark.parametrize("dispatcher", DISPATCHERS)
def test_only_own_kernels_have_buffers_and_sms(dispatcher):
    one = DISPATCHERS[dispatcher]
    est = price(MANY, switches={"moe_dispatcher": dispatcher}, gpus=16, layout="ep16", global_batch=16)
    assert bool(memory(est, "buffer.ep.dispatcher")) == (not one.dispatch) == bool(one.sms)
    assert memory(price(SMALL, switches={"moe_dispatcher": dispatcher}), "buffer.ep.dispatcher") == {}


DEEPSEEK = {"model": "deepseek-v3", "cluster": "h800-cx7", "gpus": 512, "global_batch": 4096, "seq_len": 4096}


def test_every_recipe_with_deep_ep_counts_its_buffers_and_sms():
    """EP64 at hidden 7,168 with 20 SMs: 360 MiB for the node, one piece of 512 MiB for the network."""
    for recipe in [name for name in list_recipes() if load_recipe(name).moe.moe_dispatcher == "deep-ep"]:
        est = cm.estimate(**DEEPSEEK, layout="tp1 ep64", recipe=recipe)
        sms = load_recipe(recipe).moe.dispatch_sms or 20
        held = memory(est, "buffer.ep.dispatcher")
        assert held["buffer.ep.dispatcher.node"] == near(sms / 2 * 8 * 288 * (2 * 7168 + 8 + 2048))
        assert held["buffer.ep.dispatcher.network"] == near(
            np.ceil(sms / 2 * 8 * 128 * 2 * (2 * 7168 + 8 + 2048 + 16) / PIECE) * PIECE
        )
        set_aside = load_recipe(recipe).overlap.reserved_sm_share
        beside = line(est, "ep.moe.moe.dispatch.forward").terms
        if set_aside:
            assert set_aside == pytest.approx(20 / 132, rel=0.02)
            assert beside["contention"] == 0.0
        else:
            assert (beside["dispatch_sms"], beside["num_sms"]) == (sms, 132)


@pytest.mark.parametrize("again", ["none", "selective"])
def test_products_run_on_the_other_sms_while_an_exchange_hides(again):
    """What matrix products and attention take of all passes grows by 20 of 132 SMs for as long as it is hidden."""
    job = {"gpus": 8, "layout": "ep8", "global_batch": 64, "cluster": "dgx-h100-ndr", "recompute": again}
    est = price({**MOE, "expert_ffn_size": 4096}, switches={**DEEP, "ep_overlap": True}, **job)
    one = line(est, "ep.moe.dispatch.forward")
    passes = [
        each
        for each in est.bill.time_lines
        if each.axis == "compute"
        and each.phase in ("forward", "backward", "backward_weight", "recompute")
        and not each.name.startswith(("compute.embedding", "compute.head"))
    ]
    total = sum(float(each.each_s) for each in passes)
    products = sum(float(each.each_s) for each in passes if each.category == "math")
    assert 0 < products < total
    busy = float(one.each_s)
    hidden = busy * (1 - float(one.terms["least_share"]))
    assert float(one.terms["window_s"]) > busy
    taken = 20 / 132 * products / total
    assert float(one.exposed_each_s) == near(busy - hidden + taken * hidden)
    more = price(
        {**MOE, "expert_ffn_size": 4096}, switches={**DEEP, "ep_overlap": True, "dispatch_sms": 24}, **job
    )
    longer = line(more, "ep.moe.dispatch.forward")
    assert float(longer.exposed_each_s) == near(busy - hidden + 24 / 20 * taken * hidden)


def test_a_device_with_fewer_sms_hides_nothing():
    job = {"gpus": 4, "layout": "ep4", "global_batch": 32}
    est = price({**MOE, "expert_ffn_size": 4096}, switches={**DEEP, "ep_overlap": True}, **job)
    one = line(est, "ep.moe.dispatch.forward")
    share = float(one.terms["products_s"]) / float(one.terms["pass_s"])
    busy, least = float(one.each_s), float(one.terms["least_share"])
    assert float(one.exposed_each_s) == near(busy * (least + share * (1 - least)))


def test_multicast_buffers():
    for cluster, layout, sp, size in [
        ("h100-ndr", "tp8", False, 256 * MIB),  # 16 channels x 2 x 1 MiB for each of eight
        ("h100-ndr", "tp8", True, 0),  # gathers and scatters take rings
        ("h100-ndr", "tp4", False, 0),  # from five ranks on
        ("dgx-a100-hdr", "tp8", False, 0),  # its switch does not add
    ]:
        est = cm.estimate(
            model="llama3-8b",
            cluster=cluster,
            gpus=8,
            layout=layout,
            global_batch=8,
            seq_len=8192,
            sequence_parallel=sp,
            zero_stage=1,
        )
        assert memory(est, "reserve.nvls.tp") == ({"reserve.nvls.tp": near(size)} if size else {})


def test_multicast_buffers_of_a_rack_have_at_most_32_parts():
    est = cm.estimate(
        model="llama3-8b",
        cluster="gb200-nvl72-ndr",
        gpus=64,
        layout="tp1",
        global_batch=64,
        seq_len=8192,
        zero_stage=0,
    )
    assert memory(est, "reserve.nvls") == {"reserve.nvls.grad": near(16 * 2 * MIB * 32)}


def test_layouts_side_by_side_have_the_buffers_of_each():
    ranks = np.asarray([1.0, 2.0, 16.0, 32.0])
    many = price(MANY, switches=DEEP, gpus=32, global_batch=32, ep=ranks)
    for index, ep in enumerate(ranks):
        one = price(MANY, switches=DEEP, gpus=32, global_batch=32, ep=float(ep))
        assert float(np.broadcast_to(many.memory_bytes_per_gpu, ranks.shape)[index]) == near(
            float(one.memory_bytes_per_gpu)
        )


@pytest.mark.parametrize(("ranks", "domains"), [(8, 2), (32, 8)])
def test_hybrid_ep_keeps_room_for_every_token_of_the_group(ranks, domains):
    """Each rank's tokens in bf16 with the probabilities of a domain's experts, and what other domains send."""
    est = price(
        {**MOE, "num_experts": 64},
        switches={"moe_dispatcher": "hybrid-ep"},
        gpus=ranks,
        layout=f"ep{ranks}",
        global_batch=ranks,
    )
    tokens, experts = float(est.priced.placed.shard.tokens_sp), 64 / domains
    kept = 2 * 1024 + 4 * experts
    wanted = {
        "buffer.ep.dispatcher.node": ranks * tokens * kept,
        "buffer.ep.dispatcher.network": (domains - 1) * tokens * kept,
    }
    assert memory(est, "buffer.ep.dispatcher") == near({name: size for name, size in wanted.items() if size})


def test_hybrid_ep_of_its_own_example():
    """Hybrid-EP_Implementation.md: EP64 of 256 experts, 4,096 tokens of 7,168 in one NVLink domain take 3.5 GiB and 256 MiB."""
    job = {"model": "deepseek-v3", "gpus": 64, "global_batch": 64, "seq_len": 4096, "layout": "ep64"}
    switches = {"moe_dispatcher": "hybrid-ep"}
    rack = cm.estimate(**job, cluster="gb200-nvl72-ndr", switches=switches)
    assert memory(rack, "buffer.ep.dispatcher") == near(
        {"buffer.ep.dispatcher.node": (3.5 * 1024 + 256) * MIB}
    )
    # Eight nodes of eight: 32 MiB of probabilities, and 392 + 3.5 MiB for those of the other seven.
    nodes = cm.estimate(**job, cluster="dgx-h100-ndr", switches=switches)
    assert memory(nodes, "buffer.ep.dispatcher") == near(
        {
            "buffer.ep.dispatcher.node": (3.5 * 1024 + 32) * MIB,
            "buffer.ep.dispatcher.network": (392 + 3.5) * MIB,
        }
    )


# deepseek-ai/DeepEP, branch hybrid-ep, docs/README_Hybrid-EP.md, kernels alone in bf16: GB/s of copies, those that stay
# among them, of 4,096 tokens of 7,168, each to 8 experts at random.
HYBRID_TABLE = [
    # cluster, ranks, domains or ranks that copies go to, dispatch and combine
    ("gb200-nvl72-ndr", 8, 8, (764.03, 737.13)),
    ("gb200-nvl72-ndr", 16, 16, (706.95, 666.26)),
    ("gb200-nvl72-ndr", 32, 32, (642.23, 605.15)),
    ("hgx-b200-ndr", 8, 8, (734.95, 673.84)),
    ("dgx-h100-ndr", 16, 2, (76.80, 68.00)),
    ("dgx-h100-ndr", 32, 4, (54.50, 56.40)),
    ("dgx-h100-ndr", 64, 8, (50.55, 51.03)),
]


@pytest.mark.parametrize(("cluster", "ranks", "targets", "rates"), HYBRID_TABLE)
def test_hybrid_ep_against_its_published_table(cluster, ranks, targets, rates):
    model = cm.estimate(
        model="qwen3-30b-a3b",
        cluster=cluster,
        gpus=ranks,
        layout=f"ep{ranks}",
        global_batch=ranks,
        seq_len=4096,
    )
    placed = model.priced.placed
    one = DISPATCHERS["hybrid-ep"]
    cost = moe_exchange_time(
        4096.0, 2.0 * 7168, 8.0, placed.mesh.ep, placed.cluster.tiers, network_rate=one.network_rate
    )
    copies = targets * (1.0 - (1.0 - 1.0 / targets) ** 8)
    rate = 4096 * 7168 * 2 * copies / (float(cost.made.value) - DISPATCH_LATENCY_S) / 1e9
    # Kernels alone; with copies and launches (its column "Torch API") a fifth to a quarter less on NVLink.
    assert rate == pytest.approx(np.mean(rates), rel=0.16)

    # Between nodes a rate of 0.93 of DeepEP's, inside one the same.
    deep = moe_exchange_time(4096.0, 2.0 * 7168, 8.0, placed.mesh.ep, placed.cluster.tiers)
    moved_s = [float(each.made.value) - DISPATCH_LATENCY_S for each in (deep, cost)]
    assert moved_s[0] / moved_s[1] == pytest.approx(0.93 if cluster == "dgx-h100-ndr" else 1.0)
