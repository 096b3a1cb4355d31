"""One step on a clock, event by event: a small job of two stages and eight micro-batches against its own bill."""

import json

import pytest
from round_jobs import price

import costmodel as cm
from costmodel.estimates.pipeline_run import billed_pipeline_s, durations, run_pipeline, simulated_pipeline_s
from costmodel.estimates.trace import STREAMS, trace

JOB = {"model": "llama2-7b", "cluster": "dgx-h100-ndr", "gpus": 32, "global_batch": 64, "seq_len": 4096}


@pytest.fixture(scope="module")
def est():
    """Two stages with tp 2: eight replicas, eight micro-batches each; ZeRO-1 reduces and gathers."""
    return cm.estimate(**JOB, layout="tp2 pp2", zero_stage=1)


@pytest.fixture(scope="module")
def line(est):
    return {line.name: line for line in est.bill.time_lines}


def on_step(timeline, stage):
    """What belongs to no micro-batch."""
    return [one for one in timeline.slices if one.stage == stage and one.micro_batch < 0]


def test_what_runs_once_a_step_stands_behind_the_pipeline_in_order(est, line):
    timeline = trace(est)
    for stage in (0, 1):
        shown = [one for one in on_step(timeline, stage) if not one.name.endswith("(hidden)")]
        assert [(one.name, one.stream, one.kind) for one in shown[:4]] == [
            ("dp.dense.grad_reduce_scatter", "dp", "communication"),
            ("optimizer.adam", "compute", "optimizer"),
            ("optimizer.grad_norm", "compute", "optimizer"),
            ("dp.dense.param_all_gather", "dp", "communication"),
        ]
        assert {one.kind for one in shown[4:]} == {"overhead"}
        at = timeline.pipeline_s
        for one in shown:
            assert one.start_s == pytest.approx(at)
            at += float(line[one.name].exposed_seconds)
            assert one.end_s == pytest.approx(at)
            assert one.busy_s == float(line[one.name].seconds)
        assert shown[-1].end_s == timeline.step_time_s == float(est.step_time_s)


def test_what_is_hidden_of_data_parallelism_ends_with_the_backward_passes_or_begins_the_step(est, line):
    timeline = trace(est)
    hidden = {one.name: one for one in on_step(timeline, 1) if one.name.endswith("(hidden)")}
    gather, reduce = line["dp.dense.param_all_gather"], line["dp.dense.grad_reduce_scatter"]
    assert list(hidden) == ["dp.dense.param_all_gather (hidden)", "dp.dense.grad_reduce_scatter (hidden)"]
    first, last = hidden.values()
    assert (first.stream, first.kind, first.start_s) == ("dp", "communication", 0)
    assert first.end_s == first.busy_s == pytest.approx(float(gather.seconds - gather.exposed_seconds))
    assert last.end_s == pytest.approx(timeline.pipeline_s)
    assert last.busy_s == pytest.approx(float(reduce.seconds - reduce.exposed_seconds))
    assert last.end_s - last.start_s == pytest.approx(last.busy_s)


def test_messages_are_sent_by_the_stage_that_another_waits_for(est, line):
    """Forward by the first stage, backward by the last, as long as the bill's message, after their tasks."""
    timeline = trace(est)
    message_s = float(line["pp.send_recv"].each_s)
    for stage, way in ((0, "forward"), (1, "backward")):
        sent = [one for one in timeline.slices if one.stage == stage and one.stream == "pp"]
        assert sorted(one.name for one in sent) == [f"send {way} {number}" for number in range(8)]
        for one in sent:
            assert (one.kind, one.busy_s) == ("communication", pytest.approx(message_s))
            assert one.end_s - one.start_s == pytest.approx(message_s)
            made = [
                task
                for task in timeline.slices
                if (task.stage, task.name) == (stage, f"{way} {one.micro_batch}") and task.stream != "pp"
            ]
            assert one.start_s >= max(task.end_s for task in made) - 1e-12


