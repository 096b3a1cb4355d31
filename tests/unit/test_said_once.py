"""One definition of the bubble; constants that are shown; proposals that people train with; defaults that are told."""

import re

import numpy as np
import pytest

import costmodel as cm
from costmodel.reporting.pictures import pipeline_chart
from costmodel.reporting.series import bubble_text
from costmodel.what_if.changes import choice_changes

DENSE = {
    "model": "llama3-70b",
    "gpus": 64,
    "layout": "tp4 pp4 vp5",
    "global_batch": 128,
    "seq_len": 8192,
}
MOE = {"model": "qwen3-30b-a3b", "gpus": 64, "layout": "ep8", "global_batch": 256, "seq_len": 4096}


@pytest.fixture(scope="module")
def est():
    return cm.estimate(**DENSE)


def test_the_bubble_is_the_same_in_bill_figure_page_and_trace(est):
    pytest.importorskip("matplotlib")
    line = next(line for line in est.bill.time_lines if line.name == "pp.bubble")
    said = f"bubble {float(line.exposed_seconds) / float(est.step_time_s):.1%} of the step"
    figure = est.plot.pipeline().get_suptitle()
    page = pipeline_chart(est).note
    (trace,) = cm.trace(est).grids()
    for text in (figure, page, trace.note):
        assert said in text
        assert "what the busiest rank waits for" in text
    idle = {re.search(r"ranks idle (\d+\.\d%)", text)[1] for text in (figure, page, trace.note)}
    assert len(idle) <= 2  # the trace is on the bill's clock, the figure on the simulation's
    shares = [float(row[3].rstrip("%")) for row in trace.rows]
    assert np.mean(shares) == pytest.approx(float(idle.pop().rstrip("%")), abs=0.4)


def test_ranks_are_idle_on_average():
    said = bubble_text(0.2, np.asarray([0.2, 0.4, 0.6, 0.8]), 10.0)
    assert said.startswith("bubble 2.0% of the step")
    assert "ranks idle 5.0% of it on average" in said


def test_nobody_is_proposed_gradients_in_four_bits(est):
    changes = choice_changes(est.job)
    assert not [change for change in changes if change.after == "fp4"]
    assert [change.after for change in changes if change.name == "grad_reduce_dtype"] == [
        "bf16",
        "fp16",
        "fp8",
    ]


def test_what_changes_numerics_says_so(est):
    changes = {str(change): change for change in choice_changes(est.job)}
    assert changes["grad_accum_dtype=bf16"].changes_numerics
    assert not changes["tp_overlap=pipelined"].changes_numerics
    tight = cm.estimate(
        **{
            **DENSE,
            "gpus": 128,
            "layout": "tp8",
            "zero_stage": 1,
            "recompute": "selective",
            "global_batch": 1024,
        }
    )
    assert not tight.fits
    assert re.search(
        r"grad_accum_dtype=bf16 is the cheapest that fits \([^)]*changes numerics\)", tight.warnings[0]
    )
    _, switches = cm.sensitivity(est).grids(every_one=True)
    names = [row[0] for row in switches.rows]
    assert "grad_reduce_dtype *" in names
    assert "* changes numerics" in switches.note


def test_the_routing_that_is_assumed_is_told_with_what_uneven_routing_costs():
    est = cm.estimate(**MOE)
    (told,) = [text for text in est.warnings if "is assumed" in text]
    uneven = cm.estimate(**MOE, switches={"moe_imbalance": 1.2})
    more = float(uneven.step_time_s / est.step_time_s) - 1.0
    assert more > 0.01
    assert "--set moe_imbalance=1.2" in told
    assert f"adds {more:.1%} to the step" in told
    assert "random" in told
    balanced = cm.estimate(**MOE, switches={"moe_balance": "balanced"})
    assert any("assumed perfectly balanced" in text for text in balanced.warnings)
    assert not [text for text in uneven.warnings if "is assumed" in text]
    assert not [text for text in cm.estimate(**{**MOE, "layout": "tp2"}).warnings if "is assumed" in text]
