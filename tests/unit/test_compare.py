"""Comparisons: differences of lines add up to those of totals, and the reasons given are the real ones."""

import re

import pytest
from famous_jobs import LLAMA3_405B, famous

import costmodel as cm
from costmodel.base.errors import CostModelError
from costmodel.base.units import format_seconds
from costmodel.cli.output import with_flags
from costmodel.reporting.comparison import compare_remarks
from costmodel.reporting.tables import spent_text
from costmodel.what_if.compare import compare, varied_jobs, vary

SMALL = {"model": "llama3-8b", "gpus": 64, "global_batch": 256, "seq_len": 8192}


def small(**changes):
    return cm.estimate(**{**SMALL, "tp": 2, **changes})


PAIRS = {
    "degree": lambda: (small(), small(tp=4)),
    "pipeline and dense against experts": lambda: (famous("llama3-405b"), famous("deepseek-v3")),
    "three jobs": lambda: (small(), small(zero_stage=3, recipe="torchtitan"), small(pp=4, recompute="full")),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_differences_of_lines_add_up_to_those_of_totals(pair):
    ests = PAIRS[pair]()
    comparison = compare(*ests)
    for job, est in enumerate(ests):
        for bill, total in (("time", "step_time_s"), ("memory", "memory_bytes_per_gpu")):
            moved = sum(line.difference(job) for line in comparison.lines if line.bill == bill)
            expected = float(getattr(est, total)) - float(getattr(ests[0], total))
            assert moved == pytest.approx(expected, rel=1e-9, abs=1e-9 * float(getattr(est, total)))


def why(comparison, name):
    return next(line.why[1] for line in comparison.lines if line.name == name)


def test_reasons_are_what_was_changed():
    by_degree = compare(small(), small(tp=4))
    assert "n 14336 → 7168".replace("14336", "14,336").replace("7168", "7,168") in why(
        by_degree, "compute.mlp.fc1.forward"
    )
    assert "runs 2 times" not in why(by_degree, "compute.mlp.fc1.forward")
    batches = compare(small(), small(global_batch=512))
    assert "runs 512 times instead of 256" in why(batches, "compute.mlp.fc1.forward")
    new = compare(small(), small(pp=4))
    assert why(new, "pp.send_recv") == "not there before"
    back = compare(small(pp=4), small())
    assert why(back, "pp.send_recv") == "gone"
    hidden = compare(small(gpus=256, switches={"dp_overlap": "none"}), small(gpus=256))
    assert "hidden instead of 0%" in why(hidden, "dp.dense.grad_reduce_scatter")


def test_an_equal_job_has_no_differences():
    comparison = compare(small(), small())
    assert not comparison.largest("time", 1)
    assert len(comparison.grids()) == 1
    assert compare_remarks(comparison) == ["B takes as long as A."]


def test_what_varies_replaces_field_or_switch_and_frees_dp():
    job = {**LLAMA3_405B, "dp": 128}
    (first, tp4), (second, tp8) = varied_jobs(job, ["tp=4,8"])
    assert (first, second) == ("tp=4", "tp=8")
    assert (tp4["tp"], tp8["tp"], tp4["pp"]) == (4, 8, 16)
    assert "dp" not in tp4
    both = varied_jobs(job, ["recompute=none,full", "sequence-parallel=true,false"])
    assert [label for label, _ in both][1:3] == [
        "recompute=none sequence_parallel=false",
        "recompute=full sequence_parallel=true",
    ]
    (given, same), (changed, other) = varied_jobs(job, ["dp_overlap=none"])
    assert (given, changed) == ("", "dp_overlap=none")
    assert same == job
    assert other["switches"] == {"dp_overlap": "none"}
    assert other["dp"] == 128


@pytest.mark.parametrize("text", ["tp", "tp=", "tpp=4", "name=x"])
def test_what_cannot_vary_is_refused_in_one_line(text):
    with pytest.raises(CostModelError, match=r"^vary: .*$"):
        varied_jobs(LLAMA3_405B, [text])


def test_how_surely_a_job_is_faster():
    """Without recomputation surely, the other way round never; of the same job nothing is known."""
    job = {"model": "llama3-8b", "gpus": 8, "tp": 2, "global_batch": 32, "seq_len": 4096}
    slow, fast = (cm.estimate(**job, recompute=recompute) for recompute in ("full", "none"))
    same, sure = cm.compare(slow, fast).odds
    assert tuple(same) == (0.0, 1.0, 1.0)
    assert sure[0] > 0.95
    assert sure[1] < sure[2] < 1.0
    back = cm.compare(fast, slow).odds[1]
    assert back[0] < 0.05
    assert back[1] > 1.0


def test_a_line_has_its_value_in_every_job_that_is_compared():
    job = {"model": "llama3-8b", "gpus": 8, "tp": 2, "global_batch": 32, "seq_len": 4096}
    three = {kind: cm.estimate(**job, cluster=kind) for kind in ("h100", "h200", "a100")}
    rows = cm.compare(*three.values(), labels=list(three)).brief().grids[1].rows
    for name, *texts in rows[:5]:
        assert texts == [format_seconds(est.explain(name)[0].total) for est in three.values()]


def test_bills_of_other_stages_are_said_to_be():
    """Eight layers less before the head: the stage with the head is no longer the slowest, nor the first the fullest."""
    even = small(pp=4, pipeline_layout="Etttttttt|tttttttt|tttttttt|ttttttttL")
    late = small(pp=4, pipeline_layout="Ett|tttttttttt|tttttttttttttttttt|ttL")
    comparison = compare(even, late)
    rows = {row[0]: row[1:] for row in comparison.grids()[0].rows}
    assert rows["slowest stage, from 0"] == ["3 of 4", "2 of 4"]
    assert rows["fullest stage, from 0"] == ["0 of 4", "2 of 4"]
    remark = compare_remarks(comparison)[0]
    assert remark.endswith(
        "Mind that the slowest stage is now 2 of 4 instead of 3 and the fullest stage is now 2 of 4 instead of 0."
    )
    assert "Mind" not in compare_remarks(compare(even, even))[0]
    flat = {row[0]: row[1:] for row in compare(small(), late).grids()[0].rows}
    assert flat["slowest stage, from 0"] == ["the only one", "2 of 4"]


def test_each_cluster_has_its_own_price():
    prices = {"dgx-h100-ndr": 2.0, "b200": 4.0}
    job = {"model": "llama3-8b", "gpus": 8, "global_batch": 16, "seq_len": 4096, "tp": 2}
    found = vary(["cluster=h100,b200"], **job, price_usd_per_gpu_hour=prices)
    assert [est.job.cluster.price_usd_per_gpu_hour for est in found.values()] == [2.0, 4.0]
    with pytest.raises(CostModelError, match="hgx-b200-ndr is not used here"):
        vary(["tp=2,4"], **job, price_usd_per_gpu_hour=prices)


def test_hardware_varies_by_several_numbers_and_by_none():
    """The empty value is the profile as it is, also where the job below has other numbers."""
    found = vary(["hw=,nic=50%,nic=50%+tdp=500W"], **SMALL, hw="tdp=600W")
    assert list(found) == ["hw=profile", "hw=nic=50%", "hw=nic=50%+tdp=500W"]
    assert [[name for name, _ in est.job.cluster.changed] for est in found.values()] == [
        [],
        ["nic"],
        ["nic", "tdp"],
    ]


def test_a_comparison_says_digits_that_tell_ratios_apart():
    """A tdp of 500 W is sure to be slower: the range is no single number, and no margin of a certainty is said."""
    slower = compare(*vary(["hw=,tdp=500W"], **SMALL).values())
    said = compare_remarks(slower)[0]
    low, high = re.search(
        r"> 99% confidence: ([\d.]+) to ([\d.]+) times as long \(p10 to p90, 400 samples\)", said
    ).groups()
    assert float(low) < float(high)


def test_a_warning_of_two_jobs_names_both_alike():
    jobs = vary(["zero=0,1,2,3"], model="llama3-70b", gpus=64, tp=2, global_batch=512, seq_len=8192)
    said = compare_remarks(compare(*jobs.values(), labels=list(jobs)))
    assert any("zero_stage=1; zero_stage=2: does not fit" in with_flags(text) for text in said)


def test_a_short_run_costs_what_its_time_times_the_gpus_costs():
    """A million tokens: no figure is rounded to nothing or to a whole one."""
    est = small(tokens=1e6)
    hours = 64 * 1e6 / (256 * 8192) * float(est.step_time_s) / 3600
    price = est.job.cluster.price_usd_per_gpu_hour
    said = re.search(r"([\d.]+) GPU-hours, \$([\d.]+) at", spent_text(est))
    assert float(said[1]) == pytest.approx(hours, rel=5e-3)
    assert float(said[2]) == pytest.approx(hours * price, rel=5e-3)
