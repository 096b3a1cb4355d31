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


def test_one_micro_batch_exposes_its_exchange():
    """A batch of 1,024 on 1,024 replicas: there is no other micro-batch to hide behind."""
    est = cm.estimate(**DEEPSEEK, gpus=2048, layout="tp2 ep128", global_batch=1024)
    busy, exposed = _exchange(est)
    assert exposed == pytest.approx(busy)
    busy, exposed = _exchange(cm.estimate(**DEEPSEEK, gpus=2048, layout="tp2 ep128", global_batch=15360))
    assert exposed >= busy / 15 * (1 - 1e-9)
    assert exposed < busy / 2


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


@pytest.mark.parametrize(
    ("layout", "gpus", "nodes", "limit"), [("ep64", 512, 8, 4), ("ep128", 1024, 16, 8), ("ep32", 512, 4, 4)]
)
def test_nodes_that_a_token_reaches(layout, gpus, nodes, limit):
    """DeepSeek-V3 keeps a token to 4 of 8 groups: 4 of 8 nodes, 8 of 16, all of 4."""
    est = cm.estimate(**DEEPSEEK, gpus=gpus, layout=layout, global_batch=gpus)
    [line] = [line for line in est.bill.time_lines if line.name.endswith("moe.dispatch.forward")]
    usable = min(limit, nodes)
    copies = usable * (1 - (1 - 1 / usable) ** 8) * (1 - 1 / nodes)
    assert float(line.bytes_each) == pytest.approx(1.03 * 7168 * 4096 * copies, rel=1e-9)


def test_gradients_travel_in_fp8_where_the_recipe_says_so():
    def bytes_of(**switches):
        est = cm.estimate(**DEEPSEEK, gpus=512, layout="ep64", global_batch=512, switches=switches)
        sent = [line for line in est.bill.time_lines if line.axis == "ep"]
        return {line.name.removeprefix("ep.moe.moe."): float(line.bytes_each) for line in sent}

    own, plain = bytes_of(), bytes_of(moe_dispatches_gradients_in_fp8=False)
    assert own["combine.backward"] / plain["combine.backward"] == pytest.approx(1.03 / 2)
    assert own["dispatch.backward"] == plain["dispatch.backward"]


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


def test_groups_of_a_config():
    from costmodel.describe.models.huggingface_keys import Keys
    from costmodel.describe.models.huggingface_layers import routing_groups

    assert cm.load_model("deepseek-v3").expert_groups == 8
    assert cm.load_model("deepseek-v3").groups_per_token == 4
    assert routing_groups(Keys({"n_group": 8, "topk_group": 4}, "here")) == {
        "expert_groups": 8,
        "groups_per_token": 4,
    }
    assert routing_groups(Keys({"n_group": 1, "topk_group": 1}, "here")) == {}
