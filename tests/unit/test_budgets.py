"""Scaling laws against their papers, decoding against its bounds, and budgets solved backwards."""

import shlex

import numpy as np
import pytest

import costmodel as cm
from costmodel.cli import main
from costmodel.describe.models.model_families import dense_model
from costmodel.physics.run.scaling_laws import (
    LAWS,
    cheapest_over_lifetime,
    compute_optimal,
    kaplan_loss,
    kaplan_optimal,
    kaplan_params_for_loss,
    loss,
    params_for_loss,
    tokens_for_loss,
)
from costmodel.step.anatomy.kv_cache import kv_cache_bytes
from costmodel.whole_run.budget import budget, serving


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_compute_optimal_is_where_the_loss_is_least(law):
    flops = np.asarray([1e20, 1e23, 1e26])
    n, d = compute_optimal(law, flops)
    assert 6 * n * d == pytest.approx(flops)
    for factor in (0.98, 1.02):
        assert np.all(loss(law, n * factor, flops / 6 / (n * factor)) > loss(law, n, d))


def test_hoffmann_approach_3_on_gophers_budget():
    """arXiv:2203.15556, table 3 and section 3.3: 40 billion parameters for Gopher's 5.76e23 FLOP."""
    n, _ = compute_optimal(LAWS["hoffmann"], 5.76e23)
    assert float(n) == pytest.approx(40e9, rel=0.1)


def test_refit_agrees_with_20_tokens_a_parameter():
    """arXiv:2404.10102: the refit is consistent with approaches 1 and 2, about 20 tokens a parameter."""
    n, d = compute_optimal(LAWS["besiroglu"], 5.76e23)
    assert 15 < float(d / n) < 25
    assert float(n) == pytest.approx(70e9, rel=0.15)


def test_kaplan():
    """arXiv:2001.08361, table 2 and equation 1.5 in its limits; the optimum grows as C^0.73."""
    assert float(kaplan_loss(1e9, 1e30)) == pytest.approx((6.4e13 / 1e9) ** 0.076, rel=1e-6)
    assert float(kaplan_loss(1e30, 1e10)) == pytest.approx((1.8e13 / 1e10) ** 0.103, rel=1e-6)
    n, d = kaplan_optimal(np.asarray([8.64e19, 8.64e20]))
    assert n[0] == pytest.approx(1.3e9)
    assert n[1] / n[0] == pytest.approx(10**0.73)
    assert 6 * n * d == pytest.approx([8.64e19, 8.64e20])
    # Half the loss of a model that is bound by its size takes 2^(1/0.076) = 9,139 times the parameters.
    assert np.divide(*kaplan_params_for_loss(np.inf, [1.5, 3.0])) == pytest.approx(2 ** (1 / 0.076))


def test_params_for_loss_undoes_the_loss():
    tokens = np.asarray([2e10, 1.4e12])
    for law in LAWS.values():
        assert params_for_loss(law, tokens, loss(law, 70e9, tokens)) == pytest.approx(70e9)
        assert tokens_for_loss(law, 70e9, loss(law, 70e9, tokens)) == pytest.approx(tokens)
        least = float(loss(law, np.inf, 1e9))
        assert np.isinf(params_for_loss(law, 1e9, [0.999 * least, 1.001 * least])).tolist() == [True, False]
    assert kaplan_params_for_loss(tokens, kaplan_loss(70e9, tokens)) == pytest.approx(70e9)
    least = float(kaplan_loss(np.inf, 1e9))
    assert np.isinf(kaplan_params_for_loss(1e9, [0.999 * least, 1.001 * least])).tolist() == [True, False]


def test_cheapest_over_lifetime_zero_serving_is_compute_optimal_and_serving_shrinks_the_model():
    law = LAWS["besiroglu"]
    n, d = compute_optimal(law, 1e23)
    sizes = np.geomspace(1e9, 1e12, 4001)
    target = loss(law, n, d)
    best, tokens, usd = cheapest_over_lifetime(
        law,
        target,
        np.asarray([0.0, 1e12, 1e14]),
        num_params=sizes,
        train_usd_per_flop=1e-18,
        serve_usd_per_token=2e-18 * sizes,
    )
    assert best[0] == pytest.approx(float(n), rel=0.01)
    assert np.all(np.diff(best) < 0)
    assert np.all(np.diff(tokens) > 0)
    assert np.all(np.diff(usd) > 0)
    assert loss(law, best, tokens) == pytest.approx(float(target))
    assert np.isinf(tokens_for_loss(law, 1e6, target))


