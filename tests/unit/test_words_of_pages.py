"""Cells of pages that few jobs reach, on answers made up of round numbers; files and bars of the command line."""

from types import SimpleNamespace

import numpy as np
import pytest

from costmodel.base.answer import Listing
from costmodel.base.errors import CostModelError
from costmodel.reporting import training_runs
from costmodel.reporting.lists import list_grids
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


def cells(grid):
    return {str(row[0]): [str(cell) for cell in row[1:]] for row in grid.rows}


def test_what_a_budget_buys_by_rule(monkeypatch):
    """Twenty tokens a parameter are whole, five have two digits; what is too large to serve says so."""
    monkeypatch.setattr(training_runs, "_budget_head", lambda found: None)
    _, choices = training_runs.budget_grids(bought())
    assert [[str(cell) for cell in row] for row in choices.rows] == [
        ["a", "2.0 B", "40.0 B", "20", "2.500", "$1,000", "$500", "$1,500"],
        ["a", "2.0 B", "10.0 B", "5", "2.500", "$1,000", "too large", "–"],
    ]
    assert [column.title for column in choices.columns][-2:] == ["Serving", "Together"]
    _, unserved = training_runs.budget_grids(
        bought(served_tokens=0.0, choices=(purchase(tokens=5.5e9, serve_usd=0.0),))
    )
    assert [[str(cell) for cell in row] for row in unserved.rows] == [
        ["a", "2.0 B", "5.50 B", "2.8", "2.500", "$1,000"]
    ]


def test_what_a_budget_is():
    """Rows of money, hours, training, percentiles and serving; what was not asked is not said."""
    within = {
        "dollars": {"p10": 900.0, "p50": 1000.0, "p90": 1100.0},
        "days": {"p10": 9.0, "p50": 10.0, "p90": 12.5},
        "training_flops": {"p10": 6.5e20, "p50": 7.2e20, "p90": 8e20},
    }
    headline, _ = training_runs.budget_grids(bought(spread=within))
    assert headline.title == "A budget on h100"
    said = {name: cells for name, (cells,) in cells(headline).items()}
    assert said["budget"] == "$1,000 at $2.00 a GPU-hour"
    assert said["GPU-hours"] == "500 on 8 GPUs in 10.0 days"
    assert said["training"] == ("7.2e+20 FLOP: MFU 40% in bf16, 90% of the time in steps that count")
    assert said["p10 / p50 / p90"].startswith(
        "$900 / $1,000 / $1,100 and 9.0 / 10.0 / 12.5 days for this training, or 6.5e+20 / 7.2e+20 / 8e+20 FLOP for this"
    )
    assert said["serving"] == "1.00 B tokens at a context of 8,192 tokens"
    del within["days"]
    for changes in ({"gpus": None}, {"days": None}):
        few, _ = training_runs.budget_grids(bought(spread=within, served_tokens=0.0, **changes))
        said = {name: cells for name, (cells,) in cells(few).items()}
        assert said["GPU-hours"] == "500"
        assert said["p10 / p50 / p90"].startswith("$900 / $1,000 / $1,100 for this training, or")
        assert "serving" not in said


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


def test_lists_of_every_kind():
    table = {
        "name": ["dense", "experts"],
        "num_params": [8e9, 6.71e11],
        "num_active_params": [8e9, 3.7e10],
        "num_layers": [32, 61],
        "hidden_size": [4096, 7168],
        "num_heads": [32, 128],
        "num_kv_heads": [8, 128],
        "attention": ["gqa", "mla"],
        "num_experts": [0, 256],
    }
    (models,) = list_grids(Listing("models", table))
    assert [list(row) for row in models.rows] == [
        ["dense", "8,000,000,000", "", "32", "4096", "32/8", "gqa", ""],
        ["experts", "671,000,000,000", "37,000,000,000", "61", "7168", "128/128", "mla", "256"],
    ]
    (recipes,) = list_grids(Listing("recipes", {"name": ["a"], "description": ["b"]}))
    assert (recipes.title, len(recipes.columns), recipes.rows) == ("Recipes", 2, [("a", "b")])
    (profiles,) = list_grids(Listing("profiles", {"k": ["link"], "n": ["x"], "o": [""], "t": ["X"]}))
    assert profiles.title == "Hardware profiles"
    assert [column.title for column in profiles.columns] == ["Kind", "Name", "Or", "Title"]
    assert profiles.rows == [("link", "x", "", "X")]
    assert [column.title for column in recipes.columns] == ["Recipe", "Description"]
    assert [(column.title, column.number) for column in models.columns] == [
        ("Model", False),
        ("Parameters", True),
        ("Active", True),
        ("Layers", True),
        ("Hidden", True),
        ("Heads/KV", True),
        ("Attention", False),
        ("Experts", True),
    ]
