"""A run is its bill times its steps; losses are lines; wrong input is one line."""

import json

import pytest

import costmodel as cm
from costmodel.cli import main
from costmodel.estimates import priced_job
from costmodel.reporting import training_runs

JOB = {
    "model": "llama3-8b",
    "cluster": "dgx-h100-ndr",
    "gpus": 512,
    "layout": "tp2",
    "global_batch": 512,
    "seq_len": 8192,
}
FLAGS = ["--model=llama3-8b", "--gpus=512", "--tp=2", "--global-batch=512", "--seq-len=8192"]


def price(**changes):
    return cm.run(**{**JOB, "tokens": 1e12, **changes})


@pytest.mark.parametrize(("chance", "said"), [(0.42, 1), (0.74, 1), (0.76, 0)])
def test_a_layout_that_may_well_not_fit_is_warned_of_with_the_flag(monkeypatch, chance, said):
    class Odds:
        def fits_with(self, recipe):
            assert recipe == "megatron-core"
            return self

        def probability(self, need, have):
            assert need < have
            # The host has terabytes.
            return chance if have < 1e12 else 1.0

    monkeypatch.setattr(priced_job, "odds", Odds)
    warned = [text for text in training_runs.run_remarks(price()) if "likely to fit" in text]

    assert len(warned) == said
    if warned:
        assert warned[0].startswith(
            f"Warning: this layout is only {chance:.0%} likely to fit; costmodel plan --risk 10%"
        )
        planned = price()
        planned.est.is_planned = True
        assert any("the planner's layout is only" in text for text in training_runs.run_remarks(planned))


def test_command(capsys):
    assert main(["run", *FLAGS, "--tokens=1e12", "--format=json", "--seed=7"]) == 0
    record = json.loads(capsys.readouterr().out)
    run = price(seed=7)
    assert record["days"] == pytest.approx(run.days)
    assert record["spread"]["days"]["p50"] == pytest.approx(run.spread()["days"][1])
    assert main(["run", *FLAGS, "--tokens=1e12", "--details"]) == 0
    shown = capsys.readouterr().out
    for words in ("Where the GPU-hours go", "rework", "checkpoint pause", "p90", "$"):
        assert words in shown
    assert main(["run", *FLAGS, "--tokens=1e12", "--format=csv"]) == 0
    assert capsys.readouterr().out.startswith("figure,unit,expected,p10,p50,p90\n")
    assert main(["run", *FLAGS]) == 2
    assert "tokens missing" in capsys.readouterr().err
    stars = [
        ("", "llama3*"),
        ("--reliability=llama3", "llama3,"),
        ("--failures-per-node-day=0.01", "llama3,"),
    ]
    for flag, rates in stars:
        assert main(["run", *FLAGS, "--tokens=1e12", *filter(None, [flag])]) == 0
        shown = capsys.readouterr().out
        assert f"at the rates of {rates}" in shown
        assert "hot spares* not billed (*assumed)" in shown
    assert main(["run", *FLAGS, "--tokens=1e12", "--reliability=llama3", "--spare-nodes=3"]) == 0
    assert "3 hot spares\n" in capsys.readouterr().out


def test_epochs_of_a_data_set_are_tokens_of_a_run():
    """Three passes over 50,000 samples of 8,192 tokens, with the layout named, planned, or solved for."""
    tokens = 3 * 50_000 * 8192
    given = {"dataset_samples": "50k", "epochs": 3}
    assert cm.run(**JOB, **given).tokens == tokens
    assert cm.run(**JOB, **given).days == cm.run(**JOB, tokens=tokens).days
    small = {"model": "llama3-8b", "gpus": 8, "global_batch": 16, "seq_len": 8192}
    assert cm.run(**small, **given).tokens == tokens
    replicas = {name: value for name, value in JOB.items() if name != "gpus"}
    assert cm.run(**replicas, **given, days=3).tokens == tokens
    with pytest.raises(cm.CostModelError, match="follow from dataset_samples and epochs"):
        cm.run(**JOB, **given, tokens="1T")
    with pytest.raises(cm.CostModelError, match="needs dataset_samples"):
        cm.run(**JOB, epochs=2)
