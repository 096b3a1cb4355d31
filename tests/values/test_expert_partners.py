"""What expert exchange hides behind, how many nodes a token reaches, and how uneven routing is."""

import numpy as np
import pytest

import costmodel as cm

DEEPSEEK = {
    "model": "deepseek-v3",
    "cluster": "h800-cx7",
    "seq_len": 4096,
    "precision": "fp8-block",
    "recipe": "hai-llm",
}


def _exchange(est):
    lines = [line for line in est.bill.time_lines if line.axis == "ep"]
    return [sum(float(getattr(line, what)) for line in lines) for what in ("seconds", "exposed_seconds")]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_schedules_that_never_pair_expose_it(schedule):
    busy, exposed = _exchange(
        cm.estimate(**DEEPSEEK, gpus=256, layout="pp4 ep64", schedule=schedule, global_batch=1024)
    )
    assert exposed == pytest.approx(busy)


def test_full_recomputation_rules_it_out():
    job = {**DEEPSEEK, "gpus": 256, "layout": "pp4 vp4 ep64", "global_batch": 1024}
    busy, exposed = _exchange(cm.estimate(**job, recompute="full"))
    assert exposed == pytest.approx(busy)


def test_between_nodes_a_share_never_hides():
    """0.6 of the paired passes hides at most; inside one node all of them may."""
    job = {
        "model": "qwen3-30b-a3b",
        "cluster": "dgx-h100-ndr",
        "gpus": 64,
        "seq_len": 4096,
        "global_batch": 1024,
    }
    switches = {"ep_overlap": True, "overlap_contention": 0, "moe_dispatcher": "deep-ep"}
    for ep, least in ((16, 1 - 0.6 * 15 / 16), (8, 0.0)):
        est = cm.estimate(**job, layout=f"ep{ep}", switches=switches)
        busy, exposed = _exchange(est)
        assert exposed >= busy * least * (1 - 1e-9)
    whole = cm.estimate(**job, layout="ep16", switches={**switches, "ep_hidden_between_nodes": 1.0})
    assert _exchange(whole)[1] < _exchange(cm.estimate(**job, layout="ep16", switches=switches))[1]


def test_random_routing_is_that_of_independent_tokens():
    """The busiest of 8 ranks of 64 experts, 512 tokens a rank and 6 of them each, against 400 draws."""
    model = {"model": "deepseek-v2", "cluster": "dgx-h100-ndr", "gpus": 8, "seq_len": 512, "global_batch": 8}
    est = cm.estimate(**model, layout="ep8")
    said = float(est.priced.placed.imbalance)
    draw = np.random.default_rng(5)
    experts, ranks, tokens, top_k = 160, 8, 512, 6
    busiest = []
    for _ in range(400):
        # Six different experts of a token: how many of them lie on each rank.
        picks = draw.multivariate_hypergeometric([experts // ranks] * ranks, top_k, size=tokens * ranks)
        loads = picks.sum(axis=0)
        busiest.append(loads.max() / loads.mean())
    assert said - 1 == pytest.approx(np.mean(busiest) - 1, rel=0.05)
    forced = cm.estimate(**model, layout="ep8", switches={"moe_balance": "balanced"})
    assert float(forced.priced.placed.imbalance) == 1.0
    assert float(forced.step_time_s) < float(est.step_time_s)