def test_cache_of_each_attention():
    """DeepSeek-V3: 70 kB a token, Llama 3 405B 516 kB (arXiv:2505.09343, table 1)."""
    known = {"gpt3-175b": 2 * 2 * 96 * 96 * 128, "llama3-405b": 2 * 2 * 126 * 8 * 128, "deepseek-v3": 70272}
    assert {name: float(kv_cache_bytes(cm.load_model(name), 1000)) / 1000 for name in known} == known


def test_windows_hold_no_more_than_they_see():
    model = cm.load_model("gpt-oss-120b")
    short, long = kv_cache_bytes(model, np.asarray([128.0, 131072.0]))
    layers = model.num_layers
    assert long / short == pytest.approx((layers / 2 * 128 + layers / 2 * 131072) / (layers * 128), rel=1e-6)


def test_latent_attention_serves_cheaper_than_its_size():
    cluster = cm.load_cluster("h100")
    cost = {
        name: serving(cm.load_model(name), cluster, price_usd_per_gpu_hour=2.95).usd_per_token
        for name in ("llama3-70b", "llama3-405b", "deepseek-v3")
    }
    assert cost["deepseek-v3"] < cost["llama3-405b"] / 2
    assert cost["llama3-70b"] < cost["llama3-405b"]


def test_what_serving_costs_follows_from_the_size():
    """A choice serves at what a dense model of its size does; what is larger than the largest that fits is not priced."""
    found = budget(dollars=1e6, served_tokens=10**12)
    priced = {choice.rule: choice for choice in found.choices}
    one = priced["besiroglu, compute-optimal"]
    cost = serving(dense_model(one.num_params), cm.load_cluster("h100"), price_usd_per_gpu_hour=2.95)
    assert one.serve_usd == pytest.approx(1e12 * cost.usd_per_token, rel=0.05)
    assert priced["kaplan, compute-optimal"].serve_usd is None
    assert {choice.serve_usd for choice in budget(dollars=1e6).choices} == {0.0}


def test_what_nobody_named_of_a_budget_has_a_star():
    title, _, rows, *_ = budget(dollars=1e6, mfu=0.5, cluster="h100").grids()[0]
    training = dict(rows)["training"]
    assert "MFU 50% in bf16*, 93%* of the time" in training
    assert "(*assumed: --precision, --effective-time;" in training
    assert not title.endswith("*")
    assert budget(dollars=1e6).assumed == ["cluster", "mfu", "precision", "effective_time"]


def test_budget_forwards_and_backwards():
    forward = budget(gpus=2048, days=30, price_usd_per_gpu_hour=2.0)
    assert forward.dollars == 2048 * 30 * 24 * 2.0
    back = budget(dollars=forward.dollars, days=30, price_usd_per_gpu_hour=2.0)
    assert back.gpus == pytest.approx(2048)
    assert budget(dollars=forward.dollars, gpus=2048, price_usd_per_gpu_hour=2.0).days == pytest.approx(30)
    assert forward.training_flops == pytest.approx(2048 * 30 * 86400 * 989.4e12 * 0.40 * 0.93, rel=1e-3)
    for choice in forward.choices:
        assert 6 * choice.num_params * choice.tokens == pytest.approx(forward.training_flops, rel=1e-6)
    served = {choice.rule: choice for choice in budget(dollars=5e6, served_tokens=1e14).choices}
    best, optimal = served["besiroglu, cheapest with serving"], served["besiroglu, compute-optimal"]
    assert best.num_params < optimal.num_params
    assert best.loss == optimal.loss
    spent = best.num_params * best.tokens / optimal.num_params / optimal.tokens
    assert best.train_usd == pytest.approx(5e6 * spent)
    table = budget(gpus=100, days=30, served_tokens=1e14, samples=20).columns()
    shares = [table["days_p90"][n] / table["train_usd_p90"][n] for n in range(len(table["rule"]))]
    assert shares == pytest.approx([shares[0]] * len(shares))
    assert best.train_usd + best.serve_usd < optimal.train_usd + optimal.serve_usd
    # Training costs what its FLOPs are of those that the money buys; what samples leave is for training.
    shared = budget(dollars=1e6, answers=1e6, pass_rate="8B/15T: 0.3; 70B/15T: 0.5", served_tokens=1e12)
    for way in (*shared.choices, *shared.solved):
        flops = 6.0 * way.num_params * way.tokens
        assert way.train_usd == pytest.approx(1e6 * flops / shared.training_flops, rel=1e-6)
    for way in shared.solved:
        assert way.train_usd + way.serve_usd == pytest.approx(1e6)


