"""Expert parallelism: dispatch and combine by each dispatcher, and the operators of a layer of experts."""

import pytest
from round_jobs import (
    MIB,
    MOE,
    computed_us,
    counts,
    each_us,
    exposed_us,
    hidden_us,
    memory,
    moved_us,
    near,
    price,
    product_us,
    ring_us,
    sent_bytes,
    total_us,
    weight_us,
)

import costmodel as cm

# Four ranks of 1,024 tokens, two experts each; every token visits two of eight.
FOUR = {"gpus": 4, "layout": "ep4", "global_batch": 4}
# Logits that take less than the gradients of a layer.
FEW_WORDS = {**MOE, "vocab_size": 64}
SENT = 4 * MIB  # 1,024 tokens, twice, 1,024 wide, in 16 bits
# All eight experts for every token, and hardly any work: nothing hides.
BUSY = {**MOE, "top_k": 8, "expert_ffn_size": 64}
EIGHT = {"gpus": 8, "layout": "ep8", "global_batch": 8}
DISPATCH, COMBINE = "ep.moe.dispatch.", "ep.moe.combine."


def exchange_us(size, ranks=4):
    """All to all in a node: 6 us, and all but the own part at 100 GB/s."""
    return 6 + (ranks - 1) / ranks * size / 1e5


def across_us(size):
    """All to all of eight in two nodes: 30 us, and half of it through the port of each GPU."""
    return 30 + size / 2 / 1e4


def test_every_line_of_a_layer_of_experts():
    est = price(MOE, **FOUR)
    grouped = {"groups": 2, "fixed": 3}
    experts = {name: us for name, us in each_us(est, "compute.").items() if ".moe." in name}
    assert experts == near(
        {
            "compute.moe.router.forward": product_us(1024, 8, 1024),
            "compute.moe.router.backward_input": product_us(1024, 1024, 8),
            "compute.moe.router.backward_weight": weight_us(1024, 8, 1024),
            # 20 of the 24 bytes in vectors; top-k goes over each of the 8 scores 18 times, 2.07e9 a second on the one SM.
            "compute.moe.routing.forward": moved_us(20 * 1024 * 8, 72) + 18 * 1024 * 8 / 2.07e3,
            "compute.moe.routing.backward": moved_us(24 * 1024 * 8, 36),
            # Gradients of router and experts in, their sum out.
            "compute.moe.branches.backward": moved_us(6 * MIB),
            "compute.moe.permute.forward": moved_us(8 * 2 * MIB, 2),
            "compute.moe.permute.backward": moved_us(8 * 2 * MIB, 2),
            # Two experts of 1,024 rows each: gate and up 1,024 wide, down 512 deep.
            "compute.moe.experts.fc1.forward": product_us(1024, 1024, 1024, **grouped),
            "compute.moe.experts.fc1.backward_input": product_us(1024, 1024, 1024, **grouped),
            "compute.moe.experts.fc1.backward_weight": weight_us(1024, 1024, 1024, **grouped),
            "compute.moe.experts.activation.forward": moved_us(6 * MIB),
            "compute.moe.experts.activation.backward": computed_us(1.2 * MIB),
            "compute.moe.experts.fc2.forward": product_us(1024, 1024, 512, **grouped),
            "compute.moe.experts.fc2.backward_input": product_us(1024, 512, 1024, **grouped),
            "compute.moe.experts.fc2.backward_weight": weight_us(1024, 1024, 512, **grouped),
            "compute.moe.unpermute.forward": moved_us(8 * 2 * MIB, 2),
            "compute.moe.unpermute.backward": moved_us(8 * 2 * MIB, 2),
        }
    )
    assert each_us(est, "compute.mlp.norm.forward") == near(
        {"compute.mlp.norm.forward": computed_us(0.45 * MIB)}
    )
    # Permuted tokens 4, gate and up 4, their product 2, and scores in fp32.
    assert memory(est, "activation.moe", "activation.mlp") == near(
        {"activation.moe": 4 * (10 * MIB + 4 * 1024 * 8), "activation.mlp": 4 * 4 * MIB}
    )


def test_kernels_of_the_router():
    """PyTorch's top-k goes over all scores once, and once more where groups are chosen by theirs; fused ones do not."""
    for switches, groups, kernels, chosen in [
        ({"router_fusion": True}, {}, 31, 0),
        ({"router_fusion": True, "moe_dispatcher": "deep-ep"}, {}, 17, 0),
        ({"moe_dispatcher": "deep-ep"}, {}, 17 + 72 - 31, 1),
        ({}, {}, 72, 1),
        ({}, {"expert_groups": 4, "groups_per_token": 2}, 72, 2),
    ]:
        times = each_us(price({**MOE, **groups}, switches=switches, **FOUR), "compute.moe.routing")
        assert times["compute.moe.routing.forward"] == near(
            moved_us((24 - 4 * chosen) * 1024 * 8, kernels) + 18 * chosen * 1024 * 8 / 2.07e3
        )
        assert times["compute.moe.routing.backward"] == near(moved_us(24 * 1024 * 8, kernels / 2))


