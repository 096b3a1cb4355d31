"""A layout that nobody named: said what was assumed, the planner's beside an estimate, the planner's for a run."""

import json

import pytest

import costmodel as cm
from costmodel.base.errors import CostModelError
from costmodel.cli import main
from costmodel.describe.jobs.layout_text import layout_text
from costmodel.describe.jobs.merge import names_no_degree
from costmodel.planning.entry import Alternative, alternative

JOB = {"model": "llama3-8b", "gpus": 8, "global_batch": 64, "seq_len": 8192}
FLAGS = ["-m", "llama3-8b", "-n", "8", "--global-batch", "64", "--seq-len", "8192"]


def test_what_names_no_degree():
    assert names_no_degree(JOB)
    assert names_no_degree({**JOB, "recompute": "full", "zero_stage": 1, "micro_batch": 2, "tp": None})
    for named in ({"tp": 1}, {"layout": "dp8"}, {"dp": 8}, {"ep": 2}, {"pipeline_layout": "balanced"}):
        assert not names_no_degree({**JOB, **named})


def test_an_open_estimate_that_does_not_fit_is_the_planners_best(capsys):
    """107 GiB on a GPU of 79: every door says so, and prices what fits."""
    best = cm.plan(**JOB).best
    est, alone = cm.estimate(**JOB), cm.estimate(**JOB, dp=8)
    assert (est.is_planned, est.fits, alone.is_planned, alone.fits) == (True, True, False, False)
    assert est.step_time_s == pytest.approx(best.step_time_s, rel=1e-12)
    assert main(["estimate", *FLAGS, "--format", "json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["step_time_s"] == pytest.approx(float(best.step_time_s), rel=1e-12)
    assert record["fits"]
    assert record["layout_is_planned"]
    chosen = cm.plan(**JOB).columns(1)["choices"][0]
    assert chosen
    assert est.chosen.startswith(chosen)
    assert main(["estimate", *FLAGS]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"set {est.chosen}*" in shown
    assert f"planned {layout_text(est.job.layout)}*" in shown
    assert alone.chosen == ""
    for command in ("estimate --details", "explain", "sensitivity"):
        assert main([*command.split(), *FLAGS]) == 0
        out, err = capsys.readouterr()
        assert "Layout: the planner's best" in out + err, command
    assert main(["estimate", *FLAGS, "--tp", "2"]) == 0
    assert "No layout was named" not in "".join(capsys.readouterr())


def test_arrays_are_not_quietly_replicas_where_one_job_would_be_planned():
    """A sequence of 1k fits as data parallelism alone, one of 8k does not."""
    short, both = {**JOB, "seq_len": [1024, 512]}, {**JOB, "seq_len": [1024, 8192]}
    ones = [float(cm.estimate(**{**JOB, "seq_len": length}).step_time_s) for length in short["seq_len"]]
    assert cm.estimate(**short).step_time_s.tolist() == pytest.approx(ones, rel=1e-12)
    with pytest.raises(CostModelError, match=r"layout: none is named, .* does not fit 1 of 2 jobs"):
        cm.estimate(**both)
    assert cm.estimate(**both, tp=1).fits.tolist() == [True, False]
    with pytest.raises(CostModelError, match="does not divide global_batch"):
        cm.estimate(**{**JOB, "gpus": [8, 128]})


def test_replicas_that_do_not_divide_the_batch_are_planned_too(capsys):
    assert main(["estimate", "-m", "llama3-8b", "-n", "128", "--global-batch", "64", "--seq-len", "8k"]) == 0
    assert " planned " in " ".join(capsys.readouterr().out.split())
    wrong = "estimate -m llama3-8b -n 128 --tp 1 --global-batch 64 --seq-len 8k"
    assert main(wrong.split()) == 2
    assert "does not divide global_batch = 64" in capsys.readouterr().err


def test_where_nothing_fits_replicas_are_priced_and_it_is_said(capsys):
    assert main(["estimate", "llama3-405b", *FLAGS[2:]]) == 0
    out = capsys.readouterr().out
    assert out.startswith("DOES NOT FIT")
    assert "Nor does another layout fit" in out


def test_what_is_said_of_an_estimate_that_fits():
    roomy = {**JOB, "gpus": 64, "model": "llama2-7b", "seq_len": 1024}
    est = cm.estimate(**roomy)
    assert est.fits
    assert not est.is_planned
    found = alternative(roomy)
    gain = 1 - float(found.est.step_time_s) / float(est.step_time_s)
    assert (f"({-gain:+.1%})" in found.sentence(est)) == (gain > 0.005)
    nearly = cm.estimate(
        **roomy, switches={"overhead_fraction": est.job.recipe.host.overhead_fraction - 0.002}
    )
    assert 0 < 1 - float(nearly.step_time_s) / float(est.step_time_s) < 0.005
    assert "no other is 0.5% faster than tp1 dp64" in Alternative(nearly).sentence(est)
    # Other choices that are named are kept to.
    assert "--recompute full" in alternative({**roomy, "recompute": "full"}).command
    refused = alternative({**JOB, "model": "llama3-405b"})
    assert refused.record() is None
    assert "no layout fits" in refused.sentence(est)


def test_a_run_is_of_the_layout_that_an_estimate_has():
    for job in (JOB, {**JOB, "gpus": 64, "model": "llama2-7b", "seq_len": 1024}):
        run, est = cm.run(**job, tokens=1e12), cm.estimate(**job)
        assert run.est.is_planned == est.is_planned == (job is JOB)
        assert run.est.step_time_s == pytest.approx(est.step_time_s, rel=1e-12)
        assert run.to_dict()["layout_is_planned"] == est.is_planned
    named = cm.run(**JOB, tokens=1e12, layout="dp8", recompute="full", zero_stage=3)
    assert not named.est.is_planned
    kept = cm.run(**JOB, tokens=1e12, zero_stage=0)
    assert float(kept.est.job.layout.zero_stage) == 0
    assert not cm.run(**{**JOB, "model": "llama3-405b"}, tokens=1e12, checkpointing="blocking").est.fits


def test_a_run_that_solves_for_gpus_does_not_assume_what_does_not_fit():
    job = {name: value for name, value in JOB.items() if name != "gpus"}
    with pytest.raises(
        CostModelError, match=r"layout: none is named, and tp1 dp\d+, .* needs 1\d\d GiB of 79"
    ):
        cm.run(**job, tokens=1e12, days=300)
    assert cm.run(**job, tokens=1e11, days=300, layout="tp2", recompute="full").est.fits


def test_a_run_shows_its_layout_and_memory(capsys):
    assert main(["run", *FLAGS, "--tokens", "1e12", "--details"]) == 0
    out = capsys.readouterr().out
    layout, memory = out.splitlines()[1:3]
    assert layout.startswith("layout ")
    assert layout.endswith("(the planner's: none was named)")
    assert memory.startswith("memory ")
    assert "fits, " in memory
    assert main(["run", *FLAGS, "--tokens", "1e12"]) == 0
    short = capsys.readouterr().out
    assert short.count("the planner's") == 1
    assert "(the planner's: none was named)" in short.splitlines()[1]
    assert main(["run", *FLAGS, "--tokens", "1e12", "-l", "dp8", "--format", "json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert not record["fits"]
    assert record["memory_bytes_per_gpu"] > record["memory_capacity_bytes"]
    assert record["warnings"][0].startswith("does not fit")
    assert main(["run", *FLAGS, "--tokens", "1e12", "-l", "dp8"]) == 0
    assert "DOES NOT FIT" in capsys.readouterr().out.splitlines()[0].upper()