def test_a_task_is_its_compute_and_behind_it_what_nothing_hides(est):
    """Tensor parallelism's slice ends the task; on the bill it is as long as all of its lines of that pass."""
    timeline = trace(est)
    lines = [each for block in est.priced.step.block_lines for each in block]
    assert {each.axis for each in lines} == {"compute", "tp"}
    for stage, held in ((0, 16), (1, 16)):
        for way in ("forward", "backward"):
            passes = [each for each in lines if (each.phase == "forward") == (way == "forward")]
            of_layer = {
                axis: held
                * sum(
                    float(each.each_s)
                    for each in passes
                    if each.axis == axis and ".head" not in each.name and ".embedding" not in each.name
                )
                for axis in ("compute", "tp")
            }
            for number in range(8):
                task = {
                    one.stream: one
                    for one in timeline.slices
                    if (one.stage, one.name) == (stage, f"{way} {number}") and one.stream != "pp"
                }
                assert set(task) == {"compute", "tp"}
                assert task["compute"].kind == way
                assert (task["tp"].kind, task["tp"].micro_batch, task["tp"].chunk) == (
                    "communication",
                    number,
                    0,
                )
                assert task["compute"].busy_s >= of_layer["compute"] > 0.85 * task["compute"].busy_s
                assert task["compute"].end_s - task["compute"].start_s == pytest.approx(
                    task["compute"].busy_s
                )
                assert task["tp"].end_s >= task["compute"].end_s
                assert task["tp"].start_s >= task["compute"].start_s


def test_the_clock_and_what_idles(est):
    timeline = trace(est)
    once = [one for one in on_step(timeline, 0) if not one.name.endswith("(hidden)")]
    assert timeline.pipeline_s == pytest.approx(
        timeline.step_time_s - sum(one.end_s - one.start_s for one in once)
    )
    assert timeline.scale == pytest.approx(1.0)
    assert (timeline.stages, timeline.schedule) == (2, "1f1b")
    assert timeline.bubble_s == float(est.exposed_by("category")["bubble"])
    for stage in (0, 1):
        tasks = [
            one
            for one in timeline.slices
            if one.stage == stage and one.name.startswith(("forward", "backward"))
        ]
        lasting = max(one.end_s for one in tasks) - min(one.start_s for one in tasks)
        assert timeline.idle_s()[stage] == pytest.approx(timeline.pipeline_s - timeline.task_s[stage])
        assert timeline.task_s[stage] <= lasting * (1 + 1e-12)
    peaks = timeline.peak_bytes()
    for stage in (0, 1):
        assert peaks[stage] == max(point.held_bytes for point in timeline.memory if point.stage == stage)


def test_events_of_the_file(est):
    """A slice an event in microseconds with its time on the bill, memory in GiB; what the viewer's header says."""
    found = trace(est)
    written = json.loads(found.to_json())
    events = written["traceEvents"]
    drawn = [event for event in events if event["ph"] == "X"]
    for event, piece in zip(drawn, found.slices, strict=True):
        assert (event["pid"], STREAMS[event["tid"]], event["name"]) == (piece.stage, piece.stream, piece.name)
        assert (event["ts"], event["dur"]) == pytest.approx(
            (1e6 * piece.start_s, 1e6 * (piece.end_s - piece.start_s))
        )
        assert event["args"]["bill_s"] == piece.busy_s
        assert ("micro_batch" in event["args"]) == (piece.micro_batch >= 0)
    threads = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert threads == {piece.stream for piece in found.slices}
    held = [event["args"]["GiB"] for event in events if event["ph"] == "C"]
    assert max(held) * 2**30 == pytest.approx(float(est.memory_bytes_per_gpu))
    about = written["otherData"]
    assert about["job"] == "llama2-7b on 32 GPUs of dgx-h100-ndr, recipe megatron-core"
    assert (about["schedule"], about["step_time_s"]) == ("1f1b", float(est.step_time_s))
    columns = found.columns()
    assert columns["name"] == [event["name"] for event in drawn]


