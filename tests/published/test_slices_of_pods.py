"""What a chip loses from one slice of TPU v5e to 32: published beside predicted (AI-Hypercomputer/maxtext README)."""

from pathlib import Path

import pytest
import readme_tables

from costmodel.estimates.estimate import estimate_job
from costmodel.trust.published_runs import job_of_row, read_rows
from costmodel.trust.shares import HELD_OUT_SOURCES

ROWS = {row["id"]: row for row in read_rows(Path(__file__).with_name("tpu_slices.csv"))}
APART = {("16b", 32): 0.045, ("128b", 4): 0.05, ("128b", 32): 0.085}
"""Where loss by scale is farther off than 4 points, and by how much at most."""


def lost(model, slices):
    names = (f"maxtext-v5e-{model}-1x256", f"maxtext-v5e-{model}-{slices}x256")
    one, many = (
        (float(ROWS[name]["step_time_s"]), float(estimate_job(job_of_row(ROWS[name])).step_time_s))
        for name in names
    )
    return 1.0 - one[0] / many[0], 1.0 - one[1] / many[1]


@pytest.mark.parametrize("model", ["16b", "32b", "128b"])
def test_loss_by_scale_of_slices(model):
    before = 0.0
    for slices in (2, 4, 8, 16, 32):
        published, predicted = lost(model, slices)
        assert before < predicted < 0.12
        assert predicted == pytest.approx(published, abs=APART.get((model, slices), 0.04)), slices
        before = predicted


def test_these_runs_are_priced_as_on_tpus():
    job = job_of_row(ROWS["maxtext-v5e-128b-32x256"])
    assert (job.recipe.name, job.slice, float(job.layout.gpus)) == ("maxtext-tpu", "16x16", 8192)


RUNS = {run["name"]: run for run in readme_tables.ten_runs()}


@pytest.mark.parametrize("name", RUNS)
def test_known_run_is_within_fifteen_percent(name):
    assert abs(RUNS[name]["error"]) <= 0.15


def test_no_known_run_is_in_a_fit():
    assert {"korthikanti22", "deepseek-v3", "llama3", "megatron-moe-modelzoo"} <= set(HELD_OUT_SOURCES)
