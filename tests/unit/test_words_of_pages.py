"""Cells of pages that few jobs reach, on answers made up of round numbers; files and bars of the command line."""

from types import SimpleNamespace

import numpy as np
import pytest

from costmodel.base.errors import CostModelError
from costmodel.whole_run import budget


def purchase(**changes):
    said = {
        "rule": "a",
        "num_params": 2e9,
        "tokens": 4e10,
        "loss": 2.5,
        "train_usd": 1e3,
        "serve_usd": 500.0,
        "source": "s",
    }
    return budget.Purchase(**{**said, **changes})


def bought(**changes):
    said = {
        "cluster": SimpleNamespace(name="c", accelerator=SimpleNamespace(name="h100")),
        "price_usd_per_gpu_hour": 2.0,
        "dollars": 1000.0,
        "gpu_hours": 500.0,
        "training_flops": 7.2e20,
        "mfu": 0.4,
        "effective_time": 0.9,
        "precision": "bf16",
        "days": 10.0,
        "gpus": 8.0,
        "served_tokens": 1e9,
        "context": 8192,
        "spread": {"dollars": {"p10": 900.0, "p50": 1000.0, "p90": 1100.0}},
        "choices": (purchase(), purchase(tokens=1e10, serve_usd=None)),
        "solved": (),
    }
    return SimpleNamespace(**{**said, **changes})


def test_what_a_budget_tells_in_percentiles():
    """Steps of 0.9, 1, ... 1.3 of what is expected: p10, p50 and p90 are 0.94, 1.1 and 1.26; a choice takes half of it."""
    said = vars(bought())
    del said["spread"]
    said["choices"] = (purchase(train_usd=500.0),)
    over = np.array([0.9, 1.0, 1.1, 1.2, 1.3])
    said["answers"] = 0.0
    found = budget.Budget(**said, step_over_expected=over)
    ends = {"p10": 0.94, "p50": 1.1, "p90": 1.26}
    times = {"dollars": 1000.0, "gpu_hours": 500.0, "days": 10.0}
    expected = {name: {key: value * end for key, end in ends.items()} for name, value in times.items()}
    flops = np.percentile(7.2e20 / over, [10, 50, 90])
    assert set(found.spread) == {*expected, "training_flops"}
    for name, within in expected.items():
        assert found.spread[name] == pytest.approx(within), name
    assert list(found.spread["training_flops"].values()) == pytest.approx(flops.tolist())
    (row,) = found.to_dict()["choices"]
    assert {key: row[key] for key in row if "_p" in key and key != "num_params"} == {
        "tokens_per_parameter": 20.0,
        "train_usd_p10": pytest.approx(470.0),
        "train_usd_p50": pytest.approx(550.0),
        "train_usd_p90": pytest.approx(630.0),
        "days_p10": pytest.approx(4.7),
        "days_p50": pytest.approx(5.5),
        "days_p90": pytest.approx(6.3),
    }
    record = found.to_dict()
    names = ("price_usd_per_gpu_hour", "dollars", "gpu_hours", "training_flops", "mfu", "effective_time")
    names += ("precision", "days", "gpus", "served_tokens", "context")
    assert {name: record[name] for name in names} == {name: said[name] for name in names}
    assert (record["cluster"], record["samples"]) == ("c", 5)
    assert found.columns()["days_p90"] == [pytest.approx(6.3)]
    endless = budget.Budget(**{**said, "days": None}, step_over_expected=over)
    assert "days" not in endless.spread
    assert endless.to_dict()["choices"][0]["days_p10"] is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gpus": 8}, "give --budget USD, or both --gpus and --days"),
        ({"days": 9}, "give --budget USD, or both --gpus and --days"),
        ({}, "give --budget USD, or both --gpus and --days"),
        ({"gpus": 8, "days": 9, "dollars": 1e5}, "are one too many; leave one out"),
    ],
)
def test_a_budget_is_money_or_people_and_days(given, said):
    with pytest.raises(CostModelError, match=said):
        budget.budget(**given)
