"""Samples of an estimate: intervals, causes of width, and the probability that it fits."""

import numpy as np
import pytest

import costmodel as cm
from costmodel.base.errors import CostModelError
from costmodel.describe.factors import factors, quantile

JOB = {
    "model": "llama3-70b",
    "cluster": "h100-ndr",
    "gpus": 256,
    "layout": "tp8 pp4 vp2",
    "global_batch": 256,
    "seq_len": 8192,
}


@pytest.fixture(scope="module")
def est():
    return cm.estimate(**JOB, tokens="1T")


def test_an_interval_is_quantiles_of_the_samples(est):
    samples = est.sample(400, seed=2)
    low, high = est.interval(0.8, samples=400, seed=2)
    assert (low, high) == pytest.approx(tuple(np.quantile(samples.step_time_s, [0.1, 0.9])))
    wide = samples.interval(0.98)
    assert wide.low < low < float(est.step_time_s) < high < wide.high
    assert samples.count == 400
    assert samples.factors["launch"].shape == (400,)


def test_days_follow_the_step_time_sample_by_sample(est):
    samples = est.sample(50)
    steps = 1e12 / float(est.tokens_per_step)
    assert samples.figures["days"] == pytest.approx(samples.step_time_s * steps / 86400.0)
    assert "days" not in cm.estimate(**JOB).sample(50).figures


def test_causes_are_a_factor_from_its_p10_to_its_p90_alone(est):
    samples = est.sample(50)
    causes = {one.name: one for one in samples.time_causes}
    assert [one.width for one in samples.time_causes] == sorted(
        (one.width for one in causes.values()), reverse=True
    )
    own = causes["layout.hopper-dense"]
    # Every second of the model is multiplied: the figure moves as the factor does.
    assert own.low == pytest.approx(quantile(own.name, 0.1) / quantile(own.name, 0.5), rel=1e-3)
    assert own.high == pytest.approx(quantile(own.name, 0.9) / quantile(own.name, 0.5), rel=1e-3)
    assert own.source == factors()[own.name].source
    assert "states" not in causes
    assert {one.name for one in samples.memory_causes} == {"states", "activations", "slack"}


def test_it_fits_as_often_as_need_stays_below_what_a_gpu_gives(est):
    samples = est.sample(200)
    need = samples.memory_bytes_per_gpu / est.memory_capacity_bytes
    assert samples.fits_share == pytest.approx(np.mean(need <= samples.factors["room.other"]))


def test_the_record_and_the_table_say_the_same(est):
    samples = est.sample(20, seed=7)
    record, table = samples.to_dict(), samples.columns()
    assert record["seed"] == 7
    assert record["samples"] == len(table["sample"]) == 20
    assert record["step_time_s"]["p50"] == pytest.approx(np.quantile(table["step_time_s"], 0.5))
    assert set(record["step_time_s"]) == {"p10", "p50", "p90"}
    assert table["factor.launch"] == samples.factors["launch"].tolist()


def test_a_run_that_never_fails_is_as_sure_as_its_step(est):
    sure = {"failures_per_node_day": 0, "checkpoint_interval": "10 d", "samples": 4000, "seed": 3}
    run = cm.run(**JOB, tokens="1T", **sure)
    step = est.sample(1000, seed=3)
    days = run.spread(10, 90)["days"]
    assert days / run.days == pytest.approx(
        np.quantile(step.step_time_s, [0.1, 0.9]) / float(est.step_time_s), rel=0.01
    )


def test_samples_widen_the_tables_of_an_estimate(est):
    said = est.with_samples(50, seed=4)
    wide = said.columns("wide")
    assert wide["step_time_p10_s"] == [said.samples.quantile(0.1)]
    assert wide["fits_probability"] == [float(est.fits_probability)]
    assert "step_time_p10_s" not in est.columns("wide")
    assert said.to_dict()["uncertainty"]["seed"] == 4
    assert "uncertainty" not in est.to_dict()
    titles = [grid.title for grid in said.grids()]
    assert "Main sources of uncertainty" in titles
    assert "Main sources of uncertainty" not in [grid.title for grid in est.grids()]


def test_wrong_numbers_are_one_line(est):
    with pytest.raises(CostModelError, match="samples: expected 10 to 100,000, got 3"):
        est.sample(3)
    with pytest.raises(
        CostModelError, match=r"interval: expected a share between 0 and 1, such as 0.8, got 80"
    ):
        est.interval(80)
    with pytest.raises(CostModelError, match="sample: this estimate holds"):
        cm.estimate(**{**JOB, "layout": "pp4", "tp": [4, 8]}).sample()


def test_dollars_are_gpu_hours_at_the_clusters_price(est):
    samples = est.sample(50)
    price = est.job.cluster.price_usd_per_gpu_hour
    assert samples.figures["dollars"] == pytest.approx(price * samples.figures["gpu_hours"])
    assert samples.figures["gpu_hours"] == pytest.approx(256 * 24.0 * samples.figures["days"])
    row = {name: values[0] for name, values in est.with_samples(50).columns("wide").items()}
    assert (row["dollars_p10"], row["dollars_p90"]) == pytest.approx(samples.interval(figure="dollars"))
    assert (row["days_p10"], row["days_p90"]) == pytest.approx(samples.interval(figure="days"))
    without = cm.estimate(**JOB).with_samples(50).columns("wide")
    assert without["days_p90"] == without["dollars_p90"] == [""]


def test_a_sweeps_row_has_the_quantiles_of_its_layout_on_common_samples():
    asked = {**JOB, "gpus": [256, 512], "layout": "tp8 pp4"}
    plain = cm.sweep(**asked).rows
    rows = cm.sweep(**asked, samples=60, seed=3).rows
    assert [row["step_time_p90_s"] for row in plain] == [None, None]
    for row, gpus in zip(rows, (256, 512), strict=True):
        one = cm.estimate(**{**JOB, "gpus": gpus, "layout": "tp8 pp4"})
        own = one.sample(60, seed=3)
        assert (row["step_time_p10_s"], row["step_time_p90_s"]) == pytest.approx(own.interval())
        assert row["fits_probability"] == float(one.fits_probability)
    with pytest.raises(CostModelError, match="samples: expected 10"):
        cm.sweep(**asked, samples=3)