def test_a_long_step_is_simulated_in_part():
    """64 micro-batches on 4 stages, three tasks each and stage: at least four rounds, whole pairs of rounds, at most all."""
    for most, shown in [(1, 16), (12 * 23, 16), (12 * 24, 24), (12 * 40, 40), (12 * 63, 56), (12 * 64, 64)]:
        run = run_pipeline(price(gpus=4, layout="pp4", global_batch=64), most_tasks=most)
        assert (run.simulated, run.micro_batches, run.is_whole) == (shown, 64, shown == 64)
        assert len(run.timeline.tasks) == 2 * 4 * shown


def test_a_long_step_of_stages_that_are_nearly_alike_goes_on_at_the_pace_of_the_slower_one():
    """Two stages, the first 6 % slower, and 256 micro-batches of which 32 are run: the whole takes what all of them do."""
    job = {
        "model": "qwen3-30b-a3b",
        "gpus": 8,
        "layout": "pp2 vp2 ep4",
        "seq_len": 4096,
        "global_batch": 1024,
    }
    est = cm.estimate(**job, pipeline_layout="balanced")
    run = run_pipeline(est)
    assert run.is_whole
    assert simulated_pipeline_s(est.priced) == pytest.approx(run.timeline.makespan_s(), rel=2e-3)
    busy_s = sum(each.sum(axis=1) for each in durations(est.priced))
    assert 1.03 < busy_s[0] / busy_s[1] < 1.1


def test_a_long_step_both_ways_goes_on_at_the_pace_of_two_stages_together():
    """The last of four stages has the head and takes longer than the mean of it and the first, which share two ranks."""
    job = {"model": "llama3-8b", "gpus": 4, "layout": "pp4", "seq_len": 4096, "global_batch": 64}
    est = cm.estimate(**job, schedule="dualpipe")
    run = run_pipeline(est)
    assert run.is_whole
    assert run.micro_batches == 64
    assert simulated_pipeline_s(est.priced) == pytest.approx(run.timeline.makespan_s(), rel=2e-3)


def test_a_long_step_whose_groups_take_turns_goes_on_as_two_groups_did():
    """Late messages of eight ranks that interleave: groups of eight micro-batches take 4.25 s and 4.16 s by turns."""
    job = {"model": "llama-7b", "cluster": "cloud-h100-100gbe", "recipe": "megatron-bridge", "gpus": 2048}
    job |= {"layout": "tp2 pp8 vp4", "micro_batch": 2, "recompute": "selective", "sequence_parallel": False}
    job |= {"zero_stage": 1, "shard_group": 8, "global_batch": 16384, "seq_len": 16384}
    est = cm.estimate(**job, switches={"cp_method": "ulysses", "tp_overlap": "none"})
    run = run_pipeline(est)
    assert run.micro_batches == 64
    assert simulated_pipeline_s(est.priced) == pytest.approx(run.timeline.makespan_s(), rel=2e-3)


def test_a_long_step_that_fills_gaps_goes_on_as_its_last_groups_did():
    """V-shaped chunks of unlike layers with late messages: of 128 micro-batches 64 are run; closed forms are 10 % too fast."""
    job = {"model": "gpt-oss-120b", "cluster": "cloud-h100-100gbe", "recipe": "pytorch-ddp", "gpus": 2048}
    job |= {
        "layout": "tp4 cp2 pp16 vp2 etp2",
        "schedule": "v-half",
        "micro_batch": 2,
        "zero_stage": 3,
        "recompute": "none",
    }
    job |= {
        "sequence_parallel": False,
        "global_batch": 4096,
        "seq_len": 1024,
        "switches": {"cp_method": "all-gather"},
    }
    est = cm.estimate(**job)
    run = run_pipeline(est)
    assert run.is_whole
    assert run.micro_batches == 128
    assert simulated_pipeline_s(est.priced) == pytest.approx(run.timeline.makespan_s(), rel=2e-3)
    assert billed_pipeline_s(est.bill) == pytest.approx(run.timeline.makespan_s(), rel=6e-3)
