"""A run is its bill times its steps; losses are lines; wrong input is one line."""

import pytest

import costmodel as cm
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
