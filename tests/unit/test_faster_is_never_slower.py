"""The step is the slowest stage's whole step: better hardware never lengthens it, more tokens never shorten it."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_jobs import is_possible, job_of, jobs

import costmodel as cm
from costmodel.estimates.estimate import estimate_job
from costmodel.physics.pipeline.schedules import schedule_at
from costmodel.what_if.changes import hardware_changes

# Of the others the bubble depends on how the host's launches fall on the two halves of a backward pass.
WHOLE_BACKWARD = {"none", "naive", "gpipe", "1f1b", "interleaved"}


def one_port(layout) -> bool:
    """Leave out HSDP: its two sums wait for the same compute on two ports and are billed one after the other.

    A shorter pass exposes more of both, which costs up to 1e-4 of a step more than the pass saves.
    """
    return layout["zero_stage"] < 3 or layout["shard_group"] == 0


def step_s(job) -> float:
    return float(estimate_job(job, every_stage=False).step_time_s)


@settings(max_examples=60, deadline=None)
@given(jobs(), st.sampled_from([1.1, 2.0, 4.0]), st.data())
def test_better_hardware_is_never_slower(drawn, factor, data):
    question, layout = drawn
    assume(schedule_at(layout["schedule"]).name in WHOLE_BACKWARD and one_port(layout))
    job = job_of(question, layout)
    assume(is_possible(job))
    faster = [change for change in hardware_changes(job, factor) if change.kind == "rate"]
    faster += [change for change in hardware_changes(job, 1.0 / factor) if change.kind == "latency"]
    before = step_s(job)

    for better in data.draw(
        st.lists(st.sampled_from(faster), min_size=3, max_size=3, unique_by=lambda c: c.name)
    ):
        assert step_s(better.job) <= before * (1 + 1e-9), better.name


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_more_tokens_are_never_faster(drawn):
    question, layout = drawn
    assume(schedule_at(layout["schedule"]).name in WHOLE_BACKWARD and one_port(layout))
    job, longer = job_of(question, layout), job_of(question, layout, seq_len=2 * layout["seq_len"])
    assume(is_possible(job) and is_possible(longer))

    assert step_s(longer) >= step_s(job) * (1 - 1e-9)


# Found by a scan of 2,288 random jobs: the critical stage went from the head to the embedding, whose messages differ.
TURNS = [
    (
        {
            "model": "gpt-oss-120b",
            "cluster": "hgx-b300-xdr",
            "gpus": 2048,
            "global_batch": 4096,
            "tp": 8,
            "ep": 2,
        }
        | {"micro_batch": 2, "recompute": "full"},
        [{"seq_len": 8192}, {"seq_len": 16384}],
    ),
    (
        {
            "model": "gpt-oss-120b",
            "cluster": "mi300x-roce400",
            "gpus": 2048,
            "global_batch": 4096,
            "tp": 8,
            "ep": 2,
        }
        | {"micro_batch": 2, "recompute": "full"},
        [{"seq_len": 512}, {"seq_len": 1024}],
    ),
    (
        {"model": "qwen2.5-7b", "cluster": "llama3-roce", "gpus": 256, "global_batch": 256, "tp": 4, "cp": 2}
        | {"recompute": "selective", "seq_len": 4096},
        [{"peak": 4.0}, {"peak": 2.0}, {"peak": 1.0}],
    ),
]


@pytest.mark.parametrize(("job", "steps"), TURNS)
def test_a_turn_of_the_critical_stage_does_not_jump(job, steps):
    times = []
    for change in steps:
        one = {**job, "pp": 16, "schedule": "gpipe", "zero_stage": 3, "sequence_parallel": True, **change}
        peak = one.pop("peak", 1.0)
        est = cm.estimate(**one)
        change = next(one for one in hardware_changes(est.job, peak) if "peak" in one.name)
        times.append(step_s(change.job))

    assert times == sorted(times)
