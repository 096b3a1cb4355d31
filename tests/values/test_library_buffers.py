"""Memory and SMs that libraries of communication take: DeepEP, NVSHMEM, the multicast buffers of NVLS."""

import numpy as np
import pytest
from round_jobs import MOE, SMALL, line, memory, near, price

import costmodel as cm
from costmodel.describe.recipe import list_recipes, load_recipe
from costmodel.physics.network.expert_dispatch import DISPATCHERS

MANY = {**MOE, "num_experts": 160}
DEEP = {"moe_dispatcher": "deep-ep"}
SLOT = 2 * 1024 + 8 + 128 * 16  # a token of 1,024 in bf16, its source, 128 experts, weights and scales
PIECE = 2**29
MIB = 2**20


@pytest.mark.parametrize(
    ("ranks", "node", "network"),
    [
        (1, 0, 0),
        (2, 10 * 2 * 256 * SLOT, 0),
        (8, 10 * 8 * 256 * SLOT, 0),
        (16, 10 * 8 * 288 * SLOT, PIECE),
        (32, 10 * 8 * 288 * SLOT, PIECE),
        # 10 channels, 16 nodes, 128 slots, to and fro: 169 MB.
        (160, 10 * 8 * 720 * SLOT, PIECE),
    ],
)
def test_buffers_of_a_dispatcher_of_own_kernels(ranks, node, network):
    est = price(MANY, switches=DEEP, gpus=ranks, layout=f"ep{ranks}", global_batch=ranks)
    held = memory(est, "buffer.ep.dispatcher")
    wanted = {"buffer.ep.dispatcher.node": node, "buffer.ep.dispatcher.network": network}
    assert held == near({name: size for name, size in wanted.items() if size})


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


@pytest.mark.parametrize(
    "recipe", [name for name in list_recipes() if load_recipe(name).moe.moe_dispatcher == "deep-ep"]
)
def test_every_recipe_with_deep_ep_counts_its_buffers_and_sms(recipe):
    """EP64 at hidden 7,168 with 20 SMs: 360 MiB for the node, one piece of 512 MiB for the network."""
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
    job = {"gpus": 8, "layout": "ep8", "global_batch": 64, "cluster": "h100-ndr", "recompute": again}
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
    products = sum(float(each.each_s) for each in passes if each.toll == "math")
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


@pytest.mark.parametrize(
    ("cluster", "layout", "sp", "size"),
    [
        ("h100-ndr", "tp8", False, 256 * MIB),  # 16 channels x 2 x 1 MiB for each of eight
        ("h100-ndr", "tp8", True, 0),  # gathers and scatters take rings
        ("h100-ndr", "tp4", False, 0),  # from five ranks on
        ("dgx-a100-hdr", "tp8", False, 0),  # its switch does not add
    ],
)
def test_multicast_buffers(cluster, layout, sp, size):
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
