"""Traces: valid trace events, tracks without partial overlap, and the bill's step time and memory."""

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from famous_jobs import JOBS, famous

import costmodel as cm
from costmodel.estimates.trace import trace
from costmodel.physics.pipeline.schedule_table import SCHEDULES
from costmodel.physics.pipeline.schedules import schedule_code

TWO_CHUNKS = ("interleaved", "zb-v", "dualpipe-v", "v-half", "v-min")
DENSE = {"model": "llama3-8b", "gpus": 64, "seq_len": 8192, "micro_batch": 1, "tp": 2}


def of_schedule(name, **changes):
    """Price a job of 32 micro-batches under a schedule."""
    pp = 1 if name == "none" else 4
    job = {
        **DENSE,
        "pp": pp,
        "vp": 2 if name in TWO_CHUNKS else 1,
        "schedule": name,
        "global_batch": 32 * 32 // pp,
    }
    return cm.estimate(**{**job, **changes})


CASES = {name: lambda name=name: of_schedule(name) for name in SCHEDULES}
CASES |= {
    f"{name}, sending apart": lambda name=name: of_schedule(name, switches={"pp_overlap": True})
    for name in ("1f1b", "interleaved", "zb-2p", "dualpipe")
}
CASES |= {f"famous {name}": lambda name=name: famous(name) for name in JOBS}
CASES["tied, uneven"] = lambda: cm.estimate(model="gpt2-xl", gpus=24, pp=3, global_batch=64, seq_len=1024)
CASES["experts"] = lambda: cm.estimate(
    model="mixtral-8x7b", gpus=64, pp=2, tp=2, ep=4, global_batch=64, seq_len=4096
)


@pytest.fixture(params=CASES)
def priced(request):
    est = CASES[request.param]()
    return est, trace(est)


def test_slices_of_a_track_never_overlap(priced):
    _, timeline = priced
    tracks = defaultdict(list)
    for piece in timeline.slices:
        assert piece.start_s <= piece.end_s
        tracks[piece.stage, piece.stream].append((piece.start_s, piece.end_s))
    for spans in tracks.values():
        for (_, end), (start, _) in pairwise(sorted(spans)):
            assert start >= end - 1e-9 * timeline.step_time_s


def test_a_stage_computes_what_its_lines_say(priced):
    """Time in tasks of the slowest stage is that of the bill's blocks; nothing is drawn twice or left out."""
    est, timeline = priced
    blocks = {line.name for lines in est.priced.step.block_lines for line in lines}
    on_bill = sum(float(line.exposed_seconds) for line in est.bill.time_lines if line.name in blocks)
    assert max(timeline.task_s) == pytest.approx(on_bill * timeline.scale, rel=1e-9)
    drawn = np.zeros(timeline.stages)
    for piece in timeline.slices:
        if piece.stream == "compute" and piece.micro_batch >= 0:
            drawn[piece.stage] += piece.end_s - piece.start_s
    own = [line for line in est.bill.time_lines if line.name in blocks and line.axis == "compute"]
    compute = sum(float(line.exposed_seconds) for line in own)
    assert drawn.max() == pytest.approx(compute * timeline.scale, rel=1e-6)


def test_simulation_and_bill_agree_on_the_pipeline(priced):
    est, timeline = priced
    apart = 0.12 if int(est.job.layout.schedule) == schedule_code("v-min") else 0.04
    assert timeline.simulated_s == pytest.approx(timeline.pipeline_s, rel=apart)


def test_memory_peaks_at_the_bill(priced):
    """The counter never passes the bill; it gets there unless W is put off, when the bill is an upper bound."""
    est, timeline = priced
    held = np.broadcast_to(est.bill.memory_per_stage_bytes(), (timeline.stages,))
    peaks = timeline.peak_bytes()
    assert np.all(peaks <= held * (1 + 1e-9))
    if timeline.schedule not in ("zb-h1", "zb-2p"):
        assert peaks.max() == pytest.approx(held.max(), rel=0.02)
    last = {point.stage: point.held_bytes for point in timeline.memory}
    first = {point.stage: point.held_bytes for point in reversed(timeline.memory)}
    for stage in range(timeline.stages):
        assert last[stage] == pytest.approx(first[stage], rel=1e-9)
        assert last[stage] < peaks[stage]


def test_every_micro_batch_goes_forward_and_back_on_every_stage():
    timeline = trace(famous("llama3-405b"))
    seen = defaultdict(set)
    for piece in timeline.slices:
        if piece.stream == "compute" and piece.micro_batch >= 0:
            seen[piece.stage, piece.kind].add((piece.micro_batch, piece.chunk))
    every = {(i, chunk) for i in range(16) for chunk in range(4)}
    assert all(seen[stage, kind] == every for stage in range(16) for kind in ("forward", "backward"))


def test_backward_follows_forward_and_the_stage_after():
    timeline = trace(of_schedule("1f1b"))
    when = {
        (piece.stage, piece.kind, piece.micro_batch): piece
        for piece in timeline.slices
        if piece.stream == "compute"
    }
    for i in range(32):
        for stage in range(3):
            assert when[stage + 1, "forward", i].start_s >= when[stage, "forward", i].end_s
            assert when[stage, "backward", i].start_s >= when[stage + 1, "backward", i].end_s


def test_what_is_hidden_is_drawn_beside_compute():
    timeline = trace(famous("fsdp"))
    hidden = [piece for piece in timeline.slices if piece.name.endswith("(hidden)")]
    assert hidden
    assert all(piece.stream == "dp" and piece.end_s <= timeline.pipeline_s * (1 + 1e-9) for piece in hidden)
