"""The expected maximum of normals against tables and a simulation, and the 22 % of a rule of thumb."""

import numpy as np
import pytest

import costmodel as cm
from costmodel.estimates.estimate import estimate
from costmodel.physics.run.stragglers import (
    RankTimes,
    expected_maximum_normal,
    jitter_excess,
    lasting_excess,
    maximum_moments,
)

S = np.sqrt(np.log1p(0.25))  # of a lognormal with a coefficient of variation of one half

# Closed forms for 2 and 3; order-statistics tables (Harter 1961) beyond.
KNOWN = [(1, 0.0), (2, np.pi**-0.5), (3, 1.5 * np.pi**-0.5), (10, 1.53875), (100, 2.50759), (1000, 3.24144)]


@pytest.mark.parametrize(("ranks", "expected"), KNOWN)
def test_known_values(ranks, expected):
    assert float(expected_maximum_normal(ranks)) == pytest.approx(expected, abs=6e-6)


def test_moments_against_a_simulation():
    for times, draw in [
        (RankTimes(0.05), lambda g, n: 1 + 0.05 * g.standard_normal(n)),
        (RankTimes(0.5, heavy_tail=True), lambda g, n: np.exp(S * g.standard_normal(n) - S**2 / 2)),
        (
            RankTimes(0.02, slow_fraction=0.005, slowdown=0.1),
            lambda g, n: (1 + 0.02 * g.standard_normal(n)) * np.where(g.random(n) < 0.005, 1.1, 1.0),
        ),
        (
            RankTimes(0.0, slow_fraction=0.01, slowdown=0.3),
            lambda g, n: np.where(g.random(n) < 0.01, 1.3, 1.0),
        ),
    ]:
        drawn = draw(np.random.default_rng(2), (20_000, 64)).max(axis=1)
        mean, deviation = maximum_moments(64, times)
        assert float(mean) == pytest.approx(drawn.mean(), abs=4 * drawn.std() / np.sqrt(drawn.size))
        assert float(deviation) == pytest.approx(drawn.std(), rel=0.05)


def test_moments_agree_with_the_integral_for_normals():
    ranks = np.asarray([[1.0, 2.0, 8.0], [64.0, 16_000.0, 1e6]])
    mean, deviation = maximum_moments(ranks, RankTimes(0.05))
    assert mean == pytest.approx(1 + 0.05 * expected_maximum_normal(ranks), abs=1e-6)
    assert float(deviation[0, 0]) == pytest.approx(0.05, rel=1e-4)
    # Var[max of 2] = 1 - 1/pi
    assert float(deviation[0, 1]) == pytest.approx(0.05 * np.sqrt(1 - 1 / np.pi), rel=1e-4)


def test_a_job_waits_for_the_slowest_of_its_gpus_in_its_matrix_products():
    """1.5 % times the expected maximum of ten, of products and attention alone; nothing where ranks are as stated."""
    job = {"model": "llama3-8b", "gpus": 10, "global_batch": 10, "seq_len": 4096}
    est = cm.estimate(**job, cluster="dgx-h100-ndr")
    (line,) = est.explain("overhead.slowest_gpu")
    products = sum(float(one.exposed_seconds) for one in est.bill.time_lines if one.category == "math")
    attention = sum(float(one.exposed_seconds) for one in est.bill.time_lines if one.cause == "attention")
    assert 0.0 < attention < products < 0.9 * float(est.step_time_s)
    assert line.each == pytest.approx(0.015 * 1.53875 * products, rel=1e-5)

    def has(**more):
        names = {
            one.name for one in cm.estimate(**{**job, "cluster": "dgx-h100-ndr", **more}).bill.time_lines
        }
        return "overhead.slowest_gpu" in names

    assert has()
    assert not has(gpus=1, zero_stage=0, recompute="full")
    assert not has(switches={"stragglers": "normal"})
    assert not has(switches={"straggler_variation": 0.0})
    assert not has(cluster="tpu-v5p", gpus=8, global_batch=8)


def test_lasting_differences_are_paid_once_and_jitter_at_every_level():
    levels = [np.asarray(n) for n in (8.0, 8.0, 8.0, 128.0, 16384.0)]
    lasting = lasting_excess(levels, RankTimes(0.05))
    assert sum(lasting) == pytest.approx(0.05 * expected_maximum_normal(16384), abs=1e-6)
    assert lasting[1] == lasting[2] == 0
    once = [np.asarray(1.0)] * 5
    together = jitter_excess([np.asarray(1.0)] * 4 + [np.asarray(512.0)], once, 0.05)
    assert sum(together) == pytest.approx(0.05 * expected_maximum_normal(512), abs=1e-6)
    often = jitter_excess(levels, [np.asarray(320.0)] * 3 + [np.asarray(16.0), np.asarray(1.0)], 0.01)
    assert often[0] == pytest.approx(np.sqrt(320) * float(expected_maximum_normal(8)) * 0.01, rel=1e-4)
    assert sum(often) > sum(lasting_excess(levels, RankTimes(0.01)))