def test_branches_of_a_layer_are_added_by_kernels():
    """A shared expert's output is added to theirs, and its gradient is a third; a compiler adds where it computes."""
    shared = {**MOE, "shared_expert_ffn_size": 512}
    times = each_us(price(shared, **FOUR), "compute.moe.branches")
    assert times == near(
        {
            "compute.moe.branches.forward": moved_us(6 * MIB),
            "compute.moe.branches.backward": moved_us(12 * MIB, 2),
        }
    )
    assert each_us(price(shared, switches={"compiled": True}, **FOUR), "compute.moe.branches") == {}


def test_every_line_of_the_exchange():
    est = price(MOE, **FOUR)
    once = exchange_us(SENT)
    times = {f"{way}{phase}": once for way in (DISPATCH, COMBINE) for phase in ("forward", "backward")}
    assert each_us(est, "ep.") == near(times)
    assert exposed_us(est, "ep.") == near(times)
    assert sent_bytes(est, "ep.") == near(dict.fromkeys(times, 0.75 * SENT))
    assert counts(est, "ep.") == near(dict.fromkeys(times, 4))
    assert memory(price(FEW_WORDS, **FOUR), "buffer.ep") == near({"buffer.ep.exchange": 2 * SENT})


def test_an_exchange_adds_to_the_peak_what_the_logits_leave():
    """Logits of 1,000 words: 10 B each and their input of 2 MiB, of which gradients of the experts fill 8 MiB."""
    name, left = "buffer.ep.exchange", 10 * 1024 * 1000 + 2 * MIB - 8 * MIB
    words = {**MOE, "vocab_size": 1000}
    assert memory(price(words, **FOUR), name) == near({name: 2 * SENT - left})
    assert memory(price(MOE, **FOUR), name) == {}
    # A stage without a head has its layers alone.
    stages = price(words, gpus=8, layout="ep4 pp2", global_batch=8)
    assert memory(stages, name) == near({name: [2 * SENT, 2 * SENT - left]})


def test_the_busiest_rank_sets_the_pace():
    for switches, load in [
        ({"moe_imbalance": 1.5}, 1.5),
        ({"moe_capacity_factor": 1.25}, 1.25),
        ({"moe_imbalance": 2, "moe_capacity_factor": 1.25}, 1.25),
    ]:
        est = price(MOE, switches=switches, **FOUR)
        assert each_us(est, "ep.")[f"{DISPATCH}forward"] == near(exchange_us(load * SENT))
        times = each_us(est, "compute.moe.")
        assert times["compute.moe.permute.forward"] == near(moved_us(load * 8 * 2 * MIB, 2))
        assert times["compute.moe.experts.fc2.forward"] == near(
            product_us(load * 1024, 1024, 512, groups=2, fixed=3)
        )
        few = price(FEW_WORDS, switches=switches, **FOUR)
        assert memory(few, "buffer.ep") == near({"buffer.ep.exchange": 2 * load * SENT})


@pytest.mark.parametrize(("hidden", "least"), [(1.0, 0.25), (0.6, 1 - 0.75 * 0.6)])
def test_exchanges_behind_another_micro_batch(hidden, least):
    """A quarter of a forward and a backward pass stands beside each of four, for three of four micro-batches.

    The first has no other; between nodes a share never hides.
    """
    switches = {"ep_overlap": True, "ep_hidden_between_nodes": hidden}
    est = price(BUSY, switches=switches, gpus=8, layout="ep8", global_batch=32)
    layer = ("compute.attention.", "compute.mlp.", "compute.moe.")
    forward = total_us(est, "forward", *layer)
    backward = sum(total_us(est, phase, *layer) for phase in ("backward", "backward_weight", "recompute"))
    busy = across_us(4 * SENT)
    each = hidden_us(busy, 0.75 * (forward + backward) / 4, least)
    names = (f"{way}{phase}" for way in (DISPATCH, COMBINE) for phase in ("forward", "backward"))
    assert exposed_us(est, "ep.") == near(dict.fromkeys(names, each))