ANSWERS = "budget --budget=1e6 --answers=1M"
RUN = "run -m llama3-8b --global-batch=64 --seq-len=4096"
REFUSED = {
    "budget": "give --budget USD, or both --gpus and --days",
    "budget --budget=-1": "--budget: expected a number from 1 to 1e+15",
    "budget --budget=1e6 --gpus=8 --days=3": "one too many",
    "budget --budget=1e6 --mfu=1.2": "mfu: expected a number from 0.001 to 1, got 1.2",
    "budget --budget=1e6 -c a800-roce": "has no price of a GPU-hour; give --price",
    "budget --budget=1e6 --samples=4": "samples_per_prompt: goes with the number of problems",
    ANSWERS: "answers: give --pass-rate",
    "budget --budget=1e6 --answers=x --pass-rate=0.2": "answers: expected a whole number",
    f"{ANSWERS} --pass-rate=0.2": "pass_rate: of one model it needs --model",
    f"{ANSWERS} --pass-rate=1.2 -m llama3-8b": "expected a share between 0 and 1, got 1.2",
    f"{ANSWERS} --pass-rate='1=0.5 4=0.4' -m llama3-8b": "no Beta distribution has 0.5 at 1",
    f"{ANSWERS} --pass-rate='8B/15T: 0.5; 70B/15T: 0.4'": "the model of the lower loss must solve more",
    f"{ANSWERS} --pass-rate='8B/15T: 0.3; 70B: 0.4'": "pass_rate: expected a rate such as 0.2",
    "budget --budget=1e3 --answers=1e12 --pass-rate='8B/15T: 0.3; 70B/15T: 0.4'": "do not pay for",
    f"{RUN} -n8": "give --tokens 2e12, or --budget",
    f"{RUN} --tokens=1e14 --days=1": "days: 1 cannot be reached with a global batch of 64",
    f"{RUN} -n8 -c a800-roce --budget=1e6": "has no price; give --price",
}


def test_wrong_input_is_one_clear_line(capsys):
    for command, words in REFUSED.items():
        assert main(shlex.split(command)) == 2, command
        error = capsys.readouterr().err
        assert words in error, command
        assert error.count("\n") == 1, command


def test_a_budgets_step_is_off_by_the_factors_of_an_estimate():
    """Products at 30 % MFU of what they reach are a share of the step; their factor scales it, the others all of it."""
    from costmodel.describe.factors import draw
    from costmodel.describe.hardware.hardware import load_cluster

    found = budget(cluster="h100-ndr", gpus=512, days=30, mfu=0.3, samples=100, seed=4)
    names = ["matmul.hopper.16-bit", "unexplained.hopper-dense", "layout.hopper-dense"]
    products, common, own = (draw([name], 100, seed=4)[name] for name in names)
    matmul = load_cluster("h100-ndr").accelerator.kernels.matmul["bf16"]
    share = 0.3 / (matmul.peak_fraction * (1 - matmul.sustained_loss))
    assert 0.3 < share < 0.6
    expected = (1 - share + share * products) * common * own
    assert found.step_over_expected == pytest.approx(expected)
    spread = found.to_dict()["spread"]
    assert spread["days"]["p90"] == pytest.approx(30 * np.percentile(expected, 90))
    assert spread["training_flops"]["p10"] == pytest.approx(
        found.training_flops * np.percentile(1 / expected, 10)
    )
    table = found.columns()
    assert table["train_usd_p10"][0] == pytest.approx(found.dollars * np.percentile(expected, 10))
    assert table["days_p90"][0] == pytest.approx(spread["days"]["p90"])
    again = budget(cluster="h100-ndr", gpus=512, days=30, mfu=0.3, samples=100, seed=5)
    assert again.days == found.days
    assert again.spread != found.spread


def test_a_budget_without_gpus_has_no_days():
    found = budget(cluster="h100-ndr", dollars=1e6, samples=50)
    assert "days" not in found.spread
    assert found.columns()["days_p10"][0] is None
