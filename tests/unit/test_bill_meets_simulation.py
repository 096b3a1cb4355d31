"""What the bill charges for a pipeline, bubble and messages, is what its order takes step by step, on fast links and slow."""

import pytest

import costmodel as cm
from costmodel.estimates.pipeline_run import run_pipeline

JOBS = [
    ({"model": "llama3-8b", "gpus": 64, "global_batch": 128, "seq_len": 8192, "tp": 1, "pp": 8}, (1, 4)),
    ({"model": "llama3-8b", "gpus": 64, "global_batch": 256, "seq_len": 8192, "tp": 1, "pp": 8}, (1, 2)),
    ({"model": "llama3-70b", "gpus": 512, "global_batch": 256, "seq_len": 8192, "tp": 4, "pp": 16}, (1, 5)),
    ({"model": "gpt3-175b", "gpus": 1024, "global_batch": 512, "seq_len": 2048, "tp": 8, "pp": 8}, (1, 6)),
]


@pytest.mark.parametrize("cluster", ["dgx-h100-ndr", "cloud-h100-100gbe"])
@pytest.mark.parametrize(("job", "vp"), [(job, vp) for job, several in JOBS for vp in several])
def test_pipeline_of_the_bill_is_that_of_the_simulation(job, vp, cluster):
    est = cm.estimate(**job, vp=vp, cluster=cluster)
    run = run_pipeline(est)
    assert run.is_whole
    # Once a step, beside the pipeline: gradients of a tied table, optimizer, overhead.
    ends = [line for line in est.bill.time_lines if line.axis == "pp" and line.phase != "step"]
    after_s = run.after_s + sum(float(line.exposed_seconds) for line in ends)

    # The head makes the last of one rank's chunks longer: each chunk is simulated with what it holds.
    assert float(est.step_time_s) - after_s == pytest.approx(run.timeline.makespan_s(), rel=0.035)


def test_chunks_do_not_win_on_a_slow_network():
    # Twice the messages of half the chunk: on 100 Gbit/s Ethernet plain 1F1B is faster, on InfiniBand it is not.
    job = JOBS[0][0]
    for cluster, wins in (("dgx-h100-ndr", 4), ("cloud-h100-100gbe", 1)):
        step_s = {vp: float(cm.estimate(**job, vp=vp, cluster=cluster).step_time_s) for vp in (1, 4)}
        assert min(step_s, key=step_s.__getitem__) == wins