@pytest.mark.parametrize(("layout", "hidden"), [("ep8", 0.6), ("ep8", 1.0), ("ep4", 0.6)])
def test_exchanges_that_fit_behind_another_micro_batch(layout, hidden):
    """Wide experts: of three quarters, between nodes a share hides, inside a node all; what is recomputed helps."""
    switches = {"ep_overlap": True, "ep_hidden_between_nodes": hidden, "selective_modules": ["core_attn"]}
    est = price(
        {**MOE, "expert_ffn_size": 4096},
        switches=switches,
        recompute="selective",
        gpus=8,
        layout=layout,
        global_batch=32,
    )
    across = layout == "ep8"
    busy = across_us(SENT) if across else exchange_us(SENT)
    assert exposed_us(est, DISPATCH) == near(
        dict.fromkeys(
            (f"{DISPATCH}forward", f"{DISPATCH}backward"),
            hidden_us(busy, 1e9, 1 - 0.75 * (hidden if across else 1.0)),
        )
    )


def test_recomputed_passes_are_beside_an_exchange_too():
    switches = {
        "ep_overlap": True,
        "ep_hidden_between_nodes": 1.0,
        "selective_modules": ["core_attn", "moe_act"],
    }
    est = price(BUSY, switches=switches, recompute="selective", gpus=8, layout="ep8", global_batch=256)
    layer = ("compute.attention.", "compute.mlp.", "compute.moe.")
    phases = ("forward", "backward", "backward_weight", "recompute")
    both = sum(total_us(est, phase, *layer) for phase in phases)
    alone = 1 / 32
    assert exposed_us(est, "ep.")[f"{DISPATCH}backward"] == near(
        hidden_us(across_us(4 * SENT), (1 - alone) * both / 4, alone)
    )


@pytest.mark.parametrize("again", [False, True])
def test_exchanges_of_a_pair_divide_its_compute_once(again):
    """Dispatch in 8 bits has about half the window of combine; exchanges that run again take their part."""
    switches = {
        "ep_overlap": True,
        "moe_dispatcher": "deep-ep",
        "selective_modules": ["moe" if again else "mlp_act"],
    }
    est = price(
        MOE,
        switches=switches,
        recompute="selective",
        precision="fp8-block",
        gpus=8,
        layout="ep8",
        global_batch=32,
    )
    windows = {
        line.name: float(line.terms["window_s"])
        for line in est.bill.time_lines
        if line.name.startswith("ep.")
    }
    layer = ("compute.attention.", "compute.mlp.", "compute.moe.")
    phases = ("forward", "backward", "backward_weight", "recompute")
    both = sum(total_us(est, phase, *layer) for phase in phases)
    assert len(windows) == (6 if again else 4)
    assert 1e6 * sum(windows.values()) == near(0.75 * both)
    assert windows[f"{DISPATCH}forward"] / windows[f"{COMBINE}forward"] == near(1.03 / 2)


def test_recomputed_experts_get_their_tokens_again():
    for recompute, modules, again in [
        ("none", ["moe"], False),
        ("selective", ["moe"], True),
        ("selective", ["mlp"], False),
        ("full", ["mlp"], True),
    ]:
        est = price(MOE, recompute=recompute, switches={"selective_modules": modules}, **FOUR)
        found = {name: us for name, us in each_us(est, "ep.").items() if name.endswith("recompute")}
        once = exchange_us(SENT)
        assert found == near({f"{DISPATCH}recompute": once, f"{COMBINE}recompute": once} if again else {})


def test_gathered_tokens():
    """Every rank gets the 2 MiB of all four, and returns its part of the sum."""
    est = price(MOE, switches={"moe_dispatcher": "all-gather"}, **FOUR)
    whole = ring_us(4 * 2 * MIB, 4)
    assert each_us(est, "ep.") == near(
        {f"{way}{phase}": whole for way in (DISPATCH, COMBINE) for phase in ("forward", "backward")}
    )


def copies(domains, usable, top_k=2):
    """Other domains that hold an expert of a token."""
    return usable * (1 - (1 - 1 / usable) ** top_k) * (1 - 1 / domains)


@pytest.mark.parametrize("limit", [0, 1])
def test_tokens_sent_once_to_each_node(limit):
    """25 us, and 85 % of the rate: inside a node one copy a GPU, across nodes one a node."""
    switches = {"moe_dispatcher": "deep-ep", "node_limited_routing": limit, "moe_imbalance": 1.5}
    inside = price(MOE, switches=switches, **FOUR)
    sent = 2 * MIB * copies(4, 4)
    assert each_us(inside, "ep.")[f"{DISPATCH}forward"] == near(1.5 * (25 + sent / 0.85e5))
    assert sent_bytes(inside, "ep.")[f"{DISPATCH}forward"] == near(sent)
    across = price(MOE, switches=switches, **EIGHT)
    sent = 2 * MIB * copies(2, 1 if limit else 2)
    assert sent == (MIB if limit else 1.5 * MIB)
    assert each_us(across, "ep.")[f"{DISPATCH}forward"] == near(1.5 * (25 + sent / 0.85e4))
    assert exposed_us(across, "ep.") == near(each_us(across, "ep."))


