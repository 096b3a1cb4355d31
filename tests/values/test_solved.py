"""Problems that samples solve for a budget: shares and dollars by hand, the best model against a search one by one."""

import numpy as np
import pytest

import costmodel as cm
from costmodel.physics.run.answers import pass_at_k_beta
from costmodel.physics.run.scaling_laws import LAWS, compute_optimal, loss
from costmodel.whole_run.solved import Difficulty, difficulty_at, read_pass_rate, train_and_sample

LAW = LAWS["besiroglu"]
TWO = "8B/15T: 0.3; 70B/15T: 0.5"


def test_what_is_read():
    (concentration,) = read_pass_rate("20%")
    assert float(concentration.difficulty.solved(2)) == pytest.approx(1 - 0.8**2)
    # Beta(1, 1): k / (k + 1) of the problems.
    for text in ("beta 1 1", "beta(1, 1)", "1=0.5 9=0.9"):
        (found,) = read_pass_rate(text)
        assert found.difficulty.solved([1, 4, 99]) == pytest.approx([0.5, 0.8, 0.99], rel=2e-3)
    small, large = read_pass_rate("8B/15T: 1=0.3 16=0.6; 70B/15T: 1=0.5 16=0.8")
    assert (small.num_params, large.tokens) == (8e9, 15e12)
    assert float(large.difficulty.solved(16)) == pytest.approx(0.8, rel=1e-3)


def test_rates_between_two_models():
    """The two models themselves; half-way in loss the geometric mean of the odds and of a + b."""
    for text in (TWO, "8B/15T: beta 0.6 1.4; 70B/15T: beta 2 2"):
        measured = read_pass_rate(text)
        at = [float(loss(LAW, one.num_params, one.tokens)) for one in measured]
        for one, value in zip(measured, at, strict=True):
            assert float(difficulty_at(LAW, measured, value).rate) == pytest.approx(
                float(one.difficulty.rate)
            )
        middle = difficulty_at(LAW, measured, sum(at) / 2)
        odds = float(middle.rate / (1 - middle.rate))
        assert odds == pytest.approx(np.sqrt(0.3 / 0.7 * 1.0))
        if "beta" in text:
            assert float(middle.concentration) == pytest.approx(np.sqrt(2.0 * 4.0))


def test_the_best_model_and_samples_against_a_search_one_by_one():
    measured = read_pass_rate("8B/15T: beta 0.6 1.4; 70B/15T: beta 2 2")
    sizes = np.geomspace(1e9, 1e11, 25)
    usd = sizes * 2e-18 * 2000
    job = {"dollars": 1e5, "problems": 1e6, "sizes": sizes}
    job |= {"usd_per_sample": usd, "train_usd_per_flop": 2e-18}
    best = train_and_sample(LAW, measured, rule="", samples=2.0 ** np.arange(8), **job)
    found = []
    for n, each in zip(sizes, usd, strict=True):
        for k in 2.0 ** np.arange(8):
            tokens = (1e5 - 1e6 * k * each) / (6 * n * 2e-18)
            if tokens >= n:
                one = difficulty_at(LAW, measured, float(loss(LAW, n, tokens)))
                a, b = float(one.rate * one.concentration), float((1 - one.rate) * one.concentration)
                found.append((float(pass_at_k_beta(k, a, b)), n, k, tokens))
    share, n, k, tokens = max(found)
    assert (best.solved, best.num_params, best.samples_per_prompt) == pytest.approx((share, n, k))
    assert best.tokens == pytest.approx(tokens)
    assert best.train_usd + best.serve_usd == pytest.approx(1e5)
    assert best.usd_per_solved == pytest.approx(1e5 / (1e6 * share))
    # arXiv:2604.01411: with samples to pay for, smaller models and more tokens a parameter than is compute-optimal.
    optimal, _ = compute_optimal(LAW, 1e5 / 2e-18)
    assert best.num_params < float(optimal)
    assert (
        train_and_sample(LAW, measured, rule="", samples=np.array([1.0]), **{**job, "problems": 1e12}) is None
    )


def test_a_model_that_is_there():
    """Four samples of 1,000 problems: 1 - 0.8^4 of the problems are solved, for $100 of training and the samples."""
    found = cm.budget(dollars=100.0, model="llama3-8b", answers=1000, pass_rate="0.2", samples_per_prompt=4)
    (one,) = found.solved
    share = 1 - 0.8**4
    assert one.solved == pytest.approx(share)
    assert one.usd_per_solved == pytest.approx((100.0 + one.serve_usd) / (1000 * share))
    whole = cm.budget(dollars=100.0, model="llama3-8b", answers=1000, pass_rate="0.2")
    assert [row.samples_per_prompt for row in whole.solved] == list(2 ** np.arange(11))
    assert whole.solved[2].serve_usd == pytest.approx(one.serve_usd)
    longer = {"model": "llama3-8b", "answers": 1000, "pass_rate": "0.2", "samples_per_prompt": 4}
    dear = cm.budget(dollars=100.0, response_len=4096, **longer)
    assert dear.solved[0].serve_usd > 3.5 * one.serve_usd
    assert found.to_dict()["solved"][0]["solved"] == one.solved


def test_more_samples_solve_more_and_alike_problems_most():
    k = 2.0 ** np.arange(11)
    hard = Difficulty(0.2, 0.5).solved(k)
    wide = Difficulty(0.2, 5.0).solved(k)
    concentration = Difficulty(0.2).solved(k)
    for found in (hard, wide, concentration):
        assert np.all(np.diff(found) >= 0)
        assert found[0] == pytest.approx(0.2)
    assert np.all(hard[1:] < wide[1:])
    assert np.all(wide[1:] <= concentration[1:])
