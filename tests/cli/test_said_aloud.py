"""One definition of the bubble in every view, constants that are shown, and no default or proposal nobody is told of."""

import re

import matplotlib.pyplot as plt
import pytest

import costmodel as cm
from costmodel.bill.lines import sum_exposed
from costmodel.cli import main

PIPED = {"model": "llama3-8b", "gpus": 8, "layout": "tp2 pp4", "global_batch": 32, "seq_len": 4096}
EXPERTS = {"model": "mixtral-8x7b", "gpus": 64, "layout": "ep8", "global_batch": 128, "seq_len": 4096}


def shares(text):
    return re.findall(r"bubble (\d+\.\d%) of the step", text)


@pytest.mark.parametrize("layout", ["tp2 pp4", "tp2 pp4 vp4", "pp8"])
def test_bill_figure_and_trace_have_one_bubble(layout):
    est = cm.estimate(**{**PIPED, "layout": layout})
    line = next(line for line in est.bill.time_lines if line.category == "bubble")
    said = f"{float(sum_exposed([line])) / float(est.step_time_s):.1%}"
    assert said != "0.0%"
    figure = est.plot("pipeline")
    title = " ".join(text.get_text() for text in [*figure.texts, figure._suptitle] if text is not None)
    title += " ".join(axes.get_title() for axes in figure.axes)
    plt.close(figure)
    assert set(shares(title)) == {said}
    assert shares(cm.trace(est).grids()[0].note) == [said]
    paid = next(cells for cells in est.grids()[0].rows if cells[0].strip() == "breakdown")[1]
    assert f"pipeline bubble {float(sum_exposed([line])) / float(est.step_time_s):.0%}" in paid


def test_a_profile_is_shown_with_the_constants_of_its_kernels(capsys):
    """What the step time rests on: every constant of the products of every dtype, and of attention, with its source."""
    assert main(["hardware", "show", "h100-sxm-80gb"]) == 0
    shown = {line.split("  ")[0]: line for line in capsys.readouterr().out.splitlines()}
    bf16 = cm.load_accelerator("h100-sxm-80gb").kernels.matmul["bf16"]
    for name in ("peak_fraction", "memory_fraction", "sustained_loss"):
        assert f"{getattr(bf16, name):.3g}" in shown[f"kernels.matmul.bf16.{name}"]
    assert any(name.startswith("kernels.attention") for name in shown)


def test_no_proposal_has_four_bits_for_gradients_or_parameters():
    """Nobody trains so: fp4 is of the products alone."""
    est = cm.estimate(**{**PIPED, "cluster": "hgx-b200-ndr"})
    proposed = [
        f"{change}" for grid in cm.sensitivity(est).grids() for row in grid.rows for change in row[:2]
    ]
    assert any("dtype" in text for text in proposed)
    assert [text for text in proposed if "fp4" in text and "dtype" in text] == []


def test_what_is_assumed_of_routing_is_said_with_what_it_hides(capsys):
    """A mixture of experts over ranks: even routing is a warning, with a flag and its price; measured loads are none."""
    told = [text for text in cm.estimate(**EXPERTS).warnings if "routing of tokens" in text]
    uneven = cm.estimate(**EXPERTS, switches={"moe_imbalance": 1.2})
    more = float(uneven.step_time_s) / float(cm.estimate(**EXPERTS).step_time_s) - 1
    assert more > 0.01
    assert [
        f"--set moe_imbalance=1.2 (the busiest rank gets 20% more) adds {more:.1%}" in text for text in told
    ] == [True]
    assert not [text for text in uneven.warnings if "routing of tokens" in text]
    dense = cm.estimate(**PIPED)
    assert not [text for text in dense.warnings if "routing" in text]