@pytest.mark.parametrize(("groups", "nodes"), [(4, 2), (8, 1), (16, 1)])
def test_groups_that_a_model_routes_to(groups, nodes):
    """Eight nodes: a token keeps to one group, which is two nodes of four groups, or at most one of more."""
    model = {**MOE, "num_experts": 32, "expert_groups": groups, "groups_per_token": 1}
    est = price(model, switches={"moe_dispatcher": "deep-ep"}, gpus=32, layout="ep32", global_batch=32)
    assert sent_bytes(est, "ep.")[f"{DISPATCH}forward"] == near(2 * MIB * copies(8, nodes))


def test_dispatch_in_eight_bits():
    """The quantised input goes out with its scales; results and gradients stay in 16 bits."""
    est = price(
        MOE, precision="fp8-delayed", switches={"moe_dispatcher": "deep-ep", "ep_overlap": True}, **EIGHT
    )
    tokens = 1024 * 1024 * copies(2, 2)
    assert sent_bytes(est, "ep.") == near(
        {
            f"{DISPATCH}forward": 1.03 * tokens,
            f"{COMBINE}forward": 2 * tokens,
            f"{DISPATCH}backward": 2 * tokens,
            f"{COMBINE}backward": 2 * tokens,
        }
    )
    usual = price(MOE, precision="fp8-delayed", **FOUR)
    assert sent_bytes(usual, "ep.")[f"{DISPATCH}forward"] == near(0.75 * SENT)
    # What combine sends back is dispatched: its gradients may go in 8 bits too, those of dispatch never.
    both = {"moe_dispatcher": "deep-ep", "moe_dispatches_gradients_in_fp8": True}
    back = sent_bytes(price(MOE, precision="fp8-delayed", switches=both, **EIGHT), "ep.")
    assert back[f"{COMBINE}backward"] == near(1.03 * tokens)
    assert back[f"{DISPATCH}backward"] == near(2 * tokens)


def test_sequence_parallel_ranks_send_their_slice():
    est = price(MOE, gpus=4, layout="tp2 ep4", global_batch=2)
    assert each_us(est, "ep.")[f"{DISPATCH}forward"] == near(exchange_us(SENT / 2))
    assert each_us(est, "compute.moe.permute.forward") == near(
        {"compute.moe.permute.forward": moved_us(8 * MIB, 2)}
    )


def test_experts_split_over_two_ranks():
    """Expert tensor parallelism: two ranks gather each other's 2,048 copies, and do half of the width."""
    est = price(MOE, gpus=4, layout="ep2 etp2", global_batch=4, recompute="full")
    times = each_us(est, "ep.expert_tensor.")
    assert times == near(
        {
            f"ep.expert_tensor.{way}.{phase}": ring_us(2 * 4096 * 1024)
            for way in ("all_gather", "reduce_scatter")
            for phase in ("forward", "recompute", "backward")
        }
    )
    # Four experts on this rank, 1,024 rows each, half of 512 wide.
    assert each_us(est, "compute.moe.experts.fc2.forward") == near(
        {"compute.moe.experts.fc2.forward": product_us(1024, 1024, 256, groups=4, fixed=3)}
    )
    assert each_us(est, "ep.moe.dispatch.forward") == near({f"{DISPATCH}forward": exchange_us(SENT, 2)})
    few = price(FEW_WORDS, gpus=4, layout="ep2 etp2", global_batch=4, recompute="full")
    assert memory(few, "buffer.ep") == near({"buffer.ep.exchange": 2 * 2 * 4096 * 1024})
    alone = price(FEW_WORDS, gpus=2, layout="etp2", global_batch=2)
    assert memory(alone, "buffer.ep") == near({"buffer.ep.exchange": 2 * 2 * 4096 * 1024})
    assert set(each_us(alone, "ep.")) == {
        f"ep.expert_tensor.{way}.{phase}"
        for way in ("all_gather", "reduce_scatter")
        for phase in ("forward", "backward")
    }