def test_jitter_of_two_levels_against_a_simulation():
    generator = np.random.default_rng(3)
    pieces = 1 / 16 + 0.01 / 4 * generator.standard_normal((4000, 8, 4, 16))  # steps, groups, ranks, pieces
    drawn = pieces.max(axis=2).sum(axis=-1).max(axis=1)
    added = jitter_excess([np.asarray(4.0), np.asarray(32.0)], [np.asarray(16.0), np.asarray(1.0)], 0.01)
    assert 1 + float(sum(added)) == pytest.approx(drawn.mean(), abs=5e-4)


def test_no_piece_of_a_step_takes_less_than_no_time():
    """5 % over 504 synchronisations would be pieces that vary by 112 %; 30 % is the most that is like a normal number."""
    eight = [np.asarray(8.0)]
    most = jitter_excess(eight, [np.asarray(504.0)], 0.05)[0]
    mean = float(expected_maximum_normal(8))
    assert float(most) == pytest.approx(0.3 * mean)
    few = jitter_excess(eight, [np.asarray(25.0)], 0.05)[0]
    assert float(few) == pytest.approx(0.25 * mean)
    # 16 stages of 8 tensor ranks, which meet after each of 512 pieces that vary by 30 %, the stages after every second.
    generator = np.random.default_rng(1)
    drawn = [
        (1 / 512 * (1 + 0.3 * generator.standard_normal((8, 16, 512))).max(axis=0))
        .reshape(16, 256, 2)
        .sum(axis=-1)
        .max(axis=0)
        .sum()
        for _ in range(40)
    ]
    both = jitter_excess([np.asarray(8.0), np.asarray(128.0)], [np.asarray(512.0), np.asarray(256.0)], 0.05)
    assert float(sum(both)) == pytest.approx(np.mean(drawn) - 1, rel=0.03)
    job = {
        "model": "llama3-405b",
        "cluster": "llama3-roce",
        "gpus": 16384,
        "layout": "tp8 pp16",
        "global_batch": 2048,
        "seq_len": 8192,
    }
    slow = estimate(
        **job, switches={"stragglers": "normal", "straggler_variation": 0.0, "straggler_jitter": 0.05}
    )
    even = estimate(**job)
    # 128 replicas of 16 stages of 8 ranks: 504 pieces, of which stages meet 32 times. A hundredth of 3,079 jobs of
    # ByteDance lost 45 % of their time to stragglers of any cause, a tenth 21.3 % (arXiv:2505.05713, section 4.1).
    pieces = 1 + 0.3 * generator.standard_normal((128, 16, 8, 512), dtype=np.float32)
    drawn = pieces.max(axis=2).reshape(128, 16, 32, 16).mean(axis=-1).max(axis=1).mean(axis=-1).max()
    ratio = float(slow.step_time_s) / float(even.step_time_s)
    excess = sum(float(line.terms["excess"]) for line in slow.bill.time_lines if ".jitter." in line.name)
    assert excess == pytest.approx(drawn - 1, rel=0.03)
    assert 1 / (1 - 0.213) < ratio < 1 / (1 - 0.45)
    assert any("straggler_jitter 0.05 means pieces" in said for said in slow.warnings)
    small = estimate(**job, switches={"stragglers": "normal", "straggler_jitter": 0.002})
    assert not any("straggler_jitter" in said for said in small.warnings)


def test_a_degraded_gpu_slows_its_own_work_and_nothing_that_waits_or_sends():
    job = {
        "model": "llama3-8b",
        "cluster": "h100",
        "gpus": 64,
        "tp": 2,
        "pp": 4,
        "global_batch": 64,
        "seq_len": 4096,
    }
    plain, slow = cm.estimate(**job), cm.estimate(**job, switches={"degraded_gpu": 0.8})
    categories = plain.exposed_by("category")
    work_s = float(plain.step_time_s) - float(categories["communication"]) - float(categories["bubble"])
    assert float(slow.step_time_s) - float(plain.step_time_s) == pytest.approx(work_s / 4, rel=1e-9)
    assert float(categories["bubble"]) > 0
    added = [line.name for line in slow.bill.time_lines if line.axis == "resilience"]
    assert added == ["resilience.degraded_gpu"]
