"""Whole runs side by side: the figures are those of each run."""

import re
from datetime import date

import pytest

import costmodel as cm
from costmodel.base.errors import CostModelError
from costmodel.cli import main

JOB = {"model": "llama3-8b", "gpus": 8, "global_batch": 8, "seq_len": 2048, "tokens": 1e12}


def test_figures_are_those_of_each_run():
    one, two = cm.run(**JOB, tp=2), cm.run(**JOB, tp=4, cluster="dgx-h200-ndr")
    found = cm.runs(one, two, labels=["x", "y"])
    table = found.columns()
    assert table["label"] == ["x", "y"]
    for index, run in enumerate((one, two)):
        assert table["dollars"][index] == run.dollars
        assert table["days_p90"][index] == float(run.spread(90)["days"][0])
        assert found.to_dict()["runs"][index]["days"] == run.days
    rows = {row[0]: row[1:] for row in found.grids()[0].rows}
    assert rows["dollars"] == [f"${run.dollars:,.0f}" for run in (one, two)]
    assert rows["cluster"] == ["8 GPUs of dgx-h100-ndr", "8 GPUs of dgx-h200-ndr"]
    assert rows["price of a GPU-hour"][1].startswith("$4.00 (profile dgx-h200-ndr, 2026-")
    low, middle, high = two.spread(10, 50, 90)["dollars"]
    assert rows["  p10 / p50 / p90"][1] == f"{low:,.0f} / {middle:,.0f} / {high:,.0f}"


def test_the_day_on_which_it_is_done_follows_from_the_start(capsys):
    run = cm.run(**JOB, tp=2)
    dates = run.finishing_dates("2026-12-01")
    for percent, day in dates.items():
        days = float(run.spread(int(percent[1:]))["days"][0])
        assert 0 <= (day - date(2026, 12, 1)).days - days < 1
    for wrong in ("tomorrow", "2026-13-01"):
        with pytest.raises(CostModelError, match="expected a date such as 2026-12-01"):
            run.finishing_dates(wrong)
    with pytest.raises(CostModelError, match="outlasts the calendar"):
        cm.run(**{**JOB, "tokens": 1e17}, tp=2).finishing_dates("2026-12-01")
    flags = "-m llama3-8b -n 8 --tp 2 --global-batch 8 --seq-len 2048 --tokens 1T --start 2026-12-01"
    assert main(["run", *flags.split()]) == 0
    assert f"started on 2026-12-01, done by p10 {dates['p10']}" in capsys.readouterr().out


def test_one_run_or_too_few_labels_are_refused():
    run = cm.run(**JOB, tp=2)
    with pytest.raises(CostModelError, match="expected two or more"):
        cm.runs(run)
    with pytest.raises(CostModelError, match="as many labels"):
        cm.runs(run, run, labels=["x"])


def test_limits_are_told_of_every_run_side_by_side(tmp_path, capsys):
    """What is left of the money and of the days, by job: neither is dropped where several are given."""
    for name, gpus in (("a", 64), ("b", 128)):
        text = (
            f"model: llama3-8b\ngpus: {gpus}\nlayout: tp2\nglobal_batch: 128\nseq_len: 8192\ntokens: 1e12\n"
        )
        (tmp_path / f"{name}.yaml").write_text(text)
    files = [str(tmp_path / f"{name}.yaml") for name in "ab"]
    assert main(["run", *files, "--budget", "40k", "--days", "9", "--quiet"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert len(re.findall(r"\$40,000: \$[\d,]+ \([\d.]+%\) too little; kept in", told)) == 2
    assert len(re.findall(r"9\.0 days: [\d.]+ (?:days|h) \([\d.]+%\) (?:too little|left)", told)) == 2
