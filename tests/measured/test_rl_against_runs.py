"""Steps of reinforcement learning against published ones: mean ratios by model and placement, with no row looked at alone."""

import csv
from pathlib import Path

import numpy as np
import pytest

import costmodel as cm

ROWS = Path(__file__).with_name("rl_steps.csv")
NO_KEYWORD = (
    "id",
    "framework",
    "quality",
    "url",
    "inferred",
    "step_time_s",
    "gen_s",
    "logprob_s",
    "train_s",
    "refit_s",
)
MEANS = {
    ("llama3-8b", True): 1.13,
    ("llama3-8b", False): 1.27,
    ("qwen2.5-7b", True): 1.11,
    ("qwen3-30b-a3b", True): 0.99,
    ("qwen3-30b-a3b", False): 0.82,
    ("deepseek-v3-671b", True): 0.96,
    ("deepseek-v3-671b", False): 0.74,
}
"""Mean of predicted over measured steps, by model and whether all GPUs do both halves."""


def rows():
    with ROWS.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def ratios():
    found = {}
    for row in rows():
        job = {key: value for key, value in row.items() if key not in NO_KEYWORD and value != ""}
        step = cm.estimate_rl(**job)
        key = (row["model"], row["generation_gpus"] == "0")
        found.setdefault(key, []).append((step.step_time_s / float(row["step_time_s"]), row, step))
    return found


def test_whole_steps_lie_around_the_published_ones(ratios):
    found = {key: np.mean([ratio for ratio, _, _ in held]) for key, held in ratios.items()}
    assert found == pytest.approx(MEANS, abs=0.02)
    errors = np.abs([ratio - 1.0 for held in ratios.values() for ratio, _, _ in held])
    # Decoding every answer to the mean, as a roofline does, is off by 72 % (median).
    assert np.quantile(errors, (0.5, 0.9)) == pytest.approx((0.145, 0.354), abs=0.02)


def test_shares_of_the_phases_lie_around_the_published_ones(ratios):
    for measured, phases, mean in (
        ("logprob_s", ("old log-probs", "ref log-probs"), 1.00),
        ("train_s", ("train",), 0.94),
        ("gen_s", ("generate",), 1.25),
        ("refit_s", ("refit",), 0.90),
    ):
        known = [
            sum(phase.seconds for phase in step.phases if phase.name in phases) / float(row[measured])
            for held in ratios.values()
            for _, row, step in held
            if row[measured]
        ]
        assert len(known) > 20
        assert np.mean(known) == pytest.approx(mean, abs=0.02), measured
