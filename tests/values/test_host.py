"""What the host issues: bound and unbound cores, what CUDA graphs replay, experts in 8 bits, two micro-batches at once."""

import pytest
from round_jobs import MOE, line, near, price

import costmodel as cm

SLOW = {"launch_s": 9e-4}
FOUR = {"gpus": 4, "layout": "ep4", "global_batch": 8}


def launches(est, phase="forward"):
    """Launches of a layer of experts, and what one takes in microseconds."""
    [line] = [x for x in est.bill.time_lines if x.name == f"compute.layer.host.{phase}"]
    return float(line.terms["launches"]), 1e6 * float(line.terms["launch_s"])


def test_launches_of_a_layer_by_what_graphs_hold():
    """85 and a half of each: attention 6, router 1 + 72; experts and permutation are what depends on the routing."""
    none, _ = launches(price(MOE, switches=SLOW, **FOUR))

    def left(scope):
        graphs = {**SLOW, "cuda_graphs": True, "cuda_graph_scope": scope}
        return launches(price(MOE, switches=graphs, **FOUR))[0]

    assert left("all") == 0
    routed = left("static")
    # Permute 2, fc1, activation, fc2, unpermute 2, and the two exchanges.
    assert routed == 2 + 3 + 2 + 2
    assert left("router") == none - 73
    # Norm, QKV, rotary, core, projection, residual.
    assert left("attention") == left("router") - 6
    assert left("static") < left("attention") < left("router") < none


def test_random_state_of_what_is_recomputed_is_kept_where_no_graph_holds_it():
    """Attention is run again: 20 launches of random state and one of its core, in the backward pass without a graph of it."""

    def left(**switches):
        here = {**SLOW, **switches}
        est = price(MOE, switches=here, **{**FOUR, "layout": "ep4"}, recompute="selective")
        plain = price(MOE, switches=here, **FOUR)
        return launches(est, "backward")[0] - launches(plain, "backward")[0]

    assert left() == 21
    assert left(cuda_graphs=True, cuda_graph_scope="router") == 21
    assert left(cuda_graphs=True, cuda_graph_scope="attention") == 0


def test_two_micro_batches_at_once_are_issued_piece_by_piece():
    plain, _ = launches(price(MOE, switches=SLOW, **FOUR))
    both, _ = launches(price(MOE, switches={**SLOW, "ep_overlap": True}, **FOUR))
    assert both == pytest.approx(1.6 * plain)
    graphs = {**SLOW, "ep_overlap": True, "cuda_graphs": True}
    assert launches(price(MOE, switches=graphs, **FOUR))[0] == 0


def test_where_the_host_waits_for_counts_what_ran_before_the_experts_hides_no_launches():
    """A host that launches in no time is ahead by all that runs before the dispatch: attention, router and its norms."""

    def ahead_us(dispatcher="all-to-all", **switches):
        est = price(MOE, switches={"moe_dispatcher": dispatcher, **switches}, **FOUR)
        (host,) = (one for one in est.bill.time_lines if one.name == "compute.layer.host.forward")
        assert "backward" in {one.phase for one in est.bill.time_lines if "lost_s" in one.terms}
        assert all(
            not one.terms["lost_s"]
            for one in est.bill.time_lines
            if "lost_s" in one.terms and one.phase != "forward"
        )
        return 1e6 * float(host.terms["lost_s"])

    before = price(MOE, **FOUR).bill.time_lines
    parts = ("compute.attention.", "compute.mlp.norm.", "compute.moe.router.", "compute.moe.routing.")
    held = [one for one in before if one.name.startswith(parts) and one.phase == "forward"]
    assert len(held) == 9
    assert ahead_us() == near(1e6 * sum(float(one.each_s) for one in held))
    # Issued slower than the GPU runs it, nothing is ahead; 80 launches are of the parts before.
    assert 0 < ahead_us(launch_s=1e-6) == near(ahead_us() - 80)
    assert ahead_us(launch_s=9e-4) == 0
    for free in (
        {"dispatcher": "hybrid-ep"},
        {"moe_capacity_factor": 1.0},
        {"cuda_graphs": True},
        {"ep_overlap": True},
        {"launch_blocking": True},
    ):
        assert ahead_us(**free) == 0, free
    graphs = {"cuda_graphs": True, "cuda_graph_scope": "attention"}
    # The norm before the router is in none.
    assert ahead_us(**graphs, launch_s=1e-4) == near(ahead_us() - 100)
    waits, free = (
        line(
            price(MOE, switches={**graphs, "launch_s": 4e-5, "moe_dispatcher": by}, **FOUR),
            "compute.layer.host.forward",
        )
        for by in ("all-to-all", "hybrid-ep")
    )
    assert float(waits.each_s) > float(free.each_s) == 0.0


def test_experts_in_eight_bits_are_quantised_one_by_one():
    """Two casts and two products of a forward pass, each as often as there are experts and ten more; in 16 bits once."""

    def more(layout, precision="fp8-delayed", **switches):
        job = {**FOUR, "layout": layout, "precision": precision}
        plain, _ = launches(price(MOE, switches={**SLOW, "grouped_launch_share_quantised": 0.0}, **job))
        return launches(price(MOE, switches={**SLOW, **switches}, **job))[0] - plain

    for share in (0.5, 1.0, 2.0):
        for layout, experts in (("ep4", 2), ("ep2", 4)):
            expected = near(4 * (share * (experts + 10) - 1))
            assert more(layout, grouped_launch_share_quantised=share) == expected
    assert more("ep4", "bf16", grouped_launch_share_quantised=2.0) == 0
    assert more("ep4", grouped_gemm=False, grouped_launch_share_quantised=2.0) == 4 * (2 - 1)


def test_bound_cores_of_a_grace_host():
    """2.75 times as long as on x86 where processes wander, 1.5 times where they stay."""
    job = {
        "model": "qwen3-30b-a3b",
        "cluster": "gb200-nvl72-ndr",
        "gpus": 8,
        "global_batch": 64,
        "seq_len": 4096,
    }
    for bound, slowdown in ((False, 2.75), (True, 1.5)):
        est = cm.estimate(**job, layout="ep8", switches={"cpu_binding": bound, "launch_s": 1e-5})
        assert launches(est)[1] == pytest.approx(10 * slowdown)
    x86 = {**job, "cluster": "dgx-h100-ndr"}
    est = cm.estimate(**x86, layout="ep8", switches={"cpu_binding": False, "launch_s": 1e-5})
    assert launches(est)[1] == pytest.approx(10)


def test_sharded_parameters_are_prefetched_unless_switched_off():
    """A Megatron recipe with ZeRO-3 hides its gathers as FSDP does; it was billed as if nothing overlapped."""
    job = {"model": "llama3-8b", "cluster": "dgx-h100-ndr", "gpus": 64, "global_batch": 64, "seq_len": 8192}
    on = cm.estimate(**job, zero_stage=3)
    off = cm.estimate(**job, zero_stage=3, switches={"dp_overlap": "none"})

    def exposed(est):
        sent = [line for line in est.bill.time_lines if line.axis == "dp"]
        return sum(float(line.exposed_seconds) for line in sent)

    assert exposed(on) < 0.5 * exposed(off)
