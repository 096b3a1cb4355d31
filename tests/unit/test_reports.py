"""Reports read a bill and add nothing: sums, round trips, array = single, warnings that are true."""

import re

import numpy as np
import pytest

import costmodel as cm
from costmodel.estimates.savings import memory_savings
from costmodel.reporting.tables import time_grid

DENSE = {"model": "llama3-8b", "gpus": 64, "layout": "tp2 pp4", "global_batch": 128, "seq_len": 8192}
EXPERTS = {"model": "qwen3-30b-a3b", "gpus": 64, "layout": "pp2 ep8", "global_batch": 256, "seq_len": 4096}
HUGE = {"model": "llama3-405b", "gpus": 512, "layout": "tp8 pp8", "global_batch": 256, "seq_len": 8192}


@pytest.fixture(scope="module", params=[DENSE, EXPERTS, HUGE], ids=["dense", "experts", "huge"])
def est(request):
    return cm.estimate(**request.param)


@pytest.fixture(scope="module")
def many():
    grid = {"tp": np.array([1, 2, 4])[:, None], "recompute": np.array(["none", "full"])}
    return cm.estimate(model="llama3-8b", gpus=64, global_batch=128, seq_len=8192, tokens=1e12, **grid)


# --- records ---------------------------------------------------------------------------------


def test_sources_name_every_number_of_the_hardware(est):
    sources = est.to_dict()["sources"]
    assert {
        "cluster dgx-h100-ndr",
        "accelerator h100-sxm-80gb",
        "link nvlink4",
        "model",
        "recipe",
    } <= sources.keys()
    assert "memory_bandwidth" in sources["accelerator h100-sxm-80gb"]


# --- frames ----------------------------------------------------------------------------------


def test_a_row_of_many_layouts_is_the_single_layout(many):
    rows = many.to_frame("wide")
    for index, (tp, recompute) in enumerate((tp, r) for tp in (1, 2, 4) for r in ("none", "full")):
        one = cm.estimate(
            model="llama3-8b",
            gpus=64,
            tp=tp,
            recompute=recompute,
            global_batch=128,
            seq_len=8192,
            tokens=1e12,
        )
        single = one.to_frame("wide").iloc[0].drop("layout")
        for name, value in rows.iloc[index].drop("layout").items():
            expected = single[name]
            assert value == (
                pytest.approx(expected, rel=1e-12) if isinstance(expected, float) else expected
            ), name


# --- tables ----------------------------------------------------------------------------------


def test_shares_of_the_time_bill_add_up(est):
    grid = time_grid(est, every_line=True)
    axes = [row for index, row in enumerate(grid.rows) if index in grid.strong]
    shares = [float(row[5].rstrip("%")) for row in axes]
    assert shares[-1] == 100.0
    assert sum(shares[:-1]) == pytest.approx(100.0, abs=0.05 * len(shares))
    shown = {row[0].strip() for row in grid.rows}
    named = {
        line.name.removeprefix(f"{line.axis}.") for line in est.bill.time_lines if line.exposed_seconds > 0
    }
    assert named <= shown


# --- mesh ------------------------------------------------------------------------------------


# --- warnings and savings ---------------------------------------------------------------------


def warned(text, **job):
    return [warning for warning in cm.estimate(**{**DENSE, **job}).warnings if text in warning]


def test_what_does_not_fit_says_by_how_much_and_what_frees_most():
    est = cm.estimate(**HUGE)
    assert not est.fits
    (said,) = [warning for warning in est.warnings if warning.startswith("does not fit")]
    savings = memory_savings(est.job)
    over = (float(est.memory_bytes_per_gpu) - est.memory_capacity_bytes) / 2**30
    assert f"{savings[0].change} frees most" in said
    assert abs(float(re.search(r"([\d.]+) GiB too much", said)[1]) - over) < 0.01 * over
    assert savings[0].freed_bytes == max(saving.freed_bytes for saving in savings)


SAVING_KEYWORDS = {
    "recompute": "recompute",
    "zero": "zero_stage",
    "micro-batch": "micro_batch",
    "tp": "tp",
    "pp": "pp",
    "cp": "cp",
    "ep": "ep",
}


def test_savings_are_what_an_estimate_of_the_change_says():
    job = {**DENSE, "layout": None, "tp": 2, "pp": 4, "micro_batch": 4}
    before = cm.estimate(**job)
    checked = set()
    for saving in memory_savings(before.job):
        said = str(saving.change)
        if "=" in said:
            switch, value = said.split("=")
            after = cm.estimate(**job, switches={switch: value})
        else:
            word, value = said.split(" ")[:2]
            if word not in SAVING_KEYWORDS:
                continue
            value = int(value) if value.isdigit() else value
            after = cm.estimate(**{**job, SAVING_KEYWORDS[word]: value})
        checked.add(said)
        assert saving.memory_bytes == pytest.approx(float(after.memory_bytes_per_gpu), rel=0.02), saving
        assert saving.step_time_s == pytest.approx(float(after.step_time_s), rel=0.02), saving
    assert {"recompute full", "zero 3", "micro-batch 2", "offload_optimizer=true"} <= checked


def test_savings_that_cannot_run_are_left_out():
    est = cm.estimate(**{**DENSE, "layout": "tp32"})
    assert not any(str(saving.change) == "tp 64" for saving in memory_savings(est.job))


def test_ignored_inputs_are_named():
    assert warned("shard_group 4 is ignored", shard_group=4, zero_stage=0)
    assert not warned("shard_group", shard_group=4, zero_stage=3)
    assert warned("sequence_parallel is ignored", layout="tp1 pp4", sequence_parallel=True)
    assert warned("learned positions", model="gpt2-xl", layout="tp1", seq_len=4096)


def test_constants_that_are_not_measured_are_named():
    assert warned("bf16 matrix kernels are not measured", cluster="mi300x-roce400")
    assert warned("not measured", cluster="dgx-v100-edr", precision="fp16")
    assert not warned("kernels")


# --- recipes ---------------------------------------------------------------------------------
