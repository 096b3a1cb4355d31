"""A run of minutes is told in minutes, one of days in days."""

import pytest

import costmodel as cm
from costmodel.reporting.training_runs import run_grids

JOB = {"model": "llama3-8b", "cluster": "dgx-a100-hdr", "gpus": 8, "global_batch": 64, "seq_len": 4096}
JOB |= {"lora_rank": 32, "recompute": "full", "samples": 200}


def tables(tokens):
    run = cm.run(**JOB, tokens=tokens)
    head, hours, spread, *_ = run_grids(run)
    energy = next(row for row in spread.rows if row[0].startswith("energy"))
    assert float(energy[2].replace(",", "")) == pytest.approx(run.spread(50)["energy_kwh"][0] / 1e3, rel=0.01)
    return (
        run,
        dict(head.rows),
        {row[0].strip(): row[1] for row in hours.rows},
        [row[0] for row in spread.rows],
    )


def test_a_run_of_minutes():
    run, head, hours, spread = tables(4e6)
    minutes = run.days * 1440
    assert 2 < minutes < 100
    assert head["calendar time"].startswith(f"{minutes:.1f} min for 4.00 M tokens")
    assert head["GPU-hours"].startswith(f"{8 * minutes / 60:.3g} GPU-hours")
    assert float(hours["the whole run"]) == pytest.approx(8 * minutes / 60, rel=0.005)
    assert float(hours["GEMM+attention"]) > 0
    assert spread[0] == "hours"


def test_a_run_of_days():
    run, head, hours, spread = tables(1e11)
    assert run.days > 1
    assert head["calendar time"].startswith(f"{run.days:,.1f} days for")
    assert hours["the whole run"] == f"{run.gpu_hours:,.0f}"
    assert spread[0] == "days"
