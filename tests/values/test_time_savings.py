"""Warnings that carry a flag and what it saves: each gain is that of the estimate that the flag makes."""

import re
import shlex

import pytest

import costmodel as cm
from costmodel.estimates.savings import time_savings

LLAMA = {
    "model": "llama3-405b",
    "cluster": "llama3-roce",
    "gpus": 16384,
    "seq_len": 8192,
    "global_batch": 2048,
}
SMALL = {"model": "llama3-8b", "gpus": 64, "global_batch": 128, "seq_len": 8192, "recompute": "full"}
KEYS = {
    "--vp": "vp",
    "--schedule": "schedule",
    "--pipeline-layout": "pipeline_layout",
    "--axis-order": "axis_order",
}


def repriced(asked, flags):
    """The estimate that flags make of a job."""
    words = shlex.split(flags)
    changed = {KEYS[name]: value for name, value in zip(words[::2], words[1::2], strict=True)}
    return cm.estimate(**{**asked, **changed})


@pytest.mark.parametrize(
    "asked",
    [
        {**LLAMA, "tp": 8, "pp": 16},
        {**SMALL, "pp": 8, "schedule": "1f1b"},
        {**SMALL, "pp": 4, "tp": 2, "vp": 2},
        {**SMALL, "model": "qwen3-30b-a3b", "pp": 4, "ep": 4, "tp": 4},
    ],
)
def test_each_gain_is_that_of_its_flags(asked):
    est = cm.estimate(**asked)
    found = time_savings(est.job)
    assert found
    for saving in found:
        again = repriced(asked, str(saving.change))
        assert float(again.step_time_s) == pytest.approx(saving.step_time_s, rel=1e-12)
        assert float(again.memory_bytes_per_gpu) == pytest.approx(saving.memory_bytes, rel=1e-12)
        gain = 1 - saving.step_time_s / float(est.step_time_s)
        assert -saving.slowdown == pytest.approx(gain, rel=1e-9)
        said = [one for one in est.warnings if one.startswith(f"{saving.change} saves")]
        assert len(said) == (gain >= 0.01)
        if said:
            assert float(re.search(r"saves ([\d.]+)%", said[0])[1]) == pytest.approx(100 * gain, abs=0.051)


def test_the_best_number_of_virtual_stages_is_named():
    """126 layers with embedding and head as layers: 8 places a stage of 16, of which 2, 4 and 8 divide."""
    asked = {**LLAMA, "tp": 8, "pp": 16, "recipe": "llama3"}
    (first, *_) = time_savings(cm.estimate(**asked).job)
    times = {vp: float(cm.estimate(**asked, vp=vp).step_time_s) for vp in (2, 4, 8)}
    assert str(first.change) == f"--vp {min(times, key=times.get)} --schedule interleaved"
    assert first.step_time_s == pytest.approx(min(times.values()), rel=1e-12)


def test_together_stands_last_and_saves_more_than_each():
    found = time_savings(cm.estimate(**LLAMA, tp=8, pp=16).job)
    assert [str(one.change) for one in found][-1] == " ".join(str(one.change) for one in found[:-1])
    assert found[-1].slowdown < min(one.slowdown for one in found[:-1])


@pytest.mark.parametrize(("model", "pp"), [("gemma2-9b", 8), ("llama3-8b", 2)])
def test_what_saves_no_more_together_than_the_better_of_two_is_not_offered(model, pp):
    """Chunks of the balanced split: slower than that split alone, or as fast as the chunks alone."""
    asked = {**SMALL, "model": model, "seq_len": 4096, "pp": pp}
    found = {str(one.change): one.step_time_s for one in time_savings(cm.estimate(**asked).job)}
    assert len(found) == 2
    assert float(repriced(asked, " ".join(found)).step_time_s) >= min(found.values()) * (1 - 1e-6)


def test_the_stage_with_the_head_gets_fewer_layers():
    est = cm.estimate(**SMALL, pp=8)
    (said,) = (one for one in est.warnings if one.startswith("--pipeline-layout balanced saves"))
    layout = re.search(r"pace; (\S+) gives", said)[1]
    written = cm.estimate(**SMALL, pp=8, pipeline_layout=layout)
    balanced = cm.estimate(**SMALL, pp=8, pipeline_layout="balanced")
    assert float(written.step_time_s) == pytest.approx(float(balanced.step_time_s), rel=1e-12)
    assert layout.split("|")[-1].count("t") < 4
    assert not [one for one in balanced.warnings if "--pipeline-layout" in one]


def test_what_does_not_fit_is_said():
    est = cm.estimate(**LLAMA, tp=8, pp=16)
    (said,) = (one for one in est.warnings if re.match(r"--vp 4 --schedule interleaved saves \d+\.\d%", one))
    assert said.endswith("does not fit)")


def test_what_the_framework_does_not_start_is_left_out():
    for changed, without in [
        ({"pp": 1}, ("--vp", "--pipeline-layout", "--axis-order")),
        ({"pp": 8, "recipe": "aleph-scaling"}, ("--vp", "--axis-order")),  # no virtual stages there
        ({"pp": 8, "recipe": "torchtitan", "zero_stage": 3}, ("--pipeline-layout", "--axis-order")),
        ({"pp": 8, "pipeline_layout": "Et*4|(t*4|)*6t*4L"}, ("--vp", "--pipeline-layout")),
        ({"pp": 8, "schedule": "zb-h1", "recipe": "zero-bubble"}, ("--vp",)),
        ({"pp": 2, "ep": 8, "model": "qwen3-30b-a3b"}, ("--axis-order",)),  # experts divide otherwise
    ]:
        flags = " ".join(str(one.change) for one in time_savings(cm.estimate(**{**SMALL, **changed}).job))
        assert not [flag for flag in without if flag in flags]
