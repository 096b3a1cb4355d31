"""Values that are refused: the line names fields, what is allowed and what was given."""

import pytest

import costmodel as cm
from costmodel.base.errors import CostModelError
from costmodel.describe.hardware.profile_schema import memory_problem
from costmodel.describe.jobs.merge import read_job

JOB = {"model": "llama3-8b", "cluster": "dgx-a100-hdr", "gpus": 64, "global_batch": 256, "seq_len": 4096}


def refusal(**more):
    with pytest.raises(CostModelError) as error:
        cm.estimate(**{**JOB, **more})
    return str(error.value)


def test_lists_of_two_lengths():
    for more, said in [
        (
            {"gpus": [64, 128], "tp": [1, 2, 4]},
            ("gpus, tp: expected lists of one length", "2 of gpus, 3 of tp"),
        ),
        ({"tp": [1, 2], "pp": [1, 2, 4]}, ("2 of tp, 3 of pp",)),
        ({"seq_len": [4096] * 2, "micro_batch": [1] * 3}, ("2 of seq_len, 3 of micro_batch",)),
        ({"global_batch": [256] * 2, "gpus": [64] * 3}, ("3 of gpus, 2 of global_batch",)),
    ]:
        text = refusal(**more)
        assert "costmodel.sweep takes every combination" in text
        assert all(part in text for part in said)


def test_lists_that_go_together():
    assert cm.estimate(**{**JOB, "gpus": [[64], [128]], "tp": [1, 2, 4]}).step_time_s.shape == (2, 3)
    assert cm.estimate(**{**JOB, "gpus": [64, 128], "tp": [4]}).step_time_s.shape == (2,)


def test_one_value_where_a_list_stands():
    text = refusal(precision=["bf16", "fp8"])
    assert text.startswith(
        "precision: expected a text, got ['bf16', 'fp8'] (one value, bf16, fp16, fp32, fp8"
    )
    assert text.endswith("; costmodel.sweep takes several)")
    assert "Python API" not in text


def test_switches_in_the_words_of_the_house():
    text = refusal(switches={"tp_overlap": "maybe"})
    assert text == (
        "recipe megatron-core: tp_overlap: expected 'none', 'weight-grad' or 'pipelined', got 'maybe'"
    )


def test_memory_above_the_fitted_one_shows_both():
    assert memory_problem(120 * 2**30, 128e9) == (
        "memory: expected at most memory_vendor, what is fitted (119.2 GiB, 128.0 GB), got 120.0 GiB, 128.8 GB"
    )
    assert memory_problem(128e9, 128e9) == ""


def test_what_was_measured_is_checked_in_every_job_file(tmp_path):
    for measured, said in [
        ("{step_time: soon}", "step_time"),
        ("{step_time: 0}", "step_time: expected more than 0, got '0'"),
        ("{memory: 3 apples}", "memory"),
        ("{memory: 61GiB, memory_kind: guessed}", "memory_kind: 'guessed' is unknown"),
        ("{memory_kind: stated}", "expected step_time or memory"),
        ("{pace: 3}", "'pace' is unknown"),
        ("soon", "expected what was measured"),
    ]:
        path = tmp_path / "job.yaml"
        path.write_text(f"gpus: 8\nmeasured: {measured}\n", encoding="utf-8")
        with pytest.raises(CostModelError) as error:
            read_job(path)
        assert str(error.value).startswith(f"{path}: measured: ")
        assert said in str(error.value)


def test_what_was_measured_is_no_field_of_the_job(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("gpus: 8\nmeasured: {step_time: 5.2s, memory_kind: stated}\n", encoding="utf-8")
    assert read_job(path) == {"gpus": 8}


def test_what_is_no_estimate_is_named_by_what_compares_estimates():
    est = cm.estimate(**JOB, tp=2, precision="bf16")
    for call, said in [
        (lambda: cm.sensitivity(model="llama3-8b"), "sensitivity: model: expected an estimate"),
        (lambda: cm.sensitivity("llama3-8b"), "sensitivity: expected an estimate.* got 'llama3-8b'"),
        (lambda: cm.compare(est, 4), "compare: expected estimates .* got 4"),
        (lambda: cm.compare([est, est]), r"compare: expected estimates one by one, such as compare\(a, b\)"),
        (lambda: cm.compare(est), r"compare: 1 job given, expected two or more, such as compare\(a, b\)"),
    ]:
        with pytest.raises(CostModelError, match=said):
            call()
