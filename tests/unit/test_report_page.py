"""The page of `costmodel estimate --html` as a file: one, whole, small, and free of the network."""

import json
import re
from html import unescape

import pytest

import costmodel as cm
from costmodel.base.units import format_seconds
from costmodel.cli import main
from costmodel.reporting.cells import say
from costmodel.reporting.html.page import report

JOB = {
    "model": "llama3-8b",
    "cluster": "dgx-h100-ndr",
    "gpus": 64,
    "layout": "tp2 pp2",
    "global_batch": 128,
    "seq_len": 8192,
}
FLAGS = ["-m", "llama3-8b", "-n", "64", "-l", "tp2 pp2", "--global-batch", "128", "--seq-len", "8192"]
MOST_BYTES = 1_000_000


@pytest.fixture(scope="module")
def page():
    return report(cm.estimate(**JOB), plan=False, sensitivities=False)


def test_the_page_is_one_small_file_without_addresses(page):
    assert len(page.encode()) < MOST_BYTES
    assert "<!--" not in page.replace("<!DOCTYPE", "")
    assert not re.findall(r'(?:src|href)="(?!data:,)[^"]*"', page)


def test_a_name_that_looks_like_a_script_hides_nothing():
    est = cm.estimate(**JOB)
    model = est.job.model.model_copy(update={"name": "<!--<script>"})
    page = report(cm.estimate(**{**JOB, "model": model}), plan=False, sensitivities=False)
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1]
    assert "<" not in data
    assert "<!--<script>" in json.loads(data)["job"]["command"]
    assert "<!--<script>" not in page


def test_the_page_says_what_the_run_costs_and_when_it_was_made():
    run = cm.run(**JOB, tokens=1e12)
    page = report(cm.estimate(**JOB, tokens=1e12), plan=False, sensitivities=False)
    section = page.partition('<section id="run">')[2].partition("</section>")[0]
    assert f"${run.dollars:,.0f}" in section
    for said in ("calendar time", "energy", "interruptions", "p10", "p90", "GPU-hours"):
        assert said in section
    footer = page.partition("<footer>")[2]
    assert re.search(r"Made by costmodel \S+ on \d{4}-\d\d-\d\d; the same on the command line", footer)
    assert "costmodel estimate -m llama3-8b" in footer
    assert '<section id="run">' not in report(cm.estimate(**JOB), plan=False, sensitivities=False)


def test_the_headline_and_every_source_are_on_the_page(page):
    est = cm.estimate(**JOB)

    assert f"{float(est.step_time_s):.3f} s" in page
    assert f"{float(est.mfu):.1%}" in page
    for line in est.bill.time_lines:
        if float(line.seconds) > 0:
            assert line.name in page
    assert "Sources: accelerator h100-sxm-80gb" in page
    assert "Error band" in page


def test_report_writes_whole_files_and_keeps_what_exists(tmp_path, capsys):
    path = tmp_path / "page.html"

    assert main(["estimate", *FLAGS, "--html", str(path), "--no-plan", "--no-sensitivity"]) == 0
    assert f"wrote {path}" in capsys.readouterr().err
    assert main(["estimate", *FLAGS, "--html", str(path)]) == 2
    assert "--force" in capsys.readouterr().err
    assert "Other layouts" not in path.read_text(encoding="utf-8")


def test_the_page_of_report_says_what_makes_the_width():
    est = cm.estimate(**{**JOB, "tokens": "1T"})
    page = unescape(cm.report(est, plan=False, sensitivities=False, samples=50, seed=2))
    samples = est.sample(50, seed=2)
    assert samples.time_causes[0].scales in page
    low, high = (
        format_seconds(float(est.step_time_s) * end, 3) for end in (est.error_band.low, est.error_band.high)
    )
    assert f"80% range {low} to {high}" in page
    assert f"{low} to {high}, " in page
    assert say("{low:s3} to {high:s3}", samples.interval()) not in page
    assert say("80% range {low:s3} to {high:s3}", samples.interval()) in unescape(
        cm.report(est.with_samples(50, 2), plan=False, sensitivities=False)
    )
    assert say("of {memory_capacity_bytes:B}, {fits_probability:chance} likely to fit", est) in page