def test_experts_one_by_one():
    """Without a grouped product the host issues each: eight experts, three products of two kernels."""
    host = {"launch_s": 9e-4}
    layer = ("compute.attention.", "compute.mlp.", "compute.moe.")
    for switches, loop in (({"grouped_gemm": False}, 8), ({"grouped_launch_share": 0.5}, 4), ({}, 1)):
        est = price(MOE, switches={**host, **switches})
        # Attention 6, norm, router, 72 of routing, 2 permute, fc1, activation, fc2, 2 unpermute, residual.
        kernels = 6 + 1 + 1 + 72 + 2 + loop + 1 + loop + 2 + 1
        assert each_us(est, "compute.layer.host.forward") == near(
            {"compute.layer.host.forward": 900 * kernels - total_us(est, "forward", *layer)}
        )


def test_shared_experts_and_their_gate():
    model = {**MOE, "shared_expert_ffn_size": 1024}
    times = each_us(price(model, gpus=2, layout="tp2"), "compute.moe.shared")
    assert times["compute.moe.shared.fc1.forward"] == near(product_us(1024, 1024, 1024))
    assert times["compute.moe.shared.fc2.forward"] == near(product_us(1024, 1024, 512))
    assert times["compute.moe.shared.activation.forward"] == near(moved_us(6 * MIB / 2))


def test_biases_of_experts_in_a_chain():
    """Two kernels of the forward pass and three of the backward one go element by element, on one SM."""
    model = {**MOE, "linear_bias": True}
    times = each_us(price(model, switches={"expert_bias_chain": True}), "compute.moe.experts.bias")
    assert times == near(
        {
            "compute.moe.experts.bias.forward": moved_us(14 * 2 * MIB, 5) + 2 * 2 * MIB / 2.07e3,
            "compute.moe.experts.bias.backward": moved_us(18 * 2 * MIB, 8) + 3 * 2 * MIB / 2.07e3,
            "compute.moe.experts.bias_gradient.backward": moved_us(2 * 2 * 2 * MIB / 2, 2),
        }
    )
    # The first layer's bias takes one more read of both halves' gradients.
    gradient = {"compute.moe.experts.bias_gradient.backward": moved_us(2 * 2 * 2 * MIB / 2, 2)}
    assert each_us(price(model), "compute.moe.experts.bias") == near(gradient)


def test_products_of_experts_that_activate_and_quantise():
    """512 wide: casts write 2.06 bytes and read none, the backward pass reads both halves again."""
    times = {
        fused: each_us(
            price(MOE, precision="mxfp8", switches={"fused_grouped_mlp": fused}), "compute.moe.experts"
        )
        for fused in (False, True)
    }
    act, cast = "compute.moe.experts.activation.", "compute.moe.experts.quantise."
    assert times[False][act + "forward"] == near(moved_us(6 * MIB))
    assert act + "forward" not in times[True]
    assert times[True][act + "backward"] == near(moved_us(4 * MIB, 0))
    # Two bytes fewer of the product, 1,024 x 2 x 512, and of the gradient of both halves.
    saved = {name: times[False][cast + name] - times[True][cast + name] for name in ("forward", "backward")}
    slower = saved["forward"] / (2 * MIB / 1e6)
    assert saved["backward"] == near(2 * saved["forward"])
    assert slower >= 1
    plain = each_us(price(MOE, switches={"fused_grouped_mlp": True}), "compute.moe.experts")
    assert plain == near(each_us(price(MOE), "compute.moe.experts"))


def test_static_graphs_leave_the_experts_out():
    est = price(MOE, switches={"launch_s": 9e-4, "cuda_graphs": True, "cuda_graph_scope": "static"}, **FOUR)
    # What runs before the host has counted the tokens hides no launch.
    behind = (
        "compute.mlp.residual",
        "ep.",
        *(f"compute.moe.{x}" for x in ("permute", "exp", "unpermute", "br")),
    )
    # Permute and unpermute 2 each, three kernels of experts, dispatch and combine.
    assert each_us(est, "compute.layer.host.forward") == near(
        {"compute.layer.host.forward": 900 * (2 + 2 + 3 + 2) - total_us(est, "forward", *behind)}
    )


def test_schedule_nodes_of_an_overlapped_exchange_are_issued_apart():
    """1.6 launches for each one of a layer with experts; its kernels stay as many."""
    job = {
        "model": "mixtral-8x7b",
        "gpus": 64,
        "layout": "tp2 pp2 ep8 vp2",
        "global_batch": 256,
        "seq_len": 4096,
    }
    held = []
    for overlap in (False, True):
        est = cm.estimate(**job, switches={"ep_overlap": overlap})
        (line,) = [one for one in est.bill.time_lines if one.name == "compute.layer.host.forward"]
        held.append([float(line.terms[name]) for name in ("launches", "kernels")])
    assert held[1] == pytest.approx([1.6 * held[0][0], held[0][1]])
