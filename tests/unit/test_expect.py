"""Expectations of a job: read, held against the answer, and said."""

from dataclasses import replace

import pytest

import costmodel as cm
from costmodel.base.errors import CostModelError
from costmodel.bill.lines import CATEGORIES
from costmodel.what_if.expect import read_expected

JOB = {"model": "llama3-8b", "gpus": 8, "layout": "tp4", "global_batch": 8, "seq_len": 8192}


@pytest.fixture(scope="module")
def est():
    return cm.estimate(**JOB)


def test_figures_are_those_of_the_estimate(est):
    known = {"step_time": "step_time_s", "memory": "memory_bytes_per_gpu", "mfu": "mfu", "hfu": "hfu"}
    for text, figure in {**known, "tokens_per_s_per_gpu": "tokens_per_s_per_gpu"}.items():
        unit = {"step_time": " s", "memory": " B"}.get(text, "")
        value = float(getattr(est, figure))
        below, above = f"{value * 0.999:.12f}{unit}", f"{value * 1.001:.12f}{unit}"
        for way in ("<", "<=", ">", ">="):
            first, second = cm.expect(est, f"{text} {way} {below}, {text}{way}{above}")
            assert (first.holds, second.holds) == ((False, True) if way[0] == "<" else (True, False))
            assert first.value == pytest.approx(value)


def test_shares_of_the_step_are_sums_of_lines(est):
    """What is exposed by category adds up to the step; what is hidden is of the messages' own seconds."""
    shares = {name: cm.expect(est, f"{name} >= 0")[0].value for name in CATEGORIES}
    assert sum(shares.values()) == pytest.approx(1.0)
    lines = [line for line in est.bill.time_lines if line.category == "communication"]
    for name, sent in (("hidden", lines), ("dp_hidden", [line for line in lines if line.axis == "dp"])):
        waited = sum(float(line.exposed_seconds) for line in sent)
        found = cm.expect(est, f"{name} > 0")[0].value
        assert found == pytest.approx(1.0 - waited / sum(float(line.seconds) for line in sent))
    left = est.memory_capacity_bytes - float(est.memory_bytes_per_gpu)
    assert cm.expect(est, "memory_left > 0 B")[0].value == left
    assert cm.expect(est, "pp_hidden >= 1")[0].holds
    assert cm.expect(est, "fits_probability > 90%")[0].value == float(est.fits_probability)


def test_equal_meets_only_what_allows_it(est):
    outcomes = cm.expect(est, "gpus < 8, gpus <= 8, gpus > 8, gpus >= 8")
    assert [outcome.holds for outcome in outcomes] == [False, True, False, True]


def test_bounds_have_units():
    text = "step_time < 1500 ms, memory < 75 GiB, mfu > 40%, mfu > 0.4, tokens_per_s_per_gpu > 9k"
    assert [one.bound for one in read_expected(text)] == pytest.approx([1.5, 75 * 2**30, 0.4, 0.4, 9000.0])
    assert read_expected("dollars_p90 <= $3M", whole_run=True)[0].bound == 3e6


def test_a_run_has_the_figures_of_its_step_and_its_own():
    run = cm.run(**JOB, tokens=1e12, price_usd_per_gpu_hour=2.0)
    low, high = (float(run.spread(percent)["dollars"][0]) for percent in (10, 90))
    held = cm.expect(run, f"dollars_p10 < {low * 1.01}, dollars_p90 < {high * 0.99}, days > 1, mfu > 1%")
    assert [outcome.holds for outcome in held] == [True, False, True, True]
    assert held[1].sentence.startswith("expected dollars_p90 < ")
    with pytest.raises(CostModelError, match="dollars needs a price"):
        cm.expect(replace(run, price_usd_per_gpu_hour=None), "dollars < 3M")


def test_wrong_expectations_are_one_line(est):
    for text, said in [
        ("foo > 1", "'foo' is no figure; known: "),
        ("mfuu > 1", "did you mean 'mfu'"),
        ("mfu >", "expected a figure, one of < <= > >= and a bound"),
        ("mfu = 3", "expected a figure"),
        ("", "expected a figure"),
        ("mfu > 0.4,", "expected a figure"),
        ("mfu > nan", "mfu: expected a share such as 0.4 or 40%, got 'nan'"),
        ("mfu > 1e999", "expected a share"),
        ("step_time < 7", "step_time: expected a time"),
        ("memory < 5 s", "memory: "),
        ("dollars < 3M", "dollars is a figure of a whole run; ask costmodel run"),
        ("gpus > " + "9" * 400, "expected a figure"),
    ]:
        with pytest.raises(CostModelError) as refused:
            cm.expect(est, text)
        assert said in str(refused.value)
        assert "\n" not in str(refused.value)


def test_many_layouts_are_refused():
    with pytest.raises(CostModelError, match="expected one layout"):
        cm.expect(cm.estimate(**{**JOB, "layout": None, "tp": [2, 4]}), "mfu > 0.1")
